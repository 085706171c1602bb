//! Finds the `ForeignCluster` of a peer.

use std::{collections::BTreeMap, sync::Arc};

use liqo_api::{ClusterId, ForeignCluster};

use crate::Cache;

/// The `ForeignCluster`s with this ID, the oldest first. If there are several, only the first one
/// counts.
pub fn of_peer(
    foreign_clusters: &Cache<ForeignCluster>,
    id: &ClusterId,
) -> Vec<Arc<ForeignCluster>> {
    let mut all = in_order(foreign_clusters);
    all.retain(|object| object.spec.cluster_id == *id);
    all
}

/// The `ForeignCluster` that counts for each peer.
pub fn by_peer(
    foreign_clusters: &Cache<ForeignCluster>,
) -> BTreeMap<ClusterId, Arc<ForeignCluster>> {
    let mut first = BTreeMap::new();
    for object in in_order(foreign_clusters) {
        first
            .entry(object.spec.cluster_id.clone())
            .or_insert(object);
    }
    first
}

fn in_order(foreign_clusters: &Cache<ForeignCluster>) -> Vec<Arc<ForeignCluster>> {
    let mut all: Vec<Arc<ForeignCluster>> = foreign_clusters
        .all()
        .into_iter()
        .map(|(_, object)| object)
        .collect();
    all.sort_by(|one, other| {
        let [one, other] = [one, other].map(|object| &object.metadata);
        one.creation_timestamp
            .cmp(&other.creation_timestamp)
            .then_with(|| one.name.cmp(&other.name))
    });
    all
}

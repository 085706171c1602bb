//! Which `ForeignCluster` stands for a peer.

use std::sync::Arc;

use liqo_api::{ClusterId, ForeignCluster};

use crate::Cache;

/// Those of a peer. Of several the first one counts, which is the oldest, for every slice alike.
pub fn of_peer(foreign_clusters: &Cache<ForeignCluster>, id: &ClusterId) -> Vec<Arc<ForeignCluster>> {
    let mut all: Vec<Arc<ForeignCluster>> =
        foreign_clusters.all().into_iter().map(|(_, object)| object).filter(|object| object.spec.cluster_id == *id).collect();
    all.sort_by_key(|object| (object.metadata.creation_timestamp.clone(), object.metadata.name.clone()));
    all
}

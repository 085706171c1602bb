//! Finds the `PeeringPolicy` that applies to a peer.

use std::sync::Arc;

use liqo_api::{
    PeeringPolicy,
    policies::{PolicyPeer, of_peer},
};

use crate::Cache;

pub fn effective(policies: &Cache<PeeringPolicy>, peer: &PolicyPeer) -> Option<Arc<PeeringPolicy>> {
    let all: Vec<_> = policies
        .all()
        .into_iter()
        .map(|(_, policy)| policy)
        .collect();
    of_peer(&all, peer).first().map(|policy| Arc::clone(policy))
}

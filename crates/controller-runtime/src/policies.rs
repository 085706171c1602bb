//! Finds the `PeeringPolicy` that applies to a peer.

use std::sync::Arc;

use liqo_api::{
    PeeringPolicy,
    policies::{PolicyPeer, policies_of_peer},
};

use crate::Cache;

pub fn effective_policy(
    policies: &Cache<PeeringPolicy>,
    peer: &PolicyPeer,
) -> Option<Arc<PeeringPolicy>> {
    let all: Vec<_> = policies
        .all()
        .into_iter()
        .map(|(_, policy)| policy)
        .collect();
    policies_of_peer(&all, peer)
        .first()
        .map(|policy| Arc::clone(policy))
}

//! `liqoctl approve` and `liqoctl refuse`: whether a cluster may borrow from here.
//!
//! The answer is `spec.incomingPeering` of its `ForeignCluster`; the controllers do the rest.

use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use liqo_api::{ForeignCluster, PeeringIntent};
use serde::Serialize;
use serde_json::json;

use crate::{
    cluster::{Cluster, ExplainFailure as _},
    unpeer::lends_to,
};

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedPeeringIntent {
    /// Name of the peer.
    pub peer: String,
    /// Whether it may borrow from this cluster.
    pub incoming_peering: PeeringIntent,
}

/// The question to ask before refusing a peer that borrows from this cluster.
pub fn question_before_refusal(foreign: &ForeignCluster) -> Option<String> {
    let name = foreign.name_any();
    lends_to(foreign).then(|| format!("This takes back what {name} borrows from this cluster, and ends its pods here. Continue?"))
}

/// Records whether a peer may borrow from this cluster.
pub async fn record_peering_intent(
    cluster: &Cluster,
    foreign: &ForeignCluster,
    incoming_peering: PeeringIntent,
) -> anyhow::Result<RecordedPeeringIntent> {
    let (api, peer) = (
        Api::<ForeignCluster>::all(cluster.client.clone()),
        foreign.name_any(),
    );
    let change = json!({ "metadata": { "uid": foreign.metadata.uid }, "spec": { "incomingPeering": incoming_peering } });
    let written = api
        .patch(&peer, &PatchParams::default(), &Patch::Merge(&change))
        .await;
    written.doing(format!("change ForeignCluster {peer}"))?;
    Ok(RecordedPeeringIntent {
        peer,
        incoming_peering,
    })
}

/// The result as text for people.
pub fn render_peering_intent(decided: &RecordedPeeringIntent) -> String {
    let peer = &decided.peer;
    if decided.incoming_peering == PeeringIntent::No {
        format!(
            "{peer} may not borrow from this cluster; `liqoctl approve {peer}` allows it again."
        )
    } else {
        format!("{peer} may borrow from this cluster; `liqoctl status` shows when it does.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_borrows_loses_something() {
        let peer = |status: serde_json::Value| -> ForeignCluster {
            let id = liqo_api::ClusterId::of_public_key(&[1; 32]);
            serde_json::from_value(json!({ "metadata": { "name": "rome" }, "spec": { "clusterID": id }, "status": status }))
                .unwrap()
        };
        assert_eq!(question_before_refusal(&peer(json!({}))), None);
        assert!(
            question_before_refusal(&peer(json!({ "tenantNamespace": "liqo-tenant-x" })))
                .unwrap()
                .contains("rome")
        );
    }
}

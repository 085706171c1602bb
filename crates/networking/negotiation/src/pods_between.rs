//! Asks whether pods of this cluster run at a peer, or pods of the peer run here. These pods know
//! addresses of the other cluster, so its prefixes must stay where they appear.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt as _, api::ListParams};
use liqo_api::{ClusterId, Key, labels};
use liqo_controller_runtime::{
    Context,
    conditions::namespaced_api,
    writes::{RequestError, StepContext as _},
};

/// Asks the API server: the answer matters only while prefixes of a peer have to appear elsewhere.
/// `guests` are the namespaces of the peer's pods here.
pub async fn run_between(
    context: &Context,
    peer: &ClusterId,
    guests: &[String],
) -> Result<bool, RequestError> {
    let running = "status.phase!=Succeeded,status.phase!=Failed";
    for guest in guests {
        let pods: Api<Pod> = namespaced_api(&context.client, guest);
        let one = ListParams::default().fields(running).limit(1);
        if !pods
            .list_metadata(&one)
            .await
            .step("list", "Pod", Key::new(guest.as_str(), ""))?
            .items
            .is_empty()
        {
            return Ok(true);
        }
    }
    let virtual_nodes =
        ListParams::default().labels(&format!("{}={peer}", labels::REMOTE_CLUSTER_ID));
    let nodes: Api<Node> = Api::all(context.client.clone());
    for node in nodes
        .list_metadata(&virtual_nodes)
        .await
        .step("list", "Node", Key::default())?
    {
        let pods: Api<Pod> = Api::all(context.client.clone());
        // From the API server's cache, which has an index of nodes.
        let on_node = ListParams::default()
            .fields(&format!("spec.nodeName={},{running}", node.name_any()))
            .match_any();
        if !pods
            .list_metadata(&on_node)
            .await
            .step("list", "Pod", Key::default())?
            .items
            .is_empty()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

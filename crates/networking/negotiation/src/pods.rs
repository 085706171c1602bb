//! Whether pods of this cluster run at a peer, or pods of the peer here: they know each other's addresses.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt as _, api::ListParams};
use liqo_api::{ClusterId, ShadowPod, labels, tenant_namespace};
use liqo_controller_runtime::{
    Context, Key,
    conditions::namespaced,
    writes::{RequestError, Step as _},
};

/// Asks the API server: the answer matters only while prefixes of a peer have to appear elsewhere.
pub async fn run_between(context: &Context, peer: &ClusterId) -> Result<bool, RequestError> {
    let one = ListParams::default().limit(1);
    let guests: Api<ShadowPod> = namespaced(&context.client, &tenant_namespace(peer));
    let guests = guests.list(&one).await.step("list", "ShadowPod", Key::new(tenant_namespace(peer), ""))?;
    if !guests.items.is_empty() {
        return Ok(true);
    }
    let virtual_nodes = ListParams::default().labels(&format!("{}={peer}", labels::REMOTE_CLUSTER_ID));
    let nodes: Api<Node> = Api::all(context.client.clone());
    let nodes = nodes.list(&virtual_nodes).await.step("list", "Node", Key::default())?;
    for node in nodes {
        let running = format!("spec.nodeName={},status.phase!=Succeeded,status.phase!=Failed", node.name_any());
        let pods: Api<Pod> = Api::all(context.client.clone());
        let pods = pods.list(&one.clone().fields(&running)).await.step("list", "Pod", Key::default())?;
        if !pods.items.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

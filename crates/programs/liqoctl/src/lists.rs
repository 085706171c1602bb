//! Lists that several commands read: one function for each kind.
//!
//! All lists fail with the same words, `cannot list the peers: ...`, and with one sentence if the
//! user lacks a right ([`if_allowed`] turns that into nothing). A kind that the API server does not
//! know has no objects. A busy API server is asked again, as it is with a kind that it has just
//! learnt.
//!
//! `doctor` and `explain` read with [`ClusterReader`](crate::inspect::ClusterReader) instead: they
//! report what they could not read, and go on.

use std::{fmt::Debug, time::Duration};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use kube::{Api, Resource, api::ListParams, core::PartialObjectMeta};
use liqo_api::{
    ClusterId, Contract, ForeignCluster, NamespaceOffloading, PeeringPolicy, ResourceOffer,
    SYSTEM_NAMESPACE, SearchDomain, UsageRecord, VirtualNode, labels, provider_namespace,
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, ExplainFailure as _, MissingRight, is_absent};

/// Selects pods that have not ended.
pub const UNFINISHED_PODS: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// Maximum time that a list waits for a busy API server.
const BUSY_TIMEOUT: Duration = Duration::from_secs(15);
const BUSY_RETRY_DELAY: Duration = Duration::from_millis(500);

/// The peers of this cluster.
pub async fn list_peers(cluster: &Cluster) -> anyhow::Result<Vec<ForeignCluster>> {
    list_everywhere(cluster, "the peers").await
}

pub async fn list_peering_policies(cluster: &Cluster) -> anyhow::Result<Vec<PeeringPolicy>> {
    list_everywhere(cluster, "the policies").await
}

pub async fn list_search_domains(cluster: &Cluster) -> anyhow::Result<Vec<SearchDomain>> {
    list_everywhere(cluster, "the domains").await
}

/// The offers of all peers, and those to them.
pub async fn list_resource_offers(cluster: &Cluster) -> anyhow::Result<Vec<ResourceOffer>> {
    list_everywhere(cluster, "the offers").await
}

pub async fn list_contracts(cluster: &Cluster) -> anyhow::Result<Vec<Contract>> {
    list_everywhere(cluster, "the contracts").await
}

pub async fn list_usage_records(cluster: &Cluster) -> anyhow::Result<Vec<UsageRecord>> {
    list_everywhere(cluster, "the usage records").await
}

/// Those of one namespace, or all.
pub async fn list_offloadings(
    cluster: &Cluster,
    namespace: Option<&str>,
) -> anyhow::Result<Vec<NamespaceOffloading>> {
    let api = match namespace {
        Some(namespace) => Api::namespaced(cluster.client.clone(), namespace),
        None => Api::all(cluster.client.clone()),
    };
    list_selected(&api, &ListParams::default(), "the offloaded namespaces").await
}

/// The `VirtualNode` objects of one provider, or of all.
pub async fn list_virtual_nodes(
    cluster: &Cluster,
    provider: Option<&ClusterId>,
) -> anyhow::Result<Vec<VirtualNode>> {
    let api = match provider {
        Some(provider) => Api::namespaced(cluster.client.clone(), &provider_namespace(provider)),
        None => Api::all(cluster.client.clone()),
    };
    list_selected(&api, &ListParams::default(), "the virtual nodes").await
}

/// The Leases by which gateways are elected.
pub async fn list_gateway_leases(cluster: &Cluster) -> anyhow::Result<Vec<Lease>> {
    let api = Api::namespaced(cluster.client.clone(), SYSTEM_NAMESPACE);
    let of_gateways = ListParams::default().labels(&format!("{}=true", labels::GATEWAY));
    list_selected(&api, &of_gateways, "the Leases of gateways").await
}

/// Nodes that a command asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeSelection {
    All,
    /// The nodes of the cluster itself.
    Own,
    /// The nodes that stand for other clusters.
    Virtual,
}

impl NodeSelection {
    pub fn parameters(self) -> ListParams {
        let (kind, of_virtual_nodes) = (labels::TYPE, labels::TYPE_VIRTUAL_NODE);
        match self {
            Self::All => ListParams::default(),
            Self::Own => ListParams::default().labels(&format!("{kind}!={of_virtual_nodes}")),
            Self::Virtual => ListParams::default().labels(&format!("{kind}={of_virtual_nodes}")),
        }
    }
}

pub async fn list_nodes(cluster: &Cluster, which: NodeSelection) -> anyhow::Result<Vec<Node>> {
    let what = match which {
        NodeSelection::All | NodeSelection::Own => "the nodes",
        NodeSelection::Virtual => "the virtual nodes",
    };
    let api = Api::all(cluster.client.clone());
    list_selected(&api, &which.parameters(), what).await
}

/// The pods of a namespace that the parameters select.
pub async fn list_pods_of_namespace(
    cluster: &Cluster,
    namespace: &str,
    parameters: &ListParams,
) -> anyhow::Result<Vec<Pod>> {
    let api = Api::namespaced(cluster.client.clone(), namespace);
    list_selected(
        &api,
        parameters,
        &format!("the pods of namespace {namespace}"),
    )
    .await
}

/// The unfinished pods on a node.
pub async fn list_pods_on_node(cluster: &Cluster, node: &str) -> anyhow::Result<Vec<Pod>> {
    let on_it = ListParams::default().fields(&format!("spec.nodeName={node},{UNFINISHED_PODS}"));
    let api = Api::all(cluster.client.clone());
    list_selected(&api, &on_it, &format!("the pods of Node {node}")).await
}

/// The metadata of the unfinished pods on a node: all, or those of one namespace.
pub async fn list_pod_metadata_on_node(
    cluster: &Cluster,
    namespace: Option<&str>,
    node: &str,
) -> anyhow::Result<Vec<PartialObjectMeta<Pod>>> {
    let api = match namespace {
        Some(namespace) => Api::namespaced(cluster.client.clone(), namespace),
        None => Api::all(cluster.client.clone()),
    };
    let on_it = ListParams::default().fields(&format!("spec.nodeName={node},{UNFINISHED_PODS}"));
    list_metadata(&api, &on_it, &format!("the pods of Node {node}")).await
}

/// The metadata of the pods of a namespace that the parameters select.
pub async fn list_pod_metadata_of_namespace(
    cluster: &Cluster,
    namespace: &str,
    parameters: &ListParams,
) -> anyhow::Result<Vec<PartialObjectMeta<Pod>>> {
    let api = Api::namespaced(cluster.client.clone(), namespace);
    list_metadata(
        &api,
        parameters,
        &format!("the pods of namespace {namespace}"),
    )
    .await
}

/// All objects of a kind; `what` names them in an error.
pub async fn list_everywhere<K>(cluster: &Cluster, what: &str) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api = Api::all(cluster.client.clone());
    list_selected(&api, &ListParams::default(), what).await
}

/// The objects that the parameters select; `what` names them in an error.
pub async fn list_selected<K>(
    api: &Api<K>,
    parameters: &ListParams,
    what: &str,
) -> anyhow::Result<Vec<K>>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    until_not_busy(api, async || Ok(api.list(parameters).await?.items))
        .await
        .doing(format!("list {what}"))
}

/// The same, without what the objects contain.
pub async fn list_metadata<K>(
    api: &Api<K>,
    parameters: &ListParams,
    what: &str,
) -> anyhow::Result<Vec<PartialObjectMeta<K>>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    until_not_busy(api, async || Ok(api.list_metadata(parameters).await?.items))
        .await
        .doing(format!("list {what}"))
}

/// A list, or nothing if this user may not read it.
pub fn if_allowed<T>(list: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
    match list {
        Err(error) if error.is::<MissingRight>() => Ok(None),
        list => list.map(Some),
    }
}

/// Repeats a list for as long as the API server is busy. It is empty where the kind is one of Liqo's
/// that the API server does not know.
async fn until_not_busy<K: Resource, T>(
    api: &Api<K>,
    list: impl AsyncFn() -> kube::Result<Vec<T>>,
) -> kube::Result<Vec<T>> {
    let is_of_liqo = api.resource_url().contains(".liqo.io/");
    let started = Instant::now();
    loop {
        match Box::pin(list()).await {
            Err(error) if is_of_liqo && is_absent(&error) => return Ok(Vec::new()),
            Err(error) if is_busy(&error) && started.elapsed() < BUSY_TIMEOUT => {
                sleep(BUSY_RETRY_DELAY).await;
            }
            answer => return answer,
        }
    }
}

/// Whether the same request may succeed a moment later.
fn is_busy(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 429)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::Namespace;
    use kube::{Client, client::Body};
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_list_waits_for_an_api_server_that_is_busy() {
        let asked = std::sync::Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            let (code, answer) = if counted.fetch_add(1, Ordering::Relaxed) < 2 {
                let text = "storage is (re)initializing";
                (
                    429,
                    json!({ "kind": "Status", "status": "Failure", "reason": "TooManyRequests", "message": text, "code": 429 }),
                )
            } else {
                (
                    200,
                    json!({ "apiVersion": "v1", "kind": "NamespaceList", "metadata": {}, "items": [] }),
                )
            };
            let answer = Body::from(serde_json::to_vec(&answer).unwrap());
            std::future::ready(Ok::<_, kube::Error>(
                Response::builder().status(code).body(answer).unwrap(),
            ))
        });
        let api: Api<Namespace> = Api::all(Client::new(service, "default"));
        let listed = list_selected(&api, &ListParams::default(), "the namespaces").await;
        assert!(listed.unwrap().is_empty());
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn only_kinds_of_liqo_may_be_unknown() {
        let service = tower::service_fn(|_: Request<Body>| {
            let answer = json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "message": "404 page not found", "code": 404 });
            let answer = Body::from(serde_json::to_vec(&answer).unwrap());
            std::future::ready(Ok::<_, kube::Error>(
                Response::builder().status(404).body(answer).unwrap(),
            ))
        });
        let client = Client::new(service, "default");
        let contracts: Api<liqo_api::Contract> = Api::all(client.clone());
        let listed = list_selected(&contracts, &ListParams::default(), "the contracts").await;
        assert!(listed.unwrap().is_empty());
        let nodes: Api<Node> = Api::all(client);
        let listed = list_selected(&nodes, &ListParams::default(), "the nodes").await;
        listed.unwrap_err();
    }

    #[tokio::test]
    async fn a_missing_right_is_told_unless_the_list_is_optional() {
        let service = tower::service_fn(|_: Request<Body>| {
            let text = "nodes is forbidden: User \"ann\" cannot list resource \"nodes\" in API group \"\" at the cluster scope";
            let answer = json!({ "kind": "Status", "status": "Failure", "reason": "Forbidden", "message": text, "code": 403 });
            let answer = Body::from(serde_json::to_vec(&answer).unwrap());
            std::future::ready(Ok::<_, kube::Error>(
                Response::builder().status(403).body(answer).unwrap(),
            ))
        });
        let api: Api<Node> = Api::all(Client::new(service, "default"));
        let list = async || list_selected(&api, &ListParams::default(), "the nodes").await;
        let error = format!("{:#}", list().await.unwrap_err());
        assert!(
            error.starts_with("cannot list the nodes: you may not list nodes in the whole cluster"),
            "{error}"
        );
        assert!(if_allowed(list().await).unwrap().is_none());
        let other = if_allowed::<()>(Err(anyhow::anyhow!("no answer")));
        assert_eq!(other.unwrap_err().to_string(), "no answer");
    }
}

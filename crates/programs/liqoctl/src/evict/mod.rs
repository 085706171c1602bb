//! Evicts pods as disruption budgets allow, as `kubectl drain` does: for `unoffload`, `unpeer` and
//! `move pods`.
//!
//! ```text
//!   pods that should leave ──▶ which eviction is due (decide) ──▶ Eviction API ──▶ accepted: the pod ends
//!            ▲                                                        └──▶ a budget forbids it: again in 2 s
//!            └────────────────────── until none is left ──────────────────────────────┘
//! ```

pub mod cordon;
pub mod decide;

use std::{collections::BTreeSet, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use liqo_api::pods;
use liqo_controller_runtime::eviction::{self, EvictionOutcome};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    cluster::{Cluster, ExplainFailure as _, explain_request_error},
    lists::{self, NodeSelection, UNFINISHED_PODS},
    progress::StepProgress,
    wait::{PollResult, final_error, wait_until_every},
};
use decide::{EvictionNode, PodToEvict, RefusedEvictions};

/// Evictions that are requested at the same time.
const CONCURRENCY: usize = 16;

/// Time between two lists of the pods that are left.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Evicts the pods that `leaving` returns, until it returns none.
pub async fn evict_until_gone<F, Fut>(
    cluster: &Cluster,
    step: &str,
    timeout: Duration,
    progress: &StepProgress,
    leaving: F,
) -> anyhow::Result<()>
where
    F: Fn() -> Fut,
    Fut: Future<Output = anyhow::Result<Vec<PodToEvict>>>,
{
    let refused = Mutex::new(RefusedEvictions::default());
    let empty = wait_until_every(
        POLL_INTERVAL,
        "no pod is left there",
        timeout,
        |text| progress.message(step, text),
        || async {
            let pods = leaving().await?;
            if pods.is_empty() {
                return Ok(PollResult::Done(()));
            }
            let due = refused.lock().due_evictions(&pods, Instant::now());
            request_evictions(cluster, due, &refused).await?;
            Ok(PollResult::NotYet(refused.lock().describe_remaining(&pods)))
        },
    );
    progress.run_step(step, empty).await
}

/// Requests all these evictions, and notes which were not allowed. If some fail, returns the first
/// error.
async fn request_evictions(
    cluster: &Cluster,
    pods: Vec<PodToEvict>,
    refused: &Mutex<RefusedEvictions>,
) -> anyhow::Result<()> {
    let requests = pods.into_iter().map(|pod| async move {
        let answer = eviction::evict(&cluster.client, &pod.key, &pod.uid, None).await;
        (pod, answer)
    });
    let mut requests = futures::stream::iter(requests).buffer_unordered(CONCURRENCY);
    let mut result = Ok(());
    while let Some((pod, answer)) = requests.next().await {
        result = result.and(note_answer(&pod, answer, refused));
    }
    result
}

/// Notes the answer to one request.
fn note_answer(
    pod: &PodToEvict,
    answer: kube::Result<EvictionOutcome>,
    refused: &Mutex<RefusedEvictions>,
) -> anyhow::Result<()> {
    match answer {
        Ok(EvictionOutcome::Accepted | EvictionOutcome::Gone) => refused.lock().clear(&pod.uid),
        Ok(EvictionOutcome::NotAllowed(why)) => {
            refused.lock().note_refusal(&pod.uid, why, Instant::now());
        }
        // The API server answers so if more than one budget selects the pod.
        Err(kube::Error::Api(status)) if status.code == 500 => {
            refused
                .lock()
                .note_refusal(&pod.uid, status.message.clone(), Instant::now());
        }
        Err(kube::Error::Api(status)) if status.code < 500 => {
            let why = explain_request_error(kube::Error::Api(status));
            return Err(final_error(format!(
                "cannot evict pod {}: {why:#}",
                pod.key
            )));
        }
        Err(error) => return Err(error).doing(format!("evict pod {}", pod.key)),
    }
    Ok(())
}

/// All virtual nodes.
pub async fn virtual_nodes(cluster: &Cluster) -> anyhow::Result<Vec<EvictionNode>> {
    let nodes = lists::list_nodes(cluster, NodeSelection::Virtual).await?;
    Ok(nodes.iter().map(EvictionNode::from_object).collect())
}

/// All virtual nodes, or nothing if this user may not list nodes.
pub async fn visible_virtual_nodes(cluster: &Cluster) -> anyhow::Result<Option<Vec<EvictionNode>>> {
    lists::if_allowed(virtual_nodes(cluster).await)
}

/// The names of the virtual nodes whose cluster answers. Pods on others do not end before it
/// answers again.
///
/// A command chooses its nodes once, before it evicts. If it chose again later, a cluster that is
/// silent for some seconds would seem to have no pods left, and the command would delete them
/// without regard to budgets.
pub async fn answering_nodes(cluster: &Cluster) -> anyhow::Result<BTreeSet<String>> {
    let nodes = virtual_nodes(cluster).await?;
    Ok(nodes
        .into_iter()
        .filter(|node| node.answers)
        .map(|node| node.name)
        .collect())
}

/// The same for the pods of one namespace.
pub async fn answering_nodes_of_namespace(
    cluster: &Cluster,
    namespace: &str,
) -> anyhow::Result<BTreeSet<String>> {
    let nodes = virtual_nodes_of_namespaces(cluster, &[namespace.to_owned()]).await?;
    Ok(nodes
        .into_iter()
        .filter(|node| node.answers)
        .map(|node| node.name)
        .collect())
}

/// All virtual nodes. Whoever may not list nodes learns from the conditions of the pods in these
/// namespaces which of them run in other clusters; these nodes count as answering.
pub async fn virtual_nodes_of_namespaces(
    cluster: &Cluster,
    namespaces: &[String],
) -> anyhow::Result<Vec<EvictionNode>> {
    if let Some(nodes) = visible_virtual_nodes(cluster).await? {
        return Ok(nodes);
    }
    let mut names = BTreeSet::new();
    for namespace in namespaces {
        let unfinished = ListParams::default().fields(UNFINISHED_PODS);
        let pods = lists::list_pods_of_namespace(cluster, namespace, &unfinished).await?;
        names.extend(pods.into_iter().filter_map(node_of_remote_pod));
    }
    Ok(names.into_iter().map(EvictionNode::assumed).collect())
}

/// The virtual node of a pod in another cluster.
fn node_of_remote_pod(pod: Pod) -> Option<String> {
    let conditions = pod.status.and_then(|status| status.conditions)?;
    let is_offloaded = conditions
        .iter()
        .any(|condition| condition.type_ == pods::OFFLOADED);
    pod.spec?.node_name.filter(|_| is_offloaded)
}

/// The pods of a namespace, or of all, that should leave these nodes, see [`that_can_end`].
pub async fn pods_to_evict(
    cluster: &Cluster,
    namespace: Option<&str>,
    nodes: &BTreeSet<String>,
) -> anyhow::Result<Vec<PodToEvict>> {
    let mut found = Vec::new();
    for node in nodes {
        found.extend(
            lists::list_pod_metadata_on_node(cluster, namespace, node)
                .await?
                .iter()
                .filter_map(|pod| PodToEvict::from_node(pod, node)),
        );
    }
    that_can_end(cluster, found).await
}

/// Leaves out pods that are ending at a cluster that does not answer now: they cannot end before it
/// answers again. Those that were not evicted yet remain, because budgets count for them, too. For
/// whoever may not list nodes, all clusters count as answering.
pub async fn that_can_end(
    cluster: &Cluster,
    mut pods: Vec<PodToEvict>,
) -> anyhow::Result<Vec<PodToEvict>> {
    if pods.iter().any(|pod| pod.ends) {
        let nodes = visible_virtual_nodes(cluster).await?.unwrap_or_default();
        pods.retain(|pod| !(pod.ends && is_on_silent_node(pod, &nodes)));
    }
    Ok(pods)
}

fn is_on_silent_node(pod: &PodToEvict, nodes: &[EvictionNode]) -> bool {
    nodes
        .iter()
        .any(|node| node.name == pod.node && !node.answers)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Method, Request, Response};
    use kube::{
        Client,
        client::Body,
        core::{PartialObjectMeta, Status},
    };
    use serde_json::{Value, json};

    use super::*;
    use crate::{cluster::ClusterAccess, wait::FinalError};

    fn status(code: u16, message: &str) -> Value {
        let causes = json!([{ "reason": "DisruptionBudget", "message": message }]);
        json!({ "kind": "Status", "status": "Failure", "message": "no", "code": code, "details": { "causes": causes } })
    }

    /// An API server with these pods on node `milan`. It answers evictions with these codes, one
    /// after another, and then accepts them.
    fn server(pods: &[&str], codes: &[u16]) -> (Cluster, Arc<Mutex<Vec<String>>>) {
        let left: BTreeSet<String> = pods.iter().map(|name| (*name).to_owned()).collect();
        let (evicted, state) = (
            Arc::new(Mutex::new(Vec::new())),
            Arc::new(Mutex::new((left, codes.to_vec()))),
        );
        let evicting = evicted.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (evicting, state) = (evicting.clone(), state.clone());
            async move {
                let mut state = state.lock();
                let path = request.uri().path();
                let (code, body) = if *request.method() == Method::POST {
                    let name = path.rsplit('/').nth(1).unwrap_or_default().to_owned();
                    if state.1.is_empty() {
                        state.0.remove(&name);
                        evicting.lock().push(name);
                        (201, json!({ "kind": "Status", "status": "Success" }))
                    } else {
                        let code = state.1.remove(0);
                        (
                            code,
                            status(
                                code,
                                "The disruption budget web needs 1 healthy pods and has 1 currently",
                            ),
                        )
                    }
                } else {
                    let accept = request.headers()[http::header::ACCEPT].to_str().unwrap();
                    assert!(accept.contains("PartialObjectMetadataList"), "{accept}");
                    let query = request.uri().query().unwrap_or_default();
                    assert!(
                        query.contains("milan")
                            && query.contains("phase")
                            && query.contains("Succeeded"),
                        "{query}"
                    );
                    let pod = |name: &String| json!({ "metadata": { "name": name, "namespace": "demo", "uid": name } });
                    let items: Vec<Value> = state.0.iter().map(pod).collect();
                    let list = json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": items });
                    (200, list)
                };
                let body = Body::from(serde_json::to_vec(&body).unwrap());
                Ok::<_, kube::Error>(Response::builder().status(code).body(body).unwrap())
            }
        });
        let client = Client::new(service, "default");
        (
            Cluster {
                client,
                access: ClusterAccess::default(),
                context: "rome".into(),
                server: "https://rome".into(),
            },
            evicted,
        )
    }

    #[tokio::test]
    async fn a_pod_that_ends_is_waited_for_by_people_who_may_not_list_nodes() {
        let service = tower::service_fn(|_: Request<Body>| {
            let body = serde_json::to_vec(&status(403, "no")).unwrap();
            let answer = Response::builder().status(403).body(Body::from(body));
            std::future::ready(Ok::<_, kube::Error>(answer.unwrap()))
        });
        let cluster = Cluster {
            client: Client::new(service, "default"),
            access: ClusterAccess::default(),
            context: "rome".into(),
            server: "https://rome".into(),
        };
        let deleted = json!({ "metadata": { "name": "web", "namespace": "demo", "uid": "web",
            "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        let pod: PartialObjectMeta<Pod> = serde_json::from_value(deleted).unwrap();
        let pods = vec![PodToEvict::from_node(&pod, "milan").unwrap()];
        assert!(pods[0].ends);
        assert_eq!(that_can_end(&cluster, pods.clone()).await.unwrap(), pods);
    }

    async fn evicted_from_milan(cluster: &Cluster, timeout: Duration) -> anyhow::Result<()> {
        let milan: BTreeSet<String> = ["milan".to_owned()].into();
        evict_until_gone(
            cluster,
            "Evicting",
            timeout,
            &StepProgress::silent(),
            || pods_to_evict(cluster, Some("demo"), &milan),
        )
        .await
    }

    #[tokio::test]
    async fn an_eviction_that_a_budget_forbids_is_repeated_until_it_is_allowed() {
        let (cluster, evicted) = server(&["web"], &[429]);
        evicted_from_milan(&cluster, Duration::from_secs(30))
            .await
            .unwrap();
        assert_eq!(*evicted.lock(), ["web"]);
    }

    #[tokio::test]
    async fn after_the_timeout_the_error_names_the_budget_and_the_pod() {
        let (cluster, evicted) = server(&["web"], &[429, 429, 429]);
        let error = evicted_from_milan(&cluster, Duration::ZERO)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("demo/web waits: The disruption budget web needs 1 healthy pods"),
            "{error}"
        );
        assert!(evicted.lock().is_empty());
    }

    #[tokio::test]
    async fn a_user_who_may_not_evict_learns_it_at_once() {
        let (cluster, _) = server(&["web"], &[403; 9]);
        let error = evicted_from_milan(&cluster, Duration::from_mins(1))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("cannot evict pod demo/web"), "{error}");
    }

    #[test]
    fn a_missing_right_is_said_in_one_line() {
        let deployed = json!({ "metadata": { "name": "web", "namespace": "demo", "uid": "web" } });
        let object: PartialObjectMeta<Pod> = serde_json::from_value(deployed).unwrap();
        let pod = PodToEvict::from_node(&object, "milan").unwrap();
        let message = "pods \"web\" is forbidden: User \"ann\" cannot create resource \"pods/eviction\" in API group \"\" in the namespace \"demo\"";
        let forbidden = Status {
            code: 403,
            message: message.into(),
            ..Status::default()
        };
        let answer = Err(kube::Error::Api(forbidden.boxed()));
        let error = note_answer(&pod, answer, &Mutex::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot evict pod demo/web: you may not create pods/eviction in namespace demo: ask an administrator of the cluster"
        );
        assert!(error.is::<FinalError>(), "waiting does not help");
    }

    #[tokio::test]
    async fn an_eviction_that_fails_does_not_stop_the_others() {
        let names: Vec<String> = (0..3 * CONCURRENCY)
            .map(|index| format!("web-{index}"))
            .collect();
        let (cluster, evicted) = server(
            &names.iter().map(String::as_str).collect::<Vec<_>>(),
            &[403],
        );
        let error = evicted_from_milan(&cluster, Duration::from_mins(1))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("cannot evict pod demo/web-"), "{error}");
        assert_eq!(evicted.lock().len(), names.len() - 1);
    }
}

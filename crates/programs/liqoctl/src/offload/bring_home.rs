//! Brings the pods of a namespace home, as disruption budgets allow, before its offloading ends.

use std::time::Duration;

use anyhow::anyhow;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use liqo_api::{NAMESPACE_OFFLOADING, NamespaceOffloading, PodOffloadingStrategy};
use serde_json::json;

use super::{NOT_REPORTED, present_offloading};
use crate::{
    apply::FIELD_MANAGER,
    cluster::{Cluster, ExplainFailure as _},
    evict,
    progress::StepProgress,
    wait::{PollResult, until},
};

/// Evicts the pods of a namespace that run in other clusters; new ones run in this cluster. Pods at
/// a cluster that does not answer stay: they are deleted when the offloading ends.
pub async fn bring_home(
    cluster: &Cluster,
    namespace: &str,
    timeout: Duration,
    progress: &StepProgress,
) -> anyhow::Result<()> {
    let nodes = evict::answering_nodes_of_namespace(cluster, namespace).await?;
    let leaving = || evict::pods_to_evict(cluster, Some(namespace), &nodes);
    let Some(offloading) = present_offloading(cluster, namespace).await? else {
        return Ok(());
    };
    if offloading.metadata.deletion_timestamp.is_some() || leaving().await?.is_empty() {
        return Ok(());
    }
    let strategy = offloading.spec.pod_offloading_strategy;
    // If this fails, nothing has changed.
    let generation = if strategy == PodOffloadingStrategy::Local {
        None
    } else {
        keep_new_pods_here(cluster, namespace).await?
    };
    let step = format!("Bringing the pods of namespace {namespace} home");
    let brought = async {
        wait_until_known(cluster, namespace, generation, timeout, progress).await?;
        evict::evict_until_gone(cluster, &step, timeout, progress, leaving).await
    };
    brought
        .await
        .map_err(|error| anyhow!("{error:#}. {}", state_after_failure(namespace, strategy)))
}

/// Changes the strategy, so that pods that replace evicted ones stay in this cluster. Returns the
/// generation of the change.
async fn keep_new_pods_here(cluster: &Cluster, namespace: &str) -> anyhow::Result<Option<i64>> {
    let api: Api<NamespaceOffloading> = Api::namespaced(cluster.client.clone(), namespace);
    let parameters = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let change = json!({ "spec": { "podOffloadingStrategy": PodOffloadingStrategy::Local } });
    let changed = api
        .patch(NAMESPACE_OFFLOADING, &parameters, &Patch::Merge(&change))
        .await;
    Ok(changed
        .doing(format!(
            "change the NamespaceOffloading of namespace {namespace}"
        ))?
        .metadata
        .generation)
}

/// Waits until the controllers know this generation, if there is one.
async fn wait_until_known(
    cluster: &Cluster,
    namespace: &str,
    generation: Option<i64>,
    timeout: Duration,
    progress: &StepProgress,
) -> anyhow::Result<()> {
    if generation.is_none() {
        return Ok(());
    }
    let api: Api<NamespaceOffloading> = Api::namespaced(cluster.client.clone(), namespace);
    let step = format!("Keeping new pods of namespace {namespace} in this cluster");
    let known = until(
        "the controllers know that new pods stay in this cluster",
        timeout,
        |text| progress.message(&step, text),
        || async {
            let live = api
                .get(NAMESPACE_OFFLOADING)
                .await
                .doing("read the NamespaceOffloading")?;
            let known = is_known(&live, generation);
            Ok(if known {
                PollResult::Done(())
            } else {
                PollResult::NotYet(NOT_REPORTED.to_owned())
            })
        },
    );
    progress.run_step(&step, known).await
}

/// Whether the controllers reported on this generation.
fn is_known(offloading: &NamespaceOffloading, generation: Option<i64>) -> bool {
    let conditions = offloading
        .status
        .iter()
        .flat_map(|status| &status.conditions);
    conditions
        .into_iter()
        .any(|condition| condition.observed_generation >= generation)
}

/// The state after a failure, and the next step for the user.
fn state_after_failure(namespace: &str, before: PodOffloadingStrategy) -> String {
    let back = match before {
        PodOffloadingStrategy::Local => String::new(),
        before => format!(
            ". `liqoctl offload namespace {namespace} --pod-offloading-strategy {before:?}` takes it back"
        ),
    };
    format!(
        "Namespace {namespace} is still offloaded, but its new pods run in this cluster. Run the command again, or with --now, which deletes the remaining pods at once{back}"
    )
}

#[cfg(test)]
mod tests {
    use http::{Method, Request, Response};
    use kube::{Client, client::Body};
    use serde_json::Value;

    use super::*;
    use crate::cluster::ClusterAccess;

    /// A cluster with a pod of namespace `demo` on node `milan`. It refuses all changes.
    fn refusing() -> Cluster {
        let service = tower::service_fn(|request: Request<Body>| async move {
            let list = |item: Value| {
                (
                    200,
                    json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": [item] }),
                )
            };
            let (code, answer) = match (
                request.method(),
                request.uri().path().rsplit('/').next().unwrap_or_default(),
            ) {
                (&Method::GET, "nodes") => list(json!({ "metadata": { "name": "milan" } })),
                (&Method::GET, "pods") => {
                    list(json!({ "metadata": { "name": "web", "namespace": "demo", "uid": "w" } }))
                }
                (&Method::GET, NAMESPACE_OFFLOADING) => {
                    let spec = json!({ "podOffloadingStrategy": "Remote" });
                    (
                        200,
                        json!({ "metadata": { "name": NAMESPACE_OFFLOADING, "namespace": "demo" }, "spec": spec }),
                    )
                }
                _ => (
                    403,
                    json!({ "kind": "Status", "status": "Failure", "message": "no", "code": 403 }),
                ),
            };
            let body = Body::from(serde_json::to_vec(&answer).unwrap());
            Ok::<_, kube::Error>(Response::builder().status(code).body(body).unwrap())
        });
        let client = Client::new(service, "default");
        Cluster {
            client,
            access: ClusterAccess::default(),
            context: "rome".into(),
            server: "https://rome".into(),
        }
    }

    #[tokio::test]
    async fn a_change_that_is_refused_leaves_nothing_to_take_back() {
        let error = bring_home(&refusing(), "demo", Duration::ZERO, &StepProgress::silent())
            .await
            .unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "cannot change the NamespaceOffloading of namespace demo: no"
        );
    }

    #[test]
    fn a_report_on_an_older_generation_says_nothing() {
        let offloading = |observed: i64| -> NamespaceOffloading {
            let ready = json!({ "type": "Ready", "status": "True", "reason": "R", "message": "m", "observedGeneration": observed,
                "lastTransitionTime": "2026-01-01T00:00:00Z" });
            serde_json::from_value(
                json!({ "metadata": { "name": "offloading" }, "spec": {}, "status": { "conditions": [ready] } }),
            )
            .unwrap()
        };
        assert!(is_known(&offloading(3), Some(3)) && !is_known(&offloading(2), Some(3)));
    }

    #[test]
    fn a_failure_says_what_is_left_and_how_to_take_it_back() {
        let text = state_after_failure("demo", PodOffloadingStrategy::Remote);
        assert!(
            text.contains("still offloaded") && text.contains("--now"),
            "{text}"
        );
        assert!(
            text.contains("`liqoctl offload namespace demo --pod-offloading-strategy Remote`"),
            "{text}"
        );
        assert!(
            !state_after_failure("demo", PodOffloadingStrategy::Local).contains("takes it back")
        );
    }
}

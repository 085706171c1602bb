//! `liqoctl offload namespace` and `liqoctl unoffload namespace`.

mod bring_home;
mod notes;

pub use bring_home::bring_home;

use std::{collections::BTreeSet, time::Duration};

use anyhow::bail;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Namespace, NodeSelector, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use liqo_api::conditions::StatusCondition as _;
use liqo_api::{
    EvictionDelay, NAMESPACE_OFFLOADING, NamespaceMappingStrategy, NamespaceOffloading,
    NamespaceOffloadingStatus, NamespaceReadyReason, PlacementStrategy, PodOffloadingStrategy,
    Reflection, SYSTEM_NAMESPACE, labels, may_be_offloaded,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    apply::FIELD_MANAGER,
    cluster::{Cluster, ExplainFailure as _, is_absent},
    evict::{self, decide::is_finished},
    lists,
    progress::StepProgress,
    wait::{PollResult, until},
};

const NO_VIRTUAL_NODE: &str = "there is no virtual node yet: the namespace is offloaded as soon as there is a peer (`liqoctl peer`)";

/// The fields to change. Nothing means: the field keeps its value, or gets the default of a new
/// `NamespaceOffloading`.
#[derive(Clone, Debug, Default)]
pub struct OffloadOptions {
    /// Pods may run here, elsewhere, or in both.
    pub strategy: Option<PodOffloadingStrategy>,
    /// The Services and Ingresses to reflect.
    pub reflection: Option<Reflection>,
    /// Whether pods elsewhere get tokens for the API server here.
    pub api_server: Option<bool>,
    /// Delay until Kubernetes evicts pods from the node of a cluster that does not answer.
    pub eviction_delay: Option<EvictionChange>,
    /// The naming of the namespace in other clusters.
    pub mapping: Option<NamespaceMappingStrategy>,
    /// Its name in other clusters, for `SelectedName`.
    pub remote_name: Option<String>,
    pub clusters: Option<SelectedClusters>,
    pub placement: Option<PlacementChange>,
    /// Time limit until the namespace exists there.
    pub timeout: Duration,
}

/// The eviction of pods from the node of a cluster that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionChange {
    /// As their own tolerations say.
    AsPodsSay,
    After(EvictionDelay),
}

/// The nodes that new pods prefer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementChange {
    /// Those that the scheduler chooses by itself.
    Default,
    /// A change of the fields that are given. A strategy takes the fields away that belong to
    /// others.
    Change {
        strategy: Option<PlacementStrategy>,
        order: Option<Vec<String>>,
        move_when_cheaper: Option<bool>,
    },
}

/// The clusters that get a namespace.
#[derive(Clone, Debug, PartialEq)]
pub enum SelectedClusters {
    All,
    /// Those whose virtual node matches.
    Matching(NodeSelector),
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OffloadResult {
    pub namespace: String,
    /// The rule where its pods may run now.
    pub pod_offloading_strategy: PodOffloadingStrategy,
    pub remote: Vec<ProviderNamespace>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The namespace at one provider.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ProviderNamespace {
    pub cluster: String,
    pub namespace: String,
}

/// The names of the namespaces that a label selector matches, without those that cannot be
/// offloaded; an error if there is none.
pub async fn namespaces_matching(cluster: &Cluster, selector: &str) -> anyhow::Result<Vec<String>> {
    let api: Api<Namespace> = Api::all(cluster.client.clone());
    let what = format!("the namespaces with the labels {selector}");
    let found = lists::list_metadata(&api, &ListParams::default().labels(selector), &what).await?;
    let names = found
        .iter()
        .filter(|object| !object.labels().contains_key(labels::NAMESPACE_KIND))
        .map(kube::ResourceExt::name_any);
    let names: Vec<String> = names
        .filter(|name| may_be_offloaded(name, SYSTEM_NAMESPACE))
        .collect();
    if names.is_empty() {
        bail!("no namespace that can be offloaded has the labels {selector}");
    }
    Ok(names)
}

/// An error if a namespace does not exist, or cannot be offloaded.
async fn ensure_can_be_offloaded(cluster: &Cluster, namespace: &str) -> anyhow::Result<()> {
    refuse_reserved(namespace)?;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let Some(object) = namespaces
        .get_opt(namespace)
        .await
        .doing(format!("read namespace {namespace}"))?
    else {
        bail!(
            "there is no namespace {namespace}: create it with `kubectl create namespace {namespace}`"
        );
    };
    if let Some(kind) = object.labels().get(labels::NAMESPACE_KIND) {
        bail!("namespace {namespace} is one of Liqo's own ({kind}) and cannot be offloaded");
    }
    Ok(())
}

/// No provider takes pods of these namespaces.
fn refuse_reserved(namespace: &str) -> anyhow::Result<()> {
    if !may_be_offloaded(namespace, SYSTEM_NAMESPACE) {
        bail!(
            "namespace {namespace} cannot be offloaded: clusters keep default, kube-*, openshift-* and liqo* for themselves; use another namespace"
        );
    }
    Ok(())
}

pub async fn present_offloading(
    cluster: &Cluster,
    namespace: &str,
) -> anyhow::Result<Option<NamespaceOffloading>> {
    let api: Api<NamespaceOffloading> = Api::namespaced(cluster.client.clone(), namespace);
    match api.get_opt(NAMESPACE_OFFLOADING).await {
        Err(error) if is_absent(&error) => Ok(None),
        found => found.doing(format!(
            "read the NamespaceOffloading of namespace {namespace}"
        )),
    }
}

/// The fields of the spec that change.
fn spec_changes(options: &OffloadOptions) -> Value {
    let mut spec = json!({});
    if let Some(strategy) = options.strategy {
        spec["podOffloadingStrategy"] = json!(strategy);
    }
    if let Some(reflection) = options.reflection {
        spec["reflection"] = json!(reflection);
    }
    if let Some(api_server) = options.api_server {
        spec["apiServer"] = json!(api_server);
    }
    match options.eviction_delay {
        None => {}
        Some(EvictionChange::AsPodsSay) => spec["evictionDelay"] = Value::Null,
        Some(EvictionChange::After(delay)) => spec["evictionDelay"] = json!(delay),
    }
    if let Some(mapping) = options.mapping {
        spec["namespaceMappingStrategy"] = json!(mapping);
        spec["remoteNamespaceName"] = json!(options.remote_name);
    }
    match &options.clusters {
        None => {}
        Some(SelectedClusters::All) => spec["clusterSelector"] = Value::Null,
        Some(SelectedClusters::Matching(selector)) => spec["clusterSelector"] = json!(selector),
    }
    if let Some(placement) = &options.placement {
        spec["placement"] = placement_change(placement);
    }
    spec
}

fn placement_change(placement: &PlacementChange) -> Value {
    let PlacementChange::Change {
        strategy,
        order,
        move_when_cheaper,
    } = placement
    else {
        return Value::Null;
    };
    let mut change = json!({});
    if let Some(strategy) = strategy {
        change["strategy"] = json!(strategy);
        if *strategy != PlacementStrategy::FixedOrder {
            change["order"] = Value::Null;
        }
        if *strategy != PlacementStrategy::Cheapest {
            change["moveWhenCheaper"] = Value::Null;
        }
    }
    if let Some(order) = order {
        change["order"] = json!(order);
    }
    if let Some(moves) = move_when_cheaper {
        change["moveWhenCheaper"] = json!(moves);
    }
    change
}

/// The `NamespaceOffloading` after the change. Fields that the options do not name keep their
/// value.
fn offloading_after_change(
    namespace: &str,
    present: Option<&NamespaceOffloading>,
    options: &OffloadOptions,
) -> Value {
    let mut spec = present.map_or_else(
        || json!({ "podOffloadingStrategy": PodOffloadingStrategy::default() }),
        |one| json!(one.spec),
    );
    json_patch::merge(&mut spec, &spec_changes(options));
    json!({
        "apiVersion": "offloading.liqo.io/v1alpha1",
        "kind": "NamespaceOffloading",
        "metadata": { "name": NAMESPACE_OFFLOADING, "namespace": namespace },
        "spec": spec,
    })
}

/// Sets the label of a namespace through which new pods are seen from the first one on, or removes
/// it. Who may not change the namespace can offload it all the same.
pub(crate) async fn label_namespace(
    cluster: &Cluster,
    namespace: &str,
    value: Option<&str>,
) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(cluster.client.clone());
    let change = json!({ "metadata": { "labels": { labels::SCHEDULING_ENABLED: value } } });
    let parameters = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    match api
        .patch_metadata(namespace, &parameters, &Patch::Merge(&change))
        .await
    {
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Ok(()),
        changed => changed
            .map(drop)
            .doing(format!("change the labels of namespace {namespace}")),
    }
}

/// The objects that [`offload`] would write. Writes nothing.
pub async fn preview_offloading(
    cluster: &Cluster,
    namespaces: &[String],
    options: &OffloadOptions,
) -> anyhow::Result<Vec<Value>> {
    cluster.visible_installation().await?;
    let mut objects = Vec::new();
    for namespace in namespaces {
        ensure_can_be_offloaded(cluster, namespace).await?;
        let present = present_offloading(cluster, namespace).await?;
        objects.push(offloading_after_change(
            namespace,
            present.as_ref(),
            options,
        ));
    }
    Ok(objects)
}

/// Offloads several namespaces at the same time. Changes nothing if one of them cannot be
/// offloaded.
pub async fn offload_all(
    cluster: &Cluster,
    namespaces: &[String],
    options: &OffloadOptions,
    progress: &StepProgress,
) -> anyhow::Result<Vec<anyhow::Result<OffloadResult>>> {
    for namespace in namespaces {
        ensure_can_be_offloaded(cluster, namespace).await?;
    }
    Ok(join_all(
        namespaces
            .iter()
            .map(|namespace| offload(cluster, namespace, options, progress)),
    )
    .await)
}

/// Lets the pods of a namespace run in other clusters, or changes where they run, and waits until
/// the namespace exists there. Fails at once if there are virtual nodes and its selector matches
/// none: it stays offloaded, for a cluster that matches later.
pub async fn offload(
    cluster: &Cluster,
    namespace: &str,
    options: &OffloadOptions,
    progress: &StepProgress,
) -> anyhow::Result<OffloadResult> {
    cluster.visible_installation().await?;
    ensure_can_be_offloaded(cluster, namespace).await?;
    let api: Api<NamespaceOffloading> = Api::namespaced(cluster.client.clone(), namespace);
    let written = if present_offloading(cluster, namespace).await?.is_some() {
        // A merge patch touches only the fields that it names; server-side apply would remove those
        // that it does not name.
        let parameters = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let change = json!({ "spec": spec_changes(options) });
        api.patch(NAMESPACE_OFFLOADING, &parameters, &Patch::Merge(&change))
            .await
    } else {
        label_namespace(cluster, namespace, Some("true")).await?;
        let object = offloading_after_change(namespace, None, options);
        api.patch(
            NAMESPACE_OFFLOADING,
            &PatchParams::apply(FIELD_MANAGER).force(),
            &Patch::Apply(&object),
        )
        .await
    };
    let applied = written.doing(format!(
        "write the NamespaceOffloading of namespace {namespace}"
    ))?;
    let mut offloaded = OffloadResult {
        namespace: namespace.to_owned(),
        pod_offloading_strategy: applied.spec.pod_offloading_strategy,
        remote: Vec::new(),
        notes: notes::own_nodes_first_note(&applied.spec, options)
            .into_iter()
            .collect(),
    };
    let selector = applied.spec.cluster_selector.as_ref();
    let nodes = evict::visible_virtual_nodes(cluster).await?;
    if nodes.as_ref().is_some_and(Vec::is_empty) {
        offloaded.notes.push(NO_VIRTUAL_NODE.to_owned());
        return Ok(offloaded);
    }
    // The object stays, and nothing but another selector or cluster would end a wait.
    if let Some(nodes) = &nodes
        && let Some(why) = notes::why_no_cluster_is_selected(namespace, selector, nodes)
    {
        bail!(why);
    }
    let step = format!("Offloading namespace {namespace}");
    let what = format!("namespace {namespace} exists in all selected clusters");
    let ready = until(
        &what,
        options.timeout,
        |text| progress.message(&step, text),
        || async {
            let offloading = api
                .get(NAMESPACE_OFFLOADING)
                .await
                .doing("read the NamespaceOffloading")?;
            let status = offloading.status.unwrap_or_default();
            Ok(
                match reason_not_ready(&status, applied.metadata.generation) {
                    None => PollResult::Done(status),
                    Some(_)
                        if nodes.is_none()
                            && selects_no_cluster(&status, applied.metadata.generation) =>
                    {
                        PollResult::Done(status)
                    }
                    Some(missing) => PollResult::NotYet(missing),
                },
            )
        },
    );
    let status = progress.run_step(&step, ready).await?;
    offloaded.remote = status
        .remote_namespaces
        .into_iter()
        .map(|remote| ProviderNamespace {
            cluster: remote.cluster_name,
            namespace: remote.namespace,
        })
        .collect();
    if offloaded.remote.is_empty() && nodes.is_none() {
        if selector.is_some() {
            bail!(notes::no_visible_cluster_is_selected(namespace));
        }
        offloaded.notes.push(NO_VIRTUAL_NODE.to_owned());
    }
    Ok(offloaded)
}

const NOT_REPORTED: &str = "the controllers have not reported anything yet";

/// Whether the namespace waits for a cluster. Whoever lists nodes sees that before.
fn selects_no_cluster(status: &NamespaceOffloadingStatus, generation: Option<i64>) -> bool {
    let reason = NamespaceReadyReason::NoClusterSelected.as_str();
    status.conditions.iter().any(|condition| {
        condition.type_ == "Ready"
            && condition.reason == reason
            && condition.observed_generation >= generation
    })
}

/// Reason why an offloaded namespace is not ready.
fn reason_not_ready(status: &NamespaceOffloadingStatus, generation: Option<i64>) -> Option<String> {
    let ready = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Ready");
    // A condition that is older than the change says nothing about it.
    if ready.is_none_or(|ready| ready.observed_generation < generation) {
        return Some(NOT_REPORTED.to_owned());
    }
    if let Some(remote) = status.remote_namespaces.iter().find(|remote| !remote.ready) {
        let why = remote.message.as_deref().unwrap_or("it is being created");
        return Some(format!(
            "namespace {} in {}: {why}",
            remote.namespace, remote.cluster_name
        ));
    }
    match ready {
        Some(condition) if condition.is_true() => None,
        Some(condition) => Some(format!("{}: {}", condition.reason, condition.message)),
        None => Some(NOT_REPORTED.to_owned()),
    }
}

/// The unfinished pods of a namespace that run in other clusters: they are lost when it is no
/// longer offloaded.
pub async fn remote_pods(cluster: &Cluster, namespace: &str) -> anyhow::Result<Vec<String>> {
    let namespaces = [namespace.to_owned()];
    let nodes = evict::virtual_nodes_of_namespaces(cluster, &namespaces)
        .await?
        .into_iter()
        .map(|node| node.name)
        .collect();
    let pods = lists::list_pods_of_namespace(cluster, namespace, &ListParams::default()).await?;
    Ok(on_nodes(&pods, &nodes))
}

/// The names of the unfinished pods on these nodes.
fn on_nodes(pods: &[Pod], nodes: &BTreeSet<String>) -> Vec<String> {
    pods.iter()
        .filter(|pod| is_remote(pod, nodes))
        .map(kube::ResourceExt::name_any)
        .collect()
}

fn is_remote(pod: &Pod, nodes: &BTreeSet<String>) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    !is_finished(pod) && node.is_some_and(|node| nodes.contains(node))
}

/// Finds those of these namespaces whose offloading [`unoffload_and_wait`] would end, with their pods. Ends
/// nothing.
pub async fn plan_unoffload(
    cluster: &Cluster,
    namespaces: &[String],
) -> anyhow::Result<Vec<UnoffloadPlan>> {
    let all = evict::virtual_nodes_of_namespaces(cluster, namespaces).await?;
    let nodes: BTreeSet<String> = all.iter().map(|node| node.name.clone()).collect();
    let silent: BTreeSet<String> = all
        .iter()
        .filter(|node| !node.answers)
        .map(|node| node.name.clone())
        .collect();
    let mut found = Vec::new();
    for namespace in namespaces {
        let Some(offloading) = present_offloading(cluster, namespace).await? else {
            continue;
        };
        let pod_offloading_strategy = offloading.spec.pod_offloading_strategy;
        let everything = ListParams::default();
        let pods = lists::list_pods_of_namespace(cluster, namespace, &everything).await?;
        let (lost_pods, silent_pods) = (on_nodes(&pods, &nodes), on_nodes(&pods, &silent));
        found.push(UnoffloadPlan {
            namespace: namespace.clone(),
            pod_offloading_strategy,
            lost_pods,
            silent_pods,
        });
    }
    Ok(found)
}

/// A namespace that will not be offloaded any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnoffloadPlan {
    pub namespace: String,
    pub pod_offloading_strategy: PodOffloadingStrategy,
    /// Its pods that run in other clusters.
    pub lost_pods: Vec<String>,
    /// Those of them whose cluster does not answer. They are deleted at once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub silent_pods: Vec<String>,
}

/// The question to ask first; nothing if no pod ends. `now`: they are not evicted, but deleted.
pub fn question_before_unoffload(endings: &[UnoffloadPlan], now: bool) -> Option<String> {
    let lost: Vec<&UnoffloadPlan> = endings
        .iter()
        .filter(|ending| !ending.lost_pods.is_empty())
        .collect();
    let how = how_pods_end(&lost, now);
    match lost.as_slice() {
        [] => None,
        [one] => {
            let (namespace, pods) = (&one.namespace, one.lost_pods.join(", "));
            Some(format!(
                "This ends the pods of namespace {namespace} that run in other clusters: {pods}. {how}. Continue?"
            ))
        }
        several => {
            let pods = list_by_namespace(several, |one| &one.lost_pods);
            Some(format!(
                "This ends the pods that run in other clusters: {pods}. {how}. Continue?"
            ))
        }
    }
}

fn how_pods_end(lost: &[&UnoffloadPlan], now: bool) -> String {
    let all: usize = lost.iter().map(|one| one.lost_pods.len()).sum();
    let silent: usize = lost.iter().map(|one| one.silent_pods.len()).sum();
    if now {
        return "They are deleted at once".to_owned();
    }
    if silent == 0 {
        return "They are evicted as disruption budgets allow".to_owned();
    }
    if silent == all {
        return "They are deleted at once, because their cluster does not answer".to_owned();
    }
    let pods = match lost {
        [one] => one.silent_pods.join(", "),
        several => list_by_namespace(several, |one| &one.silent_pods),
    };
    format!(
        "They are evicted as disruption budgets allow, except those whose cluster does not answer, which are deleted at once: {pods}"
    )
}

/// `x, y (namespace a); z (namespace b)`.
fn list_by_namespace(
    endings: &[&UnoffloadPlan],
    pods: fn(&UnoffloadPlan) -> &Vec<String>,
) -> String {
    let endings = endings.iter().filter(|one| !pods(one).is_empty());
    endings
        .map(|one| format!("{} (namespace {})", pods(one).join(", "), one.namespace))
        .collect::<Vec<_>>()
        .join("; ")
}

/// Ends the offloading of a namespace: remote pods that it still has are deleted, and its remote
/// namespaces are removed.
pub async fn unoffload_and_wait(
    cluster: &Cluster,
    namespace: &str,
    timeout: Duration,
    progress: &StepProgress,
) -> anyhow::Result<()> {
    let api: Api<NamespaceOffloading> = Api::namespaced(cluster.client.clone(), namespace);
    label_namespace(cluster, namespace, None).await?;
    match api
        .delete(NAMESPACE_OFFLOADING, &DeleteParams::background())
        .await
    {
        Err(error) if is_absent(&error) => return Ok(()),
        deleted => drop(deleted.doing(format!(
            "delete the NamespaceOffloading of namespace {namespace}"
        ))?),
    }
    let step = format!("Ending the offloading of namespace {namespace}");
    let what = format!("namespace {namespace} is gone from all other clusters");
    let gone = until(
        &what,
        timeout,
        |text| progress.message(&step, text),
        || async {
            let Some(offloading) = api
                .get_opt(NAMESPACE_OFFLOADING)
                .await
                .doing("read the NamespaceOffloading")?
            else {
                return Ok(PollResult::Done(()));
            };
            let left: Vec<_> = offloading
                .status
                .unwrap_or_default()
                .remote_namespaces
                .into_iter()
                .map(|remote| remote.cluster_name)
                .collect();
            Ok(PollResult::NotYet(format!(
                "it is being removed in {}",
                if left.is_empty() {
                    "its clusters".to_owned()
                } else {
                    left.join(", ")
                }
            )))
        },
    );
    progress.run_step(&step, gone).await
}

/// The result as text for people.
pub fn render_offload_result(offloaded: &OffloadResult) -> String {
    let namespace = &offloaded.namespace;
    let mut lines: Vec<_> = offloaded
        .remote
        .iter()
        .map(|remote| {
            format!(
                "Namespace {namespace} is {} in {}.",
                remote.namespace, remote.cluster
            )
        })
        .collect();
    lines.extend(offloaded.notes.iter().map(|note| format!("Note: {note}.")));
    let new_pods = match offloaded.pod_offloading_strategy {
        PodOffloadingStrategy::LocalAndRemote => "New pods may run there",
        PodOffloadingStrategy::Remote => "New pods run only there",
        PodOffloadingStrategy::Local => "New pods run only in this cluster",
    };
    lines.push(format!("{new_pods}; existing pods stay where they are."));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use http::{Method, Request, Response};
    use kube::{Client, client::Body};

    use super::*;
    use crate::cluster::ClusterAccess;

    #[test]
    fn a_namespace_that_clusters_keep_for_themselves_is_refused() {
        for namespace in ["default", "kube-system", "liqo"] {
            assert!(
                refuse_reserved(namespace)
                    .unwrap_err()
                    .to_string()
                    .contains("use another namespace"),
                "{namespace}"
            );
        }
        assert!(refuse_reserved("demo").is_ok());
    }

    #[test]
    fn only_unfinished_pods_on_virtual_nodes_are_lost() {
        let nodes = BTreeSet::from(["milan".to_owned()]);
        let pod = |node: Option<&str>, phase: &str| -> Pod {
            serde_json::from_value(json!({ "metadata": { "name": "p" }, "spec": { "containers": [], "nodeName": node }, "status": { "phase": phase } })).unwrap()
        };
        assert!(is_remote(&pod(Some("milan"), "Running"), &nodes));
        assert!(!is_remote(&pod(Some("rome-1"), "Running"), &nodes));
        assert!(!is_remote(&pod(Some("milan"), "Succeeded"), &nodes));
        assert!(!is_remote(&pod(None, "Pending"), &nodes));
    }

    fn options() -> OffloadOptions {
        OffloadOptions::default()
    }

    fn selector(region: &str) -> NodeSelector {
        crate::selector::parse_node_selectors(&[format!("region={region}")])
            .unwrap()
            .unwrap()
    }

    /// A cluster with the namespace `demo`, which is not offloaded, and the virtual node `milan` with
    /// the label `region=eu`. It counts how often the `NamespaceOffloading` is written.
    fn cluster_with_milan() -> (Cluster, Arc<AtomicU32>) {
        let written = Arc::new(AtomicU32::new(0));
        let counter = written.clone();
        let refusal = |code: u16| json!({ "kind": "Status", "status": "Failure", "message": "no", "code": code });
        let service = tower::service_fn(move |request: Request<Body>| {
            let last = request.uri().path().rsplit('/').next().unwrap_or_default();
            let demo = json!({ "metadata": { "name": "demo" } });
            let (code, answer) = match (request.method(), last) {
                (&Method::GET | &Method::PATCH, "demo") => (200, demo),
                (&Method::GET, "nodes") => {
                    let milan =
                        json!({ "metadata": { "name": "milan", "labels": { "region": "eu" } } });
                    let items = json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": [milan] });
                    (200, items)
                }
                (&Method::PATCH, NAMESPACE_OFFLOADING) => {
                    counter.fetch_add(1, Ordering::Relaxed);
                    let spec = json!({ "podOffloadingStrategy": "Remote", "clusterSelector": selector("mars") });
                    let metadata = json!({ "name": NAMESPACE_OFFLOADING, "namespace": "demo" });
                    (200, json!({ "metadata": metadata, "spec": spec }))
                }
                (&Method::GET, NAMESPACE_OFFLOADING) => (404, refusal(404)),
                // Who may not read the ClusterConfig is believed to have Liqo.
                _ => (403, refusal(403)),
            };
            let body = Body::from(serde_json::to_vec(&answer).unwrap());
            let response = Response::builder().status(code).body(body);
            std::future::ready(Ok::<_, kube::Error>(response.unwrap()))
        });
        let cluster = Cluster {
            client: Client::new(service, "default"),
            access: ClusterAccess::default(),
            context: "rome".into(),
            server: "https://rome".into(),
        };
        (cluster, written)
    }

    #[tokio::test]
    async fn a_selector_that_matches_no_node_is_stored_and_not_waited_for() {
        let (cluster, written) = cluster_with_milan();
        let mars = OffloadOptions {
            clusters: Some(SelectedClusters::Matching(selector("mars"))),
            timeout: Duration::from_mins(10),
            ..options()
        };
        let progress = StepProgress::silent();
        let offloaded = offload(&cluster, "demo", &mars, &progress);
        let error = tokio::time::timeout(Duration::from_secs(5), offloaded)
            .await
            .expect("it waits")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("NoClusterSelected") && error.contains("milan has region=eu"),
            "{error}"
        );
        assert_eq!(written.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn only_what_was_named_changes() {
        let local = OffloadOptions {
            strategy: Some(PodOffloadingStrategy::Local),
            ..options()
        };
        assert_eq!(
            spec_changes(&local),
            json!({ "podOffloadingStrategy": "Local" })
        );
        let present: NamespaceOffloading = serde_json::from_value(json!({
            "metadata": { "name": "offloading", "namespace": "demo" },
            "spec": { "podOffloadingStrategy": "Remote", "reflection": "AllowList", "clusterSelector": selector("eu") },
        }))
        .unwrap();
        let kept = offloading_after_change("demo", Some(&present), &local);
        let expected = json!({
            "namespaceMappingStrategy": "DefaultName", "podOffloadingStrategy": "Local", "reflection": "AllowList",
            "clusterSelector": selector("eu"),
        });
        assert_eq!(
            (&kept["spec"], &kept["metadata"]["namespace"]),
            (&expected, &json!("demo"))
        );
        assert_eq!(
            offloading_after_change("demo", None, &options())["spec"],
            json!({ "podOffloadingStrategy": "LocalAndRemote" })
        );
        let now = OffloadOptions {
            eviction_delay: Some(EvictionChange::After(EvictionDelay::Seconds(0))),
            ..options()
        };
        assert_eq!(
            offloading_after_change("demo", Some(&present), &now)["spec"]["evictionDelay"],
            "0s"
        );
        let as_before = OffloadOptions {
            eviction_delay: Some(EvictionChange::AsPodsSay),
            ..options()
        };
        assert_eq!(
            offloading_after_change("demo", Some(&present), &as_before)["spec"]
                .get("evictionDelay"),
            None
        );
        let tokens = OffloadOptions {
            api_server: Some(true),
            ..options()
        };
        assert_eq!(
            offloading_after_change("demo", Some(&present), &tokens)["spec"]["apiServer"],
            true
        );
        let everywhere = OffloadOptions {
            clusters: Some(SelectedClusters::All),
            ..options()
        };
        assert_eq!(
            spec_changes(&everywhere),
            json!({ "clusterSelector": null })
        );
        assert!(
            offloading_after_change("demo", Some(&present), &everywhere)["spec"]
                .get("clusterSelector")
                .is_none()
        );
        let us = OffloadOptions {
            clusters: Some(SelectedClusters::Matching(selector("us"))),
            ..options()
        };
        assert_eq!(
            offloading_after_change("demo", Some(&present), &us)["spec"]["clusterSelector"],
            json!(selector("us"))
        );
        let named = OffloadOptions {
            mapping: Some(NamespaceMappingStrategy::SelectedName),
            remote_name: Some("team-a".into()),
            ..options()
        };
        assert_eq!(
            spec_changes(&named),
            json!({ "namespaceMappingStrategy": "SelectedName", "remoteNamespaceName": "team-a" })
        );
        let same = OffloadOptions {
            mapping: Some(NamespaceMappingStrategy::EnforceSameName),
            ..options()
        };
        assert_eq!(
            spec_changes(&same),
            json!({ "namespaceMappingStrategy": "EnforceSameName", "remoteNamespaceName": null })
        );
    }

    #[test]
    fn a_placement_strategy_takes_away_what_belongs_to_others() {
        let change = |strategy, order: &[&str], move_when_cheaper| {
            let order =
                (!order.is_empty()).then(|| order.iter().map(ToString::to_string).collect());
            OffloadOptions {
                placement: Some(PlacementChange::Change {
                    strategy,
                    order,
                    move_when_cheaper,
                }),
                ..options()
            }
        };
        let cheapest = change(Some(PlacementStrategy::Cheapest), &[], Some(true));
        let placed = offloading_after_change("demo", None, &cheapest);
        assert_eq!(
            placed["spec"]["placement"],
            json!({ "strategy": "Cheapest", "moveWhenCheaper": true })
        );
        let present: NamespaceOffloading = serde_json::from_value(placed).unwrap();
        let now = |options: &OffloadOptions| {
            offloading_after_change("demo", Some(&present), options)["spec"]
                .get("placement")
                .cloned()
        };
        assert_eq!(
            now(&options()),
            Some(json!({ "strategy": "Cheapest", "moveWhenCheaper": true }))
        );
        assert_eq!(
            now(&change(None, &[], Some(false))),
            Some(json!({ "strategy": "Cheapest", "moveWhenCheaper": false }))
        );
        let fixed = change(
            Some(PlacementStrategy::FixedOrder),
            &["milan", "turin"],
            None,
        );
        assert_eq!(
            now(&fixed),
            Some(json!({ "strategy": "FixedOrder", "order": ["milan", "turin"] }))
        );
        assert_eq!(
            spec_changes(&fixed)["placement"],
            json!({ "strategy": "FixedOrder", "order": ["milan", "turin"], "moveWhenCheaper": null })
        );
        assert_eq!(
            now(&OffloadOptions {
                placement: Some(PlacementChange::Default),
                ..options()
            }),
            None
        );
    }

    #[test]
    fn the_text_is_true_for_each_strategy() {
        let text = |pod_offloading_strategy| {
            let remote = vec![ProviderNamespace {
                cluster: "milan".into(),
                namespace: "demo-rome-abc".into(),
            }];
            render_offload_result(&OffloadResult {
                namespace: "demo".into(),
                pod_offloading_strategy,
                remote,
                notes: Vec::new(),
            })
        };
        let both = "Namespace demo is demo-rome-abc in milan.\nNew pods may run there; existing pods stay where they are.";
        assert_eq!(text(PodOffloadingStrategy::LocalAndRemote), both);
        assert!(text(PodOffloadingStrategy::Remote).contains("\nNew pods run only there;"));
        assert!(
            text(PodOffloadingStrategy::Local).contains("\nNew pods run only in this cluster;")
        );
    }

    #[test]
    fn the_question_names_every_pod_that_ends() {
        let ending = |namespace: &str, pods: &[&str]| UnoffloadPlan {
            namespace: namespace.into(),
            pod_offloading_strategy: PodOffloadingStrategy::Remote,
            lost_pods: pods.iter().map(ToString::to_string).collect(),
            silent_pods: Vec::new(),
        };
        assert_eq!(question_before_unoffload(&[ending("a", &[])], false), None);
        assert_eq!(
            question_before_unoffload(&[ending("a", &["x", "y"]), ending("b", &[])], false)
                .unwrap(),
            "This ends the pods of namespace a that run in other clusters: x, y. They are evicted as disruption budgets allow. Continue?"
        );
        assert_eq!(
            question_before_unoffload(&[ending("a", &["x"]), ending("b", &["z"])], true).unwrap(),
            "This ends the pods that run in other clusters: x (namespace a); z (namespace b). They are deleted at once. Continue?"
        );
        let silent = |ending: UnoffloadPlan, pods: &[&str]| UnoffloadPlan {
            silent_pods: pods.iter().map(ToString::to_string).collect(),
            ..ending
        };
        let one = silent(ending("a", &["x", "y"]), &["y"]);
        let text = question_before_unoffload(std::slice::from_ref(&one), false).unwrap();
        let except = "They are evicted as disruption budgets allow, except those whose cluster does not answer, which are deleted at once: ";
        assert!(
            text.ends_with(&format!(": x, y. {except}y. Continue?")),
            "{text}"
        );
        let text = question_before_unoffload(&[one.clone(), ending("b", &["z"])], false).unwrap();
        assert!(
            text.ends_with(&format!("{except}y (namespace a). Continue?")),
            "{text}"
        );
        assert!(
            question_before_unoffload(&[one], true)
                .unwrap()
                .ends_with("x, y. They are deleted at once. Continue?")
        );
        let all = question_before_unoffload(&[silent(ending("a", &["x"]), &["x"])], false).unwrap();
        assert!(
            all.ends_with(
                "x. They are deleted at once, because their cluster does not answer. Continue?"
            ),
            "{all}"
        );
    }

    #[test]
    fn what_an_offloaded_namespace_waits_for_is_told() {
        let status = |value| serde_json::from_value::<NamespaceOffloadingStatus>(value).unwrap();
        let condition = |status: &str| json!({ "type": "Ready", "status": status, "reason": "R", "message": "m", "observedGeneration": 2, "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let remote = |ready: bool| json!({ "clusterID": liqo_api::ClusterId::of_public_key(&[1; 32]), "clusterName": "milan", "namespace": "demo-rome-abc", "ready": ready, "message": "refused" });
        assert_eq!(
            reason_not_ready(&status(json!({})), Some(2)).as_deref(),
            Some(NOT_REPORTED)
        );
        assert_eq!(
            reason_not_ready(
                &status(json!({ "conditions": [condition("True")] })),
                Some(3)
            )
            .as_deref(),
            Some(NOT_REPORTED)
        );
        assert_eq!(
            reason_not_ready(
                &status(json!({ "conditions": [condition("False")] })),
                Some(2)
            )
            .as_deref(),
            Some("R: m")
        );
        assert!(
            reason_not_ready(&status(json!({ "conditions": [condition("True")], "remoteNamespaces": [remote(false)] })), Some(2))
                .unwrap()
                .contains("refused")
        );
        assert_eq!(
            reason_not_ready(
                &status(
                    json!({ "conditions": [condition("True")], "remoteNamespaces": [remote(true)] })
                ),
                Some(2)
            ),
            None
        );
    }
}

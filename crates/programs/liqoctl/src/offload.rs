//! `liqoctl offload namespace` and `liqoctl unoffload namespace`.

use std::{collections::BTreeSet, time::Duration};

use anyhow::bail;
use k8s_openapi::api::core::v1::{Namespace, Node, NodeSelector, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use liqo_api::{
    NAMESPACE_OFFLOADING, NamespaceMappingStrategy, NamespaceOffloading, NamespaceOffloadingStatus, PodOffloadingStrategy,
    Reflection, SYSTEM_NAMESPACE, labels, may_be_offloaded,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    apply::FIELD_MANAGER,
    cluster::{Cluster, Explained as _, is_absent},
    progress::Progress,
    wait::{Poll, until},
};

#[derive(Clone, Debug)]
pub struct Options {
    /// Where pods may run.
    pub strategy: PodOffloadingStrategy,
    /// Which Services and Ingresses to reflect. Nothing means: unchanged, or all but denied ones.
    pub reflection: Option<Reflection>,
    /// How the namespace is called in other clusters. Nothing means: as it is, or its default name.
    pub mapping: Option<NamespaceMappingStrategy>,
    /// Its name in other clusters, for `SelectedName`.
    pub remote_name: Option<String>,
    /// Which clusters; nothing for all.
    pub selector: Option<NodeSelector>,
    /// How long to wait for the namespace to exist there.
    pub timeout: Duration,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Offloaded {
    pub namespace: String,
    /// The remote namespaces.
    pub remote: Vec<RemoteNamespace>,
    /// A note for the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The namespace at one provider.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RemoteNamespace {
    pub cluster: String,
    pub namespace: String,
}

/// Lets the pods of a namespace run in other clusters, and waits until the namespace exists there.
pub async fn offload(cluster: &Cluster, namespace: &str, options: &Options, progress: &Progress) -> anyhow::Result<Offloaded> {
    refuse_reserved(namespace)?;
    cluster.installed().await?;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let Some(object) = namespaces.get_opt(namespace).await.doing(format!("read namespace {namespace}"))? else {
        bail!("there is no namespace {namespace}: create it with `kubectl create namespace {namespace}`");
    };
    if let Some(kind) = object.labels().get(labels::NAMESPACE_KIND) {
        bail!("namespace {namespace} is one of Liqo's own ({kind}) and cannot be offloaded");
    }
    let api: Api<NamespaceOffloading> = Api::namespaced(cluster.client.clone(), namespace);
    let mut spec = json!({ "podOffloadingStrategy": options.strategy });
    if let Some(reflection) = options.reflection {
        spec["reflection"] = json!(reflection);
    }
    let live = api.get_opt(NAMESPACE_OFFLOADING).await.doing("read the NamespaceOffloading")?;
    for (field, value) in mapping(options, live.as_ref()) {
        spec[field] = value;
    }
    if let Some(selector) = &options.selector {
        spec["clusterSelector"] = json!(selector);
    }
    let wanted = json!({
        "apiVersion": "offloading.liqo.io/v1alpha1",
        "kind": "NamespaceOffloading",
        "metadata": { "name": NAMESPACE_OFFLOADING, "namespace": namespace },
        "spec": spec,
    });
    let applied = api
        .patch(NAMESPACE_OFFLOADING, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&wanted))
        .await
        .doing(format!("write the NamespaceOffloading of namespace {namespace}"))?;
    if virtual_nodes(cluster).await?.is_empty() {
        let note = "there is no virtual node yet: the namespace is offloaded as soon as there is a peer (`liqoctl peer`)";
        return Ok(Offloaded { namespace: namespace.to_owned(), remote: Vec::new(), note: Some(note.to_owned()) });
    }
    let step = format!("Offloading namespace {namespace}");
    let what = format!("namespace {namespace} exists in all selected clusters");
    let ready = until(
        &what,
        options.timeout,
        |text| progress.message(&step, text),
        || async {
            let offloading = api.get(NAMESPACE_OFFLOADING).await.doing("read the NamespaceOffloading")?;
            let status = offloading.status.unwrap_or_default();
            Ok(match missing(&status, applied.metadata.generation) {
                None => Poll::Done(status),
                Some(missing) => Poll::NotYet(missing),
            })
        },
    );
    let status = progress.step(&step, ready).await?;
    let remote = status
        .remote_namespaces
        .into_iter()
        .map(|remote| RemoteNamespace { cluster: remote.cluster_name, namespace: remote.namespace })
        .collect();
    Ok(Offloaded { namespace: namespace.to_owned(), remote, note: None })
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

/// The fields of the spec that say how the namespace is called in other clusters. They stay as they are unless the options name them.
fn mapping(options: &Options, live: Option<&NamespaceOffloading>) -> Map<String, Value> {
    let live = live.map(|live| (live.spec.namespace_mapping_strategy, live.spec.remote_namespace_name.clone()));
    let asked = options.mapping.map(|strategy| (strategy, options.remote_name.clone()));
    let Some((strategy, name)) = asked.or(live) else { return Map::new() };
    let name = name.map(|name| ("remoteNamespaceName".to_owned(), name.into()));
    [("namespaceMappingStrategy".to_owned(), json!(strategy))].into_iter().chain(name).collect()
}

const NOT_REPORTED: &str = "the controllers have not reported anything yet";

/// What an offloaded namespace waits for.
fn missing(status: &NamespaceOffloadingStatus, generation: Option<i64>) -> Option<String> {
    let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
    // A condition that is older than the change says nothing about it.
    if ready.is_none_or(|ready| ready.observed_generation < generation) {
        return Some(NOT_REPORTED.to_owned());
    }
    if let Some(remote) = status.remote_namespaces.iter().find(|remote| !remote.ready) {
        let why = remote.message.as_deref().unwrap_or("it is being created");
        return Some(format!("namespace {} in {}: {why}", remote.namespace, remote.cluster_name));
    }
    match ready {
        Some(condition) if condition.status == "True" => None,
        Some(condition) => Some(format!("{}: {}", condition.reason, condition.message)),
        None => Some(NOT_REPORTED.to_owned()),
    }
}

/// The names of all virtual nodes.
pub async fn virtual_nodes(cluster: &Cluster) -> anyhow::Result<BTreeSet<String>> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let ours = ListParams::default().labels(&format!("{}={}", labels::TYPE, labels::TYPE_VIRTUAL_NODE));
    Ok(nodes.list_metadata(&ours).await.doing("list the virtual nodes")?.iter().map(kube::ResourceExt::name_any).collect())
}

/// The unfinished pods of a namespace that run in other clusters: they are lost when it is no longer offloaded.
pub async fn remote_pods(cluster: &Cluster, namespace: &str) -> anyhow::Result<Vec<String>> {
    let nodes = virtual_nodes(cluster).await?;
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let pods = api.list(&ListParams::default()).await.doing(format!("list the pods of namespace {namespace}"))?;
    Ok(pods.items.iter().filter(|pod| is_remote(pod, &nodes)).map(kube::ResourceExt::name_any).collect())
}

fn is_remote(pod: &Pod, nodes: &BTreeSet<String>) -> bool {
    let finished = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .is_some_and(|phase| matches!(phase, "Succeeded" | "Failed"));
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    !finished && node.is_some_and(|node| nodes.contains(node))
}

/// Whether a namespace is offloaded.
pub async fn is_offloaded(cluster: &Cluster, namespace: &str) -> anyhow::Result<bool> {
    let api: Api<NamespaceOffloading> = Api::namespaced(cluster.client.clone(), namespace);
    match api.get_opt(NAMESPACE_OFFLOADING).await {
        Err(error) if is_absent(&error) => Ok(false),
        found => Ok(found.doing(format!("read the NamespaceOffloading of namespace {namespace}"))?.is_some()),
    }
}

/// Ends the offloading of a namespace: its remote pods end, and its remote namespaces are removed.
pub async fn unoffload(cluster: &Cluster, namespace: &str, timeout: Duration, progress: &Progress) -> anyhow::Result<()> {
    let api: Api<NamespaceOffloading> = Api::namespaced(cluster.client.clone(), namespace);
    match api.delete(NAMESPACE_OFFLOADING, &DeleteParams::background()).await {
        Err(error) if is_absent(&error) => return Ok(()),
        deleted => drop(deleted.doing(format!("delete the NamespaceOffloading of namespace {namespace}"))?),
    }
    let step = format!("Ending the offloading of namespace {namespace}");
    let what = format!("namespace {namespace} is gone from all other clusters");
    let gone = until(
        &what,
        timeout,
        |text| progress.message(&step, text),
        || async {
            let Some(offloading) = api.get_opt(NAMESPACE_OFFLOADING).await.doing("read the NamespaceOffloading")? else {
                return Ok(Poll::Done(()));
            };
            let left: Vec<_> =
                offloading.status.unwrap_or_default().remote_namespaces.into_iter().map(|remote| remote.cluster_name).collect();
            Ok(Poll::NotYet(format!(
                "it is being removed in {}",
                if left.is_empty() { "its clusters".to_owned() } else { left.join(", ") }
            )))
        },
    );
    progress.step(&step, gone).await
}

/// The result as text for people.
pub fn table(offloaded: &Offloaded) -> String {
    let namespace = &offloaded.namespace;
    let mut lines: Vec<_> = offloaded
        .remote
        .iter()
        .map(|remote| format!("Namespace {namespace} is {} in {}.", remote.namespace, remote.cluster))
        .collect();
    lines.extend(offloaded.note.iter().map(|note| format!("Note: {note}.")));
    if lines.is_empty() {
        lines.push(format!("Namespace {namespace} is offloaded; its selector matches no cluster now."));
    }
    lines.push("New pods may run there; existing pods stay where they are.".to_owned());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_clusters_keep_for_themselves_is_refused() {
        for namespace in ["default", "kube-system", "liqo"] {
            assert!(refuse_reserved(namespace).unwrap_err().to_string().contains("use another namespace"), "{namespace}");
        }
        assert!(refuse_reserved("demo").is_ok());
    }

    #[test]
    fn a_namespace_keeps_its_mapping_unless_another_one_is_asked_for() {
        let options = |mapping, name: Option<&str>| Options {
            strategy: PodOffloadingStrategy::Remote,
            reflection: None,
            mapping,
            remote_name: name.map(str::to_owned),
            selector: None,
            timeout: Duration::ZERO,
        };
        let live: NamespaceOffloading = serde_json::from_value(json!({ "apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading",
            "metadata": { "name": "offloading" }, "spec": { "namespaceMappingStrategy": "SelectedName", "remoteNamespaceName": "team-a" } }))
        .unwrap();
        let said = |options: &Options, live: Option<&NamespaceOffloading>| Value::from(mapping(options, live));
        let kept = json!({ "namespaceMappingStrategy": "SelectedName", "remoteNamespaceName": "team-a" });
        assert_eq!(said(&options(None, None), Some(&live)), kept);
        assert_eq!(said(&options(None, None), None), json!({}));
        let same = options(Some(NamespaceMappingStrategy::EnforceSameName), None);
        assert_eq!(said(&same, Some(&live)), json!({ "namespaceMappingStrategy": "EnforceSameName" }));
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

    #[test]
    fn what_an_offloaded_namespace_waits_for_is_told() {
        let status = |value| serde_json::from_value::<NamespaceOffloadingStatus>(value).unwrap();
        let condition = |status: &str| json!({ "type": "Ready", "status": status, "reason": "R", "message": "m", "observedGeneration": 2, "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let remote = |ready: bool| json!({ "clusterID": liqo_api::ClusterId::of_public_key(&[1; 32]), "clusterName": "milan", "namespace": "demo-rome-abc", "ready": ready, "message": "refused" });
        assert_eq!(missing(&status(json!({})), Some(2)).as_deref(), Some(NOT_REPORTED));
        assert_eq!(missing(&status(json!({ "conditions": [condition("True")] })), Some(3)).as_deref(), Some(NOT_REPORTED));
        assert_eq!(missing(&status(json!({ "conditions": [condition("False")] })), Some(2)).as_deref(), Some("R: m"));
        assert!(
            missing(&status(json!({ "conditions": [condition("True")], "remoteNamespaces": [remote(false)] })), Some(2))
                .unwrap()
                .contains("refused")
        );
        assert_eq!(
            missing(&status(json!({ "conditions": [condition("True")], "remoteNamespaces": [remote(true)] })), Some(2)),
            None
        );
    }
}

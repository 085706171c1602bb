//! What a remote pod reads about itself through the downward API: the same as at home, because it uses these values to talk about
//! itself to other pods and to the API server of its home cluster.
//!
//! | field | what the remote pod reads |
//! |---|---|
//! | `metadata.name`, one label, one annotation | its own, which are the same |
//! | `metadata.namespace`, `metadata.uid` | the local pod's: the provider has them in Liqo's labels |
//! | `metadata.labels` | the labels that travelled: the provider keeps them in an annotation, which follows changes |
//! | `metadata.annotations` | its own, with what Liqo and the provider's cluster add |
//! | `spec.nodeName`, `spec.serviceAccountName` | the local pod's: the consumer writes them as plain values |
//! | `status.podIP`, `status.hostIP`, and the lists of both | its own, because a program binds to the address that its interface has |
//! | `resourceFieldRef` | its own requests and limits, which travel |
//!
//! A pod that uses the provider's API server reads everything about its remote pod, which is the one that exists there.

use std::collections::BTreeMap;

use liqo_api::{annotations, labels};
use serde_json::{Map, Value};

use crate::json::{items, text};
use crate::pod::carry::CONTAINER_LISTS;
use crate::pod::carry::api_server::account;

/// The consumer's side: writes as plain values what only this cluster knows.
pub(super) fn write_local_values(spec: &mut Map<String, Value>, local_pod: &Value) {
    each_variable(spec, |variable| {
        let value = match text(variable, "/valueFrom/fieldRef/fieldPath") {
            Some("spec.nodeName") => text(local_pod, "/spec/nodeName").filter(|node| !node.is_empty()),
            Some("spec.serviceAccountName") => Some(account(local_pod)),
            _ => None,
        };
        // Both are names, so they contain no `$(` that a kubelet would expand.
        if let (Some(value), Some(variable)) = (value, variable.as_object_mut()) {
            variable.remove("valueFrom");
            variable.insert("value".into(), value.into());
        }
    });
}

/// The provider's side: refers to the labels and the annotation of the remote pod that hold the values of the local pod.
pub(super) fn refer_to_local_values(spec: &mut Map<String, Value>) {
    each_variable(spec, |variable| refer_to_local_value(variable.pointer_mut("/valueFrom/fieldRef/fieldPath")));
    for volume in elements(spec.get_mut("volumes")) {
        for item in elements(volume.pointer_mut("/downwardAPI/items")) {
            refer_to_local_value(item.pointer_mut("/fieldRef/fieldPath"));
        }
        for source in elements(volume.pointer_mut("/projected/sources")) {
            for item in elements(source.pointer_mut("/downwardAPI/items")) {
                refer_to_local_value(item.pointer_mut("/fieldRef/fieldPath"));
            }
        }
    }
}

fn refer_to_local_value(path: Option<&mut Value>) {
    let Some(path) = path else { return };
    let instead = match path.as_str() {
        Some("metadata.namespace") => format!("metadata.labels['{}']", labels::HOME_NAMESPACE),
        Some("metadata.uid") => format!("metadata.labels['{}']", labels::SHADOW_POD),
        Some("metadata.labels") => path_of_labels(),
        _ => return,
    };
    *path = instead.into();
}

/// Whether a pod reads the annotation that holds its labels.
pub(super) fn reads_labels(pod: &Value) -> bool {
    let reads = |source: &Value| {
        let mut paths = items(source, "/downwardAPI/items").iter().filter_map(|item| text(item, "/fieldRef/fieldPath"));
        paths.any(|path| path == path_of_labels())
    };
    items(pod, "/spec/volumes").iter().any(|volume| reads(volume) || items(volume, "/projected/sources").iter().any(reads))
}

fn path_of_labels() -> String {
    format!("metadata.annotations['{}']", annotations::HOME_LABELS)
}

/// The labels as a kubelet writes them into a file: one line for each, in the order of their keys. Neither keys nor values of
/// labels contain characters that would need an escape.
pub(super) fn as_file(pod_labels: &Map<String, Value>) -> String {
    let ordered: BTreeMap<&String, &Value> = pod_labels.iter().collect();
    let lines = ordered.into_iter().map(|(key, value)| format!("{key}=\"{}\"", value.as_str().unwrap_or_default()));
    lines.collect::<Vec<_>>().join("\n")
}

fn each_variable(spec: &mut Map<String, Value>, mut change: impl FnMut(&mut Value)) {
    for list in CONTAINER_LISTS {
        for container in elements(spec.get_mut(list)) {
            elements(container.get_mut("env")).for_each(&mut change);
        }
    }
}

fn elements(list: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    list.and_then(Value::as_array_mut).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::pod::carry::{ProviderRules, RemoteIdentity, outgoing, remote_patch, remote_pod};

    use super::*;

    const IDENTITY: RemoteIdentity = RemoteIdentity {
        namespace: "demo-rome-abc123",
        name: "web",
        consumer: "rome-id",
        pool: "default",
        shadow_pod: "home-uid",
        home_namespace: "demo",
    };

    fn field(name: &str, path: &str) -> Value {
        json!({ "name": name, "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": path } } })
    }

    fn local_pod(env: &Value, items: &Value) -> Value {
        let items: Vec<Value> =
            items.as_array().unwrap().iter().map(|path| json!({ "path": "p", "fieldRef": { "fieldPath": path } })).collect();
        json!({
            "metadata": { "name": "web", "namespace": "demo", "uid": "home-uid", "labels": { "app": "web", "app-x/y": "1" } },
            "spec": {
                "nodeName": "milan", "serviceAccountName": "reader",
                "initContainers": [{ "name": "i", "image": "x", "env": env }],
                "containers": [{ "name": "c", "image": "x", "env": env }],
                "volumes": [{ "name": "v", "downwardAPI": { "items": items } },
                    { "name": "w", "projected": { "sources": [{ "downwardAPI": { "items": items } }] } }],
            },
        })
    }

    fn rules() -> ProviderRules {
        ProviderRules { api_server: true, ..ProviderRules::default() }
    }

    fn remote(local: &Value) -> Value {
        remote_pod(&outgoing(local, &[].into()).unwrap(), &IDENTITY, &rules()).unwrap()
    }

    #[test]
    fn variables_hold_what_they_hold_at_home_and_addresses_are_those_of_the_pod_itself() {
        let own = ["metadata.name", "metadata.labels['app']", "status.podIP", "status.podIPs", "status.hostIP"];
        let mut env = vec![
            field("NAMESPACE", "metadata.namespace"),
            field("UID", "metadata.uid"),
            field("NODE", "spec.nodeName"),
            field("ACCOUNT", "spec.serviceAccountName"),
            json!({ "name": "ADDRESS", "value": "web.$(NAMESPACE).svc" }),
            json!({ "name": "CPU", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu" } } }),
        ];
        env.extend(own.map(|path| field("OWN", path)));
        let mut wanted = env.clone();
        wanted[0] = field("NAMESPACE", "metadata.labels['liqo.io/home-namespace']");
        wanted[1] = field("UID", "metadata.labels['liqo.io/shadow-pod']");
        wanted[2] = json!({ "name": "NODE", "value": "milan" });
        wanted[3] = json!({ "name": "ACCOUNT", "value": "reader" });
        let remote = remote(&local_pod(&env.into(), &json!([])));
        for list in ["initContainers", "containers"] {
            assert_eq!(remote["spec"][list][0]["env"], Value::from(wanted.clone()), "{list}");
        }
        let metadata = &remote["metadata"]["labels"];
        assert_eq!((&metadata["liqo.io/home-namespace"], &metadata["liqo.io/shadow-pod"]), (&json!("demo"), &json!("home-uid")));
        assert_eq!(remote["metadata"]["annotations"].get("liqo.io/home-labels"), None, "nobody reads it");
    }

    #[test]
    fn files_show_the_namespace_at_home_and_no_labels_of_liqo_and_follow_changes() {
        let paths = json!(["metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations", "metadata.name"]);
        let mut local = local_pod(&json!([]), &paths);
        let mut live = remote(&local);
        let of = |items: &Value| -> Vec<String> {
            let items = items.as_array().unwrap().iter();
            items.map(|item| text(item, "/fieldRef/fieldPath").unwrap().to_owned()).collect()
        };
        let wanted = [
            "metadata.labels['liqo.io/home-namespace']",
            "metadata.labels['liqo.io/shadow-pod']",
            "metadata.annotations['liqo.io/home-labels']",
            "metadata.annotations",
            "metadata.name",
        ];
        assert_eq!(of(&live["spec"]["volumes"][0]["downwardAPI"]["items"]), wanted);
        assert_eq!(of(&live["spec"]["volumes"][1]["projected"]["sources"][0]["downwardAPI"]["items"]), wanted);
        assert_eq!(live["metadata"]["annotations"]["liqo.io/home-labels"], "app=\"web\"\napp-x/y=\"1\"");

        local["metadata"]["labels"] = json!({ "app": "web", "tier": "2" });
        let carried = outgoing(&local, &[].into()).unwrap();
        let patch = remote_patch(&carried, &live, &rules(), true).unwrap();
        assert_eq!(patch["metadata"]["annotations"]["liqo.io/home-labels"], "app=\"web\"\ntier=\"2\"");
        json_patch::merge(&mut live, &patch);
        assert_eq!(remote_patch(&carried, &live, &rules(), true), None);
    }

    #[test]
    fn a_pod_that_uses_the_providers_api_server_reads_what_that_knows_of_it() {
        let env = ["metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName"].map(|path| field("X", path));
        let mut local = local_pod(&json!(env), &json!(["metadata.labels"]));
        local["metadata"]["annotations"] = json!({ annotations::API_SERVER: "remote" });
        let spec = remote(&local)["spec"].clone();
        assert_eq!(spec["containers"][0]["env"], json!(env));
        assert_eq!(spec["volumes"], local["spec"]["volumes"]);
    }
}

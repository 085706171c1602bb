//! The expected texts are answers of kube-apiserver 1.34.4.

use super::super::{defaults, known_fields};
use super::*;
use serde_json::json;

/// The causes of a refused object, as `field: message`.
fn refused(group: &str, mut object: Value) -> Vec<String> {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    known_fields::prune((&kind, group), &mut object);
    defaults::set_defaults(&kind, &mut object);
    defaults::prepare_for_create(&kind, &mut object);
    lines(validate_create(&kind, &object))
}

fn lines(causes: Vec<Cause>) -> Vec<String> {
    causes.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

fn meta() -> Value {
    json!({ "name": "x", "namespace": "t", "resourceVersion": "1" })
}

#[test]
fn a_pod_without_image_and_volume() {
    let container = json!({ "name": "c", "volumeMounts": [{ "name": "v", "mountPath": "/x" }] });
    let pod = json!({ "kind": "Pod", "metadata": { "name": "A", "namespace": "t" }, "spec": { "containers": [container] } });
    let name = "metadata.name: Invalid value: \"A\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
                characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used \
                for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    let others = ["spec.containers[0].image: Required value", "spec.containers[0].volumeMounts[0].name: Not found: \"v\""];
    assert_eq!(refused("", pod), [name, others[0], others[1]]);
}

#[test]
fn a_pod_keeps_what_it_runs() {
    let old = json!({ "metadata": meta(), "spec": { "containers": [{ "name": "c", "image": "a" }], "nodeName": "n" } });
    let mut new = old.clone();
    new["spec"]["nodeName"] = "m".into();
    let mut causes = Vec::new();
    pods::update(&mut causes, &old, &new);
    assert_eq!(causes.len(), 1);
    assert!(causes[0].message.starts_with("Forbidden: pod updates may not change fields other than `spec.containers[*]"));
    new["spec"] = old["spec"].clone();
    new["spec"]["containers"][0]["image"] = "b".into();
    causes.clear();
    pods::update(&mut causes, &old, &new);
    assert_eq!(causes, []);
}

#[test]
fn labels_are_checked_as_often_as_an_api_server_does() {
    let old = json!({ "metadata": meta() });
    let mut new = old.clone();
    new["metadata"]["finalizers"] = json!(["x"]);
    let detail = "Invalid value: \"x\": name is neither a standard finalizer name nor is it fully qualified";
    let twice = [format!("metadata.finalizers[0]: {detail}"), format!("metadata.finalizers[0]: {detail}")];
    assert_eq!(lines(validate_update("ConfigMap", &old, &new)), twice);
    new["metadata"] = meta();
    new["metadata"]["labels"] = json!({ "a b": "c" });
    assert_eq!(validate_update("ConfigMap", &old, &new).len(), 4);
}

#[test]
fn what_is_immutable() {
    let role = |name: &str| {
        let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name });
        json!({ "metadata": meta(), "roleRef": role })
    };
    let shown = "{\"APIGroup\":\"rbac.authorization.k8s.io\",\"Kind\":\"ClusterRole\",\"Name\":\"edit\"}";
    assert_eq!(
        lines(validate_update("RoleBinding", &role("view"), &role("edit"))),
        [format!("roleRef: Invalid value: {shown}: cannot change roleRef")]
    );
    let slice = |kind: &str| json!({ "metadata": meta(), "addressType": kind });
    assert_eq!(
        lines(validate_update("EndpointSlice", &slice("IPv4"), &slice("FQDN"))),
        ["addressType: Invalid value: \"FQDN\": field is immutable"]
    );
    let map = |immutable: bool, value: &str| json!({ "metadata": meta(), "immutable": immutable, "data": { "a": value } });
    assert_eq!(
        lines(validate_update("ConfigMap", &map(true, "b"), &map(false, "c"))),
        [
            "immutable: Forbidden: field is immutable when `immutable` is set",
            "data: Forbidden: field is immutable when `immutable` is set",
        ]
    );
}

#[test]
fn a_selector_must_match_its_template() {
    let spec = |label: &str| {
        json!({
            "selector": { "matchLabels": { "a": "b" } },
            "template": {
                "metadata": { "labels": { "a": label } },
                "spec": { "containers": [{ "name": "c", "image": "i" }] },
            },
        })
    };
    let set = |label: &str| json!({ "kind": "Deployment", "metadata": { "name": "d", "namespace": "t" }, "spec": spec(label) });
    assert_eq!(refused("apps", set("b")), Vec::<String>::new());
    let detail = "Invalid value: {\"a\":\"c\"}: `selector` does not match template `labels`";
    assert_eq!(refused("apps", set("c")), [format!("spec.template.metadata.labels: {detail}")]);
}

#[test]
fn services_and_slices() {
    let service = json!({ "kind": "Service", "metadata": { "name": "x", "namespace": "t" }, "spec": { "ports": [{}] } });
    let range = "must be between 1 and 65535, inclusive";
    assert_eq!(
        refused("", service),
        [
            format!("spec.ports[0].port: Invalid value: 0: {range}"),
            format!("spec.ports[0].targetPort: Invalid value: 0: {range}"),
        ]
    );
    let slice = |address: &str| {
        let endpoints = json!([{ "addresses": [address] }]);
        json!({ "kind": "EndpointSlice", "metadata": meta(), "addressType": "IPv4", "endpoints": endpoints })
    };
    assert_eq!(refused("discovery.k8s.io", slice("010.0.0.1")), Vec::<String>::new());
    assert_eq!(
        refused("discovery.k8s.io", slice("169.254.0.1")),
        ["endpoints[0].addresses[0]: Invalid value: \"169.254.0.1\": may not be in the link-local range (169.254.0.0/16, \
             fe80::/10)",]
    );
}

#[test]
fn an_event_is_where_its_object_is() {
    let event = json!({ "kind": "Event", "metadata": meta(), "involvedObject": { "namespace": "q" } });
    let detail = "Invalid value: \"q\": does not match event.namespace";
    assert_eq!(refused("", event), [format!("involvedObject.namespace: {detail}")]);
}

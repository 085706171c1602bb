//! The expected causes are those of kube-apiserver 1.34.4.

use serde_json::json;

use super::*;
use crate::api_server::{defaults, known_fields};

/// The causes of a refused new object, as `Invalid spec.field`.
fn refused(group: &str, mut object: Value) -> Vec<String> {
    let kind = object["kind"].as_str().unwrap().to_owned();
    known_fields::prune((&kind, group), &mut object);
    defaults::set_defaults(&kind, &mut object);
    defaults::prepare_for_create(&kind, &mut object);
    lines(&validate_create(&kind, &object))
}

fn lines(causes: &[Cause]) -> Vec<String> {
    let mut lines: Vec<String> = causes
        .iter()
        .map(|cause| format!("{:?} {}", cause.kind, cause.field))
        .collect();
    lines.sort();
    lines.dedup();
    lines
}

fn metadata() -> Value {
    json!({ "name": "x", "namespace": "t", "resourceVersion": "1" })
}

#[test]
fn names_have_the_form_of_their_kind() {
    for (rule, good, bad) in [
        (
            names::SUBDOMAIN,
            &["a", "a.b-c.1"][..],
            &["", "A", "a..b", "-a", "a-", "a_b"][..],
        ),
        (names::LABEL, &["a", "1-b"], &["a.b", "a_b"]),
        (names::SERVICE, &["a1"], &["1a"]),
        (
            names::PATH_SEGMENT,
            &["A:b", "a_b"],
            &[".", "..", "a/b", "a%b"],
        ),
        (
            names::QUALIFIED,
            &["a", "A_b.c", "example.com/a"],
            &["", "/a", "a/", "a/b/c", "A.com/b", "bad key!"],
        ),
        (names::ANNOTATION, &["Example.com/a"], &["/x"]),
        (names::LABEL_VALUE, &["", "a_B.c"], &["a ", "-a"]),
        (
            names::CONFIG_KEY,
            &["a.b", "-", "A_b"],
            &["", ".", "..a", "a/b"],
        ),
    ] {
        assert!(good.iter().all(|name| rule.fits(name)), "{}", rule.text);
        assert!(!bad.iter().any(|name| rule.fits(name)), "{}", rule.text);
    }
    assert!(names::LABEL.fits(&"x".repeat(63)) && !names::LABEL.fits(&"x".repeat(64)));
    assert_eq!(
        [
            names::generated("web-"),
            names::generated("web"),
            names::generated("-")
        ],
        ["wea", "web", "-"]
    );
}

#[test]
fn a_pod_without_image_and_volume() {
    let container = json!({ "name": "c", "volumeMounts": [{ "name": "v", "mountPath": "/x" }] });
    let pod = json!({ "kind": "Pod", "metadata": { "name": "A", "namespace": "t" }, "spec": { "containers": [container] } });
    let expected = [
        "Invalid metadata.name",
        "NotFound spec.containers[0].volumeMounts[0].name",
        "Required spec.containers[0].image",
    ];
    assert_eq!(refused("", pod), expected);
}

#[test]
fn a_pod_keeps_what_it_runs() {
    let old = json!({ "metadata": metadata(), "spec": { "containers": [{ "name": "c", "image": "a" }], "nodeName": "n" } });
    let changed = |spec: &Value| {
        let mut new = old.clone();
        replace_fields(&mut new["spec"], spec);
        lines(&validate_update("Pod", &old, &new))
    };
    assert_eq!(changed(&json!({ "nodeName": "m" })), ["Forbidden spec"]);
    assert_eq!(
        changed(&json!({ "containers": [{ "name": "c", "image": "b" }] })),
        Vec::<String>::new()
    );
    assert_eq!(
        changed(&json!({ "containers": [] })),
        ["Forbidden spec.containers", "Required spec.containers"]
    );
    assert_eq!(
        changed(&json!({ "tolerations": [{ "key": "a", "operator": "Exists" }] })),
        Vec::<String>::new()
    );
}

/// Replaces fields.
fn replace_fields(object: &mut Value, fields: &Value) {
    for (field, value) in fields.as_object().into_iter().flatten() {
        object[field] = value.clone();
    }
}

#[test]
fn requests_are_positive_and_within_limits() {
    let pod = |resources: Value| {
        let container = json!({ "name": "c", "image": "i", "resources": resources });
        json!({ "kind": "Pod", "metadata": metadata(), "spec": { "containers": [container] } })
    };
    let resources = json!({ "requests": { "cpu": "2", "memory": "-1" }, "limits": { "cpu": "1" } });
    let path = "spec.containers[0].resources.requests";
    assert_eq!(
        refused("", pod(resources)),
        [format!("Invalid {path}"), format!("Invalid {path}[memory]")]
    );
}

#[test]
fn what_is_immutable() {
    let role = |name: &str| json!({ "metadata": metadata(), "roleRef": { "kind": "ClusterRole", "name": name } });
    assert_eq!(
        lines(&validate_update(
            "RoleBinding",
            &role("view"),
            &role("edit")
        )),
        ["Invalid roleRef"]
    );
    let map = |immutable: bool, value: &str| json!({ "metadata": metadata(), "immutable": immutable, "data": { "a": value } });
    let expected = ["Forbidden data", "Forbidden immutable"];
    assert_eq!(
        lines(&validate_update(
            "ConfigMap",
            &map(true, "b"),
            &map(false, "c")
        )),
        expected
    );
    let claim =
        |class: &str| json!({ "metadata": metadata(), "spec": { "storageClassName": class } });
    assert_eq!(
        lines(&validate_update(
            "PersistentVolumeClaim",
            &claim("a"),
            &claim("b")
        )),
        ["Forbidden spec"]
    );
    let service = |address: &str| json!({ "metadata": metadata(), "spec": { "ports": [{ "port": 1 }], "clusterIPs": [address] } });
    let moved = validate_update("Service", &service("10.96.0.1"), &service("10.96.0.2"));
    assert_eq!(lines(&moved), ["Invalid spec.clusterIPs[0]"]);
}

#[test]
fn a_job_stays_as_it_is() {
    let job = |image: &str, name: &str| {
        let mut job = json!({
            "kind": "Job", "metadata": metadata(),
            "spec": { "template": { "spec": { "restartPolicy": "Never", "containers": [{ "name": name, "image": image }] } } },
        });
        defaults::complete_job(&mut job, "uid");
        job["metadata"]["uid"] = "uid".into();
        job
    };
    assert_eq!(
        lines(&validate_create("Job", &job("a", "c"))),
        Vec::<String>::new()
    );
    assert_eq!(
        lines(&validate_update("Job", &job("a", "c"), &job("b", "c"))),
        ["Invalid spec.template"]
    );
}

#[test]
fn a_selector_must_match_its_template() {
    let deployment = |label: &str| {
        json!({ "kind": "Deployment", "metadata": metadata(), "spec": {
            "selector": { "matchLabels": { "a": "b" } },
            "template": { "metadata": { "labels": { "a": label } }, "spec": { "containers": [{ "name": "c", "image": "i" }] } },
        } })
    };
    assert_eq!(refused("apps", deployment("b")), Vec::<String>::new());
    assert_eq!(
        refused("apps", deployment("c")),
        ["Invalid spec.template.metadata.labels"]
    );
}

#[test]
fn an_event_is_where_its_object_is() {
    let event =
        json!({ "kind": "Event", "metadata": metadata(), "involvedObject": { "namespace": "q" } });
    assert_eq!(refused("", event), ["Invalid involvedObject.namespace"]);
}

#[test]
fn what_is_being_deleted_gets_no_new_finalizers() {
    let mut old = json!({ "metadata": metadata() });
    old["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let mut new = old.clone();
    new["metadata"]["finalizers"] = json!(["x"]);
    let expected = [
        "Forbidden metadata.finalizers",
        "Invalid metadata.finalizers[0]",
    ];
    assert_eq!(lines(&validate_update("ConfigMap", &old, &new)), expected);
    assert_eq!(lines(&validate_update("", &old, &new)), expected[..1]);
}

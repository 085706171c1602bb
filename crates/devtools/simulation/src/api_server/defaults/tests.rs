//! The expected objects are answers of kube-apiserver 1.34.4.

use super::super::known_fields::prune;
use super::*;

fn created(group: &str, mut object: Value) -> Value {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    assert_eq!(
        prune((&kind, group), &mut object),
        super::super::known_fields::Pruned::default()
    );
    set_defaults(&kind, &mut object);
    admit_create(&kind, &mut object);
    prepare_for_create(&kind, &mut object);
    if kind == "Job" {
        complete_job(&mut object, "the-uid");
    }
    canonicalize(&kind, &mut object);
    prune((&kind, group), &mut object);
    object
}

#[test]
fn a_new_pod() {
    let given = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" },
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "c", "image": "nginx", "ports": [{ "containerPort": 80 }], "command": [],
                "resources": { "limits": { "cpu": "1000m" } },
            }],
            "volumes": [{ "name": "s", "secret": { "secretName": "x" } }],
        },
    });
    let lost = |key: &str| json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 });
    let answer = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web", "generation": 1 },
        "spec": {
            "volumes": [{ "name": "s", "secret": { "secretName": "x", "defaultMode": 420 } }],
            "containers": [{
                "name": "c", "image": "nginx", "ports": [{ "containerPort": 80, "protocol": "TCP" }],
                "resources": { "limits": { "cpu": "1" }, "requests": { "cpu": "1" } },
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "imagePullPolicy": "Always",
            }],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default", "serviceAccount": "default", "automountServiceAccountToken": false,
            "securityContext": {}, "schedulerName": "default-scheduler", "priority": 0, "enableServiceLinks": true,
            "preemptionPolicy": "PreemptLowerPriority",
            "tolerations": [lost("node.kubernetes.io/not-ready"), lost("node.kubernetes.io/unreachable")],
        },
        "status": { "phase": "Pending", "qosClass": "Burstable" },
    });
    assert_eq!(created("", given), answer);
}

#[test]
fn a_new_job_gets_its_selector() {
    let given = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "j" },
        "spec": { "template": { "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "a:1" }] } } },
    });
    let labels = json!({
        "batch.kubernetes.io/controller-uid": "the-uid", "batch.kubernetes.io/job-name": "j",
        "controller-uid": "the-uid", "job-name": "j",
    });
    let answer = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "j", "generation": 1, "labels": labels },
        "spec": {
            "parallelism": 1, "completions": 1, "backoffLimit": 6, "manualSelector": false, "suspend": false,
            "selector": { "matchLabels": { "batch.kubernetes.io/controller-uid": "the-uid" } },
            "template": { "metadata": { "labels": labels }, "spec": {
                "containers": [{
                    "name": "c", "image": "a:1", "resources": {}, "imagePullPolicy": "IfNotPresent",
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                }],
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
                "securityContext": {}, "schedulerName": "default-scheduler",
            } },
            "completionMode": "NonIndexed", "podReplacementPolicy": "TerminatingOrFailed",
        },
        "status": {},
    });
    assert_eq!(created("batch", given), answer);
}

#[test]
fn a_service_loses_its_ports_of_nodes_with_its_type() {
    let mut old =
        json!({ "type": "NodePort", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"] });
    old["ports"] = json!([{ "port": 80, "protocol": "TCP", "targetPort": 80, "nodePort": 30000 }]);
    old["externalTrafficPolicy"] = "Cluster".into();
    let mut new = json!({ "spec": old });
    new["spec"]["type"] = "ClusterIP".into();
    prepare_for_update("Service", &json!({ "metadata": {}, "spec": old }), &mut new);
    assert_eq!(
        new["spec"]["ports"],
        json!([{ "port": 80, "protocol": "TCP", "targetPort": 80 }])
    );
    assert_eq!(new["spec"].get("externalTrafficPolicy"), None);
}

#[test]
fn the_generation_counts_changes_of_the_spec() {
    let old = json!({ "metadata": { "generation": 3, "uid": "u" }, "spec": { "replicas": 1 }, "status": { "replicas": 1 } });
    let mut new =
        json!({ "metadata": { "generation": 9 }, "spec": { "replicas": 2 }, "status": {} });
    prepare_for_update("ReplicaSet", &old, &mut new);
    let kept = json!({ "metadata": { "generation": 4, "uid": "u" }, "spec": { "replicas": 2 }, "status": { "replicas": 1 } });
    assert_eq!(new, kept);
    new["spec"] = json!({});
    new["metadata"]["labels"] = json!({ "a": "b" });
    prepare_for_subresource("ReplicaSet", "status", &kept, &mut new);
    assert_eq!(new["spec"], kept["spec"]);
    assert_eq!(
        new["metadata"],
        json!({ "generation": 4, "uid": "u", "labels": { "a": "b" } })
    );
}

#[test]
fn images_are_pulled_by_their_tag() {
    let policy = |image: &str| {
        let given =
            json!({ "kind": "Pod", "spec": { "containers": [{ "name": "c", "image": image }] } });
        created("", given)["spec"]["containers"][0]["imagePullPolicy"].clone()
    };
    for image in ["a", "a:5000/b", "a:latest", "REG.io/foo"] {
        assert_eq!(policy(image), "Always", "{image}");
    }
    let digest = format!("a@sha256:{}", "a".repeat(64));
    for image in ["a:1", "a/B", "x y", "", "-a", digest.as_str()] {
        assert_eq!(policy(image), "IfNotPresent", "{image}");
    }
}

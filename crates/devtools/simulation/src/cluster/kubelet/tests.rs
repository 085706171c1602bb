use super::{
    super::testing::{Cluster, annotated, pod},
    *,
};

fn with_pod(annotations: &[(&str, &str)], spec: &Value) -> Cluster {
    let mut cluster = Cluster::with_nodes(&["n1"]);
    cluster.add("pods", pod("p", &annotated(annotations), spec));
    cluster.settle();
    cluster
}

fn phase_of(cluster: &Cluster) -> String {
    text(&cluster.object("pods", "p")["status"]["phase"]).to_owned()
}

fn container(cluster: &Cluster) -> Value {
    cluster.object("pods", "p")["status"]["containerStatuses"][0].clone()
}

#[test]
fn a_pod_starts_and_becomes_ready_in_its_own_time() {
    let mut cluster = with_pod(
        &[("start-seconds", "3"), ("ready-seconds", "5")],
        &json!({ "initContainers": [{ "name": "i" }] }),
    );
    assert_eq!(
        container(&cluster)["state"]["waiting"]["reason"],
        "PodInitializing"
    );
    cluster.pass(2);
    assert_eq!(phase_of(&cluster), "Pending");
    cluster.pass(1);
    let status = cluster.object("pods", "p")["status"].clone();
    assert_eq!(
        (
            phase_of(&cluster).as_str(),
            &status["podIP"],
            &status["hostIP"]
        ),
        ("Running", &json!("10.244.0.2"), &json!("192.168.0.1"))
    );
    assert_eq!(
        status["initContainerStatuses"][0]["state"]["terminated"]["reason"],
        "Completed"
    );
    assert_eq!(
        condition(&cluster.object("pods", "p"), "Ready")["message"],
        "containers with unready status: [c]"
    );
    cluster.pass(5);
    assert!(is_true(&cluster.object("pods", "p"), "Ready") && container(&cluster)["ready"] == true);
}

#[test]
fn a_pod_that_exits_succeeds_or_fails() {
    for (code, phase, reason) in [("0", "Succeeded", "Completed"), ("3", "Failed", "Error")] {
        let mut cluster = with_pod(
            &[("run-seconds", "10"), ("exit-code", code)],
            &json!({ "restartPolicy": "Never" }),
        );
        cluster.pass(11);
        let ended = &container(&cluster)["state"]["terminated"];
        assert_eq!(
            (phase_of(&cluster).as_str(), ended["reason"].as_str()),
            (phase, Some(reason))
        );
        assert_eq!(
            (&ended["startedAt"], &ended["finishedAt"]),
            (
                &json!("2026-01-01T00:00:01Z"),
                &json!("2026-01-01T00:00:11Z")
            )
        );
        assert!(!is_true(&cluster.object("pods", "p"), "Ready"));
    }
}

#[test]
fn a_container_that_crashes_starts_again_later_and_later() {
    let mut cluster = with_pod(&[("crash", "5")], &json!({}));
    let mut starts = Vec::new();
    cluster.pass_and(100, |cluster| {
        let start = container(cluster)["state"]["running"]["startedAt"].clone();
        if !start.is_null() && starts.last() != Some(&start) {
            starts.push(start);
        }
    });
    // After 1, 10, 20 and 40 seconds.
    assert_eq!(
        starts,
        ["00:01", "00:07", "00:22", "00:47", "01:32"]
            .map(|start| format!("2026-01-01T00:{start}Z"))
    );
    assert_eq!(
        container(&cluster)["state"]["waiting"]["reason"],
        "CrashLoopBackOff"
    );
    assert_eq!(
        (
            container(&cluster)["restartCount"].as_i64(),
            phase_of(&cluster).as_str()
        ),
        (Some(4), "Running")
    );
    assert_eq!(
        container(&cluster)["lastState"]["terminated"]["exitCode"],
        1
    );
}

#[test]
fn on_failure_a_container_starts_again_only_after_a_failure() {
    let mut cluster = with_pod(
        &[("run-seconds", "5")],
        &json!({ "restartPolicy": "OnFailure" }),
    );
    cluster.pass(10);
    assert_eq!(phase_of(&cluster), "Succeeded");
    let mut cluster = with_pod(&[("crash", "5")], &json!({ "restartPolicy": "OnFailure" }));
    cluster.pass(10);
    assert_eq!(
        (
            phase_of(&cluster).as_str(),
            container(&cluster)["restartCount"].as_i64()
        ),
        ("Running", Some(1))
    );
}

#[test]
fn a_pod_without_its_image_waits_for_ever() {
    let mut cluster = with_pod(&[("image-missing", "true")], &json!({}));
    cluster.pass(1);
    assert_eq!(
        container(&cluster)["state"]["waiting"]["reason"],
        "ErrImagePull"
    );
    cluster.pass(100);
    assert_eq!(
        container(&cluster)["state"]["waiting"]["reason"],
        "ImagePullBackOff"
    );
    cluster.delete("pods", "p", None);
    cluster.settle();
    assert!(cluster.pods().is_empty());
}

#[test]
fn a_pod_waits_for_what_it_reads() {
    let optional = json!({ "name": "o", "configMap": { "name": "o", "optional": true } });
    let volumes = json!([{ "name": "v", "secret": { "secretName": "s" } }, optional]);
    let env =
        json!([{ "name": "E", "valueFrom": { "configMapKeyRef": { "name": "m", "key": "k" } } }]);
    let containers = json!([{ "name": "c", "image": "web:1", "env": env }]);
    let mut cluster = with_pod(
        &[],
        &json!({ "volumes": volumes, "containers": containers }),
    );
    cluster.pass(10);
    assert_eq!(
        container(&cluster)["state"]["waiting"]["reason"],
        "ContainerCreating"
    );
    cluster.add("secrets", json!({ "metadata": { "name": "s" } }));
    cluster.settle();
    assert_eq!(
        container(&cluster)["state"]["waiting"]["message"],
        "configmap \"m\" not found"
    );
    cluster.add(
        "configmaps",
        json!({ "metadata": { "name": "m" }, "data": { "other": "" } }),
    );
    cluster.settle();
    let waiting = container(&cluster)["state"]["waiting"].clone();
    assert_eq!(waiting["reason"], "CreateContainerConfigError");
    assert_eq!(
        waiting["message"],
        "couldn't find key k in ConfigMap default/m"
    );
    cluster.change("configmaps", "m", |map| map["data"]["k"] = json!(""));
    cluster.settle();
    assert_eq!(phase_of(&cluster), "Running");
}

#[test]
fn a_pod_with_grace_ends_in_its_own_time() {
    for (stop, seconds, phase) in [("8", 8, "Succeeded"), ("99", 30, "Failed")] {
        let mut cluster = with_pod(&[("stop-seconds", stop)], &json!({}));
        cluster.pass(5);
        cluster.delete("pods", "p", None);
        cluster.pass(seconds - 1);
        assert_eq!(phase_of(&cluster), "Running");
        let mut phases = Vec::new();
        cluster.pass_and(1, |cluster| phases.push(phase_of(cluster)));
        // The last status comes before the end.
        assert_eq!(phases, [phase, ""]);
    }
}

#[test]
fn an_address_is_used_again_when_its_pod_has_ended() {
    let mut cluster = with_pod(
        &[("run-seconds", "10")],
        &json!({ "restartPolicy": "Never" }),
    );
    cluster.pass(1);
    for name in ["q", "r"] {
        cluster.add("pods", pod(name, &json!({}), &json!({})));
        cluster.pass(10);
    }
    let address = |name: &str| cluster.object("pods", name)["status"]["podIP"].clone();
    assert_eq!(
        (address("p"), address("q"), address("r")),
        (
            json!("10.244.0.2"),
            json!("10.244.0.3"),
            json!("10.244.0.2")
        )
    );
}

#[test]
fn a_pod_is_ended_by_its_deadline() {
    let mut cluster = with_pod(&[], &json!({ "activeDeadlineSeconds": 20 }));
    cluster.pass(30);
    let status = &cluster.object("pods", "p")["status"];
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Failed"), &json!("DeadlineExceeded"))
    );
}

#[test]
fn a_lease_is_renewed_every_ten_seconds() {
    let mut cluster = Cluster::with_nodes(&["n1"]);
    let mut writes = 0;
    cluster.pass_and(60, |_| writes += 1);
    assert_eq!(writes, 6);
}

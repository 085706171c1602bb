use serde_json::json;

use super::*;
use crate::json::{items_at, text_at};

const THEN: &str = "2026-01-01T00:00:00Z";
const NOW: &str = "2026-01-01T01:00:00Z";

fn find_condition<'a>(pod: &'a Value, list: &str, kind: &str) -> Option<&'a Value> {
    items_at(pod, list)
        .iter()
        .find(|condition| text_at(condition, "/type") == Some(kind))
}

fn link() -> RemotePodView<'static> {
    RemotePodView {
        pod_ips: &[],
        host_ip: "10.0.0.5".parse().ok(),
        peer_answers: true,
        amiss: None,
        now: NOW.parse().unwrap(),
    }
}

fn running(name: &str) -> Value {
    json!({"name": name, "image": "nginx:1", "imageID": "sha", "ready": true, "started": true, "restartCount": 0, "state": {"running": {"startedAt": THEN}}})
}

fn ended(name: &str, exit_code: i64) -> Value {
    json!({"name": name, "image": "nginx:1", "imageID": "sha", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": exit_code, "reason": "Completed", "startedAt": THEN, "finishedAt": NOW}}})
}

/// The local pod right after the scheduler bound it.
fn home() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "demo"},
        "spec": {"restartPolicy": "Always", "containers": [{"name": "c"}], "initContainers": [{"name": "i"}]},
        "status": {"phase": "Pending", "qosClass": "BestEffort", "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": THEN}]}
    })
}

fn condition_of(kind: &str, status: &str) -> Value {
    json!({"type": kind, "status": status, "lastTransitionTime": THEN})
}

fn remote() -> Value {
    let conditions = [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ]
    .map(|kind| condition_of(kind, "True"));
    reduce_status(
        &json!({"status": {"phase": "Running", "startTime": THEN, "podIP": "10.244.0.9", "hostIP": "192.168.0.1", "qosClass": "Burstable",
        "conditions": conditions, "containerStatuses": [running("c")], "initContainerStatuses": [ended("i", 0)]}}),
    )
}

/// The API server's result of a patch, with its rules for lists that are merged by a key.
fn apply(pod: &mut Value, patch: &Value) {
    let mut patch = patch.clone();
    let mut conditions = items_at(pod, "/status/conditions").to_vec();
    for condition in items_at(&patch, "/status/conditions") {
        conditions.retain(|before| before["type"] != condition["type"]);
        if condition["$patch"] != "delete" {
            conditions.push(condition.clone());
        }
    }
    patch["status"]["conditions"] = conditions.into();
    for list in ["podIPs", "hostIPs"] {
        if let Some(addresses) = patch["status"].get_mut(list).and_then(Value::as_array_mut) {
            assert_eq!(addresses.remove(0), json!({"$patch": "replace"}));
        }
    }
    json_patch::merge(pod, &patch);
}

/// The local pod after a merge; also checks that a second merge writes nothing.
fn merged_with(mut home: Value, remote: &Value, link: &RemotePodView) -> Value {
    if let Some(patch) = local_status_patch(&home, remote, link) {
        apply(&mut home, &patch);
        assert_eq!(
            local_status_patch(&home, remote, link),
            None,
            "the second time"
        );
    }
    home
}

fn merged(remote: &Value) -> Value {
    merged_with(home(), remote, &link())
}

fn says(pod: &Value, kind: &str) -> Value {
    find_condition(pod, "/status/conditions", kind)
        .map_or(Value::Null, |condition| condition["status"].clone())
}

#[test]
fn phase_reason_message_and_start_time_are_the_remote_ones() {
    let mut remote = remote();
    remote["phase"] = json!("Failed");
    remote["reason"] = json!("Evicted");
    remote["message"] = json!("the node was low on memory");
    let status = merged(&remote)["status"].clone();
    assert_eq!(
        (&status["phase"], &status["reason"], &status["startTime"]),
        (&json!("Failed"), &json!("Evicted"), &json!(THEN))
    );
    assert_eq!(status["message"], "the node was low on memory");
}

#[test]
fn a_reason_that_is_gone_is_removed() {
    let mut home = home();
    home["status"]["reason"] = json!("Old");
    assert_eq!(
        merged_with(home, &remote(), &link())["status"].get("reason"),
        None
    );
}

#[test]
fn the_start_time_is_written_once_and_never_from_the_future() {
    let mut remote = remote();
    remote["startTime"] = json!("2031-01-01T00:00:00Z");
    let home = merged(&remote);
    assert_eq!(home["status"]["startTime"], NOW);
    remote["startTime"] = json!(THEN);
    assert_eq!(local_status_patch(&home, &remote, &link()), None);
}

#[test]
fn times_of_containers_are_never_from_the_future_and_are_written_once() {
    let later = |seconds: i64| {
        seconds_timestamp(
            NOW.parse::<Timestamp>().unwrap() + jiff::SignedDuration::from_secs(seconds),
        )
    };
    let at = |seconds: i64| RemotePodView {
        now: NOW.parse::<Timestamp>().unwrap() + jiff::SignedDuration::from_secs(seconds),
        ..link()
    };
    // The provider's clock is five minutes ahead.
    let mut remote = remote();
    remote["containerStatuses"][0]["containerID"] = json!("containerd://1");
    remote["containerStatuses"][0]["state"] = json!({"running": {"startedAt": later(300)}});
    let pod = merged_with(home(), &remote, &at(0));
    assert_eq!(
        pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"],
        NOW
    );
    assert_eq!(
        local_status_patch(&pod, &remote, &at(20)),
        None,
        "nothing changed"
    );
    assert_eq!(
        local_status_patch(&pod, &remote, &at(900)),
        None,
        "the time has come, and nothing changed"
    );
    remote["containerStatuses"][0]["state"] = json!({"terminated":
        {"exitCode": 1, "startedAt": later(300), "finishedAt": later(340), "containerID": "containerd://1"}});
    let pod = merged_with(pod, &remote, &at(41));
    let ended = pod["status"]["containerStatuses"][0]["state"]["terminated"].clone();
    assert_eq!(
        (&ended["startedAt"], &ended["finishedAt"]),
        (&json!(NOW), &later(41))
    );
    // The container of the next try has times of its own.
    remote["containerStatuses"][0]["lastState"] = remote["containerStatuses"][0]["state"].clone();
    remote["containerStatuses"][0]["containerID"] = json!("containerd://2");
    remote["containerStatuses"][0]["state"] = json!({"running": {"startedAt": later(350)}});
    let status = merged_with(pod, &remote, &at(51))["status"]["containerStatuses"][0].clone();
    assert_eq!(
        (
            &status["lastState"]["terminated"],
            &status["state"]["running"]["startedAt"]
        ),
        (&ended, &later(51))
    );
}

#[test]
fn container_statuses_are_those_of_containers_that_the_home_spec_has() {
    let mut remote = remote();
    remote["containerStatuses"] = json!([running("stranger"), running("c")]);
    remote["initContainerStatuses"] = json!([ended("i", 0), ended("stranger", 0)]);
    remote["ephemeralContainerStatuses"] = json!([running("debug")]);
    let status = merged(&remote)["status"].clone();
    assert_eq!(status["containerStatuses"], json!([running("c")]));
    assert_eq!(status["initContainerStatuses"], json!([ended("i", 0)]));
    assert_eq!(status.get("ephemeralContainerStatuses"), None);
}

#[test]
fn statuses_are_in_the_order_of_a_kubelet() {
    let mut home = home();
    home["spec"]["containers"] = json!([{"name": "main"}, {"name": "database"}]);
    home["spec"]["initContainers"] = json!([{"name": "second"}, {"name": "first"}]);
    let mut remote = remote();
    remote["containerStatuses"] = json!([ended("database", 0), ended("main", 3)]);
    remote["initContainerStatuses"] = json!([ended("second", 0), ended("first", 0)]);
    let status = merged_with(home, &remote, &link())["status"].clone();
    let names = |list: &str| {
        items_at(&status, list)
            .iter()
            .map(|one| one["name"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("/containerStatuses"), ["database", "main"]);
    assert_eq!(names("/initContainerStatuses"), ["second", "first"]);
}

#[test]
fn the_ends_of_containers_that_come_after_that_of_the_pod_are_added_and_nothing_else() {
    let mut early = remote();
    early["phase"] = json!("Failed");
    early["reason"] = json!("Evicted");
    early["containerStatuses"] = json!([{"name": "c", "image": "nginx:1", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ContainerCreating"}}}]);
    let home = merged(&early);
    assert!(lacks_ends(&home));
    let mut late = early.clone();
    late["containerStatuses"] = json!([ended("c", 137)]);
    late["reason"] = json!("Other");
    assert_eq!(with_late_ends(&early, &late).unwrap()["reason"], "Evicted");
    assert_eq!(with_late_ends(&late, &late), None);
    let home = merged_with(home, &late, &link());
    assert_eq!(
        home["status"]["containerStatuses"],
        json!([ended("c", 137)])
    );
    assert_eq!(
        (&home["status"]["reason"], lacks_ends(&home)),
        (&json!("Evicted"), false)
    );
    // What is known of an end stays.
    late["containerStatuses"] = json!([ended("c", 0)]);
    assert_eq!(local_status_patch(&home, &late, &link()), None);
    late["phase"] = json!("Succeeded");
    assert_eq!(with_late_ends(&early, &late), None);
}

#[test]
fn what_ended_a_pod_comes_home_with_its_end_and_no_sooner() {
    let caused = |reason: &str, phase: &str, is_target: &str| {
        let conditions = json!([{"type": "DisruptionTarget", "status": is_target, "reason": reason, "message": "drained"}]);
        reduce_status(&json!({"status": {"phase": phase, "conditions": conditions}}))
    };
    let status = |phase: &str, is_target: &str| caused("EvictionByEvictionAPI", phase, is_target);
    assert_eq!(
        status("Running", "True").get("conditions"),
        None,
        "it is not worth a write of its own"
    );
    // An eviction, a preemption, a taint, a node that is gone, and node pressure or shutdown.
    for reason in [
        "EvictionByEvictionAPI",
        "PreemptionByScheduler",
        "DeletionByTaintManager",
        "DeletionByPodGC",
        "TerminationByKubelet",
    ] {
        let pod = merged(&caused(reason, "Failed", "True"));
        let shown = find_condition(&pod, "/status/conditions", "DisruptionTarget").unwrap();
        assert_eq!(
            (&shown["status"], &shown["reason"]),
            (&json!("True"), &json!(reason))
        );
    }
    assert_eq!(
        says(&merged(&status("Failed", "False")), "DisruptionTarget"),
        Value::Null
    );
    // Whatever a provider sends.
    let mut early = status("Failed", "True");
    early["phase"] = json!("Running");
    assert_eq!(says(&merged(&early), "DisruptionTarget"), Value::Null);
}

#[test]
fn an_ephemeral_container_is_shown_and_never_runs_again() {
    let mut home = home();
    home["spec"]["ephemeralContainers"] = json!([{"name": "debug", "image": "busybox"}]);
    let mut remote = remote();
    remote["ephemeralContainerStatuses"] = json!([running("debug"), running("stranger")]);
    let mut pod = merged_with(home, &remote, &link());
    assert_eq!(
        pod["status"]["ephemeralContainerStatuses"],
        json!([running("debug")])
    );
    pod["status"]["ephemeralContainerStatuses"] = json!([ended("debug", 0)]);
    assert_eq!(
        local_status_patch(&pod, &remote, &link()),
        None,
        "the API server would refuse it"
    );
}

#[test]
fn conditions_of_the_kubelet_are_the_remote_ones() {
    let pod = merged(&remote());
    for kind in [
        "Initialized",
        "PodReadyToStartContainers",
        "ContainersReady",
        "Ready",
    ] {
        assert_eq!(says(&pod, kind), "True", "{kind}");
    }
}

#[test]
fn the_quality_of_service_class_is_never_sent() {
    let patch = local_status_patch(&home(), &remote(), &link()).unwrap();
    assert_eq!(patch["status"].get("qosClass"), None);
}

#[test]
fn a_container_shows_those_amounts_that_its_spec_names_as_far_as_they_are_credible() {
    let shown = |spec: Value, before: Value, said: Value| {
        let (mut home, mut remote) = (home(), remote());
        home["spec"]["containers"][0]["resources"] = spec;
        if before.is_object() {
            home["status"]["containerStatuses"] = json!([running("c")]);
            home["status"]["containerStatuses"][0]["resources"] = before;
        }
        remote["resize"] = json!("Proposed");
        remote["containerStatuses"][0]["resources"] = said;
        let reported = reduce_status(&json!({ "status": remote }));
        let pod = merged_with(home, &reported, &link());
        assert_eq!(pod["status"].get("resize"), None);
        pod["status"]["containerStatuses"][0]
            .get("resources")
            .cloned()
    };
    let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
    let remote_ones = json!({"requests": {"cpu": "1", "memory": "32Mi"}, "limits": {"cpu": "2"}});
    assert_eq!(
        shown(cpu("1"), Value::Null, remote_ones.clone()),
        Some(cpu("1")),
        "not the defaults of the provider"
    );
    assert_eq!(
        shown(json!({}), Value::Null, remote_ones),
        Some(json!({})),
        "without it the API server refuses to resize"
    );
    assert_eq!(
        shown(cpu("1"), cpu("3"), cpu("3")),
        Some(cpu("3")),
        "it has not become smaller yet"
    );
    assert_eq!(
        shown(cpu("10m"), Value::Null, cpu("20m")),
        Some(cpu("20m")),
        "kernels round"
    );
    assert_eq!(
        shown(cpu("1"), cpu("1"), cpu("64")),
        Some(json!({})),
        "the home cluster would count it"
    );
    assert_eq!(shown(cpu("1"), Value::Null, cpu("much")), Some(json!({})));
    assert_eq!(shown(cpu("1"), Value::Null, cpu("-1")), Some(json!({})));
    assert_eq!(
        shown(cpu("1"), Value::Null, Value::Null),
        None,
        "a kubelet that cannot resize reports none"
    );
}

/// A container that runs, with what else its kubelet reports.
#[test]
fn what_is_allocated_to_a_container_is_shown_by_the_same_rule_as_its_resources() {
    let shown = |before: Value, said: Value| {
        let (mut home, mut remote) = (home(), remote());
        home["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
        home["status"]["containerStatuses"] = json!([running("c")]);
        home["status"]["containerStatuses"][0]["allocatedResources"] = before;
        remote["containerStatuses"][0]["allocatedResources"] = said;
        let pod = merged_with(home, &reduce_status(&json!({ "status": remote })), &link());
        pod["status"]["containerStatuses"][0]
            .get("allocatedResources")
            .cloned()
    };
    let cpu = |amount: &str| json!({"cpu": amount});
    assert_eq!(
        shown(cpu("1"), json!({"cpu": "2", "memory": "32Mi"})),
        Some(cpu("2")),
        "not the defaults of the provider"
    );
    assert_eq!(
        shown(cpu("3"), cpu("3")),
        Some(cpu("3")),
        "it has not become smaller yet"
    );
    for amount in ["64", "-1"] {
        assert_eq!(
            shown(cpu("1"), cpu(amount)),
            None,
            "the home cluster would count it"
        );
    }
}

fn detailed() -> Value {
    let mut status = running("c");
    status["containerID"] = json!("containerd://abc");
    status["allocatedResources"] = json!({"cpu": "100m", "example.com/gpu": "1"});
    status["resources"] = json!({"limits": {"cpu": "100m"}});
    status["volumeMounts"] = json!([{"name": "tmp", "mountPath": "/tmp", "readOnly": true, "recursiveReadOnly": "Disabled"}]);
    status
}

#[test]
fn ids_allocated_resources_mounts_and_the_observed_generation_are_shown() {
    let mut home = home();
    home["metadata"]["generation"] = json!(3);
    home["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "tmp", "mountPath": "/tmp"}]);
    let named = json!({"cpu": "100m", "example.com/gpu": "1"});
    home["spec"]["containers"][0]["resources"] = json!({"requests": named, "limits": named});
    let mut said = detailed();
    said["volumeMounts"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "kube-api-access-x", "mountPath": "/var/run"}));
    said["allocatedResources"]["memory"] = json!("much");
    let reported =
        reduce_status(&json!({"status": {"phase": "Running", "containerStatuses": [said]}}));
    let pod = merged_with(home, &reported, &link());
    assert_eq!(
        pod["status"]["containerStatuses"],
        json!([detailed()]),
        "no stranger's mount, and no amount that is none"
    );
    assert_eq!(pod["status"]["observedGeneration"], 3);
    let mut deleted = pod;
    deleted["metadata"]["generation"] = json!(4);
    assert_eq!(
        local_status_patch(&deleted, &reported, &link()),
        None,
        "not worth a write of its own"
    );
}

#[test]
fn fields_that_the_api_server_drops_are_not_written_again_and_again() {
    let mut home = home();
    home["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "tmp", "mountPath": "/tmp"}]);
    home["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "100m"}});
    let reported =
        reduce_status(&json!({"status": {"phase": "Running", "containerStatuses": [detailed()]}}));
    let mut pod = merged_with(home, &reported, &link());
    let kept = pod["status"]["containerStatuses"][0]
        .as_object_mut()
        .unwrap();
    assert!(
        ["allocatedResources", "resources", "volumeMounts"]
            .into_iter()
            .all(|field| kept.remove(field).is_some())
    );
    assert_eq!(local_status_patch(&pod, &reported, &link()), None);
    pod["status"]["containerStatuses"][0]["containerID"] = json!("containerd://old");
    assert!(local_status_patch(&pod, &reported, &link()).is_some());
}

#[test]
fn pod_scheduled_and_every_other_condition_stay_the_homes() {
    let mut home = home();
    for kind in ["DisruptionTarget", "example.com/gate"] {
        home["status"]["conditions"]
            .as_array_mut()
            .unwrap()
            .push(condition_of(kind, "True"));
    }
    let mut remote = remote();
    for kind in ["DisruptionTarget", "example.com/gate", "liqo.io/Offloaded"] {
        remote["conditions"]
            .as_array_mut()
            .unwrap()
            .push(condition_of(kind, "False"));
    }
    let patch = local_status_patch(&home, &remote, &link()).unwrap();
    let sent: Vec<&str> = items_at(&patch, "/status/conditions")
        .iter()
        .filter_map(|condition| text_at(condition, "/type"))
        .collect();
    // The refusal of a cluster behind the provider is one of scheduling there, and none by the
    // provider.
    assert_eq!(
        sent,
        [
            "Initialized",
            "PodReadyToStartContainers",
            "ContainersReady",
            "Ready",
            "liqo.io/RemoteScheduled"
        ]
    );
}

#[test]
fn a_remote_scheduling_failure_becomes_a_condition_of_ours() {
    let mut waiting = remote();
    waiting["phase"] = json!("Pending");
    waiting["conditions"] = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}]);
    let pod = merged(&waiting);
    let shown = find_condition(&pod, "/status/conditions", "liqo.io/RemoteScheduled").unwrap();
    assert_eq!(
        (&shown["status"], &shown["reason"], &shown["message"]),
        (
            &json!("False"),
            &json!("Unschedulable"),
            &json!("0/3 nodes are available")
        )
    );
    assert_eq!(says(&pod, "PodScheduled"), "True");
    assert_eq!(
        says(
            &merged_with(pod, &remote(), &link()),
            "liqo.io/RemoteScheduled"
        ),
        "True"
    );
    assert_eq!(
        says(&merged(&remote()), "liqo.io/RemoteScheduled"),
        Value::Null,
        "nothing to tell when it never failed"
    );
}

#[test]
fn a_refusal_behind_a_broker_becomes_a_condition_of_ours() {
    let at_broker = |status: &str| {
        let mut pod = json!({"status": remote()});
        pod["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "True"},
            {"type": "liqo.io/Offloaded", "status": status, "reason": "OfferExceeded", "message": "cpu: 1 short"}]);
        reduce_status(&pod)
    };
    let pod = merged(&at_broker("False"));
    let shown = find_condition(&pod, "/status/conditions", "liqo.io/RemoteScheduled").unwrap();
    assert_eq!(
        (&shown["status"], &shown["reason"], &shown["message"]),
        (
            &json!("False"),
            &json!("OfferExceeded"),
            &json!("cpu: 1 short")
        )
    );
    assert_eq!(
        says(
            &merged_with(pod, &at_broker("True"), &link()),
            "liqo.io/RemoteScheduled"
        ),
        "True"
    );
}

#[test]
fn home_readiness_gates_count_for_ready() {
    let mut home = home();
    home["spec"]["readinessGates"] = json!([{"conditionType": "example.com/lb"}]);
    let pod = merged_with(home.clone(), &remote(), &link());
    assert_eq!(
        (says(&pod, "ContainersReady"), says(&pod, "Ready")),
        (json!("True"), json!("False"))
    );
    home["status"]["conditions"]
        .as_array_mut()
        .unwrap()
        .push(condition_of("example.com/lb", "True"));
    assert_eq!(
        says(&merged_with(home, &remote(), &link()), "Ready"),
        "True"
    );
}

#[test]
fn a_pod_on_a_dead_remote_node_is_not_ready() {
    let mut remote = remote();
    for condition in remote["conditions"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .filter(|condition| condition["type"] == "Ready")
    {
        condition["status"] = json!("False");
    }
    assert_eq!(says(&merged(&remote), "Ready"), "False");
}

#[test]
fn without_a_network_there_is_no_pod_address_but_in_an_annotation() {
    let pod = merged(&remote());
    assert_eq!(pod["status"].get("podIP"), None);
    assert_eq!(
        pod["metadata"]["annotations"],
        json!({"liqo.io/remote-pod-ip": "10.244.0.9"})
    );
}

#[test]
fn with_a_network_the_translated_address_is_the_pods() {
    let (v4, v6) = ("10.71.0.9".parse().unwrap(), "fd11::9".parse().unwrap());
    let pod = merged_with(
        merged(&remote()),
        &remote(),
        &RemotePodView {
            pod_ips: &[v4],
            ..link()
        },
    );
    assert_eq!(
        (&pod["status"]["podIP"], &pod["status"]["podIPs"]),
        (&json!("10.71.0.9"), &json!([{"ip": "10.71.0.9"}]))
    );
    assert_eq!(
        pod["metadata"]["annotations"],
        json!({"liqo.io/remote-pod-ip": "10.244.0.9"})
    );
    let pod = merged_with(
        pod,
        &remote(),
        &RemotePodView {
            pod_ips: &[v4, v6],
            ..link()
        },
    );
    assert_eq!(
        pod["status"]["podIPs"],
        json!([{"ip": "10.71.0.9"}, {"ip": "fd11::9"}]),
        "the first alone is no difference"
    );
    let pod = merged_with(pod, &remote(), &link());
    assert_eq!(
        (pod["status"].get("podIP"), &pod["status"]["podIPs"]),
        (None, &json!([]))
    );
}

#[test]
fn the_host_address_is_the_virtual_nodes() {
    assert_eq!(merged(&remote())["status"]["hostIP"], "10.0.0.5");
}

#[test]
fn an_address_that_is_none_is_not_shown() {
    let mut remote = remote();
    remote["podIP"] = json!("not an address");
    assert_eq!(merged(&remote)["metadata"].get("annotations"), None);
}

#[test]
fn nothing_from_the_peer_becomes_a_label_or_another_annotation() {
    let mut remote = remote();
    remote["metadata"] = json!({"labels": {"x": "y"}, "annotations": {"x": "y"}});
    remote["phase"] = json!({"metadata": {"labels": {"x": "y"}}});
    let patch = local_status_patch(&home(), &remote, &link()).unwrap();
    assert_eq!(
        patch["metadata"],
        json!({"annotations": {"liqo.io/remote-pod-ip": "10.244.0.9"}})
    );
    assert_eq!(merged(&remote)["status"]["phase"], "Pending");
}

#[test]
fn a_terminal_phase_stays_terminal() {
    for phase in ["Succeeded", "Failed"] {
        let mut home = home();
        home["status"]["phase"] = json!(phase);
        assert_eq!(local_status_patch(&home, &remote(), &link()), None);
        assert_eq!(lost_patch(&home, "gone", link().now), None);
        assert_eq!(not_ready_patch(&home, link().now), None);
        assert_eq!(
            refused_patch(&home, "OfferExceeded", "no room", link().now),
            None
        );
    }
}

#[test]
fn a_container_that_has_ended_for_good_does_not_run_again() {
    for (policy, exit_code, again) in [
        ("Never", 0, false),
        ("Never", 1, false),
        ("OnFailure", 0, false),
        ("OnFailure", 1, true),
        ("Always", 0, true),
    ] {
        let mut home = home();
        home["spec"]["restartPolicy"] = json!(policy);
        home["status"]["containerStatuses"] = json!([ended("c", exit_code)]);
        let pod = merged_with(home, &remote(), &link());
        let runs = pod
            .pointer("/status/containerStatuses/0/state/running")
            .is_some();
        assert_eq!(runs, again, "{policy}, exit code {exit_code}");
    }
}

#[test]
fn a_sidecar_may_run_again_whatever_the_pods_policy() {
    let mut home = home();
    home["spec"]["restartPolicy"] = json!("Never");
    home["spec"]["initContainers"] = json!([{"name": "i", "restartPolicy": "Always"}]);
    home["status"]["initContainerStatuses"] = json!([ended("i", 1)]);
    let mut remote = remote();
    remote["initContainerStatuses"] = json!([running("i")]);
    assert_eq!(
        merged_with(home, &remote, &link())["status"]["initContainerStatuses"],
        json!([running("i")])
    );
}

#[test]
fn the_transition_time_moves_only_with_the_status_and_by_our_clock() {
    let ready = |pod: &Value| {
        find_condition(pod, "/status/conditions", "Ready")
            .unwrap()
            .clone()
    };
    let pod = merged(&remote());
    assert_eq!(ready(&pod)["lastTransitionTime"], NOW);
    let later = RemotePodView {
        now: "2026-01-01T02:00:00Z".parse().unwrap(),
        ..link()
    };
    let mut remote = remote();
    remote["conditions"] = json!([{"type": "ContainersReady", "status": "False", "reason": "A"}]);
    let pod = merged_with(pod, &remote, &later);
    assert_eq!(
        (&ready(&pod)["status"], &ready(&pod)["lastTransitionTime"]),
        (&json!("False"), &json!("2026-01-01T02:00:00Z"))
    );
    remote["conditions"][0]["reason"] = json!("B");
    let pod = merged_with(
        pod,
        &remote,
        &RemotePodView {
            now: "2026-01-01T03:00:00Z".parse().unwrap(),
            ..link()
        },
    );
    assert_eq!(
        (&ready(&pod)["reason"], &ready(&pod)["lastTransitionTime"]),
        (&json!("B"), &json!("2026-01-01T02:00:00Z"))
    );
}

#[test]
fn what_the_api_server_adds_is_no_change() {
    let mut home = merged(&remote());
    home["status"]["containerStatuses"][0]["lastState"] = json!({});
    home["status"]["initContainerStatuses"][0]["state"]["terminated"]["signal"] = json!(null);
    home["status"]["initContainerStatuses"][0]["lastState"] = json!({"waiting": {}});
    assert_eq!(local_status_patch(&home, &remote(), &link()), None);
}

#[test]
fn a_dead_peer_takes_its_pods_out_of_service_and_its_return_restores_them() {
    let mut pod = merged(&remote());
    let patch = not_ready_patch(&pod, link().now).unwrap();
    assert_eq!(items_at(&patch, "/status/conditions").len(), 1);
    apply(&mut pod, &patch);
    assert_eq!(
        (says(&pod, "Ready"), says(&pod, "ContainersReady")),
        (json!("False"), json!("True"))
    );
    assert_eq!(not_ready_patch(&pod, link().now), None);
    let silent = RemotePodView {
        peer_answers: false,
        ..link()
    };
    assert_eq!(
        local_status_patch(&pod, &remote(), &silent),
        None,
        "what was last heard does not count"
    );
    assert_eq!(says(&merged_with(pod, &remote(), &link()), "Ready"), "True");
}

#[test]
fn ready_that_kubernetes_took_away_is_given_back() {
    let mut pod = merged(&remote());
    apply(
        &mut pod,
        &json!({"status": {"conditions": [condition_of("Ready", "False")]}}),
    );
    assert_eq!(says(&merged_with(pod, &remote(), &link()), "Ready"), "True");
}

#[test]
fn a_refused_pod_says_why_once_and_stays_pending() {
    let mut pod = home();
    let patch = refused_patch(&pod, "OfferExceeded", "ask for less", link().now).unwrap();
    assert_eq!(
        patch["status"]
            .as_object()
            .unwrap()
            .keys()
            .collect::<Vec<_>>(),
        ["conditions"]
    );
    apply(&mut pod, &patch);
    assert_eq!(
        (says(&pod, "liqo.io/Offloaded"), &pod["status"]["phase"]),
        (json!("False"), &json!("Pending"))
    );
    assert_eq!(
        refused_patch(
            &pod,
            "OfferExceeded",
            "ask for less",
            "2027-01-01T00:00:00Z".parse().unwrap()
        ),
        None
    );
    assert_eq!(
        says(&merged_with(pod, &remote(), &link()), "liqo.io/Offloaded"),
        "True"
    );
}

#[test]
fn a_pod_whose_room_was_taken_back_ends_as_an_evicted_one() {
    let mut pod = merged(&remote());
    let patch = evicted_patch(
        &pod,
        "cluster milan took back resources: pool default became smaller",
        link().now,
    )
    .unwrap();
    apply(&mut pod, &patch);
    assert_eq!(
        (&pod["status"]["phase"], &pod["status"]["reason"]),
        (&json!("Failed"), &json!("Evicted"))
    );
    assert!(pod["status"]["message"].as_str().unwrap().contains("milan"));
    assert_eq!(
        pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"],
        "Evicted"
    );
    assert_eq!(
        (says(&pod, "Ready"), says(&pod, "DisruptionTarget")),
        (json!("False"), json!("True"))
    );
    assert!(
        items_at(&pod, "/status/conditions")
            .iter()
            .any(|one| one["reason"] == "OfferReclaimed")
    );
    assert_eq!(evicted_patch(&pod, "again", link().now), None);
}

#[test]
fn a_lost_pod_fails_and_its_containers_have_ended() {
    let mut pod = merged(&remote());
    let patch = lost_patch(&pod, "its remote pod was removed", link().now).unwrap();
    apply(&mut pod, &patch);
    assert_eq!(
        (&pod["status"]["phase"], &pod["status"]["reason"]),
        (&json!("Failed"), &json!("RemotePodLost"))
    );
    assert_eq!(
        pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"],
        137
    );
    assert_eq!(
        pod["status"]["initContainerStatuses"],
        json!([ended("i", 0)]),
        "what ended before keeps its end"
    );
    assert_eq!(
        (says(&pod, "Ready"), lost_patch(&pod, "x", link().now)),
        (json!("False"), None)
    );
    // A Job that ignores disruptions does not count it.
    let shown = find_condition(&pod, "/status/conditions", "DisruptionTarget").unwrap();
    assert_eq!(
        (&shown["status"], &shown["reason"]),
        (&json!("True"), &json!("RemotePodLost"))
    );
}

#[test]
fn a_hostile_status_is_made_one_that_the_api_server_takes() {
    let hostile = json!({"phase": 7, "reason": "x".repeat(10_000), "conditions": "none", "containerStatuses": [
        {"name": "c", "ready": "yes", "restartCount": -3, "state": {"running": [], "waiting": {"reason": {"a": 1}}}, "evil": true}, 5]});
    let status = merged(&hostile)["status"].clone();
    assert_eq!(status["reason"].as_str().unwrap().len(), 4096);
    assert_eq!(
        status["containerStatuses"],
        json!([{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": {}}}])
    );
}

#[test]
fn only_what_home_shows_is_told() {
    let mut pod = json!({"status": {"phase": "Running", "podIP": "10.244.0.9", "hostIP": "192.168.0.1", "nominatedNodeName": "n1", "qosClass": "Burstable",
        "conditions": [condition_of("Ready", "True"), condition_of("example.com/own", "True")], "containerStatuses": [running("c")]}});
    pod["status"]["containerStatuses"][0]["user"] = json!({"linux": {"uid": 0}});
    pod["status"]["containerStatuses"][0]["volumeMounts"] = json!([]);
    assert_eq!(
        reduce_status(&pod),
        json!({"phase": "Running", "podIP": "10.244.0.9", "conditions": [condition_of("Ready", "True")], "containerStatuses": [running("c")]})
    );
    assert_eq!(reduce_status(&json!({})), json!({}));
    let both = json!({"status": {"podIP": "10.244.0.9", "podIPs": [{"ip": "10.244.0.9", "x": 1}, {"ip": "fd00::9"}]}});
    assert_eq!(
        reduce_status(&both),
        json!({"podIP": "10.244.0.9", "podIPs": [{"ip": "10.244.0.9"}, {"ip": "fd00::9"}]})
    );
}

#[test]
fn numbers_and_times_that_no_api_server_takes_are_left_out() {
    let shown = |count: i64, code: i64, time: &str| {
        let status = json!({"name": "c", "restartCount": count, "state": {"terminated": {"exitCode": code, "signal": code, "finishedAt": time}}});
        reduce_status(&json!({"status": {"startTime": time, "containerStatuses": [status]}}))
    };
    let good = shown(3, 137, THEN);
    assert_eq!(
        (
            &good["startTime"],
            &good["containerStatuses"][0]["restartCount"]
        ),
        (&json!(THEN), &json!(3))
    );
    let ended = json!({"exitCode": 137, "signal": 137, "finishedAt": THEN});
    assert_eq!(good["containerStatuses"][0]["state"]["terminated"], ended);
    for time in [
        "yesterday",
        "2026-01-01 00:00:00Z",
        "-000001-01-01T00:00:00Z",
        "2026-13-01T00:00:00Z",
    ] {
        let bad = shown(1 << 40, -(1 << 40), time);
        assert_eq!(
            (
                bad.get("startTime"),
                &bad["containerStatuses"][0]["restartCount"]
            ),
            (None, &json!(0)),
            "{time}"
        );
        assert_eq!(
            bad["containerStatuses"][0]["state"]["terminated"],
            json!({"exitCode": 0}),
            "{time}"
        );
    }
}

#[test]
fn objects_that_the_provider_does_not_have_show_on_the_pod_until_it_has_them() {
    let said = |pod: &Value| {
        let shown = find_condition(pod, "/status/conditions", pods::OFFLOADED)
            .cloned()
            .unwrap_or_default();
        (
            shown["status"].clone(),
            shown["reason"].clone(),
            shown["message"].clone(),
        )
    };
    let missing = RemotePodView {
        amiss: Some((pods::NOT_REFLECTED, "ConfigMap m: NameTaken")),
        ..link()
    };
    let pod = merged_with(home(), &remote(), &missing);
    assert_eq!(
        said(&pod),
        (
            json!("True"),
            json!("NotReflected"),
            json!("ConfigMap m: NameTaken")
        )
    );
    // This is no refusal: the pod may run.
    assert_eq!(text_at(&pod, "/status/phase"), Some("Running"));
    let pod = merged_with(pod, &remote(), &link());
    assert_eq!(
        (&said(&pod).0, &said(&pod).1),
        (&json!("True"), &json!("Offloaded"))
    );
    let pod = merged_with(
        pod,
        &remote(),
        &RemotePodView {
            amiss: Some((pods::ADDRESS_REFUSED, "10.9.0.1")),
            ..link()
        },
    );
    assert_eq!(
        said(&pod),
        (json!("True"), json!("AddressRefused"), json!("10.9.0.1"))
    );
    assert_eq!(
        said(&merged_with(pod, &remote(), &link())).1,
        json!("Offloaded")
    );
    let pod = merged_with(
        home(),
        &remote(),
        &RemotePodView {
            amiss: Some((pods::CHANGE_REFUSED, "it is too long")),
            ..link()
        },
    );
    assert_eq!(
        said(&pod),
        (
            json!("True"),
            json!("ChangeRefused"),
            json!("it is too long")
        )
    );
    assert_eq!(
        said(&merged_with(pod, &remote(), &link())).1,
        json!("Offloaded"),
        "the annotation is gone"
    );
}

#[test]
fn the_conditions_of_a_resize_are_the_remote_ones_and_end_with_them() {
    for (kind, reason) in [
        ("PodResizePending", "Infeasible"),
        ("PodResizePending", "Deferred"),
        ("PodResizeInProgress", "Error"),
    ] {
        let mut resized = remote();
        let theirs =
            json!({"type": kind, "status": "True", "reason": reason, "message": "cpu: 1 short"});
        resized["conditions"].as_array_mut().unwrap().push(theirs);
        let reported = reduce_status(&json!({ "status": resized }));
        let pod = merged_with(home(), &reported, &link());
        let shown = find_condition(&pod, "/status/conditions", kind).unwrap();
        assert_eq!(
            (&shown["reason"], &shown["message"]),
            (&json!(reason), &json!("cpu: 1 short"))
        );
        assert_eq!(
            find_condition(
                &merged_with(pod, &remote(), &link()),
                "/status/conditions",
                kind
            ),
            None
        );
    }
}

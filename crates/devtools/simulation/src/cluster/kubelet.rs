//! Kubelets: they run the pods of nodes with the label `simulation.test/kubelet: "true"`, and keep
//! the nodes' leases.

#[cfg(test)]
mod tests;

use serde_json::{Value, json};

use super::{
    addresses::{self, Addresses},
    containers::{self, Behaviour},
    fields::{
        after, condition, drop_field, is_ending, is_true, items, label, name, new_condition,
        set_condition, text, time, time_text, uid,
    },
    plan::Plan,
    pods::is_finished,
    snapshot::Snapshot,
};

const LEASE_SECONDS: i64 = 40;
const RENEW_SECONDS: i64 = 10;

pub fn has_kubelet(node: &Value) -> bool {
    label(node, "simulation.test/kubelet") == "true"
}

pub fn run(snapshot: &Snapshot, plan: &mut Plan) {
    let mut addresses = Addresses::in_use(snapshot);
    for node in snapshot.nodes().iter().filter(|node| has_kubelet(node)) {
        if snapshot.settings.nodes_without_power.contains(name(node)) {
            continue;
        }
        renew_lease(snapshot, node, plan);
        report_ready(snapshot, node, plan);
        for pod in snapshot.pods_on(name(node)) {
            sync_pod(&Kubelet { snapshot, node }, pod, &mut addresses, plan);
        }
    }
}

fn renew_lease(snapshot: &Snapshot, node: &Value, plan: &mut Plan) {
    let namespace = "kube-node-lease";
    let renewed = snapshot.now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    let Some(lease) = snapshot.get("leases.coordination.k8s.io", namespace, name(node)) else {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {
                "name": name(node), "namespace": namespace,
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": name(node), "uid": uid(node) }],
            },
            "spec": { "holderIdentity": name(node), "leaseDurationSeconds": LEASE_SECONDS, "renewTime": renewed },
        });
        return plan.create("leases.coordination.k8s.io", lease);
    };
    if time(&lease["spec"]["renewTime"]).is_none_or(|last| plan.is_due(after(last, RENEW_SECONDS)))
    {
        let mut next = (*lease).clone();
        next["spec"]["renewTime"] = json!(renewed);
        plan.update("leases.coordination.k8s.io", &lease, next);
    }
}

fn report_ready(snapshot: &Snapshot, node: &Value, plan: &mut Plan) {
    if is_true(node, "Ready") {
        return;
    }
    let mut status = node["status"].clone();
    set_condition(
        &mut status,
        &new_condition(
            "Ready",
            true,
            "KubeletReady",
            "kubelet is posting ready status",
        ),
        snapshot.now,
    );
    for (kind, reason) in [
        ("MemoryPressure", "KubeletHasSufficientMemory"),
        ("DiskPressure", "KubeletHasNoDiskPressure"),
        ("PIDPressure", "KubeletHasSufficientPID"),
    ] {
        set_condition(
            &mut status,
            &new_condition(kind, false, reason, ""),
            snapshot.now,
        );
    }
    plan.update_status("nodes", node, status);
}

/// The kubelet of one node.
struct Kubelet<'a> {
    snapshot: &'a Snapshot<'a>,
    node: &'a Value,
}

fn sync_pod(kubelet: &Kubelet, pod: &Value, addresses: &mut Addresses, plan: &mut Plan) {
    if is_finished(pod) {
        return remove_if_ending(pod, plan);
    }
    if is_steady(pod) {
        return;
    }
    let status = if is_ending(pod) {
        stopping(kubelet, pod, plan)
    } else if text(&pod["status"]["startTime"]).is_empty() {
        accepted(kubelet, pod)
    } else if let Some(expired) = expired(kubelet, pod, plan) {
        expired
    } else {
        running(kubelet, pod, addresses, plan)
    };
    plan.update_status("pods", pod, status);
}

/// Whether a pod stays as it is until somebody changes it. This saves most of the work of a cluster
/// at rest.
fn is_steady(pod: &Value) -> bool {
    is_true(pod, "Ready")
        && !is_ending(pod)
        && !Behaviour::changes_running(pod)
        && pod["spec"]["activeDeadlineSeconds"].is_null()
        && items(&pod["spec"]["readinessGates"]).is_empty()
}

/// Deletes a pod that has stopped. A finalizer may still keep it.
fn remove_if_ending(pod: &Value, plan: &mut Plan) {
    if is_ending(pod) && pod["metadata"]["deletionGracePeriodSeconds"] != 0 {
        plan.delete_with("pods", pod, Some(0), None);
    }
}

/// The first status: the kubelet saw the pod.
fn accepted(kubelet: &Kubelet, pod: &Value) -> Value {
    let now = kubelet.snapshot.now;
    let mut status = pod["status"].clone();
    status["phase"] = json!("Pending");
    status["startTime"] = json!(time_text(now));
    let host = addresses::of_node(kubelet.node);
    if !host.is_empty() {
        status["hostIP"] = json!(host);
        status["hostIPs"] = json!([{ "ip": host }]);
    }
    let inits = items(&pod["spec"]["initContainers"]);
    let reason = if inits.is_empty() {
        "ContainerCreating"
    } else {
        "PodInitializing"
    };
    status["containerStatuses"] = statuses(pod, "containers", |one, _| {
        containers::waiting(pod, one, reason, "")
    });
    if !inits.is_empty() {
        status["initContainerStatuses"] = statuses(pod, "initContainers", |one, _| {
            containers::waiting(pod, one, reason, "")
        });
    }
    report(&mut status, pod, false, inits.is_empty(), kubelet);
    status
}

/// One status for each container, made from the container and its status until now.
fn statuses(pod: &Value, which: &str, mut next: impl FnMut(&Value, &Value) -> Value) -> Value {
    let field = if which == "containers" {
        "containerStatuses"
    } else {
        "initContainerStatuses"
    };
    let old = |container: &Value| {
        items(&pod["status"][field])
            .iter()
            .find(|status| status["name"] == container["name"])
    };
    items(&pod["spec"][which])
        .iter()
        .map(|container| next(container, old(container).unwrap_or(&Value::Null)))
        .collect()
}

/// The status of a pod that starts or runs.
fn running(kubelet: &Kubelet, pod: &Value, addresses: &mut Addresses, plan: &mut Plan) -> Value {
    let (snapshot, now) = (kubelet.snapshot, kubelet.snapshot.now);
    let mut status = pod["status"].clone();
    let has_sandbox = is_true(pod, "PodReadyToStartContainers");
    if !has_sandbox {
        let begin = time(&pod["status"]["startTime"])
            .map_or(now, |start| after(start, Behaviour::of(pod).start_seconds));
        if !plan.is_due(begin)
            || snapshot.settings.has_no_pod_network
            || containers::missing_volume(pod, snapshot).is_some()
            || !set_address(kubelet, pod, &mut status, addresses)
        {
            return status;
        }
    }
    if !items(&pod["spec"]["initContainers"]).is_empty()
        && condition(pod, "Initialized")["status"] != "True"
    {
        status["initContainerStatuses"] = statuses(pod, "initContainers", |one, _| {
            containers::initialized(pod, one, now)
        });
    }
    let next = |container: &Value, old: &Value| {
        containers::next_status(pod, container, old, snapshot, plan)
    };
    status["containerStatuses"] = statuses(pod, "containers", next);
    status["phase"] = json!(phase(pod, &status));
    let is_over = status["phase"] == "Succeeded" || status["phase"] == "Failed";
    report(&mut status, pod, !is_over, true, kubelet);
    status
}

/// Gives a pod its address. Returns false if none is free.
fn set_address(
    kubelet: &Kubelet,
    pod: &Value,
    status: &mut Value,
    addresses: &mut Addresses,
) -> bool {
    let address = if pod["spec"]["hostNetwork"] == true {
        Some(addresses::of_node(kubelet.node).to_owned())
    } else {
        addresses
            .take(kubelet.snapshot, kubelet.node)
            .map(|address| address.to_string())
    };
    if let Some(address) = &address {
        status["podIP"] = json!(address);
        status["podIPs"] = json!([{ "ip": address }]);
    }
    address.is_some()
}

fn phase(pod: &Value, status: &Value) -> &'static str {
    let all = items(&status["containerStatuses"]);
    let has_ended = |one: &Value| {
        let ended = &one["state"]["terminated"];
        !ended.is_null() && (is_ending(pod) || !containers::starts_again(pod, ended))
    };
    if !all.is_empty() && all.iter().all(has_ended) {
        let is_success = all
            .iter()
            .all(|one| one["state"]["terminated"]["exitCode"] == 0);
        return if is_success { "Succeeded" } else { "Failed" };
    }
    let has_started = |one: &Value| {
        !one["state"]["running"].is_null()
            || !one["state"]["terminated"].is_null()
            || !one["lastState"]["terminated"].is_null()
    };
    if all.iter().all(has_started) {
        "Running"
    } else {
        "Pending"
    }
}

/// Writes the conditions that follow from the containers.
fn report(
    status: &mut Value,
    pod: &Value,
    has_sandbox: bool,
    is_initialized: bool,
    kubelet: &Kubelet,
) {
    let now = kubelet.snapshot.now;
    let is_over = status["phase"] == "Succeeded" || status["phase"] == "Failed";
    let unready = items(&status["containerStatuses"])
        .iter()
        .filter(|one| one["ready"] != true);
    let unready: Vec<&str> = unready.map(|one| text(&one["name"])).collect();
    let message = if unready.is_empty() {
        String::new()
    } else {
        format!("containers with unready status: [{}]", unready.join(" "))
    };
    let (is_ready, reason) = match (is_over, unready.is_empty()) {
        (true, _) => (
            false,
            if status["phase"] == "Succeeded" {
                "PodCompleted"
            } else {
                "PodFailed"
            },
        ),
        (false, false) => (false, "ContainersNotReady"),
        (false, true) => (true, ""),
    };
    let message = if is_over { "" } else { &message };
    let gates = items(&pod["spec"]["readinessGates"]);
    let has_gates = gates
        .iter()
        .all(|gate| is_true(pod, text(&gate["conditionType"])));
    let (ready_reason, ready_message) = if is_ready && !has_gates {
        (
            "ReadinessGatesNotReady",
            "the status of pod readiness gate is not \"True\"",
        )
    } else {
        (reason, message)
    };
    let init_reason = if is_initialized {
        ""
    } else {
        "ContainersNotInitialized"
    };
    for condition in [
        new_condition("PodReadyToStartContainers", has_sandbox, "", ""),
        new_condition("Initialized", is_initialized, init_reason, ""),
        new_condition("Ready", is_ready && has_gates, ready_reason, ready_message),
        new_condition("ContainersReady", is_ready, reason, message),
        new_condition("PodScheduled", true, "", ""),
    ] {
        set_condition(status, &condition, now);
    }
}

/// The status of a pod after its `activeDeadlineSeconds`.
fn expired(kubelet: &Kubelet, pod: &Value, plan: &mut Plan) -> Option<Value> {
    let start = time(&pod["status"]["startTime"])?;
    let deadline = pod["spec"]["activeDeadlineSeconds"].as_i64()?;
    if !plan.is_due(after(start, deadline)) {
        return None;
    }
    let mut status = stopped(kubelet, pod, 137);
    status["phase"] = json!("Failed");
    status["reason"] = json!("DeadlineExceeded");
    status["message"] = json!("Pod was active on the node longer than the specified deadline");
    report(&mut status, pod, false, true, kubelet);
    Some(status)
}

/// The status of a pod that ends: its containers stop by themselves, or are killed at the end of
/// the grace period.
fn stopping(kubelet: &Kubelet, pod: &Value, plan: &mut Plan) -> Value {
    let now = kubelet.snapshot.now;
    let grace = pod["metadata"]["deletionGracePeriodSeconds"]
        .as_i64()
        .unwrap_or(0);
    let behaviour = Behaviour::of(pod);
    let wanted = behaviour.stop_seconds;
    let begin = time(&pod["metadata"]["deletionTimestamp"]).map_or(now, |end| after(end, -grace));
    let has_started = items(&pod["status"]["containerStatuses"])
        .iter()
        .any(|one| !one["state"]["running"].is_null());
    if has_started && !plan.is_due(after(begin, wanted.min(grace))) {
        return pod["status"].clone();
    }
    let mut status = stopped(
        kubelet,
        pod,
        if wanted <= grace {
            behaviour.stop_code()
        } else {
            137
        },
    );
    status["phase"] = json!(phase(pod, &status));
    report(&mut status, pod, false, true, kubelet);
    status
}

fn stopped(kubelet: &Kubelet, pod: &Value, code: i64) -> Value {
    let now = kubelet.snapshot.now;
    let mut status = pod["status"].clone();
    for (which, field) in [
        ("containers", "containerStatuses"),
        ("initContainers", "initContainerStatuses"),
    ] {
        if !items(&pod["spec"][which]).is_empty() {
            status[field] = statuses(pod, which, |one, old| {
                containers::stopped(pod, one, old, code, now)
            });
        }
    }
    drop_field(&mut status, "resize");
    status
}

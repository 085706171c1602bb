//! The states of containers: when they start, become ready, end, and start again.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    fields::{after, hash, items, name, text, time, time_text, uid},
    plan::Plan,
    pulls,
    snapshot::Snapshot,
};

/// Longest delay before a container that ended starts again, in seconds.
const MAX_BACKOFF: i64 = 300;

/// What a pod wants of its containers: by annotations such as `simulation.test/run-seconds`, or by
/// environment variables of its first container such as `SIMULATION_RUN_SECONDS`, which a peer
/// sees, too.
pub struct Behaviour {
    pub start_seconds: i64,
    /// `None`: never ready.
    ready_seconds: Option<i64>,
    /// Seconds after which a container exits, and its code.
    exit: Option<(i64, i64)>,
    is_image_missing: bool,
    pub stop_seconds: i64,
}

/// Wishes that choose what happens to a container that runs.
const OF_RUNNING: [&str; 3] = ["crash", "ready-seconds", "run-seconds"];

/// One of the wishes of a pod; empty if there is none.
fn wish<'a>(pod: &'a Value, name: &str) -> &'a str {
    let annotation = &pod["metadata"]["annotations"][format!("simulation.test/{name}")];
    let variable = format!("SIMULATION_{}", name.to_uppercase().replace('-', "_"));
    let variables = items(&pod["spec"]["containers"][0]["env"]);
    let by_variable = || {
        variables
            .iter()
            .find(|one| one["name"] == variable)
            .map(|one| text(&one["value"]))
    };
    annotation.as_str().or_else(by_variable).unwrap_or_default()
}

impl Behaviour {
    /// The exit code of a container that stops when it is told to: one that would have exited by
    /// itself was not done.
    pub fn stop_code(&self) -> i64 {
        if self.exit.is_some() { 143 } else { 0 }
    }

    pub fn changes_running(pod: &Value) -> bool {
        OF_RUNNING.iter().any(|name| !wish(pod, name).is_empty())
    }

    pub fn of(pod: &Value) -> Self {
        let number = |name: &str| wish(pod, name).parse::<i64>().ok();
        let run = number("run-seconds").map(|seconds| (seconds, number("exit-code").unwrap_or(0)));
        let crash = number("crash").map(|seconds| (seconds, number("exit-code").unwrap_or(1)));
        Self {
            start_seconds: number("start-seconds").unwrap_or(1),
            ready_seconds: Some(number("ready-seconds").unwrap_or(0))
                .filter(|seconds| *seconds >= 0),
            exit: crash.or(run),
            is_image_missing: wish(pod, "image-missing") == "true",
            stop_seconds: number("stop-seconds").unwrap_or(1),
        }
    }
}

/// A container that does not run yet, and why.
pub fn waiting(pod: &Value, container: &Value, reason: &str, message: &str) -> Value {
    let mut state = json!({ "waiting": { "reason": reason } });
    if !message.is_empty() {
        state["waiting"]["message"] = json!(message);
    }
    status(pod, container, &state, &json!({}), 0)
}

fn status(
    pod: &Value,
    container: &Value,
    state: &Value,
    last_state: &Value,
    restarts: i64,
) -> Value {
    let is_running = !state["running"].is_null();
    let image = text(&container["image"]);
    let mut status = json!({
        "name": container["name"], "image": image, "imageID": "", "ready": false, "started": is_running,
        "restartCount": restarts, "state": state, "lastState": last_state,
    });
    if is_running || !state["terminated"].is_null() {
        status["imageID"] = json!(format!("{image}@sha256:{}", digest(image)));
        status["containerID"] = json!(container_id(pod, container, restarts));
    }
    if is_running {
        status["resources"] = if container["resources"].is_object() {
            container["resources"].clone()
        } else {
            json!({})
        };
    }
    status
}

fn container_id(pod: &Value, container: &Value, restarts: i64) -> String {
    format!(
        "containerd://{}",
        digest(&format!(
            "{}/{}/{restarts}",
            uid(pod),
            text(&container["name"])
        ))
    )
}

fn digest(of: &str) -> String {
    let parts: Vec<String> = (0..8)
        .map(|part| format!("{:08x}", hash(&format!("{part}{of}"))))
        .collect();
    parts.concat()
}

fn terminated(id: &Value, started: &Value, code: i64, reason: &str, now: Timestamp) -> Value {
    let mut ended = json!({ "exitCode": code, "reason": reason, "startedAt": started, "finishedAt": time_text(now) });
    if !id.is_null() {
        ended["containerID"] = id.clone();
    }
    json!({ "terminated": ended })
}

fn end(status: &Value, code: i64, now: Timestamp) -> Value {
    let reason = if code == 0 { "Completed" } else { "Error" };
    terminated(
        &status["containerID"],
        &status["state"]["running"]["startedAt"],
        code,
        reason,
        now,
    )
}

/// The status of an init container when the pod's containers may start: it has done its work. A
/// sidecar runs.
pub fn initialized(pod: &Value, container: &Value, now: Timestamp) -> Value {
    let mut started = start(pod, container, &json!({}), 0, now);
    started["ready"] = json!(true);
    if container["restartPolicy"] != "Always" {
        started["state"] = end(&started, 0, now);
        started["started"] = json!(false);
    }
    started
}

fn start(
    pod: &Value,
    container: &Value,
    last_state: &Value,
    restarts: i64,
    now: Timestamp,
) -> Value {
    status(
        pod,
        container,
        &json!({ "running": { "startedAt": time_text(now) } }),
        last_state,
        restarts,
    )
}

/// The next status of a container whose pod is ready to start containers.
pub fn next_status(
    pod: &Value,
    container: &Value,
    old: &Value,
    snapshot: &Snapshot,
    plan: &mut Plan,
) -> Value {
    let (now, behaviour) = (snapshot.now, Behaviour::of(pod));
    let running = &old["state"]["running"];
    if !running.is_null() {
        return go_on(
            old,
            time(&running["startedAt"]).unwrap_or(now),
            &behaviour,
            now,
            plan,
        );
    }
    let ended = [&old["state"]["terminated"], &old["lastState"]["terminated"]]
        .into_iter()
        .find(|state| !state.is_null());
    match ended {
        Some(ended) => start_again(pod, container, old, ended, now, plan),
        None if behaviour.is_image_missing
            || snapshot
                .settings
                .missing_images
                .contains(text(&container["image"])) =>
        {
            missing_image(pod, container, old, now, plan)
        }
        None if !pulls::has_image(pod, container, first_start(pod, now), snapshot, plan) => {
            waiting(pod, container, "ContainerCreating", "")
        }
        None => match missing_configuration(pod, container, snapshot) {
            Some(missing) => waiting(pod, container, "CreateContainerConfigError", &missing),
            None => become_ready(
                start(pod, container, &json!({}), 0, now),
                now,
                &behaviour,
                plan,
            ),
        },
    }
}

fn go_on(
    old: &Value,
    started: Timestamp,
    behaviour: &Behaviour,
    now: Timestamp,
    plan: &mut Plan,
) -> Value {
    if let Some((seconds, code)) = behaviour.exit
        && plan.is_due(after(started, seconds))
    {
        return ended(old, code, now);
    }
    become_ready(old.clone(), started, behaviour, plan)
}

fn ended(old: &Value, code: i64, now: Timestamp) -> Value {
    let mut status = old.clone();
    status["state"] = end(old, code, now);
    status["ready"] = json!(false);
    status["started"] = json!(false);
    status
}

fn become_ready(
    mut status: Value,
    started: Timestamp,
    behaviour: &Behaviour,
    plan: &mut Plan,
) -> Value {
    let is_ready = behaviour
        .ready_seconds
        .is_some_and(|seconds| seconds == 0 || plan.is_due(after(started, seconds)));
    status["ready"] = json!(is_ready);
    status
}

fn start_again(
    pod: &Value,
    container: &Value,
    old: &Value,
    ended: &Value,
    now: Timestamp,
    plan: &mut Plan,
) -> Value {
    if !starts_again(pod, ended) {
        return old.clone();
    }
    let restarts = old["restartCount"].as_i64().unwrap_or(0);
    let delay = if restarts == 0 { 1 } else { backoff(restarts) };
    let last_state = json!({ "terminated": ended });
    if plan.is_due(after(time(&ended["finishedAt"]).unwrap_or(now), delay)) {
        return become_ready(
            start(pod, container, &last_state, restarts + 1, now),
            now,
            &Behaviour::of(pod),
            plan,
        );
    }
    if restarts == 0 {
        return old.clone();
    }
    let message = format!(
        "back-off {delay}s restarting failed container={} pod={}_{}({})",
        text(&container["name"]),
        name(pod),
        text(&pod["metadata"]["namespace"]),
        uid(pod)
    );
    let state = json!({ "waiting": { "reason": "CrashLoopBackOff", "message": message } });
    let mut status = old.clone();
    status["state"] = state;
    status["lastState"] = last_state;
    status
}

/// Whether the restartPolicy wants a container again that ended.
pub fn starts_again(pod: &Value, ended: &Value) -> bool {
    match text(&pod["spec"]["restartPolicy"]) {
        "Never" => false,
        "OnFailure" => ended["exitCode"] != 0,
        _ => true,
    }
}

fn backoff(restarts: i64) -> i64 {
    let doublings = u32::try_from(restarts - 1).unwrap_or(0).min(10);
    (10 << doublings).min(MAX_BACKOFF)
}

/// When the first container of a pod may start.
fn first_start(pod: &Value, now: Timestamp) -> Timestamp {
    time(&pod["status"]["startTime"])
        .map_or(now, |start| after(start, Behaviour::of(pod).start_seconds))
}

fn missing_image(
    pod: &Value,
    container: &Value,
    old: &Value,
    now: Timestamp,
    plan: &mut Plan,
) -> Value {
    let first = first_start(pod, now);
    let image = text(&container["image"]);
    if old["state"]["waiting"]["reason"] != "ImagePullBackOff" && !plan.is_due(after(first, 10)) {
        return waiting(
            pod,
            container,
            "ErrImagePull",
            &format!("failed to pull and unpack image \"{image}\": not found"),
        );
    }
    let message = format!(
        "Back-off pulling image \"{image}\": ErrImagePull: failed to pull and unpack image \"{image}\": not found"
    );
    waiting(pod, container, "ImagePullBackOff", &message)
}

/// The status of a container whose pod ends or is stopped. It says nothing about containers that
/// ended before.
pub fn stopped(pod: &Value, container: &Value, old: &Value, code: i64, now: Timestamp) -> Value {
    if !old["state"]["running"].is_null() {
        return ended(old, code, now);
    }
    if !old["state"]["terminated"].is_null() {
        return old.clone();
    }
    let mut status = if old.is_null() {
        waiting(pod, container, "", "")
    } else {
        old.clone()
    };
    let last = old["lastState"]["terminated"].clone();
    status["state"] = if last.is_null() {
        let message = "The container could not be located when the pod was deleted.  The container used to be Running";
        json!({ "terminated": {
            "exitCode": 137, "reason": "ContainerStatusUnknown", "message": message, "startedAt": null, "finishedAt": null,
        } })
    } else {
        json!({ "terminated": last })
    };
    status
}

/// What a container's environment needs and does not find.
fn missing_configuration(pod: &Value, container: &Value, snapshot: &Snapshot) -> Option<String> {
    let from = items(&container["envFrom"]).iter();
    let whole = from.flat_map(|source| {
        [
            ("configmaps", &source["configMapRef"]),
            ("secrets", &source["secretRef"]),
        ]
    });
    let keys = items(&container["env"])
        .iter()
        .map(|variable| &variable["valueFrom"]);
    let keys = keys.flat_map(|source| {
        [
            ("configmaps", &source["configMapKeyRef"]),
            ("secrets", &source["secretKeyRef"]),
        ]
    });
    whole
        .chain(keys)
        .find_map(|(resource, reference)| missing(pod, resource, reference, "name", snapshot))
}

/// What the volumes of a pod need and do not find.
pub fn missing_volume(pod: &Value, snapshot: &Snapshot) -> Option<String> {
    items(&pod["spec"]["volumes"]).iter().find_map(|volume| {
        let projected = items(&volume["projected"]["sources"]).iter();
        let projected = projected.flat_map(|one| {
            [
                ("configmaps", &one["configMap"], "name"),
                ("secrets", &one["secret"], "name"),
            ]
        });
        [
            ("configmaps", &volume["configMap"], "name"),
            ("secrets", &volume["secret"], "secretName"),
        ]
        .into_iter()
        .chain(projected)
        .find_map(|(resource, reference, field)| missing(pod, resource, reference, field, snapshot))
    })
}

fn missing(
    pod: &Value,
    resource: &str,
    reference: &Value,
    field: &str,
    snapshot: &Snapshot,
) -> Option<String> {
    if reference.is_null() || reference["optional"] == true {
        return None;
    }
    let (namespace, wanted) = (text(&pod["metadata"]["namespace"]), text(&reference[field]));
    let kind = resource.trim_end_matches('s');
    let Some(object) = snapshot.get(resource, namespace, wanted) else {
        return Some(format!("{kind} \"{wanted}\" not found"));
    };
    let key = text(&reference["key"]);
    let has_key = key.is_empty()
        || ["data", "binaryData"]
            .iter()
            .any(|part| !object[*part][key].is_null());
    (!has_key).then(|| {
        format!(
            "couldn't find key {key} in {} {namespace}/{wanted}",
            if kind == "secret" {
                "Secret"
            } else {
                "ConfigMap"
            }
        )
    })
}

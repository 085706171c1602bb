//! Explains why the containers of a pod are not ready, and what to do: from the status that its
//! kubelet writes. Pure.

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, PodStatus,
};

/// A container that keeps its pod from being ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnreadyContainer {
    pub what: String,
    pub advice: String,
    /// Whether it may pass without anybody's help.
    pub may_pass: bool,
}

/// Reasons of a container that is about to start.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// The first container that is not ready, with its state. `kubectl` is how commands for this pod
/// begin, such as `kubectl -n demo`. Init containers come first: the others wait for them.
pub(super) fn unready_container(
    status: &PodStatus,
    kubectl: &str,
    pod: &str,
    runs_in: RunsIn,
) -> Option<UnreadyContainer> {
    let commands = KubectlCommands { kubectl, pod };
    let init = status
        .init_container_statuses
        .iter()
        .flatten()
        .filter(|one| !one.ready && !is_sidecar_that_runs(one));
    let all: Vec<&ContainerStatus> = init
        .chain(
            status
                .container_statuses
                .iter()
                .flatten()
                .filter(|one| !one.ready && !has_succeeded(one)),
        )
        .collect();
    let mut found: Vec<UnreadyContainer> = all
        .iter()
        .filter_map(|one| check_container(one, &commands, runs_in))
        .collect();
    // A container that only waits for another one says nothing.
    let certain = found.iter().position(|one| !one.may_pass);
    (!found.is_empty()).then(|| found.swap_remove(certain.unwrap_or(0)))
}

/// An init container that runs on, without a probe that failed.
fn is_sidecar_that_runs(one: &ContainerStatus) -> bool {
    one.started == Some(true)
        && one
            .state
            .as_ref()
            .is_some_and(|state| state.running.is_some())
}

fn has_succeeded(one: &ContainerStatus) -> bool {
    one.state
        .as_ref()
        .and_then(|state| state.terminated.as_ref())
        .is_some_and(|end| end.exit_code == 0)
}

/// The cluster in which a container runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RunsIn {
    ThisCluster,
    Provider,
}

/// The run of a container that ended.
#[derive(Clone, Copy)]
enum EndedRun {
    Present,
    /// Another one was started since.
    Previous,
}

struct KubectlCommands<'a> {
    kubectl: &'a str,
    pod: &'a str,
}

impl KubectlCommands<'_> {
    fn describe_command(&self) -> String {
        format!(
            "`{} describe pod {}` shows its events",
            self.kubectl, self.pod
        )
    }

    fn logs_command(&self, container: &str, run: EndedRun) -> String {
        let previous = match run {
            EndedRun::Present => "",
            EndedRun::Previous => " --previous",
        };
        format!(
            "`{} logs {} -c {container}{previous}` shows what it wrote before it ended",
            self.kubectl, self.pod
        )
    }
}

fn check_container(
    one: &ContainerStatus,
    commands: &KubectlCommands,
    runs_in: RunsIn,
) -> Option<UnreadyContainer> {
    let ContainerState {
        running,
        terminated,
        waiting,
    } = one.state.clone().unwrap_or_default();
    let last = one
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    let past = describe_last_end(one, last);
    let name = &one.name;
    let (what, advice, may_pass) = if let Some(waiting) = waiting {
        let reason = waiting.reason.as_deref().unwrap_or("no reason");
        (
            format!("waits: {}", describe_waiting(&waiting, reason)),
            waiting_advice(reason, one, last, commands, runs_in),
            STARTING.contains(&reason),
        )
    } else if let Some(end) = terminated.filter(|end| end.exit_code != 0) {
        (
            format!("ended: {}", describe_end(&end)),
            end_advice(&end, name, commands, EndedRun::Present),
            false,
        )
    } else {
        running?;
        let advice = match last {
            Some(end) => end_advice(end, name, commands, EndedRun::Previous),
            None => format!(
                "it has just started, or its startup or readiness probe fails: {}",
                commands.describe_command()
            ),
        };
        (
            "runs and is not ready".to_owned(),
            advice,
            one.restart_count == 0,
        )
    };
    Some(UnreadyContainer {
        what: format!("container {name} {what}{past}"),
        advice,
        may_pass,
    })
}

/// The last end of the container, and the number of its restarts.
fn describe_last_end(one: &ContainerStatus, last: Option<&ContainerStateTerminated>) -> String {
    let times = match one.restart_count {
        0 => String::new(),
        1 => "; 1 restart".to_owned(),
        number => format!("; {number} restarts"),
    };
    format!(
        "{}{times}",
        last.map(|end| format!("; it ended before: {}", describe_end(end)))
            .unwrap_or_default()
    )
}

fn describe_end(end: &ContainerStateTerminated) -> String {
    let message = end.message.as_deref().filter(|message| !message.is_empty());
    let reason = end.reason.as_deref().unwrap_or("no reason");
    let message = message
        .map(|message| format!(", {}", message.trim_end()))
        .unwrap_or_default();
    format!("{reason}, exit code {}{message}", end.exit_code)
}

fn describe_waiting(waiting: &ContainerStateWaiting, reason: &str) -> String {
    match waiting
        .message
        .as_deref()
        .map(without_pod)
        .filter(|message| !message.is_empty())
    {
        Some(message) => format!("{reason}: {message}"),
        None => reason.to_owned(),
    }
}

/// The message without the kubelet's tail ` pod=NAME_NAMESPACE(UID)`, which names a pod as its own
/// cluster does.
fn without_pod(message: &str) -> &str {
    match message.rsplit_once(" pod=") {
        Some((before, tail))
            if tail.ends_with(')') && tail.contains('(') && !tail.contains(' ') =>
        {
            before
        }
        _ => message,
    }
}

fn waiting_advice(
    reason: &str,
    one: &ContainerStatus,
    last: Option<&ContainerStateTerminated>,
    commands: &KubectlCommands,
    runs_in: RunsIn,
) -> String {
    let describe = commands.describe_command();
    match reason {
        "ErrImagePull"
        | "ImagePullBackOff"
        | "ErrImageNeverPull"
        | "InvalidImageName"
        | "RegistryUnavailable"
            if runs_in == RunsIn::Provider =>
        {
            format!(
                "check the image's name; the provider pulls images itself, so it needs access to the registry: {describe}"
            )
        }
        "ErrImagePull"
        | "ImagePullBackOff"
        | "ErrImageNeverPull"
        | "InvalidImageName"
        | "RegistryUnavailable" => {
            format!(
                "check the image's name, and that the node has access to the registry: {describe}"
            )
        }
        "CreateContainerConfigError" if runs_in == RunsIn::Provider => {
            format!(
                "the provider has only those ConfigMaps and Secrets that exist here and are reflected: {describe}"
            )
        }
        "CreateContainerConfigError" => {
            format!("a ConfigMap or Secret that it names is missing: {describe}")
        }
        "CreateContainerError" | "RunContainerError" => {
            format!("check its command and its volumes: {describe}")
        }
        "ContainerCreating" if runs_in == RunsIn::Provider => format!(
            "wait; if it lasts, a volume is missing, such as a ConfigMap or Secret that could not be created there: {describe}"
        ),
        "ContainerCreating" | "PodInitializing" => format!("wait; if it lasts: {describe}"),
        _ => match last {
            Some(end) => end_advice(end, &one.name, commands, EndedRun::Previous),
            None => describe,
        },
    }
}

fn end_advice(
    end: &ContainerStateTerminated,
    container: &str,
    commands: &KubectlCommands,
    run: EndedRun,
) -> String {
    let (logs, describe) = (
        commands.logs_command(container, run),
        commands.describe_command(),
    );
    match (end.reason.as_deref(), end.exit_code) {
        (Some("OOMKilled"), _) => {
            format!(
                "it needs more memory than its limit: raise the limit or, if it has none, the request; {logs}"
            )
        }
        (Some("StartError" | "ContainerCannotRun"), _) | (_, 126 | 127) => {
            format!("its command cannot be started: check `command` and `args`; {describe}")
        }
        (_, 0) => format!(
            "its program ended by itself, or its liveness or startup probe failed and it ended in order: {describe}; {logs}"
        ),
        // Killed or asked to end: a probe does that.
        (_, 137 | 143) => {
            format!(
                "it was ended from outside, mostly because its liveness or startup probe failed: {describe}; {logs}"
            )
        }
        _ => logs,
    }
}

#[cfg(test)]
#[allow(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(container: Value, is_remote: bool) -> Option<UnreadyContainer> {
        let mut status =
            json!({ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0 });
        for (key, value) in container.as_object().unwrap() {
            status[key] = value.clone();
        }
        let status = serde_json::from_value(json!({ "containerStatuses": [status] })).unwrap();
        let runs_in = if is_remote {
            RunsIn::Provider
        } else {
            RunsIn::ThisCluster
        };
        unready_container(&status, "kubectl -n demo", "web", runs_in)
    }

    fn waiting(reason: &str, message: &str) -> Value {
        json!({ "waiting": { "reason": reason, "message": message } })
    }

    fn end(reason: &str, code: i32) -> Value {
        json!({ "terminated": { "reason": reason, "exitCode": code } })
    }

    #[test]
    fn a_crash_loop_shows_the_last_end_the_restarts_and_where_its_log_is() {
        let message = "back-off 40s restarting failed container=c pod=web_demo-rome-abc(7d8f)";
        let state = waiting("CrashLoopBackOff", message);
        let crash = found(
            json!({ "state": state, "lastState": end("Error", 3), "restartCount": 4 }),
            true,
        )
        .unwrap();
        let what = "container c waits: CrashLoopBackOff: back-off 40s restarting failed container=c; it ended before: Error, exit code 3; 4 restarts";
        assert_eq!((crash.what.as_str(), crash.may_pass), (what, false));
        assert!(
            crash
                .advice
                .starts_with("`kubectl -n demo logs web -c c --previous`"),
            "{}",
            crash.advice
        );
        let between = found(json!({ "state": end("Error", 3), "restartCount": 1 }), true).unwrap();
        assert_eq!(
            between.what,
            "container c ended: Error, exit code 3; 1 restart"
        );
        assert!(
            between
                .advice
                .starts_with("`kubectl -n demo logs web -c c` "),
            "{}",
            between.advice
        );
        let again = found(
            json!({ "state": { "running": {} }, "lastState": end("Error", 3), "restartCount": 2 }),
            true,
        )
        .unwrap();
        assert_eq!(
            again.what,
            "container c runs and is not ready; it ended before: Error, exit code 3; 2 restarts"
        );
        assert!(again.advice.contains("--previous"));
    }

    #[test]
    fn each_reason_has_its_own_advice() {
        let advice = |reason, is_remote| {
            found(json!({ "state": waiting(reason, "m") }), is_remote)
                .unwrap()
                .advice
        };
        assert!(advice("ImagePullBackOff", true).contains("the provider pulls images itself"));
        assert!(!advice("ImagePullBackOff", false).contains("provider"));
        assert!(advice("CreateContainerConfigError", true).contains("reflected"));
        let after = |reason, code| {
            let state = waiting("CrashLoopBackOff", "m");
            found(
                json!({ "state": state, "lastState": end(reason, code), "restartCount": 1 }),
                true,
            )
            .unwrap()
            .advice
        };
        assert!(after("StartError", 128).contains("`command`"));
        assert!(after("OOMKilled", 137).contains("memory"));
        assert!(after("Error", 137).contains("probe"));
        assert!(
            after("Completed", 0).contains("ended by itself")
                && after("Completed", 0).contains("probe")
        );
        for text in [
            after("Error", 1),
            after("Error", 137),
            after("StartError", 128),
        ] {
            assert!(
                !text.contains("pulls images") && !text.contains("reflected"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_container_that_starts_or_whose_probe_has_not_succeeded_may_pass() {
        for state in [waiting("ContainerCreating", ""), json!({ "running": {} })] {
            assert!(found(json!({ "state": state }), true).unwrap().may_pass);
        }
        assert_eq!(
            found(json!({ "state": { "running": {} }, "ready": true }), true),
            None
        );
        assert_eq!(found(json!({ "state": end("Completed", 0) }), true), None);
    }

    #[test]
    fn the_container_that_fails_is_named_and_not_those_that_wait_for_it() {
        let one = |name: &str, state: Value| json!({ "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state });
        let found = |init: Value, main: Value| {
            let status = json!({ "initContainerStatuses": [init], "containerStatuses": [main] });
            unready_container(
                &serde_json::from_value(status).unwrap(),
                "kubectl",
                "web",
                RunsIn::Provider,
            )
            .unwrap()
            .what
        };
        let waits = || one("main", waiting("PodInitializing", ""));
        assert_eq!(
            found(one("setup", end("Error", 1)), waits()),
            "container setup ended: Error, exit code 1"
        );
        assert_eq!(
            found(one("setup", waiting("ErrImagePull", "")), waits()),
            "container setup waits: ErrImagePull"
        );
    }
}

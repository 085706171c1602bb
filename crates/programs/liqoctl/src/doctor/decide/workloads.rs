//! Liqo's own pods: those that do not start, and those that were restarted.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::{count_of, unread_finding};
use crate::{
    cluster::full_name,
    doctor::{Check, CheckFinding},
    image_pulls,
    inspect::{ClusterFacts, container_statuses},
};

/// Older restarts are ignored.
const RECENT: SignedDuration = SignedDuration::from_hours(1);

/// Judges the pods in Liqo's namespaces.
pub fn pods(facts: &ClusterFacts) -> CheckFinding {
    let check = Check::Pods;
    let pods = match &facts.pods {
        Ok(pods) => pods,
        Err(why) => return unread_finding(check, why),
    };
    if pods.is_empty() {
        return CheckFinding::fail(
            check,
            "there is no pod in namespaces liqo and liqo-fabric",
            "see manager; run `liqoctl install` again",
        );
    }
    let stuck: Vec<(String, &str)> = pods
        .iter()
        .filter_map(|pod| why_not_starting(pod, facts))
        .collect();
    if let Some((first, advice)) = stuck.first() {
        let more = if stuck.len() > 1 {
            format!("; and {} like it", count_of(stuck.len() - 1, "pod"))
        } else {
            String::new()
        };
        return CheckFinding::fail(check, format!("{first}{more}"), *advice);
    }
    let restarted: Vec<String> = pods
        .iter()
        .filter_map(|pod| recent_restart(pod, facts))
        .collect();
    match restarted.first() {
        Some(first) => {
            let more = if restarted.len() > 1 {
                format!("; and {}", count_of(restarted.len() - 1, "other pod"))
            } else {
                String::new()
            };
            CheckFinding::warn(
                check,
                format!("{first}{more}"),
                "`kubectl -n NAMESPACE logs POD --previous` shows the rest of its log",
            )
        }
        None => CheckFinding::ok(
            check,
            format!("{} without problems", count_of(pods.len(), "pod")),
        ),
    }
}

/// The reason why a pod does not start, and advice.
pub fn why_not_starting(pod: &Pod, facts: &ClusterFacts) -> Option<(String, &'static str)> {
    let name = full_name(pod);
    let status = pod.status.as_ref()?;
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    if let Some(condition) = unscheduled {
        let message = condition
            .message
            .as_deref()
            .unwrap_or("the scheduler does not say why");
        return Some((
            format!("{name} has no node: {message}"),
            "free resources, or check taints and `liqoctl install --set controllerManager.avoidNodes`",
        ));
    }
    let waiting = container_statuses(pod)
        .find_map(|status| Some((status, status.state.as_ref()?.waiting.as_ref()?)));
    let (container, waiting) = waiting?;
    if let Some(missing) = image_pulls::missing_image(pod) {
        return Some((missing.to_string(), image_pulls::ADVICE));
    }
    let reason = waiting.reason.as_deref().unwrap_or_default();
    let message = waiting.message.as_deref().unwrap_or_default();
    match reason {
        "CrashLoopBackOff" => {
            let end = last_end(container).unwrap_or_default();
            Some((
                format!(
                    "{name} crashes repeatedly{end}{}",
                    last_log_line(&name, facts)
                ),
                "the end of its log says why; `kubectl -n NAMESPACE logs POD --previous` shows all of it",
            ))
        }
        "" | "ContainerCreating" | "PodInitializing" => None,
        _ => Some((
            format!("{name} does not start: {reason}: {message}"),
            "`kubectl -n NAMESPACE describe pod POD` says more",
        )),
    }
}

/// Whether a pod was restarted recently, and why.
fn recent_restart(pod: &Pod, facts: &ClusterFacts) -> Option<String> {
    let container = container_statuses(pod).find(|status| {
        let ended = status
            .last_state
            .as_ref()
            .and_then(|state| state.terminated.as_ref())
            .and_then(|end| end.finished_at.as_ref());
        ended.is_some_and(|at| facts.now().duration_since(at.0) < RECENT)
    })?;
    let name = full_name(pod);
    let times = count_of(
        usize::try_from(container.restart_count).unwrap_or(0),
        "time",
    );
    Some(format!(
        "{name} was restarted, {times} in all{}{}",
        last_end(container)?,
        last_log_line(&name, facts)
    ))
}

fn last_end(container: &ContainerStatus) -> Option<String> {
    let end = container.last_state.as_ref()?.terminated.as_ref()?;
    let reason = end.reason.as_deref().unwrap_or("no reason");
    Some(format!(" (last: {reason}, exit code {})", end.exit_code))
}

fn last_log_line(name: &str, facts: &ClusterFacts) -> String {
    facts
        .diagnostics
        .last_log_lines
        .get(name)
        .map(|line| format!("; it logged: {line}"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;

//! Namespaces and pods that are offloaded, as their users see them.

pub mod advice;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, Node, Pod, PodCondition};
use kube::ResourceExt;
use liqo_api::conditions::StatusCondition as _;
use liqo_api::{NamespaceOffloading, PodOffloadingStrategy, pods};
use liqo_offloading_rules::namespace::brokered::is_brokered;

use super::{count_of, first_few, unread_finding};
use crate::{
    cluster::full_name,
    doctor::{Check, CheckFinding},
    evict::decide::is_finished,
    inspect::{ClusterFacts, failed_creations::time_of, is_virtual},
};

/// After this time, and earlier, Kubernetes tries again what failed.
const RETRIED_AFTER: SignedDuration = SignedDuration::from_mins(17);
/// A pod that takes longer to be sent, or to end after its grace period, is stuck.
const STUCK_AFTER: SignedDuration = SignedDuration::from_secs(60);

pub fn check_offloading(facts: &ClusterFacts) -> Vec<CheckFinding> {
    let mut found = check_offloaded_namespaces(facts);
    found.push(not_created(facts));
    found
}

fn check_offloaded_namespaces(facts: &ClusterFacts) -> Vec<CheckFinding> {
    let offloadings = match &facts.liqo.offloadings {
        Ok(offloadings) => offloadings,
        Err(why) => return vec![unread_finding(Check::Namespaces, why)],
    };
    if offloadings.is_empty() {
        return vec![CheckFinding::skipped(
            Check::Namespaces,
            "no namespace is offloaded: `liqoctl offload namespace NAME`",
        )];
    }
    let mut found: Vec<CheckFinding> = offloadings
        .iter()
        .map(|offloading| check_offloaded_namespace(offloading, facts))
        .collect();
    found.push(check_pod_webhook(offloadings, facts));
    match (&facts.local_pods, &facts.nodes) {
        (Err(why), _) | (_, Err(why)) => {
            found.extend(
                [Check::PodsRefused, Check::PodsWaiting, Check::PodsEnding]
                    .map(|check| unread_finding(check, why)),
            );
        }
        (Ok(all), Ok(nodes)) => {
            let there = pods_on_virtual_nodes(all, nodes);
            found.extend([
                check_refused_pods(&there),
                check_waiting_pods(all, &there, offloadings, facts),
                check_terminating_pods(&there, facts),
            ]);
        }
    }
    found
}

fn check_offloaded_namespace(
    offloading: &NamespaceOffloading,
    facts: &ClusterFacts,
) -> CheckFinding {
    let check = Check::Namespaces;
    let name = offloading.namespace().unwrap_or_default();
    let status = offloading.status.clone().unwrap_or_default();
    let Some(condition) = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")
    else {
        let created = offloading
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(facts.now(), |time| time.0);
        if facts.now().duration_since(created) < STUCK_AFTER {
            return CheckFinding::unknown(
                check,
                format!("{name}: there is no condition yet; check again in a minute"),
            );
        }
        return CheckFinding::fail(
            check,
            format!("{name}: there is no condition"),
            "see leader: the manager writes the condition Ready",
        );
    };
    if condition.is_true() {
        let remote: Vec<String> = status
            .remote_namespaces
            .iter()
            .map(|one| format!("{} in {}", one.namespace, one.cluster_name))
            .collect();
        return CheckFinding::ok(check, format!("{name}: {}", first_few(&remote)));
    }
    let advice = advice::namespace_advice(&condition.reason);
    CheckFinding::fail(
        check,
        format!("{name}: {}: {}", condition.reason, condition.message),
        advice,
    )
}

/// Whether the webhook gets the new pods of each namespace that needs it.
fn check_pod_webhook(offloadings: &[NamespaceOffloading], facts: &ClusterFacts) -> CheckFinding {
    let check = Check::NamespaceWebhook;
    let configuration = match &facts.webhook {
        Ok(configuration) => configuration,
        Err(why) => return unread_finding(check, why),
    };
    let entries = configuration
        .iter()
        .flat_map(|one| one.webhooks.iter().flatten());
    let named: BTreeSet<&String> = entries
        .filter_map(|entry| {
            entry
                .namespace_selector
                .as_ref()?
                .match_expressions
                .as_ref()
        })
        .flatten()
        // The entry for new namespaces lists those that it does not select.
        .filter(|expression| expression.operator == "In")
        .flat_map(|expression| expression.values.iter().flatten())
        .collect();
    let missing: Vec<String> = offloadings
        .iter()
        .filter(|offloading| needs_webhook(offloading))
        .filter_map(ResourceExt::namespace)
        .filter(|name| !named.contains(name))
        .collect();
    if missing.is_empty() {
        return CheckFinding::ok(
            check,
            "the webhook gets new pods of every offloaded namespace",
        );
    }
    CheckFinding::fail(
        check,
        format!(
            "the webhook does not get new pods, so they stay in this cluster, in: {}",
            first_few(&missing)
        ),
        "the manager adds them to MutatingWebhookConfiguration liqo: see leader, and the manager's rights",
    )
}

/// In the namespaces of its customers, a broker places the pods itself.
fn needs_webhook(offloading: &NamespaceOffloading) -> bool {
    !is_brokered(offloading)
        && offloading.spec.pod_offloading_strategy != PodOffloadingStrategy::Local
        && offloading.metadata.deletion_timestamp.is_none()
}

/// Unfinished pods on virtual nodes.
fn pods_on_virtual_nodes<'a>(all: &'a [Pod], nodes: &[Node]) -> Vec<&'a Pod> {
    let nodes: BTreeSet<String> = nodes
        .iter()
        .filter(|node| is_virtual(node))
        .map(ResourceExt::name_any)
        .collect();
    all.iter()
        .filter(|pod| {
            pod.spec
                .as_ref()
                .and_then(|spec| spec.node_name.as_ref())
                .is_some_and(|node| nodes.contains(node))
        })
        .filter(|pod| !is_finished(pod))
        .collect()
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status
        .as_ref()?
        .conditions
        .as_ref()?
        .iter()
        .find(|condition| condition.type_ == kind)
}

fn reason(condition: &PodCondition) -> &str {
    condition.reason.as_deref().unwrap_or("no reason")
}

/// Pods that the provider refuses, by reason, or accepts without every object that they name.
fn check_refused_pods(there: &[&Pod]) -> CheckFinding {
    let check = Check::PodsRefused;
    let mut refused: BTreeMap<&str, Vec<(&Pod, &PodCondition)>> = BTreeMap::new();
    let mut lacking = Vec::new();
    for pod in there {
        let Some(condition) = condition(pod, pods::OFFLOADED) else {
            continue;
        };
        match condition.status.as_str() {
            "False" => refused
                .entry(reason(condition))
                .or_default()
                .push((pod, condition)),
            "True" if pods::INCOMPLETE.contains(&reason(condition)) => {
                lacking.push((*pod, condition));
            }
            _ => {}
        }
    }
    if let Some((reason, group)) = refused.iter().max_by_key(|(_, group)| group.len())
        && let Some((pod, condition)) = group.first()
    {
        let number: usize = refused.values().map(Vec::len).sum();
        let others: Vec<&str> = refused
            .keys()
            .copied()
            .filter(|other| other != reason)
            .collect();
        let others = if others.is_empty() {
            String::new()
        } else {
            format!("; other reasons: {}", others.join(", "))
        };
        let what = format!(
            "{} refused, for example {}{others}",
            count_of(number, "pod"),
            refused_pod_in_words(pod, condition)
        );
        return CheckFinding::fail(check, what, advice::refused_pod_advice(reason));
    }
    if let Some((pod, condition)) = lacking.first() {
        let what = if reason(condition) == pods::ENDS_SOON {
            "ending soon"
        } else {
            "not complete at the provider"
        };
        let what = format!(
            "{} {what}, for example {}",
            count_of(lacking.len(), "pod"),
            refused_pod_in_words(pod, condition)
        );
        return CheckFinding::warn(
            check,
            what,
            advice::incomplete_pod_advice(reason(condition)),
        );
    }
    CheckFinding::ok(
        check,
        format!("{} at peers, none refused", count_of(there.len(), "pod")),
    )
}

fn refused_pod_in_words(pod: &Pod, condition: &PodCondition) -> String {
    format!(
        "{}: {}: {}",
        full_name(pod),
        reason(condition),
        condition.message.as_deref().unwrap_or_default()
    )
}

/// Pods that have no node, that the provider cannot schedule, or that are not sent yet.
fn check_waiting_pods(
    all: &[Pod],
    there: &[&Pod],
    offloadings: &[NamespaceOffloading],
    facts: &ClusterFacts,
) -> CheckFinding {
    let check = Check::PodsWaiting;
    let unsent: Vec<&&Pod> = there
        .iter()
        .filter(|pod| is_stuck_before_sending(pod, facts.now()))
        .collect();
    if let Some(pod) = unsent.first() {
        let what = format!(
            "{} bound to a node of a peer and not sent, for example {}",
            count_of(unsent.len(), "pod"),
            full_name(**pod)
        );
        return CheckFinding::fail(
            check,
            what,
            "see the peer's links (peer-reachable), leader, and namespaces",
        );
    }
    let unplaced = there.iter().find_map(|pod| {
        let condition = condition(pod, pods::REMOTE_SCHEDULED)
            .filter(|condition| condition.status == "False")?;
        Some(format!(
            "the provider cannot schedule {}: {}",
            full_name(*pod),
            condition.message.as_deref().unwrap_or_default()
        ))
    });
    if let Some(what) = unplaced {
        return CheckFinding::warn(check, what, advice::UNPLACED);
    }
    let unscheduled = all
        .iter()
        .filter(|pod| runs_only_at_peers(pod, offloadings) && !is_finished(pod))
        .find_map(|pod| {
            let condition =
                condition(pod, "PodScheduled").filter(|condition| condition.status == "False")?;
            Some(format!(
                "{} has no node: {}",
                full_name(pod),
                condition.message.as_deref().unwrap_or_default()
            ))
        });
    match unscheduled {
        Some(what) => CheckFinding::warn(
            check,
            what,
            "pods of its namespace run only at peers: are there virtual nodes with free resources (`liqoctl status`), and does the selector match one of them?",
        ),
        None => CheckFinding::ok(check, "no pod waits to run at a peer"),
    }
}

/// Whether the pod has waited too long to be sent to the provider of its node.
fn is_stuck_before_sending(pod: &Pod, now: Timestamp) -> bool {
    let offloaded = condition(pod, pods::OFFLOADED);
    let is_old = pod
        .metadata
        .creation_timestamp
        .as_ref()
        .is_some_and(|created| now.duration_since(created.0) > STUCK_AFTER);
    // A pod that was sent has container statuses, or a condition that says that it has no node
    // there.
    let status = pod.status.as_ref();
    let is_there = status.is_some_and(|status| {
        status.container_statuses.iter().flatten().next().is_some()
            || status
                .phase
                .as_deref()
                .is_some_and(|phase| phase != "Pending")
    });
    let is_undecided = offloaded.is_none_or(|offloaded| offloaded.status == "Unknown");
    !is_there && is_undecided && pod.metadata.deletion_timestamp.is_none() && is_old
}

fn runs_only_at_peers(pod: &Pod, offloadings: &[NamespaceOffloading]) -> bool {
    offloadings.iter().any(|one| {
        one.namespace() == pod.namespace()
            && one.spec.pod_offloading_strategy == PodOffloadingStrategy::Remote
    })
}

fn check_terminating_pods(there: &[&Pod], facts: &ClusterFacts) -> CheckFinding {
    let check = Check::PodsEnding;
    let late: Vec<String> = there
        .iter()
        // The deletion timestamp is the end of the grace period.
        .filter(|pod| {
            pod.metadata
                .deletion_timestamp
                .as_ref()
                .is_some_and(|time| facts.now().duration_since(time.0) > STUCK_AFTER)
        })
        .map(|pod| full_name(*pod))
        .collect();
    if late.is_empty() {
        return CheckFinding::ok(check, "no pod is stuck while ending");
    }
    CheckFinding::warn(
        check,
        format!(
            "{} should have ended long ago: {}",
            count_of(late.len(), "pod"),
            first_few(&late)
        ),
        "the provider ends them first: see the peer's links; if it will not come back, `liqoctl unpeer` ends them",
    )
}

/// Controllers whose pods Liqo refused, and that have created none since.
fn not_created(facts: &ClusterFacts) -> CheckFinding {
    let check = Check::PodsNotCreated;
    let failed = match &facts.failed_creations {
        Ok(failed) => failed,
        Err(why) => return unread_finding(check, why),
    };
    let waiting: Vec<&Event> = failed
        .iter()
        .filter(|event| waits_for_pods(event, facts))
        .collect();
    let Some(last) = waiting.iter().max_by_key(|event| time_of(event)) else {
        return CheckFinding::ok(
            check,
            "no controller waits to create pods that Liqo refused",
        );
    };
    let objects: BTreeSet<String> = waiting
        .iter()
        .map(|event| controller_of_event(event))
        .collect();
    let objects: Vec<String> = objects.into_iter().collect();
    let why = last.message.as_deref().unwrap_or_default();
    CheckFinding::warn(
        check,
        format!("pods of {} were refused: {why}", first_few(&objects)),
        "Kubernetes tries again after up to 16 minutes; once the reason is gone, `kubectl annotate KIND NAME tried=again` makes it try at once",
    )
}

/// `ReplicaSet demo/web-6d4`.
fn controller_of_event(event: &Event) -> String {
    let object = &event.involved_object;
    let [kind, namespace, name] = [&object.kind, &object.namespace, &object.name]
        .map(|part| part.as_deref().unwrap_or_default());
    format!("{kind} {namespace}/{name}")
}

/// Whether the event is recent, and its controller has created no pod since.
fn waits_for_pods(event: &Event, facts: &ClusterFacts) -> bool {
    let is_recent =
        time_of(event).is_some_and(|time| facts.now().duration_since(time) < RETRIED_AFTER);
    is_recent
        && event
            .involved_object
            .uid
            .as_ref()
            .is_some_and(|uid| !facts.created_since.contains(uid))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        finding::CheckVerdict,
        inspect::fixtures::{NOW, condition as link, facts, of},
    };

    fn world(strategy: &str) -> ClusterFacts {
        let mut facts = facts();
        facts.liqo.offloadings = Ok(vec![of(json!({
            "metadata": { "name": "offloading", "namespace": "demo", "creationTimestamp": NOW },
            "spec": { "podOffloadingStrategy": strategy },
            "status": { "conditions": [link("Ready", "True", "NamespacesReady")] },
        }))]);
        facts.webhook = Ok(Some(of(json!({ "metadata": {}, "webhooks": [{
            "name": "remote.liqo.io", "admissionReviewVersions": [], "clientConfig": {}, "sideEffects": "None",
            "namespaceSelector": { "matchExpressions": [{ "key": "k", "operator": "In", "values": ["demo"] }] },
        }] }))));
        let milan = json!({ "metadata": { "name": "milan", "labels": { "liqo.io/type": "virtual-node" } } });
        facts.nodes.as_mut().unwrap().push(of(milan));
        facts
    }

    fn pod(node: Option<&str>, conditions: Value) -> Pod {
        let mut pod = json!({
            "metadata": { "name": "p", "namespace": "demo", "creationTimestamp": "2026-01-01T11:00:00Z" },
            "spec": { "containers": [], "nodeName": node },
            "status": { "phase": "Pending" },
        });
        pod["status"]["conditions"] = conditions;
        of(pod)
    }

    fn told(status: &str, reason: &str) -> Value {
        json!([{ "type": pods::OFFLOADED, "status": status, "reason": reason, "message": "m" }])
    }

    fn verdict(facts: &ClusterFacts, check: Check) -> CheckFinding {
        check_offloading(facts)
            .into_iter()
            .find(|one| one.check == check)
            .unwrap()
    }

    #[test]
    fn a_namespace_that_exists_nowhere_is_shown() {
        assert_eq!(check_offloading(&facts())[0].verdict, CheckVerdict::Skipped);
        let mut facts = world("Remote");
        assert!(
            check_offloading(&facts)
                .iter()
                .all(|one| one.verdict == CheckVerdict::Ok),
            "{:#?}",
            check_offloading(&facts)
        );
        let conditions = &mut facts.liqo.offloadings.as_mut().unwrap()[0]
            .status
            .as_mut()
            .unwrap()
            .conditions;
        *conditions = vec![link("Ready", "False", "NoClusterSelected")];
        assert_eq!(
            verdict(&facts, Check::Namespaces).verdict,
            CheckVerdict::Fail
        );
        facts.liqo.offloadings.as_mut().unwrap()[0].status = None;
        assert_eq!(
            verdict(&facts, Check::Namespaces).verdict,
            CheckVerdict::Unknown,
            "it was just made"
        );
    }

    #[test]
    fn a_namespace_whose_pods_liqo_is_not_shown_is_named() {
        let mut facts = world("Remote");
        facts.webhook = Ok(Some(of(json!({ "metadata": {} }))));
        assert!(
            verdict(&facts, Check::NamespaceWebhook)
                .what
                .ends_with("in: demo")
        );
        // A broker places the pods of its customers itself; those of a tethered cluster's user pass
        // through the webhook.
        for (label, expected) in [
            ("liqo.io/managed", CheckVerdict::Ok),
            ("liqo.io/tethered", CheckVerdict::Fail),
        ] {
            let mut labelled = facts.clone();
            labelled.liqo.offloadings.as_mut().unwrap()[0]
                .metadata
                .labels = Some([(label.to_owned(), "true".to_owned())].into());
            assert_eq!(
                verdict(&labelled, Check::NamespaceWebhook).verdict,
                expected,
                "{label}"
            );
        }
        facts.liqo.offloadings = world("Local").liqo.offloadings;
        assert_eq!(
            verdict(&facts, Check::NamespaceWebhook).verdict,
            CheckVerdict::Ok
        );
    }

    #[test]
    fn without_the_nodes_nothing_is_said_of_pods() {
        let mut facts = world("Remote");
        facts.local_pods = Ok(vec![pod(Some("milan"), told("False", "OfferExceeded"))]);
        facts.nodes = Err("cannot list nodes".to_owned());
        for check in [Check::PodsRefused, Check::PodsWaiting, Check::PodsEnding] {
            assert_eq!(
                verdict(&facts, check),
                CheckFinding::unknown(check, "cannot list nodes")
            );
        }
    }

    #[test]
    fn pods_that_are_refused_say_why() {
        let mut facts = world("Remote");
        let refused = pod(Some("milan"), told("False", "OfferExceeded"));
        facts.local_pods = Ok(vec![
            refused.clone(),
            refused,
            pod(Some("milan"), told("False", "NotAllowed")),
        ]);
        let found = verdict(&facts, Check::PodsRefused);
        assert_eq!(found.verdict, CheckVerdict::Fail);
        assert!(
            found.what.starts_with(
                "3 pods refused, for example demo/p: OfferExceeded: m; other reasons: NotAllowed"
            ),
            "{}",
            found.what
        );
        facts.local_pods = Ok(vec![pod(Some("milan"), told("False", "HostPath"))]);
        let advice = verdict(&facts, Check::PodsRefused).advice.unwrap();
        assert!(
            !advice.contains("PeeringPolicy") && advice.contains("in no other cluster"),
            "{advice}"
        );
        facts.local_pods = Ok(vec![pod(Some("milan"), told("True", pods::NOT_REFLECTED))]);
        assert_eq!(
            verdict(&facts, Check::PodsRefused).verdict,
            CheckVerdict::Warn
        );
        facts.local_pods = Ok(vec![pod(Some("milan"), told("True", "Offloaded"))]);
        assert_eq!(
            verdict(&facts, Check::PodsRefused).verdict,
            CheckVerdict::Ok
        );
    }

    #[test]
    fn pods_that_wait_are_shown() {
        let mut facts = world("Remote");
        let mut with = |pod: Pod| {
            facts.local_pods = Ok(vec![pod]);
            verdict(&facts, Check::PodsWaiting).verdict
        };
        assert_eq!(
            with(pod(Some("milan"), told("Unknown", "Sending"))),
            CheckVerdict::Fail
        );
        assert_eq!(with(pod(Some("milan"), json!([]))), CheckVerdict::Fail);
        assert_eq!(
            with(pod(Some("rome-1"), json!([]))),
            CheckVerdict::Ok,
            "it is at home"
        );
        let unplaced = json!([
            { "type": pods::OFFLOADED, "status": "True" },
            { "type": pods::REMOTE_SCHEDULED, "status": "False", "message": "0/1 nodes" },
        ]);
        assert_eq!(with(pod(Some("milan"), unplaced)), CheckVerdict::Warn);
        let homeless =
            json!([{ "type": "PodScheduled", "status": "False", "message": "0/1 nodes" }]);
        assert_eq!(with(pod(None, homeless.clone())), CheckVerdict::Warn);
        facts.liqo.offloadings = world("LocalAndRemote").liqo.offloadings;
        facts.local_pods = Ok(vec![pod(None, homeless)]);
        assert_eq!(
            verdict(&facts, Check::PodsWaiting).verdict,
            CheckVerdict::Ok,
            "that is no matter of peers"
        );
    }

    #[test]
    fn pods_that_do_not_end_are_shown() {
        let mut facts = world("Remote");
        let mut late = pod(Some("milan"), told("True", "Offloaded"));
        let mut ends_at = |at: &str| {
            late.metadata.deletion_timestamp = Some(liqo_api::Time(at.parse().unwrap()));
            facts.local_pods = Ok(vec![late.clone()]);
            verdict(&facts, Check::PodsEnding).verdict
        };
        assert_eq!(
            (
                ends_at("2026-01-01T11:59:30Z"),
                ends_at("2026-01-01T11:30:00Z")
            ),
            (CheckVerdict::Ok, CheckVerdict::Warn)
        );
    }

    #[test]
    fn a_controller_whose_pods_liqo_refused_is_named_until_it_has_created_one() {
        let mut facts = facts();
        assert_eq!(
            verdict(&facts, Check::PodsNotCreated).verdict,
            CheckVerdict::Ok
        );
        let refused = |name: &str, time: &str| -> Event {
            of(json!({
                "metadata": {}, "reason": "FailedCreate", "lastTimestamp": time,
                "involvedObject": { "kind": "ReplicaSet", "namespace": "default", "name": name, "uid": name },
                "message": "ValidatingAdmissionPolicy 'liqo-tethered' denied request: this cluster is tethered to milan",
            }))
        };
        facts.failed_creations = Ok(vec![
            refused("web", NOW),
            refused("web", NOW),
            refused("old", "2025-12-31T00:00:00Z"),
        ]);
        let found = verdict(&facts, Check::PodsNotCreated);
        assert_eq!(found.verdict, CheckVerdict::Warn);
        assert!(
            found.what.starts_with(
                "pods of ReplicaSet default/web were refused: ValidatingAdmissionPolicy"
            ),
            "{}",
            found.what
        );
        facts.created_since.insert("web".to_owned());
        assert_eq!(
            verdict(&facts, Check::PodsNotCreated).verdict,
            CheckVerdict::Ok
        );
    }
}

//! Ephemeral containers, as `kubectl debug` adds them to a running pod.
//!
//! They travel with the other changes of a pod, by the same rules as its other containers. An API
//! server takes them only for a pod that exists, through a subresource of their own, where Pod
//! Security judges them like all containers. They can have neither ports nor resources; the limits
//! of the pod's cgroup hold for them, too. One that the provider or its API server refuses is shown
//! as ended: it never starts, and nobody can change it.

use std::collections::{BTreeMap, BTreeSet};

use liqo_api::OffloadedReason;
use serde_json::{Value, json};

use crate::dns_names;
use crate::json::set_at;
use crate::pod::carry::{ProviderRules, ephemeral_container};
use crate::pod::consumer_policy::not_shared_refusal;
use crate::pod::local_status::truncate_text;
use crate::pod::reported_status::PodStatusText;
use crate::views::{
    ContainerList, ContainerStatusView, ContainerView, PodStatusView, PodView, TerminatedStateView,
};

/// Maximum number in a remote pod. Kubernetes has none, and they cannot be removed. At most as many
/// more are looked at at once: the next ones follow when the local pod shows refused ones as ended.
const MAX_COUNT: usize = 32;

const TOO_MANY: &str = "a pod in another cluster has at most 32 ephemeral containers, and they cannot be removed; delete the pod, so \
     that its controller creates it again without them";

/// The exit code of a container that never started, as a kubelet reports it.
const NOT_STARTED: i32 = 128;

/// The reasons why containers were refused, by container name.
pub type RefusedContainers = BTreeMap<String, String>;

/// The name of a container that a remote pod lacks, and what to add, or why that is refused.
pub type MissingContainer = (String, Result<Value, String>);

/// The names of a pod's ephemeral containers. Nothing else of them ever changes.
pub(crate) fn container_names(pod: &Value) -> BTreeSet<&str> {
    PodView::of(pod)
        .spec()
        .containers_in(ContainerList::Ephemeral)
        .map(ContainerView::name)
        .collect()
}

/// The number of containers that a remote pod can still get. Refused ones do not count.
pub fn remaining_containers(live: &Value) -> usize {
    MAX_COUNT.saturating_sub(container_names(live).len())
}

/// The container to add, unless the pod has no room for it.
pub fn unless_full(room: usize, judged: Result<Value, String>) -> Result<Value, String> {
    judged.and_then(|container| {
        if room > 0 {
            Ok(container)
        } else {
            Err(TOO_MANY.to_owned())
        }
    })
}

/// The provider's side: the names of those that the remote pod lacks, with what to add, or why that
/// is refused. Without `rules`, no policy selects the consumer any more.
pub fn missing_containers(
    carried: &Value,
    live: &Value,
    rules: Option<&ProviderRules>,
) -> Vec<MissingContainer> {
    let existing = container_names(live);
    let missing = PodView::of(carried)
        .spec()
        .containers_in(ContainerList::Ephemeral)
        .filter(|container| {
            dns_names::is_label(container.name()) && !existing.contains(container.name())
        });
    missing
        .take(remaining_containers(live) + MAX_COUNT)
        .map(|container| {
            let allowed = match rules {
                None => Err(not_shared_refusal().message),
                Some(rules) => ephemeral_container(carried, container.json(), rules)
                    .map_err(|refusal| refusal.message),
            };
            (container.name().to_owned(), allowed)
        })
        .collect()
}

/// The reported status with the containers that were refused.
pub(crate) fn with_refused_containers(
    status: Option<PodStatusText>,
    refused: &RefusedContainers,
) -> Option<PodStatusText> {
    if refused.is_empty() {
        return status;
    }
    let mut status = status.map(|status| status.to_value()).unwrap_or_default();
    let known = PodStatusView::of(&status).statuses_in(ContainerList::Ephemeral);
    let mut statuses: Vec<Value> = known.map(|one| one.json().clone()).collect();
    statuses.extend(refused.iter().map(|(name, message)| {
        let ended = json!({ "exitCode": NOT_STARTED, "reason": OffloadedReason::NotAllowed.as_str(), "message": truncate_text(message) });
        json!({ "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": { "terminated": ended } })
    }));
    set_at(
        &mut status,
        &[ContainerList::Ephemeral.status_field()],
        statuses,
    );
    Some(PodStatusText::from_status(&status))
}

/// A sentence about containers that the provider refused, and of which the local pod does not know
/// yet.
pub fn newly_refused_message(home: &Value, remote: &Value) -> Option<String> {
    let known_as_ended = PodView::of(home)
        .status()
        .statuses_in(ContainerList::Ephemeral)
        .filter(|status| status.state().terminated().is_some())
        .map(ContainerStatusView::name)
        .collect::<BTreeSet<_>>();
    let ours = container_names(home);
    let refused = PodStatusView::of(remote)
        .statuses_in(ContainerList::Ephemeral)
        .filter(|status| ours.contains(status.name()) && !known_as_ended.contains(status.name()))
        .filter_map(|status| {
            let ended = status
                .state()
                .terminated()
                .filter(|ended| is_refused(*ended))?;
            Some(format!(
                "the provider refused the ephemeral container {}: {}",
                status.name(),
                ended.message()
            ))
        });
    let all = refused.collect::<Vec<_>>().join("; ");
    (!all.is_empty()).then(|| truncate_text(&all))
}

/// The reason why the provider refused an ephemeral container, as the local pod shows it; `None` if
/// it did not.
pub fn container_refusal(home: &Value, container: &str) -> Option<String> {
    let mut statuses = PodView::of(home)
        .status()
        .statuses_in(ContainerList::Ephemeral);
    let status = statuses.find(|status| status.name() == container)?;
    let ended = status
        .state()
        .terminated()
        .filter(|ended| is_refused(*ended))?;
    Some(ended.message().to_owned())
}

/// Whether a container ended because the provider refused it.
fn is_refused(ended: TerminatedStateView<'_>) -> bool {
    ended.reason() == Some(OffloadedReason::NotAllowed.as_str())
}

#[cfg(test)]
mod tests {
    use liqo_api::ReflectedKind;

    use super::*;
    use crate::pod::carry::outgoing_pod;
    use crate::replica::{kind::ReplicaKind, name::replica_name};

    fn pod(containers: &[&str], ended: &[&str]) -> Value {
        let containers: Vec<Value> = containers
            .iter()
            .map(|name| json!({ "name": name, "image": "busybox" }))
            .collect();
        let ended: Vec<Value> = ended
            .iter()
            .map(|name| json!({ "name": name, "state": { "terminated": {} } }))
            .collect();
        json!({ "spec": { "ephemeralContainers": containers }, "status": { "ephemeralContainerStatuses": ended } })
    }

    #[test]
    fn what_has_ended_is_not_sent_again() {
        let sent = outgoing_pod(&pod(&["a", "b"], &["a"]), &BTreeSet::new()).unwrap();
        assert_eq!(
            sent["spec"]["ephemeralContainers"],
            json!([{ "name": "b", "image": "busybox" }])
        );
    }

    fn rules() -> ProviderRules {
        ProviderRules {
            policy: "partners".into(),
            reflected_kinds: vec![ReflectedKind::ConfigMap],
            ..ProviderRules::default()
        }
    }

    /// The one container that a pod lacks.
    fn judged(container: &Value, rules: Option<&ProviderRules>) -> Result<Value, String> {
        let mut carried = pod(&[], &[]);
        carried["spec"]["ephemeralContainers"] = json!([container]);
        missing_containers(&carried, &pod(&[], &[]), rules)
            .remove(0)
            .1
    }

    #[test]
    fn a_remote_pod_gets_what_it_lacks_and_the_rest_is_refused_in_words() {
        let found = |carried: &[&str]| {
            missing_containers(&pod(carried, &[]), &pod(&["a"], &[]), Some(&rules()))
        };
        assert_eq!(
            found(&["a", "b", "", "../x"]),
            [(
                "b".to_owned(),
                Ok(json!({ "name": "b", "image": "busybox",
            "securityContext": { "capabilities": { "drop": ["NET_RAW"] } } }))
            )]
        );
        let many: Vec<String> = (0..100).map(|number| format!("c{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(
            found(&many).len(),
            MAX_COUNT - 1 + MAX_COUNT,
            "the next ones follow later"
        );
        let one = || Ok(json!({ "name": "b" }));
        assert_eq!(
            (
                remaining_containers(&pod(&["a"], &[])),
                unless_full(1, one())
            ),
            (MAX_COUNT - 1, one())
        );
        assert_eq!(
            (
                remaining_containers(&pod(&many, &[])),
                unless_full(0, one())
            ),
            (0, Err(TOO_MANY.to_owned()))
        );
        assert_eq!(
            unless_full(0, Err("violates PodSecurity".to_owned())),
            Err("violates PodSecurity".to_owned())
        );
        assert!(TOO_MANY.contains(&format!("at most {MAX_COUNT} ")));
    }

    #[test]
    fn the_providers_rules_for_containers_hold_for_ephemeral_ones() {
        let with = |key: &str, value: Value| {
            let mut container = json!({ "name": "debug", "image": "i" });
            container[key] = value;
            judged(&container, Some(&rules()))
        };
        assert!(
            with("ports", json!([{ "hostPort": 80 }]))
                .unwrap_err()
                .contains("hostPort")
        );
        assert!(
            with("envFrom", json!([{ "secretRef": { "name": "login" } }]))
                .unwrap_err()
                .contains("the Secret login")
        );
        let (config_map, secret) = (
            replica_name(ReplicaKind::ConfigMap, "m"),
            replica_name(ReplicaKind::Secret, "login"),
        );
        let allowed = json!([{ "configMapRef": { "name": "m" } }, { "secretRef": { "name": "login", "optional": true } }]);
        let there = json!([{ "configMapRef": { "name": config_map } }, { "secretRef": { "name": secret, "optional": true } }]);
        assert_eq!(with("envFrom", allowed).unwrap()["envFrom"], there);
        let refusal = judged(&json!({ "name": "debug", "image": "i" }), None).unwrap_err();
        assert_eq!(refusal, not_shared_refusal().message);
    }

    #[test]
    fn an_ephemeral_container_reads_about_itself_what_it_would_read_at_home() {
        let field =
            |path: &str| json!({ "name": "X", "valueFrom": { "fieldRef": { "fieldPath": path } } });
        let env = [
            "metadata.namespace",
            "metadata.uid",
            "spec.nodeName",
            "metadata.name",
        ]
        .map(field);
        let home = json!({ "metadata": { "name": "web", "namespace": "demo" }, "spec": { "nodeName": "milan", "containers": [],
            "ephemeralContainers": [{ "name": "debug", "image": "i", "env": env }] } });
        let carried = outgoing_pod(&home, &BTreeSet::new()).unwrap();
        let added = missing_containers(&carried, &pod(&[], &[]), Some(&rules()))
            .remove(0)
            .1
            .unwrap();
        let expected = json!([field("metadata.labels['liqo.io/home-namespace']"), field("metadata.labels['liqo.io/shadow-pod']"),
            { "name": "X", "value": "milan" }, field("metadata.name")]);
        assert_eq!(added["env"], expected);
    }

    #[test]
    fn a_refused_container_has_ended_and_its_owner_is_told_once() {
        let refused =
            RefusedContainers::from([("a".to_owned(), "violates PodSecurity".to_owned())]);
        let reported = with_refused_containers(
            Some(PodStatusText::from_status(&json!({ "phase": "Running" }))),
            &refused,
        )
        .unwrap()
        .to_value();
        assert_eq!(reported["phase"], "Running");
        let home = pod(&["a"], &[]);
        let message = newly_refused_message(&home, &reported).unwrap();
        assert_eq!(
            message,
            "the provider refused the ephemeral container a: violates PodSecurity"
        );
        assert_eq!(
            newly_refused_message(&pod(&["a"], &["a"]), &reported),
            None,
            "the local pod shows it"
        );
        assert_eq!(
            newly_refused_message(&pod(&["b"], &[]), &reported),
            None,
            "a stranger"
        );
        let shown = json!({ "status": reported });
        assert_eq!(
            container_refusal(&shown, "a").as_deref(),
            Some("violates PodSecurity")
        );
        assert_eq!(
            (
                container_refusal(&shown, "b"),
                container_refusal(&pod(&["a"], &["a"]), "a")
            ),
            (None, None),
            "it ended by itself"
        );
        let untouched = Some(PodStatusText::from_status(&json!({ "phase": "Running" })));
        assert_eq!(
            with_refused_containers(untouched.clone(), &RefusedContainers::new()),
            untouched
        );
    }
}

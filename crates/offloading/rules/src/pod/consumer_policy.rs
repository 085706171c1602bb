//! Rules for the usage of a consumer's pods here, by the `PeeringPolicy` that applies to it.
//!
//! The policy is looked up when it is needed, so a change applies to every pod that is created
//! later. A narrower policy does not end running pods.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use liqo_api::policies::{self, PolicyPeer};
use liqo_api::{
    Charge, ClusterId, ForeignCluster, Hardening, OffloadedReason, PeeringPolicy, PodSecurity,
    Usage,
};
use liqo_quantity::Quantity;
use serde_json::Value;

use crate::namespace::mapped::ConsumerNamespace;
pub use crate::patterns::matches_any_pattern;
use crate::pod::admission::{AdmissionRefusal, PoolOffer};
use crate::pod::carry::amounts::{self, AmountRules, EPHEMERAL_STORAGE, MEMORY};
use crate::pod::carry::{ALLOWED_VOLUMES, ProviderRules};
use crate::replica::kind::ReplicaKind;

/// The label for the standard that Pod Security Admission enforces.
pub const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

/// Rules for the usage of a consumer's pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConsumerPolicy {
    /// Name of the policy.
    pub name: String,
    pub usage: Usage,
    /// The consumer knows of the end of its pods this long before.
    pub notice: Duration,
}

/// The rules for this consumer; `None` if no policy selects it.
pub fn policy_of_consumer(
    policies: &[Arc<PeeringPolicy>],
    consumer: &ClusterId,
    foreign_cluster: Option<&ForeignCluster>,
) -> Option<ConsumerPolicy> {
    let found = policies::policies_of_peer(policies, &PolicyPeer::new(consumer, foreign_cluster));
    let policy = found.first()?;
    let (name, provide) = (
        policy.metadata.name.clone().unwrap_or_default(),
        &policy.spec.provide,
    );
    let notice = Duration::from_secs(provide.notice_seconds.into());
    Some(ConsumerPolicy {
        name,
        usage: provide.usage.clone(),
        notice,
    })
}

/// The pod with the requests and limits that a provider writes into it if its policy has the
/// defaults: its ledger charges these.
pub fn with_default_amounts(spec: PodSpec) -> PodSpec {
    complete_with_defaults(&spec).unwrap_or(spec)
}

fn complete_with_defaults(spec: &PodSpec) -> Option<PodSpec> {
    let Value::Object(mut fields) = serde_json::to_value(spec).ok()? else {
        return None;
    };
    amounts::complete_amounts(&mut fields, &ConsumerPolicy::default().amount_rules(None));
    serde_json::from_value(fields.into()).ok()
}

/// The refusal of a pod of a consumer that no policy selects.
pub fn not_shared_refusal() -> AdmissionRefusal {
    AdmissionRefusal {
        reason: OffloadedReason::NotAllowed.as_str(),
        message: "no PeeringPolicy of the provider selects this cluster any more".to_owned(),
    }
}

impl ConsumerPolicy {
    /// The rules for pods that use this offer.
    pub fn provider_rules(&self, offer: Option<&PoolOffer>) -> ProviderRules {
        let allowed_types = self.usage.volume_types.as_ref();
        ProviderRules {
            policy: self.name.clone(),
            advertised: offer
                .into_iter()
                .flat_map(|offer| offer.advertised.iter().cloned())
                .collect(),
            borrowed: offer.is_some_and(|offer| offer.borrowed),
            nodes: offer
                .into_iter()
                .flat_map(|offer| offer.nodes.iter().cloned())
                .collect(),
            volume_types: ALLOWED_VOLUMES
                .iter()
                .filter(|&&kind| {
                    allowed_types.is_none_or(|types| types.iter().any(|one| one == kind))
                })
                .map(|&kind| kind.to_owned())
                .collect(),
            tolerations: self.usage.named_tolerations().cloned().collect(),
            reflected_kinds: self.usage.reflected_kinds.clone(),
            priority_class: self.usage.priority_class_name.clone(),
            runtime_class: self.usage.runtime_class_name.clone(),
            api_server: self.usage.api_server,
            pod_labels: self.usage.pod_labels.clone(),
            pod_annotations: self.usage.pod_annotations.clone(),
            images: self.usage.images.clone(),
            always_pull_images: self.usage.always_pull_images,
            hardened: self.usage.hardening == Hardening::RuntimeDefault,
            amounts: self.amount_rules(offer),
            ..ProviderRules::default()
        }
    }

    /// If limits are charged, the pod sets them itself, and a limit of ephemeral storage would be
    /// charged.
    fn amount_rules(&self, offer: Option<&PoolOffer>) -> AmountRules {
        let is_offered =
            offer.is_some_and(|offer| offer.hard.get(EPHEMERAL_STORAGE) > Quantity::ZERO);
        let limited = match self.usage.charge {
            Charge::Requests => vec![MEMORY, EPHEMERAL_STORAGE],
            Charge::Limits if is_offered => vec![EPHEMERAL_STORAGE],
            Charge::Limits => Vec::new(),
        };
        let mut amounts = AmountRules {
            limited,
            limit_percentage: self.usage.default_limit_percentage,
            ..AmountRules::default()
        };
        if amounts.limited.contains(&EPHEMERAL_STORAGE) {
            // Without a request, the API server would take the limit for it, and not every node of
            // a pool may have that much.
            amounts
                .default_requests
                .push((EPHEMERAL_STORAGE.to_owned(), "0".to_owned()));
        }
        amounts
    }

    /// The refusal of a pod that is charged its limits, but whose limits do not cover its use. To a
    /// kubelet a limit of zero is no limit. Ephemeral containers have no limits.
    pub fn missing_limit(&self, spec: &PodSpec) -> Option<AdmissionRefusal> {
        let (container, resource) = ["cpu", "memory"]
            .into_iter()
            .find_map(|resource| Some((container_without_limit(spec, resource)?, resource)))?;
        (self.usage.charge == Charge::Limits).then(|| AdmissionRefusal {
            reason: OffloadedReason::LimitMissing.as_str(),
            message: format!(
                "container {container} has no limit of {resource}, and PeeringPolicy {} of the provider charges limits: set limits of \
                 cpu and memory for every container, or for the pod",
                self.name
            ),
        })
    }

    /// Whether the policy allows replicas of this kind. Slices follow their Service.
    pub(crate) fn allows_kind(&self, kind: ReplicaKind) -> bool {
        kind == ReplicaKind::EndpointSlice
            || kind
                .reflected_kind()
                .is_none_or(|word| self.usage.reflected_kinds.contains(&word))
    }
}

/// The name of the first container with no limit of its own and none of the pod.
fn container_without_limit<'a>(spec: &'a PodSpec, resource: &str) -> Option<&'a str> {
    if has_limit(spec.resources.as_ref(), resource) {
        return None;
    }
    spec.init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .find(|container| !has_limit(container.resources.as_ref(), resource))
        .map(|container| container.name.as_str())
}

fn has_limit(resources: Option<&ResourceRequirements>, resource: &str) -> bool {
    resources
        .and_then(|resources| resources.limits.as_ref()?.get(resource))
        .and_then(|limit| limit.0.parse::<Quantity>().ok())
        .is_some_and(|amount| amount > Quantity::ZERO)
}

/// The value of the label for a standard.
pub fn pod_security_level(standard: PodSecurity) -> &'static str {
    match standard {
        PodSecurity::Baseline => "baseline",
        PodSecurity::Restricted => "restricted",
    }
}

/// The standard to set on a mapped namespace, if it has another one. Values other than these two
/// were set by a person and stay.
pub fn pod_security_to_set(
    namespace: &ConsumerNamespace,
    policy: Option<&ConsumerPolicy>,
) -> Option<&'static str> {
    let wanted = pod_security_level(policy?.usage.pod_security);
    let found = namespace
        .pod_security
        .iter()
        .find(|(key, _)| key == ENFORCE)
        .map(|(_, value)| value.as_str());
    (found != Some(wanted) && matches!(found, None | Some("baseline" | "restricted")))
        .then_some(wanted)
}

#[cfg(test)]
mod tests {
    use liqo_api::{PeeringPolicySpec, ReflectedKind};
    use serde_json::json;

    use super::*;
    use crate::fixtures::{consumer, mapped, policy};

    fn peering_policy(
        name: &str,
        priority: i32,
        peers: &Value,
        usage: &Value,
    ) -> Arc<PeeringPolicy> {
        let spec: PeeringPolicySpec = serde_json::from_value(
            json!({ "priority": priority, "peers": peers, "provide": { "usage": usage } }),
        )
        .unwrap();
        Arc::new(PeeringPolicy::new(name, spec))
    }

    #[test]
    fn the_policy_with_the_highest_priority_says_what_a_consumers_pods_may_use() {
        let policies = [
            peering_policy("default", 0, &json!({}), &json!({})),
            peering_policy(
                "partners",
                5,
                &json!({ "names": ["rome"] }),
                &json!({ "podSecurity": "restricted" }),
            ),
        ];
        let rome: ForeignCluster = serde_json::from_value(json!({ "apiVersion": "discovery.liqo.io/v1alpha1",
            "kind": "ForeignCluster", "metadata": { "name": "rome" }, "spec": { "clusterID": consumer() } }))
        .unwrap();
        let of = |cluster| {
            policy_of_consumer(&policies, &consumer(), cluster)
                .map(|policy| (policy.name, policy.usage.pod_security))
        };
        assert_eq!(
            of(Some(&rome)),
            Some(("partners".into(), PodSecurity::Restricted))
        );
        assert_eq!(of(None), Some(("default".into(), PodSecurity::Baseline)));
        assert_eq!(policy_of_consumer(&policies[1..], &consumer(), None), None);
    }

    #[test]
    fn a_provider_with_the_defaults_charges_pods_without_requests_too() {
        let charged = |containers: Value| {
            let spec: PodSpec =
                serde_json::from_value(json!({ "containers": containers })).unwrap();
            let charged = liqo_api::requests::of_pod(&with_default_amounts(spec));
            ["cpu", "memory", "ephemeral-storage"].map(|name| charged.get(name).to_string())
        };
        let plain = json!({ "name": "a" });
        assert_eq!(charged(json!([plain])), ["10m", "32Mi", "0"]);
        let own = json!({ "name": "b", "resources": { "requests": { "cpu": "1" }, "limits": { "memory": "2Gi" } } });
        assert_eq!(charged(json!([plain, own])), ["1010m", "2080Mi", "0"]);
    }

    #[test]
    fn what_the_policy_says_of_pods_becomes_the_rules_for_them() {
        let usage = json!({ "priorityClassName": "guests", "runtimeClassName": "sandbox",
            "tolerations": [{ "key": "gpu", "operator": "Exists" }, { "operator": "Exists" }], "volumeTypes": ["emptyDir", "hostPath"],
            "reflectedKinds": ["ConfigMap"] });
        let rules = policy(usage).provider_rules(None);
        assert_eq!(
            (
                rules.priority_class.as_deref(),
                rules.runtime_class.as_deref()
            ),
            (Some("guests"), Some("sandbox"))
        );
        assert_eq!(
            rules.tolerations.len(),
            1,
            "one without a key would let pods onto virtual nodes"
        );
        assert_eq!(
            rules.volume_types,
            ["emptyDir".to_owned()].into(),
            "what cannot travel is not opened by a policy"
        );
        assert_eq!(
            (rules.reflected_kinds, rules.policy.as_str()),
            (vec![ReflectedKind::ConfigMap], "partners")
        );
        assert_eq!(
            policy(json!({})).provider_rules(None).volume_types,
            ProviderRules::default().volume_types
        );
        assert!(
            policy(json!({ "volumeTypes": [] }))
                .provider_rules(None)
                .volume_types
                .is_empty()
        );
    }

    #[test]
    fn ephemeral_storage_is_limited_and_not_charged_unless_the_policy_charges_limits() {
        let offer = |hard: &[(&str, &str)]| {
            crate::fixtures::offer(
                hard.iter()
                    .map(|&(name, amount)| (name, amount.parse().unwrap()))
                    .collect(),
            )
        };
        let storage = |usage: Value, hard: &[(&str, &str)]| {
            let amounts = policy(usage).provider_rules(Some(&offer(hard))).amounts;
            let request = amounts
                .default_requests
                .into_iter()
                .find(|(name, _)| name == EPHEMERAL_STORAGE);
            (request.map(|(_, amount)| amount), amounts.limited)
        };
        let all = [("ephemeral-storage", "10Gi"), ("cpu", "1")];
        for hard in [&all[..], &[]] {
            assert_eq!(
                storage(json!({}), hard),
                (Some("0".to_owned()), vec![MEMORY, EPHEMERAL_STORAGE])
            );
        }
        let limits = json!({ "charge": "Limits" });
        assert_eq!(
            storage(limits.clone(), &all),
            (Some("0".to_owned()), vec![EPHEMERAL_STORAGE])
        );
        assert_eq!(storage(limits, &[]), (None, vec![]));
        assert_eq!(
            policy(json!({ "defaultLimitPercentage": 100 }))
                .provider_rules(None)
                .amounts
                .limit_percentage,
            100
        );
    }

    #[test]
    fn what_the_policy_says_of_images_and_metadata_becomes_the_rules_for_them() {
        let usage = json!({ "podLabels": ["example.com/*"], "podAnnotations": ["prometheus.io/scrape"], "images": ["docker.io"],
            "alwaysPullImages": true, "hardening": "None" });
        let rules = policy(usage).provider_rules(None);
        assert_eq!(
            (rules.pod_labels, rules.pod_annotations),
            (
                vec!["example.com/*".into()],
                vec!["prometheus.io/scrape".into()]
            )
        );
        assert_eq!(
            (rules.images, rules.always_pull_images, rules.hardened),
            (Some(vec!["docker.io".into()]), true, false)
        );
        let default = policy(json!({})).provider_rules(None);
        assert!(default.images.is_none() && !default.always_pull_images && default.hardened);
    }

    #[test]
    fn where_limits_are_charged_every_container_must_have_them() {
        let limits = json!({ "limits": { "cpu": "1", "memory": "1Gi" } });
        let refused = |charge: &str, containers: Value, more: Value| {
            let mut spec = json!({ "containers": containers });
            spec.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            let refusal = policy(json!({ "charge": charge }))
                .missing_limit(&serde_json::from_value(spec).unwrap());
            refusal.map(|refusal| refusal.message).unwrap_or_default()
        };
        let good = json!({ "name": "good", "resources": limits });
        let bare =
            json!({ "name": "bare", "resources": { "requests": { "cpu": "1", "memory": "1Gi" } } });
        let no_memory = json!({ "name": "half", "resources": { "limits": { "cpu": "1" } } });
        assert_eq!(refused("Limits", json!([good]), json!({})), "");
        assert_eq!(refused("Requests", json!([bare]), json!({})), "");
        let words = refused("Limits", json!([good, bare]), json!({}));
        assert!(
            words.starts_with("container bare has no limit of cpu, and PeeringPolicy partners"),
            "{words}"
        );
        assert!(
            refused("Limits", json!([no_memory]), json!({}))
                .contains("container half has no limit of memory")
        );
        assert!(
            refused("Limits", json!([good]), json!({ "initContainers": [bare] }))
                .contains("container bare")
        );
        assert_eq!(
            refused("Limits", json!([bare]), json!({ "resources": limits })),
            "",
            "the pod as a whole has a limit"
        );
        for zero in ["0", "0m", "0Mi", "0.0", "-1", "nonsense"] {
            for (resource, limits) in [
                ("cpu", json!({ "cpu": zero, "memory": "1Gi" })),
                ("memory", json!({ "cpu": "1", "memory": zero })),
            ] {
                let unbounded = json!({ "limits": limits });
                let words = refused(
                    "Limits",
                    json!([{ "name": "zero", "resources": unbounded }]),
                    json!({}),
                );
                assert!(
                    words.starts_with(&format!("container zero has no limit of {resource}")),
                    "{zero}: {words}"
                );
                let words = refused("Limits", json!([bare]), json!({ "resources": unbounded }));
                assert!(
                    words.starts_with(&format!("container bare has no limit of {resource}")),
                    "{zero}: {words}"
                );
            }
        }
    }

    #[test]
    fn only_the_kinds_that_the_policy_names_are_reflected() {
        let only_config_maps = policy(json!({ "reflectedKinds": ["ConfigMap"] }));
        assert!(
            only_config_maps.allows_kind(ReplicaKind::ConfigMap)
                && !only_config_maps.allows_kind(ReplicaKind::Secret)
        );
        assert!(
            !only_config_maps.allows_kind(ReplicaKind::Service)
                && only_config_maps.allows_kind(ReplicaKind::EndpointSlice)
        );
        assert!(
            policy(json!({})).allows_kind(ReplicaKind::Secret)
                && policy(json!({})).allows_kind(ReplicaKind::Service)
        );
    }

    #[test]
    fn a_pattern_fits_a_whole_name_or_its_start() {
        let patterns = ["shared".to_owned(), "team-*".to_owned()];
        for (name, fits) in [
            ("shared", true),
            ("shared-2", false),
            ("team-a", true),
            ("team-", true),
            ("team", false),
        ] {
            assert_eq!(matches_any_pattern(&patterns, name), fits, "{name}");
        }
        assert!(
            matches_any_pattern(&["*".to_owned()], "anything")
                && !matches_any_pattern(&[], "anything")
                && !matches_any_pattern(&["a*b".to_owned()], "axb")
        );
    }

    #[test]
    fn the_standard_of_a_namespace_follows_the_policy_unless_a_person_set_another() {
        let with = |level: Option<&str>| ConsumerNamespace {
            pod_security: level
                .map(|level| (ENFORCE.to_owned(), level.to_owned()))
                .into_iter()
                .collect(),
            ..mapped("demo", "u1")
        };
        let (baseline, restricted) = (
            policy(json!({})),
            policy(json!({ "podSecurity": "restricted" })),
        );
        assert_eq!(
            pod_security_to_set(&with(Some("baseline")), Some(&restricted)),
            Some("restricted")
        );
        assert_eq!(
            pod_security_to_set(&with(Some("restricted")), Some(&baseline)),
            Some("baseline")
        );
        assert_eq!(
            pod_security_to_set(&with(Some("baseline")), Some(&baseline)),
            None
        );
        assert_eq!(
            pod_security_to_set(&with(None), Some(&baseline)),
            Some("baseline"),
            "a lost label is set again"
        );
        assert_eq!(
            pod_security_to_set(&with(Some("privileged")), Some(&restricted)),
            None,
            "only a person can have set that"
        );
        assert_eq!(pod_security_to_set(&with(Some("restricted")), None), None);
    }
}

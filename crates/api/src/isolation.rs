//! Decides whether this cluster may lend: it lends if its pod network enforces `NetworkPolicies`,
//! or if its administrator allowed to lend without that.
//!
//! The manager, `liqoctl install` and `liqoctl doctor` ask the same rule.

use crate::{ClusterConfig, Condition, NETWORK_POLICIES_ENFORCED};

/// The setting of `liqoctl install` and the field of [`ClusterConfig`] that allows to lend without
/// enforced `NetworkPolicies`.
pub const LEND_WITHOUT_NETWORK_POLICIES: &str = "lendWithoutNetworkPolicies";

/// Whether this cluster lends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lending {
    /// The pod network enforces `NetworkPolicies`.
    Isolated,
    /// It does not, or this is not known, and the administrator allowed to lend nevertheless.
    Allowed,
    #[default]
    /// It is not known yet whether the pod network enforces them. What is offered already stays;
    /// nothing else is offered.
    Untested,
    /// The pod network does not enforce them, and nobody allowed to lend nevertheless. Nothing is
    /// offered.
    Refused,
}

impl Lending {
    /// What follows from the configuration and the last result of the test in its status.
    pub fn of_config(config: &ClusterConfig) -> Self {
        match are_policies_enforced(config) {
            Some(true) => Self::Isolated,
            _ if config.spec.lend_without_network_policies => Self::Allowed,
            Some(false) => Self::Refused,
            None => Self::Untested,
        }
    }

    /// Whether a consumer is offered something. `has_offer` tells whether it has an offer already.
    pub fn includes(self, has_offer: bool) -> bool {
        match self {
            Self::Isolated | Self::Allowed => true,
            Self::Untested => has_offer,
            Self::Refused => false,
        }
    }
}

/// What the last result of the test means for lending, for people. `allowed` is what the
/// administrator set.
pub fn describe_lending(enforced: Option<bool>, allowed: bool) -> String {
    let untested = "it is not known yet whether the pod network enforces NetworkPolicies, because no pod of liqo-dns could be tried";
    let open = "the pod network does not enforce NetworkPolicies: port 1054 of liqo-dns is open, which NetworkPolicy liqo/liqo-dns closes";
    match (enforced, allowed) {
        (Some(true), _) => {
            "the pod network enforces NetworkPolicies, which isolate the pods of consumers"
                .to_owned()
        }
        (Some(false), true) => format!(
            "{open}. This cluster lends nevertheless ({LEND_WITHOUT_NETWORK_POLICIES}): nothing keeps pods of consumers away from the pods here, \
             nor from each other"
        ),
        (Some(false), false) => format!(
            "{open}. So nothing is offered to other clusters, because nothing would keep their pods away from the pods here. Add a network plugin \
             that enforces them, or lend nevertheless: `liqoctl install --set {LEND_WITHOUT_NETWORK_POLICIES}=true`"
        ),
        (None, true) => {
            format!("{untested}; this cluster lends nevertheless ({LEND_WITHOUT_NETWORK_POLICIES})")
        }
        (None, false) => format!("{untested}; nothing new is offered until then"),
    }
}

/// The last result of the test; nothing if there was none.
pub fn are_policies_enforced(config: &ClusterConfig) -> Option<bool> {
    match enforcement_condition(config)?.status.as_str() {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

/// The condition with the last result of the test.
pub fn enforcement_condition(config: &ClusterConfig) -> Option<&Condition> {
    config
        .status
        .as_ref()?
        .conditions
        .iter()
        .find(|condition| condition.type_ == NETWORK_POLICIES_ENFORCED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClusterConfigSpec, ClusterConfigStatus, Time};

    fn config(status: Option<&str>, yes: bool) -> ClusterConfig {
        let spec = ClusterConfigSpec {
            lend_without_network_policies: yes,
            ..ClusterConfigSpec::default()
        };
        let condition = |status: &str| Condition {
            type_: NETWORK_POLICIES_ENFORCED.to_owned(),
            status: status.to_owned(),
            reason: "Any".to_owned(),
            message: String::new(),
            last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
            observed_generation: None,
        };
        let conditions = status.map(condition).into_iter().collect();
        let status = ClusterConfigStatus {
            conditions,
            ..ClusterConfigStatus::default()
        };
        ClusterConfig {
            status: Some(status),
            ..ClusterConfig::new("liqo", spec)
        }
    }

    #[test]
    fn a_cluster_that_does_not_enforce_network_policies_lends_only_after_an_explicit_yes() {
        for (status, yes, expected) in [
            (Some("True"), false, Lending::Isolated),
            (Some("True"), true, Lending::Isolated),
            (Some("False"), false, Lending::Refused),
            (Some("False"), true, Lending::Allowed),
            (Some("Unknown"), false, Lending::Untested),
            (None, false, Lending::Untested),
            (None, true, Lending::Allowed),
        ] {
            assert_eq!(
                Lending::of_config(&config(status, yes)),
                expected,
                "{status:?} {yes}"
            );
        }
        assert_eq!(
            Lending::of_config(&ClusterConfig::default()),
            Lending::Untested,
            "the manager has written nothing yet"
        );
    }

    #[test]
    fn a_refusal_names_the_setting_that_says_yes() {
        let yes = format!("--set {LEND_WITHOUT_NETWORK_POLICIES}=true");
        assert!(describe_lending(Some(false), false).contains(&yes));
        for (enforced, allowed) in [(Some(true), false), (Some(false), true), (None, true)] {
            assert!(
                !describe_lending(enforced, allowed).contains(&yes),
                "{enforced:?} {allowed}"
            );
        }
        assert!(
            describe_lending(Some(false), true).contains(&format!("port {}", crate::CLOSED_PORT))
        );
        let field =
            serde_json::json!({ "clusterName": "rome", LEND_WITHOUT_NETWORK_POLICIES: true });
        let spec: ClusterConfigSpec = serde_json::from_value(field).unwrap();
        assert!(
            spec.lend_without_network_policies,
            "the setting is the field"
        );
    }

    #[test]
    fn before_the_first_result_only_those_who_have_an_offer_keep_it() {
        let included =
            |lending: Lending| [false, true].map(|has_offer| lending.includes(has_offer));
        assert_eq!(included(Lending::Untested), [false, true]);
        assert_eq!(included(Lending::Refused), [false, false]);
        assert_eq!(included(Lending::Isolated), [true, true]);
        assert_eq!(included(Lending::Allowed), [true, true]);
    }
}

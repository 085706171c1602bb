//! Conditions: whether one is true, what a controller wants to say, and whether it must write
//! anything for that.

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::DeploymentCondition,
        core::v1::{NodeCondition, PodCondition},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinitionCondition,
};
use serde_json::Value;

use crate::{Condition, Time};

/// A condition in the status of an object. Kubernetes has a type of its own for several kinds.
pub trait StatusCondition {
    /// Its type.
    fn condition_type(&self) -> &str;
    /// `True`, `False` or `Unknown`.
    fn condition_status(&self) -> &str;

    /// Whether it is true. If it is unknown, it is not.
    fn is_true(&self) -> bool {
        self.condition_status() == "True"
    }
}

macro_rules! status_conditions {
    ($($kind:ty),+) => {
        $(impl StatusCondition for $kind {
            fn condition_type(&self) -> &str {
                &self.type_
            }

            fn condition_status(&self) -> &str {
                &self.status
            }
        })+
    };
}

status_conditions!(
    Condition,
    NodeCondition,
    PodCondition,
    DeploymentCondition,
    CustomResourceDefinitionCondition
);

/// A condition of an object that was read as JSON.
impl StatusCondition for Value {
    fn condition_type(&self) -> &str {
        self["type"].as_str().unwrap_or_default()
    }

    fn condition_status(&self) -> &str {
        self["status"].as_str().unwrap_or_default()
    }
}

/// Whether an object with these conditions has one of this type that is true.
pub fn has_true_condition<'a, C: StatusCondition + 'a>(
    conditions: impl IntoIterator<Item = &'a C>,
    kind: &str,
) -> bool {
    conditions
        .into_iter()
        .any(|one| one.condition_type() == kind && one.is_true())
}

/// A condition as a controller wants it to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredCondition {
    /// Type of the condition.
    pub kind: &'static str,
    /// `Some(true)` for True, `Some(false)` for False, `None` for Unknown.
    pub status: Option<bool>,
    /// One word in camel case. `reasons.rs` lists the reasons of each condition.
    pub reason: String,
    /// What happened and what to do about it, for people.
    pub message: String,
}

impl DesiredCondition {
    /// The condition is True.
    pub fn yes(kind: &'static str, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind,
            status: Some(true),
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// The condition is False.
    pub fn no(kind: &'static str, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind,
            status: Some(false),
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// The condition is Unknown.
    pub fn unknown(
        kind: &'static str,
        reason: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            status: None,
            reason: reason.into(),
            message: message.into(),
        }
    }

    fn status_text(&self) -> &'static str {
        match self.status {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        }
    }
}

/// The conditions to apply so that the object has all of `wanted`; `None` if it has them already.
/// The time of transition of a condition changes only with its status.
pub fn updated_conditions(
    current: &[Condition],
    wanted: &[DesiredCondition],
    now: Timestamp,
) -> Option<Vec<Condition>> {
    updated_conditions_for(None, current, wanted, now)
}

/// Like [`updated_conditions`]; each condition names the generation of the object's spec that it is
/// about.
pub fn updated_conditions_for(
    generation: Option<i64>,
    current: &[Condition],
    wanted: &[DesiredCondition],
    now: Timestamp,
) -> Option<Vec<Condition>> {
    let mut changed = false;
    let conditions = wanted
        .iter()
        .map(|want| {
            let have = current
                .iter()
                .find(|condition| condition.type_ == want.kind);
            // Peers write parts of some messages, and terminals show conditions.
            let message: String = want
                .message
                .chars()
                .filter(|character| !character.is_control())
                .take(2000)
                .collect();
            let same_status = have.is_some_and(|have| have.status == want.status_text());
            changed |=
                !same_status || have.is_some_and(|have| have.observed_generation != generation);
            changed |=
                have.is_some_and(|have| have.reason != want.reason || have.message != message);
            Condition {
                type_: want.kind.to_owned(),
                status: want.status_text().to_owned(),
                reason: want.reason.clone(),
                message,
                last_transition_time: have
                    .filter(|_| same_status)
                    .map_or(Time(now), |have| have.last_transition_time.clone()),
                observed_generation: generation,
            }
        })
        .collect();
    changed.then_some(conditions)
}

/// A writer of conditions of a [`ForeignCluster`](crate::ForeignCluster). An owner always applies
/// all of its conditions together, so the API server removes a condition that it leaves out.
#[derive(Clone, Copy, Debug)]
pub struct ConditionOwner {
    /// The field manager that applies them.
    pub field_manager: &'static str,
    /// Types of the conditions that it writes.
    pub types: &'static [&'static str],
}

/// The owners. Each link has exactly one.
pub mod owners {
    use super::ConditionOwner;
    use crate::links;

    /// Identity, first contact and liveness, in both directions.
    pub const PEERING: ConditionOwner = ConditionOwner {
        field_manager: "liqo-peering",
        types: &[
            links::IDENTITY_VERIFIED,
            links::AUTHENTICATED,
            links::PEER_REACHABLE,
            links::CONSUMER_AUTHORIZED,
            links::CONSUMER_REACHABLE,
        ],
    };
    /// Requests and offers.
    pub const SHARING: ConditionOwner = ConditionOwner {
        field_manager: "liqo-sharing",
        types: &[
            links::RESOURCES_REQUESTED,
            links::OFFER_ACCEPTED,
            links::TETHERING_GRANTED,
            links::POOL_FOR_EACH_NODE,
            links::RESOURCES_OFFERED,
        ],
    };
    /// Virtual nodes.
    pub const OFFLOADING: ConditionOwner = ConditionOwner {
        field_manager: "liqo-offloading",
        types: &[links::VIRTUAL_NODES_READY],
    };
    /// The network between the clusters.
    pub const NETWORK: ConditionOwner = ConditionOwner {
        field_manager: "liqo-network",
        types: &[links::NETWORK_AGREED, links::TUNNEL_CONNECTED],
    };
}

/// Like [`updated_conditions`], for an owner of several types: it also removes conditions of the
/// owner that are not in `wanted`.
pub fn updated_links(
    current: &[Condition],
    wanted: &[DesiredCondition],
    owner: ConditionOwner,
    now: Timestamp,
) -> Option<Vec<Condition>> {
    let leaves_out_one = current.iter().any(|have| {
        owner.types.contains(&have.type_.as_str())
            && wanted.iter().all(|want| want.kind != have.type_)
    });
    if !leaves_out_one {
        return updated_conditions(current, wanted, now);
    }
    let mut all = Vec::new();
    for want in wanted {
        match updated_conditions(current, std::slice::from_ref(want), now) {
            Some(mut new) => all.extend(new.pop()),
            None => all.extend(current.iter().find(|have| have.type_ == want.kind).cloned()),
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links;

    const EARLY: Timestamp = Timestamp::UNIX_EPOCH;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn a_condition_that_is_false_or_unknown_or_absent_is_not_true() {
        let condition = |status: &str| NodeCondition {
            type_: "Ready".into(),
            status: status.into(),
            ..NodeCondition::default()
        };
        for (status, is_true) in [("True", true), ("False", false), ("Unknown", false)] {
            let conditions = [condition(status)];
            assert_eq!(
                has_true_condition(&conditions, "Ready"),
                is_true,
                "{status}"
            );
            let as_json = serde_json::to_value(&conditions).unwrap();
            let as_json = as_json.as_array().unwrap();
            assert_eq!(has_true_condition(as_json, "Ready"), is_true, "{status}");
        }
        assert!(!has_true_condition(&[condition("True")], "DiskPressure"));
        assert!(!has_true_condition(&[] as &[PodCondition], "Ready"));
        assert!(!has_true_condition(&[Value::Null], "Ready"));
    }

    #[test]
    fn unchanged_conditions_are_not_written() {
        let wanted = [DesiredCondition::yes("Ready", "Fine", "all is well")];
        let first = updated_conditions(&[], &wanted, EARLY).unwrap();
        assert_eq!(updated_conditions(&first, &wanted, at(100)), None);
    }

    #[test]
    fn the_transition_time_changes_with_the_status_and_not_with_the_message() {
        let first = updated_conditions(
            &[],
            &[DesiredCondition::no("Ready", "Waiting", "for a")],
            EARLY,
        )
        .unwrap();
        let second = updated_conditions(
            &first,
            &[DesiredCondition::no("Ready", "Waiting", "for b")],
            at(100),
        )
        .unwrap();
        assert_eq!(second[0].last_transition_time, Time(EARLY));
        let third = updated_conditions(
            &second,
            &[DesiredCondition::yes("Ready", "Done", "")],
            at(200),
        )
        .unwrap();
        assert_eq!(third[0].last_transition_time, Time(at(200)));
    }

    #[test]
    fn a_link_that_no_longer_applies_is_removed_and_the_others_keep_their_time() {
        let owner = owners::SHARING;
        let both = [
            DesiredCondition::yes("ResourcesRequested", "Asked", ""),
            DesiredCondition::no("OfferAccepted", "NoOffer", ""),
        ];
        let first = updated_links(&[], &both, owner, EARLY).unwrap();
        let second = updated_links(&first, &both[..1], owner, at(100)).unwrap();
        assert_eq!(second, first[..1]);
        assert_eq!(updated_links(&second, &both[..1], owner, at(200)), None);
        assert_eq!(
            updated_links(&second, &[], owner, at(200)),
            Some(Vec::new())
        );
    }

    #[test]
    fn links_of_other_writers_are_not_removed() {
        let other = updated_conditions(
            &[],
            &[DesiredCondition::yes("PeerReachable", "Fine", "")],
            EARLY,
        )
        .unwrap();
        assert_eq!(updated_links(&other, &[], owners::SHARING, at(100)), None);
    }

    #[test]
    fn every_link_has_exactly_one_writer() {
        let writers = [
            owners::PEERING,
            owners::SHARING,
            owners::OFFLOADING,
            owners::NETWORK,
        ];
        for link in [&links::BORROWING[..], &links::LENDING, &links::NETWORK].concat() {
            assert_eq!(
                writers
                    .iter()
                    .filter(|writer| writer.types.contains(&link))
                    .count(),
                1,
                "{link}"
            );
        }
    }
}

//! Which providers refused a pod of which owner, for a reason that lasts. A pod that replaces a refused one is not sent there again.
//!
//! Every replica of the manager serves the webhook, so the list is stored where all of them see it: in an annotation of the
//! `NamespaceOffloading`. It is bounded, and each entry expires.

use jiff::{SignedDuration, Timestamp};
use liqo_api::{ClusterId, OffloadedReason};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::json::text;
use crate::pod::controller::Controller;

/// After this time a provider is tried again: its policy may have changed.
const LIFETIME: SignedDuration = SignedDuration::from_hours(1);

/// Maximum number of entries. A full list keeps those that it has: if each new one took the place of an older one, refused pods of
/// more owners than that would go back to the provider in turns, without end.
const MAX_ENTRIES: usize = 32;

/// A provider that refused a pod of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedOwner {
    /// See [`owner`].
    pub owner: String,
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    pub cluster_name: String,
    pub reason: String,
    pub until: Timestamp,
}

/// The refusals in one namespace, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refusals(Vec<RefusedOwner>);

impl Refusals {
    /// Reads the annotation. A text that cannot be read costs one more attempt.
    pub fn parse(annotation: Option<&str>) -> Self {
        let mut all: Vec<RefusedOwner> = annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        all.truncate(MAX_ENTRIES);
        Self(all)
    }

    /// The text of the annotation.
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(&self.0).unwrap_or_default()
    }

    /// The list with one more refusal, and without expired ones; `None` if it contains that already, or is full.
    pub fn with(&self, owner: &str, cluster: (&ClusterId, &str), reason: OffloadedReason, now: Timestamp) -> Option<Self> {
        let (cluster_id, cluster_name) = cluster;
        let mut valid: Vec<RefusedOwner> = self.0.iter().filter(|one| one.until > now).cloned().collect();
        let is_known = valid.iter().any(|one| one.owner == owner && one.cluster_id == *cluster_id);
        if is_known || valid.len() >= MAX_ENTRIES {
            return None;
        }
        valid.push(RefusedOwner {
            owner: owner.to_owned(),
            cluster_id: cluster_id.clone(),
            cluster_name: cluster_name.chars().take(63).collect(),
            reason: reason.into(),
            until: now + LIFETIME,
        });
        Some(Self(valid))
    }

    /// The refusals of pods of the same owner as this pod.
    pub fn of_pod(&self, pod: &Value, now: Timestamp) -> Vec<&RefusedOwner> {
        let Some(controller) = Controller::of(pod) else { return Vec::new() };
        let owner = owner(&controller.uid, pod);
        self.0.iter().filter(|one| one.owner == owner && one.until > now).collect()
    }
}

/// Why a pod is not sent to providers that refused another one of its owner.
pub fn avoided(refusals: &[&RefusedOwner]) -> String {
    let each = refusals.iter().map(|one| {
        format!("{} (it refused one for {}) before {}", one.cluster_name, one.reason, one.until.strftime("%Y-%m-%dT%H:%M:%SZ"))
    });
    format!(
        "pods with this template are not sent to {}; a changed template is tried at once",
        each.collect::<Vec<_>>().join(", ")
    )
}

/// What pods with the same template have in common: the UID of their controller, and its revision if it keeps its UID when the
/// template changes, as a `StatefulSet` does.
pub fn owner(controller: &str, pod: &Value) -> String {
    match text(pod, "/metadata/labels/controller-revision-hash") {
        Some(revision) => format!("{controller}/{revision:.63}"),
        None => controller.to_owned(),
    }
}

/// The reason of a refusal, if it holds for the next pod of the same owner, too.
pub fn lasting(reason: &str) -> Option<OffloadedReason> {
    use OffloadedReason as Reason;
    // A provider of a later version may give other reasons.
    let reason = OffloadedReason::parse(reason).unwrap_or(Reason::Refused);
    match reason {
        Reason::Offloaded
        | Reason::Sending
        | Reason::NotReflected
        | Reason::AddressRefused
        | Reason::NoOffer
        | Reason::OfferExceeded
        | Reason::PoolWithdrawn
        | Reason::ContractNotInForce
        | Reason::BudgetSpent
        | Reason::NodeLeaving
        | Reason::NamespaceNotOffloaded
        | Reason::NamespaceNotReady
        | Reason::OffloadingIsLocal
        | Reason::ClusterNotSelected
        | Reason::NameTaken
        | Reason::DaemonSet
        | Reason::Node => None,
        Reason::ApiServerNotAllowed
        // A provider that borrows what it lends.
        | Reason::NoApiServer
        | Reason::NamespaceRefused
        | Reason::NotAllowed
        | Reason::NotAccepted
        | Reason::Refused
        | Reason::LimitMissing
        | Reason::Invalid
        | Reason::Malformed
        | Reason::UnknownField
        | Reason::HostNamespace
        | Reason::HostPath
        | Reason::HostPort
        | Reason::PersistentVolumeClaim
        | Reason::VolumeType
        | Reason::TokenProjection
        | Reason::ResourceClaims
        | Reason::KindNotAllowed
        | Reason::TooLarge
        | Reason::ImageNotAllowed
        | Reason::ProbeHost => Some(reason),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn milan() -> ClusterId {
        ClusterId::of_public_key(&[2; 32])
    }

    fn at(minute: i64) -> Timestamp {
        "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minute)
    }

    fn refused(refusals: &Refusals, owner: &str, minute: i64) -> Option<Refusals> {
        refusals.with(owner, (&milan(), "milan"), OffloadedReason::NotAllowed, at(minute))
    }

    fn pod(controller: &str, revision: Option<&str>) -> Value {
        json!({ "metadata": { "labels": { "controller-revision-hash": revision },
            "ownerReferences": [{ "uid": "x" }, { "uid": controller, "controller": true }] } })
    }

    #[test]
    fn a_refusal_holds_for_pods_of_the_same_owner_for_an_hour() {
        let refusals = refused(&Refusals::default(), "o", 0).unwrap();
        let refusals = Refusals::parse(Some(&refusals.to_annotation()));
        let of_pod = |pod: &Value, minute| refusals.of_pod(pod, at(minute)).len();
        assert_eq!((of_pod(&pod("o", None), 59), of_pod(&pod("o", None), 60)), (1, 0));
        assert_eq!(of_pod(&pod("another", None), 0), 0);
        assert_eq!(of_pod(&json!({}), 0), 0, "a pod without a controller");
        assert_eq!(refusals.of_pod(&pod("o", None), at(0))[0].reason, "NotAllowed");
    }

    #[test]
    fn another_revision_of_a_stateful_set_is_another_owner() {
        let refusals = refused(&Refusals::default(), &owner("o", &pod("o", Some("web-1"))), 0).unwrap();
        assert_eq!(refusals.of_pod(&pod("o", Some("web-1")), at(0)).len(), 1);
        assert_eq!(refusals.of_pod(&pod("o", Some("web-2")), at(0)).len(), 0);
    }

    #[test]
    fn a_refusal_is_recorded_once_and_again_when_it_expired() {
        let refusals = refused(&Refusals::default(), "o", 0).unwrap();
        assert_eq!(refused(&refusals, "o", 59), None);
        assert_eq!(refused(&refusals, "o", 60).unwrap().0.len(), 1, "the expired one is gone");
        assert_eq!(refused(&refusals, "p", 1).unwrap().0.len(), 2);
    }

    #[test]
    fn a_full_list_keeps_what_it_has_until_that_expires() {
        let name = "n".repeat(300);
        let mut refusals = Refusals::default();
        let with = |refusals: &Refusals, number: usize, minute: i64| {
            let owner = owner(&format!("{number:036}"), &pod("o", Some(&name)));
            refusals.with(&owner, (&milan(), &name), OffloadedReason::NotAllowed, at(minute))
        };
        for number in 0..MAX_ENTRIES {
            refusals = with(&refusals, number, 0).unwrap();
        }
        assert_eq!(with(&refusals, MAX_ENTRIES, 59), None);
        assert_eq!(with(&refusals, MAX_ENTRIES, 60).unwrap().0.len(), 1);
        assert!(refusals.to_annotation().len() < 20_000, "{}", refusals.to_annotation().len());
        assert_eq!(Refusals::parse(Some("nonsense")), Refusals::default());
    }

    #[test]
    fn what_may_be_over_soon_is_not_remembered() {
        for reason in ["OfferExceeded", "PoolWithdrawn", "NameTaken", "NamespaceNotReady"] {
            assert_eq!(lasting(reason), None, "{reason}");
        }
        assert_eq!(lasting("NotAllowed"), Some(OffloadedReason::NotAllowed));
        assert_eq!(
            lasting("NoApiServer"),
            Some(OffloadedReason::NoApiServer),
            "from behind a broker, no API server is reached later either"
        );
        assert_eq!(lasting("ReasonOfALaterVersion"), Some(OffloadedReason::Refused));
    }
}

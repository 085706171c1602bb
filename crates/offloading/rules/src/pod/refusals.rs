//! Remembers providers that refused a pod of an owner, could not start it, or do not get an object
//! that pods name. A pod that replaces that pod is not sent there again for a while.
//!
//! Every replica of the manager serves the webhook, so the list is stored where all of them see it:
//! in an annotation of the `NamespaceOffloading`. It is bounded, and each entry expires.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use liqo_api::{ClusterId, OffloadedReason};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::pod::controller::OwningController;
use crate::pod::references::{PodReferences, referenced_objects};
use crate::views::PodView;

/// Decides how long a provider is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalCause {
    /// It holds for the next pod, too, until a person changes something: an hour.
    Lasts,
    /// It may be over soon: ten minutes, or twice the time that a pod waits for that.
    Passes,
}

impl RefusalCause {
    /// After this time the provider is tried again.
    fn lifetime(self, refusal_timeout: Duration) -> SignedDuration {
        match self {
            Self::Lasts => SignedDuration::from_hours(1),
            Self::Passes => (SignedDuration::try_from(refusal_timeout).unwrap_or_default() * 2)
                .max(SignedDuration::from_mins(10)),
        }
    }
}

/// Maximum number of entries. A full list keeps those that it has: if each new one took the place
/// of an older one, refused pods of more owners than that would go back to the provider in turns,
/// without end.
const MAX_ENTRIES: usize = 32;

/// A provider that refused a pod of an owner, or does not get an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedOwner {
    /// See [`owner_identity`]; or kind and name of an object, such as `ConfigMap/settings`.
    pub owner: String,
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    pub cluster_name: String,
    pub reason: String,
    /// The time at which this became known. An entry of an earlier version does not have it.
    #[serde(default)]
    pub since: Timestamp,
    pub until: Timestamp,
}

/// The input of [`Refusals::with_refusal`].
#[derive(Debug, Clone, Copy)]
pub struct NewRefusal<'a> {
    /// As in [`RefusedOwner`].
    pub owner: &'a str,
    pub cluster: (&'a ClusterId, &'a str),
    pub reason: OffloadedReason,
    pub cause: RefusalCause,
    /// Time that a pod waits for a cause that passes.
    pub refusal_timeout: Duration,
}

/// The refusals in one namespace, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refusals(Vec<RefusedOwner>);

impl Refusals {
    /// Reads the annotation. A text that cannot be read costs one more attempt.
    pub fn parse(annotation: Option<&str>) -> Self {
        let mut all: Vec<RefusedOwner> = annotation
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        all.truncate(MAX_ENTRIES);
        Self(all)
    }

    /// The text of the annotation.
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(&self.0).unwrap_or_default()
    }

    /// The list with one more refusal, and without expired ones; `None` if it contains that
    /// already, or is full. If the cause passes, other providers that refused the owner are avoided
    /// as long as this one: otherwise its pods would be tried by all of them in turns, and never
    /// come home.
    pub fn with_refusal(&self, refusal: NewRefusal, now: Timestamp) -> Option<Self> {
        let NewRefusal {
            owner,
            cluster: (cluster_id, cluster_name),
            reason,
            cause,
            refusal_timeout,
        } = refusal;
        let mut valid: Vec<RefusedOwner> = self
            .0
            .iter()
            .filter(|one| one.until > now)
            .cloned()
            .collect();
        if self.valid_entry(owner, cluster_id, now).is_some() || valid.len() >= MAX_ENTRIES {
            return None;
        }
        let until = now + cause.lifetime(refusal_timeout);
        let of_owner = valid
            .iter_mut()
            .filter(|other| other.owner == owner && cause == RefusalCause::Passes);
        of_owner.for_each(|other| other.until = other.until.max(until));
        valid.push(RefusedOwner {
            owner: owner.to_owned(),
            cluster_id: cluster_id.clone(),
            cluster_name: cluster_name.chars().take(63).collect(),
            reason: reason.into(),
            since: now,
            until,
        });
        Some(Self(valid))
    }

    /// The valid entry of an owner, or an object, and a cluster.
    pub fn valid_entry(
        &self,
        owner: &str,
        cluster: &ClusterId,
        now: Timestamp,
    ) -> Option<&RefusedOwner> {
        self.0
            .iter()
            .find(|one| one.owner == owner && one.cluster_id == *cluster && one.until > now)
    }

    /// The refusals of pods of the same owner as this pod, and of objects that it names.
    pub fn refusals_of_pod(&self, pod: &Value, now: Timestamp) -> Vec<&RefusedOwner> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let owner =
            OwningController::of_pod(pod).map(|controller| owner_identity(&controller.uid, pod));
        let PodReferences {
            config_maps,
            secrets,
        } = referenced_objects(pod);

        self.0
            .iter()
            .filter(|one| one.until > now)
            .filter(|one| match one.owner.split_once('/') {
                Some(("ConfigMap", name)) => config_maps.contains(name),
                Some(("Secret", name)) => secrets.contains(name),
                _ => owner.as_ref() == Some(&one.owner),
            })
            .collect()
    }
}

/// The reason why a pod is not sent to providers that refused another pod of its owner, or do not
/// get an object that it names.
pub fn avoided_message(refusals: &[&RefusedOwner]) -> String {
    let each = refusals.iter().map(|one| {
        let why = match one.owner.split_once('/') {
            Some((kind @ ("ConfigMap" | "Secret"), name)) => {
                format!("{kind} {name} does not get there")
            }
            _ => format!("it refused one for {}", one.reason),
        };
        format!(
            "{} ({why}) before {}",
            one.cluster_name,
            one.until.strftime("%Y-%m-%dT%H:%M:%SZ")
        )
    });
    let are_objects = refusals
        .iter()
        .all(|one| one.owner.starts_with("ConfigMap/") || one.owner.starts_with("Secret/"));
    let sooner = if are_objects {
        "after a change of the object, remove the annotation liqo.io/refused-pods of the NamespaceOffloading"
    } else {
        "a changed template is tried at once"
    };
    format!(
        "pods with this template are not sent to {}; {sooner}",
        each.collect::<Vec<_>>().join(", ")
    )
}

/// The common identity of pods with the same template: the UID of their controller, and its
/// revision if it keeps its UID when the template changes, as a `StatefulSet` does.
pub fn owner_identity(controller: &str, pod: &Value) -> String {
    let metadata = PodView::of(pod).metadata();
    match metadata.label("controller-revision-hash") {
        Some(revision) => format!("{controller}/{revision:.63}"),
        None => controller.to_owned(),
    }
}

/// The reason for which a pod does not run at a provider, and how long it counts for the next pod
/// of the same owner. `None` if the rules of this cluster decide anew for each pod.
pub fn remembered_reason(reason: &str) -> Option<(OffloadedReason, RefusalCause)> {
    use OffloadedReason as Reason;
    // A provider of a later version may give other reasons.
    let reason = OffloadedReason::parse(reason).unwrap_or(Reason::Refused);
    match reason {
        Reason::Offloaded
        | Reason::Sending
        | Reason::AddressRefused
        | Reason::ChangeRefused
        | Reason::EndsSoon
        | Reason::NoOffer
        | Reason::PoolWithdrawn
        | Reason::BudgetSpent
        | Reason::CostsNotCounted
        | Reason::NodeLeaving
        | Reason::NamespaceNotOffloaded
        | Reason::OffloadingIsLocal
        | Reason::ClusterNotSelected
        | Reason::DaemonSet
        | Reason::Node => None,
        Reason::NotReflected
        | Reason::OfferExceeded
        | Reason::ContractNotInForce
        | Reason::NamespaceNotReady
        | Reason::NameTaken
        | Reason::Unschedulable
        | Reason::NotStarted => Some((reason, RefusalCause::Passes)),
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
        | Reason::ProbeHost => Some((reason, RefusalCause::Lasts)),
    }
}

#[cfg(test)]
mod tests {
    use liqo_api::pods;
    use serde_json::json;

    use super::*;

    fn milan() -> ClusterId {
        ClusterId::of_public_key(&[2; 32])
    }

    fn at(minute: i64) -> Timestamp {
        "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minute)
    }

    fn refused(refusals: &Refusals, owner: &str, minute: i64) -> Option<Refusals> {
        let cluster = (&milan(), "milan");
        refusals.with_refusal(
            lasting(owner, cluster, OffloadedReason::NotAllowed),
            at(minute),
        )
    }

    fn lasting<'a>(
        owner: &'a str,
        cluster: (&'a ClusterId, &'a str),
        reason: OffloadedReason,
    ) -> NewRefusal<'a> {
        NewRefusal {
            owner,
            cluster,
            reason,
            cause: RefusalCause::Lasts,
            refusal_timeout: Duration::from_mins(5),
        }
    }

    fn pod(controller: &str, revision: Option<&str>) -> Value {
        json!({ "metadata": { "labels": { "controller-revision-hash": revision },
            "ownerReferences": [{ "uid": "x" }, { "uid": controller, "controller": true }] } })
    }

    #[test]
    fn a_refusal_holds_for_pods_of_the_same_owner_for_an_hour() {
        let refusals = refused(&Refusals::default(), "o", 0).unwrap();
        let refusals = Refusals::parse(Some(&refusals.to_annotation()));
        let of_pod = |pod: &Value, minute| refusals.refusals_of_pod(pod, at(minute)).len();
        assert_eq!(
            (of_pod(&pod("o", None), 59), of_pod(&pod("o", None), 60)),
            (1, 0)
        );
        assert_eq!(of_pod(&pod("another", None), 0), 0);
        assert_eq!(of_pod(&json!({}), 0), 0, "a pod without a controller");
        assert_eq!(
            refusals.refusals_of_pod(&pod("o", None), at(0))[0].reason,
            "NotAllowed"
        );
    }

    #[test]
    fn another_revision_of_a_stateful_set_is_another_owner() {
        let refusals = refused(
            &Refusals::default(),
            &owner_identity("o", &pod("o", Some("web-1"))),
            0,
        )
        .unwrap();
        assert_eq!(
            refusals
                .refusals_of_pod(&pod("o", Some("web-1")), at(0))
                .len(),
            1
        );
        assert_eq!(
            refusals
                .refusals_of_pod(&pod("o", Some("web-2")), at(0))
                .len(),
            0
        );
    }

    #[test]
    fn a_refusal_is_recorded_once_and_again_when_it_expired() {
        let refusals = refused(&Refusals::default(), "o", 0).unwrap();
        assert_eq!(refused(&refusals, "o", 59), None);
        assert_eq!(
            refused(&refusals, "o", 60).unwrap().0.len(),
            1,
            "the expired one is gone"
        );
        assert_eq!(refused(&refusals, "p", 1).unwrap().0.len(), 2);
    }

    #[test]
    fn a_full_list_keeps_what_it_has_until_that_expires() {
        let name = "n".repeat(300);
        let mut refusals = Refusals::default();
        let with = |refusals: &Refusals, number: usize, minute: i64| {
            let owner = owner_identity(&format!("{number:036}"), &pod("o", Some(&name)));
            let (cluster, reason) = ((&milan(), name.as_str()), OffloadedReason::NotAllowed);
            refusals.with_refusal(lasting(&owner, cluster, reason), at(minute))
        };
        for number in 0..MAX_ENTRIES {
            refusals = with(&refusals, number, 0).unwrap();
        }
        assert_eq!(with(&refusals, MAX_ENTRIES, 59), None);
        assert_eq!(with(&refusals, MAX_ENTRIES, 60).unwrap().0.len(), 1);
        assert!(
            refusals.to_annotation().len() < 20_000,
            "{}",
            refusals.to_annotation().len()
        );
        assert_eq!(Refusals::parse(Some("nonsense")), Refusals::default());
    }

    #[test]
    fn an_object_that_does_not_get_there_keeps_all_pods_that_name_it_away() {
        let (owner, cluster) = ("ConfigMap/bundle", (&milan(), "milan"));
        let refusals = Refusals::default()
            .with_refusal(
                lasting(owner, cluster, OffloadedReason::NotReflected),
                at(0),
            )
            .unwrap();
        let naming = |kind: &str, field: &str| json!({ "spec": { "volumes": [{ "name": "v", kind: { field: "bundle" } }] } });
        assert_eq!(
            refusals
                .refusals_of_pod(&naming("configMap", "name"), at(59))
                .len(),
            1
        );
        assert!(
            refusals
                .refusals_of_pod(&naming("secret", "secretName"), at(59))
                .is_empty(),
            "another kind"
        );
        assert!(
            avoided_message(&refusals.refusals_of_pod(&naming("configMap", "name"), at(0)))
                .contains("milan (ConfigMap bundle does not get there)")
        );
    }

    /// Where a pod with this reason runs in the end, if a controller creates it again and it may
    /// run here, too.
    fn in_the_end(reason: OffloadedReason) -> &'static str {
        match remembered_reason(reason.as_str()) {
            Some((_, RefusalCause::Lasts)) => "here, at once",
            Some((_, RefusalCause::Passes)) => "here, in time",
            None if is_accepted(reason) || reason == OffloadedReason::Sending => "there",
            None if [OffloadedReason::DaemonSet, OffloadedReason::Node].contains(&reason) => {
                "nowhere"
            }
            None => "anew",
        }
    }

    fn is_accepted(reason: OffloadedReason) -> bool {
        reason == OffloadedReason::Offloaded || pods::INCOMPLETE.contains(&reason.as_str())
    }

    fn shown_by(reason: OffloadedReason) -> &'static str {
        match reason {
            // It has both.
            OffloadedReason::NotReflected => {
                "refusal, if the pod was not sent for it; else acceptance"
            }
            OffloadedReason::Sending => "sending",
            OffloadedReason::Unschedulable => "scheduler there",
            OffloadedReason::NotStarted => "kubelet there",
            reason if is_accepted(reason) => "acceptance",
            _ => "refusal",
        }
    }

    #[test]
    fn the_page_says_of_each_reason_what_shows_it_and_where_its_pods_run_in_the_end() {
        let page = include_str!("../../../../../docs/reference/reasons-of-pods.md");
        let rows: Vec<Vec<&str>> = page
            .lines()
            .map(|line| line.split(" | ").collect())
            .collect();
        for &reason in OffloadedReason::ALL {
            let name = format!("`{reason}`");
            let is_meant = |row: &&Vec<&str>| {
                row.len() == 4 && row[0].starts_with("| `") && row[0].contains(&name)
            };
            let said: Vec<(&str, &str)> = rows
                .iter()
                .filter(is_meant)
                .map(|row| (row[1], row[2]))
                .collect();
            assert!(
                said.contains(&(shown_by(reason), in_the_end(reason))),
                "docs/reference/reasons-of-pods.md says of {reason}: {said:?}"
            );
        }
        for shown_by in [
            "refusal",
            "acceptance",
            "sending",
            "scheduler there",
            "kubelet there",
        ] {
            let explained = rows
                .iter()
                .filter(|row| row.len() == 4 && row[0] == format!("| {shown_by}"));
            assert_eq!(explained.count(), 1, "{shown_by}");
        }
    }

    #[test]
    fn what_may_be_over_soon_is_remembered_for_a_shorter_time() {
        let cause = |reason: &str| remembered_reason(reason).map(|(_, cause)| cause);
        for reason in [
            "OfferExceeded",
            "NameTaken",
            "NamespaceNotReady",
            "Unschedulable",
            "NotStarted",
        ] {
            assert_eq!(cause(reason), Some(RefusalCause::Passes), "{reason}");
        }
        for reason in [
            "PoolWithdrawn",
            "BudgetSpent",
            "CostsNotCounted",
            "OffloadingIsLocal",
        ] {
            assert_eq!(cause(reason), None, "{reason}");
        }
        // From behind a broker, no API server is reached later either.
        assert_eq!(
            (cause("NotAllowed"), cause("NoApiServer")),
            (Some(RefusalCause::Lasts), Some(RefusalCause::Lasts))
        );
        assert_eq!(
            remembered_reason("ReasonOfALaterVersion"),
            Some((OffloadedReason::Refused, RefusalCause::Lasts))
        );
        let [milan, paris, oslo] = [2, 3, 4].map(|key| ClusterId::of_public_key(&[key; 32]));
        let passing = |cluster, minutes: u64| NewRefusal {
            cause: RefusalCause::Passes,
            refusal_timeout: Duration::from_secs(60 * minutes),
            ..lasting("o", (cluster, "milan"), OffloadedReason::NotStarted)
        };
        let avoided = |refusals: &Refusals, minute| {
            refusals.refusals_of_pod(&pod("o", None), at(minute)).len()
        };
        let refusals = Refusals::default()
            .with_refusal(passing(&milan, 5), at(0))
            .unwrap();
        assert_eq!((avoided(&refusals, 9), avoided(&refusals, 10)), (1, 0));
        let patient = Refusals::default()
            .with_refusal(passing(&milan, 20), at(0))
            .unwrap();
        assert_eq!(
            (avoided(&patient, 39), avoided(&patient, 40)),
            (1, 0),
            "another provider has its turn before"
        );
        // The second and the third provider refuse it, too, each after its five minutes.
        let refusals = refusals
            .with_refusal(passing(&paris, 5), at(5))
            .unwrap()
            .with_refusal(passing(&oslo, 5), at(11))
            .unwrap();
        assert_eq!(
            (avoided(&refusals, 20), avoided(&refusals, 21)),
            (3, 0),
            "it comes home for some time"
        );
        let refusals = Refusals::default()
            .with_refusal(passing(&milan, 5), at(0))
            .unwrap();
        let refusals = refusals
            .with_refusal(
                lasting("o", (&paris, "paris"), OffloadedReason::NotAllowed),
                at(5),
            )
            .unwrap();
        assert_eq!(
            (avoided(&refusals, 9), avoided(&refusals, 10)),
            (2, 1),
            "milan may have room by then"
        );
    }
}

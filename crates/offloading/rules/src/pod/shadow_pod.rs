//! The reduced form of a shadow pod.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::PodSpec;
use liqo_api::record_text::{self, MAX_POD_LEN};
use liqo_api::requests::EffectiveAmounts;
use liqo_api::{Key, ShadowPod, ShadowPodPhase, finalizers};
use serde::Deserialize as _;
use serde_json::Value;

use crate::json::OFFER_RECLAIMED;

use crate::pod::admission::{AdmissionPosition, PoolAccount, negative_quantity};
use crate::pod::ledger::AdmissionRequest;
use crate::pod::remote_pod::status_addresses;
use crate::pod::reported_status::ReportedStatus;
use crate::views::PodView;
use crate::{dns_names, finalizer};

/// A pod with a longer text is not cached but read again when it is created, because a consumer may
/// send many that never run. Most pods take less than half of it.
pub(crate) const MAX_KEPT_LEN: usize = 8 * 1024;

/// Maximum grace in seconds of a pod whose end its consumer did not ask for.
pub const MAX_GRACE_SECONDS: i64 = 30;

/// End of the charges for a pod whose shadow pod was deleted at this time, whether the pod is gone
/// or not: its consumer pays neither for a node that does not answer nor for a manager that was
/// down.
pub fn end_of_charges(deleted_at: Timestamp) -> Timestamp {
    deleted_at
        .saturating_add(SignedDuration::from_secs(MAX_GRACE_SECONDS))
        .unwrap_or(deleted_at)
}

/// The reduced form of a shadow pod.
#[derive(Clone, Debug, PartialEq)]
pub struct ProviderShadowPod {
    pub uid: String,
    pub created: Timestamp,
    /// Generation of its spec.
    pub generation: i64,
    /// Namespace of the local pod.
    pub namespace: String,
    pub pool: String,
    /// Name of the pod, here and at home; empty if it is invalid.
    pub pod_name: String,
    /// The reason why the pod cannot be read. Then it has no name.
    pub unreadable: Option<String>,
    pub restarts: bool,
    /// The wanted grace in seconds, if the local pod is being deleted.
    pub deletion_grace: Option<i64>,
    /// Whether the shadow pod itself is being deleted.
    pub deleted: bool,
    /// The time at which its deletion began.
    pub deleted_at: Option<Timestamp>,
    /// Position of the finalizer that keeps it until its remote pod is gone.
    pub finalizer: Option<usize>,
    pub reported: ReportedStatus,
    /// The pod to run, as JSON text, which takes a fraction of the memory of a parsed one. Cached
    /// only while there is no remote pod, and only if it is small.
    pub pod: Option<Arc<str>>,
    /// The estimated charge of that pod, before the provider's own admission changes it. Cached
    /// only while there is no remote pod.
    pub charge: Option<EffectiveAmounts>,
}

impl ProviderShadowPod {
    pub fn from_shadow_pod(shadow: ShadowPod) -> Self {
        let (carried, unreadable) = match record_text::parse_object(&shadow.spec.pod, MAX_POD_LEN) {
            Ok(carried) => (carried, None),
            Err(error) => (Value::Null, Some(error.to_string())),
        };
        let reported = ReportedStatus::from_shadow_status(shadow.status.as_ref());
        let never_ran = reported.remote_uid.is_none() && !reported.phase.is_final();
        let waits = never_ran
            && shadow.metadata.deletion_timestamp.is_none()
            && shadow.spec.deletion.is_none();
        let is_small = unreadable.is_none() && shadow.spec.pod.len() <= MAX_KEPT_LEN;
        Self {
            uid: shadow.metadata.uid.unwrap_or_default(),
            created: shadow
                .metadata
                .creation_timestamp
                .map(|time| time.0)
                .unwrap_or_default(),
            generation: shadow.metadata.generation.unwrap_or_default(),
            namespace: shadow.spec.namespace,
            pool: shadow.spec.pool,
            pod_name: PodView::of(&carried)
                .metadata()
                .name()
                .filter(|name| dns_names::is_subdomain(name))
                .unwrap_or_default()
                .to_owned(),
            unreadable,
            restarts: PodView::of(&carried)
                .spec()
                .restart_policy()
                .is_none_or(|policy| policy == "Always"),
            deletion_grace: shadow
                .spec
                .deletion
                .map(|deletion| deletion.grace_period_seconds.max(0)),
            deleted: shadow.metadata.deletion_timestamp.is_some(),
            deleted_at: shadow
                .metadata
                .deletion_timestamp
                .as_ref()
                .map(|time| time.0),
            finalizer: finalizer::position(
                shadow.metadata.finalizers.as_ref(),
                finalizers::SHADOW_POD,
            ),
            charge: waits.then(|| charge_of_pod(&carried)).flatten(),
            pod: (never_ran && is_small).then(|| shadow.spec.pod.into()),
            reported,
        }
    }

    /// The time until which its pod may be charged now.
    pub fn charged_until(&self, now: Timestamp) -> Timestamp {
        self.deleted_at
            .map_or(now, |deleted| end_of_charges(deleted).min(now))
    }

    /// The reason why its pod ended, if the resources that it used were taken back. Then it never
    /// runs again.
    pub fn reclaim_reason(&self) -> Option<&str> {
        let is_taken_back = self.reported.phase == ShadowPodPhase::Failed
            && self.reported.reason.as_deref() == Some(OFFER_RECLAIMED);
        is_taken_back.then(|| self.reported.message.as_deref().unwrap_or_default())
    }

    /// Whether its pod had this address when its status was last reported.
    pub fn had_address(&self, address: IpAddr) -> bool {
        self.reported
            .pod
            .as_ref()
            .is_some_and(|pod| status_addresses(&pod.to_value()).contains(&address))
    }

    /// Its position in the order of admission; `name` is that of the shadow pod.
    pub fn admission_position(&self, name: &str) -> AdmissionPosition {
        AdmissionPosition {
            created: self.created,
            uid: name.to_owned(),
        }
    }

    /// The room that it waits for, if it has no pod.
    pub fn admission_request(&self, key: &Key) -> Option<AdmissionRequest> {
        let account = PoolAccount {
            tenant: key.namespace.clone(),
            pool: self.pool.clone(),
        };
        let (turn, charge, had_a_pod) = (
            self.admission_position(&key.name),
            self.charge.clone()?,
            self.reported.remote_uid.is_some(),
        );
        Some(AdmissionRequest {
            account,
            shadow: key.clone(),
            turn,
            charge,
            had_a_pod,
        })
    }

    /// Whether a change concerns more than the status, which only the provider writes.
    pub fn differs_beyond_status(&self, other: &Self) -> bool {
        (&self.uid, self.generation, self.deleted, self.finalizer)
            != (&other.uid, other.generation, other.deleted, other.finalizer)
    }
}

/// The charge for a pod; `None` for a pod that will be refused.
fn charge_of_pod(pod: &Value) -> Option<EffectiveAmounts> {
    let spec = PodSpec::deserialize(pod.get("spec")?).ok()?;
    negative_quantity(&spec)
        .is_none()
        .then(|| EffectiveAmounts::of_pod(&spec))
        .filter(EffectiveAmounts::is_bounded)
}

#[cfg(test)]
mod tests {
    use liqo_byte_mutations::mutated_text;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn valid() -> String {
        let container = json!({ "name": "c", "image": "nginx", "resources": { "requests": { "cpu": "1500m", "memory": "1Gi" } } });
        json!({ "metadata": { "name": "web" }, "spec": { "containers": [container], "restartPolicy": "Never" } }).to_string()
    }

    fn reduced(text: &str) -> ProviderShadowPod {
        let object = json!({ "metadata": { "name": "u" }, "spec": { "namespace": "demo", "pool": "default", "pod": text } });
        ProviderShadowPod::from_shadow_pod(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_valid_text_has_a_name_and_a_charge() {
        let shadow = reduced(&valid());
        assert_eq!(
            (shadow.pod_name.as_str(), shadow.unreadable, shadow.restarts),
            ("web", None, false)
        );
        assert_eq!(
            shadow.charge.unwrap().requests.get("cpu").to_string(),
            "1500m"
        );
    }

    #[test]
    fn a_pod_whose_room_was_taken_back_is_told_from_one_that_runs_or_ended_otherwise() {
        let with = |status: Value| {
            let spec = json!({ "namespace": "demo", "pool": "default", "pod": valid() });
            ProviderShadowPod::from_shadow_pod(
                serde_json::from_value(
                    json!({ "metadata": { "name": "u" }, "spec": spec, "status": status }),
                )
                .unwrap(),
            )
        };
        let status =
            json!({ "phase": "Failed", "reason": OFFER_RECLAIMED, "message": "less is lent" });
        assert_eq!(with(status.clone()).reclaim_reason(), Some("less is lent"));
        // It is told that its room goes before it ends.
        for change in [
            json!({ "phase": "Created" }),
            json!({ "reason": "Evicted" }),
        ] {
            let mut other = status.clone();
            json_patch::merge(&mut other, &change);
            assert_eq!(with(other).reclaim_reason(), None);
        }
    }

    proptest! {
        #[test]
        fn a_mutated_text_has_a_valid_name_or_none_and_is_kept_only_if_it_is_short(text in mutated_text(Just(valid()))) {
            let shadow = reduced(&text);
            prop_assert!(shadow.pod_name.is_empty() || dns_names::is_subdomain(&shadow.pod_name));
            prop_assert!(shadow.pod.as_ref().is_none_or(|pod| pod.len() <= MAX_KEPT_LEN));
            prop_assert!(shadow.unreadable.as_ref().is_none_or(|why| why.len() < 1000));
            prop_assert!(shadow.charge.iter().flat_map(|charge| charge.requests.iter()).all(|(_, amount)| !amount.is_negative()));
            prop_assert!(shadow.unreadable.is_none() || (shadow.pod.is_none() && shadow.charge.is_none()));
        }
    }
}

//! The status of a shadow pod in a compact form, and the merge patch that changes it.

use std::{collections::BTreeMap, sync::Arc};

use liqo_api::{ShadowPodPhase, ShadowPodStatus};
use serde_json::{Map, Value, json};

use crate::json::set_at;

/// The reduced status of a pod as text with ordered keys. Text takes a fraction of the memory, and
/// two texts are equal exactly if the statuses are, in whatever order the API server wrote their
/// fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodStatusText(Arc<str>);

impl PodStatusText {
    /// Nulls are left out.
    pub fn from_status(status: &Value) -> Self {
        Self(sorted_json(status).to_string().into())
    }

    pub fn to_value(&self) -> Value {
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedStatus {
    pub phase: ShadowPodPhase,
    pub reason: Option<String>,
    pub message: Option<String>,
    /// UID of the remote pod.
    pub remote_uid: Option<String>,
    /// The charges for the pod, see [`liqo_metering::Charges`].
    pub charges: Option<Arc<str>>,
    pub pod: Option<PodStatusText>,
}

impl ReportedStatus {
    pub fn from_shadow_status(status: Option<&ShadowPodStatus>) -> Self {
        let Some(status) = status else {
            return Self::default();
        };
        Self {
            phase: status.phase,
            reason: status.reason.clone(),
            message: status.message.clone(),
            remote_uid: status.remote_uid.clone(),
            charges: status.charges.as_deref().map(Arc::from),
            pod: status.pod.as_ref().map(PodStatusText::from_status),
        }
    }

    /// The merge patch of the status subresource from this to `wanted`; `None` if they are equal.
    pub fn patch_to(&self, wanted: &Self) -> Option<Value> {
        Some(json!({ "status": merge_patch(&self.to_json(), &wanted.to_json())? }))
    }

    fn to_json(&self) -> Value {
        let mut status = json!({ "phase": self.phase });
        for (field, text) in [
            ("reason", &self.reason),
            ("message", &self.message),
            ("remoteUID", &self.remote_uid),
        ] {
            if let Some(text) = text {
                set_at(&mut status, &[field], text.as_str());
            }
        }
        if let Some(charges) = &self.charges {
            set_at(&mut status, &["charges"], charges.as_ref());
        }
        if let Some(pod) = &self.pod {
            set_at(&mut status, &["pod"], pod.to_value());
        }
        // A status that was never written is written even if it equals the default.
        if *self == Self::default() {
            json!({})
        } else {
            status
        }
    }
}

/// The merge patch (RFC 7386) from `from` to `to`; `None` if they are equal. Neither may contain
/// nulls.
pub fn merge_patch(from: &Value, to: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (from, to) else {
        return (from != to).then(|| to.clone());
    };
    let mut patch: Map<String, Value> = new
        .iter()
        .filter_map(|(key, value)| {
            let change = match old.get(key) {
                Some(before) => merge_patch(before, value)?,
                None => value.clone(),
            };
            Some((key.clone(), change))
        })
        .collect();
    patch.extend(
        old.keys()
            .filter(|key| !new.contains_key(*key))
            .map(|key| (key.clone(), Value::Null)),
    );
    (!patch.is_empty()).then_some(patch.into())
}

/// The same with ordered keys and without nulls.
pub(crate) fn sorted_json(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let fields: BTreeMap<&String, Value> = map
                .iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(key, value)| (key, sorted_json(value)))
                .collect();
            fields
                .into_iter()
                .map(|(key, value)| (key.clone(), value))
                .collect::<Map<_, _>>()
                .into()
        }
        Value::Array(list) => list.iter().map(sorted_json).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_in_which_the_api_server_gives_fields_means_nothing() {
        let ours =
            json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
        let theirs = json!({ "conditions": [{ "status": "True", "type": "Ready" }], "phase": "Running", "reason": null });
        assert_eq!(
            PodStatusText::from_status(&ours),
            PodStatusText::from_status(&theirs)
        );
        assert_eq!(PodStatusText::from_status(&ours).to_value(), ours);
    }

    #[test]
    fn a_merge_patch_names_what_changed_and_what_vanished_and_nothing_else() {
        let from = json!({ "a": 1, "b": { "c": 1, "d": 2 }, "list": [1, 2], "same": { "x": 1 } });
        let to = json!({ "a": 1, "b": { "c": 5 }, "list": [1], "same": { "x": 1 }, "new": true });
        let patch = merge_patch(&from, &to).unwrap();
        assert_eq!(
            patch,
            json!({ "b": { "c": 5, "d": null }, "list": [1], "new": true })
        );
        let mut patched = from.clone();
        json_patch::merge(&mut patched, &patch);
        assert_eq!(patched, to);
        assert_eq!(merge_patch(&to, &patched), None);
    }

    #[test]
    fn a_status_that_says_nothing_new_needs_no_patch() {
        let reported = ReportedStatus {
            phase: ShadowPodPhase::Created,
            remote_uid: Some("u".into()),
            ..ReportedStatus::default()
        };
        assert_eq!(reported.patch_to(&reported.clone()), None);
        assert_eq!(
            ReportedStatus::default().patch_to(&reported).unwrap(),
            json!({ "status": { "phase": "Created", "remoteUID": "u" } })
        );
        let refused = ReportedStatus {
            phase: ShadowPodPhase::Refused,
            reason: Some("OfferExceeded".into()),
            ..ReportedStatus::default()
        };
        assert_eq!(
            reported.patch_to(&refused).unwrap(),
            json!({ "status": { "phase": "Refused", "reason": "OfferExceeded", "remoteUID": null } })
        );
    }

    #[test]
    fn what_the_object_says_is_what_was_told() {
        let status = ShadowPodStatus {
            phase: ShadowPodPhase::Created,
            remote_uid: Some("u".into()),
            charges: Some("100- cpu=1".into()),
            pod: Some(json!({ "phase": "Running" })),
            ..ShadowPodStatus::default()
        };
        let reported = ReportedStatus::from_shadow_status(Some(&status));
        assert_eq!(
            serde_json::from_value::<ShadowPodStatus>(reported.to_json()).unwrap(),
            status
        );
    }
}

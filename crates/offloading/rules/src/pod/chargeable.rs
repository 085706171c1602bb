//! The charges that are possible for one pod of a consumer.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodSpec, PodStatus};
use liqo_api::Charge;
use liqo_api::requests::EffectiveAmounts;
use liqo_metering::{Seconds, UsageEntry};
use liqo_quantity::ResourceList;
use serde::Deserialize as _;
use serde_json::Value;

use crate::pod::carry::amounts::{AmountRules, EPHEMERAL_STORAGE, MEMORY, complete_amounts};
use crate::pod::carry::api_server::bound_at;
use crate::pod::local_state::{ConsumerShadowPod, LocalPod};
use crate::pod::running_pod::charged_amounts;
use crate::views::PodView;

/// The earliest time at which a local pod can have been sent: when it was bound to its node. Second
/// 0 if that is not known.
pub fn sent_at(pod: &LocalPod) -> Timestamp {
    bound_at(&pod.to_json()).unwrap_or_default()
}

/// The usage of a local pod that has not ended, where nothing meters it: from its start time at the
/// provider until now.
pub fn running_entry(pod: &LocalPod, pool: &str, now: Seconds) -> Option<UsageEntry> {
    let amounts = charged_amounts(pod)?;
    // Only Liqo writes the start time of a pod on a virtual node, from its remote pod.
    let started: Timestamp = PodView::of(&pod.to_json())
        .status()
        .start_time()?
        .parse()
        .ok()?;
    let entry = UsageEntry::exact(&pod.uid, pool, started.as_second(), now, &amounts)?;
    Some(UsageEntry {
        namespace: pod.key.namespace.clone(),
        ..entry
    })
}

/// The consumer's knowledge about a local pod that still exists when a period is completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeriodEndState {
    /// The provider does not have it, or its entries are stored: it adds nothing.
    Nothing,
    /// It counts as the provider's charges say.
    Charged,
    /// The provider may charge it, and this cluster has not seen for how long: it counts until now,
    /// as an estimate.
    Unseen,
}

/// Decides how a pod counts at the end of a period. `is_charged`: whether charges were seen.
/// `is_stored`: whether its entries are stored.
///
/// Entries of a completed period are never added later. So a pod whose shadow pod has just gone
/// counts, although its entries will be stored in a moment, and so does one whose charges are late.
pub fn state_at_period_end(
    pod: &LocalPod,
    shadow: Option<&ConsumerShadowPod>,
    is_charged: bool,
    is_stored: bool,
) -> PeriodEndState {
    // A refused pod was never there. One that ended by itself and stays costs nothing any more.
    let is_refused = pod
        .offloaded
        .as_ref()
        .is_some_and(|condition| condition.status == Some(false));
    match shadow {
        _ if is_stored => PeriodEndState::Nothing,
        Some(_) if is_charged => PeriodEndState::Charged,
        Some(shadow) if shadow.remote_status().is_some() => PeriodEndState::Unseen,
        None if is_charged || (!is_refused && is_ending_or_runs(pod)) => PeriodEndState::Unseen,
        Some(_) | None => PeriodEndState::Nothing,
    }
}

fn is_ending_or_runs(pod: &LocalPod) -> bool {
    pod.deletion.is_some()
        || (!pod.finished && PodView::of(&pod.to_json()).status().start_time().is_some())
}

/// The amounts that a provider may charge for a local pod, as the provider completes what the pod
/// asks for. `limit_percentage` is that of the contract. `former`: amounts that this cluster asked
/// for earlier, before it was resized.
///
/// While a pod is resized, its containers have old and new amounts in any mixture. Its status says
/// which, but the provider wrote that: it counts only if no amount in it is more than this cluster
/// ever asked for.
pub fn chargeable_amounts(
    pod: &LocalPod,
    charge: Charge,
    limit_percentage: u32,
    former: &[ResourceList],
) -> Vec<ResourceList> {
    let (asked, shown) = asked_and_reported_amounts(pod, charge, limit_percentage);
    let mut all = former.to_vec();
    all.extend(asked);
    let most = all
        .iter()
        .fold(ResourceList::new(), |all, one| all.max(one));
    all.extend(
        shown
            .into_iter()
            .filter(|shown| shown.fits_in(&most).is_ok()),
    );
    all
}

/// The amounts that a pod asks for, and those in its status.
fn asked_and_reported_amounts(
    pod: &LocalPod,
    charge: Charge,
    limit_percentage: u32,
) -> (Vec<ResourceList>, Vec<ResourceList>) {
    // Where limits are charged, containers get one of ephemeral storage only if that is offered.
    let limited: &[&[&'static str]] = match charge {
        Charge::Requests => &[&[MEMORY, EPHEMERAL_STORAGE]],
        Charge::Limits => &[&[EPHEMERAL_STORAGE], &[]],
    };
    let json = pod.to_json();
    let view = PodView::of(&json);
    let status = PodStatus::deserialize(view.status().json()).unwrap_or_default();
    let (mut asked, mut shown) = (Vec::new(), Vec::new());
    for limited in limited {
        let mut spec = view.spec().json().as_object().cloned().unwrap_or_default();
        let mut amounts = AmountRules {
            limited: limited.to_vec(),
            limit_percentage,
            ..AmountRules::default()
        };
        if !limited.is_empty() {
            amounts
                .default_requests
                .push((EPHEMERAL_STORAGE.to_owned(), "0".to_owned()));
        }
        complete_amounts(&mut spec, &amounts);
        let Ok(spec) = PodSpec::deserialize(Value::from(spec)) else {
            continue;
        };
        asked.push(
            EffectiveAmounts::of_pod(&spec)
                .charged_amounts(charge)
                .clone(),
        );
        shown.push(
            EffectiveAmounts::of_bound_pod(view.metadata().generation(), spec, &status)
                .charged_amounts(charge)
                .clone(),
        );
    }
    (asked, shown)
}

#[cfg(test)]
mod tests {
    use liqo_api::{Claimed, Key};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_that_the_provider_may_charge_counts_at_the_end_of_a_period_although_its_charges_are_not_known()
     {
        let local = |change: fn(&mut Value)| {
            let mut object = json!({ "metadata": { "name": "web", "namespace": "demo", "uid": "u" }, "spec": { "containers": [] } });
            change(&mut object);
            LocalPod::from_pod(
                serde_json::from_value(object).unwrap(),
                &Key::new("liqo", "milan"),
            )
            .unwrap()
        };
        let waits = local(|_| {});
        let started = local(|pod| pod["status"]["startTime"] = "2026-01-01T00:00:00Z".into());
        let deleted =
            local(|pod| pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
        let finished = local(|pod| {
            pod["status"] = json!({ "phase": "Succeeded", "startTime": "2026-01-01T00:00:00Z" });
        });
        let refused = local(|pod| {
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            pod["status"]["conditions"] = json!([{ "type": "liqo.io/Offloaded", "status": "False", "reason": "BudgetSpent" }]);
        });
        let shadow = |status: Value| {
            let object = json!({ "metadata": { "name": "u" }, "spec": { "namespace": "demo", "pool": "default", "pod": "{}" }, "status": status });
            ConsumerShadowPod::from_claimed(Claimed::new(serde_json::from_value(object).unwrap()))
                .unwrap()
        };
        let (pending, created) = (
            shadow(json!({ "phase": "Pending" })),
            shadow(json!({ "phase": "Created", "pod": { "phase": "Pending" } })),
        );
        let cases = [
            (&waits, None, false, PeriodEndState::Nothing),
            (&waits, None, true, PeriodEndState::Unseen),
            (&started, None, false, PeriodEndState::Unseen),
            (&deleted, None, false, PeriodEndState::Unseen),
            (&finished, None, false, PeriodEndState::Nothing),
            (&refused, None, false, PeriodEndState::Nothing),
            (&refused, None, true, PeriodEndState::Unseen),
            (&waits, Some(&pending), false, PeriodEndState::Nothing),
            (&waits, Some(&created), false, PeriodEndState::Unseen),
            (&waits, Some(&created), true, PeriodEndState::Charged),
        ];
        for (at, (pod, shadow, is_charged, expected)) in cases.into_iter().enumerate() {
            assert_eq!(
                state_at_period_end(pod, shadow, is_charged, false),
                expected,
                "case {at}"
            );
            assert_eq!(
                state_at_period_end(pod, shadow, is_charged, true),
                PeriodEndState::Nothing,
                "case {at}"
            );
        }
    }

    #[test]
    fn where_nothing_meters_a_pod_it_counts_from_its_start_while_it_runs() {
        let local = |status: Value| {
            let container = json!({ "name": "c", "resources": { "requests": { "cpu": "2", "memory": "1Gi" } } });
            let object = json!({ "metadata": { "name": "web", "namespace": "demo", "uid": "u" },
                "spec": { "containers": [container] }, "status": status });
            LocalPod::from_pod(
                serde_json::from_value(object).unwrap(),
                &Key::new("liqo", "milan"),
            )
            .unwrap()
        };
        let entry = |status: Value| {
            running_entry(&local(status), "gold", 1_767_225_660).map(|entry| entry.to_string())
        };
        let started = "2026-01-01T00:00:00Z";
        let running = entry(json!({ "phase": "Running", "startTime": started })).unwrap();
        assert!(
            running.starts_with("u gold 1767225600 1767225660 cpu=2,memory=1073741824,")
                && running.ends_with(" demo"),
            "{running}"
        );
        assert_eq!(
            (
                entry(json!({})),
                entry(json!({ "phase": "Failed", "startTime": started }))
            ),
            (None, None)
        );
    }

    #[test]
    fn a_consumer_expects_what_the_provider_makes_of_its_pod() {
        let local = |resources: serde_json::Value| {
            let object = json!({ "metadata": { "name": "web", "namespace": "demo", "uid": "u" },
                "spec": { "containers": [{ "name": "c", "resources": resources }] } });
            LocalPod::from_pod(
                serde_json::from_value(object).unwrap(),
                &Key::new("liqo", "milan"),
            )
            .unwrap()
        };
        let first = |resources, percentage| {
            chargeable_amounts(&local(resources), Charge::Requests, percentage, &[])[0].to_string()
        };
        assert_eq!(
            first(json!({}), 800),
            "cpu=10m, ephemeral-storage=0, memory=32Mi, pods=1"
        );
        let large =
            json!({ "requests": { "cpu": "1", "memory": "1Gi" }, "limits": { "memory": "16Gi" } });
        assert!(
            first(large.clone(), 800).contains("memory=2Gi"),
            "{}",
            first(large, 800)
        );
        assert_eq!(
            chargeable_amounts(&local(json!({})), Charge::Limits, 800, &[]).len(),
            4
        );
    }

    #[test]
    fn a_provider_that_shows_larger_amounts_in_the_status_of_a_pod_may_not_charge_them() {
        let local = |shown: &str| {
            let container = json!({ "name": "c", "resources": { "requests": { "cpu": "1", "memory": "16Mi" }, "limits": { "memory": "16Mi" } } });
            let amounts = json!({ "cpu": shown, "memory": "16Mi" });
            let status = json!({ "name": "c", "allocatedResources": amounts, "resources": { "requests": amounts } });
            let object = json!({ "metadata": { "name": "web", "namespace": "demo", "uid": "u" },
                "spec": { "containers": [container] }, "status": { "phase": "Running", "containerStatuses": [status] } });
            LocalPod::from_pod(
                serde_json::from_value(object).unwrap(),
                &Key::new("liqo", "milan"),
            )
            .unwrap()
        };
        let former: ResourceList = "4"
            .parse()
            .map(|cpu| [("cpu", cpu)].into_iter().collect())
            .unwrap();
        let cpus = |shown: &str, former: &[ResourceList]| {
            let all = chargeable_amounts(&local(shown), Charge::Requests, 800, former);
            all.iter()
                .map(|one| one.get("cpu").to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(cpus("1000", &[]), ["1"]);
        assert_eq!(
            cpus("2", std::slice::from_ref(&former)),
            ["4", "1", "2"],
            "it is being resized from 4 to 1"
        );
        assert_eq!(cpus("1000", &[former]), ["4", "1"]);
    }
}

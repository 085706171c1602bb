//! The effect of a pod's end on its Job.

use k8s_openapi::api::batch::v1::{Job, PodFailurePolicyRule};

use crate::pod::local_status::DISRUPTION_TARGET;

/// Kubernetes' default of `backoffLimit`.
const DEFAULT_BACKOFF_LIMIT: i32 = 6;

/// Whether a Job goes on when one of its pods is evicted that never ran: its policy ignores
/// disruptions, or it may count this as a failure and still has one left for itself. `ending` pods
/// of it are being deleted, which it may not have counted yet.
pub fn survives_eviction(job: &Job, ending: usize) -> bool {
    let Some(spec) = &job.spec else { return false };
    let rules = spec
        .pod_failure_policy
        .iter()
        .flat_map(|policy| &policy.rules);
    match rules
        .into_iter()
        .find(|rule| is_about_disruptions(rule))
        .map(|rule| rule.action.as_str())
    {
        Some("Ignore") => true,
        Some("Count") | None => {
            let failed = job
                .status
                .as_ref()
                .and_then(|status| status.failed)
                .unwrap_or_default();
            let uncounted = job
                .status
                .as_ref()
                .and_then(|status| status.uncounted_terminated_pods.as_ref());
            let uncounted = uncounted
                .and_then(|pods| pods.failed.as_ref())
                .map_or(0, Vec::len);
            // Some may be among both: then fewer are evicted.
            let lost = failed.saturating_add(i32::try_from(ending + uncounted).unwrap_or(i32::MAX));
            let left = spec
                .backoff_limit
                .unwrap_or(DEFAULT_BACKOFF_LIMIT)
                .saturating_sub(lost);
            // Each index has a limit of its own, and what it has used of it is not known here.
            spec.backoff_limit_per_index.is_none() && left >= 2
        }
        Some(_) => false,
    }
}

fn is_about_disruptions(rule: &PodFailurePolicyRule) -> bool {
    let conditions = rule.on_pod_conditions.iter().flatten();
    conditions
        .into_iter()
        .any(|one| one.type_ == DISRUPTION_TARGET && one.status == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn survives(mut spec: Value, failed: i32) -> bool {
        spec["template"] = json!({});
        let job = |failed: i32| -> Job {
            serde_json::from_value(json!({ "spec": spec, "status": { "failed": failed } })).unwrap()
        };
        let outcome = survives_eviction(&job(failed), 0);
        let uncounted = usize::try_from(failed).unwrap();
        assert_eq!(
            survives_eviction(&job(0), uncounted),
            outcome,
            "a pod that is being deleted counts as one that failed"
        );
        let mut flushing = job(0);
        let failed: Vec<String> = (0..failed).map(|number| number.to_string()).collect();
        let status = json!({ "uncountedTerminatedPods": { "failed": failed } });
        flushing.status = serde_json::from_value(status).unwrap();
        assert_eq!(
            survives_eviction(&flushing, 0),
            outcome,
            "so does one that the Job controller counts just now"
        );
        outcome
    }

    #[test]
    fn a_job_goes_on_if_it_ignores_disruptions_or_has_two_failures_left() {
        assert!(survives(json!({}), 0) && survives(json!({}), 4));
        assert!(
            !survives(json!({}), 5)
                && !survives(json!({ "backoffLimit": 1 }), 0)
                && !survives(json!({ "backoffLimit": 0 }), 0)
        );
        assert!(!survives(json!({ "backoffLimitPerIndex": 5 }), 0));
        let with_rule = |action: &str, limit: i32| {
            let conditions = json!([{ "type": "DisruptionTarget", "status": "True" }]);
            let rules = json!([{ "action": "FailJob", "onExitCodes": { "operator": "In", "values": [42] } },
                { "action": action, "onPodConditions": conditions }]);
            json!({ "backoffLimit": limit, "podFailurePolicy": { "rules": rules } })
        };
        assert!(survives(with_rule("Ignore", 0), 0));
        assert!(!survives(with_rule("FailJob", 6), 0));
        assert!(survives(with_rule("Count", 2), 0) && !survives(with_rule("Count", 1), 0));
    }
}

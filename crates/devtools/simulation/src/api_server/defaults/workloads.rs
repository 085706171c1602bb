//! Defaults of what makes pods.

use super::json::{each, in_field, or};
use super::{claim, pods};
use serde_json::{Value, json};

pub fn defaults(kind: &str, object: &mut Value) {
    // A job whose selector is still to be drawn up gets its labels after that.
    if kind == "Job"
        && (object["spec"].get("selector").is_some() || object["spec"]["manualSelector"] == true)
    {
        label_job(object);
    }
    in_field(object, "spec", |spec| {
        match kind {
            "Deployment" => deployment(spec),
            "DaemonSet" => daemon_set(spec),
            "StatefulSet" => stateful_set(spec),
            "ReplicaSet" => or(spec, "replicas", 1),
            "Job" => job(spec),
            _ => cron_job(spec),
        }
        in_field(spec, "template", pods::template);
    });
}

/// A job without labels has those of its pods.
pub fn label_job(job: &mut Value) {
    if let Some(labels) = job
        .pointer("/spec/template/metadata/labels")
        .filter(|labels| !labels.is_null())
        .cloned()
    {
        or(&mut job["metadata"], "labels", labels);
    }
}

fn deployment(spec: &mut Value) {
    or(spec, "replicas", 1);
    or(spec, "revisionHistoryLimit", 10);
    or(spec, "progressDeadlineSeconds", 600);
    rolling_update(spec, "strategy", json!("25%"), &json!("25%"));
}

fn daemon_set(spec: &mut Value) {
    or(spec, "revisionHistoryLimit", 10);
    rolling_update(spec, "updateStrategy", json!(1), &json!(0));
}

fn rolling_update(spec: &mut Value, strategy: &str, unavailable: Value, surge: &Value) {
    or(spec, strategy, json!({}));
    in_field(spec, strategy, |strategy| {
        or(strategy, "type", "RollingUpdate");
        if strategy["type"] == "RollingUpdate" {
            or(strategy, "rollingUpdate", json!({}));
            or(
                &mut strategy["rollingUpdate"],
                "maxUnavailable",
                unavailable,
            );
            or(&mut strategy["rollingUpdate"], "maxSurge", surge.clone());
        }
    });
}

fn stateful_set(spec: &mut Value) {
    or(spec, "podManagementPolicy", "OrderedReady");
    or(spec, "replicas", 1);
    or(spec, "revisionHistoryLimit", 10);
    or(spec, "updateStrategy", json!({}));
    in_field(spec, "updateStrategy", |strategy| {
        if strategy.get("type").is_none_or(Value::is_null) {
            or(strategy, "type", "RollingUpdate");
            or(strategy, "rollingUpdate", json!({}));
        }
        if strategy["type"] == "RollingUpdate" {
            in_field(strategy, "rollingUpdate", |update| {
                or(update, "partition", 0);
            });
        }
    });
    or(spec, "persistentVolumeClaimRetentionPolicy", json!({}));
    in_field(spec, "persistentVolumeClaimRetentionPolicy", |policy| {
        or(policy, "whenDeleted", "Retain");
        or(policy, "whenScaled", "Retain");
    });
    each(spec, "volumeClaimTemplates", |template| {
        claim(template);
        template["apiVersion"] = "v1".into();
        template["kind"] = "PersistentVolumeClaim".into();
    });
}

fn job(spec: &mut Value) {
    if spec.get("parallelism").is_none() {
        or(spec, "completions", 1);
    }
    or(spec, "parallelism", 1);
    let limit = if spec.get("backoffLimitPerIndex").is_some() {
        i32::MAX
    } else {
        6
    };
    or(spec, "backoffLimit", limit);
    or(spec, "completionMode", "NonIndexed");
    or(spec, "suspend", false);
    let policy = if spec.get("podFailurePolicy").is_some() {
        "Failed"
    } else {
        "TerminatingOrFailed"
    };
    or(spec, "podReplacementPolicy", policy);
    or(spec, "manualSelector", false);
    in_field(spec, "podFailurePolicy", |policy| {
        each(policy, "rules", |rule| {
            each(rule, "onPodConditions", |pattern| {
                or(pattern, "status", "True");
            });
        });
    });
}

fn cron_job(spec: &mut Value) {
    or(spec, "concurrencyPolicy", "Allow");
    or(spec, "suspend", false);
    or(spec, "successfulJobsHistoryLimit", 3);
    or(spec, "failedJobsHistoryLimit", 1);
    in_field(spec, "jobTemplate", |template| {
        in_field(template, "spec", |spec| {
            in_field(spec, "template", pods::template);
        });
    });
}

//! Deployments with their `ReplicaSets`, and their status.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::fields::{drop_field, new_condition, set_condition, set_count, share, uid};

pub const TEMPLATE_HASH: &str = "pod-template-hash";

/// A Deployment with its `ReplicaSets`, the oldest first.
pub struct Deployment<'a> {
    pub object: &'a Value,
    /// The one with today's template.
    pub new: Option<&'a Value>,
    pub old: Vec<&'a Value>,
    pub replicas: i64,
    pub max_surge: i64,
    pub max_unavailable: i64,
}

/// Replicas that a `ReplicaSet` should have.
pub fn wanted(set: &Value) -> i64 {
    set["spec"]["replicas"].as_i64().unwrap_or(1)
}

/// Available replicas: its status may still count some that it no longer wants.
pub fn available(set: &Value) -> i64 {
    set["status"]["availableReplicas"]
        .as_i64()
        .unwrap_or(0)
        .min(wanted(set))
}

impl<'a> Deployment<'a> {
    pub fn new(object: &'a Value, sets: &[&'a Value]) -> Self {
        let replicas = object["spec"]["replicas"].as_i64().unwrap_or(1);
        let rolling = &object["spec"]["strategy"]["rollingUpdate"];
        let limit = |field: &str, round_up: bool| {
            let value = if rolling[field].is_null() {
                json!("25%")
            } else {
                rolling[field].clone()
            };
            share(&value, replicas, round_up).unwrap_or(0)
        };
        let (max_surge, max_unavailable) =
            (limit("maxSurge", true), limit("maxUnavailable", false));
        let new = sets.iter().copied().find(|set| has_template(set, object));
        let is_old = |set: &&'a Value| new.is_none_or(|new| uid(new) != uid(set));
        Self {
            object,
            new,
            old: sets.iter().copied().filter(is_old).collect(),
            replicas,
            max_surge,
            // Something must be allowed to move.
            max_unavailable: if max_surge == 0 {
                max_unavailable.max(1)
            } else {
                max_unavailable
            },
        }
    }

    pub fn sets(&self) -> impl Iterator<Item = &'a Value> {
        self.old.iter().copied().chain(self.new)
    }

    pub fn status(&self, now: Timestamp) -> Value {
        let object = self.object;
        let mut status = if object["status"].is_object() {
            object["status"].clone()
        } else {
            json!({})
        };
        let sum = |field: &str| -> i64 {
            self.sets()
                .filter_map(|set| set["status"][field].as_i64())
                .sum()
        };
        let all_available: i64 = self.sets().map(available).sum();
        let all_wanted: i64 = self.sets().map(wanted).sum();
        let updated = self
            .new
            .and_then(|set| set["status"]["replicas"].as_i64())
            .unwrap_or(0);
        if !object["metadata"]["generation"].is_null() {
            status["observedGeneration"] = object["metadata"]["generation"].clone();
        }
        set_count(&mut status, "replicas", sum("replicas"));
        set_count(&mut status, "updatedReplicas", updated);
        set_count(&mut status, "readyReplicas", sum("readyReplicas"));
        set_count(&mut status, "availableReplicas", all_available);
        set_count(
            &mut status,
            "unavailableReplicas",
            (all_wanted - all_available).max(0),
        );
        let has_minimum = all_available >= self.replicas - self.max_unavailable;
        let (reason, message) = if has_minimum {
            (
                "MinimumReplicasAvailable",
                "Deployment has minimum availability.",
            )
        } else {
            (
                "MinimumReplicasUnavailable",
                "Deployment does not have minimum availability.",
            )
        };
        set_condition(
            &mut status,
            &new_condition("Available", has_minimum, reason, message),
            now,
        );
        status
    }
}

/// Whether a set has the template of a Deployment, apart from the hash.
fn has_template(set: &Value, deployment: &Value) -> bool {
    let (of_set, wanted) = (&set["spec"]["template"], &deployment["spec"]["template"]);
    let mut metadata = of_set["metadata"].clone();
    drop_field(&mut metadata["labels"], TEMPLATE_HASH);
    metadata == wanted["metadata"] && of_set["spec"] == wanted["spec"]
}

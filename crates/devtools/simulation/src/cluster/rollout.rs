//! Deployments with their `ReplicaSets`, and their status.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    fields::{
        after, condition, drop_field, items, name, new_condition, set_condition, set_count, share, text, time, time_text, uid,
    },
    plan::Plan,
};

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
    set["status"]["availableReplicas"].as_i64().unwrap_or(0).min(wanted(set))
}

impl<'a> Deployment<'a> {
    pub fn new(object: &'a Value, sets: &[&'a Value]) -> Self {
        let replicas = object["spec"]["replicas"].as_i64().unwrap_or(1);
        let rolling = &object["spec"]["strategy"]["rollingUpdate"];
        let limit = |field: &str, round_up: bool| {
            let value = if rolling[field].is_null() { json!("25%") } else { rolling[field].clone() };
            share(&value, replicas, round_up).unwrap_or(0)
        };
        let (max_surge, max_unavailable) = (limit("maxSurge", true), limit("maxUnavailable", false));
        let new = sets.iter().copied().find(|set| has_template(set, object));
        let is_old = |set: &&'a Value| new.is_none_or(|new| uid(new) != uid(set));
        Self {
            object,
            new,
            old: sets.iter().copied().filter(is_old).collect(),
            replicas,
            max_surge,
            // Something must be allowed to move.
            max_unavailable: if max_surge == 0 { max_unavailable.max(1) } else { max_unavailable },
        }
    }

    pub fn sets(&self) -> impl Iterator<Item = &'a Value> {
        self.old.iter().copied().chain(self.new)
    }

    pub fn status(&self, now: Timestamp, plan: &mut Plan) -> Value {
        let object = self.object;
        let mut status = if object["status"].is_object() { object["status"].clone() } else { json!({}) };
        let sum = |field: &str| -> i64 { self.sets().filter_map(|set| set["status"][field].as_i64()).sum() };
        let all_available: i64 = self.sets().map(available).sum();
        let all_wanted: i64 = self.sets().map(wanted).sum();
        let updated = self.new.and_then(|set| set["status"]["replicas"].as_i64()).unwrap_or(0);
        if !object["metadata"]["generation"].is_null() {
            status["observedGeneration"] = object["metadata"]["generation"].clone();
        }
        set_count(&mut status, "replicas", sum("replicas"));
        set_count(&mut status, "updatedReplicas", updated);
        set_count(&mut status, "readyReplicas", sum("readyReplicas"));
        set_count(&mut status, "availableReplicas", all_available);
        set_count(&mut status, "unavailableReplicas", (all_wanted - all_available).max(0));
        let has_minimum = all_available >= self.replicas - self.max_unavailable;
        let (reason, message) = if has_minimum {
            ("MinimumReplicasAvailable", "Deployment has minimum availability.")
        } else {
            ("MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        };
        put_condition(&mut status, object, new_condition("Available", has_minimum, reason, message), now);
        let is_complete = updated == self.replicas && sum("replicas") == updated && all_available == updated;
        if let Some(progressing) = progressing(self, &status, is_complete, now, plan) {
            put_condition(&mut status, object, progressing, now);
        }
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

/// Writes a condition, with the time of its last change.
fn put_condition(status: &mut Value, object: &Value, mut new: Value, now: Timestamp) {
    let before = condition(object, text(&new["type"]));
    let is_same = ["status", "reason", "message"].iter().all(|field| before[*field] == new[*field]);
    if !is_same || new["lastUpdateTime"].is_null() && before["lastUpdateTime"].is_null() {
        new["lastUpdateTime"] = json!(time_text(now));
    } else if new["lastUpdateTime"].is_null() {
        drop_field(&mut new, "lastUpdateTime");
    }
    set_condition(status, &new, now);
}

fn progressing(deployment: &Deployment, status: &Value, is_complete: bool, now: Timestamp, plan: &mut Plan) -> Option<Value> {
    let object = deployment.object;
    let deadline = object["spec"]["progressDeadlineSeconds"].as_i64()?;
    let before = condition(object, "Progressing");
    let was_complete = before["reason"] == "NewReplicaSetAvailable" && status["replicas"] == status["updatedReplicas"];
    if object["spec"]["paused"] == true || was_complete {
        return None;
    }
    let set = deployment.new.map(name).unwrap_or_default();
    if is_complete {
        let message = format!("ReplicaSet \"{set}\" has successfully progressed.");
        return Some(new_condition("Progressing", true, "NewReplicaSetAvailable", &message));
    }
    let has_moved = ["updatedReplicas", "readyReplicas", "availableReplicas", "replicas"]
        .iter()
        .any(|field| status[*field] != object["status"][*field]);
    if items(&object["status"]["conditions"]).is_empty() || has_moved {
        let mut progress =
            new_condition("Progressing", true, "ReplicaSetUpdated", &format!("ReplicaSet \"{set}\" is progressing."));
        progress["lastUpdateTime"] = json!(time_text(now));
        return Some(progress);
    }
    let last = time(&before["lastUpdateTime"]).unwrap_or(now);
    if before["status"] == "True" && plan.is_due(after(last, deadline)) {
        let message = format!("ReplicaSet \"{set}\" has timed out progressing.");
        return Some(new_condition("Progressing", false, "ProgressDeadlineExceeded", &message));
    }
    None
}

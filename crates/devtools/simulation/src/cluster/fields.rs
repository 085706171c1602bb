//! Fields that many kinds have.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub fn name(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}

pub fn namespace(object: &Value) -> &str {
    text(&object["metadata"]["namespace"])
}

pub fn uid(object: &Value) -> &str {
    text(&object["metadata"]["uid"])
}

pub fn label<'a>(object: &'a Value, key: &str) -> &'a str {
    text(&object["metadata"]["labels"][key])
}

pub fn is_ending(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// The owner that controls the object.
pub fn controller(object: &Value) -> Option<&Value> {
    items(&object["metadata"]["ownerReferences"])
        .iter()
        .find(|owner| owner["controller"] == true)
}

pub fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    items(&object["metadata"]["finalizers"])
        .iter()
        .any(|one| one == finalizer)
}

pub fn remove_finalizer(object: &mut Value, finalizer: &str) {
    if let Some(finalizers) = object["metadata"]["finalizers"].as_array_mut() {
        finalizers.retain(|one| one != finalizer);
    }
}

pub fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

pub fn created_at(object: &Value) -> Option<Timestamp> {
    time(&object["metadata"]["creationTimestamp"])
}

/// The time as objects have it, in seconds.
pub fn time_text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub fn after(time: Timestamp, seconds: i64) -> Timestamp {
    time.checked_add(SignedDuration::from_secs(seconds))
        .unwrap_or(Timestamp::MAX)
}

pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    items(&object["status"]["conditions"])
        .iter()
        .find(|condition| condition["type"] == kind)
        .unwrap_or(&Value::Null)
}

pub fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind)["status"] == "True"
}

/// A condition without its times.
pub fn new_condition(kind: &str, status: bool, reason: &str, message: &str) -> Value {
    let status = if status { "True" } else { "False" };
    json!({ "type": kind, "status": status, "reason": reason, "message": message })
}

/// Writes a condition into a status. The time of its transition stays if its status does. An empty
/// reason is left out.
pub fn set_condition(status: &mut Value, condition: &Value, now: Timestamp) {
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(conditions) = status["conditions"].as_array_mut() else {
        return;
    };
    let index = conditions
        .iter()
        .position(|one| one["type"] == condition["type"])
        .unwrap_or(conditions.len());
    if index == conditions.len() {
        conditions.push(json!({}));
    }
    let written = &mut conditions[index];
    if written["status"] != condition["status"] {
        written["lastTransitionTime"] = json!(time_text(now));
    }
    for (field, value) in condition.as_object().into_iter().flatten() {
        if value == "" {
            drop_field(written, field);
        } else {
            written[field] = value.clone();
        }
    }
}

pub fn drop_field(object: &mut Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove(field);
    }
}

/// Writes a number, or leaves it out if it is zero, as Kubernetes does.
pub fn set_count(status: &mut Value, field: &str, count: i64) {
    if count == 0 {
        drop_field(status, field);
    } else {
        status[field] = json!(count);
    }
}

pub fn count<T>(items: impl Iterator<Item = T>) -> i64 {
    i64::try_from(items.count()).unwrap_or(i64::MAX)
}

/// A number or a percentage of a total.
pub fn share(value: &Value, total: i64, round_up: bool) -> Option<i64> {
    let Some(text) = value.as_str() else {
        return value.as_i64();
    };
    let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
    let hundredths = percent.checked_mul(total)?;
    Some(if round_up {
        (hundredths + 99).div_euclid(100)
    } else {
        hundredths.div_euclid(100)
    })
}

/// FNV-1a: equal for equal bytes in every run.
pub fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// A hash of an object that does not depend on the order of its fields.
pub fn fingerprint(value: &Value) -> String {
    safe_hash(&sorted_text(value))
}

fn sorted_text(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let parts = fields
                .iter()
                .map(|(field, value)| format!("{field}:{}", sorted_text(value)));
            let mut parts: Vec<String> = parts.collect();
            parts.sort();
            format!("{{{}}}", parts.join(","))
        }
        Value::Array(values) => values.iter().map(sorted_text).collect::<Vec<_>>().join(";"),
        other => other.to_string(),
    }
}

/// A hash in the characters of generated names: no vowels, so that no words appear.
fn safe_hash(text: &str) -> String {
    const CHARACTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let digits = hash(text).to_string();
    digits
        .bytes()
        .map(|digit| char::from(CHARACTERS[usize::from(digit - b'0')]))
        .collect()
}

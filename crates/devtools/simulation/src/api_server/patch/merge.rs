//! Merge patches (RFC 7386).

use serde_json::Value;

pub fn apply(target: &mut Value, patch: &Value) {
    match (target.as_object_mut(), patch.as_object()) {
        (Some(fields), Some(changes)) => {
            for (name, change) in changes {
                match (change, fields.get_mut(name)) {
                    (Value::Null, _) => drop(fields.remove(name)),
                    (_, Some(field)) => apply(field, change),
                    (_, None) => drop(fields.insert(name.clone(), without_nulls(change))),
                }
            }
        }
        // Kubernetes keeps the nulls inside of a list that replaces an object.
        (Some(_), None) => *target = patch.clone(),
        (None, _) => *target = without_nulls(patch),
    }
}

/// The value without the fields that are null, also in items of lists.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(_, value)| !value.is_null());
            kept.map(|(name, value)| (name.clone(), without_nulls(value)))
                .collect()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_merge_patch_removes_what_is_null() {
        let mut target = json!({ "a": { "b": 1, "c": 2 }, "d": [1], "e": "x" });
        apply(
            &mut target,
            &json!({ "a": { "b": null, "n": { "m": null, "k": [{ "z": null }, null] } }, "d": [2], "e": null }),
        );
        assert_eq!(
            target,
            json!({ "a": { "c": 2, "n": { "k": [{}, null] } }, "d": [2] })
        );
    }
}

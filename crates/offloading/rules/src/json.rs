//! Reads and changes objects as JSON. Fields that are only read are in [`crate::views`].

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use liqo_api::labels;
use serde_json::{Map, Value, json};

/// Reason of a pod that ended because the provider took back what it used; the same on both sides.
pub const OFFER_RECLAIMED: &str = "OfferReclaimed";

/// The elements of the list at a JSON pointer; empty if there is no list.
#[cfg(test)]
pub(crate) fn items_at<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

#[cfg(test)]
pub(crate) fn text_at<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}

/// Sets the field at the end of this path. Whatever is on the way and is no object becomes one.
pub(crate) fn set_at(value: &mut Value, path: &[&str], to: impl Into<Value>) {
    *entry_at(value, path) = to.into();
}

/// The field at the end of this path; null if there was none. Whatever is on the way and is no
/// object becomes one.
pub(crate) fn entry_at<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut Value {
    path.iter().fold(value, |value, field| {
        if !value.is_object() {
            *value = Map::new().into();
        }
        match value {
            Value::Object(fields) => fields.entry(*field).or_insert(Value::Null),
            // Never: it is an object now.
            other => other,
        }
    })
}

/// The field at the end of this path.
pub(crate) fn field_at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, field| value.get(field))
}

/// The same field, to change it.
pub(crate) fn field_mut<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut Value> {
    path.iter()
        .try_fold(value, |value, field| value.get_mut(field))
}

/// The annotations of an object, to change them.
pub(crate) fn annotations_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    let metadata = object.get_mut("metadata")?;
    metadata.get_mut("annotations")?.as_object_mut()
}

/// A value's `name`, or an empty text.
pub fn name(value: &Value) -> &str {
    let name = value.get("name").and_then(Value::as_str);
    name.unwrap_or_default()
}

/// The domain in front of the slash of a label or annotation key.
pub(crate) fn key_domain(key: &str) -> &str {
    key.split_once('/').map_or("", |(domain, _)| domain)
}

/// These fields of an object, without nulls and empty texts.
pub fn select_fields(value: &Value, names: &[&str]) -> Map<String, Value> {
    let found = names
        .iter()
        .filter_map(|&name| Some((name.to_owned(), value.get(name)?.clone())));
    found
        .filter(|(_, value)| !value.is_null() && value.as_str() != Some(""))
        .collect()
}

/// The head of an object that Liqo manages.
pub(crate) fn managed_object(api_version: &str, kind: &str, namespace: &str, name: &str) -> Value {
    let metadata =
        json!({ "name": name, "namespace": namespace, "labels": { labels::MANAGED: "true" } });
    json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata })
}

/// A hash that is the same for objects with the same content.
pub fn json_fingerprint(object: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    // The order of keys may change on the way through the API server.
    canonical_text(object).hash(&mut hasher);
    hasher.finish()
}

fn canonical_text(value: &Value) -> String {
    match value {
        Value::Object(entries) => {
            let ordered: BTreeMap<&String, String> = entries
                .iter()
                .map(|(key, value)| (key, canonical_text(value)))
                .collect();
            format!("{ordered:?}")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_set_whatever_was_on_the_way() {
        for before in [
            json!(null),
            json!("text"),
            json!([1]),
            json!({ "b": 1 }),
            json!({ "a": 7, "b": 1 }),
        ] {
            let kept = before.get("b").cloned();
            let mut value = before;
            set_at(&mut value, &["a", "x/y"], "set");
            set_at(&mut value, &["a", "z"], 2);
            assert_eq!(value["a"], json!({ "x/y": "set", "z": 2 }));
            assert_eq!(value.get("b").cloned(), kept);
        }
    }
}

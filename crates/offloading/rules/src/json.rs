//! Reads objects as JSON.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use liqo_api::labels;
use serde_json::{Map, Value, json};

/// Reason of a pod that ended because the provider took back what it used; the same on both sides.
pub const OFFER_RECLAIMED: &str = "OfferReclaimed";

/// The elements of the list at a JSON pointer; empty if there is no list.
pub fn items<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}

/// A value's `name`, or an empty text.
pub fn name(value: &Value) -> &str {
    text(value, "/name").unwrap_or_default()
}

/// The domain in front of the slash of a label or annotation key.
pub(crate) fn domain(key: &str) -> &str {
    key.split_once('/').map_or("", |(domain, _)| domain)
}

/// These fields of an object, without nulls and empty texts.
pub fn fields(value: &Value, names: &[&str]) -> Map<String, Value> {
    let found = names.iter().filter_map(|&name| Some((name.to_owned(), value.get(name)?.clone())));
    found.filter(|(_, value)| !value.is_null() && value.as_str() != Some("")).collect()
}

/// The head of an object that Liqo manages.
pub(crate) fn managed_object(api_version: &str, kind: &str, namespace: &str, name: &str) -> Value {
    let metadata = json!({ "name": name, "namespace": namespace, "labels": { labels::MANAGED: "true" } });
    json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata })
}

/// A hash that is the same for objects with the same content.
pub fn fingerprint(object: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    // The order of keys may change on the way through the API server.
    in_order(object).hash(&mut hasher);
    hasher.finish()
}

fn in_order(value: &Value) -> String {
    match value {
        Value::Object(entries) => {
            let ordered: BTreeMap<&String, String> = entries.iter().map(|(key, value)| (key, in_order(value))).collect();
            format!("{ordered:?}")
        }
        other => other.to_string(),
    }
}

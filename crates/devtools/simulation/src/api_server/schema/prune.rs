//! What a schema takes away from an object, and what it adds.

use serde_json::{Map, Value};

use super::Node;

const OF_EVERY_RESOURCE: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Removes what `node` does not have and adds its path to `removed`; without a node nothing is known.
pub fn prune(node: Option<&Node>, value: &mut Value, path: &str, is_resource: bool, removed: &mut Vec<String>) {
    if let Some(node) = node.filter(|node| node.preserves_unknown) {
        return keep(node, value, path, is_resource, removed);
    }
    match value {
        Value::Object(map) => map.retain(|key, value| {
            if is_resource && OF_EVERY_RESOURCE.contains(&key.as_str()) {
                return true;
            }
            let path = join(path, key);
            let known = node.is_some_and(|node| prune_field(node, key, value, &path, removed));
            if !known {
                removed.push(path);
            }
            known
        }),
        Value::Array(items) => {
            let node = node.and_then(|node| node.items.as_deref());
            for (index, item) in items.iter_mut().enumerate() {
                prune(node, item, &format!("{path}[{index}]"), node.is_some_and(|node| node.is_embedded), removed);
            }
        }
        _ => {}
    }
}

/// Whether the schema knows the field.
fn prune_field(node: &Node, key: &str, value: &mut Value, path: &str, removed: &mut Vec<String>) -> bool {
    let is_known = node.properties.contains_key(key) || node.additional.is_some();
    let node = node.field(key);
    if !is_known {
        return false;
    }
    prune(node, value, path, node.is_some_and(|node| node.is_embedded), removed);
    true
}

/// As `prune` where unknown fields stay: only what is in known fields is pruned.
fn keep(node: &Node, value: &mut Value, path: &str, is_resource: bool, removed: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                if !is_resource || !OF_EVERY_RESOURCE.contains(&key.as_str()) {
                    prune_field(node, key, value, &join(path, key), removed);
                }
            }
        }
        Value::Array(items) => {
            if let Some(node) = &node.items {
                for (index, item) in items.iter_mut().enumerate() {
                    keep(node, item, &format!("{path}[{index}]"), node.is_embedded, removed);
                }
            }
        }
        _ => {}
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Drops nulls that neither are allowed nor have a default.
pub fn drop_nulls(node: Option<&Node>, value: &mut Value) {
    match value {
        Value::Object(map) => map.retain(|key, value| {
            let node = node.and_then(|node| node.field(key));
            let stays = !value.is_null() || node.is_none_or(|node| node.nullable || node.default.is_some());
            drop_nulls(node, value);
            stays
        }),
        Value::Array(items) => {
            let node = node.and_then(|node| node.items.as_deref());
            for item in items {
                drop_nulls(node, item);
            }
        }
        _ => {}
    }
}

/// Sets defaults inside of what exists.
pub fn fill(node: &Node, value: &mut Value) {
    match value {
        Value::Object(map) => {
            add_defaults(node, map);
            for (key, value) in map.iter_mut() {
                if let Some(field) = node.field(key) {
                    fill_one(field, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(node) = &node.items {
                for item in items {
                    fill_one(node, item);
                }
            }
        }
        _ => {}
    }
}

fn add_defaults(node: &Node, map: &mut Map<String, Value>) {
    for (name, field) in &node.properties {
        if let Some(default) = &field.default
            && map.get(name).is_none_or(|value| value.is_null() && !field.nullable)
        {
            map.insert(name.clone(), default.clone());
        }
    }
}

fn fill_one(node: &Node, value: &mut Value) {
    if value.is_null() && !node.nullable {
        *value = node.default.clone().unwrap_or_default();
    }
    fill(node, value);
}

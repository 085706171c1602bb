//! What a schema takes away from an object, and what it adds.

use serde_json::{Map, Value};

use super::{Node, child};

const OF_EVERY_RESOURCE: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Removes what the schema does not have, and returns the paths of what went.
pub fn prune(root: &Node, object: &mut Value) -> Vec<String> {
    let mut removed = vec![];
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|name, value| {
            OF_EVERY_RESOURCE.contains(&name.as_str())
                || prune_field(root, name, value, name, &mut removed)
        });
    }
    removed
}

/// Whether the field stays. If so, it is pruned itself.
fn prune_field(
    node: &Node,
    name: &str,
    value: &mut Value,
    path: &str,
    removed: &mut Vec<String>,
) -> bool {
    let Some(field) = node.field(name) else {
        if !node.preserves_unknown {
            removed.push(path.to_owned());
        }
        return node.preserves_unknown;
    };
    prune_value(field, value, path, removed);
    true
}

fn prune_value(node: &Node, value: &mut Value, path: &str, removed: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields
                .retain(|name, value| prune_field(node, name, value, &child(path, name), removed));
        }
        Value::Array(items) => {
            if let Some(node) = &node.items {
                for (index, item) in items.iter_mut().enumerate() {
                    prune_value(node, item, &format!("{path}[{index}]"), removed);
                }
            }
        }
        _ => {}
    }
}

/// Drops nulls that neither are allowed nor have a default.
pub fn drop_nulls(node: &Node, value: &mut Value) {
    match value {
        Value::Object(fields) => fields.retain(|name, value| {
            let Some(field) = node.field(name) else {
                return true;
            };
            drop_nulls(field, value);
            !value.is_null() || field.nullable || field.default.is_some()
        }),
        Value::Array(items) => {
            if let Some(node) = &node.items {
                for item in items {
                    drop_nulls(node, item);
                }
            }
        }
        _ => {}
    }
}

/// Sets defaults inside of what exists.
pub fn fill(node: &Node, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            add_defaults(node, fields);
            for (name, value) in fields.iter_mut() {
                if let Some(field) = node.field(name) {
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

fn add_defaults(node: &Node, fields: &mut Map<String, Value>) {
    for (name, field) in &node.properties {
        if let Some(default) = &field.default
            && fields
                .get(name)
                .is_none_or(|value| value.is_null() && !field.nullable)
        {
            fields.insert(name.clone(), default.clone());
        }
    }
}

fn fill_one(node: &Node, value: &mut Value) {
    if value.is_null() && !node.nullable {
        *value = node.default.clone().unwrap_or_default();
    }
    fill(node, value);
}

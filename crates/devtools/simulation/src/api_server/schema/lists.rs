//! Lists with keys must not contain the same keys twice.

use serde_json::{Map, Value};

use super::{Cause, CauseKind, Node, child};

/// The duplicates in the lists of an object.
pub fn duplicates(root: &Node, object: &Value) -> Vec<Cause> {
    let mut causes = vec![];
    check(root, object, "", &mut causes);
    causes
}

fn check(node: &Node, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match (node.properties.get(key), &node.additional) {
                    (Some(node), _) => check(node, value, &child(path, key), causes),
                    (None, Some(node)) => check(node, value, &format!("{path}[{key}]"), causes),
                    (None, None) => {}
                }
            }
        }
        Value::Array(items) => {
            if !node.keys.is_empty() {
                check_keys(node, items, path, causes);
            }
            if let Some(node) = &node.items {
                for (index, item) in items.iter().enumerate() {
                    check(node, item, &format!("{path}[{index}]"), causes);
                }
            }
        }
        _ => {}
    }
}

/// Names the second one of the items that have the same keys.
fn check_keys(node: &Node, items: &[Value], path: &str, causes: &mut Vec<Cause>) {
    if let Some(index) = items
        .iter()
        .position(|item| !item.is_object() && !item.is_null())
    {
        let message = "must be an object for an array of list-type map";
        causes.push(Cause::new(
            &format!("{path}[{index}]"),
            CauseKind::Invalid,
            Some(&items[index]),
            message,
        ));
        return;
    }
    let keys_of = |item: &Value| -> Map<String, Value> {
        node.keys
            .iter()
            .filter_map(|key| Some((key.clone(), item.get(key)?.clone())))
            .collect()
    };
    let keys: Vec<Value> = items
        .iter()
        .map(|item| Value::Object(keys_of(item)))
        .collect();
    for (index, own) in keys.iter().enumerate() {
        if keys[..index].iter().filter(|other| *other == own).count() == 1 {
            causes.push(Cause::new(
                &format!("{path}[{index}]"),
                CauseKind::Duplicate,
                Some(own),
                "",
            ));
        }
    }
}

//! Lists that must not contain anything twice: sets, and lists with keys.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{Additional, Cause, CauseKind, Node, text};

/// Adds the duplicates in the fields of `value`, whose path is `path`.
pub fn check_fields(node: &Node, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        if let Some(Additional::Of(node)) = &node.additional {
            check(node, value, &format!("{path}[{key}]"), causes);
        }
        if let Some(node) = node.properties.get(key) {
            check(node, value, &super::child(path, key), causes);
        }
    }
}

fn check(node: &Node, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    let Some(items) = value.as_array() else {
        return check_fields(node, value, path, causes);
    };
    if node.is_set {
        causes.extend(duplicates(items).into_iter().map(|index| duplicate(path, index, &items[index])));
    } else if node.is_keyed {
        check_keys(node, items, path, causes);
    }
    if let Some(node) = &node.items {
        for (index, item) in items.iter().enumerate() {
            check(node, item, &format!("{path}[{index}]"), causes);
        }
    }
}

fn check_keys(node: &Node, items: &[Value], path: &str, causes: &mut Vec<Cause>) {
    if let Some(index) = items.iter().position(|item| !item.is_object() && !item.is_null()) {
        let message = "must be an object for an array of list-type map";
        causes.push(Cause::new(&format!("{path}[{index}]"), CauseKind::Invalid, Some(&items[index]), message));
        return;
    }
    let with_keys = |item: &Value| -> Map<String, Value> {
        node.keys.iter().filter_map(|key| Some((key.clone(), item.get(key)?.clone()))).collect()
    };
    let keys: Vec<_> = items.iter().map(|item| Value::Object(with_keys(item))).collect();
    causes.extend(duplicates(&keys).into_iter().map(|index| duplicate(path, index, &keys[index])));
}

/// The second index of each value that is there more than once.
fn duplicates(items: &[Value]) -> Vec<usize> {
    let mut seen = HashMap::new();
    let mut indices = vec![];
    for (index, item) in items.iter().enumerate() {
        let times: &mut u32 = seen.entry(text::json(item)).or_default();
        *times += 1;
        if *times == 2 {
            indices.push(index);
        }
    }
    indices
}

fn duplicate(path: &str, index: usize, value: &Value) -> Cause {
    Cause::new(&format!("{path}[{index}]"), CauseKind::Duplicate, Some(value), "")
}

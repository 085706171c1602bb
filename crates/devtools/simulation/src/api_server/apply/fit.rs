//! Whether a configuration fits the types of its kind.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    super::{
        lists::{ListType, Lists, Node, Scalar},
        patch::go_text,
    },
    paths::Element,
    values::{Shape, shape_of},
};

/// Says what does not fit, as a real API server does.
pub fn check(lists: &Lists, configuration: &Value) -> Result<(), String> {
    let mut problems = Vec::new();
    find_problems(lists.root(), configuration, "", &mut problems);
    let listed = match problems.as_slice() {
        [] => return Ok(()),
        [one] => one.clone(),
        _ => format!("errors:\n  {}", problems.join("\n  ")),
    };
    Err(format!(
        "failed to create typed patch object ({}): {listed}",
        describe(configuration)
    ))
}

/// `namespace/name; apps/v1, Kind=Deployment`.
fn describe(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (metadata, version) = (&object["metadata"], text(&object["apiVersion"]));
    let version = if version.contains('/') {
        version
    } else {
        format!("/{version}")
    };
    format!(
        "{}/{}; {version}, Kind={}",
        text(&metadata["namespace"]),
        text(&metadata["name"]),
        text(&object["kind"])
    )
}

fn find_problems(node: Node, value: &Value, path: &str, problems: &mut Vec<String>) {
    let kind = node.kind();
    let mut report = |message: String| {
        problems.push(if path.is_empty() {
            message
        } else {
            format!("{path}: {message}")
        });
    };
    match (shape_of(kind, value), value) {
        (_, Value::Null) => {}
        (Shape::Scalar, _) => {
            let wrong = kind.scalar.and_then(|scalar| check_scalar(scalar, value));
            wrong.into_iter().for_each(report);
        }
        (Shape::Map, Value::Object(fields)) => {
            for (name, field) in fields {
                let path = format!("{path}.{name}");
                match node.field(name) {
                    Some(node) => find_problems(node, field, &path, problems),
                    None => return problems.push(format!("{path}: field not declared in schema")),
                }
            }
        }
        (Shape::List, Value::Array(items)) => check_items(node, items, path, problems),
        (Shape::Map, other) => report(format!("expected map, got &{{{}}}", go_text(other))),
        (Shape::List, other) => report(format!("expected list, got &{{{}}}", go_text(other))),
    }
}

fn check_items(node: Node, items: &[Value], path: &str, problems: &mut Vec<String>) {
    let prefix = if path.is_empty() {
        String::new()
    } else {
        format!("{path}: ")
    };
    let (Some(list), Some(node)) = (&node.kind().list, node.items()) else {
        return;
    };
    let mut seen = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        if list.list_type == ListType::Atomic {
            find_problems(node, item, &format!("{path}[{index}]"), problems);
            continue;
        }
        let element = match Element::of_item(list, item) {
            Ok(element) => element,
            Err(error) => return problems.push(format!("{prefix}element {index}: {error}")),
        };
        let printed = element.print();
        if !seen.insert(element) {
            problems.push(format!("{prefix}duplicate entries for key {printed}"));
        }
        find_problems(node, item, &format!("{path}{printed}"), problems);
    }
}

fn check_scalar(scalar: Scalar, value: &Value) -> Option<String> {
    let go_type = match value {
        Value::Bool(_) => "bool",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        _ => "map[string]interface {}",
    };
    match scalar {
        Scalar::Number if !value.is_number() => {
            Some(format!("expected numeric (int or float), got {go_type}"))
        }
        Scalar::Text if !value.is_string() => Some(format!(
            "expected string, got &value.valueUnstructured{{Value:{value}}}"
        )),
        Scalar::Boolean if !value.is_boolean() => {
            Some(format!("expected boolean, got &{{{}}}", go_text(value)))
        }
        Scalar::Any if value.is_array() || value.is_object() => {
            Some(format!("expected any scalar, got &{{{}}}", go_text(value)))
        }
        _ => None,
    }
}

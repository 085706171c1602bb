//! Values of a type: their parts, and what merges as a whole.

use serde_json::{Map, Value};

use super::{
    super::lists::{List, ListType, Node, Type},
    paths::{Element, Path, Set},
};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    Map,
    Scalar,
    List,
}

/// The one of the shapes of a type that a value has. The first, where it has none.
pub fn shape_of(kind: &Type, value: &Value) -> Shape {
    match value {
        Value::Array(_) if kind.list.is_some() => Shape::List,
        Value::Bool(_) | Value::Number(_) | Value::String(_) if kind.scalar.is_some() => {
            Shape::Scalar
        }
        _ if kind.map.is_some() => Shape::Map,
        _ if kind.scalar.is_some() => Shape::Scalar,
        _ => Shape::List,
    }
}

/// Whether the values are compared and merged as a whole. Null and empty maps are: that keeps them
/// distinct.
pub fn is_leaf(kind: &Type, shape: Shape, values: [Option<&Value>; 2]) -> bool {
    match shape {
        Shape::Scalar => true,
        Shape::Map => {
            let is_empty =
                |value: Option<&Value>| value.and_then(Value::as_object).is_none_or(Map::is_empty);
            kind.map.as_ref().is_none_or(|map| map.is_atomic) || values.into_iter().all(is_empty)
        }
        Shape::List => {
            let is_empty =
                |value: Option<&Value>| value.and_then(Value::as_array).is_none_or(Vec::is_empty);
            kind.list
                .as_ref()
                .is_none_or(|list| list.list_type == ListType::Atomic)
                || values.into_iter().all(is_empty)
        }
    }
}

/// The items of a list that merges by item, with what identifies them.
pub fn items_of<'a>(list: &List, value: Option<&'a Value>) -> Vec<(Element, &'a Value)> {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    items
        .filter_map(|item| Some((Element::of_item(list, item).ok()?, item)))
        .collect()
}

pub fn fields_of(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_object).into_iter().flatten()
}

pub fn paths_of(root: Node, object: &Value) -> Set {
    let mut set = Set::new();
    collect(root, object, &mut Path::new(), &mut set);
    set
}

fn collect(node: Node, value: &Value, path: &mut Path, set: &mut Set) {
    let kind = node.kind();
    match (shape_of(kind, value), &kind.map, &kind.list) {
        (Shape::Map, Some(map), _) if !map.is_atomic => {
            for (name, field) in fields_of(Some(value)) {
                path.push(Element::Field(name.clone()));
                if let Some(node) = node.field(name) {
                    collect(node, field, path, set);
                }
                if field.is_null()
                    || field.as_object().is_some_and(Map::is_empty)
                    || !node.declares(name)
                {
                    set.insert(path.clone());
                }
                path.pop();
            }
        }
        (Shape::List, _, Some(list)) if list.list_type != ListType::Atomic => {
            for (element, item) in items_of(list, Some(value)) {
                path.push(element);
                if let Some(node) = node.items() {
                    collect(node, item, path, set);
                }
                set.insert(path.clone());
                path.pop();
            }
        }
        _ if path.is_empty() => {}
        _ => drop(set.insert(path.clone())),
    }
}

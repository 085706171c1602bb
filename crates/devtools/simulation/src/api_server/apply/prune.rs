//! Removes what a manager applied last time and does not apply any more.

use std::ops::Bound;

use serde_json::{Map, Value};

use super::{
    super::lists::{ListType, Node},
    managers::Managers,
    paths::{Element, Path, Set},
    values::{Shape, items_of, paths_of, shape_of},
};

/// Removes what the manager applied last time and nobody owns any more.
pub fn prune(root: Node, merged: Value, last: &Set, managers: &Managers) -> Value {
    if last.is_empty() {
        return merged;
    }
    let paths_left = |removed: &Set| {
        with_parents(
            root,
            &paths_of(root, &without(root, &merged, removed, &mut Path::new())),
        )
    };
    let last = with_parents(root, last);
    let all = with_parents(root, &paths_of(root, &merged));
    let owned: Set = managers
        .values()
        .flat_map(|entry| entry.fields.iter().cloned())
        .collect();
    let owned = with_parents(root, &owned);
    let left = paths_left(&last);
    let unowned: Set = all
        .iter()
        .filter(|path| !left.contains(*path) && !owned.contains(*path))
        .cloned()
        .collect();
    // Removing a list item also removed fields of it that this manager did not apply: they stay.
    let left = paths_left(&unowned);
    let removed = all
        .iter()
        .filter(|path| !left.contains(*path) && last.contains(*path))
        .cloned()
        .collect();
    without(root, &merged, &removed, &mut Path::new())
}

/// The set with the declared fields through which its paths lead.
fn with_parents(root: Node, set: &Set) -> Set {
    let mut all = set.clone();
    for path in set {
        let mut node = Some(root);
        for (at, element) in path.iter().enumerate() {
            node = match (node, element) {
                (Some(node), Element::Field(name)) => {
                    if node.declares(name) && at + 1 < path.len() {
                        all.insert(path[..=at].to_vec());
                    }
                    node.field(name)
                }
                (Some(node), Element::Key(_)) => node.items(),
                _ => None,
            };
        }
    }
    all
}

/// The value without the fields and items of a set. What becomes empty is null.
fn without(node: Node, value: &Value, removed: &Set, path: &mut Path) -> Value {
    let kind = node.kind();
    let mut keep = |element: Element, node: Option<Node>, value: &Value| {
        path.push(element);
        let kept = match node {
            _ if removed.contains(path) => None,
            Some(node) if holds_more_below(removed, path) => {
                Some(without(node, value, removed, path))
            }
            _ => Some(value.clone()),
        };
        path.pop();
        kept
    };
    match (shape_of(kind, value), value, &kind.list) {
        (Shape::Scalar, ..) => value.clone(),
        (Shape::Map, Value::Object(fields), _)
            if kind.map.as_ref().is_some_and(|map| !map.is_atomic) =>
        {
            let kept = fields.iter().filter_map(|(name, field)| {
                Some((
                    name.clone(),
                    keep(Element::Field(name.clone()), node.field(name), field)?,
                ))
            });
            let kept: Map<String, Value> = kept.collect();
            if kept.is_empty() {
                Value::Null
            } else {
                Value::Object(kept)
            }
        }
        (Shape::List, Value::Array(_), Some(list)) if list.list_type != ListType::Atomic => {
            let items = items_of(list, Some(value)).into_iter();
            let kept: Vec<Value> = items
                .filter_map(|(element, item)| keep(element, node.items(), item))
                .collect();
            if kept.is_empty() {
                Value::Null
            } else {
                Value::Array(kept)
            }
        }
        _ => Value::Null,
    }
}

/// Whether a set has paths that go on from this one.
fn holds_more_below(set: &Set, path: &Path) -> bool {
    let after = set
        .range::<Path, _>((Bound::Excluded(path), Bound::Unbounded))
        .next();
    after.is_some_and(|next| next.starts_with(path))
}

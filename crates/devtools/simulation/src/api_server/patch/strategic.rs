//! Strategic merge patches, which only kinds of Kubernetes have.
//!
//! It knows the directives `$patch` and `$deleteFromPrimitiveList`, and refuses others.

use std::{cmp::Ordering, mem};

use serde_json::{Map, Value};

use super::{
    super::lists::{Lists, Node},
    Failure, go_text, json_type,
};

const DIRECTIVE: &str = "$patch";
const DELETE_ITEMS: &str = "$deleteFromPrimitiveList/";

type Fields = Map<String, Value>;

pub fn apply(lists: &Lists, mut object: Value, patch: &Value) -> Result<Value, Failure> {
    let Some(changes) = patch.as_object() else {
        let found = json_type(patch);
        return Err(Failure::bad_request(format!(
            "json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
        )));
    };
    if let Some(fields) = object.as_object_mut() {
        merge_fields(lists.root(), fields, changes)?;
    }
    Ok(object)
}

fn merge_fields(node: Node, fields: &mut Fields, changes: &Fields) -> Result<(), Failure> {
    match changes.get(DIRECTIVE).map(Value::as_str) {
        Some(Some("replace")) => {
            changes.clone_into(fields);
            fields.remove(DIRECTIVE);
            return Ok(());
        }
        Some(Some("delete")) => {
            fields.clear();
            return Ok(());
        }
        Some(_) => return Err(unknown(DIRECTIVE)),
        None => {}
    }
    for (name, change) in changes {
        match name.strip_prefix(DELETE_ITEMS) {
            Some(name) => delete_items(fields, name, change),
            None if name.starts_with('$') => return Err(unknown(name)),
            None => merge_field(node, fields, name, change)?,
        }
    }
    Ok(())
}

fn unknown(directive: &str) -> Failure {
    Failure::internal(format!(
        "the simulated API server does not know this directive of a strategic merge patch: {directive}"
    ))
}

fn delete_items(fields: &mut Fields, name: &str, deleted: &Value) {
    if let (Some(Value::Array(items)), Some(deleted)) = (fields.get_mut(name), deleted.as_array()) {
        items.retain(|item| !deleted.contains(item));
    }
}

fn merge_field(node: Node, fields: &mut Fields, name: &str, change: &Value) -> Result<(), Failure> {
    let type_of_field = || {
        let unknown = || {
            format!(
                "unable to find api field in struct {} for the json field {name:?}",
                node.kind().name
            )
        };
        node.field(name).ok_or_else(|| Failure::internal(unknown()))
    };
    match (fields.get_mut(name), change) {
        (Some(Value::Object(old)), Value::Object(changes)) => {
            let field = type_of_field()?;
            if field.kind().map.as_ref().is_some_and(|map| map.is_replaced) {
                changes.clone_into(old);
            } else {
                merge_fields(field, old, changes)?;
            }
        }
        (Some(Value::Array(items)), Value::Array(changes)) => {
            *items = merge_items(type_of_field()?, mem::take(items), changes)?;
        }
        (_, change) => match as_new(change) {
            Some(new) => drop(fields.insert(name.to_owned(), new)),
            None => drop(fields.remove(name)),
        },
    }
    Ok(())
}

fn merge_items(
    list: Node,
    mut items: Vec<Value>,
    changes: &[Value],
) -> Result<Vec<Value>, Failure> {
    let Some(key) = list
        .kind()
        .list
        .as_ref()
        .and_then(|list| list.patch_key.as_deref())
    else {
        return Ok(changes.to_vec());
    };
    // Lists of scalars have no key, and are sets.
    let identity = |item: &Value| {
        if key.is_empty() {
            Some(item.clone())
        } else {
            item.get(key).cloned()
        }
    };
    if let Some(without_key) = changes
        .iter()
        .find(|change| change[DIRECTIVE] != "replace" && identity(change).is_none())
    {
        let item = go_text(without_key);
        return Err(Failure::internal(format!(
            "map: {item} does not contain declared merge key: {key}"
        )));
    }
    let (directives, changes): (Vec<&Value>, Vec<&Value>) = changes
        .iter()
        .partition(|change| change.get(DIRECTIVE).is_some());
    for directive in directives {
        match directive[DIRECTIVE].as_str() {
            Some("delete") => items.retain(|item| identity(item) != identity(directive)),
            Some("replace") => return Ok(changes.into_iter().cloned().collect()),
            _ => return Err(unknown(DIRECTIVE)),
        }
    }
    let mut merged = items.clone();
    for change in &changes {
        match (
            merged
                .iter_mut()
                .find(|item| identity(item) == identity(change)),
            change,
        ) {
            (Some(Value::Object(fields)), Value::Object(changes)) => {
                merge_fields(list.items().unwrap_or(list), fields, changes)?;
            }
            (Some(_), _) => {}
            (None, change) => merged.push((*change).clone()),
        }
    }
    let place_in = |items: &[Value], item: &Value| {
        items
            .iter()
            .position(|other| identity(other) == identity(item))
    };
    let place_in_changes = |item: &Value| {
        changes
            .iter()
            .position(|change| identity(change) == identity(item))
    };
    Ok(put_in_order(merged, place_in_changes, |item| {
        place_in(&items, item)
    }))
}

/// Items of the patch come in its order. The others keep theirs, each before the first item that
/// follows it in the live list.
fn put_in_order(
    merged: Vec<Value>,
    place_in_changes: impl Fn(&Value) -> Option<usize>,
    place_in_live: impl Fn(&Value) -> Option<usize>,
) -> Vec<Value> {
    let (mut named, mut others): (Vec<Value>, Vec<Value>) = merged
        .into_iter()
        .partition(|item| place_in_changes(item).is_some());
    named.sort_by_key(&place_in_changes);
    others.sort_by(
        |one, other| match (place_in_live(one), place_in_live(other)) {
            (Some(one), Some(other)) => one.cmp(&other),
            _ => Ordering::Equal,
        },
    );
    let mut ordered = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for item in named {
        let place = place_in_live(&item);
        while let Some(other) = others.next_if(|other| {
            place_in_live(other)
                .zip(place)
                .is_some_and(|(other, item)| other < item)
        }) {
            ordered.push(other);
        }
        ordered.push(item);
    }
    ordered.extend(others);
    ordered
}

/// A value that was not there, without nulls and directives. `None` if it is null or a directive.
fn as_new(value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Object(fields) if fields.contains_key(DIRECTIVE) => None,
        Value::Object(fields) => {
            let kept = fields
                .iter()
                .filter_map(|(name, value)| Some((name.clone(), as_new(value)?)));
            Some(kept.collect())
        }
        Value::Array(items) => Some(items.iter().filter_map(as_new).collect()),
        other => Some(other.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(original: &Value, patch: &Value) -> Failure {
        apply(&Lists::of_built_in("", "Pod"), original.clone(), patch).unwrap_err()
    }

    fn patched(original: &Value, patch: &Value) -> Value {
        apply(&Lists::of_built_in("", "Pod"), original.clone(), patch).unwrap()
    }

    #[test]
    fn containers_merge_by_name() {
        let pod = json!({ "spec": { "containers": [{ "name": "a", "image": "1" }, { "name": "b", "image": "1" }] } });
        let change = json!({ "spec": { "containers": [{ "name": "c", "image": "3" }, { "name": "b", "image": "2" }] } });
        let containers = json!([{ "name": "c", "image": "3" }, { "name": "a", "image": "1" }, { "name": "b", "image": "2" }]);
        assert_eq!(patched(&pod, &change)["spec"]["containers"], containers);
        let deletes = json!({ "spec": { "containers": [{ "name": "a", "$patch": "delete" }] } });
        assert_eq!(
            patched(&pod, &deletes)["spec"]["containers"],
            json!([{ "name": "b", "image": "1" }])
        );
        let replaces =
            json!({ "spec": { "containers": [{ "$patch": "replace" }, { "name": "c" }] } });
        assert_eq!(
            patched(&pod, &replaces)["spec"]["containers"],
            json!([{ "name": "c" }])
        );
    }

    #[test]
    fn finalizers_merge_as_a_set() {
        let pod = json!({ "metadata": { "finalizers": ["a", "b"] } });
        let adds = json!({ "metadata": { "finalizers": ["c", "a"] } });
        assert_eq!(
            patched(&pod, &adds)["metadata"]["finalizers"],
            json!(["c", "a", "b"])
        );
        let deletes = json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": ["a"] } });
        assert_eq!(
            patched(&pod, &deletes)["metadata"]["finalizers"],
            json!(["b"])
        );
    }

    #[test]
    fn labels_are_replaced_on_demand() {
        let pod = json!({ "metadata": { "labels": { "a": "1", "b": "1" } } });
        let replaces = json!({ "metadata": { "labels": { "$patch": "replace", "c": "1" } } });
        assert_eq!(
            patched(&pod, &replaces)["metadata"]["labels"],
            json!({ "c": "1" })
        );
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let pod = json!({ "spec": { "containers": [{ "name": "a" }] } });
        let without_key = refused(
            &pod,
            &json!({ "spec": { "containers": [{ "image": "x" }] } }),
        );
        assert_eq!(
            without_key,
            Failure::internal("map: map[image:x] does not contain declared merge key: name")
        );
        let ordered = refused(
            &pod,
            &json!({ "spec": { "$setElementOrder/containers": [{ "name": "a" }] } }),
        );
        assert!(
            ordered.message.ends_with("$setElementOrder/containers"),
            "{}",
            ordered.message
        );
    }
}

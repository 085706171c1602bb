//! The patches of an API server: what each makes of an object.
//!
//! JSON patches follow `gopkg.in/evanphx/json-patch.v4`, which is more lenient than RFC 6902: "replace" adds a missing key.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use super::lists::{Lists, Node};

/// Why a patch is refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Rejection {
    /// The HTTP status with which kube-apiserver refuses it.
    pub code: u16,
    pub message: String,
}

impl From<Rejection> for String {
    fn from(rejection: Rejection) -> Self {
        rejection.message
    }
}

/// Applies a merge patch (RFC 7386).
pub fn merge(target: &mut Value, patch: &Value) {
    match (target.as_object_mut(), patch.as_object()) {
        (Some(fields), Some(changes)) => {
            for (name, change) in changes {
                match (change, fields.get_mut(name)) {
                    (Value::Null, _) => drop(fields.shift_remove(name)),
                    (_, Some(field)) => merge(field, change),
                    (_, None) => drop(fields.insert(name.clone(), without_nulls(change))),
                }
            }
        }
        // Kubernetes keeps the nulls inside of a list that replaces an object.
        (Some(_), None) => *target = patch.clone(),
        (None, _) => *target = without_nulls(patch),
    }
}

/// The value without the fields that are null, also in items of lists.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(_, value)| !value.is_null());
            kept.map(|(name, value)| (name.clone(), without_nulls(value))).collect()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

/// Applies a JSON patch (RFC 6902).
pub fn json(original: &Value, patch: &Value) -> Result<Value, Rejection> {
    let undecodable = |value: &Value, wanted: &str| Rejection {
        code: 400,
        message: format!("error decoding patch: json: cannot unmarshal {} into Go value of type {wanted}", json_type(value)),
    };
    let operations = match patch {
        Value::Array(operations) => operations.as_slice(),
        Value::Null => &[],
        other => return Err(undecodable(other, "[]handlers.jsonPatchOp")),
    };
    if let Some(wrong) = operations.iter().find(|operation| !operation.is_object()) {
        return Err(undecodable(wrong, "handlers.jsonPatchOp"));
    }
    let mut patched = original.clone();
    for operation in operations {
        apply_operation(&mut patched, operation).map_err(|message| Rejection { code: 422, message })?;
    }
    Ok(patched)
}

/// The name of a type in messages of Go's JSON package.
fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn apply_operation(document: &mut Value, operation: &Value) -> Result<(), String> {
    let text = |field: &str| operation[field].as_str();
    let path = text("path");
    let value = || operation["value"].clone();
    match text("op").unwrap_or("unknown") {
        "add" => add(document, path.ok_or("add operation failed to decode path: missing value")?, value()),
        "remove" => remove(document, path.ok_or("remove operation failed to decode path: missing value")?),
        "replace" => {
            let missing = "replace operation failed to decode path: operation missing path field: missing value";
            replace(document, path.ok_or(missing)?, value())
        }
        "test" => {
            let missing = "test operation failed to decode path: operation missing path field: missing value";
            test(document, path.ok_or(missing)?, &operation["value"])
        }
        name @ ("move" | "copy") => relocate(document, name, text("from"), path),
        other => Err(format!("Unexpected kind: {other}")),
    }
}

fn relocate(document: &mut Value, name: &str, from: Option<&str>, to: Option<&str>) -> Result<(), String> {
    let missing =
        |field: &str| format!("{name} operation failed to decode {field}: operation, missing {field} field: missing value");
    let from = from.ok_or_else(|| missing("from"))?;
    let (container, key) = container_of(document, from)
        .ok_or_else(|| format!("{name} operation does not apply: doc is missing from path: {from}: missing value"))?;
    let (place, subject) = if name == "move" { ("path", key.as_str()) } else { ("from", from) };
    let wrong = |error: String| format!("error in {name} for {place}: '{subject}': {error}");
    let value = get(container, &key).map_err(wrong)?.cloned().unwrap_or_default();
    if name == "move" {
        remove_key(container, &key).map_err(wrong)?;
    }
    let to = to.ok_or_else(|| format!("{name} operation failed to decode path: missing value"))?;
    let (container, key) = container_of(document, to)
        .ok_or_else(|| format!("{name} operation does not apply: doc is missing destination path: {to}: missing value"))?;
    add_key(container, &key, value).map_err(|error| match name {
        "move" => format!("error in move for path: '{to}': {error}"),
        _ => format!("error while adding value during copy: {error}"),
    })
}

fn add(document: &mut Value, path: &str, value: Value) -> Result<(), String> {
    let (container, key) = container_of(document, path)
        .ok_or_else(|| format!("add operation does not apply: doc is missing path: \"{path}\": missing value"))?;
    add_key(container, &key, value).map_err(|error| format!("error in add for path: '{path}': {error}"))
}

fn remove(document: &mut Value, path: &str) -> Result<(), String> {
    let (container, key) = container_of(document, path)
        .ok_or_else(|| format!("remove operation does not apply: doc is missing path: \"{path}\": missing value"))?;
    remove_key(container, &key).map_err(|error| format!("error in remove for path: '{path}': {error}"))
}

fn replace(document: &mut Value, path: &str, value: Value) -> Result<(), String> {
    if path.is_empty() {
        // The library ignores the operation if the value is a scalar.
        if value.is_object() || value.is_array() {
            *document = value;
        }
        return Ok(());
    }
    let (container, key) = container_of(document, path)
        .ok_or_else(|| format!("replace operation does not apply: doc is missing path: {path}: missing value"))?;
    if get(container, &key).is_err() {
        return Err(format!("replace operation does not apply: doc is missing key: {path}: missing value"));
    }
    match container {
        Value::Array(items) => {
            let at = index_of(&key, items.len())?;
            items[at] = value;
        }
        fields => fields[key] = value,
    }
    Ok(())
}

fn test(document: &mut Value, path: &str, expected: &Value) -> Result<(), String> {
    let failed = || format!("testing value {path} failed: test failed");
    if path.is_empty() {
        return if document == expected { Ok(()) } else { Err(failed()) };
    }
    let (container, key) = container_of(document, path)
        .ok_or_else(|| format!("test operation does not apply: is missing path: {path}: missing value"))?;
    let found = get(container, &key).map_err(|error| format!("error in test for path: '{path}': {error}"))?;
    if found.unwrap_or(&Value::Null) == expected { Ok(()) } else { Err(failed()) }
}

/// The object or list in which a path ends, and the last key of the path.
fn container_of<'a>(document: &'a mut Value, path: &str) -> Option<(&'a mut Value, String)> {
    let decode = |key: &str| key.replace("~1", "/").replace("~0", "~");
    let (parents, last) = path.rsplit_once('/')?;
    let mut container = document;
    for key in parents.split('/').skip(1) {
        let key = decode(key);
        container = match container {
            Value::Object(fields) => fields.get_mut(&key)?,
            Value::Array(items) => {
                let at = index_of(&key, items.len()).ok()?;
                items.get_mut(at)?
            }
            _ => return None,
        };
    }
    (container.is_object() || container.is_array()).then(|| (container, decode(last)))
}

/// The index that a key names in a list of this length. Negative ones count from the end.
fn index_of(key: &str, length: usize) -> Result<usize, String> {
    let index = parse_index(key)?;
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let from_start = if index < 0 { index + length } else { index };
    let is_inside = (0..length).contains(&from_start);
    let found = usize::try_from(from_start).ok().filter(|_| is_inside);
    found.ok_or_else(|| format!("Unable to access invalid index: {index}: invalid index referenced"))
}

fn parse_index(key: &str) -> Result<i64, String> {
    key.parse().map_err(|_| format!("strconv.Atoi: parsing {key:?}: invalid syntax"))
}

fn get<'a>(container: &'a Value, key: &str) -> Result<Option<&'a Value>, String> {
    match container {
        Value::Array(items) => Ok(items.get(index_of(key, items.len())?)),
        other => Ok(other.get(key)),
    }
}

fn add_key(container: &mut Value, key: &str, value: Value) -> Result<(), String> {
    match container {
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => {
            parse_index(key).map_err(|error| format!("value was not a proper array index: '{key}': {error}"))?;
            items.insert(index_of(key, items.len() + 1)?, value);
        }
        fields => fields[key] = value,
    }
    Ok(())
}

fn remove_key(container: &mut Value, key: &str) -> Result<(), String> {
    match container {
        Value::Array(items) => drop(items.remove(index_of(key, items.len())?)),
        other => {
            let removed = other.as_object_mut().and_then(|fields| fields.shift_remove(key));
            removed.ok_or_else(|| format!("Unable to remove nonexistent key: {key}: missing value"))?;
        }
    }
    Ok(())
}

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_ITEMS: &str = "$deleteFromPrimitiveList";
const ITEM_ORDER: &str = "$setElementOrder";

const BAD_RETAIN_KEYS: &str = "invalid patch format of retainKeys";
const BAD_ORDER: &str = "invalid patch format of setElementOrder list";

fn bad_request(message: &str) -> Rejection {
    Rejection { code: 400, message: message.to_owned() }
}

/// kube-apiserver reports other mistakes of a strategic merge patch as its own.
fn internal(message: impl Into<String>) -> Rejection {
    Rejection { code: 500, message: message.into() }
}

/// Applies a strategic merge patch. Only kinds of Kubernetes have one.
pub fn strategic(group: &str, kind: &str, original: &Value, patch: &Value) -> Result<Value, Rejection> {
    let lists = Lists::of_built_in(group, kind);
    let Some(changes) = patch.as_object() else {
        let found = json_type(patch);
        return Err(bad_request(&format!("json: cannot unmarshal {found} into Go value of type map[string]interface {{}}")));
    };
    let fields = original.as_object().cloned().unwrap_or_default();
    merge_fields(lists.root(), fields, changes.clone()).map(Value::Object)
}

type Fields = Map<String, Value>;

fn merge_fields(node: Node, mut original: Fields, mut patch: Fields) -> Result<Fields, Rejection> {
    if let Some(directive) = patch.get(DIRECTIVE).cloned() {
        return match directive.as_str() {
            Some("replace") => {
                patch.shift_remove(DIRECTIVE);
                Ok(patch)
            }
            Some("delete") => Ok(Fields::new()),
            _ => Err(unknown_directive(&directive, &patch)),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    merge_ordered_lists(node, &mut original, &mut patch)?;
    for (name, change) in patch {
        let deletes = name.strip_prefix(DELETE_ITEMS).map(|rest| {
            rest.strip_prefix('/').map(str::to_owned).ok_or_else(|| bad_request("invalid patch format of primitive list"))
        });
        let deletes = deletes.transpose()?;
        let name = deletes.as_ref().unwrap_or(&name);
        if change.is_null() {
            original.shift_remove(name);
            continue;
        }
        let merged = match (original.shift_remove(name), change) {
            (Some(Value::Object(fields)), Value::Object(changes)) => {
                let field = field_of(node, name)?;
                let is_replaced = field.kind().map.as_ref().is_some_and(|map| map.is_replaced);
                Some(Value::Object(if is_replaced { changes } else { merge_fields(field, fields, changes)? }))
            }
            (Some(Value::Array(items)), Value::Array(changes)) => {
                let field = field_of(node, name)?;
                Some(Value::Array(merge_items(field, items, changes, deletes.is_some())?))
            }
            (old, _) if deletes.is_some() => old,
            (_, change) => without_directives(&without_nulls(&change)),
        };
        merged.and_then(|merged| original.insert(name.clone(), merged));
    }
    Ok(original)
}

fn unknown_directive(directive: &Value, fields: &Fields) -> Rejection {
    internal(format!("unknown patch type: {} in map: {}", go_text(directive), go_text(&Value::Object(fields.clone()))))
}

fn field_of<'a>(node: Node<'a>, name: &str) -> Result<Node<'a>, Rejection> {
    node.field(name)
        .ok_or_else(|| internal(format!("unable to find api field in struct {} for the json field {name:?}", node.kind().name)))
}

/// Removes the fields that the patch does not retain.
fn retain_keys(original: &mut Fields, patch: &mut Fields) -> Result<(), Rejection> {
    let Some(retained) = patch.shift_remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let retained = retained.as_array().ok_or_else(|| bad_request(BAD_RETAIN_KEYS))?;
    let is_retained = |name: &str| retained.iter().any(|key| key == name);
    for (name, change) in &*patch {
        let is_directive = name.starts_with(DELETE_ITEMS) || name.starts_with(ITEM_ORDER);
        if !change.is_null() && !is_directive && !is_retained(name) {
            return Err(bad_request(BAD_RETAIN_KEYS));
        }
    }
    original.retain(|name, _| is_retained(name));
    Ok(())
}

/// Merges the lists whose order the patch gives, and removes them from the patch.
fn merge_ordered_lists(node: Node, original: &mut Fields, patch: &mut Fields) -> Result<(), Rejection> {
    let directives: Vec<String> = patch.keys().filter(|name| name.starts_with(ITEM_ORDER)).cloned().collect();
    for directive in directives {
        let order = patch.shift_remove(&directive).unwrap_or_default();
        let order = as_items(&order)?;
        let name =
            directive.strip_prefix(ITEM_ORDER).and_then(|rest| rest.strip_prefix('/')).ok_or_else(|| bad_request(BAD_ORDER))?;
        let items = original.get(name).map(as_items).transpose()?.map(<[Value]>::to_vec);
        let changes = patch.get(name).map(as_items).transpose()?.map(<[Value]>::to_vec);
        let field = field_of(node, name)?;
        let key = merge_key(field);
        check_order(changes.as_deref().unwrap_or_default(), order, key)?;
        let merged = match (&items, &changes) {
            (None, None) => continue,
            (Some(items), None) => items.clone(),
            (None, Some(changes)) => changes.iter().filter_map(without_directives).collect(),
            (Some(items), Some(changes)) => merge_items(field, items.clone(), changes.clone(), false)?,
        };
        let items = items.unwrap_or_default();
        if check_types([&items, changes.as_deref().unwrap_or_default()])? {
            require_keys(merged.iter().chain(order).chain(&items), key)?;
        }
        let ordered = put_in_order(merged, order, &items, key);
        patch.shift_remove(name);
        original.insert(name.to_owned(), Value::Array(ordered));
    }
    Ok(())
}

fn as_items(value: &Value) -> Result<&[Value], Rejection> {
    let wrong = || internal(format!("expected a []interface {{}}, but received a {}", go_type(value)));
    value.as_array().map(Vec::as_slice).ok_or_else(wrong)
}

/// The key by which a patch merges the list: empty for scalars, and where the list is replaced.
fn merge_key(list: Node<'_>) -> &str {
    list.kind().list.as_ref().and_then(|list| list.patch_key.as_deref()).unwrap_or_default()
}

/// The items of the patch have to be in the order that the patch gives.
fn check_order(changes: &[Value], order: &[Value], key: &str) -> Result<(), Rejection> {
    if changes.is_empty() || order.is_empty() {
        return Ok(());
    }
    let is_deleted = |item: &Value| !key.is_empty() && item[DIRECTIVE] == "delete";
    let kept: Vec<&Value> = changes.iter().filter(|item| !is_deleted(item)).collect();
    let (mut at, mut at_order) = (0, 0);
    while at < kept.len() && at_order < order.len() {
        if kept[at].get(DIRECTIVE).is_some() {
            at += 1;
            continue;
        }
        if key_of(kept[at], key)? == key_of(&order[at_order], key)? {
            at += 1;
        }
        at_order += 1;
    }
    if at < kept.len() && at_order >= order.len() {
        let (changes, order) = (go_text(&changes.into()), go_text(&order.into()));
        return Err(internal(format!("The order in patch list:\n{changes}\n doesn't match {ITEM_ORDER} list:\n{order}\n")));
    }
    Ok(())
}

/// What identifies an item: the value of its key, or the item itself in a list of scalars.
fn key_of<'a>(item: &'a Value, key: &str) -> Result<&'a Value, Rejection> {
    if key.is_empty() {
        return Ok(item);
    }
    let Some(fields) = item.as_object() else {
        return Err(internal(format!("expected a map[string]interface {{}}, but received a {}", go_type(item))));
    };
    fields.get(key).ok_or_else(|| without_key(item, key))
}

fn without_key(item: &Value, key: &str) -> Rejection {
    internal(format!("map: {} does not contain declared merge key: {key}", go_text(item)))
}

/// All objects need the key, also where a list of objects has none.
fn require_keys<'a>(mut items: impl Iterator<Item = &'a Value>, key: &str) -> Result<(), Rejection> {
    items.find(|item| item.get(key).is_none()).map_or(Ok(()), |item| Err(without_key(item, key)))
}

fn merge_items(list: Node, items: Vec<Value>, changes: Vec<Value>, deletes: bool) -> Result<Vec<Value>, Rejection> {
    let is_merged = list.kind().list.as_ref().is_some_and(|list| list.patch_key.is_some());
    if !is_merged && !deletes {
        return Ok(changes);
    }
    if items.is_empty() && changes.is_empty() {
        return Ok(items);
    }
    let key = merge_key(list);
    if !check_types([&items, &changes])? {
        if deletes {
            return Ok(items.into_iter().filter(|item| !changes.contains(item)).collect());
        }
        let mut merged: Vec<Value> = Vec::new();
        for item in items.iter().chain(&changes) {
            if !merged.contains(item) {
                merged.push(item.clone());
            }
        }
        return Ok(put_in_order(merged, &changes, &items, ""));
    }
    if key.is_empty() {
        return Err(internal("cannot merge lists without merge key for struct"));
    }
    let (items, changes) = follow_directives(items, changes, key)?;
    let mut merged = items.clone();
    for change in &changes {
        let of_change = key_of(change, key)?;
        match merged.iter().position(|item| item.get(key) == Some(of_change)) {
            Some(at) => {
                let node = list.items().unwrap_or(list);
                let fields = |value: &Value| value.as_object().cloned().unwrap_or_default();
                merged[at] = Value::Object(merge_fields(node, fields(&merged[at]), fields(change))?);
            }
            None => merged.push(change.clone()),
        }
    }
    require_keys(merged.iter().chain(&items), key)?;
    Ok(put_in_order(merged, &changes, &items, key))
}

/// Removes the items that the patch deletes, or all that it does not name. Without these directives, the changes remain.
fn follow_directives(mut items: Vec<Value>, changes: Vec<Value>, key: &str) -> Result<(Vec<Value>, Vec<Value>), Rejection> {
    let mut rest = Vec::new();
    let mut is_replaced = false;
    for change in changes {
        match change.get(DIRECTIVE) {
            None => rest.push(change),
            Some(directive) if directive == "delete" => {
                let deleted = key_of(&change, key)?;
                items.retain(|item| item.get(key) != Some(deleted));
            }
            Some(directive) if directive == "replace" => is_replaced = true,
            Some(directive) if directive == "merge" => {
                return Err(internal("merging lists cannot yet be specified in the patch"));
            }
            Some(directive) => return Err(unknown_directive(directive, change.as_object().unwrap_or(&Fields::new()))),
        }
    }
    Ok(if is_replaced { (rest, Vec::new()) } else { (items, rest) })
}

/// Whether all items of two lists are objects. They have to be of one type.
fn check_types(lists: [&[Value]; 2]) -> Result<bool, Rejection> {
    let mut items = lists.into_iter().flatten();
    let Some(first) = items.next() else {
        return Err(internal("no elements in any of the given slices"));
    };
    if first.is_array() {
        return Err(Rejection { code: 422, message: "lists of lists are not supported".to_owned() });
    }
    if items.any(|item| go_type(item) != go_type(first)) {
        let all: Value = lists.into_iter().map(Value::from).collect();
        return Err(internal(format!("list element types are not identical: {}", go_text(&all))));
    }
    Ok(first.is_object())
}

/// Items that `order` names come in that order. The others keep theirs, each before the first item that follows it in `live`.
fn put_in_order(merged: Vec<Value>, order: &[Value], live: &[Value], key: &str) -> Vec<Value> {
    let place = |items: &[Value], item: &Value| {
        let identity = |item: &Value| if key.is_empty() { item.clone() } else { item[key].clone() };
        items.iter().position(|other| identity(other) == identity(item))
    };
    let (mut named, mut others): (Vec<Value>, Vec<Value>) = merged.into_iter().partition(|item| place(order, item).is_some());
    named.sort_by_key(|item| place(order, item));
    others.sort_by(|one, other| match (place(live, one), place(live, other)) {
        (Some(one), Some(other)) => one.cmp(&other),
        _ => Ordering::Equal,
    });
    let mut ordered = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for item in named {
        while let Some(other) = others.next_if(|other| match (place(live, other), place(live, &item)) {
            (Some(other), Some(item)) => other < item,
            _ => false,
        }) {
            ordered.push(other);
        }
        ordered.push(item);
    }
    ordered.extend(others);
    ordered
}

/// The value without directives, or `None` if it is one.
fn without_directives(value: &Value) -> Option<Value> {
    match value {
        Value::Object(fields) if fields.contains_key(DIRECTIVE) => None,
        Value::Object(fields) => {
            let kept = fields.iter().filter_map(|(name, value)| Some((name.clone(), without_directives(value)?)));
            Some(kept.collect())
        }
        Value::Array(items) => Some(items.iter().filter_map(without_directives).collect()),
        other => Some(other.clone()),
    }
}

/// The Go type that holds a value.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "%!s(<nil>)",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// The value as Go prints it with `%v`.
pub fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_text).collect::<Vec<_>>().join(" ")),
        Value::Object(fields) => {
            let mut texts: Vec<String> = fields.iter().map(|(name, value)| format!("{name}:{}", go_text(value))).collect();
            texts.sort();
            format!("map[{}]", texts.join(" "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(original: &Value, patch: &Value) -> Value {
        strategic("", "Pod", original, patch).unwrap()
    }

    #[test]
    fn a_merge_patch_removes_what_is_null() {
        let mut target = json!({ "a": { "b": 1, "c": 2 }, "d": [1], "e": "x" });
        merge(&mut target, &json!({ "a": { "b": null, "n": { "m": null, "k": [{ "z": null }, null] } }, "d": [2], "e": null }));
        assert_eq!(target, json!({ "a": { "c": 2, "n": { "k": [{}, null] } }, "d": [2] }));
    }

    #[test]
    fn a_json_patch_does_as_the_library_of_kubernetes() {
        let original = json!({ "a": { "b/c": [1, 2, 3] } });
        let apply = |patch: Value| json(&original, &patch);
        let list = |patch: Value| apply(patch).unwrap()["a"]["b/c"].clone();
        assert_eq!(list(json!([{ "op": "add", "path": "/a/b~1c/-", "value": 4 }])), json!([1, 2, 3, 4]));
        assert_eq!(list(json!([{ "op": "add", "path": "/a/b~1c/1", "value": 4 }])), json!([1, 4, 2, 3]));
        assert_eq!(list(json!([{ "op": "remove", "path": "/a/b~1c/-1" }])), json!([1, 2]));
        assert_eq!(list(json!([{ "op": "copy", "from": "/a/b~1c/0", "path": "/a/b~1c/3" }])), json!([1, 2, 3, 1]));
        assert_eq!(list(json!([{ "op": "move", "from": "/a/b~1c/0", "path": "/a/b~1c/-" }])), json!([2, 3, 1]));
        assert_eq!(apply(json!([{ "op": "replace", "path": "/x", "value": 1 }])).unwrap()["x"], 1);
    }

    #[test]
    fn a_json_patch_that_does_not_apply_says_why() {
        let refused = |patch: Value| json(&json!({ "a": [1] }), &patch).unwrap_err().message;
        let one = |op: &str, path: &str| refused(json!([{ "op": op, "path": path, "value": 2 }]));
        assert_eq!(one("test", "/a/0"), "testing value /a/0 failed: test failed");
        assert_eq!(one("remove", "/b"), "error in remove for path: '/b': Unable to remove nonexistent key: b: missing value");
        assert_eq!(one("add", "/b/c"), "add operation does not apply: doc is missing path: \"/b/c\": missing value");
        assert_eq!(one("replace", "/a/4"), "replace operation does not apply: doc is missing key: /a/4: missing value");
        let index = "error in add for path: '/a/4': Unable to access invalid index: 4: invalid index referenced";
        assert_eq!(one("add", "/a/4"), index);
        assert_eq!(one("turn", "/a"), "Unexpected kind: turn");
        let undecodable = "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp";
        assert_eq!(json(&json!({}), &json!({})).unwrap_err(), Rejection { code: 400, message: undecodable.to_owned() });
    }

    #[test]
    fn containers_merge_by_name() {
        let pod = json!({ "spec": { "containers": [{ "name": "a", "image": "1" }, { "name": "b", "image": "1" }] } });
        let change = json!({ "spec": { "containers": [{ "name": "c", "image": "3" }, { "name": "b", "image": "2" }] } });
        let containers = json!([{ "name": "c", "image": "3" }, { "name": "a", "image": "1" }, { "name": "b", "image": "2" }]);
        assert_eq!(patched(&pod, &change)["spec"]["containers"], containers);
        let deletes = json!({ "spec": { "containers": [{ "name": "a", "$patch": "delete" }] } });
        assert_eq!(patched(&pod, &deletes)["spec"]["containers"], json!([{ "name": "b", "image": "1" }]));
        let replaces = json!({ "spec": { "containers": [{ "$patch": "replace" }, { "name": "c" }] } });
        assert_eq!(patched(&pod, &replaces)["spec"]["containers"], json!([{ "name": "c" }]));
        let reorders = json!({ "spec": { "$setElementOrder/containers": [{ "name": "b" }, { "name": "a" }] } });
        assert_eq!(patched(&pod, &reorders)["spec"]["containers"][0]["name"], "b");
    }

    #[test]
    fn finalizers_merge_as_a_set() {
        let pod = json!({ "metadata": { "finalizers": ["a", "b"] } });
        let adds = json!({ "metadata": { "finalizers": ["c", "a"] } });
        assert_eq!(patched(&pod, &adds)["metadata"]["finalizers"], json!(["c", "a", "b"]));
        let deletes = json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": ["a"] } });
        assert_eq!(patched(&pod, &deletes)["metadata"]["finalizers"], json!(["b"]));
    }

    #[test]
    fn volumes_keep_only_the_source_that_is_retained() {
        let pod = json!({ "spec": { "volumes": [{ "name": "v", "emptyDir": {} }] } });
        let volume = json!({ "name": "v", "$retainKeys": ["name", "secret"], "secret": { "secretName": "s" } });
        let change = json!({ "spec": { "volumes": [volume] } });
        assert_eq!(patched(&pod, &change)["spec"]["volumes"], json!([{ "name": "v", "secret": { "secretName": "s" } }]));
        let wrong = json!({ "spec": { "volumes": [{ "name": "v", "$retainKeys": ["name"], "secret": {} }] } });
        assert_eq!(strategic("", "Pod", &pod, &wrong).unwrap_err(), bad_request(BAD_RETAIN_KEYS));
    }

    #[test]
    fn an_item_without_its_key_is_refused() {
        let pod = json!({ "spec": { "containers": [{ "name": "a" }] } });
        let change = json!({ "spec": { "containers": [{ "image": "x" }] } });
        let message = "map: map[image:x] does not contain declared merge key: name";
        assert_eq!(strategic("", "Pod", &pod, &change).unwrap_err(), internal(message));
    }
}

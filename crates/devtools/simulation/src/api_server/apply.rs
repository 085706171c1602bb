//! Server-side apply: which manager owns which fields.
//!
//! The rules are those of `sigs.k8s.io/structured-merge-diff`, and of `managedfields` in k8s.io/apimachinery:
//!
//! - A manager owns the fields that it applied last, or that its updates changed.
//! - An update takes fields from their owners. An apply does so only if it is forced.
//! - A field that its manager no longer applies is removed, unless another manager owns it.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use serde_json::{Map, Value, json};

use super::{
    lists::{List, ListType, Lists, Node, Scalar, Type},
    patch::go_text,
};

/// Who writes, as a request says it.
pub struct Manager<'a> {
    pub name: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    pub api_version: &'a str,
    /// The time of the request (RFC 3339).
    pub time: &'a str,
}

/// Why a configuration is not applied.
#[derive(Debug, Clone, PartialEq)]
pub enum Refusal {
    /// Managers that own fields with other values, as messages name them, each with one of these fields.
    Conflicts(Vec<(String, String)>),
    Invalid(String),
}

/// How a configuration is applied.
pub struct How {
    /// Fields at the top that the request cannot change, so that nobody comes to own them.
    pub untouched: &'static [&'static str],
    pub is_forced: bool,
}

impl How {
    fn touches(&self, path: &Path) -> bool {
        !matches!(path.first(), Some(Element::Field(name)) if self.untouched.contains(&name.as_str()))
    }
}

/// Update managers of an object, at most: the oldest ones beyond become one.
const MAX_UPDATE_MANAGERS: usize = 10;

/// Fields of the server, which nobody owns.
const UNOWNED: &[&[&str]] = &[
    &["apiVersion"],
    &["kind"],
    &["metadata"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "creationTimestamp"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
    &["metadata", "clusterName"],
    &["metadata", "generation"],
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
];

/// Gives the fields that an update added or changed to the manager: sets `metadata.managedFields` of the new object.
///
/// `new` still has the `managedFields` of the request, and none of the changes that admission makes.
pub fn track_update(lists: &Lists, old: Option<&Value>, new: &mut Value, manager: &Manager) {
    let given = if manager.subresource.is_empty() { take_managed(new) } else { drop_managed(new) };
    let is_reset = given.as_ref().and_then(Value::as_array).is_some_and(|entries| {
        entries.is_empty() || matches!(entries.as_slice(), [entry] if entry.as_object().is_some_and(Map::is_empty))
    });
    let mut managers = Managers::new();
    if !is_reset {
        managers = given.and_then(|given| decode_managers(&given).ok()).unwrap_or_default();
        if managers.is_empty() {
            managers = old.and_then(|old| decode_managers(&old["metadata"]["managedFields"]).ok()).unwrap_or_default();
        }
    }
    // Nobody follows the fields of an object whose managers were removed, until somebody applies it.
    if old.is_some() && managers.is_empty() {
        return;
    }
    record_update(lists, old.unwrap_or_else(|| lists.empty_object()), new, &mut managers, manager);
    cap_update_managers(&mut managers);
    put_managed(new, &managers);
}

/// Applies a configuration, and returns the object that results.
pub fn apply(lists: &Lists, live: Option<&Value>, configuration: &Value, manager: &Manager, how: &How) -> Result<Value, Refusal> {
    if !configuration["metadata"]["managedFields"].is_null() {
        return Err(Refusal::Invalid("metadata.managedFields must be nil".to_owned()));
    }
    let mut problems = Vec::new();
    validate(lists.root(), configuration, "", &mut problems);
    if !problems.is_empty() {
        let message = format!("failed to create typed patch object ({}): {}", describe(configuration), list_problems(&problems));
        return Err(Refusal::Invalid(message));
    }
    let mut live = live.unwrap_or_else(|| lists.empty_object()).clone();
    let entries = take_managed(&mut live).unwrap_or_default();
    let mut managers =
        decode_managers(&entries).map_err(|error| Refusal::Invalid(format!("failed to decode managed fields: {error}")))?;
    if managers.is_empty() {
        let before = Manager { name: "before-first-apply", ..*manager };
        record_update(lists, lists.empty_object(), &live, &mut managers, &before);
        cap_update_managers(&mut managers);
    }

    let root = lists.root();
    let mut fields = Set::new();
    collect_fields(root, configuration, &mut Path::new(), &mut fields);
    fields.retain(|path| how.touches(path));
    let merged = merge(root, Some(&live), Some(configuration)).unwrap_or_default();
    let mut entry = Entry::new(manager, true, fields);
    let id = entry.id();
    let (last_fields, last_time) =
        managers.insert(id.clone(), entry.clone()).map(|last| (last.fields, last.time)).unwrap_or_default();
    let mut applied = prune(root, merged, &last_fields, &managers);
    managers.remove(&id);

    let mut changes = Changes::between(root, &live, &applied);
    for paths in [&mut changes.added, &mut changes.modified, &mut changes.removed] {
        paths.retain(|path| how.touches(path));
    }
    if !how.is_forced {
        let conflicts = find_conflicts(&managers, &changes);
        if !conflicts.is_empty() {
            return Err(Refusal::Conflicts(conflicts));
        }
    }
    take_fields(&mut managers, &changes);
    entry.fields.retain(|path| !is_unowned(path));
    // An apply that changes nothing keeps the time of the one before it.
    entry.time = if applied == live { last_time } else { Some(manager.time.to_owned()) };
    if !entry.fields.is_empty() {
        managers.insert(id, entry);
    }
    put_managed(&mut applied, &managers);
    Ok(applied)
}

/// Removes what the manager applied last time and nobody owns any more.
fn prune(root: Node, merged: Value, last: &Set, managers: &Managers) -> Value {
    if last.is_empty() {
        return merged;
    }
    let fields_of = |value: &Value| {
        let mut fields = Set::new();
        collect_fields(root, value, &mut Path::new(), &mut fields);
        with_parents(root, &fields)
    };
    let last = with_parents(root, last);
    let all = fields_of(&merged);
    let owned: Set = managers.values().flat_map(|entry| entry.fields.iter().cloned()).collect();
    let owned = with_parents(root, &owned);
    let kept = fields_of(&without(root, &merged, &last, &mut Path::new()));
    let unowned = all.iter().filter(|path| !kept.contains(*path) && !owned.contains(*path)).cloned().collect();
    // Removing a list item also removed fields of it that this manager did not apply: they stay.
    let kept = fields_of(&without(root, &merged, &unowned, &mut Path::new()));
    let removed = all.iter().filter(|path| !kept.contains(*path) && last.contains(*path)).cloned().collect();
    without(root, &merged, &removed, &mut Path::new())
}

/// The managers with fields that an apply would take from them.
fn find_conflicts(managers: &Managers, changes: &Changes) -> Vec<(String, String)> {
    let mut conflicts = Vec::new();
    for entry in managers.values() {
        let mut taken: Vec<&Path> = entry.fields.iter().filter(|path| changes.writes(path)).collect();
        taken.sort_by(|one, other| shallow_first(one, other));
        conflicts.extend(taken.into_iter().map(|path| (entry.describe(), print_path(path))));
    }
    conflicts
}

/// Kubernetes lists the members of a field before those of its members.
fn shallow_first(one: &Path, other: &Path) -> Ordering {
    let key = |path: &Path| -> Vec<(bool, Element)> {
        path.iter().enumerate().map(|(at, element)| (at + 1 < path.len(), element.clone())).collect()
    };
    key(one).cmp(&key(other))
}

// Managers.

/// An entry of `metadata.managedFields`.
#[derive(Debug, Clone)]
struct Entry {
    name: String,
    is_apply: bool,
    api_version: String,
    subresource: String,
    time: Option<String>,
    fields: Set,
}

/// The managers by their ids.
type Managers = BTreeMap<String, Entry>;

impl Entry {
    fn new(manager: &Manager, is_apply: bool, fields: Set) -> Self {
        Self {
            name: if manager.name.is_empty() { "unknown" } else { manager.name }.to_owned(),
            is_apply,
            api_version: manager.api_version.to_owned(),
            subresource: manager.subresource.to_owned(),
            time: Some(manager.time.to_owned()),
            fields,
        }
    }

    fn operation(&self) -> &'static str {
        if self.is_apply { "Apply" } else { "Update" }
    }

    /// What identifies a manager. Kubernetes sorts conflicts by this text.
    fn id(&self) -> String {
        let mut id = Map::new();
        let api_version = if self.is_apply { "" } else { &self.api_version };
        let operation = self.operation();
        for (name, value) in
            [("manager", &*self.name), ("operation", operation), ("apiVersion", api_version), ("subresource", &self.subresource)]
        {
            if !value.is_empty() {
                id.insert(name.to_owned(), json!(value));
            }
        }
        Value::Object(id).to_string()
    }

    /// The manager as the message of a conflict names it.
    fn describe(&self) -> String {
        let of_subresource =
            if self.subresource.is_empty() { String::new() } else { format!(" with subresource {:?}", self.subresource) };
        let using = if self.is_apply { String::new() } else { format!(" using {}", self.api_version) };
        format!("{:?}{of_subresource}{using}", self.name)
    }

    fn decode(index: usize, entry: &Value) -> Result<Self, String> {
        let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        let is_apply = match entry["operation"].as_str() {
            Some("Apply") => true,
            Some("Update") => false,
            _ => return Err("operation must be `Apply` or `Update`".to_owned()),
        };
        match (text("apiVersion").as_str(), text("fieldsType").as_str()) {
            ("", _) => return Err("apiVersion must not be empty".to_owned()),
            (_, "FieldsV1") => {}
            (_, "") => return Err(format!("missing fieldsType in managed fields entry {index}")),
            (_, other) => return Err(format!("invalid fieldsType {other:?} in managed fields entry {index}")),
        }
        let mut fields = Set::new();
        decode_fields(&entry["fieldsV1"], &mut Path::new(), &mut fields);
        let time = entry["time"].as_str().map(str::to_owned);
        Ok(Self {
            name: text("manager"),
            is_apply,
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time,
            fields,
        })
    }

    fn encode(&self) -> Value {
        let mut entry = Map::new();
        let mut put = |name: &str, value: Value| {
            if !value.is_null() && value != "" {
                entry.insert(name.to_owned(), value);
            }
        };
        put("manager", json!(self.name));
        put("operation", json!(self.operation()));
        put("apiVersion", json!(self.api_version));
        put("time", json!(self.time));
        put("fieldsType", json!("FieldsV1"));
        put("fieldsV1", encode_fields(&self.fields.iter().map(Vec::as_slice).collect::<Vec<_>>()));
        put("subresource", json!(self.subresource));
        Value::Object(entry)
    }
}

fn decode_managers(entries: &Value) -> Result<Managers, String> {
    let entries = entries.as_array().into_iter().flatten().enumerate();
    entries.map(|(index, entry)| Entry::decode(index, entry).map(|entry| (entry.id(), entry))).collect()
}

fn take_managed(object: &mut Value) -> Option<Value> {
    object["metadata"].as_object_mut()?.shift_remove("managedFields").filter(|managed| !managed.is_null())
}

/// A request for a subresource can't set managers.
fn drop_managed(object: &mut Value) -> Option<Value> {
    take_managed(object);
    None
}

fn put_managed(object: &mut Value, managers: &Managers) {
    let mut entries: Vec<&Entry> = managers.values().collect();
    entries.sort_by_key(|entry| (entry.operation(), &entry.time, &entry.name, &entry.api_version, &entry.subresource));
    if !entries.is_empty() {
        object["metadata"]["managedFields"] = entries.into_iter().map(Entry::encode).collect();
    }
}

/// Gives the fields in which `new` differs to an update manager.
fn record_update(lists: &Lists, old: &Value, new: &Value, managers: &mut Managers, manager: &Manager) {
    let changes = Changes::between(lists.root(), old, new);
    take_fields(managers, &changes);
    let written = changes.added.into_iter().chain(changes.modified).filter(|path| !is_unowned(path)).collect();
    let mut entry = Entry::new(manager, false, written);
    if entry.fields.is_empty() {
        return;
    }
    let id = entry.id();
    if let Some(previous) = managers.remove(&id) {
        entry.fields.extend(previous.fields);
    }
    managers.insert(id, entry);
}

/// Removes the fields that changed or are gone from their managers.
fn take_fields(managers: &mut Managers, changes: &Changes) {
    for entry in managers.values_mut() {
        entry.fields.retain(|path| !changes.writes(path) && !changes.removed.contains(path));
    }
    managers.retain(|_, entry| !entry.fields.is_empty());
}

fn is_unowned(path: &Path) -> bool {
    let is_name = |(element, name): (&Element, &&str)| matches!(element, Element::Field(field) if field == name);
    UNOWNED.iter().any(|unowned| unowned.len() == path.len() && path.iter().zip(*unowned).all(is_name))
}

/// Merges the oldest update managers of one version while there are too many.
fn cap_update_managers(managers: &mut Managers) {
    let mut updaters: Vec<String> = managers.iter().filter(|(_, entry)| !entry.is_apply).map(|(id, _)| id.clone()).collect();
    updaters.sort_by_key(|id| (managers.get(id).and_then(|entry| entry.time.clone()), id.clone()));
    let mut excess = updaters.len().saturating_sub(MAX_UPDATE_MANAGERS);
    let mut first_of_version = BTreeMap::new();
    for id in updaters {
        let Some(entry) = managers.get(&id).filter(|_| excess > 0).cloned() else {
            return;
        };
        let Some(first) = first_of_version.get(&entry.api_version) else {
            first_of_version.insert(entry.api_version, id);
            continue;
        };
        let mut bucket = Entry { name: "ancient-changes".to_owned(), subresource: String::new(), ..entry.clone() };
        let bucket_id = bucket.id();
        if let Some(merged) = managers.remove(&bucket_id).or_else(|| managers.remove(first)) {
            bucket.fields.extend(merged.fields);
        }
        managers.remove(&id);
        managers.insert(bucket_id, bucket);
        excess -= 1;
    }
}

// Paths.

/// A step from a value to one inside of it, in the order of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Element {
    Field(String),
    /// An item of a list, by its keys.
    Key(Vec<(String, Literal)>),
    /// An item of a set.
    Item(Literal),
    Index(usize),
}

/// A value that identifies an item, in the order of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Literal {
    Number(i64),
    Text(String),
    Boolean(bool),
    /// The JSON of a value that is no sensible key.
    Other(String),
}

type Path = Vec<Element>;
type Set = BTreeSet<Path>;

impl From<&Value> for Literal {
    fn from(value: &Value) -> Self {
        match value {
            Value::String(text) => Self::Text(text.clone()),
            Value::Bool(value) => Self::Boolean(*value),
            Value::Number(number) => number.as_i64().map_or_else(|| Self::Other(number.to_string()), Self::Number),
            other => Self::Other(other.to_string()),
        }
    }
}

impl Literal {
    /// As JSON, in which Go escapes characters of HTML.
    fn to_json(&self) -> String {
        match self {
            Self::Text(text) => {
                let text = json!(text).to_string();
                text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
            }
            other => other.print(),
        }
    }

    fn print(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => format!("{text:?}"),
            Self::Boolean(value) => value.to_string(),
            Self::Other(json) => json.clone(),
        }
    }
}

impl Element {
    /// The item of a list, as its keys or its value identify it.
    fn of_item(list: &List, item: &Value) -> Result<Self, String> {
        match &list.list_type {
            ListType::Atomic => Err("invalid indexing of non-associative list".to_owned()),
            ListType::Set => match item {
                Value::Object(_) => Err("associative list without keys has an element that's a map type".to_owned()),
                Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
                Value::Null => Err("associative list without keys has an element that's an explicit null".to_owned()),
                scalar => Ok(Self::Item(scalar.into())),
            },
            ListType::Map(keys) => Self::of_keys(keys, item),
        }
    }

    fn of_keys(keys: &[(String, Option<Value>)], item: &Value) -> Result<Self, String> {
        let fields = match item {
            Value::Object(fields) => fields,
            Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
            _ => return Err("associative list with keys may not have non-map elements".to_owned()),
        };
        let value = |(key, default): &(String, Option<Value>)| {
            fields.get(key).or(default.as_ref()).map(|value| (key.clone(), value.into()))
        };
        let mut found: Vec<(String, Literal)> = keys.iter().filter_map(value).collect();
        if found.is_empty() {
            let names = keys.iter().map(|(key, _)| format!("{key:?}")).collect::<Vec<_>>().join(" ");
            return Err(format!(
                "associative list with keys has an element that omits all key fields [{names}] \
                 (and doesn't have default values for any key fields)"
            ));
        }
        found.sort();
        Ok(Self::Key(found))
    }

    /// As messages print it.
    fn print(&self) -> String {
        match self {
            Self::Field(name) => format!(".{name}"),
            Self::Key(keys) => {
                let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={}", value.print())).collect();
                format!("[{}]", keys.join(","))
            }
            Self::Item(value) => format!("[={}]", value.print()),
            Self::Index(index) => format!("[{index}]"),
        }
    }

    /// As `fieldsV1` has it.
    fn encode(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(keys) => {
                let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{}:{}", json!(key), value.to_json())).collect();
                format!("k:{{{}}}", keys.join(","))
            }
            Self::Item(value) => format!("v:{}", value.to_json()),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    fn decode(text: &str) -> Option<Self> {
        let (kind, text) = text.split_once(':')?;
        match kind {
            "f" => Some(Self::Field(text.to_owned())),
            "k" => {
                let fields: Map<String, Value> = serde_json::from_str(text).ok()?;
                let mut keys: Vec<_> = fields.iter().map(|(key, value)| (key.clone(), value.into())).collect();
                keys.sort();
                Some(Self::Key(keys))
            }
            "v" => Some(Self::Item((&serde_json::from_str::<Value>(text).ok()?).into())),
            "i" => text.parse().ok().map(Self::Index),
            _ => None,
        }
    }
}

fn print_path(path: &[Element]) -> String {
    path.iter().map(Element::print).collect()
}

/// The paths, sorted, as `fieldsV1`.
fn encode_fields(paths: &[&[Element]]) -> Value {
    let mut fields = Map::new();
    let groups = paths.chunk_by(|one, other| one.first() == other.first());
    for group in groups {
        match group.first().and_then(|path| path.first()) {
            // A path that ends here says that the field belongs to the set, next to what it holds.
            None if paths.len() > 1 => drop(fields.insert(".".to_owned(), json!({}))),
            None => {}
            Some(element) => {
                let rest: Vec<&[Element]> = group.iter().map(|path| &path[1..]).collect();
                fields.insert(element.encode(), encode_fields(&rest));
            }
        }
    }
    Value::Object(fields)
}

fn decode_fields(fields: &Value, path: &mut Path, set: &mut Set) {
    let children = || fields.as_object().into_iter().flatten();
    let is_member = fields.get(".").is_some() || children().all(|(name, _)| Element::decode(name).is_none());
    if is_member && !path.is_empty() {
        set.insert(path.clone());
    }
    for (name, child) in children() {
        if let Some(element) = Element::decode(name) {
            path.push(element);
            decode_fields(child, path, set);
            path.pop();
        }
    }
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

// Values with types.

#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    Map,
    Scalar,
    List,
}

/// The one of the shapes of a type that a value has. The first, where it has none.
fn shape_of(kind: &Type, value: &Value) -> Shape {
    match value {
        Value::Array(_) if kind.list.is_some() => Shape::List,
        Value::Bool(_) | Value::Number(_) | Value::String(_) if kind.scalar.is_some() => Shape::Scalar,
        _ if kind.map.is_some() => Shape::Map,
        _ if kind.scalar.is_some() => Shape::Scalar,
        _ => Shape::List,
    }
}

/// Whether the values are compared and merged as a whole. Null and empty maps are: that keeps them distinct.
fn is_leaf(kind: &Type, shape: Shape, values: [Option<&Value>; 2]) -> bool {
    match shape {
        Shape::Scalar => true,
        Shape::Map => {
            let is_empty = |value: Option<&Value>| value.and_then(Value::as_object).is_none_or(Map::is_empty);
            kind.map.as_ref().is_none_or(|map| map.is_atomic) || values.into_iter().all(is_empty)
        }
        Shape::List => {
            let is_empty = |value: Option<&Value>| value.and_then(Value::as_array).is_none_or(Vec::is_empty);
            kind.list.as_ref().is_none_or(|list| list.list_type == ListType::Atomic) || values.into_iter().all(is_empty)
        }
    }
}

/// The items of a list that merges by item, with what identifies them.
fn items_of<'a>(list: &List, value: Option<&'a Value>) -> Vec<(Element, &'a Value)> {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(|item| Some((Element::of_item(list, item).ok()?, item))).collect()
}

fn fields_of(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_object).into_iter().flatten()
}

/// The paths of an object.
fn collect_fields(node: Node, value: &Value, path: &mut Path, set: &mut Set) {
    let kind = node.kind();
    match (shape_of(kind, value), &kind.map, &kind.list) {
        (Shape::Map, Some(map), _) if !map.is_atomic => {
            for (name, field) in fields_of(Some(value)) {
                path.push(Element::Field(name.clone()));
                if let Some(node) = node.field(name) {
                    collect_fields(node, field, path, set);
                }
                if field.is_null() || field.as_object().is_some_and(Map::is_empty) || !node.declares(name) {
                    set.insert(path.clone());
                }
                path.pop();
            }
        }
        (Shape::List, _, Some(list)) if list.list_type != ListType::Atomic => {
            let items = items_of(list, Some(value));
            for (element, item) in &items {
                path.push(element.clone());
                let is_duplicate = items.iter().filter(|(other, _)| other == element).count() > 1;
                if let Some(node) = node.items().filter(|_| !is_duplicate) {
                    collect_fields(node, item, path, set);
                }
                set.insert(path.clone());
                path.pop();
            }
        }
        _ if path.is_empty() => {}
        _ => drop(set.insert(path.clone())),
    }
}

/// The paths in which two objects differ.
#[derive(Default)]
struct Changes {
    removed: Set,
    modified: Set,
    added: Set,
}

impl Changes {
    fn between(root: Node, old: &Value, new: &Value) -> Self {
        let mut changes = Self::default();
        changes.compare(root, Some(old), Some(new), &mut Path::new());
        changes
    }

    fn writes(&self, path: &Path) -> bool {
        self.modified.contains(path) || self.added.contains(path)
    }

    fn compare(&mut self, node: Node, old: Option<&Value>, new: Option<&Value>, path: &mut Path) {
        let kind = node.kind();
        let shapes = [old, new].map(|value| value.map(|value| shape_of(kind, value)));
        let is_leaf = match shapes {
            [None, None] => return,
            [Some(shape), None] | [None, Some(shape)] => self.descend(node, shape, [old, new], path),
            [Some(before), Some(after)] => {
                if before != after {
                    self.descend(node, before, [old, new], path);
                }
                self.descend(node, after, [old, new], path)
            }
        };
        if path.is_empty() {
            return;
        }
        match (old, new) {
            (None, _) => drop(self.added.insert(path.clone())),
            (_, None) => drop(self.removed.insert(path.clone())),
            _ if is_leaf && old != new => drop(self.modified.insert(path.clone())),
            _ => {}
        }
    }

    /// Compares what the values hold, unless they are a leaf.
    fn descend(&mut self, node: Node, shape: Shape, values: [Option<&Value>; 2], path: &mut Path) -> bool {
        let kind = node.kind();
        if is_leaf(kind, shape, values) {
            return true;
        }
        if let (Shape::List, Some(list)) = (shape, &kind.list) {
            self.compare_items(node, list, values, path);
            return false;
        }
        let names: BTreeSet<&String> = values.into_iter().flat_map(fields_of).map(|(name, _)| name).collect();
        for name in names {
            let [old, new] = values.map(|value| value.and_then(|value| value.get(name)));
            if let Some(node) = node.field(name) {
                path.push(Element::Field(name.clone()));
                self.compare(node, old, new, path);
                path.pop();
            }
        }
        false
    }

    fn compare_items(&mut self, node: Node, list: &List, values: [Option<&Value>; 2], path: &mut Path) {
        let Some(node) = node.items() else {
            return;
        };
        let [old, new] = values.map(|value| items_of(list, value));
        let elements: BTreeSet<&Element> = old.iter().chain(&new).map(|(element, _)| element).collect();
        for element in elements {
            let [before, after] = [&old, &new].map(|items| -> Vec<&Value> {
                items.iter().filter(|(other, _)| other == element).map(|(_, item)| *item).collect()
            });
            path.push(element.clone());
            match (before.as_slice(), after.as_slice()) {
                ([] | [_], [] | [_]) => self.compare(node, before.first().copied(), after.first().copied(), path),
                // Items with the same keys count as one value.
                ([_, _, ..], [_, _, ..]) if before == after => {}
                ([_, _, ..], [_, _, ..]) => drop(self.modified.insert(path.clone())),
                ([_, _, ..], _) => {
                    self.compare(node, None, after.first().copied(), path);
                    self.removed.insert(path.clone());
                }
                _ => {
                    self.compare(node, before.first().copied(), None, path);
                    self.added.insert(path.clone());
                }
            }
            path.pop();
        }
    }
}

/// The live value with what the configuration says about it.
fn merge(node: Node, live: Option<&Value>, applied: Option<&Value>) -> Option<Value> {
    let kind = node.kind();
    let preferred = applied.or(live)?;
    let shape = shape_of(kind, preferred);
    if is_leaf(kind, shape, [live, applied]) {
        return Some(preferred.clone());
    }
    if let (Shape::List, Some(list), Some(items)) = (shape, &kind.list, node.items()) {
        return Some(Value::Array(merge_items(items, &items_of(list, live), &items_of(list, applied))));
    }
    let get = |value: Option<&'_ Value>, name: &str| value.and_then(|value| value.get(name)).cloned();
    let mut merged = Map::new();
    for (name, _) in fields_of(live).chain(fields_of(applied)) {
        let (live, applied) = (get(live, name), get(applied, name));
        let field = node.field(name).and_then(|node| merge(node, live.as_ref(), applied.as_ref()));
        if let Some(field) = field {
            merged.insert(name.clone(), field);
        }
    }
    Some(Value::Object(merged))
}

/// Merges items in the order of the configuration. Items that only the live list has keep their place in it.
fn merge_items(node: Node, live: &[(Element, &Value)], applied: &[(Element, &Value)]) -> Vec<Value> {
    let find = |items: &[(Element, &Value)], element: &Element| -> Option<Value> {
        let mut found = items.iter().filter(|(other, _)| other == element).map(|(_, item)| *item);
        // Several items with the same keys do not merge with the new one.
        found.next().map(|item| if found.next().is_some() { Value::Null } else { item.clone() })
    };
    let is_in = |items: &[(Element, &Value)], element: &Element| items.iter().any(|(other, _)| other == element);
    let mut shared = applied.iter().map(|(element, _)| element).filter(|element| is_in(live, element));
    let mut next_shared = shared.next();
    let (mut merged, mut at_live, mut at_applied) = (Vec::new(), 0, 0);
    while at_live < live.len() || at_applied < applied.len() {
        if let (Some((of_live, _)), Some((of_applied, _))) = (live.get(at_live), applied.get(at_applied)) {
            if of_live == of_applied {
                at_live += 1;
                merged.extend(merge(node, find(live, of_live).as_ref(), find(applied, of_live).as_ref()));
                at_applied += 1;
                next_shared = shared.next();
                continue;
            }
            if is_in(applied, of_live) && next_shared.is_some_and(|next| next != of_live) {
                at_live += 1;
                continue;
            }
        }
        if let Some((of_live, item)) = live.get(at_live) {
            if !is_in(applied, of_live) {
                merged.extend(merge(node, Some(item), None));
                at_live += 1;
                continue;
            }
            if is_in(&applied[..at_applied], of_live) {
                at_live += 1;
            }
        }
        if let Some((of_applied, _)) = applied.get(at_applied) {
            merged.extend(merge(node, find(live, of_applied).as_ref(), find(applied, of_applied).as_ref()));
            at_applied += 1;
            if next_shared == Some(of_applied) {
                next_shared = shared.next();
            }
        }
    }
    merged
}

/// The value without the fields and items of a set. What becomes empty is null.
fn without(node: Node, value: &Value, removed: &Set, path: &mut Path) -> Value {
    let kind = node.kind();
    let mut keep = |element: Element, node: Option<Node>, value: &Value| {
        path.push(element);
        let kept = match node {
            _ if removed.contains(path) => None,
            Some(node) if holds_more_below(removed, path) => Some(without(node, value, removed, path)),
            _ => Some(value.clone()),
        };
        path.pop();
        kept
    };
    match (shape_of(kind, value), value, &kind.list) {
        (Shape::Scalar, ..) => value.clone(),
        (Shape::Map, Value::Object(fields), _) if kind.map.as_ref().is_some_and(|map| !map.is_atomic) => {
            let kept = fields
                .iter()
                .filter_map(|(name, field)| Some((name.clone(), keep(Element::Field(name.clone()), node.field(name), field)?)));
            let kept: Map<String, Value> = kept.collect();
            if kept.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        (Shape::List, Value::Array(_), Some(list)) if list.list_type != ListType::Atomic => {
            let items = items_of(list, Some(value)).into_iter();
            let kept: Vec<Value> = items.filter_map(|(element, item)| keep(element, node.items(), item)).collect();
            if kept.is_empty() { Value::Null } else { Value::Array(kept) }
        }
        _ => Value::Null,
    }
}

/// Whether a set has paths that go on from this one.
fn holds_more_below(set: &Set, path: &Path) -> bool {
    let after = set.range::<Path, _>((Bound::Excluded(path), Bound::Unbounded)).next();
    after.is_some_and(|next| next.starts_with(path))
}

/// Finds what does not fit the types of the kind.
fn validate(node: Node, value: &Value, path: &str, problems: &mut Vec<String>) {
    let kind = node.kind();
    let mut report = |message: String| {
        problems.push(if path.is_empty() { message } else { format!("{path}: {message}") });
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
                    Some(node) => validate(node, field, &path, problems),
                    None => return problems.push(format!("{path}: field not declared in schema")),
                }
            }
        }
        (Shape::List, Value::Array(items)) => validate_items(node, items, path, problems),
        (Shape::Map, other) => report(format!("expected map, got &{{{}}}", go_text(other))),
        (Shape::List, other) => report(format!("expected list, got &{{{}}}", go_text(other))),
    }
}

fn validate_items(node: Node, items: &[Value], path: &str, problems: &mut Vec<String>) {
    let prefix = if path.is_empty() { String::new() } else { format!("{path}: ") };
    let (Some(list), Some(node)) = (&node.kind().list, node.items()) else {
        return;
    };
    let mut seen = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let element = match list.list_type {
            ListType::Atomic => Ok(Element::Index(index)),
            _ => Element::of_item(list, item),
        };
        let element = match element {
            Ok(element) => element,
            Err(error) => return problems.push(format!("{prefix}element {index}: {error}")),
        };
        let printed = element.print();
        if !seen.insert(element) {
            problems.push(format!("{prefix}duplicate entries for key {printed}"));
        }
        validate(node, item, &format!("{path}{printed}"), problems);
    }
}

fn check_scalar(scalar: Scalar, value: &Value) -> Option<String> {
    let fits = match scalar {
        Scalar::Number => value.is_number(),
        Scalar::Text => value.is_string(),
        Scalar::Boolean => value.is_boolean(),
        Scalar::Any => !value.is_array() && !value.is_object(),
    };
    let go_type = match value {
        Value::Bool(_) => "bool",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        _ => "map[string]interface {}",
    };
    let message = match scalar {
        Scalar::Number => format!("expected numeric (int or float), got {go_type}"),
        Scalar::Text => format!("expected string, got &value.valueUnstructured{{Value:{value}}}"),
        Scalar::Boolean => format!("expected boolean, got &{{{}}}", go_text(value)),
        Scalar::Any => format!("expected any scalar, got &{{{}}}", go_text(value)),
    };
    (!fits).then_some(message)
}

fn list_problems(problems: &[String]) -> String {
    match problems {
        [one] => one.clone(),
        _ => format!("errors:\n  {}", problems.join("\n  ")),
    }
}

/// `namespace/name; apps/v1, Kind=Deployment`.
fn describe(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (metadata, version) = (&object["metadata"], text(&object["apiVersion"]));
    let version = if version.contains('/') { version } else { format!("/{version}") };
    format!("{}/{}; {version}, Kind={}", text(&metadata["namespace"]), text(&metadata["name"]), text(&object["kind"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(name: &'static str, minute: u8) -> (String, &'static str) {
        (format!("2026-01-01T00:{minute:02}:00Z"), name)
    }

    fn update(kind: &Lists, old: Option<&Value>, mut new: Value, (time, name): &(String, &str)) -> Value {
        track_update(kind, old, &mut new, &Manager { name, subresource: "", api_version: "v1", time });
        new
    }

    fn applied(kind: &Lists, live: Option<&Value>, configuration: &Value, name: &str, force: bool) -> Result<Value, Refusal> {
        let manager = Manager { name, subresource: "", api_version: "v1", time: "2026-01-01T01:00:00Z" };
        apply(kind, live, configuration, &manager, &How { untouched: &[], is_forced: force })
    }

    /// The fields of a manager, and the time of its last write.
    fn owned<'a>(object: &'a Value, name: &str) -> (&'a Value, Option<&'a str>) {
        let entries = object["metadata"]["managedFields"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["manager"] == name).unwrap();
        (&entry["fieldsV1"], entry["time"].as_str())
    }

    fn config_map(data: &Value) -> Value {
        let metadata = json!({ "name": "x", "namespace": "n", "uid": "u" });
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data })
    }

    #[test]
    fn who_creates_an_object_owns_its_fields() {
        let pods = Lists::of_built_in("", "Pod");
        let pod = json!({
            "metadata": { "name": "x", "labels": { "a": "1" }, "finalizers": ["f/1"] },
            "spec": { "containers": [{ "name": "a", "resources": {}, "ports": [{ "containerPort": 80, "protocol": "TCP" }] }] },
            "status": {},
        });
        let created = update(&pods, None, pod, &manager("m", 0));
        let port = json!({ ".": {}, "f:containerPort": {}, "f:protocol": {} });
        let ports = json!({ ".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": port });
        let container = json!({ ".": {}, "f:name": {}, "f:ports": ports, "f:resources": {} });
        let fields = json!({
            "f:metadata": { "f:finalizers": { ".": {}, "v:\"f/1\"": {} }, "f:labels": { ".": {}, "f:a": {} } },
            "f:spec": { "f:containers": { "k:{\"name\":\"a\"}": container } },
        });
        assert_eq!(owned(&created, "m"), (&fields, Some("2026-01-01T00:00:00Z")));
    }

    #[test]
    fn an_update_takes_the_fields_that_it_changes() {
        let maps = Lists::of_built_in("", "ConfigMap");
        let first = update(&maps, None, config_map(&json!({ "a": "1", "b": "1", "c": "1" })), &manager("one", 0));
        let second = update(&maps, Some(&first), config_map(&json!({ "a": "2", "b": "1" })), &manager("two", 1));
        assert_eq!(owned(&second, "one"), (&json!({ "f:data": { ".": {}, "f:b": {} } }), Some("2026-01-01T00:00:00Z")));
        assert_eq!(owned(&second, "two"), (&json!({ "f:data": { "f:a": {} } }), Some("2026-01-01T00:01:00Z")));
        let third = update(&maps, Some(&second), config_map(&json!({ "a": "2", "b": "1" })), &manager("two", 2));
        assert_eq!(third["metadata"]["managedFields"], second["metadata"]["managedFields"]);
    }

    #[test]
    fn an_apply_conflicts_with_owners_of_other_values() {
        let maps = Lists::of_built_in("", "ConfigMap");
        let live = update(&maps, None, config_map(&json!({ "a": "1" })), &manager("one", 0));
        let mut configuration = config_map(&json!({ "a": "2", "b": "1" }));
        let conflict = Refusal::Conflicts(vec![("\"one\" using v1".to_owned(), ".data.a".to_owned())]);
        assert_eq!(applied(&maps, Some(&live), &configuration, "two", false), Err(conflict));
        let forced = applied(&maps, Some(&live), &configuration, "two", true).unwrap();
        assert_eq!(forced["data"], json!({ "a": "2", "b": "1" }));
        assert_eq!(owned(&forced, "one").0, &json!({ "f:data": {} }));
        configuration["data"] = json!({ "b": "1" });
        let removed = applied(&maps, Some(&forced), &configuration, "two", false).unwrap();
        assert_eq!(removed["data"], json!({ "b": "1" }));
    }

    #[test]
    fn what_another_manager_applied_stays() {
        let maps = Lists::of_built_in("", "ConfigMap");
        let both = config_map(&json!({ "a": "1", "b": "1" }));
        let live = applied(&maps, None, &both, "one", false).unwrap();
        let live = applied(&maps, Some(&live), &config_map(&json!({ "a": "1" })), "two", false).unwrap();
        // The second apply changed nothing, so it has no time.
        assert_eq!(owned(&live, "two"), (&json!({ "f:data": { "f:a": {} } }), None));
        let live = applied(&maps, Some(&live), &config_map(&Value::Null), "one", false).unwrap();
        assert_eq!(live["data"], json!({ "a": "1" }));
    }

    #[test]
    fn an_apply_gives_fields_without_owner_to_a_manager_first() {
        let maps = Lists::of_built_in("", "ConfigMap");
        let live = config_map(&json!({ "a": "1" }));
        let conflict = Refusal::Conflicts(vec![("\"before-first-apply\" using v1".to_owned(), ".data.a".to_owned())]);
        assert_eq!(applied(&maps, Some(&live), &config_map(&json!({ "a": "2" })), "one", false), Err(conflict));
        let untracked = update(&maps, Some(&live), config_map(&json!({ "a": "2" })), &manager("one", 0));
        assert!(untracked["metadata"]["managedFields"].is_null());
    }

    #[test]
    fn a_configuration_that_does_not_fit_is_refused() {
        let pods = Lists::of_built_in("", "Pod");
        let refused = |spec: Value| {
            let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "x", "namespace": "n" }, "spec": spec });
            match applied(&pods, None, &pod, "m", false) {
                Err(Refusal::Invalid(message)) => message,
                other => panic!("{other:?}"),
            }
        };
        let prefix = "failed to create typed patch object (n/x; /v1, Kind=Pod): .spec";
        let twice = refused(json!({ "containers": [{ "name": "a" }, { "name": "a" }] }));
        assert_eq!(twice, format!("{prefix}.containers: duplicate entries for key [name=\"a\"]"));
        assert_eq!(refused(json!({ "foo": 1 })), format!("{prefix}.foo: field not declared in schema"));
        assert_eq!(
            refused(json!({ "priority": "x" })),
            format!("{prefix}.priority: expected numeric (int or float), got string")
        );
    }

    #[test]
    fn the_oldest_of_many_managers_become_one() {
        let maps = Lists::of_built_in("", "ConfigMap");
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
        let mut live = config_map(&json!({}));
        let mut old = None;
        for (minute, name) in (0..).zip(names) {
            live["data"][name] = json!("1");
            live = update(&maps, old.as_ref(), live, &manager(name, minute));
            old = Some(live.clone());
        }
        assert_eq!(live["metadata"]["managedFields"].as_array().unwrap().len(), MAX_UPDATE_MANAGERS);
        assert_eq!(
            owned(&live, "ancient-changes"),
            (&json!({ "f:data": { ".": {}, "f:a": {}, "f:b": {}, "f:c": {} } }), Some("2026-01-01T00:02:00Z"))
        );
    }
}

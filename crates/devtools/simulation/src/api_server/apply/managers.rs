//! The entries of `metadata.managedFields`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{
    Manager,
    changes::Changes,
    paths::{Element, Path, Set, decode_set, encode_set, print_path},
};

#[derive(Debug, Clone)]
pub struct Entry {
    name: String,
    is_apply: bool,
    api_version: String,
    subresource: String,
    pub time: Option<String>,
    pub fields: Set,
}

/// The managers by their ids.
pub type Managers = BTreeMap<String, Entry>;

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

impl Entry {
    pub fn new(manager: &Manager, is_apply: bool, fields: Set) -> Self {
        Self {
            name: if manager.name.is_empty() {
                "unknown"
            } else {
                manager.name
            }
            .to_owned(),
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
    pub fn id(&self) -> String {
        let mut id = Map::new();
        let api_version = if self.is_apply { "" } else { &self.api_version };
        let operation = self.operation();
        for (name, value) in [
            ("manager", &*self.name),
            ("operation", operation),
            ("apiVersion", api_version),
            ("subresource", &self.subresource),
        ] {
            if !value.is_empty() {
                id.insert(name.to_owned(), json!(value));
            }
        }
        Value::Object(id).to_string()
    }

    /// The manager as the message of a conflict names it.
    pub fn describe(&self) -> String {
        let of_subresource = if self.subresource.is_empty() {
            String::new()
        } else {
            format!(" with subresource {:?}", self.subresource)
        };
        let using = if self.is_apply {
            String::new()
        } else {
            format!(" using {}", self.api_version)
        };
        format!("{:?}{of_subresource}{using}", self.name)
    }

    fn decode(entry: &Value) -> Self {
        let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        Self {
            name: text("manager"),
            is_apply: entry["operation"] == "Apply",
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: entry["time"].as_str().map(str::to_owned),
            fields: decode_set(&entry["fieldsV1"]),
        }
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
        put("fieldsV1", encode_set(&self.fields));
        put("subresource", json!(self.subresource));
        Value::Object(entry)
    }
}

pub fn decode_managers(entries: &Value) -> Managers {
    entries
        .as_array()
        .into_iter()
        .flatten()
        .map(Entry::decode)
        .map(|entry| (entry.id(), entry))
        .collect()
}

/// Removes the managers from an object.
pub fn take_managed(object: &mut Value) -> Value {
    object["metadata"]
        .as_object_mut()
        .and_then(|metadata| metadata.remove("managedFields"))
        .unwrap_or_default()
}

pub fn put_managed(object: &mut Value, managers: &Managers) {
    let mut entries: Vec<&Entry> = managers.values().collect();
    entries.sort_by_key(|entry| {
        (
            entry.operation(),
            &entry.time,
            &entry.name,
            &entry.api_version,
            &entry.subresource,
        )
    });
    if !entries.is_empty() {
        object["metadata"]["managedFields"] = entries.into_iter().map(Entry::encode).collect();
    }
}

/// Removes the fields that changed or are gone from their managers.
pub fn take_fields(managers: &mut Managers, changes: &Changes) {
    for entry in managers.values_mut() {
        entry
            .fields
            .retain(|path| !changes.written.contains(path) && !changes.removed.contains(path));
    }
    managers.retain(|_, entry| !entry.fields.is_empty());
}

pub fn is_unowned(path: &Path) -> bool {
    let is_name = |(element, name): (&Element, &&str)| matches!(element, Element::Field(field) if field == name);
    UNOWNED
        .iter()
        .any(|unowned| unowned.len() == path.len() && path.iter().zip(*unowned).all(is_name))
}

/// The managers with fields that an apply would take from them, each with one of these fields.
pub fn find_conflicts(managers: &Managers, changes: &Changes) -> Vec<(String, String)> {
    let mut conflicts = Vec::new();
    for entry in managers.values() {
        let mut taken: Vec<&Path> = entry.fields.intersection(&changes.written).collect();
        taken.sort_by_key(|&path| shallow_first(path));
        conflicts.extend(
            taken
                .into_iter()
                .map(|path| (entry.describe(), print_path(path))),
        );
    }
    conflicts
}

/// Kubernetes lists the members of a field before those of its members.
fn shallow_first(path: &Path) -> Vec<(bool, &Element)> {
    path.iter()
        .enumerate()
        .map(|(at, element)| (at + 1 < path.len(), element))
        .collect()
}

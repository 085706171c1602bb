//! One of the two servers: its clients, and what it answered so far in one sequence.

use std::collections::{BTreeMap, HashMap};

use kube::Client;
use serde_json::Value;

use crate::{
    answer::Answer,
    request::{Body, Request, Version},
};

#[derive(Clone)]
pub struct Server {
    pub admin: Client,
    pub ordinary: Client,
}

pub struct Side {
    pub server: Server,
    /// The states of each object, the newest last.
    seen: HashMap<String, Vec<Value>>,
    names: BTreeMap<usize, String>,
    tokens: BTreeMap<usize, String>,
    /// The highest version of an object.
    pub newest: u64,
}

/// A request with everything filled in for one server.
pub struct Resolved {
    pub path_and_query: String,
    pub body: String,
}

impl Side {
    pub fn new(server: Server) -> Self {
        let (seen, names, tokens) = (HashMap::new(), BTreeMap::new(), BTreeMap::new());
        Self {
            server,
            seen,
            names,
            tokens,
            newest: 0,
        }
    }

    pub fn client(&self, request: &Request) -> Client {
        if request.is_ordinary {
            self.server.ordinary.clone()
        } else {
            self.server.admin.clone()
        }
    }

    pub fn seen(&self, key: &str) -> Option<&Value> {
        self.seen.get(key)?.last()
    }

    pub fn resolve(&self, request: &Request) -> Resolved {
        let mut query = form_urlencoded::Serializer::new(String::new());
        for (name, value) in &request.query {
            query.append_pair(name, &self.fill(value));
        }
        let query = query.finish();
        let separator = if query.is_empty() { "" } else { "?" };
        Resolved {
            path_and_query: format!("{}{separator}{query}", self.fill(&request.path)),
            body: self.body(&request.body),
        }
    }

    fn body(&self, body: &Body) -> String {
        match body {
            Body::None => String::new(),
            Body::Json(value) => self.fill_value(value).to_string(),
            Body::Seen {
                key,
                changes,
                version,
            } => self.changed(key, changes, *version).to_string(),
        }
    }

    fn changed(&self, key: &str, changes: &[Value], version: Version) -> Value {
        let mut object = self.seen(key).cloned().unwrap_or_default();
        for change in changes {
            json_patch::merge(&mut object, &self.fill_value(change));
        }
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            match version {
                Version::Current => {}
                Version::None => drop(metadata.remove("resourceVersion")),
                Version::Old => {
                    drop(metadata.insert("resourceVersion".to_owned(), self.version(key, 1).into()))
                }
            }
        }
        object
    }

    /// The version of an object; `back` states before the newest one, or the oldest.
    fn version(&self, key: &str, back: usize) -> String {
        let states = self.seen.get(key).map_or(&[][..], Vec::as_slice);
        let state = states.get(states.len().saturating_sub(back + 1));
        text_at(state, "resourceVersion").unwrap_or_else(|| "1".to_owned())
    }

    fn fill_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.fill(text).into(),
            Value::Array(items) => items.iter().map(|item| self.fill_value(item)).collect(),
            Value::Object(fields) => Value::Object(
                fields
                    .iter()
                    .map(|(key, value)| (key.clone(), self.fill_value(value)))
                    .collect(),
            ),
            other => other.clone(),
        }
    }

    fn fill(&self, text: &str) -> String {
        let (mut filled, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once("${") {
            let Some((placeholder, after)) = after.split_once('}') else {
                break;
            };
            filled.push_str(before);
            filled.push_str(&self.value(placeholder));
            rest = after;
        }
        filled.push_str(rest);
        for (slot, name) in self.names.iter().filter(|_| text.contains('@')) {
            filled = filled.replace(&format!("@{slot}@"), name);
        }
        filled
    }

    fn value(&self, placeholder: &str) -> String {
        let Some((what, key)) = placeholder.split_once(':') else {
            return String::new();
        };
        match what {
            "uid" => text_at(self.seen(key), "uid")
                .unwrap_or_else(|| "11111111-2222-3333-4444-000000000000".to_owned()),
            "rv" => self.version(key, 0),
            "oldrv" => self.version(key, 3),
            "token" => key
                .parse()
                .ok()
                .and_then(|slot: usize| self.tokens.get(&slot).cloned())
                .unwrap_or_default(),
            _ => String::new(),
        }
    }

    pub fn remember(&mut self, request: &Request, answer: &Answer) {
        let Some(body) = answer.json() else { return };
        if let (Some(slot), Some(token)) = (request.list_slot, text_at(Some(body), "continue")) {
            self.tokens.insert(slot, token);
        }
        if !answer.is_success() || request.is_dry() {
            return;
        }
        if let (Some(slot), Some(name)) = (request.name_slot, text_at(Some(body), "name")) {
            self.names.insert(slot, name);
        }
        let version =
            text_at(Some(body), "resourceVersion").and_then(|version| version.parse::<u64>().ok());
        let is_object = !matches!(
            body["kind"].as_str(),
            Some("Status" | "PartialObjectMetadata")
        );
        if let (Some(version), true, false) = (version, is_object, request.key.is_empty()) {
            self.newest = self.newest.max(version);
            self.seen
                .entry(request.key.clone())
                .or_default()
                .push(body.clone());
        }
    }
}

fn text_at(object: Option<&Value>, field: &str) -> Option<String> {
    object?["metadata"][field]
        .as_str()
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
}

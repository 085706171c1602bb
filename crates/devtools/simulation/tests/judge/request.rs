//! A request before it is sent: texts contain placeholders for what the two servers chose
//! differently.
//!
//! `@3@` is the name that the server generated for the third object without a name. `${uid:KEY}`
//! and `${rv:KEY}` are fields of the object that was last seen at the path KEY, `${oldrv:KEY}` of
//! an earlier state. `${token:3}` continues list 3.

use serde_json::Value;

#[derive(Clone, Debug)]
pub struct Request {
    /// An ordinary user, whose rights come from roles, instead of an administrator.
    pub is_ordinary: bool,
    pub method: &'static str,
    pub path: String,
    pub query: Vec<(&'static str, String)>,
    pub accept: &'static str,
    pub content_type: &'static str,
    pub body: Body,
    pub verb: &'static str,
    /// The resource with its subresource: `pods/status`, `deployments.apps`.
    pub resource: String,
    /// The path under which the object of the answer is remembered; empty if it is not.
    pub key: String,
    /// The number under which a generated name is remembered.
    pub name_slot: Option<usize>,
    /// The number under which a token to continue is remembered.
    pub list_slot: Option<usize>,
    pub watching: Watching,
    /// The real server uses its caches: waits for them before the request.
    pub waits_for_caches: bool,
    /// The real server's plugins read what this writes from their caches: waits after the request.
    pub settles: bool,
}

#[derive(Clone, Debug)]
pub enum Body {
    None,
    Json(Value),
    /// The object last seen at this path, with merge patches applied.
    Seen {
        key: String,
        changes: Vec<Value>,
        version: Version,
    },
}

/// The resourceVersion in an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Current,
    Old,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watching {
    No,
    /// Reads the events that happened already.
    Past,
    /// Reads until the server ends the watch.
    UntilTimeout,
    /// Stays open until the end of the sequence.
    Live,
}

pub const JSON: &str = "application/json";

impl Request {
    pub fn new(method: &'static str, verb: &'static str, resource: String, path: String) -> Self {
        Self {
            is_ordinary: false,
            method,
            path,
            query: Vec::new(),
            accept: JSON,
            content_type: if matches!(method, "POST" | "PUT") {
                JSON
            } else {
                ""
            },
            body: Body::None,
            verb,
            resource,
            key: String::new(),
            name_slot: None,
            list_slot: None,
            watching: Watching::No,
            waits_for_caches: false,
            settles: false,
        }
    }

    pub fn json(self, body: Value) -> Self {
        Self {
            body: Body::Json(body),
            ..self
        }
    }

    pub fn content(self, content_type: &'static str) -> Self {
        Self {
            content_type,
            ..self
        }
    }

    pub fn key(self, key: &str) -> Self {
        Self {
            key: key.to_owned(),
            ..self
        }
    }

    pub fn settles(self, settles: bool) -> Self {
        Self { settles, ..self }
    }

    pub fn parameter(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    pub fn is_dry(&self) -> bool {
        let in_body = matches!(&self.body, Body::Json(body) if body.get("dryRun").is_some());
        in_body || self.query.iter().any(|(name, _)| *name == "dryRun")
    }

    /// A list of everything as it is now.
    pub fn is_fresh_list(&self) -> bool {
        let is_list = self.verb == "list" && self.watching == Watching::No;
        is_list
            && !self
                .query
                .iter()
                .any(|(name, _)| matches!(*name, "continue" | "resourceVersion"))
    }
}

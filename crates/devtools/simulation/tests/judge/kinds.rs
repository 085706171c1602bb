//! The kinds of `kinds.yaml`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kinds {
    pub common: Common,
    pub kinds: Vec<Kind>,
}

/// Changes of metadata, which suit every kind.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Common {
    pub patches: Vec<Value>,
    pub invalid: Vec<Value>,
    pub strategic: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Kind {
    pub plural: String,
    pub api_version: String,
    pub kind: String,
    #[serde(default)]
    pub cluster: bool,
    /// It can only be created, and is not stored.
    #[serde(default)]
    pub review: bool,
    /// The real server takes a moment until it uses what was written.
    #[serde(default)]
    pub settle: bool,
    pub weight: usize,
    pub bodies: Vec<Value>,
    #[serde(default)]
    pub patches: Vec<Value>,
    #[serde(default)]
    pub invalid: Vec<Value>,
    #[serde(default)]
    pub strategic: Vec<Value>,
    #[serde(default)]
    pub fields: Vec<String>,
    #[serde(default)]
    pub subresources: BTreeMap<String, Subresource>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subresource {
    #[serde(default)]
    pub patches: Vec<Value>,
    #[serde(default)]
    pub creates: Vec<Value>,
    /// It has only updates: neither get nor patch.
    #[serde(default)]
    pub updates: bool,
}

impl Kinds {
    pub fn load() -> Self {
        serde_saphyr::from_str(include_str!("kinds.yaml")).expect("kinds.yaml is valid")
    }

    /// The kind of a resource such as `deployments.apps`.
    pub fn of_resource(&self, resource: &str) -> &Kind {
        self.kinds
            .iter()
            .find(|kind| kind.resource() == resource)
            .unwrap_or_else(|| panic!("kinds.yaml lacks {resource}"))
    }
}

impl Kind {
    fn group(&self) -> &str {
        self.api_version
            .split_once('/')
            .map_or("", |(group, _)| group)
    }

    /// `pods`, `deployments.apps`.
    pub fn resource(&self) -> String {
        match self.group() {
            "" => self.plural.clone(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// The path of all objects, or of those in a namespace.
    pub fn collection(&self, namespace: Option<&str>) -> String {
        let root = if self.group().is_empty() {
            "/api"
        } else {
            "/apis"
        };
        let scope = namespace
            .filter(|_| !self.cluster)
            .map(|name| format!("/namespaces/{name}"))
            .unwrap_or_default();
        format!("{root}/{}{scope}/{}", self.api_version, self.plural)
    }
}

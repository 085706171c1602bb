//! What a request asks for.

use std::{collections::BTreeMap, sync::Arc};

use http::{Method, header};
use serde_json::{Map, Value};

use super::{
    failure::Failure,
    kinds::{Kind, Kinds},
};

/// What a request does, as audit logs and RBAC name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// A patch's content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchType {
    Merge,
    Json,
    Strategic,
    Apply,
}

/// In which form the answer carries objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Full,
    Metadata,
}

/// A request to an object or to a collection.
#[derive(Clone)]
pub struct Request {
    pub verb: Verb,
    pub kind: Arc<Kind>,
    pub namespace: String,
    /// Empty for a collection.
    pub name: String,
    /// Empty for the object itself.
    pub subresource: String,
    pub query: BTreeMap<String, String>,
    pub patch_type: Option<PatchType>,
    pub form: Form,
    pub user_agent: String,
    pub body: Vec<u8>,
}

/// The parts of a path.
struct Place<'a> {
    group: &'a str,
    version: &'a str,
    namespace: &'a str,
    plural: &'a str,
    name: &'a str,
    subresource: &'a str,
}

fn place(path: &str) -> Option<Place<'_>> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return None,
    };
    let (namespace, rest) = match rest {
        ["namespaces", name, sub @ ("status" | "finalize")] => {
            return Some(Place {
                group,
                version,
                namespace: "",
                plural: "namespaces",
                name,
                subresource: sub,
            });
        }
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        rest => ("", rest),
    };
    let (plural, name, subresource) = match rest {
        [plural] => (*plural, "", ""),
        [plural, name] => (*plural, *name, ""),
        [plural, name, subresource] => (*plural, *name, *subresource),
        _ => return None,
    };
    Some(Place {
        group,
        version,
        namespace,
        plural,
        name,
        subresource,
    })
}

impl Request {
    pub fn parse(
        kinds: &Kinds,
        parts: &http::request::Parts,
        body: Vec<u8>,
    ) -> Result<Self, Failure> {
        let path = parts.uri.path();
        let is_of_group = path
            .strip_prefix("/apis/")
            .is_some_and(|rest| kinds.is_built_in(rest.split('/').next().unwrap_or_default()));
        let unknown = || {
            if is_of_group || path.starts_with("/api/v1/") {
                Failure::no_such_resource()
            } else {
                Failure::no_such_page()
            }
        };
        let place = place(path).ok_or_else(unknown)?;
        let missing = || {
            if kinds.is_built_in(place.group) {
                Failure::no_such_resource()
            } else {
                Failure::no_such_page()
            }
        };
        let kind = kinds
            .get(place.group, place.version, place.plural)
            .ok_or_else(missing)?;
        let has_subresource = place.subresource.is_empty()
            || kind
                .subresources
                .iter()
                .any(|name| name == place.subresource);
        let has_empty_steps = parts.uri.path().contains("//");
        if has_empty_steps || !has_subresource || (!kind.namespaced && !place.namespace.is_empty())
        {
            return Err(Failure::no_such_resource());
        }
        let query: BTreeMap<String, String> =
            form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes())
                .into_owned()
                .collect();
        let verb = verb(&parts.method, &place, &kind, &query)?;
        let content_type = header_of(parts, &header::CONTENT_TYPE);
        let patch_type = match verb {
            Verb::Patch => Some(patch_type(content_type, &kind)?),
            _ => None,
        };
        let accept = header_of(parts, &header::ACCEPT);
        let form = if accept.contains("as=PartialObjectMetadata") {
            Form::Metadata
        } else {
            Form::Full
        };
        Ok(Self {
            verb,
            namespace: place.namespace.to_owned(),
            name: place.name.to_owned(),
            subresource: place.subresource.to_owned(),
            kind,
            query,
            patch_type,
            form,
            user_agent: header_of(parts, &header::USER_AGENT).to_owned(),
            body,
        })
    }

    pub fn flag(&self, name: &str) -> bool {
        matches!(self.query.get(name).map(String::as_str), Some("true" | "1"))
    }

    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// The body, or an empty object for a request that needs none.
    pub fn object(&self) -> Result<Value, Failure> {
        let object: Value = serde_json::from_slice(&self.body).map_err(|error| {
            Failure::bad_request(format!(
                "couldn't get version/kind; json parse error: {error}"
            ))
        })?;
        Ok(if object.is_null() {
            Value::Object(Map::default())
        } else {
            object
        })
    }

    /// The name under which fields that this request sets are recorded.
    pub fn field_manager(&self) -> String {
        let from_agent = || {
            self.user_agent
                .split('/')
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        self.parameter("fieldManager")
            .map_or_else(from_agent, str::to_owned)
    }
}

fn header_of<'a>(parts: &'a http::request::Parts, name: &header::HeaderName) -> &'a str {
    parts
        .headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

fn verb(
    method: &Method,
    place: &Place<'_>,
    kind: &Kind,
    query: &BTreeMap<String, String>,
) -> Result<Verb, Failure> {
    let is_flag = |name: &str| matches!(query.get(name).map(String::as_str), Some("true" | "1"));
    let is_named = !place.name.is_empty();
    // A namespaced object without its namespace has no path of its own.
    if is_named && kind.namespaced && place.namespace.is_empty() {
        return Err(Failure::no_such_resource());
    }
    let acts = ["eviction", "binding", "token"].contains(&place.subresource);
    Ok(match (method, is_named) {
        (&Method::GET, _) if is_flag("watch") => Verb::Watch,
        (&Method::GET, true) if !acts => Verb::Get,
        (&Method::GET, false) => Verb::List,
        (&Method::POST, named) if named == acts => Verb::Create,
        (&Method::PUT, true) if !acts => Verb::Update,
        (&Method::PATCH, true) if !acts => Verb::Patch,
        (&Method::DELETE, true) if place.subresource.is_empty() => Verb::Delete,
        (&Method::DELETE, false) if kind.kind != "Namespace" => Verb::DeleteCollection,
        (&Method::PUT | &Method::PATCH, false) if kind.is_custom() => {
            return Err(Failure::bad_request("name must be provided"));
        }
        _ => return Err(Failure::method_not_allowed()),
    })
}

const PATCH_TYPES: [(&str, PatchType); 4] = [
    ("application/json-patch+json", PatchType::Json),
    ("application/merge-patch+json", PatchType::Merge),
    (
        "application/strategic-merge-patch+json",
        PatchType::Strategic,
    ),
    ("application/apply-patch+yaml", PatchType::Apply),
];

fn patch_type(content_type: &str, kind: &Kind) -> Result<PatchType, Failure> {
    let content_type = content_type.split(';').next().unwrap_or_default().trim();
    let found = PATCH_TYPES
        .iter()
        .find(|(name, _)| *name == content_type)
        .map(|(_, patch)| *patch);
    // Kinds without Go types have no strategic merge.
    let found = found.filter(|patch| !(kind.is_custom() && *patch == PatchType::Strategic));
    found.ok_or_else(Failure::unsupported_media_type)
}

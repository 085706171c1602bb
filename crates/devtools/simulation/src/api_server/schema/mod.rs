//! Schemas of custom resources.
//!
//! ```text
//!   openAPIV3Schema --new--> Node, a tree --+--> prune: what an object may not have; set_defaults (prune.rs)
//!                                           +--> validate: values.rs, lists.rs, then rules.rs, as kube-apiserver does
//!                                                           pair.rs: what an update did not change
//! ```

mod cel;
mod formats;
mod lists;
mod pair;
mod prune;
mod rules;
#[cfg(test)]
mod tests;
mod text;
mod values;

use std::collections::BTreeMap;
use std::fmt;

use regex::Regex;
use serde_json::Value;

use pair::Pair;
use rules::{Change, Checked, Findings, Rule};
use values::Fault;

/// The schema of one version of a custom resource.
pub struct Schema {
    root: Node,
}

/// Which part of an object a request changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Whole,
    Status,
}

/// What kube-apiserver says about an object.
#[derive(Default, Debug)]
pub struct Verdict {
    pub causes: Vec<Cause>,
    /// What rules say about what did not change.
    #[allow(dead_code, reason = "a real server writes it into headers for people; only tests read it")]
    pub warnings: Vec<String>,
}

/// One entry of `status.details.causes` and of the message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cause {
    pub field: String,
    pub kind: CauseKind,
    pub message: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CauseKind {
    Invalid,
    TypeInvalid,
    Required,
    NotSupported,
    TooLong,
    TooMany,
    Duplicate,
    Forbidden,
}

impl CauseKind {
    /// The `reason` of a cause.
    pub fn reason(self) -> &'static str {
        match self {
            CauseKind::Invalid => "FieldValueInvalid",
            CauseKind::TypeInvalid => "FieldValueTypeInvalid",
            CauseKind::Required => "FieldValueRequired",
            CauseKind::NotSupported => "FieldValueNotSupported",
            CauseKind::TooLong => "FieldValueTooLong",
            CauseKind::TooMany => "FieldValueTooMany",
            CauseKind::Duplicate => "FieldValueDuplicate",
            CauseKind::Forbidden => "FieldValueForbidden",
        }
    }

    fn title(self) -> &'static str {
        match self {
            CauseKind::Invalid | CauseKind::TypeInvalid => "Invalid value",
            CauseKind::Required => "Required value",
            CauseKind::NotSupported => "Unsupported value",
            CauseKind::TooLong => "Too long",
            CauseKind::TooMany => "Too many",
            CauseKind::Duplicate => "Duplicate value",
            CauseKind::Forbidden => "Forbidden",
        }
    }

    /// Rules are not checked on an object with such a cause.
    fn hinders_rules(self) -> bool {
        !matches!(self, CauseKind::Invalid | CauseKind::Duplicate | CauseKind::Forbidden)
    }
}

impl Cause {
    /// Without a path it concerns the whole object. Which causes name the value is up to their kind.
    fn new(path: &str, kind: CauseKind, value: Option<&Value>, detail: &str) -> Self {
        let field = if path.is_empty() { "<nil>" } else { path };
        Cause { field: field.to_owned(), kind, message: body(kind, value, detail) }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.field, self.message)
    }
}

/// The message of a cause.
fn body(kind: CauseKind, value: Option<&Value>, detail: &str) -> String {
    let mut body = kind.title().to_owned();
    let names_value = !matches!(kind, CauseKind::Required | CauseKind::Forbidden | CauseKind::TooLong);
    if let Some(value) = value.filter(|_| names_value) {
        let value = match value {
            Value::String(value) => text::quote(value),
            Value::Number(number) if !number.is_i64() => text::float(number.as_f64().unwrap_or(f64::NAN)),
            value => text::json(value),
        };
        body.push_str(": ");
        body.push_str(&value);
    }
    // Duplicates have no details.
    if !detail.is_empty() && kind != CauseKind::Duplicate {
        body.push_str(": ");
        body.push_str(detail);
    }
    body
}

impl Schema {
    /// From `openAPIV3Schema` of a `CustomResourceDefinition`'s version.
    pub fn new(open_api: &Value) -> Self {
        Schema { root: Node::new(open_api) }
    }

    /// Removes what the schema does not have, and nulls that it does not allow. Returns the paths of the unknown fields,
    /// sorted, as in `unknown field "spec.foo"`.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        let mut removed = vec![];
        prune::prune(Some(&self.root), object, "", true, &mut removed);
        prune::drop_nulls(Some(&self.root), object);
        removed.sort();
        removed
    }

    /// Sets defaults inside of what exists. Nulls that are not allowed are replaced by a default, or dropped.
    pub fn set_defaults(&self, object: &mut Value) {
        prune::drop_nulls(Some(&self.root), object);
        prune::fill(&self.root, object);
    }

    /// What kube-apiserver refuses in a request for the whole object.
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Cause> {
        self.judge(object, old, Part::Whole, &[]).causes
    }

    /// What kube-apiserver refuses, and what it warns of. `earlier` are causes that it found before, in the metadata.
    pub fn judge(&self, object: &Value, old: Option<&Value>, part: Part, earlier: &[Cause]) -> Verdict {
        let pair = old.map(|old| Pair { node: &self.root, new: object, old });
        let mut causes = match part {
            Part::Whole => faults(&self.root, object, pair, ""),
            Part::Status => match (self.root.properties.get("status"), object.get("status")) {
                (Some(node), Some(status)) => faults(node, status, pair.and_then(|pair| pair.field("status")), "status"),
                _ => vec![],
            },
        };
        causes.extend(self.duplicates(object, old));
        if earlier.iter().chain(&causes).any(|cause| cause.kind.hinders_rules()) {
            let message = "some validation rules were not checked because the object was invalid; \
                           correct the existing errors to complete validation";
            // Without any rules nothing is left out.
            if self.root.has_rules {
                causes.push(Cause::new("", CauseKind::Invalid, Some(&Value::Null), message));
            }
            return Verdict { causes, warnings: vec![] };
        }
        let mut findings = Findings { causes, warnings: vec![] };
        let change = Change::of(pair);
        let checked = Checked { rules: &self.root, node: &self.root, value: object, old, change, is_resource: true };
        rules::check(checked, "", &mut findings);
        Verdict { causes: findings.causes, warnings: findings.warnings }
    }

    /// Duplicates in lists, unless there were some before.
    fn duplicates(&self, object: &Value, old: Option<&Value>) -> Vec<Cause> {
        let duplicates = |object: &Value| {
            let mut causes = vec![];
            lists::check_fields(&self.root, object, "", &mut causes);
            causes
        };
        if old.is_some_and(|old| !duplicates(old).is_empty()) { vec![] } else { duplicates(object) }
    }
}

/// Values that do not fit, in the part of an object at `path`.
fn faults(node: &Node, value: &Value, pair: Option<Pair>, path: &str) -> Vec<Cause> {
    let written = |fault: Fault| {
        let name = fault.name.unwrap_or_default();
        let name = name.strip_prefix('.').unwrap_or(&name);
        let field = if name.is_empty() { path.to_owned() } else { child(path, name) };
        let field = if field.is_empty() { "<nil>".to_owned() } else { field };
        Cause { field, kind: fault.kind, message: fault.message }
    };
    values::check(node, value, "", pair).faults.into_iter().map(written).collect()
}

/// The path of a field of what is at `path`.
fn child(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// One part of a schema.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "the words of a schema")]
struct Node {
    /// As the schema writes it, so none if the value may be an integer or a string.
    kind: String,
    types: Vec<&'static str>,
    nullable: bool,
    is_int_or_string: bool,
    is_embedded: bool,
    preserves_unknown: bool,
    default: Option<Value>,
    format: Option<String>,
    enumeration: Vec<Value>,
    pattern: Option<Pattern>,
    min_length: Option<i64>,
    max_length: Option<i64>,
    minimum: Option<Limit>,
    maximum: Option<Limit>,
    excludes_minimum: bool,
    excludes_maximum: bool,
    multiple_of: Option<Limit>,
    items: Option<Box<Node>>,
    min_items: Option<i64>,
    max_items: Option<i64>,
    unique_items: bool,
    is_set: bool,
    is_keyed: bool,
    keys: Vec<String>,
    properties: BTreeMap<String, Node>,
    additional: Option<Additional>,
    min_properties: Option<i64>,
    max_properties: Option<i64>,
    required: Vec<String>,
    all_of: Vec<Node>,
    any_of: Vec<Node>,
    one_of: Vec<Node>,
    not: Option<Box<Node>>,
    rules: Vec<Rule>,
    /// Whether it has rules, itself or anywhere inside.
    has_rules: bool,
}

/// The fields of an object that have no schema of their own.
enum Additional {
    Of(Box<Node>),
    Unknown,
}

struct Pattern {
    text: String,
    regex: Result<Regex, String>,
}

/// A limit, for integers and for other numbers.
#[derive(Clone, Copy)]
struct Limit {
    int: i64,
    float: f64,
}

const TYPES: [&str; 6] = ["object", "array", "string", "integer", "number", "boolean"];

impl Node {
    fn new(schema: &Value) -> Self {
        let is_true = |key: &str| schema[key] == true;
        let int = |key: &str| limit(&schema[key]).map(|limit| limit.int);
        let list = |key: &str| schema[key].as_array().into_iter().flatten();
        let texts = |key: &str| list(key).filter_map(Value::as_str).map(str::to_owned).collect();
        let is_int_or_string = is_true("x-kubernetes-int-or-string");
        let kind = schema["type"].as_str().unwrap_or_default();
        let own_types = TYPES.into_iter().filter(|name| *name == kind).collect();
        let mut node = Node {
            kind: kind.to_owned(),
            types: if is_int_or_string { vec!["integer", "string"] } else { own_types },
            nullable: is_true("nullable"),
            is_int_or_string,
            is_embedded: is_true("x-kubernetes-embedded-resource"),
            preserves_unknown: is_true("x-kubernetes-preserve-unknown-fields"),
            default: schema.get("default").filter(|default| !default.is_null()).cloned(),
            format: schema["format"].as_str().filter(|format| formats::is_known(format)).map(str::to_owned),
            enumeration: schema["enum"].as_array().cloned().unwrap_or_default(),
            pattern: schema["pattern"].as_str().filter(|text| !text.is_empty()).map(Pattern::new),
            min_length: int("minLength"),
            max_length: int("maxLength"),
            minimum: limit(&schema["minimum"]),
            maximum: limit(&schema["maximum"]),
            excludes_minimum: is_true("exclusiveMinimum"),
            excludes_maximum: is_true("exclusiveMaximum"),
            multiple_of: limit(&schema["multipleOf"]),
            min_items: int("minItems"),
            max_items: int("maxItems"),
            unique_items: is_true("uniqueItems"),
            is_set: schema["x-kubernetes-list-type"] == "set",
            is_keyed: schema["x-kubernetes-list-type"] == "map",
            keys: texts("x-kubernetes-list-map-keys"),
            min_properties: int("minProperties"),
            max_properties: int("maxProperties"),
            required: texts("required"),
            ..Node::default()
        };
        node.add_parts(schema);
        node.rules = list("x-kubernetes-validations").map(|rule| Rule::new(rule, &node)).collect();
        node.has_rules = !node.rules.is_empty() || node.parts().any(|part| part.has_rules);
        node
    }

    fn add_parts(&mut self, schema: &Value) {
        let boxed = |key: &str| schema.get(key).filter(|schema| schema.is_object()).map(|schema| Box::new(Node::new(schema)));
        let nodes = |key: &str| schema[key].as_array().into_iter().flatten().map(Node::new).collect();
        self.items = boxed("items");
        self.not = boxed("not");
        self.all_of = nodes("allOf");
        self.any_of = nodes("anyOf");
        self.one_of = nodes("oneOf");
        let properties = schema["properties"].as_object().into_iter().flatten();
        self.properties = properties.map(|(name, schema)| (name.clone(), Node::new(schema))).collect();
        self.additional = match schema.get("additionalProperties") {
            Some(schema @ Value::Object(_)) => Some(Additional::Of(Box::new(Node::new(schema)))),
            Some(Value::Bool(_)) => Some(Additional::Unknown),
            _ => None,
        };
    }

    /// The parts whose rules are checked.
    fn parts(&self) -> impl Iterator<Item = &Node> {
        let additional = match &self.additional {
            Some(Additional::Of(node)) => Some(node.as_ref()),
            _ => None,
        };
        self.properties.values().chain(&self.all_of).chain(self.items.as_deref()).chain(additional)
    }

    /// The schema of a field.
    fn field(&self, name: &str) -> Option<&Node> {
        match (self.properties.get(name), &self.additional) {
            (Some(node), _) => Some(node),
            (None, Some(Additional::Of(node))) => Some(node),
            _ => None,
        }
    }

    /// The item of the list `old` with the keys of `item`, if this is the schema of a list with keys.
    fn item_like<'a>(&self, item: &Value, old: &'a Value) -> Option<&'a Value> {
        if !self.is_keyed || self.keys.is_empty() || self.kind != "array" {
            return None;
        }
        let is_scalar = |value: &&Value| matches!(value, Value::Bool(_) | Value::Number(_) | Value::String(_));
        let keys_of = |item: &'a Value| self.keys.iter().map(|key| item.get(key).filter(is_scalar)).collect::<Option<Vec<_>>>();
        let keys = self.keys.iter().map(|key| item.get(key).filter(is_scalar)).collect::<Option<Vec<_>>>()?;
        old.as_array()?.iter().find(|old| keys_of(old).as_ref() == Some(&keys))
    }
}

impl Pattern {
    fn new(text: &str) -> Self {
        Pattern { text: text.to_owned(), regex: text::regex(text) }
    }
}

fn limit(value: &Value) -> Option<Limit> {
    let float = value.as_f64()?;
    // A limit beyond all integers is the last of them.
    let last = if float < 0.0 { i64::MIN } else { i64::MAX };
    Some(Limit { float, int: value.as_i64().or_else(|| format!("{:.0}", float.trunc()).parse().ok()).unwrap_or(last) })
}

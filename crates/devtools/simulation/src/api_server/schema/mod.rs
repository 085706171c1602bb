//! Schemas of custom resources, with the features that the kinds of Liqo use.
//!
//! ```text
//!   openAPIV3Schema --new--> Node, a tree --+--> prune: what an object may not have; set_defaults (prune.rs)
//!                                           +--> validate: values.rs, lists.rs, then rules.rs, as kube-apiserver does
//!                                                           pair.rs: what an update did not change
//! ```

mod cause;
mod lists;
mod pair;
mod prune;
mod rules;
#[cfg(test)]
mod tests;
mod values;

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Value;

use super::cause::{Cause, CauseKind};
use pair::Pair;
use rules::{Checked, Rule};
use values::Checker;

/// The schema of one version of a custom resource.
pub struct Schema {
    root: Node,
}

impl Schema {
    /// From `openAPIV3Schema` of a `CustomResourceDefinition`'s version.
    pub fn new(open_api: &Value) -> Self {
        Schema {
            root: Node::new(open_api),
        }
    }

    /// Removes what the schema does not have, and nulls that it does not allow. Returns the paths
    /// of the unknown fields, sorted, as in `unknown field "spec.foo"`.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        let mut removed = prune::prune(&self.root, object);
        prune::drop_nulls(&self.root, object);
        removed.sort();
        removed
    }

    /// Sets defaults inside of what exists. Nulls that are not allowed are replaced by a default,
    /// or dropped.
    pub fn set_defaults(&self, object: &mut Value) {
        prune::drop_nulls(&self.root, object);
        prune::fill(&self.root, object);
    }

    /// What kube-apiserver refuses in a request for the whole object.
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Cause> {
        let mut checker = Checker::new("");
        let pair = old.map(|old| Pair {
            node: &self.root,
            new: object,
            old,
        });
        checker.check(&self.root, object, "", pair);
        self.finish(object, old, checker.causes)
    }

    /// What kube-apiserver refuses in a request for the status of an object.
    pub fn validate_status(&self, object: &Value, old: &Value) -> Vec<Cause> {
        let mut checker = Checker::new("status");
        let pair = Pair {
            node: &self.root,
            new: object,
            old,
        };
        if let (Some(node), Some(status)) =
            (self.root.properties.get("status"), object.get("status"))
        {
            checker.check(node, status, "", pair.field("status"));
        }
        self.finish(object, Some(old), checker.causes)
    }

    /// Adds what is wrong with lists and against rules.
    fn finish(&self, object: &Value, old: Option<&Value>, mut causes: Vec<Cause>) -> Vec<Cause> {
        causes.extend(self.duplicates(object, old));
        if !causes.iter().any(|cause| cause.kind.hinders_rules()) {
            rules::check(
                Checked {
                    node: &self.root,
                    value: object,
                    old,
                    around: None,
                },
                "",
                &mut causes,
            );
        } else if self.root.has_rules {
            let message = "some validation rules were not checked because the object was invalid; \
                           correct the existing errors to complete validation";
            causes.push(Cause::new(
                "",
                CauseKind::Invalid,
                Some(&Value::Null),
                message,
            ));
        }
        causes
    }

    /// Duplicates in lists, unless there were some before.
    fn duplicates(&self, object: &Value, old: Option<&Value>) -> Vec<Cause> {
        let had_some = old.is_some_and(|old| !lists::duplicates(&self.root, old).is_empty());
        if had_some {
            vec![]
        } else {
            lists::duplicates(&self.root, object)
        }
    }
}

/// The path of a field of what is at `path`.
fn child(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// One part of a schema.
#[expect(clippy::struct_excessive_bools, reason = "the words of a schema")]
struct Node {
    /// As the schema writes it: empty if the value may be an integer or a string.
    kind: String,
    types: Vec<&'static str>,
    nullable: bool,
    preserves_unknown: bool,
    default: Option<Value>,
    /// A text in the format `date-time`, the only one in our kinds that kube-apiserver checks.
    is_time: bool,
    enumeration: Vec<Value>,
    pattern: Option<Pattern>,
    min_length: Option<usize>,
    max_length: Option<usize>,
    minimum: Option<f64>,
    maximum: Option<f64>,
    multiple_of: Option<f64>,
    items: Option<Box<Node>>,
    min_items: Option<usize>,
    max_items: Option<usize>,
    /// The keys of the items, if no two items may have the same.
    keys: Vec<String>,
    properties: BTreeMap<String, Node>,
    /// The schema of all other fields.
    additional: Option<Box<Node>>,
    max_properties: Option<usize>,
    required: Vec<String>,
    rules: Vec<Rule>,
    /// Whether it has rules, itself or anywhere inside.
    has_rules: bool,
}

struct Pattern {
    text: String,
    /// `None` if it cannot be read: kube-apiserver refuses such a schema.
    regex: Option<Regex>,
}

const TYPES: [&str; 5] = ["object", "array", "string", "integer", "boolean"];

impl Node {
    fn new(schema: &Value) -> Self {
        let is_true = |key: &str| schema[key] == true;
        let size = |key: &str| {
            schema[key]
                .as_u64()
                .and_then(|size| usize::try_from(size).ok())
        };
        let list = |key: &str| schema[key].as_array().into_iter().flatten();
        let texts = |key: &str| {
            list(key)
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect()
        };
        let boxed = |key: &str| {
            schema
                .get(key)
                .filter(|schema| schema.is_object())
                .map(|schema| Box::new(Node::new(schema)))
        };
        let kind = schema["type"].as_str().unwrap_or_default();
        let own_types = TYPES.into_iter().filter(|name| *name == kind).collect();
        let properties = schema["properties"].as_object().into_iter().flatten();
        let mut node = Node {
            kind: kind.to_owned(),
            types: if is_true("x-kubernetes-int-or-string") {
                vec!["integer", "string"]
            } else {
                own_types
            },
            nullable: is_true("nullable"),
            preserves_unknown: is_true("x-kubernetes-preserve-unknown-fields"),
            default: schema
                .get("default")
                .filter(|default| !default.is_null())
                .cloned(),
            is_time: schema["format"] == "date-time",
            enumeration: schema["enum"].as_array().cloned().unwrap_or_default(),
            pattern: schema["pattern"].as_str().map(Pattern::new),
            min_length: size("minLength"),
            max_length: size("maxLength"),
            minimum: schema["minimum"].as_f64(),
            maximum: schema["maximum"].as_f64(),
            multiple_of: schema["multipleOf"].as_f64(),
            items: boxed("items"),
            min_items: size("minItems"),
            max_items: size("maxItems"),
            keys: texts("x-kubernetes-list-map-keys"),
            properties: properties
                .map(|(name, schema)| (name.clone(), Node::new(schema)))
                .collect(),
            additional: boxed("additionalProperties"),
            max_properties: size("maxProperties"),
            required: texts("required"),
            rules: list("x-kubernetes-validations").map(Rule::new).collect(),
            has_rules: false,
        };
        node.has_rules = !node.rules.is_empty() || node.parts().any(|part| part.has_rules);
        node
    }

    fn parts(&self) -> impl Iterator<Item = &Node> {
        self.properties
            .values()
            .chain(self.items.as_deref())
            .chain(self.additional.as_deref())
    }

    /// The schema of a field.
    fn field(&self, name: &str) -> Option<&Node> {
        self.properties.get(name).or(self.additional.as_deref())
    }

    /// The item of the list `old` with the keys of `item`, if this is the schema of a list with
    /// keys.
    fn item_like<'a>(&self, item: &Value, old: &'a Value) -> Option<&'a Value> {
        if self.keys.is_empty() {
            return None;
        }
        let has_keys = |old: &&Value| {
            self.keys.iter().all(|key| {
                item.get(key)
                    .is_some_and(|value| old.get(key) == Some(value))
            })
        };
        old.as_array()?.iter().find(has_keys)
    }
}

impl Pattern {
    /// In Go, `\s` means spaces in ASCII. Our patterns have no other class that Rust understands in
    /// another way.
    fn new(text: &str) -> Self {
        Pattern {
            text: text.to_owned(),
            regex: Regex::new(&text.replace("\\s", "[\\t\\n\\f\\r ]")).ok(),
        }
    }
}

//! Paths of fields, as `fieldsV1` and messages write them.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::super::lists::{List, ListType};

/// A step from a value to one inside of it, in the order of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    Field(String),
    /// An item of a list, by its keys.
    Key(Vec<(String, Literal)>),
    /// An item of a set.
    Item(Literal),
}

/// A value that identifies an item, in the order of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Literal {
    Number(i64),
    Text(String),
    Boolean(bool),
    /// The JSON of a value that is no sensible key.
    Other(String),
}

pub type Path = Vec<Element>;
pub type Set = BTreeSet<Path>;

impl From<&Value> for Literal {
    fn from(value: &Value) -> Self {
        match value {
            Value::String(text) => Self::Text(text.clone()),
            Value::Bool(value) => Self::Boolean(*value),
            Value::Number(number) => number
                .as_i64()
                .map_or_else(|| Self::Other(number.to_string()), Self::Number),
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
                text.replace('<', "\\u003c")
                    .replace('>', "\\u003e")
                    .replace('&', "\\u0026")
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
    pub fn of_item(list: &List, item: &Value) -> Result<Self, String> {
        match &list.list_type {
            ListType::Atomic => Err("invalid indexing of non-associative list".to_owned()),
            ListType::Set => match item {
                Value::Object(_) => {
                    Err("associative list without keys has an element that's a map type".to_owned())
                }
                Value::Array(_) => {
                    Err("not supported: associative list with lists as elements".to_owned())
                }
                Value::Null => Err(
                    "associative list without keys has an element that's an explicit null"
                        .to_owned(),
                ),
                scalar => Ok(Self::Item(scalar.into())),
            },
            ListType::Map(keys) => Self::of_keys(keys, item),
        }
    }

    fn of_keys(keys: &[(String, Option<Value>)], item: &Value) -> Result<Self, String> {
        let fields = match item {
            Value::Object(fields) => fields,
            Value::Null => {
                return Err("associative list with keys may not have a null element".to_owned());
            }
            _ => return Err("associative list with keys may not have non-map elements".to_owned()),
        };
        let value = |(key, default): &(String, Option<Value>)| {
            fields
                .get(key)
                .or(default.as_ref())
                .map(|value| (key.clone(), value.into()))
        };
        let mut found: Vec<(String, Literal)> = keys.iter().filter_map(value).collect();
        if found.is_empty() {
            let names = keys
                .iter()
                .map(|(key, _)| format!("{key:?}"))
                .collect::<Vec<_>>()
                .join(" ");
            return Err(format!(
                "associative list with keys has an element that omits all key fields [{names}] \
                 (and doesn't have default values for any key fields)"
            ));
        }
        found.sort();
        Ok(Self::Key(found))
    }

    /// As messages print it.
    pub fn print(&self) -> String {
        match self {
            Self::Field(name) => format!(".{name}"),
            Self::Key(keys) => {
                let keys: Vec<String> = keys
                    .iter()
                    .map(|(key, value)| format!("{key}={}", value.print()))
                    .collect();
                format!("[{}]", keys.join(","))
            }
            Self::Item(value) => format!("[={}]", value.print()),
        }
    }

    /// As `fieldsV1` has it.
    fn encode(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(keys) => {
                let keys: Vec<String> = keys
                    .iter()
                    .map(|(key, value)| format!("{}:{}", json!(key), value.to_json()))
                    .collect();
                format!("k:{{{}}}", keys.join(","))
            }
            Self::Item(value) => format!("v:{}", value.to_json()),
        }
    }

    fn decode(text: &str) -> Option<Self> {
        let (kind, text) = text.split_once(':')?;
        match kind {
            "f" => Some(Self::Field(text.to_owned())),
            "k" => {
                let fields: Map<String, Value> = serde_json::from_str(text).ok()?;
                let mut keys: Vec<_> = fields
                    .iter()
                    .map(|(key, value)| (key.clone(), value.into()))
                    .collect();
                keys.sort();
                Some(Self::Key(keys))
            }
            "v" => Some(Self::Item(
                (&serde_json::from_str::<Value>(text).ok()?).into(),
            )),
            _ => None,
        }
    }
}

pub fn print_path(path: &[Element]) -> String {
    path.iter().map(Element::print).collect()
}

/// The paths of a set as `fieldsV1`.
pub fn encode_set(set: &Set) -> Value {
    encode_paths(&set.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

fn encode_paths(paths: &[&[Element]]) -> Value {
    let mut fields = Map::new();
    for group in paths.chunk_by(|one, other| one.first() == other.first()) {
        match group.first().and_then(|path| path.first()) {
            // A path that ends here says that the field belongs to the set, next to what it holds.
            None if paths.len() > 1 => drop(fields.insert(".".to_owned(), json!({}))),
            None => {}
            Some(element) => {
                let rest: Vec<&[Element]> = group.iter().map(|path| &path[1..]).collect();
                fields.insert(element.encode(), encode_paths(&rest));
            }
        }
    }
    Value::Object(fields)
}

/// The paths in `fieldsV1`.
pub fn decode_set(fields: &Value) -> Set {
    let mut set = Set::new();
    decode_paths(fields, &mut Path::new(), &mut set);
    set
}

fn decode_paths(fields: &Value, path: &mut Path, set: &mut Set) {
    let children = || fields.as_object().into_iter().flatten();
    let is_member =
        fields.get(".").is_some() || children().all(|(name, _)| Element::decode(name).is_none());
    if is_member && !path.is_empty() {
        set.insert(path.clone());
    }
    for (name, child) in children() {
        if let Some(element) = Element::decode(name) {
            path.push(element);
            decode_paths(child, path, set);
            path.pop();
        }
    }
}

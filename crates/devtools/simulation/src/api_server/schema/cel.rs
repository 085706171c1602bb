//! Values as the rules of a schema see them.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use kube_cel::cel::objects::{Key, Map};
use kube_cel::cel::{Context, Program, Value as Cel};
use serde_json::Value;

use super::{Additional, Node};

const RESERVED: &str = "true false null in as break const continue else for function if import let loop package namespace \
                        return var void while";

static TO_TIME: LazyLock<Option<Program>> = LazyLock::new(|| Program::compile("timestamp(text)").ok());
static TO_DURATION: LazyLock<Option<Program>> = LazyLock::new(|| Program::compile("duration(text)").ok());

/// A value of a schema: fields that the schema does not have are absent, and so are those that are null.
pub fn convert(node: &Node, value: &Value, is_resource: bool, functions: &Context) -> Cel {
    match value {
        Value::Object(object) => {
            let entries = object.iter().filter_map(|(key, value)| entry(node, key, value, is_resource, functions));
            map(entries.collect())
        }
        Value::Array(items) => {
            let items = items.iter().map(|item| match &node.items {
                Some(node) => convert(node, item, node.is_embedded, functions),
                None => plain(item),
            });
            Cel::List(Arc::new(items.collect()))
        }
        Value::String(text) if !node.is_int_or_string => convert_text(node, text, functions),
        Value::Number(number) if node.kind == "number" => Cel::Float(number.as_f64().unwrap_or(f64::NAN)),
        value => plain(value),
    }
}

/// What kube-apiserver says instead of checking rules on a value of another type: an update may keep such a value.
pub fn mismatch(node: &Node, value: &Value) -> Option<String> {
    let got = match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    };
    let fits = match node.kind.as_str() {
        _ if node.is_int_or_string => got == "string" || got == "int64",
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => got == "int64",
        "number" => value.is_number(),
        _ => true,
    };
    let expected = match node.kind.as_str() {
        _ if fits => return None,
        "object" => "a map for the provided schema with type=object".to_owned(),
        "array" => "an array for the provided schema with type=array".to_owned(),
        "string" => format!("string, got {got}"),
        "boolean" => format!("bool, got {got}"),
        "integer" => format!("int, got {got}"),
        "number" => format!("float, got {got}"),
        _ => "XIntOrString value to be either a string or integer".to_owned(),
    };
    Some(format!("invalid data, expected {expected}"))
}

fn entry(node: &Node, key: &str, value: &Value, is_resource: bool, functions: &Context) -> Option<(Key, Cel)> {
    let is_object = is_resource || !node.properties.is_empty();
    if is_object && value.is_null() {
        return None;
    }
    let value = match key {
        // Rules see the name of an object, and nothing else of its metadata.
        "metadata" if is_resource => {
            let name = |key| Some((key_of(key), plain(value.get(key)?)));
            map(["name", "generateName"].into_iter().filter_map(name).collect())
        }
        "apiVersion" | "kind" if is_resource => plain(value),
        key => match (node.properties.get(key), &node.additional) {
            (Some(node), _) => convert(node, value, node.is_embedded, functions),
            (None, Some(Additional::Of(node))) if !is_object => convert(node, value, node.is_embedded, functions),
            (None, _) if !is_object => plain(value),
            (None, _) => return None,
        },
    };
    Some((if is_object { key_of(&escape(key)) } else { key_of(key) }, value))
}

fn convert_text(node: &Node, text: &str, functions: &Context) -> Cel {
    let evaluate = |program: Option<&Program>, text: &str| {
        let mut context = functions.new_inner_scope();
        context.add_variable_from_value("text", text.to_owned());
        program.and_then(|program| program.execute(&context).ok())
    };
    let converted = match node.format.as_deref() {
        Some("date-time") => evaluate(TO_TIME.as_ref(), text),
        Some("date") => evaluate(TO_TIME.as_ref(), &format!("{text}T00:00:00Z")),
        Some("duration") => evaluate(TO_DURATION.as_ref(), text),
        Some("byte") => data_encoding::BASE64.decode(text.as_bytes()).ok().map(|bytes| Cel::Bytes(Arc::new(bytes))),
        _ => None,
    };
    converted.unwrap_or_else(|| Cel::String(Arc::new(text.to_owned())))
}

/// A value without a schema.
fn plain(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(value) => Cel::Bool(*value),
        Value::Number(number) => number.as_i64().map_or_else(|| Cel::Float(number.as_f64().unwrap_or(f64::NAN)), Cel::Int),
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(plain).collect())),
        Value::Object(object) => map(object.iter().map(|(key, value)| (key_of(key), plain(value))).collect()),
    }
}

fn map(entries: HashMap<Key, Cel>) -> Cel {
    Cel::Map(Map { map: Arc::new(entries) })
}

fn key_of(key: &str) -> Key {
    Key::String(Arc::new(key.to_owned()))
}

/// How rules write the name of a field.
fn escape(name: &str) -> String {
    if RESERVED.split_whitespace().any(|word| word == name) {
        return format!("__{name}__");
    }
    let name = name.replace("__", "__underscores__");
    name.replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__")
}

//! The patches of an API server: what each makes of an object. `apply` has the fourth kind,
//! server-side apply.

mod json;
mod merge;
mod strategic;

use serde_json::Value;

use super::{
    failure::Failure,
    lists::Lists,
    request::{PatchType, Request},
};

/// The change that a request describes.
pub fn change_of(request: &Request) -> Result<Value, Failure> {
    serde_json::from_slice(&request.body)
        .map_err(|error| Failure::bad_request(format!("error decoding patch: {error}")))
}

/// Returns the patched object.
pub fn patched(
    kind: Option<PatchType>,
    lists: &Lists,
    mut object: Value,
    change: &Value,
) -> Result<Value, Failure> {
    match kind {
        Some(PatchType::Json) => json::apply(object, change),
        Some(PatchType::Strategic) => strategic::apply(lists, object, change),
        _ if change.is_null() => Err(Failure::bad_request("Invalid JSON Patch")),
        _ if !change.is_object() => Err(Failure::bad_request(
            "error decoding patch: json: cannot unmarshal into Go value of type map[string]interface {}",
        )),
        _ => {
            merge::apply(&mut object, change);
            Ok(object)
        }
    }
}

/// The value as Go prints it with `%v`.
pub fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!(
            "[{}]",
            items.iter().map(go_text).collect::<Vec<_>>().join(" ")
        ),
        Value::Object(fields) => {
            let mut texts: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{name}:{}", go_text(value)))
                .collect();
            texts.sort();
            format!("map[{}]", texts.join(" "))
        }
        other => other.to_string(),
    }
}

/// The name of a type in messages of Go's JSON package.
fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

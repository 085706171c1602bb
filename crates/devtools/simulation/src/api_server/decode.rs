//! Reading an object from a request.

use serde_json::{Map, Value, json};

use super::{failure::Failure, kinds::Kind, known_fields, request::Request};

pub fn name_of(object: &Value) -> String {
    object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Checks kind and namespace, and drops what the kind does not know.
pub fn decode(request: &Request, mut object: Value) -> Result<Value, Failure> {
    let given = object.clone();
    let unknown = read(request, &mut object)?;
    if !request.kind.is_custom() {
        restore_empty_lists(&given, &mut object);
    }
    if request.parameter("fieldValidation") == Some("Strict") && !unknown.is_empty() {
        let texts: Vec<String> = unknown
            .iter()
            .map(|path| format!("unknown field \"{path}\""))
            .collect();
        return Err(unfit(
            &request.kind,
            &format!("strict decoding error: {}", texts.join(", ")),
        ));
    }
    Ok(object)
}

fn unfit(kind: &Kind, why: &str) -> Failure {
    let (name, version) = (&kind.kind, &kind.version);
    Failure::bad_request(format!(
        "{name} in version \"{version}\" cannot be handled as a {name}: {why}"
    ))
}

/// As [`decode`], for what a patch made of an object.
pub fn decode_patched(request: &Request, object: Value) -> Result<Value, Failure> {
    decode(request, object).map_err(|failure| {
        let is_of_object =
            failure.reason == "Invalid" || failure.message.starts_with("the namespace of");
        if is_of_object {
            failure
        } else {
            Failure::unfit_result(&failure.message)
        }
    })
}

/// Puts empty lists back where Go writes null for none: they belong to their manager until the
/// object is stored.
fn restore_empty_lists(given: &Value, object: &mut Value) {
    match (given, object) {
        (Value::Object(given), Value::Object(object)) => {
            for (name, value) in given {
                match object.get_mut(name) {
                    Some(field) if field.is_null() && *value == json!([]) => *field = json!([]),
                    Some(field) => restore_empty_lists(value, field),
                    None => {}
                }
            }
        }
        (Value::Array(given), Value::Array(items)) => {
            given
                .iter()
                .zip(items)
                .for_each(|(given, item)| restore_empty_lists(given, item));
        }
        _ => {}
    }
}

/// Writes null for empty lists of a kind of Kubernetes, as the storage does.
pub fn forget_empty_lists(kind: &Kind, object: &mut Value) {
    if kind.is_custom() || kind.is("apiextensions.k8s.io", "CustomResourceDefinition") {
        return;
    }
    match object {
        Value::Array(items) if items.is_empty() => *object = Value::Null,
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| forget_empty_lists(kind, item)),
        Value::Object(fields) => fields
            .values_mut()
            .for_each(|field| forget_empty_lists(kind, field)),
        _ => {}
    }
}

/// Checks and prunes an object, and returns the paths of the fields that go.
fn read(request: &Request, object: &mut Value) -> Result<Vec<String>, Failure> {
    let kind = &request.kind;
    check_kind(kind, object)?;
    if kind.is_custom() && object["kind"].is_null() {
        return Err(Failure::bad_request("the object has no kind"));
    }
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    let pruned = known_fields::prune((&kind.kind, &kind.group), object);
    if let Some(error) = pruned.error {
        return Err(unfit(kind, &error));
    }
    let mut unknown = pruned.unknown;
    if let Some(schema) = &kind.schema {
        unknown.extend(schema.prune(object));
    }
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    if kind.namespaced && !namespace.is_empty() && namespace != request.namespace {
        return Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if kind.namespaced {
        object["metadata"]["namespace"] = json!(request.namespace);
    } else if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("namespace");
    }
    object["kind"] = json!(kind.kind);
    object["apiVersion"] = json!(kind.api_version());
    Ok(unknown)
}

pub fn check_kind(kind: &Kind, object: &Value) -> Result<(), Failure> {
    if !object.is_object() {
        return Err(Failure::bad_request("the body is no object"));
    }
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let (version, name) = (text("apiVersion"), text("kind"));
    let expected = kind.api_version();
    if (version == expected || version.is_empty()) && (name == kind.kind || name.is_empty()) {
        return Ok(());
    }
    Err(Failure::bad_request(format!(
        "{name} in version \"{version}\" cannot be handled as a {}",
        kind.kind
    )))
}

/// Whether two objects are the same but for the managers of their fields.
pub fn differ_in_managers_only<'a>(one: &'a Value, other: &'a Value) -> bool {
    let (Some(one), Some(other)) = (one.as_object(), other.as_object()) else {
        return one == other;
    };
    let metadata =
        |object: &'a Map<String, Value>| object.get("metadata").and_then(Value::as_object);
    let (Some(own), Some(others)) = (metadata(one), metadata(other)) else {
        return one == other;
    };
    are_equal_but(one, other, "metadata") && are_equal_but(own, others, "managedFields")
}

fn are_equal_but(one: &Map<String, Value>, other: &Map<String, Value>, without: &str) -> bool {
    let is_compared = |(field, _): &(&String, &Value)| field.as_str() != without;
    one.iter()
        .filter(is_compared)
        .eq(other.iter().filter(is_compared))
}

//! Reading an object from a request.

use serde_json::{Value, json};

use super::{
    failure::Failure,
    kinds::{Kind, Kinds},
    known_fields,
    request::Request,
    state::State,
};

pub fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// Checks kind and namespace, and drops what the kind does not know: the answer will warn of it, or the request is refused.
pub fn decode(state: &mut State, request: &Request, mut object: Value) -> Result<Value, Failure> {
    let given = object.clone();
    let unknown = read(&state.kinds, request, &mut object)?;
    if !request.kind.is_custom() {
        restore_empty_lists(&given, &mut object);
    }
    match request.parameter("fieldValidation") {
        Some("Strict") if !unknown.is_empty() => {
            let texts: Vec<String> = unknown.iter().map(|path| format!("unknown field \"{path}\"")).collect();
            return Err(unfit(&request.kind, &format!("strict decoding error: {}", texts.join(", "))));
        }
        None | Some("Warn") => state.unknown_fields = unknown,
        Some(_) => {}
    }
    Ok(object)
}

/// A custom kind must be named.
fn unrecognized(kind: &Kind, object: &Value) -> Failure {
    const SHOWN: usize = 30;
    let text = object.to_string();
    let start = text.char_indices().nth(SHOWN).map(|(end, _)| format!("{} ...", &text[..end]));
    let start = start.as_ref().unwrap_or(&text);
    let missing = format!("Object 'Kind' is missing in '{text}' ({start})");
    Failure::bad_request(format!("the object provided is unrecognized (must be of type {}): {missing}", kind.kind))
}

fn unfit(kind: &Kind, why: &str) -> Failure {
    let (name, version) = (&kind.kind, &kind.version);
    Failure::bad_request(format!("{name} in version \"{version}\" cannot be handled as a {name}: {why}"))
}

/// As [`decode`], for what a patch made of an object. `shown` is the result or the patch, as a refusal shows it.
pub fn decode_patched(state: &mut State, request: &Request, object: Value, shown: &str) -> Result<Value, Failure> {
    decode(state, request, object).map_err(|failure| {
        let is_of_object = failure.reason == "Invalid" || failure.message.starts_with("the namespace of");
        if is_of_object { failure } else { Failure::unfit_result(shown, &failure.message) }
    })
}

/// Puts empty lists back where Go writes null for none: they belong to their manager until the object is stored.
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
            given.iter().zip(items).for_each(|(given, item)| restore_empty_lists(given, item));
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
        Value::Array(items) => items.iter_mut().for_each(|item| forget_empty_lists(kind, item)),
        Value::Object(fields) => fields.values_mut().for_each(|field| forget_empty_lists(kind, field)),
        _ => {}
    }
}

/// Checks and prunes an object, and returns the paths of the fields that go.
fn read(kinds: &Kinds, request: &Request, object: &mut Value) -> Result<Vec<String>, Failure> {
    let kind = &request.kind;
    check_kind(kinds, kind, object)?;
    if kind.is_custom() && object["kind"].is_null() {
        return Err(unrecognized(kind, object));
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
        metadata.shift_remove("namespace");
    }
    object["kind"] = json!(kind.kind);
    object["apiVersion"] = json!(kind.api_version());
    Ok(unknown)
}

pub fn check_kind(kinds: &Kinds, kind: &Kind, object: &Value) -> Result<(), Failure> {
    if !object.is_object() {
        return Err(Failure::bad_request(
            "couldn't get version/kind; json parse error: json: cannot unmarshal into Go value of type struct",
        ));
    }
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    let (version, name) = (text("apiVersion"), text("kind"));
    let expected = kind.api_version();
    if (version == expected || version.is_empty()) && (name == kind.kind || name.is_empty()) {
        return Ok(());
    }
    let (group, number) = version.split_once('/').unwrap_or(("", &version));
    if !kind.is_custom() && !kinds.has_group_version(group, number) {
        return Err(Failure::bad_request(format!(
            "{name} in version \"{number}\" cannot be handled as a {}: no kind \"{name}\" is registered for version \
             \"{version}\" in scheme \"pkg/runtime/scheme.go:110\"",
            kind.kind
        )));
    }
    if version != expected {
        return Err(Failure::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({expected})"
        )));
    }
    if kind.is_custom() {
        let why = format!("Invalid value: \"{name}\": must be {}", kind.kind);
        let given = Kind { kind: name, ..kind.clone() };
        return Err(Failure::invalid(&given, &name_of(object), &[("FieldValueInvalid", why, "kind".to_owned())]));
    }
    let why = if kinds.has_kind(&kind.group, &name) {
        format!("converting (v1.{name}) to (core.{}): unknown conversion", kind.kind)
    } else {
        format!("no kind \"{name}\" is registered for version \"{version}\" in scheme \"pkg/runtime/scheme.go:110\"")
    };
    Err(Failure::bad_request(format!("{name} in version \"{}\" cannot be handled as a {}: {why}", kind.version, kind.kind)))
}

pub fn without_managed_fields(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.shift_remove("managedFields");
    }
    object
}

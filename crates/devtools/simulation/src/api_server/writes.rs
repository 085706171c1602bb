//! Changing objects: create, update, patch and apply.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    User,
    apply::{self, Manager},
    cause::Cause,
    decode::{
        check_kind, decode, decode_patched, differ_in_managers_only, forget_empty_lists, name_of,
    },
    defaults,
    failure::Failure,
    kinds::Kind,
    known_fields, patch, reads,
    request::{PatchType, Request, Verb},
    rules,
    state::{State, key},
};

pub type Answer = Result<(StatusCode, Arc<Value>), Failure>;

/// Kinds whose objects an update creates if there are none.
const CREATED_BY_UPDATES: [&str; 10] = [
    "Lease",
    "Event",
    "LimitRange",
    "Role",
    "RoleBinding",
    "ClusterRole",
    "ClusterRoleBinding",
    "Endpoints",
    "RuntimeClass",
    "Service",
];
/// Longest part of a generated name before the random characters.
const MAX_GENERATED_BASE: usize = 58;

/// Creates an object. `namespaces "x" not found` and the like come first, as in a real API server.
pub fn create(state: &mut State, user: &User, request: &Request) -> Answer {
    let object = decode(request, request.object()?)?;
    create_decoded(state, user, request, object, "Update")
}

fn create_decoded(
    state: &mut State,
    user: &User,
    request: &Request,
    mut object: Value,
    operation: &str,
) -> Answer {
    let kind = &request.kind;
    rules::complete(kind, &mut object);
    if operation == "Update" {
        track(state, request, None, &mut object);
    }
    forget_empty_lists(kind, &mut object);
    namespace_is_open(state, request, &object)?;
    if kind.is("", "Pod") {
        give_account(state, request, &mut object)?;
    }
    name_it(state, &mut object);
    let version = object["metadata"]["resourceVersion"]
        .as_str()
        .and_then(|text| text.parse::<u64>().ok());
    let has_version = request.verb == Verb::Create && version.is_some_and(|version| version > 0);
    let causes = rules::of_creation(state, user, kind, &mut object);
    let name = name_of(&object);
    refuse(kind, &name, &causes)?;
    if operation == "Update" && has_version && request.parameter("dryRun").is_none() {
        return Err(Failure::internal(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    if let Some(other) = state.get(kind, &request.namespace, &name) {
        let is_ending = !other["metadata"]["deletionTimestamp"].is_null();
        return Err(Failure::already_exists(kind, &name, is_ending));
    }
    if request.parameter("dryRun").is_some() {
        return Ok((StatusCode::CREATED, Arc::new(object)));
    }
    Ok((
        StatusCode::CREATED,
        state.put(key(kind, &request.namespace, &name), object),
    ))
}

fn name_it(state: &mut State, object: &mut Value) {
    let base = object["metadata"]["generateName"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    if name_of(object).is_empty() && !base.is_empty() {
        let base: String = base.chars().take(MAX_GENERATED_BASE).collect();
        object["metadata"]["name"] = json!(format!("{base}{}", state.suffix()));
    }
}

/// Nothing is created in a namespace that does not exist or ends.
pub fn namespace_is_open(state: &State, request: &Request, object: &Value) -> Result<(), Failure> {
    if !request.kind.namespaced {
        return Ok(());
    }
    let namespaces = state
        .kinds
        .get("", "v1", "namespaces")
        .ok_or_else(Failure::no_such_resource)?;
    let namespace = state.get(&namespaces, "", &request.namespace);
    let namespace = namespace.ok_or_else(|| Failure::not_found(&namespaces, &request.namespace))?;
    if namespace["metadata"]["deletionTimestamp"].is_null() {
        return Ok(());
    }
    let name = &request.namespace;
    let why =
        format!("unable to create new content in namespace {name} because it is being terminated");
    let cause = json!({ "reason": "NamespaceTerminating", "message": format!("namespace {name} is being terminated"), "field": "metadata.namespace" });
    Err(Failure::forbidden(&request.kind, admitted_name(object), &why).with_causes(&[cause]))
}

/// The name of an object in refusals that come before it gets a generated one.
fn admitted_name(object: &Value) -> &str {
    let known = [
        &object["metadata"]["name"],
        &object["metadata"]["generateName"],
    ];
    known
        .into_iter()
        .filter_map(Value::as_str)
        .find(|name| !name.is_empty())
        .unwrap_or("Unknown")
}

/// Gives a pod what its service account has.
fn give_account(state: &mut State, request: &Request, pod: &mut Value) -> Result<(), Failure> {
    let account = account_of(state, request, pod)?;
    let suffix = state.suffix();
    pod["spec"]["serviceAccountName"] = account["metadata"]["name"].clone();
    defaults::mount_service_account(pod, &account, &suffix);
    Ok(())
}

/// The service account of a pod.
fn account_of(state: &State, request: &Request, pod: &Value) -> Result<Arc<Value>, Failure> {
    let accounts = state
        .kinds
        .get("", "v1", "serviceaccounts")
        .ok_or_else(Failure::no_such_resource)?;
    let name = pod["spec"]["serviceAccountName"]
        .as_str()
        .filter(|name| !name.is_empty())
        .unwrap_or("default");
    state
        .get(&accounts, &request.namespace, name)
        .ok_or_else(|| {
            let why = format!(
                "error looking up service account {}/{name}: serviceaccount \"{name}\" not found",
                request.namespace
            );
            Failure::forbidden(&request.kind, admitted_name(pod), &why)
        })
}

fn refuse(kind: &Kind, name: &str, causes: &[Cause]) -> Result<(), Failure> {
    if causes.is_empty() {
        return Ok(());
    }
    Err(Failure::invalid(kind, name, causes))
}

/// Records whose fields these are: those that the request can change.
pub fn track(state: &State, request: &Request, old: Option<&Value>, new: &mut Value) {
    let (name, version, time) = (
        request.field_manager(),
        request.kind.api_version(),
        state.now_text(),
    );
    let manager = Manager {
        name: &name,
        subresource: &request.subresource,
        api_version: &version,
        time: &time,
    };
    let old = old.map(|old| rules::changeable(&request.kind, &request.subresource, old));
    let mut tracked = rules::changeable(&request.kind, &request.subresource, new);
    apply::track_update(&request.kind.lists, old.as_ref(), &mut tracked, &manager);
    if request.kind.kind == "Event" {
        forget_other_groups(&version, &mut tracked);
    }
    rules::put(
        &mut new["metadata"],
        "managedFields",
        tracked["metadata"]["managedFields"].take(),
    );
}

/// Managers that wrote an event in the other group are lost.
fn forget_other_groups(version: &str, event: &mut Value) {
    if let Some(managers) = event["metadata"]
        .get_mut("managedFields")
        .and_then(Value::as_array_mut)
    {
        managers.retain(|manager| manager["apiVersion"] == version);
    }
}

/// Replaces an object.
pub fn update(state: &mut State, user: &User, request: &Request) -> Answer {
    let object = decode(request, request.object()?)?;
    let name = name_of(&object);
    if name.is_empty() || name != request.name {
        return Err(Failure::bad_request(if name.is_empty() {
            format!(
                "the name of the object ({} based on URL) was undeterminable: name must be provided",
                request.name
            )
        } else {
            format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                request.name
            )
        }));
    }
    let Some(old) = state.get(&request.kind, &request.namespace, &request.name) else {
        if CREATED_BY_UPDATES.contains(&request.kind.kind.as_str()) {
            check_uid(request, &Value::Null, &object["metadata"])?;
            return create_decoded(state, user, request, object, "Update");
        }
        return Err(Failure::not_found(&request.kind, &request.name));
    };
    replace(state, request, &old, object, "Update")
}

/// Whether an update without a version is refused.
fn needs_version(kind: &Kind) -> bool {
    kind.is_custom()
        || kind.kind.ends_with("WebhookConfiguration")
        || [
            ("coordination.k8s.io", "Lease"),
            ("node.k8s.io", "RuntimeClass"),
            ("policy", "PodDisruptionBudget"),
        ]
        .iter()
        .any(|(group, name)| kind.is(group, name))
}

/// Checks the version and the uid that an update names.
fn check_preconditions(request: &Request, old: &Value, new: &Value) -> Result<(), Failure> {
    let kind = &request.kind;
    let (before, after) = (&old["metadata"], &new["metadata"]);
    let version = after["resourceVersion"].as_str().unwrap_or_default();
    if request.patch_type.is_none() {
        check_uid(request, before, after)?;
    }
    if version.is_empty() || version == "0" {
        if needs_version(kind) && request.patch_type.is_none() {
            return Err(Failure::lacks_version(kind, &request.name));
        }
        return Ok(());
    }
    if before["resourceVersion"] != *version {
        return Err(Failure::was_changed(kind, &request.name));
    }
    Ok(())
}

/// The uid that an update names must be that of the object, also if there is none.
fn check_uid(request: &Request, before: &Value, after: &Value) -> Result<(), Failure> {
    let Some(uid) = after["uid"]
        .as_str()
        .filter(|uid| !uid.is_empty() && before["uid"] != **uid)
    else {
        return Ok(());
    };
    Err(Failure::conflict(
        &request.kind,
        &request.name,
        &format!("the uid is not {uid}"),
    ))
}

/// Stores the new state of an object that exists.
fn replace(
    state: &mut State,
    request: &Request,
    old: &Arc<Value>,
    mut new: Value,
    operation: &str,
) -> Answer {
    let kind = &request.kind;
    check_preconditions(request, old, &new)?;
    let old = &reads::as_requested(kind, old);
    new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
    rules::complete(kind, &mut new);
    if operation == "Update" {
        track(state, request, Some(old), &mut new);
    }
    forget_empty_lists(kind, &mut new);
    let causes = if request.subresource.is_empty() {
        rules::of_update(state, kind, old, &mut new)
    } else {
        rules::of_subresource(kind, &request.subresource, old, &mut new, &state.now_text())
    };
    refuse(kind, &request.name, &causes)?;
    if request.subresource == "ephemeralcontainers" {
        account_of(state, request, &new)?;
    }
    new = stored_form(kind, new);
    let old = &if kind.is_converted() {
        Arc::new(stored_form(kind, (**old).clone()))
    } else {
        old.clone()
    };
    let is_same = differ_in_managers_only(old, &new)
        && same_owners(
            &old["metadata"]["managedFields"],
            &new["metadata"]["managedFields"],
        );
    if is_same {
        return Ok((StatusCode::OK, old.clone()));
    }
    if request.parameter("dryRun").is_some() {
        return Ok((StatusCode::OK, Arc::new(new)));
    }
    let key = key(kind, &request.namespace, &request.name);
    if is_released(kind, &new) {
        // The answer has the version from before, but watches see that of the deletion.
        let answer = Arc::new(new.clone());
        state.remove(key, new);
        return Ok((StatusCode::OK, answer));
    }
    Ok((StatusCode::OK, state.put(key, new)))
}

/// The object as it is stored, whichever group the request names.
fn stored_form(kind: &Kind, mut object: Value) -> Value {
    if kind.is_converted() {
        defaults::convert_event(kind.home_group(), &mut object);
        known_fields::prune((&kind.kind, kind.home_group()), &mut object);
    }
    object
}

/// Whether both name the same owners of the same fields, whenever they wrote.
fn same_owners(before: &Value, after: &Value) -> bool {
    let timeless = |entries: &Value| -> Vec<Value> {
        let mut entries = entries.as_array().cloned().unwrap_or_default();
        entries
            .iter_mut()
            .filter_map(Value::as_object_mut)
            .for_each(|entry| drop(entry.remove("time")));
        entries
    };
    timeless(before) == timeless(after)
}

/// Whether nothing holds an object any more whose deletion was requested.
fn is_released(kind: &Kind, object: &Value) -> bool {
    let metadata = &object["metadata"];
    let has_grace = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) > 0;
    !metadata["deletionTimestamp"].is_null() && !has_finalizers(kind, object) && !has_grace
}

/// Whether something still has to be done before an object goes.
pub fn has_finalizers(kind: &Kind, object: &Value) -> bool {
    let has_some = |finalizers: &Value| {
        finalizers
            .as_array()
            .is_some_and(|finalizers| !finalizers.is_empty())
    };
    has_some(&object["metadata"]["finalizers"])
        || kind.is("", "Namespace") && has_some(&object["spec"]["finalizers"])
}

/// Patches an object.
pub fn patch(state: &mut State, user: &User, request: &Request) -> Answer {
    if request.patch_type == Some(PatchType::Apply) {
        return apply(state, user, request);
    }
    let Some(old) = state.get(&request.kind, &request.namespace, &request.name) else {
        return Err(Failure::not_found(&request.kind, &request.name));
    };
    let change = patch::change_of(request)?;
    let new = patch::patched(
        request.patch_type,
        &request.kind.lists,
        (*reads::as_requested(&request.kind, &old)).clone(),
        &change,
    )?;
    let new = decode_patched(request, new)?;
    if name_of(&new) != request.name {
        return Err(Failure::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            name_of(&new),
            request.name
        )));
    }
    replace(state, request, &old, new, "Update")
}

/// Server-side apply.
fn apply(state: &mut State, user: &User, request: &Request) -> Answer {
    let field_manager = request.parameter("fieldManager").unwrap_or_default();
    let configuration = request.object()?;
    if configuration
        .as_object()
        .is_some_and(serde_json::Map::is_empty)
    {
        return Err(Failure::bad_request("invalid object type: /, Kind="));
    }
    let live = state.get(&request.kind, &request.namespace, &request.name);
    if live.is_none() && !request.subresource.is_empty() && !request.kind.is("", "Service") {
        return Err(Failure::not_found(&request.kind, &request.name));
    }
    let (version, time) = (request.kind.api_version(), state.now_text());
    let manager = Manager {
        name: field_manager,
        subresource: &request.subresource,
        api_version: &version,
        time: &time,
    };
    check_kind(&request.kind, &configuration)?;
    let live = live.map(|live| reads::as_requested(&request.kind, &live));
    let untouched = rules::untouched(&request.kind, &request.subresource);
    let how = apply::How {
        untouched,
        is_forced: request.flag("force"),
    };
    let applied = apply::apply(
        &request.kind.lists,
        live.as_deref(),
        &configuration,
        &manager,
        &how,
    );
    let applied = applied.map_err(|refusal| match refusal {
        apply::Refusal::Conflicts(conflicts) => Failure::apply_conflict(&conflicts),
        apply::Refusal::ManagedFields => Failure::bad_request("metadata.managedFields must be nil"),
        apply::Refusal::Unfit(message) => Failure::internal(message),
    })?;
    let mut applied = decode(request, applied)?;
    if let Some(old) = live {
        return replace(state, request, &old, applied, "Apply");
    }
    applied["metadata"]["name"] = json!(request.name);
    create_decoded(state, user, request, applied, "Apply")
}

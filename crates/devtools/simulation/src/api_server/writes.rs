//! Changing objects: create, update, patch and delete.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    User,
    apply::{self, Manager},
    decode::{check_kind, decode, decode_patched, forget_empty_lists, name_of, without_managed_fields},
    defaults,
    failure::Failure,
    kinds::{Kind, Kinds},
    known_fields, patch, reads,
    request::{PatchType, Request, Verb},
    rules,
    state::{State, key},
    validation,
};

pub type Answer = Result<(StatusCode, Arc<Value>), Failure>;

/// Kinds whose objects an update creates if there are none.
const CREATED_BY_UPDATES: [&str; 9] =
    ["Lease", "Event", "LimitRange", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "Endpoints", "Service"];
/// Longest part of a generated name before the random characters.
const MAX_GENERATED_BASE: usize = 58;

/// Creates an object. `namespaces "x" not found` and the like come first, as in a real API server.
pub fn create(state: &mut State, user: &User, request: &Request) -> Answer {
    let object = decode(&state.kinds, request, request.object()?)?;
    create_decoded(state, user, request, object, "Update")
}

fn create_decoded(state: &mut State, user: &User, request: &Request, mut object: Value, operation: &str) -> Answer {
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
    let version = object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse::<u64>().ok());
    let has_version = request.verb == Verb::Create && version.is_some_and(|version| version > 0);
    let causes = rules::of_creation(state, user, kind, &mut object);
    let name = name_of(&object);
    refuse(kind, &name, causes)?;
    if operation == "Update" && has_version && request.parameter("dryRun").is_none() {
        return Err(Failure::internal("resourceVersion should not be set on objects to be created"));
    }
    if let Some(other) = state.get(kind, &request.namespace, &name) {
        let is_ending = !other["metadata"]["deletionTimestamp"].is_null();
        return Err(Failure::already_exists(kind, &name, is_ending));
    }
    if request.parameter("dryRun").is_some() {
        return Ok((StatusCode::CREATED, Arc::new(object)));
    }
    Ok((StatusCode::CREATED, state.put(key(kind, &request.namespace, &name), object)))
}

fn name_it(state: &mut State, object: &mut Value) {
    let base = object["metadata"]["generateName"].as_str().unwrap_or_default().to_owned();
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
    let namespaces = state.kinds.get("", "v1", "namespaces").ok_or_else(Failure::no_such_resource)?;
    let namespace = state.get(&namespaces, "", &request.namespace);
    let namespace = namespace.ok_or_else(|| Failure::not_found(&namespaces, &request.namespace))?;
    if namespace["metadata"]["deletionTimestamp"].is_null() {
        return Ok(());
    }
    let name = &request.namespace;
    let why = format!("unable to create new content in namespace {name} because it is being terminated");
    let cause = json!([{ "reason": "NamespaceTerminating", "message": format!("namespace {name} is being terminated"), "field": "metadata.namespace" }]);
    let known = [&object["metadata"]["name"], &object["metadata"]["generateName"]];
    let known = known.into_iter().filter_map(Value::as_str).find(|name| !name.is_empty());
    Err(Failure::forbidden(&request.kind, known.unwrap_or("Unknown"), &why).with_causes(cause))
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
    let accounts = state.kinds.get("", "v1", "serviceaccounts").ok_or_else(Failure::no_such_resource)?;
    let name = pod["spec"]["serviceAccountName"].as_str().filter(|name| !name.is_empty()).unwrap_or("default");
    state.get(&accounts, &request.namespace, name).ok_or_else(|| {
        let why = format!("error looking up service account {}/{name}: serviceaccount \"{name}\" not found", request.namespace);
        Failure::forbidden(&request.kind, &name_of(pod), &why)
    })
}

fn refuse(kind: &Kind, name: &str, causes: Vec<validation::Cause>) -> Result<(), Failure> {
    if causes.is_empty() {
        return Ok(());
    }
    let causes: Vec<_> = causes.into_iter().map(|cause| (cause.kind, cause.message, cause.field)).collect();
    Err(Failure::invalid(kind, name, &causes))
}

/// Records whose fields these are: those that the request can change.
pub fn track(state: &State, request: &Request, old: Option<&Value>, new: &mut Value) {
    let (name, version, time) = (request.field_manager(), request.kind.api_version(), state.now_text());
    let manager = Manager { name: &name, subresource: &request.subresource, api_version: &version, time: &time };
    let old = old.map(|old| rules::changeable(&request.kind, &request.subresource, old));
    let mut tracked = rules::changeable(&request.kind, &request.subresource, new);
    apply::track_update(&request.kind.lists, old.as_ref(), &mut tracked, &manager);
    if request.kind.kind == "Event" {
        forget_other_groups(&version, &mut tracked);
    }
    rules::put(&mut new["metadata"], "managedFields", tracked["metadata"]["managedFields"].take());
}

/// Managers that wrote an event in the other group are lost.
fn forget_other_groups(version: &str, event: &mut Value) {
    if let Some(managers) = event["metadata"].get_mut("managedFields").and_then(Value::as_array_mut) {
        managers.retain(|manager| manager["apiVersion"] == version);
    }
}

/// Replaces an object.
pub fn update(state: &mut State, user: &User, request: &Request) -> Answer {
    let object = decode(&state.kinds, request, request.object()?)?;
    let name = name_of(&object);
    if name.is_empty() || name != request.name {
        return Err(Failure::bad_request(if name.is_empty() {
            format!("the name of the object ({} based on URL) was undeterminable: name must be provided", request.name)
        } else {
            format!("the name of the object ({name}) does not match the name on the URL ({})", request.name)
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
            ("discovery.k8s.io", "EndpointSlice"),
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
    let Some(uid) = after["uid"].as_str().filter(|uid| !uid.is_empty() && before["uid"] != **uid) else { return Ok(()) };
    let of_object = before["uid"].as_str().unwrap_or_default();
    let path = request.kind.registry_path(&request.namespace, &request.name);
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: {path}, ResourceVersion: 0, AdditionalErrorMsg: \
         Precondition failed: UID in precondition: {uid}, UID in object meta: {of_object}"
    );
    Err(Failure::conflict(&request.kind, &request.name, &why))
}

/// Stores the new state of an object that exists.
fn replace(state: &mut State, request: &Request, old: &Arc<Value>, mut new: Value, operation: &str) -> Answer {
    let kind = &request.kind;
    check_preconditions(request, old, &new)?;
    let old = &Arc::new(reads::as_requested(kind, old));
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
    refuse(kind, &request.name, causes)?;
    if request.subresource == "ephemeralcontainers" {
        account_of(state, request, &new)?;
    }
    new = stored_form(kind, new);
    let old = &Arc::new(stored_form(kind, (**old).clone()));
    let is_same = without_managed_fields(old) == without_managed_fields(&new)
        && same_owners(&old["metadata"]["managedFields"], &new["metadata"]["managedFields"]);
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
        entries.iter_mut().filter_map(Value::as_object_mut).for_each(|entry| drop(entry.shift_remove("time")));
        entries
    };
    timeless(before) == timeless(after)
}

/// Whether nothing holds an object any more whose deletion was requested.
fn is_released(kind: &Kind, object: &Value) -> bool {
    let metadata = &object["metadata"];
    let is_held = metadata["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
    let has_spec_finalizers =
        kind.is("", "Namespace") && object["spec"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
    let has_grace = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) > 0;
    !metadata["deletionTimestamp"].is_null() && !is_held && !has_spec_finalizers && !has_grace
}

/// What a patch makes of its object, as its kind has it or not.
pub fn patched(state: &State, request: &Request) -> Result<Value, Failure> {
    let Some(old) = state.get(&request.kind, &request.namespace, &request.name) else {
        return Err(Failure::not_found(&request.kind, &request.name));
    };
    let old = reads::as_requested(&request.kind, &old);
    let change = change_of(request)?;
    match request.patch_type {
        Some(PatchType::Json) => patch::json(&old, &change).map_err(rejected),
        Some(PatchType::Strategic) => patch::strategic(&request.kind.group, &request.kind.kind, &old, &change).map_err(rejected),
        _ if change.is_null() => Err(Failure::bad_request("Invalid JSON Patch")),
        _ if !change.is_object() => Err(Failure::bad_request(
            "error decoding patch: json: cannot unmarshal into Go value of type map[string]interface {}",
        )),
        _ => {
            let mut new = old;
            patch::merge(&mut new, &change);
            Ok(new)
        }
    }
}

fn change_of(request: &Request) -> Result<Value, Failure> {
    serde_json::from_slice(&request.body).map_err(|error| Failure::bad_request(format!("error decoding patch: {error}")))
}

/// Patches an object.
pub fn patch(state: &mut State, user: &User, request: &Request) -> Answer {
    if request.patch_type == Some(PatchType::Apply) {
        return apply(state, user, request);
    }
    let new = patched(state, request)?;
    let Some(old) = state.get(&request.kind, &request.namespace, &request.name) else {
        return Err(Failure::not_found(&request.kind, &request.name));
    };
    let is_strategic = request.patch_type == Some(PatchType::Strategic);
    let shown = if is_strategic { patch::go_text(&change_of(request)?) } else { new.to_string() };
    let new = decode_patched(&state.kinds, request, new, &shown)?;
    if name_of(&new) != request.name {
        return Err(Failure::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            name_of(&new),
            request.name
        )));
    }
    replace(state, request, &old, new, "Update")
}

fn rejected(rejection: patch::Rejection) -> Failure {
    match rejection.code {
        400 => Failure::bad_request(rejection.message),
        422 => Failure::unfit_patch(),
        _ => Failure::internal(rejection.message),
    }
}

/// Server-side apply.
fn apply(state: &mut State, user: &User, request: &Request) -> Answer {
    let field_manager = request.parameter("fieldManager").unwrap_or_default();
    let configuration = request.object()?;
    if configuration.as_object().is_some_and(serde_json::Map::is_empty) {
        return Err(Failure::bad_request("invalid object type: /, Kind="));
    }
    let live = state.get(&request.kind, &request.namespace, &request.name);
    if live.is_none() && !request.subresource.is_empty() && !request.kind.is("", "Service") {
        return Err(Failure::not_found(&request.kind, &request.name));
    }
    let (version, time) = (request.kind.api_version(), state.now_text());
    let manager = Manager { name: field_manager, subresource: &request.subresource, api_version: &version, time: &time };
    check_kind(&state.kinds, &request.kind, &configuration)?;
    let live = live.map(|live| Arc::new(reads::as_requested(&request.kind, &live)));
    let untouched = rules::untouched(&request.kind, &request.subresource);
    let how = apply::How { untouched, is_forced: request.flag("force") };
    let applied = apply::apply(&request.kind.lists, live.as_deref(), &configuration, &manager, &how);
    let applied = applied.map_err(|refusal| match refusal {
        apply::Refusal::Conflicts(conflicts) => Failure::apply_conflict(&conflicts),
        apply::Refusal::Invalid(message) if message.starts_with("metadata.managedFields") => Failure::bad_request(message),
        apply::Refusal::Invalid(message) => Failure::internal(message),
    })?;
    let mut applied = decode_applied(&state.kinds, request, applied)?;
    match live {
        Some(old) => replace(state, request, &old, applied, "Apply"),
        None if request.subresource.is_empty() || request.kind.is("", "Service") => {
            applied["metadata"]["name"] = json!(request.name);
            create_decoded(state, user, request, applied, "Apply")
        }
        None => Err(Failure::not_found(&request.kind, &request.name)),
    }
}

/// As [`decode`], for what an apply made of an object.
fn decode_applied(kinds: &Kinds, request: &Request, applied: Value) -> Result<Value, Failure> {
    let (kind, name) = (&request.kind, name_of(&applied));
    let place = if request.namespace.is_empty() { name } else { format!("{}/{name}", request.namespace) };
    decode(kinds, request, applied).map_err(|failure| {
        let prefix = format!("{} in version \"{}\" cannot be handled as a {}: ", kind.kind, kind.version, kind.kind);
        match failure.message.strip_prefix(&prefix) {
            Some(why) if !why.starts_with("strict decoding error") => {
                let typed = format!("{}, Kind={}", kind.api_version(), kind.kind);
                Failure::internal(format!(
                    "failed to convert new object ({place}; {typed}) to proper version: unable to convert unstructured \
                     object to {typed}: {why}"
                ))
            }
            _ => failure,
        }
    })
}

/// The options of a deletion, from the body and the query.
struct DeleteOptions {
    grace_seconds: Option<i64>,
    uid: Option<String>,
    version: Option<String>,
    propagation: Option<String>,
    is_dry_run: bool,
}

impl DeleteOptions {
    fn of(request: &Request) -> Result<Self, Failure> {
        let body: Value = if request.body.is_empty() { json!({}) } else { request.object().map_err(Failure::into_internal)? };
        if !body.is_object() && !body.is_null() {
            return Err(Failure::internal("couldn't get version/kind; json parse error: this is no object"));
        }
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let from_query = |name: &str| request.parameter(name).map(str::to_owned);
        let preconditions = &body["preconditions"];
        let propagation = text(&body["propagationPolicy"]).or_else(|| from_query("propagationPolicy"));
        if let Some(odd) = propagation.as_deref().filter(|policy| !["Foreground", "Background", "Orphan"].contains(policy)) {
            let supported = "\"Foreground\", \"Background\", \"Orphan\", \"nil\"";
            let why = format!("propagationPolicy: Unsupported value: \"{odd}\": supported values: {supported}");
            return Err(Failure::invalid_options("DeleteOptions", &[why]));
        }
        Ok(Self {
            grace_seconds: body["gracePeriodSeconds"]
                .as_i64()
                .or_else(|| request.parameter("gracePeriodSeconds").and_then(|seconds| seconds.parse().ok())),
            uid: text(&preconditions["uid"]),
            version: text(&preconditions["resourceVersion"]),
            propagation,
            is_dry_run: !body["dryRun"].is_null() || request.parameter("dryRun").is_some(),
        })
    }

    fn check(&self, kind: &Kind, name: &str, object: &Value) -> Result<(), Failure> {
        let metadata = &object["metadata"];
        let happened = [("UID", "deleted and then recreated"), ("ResourceVersion", "modified")];
        let named = [(&self.uid, &metadata["uid"]), (&self.version, &metadata["resourceVersion"])];
        for ((what, happened), (wanted, found)) in happened.into_iter().zip(named) {
            let found = found.as_str().unwrap_or_default();
            if let Some(wanted) = wanted.as_deref().filter(|wanted| *wanted != found) {
                let why = format!(
                    "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). \
                     The object might have been {happened}"
                );
                return Err(Failure::precondition(kind, name, &why));
            }
        }
        Ok(())
    }
}

/// Deletes an object, or marks it as ending.
pub fn delete(state: &mut State, request: &Request) -> Answer {
    let options = DeleteOptions::of(request)?;
    delete_named(state, request, &request.name, &options)
}

fn delete_named(state: &mut State, request: &Request, name: &str, options: &DeleteOptions) -> Answer {
    let kind = &request.kind;
    let found = state.get(kind, &request.namespace, name).ok_or_else(|| Failure::not_found(kind, name))?;
    options.check(kind, name, &found)?;
    if kind.is("", "Namespace") && !found["metadata"]["deletionTimestamp"].is_null() {
        let why = "The system is ensuring all content is removed from this namespace.  Upon completion, this namespace will automatically be purged by the system.";
        return Err(Failure::conflict(kind, name, why));
    }
    let mut object = (*found).clone();
    // Jobs had no garbage collector once, and so leave their pods.
    let usual = kind.is("batch", "Job").then_some("Orphan");
    let wanted = options.propagation.as_deref().or(usual);
    // Nothing depends on events.
    add_propagation_finalizer(&mut object, wanted.filter(|_| kind.kind != "Event"));
    let grace = grace_of(kind, &object, options);
    let is_pending = object["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty())
        || (kind.is("", "Namespace") && object["spec"]["finalizers"].as_array().is_some_and(|all| !all.is_empty()));
    let key = key(kind, &request.namespace, name);
    if grace == 0 && !is_pending {
        if kind.is("", "Pod") {
            mark(state, kind, &mut object, 0);
        }
        let last = if options.is_dry_run { Arc::new(object) } else { state.remove(key, object) };
        return Ok((StatusCode::OK, if returns_deleted(kind) { last } else { Arc::new(success(kind, &last)) }));
    }
    mark(state, kind, &mut object, grace);
    if object == *found || options.is_dry_run {
        return Ok((StatusCode::OK, found));
    }
    Ok((StatusCode::OK, state.put(key, object)))
}

/// Kinds whose deletion is answered with the object instead of a Status.
fn returns_deleted(kind: &Kind) -> bool {
    let core = ["Pod", "Service", "ServiceAccount", "ResourceQuota", "PersistentVolume", "PersistentVolumeClaim"];
    kind.group.is_empty() && core.contains(&kind.kind.as_str())
}

fn success(kind: &Kind, object: &Value) -> Value {
    let mut details = json!({ "name": name_of(object) });
    if !kind.group.is_empty() {
        details["group"] = json!(kind.group);
    }
    details["kind"] = json!(kind.plural);
    details["uid"] = object["metadata"]["uid"].clone();
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details })
}

/// Marks an object as ending.
fn mark(state: &State, kind: &Kind, object: &mut Value, grace: i64) {
    let now = state.now();
    let end = now.checked_add(jiff::SignedDuration::from_secs(grace)).unwrap_or(now);
    let metadata = &mut object["metadata"];
    let is_marked = !metadata["deletionTimestamp"].is_null();
    if is_marked && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) <= grace {
        return;
    }
    metadata["deletionTimestamp"] = json!(end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    if !kind.is("", "Namespace") {
        metadata["deletionGracePeriodSeconds"] = json!(grace);
    }
    if let Some(generation) = metadata["generation"].as_i64().filter(|generation| *generation > 0 && !is_marked) {
        metadata["generation"] = json!(generation + 1);
    }
    if kind.is("", "Namespace") {
        object["status"]["phase"] = json!("Terminating");
    }
}

/// Seconds until an object goes: only pods that were bound and still run have any.
fn grace_of(kind: &Kind, object: &Value, options: &DeleteOptions) -> i64 {
    if !kind.is("", "Pod") {
        return 0;
    }
    let is_bound = object["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
    let has_ended = ["Succeeded", "Failed"].iter().any(|phase| object["status"]["phase"] == *phase);
    if !is_bound || has_ended {
        return 0;
    }
    let own = object["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    let wanted = options.grace_seconds.unwrap_or(own);
    if wanted < 0 { 1 } else { wanted }
}

fn add_propagation_finalizer(object: &mut Value, propagation: Option<&str>) {
    let wanted = match propagation {
        Some("Orphan") => Some("orphan"),
        Some("Foreground") => Some("foregroundDeletion"),
        _ => None,
    };
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    let mut finalizers = metadata.get("finalizers").and_then(Value::as_array).cloned().unwrap_or_default();
    let before = finalizers.clone();
    if propagation.is_some() {
        finalizers.retain(|name| name != "orphan" && name != "foregroundDeletion");
        finalizers.extend(wanted.map(|name| json!(name)));
    }
    if finalizers.is_empty() {
        metadata.shift_remove("finalizers");
    } else if finalizers != before {
        metadata.insert("finalizers".to_owned(), json!(finalizers));
    }
}

/// Deletes what a list selects, and answers with that list.
pub fn delete_collection(state: &mut State, request: &Request) -> Answer {
    let options = DeleteOptions::of(request)?;
    let selected = super::reads::list(state, request)?;
    for item in selected["items"].as_array().into_iter().flatten() {
        let namespace = item["metadata"]["namespace"].as_str().unwrap_or_default();
        let one = Request { namespace: namespace.to_owned(), ..request.clone() };
        match delete_named(state, &one, &name_of(item), &options) {
            Err(failure) if failure.reason != "NotFound" => return Err(failure),
            _ => {}
        }
    }
    Ok((StatusCode::OK, Arc::new(selected)))
}

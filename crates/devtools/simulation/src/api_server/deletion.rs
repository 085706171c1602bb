//! Deleting objects, at once or when nothing holds them any more.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    decode::name_of,
    failure::Failure,
    kinds::Kind,
    reads,
    request::Request,
    state::{State, key},
    writes::{Answer, has_finalizers},
};

/// The options of a deletion, from the body and the query.
pub struct DeleteOptions {
    grace_seconds: Option<i64>,
    uid: Option<String>,
    version: Option<String>,
    propagation: Option<String>,
    pub is_dry_run: bool,
}

impl DeleteOptions {
    pub fn of(request: &Request) -> Result<Self, Failure> {
        let body: Value = if request.body.is_empty() {
            json!({})
        } else {
            request.object()?
        };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let from_query = |name: &str| request.parameter(name).map(str::to_owned);
        let preconditions = &body["preconditions"];
        let propagation =
            text(&body["propagationPolicy"]).or_else(|| from_query("propagationPolicy"));
        Ok(Self {
            grace_seconds: body["gracePeriodSeconds"].as_i64().or_else(|| {
                request
                    .parameter("gracePeriodSeconds")
                    .and_then(|seconds| seconds.parse().ok())
            }),
            uid: text(&preconditions["uid"]),
            version: text(&preconditions["resourceVersion"]),
            propagation,
            is_dry_run: !body["dryRun"].is_null() || request.parameter("dryRun").is_some(),
        })
    }

    /// The same for whatever version there is.
    pub fn of_any_version(self) -> Self {
        Self {
            version: None,
            ..self
        }
    }

    /// Refuses the deletion of another object than the one that the request names.
    pub fn check(&self, kind: &Kind, name: &str, object: &Value) -> Result<(), Failure> {
        let metadata = &object["metadata"];
        let happened = [
            ("UID", "deleted and then recreated"),
            ("ResourceVersion", "modified"),
        ];
        let named = [
            (&self.uid, &metadata["uid"]),
            (&self.version, &metadata["resourceVersion"]),
        ];
        for ((what, happened), (wanted, found)) in happened.into_iter().zip(named) {
            let found = found.as_str().unwrap_or_default();
            if let Some(wanted) = wanted.as_deref().filter(|wanted| *wanted != found) {
                let why = format!(
                    "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). \
                     The object might have been {happened}"
                );
                return Err(Failure::conflict(kind, name, &why));
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

/// Deletes one object of the kind and namespace of the request.
pub fn delete_named(
    state: &mut State,
    request: &Request,
    name: &str,
    options: &DeleteOptions,
) -> Answer {
    let kind = &request.kind;
    let found = state
        .get(kind, &request.namespace, name)
        .ok_or_else(|| Failure::not_found(kind, name))?;
    options.check(kind, name, &found)?;
    if kind.is("", "Namespace") && !found["metadata"]["deletionTimestamp"].is_null() {
        let why = "The system is ensuring all content is removed from this namespace.  Upon completion, this namespace will automatically be purged by the system.";
        return Err(Failure::conflict(kind, name, why));
    }
    // An object that is being deleted can only get a shorter grace period.
    let left = found["metadata"]["deletionGracePeriodSeconds"]
        .as_i64()
        .filter(|seconds| *seconds > 0);
    if left.is_some_and(|left| options.grace_seconds.is_none_or(|wanted| wanted >= left)) {
        return Ok((StatusCode::OK, found));
    }
    let mut object = (*found).clone();
    // Jobs had no garbage collector once, and so leave their pods.
    let usual = kind.is("batch", "Job").then_some("Orphan");
    let wanted = options.propagation.as_deref().or(usual);
    // Nothing depends on events.
    add_propagation_finalizer(&mut object, wanted.filter(|_| kind.kind != "Event"));
    let grace = grace_of(kind, &object, options);
    let key = key(kind, &request.namespace, name);
    if grace == 0 && !has_finalizers(kind, &object) {
        if kind.is("", "Pod") {
            mark(state, kind, &mut object, 0);
            // Watches see that a pod ends before they see that it is gone.
            if !options.is_dry_run {
                state.put(key.clone(), object.clone());
            }
        }
        let last = if options.is_dry_run {
            Arc::new(object)
        } else {
            state.remove(key, object)
        };
        return Ok((
            StatusCode::OK,
            if returns_deleted(kind) {
                last
            } else {
                Arc::new(success(kind, &last))
            },
        ));
    }
    mark(state, kind, &mut object, grace);
    if object == *found || options.is_dry_run {
        return Ok((StatusCode::OK, Arc::new(object)));
    }
    Ok((StatusCode::OK, state.put(key, object)))
}

/// Kinds whose deletion is answered with the object instead of a Status.
fn returns_deleted(kind: &Kind) -> bool {
    let core = [
        "Pod",
        "Service",
        "ServiceAccount",
        "ResourceQuota",
        "PersistentVolume",
        "PersistentVolumeClaim",
    ];
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
    let end = now
        .checked_add(jiff::SignedDuration::from_secs(grace))
        .unwrap_or(now);
    let metadata = &mut object["metadata"];
    let is_marked = !metadata["deletionTimestamp"].is_null();
    if is_marked && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) <= grace {
        return;
    }
    metadata["deletionTimestamp"] = json!(end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    if !kind.is("", "Namespace") {
        metadata["deletionGracePeriodSeconds"] = json!(grace);
    }
    if let Some(generation) = metadata["generation"]
        .as_i64()
        .filter(|generation| *generation > 0 && !is_marked)
    {
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
    let is_bound = object["spec"]["nodeName"]
        .as_str()
        .is_some_and(|node| !node.is_empty());
    let has_ended = ["Succeeded", "Failed"]
        .iter()
        .any(|phase| object["status"]["phase"] == *phase);
    if !is_bound || has_ended {
        return 0;
    }
    let own = object["spec"]["terminationGracePeriodSeconds"]
        .as_i64()
        .unwrap_or(30);
    let wanted = options.grace_seconds.unwrap_or(own);
    if wanted < 0 { 1 } else { wanted }
}

fn add_propagation_finalizer(object: &mut Value, propagation: Option<&str>) {
    let wanted = match propagation {
        Some("Orphan") => Some("orphan"),
        Some("Foreground") => Some("foregroundDeletion"),
        _ => None,
    };
    let Some(metadata) = object["metadata"].as_object_mut() else {
        return;
    };
    let mut finalizers = metadata
        .get("finalizers")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let before = finalizers.clone();
    if propagation.is_some() {
        finalizers.retain(|name| name != "orphan" && name != "foregroundDeletion");
        finalizers.extend(wanted.map(|name| json!(name)));
    }
    if finalizers.is_empty() {
        metadata.remove("finalizers");
    } else if finalizers != before {
        metadata.insert("finalizers".to_owned(), json!(finalizers));
    }
}

/// Deletes what a list selects, and answers with that list.
pub fn delete_collection(state: &mut State, request: &Request) -> Answer {
    let options = DeleteOptions::of(request)?;
    let selected = reads::list(state, request)?;
    for item in selected["items"].as_array().into_iter().flatten() {
        let namespace = item["metadata"]["namespace"].as_str().unwrap_or_default();
        let one = Request {
            namespace: namespace.to_owned(),
            ..request.clone()
        };
        match delete_named(state, &one, &name_of(item), &options) {
            Err(failure) if failure.reason != "NotFound" => return Err(failure),
            _ => {}
        }
    }
    Ok((StatusCode::OK, Arc::new(selected)))
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::{
        super::{ApiServer, User},
        *,
    };

    #[tokio::test]
    async fn watches_see_that_a_pod_ends_before_it_is_gone() {
        let (server, admin) = (ApiServer::new(), User::administrator());
        let account = json!({ "metadata": { "name": "default" } });
        let pod = json!({ "metadata": { "name": "web" }, "spec": { "containers": [{ "name": "c", "image": "web:1" }] } });
        for (resource, object) in [("serviceaccounts", account), ("pods", pod)] {
            assert!(
                server
                    .call(
                        &admin,
                        &Method::POST,
                        &server.path(resource, "default", ""),
                        &object
                    )
                    .await,
                "{resource}"
            );
        }
        assert!(
            server
                .call(
                    &admin,
                    &Method::DELETE,
                    &server.path("pods", "default", "web"),
                    &json!({})
                )
                .await
        );
        let state = server.0.lock();
        let changes = state
            .store
            .since(0)
            .ok()
            .unwrap()
            .filter(|change| change.key.resource == "pods");
        let is_ending = |object: &Arc<Value>| !object["metadata"]["deletionTimestamp"].is_null();
        let seen: Vec<_> = changes
            .map(|change| change.after.as_ref().map(is_ending))
            .collect();
        assert_eq!(seen, [Some(false), Some(true), None]);
    }
}

//! Admission webhooks that may change new objects, as a `MutatingWebhookConfiguration` names them.
//!
//! Only creations are sent to them. What they answer is waited for without the lock of the API
//! server, so other requests go on.

use std::time::Duration;

use http::Method;
use kube_cel::cel::{Context, Program, Value as Cel};
use serde_json::{Value, json};

use super::{
    User,
    failure::Failure,
    request::{Request, Verb},
    selectors::selects,
    state::State,
    webhook_call::{WebhookCall, Webhooks},
};

/// A webhook that a request is sent to.
pub struct Due {
    name: String,
    call: WebhookCall,
    limit: Duration,
    /// Whether the request fails with it.
    must_answer: bool,
}

/// The webhooks that see this request, in the order of their configurations.
pub fn due(state: &State, user: &User, parts: &http::request::Parts, body: &[u8]) -> Vec<Due> {
    if parts.method != Method::POST || state.webhooks.is_none() {
        return Vec::new();
    }
    let Ok(request) = Request::parse(&state.kinds, parts, body.to_vec()) else {
        return Vec::new();
    };
    if request.verb != Verb::Create || !request.subresource.is_empty() {
        return Vec::new();
    }
    let Ok(mut object) = request.object() else {
        return Vec::new();
    };
    object["metadata"]["namespace"] = json!(request.namespace);
    let mut due = Vec::new();

    for (_, configuration) in state.store.list(
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "",
    ) {
        for webhook in configuration["webhooks"].as_array().into_iter().flatten() {
            if is_meant(state, &request, webhook)
                && conditions_hold(webhook, user, &request, &object)
            {
                due.push(Due::of(webhook, user, &request, &object));
            }
        }
    }
    due
}

fn is_meant(state: &State, request: &Request, webhook: &Value) -> bool {
    let lists = |rule: &Value, field: &str, item: &str| {
        rule[field]
            .as_array()
            .is_some_and(|items| items.iter().any(|one| one == item || one == "*"))
    };
    let (group, plural) = (&request.kind.group, &request.kind.plural);
    let is_ruled = webhook["rules"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|rule| {
            lists(rule, "operations", "CREATE")
                && lists(rule, "apiGroups", group)
                && lists(rule, "resources", plural)
        });
    let labels = || {
        let kind = state.kinds.get("", "v1", "namespaces")?;
        Some(state.get(&kind, "", &request.namespace)?["metadata"]["labels"].clone())
    };
    is_ruled && selects(&webhook["namespaceSelector"], &labels().unwrap_or_default())
}

/// Whether all match conditions hold. One that cannot be evaluated does not.
fn conditions_hold(webhook: &Value, user: &User, request: &Request, object: &Value) -> bool {
    let about = json!({ "namespace": request.namespace, "userInfo": { "username": user.name } });
    webhook["matchConditions"]
        .as_array()
        .into_iter()
        .flatten()
        .all(|condition| {
            let mut variables = Context::default();
            let added = variables
                .add_variable("object", object)
                .and_then(|()| variables.add_variable("request", &about));
            let program = condition["expression"]
                .as_str()
                .and_then(|expression| Program::compile(expression).ok());
            added.is_ok()
                && program.is_some_and(|program| program.execute(&variables) == Ok(Cel::Bool(true)))
        })
}

impl Due {
    fn of(webhook: &Value, user: &User, request: &Request, object: &Value) -> Self {
        let (client, kind) = (&webhook["clientConfig"], &request.kind);
        let service = &client["service"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let ca = data_encoding::BASE64
            .decode(text(&client["caBundle"]).as_bytes())
            .unwrap_or_default();
        let review = json!({
            "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": "00000000-0000-0000-0000-000000000000",
                "kind": { "group": kind.group, "version": kind.version, "kind": kind.kind },
                "resource": { "group": kind.group, "version": kind.version, "resource": kind.plural },
                "name": object["metadata"]["name"].as_str().unwrap_or_default(), "namespace": request.namespace,
                "operation": "CREATE", "userInfo": { "username": user.name, "groups": user.groups },
                "object": object, "oldObject": null, "dryRun": request.query.contains_key("dryRun"), "options": null,
            },
        });
        Self {
            name: text(&webhook["name"]),
            call: WebhookCall {
                namespace: text(&service["namespace"]),
                service: text(&service["name"]),
                port: service["port"]
                    .as_u64()
                    .and_then(|port| port.try_into().ok())
                    .unwrap_or(443),
                path: text(&service["path"]),
                ca: String::from_utf8(ca).unwrap_or_default(),
                review,
            },
            limit: Duration::from_secs(webhook["timeoutSeconds"].as_u64().unwrap_or(10)),
            must_answer: webhook["failurePolicy"] != "Ignore",
        }
    }
}

/// Sends the request to these webhooks, one after another, and returns the object as they changed
/// it. `None`: it did not change.
pub async fn admit(due: Vec<Due>, webhooks: &Webhooks) -> Result<Option<Value>, Failure> {
    let mut changed = None;
    for Due {
        name,
        mut call,
        limit,
        must_answer,
    } in due
    {
        if let Some(object) = &changed {
            call.review["request"]["object"] = Value::clone(object);
        }
        let mut object = call.review["request"]["object"].clone();
        let answer = match tokio::time::timeout(limit, webhooks(call)).await {
            Ok(answer) => answer,
            Err(_) => Err("context deadline exceeded".to_owned()),
        };
        match answer {
            Ok(review) if review["response"]["allowed"] == true => {
                if patch(&review["response"], &mut object) {
                    changed = Some(object);
                }
            }
            Ok(review) => return Err(Failure::denied(&name, &review["response"]["status"])),
            Err(why) if must_answer => return Err(Failure::no_webhook(&name, &why)),
            Err(_) => {}
        }
    }
    Ok(changed)
}

/// Applies the patch of an answer. Returns whether there was one. Go reads its bytes from base64,
/// and from a list of numbers.
fn patch(response: &Value, object: &mut Value) -> bool {
    let bytes: Option<Vec<u8>> = match &response["patch"] {
        Value::String(text) => data_encoding::BASE64.decode(text.as_bytes()).ok(),
        list => serde_json::from_value(list.clone()).ok(),
    };
    let patch: Option<json_patch::Patch> =
        bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    patch.is_some_and(|patch| json_patch::patch(object, &patch).is_ok())
}

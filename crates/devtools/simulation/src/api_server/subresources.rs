//! What acts on an object instead of changing it.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    User,
    deletion::{self, DeleteOptions},
    failure::Failure,
    request::{Request, Verb},
    reviews,
    selectors::selects,
    state::{State, key},
    writes::{self, Answer},
};

/// Answers a request that creates something which is not stored; `None` for all others.
pub fn act(state: &mut State, user: &User, request: &Request) -> Option<Answer> {
    if request.verb != Verb::Create {
        return None;
    }
    if !request.subresource.is_empty()
        && let Err(failure) = writes::namespace_is_open(
            state,
            request,
            &json!({ "metadata": { "name": request.name } }),
        )
    {
        return Some(Err(failure));
    }
    match (request.kind.kind.as_str(), request.subresource.as_str()) {
        ("Pod", "binding") => Some(bind(state, request)),
        ("Pod", "eviction") => Some(evict(state, request)),
        ("ServiceAccount", "token") => Some(reviews::issue_token(state, request)),
        (
            "SelfSubjectAccessReview" | "SelfSubjectReview" | "SubjectAccessReview" | "TokenReview",
            "",
        ) => Some(reviews::answer(state, user, request)),
        _ => None,
    }
}

fn find(state: &State, request: &Request) -> Result<Arc<Value>, Failure> {
    let found = state.get(&request.kind, &request.namespace, &request.name);
    found.ok_or_else(|| Failure::not_found(&request.kind, &request.name))
}

fn created() -> Arc<Value> {
    Arc::new(
        json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 }),
    )
}

fn bind(state: &mut State, request: &Request) -> Answer {
    let binding = request.object()?;
    let mut pod = (*find(state, request)?).clone();
    let node = binding["target"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let is_set = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let obstacles = [
        (
            !pod["metadata"]["deletionTimestamp"].is_null(),
            "the pod is being deleted",
        ),
        (
            is_set(&pod["spec"]["nodeName"]),
            "the pod already has a node",
        ),
        (
            pod["spec"]["schedulingGates"]
                .as_array()
                .is_some_and(|gates| !gates.is_empty()),
            "the pod has scheduling gates",
        ),
    ];
    if let Some((_, why)) = obstacles.iter().find(|(is_met, _)| *is_met) {
        return Err(Failure::conflict(&request.kind, &request.name, why));
    }
    pod["spec"]["nodeName"] = json!(node);
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": state.now_text(),
    });
    for (key, value) in binding["metadata"]["annotations"]
        .as_object()
        .into_iter()
        .flatten()
    {
        pod["metadata"]["annotations"][key] = value.clone();
    }
    let conditions = pod["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let mut conditions: Vec<Value> = conditions
        .into_iter()
        .filter(|one| one["type"] != "PodScheduled")
        .collect();
    conditions.push(condition);
    pod["status"]["conditions"] = json!(conditions);
    if request.parameter("dryRun").is_none() {
        state.put(key(&request.kind, &request.namespace, &request.name), pod);
    }
    Ok((StatusCode::CREATED, created()))
}

/// Deletes a pod, unless a `PodDisruptionBudget` is against it.
fn evict(state: &mut State, request: &Request) -> Answer {
    let eviction = request.object()?;
    let pod = find(state, request)?;
    let budgets: Vec<Arc<Value>> = state
        .store
        .list("poddisruptionbudgets.policy", &request.namespace)
        .map(|(_, budget)| budget.clone())
        .filter(|budget| selects(&budget["spec"]["selector"], &pod["metadata"]["labels"]))
        .collect();
    // Nobody misses a pod that does not run, or ends already.
    let is_missed = pod["metadata"]["deletionTimestamp"].is_null()
        && !["Succeeded", "Failed", "Pending"]
            .iter()
            .any(|phase| pod["status"]["phase"] == *phase);
    if is_missed && budgets.len() > 1 {
        let why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        return Err(Failure::internal(why));
    }
    let allows_none = |budget: &&Arc<Value>| {
        let observed = budget["status"]["observedGeneration"].as_i64();
        let is_behind = observed.is_some() && observed < budget["metadata"]["generation"].as_i64();
        is_behind || budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0) <= 0
    };
    if is_missed && let Some(budget) = budgets.iter().find(allows_none) {
        let name = budget["metadata"]["name"].as_str().unwrap_or_default();
        let status = &budget["status"];
        let message = format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            status["desiredHealthy"].as_i64().unwrap_or(0),
            status["currentHealthy"].as_i64().unwrap_or(0)
        );
        let causes = [json!({ "reason": "DisruptionBudget", "message": message })];
        let why = "Cannot evict pod as it would violate the pod's disruption budget.";
        return Err(Failure::too_many_requests(why, 0, &causes));
    }
    let body = eviction["deleteOptions"].clone();
    let body = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    let deletion = Request {
        verb: Verb::Delete,
        subresource: String::new(),
        body,
        ..request.clone()
    };
    let options = DeleteOptions::of(&deletion)?;
    if !options.is_dry_run {
        for budget in budgets.iter().filter(|_| is_missed) {
            take_from_budget(state, request, budget);
        }
        options.check(&request.kind, &request.name, &pod)?;
        announce_eviction(state, request, &pod);
    }
    // The condition made another version of the pod that was asked for.
    deletion::delete_named(state, &deletion, &request.name, &options.of_any_version())?;
    Ok((StatusCode::CREATED, created()))
}

/// Until its controller counts again, a budget allows one disruption less.
fn take_from_budget(state: &mut State, request: &Request, budget: &Value) {
    let mut budget = budget.clone();
    let allowed = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0);
    budget["status"]["disruptionsAllowed"] = json!(allowed - 1);
    if let Some(kind) = state.kinds.get("policy", "v1", "poddisruptionbudgets") {
        let name = budget["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        state.put(key(&kind, &request.namespace, &name), budget);
    }
}

/// Says in the status of a pod that it is evicted.
fn announce_eviction(state: &mut State, request: &Request, pod: &Value) {
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "lastProbeTime": null, "lastTransitionTime": state.now_text(),
        "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
    });
    let mut conditions = pod["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    if conditions
        .iter()
        .any(|known| known["type"] == "DisruptionTarget")
    {
        return;
    }
    conditions.push(condition);
    let mut pod = pod.clone();
    pod["status"]["conditions"] = json!(conditions);
    state.put(key(&request.kind, &request.namespace, &request.name), pod);
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::{super::ApiServer, *};

    const BUDGETS: &str = "poddisruptionbudgets.policy";

    /// The object of a resource with the name `web`.
    fn stored(server: &ApiServer, resource: &str) -> Value {
        let mut objects = server.objects().into_iter();
        let (_, object) = objects
            .find(|(key, _)| key.resource == resource && key.name == "web")
            .unwrap();
        (*object).clone()
    }

    async fn call(server: &ApiServer, method: Method, path: String, body: &Value) {
        assert!(
            server
                .call(&User::administrator(), &method, &path, body)
                .await,
            "{method} {path}"
        );
    }

    async fn create(server: &ApiServer, resource: &str, object: Value) {
        call(
            server,
            Method::POST,
            server.path(resource, "default", ""),
            &object,
        )
        .await;
    }

    async fn set_status(server: &ApiServer, resource: &str, status: Value) {
        let mut object = stored(server, resource);
        object["status"] = status;
        call(
            server,
            Method::PUT,
            server.path(resource, "default", "web") + "/status",
            &object,
        )
        .await;
    }

    /// Evicts the pod, and returns how many disruptions its budget allows then.
    async fn evict(server: &ApiServer, options: Value) -> Value {
        let eviction = json!({ "metadata": { "name": "web" }, "deleteOptions": options });
        call(
            server,
            Method::POST,
            server.path("pods", "default", "web") + "/eviction",
            &eviction,
        )
        .await;
        stored(server, BUDGETS)["status"]["disruptionsAllowed"].clone()
    }

    #[tokio::test]
    async fn an_eviction_that_is_only_tried_takes_nothing_from_the_budget() {
        let server = ApiServer::new();
        create(
            &server,
            "serviceaccounts",
            json!({ "metadata": { "name": "default" } }),
        )
        .await;
        let metadata = json!({ "name": "web", "labels": { "app": "web" } });
        let container = json!({ "name": "c", "image": "web:1" });
        create(
            &server,
            "pods",
            json!({ "metadata": metadata, "spec": { "nodeName": "n", "containers": [container] } }),
        )
        .await;
        let spec = json!({ "minAvailable": 0, "selector": { "matchLabels": { "app": "web" } } });
        create(
            &server,
            BUDGETS,
            json!({ "metadata": metadata, "spec": spec }),
        )
        .await;
        set_status(&server, "pods", json!({ "phase": "Running" })).await;
        let status = json!({ "disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 0, "expectedPods": 1 });
        set_status(&server, BUDGETS, status).await;
        assert_eq!(evict(&server, json!({ "dryRun": ["All"] })).await, 1);
        assert!(stored(&server, "pods")["metadata"]["deletionTimestamp"].is_null());
        assert_eq!(evict(&server, json!({})).await, 0);
    }
}

//! Evicts pods as disruption budgets allow.
//!
//! This module builds the request itself, because `kube::Api::evict` (5.0) calls the options
//! `delete_options`: the API server does not know that name, so it would ignore grace and
//! preconditions.

use k8s_openapi::api::core::v1::Pod;
use kube::{Client, Resource as _, core::Status};
use liqo_api::Key;
use serde_json::json;

/// The outcome of a request for an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvictionOutcome {
    /// The pod ends.
    Accepted,
    /// It is gone, or another pod has its name.
    Gone,
    /// A disruption budget does not allow it yet; the API server's message, which names the budget.
    NotAllowed(String),
}

/// Requests the eviction of this pod, and of no other one of the same name, with this grace in
/// seconds or its own.
pub async fn evict(
    client: &Client,
    pod: &Key,
    uid: &str,
    grace: Option<i64>,
) -> kube::Result<EvictionOutcome> {
    send_request(client, eviction_request(pod, uid, None, grace)).await
}

/// The same, unless the pod has another version by now.
pub async fn evict_version(
    client: &Client,
    pod: &Key,
    uid: &str,
    version: &str,
) -> kube::Result<EvictionOutcome> {
    send_request(client, eviction_request(pod, uid, Some(version), None)).await
}

async fn send_request(
    client: &Client,
    request: http::Result<http::Request<Vec<u8>>>,
) -> kube::Result<EvictionOutcome> {
    outcome_of_answer(
        client
            .request::<Status>(request.map_err(kube::Error::HttpError)?)
            .await,
    )
}

fn eviction_request(
    pod: &Key,
    uid: &str,
    version: Option<&str>,
    grace: Option<i64>,
) -> http::Result<http::Request<Vec<u8>>> {
    let mut eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "name": pod.name, "namespace": pod.namespace },
        "deleteOptions": { "preconditions": { "uid": uid } },
    });
    if let Some(version) = version {
        eviction["deleteOptions"]["preconditions"]["resourceVersion"] = version.into();
    }
    if let Some(seconds) = grace {
        eviction["deleteOptions"]["gracePeriodSeconds"] = seconds.into();
    }
    let url = format!(
        "{}/{}/eviction",
        Pod::url_path(&(), Some(&pod.namespace)),
        pod.name
    );
    http::Request::post(url)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(eviction.to_string().into_bytes())
}

fn outcome_of_answer(answer: kube::Result<Status>) -> kube::Result<EvictionOutcome> {
    match answer {
        Ok(_) => Ok(EvictionOutcome::Accepted),
        Err(kube::Error::Api(status)) if status.code == 429 => {
            Ok(EvictionOutcome::NotAllowed(refusal_text(&status)))
        }
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
            Ok(EvictionOutcome::Gone)
        }
        Err(error) => Err(error),
    }
}

/// The causes name the budget; the message only says that there is one.
fn refusal_text(status: &Status) -> String {
    let causes = status
        .details
        .iter()
        .flat_map(|details| &details.causes)
        .map(|cause| cause.message.as_str());
    let causes: Vec<&str> = causes.filter(|message| !message.is_empty()).collect();
    if causes.is_empty() {
        status.message.clone()
    } else {
        causes.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn only_this_pod_is_evicted_and_with_the_grace_that_is_given() {
        let made = |grace| {
            let request = eviction_request(&Key::new("demo", "web"), "u1", None, grace).unwrap();
            assert_eq!(request.uri(), "/api/v1/namespaces/demo/pods/web/eviction");
            serde_json::from_slice::<Value>(request.body()).unwrap()
        };
        assert_eq!(
            made(Some(5))["deleteOptions"],
            json!({ "gracePeriodSeconds": 5, "preconditions": { "uid": "u1" } })
        );
        assert_eq!(
            made(None)["deleteOptions"],
            json!({ "preconditions": { "uid": "u1" } })
        );
        let of_version = eviction_request(&Key::new("demo", "web"), "u1", Some("7"), None).unwrap();
        let of_version: Value = serde_json::from_slice(of_version.body()).unwrap();
        assert_eq!(
            of_version["deleteOptions"]["preconditions"],
            json!({ "uid": "u1", "resourceVersion": "7" })
        );
        // The API server leaves out unknown fields, and so does this type.
        let read: k8s_openapi::api::policy::v1::Eviction =
            serde_json::from_value(made(Some(5))).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), made(Some(5)));
    }

    #[test]
    fn what_the_api_server_answers_is_understood() {
        let refused = |code: u16, reason: &str| {
            let status = Status {
                code,
                reason: reason.into(),
                message: "budget".into(),
                ..Status::default()
            };
            outcome_of_answer(Err(kube::Error::Api(status.boxed())))
        };
        assert_eq!(
            refused(429, "TooManyRequests").unwrap(),
            EvictionOutcome::NotAllowed("budget".into())
        );
        assert_eq!(
            (
                refused(404, "NotFound").unwrap(),
                refused(409, "Conflict").unwrap()
            ),
            (EvictionOutcome::Gone, EvictionOutcome::Gone)
        );
        assert!(
            refused(500, "InternalError").is_err(),
            "more than one budget guards the pod, or the API server has trouble"
        );
        assert_eq!(
            outcome_of_answer(Ok(Status::default())).unwrap(),
            EvictionOutcome::Accepted
        );
    }

    #[test]
    fn a_refusal_names_the_budget() {
        let status = json!({ "message": "Cannot evict pod as it would violate the pod's disruption budget.", "code": 429,
            "details": { "name": "web", "causes": [{ "reason": "DisruptionBudget", "message": "The disruption budget web needs 1 healthy pods and has 1 currently" }] } });
        let status: Status = serde_json::from_value(status).unwrap();
        let named = "The disruption budget web needs 1 healthy pods and has 1 currently";
        assert_eq!(
            outcome_of_answer(Err(kube::Error::Api(status.boxed()))).unwrap(),
            EvictionOutcome::NotAllowed(named.into())
        );
    }
}

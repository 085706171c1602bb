//! Keeps a label on the leader's pod. Only the leader serves the auth endpoint, and its Service
//! selects pods by this label.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use liqo_api::{labels, rfc3339};
use liqo_controller_runtime::{Clock, writes::unless_gone};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Interval between two checks of the labels: somebody may have removed one.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Keeps the label at this pod, and at no other, until `stop`. A take-over often comes when the API
/// server is slow, so an error is only logged, and tried again.
pub async fn keep_marked(
    pods: Api<Pod>,
    own: String,
    mut replaced: Option<String>,
    clock: Clock,
    stop: CancellationToken,
) {
    loop {
        let wait = match move_mark(&pods, &own, replaced.as_deref(), clock.now()).await {
            Ok(()) => {
                replaced = None;
                CHECK_INTERVAL
            }
            Err(error) => {
                tracing::warn!(%error, "cannot label this pod as the leader, trying again");
                RETRY_DELAY
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Removes the label from this pod, which still has it if its container was restarted. Writes
/// nothing if nothing changes.
pub async fn unmark_pod(pods: &Api<Pod>, own: &str) -> kube::Result<()> {
    let labelled = pods
        .get_metadata_opt(own)
        .await?
        .is_some_and(|pod| pod.labels().contains_key(labels::LEADER));
    if labelled {
        set_label(pods, own, &Value::Null).await
    } else {
        Ok(())
    }
}

/// Moves the label to this pod. Writes nothing if nothing changes.
///
/// If the former leader was silent for too long, it is dead or cut off, but Kubernetes notices the
/// death of a node only after most of a minute. Until then, Services would send calls to it, so
/// this marks it as not ready, too. If its kubelet lives, that soon writes the true state.
async fn move_mark(
    pods: &Api<Pod>,
    own: &str,
    replaced: Option<&str>,
    now: Timestamp,
) -> kube::Result<()> {
    let labelled = pods
        .list_metadata(&ListParams::default().labels(labels::LEADER))
        .await?;
    for former in labelled
        .iter()
        .map(kube::ResourceExt::name_any)
        .filter(|name| name != own)
    {
        set_label(pods, &former, &Value::Null).await?;
    }
    if labelled.iter().all(|pod| pod.name_any() != own) {
        set_label(pods, own, &json!("true")).await?;
    }
    if let Some(replaced) = replaced {
        let patch = Patch::Strategic(not_ready(&rfc3339(now)));
        unless_gone(
            pods.patch_status(replaced, &PatchParams::default(), &patch)
                .await,
        )?;
    }
    Ok(())
}

/// Sets the label, or removes it. A pod that is gone needs none.
async fn set_label(pods: &Api<Pod>, name: &str, value: &Value) -> kube::Result<()> {
    let patch = Patch::Merge(json!({ "metadata": { "labels": { labels::LEADER: value } } }));
    unless_gone(
        pods.patch_metadata(name, &PatchParams::default(), &patch)
            .await,
    )
    .map(drop)
}

fn not_ready(now: &str) -> Value {
    json!({ "status": { "conditions": [{
        "type": "Ready",
        "status": "False",
        "reason": "LeaseExpired",
        "message": "it led, and did not renew its Lease in time: another replica leads now",
        "lastTransitionTime": now,
    }] } })
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc};

    use kube::{Client, client::Body};
    use tokio::sync::Mutex;

    use super::*;

    /// The writes to an API server with these labelled pods. Pod `gone` is in the list, and does
    /// not exist any more.
    async fn writes(labelled: &'static [&'static str], replaced: Option<&str>) -> Vec<String> {
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let record = seen.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let record = record.clone();
            async move {
                let path = request
                    .uri()
                    .path()
                    .trim_start_matches("/api/v1/namespaces/liqo/pods")
                    .to_owned();
                let pod = |name: &str| json!({ "metadata": { "name": name } });
                let (code, answer) = match request.method().as_str() {
                    "GET" => (
                        200,
                        json!({ "metadata": {}, "items": labelled.iter().map(|name| pod(name)).collect::<Vec<_>>() }),
                    ),
                    _ if path == "/gone" => (404, json!({ "code": 404, "reason": "NotFound" })),
                    _ => (200, pod("a")),
                };
                if request.method() == "PATCH" {
                    let body: Value =
                        serde_json::from_slice(&request.into_body().collect_bytes().await.unwrap())
                            .unwrap();
                    let label = &body["metadata"]["labels"][labels::LEADER];
                    record.lock().await.push(format!("{path} {label}"));
                }
                let body = Body::from(answer.to_string().into_bytes());
                Ok::<_, Infallible>(http::Response::builder().status(code).body(body).unwrap())
            }
        });
        move_mark(
            &Api::namespaced(Client::new(service, "liqo"), "liqo"),
            "own",
            replaced,
            Timestamp::UNIX_EPOCH,
        )
        .await
        .unwrap();
        let writes = seen.lock().await;
        writes.clone()
    }

    #[tokio::test]
    async fn only_one_pod_has_the_label_even_if_the_former_leader_cannot_remove_its_own() {
        assert_eq!(
            writes(&["former", "own", "gone"], None).await,
            ["/former null", "/gone null"]
        );
    }

    #[tokio::test]
    async fn a_leader_that_was_silent_leaves_every_service_at_once() {
        assert_eq!(
            writes(&["former"], Some("former")).await,
            ["/former null", "/own \"true\"", "/former/status null"]
        );
        assert_eq!(
            not_ready("now").pointer("/status/conditions/0/status"),
            Some(&json!("False"))
        );
    }
}

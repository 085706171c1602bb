use kube::{Client, client::Body};
use liqo_controller_runtime::{Key, provider_limits::LimitExceeded};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::consumer::controllers::pods::tests::{
    api_server, connected, here, mapping, started, until,
};
use crate::consumer::triggers;

fn warning(uid: &str, pod: &str, pod_uid: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Event",
        "metadata": { "namespace": "demo-rome", "name": uid, "uid": uid, "resourceVersion": "1" },
        "type": "Warning", "reason": "Failed", "message": "no such image", "firstTimestamp": "2026-01-01T00:00:00Z",
        "involvedObject": { "kind": "Pod", "namespace": "demo-rome", "name": pod, "uid": pod_uid } })
}

/// A provider that runs pod `web` with UID `r`, and has these events.
fn there(events: &[Value]) -> Client {
    let shadow = json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ShadowPod",
        "metadata": { "namespace": "tenant", "name": "u", "resourceVersion": "1" },
        "spec": { "namespace": "demo", "pool": "default", "pod": r#"{"metadata": {"name": "web"}}"# },
        "status": { "phase": "Created", "remoteUID": "r" } });
    let objects = json!({ "namespacemaps": [mapping()], "shadowpods": [shadow], "events": events });
    api_server(objects, |_, _| std::future::ready(true))
}

/// The same provider, with more events than are read: a list of all fails, and later there is a
/// warning.
fn there_with_too_many_events() -> Client {
    let others = there(&[]);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (others, query) = (
            others.clone(),
            request.uri().query().unwrap_or_default().to_owned(),
        );
        async move {
            let is_watch = query.contains("watch=true");
            if !request.uri().path().ends_with("/events")
                || is_watch && !query.contains("resourceVersion=1")
            {
                return others.send(request).await.map_err(tower::BoxError::from);
            }
            if !is_watch && !query.split('&').any(|pair| pair == "limit=1") {
                return Err(std::io::Error::other(LimitExceeded::Pages).into());
            }
            let list = json!({ "kind": "List", "apiVersion": "v1", "metadata": { "resourceVersion": "1" }, "items": [] });
            let added = format!(
                r#"{{"type":"ADDED","object":{}}}"#,
                warning("9", "web", "r")
            );
            Ok(http::Response::new(Body::from(
                if is_watch { added } else { list.to_string() }.into_bytes(),
            )))
        }
    });
    Client::new(service, "default")
}

#[tokio::test]
async fn the_owner_of_a_namespace_with_too_many_events_is_told_and_new_events_come() {
    let written: Arc<Mutex<Vec<String>>> = Arc::default();
    let writing = written.clone();
    let home = api_server(here(&json!({})), move |method, name| {
        if *method == http::Method::POST && name == "events"
            || *method == http::Method::PATCH && name.contains("web.")
        {
            writing.lock().push(method.to_string());
        }
        std::future::ready(true)
    });
    let consumer = started(home);
    let (peer, _remote, _healthy) = connected(&consumer, there_with_too_many_events()).await;
    let pod = json!({ "metadata": { "namespace": "demo", "name": "web", "uid": "u" }, "spec": { "containers": [] } });
    let pod = LocalPod::from_pod(
        serde_json::from_value(pod).unwrap(),
        &Key::new("tenant", "milan"),
    )
    .unwrap();
    peer.pod_changed(None, Some(&Arc::new(pod)));
    triggers::enqueue_triggers(&consumer, &peer, triggers::pods_listed());
    until(|| (written.lock().len() >= 2).then_some(())).await;
    assert_eq!(
        *written.lock(),
        ["POST", "PATCH"],
        "the namespace, then the pod"
    );
    consumer.context.stop.cancel();
}

#[tokio::test]
async fn only_a_warning_about_the_remote_pod_is_written_and_the_watch_ends_with_the_last_pod() {
    let written: Arc<Mutex<Vec<String>>> = Arc::default();
    let writing = written.clone();
    let home = api_server(here(&json!({})), move |method, name| {
        if *method == http::Method::PATCH && name.contains("web.") {
            writing.lock().push(name.to_owned());
        }
        std::future::ready(true)
    });
    let consumer = started(home);
    let mut normal = warning("0", "web", "r");
    normal["type"] = "Normal".into();
    let events = [
        normal,
        warning("1", "web", "earlier"),
        warning("2", "another", "r"),
        warning("3", "web", "r"),
    ];
    let (peer, remote, _healthy) = connected(&consumer, there(&events)).await;
    let pod = json!({ "metadata": { "namespace": "demo", "name": "web", "uid": "u" }, "spec": { "containers": [] } });
    let pod = LocalPod::from_pod(
        serde_json::from_value(pod).unwrap(),
        &Key::new("tenant", "milan"),
    )
    .unwrap();
    peer.pod_changed(None, Some(&Arc::new(pod)));

    triggers::enqueue_triggers(&consumer, &peer, triggers::pods_listed());
    // The last event is the only one that counts, so the others were handled before.
    until(|| (!written.lock().is_empty()).then_some(())).await;
    assert_eq!(written.lock().len(), 1, "{:?}", written.lock());

    // The last pod of the namespace is gone, and so is the watch.
    let pod = peer.pod("u").unwrap();
    peer.pod_changed(Some(&pod), None);
    triggers::enqueue_triggers(
        &consumer,
        &peer,
        triggers::local_pod_changed(Some(&pod), None),
    );
    until(|| remote.event_watches.lock().is_empty().then_some(())).await;
    consumer.context.stop.cancel();
}

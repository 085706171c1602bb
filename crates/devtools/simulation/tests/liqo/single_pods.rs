//! Pods that a user creates by hand, and what their owner is told of them.

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{
    ResourceExt as _,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    json::object,
    users::SOON,
    world::{Cluster, Start, World},
};

async fn run(cluster: &Cluster, name: &str, resources: Value, node: Option<&str>) {
    let container =
        json!({ "name": "main", "image": "example.com/main:1", "resources": resources });
    let pod = json!({ "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "containers": [container], "nodeName": node } });
    cluster
        .api::<Pod>("demo")
        .create(&PostParams::default(), &object(pod))
        .await
        .unwrap();
}

async fn are_ready(cluster: &Cluster, names: &[&str]) -> bool {
    let ready = cluster.ready_pods("demo").await;
    names
        .iter()
        .all(|name| ready.iter().any(|pod| pod.name_any() == *name))
}

/// The messages of the events with this reason, with the names of their pods.
async fn told(cluster: &Cluster, reason: &str) -> Vec<(String, String)> {
    let events = cluster
        .api::<Event>("demo")
        .list(&ListParams::default())
        .await
        .unwrap()
        .items;
    let of_reason = events
        .into_iter()
        .filter(|event| event.reason.as_deref() == Some(reason));
    of_reason
        .map(|event| {
            (
                event.involved_object.name.unwrap_or_default(),
                event.message.unwrap_or_default(),
            )
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_names_a_virtual_node_runs_there() {
    let world = World::peered(Start::default()).await;
    let rome = &world.clusters[0];
    world.offload(0, "demo", "LocalAndRemote").await;
    run(rome, "named", json!({}), Some("milan")).await;
    world
        .until("it runs", SOON, async || are_ready(rome, &["named"]).await)
        .await;
    assert_eq!(world.clusters[1].pods_of("named").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_owner_of_a_pod_is_told_once_which_limit_the_provider_adds() {
    let world = World::peered(Start::default()).await;
    let rome = &world.clusters[0];
    world.offload(0, "demo", "Remote").await;
    run(rome, "silent", json!({}), None).await;
    run(
        rome,
        "limited",
        json!({ "limits": { "memory": "64Mi" } }),
        None,
    )
    .await;
    rome.deploy("demo", "web", 3).await;
    world
        .until("all run", SOON, async || {
            rome.ready_pods("demo").await.len() == 5
        })
        .await;
    let of = async |name: &str| {
        told(rome, "LimitAdded")
            .await
            .into_iter()
            .filter(|(pod, _)| pod.starts_with(name))
            .count()
    };
    world
        .until("the owners are told", SOON, async || {
            of("silent").await + of("web").await >= 2
        })
        .await;
    tokio::time::sleep(SOON).await;
    assert_eq!(
        (of("web").await, of("limited").await),
        (1, 0),
        "once for all pods of a controller"
    );
    let message = "the provider limits container main to 256Mi of memory and 1Gi of ephemeral-storage, because the pod sets no limit";
    assert!(
        told(rome, "LimitAdded")
            .await
            .contains(&("silent".to_owned(), message.to_owned()))
    );
    assert_eq!(of("silent").await, 1);
}

//! Events of remote pods, as their owners read them.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use liqo_api::{NAMESPACE_OFFLOADING, NamespaceOffloading, PeeringPolicy, annotations};
use serde_json::json;

use crate::{
    json::object,
    users::SOON,
    world::{Cluster, Start, World},
};

/// Images whose pulls take so many seconds at each provider, and the names of the pods that run
/// them.
const PULLS: [(&str, i64); 3] = [("present", 0), ("quick", 3), ("slow", 30)];
/// Within this time such a pod is ready.
const START: Duration = Duration::from_secs(90);

async fn run(home: &Cluster, name: &str) {
    let pod = json!({ "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "containers": [{ "name": "main", "image": image(name) }] } });
    home.api::<Pod>("demo")
        .create(&PostParams::default(), &object(pod))
        .await
        .unwrap();
}

fn image(name: &str) -> String {
    format!("example.com/{name}:1")
}

/// The kubelets of a provider tell how they pull images.
fn pull_images(provider: &Cluster) {
    let pulls = PULLS.iter().map(|(name, seconds)| (image(name), *seconds));
    provider
        .settings
        .send_modify(|settings| settings.image_pulls.extend(pulls));
}

/// The reasons of the events that kubelets wrote about a pod, the first one first.
async fn of_kubelet(home: &Cluster, pod: &str) -> Vec<String> {
    let about = ListParams::default().fields(&format!("involvedObject.name={pod}"));
    let events = home.api::<Event>("demo").list(&about).await.unwrap();
    let is_kubelet = |event: &Event| {
        let component = event
            .source
            .as_ref()
            .and_then(|source| source.component.as_deref());
        component.is_some_and(|component| component.ends_with("kubelet"))
    };
    events
        .into_iter()
        .filter(is_kubelet)
        .filter_map(|event| event.reason)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn the_owner_of_a_pod_sees_a_slow_pull_and_with_an_annotation_everything() {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    pull_images(milan);
    world.offload(0, "demo", "Remote").await;
    for (name, _) in PULLS {
        run(rome, name).await;
    }
    world
        .until(
            "the slow pull is seen while it goes on",
            START,
            async || of_kubelet(rome, "slow").await == ["Pulling"],
        )
        .await;
    world
        .until("all pods run", START, async || {
            rome.ready_pods("demo").await.len() == PULLS.len()
        })
        .await;
    world
        .until("the end is seen", SOON, async || {
            of_kubelet(rome, "slow").await == ["Pulling", "Pulled"]
        })
        .await;
    tokio::time::sleep(SOON).await;
    for healthy in ["present", "quick"] {
        assert_eq!(
            of_kubelet(rome, healthy).await,
            Vec::<String>::new(),
            "{healthy}"
        );
    }

    let all = json!({ "metadata": { "annotations": { annotations::REMOTE_EVENTS: "all" } } });
    let offloadings = rome.api::<NamespaceOffloading>("demo");
    offloadings
        .patch(
            NAMESPACE_OFFLOADING,
            &PatchParams::default(),
            &Patch::Merge(all),
        )
        .await
        .unwrap();
    for (pod, reasons) in [
        ("present", &["Pulled", "Created", "Started"][..]),
        ("slow", &["Pulling", "Pulled", "Created", "Started"]),
    ] {
        world
            .until("all events are seen", SOON, async || {
                of_kubelet(rome, pod).await == reasons
            })
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_owner_of_a_pod_behind_a_broker_sees_a_slow_pull_and_no_other() {
    let world = World::start(&["rome", "milan", "turin"], Start::default()).await;
    let (rome, milan, turin) = (&world.clusters[0], &world.clusters[1], &world.clusters[2]);
    pull_images(turin);
    world.peer_and_wait(1, 2).await;
    let lends_on =
        json!({ "spec": { "provide": { "percentage": 100, "source": { "offers": {} } } } });
    milan
        .all::<PeeringPolicy>()
        .patch("default", &PatchParams::default(), &Patch::Merge(lends_on))
        .await
        .unwrap();
    world.peer_and_wait(0, 1).await;
    world.offload(0, "demo", "Remote").await;
    for (name, _) in PULLS {
        run(rome, name).await;
    }
    world
        .until("all pods run", 3 * START, async || {
            rome.ready_pods("demo").await.len() == PULLS.len()
        })
        .await;
    world
        .until("the pull is seen", SOON, async || {
            of_kubelet(rome, "slow").await == ["Pulling", "Pulled"]
        })
        .await;
    tokio::time::sleep(SOON).await;
    for healthy in ["present", "quick"] {
        assert_eq!(
            of_kubelet(rome, healthy).await,
            Vec::<String>::new(),
            "{healthy}"
        );
    }
}

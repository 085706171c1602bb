//! Pods that a provider cannot run come home, if they may run here.

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, StatefulSet},
        core::v1::{ConfigMap, Event, Pod},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use liqo_api::{NAMESPACE_OFFLOADING, NamespaceOffloading, PeeringPolicy, annotations};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    json::object,
    users::SOON,
    world::{Cluster, Start, World},
};

const REPLICAS: usize = 4;

fn prefers_virtual_nodes() -> Value {
    let preference = json!({ "matchExpressions": [{ "key": "liqo.io/type", "operator": "In", "values": ["virtual-node"] }] });
    json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 100, "preference": preference }] } })
}

/// A Deployment whose pods prefer virtual nodes.
async fn deploy(rome: &Cluster, name: &str, image: &str, volumes: &Value) {
    let requests = json!({ "requests": { "cpu": "10m", "memory": "32Mi" } });
    let deployment: Deployment = object(json!({
        "metadata": { "name": name },
        "spec": { "replicas": REPLICAS, "selector": { "matchLabels": { "app": name } }, "template": {
            "metadata": { "labels": { "app": name } },
            "spec": { "affinity": prefers_virtual_nodes(), "volumes": volumes,
                "containers": [{ "name": "main", "image": image, "resources": requests }] },
        } },
    }));
    rome.api::<Deployment>("demo")
        .create(&PostParams::default(), &deployment)
        .await
        .unwrap();
}

fn mounted(config_map: &str) -> Value {
    json!([{ "name": "v", "configMap": { "name": config_map } }])
}

/// With this many keys: with more than 10,000 it does not travel.
async fn create_config_map(api: Api<ConfigMap>, name: &str, keys: usize) {
    let data = (0..keys)
        .map(|key| (format!("file-{key}"), "x".to_owned()))
        .collect();
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    let map = ConfigMap {
        metadata,
        data: Some(data),
        ..ConfigMap::default()
    };
    api.create(&PostParams::default(), &map).await.unwrap();
}

/// The nodes of the ready pods of a Deployment.
async fn nodes(rome: &Cluster, name: &str) -> Vec<String> {
    let pods: Vec<Pod> = rome.ready_pods("demo").await;
    let of_app = pods
        .into_iter()
        .filter(|pod| pod.labels().get("app").is_some_and(|app| app == name));
    of_app.filter_map(|pod| pod.spec?.node_name).collect()
}

async fn uids(rome: &Cluster) -> Vec<String> {
    let pods = rome
        .api::<Pod>("demo")
        .list(&ListParams::default())
        .await
        .unwrap();
    pods.into_iter()
        .filter_map(|pod| pod.metadata.uid)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn pods_that_a_provider_cannot_run_come_home_all_of_an_owner_together_and_stay() {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    let images = Patch::Merge(
        json!({ "spec": { "provide": { "usage": { "images": ["example.com/main:1"] } } } }),
    );
    milan
        .all::<PeeringPolicy>()
        .patch("default", &PatchParams::default(), &images)
        .await
        .unwrap();
    world.offload(0, "demo", "LocalAndRemote").await;
    let offloading = rome
        .api::<NamespaceOffloading>("demo")
        .get(NAMESPACE_OFFLOADING)
        .await
        .unwrap();
    let mapped = offloading
        .status
        .unwrap()
        .remote_namespaces
        .remove(0)
        .namespace;
    create_config_map(rome.api("demo"), "bundle", 10_001).await;
    create_config_map(rome.api("demo"), "taken", 1).await;
    create_config_map(milan.api(&mapped), "taken", 1).await;

    let allowed = "example.com/main:1";
    deploy(rome, "plain", allowed, &json!([])).await;
    deploy(rome, "bundle", allowed, &mounted("bundle")).await;
    deploy(rome, "image", "example.com/other:1", &json!([])).await;
    // Milan's ConfigMap of that name is in nobody's way.
    deploy(rome, "taken", allowed, &mounted("taken")).await;

    let created = Instant::now();
    let are_home = async |name: &str| {
        let nodes = nodes(rome, name).await;
        nodes.len() == REPLICAS && nodes.iter().all(|node| node != "milan")
    };
    for name in ["image", "bundle"] {
        world
            .until(
                &format!("the pods of {name} run at home"),
                SOON,
                async || are_home(name).await,
            )
            .await;
        println!(
            "{name}: at home {} s after they were created",
            created.elapsed().as_secs()
        );
    }
    for name in ["plain", "taken"] {
        let are_there = async || nodes(rome, name).await == ["milan"; REPLICAS];
        world
            .until(&format!("the pods of {name} run at milan"), SOON, are_there)
            .await;
    }
    assert_eq!(milan.pods_of("bundle").len(), 0, "none was sent");
    let offloading = rome
        .api::<NamespaceOffloading>("demo")
        .get(NAMESPACE_OFFLOADING)
        .await
        .unwrap();
    let remembered = &offloading.annotations()[annotations::REFUSED_PODS];
    assert!(
        remembered.contains("ConfigMap/bundle") && remembered.contains("ImageNotAllowed"),
        "{remembered}"
    );

    let before = uids(rome).await;
    tokio::time::sleep(10 * SOON).await;
    assert_eq!(uids(rome).await, before, "nothing moves any more");
}

#[tokio::test(start_paused = true)]
async fn pods_whose_image_the_provider_cannot_pull_come_home_in_time_or_say_why_they_do_not() {
    const IMAGE: &str = "example.com/rare:1";
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    milan
        .settings
        .send_modify(|settings| _ = settings.missing_images.insert(IMAGE.to_owned()));
    world.offload(0, "demo", "LocalAndRemote").await;
    world.offload(0, "far", "Remote").await;
    deploy(rome, "rare", IMAGE, &json!([])).await;
    let labels = json!({ "app": "only-there" });
    let only_there: Deployment = object(json!({
        "metadata": { "name": "only-there" },
        "spec": { "replicas": 1, "selector": { "matchLabels": labels }, "template": {
            "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "main", "image": IMAGE }] },
        } },
    }));
    rome.api::<Deployment>("far")
        .create(&PostParams::default(), &only_there)
        .await
        .unwrap();

    let created = Instant::now();
    let are_home = async || {
        let nodes = nodes(rome, "rare").await;
        nodes.len() == REPLICAS && nodes.iter().all(|node| node != "milan")
    };
    world
        .until("the pods run at home", 4 * SOON, are_home)
        .await;
    println!(
        "an image that cannot be pulled: at home {} s after they were created",
        created.elapsed().as_secs()
    );
    let is_told = async || {
        let events = rome
            .api::<Event>("far")
            .list(&ListParams::default())
            .await
            .unwrap();
        events.iter().any(|event| {
            event.message.as_deref().is_some_and(|text| {
                text.contains("ImagePullBackOff") && text.contains("it stays there")
            })
        })
    };
    world
        .until("an event says why the other pod stays", 4 * SOON, is_told)
        .await;
}

#[tokio::test(start_paused = true)]
async fn pods_for_which_a_provider_makes_no_network_come_home_in_time_also_when_the_manager_is_started_again()
 {
    let mut world = World::peered(Start::default()).await;
    world.clusters[1]
        .settings
        .send_modify(|settings| settings.has_no_pod_network = true);
    world.offload(0, "demo", "LocalAndRemote").await;
    deploy(&world.clusters[0], "web", "example.com/main:1", &json!([])).await;
    let created = Instant::now();
    tokio::time::sleep(SOON).await;
    // The new process begins to count again.
    world.clusters[0].manager(1).kill();
    world.clusters[0].restart_manager(1);
    let rome = &world.clusters[0];
    let are_home = async || {
        let nodes = nodes(rome, "web").await;
        nodes.len() == REPLICAS && nodes.iter().all(|node| node != "milan")
    };
    world
        .until("the pods run at home", 4 * SOON, are_home)
        .await;
    println!(
        "no sandbox: at home {} s after they were created",
        created.elapsed().as_secs()
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_none_of_three_providers_can_start_comes_home_after_one_turn() {
    const IMAGE: &str = "example.com/rare:1";
    let providers = ["milan", "turin", "genoa"];
    let world = World::start(
        &["rome", providers[0], providers[1], providers[2]],
        Start::default(),
    )
    .await;
    for provider in 1..=providers.len() {
        world.peer_and_wait(0, provider).await;
        world.clusters[provider]
            .settings
            .send_modify(|settings| _ = settings.missing_images.insert(IMAGE.to_owned()));
    }
    let rome = &world.clusters[0];
    world.offload(0, "demo", "LocalAndRemote").await;
    deploy(rome, "rare", IMAGE, &json!([])).await;
    rome.scale("demo", "rare", 1).await;
    let are_home = async || {
        let nodes = nodes(rome, "rare").await;
        nodes.len() == 1 && nodes.iter().all(|node| !providers.contains(&node.as_str()))
    };
    // Five minutes at each.
    let took = world
        .until("the pod runs at home", 10 * SOON, are_home)
        .await;
    println!(
        "an image that none of three providers can pull: at home after {} s",
        took.as_secs()
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_host_name_would_be_too_long_at_a_provider_comes_home_at_once() {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    world.offload(0, "demo", "LocalAndRemote").await;
    // At home, demo.svc.cluster.local follows; at milan, the namespace has a longer name.
    let replicas = |name: &str| {
        json!({ "metadata": { "name": name }, "spec": { "replicas": 2,
        "selector": { "matchLabels": { "app": name } }, "template": { "metadata": { "labels": { "app": name } }, "spec": {
            "affinity": prefers_virtual_nodes(), "setHostnameAsFQDN": true, "subdomain": "web", "containers": [{ "name": "main", "image": "i" }] } } } })
    };
    for name in ["short", "a-name-of-the-main-database"] {
        rome.api::<StatefulSet>("demo")
            .create(&PostParams::default(), &object(replicas(name)))
            .await
            .unwrap();
    }
    let are_home = async || {
        let nodes = nodes(rome, "a-name-of-the-main-database").await;
        nodes.len() == 2 && nodes.iter().all(|node| node != "milan")
    };
    let took = world
        .until("the pods with long names run at home", SOON, are_home)
        .await;
    println!(
        "a host name that is too long: at home after {} s",
        took.as_secs()
    );
    assert_eq!(milan.pods_of("a-name-of-the-main-database").len(), 0);
    world
        .until("the others run at milan", SOON, async || {
            nodes(rome, "short").await == ["milan"; 2]
        })
        .await;
    let events = rome
        .api::<Event>("demo")
        .list(&ListParams::default())
        .await
        .unwrap();
    let says = |event: &Event| {
        event
            .message
            .as_deref()
            .is_some_and(|text| text.contains("which has") && text.contains("characters"))
    };
    assert!(events.iter().any(says), "an event says why");
}

#[tokio::test(start_paused = true)]
async fn forty_pods_without_requests_all_run_although_their_provider_has_room_for_a_few() {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    let share = Patch::Merge(json!({ "spec": { "provide": { "percentage": 1 } } }));
    milan
        .all::<PeeringPolicy>()
        .patch("default", &PatchParams::default(), &share)
        .await
        .unwrap();
    world.offload(0, "demo", "LocalAndRemote").await;
    let labels = json!({ "app": "small" });
    let deployment: Deployment = object(json!({
        "metadata": { "name": "small" },
        "spec": { "replicas": 40, "selector": { "matchLabels": labels }, "template": {
            "metadata": { "labels": labels },
            "spec": { "affinity": prefers_virtual_nodes(), "containers": [{ "name": "main", "image": "example.com/main:1" }] },
        } },
    }));
    rome.api::<Deployment>("demo")
        .create(&PostParams::default(), &deployment)
        .await
        .unwrap();
    let took = world
        .until("all run", 6 * SOON, async || {
            nodes(rome, "small").await.len() == 40
        })
        .await;
    let there = milan.pods_of("small").len();
    println!(
        "full by charges that home does not see: {there} of 40 pods run at milan, and the others at home after {} s",
        took.as_secs()
    );
    assert!((1..40).contains(&there), "{there}");
}

#[tokio::test(start_paused = true)]
async fn pods_that_wait_for_a_full_provider_run_here_as_soon_as_they_may_and_those_that_run_there_stay()
 {
    for strategy in ["Local", "LocalAndRemote"] {
        let world = World::peered(Start::default()).await;
        let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
        let share = Patch::Merge(json!({ "spec": { "provide": { "percentage": 1 } } }));
        milan
            .all::<PeeringPolicy>()
            .patch("default", &PatchParams::default(), &share)
            .await
            .unwrap();
        world.offload(0, "demo", "Remote").await;
        rome.deploy("demo", "web", 6).await;
        let ready = async || rome.ready_pods("demo").await.len();
        world
            .until("the provider is full", SOON, async || {
                ready().await > 0 && milan.pods_of("web").len() == ready().await
            })
            .await;
        tokio::time::sleep(SOON).await;
        let there = milan.pods_of("web").len();
        assert!((1..6).contains(&there), "{there} of 6 pods are there");

        let change = Patch::Merge(json!({ "spec": { "podOffloadingStrategy": strategy } }));
        let offloadings = rome.api::<NamespaceOffloading>("demo");
        offloadings
            .patch(NAMESPACE_OFFLOADING, &PatchParams::default(), &change)
            .await
            .unwrap();
        let took = world
            .until("all run", SOON, async || {
                nodes(rome, "web").await.len() == 6
            })
            .await;
        println!(
            "{strategy}: {there} of 6 pods were there, and the others run {} s after the change",
            took.as_secs()
        );
        assert_eq!(milan.pods_of("web").len(), there);
    }
}

#[tokio::test(start_paused = true)]
async fn a_virtual_node_shows_what_pods_can_still_request() {
    let world = World::peered(Start::default()).await;
    world.offload(0, "demo", "Remote").await;
    let rome = &world.clusters[0];
    let amounts = async |field: &str| {
        let node = rome
            .server
            .objects()
            .into_iter()
            .find(|(key, _)| key.resource == "nodes" && key.name == "milan")
            .unwrap()
            .1;
        ["cpu", "memory"].map(|resource| {
            let text = node["status"][field][resource]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            text.parse::<liqo_quantity::Quantity>().unwrap()
        })
    };
    let capacity = amounts("capacity").await;
    assert_eq!(amounts("allocatable").await, capacity);
    let plain: Pod = object(json!({ "metadata": { "name": "plain" },
        "spec": { "containers": [{ "name": "main", "image": "example.com/main:1" }] } }));
    let pods = rome.api::<Pod>("demo");
    pods.create(&PostParams::default(), &plain).await.unwrap();
    let less = ["10m", "32Mi"].map(|amount| amount.parse::<liqo_quantity::Quantity>().unwrap());
    let expected = [0, 1].map(|at| capacity[at].saturating_sub(less[at]));
    world
        .until("the pod's charge is subtracted", SOON, async || {
            amounts("allocatable").await == expected
        })
        .await;
    pods.delete("plain", &DeleteParams::default())
        .await
        .unwrap();
    world
        .until("it is free again", SOON, async || {
            amounts("allocatable").await == capacity
        })
        .await;
}

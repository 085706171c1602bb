//! Changes that are refused, or larger than a record: what worked goes on working.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::{
    core::v1::{Event, Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use liqo_api::{CLUSTER_CONFIG, ClusterConfig, PeeringPolicy, ReflectedObject};
use serde_json::{Value, json};

use crate::{
    json::object,
    users::SOON,
    world::{Cluster, Start, World},
};

/// Gives a cluster a network, whose agents are not simulated: it agrees with its peers on
/// addresses, and no packets flow.
async fn enable_network(cluster: &Cluster) {
    let change = json!({ "spec": { "network": { "enabled": true, "podCIDRs": ["10.244.0.0/16"], "serviceCIDRs": ["10.96.0.0/16"] } } });
    let configs = cluster.all::<ClusterConfig>();
    configs
        .patch(
            CLUSTER_CONFIG,
            &PatchParams::default(),
            &Patch::Merge(change),
        )
        .await
        .unwrap();
}

/// A slice of Service `web` with this many endpoints, whose hostnames are as long as they can be.
fn slice(endpoints: u32) -> EndpointSlice {
    let endpoint = |number: u32| {
        json!({ "addresses": [format!("10.244.{}.{}", number / 250, number % 250)], "hostname": format!("{number:063}"),
            "conditions": { "ready": true, "serving": true, "terminating": false } })
    };
    object(json!({
        "metadata": { "name": "web-1", "labels": { "kubernetes.io/service-name": "web" } }, "addressType": "IPv4",
        "endpoints": (0..endpoints).map(endpoint).collect::<Vec<_>>(), "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
    }))
}

/// The slices of Service `web` at a provider.
async fn slices_at(provider: &Cluster) -> Vec<EndpointSlice> {
    let of_service =
        ListParams::default().labels("kubernetes.io/service-name=web,liqo.io/reflected=true");
    provider
        .all::<EndpointSlice>()
        .list(&of_service)
        .await
        .unwrap()
        .items
}

async fn addresses_at(provider: &Cluster) -> BTreeSet<String> {
    slices_at(provider)
        .await
        .into_iter()
        .flat_map(|slice| slice.endpoints)
        .flat_map(|endpoint| endpoint.addresses)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_slice_that_grows_keeps_its_endpoints_at_the_provider_and_a_service_its_ports() {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    for cluster in [rome, milan] {
        enable_network(cluster).await;
    }
    world.offload(0, "demo", "Remote").await;
    let ports = |count: u16| {
        (0..count)
            .map(|port| json!({ "name": format!("p{port}"), "port": 1000 + port }))
            .collect::<Vec<_>>()
    };
    let service: Service =
        object(json!({ "metadata": { "name": "web" }, "spec": { "ports": ports(3) } }));
    rome.api::<Service>("demo")
        .create(&PostParams::default(), &service)
        .await
        .unwrap();
    let slices = rome.api::<EndpointSlice>("demo");
    slices
        .create(&PostParams::default(), &slice(50))
        .await
        .unwrap();
    world
        .until("50 endpoints are at milan", SOON, async || {
            addresses_at(milan).await.len() == 50
        })
        .await;
    let first = addresses_at(milan).await;
    assert_eq!(slices_at(milan).await.len(), 1);

    for count in [100, 1000] {
        slices
            .patch(
                "web-1",
                &PatchParams::default(),
                &Patch::Merge(json!({ "endpoints": slice(count).endpoints })),
            )
            .await
            .unwrap();
        world
            .until("all endpoints are at milan", SOON, async || {
                let now = addresses_at(milan).await;
                assert!(
                    first.is_subset(&now),
                    "endpoints that did not change are missing"
                );
                now.len() == usize::try_from(count).unwrap()
            })
            .await;
    }
    let change = Patch::Merge(json!({ "spec": { "ports": ports(25) } }));
    rome.api::<Service>("demo")
        .patch("web", &PatchParams::default(), &change)
        .await
        .unwrap();
    let kept = async || {
        let reflected = ListParams::default().labels("liqo.io/reflected=true");
        let services = milan.all::<Service>().list(&reflected).await.unwrap().items;
        services
            .into_iter()
            .find(|service| service.name_any() == "web")
            .unwrap()
            .spec
            .unwrap()
            .ports
            .unwrap_or_default()
    };
    world
        .until("twenty ports are at milan", SOON, async || {
            kept().await.len() == 20
        })
        .await;
    world
        .until("an event names the others", SOON, async || {
            warned(rome, "NotReflected", "p24 (1024)").await
        })
        .await;

    // Nothing is written when nothing changes.
    let versions = async || -> BTreeSet<String> {
        let records = milan
            .all::<ReflectedObject>()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items;
        let slices = slices_at(milan).await;
        let of_records = records.iter().filter_map(ResourceExt::resource_version);
        of_records
            .chain(slices.iter().filter_map(ResourceExt::resource_version))
            .collect()
    };
    let settled = versions().await;
    tokio::time::sleep(Duration::from_secs(400)).await;
    assert_eq!(versions().await, settled);

    slices
        .patch(
            "web-1",
            &PatchParams::default(),
            &Patch::Merge(json!({ "endpoints": slice(50).endpoints })),
        )
        .await
        .unwrap();
    world
        .until("one slice is left", SOON, async || {
            slices_at(milan).await.len() == 1 && addresses_at(milan).await == first
        })
        .await;
    slices
        .delete("web-1", &DeleteParams::default())
        .await
        .unwrap();
    world
        .until("no slice is left", SOON, async || {
            slices_at(milan).await.is_empty()
        })
        .await;
}

/// Whether an event of this reason says this.
async fn warned(cluster: &Cluster, reason: &str, words: &str) -> bool {
    let events = cluster
        .api::<Event>("demo")
        .list(&ListParams::default())
        .await
        .unwrap()
        .items;
    events.iter().any(|event| {
        event.reason.as_deref() == Some(reason)
            && event
                .message
                .as_deref()
                .is_some_and(|message| message.contains(words))
    })
}

/// The reason of the condition that tells whether a provider runs a pod.
fn offloaded(pod: &Pod) -> String {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut reasons = conditions
        .filter(|one| one.type_ == "liqo.io/Offloaded")
        .filter_map(|one| one.reason.clone());
    reasons.next().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_running_pod_follows_its_labels_and_what_it_reads_whatever_its_other_annotations_are() {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    world.offload(0, "demo", "Remote").await;
    let reads = json!([{ "name": "GO", "valueFrom": { "fieldRef": { "fieldPath": "metadata.annotations['go']" } } }]);
    let pod: Pod = object(json!({
        "metadata": { "name": "web", "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "main", "image": "example.com/main:1", "env": reads }] },
    }));
    let pods: Api<Pod> = rome.api("demo");
    pods.create(&PostParams::default(), &pod).await.unwrap();
    world
        .until("the pod is ready", SOON, async || {
            rome.ready_pods("demo").await.len() == 1
        })
        .await;
    let change = async |metadata: Value| {
        pods.patch(
            "web",
            &PatchParams::default(),
            &Patch::Merge(json!({ "metadata": metadata })),
        )
        .await
        .unwrap();
    };
    let remote = |field: &str, key: &str| milan.pods_of("web")[0]["metadata"][field][key].clone();
    let go = "annotation.home.liqo.io/go";

    change(json!({ "annotations": { "state": "x".repeat(120 * 1024) } })).await;
    change(json!({ "annotations": { "go": "READY" }, "labels": { "phase": "1" } })).await;
    world
        .until("it reads the signal", SOON, async || {
            remote("annotations", go) == "READY" && remote("labels", "phase") == "1"
        })
        .await;
    let shown = offloaded(&pods.get("web").await.unwrap());
    assert!(
        ["", "Offloaded"].contains(&shown.as_str()),
        "nobody reads what stays at home: {shown}"
    );

    change(json!({ "annotations": { "state": null, "liqo.io/api-server": "bogus" }, "labels": { "phase": "2" } })).await;
    let is_shown = async |reason: &str| offloaded(&pods.get("web").await.unwrap()) == reason;
    world
        .until("the refusal is shown", SOON, async || {
            is_shown("ChangeRefused").await
        })
        .await;
    world
        .until("an event tells it", SOON, async || {
            warned(rome, "ChangeRefused", "says bogus").await
        })
        .await;
    world
        .until("the label arrives all the same", SOON, async || {
            remote("labels", "phase") == "2"
        })
        .await;

    change(json!({ "annotations": { "liqo.io/api-server": null, "go": "x".repeat(120 * 1024) }, "labels": { "phase": "3" } }))
        .await;
    world
        .until("the label arrives all the same", SOON, async || {
            remote("labels", "phase") == "3"
        })
        .await;
    assert_eq!(
        remote("annotations", go),
        "READY",
        "what is too long does not take away what was there"
    );
    change(json!({ "annotations": { "go": "STOP" } })).await;
    world
        .until("it reads the next signal", SOON, async || {
            remote("annotations", go) == "STOP"
        })
        .await;
    world
        .until("nothing is refused any more", SOON, async || {
            is_shown("Offloaded").await
        })
        .await;
}

async fn allow_images(provider: &Cluster, images: &[&str]) {
    let change = Patch::Merge(json!({ "spec": { "provide": { "usage": { "images": images } } } }));
    provider
        .all::<PeeringPolicy>()
        .patch("default", &PatchParams::default(), &change)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_running_pod_whose_new_image_is_not_allowed_keeps_the_old_one_and_says_so() {
    let mut world = World::peered(Start {
        replicas: 2,
        ..Start::default()
    })
    .await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    allow_images(milan, &["example.com/main:1"]).await;
    world.offload(0, "demo", "Remote").await;
    let pod: Pod = object(json!({
        "metadata": { "name": "web", "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "main", "image": "example.com/main:1" }] },
    }));
    let pods: Api<Pod> = rome.api("demo");
    pods.create(&PostParams::default(), &pod).await.unwrap();
    world
        .until("the pod is ready", SOON, async || {
            rome.ready_pods("demo").await.len() == 1
        })
        .await;
    let runs = async |image: &str| {
        let change = json!({ "spec": { "containers": [{ "name": "main", "image": image }] } });
        pods.patch("web", &PatchParams::default(), &Patch::Strategic(change))
            .await
            .unwrap();
    };
    let is_shown = async |reason: &str| offloaded(&pods.get("web").await.unwrap()) == reason;

    runs("example.com/other:1").await;
    world
        .until("the refusal is shown", SOON, async || {
            is_shown("ChangeRefused").await
        })
        .await;
    world
        .until("an event names the image", SOON, async || {
            warned(rome, "ChangeRefused", "example.com/other:1").await
        })
        .await;
    // Another manager leads, and has to judge the change itself.
    world.clusters[1].kill_leader().await;
    tokio::time::sleep(2 * SOON).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    let pods: Api<Pod> = rome.api("demo");
    let is_shown = async |reason: &str| offloaded(&pods.get("web").await.unwrap()) == reason;
    let image_there = || milan.pods_of("web")[0]["spec"]["containers"][0]["image"].clone();
    assert!(is_shown("ChangeRefused").await);
    assert_eq!(image_there(), "example.com/main:1");

    allow_images(milan, &["example.com/main:1", "example.com/other:1"]).await;
    world
        .until("the pod gets its image", SOON, async || {
            image_there() == "example.com/other:1"
        })
        .await;
    world
        .until("nothing is refused any more", SOON, async || {
            is_shown("Offloaded").await
        })
        .await;
}

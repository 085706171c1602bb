//! Offers that shrink or end, and the pods that use them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use liqo_api::{ForeignCluster, PeeringPolicy, ResourceOffer, annotations, links};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    json::object,
    users::SOON,
    world::{Cluster, Start, World},
};

const SLOT: &str = "example.com/slot";

/// Changes what a cluster provides to everybody.
pub async fn provide(cluster: &Cluster, change: Value) {
    let patch = Patch::Merge(json!({ "spec": { "provide": change } }));
    cluster
        .all::<PeeringPolicy>()
        .patch("default", &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// How much of a resource a node has.
async fn allocatable(cluster: &Cluster, node: &str, resource: &str) -> String {
    let node = cluster.all::<Node>().get_opt(node).await.unwrap();
    let amounts = node
        .and_then(|node| node.status?.allocatable)
        .unwrap_or_default();
    amounts
        .get(resource)
        .map(|amount| amount.0.clone())
        .unwrap_or_default()
}

async fn node_of(cluster: &Cluster, pod: &Pod) -> String {
    let pods: Api<Pod> = cluster.api(&pod.namespace().unwrap());
    pods.get(&pod.name_any())
        .await
        .unwrap()
        .spec
        .unwrap()
        .node_name
        .unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn when_a_node_dies_the_offer_shrinks_and_the_youngest_excess_pod_ends() {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    for node in ["milan-1", "milan-2"] {
        let patch = Patch::Merge(
            json!({ "status": { "capacity": { SLOT: "1" }, "allocatable": { SLOT: "1" } } }),
        );
        milan
            .all::<Node>()
            .patch_status(node, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
    provide(milan, json!({ "percentage": 100, "noticeSeconds": 4 })).await;
    let has_slots = async |count: &str| allocatable(rome, "milan", SLOT).await == count;
    world
        .until("two slots are lent", SOON, async || has_slots("2").await)
        .await;
    world.offload(0, "demo", "Remote").await;
    let mut there = Vec::new();
    for name in ["elder", "younger"] {
        let resources = json!({ "requests": { "cpu": "10m", SLOT: "1" }, "limits": { SLOT: "1" } });
        let pod: Pod = object(json!({
            "metadata": { "name": name, "labels": { "app": name } },
            "spec": { "containers": [{ "name": "main", "image": "example.com/main:1", "resources": resources }] },
        }));
        rome.api::<Pod>("demo")
            .create(&PostParams::default(), &pod)
            .await
            .unwrap();
        let is_ready = async || {
            rome.ready_pods("demo")
                .await
                .iter()
                .any(|pod| pod.name_any() == name)
        };
        world.until("the pod is ready", SOON, is_ready).await;
        there.push(object::<Pod>(milan.pods_of(name).remove(0)));
    }
    let (elder, younger) = (&there[0], &there[1]);
    let dying = node_of(milan, younger).await;
    milan
        .settings
        .send_modify(|settings| _ = settings.nodes_without_power.insert(dying));
    world
        .until("one slot is lent", SOON, async || has_slots("1").await)
        .await;
    let status = async |name: &str| {
        rome.api::<Pod>("demo")
            .get(name)
            .await
            .unwrap()
            .status
            .unwrap_or_default()
    };
    world
        .until(
            "the younger pod has ended, and says why",
            SOON * 2,
            async || {
                let status = status("younger").await;
                let message = status.message.unwrap_or_default();
                status.reason.as_deref() == Some("Evicted")
                    && message.contains("took back")
                    && message.contains(SLOT)
            },
        )
        .await;
    milan
        .settings
        .send_modify(|settings| settings.nodes_without_power.clear());
    world
        .until("two slots are lent again", SOON, async || {
            has_slots("2").await
        })
        .await;
    let after: Pod = object(milan.pods_of("elder").remove(0));
    assert_eq!(
        (after.uid(), after.metadata.deletion_timestamp),
        (elder.uid(), None),
        "a pod within the offer was ended"
    );
    assert!(
        rome.ready_pods("demo")
            .await
            .iter()
            .any(|pod| pod.name_any() == "elder")
    );
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_pool_is_drained_within_disruption_budgets() {
    const NOTICE: Duration = Duration::from_mins(4);
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    // All pods start at milan and may come home later.
    for node in ["rome-1", "rome-2"] {
        assert!(rome.drain(node).await);
    }
    world.offload(0, "demo", "LocalAndRemote").await;
    rome.deploy("demo", "web", 3).await;
    world
        .until("three pods run at milan", SOON, async || {
            rome.ready_pods("demo").await.len() == 3
        })
        .await;
    assert_eq!(milan.pods_of("web").len(), 3);
    let budget: PodDisruptionBudget = object(json!({
        "metadata": { "name": "web" }, "spec": { "minAvailable": 2, "selector": { "matchLabels": { "app": "web" } } },
    }));
    rome.api::<PodDisruptionBudget>("demo")
        .create(&PostParams::default(), &budget)
        .await
        .unwrap();
    let allowed = async || {
        let status = rome
            .api::<PodDisruptionBudget>("demo")
            .get("web")
            .await
            .unwrap()
            .status
            .unwrap_or_default();
        status.disruptions_allowed == 1
    };
    world
        .until("the budget allows one disruption", SOON, allowed)
        .await;
    for node in ["rome-1", "rome-2"] {
        rome.uncordon(node).await;
    }
    let fewest = Arc::new(AtomicUsize::new(3));
    let (seen, server) = (fewest.clone(), rome.server.clone());
    let watching = tokio::spawn(async move {
        loop {
            let objects = server
                .objects()
                .into_iter()
                .filter(|(key, _)| key.resource == "pods" && key.namespace == "demo");
            let is_healthy = |pod: &Value| {
                let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
                pod["metadata"]["deletionTimestamp"].is_null()
                    && conditions.any(|condition| {
                        condition["type"] == "Ready" && condition["status"] == "True"
                    })
            };
            seen.fetch_min(
                objects.filter(|(_, pod)| is_healthy(pod)).count(),
                Ordering::Relaxed,
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    // No node has this label, so there are no pools any more.
    let none = json!({ "by": "NodeLabel", "label": "example.com/shelf" });
    let taken_back = Instant::now();
    provide(
        milan,
        json!({ "granularity": none, "noticeSeconds": NOTICE.as_secs() }),
    )
    .await;
    let is_gone = async || rome.all::<Node>().get_opt("milan").await.unwrap().is_none();
    world
        .until("the node is empty and gone", NOTICE, is_gone)
        .await;
    assert!(
        taken_back.elapsed() < NOTICE,
        "the node stayed until the end of the notice"
    );
    world
        .until("three pods are ready", SOON, async || {
            rome.ready_pods("demo").await.len() == 3
        })
        .await;
    watching.abort();
    assert_eq!(
        fewest.load(Ordering::Relaxed),
        2,
        "of three pods, of which two must be available"
    );
    for pod in rome.ready_pods("demo").await {
        assert!(node_of(rome, &pod).await.starts_with("rome-"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_limits_the_offer() {
    let world = World::peered(Start::default()).await;
    let rome = &world.clusters[0];
    let request = async |resources: Value| {
        let patch = Patch::Merge(json!({ "spec": { "request": { "resources": resources } } }));
        rome.all::<ForeignCluster>()
            .patch("milan", &PatchParams::default(), &patch)
            .await
            .unwrap();
    };
    request(json!({ "cpu": "500m", "pods": "3" })).await;
    let is_small = async || {
        (
            allocatable(rome, "milan", "cpu").await,
            allocatable(rome, "milan", "pods").await,
        ) == ("500m".to_owned(), "3".to_owned())
    };
    world
        .until("the node is as small as asked", SOON, is_small)
        .await;
    world.offload(0, "demo", "Remote").await;
    rome.deploy("demo", "web", 5).await;
    world
        .until("three pods run", SOON, async || {
            rome.ready_pods("demo").await.len() == 3
        })
        .await;
    tokio::time::sleep(SOON).await;
    assert_eq!(rome.ready_pods("demo").await.len(), 3);
    request(Value::Null).await;
    world
        .until("five pods run", SOON, async || {
            rome.ready_pods("demo").await.len() == 5
        })
        .await;
}

/// The virtual nodes of milan that are Ready, each with its cpu.
async fn nodes_of_milan(cluster: &Cluster) -> Vec<(String, String)> {
    let nodes = cluster
        .all::<Node>()
        .list(&ListParams::default().labels("liqo.io/type=virtual-node"))
        .await
        .unwrap();
    let mut found = Vec::new();
    for node in nodes {
        let status = node.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        if conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
        {
            let cpu = status
                .allocatable
                .unwrap_or_default()
                .get("cpu")
                .map(|cpu| cpu.0.clone())
                .unwrap_or_default();
            found.push((node.metadata.name.unwrap_or_default(), cpu));
        }
    }
    found.sort();
    found
}

#[tokio::test(start_paused = true)]
async fn a_consumer_gets_a_virtual_node_for_each_node_if_the_provider_lets_it_choose() {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    for (node, cpu) in [("milan-1", "2"), ("milan-2", "4")] {
        set_cpu(milan, node, cpu).await;
    }
    provide(
        milan,
        json!({ "percentage": 100, "offerUpdateThresholdPercentage": 0, "noticeSeconds": 240 }),
    )
    .await;
    let one = vec![("milan".to_owned(), "6".to_owned())];
    world
        .until("one node stands for all", SOON, async || {
            nodes_of_milan(rome).await == one
        })
        .await;
    world.offload(0, "demo", "Remote").await;
    rome.deploy("demo", "web", 2).await;
    world
        .until("two pods run", SOON, async || {
            rome.ready_pods("demo").await.len() == 2
        })
        .await;
    let request = async |granularity: Value| {
        let patch = Patch::Merge(json!({ "spec": { "request": { "granularity": granularity } } }));
        rome.all::<ForeignCluster>()
            .patch("milan", &PatchParams::default(), &patch)
            .await
            .unwrap();
    };
    let answer = async || {
        let peer = rome.all::<ForeignCluster>().get("milan").await.unwrap();
        peer.condition(links::POOL_FOR_EACH_NODE)
            .map(|condition| condition.reason.clone())
            .unwrap_or_default()
    };
    request(json!("Node")).await;
    world
        .until("rome reads that it may not choose", SOON, async || {
            answer().await == "NotAllowed"
        })
        .await;
    tokio::time::sleep(SOON).await;
    assert_eq!(nodes_of_milan(rome).await, one);
    provide(milan, json!({ "granularity": { "peersMayChoose": true } })).await;
    world
        .until("rome reads that it may choose", SOON, async || {
            answer().await == "Granted"
        })
        .await;
    let two = vec![
        ("milan-milan-1".to_owned(), "2".to_owned()),
        ("milan-milan-2".to_owned(), "4".to_owned()),
    ];
    // The pods move before the notice is over.
    world
        .until("two nodes stand for two", SOON * 2, async || {
            nodes_of_milan(rome).await == two
        })
        .await;
    world
        .until("two pods run there", SOON, async || {
            rome.ready_pods("demo").await.len() == 2
        })
        .await;
    for pod in rome.ready_pods("demo").await {
        let is_its = |remote: &Value| remote["metadata"]["name"] == pod.name_any();
        let remote: Pod = object(milan.pods_of("web").into_iter().find(is_its).unwrap());
        let runs_on = format!("milan-{}", node_of(milan, &remote).await);
        assert_eq!(
            node_of(rome, &pod).await,
            runs_on,
            "a pod of a pool runs on its node"
        );
    }
    request(Value::Null).await;
    world
        .until("one node stands for all again", SOON * 2, async || {
            nodes_of_milan(rome).await == one
        })
        .await;
    world
        .until("two pods run again", SOON, async || {
            rome.ready_pods("demo").await.len() == 2
        })
        .await;
    assert_eq!(answer().await, "");
}

/// Creates a Deployment with pods of this size that prefer virtual nodes.
async fn deploy_elsewhere(cluster: &Cluster, namespace: &str, replicas: u8, cpu: &str) {
    let virtual_node =
        json!({ "key": "liqo.io/type", "operator": "In", "values": ["virtual-node"] });
    let preferred =
        json!([{ "weight": 100, "preference": { "matchExpressions": [virtual_node] } }]);
    let resources = json!({ "requests": { "cpu": cpu, "memory": "64Mi" } });
    let deployment: Deployment = object(json!({
        "metadata": { "name": "large" },
        "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": "large" } }, "template": {
            "metadata": { "labels": { "app": "large" } },
            "spec": {
                "affinity": { "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": preferred } },
                "containers": [{ "name": "main", "image": "example.com/main:1", "resources": resources }],
            },
        } },
    }));
    cluster
        .api::<Deployment>(namespace)
        .create(&PostParams::default(), &deployment)
        .await
        .unwrap();
}

/// Changes how much cpu a node has.
async fn set_cpu(cluster: &Cluster, node: &str, cpu: &str) {
    let patch = Patch::Merge(
        json!({ "status": { "capacity": { "cpu": cpu }, "allocatable": { "cpu": cpu } } }),
    );
    cluster
        .all::<Node>()
        .patch_status(node, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// Rome, which borrows from two nodes of milan with 1719m of cpu each.
async fn two_small_nodes() -> World {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    for node in ["milan-1", "milan-2"] {
        set_cpu(milan, node, "1719m").await;
    }
    provide(milan, json!({ "percentage": 100 })).await;
    world
        .until("both nodes are lent", SOON, async || {
            allocatable(rome, "milan", "cpu").await == "3438m"
        })
        .await;
    world
        .until("the virtual node tells their size", SOON, async || {
            largest_pod_has(rome, "1719m").await
        })
        .await;
    world
}

async fn largest_pod_has(cluster: &Cluster, cpu: &str) -> bool {
    let node = cluster.all::<Node>().get("milan").await.unwrap();
    node.annotations()
        .get(annotations::LARGEST_PODS)
        .is_some_and(|text| text.contains(&format!(r#""cpu":"{cpu}""#)))
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_no_node_of_the_provider_has_room_for_runs_at_home_at_once() {
    let world = two_small_nodes().await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    world.offload(0, "demo", "LocalAndRemote").await;
    deploy_elsewhere(rome, "demo", 2, "1100m").await;
    world
        .until("two pods run at milan", SOON, async || {
            rome.ready_pods("demo").await.len() == 2
        })
        .await;
    assert_eq!(milan.pods_of("large").len(), 2);
    world
        .until("the virtual node tells what is left", SOON, async || {
            largest_pod_has(rome, "619m").await
        })
        .await;
    assert_eq!(
        allocatable(rome, "milan", "cpu").await,
        "3438m",
        "by the sum, there is room for another one"
    );
    rome.scale("demo", "large", 3).await;
    let took = world
        .until("three pods run", SOON / 12, async || {
            rome.ready_pods("demo").await.len() == 3
        })
        .await;
    println!(
        "no node with room, which was known: at home after {} s",
        took.as_secs()
    );
    assert_eq!(milan.pods_of("large").len(), 2);
}

/// All three are placed before anybody knows where the first one runs.
#[tokio::test(start_paused = true)]
async fn of_three_large_pods_at_once_the_one_that_fits_on_no_node_comes_home_in_time() {
    let world = two_small_nodes().await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    world.offload(0, "demo", "LocalAndRemote").await;
    deploy_elsewhere(rome, "demo", 3, "1100m").await;
    let took = world
        .until("three pods run", 4 * SOON, async || {
            rome.ready_pods("demo").await.len() == 3
        })
        .await;
    println!(
        "no node with room, which nobody knew: at home after {} s",
        took.as_secs()
    );
    assert_eq!(milan.pods_of("large").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_may_run_nowhere_else_waits_until_a_node_has_room() {
    let world = two_small_nodes().await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    world.offload(0, "demo", "Remote").await;
    deploy_elsewhere(rome, "demo", 1, "2300m").await;
    let says_why = || {
        let conditions = rome
            .pods_of("large")
            .into_iter()
            .filter_map(|pod| pod["status"]["conditions"].as_array().cloned());
        conditions.flatten().any(|one| {
            one["reason"] == "OfferExceeded"
                && one["message"].as_str().unwrap().contains("581m short")
        })
    };
    world
        .until("the pod says what is short", SOON, async || says_why())
        .await;
    assert!(milan.pods_of("large").is_empty());
    set_cpu(milan, "milan-2", "4").await;
    world
        .until("it runs", SOON, async || {
            rome.ready_pods("demo").await.len() == 1
        })
        .await;
    assert_eq!(milan.pods_of("large").len(), 1);
}

/// A large cluster has many pods, and each change of one is an event.
#[tokio::test(start_paused = true)]
async fn a_cluster_watches_all_pods_from_its_first_consumer_on_and_a_new_leader_knows_them_first() {
    let mut world = World::start(&["rome", "milan"], Start::default()).await;
    let milan = &world.clusters[1];
    milan.deploy("default", "own", 20).await;
    world
        .until("milan's own pods run", SOON, async || {
            milan.ready_pods("default").await.len() == 20
        })
        .await;
    let pod = json!({
        "metadata": { "name": "a", "namespace": "somebodys", "labels": {} },
        "spec": { "nodeName": "a-node", "containers": [] },
        "status": { "phase": "Running" },
    });
    let watches = |world: &World| {
        let clusters = world.clusters.iter();
        let counts = clusters.map(|cluster| cluster.server.watch_count("pods", &pod));
        counts.collect::<Vec<_>>()
    };
    assert_eq!(watches(&world), [0, 0]);
    world.peer_and_wait(0, 1).await;
    assert_eq!(watches(&world), [0, 1]);
    world.clusters[1].manager(1).kill();
    world.clusters[1].restart_manager(1);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(watches(&world), [0, 1]);
    let offers: Api<ResourceOffer> = world.clusters[1].all();
    let offers = offers.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(offers.len(), 1);
    // An offer with the 2 cpu of these pods would have been another one.
    assert_eq!(
        offers[0].metadata.generation,
        Some(1),
        "{:?}",
        offers[0].spec
    );
}

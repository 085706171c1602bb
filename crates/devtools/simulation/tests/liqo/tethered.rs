//! Rome is a laptop that is tethered to milan, its office.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::{Event, Namespace, Pod, ServiceAccount};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use liqo_api::{
    CLUSTER_CONFIG, ClusterConfig, ClusterId, PeeringPolicy, TetheringState, TunnelEndpoint,
};
use liqoctl::manifests;
use serde_json::json;

use crate::{
    json::object,
    users::{SOON, template},
    world::{Cluster, Start, World},
};

pub const NAMESPACE: &str = "work";
const RELEASE_AFTER: Duration = Duration::from_mins(1);

/// Rome and milan borrow from each other, and namespace `work` exists. Nobody is tethered yet.
pub async fn laptop_and_office(start: Start) -> World {
    let world = World::start(&["rome", "milan"], start).await;
    let provide = json!({ "percentage": 100, "noticeSeconds": 20, "tethering": true });
    for cluster in &world.clusters {
        let change = Patch::Merge(json!({ "spec": { "provide": provide } }));
        cluster
            .all::<PeeringPolicy>()
            .patch("default", &PatchParams::default(), &change)
            .await
            .unwrap();
    }
    for (number, cluster) in (1..).zip(&world.clusters) {
        give_network(cluster, number).await;
    }
    world.peer(0, 1).await;
    world.peer(1, 0).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    let is_peered = async || rome.node_is_ready("milan").await && milan.node_is_ready("rome").await;
    world
        .until("each has a node of the other", SOON, is_peered)
        .await;
    let namespace: Namespace = object(json!({ "metadata": { "name": NAMESPACE } }));
    let rome = &world.clusters[0];
    rome.all::<Namespace>()
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let accounts = rome.api::<ServiceAccount>(NAMESPACE);
    world
        .until("pods may be created", SOON, async || {
            accounts.get_opt("default").await.unwrap().is_some()
        })
        .await;
    world
}

/// Gives a cluster a network, in which no packet flows: whatever tunnel its managers want is said
/// to be connected.
async fn give_network(cluster: &Cluster, number: u8) {
    let ranges = json!({
        "enabled": true, "podCIDRs": [format!("10.{number}.1.0/24"), format!("10.{number}.2.0/24")],
        "serviceCIDRs": [format!("10.{number}.255.0/24")],
    });
    let change = Patch::Merge(json!({ "spec": { "network": ranges } }));
    cluster
        .all::<ClusterConfig>()
        .patch(CLUSTER_CONFIG, &PatchParams::default(), &change)
        .await
        .unwrap();
    let (tunnels, clock): (Api<TunnelEndpoint>, _) =
        (cluster.api(manifests::NAMESPACE), cluster.server.clone());
    tokio::spawn(async move {
        loop {
            for tunnel in tunnels.list(&ListParams::default()).await.unwrap() {
                if tunnel.connected_condition().is_none() {
                    let condition = json!({
                        "type": "Connected", "status": "True", "reason": "Simulated", "message": "", "lastTransitionTime": clock.now(),
                    });
                    let status = Patch::Merge(json!({ "status": { "conditions": [condition] } }));
                    // It may be gone meanwhile.
                    let _ = tunnels
                        .patch_status(&tunnel.name_any(), &PatchParams::default(), &status)
                        .await;
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
}

pub async fn state(rome: &Cluster) -> TetheringState {
    rome.all::<ClusterConfig>()
        .get(CLUSTER_CONFIG)
        .await
        .unwrap()
        .tethering()
        .0
}

/// Writes which peer is to control a cluster.
pub async fn wish(rome: &Cluster, peer: Option<&ClusterId>) {
    let wish = json!({ "clusterID": peer, "releaseAfterSeconds": RELEASE_AFTER.as_secs() });
    let change = Patch::Merge(json!({ "spec": { "tethering": wish } }));
    rome.all::<ClusterConfig>()
        .patch(CLUSTER_CONFIG, &PatchParams::default(), &change)
        .await
        .unwrap();
}

/// Hands rome over to milan, and waits until that controls it.
pub async fn tether(world: &World) {
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    wish(rome, Some(&milan.id)).await;
    world
        .until("rome is tethered", SOON, async || {
            state(rome).await == TetheringState::Tethered
        })
        .await;
    world
        .until("its namespace is offloaded", SOON, async || {
            rome.is_offloaded(NAMESPACE).await
        })
        .await;
}

fn cut(world: &World) {
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    for (one, other) in [(rome, milan), (milan, rome)] {
        world.internet.cut(one.address(0), other.address(1));
        world.internet.cut(one.address(1), other.address(0));
    }
}

/// The owners of pods, in the order of the page.
const OWNERS: [&str; 4] = ["deployment", "statefulset", "job", "alone"];

/// Creates one of each owner, with one pod, and waits until all have a node if they get one.
async fn run_all(world: &World, place: &str, get_nodes: bool) {
    let rome = &world.clusters[0];
    let name = |owner: &str| format!("{place}-{owner}");
    rome.deploy(NAMESPACE, &name("deployment"), 1).await;
    rome.run_stateful_set(NAMESPACE, &name("statefulset"), 1)
        .await;
    rome.run_job(NAMESPACE, &name("job"), 1, 1_000_000, 6).await;
    let mut pod = template(&name("alone"), &json!([]), "Always");
    pod["metadata"]["name"] = json!(name("alone"));
    rome.api::<Pod>(NAMESPACE)
        .create(&PostParams::default(), &object(pod))
        .await
        .unwrap();
    let all = async || {
        let pods = rome.ready_pods(NAMESPACE).await;
        OWNERS.iter().all(|owner| {
            let of_owner = |pod: &&Pod| pod.labels()["app"] == name(owner);
            if get_nodes {
                pods.iter().any(|pod| of_owner(&pod))
            } else {
                !rome.pods_of(&name(owner)).is_empty()
            }
        })
    };
    world.until(&format!("all of {place} run"), SOON, all).await;
}

/// Describes, in the words of the page, how the pod of an owner fared.
async fn outcome(rome: &Cluster, app: &str, before: &BTreeSet<String>) -> &'static str {
    let api: Api<Pod> = rome.api(NAMESPACE);
    let pods = api
        .list(&ListParams::default().labels(&format!("app={app}")))
        .await
        .unwrap()
        .items;
    let is_former = |pod: &&Pod| pod.uid().is_some_and(|uid| before.contains(&uid));
    let is_at_home = |pod: &Pod| {
        pod.spec
            .as_ref()
            .and_then(|spec| spec.node_name.as_deref())
            .is_some_and(|node| node != "milan")
    };
    let phase = |pod: &Pod| {
        pod.status
            .as_ref()
            .and_then(|status| status.phase.clone())
            .unwrap_or_default()
    };
    let new_here = pods
        .iter()
        .any(|pod| !is_former(&pod) && is_at_home(pod) && phase(pod) == "Running");
    let former = pods.iter().find(is_former);
    let is_waiting = former.is_some_and(|pod| {
        pod.spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_none())
    });
    let events = rome
        .api::<Event>(NAMESPACE)
        .list(&ListParams::default())
        .await
        .unwrap();
    let is_told = former.is_some_and(|pod| {
        events
            .iter()
            .any(|event| event.involved_object.uid == pod.uid())
    });
    match former {
        _ if new_here => "a new one runs here",
        Some(pod) if is_at_home(pod) && phase(pod) == "Running" => "runs on",
        Some(pod) if phase(pod) == "Failed" => "ends",
        Some(_) if is_waiting && is_told => "waits, and an event says what to do",
        Some(_) if is_waiting => "waits in silence",
        Some(_) => "waits for the office",
        None => "is gone",
    }
}

/// The table of the page: for each place, what becomes of the pods of the owners.
fn page() -> Vec<(String, Vec<String>)> {
    let text = include_str!("../../../../../docs/reference/tethering.md");
    let (_, table) = text.split_once("| it ran |").unwrap();
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| {
        row.trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().to_owned())
    });
    cells
        .map(|mut cells| (cells.next().unwrap(), cells.collect()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn what_a_long_silence_means_for_a_pod_is_as_the_page_says() {
    let world = laptop_and_office(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    run_all(&world, "own", true).await;
    tether(&world).await;
    for node in ["milan-1", "milan-2"] {
        milan.cordon(node).await;
    }
    run_all(&world, "guest", true).await;
    milan.cordon("rome").await;
    for node in ["milan-1", "milan-2"] {
        milan.uncordon(node).await;
    }
    run_all(&world, "office", true).await;
    cut(&world);
    // Nobody has noticed it yet.
    run_all(&world, "sent", false).await;
    world
        .until("the silence is noticed", SOON, async || {
            !rome.node_is_ready("milan").await
        })
        .await;
    run_all(&world, "waiting", false).await;
    let pods = rome.api::<Pod>(NAMESPACE);
    let before: BTreeSet<String> = pods
        .list(&ListParams::default())
        .await
        .unwrap()
        .iter()
        .filter_map(ResourceExt::uid)
        .collect();
    world
        .until("control is back", 3 * SOON, async || {
            state(rome).await == TetheringState::Releasing
        })
        .await;
    world
        .until("the release is over", 3 * SOON, async || {
            state(rome).await == TetheringState::Autonomous
        })
        .await;
    tokio::time::sleep(SOON).await;

    let places: [&[&str]; 4] = [&["own"], &["guest"], &["office", "sent"], &["waiting"]];
    let page = page();
    assert_eq!(page.len(), places.len());
    for ((row, expected), places) in page.iter().zip(places) {
        for place in places {
            let mut outcomes = Vec::new();
            for owner in OWNERS {
                outcomes.push(outcome(rome, &format!("{place}-{owner}"), &before).await);
            }
            assert_eq!(outcomes, *expected, "{row} ({place})\n{}", world.to_text());
        }
    }

    milan.uncordon("rome").await;
    world.internet.heal();
    let all_run_once = async || {
        let live = pods
            .list(&ListParams::default())
            .await
            .unwrap()
            .into_iter()
            .filter(|pod| {
                pod.status
                    .as_ref()
                    .is_some_and(|status| status.phase.as_deref() == Some("Running"))
            });
        let apps: Vec<String> = live.map(|pod| pod.labels()["app"].clone()).collect();
        let expected = places
            .concat()
            .into_iter()
            .flat_map(|place| OWNERS.map(|owner| format!("{place}-{owner}")));
        // Nobody creates this one again.
        expected
            .filter(|app| app != "guest-alone")
            .all(|app| apps.iter().filter(|one| **one == app).count() == 1)
    };
    world
        .until(
            "each runs once when the office is heard",
            3 * SOON,
            all_run_once,
        )
        .await;
}

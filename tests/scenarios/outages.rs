//! A dead peer blocks nothing.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use liqo_api::tenant_namespace;
use liqo_tests::{Cluster, World, eventually, still};
use serde_json::json;

use crate::{
    network::connected,
    pods::{deployment, node_of},
    policies::apply_policy,
};

async fn node_ready(world: &World) -> Result<String> {
    let node = Api::<Node>::all(world.rome.client.clone())
        .get("milan")
        .await?;
    let conditions = node
        .status
        .and_then(|status| status.conditions)
        .unwrap_or_default();
    Ok(conditions
        .into_iter()
        .find(|condition| condition.type_ == "Ready")
        .map(|condition| condition.status)
        .unwrap_or_default())
}

async fn reachable(world: &World) -> Result<String> {
    let cluster = world
        .rome
        .object(&["foreigncluster", "milan"])
        .await?
        .unwrap_or_default();
    let conditions = cluster["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    Ok(conditions
        .iter()
        .find(|condition| condition["type"] == "PeerReachable")
        .and_then(|condition| condition["status"].as_str())
        .unwrap_or_default()
        .to_owned())
}

fn uids(pods: &[Pod]) -> Vec<String> {
    let mut uids: Vec<_> = pods
        .iter()
        .filter_map(|pod| pod.metadata.uid.clone())
        .collect();
    uids.sort();
    uids
}

pub async fn an_outage_moves_no_pod_at_first_then_shows_on_node_and_pods_and_heals(
    world: Arc<World>,
) -> Result<()> {
    let rome = &world.rome;
    for (namespace, strategy) in [
        ("outage", "Remote"),
        ("leaves-at-once", "LocalAndRemote"),
        ("stays", "Remote"),
    ] {
        rome.offloaded_namespace(namespace, strategy).await?;
    }
    rome.liqoctl(&[
        "offload",
        "namespace",
        "leaves-at-once",
        "--eviction-delay",
        "0s",
    ])
    .await?;
    rome.apply(&deployment("outage", "web", 2)).await?;
    rome.apply(&on_milan("leaves-at-once")).await?;
    rome.apply(&deployment("stays", "web", 1)).await?;
    let before = uids(&rome.ready_pods("outage", "app=web", 2).await?);
    let leaving = rome.ready_pods("leaves-at-once", "app=web", 1).await?;
    ensure!(
        node_of(&leaving[0]) == "milan",
        "it runs on {}",
        node_of(&leaving[0])
    );
    let staying = uids(&rome.ready_pods("stays", "app=web", 1).await?);
    // A running pod follows the setting, too.
    rome.liqoctl(&["offload", "namespace", "stays", "--eviction-delay", "never"])
        .await?;
    eventually(
        "the running pod has no time to leave",
        Duration::from_secs(20),
        || async {
            let pod = rome
                .items(&["-n", "stays", "pods"])
                .await?
                .pop()
                .unwrap_or_default();
            let tolerations = pod["spec"]["tolerations"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            Ok(tolerations
                .iter()
                .all(|toleration| toleration["tolerationSeconds"].is_null())
                .then_some(()))
        },
    )
    .await?;
    world.cut("milan").await?;
    eventually(
        "the outage shows on the peering",
        Duration::from_secs(20),
        || async { Ok((reachable(&world).await? == "False").then_some(())) },
    )
    .await?;
    still(
        "the node stays Ready at first",
        Duration::from_secs(10),
        "True".to_owned(),
        || node_ready(&world),
    )
    .await?;
    ensure!(
        uids(&rome.ready_pods("outage", "app=web", 2).await?) == before,
        "pods were replaced at once"
    );
    eventually("the node is not Ready", Duration::from_secs(70), || async {
        Ok((node_ready(&world).await? != "True").then_some(()))
    })
    .await?;
    eventually(
        "its pods are not Ready",
        Duration::from_secs(20),
        || async {
            let ready = rome
                .object(&["-n", "outage", "deployment", "web"])
                .await?
                .unwrap_or_default();
            Ok(ready["status"]["readyReplicas"].is_null().then_some(()))
        },
    )
    .await?;
    eventually(
        "the pod that leaves at once has a successor at home",
        Duration::from_mins(1),
        || async {
            let pods = rome.items(&["-n", "leaves-at-once", "pods"]).await?;
            Ok(pods
                .iter()
                .any(|pod| {
                    pod["spec"]["nodeName"] == "rome-1" && pod["status"]["phase"] == "Running"
                })
                .then_some(()))
        },
    )
    .await?;
    world.heal("milan").await?;
    eventually(
        "the node is Ready again",
        Duration::from_mins(1),
        || async { Ok((node_ready(&world).await? == "True").then_some(())) },
    )
    .await?;
    eventually(
        "the peer is reachable again",
        Duration::from_secs(30),
        || async { Ok((reachable(&world).await? == "True").then_some(())) },
    )
    .await?;
    ensure!(
        uids(&rome.ready_pods("outage", "app=web", 2).await?) == before,
        "pods were replaced"
    );
    ensure!(
        uids(&rome.ready_pods("stays", "app=web", 1).await?) == staying,
        "the pod that stays was replaced"
    );
    eventually(
        "the pod that left has ended at milan",
        Duration::from_mins(1),
        || async {
            Ok((rome.items(&["-n", "leaves-at-once", "pods"]).await?.len() == 1).then_some(()))
        },
    )
    .await?;
    for namespace in ["outage", "leaves-at-once", "stays"] {
        rome.end_namespace(namespace).await?;
    }
    Ok(())
}

/// A Deployment of one pod that prefers virtual nodes.
fn on_milan(namespace: &str) -> String {
    let preferred = "{ weight: 100, preference: { matchExpressions: [{ key: liqo.io/type, operator: In, values: [virtual-node] }] } }";
    let affinity = format!(
        "    spec:\n      affinity: {{ nodeAffinity: {{ preferredDuringSchedulingIgnoredDuringExecution: [{preferred}] }} }}\n"
    );
    deployment(namespace, "web", 1).replacen("    spec:\n", &affinity, 1)
}

pub async fn unpeering_from_a_dead_peer_succeeds_and_leaves_nothing(
    world: Arc<World>,
) -> Result<()> {
    let rome = &world.rome;
    rome.offloaded_namespace("dead", "LocalAndRemote").await?;
    rome.apply(&deployment("dead", "web", 4)).await?;
    rome.ready_pods("dead", "app=web", 4).await?;
    world.cut("milan").await?;
    let start = Instant::now();
    rome.liqoctl(&["unpeer", "milan", "--yes"]).await?;
    println!(
        "unpeering from a dead peer took {} s",
        start.elapsed().as_secs()
    );
    let leftovers: [&[&str]; 4] = [
        &["foreignclusters"],
        &["virtualnodes", "-A"],
        &["nodes", "-l", "liqo.io/type=virtual-node"],
        &["namespaces", "-l", "liqo.io/namespace-kind"],
    ];
    for left in leftovers {
        let items = rome.items(left).await?;
        ensure!(items.is_empty(), "left over: {left:?} {items:#?}");
    }
    let pods = rome.ready_pods("dead", "app=web", 4).await?;
    ensure!(
        pods.iter().all(|pod| node_of(pod) == "rome-1"),
        "not all pods came home"
    );
    rome.end_namespace("dead").await?;
    world.heal("milan").await?;
    world.peer_rome_with_milan().await?;
    eventually(
        "the peer removes the rest when rome comes back",
        Duration::from_mins(1),
        || async {
            Ok(world
                .milan
                .items(&["namespaces", "-l", "liqo.io/home-namespace=dead"])
                .await?
                .is_empty()
                .then_some(()))
        },
    )
    .await
}

/// Whether all endpoints of a Service are ready, and all serve. `None` if there are none, or if
/// they differ.
async fn endpoints_ready(
    cluster: &Cluster,
    namespace: &str,
    service: &str,
) -> Result<Option<bool>> {
    let of_service = format!("kubernetes.io/service-name={service}");
    let slices = cluster
        .items(&["-n", namespace, "endpointslices", "-l", &of_service])
        .await?;
    let endpoints = slices
        .iter()
        .flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default());
    let states: BTreeSet<(bool, bool)> = endpoints
        .map(|endpoint| {
            ["ready", "serving"].map(|condition| endpoint["conditions"][condition] != false)
        })
        .map(|[ready, serving]| (ready, serving))
        .collect();
    Ok(match states.into_iter().collect::<Vec<_>>()[..] {
        [(ready, serving)] if ready == serving => Some(ready),
        _ => None,
    })
}

/// The reason of a condition of a peer.
async fn reason(cluster: &Cluster, peer: &str, condition: &str) -> Result<String> {
    let found = cluster
        .object(&["foreigncluster", peer])
        .await?
        .unwrap_or_default();
    let conditions = found["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let found = conditions
        .iter()
        .find(|found| found["type"] == condition)
        .and_then(|found| found["reason"].as_str());
    Ok(found.unwrap_or_default().to_owned())
}

/// Rome is cut off, because milan is looked at meanwhile.
pub async fn an_absent_consumer_loses_endpoints_and_room_and_gets_both_back(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    connected(rome, milan).await?;
    let id = rome.cluster_id().await?;
    let (tenant, peers) = (
        tenant_namespace(&id.parse()?),
        json!({ "clusterIDs": [id] }),
    );
    apply_policy(
        milan,
        "absence",
        json!({ "priority": 10, "peers": peers, "provide": { "absenceSeconds": 30 } }),
    )
    .await?;
    for (namespace, strategy) in [("absent-home", "Local"), ("absent-pods", "Remote")] {
        rome.offloaded_namespace(namespace, strategy).await?;
        rome.apply(&deployment(namespace, "web", 1)).await?;
    }
    rome.ready_pods("absent-home", "app=web", 1).await?;
    rome.kubectl(&[
        "-n",
        "absent-home",
        "expose",
        "deployment",
        "web",
        "--port=80",
    ])
    .await?;
    let before = uids(&rome.ready_pods("absent-pods", "app=web", 1).await?);
    let (home, pods) = (
        rome.remote_namespace("absent-home", milan).await?,
        rome.remote_namespace("absent-pods", milan).await?,
    );
    let ready = async |wanted: bool, within: u64| {
        eventually(
            &format!("the endpoints of rome at milan are ready: {wanted}"),
            Duration::from_secs(within),
            || async {
                Ok((endpoints_ready(milan, &home, "web").await? == Some(wanted)).then_some(()))
            },
        )
        .await
    };
    ready(true, 30).await?;
    world.cut("rome").await?;
    ready(false, 80).await?;
    eventually(
        "milan says that rome is absent",
        Duration::from_mins(1),
        || async {
            Ok(
                (reason(milan, "rome", "ResourcesOffered").await? == "ConsumerAbsent")
                    .then_some(()),
            )
        },
    )
    .await?;
    eventually(
        "the pods of rome have ended, and nothing is offered to it",
        Duration::from_mins(1),
        || async {
            let mut left = milan.items(&["-n", &pods, "pods"]).await?;
            left.extend(milan.items(&["-n", &tenant, "resourceoffers"]).await?);
            Ok(left.is_empty().then_some(()))
        },
    )
    .await?;
    world.heal("rome").await?;
    ready(true, 60).await?;
    eventually("rome has a new offer", Duration::from_mins(1), || async {
        Ok((reason(milan, "rome", "ResourcesOffered").await? == "Offered").then_some(()))
    })
    .await?;
    eventually(
        "another pod runs at milan",
        Duration::from_mins(2),
        || async {
            let running = rome.pods("absent-pods", "app=web").await?;
            let is_new = |pod: &&Pod| {
                pod.metadata
                    .uid
                    .as_ref()
                    .is_some_and(|uid| !before.contains(uid))
            };
            let is_running = |pod: &&Pod| {
                pod.status
                    .as_ref()
                    .and_then(|status| status.phase.as_deref())
                    == Some("Running")
            };
            Ok(running
                .iter()
                .filter(is_new)
                .any(|pod| is_running(&pod))
                .then_some(()))
        },
    )
    .await?;
    tokio::try_join!(
        rome.end_namespace("absent-home"),
        rome.end_namespace("absent-pods")
    )?;
    milan
        .kubectl(&["delete", "peeringpolicy", "absence"])
        .await
        .map(drop)
}

pub async fn the_kube_controller_manager_starts_while_there_are_virtual_nodes(
    world: Arc<World>,
) -> Result<()> {
    let rome = &world.rome;
    rome.wait_for(&["node/milan"], "condition=Ready", 90)
        .await?;
    world
        .machinery(rome)?
        .kill("kube-controller-manager")
        .await?;
    // It works again when a new ReplicaSet gets its pods.
    rome.kubectl(&["create", "namespace", "controlled"]).await?;
    rome.apply(&deployment("controlled", "web", 1)).await?;
    rome.ready_pods("controlled", "app=web", 1).await?;
    rome.end_namespace("controlled").await
}

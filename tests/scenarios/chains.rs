//! Chains of clusters in which something dies or leaves, and two ways to one provider. Milan lends
//! to rome what it borrows from turin.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use liqo_tests::{World, eventually};
use serde_json::Value;

use crate::{
    broker::two_pods_behind_the_broker,
    pods::{deployment, node_of},
    policies::{allocatable, offer},
};

const NAMESPACE: &str = "long-chain";
const TIMEOUT: Duration = Duration::from_mins(1);
/// How long a dead cluster may take to show: a virtual node is not ready after 40 seconds.
const DEATH_TIMEOUT: Duration = Duration::from_secs(90);

fn is_on_turin(pod: &Value) -> bool {
    pod["spec"]["nodeName"]
        .as_str()
        .is_some_and(|node| node.starts_with("turin-"))
}

/// What must not change while a pod runs on: its UID, and how often its containers started.
fn incarnations(pods: &[Pod]) -> Vec<(Option<&str>, i32)> {
    let restarts = |pod: &Pod| {
        pod.status
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten())
            .map(|one| one.restart_count)
            .sum()
    };
    let mut all: Vec<_> = pods
        .iter()
        .map(|pod| (pod.metadata.uid.as_deref(), restarts(pod)))
        .collect();
    all.sort_unstable();
    all
}

pub async fn pods_outlive_their_broker_show_a_dead_provider_and_end_with_their_customer(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    let (at_milan, at_turin) = two_pods_behind_the_broker(&world, NAMESPACE).await?;
    let home = rome.ready_pods(NAMESPACE, "app=web", 2).await?;
    let there = turin.ready_pods(&at_turin, "app=web", 2).await?;

    // The broker dies: what it resold runs on, and obeys again when the broker is back.
    world.cut("milan").await?;
    rome.wait_for(
        &["foreigncluster/milan"],
        "condition=PeerReachable=False",
        60,
    )
    .await?;
    turin
        .wait_for(
            &["foreigncluster/milan"],
            "condition=ConsumerReachable=False",
            60,
        )
        .await?;
    let meanwhile = turin.ready_pods(&at_turin, "app=web", 2).await?;
    ensure!(
        incarnations(&meanwhile) == incarnations(&there),
        "pods at turin were replaced while the broker was dead"
    );
    // Nobody can tell the broker now, so it has to find out later.
    rome.kubectl(&["-n", NAMESPACE, "scale", "deployment/web", "--replicas=1"])
        .await?;
    world.heal("milan").await?;
    rome.wait_for(
        &["foreigncluster/milan"],
        "condition=PeerReachable=True",
        60,
    )
    .await?;
    milan.ready_pods(&at_milan, "app=web", 1).await?;
    let here = rome.ready_pods(NAMESPACE, "app=web", 1).await?;
    let there = turin.ready_pods(&at_turin, "app=web", 1).await?;
    ensure!(
        home.iter()
            .any(|pod| pod.metadata.uid == here[0].metadata.uid),
        "the pod that was left was replaced"
    );
    ensure!(
        meanwhile
            .iter()
            .any(|pod| pod.metadata.uid == there[0].metadata.uid),
        "it runs as another pod at turin"
    );
    let said = rome
        .kubectl(&[
            "-n",
            NAMESPACE,
            "exec",
            "deployment/web",
            "--",
            "echo",
            "hello",
        ])
        .await?;
    ensure!(
        said == "hello\n",
        "a command through the broker printed {said:?}"
    );

    // The provider of the provider dies: rome, which does not know it, sees that its pod does not
    // answer.
    world.cut("turin").await?;
    eventually("rome's pod is not ready", DEATH_TIMEOUT, || async {
        let web = rome
            .object(&["-n", NAMESPACE, "deployment", "web"])
            .await?
            .context("there is no Deployment")?;
        Ok(web["status"]["readyReplicas"].is_null().then_some(()))
    })
    .await?;
    world.heal("turin").await?;
    milan
        .wait_for(
            &["foreigncluster/turin"],
            "condition=PeerReachable=True",
            60,
        )
        .await?;
    for (cluster, namespace) in [
        (turin, at_turin.as_str()),
        (milan, &at_milan),
        (rome, NAMESPACE),
    ] {
        cluster.ready_pods(namespace, "app=web", 1).await?;
    }

    // The customer leaves, and nothing of it stays, although turin does not know it.
    rome.liqoctl(&["unpeer", "milan", "--now", "--yes"]).await?;
    eventually(
        "nothing of rome is left at milan and turin",
        Duration::from_mins(2),
        || async {
            let left = [
                milan.object(&["namespace", &at_milan]).await?,
                turin.object(&["namespace", &at_turin]).await?,
            ];
            Ok(left.iter().all(Option::is_none).then_some(()))
        },
    )
    .await?;
    rome.end_namespace(NAMESPACE).await?;
    world.peer_rome_with_milan().await
}

pub async fn two_ways_to_one_provider_share_what_it_has(world: Arc<World>) -> Result<()> {
    const NAMESPACE: &str = "two-ways";
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    // Rome borrows from turin by two ways now. Turin lends nothing twice.
    rome.liqoctl(&[
        "peer",
        "--remote-kubeconfig",
        &turin.kubeconfig.display().to_string(),
    ])
    .await?;
    rome.wait_for(&["node/turin"], "condition=Ready", 60)
        .await?;
    eventually(
        "what turin offers to both is what it lends to one, and rome's nodes have no more",
        TIMEOUT,
        || async {
            let direct = offer(turin, rome)
                .await?
                .context("turin offers nothing to rome")?
                .spec
                .resource_quota
                .hard;
            let by_broker = offer(turin, milan)
                .await?
                .context("turin offers nothing to milan")?
                .spec
                .resource_quota
                .hard;
            let machines = world.machinery(turin)?.nodes();
            let all =
                try_join_all(machines.iter().map(|node| allocatable(turin, &node.name))).await?;
            let owned = all
                .iter()
                .map(|node| node.get("cpu"))
                .reduce(|sum, cpu| sum + cpu)
                .context("turin has no node")?;
            let sum = direct.get("cpu") + by_broker.get("cpu");
            let nodes = allocatable(rome, "turin").await?.get("cpu")
                + allocatable(rome, "milan").await?.get("cpu");
            ensure!(
                sum <= owned && nodes == sum,
                "{sum} offered, {nodes} at rome, {owned} owned"
            );
            Ok(Some(()))
        },
    )
    .await?;
    rome.offloaded_namespace(NAMESPACE, "Remote").await?;
    for (name, node) in [("near", "turin"), ("far", "milan")] {
        let selector =
            format!("    spec:\n      nodeSelector: {{ kubernetes.io/hostname: {node} }}\n");
        rome.apply(&deployment(NAMESPACE, name, 1).replacen("    spec:\n", &selector, 1))
            .await?;
        let pods = rome
            .ready_pods(NAMESPACE, &format!("app={name}"), 1)
            .await?;
        ensure!(
            node_of(&pods[0]) == node,
            "{name} is on {}",
            node_of(&pods[0])
        );
    }
    let running = turin
        .items(&["pods", "-A", "-l", "app in (near,far)"])
        .await?;
    ensure!(
        running.len() == 2 && running.iter().all(is_on_turin),
        "{running:#?}"
    );
    rome.end_namespace(NAMESPACE).await?;
    rome.liqoctl(&["unpeer", "turin", "--yes"]).await.map(drop)
}

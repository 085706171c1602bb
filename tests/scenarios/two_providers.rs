//! A broker that lends the sum of what two clusters lend to it, while one of them leaves and comes
//! back.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use liqo_api::Quantity;
use liqo_tests::{World, eventually};
use serde_json::json;

use crate::{
    broker::{mapped, no_broker},
    pods::{deployment, node_of},
    policies::{allocatable, apply_policy, offer},
};

const NAMESPACE: &str = "sum";
const PODS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(90);

/// Waits until milan offers to rome what these nodes of milan have together, and rome's node has
/// it.
async fn offers_the_sum_of(world: &World, providers: &[&str]) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    eventually(
        &format!("rome is offered the sum of {}", providers.join(" and ")),
        TIMEOUT,
        || async {
            let offered = offer(milan, rome)
                .await?
                .context("there is no offer")?
                .spec
                .resource_quota
                .hard;
            let node = allocatable(rome, "milan").await?;
            let mut lent = Vec::new();
            for provider in providers {
                lent.push(allocatable(milan, provider).await?);
            }
            let is_sum = ["cpu", "memory", "pods"].iter().all(|resource| {
                let sum = lent
                    .iter()
                    .fold(Quantity::ZERO, |sum, amounts| sum + amounts.get(resource));
                offered.get(resource) == sum && node.get(resource) == sum
            });
            ensure!(
                is_sum,
                "{lent:?} are offered as {offered:?}; the node has {node:?}"
            );
            Ok(Some(()))
        },
    )
    .await
}

/// Waits until all pods are Ready at home, and run at exactly these providers.
async fn run_at(world: &World, at_milan: &str, pods: usize, providers: &[&str]) -> Result<()> {
    let what = format!("{pods} pods run at {}", providers.join(" and "));
    eventually(&what, TIMEOUT, || async {
        world.rome.ready_pods(NAMESPACE, "app=web", pods).await?;
        let between = world.milan.ready_pods(at_milan, "app=web", pods).await?;
        let nodes: BTreeSet<&str> = between.iter().map(node_of).collect();
        ensure!(
            nodes == providers.iter().copied().collect(),
            "they run at {nodes:?}"
        );
        Ok(Some(()))
    })
    .await
}

pub async fn a_broker_lends_the_sum_of_two_providers_while_one_leaves_and_comes_back(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan, turin, florence) =
        (&world.rome, &world.milan, &world.turin, world.florence()?);
    milan.peer_with(turin).await?;
    milan.peer_with(florence).await?;
    let peers = json!({ "clusterIDs": [rome.cluster_id().await?] });
    let provide = json!({ "percentage": 100, "noticeSeconds": 4, "source": { "offers": {} } });
    apply_policy(
        milan,
        "broker",
        json!({ "priority": 10, "peers": peers, "provide": provide }),
    )
    .await?;
    offers_the_sum_of(&world, &["turin", "florence"]).await?;

    rome.offloaded_namespace(NAMESPACE, "Remote").await?;
    rome.apply(&deployment(NAMESPACE, "web", 4)).await?;
    let at_milan = mapped(rome, NAMESPACE, milan).await?;
    run_at(&world, &at_milan, PODS, &["turin", "florence"]).await?;

    // The customer sees a smaller node and new pods, and no other change.
    milan.liqoctl(&["unpeer", "turin", "--yes"]).await?;
    offers_the_sum_of(&world, &["florence"]).await?;
    run_at(&world, &at_milan, PODS, &["florence"]).await?;

    milan.peer_with(turin).await?;
    offers_the_sum_of(&world, &["turin", "florence"]).await?;
    rome.kubectl(&["-n", NAMESPACE, "scale", "deployment/web", "--replicas=8"])
        .await?;
    run_at(&world, &at_milan, 2 * PODS, &["turin", "florence"]).await?;
    rome.end_namespace(NAMESPACE).await?;
    // Other scenarios run in these clusters afterwards.
    no_broker(&world).await?;
    milan
        .liqoctl(&["unpeer", "florence", "--yes"])
        .await
        .map(drop)
}

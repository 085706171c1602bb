//! How much is offered, and that no consumer gets more.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use liqo_api::{Quantity, ResourceList, ResourceOffer, tenant_namespace};
use liqo_tests::{Cluster, World, eventually};
use serde_json::json;

use crate::{
    pods::{deployment, pod},
    policies::apply_policy,
};

async fn offered(world: &World, consumer: &Cluster, resource: &str) -> Result<Quantity> {
    let namespace = tenant_namespace(&consumer.cluster_id().await?.parse()?);
    let offer = world
        .milan
        .api::<ResourceOffer>(&namespace)
        .get("default")
        .await?;
    Ok(offer.spec.resource_quota.hard.get(resource))
}

async fn allocatable(cluster: &Cluster, node: &str, resource: &str) -> Result<Quantity> {
    let node = Api::<Node>::all(cluster.client.clone()).get(node).await?;
    let text = node
        .status
        .and_then(|status| status.allocatable)
        .and_then(|all| all.get(resource).cloned())
        .context("no such resource")?;
    Ok(text.0.parse()?)
}

pub async fn the_offer_follows_the_free_capacity_and_the_node_follows_the_offer(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let before = offered(&world, rome, "cpu").await?;
    ensure!(
        before == allocatable(rome, "milan", "cpu").await?,
        "the node does not show the offer"
    );
    ensure!(
        before < allocatable(milan, "milan-1", "cpu").await?,
        "more is offered than the percentage allows"
    );
    milan
        .apply(
            &pod("default", "local-load", "Always", "sleep 600").replace("cpu: 10m", "cpu: 900m"),
        )
        .await?;
    milan.ready_pods("default", "app=local-load", 1).await?;
    let smaller = eventually("the offer shrinks", Duration::from_secs(30), || async {
        let now = offered(&world, rome, "cpu").await?;
        Ok((now < before).then_some(now))
    })
    .await?;
    eventually(
        "the node shrinks with it",
        Duration::from_secs(10),
        || async { Ok((allocatable(rome, "milan", "cpu").await? == smaller).then_some(())) },
    )
    .await?;
    milan
        .kubectl(&["-n", "default", "delete", "pod", "local-load", "--wait"])
        .await?;
    // An offer is rewritten only if it changes by more than 5%, so what was offered before may
    // differ a little from what is free.
    let enough = before.saturating_sub("100m".parse()?);
    eventually("both grow again", Duration::from_secs(30), || async {
        let now = offered(&world, rome, "cpu").await?;
        Ok((now >= enough && allocatable(rome, "milan", "cpu").await? == now).then_some(()))
    })
    .await
}

pub async fn pods_that_exceed_the_offer_are_refused_with_a_reason(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("beyond", "Remote").await?;
    // The pod sets its node itself, because the scheduler would respect the node's allocatable.
    let greedy = pod("beyond", "greedy", "Always", "sleep 600")
        .replace("cpu: 10m", "cpu: \"64\"")
        .replace(
            "spec:\n",
            "spec:\n  nodeName: milan\n  tolerations: [{ operator: Exists }]\n",
        );
    rome.apply(&greedy).await?;
    eventually(
        "the refusal names what is short",
        Duration::from_secs(30),
        || async {
            let pod = rome
                .api::<Pod>("beyond")
                .get("greedy")
                .await?
                .status
                .unwrap_or_default();
            let refused = pod.conditions.into_iter().flatten().find(|condition| {
                condition.type_ == "liqo.io/Offloaded" && condition.status == "False"
            });
            Ok(refused.filter(|condition| {
                condition
                    .message
                    .as_deref()
                    .unwrap_or_default()
                    .contains("cpu")
            }))
        },
    )
    .await?;
    let remote = rome.remote_namespace("beyond", milan).await?;
    ensure!(milan.pods(&remote, "app=greedy").await?.is_empty());
    rome.end_namespace("beyond").await
}

/// The values of one of milan's ledger metrics for a consumer, by resource.
async fn metric(milan: &Cluster, name: &str, consumer: &str) -> Result<ResourceList> {
    let leader = milan
        .pods("liqo", "liqo.io/leader=true")
        .await?
        .pop()
        .and_then(|pod| pod.metadata.name)
        .context("no leader")?;
    let text = milan
        .kubectl(&[
            "get",
            "--raw",
            &format!("/api/v1/namespaces/liqo/pods/{leader}:8080/proxy/metrics"),
        ])
        .await?;
    let begin = format!("liqo_pool_{name}{{consumer=\"{consumer}\",pool=\"default\",resource=\"");
    let found = text
        .lines()
        .filter_map(|line| line.strip_prefix(&begin)?.split_once("\"} "));
    found
        .map(|(resource, amount)| Ok((resource.to_owned(), amount.parse::<Quantity>()?)))
        .collect()
}

pub async fn the_ledgers_metrics_show_what_is_offered_and_used(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let (id, stranger) = (rome.cluster_id().await?, world.turin.cluster_id().await?);
    let says = async |name: &str, expected: &ResourceList| {
        eventually(
            &format!("the metric says that {expected} is {name}"),
            Duration::from_secs(30),
            || async {
                let seen = metric(milan, name, &id).await?;
                ensure!(
                    expected
                        .iter()
                        .all(|(resource, amount)| seen.get(resource) == amount),
                    "it says {seen}"
                );
                Ok(Some(()))
            },
        )
        .await
    };
    let amounts = |cpu: &str, memory: &str, pods: &str| -> Result<ResourceList> {
        [("cpu", cpu), ("memory", memory), ("pods", pods)]
            .map(|(name, amount)| Ok((name, amount.parse()?)))
            .into_iter()
            .collect()
    };
    let fixed =
        json!({ "fixed": { "resources": { "cpu": "400m", "memory": "256Mi", "pods": "20" } } });
    apply_policy(
        milan,
        "known",
        json!({ "priority": 10, "peers": { "clusterIDs": [id] }, "provide": { "source": fixed } }),
    )
    .await?;
    says("offered", &amounts("400m", "256Mi", "20")?).await?;
    let before = metric(milan, "charged", &id).await?;
    ensure!(
        before.contains("cpu"),
        "the metric of what is charged has no cpu: {before}"
    );

    rome.offloaded_namespace("ledger", "Remote").await?;
    rome.apply(&deployment("ledger", "web", 2).replace("cpu: 10m", "cpu: 100m"))
        .await?;
    rome.ready_pods("ledger", "app=web", 2).await?;
    says(
        "charged",
        &(before.clone() + &amounts("200m", "32Mi", "2")?),
    )
    .await?;
    rome.kubectl(&["-n", "ledger", "scale", "deployment/web", "--replicas=0"])
        .await?;
    says("charged", &before).await?;
    ensure!(
        metric(milan, "offered", &stranger).await?.is_empty(),
        "there is a metric of a cluster that borrows nothing"
    );
    milan.kubectl(&["delete", "peeringpolicy", "known"]).await?;
    rome.end_namespace("ledger").await
}

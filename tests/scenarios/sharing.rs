//! How much is offered, and that nobody gets more.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use liqo_api::{Quantity, ResourceOffer, tenant_namespace};
use liqo_tests::{Cluster, World, eventually};

use crate::pods::{deployment, pod};

async fn offered(world: &World, consumer: &Cluster, resource: &str) -> Result<Quantity> {
    let namespace = tenant_namespace(&consumer.cluster_id().await?.parse()?);
    let offer = world.milan.api::<ResourceOffer>(&namespace).get("default").await?;
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

pub async fn the_offer_follows_the_free_capacity_and_the_node_follows_the_offer(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let before = offered(&world, rome, "cpu").await?;
    ensure!(before == allocatable(rome, "milan", "cpu").await?, "the node does not show the offer");
    ensure!(before < allocatable(milan, "milan-1", "cpu").await?, "more is offered than the percentage allows");
    milan.apply(&pod("default", "local-load", "Always", "sleep 600").replace("cpu: 10m", "cpu: 900m")).await?;
    milan.ready_pods("default", "app=local-load", 1).await?;
    let smaller = eventually("the offer shrinks", Duration::from_secs(30), || async {
        let now = offered(&world, rome, "cpu").await?;
        Ok((now < before).then_some(now))
    })
    .await?;
    eventually("the node shrinks with it", Duration::from_secs(10), || async {
        Ok((allocatable(rome, "milan", "cpu").await? == smaller).then_some(()))
    })
    .await?;
    milan.kubectl(&["-n", "default", "delete", "pod", "local-load", "--wait"]).await?;
    eventually("both grow again", Duration::from_secs(30), || async {
        Ok((allocatable(rome, "milan", "cpu").await? == before).then_some(()))
    })
    .await
}

pub async fn pods_beyond_the_offer_are_refused_with_a_reason(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("beyond", "Remote").await?;
    // Not through the scheduler, which would keep to the node's allocatable.
    let greedy = pod("beyond", "greedy", "Always", "sleep 600")
        .replace("cpu: 10m", "cpu: \"64\"")
        .replace("spec:\n", "spec:\n  nodeName: milan\n  tolerations: [{ operator: Exists }]\n");
    rome.apply(&greedy).await?;
    eventually("the refusal names what is short", Duration::from_secs(30), || async {
        let pod = rome.api::<Pod>("beyond").get("greedy").await?.status.unwrap_or_default();
        let refused = pod
            .conditions
            .into_iter()
            .flatten()
            .find(|condition| condition.type_ == "liqo.io/Offloaded" && condition.status == "False");
        Ok(refused.filter(|condition| condition.message.as_deref().unwrap_or_default().contains("cpu")))
    })
    .await?;
    let remote = rome.remote_namespace("beyond", milan).await?;
    ensure!(milan.pods(&remote, "app=greedy").await?.is_empty());
    rome.delete_namespace("beyond").await
}

pub async fn a_request_bounds_the_offer(world: Arc<World>) -> Result<()> {
    let rome = &world.rome;
    let patch = |resources: &str| format!(r#"{{"spec":{{"request":{{"resources":{resources}}}}}}}"#);
    rome.kubectl(&["patch", "foreigncluster", "milan", "--type=merge", "-p", &patch(r#"{"cpu":"100m","pods":"3"}"#)]).await?;
    let small: Quantity = "100m".parse()?;
    eventually("the node is as small as asked", Duration::from_secs(30), || async {
        Ok((allocatable(rome, "milan", "cpu").await? == small).then_some(()))
    })
    .await?;
    rome.offloaded_namespace("bounded", "Remote").await?;
    rome.apply(&deployment("bounded", "web", 5)).await?;
    rome.kubectl(&["-n", "bounded", "wait", "--for=jsonpath={.status.readyReplicas}=3", "deployment/web", "--timeout=60s"])
        .await?;
    rome.kubectl(&["patch", "foreigncluster", "milan", "--type=merge", "-p", &patch("null")]).await?;
    rome.ready_pods("bounded", "app=web", 5).await?;
    rome.delete_namespace("bounded").await
}

//! Offers of several pools: one virtual node for each.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use liqo_api::{VirtualNode, provider_namespace};
use liqo_tests::{Cluster, World, eventually};
use serde_json::json;

use crate::policies::apply_policy;

const TIMEOUT: Duration = Duration::from_mins(1);

/// The names of the virtual nodes of a provider, by pool.
async fn nodes(consumer: &Cluster, provider: &Cluster) -> Result<BTreeMap<String, String>> {
    let namespace = provider_namespace(&provider.cluster_id().await?.parse()?);
    let nodes = consumer
        .api::<VirtualNode>(&namespace)
        .list(&kube::api::ListParams::default())
        .await?;
    Ok(nodes
        .items
        .into_iter()
        .filter_map(|node| Some((node.spec.pool, node.status?.node_name?)))
        .collect())
}

pub async fn each_pool_is_a_virtual_node_and_its_pods_run_on_nodes_of_the_pool(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let machinery = world.machinery(milan)?;
    machinery.scale_fake_nodes(3).await?;
    let fake = machinery.fake_nodes()?.split_off(1);
    ensure!(fake.len() == 2, "{fake:?}");
    for (node, amounts) in fake.iter().zip([
        "cpu=8,memory=16Gi,pods=50,nvidia.com/gpu=2",
        "cpu=4,memory=8Gi,pods=20",
    ]) {
        let amounts = amounts
            .split(',')
            .map(str::parse)
            .collect::<Result<Vec<_>, _>>()?;
        machinery
            .set_fake_node_resources(node, &liqo_playground::fake_node_resources(amounts))
            .await?;
    }
    machinery
        .label_fake_node(&fake[0], "tier", Some("gold"))
        .await?;
    machinery
        .label_fake_node(&fake[1], "tier", Some("silver"))
        .await?;
    let tiers = json!({ "priority": 10, "peers": { "clusterIDs": [rome.cluster_id().await?] },
        "provide": { "percentage": 100, "granularity": { "by": "NodeLabel", "label": "tier" }, "noticeSeconds": 2 } });
    apply_policy(milan, "tiers", tiers).await?;
    let by_pool = eventually(
        "there is a node for each tier, and none for all of them",
        TIMEOUT,
        || async {
            let found = nodes(rome, milan).await?;
            Ok(found.keys().eq(["gold", "silver"]).then_some(found))
        },
    )
    .await?;

    rome.offloaded_namespace("tiered", "Remote").await?;
    let pod = |name: &str, node: &str, gpus: u8| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "tiered", "labels": { "app": name } },
            "spec": {
                "nodeSelector": { "kubernetes.io/hostname": node },
                "containers": [{ "name": "main", "image": "localhost/busybox:1", "command": ["sleep", "600"],
                    "resources": { "requests": { "cpu": "1" }, "limits": { "nvidia.com/gpu": gpus.to_string() } } }],
            },
        })
        .to_string()
    };
    rome.apply(&pod("trainer", &by_pool["gold"], 1)).await?;
    rome.apply(&pod("worker", &by_pool["silver"], 0)).await?;
    rome.ready_pods("tiered", "app=trainer", 1).await?;
    rome.ready_pods("tiered", "app=worker", 1).await?;
    let mapped = rome.remote_namespace("tiered", milan).await?;
    for (name, node) in [("trainer", &fake[0]), ("worker", &fake[1])] {
        let remote = milan.api::<Pod>(&mapped).get(name).await?;
        let runs_on = remote
            .spec
            .and_then(|spec| spec.node_name)
            .context("the remote pod has no node")?;
        ensure!(
            runs_on == *node,
            "{name} runs on {runs_on}, which is not in its pool"
        );
    }

    rome.end_namespace("tiered").await?;
    milan.kubectl(&["delete", "peeringpolicy", "tiers"]).await?;
    eventually("everything is one pool again", TIMEOUT, || async {
        Ok(nodes(rome, milan)
            .await?
            .keys()
            .eq(["default"])
            .then_some(()))
    })
    .await?;
    machinery.scale_fake_nodes(1).await?;
    rome.wait_for(&["node/milan"], "condition=Ready", 90).await
}

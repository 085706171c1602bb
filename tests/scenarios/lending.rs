//! Offers stay correct when a consumer is a provider, too, and when nothing enforces
//! `NetworkPolicies`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use liqo_api::{Quantity, ResourceList};
use liqo_playground::fake_node_resources;
use liqo_tests::{Cluster, World, eventually};
use serde_json::{Value, json};

use crate::{
    pods::node_of,
    policies::{allocatable, apply_policy, offer},
};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Adds `count` fake nodes with these amounts to milan, in addition to the first one, which has
/// none. Returns their names.
async fn fake_nodes(world: &World, count: u16, amounts: &str) -> Result<Vec<String>> {
    let machinery = world.machinery(&world.milan)?;
    machinery.scale_fake_nodes(1 + count).await?;
    let nodes = machinery.fake_nodes()?.split_off(1);
    let amounts = amounts
        .split(',')
        .map(str::parse)
        .collect::<Result<Vec<_>, _>>()?;
    for node in &nodes {
        machinery
            .set_fake_node_resources(node, &fake_node_resources(amounts.clone()))
            .await?;
    }
    Ok(nodes)
}

/// Applies a policy of this provider for only this consumer.
async fn lend(provider: &Cluster, name: &str, consumer: &Cluster, provide: Value) -> Result<()> {
    let peers = json!({ "clusterIDs": [consumer.cluster_id().await?] });
    apply_policy(
        provider,
        name,
        json!({ "priority": 10, "peers": peers, "provide": provide }),
    )
    .await
}

/// A pod that sleeps, with these requests.
fn pod_with(namespace: &str, name: &str, requests: &[(&str, &str)]) -> String {
    let amounts: BTreeMap<_, _> = requests.iter().copied().collect();
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": namespace, "labels": { "app": name } },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "main", "image": "localhost/busybox:1", "command": ["sleep", "600"],
                "resources": { "requests": amounts, "limits": amounts } }],
        },
    });
    pod.to_string()
}

/// Whether a pod is available, as disruption budgets count.
pub fn is_healthy(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    pod.metadata.deletion_timestamp.is_none()
        && conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub async fn two_clusters_lend_to_each_other(world: Arc<World>) -> Result<()> {
    const GPU: &str = "nvidia.com/gpu";
    let (rome, milan) = (&world.rome, &world.milan);
    let with_gpus = fake_nodes(&world, 1, "cpu=8,memory=16Gi,pods=20,nvidia.com/gpu=2")
        .await?
        .remove(0);
    world
        .machinery(milan)?
        .label_fake_node(&with_gpus, "accelerator", Some("gpu"))
        .await?;
    let labelled =
        json!({ "nodes": { "selectors": [{ "matchLabels": { "accelerator": "gpu" } }] } });
    lend(
        milan,
        "gpus",
        rome,
        json!({ "percentage": 100, "source": labelled }),
    )
    .await?;
    let cpus =
        json!({ "fixed": { "resources": { "cpu": "500m", "memory": "256Mi", "pods": "5" } } });
    lend(rome, "cpus", milan, json!({ "source": cpus })).await?;
    milan
        .liqoctl(&[
            "peer",
            "--remote-kubeconfig",
            &rome.kubeconfig.display().to_string(),
        ])
        .await?;
    milan
        .wait_for(&["node/rome"], "condition=Ready", 60)
        .await?;
    let both = async || {
        let amounts = async |provider: &Cluster, consumer: &Cluster| {
            let offer = offer(provider, consumer)
                .await?
                .context("there is no offer")?;
            let some: ResourceList = offer
                .spec
                .resource_quota
                .hard
                .iter()
                .filter(|(_, amount)| !amount.is_zero())
                .collect();
            anyhow::Ok(some.to_string())
        };
        Ok::<_, anyhow::Error>((amounts(milan, rome).await?, amounts(rome, milan).await?))
    };
    let expected = (
        "cpu=8, memory=16Gi, nvidia.com/gpu=2, pods=20".to_owned(),
        "cpu=500m, memory=256Mi, pods=5".to_owned(),
    );
    eventually("each offers what its policy says", TIMEOUT, || async {
        let (seen, gpus) = (both().await?, allocatable(rome, "milan").await?.get(GPU));
        ensure!(
            seen == expected && gpus == Quantity::from_units(2),
            "{seen:?}, {gpus} on the node"
        );
        Ok(Some(()))
    })
    .await?;

    rome.offloaded_namespace("training", "LocalAndRemote")
        .await?;
    milan.offloaded_namespace("serving", "Remote").await?;
    rome.apply(&pod_with(
        "training",
        "trainer",
        &[("cpu", "2"), ("memory", "1Gi"), (GPU, "1")],
    ))
    .await?;
    milan
        .apply(&pod_with(
            "serving",
            "server",
            &[("cpu", "100m"), ("memory", "16Mi")],
        ))
        .await?;
    ensure!(node_of(&rome.ready_pods("training", "app=trainer", 1).await?[0]) == "milan");
    ensure!(node_of(&milan.ready_pods("serving", "app=server", 1).await?[0]) == "rome");
    let trainer = milan
        .ready_pods(
            &rome.remote_namespace("training", milan).await?,
            "app=trainer",
            1,
        )
        .await?;
    ensure!(
        node_of(&trainer[0]) == with_gpus,
        "it runs on {}",
        node_of(&trainer[0])
    );
    let server = rome
        .ready_pods(
            &milan.remote_namespace("serving", rome).await?,
            "app=server",
            1,
        )
        .await?;
    ensure!(
        node_of(&server[0]) == "rome-1",
        "it runs on {}",
        node_of(&server[0])
    );

    world.quiet(&[rome, milan]).await?;
    let from = [rome.audit_length()?, milan.audit_length()?];
    // Longer than the minimum time between two versions of an offer.
    tokio::time::sleep(Duration::from_secs(12)).await;
    for (cluster, from) in [rome, milan].into_iter().zip(from) {
        let writes = cluster.liqo_writes(from)?;
        ensure!(
            writes.is_empty(),
            "{} saw writes although nothing changed: {writes:#?}",
            cluster.name
        );
    }
    ensure!(
        both().await? == expected,
        "use in one direction changed what is offered: {:?}",
        both().await?
    );

    milan.end_namespace("serving").await?;
    rome.end_namespace("training").await?;
    milan.liqoctl(&["unpeer", "rome", "--yes"]).await?;
    rome.kubectl(&["delete", "peeringpolicy", "cpus"]).await?;
    milan.kubectl(&["delete", "peeringpolicy", "gpus"]).await?;
    world.machinery(milan)?.scale_fake_nodes(1).await?;
    eventually("everything is as before", TIMEOUT, || async {
        Ok((allocatable(rome, "milan").await?.get(GPU).is_zero()).then_some(()))
    })
    .await
}

/// Whether `NetworkPolicies` are enforced in a cluster, as the condition of its `ClusterConfig`
/// says: status and message.
pub async fn enforced(cluster: &Cluster) -> Result<Option<(String, String)>> {
    let config = cluster
        .object(&["clusterconfig", "liqo"])
        .await?
        .context("no ClusterConfig")?;
    let mut conditions = config["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    let found =
        conditions.find(|condition| condition["type"] == liqo_api::NETWORK_POLICIES_ENFORCED);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(found.map(|condition| (text(&condition["status"]), text(&condition["message"]))))
}

/// Milan does not enforce `NetworkPolicies`; all scenarios run with the explicit yes.
pub async fn without_enforced_network_policies_a_cluster_lends_only_after_an_explicit_yes(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    eventually("the test is over", Duration::from_mins(1), || async {
        let (status, message) = enforced(milan).await?.context("no condition")?;
        ensure!(
            status == "False" && message.contains("lends nevertheless"),
            "{status}: {message}"
        );
        Ok(Some(()))
    })
    .await?;
    ensure!(
        offer(milan, rome).await?.is_some(),
        "nothing is offered although the setting allows it"
    );

    let yes = "liqoctl install --set lendWithoutNetworkPolicies=true";
    let said = milan
        .liqoctl(&["install", "--set", "lendWithoutNetworkPolicies=false"])
        .await?;
    ensure!(
        said.contains("does not enforce NetworkPolicies") && said.contains(yes),
        "{said}"
    );
    let answered = async |status: &str, reason: &str| {
        let tenant = liqo_api::tenant_namespace(&rome.cluster_id().await?.parse()?);
        eventually(
            &format!("the request is answered with {reason}"),
            TIMEOUT,
            || async {
                let request = milan
                    .object(&["-n", &tenant, "resourcerequest", liqo_api::RESOURCE_REQUEST])
                    .await?;
                let request = request.context("there is no request")?;
                let mut conditions = request["status"]["conditions"]
                    .as_array()
                    .into_iter()
                    .flatten();
                let found = conditions.any(|condition| {
                    condition["status"] == status && condition["reason"] == reason
                });
                ensure!(found, "{}", request["status"]);
                Ok(Some(()))
            },
        )
        .await
    };
    answered("False", "NotIsolated").await?;
    eventually("the offer is withdrawn", TIMEOUT, || async {
        Ok(offer(milan, rome).await?.is_none().then_some(()))
    })
    .await?;
    eventually("the condition says how to allow it", TIMEOUT, || async {
        let (_, message) = enforced(milan).await?.context("no condition")?;
        Ok(message.contains(yes).then_some(()))
    })
    .await?;
    let doctor = milan.try_liqoctl(&["doctor"]).await?;
    ensure!(
        !doctor.success && doctor.stdout.contains(yes),
        "{}",
        doctor.stdout
    );

    let said = milan
        .liqoctl(&["install", "--set", "lendWithoutNetworkPolicies=true"])
        .await?;
    ensure!(said.contains("lends nevertheless"), "{said}");
    answered("True", "Offered").await?;
    eventually(
        "rome has a node for milan",
        Duration::from_mins(1),
        || async { Ok(rome.object(&["node", "milan"]).await?.map(drop)) },
    )
    .await?;
    rome.wait_for(&["node/milan"], "condition=Ready", 60).await
}

//! Policies and plugins decide who may borrow what and how much, and may change at any time.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt as _};
use liqo_api::{Quantity, ResourceList, ResourceOffer, tenant_namespace};
use liqo_tests::{Cluster, World, eventually};
use serde_json::{Value, json};

use crate::pods::deployment;

/// Timeout until a change gets from one cluster to the other, with time to spare on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The provider's offer of its default pool to a consumer.
pub async fn offer(provider: &Cluster, consumer: &Cluster) -> Result<Option<ResourceOffer>> {
    let namespace = tenant_namespace(&consumer.cluster_id().await?.parse()?);
    Ok(provider
        .api::<ResourceOffer>(&namespace)
        .get_opt("default")
        .await?)
}

/// The amounts of milan's default pool that a consumer is offered.
async fn offered(world: &World, consumer: &Cluster) -> Result<Option<ResourceList>> {
    Ok(offer(&world.milan, consumer)
        .await?
        .map(|offer| offer.spec.resource_quota.hard))
}

/// What a node has for pods. The pods of a virtual node may be charged more than they request, and
/// its allocatable is less by that.
pub async fn allocatable(cluster: &Cluster, node: &str) -> Result<ResourceList> {
    let node = Api::<Node>::all(cluster.client.clone()).get(node).await?;
    let is_virtual = node
        .labels()
        .get("liqo.io/type")
        .is_some_and(|kind| kind == "virtual-node");
    let all = node.status.and_then(|status| {
        if is_virtual {
            status.capacity
        } else {
            status.allocatable
        }
    });
    let all = all.context("the node has no allocatable")?;
    all.into_iter()
        .map(|(name, amount)| Ok((name, amount.0.parse::<Quantity>()?)))
        .collect()
}

pub async fn apply_policy(cluster: &Cluster, name: &str, spec: Value) -> Result<()> {
    let policy = json!({
        "apiVersion": "sharing.liqo.io/v1alpha1",
        "kind": "PeeringPolicy",
        "metadata": { "name": name },
        "spec": spec,
    });
    cluster.apply(&policy.to_string()).await
}

pub async fn two_peers_with_different_policies_get_different_offers(
    world: Arc<World>,
) -> Result<()> {
    let (rome, turin, milan) = (&world.rome, &world.turin, &world.milan);
    turin
        .liqoctl(&[
            "peer",
            "--remote-kubeconfig",
            &milan.kubeconfig.display().to_string(),
        ])
        .await?;
    // The policy selects rome by its ID, because rome chose its other names itself.
    let id = rome.cluster_id().await?;
    let partner = |cpu: &str, weight: u16| {
        json!({ "priority": 10, "peers": { "clusterIDs": [id] },
            "provide": { "percentage": 100, "weight": weight, "caps": { "cpu": cpu, "nvidia.com/gpu": "0" } } })
    };
    apply_policy(milan, "partners", partner("300m", 2)).await?;
    let both = || async {
        Ok::<_, anyhow::Error>((offered(&world, rome).await?, offered(&world, turin).await?))
    };
    eventually(
        "rome is offered what its policy caps, and turin more",
        TIMEOUT,
        || async {
            let (Some(of_rome), Some(of_turin)) = both().await? else {
                return Ok(None);
            };
            let capped = of_rome.get("cpu") == "300m".parse()?
                && allocatable(rome, "milan").await?.get("cpu") == "300m".parse()?;
            Ok((capped
                && of_turin.get("cpu") > of_rome.get("cpu")
                && of_rome.get("memory") > of_turin.get("memory"))
            .then_some(()))
        },
    )
    .await?;
    apply_policy(milan, "partners", partner("200m", 2)).await?;
    eventually(
        "a change of the policy arrives at the node",
        TIMEOUT,
        || async {
            Ok((allocatable(rome, "milan").await?.get("cpu") == "200m".parse()?).then_some(()))
        },
    )
    .await?;
    let explained = milan
        .liqoctl(&["policy", "explain", "rome", "-o", "json"])
        .await?;
    let explained: Value = serde_json::from_str(&explained)?;
    let holding = explained["policies"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|policy| policy["holds"] == true);
    ensure!(
        holding.is_some_and(|policy| policy["name"] == "partners"),
        "the explanation names another policy: {explained:#}"
    );
    milan
        .kubectl(&["delete", "peeringpolicy", "partners"])
        .await?;
    eventually(
        "without their own policy both get about the same",
        TIMEOUT,
        || async {
            let (of_rome, of_turin) = both().await?;
            let of = |offer: Option<ResourceList>| {
                Ok::<_, anyhow::Error>(offer.context("there is no offer")?.get("cpu"))
            };
            let (of_rome, of_turin) = (of(of_rome)?, of(of_turin)?);
            // One of them gets the millicore that cannot be divided, and offers do not follow
            // changes of less than five percent.
            let tolerance: Quantity = "50m".parse()?;
            ensure!(
                of_rome <= of_turin + tolerance && of_turin <= of_rome + tolerance,
                "{of_rome} and {of_turin}"
            );
            Ok(Some(()))
        },
    )
    .await?;
    turin.liqoctl(&["unpeer", "milan", "--yes"]).await.map(drop)
}

pub async fn usage_beyond_a_new_cap_is_reclaimed_after_the_notice(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("reclaimed", "Remote").await?;
    rome.apply(&deployment("reclaimed", "web", 3).replace("cpu: 10m", "cpu: 100m"))
        .await?;
    rome.ready_pods("reclaimed", "app=web", 3).await?;
    let capped = json!({ "priority": 10, "peers": { "clusterIDs": [rome.cluster_id().await?] },
        "provide": { "percentage": 90, "caps": { "cpu": "250m" }, "noticeSeconds": 3 } });
    apply_policy(milan, "capped", capped).await?;
    eventually(
        "the youngest pod beyond the cap ends, and says why",
        Duration::from_mins(1),
        || async {
            let pods = rome.pods("reclaimed", "app=web").await?;
            let failed = pods
                .iter()
                .filter_map(|pod| pod.status.as_ref())
                .filter(|status| status.phase.as_deref() == Some("Failed"));
            let reasons: Vec<_> = failed.filter_map(|status| status.reason.clone()).collect();
            Ok((!reasons.is_empty()).then_some(()))
        },
    )
    .await?;
    eventually(
        "what runs fits the offer",
        Duration::from_mins(1),
        || async {
            let namespace = rome.remote_namespace("reclaimed", milan).await?;
            let running = milan.pods(&namespace, "app=web").await?;
            let staying = running
                .iter()
                .filter(|pod| pod.metadata.deletion_timestamp.is_none())
                .count();
            let fits = offered(&world, rome)
                .await?
                .is_some_and(|hard| hard.get("cpu") == "250m".parse().unwrap_or_default());
            Ok((staying == 2 && fits).then_some(()))
        },
    )
    .await?;
    milan
        .kubectl(&["delete", "peeringpolicy", "capped"])
        .await?;
    rome.end_namespace("reclaimed").await
}

pub async fn a_node_has_a_plugins_amounts_and_follows_its_arguments(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    world
        .load_plugin("fixed-resources", "fixed-resources", milan)
        .await?;
    let setting = "controllerManager.config.resourcePluginAddress";
    milan
        .liqoctl(&[
            "install",
            "--set",
            &format!("{setting}=liqo-fixed-resources-plugin.liqo:6001"),
        ])
        .await?;
    eventually(
        "a plugin that is absent changes nothing and is named",
        TIMEOUT,
        || async {
            let offers = offered(&world, rome).await?;
            let peers = milan.items(&["foreignclusters"]).await?;
            let conditions = peers.iter().flat_map(|peer| {
                peer["status"]["conditions"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default()
            });
            let named = conditions
                .into_iter()
                .any(|condition| condition["reason"] == "PluginFailed");
            Ok((named && offers.is_some()).then_some(()))
        },
    )
    .await?;
    milan
        .kubectl(&[
            "apply",
            "-f",
            &world.manifests("fixed-resources"),
            "-n",
            "liqo",
        ])
        .await?;
    let is = |cpu: &'static str| {
        let world = &world;
        move || async move {
            let node = allocatable(&world.rome, "milan").await?;
            let wanted = [
                ("cpu", cpu),
                ("memory", "2G"),
                ("pods", "10"),
                ("ephemeral-storage", "10G"),
            ];
            let equal = wanted.iter().all(|(name, amount)| {
                amount
                    .parse()
                    .is_ok_and(|amount: Quantity| node.get(name) == amount)
            });
            Ok(equal.then_some(()))
        }
    };
    eventually(
        "the node shows exactly the plugin's amounts",
        Duration::from_mins(1),
        is("2000m"),
    )
    .await?;
    let first = "/spec/template/spec/containers/0/args/1";
    let edit =
        json!([{ "op": "replace", "path": first, "value": "--resource=cpu=1500m" }]).to_string();
    let deployment = "deployment/liqo-fixed-resources-plugin";
    milan
        .kubectl(&[
            "-n",
            "liqo",
            "patch",
            deployment,
            "--type=json",
            "-p",
            &edit,
        ])
        .await?;
    eventually(
        "the node follows an edit of the arguments",
        Duration::from_mins(1),
        is("1500m"),
    )
    .await?;
    milan
        .liqoctl(&["install", "--set", &format!("{setting}=")])
        .await?;
    milan
        .kubectl(&[
            "delete",
            "-f",
            &world.manifests("fixed-resources"),
            "-n",
            "liqo",
        ])
        .await?;
    eventually(
        "without the plugin the nodes decide again",
        TIMEOUT,
        || async {
            let node = allocatable(rome, "milan").await?;
            Ok((node.get("pods") > Quantity::from_units(10)).then_some(()))
        },
    )
    .await
}

pub async fn a_plugin_offers_what_is_free_on_labelled_nodes(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    world
        .load_plugin("node-labels-resources", "node-labels-resources", milan)
        .await?;
    milan
        .kubectl(&[
            "apply",
            "-f",
            &world.manifests("node-labels-resources"),
            "-n",
            "liqo",
        ])
        .await?;
    let plugin = "liqo-node-labels-resources-plugin";
    milan
        .kubectl(&[
            "-n",
            "liqo",
            "rollout",
            "status",
            &format!("deployment/{plugin}"),
            "--timeout=60s",
        ])
        .await?;
    milan
        .kubectl(&["label", "node", "milan-1", "liqo.io/shared=true"])
        .await?;
    let setting = "controllerManager.config.resourcePluginAddress";
    milan
        .liqoctl(&["install", "--set", &format!("{setting}={plugin}.liqo:6001")])
        .await?;
    // All that is free; without the plugin the policy offers nine tenths.
    let pods = |low: i64, high: i64| {
        let world = &world;
        move || async move {
            let pods = allocatable(&world.rome, "milan").await?.get("pods");
            Ok(
                (Quantity::from_units(low) <= pods && pods <= Quantity::from_units(high))
                    .then_some(()),
            )
        }
    };
    eventually(
        "everything that is free on the labelled node is offered",
        TIMEOUT,
        pods(100, 110),
    )
    .await?;
    milan
        .kubectl(&["label", "node", "milan-1", "liqo.io/shared-"])
        .await?;
    eventually("without labelled nodes nothing is", TIMEOUT, pods(0, 0)).await?;
    milan
        .kubectl(&["label", "node", "milan-1", "liqo.io/shared=true"])
        .await?;
    eventually("the label brings it back", TIMEOUT, pods(100, 110)).await?;
    milan
        .liqoctl(&["install", "--set", &format!("{setting}=")])
        .await?;
    milan
        .kubectl(&["label", "node", "milan-1", "liqo.io/shared-"])
        .await?;
    milan
        .kubectl(&[
            "delete",
            "-f",
            &world.manifests("node-labels-resources"),
            "-n",
            "liqo",
        ])
        .await?;
    eventually(
        "without the plugin the policy decides again",
        TIMEOUT,
        || async {
            Ok(
                (allocatable(rome, "milan").await?.get("pods") < Quantity::from_units(100))
                    .then_some(()),
            )
        },
    )
    .await
}

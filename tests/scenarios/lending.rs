//! Offers stay correct when nodes die and pools go, and when a consumer is a provider, too.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt as _};
use liqo_api::{Quantity, ResourceList};
use liqo_playground::{FAKE_NODE_LABEL, fake_node_resources};
use liqo_tests::{Cluster, World, eventually};
use serde_json::{Value, json};

use crate::{
    pods::{deployment, node_of},
    policies::{allocatable, apply_policy, offer},
};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Adds `count` fake nodes with these amounts to milan, in addition to the first one, which has none. Returns their names.
async fn fake_nodes(world: &World, count: u16, amounts: &str) -> Result<Vec<String>> {
    let machinery = world.machinery(&world.milan)?;
    machinery.scale_fake_nodes(1 + count).await?;
    let nodes = machinery.fake_nodes()?.split_off(1);
    let amounts = amounts.split(',').map(str::parse).collect::<Result<Vec<_>, _>>()?;
    for node in &nodes {
        machinery.set_fake_node_resources(node, &fake_node_resources(amounts.clone())).await?;
    }
    Ok(nodes)
}

/// Applies a policy of this provider for only this consumer.
async fn lend(provider: &Cluster, name: &str, consumer: &Cluster, provide: Value) -> Result<()> {
    let peers = json!({ "clusterIDs": [consumer.cluster_id().await?] });
    apply_policy(provider, name, json!({ "priority": 10, "peers": peers, "provide": provide })).await
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

async fn node_ready(cluster: &Cluster, node: &str) -> Result<bool> {
    let node = Api::<Node>::all(cluster.client.clone()).get(node).await?;
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    Ok(conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"))
}

/// Whether a pod is available, as disruption budgets count.
pub fn is_healthy(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    pod.metadata.deletion_timestamp.is_none()
        && conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub async fn when_a_node_dies_the_offer_shrinks_and_the_youngest_excess_pod_ends(world: Arc<World>) -> Result<()> {
    const SLOT: &str = "example.com/slot";
    let (rome, milan) = (&world.rome, &world.milan);
    fake_nodes(&world, 2, "cpu=1,memory=1Gi,pods=5,example.com/slot=1").await?;
    lend(milan, "mortal", rome, json!({ "percentage": 100, "noticeSeconds": 4 })).await?;
    let slots = async |count: i64, within: u64| {
        eventually(&format!("{count} slots are offered, and rome's node has them"), Duration::from_secs(within), || async {
            let offered = offer(milan, rome).await?.context("there is no offer")?.spec.resource_quota.hard.get(SLOT);
            let node = allocatable(rome, "milan").await?.get(SLOT);
            ensure!((offered, node) == (Quantity::from_units(count), Quantity::from_units(count)), "{offered}, {node}");
            Ok(Some(()))
        })
        .await
    };
    slots(2, 30).await?;
    rome.offloaded_namespace("mortal", "Remote").await?;
    let mapped = rome.remote_namespace("mortal", milan).await?;
    for name in ["elder", "younger"] {
        rome.apply(&pod_with("mortal", name, &[("cpu", "10m"), (SLOT, "1")])).await?;
        rome.ready_pods("mortal", &format!("app={name}"), 1).await?;
        // Creation times have a resolution of one second.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let elder = milan.api::<Pod>(&mapped).get("elder").await?.uid();
    let dying = milan.api::<Pod>(&mapped).get("younger").await?.spec.and_then(|spec| spec.node_name).context("no node")?;

    // Without this label kwok no longer simulates the node's kubelet.
    let (label, fake) = FAKE_NODE_LABEL;
    milan.kubectl(&["label", "node", &dying, &format!("{label}-")]).await?;
    eventually("the node is dead", Duration::from_secs(90), || async { Ok((!node_ready(milan, &dying).await?).then_some(())) })
        .await?;
    slots(1, 30).await?;
    let remote = async |name: &str| anyhow::Ok(milan.api::<Pod>(&mapped).get(name).await?.metadata);
    eventually("the excess pod is being deleted", TIMEOUT, || async {
        Ok(remote("younger").await?.deletion_timestamp.map(drop))
    })
    .await?;

    // Its node is dead and cannot report that the pod ended. After the grace period and some time the provider counts it as ended.
    eventually("the pod has ended, and home says why", Duration::from_secs(120), || async {
        let status = rome.api::<Pod>("mortal").get("younger").await?.status.unwrap_or_default();
        let message = status.message.unwrap_or_default();
        ensure!(
            status.reason.as_deref() == Some("Evicted") && message.contains("took back") && message.contains(SLOT),
            "{message}"
        );
        Ok(Some(()))
    })
    .await?;
    // An administrator deletes pods that are left on a lost node. kwok would not end this one.
    milan.kubectl(&["-n", &mapped, "delete", "pod", "younger", "--force", "--grace-period=0", "--ignore-not-found"]).await?;
    milan.kubectl(&["label", "node", &dying, &format!("{label}={fake}")]).await?;
    slots(2, 60).await?;
    let staying = remote("elder").await?;
    ensure!((&staying.uid, &staying.deletion_timestamp) == (&elder, &None), "a pod within the offer was ended");
    rome.ready_pods("mortal", "app=elder", 1).await?;
    rome.end_namespace("mortal").await?;
    milan.kubectl(&["delete", "peeringpolicy", "mortal"]).await?;
    world.machinery(milan)?.scale_fake_nodes(1).await?;
    slots(0, 30).await
}

pub async fn two_clusters_lend_to_each_other(world: Arc<World>) -> Result<()> {
    const GPU: &str = "nvidia.com/gpu";
    let (rome, milan) = (&world.rome, &world.milan);
    let with_gpus = fake_nodes(&world, 1, "cpu=8,memory=16Gi,pods=20,nvidia.com/gpu=2").await?.remove(0);
    world.machinery(milan)?.label_fake_node(&with_gpus, "accelerator", Some("gpu")).await?;
    let labelled = json!({ "nodes": { "selectors": [{ "matchLabels": { "accelerator": "gpu" } }] } });
    lend(milan, "gpus", rome, json!({ "percentage": 100, "source": labelled })).await?;
    let cpus = json!({ "fixed": { "resources": { "cpu": "500m", "memory": "256Mi", "pods": "5" } } });
    lend(rome, "cpus", milan, json!({ "source": cpus })).await?;
    milan.liqoctl(&["peer", "--remote-kubeconfig", &rome.kubeconfig.display().to_string()]).await?;
    milan.wait_for(&["node/rome"], "condition=Ready", 60).await?;
    let both = async || {
        let amounts = async |provider: &Cluster, consumer: &Cluster| {
            let offer = offer(provider, consumer).await?.context("there is no offer")?;
            let some: ResourceList = offer.spec.resource_quota.hard.iter().filter(|(_, amount)| !amount.is_zero()).collect();
            anyhow::Ok(some.to_string())
        };
        Ok::<_, anyhow::Error>((amounts(milan, rome).await?, amounts(rome, milan).await?))
    };
    let expected = ("cpu=8, memory=16Gi, nvidia.com/gpu=2, pods=20".to_owned(), "cpu=500m, memory=256Mi, pods=5".to_owned());
    eventually("each offers what its policy says", TIMEOUT, || async {
        let (seen, gpus) = (both().await?, allocatable(rome, "milan").await?.get(GPU));
        ensure!(seen == expected && gpus == Quantity::from_units(2), "{seen:?}, {gpus} on the node");
        Ok(Some(()))
    })
    .await?;

    rome.offloaded_namespace("training", "LocalAndRemote").await?;
    milan.offloaded_namespace("serving", "Remote").await?;
    rome.apply(&pod_with("training", "trainer", &[("cpu", "2"), ("memory", "1Gi"), (GPU, "1")])).await?;
    milan.apply(&pod_with("serving", "server", &[("cpu", "100m"), ("memory", "16Mi")])).await?;
    ensure!(node_of(&rome.ready_pods("training", "app=trainer", 1).await?[0]) == "milan");
    ensure!(node_of(&milan.ready_pods("serving", "app=server", 1).await?[0]) == "rome");
    let trainer = milan.ready_pods(&rome.remote_namespace("training", milan).await?, "app=trainer", 1).await?;
    ensure!(node_of(&trainer[0]) == with_gpus, "it runs on {}", node_of(&trainer[0]));
    let server = rome.ready_pods(&milan.remote_namespace("serving", rome).await?, "app=server", 1).await?;
    ensure!(node_of(&server[0]) == "rome-1", "it runs on {}", node_of(&server[0]));

    world.quiet(&[rome, milan]).await?;
    let from = [rome.audit_length()?, milan.audit_length()?];
    // Longer than the minimum time between two versions of an offer.
    tokio::time::sleep(Duration::from_secs(12)).await;
    for (cluster, from) in [rome, milan].into_iter().zip(from) {
        let writes = cluster.liqo_writes(from)?;
        ensure!(writes.is_empty(), "{} saw writes although nothing changed: {writes:#?}", cluster.name);
    }
    ensure!(both().await? == expected, "use in one direction changed what is offered: {:?}", both().await?);

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

pub async fn a_withdrawn_pool_is_drained_within_disruption_budgets(world: Arc<World>) -> Result<()> {
    const NOTICE: Duration = Duration::from_secs(240);
    let (rome, milan) = (&world.rome, &world.milan);
    // All pods start at milan and may come home later. New pods become ready slowly, so evicting all at once would show.
    rome.kubectl(&["cordon", "rome-1"]).await?;
    rome.offloaded_namespace("moving", "LocalAndRemote").await?;
    let slow =
        "    readinessProbe: { exec: { command: [\"true\"] }, initialDelaySeconds: 3, periodSeconds: 1 }\n        resources:";
    rome.apply(&deployment("moving", "web", 3).replace("    resources:", slow)).await?;
    let before = rome.ready_pods("moving", "app=web", 3).await?;
    let nodes = |pods: &[Pod]| pods.iter().map(|pod| node_of(pod).to_owned()).collect::<Vec<_>>();
    ensure!(nodes(&before) == ["milan"; 3], "not all pods are at milan: {:?}", nodes(&before));
    let budget = json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "web", "namespace": "moving" },
        "spec": { "minAvailable": 2, "selector": { "matchLabels": { "app": "web" } } } });
    rome.apply(&budget.to_string()).await?;
    rome.wait_for(&["-n", "moving", "pdb/web"], "jsonpath={.status.disruptionsAllowed}=1", 30).await?;
    rome.kubectl(&["uncordon", "rome-1"]).await?;

    // No node has this label, so there are no pools any more.
    let none = json!({ "by": "NodeLabel", "label": "example.com/shelf" });
    let taken_back = Instant::now();
    lend(milan, "none", rome, json!({ "granularity": none, "noticeSeconds": NOTICE.as_secs() })).await?;
    let fewest = AtomicUsize::new(before.len());
    eventually("the node is empty and gone", NOTICE, || async {
        let healthy = rome.pods("moving", "app=web").await?.iter().filter(|pod| is_healthy(pod)).count();
        fewest.fetch_min(healthy, Ordering::Relaxed);
        Ok(rome.object(&["node", "milan"]).await?.is_none().then_some(()))
    })
    .await?;
    ensure!(taken_back.elapsed() < NOTICE, "the node stayed until the end of the notice");
    let fewest = fewest.into_inner();
    ensure!(fewest == 2, "at one time only {fewest} of 3 pods were available; the budget requires 2");
    let after = rome.ready_pods("moving", "app=web", 3).await?;
    ensure!(nodes(&after) == ["rome-1"; 3], "not all pods came home: {:?}", nodes(&after));

    milan.kubectl(&["delete", "peeringpolicy", "none"]).await?;
    rome.end_namespace("moving").await?;
    eventually("the node is back", TIMEOUT, || async { node_ready(rome, "milan").await.map(|ready| ready.then_some(())) }).await
}

/// Whether `NetworkPolicies` are enforced in a cluster, as the condition of its `ClusterConfig` says: status and message.
pub async fn enforced(cluster: &Cluster) -> Result<Option<(String, String)>> {
    let config = cluster.object(&["clusterconfig", "liqo"]).await?.context("no ClusterConfig")?;
    let mut conditions = config["status"]["conditions"].as_array().into_iter().flatten();
    let found = conditions.find(|condition| condition["type"] == liqo_api::NETWORK_POLICIES_ENFORCED);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(found.map(|condition| (text(&condition["status"]), text(&condition["message"]))))
}

/// Milan does not enforce `NetworkPolicies`; all scenarios run with the explicit yes.
pub async fn without_enforced_network_policies_a_cluster_lends_only_after_an_explicit_yes(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    eventually("the test is over", Duration::from_secs(60), || async {
        let (status, message) = enforced(milan).await?.context("no condition")?;
        ensure!(status == "False" && message.contains("lends nevertheless"), "{status}: {message}");
        Ok(Some(()))
    })
    .await?;
    ensure!(offer(milan, rome).await?.is_some(), "nothing is offered although the setting allows it");

    let yes = "liqoctl install --set lendWithoutNetworkPolicies=true";
    let said = milan.liqoctl(&["install", "--set", "lendWithoutNetworkPolicies=false"]).await?;
    ensure!(said.contains("does not enforce NetworkPolicies") && said.contains(yes), "{said}");
    let answered = async |status: &str, reason: &str| {
        let tenant = liqo_api::tenant_namespace(&rome.cluster_id().await?.parse()?);
        eventually(&format!("the request is answered with {reason}"), TIMEOUT, || async {
            let request = milan.object(&["-n", &tenant, "resourcerequest", liqo_api::RESOURCE_REQUEST]).await?;
            let request = request.context("there is no request")?;
            let mut conditions = request["status"]["conditions"].as_array().into_iter().flatten();
            let found = conditions.any(|condition| condition["status"] == status && condition["reason"] == reason);
            ensure!(found, "{}", request["status"]);
            Ok(Some(()))
        })
        .await
    };
    answered("False", "NotIsolated").await?;
    eventually("the offer is withdrawn", TIMEOUT, || async { Ok(offer(milan, rome).await?.is_none().then_some(())) }).await?;
    eventually("the condition says how to allow it", TIMEOUT, || async {
        let (_, message) = enforced(milan).await?.context("no condition")?;
        Ok(message.contains(yes).then_some(()))
    })
    .await?;
    let doctor = milan.try_liqoctl(&["doctor"]).await?;
    ensure!(!doctor.success && doctor.stdout.contains(yes), "{}", doctor.stdout);

    let said = milan.liqoctl(&["install", "--set", "lendWithoutNetworkPolicies=true"]).await?;
    ensure!(said.contains("lends nevertheless"), "{said}");
    answered("True", "Offered").await?;
    eventually("rome has a node for milan", Duration::from_secs(60), || async {
        Ok(rome.object(&["node", "milan"]).await?.map(drop))
    })
    .await?;
    rome.wait_for(&["node/milan"], "condition=Ready", 60).await
}

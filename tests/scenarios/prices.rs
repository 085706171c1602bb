//! What a provider asks for its resources shows at the consumer, which limits what it pays.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use liqo_tests::{Cluster, World, eventually, still};
use serde_json::{Value, json};

use crate::pods::{deployment, node_of};

/// Timeout until a change gets from one cluster to the other, with time to spare on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);
/// A price that was just written stays for 10 seconds.
const TIMEOUT_OF_PRICES: Duration = Duration::from_secs(30);

/// Sets what the policy `default` asks for, as docs/how-to/set-prices.md says.
async fn sell(provider: &Cluster, prices: Value) -> Result<()> {
    patch_default(
        provider,
        json!({ "spec": { "provide": { "prices": prices } } }),
    )
    .await
}

/// Sets what the policy `default` pays at most.
async fn pay_at_most(consumer: &Cluster, prices: Value) -> Result<()> {
    patch_default(
        consumer,
        json!({ "spec": { "consume": { "maxPrices": prices } } }),
    )
    .await
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
async fn patch_default(cluster: &Cluster, patch: Value) -> Result<()> {
    let patch = patch.to_string();
    cluster
        .kubectl(&[
            "patch",
            "peeringpolicy",
            "default",
            "--type",
            "merge",
            "-p",
            &patch,
        ])
        .await
        .map(drop)
}

fn eur(cpu: &str) -> Value {
    json!({ "currency": "EUR", "rates": { "cpu": cpu } })
}

/// The label with the price of cpu of rome's Node milan, if it has one.
async fn price_of_cpu(rome: &Cluster) -> Result<Option<String>> {
    let node = rome
        .object(&["node", "milan"])
        .await?
        .context("rome has no Node milan")?;
    Ok(node["metadata"]["labels"]["price.liqo.io/cpu"]
        .as_str()
        .map(str::to_owned))
}

async fn costs(rome: &Cluster, cpu: &str) -> Result<()> {
    eventually(
        &format!("a core costs {cpu}"),
        TIMEOUT_OF_PRICES,
        || async { Ok((price_of_cpu(rome).await?.as_deref() == Some(cpu)).then_some(())) },
    )
    .await
}

pub async fn prices_get_from_the_policy_to_the_node_and_follow_time_and_utilization(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    sell(
        milan,
        json!({ "currency": "EUR", "rates": { "cpu": "0.04", "memory": "0.005" } }),
    )
    .await?;
    costs(rome, "0.04").await?;
    let node = rome
        .object(&["node", "milan"])
        .await?
        .context("rome has no Node milan")?;
    let annotation: Value = serde_json::from_str(
        node["metadata"]["annotations"]["liqo.io/prices"]
            .as_str()
            .context("no annotation")?,
    )?;
    ensure!(
        annotation == json!({ "currency": "EUR", "rates": { "cpu": "0.04", "memory": "0.005" } }),
        "{annotation}"
    );
    let nodes = rome
        .kubectl(&[
            "get",
            "nodes",
            "-L",
            "price.liqo.io/currency,price.liqo.io/cpu",
        ])
        .await?;
    ensure!(
        nodes
            .lines()
            .any(|line| line.starts_with("milan") && line.contains("EUR") && line.contains("0.04")),
        "{nodes}"
    );
    let offers: Value = serde_json::from_str(
        &rome
            .liqoctl(&["offer", "list", "milan", "-o", "json"])
            .await?,
    )?;
    ensure!(
        offers[0]["prices"] == annotation && offers[0]["pricePerHour"].is_string(),
        "{offers:#}"
    );
    let explained = milan.liqoctl(&["policy", "explain", "rome"]).await?;
    ensure!(
        explained.contains("a core of cpu costs 0.04 EUR per hour"),
        "{explained}"
    );

    let always = json!([{ "from": "00:00", "to": "00:00", "percentage": 50 }]);
    sell(milan, json!({ "schedule": always })).await?;
    costs(rome, "0.02").await?;
    rome.offloaded_namespace("priced", "Remote").await?;
    rome.apply(&deployment("priced", "web", 1)).await?;
    rome.ready_pods("priced", "app=web", 1).await?;
    sell(
        milan,
        json!({ "utilization": [{ "above": 0, "percentage": 300 }] }),
    )
    .await?;
    costs(rome, "0.06").await?;
    rome.end_namespace("priced").await?;
    costs(rome, "0.02").await?;

    sell(milan, Value::Null).await?;
    eventually("without prices the node shows none", TIMEOUT, || async {
        let node = rome
            .object(&["node", "milan"])
            .await?
            .context("rome has no Node milan")?;
        let (labels, annotations) = (
            &node["metadata"]["labels"],
            &node["metadata"]["annotations"],
        );
        let shown = [
            &labels["price.liqo.io/cpu"],
            &labels["price.liqo.io/currency"],
            &annotations["liqo.io/prices"],
        ];
        Ok(shown.iter().all(|one| one.is_null()).then_some(()))
    })
    .await
}

/// The condition `OfferAccepted` of the peer milan: reason and message.
async fn offer_accepted(consumer: &Cluster) -> Result<Option<(String, String)>> {
    let peer = consumer
        .object(&["foreigncluster", "milan"])
        .await?
        .unwrap_or_default();
    let conditions = peer["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let found = conditions
        .into_iter()
        .find(|condition| condition["type"] == "OfferAccepted");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(found.map(|condition| (text(&condition["reason"]), text(&condition["message"]))))
}

pub async fn a_node_that_becomes_too_dear_keeps_its_pods_and_takes_no_new_ones(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    sell(milan, eur("0.04")).await?;
    pay_at_most(rome, eur("0.04")).await?;
    costs(rome, "0.04").await?;
    rome.offloaded_namespace("dear", "Remote").await?;
    rome.apply(&deployment("dear", "web", 1)).await?;
    let first = rome
        .ready_pods("dear", "app=web", 1)
        .await?
        .remove(0)
        .metadata
        .uid;

    sell(milan, eur("0.05")).await?;
    eventually(
        "the node takes no new pods, and the peer says why",
        TIMEOUT,
        || async {
            let node = rome
                .object(&["node", "milan"])
                .await?
                .context("rome has no Node milan")?;
            let taints = node["spec"]["taints"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let closed = taints
                .iter()
                .any(|taint| taint["key"] == "virtual-node.liqo.io/no-new-pods");
            let says = offer_accepted(rome).await?;
            let why = "takes no new pods: cpu costs 0.05 EUR per core and hour";
            Ok((closed
                && says.is_some_and(|(reason, message)| {
                    reason == "Accepted" && message.contains(why)
                }))
            .then_some(()))
        },
    )
    .await?;
    rome.kubectl(&["-n", "dear", "scale", "deployment/web", "--replicas=2"])
        .await?;
    still(
        "the first pod runs, and the second has no node",
        Duration::from_secs(5),
        true,
        || async {
            let pods = rome.pods("dear", "app=web").await?;
            let mut bound = pods.iter().filter(|pod| !node_of(pod).is_empty());
            Ok(bound.all(|pod| pod.metadata.uid == first)
                && pods.iter().any(|pod| pod.metadata.uid == first))
        },
    )
    .await?;

    sell(milan, eur("0.03")).await?;
    rome.ready_pods("dear", "app=web", 2).await?;
    ensure!(
        rome.pods("dear", "app=web")
            .await?
            .iter()
            .any(|pod| pod.metadata.uid == first),
        "the first pod was replaced"
    );
    rome.end_namespace("dear").await?;
    pay_at_most(rome, Value::Null).await?;
    sell(milan, Value::Null).await
}

pub async fn an_offer_that_costs_too_much_waits_until_the_price_falls(
    world: Arc<World>,
) -> Result<()> {
    let (turin, milan) = (&world.turin, &world.milan);
    sell(milan, eur("0.05")).await?;
    pay_at_most(turin, eur("0.04")).await?;
    turin
        .liqoctl(&[
            "peer",
            "--no-wait",
            "--remote-kubeconfig",
            &milan.kubeconfig.display().to_string(),
        ])
        .await?;
    eventually("turin's offer waits because of its price", Duration::from_mins(1), || async {
        let says = offer_accepted(turin).await?;
        let expected = "cpu costs 0.05 EUR per core and hour, and the consumer's PeeringPolicy accepts at most 0.04";
        Ok(says.is_some_and(|(reason, message)| reason == "PriceTooHigh" && message.contains(expected)).then_some(()))
    })
    .await?;
    let offers: Value = serde_json::from_str(
        &turin
            .liqoctl(&["offer", "list", "milan", "-o", "json"])
            .await?,
    )?;
    ensure!(offers[0]["phase"] == "Pending", "{offers:#}");
    sell(
        milan,
        json!({ "currency": "credits", "rates": { "cpu": "0.01" } }),
    )
    .await?;
    eventually(
        "another currency is not accepted either",
        TIMEOUT,
        || async {
            let says = offer_accepted(turin).await?;
            Ok(says
                .is_some_and(|(_, message)| message.contains("its prices are in credits"))
                .then_some(()))
        },
    )
    .await?;
    sell(milan, eur("0.04")).await?;
    eventually(
        "the offer is accepted when the price falls",
        TIMEOUT,
        || async { Ok(turin.object(&["node", "milan"]).await?.map(drop)) },
    )
    .await?;
    turin.liqoctl(&["unpeer", "milan", "--yes"]).await?;
    pay_at_most(turin, Value::Null).await?;
    sell(milan, Value::Null).await
}

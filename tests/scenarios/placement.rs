//! Prices steer where new pods go, and `liqoctl cost` says what they cost. The commands are those
//! of docs/how-to/send-pods-to-the-cheapest-provider.md.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use liqo_tests::{Cluster, PATIENCE, World, eventually};
use serde_json::{Value, json};

use crate::pods::{deployment, node_of, pod};

/// Timeout until a price gets from the policy to the node. A price that was just written stays for
/// 10 seconds.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Sets what a core costs.
async fn sell(provider: &Cluster, cpu: &str) -> Result<()> {
    set_prices(
        provider,
        &json!({ "currency": "EUR", "rates": { "cpu": cpu } }),
    )
    .await
}

async fn set_prices(provider: &Cluster, prices: &Value) -> Result<()> {
    let patch = json!({ "spec": { "provide": { "prices": prices } } }).to_string();
    provider
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

/// Waits until a core costs so much at a virtual node of rome.
async fn costs(rome: &Cluster, node: &str, cpu: &str) -> Result<()> {
    eventually(
        &format!("a core costs {cpu} at {node}"),
        TIMEOUT,
        || async {
            let found = rome
                .object(&["node", node])
                .await?
                .with_context(|| format!("rome has no Node {node}"))?;
            Ok((found["metadata"]["labels"]["price.liqo.io/cpu"] == cpu).then_some(()))
        },
    )
    .await
}

/// The nodes of the ready pods of a Deployment.
async fn nodes_of(rome: &Cluster, name: &str, count: usize) -> Result<Vec<String>> {
    let pods = rome
        .ready_pods("cheapest", &format!("app={name}"), count)
        .await?;
    Ok(pods.iter().map(|pod| node_of(pod).to_owned()).collect())
}

/// Creates pods one after another until one goes to this virtual node, and removes them. Returns
/// the time from `began` until that one was created, and until it had its node.
async fn first_pod_on(rome: &Cluster, node: &str, began: Instant) -> Result<(Duration, Duration)> {
    let mut names = Vec::new();
    let times = loop {
        ensure!(
            began.elapsed() < TIMEOUT * PATIENCE,
            "no new pod went to {node} in {:?}",
            TIMEOUT * PATIENCE
        );
        let name = format!("probe-{}", names.len());
        let created = began.elapsed();
        rome.apply(&pod("cheapest", &name, "Always", "sleep 600"))
            .await?;
        let placed = eventually("a new pod has a node", TIMEOUT, || async {
            let found = rome
                .object(&["-n", "cheapest", "pod", &name])
                .await?
                .context("the pod is gone")?;
            Ok(found["spec"]["nodeName"].as_str().map(str::to_owned))
        })
        .await?;
        names.push(name);
        if placed == node {
            break (created, began.elapsed());
        }
    };
    let mut arguments = vec!["-n", "cheapest", "delete", "pod"];
    arguments.extend(names.iter().map(String::as_str));
    rome.kubectl(&arguments).await?;
    Ok(times)
}

pub async fn a_deployment_goes_to_the_cheaper_provider_and_after_a_price_change_to_the_other(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    sell(milan, "0.05").await?;
    sell(turin, "0.04").await?;
    rome.liqoctl(&[
        "peer",
        "--remote-kubeconfig",
        &turin.kubeconfig.display().to_string(),
    ])
    .await?;
    costs(rome, "milan", "0.05").await?;
    costs(rome, "turin", "0.04").await?;
    rome.offloaded_namespace("cheapest", "Remote").await?;
    rome.liqoctl(&[
        "offload",
        "namespace",
        "cheapest",
        "--placement",
        "Cheapest",
    ])
    .await?;

    let file = world.scratch("placement").with_extension("yaml");
    std::fs::write(&file, deployment("cheapest", "first", 2))?;
    let planned: Value = serde_json::from_str(
        &rome
            .liqoctl(&[
                "cost",
                "plan",
                "-f",
                &file.display().to_string(),
                "-o",
                "json",
            ])
            .await?,
    )?;
    let places = planned[0]["places"].as_array().context("no places")?;
    let names: Vec<&str> = places
        .iter()
        .filter_map(|place| place["name"].as_str())
        .collect();
    ensure!(names == ["turin", "milan", "rome"], "{planned:#}");
    ensure!(
        places[0]["perHour"] == "0.0008"
            && places[1]["perHour"] == "0.001"
            && places[0]["rank"] == 1,
        "{planned:#}"
    );
    ensure!(
        places[2]["whyNot"][0] == "the strategy of namespace cheapest is Remote",
        "{planned:#}"
    );

    rome.apply(&deployment("cheapest", "first", 2)).await?;
    let nodes = nodes_of(rome, "first", 2).await?;
    ensure!(
        nodes.iter().all(|node| node == "turin"),
        "the pods are on {nodes:?}, and turin is cheaper"
    );

    let began = Instant::now();
    sell(milan, "0.01").await?;
    let (created, scheduled) = first_pod_on(rome, "milan", began).await?;
    println!(
        "from a price change to the first new pod that is placed by it: created after {created:.2?}, placed after {scheduled:.2?}"
    );
    costs(rome, "milan", "0.01").await?;
    rome.apply(&deployment("cheapest", "second", 2)).await?;
    let nodes = nodes_of(rome, "second", 2).await?;
    ensure!(
        nodes.iter().all(|node| node == "milan"),
        "the pods are on {nodes:?}, and milan is cheaper now"
    );
    let nodes = nodes_of(rome, "first", 2).await?;
    ensure!(
        nodes.iter().all(|node| node == "turin"),
        "running pods moved although nobody asked for it: {nodes:?}"
    );

    let table = rome.liqoctl(&["cost", "-n", "cheapest"]).await?;
    let line = |peer: &str, amount: &str| {
        table
            .lines()
            .any(|line| line.contains(peer) && line.contains(amount))
    };
    ensure!(
        line("turin", "0.0008 EUR") && line("milan", "0.0002 EUR") && line("(total)", "0.001 EUR"),
        "{table}"
    );

    rome.liqoctl(&["offload", "namespace", "cheapest", "--move-when-cheaper"])
        .await?;
    eventually(
        "the running pods move to the cheaper provider, one after another",
        Duration::from_mins(4),
        || async {
            let pods = rome.pods("cheapest", "app=first").await?;
            Ok((pods.len() == 2 && pods.iter().all(|pod| node_of(pod) == "milan")).then_some(()))
        },
    )
    .await?;
    rome.end_namespace("cheapest").await?;
    rome.liqoctl(&["unpeer", "turin", "--yes"]).await?;
    set_prices(turin, &Value::Null).await?;
    set_prices(milan, &Value::Null).await
}

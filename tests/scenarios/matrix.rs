//! `liqoctl test network` on the clusters of the scenarios: it asks far more ways than the other scenarios do.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use liqo_tests::{Cluster, World};
use serde_json::Value;

use crate::network::connected;

/// Runs the test from rome, with a look into these clusters; whether it passed, and its matrix.
async fn matrix(world: &World, others: &[&Cluster]) -> Result<(bool, Value)> {
    let mut arguments = vec!["test".to_owned(), "network".to_owned(), "-o".to_owned(), "json".to_owned()];
    for other in others {
        arguments.extend(["--remote-kubeconfig".to_owned(), other.kubeconfig.display().to_string()]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = world.rome.try_liqoctl(&arguments).await?;
    let found: Value = serde_json::from_str(&output.stdout).with_context(|| format!("no matrix: {}", output.stderr))?;
    let left = world.rome.kubectl(&["get", "namespaces", "-l", "network-test.liqo.io/over-at", "-o", "name"]).await?;
    ensure!(left.trim().is_empty(), "it leaves something behind: {left}");
    let matrices = found["matrices"].as_array().context("no list")?;
    ensure!(matrices.len() == 1, "only rome borrows: {found}");
    Ok((output.success, matrices[0].clone()))
}

/// How a way is, and what is said of it.
fn way<'a>(matrix: &'a Value, from: (&str, &str), to: (&str, &str)) -> Result<(&'a str, &'a str)> {
    let ways = matrix["ways"].as_array().context("no ways")?;
    let is = |way: &&Value| {
        (&way["fromCluster"], &way["from"], &way["toCluster"], &way["to"])
            == (&from.0.into(), &from.1.into(), &to.0.into(), &to.1.into())
    };
    let found = ways.iter().find(is).with_context(|| format!("{from:?} to {to:?} is not in {matrix}"))?;
    Ok((found["state"].as_str().unwrap_or_default(), found["message"].as_str().unwrap_or_default()))
}

pub async fn every_way_between_a_consumer_and_its_provider_works(world: Arc<World>) -> Result<()> {
    connected(&world.rome, &world.milan).await?;
    let (passed, matrix) = matrix(&world, &[&world.milan]).await?;
    ensure!(passed, "{:#}", matrix["failures"]);
    for from in [("rome", "pod"), ("rome", "node"), ("milan", "pod"), ("milan", "node")] {
        for to in [("rome", "service"), ("milan", "pod"), ("milan", "service")] {
            ensure!(way(&matrix, from, to)?.0 == "ok", "{from:?} {to:?}: {matrix}");
        }
    }
    ensure!(way(&matrix, ("rome", "pod"), ("milan", "nodePort"))?.0 == "ok", "{matrix}");
    ensure!(way(&matrix, ("milan", "pod"), ("rome", "nodePort"))?.0 == "closed", "{matrix}");
    Ok(())
}

pub async fn leaves_reach_each_other_through_a_hub_only_where_it_says_so(world: Arc<World>) -> Result<()> {
    let (rome, turin) = (&world.rome, &world.turin);
    rome.liqoctl(&["peer", "--remote-kubeconfig", &turin.kubeconfig.display().to_string()]).await?;
    rome.wait_for(&["node/turin"], "condition=Ready", 90).await?;
    connected(rome, turin).await?;

    let (passed, apart) = matrix(&world, &[]).await?;
    ensure!(passed, "{:#}", apart["failures"]);
    ensure!(way(&apart, ("rome", "pod"), ("turin", "service"))?.0 == "ok", "{apart}");
    let (state, why) = way(&apart, ("milan", "pod"), ("turin", "pod"))?;
    ensure!(state == "closed" && why.contains("spec.network.transit"), "{state}: {why}");

    let policy = |transit: &str| format!(r#"{{"spec":{{"network":{{"transit":{transit}}}}}}}"#);
    rome.kubectl(&["patch", "peeringpolicy", "default", "--type=merge", "-p", &policy("true")]).await?;
    for leaf in [&world.milan, turin] {
        liqo_tests::eventually(&format!("{} sees the other one", leaf.name), std::time::Duration::from_secs(60), || async {
            let endpoint = crate::network::endpoint(rome, leaf).await?;
            Ok((endpoint.spec.exported.len() == 4).then_some(()))
        })
        .await?;
    }
    let (passed, through) = matrix(&world, &[]).await?;
    ensure!(passed, "{:#}", through["failures"]);
    for (from, to) in [("milan", "turin"), ("turin", "milan")] {
        for kind in ["pod", "service"] {
            ensure!(way(&through, (from, "pod"), (to, kind))?.0 == "ok", "{from} {to} {kind}: {through}");
        }
    }

    rome.kubectl(&["patch", "peeringpolicy", "default", "--type=merge", "-p", &policy("null")]).await?;
    rome.liqoctl(&["unpeer", "turin", "--yes"]).await.map(drop)
}

//! The doctor (`liqoctl doctor`) finds nothing where all is well, and names what is broken.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use liqo_tests::{Cluster, Output, World, eventually};
use serde_json::Value;

use crate::network::connected;

/// How long it may take until what is broken shows.
const SHOWS: Duration = Duration::from_secs(120);

/// What the doctor says of rome, and of milan beside it.
struct Visit {
    output: Output,
    report: Value,
}

impl Visit {
    async fn of(world: &World) -> Result<Self> {
        let remote = world.milan.kubeconfig.display().to_string();
        let output = world.rome.try_liqoctl(&["doctor", "--remote-kubeconfig", &remote, "-o", "json"]).await?;
        let report = serde_json::from_str(&output.stdout).with_context(|| format!("no report: {output:?}"))?;
        Ok(Self { output, report })
    }

    /// Findings of a cluster (or of two compared) with this verdict: the check and what was found.
    fn with(&self, clusters: &[&Cluster], verdict: &str) -> Vec<(&str, &str)> {
        let of_these = |one: &&Value| {
            let names = one["clusters"].as_array().into_iter().flatten();
            names.eq(clusters.iter().map(|cluster| cluster.name.as_str()))
        };
        let examined = self.report["examined"].as_array().into_iter().flatten().filter(of_these);
        let findings = examined.flat_map(|one| one["findings"].as_array().into_iter().flatten());
        let wanted = findings.filter(|finding| finding["verdict"] == verdict);
        wanted
            .map(|finding| (finding["check"].as_str().unwrap_or_default(), finding["what"].as_str().unwrap_or_default()))
            .collect()
    }

    /// The names of the checks with this verdict.
    fn checks(&self, clusters: &[&Cluster], verdict: &str) -> Vec<&str> {
        self.with(clusters, verdict).into_iter().map(|(check, _)| check).collect()
    }

    fn fails(&self, clusters: &[&Cluster], check: &str) -> Option<String> {
        self.with(clusters, "Fail").into_iter().find(|(name, _)| *name == check).map(|(_, what)| what.to_owned())
    }
}

/// Waits until the doctor finds that this check failed, and returns what it says, with exit code 1.
async fn failing(world: &World, clusters: &[&Cluster], check: &str) -> Result<(Visit, String)> {
    eventually(&format!("the doctor names {check}"), SHOWS, || async {
        let visit = Visit::of(world).await?;
        let Some(what) = visit.fails(clusters, check) else { return Ok(None) };
        ensure!(!visit.output.success, "something failed, and the exit code is 0");
        Ok(Some((visit, what)))
    })
    .await
}

/// Waits until the doctor finds no fault.
async fn well(world: &World) -> Result<Visit> {
    eventually("the doctor finds no fault", SHOWS, || async {
        let visit = Visit::of(world).await?;
        ensure!(visit.output.success && visit.report["summary"]["fail"] == 0, "{}", visit.output.stdout);
        Ok(Some(visit))
    })
    .await
}

pub async fn the_doctor_finds_no_fault_in_clusters_that_are_well(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    connected(rome, milan).await?;
    let visit = well(&world).await?;
    for cluster in [rome, milan] {
        let ok = visit.checks(&[cluster], "Ok");
        for check in [
            "definitions",
            "leader",
            "webhook",
            "manager-rights",
            "node-clocks",
            "fabric",
            "peer-prefixes",
            "gateways-alive",
            "tunnel-connected",
        ] {
            ensure!(ok.contains(&check), "{}: {check} is not well: {}", cluster.name, visit.output.stdout);
        }
    }
    let between = visit.checks(&[rome, milan], "Ok");
    for check in ["agreement", "clocks", "tunnel-keys", "tunnel-prefixes", "tunnel-directions"] {
        ensure!(between.contains(&check), "{check} is not well: {}", visit.output.stdout);
    }
    Ok(())
}

pub async fn the_doctor_names_a_manager_that_does_not_run(world: Arc<World>) -> Result<()> {
    world.rome.stop_manager().await?;
    let (visit, what) = failing(&world, &[&world.rome], "manager").await?;
    ensure!(what.contains("scaled to zero"), "{what}");
    // What it wrote is not believed any more; what is no work of it is as it was.
    let unknown = visit.checks(&[&world.rome], "Unknown");
    ensure!(unknown.contains(&"peer-reachable"), "{}", visit.output.stdout);
    ensure!(visit.fails(&[&world.rome], "fabric").is_none(), "{}", visit.output.stdout);
    world.rome.start_manager().await?;
    well(&world).await.map(drop)
}

pub async fn the_doctor_names_a_right_that_was_taken_away(world: Arc<World>) -> Result<()> {
    world.rome.kubectl(&["-n", "liqo", "delete", "rolebinding", "liqo-fabric"]).await?;
    let (_, what) = failing(&world, &[&world.rome], "fabric-rights").await?;
    ensure!(what == "RoleBinding liqo/liqo-fabric is gone", "{what}");
    world.install(&world.rome).await?;
    well(&world).await.map(drop)
}

pub async fn the_doctor_names_the_direction_in_which_packets_are_lost(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    connected(rome, milan).await?;
    let (ours, theirs) = (world.machinery(rome)?.nodes(), world.machinery(milan)?.address());
    let node = ours.first().context("rome has no node")?;
    let nft = |rules: &str| format!("nsenter --net=/run/netns/{} nft '{rules}'", node.network_namespace);
    // Datagrams, and what takes their place.
    let lost = ["udp sport 51840", "udp dport 51840", "tcp sport 443", "tcp dport 443"];
    let rules: Vec<String> = lost.iter().map(|what| format!("add rule ip lost way ip saddr {theirs} {what} drop;")).collect();
    let drop_all =
        format!("add table ip lost; add chain ip lost way {{ type filter hook prerouting priority -350; }}; {}", rules.join(" "));
    let said = world.shell(&nft(&drop_all), 10).await?;
    ensure!(said.is_empty(), "{said}");
    let found = failing(&world, &[rome], "tunnel-connected").await;
    let compared = failing(&world, &[rome, milan], "tunnel-directions").await;
    world.shell(&nft("delete table ip lost"), 10).await?;
    let (_, what) = found?;
    ensure!(what.starts_with("NoAnswer"), "{what}");
    let (_, what) = compared?;
    ensure!(what.contains("what milan sends does not arrive") || what.starts_with("neither side hears the other"), "{what}");
    connected(rome, milan).await?;
    well(&world).await.map(drop)
}

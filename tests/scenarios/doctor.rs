//! `liqoctl doctor` finds no fault in healthy clusters, and names what is broken.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use liqo_tests::{Cluster, Output, World, eventually};
use serde_json::Value;

use crate::network::connected;

/// Timeout until the doctor finds a fault.
const TIMEOUT: Duration = Duration::from_mins(2);

/// The doctor's report about rome and milan.
struct Examination {
    output: Output,
    report: Value,
}

impl Examination {
    async fn of(world: &World) -> Result<Self> {
        Self::with_flags(world, &[]).await
    }

    async fn with_flags(world: &World, flags: &[&str]) -> Result<Self> {
        let remote = world.milan.kubeconfig.display().to_string();
        let arguments = [
            &["doctor", "--remote-kubeconfig", &remote, "-o", "json"],
            flags,
        ]
        .concat();
        let output = world.rome.try_liqoctl(&arguments).await?;
        let report = serde_json::from_str(&output.stdout)
            .with_context(|| format!("no report: {output:?}"))?;
        Ok(Self { output, report })
    }

    /// The findings with this verdict for one cluster, or for two that are compared: check and
    /// text.
    fn with(&self, clusters: &[&Cluster], verdict: &str) -> Vec<(&str, &str)> {
        let of_these = |one: &&Value| {
            let names = one["clusters"].as_array().into_iter().flatten();
            names.eq(clusters.iter().map(|cluster| cluster.name.as_str()))
        };
        let examined = self.report["examined"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(of_these);
        let findings = examined.flat_map(|one| one["findings"].as_array().into_iter().flatten());
        let wanted = findings.filter(|finding| finding["verdict"] == verdict);
        wanted
            .map(|finding| {
                (
                    finding["check"].as_str().unwrap_or_default(),
                    finding["what"].as_str().unwrap_or_default(),
                )
            })
            .collect()
    }

    /// The names of the checks with this verdict.
    fn checks(&self, clusters: &[&Cluster], verdict: &str) -> Vec<&str> {
        self.with(clusters, verdict)
            .into_iter()
            .map(|(check, _)| check)
            .collect()
    }

    fn fails(&self, clusters: &[&Cluster], check: &str) -> Option<String> {
        self.with(clusters, "Fail")
            .into_iter()
            .find(|(name, _)| *name == check)
            .map(|(_, what)| what.to_owned())
    }
}

/// Waits until this check fails, with exit code 1, and returns what it says.
async fn failing(
    world: &World,
    clusters: &[&Cluster],
    check: &str,
) -> Result<(Examination, String)> {
    eventually(&format!("the doctor names {check}"), TIMEOUT, || async {
        let examination = Examination::of(world).await?;
        let Some(what) = examination.fails(clusters, check) else {
            return Ok(None);
        };
        ensure!(
            !examination.output.success,
            "something failed, and the exit code is 0"
        );
        Ok(Some((examination, what)))
    })
    .await
}

/// Waits until the doctor finds no fault.
async fn healthy(world: &World) -> Result<Examination> {
    eventually("the doctor finds no fault", TIMEOUT, || async {
        let examination = Examination::of(world).await?;
        ensure!(
            examination.output.success && examination.report["summary"]["fail"] == 0,
            "{}",
            examination.output.stdout
        );
        Ok(Some(examination))
    })
    .await
}

pub async fn the_doctor_finds_no_fault_in_healthy_clusters(world: Arc<World>) -> Result<()> {
    world.ended_namespaces_are_gone().await?;
    let (rome, milan) = (&world.rome, &world.milan);
    connected(rome, milan).await?;
    let examination = healthy(&world).await?;
    for cluster in [rome, milan] {
        let ok = examination.checks(&[cluster], "Ok");
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
            ensure!(
                ok.contains(&check),
                "{}: {check} is not Ok: {}",
                cluster.name,
                examination.output.stdout
            );
        }
    }
    let between = examination.checks(&[rome, milan], "Ok");
    for check in [
        "agreement",
        "clocks",
        "tunnel-keys",
        "tunnel-prefixes",
        "tunnel-directions",
    ] {
        ensure!(
            between.contains(&check),
            "{check} is not Ok: {}",
            examination.output.stdout
        );
    }
    let examination = Examination::with_flags(&world, &["--invariants"]).await?;
    let together = examination.checks(&[rome, milan], "Ok");
    for check in [
        "local-pods",
        "remote-pods",
        "ended-peerings",
        "leases",
        "promises",
    ] {
        ensure!(
            together.contains(&check),
            "{check} is not Ok: {}",
            examination.output.stdout
        );
    }
    Ok(())
}

pub async fn the_doctor_names_a_manager_that_does_not_run(world: Arc<World>) -> Result<()> {
    world.rome.stop_manager().await?;
    let (examination, what) = failing(&world, &[&world.rome], "manager").await?;
    ensure!(what.contains("scaled to zero"), "{what}");
    // The doctor does not trust what this manager wrote. Other parts are not affected.
    let unknown = examination.checks(&[&world.rome], "Unknown");
    ensure!(
        unknown.contains(&"peer-reachable"),
        "{}",
        examination.output.stdout
    );
    ensure!(
        examination.fails(&[&world.rome], "fabric").is_none(),
        "{}",
        examination.output.stdout
    );
    world.rome.start_manager().await?;
    healthy(&world).await.map(drop)
}

pub async fn the_doctor_names_a_missing_right(world: Arc<World>) -> Result<()> {
    world
        .rome
        .kubectl(&["-n", "liqo", "delete", "rolebinding", "liqo-fabric"])
        .await?;
    let (_, what) = failing(&world, &[&world.rome], "fabric-rights").await?;
    ensure!(what == "RoleBinding liqo/liqo-fabric is gone", "{what}");
    world.install(&world.rome).await?;
    healthy(&world).await.map(drop)
}

pub async fn the_doctor_names_the_direction_that_loses_packets(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    connected(rome, milan).await?;
    let (ours, theirs) = (
        world.machinery(rome)?.nodes(),
        world.machinery(milan)?.address(),
    );
    let node = ours.first().context("rome has no node")?;
    let nft = |rules: &str| {
        format!(
            "nsenter --net=/run/netns/{} nft '{rules}'",
            node.network_namespace
        )
    };
    // Datagrams, and TLS, which replaces them.
    let lost = [
        "udp sport 51840",
        "udp dport 51840",
        "tcp sport 443",
        "tcp dport 443",
    ];
    let rules: Vec<String> = lost
        .iter()
        .map(|what| format!("add rule ip scenario_lost way ip saddr {theirs} {what} drop;"))
        .collect();
    let drop_all = format!(
        "add table ip scenario_lost; add chain ip scenario_lost way {{ type filter hook prerouting priority -350; }}; {}",
        rules.join(" ")
    );
    let said = world.shell(&nft(&drop_all), 10).await?;
    ensure!(said.is_empty(), "{said}");
    let found = failing(&world, &[rome], "tunnel-connected").await;
    let compared = failing(&world, &[rome, milan], "tunnel-directions").await;
    world
        .shell(&nft("delete table ip scenario_lost"), 10)
        .await?;
    let (_, what) = found?;
    ensure!(what.starts_with("NoAnswer"), "{what}");
    let (_, what) = compared?;
    ensure!(
        what.contains("packets from milan do not arrive")
            || what.starts_with("neither side hears the other"),
        "{what}"
    );
    connected(rome, milan).await?;
    healthy(&world).await.map(drop)
}

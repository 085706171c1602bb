//! `liqoctl test network` on the clusters of the scenarios: it tests many more paths than other
//! scenarios.

use std::{net::IpAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use liqo_network_model::{
    ruleset::{GUARD, buckets_in_fingerprint},
    spread::bucket_between,
};
use liqo_tests::{Cluster, World, eventually};
use serde_json::Value;

use crate::network::{AT_HOME, ask, connected, endpoint, exec, ip, servers, service};

/// Runs the test from rome with access to these other clusters. Returns whether it passed, and its
/// matrix.
async fn matrix(world: &World, others: &[&Cluster]) -> Result<(bool, Value)> {
    let mut arguments = vec![
        "test".to_owned(),
        "network".to_owned(),
        "-o".to_owned(),
        "json".to_owned(),
    ];
    for other in others {
        arguments.extend([
            "--remote-kubeconfig".to_owned(),
            other.kubeconfig.display().to_string(),
        ]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = world.rome.try_liqoctl(&arguments).await?;
    let found: Value = serde_json::from_str(&output.stdout)
        .with_context(|| format!("no matrix: {}", output.stderr))?;
    // It waits for their end, but not for ever.
    eventually(
        "the namespaces of the test are gone",
        Duration::from_mins(1),
        || async {
            let left = world
                .rome
                .kubectl(&[
                    "get",
                    "namespaces",
                    "-l",
                    "network-test.liqo.io/ends-at",
                    "-o",
                    "name",
                ])
                .await?;
            ensure!(left.trim().is_empty(), "it leaves something behind: {left}");
            Ok(Some(()))
        },
    )
    .await?;
    let matrices = found["matrices"].as_array().context("no list")?;
    ensure!(matrices.len() == 1, "only rome borrows: {found}");
    Ok((output.success, matrices[0].clone()))
}

/// State and message of a path.
fn path<'a>(matrix: &'a Value, from: (&str, &str), to: (&str, &str)) -> Result<(&'a str, &'a str)> {
    let paths = matrix["paths"].as_array().context("no paths")?;
    let is = |path: &&Value| {
        (
            &path["fromCluster"],
            &path["from"],
            &path["toCluster"],
            &path["to"],
        ) == (&from.0.into(), &from.1.into(), &to.0.into(), &to.1.into())
    };
    let found = paths
        .iter()
        .find(is)
        .with_context(|| format!("{from:?} to {to:?} is not in {matrix}"))?;
    Ok((
        found["state"].as_str().unwrap_or_default(),
        found["message"].as_str().unwrap_or_default(),
    ))
}

pub async fn every_path_between_a_consumer_and_its_provider_works(world: Arc<World>) -> Result<()> {
    connected(&world.rome, &world.milan).await?;
    let (passed, matrix) = matrix(&world, &[&world.milan]).await?;
    ensure!(passed, "{matrix:#}");
    for from in [
        ("rome", "pod"),
        ("rome", "node"),
        ("milan", "pod"),
        ("milan", "node"),
    ] {
        for to in [("rome", "service"), ("milan", "pod"), ("milan", "service")] {
            ensure!(
                path(&matrix, from, to)?.0 == "ok",
                "{from:?} {to:?}: {matrix}"
            );
        }
    }
    ensure!(
        path(&matrix, ("rome", "pod"), ("milan", "nodePort"))?.0 == "ok",
        "{matrix}"
    );
    ensure!(
        path(&matrix, ("milan", "pod"), ("rome", "nodePort"))?.0 == "closed",
        "{matrix}"
    );
    Ok(())
}

/// Runs a shell command line in the network namespace of turin's second node.
async fn on_second_node(world: &World, line: &str) -> Result<String> {
    let machinery = world.machinery(&world.turin)?;
    let node = machinery
        .nodes()
        .into_iter()
        .find(|node| node.name == "turin-2")
        .context("turin has no second node")?;
    world
        .shell(
            &format!("nsenter --net=/run/netns/{} {line}", node.network_namespace),
            20,
        )
        .await
}

/// Waits until both nodes of turin have a tunnel to rome.
async fn two_gateways(world: &World) -> Result<()> {
    eventually(
        "both gateways of turin are connected",
        Duration::from_secs(90),
        || async {
            let gateways = endpoint(&world.turin, &world.rome)
                .await?
                .status
                .unwrap_or_default()
                .gateways;
            ensure!(
                gateways.len() == 2 && gateways.iter().all(|gateway| gateway.connected),
                "{gateways:?}"
            );
            Ok(Some(()))
        },
    )
    .await
}

const FAR_PODS: u16 = 26;

pub async fn a_lost_gateway_is_replaced_and_connections_continue(world: Arc<World>) -> Result<()> {
    let (rome, turin, namespace) = (&world.rome, &world.turin, "lost");
    rome.liqoctl(&[
        "peer",
        "--remote-kubeconfig",
        &turin.kubeconfig.display().to_string(),
    ])
    .await?;
    connected(rome, turin).await?;
    two_gateways(&world).await?;
    rome.offloaded_namespace(namespace, "LocalAndRemote")
        .await?;
    rome.apply(&service(namespace, "web")).await?;
    rome.apply(&servers(namespace, "near", "web", 1, AT_HOME))
        .await?;
    // The scheduler puts about half of them on the first node of turin. These are more than half of
    // the 16 buckets, so each gateway carries some.
    rome.apply(&servers(
        namespace,
        "far",
        "web",
        FAR_PODS.into(),
        ("kubernetes.io/hostname", "turin"),
    ))
    .await?;
    let near = rome
        .ready_pods(namespace, "server=near", 1)
        .await?
        .remove(0);
    let at_turin = rome.remote_namespace(namespace, turin).await?;
    let far = eventually(
        "the pods abroad have addresses at home",
        Duration::from_mins(4),
        || async {
            let far = rome
                .ready_pods(namespace, "server=far", FAR_PODS.into())
                .await?;
            Ok(far.iter().all(|pod| ip(pod).is_ok()).then_some(far))
        },
    )
    .await?;
    let guard = on_second_node(&world, &format!("nft list table ip {GUARD}")).await?;
    let comment = guard
        .lines()
        .find_map(|line| line.trim().strip_prefix("comment \"")?.strip_suffix('"'));
    let buckets = buckets_in_fingerprint(comment.context("the guard says nothing")?);
    let near_address: IpAddr = ip(&near)?.parse()?;
    let mut by_second = Vec::new();
    for pod in &far {
        let there = turin.api::<Pod>(&at_turin).get(&pod.name_any()).await?;
        let is_on_first = there.spec.and_then(|spec| spec.node_name).as_deref() == Some("turin-1");
        let address = ip(pod)?;
        if is_on_first && buckets >> bucket_between(address.parse()?, near_address) & 1 == 1 {
            by_second.push(address);
        }
    }
    ensure!(
        !by_second.is_empty(),
        "no pod of turin-1 speaks to {near_address} by turin-2, which carries {buckets:#06x}"
    );
    by_second.truncate(3);

    let caller = near.name_any();
    let count = || {
        try_join_all(
            by_second
                .iter()
                .map(|address| ask(rome, namespace, &caller, address, "cgi-bin/count")),
        )
    };
    let wanted: Vec<String> = (0..40).map(|number: u32| number.to_string()).collect();
    let all_arrived = |streams: Vec<String>| {
        streams
            .iter()
            .all(|numbers| numbers.lines().eq(wanted.iter().map(String::as_str)))
    };
    let off = "table netdev scenario_off";
    let dead = format!(
        "nft '{off} {{ chain in {{ type filter hook ingress device eth0 priority -300; drop; }}; chain out {{ type filter hook egress device eth0 priority -300; drop; }}; }}'"
    );
    // Ten pings a second, for as long as the numbers take.
    let ping = format!("ping -i 0.1 -c 80 -W 1 -q {}; true", by_second[0]);
    let pinged = || exec(rome, namespace, &caller, &ping);
    let (streams, lost, cut) = tokio::join!(count(), pinged(), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        on_second_node(&world, &dead).await
    });
    // Other scenarios need the node, even if this one fails.
    let (streams_after, lost_after, back) = tokio::join!(count(), pinged(), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        on_second_node(&world, &format!("nft 'delete {off}'")).await
    });
    cut?;
    back?;
    let summary = |text: String| {
        text.lines()
            .find(|line| line.contains("packet loss"))
            .unwrap_or("no summary")
            .to_owned()
    };
    println!(
        "a gateway's node dies, ten pings a second: {}",
        summary(lost?)
    );
    println!(
        "it comes back, ten pings a second: {}",
        summary(lost_after?)
    );
    let streams = streams.context("while a gateway died")?;
    ensure!(
        all_arrived(streams),
        "numbers are missing after a gateway died"
    );
    let streams_after = streams_after.context("while it came back")?;
    ensure!(
        all_arrived(streams_after),
        "numbers are missing after it came back"
    );
    turin
        .wait_for(&["node/turin-2"], "condition=Ready", 90)
        .await?;
    two_gateways(&world).await?;
    ensure!(all_arrived(count().await?), "numbers are missing");
    rome.end_namespace(namespace).await?;
    rome.liqoctl(&["unpeer", "turin", "--yes"]).await.map(drop)
}

pub async fn leaves_reach_each_other_through_a_hub_only_if_its_policy_allows_it(
    world: Arc<World>,
) -> Result<()> {
    let (rome, turin) = (&world.rome, &world.turin);
    rome.liqoctl(&[
        "peer",
        "--remote-kubeconfig",
        &turin.kubeconfig.display().to_string(),
    ])
    .await?;
    rome.wait_for(&["node/turin"], "condition=Ready", 90)
        .await?;
    connected(rome, turin).await?;

    let (passed, apart) = matrix(&world, &[]).await?;
    ensure!(passed, "{:#}", apart["failures"]);
    ensure!(
        path(&apart, ("rome", "pod"), ("turin", "service"))?.0 == "ok",
        "{apart}"
    );
    let (state, why) = path(&apart, ("milan", "pod"), ("turin", "pod"))?;
    ensure!(
        state == "closed" && why.contains("spec.network.transit"),
        "{state}: {why}"
    );

    let policy = |transit: &str| format!(r#"{{"spec":{{"network":{{"transit":{transit}}}}}}}"#);
    rome.kubectl(&[
        "patch",
        "peeringpolicy",
        "default",
        "--type=merge",
        "-p",
        &policy("true"),
    ])
    .await?;
    // Eight prefixes: rome's and those of the other leaf, for pods and for nodes, of both families.
    for leaf in [&world.milan, turin] {
        eventually(
            &format!("{} sees the other one", leaf.name),
            Duration::from_mins(1),
            || async {
                let endpoint = endpoint(rome, leaf).await?;
                Ok((endpoint.spec.exported.len() == 8).then_some(()))
            },
        )
        .await?;
    }
    let (passed, through) = matrix(&world, &[]).await?;
    ensure!(passed, "{:#}", through["failures"]);
    for (from, to) in [("milan", "turin"), ("turin", "milan")] {
        for kind in ["pod", "service"] {
            ensure!(
                path(&through, (from, "pod"), (to, kind))?.0 == "ok",
                "{from} {to} {kind}: {through}"
            );
        }
    }

    rome.kubectl(&[
        "patch",
        "peeringpolicy",
        "default",
        "--type=merge",
        "-p",
        &policy("null"),
    ])
    .await?;
    rome.liqoctl(&["unpeer", "turin", "--yes"]).await.map(drop)
}

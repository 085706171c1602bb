//! A direct path: rome and turin exchange packets without the broker milan, as long as they can.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use liqo_api::GatewayStatus;
use liqo_tests::{Cluster, World, eventually};

use crate::{
    broker::{NAMESPACE, near_and_far},
    network::{ask, endpoint, exec, ip},
};

/// Time until both ends know that they have a path, or that they have none.
const TIMEOUT: Duration = Duration::from_mins(1);
const COUNTED: &str = "scenario_counted";
const LOST: &str = "scenario_lost";

/// Sets whether a policy allows direct paths.
async fn allow(cluster: &Cluster, policy: &str, is_allowed: bool) -> Result<()> {
    let patch = format!(r#"{{"spec":{{"network":{{"direct":{is_allowed}}}}}}}"#);
    cluster
        .kubectl(&[
            "patch",
            "peeringpolicy",
            policy,
            "--type=merge",
            "-p",
            &patch,
        ])
        .await
        .map(drop)
}

/// Sets whether rome, turin and their broker milan allow direct paths.
pub async fn allow_all(world: &World, is_allowed: bool) -> Result<()> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    for (cluster, policy) in [
        (rome, "default"),
        (turin, "default"),
        (milan, "default"),
        (milan, "broker"),
    ] {
        allow(cluster, policy, is_allowed).await?;
    }
    Ok(())
}

/// Waits until all gateways of each end send packets directly to the other one, or none does any
/// longer.
pub async fn direct(world: &World, is_wanted: bool) -> Result<()> {
    let what = if is_wanted {
        "use the direct path"
    } else {
        "do not use the direct path"
    };
    eventually(&format!("rome and turin {what}"), TIMEOUT, || async {
        for (end, other) in [(&world.rome, &world.turin), (&world.turin, &world.rome)] {
            let (endpoint, other) = (
                endpoint(end, &world.milan).await?,
                other.cluster_id().await?,
            );
            let status = endpoint.status.unwrap_or_default();
            ensure!(!status.gateways.is_empty(), "{} has no gateway", end.name);
            let is_direct =
                |gateway: &GatewayStatus| gateway.direct.iter().any(|id| id.as_str() == other);
            let are_right = status
                .gateways
                .iter()
                .all(|gateway| is_direct(gateway) == is_wanted);
            ensure!(
                are_right,
                "{}: {:?}, announced: {:?}",
                end.name,
                status.gateways,
                endpoint.spec.direct
            );
        }
        Ok(Some(()))
    })
    .await
}

/// Changes the tables of a cluster's first node.
async fn nft(world: &World, cluster: &Cluster, rules: &str) -> Result<String> {
    let nodes = world.machinery(cluster)?.nodes();
    let node = nodes.first().context("the cluster has no node")?;
    world
        .shell(
            &format!(
                "nsenter --net=/run/netns/{} nft '{rules}'",
                node.network_namespace
            ),
            10,
        )
        .await
}

/// Counts from now on which packets the broker forwards from one tunnel into another.
async fn count(world: &World) -> Result<()> {
    let rules = format!(
        "add table inet {COUNTED}; delete table inet {COUNTED}; add table inet {COUNTED}; \
         add chain inet {COUNTED} way {{ type filter hook forward priority -350; }}; \
         add rule inet {COUNTED} way iifname liqo.tunnel oifname liqo.tunnel counter;"
    );
    nft(world, &world.milan, &rules).await.map(drop)
}

async fn counted(world: &World) -> Result<u64> {
    let listed = nft(world, &world.milan, &format!("list table inet {COUNTED}")).await?;
    let number = listed
        .split("counter packets ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next());
    Ok(number
        .with_context(|| format!("no counter: {listed}"))?
        .parse()?)
}

pub async fn packets_take_the_direct_path_while_both_ends_answer_and_else_pass_through_the_broker(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    let (near, far) = near_and_far(&world).await?;
    let (caller, server, to_far) = (near.name_any(), far.name_any(), ip(&far)?);
    let seen_as = ask(rome, NAMESPACE, &caller, &to_far, "cgi-bin/who").await?;
    let pings = format!("ping -i 0.2 -c 10 -W 3 {to_far}");
    count(&world).await?;
    exec(rome, NAMESPACE, &caller, &pings).await?;
    ensure!(
        counted(&world).await? >= 20,
        "pings and their answers do not pass through the broker"
    );

    // A connection goes on while packets change their way three times: half a megabyte a second, so
    // the kernel of the broker misses more than it may expect.
    let line = format!("timeout 200 wget -qO- http://{to_far}:8080/cgi-bin/flow?450 | wc -c");
    let stream = exec(rome, NAMESPACE, &caller, &line);
    let change = async {
        allow_all(&world, true).await?;
        direct(&world, true).await?;
        let said = rome.liqoctl(&["status"]).await?;
        ensure!(said.contains("directly to cluster"), "{said}");
        exec(rome, NAMESPACE, &caller, &pings).await?;
        let before = counted(&world).await?;
        exec(rome, NAMESPACE, &caller, &pings).await?;
        let large = exec(
            rome,
            NAMESPACE,
            &caller,
            &format!("timeout 150 wget -qO- http://{to_far}:8080/large | md5sum"),
        )
        .await?;
        let sent = exec(rome, NAMESPACE, &server, "md5sum < /tmp/w/large").await?;
        ensure!(large == sent, "a large answer arrives damaged");
        let forwarded = counted(&world).await? - before;
        ensure!(forwarded == 0, "the broker forwarded {forwarded} packets");
        let directly = ask(rome, NAMESPACE, &caller, &to_far, "cgi-bin/who").await?;
        ensure!(
            directly == seen_as,
            "the caller is {directly} now, it was {seen_as}"
        );
        let answer = ask(rome, NAMESPACE, &server, &seen_as, "").await?;
        ensure!(answer == caller, "{answer:?} answers the pod at turin");

        // UDP does not pass between the two any more.
        let (ours, theirs) = (
            world.machinery(rome)?.address(),
            world.machinery(turin)?.nodes(),
        );
        let theirs = theirs
            .iter()
            .map(|node| node.address.to_string())
            .collect::<Vec<_>>()
            .join(", ");
        let lost = format!(
            "add table ip {LOST}; add chain ip {LOST} way {{ type filter hook prerouting priority -350; }}; \
             add rule ip {LOST} way ip saddr {{ {theirs} }} udp dport 51840 drop;"
        );
        nft(&world, rome, &lost).await?;
        let without = async {
            direct(&world, false).await?;
            count(&world).await?;
            exec(rome, NAMESPACE, &caller, &pings).await?;
            ensure!(
                counted(&world).await? >= 20,
                "packets from {ours} to {theirs} are lost"
            );
            anyhow::Ok(())
        };
        let without = without.await;
        nft(&world, rome, &format!("delete table ip {LOST}")).await?;
        without?;
        direct(&world, true).await
    };
    let (bytes, ()) = tokio::try_join!(stream, change)?;
    ensure!(
        bytes.trim() == "45000000",
        "{bytes} bytes of 45,000,000 arrived"
    );

    // Each of the three can end it.
    allow(turin, "default", false).await?;
    direct(&world, false).await?;
    exec(rome, NAMESPACE, &caller, &pings).await?;
    nft(&world, milan, &format!("delete table inet {COUNTED}")).await?;
    allow_all(&world, false).await?;
    rome.end_namespace(NAMESPACE).await
}

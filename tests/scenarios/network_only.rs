//! Two clusters that share a network and no resources.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use liqo_tests::{Cluster, World, eventually};
use serde_json::{Value, json};

use crate::{
    network::{ask, connected, endpoint, ip, seen, servers},
    policies::apply_policy,
};

/// Starts a server on a node of this cluster, which answers with its name.
async fn server(cluster: &Cluster) -> Result<k8s_openapi::api::core::v1::Pod> {
    let node = format!("{}-1", cluster.name);
    cluster
        .apply(&servers(
            "default",
            "resident",
            "resident",
            1,
            ("kubernetes.io/hostname", &node),
        ))
        .await?;
    Ok(cluster
        .ready_pods("default", "server=resident", 1)
        .await?
        .remove(0))
}

/// All objects about resources that two clusters share.
async fn shared(consumer: &Cluster, provider: &Cluster) -> Result<Vec<Value>> {
    let mut all = consumer
        .items(&["virtualnodes", "--all-namespaces"])
        .await?;
    all.extend(
        consumer
            .items(&["resourceoffers", "--all-namespaces"])
            .await?,
    );
    let tenant = liqo_api::tenant_namespace(&consumer.cluster_id().await?.parse()?);
    for kind in ["resourcerequests", "resourceoffers", "shadowpods"] {
        all.extend(provider.items(&["-n", &tenant, kind]).await?);
    }
    Ok(all)
}

pub async fn a_peering_for_only_the_network_can_add_and_remove_resources(
    world: Arc<World>,
) -> Result<()> {
    let (turin, milan) = (&world.turin, &world.milan);
    let milans = milan.kubeconfig.display().to_string();
    let peer = |more: &[&'static str]| {
        let arguments: Vec<&str> = [&["peer", "--remote-kubeconfig", &milans], more].concat();
        let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
        async move {
            turin
                .liqoctl(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
                .await
        }
    };
    let (at_turin, at_milan) = (server(turin).await?, server(milan).await?);
    for (cluster, other) in [(turin, milan), (milan, turin)] {
        let peers = json!({ "clusterIDs": [other.cluster_id().await?] });
        apply_policy(
            cluster,
            "open",
            json!({ "priority": 10, "peers": peers, "network": { "reach": "Pods" } }),
        )
        .await?;
    }

    let output = peer(&["--network-only"]).await?;
    ensure!(
        output.contains("10.244.0.0/16 are mapped here to") && output.contains("all pods"),
        "{output}"
    );
    connected(turin, milan).await?;
    let both_reach = async || {
        let calls = [
            (turin, &at_turin, milan, &at_milan),
            (milan, &at_milan, turin, &at_turin),
        ];
        for (from, caller, to, called) in calls {
            let address = seen(&endpoint(to, from).await?, &ip(called)?)?;
            let answer = eventually(
                "the pod of the other cluster answers",
                Duration::from_secs(30),
                || async {
                    Ok(ask(from, "default", &caller.name_any(), &address, "")
                        .await
                        .ok())
                },
            );
            let answer = answer.await?;
            ensure!(
                answer == called.name_any(),
                "{answer:?} is not {}",
                called.name_any()
            );
        }
        Ok(())
    };
    both_reach().await?;
    let found = shared(turin, milan).await?;
    ensure!(found.is_empty(), "nothing was asked for: {found:?}");
    for (cluster, line) in [
        (turin, "requests no resources, only the network"),
        (milan, "it requests no resources"),
    ] {
        let peer = if cluster.name == "turin" {
            "milan"
        } else {
            "turin"
        };
        let status = cluster.liqoctl(&["status"]).await?;
        ensure!(
            status.contains(line) && status.contains("✓ TunnelConnected"),
            "{status}"
        );
        // The consumer's first renewal of its lease comes a moment later.
        eventually(
            "all conditions of the peering are True",
            Duration::from_secs(30),
            || async {
                let foreign = cluster
                    .object(&["foreigncluster", peer])
                    .await?
                    .context("the peer is known")?;
                let conditions = foreign["status"]["conditions"]
                    .as_array()
                    .context("it has conditions")?;
                ensure!(
                    conditions
                        .iter()
                        .all(|condition| condition["status"] == "True"),
                    "{conditions:?}"
                );
                Ok(Some(()))
            },
        )
        .await?;
    }

    let output = peer(&["--cpu", "500m"]).await?;
    ensure!(output.contains("Node milan is Ready"), "{output}");
    turin
        .wait_for(&["node/milan"], "condition=Ready", 60)
        .await?;
    both_reach().await?;
    turin.offloaded_namespace("guests", "Remote").await?;
    turin
        .apply(&servers(
            "guests",
            "guest",
            "guest",
            1,
            ("liqo.io/type", "virtual-node"),
        ))
        .await?;
    turin.ready_pods("guests", "server=guest", 1).await?;
    let asked = turin
        .try_liqoctl(&["peer", "--remote-kubeconfig", &milans, "--network-only"])
        .await?;
    ensure!(
        !asked.success && asked.stderr.contains("pod that runs there is deleted"),
        "{asked:?}"
    );

    peer(&["--network-only", "--yes"]).await?;
    ensure!(
        turin.object(&["node", "milan"]).await?.is_none(),
        "the virtual node stays"
    );
    eventually(
        "nothing is borrowed any more",
        Duration::from_secs(30),
        || async {
            let found = shared(turin, milan).await?;
            ensure!(found.is_empty(), "{found:?}");
            Ok(Some(()))
        },
    )
    .await?;
    both_reach().await?;
    let request = turin
        .object(&["foreigncluster", "milan"])
        .await?
        .context("the peer is known")?["spec"]["request"]
        .clone();
    ensure!(
        request == json!({ "networkOnly": true, "resources": { "cpu": "500m" } }),
        "limits are forgotten: {request}"
    );

    turin.end_namespace("guests").await?;
    turin.liqoctl(&["unpeer", "milan", "--yes"]).await?;
    for cluster in [turin, milan] {
        cluster
            .kubectl(&["delete", "peeringpolicy", "open"])
            .await?;
        cluster
            .kubectl(&["-n", "default", "delete", "deployment", "resident"])
            .await?;
    }
    Ok(())
}

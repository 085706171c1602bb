//! Clusters find each other on the local network and by DNS, and peer by a policy.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use liqo_discovery::responder::{OwnAnnouncement, TTL};
use liqo_tests::{Cluster, World, eventually};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

use crate::policies::apply_policy;

/// How long finding each other and peering may take.
const TIMEOUT: Duration = Duration::from_mins(1);

/// The `ForeignCluster` of a peer.
async fn record(cluster: &Cluster, id: &str) -> Result<Option<Value>> {
    Ok(cluster
        .items(&["foreignclusters"])
        .await?
        .into_iter()
        .find(|peer| peer["spec"]["clusterID"] == id))
}

async fn auth_url(cluster: &Cluster) -> Result<String> {
    let config = cluster
        .object(&["clusterconfig", "liqo"])
        .await?
        .context("no ClusterConfig")?;
    Ok(config["status"]["authURL"]
        .as_str()
        .context("its address is not known")?
        .to_owned())
}

async fn switch_lan(cluster: &Cluster, on: bool) -> Result<()> {
    let patch = json!({ "spec": { "discovery": { "lan": { "enabled": on } } } }).to_string();
    cluster
        .kubectl(&[
            "patch",
            "clusterconfig",
            "liqo",
            "--type",
            "merge",
            "-p",
            &patch,
        ])
        .await
        .map(drop)
}

/// Waits until `cluster` found the other one this way, or not any more.
async fn found(cluster: &Cluster, id: &str, way: Option<&str>) -> Result<()> {
    eventually(
        &format!("{} finds {id} by {way:?}", cluster.name),
        TIMEOUT,
        || async {
            let record = record(cluster, id).await?;
            let label = record
                .as_ref()
                .and_then(|record| record["metadata"]["labels"]["liqo.io/discovered-by"].as_str());
            ensure!(
                label == way && record.is_some() == way.is_some(),
                "{record:?}"
            );
            Ok(Some(()))
        },
    )
    .await
}

/// Waits until `cluster` borrows from the other one.
async fn borrows(cluster: &Cluster, id: &str) -> Result<()> {
    eventually(
        &format!("{} borrows from {id}", cluster.name),
        TIMEOUT,
        || async {
            let record = record(cluster, id).await?.context("it is not known")?;
            let conditions = record["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let is_true = |kind: &str| {
                conditions
                    .iter()
                    .any(|one| one["type"] == kind && one["status"] == "True")
            };
            ensure!(
                is_true("Authenticated") && is_true("PeerReachable"),
                "{conditions:?}"
            );
            Ok(Some(()))
        },
    )
    .await
}

/// Both clusters peer with each other, and with nobody else, if they find each other this way.
async fn peer_automatically(one: &Cluster, other: &Cluster, way: &str) -> Result<()> {
    for (cluster, peer) in [(one, other), (other, one)] {
        let peers = json!({ "clusterIDs": [peer.cluster_id().await?], "discoveredBy": [way] });
        let spec = json!({
            "priority": 10, "peers": peers, "consume": { "automatic": true }, "provide": { "tokenRequired": false, "percentage": 1 },
        });
        apply_policy(cluster, "automatic", spec).await?;
    }
    Ok(())
}

/// Ends it again: without the policy the peerings end, and then nobody is found any more.
async fn end(one: &Cluster, other: &Cluster) -> Result<()> {
    for cluster in [one, other] {
        cluster
            .kubectl(&["delete", "peeringpolicy", "automatic"])
            .await?;
    }
    let ids = [one.cluster_id().await?, other.cluster_id().await?];
    found(one, &ids[1], None).await?;
    found(other, &ids[0], None).await
}

/// Announces a cluster from the host, with an address at which nobody answers.
async fn lie(cluster: &Cluster) -> Result<()> {
    let id = cluster.cluster_id().await?.parse()?;
    let url = auth_url(cluster).await?;
    let node: Ipv4Addr = url
        .trim_start_matches("https://")
        .split(':')
        .next()
        .unwrap_or_default()
        .parse()?;
    let [a, b, c, _] = node.octets();
    let bridge = Ipv4Addr::new(a, b, c, 1);
    let lie = OwnAnnouncement::new(id, "liar".into(), [1, 1], &format!("https://{bridge}:9"))
        .context("a URL")?;
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.set_multicast_if_v4(&bridge)?;
    socket.bind(&SocketAddr::from((bridge, 5353)).into())?;
    let bytes = lie.encode_answer(TTL).context("a message")?;
    socket.send_to(&bytes, &SocketAddr::from(([224, 0, 0, 251], 5353)).into())?;
    Ok(())
}

pub async fn clusters_on_a_network_find_each_other_and_peer_by_a_policy(
    world: Arc<World>,
) -> Result<()> {
    let (rome, turin, milan) = (&world.rome, &world.turin, &world.milan);
    let (turins, milans) = (turin.cluster_id().await?, milan.cluster_id().await?);
    // Milan finds no cluster that it still knows as a consumer, and an earlier scenario has just
    // ended that peering.
    eventually("milan forgot turin", TIMEOUT, || async {
        Ok(record(milan, &turins).await?.is_none().then_some(()))
    })
    .await?;
    peer_automatically(turin, milan, "LAN").await?;
    for cluster in [rome, turin, milan] {
        switch_lan(cluster, true).await?;
    }
    borrows(turin, &milans).await?;
    borrows(milan, &turins).await?;
    // Rome only sees turin. What a person wrote about milan stays.
    found(rome, &turins, Some("LAN")).await?;
    let by_hand = record(rome, &milans)
        .await?
        .context("rome is peered with milan")?;
    ensure!(
        by_hand["metadata"]["labels"]["liqo.io/discovered-by"].is_null(),
        "{by_hand}"
    );
    let shown = rome.liqoctl(&["discover"]).await?;
    ensure!(
        shown.contains(&turins) && shown.contains("starts no peering with it"),
        "{shown}"
    );

    // A false address of milan has no effect.
    let before = record(turin, &milans)
        .await?
        .context("turin is peered with milan")?["spec"]["authURL"]
        .clone();
    lie(milan).await?;
    eventually("turin hears the lie", TIMEOUT, || async {
        let heard: Value =
            serde_json::from_str(&turin.liqoctl(&["discover", "-o", "json"]).await?)?;
        ensure!(
            heard["clusters"]
                .as_array()
                .is_some_and(|all| !all.is_empty()),
            "{heard}"
        );
        let list = turin
            .object(&["-n", "liqo", "configmap", "liqo-discovered-clusters"])
            .await?
            .context("no list")?;
        ensure!(
            list["data"]["clusters"]
                .as_str()
                .is_some_and(|text| text.contains(":9\"")),
            "{list}"
        );
        Ok(Some(()))
    })
    .await?;
    let after = record(turin, &milans)
        .await?
        .context("turin is peered with milan")?["spec"]["authURL"]
        .clone();
    ensure!(before == after, "the address changed to {after}");
    borrows(turin, &milans).await?;

    for cluster in [rome, turin, milan] {
        switch_lan(cluster, false).await?;
    }
    found(rome, &turins, None).await?;
    // Peered clusters stay, although nobody sees them.
    borrows(turin, &milans).await?;
    end(turin, milan).await
}

/// The zone of the docs, with an entry that is broken.
fn zone(clusters: &[(&str, &str, &str)]) -> Result<String> {
    let mut zone =
        "$ORIGIN clusters.test.\n$TTL 10\n@ IN SOA ns hostmaster ( 1 3600 600 86400 10 )\n@ IN NS ns\nns IN A 192.0.2.1\n\
                    _liqo_auth._tcp IN PTR broken._liqo_auth._tcp\n"
            .to_owned();
    for (name, id, url) in clusters {
        let (host, port) = url
            .trim_start_matches("https://")
            .rsplit_once(':')
            .context("no port")?;
        let records = format!(
            "_liqo_auth._tcp IN PTR {name}._liqo_auth._tcp\n{name}._liqo_auth._tcp IN SRV 0 0 {port} {name}\n\
             {name}._liqo_auth._tcp IN TXT \"id={id}\" \"name={name}\" \"versions=1-1\"\n{name} IN A {host}\n"
        );
        zone.push_str(&records);
    }
    Ok(zone)
}

/// Makes the DNS of a cluster serve this zone, or none.
async fn serve_zone(cluster: &Cluster, corefile: &str, zone: Option<&str>) -> Result<()> {
    let patch = json!({ "data": { "Corefile": corefile, "clusters.test.zone": zone } }).to_string();
    cluster
        .kubectl(&[
            "-n",
            "kube-system",
            "patch",
            "configmap",
            "coredns",
            "--type",
            "merge",
            "-p",
            &patch,
        ])
        .await?;
    cluster
        .kubectl(&[
            "-n",
            "kube-system",
            "rollout",
            "restart",
            "deployment",
            "coredns",
        ])
        .await?;
    cluster
        .kubectl(&[
            "-n",
            "kube-system",
            "rollout",
            "status",
            "deployment",
            "coredns",
            "--timeout=60s",
        ])
        .await
        .map(drop)
}

pub async fn clusters_of_a_dns_domain_are_found_and_a_broken_entry_does_not_matter(
    world: Arc<World>,
) -> Result<()> {
    let (turin, milan) = (&world.turin, &world.milan);
    let (turins, milans) = (turin.cluster_id().await?, milan.cluster_id().await?);
    let config = turin
        .object(&["-n", "kube-system", "configmap", "coredns"])
        .await?
        .context("no configuration of CoreDNS")?;
    let corefile = config["data"]["Corefile"].as_str().context("no Corefile")?;
    let with_zone =
        format!("clusters.test {{\n    file /etc/coredns/clusters.test.zone\n}}\n{corefile}");
    let zone = zone(&[
        ("milan", &milans, &auth_url(milan).await?),
        ("turin", &turins, &auth_url(turin).await?),
    ])?;
    serve_zone(turin, &with_zone, Some(&zone)).await?;
    let domain = json!({
        "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "SearchDomain",
        "metadata": { "name": "test" }, "spec": { "domain": "clusters.test" },
    });
    turin.apply(&domain.to_string()).await?;
    found(turin, &milans, Some("DNS")).await?;
    let status = turin
        .object(&["searchdomain", "test"])
        .await?
        .context("no SearchDomain")?["status"]
        .clone();
    ensure!(
        status["conditions"][0]["reason"] == "BrokenEntries",
        "{status}"
    );
    let broken = status["clusters"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|entry| entry["name"] == "broken");
    ensure!(
        broken.is_some_and(|entry| entry["problem"].is_string()),
        "{status}"
    );
    eventually(
        "the list has what is found and what is broken",
        TIMEOUT,
        || async {
            let shown = turin.liqoctl(&["discover"]).await?;
            ensure!(
                shown.contains(&milans) && shown.contains("broken"),
                "{shown}"
            );
            Ok(Some(()))
        },
    )
    .await?;

    turin.kubectl(&["delete", "searchdomain", "test"]).await?;
    found(turin, &milans, None).await?;
    serve_zone(turin, corefile, None).await
}

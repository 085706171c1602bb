//! A provider that exposes only the UDP port of its tunnel.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use data_encoding::BASE64;
use liqo_tests::{Cluster, World, eventually};
use liqo_tunnel_client::{
    API_PORT, AUTH_PORT, keys,
    session::{DialConfig, DialedGateway, TunnelConnection, dial},
};
use serde_json::Value;

use crate::{
    network::{connected, endpoint, exec},
    pods::pod,
};

/// Timeout until gateways apply a change.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Applies nftables rules on each node of a cluster.
async fn nft(world: &World, cluster: &Cluster, rules: &str) -> Result<()> {
    for node in world.machinery(cluster)?.nodes() {
        let output = world
            .shell(
                &format!(
                    "nsenter --net=/run/netns/{} nft '{rules}'",
                    node.network_namespace
                ),
                10,
            )
            .await?;
        ensure!(output.trim().is_empty(), "{output}");
    }
    Ok(())
}

/// The addresses of a cluster's real nodes, of both families.
async fn internal_addresses(cluster: &Cluster) -> Result<Vec<IpAddr>> {
    let nodes = cluster
        .items(&["nodes", "-l", "liqo.io/type!=virtual-node"])
        .await?;
    let addresses = nodes
        .iter()
        .flat_map(|node| node["status"]["addresses"].as_array().into_iter().flatten());
    let own = addresses
        .filter(|one| one["type"] == "InternalIP")
        .filter_map(|one| one["address"].as_str());
    own.map(|address| Ok(address.parse()?)).collect()
}

/// Lets turin reach only UDP port 51840 of milan. Neighbour discovery of IPv6 still works.
async fn close(world: &World) -> Result<()> {
    let own = internal_addresses(&world.turin).await?;
    let of_family = |is_ipv4: bool| {
        let of_it = own.iter().filter(|address| address.is_ipv4() == is_ipv4);
        of_it
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let (four, six) = (of_family(true), of_family(false));
    ensure!(
        !four.is_empty() && !six.is_empty(),
        "turin's nodes have the addresses {own:?}"
    );
    let from = [
        format!("ip saddr {{ {four} }}"),
        format!("ip6 saddr {{ {six} }}"),
    ];
    let rules =
        from.map(|from| format!("{from} udp dport 51840 counter accept; {from} meta l4proto {{ icmp, tcp, udp }} counter drop;"));
    let rules = format!(
        "table inet scenario_closed {{ chain prerouting {{ type filter hook prerouting priority mangle; {} }}; }}",
        rules.concat()
    );
    nft(world, &world.milan, &rules).await
}

async fn open(world: &World) -> Result<()> {
    nft(world, &world.milan, "delete table inet scenario_closed").await
}

/// Checks that milan's API server and auth endpoint are both `open` or both `shut` for turin's
/// nodes and pods, such as its manager.
async fn all_are(world: &World, wanted: &str, namespace: &str) -> Result<()> {
    let (turin, milan) = (&world.turin, &world.milan);
    let config = milan
        .object(&["clusterconfig", "liqo"])
        .await?
        .context("no ClusterConfig")?;
    for url in ["authURL", "apiServerURL"] {
        let url = config["status"][url]
            .as_str()
            .context("milan does not know its addresses")?;
        let (host, port) = url
            .trim_start_matches("https://")
            .rsplit_once(':')
            .context("a URL without a port")?;
        for node in world.machinery(turin)?.nodes() {
            let (netns, call) = (
                node.network_namespace,
                format!("timeout 2 bash -c '</dev/tcp/{host}/{port}' 2>/dev/null"),
            );
            let said = world
                .shell(
                    &format!("nsenter --net=/run/netns/{netns} {call} && echo open || echo shut"),
                    10,
                )
                .await?;
            ensure!(
                said.trim() == wanted,
                "from turin's node {url} is not {wanted}: {said}"
            );
        }
        let from_pod =
            format!("timeout 2 nc -w 1 {host} {port} </dev/null && echo open || echo shut");
        let said = exec(turin, namespace, "caller", &from_pod).await?;
        ensure!(
            said.trim() == wanted,
            "from turin's pods {url} is not {wanted}: {said}"
        );
    }
    Ok(())
}

/// The gateways in the arguments of a printed command.
fn gateways(arguments: &[&str]) -> Result<Vec<DialedGateway>> {
    let said = arguments
        .windows(2)
        .filter(|pair| pair[0] == "--tunnel")
        .map(|pair| pair[1]);
    let gateway = |text: &str| {
        let (key, endpoints) = text.split_once('@').context("no key")?;
        let public_key = BASE64
            .decode(key.as_bytes())?
            .try_into()
            .ok()
            .context("no key")?;
        Ok(DialedGateway {
            public_key,
            endpoints: endpoints.split(',').map(str::to_owned).collect(),
        })
    };
    said.map(gateway).collect()
}

/// Creates an invitation of milan. Returns the command, and the token that it contains.
async fn invitation(milan: &Cluster) -> Result<(String, String)> {
    let invitation = milan
        .liqoctl(&[
            "generate",
            "peer-command",
            "--through-tunnel",
            "--lifetime",
            "10m",
            "-o",
            "json",
        ])
        .await?;
    let invitation: Value = serde_json::from_str(&invitation)?;
    let command = invitation["command"]
        .as_str()
        .context("there is no command")?
        .to_owned();
    let token = command
        .split_whitespace()
        .last()
        .context("there is no token")?
        .to_owned();
    Ok((command, token))
}

fn with_token(token: &str, arguments: &str) -> Result<TunnelConnection> {
    let gateways = gateways(&arguments.split_whitespace().collect::<Vec<_>>())?;
    Ok(dial(DialConfig {
        private_key: keys::private_key_of_token(token),
        gateways,
    })?)
}

/// Waits until this token no longer works: several times in a row, no gateway answers.
async fn token_is_refused(what: &str, token: &str, command: &str) -> Result<()> {
    let late = with_token(token, command)?;
    eventually(what, TIMEOUT, || async {
        for _ in 0..3 {
            match late.connect(AUTH_PORT).await {
                Err(error)
                    if error
                        .to_string()
                        .contains("no gateway of the other cluster answers") => {}
                _ => return Ok(None),
            }
        }
        Ok(Some(()))
    })
    .await
}

/// Checks that an unused token gives access only to the auth endpoint, and a deleted token to
/// nothing.
async fn a_token_gives_access_only_to_the_auth_endpoint(milan: &Cluster) -> Result<()> {
    let (command, token) = invitation(milan).await?;
    let stranger = with_token("not a token of milan", &command)?;
    let invited = with_token(&token, &command)?;
    eventually(
        "who has a token gets to the auth endpoint",
        TIMEOUT,
        || async { Ok(invited.connect(AUTH_PORT).await.ok()) },
    )
    .await?;
    let refused = invited
        .connect(API_PORT)
        .await
        .err()
        .context("who has a token gets to the API server")?;
    ensure!(refused.kind() == ErrorKind::ConnectionRefused, "{refused}");
    let silence = stranger
        .connect(AUTH_PORT)
        .await
        .err()
        .context("who has no token gets to the auth endpoint")?;
    ensure!(silence.kind() == ErrorKind::TimedOut, "{silence}");
    for token in milan
        .items(&["-n", "liqo", "secrets", "-l", "liqo.io/peering-token"])
        .await?
    {
        milan
            .kubectl(&[
                "-n",
                "liqo",
                "delete",
                "secret",
                token["metadata"]["name"].as_str().unwrap_or_default(),
            ])
            .await?;
    }
    // One key allows one session.
    drop(invited);
    token_is_refused("a deleted token gives no access", &token, &command).await
}

/// Waits until milan's tunnel clients are exactly this number of consumers, with access to both
/// ports.
async fn tunnel_clients_are(milan: &Cluster, tenants: usize) -> Result<()> {
    eventually(
        &format!("milan has {tenants} tunnel clients"),
        TIMEOUT,
        || async {
            let list = milan
                .object(&["-n", "liqo", "configmap", "liqo-tunnel-clients"])
                .await?
                .context("there is no list")?;
            let data = list["data"].as_object().cloned().unwrap_or_default();
            Ok((data.len() == tenants && data.values().all(|scope| scope == "All")).then_some(()))
        },
    )
    .await
}

async fn offloading_works(turin: &Cluster) -> Result<()> {
    turin.offloaded_namespace("hidden", "Remote").await?;
    turin
        .apply(&pod("hidden", "web", "Always", "echo here I am; sleep 600"))
        .await?;
    let web = turin.ready_pods("hidden", "app=web", 1).await?.remove(0);
    let node = web.spec.and_then(|spec| spec.node_name);
    ensure!(node.as_deref() == Some("milan"), "it runs on {node:?}");
    let logs = turin.kubectl(&["-n", "hidden", "logs", "web"]).await?;
    ensure!(logs.contains("here I am"), "{logs}");
    let large = turin
        .kubectl(&[
            "-n",
            "hidden",
            "exec",
            "web",
            "--",
            "sh",
            "-c",
            "head -c 3000000 /dev/zero | tr '\\0' x",
        ])
        .await?;
    ensure!(large.len() == 3_000_000, "{} bytes came out", large.len());
    Ok(())
}

/// Waits until `exec` works in the pod at the provider, which uses the whole path.
async fn exec_works(turin: &Cluster, after: &str) -> Result<()> {
    eventually(
        &format!("exec works in the provider's pod after {after}"),
        Duration::from_secs(90),
        || async {
            let said = turin
                .try_kubectl(&[
                    "-n",
                    "hidden",
                    "exec",
                    "web",
                    "--",
                    "sh",
                    "-c",
                    "head -c 300000 /dev/zero | tr '\\0' x",
                ])
                .await?;
            ensure!(
                said.success && said.stdout.len() == 300_000,
                "{} bytes came out: {}",
                said.stdout.len(),
                said.stderr
            );
            Ok(Some(()))
        },
    )
    .await?;
    turin
        .wait_for(&["foreigncluster/milan"], "condition=PeerReachable", 60)
        .await?;
    turin.wait_for(&["node/milan"], "condition=Ready", 60).await
}

/// Checks that a consumer that restarts while the provider's gateways have two keys can connect,
/// whichever key it tries first.
async fn keys_are_renewed(world: &World) -> Result<()> {
    let (turin, milan) = (&world.turin, &world.milan);
    let renewed: Value = serde_json::from_str(
        &milan
            .liqoctl(&["renew", "gateway-keys", "-o", "json"])
            .await?,
    )?;
    let (former, key) = (
        &renewed["gateways"][0]["formerKey"],
        &renewed["gateways"][0]["key"],
    );
    ensure!(key.is_string() && key != former, "{renewed}");
    ensure!(
        renewed["warning"].is_string(),
        "there is no warning about peers that may lose access: {renewed}"
    );
    eventually("the consumer knows both keys", TIMEOUT, || async {
        let known = endpoint(turin, milan).await?.spec.gateways;
        Ok([former, key]
            .iter()
            .all(|key| known.iter().any(|gateway| *key == &gateway.public_key))
            .then_some(()))
    })
    .await?;
    turin.restart_manager().await?;
    exec_works(
        turin,
        "a renewal of keys and a restart of the consumer's manager",
    )
    .await?;
    connected(turin, milan).await
}

pub async fn a_consumer_borrows_from_a_provider_that_exposes_only_its_tunnel(
    world: Arc<World>,
) -> Result<()> {
    let (turin, milan) = (&world.turin, &world.milan);
    let api_through_tunnel =
        |wanted: bool| format!(r#"{{"spec":{{"network":{{"apiThroughTunnel":{wanted}}}}}}}"#);
    let refused = milan
        .try_liqoctl(&["generate", "peer-command", "--through-tunnel"])
        .await?;
    ensure!(
        !refused.success
            && refused
                .stderr
                .contains("--set network.apiThroughTunnel=true"),
        "{refused:?}"
    );
    turin.kubectl(&["create", "namespace", "outside"]).await?;
    turin
        .apply(&pod("outside", "caller", "Always", "sleep 3600"))
        .await?;
    turin.ready_pods("outside", "app=caller", 1).await?;
    milan
        .kubectl(&[
            "patch",
            "clusterconfig",
            "liqo",
            "--type=merge",
            "-p",
            &api_through_tunnel(true),
        ])
        .await?;
    // This proves that the checks detect open ports.
    all_are(&world, "open", "outside").await?;
    close(&world).await?;
    all_are(&world, "shut", "outside").await?;
    a_token_gives_access_only_to_the_auth_endpoint(milan).await?;
    let tenants = milan
        .items(&["namespaces", "-l", "liqo.io/namespace-kind=tenant"])
        .await?
        .len();
    tunnel_clients_are(milan, tenants).await?;

    let (command, token) = invitation(milan).await?;
    let arguments: Vec<&str> = command.split_whitespace().skip(1).collect();
    turin.liqoctl(&arguments).await?;
    turin
        .wait_for(&["node/milan"], "condition=Ready", 60)
        .await?;
    connected(turin, milan).await?;
    tunnel_clients_are(milan, tenants + 1).await?;
    token_is_refused("a used token gives no access", &token, &command).await?;
    let status = turin.liqoctl(&["status"]).await?;
    let by = status.lines().find_map(|line| {
        line.split_once("reached through its tunnel, gateway ")?
            .1
            .parse()
            .ok()
    });
    let by: SocketAddr = by.with_context(|| format!("no gateway is named: {status}"))?;
    ensure!(
        internal_addresses(milan).await?.contains(&by.ip()) && by.port() == 51840,
        "{status}"
    );

    offloading_works(turin).await?;
    all_are(&world, "shut", "outside").await?;

    milan
        .kubectl(&[
            "-n",
            "liqo-fabric",
            "rollout",
            "restart",
            "daemonset/liqo-fabric",
        ])
        .await?;
    milan
        .kubectl(&[
            "-n",
            "liqo-fabric",
            "rollout",
            "status",
            "daemonset/liqo-fabric",
            "--timeout=60s",
        ])
        .await?;
    exec_works(turin, "a restart of the provider's gateway").await?;
    turin.restart_manager().await?;
    exec_works(turin, "a restart of the consumer's manager").await?;
    milan.restart_manager().await?;
    exec_works(turin, "a restart of the provider's manager").await?;
    connected(turin, milan).await?;
    keys_are_renewed(&world).await?;

    turin.end_namespace("hidden").await?;
    turin.liqoctl(&["unpeer", "milan", "--yes"]).await?;
    let tenant = liqo_api::tenant_namespace(&turin.cluster_id().await?.parse()?);
    eventually(
        "milan knows that the peering has ended",
        TIMEOUT,
        || async {
            Ok(milan
                .object(&["namespace", &tenant])
                .await?
                .is_none()
                .then_some(()))
        },
    )
    .await?;
    ensure!(
        turin.object(&["node", "milan"]).await?.is_none(),
        "the virtual node is still there"
    );
    tunnel_clients_are(milan, tenants).await?;
    turin.end_namespace("outside").await?;
    open(&world).await?;
    milan
        .kubectl(&[
            "patch",
            "clusterconfig",
            "liqo",
            "--type=merge",
            "-p",
            &api_through_tunnel(false),
        ])
        .await?;
    tunnel_clients_are(milan, 0).await
}

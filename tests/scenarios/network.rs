//! Packets between clusters with the same address ranges: pods reach each other.

use std::{net::IpAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt as _, api::ListParams};
use liqo_api::{Transport, TunnelEndpoint, labels, links};
use liqo_network_model::space::translate_address;
use liqo_tests::{Cluster, World, eventually};
use serde_json::{Value, json};

/// Timeout until a tunnel is connected.
const TUNNEL_TIMEOUT: Duration = Duration::from_mins(1);

/// The `TunnelEndpoint` of a peer.
pub async fn endpoint(of: &Cluster, peer: &Cluster) -> Result<TunnelEndpoint> {
    Ok(of
        .api::<TunnelEndpoint>("liqo")
        .get(&peer.cluster_id().await?)
        .await?)
}

/// Waits until the gateways of both clusters answer each other.
pub async fn connected(one: &Cluster, other: &Cluster) -> Result<()> {
    for (of, peer) in [(one, other), (other, one)] {
        let id = peer.cluster_id().await?;
        eventually(
            &format!("{} is connected with {}", of.name, peer.name),
            TUNNEL_TIMEOUT,
            || async {
                let endpoint = of
                    .api::<TunnelEndpoint>("liqo")
                    .get_opt(&id)
                    .await?
                    .context("there is no tunnel endpoint yet")?;
                let connected = endpoint
                    .connected_condition()
                    .context("nothing is known yet")?;
                ensure!(
                    connected.status == "True",
                    "{}: {}",
                    connected.reason,
                    connected.message
                );
                Ok(Some(()))
            },
        )
        .await?;
    }
    Ok(())
}

async fn set_network(world: &World, wanted: &str) -> Result<()> {
    let patch = format!(r#"{{"spec":{{"network":"{wanted}"}}}}"#);
    world
        .rome
        .kubectl(&[
            "patch",
            "foreigncluster",
            "milan",
            "--type=merge",
            "-p",
            &patch,
        ])
        .await
        .map(drop)
}

/// Sets that rome wants no network to milan, and waits until neither side has one.
pub async fn disable_network(world: &World) -> Result<()> {
    set_network(world, "No").await?;
    for (of, peer) in [(&world.rome, &world.milan), (&world.milan, &world.rome)] {
        let id = peer.cluster_id().await?;
        eventually(
            &format!("{} has no tunnel endpoint", of.name),
            Duration::from_secs(30),
            || async {
                Ok(of
                    .api::<TunnelEndpoint>("liqo")
                    .get_opt(&id)
                    .await?
                    .is_none()
                    .then_some(()))
            },
        )
        .await?;
    }
    Ok(())
}

/// Sets that rome wants the network again, and waits until both are connected.
pub async fn enable_network(world: &World) -> Result<()> {
    set_network(world, "Auto").await?;
    connected(&world.rome, &world.milan).await
}

/// An HTTP server. It answers with the pod's name, a large file, or the caller's address, or it
/// counts: up to 40 or as far as the query says, at most five numbers a second. Or it sends so many
/// times 100,000 bytes, five times a second.
const SERVER: &str = "mkdir -p /tmp/w/cgi-bin; cd /tmp/w; hostname > index.html; head -c 1000000 /dev/urandom > large; \
    begin='#!/bin/sh\necho Content-Type: text/plain; echo;'; \
    printf \"$begin echo \\$REMOTE_ADDR\" > cgi-bin/who; \
    printf \"$begin i=0; while [ \\$i -lt \\${QUERY_STRING:-40} ]; do echo \\$i; sleep 0.2; i=\\$((i+1)); done\" > cgi-bin/count; \
    printf \"$begin i=0; while [ \\$i -lt \\$QUERY_STRING ]; do head -c 100000 /dev/zero; sleep 0.2; i=\\$((i+1)); done\" > cgi-bin/flow; \
    chmod +x cgi-bin/*; httpd -p 8080; trap exit TERM; sleep 3600 & wait";

/// A Deployment of servers on nodes with this label.
pub fn servers(
    namespace: &str,
    name: &str,
    app: &str,
    replicas: u32,
    label: (&str, &str),
) -> String {
    let object = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "server": name } },
            "template": {
                "metadata": { "labels": { "server": name, "app": app } },
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "nodeSelector": { label.0: label.1 },
                    "containers": [{
                        "name": "main",
                        "image": "localhost/busybox:1",
                        "command": ["sh", "-c", SERVER],
                        "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
                    }],
                },
            },
        },
    });
    object.to_string()
}

/// A Service for the servers of an app.
pub fn service(namespace: &str, app: &str) -> String {
    let ports = json!([{ "name": "http", "port": 80, "targetPort": 8080 }]);
    let object = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": app, "namespace": namespace },
        "spec": { "selector": { "app": app }, "ports": ports },
    });
    object.to_string()
}

pub const AT_HOME: (&str, &str) = ("kubernetes.io/hostname", "rome-1");
pub const ABROAD: (&str, &str) = (labels::TYPE, labels::TYPE_VIRTUAL_NODE);

/// Creates a namespace of rome with a Service and a server in each cluster, and waits until both
/// have addresses at home.
async fn two_sides(world: &World, namespace: &str) -> Result<(Pod, Pod)> {
    let rome = &world.rome;
    connected(rome, &world.milan).await?;
    rome.offloaded_namespace(namespace, "LocalAndRemote")
        .await?;
    rome.apply(&service(namespace, "web")).await?;
    rome.apply(&servers(namespace, "near", "web", 1, AT_HOME))
        .await?;
    rome.apply(&servers(namespace, "far", "web", 1, ABROAD))
        .await?;
    let near = rome
        .ready_pods(namespace, "server=near", 1)
        .await?
        .remove(0);
    let far = eventually(
        "the pod abroad has an address at home",
        Duration::from_mins(1),
        || async {
            let far = rome.ready_pods(namespace, "server=far", 1).await?.remove(0);
            Ok(ip(&far).is_ok().then_some(far))
        },
    )
    .await?;
    Ok((near, far))
}

/// The address under which the peer sees an address of this cluster.
pub fn seen(endpoint: &TunnelEndpoint, address: &str) -> Result<String> {
    let address: IpAddr = address.parse()?;
    let found = endpoint
        .spec
        .exported
        .iter()
        .find_map(|(here, there)| translate_address(address, here, there));
    Ok(found
        .context("that address is not exported to the peer")?
        .to_string())
}

/// Runs a shell command line in a pod and returns its standard output.
pub async fn exec(cluster: &Cluster, namespace: &str, pod: &str, line: &str) -> Result<String> {
    cluster
        .kubectl(&["-n", namespace, "exec", pod, "--", "sh", "-c", line])
        .await
}

pub fn ip(pod: &Pod) -> Result<String> {
    pod.status
        .as_ref()
        .and_then(|status| status.pod_ip.clone())
        .context("the pod has no address")
}

/// The answer that a pod gets from this address.
pub async fn ask(
    cluster: &Cluster,
    namespace: &str,
    pod: &str,
    address: &str,
    path: &str,
) -> Result<String> {
    let answer = exec(
        cluster,
        namespace,
        pod,
        &format!("timeout 150 wget -qO- http://{address}:8080/{path}"),
    )
    .await?;
    // An IPv4-mapped IPv6 address becomes an IPv4 address.
    Ok(answer
        .trim()
        .trim_start_matches("[::ffff:")
        .trim_end_matches(']')
        .to_owned())
}

pub async fn two_clusters_with_the_same_ranges_agree_on_a_network(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    connected(rome, milan).await?;
    // The first of several scenarios may come before each side has written down what the other one
    // imports.
    let here = eventually(
        "both clusters know the same ranges",
        Duration::from_mins(1),
        || async {
            let (here, there) = (
                endpoint(rome, milan).await?.spec,
                endpoint(milan, rome).await?.spec,
            );
            ensure!(
                here.imported == there.exported && here.exported == there.imported,
                "{here:?} {there:?}"
            );
            Ok(Some(here))
        },
    )
    .await?;
    for shown in [&here.imported, &here.exported] {
        ensure!(
            shown
                .keys()
                .any(|prefix| prefix.to_string() == "10.244.0.0/16"),
            "both have the same range: {here:?}"
        );
    }
    for (cluster, peer) in [(rome, "milan"), (milan, "rome")] {
        for link in links::NETWORK {
            cluster
                .wait_for(
                    &[&format!("foreigncluster/{peer}")],
                    &format!("condition={link}"),
                    30,
                )
                .await?;
        }
    }
    let status = rome.liqoctl(&["status"]).await?;
    ensure!(
        status.contains("network to milan") && status.contains("✓ TunnelConnected"),
        "{status}"
    );
    Ok(())
}

pub async fn the_status_shows_latency_and_loss_of_the_path_to_a_peer(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    connected(rome, milan).await?;
    for (of, peer) in [(rome, milan), (milan, rome)] {
        eventually(
            &format!("the path to {} is measured", peer.name),
            TUNNEL_TIMEOUT,
            || async {
                let status = endpoint(of, peer).await?.status.unwrap_or_default();
                let gateway = status.gateways.first().context("no gateway")?;
                let latency = gateway.latency_microseconds.context("no latency")?;
                ensure!(latency < 1_000_000, "{latency} µs");
                Ok((gateway.loss_percent == Some(0)).then_some(()))
            },
        )
        .await?;
    }
    let said = rome.liqoctl(&["status"]).await?;
    ensure!(said.contains(" ms"), "{said}");
    Ok(())
}

pub async fn pods_reach_each_other_both_ways_and_see_who_calls(world: Arc<World>) -> Result<()> {
    let (rome, milan, namespace) = (&world.rome, &world.milan, "reach");
    let (near, far) = two_sides(&world, namespace).await?;
    let remote = rome.remote_namespace(namespace, milan).await?;
    let remote_far = milan.api::<Pod>(&remote).get(&far.name_any()).await?;
    let (to_milan, to_rome) = (endpoint(rome, milan).await?, endpoint(milan, rome).await?);
    let near_in_milan = seen(&to_milan, &ip(&near)?)?;
    let far_in_rome = seen(&to_rome, &ip(&remote_far)?)?;
    ensure!(
        far_in_rome == ip(&far)?,
        "at home the pod does not have the address under which it is reachable there"
    );
    let calls = [
        (&near, &far, far_in_rome.clone(), near_in_milan.clone()),
        (&far, &near, near_in_milan, far_in_rome),
    ];
    for (caller, called, address, source) in calls {
        let name = caller.name_any();
        let answer = ask(rome, namespace, &name, &address, "").await?;
        ensure!(
            answer == called.name_any(),
            "{answer:?} is not {}",
            called.name_any()
        );
        let seen_as = ask(rome, namespace, &name, &address, "cgi-bin/who").await?;
        ensure!(
            seen_as == source,
            "{name} is seen as {seen_as}, not as {source}"
        );
        let large = exec(
            rome,
            namespace,
            &name,
            &format!("timeout 150 wget -qO- http://{address}:8080/large | md5sum"),
        )
        .await?;
        let sent = exec(rome, namespace, &called.name_any(), "md5sum < /tmp/w/large").await?;
        ensure!(large == sent, "a large answer arrives damaged");
        // Only at home may a pod send pings: at the provider it has no raw sockets.
        if name == near.name_any() {
            exec(rome, namespace, &name, &format!("ping -c 2 -W 3 {address}")).await?;
        }
    }
    rome.end_namespace(namespace).await
}

pub async fn pods_that_are_not_offloaded_stay_closed(world: Arc<World>) -> Result<()> {
    let (rome, milan, namespace) = (&world.rome, &world.milan, "closed");
    let (near, far) = two_sides(&world, namespace).await?;
    // A pod of milan, and a pod of rome that is behind no Service.
    milan
        .apply(&servers(
            "default",
            "own",
            "own",
            1,
            ("kubernetes.io/hostname", "milan-1"),
        ))
        .await?;
    rome.apply(&servers(namespace, "alone", "alone", 1, AT_HOME))
        .await?;
    let own = milan
        .ready_pods("default", "server=own", 1)
        .await?
        .remove(0);
    let alone = rome
        .ready_pods(namespace, "server=alone", 1)
        .await?
        .remove(0);
    let (to_milan, to_rome) = (endpoint(rome, milan).await?, endpoint(milan, rome).await?);
    let cases = [
        (&near, seen(&to_rome, &ip(&own)?)?, ip(&far)?),
        (
            &far,
            seen(&to_milan, &ip(&alone)?)?,
            seen(&to_milan, &ip(&near)?)?,
        ),
    ];
    for (caller, closed, open) in cases {
        let call = |address: &str, seconds: u32| {
            format!("timeout {seconds} wget -qO- http://{address}:8080")
        };
        exec(rome, namespace, &caller.name_any(), &call(&open, 30))
            .await
            .context("what is open")?;
        let tried = rome
            .try_kubectl(&[
                "-n",
                namespace,
                "exec",
                &caller.name_any(),
                "--",
                "sh",
                "-c",
                &call(&closed, 3),
            ])
            .await?;
        ensure!(!tried.success, "{closed} answers: {}", tried.stdout);
    }
    // Nodes also have addresses in the range of their pods.
    for (caller, node) in [
        (&near, seen(&to_rome, "10.244.0.1")?),
        (&far, seen(&to_milan, "10.244.0.1")?),
    ] {
        let call = format!("nc -w 3 {node} 10250 < /dev/null");
        let tried = rome
            .try_kubectl(&[
                "-n",
                namespace,
                "exec",
                &caller.name_any(),
                "--",
                "sh",
                "-c",
                &call,
            ])
            .await?;
        ensure!(!tried.success, "the kubelet of a node answers at {node}");
    }
    // An open connection ends when the policy closes its destination.
    let call = format!(
        "timeout 60 wget -qO- http://{}:8080/cgi-bin/count?120",
        seen(&to_milan, &ip(&near)?)?
    );
    let (near, far) = (near.name_any(), far.name_any());
    let arguments = ["-n", namespace, "exec", &far, "--", "sh", "-c", &call];
    let close = async {
        eventually("the numbers flow", Duration::from_secs(15), || async {
            // Process 1, the server, has the word in its own script.
            let line = "cat /proc/[2-9]*/cmdline /proc/[1-9][0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -q '[c]ount'";
            Ok(exec(rome, namespace, &near, line).await.is_ok().then_some(()))
        })
        .await?;
        rome.kubectl(&[
            "-n",
            namespace,
            "annotate",
            "service",
            "web",
            "liqo.io/reflection=deny",
        ])
        .await
    };
    let (stream, _) = tokio::try_join!(rome.try_kubectl(&arguments), close)?;
    let numbers: Vec<&str> = stream.stdout.lines().collect();
    ensure!(
        !stream.success && !numbers.contains(&"119"),
        "it went on: {numbers:?}"
    );
    milan
        .kubectl(&["-n", "default", "delete", "deployment", "own"])
        .await?;
    rome.end_namespace(namespace).await
}

pub async fn connections_survive_restarts_of_the_fabric_and_of_the_managers(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan, namespace) = (&world.rome, &world.milan, "survives");
    let (near, far) = two_sides(&world, namespace).await?;
    let (caller, address) = (near.name_any(), ip(&far)?);
    let stream = ask(rome, namespace, &caller, &address, "cgi-bin/count");
    let restarts = async {
        for cluster in [rome, milan] {
            cluster
                .kubectl(&[
                    "-n",
                    "liqo-fabric",
                    "rollout",
                    "restart",
                    "daemonset/liqo-fabric",
                ])
                .await?;
            cluster
                .kubectl(&[
                    "-n",
                    "liqo-fabric",
                    "rollout",
                    "status",
                    "daemonset/liqo-fabric",
                    "--timeout=60s",
                ])
                .await?;
            cluster.restart_manager().await?;
        }
        Ok(())
    };
    let (numbers, ()) = tokio::try_join!(stream, restarts)?;
    let wanted: Vec<String> = (0..40).map(|number: u32| number.to_string()).collect();
    ensure!(
        numbers.lines().eq(wanted.iter().map(String::as_str)),
        "{numbers}"
    );
    connected(rome, milan).await?;
    rome.end_namespace(namespace).await
}

/// How many gateways of the only peer answer the only gateway of this cluster.
async fn answering(cluster: &Cluster) -> Result<usize> {
    let pods = cluster
        .api::<Pod>("liqo-fabric")
        .list(&ListParams::default())
        .await?
        .items;
    let pod = pods.first().context("no pod of liqo-fabric")?.name_any();
    let metrics = cluster
        .kubectl(&[
            "get",
            "--raw",
            &format!("/api/v1/namespaces/liqo-fabric/pods/{pod}:9479/proxy/metrics"),
        ])
        .await?;
    let line = metrics
        .lines()
        .find(|line| line.starts_with("liqo_tunnel_gateways{"))
        .context("no such metric")?;
    Ok(line.rsplit(' ').next().context("no value")?.parse()?)
}

pub async fn gateways_renew_their_keys_and_lose_nothing(world: Arc<World>) -> Result<()> {
    let (rome, milan, namespace) = (&world.rome, &world.milan, "keys");
    let (near, far) = two_sides(&world, namespace).await?;
    let (caller, address) = (near.name_any(), ip(&far)?);
    let known = |at: &'static str| {
        let world = world.clone();
        async move {
            let (cluster, peer) = if at == "rome" {
                (&world.rome, &world.milan)
            } else {
                (&world.milan, &world.rome)
            };
            anyhow::Ok(endpoint(cluster, peer).await?.spec.gateways)
        }
    };
    // The gateways learn of the pod a moment after home does.
    exec(
        rome,
        namespace,
        &caller,
        &format!("until ping -c 1 -W 1 {address}; do sleep 0.2; done"),
    )
    .await?;
    let stream = ask(rome, namespace, &caller, &address, "cgi-bin/count");
    // Five pings a second, for longer than the renewals take.
    let ping = format!("ping -i 0.2 -c 100 -W 10 {address}");
    let pinging = exec(rome, namespace, &caller, &ping);
    let renewing = async {
        for (cluster, peer) in [(rome, "milan"), (milan, "rome")] {
            let before = known(peer).await?.pop().context("no gateway")?;
            let renewed: Value = serde_json::from_str(
                &cluster
                    .liqoctl(&["renew", "gateway-keys", "-o", "json"])
                    .await?,
            )?;
            let (former, key) = (
                &renewed["gateways"][0]["formerKey"],
                &renewed["gateways"][0]["key"],
            );
            ensure!(
                former == &before.public_key && key != former,
                "{renewed} {before:?}"
            );
            eventually(
                "the peer knows both keys",
                Duration::from_secs(15),
                || async {
                    let now = known(peer).await?;
                    let [old, newest] = &now[..] else {
                        return Ok(None);
                    };
                    let is_one_gateway =
                        newest.first_key.is_some() && newest.endpoints == old.endpoints;
                    Ok((key == &newest.public_key
                        && old.public_key == before.public_key
                        && is_one_gateway)
                        .then_some(()))
                },
            )
            .await?;
        }
        eventually("both keys answer", Duration::from_secs(15), || async {
            Ok((answering(rome).await? == 2 && answering(milan).await? == 2).then_some(()))
        })
        .await
    };
    let (numbers, pings, ()) = tokio::try_join!(stream, pinging, renewing)?;
    let wanted: Vec<String> = (0..40).map(|number: u32| number.to_string()).collect();
    ensure!(
        numbers.lines().eq(wanted.iter().map(String::as_str)),
        "{numbers}"
    );
    ensure!(pings.contains(" 0% packet loss"), "{pings}");
    connected(rome, milan).await?;
    rome.end_namespace(namespace).await
}

pub async fn a_network_that_is_disabled_ends_on_both_sides_and_comes_back(
    world: Arc<World>,
) -> Result<()> {
    let (rome, namespace) = (&world.rome, "unwanted");
    let (_, far) = two_sides(&world, namespace).await?;
    disable_network(&world).await?;
    eventually(
        "the pod abroad has no address at home",
        Duration::from_secs(30),
        || async {
            Ok(ip(&rome.api::<Pod>(namespace).get(&far.name_any()).await?)
                .is_err()
                .then_some(()))
        },
    )
    .await?;
    enable_network(&world).await?;
    eventually(
        "the pod abroad has its address again",
        Duration::from_secs(30),
        || async {
            Ok(
                (ip(&rome.api::<Pod>(namespace).get(&far.name_any()).await?).ok() == ip(&far).ok())
                    .then_some(()),
            )
        },
    )
    .await?;
    rome.end_namespace(namespace).await
}

/// Drops the datagrams of tunnels on every node of a cluster, or stops doing so.
async fn block_udp(world: &World, cluster: &Cluster, is_blocked: bool) -> Result<()> {
    let chain = |hook: &str, device: &str| {
        format!(
            "chain {hook} {{ type filter hook {hook} priority -300; {device} != lo udp dport 51840 drop; }}"
        )
    };
    let table = format!(
        "table inet scenario_no_udp {{ {}; {}; }}",
        chain("input", "iifname"),
        chain("output", "oifname")
    );
    let rules = if is_blocked {
        table
    } else {
        "delete table inet scenario_no_udp".to_owned()
    };
    for node in world.machinery(cluster)?.nodes() {
        let line = format!(
            "nsenter --net=/run/netns/{} nft '{rules}' && echo done",
            node.network_namespace
        );
        let said = world.shell(&line, 20).await?;
        ensure!(said.trim() == "done", "{line}: {said}");
    }
    Ok(())
}

/// Waits until both ends report this transport.
async fn transport_is(world: &World, transport: Transport) -> Result<()> {
    for (of, peer) in [(&world.rome, &world.milan), (&world.milan, &world.rome)] {
        eventually(
            &format!("{transport:?} carries packets of {}", of.name),
            TUNNEL_TIMEOUT,
            || async {
                let status = endpoint(of, peer).await?.status.unwrap_or_default();
                ensure!(
                    status.transport == Some(transport),
                    "{:?}: {:?}",
                    status.transport,
                    status.conditions
                );
                Ok(Some(()))
            },
        )
        .await?;
    }
    Ok(())
}

pub async fn tls_replaces_udp_while_udp_is_blocked(world: Arc<World>) -> Result<()> {
    let (rome, milan, namespace) = (&world.rome, &world.milan, "blocked");
    let (near, far) = two_sides(&world, namespace).await?;
    let (caller, address) = (near.name_any(), ip(&far)?);
    transport_is(&world, Transport::Udp).await?;
    for cluster in [rome, milan] {
        let id = if cluster.name == rome.name {
            milan.cluster_id().await?
        } else {
            rome.cluster_id().await?
        };
        eventually(
            "the peer takes connections over TLS",
            Duration::from_secs(30),
            || async {
                let gateways = cluster
                    .api::<TunnelEndpoint>("liqo")
                    .get(&id)
                    .await?
                    .spec
                    .gateways;
                Ok(gateways
                    .iter()
                    .any(|gateway| !gateway.tls.is_empty())
                    .then_some(()))
            },
        )
        .await?;
    }

    block_udp(&world, rome, true).await?;
    let relayed = async {
        transport_is(&world, Transport::Tls).await?;
        connected(rome, milan).await?;
        let far_name = far.name_any();
        ensure!(
            ask(rome, namespace, &caller, &address, "index.html").await? == far_name,
            "over TLS"
        );
        let large = exec(
            rome,
            namespace,
            &caller,
            &format!("timeout 60 wget -qO- http://{address}:8080/large | wc -c"),
        )
        .await?;
        ensure!(large.trim() == "1000000", "{large} bytes arrived");
        let said = endpoint(rome, milan).await?;
        let connected = said.connected_condition().context("no condition")?;
        ensure!(
            connected.reason == "ConnectedOverTLS" && connected.message.contains(":51840"),
            "{connected:?}"
        );
        let table = rome
            .kubectl(&["-n", "liqo", "get", "tunnelendpoints"])
            .await?;
        ensure!(table.contains("TLS"), "{table}");
        let status = rome.liqoctl(&["status"]).await?;
        ensure!(status.contains("over TLS"), "{status}");
        Ok(())
    };
    let outcome: Result<()> = relayed.await;
    // Other scenarios need UDP, even if this one fails.
    let stream = ask(rome, namespace, &caller, &address, "cgi-bin/count");
    let (numbers, unblocked) = tokio::join!(stream, block_udp(&world, rome, false));
    unblocked?;
    outcome?;
    // The connection began over TLS and continued over UDP.
    let wanted: Vec<String> = (0..40).map(|number: u32| number.to_string()).collect();
    let numbers = numbers?;
    ensure!(
        numbers.lines().eq(wanted.iter().map(String::as_str)),
        "{numbers}"
    );
    transport_is(&world, Transport::Udp).await?;
    ensure!(
        ask(rome, namespace, &caller, &address, "index.html").await? == far.name_any(),
        "over UDP again"
    );
    rome.end_namespace(namespace).await
}

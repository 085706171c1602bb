//! The cost of 1, 10, 100 and 500 peers on a gateway: rules, routes, time and CPU. Needs root.
//!
//! `cargo bench -p liqo-datapath-testbed --bench peers -- [seconds that the tunnel is watched]`

// The figures need no more precision.
#![allow(clippy::cast_precision_loss)]

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use ipnet::{IpNet, Ipv4Net};
use liqo_api::ClusterId;
use liqo_datapath::{
    node::NodeKernel,
    tunnel::{EndpointConfig, PrivateKey, RemoteConfig, Tunnel as _, UserspaceTunnel},
};
use liqo_datapath_testbed::namespace::NetworkNamespace;
use liqo_network_model::{
    Here, PeerMaps, PrefixMap, There,
    fabric::{
        Fabric, FabricGateway, FabricNode as ClusterNode, MacAddress, PeerNetwork, ReachableScope,
        TUNNEL,
    },
};
use nix::sys::resource::{UsageWho, getrusage};

const PEERS: [u32; 4] = [1, 10, 100, 500];
/// Pods that are open to each peer.
const OPEN: u32 = 10;

fn main() -> io::Result<()> {
    let seconds = std::env::args()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(10);
    println!(
        "peers  plan ms  lines of nft  routes  applied ms  checked ms (CPU)  one pod opened ms (CPU)  tunnel idle, CPU ms a second"
    );
    for peers in PEERS {
        let namespace = NetworkNamespace::new()?;
        namespace.ip("link set lo up\nlink add wire type veth peer name other\nlink set wire up\nlink set other up\naddress add 192.0.2.1/24 dev wire")?;
        println!(
            "{}",
            namespace.run(|| row(&namespace, peers, Duration::from_secs(seconds)))??
        );
    }
    Ok(())
}

fn row(namespace: &NetworkNamespace, peers: u32, watched: Duration) -> io::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let begun = Instant::now();
    let mut fabric = fabric(peers)?;
    let mut plan = fabric.node_plan("n1");
    let planned = begun.elapsed();
    let tunnel = UserspaceTunnel::new();
    tunnel.apply(&endpoint(&fabric)).map_err(io::Error::other)?;
    let node = runtime
        .block_on(async { NodeKernel::of_this_namespace() })
        .map_err(io::Error::other)?;
    let apply = |plan: &_| {
        runtime
            .block_on(node.apply(plan))
            .map(|steps| steps.len())
            .map_err(io::Error::other)
    };
    let (applied, _, steps) = timed(|| apply(&plan))?;
    assert!(steps > 0, "nothing was applied");
    let (checked, checked_cpu, steps) = timed(|| apply(&plan))?;
    assert_eq!(steps, 0, "a check changes nothing");
    for peer in fabric.peers.values_mut().take(1) {
        peer.reachable = ReachableScope::only_addresses([IpAddr::from([10, 244, 9, 9])]);
    }
    plan = fabric.node_plan("n1");
    let (opened, opened_cpu, steps) = timed(|| apply(&plan))?;
    assert_eq!(steps, 1, "one table was replaced");
    let lines = namespace
        .command("nft", &["--stateless", "list", "ruleset"], "")?
        .lines()
        .count();
    let routes = namespace
        .command("ip", &["route", "show", "table", "all", "proto", "76"], "")?
        .lines()
        .count();
    let before = cpu()?;
    std::thread::sleep(watched);
    let idle = cpu()?.saturating_sub(before).as_secs_f64() * 1e3 / watched.as_secs_f64();
    tunnel.stop();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(format!(
        "{peers:5}  {:7.1}  {lines:12}  {routes:6}  {:10.0}  {:10.0} ({:3.0})  {:17.0} ({:3.0})  {idle:29.1}",
        ms(planned),
        ms(applied),
        ms(checked),
        ms(checked_cpu),
        ms(opened),
        ms(opened_cpu),
    ))
}

/// Runs the work. Returns its wall time and its CPU time in this process and its children.
fn timed<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<(Duration, Duration, T)> {
    let (begun, before) = (Instant::now(), cpu()?);
    let outcome = work()?;
    Ok((begun.elapsed(), cpu()?.saturating_sub(before), outcome))
}

fn cpu() -> io::Result<Duration> {
    let mut used = Duration::ZERO;
    for who in [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN] {
        let usage = getrusage(who)?;
        for time in [usage.user_time(), usage.system_time()] {
            let (seconds, micros) = (
                time.tv_sec().try_into().unwrap_or(0),
                time.tv_usec().try_into().unwrap_or(0),
            );
            used += Duration::from_secs(seconds) + Duration::from_micros(micros);
        }
    }
    Ok(used)
}

/// Each peer has 1,024 pod addresses, and its own translation of ours.
fn fabric(peers: u32) -> io::Result<Fabric> {
    let prefix = |start: Ipv4Addr, number: u32| {
        Ipv4Net::new((start.to_bits() + (number << 10)).into(), 22).map(IpNet::V4)
    };
    let mut fabric = Fabric {
        pods: vec!["10.244.0.0/22".parse().map_err(io::Error::other)?],
        nodes: [
            ("n1".to_owned(), node(1, true)),
            ("n2".to_owned(), node(2, false)),
        ]
        .into(),
        mtu: 1420,
        ..Fabric::default()
    };
    for number in 0..peers {
        let seen = prefix(Ipv4Addr::new(10, 64, 0, 0), number).map_err(io::Error::other)?;
        let (there, own) = (
            IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(10, 240, 0, 0), 22)),
            fabric.pods[0],
        );
        let map =
            |here, there| PrefixMap::new([(Here(here), There(there))]).map_err(io::Error::other);
        let maps = PeerMaps {
            exported: map(own, there)?,
            imported: map(seen, there)?,
        };
        let open =
            (1..=OPEN).map(|pod| IpAddr::from([10, 244, 1, u8::try_from(pod).unwrap_or(u8::MAX)]));
        fabric.peers.insert(
            ClusterId::of_public_key(&key(number)),
            PeerNetwork {
                maps,
                reachable: ReachableScope::only_addresses(open),
                api_server: None,
                ..PeerNetwork::default()
            },
        );
    }
    Ok(fabric)
}

fn key(number: u32) -> [u8; 32] {
    let mut key = [1; 32];
    key[..4].copy_from_slice(&number.to_be_bytes());
    key
}

fn node(last: u8, is_gateway: bool) -> ClusterNode {
    ClusterNode {
        addresses: vec![[192, 0, 2, last].into()],
        pods: vec![IpNet::V4(Ipv4Net::new_assert(
            Ipv4Addr::new(10, 244, last, 0),
            24,
        ))],
        mac: MacAddress::from_hash([0, 0, 0, 0, last]),
        gateway: is_gateway.then_some(FabricGateway { slot: 0, number: 1 }),
    }
}

/// Peers that do not answer, so that handshakes are repeated all the time.
fn endpoint(fabric: &Fabric) -> EndpointConfig {
    let remote = |peer: &PeerNetwork| RemoteConfig {
        endpoint: Some(([192, 0, 2, 1], 9).into()),
        keepalive: Some(Duration::from_secs(2)),
        prefixes: peer.maps.imported.pairs().map(|(here, _)| here.0).collect(),
        ..RemoteConfig::new(PrivateKey::generate().public_key())
    };
    EndpointConfig {
        private_key: PrivateKey::generate(),
        previous_key: None,
        listen: vec![([192, 0, 2, 1], 51_840).into()],
        device: TUNNEL.to_owned(),
        mtu: 1420,
        remotes: fabric.peers.values().map(remote).collect(),
    }
}

//! Clusters with the same ranges, their nodes' kernels, and the tunnels between them. All of it is
//! real, in namespaces.
//!
//! ```text
//!   pod 10.244.1.2 -- node 1 ==overlay== node 0 ===tunnel=== node 0 ==overlay== node 1 -- pod 10.244.1.2
//!   (where there are several gateways, the first nodes of a cluster are)
//! ```
//! Everything has IPv4 and IPv6 addresses, unless a test says otherwise. Every node checks IPv4
//! sources strictly and masquerades packets that leave its pod range, as a simple CNI does.

mod broker;
mod shared;
mod traffic;
mod world;

use std::{
    collections::HashSet,
    io, iter,
    net::{IpAddr, UdpSocket},
    thread,
    time::Duration,
};

use liqo_datapath::node::{KernelState, KernelStep};
use liqo_network_model::fabric::OVERLAY_PORT;
use traffic::{CLOSED_AFTER, EchoConnection};
use world::{BOTH, Family, NodeId, V4, V6, World, pod_address};

/// The address that a server in a pod sees when a pod of another cluster asks it.
fn seen(world: &World, from: NodeId, to: NodeId, family: Family) -> io::Result<IpAddr> {
    let address = world
        .seen_from(from.0, to, family)
        .ok_or(io::ErrorKind::AddrNotAvailable)?;
    world.pod(from).run(|| traffic::ask(address))?
}

/// Whether no connection is possible.
fn is_closed(world: &World, from: NodeId, address: IpAddr, port: u16) -> bool {
    world
        .pod(from)
        .run(|| traffic::ask_within(address, port, CLOSED_AFTER))
        .expect("ran")
        .is_err()
}

/// One pod cannot reach another by any family. Tries all families at once, because each try waits
/// for a timeout.
fn all_closed(world: &World, from: NodeId, to: NodeId) {
    thread::scope(|scope| {
        for &family in BOTH {
            let address = world.seen_from(from.0, to, family).expect("an address");
            scope.spawn(move || {
                assert!(
                    is_closed(world, from, address, traffic::PORT),
                    "{from:?} to {to:?} by {family:?}"
                );
            });
        }
    });
}

/// Every pod reaches every pod of other clusters over all common families, and is seen with its
/// translated address.
fn all_reach_all(world: &World) -> Result<(), String> {
    for from in world.node_ids() {
        for to in world.node_ids().into_iter().filter(|to| to.0 != from.0) {
            for family in world.families(from.0, to.0) {
                let seen_there = seen(world, from, to, family)
                    .map_err(|error| format!("{from:?} to {to:?} by {family:?}: {error}"))?;
                assert_eq!(
                    Some(seen_there),
                    world.seen_from(to.0, from, family),
                    "{from:?} to {to:?}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn pods_reach_pods_of_the_other_cluster_and_are_seen_with_their_own_addresses() {
    let world = World::two().expect("a world");
    world.serve().expect("servers");
    all_reach_all(&world).expect("all answers");
}

#[test]
fn clusters_use_the_address_families_that_both_have() {
    for (one, other) in [(BOTH, V6), (V4, BOTH), (V6, V6)] {
        let world = World::of_families(one, other).expect("a world");
        world.serve().expect("servers");
        all_reach_all(&world).expect("all answers");
        for family in world.families(0, 1) {
            let to = world.seen_from(0, (1, 1), family).expect("an address");
            assert_eq!(
                world
                    .pod((0, 1))
                    .run(|| traffic::upload(to, 1 << 20))
                    .expect("ran")
                    .expect("a stream"),
                1 << 20
            );
        }
        for node_id in world.node_ids() {
            assert_eq!(world.apply(node_id).expect("applied"), [], "{node_id:?}");
            world.clear(node_id).expect("cleared");
            assert_eq!(
                world.present(node_id).expect("read"),
                KernelState::default(),
                "{node_id:?}"
            );
        }
    }
}

#[test]
fn leaves_reach_each_other_through_the_hub() {
    let world = World::hub_and_leaves(1).expect("a world");
    world.serve().expect("servers");
    for &family in BOTH {
        assert_ne!(
            world.seen_from(1, (2, 0), family),
            world.seen_from(1, (0, 0), family)
        );
    }
    all_reach_all(&world).expect("all answers");
}

#[test]
fn nodes_reach_pods_with_addresses_that_stand_for_nodes() {
    let world = World::two().expect("a world");
    world.serve().expect("servers");
    for (node, to, &family) in [(0, 0), (0, 1)]
        .into_iter()
        .flat_map(|node| [(1, 0), (1, 1)].map(|to| (node, to)))
        .flat_map(|(node, to)| BOTH.iter().map(move |family| (node, to, family)))
    {
        let address = world.seen_from(0, to, family).expect("an address");
        let seen_there = world
            .node(node)
            .run(|| traffic::ask(address))
            .expect("ran")
            .expect("an answer");
        assert!(
            world.nodes_seen_from(1, 0, family).contains(&seen_there),
            "{node:?} to {to:?}: {seen_there}"
        );
    }
}

#[test]
fn packets_larger_than_the_tunnels_mtu_pass_in_fragments_or_segments() {
    let world = World::two().expect("a world");
    world.serve().expect("servers");
    let pod = world.pod((0, 1));
    // Datagrams in fragments. For IPv6 the sender fragments, once it learned the path MTU.
    let to = |family| world.seen_from(0, (1, 1), family).expect("an address");
    assert_eq!(
        pod.run(|| traffic::echo(to(Family::V4), 3000))
            .expect("ran")
            .expect("an echo"),
        3000
    );
    let (own, to_v6) = (pod_address((0, 1), Family::V6), to(Family::V6));
    assert_eq!(
        pod.run(|| traffic::echo_in_the_end(own, to_v6, 3000))
            .expect("ran")
            .expect("an echo"),
        3000
    );
    // Streams in segments that fit, although both pods assume 1500 bytes and receive no ICMP
    // errors.
    for node_id in [(0, 1), (1, 1)] {
        world.forget_path_mtus(node_id).expect("forgotten");
        let deaf = "table inet deaf {\nchain input {\ntype filter hook input priority filter;\n\
                    icmp type destination-unreachable drop\nicmpv6 type packet-too-big drop\n}\n}\n";
        world
            .pod(node_id)
            .command("nft", &["--file", "-"], deaf)
            .expect("deaf");
    }
    for &family in BOTH {
        assert_eq!(
            pod.run(|| traffic::upload(to(family), 8 << 20))
                .expect("ran")
                .expect("a stream"),
            8 << 20
        );
    }
}

#[test]
fn packets_fit_a_way_that_carries_less_than_the_devices_do() {
    let mut world = World::two().expect("a world");
    world.serve().expect("servers");
    world.narrow_way(0, 1, 1296).expect("applied");
    assert_eq!(
        world.apply((0, 0)).expect("applied"),
        [],
        "the kernel's routes are as wanted"
    );
    // Whatever is larger is lost on that way. Streams show it in their first packet.
    let strict = "table inet strict {\nchain prerouting {\ntype filter hook prerouting priority -500;\n\
                  iifname \"liqo.tunnel\" meta l4proto udp meta length > 1296 drop\n\
                  iifname \"liqo.tunnel\" tcp flags syn tcp option maxseg size > 1256 drop\n}\n}\n";
    world
        .node((1, 0))
        .command("nft", &["--file", "-"], strict)
        .expect("strict");
    for (from, &family) in [(0, 0), (0, 1)]
        .into_iter()
        .flat_map(|from| BOTH.iter().map(move |family| (from, family)))
    {
        let to = world.seen_from(0, (1, 1), family).expect("an address");
        let pod = world.pod(from);
        let came = pod
            .run(|| traffic::echo_in_the_end(pod_address(from, family), to, 1350))
            .expect("ran");
        assert_eq!(came.ok(), Some(1350), "{from:?}, {family:?}");
        assert_eq!(
            pod.run(|| traffic::upload(to, 1 << 20))
                .expect("ran")
                .expect("a stream"),
            1 << 20
        );
    }
}

#[test]
fn what_is_not_open_stays_closed() {
    let mut world = World::two().expect("a world");
    world.serve().expect("servers");
    let open: Vec<IpAddr> = BOTH
        .iter()
        .map(|family| pod_address((1, 0), *family))
        .collect();
    world.open_only(1, &open).expect("applied");
    for &family in BOTH {
        seen(&world, (0, 0), (1, 0), family).expect("this one is open");
    }
    all_closed(&world, (0, 0), (1, 1));
    // The other direction is not affected: answers pass.
    for &family in BOTH {
        seen(&world, (1, 1), (0, 1), family).expect("the other way");
    }
}

#[test]
fn a_pod_that_left_its_service_keeps_its_connections_until_it_is_gone_and_gets_no_new_ones() {
    let mut world = World::two().expect("a world");
    world.serve().expect("servers");
    let (from, to) = ((0, 1), (1, 1));
    let address: Vec<IpAddr> = BOTH.iter().map(|family| pod_address(to, *family)).collect();
    world.open_only(1, &address).expect("applied");
    let talk = |family: &Family| {
        let there = world.seen_from(from.0, to, *family).expect("an address");
        world
            .pod(from)
            .run(|| EchoConnection::with(there))
            .expect("ran")
            .expect("a connection")
    };
    let mut talks: Vec<EchoConnection> = BOTH.iter().map(talk).collect();
    talks
        .iter_mut()
        .try_for_each(|talk| talk.exchange(1))
        .expect("at first");
    world.open_to_established(1, &address).expect("applied");
    all_closed(&world, from, to);
    talks
        .iter_mut()
        .try_for_each(|talk| talk.exchange(2))
        .expect("it goes on");
    // A gateway that starts replaces its tables.
    world.replace_tables((1, 0)).expect("replaced");
    talks
        .iter_mut()
        .try_for_each(|talk| talk.exchange(3))
        .expect("it goes on with another table");
    world.open_only(1, &[]).expect("applied");
    for mut talk in talks {
        assert!(talk.is_cut().expect("set"), "its pod is gone");
    }
}

#[test]
fn pods_that_use_an_api_server_reach_one_port_of_its_machine_at_another_address() {
    let mut world = World::two().expect("a world");
    world.serve().expect("servers");
    // On the gateway, on another node, and on a machine that is no node of that cluster.
    let machines = [(1, 0), (1, 1), (0, 1)];
    world.serve_on(&machines).expect("servers");
    let address = |world: &World, number, family| {
        world
            .api_server_seen_from(0, 1, number, family)
            .expect("an address")
    };
    // All at once, because each try waits for a timeout.
    let closed = |world: &World, family: Family, port: u16| {
        thread::scope(|scope| {
            for number in 0..machines.len() {
                let address = address(world, number, family);
                scope.spawn(move || assert!(is_closed(world, (0, 0), address, port), "{number}"));
            }
        });
    };
    for &family in BOTH {
        world
            .set_api_servers(1, &machines, family, Some(&[(0, 0)]))
            .expect("shown");
        let caller = world.seen_from(1, (0, 0), family).expect("an address");
        // The last machine has no route back to peers.
        let gateway = world::node_address((1, 0), family);
        for (number, seen) in [caller, caller, gateway].into_iter().enumerate() {
            let address = address(&world, number, family);
            let answer = world
                .pod((0, 0))
                .run(|| traffic::ask_at(address, 443))
                .expect("ran");
            assert_eq!(answer.expect("an answer"), seen, "{number}");
        }
        closed(&world, family, traffic::PORT);
        // Another pod behind the same tunnel uses no API server.
        assert!(
            is_closed(&world, (0, 1), address(&world, 0, family), 443),
            "{family:?}"
        );
        world
            .set_api_servers(1, &machines, family, Some(&[]))
            .expect("closed");
        closed(&world, family, 443);
        world
            .set_api_servers(1, &machines, family, None)
            .expect("closed");
        closed(&world, family, 443);
    }
}

#[test]
fn connections_survive_restarts_and_replaced_tables_of_gateways() {
    let world = World::two().expect("a world");
    world.serve().expect("servers");
    let talk = |family: &Family| {
        let to = world.seen_from(0, (1, 1), *family).expect("an address");
        world
            .pod((0, 1))
            .run(|| EchoConnection::with(to))
            .expect("ran")
            .expect("a connection")
    };
    let mut talks: Vec<EchoConnection> = BOTH.iter().map(talk).collect();
    let mut words = 0u8..;
    let mut go_on = || {
        words
            .by_ref()
            .take(10)
            .try_for_each(|byte| talks.iter_mut().try_for_each(|talk| talk.exchange(byte)))
    };
    go_on().expect("at first");
    for _ in 0..5 {
        for gateway in [(0, 0), (1, 0)] {
            world.replace_tables(gateway).expect("replaced");
        }
        go_on().expect("after tables were replaced");
    }
    world.restart_tunnel((0, 0)).expect("restarted");
    go_on().expect("after the tunnel was started again here");
    world.restart_tunnel((1, 0)).expect("restarted");
    go_on().expect("after the tunnel was started again there");
}

#[test]
fn a_peer_fills_only_its_share_of_the_table_of_connections() {
    // All lists hold 32768 connections together. Each of these source ports begins another one.
    let ports = 20_000..60_000;
    let (from, to, gateway) = ((0, 0), (1, 1), (1, 0));
    let mut world = World::two().expect("a world");
    let listener = world.listen(to).expect("a socket");
    listener
        .set_read_timeout(Some(Duration::from_millis(20)))
        .expect("set");
    // The gateway forgets none of them during the test.
    let timeout = "echo 600 > /proc/sys/net/netfilter/nf_conntrack_udp_timeout";
    world
        .node(gateway)
        .command("sh", &["-c", timeout], "")
        .expect("set");
    // The rules of both families differ in one word, and these take a while.
    let family = Family::V4;
    let there = (
        world.seen_from(from.0, to, family).expect("an address"),
        traffic::DATAGRAMS,
    );
    let next = || {
        let mut heard = [0; 64];
        listener
            .recv(&mut heard)
            .ok()
            .map(|length| String::from_utf8_lossy(&heard[..length]).into_owned())
    };
    let open = |world: &World, port: u16| {
        world
            .pod(from)
            .run(|| UdpSocket::bind((pod_address(from, family), port)))
            .expect("ran")
    };
    let send = |socket: &UdpSocket| {
        let name = socket.local_addr().expect("bound").to_string();
        socket.send_to(name.as_bytes(), there).expect("sent");
        name
    };
    // Earlier datagrams may arrive late.
    let arrives = |socket: &UdpSocket| {
        let name = send(socket);
        iter::from_fn(next).any(|heard| heard == name)
    };
    let first = open(&world, 1026).expect("a socket");
    // The first datagram may have to wait for the session.
    traffic::until("the first datagram arrives", || arrives(&first));
    let mut senders = HashSet::new();
    for port in ports {
        send(&open(&world, port).expect("a socket"));
        // No more than what the tunnel carries at once.
        if port % 100 == 99 {
            senders.extend(iter::from_fn(next).take(100));
        }
    }
    senders.extend(iter::from_fn(next));
    assert!(
        (16_000..=32_768).contains(&senders.len()),
        "{family:?}: {} arrived",
        senders.len()
    );
    // Its connections go on, also after the table that translates was replaced, which forgets
    // nothing.
    traffic::until("it goes on", || arrives(&first));
    assert_eq!(
        world.apply(gateway).expect("applied"),
        [],
        "what was counted is no change"
    );
    world
        .open_only(
            gateway.0,
            &BOTH
                .iter()
                .map(|family| pod_address(to, *family))
                .collect::<Vec<_>>(),
        )
        .expect("applied");
    traffic::until("it goes on", || arrives(&first));
    let others = (60_000..60_100)
        .filter(|port| arrives(&open(&world, *port).expect("a socket")))
        .count();
    assert!(
        others < 50,
        "{family:?}: {others} of 100 further connections"
    );
}

#[test]
fn without_its_rules_a_gateway_lets_nothing_through() {
    let world = World::two().expect("a world");
    world.serve().expect("servers");
    // As if the table that translates had not been loaded: only the guard is there.
    for gateway in [(0, 0), (1, 0)] {
        for family in BOTH {
            world
                .node(gateway)
                .command("nft", &["delete", "table", family.keyword(), "liqo"], "")
                .expect("deleted");
        }
    }
    all_closed(&world, (0, 0), (1, 0));
    for gateway in [(0, 0), (1, 0)] {
        world.apply(gateway).expect("applied");
    }
    // The kernel tracks no wrong connections of the attempt.
    for &family in BOTH {
        seen(&world, (0, 0), (1, 0), family).expect("it works again");
    }
}

#[test]
fn nobody_can_send_with_a_peers_address() {
    let world = World::hub_and_leaves(1).expect("a world");
    let listener = world.listen((2, 0)).expect("a socket");
    for &family in BOTH {
        let of_leaf = |leaf| world.seen_from(0, (leaf, 0), family).expect("an address");
        let to = (of_leaf(2), traffic::DATAGRAMS).into();
        for node_id in [(0, 0), (0, 1)] {
            world.disable_source_checks(node_id).expect("set");
            let heard = |name| {
                world.send_as(node_id, name, to).expect("said");
                listener.recv(&mut [0; 64]).is_ok()
            };
            assert!(
                heard(pod_address(node_id, family)),
                "the pod at {node_id:?} as itself"
            );
            assert!(
                !heard(of_leaf(1)),
                "the pod at {node_id:?} as one of a leaf, by {family:?}"
            );
        }
    }
}

#[test]
fn pods_cannot_send_into_the_overlay() {
    let world = World::of_families(V6, V6).expect("a world");
    let to = (world::node_address((0, 0), Family::V6), OVERLAY_PORT).into();
    let dropped = || {
        let rules = world
            .node((0, 0))
            .command("nft", &["list", "chain", "ip6", "liqo", "input"], "")
            .expect("nft");
        let counts = rules
            .lines()
            .filter(|line| line.contains("6472"))
            .map(|line| !line.contains("packets 0 "));
        counts.collect::<Vec<_>>()
    };
    assert_eq!(dropped(), [false, false]);
    world
        .send_as((0, 0), pod_address((0, 0), Family::V6), to)
        .expect("said");
    assert_eq!(dropped(), [true, false]);
    // As another node.
    world
        .send_as((0, 0), world::node_address((0, 1), Family::V6), to)
        .expect("said");
    assert_eq!(dropped(), [true, true]);
}

#[test]
fn applying_again_changes_nothing_and_clearing_leaves_nothing() {
    let world = World::hub_and_leaves(1).expect("a world");
    for node in world.node_ids() {
        assert_eq!(world.apply(node).expect("applied"), [], "{node:?}");
    }
    for node in world.node_ids() {
        world.clear(node).expect("cleared");
        assert_eq!(
            world.present(node).expect("read"),
            KernelState::default(),
            "{node:?}"
        );
        let rules = world
            .node(node)
            .command("nft", &["list", "ruleset"], "")
            .expect("nft");
        assert!(!rules.contains("liqo"), "{rules}");
    }
}

#[test]
fn a_state_that_others_broke_is_repaired() {
    let world = World::two().expect("a world");
    world.serve().expect("servers");
    let (gateway, node) = ((0, 0), (0, 1));
    world
        .node(gateway)
        .ip("route flush table 18252\nrule del priority 1825")
        .expect("broken");
    for what in ["route flush table 18252", "rule del priority 1825"] {
        let arguments: Vec<&str> = ["-6"].into_iter().chain(what.split(' ')).collect();
        world
            .node(gateway)
            .command("ip", &arguments, "")
            .expect("broken");
    }
    world
        .node(node)
        .ip("link del liqo.overlay")
        .expect("broken");
    world
        .node(gateway)
        .command("nft", &["flush", "ruleset"], "")
        .expect("broken");
    for broken in [gateway, node] {
        assert_ne!(world.apply(broken).expect("applied"), [], "{broken:?}");
        assert_eq!(world.apply(broken).expect("applied"), [], "{broken:?}");
    }
    for &family in BOTH {
        let mended = traffic::eventually(Duration::from_secs(10), || {
            seen(&world, node, (1, 1), family)
        });
        assert_eq!(mended.ok(), world.seen_from(1, node, family));
    }
}

#[test]
fn a_table_that_others_changed_is_replaced() {
    let world = World::two().expect("a world");
    for family in BOTH {
        let steps = world
            .meddle(
                (0, 0),
                &format!("flush chain {} liqo forward", family.keyword()),
            )
            .expect("applied");
        let replaced = steps.iter().map(|step| match step {
            KernelStep::ReplaceTable(table) => (table.family, table.name),
            other => panic!("{other:?}"),
        });
        assert_eq!(replaced.collect::<Vec<_>>(), [(family.keyword(), "liqo")]);
    }
}

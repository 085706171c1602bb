//! Several gateways of a cluster share its flows.

use std::{net::IpAddr, thread, time::Instant};

use liqo_datapath::node::KernelState;

use super::{
    all_reach_all,
    traffic::{self, EchoConnection, until},
    world::{self, BOTH, Family, NodeId, World, pod_addresses},
};

/// A pod reaches every address of another one, and is seen with its translated address.
fn reaches_all_addresses(world: &World, from: NodeId, to: NodeId) -> Result<(), String> {
    for &family in BOTH {
        for address in world.all_seen_from(from.0, to, family) {
            let seen = world
                .pod(from)
                .run(|| traffic::ask(address))
                .map_err(|error| error.to_string())?;
            let seen = seen.map_err(|error| format!("{from:?} to {to:?}, {address}: {error}"))?;
            assert_eq!(
                Some(seen),
                world.seen_from(to.0, from, family),
                "{from:?} to {to:?}, {address}"
            );
        }
    }
    Ok(())
}

/// Bytes that each gateway of a cluster carries during `work`.
fn carried_by_each(world: &World, cluster: usize, work: impl FnOnce()) -> Vec<u64> {
    let before = world.carried(cluster);
    work();
    world
        .carried(cluster)
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect()
}

/// Bytes: more than keepalives and handshakes.
const SOME: u64 = 2000;

#[test]
fn both_gateways_of_either_side_carry_flows_of_every_pod_in_both_directions() {
    for sides in [(2, 1), (1, 2), (2, 2), (3, 2)] {
        let world = World::with_gateways(sides.0, sides.1).expect("a world");
        world.serve().expect("servers");
        all_reach_all(&world).expect("all answers");
        // Between nodes that are gateways and nodes that are not.
        let node_ids = |cluster: usize| {
            world
                .node_ids()
                .into_iter()
                .filter(move |node_id| node_id.0 == cluster)
        };
        let all = || {
            for (from, to) in node_ids(0).flat_map(|one| node_ids(1).map(move |other| (one, other)))
            {
                reaches_all_addresses(&world, from, to).expect("all answers");
                reaches_all_addresses(&world, to, from).expect("all answers");
            }
        };
        let there = world.carried(1);
        let here = carried_by_each(&world, 0, all);
        let there: Vec<u64> = world
            .carried(1)
            .iter()
            .zip(there)
            .map(|(after, before)| after - before)
            .collect();
        assert!(
            here.iter().chain(&there).all(|bytes| *bytes > SOME),
            "{sides:?}: {here:?} {there:?}"
        );
    }
}

#[test]
fn what_is_not_open_stays_closed_on_every_gateway() {
    let mut world = World::with_gateways(2, 2).expect("a world");
    world.serve().expect("servers");
    let (here, there) = ((0, 2), (1, 2));
    let open: Vec<IpAddr> = BOTH
        .iter()
        .flat_map(|family| pod_addresses(there, *family))
        .collect();
    world.open_only(0, &[]).expect("applied");
    world.open_only(1, &open).expect("applied");
    reaches_all_addresses(&world, here, there).expect("these are open, and answers pass");
    let closed: Vec<_> = BOTH
        .iter()
        .flat_map(|family| world.all_seen_from(1, here, *family))
        .collect();
    let tried = thread::scope(|scope| {
        let tries = closed.iter().map(|address| {
            scope.spawn(|| {
                world
                    .pod(there)
                    .run(|| traffic::ask_within(*address, traffic::PORT, traffic::CLOSED_AFTER))
            })
        });
        let tries: Vec<_> = tries.collect();
        tries
            .into_iter()
            .map(|one| one.join().expect("ran").expect("ran"))
            .collect::<Vec<_>>()
    });
    assert_eq!(tried.len(), 32);
    assert!(tried.iter().all(Result::is_err), "{tried:?}");
}

#[test]
fn nodes_and_gateways_themselves_reach_pods_through_either_gateway() {
    let world = World::with_gateways(2, 2).expect("a world");
    world.serve().expect("servers");
    let all = || {
        for (node, &family) in [(0, 0), (0, 1), (0, 2)]
            .into_iter()
            .flat_map(|node| BOTH.iter().map(move |family| (node, family)))
        {
            for address in world.all_seen_from(0, (1, 2), family) {
                let seen = world.node(node).run(|| traffic::ask(address)).expect("ran");
                let seen = seen.unwrap_or_else(|error| panic!("{node:?} to {address}: {error}"));
                assert!(
                    world.nodes_seen_from(1, 0, family).contains(&seen),
                    "{node:?} to {address} is seen as {seen}"
                );
            }
        }
    };
    let carried = carried_by_each(&world, 0, all);
    assert!(carried.iter().all(|bytes| *bytes > SOME), "{carried:?}");
}

/// The node port for the pod address with these low bits.
fn node_port(low_bits: usize) -> u16 {
    30_000 + u16::try_from(low_bits).expect("few")
}

/// The address of a Service for each address of a remote pod.
fn service(index: usize, family: Family) -> IpAddr {
    let last = u8::try_from(index).expect("few");
    match family {
        Family::V4 => IpAddr::from([10, 96, 0, last]),
        Family::V6 => IpAddr::from([0xfd96, 0, 0, 0, 0, 0, 0, last.into()]),
    }
}

/// nftables rules like kube-proxy's: packets that are not from a pod get the node's address.
fn proxy(targets: &[IpAddr], family: Family) -> String {
    let ip = family.keyword();
    let (services, pods) = match family {
        Family::V4 => ("10.96.0.0/28", "10.244.0.0/16"),
        Family::V6 => ("fd96::/124", "fd44::/56"),
    };
    let pairs = |pair: &dyn Fn(usize, &IpAddr) -> String| {
        targets
            .iter()
            .enumerate()
            .map(|(index, target)| pair(index, target))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let of_services = pairs(&|index, target| format!("{} : {target}", service(index, family)));
    let of_ports = pairs(&|index, target| format!("{} : {target} . 8080", node_port(index)));
    let translate = format!(
        "{ip} daddr {services} tcp dport 8080 dnat to {ip} daddr map {{ {of_services} }}\n\
         fib daddr type local tcp dport 30000-30015 dnat {ip} to tcp dport map {{ {of_ports} }}\n"
    );
    format!(
        "table {ip} proxy {{\nchain pre {{\ntype nat hook prerouting priority dstnat;\n{translate}}}\n\
         chain out {{\ntype nat hook output priority -100;\n{translate}}}\n\
         chain post {{\ntype nat hook postrouting priority srcnat;\n\
         ct status dnat {ip} saddr != {pods} masquerade\n}}\n}}\n"
    )
}

#[test]
fn services_and_node_ports_lead_to_pods_through_either_gateway() {
    let world = World::with_gateways(2, 2).expect("a world");
    world.serve().expect("servers");
    for (number, &family) in
        (0..3).flat_map(|number| BOTH.iter().map(move |family| (number, family)))
    {
        let (node, client) = (world.node((0, number)), world.node((0, (number + 1) % 3)));
        let targets = world.all_seen_from(0, (1, 2), family);
        node.command("nft", &["--file", "-"], &proxy(&targets, family))
            .expect("a proxy");
        // Any route will do until the address is translated.
        node.ip(if family == Family::V4 {
            "route add 10.96.0.0/12 dev eth0"
        } else {
            "route add fd96::/112 dev eth0"
        })
        .expect("a route");
        for index in 0..16 {
            let service = service(index, family);
            let from_pod = world
                .pod((0, number))
                .run(|| traffic::ask(service))
                .expect("ran");
            assert_eq!(
                from_pod.ok(),
                world.seen_from(1, (0, number), family),
                "the pod on node {number} to {service}"
            );
            let from_node = node.run(|| traffic::ask(service)).expect("ran");
            assert!(
                from_node.is_ok(),
                "node {number} to {service}: {from_node:?}"
            );
            let address = world::node_address((0, number), family);
            let from_outside = client
                .run(|| traffic::ask_at(address, node_port(index)))
                .expect("ran");
            assert!(
                from_outside.is_ok(),
                "port {} of node {number}: {from_outside:?}",
                node_port(index)
            );
        }
    }
}

#[test]
fn icmp_errors_from_behind_the_tunnel_reach_the_sender() {
    let world = World::with_gateways(2, 2).expect("a world");
    world.serve().expect("servers");
    let (here, there) = ((0, 2), (1, 2));
    world.narrow(there, 1300).expect("narrow");
    for &family in BOTH {
        let to = world.seen_from(0, there, family).expect("an address");
        // The node there sends the ICMP error, and whichever gateways carry the flow return it.
        for from in pod_addresses(here, family) {
            world.forget_path_mtus(here).expect("forgotten");
            let came = world
                .pod(here)
                .run(|| traffic::echo_in_the_end(from, to, 1350))
                .expect("ran");
            assert_eq!(came.ok(), Some(1350), "{from} to {to}");
        }
    }
}

#[test]
fn leaves_reach_each_other_through_either_gateway_of_the_hub() {
    let world = World::hub_and_leaves(2).expect("a world");
    world.serve().expect("servers");
    all_reach_all(&world).expect("all answers");
    let carried = carried_by_each(&world, 0, || {
        for (from, to) in [((1, 0), (2, 0)), ((2, 0), (1, 0))] {
            reaches_all_addresses(&world, from, to).expect("all answers");
        }
    });
    assert!(carried.iter().all(|bytes| *bytes > SOME), "{carried:?}");
}

#[test]
fn connections_survive_the_death_and_the_return_of_a_gateway() {
    let mut world = World::with_gateways(2, 2).expect("a world");
    world.serve().expect("servers");
    let (here, there) = ((0, 2), (1, 2));
    let talk = |from: NodeId, to: NodeId, world: &World| {
        let addresses = BOTH
            .iter()
            .flat_map(|family| world.all_seen_from(from.0, to, *family));
        let talks = addresses.map(|address| {
            world
                .pod(from)
                .run(|| EchoConnection::with(address))
                .expect("ran")
        });
        talks.collect::<Result<Vec<_>, _>>().expect("connections")
    };
    let mut talks: Vec<EchoConnection> = talk(here, there, &world)
        .into_iter()
        .chain(talk(there, here, &world))
        .collect();
    let mut go_on = |when: &str| {
        let began = Instant::now();
        thread::scope(|scope| {
            let words = talks
                .iter_mut()
                .map(|talk| scope.spawn(|| (0..20).try_for_each(|word| talk.exchange(word))));
            let words: Vec<_> = words.collect();
            assert_eq!(words.len(), 64);
            for word in words {
                word.join()
                    .expect("ran")
                    .unwrap_or_else(|error| panic!("{when}: {error}"));
            }
        });
        println!("{when}: {} ms", began.elapsed().as_millis());
    };
    go_on("at first");
    for lost in [(0, 1), (1, 0)] {
        world.lose(lost).expect("applied");
        go_on("after a gateway died");
        world.regain(lost).expect("applied");
        go_on("after it came back");
    }
}

#[test]
fn connections_survive_if_peers_use_another_gateway_before_its_own_cluster_does() {
    let mut world = World::with_gateways(1, 2).expect("a world");
    world.serve().expect("servers");
    // The servers run on the gateway that takes over. It knows their connections already, by the
    // path over the other gateway.
    let (client, server, left) = ((0, 0), (1, 1), (1, 0));
    let addresses: Vec<IpAddr> = BOTH
        .iter()
        .flat_map(|family| world.all_seen_from(0, server, *family))
        .collect();
    let talk = |address: &IpAddr| {
        world
            .pod(client)
            .run(|| EchoConnection::with(*address))
            .expect("ran")
            .expect("a connection")
    };
    let mut talks: Vec<EchoConnection> = addresses.iter().map(talk).collect();
    talks
        .iter_mut()
        .try_for_each(|talk| talk.exchange(1))
        .expect("at first");
    world.set_used_by_peers(left, false).expect("applied");
    talks
        .iter_mut()
        .try_for_each(|talk| talk.say(2))
        .expect("sent");
    // Packets of connections that the other gateway carried were dropped, and are sent again.
    for family in BOTH {
        let list = || {
            world
                .node(server)
                .command(
                    "nft",
                    &["list", "chain", family.keyword(), "liqo", "ports"],
                    "",
                )
                .expect("nft")
        };
        until("dropped packets", || {
            list().contains("counter packets") && !list().contains("counter packets 0 ")
        });
    }
    world.set_used_by_its_cluster(left, false).expect("applied");
    talks
        .iter_mut()
        .try_for_each(|talk| talk.hear(2))
        .expect("after its own cluster did so, too");
    talks
        .iter_mut()
        .try_for_each(|talk| talk.exchange(3))
        .expect("and from then on");
}

#[test]
fn nodes_follow_a_change_of_the_number_of_gateways() {
    let mut world = World::with_gateways(3, 1).expect("a world");
    for lost in [(0, 1), (0, 0)] {
        world.lose(lost).expect("applied");
        for node_id in world.node_ids() {
            // The second time there is nothing to do.
            world.apply(node_id).expect("applied");
            assert_eq!(world.apply(node_id).expect("applied"), [], "{node_id:?}");
        }
    }
    for node_id in world.node_ids() {
        world.clear(node_id).expect("cleared");
        assert_eq!(
            world.present(node_id).expect("read"),
            KernelState::default(),
            "{node_id:?}"
        );
    }
}

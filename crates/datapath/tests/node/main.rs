//! Clusters with the same ranges, the kernels of their nodes, and the tunnels between them: all of it real, in namespaces.
//!
//! ```text
//!   pod 10.244.1.2 -- node 1 ==overlay== node 0 ===tunnel=== node 0 ==overlay== node 1 -- pod 10.244.1.2
//!   (where there are several gateways, the first nodes of a cluster are)
//! ```
//! Everything has addresses of IPv4 and IPv6, unless a test says otherwise. Every node checks sources strictly (those of IPv4: for IPv6
//! there is no such thing) and masquerades what leaves its pod range, as a plain CNI does.

mod shared;
mod world;

use std::{io, net::IpAddr, thread, time::Duration};

use liqo_datapath::node::{Present, Step};
use liqo_network::plan::OVERLAY_PORT;
use world::{BOTH, Family, Place, Talk, V4, V6, World, pod_address};

/// Whom the server in a pod sees when a pod of another cluster asks it.
fn seen(world: &World, from: Place, to: Place, family: Family) -> io::Result<IpAddr> {
    let address = world.seen_from(from.0, to, family).ok_or(io::ErrorKind::AddrNotAvailable)?;
    world.pod(from).run(|| world::ask(address))?
}

/// No pod sees another one where it should not; all families at once, because nothing is waited for.
fn all_closed(world: &World, from: Place, to: Place) {
    thread::scope(|scope| {
        let tries: Vec<_> = BOTH.iter().map(|&family| scope.spawn(move || (family, seen(world, from, to, family)))).collect();
        for one in tries {
            let (family, closed) = one.join().expect("ran");
            assert!(closed.is_err(), "{from:?} to {to:?} by {family:?}: {closed:?}");
        }
    });
}

/// Every pod reaches every pod of other clusters by all families that both have, and is seen as what it is there.
fn all_reach_all(world: &World) -> Result<(), String> {
    for from in world.places() {
        for to in world.places().into_iter().filter(|to| to.0 != from.0) {
            for family in world.families(from.0, to.0) {
                let seen_there =
                    seen(world, from, to, family).map_err(|error| format!("{from:?} to {to:?} by {family:?}: {error}"))?;
                assert_eq!(Some(seen_there), world.seen_from(to.0, from, family), "{from:?} to {to:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn pods_reach_pods_of_the_other_cluster_and_are_seen_as_what_they_are() {
    let world = World::two().expect("a world");
    world.serve().expect("servers");
    all_reach_all(&world).expect("all answers");
}

#[test]
fn clusters_share_the_families_that_both_have() {
    for (one, other) in [(BOTH, V6), (V4, BOTH), (V6, V6)] {
        let world = World::of_families(one, other).expect("a world");
        world.serve().expect("servers");
        all_reach_all(&world).expect("all answers");
        for family in world.families(0, 1) {
            let to = world.seen_from(0, (1, 1), family).expect("an address");
            assert_eq!(world.pod((0, 1)).run(|| world::upload(to, 1 << 20)).expect("ran").expect("a stream"), 1 << 20);
        }
        for place in world.places() {
            assert_eq!(world.apply(place).expect("applied"), [], "{place:?}");
            world.clear(place).expect("cleared");
            assert_eq!(world.present(place).expect("read"), Present::default(), "{place:?}");
        }
    }
}

#[test]
fn leaves_reach_each_other_through_the_hub() {
    let world = World::hub_and_leaves(1).expect("a world");
    world.serve().expect("servers");
    for &family in BOTH {
        assert_ne!(world.seen_from(1, (2, 0), family), world.seen_from(1, (0, 0), family));
    }
    all_reach_all(&world).expect("all answers");
}

#[test]
fn nodes_reach_pods_under_addresses_that_stand_for_them() {
    let world = World::two().expect("a world");
    world.serve().expect("servers");
    for (node, to, &family) in [(0, 0), (0, 1)]
        .into_iter()
        .flat_map(|node| [(1, 0), (1, 1)].map(|to| (node, to)))
        .flat_map(|(node, to)| BOTH.iter().map(move |family| (node, to, family)))
    {
        let address = world.seen_from(0, to, family).expect("an address");
        let seen_there = world.node(node).run(|| world::ask(address)).expect("ran").expect("an answer");
        assert!(world.nodes_seen_from(1, 0, family).contains(&seen_there), "{node:?} to {to:?}: {seen_there}");
    }
}

#[test]
fn what_is_larger_than_the_tunnel_passes_in_pieces() {
    let world = World::two().expect("a world");
    world.serve().expect("servers");
    let pod = world.pod((0, 1));
    // Datagrams in fragments, which of IPv6 the sender makes once it was told.
    let to = |family| world.seen_from(0, (1, 1), family).expect("an address");
    assert_eq!(pod.run(|| world::echo(to(Family::V4), 3000)).expect("ran").expect("an echo"), 3000);
    let (own, to_v6) = (pod_address((0, 1), Family::V6), to(Family::V6));
    assert_eq!(pod.run(|| world::echo_in_the_end(own, to_v6, 3000)).expect("ran").expect("an echo"), 3000);
    // Streams in segments that fit, although both pods believe in 1500 bytes, and are told nothing else.
    for place in [(0, 1), (1, 1)] {
        world.forget_ways(place).expect("forgotten");
        let deaf = "table inet deaf {\nchain input {\ntype filter hook input priority filter;\n\
                    icmp type destination-unreachable drop\nicmpv6 type packet-too-big drop\n}\n}\n";
        world.pod(place).command("nft", &["--file", "-"], deaf).expect("deaf");
    }
    for &family in BOTH {
        assert_eq!(pod.run(|| world::upload(to(family), 8 << 20)).expect("ran").expect("a stream"), 8 << 20);
    }
}

#[test]
fn what_is_not_open_stays_closed() {
    let mut world = World::two().expect("a world");
    world.serve().expect("servers");
    let open: Vec<IpAddr> = BOTH.iter().map(|family| pod_address((1, 0), *family)).collect();
    world.open_only(1, &open).expect("applied");
    for &family in BOTH {
        seen(&world, (0, 0), (1, 0), family).expect("this one is open");
    }
    all_closed(&world, (0, 0), (1, 1));
    // The other way is not affected: answers come through.
    for &family in BOTH {
        seen(&world, (1, 1), (0, 1), family).expect("the other way");
    }
}

#[test]
fn of_an_api_servers_machine_peers_reach_one_port_under_another_address() {
    let mut world = World::two().expect("a world");
    world.serve().expect("servers");
    // On the gateway, on another node, and on a machine that is no node of that cluster.
    let machines = [(1, 0), (1, 1), (0, 1)];
    world.serve_on(&machines).expect("servers");
    let ask = |world: &World, number: usize, family: Family, port: u16| -> io::Result<IpAddr> {
        let address = world.api_server_seen_from(0, 1, number, family).ok_or(io::ErrorKind::AddrNotAvailable)?;
        world.pod((0, 0)).run(|| world::ask_at(address, port))?
    };
    // What is closed is waited for by all at once.
    let closed = |world: &World, family: Family, port: u16| {
        thread::scope(|scope| {
            let tries: Vec<_> = (0..machines.len()).map(|number| scope.spawn(move || ask(world, number, family, port))).collect();
            for (number, one) in tries.into_iter().enumerate() {
                let closed = one.join().expect("ran");
                assert!(closed.is_err(), "{number}: {closed:?}");
            }
        });
    };
    for &family in BOTH {
        world.show_api_servers(1, &machines, family, true).expect("shown");
        let caller = world.seen_from(1, (0, 0), family).expect("an address");
        // The last of them knows no way back to peers.
        let gateway = world::node_address((1, 0), family);
        for (number, seen) in [caller, caller, gateway].into_iter().enumerate() {
            assert_eq!(ask(&world, number, family, 443).expect("an answer"), seen, "{number}");
        }
        closed(&world, family, world::PORT);
        world.show_api_servers(1, &machines, family, false).expect("closed");
        closed(&world, family, 443);
    }
}

#[test]
fn a_connection_outlives_what_is_done_to_the_gateways() {
    let world = World::two().expect("a world");
    world.serve().expect("servers");
    let talk = |family: &Family| {
        let to = world.seen_from(0, (1, 1), *family).expect("an address");
        world.pod((0, 1)).run(|| Talk::with(to)).expect("ran").expect("a connection")
    };
    let mut talks: Vec<Talk> = BOTH.iter().map(talk).collect();
    let mut words = 0u8..;
    let mut go_on = || words.by_ref().take(10).try_for_each(|byte| talks.iter_mut().try_for_each(|talk| talk.word(byte)));
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
fn without_its_rules_a_gateway_lets_nothing_through() {
    let world = World::two().expect("a world");
    world.serve().expect("servers");
    // As if the table that translates had not been loaded: the guard stands alone.
    for gateway in [(0, 0), (1, 0)] {
        for family in BOTH {
            world.node(gateway).command("nft", &["delete", "table", family.keyword(), "liqo"], "").expect("deleted");
        }
    }
    all_closed(&world, (0, 0), (1, 0));
    for gateway in [(0, 0), (1, 0)] {
        world.apply(gateway).expect("applied");
    }
    // Nothing wrong is remembered of the attempt.
    for &family in BOTH {
        seen(&world, (0, 0), (1, 0), family).expect("it works again");
    }
}

#[test]
fn nobody_speaks_in_a_peers_name() {
    let world = World::hub_and_leaves(1).expect("a world");
    let ear = world.ear((2, 0)).expect("a socket");
    for &family in BOTH {
        let of_leaf = |leaf| world.seen_from(0, (leaf, 0), family).expect("an address");
        let to = (of_leaf(2), world::WORDS).into();
        for place in [(0, 0), (0, 1)] {
            world.let_anything_out(place).expect("set");
            let heard = |name| {
                world.say_as(place, name, to).expect("said");
                ear.recv(&mut [0; 64]).is_ok()
            };
            assert!(heard(pod_address(place, family)), "the pod at {place:?} as itself");
            assert!(!heard(of_leaf(1)), "the pod at {place:?} as one of a leaf, by {family:?}");
        }
    }
}

#[test]
fn pods_do_not_speak_in_the_overlay() {
    let world = World::of_families(V6, V6).expect("a world");
    let to = (world::node_address((0, 0), Family::V6), OVERLAY_PORT).into();
    let dropped = || {
        let rules = world.node((0, 0)).command("nft", &["list", "chain", "ip6", "liqo", "input"], "").expect("nft");
        let counts = rules.lines().filter(|line| line.contains("6472")).map(|line| !line.contains("packets 0 "));
        counts.collect::<Vec<_>>()
    };
    assert_eq!(dropped(), [false, false]);
    world.say_as((0, 0), pod_address((0, 0), Family::V6), to).expect("said");
    assert_eq!(dropped(), [true, false]);
    // As another node.
    world.say_as((0, 0), world::node_address((0, 1), Family::V6), to).expect("said");
    assert_eq!(dropped(), [true, true]);
}

#[test]
fn applying_again_changes_nothing_and_clearing_leaves_nothing() {
    let world = World::hub_and_leaves(1).expect("a world");
    for node in world.places() {
        assert_eq!(world.apply(node).expect("applied"), [], "{node:?}");
    }
    for node in world.places() {
        world.clear(node).expect("cleared");
        assert_eq!(world.present(node).expect("read"), Present::default(), "{node:?}");
        let rules = world.node(node).command("nft", &["list", "ruleset"], "").expect("nft");
        assert!(!rules.contains("liqo"), "{rules}");
    }
}

#[test]
fn what_others_broke_is_mended() {
    let world = World::two().expect("a world");
    world.serve().expect("servers");
    let (gateway, node) = ((0, 0), (0, 1));
    world.node(gateway).ip("route flush table 18252\nrule del priority 1825").expect("broken");
    for what in ["route flush table 18252", "rule del priority 1825"] {
        let arguments: Vec<&str> = ["-6"].into_iter().chain(what.split(' ')).collect();
        world.node(gateway).command("ip", &arguments, "").expect("broken");
    }
    world.node(node).ip("link del liqo.overlay").expect("broken");
    world.node(gateway).command("nft", &["flush", "ruleset"], "").expect("broken");
    for broken in [gateway, node] {
        assert_ne!(world.apply(broken).expect("applied"), [], "{broken:?}");
        assert_eq!(world.apply(broken).expect("applied"), [], "{broken:?}");
    }
    for &family in BOTH {
        let mended = world::eventually(Duration::from_secs(10), || seen(&world, node, (1, 1), family));
        assert_eq!(mended.ok(), world.seen_from(1, node, family));
    }
}

#[test]
fn what_others_change_in_a_table_is_put_right() {
    let world = World::two().expect("a world");
    for family in BOTH {
        let steps = world.meddle((0, 0), &format!("flush chain {} liqo forward", family.keyword())).expect("applied");
        let replaced = steps.iter().map(|step| match step {
            Step::ReplaceTable(table) => (table.family, table.name),
            other => panic!("{other:?}"),
        });
        assert_eq!(replaced.collect::<Vec<_>>(), [(family.keyword(), "liqo")]);
    }
}

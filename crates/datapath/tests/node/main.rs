//! Clusters with the same ranges, the kernels of their nodes, and the tunnels between them: all of it real, in namespaces.
//!
//! ```text
//!   pod 10.244.1.2 -- node 1 ==overlay== node 0 ===tunnel=== node 0 ==overlay== node 1 -- pod 10.244.1.2
//!   (where there are several gateways, the first nodes of a cluster are)
//! ```
//! Every node checks sources strictly and masquerades what leaves its pod range, as a plain CNI does.

mod shared;
mod world;

use std::{io, net::IpAddr, time::Duration};

use liqo_datapath::node::{Present, Step};
use world::{Place, Talk, World, pod_address};

/// Whom the server in a pod sees when a pod of another cluster asks it.
fn seen(world: &World, from: Place, to: Place) -> io::Result<IpAddr> {
    let address = world.seen_from(from.0, to).ok_or(io::ErrorKind::AddrNotAvailable)?;
    world.pod(from).run(|| world::ask(address))?
}

/// Every pod reaches every pod of other clusters, and is seen as what it is there.
fn all_reach_all(world: &World) -> Result<(), String> {
    for from in world.places() {
        for to in world.places().into_iter().filter(|to| to.0 != from.0) {
            let seen_there = seen(world, from, to).map_err(|error| format!("{from:?} to {to:?}: {error}"))?;
            assert_eq!(Some(seen_there), world.seen_from(to.0, from), "{from:?} to {to:?}");
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
fn leaves_reach_each_other_through_the_hub() {
    let world = World::hub_and_leaves(1).expect("a world");
    world.serve().expect("servers");
    assert_ne!(world.seen_from(1, (2, 0)), world.seen_from(1, (0, 0)));
    all_reach_all(&world).expect("all answers");
}

#[test]
fn nodes_reach_pods_under_addresses_that_stand_for_them() {
    let world = World::two().expect("a world");
    world.serve().expect("servers");
    for node in [(0, 0), (0, 1)] {
        for to in [(1, 0), (1, 1)] {
            let address = world.seen_from(0, to).expect("an address");
            let seen_there = world.node(node).run(|| world::ask(address)).expect("ran").expect("an answer");
            assert!(world.nodes_seen_from(1, 0).contains(&seen_there), "{node:?} to {to:?}: {seen_there}");
        }
    }
}

#[test]
fn what_is_larger_than_the_tunnel_passes_in_pieces() {
    let world = World::two().expect("a world");
    world.serve().expect("servers");
    let (pod, to) = (world.pod((0, 1)), world.seen_from(0, (1, 1)).expect("an address"));
    // Datagrams in fragments; streams in segments that fit, although both pods believe in 1500 bytes.
    assert_eq!(pod.run(|| world::echo(to, 3000)).expect("ran").expect("an echo"), 3000);
    assert_eq!(pod.run(|| world::upload(to, 8 << 20)).expect("ran").expect("a stream"), 8 << 20);
}

#[test]
fn what_is_not_open_stays_closed() {
    let mut world = World::two().expect("a world");
    world.serve().expect("servers");
    world.open_only(1, &[pod_address((1, 0))]).expect("applied");
    seen(&world, (0, 0), (1, 0)).expect("this one is open");
    let closed = seen(&world, (0, 0), (1, 1));
    assert!(closed.is_err(), "{closed:?}");
    // The other way is not affected: answers come through.
    seen(&world, (1, 1), (0, 1)).expect("the other way");
}

#[test]
fn of_an_api_servers_machine_peers_reach_one_port_under_another_address() {
    let mut world = World::two().expect("a world");
    world.serve().expect("servers");
    // On the gateway, on another node, and on a machine that is no node of that cluster.
    let machines = [(1, 0), (1, 1), (0, 1)];
    let ask = |world: &World, number: usize, port: u16| -> io::Result<IpAddr> {
        let address = world.api_server_seen_from(0, 1, number).ok_or(io::ErrorKind::AddrNotAvailable)?;
        world.pod((0, 0)).run(|| world::ask_at(address, port))?
    };
    world.show_api_servers(1, &machines, true).expect("shown");
    let caller = world.seen_from(1, (0, 0)).expect("an address");
    // The last of them knows no way back to peers.
    let gateway = world::node_address((1, 0)).into();
    for (number, seen) in [caller, caller, gateway].into_iter().enumerate() {
        assert_eq!(ask(&world, number, 443).expect("an answer"), seen, "{number}");
        let closed = ask(&world, number, world::PORT);
        assert!(closed.is_err(), "{number}: {closed:?}");
    }
    world.show_api_servers(1, &machines, false).expect("closed");
    for number in 0..machines.len() {
        let closed = ask(&world, number, 443);
        assert!(closed.is_err(), "{number}: {closed:?}");
    }
}

#[test]
fn a_connection_outlives_what_is_done_to_the_gateways() {
    let world = World::two().expect("a world");
    world.serve().expect("servers");
    let to = world.seen_from(0, (1, 1)).expect("an address");
    let mut talk = world.pod((0, 1)).run(|| Talk::with(to)).expect("ran").expect("a connection");
    let mut words = 0u8..;
    let mut go_on = || words.by_ref().take(10).try_for_each(|byte| talk.word(byte));
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
        world.node(gateway).command("nft", &["delete", "table", "ip", "liqo"], "").expect("deleted");
    }
    let lost = seen(&world, (0, 0), (1, 0));
    assert!(lost.is_err(), "{lost:?}");
    for gateway in [(0, 0), (1, 0)] {
        world.apply(gateway).expect("applied");
    }
    // Nothing wrong is remembered of the attempt.
    seen(&world, (0, 0), (1, 0)).expect("it works again");
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
    world.node(node).ip("link del liqo.overlay").expect("broken");
    world.node(gateway).command("nft", &["flush", "ruleset"], "").expect("broken");
    for broken in [gateway, node] {
        assert_ne!(world.apply(broken).expect("applied"), [], "{broken:?}");
        assert_eq!(world.apply(broken).expect("applied"), [], "{broken:?}");
    }
    let mended = world::eventually(Duration::from_secs(10), || seen(&world, node, (1, 1)));
    assert_eq!(mended.ok(), world.seen_from(1, node));
}

#[test]
fn what_others_change_in_a_table_is_put_right() {
    let world = World::two().expect("a world");
    let steps = world.meddle((0, 0), "flush chain ip liqo forward").expect("applied");
    let replaced: Vec<&str> = steps
        .iter()
        .map(|step| match step {
            Step::ReplaceTable(table) => table.name,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(replaced, ["liqo"]);
}

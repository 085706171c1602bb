//! Two clusters with the same pod range, two nodes each, and the tunnel between them: all of it the kernel's own, in namespaces.
//!
//! ```text
//!   pod 10.244.1.2 -- rome-2 ==overlay== rome-1 ===tunnel=== milan-1 ==overlay== milan-2 -- pod 10.244.1.2
//! ```
//! Rome sees milan's pods as 10.71.0.0/16, milan sees rome's as 10.72.0.0/16. Every node checks sources strictly.

mod world;

use std::{io, net::IpAddr, time::Duration};

use liqo_datapath::node::Present;
use world::{Cluster, Server, World};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Whom a server at this address sees when this pod asks it.
fn seen(world: &World, from: (Cluster, usize), to: IpAddr) -> io::Result<IpAddr> {
    world.pod(from).run(|| world::ask(to))?
}

#[test]
fn pods_reach_pods_of_the_other_cluster_and_are_seen_as_what_they_are() {
    let world = World::new().expect("a world");
    let _servers: Vec<Server> = world.all_pods().map(|pod| Server::start(world.pod(pod)).expect("a server")).collect();
    for from in 0..2 {
        for to in 0..2 {
            let there = ip(&format!("10.71.{to}.2"));
            let seen_there = seen(&world, (Cluster::Rome, from), there).expect("rome reaches milan");
            assert_eq!(seen_there, ip(&format!("10.72.{from}.2")), "from node {from} to node {to}");
            let there = ip(&format!("10.72.{to}.2"));
            let seen_there = seen(&world, (Cluster::Milan, from), there).expect("milan reaches rome");
            assert_eq!(seen_there, ip(&format!("10.71.{from}.2")), "from node {from} to node {to}");
        }
    }
}

#[test]
fn nodes_reach_pods_under_one_address() {
    let world = World::new().expect("a world");
    let _servers: Vec<Server> = world.all_pods().map(|pod| Server::start(world.pod(pod)).expect("a server")).collect();
    for node in 0..2 {
        for to in 0..2 {
            let there = ip(&format!("10.71.{to}.2"));
            let seen_there = world.node((Cluster::Rome, node)).run(|| world::ask(there)).expect("ran").expect("an answer");
            assert_eq!(seen_there, ip("10.74.0.1"), "from node {node} to node {to}");
        }
    }
}

#[test]
fn what_is_larger_than_the_tunnel_passes_in_pieces() {
    let world = World::new().expect("a world");
    let _server = Server::start(world.pod((Cluster::Milan, 1))).expect("a server");
    let pod = world.pod((Cluster::Rome, 1));
    let to = ip("10.71.1.2");
    // Datagrams in fragments; streams in segments that fit, although both pods believe in 1500 bytes.
    let echoed = pod.run(|| world::echo(to, 3000)).expect("ran").expect("an echo");
    assert_eq!(echoed, 3000);
    let sent = pod.run(|| world::upload(to, 8 << 20)).expect("ran").expect("a stream");
    assert_eq!(sent, 8 << 20);
}

#[test]
fn what_is_not_open_stays_closed() {
    let mut world = World::new().expect("a world");
    let _servers: Vec<Server> = world.all_pods().map(|pod| Server::start(world.pod(pod)).expect("a server")).collect();
    world.open_only(Cluster::Milan, &[ip("10.244.0.2")]).expect("applied");
    seen(&world, (Cluster::Rome, 0), ip("10.71.0.2")).expect("this one is open");
    let closed = seen(&world, (Cluster::Rome, 0), ip("10.71.1.2"));
    assert!(closed.is_err(), "{closed:?}");
    // The other way is not affected: answers come through.
    seen(&world, (Cluster::Milan, 1), ip("10.72.1.2")).expect("milan reaches rome");
    let gateway = seen(&world, (Cluster::Rome, 0), ip("10.73.0.1"));
    assert!(gateway.is_err(), "{gateway:?}");
}

#[test]
fn applying_again_changes_nothing_and_clearing_leaves_nothing() {
    let world = World::new().expect("a world");
    for node in world.all_nodes() {
        assert_eq!(world.apply(node).expect("applied"), [], "{node:?}");
    }
    for node in world.all_nodes() {
        world.clear(node).expect("cleared");
        assert_eq!(world.present(node).expect("read"), Present::default(), "{node:?}");
        let rules = world.node(node).command("nft", &["list", "ruleset"], "").expect("nft");
        assert!(!rules.contains("liqo"), "{rules}");
    }
}

#[test]
fn what_others_broke_is_mended() {
    let world = World::new().expect("a world");
    let _server = Server::start(world.pod((Cluster::Milan, 1))).expect("a server");
    let (gateway, node) = ((Cluster::Rome, 0), (Cluster::Rome, 1));
    world.node(gateway).ip("route flush table 18252\nrule del priority 1825").expect("broken");
    world.node(node).ip("link del liqo.overlay").expect("broken");
    world.node(gateway).command("nft", &["flush", "ruleset"], "").expect("broken");
    for broken in [gateway, node] {
        assert_ne!(world.apply(broken).expect("applied"), [], "{broken:?}");
        assert_eq!(world.apply(broken).expect("applied"), [], "{broken:?}");
    }
    let mended = world::eventually(Duration::from_secs(10), || seen(&world, node, ip("10.71.1.2")));
    assert_eq!(mended.expect("it works again"), ip("10.72.1.2"));
}

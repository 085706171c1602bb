//! Pods that were offloaded twice: a broker passes packets between a customer and its pods at a
//! provider, and no others.
//!
//! ```text
//!   customer 1 ==tunnel==\                  /-- pod (2, 0) of customer 1
//!                         broker 0 ==tunnel== provider 2
//!   customer 3 ==tunnel==/                  \-- pod (2, 1) of customer 3
//! ```

use std::{net::IpAddr, thread};

use super::{
    is_closed, seen,
    traffic::{self, EchoConnection},
    world::{BOTH, Family, NodeId, World, pod_address, pod_addresses},
};

const BROKER: NodeId = (0, 0);
const ROME: NodeId = (1, 0);
const OF_ROME: NodeId = (2, 0);
const FLORENCE: NodeId = (3, 0);
const OF_FLORENCE: NodeId = (2, 1);
/// Each customer, and its pod.
const PAIRS: [(NodeId, NodeId); 2] = [(ROME, OF_ROME), (FLORENCE, OF_FLORENCE)];

fn all_addresses(pod: NodeId) -> Vec<IpAddr> {
    let of = |family: &Family| {
        pod_addresses(pod, *family)
            .chain([pod_address(pod, *family)])
            .collect::<Vec<_>>()
    };
    BOTH.iter().flat_map(of).collect()
}

/// A world in which each customer has a pod at the provider.
fn world(gateways: usize) -> World {
    let mut world = World::broker(gateways).expect("a world");
    let pods: Vec<(usize, Vec<IpAddr>)> = PAIRS
        .iter()
        .map(|(customer, pod)| (customer.0, all_addresses(*pod)))
        .collect();
    world.offload_on(OF_ROME.0, &pods).expect("applied");
    world
}

#[test]
fn a_customer_and_its_pods_behind_a_broker_reach_each_other_and_see_whom_they_talk_to() {
    let world = world(1);
    world.serve().expect("servers");
    for (customer, pod) in PAIRS {
        for (from, to) in [(customer, pod), (pod, customer)] {
            for &family in BOTH {
                let seen = seen(&world, from, to, family)
                    .unwrap_or_else(|error| panic!("{from:?} to {to:?}, {family:?}: {error}"));
                assert_eq!(
                    Some(seen),
                    world.seen_from(to.0, from, family),
                    "{from:?} to {to:?}"
                );
            }
        }
        // The nodes of the customer, as their stand-ins, and not as the broker's.
        for &family in BOTH {
            let address = world
                .seen_from(customer.0, pod, family)
                .expect("an address");
            let seen = world
                .node(customer)
                .run(|| traffic::ask(address))
                .expect("ran")
                .expect("an answer");
            assert!(
                world
                    .nodes_seen_from(pod.0, customer.0, family)
                    .contains(&seen),
                "{customer:?} is seen as {seen}"
            );
        }
    }
    for node_id in world.node_ids() {
        assert_eq!(world.apply(node_id).expect("applied"), [], "{node_id:?}");
    }
}

#[test]
fn customers_of_a_broker_reach_neither_each_other_nor_each_others_pods() {
    let world = world(1);
    world.serve().expect("servers");
    for &family in BOTH {
        assert_eq!(
            world.seen_from(ROME.0, FLORENCE, family),
            None,
            "they have no address for each other"
        );
        seen(&world, ROME, OF_ROME, family).expect("this is open");
        seen(&world, OF_FLORENCE, FLORENCE, family).expect("and this");
    }
    let closed = [
        // Pods of the other customer.
        (ROME, OF_FLORENCE),
        (FLORENCE, OF_ROME),
        // The other customer, from a pod at the provider.
        (OF_ROME, FLORENCE),
        (OF_FLORENCE, ROME),
        // The broker's own pods.
        (ROME, BROKER),
        (OF_ROME, BROKER),
    ];
    // All at once, because each try waits for a timeout.
    thread::scope(|scope| {
        for (from, to) in closed {
            for &family in BOTH {
                let (world, address) = (
                    &world,
                    world.seen_from(from.0, to, family).expect("an address"),
                );
                scope.spawn(move || {
                    assert!(
                        is_closed(world, from, address, traffic::PORT),
                        "{from:?} to {to:?}, {family:?}"
                    );
                });
            }
        }
    });
}

#[test]
fn nothing_is_open_behind_a_broker_after_the_pod_is_gone() {
    let mut world = world(1);
    world.serve().expect("servers");
    for &family in BOTH {
        seen(&world, ROME, OF_ROME, family).expect("this is open");
    }
    world
        .offload_on(OF_ROME.0, &[(ROME.0, Vec::new())])
        .expect("applied");
    super::all_closed(&world, ROME, OF_ROME);
    super::all_closed(&world, OF_ROME, ROME);
}

#[test]
fn a_forged_source_does_not_get_through_a_broker() {
    let world = world(1);
    let listener = world.listen(OF_ROME).expect("a socket");
    let heard = |from: NodeId, name: IpAddr, to: IpAddr| {
        world
            .send_as(from, name, (to, traffic::DATAGRAMS).into())
            .expect("said");
        listener.recv(&mut [0; 64]).is_ok()
    };
    for &family in BOTH {
        let at_broker = |of: NodeId| world.seen_from(BROKER.0, of, family).expect("an address");
        // A pod of the broker speaks as a customer.
        world.disable_source_checks(BROKER).expect("set");
        assert!(
            !heard(BROKER, at_broker(ROME), at_broker(OF_ROME)),
            "a pod of the broker as one of the customer, {family:?}"
        );
    }
    // A customer's gateway that translates nothing, and checks nothing, speaks as whoever it likes.
    world.disable_source_checks(ROME).expect("set");
    for table in ["liqo", "liqo_guard"] {
        for family in BOTH {
            world
                .node(ROME)
                .command("nft", &["delete", "table", family.keyword(), table], "")
                .expect("deleted");
        }
    }
    for &family in BOTH {
        let to = world
            .seen_from(ROME.0, OF_ROME, family)
            .expect("an address");
        let at_broker = |of: NodeId| world.seen_from(BROKER.0, of, family).expect("an address");
        traffic::until("it is heard with its own address", || {
            heard(ROME, at_broker(ROME), to)
        });
        for (name, who) in [
            (at_broker(FLORENCE), "another customer"),
            (at_broker(OF_FLORENCE), "a pod at the provider"),
        ] {
            assert!(!heard(ROME, name, to), "a customer as {who}, {family:?}");
        }
        assert!(
            !heard(ROME, pod_address(BROKER, family), to),
            "a customer as a pod of the broker, {family:?}"
        );
    }
}

#[test]
fn a_connection_goes_on_when_its_packets_pass_a_broker_by_and_come_back() {
    let mut world = world(1);
    world.serve().expect("servers");
    let addresses: Vec<IpAddr> = BOTH
        .iter()
        .filter_map(|family| world.seen_from(ROME.0, OF_ROME, *family))
        .collect();
    let talk = |address: &IpAddr| {
        world
            .pod(ROME)
            .run(|| EchoConnection::with(*address))
            .expect("ran")
            .expect("a connection")
    };
    let mut talks: Vec<EchoConnection> = addresses.iter().map(talk).collect();
    talks
        .iter_mut()
        .try_for_each(|talk| talk.exchange(1))
        .expect("through the broker");
    world.set_direct(ROME, OF_ROME, true).expect("applied");
    let before: u64 = world.carried(BROKER.0).iter().sum();
    talks
        .iter_mut()
        .try_for_each(|talk| talk.exchange_many(1 << 20))
        .expect("directly");
    let carried = world.carried(BROKER.0).iter().sum::<u64>() - before;
    assert!(carried < 1 << 20, "the broker carried {carried} bytes");

    // The broker did not see these bytes. What it takes for invalid has addresses of another
    // cluster, and must not pass.
    world.set_direct(ROME, OF_ROME, false).expect("applied");
    talks
        .iter_mut()
        .try_for_each(|talk| talk.say(2))
        .expect("sent");
    for family in BOTH {
        traffic::until("the broker drops it", || {
            let listed = world.node(BROKER).command(
                "nft",
                &["list", "chain", family.keyword(), "liqo", "forward"],
                "",
            );
            let listed = listed.expect("listed");
            let rule = listed
                .lines()
                .find(|line| line.contains("ct state invalid counter"))
                .expect("the rule");
            !rule.contains("counter packets 0 ")
        });
    }
    assert_eq!(
        world.allow_gaps(BROKER, [ROME, OF_ROME]).expect("changed"),
        talks.len()
    );
    assert_eq!(
        world.allow_gaps(BROKER, [ROME, OF_ROME]).expect("listed"),
        0,
        "there is nothing more to change"
    );
    talks
        .iter_mut()
        .try_for_each(|talk| talk.hear(2))
        .expect("it is sent again");
    talks
        .iter_mut()
        .try_for_each(|talk| talk.exchange(3))
        .expect("through the broker again");
}

#[test]
fn on_a_direct_path_a_customer_reaches_its_own_pods_and_only_they_reach_it() {
    let mut world = world(1);
    world.serve().expect("servers");
    world.set_direct(ROME, OF_ROME, true).expect("applied");
    for &family in BOTH {
        for (from, to) in [(ROME, OF_ROME), (OF_ROME, ROME)] {
            let seen = seen(&world, from, to, family).expect("it is open");
            assert_eq!(
                Some(seen),
                world.seen_from(to.0, from, family),
                "{from:?} to {to:?}, {family:?}"
            );
        }
    }
    thread::scope(|scope| {
        for (from, to) in [(ROME, OF_FLORENCE), (OF_FLORENCE, ROME)] {
            for &family in BOTH {
                let (world, address) = (
                    &world,
                    world.seen_from(from.0, to, family).expect("an address"),
                );
                scope.spawn(move || {
                    assert!(
                        is_closed(world, from, address, traffic::PORT),
                        "{from:?} to {to:?}, {family:?}"
                    );
                });
            }
        }
    });
}

#[test]
fn large_packets_pass_a_broker() {
    let world = world(1);
    world.serve().expect("servers");
    let pairs = || {
        [(ROME, OF_ROME), (OF_ROME, ROME)]
            .into_iter()
            .flat_map(|pair| BOTH.iter().map(move |family| (pair, *family)))
    };
    for ((from, to), family) in pairs() {
        let address = world.seen_from(from.0, to, family).expect("an address");
        let came = world
            .pod(from)
            .run(|| traffic::echo_in_the_end(pod_address(from, family), address, 3000))
            .expect("ran");
        assert_eq!(came.ok(), Some(3000), "{from:?} to {to:?}, {family:?}");
    }
    // Streams, also while the two tunnels differ.
    world
        .node(BROKER)
        .ip("link set liqo.tunnel mtu 1300")
        .expect("narrow");
    for ((from, to), family) in pairs() {
        world.forget_path_mtus(from).expect("forgotten");
        let address = world.seen_from(from.0, to, family).expect("an address");
        assert_eq!(
            world
                .pod(from)
                .run(|| traffic::upload(address, 4 << 20))
                .expect("ran")
                .expect("a stream"),
            4 << 20
        );
    }
}

#[test]
fn either_gateway_of_a_broker_passes_connections_on_and_they_survive_the_death_of_one() {
    let mut world = world(2);
    world.serve().expect("servers");
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
    let before = world.carried(BROKER.0);
    let mut talks: Vec<EchoConnection> = talk(ROME, OF_ROME, &world)
        .into_iter()
        .chain(talk(OF_ROME, ROME, &world))
        .collect();
    talks
        .iter_mut()
        .try_for_each(|talk| talk.exchange(1))
        .expect("at first");
    let carried: Vec<u64> = world
        .carried(BROKER.0)
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect();
    assert!(carried.iter().all(|bytes| *bytes > 2000), "{carried:?}");
    world.lose((BROKER.0, 1)).expect("applied");
    talks
        .iter_mut()
        .try_for_each(|talk| talk.exchange(2))
        .expect("after a gateway died");
    world.regain((BROKER.0, 1)).expect("applied");
    talks
        .iter_mut()
        .try_for_each(|talk| talk.exchange(3))
        .expect("after it came back");
}

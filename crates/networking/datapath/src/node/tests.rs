use std::{collections::BTreeSet, net::IpAddr};

use liqo_network_model::{
    Here, PeerMaps, PrefixMap, There,
    fabric::{
        Fabric, FabricGateway, FabricNode as ClusterNode, MacAddress, PeerNetwork, ReachableScope,
    },
    node_plan::{NextHop, Route},
    ruleset::{GUARD, LIMITS},
    spread::Buckets,
};

use super::*;

fn map(pairs: &[(&str, &str)]) -> PrefixMap {
    let parse = |text: &str| text.parse().expect("a prefix");
    PrefixMap::new(
        pairs
            .iter()
            .map(|(here, there)| (Here(parse(here)), There(parse(there)))),
    )
    .expect("a map")
}

fn cluster_node(last: u8, is_gateway: bool) -> ClusterNode {
    ClusterNode {
        addresses: vec![IpAddr::from([172, 18, 0, last])],
        pods: vec![format!("10.244.{last}.0/24").parse().expect("a prefix")],
        mac: MacAddress::from_hash([0, 0, 0, 0, last]),
        gateway: is_gateway.then(|| FabricGateway {
            slot: last,
            number: last.into(),
        }),
    }
}

fn fabric() -> Fabric {
    let maps = PeerMaps {
        exported: map(&[("10.244.0.0/16", "10.245.0.0/16")]),
        imported: map(&[("10.246.0.0/16", "10.244.0.0/16")]),
    };
    Fabric {
        pods: vec!["10.244.0.0/16".parse().expect("a prefix")],
        nodes: [
            ("n1".into(), cluster_node(1, true)),
            ("n2".into(), cluster_node(2, false)),
        ]
        .into(),
        peers: [(
            "a".repeat(32).parse().expect("an ID"),
            PeerNetwork {
                maps,
                reachable: ReachableScope::Everything,
                api_server: None,
                ..PeerNetwork::default()
            },
        )]
        .into(),
        mtu: 1420,
        ..Fabric::default()
    }
}

#[tokio::test]
async fn the_wanted_state_is_applied_and_a_repeat_changes_nothing() {
    for name in ["n1", "n2"] {
        let (kernel, plan) = (FakeKernel::default(), fabric().node_plan(name));
        assert!(
            !kernel
                .node()
                .apply(&plan)
                .await
                .expect("applied")
                .is_empty()
        );
        let state = kernel.state();
        assert_eq!(state.routes, plan.routes.iter().cloned().collect());
        assert_eq!(state.rules, plan.rules.iter().cloned().collect());
        assert_eq!(state.tables.len(), plan.tables.len());
        assert_eq!(state.neighbours.len(), 2);
        assert_eq!(kernel.node().apply(&plan).await.expect("applied"), []);
    }
}

#[tokio::test]
async fn a_change_touches_only_what_differs() {
    let kernel = FakeKernel::default();
    let mut fabric = fabric();
    kernel
        .node()
        .apply(&fabric.node_plan("n2"))
        .await
        .expect("applied");
    // Another node becomes the gateway.
    fabric.nodes.insert("n3".into(), cluster_node(3, true));
    fabric.nodes.insert("n1".into(), cluster_node(1, false));
    let steps = kernel
        .node()
        .apply(&fabric.node_plan("n2"))
        .await
        .expect("applied");
    let count = |is: fn(&KernelStep) -> bool| steps.iter().filter(|step| is(step)).count();
    assert_eq!(
        count(|step| matches!(step, KernelStep::RemoveNeighbour(_))),
        2,
        "{steps:?}"
    );
    assert_eq!(
        count(|step| matches!(step, KernelStep::AddNeighbour(_))),
        2,
        "{steps:?}"
    );
    assert_eq!(
        count(
            |step| matches!(step, KernelStep::PutRoute(route) if matches!(route.next, NextHop::Overlay { .. }))
        ),
        1,
        "{steps:?}"
    );
    // The table names all nodes, because only they may speak in the overlay.
    assert_eq!(
        count(|step| matches!(step, KernelStep::ReplaceTable(_))),
        1,
        "{steps:?}"
    );
    assert_eq!(steps.len(), 6, "{steps:?}");
}

#[tokio::test]
async fn a_node_that_becomes_or_stops_being_the_gateway_translates_connections_again() {
    let kernel = FakeKernel::default();
    let mut fabric = fabric();
    let forgets = |steps: &[KernelStep]| {
        steps
            .iter()
            .any(|step| matches!(step, KernelStep::ForgetConnections(..)))
    };
    // Without tables nothing was translated.
    assert!(!forgets(
        &kernel
            .node()
            .apply(&fabric.node_plan("n1"))
            .await
            .expect("applied")
    ));
    fabric.nodes.insert("n1".into(), cluster_node(1, false));
    fabric.nodes.insert("n2".into(), cluster_node(2, true));
    assert!(forgets(
        &kernel
            .node()
            .apply(&fabric.node_plan("n1"))
            .await
            .expect("applied")
    ));
    fabric.nodes.insert("n3".into(), cluster_node(3, false));
    assert!(!forgets(
        &kernel
            .node()
            .apply(&fabric.node_plan("n1"))
            .await
            .expect("applied")
    ));
    fabric.nodes.insert("n1".into(), cluster_node(1, true));
    let steps = kernel
        .node()
        .apply(&fabric.node_plan("n1"))
        .await
        .expect("applied");
    // It shares the flows with the other gateway and carries half of them.
    let Some(KernelStep::ForgetConnections(prefixes, buckets)) = steps.last() else {
        panic!("{steps:?}")
    };
    assert_eq!(
        (prefixes.as_slice(), buckets.count_ones()),
        (&["10.246.0.0/16".parse().expect("a prefix")][..], 8)
    );
    // The other gateway dies: only the flows that this one did not carry are translated again.
    fabric.nodes.insert("n2".into(), cluster_node(2, false));
    let steps = kernel
        .node()
        .apply(&fabric.node_plan("n1"))
        .await
        .expect("applied");
    assert!(
        matches!(steps.last(), Some(KernelStep::ForgetConnections(_, others)) if others ^ buckets == Buckets::MAX),
        "{steps:?}"
    );
}

#[tokio::test]
async fn a_new_mtu_interrupts_nobody() {
    let kernel = FakeKernel::default();
    let mut fabric = fabric();
    kernel
        .node()
        .apply(&fabric.node_plan("n2"))
        .await
        .expect("applied");
    let peer = fabric.peers.values_mut().next().expect("a peer");
    peer.mtus = [("10.246.0.0/16".parse().expect("a prefix"), 1280)].into();
    let steps = kernel
        .node()
        .apply(&fabric.node_plan("n2"))
        .await
        .expect("applied");
    assert!(matches!(&steps[..], [KernelStep::PutRoute(_)]), "{steps:?}");
    fabric.mtu = 1300;
    let steps = kernel
        .node()
        .apply(&fabric.node_plan("n2"))
        .await
        .expect("applied");
    assert!(
        steps.contains(&KernelStep::ResizeOverlay(1300)),
        "{steps:?}"
    );
    let replaces = |step: &KernelStep| {
        matches!(
            step,
            KernelStep::RemoveOverlay | KernelStep::CreateOverlay(_) | KernelStep::AddNeighbour(_)
        )
    };
    assert!(!steps.iter().any(replaces), "{steps:?}");
    assert_eq!(
        kernel
            .node()
            .apply(&fabric.node_plan("n2"))
            .await
            .expect("applied"),
        []
    );
}

#[tokio::test]
async fn an_overlay_with_a_new_address_gets_its_routes_back() {
    let kernel = FakeKernel::default();
    let mut fabric = fabric();
    kernel
        .node()
        .apply(&fabric.node_plan("n2"))
        .await
        .expect("applied");
    fabric.nodes.insert(
        "n2".into(),
        ClusterNode {
            addresses: vec![IpAddr::from([172, 18, 0, 22])],
            ..cluster_node(2, false)
        },
    );
    let plan = fabric.node_plan("n2");
    kernel.node().apply(&plan).await.expect("applied");
    assert_eq!(kernel.state().routes, plan.routes.iter().cloned().collect());
    assert_eq!(kernel.node().apply(&plan).await.expect("applied"), []);
}

#[tokio::test]
async fn after_a_reboot_everything_comes_back() {
    let (kernel, plan) = (FakeKernel::default(), fabric().node_plan("n1"));
    kernel.node().apply(&plan).await.expect("applied");
    let before = kernel.state();
    kernel.reboot();
    kernel.node().apply(&plan).await.expect("applied");
    assert_eq!(kernel.state(), before);
}

#[tokio::test]
async fn nothing_is_left_when_nothing_is_wanted() {
    let kernel = FakeKernel::default();
    kernel
        .node()
        .apply(&fabric().node_plan("n1"))
        .await
        .expect("applied");
    let steps = kernel.node().clear().await.expect("cleared");
    assert_eq!(kernel.state(), KernelState::default());
    // Routes go before the tables that guard them.
    let last_route = steps
        .iter()
        .rposition(|step| matches!(step, KernelStep::RemoveRoute(_)))
        .expect("routes went");
    let guard = steps
        .iter()
        .position(|step| matches!(step, KernelStep::RemoveTable(table) if table.name == GUARD));
    assert_eq!(guard, Some(steps.len() - 1));
    assert!(last_route < steps.len() - 2);
}

#[test]
fn the_guard_comes_before_any_route() {
    let steps = steps_between(&fabric().node_plan("n1"), &KernelState::default());
    let first_route = steps
        .iter()
        .position(|step| matches!(step, KernelStep::PutRoute(_)))
        .expect("routes come");
    assert!(
        matches!(&steps[0], KernelStep::ReplaceTable(table) if table.name == GUARD),
        "{steps:?}"
    );
    assert!(
        steps
            .iter()
            .skip(first_route)
            .all(|step| !matches!(step, KernelStep::ReplaceTable(_)))
    );
}

#[tokio::test]
async fn without_the_tunnels_device_everything_else_is_applied() {
    let kernel = FakeKernel::default();
    kernel.lose_tunnel();
    let plan = fabric().node_plan("n1");
    assert!(matches!(
        kernel.node().apply(&plan).await,
        Err(NodeError::NoDevice { .. })
    ));
    let state = kernel.state();
    assert_eq!(state.rules.len(), plan.rules.len());
    assert!(
        state
            .routes
            .iter()
            .any(|route| route.next == NextHop::Unreachable)
    );
    assert!(state.routes.iter().any(|route| route.table.is_some()));
}

#[tokio::test]
async fn a_kernel_that_cannot_limit_connections_carries_packets() {
    let kernel = FakeKernel::default();
    kernel.lose_limits();
    let plan = fabric().node_plan("n1");
    assert!(plan.tables.iter().any(|table| table.name == LIMITS));
    kernel.node().apply(&plan).await.expect("applied");
    assert_eq!(kernel.state().routes, plan.routes.iter().cloned().collect());
    assert_eq!(
        kernel.node().apply(&plan).await.expect("applied"),
        [],
        "what is refused is no change"
    );
}

#[tokio::test]
async fn a_route_that_the_kernel_refuses_holds_up_no_other() {
    let kernel = FakeKernel::default();
    let plan = fabric().node_plan("n1");
    let other_node: ipnet::IpNet = "172.18.0.2/32".parse().expect("a prefix");
    kernel.refuse(other_node);
    assert!(matches!(
        kernel.node().apply(&plan).await,
        Err(NodeError::Change { .. })
    ));
    let state = kernel.state();
    let wanted: BTreeSet<Route> = plan
        .routes
        .iter()
        .filter(|route| route.destination != other_node)
        .cloned()
        .collect();
    assert_eq!(
        (state.routes, state.rules.len()),
        (wanted, plan.rules.len())
    );
}

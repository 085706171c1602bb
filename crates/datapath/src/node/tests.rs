use std::net::IpAddr;

use liqo_network::{
    Here, PeerMaps, PrefixMap, There,
    plan::{Fabric, Gateway, Mac, Node as ClusterNode, Open, Peer},
};

use super::*;

fn map(pairs: &[(&str, &str)]) -> PrefixMap {
    let parse = |text: &str| text.parse().expect("a prefix");
    PrefixMap::new(pairs.iter().map(|(here, there)| (Here(parse(here)), There(parse(there))))).expect("a map")
}

fn cluster_node(last: u8, is_gateway: bool) -> ClusterNode {
    ClusterNode {
        addresses: vec![IpAddr::from([172, 18, 0, last])],
        pods: vec![format!("10.244.{last}.0/24").parse().expect("a prefix")],
        mac: Mac::of([0, 0, 0, 0, last]),
        gateway: is_gateway.then(|| Gateway { slot: last, number: last.into() }),
    }
}

fn fabric() -> Fabric {
    let maps =
        PeerMaps { exported: map(&[("10.244.0.0/16", "10.245.0.0/16")]), imported: map(&[("10.246.0.0/16", "10.244.0.0/16")]) };
    Fabric {
        pods: vec!["10.244.0.0/16".parse().expect("a prefix")],
        nodes: [("n1".into(), cluster_node(1, true)), ("n2".into(), cluster_node(2, false))].into(),
        peers: [("a".repeat(32).parse().expect("an ID"), Peer { maps, open: Open::Everything, api_server: false })].into(),
        mtu: 1420,
        ..Fabric::default()
    }
}

#[tokio::test]
async fn what_is_wanted_is_there_and_a_repeat_changes_nothing() {
    for name in ["n1", "n2"] {
        let (kernel, plan) = (FakeKernel::default(), fabric().plan(name));
        assert!(!kernel.node().apply(&plan).await.expect("applied").is_empty());
        let holds = kernel.holds();
        assert_eq!(holds.routes, plan.routes.iter().cloned().collect());
        assert_eq!(holds.rules, plan.rules.iter().cloned().collect());
        assert_eq!(holds.tables.len(), plan.tables.len());
        assert_eq!(holds.entries.len(), 2);
        assert_eq!(kernel.node().apply(&plan).await.expect("applied"), []);
    }
}

#[tokio::test]
async fn a_change_touches_only_what_differs() {
    let kernel = FakeKernel::default();
    let mut fabric = fabric();
    kernel.node().apply(&fabric.plan("n2")).await.expect("applied");
    // Another gateway takes over.
    fabric.nodes.insert("n3".into(), cluster_node(3, true));
    fabric.nodes.insert("n1".into(), cluster_node(1, false));
    let steps = kernel.node().apply(&fabric.plan("n2")).await.expect("applied");
    let count = |is: fn(&Step) -> bool| steps.iter().filter(|step| is(step)).count();
    assert_eq!(count(|step| matches!(step, Step::RemoveEntry(_))), 2, "{steps:?}");
    assert_eq!(count(|step| matches!(step, Step::AddEntry(_))), 2, "{steps:?}");
    assert_eq!(count(|step| matches!(step, Step::PutRoute(route) if matches!(route.way, Way::Overlay { .. }))), 1, "{steps:?}");
    // The table names all nodes, whose overlay is listened to.
    assert_eq!(count(|step| matches!(step, Step::ReplaceTable(_))), 1, "{steps:?}");
    assert_eq!(steps.len(), 6, "{steps:?}");
}

#[tokio::test]
async fn a_node_that_becomes_the_gateway_or_is_it_no_more_translates_connections_anew() {
    let kernel = FakeKernel::default();
    let mut fabric = fabric();
    let forgets = |steps: &[Step]| steps.iter().any(|step| matches!(step, Step::ForgetConnections(..)));
    // Before there were tables nothing was translated.
    assert!(!forgets(&kernel.node().apply(&fabric.plan("n1")).await.expect("applied")));
    fabric.nodes.insert("n1".into(), cluster_node(1, false));
    fabric.nodes.insert("n2".into(), cluster_node(2, true));
    assert!(forgets(&kernel.node().apply(&fabric.plan("n1")).await.expect("applied")));
    fabric.nodes.insert("n3".into(), cluster_node(3, false));
    assert!(!forgets(&kernel.node().apply(&fabric.plan("n1")).await.expect("applied")));
    fabric.nodes.insert("n1".into(), cluster_node(1, true));
    let steps = kernel.node().apply(&fabric.plan("n1")).await.expect("applied");
    // It shares with the other one, and carries half.
    let Some(Step::ForgetConnections(prefixes, buckets)) = steps.last() else { panic!("{steps:?}") };
    assert_eq!((prefixes.as_slice(), buckets.count_ones()), (&["10.246.0.0/16".parse().expect("a prefix")][..], 8));
    // The other one dies: what this one did not carry yet is translated anew, and nothing else.
    fabric.nodes.insert("n2".into(), cluster_node(2, false));
    let steps = kernel.node().apply(&fabric.plan("n1")).await.expect("applied");
    assert!(matches!(steps.last(), Some(Step::ForgetConnections(_, others)) if others ^ buckets == Buckets::MAX), "{steps:?}");
}

#[tokio::test]
async fn another_mtu_interrupts_nobody() {
    let kernel = FakeKernel::default();
    let mut fabric = fabric();
    kernel.node().apply(&fabric.plan("n2")).await.expect("applied");
    fabric.mtu = 1300;
    let steps = kernel.node().apply(&fabric.plan("n2")).await.expect("applied");
    assert!(steps.contains(&Step::ResizeOverlay(1300)), "{steps:?}");
    let replaces = |step: &Step| matches!(step, Step::RemoveOverlay | Step::MakeOverlay(_) | Step::AddEntry(_));
    assert!(!steps.iter().any(replaces), "{steps:?}");
    assert_eq!(kernel.node().apply(&fabric.plan("n2")).await.expect("applied"), []);
}

#[tokio::test]
async fn an_overlay_that_moves_takes_its_routes_along() {
    let kernel = FakeKernel::default();
    let mut fabric = fabric();
    kernel.node().apply(&fabric.plan("n2")).await.expect("applied");
    fabric.nodes.insert("n2".into(), ClusterNode { addresses: vec![IpAddr::from([172, 18, 0, 22])], ..cluster_node(2, false) });
    let plan = fabric.plan("n2");
    kernel.node().apply(&plan).await.expect("applied");
    assert_eq!(kernel.holds().routes, plan.routes.iter().cloned().collect());
    assert_eq!(kernel.node().apply(&plan).await.expect("applied"), []);
}

#[tokio::test]
async fn after_a_reboot_everything_comes_back() {
    let (kernel, plan) = (FakeKernel::default(), fabric().plan("n1"));
    kernel.node().apply(&plan).await.expect("applied");
    let before = kernel.holds();
    kernel.reboot();
    kernel.node().apply(&plan).await.expect("applied");
    assert_eq!(kernel.holds(), before);
}

#[tokio::test]
async fn nothing_is_left_when_nothing_is_wanted() {
    let kernel = FakeKernel::default();
    kernel.node().apply(&fabric().plan("n1")).await.expect("applied");
    let steps = kernel.node().clear().await.expect("cleared");
    assert_eq!(kernel.holds(), Present::default());
    // Ways go before what guards them.
    let last_route = steps.iter().rposition(|step| matches!(step, Step::RemoveRoute(_))).expect("routes went");
    let guard = steps.iter().position(|step| matches!(step, Step::RemoveTable(table) if table.name == GUARD));
    assert_eq!(guard, Some(steps.len() - 1));
    assert!(last_route < steps.len() - 2);
}

#[test]
fn the_guard_stands_before_there_is_a_way() {
    let steps = steps(&fabric().plan("n1"), &Present::default());
    let first_route = steps.iter().position(|step| matches!(step, Step::PutRoute(_))).expect("routes come");
    assert!(matches!(&steps[0], Step::ReplaceTable(table) if table.name == GUARD), "{steps:?}");
    assert!(steps.iter().skip(first_route).all(|step| !matches!(step, Step::ReplaceTable(_))));
}

#[tokio::test]
async fn without_the_tunnels_device_everything_else_is_done() {
    let kernel = FakeKernel::default();
    kernel.lose_tunnel();
    let plan = fabric().plan("n1");
    assert!(matches!(kernel.node().apply(&plan).await, Err(Error::NoDevice { .. })));
    let holds = kernel.holds();
    assert_eq!(holds.rules.len(), plan.rules.len());
    assert!(holds.routes.iter().any(|route| route.way == Way::Unreachable));
    assert!(holds.routes.iter().any(|route| route.table.is_some()));
}

#[tokio::test]
async fn one_route_that_the_kernel_does_not_take_holds_up_no_other() {
    let kernel = FakeKernel::default();
    let plan = fabric().plan("n1");
    let other_node: ipnet::IpNet = "172.18.0.2/32".parse().expect("a prefix");
    kernel.refuse(other_node);
    assert!(matches!(kernel.node().apply(&plan).await, Err(Error::Change { .. })));
    let holds = kernel.holds();
    let wanted: BTreeSet<Route> = plan.routes.iter().filter(|route| route.destination != other_node).cloned().collect();
    assert_eq!((holds.routes, holds.rules.len()), (wanted, plan.rules.len()));
}

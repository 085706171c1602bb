//! Pools of some nodes, and pods outside of them.

use super::*;

#[test]
fn nodes_that_two_policies_lend_are_not_lent_twice() {
    let gpus = json!({ "percentage": 100, "source": { "nodes": { "selectors": [{ "matchLabels": { "gpu": "yes" } }] } } });
    let policies = [
        ("default", 0, json!({ "provide": { "percentage": 100 } })),
        ("gpus", 1, rome_only(&gpus)),
    ];
    let nodes = milan().node("g", "cpu=6, nvidia.com/gpu=1", &[("gpu", "yes")]);
    let snapshot = nodes.asks(ROME, "").asks(TURIN, "").under(&policies);
    let expected = [
        write(ROME, "cpu=3, nvidia.com/gpu=1"),
        write(TURIN, "cpu=13, nvidia.com/gpu=0, pods=10"),
    ];
    assert_eq!(snapshot.writes(), expected);
    let specs: Vec<_> = snapshot
        .plan()
        .writes
        .into_iter()
        .map(|write| write.spec.node_selector.is_some())
        .collect();
    assert_eq!(specs, [true, false]);
}

/// Everybody may use all nodes, except that rome may only use those with a GPU: one with 6 cpu,
/// next to the one with 10.
fn gpus_for_rome() -> ProviderSnapshot {
    let gpus = json!({ "percentage": 100, "source": { "nodes": { "selectors": [{ "matchLabels": { "gpu": "yes" } }] } } });
    let policies = [
        ("default", 0, json!({ "provide": { "percentage": 100 } })),
        ("gpus", 1, rome_only(&gpus)),
    ];
    milan()
        .node("g", "cpu=6", &[("gpu", "yes")])
        .asks(ROME, "")
        .asks(TURIN, "")
        .under(&policies)
}

/// A pod of turin, on a node or waiting for one.
fn turins_pod(node: Option<&str>, requests: &str) -> PodUsage {
    let owner = Some(owner("mapped-2", TURIN, DEFAULT_POOL));
    PodUsage {
        node: node.map(str::to_owned),
        resources: list(requests).into(),
        owner,
        waits_for_node: node.is_none(),
        ..PodUsage::default()
    }
}

#[test]
fn waiting_pods_change_no_offer_as_long_as_they_fit_into_their_own() {
    let mut snapshot = gpus_for_rome();
    let idle = [write(ROME, "cpu=3"), write(TURIN, "cpu=13, pods=10")];
    assert_eq!(snapshot.writes(), idle);
    snapshot.add(turins_pod(None, "cpu=13, pods=1"));
    assert_eq!(snapshot.writes(), idle);
    snapshot.pods = Arc::default();
    snapshot.add(turins_pod(Some("a"), "cpu=9, pods=1"));
    snapshot.add(turins_pod(None, "cpu=4, pods=1"));
    assert_eq!(snapshot.writes(), idle);
}

#[test]
fn a_consumer_that_uses_more_than_its_share_of_some_nodes_gets_less_of_the_others() {
    let mut snapshot = gpus_for_rome();
    snapshot.add(turins_pod(Some("g"), "cpu=5"));
    assert_eq!(
        snapshot.writes(),
        [write(ROME, "cpu=1"), write(TURIN, "cpu=13, pods=10")]
    );
    // If another consumer can use what turin gives up, everybody gets its share, wherever turin's
    // pods run.
    let mut snapshot = gpus_for_rome().asks(5, "");
    let shares = |snapshot: &ProviderSnapshot| {
        snapshot
            .writes()
            .into_iter()
            .map(|(_, hard)| hard)
            .collect::<Vec<_>>()
    };
    let fair = ["cpu=2", "cpu=7, pods=5", "cpu=7, pods=5"];
    assert_eq!(shares(&snapshot), fair);
    snapshot.add(turins_pod(Some("g"), "cpu=4"));
    assert_eq!(shares(&snapshot), fair);
}

#[test]
fn a_group_of_nodes_is_a_pool_and_its_pods_are_charged_to_it() {
    let nodes =
        milan()
            .node("b", "cpu=4", &[("zone", "east")])
            .node("c", "cpu=8", &[("zone", "west")]);
    let mut snapshot = nodes.under(&by_zone()).asks(ROME, "");
    let offer = |pool: &str, hard: &str| (cluster(ROME), pool.to_owned(), hard.to_owned());
    assert_eq!(
        snapshot.pools(),
        [offer("east", "cpu=4"), offer("west", "cpu=8")]
    );
    snapshot.add(romes_pod("west", "c", "cpu=6"));
    assert_eq!(
        snapshot.pools(),
        [offer("east", "cpu=4"), offer("west", "cpu=8")]
    );
}

#[test]
fn a_pod_outside_its_pool_occupies_the_node_that_it_runs_on() {
    let nodes =
        milan()
            .node("b", "cpu=4", &[("zone", "east")])
            .node("c", "cpu=8", &[("zone", "west")]);
    let mut snapshot = nodes.under(&by_zone()).asks(ROME, "").asks(TURIN, "");
    snapshot.add(romes_pod("east", "c", "cpu=6"));
    let of = |consumer: u8, pool: &str, hard: &str| {
        (cluster(consumer), pool.to_owned(), hard.to_owned())
    };
    // West has 2 left for both. In the east rome uses more than exists, so turin gets nothing.
    let expected = [
        of(ROME, "east", "cpu=6"),
        of(ROME, "west", "cpu=1"),
        of(TURIN, "west", "cpu=1"),
    ];
    assert_eq!(snapshot.pools(), expected);
}

#[test]
fn no_consumer_is_offered_more_pools_than_it_accepts() {
    let by_node = [(
        "default",
        0,
        json!({ "provide": { "percentage": 100, "granularity": { "by": "Node" } } }),
    )];
    let snapshot = (0..30).fold(milan(), |snapshot, number| {
        snapshot.node(&format!("node-{number}"), "cpu=1", &[])
    });
    assert_eq!(snapshot.under(&by_node).asks(ROME, "").pools().len(), 16);
}

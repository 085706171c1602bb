//! What offers say of single nodes.

use liqo_api::LargestPods;

use super::*;

impl ProviderSnapshot {
    fn with_nodes(mut self, nodes: &[(&str, &str)]) -> Self {
        let node = |allocatable: &str| LocalNode {
            eligible: true,
            allocatable: list(allocatable),
            ..LocalNode::default()
        };
        self.nodes = nodes
            .iter()
            .map(|(name, allocatable)| (Key::new("", *name), node(allocatable).into()))
            .collect();
        self
    }

    fn on(mut self, node: &str, consumer: Option<u8>, requests: &str) -> Self {
        let owner =
            consumer.map(|consumer| owner(&format!("mapped-{consumer}"), consumer, DEFAULT_POOL));
        let node = Some(node.to_owned()).filter(|node| !node.is_empty());
        self.add(PodUsage {
            node,
            resources: list(requests).into(),
            owner,
            ..PodUsage::default()
        });
        self
    }

    fn said_to(&self, consumer: u8) -> String {
        said(&self.offer(consumer, DEFAULT_POOL).unwrap().largest_pods)
    }
}

fn said(largest: &LargestPods) -> String {
    largest
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

const TWO: [(&str, &str); 2] = [
    ("a", "cpu=1719m, memory=8Gi, pods=110"),
    ("b", "cpu=1719m, memory=2Gi, pods=110"),
];

#[test]
fn an_offer_says_what_the_nodes_with_the_most_room_have_whoever_uses_the_rest() {
    let milan = milan()
        .with_nodes(&TWO)
        .asks(ROME, "")
        .asks(TURIN, "")
        .settled();
    assert_eq!(
        milan.said_to(ROME),
        "cpu=1719m, memory=5Gi, pods=1",
        "no more than the offer has"
    );
    let used = milan
        .on("a", Some(ROME), "cpu=1100m, pods=1")
        .on("b", None, "memory=1Gi, pods=1")
        .settled();
    for consumer in [ROME, TURIN] {
        assert!(
            used.said_to(consumer).contains("cpu=619m, memory="),
            "{}",
            used.said_to(consumer)
        );
        assert!(
            used.said_to(consumer)
                .contains("cpu=1719m, memory=1Gi, pods=1"),
            "{}",
            used.said_to(consumer)
        );
    }
    let waiting = used
        .clone()
        .on("", Some(ROME), "cpu=1100m, pods=1")
        .settled();
    assert_eq!(
        waiting.said_to(ROME),
        used.said_to(ROME),
        "nobody knows which node a pod without one gets"
    );
}

#[test]
fn it_is_rewritten_when_a_node_has_more_or_much_less() {
    let before = milan()
        .with_nodes(&[("a", "cpu=10, pods=110")])
        .asks(ROME, "")
        .on("a", None, "cpu=5, pods=9")
        .settled();
    let writes = |snapshot: ProviderSnapshot| {
        snapshot
            .plan()
            .writes
            .into_iter()
            .map(|write| said(&write.spec.largest_pods))
            .collect::<Vec<_>>()
    };
    assert_eq!(before.said_to(ROME), "cpu=5, pods=1");
    assert!(writes(before.clone().on("a", Some(ROME), "cpu=250m, pods=1")).is_empty());
    let mut less = before.on("a", Some(ROME), "cpu=251m, pods=1").settled();
    assert_eq!(less.said_to(ROME), "cpu=4749m, pods=1");
    Arc::make_mut(&mut less.pods).retain(|pod| pod.owner.is_none());
    assert_eq!(
        writes(less.on("a", Some(ROME), "cpu=250m, pods=1")),
        ["cpu=4750m, pods=1"],
        "a pod that waits may fit now"
    );
}

#[test]
fn a_burst_of_pods_causes_a_write_every_ten_seconds() {
    let mut milan = milan()
        .with_nodes(&[("a", "cpu=1000, pods=2000")])
        .asks(ROME, "")
        .settled();
    let start = Instant::now();
    let mut writes = 0;
    for number in 0..1000_u64 {
        milan = milan.on("a", Some(ROME), "cpu=1, pods=1");
        let now = start + Duration::from_millis(30) * u32::try_from(number).unwrap();
        milan
            .recent_writes
            .retain(|_, write| now.duration_since(write.at) < publish::MIN_REWRITE_INTERVAL);
        let plan = decide_offers(&milan, now);
        for write in &plan.writes {
            writes += 1;
            let hard = write.spec.resource_quota.hard.clone();
            milan.recent_writes.insert(
                (write.namespace_uid.clone(), write.spec.pool.clone()),
                RecentWrite {
                    at: now,
                    hard,
                    prices: None,
                    is_early: false,
                },
            );
        }
        milan = milan.after(plan);
    }
    assert!((1..=4).contains(&writes), "{writes}");
}

#[test]
fn nothing_is_said_of_nodes_that_a_plugin_may_count_on() {
    let source = json!({ "provide": { "source": { "plugin": { "address": "plugin:7000" } } } });
    let mut milan = milan().asks(ROME, "").under(&[("default", 0, source)]);
    let pools = Some([(DEFAULT_POOL.to_owned(), list("cpu=64, pods=10"))].into());
    milan.plugin_answers.insert(
        cluster(ROME),
        PluginAnswer {
            pools,
            ..PluginAnswer::default()
        },
    );
    assert_eq!(milan.settled().said_to(ROME), "");
}

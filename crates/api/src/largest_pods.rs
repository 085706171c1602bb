//! The largest pods that single nodes of a pool can take now. A pool may have much left in sum
//! although no node has much left.

use std::cmp::Reverse;

use liqo_quantity::{Quantity, ResourceList, Shortage};
use serde::{Deserialize, Serialize};

/// Maximum number of nodes that [`LargestPods`] describes.
pub const MAX_LARGEST_PODS: usize = 4;

/// The amounts that some nodes of a pool have free: no other node has more of everything. Empty if
/// nothing is known.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(transparent)]
pub struct LargestPods(Vec<ResourceList>);

/// Free amounts of nodes, without those that have no more of anything than another one.
///
/// A list of amounts within a list is still within it after both are limited to the same maximum.
/// So this is computed once for all consumers of a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FreeNodes(Vec<ResourceList>);

impl FreeNodes {
    /// Adds a node with these free amounts.
    pub fn add(&mut self, mut free: ResourceList) {
        // One pod is a candidate: how many more the node could have does not matter.
        if free.contains(PODS) {
            free.insert(PODS, free.get(PODS).min(Quantity::from_units(1)));
        }
        if !self.0.iter().any(|known| is_within(&free, known, 0)) {
            self.0.retain(|known| !is_within(known, &free, 0));
            self.0.push(free);
        }
    }

    /// Selects the nodes to describe, each limited to `most`: those with the most of each extended
    /// resource, of cpu and of memory, then the most balanced one, then those with the most of the
    /// other resources, then any. If this is more than [`MAX_LARGEST_PODS`] before the balanced
    /// one, nothing is said: a pod for a node that is left out would find none.
    pub fn select_largest(&self, most: &ResourceList) -> LargestPods {
        let Self(mut nodes) = self.0.iter().map(|free| free.min(most)).collect();
        nodes.sort_by(|one, other| other.iter().cmp(one.iter()));
        let all: ResourceList = nodes
            .iter()
            .fold(ResourceList::new(), |all, node| all.max(node));
        let important = all
            .names()
            .filter(|name| name.contains('/'))
            .chain(["cpu", "memory"]);
        let mut chosen: Vec<usize> = Vec::new();
        for name in important {
            choose_node(&mut chosen, &nodes, |node| node.get(name).nanos());
        }
        if chosen.len() > MAX_LARGEST_PODS {
            return LargestPods::default();
        }
        choose_node(&mut chosen, &nodes, |node| {
            ["cpu", "memory"]
                .map(|name| millionths(node.get(name), all.get(name)))
                .into_iter()
                .min()
        });
        for name in all.names() {
            choose_node(&mut chosen, &nodes, |node| node.get(name).nanos());
        }
        let others: Vec<usize> = (0..nodes.len())
            .filter(|index| !chosen.contains(index))
            .collect();
        chosen.extend(others);
        chosen.truncate(MAX_LARGEST_PODS);
        chosen.sort_unstable();
        LargestPods(
            chosen
                .into_iter()
                .filter_map(|index| nodes.get(index).cloned())
                .collect(),
        )
    }
}

impl FromIterator<ResourceList> for FreeNodes {
    fn from_iter<I: IntoIterator<Item = ResourceList>>(nodes: I) -> Self {
        let mut all = Self::default();
        for free in nodes {
            all.add(free);
        }
        all
    }
}

const PODS: &str = "pods";

/// Adds the node with the most of something. Of equal nodes, one that is chosen already.
fn choose_node<K: Ord>(
    chosen: &mut Vec<usize>,
    nodes: &[ResourceList],
    most_of: impl Fn(&ResourceList) -> K,
) {
    let best = nodes
        .iter()
        .enumerate()
        .max_by_key(|(at, node)| (most_of(node), chosen.contains(at), Reverse(*at)));
    chosen.extend(best.map(|(at, _)| at).filter(|best| !chosen.contains(best)));
}

fn millionths(part: Quantity, whole: Quantity) -> i128 {
    part.nanos().saturating_mul(1_000_000) / whole.nanos().max(1)
}

/// Orders the shortages of nodes: the node with the least comes first.
fn missing_rank(short: &[Shortage]) -> (usize, Option<Quantity>) {
    (short.len(), short.first().map(Shortage::missing_amount))
}

/// Whether no amount of `one` exceeds that of `other` by more than `percent`.
fn is_within(one: &ResourceList, other: &ResourceList, percent: u32) -> bool {
    one.iter().all(|(name, amount)| {
        let limit = other.get(name);
        amount <= limit || (!limit.is_zero() && !amount.differs_by_more_than(limit, percent))
    })
}

impl LargestPods {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The amounts of each node.
    pub fn iter(&self) -> impl Iterator<Item = &ResourceList> {
        self.0.iter()
    }

    /// Whether there are more nodes than allowed.
    pub fn is_too_long(&self) -> bool {
        self.0.len() > MAX_LARGEST_PODS
    }

    /// The same with other amounts.
    #[must_use]
    pub fn map(&self, amounts: impl Fn(&ResourceList) -> ResourceList) -> Self {
        Self(self.0.iter().map(amounts).collect())
    }

    /// Whether one of the nodes has room for a pod with these requests; otherwise the shortages at
    /// the node where least is missing. If nothing is known, there is room.
    pub fn has_room(&self, requests: &ResourceList) -> Result<(), Vec<Shortage>> {
        let mut nearest: Option<Vec<Shortage>> = None;
        for node in &self.0 {
            let Err(short) = requests.fits_in(node) else {
                return Ok(());
            };
            if nearest
                .as_ref()
                .is_none_or(|nearest| missing_rank(&short) < missing_rank(nearest))
            {
                nearest = Some(short);
            }
        }
        nearest.map_or(Ok(()), Err)
    }

    /// The same, as far as it is certain. If there are as many lists as allowed, nodes may be
    /// missing, but those with the most of each extended resource, of cpu and of memory are there.
    pub fn may_have_room(&self, requests: &ResourceList) -> Result<(), Vec<Shortage>> {
        if self.0.len() < MAX_LARGEST_PODS {
            return self.has_room(requests);
        }
        let all: ResourceList = self
            .0
            .iter()
            .fold(ResourceList::new(), |all, node| all.max(node));
        let certain = requests
            .iter()
            .filter(|(name, _)| name.contains('/') || ["cpu", "memory", PODS].contains(name));
        let requests: ResourceList = certain.collect();
        requests.fits_in(&all)
    }

    /// Whether a pod may have room now that had none `before`.
    pub fn has_grown(&self, before: &Self) -> bool {
        !before.0.is_empty()
            && (self.0.is_empty() || !self.0.iter().all(|one| before.has_within(one, 0)))
    }

    /// Whether an offer that says this need not be rewritten when its nodes have `now`. It never
    /// says less than there is, because pods would be refused for which there is room; it may say
    /// `percent` more.
    pub fn still_holds(&self, now: &Self, percent: u32) -> bool {
        now.0.iter().all(|one| self.has_within(one, 0))
            && self.0.iter().all(|one| now.has_within(one, percent))
    }

    fn has_within(&self, wanted: &ResourceList, percent: u32) -> bool {
        self.0.iter().any(|one| is_within(wanted, one, percent))
    }
}

/// For people: `cpu: 1157m short (2300m requested, 1143m available) on the largest node`.
pub fn short_on_largest_node(short: &[Shortage]) -> String {
    let each: Vec<String> = short.iter().map(ToString::to_string).collect();
    format!("{} on the largest node", each.join(", "))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn list(text: &str) -> ResourceList {
        text.split(' ')
            .map(|part| part.split_once('=').unwrap())
            .map(|(name, amount)| (name, amount.parse().unwrap()))
            .collect()
    }

    fn free(nodes: &[&str]) -> FreeNodes {
        nodes.iter().map(|node| list(node)).collect()
    }

    const EVERYTHING: &str =
        "cpu=1000 memory=1000 pods=1000 a/gpu=9 b/gpu=9 c/gpu=9 d/gpu=9 e/gpu=9";

    fn largest(nodes: &[&str]) -> Vec<String> {
        free(nodes)
            .select_largest(&list(EVERYTHING))
            .iter()
            .map(|one| one.to_string().replace(", ", " "))
            .collect()
    }

    #[test]
    fn a_node_with_less_of_everything_than_another_one_does_not_matter() {
        assert_eq!(
            largest(&[
                "cpu=4 memory=8",
                "cpu=1 memory=2",
                "cpu=4 memory=8",
                "cpu=4 memory=7"
            ]),
            ["cpu=4 memory=8"]
        );
        assert_eq!(
            largest(&["cpu=4 memory=1", "cpu=1 memory=8"]),
            ["cpu=4 memory=1", "cpu=1 memory=8"]
        );
        assert_eq!(largest(&[]), Vec::<String>::new());
    }

    #[test]
    fn pods_that_had_no_room_are_looked_at_again_if_a_node_has_more_of_something() {
        let said = |nodes: &[&str]| free(nodes).select_largest(&list(EVERYTHING));
        let (small, large, nothing) = (
            said(&["cpu=1 memory=1"]),
            said(&["cpu=2 memory=1"]),
            LargestPods::default(),
        );
        assert!(large.has_grown(&small) && !small.has_grown(&large) && !small.has_grown(&small));
        assert!(
            nothing.has_grown(&small) && !small.has_grown(&nothing),
            "where nothing is said, there was room"
        );
    }

    #[test]
    fn a_node_counts_as_able_to_take_one_pod_however_many_it_could_have() {
        assert_eq!(
            largest(&["cpu=1 pods=110", "cpu=2 pods=1", "cpu=8 pods=0"]),
            ["cpu=8 pods=0", "cpu=2 pods=1"]
        );
    }

    #[test]
    fn of_many_nodes_those_with_the_most_of_something_are_named_and_a_balanced_one() {
        let many = [
            "cpu=9 memory=1",
            "cpu=8 memory=2",
            "cpu=6 memory=6",
            "cpu=5 memory=7",
            "cpu=2 memory=8",
            "cpu=1 memory=9",
        ];
        assert_eq!(
            largest(&many),
            [
                "cpu=9 memory=1",
                "cpu=8 memory=2",
                "cpu=6 memory=6",
                "cpu=1 memory=9"
            ]
        );
        let with_gpu = [
            &many[..],
            &["a/gpu=1 cpu=1 memory=1", "a/gpu=2 cpu=1 memory=1"],
        ]
        .concat();
        let expected = [
            "a/gpu=2 cpu=1 memory=1",
            "cpu=9 memory=1",
            "cpu=6 memory=6",
            "cpu=1 memory=9",
        ];
        let sorted = |all: Vec<String>| {
            all.into_iter()
                .collect::<std::collections::BTreeSet<String>>()
        };
        assert_eq!(
            sorted(largest(&with_gpu)),
            sorted(expected.map(str::to_owned).into())
        );
    }

    #[test]
    fn where_not_every_rare_resource_can_be_named_nothing_is_said() {
        let rare: Vec<String> = ["a", "b", "c", "d", "e"]
            .map(|vendor| format!("{vendor}/gpu=1 cpu=1"))
            .into();
        assert!(largest(&rare.iter().map(String::as_str).collect::<Vec<_>>()).is_empty());
        assert_eq!(
            largest(&["a/gpu=1 b/gpu=1 c/gpu=1 d/gpu=1 e/gpu=1 cpu=1"]).len(),
            1
        );
    }

    #[test]
    fn nothing_beyond_the_offer_is_named() {
        let all = free(&["cpu=64 memory=9 attachable=5", "cpu=32 memory=10"]);
        assert_eq!(
            all.select_largest(&list("cpu=2 memory=10")),
            LargestPods(vec![list("cpu=2 memory=10")])
        );
    }

    #[test]
    fn a_pod_fits_if_one_node_has_everything_and_otherwise_learns_what_is_short_where_least_is() {
        let pods = free(&["cpu=4 memory=1", "cpu=1 memory=8"]).select_largest(&list(EVERYTHING));
        assert_eq!(
            (
                pods.has_room(&list("cpu=4 memory=1")),
                pods.has_room(&list("cpu=1 memory=8"))
            ),
            (Ok(()), Ok(()))
        );
        let short = pods.has_room(&list("cpu=2 memory=8")).unwrap_err();
        assert_eq!(
            short_on_largest_node(&short),
            "cpu: 1 short (2 requested, 1 available) on the largest node"
        );
        assert_eq!(LargestPods::default().has_room(&list("cpu=1000")), Ok(()));
    }

    #[test]
    fn an_offer_is_rewritten_when_a_node_has_more_or_much_less() {
        let says = |nodes: &[&str]| free(nodes).select_largest(&list(EVERYTHING));
        let before = says(&["cpu=100 memory=10", "cpu=10 memory=100"]);
        for (now, holds) in [
            (&["cpu=100 memory=10", "cpu=10 memory=100"][..], true),
            (&["cpu=95 memory=10", "cpu=10 memory=100"], true),
            (&["cpu=94 memory=10", "cpu=10 memory=100"], false),
            (&["cpu=101 memory=10", "cpu=10 memory=100"], false),
            (&["cpu=10 memory=100"], false),
            (&["cpu=96 memory=96"], false),
            (&[], false),
        ] {
            assert_eq!(before.still_holds(&says(now), 5), holds, "{now:?}");
        }
        assert!(
            says(&["cpu=0"]).still_holds(&says(&["cpu=0"]), 5)
                && !says(&["cpu=1"]).still_holds(&says(&["cpu=0"]), 99)
        );
    }

    fn nodes() -> impl Strategy<Value = Vec<ResourceList>> {
        let node = (0..20_i64, 0..20_i64, 0..3_i64).prop_map(|(cpu, memory, gpu)| {
            [("cpu", cpu), ("memory", memory), ("a/gpu", gpu)]
                .map(|(name, amount)| (name, Quantity::from_units(amount)))
                .into()
        });
        vec(node, 0..30)
    }

    proptest! {
        #[test]
        fn only_what_a_node_has_is_promised_and_what_certainly_finds_no_node_fits_on_none(all in nodes(), pod in nodes()) {
            let most = [("cpu", 15), ("memory", 99), ("a/gpu", 9)].map(|(name, amount)| (name, Quantity::from_units(amount)));
            let largest = all.iter().cloned().collect::<FreeNodes>().select_largest(&most.into());
            prop_assert!(!largest.is_too_long());
            for promised in largest.iter() {
                prop_assert!(all.iter().any(|node| promised.fits_in(node).is_ok()), "{promised}");
            }
            for pod in pod.iter().filter(|pod| pod.get("cpu") <= Quantity::from_units(15)) {
                let fits = all.iter().any(|node| pod.fits_in(node).is_ok());
                prop_assert!(fits || all.is_empty() || largest.has_room(pod).is_err());
                prop_assert!(!fits || largest.may_have_room(pod).is_ok(), "{pod} {largest:?}");
            }
        }

        #[test]
        fn the_order_of_the_nodes_does_not_matter(mut all in nodes()) {
            let of = |all: &[ResourceList]| all.iter().cloned().collect::<FreeNodes>().select_largest(&list(EVERYTHING));
            let forward = of(&all);
            all.reverse();
            prop_assert_eq!(forward, of(&all));
        }
    }
}

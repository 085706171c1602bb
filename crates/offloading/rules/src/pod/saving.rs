//! Which running pods to evict because another node would cost less: the largest saving first.
//!
//! Kubernetes cannot move a pod, so it is evicted, and its controller creates another one, which prefers the cheaper node
//! ([`preference`](super::preference)). Whether the new pod gets there is up to the scheduler. So only pods with a clear saving move, only a
//! few at a time, and only to where there is room for them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use liqo_api::{Key, Money, ResourceList};

use crate::node::priced::{Cost, PricedNode, costs};

/// A pod moves only if another node costs at least this much less, in per cent of what it costs now. Small changes of prices, and two
/// providers that undercut each other, move nothing.
pub const MIN_SAVING_PERCENT: u32 = 10;

/// A running pod on a virtual node, in a namespace whose pods may move.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningPod {
    pub key: Key,
    pub uid: String,
    /// Name of its node.
    pub node: String,
    /// What it is charged.
    pub amounts: ResourceList,
    /// Its controller creates it again, at no cost.
    pub recreated: bool,
    /// The `PodDisruptionBudgets` that select it.
    pub budgets: Vec<Key>,
}

/// A virtual node, and whether pods may move to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Target<'a> {
    pub node: &'a PricedNode,
    /// What is free there; `None` if it takes no new pods.
    pub free: Option<ResourceList>,
}

/// A pod to evict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saving {
    pub key: Key,
    pub uid: String,
    /// Name of its node.
    pub from: String,
    /// Name of the cheapest node that has room for it.
    pub to: String,
    /// What it costs less there for one hour.
    pub per_hour: Money,
}

/// The input of [`savings`].
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The pods of one namespace.
    pub pods: &'a [RunningPod],
    /// All virtual nodes on which pods of the namespace run or may run.
    pub targets: &'a [Target<'a>],
    /// How many more pods each `PodDisruptionBudget` allows to be evicted now (`status.disruptionsAllowed`). One that is missing allows none.
    pub allowed: &'a BTreeMap<Key, u32>,
    /// How many pods may be evicted now.
    pub max: usize,
}

/// The pods to evict now, the largest saving first.
pub fn savings(facts: &Facts) -> Vec<Saving> {
    let mut candidates: Vec<(&RunningPod, Money)> =
        facts.pods.iter().filter_map(|pod| Some((pod, saving(pod, facts.targets, None)?.1))).collect();
    candidates.sort_by_key(|(pod, saving)| (Reverse(*saving), &pod.key));
    let mut free: Vec<Option<ResourceList>> = facts.targets.iter().map(|target| target.free.clone()).collect();
    let mut allowed = facts.allowed.clone();
    let mut chosen = Vec::new();
    for (pod, _) in candidates {
        if chosen.len() >= facts.max {
            break;
        }
        // The API server evicts no pod that several budgets select.
        let budget = match pod.budgets.as_slice() {
            [] => None,
            [one] if allowed.get(one).is_some_and(|left| *left > 0) => Some(one),
            _ => continue,
        };
        // Those before it may have taken the room.
        let Some((index, per_hour)) = saving(pod, facts.targets, Some(&free)) else { continue };
        if let Some(left) = budget.and_then(|budget| allowed.get_mut(budget)) {
            *left -= 1;
        }
        free[index] = free[index].as_ref().map(|free| free.saturating_sub(&pod.amounts));
        let (from, to) = (pod.node.clone(), facts.targets[index].node.name.clone());
        chosen.push(Saving { key: pod.key.clone(), uid: pod.uid.clone(), from, to, per_hour });
    }
    chosen
}

/// The index of the cheapest target with room, and what the pod costs less there; `None` if that is not enough. `free` replaces what
/// the targets say.
fn saving(pod: &RunningPod, targets: &[Target], free: Option<&[Option<ResourceList>]>) -> Option<(usize, Money)> {
    if !pod.recreated {
        return None;
    }
    let nodes: Vec<&PricedNode> = targets.iter().map(|target| target.node).collect();
    let costs: Vec<Cost> = costs(&pod.amounts, &nodes).into_iter().map(|(_, cost)| cost).collect();
    let here = nodes.iter().position(|node| node.name == pod.node)?;
    let Cost::Known(now) = costs[here] else { return None };
    let has_room = |index: usize| {
        let free = free.map_or(targets[index].free.as_ref(), |free| free[index].as_ref());
        free.is_some_and(|free| pod.amounts.fits_in(free).is_ok())
    };
    let others = costs.iter().enumerate().filter(|(index, _)| *index != here && has_room(*index));
    // Where several cost the same, the first by name.
    let (best, cost) = others.min_by_key(|(index, cost)| (**cost, &nodes[*index].name))?;
    let Cost::Known(then) = *cost else { return None };
    let saving = now - then;
    (saving > Money::ZERO && saving >= now.times_percent(MIN_SAVING_PERCENT)).then_some((best, saving))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;
    use crate::node::priced::tests::{any_nodes, cores, node};

    fn key(name: &str) -> Key {
        Key::new("demo", name)
    }

    fn pod(name: &str, node: &str, number: i64, budgets: &[&str]) -> RunningPod {
        let budgets = budgets.iter().map(|name| key(name)).collect();
        RunningPod { key: key(name), uid: name.to_owned(), node: node.to_owned(), amounts: cores(number), recreated: true, budgets }
    }

    fn targets<'a>(nodes: &'a [PricedNode], free: i64) -> Vec<Target<'a>> {
        nodes.iter().map(|node| Target { node, free: Some(cores(free)) }).collect()
    }

    fn found(pods: &[RunningPod], targets: &[Target], allowed: &[(&str, u32)], max: usize) -> Vec<(String, String, String)> {
        let allowed = allowed.iter().map(|(name, number)| (key(name), *number)).collect();
        let all = savings(&Facts { pods, targets, allowed: &allowed, max });
        all.into_iter().map(|one| (one.key.name, one.to, one.per_hour.to_string())).collect()
    }

    fn moves(all: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
        all.iter().map(|(pod, to, saved)| ((*pod).to_owned(), (*to).to_owned(), (*saved).to_owned())).collect()
    }

    fn sold(milan: &str, turin: &str) -> [PricedNode; 2] {
        [node("milan", Some((milan, "EUR"))), node("turin", Some((turin, "EUR")))]
    }

    #[test]
    fn the_largest_saving_is_first_and_only_so_many_move_at_a_time() {
        let nodes = sold("0.05", "0.04");
        let pods = [pod("small", "milan", 1, &[]), pod("big", "milan", 4, &[]), pod("there", "turin", 9, &[])];
        assert_eq!(
            found(&pods, &targets(&nodes, 100), &[], 9),
            moves(&[("big", "turin", "0.04"), ("small", "turin", "0.01")])
        );
        assert_eq!(found(&pods, &targets(&nodes, 100), &[], 1), moves(&[("big", "turin", "0.04")]));
        assert_eq!(found(&pods, &targets(&nodes, 100), &[], 0), []);
    }

    #[test]
    fn less_than_a_tenth_moves_nothing() {
        let pods = [pod("web", "milan", 1, &[])];
        for (turin, saved) in [("0.09", Some("0.01")), ("0.0900001", None), ("0.1", None), ("0.11", None), ("0", Some("0.1"))] {
            let nodes = sold("0.1", turin);
            let expected: Vec<_> = saved.into_iter().flat_map(|saved| moves(&[("web", "turin", saved)])).collect();
            assert_eq!(found(&pods, &targets(&nodes, 9), &[], 9), expected, "{turin}");
        }
    }

    #[test]
    fn a_budget_is_kept_and_a_pod_with_two_budgets_stays() {
        let nodes = sold("0.05", "0.01");
        let pods = [pod("a", "milan", 3, &["web"]), pod("b", "milan", 2, &["web"]), pod("c", "milan", 1, &["web", "all"])];
        assert_eq!(found(&pods, &targets(&nodes, 9), &[("web", 1), ("all", 9)], 9), moves(&[("a", "turin", "0.12")]));
        assert_eq!(found(&pods, &targets(&nodes, 9), &[("web", 0)], 9), []);
        assert_eq!(found(&pods, &targets(&nodes, 9), &[], 9), [], "a budget that is not known allows nothing");
    }

    #[test]
    fn pods_move_only_to_where_there_is_room_and_only_if_they_are_created_again() {
        let nodes = sold("0.05", "0.01");
        let pods = [pod("a", "milan", 3, &[]), pod("b", "milan", 2, &[]), pod("c", "milan", 1, &[])];
        assert_eq!(found(&pods, &targets(&nodes, 4), &[], 9), moves(&[("a", "turin", "0.12"), ("c", "turin", "0.04")]));
        let closed: Vec<Target> = nodes.iter().map(|node| Target { node, free: None }).collect();
        assert_eq!(found(&pods, &closed, &[], 9), []);
        let alone = [RunningPod { recreated: false, ..pod("alone", "milan", 1, &[]) }];
        assert_eq!(found(&alone, &targets(&nodes, 9), &[], 9), []);
    }

    #[test]
    fn nothing_moves_to_or_from_another_currency_or_from_an_unknown_node() {
        let nodes = [node("milan", Some(("0.05", "EUR"))), node("nice", Some(("0.05", "EUR"))), node("ny", Some(("0.01", "USD")))];
        let pods = [pod("a", "milan", 1, &[]), pod("b", "ny", 1, &[]), pod("c", "gone", 1, &[])];
        assert_eq!(found(&pods, &targets(&nodes, 9), &[], 9), []);
    }

    proptest! {
        #[test]
        fn each_move_saves_a_tenth_budgets_are_kept_and_room_is_not_exceeded(
            nodes in any_nodes(),
            running in vec((0_usize..8, 1_i64..5, select(vec!["", "x", "y", "xy"])), 0..12),
            (x, y, max, free) in (0_u32..4, 0_u32..4, 0_usize..6, 0_i64..8),
        ) {
            let pods: Vec<RunningPod> = running.iter().enumerate().map(|(index, (on, number, budgets))| {
                let budgets: Vec<String> = budgets.chars().map(String::from).collect();
                let budgets: Vec<&str> = budgets.iter().map(String::as_str).collect();
                pod(&format!("p{index:02}"), &format!("n{on}"), *number, &budgets)
            }).collect();
            let allowed = BTreeMap::from([(key("x"), x), (key("y"), y)]);
            let targets = targets(&nodes, free);
            let chosen = savings(&Facts { pods: &pods, targets: &targets, allowed: &allowed, max });
            prop_assert!(chosen.len() <= max);
            let all: Vec<&PricedNode> = nodes.iter().collect();
            let mut placed: BTreeMap<&str, i64> = BTreeMap::new();
            for one in &chosen {
                let index = pods.iter().position(|pod| pod.uid == one.uid).unwrap();
                let number = running[index].1;
                *placed.entry(&one.to).or_default() += number;
                let costs: BTreeMap<&str, Cost> =
                    costs(&cores(number), &all).into_iter().map(|(node, cost)| (node.name.as_str(), cost)).collect();
                let (Cost::Known(before), Cost::Known(after)) = (costs[one.from.as_str()], costs[one.to.as_str()]) else {
                    return Err(TestCaseError::fail("another currency"));
                };
                prop_assert_eq!(before - after, one.per_hour);
                prop_assert!(one.per_hour.nanos() * 10 >= before.nanos() && one.per_hour > Money::ZERO);
            }
            prop_assert!(placed.values().all(|number| *number <= free));
            for (budget, most) in &allowed {
                let evicted = chosen.iter().filter(|one| pods.iter().any(|pod| pod.uid == one.uid && pod.budgets.contains(budget)));
                prop_assert!(evicted.count() <= usize::try_from(*most).unwrap());
            }
        }

        #[test]
        fn when_all_have_moved_nothing_moves_again(nodes in any_nodes(), running in vec((0_usize..8, 1_i64..5), 0..12)) {
            let mut pods: Vec<RunningPod> = running
                .iter()
                .enumerate()
                .map(|(index, (on, number))| pod(&format!("p{index:02}"), &format!("n{on}"), *number, &[]))
                .collect();
            let targets = targets(&nodes, 1000);
            let none = BTreeMap::new();
            for one in savings(&Facts { pods: &pods, targets: &targets, allowed: &none, max: 100 }) {
                pods.iter_mut().find(|pod| pod.uid == one.uid).unwrap().node = one.to;
            }
            prop_assert_eq!(savings(&Facts { pods: &pods, targets: &targets, allowed: &none, max: 100 }), []);
        }
    }
}

//! The unfinished pods by node, with sums.
//!
//! A cluster can have a hundred thousand pods, of which one changes every few milliseconds.
//! Therefore each node keeps the sum of its pods. A change of a pod discards the sum of its node,
//! and the next reader computes it again from all pods of the node. No code ever adjusts a sum.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
};

use liqo_api::ResourceList;
use liqo_api::requests::EffectiveAmounts;

use super::reduce::{ClaimedOwner, PodUsage};

/// All unfinished pods.
#[derive(Clone, Debug, Default)]
pub struct PodsByNode {
    by_node: HashMap<String, Arc<PodsOnNode>>,
    unbound: Vec<Arc<PodUsage>>,
}

/// The pods of one node.
#[derive(Clone, Debug, Default)]
pub struct PodsOnNode {
    pods: Vec<Arc<PodUsage>>,
    sums: OnceLock<NodeSums>,
}

/// The sums of one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeSums {
    /// Requests of pods without an owner label: this cluster's own pods.
    pub own: ResourceList,
    /// Resources that the other pods use, by the owner that their labels claim.
    pub claimed: BTreeMap<ClaimedOwner, EffectiveAmounts>,
}

impl PodsByNode {
    /// Replaces a pod: `old` is `None` for a new one, `new` for a deleted one.
    pub fn update(&mut self, old: Option<&Arc<PodUsage>>, new: Option<&Arc<PodUsage>>) {
        if let Some(old) = old {
            let pods = self.with_node_of(old);
            // Among equal pods it does not matter which one is removed.
            let same = pods
                .iter()
                .position(|pod| Arc::ptr_eq(pod, old))
                .or_else(|| pods.iter().position(|pod| pod == old));
            if let Some(at) = same {
                pods.swap_remove(at);
            }
            if let Some(node) = old
                .node
                .as_ref()
                .filter(|node| self.by_node[*node].pods.is_empty())
            {
                self.by_node.remove(node);
            }
        }
        if let Some(new) = new {
            self.with_node_of(new).push(new.clone());
        }
    }

    /// All pods of this pod's node. Discards the sum of the node.
    fn with_node_of(&mut self, pod: &PodUsage) -> &mut Vec<Arc<PodUsage>> {
        let Some(node) = &pod.node else {
            return &mut self.unbound;
        };
        if !self.by_node.contains_key(node) {
            self.by_node.insert(node.clone(), Arc::default());
        }
        let here = Arc::make_mut(self.by_node.entry(node.clone()).or_default());
        here.sums = OnceLock::new();
        &mut here.pods
    }

    /// The sums of all nodes, in no particular order.
    pub fn sums(&self) -> impl Iterator<Item = (&str, &NodeSums)> {
        self.by_node
            .iter()
            .map(|(node, here)| (node.as_str(), here.sums()))
    }

    /// Requests of this cluster's own pods on a node; `None` if the node has no pods.
    pub fn own_requests(&self, node: &str) -> Option<&ResourceList> {
        self.by_node.get(node).map(|here| &here.sums().own)
    }

    /// Sum of the requests of all pods on a node.
    pub fn requests_on(&self, node: &str) -> ResourceList {
        let Some(sums) = self.by_node.get(node).map(|here| here.sums()) else {
            return ResourceList::new();
        };
        sums.claimed
            .values()
            .fold(sums.own.clone(), |all, claimed| all + &claimed.requests)
    }

    /// The pods without a node, the largest first, so that the order of their arrival does not
    /// matter.
    pub fn unbound_pods(&self) -> Vec<&PodUsage> {
        let mut pods: Vec<&PodUsage> = self.unbound.iter().map(AsRef::as_ref).collect();
        pods.sort_by(|one, other| {
            other
                .resources
                .requests
                .iter()
                .cmp(one.resources.requests.iter())
        });
        pods
    }
}

impl PodsOnNode {
    fn sums(&self) -> &NodeSums {
        self.sums.get_or_init(|| {
            let mut sums = NodeSums::default();
            for pod in &self.pods {
                match &pod.owner {
                    None => sums.own += &pod.resources.requests,
                    Some(owner) => match sums.claimed.get_mut(owner) {
                        Some(sum) => *sum += &pod.resources,
                        None => drop(sums.claimed.insert(owner.clone(), pod.resources.clone())),
                    },
                }
            }
            sums
        })
    }
}

impl FromIterator<PodUsage> for PodsByNode {
    fn from_iter<I: IntoIterator<Item = PodUsage>>(all: I) -> Self {
        let mut pods = Self::default();
        for pod in all {
            pods.update(None, Some(&Arc::new(pod)));
        }
        pods
    }
}

#[cfg(test)]
impl PodsByNode {
    pub fn iter(&self) -> impl Iterator<Item = &PodUsage> {
        self.by_node
            .values()
            .flat_map(|here| &here.pods)
            .chain(&self.unbound)
            .map(AsRef::as_ref)
    }

    pub fn push(&mut self, pod: PodUsage) {
        self.update(None, Some(&Arc::new(pod)));
    }

    pub fn retain(&mut self, keep: impl Fn(&PodUsage) -> bool) {
        *self = self.iter().filter(|pod| keep(pod)).cloned().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::list;

    fn pod(node: &str, consumer: Option<&str>, requests: &str) -> Arc<PodUsage> {
        let owner = consumer.map(|consumer| ClaimedOwner {
            namespace: "n".into(),
            consumer: consumer.into(),
            pool: "p".into(),
            is_ending: false,
        });
        let node = Some(node.to_owned()).filter(|node| !node.is_empty());
        PodUsage {
            node,
            resources: list(requests).into(),
            owner,
            waits_for_node: false,
            ..PodUsage::default()
        }
        .into()
    }

    fn own(pods: &PodsByNode, node: &str) -> String {
        pods.own_requests(node)
            .map(ToString::to_string)
            .unwrap_or_default()
    }

    #[test]
    fn each_node_has_one_sum_for_own_pods_and_one_for_each_consumer() {
        let all = [
            pod("a", None, "cpu=1"),
            pod("a", None, "cpu=2"),
            pod("a", Some("rome"), "cpu=4"),
            pod("b", None, "cpu=8"),
        ];
        let pods: PodsByNode = all.iter().map(|pod| PodUsage::clone(pod)).collect();
        assert_eq!(
            (own(&pods, "a"), own(&pods, "b"), pods.own_requests("c")),
            ("cpu=3".into(), "cpu=8".into(), None)
        );
        let claimed: Vec<_> = pods
            .sums()
            .flat_map(|(node, sums)| sums.claimed.values().map(move |sum| (node, sum)))
            .collect();
        assert_eq!(claimed, [("a", &list("cpu=4").into())]);
    }

    #[test]
    fn a_sum_is_computed_again_when_a_pod_changes_moves_or_goes() {
        let mut pods = PodsByNode::default();
        let (small, large, moved) = (
            pod("a", None, "cpu=1"),
            pod("a", None, "cpu=5"),
            pod("b", None, "cpu=5"),
        );
        pods.update(None, Some(&pod("a", None, "cpu=1")));
        pods.update(None, Some(&small));
        assert_eq!(own(&pods, "a"), "cpu=2");
        pods.update(Some(&small), Some(&large));
        assert_eq!(own(&pods, "a"), "cpu=6");
        let before = pods.clone();
        pods.update(Some(&large), Some(&moved));
        assert_eq!(
            (own(&pods, "a"), own(&pods, "b")),
            ("cpu=1".into(), "cpu=5".into())
        );
        assert_eq!(
            own(&before, "a"),
            "cpu=6",
            "an earlier snapshot does not change"
        );
        pods.update(Some(&moved), None);
        assert_eq!(
            pods.own_requests("b"),
            None,
            "a node without pods is forgotten"
        );
        let waiting = pod("", None, "cpu=1");
        pods.update(None, Some(&waiting));
        assert_eq!(pods.unbound_pods(), [waiting.as_ref()]);
        pods.update(Some(&waiting), None);
        assert!(pods.unbound_pods().is_empty());
    }
}

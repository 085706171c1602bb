//! The unfinished pods by node, each node with its sums.
//!
//! There may be a hundred thousand pods, and one of them changes every few milliseconds. So what they hold is summed for each
//! node, and a change of a pod discards the sum of its node: it is counted anew, from the pods that are there, when somebody
//! asks for it. Nothing is ever added to a sum or taken from it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
};

use liqo_api::ResourceList;
use liqo_kit::requests::Effective;

use super::reduce::{Claim, PodUse};

/// All unfinished pods.
#[derive(Clone, Debug, Default)]
pub struct Pods {
    by_node: HashMap<String, Arc<OnNode>>,
    unbound: Vec<Arc<PodUse>>,
}

/// The pods of one node.
#[derive(Clone, Debug, Default)]
pub struct OnNode {
    pods: Vec<Arc<PodUse>>,
    sums: OnceLock<Sums>,
}

/// What the pods of one node hold together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sums {
    /// Those that say of themselves that they are nobody's but our own.
    pub own: ResourceList,
    /// The others, by what they say.
    pub claimed: BTreeMap<Claim, Effective>,
}

impl Pods {
    /// Takes over a change of a pod.
    pub fn changed(&mut self, old: Option<&Arc<PodUse>>, new: Option<&Arc<PodUse>>) {
        if let Some(old) = old {
            let pods = self.beside(old);
            // Equal pods count alike: it does not matter which of them goes.
            let same = pods.iter().position(|pod| Arc::ptr_eq(pod, old)).or_else(|| pods.iter().position(|pod| pod == old));
            if let Some(at) = same {
                pods.swap_remove(at);
            }
            if let Some(node) = old.node.as_ref().filter(|node| self.by_node[*node].pods.is_empty()) {
                self.by_node.remove(node);
            }
        }
        if let Some(new) = new {
            self.beside(new).push(new.clone());
        }
    }

    /// The pods that are where this one is; their sum is not known any more.
    fn beside(&mut self, pod: &PodUse) -> &mut Vec<Arc<PodUse>> {
        let Some(node) = &pod.node else { return &mut self.unbound };
        if !self.by_node.contains_key(node) {
            self.by_node.insert(node.clone(), Arc::default());
        }
        let here = Arc::make_mut(self.by_node.entry(node.clone()).or_default());
        here.sums = OnceLock::new();
        &mut here.pods
    }

    /// What the pods of each node hold, in no order.
    pub fn sums(&self) -> impl Iterator<Item = (&str, &Sums)> {
        self.by_node.iter().map(|(node, here)| (node.as_str(), here.sums()))
    }

    /// What the pods of this node hold that are our own, if there are any pods.
    pub fn own(&self, node: &str) -> Option<&ResourceList> {
        self.by_node.get(node).map(|here| &here.sums().own)
    }

    /// The pods without a node, the largest first, so that the order in which they came does not matter.
    pub fn unbound(&self) -> Vec<&PodUse> {
        let mut pods: Vec<&PodUse> = self.unbound.iter().map(AsRef::as_ref).collect();
        pods.sort_by(|one, other| other.held.requests.iter().cmp(one.held.requests.iter()));
        pods
    }
}

impl OnNode {
    fn sums(&self) -> &Sums {
        self.sums.get_or_init(|| {
            let mut sums = Sums::default();
            for pod in &self.pods {
                match &pod.claim {
                    None => sums.own += &pod.held.requests,
                    Some(claim) => match sums.claimed.get_mut(claim) {
                        Some(held) => *held += &pod.held,
                        None => drop(sums.claimed.insert(claim.clone(), pod.held.clone())),
                    },
                }
            }
            sums
        })
    }
}

impl FromIterator<PodUse> for Pods {
    fn from_iter<I: IntoIterator<Item = PodUse>>(all: I) -> Self {
        let mut pods = Self::default();
        for pod in all {
            pods.changed(None, Some(&Arc::new(pod)));
        }
        pods
    }
}

#[cfg(test)]
impl Pods {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &PodUse> {
        self.by_node.values().flat_map(|here| &here.pods).chain(&self.unbound).map(AsRef::as_ref)
    }

    /// One more.
    pub fn push(&mut self, pod: PodUse) {
        self.changed(None, Some(&Arc::new(pod)));
    }

    /// Only those that `keep` says so of.
    pub fn retain(&mut self, keep: impl Fn(&PodUse) -> bool) {
        *self = self.iter().filter(|pod| keep(pod)).cloned().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::list;

    fn pod(node: &str, consumer: Option<&str>, requests: &str) -> Arc<PodUse> {
        let claim = consumer.map(|consumer| Claim { namespace: "n".into(), consumer: consumer.into(), pool: "p".into() });
        let node = Some(node.to_owned()).filter(|node| !node.is_empty());
        PodUse { node, held: list(requests).into(), claim, waits: false }.into()
    }

    fn own(pods: &Pods, node: &str) -> String {
        pods.own(node).map(ToString::to_string).unwrap_or_default()
    }

    #[test]
    fn each_node_has_the_sum_of_its_own_pods_and_of_each_consumers() {
        let all = [pod("a", None, "cpu=1"), pod("a", None, "cpu=2"), pod("a", Some("rome"), "cpu=4"), pod("b", None, "cpu=8")];
        let pods: Pods = all.iter().map(|pod| PodUse::clone(pod)).collect();
        assert_eq!((own(&pods, "a"), own(&pods, "b"), pods.own("c")), ("cpu=3".into(), "cpu=8".into(), None));
        let claimed: Vec<_> = pods.sums().flat_map(|(node, sums)| sums.claimed.values().map(move |held| (node, held))).collect();
        assert_eq!(claimed, [("a", &list("cpu=4").into())]);
    }

    #[test]
    fn a_sum_is_counted_anew_when_a_pod_changes_moves_or_goes() {
        let mut pods = Pods::default();
        let (small, large, moved) = (pod("a", None, "cpu=1"), pod("a", None, "cpu=5"), pod("b", None, "cpu=5"));
        pods.changed(None, Some(&pod("a", None, "cpu=1")));
        pods.changed(None, Some(&small));
        assert_eq!(own(&pods, "a"), "cpu=2");
        pods.changed(Some(&small), Some(&large));
        assert_eq!(own(&pods, "a"), "cpu=6");
        let before = pods.clone();
        pods.changed(Some(&large), Some(&moved));
        assert_eq!((own(&pods, "a"), own(&pods, "b")), ("cpu=1".into(), "cpu=5".into()));
        assert_eq!(own(&before, "a"), "cpu=6", "a picture that was taken stays as it is");
        pods.changed(Some(&moved), None);
        assert_eq!(pods.own("b"), None, "a node without pods is forgotten");
        let waiting = pod("", None, "cpu=1");
        pods.changed(None, Some(&waiting));
        assert_eq!(pods.unbound(), [waiting.as_ref()]);
        pods.changed(Some(&waiting), None);
        assert!(pods.unbound().is_empty());
    }
}

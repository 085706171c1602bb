//! How much there is to lend: what this cluster's nodes have free of its own pods.

use std::collections::BTreeMap;

use liqo_api::ResourceList;
use liqo_quantity::ResourceArgument;

use super::reduce::{ADVERTISED, LocalNode, PodUse};

/// What each group of nodes has free of what is `taken` on each node, and of the pods that wait for one: all that are not
/// charged to an offer. What the consumers' pods use is not subtracted, because it is part of what they are offered.
///
/// A pod that waits for a node is served before any consumer is, unless no node could hold it even when empty: then it
/// would wait for ever, and take from the offers for ever.
pub fn free<'a>(
    groups: &[&[(&str, &LocalNode)]],
    taken: impl Fn(&str) -> [Option<&'a ResourceList>; 2],
    waiting: &[&PodUse],
) -> Vec<ResourceList> {
    let groups: Vec<Vec<(&str, &LocalNode)>> =
        groups.iter().map(|nodes| nodes.iter().filter(|(_, node)| node.eligible).copied().collect()).collect();
    let mut free: Vec<ResourceList> = Vec::new();
    for nodes in &groups {
        let (mut all, mut left) = (ResourceList::new(), ResourceList::new());
        for (name, node) in nodes {
            all += &node.allocatable;
            left += &taken(name).into_iter().flatten().fold(node.allocatable.clone(), |left, taken| left.saturating_sub(taken));
        }
        // What no node has, and names that no container may request, as limits of attached volumes, are of no use to a consumer.
        left.retain(|name, _| !all.get(name).is_zero() && ResourceArgument::new(name, "0").is_ok());
        free.push(left);
    }
    for pod in waiting.iter().filter(|pod| pod.waits) {
        let holds =
            |nodes: &[(&str, &LocalNode)]| nodes.iter().any(|(_, node)| pod.held.requests.fits_in(&node.allocatable).is_ok());
        let able: Vec<usize> = (0..groups.len()).filter(|&group| holds(&groups[group])).collect();
        let roomy = able.iter().find(|&&group| pod.held.requests.fits_in(&free[group]).is_ok());
        if let Some(&group) = roomy.or(able.first()) {
            free[group] = free[group].saturating_sub(&pod.held.requests);
        }
    }
    free
}

/// The labels on which all nodes agree, so that they say something true about wherever a pod will run.
pub fn uniform_labels<'a>(nodes: impl IntoIterator<Item = &'a LocalNode>) -> BTreeMap<String, String> {
    let mut nodes = nodes.into_iter();
    let Some(first) = nodes.next() else { return BTreeMap::new() };
    let mut common = first.labels.clone();
    common.retain(|label, _| ADVERTISED.contains(&label.as_str()));
    for node in nodes {
        common.retain(|label, value| node.labels.get(label) == Some(value));
    }
    common
}

/// What all these nodes have free of all these pods.
#[cfg(test)]
pub fn of_all(nodes: &[(&str, &LocalNode)], pods: &super::pods::Pods) -> ResourceList {
    free(&[nodes], |node| [pods.own(node), None], &pods.unbound()).remove(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::list;

    fn node(allocatable: &str) -> LocalNode {
        LocalNode { eligible: true, allocatable: list(allocatable), labels: BTreeMap::new() }
    }

    fn on(node: &str, requests: &str) -> PodUse {
        PodUse { node: Some(node.to_owned()), held: list(requests).into(), ..PodUse::default() }
    }

    fn waiting(requests: &str) -> PodUse {
        PodUse { held: list(requests).into(), waits: true, ..PodUse::default() }
    }

    fn free(nodes: &[(&str, LocalNode)], pods: &[PodUse], percentage: u8) -> String {
        let nodes: Vec<(&str, &LocalNode)> = nodes.iter().map(|(name, node)| (*name, node)).collect();
        of_all(&nodes, &pods.iter().cloned().collect()).percentage(percentage.into()).to_string()
    }

    #[test]
    fn the_percentage_is_taken_of_what_own_pods_leave() {
        let pods = [on("a", "cpu=1, memory=1Gi, pods=1"), on("b", "cpu=1, pods=1")];
        let nodes = [("a", node("cpu=4, memory=4Gi, pods=10")), ("b", node("cpu=2, memory=4Gi, pods=10"))];
        assert_eq!(free(&nodes, &pods, 100), "cpu=4, memory=7Gi, pods=18");
        assert_eq!(free(&nodes, &pods, 50), "cpu=2, memory=3584Mi, pods=9");
        assert_eq!(free(&nodes, &pods, 0), "cpu=0, memory=0, pods=0");
    }

    #[test]
    fn a_single_gpu_is_offered_whatever_the_percentage() {
        assert_eq!(free(&[("a", node("nvidia.com/gpu=1"))], &[], 10), "nvidia.com/gpu=1");
    }

    #[test]
    fn nodes_that_cannot_serve_and_the_pods_on_them_do_not_count() {
        let closed = LocalNode { eligible: false, ..node("cpu=8") };
        let pods = [on("closed", "cpu=1"), on("virtual", "cpu=100")];
        assert_eq!(free(&[("a", node("cpu=4")), ("closed", closed)], &pods, 100), "cpu=4");
    }

    #[test]
    fn a_node_that_is_overfull_takes_nothing_from_the_others() {
        assert_eq!(free(&[("a", node("cpu=1")), ("b", node("cpu=4"))], &[on("a", "cpu=3")], 100), "cpu=4");
    }

    #[test]
    fn own_pods_that_wait_for_a_node_come_first() {
        assert_eq!(free(&[("a", node("cpu=4"))], &[waiting("cpu=3")], 100), "cpu=1");
        assert_eq!(free(&[("a", node("cpu=4"))], &[waiting("cpu=3"), waiting("cpu=3")], 100), "cpu=0");
    }

    #[test]
    fn a_pod_that_no_node_could_ever_hold_takes_nothing() {
        let nodes = [("a", node("cpu=4")), ("b", node("cpu=4"))];
        assert_eq!(free(&nodes, &[waiting("cpu=5")], 100), "cpu=8");
        assert_eq!(free(&nodes, &[waiting("cpu=1, nvidia.com/gpu=1")], 100), "cpu=8");
    }

    #[test]
    fn what_no_node_has_or_no_pod_can_request_is_not_offered() {
        assert_eq!(free(&[("a", node("cpu=4, attachable-volumes-aws-ebs=25, hugepages-1Gi=0"))], &[], 100), "cpu=4");
    }

    #[test]
    fn what_own_pods_use_up_is_offered_as_zero() {
        assert_eq!(free(&[("a", node("nvidia.com/gpu=1"))], &[on("a", "nvidia.com/gpu=1")], 90), "nvidia.com/gpu=0");
    }

    #[test]
    fn a_cluster_without_nodes_has_nothing() {
        assert_eq!(free(&[], &[waiting("cpu=1")], 100), "nothing");
    }

    #[test]
    fn only_labels_that_all_nodes_share_are_offered() {
        let labelled = |arch: &str, zone: &str| LocalNode {
            labels: [
                ("kubernetes.io/arch".to_owned(), arch.to_owned()),
                ("topology.kubernetes.io/zone".to_owned(), zone.to_owned()),
            ]
            .into(),
            ..node("")
        };
        let nodes = [labelled("amd64", "a"), labelled("amd64", "b")];
        assert_eq!(uniform_labels(&nodes), [("kubernetes.io/arch".to_owned(), "amd64".to_owned())].into());
        assert!(uniform_labels([&nodes[0], &node("")]).is_empty());
        assert!(uniform_labels([]).is_empty());
    }
}

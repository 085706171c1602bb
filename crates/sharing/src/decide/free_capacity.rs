//! Computes what this cluster's nodes have free.

use std::collections::BTreeMap;

use liqo_api::{FreeNodes, ResourceList};
use liqo_quantity::ResourceArgument;

use super::{
    pods_by_node::PodsByNode,
    reduce::{ADVERTISED, LocalNode, PodUsage},
};

/// The free resources of each group of nodes: allocatable resources, less what is `taken` on each
/// node, less what `waiting` pods request. Pods that are charged to an offer are in neither,
/// because what they use is part of the offer.
///
/// A waiting pod comes before every consumer, unless no node could run it even when empty. Such a
/// pod would wait forever, and reduce the offers forever. A pod that may also run on a virtual node
/// counts where there is space, on own nodes first.
pub fn free_resources<'a>(
    groups: &[&[(&str, &LocalNode)]],
    taken: impl Fn(&str) -> [Option<&'a ResourceList>; 2],
    waiting: &[&PodUsage],
) -> Vec<ResourceList> {
    let groups: Vec<Vec<(&str, &LocalNode)>> = groups
        .iter()
        .map(|nodes| {
            nodes
                .iter()
                .filter(|(_, node)| node.eligible)
                .copied()
                .collect()
        })
        .collect();
    let mut free: Vec<ResourceList> = Vec::new();
    for nodes in &groups {
        let (mut all, mut left) = (ResourceList::new(), ResourceList::new());
        for (name, node) in nodes {
            all += &node.allocatable;
            left += &taken(name)
                .into_iter()
                .flatten()
                .fold(node.allocatable.clone(), |left, taken| {
                    left.saturating_sub(taken)
                });
        }
        // A consumer cannot use resources that no node has, or that no container may request, such
        // as limits of attached volumes.
        left.retain(|name, _| !all.get(name).is_zero() && ResourceArgument::new(name, "0").is_ok());
        free.push(left);
    }
    for pod in waiting
        .iter()
        .filter(|pod| pod.waits_for_node || pod.waits_for_virtual_node)
    {
        let mut capable: Vec<usize> = (0..groups.len())
            .filter(|&group| can_run_on(pod, &groups[group]))
            .collect();
        // Own nodes come first.
        capable.sort_by_key(|&group| {
            groups[group]
                .iter()
                .all(|(_, node)| node.upstream.is_some())
        });
        let with_space = capable
            .iter()
            .find(|&&group| pod.resources.requests.fits_in(&free[group]).is_ok());
        if let Some(&group) = with_space.or(capable.first()) {
            free[group] = free[group].saturating_sub(&pod.resources.requests);
        }
    }
    free
}

/// Whether one of the nodes is of a kind that a pod waits for, and large enough.
fn can_run_on(pod: &PodUsage, nodes: &[(&str, &LocalNode)]) -> bool {
    nodes.iter().any(|(_, node)| {
        let is_waited_for = if node.upstream.is_some() {
            pod.waits_for_virtual_node
        } else {
            pod.waits_for_node
        };
        is_waited_for && pod.resources.requests.fits_in(&node.allocatable).is_ok()
    })
}

/// Resources of each node that its pods leave free; `None` if that is unknown for one of the nodes.
///
/// Pods without a node count nowhere: another node may get them. A virtual node has no more than
/// what its provider says of its own nodes.
pub fn free_nodes(nodes: &[(&str, &LocalNode)], pods: &PodsByNode) -> Option<FreeNodes> {
    let mut all = FreeNodes::default();
    for (name, node) in nodes.iter().filter(|(_, node)| node.eligible) {
        let free = node.allocatable.saturating_sub(&pods.requests_on(name));
        let Some(upstream) = &node.upstream else {
            all.add(free);
            continue;
        };
        let behind = upstream
            .offer
            .as_ref()
            .map(|offer| &offer.largest_pods)
            .filter(|known| !known.is_empty())?;
        for one in behind.iter() {
            all.add(one.min(&free));
        }
    }
    Some(all)
}

/// The advertised labels that have the same value on all nodes, so they are true for every pod of
/// the pool.
pub fn uniform_labels<'a>(
    nodes: impl IntoIterator<Item = &'a LocalNode>,
) -> BTreeMap<String, String> {
    let mut nodes = nodes.into_iter();
    let Some(first) = nodes.next() else {
        return BTreeMap::new();
    };
    let mut common = first.labels.clone();
    common.retain(|label, _| ADVERTISED.contains(&label.as_str()));
    for node in nodes {
        common.retain(|label, value| node.labels.get(label) == Some(value));
    }
    common
}

/// The free resources of all nodes as one group.
#[cfg(test)]
pub fn of_all(
    nodes: &[(&str, &LocalNode)],
    pods: &super::pods_by_node::PodsByNode,
) -> ResourceList {
    free_resources(
        &[nodes],
        |node| [pods.own_requests(node), None],
        &pods.unbound_pods(),
    )
    .remove(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::reduce::UpstreamPool;
    use crate::tests::{cluster, list};

    fn node(allocatable: &str) -> LocalNode {
        LocalNode {
            eligible: true,
            allocatable: list(allocatable),
            labels: BTreeMap::new(),
            upstream: None,
        }
    }

    fn on(node: &str, requests: &str) -> PodUsage {
        PodUsage {
            node: Some(node.to_owned()),
            resources: list(requests).into(),
            ..PodUsage::default()
        }
    }

    fn waiting(requests: &str) -> PodUsage {
        PodUsage {
            resources: list(requests).into(),
            waits_for_node: true,
            ..PodUsage::default()
        }
    }

    fn free(nodes: &[(&str, LocalNode)], pods: &[PodUsage], percentage: u8) -> String {
        let nodes: Vec<(&str, &LocalNode)> =
            nodes.iter().map(|(name, node)| (*name, node)).collect();
        of_all(&nodes, &pods.iter().cloned().collect())
            .percentage(percentage.into())
            .to_string()
    }

    #[test]
    fn the_percentage_applies_to_what_own_pods_leave() {
        let pods = [
            on("a", "cpu=1, memory=1Gi, pods=1"),
            on("b", "cpu=1, pods=1"),
        ];
        let nodes = [
            ("a", node("cpu=4, memory=4Gi, pods=10")),
            ("b", node("cpu=2, memory=4Gi, pods=10")),
        ];
        assert_eq!(free(&nodes, &pods, 100), "cpu=4, memory=7Gi, pods=18");
        assert_eq!(free(&nodes, &pods, 50), "cpu=2, memory=3584Mi, pods=9");
        assert_eq!(free(&nodes, &pods, 0), "cpu=0, memory=0, pods=0");
    }

    #[test]
    fn a_single_gpu_is_offered_whatever_the_percentage() {
        assert_eq!(
            free(&[("a", node("nvidia.com/gpu=1"))], &[], 10),
            "nvidia.com/gpu=1"
        );
    }

    #[test]
    fn ineligible_nodes_and_their_pods_do_not_count() {
        let closed = LocalNode {
            eligible: false,
            ..node("cpu=8")
        };
        let pods = [on("closed", "cpu=1"), on("virtual", "cpu=100")];
        assert_eq!(
            free(&[("a", node("cpu=4")), ("closed", closed)], &pods, 100),
            "cpu=4"
        );
    }

    #[test]
    fn an_overfull_node_takes_nothing_from_the_others() {
        assert_eq!(
            free(
                &[("a", node("cpu=1")), ("b", node("cpu=4"))],
                &[on("a", "cpu=3")],
                100
            ),
            "cpu=4"
        );
    }

    #[test]
    fn own_pods_that_wait_for_a_node_come_first() {
        assert_eq!(
            free(&[("a", node("cpu=4"))], &[waiting("cpu=3")], 100),
            "cpu=1"
        );
        assert_eq!(
            free(
                &[("a", node("cpu=4"))],
                &[waiting("cpu=3"), waiting("cpu=3")],
                100
            ),
            "cpu=0"
        );
    }

    #[test]
    fn a_pod_that_may_wait_for_any_node_counts_on_own_ones_first() {
        let upstream = UpstreamPool {
            provider: cluster(1),
            pool: "default".into(),
            offer: None,
        };
        let (own, borrowed) = (
            node("cpu=4"),
            LocalNode {
                upstream: Some(upstream),
                ..node("cpu=4")
            },
        );
        let left = |requests: &[&str]| {
            let pods = requests.iter().map(|requests| PodUsage {
                waits_for_virtual_node: true,
                ..waiting(requests)
            });
            let pods = pods.collect::<Vec<_>>();
            let groups: [&[(&str, &LocalNode)]; 2] = [&[("turin", &borrowed)], &[("a", &own)]];
            super::free_resources(&groups, |_| [None, None], &pods.iter().collect::<Vec<_>>())
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(left(&["cpu=3"]), ["cpu=4", "cpu=1"]);
        assert_eq!(
            left(&["cpu=3", "cpu=2"]),
            ["cpu=2", "cpu=1"],
            "there is space only on the virtual one"
        );
        assert_eq!(left(&["cpu=3", "cpu=4", "cpu=4"]), ["cpu=0", "cpu=0"]);
    }

    #[test]
    fn a_pod_that_no_node_could_ever_run_takes_nothing() {
        let nodes = [("a", node("cpu=4")), ("b", node("cpu=4"))];
        assert_eq!(free(&nodes, &[waiting("cpu=5")], 100), "cpu=8");
        assert_eq!(
            free(&nodes, &[waiting("cpu=1, nvidia.com/gpu=1")], 100),
            "cpu=8"
        );
    }

    #[test]
    fn resources_that_no_node_has_or_no_pod_can_request_are_not_offered() {
        assert_eq!(
            free(
                &[(
                    "a",
                    node("cpu=4, attachable-volumes-aws-ebs=25, hugepages-1Gi=0")
                )],
                &[],
                100
            ),
            "cpu=4"
        );
    }

    #[test]
    fn resources_that_own_pods_use_up_are_offered_as_zero() {
        assert_eq!(
            free(
                &[("a", node("nvidia.com/gpu=1"))],
                &[on("a", "nvidia.com/gpu=1")],
                90
            ),
            "nvidia.com/gpu=0"
        );
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
        assert_eq!(
            uniform_labels(&nodes),
            [("kubernetes.io/arch".to_owned(), "amd64".to_owned())].into()
        );
        assert!(uniform_labels([&nodes[0], &node("")]).is_empty());
        assert!(uniform_labels([]).is_empty());
    }
}

//! The cluster specifications that `up` asks for, from its arguments and from the clusters that
//! already exist.

use std::collections::BTreeSet;

use liqo_playground::{ClusterSpec, fake_node_resources};

use crate::{
    arguments::Up,
    cluster_argument::{ClusterArgument, ClusterArgumentError},
};

/// Why `--broker` does not fit the other arguments.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BrokerError {
    #[error("--broker {0}: --clusters does not name this cluster")]
    Unknown(String),
    #[error("--broker {0}: the first cluster borrows from the broker, so it must be another one")]
    First(String),
    #[error(
        "--broker {0}: no cluster is left that it could borrow from. Name three, as in --clusters rome,milan,turin --broker milan"
    )]
    NoProvider(String),
    #[error(
        "--broker: {0} lends fake nodes, and pods that must really run could not avoid them behind a broker. Add --fake-node-taint, or \
         {0}:fake-nodes=0"
    )]
    FakeNodes(String),
}

/// Which cluster borrows from which: pairs of consumer and provider by their numbers, in the order
/// in which they peer.
pub fn peerings(arguments: &Up) -> Vec<(usize, usize)> {
    let all = 1..arguments.clusters.len();
    let broker = arguments.broker.as_ref().and_then(|broker| {
        arguments
            .clusters
            .iter()
            .position(|cluster| cluster.name == *broker)
    });
    match broker {
        None => all.map(|provider| (0, provider)).collect(),
        // The first cluster comes last, so that it is offered only what the broker borrows.
        Some(broker) => all
            .filter(|provider| *provider != broker)
            .map(|provider| (broker, provider))
            .chain([(0, broker)])
            .collect(),
    }
}

/// Whether the cluster lends its fake nodes as a pool of their own, apart from its real nodes.
/// Tainted nodes are not lent at all.
pub fn lends_two_pools(spec: &ClusterSpec) -> bool {
    spec.fake_nodes.count > 0 && !spec.fake_nodes.taint
}

/// Refuses a broker that these clusters cannot have.
pub fn check_broker(arguments: &Up, specs: &[ClusterSpec]) -> Result<(), BrokerError> {
    let Some(broker) = &arguments.broker else {
        return Ok(());
    };
    match specs.iter().position(|spec| spec.name == *broker) {
        None => return Err(BrokerError::Unknown(broker.clone())),
        Some(0) => return Err(BrokerError::First(broker.clone())),
        Some(_) if specs.len() < 3 => return Err(BrokerError::NoProvider(broker.clone())),
        Some(_) => {}
    }
    let provider = specs
        .iter()
        .skip(1)
        .find(|spec| spec.name != *broker && lends_two_pools(spec));
    provider.map_or(Ok(()), |provider| {
        Err(BrokerError::FakeNodes(provider.name.clone()))
    })
}

/// Refuses invalid arguments before anything is built or started.
pub fn check(arguments: &Up) -> anyhow::Result<()> {
    let mut names = BTreeSet::new();
    if let Some(again) = arguments
        .clusters
        .iter()
        .find(|cluster| !names.insert(&cluster.name))
    {
        return Err(ClusterArgumentError::Twice(again.name.clone()).into());
    }
    let specs = specs(arguments, &[]);
    specs.iter().try_for_each(ClusterSpec::check)?;
    Ok(check_broker(arguments, &specs)?)
}

/// Options of one cluster take precedence over options of all clusters; a cluster in `present`
/// keeps what no option changes.
pub fn specs(arguments: &Up, present: &[ClusterSpec]) -> Vec<ClusterSpec> {
    let resources = (!arguments.fake_node_resources.is_empty())
        .then(|| fake_node_resources(arguments.fake_node_resources.clone()));
    let mut octets: BTreeSet<u8> = present.iter().map(|spec| spec.pod_octet).collect();
    let spec = |cluster: &ClusterArgument| {
        let present = present
            .iter()
            .find(|spec| spec.name == cluster.name)
            .cloned();
        let is_new = present.is_none();
        let mut spec = present.unwrap_or_else(|| ClusterSpec::new(cluster.name.as_str()));
        spec.nodes = cluster.nodes.or(arguments.nodes).unwrap_or(spec.nodes);
        spec.fake_nodes.count = cluster
            .fake_nodes
            .or(arguments.fake_nodes)
            .unwrap_or(spec.fake_nodes.count);
        spec.fake_nodes.taint = arguments.fake_node_taint.unwrap_or(spec.fake_nodes.taint);
        spec.dual_stack |= arguments.dual_stack;
        if arguments.distinct_ranges && is_new && !octets.insert(spec.pod_octet) {
            spec.pod_octet = (200..=255)
                .rev()
                .find(|octet| !octets.contains(octet))
                .unwrap_or(spec.pod_octet);
            octets.insert(spec.pod_octet);
        }
        spec.network_policies |= arguments.network_policies;
        spec.metrics |= arguments.metrics;
        if let Some(resources) = &resources {
            spec.fake_nodes.resources = resources.clone();
        }
        spec
    };
    arguments.clusters.iter().map(spec).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn up(arguments: &[&str]) -> Up {
        let Command::Up(up) =
            Arguments::try_parse_from([&["liqo-playground", "up"], arguments].concat())
                .unwrap()
                .command
        else {
            unreachable!()
        };
        up
    }

    fn counts(specs: &[ClusterSpec]) -> Vec<(&str, u8, u16)> {
        specs
            .iter()
            .map(|spec| (spec.name.as_str(), spec.nodes, spec.fake_nodes.count))
            .collect()
    }

    #[test]
    fn clusters_have_one_node_by_default() {
        assert_eq!(
            counts(&specs(&up(&[]), &[])),
            [("rome", 1, 0), ("milan", 1, 0)]
        );
        let all = up(&["--nodes", "2", "--fake-nodes", "10"]);
        assert_eq!(
            counts(&specs(&all, &[])),
            [("rome", 2, 10), ("milan", 2, 10)]
        );
    }

    #[test]
    fn options_of_one_cluster_override_those_of_all_clusters() {
        let some = up(&[
            "--clusters",
            "rome,milan:nodes=3:fake-nodes=100,turin:fake-nodes=0",
            "--fake-nodes",
            "7",
        ]);
        assert_eq!(
            counts(&specs(&some, &[])),
            [("rome", 1, 7), ("milan", 3, 100), ("turin", 1, 0)]
        );
    }

    #[test]
    fn what_no_option_changes_stays_as_it_is() {
        let first = specs(
            &up(&[
                "--nodes=2",
                "--fake-nodes=5",
                "--fake-node-resources=nvidia.com/gpu=8",
                "--fake-node-taint",
            ]),
            &[],
        );
        assert_eq!(specs(&up(&[]), &first), first);
        let both = specs(&up(&["--dual-stack"]), &[]);
        assert_eq!((both[0].dual_stack, &specs(&up(&[]), &both)), (true, &both));
        let distinct = specs(
            &up(&["--distinct-ranges", "--clusters=rome,milan,turin"]),
            &[],
        );
        let octets = distinct
            .iter()
            .map(|spec| spec.pod_octet)
            .collect::<BTreeSet<_>>();
        assert_eq!(
            (
                octets.len(),
                &specs(&up(&["--clusters=turin,rome,milan"]), &distinct)[1]
            ),
            (3, &distinct[0])
        );
        let running = specs(&up(&[]), &[]);
        assert_eq!(
            specs(&up(&["--distinct-ranges"]), &running),
            running,
            "running clusters keep their ranges"
        );
        let enforced = specs(&up(&["--network-policies"]), &[]);
        assert_eq!(
            (enforced[0].network_policies, &specs(&up(&[]), &enforced)),
            (true, &enforced)
        );
        let measured = specs(&up(&["--metrics"]), &[]);
        assert_eq!(
            (measured[0].metrics, &specs(&up(&[]), &measured)),
            (true, &measured)
        );
        let untainted = specs(
            &up(&[
                "--fake-node-taint=false",
                "--fake-node-resources=cpu=4,pods=10",
            ]),
            &first,
        );
        assert!(!untainted[0].fake_nodes.taint);
        assert_eq!(
            untainted[0].fake_nodes.resources.to_string(),
            "cpu=4, memory=256Gi, pods=10"
        );
    }

    #[test]
    fn the_first_cluster_borrows_from_all_others_or_from_the_broker_alone() {
        assert_eq!(peerings(&up(&[])), [(0, 1)]);
        let three = ["--clusters", "rome,milan,turin"];
        assert_eq!(peerings(&up(&three)), [(0, 1), (0, 2)]);
        let with_broker =
            |clusters, broker| peerings(&up(&["--clusters", clusters, "--broker", broker]));
        assert_eq!(with_broker("rome,milan,turin", "milan"), [(1, 2), (0, 1)]);
        assert_eq!(
            with_broker("rome,turin,genoa,milan", "milan"),
            [(3, 1), (3, 2), (0, 3)]
        );
    }

    #[test]
    fn a_broker_is_neither_the_first_cluster_nor_alone_with_it() {
        let refused = |arguments: &[&str]| {
            let arguments = up(&[arguments, &["--broker", "milan"]].concat());
            check_broker(&arguments, &specs(&arguments, &[])).unwrap_err()
        };
        assert_eq!(
            refused(&["--clusters", "rome,turin"]),
            BrokerError::Unknown("milan".into())
        );
        assert_eq!(
            refused(&["--clusters", "milan,rome,turin"]),
            BrokerError::First("milan".into())
        );
        assert_eq!(refused(&[]), BrokerError::NoProvider("milan".into()));
        assert_eq!(
            refused(&["--clusters", "rome,milan,turin:fake-nodes=1"]),
            BrokerError::FakeNodes("turin".into())
        );
        for fine in [
            "rome,milan,turin",
            "rome:fake-nodes=1,milan:fake-nodes=1,turin",
        ] {
            assert!(
                check(&up(&["--clusters", fine, "--broker", "milan"])).is_ok(),
                "{fine}"
            );
        }
        assert!(
            check(&up(&[
                "--clusters",
                "rome,milan,turin",
                "--fake-nodes=1",
                "--fake-node-taint",
                "--broker",
                "milan"
            ]))
            .is_ok()
        );
    }

    #[test]
    fn a_cluster_that_is_named_twice_is_refused() {
        assert_eq!(
            check(&up(&["--clusters", "rome,milan,rome:nodes=2"]))
                .unwrap_err()
                .to_string(),
            "--clusters names rome more than once"
        );
        assert!(check(&up(&[])).is_ok());
    }

    #[test]
    fn invalid_arguments_are_refused_before_anything_is_built() {
        for invalid in [
            &["--clusters", "ROME"][..],
            &["--clusters", "rome,supervisor"],
            &["--dual-stack", "--network-policies"],
        ] {
            assert!(check(&up(invalid)).is_err(), "{invalid:?}");
        }
    }
}

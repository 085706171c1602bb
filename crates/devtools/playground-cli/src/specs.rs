//! The cluster specifications that `up` asks for, from its arguments and from the clusters that already exist.

use std::collections::BTreeSet;

use liqo_playground::{ClusterSpec, fake_node_resources};

use crate::{
    arguments::Up,
    cluster_argument::{ClusterArgument, ClusterArgumentError},
};

/// Refuses invalid arguments before anything is built or started.
pub fn check(arguments: &Up) -> anyhow::Result<()> {
    let mut names = BTreeSet::new();
    if let Some(again) = arguments.clusters.iter().find(|cluster| !names.insert(&cluster.name)) {
        return Err(ClusterArgumentError::Twice(again.name.clone()).into());
    }
    Ok(specs(arguments, &[]).iter().try_for_each(ClusterSpec::check)?)
}

/// Options of one cluster take precedence over options of all clusters; a cluster in `present` keeps what no option changes.
pub fn specs(arguments: &Up, present: &[ClusterSpec]) -> Vec<ClusterSpec> {
    let resources =
        (!arguments.fake_node_resources.is_empty()).then(|| fake_node_resources(arguments.fake_node_resources.clone()));
    let spec = |cluster: &ClusterArgument| {
        let present = present.iter().find(|spec| spec.name == cluster.name).cloned();
        let mut spec = present.unwrap_or_else(|| ClusterSpec::new(cluster.name.as_str()));
        spec.nodes = cluster.nodes.or(arguments.nodes).unwrap_or(spec.nodes);
        spec.fake_nodes.count = cluster.fake_nodes.or(arguments.fake_nodes).unwrap_or(spec.fake_nodes.count);
        spec.fake_nodes.taint = arguments.fake_node_taint.unwrap_or(spec.fake_nodes.taint);
        spec.dual_stack |= arguments.dual_stack;
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
        let Command::Up(up) = Arguments::try_parse_from([&["liqo-playground", "up"], arguments].concat()).unwrap().command else {
            unreachable!()
        };
        up
    }

    fn counts(specs: &[ClusterSpec]) -> Vec<(&str, u8, u16)> {
        specs.iter().map(|spec| (spec.name.as_str(), spec.nodes, spec.fake_nodes.count)).collect()
    }

    #[test]
    fn clusters_have_one_node_by_default() {
        assert_eq!(counts(&specs(&up(&[]), &[])), [("rome", 1, 0), ("milan", 1, 0)]);
        let all = up(&["--nodes", "2", "--fake-nodes", "10"]);
        assert_eq!(counts(&specs(&all, &[])), [("rome", 2, 10), ("milan", 2, 10)]);
    }

    #[test]
    fn options_of_one_cluster_override_those_of_all_clusters() {
        let some = up(&["--clusters", "rome,milan:nodes=3:fake-nodes=100,turin:fake-nodes=0", "--fake-nodes", "7"]);
        assert_eq!(counts(&specs(&some, &[])), [("rome", 1, 7), ("milan", 3, 100), ("turin", 1, 0)]);
    }

    #[test]
    fn what_no_option_changes_stays_as_it_is() {
        let first =
            specs(&up(&["--nodes=2", "--fake-nodes=5", "--fake-node-resources=nvidia.com/gpu=8", "--fake-node-taint"]), &[]);
        assert_eq!(specs(&up(&[]), &first), first);
        let both = specs(&up(&["--dual-stack"]), &[]);
        assert_eq!((both[0].dual_stack, &specs(&up(&[]), &both)), (true, &both));
        let enforced = specs(&up(&["--network-policies"]), &[]);
        assert_eq!((enforced[0].network_policies, &specs(&up(&[]), &enforced)), (true, &enforced));
        let measured = specs(&up(&["--metrics"]), &[]);
        assert_eq!((measured[0].metrics, &specs(&up(&[]), &measured)), (true, &measured));
        let untainted = specs(&up(&["--fake-node-taint=false", "--fake-node-resources=cpu=4,pods=10"]), &first);
        assert!(!untainted[0].fake_nodes.taint);
        assert_eq!(untainted[0].fake_nodes.resources.to_string(), "cpu=4, memory=256Gi, pods=10");
    }

    #[test]
    fn a_cluster_that_is_named_twice_is_refused() {
        assert_eq!(
            check(&up(&["--clusters", "rome,milan,rome:nodes=2"])).unwrap_err().to_string(),
            "--clusters names rome more than once"
        );
        assert!(check(&up(&[])).is_ok());
    }

    #[test]
    fn invalid_arguments_are_refused_before_anything_is_built() {
        for invalid in [&["--clusters", "ROME"][..], &["--clusters", "rome,supervisor"], &["--dual-stack", "--network-policies"]]
        {
            assert!(check(&up(invalid)).is_err(), "{invalid:?}");
        }
    }
}

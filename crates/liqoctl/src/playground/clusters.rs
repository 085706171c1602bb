//! Which clusters `playground up` brings up, and with how many nodes: `rome,milan:nodes=2:fake-nodes=100`.

use std::{collections::BTreeSet, num::ParseIntError, str::FromStr};

use liqo_playground::{ClusterSpec, MOST_NODES, fake_node_resources};

use crate::cli::PlaygroundUp;

/// One of the `--clusters`: a name, and what is to be different from the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterArgument {
    /// Its name.
    pub name: String,
    /// Its real nodes.
    pub nodes: Option<u8>,
    /// Its fake nodes.
    pub fake_nodes: Option<u16>,
}

/// A cluster that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ClusterArgumentError {
    /// Something that is not `key=number`.
    #[error("{0:?}: after the name of a cluster come :nodes=NUMBER and :fake-nodes=NUMBER, as in rome:nodes=2:fake-nodes=100")]
    Form(String),
    /// A number of nodes that cannot be.
    #[error("{text:?}: a cluster has 1 to {MOST_NODES} real nodes")]
    Nodes {
        /// What was given.
        text: String,
    },
    /// A cluster that is named more than once.
    #[error("--clusters names {0} more than once")]
    Twice(String),
    /// A number that is none.
    #[error("{text:?}: {source}")]
    Number {
        /// What was given.
        text: String,
        /// Why it is no number, or none that can be.
        source: ParseIntError,
    },
}

impl FromStr for ClusterArgument {
    type Err = ClusterArgumentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default().to_owned();
        let mut cluster = Self { name, nodes: None, fake_nodes: None };
        for part in parts {
            let number = |source| ClusterArgumentError::Number { text: part.to_owned(), source };
            match part.split_once('=') {
                Some(("nodes", count)) => {
                    cluster.nodes = Some(nodes(count).map_err(|_| ClusterArgumentError::Nodes { text: part.to_owned() })?);
                }
                Some(("fake-nodes", count)) => cluster.fake_nodes = Some(count.parse().map_err(number)?),
                _ => return Err(ClusterArgumentError::Form(part.to_owned())),
            }
        }
        Ok(cluster)
    }
}

/// A number of real nodes.
pub fn nodes(text: &str) -> Result<u8, ClusterArgumentError> {
    let number = text.parse().ok().filter(|number| (1..=MOST_NODES).contains(number));
    number.ok_or_else(|| ClusterArgumentError::Nodes { text: text.to_owned() })
}

/// Refuses what cannot be before anything is built or started.
pub(super) fn check(arguments: &PlaygroundUp) -> Result<(), ClusterArgumentError> {
    let mut names = BTreeSet::new();
    match arguments.clusters.iter().find(|cluster| !names.insert(&cluster.name)) {
        Some(again) => Err(ClusterArgumentError::Twice(again.name.clone())),
        None => Ok(()),
    }
}

/// What the clusters shall be. What is said of one cluster goes before what is said of all, and what nobody says stays as it is.
pub(super) fn specs(arguments: &PlaygroundUp, present: &[ClusterSpec]) -> Vec<ClusterSpec> {
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
    use crate::cli::{Cli, Command, Playground};

    fn up(arguments: &[&str]) -> PlaygroundUp {
        let Command::Playground(playground) =
            Cli::try_parse_from([&["liqoctl", "playground", "up"], arguments].concat()).unwrap().command
        else {
            unreachable!()
        };
        let Playground::Up(up) = playground.command else { unreachable!() };
        up
    }

    fn counts(specs: &[ClusterSpec]) -> Vec<(&str, u8, u16)> {
        specs.iter().map(|spec| (spec.name.as_str(), spec.nodes, spec.fake_nodes.count)).collect()
    }

    #[test]
    fn clusters_have_one_node_unless_something_else_is_said() {
        assert_eq!(counts(&specs(&up(&[]), &[])), [("rome", 1, 0), ("milan", 1, 0)]);
        let all = up(&["--nodes", "2", "--fake-nodes", "10"]);
        assert_eq!(counts(&specs(&all, &[])), [("rome", 2, 10), ("milan", 2, 10)]);
    }

    #[test]
    fn what_is_said_of_one_cluster_goes_before_what_is_said_of_all() {
        let some = up(&["--clusters", "rome,milan:nodes=3:fake-nodes=100,turin:fake-nodes=0", "--fake-nodes", "7"]);
        assert_eq!(counts(&specs(&some, &[])), [("rome", 1, 7), ("milan", 3, 100), ("turin", 1, 0)]);
    }

    #[test]
    fn what_nobody_says_stays_as_it_is() {
        let first =
            specs(&up(&["--nodes=2", "--fake-nodes=5", "--fake-node-resources=nvidia.com/gpu=8", "--fake-node-taint"]), &[]);
        assert_eq!(specs(&up(&[]), &first), first);
        let both = specs(&up(&["--dual-stack"]), &[]);
        assert_eq!((both[0].dual_stack, &specs(&up(&[]), &both)), (true, &both));
        let enforced = specs(&up(&["--network-policies"]), &[]);
        assert_eq!((enforced[0].network_policies, &specs(&up(&[]), &enforced)), (true, &enforced));
        let untainted = specs(&up(&["--fake-node-taint=false", "--fake-node-resources=cpu=4,pods=10"]), &first);
        assert!(!untainted[0].fake_nodes.taint);
        assert_eq!(untainted[0].fake_nodes.resources.to_string(), "cpu=4, memory=256Gi, pods=10");
    }

    #[test]
    fn a_cluster_that_cannot_be_read_says_how_it_is_written() {
        let refused = |text: &str| text.parse::<ClusterArgument>().unwrap_err().to_string();
        assert!(refused("rome:2").contains("rome:nodes=2:fake-nodes=100"));
        assert!(refused("rome:fake=2").contains("fake-nodes=NUMBER"));
        for text in ["rome:nodes=300", "rome:nodes=0", "rome:nodes=x"] {
            assert!(refused(text).contains("1 to 128 real nodes"), "{}", refused(text));
        }
        assert!(refused("rome:fake-nodes=x").contains("fake-nodes=x"));
        assert!(nodes("500").unwrap_err().to_string().contains("1 to 128"));
        assert_eq!(nodes("128").unwrap(), 128);
        assert_eq!(
            check(&up(&["--clusters", "rome,milan,rome:nodes=2"])).unwrap_err().to_string(),
            "--clusters names rome more than once"
        );
        assert!(check(&up(&[])).is_ok());
    }
}

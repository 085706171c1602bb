//! A value of `--clusters`: `milan:nodes=2:fake-nodes=100`.

use std::{num::ParseIntError, str::FromStr};

use liqo_playground::MAX_NODES;

/// The name of a cluster, and node counts that differ from those of the other clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterArgument {
    pub name: String,
    pub nodes: Option<u8>,
    pub fake_nodes: Option<u16>,
}

#[derive(Debug, thiserror::Error)]
pub enum ClusterArgumentError {
    #[error(
        "{0:?}: after the name of a cluster come :nodes=NUMBER and :fake-nodes=NUMBER, as in rome:nodes=2:fake-nodes=100"
    )]
    Form(String),
    #[error("{text:?}: a cluster has 1 to {MAX_NODES} real nodes")]
    Nodes { text: String },
    #[error("--clusters names {0} more than once")]
    Twice(String),
    #[error("{text:?}: {source}")]
    Number { text: String, source: ParseIntError },
}

impl FromStr for ClusterArgument {
    type Err = ClusterArgumentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default().to_owned();
        let mut cluster = Self {
            name,
            nodes: None,
            fake_nodes: None,
        };
        for part in parts {
            let number = |source| ClusterArgumentError::Number {
                text: part.to_owned(),
                source,
            };
            match part.split_once('=') {
                Some(("nodes", count)) => {
                    cluster.nodes =
                        Some(nodes(count).map_err(|_| ClusterArgumentError::Nodes {
                            text: part.to_owned(),
                        })?);
                }
                Some(("fake-nodes", count)) => {
                    cluster.fake_nodes = Some(count.parse().map_err(number)?);
                }
                _ => return Err(ClusterArgumentError::Form(part.to_owned())),
            }
        }
        Ok(cluster)
    }
}

/// Parses a number of real nodes.
pub fn nodes(text: &str) -> Result<u8, ClusterArgumentError> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (1..=MAX_NODES).contains(number));
    number.ok_or_else(|| ClusterArgumentError::Nodes {
        text: text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_cannot_be_parsed_gets_an_example() {
        let refused = |text: &str| text.parse::<ClusterArgument>().unwrap_err().to_string();
        assert!(refused("rome:2").contains("rome:nodes=2:fake-nodes=100"));
        assert!(refused("rome:fake=2").contains("fake-nodes=NUMBER"));
        for text in ["rome:nodes=300", "rome:nodes=0", "rome:nodes=x"] {
            assert!(
                refused(text).contains("1 to 128 real nodes"),
                "{}",
                refused(text)
            );
        }
        assert!(refused("rome:fake-nodes=x").contains("fake-nodes=x"));
        assert!(nodes("500").unwrap_err().to_string().contains("1 to 128"));
        assert_eq!(nodes("128").unwrap(), 128);
    }
}

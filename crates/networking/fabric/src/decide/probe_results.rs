//! Finds the other gateways of this cluster that stopped answering probes.

use std::{collections::BTreeMap, time::Duration};

use liqo_api::SuspectedGateways;

pub const PROBE_PERIOD: Duration = Duration::from_millis(300);
/// Less than the period, so a round ends before the next one begins.
pub const PROBE_TIMEOUT: Duration = Duration::from_millis(250);
/// A node that answered before is suspected when it misses this many probes in a row.
const MAX_MISSES: u8 = 3;

/// Another node that holds a gateway's Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherGateway {
    pub node: String,
    /// The number of its Lease.
    pub number: u8,
    /// The version of its Lease.
    pub version: String,
}

#[derive(Clone, Debug, Default)]
pub struct ProbeResults(BTreeMap<String, ProbedNode>);

#[derive(Clone, Debug, Default)]
struct ProbedNode {
    has_answered: bool,
    missed: u8,
    /// The number and version of its Lease when it was first suspected.
    suspected: Option<(u8, String)>,
}

impl ProbeResults {
    /// Records a round of probes, and which gateways answered. Returns the suspected ones if they
    /// changed. A node that never answered is not suspected: a firewall may be in the way.
    pub fn record_round(&mut self, round: &[(OtherGateway, bool)]) -> Option<SuspectedGateways> {
        let before = self.suspected_gateways();
        // If none of several nodes answers, it is this node that has no network.
        if round.len() > 1 && !round.iter().any(|(_, has_answered)| *has_answered) {
            return None;
        }
        self.0
            .retain(|node, _| round.iter().any(|(other, _)| other.node == *node));
        for (other, has_answered) in round {
            let probed = self.0.entry(other.node.clone()).or_default();
            if *has_answered {
                *probed = ProbedNode {
                    has_answered: true,
                    ..ProbedNode::default()
                };
                continue;
            }
            probed.missed = probed.missed.saturating_add(1);
            if probed.has_answered && probed.missed >= MAX_MISSES {
                // Only once: if it renews its Lease all the same, only this node cannot reach it.
                *probed = ProbedNode {
                    suspected: Some((other.number, other.version.clone())),
                    ..ProbedNode::default()
                };
            }
        }
        let now = self.suspected_gateways();
        (now != before).then_some(now)
    }

    fn suspected_gateways(&self) -> SuspectedGateways {
        self.0
            .values()
            .filter_map(|probed| probed.suspected.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(node: &str, number: u8, version: &str) -> OtherGateway {
        OtherGateway {
            node: node.to_owned(),
            number,
            version: version.to_owned(),
        }
    }

    /// The suspected gateways after each round with one other node, where they changed.
    fn suspected(
        results: &mut ProbeResults,
        version: &str,
        answers: &[bool],
    ) -> Vec<Option<String>> {
        let round = |answer: &bool| {
            results
                .record_round(&[(other("n1", 0, version), *answer)])
                .map(|suspected| suspected.to_string())
        };
        answers.iter().map(round).collect()
    }

    #[test]
    fn a_node_that_stops_answering_is_suspected_once_with_the_version_of_its_lease() {
        let mut results = ProbeResults::default();
        let none = || None;
        assert_eq!(
            suspected(
                &mut results,
                "10",
                &[true, false, false, true, false, false]
            ),
            vec![None; 6]
        );
        assert_eq!(
            suspected(&mut results, "11", &[false]),
            [Some("0@11".to_owned())]
        );
        assert_eq!(
            suspected(&mut results, "12", &[false; 9]),
            vec![None; 9],
            "it renewed its Lease since"
        );
        assert_eq!(
            suspected(&mut results, "12", &[true, false]),
            [Some(String::new()), none()]
        );
        assert_eq!(
            suspected(&mut results, "13", &[false, false]),
            [none(), Some("0@13".to_owned())]
        );
    }

    #[test]
    fn a_node_that_never_answered_is_not_suspected() {
        assert_eq!(
            suspected(&mut ProbeResults::default(), "10", &[false; 20]),
            vec![None; 20]
        );
    }

    #[test]
    fn a_node_that_reaches_none_of_several_suspects_nobody() {
        let mut results = ProbeResults::default();
        let mut both = |answers: [bool; 2]| {
            results.record_round(&[
                (other("n1", 0, "10"), answers[0]),
                (other("n2", 1, "11"), answers[1]),
            ])
        };
        assert_eq!(both([true, true]), None);
        assert!((0..9).all(|_| both([false, false]).is_none()));
        assert_eq!((both([true, false]), both([true, false])), (None, None));
        assert_eq!(
            both([true, false]).map(|suspected| suspected.to_string()),
            Some("1@11".to_owned())
        );
    }

    #[test]
    fn a_node_that_holds_no_lease_any_more_is_forgotten() {
        let mut results = ProbeResults::default();
        suspected(&mut results, "10", &[true, false, false, false]);
        let another = results.record_round(&[(other("n3", 0, "14"), true)]);
        assert_eq!(another, Some(SuspectedGateways::default()));
    }
}

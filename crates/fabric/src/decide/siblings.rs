//! Which of the other gateways of this cluster are not heard any more.

use std::{collections::BTreeMap, time::Duration};

use liqo_api::Unheard;

/// So often the nodes of the other gateways are asked whether they are there.
pub const PERIOD: Duration = Duration::from_millis(300);
/// How long a node has to answer: less than the period, so that a round ends before the next one.
pub const PATIENCE: Duration = Duration::from_millis(250);
/// A node that was heard, and leaves so many questions in a row without an answer, is not heard any more.
const MISSES: u8 = 3;

/// Another node that holds a gateway's Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// The node.
    pub node: String,
    /// The number of its Lease.
    pub number: u8,
    /// The version of its Lease.
    pub version: String,
}

/// What was heard of each of them.
#[derive(Clone, Debug, Default)]
pub struct Siblings(BTreeMap<String, Sibling>);

#[derive(Clone, Debug, Default)]
struct Sibling {
    was_heard: bool,
    missed: u8,
    unheard: Option<(u8, String)>,
}

impl Siblings {
    /// They were asked, and have answered or not. Returns whom this node does not hear any more if that changed. One that never
    /// answered is not among them: a firewall may be in the way.
    pub fn asked(&mut self, asked: &[(Other, bool)]) -> Option<Unheard> {
        let before = self.unheard();
        // Who hears none of several is the one that cannot be heard.
        if asked.len() > 1 && !asked.iter().any(|(_, has_answered)| *has_answered) {
            return None;
        }
        self.0.retain(|node, _| asked.iter().any(|(other, _)| other.node == *node));
        for (other, has_answered) in asked {
            let sibling = self.0.entry(other.node.clone()).or_default();
            if *has_answered {
                *sibling = Sibling { was_heard: true, ..Sibling::default() };
                continue;
            }
            sibling.missed = sibling.missed.saturating_add(1);
            if sibling.was_heard && sibling.missed >= MISSES {
                // Once: if it renews its Lease all the same, it is only we who do not hear it.
                *sibling = Sibling { unheard: Some((other.number, other.version.clone())), ..Sibling::default() };
            }
        }
        let now = self.unheard();
        (now != before).then_some(now)
    }

    fn unheard(&self) -> Unheard {
        self.0.values().filter_map(|sibling| sibling.unheard.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(node: &str, number: u8, version: &str) -> Other {
        Other { node: node.to_owned(), number, version: version.to_owned() }
    }

    /// What is said after each round with one other node.
    fn said(siblings: &mut Siblings, version: &str, answers: &[bool]) -> Vec<Option<String>> {
        let round = |answer: &bool| siblings.asked(&[(other("n1", 0, version), *answer)]).map(|unheard| unheard.to_string());
        answers.iter().map(round).collect()
    }

    #[test]
    fn who_stops_to_answer_is_named_once_with_the_lease_as_it_was_then() {
        let mut siblings = Siblings::default();
        let none = || None;
        assert_eq!(said(&mut siblings, "10", &[true, false, false, true, false, false]), vec![None; 6]);
        assert_eq!(said(&mut siblings, "11", &[false]), [Some("0@11".to_owned())]);
        assert_eq!(said(&mut siblings, "12", &[false; 9]), vec![None; 9], "that it renewed its Lease is left to stand");
        assert_eq!(said(&mut siblings, "12", &[true, false]), [Some(String::new()), none()]);
        assert_eq!(said(&mut siblings, "13", &[false, false]), [none(), Some("0@13".to_owned())]);
    }

    #[test]
    fn who_never_answered_is_not_named() {
        assert_eq!(said(&mut Siblings::default(), "10", &[false; 20]), vec![None; 20]);
    }

    #[test]
    fn who_hears_none_of_several_names_nobody() {
        let mut siblings = Siblings::default();
        let mut both =
            |answers: [bool; 2]| siblings.asked(&[(other("n1", 0, "10"), answers[0]), (other("n2", 1, "11"), answers[1])]);
        assert_eq!(both([true, true]), None);
        assert!((0..9).all(|_| both([false, false]).is_none()));
        assert_eq!((both([true, false]), both([true, false])), (None, None));
        assert_eq!(both([true, false]).map(|unheard| unheard.to_string()), Some("1@11".to_owned()));
    }

    #[test]
    fn who_holds_no_lease_any_more_is_forgotten() {
        let mut siblings = Siblings::default();
        said(&mut siblings, "10", &[true, false, false, false]);
        let another = siblings.asked(&[(other("n3", 0, "14"), true)]);
        assert_eq!(another, Some(Unheard::default()));
    }
}

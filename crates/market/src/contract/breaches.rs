//! The list of breaches that one side keeps.

use std::collections::BTreeMap;

use jiff::Timestamp;
use liqo_api::conditions::DesiredCondition;
use liqo_api::{Breach, BreachKind, HONOURED, MAX_BREACHES, MAX_CONTRACT_MESSAGE_LEN, Party, Time};

use super::whole_seconds;

/// A breach that was found now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BreachFinding {
    pub by: Party,
    pub kind: BreachKind,
    /// A pool, or the contract.
    pub object: String,
    /// The evidence.
    pub message: String,
}

impl BreachFinding {
    pub fn new(by: Party, kind: BreachKind, object: &str, message: impl Into<String>) -> Self {
        Self {
            by,
            kind,
            object: object.to_owned(),
            message: bounded_text(&message.into()),
        }
    }

    /// Whether a breach in the list is this one.
    fn is_listed_as(&self, breach: &Breach) -> bool {
        (self.by, self.kind, &self.object) == (breach.by, breach.kind, &breach.object)
    }

    /// Identifies a finding among those against one side.
    fn place(&self) -> (BreachKind, String) {
        (self.kind, self.object.clone())
    }
}

/// A text of bounded length for the other side.
pub fn bounded_text(message: &str) -> String {
    message.chars().take(MAX_CONTRACT_MESSAGE_LEN).collect()
}

/// Whether a breach of this kind is over when it is no longer found. The others are facts that
/// stay.
fn ends_when_unseen(kind: BreachKind) -> bool {
    match kind {
        BreachKind::CapacityMissing
        | BreachKind::TermsDiffer
        | BreachKind::TermsNotSigned
        | BreachKind::PriceDiffers
        | BreachKind::EndNotAccepted
        | BreachKind::ReceiptsNotAnswered => true,
        BreachKind::NoticeTooShort | BreachKind::EndedEarly => false,
    }
}

/// The list after these findings. Kinds in `unknown` could not be looked at now, so that their
/// breaches last. A list that needs no change stays the same.
pub fn update_breaches(
    listed: &[Breach],
    found: &[BreachFinding],
    unknown: &[BreachKind],
    now: Timestamp,
) -> Vec<Breach> {
    let time = Time(whole_seconds(now));
    let mut all: Vec<Breach> = listed.to_vec();
    for breach in all
        .iter_mut()
        .filter(|breach| breach.until.is_none() && ends_when_unseen(breach.kind))
    {
        let is_found = found.iter().any(|finding| finding.is_listed_as(breach));
        if !unknown.contains(&breach.kind) && !is_found {
            breach.until = Some(time.clone());
        }
    }
    for finding in found {
        if all
            .iter()
            .any(|breach| breach.until.is_none() && finding.is_listed_as(breach))
        {
            continue;
        }
        let BreachFinding {
            by,
            kind,
            object,
            message,
        } = finding.clone();
        all.push(Breach {
            by,
            kind,
            object,
            time: time.clone(),
            until: None,
            message,
        });
    }
    // Old ones go first; those that last stay as long as there is room.
    while all.len() > MAX_BREACHES {
        let oldest = all
            .iter()
            .position(|breach| breach.until.is_some())
            .unwrap_or_default();
        all.remove(oldest);
    }
    all
}

/// The breaches of one side that last.
pub fn lasting_breaches(breaches: &[Breach], by: Party) -> impl Iterator<Item = &Breach> {
    breaches
        .iter()
        .filter(move |breach| breach.by == by && breach.until.is_none())
}

/// The condition `Honoured`, from what both sides found.
pub fn honoured_condition(of_provider: &[Breach], of_consumer: &[Breach]) -> DesiredCondition {
    let all: Vec<&Breach> = of_provider.iter().chain(of_consumer).collect();
    let mut open: Vec<&&Breach> = all.iter().filter(|breach| breach.until.is_none()).collect();
    open.sort_by_key(|breach| breach.time.0);
    if let Some(newest) = open.last() {
        let more = if open.len() > 1 {
            format!("; {} breaches last", open.len())
        } else {
            String::new()
        };
        let message = format!(
            "by the {}, {}: {}{more}",
            newest.by, newest.object, newest.message
        );
        return DesiredCondition::no(HONOURED, newest.kind.as_str(), message);
    }
    let message = match all.len() {
        0 => "both sides did what the contract says".to_owned(),
        1 => "one breach is over".to_owned(),
        number => format!("{number} breaches are over"),
    };
    DesiredCondition::yes(HONOURED, "Honoured", message)
}

/// Problems that this process saw, each with its begin. One that lasts for less than the tolerance
/// is no breach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnconfirmedBreaches(BTreeMap<(BreachKind, String), Timestamp>);

impl UnconfirmedBreaches {
    /// Keeps the findings that last for longer than the tolerance. Returns the time at which the
    /// next one does.
    pub fn confirm_lasting(
        &mut self,
        found: &[BreachFinding],
        now: Timestamp,
    ) -> (Vec<BreachFinding>, Option<Timestamp>) {
        self.0.retain(|known, since| {
            *since <= now && found.iter().any(|finding| finding.place() == *known)
        });
        for finding in found {
            self.0.entry(finding.place()).or_insert(now);
        }
        let (mut lasting, mut next) = (Vec::new(), None);
        for finding in found {
            let due = self.confirmation_time(finding);
            if due <= now {
                lasting.push(finding.clone());
            } else {
                next = [next, Some(due)].into_iter().flatten().min();
            }
        }
        (lasting, next)
    }

    fn confirmation_time(&self, finding: &BreachFinding) -> Timestamp {
        self.0
            .get(&finding.place())
            .and_then(|since| since.saturating_add(super::TOLERANCE).ok())
            .unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::contract::fixtures::at;

    fn missing(pool: &str) -> BreachFinding {
        BreachFinding::new(
            Party::Provider,
            BreachKind::CapacityMissing,
            pool,
            "cpu: 2 of 4",
        )
    }

    #[test]
    fn a_breach_is_listed_once_while_it_lasts_and_then_has_an_end() {
        let first = update_breaches(&[], &[missing("default")], &[], at(10));
        assert_eq!((first.len(), first[0].until.clone()), (1, None));
        assert_eq!(
            update_breaches(&first, &[missing("default")], &[], at(20)),
            first
        );
        let over = update_breaches(&first, &[], &[], at(30));
        assert_eq!(over[0].until, Some(Time(at(30))));
        let again = update_breaches(&over, &[missing("default")], &[], at(40));
        assert_eq!(again.len(), 2);
    }

    #[test]
    fn a_breach_that_cannot_be_looked_at_lasts() {
        let first = update_breaches(&[], &[missing("default")], &[], at(10));
        assert_eq!(
            update_breaches(&first, &[], &[BreachKind::CapacityMissing], at(30)),
            first
        );
    }

    #[test]
    fn a_notice_that_was_too_short_stays_a_fact() {
        let finding = BreachFinding::new(
            Party::Provider,
            BreachKind::NoticeTooShort,
            "default",
            "10 s instead of 300 s",
        );
        let listed = update_breaches(&[], &[finding], &[], at(10));
        assert_eq!(update_breaches(&listed, &[], &[], at(30)), listed);
        let condition = honoured_condition(&[], &listed);
        assert_eq!(
            (condition.status, condition.reason.as_str()),
            (Some(false), "NoticeTooShort")
        );
        assert_eq!(
            condition.message,
            "by the provider, default: 10 s instead of 300 s"
        );
    }

    #[test]
    fn a_contract_is_honoured_again_when_the_last_breach_is_over() {
        assert_eq!(honoured_condition(&[], &[]).status, Some(true));
        let first = update_breaches(&[], &[missing("default")], &[], at(10));
        assert_eq!(honoured_condition(&first, &[]).status, Some(false));
        let over = update_breaches(&first, &[], &[], at(30));
        assert_eq!(
            (
                honoured_condition(&over, &[]).status,
                honoured_condition(&over, &[]).message
            ),
            (Some(true), "one breach is over".to_owned())
        );
    }

    #[test]
    fn what_is_wrong_for_less_than_the_tolerance_is_no_breach() {
        let mut unconfirmed = UnconfirmedBreaches::default();
        assert_eq!(
            unconfirmed.confirm_lasting(&[missing("a")], at(0)),
            (vec![], Some(at(300)))
        );
        assert_eq!(
            unconfirmed.confirm_lasting(&[missing("a")], at(299)),
            (vec![], Some(at(300)))
        );
        assert_eq!(unconfirmed.confirm_lasting(&[], at(299)), (vec![], None));
        assert_eq!(
            unconfirmed.confirm_lasting(&[missing("a")], at(400)),
            (vec![], Some(at(700)))
        );
        assert_eq!(
            unconfirmed.confirm_lasting(&[missing("a")], at(700)),
            (vec![missing("a")], None)
        );
    }

    #[test]
    fn a_clock_that_is_set_back_starts_the_tolerance_again() {
        let mut unconfirmed = UnconfirmedBreaches::default();
        unconfirmed.confirm_lasting(&[missing("a")], at(1000));
        assert_eq!(
            unconfirmed.confirm_lasting(&[missing("a")], at(0)),
            (vec![], Some(at(300)))
        );
    }

    proptest! {
        #[test]
        fn the_list_is_bounded_and_does_not_change_by_itself(events in vec((0..4_usize, any::<bool>()), 0..200)) {
            let pools = ["a", "b", "c", "d"];
            let (mut listed, mut open) = (Vec::new(), [false; 4]);
            for (second, (pool, wrong)) in events.into_iter().enumerate() {
                open[pool] = wrong;
                let found: Vec<BreachFinding> = pools.iter().zip(open).filter(|(_, wrong)| *wrong).map(|(pool, _)| missing(pool)).collect();
                let now = at(i64::try_from(second).unwrap());
                listed = update_breaches(&listed, &found, &[], now);
                prop_assert!(listed.len() <= MAX_BREACHES);
                prop_assert_eq!(lasting_breaches(&listed, Party::Provider).count(), open.iter().filter(|wrong| **wrong).count());
                prop_assert_eq!(&update_breaches(&listed, &found, &[], at(1_000_000)), &listed);
            }
        }
    }
}

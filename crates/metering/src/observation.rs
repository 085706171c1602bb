//! The consumer's knowledge of one pod, and the provider's charges that it adopts.
//!
//! The consumer has no exact times of its own. It knows, by its own clock, when it sent the pod and
//! when the record was gone. It adopts charges of the provider that are between these two times,
//! give or take the allowed difference of clocks. A provider's clock may be ahead or behind, but a
//! pod cannot run for longer: the length of a span does not depend on that difference. So no pod is
//! charged for more seconds than it was sent, plus a few.

use liqo_api::Claimed;
use liqo_quantity::ResourceList;

use crate::Seconds;
use crate::charges::Charges;
use crate::entry::{EntryTime, UsageEntry, is_name, normalized_amounts};
use crate::period::Period;

/// Maximum difference in seconds between the clocks within one cluster: API server, nodes and
/// manager. Times are whole seconds.
pub const CLOCKS_OF_A_CLUSTER: Seconds = 5;

/// One pod that the consumer sent.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerObservation<'a> {
    /// UID of the local pod.
    pub uid: &'a str,
    /// Namespace of the local pod.
    pub namespace: &'a str,
    /// The pool that it used.
    pub pool: &'a str,
    /// Earliest time at which it was sent, by the consumer's clock.
    pub sent: Seconds,
    /// Time at which its record was seen gone, by the consumer's clock. `None` while it exists.
    pub gone: Option<Seconds>,
    /// Time at which the provider stops to charge it because its shadow pod was deleted, by the
    /// provider's clock.
    pub charged_until: Claimed<Option<Seconds>>,
    /// Amounts that the provider may charge for it: those that it had at any time, as this cluster
    /// knows by itself. Without them, nothing that the provider says is adopted.
    pub asked: &'a [ResourceList],
    /// The provider's charges, as far as they were seen.
    pub charges: Claimed<&'a Charges>,
}

/// The entry of a pod that is gone and was never charged. It has no second. Without it, a provider
/// could create its shadow pod again and charge it: see
/// [`may_have_run_on`](crate::voucher::may_have_run_on).
pub fn never_charged(uid: &str, pool: &str, now: Seconds) -> Option<UsageEntry> {
    let (uid, pool, namespace) = (uid.to_owned(), pool.to_owned(), String::new());
    let (from, until) = (EntryTime::exact(now), EntryTime::estimate(now));
    UsageEntry {
        uid,
        pool,
        from,
        until,
        amounts: ResourceList::new(),
        namespace,
    }
    .if_valid()
}

impl ConsumerObservation<'_> {
    /// The consumer's own entries at the time `now`, by its own clock. `clocks`: how many seconds
    /// the clocks of both sides may differ. Nothing for a pod that the provider never charged, as
    /// far as was seen, and that is not gone.
    pub fn entries(&self, now: Seconds, clocks: Seconds) -> Vec<UsageEntry> {
        let mut entries = self.entries_of_any_namespace(now, clocks);
        // The provider's copy may have said anything.
        let namespace = if is_name(self.namespace) {
            self.namespace
        } else {
            ""
        };
        for entry in &mut entries {
            namespace.clone_into(&mut entry.namespace);
        }
        let mut entries: Vec<UsageEntry> = entries
            .into_iter()
            .filter_map(UsageEntry::if_valid)
            .collect();
        // A pod that ended in the second in which it began, or by the provider's clock before it
        // was sent, is known to have ended, too.
        if self.gone.is_some()
            && entries
                .iter()
                .all(|entry| entry.until.at <= self.sent && entry.from.at < self.sent)
        {
            entries.extend(never_charged(self.uid, self.pool, self.sent));
        }
        entries
    }

    fn entries_of_any_namespace(&self, now: Seconds, clocks: Seconds) -> Vec<UsageEntry> {
        let seen = self.gone.unwrap_or(now);
        let (charges, charged_until) =
            (*self.charges.unverified(), *self.charged_until.unverified());
        let latest = charged_until.unwrap_or(seen).min(seen);
        let is_gone = self.gone.is_some() || charged_until.is_some_and(|end| end <= now);
        let most = self
            .asked
            .iter()
            .fold(ResourceList::new(), |all, one| all.max(one));
        if let Some((shown, until)) = charges.span() {
            let from = shown.max(self.sent.saturating_sub(clocks));
            let end = self
                .latest_end(from, seen)
                .min(latest.saturating_add(clocks));
            let is_within = from == shown && until.unwrap_or(from).max(from) <= end;
            return if !is_within
                || !charges
                    .amounts()
                    .all(|amounts| self.may_be_charged(amounts))
            {
                // The begin is the provider's, as far as possible: by its clock the pod ended then
                // at the latest.
                vec![self.own_entry(EntryTime::exact(from.min(end)), end, &most)]
            } else if is_gone {
                charges.estimated_entries(self.uid, self.pool, end, &most)
            } else {
                charges.entries(self.uid, self.pool, now.min(end))
            };
        } else if !is_gone {
            return Vec::new();
        }
        // Both by our clock: by that of the provider its charges may end as much later as the
        // clocks differ.
        let until = charged_until.map_or(seen, |end| end.saturating_add(clocks).min(seen));
        vec![self.own_entry(EntryTime::estimate(self.sent.min(until)), until, &most)]
    }

    /// The entry that this cluster counts by itself, for the most that the pod may be charged.
    fn own_entry(&self, from: EntryTime, until: Seconds, most: &ResourceList) -> UsageEntry {
        let (uid, pool, namespace) = (self.uid.to_owned(), self.pool.to_owned(), String::new());
        UsageEntry {
            uid,
            pool,
            from,
            until: EntryTime::estimate(until),
            amounts: normalized_amounts(most),
            namespace,
        }
    }

    /// Latest end of a pod that is charged from `from` on, by the provider's clock. It was not
    /// created before it was sent, so it ran no longer than from then until it was `seen` last.
    fn latest_end(&self, from: Seconds, seen: Seconds) -> Seconds {
        let end = from.saturating_add(seen.saturating_sub(self.sent));
        self.charged_until
            .unverified()
            .unwrap_or(end)
            .min(end)
            .saturating_add(CLOCKS_OF_A_CLUSTER)
    }

    fn may_be_charged(&self, amounts: &ResourceList) -> bool {
        self.asked
            .iter()
            .any(|asked| normalized_amounts(asked) == *amounts)
    }
}

/// The parts of the consumer's entries with their periods. An estimate close to a boundary also
/// leaves an entry without a second at the other side of it: by the provider's clock the pod may
/// have been there. The end of an entry whose begin is the provider's is by its clock.
pub fn parts_with_witnesses(
    entry: &UsageEntry,
    seconds: u32,
    clocks: Seconds,
) -> Vec<(Period, UsageEntry)> {
    let mut parts = Period::parts(entry, seconds);
    let (first, last) = (
        Period::at(entry.from.at, seconds),
        Period::at(entry.until.at.saturating_sub(1).max(entry.from.at), seconds),
    );
    if entry.from.is_estimate && entry.from.at.saturating_sub(clocks) < first.start {
        parts.insert(0, (first.previous(), witness_at(first.start, entry)));
    }
    if entry.from.is_estimate
        && entry.until.is_estimate
        && entry.until.at.saturating_add(clocks) > last.end()
    {
        parts.push((last.next(), witness_at(last.end(), entry)));
    }
    parts
}

fn witness_at(time: Seconds, entry: &UsageEntry) -> UsageEntry {
    UsageEntry {
        from: EntryTime::estimate(time),
        until: EntryTime::estimate(time),
        ..entry.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::tests::list;

    fn entries(charges: &str, gone: Option<Seconds>, asked: &[ResourceList]) -> Vec<String> {
        let charges = charges.parse().unwrap();
        let observation = ConsumerObservation {
            uid: "u",
            namespace: "",
            pool: "p",
            sent: 1000,
            gone,
            charged_until: Claimed::default(),
            asked,
            charges: Claimed::new(&charges),
        };
        observation
            .entries(2000, 300)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn charges_within_the_bounds_are_adopted() {
        let asked = [list("cpu=1")];
        assert_eq!(
            entries("1003- cpu=1", None, &asked),
            ["u p 1003 2000 cpu=1"]
        );
        assert_eq!(
            entries("1003- cpu=1", Some(1500), &asked),
            ["u p 1003 ~1508 cpu=1"]
        );
        assert_eq!(
            entries("1003-1490 cpu=1", Some(1500), &asked),
            ["u p 1003 1490 cpu=1"]
        );
        assert_eq!(
            entries("800-1300 cpu=1", Some(1500), &asked),
            ["u p 800 1300 cpu=1"],
            "the provider's clock is behind"
        );
        assert_eq!(
            entries("1300-1790 cpu=1", Some(1500), &asked),
            ["u p 1300 1790 cpu=1"],
            "it is ahead"
        );
    }

    #[test]
    fn the_clock_tolerance_makes_no_pod_longer() {
        let asked = [list("cpu=1")];
        assert_eq!(
            entries("995-1500 cpu=1", Some(1500), &asked),
            ["u p 995 1500 cpu=1"],
            "a few seconds"
        );
        for stretched in [
            "700-1700 cpu=1",
            "700-1500 cpu=1",
            "700-1000 cpu=1; 1000-1800 cpu=1",
            "700- cpu=1",
        ] {
            assert_eq!(
                entries(stretched, Some(1500), &asked),
                ["u p 700 ~1205 cpu=1"],
                "{stretched}"
            );
        }
        assert_eq!(
            entries("700- cpu=1", None, &asked),
            ["u p 700 1705 cpu=1"],
            "while it runs, too"
        );
        assert_eq!(
            entries("1300-1801 cpu=1", Some(1500), &asked),
            ["u p 1300 ~1800 cpu=1"],
            "after the clock tolerance"
        );
        assert_eq!(
            entries("699-1000 cpu=1", Some(1500), &asked),
            ["u p 700 ~1205 cpu=1"],
            "before it"
        );
    }

    #[test]
    fn nothing_is_charged_after_the_grace_of_a_deleted_pod_by_the_providers_clock() {
        let asked = [list("cpu=1")];
        let entries = |charges: &str, gone: Option<Seconds>| {
            let charges = charges.parse().unwrap();
            let observation = ConsumerObservation {
                uid: "u",
                namespace: "",
                pool: "p",
                sent: 1000,
                gone,
                charged_until: Claimed::new(Some(1230)),
                asked: &asked,
                charges: Claimed::new(&charges),
            };
            observation
                .entries(2000, 300)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            entries("1003- cpu=1", None),
            ["u p 1003 ~1235 cpu=1"],
            "although it still exists"
        );
        assert_eq!(
            entries("1003-1230 cpu=1", Some(1900)),
            ["u p 1003 1230 cpu=1"]
        );
        assert_eq!(
            entries("1003-1300 cpu=1", Some(1900)),
            ["u p 1003 ~1235 cpu=1"]
        );
        assert_eq!(
            entries("", Some(1900)),
            ["u p ~1000 ~1530 cpu=1"],
            "by our clock"
        );
        assert_eq!(entries("", Some(1240)), ["u p ~1000 ~1240 cpu=1"]);
    }

    #[test]
    fn every_entry_has_the_namespace_of_the_pod() {
        for charges in ["1003- cpu=1", "600- cpu=1", ""] {
            let charges = charges.parse().unwrap();
            let asked = [list("cpu=1")];
            let observation = ConsumerObservation {
                uid: "u",
                namespace: "demo",
                pool: "p",
                sent: 1000,
                gone: Some(1500),
                charged_until: Claimed::default(),
                asked: &asked,
                charges: Claimed::new(&charges),
            };
            assert!(
                observation
                    .entries(2000, 300)
                    .iter()
                    .all(|entry| entry.namespace == "demo")
            );
        }
    }

    #[test]
    fn charges_outside_of_the_bounds_are_replaced_by_what_the_consumer_saw() {
        let asked = [list("cpu=1")];
        assert_eq!(
            entries("600- cpu=1", Some(1500), &asked),
            ["u p 700 ~1205 cpu=1"]
        );
        assert_eq!(
            entries("1003-1900 cpu=1", Some(1500), &asked),
            ["u p 1003 ~1508 cpu=1"]
        );
        assert_eq!(
            entries("1003- cpu=2", Some(1500), &asked),
            ["u p 1003 ~1508 cpu=1"]
        );
    }

    #[test]
    fn no_amount_is_adopted_only_because_the_provider_says_it() {
        for charges in ["1003- cpu=1", "1003-1490 cpu=1"] {
            assert_eq!(
                entries(charges, Some(1500), &[]),
                ["u p 1003 ~1508 -"],
                "{charges}"
            );
        }
    }

    #[test]
    fn a_pod_without_a_second_leaves_an_entry_when_it_is_gone() {
        let asked = [list("cpu=1")];
        assert_eq!(
            entries("1003-1003 cpu=1", Some(1500), &asked),
            ["u p 1000 ~1000 -"]
        );
        assert_eq!(
            entries("950-990 cpu=1", Some(1500), &asked),
            ["u p 950 990 cpu=1", "u p 1000 ~1000 -"]
        );
        assert!(entries("1003-1003 cpu=1", None, &asked).is_empty());
    }

    #[test]
    fn a_pod_that_is_resized_may_be_charged_both_amounts() {
        let asked = [list("cpu=1"), list("cpu=2")];
        let charged = entries("1003-1100 cpu=1; 1100- cpu=2", Some(1500), &asked);
        assert_eq!(charged, ["u p 1003 1100 cpu=1", "u p 1100 ~1508 cpu=2"]);
        assert_eq!(
            entries("1003- cpu=1", Some(1500), &asked),
            ["u p 1003 ~1508 cpu=2"],
            "it may have been resized unseen"
        );
    }

    #[test]
    fn a_pod_that_waits_is_charged_nothing_and_one_that_went_unseen_may_have_been() {
        assert!(entries("", None, &[list("cpu=1")]).is_empty());
        assert_eq!(
            entries("", Some(1500), &[list("cpu=1")]),
            ["u p ~1000 ~1500 cpu=1"]
        );
    }

    #[test]
    fn an_estimate_close_to_a_boundary_leaves_a_witness_at_its_other_side() {
        let parts = |line: &str| {
            let parts = parts_with_witnesses(&line.parse().unwrap(), 60, 20);
            parts
                .iter()
                .map(|(period, part)| format!("{}: {part}", period.start))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            parts("u p ~90 ~110 -"),
            ["60: u p ~90 ~110 -", "120: u p ~120 ~120 -"]
        );
        assert_eq!(
            parts("u p 70 ~110 -"),
            ["60: u p 70 ~110 -"],
            "by the provider's clock"
        );
        assert_eq!(
            parts("u p ~70 ~110 -"),
            [
                "0: u p ~60 ~60 -",
                "60: u p ~70 ~110 -",
                "120: u p ~120 ~120 -"
            ]
        );
        assert_eq!(parts("u p 70 110 -"), ["60: u p 70 110 -"]);
        assert_eq!(
            parts("u p ~90 ~120 -"),
            ["60: u p ~90 ~120 -", "120: u p ~120 ~120 -"]
        );
    }
}

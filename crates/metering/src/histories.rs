//! Random histories of pods and of both managers: restarts, lost watches, repeated and late
//! observations, pods that vanish while a manager is down, clocks that differ. Both sides must come
//! to the same seconds, and a side that lies is found by the names of the pods.

use std::collections::{BTreeMap, BTreeSet};

use liqo_api::Claimed;
use proptest::prelude::*;

use crate::entry::UsageEntry;
use crate::entry::tests::list;
use crate::observation::parts_with_witnesses;
use crate::{
    Charges, ConsumerObservation, Period, Seconds, SeenPod, Tolerance, UsageEntries, compare_usage,
};

const PERIOD: u32 = 600;
/// Both sides complete a period so much later.
const GRACE: Seconds = 60;
const CLOCKS: Seconds = 300;
/// Time at which all pods are gone and all periods complete.
const END: Seconds = 8000;
/// A process that did not look for so long was not there.
const RESTART: Seconds = 20;
/// Maximum time for which a pod is charged after its deletion.
const GRACE_OF_PODS: Seconds = 30;

/// Events of one pod, in true seconds.
#[derive(Clone, Debug)]
struct Story {
    sent: Seconds,
    /// It ends by itself so long after its creation.
    ends_after: Option<Seconds>,
    resized_after: Option<Seconds>,
    /// Somebody at the provider removes it so long after its creation. Then it is created again.
    vanishes_after: Option<Seconds>,
    /// The consumer deletes it so long after it was sent, whether the provider's process runs or
    /// not.
    deleted_after: Seconds,
    /// Time for which the remote pod stays after the provider deleted it.
    lingers: Seconds,
    /// The provider dies between storing the entry and releasing the record.
    dies_before_release: bool,
}

#[derive(Clone, Debug)]
struct History {
    pods: Vec<Story>,
    /// Times at which each side's process looks: gaps are its restarts and lost watches.
    provider_looks: Vec<Seconds>,
    consumer_looks: Vec<Seconds>,
    /// Seconds by which the consumer's clock is ahead.
    skew: Seconds,
}

impl Story {
    /// The time until which the pod may be charged.
    fn due(&self) -> Seconds {
        self.sent + self.deleted_after + GRACE_OF_PODS
    }
}

fn story() -> impl Strategy<Value = Story> {
    let early = || prop::option::of(1..900_i64);
    (
        0..3000_i64,
        early(),
        early(),
        early(),
        1..1800_i64,
        0..60_i64,
        any::<bool>(),
    )
        .prop_map(
            |(
                sent,
                ends_after,
                resized_after,
                vanishes_after,
                deleted_after,
                lingers,
                dies_before_release,
            )| Story {
                sent,
                ends_after,
                resized_after,
                // A pod that ended is not created again.
                vanishes_after: vanishes_after.filter(|_| ends_after.is_none()),
                deleted_after,
                lingers,
                dies_before_release,
            },
        )
}

/// Times up to [`END`] with gaps, most of them short.
fn looks() -> impl Strategy<Value = Vec<Seconds>> {
    let gap = prop_oneof![6 => 1..8_i64, 1 => 8..240_i64];
    prop::collection::vec(gap, 300..600).prop_map(|gaps| {
        let mut at = 0;
        let mut times: Vec<Seconds> = gaps
            .into_iter()
            .map(|gap| {
                at += gap;
                at
            })
            .take_while(|at| *at < END)
            .collect();
        // In the end both are up.
        times.extend((at..END + 3000).step_by(7));
        times
    })
}

fn histories() -> impl Strategy<Value = History> {
    (
        prop::collection::vec(story(), 1..8),
        looks(),
        looks(),
        -120..120_i64,
    )
        .prop_map(|(pods, provider_looks, consumer_looks, skew)| History {
            pods,
            provider_looks,
            consumer_looks,
            skew,
        })
}

/// The objects of one pod.
#[allow(
    clippy::struct_excessive_bools,
    reason = "facts that do not depend on each other"
)]
#[derive(Clone, Debug, Default)]
struct Objects {
    /// Creation time of the remote pod that exists, or existed last.
    created: Option<Seconds>,
    vanished: bool,
    resized: bool,
    /// In the status of the shadow pod.
    charges: Charges,
    /// Time at which the provider deleted the remote pod.
    deleted: Option<Seconds>,
    /// The provider's last complete period has its end.
    end_is_settled: bool,
    stored_once: bool,
    /// Charges that the provider stored.
    closed: Charges,
    released: bool,
    /// Charges that the consumer saw last.
    seen_by_consumer: Charges,
    consumer_done: bool,
    /// Seconds for which remote pods existed that are gone, and the part of them that the provider
    /// saw.
    former: (Seconds, Seconds),
    /// Time until which the provider saw the present one.
    shown: Seconds,
}

impl Objects {
    /// Time at which the remote pod goes, as far as that is decided.
    fn goes(&self, story: &Story) -> Option<Seconds> {
        let vanishes = story
            .vanishes_after
            .filter(|_| !self.vanished)
            .and_then(|after| Some(self.created? + after));
        vanishes
            .into_iter()
            .chain(self.deleted.map(|at| at + story.lingers))
            .min()
    }

    fn is_gone(&self, story: &Story, now: Seconds) -> bool {
        self.goes(story).is_some_and(|goes| goes <= now)
    }

    /// Time at which it ended by itself, if it has.
    fn ended(&self, story: &Story, now: Seconds) -> Option<Seconds> {
        let ended = self.created? + story.ends_after?;
        (ended <= now && self.deleted.is_none_or(|deleted| ended <= deleted)).then_some(ended)
    }

    /// The provider's charges, by what it sees now.
    fn charged(
        &self,
        story: &Story,
        now: Seconds,
        unwatched_since: Option<Seconds>,
        settled: Seconds,
    ) -> Charges {
        let Some(created) = self.created else {
            return Charges::default();
        };
        let at = now.min(story.due());
        if self.is_gone(story, now) {
            // This process may have seen it a moment ago.
            return self
                .charges
                .after_gone(at, unwatched_since.filter(|_| self.shown < now));
        }
        let amounts = list(if self.resized { "cpu=2" } else { "cpu=1" });
        let settled = if self.end_is_settled { 0 } else { settled };
        self.charges.after_seen(
            &SeenPod {
                created,
                ended: self.ended(story, now),
                amounts: &amounts,
                settled,
            },
            at,
        )
    }

    /// The remote pod is gone: adds for how long it was there and may be charged, and for how long
    /// that was seen.
    fn count(&mut self, story: &Story, now: Seconds) {
        let Some(created) = self.created else { return };
        let last = self.goes(story).unwrap_or(now).min(story.due());
        let until = self.ended(story, now).map_or(last, |ended| ended.min(last));
        self.former.0 += (until - created).max(0);
        self.former.1 += (self.shown.min(until) - created).max(0);
    }
}

/// The records of one side.
#[derive(Clone, Debug, Default)]
struct Records {
    by_period: BTreeMap<Period, UsageEntries>,
    complete: BTreeSet<Period>,
}

impl Records {
    fn store(&mut self, parts: impl IntoIterator<Item = (Period, UsageEntry)>) {
        for (period, part) in parts {
            if !self.complete.contains(&period) {
                self.by_period.entry(period).or_default().add(part);
            }
        }
    }

    fn settled(&self) -> Seconds {
        self.complete
            .last()
            .map(|period| period.end())
            .unwrap_or_default()
    }

    /// The periods that are over for so long, and not complete yet.
    fn due(&self, now: Seconds, grace: Seconds) -> Vec<Period> {
        let mut period = Period::at(0, PERIOD);
        let mut due = Vec::new();
        while period.end() + grace <= now {
            due.extend((!self.complete.contains(&period)).then_some(period));
            period = period.next();
        }
        due
    }
}

struct World {
    history: History,
    pods: Vec<Objects>,
    provider: Records,
    consumer: Records,
    /// Time at which the provider's process looked last.
    provider_looked: Seconds,
}

impl World {
    fn play(history: History) -> Self {
        let pods = history.pods.iter().map(|_| Objects::default()).collect();
        let mut world = Self {
            history,
            pods,
            provider: Records::default(),
            consumer: Records::default(),
            provider_looked: 0,
        };
        let provider = world.history.provider_looks.iter().map(|at| (*at, true));
        let mut looks: Vec<(Seconds, bool)> = provider
            .chain(world.history.consumer_looks.iter().map(|at| (*at, false)))
            .collect();
        looks.sort_unstable();
        for (now, is_provider) in looks {
            if is_provider {
                world.provider_looks(now);
            } else {
                world.consumer_looks(now);
            }
        }
        world
    }

    fn provider_looks(&mut self, now: Seconds) {
        let unwatched_since =
            (now - self.provider_looked >= RESTART).then_some(self.provider_looked);
        // After a restart, a period may be completed before a status is written.
        if now % 2 == 0 {
            self.complete_at_provider(now, unwatched_since);
        }
        for n in 0..self.pods.len() {
            self.provider_looks_at(n, now, unwatched_since);
        }
        self.complete_at_provider(now, unwatched_since);
        self.provider_looked = now;
    }

    fn provider_looks_at(&mut self, n: usize, now: Seconds, unwatched_since: Option<Seconds>) {
        let (settled, story, pod) = (
            self.provider.settled(),
            &self.history.pods[n],
            &mut self.pods[n],
        );
        let wants_end = now >= story.sent + story.deleted_after;
        if pod.released || now < story.sent {
            return;
        }
        if pod.created.is_none() {
            (pod.created, pod.released) = if wants_end {
                (None, true)
            } else {
                (Some(now), false)
            };
            return;
        }
        let charges = pod.charged(story, now, unwatched_since, settled);
        if pod.is_gone(story, now) && wants_end {
            let entries = charges.entries(&format!("u{n}"), "p", now);
            self.provider.store(
                entries
                    .iter()
                    .flat_map(|entry| Period::parts(entry, PERIOD)),
            );
            if story.dies_before_release && !pod.stored_once {
                pod.stored_once = true;
            } else {
                pod.count(story, now);
                // Nobody writes this into the status: the record is about to go.
                (pod.closed, pod.released) = (charges, true);
            }
            return;
        }
        pod.charges = charges;
        if pod.is_gone(story, now) {
            pod.count(story, now);
            (pod.created, pod.vanished, pod.end_is_settled) = (Some(now), true, false);
        }
        pod.resized |= pod
            .created
            .zip(story.resized_after)
            .is_some_and(|(created, after)| now >= created + after)
            && story.ends_after.is_none();
        pod.charges = pod.charged(story, now, unwatched_since, settled);
        pod.shown = now;
        if wants_end && pod.deleted.is_none() {
            pod.deleted = Some(now);
        }
    }

    fn complete_at_provider(&mut self, now: Seconds, unwatched_since: Option<Seconds>) {
        for period in self.provider.due(now, GRACE) {
            let settled = self.provider.settled();
            for (n, (pod, story)) in self
                .pods
                .iter_mut()
                .zip(&self.history.pods)
                .enumerate()
                .filter(|(_, (pod, _))| !pod.released)
            {
                let charges = pod.charged(story, now, unwatched_since, settled);
                let entries = charges.entries(&format!("u{n}"), "p", now.min(story.due()));
                self.provider.store(
                    entries
                        .iter()
                        .filter_map(|entry| Some((period, period.part_of(entry)?))),
                );
                pod.end_is_settled = !charges.is_open() || now >= story.due();
            }
            self.provider.complete.insert(period);
        }
    }

    fn observe(
        story: &Story,
        pod: &Objects,
        n: usize,
        gone: Option<Seconds>,
        clock: Seconds,
        skew: Seconds,
    ) -> Vec<UsageEntry> {
        let asked = [list("cpu=1"), list("cpu=2")];
        let (uid, sent) = (format!("u{n}"), story.sent + skew);
        // The shadow pod says when it was deleted.
        let charged_until = (clock >= story.due()).then(|| story.due());
        let charges = &pod.seen_by_consumer;
        ConsumerObservation {
            uid: &uid,
            namespace: "demo",
            pool: "p",
            sent,
            gone,
            charged_until: Claimed::new(charged_until),
            asked: &asked,
            charges: Claimed::new(charges),
        }
        .entries(clock, CLOCKS)
    }

    fn consumer_looks(&mut self, now: Seconds) {
        let (clock, skew) = (now + self.history.skew, self.history.skew);
        for (n, story) in self.history.pods.iter().enumerate() {
            let pod = &mut self.pods[n];
            if now < story.sent || pod.consumer_done {
                continue;
            }
            if pod.released {
                let entries = Self::observe(story, pod, n, Some(clock), clock, skew);
                self.consumer.store(
                    entries
                        .iter()
                        .flat_map(|entry| parts_with_witnesses(entry, PERIOD, CLOCKS)),
                );
                pod.consumer_done = true;
            } else {
                pod.seen_by_consumer = pod.charges.clone();
            }
        }
        for period in self.consumer.due(clock, GRACE + CLOCKS) {
            for (n, story) in self
                .history
                .pods
                .iter()
                .enumerate()
                .filter(|(_, story)| story.sent <= now)
            {
                let pod = &self.pods[n];
                if !pod.consumer_done {
                    let entries = Self::observe(story, pod, n, None, clock, skew);
                    self.consumer.store(
                        entries
                            .iter()
                            .filter_map(|entry| Some((period, period.part_of(entry)?))),
                    );
                }
            }
            self.consumer.complete.insert(period);
        }
    }

    fn differences(&self) -> Vec<String> {
        let none = UsageEntries::default();
        let mut found = Vec::new();
        for (period, theirs) in &self.provider.by_period {
            let ours = self.consumer.by_period.get(period).unwrap_or(&none);
            let comparison = compare_usage(
                theirs,
                ours,
                Tolerance {
                    exact: 0,
                    clocks: CLOCKS,
                },
            );
            if comparison.differences.is_empty() {
                assert_eq!(
                    &comparison.agreed, theirs,
                    "both sides have the same entries"
                );
            }
            found.extend(
                comparison
                    .differences
                    .into_iter()
                    .map(|one| format!("{} in {}: {}", one.uid, period.name(), one.message)),
            );
        }
        found
    }

    fn seconds_of(&self, uid: &str) -> Seconds {
        self.provider
            .by_period
            .values()
            .flat_map(|usage| usage.of_pod(uid))
            .map(UsageEntry::seconds)
            .sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn both_sides_come_to_the_same_seconds(history in histories()) {
        let world = World::play(history);
        prop_assert!(world.pods.iter().all(|pod| pod.released && pod.consumer_done));
        let found = world.differences();
        prop_assert!(found.is_empty(), "{found:?}");
        let all: UsageEntries = world.provider.by_period.values().flat_map(|usage| usage.entries().cloned()).collect();
        prop_assert_eq!(all.overlap_seconds(), 0);
        for (n, pod) in world.pods.iter().enumerate().filter(|(_, pod)| !pod.stored_once) {
            let exact: Seconds = pod.closed.entries("u", "p", END + 3000).iter().map(UsageEntry::seconds).sum();
            let counted = world.seconds_of(&format!("u{n}"));
            prop_assert_eq!(counted, exact, "no second is lost or counted twice");
            let (there, shown) = pod.former;
            prop_assert!(counted >= shown, "u{}: {} seconds of {} that the provider saw", n, counted, shown);
            // A process that runs may notice an end late, of the first pod and of the one that was
            // created again.
            prop_assert!(counted <= there + 2 * RESTART, "u{}: {} seconds of {}", n, counted, there);
        }
    }

    #[test]
    fn storing_everything_again_in_another_order_changes_nothing(history in histories()) {
        let world = World::play(history);
        for usage in world.provider.by_period.values() {
            let mut again = usage.clone();
            let mut entries: Vec<UsageEntry> = usage.entries().cloned().collect();
            entries.reverse();
            again.extend(entries);
            prop_assert_eq!(&again, usage);
        }
    }

    #[test]
    fn a_provider_that_counts_too_much_is_found_by_name(history in histories(), victim in any::<prop::sample::Index>(), lie in 0..3_u8) {
        let mut world = World::play(history);
        let all: Vec<(Period, UsageEntry)> =
            world.provider.by_period.iter().flat_map(|(period, usage)| usage.entries().map(|entry| (*period, entry.clone()))).collect();
        prop_assume!(!all.is_empty());
        let (period, mut entry) = victim.get(&all).clone();
        let mut others: UsageEntries = world.provider.by_period[&period].entries().filter(|one| *one != &entry).cloned().collect();
        match lie {
            0 => entry.amounts = list("cpu=3"),
            1 => entry.uid = "invented".to_owned(),
            // Later than any clock explains.
            _ => entry.until.at += 2 * CLOCKS + 2500,
        }
        let uid = entry.uid.clone();
        others.add(entry);
        world.provider.by_period.insert(period, others);
        let found = world.differences();
        prop_assert!(found.iter().any(|one| one.starts_with(&format!("{uid} "))), "{found:?}");
        prop_assert!(found.iter().all(|one| one.starts_with(&format!("{uid} "))), "only the victim: {found:?}");
    }

    #[test]
    fn a_consumer_that_counts_too_little_is_found_by_name(history in histories(), victim in any::<prop::sample::Index>()) {
        let mut world = World::play(history);
        let charged: Vec<(Period, String)> = world.provider.by_period.iter()
            .flat_map(|(period, usage)| usage.pods().into_iter().map(|uid| (*period, uid.to_owned())).collect::<Vec<_>>()).collect();
        prop_assume!(!charged.is_empty());
        let (period, uid) = victim.get(&charged).clone();
        let kept = world.consumer.by_period[&period].entries().filter(|entry| entry.uid != uid).cloned().collect();
        world.consumer.by_period.insert(period, kept);
        let found = world.differences();
        prop_assert!(found.len() == 1 && found[0].starts_with(&format!("{uid} in {}", period.name())), "{found:?}");
    }
}

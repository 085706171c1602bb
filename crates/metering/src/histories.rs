//! Random histories of pods and of both managers: restarts, lost watches, repeated and late observations, clocks that differ. Both sides
//! must come to the same seconds, and a side that lies is found by the names of the pods.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use crate::entry::Entry;
use crate::entry::tests::list;
use crate::observation::parts_with_witnesses;
use crate::{Charges, Observation, Period, Seconds, SeenPod, Tolerance, Usage, compare};

const PERIOD: u32 = 600;
/// Both sides complete a period so much later.
const GRACE: Seconds = 60;
const CLOCKS: Seconds = 300;
/// When all pods are gone and all periods complete.
const END: Seconds = 8000;

/// What happens to one pod, in true seconds.
#[derive(Clone, Debug)]
struct Story {
    sent: Seconds,
    /// It ends by itself so long after its creation.
    ends_after: Option<Seconds>,
    resized_after: Option<Seconds>,
    /// The consumer deletes it so long after it was sent.
    deleted_after: Seconds,
    /// How long the remote pod stays after its deletion.
    lingers: Seconds,
    /// The provider dies between storing the entry and releasing the record.
    dies_before_release: bool,
}

#[derive(Clone, Debug)]
struct History {
    pods: Vec<Story>,
    /// When each side's process looks: gaps are its restarts and lost watches.
    provider_looks: Vec<Seconds>,
    consumer_looks: Vec<Seconds>,
    /// How much the consumer's clock is ahead.
    skew: Seconds,
}

fn story() -> impl Strategy<Value = Story> {
    (0..3000_i64, prop::option::of(1..900_i64), prop::option::of(1..900_i64), 1..1800_i64, 0..60_i64, any::<bool>()).prop_map(
        |(sent, ends_after, resized_after, deleted_after, lingers, dies_before_release)| Story {
            sent,
            ends_after,
            resized_after,
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
    (prop::collection::vec(story(), 1..8), looks(), looks(), -120..120_i64)
        .prop_map(|(pods, provider_looks, consumer_looks, skew)| History { pods, provider_looks, consumer_looks, skew })
}

/// The objects of one pod.
#[allow(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
#[derive(Clone, Debug, Default)]
struct Objects {
    created: Option<Seconds>,
    resized: bool,
    /// In the status of the shadow pod.
    charges: Charges,
    /// When the provider asked for the end of the remote pod.
    deletion: Option<Seconds>,
    stored_once: bool,
    /// What the provider stored.
    closed: Charges,
    released: bool,
    /// What the consumer saw last.
    seen_by_consumer: Charges,
    consumer_done: bool,
}

/// The records of one side.
#[derive(Clone, Debug, Default)]
struct Records {
    by_period: BTreeMap<Period, Usage>,
    complete: BTreeSet<Period>,
}

impl Records {
    fn store(&mut self, parts: impl IntoIterator<Item = (Period, Entry)>) {
        for (period, part) in parts {
            if !self.complete.contains(&period) {
                self.by_period.entry(period).or_default().add(part);
            }
        }
    }

    fn settled(&self) -> Seconds {
        self.complete.last().map(|period| period.end()).unwrap_or_default()
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
}

impl World {
    fn play(history: History) -> Self {
        let pods = history.pods.iter().map(|_| Objects::default()).collect();
        let mut world = Self { history, pods, provider: Records::default(), consumer: Records::default() };
        let provider = world.history.provider_looks.iter().map(|at| (*at, true));
        let mut looks: Vec<(Seconds, bool)> =
            provider.chain(world.history.consumer_looks.iter().map(|at| (*at, false))).collect();
        looks.sort_unstable();
        for (now, is_provider) in looks {
            if is_provider { world.provider_looks(now) } else { world.consumer_looks(now) }
        }
        world
    }

    fn provider_looks(&mut self, now: Seconds) {
        let settled = self.provider.settled();
        for (n, story) in self.history.pods.iter().enumerate() {
            let (pod, uid) = (&mut self.pods[n], format!("u{n}"));
            let wants_end = now >= story.sent + story.deleted_after;
            if pod.released || now < story.sent {
                continue;
            }
            let Some(created) = pod.created else {
                if wants_end {
                    pod.released = true;
                } else {
                    pod.created = Some(now);
                }
                continue;
            };
            let gone = pod.deletion.is_some_and(|deletion| now >= deletion + story.lingers);
            if gone {
                let closed = pod.charges.gone(now, pod.deletion.map(|deletion| deletion + 30), settled);
                self.provider.store(closed.entries(&uid, "p", now).iter().flat_map(|entry| Period::parts(entry, PERIOD)));
                if story.dies_before_release && !pod.stored_once {
                    pod.stored_once = true;
                } else {
                    // Nobody writes this into the status: the record is about to go.
                    (pod.closed, pod.released) = (closed, true);
                }
                continue;
            }
            pod.resized |= story.resized_after.is_some_and(|after| now >= created + after) && story.ends_after.is_none();
            let amounts = list(if pod.resized { "cpu=2" } else { "cpu=1" });
            let ended = story
                .ends_after
                .map(|after| created + after)
                .filter(|ended| *ended <= now && pod.deletion.is_none_or(|deletion| *ended <= deletion));
            pod.charges = pod.charges.seen(&SeenPod { created, ended, amounts: &amounts, settled }, now);
            if wants_end && pod.deletion.is_none() {
                pod.deletion = Some(now);
            }
        }
        for period in self.provider.due(now, GRACE) {
            for (n, pod) in self.pods.iter().enumerate().filter(|(_, pod)| !pod.released) {
                let entries = pod.charges.entries(&format!("u{n}"), "p", now);
                self.provider.store(entries.iter().filter_map(|entry| Some((period, period.part_of(entry)?))));
            }
            self.provider.complete.insert(period);
        }
    }

    fn observe(story: &Story, pod: &Objects, n: usize, gone: Option<Seconds>, clock: Seconds, skew: Seconds) -> Vec<Entry> {
        let asked = [list("cpu=1"), list("cpu=2")];
        let (uid, sent) = (format!("u{n}"), story.sent + skew);
        let observation =
            Observation { uid: &uid, namespace: "demo", pool: "p", sent, gone, asked: &asked, charges: &pod.seen_by_consumer };
        observation.entries(clock, CLOCKS)
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
                self.consumer.store(entries.iter().flat_map(|entry| parts_with_witnesses(entry, PERIOD, CLOCKS)));
                pod.consumer_done = true;
            } else {
                pod.seen_by_consumer = pod.charges.clone();
            }
        }
        for period in self.consumer.due(clock, GRACE + CLOCKS) {
            for (n, story) in self.history.pods.iter().enumerate().filter(|(_, story)| story.sent <= now) {
                let pod = &self.pods[n];
                if !pod.consumer_done {
                    let entries = Self::observe(story, pod, n, None, clock, skew);
                    self.consumer.store(entries.iter().filter_map(|entry| Some((period, period.part_of(entry)?))));
                }
            }
            self.consumer.complete.insert(period);
        }
    }

    fn differences(&self) -> Vec<String> {
        let none = Usage::default();
        let mut found = Vec::new();
        for (period, theirs) in &self.provider.by_period {
            let ours = self.consumer.by_period.get(period).unwrap_or(&none);
            let comparison = compare(theirs, ours, Tolerance { exact: 0, clocks: CLOCKS });
            if comparison.differences.is_empty() {
                assert_eq!(&comparison.agreed, theirs, "both sides have the same entries");
            }
            found.extend(
                comparison.differences.into_iter().map(|one| format!("{} in {}: {}", one.uid, period.name(), one.message)),
            );
        }
        found
    }

    fn seconds_of(&self, uid: &str) -> Seconds {
        self.provider.by_period.values().flat_map(|usage| usage.of(uid)).map(Entry::seconds).sum()
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
        let all: Usage = world.provider.by_period.values().flat_map(|usage| usage.entries().cloned()).collect();
        prop_assert_eq!(all.overlap(), 0);
        for (n, pod) in world.pods.iter().enumerate().filter(|(_, pod)| !pod.stored_once) {
            let exact: Seconds = pod.closed.entries("u", "p", END + 3000).iter().map(Entry::seconds).sum();
            prop_assert_eq!(world.seconds_of(&format!("u{n}")), exact, "no second is lost or counted twice");
        }
    }

    #[test]
    fn storing_everything_again_in_another_order_changes_nothing(history in histories()) {
        let world = World::play(history);
        for usage in world.provider.by_period.values() {
            let mut again = usage.clone();
            let mut entries: Vec<Entry> = usage.entries().cloned().collect();
            entries.reverse();
            again.extend(entries);
            prop_assert_eq!(&again, usage);
        }
    }

    #[test]
    fn a_provider_that_counts_too_much_is_found_by_name(history in histories(), victim in any::<prop::sample::Index>(), lie in 0..3_u8) {
        let mut world = World::play(history);
        let all: Vec<(Period, Entry)> =
            world.provider.by_period.iter().flat_map(|(period, usage)| usage.entries().map(|entry| (*period, entry.clone()))).collect();
        prop_assume!(!all.is_empty());
        let (period, mut entry) = victim.get(&all).clone();
        let mut others: Usage = world.provider.by_period[&period].entries().filter(|one| *one != &entry).cloned().collect();
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

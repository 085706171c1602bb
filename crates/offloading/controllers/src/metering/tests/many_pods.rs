//! Five thousand short pods, counted by the recorders of both sides: each restarts at any time,
//! misses what happens for minutes, and gets errors from its API server, some of them after the
//! write was done. Both must come to the same seconds.
//!
//! Pods, shadow pods and time are simulated; the recorders and what they store are real. No watch
//! ever shows them a record that was written after their start.

use jiff::SignedDuration;
use liqo_api::Claimed;
use liqo_controller_runtime::Clock;
use liqo_metering::observation::parts_with_witnesses;
use liqo_metering::{Charges, ConsumerObservation, SeenPod, Tolerance, compare_usage};
use proptest::prelude::*;

use super::*;

const PODS: usize = 5000;
const PERIOD: u32 = 600;
/// What the consumer believes that clocks may differ.
const CLOCKS: Seconds = 300;
/// The contract is in force since then. All other times count from here.
const START: Seconds = 1_767_225_600;
/// When all pods are gone.
const END: Seconds = 6000;
/// How long after its deletion a pod is charged at most.
const GRACE_OF_PODS: Seconds = 30;
/// When both sides have completed all periods.
const COMPLETE: Seconds = END + 2000;

/// What happens to one pod, in true seconds.
#[derive(Clone, Debug)]
struct Story {
    sent: Seconds,
    /// It ends by itself so long after its creation.
    ends_after: Option<Seconds>,
    resized_after: Option<Seconds>,
    /// The consumer deletes it so long after it was sent.
    deleted_after: Seconds,
    /// How long the remote pod stays after the provider deleted it.
    lingers: Seconds,
}

impl Story {
    /// The time until which the pod may be charged.
    fn due(&self) -> Seconds {
        self.sent + self.deleted_after + GRACE_OF_PODS
    }
}

/// One look of a process at its pods.
#[derive(Clone, Debug)]
struct Look {
    /// Seconds since the look before.
    gap: Seconds,
    restarts: bool,
    /// How the API server answers the next write.
    fails: Option<u16>,
}

fn story() -> impl Strategy<Value = Story> {
    let early = |seconds| prop::option::of(1..seconds);
    (
        400..5000_i64,
        early(300_i64),
        early(300_i64),
        1..400_i64,
        0..60_i64,
    )
        .prop_map(
            |(sent, ends_after, resized_after, deleted_after, lingers)| Story {
                sent: START + sent,
                ends_after,
                resized_after,
                deleted_after,
                lingers,
            },
        )
}

fn looks() -> impl Strategy<Value = Vec<Look>> {
    let gap = prop_oneof![12 => 2..20_i64, 1 => 20..200_i64];
    let fails = prop_oneof![8 => Just(None), 1 => Just(Some(500)), 1 => Just(Some(503))];
    let look = (gap, prop::bool::weighted(0.06), fails).prop_map(|(gap, restarts, fails)| Look {
        gap,
        restarts,
        fails,
    });
    prop::collection::vec(look, 600)
}

/// The objects of one pod.
#[derive(Clone, Debug, Default)]
struct Objects {
    created: Option<Seconds>,
    resized: bool,
    /// In the status of the shadow pod.
    charges: Charges,
    /// When the provider deleted the remote pod.
    deleted: Option<Seconds>,
    /// When the provider saw it last.
    shown: Seconds,
    /// How often the provider had to wait until its entries are stored.
    waits: usize,
    /// What it wanted to store.
    closed: Charges,
    /// The shadow pod is gone.
    released: bool,
    seen_by_consumer: Charges,
    consumer_done: bool,
}

impl Objects {
    fn is_gone(&self, story: &Story, now: Seconds) -> bool {
        self.deleted
            .is_some_and(|deleted| now >= deleted + story.lingers)
    }

    /// What the provider charges, by what it sees now.
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
        let ended = story
            .ends_after
            .map(|after| created + after)
            .filter(|ended| *ended <= now && self.deleted.is_none_or(|deleted| *ended <= deleted));
        self.charges.after_seen(
            &SeenPod {
                created,
                ended,
                amounts: &amounts(self.resized),
                settled,
            },
            at,
        )
    }
}

struct World {
    stories: Vec<Story>,
    pods: Vec<Objects>,
    /// When the provider's process looked last.
    provider_looked: Seconds,
    /// When its predecessor looked last, if this is its first look.
    unwatched_since: Option<Seconds>,
    /// How much the consumer's clock is ahead.
    skew: Seconds,
}

impl World {
    fn provider_begins(&mut self, restarts: bool, now: Seconds) {
        self.unwatched_since = restarts.then_some(self.provider_looked);
        self.provider_looked = now;
    }

    fn observe(&self, n: usize, gone: Option<Seconds>, clock: Seconds) -> Vec<UsageEntry> {
        let asked = [amounts(false), amounts(true)];
        let (uid, sent) = (uid(n), self.stories[n].sent + self.skew);
        let charges = &self.pods[n].seen_by_consumer;
        // The shadow pod says when it was deleted.
        let charged_until = Some(self.stories[n].due()).filter(|due| clock >= *due);
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
}

fn uid(n: usize) -> String {
    format!("u{n}")
}

fn amounts(resized: bool) -> liqo_api::ResourceList {
    [(
        "cpu",
        liqo_api::Quantity::from_units(if resized { 2 } else { 1 }),
    )]
    .into_iter()
    .collect()
}

/// One cluster: its process, which restarts, and its API server.
struct Cluster {
    world: Arc<Mutex<World>>,
    is_provider: bool,
    namespace: String,
    server: Arc<Mutex<Server>>,
    recorder: Arc<UsageRecorder>,
}

impl MeteringSide for Cluster {
    fn open_entries(&self, _: &str, now: Seconds) -> Option<Vec<UsageEntry>> {
        let world = self.world.lock();
        let pods = world.pods.iter().enumerate();
        Some(if self.is_provider {
            let charged = |(n, pod): (usize, &Objects)| {
                let (story, settled) = (&world.stories[n], self.settled(n));
                let charges = pod.charged(story, now, world.unwatched_since, settled);
                charges.entries(&uid(n), "p", now.min(story.due()))
            };
            pods.filter(|(_, pod)| !pod.released)
                .flat_map(charged)
                .collect()
        } else {
            // Pods whose shadow pods are gone count until what they used is stored.
            let open = pods.filter(|(_, pod)| pod.created.is_some() && !pod.consumer_done);
            open.flat_map(|(n, pod)| world.observe(n, pod.released.then_some(now), now))
                .collect()
        })
    }

    fn entry_parts(&self, entry: &UsageEntry, period_seconds: u32) -> Vec<(Period, UsageEntry)> {
        if self.is_provider {
            Period::parts(entry, period_seconds)
        } else {
            parts_with_witnesses(entry, period_seconds, CLOCKS)
        }
    }

    /// The next look asks whether they are stored.
    fn entries_stored(&self, _: &str, _: Vec<String>) {}

    fn completion_grace(&self) -> Seconds {
        if self.is_provider {
            GRACE
        } else {
            GRACE + CLOCKS
        }
    }
}

impl Cluster {
    async fn new(world: Arc<Mutex<World>>, is_provider: bool) -> Self {
        let peer = if is_provider {
            consumer()
        } else {
            ClusterId::of_public_key(&[1; 32])
        };
        let namespace = if is_provider {
            tenant_namespace(&peer)
        } else {
            provider_namespace(&peer)
        };
        let server = Arc::new(Mutex::new(Server {
            contract: contract(&namespace, PERIOD),
            ..Server::default()
        }));
        let recorder = Self::started(&server, is_provider).await;
        Self {
            world,
            is_provider,
            namespace,
            server,
            recorder,
        }
    }

    async fn started(server: &Arc<Mutex<Server>>, is_provider: bool) -> Arc<UsageRecorder> {
        let (label, role) = if is_provider {
            (labels::CONSUMER_ID, "provider")
        } else {
            (labels::PROVIDER_ID, "consumer")
        };
        let recorder = UsageRecorder::start(&context(server), label, role);
        assert!(recorder.synced().await);
        recorder
    }

    /// The process looks at its pods, and writes.
    async fn look(&mut self, look: &Look, now: Seconds) {
        if look.restarts {
            self.recorder.context.stop.cancel();
            self.recorder = Self::started(&self.server, self.is_provider).await;
        }
        self.server.lock().codes = look.fails.into_iter().collect();
        if self.is_provider {
            self.set_clock(now);
            self.world.lock().provider_begins(look.restarts, now);
            self.provider_looks(now);
        } else {
            let clock = now + self.world.lock().skew;
            self.set_clock(clock);
            self.consumer_looks(now, clock);
        }
        // After an error, the next look tries again.
        if let Err(error) = self.recorder.reconcile(&self.namespace, &*self).await {
            assert!(look.fails.is_some(), "{error}");
        }
    }

    /// The clock stands still until the next call.
    fn set_clock(&mut self, now: Seconds) {
        let an_hour_ahead = Instant::now() + Duration::from_hours(1);
        let clock = Clock::simulated(
            Timestamp::from_second(now).unwrap(),
            an_hour_ahead,
            SignedDuration::ZERO,
        );
        Arc::get_mut(&mut self.recorder).unwrap().context.clock = clock;
    }

    fn settled(&self, n: usize) -> Seconds {
        self.recorder
            .settled_until_running(&self.namespace, &uid(n))
            .as_second()
    }

    fn provider_looks(&self, now: Seconds) {
        let World {
            stories,
            pods,
            unwatched_since,
            ..
        } = &mut *self.world.lock();
        for (n, (story, pod)) in stories.iter().zip(pods).enumerate() {
            let wants_end = now >= story.sent + story.deleted_after;
            if pod.released || now < story.sent {
                continue;
            }
            let Some(created) = pod.created else {
                (pod.created, pod.released) = if wants_end {
                    (None, true)
                } else {
                    (Some(now), false)
                };
                continue;
            };
            if pod.is_gone(story, now) {
                let closed = pod.charged(story, now, *unwatched_since, 0);
                pod.released = self.recorder.store_entries(
                    &self.namespace,
                    &uid(n),
                    closed.entries(&uid(n), "p", now),
                );
                if !pod.released {
                    (pod.closed, pod.waits) = (closed, pod.waits + 1);
                }
                continue;
            }
            pod.resized |= story
                .resized_after
                .is_some_and(|after| now >= created + after)
                && story.ends_after.is_none();
            pod.charges = pod.charged(story, now, *unwatched_since, self.settled(n));
            pod.shown = now;
            if wants_end && pod.deleted.is_none() {
                pod.deleted = Some(now);
            }
        }
    }

    fn consumer_looks(&self, now: Seconds, clock: Seconds) {
        let mut world = self.world.lock();
        for n in 0..world.pods.len() {
            if now < world.stories[n].sent || world.pods[n].consumer_done {
                continue;
            }
            if world.pods[n].released {
                let entries = world.observe(n, Some(clock), clock);
                world.pods[n].consumer_done =
                    self.recorder
                        .store_entries(&self.namespace, &uid(n), entries);
            } else {
                world.pods[n].seen_by_consumer = world.pods[n].charges.clone();
            }
        }
    }

    /// What is stored, by the first second of each period. Every period must be complete.
    fn stored_usage(&self) -> BTreeMap<String, UsageEntries> {
        let mut texts: BTreeMap<String, (String, bool)> = BTreeMap::new();
        for record in self.server.lock().records.values() {
            let spec = &record["spec"];
            let text = texts
                .entry(spec["period"]["start"].as_str().unwrap().to_owned())
                .or_default();
            text.0.push_str(spec["entries"].as_str().unwrap());
            text.1 |= spec["chunks"].is_u64();
        }
        let incomplete: Vec<_> = texts
            .iter()
            .filter(|(_, (_, is_complete))| !is_complete)
            .map(|(start, _)| start)
            .collect();
        assert!(
            incomplete.is_empty(),
            "provider: {}, not complete: {incomplete:?}",
            self.is_provider
        );
        texts
            .into_iter()
            .map(|(start, (text, _))| (start, UsageEntries::parse(&text).unwrap()))
            .collect()
    }
}

/// All looks of one side with their times, until all periods are complete. In the end nothing
/// fails.
fn timed(looks: Vec<Look>, is_provider: bool) -> Vec<(Seconds, bool, Look)> {
    let mut at = START;
    let mut timed: Vec<_> = looks
        .into_iter()
        .map(|look| {
            at += look.gap;
            (at, is_provider, look)
        })
        .filter(|(at, ..)| *at < START + END)
        .collect();
    let last = timed.last().map_or(START, |(at, ..)| *at);
    timed.extend((last + 7..START + COMPLETE).step_by(7).map(|at| {
        (
            at,
            is_provider,
            Look {
                gap: 7,
                restarts: false,
                fails: None,
            },
        )
    }));
    timed
}

async fn play(stories: Vec<Story>, looks: [Vec<Look>; 2], skew: Seconds) -> (Cluster, Cluster) {
    let pods = vec![Objects::default(); stories.len()];
    let world = Arc::new(Mutex::new(World {
        stories,
        pods,
        skew,
        provider_looked: START,
        unwatched_since: None,
    }));
    let (mut provider, mut consumer) = (
        Cluster::new(world.clone(), true).await,
        Cluster::new(world, false).await,
    );
    let [of_provider, of_consumer] = looks;
    let mut all = timed(of_provider, true);
    all.extend(timed(of_consumer, false));
    all.sort_by_key(|(at, is_provider, _)| (*at, *is_provider));
    for (at, is_provider, look) in all {
        if is_provider {
            provider.look(&look, at).await;
        } else {
            consumer.look(&look, at).await;
        }
    }
    (provider, consumer)
}

proptest! {
    // One history has hundreds of restarts, gaps and errors.
    #![proptest_config(ProptestConfig { cases: 2, max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn five_thousand_short_pods_are_counted_alike_over_restarts_of_both_managers(
        stories in prop::collection::vec(story(), PODS),
        looks in [looks(), looks()],
        skew in -120..120_i64,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (provider, consumer) = runtime.block_on(play(stories, looks, skew));
        let world = provider.world.lock();
        prop_assert!(world.pods.iter().all(|pod| pod.released && pod.consumer_done), "all pods are gone on both sides");

        let (theirs, ours) = (provider.stored_usage(), consumer.stored_usage());
        let mut counted: HashMap<&str, Seconds> = HashMap::new();
        for (start, usage) in &theirs {
            let comparison = compare_usage(usage, ours.get(start).unwrap_or(&UsageEntries::default()), Tolerance { exact: 0, clocks: CLOCKS });
            prop_assert!(comparison.differences.is_empty(), "{start}: {:?}", comparison.differences);
            prop_assert_eq!(&comparison.agreed, usage, "both sides have the same seconds");
            prop_assert_eq!(usage.overlap_seconds(), 0);
            for entry in usage.entries() {
                *counted.entry(&entry.uid).or_default() += entry.seconds();
            }
        }
        // Where the provider stored a pod once, it is known what for.
        let once: Vec<_> = world.pods.iter().enumerate().filter(|(_, pod)| pod.waits == 1).collect();
        prop_assert!(once.len() > PODS / 2 && once.len() < PODS, "{} pods were stored at the first attempt", once.len());
        for (n, pod) in once {
            let expected: Seconds = pod.closed.entries("u", "p", START + COMPLETE).iter().map(UsageEntry::seconds).sum();
            let counted = counted.get(uid(n).as_str()).copied().unwrap_or_default();
            prop_assert_eq!(counted, expected, "pod {}", n);
        }
    }
}

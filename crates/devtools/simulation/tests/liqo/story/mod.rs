//! A story: people use the clusters, things go wrong, and then everything must come to rest as they
//! asked. The seed decides all of it.
//!
//! ```text
//!   seed --> steps of people and faults --> faults end --> rest --> invariants, and what was asked for
//!                     safety, at each change of each cluster
//! ```

mod faults;
mod people;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

use liqo_simulation::Draws;
use liqoctl::doctor::invariants::{ClusterSnapshot, find_violations};
use tokio::time::Instant;

use crate::{
    safety::Safety,
    tethered,
    world::{Cluster, Start, World},
};

/// The consumer, and its provider.
const ROME: usize = 0;
const MILAN: usize = 1;
/// In some stories there is a third cluster.
const TURIN: usize = 2;
/// The namespaces that run at the peers, and their strategies.
const NAMESPACES: [(&str, &str); 2] = [("far", REMOTE), ("both", "LocalAndRemote")];
const REMOTE: &str = "Remote";
/// The namespace and the Deployment of a third cluster that borrows, and its pods.
const GUEST: &str = "guest";
const GUESTS: u8 = 4;
const STEPS: usize = 30;
/// In one story of so many, rome is a laptop.
const LAPTOPS: u64 = 5;
/// So many pods run from the beginning, and after this many people start nothing new.
const FIRST_PODS: usize = 50;
const MANY_PODS: usize = 60;
/// How long the clusters may take to come to rest, and for how long nothing changes then.
const REST_LIMIT: Duration = Duration::from_mins(30);
const QUIET: Duration = Duration::from_secs(90);
/// The same if something does not hold yet: the longest that a manager waits for a better time is
/// the refusal timeout of five minutes.
const LONG_QUIET: Duration = Duration::from_secs(330);
/// Resources that change while nothing happens.
const ALWAYS_CHANGING: [&str; 3] = [
    "leases.coordination.k8s.io",
    "events.events.k8s.io",
    "events",
];

/// What happened in a story.
#[derive(Debug, Default)]
pub struct Report {
    pub pods: usize,
    /// By kind.
    pub faults: BTreeMap<&'static str, u64>,
    pub simulated: Duration,
    /// Pods that were moved.
    pub moved: usize,
    /// Of the names and versions of all objects at the end: the same for the same seed.
    pub history: u64,
}

impl Report {
    /// Whether it says something about the system.
    pub fn tells_much(&self) -> bool {
        self.pods >= FIRST_PODS && self.faults.len() >= 5 && self.faults.values().sum::<u64>() >= 20
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pods,
            faults,
            simulated,
            moved,
            history,
        } = self;
        let sum: u64 = faults.values().sum();
        write!(
            formatter,
            "{pods} pods, {moved} moved, {sum} faults {faults:?}, {} s simulated, history {history:016x}",
            simulated.as_secs()
        )
    }
}

/// A story that did not end well.
#[derive(Debug)]
pub struct Failure {
    pub seed: u64,
    pub violations: Vec<String>,
    /// What happened, newest last.
    pub events: Vec<String>,
    /// What a person would look at first.
    pub objects: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "seed {} ended badly:", self.seed)?;
        for violation in &self.violations {
            writeln!(formatter, "  {violation}")?;
        }
        writeln!(formatter, "the last events:")?;
        for event in self
            .events
            .iter()
            .skip(self.events.len().saturating_sub(20))
        {
            writeln!(formatter, "  {event}")?;
        }
        write!(
            formatter,
            "repeat it with: LIQO_SEED={} cargo test -p liqo-simulation --test liqo stories",
            self.seed
        )
    }
}

/// What the third cluster does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Third {
    IsAbsent,
    /// It lends to rome, too.
    Lends,
    /// It borrows from milan, too, where its pods run.
    Borrows,
    /// It lends to milan, which at times lends that on instead of its own nodes.
    IsBehind,
}

struct Story {
    world: World,
    third: Third,
    /// Whether rome is a laptop, which milan may control.
    is_laptop: bool,
    safety: Safety,
    draws: Draws,
    started: Instant,
    events: Vec<String>,
    wanted: Wanted,
    /// How many pods were created, at least.
    created: usize,
    /// How many peerings were begun.
    peerings: usize,
    faults: BTreeMap<&'static str, u64>,
    /// Replicas of the manager that are dead: cluster and number.
    dead: Vec<(usize, u8)>,
}

/// Namespace and name.
type Place = (&'static str, String);

/// What people asked for.
#[derive(Default)]
struct Wanted {
    /// Replicas of each.
    deployments: BTreeMap<Place, u8>,
    stateful_sets: BTreeMap<Place, u8>,
    /// Completions of each.
    jobs: BTreeMap<Place, u8>,
    /// The namespaces that are offloaded, with their strategies.
    offloaded: BTreeMap<&'static str, &'static str>,
    is_peered: bool,
    /// Whether milan is to control rome.
    is_tethered: bool,
    /// Whether milan lends on what it borrows.
    is_broker: bool,
    /// Nodes that take no pods, with their cluster.
    cordoned: BTreeSet<(usize, String)>,
}

pub async fn run(seed: u64) -> Result<Report, Failure> {
    // The delays before watches are tried again have a random part.
    fastrand::seed(seed);
    let mut draws = Draws::new(seed);
    let third = draws.one_of(&[
        Third::IsAbsent,
        Third::IsBehind,
        Third::Lends,
        Third::Borrows,
    ]);
    let is_laptop = seed.is_multiple_of(LAPTOPS);
    let third = if is_laptop { Third::IsAbsent } else { third };
    let world = world(
        Start {
            seed,
            replicas: 2,
            skew_seconds: 3,
            ..Start::default()
        },
        third,
        is_laptop,
    )
    .await;
    let safety = Safety::default();
    world
        .clusters
        .iter()
        .for_each(|cluster| safety.watch(cluster));
    let mut story = Story {
        world,
        third,
        is_laptop,
        safety,
        draws,
        started: Instant::now(),
        events: Vec::new(),
        wanted: Wanted {
            is_peered: true,
            ..Wanted::default()
        },
        created: 0,
        peerings: 0,
        faults: BTreeMap::new(),
        dead: Vec::new(),
    };
    story.begin().await;
    for _ in 0..STEPS {
        story.step().await;
        story.restart_ended();
        let pause = story.draws.up_to(Duration::from_secs(20));
        tokio::time::sleep(pause).await;
    }
    story.end_faults();
    story.end_wishes().await;
    let mut violations = story.rest().await;
    violations.extend(story.safety.violations());
    if violations.is_empty() {
        return Ok(story.report());
    }
    let events = std::mem::take(&mut story.events);
    Err(Failure {
        seed,
        violations,
        events,
        objects: story.world.to_text(),
    })
}

async fn world(start: Start, third: Third, is_laptop: bool) -> World {
    if is_laptop {
        return tethered::laptop_and_office(start).await;
    }
    let names: &[&str] = if third == Third::IsAbsent {
        &["rome", "milan"]
    } else {
        &["rome", "milan", "turin"]
    };
    let world = World::start(names, start).await;
    world.peer_and_wait(ROME, MILAN).await;
    match third {
        Third::IsAbsent => {}
        Third::Lends => world.peer_and_wait(ROME, TURIN).await,
        Third::Borrows => world.peer_and_wait(TURIN, MILAN).await,
        Third::IsBehind => world.peer_and_wait(MILAN, TURIN).await,
    }
    world
}

impl Story {
    fn tell(&mut self, event: impl Into<String>) {
        self.events.push(format!(
            "{:>8.3} s  {}",
            self.started.elapsed().as_secs_f64(),
            event.into()
        ));
    }

    /// Whether pods of a namespace can run anywhere.
    fn can_run(&self, namespace: &str) -> bool {
        let must_leave = self.wanted.offloaded.get(namespace) == Some(&REMOTE);
        self.wanted.is_peered || self.third == Third::Lends || !must_leave
    }

    /// One of the clusters.
    fn cluster(&mut self) -> usize {
        let count = self.world.clusters.len() as u64;
        usize::try_from(self.below(count)).unwrap()
    }

    fn below(&mut self, end: u64) -> u64 {
        self.draws.number() % end
    }

    fn any<T>(&mut self, of: impl IntoIterator<Item = T>) -> Option<T> {
        let mut all: Vec<T> = of.into_iter().collect();
        let index = usize::try_from(self.below(all.len().max(1) as u64)).unwrap();
        (index < all.len()).then(|| all.swap_remove(index))
    }

    async fn begin(&mut self) {
        for (namespace, strategy) in NAMESPACES.into_iter().filter(|_| !self.is_laptop) {
            self.world.offload(ROME, namespace, strategy).await;
            self.wanted.offloaded.insert(namespace, strategy);
        }
        if self.is_laptop {
            tethered::tether(&self.world).await;
            self.wanted.is_tethered = true;
        }
        if self.third == Third::Borrows {
            self.world.offload(TURIN, GUEST, REMOTE).await;
        }
        self.begin_faults();
        if self.third == Third::Borrows {
            self.world.clusters[TURIN]
                .deploy(GUEST, GUEST, GUESTS)
                .await;
            self.created += usize::from(GUESTS);
        }
        for (namespace, _) in NAMESPACES.into_iter().cycle() {
            if self.created >= FIRST_PODS {
                return;
            }
            self.deploy(if self.is_laptop {
                tethered::NAMESPACE
            } else {
                namespace
            })
            .await;
        }
    }

    /// One thing that people do, or that goes wrong.
    async fn step(&mut self) {
        let namespace = self.draws.one_of(&NAMESPACES).0;
        let namespace = if self.is_laptop {
            tethered::NAMESPACE
        } else {
            namespace
        };
        match self.below(18) {
            0 => self.deploy(namespace).await,
            1 => self.run_job(namespace).await,
            2 => self.run_stateful_set(namespace).await,
            3 => self.scale().await,
            4 => self.roll_out().await,
            5 => self.delete_pod(namespace).await,
            6 | 7 if self.is_laptop => self.change_mode().await,
            6 | 7 if self.third == Third::IsBehind && self.below(2) == 0 => {
                self.begin_or_end_broker().await;
            }
            6 if self.below(2) == 0 => self.change_strategy(namespace).await,
            6 => self.change_offloading(namespace).await,
            7 => self.change_peering().await,
            8 => self.change_policy().await,
            9 => self.drain().await,
            10 => self.uncordon_all().await,
            11 => self.kill_manager(),
            12 => self.revive_managers(),
            13 => self.cut(),
            14 => self.heal(),
            15 => self.forget_history(),
            16 => self.cut_power(),
            _ => self.cut_off_manager(),
        }
    }

    /// Waits until nothing changes any more, and returns what does not hold then.
    async fn rest(&mut self) -> Vec<String> {
        let begun = Instant::now();
        let (mut before, mut since, mut quiet) = (self.state(), Instant::now(), QUIET);
        loop {
            if since.elapsed() >= quiet {
                let violations = self.violations().await;
                if violations.is_empty() || quiet == LONG_QUIET {
                    return violations;
                }
                quiet = LONG_QUIET;
            }
            if begun.elapsed() > REST_LIMIT {
                let restless = format!("the clusters do not come to rest within {REST_LIMIT:?}");
                return [vec![restless], self.violations().await].concat();
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
            self.restart_ended();
            let now = self.state();
            if now != before {
                (before, since, quiet) = (now, Instant::now(), QUIET);
            }
        }
    }

    /// The versions of all objects that somebody changes.
    fn state(&self) -> Vec<String> {
        let objects = self
            .world
            .clusters
            .iter()
            .flat_map(|cluster| cluster.server.objects());
        let changing = objects.filter(|(key, _)| !ALWAYS_CHANGING.contains(&key.resource.as_str()));
        changing
            .map(|(_, object)| object["metadata"]["resourceVersion"].to_string())
            .collect()
    }

    async fn violations(&self) -> Vec<String> {
        let snapshots: Vec<ClusterSnapshot> =
            self.world.clusters.iter().map(Cluster::snapshot).collect();
        let mut found: Vec<String> = find_violations(&snapshots)
            .into_iter()
            .map(|violation| violation.what)
            .collect();
        found.extend(self.unfulfilled().await);
        found
    }

    fn report(self) -> Report {
        let mut history = DefaultHasher::new();
        for cluster in &self.world.clusters {
            for (key, object) in cluster.server.objects() {
                (key, object["metadata"]["resourceVersion"].to_string()).hash(&mut history);
            }
        }
        Report {
            pods: self.created,
            faults: self.faults,
            simulated: self.started.elapsed(),
            moved: self.safety.moved(),
            history: history.finish(),
        }
    }
}

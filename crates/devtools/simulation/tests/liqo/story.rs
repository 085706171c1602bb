//! A story: people use the clusters, things go wrong, and then everything must come to rest as they asked. The seed decides all of it.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

use k8s_openapi::api::{apps::v1::Deployment, batch::v1::Job, core::v1::Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use liqo_simulation::{Draws, Faults};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    invariants::{Snapshot, violations},
    world::{Start, World, object},
};

/// Who borrows, and from whom.
const ROME: usize = 0;
const MILAN: usize = 1;
/// The namespace that runs at the peers, and its strategy.
const NAMESPACES: [(&str, &str); 2] = [("far", "Remote"), ("both", "LocalAndRemote")];
const STEPS: usize = 30;
/// How long the clusters may take to come to rest, and for how long nothing changes then.
const REST_LIMIT: Duration = Duration::from_secs(1800);
const QUIET: Duration = Duration::from_secs(90);
/// Resources that change while nothing happens.
const ALWAYS_CHANGING: [&str; 3] = ["leases.coordination.k8s.io", "events.events.k8s.io", "events"];

/// What happened in a story.
#[derive(Debug, Default)]
pub struct Report {
    pub pods: usize,
    /// By kind.
    pub faults: BTreeMap<&'static str, u64>,
    pub simulated: Duration,
    /// Of the names and versions of all objects at the end: the same for the same seed.
    pub history: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pods, faults, simulated, history } = self;
        let sum: u64 = faults.values().sum();
        write!(formatter, "{pods} pods, {sum} faults {faults:?}, {} s simulated, history {history:016x}", simulated.as_secs())
    }
}

/// A story that did not end well.
#[derive(Debug)]
pub struct Failure {
    pub seed: u64,
    pub violations: Vec<String>,
    /// What happened last, newest last.
    pub events: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "seed {} ended badly:", self.seed)?;
        for violation in &self.violations {
            writeln!(formatter, "  {violation}")?;
        }
        writeln!(formatter, "the last events:")?;
        for event in &self.events {
            writeln!(formatter, "  {event}")?;
        }
        write!(formatter, "repeat it with: LIQO_SEED={} cargo test -p liqo-simulation --test liqo stories", self.seed)
    }
}

struct Story {
    world: World,
    draws: Draws,
    started: Instant,
    events: Vec<String>,
    /// Replicas of each Deployment, by namespace and name.
    deployments: BTreeMap<(&'static str, String), u8>,
    /// Completions of each Job.
    jobs: BTreeMap<(&'static str, String), u8>,
    created: usize,
    is_peered: bool,
    faults: BTreeMap<&'static str, u64>,
    /// Replicas of the manager that are dead: cluster and number.
    dead: Vec<(usize, u8)>,
}

pub async fn run(seed: u64) -> Result<Report, Failure> {
    // The delays before watches are tried again have a random part.
    fastrand::seed(seed);
    let world = World::peered(Start { seed, replicas: 2, skew_seconds: 3, ..Start::default() }).await;
    let mut story = Story {
        world,
        draws: Draws::new(seed),
        started: Instant::now(),
        events: Vec::new(),
        deployments: BTreeMap::new(),
        jobs: BTreeMap::new(),
        created: 0,
        is_peered: true,
        faults: BTreeMap::new(),
        dead: Vec::new(),
    };
    story.begin().await;
    for _ in 0..STEPS {
        story.step().await;
        let pause = story.draws.up_to(Duration::from_secs(20));
        tokio::time::sleep(pause).await;
    }
    story.end_faults();
    let violations = story.rest().await;
    if violations.is_empty() {
        return Ok(story.report());
    }
    story.world.print();
    let events = story.events.split_off(story.events.len().saturating_sub(20));
    Err(Failure { seed, violations, events })
}

impl Story {
    fn tell(&mut self, event: impl Into<String>) {
        self.events.push(format!("{:>8.3} s  {}", self.started.elapsed().as_secs_f64(), event.into()));
    }

    fn fault(&mut self, kind: &'static str, event: &str) {
        *self.faults.entry(kind).or_default() += 1;
        self.tell(format!("{kind}: {event}"));
    }

    fn below(&mut self, end: u64) -> u64 {
        self.draws.number() % end
    }

    async fn begin(&mut self) {
        for (namespace, strategy) in NAMESPACES {
            self.world.offload(ROME, namespace, strategy).await;
        }
        let bad = Faults {
            delay: Duration::from_millis(500),
            lost_requests: u32::try_from(self.below(20)).unwrap(),
            lost_answers: u32::try_from(self.below(20)).unwrap(),
            refusals: u32::try_from(self.below(30)).unwrap(),
            broken_watches: u32::try_from(self.below(30)).unwrap(),
        };
        for manager in self.world.clusters.iter().flat_map(|cluster| &cluster.managers) {
            manager.link.set_faults(bad);
        }
        for (namespace, _) in NAMESPACES {
            self.deploy(namespace).await;
        }
    }

    fn namespace(&mut self) -> &'static str {
        self.draws.one_of(&NAMESPACES).0
    }

    async fn deploy(&mut self, namespace: &'static str) {
        let (name, replicas) = (format!("app-{}", self.deployments.len()), 5 + u8::try_from(self.below(8)).unwrap());
        self.world.clusters[ROME].deploy(namespace, &name, replicas).await;
        self.created += usize::from(replicas);
        self.tell(format!("Deployment {namespace}/{name} with {replicas} pods"));
        self.deployments.insert((namespace, name), replicas);
    }

    async fn run_job(&mut self, namespace: &'static str) {
        let (name, completions, seconds) =
            (format!("job-{}", self.jobs.len()), 1 + u8::try_from(self.below(4)).unwrap(), 1 + self.below(60));
        let job: Job = object(json!({
            "metadata": { "name": name },
            "spec": { "completions": completions, "parallelism": completions, "backoffLimit": 20, "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "restartPolicy": "Never", "containers": [{
                    "name": "main", "image": "example.com/main:1", "env": [{ "name": "SIMULATION_RUN_SECONDS", "value": seconds.to_string() }],
                }] },
            } },
        }));
        self.world.clusters[ROME].api::<Job>(namespace).create(&PostParams::default(), &job).await.unwrap();
        self.created += usize::from(completions);
        self.tell(format!("Job {namespace}/{name} with {completions} pods for {seconds} s"));
        self.jobs.insert((namespace, name), completions);
    }

    /// One thing that people do, or that goes wrong.
    async fn step(&mut self) {
        match self.below(12) {
            0 => {
                let namespace = self.namespace();
                self.deploy(namespace).await;
            }
            1 => {
                let namespace = self.namespace();
                self.run_job(namespace).await;
            }
            2 | 3 => self.scale().await,
            4 => self.roll_out().await,
            5 => self.delete_pod().await,
            6 => self.kill_manager(),
            7 => self.revive_managers(),
            8 => self.cut(),
            9 => {
                self.world.internet.heal();
                self.tell("the network heals");
            }
            10 => {
                let index = self.draws.one_of(&[ROME, MILAN]);
                self.world.clusters[index].server.compact();
                let name = self.world.clusters[index].name.clone();
                self.fault("history forgotten", &name);
            }
            _ => self.pause_manager(),
        }
    }

    fn any_deployment(&mut self) -> Option<(&'static str, String)> {
        let all: Vec<_> = self.deployments.keys().cloned().collect();
        let index = usize::try_from(self.below(all.len().max(1) as u64)).unwrap();
        all.get(index).cloned()
    }

    async fn scale(&mut self) {
        let Some((namespace, name)) = self.any_deployment() else { return };
        let replicas = u8::try_from(self.below(10)).unwrap();
        self.world.clusters[ROME].scale(namespace, &name, replicas).await;
        let before = self.deployments.insert((namespace, name.clone()), replicas).unwrap_or_default();
        self.created += usize::from(replicas.saturating_sub(before));
        self.tell(format!("Deployment {namespace}/{name} scaled to {replicas}"));
    }

    async fn roll_out(&mut self) {
        let Some((namespace, name)) = self.any_deployment() else { return };
        let image = format!("example.com/main:{}", self.below(100));
        let containers = json!([{ "name": "main", "image": image }]);
        let patch = json!({ "spec": { "template": { "spec": { "containers": containers } } } });
        let api = self.world.clusters[ROME].api::<Deployment>(namespace);
        api.patch(&name, &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
        self.created += usize::from(self.deployments[&(namespace, name.clone())]);
        self.tell(format!("Deployment {namespace}/{name} rolls out {image}"));
    }

    async fn delete_pod(&mut self) {
        let namespace = self.namespace();
        let api: Api<Pod> = self.world.clusters[ROME].api(namespace);
        let pods = api.list(&ListParams::default()).await.unwrap().items;
        let index = usize::try_from(self.below(pods.len().max(1) as u64)).unwrap();
        if let Some(pod) = pods.get(index) {
            // It may have ended meanwhile.
            let _ = api.delete(&pod.name_any(), &DeleteParams::default()).await;
            self.created += 1;
            self.tell(format!("pod {namespace}/{} is deleted", pod.name_any()));
        }
    }

    fn kill_manager(&mut self) {
        let (cluster, number) = (self.draws.one_of(&[ROME, MILAN]), self.draws.one_of(&[1, 2]));
        if self.dead.contains(&(cluster, number)) {
            return;
        }
        self.world.clusters[cluster].manager(number).kill();
        self.dead.push((cluster, number));
        self.fault("process killed", &format!("manager-{number} of {}", self.world.clusters[cluster].name));
    }

    fn revive_managers(&mut self) {
        for (cluster, number) in std::mem::take(&mut self.dead) {
            self.world.clusters[cluster].restart_manager(number);
            self.tell(format!("manager-{number} of {} starts again", self.world.clusters[cluster].name));
        }
    }

    /// A manager hears nothing from its own API server for a while, shorter or longer than its lease.
    fn pause_manager(&mut self) {
        let (cluster, number) = (self.draws.one_of(&[ROME, MILAN]), self.draws.one_of(&[1, 2]));
        let (link, time) = (self.world.clusters[cluster].manager(number).link.clone(), self.draws.up_to(Duration::from_secs(15)));
        link.cut();
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            link.heal();
        });
        self.fault("no API server", &format!("manager-{number} of {} for {time:?}", self.world.clusters[cluster].name));
    }

    fn cut(&mut self) {
        let (rome, milan) = (&self.world.clusters[ROME], &self.world.clusters[MILAN]);
        let (consumer, provider) = ([1, 2].map(|number| rome.address(number)), milan.address(0));
        let is_there = self.draws.per_mille(500);
        for consumer in consumer {
            let (from, to) = if is_there { (consumer, provider) } else { (provider, consumer) };
            self.world.internet.cut(from, to);
        }
        let direction = if is_there { "from rome to milan" } else { "from milan to rome" };
        self.fault("partition", &format!("nothing arrives {direction}"));
    }

    fn end_faults(&mut self) {
        self.revive_managers();
        self.world.internet.heal();
        let mut drawn = 0;
        for cluster in &mut self.world.clusters {
            for number in 1..=2 {
                drawn += cluster.manager(number).link.count();
                cluster.manager(number).link.set_faults(Faults::default());
                // A manager ends itself if it could not renew its lease in time, and the kubelet starts it again.
                if cluster.manager(number).has_ended() {
                    cluster.restart_manager(number);
                }
            }
        }
        self.faults.insert("request lost, refused or broken off", drawn);
        self.tell("all faults end");
    }

    /// Waits until nothing changes any more, and returns what does not hold then.
    async fn rest(&mut self) -> Vec<String> {
        let begun = Instant::now();
        let (mut before, mut since) = (self.state(), Instant::now());
        while since.elapsed() < QUIET {
            if begun.elapsed() > REST_LIMIT {
                return [vec![format!("the clusters do not come to rest within {REST_LIMIT:?}")], self.violations().await]
                    .concat();
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
            self.restart_ended();
            let now = self.state();
            if now != before {
                (before, since) = (now, Instant::now());
            }
        }
        self.violations().await
    }

    fn restart_ended(&mut self) {
        for cluster in &mut self.world.clusters {
            for number in 1..=2 {
                if cluster.manager(number).has_ended() {
                    cluster.restart_manager(number);
                }
            }
        }
    }

    /// The versions of all objects that somebody changes.
    fn state(&self) -> Vec<String> {
        let objects = self.world.clusters.iter().flat_map(|cluster| cluster.server.objects());
        let changing = objects.filter(|(key, _)| !ALWAYS_CHANGING.contains(&key.resource.as_str()));
        changing.map(|(_, object)| object["metadata"]["resourceVersion"].to_string()).collect()
    }

    async fn violations(&self) -> Vec<String> {
        let snapshot = |cluster: &crate::world::Cluster| Snapshot {
            id: cluster.id.clone(),
            name: cluster.name.clone(),
            objects: cluster.server.objects(),
        };
        let mut found = violations(&self.world.clusters.iter().map(snapshot).collect::<Vec<_>>());
        let rome = &self.world.clusters[ROME];
        if self.is_peered && !rome.node_is_ready("milan").await {
            found.push("the virtual node is not Ready".to_owned());
        }
        for ((namespace, name), replicas) in &self.deployments {
            let status = rome.api::<Deployment>(namespace).get(name).await.unwrap().status.unwrap_or_default();
            if status.ready_replicas.unwrap_or_default() != i32::from(*replicas) {
                found.push(format!("Deployment {namespace}/{name} should have {replicas} ready pods: {status:?}"));
            }
        }
        for ((namespace, name), completions) in &self.jobs {
            let status = rome.api::<Job>(namespace).get(name).await.unwrap().status.unwrap_or_default();
            if status.succeeded.unwrap_or_default() != i32::from(*completions) {
                found.push(format!("Job {namespace}/{name} should have {completions} completions: {status:?}"));
            }
        }
        found
    }

    fn report(self) -> Report {
        let mut history = DefaultHasher::new();
        for cluster in &self.world.clusters {
            for (key, object) in cluster.server.objects() {
                (key, object["metadata"]["resourceVersion"].to_string()).hash(&mut history);
            }
        }
        Report { pods: self.created, faults: self.faults, simulated: self.started.elapsed(), history: history.finish() }
    }
}

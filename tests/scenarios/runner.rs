//! Runs sets of scenarios, reports the outcomes, and lists the slowest scenarios.

use std::{
    collections::VecDeque,
    num::NonZeroUsize,
    process::ExitCode,
    str::FromStr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use futures::{
    StreamExt as _,
    future::{BoxFuture, join_all},
    stream,
};
use libtest_mimic::{Arguments, Completion, Trial};
use liqo_tests::{
    Baseline, Built, Clusters, Fixture, World,
    attacks::{self, Attack},
    turns,
};
use tokio::{
    runtime::Runtime,
    sync::{Mutex, OnceCell, RwLock, Semaphore, mpsc, oneshot},
};

/// Maximum number of scenarios that run at a time, in all sets together, besides one of each set's
/// `alone`: as many as two cores can handle.
const MAX_CONCURRENT: usize = 5;
/// Number of programs that want a processor, for each processor, above which no scenario starts
/// beside another. Then more at a time would finish nothing earlier, and managers would lose their
/// Leases.
const MAX_RUNNABLE: usize = 6;
/// How often the programs that want a processor are counted before a scenario starts, and the time
/// between two counts.
const COUNTS: u32 = 5;
const COUNT_INTERVAL: Duration = Duration::from_millis(200);
/// Environment variable with the number of seconds after which no scenario starts any more. Whoever
/// ends a run that takes too long sees nothing of it; this way, it says what is missing.
const TIME_TO_START: &str = "LIQO_TEST_SECONDS";
/// Environment variable with the number of sets whose clusters run at the same time; all, if it is
/// not set. Clusters that have nothing to do take a part of the processors, too: on some machines,
/// those of two sets take all there is.
const SETS_AT_A_TIME: &str = "LIQO_TEST_SETS";
/// Kind of the scenarios that docs/reference/attacks.md names, and the filter that selects all of
/// them.
const ATTACK: &str = "attack";
/// The filter that selects all scenarios: `cargo test -- --skip scenarios` runs everything else.
const ALL: &str = "scenarios";
/// Number of the slowest scenarios in the list at the end.
const SLOWEST: usize = 20;
/// Maximum length of the message of a failed scenario in the list at the end, in characters.
const MAX_MESSAGE_LEN: usize = 4000;

pub struct Scenario {
    name: &'static str,
    run: fn(Arc<World>) -> BoxFuture<'static, Result<()>>,
    shares: Shares,
    /// The situation that must be set up before it runs.
    fixture: Option<&'static Fixture>,
    /// Whether it runs Kubernetes' own tests.
    needs_kubernetes_tests: bool,
}

/// How a scenario shares the machine with those of other sets, and with the start of clusters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shares {
    /// Others run meanwhile.
    Always,
    /// Nothing else runs meanwhile.
    Never,
    /// It says so itself, by [`World::machine`].
    AtTimes,
}

impl Scenario {
    pub fn new(name: &'static str, run: fn(Arc<World>) -> BoxFuture<'static, Result<()>>) -> Self {
        Self {
            name,
            run,
            shares: Shares::Always,
            fixture: None,
            needs_kubernetes_tests: false,
        }
    }

    /// The runner sets this fixture up before. Only for scenarios that run one at a time.
    pub fn on(self, fixture: &'static Fixture) -> Self {
        Self {
            fixture: Some(fixture),
            ..self
        }
    }

    /// It waits while Kubernetes' own tests are not built, which takes minutes of all processors.
    /// Who names it lets them be built.
    pub fn with_kubernetes_tests(self) -> Self {
        Self {
            needs_kubernetes_tests: true,
            ..self
        }
    }

    /// No other scenario of any set runs meanwhile.
    pub fn with_whole_machine(self) -> Self {
        Self {
            shares: Shares::Never,
            ..self
        }
    }

    /// It takes [`World::machine`] itself, at times for itself alone.
    pub fn with_own_share(self) -> Self {
        Self {
            shares: Shares::AtTimes,
            ..self
        }
    }
}

/// Scenarios that share clusters.
pub struct Set {
    pub clusters: Clusters,
    /// They run first, several at a time. They have their own namespaces and only read everything
    /// else.
    pub parallel: Vec<Scenario>,
    /// They run at the same time as `parallel`, but one after another: they change turin and its
    /// peering with milan, and nothing that rome uses.
    pub with_turin: Vec<Scenario>,
    /// They run then, one after another, in this order.
    pub alone: Vec<Scenario>,
    /// They run after `alone`, the scenarios of a group one after another: here, or on the clusters
    /// of another set that is done before.
    pub groups: Vec<Vec<Scenario>>,
    /// They run at the very end, one after another: the clusters are not the same afterwards.
    pub last: Vec<Scenario>,
}

/// Which scenarios do not run this time.
#[derive(Default)]
struct Waiting {
    /// Names of those that wait for another turn.
    turns: Vec<String>,
    lacks_kubernetes_tests: bool,
}

impl Waiting {
    /// Who names scenarios wants these, whosever turn it is.
    fn of_run(runs_all: bool) -> Result<Self> {
        if !runs_all {
            return Ok(Self::default());
        }
        Ok(Self {
            turns: turns::waiting()?,
            lacks_kubernetes_tests: !liqo_playground::has_kubernetes_tests(),
        })
    }

    fn has(&self, scenario: &Scenario) -> bool {
        let waits_for_turn = self.turns.iter().any(|name| name == scenario.name);
        waits_for_turn || (scenario.needs_kubernetes_tests && self.lacks_kubernetes_tests)
    }

    fn show(&self) {
        if !self.turns.is_empty() {
            println!(
                "{} scenarios wait for their turn (tests/scenarios-by-turns.md)",
                self.turns.len()
            );
        }
        if self.lacks_kubernetes_tests {
            println!(
                "Kubernetes' own tests wait until they are built: cargo playground conformance --list"
            );
        }
    }
}

/// The outcome of a scenario: an error message if it failed.
type Outcome = Result<Completion, String>;

/// A scenario to run, and where to send its outcome.
struct Task {
    scenario: Scenario,
    report: oneshot::Sender<Outcome>,
}

/// The scenarios of a set that this run selects.
struct Tasks {
    parallel: Vec<Task>,
    with_turin: Vec<Task>,
    alone: Vec<Task>,
    last: Vec<Task>,
}

impl Tasks {
    fn is_empty(&self) -> bool {
        [&self.parallel, &self.with_turin, &self.alone, &self.last]
            .into_iter()
            .all(Vec::is_empty)
    }

    fn all(self) -> impl Iterator<Item = Task> {
        [self.parallel, self.with_turin, self.alone, self.last]
            .into_iter()
            .flatten()
    }
}

/// What the sets share.
struct Shared {
    built: OnceCell<Built>,
    /// A set needs one as long as its clusters run.
    sets: Semaphore,
    permits: Semaphore,
    /// Running scenarios read it. Who has the whole machine writes it: some scenarios, and the
    /// start of clusters.
    machine: Arc<RwLock<()>>,
    /// Held while a parallel scenario waits for room: they start one after another.
    admission: Mutex<()>,
    /// The groups that no set has begun yet.
    groups: Mutex<VecDeque<Vec<Task>>>,
    /// No scenario starts after it.
    last_start: Option<Instant>,
    ended: mpsc::UnboundedSender<Ended>,
    /// Names of the scenarios that had no time to start.
    late: mpsc::UnboundedSender<&'static str>,
}

impl Shared {
    fn is_too_late(&self) -> bool {
        self.last_start.is_some_and(|last| last < Instant::now())
    }

    /// Says that a scenario had no time to start. Whoever reads it may have ended.
    fn report_late(&self, Task { scenario, report }: Task) {
        let _ = self.late.send(scenario.name);
        let _ = report.send(Ok(Completion::ignored_with("no time was left")));
    }

    /// Waits until the processors have room for another scenario, or none runs.
    async fn admit(&self) {
        let _admission = self.admission.lock().await;
        let is_idle = || self.machine.try_write().is_ok();
        while !is_idle() && is_overloaded().await {}
    }
}

/// Whether programs wait for a processor too long. Takes a second, in which a scenario that has
/// just started becomes visible.
async fn is_overloaded() -> bool {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut sum = 0;
    for _ in 0..COUNTS {
        tokio::time::sleep(COUNT_INTERVAL).await;
        sum += runnable();
    }
    sum > MAX_RUNNABLE * processors * COUNTS as usize
}

/// The number of programs that run or want to, on the whole machine.
fn runnable() -> usize {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let count = text
        .lines()
        .find_map(|line| line.strip_prefix("procs_running "));
    count
        .and_then(|count| count.parse().ok())
        .unwrap_or_default()
}

/// A scenario that ended.
struct Ended {
    name: &'static str,
    took: Duration,
    error: Option<String>,
}

/// Runs the sets side by side. If they have to take turns, they do so in this order.
pub fn run(sets: Vec<Set>) -> ExitCode {
    let begun = Instant::now();
    let mut arguments = Arguments::from_args();
    // libtest_mimic only reports, one outcome after another. This module decides what runs at the
    // same time.
    arguments.test_threads = Some(1);
    let filters = arguments.filter.take();
    let attacks = match attacks::table() {
        Ok(attacks) => attacks,
        Err(error) => return fail(&anyhow::anyhow!("docs/reference/attacks.md: {error}")),
    };
    let waiting = match Waiting::of_run(filters.is_none() && !arguments.ignored) {
        Ok(waiting) => waiting,
        Err(error) => return fail(&error),
    };
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into()),
    };
    let (mut trials, mut runs): (_, Vec<BoxFuture<Result<()>>>) = (Vec::new(), Vec::new());
    let last_start = match number_in(TIME_TO_START) {
        Ok(seconds) => seconds.and_then(|seconds| begun.checked_add(Duration::from_secs(seconds))),
        Err(error) => return fail(&error),
    };
    let sets_at_a_time = match number_in::<NonZeroUsize>(SETS_AT_A_TIME) {
        Ok(number) => number.map_or(sets.len(), NonZeroUsize::get),
        Err(error) => return fail(&error),
    };
    let (ended, mut all_ended) = mpsc::unbounded_channel();
    let (late, mut all_late) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared {
        built: OnceCell::new(),
        sets: Semaphore::new(sets_at_a_time),
        permits: Semaphore::new(MAX_CONCURRENT),
        machine: Arc::default(),
        admission: Mutex::default(),
        groups: Mutex::default(),
        last_start,
        ended,
        late,
    });
    for set in sets {
        let mut tasks = |scenarios: Vec<Scenario>| {
            let mut tasks = Vec::new();
            for scenario in scenarios {
                let is_attack = attacks
                    .iter()
                    .any(|attack| attack.scenario().as_deref() == Some(scenario.name));
                if !is_named(filters.as_deref(), &arguments, scenario.name, is_attack) {
                    continue;
                }
                let (report, outcome) = oneshot::channel::<Outcome>();
                let trial = Trial::ignorable_test(scenario.name, move || {
                    outcome
                        .blocking_recv()
                        .unwrap_or_else(|_| Err("the clusters were not started".to_owned()))
                        .map_err(Into::into)
                });
                let waits = !arguments.include_ignored && waiting.has(&scenario);
                let trial = trial.with_ignored_flag(waits);
                trials.push(if is_attack {
                    trial.with_kind(ATTACK)
                } else {
                    trial
                });
                if !arguments.list && !arguments.ignored && !waits {
                    tasks.push(Task { scenario, report });
                }
            }
            tasks
        };
        let (parallel, with_turin) = (tasks(set.parallel), tasks(set.with_turin));
        let (alone, last) = (tasks(set.alone), tasks(set.last));
        let groups: VecDeque<_> = set
            .groups
            .into_iter()
            .map(&mut tasks)
            .filter(|group| !group.is_empty())
            .collect();
        let tasks = Tasks {
            parallel,
            with_turin,
            alone,
            last,
        };
        if !tasks.is_empty() || !groups.is_empty() {
            shared.groups.blocking_lock().extend(groups);
            let shared = shared.clone();
            runs.push(Box::pin(async move {
                // The semaphore is never closed, so there is no error. Sets wait here in their order:
                // the tasks below would wait in that of the threads.
                let _set = shared.sets.acquire().await;
                // In a task of its own, so that a panic ends only this set.
                tokio::spawn(run_set(set.clusters, tasks, shared.clone())).await?
            }));
        }
    }
    drop(shared);
    let run = runtime.spawn(join_all(runs));
    let conclusion = libtest_mimic::run(&arguments, trials);
    match runtime
        .block_on(run)
        .map(|results| results.into_iter().collect::<Result<()>>())
    {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return fail(&error),
        Err(error) => return fail(&error.into()),
    }
    let mut scenarios = Vec::new();
    while let Ok(ended) = all_ended.try_recv() {
        scenarios.push(ended);
    }
    show_attacks(&attacks, &scenarios);
    show_slowest(&mut scenarios, begun.elapsed());
    waiting.show();
    let mut has_late = false;
    while let Ok(name) = all_late.try_recv() {
        println!("no time was left ({TIME_TO_START}): {name}");
        has_late = true;
    }
    show_failed(&scenarios);
    if has_late && scenarios.is_empty() {
        return fail(&anyhow::anyhow!("no time was left for any of them"));
    }
    conclusion.exit_code()
}

/// The number in an environment variable.
fn number_in<N>(variable: &str) -> Result<Option<N>>
where
    N: FromStr<Err = std::num::ParseIntError>,
{
    let Ok(text) = std::env::var(variable) else {
        return Ok(None);
    };
    text.parse()
        .map(Some)
        .with_context(|| format!("the variable {variable}: {text:?} is no number that it may have"))
}

/// Whether the command line names the scenario: by one of the filters, which commas separate, and
/// by no `--skip`. [`ATTACK`] names all attacks.
fn is_named(filters: Option<&str>, arguments: &Arguments, name: &str, is_attack: bool) -> bool {
    let fits = |filter: &str| {
        filter == ALL
            || (is_attack && filter == ATTACK)
            || if arguments.exact {
                name == filter
            } else {
                name.contains(filter)
            }
    };
    filters.is_none_or(|filters| filters.split(',').any(fits))
        && !arguments.skip.iter().any(|filter| fits(filter))
}

/// Starts the clusters of a set and runs its scenarios. After a failure it restores the clusters
/// before others run.
async fn run_set(clusters: Clusters, tasks: Tasks, shared: Arc<Shared>) -> Result<()> {
    if shared.is_too_late() {
        let groups = std::mem::take(&mut *shared.groups.lock().await);
        tasks
            .all()
            .chain(groups.into_iter().flatten())
            .for_each(|task| shared.report_late(task));
        return Ok(());
    }
    let (begun, instance) = (Instant::now(), clusters.instance);
    let built = shared.built.get_or_try_init(Built::build).await?;
    // Beside it, API servers would not answer for a minute, and managers would lose their Leases.
    let whole = shared.machine.write().await;
    let world = World::build(clusters, built, shared.machine.clone())
        .await
        .with_context(|| format!("the clusters of set {instance}"))?;
    drop(whole);
    let world = Arc::new(world);
    let baseline = Baseline::of(&world).await?;
    eprintln!(
        "{instance}: the clusters are ready after {} s",
        begun.elapsed().as_secs()
    );
    let Tasks {
        parallel,
        with_turin,
        alone,
        last,
    } = tasks;
    let (parallel, with_turin) = tokio::join!(
        run_some(MAX_CONCURRENT, &world, parallel, &shared),
        run_some(1, &world, with_turin, &shared)
    );
    let mut are_gone = world.ended_namespaces_are_gone_unless_kept().await;
    let mut has_failed = !(parallel && with_turin) || are_gone.is_err();
    eprintln!(
        "{instance}: the parallel scenarios are done after {} s",
        begun.elapsed().as_secs()
    );
    if has_failed {
        restore(&world, &baseline).await;
    }
    let mut alone = VecDeque::from(alone);
    let mut last = Some(last);
    loop {
        let Some(task) = alone.pop_front() else {
            let group = shared.groups.lock().await.pop_front();
            let Some(group) = group.or_else(|| last.take()) else {
                break;
            };
            alone.extend(group);
            continue;
        };
        // They need no permit: a set would end late if each of them queued behind the scenarios of
        // other sets.
        if !run_admitted(&world, task, &shared).await {
            has_failed = true;
            restore(&world, &baseline).await;
        }
    }
    let arranged = world.arrange(None).await;
    eprintln!(
        "{instance}: all scenarios are done after {} s",
        begun.elapsed().as_secs()
    );
    are_gone = are_gone.and(world.ended_namespaces_are_gone_unless_kept().await);
    world
        .end(has_failed || are_gone.is_err() || arranged.is_err())
        .await?;
    arranged.and(are_gone)
}

/// Runs at most `at_once` scenarios at a time. Returns whether all succeeded.
async fn run_some(at_once: usize, world: &Arc<World>, tasks: Vec<Task>, shared: &Shared) -> bool {
    let runs: Vec<_> = tasks
        .into_iter()
        .map(|task| run_one(world, task, shared))
        .collect();
    stream::iter(runs)
        .buffer_unordered(at_once)
        .fold(true, |all, is_done| std::future::ready(all && is_done))
        .await
}

/// Runs a scenario when there is room for it. Returns whether it succeeded.
async fn run_one(world: &Arc<World>, task: Task, shared: &Shared) -> bool {
    // The semaphore is never closed, so there is no error.
    let _permit = shared.permits.acquire().await;
    shared.admit().await;
    run_admitted(world, task, shared).await
}

/// Runs a scenario, unless it is too late for it, and sends its outcome. Returns whether it
/// succeeded or was not run.
async fn run_admitted(world: &Arc<World>, task: Task, shared: &Shared) -> bool {
    let scenario = &task.scenario;
    let _whole = if scenario.shares == Shares::Never {
        Some(shared.machine.write().await)
    } else {
        None
    };
    let _part = if scenario.shares == Shares::Always {
        Some(shared.machine.read().await)
    } else {
        None
    };
    if shared.is_too_late() {
        shared.report_late(task);
        return true;
    }
    let Task { scenario, report } = task;
    let (name, begun) = (scenario.name, Instant::now());
    let run = {
        let world = world.clone();
        async move {
            world.arrange(scenario.fixture).await?;
            (scenario.run)(world).await
        }
    };
    let outcome = match tokio::spawn(run).await {
        Ok(outcome) => outcome
            .map(|()| Completion::Completed)
            .map_err(|error| format!("{error:#}")),
        Err(panic) => Err(panic.to_string()),
    };
    if let Err(error) = &outcome {
        eprintln!("{name}: {error}");
    }
    let is_done = outcome.is_ok();
    eprintln!(
        "{name}: {} after {} s",
        if is_done { "done" } else { "failed" },
        begun.elapsed().as_secs()
    );
    // Sending fails if the report has ended.
    let _ = shared.ended.send(Ended {
        name,
        took: begun.elapsed(),
        error: outcome.as_ref().err().cloned(),
    });
    let _ = report.send(outcome);
    is_done
}

async fn restore(world: &World, baseline: &Baseline) {
    let begun = Instant::now();
    match baseline.restore(world).await {
        Ok(()) => eprintln!(
            "restored the clusters within {} s",
            begun.elapsed().as_secs()
        ),
        Err(error) => eprintln!("cannot restore the clusters after a failed scenario: {error:#}"),
    }
}

fn show_slowest(all: &mut [Ended], total: Duration) {
    all.sort_by_key(|ended| std::cmp::Reverse(ended.took));
    println!("the slowest scenarios:");
    for Ended { name, took, .. } in all.iter().take(SLOWEST) {
        println!("{:6} s  {name}", took.as_secs());
    }
    println!(
        "{} scenarios, {} s with the clusters",
        all.len(),
        total.as_secs()
    );
}

/// The table of docs/reference/attacks.md with the outcomes of its scenarios, if this run had some
/// of them.
fn show_attacks(attacks: &[Attack], ended: &[Ended]) {
    let outcome_of = |attack: &Attack| {
        let name = attack.scenario()?;
        ended.iter().find(|ended| ended.name == name).map(|ended| {
            if ended.error.is_none() {
                "withstood"
            } else {
                "FAILED"
            }
        })
    };
    if !attacks.iter().any(|attack| outcome_of(attack).is_some()) {
        return;
    }
    println!("attacks (docs/reference/attacks.md):");
    for attack in attacks {
        let outcome = outcome_of(attack).unwrap_or(if attack.scenario().is_some() {
            "not run"
        } else {
            "unit test"
        });
        println!("{outcome:>9}  {attack}");
    }
}

/// Repeats what failed, after the logs of the clusters: a long output is often read from its end.
fn show_failed(all: &[Ended]) {
    for Ended { name, error, .. } in all {
        if let Some(error) = error {
            println!(
                "failed: {name}: {}",
                error.chars().take(MAX_MESSAGE_LEN).collect::<String>()
            );
        }
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("the scenarios cannot run: {error:#}");
    ExitCode::FAILURE
}

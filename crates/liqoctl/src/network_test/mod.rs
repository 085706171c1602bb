//! `liqoctl test network`: pods and nodes of every pair of clusters ask each other, and what does not work is told with what to do.
//!
//! ```text
//!   stage   a namespace, offloaded; on each node a pod that serves, at each provider some; Services; a pod in the network of each node
//!   plan    who asks whom, how, and what the right answer is                                                                   (pure)
//!   ask     all of it, by exec, which proves that, too; what failed again
//!   judge   each way: from a cluster's pods or nodes to another's pods, Services, node ports                                    (pure)
//!   advice  what to do                                                                                                          (pure)
//! ```

mod advice;
mod judge;
mod plan;
mod render;
mod scene;
mod stage;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{bail, ensure};
use futures::{StreamExt as _, stream};
use liqo_probe::{Request, What};
use serde::Serialize;
use tokio::time::Instant;

use crate::{
    cluster::Cluster,
    output::plain,
    probes::{self, Answers, Cut, LeftOut, Stage},
    progress::Progress,
};

pub use plan::To;
pub use render::render;
pub use scene::From;

use judge::{Heard, State, check, judge};
use plan::{Plan, Way, plan};
use scene::Scene;

/// So many pods ask at a time: all at once would measure each other.
const ASKERS: usize = 4;
/// So many questions of one pod are open at a time.
const AT_ONCE: usize = 6;
/// How long one answer may take, to a short question and to a long one.
const PATIENCE: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(40)];
/// How long one pod may be busy with all of its short questions, or with a long one.
const LIMIT: Duration = Duration::from_secs(120);
/// So much of the time is left for what comes after the questions.
const SPARE: Duration = Duration::from_secs(10);
/// What failed is asked again so much later, twice: what was made just now takes a moment to be known everywhere.
const AGAIN: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(10)];

/// How to test.
#[derive(Clone, Debug)]
pub struct Options {
    /// So many nodes of each cluster take part at most.
    pub nodes: usize,
    /// The image of the pods, if not that of the cluster.
    pub image: Option<String>,
    /// Whether the pods stay.
    pub keep: bool,
    /// How long it may take.
    pub timeout: Duration,
}

/// What was found: a matrix around each cluster that borrows.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    /// One for each cluster that borrows.
    pub matrices: Vec<Matrix>,
    /// What could not be removed at the end, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
}

/// What was found around one cluster that borrows.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Matrix {
    /// The clusters; the one that borrows is the first.
    pub clusters: Vec<Participants>,
    /// Each way from one to another.
    pub ways: Vec<Tried>,
    /// What does not work, and what to do.
    pub failures: Vec<Told>,
}

/// What of a cluster took part.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Participants {
    /// Its name.
    pub cluster: String,
    /// The nodes that its pods ran on.
    pub nodes: Vec<String>,
    /// Its pods.
    pub pods: Vec<String>,
    /// Nodes that should have taken part, and could not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
}

/// One way.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tried {
    /// The cluster that asked.
    pub from_cluster: String,
    /// From where.
    pub from: From,
    /// The cluster whose pods were asked.
    pub to_cluster: String,
    /// How they were reached.
    pub to: To,
    /// How it is.
    pub state: WayState,
    /// The usual time from question to answer, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub millis: Option<f64>,
    /// Why it is as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// How a way is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum WayState {
    /// Everything was answered as it should.
    Ok,
    /// Something was not.
    Failed,
    /// It is not meant to be there.
    Closed,
}

/// One question that was not answered as it should.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Told {
    /// From whom to what: `rome pod to milan service`.
    pub way: String,
    /// Who asked, and what.
    pub tried: String,
    /// What came of it.
    pub happened: String,
    /// What to do.
    pub advice: String,
}

impl Found {
    /// An error if something does not work.
    pub fn verdict(&self) -> anyhow::Result<()> {
        let of_state = |state| self.matrices.iter().flat_map(|matrix| &matrix.ways).filter(|way| way.state == state).count();
        let (failed, good) = (of_state(WayState::Failed), of_state(WayState::Ok));
        let clusters = self.matrices.iter().flat_map(|matrix| &matrix.clusters);
        let left_out: BTreeSet<(&str, &str)> =
            clusters.flat_map(|one| one.left_out.iter().map(|left| (one.cluster.as_str(), left.node.as_str()))).collect();
        let nodes = if left_out.len() == 1 { "1 node".to_owned() } else { format!("{} nodes", left_out.len()) };
        match (failed, left_out.len()) {
            (0, 0) => {}
            (0, _) => bail!("{nodes} could not take part"),
            (_, 0) => bail!("{failed} of {} ways between clusters do not work as they should", failed + good),
            _ => bail!(
                "{failed} of {} ways between clusters do not work as they should, and {nodes} could not take part",
                failed + good
            ),
        }
        ensure!(self.left.is_empty(), "what was made for the test could not be removed");
        Ok(())
    }
}

/// Tests around each of these clusters that borrows.
pub async fn run(clusters: &[Cluster], options: &Options, progress: &Progress) -> anyhow::Result<Found> {
    let members = stage::members(clusters).await?;
    probes::sweep(clusters).await?;
    let mut found = Found { matrices: Vec::new(), left: Vec::new() };
    for home in 0..members.len() {
        if members[home].virtual_nodes.is_empty() {
            continue;
        }
        let stage = Stage::new(options.timeout, options.keep);
        let deadline = Instant::now() + options.timeout.saturating_sub(SPARE);
        let playing = stage.play(options.timeout, progress, async {
            let acts = stage::set(&members, home, options, &stage, progress).await?;
            let plan = plan(&acts.scene);
            let asking = format!("Asking, from {}", members[home].name);
            let heard = progress.step(&asking, ask(&acts, &plan, deadline, progress, &asking)).await?;
            anyhow::Ok(matrix(&acts.scene, &plan, &heard))
        });
        let played = Box::pin(playing).await?;
        found.matrices.push(played.found);
        found.left.extend(played.left);
    }
    if found.matrices.is_empty() {
        let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
        bail!(
            "{} borrows from nobody, so no pod of it can run elsewhere: peer first (`liqoctl peer`), or name the cluster that borrows with --kubeconfig",
            names.join(" and ")
        );
    }
    Ok(found)
}

/// Asks everything, and again what failed.
async fn ask(acts: &stage::Acts, plan: &Plan, deadline: Instant, progress: &Progress, step: &str) -> anyhow::Result<Vec<Heard>> {
    let mut heard = vec![Heard::Late; plan.asks.len()];
    for pause in [None].into_iter().chain(AGAIN.map(Some)) {
        let is_open = |number: &usize| pause.is_none() || check(&plan.asks[*number], &heard[*number]).is_err();
        let mut open: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for number in (0..plan.asks.len()).filter(is_open) {
            open.entry(plan.asks[number].asker).or_default().push(number);
        }
        if open.is_empty() {
            break;
        }
        let questions: usize = open.values().map(Vec::len).sum();
        match pause {
            None => progress.message(step, &format!("{questions} questions of {} pods", open.len())),
            Some(pause) if Instant::now() + pause >= deadline => break,
            Some(pause) => {
                progress.message(step, &format!("{questions} questions again in {} s", pause.as_secs()));
                tokio::time::sleep(pause).await;
            }
        }
        let stuck = Mutex::default();
        let asking = open.into_iter().map(|(asker, numbers)| {
            let stuck = &stuck;
            async move {
                let tell = async |numbers: &[usize], patience| tell(acts, plan, asker, numbers, patience, deadline).await;
                ask_one(plan, &numbers, stuck, tell).await
            }
        });
        let found = stream::iter(asking).buffer_unordered(ASKERS).collect::<Vec<_>>().await;
        for (number, found) in found.into_iter().flatten() {
            // What was found once says more than that there was no time for it again.
            if matches!(found, Heard::Found(_)) || !matches!(heard[number], Heard::Found(_)) {
                heard[number] = found;
            }
        }
    }
    Ok(heard)
}

/// Has one pod ask: the short questions first, then the long ones, one after another, but none on a way on which one is `stuck`: where
/// large packets vanish each takes its whole time.
async fn ask_one(
    plan: &Plan,
    numbers: &[usize],
    stuck: &Mutex<BTreeSet<Way>>,
    tell: impl AsyncFn(&[usize], Duration) -> Vec<Heard>,
) -> Vec<(usize, Heard)> {
    let is_long = |number: &usize| matches!(plan.asks[*number].question.what, What::Bulk { .. });
    let (long, short): (Vec<usize>, Vec<usize>) = numbers.iter().copied().partition(is_long);
    let found = if short.is_empty() { Vec::new() } else { tell(&short, PATIENCE[0]).await };
    let mut heard: Vec<(usize, Heard)> = short.into_iter().zip(found).collect();
    for number in long {
        let way = plan.asks[number].way;
        let is_stuck = stuck.lock().unwrap_or_else(PoisonError::into_inner).contains(&way);
        let found = if is_stuck { Some(Heard::Spared) } else { tell(&[number], PATIENCE[1]).await.pop() };
        if matches!(found, Some(Heard::Found(Err(_)))) {
            stuck.lock().unwrap_or_else(PoisonError::into_inner).insert(way);
        }
        heard.extend(found.map(|found| (number, found)));
    }
    heard
}

/// Tells a pod to ask, and listens until the deadline at most.
async fn tell(
    acts: &stage::Acts,
    plan: &Plan,
    asker: usize,
    numbers: &[usize],
    patience: Duration,
    deadline: Instant,
) -> Vec<Heard> {
    let limit = LIMIT.min(deadline.saturating_duration_since(Instant::now()));
    if limit.is_zero() {
        return vec![Heard::Late; numbers.len()];
    }
    let request = Request {
        questions: numbers.iter().map(|number| plan.asks[*number].question.clone()).collect(),
        patience_millis: u64::try_from(patience.as_millis()).unwrap_or(u64::MAX),
        at_once: AT_ONCE,
        token: None,
    };
    let place = &acts.places[asker];
    let answers = probes::ask(&place.cluster, &place.namespace, &acts.scene.parties[asker].pod, &request, limit).await;
    heard(numbers.len(), answers)
}

/// What was heard to each of so many questions.
fn heard(questions: usize, answers: Answers) -> Vec<Heard> {
    let rest = match answers.end {
        Ok(()) => Heard::NotAsked("it ended before it had said everything".to_owned()),
        Err(Cut::Late { .. }) => Heard::Late,
        Err(broken @ Cut::Broken(_)) => Heard::NotAsked(plain(&broken.to_string())),
    };
    let mut all = vec![rest; questions];
    for report in answers.reports {
        if let Some(heard) = all.get_mut(report.question) {
            *heard = Heard::Found(report.outcome);
        }
    }
    all
}

fn matrix(scene: &Scene, plan: &Plan, heard: &[Heard]) -> Matrix {
    let judgement = judge(plan, heard);
    let passes =
        |is: &dyn Fn(&plan::Ask) -> bool| plan.asks.iter().zip(heard).any(|(ask, heard)| is(ask) && check(ask, heard).is_ok());
    let cluster = |number: usize| scene.clusters[number].name.clone();
    let ways = judgement.ways.iter().map(|(way, state)| {
        let (state, millis, message) = match state {
            State::Good { millis } => (WayState::Ok, *millis, None),
            State::Bad { failed, asked } => (WayState::Failed, None, Some(format!("{failed} of {asked} questions"))),
            State::Missing(why) => (WayState::Failed, None, Some(why.clone())),
            State::Closed(why) => (WayState::Closed, None, Some(why.clone())),
        };
        Tried {
            from_cluster: cluster(way.from.0),
            from: way.from.1,
            to_cluster: cluster(way.to.0),
            to: way.to.1,
            state,
            millis,
            message,
        }
    });
    let from = |asker: usize| {
        let asker = &scene.parties[asker];
        if asker.kind == From::Node { format!("node {}", asker.node) } else { format!("{} on {}", asker.pod, asker.node) }
    };
    let lost = plan.lost.iter().map(|lost| Told {
        way: way_words(scene, lost.way),
        tried: format!("{}: {}", from(lost.asker), lost.words),
        happened: lost.why.clone(),
        advice: lost.advice.to_owned(),
    });
    let failures = judgement.failures.iter().map(|failure| Told {
        way: way_words(scene, failure.ask.way),
        tried: format!("{} asked {}", from(failure.ask.asker), failure.ask.words),
        happened: plain(&failure.trouble.to_string()),
        advice: plain(&advice::advice(scene, failure, passes)),
    });
    Matrix { clusters: participants(scene, plan, heard), ways: ways.collect(), failures: lost.chain(failures).collect() }
}

fn way_words(scene: &Scene, way: Way) -> String {
    let cluster = |number: usize| &scene.clusters[number].name;
    format!("{} {} to {} {}", cluster(way.from.0), way.from.1.word(), cluster(way.to.0), way.to.1.word())
}

/// Who took part; where remote pods ran they say themselves.
fn participants(scene: &Scene, plan: &Plan, heard: &[Heard]) -> Vec<Participants> {
    let mut ran_on: BTreeMap<&str, &str> = BTreeMap::new();
    for (_, heard) in plan.asks.iter().zip(heard) {
        if let Heard::Found(Ok(liqo_probe::Finding::Answered { by, .. })) = heard {
            ran_on.insert(&by.pod, &by.node);
        }
    }
    let of = |(number, member): (usize, &scene::Member)| {
        let pods: Vec<String> = scene.pods(number).map(|party| party.pod.clone()).collect();
        let mut nodes: Vec<String> = pods.iter().filter_map(|pod| ran_on.get(pod.as_str())).map(|&node| plain(node)).collect();
        nodes.sort();
        nodes.dedup();
        Participants { cluster: member.name.clone(), nodes, pods, left_out: member.left_out.clone() }
    };
    scene.clusters.iter().enumerate().map(of).collect()
}

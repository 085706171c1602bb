//! `liqoctl test network`: pods and nodes of each pair of clusters call each other. Each failure
//! comes with advice.
//!
//! ```text
//!   prepare creates an offloaded namespace, pods that serve on each node and at each provider, Services, a pod in each node's network
//!   plan    who asks whom, how, and what the right answer is                                                                   (pure)
//!   ask     asks all questions by exec, which tests that, too, and failed ones again
//!   judge   judges each path: from a cluster's pods or nodes to another's pods, Services, node ports                            (pure)
//!   advice  what to do                                                                                                          (pure)
//! ```

mod advice;
mod judge;
mod plan;
mod prepare;
mod render;
mod setup;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{bail, ensure};
use clap::Args;
use futures::{StreamExt as _, stream};
use liqo_network_probe::{AskRequest, MeasuredAnswer, QuestionKind};
use parking_lot::Mutex;
use serde::{Serialize, Serializer};
use tokio::time::Instant;

use crate::{
    cluster::Cluster,
    finding::Finding,
    output::strip_control_characters,
    probes::{
        self, ExcludedNode, OtherClusterFlags, ProbeReports, TestNamespaces, UnfinishedProbe,
    },
    progress::StepProgress,
    token,
};

pub use plan::TargetKind;
pub use render::render_test_result;
pub use setup::AskerKind;

use judge::{AnswerFault, PathVerdict, QuestionOutcome, check_answer, judge_outcomes};
use plan::{QuestionPlan, TestPath, plan_questions};
use setup::NetworkTestSetup;

/// Pods that ask at the same time. More would slow each other down.
const MAX_ASKING_PODS: usize = 4;
/// Open questions of one pod at the same time.
const MAX_OPEN_QUESTIONS: usize = 6;
/// Time limit of one answer, to a short question and to a long one.
const ANSWER_TIMEOUTS: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(40)];
/// Time limit of one pod for all its short questions, or for one long one.
const POD_TIMEOUT: Duration = Duration::from_mins(2);
/// Time that is kept for the work after the questions.
const RESERVED_TIME: Duration = Duration::from_secs(10);
/// Delays before failed questions are asked again: new objects take a moment to be known
/// everywhere, and name servers usually remember for 30 seconds that a name had no address.
/// Together the delays are longer than that.
const RETRY_DELAYS: [Duration; 3] = [
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(20),
];

/// Options of `test network`.
#[derive(Clone, Debug, Args)]
pub struct NetworkTestOptions {
    #[command(flatten)]
    pub others: OtherClusterFlags,
    /// Maximum number of nodes of each cluster that take part
    #[arg(long, default_value_t = 3, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    pub nodes: u16,
    /// Image of the pods, which contains liqo-fabric [default: the one that runs in the cluster]
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Keep the pods so that you can inspect them; the next run removes them
    #[arg(long)]
    pub keep: bool,
    /// Time limit of the whole run
    #[arg(long, default_value = "5m", value_parser = token::parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
}

/// The results: one matrix for each cluster that borrows.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TestResult {
    /// One for each cluster that borrows.
    pub matrices: Vec<TestMatrix>,
    /// Namespaces that could not be removed at the end, with reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
}

/// The results for one cluster that borrows, and its providers.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TestMatrix {
    /// The clusters; the one that borrows is the first.
    pub clusters: Vec<Participants>,
    /// Each path from one to another.
    pub paths: Vec<PathResult>,
    /// The failures, with advice.
    #[serde(serialize_with = "serialize_failures")]
    pub failures: Vec<ReportedFailure>,
}

/// The nodes and pods of a cluster that took part.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Participants {
    pub cluster: String,
    /// The nodes that its pods ran on.
    pub nodes: Vec<String>,
    pub pods: Vec<String>,
    /// Nodes that should have taken part, and could not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<ExcludedNode>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PathResult {
    /// The cluster that asked.
    pub from_cluster: String,
    pub from: AskerKind,
    /// The cluster whose pods were asked.
    pub to_cluster: String,
    /// How they were reached.
    pub to: TargetKind,
    pub state: PathState,
    /// The median time from question to answer, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub millis: Option<f64>,
    /// Explanation of the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The result for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum PathState {
    /// All answers were right.
    Ok,
    Failed,
    /// The path is not meant to exist.
    Closed,
}

/// One question without the right answer.
pub type ReportedFailure = Finding<TriedQuestion>;

/// A question, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TriedQuestion {
    /// From whom to what: `rome pod to milan service`.
    pub path: String,
    /// The asker and the question.
    pub tried: String,
}

/// All failures have the same verdict, which is left out.
fn serialize_failures<S: Serializer>(
    failures: &[ReportedFailure],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct FailureFields<'a> {
        #[serde(flatten)]
        question: &'a TriedQuestion,
        happened: &'a str,
        advice: &'a Option<String>,
    }
    serializer.collect_seq(failures.iter().map(|failure| FailureFields {
        question: &failure.check,
        happened: &failure.what,
        advice: &failure.advice,
    }))
}

impl TestResult {
    /// An error if something does not work.
    pub fn ensure_all_passed(&self) -> anyhow::Result<()> {
        let (failed, good) = (
            self.count_paths(PathState::Failed),
            self.count_paths(PathState::Ok),
        );
        let clusters = self.matrices.iter().flat_map(|matrix| &matrix.clusters);
        let left_out: BTreeSet<(&str, &str)> = clusters
            .flat_map(|one| {
                one.left_out
                    .iter()
                    .map(|left| (one.cluster.as_str(), left.node.as_str()))
            })
            .collect();
        let nodes = if left_out.len() == 1 {
            "1 node".to_owned()
        } else {
            format!("{} nodes", left_out.len())
        };
        match (failed, left_out.len()) {
            (0, 0) => {}
            (0, _) => bail!("{nodes} could not take part"),
            (_, 0) => bail!(
                "{failed} of {} paths between clusters do not work as they should",
                failed + good
            ),
            _ => bail!(
                "{failed} of {} paths between clusters do not work as they should, and {nodes} could not take part",
                failed + good
            ),
        }
        ensure!(
            self.left.is_empty(),
            "what was created for the test could not be removed"
        );
        Ok(())
    }

    fn count_paths(&self, state: PathState) -> usize {
        self.matrices
            .iter()
            .flat_map(|matrix| &matrix.paths)
            .filter(|path| path.state == state)
            .count()
    }
}

/// Tests each of these clusters that borrows, with its providers.
pub async fn run_network_test(
    clusters: &[Cluster],
    options: &NetworkTestOptions,
    progress: &StepProgress,
) -> anyhow::Result<TestResult> {
    let members = prepare::read_clusters(clusters).await?;
    probes::remove_leftovers(clusters).await?;
    let mut found = TestResult {
        matrices: Vec::new(),
        left: Vec::new(),
    };
    for home in 0..members.len() {
        if members[home].virtual_nodes.is_empty() {
            continue;
        }
        let namespaces = TestNamespaces::new(options.timeout, options.keep);
        let deadline = Instant::now() + options.timeout.saturating_sub(RESERVED_TIME);
        let running = namespaces.run_and_clean_up(options.timeout, progress, async {
            let prepared =
                prepare::prepare_test(&members, home, options, &namespaces, progress).await?;
            let plan = plan_questions(&prepared.setup);
            let asking = format!("Asking, from {}", members[home].name);
            let heard = progress
                .run_step(
                    &asking,
                    ask_all(&prepared, &plan, deadline, progress, &asking),
                )
                .await?;
            anyhow::Ok(matrix(&prepared.setup, &plan, &heard))
        });
        let run = Box::pin(running).await?;
        found.matrices.push(run.found);
        found.left.extend(run.left);
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

/// Asks all questions, and failed ones again.
async fn ask_all(
    prepared: &prepare::PreparedTest,
    plan: &QuestionPlan,
    deadline: Instant,
    progress: &StepProgress,
    step: &str,
) -> anyhow::Result<Vec<QuestionOutcome>> {
    let mut heard = vec![Err(AnswerFault::Late); plan.asks.len()];
    for pause in [None].into_iter().chain(RETRY_DELAYS.map(Some)) {
        let mut open: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (number, ask) in plan.asks.iter().enumerate() {
            if pause.is_none() || check_answer(ask, &heard[number]).is_err() {
                open.entry(ask.asker).or_default().push(number);
            }
        }
        if open.is_empty() {
            break;
        }
        let questions: usize = open.values().map(Vec::len).sum();
        match pause {
            None => progress.message(
                step,
                &format!("{questions} questions of {} pods", open.len()),
            ),
            Some(pause) if Instant::now() + pause >= deadline => break,
            Some(pause) => {
                progress.message(
                    step,
                    &format!("{questions} questions again in {} s", pause.as_secs()),
                );
                tokio::time::sleep(pause).await;
            }
        }
        let stuck = Mutex::default();
        let asking = open.into_iter().map(|(asker, numbers)| {
            let stuck = &stuck;
            async move {
                let ask_pod = async |numbers: &[usize], timeout| {
                    ask_pod(prepared, plan, asker, numbers, timeout, deadline).await
                };
                ask_one(plan, &numbers, stuck, ask_pod).await
            }
        });
        let found = stream::iter(asking)
            .buffer_unordered(MAX_ASKING_PODS)
            .collect::<Vec<_>>()
            .await;
        for (number, found) in found.into_iter().flatten() {
            // The first outcome says more than that there was no time for a second try.
            if is_reply(&found) || !is_reply(&heard[number]) {
                heard[number] = found;
            }
        }
    }
    Ok(heard)
}

/// Whether the asker reported something about the question.
fn is_reply(outcome: &QuestionOutcome) -> bool {
    matches!(outcome, Ok(_) | Err(AnswerFault::Problem(_)))
}

/// Makes one pod ask: first the short questions, then the long ones, one after another. Skips long
/// ones on a path where one is `stuck`: if large packets are lost, each takes its whole time limit.
async fn ask_one(
    plan: &QuestionPlan,
    numbers: &[usize],
    stuck: &Mutex<BTreeSet<TestPath>>,
    ask_pod: impl AsyncFn(&[usize], Duration) -> Vec<QuestionOutcome>,
) -> Vec<(usize, QuestionOutcome)> {
    let (long, short): (Vec<usize>, Vec<usize>) = numbers
        .iter()
        .partition(|number| matches!(plan.asks[**number].question.what, QuestionKind::Bulk { .. }));
    let found = if short.is_empty() {
        Vec::new()
    } else {
        ask_pod(&short, ANSWER_TIMEOUTS[0]).await
    };
    let mut heard: Vec<(usize, QuestionOutcome)> = short.into_iter().zip(found).collect();
    for number in long {
        let path = plan.asks[number].path;
        let is_stuck = stuck.lock().contains(&path);
        let found = if is_stuck {
            Some(Err(AnswerFault::Skipped))
        } else {
            ask_pod(&[number], ANSWER_TIMEOUTS[1]).await.pop()
        };
        if matches!(found, Some(Err(AnswerFault::Problem(_)))) {
            stuck.lock().insert(path);
        }
        heard.extend(found.map(|found| (number, found)));
    }
    heard
}

/// Makes a pod ask, and reads its answers until the deadline.
async fn ask_pod(
    prepared: &prepare::PreparedTest,
    plan: &QuestionPlan,
    asker: usize,
    numbers: &[usize],
    timeout: Duration,
    deadline: Instant,
) -> Vec<QuestionOutcome> {
    let limit = POD_TIMEOUT.min(deadline.saturating_duration_since(Instant::now()));
    if limit.is_zero() {
        return vec![Err(AnswerFault::Late); numbers.len()];
    }
    let request = AskRequest {
        questions: numbers
            .iter()
            .map(|number| plan.asks[*number].question.clone())
            .collect(),
        timeout_millis: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        at_once: MAX_OPEN_QUESTIONS,
        token: None,
    };
    let location = &prepared.locations[asker];
    let answers = probes::run_probe(
        &location.cluster,
        &location.namespace,
        &prepared.setup.probers[asker].pod,
        &request,
        limit,
    )
    .await;
    outcomes_of_answers(numbers.len(), answers)
}

/// The outcomes of the questions, in order.
fn outcomes_of_answers(questions: usize, answers: ProbeReports) -> Vec<QuestionOutcome> {
    let rest = match answers.end {
        Ok(()) => AnswerFault::NotAsked("it ended before it had reported everything".to_owned()),
        Err(UnfinishedProbe::Late { .. }) => AnswerFault::Late,
        Err(broken @ UnfinishedProbe::Broken(_)) => {
            AnswerFault::NotAsked(strip_control_characters(&broken.to_string()))
        }
    };
    let mut all = vec![Err(rest); questions];
    for report in answers.reports {
        if let Some(outcome) = all.get_mut(report.question) {
            *outcome = report.outcome.map_err(AnswerFault::Problem);
        }
    }
    all
}

fn matrix(setup: &NetworkTestSetup, plan: &QuestionPlan, heard: &[QuestionOutcome]) -> TestMatrix {
    let judgement = judge_outcomes(plan, heard);
    let paths = judgement.paths.iter().map(|(path, state)| {
        let (state, millis, message) = match state {
            PathVerdict::Good { millis } => (PathState::Ok, *millis, None),
            PathVerdict::Bad { failed, asked } => (
                PathState::Failed,
                None,
                Some(format!("{failed} of {asked} questions")),
            ),
            PathVerdict::Missing(why) => (PathState::Failed, None, Some(why.clone())),
            PathVerdict::Closed(why) => (PathState::Closed, None, Some(why.clone())),
        };
        PathResult {
            from_cluster: setup.cluster_name(path.from.0).to_owned(),
            from: path.from.1,
            to_cluster: setup.cluster_name(path.to.0).to_owned(),
            to: path.to.1,
            state,
            millis,
            message,
        }
    });
    let untestable = plan.untestable.iter().map(|question| {
        let asked = TriedQuestion {
            path: path_words(setup, question.path),
            tried: format!(
                "{}: {}",
                asker_words(&setup.probers[question.asker]),
                question.words
            ),
        };
        Finding::fail(asked, question.why.clone(), question.advice)
    });
    let failures = judgement.failures.iter().map(|failure| {
        let asked = TriedQuestion {
            path: path_words(setup, failure.ask.path),
            tried: format!(
                "{} asked {}",
                asker_words(&setup.probers[failure.ask.asker]),
                failure.ask.words
            ),
        };
        let advice =
            advice::advice_for_failure(setup, failure, |wanted| any_passes(plan, heard, wanted));
        Finding::fail(
            asked,
            strip_control_characters(&failure.fault.to_string()),
            strip_control_characters(&advice),
        )
    });
    TestMatrix {
        clusters: participants(setup, plan, heard),
        paths: paths.collect(),
        failures: untestable.chain(failures).collect(),
    }
}

/// Whether one of the wanted questions got the right answer.
fn any_passes(
    plan: &QuestionPlan,
    heard: &[QuestionOutcome],
    is_wanted: &dyn Fn(&plan::PlannedQuestion) -> bool,
) -> bool {
    plan.asks
        .iter()
        .zip(heard)
        .any(|(ask, heard)| is_wanted(ask) && check_answer(ask, heard).is_ok())
}

fn asker_words(asker: &setup::Prober) -> String {
    if asker.kind == AskerKind::Node {
        format!("node {}", asker.node)
    } else {
        format!("{} on {}", asker.pod, asker.node)
    }
}

fn path_words(setup: &NetworkTestSetup, path: TestPath) -> String {
    format!(
        "{} {} to {} {}",
        setup.cluster_name(path.from.0),
        path.from.1.word(),
        setup.cluster_name(path.to.0),
        path.to.1.word()
    )
}

/// The participants. Remote pods report their node themselves.
fn participants(
    setup: &NetworkTestSetup,
    plan: &QuestionPlan,
    heard: &[QuestionOutcome],
) -> Vec<Participants> {
    let mut ran_on: BTreeMap<&str, &str> = BTreeMap::new();
    for (_, heard) in plan.asks.iter().zip(heard) {
        if let Ok(MeasuredAnswer::Answered { by, .. }) = heard {
            ran_on.insert(&by.pod, &by.node);
        }
    }
    setup
        .clusters
        .iter()
        .enumerate()
        .map(|(number, member)| {
            let pods: Vec<String> = setup
                .pods(number)
                .map(|prober| prober.pod.clone())
                .collect();
            let mut nodes: Vec<String> = pods
                .iter()
                .filter_map(|pod| ran_on.get(pod.as_str()))
                .map(|&node| strip_control_characters(node))
                .collect();
            nodes.sort();
            nodes.dedup();
            Participants {
                cluster: member.name.clone(),
                nodes,
                pods,
                left_out: member.left_out.clone(),
            }
        })
        .collect()
}

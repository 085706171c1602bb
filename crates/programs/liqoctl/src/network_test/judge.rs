//! Judges each path by the answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use liqo_network_probe::{AnswerProblem, MeasuredAnswer, ProblemKind, QuestionKind};

use super::plan::{ExpectedAnswer, PlannedQuestion, QuestionPlan, TestPath};
use crate::probes::median;

/// The answer to a question, or why there is none.
pub type QuestionOutcome = Result<MeasuredAnswer, AnswerFault>;

/// Why a question has no answer, or a wrong one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerFault {
    /// The asker could not be started.
    #[error("the question could not be asked: {0}")]
    NotAsked(String),
    /// There was no answer in time.
    #[error("there was no time left")]
    Late,
    /// Skipped, because another large transfer on the same path failed.
    #[error("skipped, because another large transfer on this path failed")]
    Skipped,
    /// There was no answer, or no complete one.
    #[error("{0}")]
    Problem(AnswerProblem),
    #[error("pod {by} on node {on} answered instead")]
    WrongPod { by: String, on: String },
    /// The answering pod saw another source address than it should.
    #[error("the pod saw the source address {seen} and not {}", format_addresses(.expected))]
    WrongSource {
        seen: IpAddr,
        expected: BTreeSet<IpAddr>,
    },
    /// The name resolves to something else.
    #[error("the name has the addresses {} and not {}", format_addresses(.found), format_addresses(.expected))]
    WrongAddresses {
        /// The addresses that it resolves to.
        found: BTreeSet<IpAddr>,
        /// The addresses that it should resolve to.
        expected: BTreeSet<IpAddr>,
    },
    #[error("packets of {vanished} bytes are lost without an error; {passes} bytes pass")]
    Vanish {
        /// The shortest length that did not pass.
        vanished: u16,
        /// The longest length that passes.
        passes: u16,
    },
}

fn format_addresses(addresses: &BTreeSet<IpAddr>) -> String {
    addresses
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// The result for one path.
#[derive(Clone, Debug, PartialEq)]
pub enum PathVerdict {
    /// Everything works. The value is the median time from question to answer.
    Good {
        /// In milliseconds, if something was measured.
        millis: Option<f64>,
    },
    /// Something does not work.
    Bad {
        /// The number of failed questions.
        failed: usize,
        asked: usize,
    },
    /// The path should exist, and does not.
    Missing(String),
    /// The path is not meant to exist.
    Closed(String),
}

/// A question without the right answer.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedQuestion<'a> {
    pub ask: &'a PlannedQuestion,
    pub fault: AnswerFault,
}

/// The results for all paths.
#[derive(Clone, Debug, PartialEq)]
pub struct TestVerdicts<'a> {
    pub paths: BTreeMap<TestPath, PathVerdict>,
    /// In the order of the questions.
    pub failures: Vec<FailedQuestion<'a>>,
}

/// Whether this is the right answer, and how long it took if that is meaningful.
pub fn check_answer(
    ask: &PlannedQuestion,
    outcome: &QuestionOutcome,
) -> Result<Option<f64>, AnswerFault> {
    let answer = outcome.as_ref().map_err(Clone::clone)?;
    match (&ask.expected, answer) {
        (ExpectedAnswer::Answer { pods, sources }, MeasuredAnswer::Answered { by, millis }) => {
            if !pods.contains(&by.pod) {
                return Err(AnswerFault::WrongPod {
                    by: by.pod.clone(),
                    on: by.node.clone(),
                });
            }
            let seen = by.source.ip().to_canonical();
            if let Some(expected) = sources.as_ref().filter(|sources| !sources.contains(&seen)) {
                return Err(AnswerFault::WrongSource {
                    seen,
                    expected: expected.clone(),
                });
            }
            Ok((ask.question.what == QuestionKind::Tcp).then_some(*millis))
        }
        (ExpectedAnswer::Addresses(expected), MeasuredAnswer::Addresses { addresses }) => {
            let found: BTreeSet<IpAddr> = addresses.iter().copied().collect();
            if found == *expected {
                Ok(None)
            } else {
                Err(AnswerFault::WrongAddresses {
                    found,
                    expected: expected.clone(),
                })
            }
        }
        (ExpectedAnswer::Path, MeasuredAnswer::Passes { largest, vanished }) => match vanished {
            Some(vanished) => Err(AnswerFault::Vanish {
                vanished: *vanished,
                passes: *largest,
            }),
            None => Ok(None),
        },
        _ => Err(AnswerFault::Problem(AnswerProblem {
            kind: ProblemKind::Broken,
            text: "the answer does not match the question".to_owned(),
        })),
    }
}

#[derive(Default)]
struct PathCounts {
    asked: usize,
    failed: usize,
    /// Milliseconds from question to answer.
    times: Vec<f64>,
}

impl PathCounts {
    fn into_verdict(self) -> PathVerdict {
        if self.failed > 0 {
            PathVerdict::Bad {
                failed: self.failed,
                asked: self.asked,
            }
        } else {
            PathVerdict::Good {
                millis: median(self.times),
            }
        }
    }
}

/// Judges all paths by the outcomes of the questions.
pub fn judge_outcomes<'a>(plan: &'a QuestionPlan, heard: &[QuestionOutcome]) -> TestVerdicts<'a> {
    let mut counts: BTreeMap<TestPath, PathCounts> = BTreeMap::new();
    let mut failures = Vec::new();
    for (ask, heard) in plan.asks.iter().zip(heard) {
        let path = counts.entry(ask.path).or_default();
        path.asked += 1;
        match check_answer(ask, heard) {
            Ok(millis) => path.times.extend(millis),
            Err(fault) => {
                path.failed += 1;
                failures.push(FailedQuestion { ask, fault });
            }
        }
    }
    for untestable in &plan.untestable {
        let path = counts.entry(untestable.path).or_default();
        path.asked += 1;
        path.failed += 1;
    }
    let mut paths: BTreeMap<TestPath, PathVerdict> = counts
        .into_iter()
        .map(|(path, counts)| (path, counts.into_verdict()))
        .collect();
    paths.extend(
        plan.closed
            .iter()
            .map(|(path, why)| (*path, PathVerdict::Closed(why.clone()))),
    );
    paths.extend(
        plan.missing
            .iter()
            .map(|(path, why)| (*path, PathVerdict::Missing(why.clone()))),
    );
    TestVerdicts { paths, failures }
}

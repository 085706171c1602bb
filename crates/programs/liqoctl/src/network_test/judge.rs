//! Judges each path by the answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use liqo_network_probe::{Finding, Problem, ProblemKind, What};

use super::plan::{Ask, Expected, Path, Plan};
use crate::probes::median;

/// The outcome of a question.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The asker's answer.
    TestResult(Result<Finding, Problem>),
    /// The asker could not be started.
    NotAsked(String),
    /// There was no answer in time.
    Late,
    /// Skipped, because another large transfer on the same path failed.
    Skipped,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
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
    Problem(Problem),
    #[error("pod {by} on node {on} answered instead")]
    WrongPod { by: String, on: String },
    /// The answering pod saw another source address than it should.
    #[error("the pod saw the source address {seen} and not {}", list(.expected))]
    WrongSource {
        seen: IpAddr,
        expected: BTreeSet<IpAddr>,
    },
    /// The name resolves to something else.
    #[error("the name has the addresses {} and not {}", list(.found), list(.expected))]
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

fn list(addresses: &BTreeSet<IpAddr>) -> String {
    addresses
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// The result for one path.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
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
pub struct Failure<'a> {
    pub ask: &'a Ask,
    pub trouble: Trouble,
}

/// The results for all paths.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement<'a> {
    pub paths: BTreeMap<Path, State>,
    /// In the order of the questions.
    pub failures: Vec<Failure<'a>>,
}

/// Whether this is the right answer, and how long it took if that is meaningful.
pub fn check(ask: &Ask, outcome: &Outcome) -> Result<Option<f64>, Trouble> {
    let finding = match outcome {
        Outcome::NotAsked(why) => return Err(Trouble::NotAsked(why.clone())),
        Outcome::Late => return Err(Trouble::Late),
        Outcome::Skipped => return Err(Trouble::Skipped),
        Outcome::TestResult(Err(problem)) => return Err(Trouble::Problem(problem.clone())),
        Outcome::TestResult(Ok(finding)) => finding,
    };
    match (&ask.expected, finding) {
        (Expected::Answer { pods, sources }, Finding::Answered { by, millis }) => {
            if !pods.contains(&by.pod) {
                return Err(Trouble::WrongPod {
                    by: by.pod.clone(),
                    on: by.node.clone(),
                });
            }
            let seen = by.source.ip().to_canonical();
            if let Some(expected) = sources.as_ref().filter(|sources| !sources.contains(&seen)) {
                return Err(Trouble::WrongSource {
                    seen,
                    expected: expected.clone(),
                });
            }
            Ok((ask.question.what == What::Tcp).then_some(*millis))
        }
        (Expected::Addresses(expected), Finding::Addresses { addresses }) => {
            let found: BTreeSet<IpAddr> = addresses.iter().copied().collect();
            if found == *expected {
                Ok(None)
            } else {
                Err(Trouble::WrongAddresses {
                    found,
                    expected: expected.clone(),
                })
            }
        }
        (Expected::Path, Finding::Passes { largest, vanished }) => match vanished {
            Some(vanished) => Err(Trouble::Vanish {
                vanished: *vanished,
                passes: *largest,
            }),
            None => Ok(None),
        },
        _ => Err(Trouble::Problem(Problem {
            kind: ProblemKind::Broken,
            text: "the answer does not match the question".to_owned(),
        })),
    }
}

/// Judges all paths by the outcomes of the questions.
pub fn judge<'a>(plan: &'a Plan, heard: &[Outcome]) -> Judgement<'a> {
    let mut times: BTreeMap<Path, (usize, usize, Vec<f64>)> = BTreeMap::new();
    let mut failures = Vec::new();
    for (ask, heard) in plan.asks.iter().zip(heard) {
        let (asked, failed, all) = times.entry(ask.path).or_default();
        *asked += 1;
        match check(ask, heard) {
            Ok(millis) => all.extend(millis),
            Err(trouble) => {
                *failed += 1;
                failures.push(Failure { ask, trouble });
            }
        }
    }
    for lost in &plan.lost {
        let (asked, failed, _) = times.entry(lost.path).or_default();
        *asked += 1;
        *failed += 1;
    }
    let mut paths: BTreeMap<Path, State> = times
        .into_iter()
        .map(|(path, (asked, failed, all))| {
            (
                path,
                if failed > 0 {
                    State::Bad { failed, asked }
                } else {
                    State::Good {
                        millis: median(all),
                    }
                },
            )
        })
        .collect();
    paths.extend(
        plan.closed
            .iter()
            .map(|(path, why)| (*path, State::Closed(why.clone()))),
    );
    paths.extend(
        plan.missing
            .iter()
            .map(|(path, why)| (*path, State::Missing(why.clone()))),
    );
    Judgement { paths, failures }
}

//! What the answers say about each way.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use liqo_probe::{Finding, Problem, ProblemKind, What};

use super::plan::{Ask, Expected, Plan, Way};
use crate::probes::median;

/// What came of a question: an answer, nothing, or no chance to ask.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    /// The asker found this.
    Found(Result<Finding, Problem>),
    /// The asker could not be told to ask.
    NotAsked(String),
    /// Nothing came before the time was over.
    Late,
    /// It was left out, because another large amount did not arrive on the same way.
    Spared,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The asker could not be told to ask.
    #[error("it could not be asked: {0}")]
    NotAsked(String),
    /// Nothing came before the time was over.
    #[error("there was no time for it")]
    Late,
    /// It was left out, because another large amount did not arrive on the same way.
    #[error("it was not asked, because another large amount did not arrive on this way")]
    Spared,
    /// Nobody answered, or nobody to the end.
    #[error("{0}")]
    Problem(Problem),
    /// Another pod answered.
    #[error("pod {by} on node {on} answered instead")]
    WrongPod {
        /// Which.
        by: String,
        /// Where.
        on: String,
    },
    /// The asker is taken for somebody else.
    #[error("the asker was seen as {seen} and not as {}", list(.expected))]
    WrongSource {
        /// Whom.
        seen: IpAddr,
        /// Who it is.
        expected: BTreeSet<IpAddr>,
    },
    /// The name stands for something else.
    #[error("the name has the addresses {} and not {}", list(.found), list(.expected))]
    WrongAddresses {
        /// What it stands for.
        found: BTreeSet<IpAddr>,
        /// What it should stand for.
        expected: BTreeSet<IpAddr>,
    },
    /// Long packets vanish.
    #[error("packets of {vanished} bytes vanish without a word; {passes} bytes pass")]
    Vanish {
        /// The shortest that did.
        vanished: u16,
        /// The longest that passes.
        passes: u16,
    },
}

fn list(addresses: &BTreeSet<IpAddr>) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// How one way is.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// All is well; this is the usual time from question to answer.
    Good {
        /// In milliseconds, where something was measured.
        millis: Option<f64>,
    },
    /// Something does not work.
    Bad {
        /// So many questions failed.
        failed: usize,
        /// Of so many.
        asked: usize,
    },
    /// It should be there, and is not.
    Missing(String),
    /// It is not meant to be there.
    Closed(String),
}

/// A question that was not answered as it should.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure<'a> {
    /// The question.
    pub ask: &'a Ask,
    /// What is wrong.
    pub trouble: Trouble,
}

/// How all ways are.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement<'a> {
    /// Each way.
    pub ways: BTreeMap<Way, State>,
    /// What failed, in the order of the questions.
    pub failures: Vec<Failure<'a>>,
}

/// Whether this is the right answer, and how long it took where that says something.
pub fn check(ask: &Ask, heard: &Heard) -> Result<Option<f64>, Trouble> {
    let finding = match heard {
        Heard::NotAsked(why) => return Err(Trouble::NotAsked(why.clone())),
        Heard::Late => return Err(Trouble::Late),
        Heard::Spared => return Err(Trouble::Spared),
        Heard::Found(Err(problem)) => return Err(Trouble::Problem(problem.clone())),
        Heard::Found(Ok(finding)) => finding,
    };
    match (&ask.expected, finding) {
        (Expected::Answer { pods, sources }, Finding::Answered { by, millis }) => {
            if !pods.contains(&by.pod) {
                return Err(Trouble::WrongPod { by: by.pod.clone(), on: by.node.clone() });
            }
            let seen = by.source.ip().to_canonical();
            if let Some(expected) = sources.as_ref().filter(|sources| !sources.contains(&seen)) {
                return Err(Trouble::WrongSource { seen, expected: expected.clone() });
            }
            Ok((ask.question.what == What::Tcp).then_some(*millis))
        }
        (Expected::Addresses(expected), Finding::Addresses { addresses }) => {
            let found: BTreeSet<IpAddr> = addresses.iter().copied().collect();
            if found == *expected { Ok(None) } else { Err(Trouble::WrongAddresses { found, expected: expected.clone() }) }
        }
        (Expected::Path, Finding::Passes { largest, vanished }) => match vanished {
            Some(vanished) => Err(Trouble::Vanish { vanished: *vanished, passes: *largest }),
            None => Ok(None),
        },
        _ => Err(Trouble::Problem(Problem {
            kind: ProblemKind::Broken,
            text: "something else was answered than asked".to_owned(),
        })),
    }
}

/// How all ways are, from what was heard to each question.
pub fn judge<'a>(plan: &'a Plan, heard: &[Heard]) -> Judgement<'a> {
    let mut times: BTreeMap<Way, (usize, usize, Vec<f64>)> = BTreeMap::new();
    let mut failures = Vec::new();
    for (ask, heard) in plan.asks.iter().zip(heard) {
        let (asked, failed, all) = times.entry(ask.way).or_default();
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
        let (asked, failed, _) = times.entry(lost.way).or_default();
        *asked += 1;
        *failed += 1;
    }
    let mut ways: BTreeMap<Way, State> = times
        .into_iter()
        .map(|(way, (asked, failed, all))| {
            (way, if failed > 0 { State::Bad { failed, asked } } else { State::Good { millis: median(all) } })
        })
        .collect();
    ways.extend(plan.closed.iter().map(|(way, why)| (*way, State::Closed(why.clone()))));
    ways.extend(plan.missing.iter().map(|(way, why)| (*way, State::Missing(why.clone()))));
    Judgement { ways, failures }
}

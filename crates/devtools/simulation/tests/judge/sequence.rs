//! One sequence of requests, sent to both servers at the same time.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    answer::Answer,
    compare::{Dictionary, Difference, compare},
    differences,
    generate::Generator,
    kinds::Kinds,
    pace::Pace,
    request::{Request, Watching},
    send::{self, Reply, Watch},
    side::{Resolved, Server, Side},
};

/// What the real server's caches need at most to see a write.
const CACHE_DELAY: Duration = Duration::from_millis(150);
/// Pairs of the table that each sequence begins with.
const TOUR: usize = 10;

/// A request whose answers differ.
pub struct Finding {
    pub seed: u64,
    pub number: usize,
    pub request: Request,
    pub resolved: [Resolved; 2],
    pub answers: [Answer; 2],
    pub differences: Vec<Difference>,
}

#[derive(Default)]
pub struct Outcome {
    pub requests: usize,
    pub events: usize,
    pub pairs: BTreeSet<(String, String)>,
    pub codes: Vec<u64>,
    pub findings: Vec<Finding>,
}

struct Sequence {
    seed: u64,
    pace: Pace,
    generator: Generator<'static>,
    real: Side,
    simulated: Side,
    dictionary: Dictionary,
    live: Vec<(usize, Request, [Resolved; 2], Watch, Watch)>,
    outcome: Outcome,
}

/// Runs so many requests; ends at the first difference unless all are wanted.
pub async fn run(
    kinds: &'static Kinds,
    seed: u64,
    length: usize,
    is_all_wanted: bool,
    real: Server,
    simulated: Server,
    pace: Pace,
) -> Outcome {
    let mut generator = Generator::new(kinds, seed, pace.letter());
    generator.add_tour(seed, TOUR);
    let (real, simulated) = (Side::new(real), Side::new(simulated));
    let (dictionary, live, outcome) = (Dictionary::default(), Vec::new(), Outcome::default());
    let mut sequence = Sequence {
        seed,
        pace,
        generator,
        real,
        simulated,
        dictionary,
        live,
        outcome,
    };
    for number in 0..length {
        sequence.step(number).await;
        if !is_all_wanted && !sequence.outcome.findings.is_empty() {
            return sequence.outcome;
        }
    }
    sequence.close_watches().await;
    sequence.outcome
}

impl Sequence {
    async fn step(&mut self, number: usize) {
        let request = self.generator.next_request();
        if request.waits_for_caches {
            tokio::time::sleep(self.pace.of(CACHE_DELAY)).await;
        }
        let resolved = [
            self.real.resolve(&request),
            self.simulated.resolve(&request),
        ];
        let replies = tokio::join!(
            send::send(&self.real, &request, &resolved[0]),
            send::send(&self.simulated, &request, &resolved[1])
        );
        self.outcome.requests += 1;
        self.outcome
            .pairs
            .insert((request.verb.to_owned(), request.resource.clone()));
        if request.settles {
            tokio::time::sleep(self.pace.of(CACHE_DELAY)).await;
        }
        let answers = match replies {
            (Reply::Whole(real), Reply::Whole(simulated)) => [real, simulated],
            (Reply::Watch(real), Reply::Watch(simulated)) if request.watching == Watching::Live => {
                self.live.push((number, request, resolved, real, simulated));
                return;
            }
            (Reply::Watch(real), Reply::Watch(simulated)) => {
                send::finish(&real, &simulated, request.watching, self.pace)
                    .await
                    .into()
            }
            (real, simulated) => [real.into_answer(), simulated.into_answer()],
        };
        self.judge(number, request, resolved, answers);
    }

    fn judge(
        &mut self,
        number: usize,
        request: Request,
        resolved: [Resolved; 2],
        answers: [Answer; 2],
    ) {
        let [real, simulated] = &answers;
        self.outcome.codes.push(real.code());
        self.outcome.events += real.value["body"]["events"].as_array().map_or(0, Vec::len);
        self.add_name(&request, real, simulated);
        let mut differences = compare(&mut self.dictionary, &real.value, &simulated.value);
        differences.extend(self.stale_list(&request, simulated));
        if real.code() == 0 {
            let (path, note) = (
                "failed".to_owned(),
                "the real server gave no answer: this is a fault of the test",
            );
            differences.push(Difference {
                path,
                real: Some(real.value.clone()),
                simulated: None,
                note,
            });
        }
        self.real.remember(&request, real);
        self.simulated.remember(&request, simulated);
        self.generator.learn(&request, real, &self.real);
        differences.retain(|difference| {
            let text = difference
                .real
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default();
            !differences::is_expected(&request.resource, &difference.path, &text)
        });
        if !differences.is_empty() {
            self.outcome.findings.push(Finding {
                seed: self.seed,
                number,
                request,
                resolved,
                answers,
                differences,
            });
        }
    }

    fn add_name(&mut self, request: &Request, real: &Answer, simulated: &Answer) {
        let name = |answer: &Answer| {
            let body = &answer.value["body"];
            body["metadata"]["name"]
                .as_str()
                .or(body["details"]["name"].as_str())
                .map(str::to_owned)
        };
        let (Some(_), Some(real), Some(simulated)) =
            (request.name_slot, name(real), name(simulated))
        else {
            return;
        };
        let prefix = |name: &str| name.get(..name.len().saturating_sub(5)).map(str::to_owned);
        if real.len() == simulated.len() && prefix(&real) == prefix(&simulated) {
            self.dictionary.add_name(&real, &simulated);
        }
    }

    /// A list of the present state must not be older than an object that was seen before.
    fn stale_list(&self, request: &Request, simulated: &Answer) -> Option<Difference> {
        let version = &simulated.value["body"]["metadata"]["resourceVersion"];
        let number = version.as_str()?.parse::<u64>().ok()?;
        let is_stale = request.is_fresh_list() && number < self.simulated.newest;
        let path = "body/metadata/resourceVersion".to_owned();
        let note = "older than an object that was seen before";
        is_stale.then(|| Difference {
            path,
            real: Some(self.simulated.newest.into()),
            simulated: Some(version.clone()),
            note,
        })
    }

    async fn close_watches(&mut self) {
        for (number, request, resolved, real, simulated) in std::mem::take(&mut self.live) {
            let answers = send::finish(&real, &simulated, Watching::Live, self.pace)
                .await
                .into();
            self.judge(number, request, resolved, answers);
        }
    }
}

//! Judges the simulated API server: it gets the same random requests as a real kube-apiserver, and
//! must give the same answers.
//!
//! ```text
//! cargo test -p liqo-simulation --test judge               # 10,000 requests in sequences of 200, until the first difference
//! LIQO_JUDGE_SEED=7 cargo test ...                         # only sequence 7
//! LIQO_JUDGE_SEED=7 LIQO_JUDGE_REQUESTS=50 cargo test ...  # only its first 50 requests
//! LIQO_JUDGE_REQUESTS=100000 cargo test ...                # more sequences
//! LIQO_JUDGE_ALL=1 cargo test ... -- --nocapture           # goes on after differences, and prints a summary of them
//! LIQO_JUDGE_SELF=1 cargo test ...                         # compares two real servers: there must be no difference
//! ```
//!
//! `kinds.yaml` contains the kinds and the content of their objects, `pairs.rs` the verbs that must
//! occur, and `differences.rs` what may differ. Each sequence has its own namespaces (`s7-a`,
//! `s7-b`). The names of its cluster-scoped objects begin with `s7-`, and all its objects have the
//! label `judge=s7`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed step fails the test"
)]
#![allow(clippy::struct_field_names, reason = "kinds have a field of this name")]
#![allow(
    clippy::explicit_auto_deref,
    reason = "the compiler does not infer the type without it"
)]

mod answer;
mod compare;
mod differences;
mod generate;
mod kinds;
mod lifecycle;
mod lists;
mod mistakes;
mod pace;
mod pairs;
mod patches;
mod real;
mod report;
mod request;
mod rng;
mod send;
mod sequence;
mod side;

use std::{
    collections::BTreeSet,
    env,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, api::PostParams};
use liqo_simulation::{ApiServer, User};

use crate::{kinds::Kinds, pace::Pace, real::RealServer, sequence::Outcome, side::Server};

const DEFAULT_REQUESTS: usize = 10_000;
const SEQUENCE_LENGTH: usize = 200;
/// Sequences at the same time. They mostly wait for the real server.
const CONCURRENT: usize = 12;

const CRDS: [&str; 4] = [
    include_str!("../../../../../deploy/liqo/crds/virtualkubelet.liqo.io_shadowpods.yaml"),
    include_str!("../../../../../deploy/liqo/crds/virtualkubelet.liqo.io_namespacemaps.yaml"),
    include_str!("../../../../../deploy/liqo/crds/discovery.liqo.io_resourcerequests.yaml"),
    include_str!("../../../../../deploy/liqo/crds/discovery.liqo.io_searchdomains.yaml"),
];

struct Plan {
    seeds: Vec<u64>,
    length: usize,
    is_all_wanted: bool,
    is_complete: bool,
}

impl Plan {
    fn from_environment() -> Self {
        let number = |name: &str| {
            env::var(name).ok().map(|text| {
                text.parse::<u64>()
                    .unwrap_or_else(|_| panic!("{name}: {text}"))
            })
        };
        let is_all_wanted = env::var_os("LIQO_JUDGE_ALL").is_some();
        let requests =
            number("LIQO_JUDGE_REQUESTS").map(|requests| usize::try_from(requests).unwrap());
        if let Some(seed) = number("LIQO_JUDGE_SEED") {
            let length = requests.unwrap_or(SEQUENCE_LENGTH);
            return Self {
                seeds: vec![seed],
                length,
                is_all_wanted,
                is_complete: false,
            };
        }
        let requests = requests.unwrap_or(DEFAULT_REQUESTS);
        let seeds = (1..=requests.div_ceil(SEQUENCE_LENGTH) as u64).collect();
        Self {
            seeds,
            length: SEQUENCE_LENGTH,
            is_all_wanted,
            is_complete: requests >= DEFAULT_REQUESTS,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_and_the_simulated_api_server_give_the_same_answers() {
    let plan = Plan::from_environment();
    let kinds: &'static Kinds = Box::leak(Box::new(Kinds::load()));
    let real = RealServer::start().await.expect("a real API server starts");
    let other = start_other().await;
    let (first, second) = (real.clients().unwrap(), other.clients());
    tokio::join!(install_crds(&first.admin), install_crds(&second.admin));
    let began = Instant::now();
    let outcomes = run_all(&plan, kinds, &first, &second).await;
    let totals = report::totals(&outcomes);
    println!(
        "{totals}{} of {} pairs, in {:.1?}",
        pairs::all().len() - missing(&outcomes).len(),
        pairs::all().len(),
        began.elapsed()
    );
    check(&plan, &outcomes);
}

/// The simulated server, or a second real one.
enum Other {
    Simulated(ApiServer),
    Real(RealServer),
}

async fn start_other() -> Other {
    match env::var_os("LIQO_JUDGE_SELF") {
        Some(_) => Other::Real(
            RealServer::start()
                .await
                .expect("a second real API server starts"),
        ),
        None => Other::Simulated(ApiServer::new()),
    }
}

impl Other {
    fn clients(&self) -> Server {
        let user = |name: &str, group: &str| User {
            name: name.to_owned(),
            groups: vec![group.to_owned()],
        };
        match self {
            Self::Real(server) => server.clients().unwrap(),
            Self::Simulated(server) => {
                let (admin, ordinary) = (user("admin", "system:masters"), user("alice", "devs"));
                Server {
                    admin: server.client(admin),
                    ordinary: server.client(ordinary),
                }
            }
        }
    }
}

/// Creates the kinds, and waits until each is served.
async fn install_crds(client: &Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for text in CRDS {
        let crd: CustomResourceDefinition = serde_saphyr::from_str(text).expect("a CRD is valid");
        api.create(&PostParams::default(), &crd)
            .await
            .expect("a CRD can be created");
        let (group, plural) = (&crd.spec.group, &crd.spec.names.plural);
        let path = format!("/apis/{group}/{}/{plural}", crd.spec.versions[0].name);
        let began = Instant::now();
        loop {
            let request = http::Request::get(&path).body(Vec::new()).unwrap();
            match client.request_text(request).await {
                Ok(_) => break,
                Err(error) => assert!(
                    began.elapsed() < Duration::from_mins(1),
                    "{path} is not served: {error}"
                ),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn run_all(
    plan: &Plan,
    kinds: &'static Kinds,
    real: &Server,
    simulated: &Server,
) -> Vec<Outcome> {
    let start = |seed: &u64| {
        let (real, simulated) = (real.clone(), simulated.clone());
        let run = sequence::run(
            kinds,
            *seed,
            plan.length,
            plan.is_all_wanted,
            real,
            simulated,
            Pace::Usual,
        );
        async { tokio::spawn(run).await.expect("a sequence ends") }
    };
    let running = futures::stream::iter(&plan.seeds)
        .map(start)
        .buffer_unordered(CONCURRENT);
    let mut outcomes: Vec<Outcome> = running.collect().await;
    if !plan.is_all_wanted {
        // One that differs again is enough for a failure.
        for outcome in outcomes
            .iter_mut()
            .filter(|outcome| !outcome.findings.is_empty())
        {
            let seed = outcome.findings[0].seed;
            let (real, simulated) = (real.clone(), simulated.clone());
            let again = sequence::run(
                kinds,
                seed,
                plan.length,
                false,
                real,
                simulated,
                Pace::Patient,
            )
            .await;
            outcome.findings = again.findings;
            if !outcome.findings.is_empty() {
                break;
            }
            println!("sequence {seed} found a difference only while the machine was busy");
        }
    }
    outcomes
}

fn missing(outcomes: &[Outcome]) -> Vec<pairs::Pair> {
    let occurred: BTreeSet<(&str, &str)> = outcomes
        .iter()
        .flat_map(|outcome| &outcome.pairs)
        .map(|(verb, resource)| (verb.as_str(), resource.as_str()))
        .collect();
    pairs::all()
        .into_iter()
        .filter(|pair| !occurred.contains(pair))
        .collect()
}

fn check(plan: &Plan, outcomes: &[Outcome]) {
    let first = outcomes.iter().flat_map(|outcome| &outcome.findings).next();
    if plan.is_all_wanted {
        println!("{}", report::summarize(outcomes));
        println!("set LIQO_JUDGE_SEED without LIQO_JUDGE_ALL to see a request with both answers");
        assert!(first.is_none(), "the servers differ: see the summary");
    }
    if let Some(finding) = first {
        panic!("the servers differ\n{}", report::describe(finding));
    }
    if plan.is_complete {
        assert!(
            missing(outcomes).is_empty(),
            "these pairs of the table did not occur: {:?}",
            missing(outcomes)
        );
        let is_real = env::var_os("LIQO_JUDGE_SELF").is_some();
        let unused: Vec<_> = differences::used()
            .into_iter()
            .filter(|(_, count)| *count == 0)
            .collect();
        assert!(
            is_real || unused.is_empty(),
            "these expected differences can go: {unused:?}"
        );
    }
}

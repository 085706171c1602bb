use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use liqo_api::ClusterId;
use liqo_network_model::PeerMaps;
use liqo_network_probe::{
    AnswerProblem, MeasuredAnswer, ProblemKind, QuestionReport, ServerIdentity,
};
use serde_json::{Value, json};

use super::{
    plan::{ExpectedAnswer, PlannedQuestion},
    setup::{HomeView, ProbedService, Prober, ReportedTunnel, TestedCluster},
    *,
};
use crate::output::Paint;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// All clusters have the same ranges. Rome sees milan at 10.65 and turin at 10.66, and is seen at
/// 10.67 by both; where they see each other through rome, it is at 10.68.
fn maps(imported: &str, other: &str, transit: bool) -> PeerMaps {
    let mut exported = json!({ "10.244.0.0/16": "10.67.0.0/16", "10.70.0.0/24": "10.69.1.0/24" });
    if transit {
        exported[other] = json!("10.68.0.0/16");
    }
    let spec = json!({
        "clusterID": ClusterId::of_public_key(&[1; 32]), "mtu": 1420, "exported": exported,
        "imported": { "10.244.0.0/16": imported, "10.70.0.0/24": imported.replace(".0.0/16", ".0.0/24").replace("10.6", "10.12") },
    });
    PeerMaps::try_from(&serde_json::from_value::<liqo_api::TunnelEndpointSpec>(spec).unwrap())
        .unwrap()
}

fn member(name: &str, sees: HomeView, number: u16) -> TestedCluster {
    let tunnel = matches!(sees, HomeView::By(_)).then(|| ReportedTunnel {
        works: true,
        reason: "Connected".into(),
        gateway: Some("rome-1".into()),
        mtu: 1420,
        ..ReportedTunnel::default()
    });
    let service = ProbedService {
        name: format!("{name}-{number}"),
        addresses: vec![address("10.96.0.7")],
        node_ports: Some((30_000 + number, 31_000 + number)),
    };
    let fallback_addresses = (number == 0)
        .then(|| address("10.70.0.1"))
        .into_iter()
        .collect();
    let namespace = format!("test-at-{name}");
    TestedCluster {
        name: name.into(),
        namespace,
        sees,
        fallback_addresses,
        service,
        transit: false,
        left_out: Vec::new(),
        tunnel,
    }
}

fn pod(cluster: usize, pod: &str, node: &str, here: &str) -> Prober {
    Prober {
        cluster,
        kind: AskerKind::Pod,
        pod: pod.into(),
        node: node.into(),
        addresses: vec![address(here)],
        behind: None,
    }
}

fn setup(transit: bool) -> NetworkTestSetup {
    NetworkTestSetup {
        clusters: vec![
            member("rome", HomeView::Itself, 0),
            member(
                "milan",
                HomeView::By(maps("10.65.0.0/16", "10.66.0.0/16", transit)),
                1,
            ),
            member(
                "turin",
                HomeView::By(maps("10.66.0.0/16", "10.65.0.0/16", transit)),
                2,
            ),
        ],
        probers: vec![
            pod(0, "r", "rome-1", "10.244.0.5"),
            pod(1, "m", "milan", "10.65.0.9"),
            pod(2, "t", "turin", "10.66.0.9"),
            Prober {
                cluster: 0,
                kind: AskerKind::Node,
                pod: "n".into(),
                node: "rome-2".into(),
                addresses: Vec::new(),
                behind: None,
            },
        ],
        nodes: vec![("rome-1".into(), address("172.18.0.2"))],
    }
}

fn path(from: (usize, AskerKind), to: (usize, TargetKind)) -> TestPath {
    TestPath { from, to }
}

/// The questions of an asker to a target: the address, and the source addresses that the target may
/// see.
fn asked(
    plan: &QuestionPlan,
    asker: usize,
    to: (usize, TargetKind),
) -> Vec<(String, QuestionKind, Option<Vec<String>>)> {
    let asks = plan
        .asks
        .iter()
        .filter(|ask| ask.asker == asker && ask.path.to == to);
    asks.map(|ask| {
        let sources = match &ask.expected {
            ExpectedAnswer::Answer { sources, .. } => sources.clone(),
            _ => None,
        };
        let sources = sources.map(|all| all.iter().map(ToString::to_string).collect());
        (ask.question.to.clone(), ask.question.what.clone(), sources)
    })
    .collect()
}

fn first(
    plan: &QuestionPlan,
    asker: usize,
    to: (usize, TargetKind),
) -> (String, Option<Vec<String>>) {
    let (to, _, sources) = asked(plan, asker, to).swap_remove(0);
    (to, sources)
}

#[test]
fn each_pod_is_asked_where_the_asker_sees_it_and_sees_the_asker_as_its_cluster_does() {
    let plan = plan_questions(&setup(true));
    let told = |to: &str, source: &str| (format!("{to}:7462"), Some(vec![source.to_owned()]));
    assert_eq!(
        first(&plan, 0, (1, TargetKind::Pod)),
        told("10.65.0.9", "10.67.0.5"),
        "rome to milan"
    );
    assert_eq!(
        first(&plan, 1, (0, TargetKind::Pod)),
        told("10.67.0.5", "10.65.0.9"),
        "milan to rome"
    );
    assert_eq!(
        first(&plan, 1, (2, TargetKind::Pod)),
        told("10.68.0.9", "10.68.0.9"),
        "milan to turin, through rome"
    );
    assert_eq!(
        first(&plan, 3, (1, TargetKind::Pod)),
        told("10.65.0.9", "10.69.1.1"),
        "a node is seen as its fallback address"
    );
    assert_eq!(
        first(&plan, 3, (0, TargetKind::Pod)),
        ("10.244.0.5:7462".into(), None),
        "near, by any of its addresses"
    );
    assert!(
        asked(&plan, 0, (0, TargetKind::Pod)).is_empty(),
        "nobody asks itself"
    );
}

/// Milan's pod runs at a cluster behind milan, which sees itself at 10.244, and rome at 10.99.
fn setup_with_a_broker(behind: HomeView) -> NetworkTestSetup {
    let mut setup = setup(false);
    setup.clusters.truncate(2);
    setup.probers.retain(|prober| prober.cluster < 2);
    setup.probers[1] = Prober {
        behind: Some(behind),
        ..pod(1, "m", "milan", "10.63.0.9")
    };
    setup
}

#[test]
fn a_pod_behind_a_broker_sees_home_as_the_cluster_does_that_runs_it() {
    let spec = json!({ "clusterID": ClusterId::of_public_key(&[2; 32]), "mtu": 1420,
        "imported": { "10.244.0.0/16": "10.63.0.0/16" }, "exported": { "10.244.0.0/16": "10.99.0.0/16", "10.70.0.0/24": "10.98.1.0/24" } });
    let maps =
        PeerMaps::try_from(&serde_json::from_value::<liqo_api::TunnelEndpointSpec>(spec).unwrap())
            .unwrap();
    let plan = plan_questions(&setup_with_a_broker(HomeView::By(maps)));
    let told = |to: &str, source: &str| (format!("{to}:7462"), Some(vec![source.to_owned()]));
    assert_eq!(
        first(&plan, 0, (1, TargetKind::Pod)),
        told("10.63.0.9", "10.99.0.5"),
        "home to the pod"
    );
    assert_eq!(
        first(&plan, 1, (0, TargetKind::Pod)),
        told("10.99.0.5", "10.63.0.9"),
        "the pod to home"
    );
    assert_eq!(
        first(&plan, 2, (1, TargetKind::Pod)),
        told("10.63.0.9", "10.98.1.1"),
        "a node of home to the pod"
    );
    let names = |ask: &&PlannedQuestion| {
        ask.asker == 1
            && ask.path.to == (0, TargetKind::Service)
            && ask.question.what == QuestionKind::Resolve
    };
    assert_eq!(
        plan.asks.iter().find(names).unwrap().expected,
        ExpectedAnswer::Addresses([address("10.99.0.5")].into())
    );
}

#[test]
fn without_access_to_the_broker_a_pod_behind_it_is_asked_and_asks_nobody() {
    let plan = plan_questions(&setup_with_a_broker(HomeView::Nothing(
        "give access to milan".into(),
    )));
    assert_eq!(
        first(&plan, 0, (1, TargetKind::Pod)),
        ("10.63.0.9:7462".into(), None),
        "as whom it sees home is not known"
    );
    assert!(asked(&plan, 1, (0, TargetKind::Pod)).is_empty());
    assert!(
        plan.missing[&path((1, AskerKind::Pod), (0, TargetKind::Pod))]
            .contains("give access to milan")
    );
}

#[test]
fn far_away_large_amounts_and_long_packets_are_tried_too() {
    let plan = plan_questions(&setup(true));
    let is = |what: fn(&QuestionKind) -> bool, to: usize| {
        asked(&plan, 3, (to, TargetKind::Pod))
            .iter()
            .any(|(_, asked, _)| what(asked))
    };
    for (what, near) in [
        (
            (|what| *what == QuestionKind::Tcp) as fn(&QuestionKind) -> bool,
            true,
        ),
        (|what| matches!(what, QuestionKind::Udp { bytes: 0 }), true),
        (
            |what| matches!(what, QuestionKind::Udp { bytes } if *bytes > 1500),
            true,
        ),
        (|what| matches!(what, QuestionKind::Bulk { .. }), false),
        (|what| matches!(what, QuestionKind::Path { .. }), false),
    ] {
        assert!(is(what, 1));
        assert_eq!(is(what, 0), near);
    }
}

#[test]
fn services_are_asked_by_address_where_that_means_something_and_by_their_names() {
    let plan = plan_questions(&setup(true));
    let names = |asker: usize, to: usize| {
        let all = asked(&plan, asker, (to, TargetKind::Service)).into_iter();
        all.map(|(to, ..)| to.trim_end_matches(":7462").to_owned())
            .collect::<BTreeSet<_>>()
    };
    let set = |all: &[&str]| {
        all.iter()
            .map(|&one| one.to_owned())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(
        names(0, 1),
        set(&[
            "milan-1.test-at-rome.svc",
            "milan-1",
            "10.96.0.7",
            "milan-1-each.test-at-rome.svc"
        ])
    );
    assert_eq!(
        names(1, 0),
        set(&[
            "rome-0.test-at-milan.svc",
            "rome-0",
            "rome-0-each.test-at-milan.svc"
        ])
    );
    assert_eq!(
        names(3, 1),
        set(&[
            "milan-1.test-at-rome.svc",
            "10.96.0.7",
            "milan-1-each.test-at-rome.svc"
        ])
    );
    let each = plan.asks.iter().find(|ask| {
        ask.asker == 1
            && ask.path.to == (2, TargetKind::Service)
            && ask.question.what == QuestionKind::Resolve
    });
    assert_eq!(
        each.unwrap().expected,
        ExpectedAnswer::Addresses([address("10.68.0.9")].into())
    );
}

#[test]
fn what_is_not_meant_to_be_there_is_not_asked_and_says_why() {
    let closed = plan_questions(&setup(false));
    let why = &closed.closed[&path((1, AskerKind::Pod), (2, TargetKind::Pod))];
    assert!(
        why.contains("spec.network.transit") && why.contains("between milan and turin"),
        "{why}"
    );
    assert!(
        !plan_questions(&setup(true))
            .closed
            .contains_key(&path((1, AskerKind::Pod), (2, TargetKind::Pod)))
    );
    // Node ports are home's, for home.
    assert_eq!(
        first(&closed, 0, (1, TargetKind::NodePort)).0,
        "172.18.0.2:30001"
    );
    assert!(
        closed
            .closed
            .contains_key(&path((1, AskerKind::Pod), (1, TargetKind::NodePort)))
    );

    let mut off = setup(true);
    off.clusters[1].sees = HomeView::Unwanted("off".into());
    off.probers[1].addresses.clear();
    let off = plan_questions(&off);
    assert_eq!(
        off.closed[&path((0, AskerKind::Pod), (1, TargetKind::Pod))],
        "off"
    );
    assert!(off.missing.is_empty() && !off.asks.iter().any(|ask| ask.asker == 1));
}

#[test]
fn what_should_be_there_and_cannot_be_tried_is_missing() {
    let mut broken = setup(true);
    broken.probers[1].addresses.clear();
    let without_address = plan_questions(&broken);
    assert!(
        without_address.missing[&path((0, AskerKind::Pod), (1, TargetKind::Pod))]
            .contains("no address")
    );
    broken.clusters[2].sees = HomeView::Nothing("refused".into());
    assert_eq!(
        plan_questions(&broken).missing[&path((0, AskerKind::Pod), (2, TargetKind::Service))],
        "refused"
    );

    let mut cut = setup(false);
    let between = path((1, AskerKind::Pod), (2, TargetKind::Pod));
    cut.clusters[1].transit = true;
    assert!(
        plan_questions(&cut).closed.contains_key(&between),
        "one policy alone lets nobody through"
    );
    cut.clusters[2].transit = true;
    let cut = plan_questions(&cut);
    assert!(
        cut.missing[&between].contains("milan does not see the other's pods")
            && !cut.closed.contains_key(&between)
    );
}

#[test]
fn what_cannot_be_tried_or_checked_fails_its_way_and_says_why() {
    let mut setup = setup(true);
    let mut silent = pod(1, "m2", "milan", "10.65.0.10");
    silent.addresses.clear();
    // Outside of all prefixes that rome announces.
    setup
        .probers
        .extend([silent, pod(0, "r2", "rome-2", "10.99.0.5")]);
    setup.clusters[0].fallback_addresses.clear();
    setup.clusters[2].service.node_ports = None;
    let found = world(&setup, |_| None);
    let told = |path: &str| {
        let of_it = found
            .failures
            .iter()
            .filter(|failure| failure.check.path == path);
        of_it
            .map(|failure| format!("{}: {}", failure.check.tried, failure.what))
            .collect::<Vec<_>>()
    };
    let outside = "r2 has the address 10.99.0.5, which is in no prefix that milan knows";
    let no_address = "m2 has no address at rome";
    assert_eq!(
        told("milan pod to rome pod"),
        [
            format!("m on milan: r2 cannot be asked: {outside}"),
            format!("m2 on milan: its source address is not known: {no_address}"),
            format!("m2 on milan: r2 cannot be asked: {outside}"),
        ]
    );
    assert_eq!(
        told("rome pod to milan pod"),
        [
            format!("r on rome-1: m2 cannot be asked: {no_address}"),
            format!("r2 on rome-2: its source address is not known: {outside}"),
            format!("r2 on rome-2: m2 cannot be asked: {no_address}"),
        ]
    );
    assert_eq!(
        told("rome node to turin pod"),
        [
            "node rome-2: its source address is not known: turin knows no fallback address for the nodes of rome"
        ]
    );
    assert!(told("rome pod to turin node port")[0].ends_with("it has no node ports"));
    let state = |from: AskerKind, to: (&str, TargetKind)| {
        let of_it = |path: &&PathResult| {
            (path.from_cluster.as_str(), path.from) == ("rome", from)
                && (path.to_cluster.as_str(), path.to) == to
        };
        found.paths.iter().find(of_it).map(|path| path.state)
    };
    assert_eq!(
        state(AskerKind::Pod, ("milan", TargetKind::Pod)),
        Some(PathState::Failed)
    );
    assert_eq!(
        state(AskerKind::Node, ("turin", TargetKind::Pod)),
        Some(PathState::Failed)
    );
    assert_eq!(
        state(AskerKind::Node, ("rome", TargetKind::Pod)),
        Some(PathState::Ok),
        "near, it may be any of its addresses"
    );
}

#[test]
fn nodes_that_take_no_part_are_named_and_count() {
    let mut setup = setup(true);
    setup.clusters[1].left_out = vec![ExcludedNode {
        node: "milan-2".into(),
        why: "liqo-fabric is not ready on it".into(),
    }];
    let found = TestResult {
        matrices: vec![world(&setup, |_| None), world(&setup, |_| None)],
        left: Vec::new(),
    };
    assert_eq!(
        found.ensure_all_passed().unwrap_err().to_string(),
        "1 node could not take part"
    );
    let text = render_test_result(&found, Paint::off());
    assert!(
        text.contains("FAILED node milan-2 of milan takes no part: liqo-fabric is not ready on it"),
        "{text}"
    );
}

fn answered(pod: &str, source: &str) -> MeasuredAnswer {
    let source = SocketAddr::new(address(source), 40_000);
    MeasuredAnswer::Answered {
        by: ServerIdentity {
            pod: pod.into(),
            node: "x".into(),
            source,
        },
        millis: 1.5,
    }
}

fn silence(kind: ProblemKind) -> QuestionOutcome {
    Err(AnswerFault::Problem(AnswerProblem {
        kind,
        text: "no answer".into(),
    }))
}

/// The answer if everything works.
fn right(ask: &PlannedQuestion) -> MeasuredAnswer {
    match &ask.expected {
        ExpectedAnswer::Answer { pods, sources } => {
            let source = sources
                .as_ref()
                .and_then(|all| all.first())
                .map_or("10.0.0.1".to_owned(), ToString::to_string);
            answered(pods.first().unwrap(), &source)
        }
        ExpectedAnswer::Addresses(addresses) => MeasuredAnswer::Addresses {
            addresses: addresses.iter().copied().collect(),
        },
        ExpectedAnswer::Path => MeasuredAnswer::Passes {
            largest: 1420,
            vanished: None,
        },
    }
}

/// The matrix if these questions have other outcomes.
fn world(
    setup: &NetworkTestSetup,
    wrong: impl Fn(&PlannedQuestion) -> Option<QuestionOutcome>,
) -> TestMatrix {
    let plan = plan_questions(setup);
    let heard: Vec<QuestionOutcome> = plan
        .asks
        .iter()
        .map(|ask| wrong(ask).unwrap_or_else(|| Ok(right(ask))))
        .collect();
    matrix(setup, &plan, &heard)
}

#[test]
fn a_world_in_which_everything_works_passes_and_each_wrong_answer_fails_its_way_alone() {
    let setup = setup(true);
    let good = TestResult {
        matrices: vec![world(&setup, |_| None)],
        left: Vec::new(),
    };
    assert!(good.ensure_all_passed().is_ok() && good.matrices[0].failures.is_empty());
    assert!(
        TestResult {
            left: vec!["namespace x".to_owned()],
            ..good
        }
        .ensure_all_passed()
        .is_err()
    );
    let is_ours = |ask: &PlannedQuestion| {
        ask.asker == 0
            && ask.path.to == (1, TargetKind::Pod)
            && ask.question.what == QuestionKind::Tcp
    };
    for (wrong, told) in [
        (
            Ok(answered("t", "10.67.0.5")),
            "pod t on node x answered instead",
        ),
        (
            Ok(answered("m", "10.69.1.1")),
            "saw the source address 10.69.1.1 and not 10.67.0.5",
        ),
        (silence(ProblemKind::NoAnswer), "no answer"),
        (
            Err(AnswerFault::NotAsked("no exec".into())),
            "could not be asked: no exec",
        ),
        (Err(AnswerFault::Late), "no time"),
    ] {
        let matrix = world(&setup, |ask| is_ours(ask).then(|| wrong.clone()));
        assert!(
            matrix.failures[0].what.contains(told),
            "{:?}",
            matrix.failures
        );
        let failed: Vec<_> = matrix
            .paths
            .iter()
            .filter(|path| path.state == PathState::Failed)
            .collect();
        assert_eq!(
            failed
                .iter()
                .map(|path| (path.from_cluster.as_str(), path.to_cluster.as_str()))
                .collect::<Vec<_>>(),
            [("rome", "milan")]
        );
        assert!(
            TestResult {
                matrices: vec![matrix],
                left: Vec::new()
            }
            .ensure_all_passed()
            .unwrap_err()
            .to_string()
            .starts_with("1 of ")
        );
    }
}

/// The first advice if these questions of rome's pod to milan's have this outcome.
fn advised(
    setup: &NetworkTestSetup,
    is: impl Fn(&PlannedQuestion) -> bool,
    wrong: &QuestionOutcome,
) -> String {
    let matrix = world(setup, |ask| {
        (ask.path.to.0 == 1 && ask.asker == 0 && is(ask)).then(|| wrong.clone())
    });
    matrix.failures[0].advice.clone().unwrap()
}

#[tokio::test]
async fn one_large_amount_that_does_not_arrive_is_enough_for_a_way() {
    let mut several = setup(true);
    several.probers.push(pod(1, "m2", "milan", "10.65.0.10"));
    let plan = plan_questions(&several);
    let bulk_to = |number: &usize| {
        matches!(plan.asks[*number].question.what, QuestionKind::Bulk { .. })
            .then(|| plan.asks[*number].path.to.0)
    };
    let numbers: Vec<usize> = (0..plan.asks.len())
        .filter(|number| plan.asks[*number].asker == 0)
        .collect();
    let tell = async |numbers: &[usize], patience: Duration| {
        assert!(
            numbers
                .iter()
                .all(|number| bulk_to(number).is_some() == (patience == ANSWER_TIMEOUTS[1]))
        );
        let answer = |number| {
            if bulk_to(number) == Some(1) {
                silence(ProblemKind::NoAnswer)
            } else {
                Ok(right(&plan.asks[*number]))
            }
        };
        numbers.iter().map(answer).collect()
    };
    let heard = ask_one(&plan, &numbers, &Mutex::default(), tell).await;
    assert_eq!(heard.len(), numbers.len());
    let large = |to| {
        heard
            .iter()
            .filter(move |(number, _)| bulk_to(number) == Some(to))
            .map(|(_, heard)| heard)
    };
    assert_eq!(
        large(1).collect::<Vec<_>>(),
        [&silence(ProblemKind::NoAnswer), &Err(AnswerFault::Skipped)]
    );
    assert!(large(2).all(Result::is_ok), "that is another path");
}

#[test]
fn what_came_before_the_time_was_over_counts() {
    let reports = || {
        vec![QuestionReport {
            question: 1,
            outcome: Ok(MeasuredAnswer::Passes {
                largest: 1420,
                vanished: None,
            }),
        }]
    };
    let late = Err(UnfinishedProbe::Late {
        pod: "p".into(),
        seconds: 1,
    });
    let found = outcomes_of_answers(
        3,
        ProbeReports {
            reports: reports(),
            end: late,
        },
    );
    assert!(
        matches!(
            found.as_slice(),
            [Err(AnswerFault::Late), Ok(_), Err(AnswerFault::Late)]
        ),
        "{found:?}"
    );
    let broken = Err(UnfinishedProbe::Broken(anyhow::anyhow!("no exec")));
    assert_eq!(
        outcomes_of_answers(
            1,
            ProbeReports {
                reports: Vec::new(),
                end: broken
            }
        ),
        [Err(AnswerFault::NotAsked("no exec".into()))]
    );
}

#[test]
fn what_to_do_follows_from_what_else_works() {
    let all = setup(true);
    let no_answer = silence(ProblemKind::NoAnswer);
    let bulk = |ask: &PlannedQuestion| matches!(ask.question.what, QuestionKind::Bulk { .. });
    assert!(advised(&all, bulk, &no_answer).contains("network.mtu=LESS"));
    let vanish = Ok(MeasuredAnswer::Passes {
        largest: 1380,
        vanished: Some(1420),
    });
    assert!(
        advised(
            &all,
            |ask| matches!(ask.question.what, QuestionKind::Path { .. }),
            &vanish
        )
        .contains("network.mtu=1380")
    );
    assert!(
        advised(
            &all,
            |ask| matches!(ask.question.what, QuestionKind::Udp { bytes: 0 }),
            &no_answer
        )
        .contains("UDP does not")
    );
    assert!(
        advised(
            &all,
            |ask| matches!(ask.question.what, QuestionKind::Udp { bytes: 4000 }),
            &no_answer
        )
        .contains("fragments")
    );
    assert!(
        advised(&all, |ask| ask.path.to.1 == TargetKind::Service, &no_answer)
            .contains("kube-proxy")
    );
    assert!(advised(&all, |_| true, &no_answer).contains("the tunnel works"));
    assert!(
        advised(&all, |_| true, &Ok(answered("t", "10.67.0.5"))).contains("network.reservedCIDRs")
    );
    let names = |ask: &PlannedQuestion| ask.path.to.1 == TargetKind::Service;
    assert!(advised(&all, names, &silence(ProblemKind::UnknownName)).contains("name server"));

    let late = advised(&all, |_| true, &Err(AnswerFault::Late));
    assert!(
        late.contains("--timeout") && !late.contains("exec"),
        "{late}"
    );

    let mut several = all.clone();
    several.probers.push(pod(0, "r2", "rome-2", "10.244.1.5"));
    let matrix = world(&several, |ask| {
        (ask.asker == 4 && ask.path.to.0 == 1).then(|| no_answer.clone())
    });
    assert!(
        matrix.failures[0]
            .advice
            .as_ref()
            .unwrap()
            .contains("UDP 6472 pass between node rome-2 and the gateways (rome-1)"),
        "{:?}",
        matrix.failures[0]
    );

    let mut cut = all.clone();
    let tunnel = ReportedTunnel {
        works: false,
        reason: "NoAnswer".into(),
        message: "for 9 s".into(),
        ..ReportedTunnel::default()
    };
    cut.clusters[1].tunnel = Some(tunnel);
    let told = advised(&cut, |_| true, &no_answer);
    assert!(told.contains("51840") && told.contains("for 9 s"), "{told}");
}

#[test]
fn the_matrix_is_a_table_with_what_failed_and_what_is_closed_below() {
    let setup = setup(false);
    let found = TestResult {
        matrices: vec![world(&setup, |ask| {
            (ask.asker == 3 && ask.path.to == (2, TargetKind::Pod))
                .then(|| silence(ProblemKind::NoAnswer))
        })],
        left: vec!["namespace x of rome stays: why".to_owned()],
    };
    let json = serde_json::to_string(&found).unwrap();
    assert!(
        json.contains(r#""failures":[{"path":""#)
            && json.contains(r#","tried":""#)
            && json.contains(r#","happened":"no answer","advice":""#)
            && !json.contains("verdict"),
        "{json}"
    );
    let text = render_test_result(&found, Paint::off());
    let lines: Vec<Vec<&str>> = text
        .lines()
        .take(5)
        .map(|line| {
            line.split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect()
        })
        .collect();
    assert_eq!(
        lines[0][..4],
        ["FROM \\ TO", "rome pod", "rome service", "rome node port"]
    );
    // Rome's only pod has no other pod in rome to ask.
    assert_eq!(lines[1][..3], ["rome pod", "-", "ok 1.5 ms"]);
    assert_eq!(
        lines[3],
        [
            "milan pod",
            "ok 1.5 ms",
            "ok 1.5 ms",
            "-",
            "-",
            "ok 1.5 ms",
            "-",
            "-",
            "-",
            "-"
        ]
    );
    assert_eq!(lines[2][7], "FAILED");
    assert!(
        text.contains("FAILED rome node to turin pod: 5 of 5 questions"),
        "{text}"
    );
    assert!(
        text.ends_with("LEFT namespace x of rome stays: why"),
        "{text}"
    );
    assert!(
        text.contains("what to do:") && text.contains("-  rome does not forward packets between"),
        "{text}"
    );
    let json: Value = serde_json::to_value(&found).unwrap();
    assert_eq!(json["matrices"][0]["paths"][0]["from"], "pod");
}

#[test]
fn each_family_that_two_clusters_share_is_asked() {
    let mut setup = setup(false);
    // Milan has both families, turin only IPv4.
    let spec = json!({
        "clusterID": ClusterId::of_public_key(&[1; 32]), "mtu": 1420,
        "exported": { "10.244.0.0/16": "10.67.0.0/16", "fd00:10::/48": "fd67::/48", "fd70::/120": "fd69::/120", "10.70.0.0/24": "10.69.1.0/24" },
        "imported": { "10.244.0.0/16": "10.65.0.0/16", "fd00:10::/48": "fd65::/48" },
    });
    let maps =
        PeerMaps::try_from(&serde_json::from_value::<liqo_api::TunnelEndpointSpec>(spec).unwrap())
            .unwrap();
    setup.clusters[1].sees = HomeView::By(maps);
    setup.probers[0].addresses.push(address("fd00:10::5"));
    setup.probers[1].addresses.push(address("fd65::9"));
    for number in [0, 1] {
        setup.clusters[number]
            .service
            .addresses
            .push(address("fd00:96::7"));
    }
    setup.clusters[0]
        .fallback_addresses
        .insert(address("fd70::1"));
    let found = plan_questions(&setup);
    let by_tcp = |asker: usize, to: (usize, TargetKind)| {
        let all = asked(&found, asker, to)
            .into_iter()
            .filter(|(_, what, _)| *what == QuestionKind::Tcp);
        all.map(|(to, _, sources)| (to, sources.unwrap_or_default().join(" ")))
            .collect::<Vec<_>>()
    };
    let told = |to: &str, sources: &str| (to.to_owned(), sources.to_owned());
    let (own, node) = ("10.67.0.5 fd67::5", "10.69.1.1 fd69::1");
    assert_eq!(
        by_tcp(0, (1, TargetKind::Pod)),
        [told("10.65.0.9:7462", own), told("[fd65::9]:7462", own)]
    );
    assert_eq!(
        by_tcp(3, (1, TargetKind::Pod)),
        [told("10.65.0.9:7462", node), told("[fd65::9]:7462", node)]
    );
    assert_eq!(
        by_tcp(0, (2, TargetKind::Pod)),
        [told("10.66.0.9:7462", "10.67.0.5")],
        "turin is not known by IPv6"
    );
    assert_eq!(
        by_tcp(2, (0, TargetKind::Pod)),
        [told("10.67.0.5:7462", "10.66.0.9")]
    );
    assert!(
        by_tcp(3, (0, TargetKind::Service))
            .iter()
            .any(|(to, _)| to == "[fd00:96::7]:7462")
    );
    let each = found.asks.iter().find(|ask| {
        ask.asker == 1
            && ask.path.to == (0, TargetKind::Service)
            && ask.question.what == QuestionKind::Resolve
    });
    assert_eq!(
        each.unwrap().expected,
        ExpectedAnswer::Addresses(["10.67.0.5", "fd67::5"].map(address).into())
    );
    assert!(found.untestable.is_empty(), "{:?}", found.untestable);

    // If Services have one family, their endpoints have that one.
    let mut single = setup.clone();
    single.clusters[0].service.addresses.truncate(1);
    assert_eq!(
        single.in_services(&single.probers[0], &single.clusters[1].sees),
        [address("10.67.0.5")]
    );

    // A shared address that is not seen is reported, and the rest is asked.
    setup.probers[0].addresses[1] = address("fd00:99::5");
    let QuestionPlan {
        asks, untestable, ..
    } = plan_questions(&setup);
    assert!(
        asks.iter()
            .any(|ask| ask.asker == 1 && ask.question.to == "10.67.0.5:7462")
    );
    assert!(
        untestable.iter().any(|question| question.asker == 1
            && question
                .why
                .contains("fd00:99::5, which is in no prefix that milan knows")),
        "{untestable:?}"
    );
}

#[test]
fn a_cluster_in_whose_endpoint_slices_a_pod_is_missing_is_waited_for() {
    let setup = setup(false);
    let slices = |of_rome: &str, of_milan: &str, ready: bool| -> Vec<EndpointSlice> {
        let slice = |service: String, address: &str, ready: bool| {
            let endpoints = json!([{ "addresses": [address], "conditions": { "ready": ready } }]);
            let metadata = json!({ "labels": { "kubernetes.io/service-name": service } });
            serde_json::from_value(
                json!({ "metadata": metadata, "addressType": "IPv4", "endpoints": endpoints }),
            )
            .unwrap()
        };
        let of = |service: &str, address: &str, ready: bool| {
            [
                slice(service.to_owned(), address, true),
                slice(format!("{service}-each"), address, ready),
            ]
        };
        [of("rome-0", of_rome, true), of("milan-1", of_milan, ready)].concat()
    };
    // Milan sees itself as it is, home by its translated addresses, and nobody else.
    assert_eq!(
        prepare::unpublished_pod(&setup, 1, &slices("10.67.0.5", "10.244.0.9", true)),
        None
    );
    assert_eq!(
        prepare::unpublished_pod(&setup, 1, &slices("10.244.0.5", "10.244.0.9", true)).as_deref(),
        Some("r")
    );
    assert_eq!(
        prepare::unpublished_pod(&setup, 1, &slices("10.67.0.5", "10.244.0.9", false)).as_deref(),
        Some("m")
    );
    assert_eq!(
        prepare::unpublished_pod(&setup, 0, &slices("10.244.0.5", "10.65.0.9", true)).as_deref(),
        Some("t")
    );
}

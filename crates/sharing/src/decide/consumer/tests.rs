mod prices;

use super::*;
use crate::tests::{cluster, list, offer_of};
use liqo_api::{LargestPods, Time};

const ROME: u8 = 1;
const MILAN: u8 = 3;

fn intent() -> BorrowingIntent {
    BorrowingIntent {
        own: cluster(ROME),
        provider: cluster(MILAN),
        cluster_name: "milan".to_owned(),
        peer: "milan".to_owned(),
        request: RequestedResources::default(),
        consume: Some(Consume::default()),
        decisions: BTreeMap::new(),
        contracts: BTreeMap::new(),
        returns: OwnNodesReturn::default(),
        tethered_elsewhere: None,
    }
}

fn offer(hard: &str) -> ResourceOffer {
    ResourceOffer::new("default", offer_of(MILAN, hard))
}

fn judged(offer: ResourceOffer, local: &ObjectsOfProvider) -> OfferJudgement {
    let name = offer.metadata.name.clone().unwrap();
    judge_offers(
        &intent(),
        &[(name, Arc::new(Claimed::new(offer)))].into(),
        local,
        None,
    )
}

/// The reason for refusing an offer with this change.
fn refusal(change: impl FnOnce(&mut ResourceOffer)) -> String {
    let mut offer = offer("cpu=4, memory=4Gi");
    change(&mut offer);
    let judgement = judged(offer, &ObjectsOfProvider::default());
    assert!(
        !judgement
            .actions
            .iter()
            .any(|action| matches!(action, ConsumerAction::ApplyNode(_))),
        "{judgement:?}"
    );
    let answer = judgement
        .actions
        .into_iter()
        .find_map(|action| match action {
            ConsumerAction::Answer(_, status) => Some(status),
            _ => None,
        });
    let answer = answer.unwrap();
    assert_eq!(answer.phase, OfferPhase::Refused);
    answer.message.unwrap()
}

/// Applies the actions to the objects of both clusters.
fn carry_out(actions: &[ConsumerAction], offer: &mut ResourceOffer, local: &mut ObjectsOfProvider) {
    for action in actions.iter().cloned() {
        match action {
            ConsumerAction::DeleteNode(name) => drop(local.nodes.remove(&name)),
            ConsumerAction::ApplyNode(spec) => {
                drop(
                    local.nodes.insert(
                        spec.pool.clone(),
                        VirtualNodeState {
                            spec,
                            deleting: false,
                        }
                        .into(),
                    ),
                );
            }
            ConsumerAction::DeleteMirror(name) => drop(local.mirrors.remove(&name)),
            ConsumerAction::ApplyMirror(spec) => {
                let status = local
                    .mirrors
                    .get(&spec.pool)
                    .and_then(|mirror| mirror.status.clone());
                let mut mirror = ResourceOffer::new(&spec.pool.clone(), spec);
                mirror.status = status;
                drop(
                    local
                        .mirrors
                        .insert(mirror.spec.pool.clone(), mirror.into()),
                );
            }
            ConsumerAction::AnswerMirror(name, status) => {
                let mut mirror = (*local.mirrors[&name]).clone();
                mirror.status = Some(status);
                drop(local.mirrors.insert(name, mirror.into()));
            }
            ConsumerAction::Answer(_, status) => offer.status = Some(status),
        }
    }
}

/// An accepted offer with its node and its copy.
fn settled(hard: &str) -> (ResourceOffer, ObjectsOfProvider) {
    let (mut offer, mut local) = (offer(hard), ObjectsOfProvider::default());
    let actions = judged(offer.clone(), &local).actions;
    carry_out(&actions, &mut offer, &mut local);
    (offer, local)
}

#[test]
fn a_good_offer_is_accepted_and_becomes_a_virtual_node() {
    let judgement = judged(offer("cpu=4, memory=4Gi"), &ObjectsOfProvider::default());
    let accepted = ResourceOfferStatus {
        phase: OfferPhase::Accepted,
        message: None,
    };
    let node = VirtualNodeSpec {
        withdrawal_timestamp: None,
        cluster_id: cluster(MILAN),
        cluster_name: "milan".to_owned(),
        pool: "default".to_owned(),
        resources: list("cpu=4, memory=4Gi"),
        largest_pods: LargestPods::default(),
        labels: BTreeMap::new(),
        prices: None,
        no_new_pods: None,
    };
    assert_eq!(
        judgement.actions,
        [
            ConsumerAction::ApplyNode(node),
            ConsumerAction::ApplyMirror(offer("cpu=4, memory=4Gi").spec),
            ConsumerAction::AnswerMirror("default".to_owned(), accepted.clone()),
            ConsumerAction::Answer("default".to_owned(), accepted),
        ]
    );
    assert_eq!(
        (
            judgement.condition.status,
            judgement.condition.reason.as_str()
        ),
        (Some(true), "Accepted")
    );
}

#[test]
fn an_offer_that_was_answered_causes_no_action() {
    let (offer, local) = settled("cpu=4");
    assert_eq!(judged(offer, &local).actions, []);
}

#[test]
fn the_node_follows_the_offer() {
    let (mut changed, local) = settled("cpu=4");
    changed.spec.resource_quota.hard = list("cpu=2");
    let actions = judged(changed.clone(), &local).actions;
    assert!(
        matches!(&actions[0], ConsumerAction::ApplyNode(node) if node.resources == list("cpu=2")),
        "{actions:?}"
    );
    assert_eq!(actions[1..], [ConsumerAction::ApplyMirror(changed.spec)]);
}

#[test]
fn the_node_and_the_copy_of_a_deleted_offer_are_deleted() {
    let (_, local) = settled("cpu=4");
    let judgement = judge_offers(&intent(), &BTreeMap::new(), &local, None);
    let expected = [
        ConsumerAction::DeleteNode("default".to_owned()),
        ConsumerAction::DeleteMirror("default".to_owned()),
    ];
    assert_eq!(judgement.actions, expected);
    assert_eq!(remove_all(&local), expected);
    assert_eq!(judgement.condition.reason, "NoOffer");
}

#[test]
fn the_node_of_an_offer_that_is_being_deleted_is_deleted() {
    let (mut offer, local) = settled("cpu=4");
    offer.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    assert_eq!(
        judged(offer, &local).actions[0],
        ConsumerAction::DeleteNode("default".to_owned())
    );
}

#[test]
fn an_existing_node_stays_while_its_offer_is_empty() {
    let (mut offer, mut local) = settled("cpu=4");
    offer.spec.resource_quota.hard = list("cpu=0");
    let actions = judged(offer.clone(), &local).actions;
    assert!(
        matches!(&actions[0], ConsumerAction::ApplyNode(node) if node.resources.is_zero()),
        "{actions:?}"
    );
    carry_out(&actions, &mut offer, &mut local);
    assert_eq!(judged(offer, &local).actions, []);
}

#[test]
fn a_node_that_is_being_deleted_stays_unchanged_until_it_is_gone() {
    let (offer, mut local) = settled("cpu=4");
    let mut node = (*local.nodes["default"]).clone();
    node.deleting = true;
    node.spec.resources = list("cpu=1");
    local.nodes.insert("default".to_owned(), node.into());
    assert_eq!(judged(offer, &local).actions, []);
    let node_actions = remove_all(&local)
        .into_iter()
        .filter(|action| matches!(action, ConsumerAction::DeleteNode(_)));
    assert_eq!(node_actions.count(), 0);
    local.nodes.clear();
    assert!(matches!(
        judged(settled("cpu=4").0, &local).actions[0],
        ConsumerAction::ApplyNode(_)
    ));
}

#[test]
fn invalid_offers_are_refused_with_the_reason() {
    assert!(refusal(|offer| offer.spec.cluster_id = cluster(9)).contains("as its provider"));
    assert!(
        refusal(|offer| offer.spec.path.push(cluster(ROME))).contains("belong to this cluster")
    );
    assert!(
        refusal(|offer| offer.spec.path = vec![cluster(MILAN); 129])
            .contains("more than 128 clusters")
    );
    assert!(
        refusal(|offer| offer.spec.hops = 0).contains("1 to 128")
            && refusal(|offer| offer.spec.hops = 129).contains("1 to 128")
    );
    assert!(refusal(|offer| offer.spec.hops = 2).contains("not from which clusters"));
    assert!(refusal(|offer| offer.spec.pool = "another".to_owned()).contains("name of the offer"));
    let many = (0..65).map(|number| (format!("label-{number}"), String::new()));
    assert!(refusal(|offer| offer.spec.labels = many.collect()).contains("labels"));
}

#[test]
fn an_offer_from_too_far_away_is_refused_and_the_policy_says_how_far() {
    let through = |hops: u8, consume: Consume| {
        let mut offer = offer("cpu=4");
        (offer.spec.hops, offer.spec.path) = (hops, (MILAN..MILAN + hops).map(cluster).collect());
        let offers = [("default".to_owned(), Arc::new(Claimed::new(offer)))].into();
        let actions = judge_offers(
            &under(consume),
            &offers,
            &ObjectsOfProvider::default(),
            None,
        )
        .actions;
        actions.into_iter().find_map(|action| match action {
            ConsumerAction::Answer(_, ResourceOfferStatus { phase, message }) => {
                Some((phase, message.unwrap_or_default()))
            }
            _ => None,
        })
    };
    assert_eq!(
        through(3, Consume::default()).unwrap().0,
        OfferPhase::Accepted
    );
    let (phase, message) = through(4, Consume::default()).unwrap();
    assert_eq!(phase, OfferPhase::Refused);
    assert!(
        message.contains("through 4 clusters") && message.contains("at most 3 (consume.maxHops)"),
        "{message}"
    );
    assert_eq!(
        through(
            2,
            Consume {
                max_hops: 1,
                ..Consume::default()
            }
        )
        .unwrap()
        .0,
        OfferPhase::Refused
    );
    assert_eq!(
        through(
            8,
            Consume {
                max_hops: 8,
                ..Consume::default()
            }
        )
        .unwrap()
        .0,
        OfferPhase::Accepted
    );
}

#[test]
fn a_node_whose_provider_becomes_a_broker_stays_as_long_as_its_pods_have_their_notice_and_gets_no_new_ones()
 {
    let (mut offer, local) = settled("cpu=4");
    (offer.spec.hops, offer.spec.path) = (2, (MILAN..MILAN + 2).map(cluster).collect());
    let judged = |offer: &ResourceOffer| {
        let offers = [("default".to_owned(), Arc::new(Claimed::new(offer.clone())))].into();
        judge_offers(
            &under(Consume {
                max_hops: 1,
                ..Consume::default()
            }),
            &offers,
            &local,
            None,
        )
        .actions
    };
    assert!(judged(&offer).contains(&ConsumerAction::DeleteNode("default".to_owned())));
    offer.spec.drain_timestamp = Some(liqo_api::Time(jiff::Timestamp::UNIX_EPOCH));
    let actions = judged(&offer);
    let is_closed = |action: &ConsumerAction| matches!(action, ConsumerAction::ApplyNode(node) if node.no_new_pods.is_some());
    assert!(
        actions.iter().any(is_closed)
            && !actions.contains(&ConsumerAction::DeleteNode("default".to_owned())),
        "{actions:?}"
    );
}

#[test]
fn a_node_takes_over_the_labels_that_the_policy_allows_and_the_answer_names_the_others() {
    let labels = [
        ("eks.amazonaws.com/nodegroup", "gpu"),
        ("karpenter.sh/capacity-type", "spot"),
        ("example.com/gpu", "yes"),
        ("kubernetes.io/arch", "arm64"),
        ("topology.kubernetes.io/zone", "eu-1"),
        ("tier", "gold"),
    ];
    let mut offer = offer("cpu=4");
    offer.spec.labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let judged_by = |allowed: &[&str]| {
        let mut intent = intent();
        intent.consume.as_mut().unwrap().node_labels =
            allowed.iter().map(|&pattern| pattern.to_owned()).collect();
        let offers =
            BTreeMap::from([("default".to_owned(), Arc::new(Claimed::new(offer.clone())))]);
        let actions = judge_offers(&intent, &offers, &ObjectsOfProvider::default(), None).actions;
        let (Some(ConsumerAction::ApplyNode(node)), Some(ConsumerAction::Answer(_, status))) =
            (actions.first(), actions.last())
        else {
            panic!("{actions:?}")
        };
        (
            node.labels.keys().cloned().collect::<Vec<_>>(),
            status.message.clone(),
        )
    };
    let (kept, message) = judged_by(&[]);
    assert_eq!(
        kept,
        ["kubernetes.io/arch", "tier", "topology.kubernetes.io/zone"]
    );
    let message = message.unwrap();
    for (dropped, _) in &labels[..3] {
        assert!(message.contains(dropped), "{message}");
    }
    let (kept, message) = judged_by(&["example.com/*", "eks.amazonaws.com/nodegroup"]);
    assert_eq!(kept.len(), 5);
    assert!(
        !kept.iter().any(|key| key.starts_with("karpenter"))
            && message.unwrap().contains("karpenter.sh/capacity-type")
    );
    assert_eq!(judged_by(&["*"]).1, None);
}

#[test]
fn pools_without_a_dns_label_as_name_are_refused_and_not_copied() {
    for name in ["a.b", "A", "", "-a", "a/b", &"a".repeat(64)] {
        let mut bad = offer("cpu=4");
        bad.metadata.name = Some(name.to_owned());
        bad.spec.pool = name.to_owned();
        let actions = judged(bad, &ObjectsOfProvider::default()).actions;
        assert!(
            matches!(actions.as_slice(), [ConsumerAction::Answer(_, _)]),
            "{name:?}: {actions:?}"
        );
    }
}

#[test]
fn an_offer_that_comes_an_impossible_way_is_not_copied_and_a_former_copy_goes() {
    let changes: [fn(&mut ResourceOfferSpec); 3] = [
        |spec| spec.hops = 0,
        |spec| spec.hops = 129,
        |spec| spec.path = vec![cluster(MILAN); 129],
    ];
    for change in changes {
        let (mut bad, local) = settled("cpu=4");
        change(&mut bad.spec);
        let new = judged(bad.clone(), &ObjectsOfProvider::default()).actions;
        assert!(
            matches!(new.as_slice(), [ConsumerAction::Answer(_, _)]),
            "{new:?}"
        );
        let actions = judged(bad, &local).actions;
        assert!(
            matches!(
                actions.as_slice(),
                [
                    ConsumerAction::DeleteNode(_),
                    ConsumerAction::DeleteMirror(_),
                    ConsumerAction::Answer(_, _)
                ]
            ),
            "{actions:?}"
        );
    }
}

#[test]
fn the_copy_of_a_refused_offer_shows_the_reason() {
    let mut own = offer("cpu=4");
    own.spec.path.push(cluster(ROME));
    let judgement = judged(own, &ObjectsOfProvider::default());
    let answer = judgement
        .actions
        .iter()
        .find(|action| matches!(action, ConsumerAction::AnswerMirror(_, _)));
    assert!(answer.is_some(), "{judgement:?}");
    assert_eq!(judgement.condition.reason, "Refused");
    assert!(
        judgement
            .condition
            .message
            .contains("belong to this cluster"),
        "{}",
        judgement.condition.message
    );
}

#[test]
fn resources_that_no_node_can_have_are_left_out() {
    let usable = usable_resources(&list(
        "cpu=1500100u, memory=1Gi, rubbish=1, a b/c=1, nvidia.com/gpu=1500m, hugepages-2Mi=-2Mi",
    ));
    assert_eq!(
        usable.to_string(),
        "cpu=1500m, memory=1Gi, nvidia.com/gpu=1"
    );
}

#[test]
fn a_provider_cannot_create_more_nodes_than_the_maximum() {
    let offers: BTreeMap<String, Arc<Claimed<ResourceOffer>>> = (0..100)
        .map(|number| {
            let mut pool = offer("cpu=1");
            pool.spec.pool = format!("pool-{number:03}");
            pool.metadata.name = Some(pool.spec.pool.clone());
            (pool.spec.pool.clone(), Arc::new(Claimed::new(pool)))
        })
        .collect();
    let actions = judge_offers(&intent(), &offers, &ObjectsOfProvider::default(), None).actions;
    let count = |wanted: fn(&ConsumerAction) -> bool| {
        actions.iter().filter(|action| wanted(action)).count()
    };
    assert_eq!(
        count(|action| matches!(action, ConsumerAction::ApplyNode(_))),
        MAX_POOLS
    );
    assert_eq!(
        count(|action| matches!(action, ConsumerAction::ApplyMirror(_))),
        MAX_POOLS
    );
    assert_eq!(
        count(|action| matches!(action, ConsumerAction::Answer(..))),
        MAX_POOLS + 1
    );
}

#[test]
fn without_an_offer_the_condition_shows_the_providers_message() {
    let judgement = judge_offers(
        &intent(),
        &BTreeMap::new(),
        &ObjectsOfProvider::default(),
        Some("nothing is free"),
    );
    assert_eq!(judgement.condition.message, "nothing is free");
}

/// Pool and phase of each offer, and the resources of its node.
fn verdicts(
    intent: &BorrowingIntent,
    offers: &[(&str, &str)],
    local: &ObjectsOfProvider,
) -> Vec<(String, OfferPhase, String)> {
    let named = |(name, hard): &(&str, &str)| {
        let mut offer = offer(hard);
        offer.spec.pool = (*name).to_owned();
        ((*name).to_owned(), Arc::new(Claimed::new(offer)))
    };
    let judgement = judge_offers(intent, &offers.iter().map(named).collect(), local, None);
    let node = |wanted: &str| {
        judgement.actions.iter().find_map(|action| match action {
            ConsumerAction::ApplyNode(spec) if spec.pool == wanted => {
                Some(spec.resources.to_string())
            }
            _ => None,
        })
    };
    let answers = judgement.actions.iter().filter_map(|action| match action {
        ConsumerAction::Answer(name, status) => {
            Some((name.clone(), status.phase, node(name).unwrap_or_default()))
        }
        _ => None,
    });
    let mut answers: Vec<_> = answers.collect();
    answers.sort_by(|one, other| one.0.cmp(&other.0));
    answers
}

fn under(consume: Consume) -> BorrowingIntent {
    BorrowingIntent {
        consume: Some(consume),
        ..intent()
    }
}

fn judged_as(name: &str, phase: OfferPhase, node: &str) -> (String, OfferPhase, String) {
    (name.to_owned(), phase, node.to_owned())
}

#[test]
fn a_manual_policy_asks_the_user_and_keeps_what_was_accepted_before() {
    let mut manual = under(Consume {
        accept: Accept::Manual,
        ..Consume::default()
    });
    let offers = [("a", "cpu=1"), ("b", "cpu=1"), ("default", "cpu=1")];
    let (_, used) = settled("cpu=1");
    manual.decisions = [
        ("a".to_owned(), OfferDecision::Accept),
        ("default".to_owned(), OfferDecision::Refuse),
    ]
    .into();
    assert_eq!(
        verdicts(&manual, &offers, &used),
        [
            judged_as("a", OfferPhase::Accepted, "cpu=1"),
            judged_as("b", OfferPhase::ManualActionRequired, ""),
            judged_as("default", OfferPhase::Refused, ""),
        ]
    );
    manual.decisions.clear();
    assert_eq!(
        verdicts(&manual, &offers[2..], &used),
        [judged_as("default", OfferPhase::Accepted, "")]
    );
    let judgement = judge_offers(
        &manual,
        &[("b".to_owned(), Arc::new(Claimed::new(offer("cpu=1"))))].into(),
        &ObjectsOfProvider::default(),
        None,
    );
    assert_eq!(judgement.condition.reason, "Refused");
    let judgement = judge_offers(
        &manual,
        &[("default".to_owned(), Arc::new(Claimed::new(offer("cpu=1"))))].into(),
        &ObjectsOfProvider::default(),
        None,
    );
    assert_eq!(judgement.condition.reason, "ManualActionRequired");
    assert!(
        judgement
            .condition
            .message
            .contains("liqoctl offer accept milan default"),
        "{}",
        judgement.condition.message
    );
}

#[test]
fn no_more_offers_and_no_more_resources_are_accepted_than_the_policy_allows() {
    let two = under(Consume {
        max_offers: Some(2),
        ..Consume::default()
    });
    let (_, used) = settled("cpu=1");
    let offers = [("a", "cpu=1"), ("b", "cpu=1"), ("default", "cpu=1")];
    let phases: Vec<_> = verdicts(&two, &offers, &used)
        .into_iter()
        .map(|(_, phase, _)| phase)
        .collect();
    assert_eq!(
        phases,
        [
            OfferPhase::Accepted,
            OfferPhase::Refused,
            OfferPhase::Accepted
        ]
    );
    let little = under(Consume {
        max_resources: list("cpu=3"),
        ..Consume::default()
    });
    assert_eq!(
        verdicts(
            &little,
            &[("a", "cpu=2, pods=5"), ("b", "cpu=2, pods=5")],
            &ObjectsOfProvider::default()
        ),
        [
            judged_as("a", OfferPhase::Accepted, "cpu=2, pods=5"),
            judged_as("b", OfferPhase::Accepted, "cpu=1, pods=5")
        ]
    );
}

#[test]
fn an_offer_without_useful_resources_waits() {
    for empty in ["cpu=0", "nonsense=3, cpu=-1"] {
        assert_eq!(
            verdicts(
                &intent(),
                &[("default", empty)],
                &ObjectsOfProvider::default()
            ),
            [judged_as("default", OfferPhase::Pending, "")]
        );
    }
    let judgement = judged(offer("cpu=0"), &ObjectsOfProvider::default());
    assert_eq!(judgement.condition.reason, "NothingInIt");
    assert!(
        judgement
            .condition
            .message
            .contains("pool default: it is empty"),
        "{}",
        judgement.condition.message
    );
    let little = under(Consume {
        max_resources: list("cpu=3"),
        ..Consume::default()
    });
    assert_eq!(
        verdicts(
            &little,
            &[("a", "cpu=4"), ("b", "cpu=2")],
            &ObjectsOfProvider::default()
        ),
        [
            judged_as("a", OfferPhase::Accepted, "cpu=3"),
            judged_as("b", OfferPhase::Pending, "")
        ]
    );
}

#[test]
fn a_refusal_does_not_depend_on_the_amounts() {
    let by_user = BorrowingIntent {
        decisions: [("b".to_owned(), OfferDecision::Refuse)].into(),
        ..intent()
    };
    let one = under(Consume {
        max_offers: Some(1),
        max_resources: list("cpu=4"),
        ..Consume::default()
    });
    let manual = under(Consume {
        accept: Accept::Manual,
        max_offers: Some(0),
        ..Consume::default()
    });
    let never = under(Consume {
        accept: Accept::Never,
        ..Consume::default()
    });
    for intent in [
        by_user,
        one,
        manual,
        never,
        BorrowingIntent {
            consume: None,
            ..intent()
        },
    ] {
        for hard in ["cpu=0", "cpu=4", ""] {
            let found = verdicts(
                &intent,
                &[("a", "cpu=4"), ("b", hard)],
                &ObjectsOfProvider::default(),
            );
            assert_eq!(
                found[1],
                judged_as("b", OfferPhase::Refused, ""),
                "{hard}: {intent:?}"
            );
        }
    }
}

#[test]
fn nothing_is_accepted_without_a_policy_or_under_one_that_forbids_it() {
    let never = under(Consume {
        accept: Accept::Never,
        ..Consume::default()
    });
    for intent in [
        never,
        BorrowingIntent {
            consume: None,
            ..intent()
        },
    ] {
        let refused = [judged_as("default", OfferPhase::Refused, "")];
        assert_eq!(
            verdicts(
                &intent,
                &[("default", "cpu=1")],
                &ObjectsOfProvider::default()
            ),
            refused
        );
    }
}

#[test]
fn the_node_of_a_withdrawn_pool_stays_until_the_withdrawal_and_shows_its_time() {
    let (mut offer, mut local) = settled("cpu=1");
    let end = Time(jiff::Timestamp::UNIX_EPOCH);
    offer.spec.withdrawal_timestamp = Some(end.clone());
    let actions = judged(offer.clone(), &local).actions;
    carry_out(&actions, &mut offer, &mut local);
    assert_eq!(local.nodes["default"].spec.withdrawal_timestamp, Some(end));
    assert_eq!(
        offer.status.as_ref().map(|status| status.phase),
        Some(OfferPhase::Accepted)
    );
    assert_eq!(judged(offer, &local).actions, []);
}

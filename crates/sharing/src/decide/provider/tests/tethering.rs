//! A cluster that is tethered, and one that another is tethered to. Milan decides; rome is the peer
//! or the tethered cluster.

use liqo_api::TetheringState;

use super::*;
use crate::decide::tethering::{policy_replacements, tethering_answer};
use liqo_api::TetheringAnswer;

impl ProviderSnapshot {
    /// Milan in this state, with rome as its peer.
    fn in_state(mut self, state: TetheringState) -> Self {
        self.mode = OwnWorkingMode {
            state,
            peer: Some(cluster(ROME)),
        };
        self.replacements = policy_replacements(&self);
        self
    }

    /// Rome asks to be tethered to milan.
    fn asked_by_rome(mut self) -> Self {
        for (key, request) in &mut self.requests {
            if key.namespace == tenant_namespace(&cluster(ROME)) {
                Arc::make_mut(request).tethering = true;
            }
        }
        self.replacements = policy_replacements(&self);
        self
    }

    /// Milan borrows all that rome owns.
    fn borrows_from_rome(mut self, hard: &str, path: Vec<ClusterId>) -> Self {
        let id = cluster(ROME);
        let labels = [
            (labels::TYPE, labels::TYPE_VIRTUAL_NODE),
            (labels::REMOTE_CLUSTER_ID, id.as_str()),
        ];
        let node = LocalNode {
            eligible: true,
            allocatable: list(hard),
            labels: labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            upstream: Some(crate::decide::reduce::UpstreamPool {
                provider: id.clone(),
                pool: DEFAULT_POOL.into(),
                offer: None,
            }),
        };
        self.nodes.push((Key::new("", "rome"), node.into()));
        let mut offer = ResourceOffer::new(
            DEFAULT_POOL,
            ResourceOfferSpec {
                path,
                ..offer_of(ROME, hard)
            },
        );
        offer.metadata.namespace = Some(provider_namespace(&id));
        self.offers.push((Key::of_object(&offer), offer.into()));
        self
    }
}

fn limited() -> [(&'static str, i32, Value); 1] {
    let provide = json!({ "percentage": 10, "caps": { "pods": "1" }, "granularity": { "by": "Node" }, "noticeSeconds": 60 });
    [("default", 0, json!({ "provide": provide }))]
}

fn allowing() -> [(&'static str, i32, Value); 1] {
    [(
        "default",
        0,
        json!({ "provide": { "percentage": 100, "tethering": true } }),
    )]
}

#[test]
fn a_tethered_cluster_offers_all_that_its_own_pods_leave_to_its_peer_and_nothing_to_others() {
    let snapshot = milan()
        .under(&limited())
        .pod("kube-system", None, "cpu=1, pods=1")
        .asks(ROME, "")
        .asks(TURIN, "");
    let tethered = snapshot.in_state(TetheringState::Tethered);
    assert_eq!(tethered.writes(), [write(ROME, "cpu=9, pods=9")]);
}

#[test]
fn a_cluster_that_asks_offers_what_its_policy_says() {
    let everything = [("default", 0, json!({ "provide": { "percentage": 50 } }))];
    let snapshot = milan()
        .under(&everything)
        .asks(ROME, "")
        .asks(TURIN, "")
        .in_state(TetheringState::Tethering);
    assert_eq!(snapshot.writes(), [write(ROME, "cpu=5, pods=5")]);
}

#[test]
fn the_release_takes_back_everything_with_the_notice_of_the_policy() {
    let lent = milan()
        .under(&limited())
        .asks(ROME, "")
        .in_state(TetheringState::Tethered)
        .settled();
    let mut used = lent;
    used.add(romes_pod(DEFAULT_POOL, "a", "cpu=4, pods=4"));
    let releasing = used.in_state(TetheringState::Releasing).at(1000).settled();
    let offer = releasing.offer(ROME, DEFAULT_POOL).unwrap();
    assert_eq!(
        offer.resource_quota.hard.to_string(),
        "cpu=4, pods=4",
        "no new pods"
    );
    assert_eq!(
        offer.reclaim_timestamp.map(|time| time.0.as_second()),
        Some(1060),
        "and those that run have their notice"
    );
    assert_eq!(
        offer.withdrawal_timestamp, None,
        "a withdrawal would move them away at once"
    );
    let over = ProviderSnapshot {
        recent_writes: HashMap::new(),
        ..releasing.at(1060)
    }
    .settled();
    assert_eq!(
        over.offer(ROME, DEFAULT_POOL)
            .unwrap()
            .resource_quota
            .hard
            .to_string(),
        "cpu=0, pods=0"
    );
}

#[test]
fn a_silent_peer_of_a_tethered_cluster_keeps_what_it_has_until_control_is_back() {
    let policies = [(
        "default",
        0,
        json!({ "provide": { "percentage": 10, "absenceSeconds": 60 } }),
    )];
    let silence = Silence {
        lasts: Some(Duration::from_mins(1)),
        ended_offers: false,
    };
    let silent = ProviderSnapshot {
        silences: HashMap::from([(cluster(ROME), silence)]),
        ..milan().under(&policies).asks(ROME, "")
    };
    let hard = |snapshot: ProviderSnapshot| {
        snapshot
            .settled()
            .offer(ROME, DEFAULT_POOL)
            .map(|offer| offer.resource_quota.hard.to_string())
    };
    assert_eq!(hard(silent.clone()), None, "the policy of an ordinary peer");
    assert_eq!(
        hard(silent.in_state(TetheringState::Tethered)).as_deref(),
        Some("cpu=10, pods=10")
    );
}

#[test]
fn a_policy_grants_tethering_and_a_tethered_cluster_grants_nobody() {
    let answered = |mode: &OwnWorkingMode, spec: Value| {
        tethering_answer(mode, Some(&policy("default", 0, spec))).0
    };
    let autonomous = OwnWorkingMode::default();
    assert_eq!(
        answered(&autonomous, json!({ "provide": { "tethering": true } })),
        TetheringAnswer::Granted
    );
    assert_eq!(
        answered(&autonomous, json!({})),
        TetheringAnswer::NotAllowed
    );
    assert_eq!(
        tethering_answer(&autonomous, None).0,
        TetheringAnswer::NotAllowed
    );
    let plugin =
        json!({ "provide": { "tethering": true, "source": { "plugin": { "address": "p:1" } } } });
    assert_eq!(answered(&autonomous, plugin), TetheringAnswer::NotAllowed);
    for state in [
        TetheringState::Tethering,
        TetheringState::Tethered,
        TetheringState::Releasing,
    ] {
        let mode = OwnWorkingMode {
            state,
            peer: Some(cluster(TURIN)),
        };
        assert_eq!(
            answered(&mode, json!({ "provide": { "tethering": true } })),
            TetheringAnswer::Tethered
        );
    }
}

#[test]
fn pods_of_a_tethered_cluster_may_come_back_to_its_own_nodes_through_one_pool() {
    let rome = || vec![cluster(ROME)];
    let snapshot = milan()
        .under(&allowing())
        .borrows_from_rome("cpu=6, pods=6", rome())
        .asks(ROME, "")
        .asks(TURIN, "cpu=1, pods=1");
    let asked = snapshot.clone().asked_by_rome().settled();
    let offer = asked.offer(ROME, DEFAULT_POOL).unwrap();
    assert_eq!(offer.path, [cluster(MILAN), cluster(ROME)]);
    assert!(offer.is_borrowed(), "its pods tolerate virtual nodes");
    let terms = serde_json::to_value(offer.node_selector).unwrap();
    assert_eq!(
        terms["nodeSelectorTerms"].as_array().unwrap().len(),
        2,
        "node rome, and milan's own nodes: {terms}"
    );
    assert!(terms.to_string().contains("NotIn"), "{terms}");
    let turin = asked.offer(TURIN, DEFAULT_POOL).unwrap();
    assert_eq!(
        (turin.path, turin.node_selector),
        (vec![cluster(MILAN)], None),
        "others get nothing of rome"
    );
    // Without the mode, nothing comes back.
    let ordinary = snapshot.settled().offer(ROME, DEFAULT_POOL).unwrap();
    assert_eq!((ordinary.path, ordinary.hops), (vec![cluster(MILAN)], 1));
}

#[test]
fn only_what_the_tethered_cluster_owns_itself_comes_back() {
    let through = vec![cluster(ROME), cluster(TURIN)];
    let snapshot = milan()
        .under(&allowing())
        .borrows_from_rome("cpu=6, pods=6", through)
        .asks(ROME, "")
        .asked_by_rome();
    assert_eq!(
        snapshot.settled().offer(ROME, DEFAULT_POOL).unwrap().path,
        [cluster(MILAN)]
    );
}

#[test]
fn the_answer_is_a_condition_of_the_request_and_says_when_nothing_is_asked_any_more() {
    let told = |snapshot: &ProviderSnapshot| {
        let found = snapshot
            .plan()
            .request_conditions
            .remove(0)
            .wanted
            .into_iter()
            .find(|one| one.kind == "Tethering");
        found.map(|condition| (condition.status, condition.reason))
    };
    let snapshot = milan().under(&allowing()).asks(ROME, "");
    assert_eq!(told(&snapshot), None);
    assert_eq!(
        told(&snapshot.clone().asked_by_rome()),
        Some((Some(true), "Granted".to_owned()))
    );
    let mut former = snapshot;
    let granted = json!({ "type": "Tethering", "status": "True", "reason": "Granted", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z" });
    Arc::make_mut(&mut former.requests[0].1).conditions =
        vec![serde_json::from_value(granted).unwrap()];
    assert_eq!(told(&former), Some((Some(false), "NotAsked".to_owned())));
}

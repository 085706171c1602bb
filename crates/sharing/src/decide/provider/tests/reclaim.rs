//! Refusals, withdrawals and reclaims.

use super::*;

#[test]
fn refused_resources_go_to_the_others_until_the_consumer_accepts_them() {
    let mut snapshot = milan()
        .asks(ROME, "")
        .asks(TURIN, "")
        .pod("mapped-1", Some(ROME), "cpu=2, pods=2")
        .settled();
    snapshot.answer(ROME, true);
    assert_eq!(
        snapshot.writes(),
        [write(ROME, "cpu=2, pods=2"), write(TURIN, "cpu=8, pods=8")]
    );
    let mut snapshot = snapshot.settled();
    assert_eq!(snapshot.writes(), []);
    // Without pods it keeps nothing.
    let unused = ProviderSnapshot {
        pods: Arc::default(),
        ..snapshot.clone()
    };
    assert_eq!(
        unused.writes(),
        [
            write(ROME, "cpu=0, pods=0"),
            write(TURIN, "cpu=10, pods=10")
        ]
    );
    snapshot.answer(ROME, false);
    assert_eq!(
        snapshot.writes(),
        [write(TURIN, "cpu=5, pods=5"), write(ROME, "cpu=5, pods=5")]
    );
}

#[test]
fn a_pool_without_nodes_is_withdrawn_with_notice() {
    let mut snapshot = milan()
        .node("b", "cpu=4", &[("zone", "east")])
        .under(&by_zone())
        .asks(ROME, "")
        .settled();
    assert!(snapshot.offer(ROME, "east").is_some());
    snapshot.nodes.retain(|(key, _)| key.name != "b");
    snapshot.add(romes_pod("east", "b", "cpu=1"));
    let snapshot = snapshot.at(1000).settled();
    let end = snapshot
        .offer(ROME, "east")
        .unwrap()
        .withdrawal_timestamp
        .unwrap();
    assert_eq!(end.0.as_second(), 1300);
    let plan = snapshot.plan();
    assert_eq!(
        (plan.writes, plan.deletions, plan.requeue_after),
        (vec![], vec![], Some(Duration::from_mins(5)))
    );
    // An unused pool goes at once.
    let unused = ProviderSnapshot {
        pods: Arc::default(),
        ..snapshot.clone()
    };
    assert_eq!(unused.plan().deletions.len(), 1);
    assert_eq!(snapshot.clone().at(1300).plan().deletions.len(), 1);
    // A pool with a new node is offered again.
    let back = snapshot.node("b", "cpu=4", &[("zone", "east")]).settled();
    assert_eq!(back.offer(ROME, "east").unwrap().withdrawal_timestamp, None);
}

#[test]
fn the_notice_of_a_deleted_policy_still_applies() {
    let policies = [(
        "default",
        0,
        json!({ "provide": { "percentage": 100, "noticeSeconds": 3600 } }),
    )];
    let snapshot = milan()
        .asks(ROME, "")
        .under(&policies)
        .pod("mapped-1", Some(ROME), "cpu=2, pods=1")
        .settled()
        .at(1000);
    assert_eq!(
        snapshot.offer(ROME, "default").unwrap().notice_seconds,
        Some(3600)
    );
    let end = |snapshot: ProviderSnapshot| {
        snapshot
            .settled()
            .offer(ROME, "default")
            .unwrap()
            .withdrawal_timestamp
            .unwrap()
            .0
            .as_second()
    };
    assert_eq!(end(snapshot.clone().under(&[])), 4600);
    // The notice of the policy that applies now counts.
    let by_zone = json!({ "provide": { "noticeSeconds": 60, "granularity": { "by": "NodeLabel", "label": "zone" } } });
    assert_eq!(end(snapshot.under(&[("default", 0, by_zone)])), 1060);
}

fn rome_is_silent_for(seconds: u64) -> HashMap<ClusterId, Silence> {
    HashMap::from([(
        cluster(ROME),
        Silence {
            lasts: Some(Duration::from_secs(seconds)),
            ended_offers: false,
        },
    )])
}

#[test]
fn what_an_absent_consumer_uses_is_taken_back_and_offered_again_when_it_is_back() {
    let policies = [(
        "default",
        0,
        json!({ "provide": { "percentage": 100, "absenceSeconds": 60 } }),
    )];
    let both = milan().under(&policies).asks(ROME, "").asks(TURIN, "").pod(
        "mapped-1",
        Some(ROME),
        "cpu=2, pods=2",
    );
    let silent = ProviderSnapshot {
        silences: rome_is_silent_for(0),
        ..both.settled()
    };
    let waiting = silent.clone().at(1000).plan();
    assert_eq!(
        (waiting.writes, waiting.requeue_after),
        (vec![], Some(Duration::from_mins(1)))
    );
    let absent = ProviderSnapshot {
        silences: rome_is_silent_for(60),
        ..silent.clone()
    }
    .at(1060);
    assert_eq!(
        absent.writes(),
        [write(ROME, "cpu=5, pods=5"), write(TURIN, "cpu=8, pods=8")],
        "its pods still run"
    );
    let plan = absent.plan();
    let (shown, told) = (
        &plan.peer_conditions[&cluster(ROME)],
        &plan.request_conditions[0].wanted[0],
    );
    assert_eq!(
        (shown.reason.as_str(), shown.status, told.reason.as_str()),
        ("ConsumerAbsent", Some(false), "ConsumerAbsent")
    );
    assert!(
        shown.message.contains("policy default") && !told.message.contains("policy"),
        "consumers see no names of policies"
    );
    let absent = absent.settled();
    assert_eq!(
        absent
            .offer(ROME, "default")
            .unwrap()
            .withdrawal_timestamp
            .unwrap()
            .0
            .as_second(),
        1060,
        "without a further notice"
    );
    let ending = absent.clone().at(1070).plan();
    assert_eq!(
        (ending.writes, ending.deletions, ending.requeue_after),
        (vec![], vec![], None),
        "nothing is written until they end"
    );
    let ended = ProviderSnapshot {
        pods: Arc::default(),
        ..absent
    }
    .at(1080)
    .settled();
    assert_eq!(
        (ended.offer(ROME, "default"), ended.writes()),
        (None, vec![])
    );
    assert_eq!(
        ended.offer(TURIN, "default").unwrap().resource_quota.hard,
        list("cpu=10, pods=10")
    );
    let back = ProviderSnapshot {
        silences: HashMap::new(),
        ..ended
    };
    assert_eq!(
        back.writes(),
        [write(TURIN, "cpu=5, pods=5"), write(ROME, "cpu=5, pods=5")]
    );
    assert_eq!(
        back.plan().peer_conditions[&cluster(ROME)].reason,
        "Offered"
    );
}

#[test]
fn a_consumer_that_is_back_in_time_keeps_its_pods() {
    let policies = [(
        "default",
        0,
        json!({ "provide": { "percentage": 100, "absenceSeconds": 60 } }),
    )];
    let used = milan()
        .under(&policies)
        .asks(ROME, "")
        .pod("mapped-1", Some(ROME), "cpu=2, pods=2")
        .settled();
    let absent = ProviderSnapshot {
        silences: rome_is_silent_for(60),
        ..used.clone()
    }
    .at(60)
    .settled();
    let back = ProviderSnapshot {
        silences: HashMap::new(),
        ..absent
    }
    .at(61)
    .settled();
    assert_eq!(
        back.offer(ROME, "default").unwrap().withdrawal_timestamp,
        None,
        "its pods had not ended yet"
    );
    let unlimited = [("default", 0, json!({ "provide": { "percentage": 100 } }))];
    let silent = ProviderSnapshot {
        silences: rome_is_silent_for(1_000_000),
        ..used.under(&unlimited)
    }
    .at(1_000_000)
    .settled();
    assert_eq!(
        silent.offer(ROME, "default").unwrap().withdrawal_timestamp,
        None,
        "the policy names no time"
    );
}

#[test]
fn use_beyond_a_new_cap_is_reclaimed_after_the_notice() {
    let snapshot = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10").pod(
        "mapped-1",
        Some(ROME),
        "cpu=8, pods=8",
    );
    let capped = [(
        "default",
        0,
        json!({ "provide": { "percentage": 100, "caps": { "cpu": "2" }, "noticeSeconds": 60 } }),
    )];
    let snapshot = snapshot.under(&capped).at(1000).settled();
    let offer = snapshot.offer(ROME, "default").unwrap();
    assert_eq!(offer.resource_quota.hard, list("cpu=8, pods=10"));
    assert_eq!(offer.reclaim_timestamp.unwrap().0.as_second(), 1060);
    assert_eq!(
        offer.reclaim_to,
        Some(list("cpu=2, pods=10")),
        "what it will be is known before"
    );
    assert_eq!(
        (snapshot.plan().writes, snapshot.plan().requeue_after),
        (vec![], Some(Duration::from_mins(1)))
    );
    let snapshot = snapshot.at(1060).settled();
    let offer = snapshot.offer(ROME, "default").unwrap();
    assert_eq!(
        (offer.resource_quota.hard, offer.reclaim_to),
        (list("cpu=2, pods=10"), None)
    );
    // When the pods are gone, the end of the notice is removed at once: the next notice must not be
    // over from the beginning.
    let mut gone = ProviderSnapshot {
        pods: Arc::default(),
        ..snapshot.clone()
    };
    let written = RecentWrite {
        at: Instant::now(),
        hard: list("cpu=2, pods=10"),
        prices: None,
        is_early: false,
    };
    gone.recent_writes
        .insert(("tenant-1".into(), DEFAULT_POOL.into()), written);
    assert_eq!(gone.writes(), [write(ROME, "cpu=2, pods=10")]);
    let offer = ProviderSnapshot {
        pods: Arc::default(),
        ..snapshot
    }
    .settled()
    .offer(ROME, "default")
    .unwrap();
    assert_eq!(
        (offer.resource_quota.hard, offer.reclaim_timestamp),
        (list("cpu=2, pods=10"), None)
    );
}

#[test]
fn neither_another_peer_nor_own_pods_take_used_resources_without_a_notice() {
    let used = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10").pod(
        "mapped-1",
        Some(ROME),
        "cpu=8, pods=8",
    );
    assert_eq!(
        used.clone()
            .asks(TURIN, "")
            .settled()
            .offer(ROME, "default")
            .unwrap()
            .reclaim_timestamp,
        None
    );
    // Own pods leave less than the peer uses. The peer gets notice, and keeps its resources until
    // the end of it.
    let offer = used
        .pod("default", None, "cpu=5, pods=1")
        .settled()
        .offer(ROME, "default")
        .unwrap();
    assert_eq!(
        (offer.resource_quota.hard, offer.reclaim_timestamp.is_some()),
        (list("cpu=8, pods=9"), true)
    );
}

#[test]
fn overuse_within_the_threshold_is_not_reclaimed() {
    let used = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10").pod(
        "mapped-1",
        Some(ROME),
        "cpu=10, pods=5",
    );
    let crowded = |own: &str| {
        used.clone()
            .pod("default", None, own)
            .settled()
            .offer(ROME, "default")
            .unwrap()
    };
    assert_eq!(crowded("cpu=300m").reclaim_timestamp, None);
    assert!(crowded("cpu=1").reclaim_timestamp.is_some());
}

#[test]
fn a_reclaim_is_exact_whatever_the_threshold() {
    // 10 of 9.4 cpu are used. After the notice the offer shrinks, although the difference is little
    // more than the threshold.
    let used = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10").pod(
        "mapped-1",
        Some(ROME),
        "cpu=10, pods=5",
    );
    let noticed = used.pod("default", None, "cpu=600m").settled();
    assert_eq!(
        noticed
            .offer(ROME, "default")
            .unwrap()
            .resource_quota
            .hard
            .get("cpu"),
        list("cpu=10").get("cpu")
    );
    let due = noticed.at(301).settled();
    assert_eq!(
        due.offer(ROME, "default")
            .unwrap()
            .resource_quota
            .hard
            .get("cpu"),
        list("cpu=9400m").get("cpu")
    );
    // When the pods have ended, the reclaim is over.
    let mut less = due;
    Arc::make_mut(&mut less.pods).retain(|pod| pod.owner.is_none());
    assert_eq!(
        less.settled()
            .offer(ROME, "default")
            .unwrap()
            .reclaim_timestamp,
        None
    );
}

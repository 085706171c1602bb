//! Requests and their answers.

use super::*;

#[test]
fn a_request_is_answered_with_an_offer_that_names_its_origin() {
    let mut snapshot = milan().asks(ROME, "");
    snapshot.cluster_labels.insert("tier".into(), "gold".into());
    let plan = snapshot.plan();
    let [offer] = plan.writes.as_slice() else {
        panic!("{plan:?}")
    };
    assert_eq!(offer.namespace, tenant_namespace(&cluster(ROME)));
    assert_eq!(offer.spec.cluster_id, cluster(MILAN));
    assert_eq!(offer.spec.path, [cluster(MILAN)]);
    assert_eq!(offer.spec.pool, DEFAULT_POOL);
    assert_eq!(offer.spec.labels, snapshot.cluster_labels);
    assert_eq!(offer.spec.resource_quota.hard, list("cpu=10, pods=10"));
    assert_eq!(plan.request_conditions[0].wanted[0].status, Some(true));
    assert_eq!(plan.peer_conditions[&cluster(ROME)].status, Some(true));
}

#[test]
fn a_settled_cluster_plans_no_write() {
    let plan = milan()
        .asks(ROME, "")
        .offers(ROME, "cpu=10, pods=10")
        .plan();
    assert_eq!(
        (plan.writes, plan.deletions, plan.requeue_after),
        (Vec::new(), Vec::new(), None)
    );
}

#[test]
fn a_consumers_own_pods_do_not_shrink_its_offer_but_other_pods_do() {
    let snapshot = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10");
    let its_own = snapshot
        .clone()
        .pod("mapped-1", Some(ROME), "cpu=8, pods=8");
    assert_eq!(
        its_own.writes(),
        [write(ROME, "cpu=10, pods=10")],
        "only what is left on the node is less"
    );
    assert_eq!(
        snapshot.pod("default", None, "cpu=4, pods=1").writes(),
        [write(ROME, "cpu=6, pods=9")]
    );
}

#[test]
fn an_owner_label_counts_only_in_a_mapped_namespace_of_that_consumer() {
    let snapshot = milan()
        .asks(ROME, "")
        .asks(TURIN, "")
        .offers(ROME, "cpu=5, pods=5")
        .offers(TURIN, "cpu=5, pods=5");
    for namespace in ["default", "mapped-2", &tenant_namespace(&cluster(ROME))] {
        let forged = snapshot.clone().pod(namespace, Some(ROME), "cpu=4, pods=4");
        assert_eq!(
            forged.writes(),
            [write(ROME, "cpu=3, pods=3"), write(TURIN, "cpu=3, pods=3")],
            "{namespace}"
        );
    }
}

#[test]
fn pods_of_a_consumer_without_a_request_still_occupy_their_nodes() {
    let snapshot =
        milan()
            .tenant(TURIN)
            .asks(ROME, "")
            .pod("mapped-2", Some(TURIN), "cpu=4, pods=1");
    assert_eq!(snapshot.writes(), [write(ROME, "cpu=6, pods=9")]);
}

#[test]
fn pods_of_another_pool_are_not_charged_to_the_default_one() {
    let mut snapshot = milan().asks(ROME, "");
    let pod = PodUsage {
        node: Some("a".into()),
        resources: list("cpu=4, pods=1").into(),
        ..PodUsage::default()
    };
    snapshot.add(PodUsage {
        owner: Some(owner("mapped-1", ROME, "other")),
        ..pod
    });
    assert_eq!(snapshot.writes(), [write(ROME, "cpu=6, pods=9")]);
}

#[test]
fn a_second_consumer_gets_its_share_after_the_first_offer_shrinks() {
    let snapshot = milan()
        .asks(TURIN, "")
        .offers(TURIN, "cpu=10, pods=10")
        .asks(ROME, "");
    assert_eq!(
        snapshot.writes(),
        [write(TURIN, "cpu=5, pods=5"), write(ROME, "cpu=5, pods=5")]
    );
}

#[test]
fn an_offer_without_a_request_is_deleted() {
    let plan = milan().tenant(ROME).offers(ROME, "cpu=10").plan();
    assert_eq!(
        plan.deletions,
        [Key::new(tenant_namespace(&cluster(ROME)), DEFAULT_POOL)]
    );
    assert!(
        !plan.peer_conditions.contains_key(&cluster(ROME)),
        "it may only use the network"
    );
}

#[test]
fn received_offers_stay_unchanged() {
    let mut snapshot = milan();
    let mut offer = ResourceOffer::new(DEFAULT_POOL, offer_of(MILAN, "cpu=1"));
    offer.metadata.namespace = Some(provider_namespace(&cluster(ROME)));
    snapshot.offers.push((Key::of_object(&offer), offer.into()));
    assert_eq!(
        ProviderPlan {
            policy_statuses: Vec::new(),
            ..snapshot.plan()
        },
        ProviderPlan::default()
    );
}

#[test]
fn a_request_outside_a_tenant_namespace_is_ignored() {
    assert_eq!(
        ProviderPlan {
            policy_statuses: Vec::new(),
            ..milan().request(ROME, "").plan()
        },
        ProviderPlan::default()
    );
}

#[test]
fn nothing_is_written_into_a_namespace_that_is_being_deleted() {
    let mut snapshot = milan().asks(ROME, "").offers(ROME, "cpu=1");
    let name = tenant_namespace(&cluster(ROME));
    let going = TenancyNamespace {
        terminating: true,
        ..(*snapshot.namespaces[&name]).clone()
    };
    snapshot.namespaces.insert(name, going.into());
    assert_eq!(
        ProviderPlan {
            policy_statuses: Vec::new(),
            ..snapshot.plan()
        },
        ProviderPlan::default()
    );
}

#[test]
fn without_a_policy_nothing_is_shared_and_the_answer_gives_the_reason() {
    let nothing = policy("default", 0, json!({ "provide": { "percentage": 0 } }));
    for (policies, reason) in [(vec![], "NoPolicy"), (vec![nothing], "NothingShared")] {
        let snapshot = ProviderSnapshot {
            policies,
            ..milan().asks(ROME, "")
        };
        let plan = snapshot.plan();
        assert_eq!(plan.writes, []);
        assert_eq!(plan.request_conditions[0].wanted[0].reason, reason);
        assert_eq!(plan.peer_conditions[&cluster(ROME)].reason, reason);
    }
}

#[test]
fn running_pods_keep_their_resources_when_the_policy_shares_nothing_any_more() {
    let snapshot = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10").pod(
        "mapped-1",
        Some(ROME),
        "cpu=2, pods=1",
    );
    assert_eq!(
        ProviderSnapshot {
            policies: vec![policy(
                "default",
                0,
                json!({ "provide": { "percentage": 0 } })
            )],
            ..snapshot
        }
        .writes(),
        [write(ROME, "cpu=2, pods=1")]
    );
}

#[test]
fn a_full_cluster_answers_that_nothing_is_free() {
    let plan = milan()
        .asks(ROME, "")
        .pod("default", None, "cpu=10, pods=10")
        .plan();
    assert_eq!(plan.writes, []);
    assert_eq!(plan.request_conditions[0].wanted[0].reason, "NothingFree");
}

#[test]
fn an_unreadable_request_hurts_only_its_consumer() {
    let mut snapshot = milan().tenant(ROME).asks(TURIN, "");
    let request = ConsumerRequest {
        resources: Err("no".into()),
        ..ConsumerRequest::default()
    };
    snapshot.requests.push((
        Key::new(tenant_namespace(&cluster(ROME)), RESOURCE_REQUEST),
        request.into(),
    ));
    assert_eq!(snapshot.writes(), [write(TURIN, "cpu=10, pods=10")]);
    assert_eq!(
        snapshot.plan().peer_conditions[&cluster(ROME)].reason,
        "Unreadable"
    );
}

#[test]
fn requests_with_another_name_are_ignored() {
    let mut snapshot = milan().tenant(ROME);
    let request = ConsumerRequest::default();
    snapshot.requests.push((
        Key::new(tenant_namespace(&cluster(ROME)), "another"),
        request.into(),
    ));
    assert_eq!(snapshot.writes(), []);
}

#[test]
fn a_recent_write_counts_although_the_cache_shows_the_old_offer() {
    let mut snapshot = milan()
        .asks(ROME, "cpu=5, pods=10")
        .offers(ROME, "cpu=10, pods=10");
    let at = Instant::now();
    snapshot.recent_writes.insert(
        ("tenant-1".into(), DEFAULT_POOL.into()),
        RecentWrite {
            at,
            hard: list("cpu=5, pods=10"),
            prices: None,
            is_early: false,
        },
    );
    let plan = decide_offers(&snapshot, at);
    assert_eq!((plan.writes, plan.requeue_after), (Vec::new(), None));
}

#[test]
fn a_consumer_that_comes_back_in_a_new_namespace_is_answered_at_once() {
    let mut snapshot = milan().asks(ROME, "");
    let at = Instant::now();
    snapshot.recent_writes.insert(
        ("an earlier namespace".into(), DEFAULT_POOL.into()),
        RecentWrite {
            at,
            hard: list("cpu=10, pods=10"),
            prices: None,
            is_early: false,
        },
    );
    assert_eq!(decide_offers(&snapshot, at).writes.len(), 1);
}

#[test]
fn a_changed_cluster_label_is_published() {
    let mut snapshot = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10");
    snapshot.cluster_labels.insert("tier".into(), "gold".into());
    assert_eq!(
        snapshot.plan().writes[0].spec.labels,
        snapshot.cluster_labels
    );
}

#[test]
fn a_cluster_that_does_not_enforce_network_policies_offers_nothing_and_says_why() {
    let refused = ProviderSnapshot {
        lending: Lending::Refused,
        ..milan().asks(ROME, "")
    };
    let plan = refused.plan();
    assert_eq!(plan.writes, []);
    let (told, local) = (
        &plan.request_conditions[0].wanted[0],
        &plan.peer_conditions[&cluster(ROME)],
    );
    for condition in [told, local] {
        assert_eq!(
            (condition.status, condition.reason.as_str()),
            (Some(false), "NotIsolated")
        );
        assert!(
            condition
                .message
                .contains("does not enforce NetworkPolicies"),
            "{}",
            condition.message
        );
    }
    assert!(
        local.message.contains("ClusterConfig liqo") && !told.message.contains("ClusterConfig")
    );
    let allowed = ProviderSnapshot {
        lending: Lending::Allowed,
        ..refused
    };
    assert_eq!(allowed.writes(), [write(ROME, "cpu=10, pods=10")]);
}

#[test]
fn offers_of_a_cluster_that_enforces_network_policies_no_more_are_withdrawn_with_notice() {
    let lent = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10").pod(
        "mapped-1",
        Some(ROME),
        "cpu=4, pods=4",
    );
    let refused = ProviderSnapshot {
        lending: Lending::Refused,
        ..lent
    }
    .at(1000);
    let withdrawn = refused.clone().settled();
    let offer = withdrawn.offer(ROME, DEFAULT_POOL).unwrap();
    assert!(
        offer
            .withdrawal_timestamp
            .is_some_and(|end| end.0 > refused.wall_time),
        "pods that run have time to move"
    );
    assert_eq!(withdrawn.plan().deletions, [], "before the notice is over");
    // It is enforced again before the notice is over.
    let again = ProviderSnapshot {
        lending: Lending::Isolated,
        ..withdrawn.clone()
    }
    .settled();
    assert_eq!(
        again
            .offer(ROME, DEFAULT_POOL)
            .unwrap()
            .withdrawal_timestamp,
        None
    );
    assert_eq!(withdrawn.at(100_000).plan().deletions.len(), 1);
}

#[test]
fn before_the_first_test_of_the_pod_network_only_offers_that_exist_stay() {
    let snapshot = milan()
        .asks(ROME, "")
        .offers(ROME, "cpu=10, pods=10")
        .asks(TURIN, "");
    let untested = ProviderSnapshot {
        lending: Lending::Untested,
        ..snapshot
    };
    let plan = untested.plan();
    assert_eq!((plan.writes, plan.deletions), (Vec::new(), Vec::new()));
    assert_eq!(plan.peer_conditions[&cluster(ROME)].reason, "Offered");
    assert_eq!(plan.peer_conditions[&cluster(TURIN)].reason, "NotIsolated");
}

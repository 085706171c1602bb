use serde_json::json;

use super::*;
use crate::{
    finding::CheckVerdict,
    inspect::{
        CredentialLifetime,
        fixtures::{NOW, condition, facts, lease, milan, of},
    },
};

fn set(facts: &mut ClusterFacts, kind: &str, status: &str, reason: &str) {
    let conditions = &mut facts.liqo.peers.as_mut().unwrap()[0]
        .status
        .as_mut()
        .unwrap()
        .conditions;
    conditions.retain(|condition| condition.type_ != kind);
    conditions.push(condition(kind, status, reason));
}

fn verdict(facts: &ClusterFacts, check: Check) -> CheckFinding {
    check_peers(facts)
        .into_iter()
        .find(|one| one.check == check)
        .unwrap()
}

#[test]
fn a_peer_that_works_has_no_fault() {
    let found = check_peers(&facts());
    assert!(
        found
            .iter()
            .all(|one| one.verdict == CheckVerdict::Ok && one.peer.as_deref() == Some("milan")),
        "{found:#?}"
    );
    assert!(found.iter().any(|one| one.check == Check::TunnelConnected));
}

#[test]
fn the_first_broken_link_is_the_cause_and_the_others_follow() {
    let mut facts = facts();
    set(&mut facts, links::AUTHENTICATED, "False", "TokenInvalid");
    for kind in [
        links::PEER_REACHABLE,
        links::OFFER_ACCEPTED,
        links::NETWORK_AGREED,
        links::TUNNEL_CONNECTED,
    ] {
        set(&mut facts, kind, "False", "Whatever");
    }
    let found = verdict(&facts, Check::Authenticated);
    assert_eq!(found.verdict, CheckVerdict::Fail);
    assert!(found.advice.unwrap().contains("generate peer-command"));
    for check in [
        Check::PeerReachable,
        Check::OfferAccepted,
        Check::NetworkAgreed,
        Check::TunnelConnected,
    ] {
        let found = verdict(&facts, check);
        assert_eq!(
            (found.verdict, found.what.as_str()),
            (CheckVerdict::Skipped, "follows from authenticated")
        );
    }
    assert_eq!(
        verdict(&facts, Check::ResourcesRequested).verdict,
        CheckVerdict::Ok,
        "what still is, is said"
    );
    assert_eq!(
        check_peers(&facts)
            .iter()
            .filter(|one| one.verdict == CheckVerdict::Fail)
            .count(),
        1
    );
}

#[test]
fn one_that_is_called_through_its_tunnel_is_not_looked_for_by_tcp() {
    let mut facts = facts();
    for kind in [links::IDENTITY_VERIFIED, links::PEER_REACHABLE] {
        set(
            &mut facts,
            kind,
            "False",
            liqo_api::CallReason::Unreachable.as_str(),
        );
    }
    let advice = |facts: &ClusterFacts| verdict(facts, Check::IdentityVerified).advice.unwrap();
    assert!(advice(&facts).contains("(TCP)"));
    let gateway = json!({ "publicKey": "k", "endpoints": ["203.0.113.5:51840"] });
    facts.liqo.peers.as_mut().unwrap()[0].spec.tunnel =
        vec![serde_json::from_value(gateway).unwrap()];
    assert!(advice(&facts).starts_with("UDP from this cluster"));
}

#[test]
fn a_tunnel_alone_is_its_own_cause() {
    let mut facts = facts();
    set(&mut facts, links::TUNNEL_CONNECTED, "False", "NoAnswer");
    let found = verdict(&facts, Check::TunnelConnected);
    assert_eq!(found.verdict, CheckVerdict::Fail);
    assert!(found.advice.unwrap().contains("let UDP"));
}

#[test]
fn a_tunnel_over_tls_is_worth_a_look() {
    let mut facts = facts();
    set(
        &mut facts,
        links::TUNNEL_CONNECTED,
        "True",
        TunnelReason::ConnectedOverTls.as_str(),
    );
    let found = verdict(&facts, Check::TunnelConnected);
    assert!(found.verdict == CheckVerdict::Warn && found.advice.unwrap().contains("let UDP"));
}

#[test]
fn a_peer_for_the_network_alone_needs_no_offer() {
    let mut facts = facts();
    let peer = &mut facts.liqo.peers.as_mut().unwrap()[0];
    peer.spec.request.network_only = true;
    let resources = [
        links::RESOURCES_REQUESTED,
        links::OFFER_ACCEPTED,
        links::VIRTUAL_NODES_READY,
    ];
    peer.status
        .as_mut()
        .unwrap()
        .conditions
        .retain(|one| !resources.contains(&one.type_.as_str()));
    let found = check_peers(&facts);
    assert!(
        found.iter().all(|one| one.verdict == CheckVerdict::Ok),
        "{found:#?}"
    );
}

#[test]
fn a_peer_for_the_network_alone_needs_a_network() {
    let mut facts = facts();
    let peer = &mut facts.liqo.peers.as_mut().unwrap()[0];
    peer.spec.request.network_only = true;
    peer.status
        .as_mut()
        .unwrap()
        .conditions
        .retain(|one| !links::NETWORK.contains(&one.type_.as_str()));
    assert_eq!(
        verdict(&facts, Check::NetworkAgreed).verdict,
        CheckVerdict::Unknown,
        "it was just made"
    );
    facts.liqo.peers.as_mut().unwrap()[0]
        .metadata
        .creation_timestamp = Some(liqo_api::Time("2026-01-01T11:00:00Z".parse().unwrap()));
    let found = verdict(&facts, Check::NetworkAgreed);
    assert!(
        found.verdict == CheckVerdict::Fail
            && found
                .advice
                .unwrap()
                .contains("network.enabled of ClusterConfig liqo")
    );
    facts.liqo.peers.as_mut().unwrap()[0]
        .spec
        .request
        .network_only = false;
    assert!(
        check_peers(&facts)
            .iter()
            .all(|one| one.check != Check::NetworkAgreed),
        "nobody wants one"
    );
}

#[test]
fn a_tunnel_that_cannot_be_read_is_not_believed_of_a_silent_manager() {
    let mut facts = facts();
    facts.leases.as_mut().unwrap()[0] = lease(crate::manifests::MANAGER, "manager-1", 600, 0);
    facts.liqo.tunnels = Err("cannot list tunnels".to_owned());
    assert_eq!(
        verdict(&facts, Check::TunnelConnected).verdict,
        CheckVerdict::Unknown
    );
}

#[test]
fn what_waits_for_a_person_is_no_fault() {
    let mut facts = facts();
    set(
        &mut facts,
        links::OFFER_ACCEPTED,
        "False",
        "ManualActionRequired",
    );
    set(
        &mut facts,
        links::VIRTUAL_NODES_READY,
        "False",
        "NoVirtualNode",
    );
    let found = verdict(&facts, Check::OfferAccepted);
    assert!(
        found.verdict == CheckVerdict::Warn
            && found.advice.unwrap().contains("liqoctl offer accept milan")
    );
    assert_eq!(
        verdict(&facts, Check::VirtualNodesReady).verdict,
        CheckVerdict::Skipped
    );
}

#[test]
fn what_is_not_decided_is_a_fault_after_a_while() {
    let mut facts = facts();
    set(&mut facts, links::NETWORK_AGREED, "Unknown", "NotAnnounced");
    assert_eq!(
        verdict(&facts, Check::NetworkAgreed).verdict,
        CheckVerdict::Unknown
    );
    facts.api_server.date =
        Some(NOW.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(600));
    facts.leases = Err("not read".to_owned());
    assert_eq!(
        verdict(&facts, Check::NetworkAgreed).verdict,
        CheckVerdict::Fail
    );
}

#[test]
fn what_a_silent_manager_wrote_is_not_believed() {
    let mut facts = facts();
    facts.leases.as_mut().unwrap()[0] = lease(crate::manifests::MANAGER, "manager-1", 600, 0);
    set(&mut facts, links::TUNNEL_CONNECTED, "False", "NoAnswer");
    set(&mut facts, links::AUTHENTICATED, "False", "TokenInvalid");
    for check in [Check::Authenticated, Check::PeerReachable] {
        assert_eq!(verdict(&facts, check).verdict, CheckVerdict::Unknown);
    }
    assert_eq!(
        verdict(&facts, Check::TunnelConnected).verdict,
        CheckVerdict::Ok,
        "the gateway itself tells"
    );
    set(&mut facts, links::AUTHENTICATED, "True", "Granted");
    set(&mut facts, links::TUNNEL_CONNECTED, "True", "Connected");
    facts.leases = Ok(vec![lease(crate::manifests::MANAGER, "manager-1", 1, 0)]);
    assert_eq!(
        verdict(&facts, Check::PeerReachable).verdict,
        CheckVerdict::Ok
    );
    assert_eq!(
        verdict(&facts, Check::TunnelConnected).verdict,
        CheckVerdict::Unknown,
        "no gateway is alive"
    );
}

#[test]
fn a_credential_that_is_not_renewed_is_noticed() {
    let mut facts = facts();
    let now: Timestamp = NOW.parse().unwrap();
    let mut with = |left: i64| {
        let expires_at = now + SignedDuration::from_secs(left);
        let credential = CredentialLifetime {
            issued_at: expires_at - SignedDuration::from_hours(1),
            expires_at,
        };
        facts.credentials.insert(milan(), Ok(Some(credential)));
        verdict(&facts, Check::Credential).verdict
    };
    assert_eq!(
        [with(1800), with(600), with(-1)],
        [CheckVerdict::Ok, CheckVerdict::Warn, CheckVerdict::Fail]
    );
    facts.credentials.insert(milan(), Ok(None));
    assert_eq!(
        verdict(&facts, Check::Credential).verdict,
        CheckVerdict::Fail
    );
}

#[test]
fn offers_that_end_wait_or_are_empty_are_shown() {
    let mut facts = facts();
    let mut with = |spec: serde_json::Value, phase: &str| {
        let mut offer = json!({
            "metadata": { "name": "default", "namespace": provider_namespace(&milan()) },
            "spec": { "clusterID": milan(), "pool": "default", "resourceQuota": { "hard": { "cpu": "2" } } },
            "status": { "phase": phase },
        });
        offer["spec"]
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        facts.liqo.offers = Ok(vec![of(offer)]);
        verdict(&facts, Check::Offers).verdict
    };
    assert_eq!(with(json!({}), "Accepted"), CheckVerdict::Ok);
    assert_eq!(with(json!({}), "ManualActionRequired"), CheckVerdict::Warn);
    assert_eq!(with(json!({}), "Refused"), CheckVerdict::Warn);
    assert_eq!(
        with(json!({ "withdrawalTimestamp": NOW }), "Accepted"),
        CheckVerdict::Warn
    );
    assert_eq!(
        with(json!({ "reclaimTimestamp": NOW }), "Accepted"),
        CheckVerdict::Warn
    );
    assert_eq!(
        with(
            json!({ "resourceQuota": { "hard": { "cpu": "0" } } }),
            "Accepted"
        ),
        CheckVerdict::Warn
    );
}

#[test]
fn an_offer_that_costs_too_much_says_so() {
    let mut facts = facts();
    let mut with = |phase: &str, message: &str| {
        let offer = json!({
            "metadata": { "name": "default", "namespace": provider_namespace(&milan()) },
            "spec": { "clusterID": milan(), "pool": "default", "resourceQuota": { "hard": { "cpu": "2" } } },
            "status": { "phase": phase, "message": message },
        });
        facts.liqo.offers = Ok(vec![of(offer)]);
        let found = verdict(&facts, Check::Offers);
        (found.verdict, found.what)
    };
    let closed = "no new pods: cpu costs 0.05 EUR";
    assert_eq!(
        with("Accepted", closed),
        (CheckVerdict::Warn, format!("pool default: {closed}"))
    );
    assert_eq!(
        with("Accepted", "the node has no label x").0,
        CheckVerdict::Ok
    );
    assert_eq!(
        with("Pending", "cpu costs too much"),
        (
            CheckVerdict::Warn,
            "pool default waits: cpu costs too much".to_owned()
        )
    );
    assert_eq!(with("Pending", "").0, CheckVerdict::Unknown);
}

#[test]
fn a_kubelet_that_nobody_signs_for_is_shown() {
    let mut facts = facts();
    let mut with = |status: &str| {
        facts.liqo.virtual_nodes = Ok(vec![of(json!({
            "metadata": { "name": "default", "namespace": provider_namespace(&milan()) },
            "spec": { "clusterID": milan(), "clusterName": "milan", "pool": "default", "resources": {} },
            "status": { "nodeName": "milan", "conditions": [condition("KubeletServing", status, "x")] },
        }))]);
        verdict(&facts, Check::KubeletServing).verdict
    };
    assert_eq!(
        (with("True"), with("False")),
        (CheckVerdict::Ok, CheckVerdict::Warn)
    );
}

#[test]
fn a_consumer_that_is_silent_or_has_lost_its_namespace_is_shown() {
    let mut facts = facts();
    let tenant = tenant_namespace(&milan());
    facts.liqo.peers.as_mut().unwrap()[0]
        .status
        .as_mut()
        .unwrap()
        .tenant_namespace = Some(tenant.clone());
    for kind in links::LENDING {
        set(&mut facts, kind, "True", "Fine");
    }
    facts.namespaces = Ok(vec![of(json!({ "metadata": { "name": tenant } }))]);
    assert_eq!(
        verdict(&facts, Check::TenantNamespace).verdict,
        CheckVerdict::Ok
    );
    facts.liqo.peers.as_mut().unwrap()[0]
        .status
        .as_mut()
        .unwrap()
        .conditions
        .retain(|one| one.type_ != links::RESOURCES_OFFERED);
    assert_eq!(
        verdict(&facts, Check::ResourcesOffered).verdict,
        CheckVerdict::Skipped,
        "it asks for nothing"
    );
    set(&mut facts, links::CONSUMER_REACHABLE, "False", "Silent");
    assert_eq!(
        verdict(&facts, Check::ConsumerReachable).verdict,
        CheckVerdict::Fail
    );
    facts.namespaces = Ok(Vec::new());
    assert_eq!(
        verdict(&facts, Check::TenantNamespace).verdict,
        CheckVerdict::Fail
    );
}

#[test]
fn a_peering_that_does_not_end_is_shown() {
    let mut facts = facts();
    let now: Timestamp = NOW.parse().unwrap();
    let mut ending_for = |seconds: i64| {
        let peer = &mut facts.liqo.peers.as_mut().unwrap()[0];
        peer.metadata.deletion_timestamp =
            Some(liqo_api::Time(now - SignedDuration::from_secs(seconds)));
        check_peers(&facts).last().unwrap().verdict
    };
    assert_eq!(
        (ending_for(10), ending_for(600)),
        (CheckVerdict::Skipped, CheckVerdict::Warn)
    );
}

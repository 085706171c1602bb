use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::*;
use crate::{
    finding::CheckVerdict,
    inspect::fixtures::{NOW, condition, facts, lease, of, slice},
};

fn verdict(facts: &ClusterFacts, check: Check) -> CheckFinding {
    check_cluster(facts)
        .into_iter()
        .find(|one| one.check == check)
        .unwrap()
}

fn config(facts: &mut ClusterFacts) -> &mut liqo_api::ClusterConfig {
    facts.liqo.config.as_mut().unwrap().as_mut().unwrap()
}

/// A CA and a certificate that are valid from 2025 to 2030.
fn certificate() -> WebhookCertificate {
    let lasts = |mut params: CertificateParams| {
        (params.not_before, params.not_after) = (
            rcgen::date_time_ymd(2025, 1, 1),
            rcgen::date_time_ymd(2030, 1, 1),
        );
        params
    };
    let (ca_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut ca = lasts(CertificateParams::default());
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let leaf = lasts(CertificateParams::new(["liqo-webhook.liqo.svc".to_owned()]).unwrap());
    let signed = ca.self_signed(&ca_key).unwrap().pem();
    WebhookCertificate {
        ca: signed,
        leaf: leaf
            .signed_by(&key, &Issuer::from_params(&ca, &ca_key))
            .unwrap()
            .pem(),
    }
}

/// The webhook's configuration with one entry, for which the API server trusts this CA.
fn configuration(ca: &str) -> MutatingWebhookConfiguration {
    of(
        json!({ "metadata": {}, "webhooks": [{ "name": "remote.liqo.io", "admissionReviewVersions": [], "sideEffects": "None",
        "clientConfig": { "caBundle": k8s_openapi::ByteString(ca.as_bytes().to_vec()) } }] }),
    )
}

#[test]
fn a_cluster_that_is_well_has_no_fault() {
    let mut facts = facts();
    let certificate = certificate();
    facts.webhook = Ok(Some(configuration(&certificate.ca)));
    facts.webhook_certificate = Ok(Some(certificate));
    let found = check_cluster(&facts);
    assert!(
        found.iter().all(|one| one.verdict == CheckVerdict::Ok),
        "{found:#?}"
    );
    assert_eq!(found.len(), 12);
}

#[test]
fn old_versions_of_kubernetes_are_named() {
    let mut facts = facts();
    let mut with = |minor: Option<u32>| {
        facts.api_server.minor = minor;
        verdict(&facts, Check::KubernetesVersion).verdict
    };
    assert_eq!(
        [with(Some(28)), with(Some(29)), with(Some(30)), with(None)],
        [
            CheckVerdict::Fail,
            CheckVerdict::Warn,
            CheckVerdict::Ok,
            CheckVerdict::Unknown
        ]
    );
}

#[test]
fn what_may_not_be_read_is_listed() {
    let mut facts = facts();
    facts.refused = vec!["list nodes".to_owned()];
    assert!(
        verdict(&facts, Check::OwnRights)
            .what
            .ends_with("may not list nodes")
    );
}

#[test]
fn without_liqo_nothing_more_is_judged() {
    let mut facts = facts();
    facts.liqo.config = Ok(None);
    let found = check_cluster(&facts);
    assert_eq!(
        (found.last().unwrap().check, found.last().unwrap().verdict),
        (Check::Installed, CheckVerdict::Fail)
    );
    assert_eq!(found.len(), 4);
}

#[test]
fn a_cluster_without_identity_and_another_version_are_shown() {
    let mut facts = facts();
    config(&mut facts).status.as_mut().unwrap().version = Some("0.0.1".to_owned());
    assert_eq!(verdict(&facts, Check::Version).verdict, CheckVerdict::Warn);
    config(&mut facts).status = None;
    assert_eq!(
        verdict(&facts, Check::Installed).verdict,
        CheckVerdict::Fail
    );
}

#[test]
fn definitions_that_are_gone_foreign_or_others_are_named() {
    let broken = |change: &dyn Fn(&mut Vec<CustomResourceDefinition>)| {
        let mut facts = facts();
        change(facts.definitions.as_mut().unwrap());
        let found = verdict(&facts, Check::Definitions);
        (found.verdict, found.what)
    };
    assert_eq!(broken(&|_| {}).0, CheckVerdict::Ok);
    let gone = broken(&|all| drop(all.remove(0)));
    assert!(
        gone.0 == CheckVerdict::Fail && gone.1.contains("clusterconfigs.config.liqo.io"),
        "{}",
        gone.1
    );
    assert_eq!(
        broken(&|all| all[0].status = None).0,
        CheckVerdict::Fail,
        "it is not served"
    );
    assert_eq!(
        broken(&|all| all[0].metadata.labels = None).0,
        CheckVerdict::Fail
    );
    assert_eq!(
        broken(&|all| all[0].spec.names.short_names = Some(vec!["x".to_owned()])).0,
        CheckVerdict::Warn
    );
    assert_eq!(
        broken(&|all| all[0].spec.names.singular = Some("x".to_owned())).0,
        CheckVerdict::Warn
    );
}

#[test]
fn what_the_api_server_adds_makes_no_difference() {
    let want = json!({ "a": [{ "b": 1, "c": null }] });
    assert!(contains(
        &json!({ "a": [{ "b": 1.0, "more": true }], "z": 1 }),
        &want
    ));
    assert!(!contains(&json!({ "a": [] }), &want));
    assert!(!contains(&json!({ "a": [{ "b": 2 }] }), &want));
}

#[test]
fn a_manager_that_is_not_there_is_shown() {
    let mut facts = facts();
    let mut with = |wanted: i32, available: i32| {
        let deployment = json!({
            "spec": { "replicas": wanted, "selector": {}, "template": {} },
            "status": { "availableReplicas": available },
        });
        facts.liqo.manager = Ok(Some(of(deployment)));
        verdict(&facts, Check::Manager).verdict
    };
    assert_eq!(
        [with(1, 1), with(2, 1), with(2, 0), with(0, 0)],
        [
            CheckVerdict::Ok,
            CheckVerdict::Warn,
            CheckVerdict::Fail,
            CheckVerdict::Fail
        ]
    );
    facts.liqo.manager = Ok(None);
    assert_eq!(verdict(&facts, Check::Manager).verdict, CheckVerdict::Fail);
}

#[test]
fn a_manager_that_is_starting_is_not_blamed_on_pods_that_have_no_problem() {
    let mut facts = facts();
    let deployment = json!({ "spec": { "replicas": 1, "selector": {}, "template": {} }, "status": { "availableReplicas": 0 } });
    facts.liqo.manager = Ok(Some(of(deployment)));
    let advice = |facts: &ClusterFacts| verdict(facts, Check::Manager).advice.unwrap();
    assert!(
        advice(&facts).starts_with("no pod of Liqo has a problem"),
        "{}",
        advice(&facts)
    );
    facts.pods = Ok(Vec::new());
    assert!(
        advice(&facts).starts_with("see the check `pods`"),
        "{}",
        advice(&facts)
    );
}

#[test]
fn replicas_that_do_not_fit_the_nodes_are_shown() {
    let mut facts = facts();
    let mut with = |wanted: i32, nodes: usize, pods: &[&str]| {
        let status = json!({ "availableReplicas": wanted });
        let spec = json!({ "replicas": wanted, "selector": {}, "template": {} });
        facts.liqo.manager = Ok(Some(of(json!({ "spec": spec, "status": status }))));
        let first = facts.nodes.as_ref().unwrap()[0].clone();
        facts.nodes = Ok(vec![first; nodes]);
        let pod = |node: &&str| {
            let metadata = json!({ "name": "m", "namespace": "liqo", "labels": { "app.kubernetes.io/name": MANAGER } });
            of(json!({ "metadata": metadata, "spec": { "nodeName": node, "containers": [] } }))
        };
        facts.pods = Ok(pods.iter().map(pod).collect());
        let found = verdict(&facts, Check::Manager);
        (found.verdict, found.what)
    };
    assert_eq!(with(2, 2, &["a", "b"]).0, CheckVerdict::Ok);
    for (found, what) in [
        (with(1, 2, &["a"]), "one replica"),
        (with(2, 1, &["a", "a"]), "only one node"),
        (with(2, 2, &["a", "a"]), "run on node a"),
    ] {
        assert!(
            found.0 == CheckVerdict::Warn && found.1.contains(what),
            "{found:?}"
        );
    }
}

#[test]
fn a_quota_that_refuses_replicas_is_named() {
    let mut facts = facts();
    let refused = json!({ "type": "ReplicaFailure", "status": "True", "message": "insufficient quota to match these scopes" });
    facts.liqo.manager = Ok(Some(of(json!({
        "spec": { "replicas": 1, "selector": {}, "template": {} },
        "status": { "conditions": [refused] },
    }))));
    let found = verdict(&facts, Check::Manager);
    assert!(
        found.verdict == CheckVerdict::Fail && found.what.contains("insufficient quota"),
        "{}",
        found.what
    );
}

#[test]
fn a_leader_that_is_silent_is_named() {
    let mut facts = facts();
    let mut with = |leases: Vec<k8s_openapi::api::coordination::v1::Lease>| {
        facts.leases = Ok(leases);
        verdict(&facts, Check::Leader)
    };
    assert_eq!(
        with(vec![lease(MANAGER, "manager-1", 16, 600)]).verdict,
        CheckVerdict::Ok,
        "its clock does not matter"
    );
    let silent = with(vec![lease(MANAGER, "manager-1", 60, 0)]);
    assert!(
        silent.verdict == CheckVerdict::Fail
            && silent.what.contains("manager-1 was the last leader"),
        "{}",
        silent.what
    );
    assert_eq!(
        with(vec![lease(MANAGER, "", 1, 0)]).verdict,
        CheckVerdict::Fail,
        "it was given up"
    );
    assert_eq!(with(Vec::new()).verdict, CheckVerdict::Fail);
}

#[test]
fn addresses_that_are_not_known_name_the_setting() {
    let mut facts = facts();
    let mut with = |status: &str, reason: &str| {
        config(&mut facts).status.as_mut().unwrap().conditions =
            vec![condition(ADDRESSES_KNOWN, status, reason)];
        verdict(&facts, Check::Addresses)
    };
    assert!(
        with("False", "APIServerAddress")
            .advice
            .unwrap()
            .contains("--set apiServer.address=")
    );
    assert!(
        with("False", "AuthenticationAddress")
            .advice
            .unwrap()
            .contains("--set authentication.address=")
    );
}

#[test]
fn a_service_without_endpoints_is_named() {
    let mut facts = facts();
    facts.slices = Ok(vec![slice("liqo-auth", false), slice("liqo-webhook", true)]);
    let found = verdict(&facts, Check::Services);
    assert!(
        found.verdict == CheckVerdict::Fail && found.what.ends_with("Service liqo-auth, liqo-dns"),
        "{}",
        found.what
    );
}

#[test]
fn a_webhook_that_the_api_server_will_not_believe_is_shown() {
    let mut facts = facts();
    let configuration = |ca: &str| Ok(Some(configuration(ca)));
    let good = certificate();
    facts.webhook_certificate = Ok(Some(good.clone()));
    assert_eq!(
        verdict(&facts, Check::Webhook).verdict,
        CheckVerdict::Warn,
        "no entry"
    );
    facts.webhook = configuration(&good.ca);
    assert_eq!(
        verdict(&facts, Check::Webhook).verdict,
        CheckVerdict::Ok,
        "{:?}",
        verdict(&facts, Check::Webhook)
    );
    facts.webhook = configuration("another");
    assert!(
        verdict(&facts, Check::Webhook)
            .what
            .contains("trusts another CA for remote.liqo.io")
    );
    facts.webhook = configuration(&good.ca);
    let end: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
    for (at, verdict_then) in [
        (end - SignedDuration::from_hours(24), CheckVerdict::Warn),
        (end + SignedDuration::from_hours(1), CheckVerdict::Fail),
    ] {
        facts.api_server.date = Some(at);
        assert_eq!(verdict(&facts, Check::Webhook).verdict, verdict_then);
    }
    facts.api_server.date = Some(NOW.parse().unwrap());
    facts.webhook_certificate = Ok(Some(WebhookCertificate {
        leaf: good.ca.clone(),
        ..good
    }));
    assert_eq!(
        verdict(&facts, Check::Webhook).verdict,
        CheckVerdict::Fail,
        "that is no certificate of the webhook"
    );
    facts.webhook_certificate = Ok(None);
    assert_eq!(verdict(&facts, Check::Webhook).verdict, CheckVerdict::Fail);
    facts.webhook_certificate = Err("cannot read".to_owned());
    assert_eq!(
        verdict(&facts, Check::Webhook).verdict,
        CheckVerdict::Unknown
    );
}

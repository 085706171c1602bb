use std::slice::from_ref as one;

use liqo_byte_mutations::mutated_text;
use proptest::prelude::*;

use super::*;
use crate::fixtures::{object, policy};
use crate::json::{items_at, text_at};
use crate::replica::exposure_grant::ExposureGrant;
use crate::replica::isolation::{self, IsolationPolicy};
use crate::replica::service_quota::ServiceQuota;
use liqo_api::finalizers;
use liqo_api::record_text::{MAX_OBJECT_LEN, MAX_VALUES};

use crate::replica::name::replica_name;
use crate::replica::network_policy::NormalizedPolicy;
use crate::replica::replica_source::{MAX_POLICIES, clamp_policies, travelling_fingerprint};

fn both() -> BTreeSet<ReplicaKind> {
    BTreeSet::from([ReplicaKind::ConfigMap, ReplicaKind::Secret])
}

fn config(name: &str, value: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "key": value } })
}

fn source(name: &str, value: &str) -> ReplicaSource {
    object(name, &config(name, value), |_| {})
}

fn existing(name: &str, value: &str) -> Replica {
    let mut content = config(&replica_name(ReplicaKind::ConfigMap, name), value);
    content["metadata"]["uid"] = "replica".into();
    Replica::from_object(
        ReplicaKind::ConfigMap,
        serde_json::from_value(content).unwrap(),
    )
    .unwrap()
}

fn secret(type_: &str) -> Option<ReplicaSource> {
    ReplicaSource::from_secret(
        serde_json::from_value(json!({
            "metadata": { "name": "s1", "namespace": "t", "uid": "s", "labels": { labels::HOME_NAMESPACE: "demo" },
                "annotations": { annotations::HOME_NAME: "login" } },
            "type": type_, "data": { "password": "c2VjcmV0" },
        }))
        .unwrap(),
    )
}

#[test]
fn a_replica_is_made_changed_and_deleted_as_its_source_is() {
    let new = source("settings", "1");
    assert_eq!(
        plan_replicas(one(&new), &[], &both(), None),
        [ReplicaStep::Create(ReplicaKind::ConfigMap, new.clone())]
    );
    assert_eq!(
        plan_replicas(one(&new), &[existing("settings", "1")], &both(), None),
        [],
        "nothing is written when nothing changed"
    );
    let old = existing("settings", "0");
    assert_eq!(
        plan_replicas(one(&new), one(&old), &both(), None),
        [ReplicaStep::Change(new, old.clone())]
    );
    assert_eq!(
        plan_replicas(&[], one(&old), &both(), None),
        [ReplicaStep::Delete(old)]
    );
}

#[test]
fn a_replica_is_not_deleted_before_all_sources_of_its_kind_are_known() {
    let replica = Replica {
        kind: ReplicaKind::Secret,
        ..existing("login", "x")
    };
    assert_eq!(
        plan_replicas(
            &[],
            one(&replica),
            &BTreeSet::from([ReplicaKind::ConfigMap]),
            None
        ),
        []
    );
    assert_eq!(
        plan_replicas(&[], one(&replica), &both(), None),
        [ReplicaStep::Delete(replica)]
    );
}

#[test]
fn what_is_said_of_a_secret_stands_in_an_annotation_and_is_said_once() {
    let secret = |said: Option<&ReplicaProblem>| {
        let mut secret = json!({ "metadata": { "name": "s", "namespace": "t", "uid": "u", "labels": { labels::HOME_NAMESPACE: "demo" },
            "annotations": { annotations::HOME_NAME: "login" } }, "type": "kubernetes.io/service-account-token" });
        if let Some(said) = said {
            secret["metadata"]["annotations"][annotations::NOT_REFLECTED] =
                said.to_annotation().into();
        }
        ReplicaSource::from_secret(serde_json::from_value(secret).unwrap()).unwrap()
    };
    let [ReplicaStep::ReportProblem(_, Some(problem))] =
        &plan_replicas(one(&secret(None)), &[], &both(), None)[..]
    else {
        panic!("nothing is reported")
    };
    assert_eq!(problem.reason, "KindNotAllowed");
    assert_eq!(
        plan_replicas(one(&secret(Some(problem))), &[], &both(), None),
        []
    );
}

#[test]
fn an_object_of_an_unknown_kind_is_refused_by_name_and_taken_for_no_other() {
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "settings" } });
    let refused = object("role-1", &role, |object| {
        object["metadata"]["finalizers"] = json!([finalizers::REFLECTED_OBJECT]);
    });
    assert_eq!(refused.kind, None);
    let replica = existing("settings", "1");
    let steps = plan_replicas(one(&refused), one(&replica), &both(), None);
    let [
        ReplicaStep::Delete(surplus),
        ReplicaStep::ReportProblem(_, Some(problem)),
    ] = &steps[..]
    else {
        panic!("{steps:?}")
    };
    assert_eq!(
        surplus, &replica,
        "a ConfigMap of the same name is not its replica"
    );
    assert_eq!(
        problem,
        &ReplicaProblem::new(
            "KindNotAllowed",
            "objects of kind Role are not reflected to this cluster"
        )
    );
    let steps = plan_without_namespace(one(&refused), "soon");
    assert!(matches!(&steps[..], [ReplicaStep::ReportProblem(_, Some(same))] if same == problem));
    let leaving = ReplicaSource {
        deleted: true,
        ..refused
    };
    assert_eq!(
        plan_replicas(one(&leaving), &[], &both(), None),
        [ReplicaStep::Release(leaving.clone(), 0)]
    );
}

#[test]
fn a_record_that_is_too_large_is_refused_with_the_reason_and_not_kept() {
    let long = object(
        "a",
        &config("settings", &"x".repeat(MAX_OBJECT_LEN)),
        |_| (),
    );
    let tiny = object("a", &json!(vec![0; MAX_VALUES]), |_| ());
    for (source, why) in [
        (long, "at most 65536 bytes travel"),
        (tiny, "more than 10000 values"),
    ] {
        assert_eq!(
            (source.kind, source.name.as_str(), &source.content),
            (None, "", &None)
        );
        let problem = source.problem.clone().unwrap();
        assert!(
            problem.reason == "Invalid" && problem.message.contains(why),
            "{problem:?}"
        );
        assert_eq!(
            plan_replicas(one(&source), &[], &both(), None),
            [ReplicaStep::ReportProblem(source.clone(), Some(problem))]
        );
    }
}

#[test]
fn what_a_consumer_writes_around_a_secret_is_kept_only_in_part() {
    let annotated = |name: &str, said: &str, bytes: usize| {
        let secret = json!({ "metadata": { "name": "x", "namespace": "t", "labels": { "liqo.io/home-namespace": "demo" },
            "annotations": { "liqo.io/home-name": name, "liqo.io/not-reflected": said } },
            "data": { "key": data_encoding::BASE64.encode(&vec![0; bytes]) } });
        ReplicaSource::from_secret(serde_json::from_value(secret).unwrap()).unwrap()
    };
    let long = "x".repeat(200_000);
    let source = annotated(&long, &long, 10);
    assert!(source.name.len() < 300 && source.reported.clone().unwrap().reason.len() <= 4096);
    assert_eq!(source.problem.unwrap().reason, "Invalid");
    assert_eq!(
        (
            annotated("s", "", 30_000).problem,
            annotated("s", "", 30_000).refused
        ),
        (None, None)
    );
    assert!(
        annotated("s", "", 40_000)
            .refused
            .unwrap()
            .message
            .contains("at most 32768 bytes travel")
    );
}

#[test]
fn a_source_that_is_being_deleted_goes_after_its_replica() {
    let leaving = object("settings", &config("settings", "1"), |object| {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        object["metadata"]["finalizers"] = json!(["other", finalizers::REFLECTED_OBJECT]);
    });
    let replica = existing("settings", "1");
    assert_eq!(
        plan_replicas(one(&leaving), one(&replica), &both(), None),
        [
            ReplicaStep::Delete(replica),
            ReplicaStep::Release(leaving.clone(), 1)
        ]
    );
    assert_eq!(
        plan_without_namespace(one(&leaving), "gone"),
        [ReplicaStep::Release(leaving.clone(), 1)]
    );
}

#[test]
fn only_what_is_allowed_is_reflected_and_the_refusal_is_told_once() {
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "root" } });
    let other_group =
        json!({ "apiVersion": "evil/v1", "kind": "ConfigMap", "metadata": { "name": "x" } });
    for (content, reason) in [
        (role, "KindNotAllowed"),
        (
            json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "x" } }),
            "KindNotAllowed",
        ),
        (other_group, "KindNotAllowed"),
        (json!({}), "KindNotAllowed"),
        (config("../secrets/x", "1"), "Invalid"),
    ] {
        let refused = object("o", &content, |_| {});
        let problem = refused.problem.clone().unwrap();
        assert_eq!(problem.reason, reason);
        assert_eq!(plan_replicas(&[refused], &[], &both(), None).len(), 1);
        let reported = object("o", &content, |object| {
            object["status"] = json!({ "reason": problem.reason, "message": problem.message });
        });
        assert_eq!(plan_replicas(&[reported], &[], &both(), None), []);
    }
}

#[test]
fn a_kind_that_the_policy_does_not_allow_gets_no_replica_and_one_that_exists_stays_current() {
    let policy = policy(json!({ "reflectedKinds": ["Secret"] }));
    let new = source("settings", "1");
    let steps = plan_replicas(one(&new), &[], &both(), Some(&policy));
    assert!(
        matches!(&steps[..], [ReplicaStep::ReportProblem(_, Some(problem))] if problem.reason == "KindNotAllowed" && problem.message.contains("partners")),
        "{steps:?}"
    );
    let login = secret("Opaque").unwrap();
    assert_eq!(
        plan_replicas(one(&login), &[], &both(), Some(&policy)),
        [ReplicaStep::Create(ReplicaKind::Secret, login.clone())]
    );
    let old = existing("settings", "0");
    assert_eq!(
        plan_replicas(one(&new), one(&old), &both(), Some(&policy)),
        [ReplicaStep::Change(new, old)]
    );
}

#[test]
fn credentials_of_service_accounts_are_never_reflected() {
    assert_eq!(secret("kubernetes.io/tls").unwrap().problem, None);
    for type_ in [
        "kubernetes.io/service-account-token",
        "bootstrap.kubernetes.io/token",
    ] {
        let refused = secret(type_).unwrap();
        assert_eq!(
            refused.problem.clone().unwrap().reason,
            "KindNotAllowed",
            "{type_}"
        );
        assert!(
            matches!(
                &plan_replicas(&[refused], &[], &both(), None)[..],
                [ReplicaStep::ReportProblem(..)]
            ),
            "{type_}"
        );
    }
}

#[test]
fn a_secret_of_another_type_than_the_known_ones_becomes_opaque_whatever_its_record_says() {
    let content = |type_: &str| json!({ "type": type_, "data": { "password": "c2VjcmV0" } });
    for (type_, made) in [
        ("helm.sh/release.v1", "Opaque"),
        ("", "Opaque"),
        ("kubernetes.io/tls", "kubernetes.io/tls"),
    ] {
        let source = secret(type_).unwrap();
        assert_eq!(
            (&source.problem, source.name.as_str()),
            (&None, replica_name(ReplicaKind::Secret, "login").as_str())
        );
        let mut made_object = replica_object(
            ReplicaKind::Secret,
            &content(type_),
            &source.name,
            "x",
            "demo",
        );
        assert_eq!(made_object["type"], made);
        made_object["metadata"]["uid"] = "u".into();
        let live = Replica::from_object(
            ReplicaKind::Secret,
            serde_json::from_value(made_object.clone()).unwrap(),
        )
        .unwrap();
        assert_eq!(
            plan_replicas(one(&source), one(&live), &both(), None),
            [],
            "nothing is written again"
        );
        assert!(!live.must_be_recreated_for(&made_object));
    }
}

#[test]
fn what_every_cluster_has_in_each_namespace_travels_beside_that_of_the_provider() {
    for name in ["kube-root-ca.crt", "istio-ca-root-cert"] {
        let source = source(name, "home");
        assert_eq!((&source.problem, source.name == name), (&None, false));
        assert_eq!(
            plan_replicas(one(&source), &[], &both(), None),
            [ReplicaStep::Create(ReplicaKind::ConfigMap, source.clone())]
        );
    }
}

#[test]
fn an_ingress_names_the_replicas_of_its_secrets_and_keeps_them_when_its_content_is_refused() {
    let home = |path: &str| {
        let mut ingress = ingress_to(path);
        ingress["spec"]["tls"] = json!([{ "hosts": ["a.example.com"], "secretName": "cert" }]);
        object("ingress-1", &ingress, |_| {})
    };
    let (usage, services) = (
        json!({ "ingressClasses": ["public"], "ingressHosts": ["*"] }),
        BTreeSet::from(["web".to_owned()]),
    );
    let policy = policy(usage);
    let grant = ExposureGrant::new(Some(&policy), []);
    let granted = |source: ReplicaSource, replicas: &[Replica]| {
        limit_sources(vec![source], replicas, |one| {
            grant.limit_source(one, &services)
        })
        .remove(0)
    };
    let source = granted(home("/"), &[]);
    let named = |content: &Value| {
        content["spec"]["tls"][0]["secretName"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        named(&source.content().unwrap()),
        replica_name(ReplicaKind::Secret, "cert")
    );
    let mut made = replica_object(
        ReplicaKind::Ingress,
        &source.content().unwrap(),
        "shop",
        "x",
        "demo",
    );
    assert_eq!(named(&made), replica_name(ReplicaKind::Secret, "cert"));
    made["metadata"]["uid"] = "u".into();
    let live = replica_of(ReplicaKind::Ingress, made);
    let kinds = BTreeSet::from([ReplicaKind::Ingress]);
    let written = |source: &ReplicaSource| {
        plan_replicas(one(source), one(&live), &kinds, Some(&policy))
            .iter()
            .any(|step| matches!(step, ReplicaStep::Change(..)))
    };
    assert!(!written(&source), "nothing is written again");
    let kept = granted(home(&long()), one(&live));
    assert_eq!(
        named(&kept.content().unwrap()),
        replica_name(ReplicaKind::Secret, "cert"),
        "once, not twice"
    );
    assert!(!written(&kept));
}

/// With it, a content is longer than it may be.
fn long() -> String {
    "x".repeat(20_000)
}

fn long_service() -> Value {
    let mut service = balanced_content();
    service["spec"]["ports"][0]["name"] = long().into();
    service
}

fn ingress_to(path: &str) -> Value {
    let backend = json!({ "service": { "name": "web", "port": { "number": 80 } } });
    let http = json!({ "paths": [{ "path": path, "pathType": "Prefix", "backend": backend }] });
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": { "name": "shop" },
        "spec": { "rules": [{ "host": "a.example.com", "http": http }] } })
}

/// What becomes of the replica of an object.
#[derive(Debug, PartialEq)]
enum Fate {
    Stays,
    Changes,
    Goes,
}

/// What becomes of a replica with the content that was good, when its source says this; and the
/// reason that is told.
fn fate(replica: &Replica, source: &ReplicaSource) -> (Fate, Option<String>) {
    let steps = plan_replicas(
        one(source),
        one(replica),
        &BTreeSet::from([replica.kind]),
        None,
    );
    let told = steps.iter().find_map(|step| match step {
        ReplicaStep::ReportProblem(_, problem) => {
            problem.as_ref().map(|problem| problem.reason.clone())
        }
        _ => None,
    });
    let fate = steps.iter().find_map(|step| match step {
        ReplicaStep::Delete(_) => Some(Fate::Goes),
        ReplicaStep::Change(source, _) | ReplicaStep::Create(_, source) => {
            assert_eq!(source.refused, None);
            Some(Fate::Changes)
        }
        _ => None,
    });
    (fate.unwrap_or(Fate::Stays), told)
}

fn budget(app: &str) -> Value {
    json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "web" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": app } } } })
}

/// A policy that allows the good content of every kind.
fn enough_usage() -> Value {
    json!({ "ingressClasses": ["public"], "ingressHosts": ["a.example.com"], "loadBalancerClasses": ["edge"] })
}

fn good_content(kind: ReplicaKind) -> Value {
    match kind {
        ReplicaKind::Service => balanced_content(),
        ReplicaKind::Ingress => ingress_to("/"),
        ReplicaKind::EndpointSlice => slice("web", &["10.245.0.5"]),
        ReplicaKind::NetworkPolicy => {
            json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "allow" },
            "spec": { "podSelector": {}, "ingress": [{}] } })
        }
        ReplicaKind::PodDisruptionBudget => budget("web"),
        ReplicaKind::ConfigMap | ReplicaKind::Secret => {
            unreachable!("they have tests of their own")
        }
    }
}

/// The replica of the good content, as it is in the cluster.
fn good_replica(kind: ReplicaKind, services: &BTreeSet<String>) -> Replica {
    let allowed = policy(
        json!({ "ingressClasses": ["public"], "ingressHosts": ["*"], "loadBalancerClasses": ["edge"] }),
    );
    let source = object("o", &good_content(kind), |_| {});
    let source = ExposureGrant::new(Some(&allowed), one(&source)).limit_source(source, services);
    let source = if kind == ReplicaKind::NetworkPolicy {
        source.clamp_policy(&limits())
    } else {
        source
    };
    let mut live = replica_object(
        kind,
        &source.content().unwrap(),
        &source.name,
        "demo-rome-aaaaaa",
        "demo",
    );
    if kind == ReplicaKind::Service {
        live["spec"]["clusterIP"] = "10.96.0.7".into();
    }
    replica_of(kind, live)
}

/// Asserts what becomes of the replica of the good content when its source has this content, within
/// the limits of this usage; and which reason is told.
fn assert_fate(
    kind: ReplicaKind,
    content: &Value,
    usage: &Value,
    expected: Fate,
    told: Option<&str>,
) {
    let services = BTreeSet::from(["web".to_owned()]);
    let within = |source: ReplicaSource| {
        let policy = policy(usage.clone());
        let quota = ServiceQuota::new(Some(&policy), one(&source)).limit_source(source);
        let grant = ExposureGrant::new(Some(&policy), one(&quota));
        let limited = grant
            .limit_source(quota, &services)
            .clamp_slice(&services, |_| true);
        if kind == ReplicaKind::NetworkPolicy {
            limited.clamp_policy(&limits())
        } else {
            limited
        }
    };
    let replica = good_replica(kind, &services);
    let changed = vec![object("o", content, |_| {})];
    let source = limit_sources(changed, one(&replica), within).remove(0);
    assert_eq!(
        fate(&replica, &source),
        (expected, told.map(str::to_owned)),
        "{kind:?} {:.200} {usage}",
        content.to_string()
    );
}

#[test]
fn a_refused_change_keeps_the_replica() {
    let usage = enough_usage();
    for (kind, content, told) in [
        (ReplicaKind::Service, long_service(), "TooLarge"),
        (ReplicaKind::Ingress, ingress_to(&long()), "TooLarge"),
        (ReplicaKind::Ingress, ingress_to("/\n{"), "Invalid"),
        (
            ReplicaKind::Ingress,
            json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": { "name": "shop" },
                "spec": { "defaultBackend": { "resource": { "kind": "Bucket", "name": "b" } } } }),
            "Invalid",
        ),
        (
            ReplicaKind::PodDisruptionBudget,
            budget(&long()),
            "TooLarge",
        ),
    ] {
        assert_fate(kind, &content, &usage, Fate::Stays, Some(told));
    }
    // What is not refused of a change arrives.
    let many_ports = service(|service| {
        let port = |number: u16| json!({ "name": format!("p{number}"), "port": number, "targetPort": 8080 });
        service["spec"]["ports"] = (1..=25).map(port).collect();
    });
    assert_fate(
        ReplicaKind::Service,
        &many_ports,
        &usage,
        Fate::Changes,
        None,
    );
}

#[test]
fn a_refused_change_does_not_keep_what_it_would_be_wrong_to_keep() {
    let closing = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "allow" },
        "spec": { "podSelector": { "matchLabels": { "app": long() } }, "ingress": [] } });
    let unreadable = json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "web" }, "spec": { "minAvailable": 1 } });
    let mut slice_with_many_ports = slice("web", &["10.245.0.5"]);
    slice_with_many_ports["ports"] = (0..1000)
        .map(|port| json!({ "name": format!("port-{port}"), "port": port }))
        .collect();
    for (kind, content, told) in [
        // It selects no pods.
        (ReplicaKind::PodDisruptionBudget, unreadable, "Invalid"),
        // It must not keep open what home closed.
        (ReplicaKind::NetworkPolicy, closing, "TooLarge"),
        // Other pods may have the addresses by now. The consumer never sends this: it sends parts.
        (
            ReplicaKind::EndpointSlice,
            slice_with_many_ports,
            "TooLarge",
        ),
    ] {
        assert_fate(kind, &content, &enough_usage(), Fate::Goes, Some(told));
    }
}

/// The provider takes its permission back, also from an object whose change is refused.
#[test]
fn a_permission_that_was_taken_back_does_not_keep_the_replica() {
    let none = json!({ "ingressClasses": [], "ingressHosts": [], "loadBalancerClasses": [] });
    assert_fate(
        ReplicaKind::Service,
        &long_service(),
        &none,
        Fate::Changes,
        None,
    );
    let slice_of = |service: &str| slice(service, &["10.245.0.5"]);
    for (kind, content, usage, told) in [
        (
            ReplicaKind::Service,
            long_service(),
            json!({ "maxServices": 0 }),
            "QuotaExceeded",
        ),
        (
            ReplicaKind::EndpointSlice,
            slice_of("web"),
            json!({ "maxEndpoints": 0 }),
            "QuotaExceeded",
        ),
        (
            ReplicaKind::Ingress,
            ingress_to("/"),
            none.clone(),
            "KindNotAllowed",
        ),
        (
            ReplicaKind::Ingress,
            ingress_to(&long()),
            none,
            "KindNotAllowed",
        ),
        (
            ReplicaKind::Ingress,
            ingress_to(&long()),
            json!({ "ingressClasses": ["public"] }),
            "HostNotAllowed",
        ),
        // Home takes it back: the Service of the slice does not travel any more.
        (
            ReplicaKind::EndpointSlice,
            slice_of("other"),
            enough_usage(),
            "NoService",
        ),
    ] {
        assert_fate(kind, &content, &usage, Fate::Goes, Some(told));
    }
}

#[test]
fn config_maps_and_secrets_keep_what_they_had_until_they_are_gone_or_another_object() {
    let stored = existing("settings", "1");
    assert_eq!(fate(&stored, &source("settings", "2")).0, Fate::Changes);
    assert_eq!(
        plan_replicas(&[], one(&stored), &both(), None),
        [ReplicaStep::Delete(stored.clone())],
        "it is gone at home, or its namespace is"
    );
    // Nobody can say which object a record is about that cannot be read.
    let unreadable = object(
        "a",
        &config("settings", &"x".repeat(MAX_OBJECT_LEN)),
        |_| (),
    );
    assert_eq!(
        fate(&stored, &unreadable),
        (Fate::Goes, Some("Invalid".into()))
    );

    let secret = |type_: &str, bytes: usize| {
        let data = json!({ "key": data_encoding::BASE64.encode(&vec![0; bytes]) });
        let secret = json!({ "metadata": { "name": "s1", "namespace": "t", "uid": "s", "labels": { labels::HOME_NAMESPACE: "demo" },
            "annotations": { annotations::HOME_NAME: "login" } }, "type": type_, "data": data });
        ReplicaSource::from_secret(serde_json::from_value(secret).unwrap()).unwrap()
    };
    let name = replica_name(ReplicaKind::Secret, "login");
    let stored = replica_of(
        ReplicaKind::Secret,
        json!({ "metadata": { "name": name }, "type": "Opaque", "data": { "key": "" } }),
    );
    assert_eq!(fate(&stored, &secret("Opaque", 10)).0, Fate::Changes);
    assert_eq!(
        fate(&stored, &secret("Opaque", 40_000)),
        (Fate::Stays, Some("TooLarge".into()))
    );
    assert_eq!(
        fate(&stored, &secret("example.com/own", 10)).0,
        Fate::Changes,
        "it is Opaque, too"
    );
    let never = secret("kubernetes.io/service-account-token", 10);
    assert_eq!(
        fate(&stored, &never),
        (Fate::Goes, Some("KindNotAllowed".into())),
        "another Secret"
    );
    let steps = plan_replicas(one(&secret("Opaque", 40_000)), &[], &both(), None);
    assert!(
        matches!(&steps[..], [ReplicaStep::ReportProblem(_, Some(problem))] if problem.reason == "TooLarge"),
        "{steps:?}"
    );
}

#[test]
fn a_service_that_grows_keeps_its_first_ports_and_says_which_ones_are_missing() {
    let ports = |count: u16| {
        let port = |number: u16| json!({ "name": format!("p{number}"), "port": 1000 + number, "targetPort": 8080 });
        let content = service(|service| service["spec"]["ports"] = (0..count).map(port).collect());
        object("service-1", &content, |_| {}).with_families(&["IPv4"])
    };
    let (small, large) = (ports(3), ports(25));
    let made = |source: &ReplicaSource| {
        let mut live = replica_object(
            ReplicaKind::Service,
            &source.content().unwrap(),
            "web",
            "x",
            "demo",
        );
        live["spec"]["clusterIP"] = "10.96.3.4".into();
        replica_of(ReplicaKind::Service, live)
    };
    assert_eq!((&large.problem, &large.refused), (&None, &None));
    let kept = large.content().unwrap();
    let names: Vec<&str> = items_at(&kept, "/spec/ports")
        .iter()
        .map(|port| port["name"].as_str().unwrap())
        .collect();
    assert_eq!((names.len(), names[0], names[19]), (20, "p0", "p19"));
    let partial = large.partial.clone().unwrap();
    assert_eq!(
        (partial.reason.as_str(), partial.message.as_str()),
        (
            "TooManyPorts",
            "left out: ports beyond the first 20 of the Service: p20 (1020), p21 (1021), p22 (1022), p23 (1023), p24 (1024)"
        )
    );
    let service = BTreeSet::from([ReplicaKind::Service]);
    let changed = [ReplicaStep::Change(large.clone(), made(&small))];
    assert_eq!(
        plan_replicas(one(&large), one(&made(&small)), &service, None),
        changed
    );
    let reported = ReplicaSource {
        reported: Some(partial),
        ..large
    };
    assert_eq!(
        plan_replicas(one(&reported), one(&made(&reported)), &service, None),
        [],
        "it is said once"
    );
    assert!(
        ports(500)
            .partial
            .unwrap()
            .message
            .ends_with("p29 (1029), and others")
    );
}

#[test]
fn a_problem_that_is_over_is_no_longer_told() {
    let recovered = object("settings", &config("settings", "1"), |object| {
        object["status"] = json!({ "reason": "NameTaken" });
    });
    assert_eq!(
        plan_replicas(one(&recovered), &[existing("settings", "1")], &both(), None),
        [ReplicaStep::ReportProblem(recovered, None)]
    );
}

#[test]
fn of_two_sources_of_one_replica_the_first_counts() {
    let (first, second) = (
        object("a", &config("settings", "1"), |_| {}),
        object("b", &config("settings", "2"), |_| {}),
    );
    let steps = plan_replicas(
        &[second, first.clone()],
        &[existing("settings", "1")],
        &both(),
        None,
    );
    assert!(
        matches!(&steps[..], [ReplicaStep::ReportProblem(source, Some(problem))] if source.key.name == "b" && problem.reason == "NameTaken")
    );
}

#[test]
fn a_replica_holds_the_content_and_nothing_else_of_its_source() {
    let mut content = config("settings", "1");
    content["metadata"]["labels"] = json!({ "grafana_dashboard": "1" });
    content["metadata"]["ownerReferences"] = json!([{ "name": "x" }]);
    content["immutable"] = true.into();
    let replica = replica_object(
        ReplicaKind::ConfigMap,
        &content,
        "settings",
        "demo-rome-aaaaaa",
        "demo",
    );
    assert_eq!(
        replica["metadata"],
        json!({ "name": "settings", "namespace": "demo-rome-aaaaaa",
        "labels": { labels::MANAGED: "true", labels::REFLECTED: "true", labels::HOME_NAMESPACE: "demo" } })
    );
    assert_eq!(
        (
            &replica["data"]["key"],
            &replica["immutable"],
            &replica["kind"]
        ),
        (&json!("1"), &json!(true), &json!("ConfigMap"))
    );
}

#[test]
fn absent_and_empty_content_are_the_same() {
    let empty = json!({ "data": {}, "binaryData": null, "immutable": false });
    assert_eq!(
        travelling_fingerprint(ReplicaKind::ConfigMap, &empty),
        travelling_fingerprint(ReplicaKind::ConfigMap, &json!({}))
    );
    assert_ne!(
        travelling_fingerprint(ReplicaKind::ConfigMap, &json!({ "immutable": true })),
        travelling_fingerprint(ReplicaKind::ConfigMap, &json!({}))
    );
}

#[test]
fn without_a_namespace_the_source_says_what_it_waits_for() {
    let waiting = source("settings", "1");
    let steps = plan_without_namespace(&[waiting], "soon");
    assert!(
        matches!(&steps[..], [ReplicaStep::ReportProblem(_, Some(problem))] if problem.reason == "NamespaceNotReady")
    );
}

fn service(change: impl FnOnce(&mut Value)) -> Value {
    let mut service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] } });
    change(&mut service);
    service
}

fn slice(service: &str, addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> = addresses
        .iter()
        .map(|address| json!({ "addresses": [address], "conditions": { "ready": true } }))
        .collect();
    json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": [{ "port": 8080 }],
        "metadata": { "name": "web-x", "labels": { service::SERVICE_NAME: service } }, "endpoints": endpoints })
}

fn clamped_slice(addresses: &[&str]) -> ReplicaSource {
    let source = object("endpointslice-1", &slice("web", addresses), |_| {});
    source.clamp_slice(&BTreeSet::from(["web".to_owned()]), |ip| {
        ip.to_string().starts_with("10.245.")
    })
}

fn replica_of(kind: ReplicaKind, mut object: Value) -> Replica {
    object["metadata"]["uid"] = "replica".into();
    Replica::from_object(kind, serde_json::from_value(object).unwrap()).unwrap()
}

#[test]
fn a_service_is_rebuilt_from_what_may_be_in_it() {
    let hostile = service(|service| {
        for (field, value) in [
            ("selector", json!({ "app": "victim" })),
            ("externalIPs", json!(["10.0.0.1"])),
            ("type", json!("LoadBalancer")),
            ("clusterIP", json!("10.96.0.10")),
            ("loadBalancerIP", json!("192.0.2.1")),
            ("externalName", json!("example.com")),
        ] {
            service["spec"][field] = value;
        }
        service["spec"]["ports"][0]["nodePort"] = 30_000.into();
        service["metadata"]["annotations"] = json!({ "metallb.universe.tf/address-pool": "x" });
    });
    let source = ExposureGrant::default()
        .limit_source(object("service-1", &hostile, |_| {}), &BTreeSet::new());
    assert_eq!(source.problem, None);
    let made = replica_object(
        ReplicaKind::Service,
        &source.content().unwrap(),
        "web",
        "demo-rome-aaaaaa",
        "demo",
    );
    assert_eq!(
        made,
        json!({ "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "web", "namespace": "demo-rome-aaaaaa",
                "labels": { labels::MANAGED: "true", labels::REFLECTED: "true", labels::HOME_NAMESPACE: "demo" } },
            "spec": { "type": "ClusterIP", "ipFamilyPolicy": "SingleStack",
                "ports": [{ "name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP" }] } })
    );
}

#[test]
fn an_external_name_is_only_an_annotation_here_and_follows_home() {
    let sent = |target: &str| {
        let home = service(|service| {
            service["spec"] =
                json!({ "type": "ExternalName", "externalName": target, "clusterIP": "None" });
            // The provider writes the annotation itself.
            service["metadata"]["annotations"] =
                json!({ annotations::EXTERNAL_NAME: "kube-dns.kube-system.svc.cluster.local" });
        });
        object("service-1", &home, |_| {}).with_families(&["IPv4"])
    };
    let source = sent("db.example.org");
    let made = replica_object(
        ReplicaKind::Service,
        &source.content().unwrap(),
        "web",
        "x",
        "demo",
    );
    assert_eq!(
        made["metadata"]["annotations"],
        json!({ annotations::EXTERNAL_NAME: "db.example.org" })
    );
    assert_eq!(
        (&made["spec"]["type"], &made["spec"]["externalName"]),
        (&json!("ClusterIP"), &Value::Null)
    );
    let live = |annotations: Value| {
        let mut live = made.clone();
        for (field, value) in [
            ("clusterIPs", json!(["None"])),
            ("sessionAffinity", json!("None")),
            ("ipFamilies", json!(["IPv4"])),
        ] {
            live["spec"][field] = value;
        }
        live["metadata"]["annotations"] = annotations;
        replica_of(ReplicaKind::Service, live)
    };
    let current = live(
        json!({ annotations::EXTERNAL_NAME: "db.example.org", "example.org/theirs": "stays" }),
    );
    let steps = |source: &ReplicaSource, live: &Replica| {
        plan_replicas(
            one(source),
            one(live),
            &BTreeSet::from([ReplicaKind::Service]),
            None,
        )
    };
    assert_eq!(steps(&source, &current), []);
    for (source, live) in [
        (sent("other.example.org"), &current),
        (source.clone(), &live(json!({}))),
    ] {
        assert_eq!(
            steps(&source, live),
            [ReplicaStep::Change(source.clone(), live.clone())]
        );
        assert!(!live.must_be_recreated_for(&source.content().unwrap()));
    }
    let usual = object("service-1", &service(|_| {}), |_| {});
    assert!(
        current.must_be_recreated_for(&usual.content().unwrap()),
        "it has no address"
    );
    let standing =
        json!({ "metadata": { "annotations": { annotations::EXTERNAL_NAME: "db.example.org" } } });
    let wanted = replacement_object(
        &standing,
        replica_object(
            ReplicaKind::Service,
            &usual.content().unwrap(),
            "web",
            "x",
            "demo",
        ),
    );
    assert_eq!(
        wanted["metadata"]["annotations"],
        json!({}),
        "it is not left over"
    );
}

#[test]
fn what_the_api_server_adds_to_a_service_is_no_change_and_what_a_person_adds_is() {
    let source = object("service-1", &service(|_| {}), |_| {}).with_families(&["IPv4"]);
    let live = |change: &dyn Fn(&mut Value)| {
        let mut live = replica_object(
            ReplicaKind::Service,
            &source.content().unwrap(),
            "web",
            "x",
            "demo",
        );
        for (field, value) in [
            ("clusterIP", json!("10.96.3.4")),
            ("clusterIPs", json!(["10.96.3.4"])),
            ("ipFamilies", json!(["IPv4"])),
            ("sessionAffinity", json!("None")),
            ("internalTrafficPolicy", json!("Cluster")),
        ] {
            live["spec"][field] = value;
        }
        change(&mut live);
        replica_of(ReplicaKind::Service, live)
    };
    let services = BTreeSet::from([ReplicaKind::Service]);
    assert_eq!(
        plan_replicas(one(&source), &[live(&|_| {})], &services, None),
        []
    );
    let selecting = live(&|live| live["spec"]["selector"] = json!({ "app": "x" }));
    assert_eq!(
        plan_replicas(one(&source), one(&selecting), &services, None),
        [ReplicaStep::Change(source.clone(), selecting)]
    );
    let headless = live(&|live| live["spec"]["clusterIP"] = "None".into());
    assert_eq!(headless.type_, "None", "it can only be created again");
    assert_eq!(
        plan_replicas(&[], &[live(&|_| {})], &services, None).len(),
        1
    );
}

#[test]
fn a_service_that_is_to_be_of_another_family_is_made_anew_and_one_that_gets_a_second_is_not() {
    let wanted = |policy: &str, families: Value| {
        let content = service(|service| {
            service["spec"]["ipFamilyPolicy"] = policy.into();
            service["spec"]["ipFamilies"] = families;
        });
        let source = object("service-1", &content, |_| {}).with_families(&["IPv4", "IPv6"]);
        replica_object(
            ReplicaKind::Service,
            &source.content().unwrap(),
            "web",
            "x",
            "demo",
        )
    };
    let (four, six) = (
        wanted("SingleStack", json!(["IPv4"])),
        wanted("SingleStack", json!(["IPv6"])),
    );
    let both = wanted("PreferDualStack", json!(["IPv6", "IPv4"]));
    let live_service = replica_of(ReplicaKind::Service, four.clone());
    assert_eq!(
        [&four, &six, &both].map(|wanted| live_service.must_be_recreated_for(wanted)),
        [false, true, false]
    );
    let mut live = both;
    live["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
    let live_service = replica_of(ReplicaKind::Service, live);
    assert_eq!(
        [&four, &six].map(|wanted| live_service.must_be_recreated_for(wanted)),
        [false, true]
    );
}

fn grant(usage: Value) -> ExposureGrant {
    ExposureGrant::new(Some(&policy(usage)), [&balanced()])
}

fn balanced() -> ReplicaSource {
    object("service-1", &balanced_content(), |_| {})
}

fn balanced_content() -> Value {
    service(|service| service["spec"]["type"] = "LoadBalancer".into())
}

fn shop(host: &str) -> ReplicaSource {
    let rule = json!({ "host": host, "http": { "paths": [{ "path": "/", "pathType": "Prefix",
        "backend": { "service": { "name": "web", "port": { "number": 80 } } } }] } });
    let content = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "spec": { "rules": [rule] },
        "metadata": { "name": "shop", "annotations": { "example.com/size": "1m", "example.com/other": "x" } } });
    object("ingress-1", &content, |_| {})
}

/// A source within this policy, and its replica as the cluster keeps it after this change.
fn standing_within(
    source: ReplicaSource,
    usage: Value,
    change: &dyn Fn(&mut Value),
) -> (ReplicaSource, Replica, Value) {
    let source = grant(usage).limit_source(source, &BTreeSet::from(["web".to_owned()]));
    let mut live = replica_object(
        source.kind.unwrap(),
        &source.content().unwrap(),
        &source.name,
        "x",
        "demo",
    );
    change(&mut live);
    let source = ReplicaSource {
        reported: source.partial.clone(),
        ..source
    };
    (
        source.clone(),
        replica_of(source.kind.unwrap(), live.clone()),
        live,
    )
}

fn services_and_ingresses() -> BTreeSet<ReplicaKind> {
    BTreeSet::from([ReplicaKind::Service, ReplicaKind::Ingress])
}

#[test]
fn the_class_that_the_cluster_fills_in_is_no_change_and_stays() {
    let ingresses = json!({ "ingressClasses": [""], "ingressHosts": ["*"] });
    let (source, replica, live) = standing_within(shop("a.example.com"), ingresses, &|live| {
        live["spec"]["ingressClassName"] = "nginx".into();
    });
    let exposure = Exposure::default();
    assert_eq!(
        plan_replicas(one(&source), one(&replica), &services_and_ingresses(), None),
        [ReplicaStep::ReportExposure(
            source.clone(),
            Some(exposure.clone())
        )]
    );
    let reported_exposure = ReplicaSource {
        reported_exposure: Some(exposure),
        ..source
    };
    assert_eq!(
        plan_replicas(
            one(&reported_exposure),
            one(&replica),
            &services_and_ingresses(),
            None
        ),
        []
    );
    let wanted = crate::replica::replica_plan::replica_object(
        ReplicaKind::Ingress,
        &reported_exposure.content().unwrap(),
        "shop",
        "x",
        "demo",
    );
    assert!(!replica.must_be_recreated_for(&wanted));
    assert_eq!(
        replacement_object(&live, wanted)["spec"]["ingressClassName"],
        "nginx"
    );
}

#[test]
fn what_controllers_write_on_a_replica_is_theirs_and_what_travelled_is_taken_back() {
    let usage = |annotations: Value| json!({ "ingressClasses": ["public"], "ingressHosts": ["*"], "ingressAnnotations": annotations });
    let marked = |live: &mut Value| {
        live["metadata"]["annotations"]["cloud.example/state"] = "1".into();
        live["metadata"]["finalizers"] = json!(["cloud.example/cleanup"]);
        live["metadata"]["uid"] = "replica".into();
        live["metadata"]["resourceVersion"] = "7".into();
    };
    let (source, replica, live) = standing_within(
        shop("a.example.com"),
        usage(json!(["example.com/size"])),
        &marked,
    );
    let exposure = Exposure {
        class: "public".into(),
        addresses: Vec::new(),
    };
    let reported_exposure = ReplicaSource {
        reported_exposure: Some(exposure),
        ..source
    };
    assert_eq!(
        plan_replicas(
            one(&reported_exposure),
            one(&replica),
            &services_and_ingresses(),
            None
        ),
        []
    );
    let (narrowed, ..) = standing_within(shop("a.example.com"), usage(json!([])), &|_| {});
    let steps = plan_replicas(
        one(&narrowed),
        one(&replica),
        &services_and_ingresses(),
        None,
    );
    assert!(
        steps
            .iter()
            .any(|step| matches!(step, ReplicaStep::Change(..))),
        "{steps:?}"
    );
    let written = replacement_object(
        &live,
        crate::replica::replica_plan::replica_object(
            ReplicaKind::Ingress,
            &narrowed.content().unwrap(),
            "shop",
            "x",
            "demo",
        ),
    );
    let metadata = &written["metadata"];
    assert_eq!(
        metadata["annotations"],
        json!({ "cloud.example/state": "1", annotations::REMOTE_CLASS: "public" })
    );
    let addressed = json!({ "spec": { "type": "LoadBalancer", "loadBalancerIP": "203.0.113.7" } });
    let kept = |kind: &str| {
        replacement_object(&addressed, json!({ "spec": { "type": kind } }))["spec"]["loadBalancerIP"]
            .clone()
    };
    assert_eq!(
        (kept("LoadBalancer"), kept("ClusterIP")),
        (json!("203.0.113.7"), Value::Null)
    );
    assert_eq!(
        (&metadata["finalizers"], &metadata["resourceVersion"]),
        (&json!(["cloud.example/cleanup"]), &json!("7"))
    );
}

#[test]
fn a_load_balancer_comes_and_goes_in_place_and_another_class_is_another_object() {
    let edge = json!({ "loadBalancerClasses": ["edge"] });
    let (source, given, _) = standing_within(balanced(), edge, &|_| {});
    let (closed, inside, _) = standing_within(balanced(), json!({}), &|_| {});
    assert_eq!(
        (
            given.exposure.as_ref().map(|one| one.class.as_str()),
            &inside.exposure
        ),
        (Some("edge"), &None)
    );
    let wanted = |source: &ReplicaSource| {
        replica_object(
            ReplicaKind::Service,
            &source.content().unwrap(),
            "web",
            "x",
            "demo",
        )
    };
    assert!(
        !inside.must_be_recreated_for(&wanted(&source))
            && !given.must_be_recreated_for(&wanted(&closed))
    );
    let (other, ..) = standing_within(
        balanced(),
        json!({ "loadBalancerClasses": ["other"] }),
        &|_| {},
    );
    assert!(given.must_be_recreated_for(&wanted(&other)));
    let classes = |classes: Value| json!({ "ingressClasses": classes, "ingressHosts": ["*"] });
    let shop = |allowed: Value| standing_within(shop("a.example.com"), classes(allowed), &|_| {});
    let ((named, ..), (_, public, _), (_, default, _)) = (
        shop(json!(["inside"])),
        shop(json!(["public"])),
        shop(json!([""])),
    );
    let wanted = replica_object(
        ReplicaKind::Ingress,
        &named.content().unwrap(),
        "shop",
        "x",
        "demo",
    );
    assert!(
        !public.must_be_recreated_for(&wanted) && default.must_be_recreated_for(&wanted),
        "what the cluster set is like ours"
    );
    let closed = ReplicaSource {
        reported_exposure: given.exposure.clone(),
        ..closed
    };
    let steps = plan_replicas(one(&closed), one(&given), &services_and_ingresses(), None);
    assert!(
        matches!(&steps[..], [ReplicaStep::Change(..)]),
        "it is shown as it is until it is taken back: {steps:?}"
    );
    assert!(matches!(
        &plan_replicas(one(&closed), one(&inside), &services_and_ingresses(), None)[..],
        [ReplicaStep::ReportExposure(_, None)]
    ));
}

#[test]
fn an_ingress_that_may_not_be_any_more_goes() {
    let usage = |hosts: Value| json!({ "ingressClasses": ["public"], "ingressHosts": hosts });
    let (_, replica, _) = standing_within(shop("a.example.com"), usage(json!(["*"])), &|_| {});
    let refused = grant(usage(json!(["b.example.com"])))
        .limit_source(shop("a.example.com"), &BTreeSet::from(["web".to_owned()]));
    let steps = plan_replicas(
        one(&refused),
        one(&replica),
        &services_and_ingresses(),
        None,
    );
    assert!(
        matches!(&steps[..], [ReplicaStep::Delete(_), ReplicaStep::ReportProblem(_, Some(problem))] if problem.reason == "HostNotAllowed"),
        "{steps:?}"
    );
}

#[test]
fn a_slice_is_kept_as_it_is_written() {
    let source = clamped_slice(&["10.245.0.7", "10.245.0.5"]);
    assert_eq!((&source.problem, &source.partial), (&None, &None));
    let made = replica_object(
        ReplicaKind::EndpointSlice,
        &source.content().unwrap(),
        "web-x",
        "demo-rome-aaaaaa",
        "demo",
    );
    assert_eq!(made["apiVersion"], "discovery.k8s.io/v1");
    assert_eq!(
        made["metadata"]["labels"],
        json!({ service::SERVICE_NAME: "web", service::MANAGED_BY: "liqo", labels::MANAGED: "true", labels::REFLECTED: "true",
            labels::HOME_NAMESPACE: "demo" })
    );
    let mut live = made;
    live["ports"][0]["name"] = "".into();
    let live = replica_of(ReplicaKind::EndpointSlice, live);
    assert_eq!(
        plan_replicas(
            one(&source),
            &[live],
            &BTreeSet::from([ReplicaKind::EndpointSlice]),
            None
        ),
        []
    );
}

#[test]
fn endpoints_that_are_not_the_consumers_are_left_out_and_named() {
    let clean = clamped_slice(&["10.245.0.5"]);
    let hostile = clamped_slice(&["10.245.0.5", "10.244.0.10", "192.168.0.1"]);
    assert_eq!(hostile.fingerprint, clean.fingerprint);
    let problem = hostile.partial.clone().unwrap();
    assert_eq!(problem.reason, "AddressRefused");
    assert!(
        problem.message.ends_with(": 10.244.0.10, 192.168.0.1"),
        "{}",
        problem.message
    );
    let live = replica_of(
        ReplicaKind::EndpointSlice,
        replica_object(
            ReplicaKind::EndpointSlice,
            &clean.content().unwrap(),
            "web-x",
            "x",
            "demo",
        ),
    );
    let slices = BTreeSet::from([ReplicaKind::EndpointSlice]);
    assert_eq!(
        plan_replicas(one(&hostile), one(&live), &slices, None),
        [ReplicaStep::ReportProblem(
            hostile.clone(),
            Some(problem.clone())
        )]
    );
    let reported = ReplicaSource {
        reported: Some(problem),
        ..hostile
    };
    assert_eq!(
        plan_replicas(one(&reported), one(&live), &slices, None),
        [],
        "it is said once"
    );
    let many: Vec<String> = (0..50).map(|last| format!("192.168.0.{last}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(clamped_slice(&many).partial.unwrap().message.len() < 400);
}

#[test]
fn endpoints_are_only_for_services_of_home() {
    let source = object("endpointslice-1", &slice("admins", &["10.245.0.5"]), |_| {});
    let source = source.clamp_slice(&BTreeSet::from(["web".to_owned()]), |_| true);
    assert_eq!(
        source
            .problem
            .as_ref()
            .map(|problem| problem.reason.as_str()),
        Some("NoService")
    );
    let live = replica_of(ReplicaKind::EndpointSlice, slice("admins", &["10.245.0.5"]));
    let steps = plan_replicas(
        one(&source),
        one(&live),
        &BTreeSet::from([ReplicaKind::EndpointSlice]),
        None,
    );
    assert!(
        matches!(
            &steps[..],
            [ReplicaStep::Delete(_), ReplicaStep::ReportProblem(..)]
        ),
        "{steps:?}"
    );
}

#[test]
fn a_slice_that_is_too_large_keeps_the_endpoints_that_fit() {
    let addresses = |count: usize| {
        (0..count)
            .map(|host| format!("10.245.{}.{}", host / 250, host % 250))
            .collect::<Vec<_>>()
    };
    let of = |count: usize| {
        let addresses = addresses(count);
        object(
            "endpointslice-1",
            &slice(
                "web",
                &addresses.iter().map(String::as_str).collect::<Vec<_>>(),
            ),
            |_| {},
        )
    };
    let (source, kept) = (of(1000), of(1000).endpoints);
    assert!(
        (200..500).contains(&kept) && source.content.as_ref().unwrap().len() <= 16 * 1024,
        "{kept}"
    );
    assert_eq!(
        (
            &source.problem,
            source.partial.as_ref().unwrap().reason.as_str()
        ),
        (&None, "TooLarge")
    );
    assert_eq!(source.fingerprint, of(kept).fingerprint);
}

fn network_policy(name: &str, spec: &Value) -> ReplicaSource {
    let content = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": name }, "spec": spec });
    object("networkpolicy-1", &content, |_| {})
}

fn limits() -> IsolationPolicy {
    IsolationPolicy {
        consumer: crate::fixtures::consumer(),
        internal: BTreeSet::new(),
        own_pods: Vec::new(),
        api_servers: Vec::new(),
        cluster_dns: true,
        ingress_sources: Vec::new(),
        prefixes: vec!["10.245.0.0/16".parse().unwrap()],
    }
}

#[test]
fn a_network_policy_is_written_within_the_limits_and_kept_so() {
    let spec = json!({ "podSelector": { "matchLabels": { "app": "web" } }, "ingress": [{ "from": [
        { "ipBlock": { "cidr": "10.245.0.7/32" } }, { "ipBlock": { "cidr": "10.244.0.7/32" } }] }] });
    let source = network_policy("allow", &spec).clamp_policy(&limits());
    assert_eq!(source.partial.clone().unwrap().reason, "AddressRefused");
    let made = replica_object(
        ReplicaKind::NetworkPolicy,
        &source.content().unwrap(),
        "allow",
        "demo-rome-aaaaaa",
        "demo",
    );
    assert_eq!(
        made["spec"]["ingress"],
        json!([{ "from": [{ "ipBlock": { "cidr": "10.245.0.7/32" } }] }])
    );
    assert_eq!(made["metadata"]["labels"][labels::REFLECTED], "true");
    let policies = BTreeSet::from([ReplicaKind::NetworkPolicy]);
    let reported = ReplicaSource {
        reported: source.partial.clone(),
        ..source
    };
    let nothing_allowed = policy(json!({ "reflectedKinds": [] }));
    assert_eq!(
        plan_replicas(one(&reported), &[], &policies, Some(&nothing_allowed)),
        [ReplicaStep::Create(
            ReplicaKind::NetworkPolicy,
            reported.clone()
        )],
        "no policy keeps it out"
    );
    let live = replica_of(ReplicaKind::NetworkPolicy, made.clone());
    assert_eq!(
        plan_replicas(one(&reported), one(&live), &policies, None),
        []
    );
    let mut opened = made;
    opened["spec"]["ingress"] = json!([{}]);
    let opened = replica_of(ReplicaKind::NetworkPolicy, opened);
    assert_eq!(
        plan_replicas(one(&reported), one(&opened), &policies, None),
        [ReplicaStep::Change(reported, opened)]
    );
}

#[test]
fn a_disruption_budget_goes_with_the_permission_for_its_kind() {
    let source = object("o", &budget("web"), |_| {});
    let live = replica_of(
        ReplicaKind::PodDisruptionBudget,
        replica_object(
            ReplicaKind::PodDisruptionBudget,
            &budget("web"),
            "web",
            "demo-rome-aaaaaa",
            "demo",
        ),
    );
    let steps = |kinds: Value| {
        let policy = policy(json!({ "reflectedKinds": kinds }));
        plan_replicas(
            one(&source),
            one(&live),
            &BTreeSet::from([ReplicaKind::PodDisruptionBudget]),
            Some(&policy),
        )
    };
    assert_eq!(steps(json!(["PodDisruptionBudget"])), []);
    assert!(
        matches!(&steps(json!([]))[..], [ReplicaStep::Delete(gone), ReplicaStep::ReportProblem(_, Some(problem))]
        if *gone == live && problem.reason == "KindNotAllowed")
    );
}

#[test]
fn a_network_policy_that_cannot_be_taken_closes_instead_of_opening() {
    let open = json!({ "podSelector": { "matchLabels": { "app": "web" } }, "ingress": [{}] });
    let ours = network_policy("liqo-ingress", &open).clamp_policy(&limits());
    assert_eq!(
        (
            ours.problem.as_ref().map(|problem| problem.reason.as_str()),
            ours.network_policy()
        ),
        (Some("NameTaken"), NormalizedPolicy::closed())
    );
    let many: Vec<Value> =
        (0..2000).map(|host| json!({ "ipBlock": { "cidr": format!("10.245.{}.{}/32", host / 200, host % 200) } })).collect();
    let long = network_policy(
        "long",
        &json!({ "podSelector": { "matchLabels": { "app": "web" } }, "ingress": [{ "from": many }] }),
    );
    let long = long.clamp_policy(&limits());
    assert_eq!(
        (
            long.problem.as_ref().map(|problem| problem.reason.as_str()),
            long.network_policy()
        ),
        (Some("Invalid"), NormalizedPolicy::closed())
    );
    let strange = network_policy(
        "strange",
        &json!({ "podSelector": { "matchFields": [] }, "ingress": [{}] }),
    )
    .clamp_policy(&limits());
    assert_eq!(
        (
            strange
                .partial
                .as_ref()
                .map(|problem| problem.reason.as_str()),
            strange.network_policy().pods
        ),
        (
            Some("Invalid"),
            crate::replica::label_selector::NormalizedSelector::default()
        )
    );
    assert_eq!(strange.network_policy().ingress, Some(Vec::new()));
}

#[test]
fn policies_that_are_too_many_close_all_pods() {
    let many = |count: usize| -> Vec<ReplicaSource> {
        let policy = |number: usize| {
            let spec = json!({ "podSelector": { "matchLabels": { "app": number.to_string() } } });
            let mut source = network_policy(&format!("p{number}"), &spec);
            source.key.name = format!("networkpolicy-{number:05}");
            source
        };
        clamp_policies(
            (0..count).rev().map(policy).collect(),
            &limits(),
            &crate::fixtures::provider(),
        )
    };
    assert!(
        many(MAX_POLICIES)
            .iter()
            .all(|source| source.problem.is_none())
    );
    let refused: Vec<ReplicaSource> = many(MAX_POLICIES + 1)
        .into_iter()
        .filter(|source| source.problem.is_some())
        .collect();
    assert_eq!(
        refused
            .iter()
            .map(|source| source.name.as_str())
            .collect::<Vec<_>>(),
        [format!("p{MAX_POLICIES}")]
    );
    assert_eq!(refused[0].network_policy(), NormalizedPolicy::closed());
}

#[test]
fn a_policy_with_a_name_that_this_cluster_keeps_for_its_own_closes_all_pods() {
    let (own, other) = (crate::fixtures::provider(), crate::fixtures::consumer());
    let open = json!({ "podSelector": {}, "ingress": [{}] });
    let clamped =
        |name: &str| clamp_policies(vec![network_policy(name, &open)], &limits(), &own).remove(0);
    let refused = clamped(&isolation::brokered_closed_copy(&own));
    assert_eq!(
        refused
            .problem
            .as_ref()
            .map(|problem| problem.reason.as_str()),
        Some("NameTaken")
    );
    assert_eq!(refused.network_policy(), NormalizedPolicy::closed());
    assert_eq!(
        clamped(&isolation::brokered_closed_copy(&other)).problem,
        None,
        "another broker sent it"
    );
}

/// Valid texts of each kind that is reflected, and of one that is not.
fn texts_of_objects() -> impl Strategy<Value = String> {
    let object = |kind: &str, version: &str, content: Value| {
        let mut object = content;
        object["kind"] = kind.into();
        object["apiVersion"] = version.into();
        object["metadata"] = json!({ "name": "web", "labels": { "kubernetes.io/service-name": "web" }, "annotations": { "a": "b" } });
        object.to_string()
    };
    let path = json!({ "path": "/", "pathType": "Prefix", "backend": { "service": { "name": "web", "port": { "number": 80 } } } });
    let ports = json!([{ "name": "http", "port": 80, "targetPort": "http", "protocol": "TCP", "nodePort": 30080 }]);
    let peer =
        json!({ "podSelector": { "matchLabels": { "app": "web" } }, "namespaceSelector": {} });
    let block = json!({ "ipBlock": { "cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"] } });
    prop::sample::select(vec![
        object(
            "ConfigMap",
            "v1",
            json!({ "data": { "key": "value" }, "binaryData": { "b": "AAEC" }, "immutable": true }),
        ),
        object(
            "Service",
            "v1",
            json!({ "spec": { "type": "LoadBalancer", "selector": { "app": "web" }, "ports": ports, "externalIPs": ["192.0.2.1"] } }),
        ),
        object(
            "Service",
            "v1",
            json!({ "spec": { "type": "ExternalName", "externalName": "db.example.org" } }),
        ),
        object(
            "EndpointSlice",
            "discovery.k8s.io/v1",
            json!({ "addressType": "IPv4", "ports": [{ "port": 80 }],
            "endpoints": [{ "addresses": ["10.1.0.5"], "conditions": { "ready": true } }] }),
        ),
        object(
            "Ingress",
            "networking.k8s.io/v1",
            json!({ "spec": { "tls": [{ "secretName": "s" }], "rules": [{ "host": "web.example.org", "http": { "paths": [path] } }] } }),
        ),
        object(
            "NetworkPolicy",
            "networking.k8s.io/v1",
            json!({ "spec": { "podSelector": { "matchExpressions": [{ "key": "a", "operator": "NotIn", "values": ["1", "2"] }] },
            "policyTypes": ["Ingress", "Egress"], "ingress": [{ "from": [peer], "ports": [{ "port": 80, "endPort": 90 }] }], "egress": [{ "to": [block] }] } }),
        ),
        object(
            "Role",
            "rbac.authorization.k8s.io/v1",
            json!({ "rules": [] }),
        ),
    ])
}

/// The record of an object with this text.
fn record_of(text: &str) -> ReplicaSource {
    let object = json!({ "metadata": { "name": "r", "namespace": "t", "uid": "o" }, "spec": { "namespace": "demo", "object": text } });
    ReplicaSource::from_object(serde_json::from_value(object).unwrap())
}

proptest! {
    #[test]
    fn a_mutated_object_is_refused_or_has_a_replica_that_opens_nothing(text in prop_oneof![texts_of_objects(), mutated_text(texts_of_objects())]) {
        let source = record_of(&text);
        let message = source.problem.as_ref().map(|problem| problem.message.len()).unwrap_or_default();
        prop_assert!(message < 2000 && source.name.len() <= 253, "{} bytes", message);
        let Some(kind) = source.kind else { prop_assert!(source.problem.is_some()); return Ok(()) };
        prop_assert!(kind != ReplicaKind::Secret);
        let Some(content) = source.content() else { return Ok(()) };
        let replica = replica_object(kind, &content, &source.name, "mapped", "demo");
        prop_assert_eq!(&replica["metadata"]["namespace"], "mapped");
        prop_assert_eq!(&replica["metadata"]["labels"][labels::MANAGED], "true");
        if kind == ReplicaKind::Service {
            let spec = &replica["spec"];
            prop_assert!(spec.get("externalIPs").is_none() && spec.get("selector").is_none(), "{}", spec);
            prop_assert!(!["NodePort", "ExternalName"].contains(&text_of(spec, "/type")), "{}", spec);
            prop_assert!(items_at(spec, "/ports").iter().all(|port| port.get("nodePort").is_none()), "{}", spec);
        }
        if kind == ReplicaKind::NetworkPolicy {
            let policy = source.network_policy();
            prop_assert_eq!(NormalizedPolicy::from_spec(&policy.to_json()).to_json(), policy.to_json());
        }
        let steps = plan_replicas(one(&source), &[], &both(), None);
        prop_assert!(steps.len() <= 3, "{:?}", steps);
    }
}

fn text_of<'a>(value: &'a Value, pointer: &str) -> &'a str {
    text_at(value, pointer).unwrap_or_default()
}

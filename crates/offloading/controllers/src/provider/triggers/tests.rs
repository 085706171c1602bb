use std::collections::BTreeSet;

use liqo_api::{NamespaceMapSpec, ShadowPod, labels};
use liqo_network_model::PeerMaps;
use serde_json::{Value, json};

use super::*;

fn consumer() -> ClusterId {
    ClusterId::of_public_key(&[7; 32])
}

fn tenant() -> String {
    tenant_namespace(&consumer())
}

fn namespace(kind: NamespaceKind) -> ConsumerNamespace {
    ConsumerNamespace {
        uid: "u".into(),
        consumer: consumer(),
        kind,
        terminating: false,
        pod_security: Vec::new(),
    }
}

fn mapped(home: &str) -> ConsumerNamespace {
    namespace(NamespaceKind::Mapped { home: home.into() })
}

fn map(homes: &[&str]) -> NamespaceMap {
    let mappings = homes.iter().map(|home| {
        (
            (*home).to_owned(),
            WantedNamespace {
                remote_name: format!("{home}-rome"),
            },
        )
    });
    NamespaceMap::new(
        "namespaces",
        NamespaceMapSpec {
            mappings: mappings.collect(),
        },
    )
}

fn pod(uid: &str, address: &str) -> RemotePod {
    let object = json!({
        "metadata": { "name": "web", "namespace": "demo-rome", "uid": uid,
            "labels": { labels::CONSUMER_ID: consumer(), labels::SHADOW_POD: "s", labels::POOL: "default" } },
        "spec": { "containers": [] }, "status": { "podIP": address },
    });
    RemotePod::from_pod(serde_json::from_value(object).unwrap()).unwrap()
}

fn shadow(change: impl FnOnce(&mut Value)) -> ProviderShadowPod {
    let mut object = json!({
        "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ShadowPod",
        "metadata": { "name": "s", "namespace": tenant(), "uid": "u", "generation": 1 },
        "spec": { "namespace": "demo", "pool": "default", "pod": r#"{"metadata": {"name": "web"}, "spec": {"containers": []}}"# },
    });
    change(&mut object);
    ProviderShadowPod::from_shadow_pod(serde_json::from_value::<ShadowPod>(object).unwrap())
}

fn record(kind: &str, api_version: &str, spec: &Value) -> ReplicaSource {
    let object = json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": "web" }, "spec": spec });
    ReplicaSource::from_object(
        serde_json::from_value(json!({
            "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ReflectedObject",
            "metadata": { "name": "r", "namespace": tenant(), "uid": "u" }, "spec": { "namespace": "demo", "object": object.to_string() },
        }))
        .unwrap(),
    )
}

fn group(home: &str, group: SourceGroup) -> ProviderTarget {
    ProviderTarget::Replicas(ReplicaGroup::new(&tenant(), home, group))
}

fn every_group(home: &str) -> [ProviderTarget; 5] {
    [
        SourceGroup::Named,
        SourceGroup::Services,
        SourceGroup::Ingresses,
        SourceGroup::Policies,
        SourceGroup::Budgets,
    ]
    .map(|one| group(home, one))
}

fn pods_of_tenant(home: Option<&str>, all: bool) -> TenantPods {
    TenantPods {
        tenant: tenant(),
        home: home.map(str::to_owned),
        all,
    }
}

fn all_pods() -> ProviderTarget {
    ProviderTarget::TenantPods(pods_of_tenant(None, true))
}

fn all_pods_in(home: &str) -> ProviderTarget {
    ProviderTarget::TenantPods(pods_of_tenant(Some(home), true))
}

fn waiting_pods() -> ProviderTarget {
    ProviderTarget::TenantPods(pods_of_tenant(None, false))
}

fn shadow_key() -> Key {
    Key::new(tenant(), "s")
}

fn offer() -> Key {
    Key::new(tenant(), "default")
}

/// The targets, each once.
fn targets(triggers: &[ProviderTrigger]) -> BTreeSet<ProviderTarget> {
    triggers
        .iter()
        .map(|trigger| trigger.target.clone())
        .collect()
}

fn set(targets: impl IntoIterator<Item = ProviderTarget>) -> BTreeSet<ProviderTarget> {
    targets.into_iter().collect()
}

#[test]
fn a_tenant_namespace_that_comes_or_goes_concerns_its_namespaces_pods_and_secrets() {
    let tenant_namespace = namespace(NamespaceKind::Tenant { cluster_name: None });
    let expected = set([
        ProviderTarget::Namespaces(tenant()),
        all_pods(),
        ProviderTarget::TenantSecrets(tenant()),
    ]);
    assert_eq!(
        targets(&namespace_changed(None, Some(&tenant_namespace))),
        expected
    );
    assert_eq!(
        targets(&namespace_changed(Some(&tenant_namespace), None)),
        expected
    );
}

#[test]
fn a_mapped_namespace_concerns_its_pods_and_replicas_before_and_after_the_change() {
    let expected = |homes: &[&str]| {
        let content = homes
            .iter()
            .flat_map(|home| [all_pods_in(home)].into_iter().chain(every_group(home)));
        set([ProviderTarget::Namespaces(tenant()), waiting_pods()]
            .into_iter()
            .chain(content))
    };
    assert_eq!(
        targets(&namespace_changed(None, Some(&mapped("demo")))),
        expected(&["demo"])
    );
    assert_eq!(
        targets(&namespace_changed(
            Some(&mapped("demo")),
            Some(&mapped("other"))
        )),
        expected(&["demo", "other"])
    );
}

#[test]
fn a_map_concerns_only_the_namespaces_of_which_it_says_something_else() {
    let expected = |homes: &[&str]| {
        let content = homes
            .iter()
            .flat_map(|home| [all_pods_in(home)].into_iter().chain(every_group(home)));
        set([ProviderTarget::Namespaces(tenant())]
            .into_iter()
            .chain(content))
    };
    let changed = |old: Option<&NamespaceMap>, new: Option<&NamespaceMap>| {
        targets(&map_changed(&tenant(), old, new))
    };
    let two = map(&["old", "stays"]);
    assert_eq!(
        changed(Some(&two), Some(&map(&["stays", "new"]))),
        expected(&["old", "new"])
    );
    assert_eq!(changed(None, Some(&two)), expected(&["old", "stays"]));
    assert_eq!(changed(Some(&two), None), expected(&["old", "stays"]));
    assert_eq!(changed(Some(&two), Some(&two)), expected(&[]));
    let with_status = |home: &str| {
        let entry = json!({ "remoteName": format!("{home}-rome"), "phase": "Ready" });
        let status = serde_json::from_value(json!({ "namespaces": { home: entry } })).unwrap();
        NamespaceMap {
            status: Some(status),
            ..two.clone()
        }
    };
    assert_eq!(
        changed(Some(&two), Some(&with_status("stays"))),
        expected(&["stays"])
    );
    assert_eq!(
        changed(Some(&with_status("gone")), Some(&two)),
        expected(&["gone"]),
        "the status may name one for longer"
    );
}

#[test]
fn an_offer_concerns_its_account_and_the_pods_that_wait() {
    let own = PoolOffer::default();
    let concerned = set([waiting_pods(), ProviderTarget::Account(offer())]);
    assert_eq!(
        targets(&offer_changed(&offer(), None, Some(&own))),
        concerned
    );
    let borrowed = PoolOffer {
        borrowed: true,
        nodes: vec![json!({})],
        ..PoolOffer::default()
    };
    assert_eq!(
        targets(&offer_changed(&offer(), Some(&borrowed), Some(&borrowed))),
        concerned
    );
    let tenant = ProviderTarget::Namespaces(offer().namespace);
    for (old, new) in [
        (None, Some(&borrowed)),
        (Some(&borrowed), None),
        (Some(&borrowed), Some(&own)),
    ] {
        assert!(targets(&offer_changed(&offer(), old, new)).contains(&tenant));
    }
    assert!(
        targets(&offer_changed(&offer(), Some(&own), Some(&borrowed))).contains(&all_pods()),
        "some wait for nodes that went"
    );
}

#[test]
fn a_brokered_offloading_concerns_the_pods_and_policies_of_its_namespace_whatever_the_offers_are() {
    let concerned = set([
        ProviderTarget::Namespaces(tenant()),
        waiting_pods(),
        group("demo", SourceGroup::Policies),
    ]);
    assert_eq!(
        targets(&brokered_offloading_changed(&mapped("demo"))),
        concerned
    );
    let borrowed = PoolOffer {
        borrowed: true,
        nodes: vec![json!({})],
        ..PoolOffer::default()
    };
    assert!(
        !targets(&offer_changed(&offer(), Some(&borrowed), None))
            .contains(&ProviderTarget::Isolation)
    );
}

#[test]
fn a_shadow_pod_is_reconciled_unless_only_its_status_changed() {
    let new = shadow(|_| {});
    let itself = set([ProviderTarget::ShadowPod(shadow_key())]);
    let changed = |old, new| targets(&shadow_pod_changed(&shadow_key(), old, new));
    assert_eq!(changed(None, Some(&new)), itself);
    assert_eq!(changed(Some(&new), None), itself);
    let status_only =
        shadow(|object| object["status"] = json!({ "phase": "Created", "remoteUID": "p" }));
    assert_eq!(changed(Some(&new), Some(&status_only)), set([]));
    let updated = shadow(|object| object["metadata"]["generation"] = 2.into());
    assert_eq!(changed(Some(&new), Some(&updated)), itself);
    let deleted =
        shadow(|object| object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
    assert_eq!(changed(Some(&new), Some(&deleted)), itself);
}

#[test]
fn a_remote_pod_concerns_its_shadow_pod_and_its_account() {
    let own = set([
        ProviderTarget::ShadowPod(shadow_key()),
        ProviderTarget::Account(offer()),
    ]);
    let home = |_: &str| Some("demo".to_owned());
    assert_eq!(
        targets(&remote_pod_changed(None, Some(&pod("a", "")), home)),
        own
    );
    assert_eq!(
        targets(&remote_pod_changed(
            Some(&pod("a", "")),
            Some(&pod("a", "10.0.0.1")),
            home
        )),
        own
    );
    let delays = remote_pod_changed(None, Some(&pod("a", "")), home);
    assert!(
        delays.iter().all(|trigger| trigger.delay.is_zero()
            == matches!(trigger.target, ProviderTarget::ShadowPod(_)))
    );
}

#[test]
fn a_remote_pod_that_is_gone_concerns_its_namespace_and_the_endpoints_with_its_address() {
    let own = [
        ProviderTarget::ShadowPod(shadow_key()),
        ProviderTarget::Account(offer()),
    ];
    let home = |namespace: &str| (namespace == "demo-rome").then(|| "demo".to_owned());
    let gone = remote_pod_changed(Some(&pod("a", "10.0.0.1")), None, home);
    let services = group("demo", SourceGroup::Services);
    assert_eq!(
        targets(&gone),
        set(own
            .clone()
            .into_iter()
            .chain([ProviderTarget::Namespaces(tenant()), services.clone()]))
    );
    assert!(
        gone.iter()
            .any(|trigger| trigger.target == services && trigger.delay == ADDRESS_DELAY)
    );
    let moved = remote_pod_changed(
        Some(&pod("a", "10.0.0.1")),
        Some(&pod("b", "10.0.0.2")),
        home,
    );
    assert_eq!(
        targets(&moved),
        set(own.clone().into_iter().chain([services]))
    );
    let without_address = remote_pod_changed(Some(&pod("a", "")), None, home);
    assert_eq!(
        targets(&without_address),
        set(own
            .into_iter()
            .chain([ProviderTarget::Namespaces(tenant())]))
    );
}

#[test]
fn freed_room_is_offered_after_a_moment_and_a_freed_name_at_once() {
    let target = ProviderTarget::ShadowPod(shadow_key());
    assert_eq!(
        room_freed([shadow_key()]),
        [ProviderTrigger {
            target: target.clone(),
            delay: ROOM_DELAY
        }]
    );
    assert_eq!(
        shadow_pods_due([shadow_key()]),
        [ProviderTrigger {
            target,
            delay: Duration::ZERO
        }]
    );
}

#[test]
fn a_record_concerns_the_group_of_its_kind() {
    let cases = [
        ("ConfigMap", "v1", SourceGroup::Named),
        ("Service", "v1", SourceGroup::Services),
        (
            "EndpointSlice",
            "discovery.k8s.io/v1",
            SourceGroup::Services,
        ),
        ("Ingress", "networking.k8s.io/v1", SourceGroup::Ingresses),
        (
            "NetworkPolicy",
            "networking.k8s.io/v1",
            SourceGroup::Policies,
        ),
        ("PodDisruptionBudget", "policy/v1", SourceGroup::Budgets),
        ("Role", "rbac.authorization.k8s.io/v1", SourceGroup::Named),
    ];
    for (kind, api_version, expected) in cases {
        let record = record(kind, api_version, &json!({}));
        for (old, new) in [(None, Some(&record)), (Some(&record), None)] {
            let triggers = record_changed(&tenant(), old, new, || {
                panic!("no load balancer is asked for")
            });
            assert_eq!(targets(&triggers), set([group("demo", expected)]), "{kind}");
            assert_eq!(secret_changed(old, new), triggers);
        }
    }
}

#[test]
fn budgets_are_judged_again_when_a_node_is_cordoned_or_room_is_taken_back() {
    let sources = [
        ("PodDisruptionBudget", "policy/v1"),
        ("ConfigMap", "v1"),
        ("PodDisruptionBudget", "policy/v1"),
    ];
    let sources = sources.map(|(kind, api_version)| record(kind, api_version, &json!({})));
    assert_eq!(
        targets(&cordoned_changed(&sources)),
        set([group("demo", SourceGroup::Budgets)])
    );
    assert_eq!(targets(&cordoned_changed(&sources[1..2])), set([]));
    let homes = BTreeSet::from(["demo".to_owned(), "shop".to_owned()]);
    assert_eq!(
        targets(&room_taken_back(&tenant(), &homes)),
        set([
            group("demo", SourceGroup::Budgets),
            group("shop", SourceGroup::Budgets)
        ])
    );
}

#[test]
fn a_service_that_asks_for_a_load_balancer_concerns_the_services_of_all_namespaces() {
    let plain = record("Service", "v1", &json!({ "ports": [{ "port": 80 }] }));
    let balanced = record(
        "Service",
        "v1",
        &json!({ "type": "LoadBalancer", "ports": [{ "port": 80 }] }),
    );
    let changed = |old, new| {
        targets(&record_changed(&tenant(), old, new, || {
            Some(Arc::new(map(&["demo", "shop"])))
        }))
    };
    let all = set([
        group("demo", SourceGroup::Services),
        group("shop", SourceGroup::Services),
    ]);
    assert_eq!(changed(Some(&plain), Some(&balanced)), all);
    assert_eq!(changed(Some(&balanced), None), all);
    assert_eq!(
        changed(Some(&balanced), Some(&balanced)),
        set([group("demo", SourceGroup::Services)])
    );
}

#[test]
fn a_complete_list_of_secrets_concerns_what_pods_reference() {
    let expected = set([
        group("demo", SourceGroup::Named),
        group("shop", SourceGroup::Named),
    ]);
    assert_eq!(
        targets(&secrets_listed(&tenant(), Some(&map(&["demo", "shop"])))),
        expected
    );
    assert_eq!(secrets_listed(&tenant(), None), []);
}

#[test]
fn services_that_come_or_go_concern_the_ingresses_of_their_namespace_if_there_are_some() {
    let services = ReplicaGroup::new(&tenant(), "demo", SourceGroup::Services);
    let ingress = record("Ingress", "networking.k8s.io/v1", &json!({}));
    let service = record("Service", "v1", &json!({}));
    assert_eq!(
        targets(&services_changed(&services, [&service, &ingress])),
        set([group("demo", SourceGroup::Ingresses)])
    );
    assert_eq!(services_changed(&services, [&service]), []);
    let elsewhere = ReplicaGroup::new(&tenant(), "shop", SourceGroup::Services);
    assert_eq!(services_changed(&elsewhere, [&ingress]), []);
}

#[test]
fn a_changed_policy_concerns_everything_of_the_tenants_that_it_changes_something_for() {
    assert_eq!(targets(&policy_changed()), set([ProviderTarget::Usage]));
    let other = Key::new("another", "default");
    let expected = set([
        ProviderTarget::Namespaces(tenant()),
        waiting_pods(),
        ProviderTarget::Account(offer()),
    ]
    .into_iter()
    .chain(every_group("demo")));
    assert_eq!(
        targets(&usage_changed(
            &tenant(),
            [&offer(), &other],
            Some(&map(&["demo"]))
        )),
        expected
    );
}

#[test]
fn the_pods_of_a_tenant_are_all_or_those_that_wait_for_something() {
    let (waiting, running) = (
        shadow(|_| {}),
        shadow(|object| object["status"] = json!({ "phase": "Created", "remoteUID": "p" })),
    );
    let (first, second, other) = (
        Key::new(tenant(), "a"),
        Key::new(tenant(), "b"),
        Key::new("another", "c"),
    );
    let all = [(&first, &waiting), (&second, &running), (&other, &waiting)];
    let target = |key: &Key| ProviderTarget::ShadowPod(key.clone());
    let concerned = |home, each| targets(&tenant_pods_changed(&pods_of_tenant(home, each), all));
    assert_eq!(
        concerned(None, true),
        set([target(&first), target(&second)])
    );
    assert_eq!(
        concerned(Some("demo"), true),
        set([target(&first), target(&second)])
    );
    assert_eq!(concerned(Some("shop"), true), set([]));
    assert_eq!(concerned(None, false), set([target(&first)]));
    let refused = shadow(|object| {
        object["status"] =
            json!({ "phase": "Created", "remoteUID": "p", "reason": "ChangeRefused" });
    });
    let all = [(&second, &running), (&first, &refused)];
    assert_eq!(
        targets(&tenant_pods_changed(&pods_of_tenant(None, false), all)),
        set([target(&first)]),
        "a change waits"
    );
}

#[test]
fn nodes_and_our_configuration_concern_the_isolation_of_every_mapped_namespace() {
    assert_eq!(targets(&node_changed()), set([ProviderTarget::Isolation]));
    assert_eq!(targets(&config_changed()), set([ProviderTarget::Isolation]));
    assert_eq!(
        targets(&resolver_changed()),
        set([ProviderTarget::Isolation])
    );
    let all = [
        namespace(NamespaceKind::Tenant { cluster_name: None }),
        mapped("demo"),
        mapped("shop"),
    ];
    assert_eq!(
        targets(&isolation_changed(&all)),
        set([
            group("demo", SourceGroup::Policies),
            group("shop", SourceGroup::Policies)
        ])
    );
}

#[test]
fn the_network_to_a_consumer_concerns_its_replicas_with_addresses_and_public_prefixes_concern_all()
{
    let network = |prefix: &str| NetworkToPeer {
        maps: PeerMaps::try_from(&liqo_api::TunnelEndpointSpec {
            cluster_id: consumer(),
            cluster_name: "rome".into(),
            exported: [(
                "10.0.0.0/16".parse().unwrap(),
                "10.1.0.0/16".parse().unwrap(),
            )]
            .into(),
            imported: [("10.244.0.0/16".parse().unwrap(), prefix.parse().unwrap())].into(),
            behind: [].into(),
            customers: [].into(),
            transit: false,
            gateways: Vec::new(),
            mtu: 1420,
            path_mtus: [].into(),
            could_keep: [].into(),
            waiting: [].into(),
            reach: liqo_api::Reach::default(),
            api_server: false,
            accepts_direct: false,
            direct: [].into(),
        })
        .unwrap(),
        ..NetworkToPeer::default()
    };
    let all = BTreeMap::from([
        ("demo-rome".to_owned(), Arc::new(mapped("demo"))),
        (
            tenant(),
            Arc::new(namespace(NamespaceKind::Tenant { cluster_name: None })),
        ),
        (
            "other".to_owned(),
            Arc::new(ConsumerNamespace {
                consumer: ClusterId::of_public_key(&[8; 32]),
                ..mapped("x")
            }),
        ),
    ]);
    let own = set([
        group("demo", SourceGroup::Services),
        group("demo", SourceGroup::Policies),
    ]);
    let (private, public) = (network("10.71.0.0/16"), network("203.0.0.0/16"));
    assert_eq!(
        targets(&network_changed(&consumer(), None, Some(&private), &all)),
        own
    );
    let with_isolation: BTreeSet<ProviderTarget> =
        own.into_iter().chain([ProviderTarget::Isolation]).collect();
    assert_eq!(
        targets(&network_changed(
            &consumer(),
            Some(&private),
            Some(&public),
            &all
        )),
        with_isolation
    );
    assert_eq!(
        targets(&network_changed(&consumer(), Some(&public), None, &all)),
        with_isolation
    );
}

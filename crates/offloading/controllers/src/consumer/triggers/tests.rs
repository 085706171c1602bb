//! One test for each row of the table: what is due when something changes.

use std::slice;

use liqo_api::ClusterId;
use liqo_offloading_rules::pod::remote_events::{EventSelection, RemoteEvent};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;

fn id() -> ClusterId {
    ClusterId::of_public_key(&[1; 32])
}

fn key(name: &str) -> Key {
    Key::new("demo", name)
}

fn reference(kind: ReplicaKind, name: &str) -> Reference {
    Reference::new(kind, &key(name))
}

fn one(kind: ReplicaKind, name: &str) -> ConsumerTrigger {
    records_due(DueRecords::One(reference(kind, name)))
}

fn local(changes: &Value) -> LocalPod {
    let mut pod = json!({ "metadata": { "namespace": "demo", "name": "web", "uid": "u" },
        "spec": { "containers": [{ "name": "c", "envFrom": [{ "configMapRef": { "name": "m" } }] }] } });
    json_patch::merge(&mut pod, changes);
    LocalPod::from_pod(
        serde_json::from_value(pod).unwrap(),
        &Key::new("p", "default"),
    )
    .unwrap()
}

fn remote_record(kind: ReplicaKind, name: &str) -> ReflectionRecord {
    ReflectionRecord {
        part: None,
        reference: reference(kind, name),
        fingerprint: 1,
        terminating: false,
        problem: None,
        exposure: None,
        is_draining: false,
        renew_at: None,
    }
}

fn map(phase: &str) -> NamespaceMap {
    serde_json::from_value(json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "NamespaceMap",
        "metadata": { "name": "m" }, "spec": { "mappings": {} },
        "status": { "namespaces": { "demo": { "remoteName": "demo-rome", "phase": phase }, "shop": { "remoteName": "s", "phase": "Ready" } } } }))
    .unwrap()
}

#[test]
fn a_virtual_node_is_due_when_it_changes_and_the_maps_when_its_node_gets_a_name() {
    let node = |status: Value| -> VirtualNode {
        serde_json::from_value(json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "VirtualNode",
            "metadata": { "name": "default" }, "status": status,
            "spec": { "clusterID": id(), "clusterName": "milan", "pool": "default", "resources": {} } }))
        .unwrap()
    };
    let (new, named) = (
        node(json!({})),
        node(json!({ "nodeName": "milan", "kubeletPort": 20250 })),
    );
    let nodes = vec![NodeKey::VirtualNode(key("default")), NodeKey::Link(id())];
    let maps = vec![NamespaceKey::AllMaps];
    assert_eq!(
        virtual_node_changed(&key("default"), None, Some(&new)),
        (nodes.clone(), maps.clone())
    );
    assert_eq!(
        virtual_node_changed(&key("default"), Some(&new), Some(&new)),
        (nodes.clone(), Vec::new())
    );
    assert_eq!(
        virtual_node_changed(&key("default"), Some(&new), Some(&named)),
        (nodes.clone(), maps.clone())
    );
    assert_eq!(
        virtual_node_changed(&key("default"), Some(&named), None),
        (nodes, maps)
    );
}

#[test]
fn a_node_is_due_when_it_changes_and_the_placement_when_its_labels_do() {
    let labelled = |zone: &str| json!({ "metadata": { "labels": { "zone": zone } } });
    let (one, other, name) = (labelled("a"), labelled("b"), Key::new("", "milan"));
    let nodes = vec![NodeKey::Node("milan".into())];
    assert_eq!(
        node(&name, Some(&one), Some(&one)),
        (nodes.clone(), Vec::new())
    );
    let placement = vec![NamespaceKey::AllMaps, NamespaceKey::AllPods];
    assert_eq!(
        node(&name, Some(&one), Some(&other)),
        (nodes.clone(), placement.clone())
    );
    assert_eq!(node(&name, Some(&one), None), (nodes.clone(), placement));
    let with_room = |cpu: &str| {
        let mut node = one.clone();
        node["metadata"]["annotations"] =
            json!({ "liqo.io/largest-pods": json!([{ "cpu": cpu }]).to_string() });
        node
    };
    let (small, large) = (with_room("1"), with_room("2"));
    assert_eq!(
        node(&name, Some(&small), Some(&large)),
        (nodes.clone(), vec![NamespaceKey::AllUnscheduled])
    );
    assert_eq!(
        node(&name, Some(&large), Some(&small)),
        (nodes, Vec::new()),
        "it frees nobody"
    );
}

#[test]
fn a_namespace_is_due_when_its_offloading_changes_and_its_pods_when_the_user_changed_it() {
    let object = |strategy: &str, conditions: Value| -> NamespaceOffloading {
        serde_json::from_value(json!({ "apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading",
            "metadata": { "namespace": "demo", "name": NAMESPACE_OFFLOADING },
            "spec": { "podOffloadingStrategy": strategy }, "status": { "conditions": conditions } }))
        .unwrap()
    };
    let (one, name) = (object("Local", json!([])), key(NAMESPACE_OFFLOADING));
    let namespace = NamespaceKey::Namespace("demo".into());
    assert_eq!(
        offloading_changed(&name, Some(&one), Some(&one)),
        std::slice::from_ref(&namespace)
    );
    let all = [
        namespace,
        NamespaceKey::Pods("demo".into()),
        NamespaceKey::AllMaps,
    ];
    assert_eq!(
        offloading_changed(&name, Some(&one), Some(&object("Remote", json!([])))),
        all
    );
    assert_eq!(offloading_changed(&name, None, Some(&one)), all);
    assert_eq!(offloading_changed(&name, Some(&one), None), all);
    let mut wants_events = one.clone();
    wants_events.metadata.annotations =
        Some([(annotations::REMOTE_EVENTS.to_owned(), "all".to_owned())].into());
    assert_eq!(
        offloading_changed(&name, Some(&one), Some(&wants_events)),
        all
    );
    assert_eq!(
        offloading_changed(&key("another"), None, Some(&one)),
        [],
        "only one name counts"
    );
}

#[test]
fn a_namespace_is_due_when_the_webhook_begins_to_see_it_and_a_node_when_its_kubelet_is_served_in_another_way()
 {
    assert_eq!(
        webhook_changed(&["demo".to_owned()].into()),
        [NamespaceKey::Namespace("demo".into())]
    );
    assert_eq!(
        kubelet_serving_changed(&key("default")),
        NodeKey::VirtualNode(key("default"))
    );
}

#[test]
fn the_condition_of_a_foreign_cluster_is_due_when_that_changes() {
    let cluster: ForeignCluster =
        serde_json::from_value(json!({ "apiVersion": "discovery.liqo.io/v1alpha1",
        "kind": "ForeignCluster", "metadata": { "name": "milan" }, "spec": { "clusterID": id() } }))
        .unwrap();
    assert_eq!(
        foreign_cluster_changed(Some(&cluster)),
        Some(NodeKey::Link(id()))
    );
    assert_eq!(foreign_cluster_changed(None), None);
}

#[test]
fn whatever_holds_addresses_is_due_when_a_network_changes_and_tokens_when_the_api_server_is_opened()
{
    let network_with = |api_server| NetworkToPeer {
        api_server,
        ..NetworkToPeer::default()
    };
    let addresses = [
        pods_due(DuePods::All),
        records_due(DueRecords::Namespaced(None)),
    ];
    assert_eq!(network_changed(None, Some(&network_with(false))), addresses);
    assert_eq!(
        network_changed(Some(&network_with(true)), Some(&network_with(true))),
        addresses
    );
    let with_tokens = [&addresses[..], &[records_due(DueRecords::Tokens)]].concat();
    assert_eq!(
        network_changed(Some(&network_with(false)), Some(&network_with(true))),
        with_tokens
    );
    assert_eq!(
        network_changed(Some(&network_with(true)), None),
        with_tokens
    );
}

#[test]
fn everything_of_a_provider_is_due_when_its_connection_changes() {
    let all = connection_changed();
    for due in [
        pods_due(DuePods::All),
        records_due(DueRecords::All),
        records_due(DueRecords::Namespaced(None)),
        due_now(ConsumerTarget::Map),
        due_now(ConsumerTarget::Namespace(NamespaceKey::AllNamespaces)),
        due_now(ConsumerTarget::NodesOfProvider),
        events_due(DueEvents::AllWatches),
    ] {
        assert!(all.contains(&due), "{due:?}");
    }
    assert_eq!(
        outage_changed(),
        [
            pods_due(DuePods::All),
            due_now(ConsumerTarget::Namespace(NamespaceKey::AllNamespaces))
        ]
    );
}

#[test]
fn a_pod_without_a_node_is_due_until_it_has_one() {
    let pod = json!({ "metadata": { "namespace": "demo", "name": "web", "uid": "u" }, "spec": { "containers": [] } });
    let pod = UnscheduledPod::from_pod(serde_json::from_value(pod).unwrap()).unwrap();
    assert_eq!(
        unscheduled_pod_changed(&key("web"), Some(&pod)),
        Some(key("web"))
    );
    assert_eq!(unscheduled_pod_changed(&key("web"), None), None);
    // It may have got one of this cluster, unless it can run elsewhere only.
    assert!(
        may_be_at_home(Some(&pod), None)
            && !may_be_at_home(Some(&pod), Some(&pod))
            && !may_be_at_home(None, None)
    );
    let mut sent_away = pod;
    sent_away.must_leave = true;
    assert!(!may_be_at_home(Some(&sent_away), None));
}

#[test]
fn a_pod_and_its_events_are_due_when_its_shadow_pod_changes() {
    assert_eq!(
        shadow_pod_changed("u"),
        [
            pods_due(DuePods::One("u".into())),
            events_due(DueEvents::Of("u".into()))
        ]
    );
}

#[test]
fn the_events_of_a_pod_are_due_when_the_provider_has_one_and_only_then() {
    assert_eq!(
        remote_event_changed("u"),
        events_due(DueEvents::Of("u".into()))
    );
    let peer = RemoteProvider::new(id(), CancellationToken::new());
    let enqueue = |due: DueEvents| enqueue_events(&peer, due, Duration::ZERO);
    enqueue(DueEvents::Of("u".into()));
    assert!(peer.event_queue.is_empty(), "a healthy pod costs nothing");
    let warning = json!({ "metadata": { "uid": "e" }, "type": "Warning", "reason": "Failed", "firstTimestamp": "2026-01-01T00:00:00Z",
        "involvedObject": { "kind": "Pod", "namespace": "m", "name": "web", "uid": "r" } });
    let warning = serde_json::from_value(warning).unwrap();
    let warning = RemoteEvent::from_event(
        warning,
        "m",
        EventSelection::Notable,
        jiff::Timestamp::now(),
    )
    .unwrap();
    peer.journal
        .lock()
        .event_arrived("u", None, warning, std::time::Instant::now());
    enqueue(DueEvents::Of("u".into()));
    assert_eq!(peer.event_queue.len(), 1);
    peer.pod_changed(None, Some(&Arc::new(local(&json!({})))));
    peer.pod_changed(
        None,
        Some(&Arc::new(local(
            &json!({ "metadata": { "name": "db", "uid": "v" } }),
        ))),
    );
    enqueue(DueEvents::AllWatches);
    assert_eq!(peer.event_queue.len(), 2, "both pods are in one namespace");
}

#[test]
fn pods_and_objects_of_a_namespace_are_due_when_its_mapping_changes() {
    let (refused, ready) = (map("Refused"), map("Ready"));
    assert_eq!(
        namespace_map_changed(Some(&ready), Some(&ready)),
        [due_now(ConsumerTarget::Map)]
    );
    let of_demo = [
        due_now(ConsumerTarget::Map),
        pods_due(DuePods::In("demo".into())),
        records_due(DueRecords::Namespaced(Some("demo".into()))),
        due_now(ConsumerTarget::Namespace(NamespaceKey::Namespace(
            "demo".into(),
        ))),
        events_due(DueEvents::Watch("demo".into())),
    ];
    assert_eq!(namespace_map_changed(Some(&refused), Some(&ready)), of_demo);
    assert_eq!(
        namespace_map_changed(None, Some(&ready)).len(),
        9,
        "both namespaces are due"
    );
    assert_eq!(namespace_map_changed(Some(&ready), None).len(), 9);
}

#[test]
fn a_record_is_due_when_its_content_changes_and_not_when_only_the_provider_says_something() {
    let before = remote_record(ReplicaKind::ConfigMap, "m");
    let due = [one(ReplicaKind::ConfigMap, "m")];
    assert_eq!(record_changed(None, Some(&before)), due);
    assert_eq!(record_changed(Some(&before), None), due);
    let written = ReflectionRecord {
        fingerprint: 2,
        ..before.clone()
    };
    assert_eq!(
        record_changed(Some(&before), Some(&written)),
        [due[0].clone(), due[0].clone()]
    );
    assert_eq!(record_changed(Some(&before), Some(&before)), []);
}

#[test]
fn what_a_provider_says_of_a_record_is_due_a_little_later() {
    let said = |kind, name: &str| {
        let before = remote_record(kind, name);
        record_changed(
            Some(&before),
            Some(&ReflectionRecord {
                problem: Some("Invalid: x".into()),
                ..before.clone()
            }),
        )
    };
    let secret = reference(ReplicaKind::Secret, "s");
    let naming = [
        pods_due(DuePods::Naming(secret.clone())).delayed_by(PROBLEM_DELAY),
        records_due(DueRecords::IngressesNaming(secret)).delayed_by(EXPOSURE_DELAY),
    ];
    assert_eq!(said(ReplicaKind::Secret, "s"), naming);
    assert_eq!(
        said(ReplicaKind::Service, "web"),
        [one(ReplicaKind::Service, "web").delayed_by(PROBLEM_DELAY)]
    );
}

#[test]
fn the_namespace_and_the_secrets_of_an_ingress_are_due_when_the_world_reaches_it_in_another_way() {
    let exposed = |kind, name: &str| {
        let before = remote_record(kind, name);
        let exposure = serde_json::from_value(json!({ "class": "public" })).unwrap();
        record_changed(
            Some(&before),
            Some(&ReflectionRecord {
                exposure: Some(exposure),
                ..before.clone()
            }),
        )
    };
    let namespace = due_now(ConsumerTarget::Namespace(NamespaceKey::Namespace(
        "demo".into(),
    )))
    .delayed_by(EXPOSURE_DELAY);
    assert_eq!(
        exposed(ReplicaKind::Service, "web"),
        std::slice::from_ref(&namespace)
    );
    let secrets = [
        namespace,
        records_due(DueRecords::SecretsOf(key("shop"))).delayed_by(EXPOSURE_DELAY),
        records_due(DueRecords::SecretsIn("demo".into())).delayed_by(EXPOSURE_DELAY),
    ];
    assert_eq!(exposed(ReplicaKind::Ingress, "shop"), secrets);
}

#[test]
fn a_pod_is_due_when_it_changes_and_what_it_named_when_it_is_gone() {
    let (pod, own) = (local(&json!({})), pods_due(DuePods::One("u".into())));
    let watch = events_due(DueEvents::Watch("demo".into())).delayed_by(EVENT_WATCH_DELAY);
    assert_eq!(
        local_pod_changed(None, Some(&pod)),
        [own.clone(), watch.clone()]
    );
    assert_eq!(
        local_pod_changed(Some(&pod), Some(&pod)),
        [own.clone(), own.clone()]
    );
    let named = one(ReplicaKind::ConfigMap, "m").delayed_by(DELETED_POD_DELAY);
    assert_eq!(
        local_pod_changed(Some(&pod), None),
        [named.clone(), own.clone(), watch.clone()]
    );
    let ended = local(&json!({ "status": { "phase": "Succeeded" } }));
    assert!(
        local_pod_changed(Some(&pod), Some(&ended)).contains(&watch),
        "it may be the last one that ran"
    );
    let another = local(&json!({ "metadata": { "uid": "v" } }));
    assert_eq!(
        local_pod_changed(Some(&pod), Some(&another)),
        [named, own.clone(), pods_due(DuePods::One("v".into()))],
        "it has the name now"
    );
    let debugged = local(
        &json!({ "spec": { "ephemeralContainers": [{ "name": "d", "envFrom": [{ "secretRef": { "name": "s" } }] }] } }),
    );
    assert_eq!(
        local_pod_changed(Some(&pod), Some(&debugged)),
        [one(ReplicaKind::Secret, "s"), own.clone(), own]
    );
}

#[test]
fn budgets_that_select_a_pod_are_due_when_it_is_counted_in_another_way() {
    let budget = |app: &str| {
        let object = json!({ "metadata": { "name": app }, "spec": { "selector": { "matchLabels": { "app": app } } } });
        (
            key(app),
            Arc::new(
                LocalDisruptionBudget::from_budget(serde_json::from_value(object).unwrap())
                    .unwrap(),
            ),
        )
    };
    let due = |old: Option<&LocalPod>, new: Option<&LocalPod>| {
        budget_pod_changed(old, new, |namespace| {
            if namespace == "demo" {
                vec![budget("web"), budget("db")]
            } else {
                Vec::new()
            }
        })
    };
    let pod = |changes: Value| {
        let mut pod = json!({ "metadata": { "labels": { "app": "web" } } });
        json_patch::merge(&mut pod, &changes);
        local(&pod)
    };
    let [web, db] = ["web", "db"]
        .map(|name| one(ReplicaKind::PodDisruptionBudget, name).delayed_by(BUDGET_DELAY));
    let (waits, other) = (
        pod(json!({})),
        pod(json!({ "metadata": { "annotations": { "a": "b" } } })),
    );
    let ready = pod(
        json!({ "status": { "conditions": [{ "type": "ContainersReady", "status": "True" }] } }),
    );
    let ended = pod(json!({ "status": { "phase": "Failed" } }));
    let relabelled = pod(json!({ "metadata": { "labels": { "app": "db" } } }));
    assert_eq!(due(Some(&waits), Some(&other)), []);
    for (old, new) in [
        (None, Some(&waits)),
        (Some(&waits), Some(&ready)),
        (Some(&ready), Some(&ended)),
        (Some(&ready), None),
    ] {
        assert_eq!(due(old, new), slice::from_ref(&web));
    }
    assert_eq!(due(Some(&waits), Some(&relabelled)), [web, db]);
}

#[test]
fn a_budget_is_due_everywhere_when_a_provider_begins_or_ends_to_drain_a_node() {
    let record = |is_draining| ReflectionRecord {
        is_draining,
        ..remote_record(ReplicaKind::PodDisruptionBudget, "web")
    };
    let due = [one(ReplicaKind::PodDisruptionBudget, "web")];
    assert_eq!(
        draining_changed(Some(&record(false)), Some(&record(true))),
        due
    );
    assert_eq!(draining_changed(Some(&record(true)), None), due);
    assert_eq!(
        draining_changed(Some(&record(true)), Some(&record(true))),
        []
    );
    assert_eq!(draining_changed(None, Some(&record(false))), []);
}

#[test]
fn the_token_of_a_pod_is_due_when_the_pod_is_sent_or_ends() {
    let token = records_due(DueRecords::One(Reference::of_api_server(&local(
        &json!({}),
    ))));
    let sent =
        local(&json!({ "metadata": { "annotations": { liqo_api::annotations::SENT_TO: "t" } } }));
    let ended = local(&json!({ "status": { "phase": "Succeeded" } }));
    for other in [sent, ended] {
        assert!(local_pod_changed(Some(&local(&json!({}))), Some(&other)).contains(&token));
    }
}

#[test]
fn everything_that_pods_name_is_due_when_they_are_listed_and_the_map_when_one_is_gone() {
    assert_eq!(
        pods_listed(),
        [
            records_due(DueRecords::All),
            records_due(DueRecords::Budgets(None)),
            events_due(DueEvents::AllWatches)
        ]
    );
    assert_eq!(
        pod_gone(),
        due_now(ConsumerTarget::Map).delayed_by(DELETED_POD_DELAY)
    );
}

#[test]
fn an_object_is_due_when_it_changes() {
    assert_eq!(
        named_object_changed(ReplicaKind::Secret, &key("s")),
        records_due(DueRecords::IfNamed(reference(ReplicaKind::Secret, "s")))
    );
    for kind in [ReplicaKind::EndpointSlice, ReplicaKind::NetworkPolicy] {
        assert_eq!(object_changed(kind, &key("x")), one(kind, "x"));
    }
}

#[test]
fn the_slices_of_a_service_are_due_when_it_comes_or_goes() {
    let service_of = |annotations: Value| {
        let service = json!({ "metadata": { "namespace": "demo", "name": "web", "annotations": annotations },
            "spec": { "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }] } });
        LocalService::from_service(serde_json::from_value(service).unwrap()).unwrap()
    };
    let slice = |name: &str, service: &str| {
        let slice = json!({ "metadata": { "namespace": "demo", "name": name, "labels": { "kubernetes.io/service-name": service } },
            "addressType": "IPv4", "endpoints": [] });
        (
            key(name),
            Arc::new(
                LocalSlice::from_endpoint_slice(serde_json::from_value(slice).unwrap()).unwrap(),
            ),
        )
    };
    let (web, slices) = (
        service_of(json!({})),
        [slice("web-1", "web"), slice("db-1", "db")],
    );
    let both = [
        one(ReplicaKind::Service, "web"),
        one(ReplicaKind::EndpointSlice, "web-1"),
    ];
    assert_eq!(
        service_changed(&key("web"), None, Some(&web), &slices),
        both
    );
    assert_eq!(
        service_changed(&key("web"), Some(&web), None, &slices),
        both
    );
    assert_eq!(
        service_changed(&key("web"), Some(&web), Some(&web), &slices),
        [one(ReplicaKind::Service, "web")]
    );
}

#[test]
fn the_secrets_of_an_ingress_are_due_when_it_names_them_or_named_them() {
    let ingress_of = |secret: &str| {
        let ingress = json!({ "metadata": { "namespace": "demo", "name": "shop" },
            "spec": { "rules": [{ "host": "shop.example.com" }], "tls": [{ "hosts": ["shop.example.com"], "secretName": secret }] } });
        LocalIngress::from_ingress(serde_json::from_value(ingress).unwrap()).unwrap()
    };
    let due = ingress_changed(
        &key("shop"),
        Some(&ingress_of("old")),
        Some(&ingress_of("new")),
    );
    assert_eq!(
        due,
        [
            one(ReplicaKind::Ingress, "shop"),
            one(ReplicaKind::Secret, "old"),
            one(ReplicaKind::Secret, "new")
        ]
    );
}

#[test]
fn what_travels_with_a_namespace_is_due_when_it_is_listed() {
    assert_eq!(
        services_listed("demo"),
        records_due(DueRecords::Namespaced(Some("demo".into())))
    );
    assert_eq!(
        policies_listed("demo"),
        records_due(DueRecords::Policies(Some("demo".into())))
    );
    assert_eq!(
        policy_sources_changed(),
        records_due(DueRecords::Policies(None)).delayed_by(POLICY_DELAY)
    );
}

#[test]
fn a_policy_is_due_when_a_pod_changes_that_it_selects() {
    let policy = |app: &str| {
        let spec = json!({ "podSelector": {}, "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": app } } }] }] });
        (key(app), Arc::new(NormalizedPolicy::from_spec(&spec)))
    };
    let pod = network_policy_translation::PolicyPod {
        namespace: "demo".into(),
        labels: [("app".to_owned(), "web".to_owned())].into(),
        addresses: Vec::new(),
    };
    let due = policy_pod_changed(
        &[&pod],
        |_| Some(Arc::default()),
        &[policy("web"), policy("db")],
    );
    assert_eq!(
        due,
        [one(ReplicaKind::NetworkPolicy, "web").delayed_by(POLICY_DELAY)]
    );
}

#[test]
fn what_a_provider_says_of_a_record_is_no_reason_to_look_at_pods_at_once() {
    let peer = RemoteProvider::new(id(), CancellationToken::new());
    let pod = Arc::new(local(&json!({})));
    let map = reference(ReplicaKind::ConfigMap, "m");
    assert!(map.is_named_by(&pod));
    peer.pod_changed(None, Some(&pod));
    for _ in 0..3 {
        enqueue_pods(&peer, &DuePods::Naming(map.clone()), PROBLEM_DELAY);
    }
    assert!(peer.pod_queue.is_empty(), "it waits");
    enqueue_pods(&peer, &DuePods::In("demo".into()), Duration::ZERO);
    assert_eq!(peer.pod_queue.len(), 1);
}

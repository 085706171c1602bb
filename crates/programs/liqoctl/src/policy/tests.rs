use std::collections::BTreeMap;

use jiff::Timestamp;
use liqo_api::{
    ClusterId, RESOURCE_REQUEST, isolation::Lending, provider_namespace, tenant_namespace,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, from_value, json};
use tokio::time::Instant;

use super::*;
use crate::output::Paint;

fn id(seed: u8) -> ClusterId {
    ClusterId::of_public_key(&[seed; 32])
}

fn objects<T: DeserializeOwned>(values: Value) -> Vec<T> {
    from_value(values).unwrap()
}

/// Milan has 10 cpu and one GPU free. Rome asks for 2 cpu, turin for nothing.
fn honoured(status: &str, reason: &str) -> Value {
    json!({ "type": "Honoured", "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

fn milan() -> ObjectLists {
    let rome = tenant_namespace(&id(1));
    let labels = json!({ "liqo.io/managed": "true", "liqo.io/namespace-kind": "tenant", "liqo.io/consumer-id": id(1) });
    ObjectLists {
        policies: objects(json!([
            { "metadata": { "name": "default" }, "spec": { "provide": { "percentage": 0 }, "consume": { "accept": "Never" } } },
            { "metadata": { "name": "partners" }, "spec": {
                "priority": 10,
                "peers": { "selector": { "matchLabels": { "tier": "partner" } }, "discoveredBy": ["Manual"] },
                "provide": { "percentage": 40, "caps": { "nvidia.com/gpu": "0" } } },
                "status": { "conditions": [honoured("True", "InBounds")] } },
            { "metadata": { "name": "gpus" }, "spec": {
                "priority": 20, "peers": { "names": ["rome"] }, "provide": { "source": { "fixed": { "resources": { "cpu": "3", "nvidia.com/gpu": "1" } } },
                "noticeSeconds": 60, "usage": { "storageClasses": ["fast"] } }, "consume": { "accept": "Manual", "maxOffers": 2 } },
                "status": { "conditions": [honoured("False", "Overused")] } },
        ])),
        foreign_clusters: objects(json!([
            { "metadata": { "name": "rome", "labels": { "tier": "partner" } }, "spec": { "clusterID": id(1), "offers": { "gold": "Accept" } } },
            { "metadata": { "name": "turin", "labels": { "tier": "partner" } }, "spec": { "clusterID": id(2), "incomingPeering": "No" } },
        ])),
        nodes: objects(json!([
            { "metadata": { "name": "a" }, "status": { "allocatable": { "cpu": "10", "nvidia.com/gpu": "1" }, "conditions": [{ "type": "Ready", "status": "True" }] } },
        ])),
        pods: Vec::new(),
        namespaces: objects(
            json!([{ "metadata": { "name": rome, "uid": "u", "labels": labels } }]),
        ),
        requests: objects(
            json!([{ "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ResourceRequest",
            "metadata": { "name": RESOURCE_REQUEST, "namespace": rome }, "spec": { "resources": { "cpu": "2" } } }]),
        ),
        contracts: Vec::new(),
        offers: Vec::new(),
        lending: Lending::Isolated,
        mode: OwnWorkingMode::default(),
    }
}

fn explained(
    lists: ObjectLists,
    wanted: &str,
    tried: Option<&[(&str, &str)]>,
) -> PolicyExplanation {
    let tried = tried.map(|pairs| {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    });
    let whom = peer_to_explain(&lists.foreign_clusters, wanted, tried.as_ref()).unwrap();
    explain_policy(
        id(9),
        BTreeMap::new(),
        lists,
        &whom,
        Timestamp::UNIX_EPOCH,
        Instant::now(),
    )
}

fn shown(wanted: &str, tried: Option<&[(&str, &str)]>) -> String {
    render_policy_explanation(&explained(milan(), wanted, tried), Paint::off())
}

#[test]
fn policies_are_listed_in_order_with_the_peers_that_each_holds_for() {
    let expected = "\
NAME       PRIORITY   SELECTS                      APPLIES TO   ALSO SELECTS   SOURCE      SHARES                            ACCEPT      HONOURED
gpus       20         name rome                    rome         -              fixed       cpu=3, nvidia.com/gpu=1           Manual      Overused
partners   10         tier=partner, found Manual   turin        rome           all nodes   40 %, at most nvidia.com/gpu=0    Automatic   yes
default    0          everybody                    -            rome, turin    all nodes   0 %                               Never       -";
    let ObjectLists {
        policies,
        foreign_clusters,
        ..
    } = milan();
    // Columns are as wide as their contents.
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = render_policies(&policy_rows(policies, &foreign_clusters));
    for (line, wanted) in text.lines().zip(expected.lines()) {
        assert_eq!(squeezed(line), squeezed(wanted));
    }
    assert_eq!(text.lines().count(), 4);
    assert!(render_policies(&[]).contains("no policy"));
}

#[test]
fn a_policy_for_nobody_is_listed_with_the_reason() {
    let message = "the policy applies to no peer: `peers` selects none of rome, turin";
    let mut policies = milan().policies;
    policies.truncate(1);
    policies[0].status = Some(
        from_value(
            json!({ "conditions": [{ "type": "Active", "status": "False",
        "reason": "NoPeer", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z" }] }),
        )
        .unwrap(),
    );
    let rows = policy_rows(policies, &[]);
    let text = render_policies(&rows);
    assert_eq!(text.lines().last(), Some(&*format!("default: {message}")));
    assert_eq!(serde_json::to_value(&rows).unwrap()[0]["inactive"], message);
}

#[test]
fn many_peers_are_counted_and_not_named() {
    let mut row = policy_rows(milan().policies, &[]).remove(0);
    row.holds_for = (1..=7).map(|number| format!("p{number}")).collect();
    assert!(render_policies(&[row]).contains("p1, p2, p3, p4, p5 and 2 more"));
}

#[test]
fn the_policy_that_holds_is_explained_with_what_follows_from_it() {
    let rome = id(1);
    let expected = format!(
        "\
rome (ID {rome}, found: Manual, labels tier=partner)

Policies, in the order in which Liqo tries them
  ✓ gpus (priority 20): selects the peer, and applies
  · partners (priority 10): also selects the peer, but comes later
  · default (priority 0): also selects the peer, but comes later

Rules of gpus
  provide.source                           cpu=3, nvidia.com/gpu=1 for each peer, as far as that much is free
  provide.granularity                      one pool, named default: one virtual node at the peer
  provide.offerUpdateThresholdPercentage   an offer is rewritten when an amount is off by more than 5 percent
  provide.noticeSeconds                    a notice precedes the end of pods by 60 s when resources are taken back
  provide.approval                         a cluster with a valid token may borrow
  provide.usage.podSecurity                the peer's pods must meet the Pod Security standard baseline
  provide.usage.storageClasses             they may use the storage classes fast
  provide.usage.reflectedKinds             may be reflected here: ConfigMap, Secret, Service, PodDisruptionBudget
  consume.accept                           a person has to decide on each offer of the peer: `liqoctl offer accept`
  consume.maxOffers                        at most 2 of its offers are accepted
Note: manual decisions on its offers: Accept gold (`liqoctl offer list rome`).

The offer to it now; it requests at most cpu=2
  pool default: cpu=2, nvidia.com/gpu=1 (is being written)
  Offered: pool default is offered, under policy gpus"
    );
    assert_eq!(shown("rome", None), expected);
    assert_eq!(shown(rome.as_str(), None), expected);
}

#[test]
fn a_peer_that_does_not_ask_is_shown_what_it_would_get_and_why_it_may_not() {
    let text = shown("turin", None);
    assert!(
        text.contains("✗ gpus (priority 20): does not select the peer\n      peers.names: lists rome; the peer is called turin"),
        "{text}"
    );
    assert!(
        text.contains("Note: incomingPeering of its ForeignCluster is No"),
        "{text}"
    );
    assert!(
        text.contains("if it requested everything\n  pool default: cpu=4, nvidia.com/gpu=0\n"),
        "{text}"
    );
}

#[test]
fn a_peer_that_is_not_known_is_explained_by_its_id_or_by_labels() {
    let by_id = explained(milan(), id(7).as_str(), None);
    assert_eq!(
        (by_id.known, by_id.cluster_id.as_ref()),
        (false, Some(&id(7)))
    );
    let names: Vec<&str> = by_id
        .policies
        .iter()
        .filter(|policy| policy.selects)
        .map(|policy| policy.name.as_str())
        .collect();
    assert_eq!(names, ["default"]);
    assert!(
        by_id.policies[0].misfits[0]
            .text
            .contains("no ForeignCluster"),
        "{:?}",
        by_id.policies[0]
    );
    assert_eq!(by_id.offer.pools, []);
    assert!(
        by_id.offer.message.contains("0 percent"),
        "{}",
        by_id.offer.message
    );

    let by_labels = explained(milan(), "genoa", Some(&[("tier", "partner")]));
    assert_eq!(
        (by_labels.known, by_labels.cluster_id.as_ref()),
        (false, None)
    );
    assert_eq!(
        by_labels.offer.pools[0].resources.get("cpu").to_string(),
        "4"
    );
    let none = explained(milan(), "genoa", Some(&[]));
    assert!(
        none.policies[1]
            .misfits
            .iter()
            .any(|misfit| misfit.text.contains("the peer has no labels"))
    );

    let error = peer_to_explain(&milan().foreign_clusters, "genoa", None)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("there is no peer genoa: there are rome, turin.")
            && error.contains("--labels"),
        "{error}"
    );
}

#[test]
fn a_peer_that_calls_itself_by_the_id_of_another_is_not_explained_for_it() {
    let mut known = milan().foreign_clusters;
    known[0].metadata.name = Some(id(7).to_string());
    let found = peer_to_explain(&known, id(7).as_str(), None).unwrap();
    assert_eq!((found.known, found.peer.id), (false, id(7)));
}

#[test]
fn labels_that_are_tried_stand_beside_those_that_are_there() {
    let tried = explained(
        milan(),
        "turin",
        Some(&[("tier", "other"), ("liqo.io/discovered-by", "LAN")]),
    );
    let fields: Vec<&str> = tried.policies[1]
        .misfits
        .iter()
        .map(|misfit| misfit.field.as_str())
        .collect();
    assert_eq!(fields, ["peers.selector", "peers.discoveredBy"]);
    assert_eq!(tried.discovered_by, "LAN");
    assert!(tried.policies[2].holds);
}

#[test]
fn without_a_policy_nothing_is_shared_and_that_is_said() {
    let explanation = explained(
        ObjectLists {
            policies: Vec::new(),
            ..milan()
        },
        "rome",
        None,
    );
    let text = render_policy_explanation(&explanation, Paint::off());
    assert!(text.contains("No policy selects this peer"), "{text}");
    assert!(text.contains("  nothing\n  NoPolicy: "), "{text}");
}

#[test]
fn what_a_plugin_says_is_not_guessed() {
    let mut lists = milan();
    lists.policies = objects(json!([
        { "metadata": { "name": "default" }, "spec": { "provide": { "source": { "plugin": { "address": "broker:6001" } } } } },
    ]));
    let never_asked = explained(milan_with(&lists), "turin", None);
    assert!(
        !never_asked.offer.computed && never_asked.offer.message.contains("has not asked"),
        "{:?}",
        never_asked.offer
    );
    lists.offers = objects(
        json!([{ "metadata": { "name": "gold", "namespace": tenant_namespace(&id(1)) },
        "spec": { "clusterID": id(9), "pool": "gold", "resourceQuota": { "hard": { "cpu": "7" } }, "reclaimTimestamp": "2026-01-01T00:05:00Z" } }]),
    );
    let mut rome = serde_json::to_value(&lists.foreign_clusters[0]).unwrap();
    rome["status"] = json!({ "conditions": [{ "type": "ResourcesOffered", "status": "False", "reason": "PluginFailed",
        "message": "policy default: no answer", "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
    lists.foreign_clusters[0] = from_value(rome).unwrap();
    let text = render_policy_explanation(&explained(lists, "rome", None), Paint::off());
    let expected = "\
The last offer to it; liqoctl cannot ask the plugin
  pool gold: cpu=7; from 2026-01-01T00:05:00Z on, this cluster ends pods beyond the offer
  PluginFailed: policy default: no answer";
    assert!(text.ends_with(expected), "{text}");
    assert!(
        text.contains("what the resource plugin at broker:6001 says (P3, in plain text)"),
        "{text}"
    );
}

/// The usual lists with the policies of others.
fn milan_with(others: &ObjectLists) -> ObjectLists {
    ObjectLists {
        policies: others.policies.clone(),
        ..milan()
    }
}

#[test]
fn an_offer_that_changes_shows_both_amounts() {
    let mut lists = milan();
    lists.offers = objects(
        json!([{ "metadata": { "name": "default", "namespace": tenant_namespace(&id(1)) },
        "spec": { "clusterID": id(9), "pool": "default", "resourceQuota": { "hard": { "cpu": "1" } } } }]),
    );
    let text = render_policy_explanation(&explained(lists, "rome", None), Paint::off());
    assert!(
        text.contains("pool default: cpu=2, nvidia.com/gpu=1 (now cpu=1)"),
        "{text}"
    );
}

#[test]
fn a_request_that_cannot_be_read_is_said() {
    let mut lists = milan();
    lists.requests = objects(
        json!([{ "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ResourceRequest",
        "metadata": { "name": RESOURCE_REQUEST, "namespace": tenant_namespace(&id(1)) }, "spec": { "resources": { "cpu": "1e99999999999999999999" } } }]),
    );
    let text = render_policy_explanation(&explained(lists, "rome", None), Paint::off());
    assert!(
        text.contains(
            "The offer to it now; its request cannot be parsed\n  nothing\n  Unreadable: "
        ),
        "{text}"
    );
}

#[test]
fn a_peer_that_asks_for_a_pool_for_each_node_is_shown_what_it_gets() {
    let mut lists = milan();
    lists.requests = objects(
        json!([{ "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ResourceRequest",
        "metadata": { "name": RESOURCE_REQUEST, "namespace": tenant_namespace(&id(1)) }, "spec": { "granularity": "Node" } }]),
    );
    let shown = |lists: ObjectLists| {
        render_policy_explanation(&explained(lists, "rome", None), Paint::off())
    };
    let with = |may_choose: bool, lists: &ObjectLists| {
        let mut policies = milan().policies;
        policies[2].spec.provide.granularity.peers_may_choose = may_choose;
        ObjectLists {
            policies,
            requests: lists.requests.clone(),
            ..milan()
        }
    };
    let refused = shown(with(false, &lists));
    let title = "The offer to it now; it requests everything, with one pool for each node\n  pool default: ";
    assert!(refused.contains(title), "{refused}");
    assert!(
        refused.ends_with(
            "  NotAllowed: the provider's PeeringPolicy does not let its peers choose (provide.granularity.peersMayChoose)"
        ),
        "{refused}"
    );
    let granted = shown(with(true, &lists));
    assert!(
        granted.contains("with one pool for each node\n  pool a: cpu=3, nvidia.com/gpu=1"),
        "{granted}"
    );
    assert!(!granted.contains("NotAllowed"), "{granted}");
}

#[test]
fn programs_get_the_same_in_json() {
    let json = serde_json::to_value(explained(milan(), "turin", None)).unwrap();
    assert_eq!(json["policies"][0]["misfits"][0]["field"], "peers.names");
    assert_eq!(json["policies"][1]["holds"], true);
    assert_eq!(json["offer"]["pools"][0]["resources"]["cpu"], "4");
    assert_eq!(json["offer"].get("asked"), None);
}

#[test]
fn every_field_of_a_policy_has_words() {
    let spec = from_value(json!({
        "provide": {
            "source": { "nodes": { "selectors": [{ "matchLabels": { "pool": "lend" } }, { "matchExpressions": [{ "key": "gpu", "operator": "Exists" }] }] } },
            "weight": 3, "overcommitPercentage": 150, "granularity": { "by": "NodeLabel", "label": "zone", "peersMayChoose": true },
            "offerUpdateThresholdPercentage": 0, "noticeSeconds": 0, "absenceSeconds": 3600, "approval": "Manual",
            "usage": { "podSecurity": "restricted", "ingressClasses": ["nginx", ""], "ingressHosts": ["*.example.com"],
                "ingressAnnotations": ["example.com/size"], "loadBalancerClasses": ["lb"], "allowedIngressSources": ["ingress-nginx"], "runtimeClassName": "gvisor",
                "priorityClassName": "low", "volumeTypes": [], "charge": "Limits", "tolerations": [{ "key": "gpu", "operator": "Exists", "effect": "NoSchedule" }],
                "namespaceNames": ["team-*"], "maxNamespaces": 5, "maxServices": 6, "maxEndpoints": 7, "reflectedKinds": [], "podLabels": ["example.com/*"], "podAnnotations": ["prometheus.io/scrape"],
                "images": ["docker.io/library"], "alwaysPullImages": true, "defaultLimitPercentage": 100, "hardening": "None" },
        },
        "consume": { "accept": "Automatic", "maxResources": { "cpu": "8" } },
    }))
    .unwrap();
    let text: Vec<String> = words::policy_sentences(&spec)
        .into_iter()
        .map(|one| format!("{}: {}", one.field, one.text))
        .collect();
    let expected = [
        "provide.source: what is free on the local nodes with pool=lend, or with gpu",
        "provide.percentage: 90 percent of that, for all peers of this policy together",
        "provide.weight: when amounts are divided, a peer of this policy counts 3 times",
        "provide.overcommitPercentage: offers promise 150 percent of that, which is more than exists",
        "provide.granularity: one pool for each value of the nodes' label zone; nodes without it are not offered",
        "provide.granularity.peersMayChoose: a peer may ask for one pool for each node instead, of at most 15 nodes; the amounts stay the same",
        "provide.offerUpdateThresholdPercentage: an offer is rewritten whenever an amount differs",
        "provide.noticeSeconds: resources are taken back at once, and their pods end",
        "provide.absenceSeconds: pods of a peer that is silent for 3600 s end",
        "provide.approval: a person has to approve each peer: `liqoctl approve PEER`",
        "provide.usage.podSecurity: the peer's pods must meet the Pod Security standard restricted",
        "provide.usage.ingressClasses: their Ingresses may have the classes nginx, (the default of the cluster)",
        "provide.usage.ingressHosts: their Ingresses may claim *.example.com",
        "provide.usage.ingressAnnotations: their Ingresses keep the annotations example.com/size",
        "provide.usage.loadBalancerClasses: their load balancers may have the classes lb",
        "provide.usage.maxLoadBalancers: maximum number of load balancers for each peer: 10",
        "provide.usage.allowedIngressSources: their pods are also reachable from ingress-nginx",
        "provide.usage.runtimeClassName: they get the RuntimeClass gvisor",
        "provide.usage.priorityClassName: they get the PriorityClass low",
        "provide.usage.tolerations: they keep tolerations of gpu (NoSchedule)",
        "provide.usage.namespaceNames: their namespaces may also be named team-*",
        "provide.usage.volumeTypes: they may have no volumes",
        "provide.usage.maxNamespaces: maximum number of namespaces for each peer: 5",
        "provide.usage.maxServices: maximum number of Services for each peer: 6",
        "provide.usage.maxEndpoints: maximum number of endpoints, each counted for every port, for each peer: 7",
        "provide.usage.charge: pods count with their limits, and each container must have limits of cpu and memory",
        "provide.usage.podLabels: they keep the labels example.com/*",
        "provide.usage.podAnnotations: they keep the annotations prometheus.io/scrape",
        "provide.usage.images: they may use images of docker.io/library only",
        "provide.usage.alwaysPullImages: nodes ask the registry for every image that they start with",
        "provide.usage.defaultLimitPercentage: containers without limits of memory and ephemeral storage get 100 percent of their requests",
        "provide.usage.hardening: containers may have raw sockets, and run without a seccomp profile unless they name one",
        "provide.usage.reflectedKinds: nothing is reflected here",
        "consume.accept: what the peer offers is accepted",
        "consume.maxResources: at most cpu=8 of all its offers together is accepted; a larger offer is accepted in part",
    ];
    assert_eq!(text, expected);
}

#[test]
fn a_large_cluster_is_explained_like_a_small_one() {
    let mut lists = milan();
    let node = serde_json::to_value(&lists.nodes[0]).unwrap();
    let named = |number: u8| {
        let mut node = node.clone();
        node["metadata"]["name"] = json!(format!("n{number}"));
        from_value(node).unwrap()
    };
    lists.nodes = (0..200).map(named).collect();
    let turin = explained(lists, "turin", None);
    assert_eq!(turin.offer.pools[0].resources.get("cpu").to_string(), "800");
}

#[test]
fn what_the_peer_offers_here_is_told_and_that_nobody_called_it() {
    let mut lists = milan();
    let condition = json!({ "type": "OfferAccepted", "status": "False", "reason": "ManualActionRequired", "message": "you decide",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    lists.foreign_clusters = objects(json!([
        { "metadata": { "name": "rome", "labels": { "liqo.io/managed": "true" } }, "spec": { "clusterID": id(1) },
          "status": { "conditions": [condition] } },
    ]));
    let offer = |namespace: String, cpu: &str| {
        json!({ "metadata": { "name": "gold", "namespace": namespace }, "status": { "phase": "ManualActionRequired" },
            "spec": { "clusterID": id(1), "pool": "gold", "resourceQuota": { "hard": { "cpu": cpu } } } })
    };
    lists.offers = objects(json!([
        offer(provider_namespace(&id(1)), "3"),
        offer(provider_namespace(&id(2)), "4")
    ]));
    let text = render_policy_explanation(&explained(lists, "rome", None), Paint::off());
    assert!(
        text.contains("it registered itself") && !text.contains("found: Manual"),
        "{text}"
    );
    let end = "Its offer to this cluster\n  pool gold: cpu=3 (ManualActionRequired)\n  ManualActionRequired: you decide";
    assert!(text.ends_with(end), "{text}");
    assert!(
        !shown("rome", None).contains("Its offer to this cluster"),
        "nothing is asked of rome there"
    );
}

#[test]
fn a_broker_is_described() {
    let spec = from_value(json!({
        "provide": { "source": { "offers": { "ownNodes": true, "margin": { "currency": "EUR", "percent": 10, "fixed": { "cpu": "0.01" } } } } },
        "consume": { "maxHops": 2 },
    }));
    let spec: liqo_api::PeeringPolicySpec = spec.unwrap();
    let text: Vec<String> = words::policy_sentences(&spec)
        .into_iter()
        .map(|one| format!("{}: {}", one.field, one.text))
        .collect();
    for expected in [
        "provide.source: what is free on the virtual nodes, which other clusters offer, and on all local nodes",
        "provide.source.offers.margin: costs what its providers ask, in EUR, and 10 percent more, and cpu=0.01",
        "consume.maxHops: resources may come through at most 2 clusters, with the peer",
    ] {
        assert!(text.iter().any(|line| line == expected), "{text:?}");
    }
    assert_eq!(
        words::source_in_short(&spec.provide.source),
        "offers, all nodes"
    );
}

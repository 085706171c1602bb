use liqo_network_model::{PrefixMap, There};
use serde_json::{Value, json};

use super::*;
use crate::replica::isolation::IsolationPolicy;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn labels_of(pairs: &[(&str, &str)]) -> LabelMap {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn pod(namespace: &str, app: &str, address: &str) -> PolicyPod {
    PolicyPod {
        namespace: namespace.into(),
        labels: labels_of(&[("app", app)]),
        addresses: vec![address.parse().unwrap()],
    }
}

/// Rome, whose pods are 10.244.0.0/16 and 10.66.0.0/16 for milan. It sees milan's at 10.65.0.0/16,
/// and a third cluster's at 10.67.0.0/16.
struct Rome {
    namespaces: BTreeMap<String, LabelMap>,
    pods: Vec<PolicyPod>,
    mapped: BTreeSet<String>,
    maps: Option<PeerMaps>,
}

impl Rome {
    fn new() -> Self {
        let map = |pairs: &[(&str, &str)]| {
            PrefixMap::new(
                pairs
                    .iter()
                    .map(|(here, there)| (Here(net(here)), There(net(there)))),
            )
            .unwrap()
        };
        let named = |name: &str, team: &str| {
            (
                name.to_owned(),
                labels_of(&[("kubernetes.io/metadata.name", name), ("team", team)]),
            )
        };
        let mut dns = pod("kube-system", "dns", "10.244.0.2");
        dns.labels = labels_of(&[DNS_LABEL]);
        Self {
            namespaces: [
                named("shop", "a"),
                named("bank", "a"),
                named("home", "b"),
                named("kube-system", ""),
            ]
            .into(),
            pods: vec![
                dns,
                pod("shop", "web", "10.244.1.10"),
                pod("shop", "web", "10.244.1.11"),
                pod("shop", "db", "10.244.1.20"),
                pod("shop", "web", "10.65.0.9"),
                pod("shop", "web", "10.67.0.9"),
                pod("bank", "web", "10.244.2.1"),
                pod("home", "web", "10.244.3.1"),
                pod("home", "agent", "192.168.1.5"),
            ],
            mapped: ["shop".to_owned(), "bank".to_owned()].into(),
            maps: Some(PeerMaps {
                exported: map(&[
                    ("10.244.0.0/16", "10.66.0.0/16"),
                    ("10.70.0.0/24", "10.71.0.0/24"),
                ]),
                imported: map(&[("10.65.0.0/16", "10.244.0.0/16")]),
            }),
        }
    }

    fn translated(&self, spec: &Value) -> NormalizedPolicy {
        let pods: Vec<&PolicyPod> = self.pods.iter().collect();
        let ranges = [net("10.244.0.0/16")];
        let seen = ClusterView {
            namespaces: &self.namespaces,
            pods: &pods,
            mapped: &self.mapped,
            maps: self.maps.as_ref(),
            ranges: &ranges,
        };
        translate_policy(&NormalizedPolicy::from_spec(spec), "shop", &seen)
    }

    /// The translation of these peers for milan.
    fn peers(&self, direction: &str, peers: &Value) -> Vec<Value> {
        let (types, field) = if direction == "from" {
            ("Ingress", "ingress")
        } else {
            ("Egress", "egress")
        };
        let spec =
            json!({ "podSelector": {}, "policyTypes": [types], field: [{ direction: peers }] });
        let policy = self.translated(&spec).to_json();
        policy[field][0][direction]
            .as_array()
            .cloned()
            .unwrap_or_default()
    }
}

fn blocks(cidrs: &[&str]) -> Vec<Value> {
    cidrs
        .iter()
        .map(|cidr| json!({ "ipBlock": { "cidr": cidr } }))
        .collect()
}

#[test]
fn pods_of_the_same_namespace_are_those_there_and_the_addresses_of_all_others() {
    let peers = Rome::new().peers(
        "from",
        &json!([{ "podSelector": { "matchLabels": { "app": "web" } } }]),
    );
    let expected = [
        vec![json!({ "podSelector": { "matchLabels": { "app": "web" } } })],
        blocks(&["10.66.1.10/31"]),
    ]
    .concat();
    assert_eq!(
        peers, expected,
        "neighbours become one range; who is at milan, or at a cluster that it does not see, is not named"
    );
}

#[test]
fn without_a_network_only_pods_there_are_meant() {
    let rome = Rome {
        maps: None,
        ..Rome::new()
    };
    let web = json!({ "podSelector": { "matchLabels": { "app": "web" } } });
    assert_eq!(rome.peers("from", &json!([web])), [web]);
    assert_eq!(
        rome.peers("from", &json!([{ "ipBlock": { "cidr": "10.244.0.0/16" } }])),
        [] as [Value; 0]
    );
}

#[test]
fn namespaces_are_named_there_by_their_names_here() {
    let team = json!([{ "namespaceSelector": { "matchLabels": { "team": "a" } }, "podSelector": { "matchLabels": { "app": "web" } } }]);
    let there = json!({ "namespaceSelector": { "matchExpressions": [
        { "key": "liqo.io/home-namespace", "operator": "In", "values": ["bank", "shop"] }] },
        "podSelector": { "matchLabels": { "app": "web" } } });
    let expected = [vec![there], blocks(&["10.66.1.10/31", "10.66.2.1/32"])].concat();
    assert_eq!(Rome::new().peers("from", &team), expected);

    let by_name = json!([{ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "home" } } }]);
    assert_eq!(
        Rome::new().peers("to", &by_name),
        blocks(&["10.66.3.1/32"]),
        "it is not there, and nodes are no pods"
    );
    let nobody = json!([{ "namespaceSelector": { "matchLabels": { "team": "z" } } }]);
    assert_eq!(Rome::new().peers("from", &nobody), [] as [Value; 0]);
}

#[test]
fn all_pods_of_all_namespaces_are_whole_ranges() {
    let peers = Rome::new().peers("from", &json!([{ "namespaceSelector": {} }]));
    assert_eq!(
        peers,
        [
            vec![json!({ "namespaceSelector": {} })],
            blocks(&["10.66.0.0/16"])
        ]
        .concat()
    );
}

#[test]
fn addresses_of_pods_become_what_the_provider_calls_them_and_private_ones_of_others_nothing() {
    let rome = Rome::new();
    for (block, expected) in [
        (
            json!({ "cidr": "10.244.1.0/24", "except": ["10.244.1.20/32"] }),
            json!([{ "cidr": "10.66.1.0/24", "except": ["10.66.1.20/32"] }]),
        ),
        (
            json!({ "cidr": "203.0.113.0/24", "except": ["203.0.113.128/25"] }),
            json!([{ "cidr": "203.0.113.0/24", "except": ["203.0.113.128/25"] }]),
        ),
        (json!({ "cidr": "192.168.0.0/16" }), json!([])),
        // Addresses of others there, and the range at which rome sees milan's pods.
        (json!({ "cidr": "10.66.0.0/16" }), json!([])),
        (json!({ "cidr": "10.65.7.0/24" }), json!([])),
        (
            json!({ "cidr": "10.0.0.0/8", "except": ["10.244.0.0/16", "10.70.0.0/16"] }),
            json!([]),
        ),
    ] {
        let peers: Vec<Value> = rome
            .peers("from", &json!([{ "ipBlock": block }]))
            .iter()
            .map(|peer| peer["ipBlock"].clone())
            .collect();
        let peers: Vec<Value> = peers.into_iter().filter(|block| !block.is_null()).collect();
        assert_eq!(Value::from(peers), expected, "{block}");
    }
}

#[test]
fn a_range_with_all_that_we_see_of_the_provider_has_our_pods_there() {
    let rome = Rome::new();
    let tenant = json!({ "namespaceSelector": {} });
    let all = rome.peers(
        "from",
        &json!([{ "ipBlock": { "cidr": "0.0.0.0/0", "except": ["169.254.169.254/32"] } }]),
    );
    assert!(all.contains(&tenant), "{all:?}");
    assert!(
        blocks(&["10.66.0.0/16", "10.71.0.0/24"])
            .iter()
            .all(|block| all.contains(block)),
        "{all:?}"
    );
    let internet = all
        .iter()
        .find(|peer| peer["ipBlock"]["cidr"] == "0.0.0.0/0")
        .unwrap();
    let except = internet["ipBlock"]["except"].as_array().unwrap();
    assert!(
        ["10.0.0.0/8", "169.254.0.0/16"]
            .iter()
            .all(|one| except.contains(&json!(one))),
        "{internet}"
    );
    let halves = json!([{ "ipBlock": { "cidr": "10.65.0.0/17" } }, { "ipBlock": { "cidr": "10.65.128.0/17" } }]);
    assert!(
        !rome.peers("from", &halves).contains(&tenant),
        "who it is that is in one half is not known there"
    );
    let part = json!([{ "ipBlock": { "cidr": "0.0.0.0/0", "except": ["10.65.0.9/32"] } }]);
    assert!(!rome.peers("from", &part).contains(&tenant));
}

#[test]
fn who_may_resolve_names_here_may_there() {
    let rome = Rome::new();
    let dns = json!({ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "kube-system" } },
        "podSelector": { "matchLabels": { "k8s-app": "kube-dns" } } });
    for peer in [
        dns.clone(),
        json!({ "namespaceSelector": {} }),
        json!({ "ipBlock": { "cidr": "10.244.0.0/24" } }),
    ] {
        assert!(rome.peers("to", &json!([peer])).contains(&dns), "{peer}");
        assert!(
            peer == dns || !rome.peers("from", &json!([peer])).contains(&dns),
            "{peer}"
        );
    }
    assert!(
        !rome
            .peers("to", &json!([{ "podSelector": {} }]))
            .contains(&dns)
    );
    let no_pods = Rome {
        pods: Vec::new(),
        ..Rome::new()
    };
    assert!(
        no_pods.peers("to", &json!([dns])).contains(&dns),
        "where names are resolved on nodes"
    );
}

#[test]
fn everybody_and_ports_travel_as_they_are_and_nobody_never_becomes_everybody() {
    let rome = Rome::new();
    let rule = |rule: &Value| {
        rome.translated(&json!({ "podSelector": {}, "ingress": [rule] }))
            .to_json()
            .get("ingress")
            .cloned()
    };
    let ports = json!([{ "protocol": "TCP", "port": 80, "endPort": 90 }, { "protocol": "TCP", "port": "web" }]);
    assert_eq!(
        rule(&json!({ "ports": ports })),
        Some(json!([{ "ports": ports }]))
    );
    assert_eq!(
        rule(&json!({ "ports": ports, "from": [{ "ipBlock": { "cidr": "192.168.0.0/16" } }] })),
        None
    );
}

#[test]
fn labels_that_a_remote_pod_does_not_have_select_nobody_there_and_close_what_they_select_here() {
    let rome = Rome::new();
    let own = json!({ "matchLabels": { "app": "web" }, "matchExpressions": [{ "key": "liqo.io/x", "operator": "DoesNotExist" }] });
    assert_eq!(
        rome.peers("from", &json!([{ "podSelector": own }])),
        blocks(&["10.66.1.10/31"])
    );
    let closed = rome.translated(&json!({ "podSelector": own, "ingress": [{}] }));
    assert!(closed.narrowed);
    assert_eq!(
        closed.to_json(),
        json!({ "podSelector": { "matchLabels": { "app": "web" } }, "policyTypes": ["Ingress"] })
    );
}

#[test]
fn more_addresses_than_fit_are_left_out_and_that_is_said() {
    let mut rome = Rome::new();
    let spread = |count: usize| {
        (0..count).map(|number| {
            pod(
                "shop",
                "many",
                &format!("10.244.{}.{}", number / 100, number % 100 * 2),
            )
        })
    };
    let many = json!({ "podSelector": { "matchLabels": { "app": "many" } } });
    rome.pods = spread(MAX_ADDRESSES).collect();
    assert_eq!(rome.peers("from", &json!([many])).len(), MAX_ADDRESSES + 1);
    rome.pods = spread(MAX_ADDRESSES + 1).collect();
    assert_eq!(
        rome.peers("from", &json!([many])),
        std::slice::from_ref(&many)
    );
    assert!(
        rome.translated(&json!({ "podSelector": {}, "ingress": [{ "from": [many] }] }))
            .narrowed
    );
}

#[test]
fn a_policy_that_is_too_long_opens_nothing_there() {
    let mut rome = Rome::new();
    let long: Vec<Value> =
        (0..700).map(|number| json!({ "ipBlock": { "cidr": format!("198.51.{}.{}/32", number / 100, number % 100) } })).collect();
    let translated = |count: usize| {
        rome.translated(&json!({ "podSelector": {}, "ingress": [{ "from": long[..count] }] }))
    };
    assert_eq!(translated(100).rules().count(), 1);
    assert_eq!(
        (translated(700).ingress, translated(700).narrowed),
        (Some(Vec::new()), true)
    );
    // Addresses cannot make a policy of maximum length too long.
    rome.pods = (0..MAX_ADDRESSES)
        .map(|number| {
            pod(
                "shop",
                "many",
                &format!("10.244.{}.{}", 100 + number / 100, 1 + number % 100 * 2),
            )
        })
        .collect();
    assert_eq!(
        rome.peers("from", &json!([{ "podSelector": {} }])).len(),
        MAX_ADDRESSES + 1
    );
}

#[test]
fn a_pod_concerns_the_policies_that_speak_of_it() {
    let rome = Rome::new();
    let concerns = |peer: Value, pod: &PolicyPod| {
        let policy = NormalizedPolicy::from_spec(
            &json!({ "podSelector": {}, "ingress": [{ "from": [peer] }] }),
        );
        depends_on_pod(&policy, "shop", pod, rome.namespaces.get(&pod.namespace))
    };
    let (web, elsewhere) = (
        pod("shop", "web", "10.244.1.10"),
        pod("home", "web", "10.244.3.1"),
    );
    let by_label = json!({ "podSelector": { "matchLabels": { "app": "web" } } });
    assert!(concerns(by_label.clone(), &web) && !concerns(by_label.clone(), &elsewhere));
    let by_team = json!({ "namespaceSelector": { "matchLabels": { "team": "b" } } });
    assert!(!concerns(by_team.clone(), &web) && concerns(by_team, &elsewhere));
    assert!(
        concerns(by_label, &rome.pods[0]),
        "who resolves names concerns everybody"
    );
}

#[test]
fn consumers_of_a_broker_stay_apart_at_its_provider() {
    let (rome, venice) = (crate::fixtures::consumer(), crate::fixtures::provider());
    let mapped = |consumer: &liqo_api::ClusterId| {
        labels_of(&[
            (labels::CONSUMER_ID, consumer.as_str()),
            (labels::NAMESPACE_KIND, "mapped"),
        ])
    };
    let namespaces = [
        ("demo-rome", &rome),
        ("shop-rome", &rome),
        ("demo-venice", &venice),
    ];
    let names: BTreeSet<String> = namespaces
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let namespaces = namespaces
        .map(|(name, consumer)| (name.to_owned(), mapped(consumer)))
        .into();
    let seen = ClusterView {
        namespaces: &namespaces,
        pods: &[],
        mapped: &names,
        maps: None,
        ranges: &[],
    };
    let isolation = IsolationPolicy {
        consumer: rome,
        internal: BTreeSet::new(),
        prefixes: vec![net("10.66.0.0/16")],
        own_pods: Vec::new(),
        api_servers: Vec::new(),
        cluster_dns: false,
        ingress_sources: Vec::new(),
    };
    let own = isolation.own_policies(&[]);
    let there = |name: &str| translate_policy(&own[name], "demo-rome", &seen);
    let of_rome = RulePeer::Elsewhere {
        namespaces: NormalizedSelector(
            [key_in_values(
                labels::HOME_NAMESPACE,
                ["demo-rome", "shop-rome"],
            )]
            .into(),
        ),
        pods: None,
    };
    let ingress = there("liqo-ingress").ingress.unwrap();
    assert_eq!(
        ingress,
        [NormalizedRule {
            peers: Some([of_rome.clone()].into()),
            ports: None
        }]
    );
    let egress = there("liqo-egress").egress.unwrap();
    let peers: BTreeSet<&RulePeer> = egress
        .iter()
        .flat_map(|rule| rule.peers.iter().flatten())
        .collect();
    assert!(
        peers.contains(&of_rome) && peers.contains(&RulePeer::dns_pods()),
        "{egress:?}"
    );
    let dns = egress
        .iter()
        .find(|rule| rule.peers == Some([RulePeer::dns_pods()].into()))
        .unwrap();
    let ports: Vec<_> = dns
        .ports
        .iter()
        .flatten()
        .map(|port| (port.protocol.as_str(), port.port.clone()))
        .collect();
    assert_eq!(
        ports,
        [
            ("TCP", Some(PortNumber::Number(53))),
            ("UDP", Some(PortNumber::Number(53)))
        ]
    );
}

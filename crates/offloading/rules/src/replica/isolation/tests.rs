use kube::core::DynamicObject;
use serde_json::json;

use super::*;
use crate::fixtures::consumer;
use crate::replica::label_selector::LabelMap;

const STRANGER: &str = "another-consumer";

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// The consumer is seen at 10.245.0.0/16; our pods are 10.244.0.0/16, and a node of ours is
/// 203.0.113.5.
fn isolation() -> IsolationPolicy {
    let internal = [net("203.0.113.5/32"), net("2001:db8::1/128")].into();
    let prefixes = vec![net("10.245.0.0/16"), net("fd11::/64")];
    let (api_servers, ingress_sources) = (Vec::new(), Vec::new());
    IsolationPolicy {
        consumer: consumer(),
        internal,
        prefixes,
        own_pods: Vec::new(),
        api_servers,
        cluster_dns: true,
        ingress_sources,
    }
}

fn policy(spec: &Value) -> NormalizedPolicy {
    NormalizedPolicy::from_spec(spec)
}

fn clamp(spec: &Value) -> NormalizedPolicy {
    isolation().clamp_policy(&policy(spec)).unwrap().policy
}

fn labels_of(pairs: &[(&str, &str)]) -> LabelMap {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// A peer that a rule may select.
#[derive(Clone)]
struct Other {
    name: &'static str,
    address: IpAddr,
    /// For a pod here: the labels of its namespace, and its own.
    pod: Option<(LabelMap, LabelMap)>,
    own_namespace: bool,
}

fn outside(name: &'static str, address: &str) -> Other {
    Other {
        name,
        address: address.parse().unwrap(),
        pod: None,
        own_namespace: false,
    }
}

fn pod_here(
    name: &'static str,
    address: &str,
    namespace: &[(&str, &str)],
    labels: &[(&str, &str)],
) -> Other {
    Other {
        pod: Some((labels_of(namespace), labels_of(labels))),
        ..outside(name, address)
    }
}

fn everybody_there_is() -> Vec<Other> {
    let consumer = consumer();
    let namespace = |id: &str, home: &str| {
        labels_of(&[
            (labels::CONSUMER_ID, id),
            (labels::NAMESPACE_KIND, labels::KIND_MAPPED),
            (labels::HOME_NAMESPACE, home),
        ])
    };
    let tenant = |name, address: &str, id: &str, home: &str, app: &str| Other {
        pod: Some((namespace(id, home), labels_of(&[("app", app)]))),
        ..outside(name, address)
    };
    vec![
        Other {
            own_namespace: true,
            ..tenant("own web", "10.244.0.10", consumer.as_str(), "shop", "web")
        },
        Other {
            own_namespace: true,
            ..tenant("own db", "10.244.0.11", consumer.as_str(), "shop", "db")
        },
        tenant("own bank", "10.244.0.12", consumer.as_str(), "bank", "web"),
        outside("own at home", "10.245.1.1"),
        outside("the internet", "198.51.100.7"),
        tenant("a stranger's", "10.244.0.20", STRANGER, "shop", "web"),
        pod_here(
            "the provider's",
            "10.244.0.30",
            &[("kubernetes.io/metadata.name", "prod")],
            &[("app", "web")],
        ),
        pod_here(
            "dns",
            "10.244.0.2",
            &[("kubernetes.io/metadata.name", "kube-system")],
            &[("k8s-app", "kube-dns")],
        ),
        pod_here(
            "liqo's resolver",
            "10.244.0.3",
            &[("kubernetes.io/metadata.name", "liqo")],
            &[("app.kubernetes.io/name", "liqo-dns")],
        ),
        outside("a node", "192.168.1.1"),
        outside("a node in public", "203.0.113.5"),
        outside("the metadata service", "169.254.169.254"),
        outside("a private network", "172.16.0.9"),
    ]
}

/// The peers that a pod reaches or that reach it, by Kubernetes' rules: a policy that selects the
/// pod closes it, and all policies that select it add up.
fn reaches(
    policies: &[NormalizedPolicy],
    pod: &LabelMap,
    is_egress: bool,
    port: u16,
) -> Vec<&'static str> {
    let rules_of = |policy: &NormalizedPolicy| {
        if is_egress {
            policy.egress.clone()
        } else {
            policy.ingress.clone()
        }
    };
    let concerned: Vec<Vec<NormalizedRule>> = policies
        .iter()
        .filter(|policy| policy.pods.matches(pod))
        .filter_map(rules_of)
        .collect();
    assert!(
        !concerned.is_empty(),
        "a pod that no policy is for is open to everybody"
    );
    let meets = |other: &Other, peer: &RulePeer| match peer {
        RulePeer::Pods(pods) => {
            other.own_namespace
                && other
                    .pod
                    .as_ref()
                    .is_some_and(|(_, labels)| pods.matches(labels))
        }
        RulePeer::Elsewhere { namespaces, pods } => {
            other.pod.as_ref().is_some_and(|(namespace, labels)| {
                namespaces.matches(namespace)
                    && pods.as_ref().is_none_or(|pods| pods.matches(labels))
            })
        }
        RulePeer::Block(block) => block.contains(&other.address),
    };
    let allowed = |other: &Other, rule: &NormalizedRule| {
        rule.peers
            .as_ref()
            .is_none_or(|peers| peers.iter().any(|peer| meets(other, peer)))
            && rule
                .ports
                .as_ref()
                .is_none_or(|ports| ports.iter().any(|one| one.allows_port("UDP", port, &[])))
    };
    let others = everybody_there_is();
    others
        .iter()
        .filter(|other| concerned.iter().flatten().any(|rule| allowed(other, rule)))
        .map(|other| other.name)
        .collect()
}

/// All policies of a mapped namespace with these of the consumer.
fn namespace_with(specs: &[Value]) -> Vec<NormalizedPolicy> {
    let theirs: Vec<NormalizedPolicy> = specs.iter().map(policy).collect();
    let clamped = theirs
        .iter()
        .map(|policy| isolation().clamp_policy(policy).unwrap().policy);
    isolation()
        .own_policies(&theirs)
        .into_values()
        .chain(clamped)
        .collect()
}

const TENANT: [&str; 4] = ["own web", "own db", "own bank", "own at home"];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&TENANT[..], more].concat()
}

#[test]
fn by_default_pods_meet_their_like_and_reach_the_internet_and_names() {
    let policies = namespace_with(&[]);
    let pod = labels_of(&[("app", "web")]);
    assert_eq!(reaches(&policies, &pod, false, 80), TENANT);
    assert_eq!(reaches(&policies, &pod, true, 80), with(&["the internet"]));
    assert_eq!(
        reaches(&policies, &pod, true, 53),
        with(&["the internet", "dns"])
    );
    assert_eq!(
        reaches(&policies, &pod, true, RESOLVER_PORT),
        with(&["the internet", "liqo's resolver"])
    );
    let names: Vec<String> = isolation().own_policies(&[]).into_keys().collect();
    assert_eq!(names, ["liqo", "liqo-egress", "liqo-ingress"]);
}

#[test]
fn our_own_pods_reach_what_our_provider_runs_here_for_us_and_are_reached_by_nothing() {
    let isolation = IsolationPolicy {
        own_pods: vec![net("10.244.0.0/16")],
        ..isolation()
    };
    let pod = labels_of(&[("app", "web")]);
    let by_default: Vec<_> = isolation.own_policies(&[]).into_values().collect();
    assert!(
        reaches(&by_default, &pod, false, 80).contains(&"the provider's"),
        "here the provider of the node is the consumer's consumer"
    );
    assert_eq!(
        reaches(&by_default, &pod, true, 80),
        with(&["the internet"])
    );
    // What our policies at home say arrives with our own addresses.
    let rule = json!([{ "from": [{ "ipBlock": { "cidr": "10.244.0.30/32" } }] }]);
    let egress = json!([{ "to": [{ "ipBlock": { "cidr": "10.244.0.30/32" } }] }]);
    let theirs = policy(
        &json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": rule, "egress": egress }),
    );
    let clamped = isolation.clamp_policy(&theirs).unwrap();
    assert_eq!(
        clamped.refused,
        BTreeSet::from([net("10.244.0.30/32")]),
        "only to reach it"
    );
    let all: Vec<_> = isolation
        .own_policies(std::slice::from_ref(&theirs))
        .into_values()
        .chain([clamped.policy])
        .collect();
    assert_eq!(reaches(&all, &pod, false, 80), ["the provider's"]);
    assert_eq!(reaches(&all, &pod, true, 80), Vec::<&str>::new());
    let everybody = isolation
        .clamp_policy(&policy(&json!({ "podSelector": {}, "ingress": [{}] })))
        .unwrap()
        .policy;
    let all: Vec<_> = isolation
        .own_policies(std::slice::from_ref(&everybody))
        .into_values()
        .chain([everybody])
        .collect();
    assert!(reaches(&all, &pod, false, 80).contains(&"the provider's"));
}

#[test]
fn nothing_that_a_consumer_says_opens_the_providers_pods_nodes_or_networks_to_its_own() {
    let open = [
        json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [{}] }),
        json!({ "podSelector": {}, "egress": [{ "to": [{ "ipBlock": { "cidr": "0.0.0.0/0" } }, { "ipBlock": { "cidr": "::/0" } }] }] }),
        json!({ "podSelector": {}, "egress": [{ "to": [{ "namespaceSelector": {} }, { "namespaceSelector": {}, "podSelector": {} }] }] }),
        json!({ "podSelector": {}, "egress": [{ "to": [{ "namespaceSelector": { "matchLabels": { labels::CONSUMER_ID: STRANGER } } }] }] }),
        json!({ "podSelector": {}, "egress": [{ "to": [
            { "namespaceSelector": { "matchExpressions": [{ "key": labels::CONSUMER_ID, "operator": "Exists" }] } }] }] }),
        json!({ "podSelector": {}, "egress": [{ "to": [{ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "prod" } } }] }] }),
        json!({ "podSelector": {}, "egress": [{ "to": [{ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "kube-system" } } }] }] }),
        json!({ "podSelector": {}, "egress": [{ "to": [
            { "ipBlock": { "cidr": "10.244.0.0/16" } }, { "ipBlock": { "cidr": "10.240.0.0/12" } }, { "ipBlock": { "cidr": "203.0.113.5/32" } },
            { "ipBlock": { "cidr": "203.0.113.4/31" } }, { "ipBlock": { "cidr": "169.254.0.0/16" } }, { "ipBlock": { "cidr": "172.0.0.0/8" } },
            { "ipBlock": { "cidr": "192.168.1.1/32" } }] }] }),
        json!({ "podSelector": {}, "egress": [{ "to": [{ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "kube-system" } },
            "podSelector": { "matchLabels": { "k8s-app": "kube-dns" } } }] }] }),
    ];
    let pod = labels_of(&[("app", "web")]);
    for spec in &open {
        let found = reaches(&namespace_with(std::slice::from_ref(spec)), &pod, true, 80);
        assert!(
            found
                .iter()
                .all(|name| with(&["the internet"]).contains(name)),
            "{spec} opens {found:?}"
        );
    }
    assert_eq!(
        reaches(&namespace_with(&open), &pod, true, 53),
        with(&["the internet", "dns"]),
        "the first of them opens all it can"
    );
}

#[test]
fn who_is_a_stranger_here_reaches_no_pod_whatever_its_owner_says() {
    let open = json!({ "podSelector": {}, "ingress": [{}, { "from": [{ "namespaceSelector": {} }, { "ipBlock": { "cidr": "10.0.0.0/8" } }] }] });
    assert_eq!(
        reaches(&namespace_with(&[open]), &labels_of(&[]), false, 80),
        with(&["the internet"])
    );
}

#[test]
fn a_pod_that_a_policy_is_for_is_open_as_that_policy_says_and_others_as_before() {
    let web = json!({ "podSelector": { "matchLabels": { "app": "web" } },
        "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "db" } } }] }] });
    let policies = namespace_with(&[web]);
    let (web, db) = (labels_of(&[("app", "web")]), labels_of(&[("app", "db")]));
    assert_eq!(reaches(&policies, &web, false, 80), ["own db"]);
    assert_eq!(reaches(&policies, &db, false, 80), TENANT);
    assert_eq!(
        reaches(&policies, &web, true, 80),
        with(&["the internet"]),
        "it says nothing of that direction"
    );
}

#[test]
fn policies_of_a_consumer_add_up_and_one_that_closes_all_pods_leaves_no_default() {
    let specs = [
        json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }),
        json!({ "podSelector": { "matchLabels": { "app": "web" } }, "ingress": [{ "from": [{ "ipBlock": { "cidr": "10.245.1.1/32" } }] }] }),
        json!({ "podSelector": { "matchLabels": { "app": "web" } }, "ingress": [{ "from": [
            { "namespaceSelector": { "matchLabels": { labels::HOME_NAMESPACE: "bank" } } }] }] }),
    ];
    let policies = namespace_with(&specs);
    assert_eq!(
        reaches(&policies, &labels_of(&[("app", "web")]), false, 80),
        ["own bank", "own at home"]
    );
    assert_eq!(
        reaches(&policies, &labels_of(&[]), false, 80),
        [] as [&str; 0]
    );
    assert_eq!(
        reaches(&policies, &labels_of(&[]), true, 53),
        [] as [&str; 0]
    );
    let own = isolation().own_policies(&specs.iter().map(policy).collect::<Vec<_>>());
    assert_eq!(
        own.into_iter().collect::<Vec<_>>(),
        [("liqo".to_owned(), NormalizedPolicy::closed())]
    );
}

#[test]
fn names_are_resolved_at_the_ports_that_the_policy_opens() {
    let dns = json!({ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "kube-system" } },
        "podSelector": { "matchLabels": { "k8s-app": "kube-dns" } } });
    let ports = |ports: Value| {
        clamp(&json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [{ "to": [dns], "ports": ports }] }))
        .to_json()["egress"][0]["ports"].clone()
    };
    let (tcp, udp) = (
        json!({ "protocol": "TCP", "port": 53 }),
        json!({ "protocol": "UDP", "port": 53 }),
    );
    assert_eq!(ports(json!([])), json!([tcp, udp]));
    assert_eq!(
        ports(json!([{ "protocol": "UDP", "port": "dns" }])),
        json!([udp])
    );
    assert_eq!(
        ports(json!([{ "port": 1, "endPort": 65535 }])),
        json!([tcp])
    );
    assert_eq!(
        ports(json!([{ "protocol": "UDP", "port": 5353 }])),
        json!(null)
    );
    let spec = json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [{ "to": [dns], "ports": [{ "protocol": "UDP", "port": 53 }] }] });
    let policies = namespace_with(&[spec]);
    let reached = |port| reaches(&policies, &labels_of(&[]), true, port);
    assert_eq!(
        (reached(53), reached(RESOLVER_PORT), reached(80)),
        (vec!["dns"], vec!["liqo's resolver"], vec![])
    );
    let ingress = clamp(&json!({ "podSelector": {}, "ingress": [{ "from": [dns] }] }));
    assert_eq!(
        ingress.ingress,
        Some(Vec::new()),
        "nobody asks pods for names from there"
    );
}

#[test]
fn where_there_is_a_resolver_nothing_opens_the_clusters_dns() {
    let isolation = IsolationPolicy {
        cluster_dns: false,
        ..isolation()
    };
    let open = policy(
        &json!({ "podSelector": { "matchLabels": { "app": "open" } }, "policyTypes": ["Egress"], "egress": [{}, { "to": [{
        "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "kube-system" } },
        "podSelector": { "matchLabels": { "k8s-app": "kube-dns" } } }] }] }),
    );
    let clamped = isolation.clamp_policy(&open).unwrap().policy;
    let policies: Vec<_> = isolation
        .own_policies(&[open])
        .into_values()
        .chain([clamped])
        .collect();
    for app in ["open", "other"] {
        let pod = labels_of(&[("app", app)]);
        assert_eq!(
            reaches(&policies, &pod, true, 53),
            with(&["the internet"]),
            "{app}"
        );
        assert_eq!(
            reaches(&policies, &pod, true, RESOLVER_PORT),
            with(&["the internet", "liqo's resolver"]),
            "{app}"
        );
    }
}

#[test]
fn of_the_private_networks_pods_that_may_use_the_api_server_reach_its_port_alone() {
    let isolation = IsolationPolicy {
        api_servers: vec![
            "172.18.0.2:6443".parse().unwrap(),
            "[fd00::2]:6443".parse().unwrap(),
        ],
        ..isolation()
    };
    let port = json!([{ "protocol": "TCP", "port": 6443 }]);
    let rules = ["172.18.0.2/32", "fd00::2/128"]
        .map(|cidr| json!({ "to": [{ "ipBlock": { "cidr": cidr } }], "ports": port }));
    let has_them = |spec: &Value| {
        rules
            .iter()
            .all(|rule| spec["egress"].as_array().unwrap().contains(rule))
    };
    assert!(has_them(
        &isolation.own_policies(&[])["liqo-egress"].to_json()
    ));
    let clamped = |rule: Value| {
        let sent =
            policy(&json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [rule] }));
        isolation.clamp_policy(&sent).unwrap().policy.to_json()
    };
    assert!(
        has_them(&clamped(json!({}))) && has_them(&clamped(json!({ "ports": [{ "port": 6443 }] })))
    );
    assert!(!has_them(&clamped(json!({ "ports": [{ "port": 443 }] }))));
    assert!(!has_them(&clamped(
        json!({ "to": [{ "ipBlock": { "cidr": "0.0.0.0/0" } }] })
    )));
}

#[test]
fn a_policy_within_the_limits_is_as_it_was_sent_but_for_whose_namespaces_they_are() {
    let sent = json!({ "podSelector": { "matchLabels": { "app": "web" } }, "policyTypes": ["Ingress"], "ingress": [{
        "from": [{ "podSelector": {} }, { "ipBlock": { "cidr": "10.245.1.0/24", "except": ["10.245.1.8/29"] } }],
        "ports": [{ "protocol": "TCP", "port": "web" }, { "protocol": "TCP", "port": 80, "endPort": 90 }] }] });
    assert_eq!(clamp(&sent), policy(&sent));
    let elsewhere = clamp(
        &json!({ "podSelector": {}, "ingress": [{ "from": [{ "namespaceSelector": {} }] }] }),
    );
    let selector = json!({ "matchLabels": { labels::CONSUMER_ID: consumer(), labels::NAMESPACE_KIND: labels::KIND_MAPPED } });
    assert_eq!(
        elsewhere.to_json()["ingress"][0]["from"],
        json!([{ "namespaceSelector": selector }])
    );
}

#[test]
fn ranges_of_which_nothing_is_left_are_named() {
    let spec = json!({ "podSelector": {}, "ingress": [{ "from": [
        { "ipBlock": { "cidr": "10.244.0.0/16" } }, { "ipBlock": { "cidr": "0.0.0.0/0" } }, { "ipBlock": { "cidr": "10.245.0.7/32" } }] }] });
    assert_eq!(
        isolation().clamp_policy(&policy(&spec)).unwrap().refused,
        [net("10.244.0.0/16")].into()
    );
}

#[test]
fn where_too_many_selectors_were_needed_nobody_has_the_default() {
    let pair = |number: usize| json!({ "podSelector": { "matchLabels": { format!("a{number}"): "1", format!("b{number}"): "1" } } });
    let policies = namespace_with(&(0..9).map(pair).collect::<Vec<_>>());
    assert_eq!(
        reaches(&policies, &labels_of(&[]), false, 80),
        [] as [&str; 0]
    );
    assert_eq!(
        reaches(&policies, &labels_of(&[]), true, 80),
        with(&["the internet"]),
        "the other direction is as it was"
    );
}

#[test]
fn a_policy_that_would_be_too_long_is_refused() {
    let mut isolation = isolation();
    isolation.internal = (0..2000_u32)
        .map(|number| IpNet::from(IpAddr::from((0x0808_0000 + number * 2).to_be_bytes())))
        .collect();
    let ranges: Vec<Value> = (0..100_u32)
        .map(|number| json!({ "ipBlock": { "cidr": "0.0.0.0/0", "except": [format!("9.0.{number}.0/24")] } }))
        .collect();
    assert_eq!(
        isolation.clamp_policy(&policy(
            &json!({ "podSelector": {}, "ingress": [{ "from": ranges }] })
        )),
        None
    );
    assert!(
        isolation
            .clamp_policy(&policy(
                &json!({ "podSelector": {}, "ingress": [{ "from": ranges[..1] }] })
            ))
            .is_some()
    );
}

#[test]
fn only_public_addresses_of_nodes_are_named() {
    let node: Node = serde_json::from_value(json!({
        "metadata": {}, "spec": { "podCIDRs": ["10.244.0.0/24", "2001:db8:1::/64", "junk"] },
        "status": { "addresses": [{ "type": "InternalIP", "address": "192.168.1.2" }, { "type": "Hostname", "address": "n1" },
            { "type": "ExternalIP", "address": "203.0.113.5" }] },
    }))
    .unwrap();
    assert_eq!(
        networks_of_node(&node),
        [net("203.0.113.5/32"), net("2001:db8:1::/64")].into()
    );
}

#[test]
fn public_ranges_of_the_cluster_and_of_other_peers_are_not_the_internet() {
    let config: ClusterConfig = serde_json::from_value(json!({
        "apiVersion": "config.liqo.io/v1alpha1", "kind": "ClusterConfig", "metadata": { "name": "liqo" },
        "spec": { "clusterName": "milan", "network": { "peerCIDRs": ["10.64.0.0/10", "11.0.0.0/8"] } },
        "status": { "network": { "podCIDRs": ["44.0.0.0/16", "10.244.0.0/16"], "serviceCIDRs": ["34.118.224.0/20"],
            "externalCIDRs": ["45.0.0.0/24"] } },
    }))
    .unwrap();
    let (node, own_place, other_place) = (
        net("203.0.113.5/32"),
        net("11.1.0.0/16"),
        net("46.0.0.0/16"),
    );
    let internal = internal_networks(&config, [node, own_place, other_place, net("10.65.0.0/16")]);
    let isolation = IsolationPolicy {
        internal,
        prefixes: vec![own_place],
        ..isolation()
    };
    let ranges = [
        "44.0.7.0/24",
        "34.118.224.10/32",
        "45.0.0.2/32",
        "203.0.113.5/32",
        "46.0.0.0/24",
        "11.2.0.1/32",
    ];
    let to = |cidr: &str| json!({ "ipBlock": { "cidr": cidr } });
    let policy_to = |cidrs: &[&str]| {
        let to: Vec<Value> = cidrs.iter().map(|cidr| to(cidr)).collect();
        policy(&json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [{ "to": to }] }))
    };
    let clamped = isolation.clamp_policy(&policy_to(&ranges)).unwrap();
    assert_eq!(
        (clamped.policy.egress, clamped.refused),
        (
            Some(Vec::new()),
            ranges.iter().map(|range| net(range)).collect()
        )
    );
    let everywhere = isolation
        .clamp_policy(&policy_to(&["0.0.0.0/0"]))
        .unwrap()
        .policy;
    let default = isolation.own_policies(&[])["liqo-egress"].clone();
    for (name, policy) in [
        ("what is said", everywhere),
        ("what is open by default", default),
    ] {
        let reached = |address: &str| {
            let address: IpAddr = address.parse().unwrap();
            let peers = policy.rules().flat_map(|rule| rule.peers.iter().flatten());
            peers
                .into_iter()
                .any(|peer| matches!(peer, RulePeer::Block(block) if block.contains(&address)))
        };
        assert!(
            ranges
                .iter()
                .all(|range| !reached(&net(range).addr().to_string())),
            "{name}"
        );
        assert!(
            reached("11.1.0.9") && reached("198.51.100.7"),
            "{name}: its own place, and the internet"
        );
    }
}

/// This many nodes with public addresses, from 203.0.113.5 on, none adjacent to another.
fn public_nodes(count: u32) -> BTreeSet<IpNet> {
    (0..count)
        .map(|number| IpAddr::from((0xCB00_7105 + 2 * number).to_be_bytes()).into())
        .collect()
}

fn inside_with(nodes: BTreeSet<IpNet>) -> BTreeSet<IpNet> {
    let config = json!({ "apiVersion": "config.liqo.io/v1alpha1", "kind": "ClusterConfig", "metadata": { "name": "liqo" },
        "spec": { "clusterName": "milan" } });
    internal_networks(&serde_json::from_value(config).unwrap(), nodes)
}

#[test]
fn neighbours_are_one_network() {
    let nodes = (0..4000u32)
        .map(|number| IpAddr::from((0xCB00_0000 + number).to_be_bytes()).into())
        .collect();
    let found = inside_with(nodes);
    assert!(found.len() < 10 && !leave_no_internet(&found), "{found:?}");
}

#[test]
fn where_too_many_networks_are_not_the_internet_nothing_is_and_the_rest_stays_open() {
    let everybody = json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [{}] });
    for (nodes, is_open) in [(1000, true), (1001, false), (20_000, false)] {
        let internal = inside_with(public_nodes(nodes));
        assert_eq!(leave_no_internet(&internal), !is_open);
        let isolation = IsolationPolicy {
            internal,
            ..isolation()
        };
        let clamped = isolation.clamp_policy(&policy(&everybody)).unwrap();
        assert_eq!(clamped.refused.is_empty(), is_open, "it is reported");
        for policies in [
            isolation.own_policies(&[]).into_values().collect(),
            vec![clamped.policy],
        ] {
            let expected = if is_open {
                with(&["the internet", "dns"])
            } else {
                with(&["dns"])
            };
            let found = reaches(&policies, &labels_of(&[("app", "web")]), true, 53);
            assert_eq!(found, expected, "{nodes} nodes");
        }
    }
}

#[test]
fn a_policy_with_more_ranges_than_fit_is_given_up_before_it_is_written_down() {
    let isolation = IsolationPolicy {
        internal: inside_with(public_nodes(1000)),
        ..isolation()
    };
    // Each port has its own rule, each with the whole internet.
    let rules: Vec<Value> = (1..=500)
        .map(|port| json!({ "ports": [{ "port": port }] }))
        .collect();
    let blocks: Vec<Value> = (0..=8)
        .map(|bits| json!({ "ipBlock": { "cidr": format!("203.0.0.0/{bits}") } }))
        .collect();
    for egress in [json!(rules), json!([{ "to": blocks }])] {
        let policy =
            policy(&json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": egress }));
        assert_eq!(isolation.clamp_policy(&policy), None);
        let mut clamped = ClampedRanges::default();
        let made = policy
            .rules()
            .flat_map(|rule| isolation.clamp_rule(rule, PolicyDirection::Egress, &mut clamped))
            .collect::<Vec<NormalizedRule>>();
        assert!(
            clamped.ranges < MAX_RANGES + 1100,
            "{} ranges were made, in {} rules",
            clamped.ranges,
            made.len()
        );
    }
}

#[test]
fn through_allowed_ingress_sources_the_world_comes_to_pods_that_are_open_to_everybody_and_to_no_others()
 {
    let ingress_sources = ["prod", "192.168.1.0/24", "no/prefix"]
        .into_iter()
        .filter_map(allowed_ingress_source)
        .collect();
    let isolation = IsolationPolicy {
        ingress_sources,
        ..isolation()
    };
    let web = labels_of(&[("app", "web")]);
    let by_default: Vec<NormalizedPolicy> = isolation.own_policies(&[]).into_values().collect();
    let ingress = reaches(&by_default, &web, false, 80);
    assert!(
        ingress.contains(&"the provider's")
            && ingress.contains(&"a node")
            && !ingress.contains(&"a stranger's"),
        "{ingress:?}"
    );
    let egress = reaches(&by_default, &web, true, 80);
    assert!(
        !egress.contains(&"the provider's") && !egress.contains(&"a node"),
        "{egress:?}"
    );
    let clamped = |spec: &Value| vec![isolation.clamp_policy(&policy(spec)).unwrap().policy];
    let everybody =
        clamped(&json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}] }));
    assert!(reaches(&everybody, &web, false, 80).contains(&"a node"));
    let own = clamped(
        &json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "from": [{ "podSelector": {} }] }] }),
    );
    assert!(
        !reaches(&own, &web, false, 80).contains(&"a node"),
        "what its owner closes stays closed"
    );
}

#[test]
fn our_own_policies_are_read_back_as_they_were_written() {
    let sources = [all_addresses().map(RulePeer::Block).into_iter().next()]
        .into_iter()
        .flatten()
        .collect();
    let isolations = [
        isolation(),
        IsolationPolicy {
            ingress_sources: sources,
            ..isolation()
        },
        IsolationPolicy {
            prefixes: Vec::new(),
            ..isolation()
        },
    ];
    for isolation in isolations {
        for (name, written) in isolation.own_policies(&[]) {
            assert_eq!(
                NormalizedPolicy::from_spec(&written.to_json()).to_json(),
                written.to_json(),
                "{name} is written again and again"
            );
        }
    }
}

#[test]
fn names_of_our_own_policies_are_no_others() {
    for (name, own) in [
        ("liqo", true),
        ("liqo-egress", true),
        ("liqo-ingress-2", true),
        ("liqor", false),
        ("allow-liqo", false),
    ] {
        assert_eq!(is_own(name), own, "{name}");
    }
}

#[test]
fn copies_that_travel_say_the_same_as_our_own_policies_and_have_the_name_of_this_cluster() {
    let own = isolation().own_policies(&[]);
    let all = with_brokered_copies(own.clone(), &crate::fixtures::provider());
    let prefix = brokered_copy_prefix(&crate::fixtures::provider());
    let copies: BTreeMap<&str, &NormalizedPolicy> = all
        .iter()
        .filter_map(|(name, policy)| Some((name.strip_prefix(&prefix)?, policy)))
        .collect();
    assert_eq!(
        copies.keys().copied().collect::<Vec<_>>(),
        ["all", "egress", "ingress"]
    );
    for (name, copy) in copies.iter().filter(|(name, _)| **name != "all") {
        assert_eq!(copy.to_json(), own[&format!("liqo-{name}")].to_json());
    }
    assert!(
        all.keys()
            .filter(|name| name.starts_with(&prefix))
            .all(|name| !is_own(name)),
        "the next cluster takes them"
    );
    assert_ne!(prefix, brokered_copy_prefix(&crate::fixtures::consumer()));
}

#[test]
fn the_copy_that_closes_all_pods_travels_although_the_consumer_closes_them_too() {
    let default_deny = policy(&json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }));
    let all = with_brokered_copies(
        isolation().own_policies(&[default_deny]),
        &crate::fixtures::provider(),
    );
    let prefix = brokered_copy_prefix(&crate::fixtures::provider());
    let copies: Vec<&String> = all
        .keys()
        .filter(|name| name.starts_with(&prefix))
        .collect();
    assert_eq!(
        copies,
        [&brokered_closed_copy(&crate::fixtures::provider())],
        "nothing is open by default"
    );
    let copy = all[copies[0]].to_json();
    assert_eq!(copy, NormalizedPolicy::closed().to_json());
    assert!(
        !NormalizedPolicy::from_spec(&copy).narrowed,
        "nobody is warned about it"
    );
}

#[test]
fn only_a_label_proves_that_a_policy_is_the_copy_that_closes_all_pods() {
    let own = crate::fixtures::provider();
    let travels = |name: &str, labels: &[(&str, &str)]| {
        let metadata =
            json!({ "name": name, "namespace": "demo-rome", "labels": labels_of(labels) });
        let object: DynamicObject =
            serde_json::from_value(json!({ "metadata": metadata })).unwrap();
        may_travel(&object, &own)
    };
    let ours = [(labels::MANAGED, "true")];
    let replica = [(labels::MANAGED, "true"), (labels::REFLECTED, "true")];
    let closed = brokered_closed_copy(&own);
    assert!(travels(&closed, &ours) && !travels(&closed, &[]) && !travels(&closed, &replica));
    assert!(!travels("liqo", &ours) && !travels(&brokered_closed_copy(&consumer()), &ours));
    assert!(travels("of-the-consumer", &replica) && travels("of-a-person", &[]));
}

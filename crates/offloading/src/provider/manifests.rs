//! The objects that the provider puts into mapped namespaces.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use liqo_api::{ClusterId, consumer_service_account, labels, roles};
use serde_json::{Value, json};

use super::{namespaces::MAPPED, usage::ENFORCE};

/// Name of the manager's `ServiceAccount`.
const MANAGER: &str = "liqo-controller-manager";

/// Networks that are not the internet: private, shared, loopback and link-local ones. A cluster's pods, services and nodes
/// usually have addresses out of these.
const PRIVATE_V4: [&str; 6] = ["10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"];
const PRIVATE_V6: [&str; 3] = ["::1/128", "fc00::/7", "fe80::/10"];

/// The namespace itself. It has its labels from the start: nobody may give them to a namespace that exists.
pub fn namespace(name: &str, consumer: &ClusterId, home: &str, level: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": { "name": name, "labels": {
            labels::MANAGED: "true",
            labels::NAMESPACE_KIND: MAPPED,
            labels::CONSUMER_ID: consumer,
            labels::HOME_NAMESPACE: home,
            ENFORCE: level,
            "pod-security.kubernetes.io/warn": "restricted",
        } },
    })
}

/// What the pods of a tenant may and may not reach beside each other, DNS and the internet.
#[derive(Clone, Copy, Default)]
pub struct Walls<'a> {
    /// Not these networks of our nodes.
    pub nodes: &'a [String],
    /// The tenant's pods in other clusters, which reach them too: its prefixes, as we see them.
    pub prefixes: &'a [IpNet],
    /// The API servers here, if they may use them.
    pub api_servers: &'a [SocketAddr],
}

/// What belongs into a mapped namespace, in the order in which it must come: the manager's own rights first.
pub fn contents(
    name: &str,
    consumer: &ClusterId,
    system_namespace: &str,
    default_requests: &[(String, String)],
    walls: Walls,
) -> Vec<Value> {
    vec![
        role_binding(name, "liqo-manager", roles::OWN_NAMESPACE, system_namespace, MANAGER),
        limit_range(name, default_requests),
        network_policy(name, consumer, walls),
        role_binding(
            name,
            roles::TENANT_POD_ACCESS,
            roles::TENANT_POD_ACCESS,
            system_namespace,
            &consumer_service_account(consumer),
        ),
    ]
}

fn object(api_version: &str, kind: &str, namespace: &str, name: &str) -> Value {
    let metadata = json!({ "name": name, "namespace": namespace, "labels": { labels::MANAGED: "true" } });
    json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata })
}

fn role_binding(namespace: &str, name: &str, role: &str, account_namespace: &str, account: &str) -> Value {
    let mut binding = object("rbac.authorization.k8s.io/v1", "RoleBinding", namespace, name);
    binding["roleRef"] = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role });
    binding["subjects"] = json!([{ "kind": "ServiceAccount", "name": account, "namespace": account_namespace }]);
    binding
}

/// A pod that says nothing about what it needs is not free.
fn limit_range(namespace: &str, default_requests: &[(String, String)]) -> Value {
    let defaults: serde_json::Map<String, Value> =
        default_requests.iter().map(|(resource, amount)| (resource.clone(), amount.as_str().into())).collect();
    let mut range = object("v1", "LimitRange", namespace, "liqo");
    range["spec"] = json!({ "limits": [{ "type": "Container", "defaultRequest": defaults }] });
    range
}

/// Pods of a tenant may be reached by its own pods, here and in other clusters, and may reach these, DNS and the internet; not
/// what else there is in the provider's networks.
fn network_policy(namespace: &str, consumer: &ClusterId, walls: Walls) -> Value {
    let mut same_tenant = vec![
        json!({ "namespaceSelector": { "matchLabels": { labels::CONSUMER_ID: consumer, labels::NAMESPACE_KIND: MAPPED } } }),
    ];
    same_tenant.extend(walls.prefixes.iter().map(|prefix| json!({ "ipBlock": { "cidr": prefix } })));
    let dns = json!({
        "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "kube-system" } },
        "podSelector": { "matchLabels": { "k8s-app": "kube-dns" } },
    });
    let except = |private: &[&str], v4: bool| {
        let own = walls.nodes.iter().filter(|network| network.contains('.') == v4).cloned();
        private.iter().map(|&network| network.to_owned()).chain(own).collect::<Vec<_>>()
    };
    let internet = json!([
        { "ipBlock": { "cidr": "0.0.0.0/0", "except": except(&PRIVATE_V4, true) } },
        { "ipBlock": { "cidr": "::/0", "except": except(&PRIVATE_V6, false) } },
    ]);
    let mut egress = vec![
        json!({ "to": [dns], "ports": [{ "port": 53, "protocol": "UDP" }, { "port": 53, "protocol": "TCP" }] }),
        json!({ "to": same_tenant }),
        json!({ "to": internet }),
    ];
    egress.extend(walls.api_servers.iter().map(|server| {
        let cidr = IpNet::from(server.ip());
        json!({ "to": [{ "ipBlock": { "cidr": cidr } }], "ports": [{ "port": server.port(), "protocol": "TCP" }] })
    }));
    let mut policy = object("networking.k8s.io/v1", "NetworkPolicy", namespace, "liqo");
    policy["spec"] = json!({
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{ "from": same_tenant }],
        "egress": egress,
    });
    policy
}

/// The networks of these nodes, their own addresses and those of their pods, that are not private anyway; sorted.
pub fn public_networks(nodes: &[Node]) -> Vec<String> {
    let own = nodes.iter().flat_map(|node| node.status.iter().flat_map(|status| status.addresses.iter().flatten()));
    let own = own.filter_map(|address| {
        let ip: IpAddr = address.address.parse().ok()?;
        Some((ip, format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 })))
    });
    let pods = nodes.iter().flat_map(|node| node.spec.iter().flat_map(|spec| spec.pod_cidrs.iter().flatten()));
    let pods = pods.filter_map(|network| {
        let (ip, length) = network.split_once('/')?;
        let _: u8 = length.parse().ok()?;
        Some((ip.parse().ok()?, network.clone()))
    });
    let mut networks: Vec<String> = own.chain(pods).filter(|(ip, _)| !is_private(*ip)).map(|(_, network)| network).collect();
    networks.sort();
    networks.dedup();
    networks
}

/// Whether an address is in one of the networks that are excepted anyway.
fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64;
            ip.is_private() || ip.is_loopback() || ip.is_link_local() || shared
        }
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// Whether an object has everything that is wanted of it. What others added does not matter.
pub fn holds(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| live.get(key).is_some_and(|live| holds(live, value)))
        }
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len() && live.iter().zip(wanted).all(|(live, wanted)| holds(live, wanted))
        }
        (live, wanted) => live == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::remote_pods::tests::consumer, *};

    #[test]
    fn a_namespace_has_its_labels_and_its_walls_from_the_start() {
        let labels = &namespace("demo-rome-aaaaaa", &consumer(), "demo", "restricted")["metadata"]["labels"];
        assert_eq!(labels[labels::CONSUMER_ID], consumer().as_str());
        assert_eq!(labels["pod-security.kubernetes.io/enforce"], "restricted");
        assert_eq!((&labels[labels::MANAGED], &labels[labels::NAMESPACE_KIND]), (&json!("true"), &json!("mapped")));
    }

    #[test]
    fn the_consumer_gets_only_access_to_pods_and_the_managers_rights_come_first() {
        let contents = contents("demo-rome-aaaaaa", &consumer(), "liqo", &[("cpu".into(), "10m".into())], Walls::default());
        let bound: Vec<(&Value, &Value)> = contents
            .iter()
            .filter(|object| object["kind"] == "RoleBinding")
            .map(|b| (&b["roleRef"]["name"], &b["subjects"][0]["name"]))
            .collect();
        let account = json!(consumer_service_account(&consumer()));
        assert_eq!(bound, [(&json!("liqo-own-namespace"), &json!(MANAGER)), (&json!("liqo-tenant-pod-access"), &account)]);
        assert_eq!(contents[0]["roleRef"]["name"], "liqo-own-namespace");
        assert!(contents.iter().all(|object| object["metadata"]["namespace"] == "demo-rome-aaaaaa"));
    }

    #[test]
    fn pods_of_a_tenant_reach_neither_private_networks_nor_the_nodes() {
        let nodes = ["203.0.113.5/32".to_owned(), "2001:db8::1/128".to_owned()];
        let policy = network_policy("x", &consumer(), Walls { nodes: &nodes, ..Walls::default() });
        let internet = &policy["spec"]["egress"][2]["to"];
        let except = |family: usize| internet[family]["ipBlock"]["except"].as_array().unwrap().clone();
        for network in ["10.0.0.0/8", "169.254.0.0/16", "203.0.113.5/32"] {
            assert!(except(0).contains(&json!(network)), "{network}");
        }
        assert!(except(1).contains(&json!("2001:db8::1/128")) && !except(1).contains(&json!("203.0.113.5/32")));
        assert_eq!(
            policy["spec"]["ingress"][0]["from"][0]["namespaceSelector"]["matchLabels"][labels::CONSUMER_ID],
            consumer().as_str()
        );
    }

    #[test]
    fn pods_of_a_tenant_and_its_other_pods_reach_each_other_through_the_network() {
        let prefixes = ["10.245.0.0/16".parse().unwrap(), "fd11::/64".parse().unwrap()];
        let policy = network_policy("x", &consumer(), Walls { prefixes: &prefixes, ..Walls::default() });
        for way in [&policy["spec"]["ingress"][0]["from"], &policy["spec"]["egress"][1]["to"]] {
            assert_eq!(way[1], json!({ "ipBlock": { "cidr": "10.245.0.0/16" } }));
            assert_eq!(way[2], json!({ "ipBlock": { "cidr": "fd11::/64" } }));
            assert!(way[0].get("namespaceSelector").is_some());
        }
    }

    #[test]
    fn of_the_private_networks_pods_that_may_reach_the_api_server_reach_its_port_alone() {
        let api_servers = ["172.18.0.2:6443".parse().unwrap(), "[fd00::2]:6443".parse().unwrap()];
        let policy = network_policy("x", &consumer(), Walls { api_servers: &api_servers, ..Walls::default() });
        let port = json!([{ "port": 6443, "protocol": "TCP" }]);
        assert_eq!(policy["spec"]["egress"][3], json!({ "to": [{ "ipBlock": { "cidr": "172.18.0.2/32" } }], "ports": port }));
        assert_eq!(policy["spec"]["egress"][4], json!({ "to": [{ "ipBlock": { "cidr": "fd00::2/128" } }], "ports": port }));
        let others = network_policy("x", &consumer(), Walls::default());
        assert_eq!(others["spec"]["egress"].as_array().map(Vec::len), Some(3));
    }

    #[test]
    fn only_public_addresses_of_nodes_are_named() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {}, "spec": { "podCIDRs": ["10.244.0.0/24", "2001:db8:1::/64", "junk"] },
            "status": { "addresses": [{ "type": "InternalIP", "address": "192.168.1.2" }, { "type": "Hostname", "address": "n1" },
                { "type": "ExternalIP", "address": "203.0.113.5" }] },
        }))
        .unwrap();
        assert_eq!(public_networks(&[node.clone(), node]), ["2001:db8:1::/64", "203.0.113.5/32"]);
    }

    #[test]
    fn what_others_added_to_an_object_does_not_matter_and_what_they_changed_does() {
        let wanted = json!({ "spec": { "a": [1, { "b": 2 }] } });
        assert!(holds(&json!({ "spec": { "a": [1, { "b": 2, "c": 3 }] }, "status": {} }), &wanted));
        assert!(!holds(&json!({ "spec": { "a": [1, { "b": 3 }] } }), &wanted));
        assert!(!holds(&json!({ "spec": { "a": [1, { "b": 2 }, 3] } }), &wanted));
        assert!(!holds(&json!({}), &wanted));
    }
}

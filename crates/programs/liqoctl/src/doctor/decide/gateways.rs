//! The gateways: the nodes that hold Leases, their keys, and the addresses that peers get.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use liqo_api::conditions::StatusCondition;
use liqo_network_model::gateways::MAX_GATEWAYS;

use super::{count_of, first_few, nodes::with_fabric, ranges::addresses_of_node, unread_finding};
use crate::{
    doctor::{Check, CheckFinding},
    inspect::{ClusterFacts, LeasedGateway},
    readiness,
};

pub fn check_gateways(facts: &ClusterFacts) -> Vec<CheckFinding> {
    let check = Check::GatewaysAlive;
    let Some(settings) = facts.liqo.network() else {
        return Vec::new();
    };
    if !settings.enabled {
        return vec![CheckFinding::skipped(check, "the network is switched off")];
    }
    let nodes = match (&facts.leases, with_fabric(facts)) {
        (Ok(_), Ok(nodes)) => nodes,
        (Err(why), _) => return vec![unread_finding(check, why)],
        (_, Err(why)) => return vec![unread_finding(check, &why)],
    };
    vec![
        check_alive_gateways(facts, &nodes),
        check_gateway_keys(facts),
        check_public_addresses(facts, &nodes),
    ]
}

/// Whether any gateway is alive. True if that is not known.
pub fn any_alive(facts: &ClusterFacts) -> bool {
    facts.leases.is_err()
        || usable_gateways(facts)
            .iter()
            .any(|gateway| gateway.is_alive)
}

/// The gateways that can carry packets, as their cluster and its peers count them.
fn usable_gateways(facts: &ClusterFacts) -> Vec<LeasedGateway> {
    let replicas = facts
        .liqo
        .network()
        .map_or(MAX_GATEWAYS, |network| network.gateways.replicas);
    let mut gateways = facts.gateways();
    gateways.retain(|gateway| gateway.number < replicas && gateway.key.is_some());
    gateways
}

fn check_alive_gateways(facts: &ClusterFacts, nodes: &[&Node]) -> CheckFinding {
    let check = Check::GatewaysAlive;
    let settings = facts
        .liqo
        .network()
        .map(|network| network.gateways.clone())
        .unwrap_or_default();
    let fitting: Vec<&&Node> = nodes
        .iter()
        .filter(|node| {
            settings
                .node_selector
                .iter()
                .all(|(key, value)| node.labels().get(key) == Some(value))
        })
        .collect();
    if fitting.is_empty() {
        let labels: Vec<String> = settings
            .node_selector
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let what = format!(
            "no node has the labels in network.gateways.nodeSelector: {}",
            labels.join(",")
        );
        return CheckFinding::fail(
            check,
            what,
            "label nodes, or change it: `liqoctl install --set network.gateways.nodeSelector=...`",
        );
    }
    let gateways = usable_gateways(facts);
    let alive: Vec<&str> = gateways
        .iter()
        .filter(|gateway| gateway.is_alive)
        .map(|gateway| gateway.node.as_str())
        .collect();
    let silent: Vec<&str> = gateways
        .iter()
        .filter(|gateway| !gateway.is_alive)
        .map(|gateway| gateway.node.as_str())
        .collect();
    let advice = "a gateway renews a Lease liqo-gateway-N in namespace liqo every two seconds: see fabric and rights, and `kubectl -n liqo-fabric logs POD` there";
    if alive.is_empty() {
        let last = if silent.is_empty() {
            String::new()
        } else {
            format!("; last alive: {}", first_few(&silent))
        };
        return CheckFinding::fail(
            check,
            format!("no gateway is alive: no packet reaches any peer{last}"),
            advice,
        );
    }
    let unwell: Vec<&str> = alive
        .iter()
        .copied()
        .filter(|name| {
            nodes
                .iter()
                .any(|node| node.name_any() == *name && !readiness::node(node))
        })
        .collect();
    if !unwell.is_empty() {
        let what = format!(
            "gateways renew their Leases on nodes that are not Ready: {}",
            first_few(&unwell)
        );
        return CheckFinding::warn(
            check,
            what,
            "`kubectl describe node NODE`: packets still pass, but the node may fail at any time",
        );
    }
    let wanted = usize::from(settings.replicas).min(fitting.len());
    let what = format!(
        "{} alive: {}",
        count_of(alive.len(), "gateway"),
        first_few(&alive)
    );
    if alive.len() < wanted {
        return CheckFinding::warn(check, format!("{what}; there should be {wanted}"), advice);
    }
    CheckFinding::ok(check, what)
}

fn check_gateway_keys(facts: &ClusterFacts) -> CheckFinding {
    let check = Check::GatewayKeys;
    let gateways = facts.gateways();
    let without: Vec<&str> = gateways
        .iter()
        .filter(|gateway| gateway.is_alive && gateway.key.is_none())
        .map(|gateway| gateway.node.as_str())
        .collect();
    if !without.is_empty() {
        let advice = "peers cannot use it: delete the liqo-fabric pod on that node, so that it takes its Lease again";
        return CheckFinding::fail(
            check,
            format!("there is no key in the Lease of {}", first_few(&without)),
            advice,
        );
    }
    if gateways.is_empty() {
        CheckFinding::skipped(check, "there is no gateway")
    } else {
        CheckFinding::ok(check, "each gateway has published its key")
    }
}

/// Address ranges that are only valid within one network.
pub fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [a, b, ..] = address.octets();
            address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || (a == 100 && (64..128).contains(&b))
        }
        IpAddr::V6(address) => {
            address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
        }
    }
}

/// Whether an endpoint, `address:port`, is a private address. Names count as public.
pub fn is_private_endpoint(text: &str) -> bool {
    text.parse::<SocketAddr>()
        .is_ok_and(|address| is_private(address.ip()))
}

/// The addresses of our gateways that peers get.
pub fn announced_addresses(facts: &ClusterFacts, nodes: &[&Node]) -> Vec<String> {
    let Some(settings) = facts.liqo.network().map(|network| &network.gateways) else {
        return Vec::new();
    };
    if !settings.addresses.is_empty() {
        return settings.addresses.clone();
    }
    let gateways = facts.gateways();
    let of_gateways = nodes.iter().filter(|node| {
        gateways
            .iter()
            .any(|gateway| gateway.node == node.name_any())
    });
    of_gateways
        .flat_map(|node| addresses_of_node(node))
        .map(|address| SocketAddr::new(address, settings.port).to_string())
        .collect()
}

/// Private addresses are fine for peers in the same network; if all peers are connected, they are.
fn check_public_addresses(facts: &ClusterFacts, nodes: &[&Node]) -> CheckFinding {
    let check = Check::GatewayAddresses;
    let announced = announced_addresses(facts, nodes);
    if announced.is_empty() {
        return CheckFinding::skipped(check, "there is no gateway that peers could use");
    }
    let what = format!("this cluster announces {}", first_few(&announced));
    if !announced
        .iter()
        .all(|endpoint| is_private_endpoint(endpoint))
    {
        return CheckFinding::ok(check, what);
    }
    // A peer with public addresses is in another network; it is enough that this cluster reaches
    // it.
    let tunnels = match &facts.liqo.tunnels {
        Ok(tunnels) => tunnels,
        Err(why) => return unread_finding(check, why),
    };
    let unreached = tunnels.iter().find(|tunnel| {
        let theirs: Vec<&String> = tunnel
            .spec
            .gateways
            .iter()
            .flat_map(|gateway| &gateway.endpoints)
            .collect();
        let is_connected = tunnel
            .connected_condition()
            .is_some_and(StatusCondition::is_true);
        !is_connected
            && (theirs.is_empty() || theirs.iter().any(|endpoint| !is_private_endpoint(endpoint)))
    });
    match unreached {
        Some(tunnel) => CheckFinding::warn(
            check,
            format!(
                "{what}: {} reaches that only from the same network, and is not connected",
                tunnel.spec.cluster_name
            ),
            "if neither side reaches the other's gateway: forward a UDP port to one of them, and `liqoctl install --set network.gateways.addresses=ADDRESS:PORT`",
        ),
        None => CheckFinding::ok(
            check,
            format!("{what}, which is private; every peer that needs it is connected"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        finding::CheckVerdict,
        inspect::fixtures::{facts, lease, of},
    };

    fn gateway(number: u8, node: &str, ago: i64) -> k8s_openapi::api::coordination::v1::Lease {
        let mut lease = lease(&liqo_api::gateway_lease(number), node, ago, 0);
        lease
            .labels_mut()
            .insert(liqo_api::labels::GATEWAY.to_owned(), "true".to_owned());
        lease.annotations_mut().insert(
            liqo_api::annotations::GATEWAY_KEY.to_owned(),
            "key".to_owned(),
        );
        lease
    }

    fn verdict(facts: &ClusterFacts, check: Check) -> CheckFinding {
        check_gateways(facts)
            .into_iter()
            .find(|one| one.check == check)
            .unwrap()
    }

    #[test]
    fn a_gateway_that_is_silent_is_named_and_none_at_all_is_a_fault() {
        let mut facts = facts();
        assert!(
            check_gateways(&facts)
                .iter()
                .all(|one| one.verdict == CheckVerdict::Ok),
            "{:#?}",
            check_gateways(&facts)
        );
        facts.leases = Ok(vec![gateway(0, "rome-1", 60)]);
        let found = verdict(&facts, Check::GatewaysAlive);
        assert!(
            found.verdict == CheckVerdict::Fail && found.what.contains("last alive: rome-1"),
            "{}",
            found.what
        );
        facts.leases = Ok(Vec::new());
        assert_eq!(
            verdict(&facts, Check::GatewaysAlive).verdict,
            CheckVerdict::Fail
        );
        assert!(!any_alive(&facts));
    }

    #[test]
    fn fewer_gateways_than_nodes_could_give_are_worth_a_look() {
        let mut facts = facts();
        let node: Node = of(
            json!({ "metadata": { "name": "rome-2" }, "status": { "conditions": [{ "type": "Ready", "status": "True" }] } }),
        );
        facts.nodes.as_mut().unwrap().push(node);
        assert_eq!(
            verdict(&facts, Check::GatewaysAlive).verdict,
            CheckVerdict::Warn
        );
        facts.leases = Ok(vec![gateway(0, "rome-1", 1), gateway(1, "rome-2", 1)]);
        assert_eq!(
            verdict(&facts, Check::GatewaysAlive).verdict,
            CheckVerdict::Ok
        );
    }

    #[test]
    fn a_selector_that_no_node_fits_is_named() {
        let mut facts = facts();
        let config = facts.liqo.config.as_mut().unwrap().as_mut().unwrap();
        config
            .spec
            .network
            .gateways
            .node_selector
            .insert("role".to_owned(), "edge".to_owned());
        assert!(
            verdict(&facts, Check::GatewaysAlive)
                .what
                .contains("role=edge")
        );
    }

    #[test]
    fn whom_private_addresses_keep_away_cannot_be_said_without_the_tunnels() {
        let mut facts = facts();
        facts.liqo.tunnels = Err("cannot list tunnels".to_owned());
        assert_eq!(
            verdict(&facts, Check::GatewayAddresses).verdict,
            CheckVerdict::Unknown
        );
    }

    #[test]
    fn a_gateway_without_a_key_is_named() {
        let mut facts = facts();
        let mut keyless = gateway(0, "rome-1", 1);
        keyless.metadata.annotations = None;
        facts.leases = Ok(vec![keyless]);
        assert_eq!(
            verdict(&facts, Check::GatewayKeys).verdict,
            CheckVerdict::Fail
        );
    }

    #[test]
    fn private_addresses_are_warned_of_where_a_peer_elsewhere_is_not_connected() {
        let mut facts = facts();
        let set = |facts: &mut ClusterFacts, endpoint: &str, connected: &str| {
            let tunnel = &mut facts.liqo.tunnels.as_mut().unwrap()[0];
            tunnel.spec.gateways[0].endpoints = vec![endpoint.to_owned()];
            tunnel.status.as_mut().unwrap().conditions[0].status = connected.to_owned();
        };
        set(&mut facts, "203.0.113.9:51840", "False");
        assert_eq!(
            verdict(&facts, Check::GatewayAddresses).verdict,
            CheckVerdict::Warn
        );
        set(&mut facts, "203.0.113.9:51840", "True");
        assert_eq!(
            verdict(&facts, Check::GatewayAddresses).verdict,
            CheckVerdict::Ok
        );
        set(&mut facts, "172.18.0.9:51840", "False");
        assert_eq!(
            verdict(&facts, Check::GatewayAddresses).verdict,
            CheckVerdict::Ok
        );
        let config = facts.liqo.config.as_mut().unwrap().as_mut().unwrap();
        config.spec.network.gateways.addresses = vec!["gw.example:51840".to_owned()];
        set(&mut facts, "203.0.113.9:51840", "False");
        assert_eq!(
            verdict(&facts, Check::GatewayAddresses).verdict,
            CheckVerdict::Ok
        );
    }
}

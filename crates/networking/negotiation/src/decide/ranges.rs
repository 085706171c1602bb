//! The ranges of this cluster: from the settings, else from what the cluster's objects say.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    discovery::v1::EndpointSlice,
};
use liqo_api::{ApiServerEndpoint, NetworkRanges, NetworkSettings, labels};
use liqo_network_model::{
    ExternalAddresses,
    fabric::pod_prefixes,
    space::{most_are_in, prefixes_overlap},
    spread::keeps_low_bits,
};

/// The addresses and labels of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeNetwork {
    /// External addresses first, because other clusters reach the node by them.
    pub addresses: Vec<IpAddr>,
    /// Prefixes of the pods on it.
    pub pods: Vec<IpNet>,
    pub labels: BTreeMap<String, String>,
}

impl NodeNetwork {
    #[allow(clippy::unnecessary_wraps)] // A cache expects an Option.
    pub fn from_node(node: Node) -> Option<Self> {
        let labels = node.metadata.labels.unwrap_or_default();
        if labels
            .get(labels::TYPE)
            .is_some_and(|kind| kind == labels::TYPE_VIRTUAL_NODE)
        {
            return None;
        }
        let listed = node
            .status
            .as_ref()
            .and_then(|status| status.addresses.as_ref())
            .into_iter()
            .flatten();
        let listed: Vec<_> = listed
            .filter_map(|address| Some((&address.type_, address.address.parse().ok()?)))
            .collect();
        let addresses = ["ExternalIP", "InternalIP"]
            .into_iter()
            .flat_map(|kind| listed.iter().filter(move |(type_, _)| *type_ == kind))
            .map(|(_, address)| *address)
            .collect();
        Some(Self {
            addresses,
            pods: pod_prefixes(node.spec),
            labels,
        })
    }
}

/// The facts about its ranges that the cluster's objects contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSources {
    /// Without virtual nodes.
    pub nodes: Vec<NodeNetwork>,
    /// The argument `--cluster-cidr` of kube-controller-manager.
    pub cluster_cidrs: Vec<IpNet>,
    /// The prefixes of all `ServiceCIDR` objects.
    pub service_cidrs: Vec<IpNet>,
    /// Cluster addresses of the Service `kubernetes`.
    pub api_services: Vec<IpAddr>,
    /// The endpoints of the Service `kubernetes`.
    pub api_servers: BTreeSet<SocketAddr>,
}

/// The API servers behind the Service `kubernetes`.
pub fn api_servers(slices: &[EndpointSlice]) -> BTreeSet<SocketAddr> {
    slices.iter().flat_map(ready_servers).collect()
}

fn ready_servers(slice: &EndpointSlice) -> Vec<SocketAddr> {
    let mut ports = slice.ports.iter().flatten().filter(|port| {
        port.name
            .as_deref()
            .is_none_or(|name| ["", "https"].contains(&name))
    });
    let Some(port) = ports.find_map(|port| u16::try_from(port.port?).ok()) else {
        return Vec::new();
    };
    let ready = slice.endpoints.iter().filter(|endpoint| {
        endpoint.conditions.as_ref().and_then(|known| known.ready) != Some(false)
    });
    let addresses = ready.flat_map(|endpoint| &endpoint.addresses);
    addresses
        .filter_map(|address| Some(SocketAddr::new(address.parse().ok()?, port)))
        .collect()
}

/// The API servers with their stand-ins. Previous stand-ins stay. An API server that only its own
/// machine can reach is left out.
fn with_stand_ins(
    servers: &BTreeSet<SocketAddr>,
    external: &[IpNet],
    previous: &[ApiServerEndpoint],
) -> Vec<ApiServerEndpoint> {
    // An address has one stand-in, so only one of several servers at one address is reachable.
    let ports: BTreeMap<IpAddr, u16> = servers
        .iter()
        .rev()
        .map(|server| (server.ip(), server.port()))
        .collect();
    let addresses = ports.keys().copied().filter(|address| {
        !address.is_loopback() && !address.is_unspecified() && !address.is_multicast()
    });
    let before = ExternalAddresses::from_recorded(
        previous
            .iter()
            .map(|server| (server.address, server.stand_in)),
    );
    let (assigned, _) = ExternalAddresses::assign_stand_ins(external, addresses, &before);
    let mut endpoints = Vec::new();
    for (address, stand_in) in assigned.pairs() {
        if let Some(port) = ports.get(&address) {
            endpoints.push(ApiServerEndpoint {
                address,
                port: *port,
                stand_in,
            });
        }
    }
    endpoints
}

/// The ranges of pods that kube-controller-manager was started with, where it runs as a pod.
pub fn cluster_cidrs(pods: &[Pod]) -> Vec<IpNet> {
    let arguments = pods
        .iter()
        .filter_map(|pod| pod.spec.as_ref())
        .flat_map(|spec| &spec.containers)
        .flat_map(|container| {
            let command = container.command.iter().flatten();
            command.chain(container.args.iter().flatten())
        });
    let given = arguments.filter_map(|argument| argument.strip_prefix("--cluster-cidr="));
    let all: BTreeSet<IpNet> = given
        .flat_map(|text| text.split(','))
        .filter_map(|prefix| prefix.trim().parse().ok())
        .collect();
    all.into_iter().collect()
}

/// The ranges, or which setting is missing or wrong. `previous` are the recorded API servers.
pub fn find_ranges(
    settings: &NetworkSettings,
    environment: &RangeSources,
    previous: &[ApiServerEndpoint],
) -> Result<NetworkRanges, String> {
    let pods = pod_ranges(settings, environment)?;
    let services = match (&settings.service_cidrs, &environment.service_cidrs) {
        (set, _) if !set.is_empty() => set.clone(),
        (_, listed) if !listed.is_empty() => listed.clone(),
        _ => environment
            .api_services
            .iter()
            .filter_map(|&address| around_service(address))
            .collect(),
    };
    let external = external_ranges(settings, environment, &pods, &services)?;
    Ok(NetworkRanges {
        api_servers: with_stand_ins(&environment.api_servers, &external, previous),
        pods: pods.iter().map(IpNet::trunc).collect(),
        services: services.iter().map(IpNet::trunc).collect(),
        external,
    })
}

fn pod_ranges(
    settings: &NetworkSettings,
    environment: &RangeSources,
) -> Result<Vec<IpNet>, String> {
    let pods = match (&settings.pod_cidrs, &environment.cluster_cidrs) {
        (set, _) if !set.is_empty() => set.clone(),
        (_, given) if !given.is_empty() => given.clone(),
        _ => widened_ranges(environment.nodes.iter().flat_map(|node| &node.pods)),
    };
    if pods.is_empty() {
        return Err(
            "the range of this cluster's pods was not found: set it with `liqoctl install --set network.podCIDRs=...`".into()
        );
    }
    if let Some(wrong) = pods
        .iter()
        .find(|range| holds_most(&environment.nodes, range))
    {
        return Err(format!(
            "{wrong}, taken for the range of this cluster's pods, contains addresses of nodes: set the range with `liqoctl install --set network.podCIDRs=...`"
        ));
    }
    if let Some(small) = pods.iter().find(|prefix| !keeps_low_bits(prefix)) {
        return Err(format!(
            "{small}, taken for a range of this cluster's pods, is smaller than sixteen addresses: set the range with `liqoctl install --set network.podCIDRs=...`"
        ));
    }
    Ok(pods)
}

/// The external prefixes as they are set, if no machine here uses them.
fn external_ranges(
    settings: &NetworkSettings,
    environment: &RangeSources,
    pods: &[IpNet],
    services: &[IpNet],
) -> Result<Vec<IpNet>, String> {
    let external: Vec<IpNet> = settings.external_cidrs.iter().map(IpNet::trunc).collect();
    let v4_count = external
        .iter()
        .filter(|prefix| prefix.addr().is_ipv4())
        .count();
    if v4_count > 1 || external.len() - v4_count > 1 {
        return Err(
            "network.externalCIDRs holds several prefixes of one family: one is enough".into(),
        );
    }
    if let Some(small) = external.iter().find(|prefix| !keeps_low_bits(prefix)) {
        return Err(format!(
            "network.externalCIDRs holds {small}, which is smaller than sixteen addresses"
        ));
    }
    let others = pods.iter().chain(services).find(|other| {
        external
            .iter()
            .any(|external| prefixes_overlap(external, other))
    });
    let nodes = external
        .iter()
        .find(|external| holds_most(&environment.nodes, external));
    let used = others
        .map(ToString::to_string)
        .or_else(|| nodes.map(|_| "addresses of nodes".to_owned()));
    if let Some(used) = used {
        return Err(format!(
            "network.externalCIDRs overlaps with {used}, which is in use here: set a free one with `liqoctl install --set network.externalCIDRs=...`"
        ));
    }
    Ok(external)
}

/// Whether most nodes are in this range, which is then wrong. If only a few are, liqo-fabric leaves
/// their addresses out.
fn holds_most(nodes: &[NodeNetwork], range: &IpNet) -> bool {
    most_are_in(nodes.iter().map(|node| node.addresses.as_slice()), range)
}

/// Widens the ranges of single nodes to the usual size of a cluster's range, which most likely
/// contains those of later nodes.
fn widened_ranges<'a>(of_nodes: impl Iterator<Item = &'a IpNet>) -> Vec<IpNet> {
    let all: BTreeSet<IpNet> = of_nodes.filter_map(usual_range).collect();
    all.into_iter().collect()
}

/// The prefix with the usual size of a cluster's range that contains this one.
fn usual_range(of_node: &IpNet) -> Option<IpNet> {
    let length = if of_node.addr().is_ipv4() { 16 } else { 48 };
    let wide = IpNet::new(of_node.addr(), length.min(of_node.prefix_len())).ok()?;
    Some(wide.trunc())
}

/// The largest usual range of Services around one address. It is only used to keep prefixes of
/// peers out of it.
fn around_service(address: IpAddr) -> Option<IpNet> {
    IpNet::new(address, if address.is_ipv4() { 12 } else { 108 })
        .map(|prefix| prefix.trunc())
        .ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nets(all: &[&str]) -> Vec<IpNet> {
        all.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn node(address: &str, pods: &[&str]) -> NodeNetwork {
        NodeNetwork {
            addresses: vec![address.parse().unwrap()],
            pods: nets(pods),
            ..NodeNetwork::default()
        }
    }

    #[test]
    fn the_network_of_a_virtual_node_is_not_of_this_cluster() {
        let found = |kind: &str| {
            let labels = serde_json::json!({ "liqo.io/type": kind });
            let node = serde_json::json!({ "metadata": { "name": "n", "labels": labels } });
            NodeNetwork::from_node(serde_json::from_value(node).unwrap())
        };
        assert!(found("gateway").is_some());
        assert_eq!(found(labels::TYPE_VIRTUAL_NODE), None);
    }

    fn environment() -> RangeSources {
        RangeSources {
            nodes: vec![
                node("172.18.0.2", &["10.244.0.0/24", "fd00:10:244::/64"]),
                node("172.18.0.3", &["10.244.7.0/24"]),
            ],
            api_services: vec!["10.96.0.1".parse().unwrap()],
            ..RangeSources::default()
        }
    }

    #[test]
    fn settings_come_first_then_the_clusters_own_configuration_then_the_ranges_of_its_nodes() {
        let mut settings = NetworkSettings::default();
        let mut environment = environment();
        let found = find_ranges(&settings, &environment, &[]).unwrap();
        assert_eq!(found.pods, nets(&["10.244.0.0/16", "fd00:10:244::/48"]));
        assert_eq!(found.services, nets(&["10.96.0.0/12"]));
        assert_eq!(found.external, settings.external_cidrs);
        environment.cluster_cidrs = nets(&["10.244.0.0/15"]);
        environment.service_cidrs = nets(&["10.100.0.0/16"]);
        let found = find_ranges(&settings, &environment, &[]).unwrap();
        assert_eq!(
            (found.pods, found.services),
            (nets(&["10.244.0.0/15"]), nets(&["10.100.0.0/16"]))
        );
        settings.pod_cidrs = nets(&["10.1.2.0/16"]);
        settings.service_cidrs = nets(&["10.3.0.0/16"]);
        let found = find_ranges(&settings, &environment, &[]).unwrap();
        assert_eq!(
            (found.pods, found.services),
            (nets(&["10.1.0.0/16"]), nets(&["10.3.0.0/16"]))
        );
    }

    #[test]
    fn impossible_ranges_are_refused_with_the_setting_to_change() {
        let wrong = RangeSources {
            nodes: vec![node("10.244.9.9", &["10.244.0.0/24"])],
            ..RangeSources::default()
        };
        for environment in [wrong, RangeSources::default()] {
            assert!(
                find_ranges(&NetworkSettings::default(), &environment, &[])
                    .unwrap_err()
                    .contains("--set network.podCIDRs=")
            );
        }
        for external in [
            &["10.1.0.0/24", "10.2.0.0/24"][..],
            &["10.244.9.0/24"],
            &["10.97.0.0/16"],
            &["172.18.0.0/24"],
            &["10.70.0.0/29"],
        ] {
            let settings = NetworkSettings {
                external_cidrs: nets(external),
                ..NetworkSettings::default()
            };
            assert!(
                find_ranges(&settings, &environment(), &[])
                    .unwrap_err()
                    .contains("network.externalCIDRs"),
                "{external:?}"
            );
        }
    }

    #[test]
    fn a_wrong_address_of_one_node_does_not_stop_the_others() {
        for wrong in ["10.244.9.9", "10.70.0.9"] {
            let mut environment = environment();
            environment.nodes.push(node(wrong, &[]));
            assert!(
                find_ranges(&NetworkSettings::default(), &environment, &[]).is_ok(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn the_ready_endpoints_of_the_service_kubernetes_are_the_api_servers() {
        let slice = json!({
            "metadata": { "name": "kubernetes" },
            "addressType": "IPv4",
            "ports": [{ "name": "metrics", "port": 1 }, { "name": "https", "port": 6443 }],
            "endpoints": [
                { "addresses": ["172.18.0.2"] }, { "addresses": ["172.18.0.3"], "conditions": { "ready": true } },
                { "addresses": ["172.18.0.4"], "conditions": { "ready": false } }, { "addresses": ["junk"] },
            ],
        });
        let found = api_servers(&[serde_json::from_value(slice).unwrap()]);
        assert_eq!(
            found,
            ["172.18.0.2:6443", "172.18.0.3:6443"]
                .map(|text| text.parse().unwrap())
                .into()
        );
    }

    #[test]
    fn an_api_server_keeps_its_stand_in_when_others_come_and_go() {
        let settings = NetworkSettings::default();
        let with = |servers: &[&str], previous: &[ApiServerEndpoint]| {
            let api_servers = servers.iter().map(|text| text.parse().unwrap()).collect();
            find_ranges(
                &settings,
                &RangeSources {
                    api_servers,
                    ..environment()
                },
                previous,
            )
            .unwrap()
            .api_servers
        };
        let first = with(&["172.18.0.2:6443", "203.0.113.9:443"], &[]);
        assert_eq!(
            first.iter().map(|one| one.port).collect::<Vec<_>>(),
            [6443, 443]
        );
        assert!(
            first
                .iter()
                .all(|one| settings.external_cidrs[0].contains(&one.stand_in)),
            "{first:?}"
        );
        assert_ne!(first[0].stand_in, first[1].stand_in);
        // A restart, a new API server, one that is gone.
        assert_eq!(with(&["172.18.0.2:6443", "203.0.113.9:443"], &first), first);
        let more = with(
            &["10.0.0.1:6443", "172.18.0.2:6443", "203.0.113.9:443"],
            &first,
        );
        assert!(first.iter().all(|one| more.contains(one)), "{more:?}");
        assert_eq!(with(&["203.0.113.9:443"], &more), [first[1]]);
        // No other machine reaches these, or there is no external prefix of the family.
        assert_eq!(
            with(&["127.0.0.1:6443", "0.0.0.0:1", "[2001:db8::1]:6443"], &[]),
            []
        );
    }

    #[test]
    fn the_argument_of_kube_controller_manager_is_read() {
        let pod = json!({ "spec": { "containers": [
            { "name": "c", "command": ["kube-controller-manager", "--cluster-cidr=10.244.0.0/16,fd00::/48", "--leader-elect=true"] },
        ] } });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(cluster_cidrs(&[pod]), nets(&["10.244.0.0/16", "fd00::/48"]));
    }

    #[test]
    fn external_addresses_of_a_node_come_first() {
        let node = json!({
            "spec": { "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00::/64"] },
            "status": { "addresses": [
                { "type": "InternalIP", "address": "10.0.0.1" }, { "type": "Hostname", "address": "n" }, { "type": "ExternalIP", "address": "203.0.113.1" },
            ] },
        });
        let reduced = NodeNetwork::from_node(serde_json::from_value(node).unwrap()).unwrap();
        assert_eq!(
            reduced.addresses,
            [
                "203.0.113.1".parse::<IpAddr>().unwrap(),
                "10.0.0.1".parse().unwrap()
            ]
        );
        assert_eq!(reduced.pods, nets(&["10.1.0.0/24", "fd00::/64"]));
    }
}

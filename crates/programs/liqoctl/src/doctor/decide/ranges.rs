//! Address ranges: those of this cluster, and those that it maps its peers to. Also the MTU of its
//! tunnels.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use liqo_api::{NetworkRanges, NetworkSettings};
use liqo_network_model::{
    allocator::allocate_prefixes,
    negotiation::{ClusterRanges, KeptByPeer},
    space::prefixes_overlap,
};

use super::{first_few, unread_finding};
use crate::{
    doctor::{Check, CheckFinding},
    inspect::ClusterFacts,
};

/// The tunnel's MTU over IPv6 on a path of 1500 bytes.
const USUAL_MTU: u16 = 1420;

pub fn check_ranges(facts: &ClusterFacts) -> Vec<CheckFinding> {
    let check = Check::OwnRanges;
    let Some(settings) = facts.liqo.network() else {
        return facts
            .liqo
            .config
            .as_ref()
            .err()
            .map(|why| unread_finding(check, why))
            .into_iter()
            .collect();
    };
    if !settings.enabled {
        return vec![CheckFinding::skipped(
            check,
            "the network is switched off: `liqoctl install --set network.enabled=true` switches it on",
        )];
    }
    let status = facts
        .liqo
        .configuration()
        .and_then(|config| config.status.as_ref());
    let Some(ranges) = status
        .and_then(|status| status.network.as_ref())
        .filter(|ranges| !ranges.pods.is_empty())
    else {
        let advice = "the condition NetworkAgreed of peers says what is wrong; set the ranges with `liqoctl install --set network.podCIDRs=... --set network.serviceCIDRs=...`";
        return vec![CheckFinding::fail(
            check,
            "the ranges of this cluster's pods are not known",
            advice,
        )];
    };
    let what = format!(
        "pods {}, Services {}, for single addresses {}",
        format_prefixes(&ranges.pods),
        format_prefixes(&ranges.services),
        format_prefixes(&ranges.external)
    );
    let mut found = vec![CheckFinding::ok(check, what)];
    found.push(match facts.real_nodes() {
        Ok(nodes) => node_addresses(ranges, &nodes),
        Err(why) => unread_finding(Check::NodeAddresses, &why),
    });
    found.push(pod_addresses(facts, ranges));
    match (&facts.liqo.tunnels, &facts.nodes) {
        (Ok(_), Ok(_)) => found.extend([
            peer_prefixes(facts, ranges, settings),
            peer_capacity(facts, ranges, settings),
        ]),
        (Err(why), _) | (_, Err(why)) => {
            found.extend(
                [Check::PeerPrefixes, Check::PeerCapacity].map(|check| unread_finding(check, why)),
            );
        }
    }
    found.push(check_mtu(facts, settings));
    found
}

fn format_prefixes(prefixes: &[IpNet]) -> String {
    if prefixes.is_empty() {
        "none".to_owned()
    } else {
        prefixes
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

pub fn addresses_of_node(node: &Node) -> impl Iterator<Item = IpAddr> {
    let stated = node
        .status
        .iter()
        .flat_map(|status| status.addresses.iter().flatten());
    stated.filter_map(|address| address.address.parse().ok())
}

fn node_addresses(ranges: &NetworkRanges, nodes: &[&Node]) -> CheckFinding {
    let check = Check::NodeAddresses;
    let named = [
        (&ranges.pods, "podCIDRs"),
        (&ranges.services, "serviceCIDRs"),
        (&ranges.external, "externalCIDRs"),
    ];
    for (prefixes, key) in named {
        for node in nodes {
            let within = addresses_of_node(node).find_map(|address| {
                Some((
                    address,
                    prefixes.iter().find(|prefix| prefix.contains(&address))?,
                ))
            });
            if let Some((address, prefix)) = within {
                let what = format!(
                    "node {} has the address {address}, which is in {prefix} of network.{key}",
                    node.name_any()
                );
                return CheckFinding::fail(
                    check,
                    what,
                    format!("correct the range: `liqoctl install --set network.{key}=...`"),
                );
            }
        }
    }
    CheckFinding::ok(check, "the addresses of nodes are outside of the ranges")
}

/// Pods on real nodes that have their own address.
fn pods_here(facts: &ClusterFacts) -> impl Iterator<Item = (&Pod, IpAddr)> {
    let machines: Vec<String> = facts
        .real_nodes()
        .unwrap_or_default()
        .into_iter()
        .map(ResourceExt::name_any)
        .collect();
    let all = facts
        .pods
        .iter()
        .flatten()
        .chain(facts.local_pods.iter().flatten());
    all.filter_map(move |pod| {
        let spec = pod.spec.as_ref()?;
        let is_here = spec
            .node_name
            .as_ref()
            .is_some_and(|node| machines.contains(node))
            && spec.host_network != Some(true);
        let address = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
        is_here.then_some((pod, address))
    })
}

fn pod_addresses(facts: &ClusterFacts, ranges: &NetworkRanges) -> CheckFinding {
    let check = Check::PodAddresses;
    let advice = format!(
        "set all ranges of pods: `liqoctl install --set network.podCIDRs={},...`; peers cannot reach other addresses",
        format_prefixes(&ranges.pods).replace(", ", ",")
    );
    let mut seen = 0;
    for (pod, address) in pods_here(facts) {
        seen += 1;
        if !ranges.pods.iter().any(|prefix| prefix.contains(&address)) {
            let what = format!(
                "pod {} has the address {address}, outside of network.podCIDRs",
                crate::cluster::full_name(pod)
            );
            return CheckFinding::fail(check, what, advice);
        }
    }
    // Some CNI plugins assign other addresses than those in `spec.podCIDR`: then the pods decide.
    if seen == 0 {
        return CheckFinding::unknown(
            check,
            "there is no pod whose address could be compared with network.podCIDRs",
        );
    }
    CheckFinding::ok(
        check,
        format!(
            "the addresses of {} are in network.podCIDRs",
            super::count_of(seen, "pod")
        ),
    )
}

fn peer_prefixes(
    facts: &ClusterFacts,
    ranges: &NetworkRanges,
    settings: &NetworkSettings,
) -> CheckFinding {
    let check = Check::PeerPrefixes;
    let named = [
        (&ranges.pods, "pods"),
        (&ranges.services, "Services"),
        (&ranges.external, "network.externalCIDRs"),
        (&settings.reserved_cidrs, "network.reservedCIDRs"),
    ];
    let ours: Vec<(IpNet, String)> = named
        .iter()
        .flat_map(|(prefixes, what)| {
            prefixes
                .iter()
                .map(move |prefix| (*prefix, format!("this cluster's {what}")))
        })
        .collect();
    let nodes = facts.real_nodes().unwrap_or_default();
    let of_nodes = nodes.iter().flat_map(|node| {
        addresses_of_node(node)
            .map(|address| (IpNet::from(address), format!("node {}", node.name_any())))
    });
    let tunnels = facts.liqo.tunnels.as_deref().unwrap_or_default();
    let mapped: Vec<(IpNet, String)> = tunnels
        .iter()
        .flat_map(|tunnel| {
            tunnel
                .spec
                .imported
                .values()
                .map(|here| (*here, format!("peer {}", tunnel.spec.cluster_name)))
        })
        .collect();
    let taken: Vec<(IpNet, String)> = ours.into_iter().chain(of_nodes).collect();
    for (index, (prefix, peer)) in mapped.iter().enumerate() {
        let other = taken
            .iter()
            .chain(&mapped[..index])
            .find(|(other, _)| prefixes_overlap(prefix, other));
        if let Some((other, of)) = other {
            let what =
                format!("{prefix}, which {peer} is mapped to, overlaps with {other} of {of}");
            return CheckFinding::fail(
                check,
                what,
                "the manager maps the peer to another prefix within a minute; if it does not, add the used prefix to `--set network.reservedCIDRs`, or set another `network.peerCIDRs`",
            );
        }
    }
    CheckFinding::ok(
        check,
        format!(
            "{} of peers, which do not overlap",
            super::count_of(mapped.len(), "mapped range")
        ),
    )
}

/// Whether there is room to map one more cluster like this one.
fn peer_capacity(
    facts: &ClusterFacts,
    ranges: &NetworkRanges,
    settings: &NetworkSettings,
) -> CheckFinding {
    let check = Check::PeerCapacity;
    let own = ClusterRanges {
        pods: ranges.pods.clone(),
        services: ranges.services.clone(),
        external: ranges.external.clone(),
        nodes: facts
            .real_nodes()
            .unwrap_or_default()
            .iter()
            .flat_map(|node| addresses_of_node(node))
            .collect(),
        reserved: settings.reserved_cidrs.clone(),
        pools: settings.peer_cidrs.clone(),
    };
    let mut plan = own.address_plan(KeptByPeer::new());
    plan.taken.extend(
        facts
            .liqo
            .tunnels
            .iter()
            .flatten()
            .flat_map(|tunnel| tunnel.spec.imported.values().copied()),
    );
    let another = liqo_api::ClusterId::of_public_key(&[0; 32]);
    let wanted: Vec<_> = ranges
        .pods
        .iter()
        .filter(|prefix| has_pool_of_family(settings, prefix))
        .map(|prefix| (another.clone(), *prefix))
        .collect();
    let (_, without) = allocate_prefixes(
        &plan,
        &wanted,
        &liqo_network_model::allocator::Allocations::new(),
    );
    if wanted.is_empty() {
        let advice = "add prefixes of that family: `liqoctl install --set network.peerCIDRs=...`";
        return CheckFinding::fail(
            check,
            format!(
                "network.peerCIDRs ({}) has no prefix of the address family of this cluster's pods",
                format_prefixes(&settings.peer_cidrs)
            ),
            advice,
        );
    }
    if without.is_empty() {
        return CheckFinding::ok(check, "network.peerCIDRs has room for more peers");
    }
    let sizes: Vec<String> = without
        .iter()
        .map(|(_, prefix)| format!("/{}", prefix.prefix_len()))
        .collect();
    CheckFinding::warn(
        check,
        format!(
            "network.peerCIDRs ({}) has no free prefix for one more peer as large as this cluster ({})",
            format_prefixes(&settings.peer_cidrs),
            first_few(&sizes)
        ),
        "add prefixes that nobody uses: `liqoctl install --set network.peerCIDRs=...`",
    )
}

fn has_pool_of_family(settings: &NetworkSettings, prefix: &IpNet) -> bool {
    settings
        .peer_cidrs
        .iter()
        .any(|pool| pool.addr().is_ipv4() == prefix.addr().is_ipv4())
}

fn check_mtu(facts: &ClusterFacts, settings: &NetworkSettings) -> CheckFinding {
    let check = Check::Mtu;
    let advice =
        "the real MTU of the path cannot be read from here: `liqoctl test network` tries it";
    if settings.mtu > USUAL_MTU {
        let what = format!(
            "network.mtu is {}: nodes, and the path between clusters, must pass packets of {} bytes",
            settings.mtu,
            settings.mtu + 80
        );
        return CheckFinding::warn(check, what, advice);
    }
    let agreed: Vec<String> = facts
        .liqo
        .tunnels
        .iter()
        .flatten()
        .map(|tunnel| format!("{} with {}", tunnel.spec.mtu, tunnel.spec.cluster_name))
        .collect();
    let with = if agreed.is_empty() {
        String::new()
    } else {
        format!(" ({})", first_few(&agreed))
    };
    CheckFinding::ok(check, format!("{} bytes in tunnels{with}", settings.mtu)).with_advice(advice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        finding::CheckVerdict,
        inspect::fixtures::{facts, of},
    };

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn ranges(facts: &mut ClusterFacts) -> &mut NetworkRanges {
        facts
            .liqo
            .config
            .as_mut()
            .unwrap()
            .as_mut()
            .unwrap()
            .status
            .as_mut()
            .unwrap()
            .network
            .as_mut()
            .unwrap()
    }

    fn settings(facts: &mut ClusterFacts) -> &mut NetworkSettings {
        &mut facts
            .liqo
            .config
            .as_mut()
            .unwrap()
            .as_mut()
            .unwrap()
            .spec
            .network
    }

    fn verdict(facts: &ClusterFacts, check: Check) -> CheckFinding {
        check_ranges(facts)
            .into_iter()
            .find(|one| one.check == check)
            .unwrap()
    }

    #[test]
    fn ranges_that_are_not_known_are_a_fault_and_a_network_that_is_off_is_none() {
        let mut facts = facts();
        assert!(
            check_ranges(&facts)
                .iter()
                .all(|one| one.verdict == CheckVerdict::Ok),
            "{:#?}",
            check_ranges(&facts)
        );
        ranges(&mut facts).pods.clear();
        assert_eq!(
            verdict(&facts, Check::OwnRanges).verdict,
            CheckVerdict::Fail
        );
        settings(&mut facts).enabled = false;
        assert_eq!(
            verdict(&facts, Check::OwnRanges).verdict,
            CheckVerdict::Skipped
        );
    }

    #[test]
    fn a_range_that_holds_a_node_is_named() {
        let mut facts = facts();
        ranges(&mut facts).services = vec![net("172.18.0.0/16")];
        let found = verdict(&facts, Check::NodeAddresses);
        assert_eq!(found.verdict, CheckVerdict::Fail);
        assert!(
            found
                .what
                .contains("node rome-1 has the address 172.18.0.2")
                && found.what.contains("network.serviceCIDRs")
        );
    }

    #[test]
    fn a_pod_outside_of_the_ranges_is_named() {
        let mut facts = facts();
        let pod = |host: bool, node: &str| {
            of(json!({
                "metadata": { "name": "p", "namespace": "demo" },
                "spec": { "containers": [], "nodeName": node, "hostNetwork": host },
                "status": { "podIP": "192.168.3.4" },
            }))
        };
        facts.local_pods = Ok(vec![pod(true, "rome-1"), pod(false, "milan")]);
        assert_eq!(
            verdict(&facts, Check::PodAddresses).verdict,
            CheckVerdict::Ok,
            "nodes' and peers' addresses are others"
        );
        facts.local_pods = Ok(vec![pod(false, "rome-1")]);
        let found = verdict(&facts, Check::PodAddresses);
        assert_eq!(found.verdict, CheckVerdict::Fail);
        assert!(
            found.what.contains("demo/p")
                && found.advice.unwrap().contains("podCIDRs=10.244.0.0/16,")
        );
        facts.local_pods = Ok(Vec::new());
        facts.pods = Ok(Vec::new());
        assert_eq!(
            verdict(&facts, Check::PodAddresses).verdict,
            CheckVerdict::Unknown
        );
    }

    #[test]
    fn a_peer_that_is_mapped_to_a_used_prefix_is_named() {
        let mut facts = facts();
        settings(&mut facts).reserved_cidrs = vec![net("10.65.7.0/24")];
        let found = verdict(&facts, Check::PeerPrefixes);
        assert_eq!(found.verdict, CheckVerdict::Fail);
        assert!(
            found
                .what
                .contains("10.65.0.0/16, which peer milan is mapped to"),
            "{}",
            found.what
        );
        settings(&mut facts).reserved_cidrs.clear();
        let again = facts.liqo.tunnels.as_ref().unwrap()[0].clone();
        facts.liqo.tunnels.as_mut().unwrap().push(again);
        assert_eq!(
            verdict(&facts, Check::PeerPrefixes).verdict,
            CheckVerdict::Fail,
            "two peers in one place"
        );
    }

    #[test]
    fn room_for_one_more_peer_is_tried() {
        let mut facts = facts();
        settings(&mut facts).peer_cidrs = vec![net("10.64.0.0/15")];
        assert_eq!(
            verdict(&facts, Check::PeerCapacity).verdict,
            CheckVerdict::Ok
        );
        settings(&mut facts).peer_cidrs = vec![net("10.65.0.0/16")];
        assert_eq!(
            verdict(&facts, Check::PeerCapacity).verdict,
            CheckVerdict::Warn
        );
        settings(&mut facts).peer_cidrs = vec![net("fd00::/32")];
        assert_eq!(
            verdict(&facts, Check::PeerCapacity).verdict,
            CheckVerdict::Fail
        );
    }

    #[test]
    fn large_packets_are_only_warned_of() {
        let mut facts = facts();
        let found = verdict(&facts, Check::Mtu);
        assert!(
            found.verdict == CheckVerdict::Ok
                && found.advice.unwrap().contains("liqoctl test network")
        );
        settings(&mut facts).mtu = 8900;
        assert_eq!(verdict(&facts, Check::Mtu).verdict, CheckVerdict::Warn);
    }
}

//! Compares two clusters: what each says about itself with what the other uses.

use std::collections::BTreeMap;

use ipnet::IpNet;
use jiff::SignedDuration;
use liqo_api::conditions::StatusCondition;
use liqo_api::{ForeignCluster, PeeringIntent, TunnelEndpoint, TunnelReason};

use super::{clocks, first_few, gateways, nodes::cluster_domain, unread_finding};
use crate::{
    doctor::{Check, CheckFinding},
    inspect::ClusterFacts,
};

/// Judges two clusters; nothing, if they do not know each other.
pub fn check_cluster_pair(one: &ClusterFacts, other: &ClusterFacts) -> Vec<CheckFinding> {
    if let Some(why) = [one, other]
        .into_iter()
        .find_map(|facts| facts.liqo.config.as_ref().err())
    {
        return vec![unread_finding(Check::DifferentClusters, why)];
    }
    let (Some(one_id), Some(other_id)) = (one.liqo.id(), other.liqo.id()) else {
        return Vec::new();
    };
    if one_id == other_id {
        let what = format!("{} and {} have the same ID", one.name, other.name);
        return vec![CheckFinding::fail(
            Check::DifferentClusters,
            what,
            "either both kubeconfigs lead to the same cluster, or one cluster is a copy with the same Secrets: `liqoctl uninstall --purge` and install again there",
        )];
    }
    if matches!(
        (one.liqo.peer(other_id), other.liqo.peer(one_id)),
        (Ok(None), Ok(None))
    ) {
        return Vec::new();
    }
    let agreement = check_lending_agreement(one, other)
        .unwrap_or_else(|why| unread_finding(Check::Agreement, why));
    let mut found = vec![
        agreement,
        check_clock_difference(one, other),
        check_versions(one, other),
        check_cluster_domains(one, other),
    ];
    found.extend(
        [(one, other), (other, one)]
            .into_iter()
            .filter_map(|(of, peer)| check_announced_address(of, peer)),
    );
    match (one.liqo.tunnel(other_id), other.liqo.tunnel(one_id)) {
        (Err(why), _) | (_, Err(why)) => found.push(unread_finding(Check::TunnelDirections, why)),
        (Ok(Some(here)), Ok(Some(there))) => {
            found.extend([
                check_gateway_keys(one, here, other),
                check_gateway_keys(other, there, one),
                check_mapped_prefixes(one, here, other, there),
                check_mapped_prefixes(other, there, one, here),
            ]);
            found.push(check_tunnel_mtu(here, there));
            found.push(check_tunnel_directions(one, here, other, there));
        }
        (Ok(None), Ok(None)) => {}
        (Ok(here), Ok(_)) => {
            let (with, without) = if here.is_some() {
                (one, other)
            } else {
                (other, one)
            };
            let what = format!(
                "{} wants a network with {}, which does not want one",
                with.name, without.name
            );
            found.push(CheckFinding::warn(Check::TunnelDirections, what, format!("in {}: spec.network of the ForeignCluster, network.enabled of the policy that applies to it, and of ClusterConfig liqo", without.name)));
        }
    }
    found
}

/// Whether one lends what the other wants to borrow.
fn check_lending_agreement<'a>(
    one: &'a ClusterFacts,
    other: &'a ClusterFacts,
) -> Result<CheckFinding, &'a String> {
    let check = Check::Agreement;
    for (consumer, provider) in [(one, other), (other, one)] {
        let (Some(consumer_id), Some(provider_id)) = (consumer.liqo.id(), provider.liqo.id())
        else {
            continue;
        };
        if consumer
            .liqo
            .peer(provider_id)?
            .is_none_or(|peer| !peer.wants_outgoing())
        {
            continue;
        }
        let (borrower, lender) = (&consumer.name, &provider.name);
        match provider.liqo.peer(consumer_id)? {
            Some(peer) if peer.spec.incoming_peering == PeeringIntent::No => {
                let what =
                    format!("{borrower} wants to borrow from {lender}, which does not allow it");
                return Ok(CheckFinding::warn(
                    check,
                    what,
                    format!(
                        "in {lender}: `liqoctl approve {borrower}`; or in {borrower}: `liqoctl unpeer {lender}`"
                    ),
                ));
            }
            Some(peer) if tenant_namespace_of(peer).is_some() => {}
            _ => {
                let what =
                    format!("{borrower} wants to borrow from {lender}, which has nothing for it");
                return Ok(CheckFinding::fail(
                    check,
                    what,
                    format!(
                        "see the links of peer {lender} in {borrower}: the first that is broken says why"
                    ),
                ));
            }
        }
    }
    Ok(CheckFinding::ok(check, "what one borrows, the other lends"))
}

fn tenant_namespace_of(peer: &ForeignCluster) -> Option<&String> {
    peer.status.as_ref()?.tenant_namespace.as_ref()
}

fn check_clock_difference(one: &ClusterFacts, other: &ClusterFacts) -> CheckFinding {
    match (clock_ahead(one), clock_ahead(other)) {
        (Some(first), Some(second)) => clocks::judge_clock_difference(
            Check::Clocks,
            first - second,
            &format!("the clock of {}", one.name),
            &format!("that of {}", other.name),
            "both clusters read the times at which offers end and tokens expire: let both use NTP",
        ),
        _ => CheckFinding::unknown(Check::Clocks, "an API server does not report its time"),
    }
}

/// How far the clock of the API server is ahead of this machine's.
fn clock_ahead(facts: &ClusterFacts) -> Option<SignedDuration> {
    let api_server = &facts.api_server;
    Some(api_server.date?.duration_since(api_server.asked_at))
}

fn liqo_version(facts: &ClusterFacts) -> Option<String> {
    facts
        .liqo
        .configuration()
        .and_then(|config| config.status.as_ref()?.version.clone())
}

fn check_versions(one: &ClusterFacts, other: &ClusterFacts) -> CheckFinding {
    match (liqo_version(one), liqo_version(other)) {
        (Some(first), Some(second)) if first == second => {
            CheckFinding::ok(Check::Versions, format!("both run Liqo {first}"))
        }
        (Some(first), Some(second)) => CheckFinding::warn(
            Check::Versions,
            format!(
                "{} runs Liqo {first}, {} runs {second}",
                one.name, other.name
            ),
            "neighbouring versions work together, with the features of the older one: update the older one",
        ),
        _ => CheckFinding::unknown(Check::Versions, "a manager has not reported its version"),
    }
}

fn check_cluster_domains(one: &ClusterFacts, other: &ClusterFacts) -> CheckFinding {
    let check = Check::ClusterDomains;
    match (cluster_domain(one), cluster_domain(other)) {
        (Some(first), Some(second)) if first == second => {
            CheckFinding::ok(check, format!("both have {first}"))
        }
        (Some(first), Some(second)) => {
            let what = format!("{} has {first}, {} has {second}", one.name, other.name);
            match [(one, &first, other), (other, &second, one)]
                .map(|(consumer, domain, provider)| knows_domain(provider, consumer, domain))
            {
                [Err(why), _] | [_, Err(why)] => unread_finding(check, why),
                // The resolver of the provider translates full names.
                [Ok(true), Ok(true)]
                    if liqo_version(one).is_some() && liqo_version(one) == liqo_version(other) =>
                {
                    CheckFinding::ok(
                        check,
                        format!("{what}: a remote pod uses that of its own cluster"),
                    )
                }
                _ => CheckFinding::warn(
                    check,
                    what,
                    "full names (`service.namespace.svc.DOMAIN`) may resolve on one side only: let both clusters run the same version of Liqo; until then, use `service` or `service.namespace.svc` in pods",
                ),
            }
        }
        _ => CheckFinding::unknown(
            check,
            "the domain of a cluster is not in ConfigMap kube-system/coredns",
        ),
    }
}

/// Whether the provider knows the domain of a consumer that has namespaces there.
fn knows_domain<'a>(
    provider: &'a ClusterFacts,
    consumer: &ClusterFacts,
    domain: &str,
) -> Result<bool, &'a String> {
    let announced = provider.announced_domains.as_ref()?;
    let announced = consumer.liqo.id().and_then(|id| announced.get(id));
    Ok(announced.is_none_or(|announced| announced.as_deref() == Some(domain)))
}

/// Whether `of` uses the address that `peer` announces.
fn check_announced_address(of: &ClusterFacts, peer: &ClusterFacts) -> Option<CheckFinding> {
    let check = Check::PeerAddresses;
    let record = match of.liqo.peer(peer.liqo.id()?) {
        // Nobody calls these addresses if the peer is reached through its tunnel.
        Ok(record) => {
            record.filter(|record| record.wants_outgoing() && record.spec.tunnel.is_empty())?
        }
        Err(why) => return Some(unread_finding(check, why)),
    };
    let given = peer.liqo.configuration()?.status.clone()?;
    let used = record
        .status
        .as_ref()
        .and_then(|status| status.api_server_url.as_ref());
    let auth = different_address(record.spec.auth_url.as_ref(), given.auth_url.as_ref());
    let api = different_address(used, given.api_server_url.as_ref());
    let all: Vec<String> = auth.into_iter().chain(api).collect();
    Some(if all.is_empty() {
        CheckFinding::ok(
            check,
            format!(
                "{} uses the addresses that {} announces",
                of.name, peer.name
            ),
        )
    } else {
        CheckFinding::warn(
            check,
            format!("{} calls {} at {}", of.name, peer.name, all.join(", ")),
            "no problem while it answers; otherwise run `liqoctl peer` again, which uses the new address",
        )
    })
}

/// `https://a instead of https://b`, if the addresses differ.
fn different_address(used: Option<&String>, given: Option<&String>) -> Option<String> {
    let (used, given) = (used?, given?);
    (used.trim_end_matches('/') != given.trim_end_matches('/'))
        .then(|| format!("{used} instead of {given}"))
}

/// Whether `of` knows the keys of the gateways of `peer`.
fn check_gateway_keys(
    of: &ClusterFacts,
    tunnel: &TunnelEndpoint,
    peer: &ClusterFacts,
) -> CheckFinding {
    let check = Check::TunnelKeys;
    if let Err(why) = &peer.leases {
        return unread_finding(check, why);
    }
    let mut alive = peer.gateways();
    alive.retain(|gateway| gateway.is_alive);
    let unknown: Vec<&str> = alive
        .iter()
        .filter(|gateway| {
            let key = gateway.key.as_deref();
            key.is_some_and(|key| !knows_gateway_key(tunnel, key))
        })
        .map(|gateway| gateway.node.as_str())
        .collect();
    if unknown.is_empty() {
        return CheckFinding::ok(
            check,
            format!(
                "{} knows the keys of the gateways of {}",
                of.name, peer.name
            ),
        );
    }
    let advice = "managers tell each other within seconds: see the links of the peer on both sides (peer-reachable, network-agreed)";
    CheckFinding::fail(
        check,
        format!(
            "{} does not know the key of the gateway of {} on {}",
            of.name,
            peer.name,
            first_few(&unknown)
        ),
        advice,
    )
}

fn knows_gateway_key(tunnel: &TunnelEndpoint, key: &str) -> bool {
    tunnel
        .spec
        .gateways
        .iter()
        .any(|gateway| gateway.public_key == key)
}

/// Whether `of` maps the peer's prefixes to what the peer assumes.
fn check_mapped_prefixes(
    of: &ClusterFacts,
    tunnel: &TunnelEndpoint,
    peer: &ClusterFacts,
    counterpart: &TunnelEndpoint,
) -> CheckFinding {
    let check = Check::TunnelPrefixes;
    if tunnel.spec.imported == counterpart.spec.exported {
        return CheckFinding::ok(
            check,
            format!("both know where {} sees {}", of.name, peer.name),
        );
    }
    let what = format!(
        "{} sees of {}: {}; {} believes: {}",
        of.name,
        peer.name,
        prefixes_in_words(&tunnel.spec.imported),
        peer.name,
        prefixes_in_words(&counterpart.spec.exported)
    );
    CheckFinding::fail(
        check,
        what,
        "packets get lost until both agree, which takes seconds: see the links of the peer on both sides (peer-reachable, network-agreed)",
    )
}

/// `10.1.0.0/16 as 10.61.0.0/16`.
fn prefixes_in_words(map: &BTreeMap<IpNet, IpNet>) -> String {
    let all: Vec<String> = map
        .iter()
        .map(|(there, here)| format!("{there} as {here}"))
        .collect();
    if all.is_empty() {
        "nothing".to_owned()
    } else {
        first_few(&all)
    }
}

fn check_tunnel_mtu(here: &TunnelEndpoint, there: &TunnelEndpoint) -> CheckFinding {
    let (one, other) = (here.spec.mtu, there.spec.mtu);
    if one == other {
        return CheckFinding::ok(Check::TunnelMtu, format!("{one} bytes, on both sides"));
    }
    let advice =
        "both sides should use the smaller network.mtu: see the links of the peer (network-agreed)";
    CheckFinding::warn(
        Check::TunnelMtu,
        format!("{one} bytes on one side, {other} on the other"),
        advice,
    )
}

fn is_over_tls(tunnel: &TunnelEndpoint) -> bool {
    tunnel
        .connected_condition()
        .is_some_and(|condition| condition.reason == TunnelReason::ConnectedOverTls.as_str())
}

fn check_tunnel_directions(
    one: &ClusterFacts,
    here: &TunnelEndpoint,
    other: &ClusterFacts,
    there: &TunnelEndpoint,
) -> CheckFinding {
    let check = Check::TunnelDirections;
    match (hears_peer(one, here), hears_peer(other, there)) {
        (true, true) if is_over_tls(here) || is_over_tls(there) => CheckFinding::warn(
            check,
            "the two hear each other only over TLS: UDP does not pass",
            "TLS carries packets more slowly: let UDP pass between the gateways, at least in one direction with its answers",
        ),
        (true, true) => CheckFinding::ok(check, "each side hears the other"),
        (false, true) => one_way_finding(one, other, here),
        (true, false) => one_way_finding(other, one, there),
        (false, false) => CheckFinding::fail(
            check,
            format!(
                "neither side hears the other: {}; {}",
                called_addresses(one, here),
                called_addresses(other, there)
            ),
            "let UDP pass to one of these addresses, at least in one direction with its answers; first see gateways-alive on both sides",
        ),
    }
}

fn hears_peer(facts: &ClusterFacts, tunnel: &TunnelEndpoint) -> bool {
    gateways::any_alive(facts)
        && tunnel
            .connected_condition()
            .is_some_and(StatusCondition::is_true)
}

/// The peer `from` hears this cluster, and is not heard.
fn one_way_finding(
    facts: &ClusterFacts,
    from: &ClusterFacts,
    tunnel: &TunnelEndpoint,
) -> CheckFinding {
    let ours: Vec<String> = facts
        .real_nodes()
        .map(|nodes| gateways::announced_addresses(facts, &nodes))
        .unwrap_or_default();
    let said = tunnel
        .connected_condition()
        .map(|condition| condition.message.as_str())
        .unwrap_or_default();
    CheckFinding::fail(
        Check::TunnelDirections,
        format!(
            "{} hears {}, but not the other way round: packets from {} do not arrive ({said})",
            from.name, facts.name, from.name
        ),
        format!(
            "let UDP pass from the gateways of {} to {}: check firewalls, security groups, the forwarded port",
            from.name,
            first_few(&ours)
        ),
    )
}

/// `rome calls 203.0.113.5:5871`.
fn called_addresses(facts: &ClusterFacts, tunnel: &TunnelEndpoint) -> String {
    let endpoints: Vec<&str> = tunnel
        .spec
        .gateways
        .iter()
        .flat_map(|gateway| gateway.endpoints.iter().map(String::as_str))
        .collect();
    format!(
        "{} calls {}",
        facts.name,
        if endpoints.is_empty() {
            "nobody".to_owned()
        } else {
            first_few(&endpoints)
        }
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        finding::CheckVerdict,
        inspect::fixtures::{facts, other, rome},
    };

    fn verdict(one: &ClusterFacts, other: &ClusterFacts, check: Check) -> CheckFinding {
        let found = check_cluster_pair(one, other);
        let of_it = found.iter().filter(|finding| finding.check == check);
        // The worst of both directions.
        of_it
            .max_by_key(|finding| finding.verdict != CheckVerdict::Ok)
            .unwrap()
            .clone()
    }

    #[test]
    fn two_clusters_that_fit_have_no_fault() {
        let found = check_cluster_pair(&facts(), &other());
        assert!(
            found.iter().all(|one| one.verdict == CheckVerdict::Ok),
            "{found:#?}"
        );
        assert_eq!(found.len(), 11);
    }

    #[test]
    fn strangers_are_not_compared_and_copies_are_refused() {
        let (mut one, mut two) = (facts(), other());
        one.liqo.peers = Ok(Vec::new());
        two.liqo.peers = Ok(Vec::new());
        assert_eq!(check_cluster_pair(&one, &two), []);
        assert_eq!(
            verdict(&one, &facts(), Check::DifferentClusters).verdict,
            CheckVerdict::Fail
        );
    }

    #[test]
    fn borrowing_that_the_lender_does_not_allow_is_shown() {
        let (one, mut two) = (facts(), other());
        two.liqo.peers.as_mut().unwrap()[0].spec.incoming_peering = PeeringIntent::No;
        assert_eq!(
            verdict(&one, &two, Check::Agreement).verdict,
            CheckVerdict::Warn
        );
        two.liqo.peers = Ok(Vec::new());
        assert_eq!(
            verdict(&one, &two, Check::Agreement).verdict,
            CheckVerdict::Fail
        );
    }

    #[test]
    fn what_may_not_be_read_of_one_of_them_is_no_fault() {
        let refused = || "cannot list: forbidden".to_owned();
        let (mut one, mut two) = (facts(), other());
        two.liqo.peers = Err(refused());
        two.liqo.tunnels = Err(refused());
        for check in [Check::Agreement, Check::TunnelDirections] {
            assert_eq!(
                verdict(&one, &two, check),
                CheckFinding::unknown(check, refused())
            );
        }
        one.liqo.peers = Err(refused());
        for check in [Check::Agreement, Check::PeerAddresses] {
            assert_eq!(
                verdict(&one, &two, check),
                CheckFinding::unknown(check, refused())
            );
        }
        assert!(
            check_cluster_pair(&one, &two).iter().all(|one| [
                CheckVerdict::Ok,
                CheckVerdict::Unknown
            ]
            .contains(&one.verdict))
        );
        one.liqo.config = Err(refused());
        assert_eq!(
            check_cluster_pair(&one, &two),
            [CheckFinding::unknown(Check::DifferentClusters, refused())]
        );
    }

    #[test]
    fn clocks_of_two_clusters_are_compared_whatever_ours_says() {
        let (mut one, mut two) = (facts(), other());
        for facts in [&mut one, &mut two] {
            facts.api_server.asked_at += SignedDuration::from_hours(1);
        }
        assert_eq!(verdict(&one, &two, Check::Clocks).verdict, CheckVerdict::Ok);
        two.api_server.date = two
            .api_server
            .date
            .map(|date| date + SignedDuration::from_secs(20));
        let found = verdict(&one, &two, Check::Clocks);
        assert!(
            found.verdict == CheckVerdict::Warn && found.what.contains("20 s behind"),
            "{}",
            found.what
        );
    }

    #[test]
    fn versions_and_domains_that_differ_are_shown() {
        let (one, mut two) = (facts(), other());
        two.liqo
            .config
            .as_mut()
            .unwrap()
            .as_mut()
            .unwrap()
            .status
            .as_mut()
            .unwrap()
            .version = Some("9.9.9".to_owned());
        two.components.corefile = Ok(Some("kubernetes cluster.milan {".to_owned()));
        assert_eq!(
            verdict(&one, &two, Check::Versions).verdict,
            CheckVerdict::Warn
        );
        let found = verdict(&one, &two, Check::ClusterDomains);
        assert!(
            found.verdict == CheckVerdict::Warn && found.what.contains("cluster.milan"),
            "{}",
            found.what
        );
    }

    #[test]
    fn domains_may_differ_where_the_provider_knows_the_one_of_the_consumer() {
        let (one, mut two) = (facts(), other());
        two.components.corefile = Ok(Some("kubernetes cluster.milan {".to_owned()));
        let found = |two: &ClusterFacts| verdict(&one, two, Check::ClusterDomains).verdict;
        assert_eq!(found(&two), CheckVerdict::Ok, "rome has no namespace there");
        let announced = |domain: Option<&str>| Ok([(rome(), domain.map(str::to_owned))].into());
        two.announced_domains = announced(Some("cluster.local"));
        assert_eq!(found(&two), CheckVerdict::Ok);
        for domain in [None, Some("corp.local")] {
            two.announced_domains = announced(domain);
            assert_eq!(found(&two), CheckVerdict::Warn, "{domain:?}");
        }
        two.announced_domains = Err("cannot read: forbidden".to_owned());
        assert_eq!(found(&two), CheckVerdict::Unknown);
        two.announced_domains = announced(Some("cluster.local"));
        two.liqo
            .config
            .as_mut()
            .unwrap()
            .as_mut()
            .unwrap()
            .status
            .as_mut()
            .unwrap()
            .version = Some("9.9.9".to_owned());
        assert_eq!(found(&two), CheckVerdict::Warn);
    }

    #[test]
    fn an_old_address_is_shown() {
        let (mut one, two) = (facts(), other());
        one.liqo.peers.as_mut().unwrap()[0].spec.auth_url =
            Some("https://172.18.0.77:30001".to_owned());
        let found = verdict(&one, &two, Check::PeerAddresses);
        assert!(
            found.verdict == CheckVerdict::Warn && found.what.contains("172.18.0.77"),
            "{}",
            found.what
        );
    }

    #[test]
    fn a_key_or_a_prefix_that_the_other_does_not_know_is_shown() {
        let (mut one, two) = (facts(), other());
        one.liqo.tunnels.as_mut().unwrap()[0].spec.gateways[0].public_key = "old".to_owned();
        assert_eq!(
            verdict(&one, &two, Check::TunnelKeys).verdict,
            CheckVerdict::Fail
        );
        one.liqo.tunnels.as_mut().unwrap()[0].spec.imported.clear();
        let found = verdict(&one, &two, Check::TunnelPrefixes);
        assert!(
            found.verdict == CheckVerdict::Fail
                && found.what.contains("rome sees of milan: nothing"),
            "{}",
            found.what
        );
        one.liqo.tunnels.as_mut().unwrap()[0].spec.mtu = 1280;
        assert_eq!(
            verdict(&one, &two, Check::TunnelMtu).verdict,
            CheckVerdict::Warn
        );
    }

    #[test]
    fn a_way_that_is_open_in_one_direction_is_told_from_one_that_is_closed() {
        let (mut one, mut two) = (facts(), other());
        let mut relayed = other();
        relayed.liqo.tunnels.as_mut().unwrap()[0]
            .status
            .as_mut()
            .unwrap()
            .conditions[0]
            .reason = TunnelReason::ConnectedOverTls.into();
        assert_eq!(
            verdict(&one, &relayed, Check::TunnelDirections).verdict,
            CheckVerdict::Warn
        );
        let close = |facts: &mut ClusterFacts| {
            facts.liqo.tunnels.as_mut().unwrap()[0].status = serde_json::from_value(json!({
                "conditions": [{ "type": "Connected", "status": "False", "reason": "NoAnswer", "message": "m", "lastTransitionTime": crate::inspect::fixtures::NOW }],
            }))
            .unwrap();
        };
        close(&mut two);
        let found = verdict(&one, &two, Check::TunnelDirections);
        assert_eq!(found.verdict, CheckVerdict::Fail);
        assert!(
            found.what.contains("packets from rome do not arrive"),
            "{}",
            found.what
        );
        assert!(found.advice.unwrap().contains("to 172.18.0.9:51840:"));
        close(&mut one);
        assert!(
            verdict(&one, &two, Check::TunnelDirections)
                .what
                .starts_with("neither side hears the other: rome calls 172.18.0.9:51840")
        );
    }

    #[test]
    fn a_network_that_one_side_does_not_want_is_no_fault() {
        let (one, mut two) = (facts(), other());
        two.liqo.tunnels = Ok(Vec::new());
        let found = verdict(&one, &two, Check::TunnelDirections);
        assert!(
            found.verdict == CheckVerdict::Warn
                && found.what.starts_with("rome wants a network with milan"),
            "{}",
            found.what
        );
        assert_eq!(one.liqo.id(), Some(&rome()));
    }
}

//! The conditions of a `ForeignCluster` about the network towards the peer.

use ipnet::IpNet;
use liqo_api::conditions::DesiredCondition;
use liqo_api::{Condition, NetworkAgreedReason, TunnelEndpoint, TunnelReason, links};

use super::exchange::{PeerOutcome, PeerProgress};

/// The conditions of a peer that we want a network with.
pub fn wanted_conditions(
    outcome: &PeerOutcome,
    has_gateway: bool,
    endpoint: Option<&TunnelEndpoint>,
) -> Vec<DesiredCondition> {
    vec![
        agreed_condition(outcome),
        connected_condition(
            outcome,
            has_gateway,
            endpoint.and_then(TunnelEndpoint::connected_condition),
        ),
    ]
}

/// The conditions while our own ranges are not known.
pub fn without_ranges(why: &str) -> Vec<DesiredCondition> {
    vec![DesiredCondition::no(
        links::NETWORK_AGREED,
        NetworkAgreedReason::RangesUnknown,
        why,
    )]
}

fn agreed_condition(outcome: &PeerOutcome) -> DesiredCondition {
    let kind = links::NETWORK_AGREED;
    match &outcome.progress {
        PeerProgress::Silent => DesiredCondition::unknown(
            kind,
            NetworkAgreedReason::NotAnnounced,
            "the peer has not announced its network yet",
        ),
        PeerProgress::Refused(why) => DesiredCondition::no(
            kind,
            NetworkAgreedReason::Refused,
            format!("the peer's announcement of its network is not valid: {why}"),
        ),
        PeerProgress::Partial { unallocated, .. } if !unallocated.is_empty() => {
            DesiredCondition::no(
                kind,
                NetworkAgreedReason::NoRoom,
                format!(
                    "there is no free prefix for {} of the peer: add prefixes to spec.network.peerCIDRs of ClusterConfig liqo",
                    prefix_list(unallocated)
                ),
            )
        }
        PeerProgress::Partial { unseen, .. } => DesiredCondition::no(
            kind,
            NetworkAgreedReason::NotSeen,
            format!(
                "the peer has not announced yet where it sees {}",
                prefix_list(unseen)
            ),
        ),
        PeerProgress::Agreed => {
            let pairs = outcome
                .endpoint
                .iter()
                .flat_map(|endpoint| &endpoint.imported);
            let seen: Vec<String> = pairs
                .map(|(there, here)| format!("{there} as {here}"))
                .collect();
            let waiting = outcome
                .endpoint
                .iter()
                .flat_map(|endpoint| &endpoint.waiting)
                .next();
            let waiting = waiting.map(|(there, later)| {
                format!("; when no pod of either cluster runs at the other, we see {there} as {later}, and all others that wait")
            });
            let message = format!(
                "we see the peer's {}{}",
                seen.join(", "),
                waiting.unwrap_or_default()
            );
            DesiredCondition::yes(kind, NetworkAgreedReason::Agreed, message)
        }
    }
}

fn connected_condition(
    outcome: &PeerOutcome,
    has_gateway: bool,
    reported: Option<&Condition>,
) -> DesiredCondition {
    let kind = links::TUNNEL_CONNECTED;
    let has_peer = outcome
        .endpoint
        .as_ref()
        .is_some_and(|endpoint| !endpoint.gateways.is_empty());
    match reported {
        _ if !has_gateway => DesiredCondition::no(
            kind,
            TunnelReason::NoGateway,
            "no node of this cluster is a gateway: see the DaemonSet liqo-fabric and spec.network.gateways of ClusterConfig liqo",
        ),
        _ if !has_peer => DesiredCondition::no(
            kind,
            TunnelReason::NoGatewayAtPeer,
            "the peer has announced no gateway",
        ),
        None => DesiredCondition::unknown(
            kind,
            TunnelReason::Connecting,
            "no gateway has reported on this peer yet",
        ),
        Some(reported) => {
            let status = match reported.status.as_str() {
                "True" => Some(true),
                "False" => Some(false),
                _ => None,
            };
            DesiredCondition {
                kind,
                status,
                reason: reported.reason.clone(),
                message: reported.message.clone(),
            }
        }
    }
}

fn prefix_list(prefixes: &[IpNet]) -> String {
    prefixes
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use liqo_api::{
        ClusterId, GatewayAddress, NetworkAnnouncement, Reach, TunnelEndpointSpec,
        TunnelEndpointStatus,
    };
    use serde_json::json;

    use super::*;

    fn outcome(progress: PeerProgress, gateways: usize) -> PeerOutcome {
        let spec = TunnelEndpointSpec {
            cluster_id: ClusterId::of_public_key(&[1; 32]),
            cluster_name: "milan".into(),
            exported: [].into(),
            imported: [(
                "10.244.0.0/16".parse().unwrap(),
                "10.64.0.0/16".parse().unwrap(),
            )]
            .into(),
            behind: [].into(),
            customers: [].into(),
            transit: false,
            gateways: vec![GatewayAddress::default(); gateways],
            mtu: 1420,
            path_mtus: [].into(),
            could_keep: [].into(),
            waiting: [].into(),
            reach: Reach::Offloaded,
            api_server: false,
            accepts_direct: false,
            direct: [].into(),
        };
        PeerOutcome {
            announcement: NetworkAnnouncement::default(),
            endpoint: Some(spec),
            progress,
        }
    }

    fn reasons(wanted: &[DesiredCondition]) -> Vec<(&str, Option<bool>)> {
        wanted
            .iter()
            .map(|wanted| (wanted.reason.as_str(), wanted.status))
            .collect()
    }

    #[test]
    fn each_step_says_what_it_waits_for() {
        let silent = outcome(PeerProgress::Silent, 0);
        assert_eq!(
            reasons(&wanted_conditions(&silent, false, None)),
            [("NotAnnounced", None), ("NoGateway", Some(false))]
        );
        let partial = PeerProgress::Partial {
            unseen: vec!["10.70.0.0/24".parse().unwrap()],
            unallocated: Vec::new(),
        };
        let found = wanted_conditions(&outcome(partial, 0), true, None);
        assert_eq!(
            reasons(&found),
            [("NotSeen", Some(false)), ("NoGatewayAtPeer", Some(false))]
        );
        assert!(found[0].message.contains("10.70.0.0/24"));
        let full = PeerProgress::Partial {
            unseen: Vec::new(),
            unallocated: vec!["10.1.0.0/16".parse().unwrap()],
        };
        assert!(
            wanted_conditions(&outcome(full, 1), true, None)[0]
                .message
                .contains("10.1.0.0/16")
        );
        let agreed = wanted_conditions(&outcome(PeerProgress::Agreed, 1), true, None);
        assert_eq!(
            reasons(&agreed),
            [("Agreed", Some(true)), ("Connecting", None)]
        );
        assert!(agreed[0].message.contains("10.244.0.0/16 as 10.64.0.0/16"));
        let mut outcome = outcome(PeerProgress::Agreed, 1);
        let own: IpNet = "10.244.0.0/16".parse().unwrap();
        outcome.endpoint.as_mut().unwrap().waiting.insert(own, own);
        let waiting = wanted_conditions(&outcome, true, None);
        assert!(
            waiting[0]
                .message
                .contains("we see 10.244.0.0/16 as 10.244.0.0/16, and"),
            "{}",
            waiting[0].message
        );
    }

    #[test]
    fn what_the_gateway_says_is_passed_on() {
        let outcome = outcome(PeerProgress::Agreed, 1);
        let mut endpoint = TunnelEndpoint::new("x", outcome.endpoint.clone().unwrap());
        let condition = json!({ "type": "Connected", "status": "False", "reason": "NoAnswer", "message": "for 9 s", "lastTransitionTime": "2026-01-01T00:00:00Z" });
        endpoint.status = Some(TunnelEndpointStatus {
            conditions: vec![serde_json::from_value(condition).unwrap()],
            ..Default::default()
        });
        assert_eq!(
            reasons(&wanted_conditions(&outcome, true, Some(&endpoint)))[1],
            ("NoAnswer", Some(false))
        );
        assert_eq!(
            reasons(&wanted_conditions(&outcome, false, Some(&endpoint)))[1],
            ("NoGateway", Some(false))
        );
    }
}

//! What is said of a peer's network in the conditions of its `ForeignCluster`.

use ipnet::IpNet;
use liqo_api::{Condition, TunnelEndpoint, links};
use liqo_kit::conditions::Wanted;

use super::exchange::{Outcome, Progress};

/// The links of a peer that there is to be a network with.
pub fn wanted(outcome: &Outcome, has_gateway: bool, endpoint: Option<&TunnelEndpoint>) -> Vec<Wanted> {
    vec![agreed(outcome), connected(outcome, has_gateway, endpoint.and_then(TunnelEndpoint::connected))]
}

/// The links while our own ranges are not known.
pub fn without_ranges(why: &str) -> Vec<Wanted> {
    vec![Wanted::no(links::NETWORK_AGREED, "RangesUnknown", why)]
}

fn agreed(outcome: &Outcome) -> Wanted {
    let kind = links::NETWORK_AGREED;
    match &outcome.progress {
        Progress::Silent => Wanted::unknown(kind, "NotAnnounced", "the peer has not said anything of its network yet"),
        Progress::Refused(why) => Wanted::no(kind, "Refused", format!("what the peer says of its network cannot be: {why}")),
        Progress::Partial { unplaced, .. } if !unplaced.is_empty() => Wanted::no(
            kind,
            "NoRoom",
            format!(
                "there is no room for {} of the peer: add prefixes to spec.network.peerCIDRs of ClusterConfig liqo",
                list(unplaced)
            ),
        ),
        Progress::Partial { unseen, .. } => {
            Wanted::no(kind, "NotSeen", format!("the peer has not said yet where it sees {}", list(unseen)))
        }
        Progress::Agreed => {
            let pairs = outcome.endpoint.iter().flat_map(|endpoint| &endpoint.imported);
            let seen: Vec<String> = pairs.map(|(there, here)| format!("{there} as {here}")).collect();
            Wanted::yes(kind, "Agreed", format!("we see the peer's {}", seen.join(", ")))
        }
    }
}

fn connected(outcome: &Outcome, has_gateway: bool, standing: Option<&Condition>) -> Wanted {
    let kind = links::TUNNEL_CONNECTED;
    let has_peer = outcome.endpoint.as_ref().is_some_and(|endpoint| !endpoint.gateways.is_empty());
    match standing {
        _ if !has_gateway => Wanted::no(
            kind,
            "NoGateway",
            "no node of this cluster is a gateway: see the DaemonSet liqo-fabric and spec.network.gateways of ClusterConfig liqo",
        ),
        _ if !has_peer => Wanted::no(kind, "NoGatewayAtPeer", "the peer has not told us of a gateway"),
        None => Wanted::unknown(kind, "Connecting", "the gateway has not said anything of this peer yet"),
        Some(standing) => {
            let status = match standing.status.as_str() {
                "True" => Some(true),
                "False" => Some(false),
                _ => None,
            };
            Wanted { kind, status, reason: standing.reason.clone(), message: standing.message.clone() }
        }
    }
}

fn list(prefixes: &[IpNet]) -> String {
    prefixes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use liqo_api::{ClusterId, GatewayAddress, NetworkAnnouncement, Reach, TunnelEndpointSpec, TunnelEndpointStatus};
    use serde_json::json;

    use super::*;

    fn outcome(progress: Progress, gateways: usize) -> Outcome {
        let spec = TunnelEndpointSpec {
            cluster_id: ClusterId::of_public_key(&[1; 32]),
            cluster_name: "milan".into(),
            exported: [].into(),
            imported: [("10.244.0.0/16".parse().unwrap(), "10.64.0.0/16".parse().unwrap())].into(),
            gateways: vec![GatewayAddress::default(); gateways],
            mtu: 1420,
            reach: Reach::Offloaded,
            api_server: false,
        };
        Outcome { announcement: NetworkAnnouncement::default(), endpoint: Some(spec), progress }
    }

    fn told(wanted: &[Wanted]) -> Vec<(&str, Option<bool>)> {
        wanted.iter().map(|wanted| (wanted.reason.as_str(), wanted.status)).collect()
    }

    #[test]
    fn each_step_says_what_it_waits_for() {
        let silent = outcome(Progress::Silent, 0);
        assert_eq!(told(&wanted(&silent, false, None)), [("NotAnnounced", None), ("NoGateway", Some(false))]);
        let partial = Progress::Partial { unseen: vec!["10.70.0.0/24".parse().unwrap()], unplaced: Vec::new() };
        let found = wanted(&outcome(partial, 0), true, None);
        assert_eq!(told(&found), [("NotSeen", Some(false)), ("NoGatewayAtPeer", Some(false))]);
        assert!(found[0].message.contains("10.70.0.0/24"));
        let full = Progress::Partial { unseen: Vec::new(), unplaced: vec!["10.1.0.0/16".parse().unwrap()] };
        assert!(wanted(&outcome(full, 1), true, None)[0].message.contains("10.1.0.0/16"));
        let agreed = wanted(&outcome(Progress::Agreed, 1), true, None);
        assert_eq!(told(&agreed), [("Agreed", Some(true)), ("Connecting", None)]);
        assert!(agreed[0].message.contains("10.244.0.0/16 as 10.64.0.0/16"));
    }

    #[test]
    fn what_the_gateway_says_is_passed_on() {
        let outcome = outcome(Progress::Agreed, 1);
        let mut endpoint = TunnelEndpoint::new("x", outcome.endpoint.clone().unwrap());
        let condition = json!({ "type": "Connected", "status": "False", "reason": "NoAnswer", "message": "for 9 s", "lastTransitionTime": "2026-01-01T00:00:00Z" });
        endpoint.status =
            Some(TunnelEndpointStatus { conditions: vec![serde_json::from_value(condition).unwrap()], ..Default::default() });
        assert_eq!(told(&wanted(&outcome, true, Some(&endpoint)))[1], ("NoAnswer", Some(false)));
        assert_eq!(told(&wanted(&outcome, false, Some(&endpoint)))[1], ("NoGateway", Some(false)));
    }
}

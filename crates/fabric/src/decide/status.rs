//! What is said of the tunnel to a peer.

use std::{net::SocketAddr, time::Duration};

use jiff::Timestamp;
use liqo_api::{CONNECTED, TunnelEndpointSpec, TunnelEndpointStatus};
use liqo_datapath::tunnel::RemoteState;
use liqo_kit::conditions::{self, Wanted};

use super::KEEPALIVE;

/// A peer that was not heard for so long does not answer.
const SILENCE: Duration = Duration::from_secs(KEEPALIVE.as_secs() * 3);

/// What is known of a peer.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Its gateways, as the tunnel knows them.
    pub remotes: Vec<RemoteState>,
    /// Why nothing is held for it, if so.
    pub left_out: Option<String>,
}

impl Seen {
    /// The gateway that was heard last.
    fn heard(&self) -> Option<&RemoteState> {
        let recent = |remote: &&RemoteState| remote.last_received.is_some_and(|ago| ago < SILENCE);
        self.remotes.iter().filter(recent).min_by_key(|remote| remote.last_received)
    }

    /// Whether it answers.
    pub fn is_connected(&self) -> bool {
        self.left_out.is_none() && self.heard().is_some()
    }
}

/// The status of the network towards a peer, seen from `node`; nothing when it is as it was.
pub fn status(
    node: &str,
    spec: &TunnelEndpointSpec,
    current: &TunnelEndpointStatus,
    seen: &Seen,
    now: Timestamp,
) -> Option<TunnelEndpointStatus> {
    let wanted = condition(spec, seen);
    let changed = conditions::decide(&current.conditions, std::slice::from_ref(&wanted), now);
    let connected = seen.is_connected();
    let status = TunnelEndpointStatus {
        gateway: Some(node.to_owned()),
        endpoint: seen.heard().filter(|_| connected).and_then(|remote| remote.endpoint).map(|address| address.to_string()),
        conditions: changed.unwrap_or_else(|| current.conditions.clone()),
    };
    (status != *current).then_some(status)
}

fn condition(spec: &TunnelEndpointSpec, seen: &Seen) -> Wanted {
    let name = if spec.cluster_name.is_empty() { spec.cluster_id.as_str() } else { spec.cluster_name.as_str() };
    if let Some(reason) = &seen.left_out {
        return Wanted::no(CONNECTED, "NotPossible", format!("nothing is held for {name}: {reason}"));
    }
    if seen.remotes.is_empty() {
        return Wanted::no(CONNECTED, "NoGateway", format!("{name} has no gateway that is known here"));
    }
    if seen.heard().is_some() {
        return Wanted::yes(CONNECTED, "Connected", "");
    }
    let called: Vec<SocketAddr> = seen.remotes.iter().filter_map(|remote| remote.endpoint).collect();
    match called.first() {
        Some(address) => Wanted::no(
            CONNECTED,
            "NoAnswer",
            format!("the gateway of {name} does not answer at {address} (UDP); is that port reachable from this gateway?"),
        ),
        None => Wanted::no(
            CONNECTED,
            "NoEndpoint",
            format!("it is not known where the gateway of {name} is, and it was not heard; it has to begin"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use liqo_datapath::tunnel::{Dropped, PrivateKey};

    use super::*;

    fn spec() -> TunnelEndpointSpec {
        let value = serde_json::json!({ "clusterID": "a".repeat(32), "clusterName": "milan", "mtu": 1420 });
        serde_json::from_value(value).unwrap()
    }

    fn seen(heard: Option<u64>, endpoint: Option<&str>) -> Seen {
        let remote = RemoteState {
            public_key: PrivateKey::generate().public(),
            endpoint: endpoint.map(|text| text.parse().unwrap()),
            last_handshake: None,
            last_received: heard.map(Duration::from_secs),
            sent_bytes: 0,
            received_bytes: 0,
            dropped: Dropped::default(),
        };
        Seen { remotes: vec![remote], ..Seen::default() }
    }

    fn of(seen: &Seen) -> (String, TunnelEndpointStatus) {
        let status = status("n1", &spec(), &TunnelEndpointStatus::default(), seen, Timestamp::UNIX_EPOCH).unwrap();
        (status.conditions[0].reason.clone(), status)
    }

    #[test]
    fn what_keeps_the_peer_from_answering_is_named() {
        assert_eq!(of(&Seen::default()).0, "NoGateway");
        assert_eq!(of(&seen(None, None)).0, "NoEndpoint");
        assert_eq!(of(&seen(Some(15), Some("192.0.2.1:51840"))).0, "NoAnswer");
        assert_eq!(of(&Seen { left_out: Some("x".into()), ..seen(Some(0), None) }).0, "NotPossible");
        let (reason, status) = of(&seen(Some(14), Some("192.0.2.1:51840")));
        assert_eq!((reason.as_str(), status.endpoint.as_deref()), ("Connected", Some("192.0.2.1:51840")));
        assert_eq!(status.gateway.as_deref(), Some("n1"));
    }

    #[test]
    fn nothing_is_written_when_nothing_changed() {
        let seen = |ago| seen(Some(ago), Some("192.0.2.1:51840"));
        let first = of(&seen(1)).1;
        assert_eq!(status("n1", &spec(), &first, &seen(4), Timestamp::now()), None);
        assert!(status("n2", &spec(), &first, &seen(4), Timestamp::now()).is_some());
    }
}

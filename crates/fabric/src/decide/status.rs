//! What is said of the tunnel to a peer.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use jiff::Timestamp;
use liqo_api::{CONNECTED, Transport, TunnelEndpointSpec, TunnelEndpointStatus};
use liqo_datapath::tunnel::{PublicKey, RemoteState};
use liqo_kit::conditions::{self, Wanted};

use super::KEEPALIVE;

/// A peer that was not heard for so long does not answer.
const SILENCE: Duration = Duration::from_secs(KEEPALIVE.as_secs() * 3);

/// What is known of a peer.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Its gateways, as the tunnel knows them.
    pub remotes: Vec<RemoteState>,
    /// Where those are that a relay leads to.
    pub relayed: BTreeMap<PublicKey, SocketAddr>,
    /// Why nothing is held for it, if so.
    pub left_out: Option<String>,
}

impl Seen {
    /// The gateway that was heard last.
    fn heard(&self) -> Option<&RemoteState> {
        let recent = |remote: &&RemoteState| remote.last_received.is_some_and(|ago| ago < SILENCE);
        self.remotes.iter().filter(recent).min_by_key(|remote| remote.last_received)
    }

    /// Whether it answers over TLS, because datagrams do not arrive.
    pub fn is_relayed(&self) -> bool {
        self.is_connected() && self.heard().is_some_and(RemoteState::is_relayed)
    }

    /// Where it was heard from last.
    fn endpoint(&self) -> Option<SocketAddr> {
        let heard = self.heard().filter(|_| self.is_connected())?;
        // Of a relay's own address nobody outside of this node has anything.
        if heard.is_relayed() { self.relayed.get(&heard.public_key).copied() } else { heard.endpoint }
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
    let status = TunnelEndpointStatus {
        gateway: Some(node.to_owned()),
        endpoint: seen.endpoint().map(|address| address.to_string()),
        transport: seen.is_connected().then(|| if seen.is_relayed() { Transport::Tls } else { Transport::Udp }),
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
    if let Some(heard) = seen.heard() {
        if !heard.is_relayed() {
            return Wanted::yes(CONNECTED, "Connected", "");
        }
        let of_key = spec.gateways.iter().find(|gateway| gateway.public_key == heard.public_key.to_string());
        let place = of_key.and_then(|gateway| gateway.endpoints.first()).map_or("its gateway", String::as_str);
        let message = format!(
            "UDP does not pass between this gateway and that of {name}, so TLS carries packets, more slowly; let UDP to {place} pass, or the other way round"
        );
        return Wanted::yes(CONNECTED, "ConnectedOverTLS", message);
    }
    let called: Vec<SocketAddr> = seen.remotes.iter().filter_map(|remote| remote.endpoint).collect();
    match called.first() {
        Some(address) => Wanted::no(
            CONNECTED,
            "NoAnswer",
            match spec.gateways.iter().flat_map(|gateway| &gateway.tls).next() {
                None => {
                    format!("the gateway of {name} does not answer at {address} (UDP); is that port reachable from this gateway?")
                }
                Some(tls) => format!(
                    "the gateway of {name} answers neither at {address} (UDP) nor at {tls} (TLS); is one of them reachable from this gateway?"
                ),
            },
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
    fn packets_that_tls_carries_are_told_of_with_what_to_do() {
        let mut seen = seen(Some(1), Some("127.0.0.1:4000"));
        let remote = seen.remotes[0].public_key;
        seen.relayed = [(remote, "192.0.2.1:443".parse().unwrap())].into();
        let mut spec = spec();
        spec.gateways = vec![liqo_api::GatewayAddress {
            public_key: remote.to_string(),
            endpoints: vec!["192.0.2.1:51840".to_owned()],
            tls: vec!["192.0.2.1:443".to_owned()],
        }];
        let say = |seen: &Seen| status("n1", &spec, &TunnelEndpointStatus::default(), seen, Timestamp::UNIX_EPOCH).unwrap();
        let said = say(&seen);
        assert_eq!((said.transport, said.endpoint.as_deref()), (Some(Transport::Tls), Some("192.0.2.1:443")));
        assert_eq!((said.conditions[0].status.as_str(), said.conditions[0].reason.as_str()), ("True", "ConnectedOverTLS"));
        assert!(said.conditions[0].message.contains("192.0.2.1:51840"));
        seen.remotes[0].endpoint = Some("192.0.2.1:51840".parse().unwrap());
        assert_eq!(say(&seen).transport, Some(Transport::Udp));
        seen.remotes[0].last_received = None;
        assert_eq!(say(&seen).transport, None);
        assert!(say(&seen).conditions[0].message.contains("192.0.2.1:443 (TLS)"));
    }

    #[test]
    fn nothing_is_written_when_nothing_changed() {
        let seen = |ago| seen(Some(ago), Some("192.0.2.1:51840"));
        let first = of(&seen(1)).1;
        assert_eq!(status("n1", &spec(), &first, &seen(4), Timestamp::now()), None);
        assert!(status("n2", &spec(), &first, &seen(4), Timestamp::now()).is_some());
    }
}

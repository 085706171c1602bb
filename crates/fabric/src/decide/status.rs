//! What is said of the tunnel to a peer.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use jiff::Timestamp;
use liqo_api::{CONNECTED, GatewayStatus, Transport, TunnelEndpointSpec, TunnelEndpointStatus};
use liqo_datapath::tunnel::{Measured, PublicKey, RemoteState};
use liqo_kit::conditions::{self, Wanted};

use super::{TURN, quality::Quality};

/// A peer that was not heard for so long does not answer.
const SILENCE: Duration = Duration::from_secs(TURN.as_secs() * 3);

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
    /// Its gateways that were heard lately.
    fn heard(&self) -> impl Iterator<Item = &RemoteState> {
        self.remotes.iter().filter(|remote| remote.last_received.is_some_and(|ago| ago < SILENCE))
    }

    /// Whether it answers over TLS, because datagrams of one of its gateways do not arrive.
    pub fn is_relayed(&self) -> bool {
        self.is_connected() && self.heard().any(RemoteState::is_relayed)
    }

    /// Where this gateway of it was heard from.
    fn endpoint(&self, heard: &RemoteState) -> Option<SocketAddr> {
        // Of a relay's own address nobody outside of this node has anything.
        if heard.is_relayed() { self.relayed.get(&heard.public_key).copied() } else { heard.endpoint }
    }

    /// Whether it answers.
    pub fn is_connected(&self) -> bool {
        self.left_out.is_none() && self.heard().next().is_some()
    }

    /// How many gateways of it answer.
    pub fn answering(&self) -> usize {
        self.heard().filter(|_| self.left_out.is_none()).count()
    }

    /// How the way to it is: of several gateways that it has, to the worst.
    pub fn measured(&self) -> Option<Measured> {
        let all = self.heard().filter(|_| self.is_connected()).filter_map(|remote| remote.measured);
        all.reduce(|one, other| Measured {
            latency: one.latency.max(other.latency),
            shortest: one.shortest.max(other.shortest),
            lost_per_thousand: one.lost_per_thousand.max(other.lost_per_thousand),
        })
    }

    /// What the gateway on this node says of it, which said this, and wrote so long ago.
    fn told_by(&self, node: &str, before: Option<&GatewayStatus>, since_written: Duration) -> GatewayStatus {
        let before = before.map(|before| Quality { latency: before.latency_microseconds, loss: before.loss_percent });
        let quality = before.unwrap_or_default().next(self.measured(), since_written);
        let quality = if self.is_connected() { quality } else { Quality::default() };
        let connected = self.is_connected();
        // One whose key is being renewed is heard from the same place twice.
        let endpoints: BTreeSet<_> = self.heard().filter(|_| connected).filter_map(|remote| self.endpoint(remote)).collect();
        let transport = if self.is_relayed() { Transport::Tls } else { Transport::Udp };
        GatewayStatus {
            node: node.to_owned(),
            connected,
            transport: connected.then_some(transport),
            endpoints: endpoints.into_iter().map(|address| address.to_string()).collect(),
            latency_microseconds: quality.latency,
            loss_percent: quality.loss,
        }
    }
}

/// The status of the network towards a peer, with what the gateway on `node` says of it, which wrote it so long ago; nothing when it is as
/// it was. What others say stays, as long as they are among the `gateways`. Whether the peer is connected follows from what all say; why it is not, the
/// first one tells.
pub fn status(
    node: &str,
    gateways: &[String],
    spec: &TunnelEndpointSpec,
    current: &TunnelEndpointStatus,
    seen: &Seen,
    now: Timestamp,
    since_written: Duration,
) -> Option<TunnelEndpointStatus> {
    let told_by = |name: &String| {
        let before = current.gateways.iter().find(|one| one.node == *name);
        if name == node { Some(seen.told_by(node, before, since_written)) } else { before.cloned() }
    };
    let told: Vec<GatewayStatus> = gateways.iter().filter_map(told_by).collect();
    let over = |transport| told.iter().find(|one| one.transport == Some(transport));
    // Who has to say what is not as it should be; nobody, when nothing is.
    let speaker = match (over(Transport::Tls), over(Transport::Udp)) {
        (Some(relayed), _) => Some(relayed.node.as_str()),
        (None, Some(_)) => None,
        (None, None) => gateways.first().map(String::as_str),
    };
    let wanted = match speaker {
        None if over(Transport::Udp).is_some() => Some(Wanted::yes(CONNECTED, "Connected", "")),
        speaker => speaker.filter(|speaker| *speaker == node).map(|_| condition(spec, seen)),
    };
    let changed = wanted.and_then(|wanted| conditions::decide(&current.conditions, std::slice::from_ref(&wanted), now));
    let status = TunnelEndpointStatus {
        gateway: Some(gateways.join(", ")).filter(|names| !names.is_empty()),
        transport: over(Transport::Tls).or(over(Transport::Udp)).and_then(|one| one.transport),
        gateways: told,
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
    if let Some(heard) = seen.heard().find(|remote| remote.is_relayed()) {
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
    use liqo_datapath::tunnel::PrivateKey;

    use super::{super::fixtures::remote_state, *};

    fn spec() -> TunnelEndpointSpec {
        let value = serde_json::json!({ "clusterID": "a".repeat(32), "clusterName": "milan", "mtu": 1420 });
        serde_json::from_value(value).unwrap()
    }

    fn seen(heard: Option<u64>, endpoint: Option<&str>) -> Seen {
        let public_key = PrivateKey::generate().public();
        let (endpoint, last_received) = (endpoint.map(|text| text.parse().unwrap()), heard.map(Duration::from_secs));
        Seen { remotes: vec![RemoteState { public_key, endpoint, last_received, ..remote_state(1) }], ..Seen::default() }
    }

    /// As the gateway on this node writes it, where `current` stands.
    fn by(node: &str, current: &TunnelEndpointStatus, seen: &Seen) -> Option<TunnelEndpointStatus> {
        status(node, &["n1", "n2"].map(str::to_owned), &spec(), current, seen, Timestamp::UNIX_EPOCH, Duration::MAX)
    }

    fn of(seen: &Seen) -> (String, TunnelEndpointStatus) {
        let status = by("n1", &TunnelEndpointStatus::default(), seen).unwrap();
        (status.conditions[0].reason.clone(), status)
    }

    #[test]
    fn what_keeps_the_peer_from_answering_is_named() {
        assert_eq!(of(&Seen::default()).0, "NoGateway");
        assert_eq!(of(&seen(None, None)).0, "NoEndpoint");
        assert_eq!(of(&seen(Some(15), Some("192.0.2.1:51840"))).0, "NoAnswer");
        assert_eq!(of(&Seen { left_out: Some("x".into()), ..seen(Some(0), None) }).0, "NotPossible");
        let (reason, status) = of(&seen(Some(14), Some("192.0.2.1:51840")));
        assert_eq!(reason, "Connected");
        assert_eq!(status.gateways, [told("n1", Some("192.0.2.1:51840"))]);
        assert_eq!(status.gateway.as_deref(), Some("n1, n2"));
    }

    fn told(node: &str, endpoint: Option<&str>) -> GatewayStatus {
        let endpoints = endpoint.iter().map(|&endpoint| endpoint.to_owned()).collect();
        let transport = endpoint.map(|_| Transport::Udp);
        GatewayStatus { node: node.into(), connected: endpoint.is_some(), transport, endpoints, ..GatewayStatus::default() }
    }

    #[test]
    fn each_gateway_writes_what_it_sees_and_one_that_is_connected_is_enough() {
        let (heard, silent) = (seen(Some(1), Some("192.0.2.1:51840")), seen(None, Some("192.0.2.1:51840")));
        let first = by("n1", &TunnelEndpointStatus::default(), &silent).unwrap();
        let both = by("n2", &first, &heard).unwrap();
        assert_eq!(both.gateways, [told("n1", None), told("n2", Some("192.0.2.1:51840"))]);
        assert_eq!(both.conditions[0].reason, "Connected");
        assert_eq!((by("n1", &both, &silent), by("n2", &both, &heard)), (None, None), "nobody undoes what the other wrote");
        // None is connected any more: why, only the first says.
        let none = by("n2", &both, &silent).unwrap();
        assert_eq!(
            (none.gateways.clone(), none.conditions[0].status.as_str()),
            (vec![told("n1", None), told("n2", None)], "True")
        );
        assert_eq!(by("n1", &none, &silent).unwrap().conditions[0].reason, "NoAnswer");
    }

    #[test]
    fn a_gateway_that_is_gone_is_not_spoken_of() {
        let heard = seen(Some(1), Some("192.0.2.1:51840"));
        let both = by("n2", &of(&heard).1, &heard).unwrap();
        let alone = status("n2", &["n2".to_owned()], &spec(), &both, &heard, Timestamp::UNIX_EPOCH, Duration::MAX).unwrap();
        assert_eq!((alone.gateway.as_deref(), alone.gateways), (Some("n2"), vec![told("n2", Some("192.0.2.1:51840"))]));
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
            ..liqo_api::GatewayAddress::default()
        }];
        let say = |seen: &Seen| {
            status("n1", &["n1".to_owned()], &spec, &TunnelEndpointStatus::default(), seen, Timestamp::UNIX_EPOCH, Duration::MAX)
                .unwrap()
        };
        let said = say(&seen);
        assert_eq!(
            (said.transport, said.gateways[0].endpoints.as_slice()),
            (Some(Transport::Tls), &["192.0.2.1:443".to_owned()][..])
        );
        assert_eq!((said.conditions[0].status.as_str(), said.conditions[0].reason.as_str()), ("True", "ConnectedOverTLS"));
        assert!(said.conditions[0].message.contains("192.0.2.1:51840"));
        seen.remotes[0].endpoint = Some("192.0.2.1:51840".parse().unwrap());
        assert_eq!(say(&seen).transport, Some(Transport::Udp));
        seen.remotes[0].last_received = None;
        assert_eq!(say(&seen).transport, None);
        assert!(say(&seen).conditions[0].message.contains("192.0.2.1:443 (TLS)"));
    }

    #[test]
    fn how_the_way_is_stands_there_while_there_is_one() {
        let mut seen = seen(Some(1), Some("192.0.2.1:51840"));
        let time = Some(Duration::from_micros(1234));
        seen.remotes[0].measured = Some(Measured { latency: time, shortest: time, lost_per_thousand: 70 });
        let said = of(&seen).1;
        let figures = |status: &TunnelEndpointStatus| (status.gateways[0].latency_microseconds, status.gateways[0].loss_percent);
        assert_eq!(figures(&said), (Some(1200), Some(5)));
        // Another gateway of the peer is further away.
        let mut other = seen.remotes[0].clone();
        other.measured = Some(Measured { latency: time, shortest: Some(Duration::from_millis(20)), lost_per_thousand: 0 });
        seen.remotes.push(other);
        assert_eq!(figures(&by("n1", &said, &seen).unwrap()), (Some(20_000), Some(5)));
        seen.remotes.iter_mut().for_each(|remote| remote.last_received = None);
        assert_eq!(figures(&by("n1", &said, &seen).unwrap()), (None, None));
    }

    #[test]
    fn nothing_is_written_when_nothing_changed() {
        let seen = |ago| seen(Some(ago), Some("192.0.2.1:51840"));
        let first = of(&seen(1)).1;
        assert_eq!(by("n1", &first, &seen(4)), None);
        assert!(by("n2", &first, &seen(4)).is_some());
    }
}

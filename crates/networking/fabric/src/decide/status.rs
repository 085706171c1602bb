//! The status of the tunnel to a peer.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use jiff::Timestamp;
use liqo_api::conditions::{self, DesiredCondition};
use liqo_api::{
    CONNECTED, ClusterId, GatewayStatus, Transport, TunnelEndpointSpec, TunnelEndpointStatus,
    TunnelReason,
};
use liqo_datapath::tunnel::{PathMeasurement, PublicKey, TunnelRemoteState};

use super::{TURN, quality::ReportedQuality};

/// A peer that was not heard for this time does not answer.
const SILENCE: Duration = Duration::from_secs(TURN.as_secs() * 3);

/// The tunnel to one peer, as this gateway observes it.
#[derive(Clone, Debug, Default)]
pub struct ObservedTunnel {
    /// The peer's gateways.
    pub remotes: Vec<TunnelRemoteState>,
    /// The real addresses of gateways that are reached over a relay.
    pub relayed: BTreeMap<PublicKey, SocketAddr>,
    /// Set if the peer gets no network, and why.
    pub left_out: Option<String>,
    /// The gateways on direct paths to clusters behind the peer.
    pub direct: Vec<(ClusterId, TunnelRemoteState)>,
}

impl ObservedTunnel {
    /// The peer's gateways that were heard recently.
    fn heard_gateways(&self) -> impl Iterator<Item = &TunnelRemoteState> {
        self.remotes
            .iter()
            .filter(|remote| remote.last_received.is_some_and(|ago| ago < SILENCE))
    }

    /// Whether a gateway of the peer answers over TLS, because its datagrams do not arrive.
    pub fn is_relayed(&self) -> bool {
        self.is_connected() && self.heard_gateways().any(TunnelRemoteState::is_relayed)
    }

    /// The address from which this gateway of the peer was heard.
    fn gateway_address(&self, heard: &TunnelRemoteState) -> Option<SocketAddr> {
        // A relay's local address is of no use outside of this node.
        if heard.is_relayed() {
            self.relayed.get(&heard.public_key).copied()
        } else {
            heard.endpoint
        }
    }

    /// Whether the peer answers.
    pub fn is_connected(&self) -> bool {
        self.left_out.is_none() && self.heard_gateways().next().is_some()
    }

    /// Number of the peer's gateways that answer.
    pub fn answering_gateways(&self) -> usize {
        self.heard_gateways()
            .filter(|_| self.left_out.is_none())
            .count()
    }

    /// The worst measurement of all its gateways.
    pub fn worst_measurement(&self) -> Option<PathMeasurement> {
        let all = self
            .heard_gateways()
            .filter(|_| self.is_connected())
            .filter_map(|remote| remote.measured);
        all.reduce(|one, other| PathMeasurement {
            latency: one.latency.max(other.latency),
            shortest: one.shortest.max(other.shortest),
            lost_per_thousand: one.lost_per_thousand.max(other.lost_per_thousand),
        })
    }

    /// The status by the gateway on this node, which published `before`.
    fn status_by(
        &self,
        node: &str,
        before: Option<&GatewayStatus>,
        since_written: Duration,
    ) -> GatewayStatus {
        let before = before.map(|before| ReportedQuality {
            latency: before.latency_microseconds,
            loss: before.loss_percent,
        });
        let quality = before
            .unwrap_or_default()
            .next(self.worst_measurement(), since_written);
        let quality = if self.is_connected() {
            quality
        } else {
            ReportedQuality::default()
        };
        let connected = self.is_connected();
        // A gateway whose key is being renewed is heard from the same address twice.
        let endpoints: BTreeSet<_> = self
            .heard_gateways()
            .filter(|_| connected)
            .filter_map(|remote| self.gateway_address(remote))
            .collect();
        let transport = if self.is_relayed() {
            Transport::Tls
        } else {
            Transport::Udp
        };
        GatewayStatus {
            node: node.to_owned(),
            connected,
            transport: connected.then_some(transport),
            endpoints: endpoints
                .into_iter()
                .map(|address| address.to_string())
                .collect(),
            latency_microseconds: quality.latency,
            loss_percent: quality.loss,
            direct: self
                .direct
                .iter()
                .filter(|(_, remote)| remote.is_direct)
                .map(|(cluster, _)| cluster.clone())
                .collect(),
        }
    }
}

/// The new status of the network towards a peer, as the gateway on `node` writes it; `None` if it
/// did not change. The parts of the other `gateways` stay. Whether the peer is connected depends on
/// all parts; if it is not, the first gateway writes why.
pub fn tunnel_status(
    node: &str,
    gateways: &[String],
    spec: &TunnelEndpointSpec,
    current: &TunnelEndpointStatus,
    tunnel: &ObservedTunnel,
    now: Timestamp,
    since_written: Duration,
) -> Option<TunnelEndpointStatus> {
    let mut parts: Vec<GatewayStatus> = Vec::new();
    for name in gateways {
        let before = current.gateways.iter().find(|one| one.node == *name);
        if name == node {
            parts.push(tunnel.status_by(node, before, since_written));
        } else {
            parts.extend(before.cloned());
        }
    }
    let [over_tls, over_udp] = [Transport::Tls, Transport::Udp]
        .map(|transport| parts.iter().find(|one| one.transport == Some(transport)));
    // The gateway that writes the problem, if there is one.
    let speaker = match (over_tls, over_udp) {
        (Some(relayed), _) => Some(relayed.node.as_str()),
        (None, Some(_)) => None,
        (None, None) => gateways.first().map(String::as_str),
    };
    let wanted = match speaker {
        None if over_udp.is_some() => Some(DesiredCondition::yes(
            CONNECTED,
            TunnelReason::Connected,
            "",
        )),
        speaker => speaker
            .filter(|speaker| *speaker == node)
            .map(|_| tunnel_condition(spec, tunnel)),
    };
    let changed = wanted.and_then(|wanted| {
        conditions::updated_conditions(&current.conditions, std::slice::from_ref(&wanted), now)
    });
    let status = TunnelEndpointStatus {
        gateway: Some(gateways.join(", ")).filter(|names| !names.is_empty()),
        transport: over_tls.or(over_udp).and_then(|one| one.transport),
        gateways: parts,
        conditions: changed.unwrap_or_else(|| current.conditions.clone()),
    };
    (status != *current).then_some(status)
}

fn tunnel_condition(spec: &TunnelEndpointSpec, tunnel: &ObservedTunnel) -> DesiredCondition {
    let name = if spec.cluster_name.is_empty() {
        spec.cluster_id.as_str()
    } else {
        spec.cluster_name.as_str()
    };
    if let Some(reason) = &tunnel.left_out {
        return DesiredCondition::no(
            CONNECTED,
            TunnelReason::NotPossible,
            format!("{name} gets no network: {reason}"),
        );
    }
    if tunnel.remotes.is_empty() {
        return DesiredCondition::no(
            CONNECTED,
            TunnelReason::NoGateway,
            format!("no gateway of {name} is known here"),
        );
    }
    if let Some(heard) = tunnel.heard_gateways().find(|remote| remote.is_relayed()) {
        let of_key = spec
            .gateways
            .iter()
            .find(|gateway| gateway.public_key == heard.public_key.to_string());
        let endpoint = of_key
            .and_then(|gateway| gateway.endpoints.first())
            .map_or("its gateway", String::as_str);
        let message = format!(
            "UDP does not pass between this gateway and that of {name}, so TLS carries packets, more slowly; let UDP to {endpoint} pass, or the other way round"
        );
        return DesiredCondition::yes(CONNECTED, TunnelReason::ConnectedOverTls, message);
    }
    let called: Vec<SocketAddr> = tunnel
        .remotes
        .iter()
        .filter_map(|remote| remote.endpoint)
        .collect();
    match called.first() {
        Some(address) => DesiredCondition::no(
            CONNECTED,
            TunnelReason::NoAnswer,
            match spec.gateways.iter().flat_map(|gateway| &gateway.tls).next() {
                None => {
                    format!(
                        "the gateway of {name} does not answer at {address} (UDP); is that port reachable from this gateway?"
                    )
                }
                Some(tls) => format!(
                    "the gateway of {name} answers neither at {address} (UDP) nor at {tls} (TLS); is one of them reachable from this gateway?"
                ),
            },
        ),
        None => DesiredCondition::no(
            CONNECTED,
            TunnelReason::NoEndpoint,
            format!(
                "the address of the gateway of {name} is not known, and it has sent nothing; it must connect first"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use liqo_datapath::tunnel::PrivateKey;

    use liqo_api::conditions::StatusCondition as _;

    use super::*;

    fn spec() -> TunnelEndpointSpec {
        let value =
            serde_json::json!({ "clusterID": "a".repeat(32), "clusterName": "milan", "mtu": 1420 });
        serde_json::from_value(value).unwrap()
    }

    fn seen(heard: Option<u64>, endpoint: Option<&str>) -> ObservedTunnel {
        let public_key = PrivateKey::generate().public_key();
        let (endpoint, last_received) = (
            endpoint.map(|text| text.parse().unwrap()),
            heard.map(Duration::from_secs),
        );
        ObservedTunnel {
            remotes: vec![TunnelRemoteState {
                endpoint,
                last_received,
                ..TunnelRemoteState::silent(public_key)
            }],
            ..ObservedTunnel::default()
        }
    }

    /// The status that the gateway on this node writes after `current`.
    fn by(
        node: &str,
        current: &TunnelEndpointStatus,
        seen: &ObservedTunnel,
    ) -> Option<TunnelEndpointStatus> {
        tunnel_status(
            node,
            &["n1", "n2"].map(str::to_owned),
            &spec(),
            current,
            seen,
            Timestamp::UNIX_EPOCH,
            Duration::MAX,
        )
    }

    fn of(seen: &ObservedTunnel) -> (String, TunnelEndpointStatus) {
        let status = by("n1", &TunnelEndpointStatus::default(), seen).unwrap();
        (status.conditions[0].reason.clone(), status)
    }

    #[test]
    fn the_reason_why_a_peer_does_not_answer_is_named() {
        assert_eq!(of(&ObservedTunnel::default()).0, "NoGateway");
        assert_eq!(of(&seen(None, None)).0, "NoEndpoint");
        assert_eq!(of(&seen(Some(15), Some("192.0.2.1:51840"))).0, "NoAnswer");
        assert_eq!(
            of(&ObservedTunnel {
                left_out: Some("x".into()),
                ..seen(Some(0), None)
            })
            .0,
            "NotPossible"
        );
        let (reason, status) = of(&seen(Some(14), Some("192.0.2.1:51840")));
        assert_eq!(reason, "Connected");
        assert_eq!(status.gateways, [reported("n1", Some("192.0.2.1:51840"))]);
        assert_eq!(status.gateway.as_deref(), Some("n1, n2"));
    }

    fn reported(node: &str, endpoint: Option<&str>) -> GatewayStatus {
        let endpoints = endpoint
            .iter()
            .map(|&endpoint| endpoint.to_owned())
            .collect();
        let transport = endpoint.map(|_| Transport::Udp);
        GatewayStatus {
            node: node.into(),
            connected: endpoint.is_some(),
            transport,
            endpoints,
            ..GatewayStatus::default()
        }
    }

    #[test]
    fn each_gateway_writes_what_it_sees_and_one_that_is_connected_is_enough() {
        let (heard, silent) = (
            seen(Some(1), Some("192.0.2.1:51840")),
            seen(None, Some("192.0.2.1:51840")),
        );
        let first = by("n1", &TunnelEndpointStatus::default(), &silent).unwrap();
        let both = by("n2", &first, &heard).unwrap();
        assert_eq!(
            both.gateways,
            [
                reported("n1", None),
                reported("n2", Some("192.0.2.1:51840"))
            ]
        );
        assert_eq!(both.conditions[0].reason, "Connected");
        assert_eq!(
            (by("n1", &both, &silent), by("n2", &both, &heard)),
            (None, None),
            "nobody undoes what the other wrote"
        );
        // No gateway is connected any more: only the first one writes why.
        let none = by("n2", &both, &silent).unwrap();
        assert_eq!(
            (none.gateways.clone(), none.conditions[0].status.as_str()),
            (vec![reported("n1", None), reported("n2", None)], "True")
        );
        assert_eq!(
            by("n1", &none, &silent).unwrap().conditions[0].reason,
            "NoAnswer"
        );
    }

    /// Whether the admission policy `liqo-fabric-reports` lets the program on a node write this
    /// status after that one.
    fn is_admitted(
        node: &str,
        before: &TunnelEndpointStatus,
        after: &TunnelEndpointStatus,
    ) -> bool {
        let is_own_or_unchanged =
            |one: &GatewayStatus| one.node == node || before.gateways.contains(one);
        let over = |transport| {
            after
                .gateways
                .iter()
                .any(|one| one.transport == Some(transport))
        };
        let transport = [Transport::Tls, Transport::Udp]
            .into_iter()
            .find(|transport| over(*transport));
        let is_connected = after.gateways.iter().any(|one| one.connected);
        let follows = |one: &liqo_api::Condition| one.is_true() == is_connected;
        after.gateways.iter().all(is_own_or_unchanged)
            && after.transport == transport
            && (after.conditions == before.conditions || after.conditions.iter().all(follows))
    }

    #[test]
    fn whatever_a_gateway_writes_is_admitted() {
        let (udp, silent) = (
            seen(Some(1), Some("192.0.2.1:51840")),
            seen(None, Some("192.0.2.1:51840")),
        );
        let tls = seen(Some(1), Some("127.0.0.1:4000"));
        assert!(tls.is_relayed() && !udp.is_relayed());
        let left_out = ObservedTunnel {
            left_out: Some("x".into()),
            ..udp.clone()
        };
        let tunnels = [udp, silent, tls, left_out, ObservedTunnel::default()];
        let mut all = vec![TunnelEndpointStatus::default()];
        for _ in 0..3 {
            let mut next = Vec::new();
            for (before, node) in all
                .iter()
                .flat_map(|before| ["n1", "n2"].map(|node| (before, node)))
            {
                for tunnel in &tunnels {
                    let Some(after) = by(node, before, tunnel) else {
                        continue;
                    };
                    assert!(is_admitted(node, before, &after), "{before:?} {after:?}");
                    next.push(after);
                }
            }
            all = next;
        }
    }

    #[test]
    fn the_part_of_a_gateway_that_is_gone_is_removed() {
        let heard = seen(Some(1), Some("192.0.2.1:51840"));
        let both = by("n2", &of(&heard).1, &heard).unwrap();
        let alone = tunnel_status(
            "n2",
            &["n2".to_owned()],
            &spec(),
            &both,
            &heard,
            Timestamp::UNIX_EPOCH,
            Duration::MAX,
        )
        .unwrap();
        assert_eq!(
            (alone.gateway.as_deref(), alone.gateways),
            (Some("n2"), vec![reported("n2", Some("192.0.2.1:51840"))])
        );
    }

    #[test]
    fn packets_carried_over_tls_are_reported_with_advice() {
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
        let say = |seen: &ObservedTunnel| {
            tunnel_status(
                "n1",
                &["n1".to_owned()],
                &spec,
                &TunnelEndpointStatus::default(),
                seen,
                Timestamp::UNIX_EPOCH,
                Duration::MAX,
            )
            .unwrap()
        };
        let said = say(&seen);
        assert_eq!(
            (said.transport, said.gateways[0].endpoints.as_slice()),
            (Some(Transport::Tls), &["192.0.2.1:443".to_owned()][..])
        );
        assert_eq!(
            (
                said.conditions[0].status.as_str(),
                said.conditions[0].reason.as_str()
            ),
            ("True", "ConnectedOverTLS")
        );
        assert!(said.conditions[0].message.contains("192.0.2.1:51840"));
        seen.remotes[0].endpoint = Some("192.0.2.1:51840".parse().unwrap());
        assert_eq!(say(&seen).transport, Some(Transport::Udp));
        seen.remotes[0].last_received = None;
        assert_eq!(say(&seen).transport, None);
        assert!(
            say(&seen).conditions[0]
                .message
                .contains("192.0.2.1:443 (TLS)")
        );
    }

    #[test]
    fn measurements_are_published_while_the_peer_is_connected() {
        let mut seen = seen(Some(1), Some("192.0.2.1:51840"));
        let time = Some(Duration::from_micros(1234));
        seen.remotes[0].measured = Some(PathMeasurement {
            latency: time,
            shortest: time,
            lost_per_thousand: 70,
        });
        let said = of(&seen).1;
        let figures = |status: &TunnelEndpointStatus| {
            (
                status.gateways[0].latency_microseconds,
                status.gateways[0].loss_percent,
            )
        };
        assert_eq!(figures(&said), (Some(1200), Some(5)));
        // Another gateway of the peer is further away.
        let mut other = seen.remotes[0].clone();
        other.measured = Some(PathMeasurement {
            latency: time,
            shortest: Some(Duration::from_millis(20)),
            lost_per_thousand: 0,
        });
        seen.remotes.push(other);
        assert_eq!(
            figures(&by("n1", &said, &seen).unwrap()),
            (Some(20_000), Some(5))
        );
        seen.remotes
            .iter_mut()
            .for_each(|remote| remote.last_received = None);
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

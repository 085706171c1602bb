//! Two nodes, of which the first is the gateway, and a peer with the same ranges as ours.

use liqo_api::{ClusterId, NetworkRanges, TunnelEndpointSpec};
use liqo_datapath::tunnel::{Dropped, PublicKey, RemoteState};
use serde_json::json;

use super::{Snapshot, gateways::InUse};
use crate::view::NodeView;

pub fn id(letter: char) -> ClusterId {
    letter.to_string().repeat(32).parse().unwrap()
}

/// A key that belongs to nobody.
pub fn key(byte: u8) -> PublicKey {
    PublicKey([byte; 32])
}

/// A remote of which nothing is known.
pub fn remote_state(byte: u8) -> RemoteState {
    RemoteState {
        public_key: key(byte),
        endpoint: None,
        last_handshake: None,
        last_received: None,
        sent_bytes: 0,
        received_bytes: 0,
        dropped: Dropped::default(),
        measured: None,
        unanswered: 0,
    }
}

pub fn node(last: u8) -> NodeView {
    NodeView {
        addresses: vec![[172, 18, 0, last].into()],
        pods: vec![format!("10.244.{last}.0/24").parse().unwrap()],
        labels: [("node".to_owned(), format!("n{last}"))].into(),
    }
}

/// A peer with two gateways, whose pods are seen at `here`.
pub fn peer(id: &ClusterId, here: &str, keys: [u8; 2]) -> TunnelEndpointSpec {
    let gateway = |byte: u8| json!({ "publicKey": key(byte).to_string(), "endpoints": [format!("192.0.2.{byte}:51840")] });
    serde_json::from_value(json!({
        "clusterID": id,
        "clusterName": "milan",
        "exported": { "10.244.0.0/16": "10.64.0.0/16", "10.70.0.0/24": "10.65.0.0/24" },
        "imported": { "10.244.0.0/16": here },
        "gateways": keys.map(gateway),
        "mtu": 1400,
        "reach": "Pods",
    }))
    .unwrap()
}

pub fn snapshot() -> Snapshot {
    let ranges: NetworkRanges = serde_json::from_value(json!({
        "podCIDRs": ["10.244.0.0/16"], "serviceCIDRs": ["10.96.0.0/12"], "externalCIDRs": ["10.70.0.0/24"],
    }))
    .unwrap();
    Snapshot {
        ranges: Some(ranges),
        nodes: [("n1".to_owned(), node(1)), ("n2".to_owned(), node(2))].into(),
        peers: [(id('a'), peer(&id('a'), "10.66.0.0/16", [1, 2]))].into(),
        gateways: [in_use(0, "n1")].into(),
        ..Snapshot::default()
    }
}

/// A gateway that holds the Lease of this number.
pub fn in_use(number: u8, node: &str) -> (u8, InUse) {
    (number, InUse { node: node.to_owned(), key: key(100 + number), first_key: key(100 + number) })
}

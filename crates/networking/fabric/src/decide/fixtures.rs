//! Two nodes, the first is the gateway, and a peer with the same ranges as ours.

use liqo_api::{ClusterId, NetworkRanges, TunnelEndpointSpec};
use liqo_datapath::tunnel::PublicKey;
use serde_json::json;

use super::{NodeSnapshot, election::ActiveGateway};
use crate::view::NodeView;

pub fn id(letter: char) -> ClusterId {
    letter.to_string().repeat(32).parse().unwrap()
}

/// A key that belongs to nobody.
pub fn key(byte: u8) -> PublicKey {
    PublicKey([byte; 32])
}

pub fn node(last: u8) -> NodeView {
    NodeView {
        addresses: vec![[172, 18, 0, last].into()],
        pods: vec![format!("10.244.{last}.0/24").parse().unwrap()],
        labels: [("node".to_owned(), format!("n{last}"))].into(),
        is_ready: true,
    }
}

/// A peer with two gateways. Its pods appear at `here`.
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

pub fn snapshot() -> NodeSnapshot {
    let ranges: NetworkRanges = serde_json::from_value(json!({
        "podCIDRs": ["10.244.0.0/16"], "serviceCIDRs": ["10.96.0.0/12"], "externalCIDRs": ["10.70.0.0/24"],
    }))
    .unwrap();
    NodeSnapshot {
        ranges: Some(ranges),
        nodes: [("n1".to_owned(), node(1)), ("n2".to_owned(), node(2))].into(),
        peers: [(id('a'), peer(&id('a'), "10.66.0.0/16", [1, 2]))].into(),
        gateways: [active(0, "n1")].into(),
        ..NodeSnapshot::default()
    }
}

/// A gateway that holds the Lease with this number.
pub fn active(number: u8, node: &str) -> (u8, ActiveGateway) {
    (
        number,
        ActiveGateway {
            node: node.to_owned(),
            key: key(100 + number),
            first_key: key(100 + number),
        },
    )
}

//! Addresses of pods.

use std::{collections::HashSet, net::Ipv4Addr};

use serde_json::Value;

use super::{
    fields::{items, text},
    pods::is_finished,
    snapshot::Snapshot,
};

/// The addresses that pods have now. A finished pod has given its own back.
pub struct Addresses(HashSet<Ipv4Addr>);

impl Addresses {
    pub fn in_use(snapshot: &Snapshot) -> Self {
        let pods = snapshot.pods().iter().filter(|pod| !is_finished(pod));
        Self(
            pods.filter_map(|pod| text(&pod["status"]["podIP"]).parse().ok())
                .collect(),
        )
    }

    /// The lowest free address of the node's range, so that addresses are soon used again, by other
    /// pods.
    pub fn take(&mut self, snapshot: &Snapshot, node: &Value) -> Option<Ipv4Addr> {
        let (base, length) =
            parse_range(text(&node["spec"]["podCIDR"])).unwrap_or(snapshot.settings.pod_addresses);
        let size = 1_u32
            .checked_shl(32_u32.saturating_sub(u32::from(length)))
            .unwrap_or(u32::MAX);
        // The first two are the network and its gateway, the last one is the broadcast.
        let mut all = (2..size.saturating_sub(1))
            .map(|index| Ipv4Addr::from(u32::from(base).saturating_add(index)));
        let free = all.find(|address| !self.0.contains(address))?;
        self.0.insert(free);
        Some(free)
    }
}

fn parse_range(range: &str) -> Option<(Ipv4Addr, u8)> {
    let (base, length) = range.split_once('/')?;
    Some((base.parse().ok()?, length.parse().ok()?))
}

/// The address of a node inside of its cluster.
pub fn of_node(node: &Value) -> &str {
    let internal = items(&node["status"]["addresses"])
        .iter()
        .find(|address| address["type"] == "InternalIP");
    internal
        .map(|address| text(&address["address"]))
        .unwrap_or_default()
}

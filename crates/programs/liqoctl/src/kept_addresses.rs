//! Finds ranges that could keep their addresses in the other cluster of a peering, and the lines of
//! policy that allow it.
//!
//! Each cluster decides about its own address space, so each needs a line in its own policy. A
//! cluster knows exactly which ranges of the peer are free here. About its own ranges at the peer
//! it knows only what both announced: not the peer's Services and nodes, nor what the peer reserves
//! or imports from others. The peer's own `TunnelEndpoint` tells that.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use liqo_api::{NetworkRanges, TunnelEndpointSpec};
use liqo_network_model::{allocator::is_private, space::prefixes_overlap};
use serde::Serialize;

/// Ranges that could keep their addresses in the other cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeepableRanges {
    /// Ranges of the peer that could keep their addresses here, if a policy said so.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub could_keep: BTreeSet<IpNet>,
    /// Ranges of this cluster that could keep their addresses at the peer, if a policy there said
    /// so.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub peer_could_keep: BTreeSet<IpNet>,
    /// Whether `peer_could_keep` was read at the peer. Otherwise something else there may have
    /// these addresses.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub peer_confirms: bool,
    /// Ranges of the peer that keep their addresses here already.
    #[serde(skip)]
    pub kept: BTreeSet<IpNet>,
    /// Ranges of this cluster that keep their addresses at the peer already.
    #[serde(skip)]
    pub peer_keeps: BTreeSet<IpNet>,
}

impl KeepableRanges {
    /// The knowledge of this cluster. `own` are its ranges.
    pub fn as_known_here(own: &NetworkRanges, tunnel: &TunnelEndpointSpec) -> Self {
        let own: BTreeSet<IpNet> = own
            .pods
            .iter()
            .chain(&own.external)
            .map(IpNet::trunc)
            .collect();
        Self {
            could_keep: tunnel.could_keep.clone(),
            peer_could_keep: own
                .iter()
                .filter(|range| may_be_free_at_peer(range, tunnel))
                .copied()
                .collect(),
            peer_confirms: false,
            kept: unchanged(&tunnel.imported),
            peer_keeps: unchanged(&tunnel.exported),
        }
    }

    /// The same, with what the peer says in its own `TunnelEndpoint` for this cluster.
    #[must_use]
    pub fn confirmed_by_peer(self, at_peer: &TunnelEndpointSpec) -> Self {
        Self {
            peer_could_keep: at_peer.could_keep.clone(),
            peer_confirms: true,
            ..self
        }
    }

    /// One sentence for each cluster whose policy could let addresses stay. `peer` is the peer's
    /// name here.
    pub fn sentences(&self, peer: &str) -> Vec<String> {
        let here = (!self.could_keep.is_empty()).then(|| {
            format!(
                "addresses of {} could stay as they are here, if you know these ranges: {} in the policy for {peer}",
                listed(&self.could_keep),
                policy_line(self.could_keep.union(&self.kept)),
            )
        });
        let there = (!self.peer_could_keep.is_empty()).then(|| {
            let condition = if self.peer_confirms { "" } else { ", unless something else there has them" };
            format!(
                "addresses of this cluster's {} could stay as they are in {peer}{condition}: there, {} in the policy for this cluster",
                listed(&self.peer_could_keep),
                policy_line(self.peer_could_keep.union(&self.peer_keeps)),
            )
        });
        here.into_iter().chain(there).collect()
    }

    /// A sentence before the others if both clusters could let addresses stay.
    pub fn summary(&self) -> Option<&'static str> {
        let both = !self.could_keep.is_empty() && !self.peer_could_keep.is_empty();
        both.then_some("both clusters could keep each other's addresses, so that a pod has one address everywhere")
    }
}

/// Whether nothing that both clusters announced has addresses of this range of ours at the peer,
/// which maps it to something else.
fn may_be_free_at_peer(range: &IpNet, tunnel: &TunnelEndpointSpec) -> bool {
    let is_mapped = tunnel
        .exported
        .get(range)
        .is_some_and(|there| there != range);
    // All of these are addresses in the peer's own address space.
    let views = tunnel
        .exported
        .iter()
        .filter(|(own, _)| *own != range)
        .map(|(_, there)| there);
    is_mapped
        && is_private(range)
        && tunnel
            .imported
            .keys()
            .chain(views)
            .all(|other| !prefixes_overlap(range, other))
}

fn unchanged(maps: &BTreeMap<IpNet, IpNet>) -> BTreeSet<IpNet> {
    maps.iter()
        .filter(|(from, to)| from == to)
        .map(|(from, _)| *from)
        .collect()
}

fn listed(ranges: &BTreeSet<IpNet>) -> String {
    ranges
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// The line of a policy, as YAML and JSON.
fn policy_line<'a>(ranges: impl Iterator<Item = &'a IpNet>) -> String {
    let quoted: Vec<String> = ranges.map(|range| format!("\"{range}\"")).collect();
    format!("spec.network.keptCIDRs: [{}]", quoted.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn ranges(texts: &[&str]) -> BTreeSet<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn own() -> NetworkRanges {
        serde_json::from_value(json!({
            "podCIDRs": ["10.244.0.0/16", "fd00:10:244::/48"],
            "serviceCIDRs": ["10.96.0.0/16"],
            "externalCIDRs": ["10.70.0.0/24"],
        }))
        .unwrap()
    }

    fn tunnel(exported: &Value, imported: &Value, could_keep: &[&str]) -> TunnelEndpointSpec {
        serde_json::from_value(json!({
            "clusterID": "q".repeat(32), "exported": exported, "imported": imported, "couldKeep": could_keep, "mtu": 1420,
        }))
        .unwrap()
    }

    #[test]
    fn if_both_clusters_could_keep_addresses_each_has_its_line() {
        let exported = json!({ "10.244.0.0/16": "10.66.0.0/16", "fd00:10:244::/48": "fd00:10:244::/48", "10.70.0.0/24": "10.67.0.0/24" });
        let imported = json!({ "10.245.0.0/16": "10.65.0.0/16", "fd00:10:245::/48": "fd00:10:245::/48", "10.70.0.0/24": "10.64.0.0/24" });
        let known = KeepableRanges::as_known_here(
            &own(),
            &tunnel(&exported, &imported, &["10.245.0.0/16"]),
        );
        assert!(known.summary().is_some());
        // The lines name what is kept already, because they replace the former ones.
        let here = "addresses of 10.245.0.0/16 could stay as they are here, if you know these ranges: \
                    spec.network.keptCIDRs: [\"10.245.0.0/16\", \"fd00:10:245::/48\"] in the policy for milan";
        let there = "addresses of this cluster's 10.244.0.0/16 could stay as they are in milan, unless something else there has them: \
                     there, spec.network.keptCIDRs: [\"10.244.0.0/16\", \"fd00:10:244::/48\"] in the policy for this cluster";
        assert_eq!(known.sentences("milan"), [here, there]);
        assert_eq!(
            json!(known),
            json!({ "couldKeep": ["10.245.0.0/16"], "peerCouldKeep": ["10.244.0.0/16"] })
        );

        let at_peer = tunnel(&json!({}), &json!({}), &["10.244.0.0/16"]);
        let confirmed = known.clone().confirmed_by_peer(&at_peer);
        assert_eq!(
            confirmed.sentences("milan")[1],
            there.replace(", unless something else there has them", "")
        );
        assert_eq!(json!(confirmed)["peerConfirms"], true);
        // The peer has these addresses, although it did not announce them.
        let refuted = known.confirmed_by_peer(&tunnel(&json!({}), &json!({}), &[]));
        assert_eq!(
            (refuted.summary(), refuted.sentences("milan").len()),
            (None, 1)
        );
    }

    #[test]
    fn a_range_that_the_peer_uses_cannot_stay_there() {
        let could_keep = |exported: &Value, imported: &Value| {
            KeepableRanges::as_known_here(&own(), &tunnel(exported, imported, &[])).peer_could_keep
        };
        let mapped = json!({ "10.244.0.0/16": "10.66.0.0/16" });
        assert_eq!(
            could_keep(&mapped, &json!({ "10.245.0.0/16": "10.65.0.0/16" })),
            ranges(&["10.244.0.0/16"])
        );
        assert_eq!(
            could_keep(&mapped, &json!({ "10.244.8.0/24": "10.65.0.0/24" })),
            ranges(&[]),
            "the peer has it"
        );
        let displaced = json!({ "10.244.0.0/16": "10.66.0.0/16", "10.70.0.0/24": "10.244.3.0/24" });
        assert_eq!(
            could_keep(&displaced, &json!({})),
            ranges(&["10.70.0.0/24"]),
            "the peer sees another of our ranges there"
        );
        assert_eq!(
            could_keep(&json!({ "10.244.0.0/16": "10.244.0.0/16" }), &json!({})),
            ranges(&[]),
            "it stays already"
        );
        assert_eq!(
            could_keep(&json!({ "10.9.0.0/16": "10.66.0.0/16" }), &json!({})),
            ranges(&[]),
            "that of a cluster behind this one"
        );
        let public = NetworkRanges {
            pods: vec!["203.0.113.0/24".parse().unwrap()],
            ..NetworkRanges::default()
        };
        let tunnel = tunnel(
            &json!({ "203.0.113.0/24": "10.66.0.0/24" }),
            &json!({}),
            &[],
        );
        assert_eq!(
            KeepableRanges::as_known_here(&public, &tunnel).peer_could_keep,
            ranges(&[]),
            "public addresses never stay"
        );
    }
}

//! The desired state of one node ([`NodePlan`]): links, routes, rules and nftables.
//!
//! Each node reaches the gateways over an overlay (VXLAN), and a gateway reaches the peers through
//! its tunnel device.
//! ```text
//!   pod -> node --(mark by bucket, table of a gateway)--> overlay -> gateway --(route)--> tunnel
//!   tunnel -> gateway --(own mark, own table)--> overlay -> node -> pod
//! ```
//! Each gateway has a mark and a routing table. nftables mark packets that another gateway carries
//! ([`crate::spread`]), and on a gateway the packets from peers for other nodes. On other nodes a
//! gateway's table leads to that gateway; on the gateway itself it leads to the other nodes. The
//! main table leads to the first gateway, and on a gateway into its own tunnel. So with one
//! gateway, other nodes need neither marks nor tables.
//!
//! The next hop in the overlay is the other node's own address ("onlink"), so the overlay needs no
//! addresses. For IPv6 the kernel refuses that if another device leads to it; there it is a
//! link-local address derived from the node's MAC address.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;

use crate::{
    fabric::{Fabric, FabricGateway, FabricNode, MacAddress},
    ruleset,
};

/// Priority of the rules that lead marked packets to the tables of gateways.
pub const PRIORITY: u32 = 1_825;
/// Metric of the routes that keep packets from leaving by another device while ours does not exist.
pub const UNREACHABLE_METRIC: u32 = 4_000;

/// The desired state of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePlan {
    /// Set if there is another node to reach.
    pub overlay: Option<Overlay>,
    /// The MTU of the tunnel's device, in bytes, on gateways.
    pub tunnel: Option<u32>,
    /// In no particular order.
    pub routes: Vec<Route>,
    /// Rules that choose a table.
    pub rules: Vec<MarkRule>,
    /// nftables, one script for each table.
    pub tables: Vec<ruleset::NftTable>,
}

/// The overlay's device and the other nodes in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlay {
    /// The source address of its packets.
    pub local: IpAddr,
    pub mac: MacAddress,
    /// In bytes.
    pub mtu: u32,
    pub neighbours: Vec<Neighbour>,
}

/// Another node in the overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The destination of the overlay's packets for it.
    pub outer: IpAddr,
    pub mac: MacAddress,
    /// The addresses that routes name as the next hop.
    pub hops: Vec<IpAddr>,
}

/// A route of one of our own tables or the main one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    pub destination: IpNet,
    /// A gateway's table; `None` for the main table.
    pub table: Option<u32>,
    pub next: NextHop,
}

/// A route sends its packets there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NextHop {
    /// Into the tunnel.
    Tunnel {
        /// The source address of connections from this node.
        source: Option<IpAddr>,
        /// In bytes, if it is lower than that of the device.
        mtu: Option<u32>,
    },
    /// To another node.
    Overlay {
        /// That node's address.
        hop: IpAddr,
        /// The source address of connections from this node.
        source: Option<IpAddr>,
        /// In bytes.
        mtu: Option<u32>,
    },
    /// Nowhere, with the metric [`UNREACHABLE_METRIC`].
    Unreachable,
}

/// Marked packets look into another table first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MarkRule {
    pub is_v6: bool,
    /// The mark, within [`MARK_MASK`](crate::fabric::MARK_MASK), of the packets that the rule is
    /// for.
    pub mark: u32,
    /// The rule is only for packets that come out of the tunnel, and for checks of the sources of
    /// those that go into it. The overlay's own packets keep the mark of the packet inside, and
    /// this rule must not apply to them.
    pub is_from_tunnel: bool,
    pub table: u32,
    pub priority: u32,
}

impl MarkRule {
    fn to_gateway(gateway: FabricGateway, is_v6: bool) -> Self {
        Self {
            is_v6,
            mark: gateway.mark(),
            is_from_tunnel: false,
            table: gateway.table(),
            priority: PRIORITY,
        }
    }

    fn from_tunnel(gateway: FabricGateway, is_v6: bool) -> Self {
        Self {
            is_from_tunnel: true,
            ..Self::to_gateway(gateway, is_v6)
        }
    }
}

impl Fabric {
    /// The desired state of this node. It is empty for an unknown node, and in a cluster without
    /// peers. Without a gateway, packets for peers are dropped instead of leaving by the default
    /// route.
    pub fn node_plan(&self, name: &str) -> NodePlan {
        let (Some(this), false) = (self.nodes.get(name), self.peers.is_empty()) else {
            return NodePlan::default();
        };
        let is_gateway = this.gateway.is_some();
        let nearest = self.nearest_gateway(name);
        let mut plan = NodePlan {
            overlay: self.node_overlay(name, this),
            tunnel: is_gateway.then_some(self.mtu),
            tables: ruleset::node_tables(self, name),
            ..NodePlan::default()
        };
        let mtus: BTreeMap<&IpNet, u32> = self
            .peers
            .values()
            .flat_map(|peer| &peer.mtus)
            .map(|(prefix, mtu)| (prefix, *mtu))
            .collect();
        for destination in self.remote() {
            let mtu = mtus.get(&destination).copied();
            let is_v4 = destination.addr().is_ipv4();
            let source = this.address(is_v4);
            let to_gateway = |gateway: &str| {
                let hop = self.nodes.get(gateway)?.next_hop(is_v4)?;
                Some(NextHop::Overlay {
                    hop,
                    source,
                    mtu: Some(mtu.unwrap_or(self.mtu)),
                })
            };
            let usual = if is_gateway {
                Some(NextHop::Tunnel { source, mtu })
            } else {
                nearest.and_then(|(first, _)| to_gateway(first))
            };
            plan.routes.push(Route {
                destination,
                table: None,
                next: NextHop::Unreachable,
            });
            plan.routes.extend(usual.map(|next| Route {
                destination,
                table: None,
                next,
            }));
            for (other, gateway) in self
                .gateways()
                .into_iter()
                .filter(|one| Some(*one) != nearest)
            {
                let next = to_gateway(other);
                plan.routes.extend(next.map(|next| Route {
                    destination,
                    table: Some(gateway.table()),
                    next,
                }));
                let rule = MarkRule::to_gateway(gateway, !is_v4);
                if !plan.rules.contains(&rule) {
                    plan.rules.push(rule);
                }
            }
        }
        if let Some(gateway) = this.gateway {
            self.add_routes_to_nodes(name, gateway, &mut plan);
        }
        plan
    }

    fn node_overlay(&self, name: &str, this: &FabricNode) -> Option<Overlay> {
        // Nodes that are no gateways do not talk to each other here.
        let others = self.nodes.iter().filter(|(other, node)| {
            *other != name && (node.gateway.is_some() || this.gateway.is_some())
        });
        let is_v4 = self.overlay_is_v4();
        let local = this.address(is_v4)?;
        let families = [true, false].map(|is_v4| (is_v4, self.has_remote(is_v4)));
        let mut neighbours = Vec::new();
        for (_, node) in others {
            let Some(outer) = node.address(is_v4) else {
                continue;
            };
            let hops = families
                .iter()
                .filter(|(_, has_remote)| *has_remote)
                .filter_map(|(is_v4, _)| node.next_hop(*is_v4));
            neighbours.push(Neighbour {
                outer,
                mac: node.mac,
                hops: hops.collect(),
            });
        }
        (!neighbours.is_empty()).then_some(Overlay {
            local,
            mac: this.mac,
            mtu: self.mtu,
            neighbours,
        })
    }

    /// Sends packets from peers to the other nodes over the overlay: strict checks of the return
    /// path (`rp_filter`) there require it.
    fn add_routes_to_nodes(&self, name: &str, gateway: FabricGateway, plan: &mut NodePlan) {
        let reached: Vec<MacAddress> = plan
            .overlay
            .iter()
            .flat_map(|overlay| &overlay.neighbours)
            .map(|one| one.mac)
            .collect();
        let others: Vec<&FabricNode> = self
            .nodes
            .iter()
            .filter(|(other, node)| *other != name && reached.contains(&node.mac))
            .map(|(_, node)| node)
            .collect();
        for is_v4 in [true, false]
            .into_iter()
            .filter(|is_v4| self.has_remote(*is_v4))
        {
            let before = plan.routes.len();
            for (node, hop) in others
                .iter()
                .filter_map(|node| Some((node, node.next_hop(is_v4)?)))
            {
                let pods = node
                    .pods
                    .iter()
                    .copied()
                    .filter(|prefix| prefix.addr().is_ipv4() == is_v4);
                plan.routes
                    .extend(
                        pods.chain(node.address(is_v4).map(IpNet::from))
                            .map(|destination| Route {
                                destination,
                                table: Some(gateway.table()),
                                next: NextHop::Overlay {
                                    hop,
                                    source: None,
                                    mtu: None,
                                },
                            }),
                    );
            }
            plan.rules.extend(
                (plan.routes.len() > before).then(|| MarkRule::from_tunnel(gateway, !is_v4)),
            );
        }
    }
}

#[cfg(test)]
mod tests;

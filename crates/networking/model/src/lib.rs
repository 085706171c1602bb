//! The model of the network between clusters: how addresses translate, and what each node's kernel
//! should contain. Pure: it calls nothing, and times are arguments.
//!
//! Each cluster has its own address space, and clusters with the same pod range are the usual case.
//! Each cluster *exports* prefixes: its pods, and a small *external* prefix whose addresses stand
//! for single other addresses, such as that of an API server. The importing cluster chooses where
//! in its own address space a prefix appears (its *view*), and announces that to the exporter,
//! which translates in both directions. So each side's routes and filters only contain its own
//! address space, the host part of an address does not change, and nothing is stored for each pod.
//!
//! ```text
//!    rome: pods 10.244/16                                       milan: pods 10.244/16
//!    sees milan's pods as 10.71/16                              sees rome's pods as 10.245/16
//!
//!    pod 10.244.0.5 --> 10.71.0.9 ==> gateway ==============> gateway ==> pod 10.244.0.9
//!                                     source becomes            destination becomes
//!                                     10.245.0.5                10.244.0.9
//!                                     (what milan calls it)     (what it really is)
//! ```
//!
//! A hub that lets its peers reach each other exports to one what it imported from another; nothing
//! else changes.
//!
//! Network negotiation calls [`allocator`] and [`negotiation`], and stores the result in
//! `TunnelEndpoint`s. `liqo-fabric` makes a [`fabric::Fabric`] of these and computes each node's
//! [`node_plan::NodePlan`], which `liqo-datapath` applies. Offloading translates addresses of pods
//! with [`PeerMaps`].
//!
//! | module | question |
//! |---|---|
//! | [`space`], [`map`] | how does a peer see an address, and the other way round? Read these first |
//! | [`allocator`] | where in our address space does a peer's prefix appear? |
//! | [`negotiation`] | what do two clusters announce to each other, and what follows? |
//! | [`gateways`] | which nodes are gateways, and when does a gateway count as lost? |
//! | [`spread`] | which of several gateways carries a packet? |
//! | [`fabric`] | what do all nodes have to know? |
//! | [`node_plan`], [`ruleset`] | which links, routes, rules and nftables does a node need? |

#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::string_slice, clippy::expect_used)
)] // It reads what peers write.

pub mod allocator;
pub mod fabric;
#[cfg(test)]
mod fixtures;
pub mod gateways;
pub mod map;
pub mod negotiation;
pub mod node_plan;
pub mod ruleset;
pub mod space;
pub mod spread;

pub use map::{ExternalAddresses, InvalidMap, PeerMaps, PrefixMap};
pub use space::{Here, There};

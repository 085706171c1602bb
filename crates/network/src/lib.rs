//! The network between clusters: which address is what for whom, and what each node's kernel has to hold for it.
//!
//! Every cluster has an address space of its own, and no two ever have to agree on anything: clusters with the same pod range
//! are the usual case. Each cluster *exports* prefixes (its pods, and a small *external* prefix for everything else that may be
//! reached or stands behind a node). Whoever imports one chooses where in its own space it appears (its *view*), and tells the
//! exporter, which translates in both directions. So each side's routes and filters see its own space only, host parts stay what
//! they are, and nothing is held per pod.
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
//! A hub that lets its peers reach each other exports to one what it imported from another; nothing else changes.
//!
//! Everything here is pure: [`allocator`] chooses views, [`negotiation`] says what two clusters have to tell each other, [`map`] answers how a peer sees an address and back, [`spread`] which
//! of several gateways carries a packet, and [`plan`] says what a node is to hold: links, routes, rules, and the text of its nftables ([`ruleset`]).

pub mod allocator;
#[cfg(test)]
mod fixtures;
pub mod map;
pub mod negotiation;
pub mod plan;
pub mod ruleset;
pub mod space;
pub mod spread;

pub use map::{Externals, InvalidMap, PeerMaps, PrefixMap};
pub use space::{Here, There};

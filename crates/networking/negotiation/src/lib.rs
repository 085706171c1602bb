//! Network negotiation: two clusters agree on their networks.
//!
//! The leader of the controller manager calls [`run`]. It finds out this cluster's own ranges and
//! gateways. It announces to each peer which prefixes the peer may reach, where it sees the peer's
//! prefixes, and where its tunnel ends. Both announcements together become a `TunnelEndpoint`:
//! `liqo-fabric` applies it to the nodes of this cluster, and offloading translates addresses of
//! pods by it. This crate sends no packets and changes no node.
//!
//! ```text
//!   consumer                                                     provider
//!
//!   ranges, Leases of gateways                                   ranges, Leases of gateways
//!        |                                                             |
//!     decide --------> spec.announcement of NetworkConfig ---------> decide
//!        |  <--------- status.announcement, in the tenant namespace -- |
//!        v                                                             v
//!   TunnelEndpoint, conditions of the ForeignCluster             the same
//! ```
//!
//! There are no rounds: each side writes its own announcement and reads the other's. While a peer's
//! announcement is missing or cannot be read, its `TunnelEndpoint` stays. It is deleted when the
//! peer withdraws its announcement, announces something invalid, or the peering ends. Allocated
//! prefixes are stored in the `TunnelEndpoint`, so they are the same after a restart.
//!
//! Read `decide/exchange.rs` first: it computes our announcement to each peer, and the
//! `TunnelEndpoint`.
//!
//! | module | what it does |
//! |---|---|
//! | `controller` | watches, decides, and writes `TunnelEndpoint`s and conditions |
//! | `announcements` | reads and writes both halves of each `NetworkConfig` |
//! | `pods_between` | asks whether pods of one cluster run at the other: then prefixes must not move |
//! | `range_discovery` | finds out the ranges of this cluster |
//! | `decide` | the pure decisions; times are arguments |

#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::string_slice, clippy::expect_used)
)] // It reads what peers write.

mod announcements;
mod controller;
mod decide;
mod pods_between;
mod range_discovery;

pub use controller::run;

/// Field manager of everything that this crate writes. It is stored in objects, so it keeps the
/// crate's former name.
const FIELD_MANAGER: &str = liqo_api::conditions::owners::NETWORK.field_manager;

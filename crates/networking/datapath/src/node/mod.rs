//! Brings a node's kernel to the wanted state: the overlay, routes, rules and nftables.
//!
//! ```text
//!   liqo_network_model::node_plan::NodePlan --(wanted)--+
//!                                                       +--> steps: what to add, change, remove --> Links, Routes, Firewall
//!   kernel --(present: only what is ours)---------------+
//! ```
//!
//! Marks tell what is ours: the names of devices and tables, the protocol number of routes and
//! rules. [`NodeKernel::apply`] removes what is ours and not wanted, and never touches anything
//! else. When nothing differs, it changes nothing.
//!
//! The order of the steps matters. Tables come before the routes that they guard, and are removed
//! after them. Unreachable routes come before the others: they hold packets back while a device is
//! missing.

mod apply;
mod connections;
mod error;
mod fake;
mod firewall;
mod links;
mod routes;
mod steps;

pub use apply::NodeKernel;
pub use connections::{PrefixPair, allow_gaps};
pub use error::NodeError;
pub use fake::FakeKernel;
pub use firewall::{Firewall, FirewallError, Nft, TableName};
pub use links::{Links, NeighbourEntry, NetlinkLinks};
pub use routes::{NetlinkRoutes, Routes};
pub use steps::{KernelState, KernelStep, steps_between};

#[cfg(test)]
mod tests;

//! The decisions: pure, with times as arguments.

pub mod announced_gateways;
mod behind;
mod direct;
pub mod exchange;
pub mod links;
mod mtu;
pub mod ranges;
pub mod snapshot;

//! The decisions: pure, with times as arguments. `exchange` decides about each peer, from the
//! `snapshot`; the other modules compute parts of an announcement, or the conditions (`links`).

pub mod announced_gateways;
mod behind;
mod direct;
pub mod exchange;
pub mod links;
mod mtu;
pub mod ranges;
pub mod snapshot;

//! The decisions: pure, with times as arguments.

pub mod announced_gateways;
pub mod exchange;
pub mod links;
pub mod ranges;

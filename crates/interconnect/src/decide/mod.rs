//! What is decided: pure, with time as an argument.

pub mod exchange;
pub mod gateways;
pub mod links;
pub mod ranges;

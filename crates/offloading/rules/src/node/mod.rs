//! The Node object of a virtual node.

pub mod difference;
pub mod object;
pub mod priced;

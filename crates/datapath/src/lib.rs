//! The data path.

pub mod node;

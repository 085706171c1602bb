//! The rules, as pure functions.

pub mod homecoming;
pub mod machine;
pub mod namespaces;
pub mod obstacles;
pub mod refusals;

//! Namespaces: where they are offloaded, and what the provider creates for them.

pub mod lent_on;
pub mod manifests;
pub mod mapped;
pub mod mapping;
pub mod node_selector;
pub mod placement;
pub mod unoffloaded;

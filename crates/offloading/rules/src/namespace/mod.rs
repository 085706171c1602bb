//! Namespaces: where they are offloaded, and what the provider creates for them.
//!
//! Consumer: `placement` decides which namespaces should exist at which provider, by
//! `node_selector`; `unoffloaded` finds pods that came too late. Provider: `mapping` decides which
//! mapped namespaces to create and delete, `manifests` what is in them, `mapped` describes one.
//! Broker: `brokered` offloads a mapped namespace to the next provider.

pub mod brokered;
pub mod manifests;
pub mod mapped;
pub mod mapping;
pub mod node_selector;
pub mod placement;
pub mod unoffloaded;

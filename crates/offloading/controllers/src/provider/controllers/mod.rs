//! One controller for each kind of thing that the provider reconciles.

pub mod fan_out;
pub mod namespaces;
pub mod offers;
pub mod replicas;
pub mod shadow_pods;

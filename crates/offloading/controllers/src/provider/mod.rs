//! The provider's side: what consumers ask for in their tenant namespaces becomes namespaces, pods and objects here.
//!
//! ```text
//!   tenant namespace of a consumer             mapped namespaces of that consumer
//!
//!   NamespaceMap  --- controllers::namespaces -->  Namespace, with role bindings, limits and isolation
//!   ShadowPod     --- controllers::shadow_pods ->  Pod        (after admission against the ResourceOffer)
//!   ShadowPod.status <-----------------------------Pod.status
//!   ReflectedObject, Secret
//!                 --- controllers::replicas ---->  ConfigMap, Secret, Service, EndpointSlice, Ingress, NetworkPolicy
//!
//!   remote pods that are gone, and those that run at the end of a period
//!                 --- metered_pods ---------->  UsageRecord in the tenant namespace, where there is a contract
//!
//!   PeeringPolicy --- what all of these may be and use (controllers::fan_out)
//!   ResourceOffer --- which pods are admitted, and which must end (controllers::offers)
//! ```
//!
//! [`state`] holds the caches and indexes that all controllers read. [`triggers`] decides which keys are enqueued after a change. The
//! controllers in `controllers` import the state and the rules of `liqo-offloading-rules`, never each other.
//!
//! Ownership is derived from the namespace of an object, never from its contents. The provider trusts nothing that a consumer writes: it
//! checks names, pods and objects again. What a consumer may write at all is a matter of RBAC: the rules are in
//! `deploy/liqo/rbac-bound.yaml`, and `crates/peering/src/objects.rs` binds them in each tenant namespace and limits the numbers.

mod controllers;
mod metered_pods;
mod resolver;
mod shadow_index;
mod state;
mod triggers;

use std::sync::Arc;

use controllers::{fan_out, namespaces, offers, replicas, shadow_pods};
pub use state::{Provider, RemotePods};

/// Runs the provider's side until the context's `stop`.
pub async fn run(provider: Provider) {
    let (stop, provider) = (provider.context.stop.clone(), Arc::new(provider));
    if stop.run_until_cancelled(provider.synced()).await != Some(true) {
        return;
    }
    // Which pods must end is known before the first of them is reconciled.
    let offers = offers::Controller::new(provider.clone());
    let side = Arc::new(metered_pods::ProviderSide(provider.clone()));
    tokio::join!(
        provider.recorder.clone().run(side),
        offers.run(),
        namespaces::run(provider.clone()),
        shadow_pods::run(provider.clone()),
        replicas::run(provider.clone()),
        fan_out::run(provider.clone()),
    );
}

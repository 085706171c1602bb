//! The provider's side: turns what consumers write into their tenant namespaces into namespaces,
//! pods and objects here.
//!
//! ```text
//!   tenant namespace of a consumer                     mapped namespaces of that consumer
//!   NamespaceMap            ── namespaces ────▶        Namespace, with role bindings, limits and isolation
//!   ShadowPod               ── shadow_pods ───▶        Pod, if the ResourceOffer has room; its status goes back
//!   ReflectedObject, Secret ── replicas ──────▶        ConfigMap, Secret, Service, Ingress, NetworkPolicy, ...
//!   ResourceOffer           ── offers ────────▶        which pods must end
//!   UsageRecord             ◀─ metered_pods ───        pods that ended, or run when a period of a contract ends
//! ```
//! [`state`] holds caches and indexes, [`triggers`] decides which keys a change enqueues, and
//! `controllers` has the controllers above; `fan_out` finds the keys when a policy changes.
//! Ownership is derived from the namespace of an object, never from its contents. The provider
//! checks everything that a consumer writes. RBAC limits what it may write at all:
//! `deploy/liqo/rbac-bound.yaml`, which `crates/peering/src/decide/manifests.rs` binds in each
//! tenant namespace.

mod controllers;
mod metered_pods;
mod resolver;
mod shadow_index;
mod state;
mod triggers;

use std::sync::Arc;

use controllers::{fan_out, namespaces, offers, replicas, shadow_pods};
pub use state::{ProviderState, RemotePods};

/// Runs the provider's side until the context's `stop`.
pub async fn run_provider(provider: ProviderState) {
    let (stop, provider) = (provider.context.stop.clone(), Arc::new(provider));
    if stop.run_until_cancelled(provider.synced()).await != Some(true) {
        return;
    }
    // Which pods must end is known before the first of them is reconciled.
    let offers = offers::OfferAccountController::new(provider.clone());
    let side = Arc::new(metered_pods::ProviderMetering(provider.clone()));
    tokio::join!(
        provider.recorder.clone().run(side),
        offers.run(),
        namespaces::run_controller(provider.clone()),
        shadow_pods::run_controller(provider.clone()),
        replicas::run_controller(provider.clone()),
        fan_out::run_controller(provider.clone()),
    );
}

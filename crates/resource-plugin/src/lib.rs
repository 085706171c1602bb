//! The protocol between Liqo and resource plugins: an SDK for authors of plugins, and the client
//! that Liqo uses.
//!
//! A plugin is a separate program that decides how much a cluster lends to each of its peers;
//! without one, the rules of a `PeeringPolicy` decide. It implements [`ResourceSource`], which
//! returns what one peer is offered, reports when that changes, and is told when a peering has
//! ended. Liqo's part that calls it over gRPC is `crates/sharing/src/plugins.rs`. The programs in
//! `plugins/` are examples, and `docs/tutorials/write-a-resource-plugin.md` is the guide.
//!
//! ```text
//!   Liqo                                              the plugin
//!
//!   PluginClient ── ReadResources(cluster) ─────────▶ Server ── read ──▶ ResourceSource
//!        │       ◀──────────────── pools ────────────    │   ◀─ pools ──  (yours)
//!        │                                               │
//!        │       ── Subscribe ──────────────────────▶    │
//!        │       ◀────────── changed, changed, ... ──    │   ◀─ changes ─
//!        │                                               │
//!        └─────── RemoveCluster(cluster) ───────────▶    └── removed ─▶
//! ```
//!
//! `cluster` is the ID of a peer. An answer contains [`Pool`]s: each becomes one virtual node at
//! that peer. A notification contains no amounts. It only makes Liqo read again, so a lost or
//! repeated notification does no harm. The protocol has three [`Generation`]s, those of three
//! ranges of versions of Liqo, with the same paths. They differ in the bytes of one answer
//! ([`wire`]).
//!
//! Read `source.rs` first, then [`model`]. `server` and `client` are the two ends.
//!
//! # A plugin
//! This is a complete plugin. `cargo run --example one_gpu_for_each` runs it.
//! ```no_run
#![doc = include_str!("../examples/one_gpu_for_each.rs")]
//! ```
//! [`serve`] adds flags ([`Options`]), health checks, reflection, metrics and an orderly shutdown.
//!
//! # The client
//! [`PluginClient`] also implements [`ResourceSource`]. It works while the plugin is away, too: its calls end within a
//! deadline, with an error that names the plugin and the cluster. It keeps trying to subscribe, and reports
//! [`Change::All`] each time it has subscribed again.
//!
//! # Features
//! `kubernetes`: a client of the cluster's API server, for plugins that use it.

#![warn(missing_docs)]

pub mod arguments;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod model;
pub mod selector;
pub mod wire;

mod changes;
mod client;
mod codec;
mod server;
mod source;

pub use async_trait::async_trait;
pub use changes::{Announcer, ChangeStream};
pub use client::{
    AddressError, CallFault, ClientTls, ClientTlsError, LARGEST_ANSWER, Pem, PluginClient,
    PluginError, Settings, SubscriptionState,
};
pub use model::{Change, Pool, Prices};
pub use server::{DEFAULT_PORT, Options, ServeError, Server, serve};
pub use source::{ResourceSource, SourceError};
pub use wire::Generation;

//! The protocol between Liqo and resource plugins: an SDK for authors of plugins, and the client that Liqo uses.
//!
//! A *source* decides how much a cluster lends to each of its peers. Some sources are built into Liqo; others are plugins: separate
//! programs that Liqo calls over gRPC. Both implement [`ResourceSource`]: it returns what a cluster is offered, reports when that changes,
//! and is told when a peering has ended.
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
//! A notification contains no amounts. It only makes Liqo read again, so a lost or repeated notification does no harm. The protocol has
//! three [`Generation`]s with the same paths. They differ in the bytes of one answer ([`wire`]).
//!
//! # A plugin
//! This is a complete plugin. `cargo run --example one_gpu_for_each` runs it.
//! ```no_run
#![doc = include_str!("../examples/one_gpu_for_each.rs")]
//! ```
//! [`serve`] adds flags ([`Options`]), health checks, reflection, metrics and an orderly shutdown.
//!
//! # The client
//! [`PluginClient`] works while the plugin is away, too. Its calls end within a deadline, with an error that names the plugin and the
//! cluster. It keeps trying to subscribe, and reports [`Change::All`] each time it has subscribed again.
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
pub use changes::{Announcer, Changes};
pub use client::{AddressError, Fault, LARGEST_ANSWER, Pem, PluginClient, PluginError, Settings, State, Tls, TlsError};
pub use model::{Change, Pool, Prices};
pub use server::{DEFAULT_PORT, Options, ServeError, Server, serve};
pub use source::{ResourceSource, SourceError};
pub use wire::Generation;

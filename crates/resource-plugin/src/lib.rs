//! The protocol between Liqo and resource plugins: for those who write a plugin, and for Liqo, which asks them.
//!
//! How much a cluster lends to each of its peers is decided by a *source*. Some are built into Liqo; others are programs of
//! their own, plugins, that Liqo asks over gRPC. Both are a [`ResourceSource`]: it says what a cluster is offered, tells when
//! that has changed, and hears when a peering ended.
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
//! News carry no amounts: they only make the other end read again, so losing or doubling one does no harm. The protocol has
//! three [`Generation`]s, which answer at the same paths and differ in the bytes of one answer ([`wire`]).
//!
//! # A plugin
//! All of it; `cargo run --example one_gpu_for_each` serves it.
//! ```no_run
#![doc = include_str!("../examples/one_gpu_for_each.rs")]
//! ```
//! [`serve`] brings along the flags ([`Options`]), health checks, reflection, metrics and an orderly end.
//!
//! # The other end
//! [`PluginClient`] needs no plugin to be there. Its calls end in time, with an error that names plugin and cluster; its
//! subscription is tried again for ever, and says [`Change::All`] each time that the plugin was found again.
//!
//! # Features
//! `kubernetes`: a client of the cluster's API server, for plugins that look at it.

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
pub use model::{Change, Pool};
pub use server::{DEFAULT_PORT, Options, ServeError, Server, serve};
pub use source::{ResourceSource, SourceError};
pub use wire::Generation;

//! The code that all of Liqo's controllers share: watches, queues, clients for peers, writes,
//! leader election.
//!
//! Peering, sharing, network negotiation, offloading and tethering build their controllers from it.
//! `liqo-fabric`, the DNS resolver and two resource plugins use its watches, `liqoctl` its
//! evictions. It has no rules about pods, offers or networks: each crate decides for itself. Every
//! controller has the same shape:
//!
//! ```text
//!   watch ----> Cache -----------> Queue of keys ----> reconcile(key)
//!   API server  only the fields    each key once,      snapshot -> decide (pure) -> act
//!   here or     that the           never twice at
//!   at a peer   controller needs   the same time
//! ```
//!
//! A reconcile depends only on the current state. It may run at any time, twice, or after a
//! restart, and writes nothing if nothing has to change. Read [`cache`] and [`queue`] first; the
//! controller in `crates/peering/src/lifecycle.rs` uses both.
//!
//! **Read objects**
//! * [`cache`]: a watch that keeps a reduced copy of each object, and reports which keys changed,
//!   including deletions. [`informers`]: one watch of a kind for several caches.
//! * [`follow`]: a watch of the events at a provider, which reports them and stores none.
//! * [`unread`]: objects that peers may have written, parsed one by one: one bad object does not
//!   fail a whole list.
//! * [`foreign_clusters`], [`policies`]: which object applies to a peer, if there are several.
//! * [`peers`]: the clusters that this cluster borrows from, with a client for each. Peering fills
//!   it, the others use it.
//! * [`provider_limits`]: limits on what one provider can make this process read and keep.
//!
//! **Decide when to work**
//! * [`queue`]: keys to reconcile, without duplicates, with a back-off for each key.
//! * [`batches`]: how long to collect changes before they are processed together.
//! * [`watch`]: a channel for the latest value. It has nothing to do with watches of the API
//!   server.
//!
//! **Write objects**
//! * [`writes`]: creates, deletes, handles finalizers; the error of a step. [`put`]: replaces a
//!   spec or a status.
//! * [`conditions`]: writes conditions, only if they changed. [`events`]: one that repeats soon is
//!   only counted.
//! * [`departures`]: makes a pod leave, as its cause says. [`eviction`]: the request that respects
//!   disruption budgets.
//!
//! **Ask others**
//! * [`dns`]: one question to one DNS server.
//!
//! **Run a process**
//! * [`leader`]: leader election. [`start`]: tries again what a program needs to start.
//!   [`metrics`]: for Prometheus.
//! * [`context`]: what each part of the manager gets: client, clock, network, configuration. Tests
//!   replace [`clock`] and [`network`]. `process` (a feature): logs, signals and the health server.
//!   `http1` (the feature `http`): answers strangers, with bounds.

pub mod batches;
pub mod cache;
pub mod clock;
pub mod conditions;
pub mod context;
pub mod departures;
pub mod dns;
pub mod events;
pub mod eviction;
pub mod follow;
pub mod foreign_clusters;
#[cfg(feature = "process")]
mod health;
#[cfg(feature = "http")]
pub mod http1;
pub mod informers;
pub mod leader;
pub mod metrics;
pub mod network;
pub mod peers;
pub mod policies;
#[cfg(feature = "process")]
pub mod process;
pub mod provider_limits;
pub mod put;
pub mod queue;
pub mod start;
pub mod unread;
pub mod watch;
pub mod writes;

pub use batches::Batches;
pub use cache::Cache;
pub use clock::Clock;
pub use context::Context;
pub use informers::Informers;
pub use liqo_api::Key;
pub use network::{Network, Tcp};
pub use peers::{ConnectionHealth, PeerConnection, Peers};
pub use provider_limits::ProviderLimits;
pub use queue::{Queue, Requeue};

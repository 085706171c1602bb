//! The code that all of Liqo's controllers share.
//!
//! Every controller has the same four steps, and this crate contains their common parts:
//!
//! ```text
//!   watch ----> Cache (reduced) ----> Queue of keys ----> reconcile(key)
//!   kube API    what the controller   each key once,      snapshot -> decide (pure) -> act
//!   or a peer's needs, no more        never twice at
//!                                     the same time
//! ```
//!
//! * [`cache`]: a watch that keeps a reduced copy of each object and reports which keys changed, including deletions.
//! * [`follow`]: a watch of Kubernetes events at a provider, which keeps none.
//! * [`unread`]: parses objects that peers wrote one by one, so that no object spoils a list.
//! * [`queue`]: keys to reconcile, deduplicated, with back-off for each key; never the same key twice at the same time.
//! * [`peers`]: the clusters that we borrow from, with a client for each. Peering fills it, the other parts use it.
//! * [`provider_limits`]: what a provider can make this process read and keep.
//! * [`foreign_clusters`], [`policies`]: which object counts for a peer, if there are several.
//! * [`conditions`], [`events`]: inform the user, without a write when nothing changed.
//! * [`eviction`]: evicts pods as disruption budgets allow.
//! * [`put`]: writes what one controller owns completely.
//! * [`batches`]: how long changes are collected before they are processed together.
//! * [`writes`]: creates, deletes, handles finalizers; the error of a step.
//! * `process`: logs, signals and the health server of a program (feature `process`).
//! * [`start`]: tries again what a program needs to start.
//! * [`leader`]: leader election.
//! * [`watch`]: a channel for the latest value.
//! * [`context`]: what every part gets when it starts.
//! * [`clock`]: the time of day. [`network`]: whom a process calls, and where it listens.
//!
//! A reconcile depends only on the current state. It may run at any time, twice, or after a restart, and then does nothing if nothing
//! is to do.

pub mod batches;
pub mod cache;
pub mod clock;
pub mod conditions;
pub mod context;
pub mod departures;
pub mod events;
pub mod eviction;
pub mod follow;
pub mod foreign_clusters;
#[cfg(feature = "process")]
mod health;
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
pub use liqo_api::Key;
pub use network::{Network, Tcp};
pub use peers::{Health, PeerConnection, Peers};
pub use provider_limits::ProviderLimits;
pub use queue::{Next, Queue};

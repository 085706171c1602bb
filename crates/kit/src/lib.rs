//! What all of Liqo's controllers share.
//!
//! A controller here is always the same four steps, and this crate holds the parts that are alike everywhere:
//!
//! ```text
//!   watch ----> Cache (reduced) ----> Queue of keys ----> reconcile(key)
//!   kube API    what the controller   each key once,      snapshot -> decide (pure) -> act
//!   or a peer's needs, no more        never twice at
//!                                     the same time
//! ```
//!
//! * [`cache`]: a watch that keeps a reduced copy of each object and tells which key changed, deletions included.
//! * [`unread`]: what peers wrote, read one by one, so that nothing they write spoils a list.
//! * [`queue`]: keys to look at, deduplicated, with per-key back-off; one worker at a time for each key.
//! * [`peers`]: the clusters that we borrow from, with a client for each; filled by peering, used by the other slices.
//! * [`foreign_clusters`]: which object stands for a peer, should there be several.
//! * [`conditions`], [`events`]: telling the user, without a write when nothing changed.
//! * [`put`]: writing what one controller owns wholly.
//! * [`reflection`]: which Services other clusters get to know.
//! * [`requests`]: what a pod asks of a node, as the scheduler counts it.
//! * [`leader`]: one active manager.
//! * [`context`]: what every slice is given when it starts.
//!
//! A reconcile looks only at the present state. It may be called at any time, twice, or after a restart, and then does
//! nothing if nothing is to be done.

pub mod cache;
pub mod conditions;
pub mod context;
pub mod events;
pub mod foreign_clusters;
pub mod leader;
pub mod metrics;
pub mod peers;
pub mod policies;
pub mod put;
pub mod queue;
pub mod reflection;
pub mod requests;
pub mod unread;

pub use cache::{Cache, Key};
pub use context::Context;
pub use peers::{Health, PeerConnection, Peers};
pub use queue::{Next, Queue};

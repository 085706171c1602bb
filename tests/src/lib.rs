//! What the scenarios share: clusters, the programs that a user would use, and waiting for
//! something to happen.
//!
//! ```text
//!   scenarios/*.rs ---> World ---> rome   borrows from milan
//!                        |         turin  borrows from milan, too
//!                        |         milan  lends
//!                        +-------> kubectl, liqoctl: run as a user would run them
//! ```
//!
//! All scenarios of a set share its clusters. Each has its own namespace and leaves the peerings as
//! it found them. [`Baseline`] cleans up after scenarios that failed.

pub mod attacks;
mod baseline;
mod cluster;
pub mod compare;
pub mod docs;
mod get;
pub mod load;
mod measurement;
pub mod turns;
mod wait;
mod world;

pub use baseline::Baseline;
pub use cluster::{Cluster, Output, SHORT_LIVED, is_ready};
pub use measurement::Measurement;
pub use wait::{PATIENCE, eventually, still};
pub use world::{Built, Clusters, Fixture, World};

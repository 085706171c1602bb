//! What the scenarios share: clusters to run in, the programs that a user would use, and waiting for what is to happen.
//!
//! ```text
//!   scenarios/*.rs ---> World ---> rome   borrows from milan
//!                        |         turin  borrows from milan, too
//!                        |         milan  lends
//!                        +-------> kubectl, liqoctl: run as a user would run them
//! ```
//!
//! One set of clusters serves all scenarios, one after another. Each scenario has a namespace of its own and leaves the
//! peerings as it found them.

mod cluster;
mod wait;
mod world;

pub use cluster::{Cluster, Output};
pub use wait::{eventually, still};
pub use world::{Clusters, World};

//! The working modes of a cluster: autonomous, or tethered to one peer that controls it.
//!
//! A tethered cluster offers everything that it has to its peer, and the pods of its users run
//! where the peer's scheduler puts them. This crate holds the state machine of the mode and writes
//! its state into the status of the `ClusterConfig`. While the peer decides, it offloads the
//! namespaces of users to the peer. Afterwards it brings pods home.
//!
//! ```text
//!   ClusterConfig.spec.tethering ───────▶ mode ── decide::machine ──▶ ClusterConfig.status.tethering: the state
//!   ForeignClusters, offers, requests, ─▶                               │
//!   virtual nodes, pods                                                 ├─▶ namespaces: which ones are offloaded
//!                                                                       ├─▶ homecoming: evicts pods at the peer
//!                                                                       ├─▶ refusals: makes controllers try again
//!                                                                       ├─▶ liqo-sharing: what to ask and to offer
//!                                                                       └─▶ ValidatingAdmissionPolicy liqo-tethered
//! ```
//!
//! Other parts of Liqo read only the state: everything else follows from it. The question to the
//! peer is a field of the `ResourceRequest`; its answer arrives as the condition `TetheringGranted`
//! of the `ForeignCluster`. `liqo-sharing` writes both here, and the answer at the peer.
//!
//! The rules are in [`decide`], as pure functions. Read `decide::machine` first. The other modules
//! read, call and write:
//! - `mode`: the controller of the state, its only writer,
//! - `namespaces`: the controller of the `NamespaceOffloading`s of users' namespaces,
//! - `homecoming`: evicts pods when control is back, one at a time for each controller,
//! - `refusals`: wakes controllers whose pods the API server refused before,
//! - `cluster`: the caches that they share.
//!
//! The leader of the manager calls [`run_controllers`]. docs/reference/tethering.md shows the modes to users.

pub mod decide;

mod cluster;
mod homecoming;
mod mode;
mod namespaces;
mod refusals;

use liqo_controller_runtime::{Context, writes::StepError};

use cluster::ClusterCaches;

/// A request to the API server failed. The queue tries again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Request(#[from] StepError),
}

/// Keeps the mode and what follows from it until `context.stop`. Only the leader may run it.
pub async fn run_controllers(context: Context) -> Result<(), Error> {
    let cluster = ClusterCaches::start_watches(&context);
    if !cluster.synced().await {
        return Ok(());
    }
    tokio::join!(
        mode::run_controller(cluster.clone()),
        namespaces::run_controller(cluster.clone()),
        homecoming::run_controller(cluster.clone()),
        refusals::run_controller(cluster)
    );
    Ok(())
}

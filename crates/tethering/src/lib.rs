//! The working modes of a cluster: autonomous, or tethered to one peer that controls it.
//!
//! A tethered cluster offers everything that it has to its peer, and the pods of its users run where the peer's scheduler puts them. This
//! crate holds the state machine of the mode, writes its state into the status of the `ClusterConfig`, offloads the namespaces of users
//! while the peer decides, and brings pods home afterwards. All else follows from the state: sharing reads what to offer and to accept,
//! and the admission policy `liqo-tethered` what to refuse.
//!
//! ```text
//!   ClusterConfig.spec.tethering ──▶ mode ──▶ decide::machine ──▶ ClusterConfig.status.tethering
//!   peers, offers, virtual nodes ──▶   │                                │            │
//!                                      │                   namespaces ◀─┘            ├──▶ sharing: offers, requests
//!                                      └── away, guests ◀─ homecoming                └──▶ ValidatingAdmissionPolicy
//! ```
//!
//! The rules are in [`decide`], as pure functions; the other modules read, call and write:
//! - `mode`: the controller of the state, its only writer,
//! - `namespaces`: the controller of the `NamespaceOffloading`s of users' namespaces,
//! - `homecoming`: evicts pods when control is back, of each controller one at a time,
//! - `refusals`: wakes controllers whose pods were refused before.

pub mod decide;

mod cluster;
mod homecoming;
mod mode;
mod namespaces;
mod refusals;

use liqo_controller_runtime::{Context, writes::StepError};

use cluster::Cluster;

/// A request to the API server failed. The queue tries again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Request(#[from] StepError),
}

/// Keeps the mode and what follows from it until `context.stop`. Only the leader may run it.
pub async fn run(context: Context) -> Result<(), Error> {
    let cluster = Cluster::watch(&context);
    if !cluster.synced().await {
        return Ok(());
    }
    tokio::join!(
        mode::run(cluster.clone()),
        namespaces::run(cluster.clone()),
        homecoming::run(cluster.clone()),
        refusals::run(cluster)
    );
    Ok(())
}

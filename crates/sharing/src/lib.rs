//! Sharing: how one cluster lends resources to another, from the request to the virtual node.
//!
//! The consumer writes a `ResourceRequest` into its tenant namespace at the provider. The provider
//! computes what its nodes have free, takes the percentage that its `PeeringPolicy` shares, splits
//! it between all consumers that requested something, and answers with a `ResourceOffer` for each
//! pool. The consumer checks the offer, keeps a copy, and creates a `VirtualNode` from it. When the
//! provider's free resources change, the offer changes, and the virtual node follows.
//!
//! ```text
//!   consumer (consumer.rs)                          provider (provider.rs)
//!
//!   ForeignCluster.spec.request                     nodes, pods ───▶ source: free resources
//!        │                                                              │
//!        └───────▶ ResourceRequest ────────────────────────────▶  shares, ledger: split between all requests
//!                                                                       │
//!   VirtualNode ◀─── judge ◀─── ResourceOffer ◀─────────────────  publish: writes only relevant changes
//!                      │
//!                      ├──────▶ phase Accepted or Refused
//!                      └──────▶ copy of the offer, in the provider namespace
//! ```
//!
//! Each change triggers a new computation of all offers from the caches: there is no running total
//! that could drift. The leader of the manager calls [`run_controllers`]. It starts these modules,
//! which read, call the rules and write:
//! - `provider`: writes offers, the answers to requests, and the status of policies,
//! - `consumer`: writes requests, answers to offers, and virtual nodes,
//! - `provider/contracts`, `consumer/contracts`: write contracts and the answers to them;
//!   `breach_reports` reports breaches,
//! - `metering`: writes and answers receipts; its [`PeeringArchiver`] copies what has to stay when a
//!   peering ends,
//! - `isolation`: tests whether the pod network enforces `NetworkPolicies`, without which nothing
//!   is offered,
//! - `plugins`: asks the resource plugins that policies name,
//! - `peer_conditions`: writes the conditions of each `ForeignCluster`, for both sides.
//!
//! `triggers` says which change makes which of them look.
//!
//! Read [`decide`] first: the rules, as pure functions. `liqoctl` and the broker plugin call them,
//! too. The rules of contracts and receipts are in `liqo-market`. Offloading makes Nodes of
//! `VirtualNode`s, and admits pods.

pub mod decide;

mod breach_reports;
mod consumer;
mod isolation;
mod metering;
mod peer_conditions;
mod plugins;
mod provider;
mod queues;
#[cfg(test)]
mod tests;
mod triggers;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use liqo_api::{ClusterId, Contract, ForeignCluster, PeeringPolicy, ResourceOffer};
use liqo_controller_runtime::{Cache, Context, peers::PeerError, writes::StepError};
use liqo_signing::ClusterIdentity;
use tokio_util::sync::CancellationToken;

pub use crate::metering::kept::PeeringArchiver;
use crate::{
    consumer::{ConsumerController, contracts::ConsumerContracts},
    decide::reduce::{ContractOfPeering, uid_of_provider_namespace},
    peer_conditions::PeerConditions,
    provider::{ProviderController, contracts::ProviderContracts},
    queues::SharingQueues,
    triggers::ReceiptSide,
};

/// Field manager of everything that this crate writes.
const FIELD_MANAGER: &str = liqo_api::conditions::owners::SHARING.field_manager;

/// A request to an API server failed. The queue tries again.
#[derive(Debug, thiserror::Error)]
pub enum SharingError {
    #[error(transparent)]
    Local(#[from] StepError),
    #[error("at provider {provider}: {source}")]
    Provider {
        provider: ClusterId,
        source: Box<StepError<PeerError>>,
    },
}

/// Shares resources in both directions until `context.stop`. Only the leader may run it.
pub async fn run_controllers(
    context: Context,
    identity: Arc<ClusterIdentity>,
) -> Result<(), SharingError> {
    let stop = context.stop.child_token();
    let _guard = stop.clone().drop_guard();
    let queues = SharingQueues::default();
    let foreign_clusters = watch_foreign_clusters(&context, &stop, queues.clone());
    let offers = watch_offers(&context, &stop, queues.clone());
    let policies = watch_policies(&context, &stop, queues.clone(), foreign_clusters.clone());
    let conditions = Arc::new(PeerConditions::new(
        context.clone(),
        foreign_clusters,
        queues.conditions.clone(),
    ));
    let contracts = watch_contracts(&context, &stop, queues.clone());
    let answers = queues.clone();
    let receipts = metering::watch_receipts(&context, ReceiptSide::Issued, &stop, move |_| {
        answers.add(triggers::receipt_of_consumer_changed());
    });
    let made = ProviderContracts::new(
        context.clone(),
        identity.clone(),
        contracts.clone(),
        receipts,
    );
    let received =
        ConsumerContracts::new(context.clone(), identity.clone(), contracts, queues.clone());
    let peerings = watch_peerings(&context, &stop, queues.clone());
    let shared = SharedCaches {
        offers,
        policies: policies.clone(),
        conditions: conditions.clone(),
        peerings,
    };
    let provider = ProviderController::start(&context, &stop, &shared, made, queues.clone());
    let consumer = ConsumerController::start(&context, &stop, &shared, received, queues.clone());
    let kept = PeeringArchiver::new(&context, &identity);
    let receipts = metering::run_controllers(
        &context,
        identity,
        policies,
        conditions.clone(),
        &queues,
        stop.clone(),
    );
    tokio::join!(
        conditions.run(stop.clone()),
        provider.run(stop.clone()),
        consumer.run(stop.clone()),
        receipts,
        kept.run(stop.clone()),
        isolation::test_repeatedly(&context, stop.clone())
    );
    Ok(())
}

fn watch_foreign_clusters(
    context: &Context,
    stop: &CancellationToken,
    queues: SharingQueues,
) -> Cache<ForeignCluster> {
    context
        .informers
        .of_kind::<ForeignCluster>()
        .cache(stop.clone(), move |_, old, new| {
            queues.add(triggers::foreign_cluster_changed(
                old.map(AsRef::as_ref),
                new.map(AsRef::as_ref),
            ));
        })
}

/// Policies limit what the provider side offers and what the consumer side accepts.
fn watch_policies(
    context: &Context,
    stop: &CancellationToken,
    queues: SharingQueues,
    foreign_clusters: Cache<ForeignCluster>,
) -> Cache<PeeringPolicy> {
    context
        .informers
        .of_kind::<PeeringPolicy>()
        .cache(stop.clone(), move |_, old, new| {
            queues.add(triggers::policy_changed(
                old.map(AsRef::as_ref),
                new.map(AsRef::as_ref),
                || peer_ids(&foreign_clusters),
            ));
        })
}

/// All offers in this cluster: those that it made, and copies of those that it received.
fn watch_offers(
    context: &Context,
    stop: &CancellationToken,
    queues: SharingQueues,
) -> Cache<ResourceOffer> {
    context
        .informers
        .of_kind::<ResourceOffer>()
        .cache(stop.clone(), move |key, old, new| {
            queues.add(triggers::offer_changed(
                key,
                old.map(AsRef::as_ref),
                new.map(AsRef::as_ref),
            ));
        })
}

/// All contracts of present peerings in this cluster: those that it made, and copies of those that
/// it received.
fn watch_contracts(
    context: &Context,
    stop: &CancellationToken,
    queues: SharingQueues,
) -> Cache<ContractOfPeering> {
    context.informers.of_kind::<Contract>().reduced_cache(
        stop.clone(),
        ContractOfPeering::from_contract,
        move |key, _, _| queues.add(triggers::contract_changed(key)),
    )
}

/// The UIDs of this cluster's provider namespaces. Each peering with a provider has its own.
fn watch_peerings(
    context: &Context,
    stop: &CancellationToken,
    queues: SharingQueues,
) -> Cache<String> {
    context.informers.of_kind::<Namespace>().reduced_cache(
        stop.clone(),
        uid_of_provider_namespace,
        move |key, _, _| queues.add(triggers::provider_namespace_changed(key)),
    )
}

/// All peers.
fn peer_ids(foreign_clusters: &Cache<ForeignCluster>) -> Vec<ClusterId> {
    let all = foreign_clusters.all().into_iter();
    all.map(|(_, peer)| peer.spec.cluster_id.clone()).collect()
}

/// What both sides read.
struct SharedCaches {
    /// All offers in this cluster: those that it made, and copies of those that it received.
    offers: Cache<ResourceOffer>,
    policies: Cache<PeeringPolicy>,
    conditions: Arc<PeerConditions>,
    /// The UIDs of the provider namespaces.
    peerings: Cache<String>,
}

/// Returns the first of several failures and logs the others.
fn first_failure(failures: Vec<SharingError>) -> Result<(), SharingError> {
    let mut failures = failures.into_iter();
    let first = failures.next();
    for other in failures {
        tracing::warn!(error = %other, "failed as well");
    }
    first.map_or(Ok(()), Err)
}

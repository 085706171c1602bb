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
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt as _;
use liqo_api::policies::without_status;
use liqo_api::{
    ClusterId, Contract, ForeignCluster, PeeringPolicy, ResourceOffer,
    consumer_of_tenant_namespace, labels,
};
use liqo_controller_runtime::{Cache, Context, Queue, peers::PeerError, writes::StepError};
use liqo_market::contract::record::{ContractCopy, ContractRecord, IssuedContract};
use liqo_signing::ClusterIdentity;
use tokio_util::sync::CancellationToken;

pub use crate::metering::kept::PeeringArchiver;
use crate::{
    consumer::{ConsumerController, contracts::ConsumerContracts},
    decide::{absence::Silence, snapshot::is_refused},
    peer_conditions::PeerConditions,
    provider::{ProviderController, contracts::ProviderContracts},
};

/// Field manager of everything that this crate writes.
const FIELD_MANAGER: &str = liqo_api::conditions::owners::SHARING.field_manager;

/// Our own writes come back as several events; this delay collects them into one reconciliation.
const SETTLE_DELAY: Duration = Duration::from_millis(20);

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
    let (offers_queue, providers, conditions) = (Queue::new(), Queue::new(), Queue::new());
    let foreign_clusters = watch_foreign_clusters(
        &context,
        &stop,
        offers_queue.clone(),
        providers.clone(),
        conditions.clone(),
    );
    let offers = watch_offers(&context, &stop, offers_queue.clone(), providers.clone());
    let policies = watch_policies(
        &context,
        &stop,
        offers_queue.clone(),
        providers.clone(),
        foreign_clusters.clone(),
    );
    let conditions = Arc::new(PeerConditions::new(
        context.clone(),
        foreign_clusters,
        conditions,
    ));
    let contracts = watch_contracts(&context, &stop, offers_queue.clone(), providers.clone());
    let answers = offers_queue.clone();
    let receipts =
        metering::watch_receipts(&context, liqo_api::labels::CONSUMER_ID, &stop, move |_| {
            answers.add_after((), provider::DEBOUNCE);
        });
    let made = ProviderContracts::new(
        context.clone(),
        identity.clone(),
        contracts.clone(),
        receipts,
    );
    let received = ConsumerContracts::new(
        context.clone(),
        identity.clone(),
        contracts,
        providers.clone(),
    );
    let peerings = watch_peerings(&context, &stop, providers.clone());
    let shared = SharedCaches {
        offers,
        policies: policies.clone(),
        conditions: conditions.clone(),
        peerings,
    };
    let provider = ProviderController::start(&context, &stop, &shared, made, offers_queue);
    let consumer = ConsumerController::start(&context, &stop, &shared, received, providers);
    let kept = PeeringArchiver::new(&context, &identity);
    let receipts = metering::run_controllers(
        &context,
        identity,
        policies,
        conditions.clone(),
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
    offers_queue: Queue<()>,
    providers: Queue<ClusterId>,
    conditions: Queue<ClusterId>,
) -> Cache<ForeignCluster> {
    context
        .informers
        .of_kind::<ForeignCluster>()
        .cache(stop.clone(), move |_, old, new| {
            let changes_offers = match (old, new) {
                (Some(old), Some(new)) => changes_offers(old, new),
                (old, new) => old.is_some() != new.is_some(),
            };
            if changes_offers {
                offers_queue.add_after((), SETTLE_DELAY);
            }
            for peer in [old, new].into_iter().flatten() {
                providers.add_after(peer.spec.cluster_id.clone(), SETTLE_DELAY);
                conditions.add_after(peer.spec.cluster_id.clone(), SETTLE_DELAY);
            }
        })
}

/// Whether offers depend on this change: policies select peers by label, persons decide on
/// contracts, and a consumer that is silent for long gets no offer.
fn changes_offers(old: &ForeignCluster, new: &ForeignCluster) -> bool {
    old.metadata.labels != new.metadata.labels
        || old.spec.contracts != new.spec.contracts
        || Silence::of_consumer(old, Duration::default)
            != Silence::of_consumer(new, Duration::default)
}

/// Policies limit what the provider side offers and what the consumer side accepts.
fn watch_policies(
    context: &Context,
    stop: &CancellationToken,
    offers_queue: Queue<()>,
    providers: Queue<ClusterId>,
    foreign_clusters: Cache<ForeignCluster>,
) -> Cache<PeeringPolicy> {
    context
        .informers
        .of_kind::<PeeringPolicy>()
        .cache(stop.clone(), move |_, old, new| {
            // This crate writes the status, so a change of the status is not an input.
            let [old, new] = [old, new].map(|policy| {
                policy
                    .map(|policy| PeeringPolicy::clone(policy))
                    .and_then(without_status)
            });
            if old == new {
                return;
            }
            offers_queue.add_after((), provider::PROMPT_DELAY);
            for (_, peer) in foreign_clusters.all() {
                providers.add_after(peer.spec.cluster_id.clone(), SETTLE_DELAY);
            }
        })
}

/// All offers in this cluster: those that it made, and copies of those that it received.
fn watch_offers(
    context: &Context,
    stop: &CancellationToken,
    offers_queue: Queue<()>,
    providers: Queue<ClusterId>,
) -> Cache<ResourceOffer> {
    context
        .informers
        .of_kind::<ResourceOffer>()
        .cache(stop.clone(), move |key, old, new| {
            if let Some(provider) = consumer::provider_of(&key.namespace) {
                providers.add_after(provider, SETTLE_DELAY);
                return;
            }
            // The ledger gives refused resources to others, and ignores everything else in a
            // consumer's answer.
            let [old, new] =
                [old, new].map(|offer| offer.map(|offer| (&offer.spec, is_refused(offer))));
            if old != new {
                offers_queue.add_after((), provider::DEBOUNCE);
            }
        })
}

/// A contract of a present peering in this cluster. Its namespace says which side this cluster is.
#[derive(Debug, PartialEq)]
enum ContractOfPeering {
    Issued(Arc<IssuedContract>),
    Copy(Arc<ContractCopy>),
}

impl ContractOfPeering {
    fn from_contract(contract: Contract) -> Option<Self> {
        if contract.labels().contains_key(labels::FORMER_PEER_ID) {
            return None;
        }
        let namespace = contract.metadata.namespace.as_deref()?;
        if consumer_of_tenant_namespace(namespace).is_some() {
            return Some(Self::Issued(Arc::new(ContractRecord::from_issued(
                contract,
            ))));
        }
        consumer::provider_of(namespace)?;
        Some(Self::Copy(Arc::new(ContractRecord::from_own_copy(
            contract,
        ))))
    }
}

/// All contracts of present peerings in this cluster: those that it made, and copies of those that
/// it received.
fn watch_contracts(
    context: &Context,
    stop: &CancellationToken,
    offers_queue: Queue<()>,
    providers: Queue<ClusterId>,
) -> Cache<ContractOfPeering> {
    context.informers.of_kind::<Contract>().reduced_cache(
        stop.clone(),
        ContractOfPeering::from_contract,
        move |key, _, _| {
            if let Some(provider) = consumer::provider_of(&key.namespace) {
                providers.add_after(provider, SETTLE_DELAY);
            } else {
                offers_queue.add_after((), provider::PROMPT_DELAY);
            }
        },
    )
}

/// The UIDs of this cluster's provider namespaces. Each peering with a provider has its own.
fn watch_peerings(
    context: &Context,
    stop: &CancellationToken,
    providers: Queue<ClusterId>,
) -> Cache<String> {
    context.informers.of_kind::<Namespace>().reduced_cache(
        stop.clone(),
        uid_of_provider_namespace,
        move |key, _, _| {
            if let Some(provider) = consumer::provider_of(&key.name) {
                providers.add_after(provider, SETTLE_DELAY);
            }
        },
    )
}

/// The UID of a provider namespace that is not being deleted.
fn uid_of_provider_namespace(namespace: Namespace) -> Option<String> {
    let is_of_provider = namespace.labels().contains_key(labels::PROVIDER_ID);
    let exists = namespace.metadata.deletion_timestamp.is_none();
    namespace.metadata.uid.filter(|_| is_of_provider && exists)
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

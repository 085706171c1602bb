//! Sharing: what one cluster lends to another, from the request to the virtual node.
//!
//! The consumer writes what it wants (`ResourceRequest`) into its tenant namespace at the provider. The provider counts what
//! its nodes have free, takes the percentage that its policy shares, splits it between all who asked (the ledger), and
//! answers with a `ResourceOffer`. The consumer checks the offer, keeps a copy, and makes a `VirtualNode` of it, which
//! offloading turns into a Node. When the provider has more or less to give, the offer changes and the node follows.
//!
//! ```text
//!   consumer (consumer.rs)                          provider (provider.rs)
//!
//!   ForeignCluster.spec.request                     nodes, pods ---> source: what is free, times percentage
//!        |                                                              |
//!        +--------> ResourceRequest ---------------------------->  ledger: split between all requests
//!                                                                       |
//!   VirtualNode <-- judge <--- ResourceOffer <------------------  publish: only when it is worth a write
//!                     |
//!                     +------> phase Accepted or Refused
//!                     +------> copy of the offer, in the provider namespace
//! ```
//!
//! Everything is decided anew from the caches each time something changes: there is no running total that could drift. The
//! decisions are in [`decide`]; the other files read, call and apply.

pub mod decide;

mod consumer;
mod links;
mod plugins;
mod provider;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use kube::{Api, runtime::watcher::Config};
use liqo_api::{ClusterId, ForeignCluster, PeeringPolicy, ResourceOffer};
use liqo_kit::{Cache, Context, Key, Queue, cache::whole, peers::PeerError, policies::without_status};
use tokio_util::sync::CancellationToken;

use crate::{consumer::Consumer, decide::provider::is_refused, links::Links, provider::Provider};

/// Field manager of all that this slice writes.
const FIELD_MANAGER: &str = "liqo-sharing";

/// What our own writes change comes back in several pieces; looking at it waits until it is likely complete.
const SETTLE: Duration = Duration::from_millis(20);

/// A step that failed; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An offer could not be written.
    #[error("writing the offer in namespace {namespace}: {source}")]
    WriteOffer {
        /// The tenant namespace, or the provider namespace for a copy.
        namespace: String,
        /// Why.
        source: kube::Error,
    },
    /// An offer could not be deleted.
    #[error("deleting offer {key}: {source}")]
    DeleteOffer {
        /// The offer.
        key: Key,
        /// Why.
        source: kube::Error,
    },
    /// A request could not be answered.
    #[error("writing the answer to the request in namespace {namespace}: {source}")]
    AnswerRequest {
        /// The tenant namespace.
        namespace: String,
        /// Why.
        source: kube::Error,
    },
    /// What comes of a policy could not be written.
    #[error("writing the status of peering policy {policy}: {source}")]
    WritePolicy {
        /// The policy.
        policy: String,
        /// Why.
        source: kube::Error,
    },
    /// The conditions of a foreign cluster could not be written.
    #[error("writing conditions of the foreign cluster with ID {peer}: {source}")]
    WriteLinks {
        /// The peer.
        peer: ClusterId,
        /// Why.
        source: kube::Error,
    },
    /// A virtual node could not be written.
    #[error("writing virtual node {key}: {source}")]
    WriteNode {
        /// The virtual node.
        key: Key,
        /// Why.
        source: kube::Error,
    },
    /// A virtual node could not be deleted.
    #[error("deleting virtual node {key}: {source}")]
    DeleteNode {
        /// The virtual node.
        key: Key,
        /// Why.
        source: kube::Error,
    },
    /// Our request could not be written at the provider.
    #[error("asking provider {provider} for resources: {source}")]
    Request {
        /// The provider.
        provider: ClusterId,
        /// Why.
        source: PeerError,
    },
    /// Our request could not be taken back.
    #[error("taking back our request at provider {provider}: {source}")]
    TakeBack {
        /// The provider.
        provider: ClusterId,
        /// Why.
        source: PeerError,
    },
    /// Our answer to an offer could not be written at the provider.
    #[error("answering offer {offer} of provider {provider}: {source}")]
    AnswerOffer {
        /// The provider.
        provider: ClusterId,
        /// The offer.
        offer: String,
        /// Why.
        source: PeerError,
    },
}

/// Shares resources in both directions until `context.stop`. To be run by the leader only.
pub async fn run(context: Context) -> Result<(), Error> {
    let stop = context.stop.child_token();
    let _guard = stop.clone().drop_guard();
    let (recompute, peers, chains) = (Queue::new(), Queue::new(), Queue::new());
    let foreign_clusters = watch_foreign_clusters(&context, &stop, recompute.clone(), peers.clone(), chains.clone());
    let offers = watch_offers(&context, &stop, recompute.clone(), peers.clone());
    let policies = watch_policies(&context, &stop, recompute.clone(), peers.clone(), foreign_clusters.clone());
    let links = Arc::new(Links::new(context.client.clone(), foreign_clusters, chains));
    let provider = Provider::start(&context, &stop, offers.clone(), policies.clone(), links.clone(), recompute);
    let consumer = Consumer::start(&context, &stop, offers, policies, links.clone(), peers);
    tokio::join!(links.run(stop.clone()), provider.run(stop.clone()), consumer.run(stop.clone()));
    Ok(())
}

/// All peers: both sides, and what is said of them, depend on them.
fn watch_foreign_clusters(
    context: &Context,
    stop: &CancellationToken,
    recompute: Queue<()>,
    peers: Queue<ClusterId>,
    chains: Queue<ClusterId>,
) -> Cache<ForeignCluster> {
    let all = Api::<ForeignCluster>::all(context.client.clone());
    Cache::watch(all, Config::default(), stop.clone(), whole, move |_, old, new| {
        // Policies select by them.
        let labels = |known: Option<&Arc<ForeignCluster>>| known.map(|known| known.metadata.labels.clone());
        if labels(old) != labels(new) {
            recompute.add_after((), SETTLE);
        }
        for known in [old, new].into_iter().flatten() {
            peers.add_after(known.spec.cluster_id.clone(), SETTLE);
            chains.add_after(known.spec.cluster_id.clone(), SETTLE);
        }
    })
}

/// All policies: what is offered and what is accepted depends on them.
fn watch_policies(
    context: &Context,
    stop: &CancellationToken,
    recompute: Queue<()>,
    peers: Queue<ClusterId>,
    foreign_clusters: Cache<ForeignCluster>,
) -> Cache<PeeringPolicy> {
    let all = Api::<PeeringPolicy>::all(context.client.clone());
    // The status is ours: what we wrote is no news.
    let rules = |policy: Option<&Arc<PeeringPolicy>>| policy.map(|policy| PeeringPolicy::clone(policy)).and_then(without_status);
    Cache::watch(all, Config::default(), stop.clone(), whole, move |_, old, new| {
        if rules(old) == rules(new) {
            return;
        }
        recompute.add_after((), provider::PROMPT);
        for (_, peer) in foreign_clusters.all() {
            peers.add_after(peer.spec.cluster_id.clone(), SETTLE);
        }
    })
}

/// All offers of this cluster: those that it made, and copies of those that it received.
fn watch_offers(
    context: &Context,
    stop: &CancellationToken,
    recompute: Queue<()>,
    peers: Queue<ClusterId>,
) -> Cache<ResourceOffer> {
    let all = Api::<ResourceOffer>::all(context.client.clone());
    // What is refused goes to others; the rest of what consumers answer is nothing to the ledger.
    let counted = |offer: Option<&Arc<ResourceOffer>>| offer.map(|offer| (offer.spec.clone(), is_refused(offer)));
    Cache::watch(all, Config::default(), stop.clone(), whole, move |key, old, new| {
        if let Some(provider) = consumer::provider_of(&key.namespace) {
            peers.add_after(provider, SETTLE);
        } else if counted(old) != counted(new) {
            recompute.add_after((), provider::DEBOUNCE);
        }
    })
}

/// The first of several failures, which stands for them all; the others are logged.
fn first(failures: Vec<Error>) -> Result<(), Error> {
    let mut failures = failures.into_iter();
    let first = failures.next();
    for other in failures {
        tracing::warn!(error = %other, "failed as well");
    }
    first.map_or(Ok(()), Err)
}

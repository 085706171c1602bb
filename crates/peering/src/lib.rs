//! Identity, first contact, and the life of a peering.
//!
//! A cluster is its key: the cluster ID follows from it, every request of first contact is signed with it, and the auth
//! endpoint's TLS proves it. A consumer asks a provider's auth endpoint for access and is given a namespace there and a
//! short-lived credential; from then on it is a client of the provider's API server and of nothing else. The provider
//! never calls the consumer.
//!
//! ```text
//!   consumer                                                provider
//!   ForeignCluster ─▶ lifecycle ─▶ session                  auth::server ─▶ tenancy ◀─ lifecycle ◀─ ForeignCluster
//!                                    │ 1 who are you (/ids)      ▲  ▲          │
//!                                    ├───────────────────────────┘  │          ├─ liqo-tenant-<id>: rights, quota, leases
//!                                    │ 2 signed request             │          └─ account + session Secret, token for 1 h
//!                                    ├──────────────────────────────┘
//!                                    │ 3 lease `consumer` every 3 s, lease `provider` read ─▶ API server
//!                                    ▼
//!                          kit::Peers: the connection that sharing and offloading use
//! ```
//!
//! * [`identity`], [`envelope`], [`tls`], [`challenge`]: the key and what is proved with it.
//! * [`protocol`]: what is said on the wire. [`auth`]: who says it, and who decides.
//! * [`decide`]: what is to be done about a peer. [`lifecycle`]: the controller that does it.
//! * [`session`], [`credential`]: the consumer's side. [`tenancy`]: the provider's side.
//! * [`addresses`]: how others reach this cluster. [`guests`]: who reaches it through its tunnel.
//!
//! Each direction of a peering stands alone: one namespace here for each, one finalizer on the `ForeignCluster` until
//! both are gone. A peer that is dead holds nobody up: every call to it has a limit, and ending a peering needs no answer.

pub mod addresses;
pub mod auth;
pub mod challenge;
pub mod credential;
pub mod decide;
pub mod envelope;
pub mod guests;
pub mod identity;
pub mod lifecycle;
pub mod namespace;
pub mod objects;
pub mod protocol;
pub mod session;
pub mod tenancy;
pub mod tls;

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, runtime::watcher};
use liqo_api::{ClusterId, ForeignCluster, GatewayAddress, PeeringPolicy, TunnelEndpoint, labels};
use liqo_kit::{Cache, Context, Queue, cache, context::every_address};
use tokio::{
    net::TcpListener,
    sync::{Notify, watch},
};

use crate::{
    auth::server::ServeError, identity::ClusterIdentity, lifecycle::Lifecycle, namespace::LiqoNamespace, objects::StepError,
    tenancy::Tenants,
};

/// Field manager of what peering applies.
pub const FIELD_MANAGER: &str = "liqo-peering";

/// How many peers are looked at at the same time.
const AT_A_TIME: usize = 32;

/// Why peering could not be started, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The port of the auth endpoint is taken.
    #[error("cannot listen on {address} for the auth endpoint: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The auth endpoint could not be set up.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// What is left of earlier consumers could not be looked up.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// Runs everything about peering until `context.stop`. The auth endpoint listens on `auth_port`.
pub async fn run(context: Context, identity: Arc<ClusterIdentity>, auth_port: u16) -> Result<(), Error> {
    let pod_ip = context.pod_ip.parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let address = every_address(pod_ip, auth_port);
    let listener = TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;

    let queue: Queue<ClusterId> = Queue::new();
    // For the list of those who may come through the tunnel.
    let news = Arc::new(Notify::new());
    let foreign_clusters = watch_foreign_clusters(&context, queue.clone(), news.clone());
    let namespaces = watch_namespaces(&context, queue.clone(), news.clone());
    let tunnels = watch_tunnels(&context, queue.clone());
    let policies = watch_policies(&context);
    let (found, addresses) = watch::channel(None);
    let known = guests::Known { namespaces: namespaces.clone(), records: foreign_clusters.clone(), news };
    let (peers, ours) = (foreign_clusters.clone(), namespaces.clone());
    let tenants = Arc::new(Tenants::new(&context, addresses, peers, policies.clone(), ours, queue.clone()));
    // Before both are complete, what is missing and what is not yet known look the same.
    if !(foreign_clusters.synced().await && namespaces.synced().await && policies.synced().await && tunnels.synced().await) {
        return Ok(());
    }
    for stray in tenants.strays().await? {
        queue.add(stray);
    }
    let lifecycle = Arc::new(Lifecycle {
        context: context.clone(),
        identity: Arc::clone(&identity),
        foreign_clusters,
        namespaces,
        tunnels,
        tenants: Arc::clone(&tenants),
        queue: queue.clone(),
        sessions: Mutex::new(HashMap::new()),
    });
    let reconcile = move |id| {
        let lifecycle = Arc::clone(&lifecycle);
        async move { lifecycle.reconcile(id).await }
    };
    let work = async {
        tokio::join!(
            queue.run("peering", AT_A_TIME, context.stop.clone(), reconcile),
            addresses::run(context.clone(), Arc::clone(&identity), found),
            tenants.beat(),
            guests::run(context.clone(), known),
        );
        Ok(())
    };
    // Without the auth endpoint the rest is not carried on with.
    let serve = auth::server::serve(listener, &identity, Arc::clone(&tenants), context.stop.clone());
    tokio::try_join!(serve, work)?;
    Ok(())
}

fn watch_foreign_clusters(context: &Context, queue: Queue<ClusterId>, news: Arc<Notify>) -> Cache<ForeignCluster> {
    let api: Api<ForeignCluster> = Api::all(context.client.clone());
    Cache::watch(api, watcher::Config::default(), context.stop.clone(), cache::whole, move |_, old, new| {
        for object in [old, new].into_iter().flatten() {
            queue.add(object.spec.cluster_id.clone());
        }
        news.notify_one();
    })
}

/// Read when a consumer asks; nothing is to be done when they change.
fn watch_policies(context: &Context) -> Cache<PeeringPolicy> {
    let api: Api<PeeringPolicy> = Api::all(context.client.clone());
    Cache::watch(api, watcher::Config::default(), context.stop.clone(), cache::whole, |_, _, _| ())
}

fn watch_namespaces(context: &Context, queue: Queue<ClusterId>, news: Arc<Notify>) -> Cache<LiqoNamespace> {
    let api: Api<Namespace> = Api::all(context.client.clone());
    let config = watcher::Config::default().labels(labels::NAMESPACE_KIND);
    Cache::watch(api, config, context.stop.clone(), LiqoNamespace::of, move |_, old, new| {
        for namespace in [old, new].into_iter().flatten() {
            queue.add(namespace.cluster.clone());
        }
        news.notify_one();
    })
}

/// The gateways of peers, as they were told last.
fn watch_tunnels(context: &Context, queue: Queue<ClusterId>) -> Cache<Vec<GatewayAddress>> {
    let api: Api<TunnelEndpoint> = Api::namespaced(context.client.clone(), &context.namespace);
    let gateways = |endpoint: TunnelEndpoint| Some(endpoint.spec.gateways);
    Cache::watch(api, watcher::Config::default(), context.stop.clone(), gateways, move |key, old, new| {
        if old != new
            && let Ok(id) = key.name.parse()
        {
            queue.add(id);
        }
    })
}

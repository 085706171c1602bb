//! Peering: the identity of this cluster, its first contact with another one, and the life of a
//! peering.
//!
//! A key identifies a cluster: the cluster ID is derived from it, the cluster signs its requests to
//! auth endpoints with it, and its own auth endpoint proves it by TLS. A consumer requests access
//! from a provider's auth endpoint, and gets a namespace there and a short-lived credential. From
//! then on it uses the provider's API server, and the auth endpoint only for new credentials. The
//! provider never calls the consumer.
//!
//! ```text
//!   consumer                                            provider
//!   ForeignCluster ─▶ lifecycle ─▶ session              auth::server ─▶ tenancy ◀─ lifecycle ◀─ ForeignCluster
//!                                    │ 1 who are you (/ids)   ▲  ▲         │
//!                                    ├────────────────────────┘  │         ├─ liqo-tenant-<id>: rights, quota, leases
//!                                    │ 2 signed request          │         └─ account, session Secret, token for 1 h
//!                                    ├───────────────────────────┘
//!                                    │ 3 writes the lease `consumer`, reads `provider`, every 3 s ─▶ API server
//!                                    ▼
//!                          Peers: the connection that the other parts use
//! ```
//!
//! The leader of the controller manager calls [`run`]. Users' wishes come from the
//! `ForeignCluster`, `PeeringPolicy` and token Secrets; the results are namespaces, credentials and
//! conditions. This crate does not decide what a consumer is offered (`liqo-sharing`), and neither
//! sends pods (`liqo-offloading`) nor connects networks.
//!
//! Read [`decide`] first: its `plan` says what to do about a peer. Then [`lifecycle`], the
//! controller that does it.
//! * [`identity`], [`tls`], [`challenge`]: where the key is stored, and what proves that a cluster
//!   has it.
//! * [`protocol`]: the messages. [`auth`]: the endpoint, its client, its decisions. [`exchange`]: a
//!   single HTTP request.
//! * The consumer's side: [`session`], with one task for each provider, its [`credential`], and
//!   [`transport`], the client.
//! * The provider's side: [`tenancy`]. Objects of both sides: [`objects`], [`namespace`].
//! * [`discovery`]: finds other clusters, and decides from which of them this cluster borrows
//!   automatically.
//! * [`addresses`]: how others reach this cluster. [`tunnel_clients`]: who may reach it through its
//!   tunnel.
//!
//! The two directions of a peering are independent: each has a namespace here, and the
//! `ForeignCluster` has a finalizer until both are gone. A dead peer blocks nothing: every call to
//! it has a time limit, and ending a peering needs no answer.

pub mod addresses;
pub mod auth;
pub mod challenge;
pub mod credential;
pub mod decide;
pub mod discovery;
pub mod exchange;
pub mod identity;
pub mod lifecycle;
pub mod namespace;
pub mod objects;
pub mod protocol;
pub mod session;
pub mod tenancy;
pub mod tls;
pub mod transport;
pub mod tunnel_clients;

use std::{collections::HashMap, sync::Arc};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{Api, runtime::watcher};
use liqo_api::{
    ClusterId, ForeignCluster, GatewayAddress, PeeringPolicy, TunnelEndpoint, conditions::owners,
    labels, peer_namespace::PeerNamespaceKind,
};
use liqo_controller_runtime::{
    Cache, Context, Key, Queue, cache,
    start::retry_at_start,
    watch,
    writes::{StepContext as _, StepError},
};
use liqo_signing::ClusterIdentity;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    auth::server::AuthServeError, discovery::Discoverer, lifecycle::Lifecycle,
    namespace::LiqoNamespace, tenancy::Tenants,
};

pub const FIELD_MANAGER: &str = owners::PEERING.field_manager;

/// Maximum number of peers that are reconciled at the same time.
const MAX_CONCURRENT: usize = 32;

/// Keeps what must outlive a peering. Gets the namespace of the peering, which is deleted as soon
/// as that is done, and the name of the peer. Nothing runs under the peering any more.
pub type KeepHook =
    Arc<dyn Fn(String, Option<String>) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync>;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The reason why peering cannot run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The port of the auth endpoint is taken.
    #[error("cannot listen on port {port} for the auth endpoint: {source}")]
    Listen {
        port: u16,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Serve(#[from] AuthServeError),
    /// The remains of earlier consumers could not be listed.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// Runs everything about peering until `context.stop`. The auth endpoint listens on `auth_port`.
pub async fn run(
    context: Context,
    identity: Arc<ClusterIdentity>,
    auth_port: u16,
    keep: KeepHook,
) -> Result<(), StartError> {
    let listener = context
        .listen(auth_port)
        .await
        .map_err(|source| StartError::Listen {
            port: auth_port,
            source,
        })?;

    let queue: Queue<ClusterId> = Queue::new();
    // Updates the list of tunnel clients.
    let clients_changed = Arc::new(Notify::new());
    // Compares with what discovery finds.
    let records_changed = Arc::new(Notify::new());
    let foreign_clusters = watch_foreign_clusters(
        &context,
        queue.clone(),
        [clients_changed.clone(), records_changed.clone()],
    );
    let namespaces = watch_namespaces(&context, queue.clone(), clients_changed.clone());
    let tunnels = watch_tunnels(&context, queue.clone());
    let policies = watch_policies(&context, records_changed.clone());
    let tokens = watch_tokens(&context);
    let (found, addresses) = watch::channel(None);
    let known = tunnel_clients::TunnelClientSources {
        namespaces: namespaces.clone(),
        records: foreign_clusters.clone(),
        changed: clients_changed,
    };
    let (peers, ours) = (foreign_clusters.clone(), namespaces.clone());
    let discoverer = Discoverer {
        context: context.clone(),
        foreign_clusters: peers.clone(),
        policies: policies.clone(),
        changed: records_changed,
    };
    let tenants = Arc::new(Tenants::new(
        &context,
        addresses,
        peers,
        policies.clone(),
        ours,
        tokens.clone(),
        queue.clone(),
    ));
    // Wait for all initial lists: until then, absence proves nothing.
    if !(foreign_clusters.wait_until_synced().await
        && namespaces.wait_until_synced().await
        && policies.wait_until_synced().await
        && tunnels.wait_until_synced().await
        && tokens.wait_until_synced().await)
    {
        return Ok(());
    }
    for stray in retry_at_start(|| tenants.consumers_with_accounts()).await? {
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
        keep,
        sessions: Mutex::new(HashMap::new()),
    });
    let work = async {
        tokio::join!(
            queue.run("peering", MAX_CONCURRENT, context.stop.clone(), move |id| {
                let lifecycle = Arc::clone(&lifecycle);
                async move { lifecycle.reconcile(id).await }
            }),
            addresses::keep_addresses_current(context.clone(), Arc::clone(&identity), found),
            tenants.run_heartbeats(),
            tunnel_clients::keep_list_current(context.clone(), known),
            Box::pin(discoverer.run()),
        );
        Ok(())
    };
    // If the auth endpoint fails, everything ends.
    let serve = auth::server::serve_endpoint(
        listener,
        &identity,
        Arc::clone(&tenants),
        context.clock,
        context.stop.clone(),
    );
    tokio::try_join!(serve, work)?;
    Ok(())
}

/// Lets what must outlive a peering be kept.
pub(crate) async fn run_keep_hook(
    keep: &KeepHook,
    namespace: &str,
    peer: Option<String>,
) -> Result<(), StepError> {
    let kept = keep(namespace.to_owned(), peer)
        .await
        .map_err(kube::Error::Service);
    kept.step(
        "keep what must stay of",
        "Namespace",
        Key::new("", namespace),
    )
}

fn watch_foreign_clusters(
    context: &Context,
    queue: Queue<ClusterId>,
    changed: [Arc<Notify>; 2],
) -> Cache<ForeignCluster> {
    context
        .informers
        .of_kind::<ForeignCluster>()
        .cache(context.stop.clone(), move |_, old, new| {
            for object in [old, new].into_iter().flatten() {
                queue.add(object.spec.cluster_id.clone());
            }
            for changed in &changed {
                changed.notify_one();
            }
        })
}

/// A change may start or end automatic peerings. What policies say about consumers is read when a
/// consumer requests access.
fn watch_policies(context: &Context, changed: Arc<Notify>) -> Cache<PeeringPolicy> {
    context
        .informers
        .of_kind::<PeeringPolicy>()
        .cache(context.stop.clone(), move |_, _, _| changed.notify_one())
}

/// The tokens for the first contact. They are read when a consumer requests access, so a change
/// triggers nothing.
fn watch_tokens(context: &Context) -> Cache<Secret> {
    let api: Api<Secret> = Api::namespaced(context.client.clone(), &context.namespace);
    let config = watcher::Config::default().labels(labels::PEERING_TOKEN);
    Cache::watch(
        api,
        config,
        context.stop.clone(),
        cache::without_managed_fields,
        |_, _, _| (),
    )
}

fn watch_namespaces(
    context: &Context,
    queue: Queue<ClusterId>,
    clients_changed: Arc<Notify>,
) -> Cache<LiqoNamespace> {
    context.informers.of_kind::<Namespace>().reduced_cache(
        context.stop.clone(),
        LiqoNamespace::from_namespace,
        move |_, old, new| {
            // No peering depends on a single mapped namespace. A tenancy that ends asks again and
            // again whether some are left.
            for namespace in [old, new]
                .into_iter()
                .flatten()
                .filter(|namespace| !matches!(namespace.kind, PeerNamespaceKind::Mapped { .. }))
            {
                queue.add(namespace.cluster.clone());
                clients_changed.notify_one();
            }
        },
    )
}

/// The gateways that peers announced last.
fn watch_tunnels(context: &Context, queue: Queue<ClusterId>) -> Cache<Vec<GatewayAddress>> {
    let api: Api<TunnelEndpoint> = Api::namespaced(context.client.clone(), &context.namespace);
    Cache::watch(
        api,
        watcher::Config::default(),
        context.stop.clone(),
        |endpoint: TunnelEndpoint| Some(endpoint.spec.gateways),
        move |key, old, new| {
            if old != new
                && let Ok(id) = key.name.parse()
            {
                queue.add(id);
            }
        },
    )
}

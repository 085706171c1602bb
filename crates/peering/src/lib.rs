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
//! Read [`decide`] first: the rules, as pure functions. Its `plan` says what to do about a peer.
//! Then [`lifecycle`], the controller that does it. [`triggers`] says which change makes whom look.
//! * [`identity`], [`tls`], [`challenge`]: where the key is stored, and what proves that a cluster
//!   has it.
//! * [`protocol`]: the messages. [`auth`]: the endpoint and its client. [`exchange`]: a single HTTP
//!   request.
//! * The consumer's side: [`session`], with one task for each provider, and [`transport`], the
//!   client.
//! * The provider's side: [`tenancy`]. Objects of both sides: [`objects`].
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
pub mod decide;
pub mod discovery;
pub mod exchange;
pub mod identity;
pub mod lifecycle;
pub mod objects;
pub mod protocol;
pub mod queues;
pub mod session;
pub mod tenancy;
pub mod tls;
pub mod transport;
pub mod triggers;
pub mod tunnel_clients;

use std::{collections::HashMap, sync::Arc};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{Api, runtime::watcher};
use liqo_api::{
    ForeignCluster, GatewayAddress, PeeringPolicy, TunnelEndpoint, conditions::owners, labels,
};
use liqo_controller_runtime::{
    Cache, Context, Key, cache,
    start::retry_at_start,
    watch,
    writes::{StepContext as _, StepError},
};
use liqo_signing::ClusterIdentity;
use parking_lot::Mutex;

use crate::{
    auth::server::AuthServeError, decide::namespace::LiqoNamespace, discovery::Discoverer,
    lifecycle::Lifecycle, queues::PeeringQueues, tenancy::Tenants,
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

    let queues = PeeringQueues::default();
    let foreign_clusters = watch_foreign_clusters(&context, queues.clone());
    let namespaces = watch_namespaces(&context, queues.clone());
    let tunnels = watch_tunnels(&context, queues.clone());
    let policies = watch_policies(&context, queues.clone());
    let tokens = watch_tokens(&context);
    let (found, addresses) = watch::channel(None);
    let known = tunnel_clients::TunnelClientSources {
        namespaces: namespaces.clone(),
        records: foreign_clusters.clone(),
        queues: queues.clone(),
    };
    let (peers, ours) = (foreign_clusters.clone(), namespaces.clone());
    let discoverer = Discoverer {
        context: context.clone(),
        foreign_clusters: peers.clone(),
        policies: policies.clone(),
        queues: queues.clone(),
    };
    let tenants = Arc::new(Tenants::new(
        &context,
        addresses,
        peers,
        policies.clone(),
        ours,
        tokens.clone(),
        queues.peers.clone(),
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
        queues.peers.add(stray);
    }
    let lifecycle = Arc::new(Lifecycle {
        context: context.clone(),
        identity: Arc::clone(&identity),
        foreign_clusters,
        namespaces,
        tunnels,
        tenants: Arc::clone(&tenants),
        queue: queues.peers.clone(),
        keep,
        sessions: Mutex::new(HashMap::new()),
    });
    let work = async {
        tokio::join!(
            queues
                .peers
                .run("peering", MAX_CONCURRENT, context.stop.clone(), move |id| {
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

fn watch_foreign_clusters(context: &Context, queues: PeeringQueues) -> Cache<ForeignCluster> {
    context
        .informers
        .of_kind::<ForeignCluster>()
        .cache(context.stop.clone(), move |_, old, new| {
            queues.add(triggers::foreign_cluster_changed(
                old.map(AsRef::as_ref),
                new.map(AsRef::as_ref),
            ));
        })
}

fn watch_policies(context: &Context, queues: PeeringQueues) -> Cache<PeeringPolicy> {
    context
        .informers
        .of_kind::<PeeringPolicy>()
        .cache(context.stop.clone(), move |_, _, _| {
            queues.add(triggers::policy_changed());
        })
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

fn watch_namespaces(context: &Context, queues: PeeringQueues) -> Cache<LiqoNamespace> {
    context.informers.of_kind::<Namespace>().reduced_cache(
        context.stop.clone(),
        LiqoNamespace::from_namespace,
        move |_, old, new| {
            queues.add(triggers::namespace_changed(
                old.map(AsRef::as_ref),
                new.map(AsRef::as_ref),
            ));
        },
    )
}

/// The gateways that peers announced last.
fn watch_tunnels(context: &Context, queues: PeeringQueues) -> Cache<Vec<GatewayAddress>> {
    let api: Api<TunnelEndpoint> = Api::namespaced(context.client.clone(), &context.namespace);
    Cache::watch(
        api,
        watcher::Config::default(),
        context.stop.clone(),
        |endpoint: TunnelEndpoint| Some(endpoint.spec.gateways),
        move |key, old, new| {
            queues.add(triggers::tunnel_endpoint_changed(
                key,
                old.map(AsRef::as_ref),
                new.map(AsRef::as_ref),
            ));
        },
    )
}

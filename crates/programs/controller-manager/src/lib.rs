//! The one process that runs all controllers of Liqo in a cluster.
//!
//! It only starts the parts; each part is a crate. `main.rs` calls [`run`], and so do the tests of
//! `crates/devtools/simulation`.
//!
//! ```text
//!   every replica                     only the leader
//!   +---------------------------+     +--------------------------------------------------+
//!   | /healthz /readyz /metrics |     | peering     auth endpoint, sessions, tenancies   |
//!   | admission webhook         |     | sharing     requests, offers, virtual nodes      |
//!   | leader election           | --> | negotiation ranges, addresses, tunnel endpoints  |
//!   |                           |     | offloading  namespaces, pods, kubelet API        |
//!   |                           |     | tethering   whether a peer controls this cluster |
//!   +---------------------------+     +--------------------------------------------------+
//! ```
//!
//! Parts do not call each other: they meet in Kubernetes objects, and in the `Context` that each
//! gets (client, clock, network, configuration, connections to peers). One exception: before
//! peering deletes a namespace, sharing saves contracts and receipts. [`run`] and `start_leading`
//! below it are the whole picture.
//!
//! If any part ends, or the lease is lost, [`run`] returns an error and the process ends: the
//! kubelet starts it again, and another replica takes over. When `stop` is cancelled, it ends in
//! order: it releases the lease as soon as the leader's parts have ended, and the webhook answers
//! until the API server knows that this replica is ending.
//!
//! [`ManagerReplica`] has everything that a replica needs from outside: an API server, a clock and
//! a network. So a test can run several replicas, of several clusters, in one process.

mod config;
mod leader_pod;

use std::{net::IpAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use futures::FutureExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use liqo_api::CONTROLLER_MANAGER;
use liqo_controller_runtime::{
    Clock, Context, Informers, Network, Peers,
    events::EventRecorder,
    leader::{Election, Leadership, LeaseTiming},
    process::Readiness,
    start::retry_at_start,
};
use liqo_signing::ClusterIdentity;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Time limit until the parts have ended.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which the webhook still answers after `stop`: until then, kube-proxy may send calls to
/// this pod.
const WEBHOOK_LINGER: Duration = Duration::from_secs(3);

/// One replica of the manager, and what it needs.
pub struct ManagerReplica {
    pub client: Client,
    pub clock: Clock,
    pub network: Arc<dyn Network>,
    /// Namespace that Liqo runs in.
    pub namespace: String,
    /// Name of its pod, its identity in the leader election.
    pub pod_name: String,
    pub pod_ip: IpAddr,
    /// DNS domain of this cluster, such as `cluster.local`, if it is known.
    pub cluster_domain: Option<String>,
    /// Ports of the admission webhook and of the auth endpoint.
    pub webhook_port: u16,
    pub auth_port: u16,
    /// Delay until another replica replaces a leader that died.
    pub lease_seconds: u64,
}

/// Another replica may lead, so nothing of this one may continue, not even to clean up.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("leadership lost")]
pub struct LeadershipLost;

/// Runs the replica until `stop`. It is ready as soon as its webhook answers. If the lease is lost,
/// the error is a [`LeadershipLost`], and the process has to end at once.
pub async fn run(
    replica: ManagerReplica,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let ManagerReplica {
        client,
        clock,
        network,
        namespace,
        pod_name,
        pod_ip,
        cluster_domain,
        webhook_port,
        auth_port,
        lease_seconds,
    } = replica;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let unmarked = retry_at_start(|| leader_pod::unmark_pod(&pods, &pod_name)).await;
    unmarked.context("removing the leader's label from this pod")?;
    let secrets = Api::namespaced(client.clone(), &namespace);
    let identity = retry_at_start(|| liqo_peering::identity::load_or_create(&secrets)).await;
    let identity = Arc::new(identity.context("loading the identity of this cluster")?);
    tracing::info!(cluster = %identity.id(), version = env!("CARGO_PKG_VERSION"), "this cluster");

    let config = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        config = config::follow_config(&client, stop.clone()) => config,
    };
    let election = Election::new(
        client.clone(),
        &namespace,
        CONTROLLER_MANAGER,
        &pod_name,
        LeaseTiming::of_lease(lease_seconds),
        clock,
    );
    let context = Context {
        events: EventRecorder::new(client.clone(), clock, Some(pod_name.clone())),
        informers: Informers::new(client.clone(), stop.clone()),
        client,
        namespace,
        pod_ip,
        cluster_domain,
        cluster_id: identity.id().clone(),
        clock,
        network,
        config,
        peers: Peers::default(),
        unwatched_since: None,
        stop: stop.clone(),
    };
    let mut webhook = start_webhook(&context, webhook_port, readiness);

    let leadership = tokio::select! {
        biased;
        leadership = election.acquire(&stop) => leadership,
        ended = webhook.join_next() => return part_ended(ended, &stop),
    };
    let outcome = match leadership {
        None => Ok(()),
        Some(leadership) => {
            let replaced = leadership.replaced_holder().map(str::to_owned);
            tracing::info!(replaced, "leading");
            let context = Context {
                unwatched_since: leadership.former_renewal(),
                // Their first lists have all that the former leader wrote.
                informers: Informers::new(context.client.clone(), stop.clone()),
                ..context
            };
            let mut parts = start_leading(&context, identity, auth_port);
            let marked = leader_pod::keep_marked(pods, pod_name, replaced, clock, stop.clone());
            parts.spawn(async move {
                marked.await;
                Ok(())
            });
            keep_leading(leadership, parts, &mut webhook, &stop).await
        }
    };
    if outcome
        .as_ref()
        .is_err_and(anyhow::Error::is::<LeadershipLost>)
    {
        return outcome;
    }
    let finished = wait_for_parts(webhook).await;
    tracing::info!("ended in order");
    outcome.and(finished)
}

/// Starts what every replica does. It continues for a while after `context.stop`.
fn start_webhook(
    context: &Context,
    port: u16,
    readiness: Readiness,
) -> JoinSet<anyhow::Result<()>> {
    let (stop, lingering) = (context.stop.clone(), CancellationToken::new());
    let context = Context {
        informers: Informers::new(context.client.clone(), lingering.clone()),
        stop: lingering.clone(),
        ..context.clone()
    };
    tokio::spawn(async move {
        stop.cancelled().await;
        tokio::time::sleep(WEBHOOK_LINGER).await;
        lingering.cancel();
    });
    let mut parts = JoinSet::new();
    parts.spawn(async move {
        let ready = move || readiness.set_ready("ok".to_owned());
        liqo_offloading::webhook::serve_webhook(context, port, ready)
            .await
            .context("the admission webhook")
    });
    parts
}

/// Starts what only the leader does.
fn start_leading(
    context: &Context,
    identity: Arc<ClusterIdentity>,
    auth_port: u16,
) -> JoinSet<anyhow::Result<()>> {
    let mut parts = JoinSet::new();
    let keeper = Arc::new(liqo_sharing::PeeringArchiver::new(context, &identity));
    let keep: liqo_peering::KeepHook = Arc::new(move |namespace, peer| {
        let keeper = keeper.clone();
        async move {
            Ok(keeper
                .archive_namespace(&namespace, peer.as_deref())
                .await?)
        }
        .boxed()
    });
    parts.spawn({
        let (context, identity) = (context.clone(), Arc::clone(&identity));
        async move {
            liqo_peering::run(context, identity, auth_port, keep)
                .await
                .context("peering")
        }
    });
    let voucher_key = liqo_offloading::VoucherKey::derive(identity.pkcs8());
    parts.spawn({
        let context = context.clone();
        async move {
            Box::pin(liqo_sharing::run_controllers(context, identity))
                .await
                .context("sharing")
        }
    });
    parts.spawn({
        let context = context.clone();
        async move {
            liqo_network_negotiation::run(context)
                .await
                .context("network negotiation")
        }
    });
    parts.spawn({
        let context = context.clone();
        async move {
            liqo_tethering::run_controllers(context)
                .await
                .context("tethering")
        }
    });
    let context = context.clone();
    parts.spawn(async move {
        liqo_offloading::run_controllers(context, voucher_key)
            .await
            .context("offloading")
    });
    parts
}

/// Renews the lease until the last of the leader's `parts` has ended, so that no other replica
/// leads meanwhile. Then releases it.
async fn keep_leading(
    mut leadership: Leadership<'_>,
    mut parts: JoinSet<anyhow::Result<()>>,
    webhook: &mut JoinSet<anyhow::Result<()>>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let renewing = CancellationToken::new();
    let working = async {
        let outcome = tokio::select! {
            biased;
            () = stop.cancelled() => Ok(()),
            ended = parts.join_next() => part_ended(ended, stop),
            ended = webhook.join_next() => part_ended(ended, stop),
        };
        stop.cancel();
        let finished = wait_for_parts(parts).await;
        renewing.cancel();
        Ok(outcome.and(finished))
    };
    let leading = async {
        if leadership.renew(&renewing).await {
            Ok(())
        } else {
            Err(LeadershipLost)
        }
    };
    let (outcome, ()) = tokio::try_join!(working, leading)?;
    leadership.release().await;
    outcome
}

/// Returns an error unless the whole process is ending.
fn part_ended(
    ended: Option<Result<anyhow::Result<()>, tokio::task::JoinError>>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    match ended {
        Some(Ok(Err(error))) => Err(error),
        Some(Err(panic)) => Err(anyhow::Error::new(panic).context("a part of the manager failed")),
        _ if stop.is_cancelled() => Ok(()),
        _ => bail!("a part of the manager ended by itself"),
    }
}

/// Waits until the parts have ended, with a time limit.
async fn wait_for_parts(mut parts: JoinSet<anyhow::Result<()>>) -> anyhow::Result<()> {
    let all = async {
        while let Some(ended) = parts.join_next().await {
            if let Ok(Err(error)) = ended {
                tracing::warn!(error = format!("{error:#}"), "while ending");
            }
        }
    };
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, all).await.is_err() {
        tracing::warn!("not everything ended in time");
        parts.shutdown().await;
    }
    Ok(())
}

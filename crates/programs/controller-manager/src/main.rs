//! `liqo-controller-manager`: the one process that runs all controllers of Liqo in a cluster.
//!
//! It only starts the parts; each part is a crate.
//!
//! ```text
//!   every replica                     only the leader
//!   +---------------------------+     +--------------------------------------------------+
//!   | /healthz /readyz /metrics |     | peering     auth endpoint, sessions, tenancies   |
//!   | admission webhook         |     | sharing     requests, offers, virtual nodes      |
//!   | leader election           | --> | negotiation ranges, addresses, tunnel endpoints  |
//!   |                           |     | offloading  namespaces, pods, kubelet API        |
//!   +---------------------------+     +--------------------------------------------------+
//! ```
//!
//! `liqo-controller-manager dns` is another process: the resolver for remote pods, in a Deployment of its own. See `dns`.
//!
//! If any part ends, or the lease is lost, the process ends: the kubelet starts it again, and another replica takes over. SIGTERM
//! ends it in order, and releases the lease at once.

mod config;
mod dns;

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use clap::Parser;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use liqo_api::{CONTROLLER_MANAGER, labels};
use liqo_controller_runtime::{
    Context, Peers,
    context::every_address,
    events::Events,
    leader::Election,
    process::{self, LogFormat, Readiness},
};
use liqo_peering::identity::ClusterIdentity;
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long the parts may take to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs every controller of Liqo in this cluster.
#[derive(Parser)]
#[command(
    version,
    about,
    after_help = "`liqo-controller-manager dns` runs the resolver for remote pods instead: see `liqo-controller-manager dns --help`."
)]
struct Arguments {
    /// Namespace that Liqo runs in.
    #[arg(long, env = "POD_NAMESPACE", default_value = liqo_api::SYSTEM_NAMESPACE)]
    namespace: String,
    /// Name of this pod, its identity in the leader election.
    #[arg(long, env = "POD_NAME")]
    pod_name: String,
    /// Address of this pod, at which it serves the kubelet API of every virtual node.
    #[arg(long, env = "POD_IP")]
    pod_ip: std::net::IpAddr,
    /// Port of /healthz, /readyz and /metrics.
    #[arg(long, default_value_t = 8080)]
    health_port: u16,
    /// Port of the admission webhook.
    #[arg(long, default_value_t = 9443)]
    webhook_port: u16,
    /// Port of the auth endpoint.
    #[arg(long, default_value_t = 8443)]
    auth_port: u16,
    /// Format of log lines. The environment variable `RUST_LOG` sets their level, for example `info,liqo_offloading=debug`.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if std::env::args_os().nth(1).is_some_and(|first| first == dns::COMMAND) {
        return dns::main().await;
    }
    let arguments = Arguments::parse();
    let health_address = every_address(arguments.pod_ip, arguments.health_port);
    let readiness = Readiness::waiting("the webhook does not answer yet");
    process::run(arguments.log_format, health_address, readiness.clone(), |stop| run(arguments, readiness, stop)).await
}

async fn run(arguments: Arguments, readiness: Readiness, stop: CancellationToken) -> anyhow::Result<()> {
    let client = process::client().await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &arguments.namespace);
    set_leader_label(&pods, &arguments.pod_name, false).await.context("removing the leader's label from this pod")?;
    let secrets = Api::namespaced(client.clone(), &arguments.namespace);
    let identity = Arc::new(ClusterIdentity::load_or_create(&secrets).await.context("loading the identity of this cluster")?);
    tracing::info!(cluster = %identity.id(), version = env!("CARGO_PKG_VERSION"), "this cluster");

    let config = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        config = config::follow(&client, stop.clone()) => config,
    };
    let context = Context {
        client: client.clone(),
        namespace: arguments.namespace.clone(),
        pod_ip: arguments.pod_ip,
        cluster_id: identity.id().clone(),
        config,
        peers: Peers::default(),
        events: Events::new(client.clone(), Some(arguments.pod_name.clone())),
        stop: stop.clone(),
    };
    let webhook = context.clone();
    let mut parts: JoinSet<anyhow::Result<()>> = JoinSet::new();
    parts.spawn(async move {
        liqo_offloading::webhook::serve(webhook, arguments.webhook_port, move || readiness.ready("ok".to_owned()))
            .await
            .context("the admission webhook")
    });

    let election = Election::new(client, &arguments.namespace, CONTROLLER_MANAGER, &arguments.pod_name);
    let leadership = tokio::select! {
        leadership = election.acquire(&stop) => leadership,
        ended = parts.join_next() => return part_ended(ended, &stop),
    };
    let Some(mut leadership) = leadership else { return finish(parts).await };
    tracing::info!("leading");
    parts.spawn({
        let context = context.clone();
        async move { liqo_peering::run(context, identity, arguments.auth_port).await.context("peering") }
    });
    parts.spawn({
        let context = context.clone();
        async move { liqo_sharing::run(context).await.context("sharing") }
    });
    parts.spawn({
        let context = context.clone();
        async move { liqo_network_negotiation::run(context).await.context("network negotiation") }
    });
    parts.spawn(async move { liqo_offloading::run(context).await.context("offloading") });
    set_leader_label(&pods, &arguments.pod_name, true).await.context("labelling this pod as the leader")?;

    // Renew the lease until the last part has ended, so that no other replica leads meanwhile. Then release it.
    let renewing = CancellationToken::new();
    let working = async {
        let outcome = tokio::select! {
            () = stop.cancelled() => Ok(()),
            ended = parts.join_next() => part_ended(ended, &stop),
        };
        stop.cancel();
        let finished = finish(parts).await;
        renewing.cancel();
        outcome.and(finished)
    };
    let leading = async {
        if !leadership.renew(&renewing).await {
            // Another replica may lead from now on, so nothing may continue here, not even to clean up.
            tracing::error!("leadership lost, ending at once");
            std::process::exit(1);
        }
    };
    let (outcome, ()) = tokio::join!(working, leading);
    leadership.release().await;
    outcome
}

/// Returns an error unless the whole process is ending.
fn part_ended(ended: Option<Result<anyhow::Result<()>, tokio::task::JoinError>>, stop: &CancellationToken) -> anyhow::Result<()> {
    match ended {
        Some(Ok(Err(error))) => Err(error),
        Some(Err(panic)) => Err(anyhow::Error::new(panic).context("a part of the manager failed")),
        _ if stop.is_cancelled() => Ok(()),
        _ => bail!("a part of the manager ended by itself"),
    }
}

/// Waits until the parts have ended, with a time limit.
async fn finish(mut parts: JoinSet<anyhow::Result<()>>) -> anyhow::Result<()> {
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
    tracing::info!("ended in order");
    Ok(())
}

/// The Services of what only the leader serves select its pod by this label. After a restart of the container, the pod may still have
/// it, so the start removes it. Writes nothing if nothing changes.
async fn set_leader_label(pods: &Api<Pod>, name: &str, leader: bool) -> kube::Result<()> {
    let Some(pod) = pods.get_metadata_opt(name).await? else { return Ok(()) };
    let labelled = pod.metadata.labels.unwrap_or_default().contains_key(labels::LEADER);
    if labelled != leader {
        let value = if leader { json!("true") } else { json!(null) };
        let patch = json!({ "metadata": { "labels": { labels::LEADER: value } } });
        pods.patch_metadata(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    }
    Ok(())
}

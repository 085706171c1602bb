//! `liqo-controller-manager`: the one process of Liqo in a cluster.
//!
//! It only wires: what each slice does is told in the slice.
//!
//! ```text
//!   every replica                     the leader alone
//!   +---------------------------+     +--------------------------------------------------+
//!   | /healthz /readyz /metrics |     | peering     auth endpoint, sessions, tenancies   |
//!   | admission webhook         |     | sharing     requests, offers, virtual nodes      |
//!   | leader election           | --> | interconnect  ranges, addresses, tunnel endpoints|
//!   |                           |     | offloading  namespaces, pods, kubelet API        |
//!   +---------------------------+     +--------------------------------------------------+
//! ```
//!
//! The end of any part, or the loss of the lease, ends the process: the kubelet starts it again, and another replica has
//! taken over meanwhile. SIGTERM ends it in order and gives the lease up at once.

mod config;
mod health;

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use clap::{Parser, ValueEnum};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config,
    api::{Patch, PatchParams},
};
use liqo_api::labels;
use liqo_kit::{Context, Peers, context::every_address, events::Events, leader::Election};
use liqo_peering::identity::ClusterIdentity;
use serde_json::json;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::health::Health;

/// Name of the Lease of the leader election.
const LEASE: &str = "liqo-controller-manager";
/// What is logged unless `RUST_LOG` says otherwise. The client's warnings are silent even where all else is not, unless they are
/// asked for by name: they repeat what we log, and some show the whole text of an answer, which may hold secrets.
const QUIET: &str = "info,kube_client=error,kube_runtime=error";
/// How long the parts may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// Runs every controller of Liqo in this cluster.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// Namespace that Liqo runs in.
    #[arg(long, env = "POD_NAMESPACE", default_value = liqo_api::SYSTEM_NAMESPACE)]
    namespace: String,
    /// Name of this pod: its identity in the leader election.
    #[arg(long, env = "POD_NAME")]
    pod_name: String,
    /// Address of this pod: the kubelet API of every virtual node is served there.
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
    /// How log lines are written. Their level is set by the environment variable `RUST_LOG`, such as `info,liqo_offloading=debug`.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    start_logging(arguments.log_format);
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        bail!("a second TLS provider is linked in; this is a fault of the build");
    }
    let outcome = run(arguments).await;
    if let Err(error) = &outcome {
        tracing::error!(error = format!("{error:#}"), "ending");
    }
    outcome
}

fn start_logging(format: LogFormat) {
    let wanted = std::env::var("RUST_LOG").unwrap_or_default();
    let filter = tracing_subscriber::EnvFilter::try_new(format!("{QUIET},{wanted}")).unwrap_or_else(|_| QUIET.into());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder.with_ansi(false).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    stop_on_signal(stop.clone())?;
    let config = Config::infer().await.context("no access to the API server: neither a service account nor a kubeconfig")?;
    let client = Client::try_from(config).context("building the client for the API server")?;

    let health = Health::default();
    let mut parts: JoinSet<anyhow::Result<()>> = JoinSet::new();
    parts.spawn(health::serve(every_address(arguments.pod_ip, arguments.health_port), health.clone(), stop.clone()));

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
        pod_ip: arguments.pod_ip.to_string(),
        cluster_id: identity.id().clone(),
        config,
        peers: Peers::default(),
        events: Events::new(client.clone(), Some(arguments.pod_name.clone())),
        stop: stop.clone(),
    };
    let (webhook, webhook_ready) = (context.clone(), health.clone());
    parts.spawn(async move {
        liqo_offloading::webhook::serve(webhook, arguments.webhook_port, move || webhook_ready.set_ready())
            .await
            .context("the admission webhook")
    });

    let election = Election::new(client, &arguments.namespace, LEASE, &arguments.pod_name);
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
        async move { liqo_interconnect::run(context).await.context("interconnect") }
    });
    parts.spawn(async move { liqo_offloading::run(context).await.context("offloading") });
    set_leader_label(&pods, &arguments.pod_name, true).await.context("labelling this pod as the leader")?;

    // The lease is renewed until the last part has ended, and then given up: so nobody leads beside us, and the next one at once.
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
        if !leadership.keep(&renewing).await {
            // Another replica may lead from now on: nothing of ours may run on, not even to clean up.
            tracing::error!("leadership lost, ending at once");
            std::process::exit(1);
        }
    };
    let (outcome, ()) = tokio::join!(working, leading);
    leadership.release().await;
    outcome
}

/// A part ended although nobody asked it to, unless the whole process is ending.
fn part_ended(ended: Option<Result<anyhow::Result<()>, tokio::task::JoinError>>, stop: &CancellationToken) -> anyhow::Result<()> {
    match ended {
        Some(Ok(Err(error))) => Err(error),
        Some(Err(panic)) => Err(anyhow::Error::new(panic).context("a part of the manager failed")),
        _ if stop.is_cancelled() => Ok(()),
        _ => bail!("a part of the manager ended by itself"),
    }
}

/// Waits for the parts to end, but not for ever.
async fn finish(mut parts: JoinSet<anyhow::Result<()>>) -> anyhow::Result<()> {
    let all = async {
        while let Some(ended) = parts.join_next().await {
            if let Ok(Err(error)) = ended {
                tracing::warn!(error = format!("{error:#}"), "while ending");
            }
        }
    };
    if tokio::time::timeout(GRACE, all).await.is_err() {
        tracing::warn!("not everything ended in time");
        parts.shutdown().await;
    }
    tracing::info!("ended in order");
    Ok(())
}

fn stop_on_signal(stop: CancellationToken) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("asked to end");
        stop.cancel();
    });
    Ok(())
}

/// The Services of what only the leader serves select by this label. A container that was restarted finds its pod with the
/// label of its former life, so it is removed at start. Writes nothing when nothing changes.
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

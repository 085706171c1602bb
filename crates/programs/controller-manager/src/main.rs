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
//!   |                           |     | tethering   the working mode                     |
//!   +---------------------------+     +--------------------------------------------------+
//! ```
//!
//! `liqo-controller-manager dns` is another process: the resolver for remote pods, in a Deployment of its own. See `dns`.
//!
//! If any part ends, or the lease is lost, the process ends: the kubelet starts it again, and another replica takes over. SIGTERM
//! ends it in order: the lease is free as soon as the leader's parts have ended, and the webhook answers until the API server knows
//! that this replica is ending.

mod config;
mod dns;
mod leader_pod;

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use clap::Parser;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use liqo_api::CONTROLLER_MANAGER;
use liqo_controller_runtime::{
    Clock, Context, Peers,
    context::every_address,
    events::Events,
    leader::{Election, Leadership, Timing},
    process::{self, LogFormat, Readiness},
    start::at_start,
};
use liqo_signing::ClusterIdentity;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long the parts may take to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the webhook still answers after SIGTERM: until then, kube-proxy may send calls to this pod.
const WEBHOOK_LINGER: Duration = Duration::from_secs(3);

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
    /// How long another replica waits before it replaces a leader that died. This one gives up after two thirds of that time without
    /// the API server.
    #[arg(long, env = "LEASE_SECONDS", default_value_t = Timing::ALONE.lease_seconds(), value_parser = clap::value_parser!(u64).range(5..=60))]
    lease_seconds: u64,
    /// Format of log lines. The environment variable `RUST_LOG` sets their level, for example `info,liqo_offloading=debug`.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// Image of a virtual kubelet, as earlier versions of Liqo have it. Not needed: this process serves every virtual node.
    #[arg(long, value_name = "IMAGE")]
    kubelet_image: Option<String>,
    /// Arguments of a virtual kubelet, such as --remote-ipam=server=ADDRESS. Not needed: the network between clusters translates the
    /// addresses of pods behind a broker.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    kubelet_extra_args: Vec<String>,
}

impl Arguments {
    /// The flags that were given and have no effect.
    fn without_effect(&self) -> Vec<&'static str> {
        let image = self.kubelet_image.iter().map(|_| "--kubelet-image");
        image.chain((!self.kubelet_extra_args.is_empty()).then_some("--kubelet-extra-args")).collect()
    }
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
    for flag in arguments.without_effect() {
        tracing::info!(flag, "not needed, and without effect: there is no virtual kubelet apart from this process");
    }
    let client = process::client().await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &arguments.namespace);
    let unmarked = at_start(|| leader_pod::unmark(&pods, &arguments.pod_name)).await;
    unmarked.context("removing the leader's label from this pod")?;
    let secrets = Api::namespaced(client.clone(), &arguments.namespace);
    let identity = at_start(|| liqo_peering::identity::load_or_create(&secrets)).await;
    let identity = Arc::new(identity.context("loading the identity of this cluster")?);
    tracing::info!(cluster = %identity.id(), version = env!("CARGO_PKG_VERSION"), "this cluster");

    let config = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        config = config::follow(&client, stop.clone()) => config,
    };
    let context = Context {
        client: client.clone(),
        namespace: arguments.namespace.clone(),
        pod_ip: arguments.pod_ip,
        cluster_id: identity.id().clone(),
        clock: Clock::system(),
        config,
        peers: Peers::default(),
        events: Events::new(client.clone(), Some(arguments.pod_name.clone())),
        unwatched_since: None,
        stop: stop.clone(),
    };
    let mut webhook = start_webhook(&context, arguments.webhook_port, readiness);

    let timing = Timing::of_lease(arguments.lease_seconds);
    let election = Election::new(client, &arguments.namespace, CONTROLLER_MANAGER, &arguments.pod_name, timing, context.clock);
    let leadership = tokio::select! {
        biased;
        leadership = election.acquire(&stop) => leadership,
        ended = webhook.join_next() => return part_ended(ended, &stop),
    };
    let outcome = match leadership {
        None => Ok(()),
        Some(leadership) => {
            let replaced = leadership.replaced().map(str::to_owned);
            tracing::info!(replaced, "leading");
            let context = Context { unwatched_since: leadership.former_renewal(), ..context };
            let mut parts = start_leading(&context, identity, arguments.auth_port);
            let marked = leader_pod::keep_marked(pods, arguments.pod_name.clone(), replaced, context.clock, stop.clone());
            parts.spawn(async move {
                marked.await;
                Ok(())
            });
            lead(leadership, parts, &mut webhook, &stop).await
        }
    };
    let finished = finish(webhook).await;
    tracing::info!("ended in order");
    outcome.and(finished)
}

/// Starts what every replica does. It continues for a while after `context.stop`.
fn start_webhook(context: &Context, port: u16, readiness: Readiness) -> JoinSet<anyhow::Result<()>> {
    let (stop, lingering) = (context.stop.clone(), CancellationToken::new());
    let context = Context { stop: lingering.clone(), ..context.clone() };
    tokio::spawn(async move {
        stop.cancelled().await;
        tokio::time::sleep(WEBHOOK_LINGER).await;
        lingering.cancel();
    });
    let mut parts = JoinSet::new();
    parts.spawn(async move {
        let ready = move || readiness.ready("ok".to_owned());
        liqo_offloading::webhook::serve(context, port, ready).await.context("the admission webhook")
    });
    parts
}

/// Starts what only the leader does.
fn start_leading(context: &Context, identity: Arc<ClusterIdentity>, auth_port: u16) -> JoinSet<anyhow::Result<()>> {
    let mut parts = JoinSet::new();
    parts.spawn({
        let (context, identity) = (context.clone(), Arc::clone(&identity));
        async move { liqo_peering::run(context, identity, auth_port).await.context("peering") }
    });
    parts.spawn({
        let context = context.clone();
        async move { liqo_sharing::run(context, identity).await.context("sharing") }
    });
    parts.spawn({
        let context = context.clone();
        async move { liqo_network_negotiation::run(context).await.context("network negotiation") }
    });
    parts.spawn({
        let context = context.clone();
        async move { liqo_tethering::run(context).await.context("tethering") }
    });
    let context = context.clone();
    parts.spawn(async move { liqo_offloading::run(context).await.context("offloading") });
    parts
}

/// Renews the lease until the last of the leader's `parts` has ended, so that no other replica leads meanwhile. Then releases it.
async fn lead(
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
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_of_a_brokers_customer_are_accepted_and_have_no_effect() {
        let parse = |more: &[&str]| {
            Arguments::try_parse_from([&["liqo-controller-manager", "--pod-name=a", "--pod-ip=10.0.0.1"], more].concat())
        };
        assert_eq!(parse(&[]).unwrap().without_effect(), [""; 0]);
        let address = "--kubelet-extra-args=--remote-ipam=server=liqo-network-manager.liqo-broker-b9d3d5.svc.cluster.local";
        let arguments = parse(&["--kubelet-image=capacitorset/liqo-broker-vk:latest", address]).unwrap();
        assert_eq!(arguments.without_effect(), ["--kubelet-image", "--kubelet-extra-args"]);
        assert!(parse(&["--kubelet=x"]).is_err());
    }
}

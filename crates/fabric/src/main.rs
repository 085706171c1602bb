//! `liqo-fabric`: the process of Liqo on each node. It only wires; what it does is told in the library.

mod probe;

use std::{net::IpAddr, path::PathBuf};

use anyhow::{Context as _, bail};
use clap::{Parser, ValueEnum};
use kube::{Client, Config};
use liqo_fabric::{
    Options,
    health::{self, Health},
};
use liqo_kit::context::every_address;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What is logged unless `RUST_LOG` says otherwise. The client's warnings repeat what we log.
const QUIET: &str = "info,kube_client=error,kube_runtime=error";

/// Carries packets between this node and the pods of other clusters.
#[derive(Parser)]
#[command(version, about, after_help = "`liqo-fabric probe --help`: what pods of `liqoctl test network` run.")]
struct Arguments {
    /// Namespace of Liqo's objects.
    #[arg(long, default_value = liqo_api::SYSTEM_NAMESPACE)]
    namespace: String,
    /// Name of the node that this runs on.
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// Address of the node: health is served on all addresses of its family.
    #[arg(long, env = "POD_IP", default_value = "0.0.0.0")]
    pod_ip: IpAddr,
    /// Directory of the gateway's WireGuard key, which is made at first use.
    #[arg(long, default_value = "/var/lib/liqo")]
    key_directory: PathBuf,
    /// Port of /healthz, /readyz and /metrics, on the node itself.
    #[arg(long, default_value_t = 9479)]
    health_port: u16,
    /// Remove everything of Liqo's network from this node, and be ready then, until asked to end.
    #[arg(long)]
    clear: bool,
    /// How log lines are written. Their level is set by the environment variable `RUST_LOG`, such as `info,liqo_datapath=debug`.
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
    if let Some(probe) = probe::wanted() {
        return probe::run(probe).await;
    }
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
    let health = Health::default();
    let address = every_address(arguments.pod_ip, arguments.health_port);
    let options = Options {
        namespace: arguments.namespace,
        node: arguments.node_name,
        key_directory: arguments.key_directory,
        health_port: arguments.health_port,
    };
    let working = async {
        if arguments.clear {
            liqo_fabric::clear(&options).await?;
            health.good("nothing of Liqo's network is on this node".to_owned());
            stop.cancelled().await;
            return Ok(());
        }
        let config = Config::infer().await.context("no access to the API server: neither a service account nor a kubeconfig")?;
        let client = Client::try_from(config).context("building the client for the API server")?;
        liqo_fabric::run(client, options, health.clone(), stop.clone()).await
    };
    let serving = health::serve(address, health.clone(), stop.clone());
    tokio::try_join!(working, serving).map(drop)
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

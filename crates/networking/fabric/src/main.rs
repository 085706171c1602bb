//! `liqo-fabric`: the flags of the program, and its health server. The library documents what it
//! does.
//!
//! `liqo-fabric probe` is a different program in the same image: see `probe`.

mod probe;

use std::{net::IpAddr, path::PathBuf};

use clap::Parser;
use liqo_controller_runtime::{
    context::every_address,
    process::{self, LogFormat, Readiness},
};
use liqo_fabric::AgentOptions;
use tokio_util::sync::CancellationToken;

/// Carries packets between this node and the pods of other clusters.
#[derive(Parser)]
#[command(
    version,
    about,
    after_help = "`liqo-fabric probe --help`: what pods of `liqoctl test network` run."
)]
struct AgentArguments {
    /// Namespace of Liqo's objects.
    #[arg(long, default_value = liqo_api::SYSTEM_NAMESPACE)]
    namespace: String,
    /// Name of the node that this runs on.
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// Address of the node: health is served on all addresses of its family.
    #[arg(long, env = "POD_IP", default_value = "0.0.0.0")]
    pod_ip: IpAddr,
    /// Directory of the gateway's WireGuard key, which is generated at first use.
    #[arg(long, default_value = "/var/lib/liqo")]
    key_directory: PathBuf,
    /// Port of /healthz, /readyz and /metrics, on the node itself.
    #[arg(long, default_value_t = 9479)]
    health_port: u16,
    /// Remove everything of Liqo's network from this node, and be ready then, until asked to end.
    #[arg(long)]
    clear: bool,
    /// Format of log lines. The environment variable `RUST_LOG` sets their level, for example
    /// `info,liqo_datapath=debug`.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if let Some(probe) = probe::parse_arguments() {
        return probe::run_command(probe).await;
    }
    let arguments = AgentArguments::parse();
    let health_address = every_address(arguments.pod_ip, arguments.health_port);
    let readiness =
        Readiness::waiting("the objects for this node are not read from the API server yet");
    process::run_program(
        arguments.log_format,
        health_address,
        readiness.clone(),
        |stop| run(arguments, readiness, stop),
    )
    .await
}

async fn run(
    arguments: AgentArguments,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let options = AgentOptions {
        namespace: arguments.namespace,
        node: arguments.node_name,
        key_directory: arguments.key_directory,
        health_port: arguments.health_port,
    };
    if arguments.clear {
        liqo_fabric::clear(&options).await?;
        readiness.set_ready("nothing of Liqo's network is on this node".to_owned());
        stop.cancelled().await;
        return Ok(());
    }
    liqo_fabric::run(process::api_client().await?, options, readiness, stop).await
}

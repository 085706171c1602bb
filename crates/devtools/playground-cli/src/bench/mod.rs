//! `bench`: what Liqo costs, compared with the same without Liqo.
//!
//! `network` compares the tunnel with the plain link, `offload` compares pods on a virtual node with
//! pods that are created at the provider. Both create what they need with the functions of
//! `liqoctl test network`, and remove it at the end. `report` has the parts that both results share.

mod builds;
mod clusters;
mod network;
mod offload;
mod report;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use liqoctl::{
    cluster::ClusterAccess,
    output::{self, OutputFormat, Paint},
    progress::StepProgress,
};

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArguments {
    #[command(subcommand)]
    command: BenchCommand,
    /// Kubeconfig file of the cluster [default: as kubectl]
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig [default: the current one]
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Measure the speed of the tunnel to another cluster, compared with the plain link between the
    /// gateways
    ///
    /// A pod of this cluster sends to a pod at the peer. With access to the peer, a program on this
    /// cluster's gateway also sends to one on the peer's gateway, outside the tunnel. Both
    /// alternate, so that they meet the same load. The command also changes a Service and measures
    /// how soon the peer has the change.
    Network(network::NetworkBenchOptions),
    /// Measure the cost of pods on a virtual node, compared with the same pods created at the
    /// provider
    ///
    /// All pods run on fake nodes of the provider, which `cargo playground up --fake-nodes 20`
    /// creates: a Deployment, alternately offloaded and directly at the provider, and single pods.
    /// In a playground on this machine, the result also contains Liqo's own writes, and the CPU
    /// time and memory of Liqo and of the API servers. Without a kubeconfig, the command uses the
    /// clusters of the playground.
    Offload(offload::OffloadBenchOptions),
}

/// Measures and prints; `instance` is the playground to use if the flags name none.
pub async fn run_bench(
    arguments: BenchArguments,
    instance: &str,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let access = ClusterAccess {
        kubeconfig: arguments.kubeconfig,
        context: arguments.context,
    };
    let progress = StepProgress::new();
    match arguments.command {
        BenchCommand::Network(options) => {
            let clusters = clusters::named_clusters(&access, &options.others).await?;
            let measured = network::run_network_bench(&clusters, &options, &progress).await?;
            output::print_result(format, &measured, |measured| {
                network::render_network_bench(measured, Paint::for_stdout())
            })?;
            measured.report.ensure_all_removed()
        }
        BenchCommand::Offload(options) => {
            let (clusters, playground) =
                clusters::clusters_and_playground(&access, &options.others, instance).await?;
            let measured =
                offload::run_offload_bench(&clusters, playground.as_ref(), &options, &progress)
                    .await?;
            output::print_result(format, &measured, |measured| {
                offload::render_offload_bench(measured, Paint::for_stdout())
            })?;
            measured.report.ensure_all_removed()
        }
    }
}

//! `test`, `bench` and `renew`: arguments.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use crate::{settings, token};

/// `test ...`.
#[derive(Debug, Subcommand)]
pub enum TestCommand {
    /// Test whether pods and nodes of each pair of clusters reach each other, and print what to do
    /// if they do not
    ///
    /// In each cluster that borrows, the test creates a namespace, offloads it, and starts pods on
    /// the nodes of that cluster and of its providers. The pods call each other by address and by
    /// name, over TCP and UDP, with small and large packets. The namespaces are removed at the end.
    /// The exit code is 1 if something does not work.
    Network(TestNetworkArguments),
}

/// Arguments of `test network`.
#[derive(Debug, Args)]
pub struct TestNetworkArguments {
    #[command(flatten)]
    pub others: OtherClusterFlags,
    /// Maximum number of nodes of each cluster that take part
    #[arg(long, default_value_t = 3, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    pub nodes: u16,
    /// Image of the pods, which contains liqo-fabric [default: the one that runs in the cluster]
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Keep the pods so that you can inspect them; the next run removes them
    #[arg(long)]
    pub keep: bool,
    /// Time limit of the whole run
    #[arg(long, default_value = "5m", value_parser = token::parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
}

/// Clusters in addition to that of --kubeconfig.
#[derive(Clone, Debug, Args)]
pub struct OtherClusterFlags {
    /// Kubeconfig file of another cluster, so that its nodes also take part; may be repeated
    #[arg(long, value_name = "FILE")]
    pub remote_kubeconfig: Vec<PathBuf>,
    /// Context of another cluster in the kubeconfig of this one; may be repeated
    #[arg(long, value_name = "NAME")]
    pub remote_context: Vec<String>,
    /// All clusters of the playground
    #[arg(
        long,
        value_name = "INSTANCE",
        num_args = 0..=1,
        default_missing_value = "liqo",
        conflicts_with_all = ["remote_kubeconfig", "remote_context"]
    )]
    pub playground: Option<String>,
}

/// `renew ...`.
#[derive(Debug, Subcommand)]
pub enum RenewCommand {
    /// Give the gateways of this cluster new WireGuard keys, without losing packets
    ///
    /// Peers get the new keys in addition to the former ones. This cluster announces the former
    /// keys for five more minutes and accepts them for one day. If you renew twice, the keys before
    /// the first renewal become invalid.
    GatewayKeys {
        /// Do not wait until all gateways have new keys
        #[arg(long)]
        no_wait: bool,
        /// How long to wait for the new keys
        #[arg(long, default_value = "2m", value_parser = token::parse_duration, value_name = "DURATION", conflicts_with = "no_wait")]
        timeout: Duration,
    },
}

/// `bench ...`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure the speed of the tunnel to another cluster, compared with the plain link between the
    /// gateways
    ///
    /// A pod of this cluster sends to a pod at the peer. With access to the peer, a program on this
    /// cluster's gateway also sends to one on the peer's gateway, outside the tunnel. Both
    /// alternate, so that they meet the same load. The command also changes a Service and measures
    /// how soon the peer has the change.
    Network(BenchNetworkArguments),
    /// Measure the cost of pods on a virtual node, compared with the same pods created at the
    /// provider
    ///
    /// All pods run on fake nodes of the provider, which `cargo playground up --fake-nodes 20`
    /// creates: a Deployment, alternately offloaded and directly at the provider, and single pods.
    /// In a playground on this machine, the result also contains Liqo's own writes, and the CPU
    /// time and memory of Liqo and of the API servers. Without a kubeconfig, the command uses the
    /// clusters of the playground.
    Offload(BenchOffloadArguments),
}

/// Arguments of `bench offload`.
#[derive(Debug, Args)]
pub struct BenchOffloadArguments {
    /// Number of pods in the Deployment
    #[arg(long, default_value_t = 1000, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub pods: u32,
    /// How often to repeat each measurement; the median counts
    #[arg(long, default_value_t = 3, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=20))]
    pub rounds: u16,
    /// Name or ID of the provider [default: the only one]
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Prefix for the names of the temporary namespaces
    #[arg(long, default_value = "offload-bench", value_name = "NAME", value_parser = settings::cluster_name)]
    pub namespace: String,
    /// The provider's cluster
    #[command(flatten)]
    pub others: OtherClusterFlags,
    /// Time limit of the whole run
    #[arg(long, default_value = "30m", value_parser = token::parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
}

/// Arguments of `bench network`.
#[derive(Debug, Args)]
pub struct BenchNetworkArguments {
    /// Name or ID of the peer [default: the one of --remote-kubeconfig, or the only one]
    pub peer: Option<String>,
    #[command(flatten)]
    pub others: OtherClusterFlags,
    /// Duration of each measurement in seconds
    #[arg(long, default_value_t = 2, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=60))]
    pub seconds: u16,
    /// How often to repeat each measurement; the median counts
    #[arg(long, default_value_t = 3, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=20))]
    pub rounds: u16,
    /// Image of the pods, which contains liqo-fabric [default: the one that runs in the cluster]
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Time limit of the whole run
    #[arg(long, default_value = "10m", value_parser = token::parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
}

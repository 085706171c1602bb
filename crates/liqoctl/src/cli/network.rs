//! `test`, `bench` and `renew`: arguments.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use crate::token;

/// `test ...`.
#[derive(Debug, Subcommand)]
pub enum Test {
    /// Let pods and nodes of every pair of clusters talk to each other, and say what to do where they cannot
    ///
    /// In each cluster that borrows, a namespace is made and offloaded for as long as it takes, with pods on its nodes and on those of
    /// the clusters that it borrows from. They ask each other by address and by name, over TCP and UDP, with small and large packets.
    /// The exit code is 1 if something does not work.
    Network(TestNetwork),
}

/// Arguments of `test network`.
#[derive(Debug, Args)]
pub struct TestNetwork {
    /// Which other clusters may be looked into
    #[command(flatten)]
    pub others: Others,
    /// So many nodes of each cluster take part at most
    #[arg(long, default_value_t = 3, value_name = "NUMBER")]
    pub nodes: usize,
    /// Image of the pods: one of liqo-fabric [default: the one that runs in the cluster]
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Leave the pods for a look; the next run removes them
    #[arg(long)]
    pub keep: bool,
    /// How long it may take in all
    #[arg(long, default_value = "5m", value_parser = token::duration, value_name = "DURATION")]
    pub timeout: Duration,
}

/// Clusters beside the one of --kubeconfig.
#[derive(Clone, Debug, Args)]
pub struct Others {
    /// Kubeconfig file of another cluster, whose nodes then take part, too; repeated
    #[arg(long, value_name = "FILE")]
    pub remote_kubeconfig: Vec<PathBuf>,
    /// Context of another cluster in the kubeconfig of this one; repeated
    #[arg(long, value_name = "NAME")]
    pub remote_context: Vec<String>,
    /// The clusters of the playground, all of them
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
pub enum Renew {
    /// Give the gateways of this cluster new WireGuard keys, without a loss
    ///
    /// Peers learn the new keys beside the former ones. These are told to them for five minutes more, and taken for a day; called twice,
    /// the first ones are of no use any more.
    GatewayKeys {
        /// Do not wait until all gateways have new keys
        #[arg(long)]
        no_wait: bool,
        /// How long that may take
        #[arg(long, default_value = "2m", value_parser = token::duration, value_name = "DURATION", conflicts_with = "no_wait")]
        timeout: Duration,
    },
}

/// `bench ...`.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Measure how fast the tunnel to another cluster is, beside the plain link between the gateways
    ///
    /// A pod of this cluster sends to one at the peer, and, where the peer may be looked into, too, a program on this cluster's gateway
    /// to one on the peer's, past the tunnel; in turns, so that both meet the same load of the machines. Then a Service is
    /// changed, where the peer may be looked into, to see how soon the peer knows.
    Network(BenchNetwork),
}

/// Arguments of `bench network`.
#[derive(Debug, Args)]
pub struct BenchNetwork {
    /// Name or ID of the peer [default: the one of --remote-kubeconfig, or the only one]
    pub peer: Option<String>,
    /// Which other clusters may be looked into
    #[command(flatten)]
    pub others: Others,
    /// For how many seconds each measurement sends
    #[arg(long, default_value_t = 2, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=60))]
    pub seconds: u16,
    /// How often each is repeated; the median counts
    #[arg(long, default_value_t = 3, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=20))]
    pub rounds: u16,
    /// Image of the pods: one of liqo-fabric [default: the one that runs in the cluster]
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// How long it may take in all
    #[arg(long, default_value = "10m", value_parser = token::duration, value_name = "DURATION")]
    pub timeout: Duration,
}

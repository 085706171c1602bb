//! The command line: commands, flags, help.

use clap::{Args, Parser, Subcommand};
use liqo_quantity::ResourceArgument;
use liqoctl::output::OutputFormat;

use crate::{
    bench::BenchArguments,
    cluster_argument::{ClusterArgument, nodes},
    conformance::Group,
};

/// Run real Kubernetes clusters with Liqo on this machine
#[derive(Debug, Parser)]
#[command(name = crate::PROGRAM, version, propagate_version = true, arg_required_else_help = true)]
pub struct Arguments {
    /// What to do with the playground
    #[command(subcommand)]
    pub command: Command,
    /// Name of the playground: playgrounds do not see each other
    #[arg(
        long,
        global = true,
        default_value = "liqo",
        value_name = "NAME",
        hide = true
    )]
    pub instance: String,
    /// How results are printed
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT"
    )]
    pub output: OutputFormat,
    /// Write a log to standard error
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start clusters with Liqo, peer them, and run a demo in all of them; repairs what is broken
    Up(Up),
    /// Run Kubernetes' own conformance tests with their pods on a virtual node, in the clusters
    /// rome and milan, which stay up
    Conformance(Conformance),
    /// Measure the speed of the network between clusters, and the cost of offloading
    Bench(BenchArguments),
    /// Stop the clusters and remove everything except the cache of built programs
    Down,
    /// Show the clusters and their programs
    Status,
    /// Print the path of a cluster's kubeconfig
    Kubeconfig {
        /// Name of the cluster [default: all clusters, each path on a line]
        cluster: Option<String>,
    },
    /// Print the log of a cluster's program
    Logs {
        /// Name of the cluster
        cluster: String,
        /// Name of the program, as `status` shows it
        component: String,
    },
}

#[derive(Debug, Args)]
pub struct Conformance {
    /// Groups of tests
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "storage,apps,node,network",
        value_name = "GROUP,..."
    )]
    pub group: Vec<Group>,
    /// Only the tests whose names contain this text; repeat it for alternatives
    #[arg(long, value_name = "TEXT")]
    pub test: Vec<String>,
    /// Print the names of the tests, and run none. Builds them if that was not done before
    #[arg(long, conflicts_with = "running")]
    pub list: bool,
    /// Use the clusters of the instance as they run: start nothing, install nothing, peer nothing
    #[arg(long)]
    pub running: bool,
    /// How many tests run at the same time. They mostly wait
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub processes: u8,
}

#[derive(Debug, Default, Args)]
#[allow(clippy::struct_excessive_bools, reason = "the options are independent")]
pub struct Up {
    /// Names of the clusters, each with its own node counts where needed:
    /// rome,milan:nodes=2:fake-nodes=100. The first one borrows from the others
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "rome,milan",
        value_name = "NAME[:nodes=N][:fake-nodes=N]"
    )]
    pub clusters: Vec<ClusterArgument>,
    /// One of the clusters lends on what it borrows: it borrows from all others, and the first one
    /// borrows only from it
    #[arg(long, value_name = "NAME", conflicts_with_all = ["bare", "bare_peering"])]
    pub broker: Option<String>,
    /// Number of real nodes in each cluster [default: unchanged; 1 for a new cluster]
    #[arg(long, value_name = "NUMBER", value_parser = nodes)]
    pub nodes: Option<u8>,
    /// Number of fake nodes in each cluster, where pods become ready without running
    /// [default: unchanged; 0 for a new cluster]
    #[arg(long, value_name = "NUMBER")]
    pub fake_nodes: Option<u16>,
    /// Resources of each fake node, such as nvidia.com/gpu=8
    /// [default: unchanged; cpu=32,memory=256Gi,pods=110 for a new cluster]
    #[arg(long, value_delimiter = ',', value_name = "NAME=QUANTITY,...")]
    pub fake_node_resources: Vec<ResourceArgument>,
    /// Taint fake nodes: only pods that tolerate kwok.x-k8s.io/node=fake:NoSchedule run there, and
    /// peers cannot borrow them
    #[arg(long, value_name = "BOOLEAN", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub fake_node_taint: Option<bool>,
    /// Give pods, Services and nodes IPv6 addresses in addition to IPv4. Running clusters keep
    /// their address families: a cluster with only IPv4 is refused
    #[arg(long)]
    pub dual_stack: bool,
    /// Give the pods of each cluster a range of their own, so that they can keep their addresses in
    /// other clusters. Running clusters keep their ranges
    #[arg(long)]
    pub distinct_ranges: bool,
    /// Enforce network policies, from now on until the clusters are taken down
    #[arg(long)]
    pub network_policies: bool,
    /// Run metrics-server, for `kubectl top` and autoscalers, from now on until the clusters are
    /// taken down
    #[arg(long)]
    pub metrics: bool,
    /// Also build the resource plugins in the folder plugins, and load their images into the
    /// clusters
    #[arg(long, conflicts_with = "bare")]
    pub plugins: bool,
    /// Build Liqo's programs for speed instead of fast, for measurements
    #[arg(long, conflicts_with = "bare")]
    pub release: bool,
    /// Start only the clusters, without Liqo
    #[arg(long, conflicts_with = "bare_peering")]
    pub bare: bool,
    /// Install Liqo, but do not peer the clusters
    #[arg(long)]
    pub bare_peering: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_valid() {
        Arguments::command().debug_assert();
    }
}

//! The command line: commands, flags, help.

mod doctor;
mod network;
mod sharing;

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use liqo_api::{PodOffloadingStrategy, Reflection, ResourceList};
use liqo_quantity::ResourceArgument;

pub use doctor::Doctor;
pub use network::{Bench, BenchNetwork, Others, Renew, Test, TestNetwork};
pub use sharing::{Offer, OfferDecide, PeerLabels, Policy};

use crate::{
    cluster::Access,
    gateways::GatewayArgument,
    output::Format,
    peer::Request,
    playground::{self, ClusterArgument},
    settings, token,
};

/// Borrow resources from other Kubernetes clusters, and lend them yours.
///
/// Works as a plugin of kubectl, too: link the program as `kubectl-liqo` somewhere on your PATH, then type `kubectl liqo`.
#[derive(Debug, Parser)]
#[command(name = "liqoctl", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Flags that every command takes.
    #[command(flatten)]
    pub global: Global,
}

/// Flags that every command takes.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Kubeconfig file of the cluster [default: as kubectl]
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig [default: the current one]
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// How results are printed
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Format,
    /// Say what is being done, on standard error
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

impl Global {
    /// The cluster that is meant.
    pub fn access(&self) -> Access {
        Access { kubeconfig: self.kubeconfig.clone(), context: self.context.clone() }
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Install Liqo in the cluster, or bring an installation up to date
    Install(Install),
    /// Remove Liqo from the cluster
    Uninstall(Uninstall),
    /// Borrow from another cluster
    Peer(Box<Peer>),
    /// Stop borrowing from another cluster
    Unpeer(Unpeer),
    /// Let a cluster borrow from here, such as one that waits for approval
    Approve {
        /// Name or ID of the peer
        peer: String,
    },
    /// Replace what has become too old
    #[command(subcommand)]
    Renew(Renew),
    /// Let a cluster not borrow from here; what it has is taken back
    Refuse {
        /// Name or ID of the peer
        peer: String,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Let the pods of a namespace run in other clusters
    #[command(subcommand)]
    Offload(Offload),
    /// Take a namespace home
    #[command(subcommand)]
    Unoffload(Unoffload),
    /// Show the offers of peers, and decide on them
    #[command(subcommand)]
    Offer(Offer),
    /// Show the policies by which this cluster shares, and what they mean for a peer
    #[command(subcommand)]
    Policy(Policy),
    /// Show this cluster, its peers, and what keeps them from working
    Status,
    /// Try whether clusters reach each other
    #[command(subcommand)]
    Test(Test),
    /// Measure how fast clusters reach each other
    #[command(subcommand)]
    Bench(Bench),
    /// Look at each hop from here to pods in other clusters, and say what to do where one is broken
    ///
    /// It changes nothing. Ends with exit code 1 if anything failed.
    Doctor(Doctor),
    /// Manage the tokens with which other clusters make their first contact
    #[command(subcommand)]
    Token(Token),
    /// Make commands for others
    #[command(subcommand)]
    Generate(Generate),
    /// Write a resource plugin
    #[command(subcommand)]
    Plugin(Plugin),
    /// Run real clusters on this machine
    Playground(PlaygroundArguments),
    /// Show the versions of this program and of Liqo in the cluster
    Version {
        /// Only this program's; no cluster is asked
        #[arg(long)]
        client: bool,
    },
    /// Print what makes a shell complete this program's arguments
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Arguments of `install`.
#[derive(Debug, Args)]
pub struct Install {
    /// Set a value; what is not set stays as it is
    #[arg(long = "set", value_name = "KEY=VALUE", long_help = set_help())]
    pub set: Vec<String>,
    /// Only print the objects that would be applied
    #[arg(long)]
    pub dry_run: bool,
    /// How long to wait for each step
    #[arg(long, default_value = "5m", value_parser = token::duration, value_name = "DURATION")]
    pub timeout: Duration,
}

fn set_help() -> String {
    format!(
        "Set a value; what is not set stays as it is, and at the first installation has a default. Labels are given as a=b,c=d. Keys: {}",
        settings::KEYS.join(", ")
    )
}

/// Arguments of `uninstall`.
#[derive(Debug, Args)]
pub struct Uninstall {
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// End peerings and offloading first, and remove what the controllers hold even if they do not answer
    #[arg(long)]
    pub force: bool,
    /// Remove the cluster's identity, too
    #[arg(long)]
    pub purge: bool,
    /// How long to wait for each step
    #[arg(long, default_value = "2m", value_parser = token::duration, value_name = "DURATION")]
    pub timeout: Duration,
}

/// Arguments of `peer`.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools)] // Flags that do not depend on each other.
#[command(group = clap::ArgGroup::new("whom").required(true).multiple(true).args(["remote_kubeconfig", "remote_context", "id"]))]
pub struct Peer {
    /// Kubeconfig file of the cluster to borrow from
    #[arg(long, value_name = "FILE", conflicts_with_all = ["id", "auth_url", "token"])]
    pub remote_kubeconfig: Option<PathBuf>,
    /// Context in that kubeconfig (or in this cluster's, if that is the only difference)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["id", "auth_url", "token"])]
    pub remote_context: Option<String>,
    /// ID of the cluster to borrow from, as `generate peer-command` printed it there
    #[arg(long, value_name = "ID", requires = "auth_url")]
    pub id: Option<liqo_api::ClusterId>,
    /// URL of its auth endpoint
    #[arg(long, value_name = "URL", requires = "id")]
    pub auth_url: Option<String>,
    /// A gateway of it, KEY@ADDRESS:PORT: it is called through its tunnel, of which nothing but this port has to be open. Repeated for more
    #[arg(long, value_name = "GATEWAY", requires = "id")]
    pub tunnel: Vec<GatewayArgument>,
    /// Token that it gave out
    #[arg(long, requires = "id", env = "LIQO_PEERING_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Its friendly name
    #[arg(long, value_name = "NAME", requires = "id", value_parser = settings::cluster_name)]
    pub cluster_name: Option<String>,
    /// What to call it here [default: its own name]
    #[arg(long, value_parser = settings::cluster_name)]
    pub name: Option<String>,
    /// How much CPU to ask for; what is not asked for is taken as offered. Without any amount, what was asked for before holds
    #[arg(long, value_name = "QUANTITY", value_parser = amount_of("cpu"))]
    pub cpu: Option<ResourceArgument>,
    /// How much memory to ask for
    #[arg(long, value_name = "QUANTITY", value_parser = amount_of("memory"))]
    pub memory: Option<ResourceArgument>,
    /// How many pods to ask for
    #[arg(long, value_name = "NUMBER", value_parser = amount_of("pods"))]
    pub pods: Option<ResourceArgument>,
    /// How much of another resource to ask for, such as nvidia.com/gpu=1
    #[arg(long, value_name = "NAME=QUANTITY")]
    pub resource: Vec<ResourceArgument>,
    /// Ask for all that is offered, and forget what was asked for before
    #[arg(long, conflicts_with_all = ["cpu", "memory", "pods", "resource"])]
    pub everything: bool,
    /// Ask for no resources: only connect the pods of both clusters. What was borrowed is given back
    #[arg(long, conflicts_with_all = ["cpu", "memory", "pods", "resource", "everything"])]
    pub network_only: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Do not wait for the virtual node, or the tunnel
    #[arg(long)]
    pub no_wait: bool,
    /// How long to wait for the virtual node, or the tunnel
    #[arg(long, default_value = "2m", value_parser = token::duration, value_name = "DURATION")]
    pub timeout: Duration,
}

impl Peer {
    /// What is said about what to ask for.
    pub fn request(&self) -> Request {
        let named = [&self.cpu, &self.memory, &self.pods].into_iter().flatten();
        let all: ResourceList = named.chain(&self.resource).cloned().collect();
        match self.everything || all.iter().next().is_some() {
            _ if self.network_only => Request::NetworkOnly,
            true => Request::AtMost(all),
            false => Request::AsBefore,
        }
    }
}

fn amount_of(resource: &'static str) -> impl Fn(&str) -> Result<ResourceArgument, liqo_quantity::ResourceArgumentError> + Clone {
    move |text| ResourceArgument::new(resource, text)
}

/// Arguments of `unpeer`.
#[derive(Debug, Args)]
pub struct Unpeer {
    /// Name or ID of the peer
    pub name: String,
    /// Also end what the peer borrows from here
    #[arg(long)]
    pub incoming: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// How long to wait
    #[arg(long, default_value = "1m", value_parser = token::duration, value_name = "DURATION")]
    pub timeout: Duration,
}

/// `offload ...`.
#[derive(Debug, Subcommand)]
pub enum Offload {
    /// Let the pods of a namespace run in other clusters
    Namespace(OffloadNamespace),
}

/// Arguments of `offload namespace`.
#[derive(Debug, Args)]
pub struct OffloadNamespace {
    /// The namespace
    pub namespace: String,
    /// Where its pods may run
    #[arg(long, value_enum, default_value_t = Strategy::LocalAndRemote, value_name = "STRATEGY")]
    pub pod_offloading_strategy: Strategy,
    /// Which of its Services and Ingresses exist there
    #[arg(long, value_enum, value_name = "LIST")]
    pub reflection: Option<ReflectionList>,
    /// Which clusters, by labels of their nodes: expressions as in kubectl; repeated for alternatives
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Vec<String>,
    /// How long to wait for the namespace to exist there
    #[arg(long, default_value = "1m", value_parser = token::duration, value_name = "DURATION")]
    pub timeout: Duration,
}

/// Where pods may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum Strategy {
    /// In this cluster and in others, as the scheduler sees fit
    LocalAndRemote,
    /// In this cluster only; the namespace exists in the others all the same
    Local,
    /// In other clusters only
    Remote,
}

impl From<Strategy> for PodOffloadingStrategy {
    fn from(strategy: Strategy) -> Self {
        match strategy {
            Strategy::LocalAndRemote => Self::LocalAndRemote,
            Strategy::Local => Self::Local,
            Strategy::Remote => Self::Remote,
        }
    }
}

/// Which Services and Ingresses exist elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum ReflectionList {
    /// All but those with the annotation `liqo.io/reflection: deny`
    DenyList,
    /// Only those with the annotation `liqo.io/reflection: allow`
    AllowList,
}

impl From<ReflectionList> for Reflection {
    fn from(list: ReflectionList) -> Self {
        match list {
            ReflectionList::DenyList => Self::DenyList,
            ReflectionList::AllowList => Self::AllowList,
        }
    }
}

/// `unoffload ...`.
#[derive(Debug, Subcommand)]
pub enum Unoffload {
    /// Take a namespace home: its pods in other clusters end
    Namespace {
        /// The namespace
        namespace: String,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
        /// How long to wait
        #[arg(long, default_value = "2m", value_parser = token::duration, value_name = "DURATION")]
        timeout: Duration,
    },
}

/// `token ...`.
#[derive(Debug, Subcommand)]
pub enum Token {
    /// Make a token and print it, once
    Create(TokenCreate),
    /// Show the tokens that are valid here, without their text
    List,
    /// Make a token invalid; peerings made with it stay
    Delete {
        /// Name of the token
        name: String,
    },
}

/// Arguments of `token create` and `generate peer-command`.
#[derive(Debug, Args)]
pub struct TokenCreate {
    /// Name of the token [default: made up]
    #[arg(long, value_parser = settings::cluster_name)]
    pub name: Option<String>,
    /// Let any number of clusters use it
    #[arg(long)]
    pub reusable: bool,
    /// How long it is valid, such as 15m, 24h, 7d
    #[arg(long, default_value = "24h", value_parser = token::duration, value_name = "DURATION")]
    pub lifetime: Duration,
}

impl TokenCreate {
    /// The token to make.
    pub fn wanted(&self) -> token::Wanted {
        token::Wanted {
            name: self.name.clone(),
            usage: if self.reusable { token::Use::Reusable } else { token::Use::OneTime },
            lifetime: Some(self.lifetime),
        }
    }
}

/// `generate ...`.
#[derive(Debug, Subcommand)]
pub enum Generate {
    /// Print the command with which another cluster borrows from this one
    PeerCommand(PeerCommand),
    /// Write the definitions of Liqo's kinds
    #[command(hide = true)]
    Crds {
        /// The directory
        #[arg(long, default_value = "deploy/liqo/crds")]
        directory: PathBuf,
    },
}

/// Arguments of `generate peer-command`.
#[derive(Debug, Args)]
pub struct PeerCommand {
    /// The token
    #[command(flatten)]
    pub token: TokenCreate,
    /// The other cluster reaches nothing but the port of this cluster's tunnel. Not with --reusable: the token is also the key that it
    /// comes by, so each cluster needs its own
    #[arg(long, conflicts_with = "reusable")]
    pub through_tunnel: bool,
}

/// `plugin ...`.
#[derive(Debug, Subcommand)]
pub enum Plugin {
    /// Make the beginnings of a resource plugin: it builds, answers and can be deployed as it is
    New {
        /// Its name
        name: String,
        /// The folder in which its folder is made
        #[arg(long, default_value = ".", value_name = "FOLDER")]
        dir: PathBuf,
        /// A copy of Liqo's repository, which has the SDK [default: found around --dir]
        #[arg(long, value_name = "FOLDER")]
        sdk: Option<PathBuf>,
    },
}

/// Arguments of `playground`.
#[derive(Debug, Args)]
pub struct PlaygroundArguments {
    /// Which playground: several do not see each other
    #[arg(long, global = true, default_value = "liqo", value_name = "NAME", hide = true)]
    pub instance: String,
    /// What to do with it
    #[command(subcommand)]
    pub command: Playground,
}

/// `playground ...`.
#[derive(Debug, Subcommand)]
pub enum Playground {
    /// Start clusters with Liqo, peer them, and run something in both; repairs what is broken
    Up(PlaygroundUp),
    /// End all of them and remove everything but the cache
    Down,
    /// Show the clusters and their programs
    Status,
    /// Print the path of a cluster's kubeconfig
    Kubeconfig {
        /// The cluster
        cluster: String,
    },
    /// Print what a program of a cluster wrote
    Logs {
        /// The cluster
        cluster: String,
        /// The program, as `playground status` names it
        component: String,
    },
}

/// Arguments of `playground up`.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools)] // Each is an option of its own.
pub struct PlaygroundUp {
    /// Names of the clusters, each with nodes of its own if need be: rome,milan:nodes=2:fake-nodes=100; the first one borrows from the others
    #[arg(long, value_delimiter = ',', default_value = "rome,milan", value_name = "NAME[:nodes=N][:fake-nodes=N]")]
    pub clusters: Vec<ClusterArgument>,
    /// How many real nodes each cluster has [default: as many as it has, at first one]
    #[arg(long, value_name = "NUMBER", value_parser = playground::nodes)]
    pub nodes: Option<u8>,
    /// How many fake nodes each cluster has, where pods become ready without running [default: as many as it has, at first none]
    #[arg(long, value_name = "NUMBER")]
    pub fake_nodes: Option<u16>,
    /// What each fake node has, such as nvidia.com/gpu=8 [default: as it is, at first cpu=32,memory=256Gi,pods=110]
    #[arg(long, value_delimiter = ',', value_name = "NAME=QUANTITY,...")]
    pub fake_node_resources: Vec<ResourceArgument>,
    /// Only pods that tolerate kwok.x-k8s.io/node=fake:NoSchedule land on fake nodes
    #[arg(long, value_name = "BOOLEAN", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub fake_node_taint: Option<bool>,
    /// Pods, Services and nodes have IPv6 addresses beside their IPv4 addresses, and peers are told of both. Clusters that are up keep their families: one with IPv4 alone is refused
    #[arg(long)]
    pub dual_stack: bool,
    /// Enforce network policies, from now on until the clusters are taken down
    #[arg(long)]
    pub network_policies: bool,
    /// Clusters only, without Liqo
    #[arg(long, conflicts_with = "bare_peering")]
    pub bare: bool,
    /// With Liqo, not peered
    #[arg(long)]
    pub bare_peering: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_asked_for_is_checked_at_once() {
        let parse =
            |arguments: &[&str]| Cli::try_parse_from([&["liqoctl", "peer", "--remote-kubeconfig", "f"], arguments].concat());
        let Command::Peer(peer) =
            parse(&["--cpu", "500m", "--memory", "1Gi", "--pods", "10", "--resource", "nvidia.com/gpu=1"]).unwrap().command
        else {
            unreachable!()
        };
        let Request::AtMost(all) = peer.request() else { unreachable!() };
        assert_eq!((all.get("cpu").to_string().as_str(), all.len()), ("500m", 4));
        let Command::Peer(peer) = parse(&["--network-only"]).unwrap().command else { unreachable!() };
        assert_eq!(peer.request(), Request::NetworkOnly);
        for arguments in
            [["--cpu", "-1"], ["--pods", "1.5"], ["--memory", "lots"], ["--resource", "gpu"], ["--network-only", "--everything"]]
        {
            assert!(parse(&arguments).is_err(), "{arguments:?}");
        }
    }

    #[test]
    fn a_peer_is_named_either_by_kubeconfig_or_by_invitation() {
        let id = liqo_api::ClusterId::of_public_key(&[1; 32]);
        let parse = |arguments: &[&str]| Cli::try_parse_from([&["liqoctl", "peer"], arguments].concat());
        assert!(
            parse(&["--id", id.as_str(), "--auth-url", "https://203.0.113.5:1", "--token", "t", "--cluster-name", "milan"])
                .is_ok()
        );
        assert!(parse(&["--remote-context", "other"]).is_ok());
        assert!(parse(&[]).is_err());
        assert!(parse(&["--id", id.as_str()]).is_err());
        assert!(parse(&["--id", "milan", "--auth-url", "https://203.0.113.5:1"]).is_err());
        assert!(parse(&["--remote-kubeconfig", "f", "--id", id.as_str(), "--auth-url", "https://203.0.113.5:1"]).is_err());
    }

    #[test]
    fn a_token_that_many_may_use_is_no_key_of_the_tunnel() {
        let parse = |arguments: &[&str]| Cli::try_parse_from([&["liqoctl", "generate", "peer-command"], arguments].concat());
        assert!(parse(&["--through-tunnel"]).is_ok() && parse(&["--reusable"]).is_ok());
        assert!(parse(&["--through-tunnel", "--reusable"]).is_err());
    }

    #[test]
    fn strategies_are_spelled_as_in_the_api() {
        let parsed = Cli::try_parse_from([
            "liqoctl",
            "offload",
            "namespace",
            "demo",
            "--pod-offloading-strategy",
            "Remote",
            "--reflection",
            "AllowList",
            "-l",
            "region=eu",
        ])
        .unwrap();
        let Command::Offload(Offload::Namespace(offload)) = parsed.command else { unreachable!() };
        assert_eq!(offload.reflection.map(Reflection::from), Some(Reflection::AllowList));
        assert_eq!(PodOffloadingStrategy::from(offload.pod_offloading_strategy), PodOffloadingStrategy::Remote);
    }
}

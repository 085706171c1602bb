//! The command line: commands, flags, help.

mod broker;
mod cost;
mod doctor;
mod help;
mod network;
mod offload;
mod sharing;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{
    Args, Parser, Subcommand,
    error::{ContextKind, ContextValue},
};
use liqo_quantity::ResourceArgumentError;

pub use broker::{BrokerCommand, BrokerEnableArguments};
pub use cost::{CostArguments, CostCommand, CostPlanArguments};
pub use doctor::DoctorArguments;
pub use network::{RenewCommand, TestCommand};
pub use offload::{
    MoveCommand, NamespaceArguments, OffloadCommand, OffloadNamespaceArguments, UnoffloadCommand,
    UnoffloadNamespaceArguments,
};
pub use sharing::{
    ContractCommand, ExportFormat, OfferCommand, OfferDecisionArguments, PeerLabels, PolicyCommand,
    ReceiptCommand,
};

use crate::{
    catalog::CatalogOptions,
    cluster::ClusterAccess,
    gateways::GatewayArgument,
    output::OutputFormat,
    peer::{LimitArgument, PoolGranularity, RequestArguments},
    plugin::PluginOptions,
    settings,
    token::{self, TokenCreateOptions},
    uninstall::UninstallOptions,
    unpeer::UnpeerOptions,
};

/// Borrow resources from other Kubernetes clusters, and lend them yours.
///
/// Also works as a kubectl plugin: link the program as `kubectl-liqo` somewhere on your PATH, then
/// type `kubectl liqo`.
#[derive(Debug, Parser)]
#[command(
    name = "liqoctl",
    version,
    help_template = help::grouped_help(),
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub global: GlobalFlags,
}

/// Flags that every command takes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of all commands")]
pub struct GlobalFlags {
    /// Kubeconfig file of the cluster [default: as kubectl]
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig [default: the current one]
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Format of the results. With json or yaml, `offload`, `unoffload` and `move` only print what
    /// they would do, and change nothing
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT"
    )]
    pub output: OutputFormat,
    /// Log to standard error
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

impl GlobalFlags {
    pub fn access(&self) -> ClusterAccess {
        ClusterAccess {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Install Liqo in the cluster, or upgrade it
    #[command(after_help = help::examples(&[
        "liqoctl install --set discovery.config.clusterName=rome",
        "liqoctl install -f values.yaml --set global.imageRegistry=registry.example.org",
    ]))]
    Install(InstallArguments),
    /// Remove Liqo from the cluster
    Uninstall(UninstallOptions),
    /// Borrow resources from another cluster
    #[command(after_help = help::examples(&[
        "liqoctl peer --remote-kubeconfig milan.yaml",
        "liqoctl peer --remote-context milan --cpu 4 --memory 8Gi",
    ]))]
    Peer(Box<PeerArguments>),
    /// Stop borrowing resources from another cluster
    Unpeer(UnpeerOptions),
    /// Allow a cluster to borrow from this one, for example a cluster that waits for approval
    Approve {
        /// Name or ID of the peer
        peer: String,
    },
    /// Renew keys
    #[command(subcommand)]
    Renew(RenewCommand),
    /// Forbid a cluster to borrow from this one; this takes back what it borrowed
    Refuse {
        /// Name or ID of the peer
        peer: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Let a peer control this cluster: it uses all nodes here, and its scheduler decides where the
    /// pods of this cluster run
    Tether {
        /// Name or ID of the peer
        peer: String,
        #[command(flatten)]
        wait: TetherWaitFlags,
    },
    /// Take back control from the peer
    Untether {
        #[command(flatten)]
        wait: TetherWaitFlags,
    },
    /// Let the pods of a namespace run in other clusters
    #[command(subcommand)]
    Offload(OffloadCommand),
    /// Stop running the pods of a namespace in other clusters
    #[command(subcommand)]
    Unoffload(UnoffloadCommand),
    /// Move pods between clusters
    #[command(subcommand)]
    Move(MoveCommand),
    /// Show the offers of peers, and accept or refuse them
    #[command(subcommand)]
    Offer(OfferCommand),
    /// Show, verify and end contracts with peers
    #[command(subcommand)]
    Contract(ContractCommand),
    /// Show what pods used under contracts since the last receipt, what each consumer uses now, and
    /// what that costs
    Usage {
        /// Name or ID of one peer [default: all]
        peer: Option<String>,
    },
    /// Show, verify and export receipts of what was used under contracts
    #[command(subcommand)]
    Receipt(ReceiptCommand),
    /// Show what the pods in other clusters cost now, or with `plan` what workloads would cost
    /// where
    #[command(after_help = help::examples(&[
        "liqoctl cost -n demo",
        "liqoctl cost plan -f web.yaml -n demo",
    ]))]
    Cost(CostArguments),
    /// Show the policies of this cluster, and what they mean for a peer
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Lend on what this cluster borrows from others
    #[command(subcommand)]
    Broker(BrokerCommand),
    /// Show the catalog of a broker: what other clusters offer to it
    ///
    /// With --url, this cluster signs in there with its key (Secret liqo-identity); a broker lets
    /// in clusters that borrow from it. Without, the cluster of the kubeconfig is the broker, and
    /// its plugin is asked through the API server.
    Catalog(Box<CatalogOptions>),
    /// Explain where an object is on its way, and what it waits for
    #[command(subcommand)]
    Explain(ExplainCommand),
    /// Show the clusters that discovery finds now, and why this cluster is not peered with one
    Discover,
    /// Show this cluster, its peers, and the state of each step of a peering
    #[command(after_help = help::examples(&[
        "liqoctl status --watch",
        "liqoctl status -n demo",
    ]))]
    Status {
        /// Show it again whenever it changes, until you interrupt it
        #[arg(short, long)]
        watch: bool,
        /// Show only this offloaded namespace
        #[arg(short, long)]
        namespace: Option<String>,
    },
    /// Test the network between clusters
    #[command(subcommand)]
    Test(TestCommand),
    /// Check each step from this cluster to pods in other clusters, and print how to repair faults
    ///
    /// It changes nothing. The exit code is 1 if a check failed.
    #[command(after_help = help::examples(&[
        "liqoctl doctor",
        "liqoctl doctor --remote-kubeconfig milan.yaml",
    ]))]
    Doctor(DoctorArguments),
    /// Manage the tokens that other clusters need for their first contact
    #[command(subcommand)]
    Token(TokenCommand),
    /// Generate commands for other clusters
    #[command(subcommand)]
    Generate(GenerateCommand),
    /// Develop a resource plugin
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// Run real clusters on this machine, with the program `liqo-playground`
    #[command(disable_help_flag = true)]
    Playground {
        /// Arguments of `liqo-playground`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Show the versions of this program and of Liqo in the cluster
    Version {
        /// Only show this program's version; needs no cluster
        #[arg(long)]
        client: bool,
    },
    /// Print a completion script for a shell
    Completion { shell: clap_complete::Shell },
    /// Print the names that can stand at the end of these words of a command line
    #[command(name = "__complete", hide = true, disable_help_flag = true)]
    Complete {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

/// How long `tether` and `untether` wait.
#[derive(Debug, Args)]
pub struct TetherWaitFlags {
    /// Do not wait
    #[arg(long)]
    pub no_wait: bool,
    /// How long to wait
    #[arg(long, default_value = "10m", value_parser = token::parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
}

impl TetherWaitFlags {
    pub fn timeout(&self) -> Option<Duration> {
        (!self.no_wait).then_some(self.timeout)
    }
}

/// Arguments of `install`.
#[derive(Debug, Args)]
pub struct InstallArguments {
    /// Set a value; other values stay as they are
    #[arg(long = "set", value_name = "KEY=VALUE", long_help = set_help())]
    pub set: Vec<String>,
    /// Set the values of a YAML file, as for the Helm chart. --set takes precedence over files, a
    /// later file over an earlier one
    #[arg(short = 'f', long, value_name = "FILE")]
    pub values: Vec<PathBuf>,
    /// Only print the objects that would be applied
    #[arg(long)]
    pub dry_run: bool,
    /// Install in a cluster before Kubernetes 1.30, which cannot limit what Liqo's manager writes
    #[arg(long)]
    pub without_admission_policies: bool,
    /// How long to wait for each step
    #[arg(long, default_value = "5m", value_parser = token::parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
}

fn set_help() -> String {
    format!(
        "Set a value; other values stay as they are (the first installation takes defaults). Write labels as a=b,c=d. Keys: {}",
        settings::setting_keys().join(", ")
    )
}

/// Arguments of `peer`.
#[derive(Debug, Args)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "flags that do not depend on each other"
)]
#[command(group = clap::ArgGroup::new("whom").required(true).multiple(true).args(["remote_kubeconfig", "remote_context", "id"]))]
pub struct PeerArguments {
    /// Kubeconfig file of the cluster to borrow from
    #[arg(long, value_name = "FILE", conflicts_with_all = ["id", "auth_url", "token"])]
    pub remote_kubeconfig: Option<PathBuf>,
    /// Context of the cluster to borrow from, in that kubeconfig or else in this cluster's
    #[arg(long, value_name = "NAME", conflicts_with_all = ["id", "auth_url", "token"])]
    pub remote_context: Option<String>,
    /// ID of the cluster to borrow from; `generate peer-command` prints it there
    #[arg(long, value_name = "ID", requires = "auth_url")]
    pub id: Option<liqo_api::ClusterId>,
    /// URL of its auth endpoint
    #[arg(long, value_name = "URL", requires = "id")]
    pub auth_url: Option<String>,
    /// A gateway of that cluster, KEY@ADDRESS:PORT. The peering then needs only this open port; may
    /// be repeated
    #[arg(long, value_name = "GATEWAY", requires = "id")]
    pub tunnel: Vec<GatewayArgument>,
    /// Peering token of the other cluster
    #[arg(
        long,
        requires = "id",
        env = "LIQO_PEERING_TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
    /// Name of the cluster to borrow from
    #[arg(long, value_name = "NAME", requires = "id", value_parser = settings::cluster_name)]
    pub cluster_name: Option<String>,
    /// Name of the peer in this cluster [default: its own name]
    #[arg(long, value_parser = settings::cluster_name)]
    pub name: Option<String>,
    /// How much CPU to request, or `none` for no limit. Limits of other resources stay as they
    /// were; a resource without a limit is accepted as offered
    #[arg(long, value_name = "QUANTITY", value_parser = limit_of("cpu"))]
    pub cpu: Option<LimitArgument>,
    /// How much memory to request, or `none`
    #[arg(long, value_name = "QUANTITY", value_parser = limit_of("memory"))]
    pub memory: Option<LimitArgument>,
    /// How many pods to request, or `none`
    #[arg(long, value_name = "NUMBER", value_parser = limit_of("pods"))]
    pub pods: Option<LimitArgument>,
    /// How much of another resource to request, for example nvidia.com/gpu=1 or
    /// nvidia.com/gpu=none; may be repeated
    #[arg(long, value_name = "NAME=QUANTITY")]
    pub resource: Vec<LimitArgument>,
    /// Which pools to request; each becomes a virtual node. Pods on nodes of other pools move
    /// within the notice of the peer
    #[arg(
        long,
        value_enum,
        value_name = "POOLS",
        conflicts_with = "network_only"
    )]
    pub granularity: Option<PoolGranularity>,
    /// Request everything that the peer offers: this takes all limits away
    #[arg(long, conflicts_with_all = ["cpu", "memory", "pods", "resource"])]
    pub everything: bool,
    /// Request no resources, only connect the pods of both clusters. This gives back borrowed
    /// resources
    #[arg(long, conflicts_with_all = ["cpu", "memory", "pods", "resource", "everything"])]
    pub network_only: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Do not wait for the virtual node, or the tunnel
    #[arg(long)]
    pub no_wait: bool,
    /// How long to wait for the virtual node, or the tunnel
    #[arg(long, default_value = "2m", value_parser = token::parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
}

impl PeerArguments {
    pub fn request(&self) -> RequestArguments {
        let named = [&self.cpu, &self.memory, &self.pods].into_iter().flatten();
        let limits: Vec<LimitArgument> = named.chain(&self.resource).cloned().collect();
        match (self.network_only, self.everything) {
            (true, _) => RequestArguments::NetworkOnly,
            (false, true) => RequestArguments::Everything,
            (false, false) if limits.is_empty() => RequestArguments::AsBefore,
            (false, false) => RequestArguments::Limits(limits),
        }
    }
}

fn limit_of(
    resource: &'static str,
) -> impl Fn(&str) -> Result<LimitArgument, ResourceArgumentError> + Clone {
    move |text| LimitArgument::new(resource, text)
}

/// `explain ...`.
#[derive(Debug, Subcommand)]
pub enum ExplainCommand {
    /// Follow a pod from this cluster to the node in another cluster: each step with its state, and
    /// what to do
    ///
    /// It changes nothing. What it shows of the provider, it reads there with this cluster's
    /// credential.
    #[command(after_help = help::examples(&["liqoctl explain pod demo/web"]))]
    Pod {
        /// Name of the pod, or NAMESPACE/NAME
        pod: String,
        /// Namespace of the pod [default: as kubectl]
        #[arg(short, long)]
        namespace: Option<String>,
    },
}

/// `token ...`.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token and print it; it is shown only once
    Create(TokenCreateOptions),
    /// Show the valid tokens, without their text
    List,
    /// Make a token invalid; existing peerings stay
    Delete {
        /// Name of the token
        name: String,
    },
}

/// `generate ...`.
#[derive(Debug, Subcommand)]
pub enum GenerateCommand {
    /// Print a command that peers another cluster with this one, so that it can borrow from here
    #[command(after_help = help::examples(&[
        "liqoctl generate peer-command",
        "liqoctl generate peer-command --lifetime 15m --through-tunnel",
    ]))]
    PeerCommand(PeerCommandArguments),
    /// Write the custom resource definitions
    #[command(hide = true)]
    Crds {
        /// The directory
        #[arg(long, default_value = "deploy/liqo/crds")]
        directory: PathBuf,
    },
    /// Write the Helm chart
    #[command(hide = true)]
    Chart {
        /// The directory of the chart
        #[arg(long, default_value = "deploy/charts/liqo")]
        directory: PathBuf,
        /// The page that contains the table of keys of other versions
        #[arg(long, default_value = "docs/reference/settings.md")]
        page: PathBuf,
    },
    /// Write the pages of kinds and commands
    #[command(hide = true)]
    Reference {
        /// The directory of the pages
        #[arg(long, default_value = "docs/reference")]
        directory: PathBuf,
    },
    /// Write the table of rights
    #[command(hide = true)]
    Rights {
        /// The page that contains the table
        #[arg(long, default_value = "docs/reference/rights.md")]
        page: PathBuf,
    },
}

/// Arguments of `generate peer-command`.
#[derive(Debug, Args)]
pub struct PeerCommandArguments {
    #[command(flatten)]
    pub token: TokenCreateOptions,
    /// For a cluster that reaches only the tunnel port of this one. Each cluster needs its own
    /// token, so this excludes --reusable
    #[arg(long, conflicts_with = "reusable")]
    pub through_tunnel: bool,
}

/// `plugin ...`.
#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// Create the code of a working resource plugin, ready to build and deploy
    New(PluginOptions),
}

/// Removes suggested commands that are not near what the user typed: clap also suggests those that
/// only share some letters with it.
pub fn with_near_suggestions(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand).cloned()
    else {
        return error;
    };
    // It says how to pass the text as a value, which no command takes at this place.
    error.remove(ContextKind::Suggested);
    if let Some(ContextValue::Strings(mut names)) = error.remove(ContextKind::SuggestedSubcommand) {
        names.retain(|name| strsim::levenshtein(name, &typed) * 3 <= typed.chars().count());
        if !names.is_empty() {
            error.insert(
                ContextKind::SuggestedSubcommand,
                ContextValue::Strings(names),
            );
        }
    }
    error
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
    fn only_a_command_that_is_near_is_suggested() {
        let shown = |typed| {
            with_near_suggestions(Cli::try_parse_from(["liqoctl", typed]).unwrap_err()).to_string()
        };
        assert!(shown("staus").contains("'status'"), "{}", shown("staus"));
        assert!(
            shown("nosuch").contains("nosuch") && !shown("nosuch").contains("similar"),
            "{}",
            shown("nosuch")
        );
    }

    #[test]
    fn what_is_asked_for_is_checked_at_once() {
        let parse = |arguments: &[&str]| {
            Cli::try_parse_from(
                [&["liqoctl", "peer", "--remote-kubeconfig", "f"], arguments].concat(),
            )
        };
        let Command::Peer(peer) = parse(&[
            "--cpu",
            "500m",
            "--memory",
            "1Gi",
            "--pods",
            "10",
            "--resource",
            "nvidia.com/gpu=1",
        ])
        .unwrap()
        .command
        else {
            unreachable!()
        };
        let RequestArguments::Limits(all) = peer.request() else {
            unreachable!()
        };
        assert_eq!(
            (all.len(), &all[0]),
            (4, &LimitArgument::new("cpu", "500m").unwrap())
        );
        let Command::Peer(peer) = parse(&["--cpu", "none"]).unwrap().command else {
            unreachable!()
        };
        assert_eq!(
            peer.request(),
            RequestArguments::Limits(vec![LimitArgument::new("cpu", "none").unwrap()])
        );
        let Command::Peer(peer) = parse(&["--everything"]).unwrap().command else {
            unreachable!()
        };
        assert_eq!(peer.request(), RequestArguments::Everything);
        let Command::Peer(peer) = parse(&["--granularity", "node"]).unwrap().command else {
            unreachable!()
        };
        assert_eq!(
            (peer.granularity, peer.request()),
            (Some(PoolGranularity::Node), RequestArguments::AsBefore)
        );
        let Command::Peer(peer) = parse(&["--everything", "--granularity", "policy"])
            .unwrap()
            .command
        else {
            unreachable!()
        };
        assert_eq!(
            (peer.granularity, peer.request()),
            (Some(PoolGranularity::Policy), RequestArguments::Everything)
        );
        assert!(
            parse(&["--granularity", "zone"]).is_err()
                && parse(&["--granularity", "node", "--network-only"]).is_err()
        );
        let Command::Peer(peer) = parse(&["--network-only"]).unwrap().command else {
            unreachable!()
        };
        assert_eq!(peer.request(), RequestArguments::NetworkOnly);
        for arguments in [
            ["--cpu", "-1"],
            ["--pods", "1.5"],
            ["--memory", "lots"],
            ["--resource", "gpu"],
            ["--network-only", "--everything"],
        ] {
            assert!(parse(&arguments).is_err(), "{arguments:?}");
        }
    }

    #[test]
    fn a_peer_is_named_either_by_kubeconfig_or_by_invitation() {
        let id = liqo_api::ClusterId::of_public_key(&[1; 32]);
        let parse =
            |arguments: &[&str]| Cli::try_parse_from([&["liqoctl", "peer"], arguments].concat());
        assert!(
            parse(&[
                "--id",
                id.as_str(),
                "--auth-url",
                "https://203.0.113.5:1",
                "--token",
                "t",
                "--cluster-name",
                "milan"
            ])
            .is_ok()
        );
        assert!(parse(&["--remote-context", "other"]).is_ok());
        assert!(parse(&[]).is_err());
        assert!(parse(&["--id", id.as_str()]).is_err());
        assert!(parse(&["--id", "milan", "--auth-url", "https://203.0.113.5:1"]).is_err());
        assert!(
            parse(&[
                "--remote-kubeconfig",
                "f",
                "--id",
                id.as_str(),
                "--auth-url",
                "https://203.0.113.5:1"
            ])
            .is_err()
        );
    }

    #[test]
    fn a_test_of_no_node_is_refused() {
        let parse = |nodes| Cli::try_parse_from(["liqoctl", "test", "network", "--nodes", nodes]);
        assert!(parse("1").is_ok() && parse("0").is_err());
    }

    #[test]
    fn a_token_that_many_may_use_is_no_key_of_the_tunnel() {
        let parse = |arguments: &[&str]| {
            Cli::try_parse_from([&["liqoctl", "generate", "peer-command"], arguments].concat())
        };
        assert!(parse(&["--through-tunnel"]).is_ok() && parse(&["--reusable"]).is_ok());
        assert!(parse(&["--reusable", "--max-uses", "3"]).is_ok());
        assert!(
            parse(&["--max-uses", "3"]).is_err()
                && parse(&["--reusable", "--max-uses", "0"]).is_err()
        );
        assert!(parse(&["--through-tunnel", "--reusable"]).is_err());
    }
}

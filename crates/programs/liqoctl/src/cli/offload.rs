//! `offload ...`, `unoffload ...` and `move ...`.

use std::{collections::BTreeSet, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use liqo_api::{
    EvictionDelay, NamespaceMappingStrategy, PlacementStrategy, PodOffloadingStrategy, Reflection,
};

use super::help;
use crate::{
    move_pods::MoveOptions,
    offload,
    selector::{self, SelectorError},
    token,
};

/// `offload ...`.
#[derive(Debug, Subcommand)]
pub enum OffloadCommand {
    /// Let the pods of namespaces run in other clusters, or change where they run
    ///
    /// Labels a namespace with liqo.io/scheduling-enabled=true when it is offloaded first. In a
    /// file, this label lets the namespace, its `NamespaceOffloading` and its pods be applied in
    /// one go. On a namespace that is offloaded already, only the settings whose flags you give
    /// change. With `-o yaml` or `-o json` it prints the objects that it would write, and writes
    /// nothing.
    #[command(visible_alias = "ns", after_help = help::examples(&[
        "liqoctl offload namespace demo",
        "liqoctl offload namespace demo --pod-offloading-strategy Remote -l region=eu",
    ]))]
    Namespace(OffloadNamespaceArguments),
}

/// Arguments of `offload namespace`.
#[derive(Debug, Args)]
pub struct OffloadNamespaceArguments {
    #[command(flatten)]
    pub namespaces: NamespaceArguments,
    /// Where its pods may run [default: `LocalAndRemote`, or as before]
    #[arg(long, value_enum, ignore_case = true, value_name = "STRATEGY")]
    pub pod_offloading_strategy: Option<StrategyChoice>,
    /// Which of its Services and Ingresses to reflect to the other clusters
    /// [default: `DenyList`, or as before]
    #[arg(long, value_enum, ignore_case = true, value_name = "LIST")]
    pub reflection: Option<ReflectionList>,
    /// Whether its pods in other clusters get tokens of their `ServiceAccounts`, to use the API
    /// server of this cluster. The other cluster can use these tokens, too
    /// [default: false, or as before]
    #[arg(long, value_name = "BOOL")]
    pub api_server: Option<bool>,
    /// When Kubernetes evicts its pods from the node of a cluster that does not answer, after the
    /// node is not Ready: a time such as `30s` or `10m`, `never`, or `default` for what the pods
    /// themselves say, which is usually 5m [default: `default`, or as before]
    #[arg(long, value_parser = parse_eviction_delay, value_name = "DURATION")]
    pub eviction_delay: Option<offload::EvictionChange>,
    /// How the namespace is called in the other clusters. It does not change while the namespace is
    /// offloaded
    #[arg(long, value_enum, value_name = "STRATEGY")]
    pub namespace_mapping_strategy: Option<MappingStrategyChoice>,
    /// Its name in the other clusters, with `SelectedName`
    #[arg(
        long,
        value_name = "NAME",
        requires = "namespace_mapping_strategy",
        required_if_eq("namespace_mapping_strategy", "SelectedName")
    )]
    pub remote_namespace_name: Option<String>,
    /// Label selector for virtual nodes, as in kubectl: only their clusters get the namespace. May
    /// be repeated; one has to match
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Vec<String>,
    /// Every cluster gets the namespace, instead of those of an earlier --selector
    #[arg(long, conflicts_with = "selector")]
    pub all_clusters: bool,
    #[command(flatten)]
    pub placement: PlacementFlags,
    /// How long to wait until the namespace exists in the other clusters
    #[arg(long, default_value = "2m", value_parser = token::parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
}

impl OffloadNamespaceArguments {
    pub fn offload_options(&self) -> Result<offload::OffloadOptions, SelectorError> {
        let selected = selector::parse_node_selectors(&self.selector)?
            .map(offload::SelectedClusters::Matching);
        Ok(offload::OffloadOptions {
            strategy: self.pod_offloading_strategy.map(Into::into),
            reflection: self.reflection.map(Into::into),
            api_server: self.api_server,
            eviction_delay: self.eviction_delay,
            mapping: self.namespace_mapping_strategy.map(Into::into),
            remote_name: self.remote_namespace_name.clone(),
            clusters: if self.all_clusters {
                Some(offload::SelectedClusters::All)
            } else {
                selected
            },
            placement: self.placement.placement_change(),
            timeout: self.timeout,
        })
    }
}

/// Which nodes new pods prefer.
#[derive(Clone, Debug, Args)]
pub struct PlacementFlags {
    /// Which nodes new pods prefer among those on which they may run
    /// [default: `Default`, or as before]
    #[arg(long, value_enum, ignore_case = true, value_name = "STRATEGY")]
    pub placement: Option<PlacementChoice>,
    /// For `FixedOrder`: clusters or virtual nodes, the best first, separated by commas. The name
    /// of this cluster means its own nodes
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAMES",
        required_if_eq("placement", "FixedOrder")
    )]
    pub placement_order: Vec<String>,
    /// For `Cheapest`: evict running pods, as disruption budgets allow, if another node would cost
    /// at least 10 % less. `=false` ends it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub move_when_cheaper: Option<bool>,
}

impl PlacementFlags {
    fn placement_change(&self) -> Option<offload::PlacementChange> {
        let order = (!self.placement_order.is_empty()).then(|| self.placement_order.clone());
        let strategy = match self.placement {
            Some(PlacementChoice::Default) => return Some(offload::PlacementChange::Default),
            Some(PlacementChoice::OwnFirst) => Some(PlacementStrategy::OwnFirst),
            Some(PlacementChoice::Cheapest) => Some(PlacementStrategy::Cheapest),
            Some(PlacementChoice::Spread) => Some(PlacementStrategy::Spread),
            Some(PlacementChoice::FixedOrder) => Some(PlacementStrategy::FixedOrder),
            // Only this strategy has an order.
            None => order.as_ref().map(|_| PlacementStrategy::FixedOrder),
        };
        let is_named = strategy.is_some() || self.move_when_cheaper.is_some();
        is_named.then_some(offload::PlacementChange::Change {
            strategy,
            order,
            move_when_cheaper: self.move_when_cheaper,
        })
    }
}

/// Which nodes new pods prefer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum PlacementChoice {
    /// None: the scheduler decides alone
    Default,
    /// Those of this cluster, then the others, the cheapest first
    OwnFirst,
    /// The cheapest. Those of this cluster cost nothing, so with `LocalAndRemote` they are the first
    Cheapest,
    /// Evenly over the providers with strategy Remote, otherwise over the nodes
    Spread,
    /// As --placement-order says
    FixedOrder,
}

fn parse_eviction_delay(text: &str) -> Result<offload::EvictionChange, String> {
    let delay = match text {
        "default" => return Ok(offload::EvictionChange::AsPodsSay),
        "never" => EvictionDelay::Never,
        "0" | "0s" => EvictionDelay::Seconds(0),
        _ => eviction_after(
            token::parse_duration(text)
                .map_err(|error| format!("{error}, never or default"))?
                .as_secs(),
        )?,
    };
    Ok(offload::EvictionChange::After(delay))
}

fn eviction_after(seconds: u64) -> Result<EvictionDelay, String> {
    let seconds = u32::try_from(seconds)
        .ok()
        .filter(|seconds| *seconds < 1_000_000_000);
    seconds
        .map(EvictionDelay::Seconds)
        .ok_or_else(|| "the time is too long: use never".to_owned())
}

/// The namespaces that a command is about.
#[derive(Clone, Debug, Args)]
pub struct NamespaceArguments {
    /// The namespaces
    #[arg(value_name = "NAMESPACE", required_unless_present_any = ["namespace_selector", "namespace"])]
    pub names: Vec<String>,
    /// A namespace, as an argument; may be repeated
    #[arg(short, long)]
    pub namespace: Vec<String>,
    /// Label selector for namespaces, as in kubectl: those that match, instead of named ones
    #[arg(long, value_name = "SELECTOR", conflicts_with_all = ["names", "namespace"])]
    pub namespace_selector: Option<String>,
}

impl NamespaceArguments {
    /// The named ones, each once.
    pub fn distinct_names(&self) -> BTreeSet<String> {
        self.names.iter().chain(&self.namespace).cloned().collect()
    }
}

/// Where pods may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum StrategyChoice {
    /// In this cluster and in others: the scheduler decides
    LocalAndRemote,
    /// Only in this cluster; the namespace still exists in the others
    Local,
    /// Only in other clusters
    Remote,
}

impl From<StrategyChoice> for PodOffloadingStrategy {
    fn from(strategy: StrategyChoice) -> Self {
        match strategy {
            StrategyChoice::LocalAndRemote => Self::LocalAndRemote,
            StrategyChoice::Local => Self::Local,
            StrategyChoice::Remote => Self::Remote,
        }
    }
}

/// How the namespace is called in other clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
#[allow(clippy::enum_variant_names)] // The values have these names in the API.
pub enum MappingStrategyChoice {
    /// By its name, this cluster's name and the start of its ID
    DefaultName,
    /// As here, where the policy of the other cluster allows that name
    EnforceSameName,
    /// By a name of your choice that the policy of the other cluster allows
    SelectedName,
}

impl From<MappingStrategyChoice> for NamespaceMappingStrategy {
    fn from(strategy: MappingStrategyChoice) -> Self {
        match strategy {
            MappingStrategyChoice::DefaultName => Self::DefaultName,
            MappingStrategyChoice::EnforceSameName => Self::EnforceSameName,
            MappingStrategyChoice::SelectedName => Self::SelectedName,
        }
    }
}

/// Which Services and Ingresses are reflected.
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
pub enum UnoffloadCommand {
    /// End the pods of namespaces that run in other clusters, and keep new ones in this cluster
    ///
    /// The pods are evicted as disruption budgets allow, and created again in this cluster by their
    /// controllers. Pods at a cluster that does not answer are deleted. With `-o yaml` or `-o json`
    /// it prints what it would end, and ends nothing.
    #[command(visible_alias = "ns", after_help = help::examples(&[
        "liqoctl unoffload namespace demo",
        "liqoctl unoffload namespace demo -o yaml",
    ]))]
    Namespace(UnoffloadNamespaceArguments),
}

/// Arguments of `unoffload namespace`.
#[derive(Debug, Args)]
pub struct UnoffloadNamespaceArguments {
    #[command(flatten)]
    pub namespaces: NamespaceArguments,
    /// Delete the pods at once, whatever disruption budgets say
    #[arg(long)]
    pub now: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// How long to wait until the pods have left, and then until the namespace is gone from the
    /// other clusters
    #[arg(long, default_value = "5m", value_parser = token::parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
}

/// `move ...`.
#[derive(Debug, Subcommand)]
pub enum MoveCommand {
    /// Replace pods by new ones that run elsewhere: away from a cluster, or in a cluster
    ///
    /// Kubernetes cannot move a running pod. This evicts pods as disruption budgets allow, and
    /// their controllers create new ones. Until these are ready, the virtual nodes that should not
    /// get them are cordoned. With `-o yaml` or `-o json` it prints what it would do, and changes
    /// nothing.
    #[command(visible_alias = "pod", after_help = help::examples(&[
        "liqoctl move pods -n demo --from milan",
        "liqoctl move pods -n demo -l app=web --from turin --to milan",
    ]))]
    Pods(MoveOptions),
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn offload_namespace(arguments: &[&str]) -> Result<OffloadNamespaceArguments, clap::Error> {
        let Command::Offload(OffloadCommand::Namespace(offload)) =
            Cli::try_parse_from([&["liqoctl", "offload"], arguments].concat())?.command
        else {
            unreachable!()
        };
        Ok(offload)
    }

    #[test]
    fn strategies_are_spelled_as_in_the_api_in_any_case() {
        for (strategy, list) in [("Remote", "AllowList"), ("remote", "allowlist")] {
            let arguments = [
                "namespace",
                "demo",
                "--pod-offloading-strategy",
                strategy,
                "--reflection",
                list,
                "-l",
                "region=eu",
            ];
            let options = offload_namespace(&arguments)
                .unwrap()
                .offload_options()
                .unwrap();
            assert_eq!(options.reflection, Some(Reflection::AllowList));
            assert_eq!(options.strategy, Some(PodOffloadingStrategy::Remote));
            assert!(matches!(
                options.clusters,
                Some(offload::SelectedClusters::Matching(_))
            ));
        }
    }

    #[test]
    fn a_selected_name_needs_the_name_and_only_with_it() {
        let named = [
            "ns",
            "demo",
            "--namespace-mapping-strategy",
            "SelectedName",
            "--remote-namespace-name",
            "team-a",
        ];
        let options = offload_namespace(&named)
            .unwrap()
            .offload_options()
            .unwrap();
        assert_eq!(
            (options.mapping, options.remote_name.as_deref()),
            (Some(NamespaceMappingStrategy::SelectedName), Some("team-a"))
        );
        assert!(offload_namespace(&named[..4]).is_err());
        assert!(offload_namespace(&["ns", "demo", "--remote-namespace-name", "team-a"]).is_err());
    }

    #[test]
    fn an_order_means_the_strategy_that_has_one() {
        let placement = |arguments: &[&str]| {
            let offload = offload_namespace(&[&["ns", "demo"], arguments].concat())?;
            Ok::<_, clap::Error>(offload.offload_options().unwrap().placement)
        };
        let change = |strategy, order: Option<&[&str]>, move_when_cheaper| {
            let order = order.map(|order| order.iter().map(ToString::to_string).collect());
            Some(offload::PlacementChange::Change {
                strategy,
                order,
                move_when_cheaper,
            })
        };
        let fixed = change(
            Some(PlacementStrategy::FixedOrder),
            Some(&["milan", "turin"]),
            None,
        );
        assert_eq!(placement(&[]).unwrap(), None);
        assert_eq!(
            placement(&[
                "--placement",
                "fixedorder",
                "--placement-order",
                "milan,turin"
            ])
            .unwrap(),
            fixed
        );
        assert_eq!(
            placement(&["--placement-order", "milan,turin"]).unwrap(),
            fixed
        );
        assert!(placement(&["--placement", "FixedOrder"]).is_err());
        assert_eq!(
            placement(&["--placement", "default"]).unwrap(),
            Some(offload::PlacementChange::Default)
        );
        let cheapest = Some(PlacementStrategy::Cheapest);
        assert_eq!(
            placement(&["--placement", "Cheapest", "--move-when-cheaper"]).unwrap(),
            change(cheapest, None, Some(true))
        );
        assert_eq!(
            placement(&["--move-when-cheaper=false"]).unwrap(),
            change(None, None, Some(false))
        );
    }

    #[test]
    fn a_move_needs_a_direction_and_pods_are_named_or_selected() {
        let parse = |arguments: &[&str]| {
            let cli = Cli::try_parse_from([&["liqoctl", "move", "pods"], arguments].concat())?;
            let Command::Move(MoveCommand::Pods(pods)) = cli.command else {
                unreachable!()
            };
            Ok::<_, clap::Error>(pods)
        };
        let all = parse(&["-n", "demo", "--from", "milan"]).unwrap();
        assert_eq!(
            (all.namespace.as_deref(), all.from.as_deref(), all.to),
            (Some("demo"), Some("milan"), None)
        );
        let named = parse(&["a", "b", "--from", "turin", "--to", "milan"]).unwrap();
        assert_eq!(
            (named.names.as_slice(), named.namespace),
            (&["a".to_owned(), "b".to_owned()][..], None)
        );
        assert!(parse(&["a"]).is_err() && parse(&["a", "-l", "app=web", "--to", "milan"]).is_err());
    }

    #[test]
    fn what_no_flag_names_does_not_change() {
        let several = offload_namespace(&["ns", "a", "b"]).unwrap();
        assert_eq!(several.namespaces.names, ["a", "b"]);
        let options = several.offload_options().unwrap();
        assert_eq!(
            (options.strategy, options.reflection, options.clusters),
            (None, None, None)
        );
        assert_eq!(options.api_server, None);
        let tokens = offload_namespace(&["ns", "a", "--api-server", "true"]).unwrap();
        assert_eq!(tokens.offload_options().unwrap().api_server, Some(true));
        let delay = |text: &str| {
            offload_namespace(&["ns", "a", "--eviction-delay", text])
                .map(|one| one.offload_options().unwrap().eviction_delay)
        };
        assert_eq!(options.eviction_delay, None);
        for (text, expected) in [
            ("default", offload::EvictionChange::AsPodsSay),
            (
                "never",
                offload::EvictionChange::After(EvictionDelay::Never),
            ),
            (
                "0s",
                offload::EvictionChange::After(EvictionDelay::Seconds(0)),
            ),
            (
                "10m",
                offload::EvictionChange::After(EvictionDelay::Seconds(600)),
            ),
        ] {
            assert_eq!(delay(text).unwrap(), Some(expected));
        }
        assert!(delay("soon").is_err() && delay("20000d").is_err());
        let everywhere =
            offload_namespace(&["ns", "--namespace-selector", "team=a", "--all-clusters"]).unwrap();
        assert_eq!(
            everywhere.offload_options().unwrap().clusters,
            Some(offload::SelectedClusters::All)
        );
        let named = offload_namespace(&["ns", "a", "-n", "b", "-n", "a"])
            .unwrap()
            .namespaces
            .distinct_names();
        assert_eq!(named, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        for wrong in [
            &["ns"][..],
            &["ns", "a", "--namespace-selector", "b=c"],
            &["ns", "a", "-l", "b=c", "--all-clusters"],
        ] {
            assert!(offload_namespace(wrong).is_err(), "{wrong:?}");
        }
    }
}

//! `broker ...`.

use clap::{Args, Subcommand};
use liqo_quantity::{RateArgument, is_currency};

use crate::broker::{Customers, MarginChange, RequestedPolicyChange, change::DEFAULT_POLICY};

/// `broker ...`.
#[derive(Debug, Subcommand)]
pub enum BrokerCommand {
    /// Show what this cluster borrows, to whom it lends it on, and which customer uses what of
    /// which provider
    Status,
    /// Lend on what this cluster borrows: write a policy, or change it
    ///
    /// A new policy is a copy of the one that applies to its customers until then, and comes before
    /// it. Of an existing one, only what the flags name changes.
    Enable(BrokerEnableArguments),
    /// Stop lending on what this cluster borrows
    ///
    /// Policies that `broker enable` created go. Others lend this cluster's own nodes again.
    Disable {
        /// Name of the only policy to end [default: all that lend on]
        #[arg(long, value_name = "NAME")]
        policy: Option<String>,
        /// Only show what would change
        #[arg(long)]
        dry_run: bool,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

/// Arguments of `broker enable`.
#[derive(Debug, Args)]
pub struct BrokerEnableArguments {
    /// Names or IDs of the customers [default: unchanged; all peers for a new policy]
    #[arg(long, value_delimiter = ',', value_name = "PEER,...")]
    pub peers: Vec<String>,
    /// Lend on to all peers
    #[arg(long, conflicts_with = "peers")]
    pub all_peers: bool,
    /// Percentage of what is borrowed that all customers together are offered
    /// [default: unchanged; 100 for a new policy]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(..=100))]
    pub percentage: Option<u8>,
    /// Percentage that is added to the prices of providers, or `none` for prices of the policy's
    /// own [default: unchanged; none for a new policy]
    #[arg(long, value_name = "PERCENT", value_parser = parse_margin_percent)]
    pub margin: Option<MarginPercent>,
    /// What is added to the price of a resource after that, for example cpu=0.001; may be repeated,
    /// and replaces all earlier ones
    #[arg(long, value_name = "NAME=RATE")]
    pub margin_fixed: Vec<RateArgument>,
    /// Currency of the margin [default: unchanged; that of the providers if all have the same]
    #[arg(long, value_name = "CURRENCY", value_parser = parse_currency)]
    pub currency: Option<String>,
    /// Also lend this cluster's own nodes, as a pool of their own
    /// [default: unchanged; false for a new policy]
    #[arg(long, value_name = "BOOLEAN", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub own_nodes: Option<bool>,
    /// How many clusters what this cluster borrows may come through, 1 to 8. It needs a policy that
    /// applies to the providers, too
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub max_hops: Option<u8>,
    /// Name of the policy to create or change
    #[arg(long, value_name = "NAME", default_value = DEFAULT_POLICY)]
    pub policy: String,
    /// Only show what would change; with -o yaml or json, the policy
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

/// A margin in percent, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarginPercent {
    None,
    Of(u16),
}

fn parse_margin_percent(text: &str) -> Result<MarginPercent, String> {
    if text == "none" {
        return Ok(MarginPercent::None);
    }
    let number = text
        .trim_end_matches('%')
        .parse()
        .ok()
        .filter(|number| *number <= 10_000);
    number
        .map(MarginPercent::Of)
        .ok_or_else(|| "a margin is a whole number from 0 to 10000, or none".to_owned())
}

fn parse_currency(text: &str) -> Result<String, String> {
    if is_currency(text) {
        Ok(text.to_owned())
    } else {
        Err("a currency is a short name such as EUR".to_owned())
    }
}

impl BrokerEnableArguments {
    /// What the user wants, or why the flags contradict each other.
    pub fn policy_change(&self) -> anyhow::Result<RequestedPolicyChange> {
        let sets_margin = self.currency.is_some() || !self.margin_fixed.is_empty();
        let margin = match self.margin {
            Some(MarginPercent::None) if sets_margin => {
                anyhow::bail!("--margin none takes neither --margin-fixed nor --currency")
            }
            Some(MarginPercent::None) => MarginChange::Remove,
            None if !sets_margin => MarginChange::Keep,
            percent => MarginChange::Set {
                percent: percent.and_then(|percent| match percent {
                    MarginPercent::Of(number) => Some(number),
                    MarginPercent::None => None,
                }),
                fixed: self.margin_fixed.clone(),
                currency: self.currency.clone(),
            },
        };
        let customers = match (self.all_peers, self.peers.is_empty()) {
            (true, _) => Some(Customers::Everybody),
            (false, true) => None,
            (false, false) => Some(Customers::These(self.peers.clone())),
        };
        Ok(RequestedPolicyChange {
            policy: self.policy.clone(),
            customers,
            percentage: self.percentage,
            own_nodes: self.own_nodes,
            margin,
            max_hops: self.max_hops,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn wanted(arguments: &[&str]) -> Result<RequestedPolicyChange, String> {
        let cli = Cli::try_parse_from([&["liqoctl", "broker", "enable"], arguments].concat())
            .map_err(|error| error.to_string())?;
        let Command::Broker(BrokerCommand::Enable(enable)) = cli.command else {
            unreachable!()
        };
        enable.policy_change().map_err(|error| error.to_string())
    }

    #[test]
    fn what_no_flag_names_stays_as_it_is() {
        let nothing = wanted(&[]).unwrap();
        assert_eq!(
            (nothing.policy.as_str(), nothing.customers, nothing.margin),
            (DEFAULT_POLICY, None, MarginChange::Keep)
        );
        assert_eq!(
            (nothing.percentage, nothing.own_nodes, nothing.max_hops),
            (None, None, None)
        );
        assert_eq!(wanted(&["--own-nodes"]).unwrap().own_nodes, Some(true));
        assert_eq!(
            wanted(&["--own-nodes=false"]).unwrap().own_nodes,
            Some(false)
        );
        assert_eq!(
            wanted(&["--all-peers"]).unwrap().customers,
            Some(Customers::Everybody)
        );
        let some = Customers::These(vec!["rome".into(), "genoa".into()]);
        assert_eq!(
            wanted(&["--peers", "rome,genoa"]).unwrap().customers,
            Some(some)
        );
    }

    #[test]
    fn a_margin_is_a_percentage_or_none() {
        let set = |percent, currency: Option<&str>| MarginChange::Set {
            percent,
            fixed: Vec::new(),
            currency: currency.map(str::to_owned),
        };
        assert_eq!(
            wanted(&["--margin", "10"]).unwrap().margin,
            set(Some(10), None)
        );
        assert_eq!(
            wanted(&["--margin", "10%", "--currency", "EUR"])
                .unwrap()
                .margin,
            set(Some(10), Some("EUR"))
        );
        assert_eq!(
            wanted(&["--currency", "EUR"]).unwrap().margin,
            set(None, Some("EUR"))
        );
        assert_eq!(
            wanted(&["--margin", "none"]).unwrap().margin,
            MarginChange::Remove
        );
        assert!(
            wanted(&["--margin", "none", "--currency", "EUR"])
                .unwrap_err()
                .contains("--margin none")
        );
        let wrong = [
            ["--margin", "-1"],
            ["--margin", "10001"],
            ["--margin", "much"],
            ["--margin-fixed", "cpu"],
        ];
        for arguments in wrong.iter().chain(&[
            ["--currency", "the euro"],
            ["--max-hops", "9"],
            ["--percentage", "101"],
        ]) {
            assert!(wanted(arguments).is_err(), "{arguments:?}");
        }
        assert!(wanted(&["--all-peers", "--peers", "rome"]).is_err());
    }
}

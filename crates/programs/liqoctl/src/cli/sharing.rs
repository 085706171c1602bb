//! `offer ...`, `receipt ...` and `policy ...`.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};

use crate::{settings, token};

/// `offer ...`.
#[derive(Debug, Subcommand)]
pub enum OfferCommand {
    /// Show what peers offer to this cluster, or with --made what this cluster offers to them
    List {
        /// Name or ID of one peer [default: all]
        peer: Option<String>,
        /// Show the offers that this cluster made
        #[arg(long)]
        made: bool,
    },
    /// Accept an offer, within the limits of the policy: it becomes a virtual node
    ///
    /// The policy may require this (`consume.accept: Manual`). The decision stays valid until
    /// `offer forget`, even if the offer changes.
    ///
    /// If the offer is under a contract that this cluster has not signed, this shows the terms,
    /// asks, and signs them.
    Accept {
        #[command(flatten)]
        offer: OfferDecisionArguments,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Refuse an offer, whatever the policy says; this ends the pods that run there
    Refuse {
        #[command(flatten)]
        offer: OfferDecisionArguments,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Undo a decision, so that the policy decides again
    Forget {
        /// Name or ID of the peer
        peer: String,
        /// The pool
        pool: String,
    },
}

/// Arguments of `offer accept` and `offer refuse`.
#[derive(Debug, Args)]
pub struct OfferDecisionArguments {
    /// Name or ID of the peer
    pub peer: String,
    /// The pool, as `offer list` names it [default: the only one that waits for a decision]
    pub pool: Option<String>,
    /// How long to wait for the controllers
    #[arg(long, default_value = "2m", value_parser = token::parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
}

/// `contract ...`.
#[derive(Debug, Subcommand)]
pub enum ContractCommand {
    /// Show all contracts, where they stand, and whether both sides keep them
    List {
        /// Name or ID of one peer [default: all]
        peer: Option<String>,
    },
    /// Show the terms of the contract with a peer, an amendment that waits, and breaches
    Show {
        /// Name or ID of the peer
        peer: String,
    },
    /// Verify stored copies of a contract without a cluster: both signatures, and that two copies
    /// contain the same contract
    ///
    /// A file is what `kubectl get contract NAME -n NAMESPACE -o yaml` writes. Exits with an error
    /// that names what is wrong.
    Verify {
        /// The copy of one side, and that of the other
        #[arg(required = true, num_args = 1..=2, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// End the contract with a peer, with the notice that it says
    ///
    /// Until `contract forget`, a provider proposes no other contract to the peer, and a consumer
    /// is asked before it signs one.
    End {
        /// Name or ID of the peer
        peer: String,
        /// Name of the contract, as `contract list` shows it [default: the only one]
        #[arg(long, value_name = "NAME")]
        contract: Option<String>,
        /// Why, for the other side
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
        /// How long to wait until the end is announced
        #[arg(long, default_value = "2m", value_parser = token::parse_duration, value_name = "DURATION")]
        timeout: Duration,
    },
    /// Undo all decisions on contracts with a peer, so that the policies decide again
    Forget {
        /// Name or ID of the peer
        peer: String,
    },
}

/// `receipt ...`.
#[derive(Debug, Subcommand)]
pub enum ReceiptCommand {
    /// Show all receipts, with their totals and whether both sides signed
    List {
        /// Name or ID of one peer [default: all]
        peer: Option<String>,
    },
    /// Show one receipt: what was used, at which price, and what the consumer disputes
    Show {
        /// Name of the receipt, as `receipt list` shows it
        name: String,
    },
    /// Verify stored receipts without a cluster: the signatures, the sums, and that several files
    /// contain the same receipt
    ///
    /// A file is what `kubectl get receipt NAME -n NAMESPACE -o yaml` writes. Exits with an error
    /// that names what is wrong.
    Verify {
        /// Files with a Receipt each
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Write the lines of all receipts for whoever writes the invoice
    Export {
        /// Form of the lines
        format: ExportFormat,
        /// Name or ID of one peer [default: all]
        peer: Option<String>,
        /// Only receipts that both sides signed
        #[arg(long)]
        signed: bool,
    },
}

/// The form of exported lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    Csv,
    Json,
}

/// `policy ...`.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Show all policies in the order in which Liqo tries them, and the peers that each applies to
    List,
    /// Show which policy applies to a peer and why, its rules, and what this cluster would offer to
    /// the peer now
    ///
    /// A peer that requests nothing is treated as if it requested everything. This changes nothing.
    Explain {
        /// Name or ID of the peer; an ID may be unknown, and with --labels any name works
        peer: String,
        /// Labels to try, in addition to those of the peer's object in this cluster
        #[arg(long, value_name = "A=B,C=D", value_parser = peer_labels)]
        labels: Option<PeerLabels>,
    },
}

/// Labels from one argument.
pub type PeerLabels = BTreeMap<String, String>;

fn peer_labels(text: &str) -> Result<PeerLabels, String> {
    settings::parse_labels(text)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn offers_and_policies_have_commands_that_name_the_peer() {
        let parse = |arguments: &[&str]| Cli::try_parse_from([&["liqoctl"], arguments].concat());
        let Command::Policy(PolicyCommand::Explain { peer, labels }) =
            parse(&["policy", "explain", "rome", "--labels", "tier=gold,zone=a"])
                .unwrap()
                .command
        else {
            unreachable!()
        };
        assert_eq!((peer.as_str(), labels.unwrap().len()), ("rome", 2));
        let Command::Policy(PolicyCommand::Explain { labels: none, .. }) =
            parse(&["policy", "explain", "rome", "--labels", ""])
                .unwrap()
                .command
        else {
            unreachable!()
        };
        assert_eq!(none, Some(PeerLabels::new()));
        let Command::Offer(OfferCommand::Refuse { offer, yes }) =
            parse(&["offer", "refuse", "milan", "gold", "-y"])
                .unwrap()
                .command
        else {
            unreachable!()
        };
        assert_eq!(
            (offer.peer.as_str(), offer.pool.as_deref(), yes),
            ("milan", Some("gold"), true)
        );
        assert!(parse(&["offer", "accept", "milan"]).is_ok());
        assert!(
            parse(&["offer", "list"]).is_ok()
                && parse(&["offer", "list", "milan", "--made"]).is_ok()
        );
        for wrong in [
            &["offer", "accept"][..],
            &["offer", "forget", "milan"],
            &["policy", "explain"],
            &["policy", "explain", "a", "--labels", "=x"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn shells_complete_the_commands_for_offers_and_policies() {
        let mut script = Vec::new();
        clap_complete::generate(
            clap_complete::Shell::Bash,
            &mut Cli::command(),
            "liqoctl",
            &mut script,
        );
        let script = String::from_utf8(script).unwrap();
        for command in [
            "liqoctl__offer__accept",
            "liqoctl__offer__forget",
            "liqoctl__policy__explain",
            "--made",
        ] {
            assert!(
                script.contains(command) || script.contains(&command.replace("__", "__subcmd__")),
                "{command}"
            );
        }
    }
}

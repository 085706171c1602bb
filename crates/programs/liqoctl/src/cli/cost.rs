//! `cost ...`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Arguments of `cost`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct CostArguments {
    #[command(subcommand)]
    pub command: Option<CostCommand>,
    /// Only pods of this namespace [default: of all]
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Only pods at this peer, by its name or ID [default: at all]
    #[arg(long, value_name = "CLUSTER")]
    pub peer: Option<String>,
}

/// `cost ...`.
#[derive(Debug, Subcommand)]
pub enum CostCommand {
    /// Show what workloads would cost in this cluster and in each other one, and why they cannot
    /// run there
    ///
    /// It creates nothing. It reads Deployments, `StatefulSets`, Jobs and the like, and Pods.
    Plan(CostPlanArguments),
}

/// Arguments of `cost plan`.
#[derive(Debug, Args)]
pub struct CostPlanArguments {
    /// File with the workloads as for `kubectl apply`; `-` is standard input
    #[arg(short = 'f', long, value_name = "FILE")]
    pub filename: PathBuf,
    /// Namespace of workloads that name none [default: as kubectl]
    #[arg(short, long)]
    pub namespace: Option<String>,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(arguments: &[&str]) -> Result<CostArguments, clap::Error> {
        let Command::Cost(cost) =
            Cli::try_parse_from([&["liqoctl", "cost"], arguments].concat())?.command
        else {
            unreachable!()
        };
        Ok(cost)
    }

    #[test]
    fn a_plan_needs_a_file_and_the_costs_of_now_need_nothing() {
        let now = parse(&["-n", "demo", "--peer", "milan"]).unwrap();
        assert_eq!(
            (
                now.namespace.as_deref(),
                now.peer.as_deref(),
                now.command.is_none()
            ),
            (Some("demo"), Some("milan"), true)
        );
        assert!(parse(&[]).unwrap().command.is_none());
        let Some(CostCommand::Plan(plan)) = parse(&["plan", "-f", "web.yaml", "-n", "demo"])
            .unwrap()
            .command
        else {
            unreachable!()
        };
        assert_eq!(
            (plan.filename, plan.namespace.as_deref()),
            (PathBuf::from("web.yaml"), Some("demo"))
        );
        assert!(parse(&["plan"]).is_err());
    }
}

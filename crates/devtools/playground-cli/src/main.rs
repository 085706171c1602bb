//! `liqo-playground`, run as `cargo playground`: Kubernetes clusters on this machine with Liqo
//! installed, peered, and a demo running. It is for people who try Liqo or work on it; tests use
//! the library directly.
//!
//! The library [`liqo_playground`] starts and stops the clusters. This program does with them what
//! a user would type: install, peer, offload, with the functions of `liqoctl`. It also runs as the
//! supervisor: `up` starts this program again in the background, where it keeps the clusters'
//! programs running.
//!
//! ```text
//!   cargo playground up
//!     1. programs   build liqo-controller-manager, liqo-fabric and liqoctl, with --plugins also the resource plugins
//!     2. clusters   liqo_playground::Playground::up   ──▶ supervisor ──▶ etcd, kube-apiserver, kubelet, ...
//!     3. images     load them on every node
//!     4. Liqo       liqoctl::install, liqoctl::peer, with --broker also liqoctl::broker
//!     5. demo       liqoctl::offload, then a Deployment and a Service on all clusters
//! ```
//!
//! `up.rs` has these steps: read it first. `conformance` starts the clusters in the same way, and
//! runs Kubernetes' own tests there. The other commands show the clusters (`status`, `logs`,
//! `kubeconfig`), measure them (`bench`) or remove them (`down`). For users: `docs/reference/playground.md`.

mod arguments;
mod bench;
mod cluster_argument;
mod conformance;
mod demo;
mod programs;
mod specs;
mod tables;
mod up;

use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::Parser as _;
use liqo_playground::{Playground, Supervision};
use liqoctl::{
    output::{self, Paint},
    program,
    progress::StepProgress,
};

use arguments::{Arguments, Command};

const PROGRAM: &str = "liqo-playground";

fn main() -> ExitCode {
    if let Some(instance) = liqo_playground::supervised_instance() {
        return match liqo_playground::run_supervisor(&instance) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => program::print_failure(PROGRAM, &error.into()),
        };
    }
    let arguments = Arguments::parse();
    program::run_program(PROGRAM, arguments.verbose, run(arguments))
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let (playground, format) = (open(&arguments.instance)?, arguments.output);
    match arguments.command {
        Command::Up(arguments) => {
            let up = Box::pin(up::up(&playground, &arguments, &StepProgress::new())).await?;
            output::print_result(format, &up, tables::up)
        }
        Command::Conformance(arguments) if arguments.list => {
            let tests = conformance::list(&arguments, &StepProgress::new()).await?;
            output::print_result(format, &tests, |tests| tests.join("\n"))
        }
        Command::Conformance(arguments) => {
            let results = Box::pin(conformance::run(
                &playground,
                &arguments,
                &StepProgress::new(),
            ))
            .await?;
            output::print_result(format, &results, tables::conformance)?;
            let unexplained = results.unexplained();
            ensure!(
                unexplained == 0,
                "docs/reference/kubectl.md does not explain why {unexplained} tests did not pass"
            );
            Ok(())
        }
        Command::Bench(bench) => {
            Box::pin(bench::run_bench(bench, &arguments.instance, format)).await
        }
        Command::Down => Ok(StepProgress::new()
            .run_step("Ending the clusters", playground.down())
            .await?),
        Command::Status => output::print_result(format, &playground.status().await?, |status| {
            tables::status(status, Paint::for_stdout())
        }),
        Command::Kubeconfig { cluster } => {
            output::write_out(&kubeconfigs(&playground, cluster.as_deref())?.join("\n"))
        }
        Command::Logs { cluster, component } => logs(&playground, &cluster, &component),
    }
}

/// The playground of this name. `up` starts this program again as its supervisor.
fn open(instance: &str) -> anyhow::Result<Playground> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(Playground::open(instance)?.supervised_by(Supervision::Detached(program)))
}

/// The paths of one kubeconfig, or of all.
fn kubeconfigs(playground: &Playground, cluster: Option<&str>) -> anyhow::Result<Vec<String>> {
    let paths = match cluster {
        Some(cluster) => vec![playground.kubeconfig(cluster)?],
        None => playground
            .clusters()?
            .iter()
            .map(liqo_playground::Cluster::kubeconfig)
            .collect(),
    };
    Ok(paths
        .iter()
        .map(|path| path.display().to_string())
        .collect())
}

fn logs(playground: &Playground, cluster: &str, component: &str) -> anyhow::Result<()> {
    let path = playground.logs(cluster, component)?;
    let text = std::fs::read(&path).with_context(|| {
        format!(
            "cannot read {}: is {component} one of `cargo playground status`?",
            path.display()
        )
    })?;
    output::write_out(&String::from_utf8_lossy(&text))
}

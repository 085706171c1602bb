//! `bench offload`: a Deployment through the virtual node, compared with the same
//! Deployment directly at the provider.
//!
//! All pods run on fake nodes, which make them Ready at once, so the figures show only the cost of
//! Kubernetes and Liqo. Both ways alternate, so that they meet the same load of the machine; the
//! median of the rounds counts.
//!
//! ```text
//!   offloaded   Deployment at home ──▶ pods on the virtual node ──▶ shadow pods ──▶ pods on fake nodes of the provider
//!   plain                                  the same Deployment at the provider ──▶ pods on fake nodes of the provider
//! ```
//!
//! `setup` checks the prerequisites and creates the namespaces, `workload` creates and deletes pods
//! and takes the time, `usage` reads `/proc`, `writes` counts in audit logs, `report` computes
//! medians and prints the table. Processes and audit logs are known only if the clusters belong to
//! a playground on this machine.
//!
//! If a contract is in force, what it costs is in all figures, and its own writes are also listed
//! apart.

mod report;
mod setup;
mod usage;
mod workload;
mod writes;

use std::{collections::BTreeMap, time::Duration};

use anyhow::bail;
use clap::Args;
use liqo_playground::Playground;
use liqoctl::{
    cluster::Cluster,
    probes::{self, OtherClusterFlags, TestNamespaces},
    progress::StepProgress,
    settings, token,
};

use super::clusters::choose_peer;

pub use report::{OffloadBenchResult, render_offload_bench};
use report::{OffloadRound, SINGLE_PODS};
use setup::{BenchVariant, OffloadBenchSetup};

/// Time after the last pod is Ready in which controllers finish their writes, before the counters
/// are read.
const SETTLE: Duration = Duration::from_secs(3);

/// Options of `bench offload`.
#[derive(Clone, Debug, Args)]
pub struct OffloadBenchOptions {
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

/// Measures between the first of these clusters and one of its providers.
pub async fn run_offload_bench(
    clusters: &[Cluster],
    playground: Option<&Playground>,
    options: &OffloadBenchOptions,
    progress: &StepProgress,
) -> anyhow::Result<OffloadBenchResult> {
    let Some((home, others)) = clusters.split_first() else {
        bail!("no cluster was named")
    };
    let own = home.require_installed().await?;
    let foreign = choose_peer(
        home,
        others,
        options.provider.as_deref(),
        "cargo playground bench offload --provider",
    )
    .await?;
    let machines = playground
        .map(Playground::clusters)
        .transpose()?
        .unwrap_or_default();
    let prepared = setup::find_provider(home, others, &foreign, options.pods).await?;
    probes::remove_leftovers(&[home.clone(), prepared.provider.clone()]).await?;
    let namespaces = TestNamespaces::new(options.timeout, false);
    let measuring = async {
        let setup = setup::create_setup(
            (home, &own.id),
            &foreign,
            prepared,
            &machines,
            &namespaces,
            &options.namespace,
            progress,
        )
        .await?;
        let single = single_pods(&setup, progress).await?;
        let rounds = measure_rounds(&setup, options, progress).await?;
        let mut measured = report::compute_result(&single, &rounds, options.pods, options.rounds);
        measured.report.notes = setup.notes;
        let (home, provider) = (own.config.spec.cluster_name.clone(), foreign.display_name());
        anyhow::Ok(OffloadBenchResult {
            home,
            provider,
            limits: setup.limits,
            ..measured
        })
    };
    let mut run =
        Box::pin(namespaces.run_and_clean_up(options.timeout, progress, measuring)).await?;
    run.found.report.left = run.left;
    Ok(run.found)
}

/// Milliseconds from the creation of a pod until it is Ready: offloaded and plain.
async fn single_pods(
    setup: &OffloadBenchSetup,
    progress: &StepProgress,
) -> anyhow::Result<[Vec<f64>; 2]> {
    let step = "Measuring single pods";
    let measuring = async {
        let mut times = [Vec::new(), Vec::new()];
        for number in 0..SINGLE_PODS {
            if number % 5 == 0 {
                progress.message(step, &format!("{number} of {SINGLE_PODS}"));
            }
            for (side, times) in [&setup.offloaded, &setup.plain].into_iter().zip(&mut times) {
                times.push(workload::single_pod(side, number).await?.as_secs_f64() * 1e3);
            }
        }
        anyhow::Ok(times)
    };
    progress.run_step(step, measuring).await
}

/// All rounds: offloaded and plain.
async fn measure_rounds(
    setup: &OffloadBenchSetup,
    options: &OffloadBenchOptions,
    progress: &StepProgress,
) -> anyhow::Result<[Vec<OffloadRound>; 2]> {
    let step = format!("Measuring {} pods", options.pods);
    let measuring = async {
        let mut all = [Vec::new(), Vec::new()];
        for number in 1..=options.rounds {
            for (side, rounds) in [&setup.offloaded, &setup.plain].into_iter().zip(&mut all) {
                rounds.push(
                    measure_round(setup, side, options.pods, |text| {
                        progress.message(
                            &step,
                            &format!(
                                "round {number} of {}, {}: {text}",
                                options.rounds, side.title
                            ),
                        );
                    })
                    .await?,
                );
            }
        }
        anyhow::Ok(all)
    };
    progress.run_step(&step, measuring).await
}

/// Creates the Deployment, lets everything settle, deletes it again.
async fn measure_round(
    setup: &OffloadBenchSetup,
    side: &BenchVariant,
    pods: u32,
    news: impl Fn(&str),
) -> anyhow::Result<OffloadRound> {
    let targets = usage::processes_to_observe(&setup.machines);
    let before = setup.audit_positions()?;
    let creating = async {
        let ready = workload::create_deployment(side, pods, &news).await?;
        tokio::time::sleep(SETTLE).await;
        anyhow::Ok(ready)
    };
    let (ready, usage) = usage::observe_while(&targets, creating).await;
    let ready = ready?;
    let writes = match &before {
        Some(before) => Some(writes::count_writes(
            &setup.writes_since(before)?,
            &setup.home,
        )),
        None => None,
    };
    let gone = workload::delete_deployment(side, &news).await?;
    tokio::time::sleep(SETTLE).await;
    // What pods used is stored when they end, and receipts come at any time: with plain pods, too.
    let for_contracts = match &before {
        Some(before) => {
            writes::count_writes(&setup.writes_since(before)?, &setup.home).for_contracts()
        }
        None => BTreeMap::new(),
    };
    Ok(OffloadRound {
        ready: ready.as_secs_f64(),
        gone: gone.map(|time| time.as_secs_f64()),
        writes,
        for_contracts,
        usage,
    })
}

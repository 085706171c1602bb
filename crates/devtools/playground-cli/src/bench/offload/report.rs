//! Medians of the rounds, and the table. Pure.

use std::collections::BTreeMap;

use liqoctl::{
    output::{self, Paint},
    probes::median,
};
use serde::Serialize;

use super::{
    setup::ClientLimits,
    usage::{API_SERVER, ObservedUsage},
    workload::DeletionTimes,
    writes::{WriteCounts, WriteKind},
};
use crate::bench::report::{BenchFigure, BenchReport};

/// Pods that are created one after the other, to measure a single pod.
pub(super) const SINGLE_PODS: usize = 20;
/// The way that is compared with plain pods.
const OFFLOADED: &str = "offloaded";
/// Plain pods that cost no more than this, in the unit of the figure, are not compared.
const NEGLIGIBLE: f64 = 0.05;

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OffloadBenchResult {
    pub home: String,
    pub provider: String,
    pub pods: u32,
    #[serde(flatten)]
    pub report: BenchReport,
    /// Client limits of the control planes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<ClientLimits>,
    /// Liqo's own writes while the offloaded pods were created.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<WritesPerPod>,
    /// Liqo's own writes for contracts, usage records and receipts, until the pods were deleted; in
    /// all rounds together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub contract_writes: Vec<ContractWrites>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessUsage>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContractWrites {
    pub number: u64,
    #[serde(flatten)]
    pub writes: WritesPerPod,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WritesPerPod {
    #[serde(flatten)]
    pub kind: WriteKind,
    pub per_pod: f64,
}

/// CPU time and memory of a process while the pods were created.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessUsage {
    pub cluster: String,
    pub program: String,
    pub offloaded: CpuAndMemory,
    pub plain: CpuAndMemory,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuAndMemory {
    pub cpu_seconds: f64,
    /// Peak of the resident memory.
    #[serde(rename = "peakResidentMiB")]
    pub peak_resident: f64,
    /// Peak of its anonymous part.
    #[serde(rename = "peakAnonymousMiB")]
    pub peak_anonymous: f64,
}

/// The results of one round with offloaded or with plain pods.
#[derive(Clone, Debug)]
pub(super) struct OffloadRound {
    /// Seconds until all pods were Ready.
    pub ready: f64,
    /// Seconds until all pods were gone.
    pub gone: DeletionTimes<f64>,
    /// Writes during the creation; nothing without audit logs.
    pub writes: Option<WriteCounts>,
    /// Liqo's own writes for contracts during creation and deletion.
    pub for_contracts: BTreeMap<WriteKind, u64>,
    /// Processes during the creation; empty outside of a playground.
    pub usage: Vec<ObservedUsage>,
}

/// Computes all figures from the single pods, in milliseconds, and the rounds: offloaded and plain.
pub(super) fn compute_result(
    single: &[Vec<f64>; 2],
    results: &[Vec<OffloadRound>; 2],
    pods: u32,
    rounds: u16,
) -> OffloadBenchResult {
    OffloadBenchResult {
        pods,
        report: BenchReport {
            rounds,
            figures: compare_variants(single, results, pods),
            ..BenchReport::default()
        },
        writes: own_writes(&results[0], pods),
        contract_writes: contract_writes(results, pods),
        processes: usage_of_processes(results),
        ..OffloadBenchResult::default()
    }
}

fn compare_variants(
    single: &[Vec<f64>; 2],
    rounds: &[Vec<OffloadRound>; 2],
    pods: u32,
) -> Vec<BenchFigure> {
    let each = f64::from(pods.max(1));
    let [offloaded, plain] = rounds;
    let of_rounds = |what: String, unit, of: &dyn Fn(&OffloadRound) -> Option<f64>| {
        figure_if_measured(
            what,
            unit,
            [offloaded, plain].map(|rounds| median(rounds.iter().filter_map(of))),
        )
    };
    let all = [
        figure_if_measured(
            format!("one pod Ready (median of {SINGLE_PODS})"),
            "ms",
            [&single[0], &single[1]].map(|times| median(times.iter().copied())),
        ),
        of_rounds(format!("{pods} pods Ready"), "s", &|round| {
            Some(round.ready)
        }),
        of_rounds(
            format!("{pods} pods deleted, gone where created"),
            "s",
            &|round| Some(round.gone.here),
        ),
        of_rounds(
            format!("{pods} pods deleted, gone at the provider"),
            "s",
            &|round| Some(round.gone.at_provider),
        ),
        of_rounds(
            "writes a pod, both API servers, all clients".to_owned(),
            "",
            &|round| Some(as_number(round.writes.as_ref()?.all) / each),
        ),
        of_rounds("writes a pod, Liqo's own".to_owned(), "", &|round| {
            Some(as_number(round.writes.as_ref()?.own.values().sum()) / each)
        }),
        of_rounds("CPU of both API servers".to_owned(), "s", &|round| {
            cpu_of_programs(round, |program| program == API_SERVER)
        }),
        of_rounds("CPU of Liqo, both sides".to_owned(), "s", &|round| {
            cpu_of_programs(round, |program| program != API_SERVER)
        }),
    ];
    all.into_iter().flatten().collect()
}

fn cpu_of_programs(round: &OffloadRound, is_counted: fn(&str) -> bool) -> Option<f64> {
    let counted = round
        .usage
        .iter()
        .filter(|usage| is_counted(&usage.program));
    (!round.usage.is_empty()).then(|| counted.map(|usage| usage.cpu_seconds).sum())
}

/// The figure, if both variants have a value.
fn figure_if_measured(
    what: String,
    unit: &'static str,
    values: [Option<f64>; 2],
) -> Option<BenchFigure> {
    values
        .iter()
        .all(Option::is_some)
        .then(|| BenchFigure::new(what, unit, OFFLOADED, values, NEGLIGIBLE))
}

#[allow(
    clippy::cast_precision_loss,
    reason = "counts of writes are far below 2^52"
)]
fn as_number(count: u64) -> f64 {
    count as f64
}

fn own_writes(offloaded: &[OffloadRound], pods: u32) -> Vec<WritesPerPod> {
    let mut counts: BTreeMap<&WriteKind, Vec<f64>> = BTreeMap::new();
    let audited: Vec<&WriteCounts> = offloaded
        .iter()
        .filter_map(|round| round.writes.as_ref())
        .collect();
    for (kind, count) in audited.iter().flat_map(|writes| &writes.own) {
        counts
            .entry(kind)
            .or_default()
            .push(as_number(*count) / f64::from(pods.max(1)));
    }
    counts
        .into_iter()
        .filter_map(|(kind, mut counts)| {
            // A round without this kind of write counts as zero.
            counts.resize(audited.len(), 0.0);
            Some(WritesPerPod {
                kind: kind.clone(),
                per_pod: median(counts)?,
            })
        })
        .collect()
}

/// Per pod that was offloaded.
fn contract_writes(rounds: &[Vec<OffloadRound>; 2], pods: u32) -> Vec<ContractWrites> {
    let mut numbers: BTreeMap<&WriteKind, u64> = BTreeMap::new();
    for (kind, number) in rounds
        .iter()
        .flatten()
        .flat_map(|round| &round.for_contracts)
    {
        *numbers.entry(kind).or_default() += number;
    }
    let all_pods: f64 = rounds[0]
        .iter()
        .map(|_| f64::from(pods))
        .sum::<f64>()
        .max(1.0);
    numbers
        .into_iter()
        .map(|(kind, number)| ContractWrites {
            number,
            writes: WritesPerPod {
                kind: kind.clone(),
                per_pod: as_number(number) / all_pods,
            },
        })
        .collect()
}

fn usage_of_processes(rounds: &[Vec<OffloadRound>; 2]) -> Vec<ProcessUsage> {
    let Some(first) = rounds[0].first() else {
        return Vec::new();
    };
    let mut names: Vec<(&str, &str)> = Vec::new();
    for usage in &first.usage {
        let name = (usage.cluster.as_str(), usage.program.as_str());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
        .into_iter()
        .map(|process| compare_process(rounds, process))
        .collect()
}

fn compare_process(rounds: &[Vec<OffloadRound>; 2], process: (&str, &str)) -> ProcessUsage {
    let (cluster, program) = process;
    let [offloaded, plain] = [&rounds[0], &rounds[1]].map(|rounds| CpuAndMemory {
        cpu_seconds: median_sum(rounds, process, |usage| usage.cpu_seconds),
        peak_resident: median_sum(rounds, process, |usage| usage.resident) / 1024.0,
        peak_anonymous: median_sum(rounds, process, |usage| usage.anonymous) / 1024.0,
    });
    ProcessUsage {
        cluster: cluster.to_owned(),
        program: program.to_owned(),
        offloaded,
        plain,
    }
}

/// A program that runs on several nodes has several processes: their sum in each round counts.
fn median_sum(
    rounds: &[OffloadRound],
    (cluster, program): (&str, &str),
    of: fn(&ObservedUsage) -> f64,
) -> f64 {
    median(rounds.iter().map(|round| {
        let same = round
            .usage
            .iter()
            .filter(|usage| (usage.cluster.as_str(), usage.program.as_str()) == (cluster, program));
        same.map(of).sum()
    }))
    .unwrap_or_default()
}

/// The figures for people.
pub fn render_offload_bench(measured: &OffloadBenchResult, paint: Paint) -> String {
    let mut blocks = vec![format!(
        "{} pods from {} on fake nodes of {}, compared with the same pods created there: {}.\n{}",
        measured.pods,
        measured.home,
        measured.provider,
        measured.report.rounds_in_words(),
        measured.report.render_figures(OFFLOADED, "PLAIN")
    )];
    if !measured.writes.is_empty() {
        // Writes that happen less than once in a hundred pods do not belong to the pods.
        let rows = measured
            .writes
            .iter()
            .filter(|writes| writes.per_pod >= 0.005)
            .map(write_row);
        blocks.push(output::format_table(
            &["LIQO'S OWN WRITES", "TO", "RESOURCE", "VERB", "A POD"],
            rows,
        ));
    }
    if !measured.contract_writes.is_empty() {
        let header = [
            "WRITES FOR CONTRACTS",
            "TO",
            "RESOURCE",
            "VERB",
            "ALL ROUNDS",
            "A POD",
        ];
        blocks.push(output::format_table(
            &header,
            measured.contract_writes.iter().map(contract_write_row),
        ));
    }
    if !measured.processes.is_empty() {
        let header = [
            "PROCESS",
            "CPU OFFLOADED",
            "CPU PLAIN",
            "PEAK RSS (ANONYMOUS) MiB OFFLOADED",
            "PLAIN",
        ];
        blocks.push(output::format_table(
            &header,
            measured.processes.iter().map(process_row),
        ));
    }
    blocks.extend((!measured.limits.is_empty()).then(|| limits(&measured.limits)));
    blocks.extend(measured.report.remarks(paint));
    blocks.join("\n\n")
}

fn process_row(process: &ProcessUsage) -> Vec<String> {
    let (offloaded, plain) = (process.offloaded, process.plain);
    vec![
        format!("{} of {}", process.program, process.cluster),
        format!("{:.2} s", offloaded.cpu_seconds),
        format!("{:.2} s", plain.cpu_seconds),
        format!(
            "{:.0} ({:.0})",
            offloaded.peak_resident, offloaded.peak_anonymous
        ),
        format!("{:.0} ({:.0})", plain.peak_resident, plain.peak_anonymous),
    ]
}

fn contract_write_row(one: &ContractWrites) -> Vec<String> {
    let numbers = vec![one.number.to_string(), format!("{:.4}", one.writes.per_pod)];
    [cells_of_write(&one.writes.kind), numbers].concat()
}

fn write_row(writes: &WritesPerPod) -> Vec<String> {
    let per_pod = format!("{:.2}", writes.per_pod);
    [cells_of_write(&writes.kind), vec![per_pod]].concat()
}

fn cells_of_write(kind: &WriteKind) -> Vec<String> {
    let location = format!("{:?}", kind.location).to_lowercase();
    vec![
        kind.agent.title().to_owned(),
        location,
        kind.resource.clone(),
        kind.verb.clone(),
    ]
}

fn limits(limits: &[ClientLimits]) -> String {
    output::format_table(
        &["CLIENT LIMITS", "CLUSTER", "REQUESTS A SECOND", "BURST"],
        limits.iter().map(limits_row),
    )
}

fn limits_row(limits: &ClientLimits) -> Vec<String> {
    vec![
        limits.component.clone(),
        limits.cluster.clone(),
        limit_text(limits.qps),
        limit_text(limits.burst),
    ]
}

fn limit_text(limit: Option<u32>) -> String {
    limit.map_or_else(|| "default".to_owned(), |limit| limit.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::offload::writes::{WriteLocation, WritingProcess};

    fn usage(cluster: &str, program: &str, cpu_seconds: f64) -> ObservedUsage {
        ObservedUsage {
            cluster: cluster.into(),
            program: program.into(),
            cpu_seconds,
            resident: 2048.0,
            anonymous: 1024.0,
        }
    }

    fn round(ready: f64, writes: Option<WriteCounts>, usage: Vec<ObservedUsage>) -> OffloadRound {
        OffloadRound {
            ready,
            gone: DeletionTimes {
                here: 2.0,
                at_provider: 3.0,
            },
            writes,
            for_contracts: BTreeMap::new(),
            usage,
        }
    }

    fn writes(all: u64, own: u64) -> WriteCounts {
        let kind = WriteKind {
            agent: WritingProcess::ManagerAtHome,
            location: WriteLocation::Provider,
            resource: "shadowpods".into(),
            verb: "create".into(),
        };
        WriteCounts {
            all,
            own: if own > 0 {
                [(kind, own)].into()
            } else {
                BTreeMap::new()
            },
        }
    }

    #[test]
    fn medians_of_both_ways_are_compared() {
        let offloaded = [9.0, 4.0, 6.0].map(|ready| {
            round(
                ready,
                Some(writes(1200, 300)),
                vec![
                    usage("rome", API_SERVER, 4.0),
                    usage("rome", "liqo-fabric", 1.0),
                ],
            )
        });
        let plain = [2.0, 2.0, 9.0].map(|ready| {
            round(
                ready,
                Some(writes(400, 0)),
                vec![usage("rome", API_SERVER, 1.0)],
            )
        });
        let measured = compute_result(
            &[vec![30.0, 10.0, 20.0], vec![5.0]],
            &[offloaded.into(), plain.into()],
            100,
            3,
        );
        let figure = |number: usize| {
            let figure: &BenchFigure = &measured.report.figures[number];
            (
                figure.values[OFFLOADED],
                figure.values["plain"],
                figure.ratio,
            )
        };
        assert_eq!(figure(0), (20.0, 5.0, Some(4.0)));
        assert_eq!(figure(1), (6.0, 2.0, Some(3.0)));
        assert_eq!(figure(4), (12.0, 4.0, Some(3.0)));
        assert_eq!(figure(5), (3.0, 0.0, None));
        assert_eq!((figure(6), figure(7).0), ((4.0, 1.0, Some(4.0)), 1.0));
        let text = render_offload_bench(&measured, Paint::off());
        assert!(
            text.contains("100 pods Ready") && text.contains("6.00 s") && text.contains("3.00"),
            "{text}"
        );
        assert!(
            text.contains("manager at home     provider   shadowpods   create   3.00"),
            "{text}"
        );
        assert!(
            text.contains("kube-apiserver of rome   4.00 s          1.00 s      2 (1)"),
            "{text}"
        );
    }

    #[test]
    fn what_was_not_measured_is_left_out() {
        let rounds = || vec![round(1.0, None, Vec::new())];
        let measured = compute_result(&[vec![1.0], vec![1.0]], &[rounds(), rounds()], 100, 1);
        assert_eq!(measured.report.figures.len(), 4);
        assert!(measured.writes.is_empty() && measured.processes.is_empty());
        let text = render_offload_bench(&measured, Paint::off());
        assert!(
            !text.contains("WRITES") && text.contains("there: 1 round.\n"),
            "{text}"
        );
    }

    #[test]
    fn writes_for_contracts_of_all_rounds_are_counted_per_offloaded_pod() {
        let kind = WriteKind {
            agent: WritingProcess::ManagerAtProvider,
            location: WriteLocation::Provider,
            resource: "usagerecords".into(),
            verb: "create".into(),
        };
        let with = |number| OffloadRound {
            for_contracts: BTreeMap::from([(kind.clone(), number)]),
            ..round(1.0, None, vec![])
        };
        let measured = compute_result(
            &[vec![1.0], vec![1.0]],
            &[vec![with(3), with(5)], vec![with(2), with(0)]],
            100,
            2,
        );
        let text = render_offload_bench(&measured, Paint::off());
        assert!(
            text.contains(
                "manager at the provider   provider   usagerecords   create   10           0.0500"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_write_that_only_one_of_three_rounds_has_does_not_count() {
        let rounds = [100, 0, 0].map(|own| round(1.0, Some(writes(1, own)), vec![]));
        assert!(own_writes(&rounds, 100)[0].per_pod.abs() < f64::EPSILON);
    }
}

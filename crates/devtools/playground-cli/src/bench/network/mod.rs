//! `bench network`: the tunnel between two clusters, compared with the plain link between
//! their gateways.
//!
//! The same program measures both in turns: from a pod on the gateway's node to a pod at the peer,
//! and from the gateway's node to the peer's gateway, without the tunnel. The second needs access
//! to the peer's cluster. CPU time is that of `liqo-fabric` on both gateways, which encrypts and
//! decrypts; it does not include the kernel's own work.
//!
//! With access to the peer's cluster, `slices` also changes a Service and measures how soon both
//! sides have the change.

mod slices;

use std::{
    iter,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail, ensure};
use clap::Args;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _};
use liqo_api::{FABRIC_NAMESPACE, ForeignCluster, SYSTEM_NAMESPACE, TunnelEndpoint};
use liqo_network_probe::{AskRequest, AskedQuestion, MeasuredAnswer, PORT, QuestionKind};
use liqoctl::{
    cluster::{Cluster, ExplainFailure as _},
    output::{self, Paint},
    probes::{self, NamespaceSecurity, OtherClusterFlags, ProbeNode, TestNamespaces, median, pods},
    progress::StepProgress,
    token,
};
use serde::Serialize;
use tokio::time::Instant;

use slices::{DelayPercentiles, SliceDelays};

use super::{
    builds::measured_builds,
    clusters::choose_peer,
    report::{BenchFigure, BenchReport, with_unit},
};

/// Time limit until pods are ready.
const PODS_TIMEOUT: Duration = Duration::from_secs(90);
/// Time limit for all changes of a Service together.
const CHANGES_TIMEOUT: Duration = Duration::from_mins(2);
/// Time that is kept for the steps after them.
const RESERVED_TIME: Duration = Duration::from_secs(5);
/// Bytes of a datagram, which fits into one packet everywhere.
const DATAGRAM_LEN: usize = 1_200;
/// The way that is compared with the plain link.
const TUNNEL: &str = "tunnel";
const STARTING_PODS: &str = "Starting the pods";
/// Port of `liqo-fabric`'s metrics.
const METRICS_PORT: u16 = 9479;

/// Options of `bench network`.
#[derive(Clone, Debug, Args)]
pub struct NetworkBenchOptions {
    /// Name or ID of the peer [default: the one of --remote-kubeconfig, or the only one]
    pub peer: Option<String>,
    #[command(flatten)]
    pub others: OtherClusterFlags,
    /// Duration of each measurement in seconds
    #[arg(long, default_value_t = 2, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=60))]
    pub seconds: u16,
    /// How often to repeat each measurement; the median counts
    #[arg(long, default_value_t = 3, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=20))]
    pub rounds: u16,
    /// Image of the pods, which contains liqo-fabric [default: the one that runs in the cluster]
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Time limit of the whole run
    #[arg(long, default_value = "10m", value_parser = token::parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkBenchResult {
    /// The cluster that sent.
    pub from: String,
    /// The cluster that received.
    pub to: String,
    /// Duration of each measurement.
    pub seconds: u16,
    #[serde(flatten)]
    pub report: BenchReport,
    /// Only with access to the peer's cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<SliceDelays>,
}

/// A path that is measured.
struct BenchPath {
    cluster: Cluster,
    namespace: String,
    pod: String,
    to: String,
    /// The token that the other side expects.
    token: String,
}

/// A gateway in use, whose CPU time is measured.
struct MeasuredGateway {
    cluster: Cluster,
    node: ProbeNode,
}

/// The result of one round on one path.
#[derive(Clone, Debug, Default, PartialEq)]
struct ThroughputRound {
    one: Option<f64>,
    four: Option<f64>,
    udp: Option<f64>,
    lost: Option<f64>,
    p50: Option<f64>,
    p99: Option<f64>,
    cpu: Option<f64>,
}

/// Measures between the first of these clusters and a peer of it.
pub async fn run_network_bench(
    clusters: &[Cluster],
    options: &NetworkBenchOptions,
    progress: &StepProgress,
) -> anyhow::Result<NetworkBenchResult> {
    let Some((home, others)) = clusters.split_first() else {
        bail!("no cluster was named")
    };
    let own = home.require_installed().await?;
    let foreign = choose_peer(
        home,
        others,
        options.peer.as_deref(),
        "cargo playground bench network",
    )
    .await?;
    let peer = foreign.display_name();
    let mut there = None;
    for other in others {
        if other.require_installed().await?.id == foreign.spec.cluster_id {
            there = Some(other.clone());
        }
    }
    probes::remove_leftovers(clusters).await?;
    let namespaces = TestNamespaces::new(options.timeout, false);
    let deadline = Instant::now() + options.timeout;
    let measuring = async {
        let measured: Vec<&Cluster> = iter::once(home).chain(&there).collect();
        let mut notes = vec![measured_builds(&measured).await?];
        let setup = prepare_paths(
            home,
            there.as_ref(),
            &foreign,
            options,
            &namespaces,
            &mut notes,
            progress,
        )
        .await?;
        let step = format!(
            "Measuring between {} and {peer}",
            own.config.spec.cluster_name
        );
        let rounds = progress
            .run_step(
                &step,
                measure_paths(&setup, options, progress, &step, &mut notes),
            )
            .await?;
        let changes =
            measure_service_changes(home, there.as_ref(), &setup, deadline, progress, &mut notes)
                .await;
        anyhow::Ok(NetworkBenchResult {
            from: own.config.spec.cluster_name.clone(),
            to: peer.clone(),
            seconds: options.seconds,
            report: BenchReport {
                rounds: options.rounds,
                figures: compare_rounds(&rounds[0], &rounds[1]),
                notes,
                left: Vec::new(),
            },
            changes,
        })
    };
    let mut run =
        Box::pin(namespaces.run_and_clean_up(options.timeout, progress, measuring)).await?;
    run.found.report.left = run.left;
    Ok(run.found)
}

/// The paths, and the gateways on them.
struct NetworkBenchSetup {
    tunnel: BenchPath,
    plain: Option<BenchPath>,
    gateways: Vec<MeasuredGateway>,
    /// Name of the namespace at the peer.
    remote_namespace: Option<String>,
}

async fn prepare_paths(
    home: &Cluster,
    there: Option<&Cluster>,
    foreign: &ForeignCluster,
    options: &NetworkBenchOptions,
    namespaces: &TestNamespaces,
    notes: &mut Vec<String>,
    progress: &StepProgress,
) -> anyhow::Result<NetworkBenchSetup> {
    let peer = foreign.display_name();
    let id = &foreign.spec.cluster_id;
    let image = match &options.image {
        Some(image) => image.clone(),
        None => probes::fabric_image(home).await?,
    };
    let virtual_node = probes::virtual_nodes(home)
        .await?
        .remove(id.as_str())
        .with_context(|| format!("there is no virtual node of {peer}"))?;
    let here = gateways_in_use(home, id.as_str()).await?;
    let offloaded = namespaces
        .offloaded_namespace(home, "network-bench", None, PODS_TIMEOUT, progress)
        .await?;
    let namespace = offloaded.namespace;
    let remote_namespace = offloaded
        .remote
        .into_iter()
        .find(|remote| remote.cluster == peer)
        .map(|remote| remote.namespace);
    let token = token::random_token()?;
    let starting = async {
        let pods = BenchPods {
            home,
            sender_node: &here[0].name,
            image: &image,
            token: &token,
            progress,
        };
        let tunnel = pods.start_over_tunnel(&namespace, &virtual_node).await?;
        let mut gateways = gateways_of(home, &here);
        let Some(there) = there else {
            notes.push(format!("to measure the plain link, the CPU time of {peer}'s gateway, and how soon {peer} has changes of Services, give access to {peer}: --remote-kubeconfig"));
            return anyhow::Ok(NetworkBenchSetup {
                tunnel,
                plain: None,
                gateways,
                remote_namespace,
            });
        };
        let own = home.require_installed().await?.id;
        let far = self::gateways_in_use(there, own.as_str()).await?;
        let plain = pods.start_on_nodes(namespaces, there, &far[0]).await?;
        gateways.extend(gateways_of(there, &far));
        Ok(NetworkBenchSetup {
            tunnel,
            plain: Some(plain),
            gateways,
            remote_namespace,
        })
    };
    progress.run_step(STARTING_PODS, starting).await
}

fn gateways_of(cluster: &Cluster, nodes: &[ProbeNode]) -> Vec<MeasuredGateway> {
    nodes
        .iter()
        .map(|node| MeasuredGateway {
            cluster: cluster.clone(),
            node: node.clone(),
        })
        .collect()
}

/// The network of a pod that measures.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PodNetwork {
    Own,
    OfNode,
}

/// The values that all pods of all paths share.
struct BenchPods<'a> {
    home: &'a Cluster,
    /// The node here from which each path begins.
    sender_node: &'a str,
    image: &'a str,
    token: &'a str,
    progress: &'a StepProgress,
}

impl BenchPods<'_> {
    /// Starts the pods of the path through the tunnel.
    async fn start_over_tunnel(
        &self,
        namespace: &str,
        virtual_node: &str,
    ) -> anyhow::Result<BenchPath> {
        let (sender, receiver) = (
            self.sender_pod(PodNetwork::Own),
            self.receiver_pod(virtual_node, PodNetwork::Own),
        );
        pods::create_pod(self.home, namespace, &sender, self.image).await?;
        pods::create_pod(self.home, namespace, &receiver, self.image).await?;
        let found = pods::wait_for_pods(
            self.home,
            namespace,
            PODS_TIMEOUT,
            |text| self.progress.message(STARTING_PODS, text),
            reason_without_address,
        )
        .await?;
        let receiver = found
            .iter()
            .find(|pod| pod.name_any() == "receiver")
            .and_then(|pod| pods::addresses_of_pod(pod).first().copied());
        let receiver = receiver.context("the pod that receives has no address")?;
        Ok(self.path_to(receiver, namespace.to_owned()))
    }

    /// Starts the pods of the plain link, in the network of the gateways' nodes.
    async fn start_on_nodes(
        &self,
        namespaces: &TestNamespaces,
        there: &Cluster,
        far: &ProbeNode,
    ) -> anyhow::Result<BenchPath> {
        let near_nodes = namespaces
            .create_namespace(
                self.home,
                "network-bench-nodes",
                NamespaceSecurity::Privileged,
            )
            .await?;
        let far_nodes = namespaces
            .create_namespace(there, "network-bench-nodes", NamespaceSecurity::Privileged)
            .await?;
        let (sender, receiver) = (
            self.sender_pod(PodNetwork::OfNode),
            self.receiver_pod(&far.name, PodNetwork::OfNode),
        );
        pods::create_pod(self.home, &near_nodes, &sender, self.image).await?;
        pods::create_pod(there, &far_nodes, &receiver, self.image).await?;
        for (cluster, namespace) in [(self.home, &near_nodes), (there, &far_nodes)] {
            pods::wait_for_pods(
                cluster,
                namespace,
                PODS_TIMEOUT,
                |text| self.progress.message(STARTING_PODS, text),
                |_| None,
            )
            .await?;
        }
        Ok(self.path_to(far.address, near_nodes))
    }

    fn sender_pod(&self, network: PodNetwork) -> pods::ProbePod {
        pods::ProbePod {
            name: "sender".to_owned(),
            node: self.sender_node.to_owned(),
            is_virtual: false,
            host_network: network == PodNetwork::OfNode,
            role: pods::ProbePodRole::Wait,
            group: "sender".to_owned(),
        }
    }

    /// On a virtual node, unless it uses the network of its node. Everybody who reaches the node
    /// reaches the pod in the node's network, so that pod requires a token.
    fn receiver_pod(&self, node: &str, network: PodNetwork) -> pods::ProbePod {
        pods::ProbePod {
            name: "receiver".to_owned(),
            node: node.to_owned(),
            is_virtual: network == PodNetwork::Own,
            host_network: network == PodNetwork::OfNode,
            role: pods::ProbePodRole::ServeWithToken(self.token.to_owned()),
            group: "receiver".to_owned(),
        }
    }

    fn path_to(&self, receiver: IpAddr, namespace: String) -> BenchPath {
        BenchPath {
            cluster: self.home.clone(),
            namespace,
            pod: "sender".to_owned(),
            to: SocketAddr::new(receiver, PORT).to_string(),
            token: self.token.to_owned(),
        }
    }
}

fn reason_without_address(pod: &Pod) -> Option<String> {
    pods::addresses_of_pod(pod)
        .is_empty()
        .then(|| "it has no address yet: does the tunnel work?".to_owned())
}

/// The nodes whose gateways are in use for a peer; at least one.
async fn gateways_in_use(cluster: &Cluster, peer: &str) -> anyhow::Result<Vec<ProbeNode>> {
    let api: Api<TunnelEndpoint> = Api::namespaced(cluster.client.clone(), SYSTEM_NAMESPACE);
    let endpoint = api.get_opt(peer).await.doing("read the tunnel endpoint")?;
    let endpoint = endpoint.ok_or_else(|| {
        anyhow!(
            "there is no network to the peer in cluster {}: see `liqoctl status`",
            cluster.context
        )
    })?;
    let names: Vec<String> = endpoint
        .status
        .unwrap_or_default()
        .gateways
        .into_iter()
        .filter(|one| one.connected)
        .map(|one| one.node)
        .collect();
    let nodes: Vec<ProbeNode> = probes::list_probe_nodes(cluster, &[])
        .await?
        .ready
        .into_iter()
        .filter(|node| names.contains(&node.name))
        .collect();
    ensure!(
        !nodes.is_empty(),
        "no gateway of cluster {} is connected: see `liqoctl status`",
        cluster.context
    );
    Ok(nodes)
}

/// Measures how soon both sides have changes of a Service.
async fn measure_service_changes(
    home: &Cluster,
    there: Option<&Cluster>,
    setup: &NetworkBenchSetup,
    deadline: Instant,
    progress: &StepProgress,
    notes: &mut Vec<String>,
) -> Option<SliceDelays> {
    let there = there?;
    let step = "Changing a Service";
    let measuring = async {
        let remote = setup
            .remote_namespace
            .as_ref()
            .context("the namespace does not exist at the peer")?;
        let limit = CHANGES_TIMEOUT.min(
            deadline
                .saturating_duration_since(Instant::now())
                .saturating_sub(RESERVED_TIME),
        );
        let measuring = slices::measure_slice_delays(
            (home, &setup.tunnel.namespace),
            (there, remote),
            "receiver",
            |text| progress.message(step, &text),
        );
        let measured = tokio::time::timeout(limit, measuring).await;
        measured.unwrap_or_else(|_| Err(anyhow!("it was not finished after {} s", limit.as_secs())))
    };
    match progress.run_step(step, measuring).await {
        Ok(changes) => Some(changes),
        Err(error) => {
            notes.push(format!(
                "cannot measure how soon clusters have changes of a Service: {}",
                output::strip_control_characters(&format!("{error:#}"))
            ));
            None
        }
    }
}

/// Measures both paths in turns.
async fn measure_paths(
    setup: &NetworkBenchSetup,
    options: &NetworkBenchOptions,
    progress: &StepProgress,
    step: &str,
    notes: &mut Vec<String>,
) -> anyhow::Result<[Vec<ThroughputRound>; 2]> {
    let mut rounds: [Vec<ThroughputRound>; 2] = Default::default();
    for number in 0..options.rounds {
        progress.message(
            step,
            &format!("round {} of {}: the tunnel", number + 1, options.rounds),
        );
        rounds[0].push(
            measure_round(&setup.tunnel, options, &setup.gateways)
                .await
                .context("through the tunnel")?,
        );
        if let Some(plain) = &setup.plain {
            progress.message(
                step,
                &format!("round {} of {}: the plain link", number + 1, options.rounds),
            );
            match measure_round(plain, options, &[]).await {
                Ok(round) => rounds[1].push(round),
                Err(error) => {
                    let note = format!(
                        "cannot measure the plain link: {}",
                        output::strip_control_characters(&format!("{error:#}"))
                    );
                    if !notes.contains(&note) {
                        notes.push(note);
                    }
                }
            }
        }
    }
    Ok(rounds)
}

async fn measure_round(
    path: &BenchPath,
    options: &NetworkBenchOptions,
    gateways: &[MeasuredGateway],
) -> anyhow::Result<ThroughputRound> {
    let seconds = f64::from(options.seconds);
    let limit = Duration::from_secs(u64::from(options.seconds) + 30);
    let mut found = ThroughputRound::default();
    let before = total_cpu_seconds(gateways).await;
    let mut gigabytes = 0.0;
    for (connections, figure) in [(1, &mut found.one), (4, &mut found.four)] {
        if let MeasuredAnswer::Carried { bytes, seconds, .. } = ask_over_path(
            path,
            limit,
            QuestionKind::Stream {
                seconds,
                connections,
            },
        )
        .await?
        {
            *figure = Some(megabits(bytes, seconds));
            gigabytes += as_number(bytes) / 1e9;
        }
    }
    let after = total_cpu_seconds(gateways).await;
    found.cpu = before
        .zip(after)
        .filter(|_| gigabytes > 0.0)
        .map(|(before, after)| (after - before) / gigabytes);
    if let MeasuredAnswer::Latency { p50, p99, .. } =
        ask_over_path(path, limit, QuestionKind::Latency { seconds }).await?
    {
        (found.p50, found.p99) = (Some(p50), Some(p99));
    }
    if let MeasuredAnswer::Carried {
        bytes,
        seconds,
        sent,
    } = ask_over_path(
        path,
        limit,
        QuestionKind::Flood {
            seconds,
            bytes: DATAGRAM_LEN,
        },
    )
    .await?
    {
        found.udp = Some(megabits(bytes, seconds));
        found.lost = Some(100.0 * (1.0 - as_number(bytes) / as_number(sent.max(1))));
    }
    Ok(found)
}

async fn ask_over_path(
    path: &BenchPath,
    limit: Duration,
    what: QuestionKind,
) -> anyhow::Result<MeasuredAnswer> {
    let questions = vec![AskedQuestion {
        to: path.to.clone(),
        what,
    }];
    let request = AskRequest {
        questions,
        timeout_millis: 5_000,
        at_once: 1,
        token: Some(path.token.clone()),
    };
    let answers =
        probes::run_probe(&path.cluster, &path.namespace, &path.pod, &request, limit).await;
    let Some(report) = answers.reports.into_iter().next() else {
        answers.end?;
        bail!("pod {} reported nothing", path.pod);
    };
    report
        .outcome
        .map_err(|problem| anyhow!("{} does not answer as it should: {problem}", path.to))
}

fn megabits(bytes: u64, seconds: f64) -> f64 {
    as_number(bytes) * 8.0 / 1e6 / seconds.max(1e-3)
}

#[allow(clippy::cast_precision_loss, reason = "figures of three digits")]
fn as_number(bytes: u64) -> f64 {
    bytes as f64
}

/// CPU time of `liqo-fabric` on these gateways so far; nothing if one of them does not report it.
async fn total_cpu_seconds(gateways: &[MeasuredGateway]) -> Option<f64> {
    let mut total = 0.0;
    for gateway in gateways {
        let path = format!(
            "/api/v1/namespaces/{FABRIC_NAMESPACE}/pods/{}:{METRICS_PORT}/proxy/metrics",
            gateway.node.pod
        );
        let request = http::Request::get(path).body(Vec::new()).ok()?;
        let text = gateway.cluster.client.request_text(request).await.ok()?;
        total += cpu_seconds(&text)?;
    }
    (!gateways.is_empty()).then_some(total)
}

fn cpu_seconds(metrics: &str) -> Option<f64> {
    metrics.lines().find_map(|line| {
        line.strip_prefix("process_cpu_seconds_total ")?
            .trim()
            .parse()
            .ok()
    })
}

/// Compares pod to pod through the tunnel with gateway to gateway without it.
fn compare_rounds(tunnel: &[ThroughputRound], plain: &[ThroughputRound]) -> Vec<BenchFigure> {
    let figure = |what, unit, of: fn(&ThroughputRound) -> Option<f64>| {
        BenchFigure::new(
            what,
            unit,
            TUNNEL,
            [tunnel, plain].map(|rounds| median(rounds.iter().filter_map(of))),
            0.0,
        )
    };
    vec![
        figure("TCP, 1 connection", "Mbit/s", |round| round.one),
        figure("TCP, 4 connections", "Mbit/s", |round| round.four),
        figure("UDP, as fast as possible", "Mbit/s", |round| round.udp),
        figure("UDP, lost", "%", |round| round.lost),
        figure("question and answer, P50", "ms", |round| round.p50),
        figure("question and answer, P99", "ms", |round| round.p99),
        figure("CPU of liqo-fabric, both ends", "s/GB", |round| round.cpu),
    ]
}

/// The figures for people.
pub fn render_network_bench(measured: &NetworkBenchResult, paint: Paint) -> String {
    let title = format!(
        "From {} to {}: {} of {} s.",
        measured.from,
        measured.to,
        measured.report.rounds_in_words(),
        measured.seconds
    );
    let mut lines = vec![title, measured.report.render_figures(TUNNEL, "PLAIN LINK")];
    if let Some(changes) = &measured.changes {
        let rows = [
            (
                "P50",
                (|times: &DelayPercentiles| times.p50) as fn(&DelayPercentiles) -> f64,
            ),
            ("P99", |times| times.p99),
        ]
        .map(|(name, of)| {
            let shown = [&changes.home, &changes.peer, &changes.between]
                .map(|times| with_unit(of(times), "ms"));
            [vec![name.to_owned()], shown.to_vec()].concat()
        });
        lines.push(format!(
            "Time from a change of a Service until EndpointSlices show it, for {} changes.",
            changes.count
        ));
        lines.push(output::format_table(
            &["", "AT HOME", "AT THE PEER", "BETWEEN THEM"],
            rows,
        ));
    }
    lines.extend(measured.report.remarks(paint));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_both_paths_are_compared() {
        let round = |one| ThroughputRound {
            one: Some(one),
            ..ThroughputRound::default()
        };
        let found = compare_rounds(&[round(100.0), round(900.0), round(300.0)], &[round(600.0)]);
        assert_eq!(
            (&found[0].values, found[0].ratio),
            (&[(TUNNEL, 300.0), ("plain", 600.0)].into(), Some(0.5))
        );
        assert_eq!((&found[1].values, found[1].ratio), (&[].into(), None));
        let measured = NetworkBenchResult {
            from: "rome".into(),
            to: "milan".into(),
            seconds: 2,
            report: BenchReport {
                rounds: 3,
                figures: found,
                notes: vec!["n".into()],
                left: Vec::new(),
            },
            changes: Some(SliceDelays {
                count: 100,
                home: DelayPercentiles {
                    p50: 12.0,
                    p99: 30.0,
                },
                peer: DelayPercentiles {
                    p50: 40.0,
                    p99: 101.0,
                },
                between: DelayPercentiles {
                    p50: 28.0,
                    p99: 90.0,
                },
            }),
        };
        let text = render_network_bench(&measured, Paint::off());
        assert!(
            text.contains("P99   30.00 ms   101 ms        90.00 ms"),
            "{text}"
        );
        assert!(
            text.contains("300 Mbit/s") && text.contains("0.50") && text.ends_with("Note: n."),
            "{text}"
        );
    }

    #[test]
    fn the_time_of_a_program_is_found_among_its_metrics() {
        assert_eq!(
            cpu_seconds(
                "# TYPE process_cpu_seconds counter\nprocess_cpu_seconds_total 1.25\n# EOF\n"
            ),
            Some(1.25)
        );
        assert_eq!(cpu_seconds("liqo_tunnel_up 1\n"), None);
    }
}

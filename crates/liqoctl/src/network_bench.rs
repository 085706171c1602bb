//! `liqoctl bench network`: the tunnel between two clusters beside the plain link between their gateways.
//!
//! Both are measured in turns by the same program: from a pod on the gateway's node to a pod at the peer, and from the gateway's node to
//! the peer's gateway, past the tunnel. The second needs a look into the peer's cluster. The time of processors is that of `liqo-fabric`
//! on both gateways, which encrypts and decrypts; what the kernel does on its own behalf is not in it.
//!
//! Where the peer may be looked into, a Service is changed, too, and how soon that is known on both sides is told (`slices`).

mod slices;

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, anyhow, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt as _, api::ListParams};
use liqo_api::{FABRIC_NAMESPACE, ForeignCluster, SYSTEM_NAMESPACE, TunnelEndpoint, labels};
use liqo_probe::{Finding, PORT, Question, Request, What};
use serde::Serialize;
use tokio::time::Instant;

use slices::{Changes, Times};

use crate::{
    cluster::{Cluster, Explained as _},
    offload,
    output::{self, Paint},
    probes::{self, FabricNode, Stage, median, pods},
    progress::Progress,
    token, unpeer,
};

/// How long pods may take until they are ready.
const READY: Duration = Duration::from_secs(90);
/// How long the changes of a Service may take in all.
const CHANGING: Duration = Duration::from_secs(120);
/// So much of the time is left for what comes after them.
const SPARE: Duration = Duration::from_secs(5);
/// Bytes of a datagram: one packet everywhere.
const DATAGRAM: usize = 1_200;
/// Where `liqo-fabric` tells its metrics.
const METRICS_PORT: u16 = 9479;

/// How to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name or ID of the peer.
    pub peer: Option<String>,
    /// For how long each measurement sends.
    pub seconds: u16,
    /// How often each is repeated.
    pub rounds: u16,
    /// The image of the pods, if not that of the cluster.
    pub image: Option<String>,
    /// How long it may take.
    pub timeout: Duration,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// The cluster that sent.
    pub from: String,
    /// The cluster that received.
    pub to: String,
    /// For how many seconds each measurement sent.
    pub seconds: u16,
    /// How often each was repeated; medians are shown.
    pub rounds: u16,
    /// The figures.
    pub figures: Vec<Figure>,
    /// How soon changes of a Service are known, where the peer may be looked into.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<Changes>,
    /// What the figures lack, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What could not be removed at the end, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
}

impl Measured {
    /// An error if something stays.
    pub fn verdict(&self) -> anyhow::Result<()> {
        ensure!(self.left.is_empty(), "what was made for measuring could not be removed");
        Ok(())
    }
}

/// One figure of both ways.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figure {
    /// What it is.
    pub what: &'static str,
    /// In this unit.
    pub unit: &'static str,
    /// From pod to pod, through the tunnel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<f64>,
    /// From gateway to gateway, past it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plain: Option<f64>,
}

impl Figure {
    fn ratio(&self) -> Option<f64> {
        Some(self.tunnel? / self.plain.filter(|plain| *plain > 0.0)?)
    }
}

/// A way that is measured: who asks, and where.
struct Way {
    cluster: Cluster,
    namespace: String,
    pod: String,
    to: String,
    /// What the other side wants to hear.
    token: String,
}

/// A gateway in use, whose program is watched.
struct Gateway {
    cluster: Cluster,
    node: FabricNode,
}

/// What one round found of one way.
#[derive(Clone, Debug, Default, PartialEq)]
struct Round {
    one: Option<f64>,
    four: Option<f64>,
    udp: Option<f64>,
    lost: Option<f64>,
    p50: Option<f64>,
    p99: Option<f64>,
    cpu: Option<f64>,
}

/// Measures between the first of these clusters and a peer of it.
pub async fn run(clusters: &[Cluster], options: &Options, progress: &Progress) -> anyhow::Result<Measured> {
    let Some((home, others)) = clusters.split_first() else { bail!("no cluster was named") };
    let own = home.installed().await?;
    let foreign = choose(home, others, options.peer.as_deref()).await?;
    let peer = foreign.display_name();
    let mut there = None;
    for other in others {
        if other.installed().await?.id == foreign.spec.cluster_id {
            there = Some(other.clone());
        }
    }
    probes::sweep(clusters).await?;
    let stage = Stage::new(options.timeout, false);
    let deadline = Instant::now() + options.timeout;
    let measuring = async {
        let mut notes = Vec::new();
        let scene = set(home, there.as_ref(), &foreign, options, &stage, &mut notes, progress).await?;
        let step = format!("Measuring between {} and {peer}", own.config.spec.cluster_name);
        let rounds = progress.step(&step, measure(&scene, options, progress, &step, &mut notes)).await?;
        let changes = changes(home, there.as_ref(), &scene, deadline, progress, &mut notes).await;
        anyhow::Ok(Measured {
            from: own.config.spec.cluster_name.clone(),
            to: peer.clone(),
            seconds: options.seconds,
            rounds: options.rounds,
            figures: figures(&rounds[0], &rounds[1]),
            changes,
            notes,
            left: Vec::new(),
        })
    };
    let played = Box::pin(stage.play(options.timeout, progress, measuring)).await?;
    Ok(Measured { left: played.left, ..played.found })
}

/// The peer that is meant.
async fn choose(home: &Cluster, others: &[Cluster], name: Option<&str>) -> anyhow::Result<ForeignCluster> {
    if let Some(name) = name {
        return unpeer::find(home, name).await;
    }
    let borrowed = virtual_nodes(home).await?;
    let api: Api<ForeignCluster> = Api::all(home.client.clone());
    let mut peers = api.list(&ListParams::default()).await.doing("list the peers")?.items;
    peers.retain(|foreign| borrowed.contains_key(foreign.spec.cluster_id.as_str()));
    if !others.is_empty() {
        let mut named = Vec::new();
        for other in others {
            named.push(other.installed().await?.id);
        }
        peers.retain(|foreign| named.contains(&foreign.spec.cluster_id));
    }
    let names: Vec<String> = peers.iter().map(kube::ResourceExt::name_any).collect();
    match peers.pop() {
        Some(peer) if peers.is_empty() => Ok(peer),
        Some(_) => bail!("which peer? {}: `liqoctl bench network {}`", output::there_are(&names), names[0]),
        None => bail!("cluster {} borrows from none of them, so no pod of it can run there: see `liqoctl peer`", home.context),
    }
}

/// The virtual nodes that are there, by the ID of their cluster.
async fn virtual_nodes(home: &Cluster) -> anyhow::Result<BTreeMap<String, String>> {
    let api: Api<Node> = Api::all(home.client.clone());
    let ours = ListParams::default().labels(&format!("{}={}", labels::TYPE, labels::TYPE_VIRTUAL_NODE));
    let all = api.list_metadata(&ours).await.doing("list the virtual nodes")?.items;
    Ok(all.iter().filter_map(|node| Some((node.labels().get(labels::REMOTE_CLUSTER_ID)?.clone(), node.name_any()))).collect())
}

/// The ways, and the gateways on them.
struct Scene {
    tunnel: Way,
    plain: Option<Way>,
    gateways: Vec<Gateway>,
    /// What the namespace is called at the peer.
    remote_namespace: Option<String>,
}

async fn set(
    home: &Cluster,
    there: Option<&Cluster>,
    foreign: &ForeignCluster,
    options: &Options,
    stage: &Stage,
    notes: &mut Vec<String>,
    progress: &Progress,
) -> anyhow::Result<Scene> {
    let peer = foreign.display_name();
    let id = &foreign.spec.cluster_id;
    let image = match &options.image {
        Some(image) => image.clone(),
        None => probes::image(home).await?,
    };
    let virtual_node =
        virtual_nodes(home).await?.remove(id.as_str()).with_context(|| format!("there is no virtual node of {peer}"))?;
    let here = gateways(home, id.as_str()).await?;
    let namespace = stage.namespace(home, "network-bench", false).await?;
    let offloading = offload::Options {
        strategy: liqo_api::PodOffloadingStrategy::LocalAndRemote,
        reflection: None,
        selector: None,
        timeout: READY,
    };
    let offloaded = offload::offload(home, &namespace, &offloading, progress).await?;
    let remote_namespace = offloaded.remote.into_iter().find(|twin| twin.cluster == peer).map(|twin| twin.namespace);
    let pod = |name: &str, node: &str, is_virtual: bool, host_network: bool, role: pods::Role| pods::Wanted {
        name: name.to_owned(),
        node: node.to_owned(),
        is_virtual,
        host_network,
        role,
        group: name.to_owned(),
    };
    // The one in the network of a node is reached by whoever reaches the node.
    let token = token::random()?;
    let serve = || pods::Role::ServeThose(token.clone());
    let step = "Starting the pods";
    let news = |text: &str| progress.message(step, text);
    let starting = async {
        pods::make(home, &namespace, &pod("sender", &here[0].name, false, false, pods::Role::Wait), &image).await?;
        pods::make(home, &namespace, &pod("receiver", &virtual_node, true, false, serve()), &image).await?;
        let no_address =
            |pod: &Pod| pods::addresses(pod).is_empty().then(|| "it has no address yet: does the tunnel work?".to_owned());
        let found = pods::ready(home, &namespace, READY, news, no_address).await?;
        let receiver =
            found.iter().find(|pod| pod.name_any() == "receiver").and_then(|pod| pods::addresses(pod).first().copied());
        let receiver = receiver.context("the pod that receives has no address")?;
        let tunnel = Way {
            cluster: home.clone(),
            namespace: namespace.clone(),
            pod: "sender".to_owned(),
            to: std::net::SocketAddr::new(receiver, PORT).to_string(),
            token: token.clone(),
        };
        let of = |cluster: &Cluster, nodes: &[FabricNode]| {
            nodes.iter().map(|node| Gateway { cluster: cluster.clone(), node: node.clone() }).collect::<Vec<_>>()
        };
        let mut gateways = of(home, &here);
        let Some(there) = there else {
            notes.push(format!("the plain link, what {peer}'s gateway takes, and how soon {peer} knows of changes need a look into {peer}: --remote-kubeconfig"));
            return anyhow::Ok(Scene { tunnel, plain: None, gateways, remote_namespace });
        };
        let own = home.installed().await?.id;
        let all_far = self::gateways(there, own.as_str()).await?;
        let far = &all_far[0];
        let near_nodes = stage.namespace(home, "network-bench-nodes", true).await?;
        let far_nodes = stage.namespace(there, "network-bench-nodes", true).await?;
        pods::make(home, &near_nodes, &pod("sender", &here[0].name, false, true, pods::Role::Wait), &image).await?;
        pods::make(there, &far_nodes, &pod("receiver", &far.name, false, true, serve()), &image).await?;
        pods::ready(home, &near_nodes, READY, news, |_| None).await?;
        pods::ready(there, &far_nodes, READY, news, |_| None).await?;
        let plain = Way {
            cluster: home.clone(),
            namespace: near_nodes,
            pod: "sender".to_owned(),
            to: std::net::SocketAddr::new(far.address, PORT).to_string(),
            token: token.clone(),
        };
        gateways.extend(of(there, &all_far));
        Ok(Scene { tunnel, plain: Some(plain), gateways, remote_namespace })
    };
    progress.step(step, starting).await
}

/// The nodes whose gateways are in use towards a peer: at least one.
async fn gateways(cluster: &Cluster, peer: &str) -> anyhow::Result<Vec<FabricNode>> {
    let api: Api<TunnelEndpoint> = Api::namespaced(cluster.client.clone(), SYSTEM_NAMESPACE);
    let endpoint = api.get_opt(peer).await.doing("read the tunnel endpoint")?;
    let endpoint = endpoint
        .ok_or_else(|| anyhow!("there is no network to the peer in cluster {}: see `liqoctl status`", cluster.context))?;
    let names: Vec<String> =
        endpoint.status.unwrap_or_default().gateways.into_iter().filter(|one| one.connected).map(|one| one.node).collect();
    let nodes: Vec<FabricNode> =
        probes::nodes(cluster, &[]).await?.ready.into_iter().filter(|node| names.contains(&node.name)).collect();
    ensure!(!nodes.is_empty(), "no gateway of cluster {} is connected: see `liqoctl status`", cluster.context);
    Ok(nodes)
}

/// How soon changes of a Service are known on both sides.
async fn changes(
    home: &Cluster,
    there: Option<&Cluster>,
    scene: &Scene,
    deadline: Instant,
    progress: &Progress,
    notes: &mut Vec<String>,
) -> Option<Changes> {
    let there = there?;
    let step = "Changing a Service";
    let news = |text: String| progress.message(step, &text);
    let measuring = async {
        let remote = scene.remote_namespace.as_ref().context("the namespace has no twin at the peer")?;
        let limit = CHANGING.min(deadline.saturating_duration_since(Instant::now()).saturating_sub(SPARE));
        let measuring = slices::measure((home, &scene.tunnel.namespace), (there, remote), "receiver", news);
        let measured = tokio::time::timeout(limit, measuring).await;
        measured.unwrap_or_else(|_| Err(anyhow!("it was not done after {} s", limit.as_secs())))
    };
    match progress.step(step, measuring).await {
        Ok(changes) => Some(changes),
        Err(error) => {
            notes.push(format!(
                "how soon changes of a Service are known cannot be measured: {}",
                output::plain(&format!("{error:#}"))
            ));
            None
        }
    }
}

/// Both ways in turns.
async fn measure(
    scene: &Scene,
    options: &Options,
    progress: &Progress,
    step: &str,
    notes: &mut Vec<String>,
) -> anyhow::Result<[Vec<Round>; 2]> {
    let mut rounds: [Vec<Round>; 2] = Default::default();
    for number in 0..options.rounds {
        progress.message(step, &format!("round {} of {}: the tunnel", number + 1, options.rounds));
        rounds[0].push(round(&scene.tunnel, options, &scene.gateways).await.context("through the tunnel")?);
        if let Some(plain) = &scene.plain {
            progress.message(step, &format!("round {} of {}: the plain link", number + 1, options.rounds));
            match round(plain, options, &[]).await {
                Ok(round) => rounds[1].push(round),
                Err(error) => {
                    let note = format!("the plain link cannot be measured: {}", output::plain(&format!("{error:#}")));
                    if !notes.contains(&note) {
                        notes.push(note);
                    }
                }
            }
        }
    }
    Ok(rounds)
}

async fn round(way: &Way, options: &Options, gateways: &[Gateway]) -> anyhow::Result<Round> {
    let seconds = f64::from(options.seconds);
    let limit = Duration::from_secs(u64::from(options.seconds) + 30);
    let ask = |what: What| async move {
        let questions = vec![Question { to: way.to.clone(), what }];
        let request = Request { questions, patience_millis: 5_000, at_once: 1, token: Some(way.token.clone()) };
        let answers = probes::ask(&way.cluster, &way.namespace, &way.pod, &request, limit).await;
        let Some(report) = answers.reports.into_iter().next() else {
            answers.end?;
            bail!("pod {} found nothing", way.pod);
        };
        report.outcome.map_err(|problem| anyhow!("{} does not answer as it should: {problem}", way.to))
    };
    let mut found = Round::default();
    let before = cpu(gateways).await;
    let mut gigabytes = 0.0;
    for (connections, figure) in [(1, &mut found.one), (4, &mut found.four)] {
        if let Finding::Carried { bytes, seconds, .. } = ask(What::Stream { seconds, connections }).await? {
            *figure = Some(megabits(bytes, seconds));
            gigabytes += as_number(bytes) / 1e9;
        }
    }
    let after = cpu(gateways).await;
    found.cpu = before.zip(after).filter(|_| gigabytes > 0.0).map(|(before, after)| (after - before) / gigabytes);
    if let Finding::Latency { p50, p99, .. } = ask(What::Latency { seconds }).await? {
        (found.p50, found.p99) = (Some(p50), Some(p99));
    }
    if let Finding::Carried { bytes, seconds, sent } = ask(What::Flood { seconds, bytes: DATAGRAM }).await? {
        found.udp = Some(megabits(bytes, seconds));
        found.lost = Some(100.0 * (1.0 - as_number(bytes) / as_number(sent.max(1))));
    }
    Ok(found)
}

fn megabits(bytes: u64, seconds: f64) -> f64 {
    as_number(bytes) * 8.0 / 1e6 / seconds.max(1e-3)
}

#[allow(clippy::cast_precision_loss, reason = "figures of three digits")]
fn as_number(bytes: u64) -> f64 {
    bytes as f64
}

/// The time that the programs on these gateways took until now; nothing unless all of them tell.
async fn cpu(gateways: &[Gateway]) -> Option<f64> {
    let mut total = 0.0;
    for gateway in gateways {
        let path = format!("/api/v1/namespaces/{FABRIC_NAMESPACE}/pods/{}:{METRICS_PORT}/proxy/metrics", gateway.node.pod);
        let request = http::Request::get(path).body(Vec::new()).ok()?;
        let text = gateway.cluster.client.request_text(request).await.ok()?;
        total += cpu_seconds(&text)?;
    }
    (!gateways.is_empty()).then_some(total)
}

fn cpu_seconds(metrics: &str) -> Option<f64> {
    metrics.lines().find_map(|line| line.strip_prefix("process_cpu_seconds_total ")?.trim().parse().ok())
}

/// Medians of both ways.
fn figures(tunnel: &[Round], plain: &[Round]) -> Vec<Figure> {
    let figure = |what, unit, of: fn(&Round) -> Option<f64>| Figure {
        what,
        unit,
        tunnel: median(tunnel.iter().filter_map(of)),
        plain: median(plain.iter().filter_map(of)),
    };
    vec![
        figure("TCP, 1 connection", "Mbit/s", |round| round.one),
        figure("TCP, 4 connections", "Mbit/s", |round| round.four),
        figure("UDP, as fast as it goes", "Mbit/s", |round| round.udp),
        figure("UDP, lost of it", "%", |round| round.lost),
        figure("question and answer, P50", "ms", |round| round.p50),
        figure("question and answer, P99", "ms", |round| round.p99),
        figure("CPU of liqo-fabric, both ends", "s/GB", |round| round.cpu),
    ]
}

/// The figures for people.
pub fn table(measured: &Measured, paint: Paint) -> String {
    let show = |figure: Option<f64>, unit: &str| {
        figure.map_or_else(
            || "-".to_owned(),
            |value| if value < 100.0 { format!("{value:.2} {unit}") } else { format!("{value:.0} {unit}") },
        )
    };
    let rows = measured.figures.iter().map(|figure| {
        let ratio = figure.ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        vec![figure.what.to_owned(), show(figure.tunnel, figure.unit), show(figure.plain, figure.unit), ratio]
    });
    let title = format!(
        "From {} to {}: medians of {} rounds of {} s each, in turns.",
        measured.from, measured.to, measured.rounds, measured.seconds
    );
    let mut lines = vec![title, output::table(&["", "TUNNEL", "PLAIN LINK", "RATIO"], rows)];
    if let Some(changes) = &measured.changes {
        let rows = [("P50", (|times: &Times| times.p50) as fn(&Times) -> f64), ("P99", |times| times.p99)].map(|(name, of)| {
            let shown = [&changes.home, &changes.peer, &changes.between].map(|times| show(Some(of(times)), "ms"));
            [vec![name.to_owned()], shown.to_vec()].concat()
        });
        lines.push(format!("From {} changes of a Service, one after another, to EndpointSlices that say so.", changes.count));
        lines.push(output::table(&["", "AT HOME", "AT THE PEER", "BETWEEN THEM"], rows));
    }
    lines.extend(measured.notes.iter().map(|note| paint.faint(&format!("Note: {note}."))));
    lines.extend(measured.left.iter().map(|left| format!("{} {left}", paint.bad("LEFT"))));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_both_ways_stand_beside_each_other() {
        let round = |one| Round { one: Some(one), ..Round::default() };
        let found = figures(&[round(100.0), round(900.0), round(300.0)], &[round(600.0)]);
        assert_eq!((found[0].tunnel, found[0].plain, found[0].ratio()), (Some(300.0), Some(600.0), Some(0.5)));
        assert_eq!((found[1].tunnel, found[1].ratio()), (None, None));
        let measured = Measured {
            from: "rome".into(),
            to: "milan".into(),
            seconds: 2,
            rounds: 3,
            figures: found,
            changes: Some(Changes {
                count: 100,
                home: Times { p50: 12.0, p99: 30.0 },
                peer: Times { p50: 40.0, p99: 101.0 },
                between: Times { p50: 28.0, p99: 90.0 },
            }),
            notes: vec!["n".into()],
            left: Vec::new(),
        };
        let text = table(&measured, Paint::off());
        assert!(text.contains("P99   30.00 ms   101 ms        90.00 ms"), "{text}");
        assert!(text.contains("300 Mbit/s") && text.contains("0.50") && text.ends_with("Note: n."), "{text}");
    }

    #[test]
    fn the_time_of_a_program_is_found_among_its_metrics() {
        assert_eq!(cpu_seconds("# TYPE process_cpu_seconds counter\nprocess_cpu_seconds_total 1.25\n# EOF\n"), Some(1.25));
        assert_eq!(cpu_seconds("liqo_tunnel_up 1\n"), None);
    }
}

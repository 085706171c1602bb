//! Pods that ask and answer, for `test network` and the playground's `bench network`: how to create them, and how to
//! make them ask.
//!
//! They run the image of `liqo-fabric` with another command, so they need no other image. Their
//! namespaces have a label that says when the run ends. A run removes them at its end, even if it
//! fails; the next run removes what a killed run left.

mod namespaces;
pub mod pods;

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, anyhow, bail, ensure};
use clap::Args;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{Node, Pod},
};
use kube::{
    Api, ResourceExt as _,
    api::{AttachParams, ListParams},
};
use liqo_api::{FABRIC_NAMESPACE, labels};
use liqo_network_probe::{AskRequest, QuestionReport};
use serde::Serialize;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader,
};

use crate::{
    cluster::{Cluster, ClusterAccess, ExplainFailure as _},
    inspect::is_virtual,
    lists::{self, NodeSelection},
    manifests::{FABRIC, MANAGER, NAMESPACE, avoided_nodes},
    playground, readiness,
};

pub use namespaces::{NamespaceSecurity, RunResult, TestNamespaces, remove_leftovers};

/// Pool of the fake nodes of a playground, whose pods do not run.
pub const FAKE_POOL: &str = "fake";
/// Said if `--playground` names a playground without clusters.
pub const NO_PLAYGROUND: &str = "there are no clusters: `cargo playground up` starts some";
/// Maximum size of a pod's output in bytes, far more than it has to report.
const MAX_OUTPUT_LEN: u64 = 16 << 20;
/// Maximum size of its error output in bytes.
const MAX_ERROR_OUTPUT_LEN: u64 = 64 << 10;

/// Clusters in addition to that of --kubeconfig.
#[derive(Clone, Debug, Args)]
pub struct OtherClusterFlags {
    /// Kubeconfig file of another cluster, so that its nodes also take part; may be repeated
    #[arg(long, value_name = "FILE")]
    pub remote_kubeconfig: Vec<PathBuf>,
    /// Context of another cluster in the kubeconfig of this one; may be repeated
    #[arg(long, value_name = "NAME")]
    pub remote_context: Vec<String>,
    /// All clusters of the playground
    #[arg(
        long,
        value_name = "INSTANCE",
        num_args = 0..=1,
        default_missing_value = "liqo",
        conflicts_with_all = ["remote_kubeconfig", "remote_context"]
    )]
    pub playground: Option<String>,
}

/// The clusters from the command line, that of `--kubeconfig` first.
pub async fn clusters(
    access: &ClusterAccess,
    others: &OtherClusterFlags,
) -> anyhow::Result<Vec<Cluster>> {
    let accesses: Vec<ClusterAccess> = if let Some(instance) = &others.playground {
        let all = playground::cluster_accesses(instance)?;
        ensure!(!all.is_empty(), NO_PLAYGROUND);
        all
    } else {
        let remotes = others
            .remote_kubeconfig
            .iter()
            .map(ClusterAccess::from_file);
        let contexts = others.remote_context.iter().map(|context| ClusterAccess {
            kubeconfig: access.kubeconfig.clone(),
            context: Some(context.clone()),
        });
        [access.clone()]
            .into_iter()
            .chain(remotes)
            .chain(contexts)
            .collect()
    };
    let mut clusters = Vec::new();
    for access in &accesses {
        clusters.push(Cluster::connect(access).await?);
    }
    Ok(clusters)
}

/// The virtual nodes whose pods really run: in a playground, a provider lends its fake nodes as a
/// pool of their own.
pub async fn real_virtual_nodes(home: &Cluster) -> anyhow::Result<Vec<Node>> {
    let mut nodes = lists::list_nodes(home, NodeSelection::Virtual).await?;
    nodes.retain(|node| {
        node.labels()
            .get(labels::POOL)
            .is_none_or(|pool| pool != FAKE_POOL)
    });
    Ok(nodes)
}

/// The virtual nodes whose pods really run, by the ID of their cluster.
pub async fn virtual_nodes(home: &Cluster) -> anyhow::Result<BTreeMap<String, String>> {
    Ok(real_virtual_nodes(home)
        .await?
        .iter()
        .filter_map(|node| {
            Some((
                node.labels().get(labels::REMOTE_CLUSTER_ID)?.clone(),
                node.name_any(),
            ))
        })
        .collect())
}

/// The image of liqo-fabric in this cluster.
pub async fn fabric_image(cluster: &Cluster) -> anyhow::Result<String> {
    let api: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), FABRIC_NAMESPACE);
    let set = api
        .get_opt(FABRIC)
        .await
        .doing(format!("read the DaemonSet {FABRIC}"))?;
    let image = set
        .and_then(|set| set.spec?.template.spec)
        .and_then(|spec| {
            spec.containers
                .into_iter()
                .find_map(|container| container.image)
        });
    image.ok_or_else(|| {
        anyhow!(
            "cluster {} has no DaemonSet {FABRIC_NAMESPACE}/{FABRIC}: is Liqo installed?",
            cluster.context
        )
    })
}

/// A node that takes part in the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeNode {
    pub name: String,
    pub address: IpAddr,
    /// The pod of `liqo-fabric` on it.
    pub pod: String,
}

/// A node that should take part in the network and cannot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExcludedNode {
    pub node: String,
    pub why: String,
}

/// The nodes that should take part in the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeNodes {
    /// Those on which `liqo-fabric` is ready.
    pub ready: Vec<ProbeNode>,
    pub left_out: Vec<ExcludedNode>,
}

/// The nodes that should take part in the network: gateways `first`, then by name.
pub async fn list_probe_nodes(cluster: &Cluster, first: &[String]) -> anyhow::Result<ProbeNodes> {
    let ours = ListParams::default().labels(&format!("app.kubernetes.io/name={FABRIC}"));
    let pods = lists::list_pods_of_namespace(cluster, FABRIC_NAMESPACE, &ours).await?;
    let nodes = lists::list_nodes(cluster, NodeSelection::All).await?;
    let manager: Api<Deployment> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let manager = manager
        .get_opt(MANAGER)
        .await
        .doing(format!("read the Deployment {MANAGER}"))?;
    let mut found = sort_probe_nodes(
        nodes,
        &pods,
        &manager.as_ref().map(avoided_nodes).unwrap_or_default(),
    );
    found
        .ready
        .sort_by_key(|node| (!first.contains(&node.name), node.name.clone()));
    Ok(found)
}

/// Separates nodes that can take part from those that should, by the pods of `liqo-fabric`. Nodes
/// that Liqo avoids need none.
fn sort_probe_nodes(
    nodes: Vec<Node>,
    pods: &[Pod],
    avoided: &BTreeMap<String, String>,
) -> ProbeNodes {
    let mut found = ProbeNodes::default();
    for node in nodes {
        let name = node.name_any();
        let on_it: Vec<&Pod> = pods
            .iter()
            .filter(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&name))
            .collect();
        let is_avoided = avoided
            .iter()
            .any(|(key, value)| node.labels().get(key) == Some(value));
        if is_virtual(&node) || (is_avoided && on_it.is_empty()) {
            continue;
        }
        let addresses = node
            .status
            .iter()
            .flat_map(|status| status.addresses.iter().flatten());
        let address = addresses
            .into_iter()
            .find(|address| address.type_ == "InternalIP")
            .and_then(|own| own.address.parse().ok());
        let why = match (on_it.iter().find(|pod| readiness::pod(pod)), address) {
            (Some(pod), Some(address)) => {
                found.ready.push(ProbeNode {
                    name,
                    address,
                    pod: pod.name_any(),
                });
                continue;
            }
            (Some(_), None) => "it has no InternalIP",
            (None, _) if !readiness::node(&node) => "it is not Ready",
            (None, _) if on_it.is_empty() => "liqo-fabric does not run on it",
            (None, _) => "liqo-fabric is not ready on it",
        };
        found.left_out.push(ExcludedNode {
            node: name,
            why: why.to_owned(),
        });
    }
    found
}

pub fn median(all: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut all: Vec<f64> = all.into_iter().collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}

/// A pod's output, complete or until an error.
#[derive(Debug)]
pub struct ProbeReports {
    pub reports: Vec<QuestionReport>,
    /// The error if the output is not complete.
    pub end: Result<(), UnfinishedProbe>,
}

/// Reason why a pod did not finish.
#[derive(Debug, thiserror::Error)]
pub enum UnfinishedProbe {
    /// It took too long.
    #[error("pod {pod} had not reported everything after {seconds} s")]
    Late {
        pod: String,
        /// The time limit.
        seconds: u64,
    },
    /// It could not be started, or its output is not valid.
    #[error("{0:#}")]
    Broken(anyhow::Error),
}

/// Makes a pod ask, by `exec`, with a time limit.
pub async fn run_probe(
    cluster: &Cluster,
    namespace: &str,
    pod: &str,
    request: &AskRequest,
    limit: Duration,
) -> ProbeReports {
    let mut reports = Vec::new();
    let asking = tokio::time::timeout(
        limit,
        ask_into(cluster, namespace, pod, request, &mut reports),
    )
    .await;
    let end = match asking {
        Ok(asked) => asked.map_err(UnfinishedProbe::Broken),
        Err(_) => Err(UnfinishedProbe::Late {
            pod: pod.to_owned(),
            seconds: limit.as_secs(),
        }),
    };
    ProbeReports { reports, end }
}

async fn ask_into(
    cluster: &Cluster,
    namespace: &str,
    pod: &str,
    request: &AskRequest,
    reports: &mut Vec<QuestionReport>,
) -> anyhow::Result<()> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    // The pod's own program, at any path in the image.
    let command = ["/proc/1/exe", "probe", "ask"];
    let parameters = AttachParams::default()
        .stdin(true)
        .stdout(true)
        .stderr(true);
    let mut process = api
        .exec(pod, command, &parameters)
        .await
        .doing(format!("run a command in pod {pod}"))?;
    let (Some(mut input), Some(output), Some(errors)) =
        (process.stdin(), process.stdout(), process.stderr())
    else {
        bail!("pod {pod} does not attach the streams of the command");
    };
    let question = serde_json::to_string(request)? + "\n";
    let mut error_output = String::new();
    let mut errors = errors.take(MAX_ERROR_OUTPUT_LEN);
    let before = reports.len();
    tokio::try_join!(
        async {
            let written = async {
                input.write_all(question.as_bytes()).await?;
                input.flush().await
            };
            written
                .await
                .with_context(|| format!("sending questions to pod {pod}"))
        },
        async {
            read_reports(output, reports)
                .await
                .with_context(|| format!("reading the reports of pod {pod}"))
        },
        async {
            let read = errors.read_to_string(&mut error_output).await;
            read.with_context(|| format!("reading the error output of pod {pod}"))
        },
    )?;
    if reports.len() == before && !error_output.is_empty() {
        bail!(
            "pod {pod}: {}",
            crate::output::strip_control_characters(error_output.trim())
        );
    }
    Ok(())
}

/// Reads reports, one on each line. They may come from another cluster, so their size is limited.
async fn read_reports(
    output: impl AsyncRead + Unpin,
    reports: &mut Vec<QuestionReport>,
) -> anyhow::Result<()> {
    let mut lines = BufReader::new(output.take(MAX_OUTPUT_LEN)).lines();
    while let Some(line) = lines.next_line().await? {
        reports.push(serde_json::from_str(&line).with_context(|| {
            format!(
                "not a report: {:?}",
                line.chars().take(200).collect::<String>()
            )
        })?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use liqo_network_probe::{AnswerProblem, MeasuredAnswer, ProblemKind};
    use serde_json::{Value, json};
    use tokio::io::repeat;

    use super::*;

    #[test]
    fn nodes_that_should_take_part_and_cannot_are_named() {
        let node = |name: &str, labels: Value, ready: &str| {
            serde_json::from_value::<Node>(json!({ "metadata": { "name": name, "labels": labels }, "status": {
                "addresses": [{ "type": "InternalIP", "address": if name == "lost" { "" } else { "172.18.0.2" } }],
                "conditions": [{ "type": "Ready", "status": ready }],
            } }))
            .unwrap()
        };
        let pod = |node: &str, ready: &str| {
            serde_json::from_value::<Pod>(json!({
                "metadata": { "name": format!("on-{node}") },
                "spec": { "nodeName": node, "containers": [] },
                "status": { "conditions": [{ "type": "Ready", "status": ready }] },
            }))
            .unwrap()
        };
        let nodes = vec![
            node("well", json!({}), "True"),
            node("lost", json!({}), "True"),
            node("starting", json!({}), "True"),
            node("down", json!({}), "Unknown"),
            node("bare", json!({}), "True"),
            node("avoided", json!({ "type": "fake" }), "True"),
            node(
                "milan",
                json!({ labels::TYPE: labels::TYPE_VIRTUAL_NODE }),
                "True",
            ),
        ];
        let pods = [
            pod("well", "True"),
            pod("lost", "True"),
            pod("starting", "False"),
            pod("down", "False"),
        ];
        let found = sort_probe_nodes(
            nodes,
            &pods,
            &BTreeMap::from([("type".to_owned(), "fake".to_owned())]),
        );
        assert_eq!(
            found
                .ready
                .iter()
                .map(|node| (node.name.as_str(), node.pod.as_str()))
                .collect::<Vec<_>>(),
            [("well", "on-well")]
        );
        let left: Vec<(&str, &str)> = found
            .left_out
            .iter()
            .map(|left| (left.node.as_str(), left.why.as_str()))
            .collect();
        assert_eq!(
            left,
            [
                ("lost", "it has no InternalIP"),
                ("starting", "liqo-fabric is not ready on it"),
                ("down", "it is not Ready"),
                ("bare", "liqo-fabric does not run on it"),
            ]
        );
    }

    fn report(question: usize) -> QuestionReport {
        QuestionReport {
            question,
            outcome: Err(AnswerProblem {
                kind: ProblemKind::NoAnswer,
                text: "no answer".into(),
            }),
        }
    }

    #[tokio::test]
    async fn what_was_said_before_it_broke_is_kept() {
        let found = QuestionReport {
            question: 1,
            outcome: Ok(MeasuredAnswer::Passes {
                largest: 1420,
                vanished: None,
            }),
        };
        let lines = [report(0), found]
            .map(|report| serde_json::to_string(&report).unwrap() + "\n")
            .concat();
        let mut reports = Vec::new();
        let broken = read_reports(format!("{lines}nonsense").as_bytes(), &mut reports).await;
        assert!(format!("{:#}", broken.unwrap_err()).contains("not a report: \"nonsense\""));
        assert_eq!(
            reports
                .iter()
                .map(|report| report.question)
                .collect::<Vec<_>>(),
            [0, 1]
        );
    }

    #[tokio::test]
    async fn a_pod_that_never_ends_is_not_listened_to_for_ever() {
        let error = read_reports(repeat(b'x'), &mut Vec::new())
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("not a report: \"xxx") && error.len() < 300,
            "{error}"
        );
    }
}

//! Pods that ask and answer, for `test network` and `bench network`: where they are made, and how they are asked.
//!
//! They run the program of `liqo-fabric` in another role, so no image is needed that is not there. What is made is in namespaces with a
//! label that says when their run is over; they are removed at its end, however it ends, and what a killed run left is removed by the
//! next one.

pub mod pods;
mod stage;

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{Node, Pod},
};
use kube::{
    Api, ResourceExt as _,
    api::{AttachParams, ListParams},
};
use liqo_api::{FABRIC_NAMESPACE, labels};
use liqo_probe::{Report, Request};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

use crate::{
    cli::{Global, Others},
    cluster::{Access, Cluster, Explained as _},
    manifests::{FABRIC, MANAGER, NAMESPACE, avoided_nodes},
    readiness,
};

pub use stage::{Played, Stage, sweep};

/// Of what a pod says so many bytes are read: far more than it has to say.
const MOST_SAID: u64 = 16 << 20;
/// And so many of its complaints.
const MOST_COMPLAINED: u64 = 64 << 10;

/// The clusters that are meant: that of `--kubeconfig` first.
pub async fn clusters(global: &Global, others: &Others) -> anyhow::Result<Vec<Cluster>> {
    let accesses: Vec<Access> = if let Some(instance) = &others.playground {
        let playground = crate::playground::open(instance)?;
        let all = playground.clusters()?;
        if all.is_empty() {
            bail!("there are no clusters: `cargo playground up` starts some");
        }
        all.iter().map(|cluster| Access::file(cluster.kubeconfig())).collect()
    } else {
        let remotes = others.remote_kubeconfig.iter().map(Access::file);
        let contexts = others
            .remote_context
            .iter()
            .map(|context| Access { kubeconfig: global.kubeconfig.clone(), context: Some(context.clone()) });
        [global.access()].into_iter().chain(remotes).chain(contexts).collect()
    };
    let mut clusters = Vec::new();
    for access in &accesses {
        clusters.push(Cluster::connect(access).await?);
    }
    Ok(clusters)
}

/// The image of the program on the nodes of this cluster.
pub async fn image(cluster: &Cluster) -> anyhow::Result<String> {
    let api: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), FABRIC_NAMESPACE);
    let set = api.get_opt(FABRIC).await.doing(format!("read the DaemonSet {FABRIC}"))?;
    let image = set
        .and_then(|set| set.spec?.template.spec)
        .and_then(|spec| spec.containers.into_iter().find_map(|container| container.image));
    image.ok_or_else(|| anyhow!("cluster {} has no DaemonSet {FABRIC_NAMESPACE}/{FABRIC}: is Liqo installed?", cluster.context))
}

/// A node that has a part in the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricNode {
    /// Its name.
    pub name: String,
    /// Its own address.
    pub address: IpAddr,
    /// The pod of `liqo-fabric` on it.
    pub pod: String,
}

/// A node that should have a part in the network, and cannot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Its name.
    pub node: String,
    /// Why it cannot.
    pub why: String,
}

/// The nodes on which there is to be a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricNodes {
    /// Those on which `liqo-fabric` is ready.
    pub ready: Vec<FabricNode>,
    /// The others.
    pub left_out: Vec<LeftOut>,
}

/// The nodes on which there is to be a network: gateways `first`, then by name.
pub async fn nodes(cluster: &Cluster, first: &[String]) -> anyhow::Result<FabricNodes> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), FABRIC_NAMESPACE);
    let ours = ListParams::default().labels(&format!("app.kubernetes.io/name={FABRIC}"));
    let pods = pods.list(&ours).await.doing(format!("list the pods of {FABRIC}"))?.items;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let nodes = nodes.list(&ListParams::default()).await.doing("list the nodes")?.items;
    let manager: Api<Deployment> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let manager = manager.get_opt(MANAGER).await.doing(format!("read the Deployment {MANAGER}"))?;
    let mut found = sort(nodes, &pods, &manager.as_ref().map(avoided_nodes).unwrap_or_default());
    found.ready.sort_by_key(|node| (!first.contains(&node.name), node.name.clone()));
    Ok(found)
}

/// Tells nodes that can take part from those that should, by the pods of `liqo-fabric`. Those with labels that Liqo avoids need none.
fn sort(nodes: Vec<Node>, pods: &[Pod], avoided: &BTreeMap<String, String>) -> FabricNodes {
    let mut found = FabricNodes::default();
    for node in nodes {
        let name = node.name_any();
        let on_it: Vec<&Pod> =
            pods.iter().filter(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&name)).collect();
        let is_avoided = avoided.iter().any(|(key, value)| node.labels().get(key) == Some(value));
        let is_virtual = node.labels().get(labels::TYPE).is_some_and(|kind| kind == labels::TYPE_VIRTUAL_NODE);
        if is_virtual || (is_avoided && on_it.is_empty()) {
            continue;
        }
        let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
        let address =
            addresses.into_iter().find(|address| address.type_ == "InternalIP").and_then(|own| own.address.parse().ok());
        let why = match (on_it.iter().find(|pod| readiness::pod(pod)), address) {
            (Some(pod), Some(address)) => {
                found.ready.push(FabricNode { name, address, pod: pod.name_any() });
                continue;
            }
            (Some(_), None) => "it says no address of its own (InternalIP)",
            (None, _) if !readiness::node(&node) => "it is not Ready",
            (None, _) if on_it.is_empty() => "liqo-fabric does not run on it",
            (None, _) => "liqo-fabric is not ready on it",
        };
        found.left_out.push(LeftOut { node: name, why: why.to_owned() });
    }
    found
}

/// The one in the middle.
pub fn median(all: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut all: Vec<f64> = all.into_iter().collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}

/// What a pod said, all of it or until something cut it short.
#[derive(Debug)]
pub struct Answers {
    /// What came.
    pub reports: Vec<Report>,
    /// Why there is no more, where it did not come to its end.
    pub end: Result<(), Cut>,
}

/// Why a pod did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum Cut {
    /// It took too long.
    #[error("pod {pod} had not said everything after {seconds} s")]
    Late {
        /// Its name.
        pod: String,
        /// So long it was waited for.
        seconds: u64,
    },
    /// It could not be told, or not be understood.
    #[error("{0:#}")]
    Broken(anyhow::Error),
}

/// Has a pod ask, by `exec`, for so long at most.
pub async fn ask(cluster: &Cluster, namespace: &str, pod: &str, request: &Request, limit: Duration) -> Answers {
    let mut reports = Vec::new();
    let asking = tokio::time::timeout(limit, ask_into(cluster, namespace, pod, request, &mut reports)).await;
    let end = match asking {
        Ok(asked) => asked.map_err(Cut::Broken),
        Err(_) => Err(Cut::Late { pod: pod.to_owned(), seconds: limit.as_secs() }),
    };
    Answers { reports, end }
}

async fn ask_into(
    cluster: &Cluster,
    namespace: &str,
    pod: &str,
    request: &Request,
    reports: &mut Vec<Report>,
) -> anyhow::Result<()> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    // Its own program, wherever the image has it.
    let command = ["/proc/1/exe", "probe", "ask"];
    let parameters = AttachParams::default().stdin(true).stdout(true).stderr(true);
    let mut process = api.exec(pod, command, &parameters).await.doing(format!("run a command in pod {pod}"))?;
    let (Some(mut input), Some(output), Some(errors)) = (process.stdin(), process.stdout(), process.stderr()) else {
        bail!("pod {pod} gives no way to what it runs");
    };
    let question = serde_json::to_string(request)? + "\n";
    let mut complaint = String::new();
    let mut errors = errors.take(MOST_COMPLAINED);
    let before = reports.len();
    tokio::try_join!(
        async {
            let written = async {
                input.write_all(question.as_bytes()).await?;
                input.flush().await
            };
            written.await.with_context(|| format!("telling pod {pod} what to ask"))
        },
        async { read_reports(output, reports).await.with_context(|| format!("reading what pod {pod} found")) },
        async {
            let read = errors.read_to_string(&mut complaint).await;
            read.with_context(|| format!("reading what pod {pod} complains about"))
        },
    )?;
    if reports.len() == before && !complaint.is_empty() {
        bail!("pod {pod}: {}", crate::output::plain(complaint.trim()));
    }
    Ok(())
}

/// Reads reports, one on each line, as they come. They may be another cluster's, so there is an end to it.
async fn read_reports(output: impl AsyncRead + Unpin, reports: &mut Vec<Report>) -> anyhow::Result<()> {
    let mut lines = BufReader::new(output.take(MOST_SAID)).lines();
    while let Some(line) = lines.next_line().await? {
        let shown = || format!("it says {:?}", line.chars().take(200).collect::<String>());
        reports.push(serde_json::from_str(&line).with_context(shown)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use liqo_probe::{Finding, Problem, ProblemKind};
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
            node("milan", json!({ labels::TYPE: labels::TYPE_VIRTUAL_NODE }), "True"),
        ];
        let pods = [pod("well", "True"), pod("lost", "True"), pod("starting", "False"), pod("down", "False")];
        let found = sort(nodes, &pods, &BTreeMap::from([("type".to_owned(), "fake".to_owned())]));
        assert_eq!(
            found.ready.iter().map(|node| (node.name.as_str(), node.pod.as_str())).collect::<Vec<_>>(),
            [("well", "on-well")]
        );
        let left: Vec<(&str, &str)> = found.left_out.iter().map(|left| (left.node.as_str(), left.why.as_str())).collect();
        assert_eq!(
            left,
            [
                ("lost", "it says no address of its own (InternalIP)"),
                ("starting", "liqo-fabric is not ready on it"),
                ("down", "it is not Ready"),
                ("bare", "liqo-fabric does not run on it"),
            ]
        );
    }

    fn report(question: usize) -> Report {
        Report { question, outcome: Err(Problem { kind: ProblemKind::NoAnswer, text: "no answer".into() }) }
    }

    #[tokio::test]
    async fn what_was_said_before_it_broke_is_kept() {
        let found = Report { question: 1, outcome: Ok(Finding::Passes { largest: 1420, vanished: None }) };
        let lines = [report(0), found].map(|report| serde_json::to_string(&report).unwrap() + "\n").concat();
        let mut reports = Vec::new();
        let broken = read_reports(format!("{lines}nonsense").as_bytes(), &mut reports).await;
        assert!(format!("{:#}", broken.unwrap_err()).contains("it says \"nonsense\""));
        assert_eq!(reports.iter().map(|report| report.question).collect::<Vec<_>>(), [0, 1]);
    }

    #[tokio::test]
    async fn a_pod_that_never_ends_is_not_listened_to_for_ever() {
        let error = read_reports(repeat(b'x'), &mut Vec::new()).await.unwrap_err().to_string();
        assert!(error.starts_with("it says \"xxx") && error.len() < 300, "{error}");
    }
}

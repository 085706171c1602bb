//! What the playground runs to show: a Deployment whose replicas spread over the nodes, virtual ones included, and a Service that
//! all of them answer for.

use anyhow::Context as _;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace, Node, Pod, Service},
};
use kube::{
    Api, ResourceExt as _,
    api::{AttachParams, ListParams, Patch, PatchParams},
    core::PartialObjectMeta,
};
use liqo_api::labels;
use liqo_playground::FAKE_NODE_LABEL;
use serde::Serialize;
use serde_json::json;
use tokio::io::AsyncReadExt as _;

use crate::{
    apply::FIELD_MANAGER,
    cluster::{Cluster, Explained as _},
    wait::{Look, until},
};

/// Its namespace.
pub const NAMESPACE: &str = "demo";
/// So many calls of the Service are made for each pod at a time.
const CALLS: usize = 10;
/// Name of the Deployment and of its Service.
pub const NAME: &str = "hello";

/// One of its pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Name of the pod.
    pub pod: String,
    /// Where it stands.
    pub phase: String,
    /// The node that it runs on.
    pub node: String,
    /// How many of the calls of the Service it answered.
    pub answers: usize,
}

/// What each pod does: it answers with its name, and writes the time.
const SCRIPT: &str = "echo \"$HOSTNAME says hello\"; mkdir /tmp/www; echo $HOSTNAME > /tmp/www/index.html; \
    httpd -p 8080 -h /tmp/www; trap exit TERM; while true; do date; sleep 5 & wait $!; done";

/// Makes the namespace.
pub async fn ensure_namespace(cluster: &Cluster) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(cluster.client.clone());
    let wanted = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
    api.patch(NAMESPACE, &PatchParams::apply(FIELD_MANAGER), &Patch::Apply(&wanted))
        .await
        .doing("make the namespace of the demo")?;
    Ok(())
}

/// Runs two replicas for each cluster and waits until all are ready.
pub async fn run(cluster: &Cluster, clusters: usize, timeout: Duration, mut news: impl FnMut(&str)) -> anyhow::Result<Vec<Line>> {
    let api: Api<Deployment> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let all = nodes.list_metadata(&ListParams::default()).await.doing("list the nodes")?;
    let is_virtual =
        |node: &&PartialObjectMeta<Node>| node.labels().get(labels::TYPE).is_some_and(|kind| kind == labels::TYPE_VIRTUAL_NODE);
    let locals: BTreeSet<String> = all.iter().filter(|node| !is_virtual(node)).map(kube::ResourceExt::name_any).collect();
    let mut nodes: Vec<String> = all
        .iter()
        .filter(|node| node.labels().get(FAKE_NODE_LABEL.0).is_none_or(|kind| kind != FAKE_NODE_LABEL.1))
        .map(kube::ResourceExt::name_any)
        .collect();
    nodes.sort();
    let wanted = deployment(clusters * 2, &nodes);
    api.patch(NAME, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&wanted))
        .await
        .doing("make the Deployment of the demo")?;
    until("the Deployment of the demo is ready", timeout, &mut news, || async {
        let deployment = api.get(NAME).await.doing("read the Deployment of the demo")?;
        Ok(if is_complete(&deployment) { Look::Done(()) } else { Look::NotYet(progress(&deployment)) })
    })
    .await?;
    let service: Api<Service> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    service
        .patch(NAME, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&self::service()))
        .await
        .doing("make the Service of the demo")?;
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let pods = api.list(&ListParams::default().labels(&format!("app={NAME}"))).await.doing("list the pods of the demo")?;
    let mut pods: Vec<_> = pods.items.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect();
    let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    pods.sort_by_key(|pod| (node(pod), pod.name_any()));
    // From a pod of this cluster.
    let local = pods
        .iter()
        .find(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_ref().is_some_and(|node| locals.contains(node))));
    let answers = match local {
        Some(caller) if cluster.has_network().await? => answers(&api, &caller.name_any(), &pods, timeout, news).await?,
        _ => BTreeMap::new(),
    };
    Ok(pods.iter().map(|pod| line(pod, &answers)).collect())
}

/// Who answers when the Service is called: until all of the pods did.
async fn answers(
    api: &Api<Pod>,
    caller: &str,
    pods: &[&Pod],
    timeout: Duration,
    news: impl FnMut(&str),
) -> anyhow::Result<BTreeMap<String, usize>> {
    let calls = CALLS * pods.len();
    let script = format!("i=0; while [ $i -lt {calls} ]; do timeout 3 wget -qO- http://{NAME}.{NAMESPACE}; i=$((i+1)); done");
    until("every pod of the demo answers for its Service", timeout, news, || async {
        let command = ["sh", "-c", &script];
        let mut process =
            api.exec(caller, command, &AttachParams::default().stderr(false)).await.doing("call the Service of the demo")?;
        let mut text = String::new();
        if let Some(mut output) = process.stdout() {
            output.read_to_string(&mut text).await.context("cannot read what the Service of the demo answers")?;
        }
        let mut counted = BTreeMap::new();
        for pod in text.lines() {
            *counted.entry(pod.to_owned()).or_insert(0) += 1;
        }
        let missing = pods.iter().filter(|pod| !counted.contains_key(&pod.name_any())).count();
        Ok(match missing {
            0 => Look::Done(counted),
            _ => Look::NotYet(format!("{missing} of {} pods have not answered", pods.len())),
        })
    })
    .await
}

fn service() -> serde_json::Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": NAME, "namespace": NAMESPACE },
        "spec": { "selector": { "app": NAME }, "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] },
    })
}

fn line(pod: &Pod, answers: &BTreeMap<String, usize>) -> Line {
    Line {
        answers: answers.get(&pod.name_any()).copied().unwrap_or_default(),
        pod: pod.name_any(),
        phase: pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default(),
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
    }
}

fn is_complete(deployment: &Deployment) -> bool {
    let (Some(spec), Some(status)) = (&deployment.spec, &deployment.status) else { return false };
    let wanted = spec.replicas.unwrap_or(1);
    status.observed_generation >= deployment.metadata.generation
        && [status.updated_replicas, status.available_replicas, status.replicas].iter().all(|count| count.unwrap_or(0) == wanted)
}

fn progress(deployment: &Deployment) -> String {
    let available = deployment.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0);
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
    // Those of the former form count until they have gone.
    format!("{} of {wanted} pods are available", available.min(wanted))
}

/// The nodes are written down in it, so that it is rolled out anew, and spread anew, when there are others.
fn deployment(replicas: usize, nodes: &[String]) -> serde_json::Value {
    let labels = json!({ "app": NAME });
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": NAME, "namespace": NAMESPACE },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels, "annotations": { "nodes": nodes.join(",") } },
                "spec": {
                    "terminationGracePeriodSeconds": 2,
                    // There it would only seem to run.
                    "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{
                        "matchExpressions": [{ "key": FAKE_NODE_LABEL.0, "operator": "NotIn", "values": [FAKE_NODE_LABEL.1] }],
                    }] } } },
                    "topologySpreadConstraints": [{
                        "maxSkew": 1,
                        "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": { "matchLabels": labels },
                        "matchLabelKeys": ["pod-template-hash"],
                    }],
                    "containers": [{
                        "name": NAME,
                        "image": liqo_playground::BUSYBOX,
                        "command": ["sh", "-c", SCRIPT],
                        "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
                    }],
                },
            },
        },
    })
}

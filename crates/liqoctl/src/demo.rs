//! What the playground runs to show: a Deployment whose replicas spread over the nodes, virtual ones included.

use std::time::Duration;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace, Node, Pod},
};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use liqo_playground::FAKE_NODE_LABEL;
use serde::Serialize;
use serde_json::json;

use crate::{
    apply::FIELD_MANAGER,
    cluster::{Cluster, Explained as _},
    wait::{Look, until},
};

/// Its namespace.
pub const NAMESPACE: &str = "demo";
/// Its name.
const NAME: &str = "hello";

/// One of its pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Name of the pod.
    pub pod: String,
    /// Where it stands.
    pub phase: String,
    /// The node that it runs on.
    pub node: String,
}

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
pub async fn run(cluster: &Cluster, clusters: usize, timeout: Duration, news: impl FnMut(&str)) -> anyhow::Result<Vec<Line>> {
    let api: Api<Deployment> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let mut nodes: Vec<String> = nodes
        .list_metadata(&ListParams::default())
        .await
        .doing("list the nodes")?
        .iter()
        .filter(|node| node.labels().get(FAKE_NODE_LABEL.0).is_none_or(|kind| kind != FAKE_NODE_LABEL.1))
        .map(kube::ResourceExt::name_any)
        .collect();
    nodes.sort();
    let wanted = deployment(clusters * 2, &nodes);
    api.patch(NAME, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&wanted))
        .await
        .doing("make the Deployment of the demo")?;
    until("the Deployment of the demo is ready", timeout, news, || async {
        let deployment = api.get(NAME).await.doing("read the Deployment of the demo")?;
        Ok(if is_complete(&deployment) { Look::Done(()) } else { Look::NotYet(progress(&deployment)) })
    })
    .await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let pods = pods.list(&ListParams::default().labels(&format!("app={NAME}"))).await.doing("list the pods of the demo")?;
    let mut lines: Vec<_> = pods.items.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).map(line).collect();
    lines.sort_by(|a, b| (&a.node, &a.pod).cmp(&(&b.node, &b.pod)));
    Ok(lines)
}

fn line(pod: &Pod) -> Line {
    Line {
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
    format!("{available} of {wanted} pods are available")
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
                        "command": ["sh", "-c", "echo \"$HOSTNAME says hello\"; trap exit TERM; while true; do date; sleep 5 & wait $!; done"],
                        "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
                    }],
                },
            },
        },
    })
}

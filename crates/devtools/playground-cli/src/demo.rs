//! The demo: a Deployment whose replicas spread over the real nodes and the virtual nodes, and a
//! Service in front of all replicas.

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
use liqo_api::{ResourceOffer, labels, provider_namespace};
use liqo_playground::{FAKE_NODE, NODE_KIND_LABEL};
use liqoctl::{
    apply::FIELD_MANAGER,
    cluster::{Cluster, ExplainFailure as _},
    readiness,
    wait::{PollResult, until},
};
use serde::Serialize;
use serde_json::json;
use tokio::io::AsyncReadExt as _;

pub const NAMESPACE: &str = "demo";
/// Name of the Deployment and of its Service.
pub const NAME: &str = "hello";
/// Calls of the Service in one attempt, for each pod.
const CALLS: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DemoPod {
    pub pod: String,
    pub phase: String,
    pub node: String,
    /// The broker's node that it is on, if it is on the virtual node of a broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_node: Option<String>,
    /// How many calls of the Service this pod answered.
    pub answers: usize,
}

/// Labels with the value [`FAKE_NODE`] on fake nodes of this cluster, and on virtual nodes that
/// stand for fake nodes of a provider.
const FAKE_LABELS: [&str; 2] = [NODE_KIND_LABEL, labels::POOL];

/// Each pod serves its name over HTTP, and logs the time.
const SCRIPT: &str = "echo \"$HOSTNAME says hello\"; mkdir /tmp/www; echo $HOSTNAME > /tmp/www/index.html; \
    httpd -p 8080 -h /tmp/www; trap exit TERM; while true; do date; sleep 5 & wait $!; done";

pub async fn ensure_namespace(cluster: &Cluster) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(cluster.client.clone());
    let wanted =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
    api.patch(
        NAMESPACE,
        &PatchParams::apply(FIELD_MANAGER),
        &Patch::Apply(&wanted),
    )
    .await
    .doing("create the namespace of the demo")?;
    Ok(())
}

/// Waits until a virtual node that stands for real nodes of this provider is Ready.
pub async fn wait_for_virtual_node(
    consumer: &Cluster,
    provider: &Cluster,
    timeout: Duration,
) -> anyhow::Result<()> {
    let selector = format!(
        "{}={},{}!={FAKE_NODE}",
        labels::REMOTE_CLUSTER_ID,
        provider.require_installed().await?.id,
        labels::POOL
    );
    let nodes: Api<Node> = Api::all(consumer.client.clone());
    let listed = ListParams::default().labels(&selector);
    until(
        "the virtual node is Ready",
        timeout,
        |_| {},
        || async {
            let found = nodes
                .list(&listed)
                .await
                .doing("list the virtual nodes")?
                .items;
            let ready = found.iter().any(readiness::node);
            Ok(if ready {
                PollResult::Done(())
            } else {
                PollResult::NotYet(format!("no Ready node has the labels {selector}"))
            })
        },
    )
    .await
}

/// Waits until everything that this provider lends is borrowed, so that pods run at the clusters
/// behind it. `news` gets what it waits for.
pub async fn wait_for_borrowed(
    consumer: &Cluster,
    provider: &Cluster,
    timeout: Duration,
    news: impl FnMut(&str),
) -> anyhow::Result<()> {
    let namespace = provider_namespace(&provider.require_installed().await?.id);
    let offers: Api<ResourceOffer> = Api::namespaced(consumer.client.clone(), &namespace);
    until(
        "the broker lends only what it borrows",
        timeout,
        news,
        || async {
            let found = offers
                .list(&ListParams::default())
                .await
                .doing("list the offers of the broker")?
                .items;
            Ok(not_borrowed(&found).map_or(PollResult::Done(()), PollResult::NotYet))
        },
    )
    .await
}

/// What the offers of a broker have that it does not borrow; `None` if they have only what it
/// borrows.
fn not_borrowed(offers: &[ResourceOffer]) -> Option<String> {
    let Some(own) = offers.iter().find(|offer| !offer.spec.is_borrowed()) else {
        return offers
            .is_empty()
            .then(|| "there is no offer yet".to_owned());
    };
    let ends = own
        .spec
        .withdrawal_timestamp
        .as_ref()
        .map(|end| format!("; the broker takes it back at {}", end.0));
    Some(format!(
        "offer {} has nodes of the broker itself{}",
        own.name_any(),
        ends.unwrap_or_default()
    ))
}

/// Runs two replicas for each cluster and waits until all are ready.
pub async fn run(
    cluster: &Cluster,
    clusters: usize,
    timeout: Duration,
    mut news: impl FnMut(&str),
) -> anyhow::Result<Vec<DemoPod>> {
    let api: Api<Deployment> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let all = nodes
        .list_metadata(&ListParams::default())
        .await
        .doing("list the nodes")?;
    let is_virtual = |node: &&PartialObjectMeta<Node>| {
        node.labels()
            .get(labels::TYPE)
            .is_some_and(|kind| kind == labels::TYPE_VIRTUAL_NODE)
    };
    let locals: BTreeSet<String> = all
        .iter()
        .filter(|node| !is_virtual(node))
        .map(kube::ResourceExt::name_any)
        .collect();
    let is_fake = |node: &&PartialObjectMeta<Node>| {
        FAKE_LABELS.iter().any(|label| {
            node.labels()
                .get(*label)
                .is_some_and(|kind| kind == FAKE_NODE)
        })
    };
    let mut nodes: Vec<String> = all
        .iter()
        .filter(|node| !is_fake(node))
        .map(kube::ResourceExt::name_any)
        .collect();
    nodes.sort();
    let wanted = deployment(clusters * 2, &nodes);
    api.patch(
        NAME,
        &PatchParams::apply(FIELD_MANAGER).force(),
        &Patch::Apply(&wanted),
    )
    .await
    .doing("create the Deployment of the demo")?;
    until(
        "the Deployment of the demo is ready",
        timeout,
        &mut news,
        || async {
            let deployment = api
                .get(NAME)
                .await
                .doing("read the Deployment of the demo")?;
            Ok(if is_complete(&deployment) {
                PollResult::Done(())
            } else {
                PollResult::NotYet(progress(&deployment))
            })
        },
    )
    .await?;
    let service: Api<Service> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    service
        .patch(
            NAME,
            &PatchParams::apply(FIELD_MANAGER).force(),
            &Patch::Apply(&self::service()),
        )
        .await
        .doing("create the Service of the demo")?;
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let pods = api
        .list(&ListParams::default().labels(&format!("app={NAME}")))
        .await
        .doing("list the pods of the demo")?;
    let mut pods: Vec<_> = pods
        .items
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .collect();
    let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    pods.sort_by_key(|pod| (node(pod), pod.name_any()));
    // A pod of this cluster calls the Service.
    let local = pods.iter().find(|pod| {
        pod.spec.as_ref().is_some_and(|spec| {
            spec.node_name
                .as_ref()
                .is_some_and(|node| locals.contains(node))
        })
    });
    let answers = match local {
        Some(caller) if cluster.has_network().await? => {
            answers(&api, &caller.name_any(), &pods, timeout, news).await?
        }
        _ => BTreeMap::new(),
    };
    Ok(pods.iter().map(|pod| demo_pod(pod, &answers)).collect())
}

/// Calls the Service until every pod has answered; returns the number of answers of each pod.
async fn answers(
    api: &Api<Pod>,
    caller: &str,
    pods: &[&Pod],
    timeout: Duration,
    news: impl FnMut(&str),
) -> anyhow::Result<BTreeMap<String, usize>> {
    let calls = CALLS * pods.len();
    let script = format!(
        "i=0; while [ $i -lt {calls} ]; do timeout 3 wget -qO- http://{NAME}.{NAMESPACE}; i=$((i+1)); done"
    );
    until(
        "every pod of the demo answers for its Service",
        timeout,
        news,
        || async {
            let command = ["sh", "-c", &script];
            let mut process = api
                .exec(caller, command, &AttachParams::default().stderr(false))
                .await
                .doing("call the Service of the demo")?;
            let mut text = String::new();
            if let Some(mut output) = process.stdout() {
                output
                    .read_to_string(&mut text)
                    .await
                    .context("cannot read what the Service of the demo answers")?;
            }
            let mut counted = BTreeMap::new();
            for pod in text.lines() {
                *counted.entry(pod.to_owned()).or_insert(0) += 1;
            }
            let missing = pods
                .iter()
                .filter(|pod| !counted.contains_key(&pod.name_any()))
                .count();
            Ok(match missing {
                0 => PollResult::Done(counted),
                _ => PollResult::NotYet(format!(
                    "{missing} of {} pods have not answered",
                    pods.len()
                )),
            })
        },
    )
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

fn demo_pod(pod: &Pod, answers: &BTreeMap<String, usize>) -> DemoPod {
    DemoPod {
        answers: answers.get(&pod.name_any()).copied().unwrap_or_default(),
        pod: pod.name_any(),
        phase: pod
            .status
            .as_ref()
            .and_then(|status| status.phase.clone())
            .unwrap_or_default(),
        node: pod
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.clone())
            .unwrap_or_default(),
        broker_node: None,
    }
}

/// Adds the broker's nodes. A pod has the same name there.
pub async fn add_broker_nodes(
    pods: &mut [DemoPod],
    customer: &Cluster,
    broker: &Cluster,
) -> anyhow::Result<()> {
    let selector = format!(
        "{}={},app={NAME}",
        labels::CONSUMER_ID,
        customer.require_installed().await?.id
    );
    let api: Api<Pod> = Api::all(broker.client.clone());
    let found = api
        .list(&ListParams::default().labels(&selector))
        .await
        .doing("list the pods of the demo at the broker")?;
    let node = |pod: &Pod| Some((pod.name_any(), pod.spec.as_ref()?.node_name.clone()?));
    let nodes: BTreeMap<String, String> = found.iter().filter_map(node).collect();
    for pod in pods {
        pod.broker_node = nodes.get(&pod.pod).cloned();
    }
    Ok(())
}

fn is_complete(deployment: &Deployment) -> bool {
    let (Some(spec), Some(status)) = (&deployment.spec, &deployment.status) else {
        return false;
    };
    let wanted = spec.replicas.unwrap_or(1);
    status.observed_generation >= deployment.metadata.generation
        && [
            status.updated_replicas,
            status.available_replicas,
            status.replicas,
        ]
        .iter()
        .all(|count| count.unwrap_or(0) == wanted)
}

fn progress(deployment: &Deployment) -> String {
    let available = deployment
        .status
        .as_ref()
        .and_then(|status| status.available_replicas)
        .unwrap_or(0);
    let wanted = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(0);
    // Pods of the previous rollout count until they are gone.
    format!("{} of {wanted} pods are available", available.min(wanted))
}

/// An annotation of the pods lists the nodes, so a change of nodes rolls the Deployment out again
/// and spreads it again.
fn deployment(replicas: usize, nodes: &[String]) -> serde_json::Value {
    let labels = json!({ "app": NAME });
    // On a fake node a pod would seem to run and answer nobody.
    let on_real_nodes = FAKE_LABELS
        .map(|label| json!({ "key": label, "operator": "NotIn", "values": [FAKE_NODE] }));
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
                    "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{ "matchExpressions": on_real_nodes }],
                    } } },
                    "topologySpreadConstraints": [{
                        "maxSkew": 1,
                        "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "DoNotSchedule",
                        // A cordoned node gets no replica and must not hold up the others.
                        "nodeTaintsPolicy": "Honor",
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

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(hops: u8, end: Option<&str>) -> ResourceOffer {
        serde_json::from_value(json!({
            "apiVersion": "sharing.liqo.io/v1alpha1", "kind": "ResourceOffer", "metadata": { "name": "fake" },
            "spec": { "clusterID": "a".repeat(32), "pool": "fake", "resourceQuota": { "hard": {} }, "hops": hops, "withdrawalTimestamp": end },
        }))
        .unwrap()
    }

    #[test]
    fn it_is_said_when_the_broker_takes_its_own_nodes_back() {
        assert_eq!(not_borrowed(&[]).unwrap(), "there is no offer yet");
        assert_eq!(not_borrowed(&[offer(2, None)]), None);
        assert_eq!(
            not_borrowed(&[offer(2, None), offer(1, None)]).unwrap(),
            "offer fake has nodes of the broker itself"
        );
        let end = not_borrowed(&[offer(1, Some("2026-01-01T00:05:00Z"))]).unwrap();
        assert!(
            end.ends_with("the broker takes it back at 2026-01-01T00:05:00Z"),
            "{end}"
        );
    }
}

//! `VirtualNode`s: each becomes a Node, with its Lease, its kubelet API and the watch of its pods; and each is drained
//! before it goes.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, Patch, PatchParams},
    runtime::watcher,
};
use liqo_api::{ClusterId, VirtualNode, finalizers, links};
use liqo_kit::{
    Cache, Key, Next,
    conditions::{self, Wanted, apply_links, namespaced},
    foreign_clusters::of_peer,
};
use serde_json::{Map, json};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Consumer, FIELD_MANAGER, drain, home_pods, locked,
    node_decide::{free_port, is_ours},
    node_objects,
    reduced::{HomePod, JsonPod},
    serving_certificate, withdrawal,
};
use crate::{
    decide::node::{NodeSpec, Outage, node_name},
    kubelet::serving::Serving,
};

/// Virtual nodes that are looked at at the same time.
const CONCURRENCY: usize = 4;

/// The first port of a kubelet API.
const FIRST_PORT: u16 = 20250;

/// How often a virtual node that is drained is looked at.
pub const LOOK: Duration = Duration::from_millis(300);

const READY: &str = "Ready";
const KUBELET_SERVING: &str = "KubeletServing";

/// What to look at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// A virtual node.
    Node(Key),
    /// The virtual node whose Node has this name.
    NamedNode(String),
    /// The condition of the `ForeignCluster` of this provider.
    Link(ClusterId),
}

/// Name and port of the Node of the `VirtualNode` with this UID.
pub struct Chosen {
    uid: String,
    name: String,
    port: u16,
}

/// What runs for a virtual node as long as it exists.
pub struct NodeTasks {
    /// Its pods.
    pub home: Cache<HomePod>,
    /// How its kubelet API is served, as far as it is known.
    pub serving: Option<Serving>,
    /// How bad the peer's silence was at the last look.
    outage: Outage,
    /// Since when it is drained.
    pub draining: Option<Instant>,
    /// Evictions that disruption budgets did not allow yet.
    pub delayed_evictions: withdrawal::Delayed,
    _stop: DropGuard,
}

/// A virtual node could not be handled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object itself.
    #[error("{step} VirtualNode {key}: {source}")]
    VirtualNode {
        /// What was tried.
        step: &'static str,
        /// The virtual node.
        key: Key,
        /// What the API server said.
        source: kube::Error,
    },
    /// The condition of its `ForeignCluster`.
    #[error("writing the conditions of ForeignCluster {name}: {source}")]
    Link {
        /// The `ForeignCluster`.
        name: String,
        /// What the API server said.
        source: kube::Error,
    },
    /// Its Node or Lease.
    #[error(transparent)]
    Node(#[from] node_objects::Error),
    /// A pod on its Node.
    #[error(transparent)]
    Pod(#[from] home_pods::Error),
    /// The eviction of a pod from it.
    #[error("evicting pod {pod}: {source}")]
    Evict {
        /// The pod.
        pod: Key,
        /// What the API server said.
        source: kube::Error,
    },
    /// The pods on its Node.
    #[error("listing the pods on node {node}: {source}")]
    Pods {
        /// The Node.
        node: String,
        /// What the API server said.
        source: kube::Error,
    },
    /// Every port is taken.
    #[error("no port from {FIRST_PORT} on is free for the kubelet API of VirtualNode {0}")]
    NoPort(Key),
}

/// Runs the controller until the context stops.
pub async fn run(consumer: Arc<Consumer>) {
    let (queue, stop) = (consumer.node_queue.clone(), consumer.context.stop.clone());
    queue
        .run("virtual nodes", CONCURRENCY, stop, move |work| {
            let consumer = consumer.clone();
            async move {
                if !(consumer.virtual_nodes.is_synced() && consumer.nodes.is_synced()) {
                    return Ok(Next::After(LOOK));
                }
                match work {
                    Work::Node(key) => virtual_node(&consumer, &key).await,
                    Work::NamedNode(name) => {
                        for (key, node) in consumer.virtual_nodes.all() {
                            if recorded(&node).is_some_and(|(recorded, _)| recorded == name) {
                                consumer.node_queue.add(Work::Node(key));
                            }
                        }
                        Ok(Next::OnChange)
                    }
                    Work::Link(id) => link(&consumer, &id).await,
                }
            }
        })
        .await;
}

/// Whether the pods on all virtual nodes of a provider are known: only then may anything follow from a pod's absence.
pub fn all_pods_known(consumer: &Consumer, id: &ClusterId) -> bool {
    let tasks = locked(&consumer.node_tasks);
    consumer.virtual_nodes.is_synced()
        && consumer
            .nodes_of(id)
            .iter()
            .filter(|(_, node)| recorded(node).is_some())
            .all(|(key, _)| tasks.get(key).is_some_and(|tasks| tasks.home.is_synced()))
}

/// Name and port, once chosen.
pub fn recorded(node: &VirtualNode) -> Option<(String, u16)> {
    let status = node.status.as_ref()?;
    Some((status.node_name.clone()?, status.kubelet_port?))
}

async fn virtual_node(consumer: &Arc<Consumer>, key: &Key) -> Result<Next, Error> {
    let Some(node) = consumer.virtual_nodes.get(key) else {
        stop_tasks(consumer, key);
        return Ok(Next::OnChange);
    };
    if node.metadata.deletion_timestamp.is_some() {
        return drain::drain(consumer, key, &node).await;
    }
    finalizer(consumer, key, &node, true).await?;
    let (name, port) = match recorded(&node) {
        Some(chosen) => chosen,
        None => choose(consumer, key, &node).await?,
    };
    start_tasks(consumer, key, &node, &name, port);

    let peer = consumer.peer(&node.spec.cluster_id);
    let outage = peer.outage();
    let changed =
        locked(&consumer.node_tasks).get_mut(key).is_some_and(|tasks| std::mem::replace(&mut tasks.outage, outage) != outage);
    if changed {
        tracing::info!(node = name, cluster = %node.spec.cluster_id, ?outage, "virtual node's outage changed");
        peer.look_at_all_pods();
        consumer.namespace_queue.add(super::Work::AllNamespaces);
    }
    let version = consumer.version().await;
    let resources: Map<String, serde_json::Value> =
        node.spec.resources.iter().map(|(name, quantity)| (name.to_owned(), quantity.to_string().into())).collect();
    let withdrawal = node.spec.withdrawal_timestamp.as_ref().map(|time| withdrawal::shown(time.0));
    let spec = NodeSpec {
        name: &name,
        cluster_id: node.spec.cluster_id.as_str(),
        pool: &node.spec.pool,
        peer_labels: &node.spec.labels,
        resources: &resources,
        address: &consumer.context.pod_ip,
        port,
        version: &version,
        outage,
        withdrawal: withdrawal.as_deref(),
    };
    let known = consumer.nodes.get(&Key::new("", &name));
    let ensured = node_objects::ensure(&consumer.context.client, &node.spec.cluster_id, &spec, known.as_deref()).await;
    let ready = match &ensured {
        Err(error @ node_objects::Error::NameTaken { .. }) => Wanted::no(READY, "NodeNameTaken", error.to_string()),
        Err(_) => Wanted::no(READY, "NodeNotWritten", "the Node cannot be written; the manager's log says why"),
        Ok(()) if outage == Outage::Down => Wanted::no(READY, "PeerUnreachable", "the cluster behind the node does not answer"),
        // Just made so, if it was not.
        Ok(()) => Wanted::yes(READY, "NodeReady", format!("node {name} is Ready")),
    };
    tell(consumer, key, &node, ready).await?;
    ensured?;
    let moving = withdrawal::follow(consumer, key, &node, &name).await?;
    Ok([moving, peer.next_look()].into_iter().flatten().min().map_or(Next::OnChange, Next::After))
}

/// Writes the conditions, if they say something new.
async fn tell(consumer: &Consumer, key: &Key, node: &VirtualNode, ready: Wanted) -> Result<(), Error> {
    let serving = locked(&consumer.node_tasks).get(key).and_then(|tasks| tasks.serving.clone());
    let mut wanted = vec![ready];
    wanted.extend(serving.map(|serving| match serving {
        Serving::Signed => Wanted::yes(KUBELET_SERVING, "Signed", "the kubelet API has a certificate of this cluster"),
        Serving::SelfSigned(why) => Wanted::no(
            KUBELET_SERVING,
            "SelfSigned",
            format!(
                "{why}; until then `kubectl logs` needs --insecure-skip-tls-verify-backend where the API server verifies kubelets"
            ),
        ),
    }));
    let current = node.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let api: Api<VirtualNode> = namespaced(&consumer.context.client, &key.namespace);
    let step = "writing the conditions of";
    conditions::merge(&api, &key.name, current, &wanted).await.map_err(|source| Error::VirtualNode {
        step,
        key: key.clone(),
        source,
    })
}

/// Chooses name and port, and records them before anything is made under them.
async fn choose(consumer: &Consumer, key: &Key, node: &VirtualNode) -> Result<(String, u16), Error> {
    let mut chosen = consumer.chosen.lock().await;
    let uid = node.uid().unwrap_or_default();
    // The watch may not show yet what was chosen a moment ago.
    if let Some(already) = chosen.get(key).filter(|already| already.uid == uid) {
        return Ok((already.name.clone(), already.port));
    }
    chosen.retain(|other, _| other != key && consumer.virtual_nodes.get(other).is_some());
    let others: Vec<(String, u16)> = consumer
        .virtual_nodes
        .all()
        .iter()
        .filter(|(other, _)| other != key)
        .filter_map(|(_, other)| recorded(other))
        .chain(chosen.values().map(|already| (already.name.clone(), already.port)))
        .collect();
    let ports: BTreeSet<u16> = others.iter().map(|(_, port)| *port).collect();
    let port = free_port(FIRST_PORT, &ports).ok_or_else(|| Error::NoPort(key.clone()))?;

    let mut taken: BTreeSet<String> = others.into_iter().map(|(name, _)| name).collect();
    let spec = &node.spec;
    let name = loop {
        let name = node_name(&spec.cluster_name, spec.cluster_id.as_str(), &spec.pool, |name| taken.contains(name));
        let live = node_objects::live(&consumer.context.client, &name).await?;
        let free = live.is_none_or(|live| is_ours(&live, &spec.cluster_id, &spec.pool));
        // The last choice holds the whole ID: whoever has that name keeps it, and the condition says so.
        if free || !taken.insert(name.clone()) {
            break name;
        }
    };
    let patch = json!({ "status": { "nodeName": name, "kubeletPort": port } });
    let api: Api<VirtualNode> = namespaced(&consumer.context.client, &key.namespace);
    api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(&patch)).await.map_err(|source| Error::VirtualNode {
        step: "recording the node name of",
        key: key.clone(),
        source,
    })?;
    chosen.insert(key.clone(), Chosen { uid, name: name.clone(), port });
    Ok((name, port))
}

/// Starts what runs for a virtual node, if it does not run yet.
pub fn start_tasks(consumer: &Arc<Consumer>, key: &Key, node: &VirtualNode, name: &str, port: u16) {
    let mut tasks = locked(&consumer.node_tasks);
    if tasks.contains_key(key) {
        return;
    }
    let stop = consumer.context.stop.child_token();
    let client = consumer.context.client.clone();
    // What an earlier watch told while it was being stopped is told anew, if it still holds.
    consumer.peer(&node.spec.cluster_id).forget_home_pods(key);
    let home = watch_pods(consumer, key, node, name, stop.clone());
    tokio::spawn(node_objects::keep_lease(client, name.to_owned(), stop.clone()));
    tokio::spawn(serving_certificate::serve(consumer.clone(), key.clone(), name.to_owned(), port, stop.clone()));
    let started = NodeTasks {
        home,
        serving: None,
        outage: Outage::None,
        draining: None,
        delayed_evictions: withdrawal::Delayed::new(),
        _stop: stop.drop_guard(),
    };
    let (listed, peer) = (started.home.clone(), consumer.peer(&node.spec.cluster_id));
    tasks.insert(key.clone(), started);
    tokio::spawn(async move {
        if listed.synced().await {
            peer.look_at_all_references();
        }
    });
}

fn watch_pods(consumer: &Arc<Consumer>, key: &Key, node: &VirtualNode, name: &str, stop: CancellationToken) -> Cache<HomePod> {
    let (peer, virtual_node) = (consumer.peer(&node.spec.cluster_id), key.clone());
    Cache::watch(
        Api::<JsonPod>::all_with(consumer.context.client.clone(), &ApiResource::erase::<Pod>(&())),
        watcher::Config::default().fields(&format!("spec.nodeName={name}")),
        stop,
        move |pod| HomePod::of(pod, &virtual_node),
        move |_, old, new| peer.home_changed(old, new),
    )
}

/// Stops it.
pub fn stop_tasks(consumer: &Arc<Consumer>, key: &Key) {
    let Some(tasks) = locked(&consumer.node_tasks).remove(key) else { return };
    let pods = tasks.home.all();
    // Its end stops the watch, so nothing is added after this.
    drop(tasks);
    for (_, pod) in pods {
        for peer in consumer.all_peers() {
            if peer.home_pod(&pod.uid).is_some_and(|known| known.virtual_node == *key) {
                peer.home_changed(Some(&pod), None);
            }
        }
    }
}

/// Adds or removes our finalizer.
pub async fn finalizer(consumer: &Consumer, key: &Key, node: &VirtualNode, wanted: bool) -> Result<(), Error> {
    let mut all: Vec<String> = node.finalizers().to_vec();
    if all.iter().any(|one| one == finalizers::VIRTUAL_NODE) == wanted {
        return Ok(());
    }
    all.retain(|one| one != finalizers::VIRTUAL_NODE);
    if wanted {
        all.push(finalizers::VIRTUAL_NODE.to_owned());
    }
    let patch = json!({ "metadata": { "resourceVersion": node.resource_version(), "finalizers": all } });
    let api: Api<VirtualNode> = namespaced(&consumer.context.client, &key.namespace);
    match api.patch(&key.name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        result => {
            result.map(drop).map_err(|source| Error::VirtualNode { step: "changing the finalizers of", key: key.clone(), source })
        }
    }
}

/// Says on the `ForeignCluster` whether its virtual nodes are Ready.
async fn link(consumer: &Consumer, id: &ClusterId) -> Result<Next, Error> {
    if !consumer.foreign_clusters.is_synced() {
        return Ok(Next::After(LOOK));
    }
    let Some(cluster) = of_peer(&consumer.foreign_clusters, id).into_iter().next() else { return Ok(Next::OnChange) };
    let nodes: Vec<_> = consumer.nodes_of(id).into_iter().map(|(_, node)| node).collect();
    let wanted = readiness(&nodes, cluster.wants_resources());
    apply_links(&consumer.context.client, &cluster, FIELD_MANAGER, wanted.as_slice())
        .await
        .map_err(|source| Error::Link { name: cluster.name_any(), source })?;
    Ok(Next::OnChange)
}

/// The link in the chain that says whether pods can go; none where no resources are wanted.
fn readiness(nodes: &[Arc<VirtualNode>], wanted: bool) -> Option<Wanted> {
    let kind = links::VIRTUAL_NODES_READY;
    let name = |node: &VirtualNode| recorded(node).map_or_else(|| node.name_any(), |(name, _)| name);
    let ready =
        |node: &VirtualNode| node.status.iter().flat_map(|status| &status.conditions).find(|one| one.type_ == READY).cloned();
    let missing: Vec<String> = nodes
        .iter()
        .filter_map(|node| match ready(node) {
            Some(condition) if condition.status == "True" => None,
            Some(condition) => Some(format!("{}: {}", name(node), condition.message)),
            None => Some(format!("{}: not made yet", name(node))),
        })
        .collect();
    let link = match (nodes, missing.is_empty()) {
        ([], _) if !wanted => return None,
        ([], _) => Wanted::no(kind, "NoVirtualNode", "no offer of the peer is accepted"),
        (nodes, true) => {
            let names: Vec<String> = nodes.iter().map(|node| name(node)).collect();
            Wanted::yes(kind, "VirtualNodesReady", names.join(", "))
        }
        (_, false) => Wanted::no(kind, "VirtualNodesNotReady", missing.join("; ")),
    };
    Some(link)
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "JSON literals are written in place")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(ready: Option<&str>) -> Arc<VirtualNode> {
        let conditions: Vec<Value> = ready
            .iter()
            .map(|status| json!({"type": "Ready", "status": status, "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}))
            .collect();
        let id = ClusterId::of_public_key(&[4; 32]);
        let value = json!({"apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "VirtualNode", "metadata": {"name": "default"},
            "spec": {"clusterID": id, "clusterName": "milan", "pool": "default", "resources": {}},
            "status": {"nodeName": "milan", "kubeletPort": 20250, "conditions": conditions}});
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn the_link_holds_when_every_virtual_node_is_ready() {
        let link = |nodes: &[_]| readiness(nodes, true).unwrap();
        assert_eq!(link(&[node(Some("True"))]).status, Some(true));
        assert_eq!(link(&[node(Some("True")), node(Some("False"))]).message, "milan: m");
        assert_eq!(link(&[node(None)]).status, Some(false));
        assert_eq!(link(&[]).reason, "NoVirtualNode");
        assert_eq!(readiness(&[], false), None);
    }
}

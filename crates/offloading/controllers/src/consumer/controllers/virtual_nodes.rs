//! `VirtualNode`s: each becomes a Node, with its lease, its kubelet API and the watch of its pods;
//! before it goes, its Node is drained. While its provider takes the pool back, its pods are
//! evicted.

mod drain;
mod withdrawal;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use liqo_api::conditions::{DesiredCondition, StatusCondition as _};
use liqo_api::{
    ClusterId, KubeletServingReason, VirtualNode, VirtualNodeReadyReason, VirtualNodesReadyReason,
    finalizers, links, rfc3339,
};
use liqo_controller_runtime::{
    Key, Requeue,
    conditions::{self, apply_links, namespaced_api},
    foreign_clusters::of_peer,
    writes::{StepContext as _, StepError, add_finalizer, remove_finalizer},
};
use liqo_quantity::ResourceList;
use serde_json::{Map, json};
use tokio::time::Instant;

use crate::consumer::node_objects;
use crate::consumer::node_tasks;
use crate::consumer::state::{
    ChosenNode, ConsumerState, NodeKey, RecordedNode, RemoteProvider, recorded_node,
};
use crate::consumer::triggers;
use crate::kubelet::serving::CertificateState;
use liqo_offloading_rules::node::difference::free_port;
use liqo_offloading_rules::node::difference::is_node_of_pool;
use liqo_offloading_rules::node::object::NodeSpec;
use liqo_offloading_rules::node::object::Outage;
use liqo_offloading_rules::node::object::node_name;

/// Virtual nodes that are handled at the same time.
const CONCURRENCY: usize = 4;

/// The first port of a kubelet API.
const FIRST_PORT: u16 = 20250;

/// Interval between two checks of a virtual node that is drained, or of caches that are not synced
/// yet.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Minimum time between two writes of what pods can still request, if only charges of pods changed.
const SURCHARGE_INTERVAL: Duration = Duration::from_secs(5);

const READY: &str = "Ready";
const KUBELET_SERVING: &str = "KubeletServing";

#[derive(Debug, thiserror::Error)]
pub enum VirtualNodeError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Node(#[from] node_objects::NodeObjectError),
    /// Every port is taken.
    #[error("no port from {FIRST_PORT} on is free for the kubelet API of VirtualNode {0}")]
    NoPort(Key),
}

/// Runs the controller until the context stops.
pub async fn run_controller(consumer: Arc<ConsumerState>) {
    let (queue, stop) = (consumer.queues.nodes.clone(), consumer.context.stop.clone());
    queue
        .run("virtual-nodes", CONCURRENCY, stop, move |key| {
            let consumer = consumer.clone();
            async move {
                if !(consumer.virtual_nodes.is_synced() && consumer.nodes.is_synced()) {
                    return Ok(Requeue::After(POLL_INTERVAL));
                }
                match key {
                    NodeKey::VirtualNode(key) => reconcile_virtual_node(&consumer, &key).await,
                    NodeKey::Node(name) => {
                        triggers::enqueue_named(&consumer, &name);
                        Ok(Requeue::OnChange)
                    }
                    NodeKey::Link(id) => reconcile_link(&consumer, &id).await,
                }
            }
        })
        .await;
}

async fn reconcile_virtual_node(
    consumer: &Arc<ConsumerState>,
    key: &Key,
) -> Result<Requeue, VirtualNodeError> {
    let Some(node) = consumer.virtual_nodes.get(key) else {
        node_tasks::stop(consumer, key);
        return Ok(Requeue::OnChange);
    };
    if node.metadata.deletion_timestamp.is_some() {
        return drain::drain(consumer, key, &node).await;
    }
    let held = add_finalizer(
        &virtual_node_api(consumer, key),
        &*node,
        finalizers::VIRTUAL_NODE,
    )
    .await;
    if !held.step("add the finalizer to", "VirtualNode", key)? {
        return Ok(Requeue::OnChange);
    }
    let RecordedNode { name, port } = match recorded_node(&node) {
        Some(chosen) => chosen,
        None => choose_node(consumer, key, &node).await?,
    };
    node_tasks::start(consumer, key, &node, &name, port);

    let peer = consumer.remote_provider(&node.spec.cluster_id);
    let outage = peer.outage();
    let changed = consumer
        .node_tasks
        .lock()
        .get_mut(key)
        .is_some_and(|tasks| std::mem::replace(&mut tasks.outage, outage) != outage);
    if changed {
        tracing::info!(node = name, cluster = %node.spec.cluster_id, ?outage, "virtual node's outage changed");
        triggers::enqueue_triggers(consumer, &peer, triggers::outage_changed());
    }
    // Otherwise a node that a budget closed would be open for a moment.
    if !consumer.policy_budgets_known(&node.spec.cluster_id) {
        return Ok(Requeue::After(POLL_INTERVAL));
    }
    // Otherwise the node would look emptier than it is.
    if !consumer
        .node_tasks
        .lock()
        .get(key)
        .is_some_and(|tasks| tasks.pods.is_synced())
    {
        return Ok(Requeue::After(POLL_INTERVAL));
    }
    let surcharge = node_surcharge(consumer, key, &peer);
    let written = write_node(consumer, &node, &name, port, (outage, &surcharge.shown)).await;
    write_conditions(
        consumer,
        key,
        &node,
        ready_condition(&written, outage, &name),
    )
    .await?;
    written?;
    let moving = withdrawal::follow_withdrawal(consumer, key, &node, &name).await?;
    Ok([moving, peer.next_outage(), surcharge.next_check]
        .into_iter()
        .flatten()
        .min()
        .map_or(Requeue::OnChange, Requeue::After))
}

/// The charges for the pods of a virtual node beyond their requests. They change with many pods,
/// and are written once in a while.
struct NodeSurcharge {
    /// The amounts that its Node shows now.
    shown: ResourceList,
    /// The delay before the next check, if other amounts wait to be shown.
    next_check: Option<Duration>,
}

fn node_surcharge(consumer: &ConsumerState, key: &Key, peer: &RemoteProvider) -> NodeSurcharge {
    let on_it = peer
        .pods()
        .into_iter()
        .filter(|pod| pod.virtual_node == *key);
    let sum = on_it
        .filter_map(|pod| pod.extra_charge().cloned())
        .fold(ResourceList::new(), |sum, one| sum + &one);
    let mut tasks = consumer.node_tasks.lock();
    let Some(tasks) = tasks.get_mut(key) else {
        return NodeSurcharge {
            shown: sum,
            next_check: None,
        };
    };
    if let Some((shown, since)) = &tasks.surcharge
        && *shown != sum
        && let Some(rest) = SURCHARGE_INTERVAL
            .checked_sub(since.elapsed())
            .filter(|rest| !rest.is_zero())
    {
        return NodeSurcharge {
            shown: shown.clone(),
            next_check: Some(rest),
        };
    }
    if tasks
        .surcharge
        .as_ref()
        .is_none_or(|(shown, _)| *shown != sum)
    {
        tasks.surcharge = Some((sum.clone(), Instant::now()));
    }
    NodeSurcharge {
        shown: sum,
        next_check: None,
    }
}

fn quantity_texts(amounts: &ResourceList) -> Map<String, serde_json::Value> {
    amounts
        .iter()
        .map(|(name, quantity)| (name.to_owned(), quantity.to_string().into()))
        .collect()
}

/// Creates the Node, or changes what differs.
async fn write_node(
    consumer: &ConsumerState,
    node: &VirtualNode,
    name: &str,
    port: u16,
    (outage, surcharge): (Outage, &ResourceList),
) -> Result<(), VirtualNodeError> {
    let version = kubernetes_version(consumer).await?;
    let resources = quantity_texts(&node.spec.resources);
    let withdrawal = node
        .spec
        .withdrawal_timestamp
        .as_ref()
        .map(|time| rfc3339(time.0));
    let standing = consumer.budgets.read().clone();
    let closed = standing
        .as_ref()
        .and_then(|standing| standing.closed_for_all(&node.spec.cluster_id))
        .map(|closed| closed.message.as_str());
    let spec = NodeSpec {
        name,
        cluster_id: node.spec.cluster_id.as_str(),
        pool: &node.spec.pool,
        peer_labels: &node.spec.labels,
        resources: &resources,
        allocatable: &quantity_texts(&node.spec.resources.saturating_sub(surcharge)),
        address: &consumer.context.pod_ip.to_string(),
        port,
        version: &version,
        outage,
        withdrawal: withdrawal.as_deref(),
        prices: node.spec.prices.as_ref(),
        largest_pods: &node.spec.largest_pods,
        no_new_pods: node.spec.no_new_pods.as_deref().or(closed),
    };
    let known = consumer.nodes.get(&Key::new("", name));
    Ok(node_objects::ensure_node(
        &consumer.context,
        &node.spec.cluster_id,
        &spec,
        known.as_deref(),
    )
    .await?)
}

/// The condition of a virtual node whose Node was just written, or could not be written.
fn ready_condition(
    written: &Result<(), VirtualNodeError>,
    outage: Outage,
    name: &str,
) -> DesiredCondition {
    match written {
        Err(VirtualNodeError::Node(error @ node_objects::NodeObjectError::NameTaken { .. })) => {
            DesiredCondition::no(
                READY,
                VirtualNodeReadyReason::NodeNameTaken,
                error.to_string(),
            )
        }
        Err(_) => DesiredCondition::no(
            READY,
            VirtualNodeReadyReason::NodeNotWritten,
            "the Node cannot be written; the manager's log says why",
        ),
        Ok(()) if outage == Outage::Down => DesiredCondition::no(
            READY,
            VirtualNodeReadyReason::PeerUnreachable,
            "the cluster behind the node does not answer",
        ),
        Ok(()) => DesiredCondition::yes(
            READY,
            VirtualNodeReadyReason::NodeReady,
            format!("node {name} is Ready"),
        ),
    }
}

fn virtual_node_api(consumer: &ConsumerState, key: &Key) -> Api<VirtualNode> {
    namespaced_api(&consumer.context.client, &key.namespace)
}

/// The version of Kubernetes that virtual nodes show: that of this cluster, so that nobody sees a
/// skew. Until the API server says which one it is, no Node is written.
async fn kubernetes_version(consumer: &ConsumerState) -> Result<String, StepError> {
    let version = consumer.version.get_or_try_init(|| async {
        let version = consumer.context.client.apiserver_version().await.step(
            "read",
            "version of the API server",
            Key::new("", ""),
        )?;
        Ok(version.git_version)
    });
    version.await.cloned()
}

/// Writes the conditions, if they changed.
async fn write_conditions(
    consumer: &ConsumerState,
    key: &Key,
    node: &VirtualNode,
    ready: DesiredCondition,
) -> Result<(), VirtualNodeError> {
    let serving = consumer
        .node_tasks
        .lock()
        .get(key)
        .and_then(|tasks| tasks.serving.clone());
    let mut wanted = vec![ready];
    wanted.extend(serving.map(|serving| match serving {
        CertificateState::Signed => DesiredCondition::yes(
            KUBELET_SERVING,
            KubeletServingReason::Signed,
            "the kubelet API has a certificate of this cluster",
        ),
        CertificateState::SelfSigned(why) => DesiredCondition::no(
            KUBELET_SERVING,
            KubeletServingReason::SelfSigned,
            format!(
                "{why}; until then `kubectl logs` needs --insecure-skip-tls-verify-backend where the API server verifies kubelets"
            ),
        ),
    }));
    let current = node
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let written = conditions::merge(
        &virtual_node_api(consumer, key),
        &key.name,
        current,
        &wanted,
        consumer.context.now(),
    )
    .await;
    Ok(written.step("write the conditions of", "VirtualNode", key)?)
}

/// Chooses name and port, and records them before anything is created that bears them.
async fn choose_node(
    consumer: &ConsumerState,
    key: &Key,
    node: &VirtualNode,
) -> Result<RecordedNode, VirtualNodeError> {
    let mut chosen = consumer.chosen.lock().await;
    let uid = node.uid().unwrap_or_default();
    // The watch may not show yet what was chosen a moment ago.
    if let Some(already) = chosen.get(key).filter(|already| already.uid == uid) {
        return Ok(RecordedNode {
            name: already.name.clone(),
            port: already.port,
        });
    }
    chosen.retain(|other, _| other != key && consumer.virtual_nodes.get(other).is_some());
    let others: Vec<RecordedNode> = consumer
        .virtual_nodes
        .all()
        .iter()
        .filter(|(other, _)| other != key)
        .filter_map(|(_, other)| recorded_node(other))
        .chain(chosen.values().map(|already| RecordedNode {
            name: already.name.clone(),
            port: already.port,
        }))
        .collect();
    let ports: BTreeSet<u16> = others.iter().map(|other| other.port).collect();
    let port =
        free_port(FIRST_PORT, &ports).ok_or_else(|| VirtualNodeError::NoPort(key.clone()))?;

    let mut taken: BTreeSet<String> = others.into_iter().map(|other| other.name).collect();
    let spec = &node.spec;
    let name = loop {
        let name = node_name(
            &spec.cluster_name,
            spec.cluster_id.as_str(),
            &spec.pool,
            |name| taken.contains(name),
        );
        let live = node_objects::read_node(&consumer.context.client, &name).await?;
        let free = live.is_none_or(|live| is_node_of_pool(&live, &spec.cluster_id, &spec.pool));
        // The last choice contains the whole ID. If somebody has that name, they keep it, and the
        // condition says so.
        if free || !taken.insert(name.clone()) {
            break name;
        }
    };
    let patch = json!({ "status": { "nodeName": name, "kubeletPort": port } });
    let answer = virtual_node_api(consumer, key)
        .patch_status(&key.name, &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    answer.step("record the node name of", "VirtualNode", key)?;
    chosen.insert(
        key.clone(),
        ChosenNode {
            uid,
            name: name.clone(),
            port,
        },
    );
    Ok(RecordedNode { name, port })
}

/// Removes our finalizer. Returns whether it is off: if the object changed meanwhile, the watch
/// triggers us again.
async fn remove_node_finalizer(
    consumer: &ConsumerState,
    key: &Key,
    node: &VirtualNode,
) -> Result<bool, StepError> {
    let removed = remove_finalizer(
        &virtual_node_api(consumer, key),
        node,
        finalizers::VIRTUAL_NODE,
    )
    .await;
    removed.step("remove the finalizer of", "VirtualNode", key)
}

/// Shows on the `ForeignCluster` whether its virtual nodes are Ready.
async fn reconcile_link(
    consumer: &ConsumerState,
    id: &ClusterId,
) -> Result<Requeue, VirtualNodeError> {
    if !consumer.foreign_clusters.is_synced() {
        return Ok(Requeue::After(POLL_INTERVAL));
    }
    let Some(cluster) = of_peer(&consumer.foreign_clusters, id).into_iter().next() else {
        return Ok(Requeue::OnChange);
    };
    let nodes: Vec<_> = consumer
        .nodes_of_provider(id)
        .into_iter()
        .map(|(_, node)| node)
        .collect();
    let wanted = offloading_condition(&nodes, cluster.wants_resources());
    let written = apply_links(
        &consumer.context,
        &cluster,
        liqo_api::conditions::owners::OFFLOADING,
        wanted.as_slice(),
    )
    .await;
    written.step(
        "write the conditions of",
        "ForeignCluster",
        Key::new("", cluster.name_any()),
    )?;
    Ok(Requeue::OnChange)
}

/// The name of its Node or, without one, its own.
fn name_of_node(node: &VirtualNode) -> String {
    recorded_node(node).map_or_else(|| node.name_any(), |recorded| recorded.name)
}

/// The condition that says whether pods can be offloaded; none where no resources are wanted.
fn offloading_condition(nodes: &[Arc<VirtualNode>], wanted: bool) -> Option<DesiredCondition> {
    let kind = links::VIRTUAL_NODES_READY;
    let missing: Vec<String> = nodes
        .iter()
        .filter_map(|node| {
            let name = name_of_node(node);
            let conditions = node.status.iter().flat_map(|status| &status.conditions);
            match conditions.into_iter().find(|one| one.type_ == READY) {
                Some(condition) if condition.is_true() => None,
                Some(condition) => Some(format!("{name}: {}", condition.message)),
                None => Some(format!("{name}: not created yet")),
            }
        })
        .collect();
    let link = match (nodes, missing.is_empty()) {
        ([], _) if !wanted => return None,
        ([], _) => DesiredCondition::no(
            kind,
            VirtualNodesReadyReason::NoVirtualNode,
            "no offer of the peer is accepted",
        ),
        (nodes, true) => {
            let names: Vec<String> = nodes.iter().map(|node| name_of_node(node)).collect();
            DesiredCondition::yes(
                kind,
                VirtualNodesReadyReason::VirtualNodesReady,
                names.join(", "),
            )
        }
        (_, false) => DesiredCondition::no(
            kind,
            VirtualNodesReadyReason::VirtualNodesNotReady,
            missing.join("; "),
        ),
    };
    Some(link)
}

#[cfg(test)]
#[allow(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
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
    fn the_condition_says_when_the_node_is_not_written_whichever_request_failed() {
        let reason = |written: Result<(), VirtualNodeError>, outage| {
            ready_condition(&written, outage, "milan").reason
        };
        let refused = || Err(kube::Error::Service("no answer".into()));
        let version: Result<(), StepError> =
            refused().step("read", "version of the API server", Key::new("", ""));
        let node: Result<(), StepError> = refused().step("create", "Node", Key::new("", "milan"));
        assert_eq!(
            reason(version.map_err(VirtualNodeError::Step), Outage::None),
            "NodeNotWritten"
        );
        assert_eq!(
            reason(
                node.map_err(|error| VirtualNodeError::Node(error.into())),
                Outage::Down
            ),
            "NodeNotWritten"
        );
        let taken = node_objects::NodeObjectError::NameTaken {
            node: "milan".to_owned(),
        };
        assert_eq!(
            reason(Err(VirtualNodeError::Node(taken)), Outage::None),
            "NodeNameTaken"
        );
        assert_eq!(reason(Ok(()), Outage::Down), "PeerUnreachable");
        assert_eq!(reason(Ok(()), Outage::Suspected), "NodeReady");
    }

    #[test]
    fn the_link_holds_when_every_virtual_node_is_ready() {
        let link = |nodes: &[_]| offloading_condition(nodes, true).unwrap();
        assert_eq!(link(&[node(Some("True"))]).status, Some(true));
        assert_eq!(
            link(&[node(Some("True")), node(Some("False"))]).message,
            "milan: m"
        );
        assert_eq!(link(&[node(None)]).status, Some(false));
        assert_eq!(link(&[]).reason, "NoVirtualNode");
        assert_eq!(offloading_condition(&[], false), None);
    }
}

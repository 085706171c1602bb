//! The controllers' view of this cluster: caches of the objects that they read. Two lists of pods
//! are read only when needed.

use std::{collections::BTreeSet, fmt::Debug, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Event, Namespace, Node, Pod};
use kube::{
    Api, ResourceExt as _, api::ListParams, core::DeserializeGuard, runtime::watcher::Config,
};
use liqo_api::conditions::{StatusCondition, has_true_condition};
use liqo_api::{
    ClusterId, ForeignCluster, Key, NAMESPACE_OFFLOADING, NamespaceOffloading, OfferPhase,
    PeeringPolicy, PodOffloadingStrategy, ResourceOffer, ResourceRequest, TETHERING, VirtualNode,
    consumer_of_tenant_namespace, labels, links, policies::without_status,
};
use liqo_controller_runtime::{
    Cache, Context, Queue, foreign_clusters,
    writes::{StepContext as _, StepError},
};
use serde::de::DeserializeOwned;

use crate::decide::{
    homecoming::{UserPod, UserPodPlace},
    namespaces::is_ours,
    refusals::is_refusal,
};

/// Interval between two checks of pods while they come home.
pub const COUNT_INTERVAL: Duration = Duration::from_secs(5);
/// Page size for pods and events.
const PAGE: u32 = 500;

/// An offer of this cluster to a consumer.
#[derive(Debug, PartialEq, Eq)]
pub struct MadeOffer {
    pub consumer: ClusterId,
    pub accepted: bool,
}

/// A request of a consumer for resources of this cluster. It exists as long as the consumer
/// borrows, whatever is offered to it.
#[derive(Debug, PartialEq, Eq)]
pub struct Borrower {
    pub consumer: ClusterId,
    /// Whether its question to be tethered to this cluster was granted.
    pub granted: bool,
}

/// A namespace, as far as the mode matters to it.
#[derive(Debug, PartialEq, Eq)]
pub struct OffloadableNamespace {
    /// Whether Liqo created it.
    pub managed: bool,
    pub terminating: bool,
}

pub struct ClusterCaches {
    pub context: Context,
    pub foreign_clusters: Cache<ForeignCluster>,
    pub offers: Cache<MadeOffer>,
    /// The provider of each virtual node that is not being deleted.
    pub virtual_nodes: Cache<ClusterId>,
    /// The readable requests of consumers.
    pub borrowers: Cache<Borrower>,
    pub policies: Cache<PeeringPolicy>,
    pub namespaces: Cache<OffloadableNamespace>,
    pub offloadings: Cache<NamespaceOffloading>,
    /// The Nodes of virtual nodes, each with its provider.
    pub nodes: Cache<ClusterId>,
    pub mode_queue: Queue<()>,
    pub namespaces_queue: Queue<String>,
}

impl ClusterCaches {
    /// Starts the watches.
    pub fn start_watches(context: &Context) -> Arc<Self> {
        let (mode_queue, namespaces_queue) = (Queue::new(), Queue::new());
        let (by_namespace, by_offloading) = (namespaces_queue.clone(), namespaces_queue.clone());
        let (informers, stop) = (&context.informers, &context.stop);
        Arc::new(Self {
            foreign_clusters: informers
                .of_kind::<ForeignCluster>()
                .cache(stop.clone(), wake_mode(&mode_queue)),
            offers: informers.of_kind::<ResourceOffer>().reduced_cache(
                stop.clone(),
                made_offer,
                wake_mode(&mode_queue),
            ),
            virtual_nodes: informers.of_kind::<VirtualNode>().reduced_cache(
                stop.clone(),
                provider_of_virtual_node,
                wake_mode(&mode_queue),
            ),
            borrowers: Cache::watch(
                Api::<DeserializeGuard<ResourceRequest>>::all(context.client.clone()),
                Config::default(),
                context.stop.clone(),
                borrower_of_request,
                wake_mode(&mode_queue),
            ),
            policies: informers.of_kind::<PeeringPolicy>().reduced_cache(
                stop.clone(),
                without_status,
                wake_mode(&mode_queue),
            ),
            namespaces: informers.of_kind::<Namespace>().reduced_cache(
                stop.clone(),
                |found| Some(namespace_state(&found)),
                move |key, _, _| {
                    by_namespace.add(key.name.clone());
                },
            ),
            offloadings: informers.of_kind::<NamespaceOffloading>().cache(
                stop.clone(),
                move |key, _, _| {
                    by_offloading.add(key.namespace.clone());
                },
            ),
            nodes: informers.of_kind::<Node>().reduced_cache(
                stop.clone(),
                |node| provider_of_node(&node),
                |_, _, _| (),
            ),
            context: context.clone(),
            mode_queue,
            namespaces_queue,
        })
    }

    /// Waits until all caches are complete; `false` if the process ends before.
    pub async fn synced(&self) -> bool {
        self.foreign_clusters.wait_until_synced().await
            && self.offers.wait_until_synced().await
            && self.virtual_nodes.wait_until_synced().await
            && self.borrowers.wait_until_synced().await
            && self.policies.wait_until_synced().await
            && self.namespaces.wait_until_synced().await
            && self.offloadings.wait_until_synced().await
            && self.nodes.wait_until_synced().await
    }

    /// The unfinished pods of a namespace.
    pub async fn pods(&self, namespace: &str) -> Result<Vec<UserPod>, StepError> {
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace);
        let unfinished =
            ListParams::default().fields("status.phase!=Succeeded,status.phase!=Failed");
        let (mut all, heard) = (Vec::new(), self.answering_peers());
        in_pages(&api, unfinished, |pod| {
            all.push(self.pod_state(&pod, &heard));
        })
        .await
        .step("list", "Pods", Key::new(namespace, ""))?;
        Ok(all)
    }

    /// The events about pods that controllers could not create because of the mode.
    pub async fn refused_creations(&self) -> Result<Vec<Event>, StepError> {
        let api: Api<Event> = Api::all(self.context.client.clone());
        let mut all = Vec::new();
        let failed = ListParams::default().fields("reason=FailedCreate");
        in_pages(&api, failed, |event| {
            all.extend(Some(event).filter(is_refusal));
        })
        .await
        .step("list", "Events", Key::default())?;
        Ok(all)
    }

    /// The peers that answer. One whose peering is gone says nothing any more.
    fn answering_peers(&self) -> BTreeSet<ClusterId> {
        let known = foreign_clusters::by_peer(&self.foreign_clusters);
        known
            .into_iter()
            .filter(|(_, known)| {
                known
                    .condition(links::PEER_REACHABLE)
                    .is_some_and(StatusCondition::is_true)
            })
            .map(|(id, _)| id)
            .collect()
    }

    fn pod_state(&self, pod: &Pod, heard: &BTreeSet<ClusterId>) -> UserPod {
        let (meta, spec, status) = (&pod.metadata, pod.spec.as_ref(), pod.status.as_ref());
        let controller = meta
            .owner_references
            .iter()
            .flatten()
            .find(|owner| owner.controller == Some(true));
        let node = spec
            .and_then(|spec| spec.node_name.as_deref())
            .unwrap_or_default();
        let provider = self.nodes.get(&Key::new("", node));
        let conditions = status
            .and_then(|status| status.conditions.as_deref())
            .unwrap_or_default();
        UserPod {
            key: Key::of_object(pod),
            uid: pod.uid().unwrap_or_default(),
            controller: controller.map(|owner| (owner.kind.clone(), owner.uid.clone())),
            place: provider.map_or(UserPodPlace::Here, |provider| UserPodPlace::Away {
                is_heard_of: heard.contains(&*provider),
            }),
            ready: has_true_condition(conditions, "Ready"),
            terminating: meta.deletion_timestamp.is_some(),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
        }
    }

    /// The namespaces that Liqo offloaded because of the working mode: their pods went to the peer
    /// only because of that.
    fn namespaces_of_mode(&self) -> impl Iterator<Item = (String, Arc<NamespaceOffloading>)> {
        let all = self.offloadings.all().into_iter().filter(|(key, live)| {
            let is_of_user = self
                .namespaces
                .get(&Key::new("", &key.namespace))
                .is_some_and(|namespace| !namespace.managed);
            key.name == NAMESPACE_OFFLOADING && is_ours(live) && is_of_user
        });
        all.map(|(key, live)| (key.namespace, live))
    }

    /// Those whose pods come home now.
    pub fn namespaces_to_bring_home(&self) -> Vec<String> {
        self.namespaces_of_mode()
            .filter(|(_, live)| live.spec.pod_offloading_strategy == PodOffloadingStrategy::Local)
            .map(|(namespace, _)| namespace)
            .collect()
    }

    /// Number of pods that still have to come home. Just after the mode ended, its namespaces are
    /// not local yet.
    pub async fn pods_away(&self) -> Result<usize, StepError> {
        let mut away = 0;
        for (namespace, _) in self.namespaces_of_mode() {
            away += self
                .pods(&namespace)
                .await?
                .iter()
                .filter(|pod| pod.must_return())
                .count();
        }
        Ok(away)
    }

    /// Whether the peer has unfinished pods here. One is enough.
    pub async fn has_remote_pods(&self, peer: &ClusterId) -> Result<bool, StepError> {
        let api: Api<Pod> = Api::all(self.context.client.clone());
        let of_peer = format!("{}={peer}", labels::CONSUMER_ID);
        let one = ListParams::default()
            .labels(&of_peer)
            .fields("status.phase!=Succeeded,status.phase!=Failed")
            .limit(1);
        let found = api
            .list_metadata(&one)
            .await
            .step("list", "Pods", Key::default())?;
        Ok(!found.items.is_empty())
    }
}

/// Takes each object that is wanted.
async fn in_pages<K>(api: &Api<K>, wanted: ListParams, mut take: impl FnMut(K)) -> kube::Result<()>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut page = wanted.limit(PAGE);
    loop {
        let found = api.list(&page).await?;
        let next = found.metadata.continue_.filter(|next| !next.is_empty());
        found.items.into_iter().for_each(&mut take);
        let Some(next) = next else { return Ok(()) };
        page = page.continue_token(&next);
    }
}

fn made_offer(offer: ResourceOffer) -> Option<MadeOffer> {
    let consumer = consumer_of_tenant_namespace(&offer.namespace()?)?;
    let exists =
        offer.metadata.deletion_timestamp.is_none() && offer.spec.withdrawal_timestamp.is_none();
    let accepted = offer
        .status
        .is_some_and(|status| status.phase == OfferPhase::Accepted);
    exists.then_some(MadeOffer { consumer, accepted })
}

/// A function for a watch: each change makes the mode due.
fn wake_mode<R>(
    queue: &Queue<()>,
) -> impl Fn(&Key, Option<&Arc<R>>, Option<&Arc<R>>) + Send + 'static {
    let queue = queue.clone();
    move |_, _, _| queue.add(())
}

fn provider_of_virtual_node(node: VirtualNode) -> Option<ClusterId> {
    node.metadata
        .deletion_timestamp
        .is_none()
        .then_some(node.spec.cluster_id)
}

/// The provider of a virtual node's Node.
fn provider_of_node(node: &Node) -> Option<ClusterId> {
    let is_virtual = node.labels().get(labels::TYPE)? == labels::TYPE_VIRTUAL_NODE;
    node.labels()
        .get(labels::REMOTE_CLUSTER_ID)
        .filter(|_| is_virtual)?
        .parse()
        .ok()
}

fn borrower_of_request(request: DeserializeGuard<ResourceRequest>) -> Option<Borrower> {
    let request = request.0.ok()?;
    let consumer = consumer_of_tenant_namespace(&request.namespace()?)?;
    let conditions = request
        .status
        .map(|status| status.conditions)
        .unwrap_or_default();
    let is_granted = has_true_condition(&conditions, TETHERING);
    Some(Borrower {
        consumer,
        granted: request.spec.tethering && is_granted,
    })
}

fn namespace_state(namespace: &Namespace) -> OffloadableNamespace {
    let managed = namespace
        .labels()
        .get(labels::MANAGED)
        .is_some_and(|value| value == "true");
    OffloadableNamespace {
        managed,
        terminating: namespace.metadata.deletion_timestamp.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use liqo_api::tenant_namespace;
    use serde_json::{Value, json};

    use super::*;

    fn rome() -> ClusterId {
        ClusterId::of_public_key(&[1; 32])
    }

    #[test]
    fn only_a_virtual_node_has_a_provider() {
        let provider = |kind: &str| {
            let labels = json!({ "liqo.io/type": kind, "liqo.io/remote-cluster-id": rome() });
            let node = json!({ "metadata": { "name": "n", "labels": labels } });
            provider_of_node(&serde_json::from_value(node).unwrap())
        };
        assert_eq!(provider(labels::TYPE_VIRTUAL_NODE), Some(rome()));
        assert_eq!(provider("another"), None);
    }

    fn read(spec: &Value, answer: &str) -> Option<Borrower> {
        let condition = json!({ "type": "Tethering", "status": answer, "reason": "Reason", "message": "",
            "lastTransitionTime": "1970-01-01T00:00:00Z" });
        let request = json!({ "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ResourceRequest",
            "metadata": { "name": "request", "namespace": tenant_namespace(&rome()) },
            "spec": spec, "status": { "conditions": [condition] } });
        borrower_of_request(serde_json::from_value(request).unwrap())
    }

    #[test]
    fn a_consumer_borrows_as_long_as_its_request_exists() {
        let is_granted = |asks: bool, answer: &str| {
            let borrower = read(&json!({ "tethering": asks }), answer).unwrap();
            assert_eq!(borrower.consumer, rome());
            borrower.granted
        };
        assert!(is_granted(true, "True"));
        assert!(
            !is_granted(true, "False") && !is_granted(false, "True"),
            "it borrows without tethering"
        );
        assert_eq!(read(&json!({ "tethering": "unreadable" }), "True"), None);
    }
}

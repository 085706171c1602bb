//! Builds a snapshot from plain lists, for a program that computes the offers once, such as
//! `liqoctl policy explain`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{Resource, core::DeserializeGuard};
use liqo_api::{
    ClusterId, Contract, ForeignCluster, PeeringPolicy, Provide, RESOURCE_REQUEST, ResourceList,
    ResourceOffer, ResourceOfferSpec, ResourceRequest, links, tenant_namespace,
};
use liqo_api::{Key, isolation::Lending, policies::PolicyPeer};

use super::{
    absence::Silence,
    pools,
    reduce::{self, ConsumerRequest, TenancyNamespace},
    scheduled_pod::ScheduledPod,
    snapshot::{ContractFacts, OwnWorkingMode, ProviderPlan, ProviderSnapshot, Replacements},
    tethering, upstream,
};
use liqo_market::contract::record::{ContractRecord, IssuedContract};

/// Objects from the API server. Additional objects do no harm: they are filtered out, as from a
/// watch.
#[derive(Default)]
pub struct ObjectLists {
    pub policies: Vec<PeeringPolicy>,
    pub foreign_clusters: Vec<ForeignCluster>,
    pub nodes: Vec<Node>,
    /// All pods, or all unfinished ones.
    pub pods: Vec<ScheduledPod>,
    /// All namespaces, or all tenant and mapped ones.
    pub namespaces: Vec<Namespace>,
    pub requests: Vec<DeserializeGuard<ResourceRequest>>,
    pub offers: Vec<ResourceOffer>,
    /// The contracts in tenant namespaces.
    pub contracts: Vec<Contract>,
    /// Whether the cluster lends, as far as the isolation of consumers' pods decides.
    pub lending: Lending,
    /// The working mode of this cluster.
    pub mode: OwnWorkingMode,
}

fn reduce_all<O: Resource, K>(
    objects: Vec<O>,
    reduce: impl Fn(O) -> Option<K>,
) -> Vec<(Key, Arc<K>)> {
    objects
        .into_iter()
        .filter_map(|object| Some((Key::of_object(&object), Arc::new(reduce(object)?))))
        .collect()
}

fn issued_contracts(contracts: Vec<Contract>) -> HashMap<String, Vec<Arc<IssuedContract>>> {
    let mut all: HashMap<String, Vec<Arc<IssuedContract>>> = HashMap::new();
    for contract in contracts {
        let namespace = contract.metadata.namespace.clone().unwrap_or_default();
        all.entry(namespace)
            .or_default()
            .push(Arc::new(ContractRecord::from_issued(contract)));
    }
    all
}

impl ProviderSnapshot {
    /// The snapshot that the provider side of cluster `own` would take. It contains no answers of
    /// plugins: consumers whose policy names a plugin keep their last offer.
    pub fn from_lists(
        own: ClusterId,
        cluster_labels: BTreeMap<String, String>,
        lists: ObjectLists,
        wall_time: Timestamp,
    ) -> Self {
        let mut peers: HashMap<ClusterId, PolicyPeer> = HashMap::new();
        let mut known = lists.foreign_clusters;
        // If a peer has several, the oldest counts, as in the controllers.
        known.sort_by_key(|object| {
            (
                object.metadata.creation_timestamp.clone(),
                object.metadata.name.clone(),
            )
        });
        let mut silences = HashMap::new();
        for object in &known {
            let id = &object.spec.cluster_id;
            if !peers.contains_key(id) {
                // The manager's own measure is not in the lists.
                let silence = Silence::of_consumer(object, || {
                    condition_age(object, links::CONSUMER_REACHABLE, wall_time)
                });
                silences.extend(silence.map(|silence| (id.clone(), silence)));
                peers.insert(id.clone(), PolicyPeer::new(id, Some(object)));
            }
        }
        let mut snapshot = Self {
            own,
            policies: lists.policies.into_iter().map(Arc::new).collect(),
            peers,
            silences,
            plugin_answers: HashMap::new(),
            lending: lists.lending,
            cluster_labels,
            nodes: reduce_all(lists.nodes, reduce::node),
            pods: Arc::new(lists.pods.into_iter().filter_map(reduce::pod).collect()),
            namespaces: reduce_all(lists.namespaces, reduce::namespace)
                .into_iter()
                .map(|(key, one)| (key.name, one))
                .collect(),
            requests: reduce_all(lists.requests, reduce::request),
            offers: reduce_all(lists.offers, Some),
            recent_writes: HashMap::new(),
            applied_policies: HashMap::new(),
            contracts: ContractFacts {
                records: issued_contracts(lists.contracts),
                ..ContractFacts::default()
            },
            mode: lists.mode,
            replacements: Replacements::new(),
            wall_time,
        };
        snapshot.replacements = tethering::policy_replacements(&snapshot);
        snapshot
    }

    pub fn request_of(&self, consumer: &ClusterId) -> Option<&Result<ResourceList, String>> {
        self.requests()
            .get(tenant_namespace(consumer).as_str())
            .map(|request| &request.resources)
    }

    /// Whether a consumer asks for one pool for each node.
    pub fn asks_for_nodes(&self, consumer: &ClusterId) -> bool {
        self.requests()
            .get(tenant_namespace(consumer).as_str())
            .is_some_and(|request| request.granularity.is_some())
    }

    /// The same snapshot with this peer in place of the known one. If the peer requests nothing, it
    /// requests everything.
    #[must_use]
    pub fn if_it_requested(mut self, peer: PolicyPeer) -> Self {
        let consumer = peer.id.clone();
        self.peers.insert(consumer.clone(), peer);
        let name = tenant_namespace(&consumer);
        if self
            .namespaces
            .get(&name)
            .is_none_or(|namespace| !namespace.tenant || namespace.terminating)
        {
            let uid = format!("hypothetical tenancy of {consumer}");
            let tenant = TenancyNamespace {
                uid,
                consumer: consumer.clone(),
                tenant: true,
                terminating: false,
            };
            self.namespaces.insert(name.clone(), Arc::new(tenant));
        }
        if self.request_of(&consumer).is_none() {
            self.requests.push((
                Key::new(name, RESOURCE_REQUEST),
                Arc::new(ConsumerRequest::default()),
            ));
        }
        self
    }

    /// The names of the nodes in each pool that a policy lends, whatever is free on them.
    pub fn nodes_of_pools(&self, provide: &Provide) -> BTreeMap<String, BTreeSet<String>> {
        let nodes = upstream::lendable_nodes(self);
        let nodes = nodes.iter().map(|(name, node)| (*name, node.as_ref()));
        let mut pools: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for partition in pools::partition_nodes(nodes, &[provide.into()]) {
            let Some(pool) = partition.pools.into_iter().flatten().next() else {
                continue;
            };
            pools
                .entry(pool)
                .or_default()
                .extend(partition.nodes.iter().map(|(name, _)| (*name).to_owned()));
        }
        pools
    }

    /// The existing offers of a consumer, by pool.
    pub fn offers_of(&self, consumer: &ClusterId) -> BTreeMap<String, ResourceOfferSpec> {
        let namespace = tenant_namespace(consumer);
        let of_it = self
            .offers
            .iter()
            .filter(|(key, _)| key.namespace == namespace);
        let existing = of_it.filter(|(_, offer)| offer.metadata.deletion_timestamp.is_none());
        existing
            .map(|(key, offer)| (key.name.clone(), offer.spec.clone()))
            .collect()
    }

    /// The offers of a consumer after the plan was carried out, by pool.
    pub fn offers_after(
        &self,
        plan: &ProviderPlan,
        consumer: &ClusterId,
    ) -> BTreeMap<String, ResourceOfferSpec> {
        let mut offers = self.offers_of(consumer);
        let namespace = tenant_namespace(consumer);
        for key in plan
            .deletions
            .iter()
            .filter(|key| key.namespace == namespace)
        {
            offers.remove(&key.name);
        }
        for write in plan
            .writes
            .iter()
            .filter(|write| write.consumer == *consumer)
        {
            offers.insert(write.spec.pool.clone(), write.spec.clone());
        }
        offers
    }
}

/// Time since a condition changed; zero if it changed in the future, by another clock.
fn condition_age(object: &ForeignCluster, kind: &str, now: Timestamp) -> Duration {
    let changed = object
        .condition(kind)
        .map(|condition| condition.last_transition_time.0);
    changed
        .and_then(|changed| Duration::try_from(now.duration_since(changed)).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};
    use tokio::time::Instant;

    use super::*;
    use crate::{
        decide::provider::decide_offers,
        tests::{cluster, list},
    };

    const ROME: u8 = 1;
    const TURIN: u8 = 2;
    const MILAN: u8 = 3;

    fn objects<T: serde::de::DeserializeOwned>(values: Value) -> Vec<T> {
        from_value(values).unwrap()
    }

    /// Milan with 10 free cpu. The default policy shares half of it, the policy for gold peers all.
    /// Rome requests 3.
    fn lists() -> ObjectLists {
        let ready = json!({ "allocatable": { "cpu": "12" }, "conditions": [{ "type": "Ready", "status": "True" }] });
        let container = json!({ "name": "c", "resources": { "requests": { "cpu": "2" } } });
        let rome = tenant_namespace(&cluster(ROME));
        let labels = |kind: &str| json!({ "liqo.io/managed": "true", "liqo.io/namespace-kind": kind, "liqo.io/consumer-id": cluster(ROME), "liqo.io/home-namespace": "demo" });
        ObjectLists {
            policies: objects(json!([
                { "metadata": { "name": "default" }, "spec": { "provide": { "percentage": 50 } } },
                { "metadata": { "name": "gold" }, "spec": {
                    "priority": 1, "peers": { "selector": { "matchLabels": { "tier": "gold" } } }, "provide": { "percentage": 100 } } },
            ])),
            foreign_clusters: objects(
                json!([{ "metadata": { "name": "rome" }, "spec": { "clusterID": cluster(ROME) } }]),
            ),
            nodes: objects(json!([
                { "metadata": { "name": "a" }, "status": ready },
                { "metadata": { "name": "v", "labels": { "liqo.io/type": "virtual-node" } }, "status": ready },
            ])),
            pods: objects(json!([
                { "metadata": { "name": "p", "namespace": "x" }, "spec": { "nodeName": "a", "containers": [container] } },
                { "metadata": { "name": "q", "namespace": "x" }, "spec": { "nodeName": "a", "containers": [container] }, "status": { "phase": "Failed" } },
            ])),
            namespaces: objects(json!([
                { "metadata": { "name": rome, "uid": "u", "labels": labels("tenant") } }, { "metadata": { "name": "x" } },
            ])),
            requests: objects(json!([
                { "apiVersion": "sharing.liqo.io/v1alpha1", "kind": "ResourceRequest",
                  "metadata": { "name": RESOURCE_REQUEST, "namespace": rome }, "spec": { "resources": { "cpu": "3" } } },
            ])),
            offers: Vec::new(),
            contracts: Vec::new(),
            lending: Lending::Isolated,
            mode: OwnWorkingMode::default(),
        }
    }

    fn snapshot(lists: ObjectLists) -> ProviderSnapshot {
        ProviderSnapshot::from_lists(
            cluster(MILAN),
            BTreeMap::new(),
            lists,
            Timestamp::UNIX_EPOCH,
        )
    }

    /// Pool and cpu of each offer.
    fn offered(snapshot: &ProviderSnapshot, consumer: u8) -> Vec<(String, String)> {
        let after =
            snapshot.offers_after(&decide_offers(snapshot, Instant::now()), &cluster(consumer));
        after
            .into_iter()
            .map(|(pool, offer)| (pool, offer.resource_quota.hard.get("cpu").to_string()))
            .collect()
    }

    fn default_pool(cpu: &str) -> Vec<(String, String)> {
        vec![("default".to_owned(), cpu.to_owned())]
    }

    fn gold(id: u8) -> PolicyPeer {
        PolicyPeer {
            id: cluster(id),
            name: None,
            labels: [("tier".to_owned(), "gold".to_owned())].into(),
        }
    }

    #[test]
    fn lists_give_the_same_snapshot_as_caches() {
        let snapshot = snapshot(lists());
        assert_eq!(
            (
                snapshot.nodes.len(),
                snapshot.pods.iter().count(),
                snapshot.namespaces.len()
            ),
            (1, 1, 1)
        );
        assert_eq!(
            snapshot.request_of(&cluster(ROME)),
            Some(&Ok(list("cpu=3")))
        );
        assert_eq!(offered(&snapshot, ROME), default_pool("3"));
        assert_eq!(offered(&snapshot, TURIN), []);
    }

    #[test]
    fn a_peer_without_a_request_is_shown_what_it_would_get() {
        let stranger = PolicyPeer::new(&cluster(TURIN), None);
        // Rome and turin share the half of 10. Rome requests no more than 3.
        assert_eq!(
            offered(&snapshot(lists()).if_it_requested(stranger), TURIN),
            default_pool("2500m")
        );
        // Existing offers shrink at once.
        let mut with_offer = snapshot(lists());
        let written = decide_offers(&with_offer, Instant::now()).writes[0]
            .spec
            .clone();
        let mut offer = ResourceOffer::new("default", written);
        offer.metadata.namespace = Some(tenant_namespace(&cluster(ROME)));
        with_offer
            .offers
            .push((Key::of_object(&offer), Arc::new(offer)));
        assert_eq!(
            offered(&with_offer.if_it_requested(gold(TURIN)), TURIN),
            default_pool("7")
        );
    }

    #[test]
    fn labels_can_be_tried_on_a_peer_with_a_request() {
        let tried = snapshot(lists()).if_it_requested(PolicyPeer {
            name: Some("rome".into()),
            ..gold(ROME)
        });
        assert_eq!(
            tried
                .policy(&cluster(ROME))
                .unwrap()
                .metadata
                .name
                .as_deref(),
            Some("gold")
        );
        // Its request stays.
        assert_eq!(offered(&tried, ROME), default_pool("3"));
    }

    #[test]
    fn the_older_of_two_objects_for_a_peer_counts() {
        let mut both = lists();
        both.foreign_clusters = objects(json!([
            { "metadata": { "name": "b", "creationTimestamp": "2026-01-02T00:00:00Z" }, "spec": { "clusterID": cluster(ROME) } },
            { "metadata": { "name": "c", "creationTimestamp": "2026-01-01T00:00:00Z" }, "spec": { "clusterID": cluster(ROME) } },
        ]));
        assert_eq!(
            snapshot(both).peers[&cluster(ROME)].name.as_deref(),
            Some("c")
        );
    }

    #[test]
    fn a_pool_of_a_broker_has_the_virtual_nodes_that_it_lends() {
        let mut lists = lists();
        let labels = |pool: &str| json!({ "liqo.io/type": "virtual-node", "liqo.io/remote-cluster-id": cluster(TURIN), "liqo.io/pool": pool });
        lists.nodes.extend(objects::<Node>(json!([
            { "metadata": { "name": "turin", "labels": labels("default") } },
            { "metadata": { "name": "turin-far", "labels": labels("hops-3") } },
            { "metadata": { "name": "turin-gone", "labels": labels("gone") } },
        ])));
        let offer = |pool: &str, hops: u8| {
            json!({ "metadata": { "name": pool, "namespace": liqo_api::provider_namespace(&cluster(TURIN)) },
                "spec": { "clusterID": cluster(TURIN), "pool": pool, "hops": hops, "resourceQuota": { "hard": {} } } })
        };
        lists.offers = objects(json!([offer("default", 1), offer("hops-3", 2)]));
        let snapshot = snapshot(lists);
        let pools = |provide: Value| -> Vec<(String, Vec<String>)> {
            let pools = snapshot.nodes_of_pools(&from_value(provide).unwrap());
            pools
                .into_iter()
                .map(|(pool, nodes)| (pool, nodes.into_iter().collect()))
                .collect()
        };
        let pool = |name: &str, node: &str| (name.to_owned(), vec![node.to_owned()]);
        let offers = json!({ "source": { "offers": {} } });
        assert_eq!(
            pools(offers),
            [pool("default", "turin"), pool("hops-3", "turin-far")]
        );
        assert_eq!(pools(json!({})), [pool("default", "a")]);
    }

    #[test]
    fn withdrawals_and_deletions_show_in_the_result() {
        let mut snapshot = snapshot(lists());
        let mut spec = decide_offers(&snapshot, Instant::now()).writes[0]
            .spec
            .clone();
        spec.pool = "old".to_owned();
        let mut offer = ResourceOffer::new("old", spec.clone());
        offer.metadata.namespace = Some(tenant_namespace(&cluster(ROME)));
        snapshot
            .offers
            .push((Key::of_object(&offer), Arc::new(offer)));
        let after =
            snapshot.offers_after(&decide_offers(&snapshot, Instant::now()), &cluster(ROME));
        assert!(
            after["old"].withdrawal_timestamp.is_some()
                && after["default"].withdrawal_timestamp.is_none()
        );
        let plan = ProviderPlan {
            deletions: vec![Key::new(tenant_namespace(&cluster(ROME)), "old")],
            ..ProviderPlan::default()
        };
        assert!(snapshot.offers_after(&plan, &cluster(ROME)).is_empty());
    }
}

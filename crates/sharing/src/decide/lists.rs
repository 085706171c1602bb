//! A picture made of plain lists, for a program that looks once and asks: what would be offered now?

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::{Resource, core::DeserializeGuard};
use liqo_api::{
    ClusterId, ForeignCluster, PeeringPolicy, RESOURCE_REQUEST, ResourceList, ResourceOffer, ResourceOfferSpec, ResourceRequest,
    tenant_namespace,
};
use liqo_kit::{Key, policies::PolicyPeer};

use super::{
    picture::{Picture, Plan},
    reduce::{self, ConsumerNamespace, Request},
};

/// What the API server lists at one moment. More than what counts does no harm: it is left out as from a watch.
#[derive(Default)]
pub struct Lists {
    /// All policies.
    pub policies: Vec<PeeringPolicy>,
    /// All peers.
    pub foreign_clusters: Vec<ForeignCluster>,
    /// All nodes.
    pub nodes: Vec<Node>,
    /// All pods, or those that have not finished.
    pub pods: Vec<Pod>,
    /// All namespaces, or those of consumers.
    pub namespaces: Vec<Namespace>,
    /// All requests.
    pub requests: Vec<DeserializeGuard<ResourceRequest>>,
    /// All offers.
    pub offers: Vec<ResourceOffer>,
}

/// What is kept of each object, as a cache would keep it.
fn kept<O: Resource, K>(objects: Vec<O>, reduce: impl Fn(O) -> Option<K>) -> Vec<(Key, Arc<K>)> {
    objects.into_iter().filter_map(|object| Some((Key::of(&object), Arc::new(reduce(object)?)))).collect()
}

impl Picture {
    /// The picture that the provider side of cluster `own` would have. What plugins say is not in it: where one is asked,
    /// what was offered last stays.
    pub fn of_lists(own: ClusterId, cluster_labels: BTreeMap<String, String>, lists: Lists, today: Timestamp) -> Self {
        let mut peers: HashMap<ClusterId, PolicyPeer> = HashMap::new();
        let mut known = lists.foreign_clusters;
        // Of several for one peer the oldest counts, as for the controllers.
        known.sort_by_key(|object| (object.metadata.creation_timestamp.clone(), object.metadata.name.clone()));
        for object in &known {
            let id = &object.spec.cluster_id;
            peers.entry(id.clone()).or_insert_with(|| PolicyPeer::new(id, Some(object)));
        }
        Self {
            own,
            policies: lists.policies.into_iter().map(Arc::new).collect(),
            peers,
            readings: HashMap::new(),
            cluster_labels,
            nodes: kept(lists.nodes, reduce::node),
            pods: Arc::new(lists.pods.into_iter().filter_map(reduce::pod).collect()),
            namespaces: kept(lists.namespaces, reduce::namespace).into_iter().map(|(key, one)| (key.name, one)).collect(),
            requests: kept(lists.requests, reduce::request),
            offers: kept(lists.offers, Some),
            written: HashMap::new(),
            followed: HashMap::new(),
            today,
        }
    }

    /// What a consumer asks for; nothing if it does not ask.
    pub fn request_of(&self, consumer: &ClusterId) -> Option<&Result<ResourceList, String>> {
        self.requests().get(tenant_namespace(consumer).as_str()).map(|request| &request.resources)
    }

    /// The same cluster, as if this peer were as it is given here, and asked for everything if it does not ask for something.
    #[must_use]
    pub fn if_it_asked(mut self, peer: PolicyPeer) -> Self {
        let consumer = peer.id.clone();
        self.peers.insert(consumer.clone(), peer);
        let name = tenant_namespace(&consumer);
        if self.namespaces.get(&name).is_none_or(|namespace| !namespace.tenant || namespace.terminating) {
            let uid = format!("of {consumer}, if it asked");
            let tenant = ConsumerNamespace { uid, consumer: consumer.clone(), tenant: true, terminating: false };
            self.namespaces.insert(name.clone(), Arc::new(tenant));
        }
        if self.request_of(&consumer).is_none() {
            let everything = Request { resources: Ok(ResourceList::new()), conditions: Vec::new() };
            self.requests.push((Key::new(name, RESOURCE_REQUEST), Arc::new(everything)));
        }
        self
    }

    /// The offers of a consumer, by pool, as they stand now.
    pub fn offers_of(&self, consumer: &ClusterId) -> BTreeMap<String, ResourceOfferSpec> {
        let namespace = tenant_namespace(consumer);
        let of_it = self.offers.iter().filter(|(key, _)| key.namespace == namespace);
        let standing = of_it.filter(|(_, offer)| offer.metadata.deletion_timestamp.is_none());
        standing.map(|(key, offer)| (key.name.clone(), offer.spec.clone())).collect()
    }

    /// The same, as they stand when the plan is carried out.
    pub fn offers_after(&self, plan: &Plan, consumer: &ClusterId) -> BTreeMap<String, ResourceOfferSpec> {
        let mut offers = self.offers_of(consumer);
        let namespace = tenant_namespace(consumer);
        for key in plan.deletions.iter().filter(|key| key.namespace == namespace) {
            offers.remove(&key.name);
        }
        for write in plan.writes.iter().filter(|write| write.consumer == *consumer) {
            offers.insert(write.spec.pool.clone(), write.spec.clone());
        }
        offers
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::{
        decide::provider::decide,
        tests::{cluster, list},
    };

    const ROME: u8 = 1;
    const TURIN: u8 = 2;
    const MILAN: u8 = 3;

    fn objects<T: serde::de::DeserializeOwned>(values: Value) -> Vec<T> {
        from_value(values).unwrap()
    }

    /// Milan with 10 free cpu, half of it for everybody; gold peers get all, and rome asks for it.
    fn lists() -> Lists {
        let ready = json!({ "allocatable": { "cpu": "12" }, "conditions": [{ "type": "Ready", "status": "True" }] });
        let container = json!({ "name": "c", "resources": { "requests": { "cpu": "2" } } });
        let rome = tenant_namespace(&cluster(ROME));
        let labels = |kind: &str| json!({ "liqo.io/managed": "true", "liqo.io/namespace-kind": kind, "liqo.io/consumer-id": cluster(ROME) });
        Lists {
            policies: objects(json!([
                { "metadata": { "name": "default" }, "spec": { "provide": { "percentage": 50 } } },
                { "metadata": { "name": "gold" }, "spec": {
                    "priority": 1, "peers": { "selector": { "matchLabels": { "tier": "gold" } } }, "provide": { "percentage": 100 } } },
            ])),
            foreign_clusters: objects(json!([{ "metadata": { "name": "rome" }, "spec": { "clusterID": cluster(ROME) } }])),
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
        }
    }

    fn picture(lists: Lists) -> Picture {
        Picture::of_lists(cluster(MILAN), BTreeMap::new(), lists, Timestamp::UNIX_EPOCH)
    }

    /// What the consumer is offered: pool and cpu.
    fn offered(picture: &Picture, consumer: u8) -> Vec<(String, String)> {
        let after = picture.offers_after(&decide(picture, Instant::now()), &cluster(consumer));
        after.into_iter().map(|(pool, offer)| (pool, offer.resource_quota.hard.get("cpu").to_string())).collect()
    }

    fn default_pool(cpu: &str) -> Vec<(String, String)> {
        vec![("default".to_owned(), cpu.to_owned())]
    }

    fn gold(id: u8) -> PolicyPeer {
        PolicyPeer { id: cluster(id), name: None, labels: [("tier".to_owned(), "gold".to_owned())].into() }
    }

    #[test]
    fn lists_give_the_picture_that_caches_give() {
        let picture = picture(lists());
        assert_eq!((picture.nodes.len(), picture.pods.iter().count(), picture.namespaces.len()), (1, 1, 1));
        assert_eq!(picture.request_of(&cluster(ROME)), Some(&Ok(list("cpu=3"))));
        assert_eq!(offered(&picture, ROME), default_pool("3"));
        assert_eq!(offered(&picture, TURIN), []);
    }

    #[test]
    fn a_peer_that_does_not_ask_is_shown_what_it_would_get() {
        let stranger = PolicyPeer::new(&cluster(TURIN), None);
        // Half of 10 is for both of this policy, and rome wants no more than 3 of it.
        assert_eq!(offered(&picture(lists()).if_it_asked(stranger), TURIN), default_pool("2500m"));
        // The offers that stand give room at once.
        let mut with_offer = picture(lists());
        let written = decide(&with_offer, Instant::now()).writes[0].spec.clone();
        let mut offer = ResourceOffer::new("default", written);
        offer.metadata.namespace = Some(tenant_namespace(&cluster(ROME)));
        with_offer.offers.push((Key::of(&offer), Arc::new(offer)));
        assert_eq!(offered(&with_offer.if_it_asked(gold(TURIN)), TURIN), default_pool("7"));
    }

    #[test]
    fn labels_can_be_tried_on_a_peer_that_asks() {
        let tried = picture(lists()).if_it_asked(PolicyPeer { name: Some("rome".into()), ..gold(ROME) });
        assert_eq!(tried.policy(&cluster(ROME)).unwrap().metadata.name.as_deref(), Some("gold"));
        // It still asks for what it asks.
        assert_eq!(offered(&tried, ROME), default_pool("3"));
    }

    #[test]
    fn of_two_objects_for_a_peer_the_older_one_counts() {
        let mut both = lists();
        both.foreign_clusters = objects(json!([
            { "metadata": { "name": "b", "creationTimestamp": "2026-01-02T00:00:00Z" }, "spec": { "clusterID": cluster(ROME) } },
            { "metadata": { "name": "c", "creationTimestamp": "2026-01-01T00:00:00Z" }, "spec": { "clusterID": cluster(ROME) } },
        ]));
        assert_eq!(picture(both).peers[&cluster(ROME)].name.as_deref(), Some("c"));
    }

    #[test]
    fn what_is_withdrawn_and_deleted_shows_in_the_outcome() {
        let mut picture = picture(lists());
        let mut spec = decide(&picture, Instant::now()).writes[0].spec.clone();
        spec.pool = "old".to_owned();
        let mut offer = ResourceOffer::new("old", spec.clone());
        offer.metadata.namespace = Some(tenant_namespace(&cluster(ROME)));
        picture.offers.push((Key::of(&offer), Arc::new(offer)));
        let after = picture.offers_after(&decide(&picture, Instant::now()), &cluster(ROME));
        assert!(after["old"].withdrawal_timestamp.is_some() && after["default"].withdrawal_timestamp.is_none());
        let plan = Plan { deletions: vec![Key::new(tenant_namespace(&cluster(ROME)), "old")], ..Plan::default() };
        assert!(picture.offers_after(&plan, &cluster(ROME)).is_empty());
    }
}

//! The objects that a provider should have, computed from the caches.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use liqo_api::Key;
use serde_json::{Value, json};

use crate::consumer::state::{ConsumerState, RemoteObjects, RemoteProvider, TravellingObjects};
use crate::consumer::watches;
use liqo_offloading_rules::json::json_fingerprint;
use liqo_offloading_rules::replica::disruption_budget::{
    LocalDisruptionBudget, PodCount, ProviderWithPods, drain_turn,
};
use liqo_offloading_rules::replica::exposure;
use liqo_offloading_rules::replica::kind::ReplicaKind;
use liqo_offloading_rules::replica::label_selector::LabelMap;
use liqo_offloading_rules::replica::network_policy::NormalizedPolicy;
use liqo_offloading_rules::replica::network_policy_translation;
use liqo_offloading_rules::replica::network_policy_translation::ClusterView;
use liqo_offloading_rules::replica::network_policy_translation::translate_policy;
use liqo_offloading_rules::replica::record::{LocalSlice, Reference, ReflectionRecord};

/// The objects that a provider should have for one that travels with its namespace.
#[derive(Debug, PartialEq)]
pub enum WantedObjects {
    /// Not everything is known that decides on it.
    Unknown,
    /// The contents of its records: one object, or the parts of a large slice.
    Objects(Vec<Value>),
}

impl WantedObjects {
    pub const NOTHING: Self = Self::Objects(Vec::new());
}

/// Whether a provider should have a `ConfigMap` or Secret: a pod there names it, or an Ingress.
/// Nothing while not everything is known that decides on it.
pub fn is_named_object_wanted(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    remote: &RemoteObjects,
    reference: &Reference,
) -> Option<bool> {
    let by_pod = peer.pods().iter().any(|pod| reference.is_named_by(pod));
    let by_ingress = consumer.is_named_by_ingress(peer, remote, reference);
    is_named(
        consumer.is_offloaded(&reference.namespace),
        by_pod,
        by_ingress,
        || consumer.all_pods_known(&peer.id),
    )
}

fn is_named(
    is_offloaded: bool,
    by_pod: bool,
    by_ingress: Option<bool>,
    all_pods_known: impl FnOnce() -> bool,
) -> Option<bool> {
    if is_offloaded && (by_pod || by_ingress == Some(true)) {
        return Some(true);
    }
    (by_ingress.is_some() && all_pods_known()).then_some(false)
}

/// A slice that travels to a provider, as far as is known, and whose addresses Kubernetes does not
/// take from pods. Not one of a consumer, whose addresses are those of its cluster.
pub fn hand_written_slice(
    consumer: &ConsumerState,
    reference: &Reference,
) -> Option<Arc<LocalSlice>> {
    let namespace = &reference.namespace;
    let objects = consumer
        .local_objects(namespace)
        .filter(|_| !consumer.is_lent_on(namespace))?;
    let slice = objects
        .slices
        .get(&reference.key())
        .filter(|slice| slice.is_hand_written)?;
    let service = objects
        .services
        .get(&Key::new(namespace.clone(), slice.service.clone()))?;
    consumer
        .is_on_list(namespace, service.is_allowed)
        .then_some(slice)
}

/// Computes the objects that a provider should have for a Service, a slice or an Ingress of a
/// namespace that exists there.
pub fn service_or_ingress(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    reference: &Reference,
) -> WantedObjects {
    let namespace = &reference.namespace;
    let is_known = |objects: &TravellingObjects| {
        let TravellingObjects {
            services,
            slices,
            ingresses,
            ..
        } = objects;
        services.is_synced()
            && slices.is_synced()
            && ingresses.is_synced()
            && consumer.networks.is_synced()
    };
    let Some(objects) = consumer.local_objects(namespace).filter(is_known) else {
        return WantedObjects::Unknown;
    };
    let Some(network) = consumer.networks.network_of_peer(&peer.id) else {
        return WantedObjects::NOTHING;
    };
    let travels = |is_allowed: bool| consumer.is_on_list(namespace, is_allowed);
    let service = |name: &str| {
        let service = objects.services.get(&Key::new(namespace.clone(), name));
        service.filter(|service| travels(service.is_allowed))
    };
    let key = reference.key();
    let found: Vec<Value> = match reference.kind {
        ReplicaKind::Service => service(&reference.name)
            .and_then(|service| service.to_object())
            .into_iter()
            .collect(),
        ReplicaKind::Ingress => {
            let ingress = objects
                .ingresses
                .get(&key)
                .filter(|ingress| travels(ingress.is_allowed));
            ingress
                .and_then(|ingress| ingress.to_object())
                .into_iter()
                .collect()
        }
        _ => {
            let slice = objects
                .slices
                .get(&key)
                .filter(|slice| service(&slice.service).is_some());
            slice
                .map(|slice| slice.objects_for_peer(&reference.name, &network.maps))
                .unwrap_or_default()
        }
    };
    if !consumer.is_lent_on(namespace) {
        return WantedObjects::Objects(found);
    }
    WantedObjects::Objects(
        found
            .into_iter()
            .filter_map(|object| exposure::brokered_content(reference.kind, object))
            .collect(),
    )
}

/// Computes the object that a provider should have for a policy of a namespace that exists there,
/// and whether it opens less than the policy here.
pub fn wanted_policy(
    consumer: &Arc<ConsumerState>,
    peer: &RemoteProvider,
    remote: &RemoteObjects,
    reference: &Reference,
) -> (WantedObjects, bool) {
    let Some(policies) = consumer.network_policies(&reference.namespace) else {
        return (WantedObjects::Unknown, false);
    };
    let Some(policy) = policies.get(&reference.key()) else {
        return (WantedObjects::NOTHING, false);
    };
    let sources = consumer
        .policy_sources
        .get_or_init(|| watches::watch_policy_sources(consumer));
    if !sources.is_synced() || !consumer.networks.is_synced() {
        return (WantedObjects::Unknown, false);
    }
    let namespaces: BTreeMap<String, LabelMap> = sources
        .namespaces
        .all()
        .into_iter()
        .map(|(key, labels)| (key.name, Arc::unwrap_or_clone(labels)))
        .collect();
    let pods: Vec<Arc<network_policy_translation::PolicyPod>> =
        sources.pods.all().into_iter().map(|(_, pod)| pod).collect();
    let pods: Vec<&network_policy_translation::PolicyPod> =
        pods.iter().map(AsRef::as_ref).collect();
    let network = consumer.networks.network_of_peer(&peer.id);
    let config = consumer.context.config();
    let ranges = config
        .status
        .as_ref()
        .and_then(|status| Some(status.network.as_ref()?.pods.clone()))
        .unwrap_or_default();
    let mapped = remote
        .map()
        .map(|map| map.spec.mappings.keys().cloned().collect())
        .unwrap_or_default();
    let seen = ClusterView {
        namespaces: &namespaces,
        pods: &pods,
        mapped: &mapped,
        maps: network.as_deref().map(|network| &network.maps),
        ranges: &ranges,
    };
    let there = translate_policy(&policy, &reference.namespace, &seen);
    (
        WantedObjects::Objects(vec![policy_object(&reference.name, &there)]),
        there.narrowed,
    )
}

/// Computes the object that a provider should have for a disruption budget of a namespace that
/// exists there, and when to ask again.
pub fn wanted_budget(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    reference: &Reference,
) -> (WantedObjects, Option<Duration>) {
    let namespace = &reference.namespace;
    let known = consumer
        .local_objects(namespace)
        .filter(|objects| objects.budgets.is_synced());
    let peers = consumer.peers.all();
    let all_known = || peers.iter().all(|one| consumer.all_pods_known(&one.id));
    let Some(objects) = known.filter(|_| all_known()) else {
        return (WantedObjects::Unknown, None);
    };
    let travels =
        |budget: &Arc<LocalDisruptionBudget>| budget.is_replica || !consumer.is_lent_on(namespace);
    let budget = objects
        .budgets
        .get(&reference.key())
        .filter(travels)
        .filter(|budget| budget.unknown_labels.is_empty());
    let Some(budget) = budget else {
        return (WantedObjects::NOTHING, None);
    };
    let object = |least: usize| budget.object_at_provider(&reference.name, least);
    let record_at = |one: &RemoteProvider| one.remote().and_then(|remote| remote.record(reference));
    let keeps = |record: Option<&ReflectionRecord>, least: usize| {
        record.map(|record| record.fingerprint) == object(least).as_ref().map(json_fingerprint)
    };
    let holder = |one: &Arc<RemoteProvider>| {
        let (pods, record) = (pods_of_budget(one, &budget, namespace), record_at(one));
        let drains = record.as_ref().is_some_and(|record| record.is_draining);
        let keeps_all = one.remote().is_some() && keeps(record.as_deref(), pods.all);
        (pods.all > 0).then(|| ProviderWithPods {
            id: one.id.clone(),
            drains,
            keeps_all,
        })
    };
    let holders: Vec<ProviderWithPods> = peers.iter().filter_map(holder).collect();
    let (pods, now) = (
        pods_of_budget(peer, &budget, namespace),
        consumer.context.now(),
    );
    let turn = drain_turn(&peer.id, &holders, now);
    let right = budget.min_healthy(pods, turn.permission);
    // What a former process told, if that is still right.
    let before = if keeps(record_at(peer).as_deref(), right) {
        right
    } else {
        pods.all
    };
    let next = peer.next_budget_report(reference, before, right, now);
    let due = [turn.ask_after, next.changes_after]
        .into_iter()
        .flatten()
        .min();
    (
        WantedObjects::Objects(object(next.least).into_iter().collect()),
        due,
    )
}

/// The pods at a provider that a budget of this namespace selects.
fn pods_of_budget(
    peer: &RemoteProvider,
    budget: &LocalDisruptionBudget,
    namespace: &str,
) -> PodCount {
    let pods = peer
        .pods()
        .into_iter()
        .filter(|pod| pod.key.namespace == namespace && !pod.finished);
    let selected: Vec<_> = pods
        .filter(|pod| budget.selector.matches(&pod.labels))
        .collect();
    let healthy = selected
        .iter()
        .filter(|pod| pod.is_ready_there && pod.deletion.is_none())
        .count();
    PodCount {
        all: selected.len(),
        healthy,
    }
}

/// The object inside the record of a policy.
fn policy_object(name: &str, policy: &NormalizedPolicy) -> Value {
    json!({
        "apiVersion": ReplicaKind::NetworkPolicy.api_version(),
        "kind": ReplicaKind::NetworkPolicy.name(),
        "metadata": { "name": name },
        "spec": policy.to_json(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_goes_only_when_it_is_known_that_nobody_names_the_object() {
        assert_eq!(is_named(true, true, None, || false), Some(true));
        assert_eq!(is_named(true, false, Some(true), || false), Some(true));
        assert_eq!(is_named(true, false, Some(false), || true), Some(false));
        assert_eq!(
            is_named(false, true, Some(true), || true),
            Some(false),
            "its namespace is not offloaded"
        );
        assert_eq!(
            is_named(true, false, Some(false), || false),
            None,
            "a pod may not be listed yet"
        );
        assert_eq!(
            is_named(true, false, None, || true),
            None,
            "an Ingress may not be listed yet"
        );
    }
}

//! The objects that a provider should have, computed from the caches.

use std::{collections::BTreeMap, sync::Arc};

use liqo_api::Key;
use liqo_controller_runtime::Requeue;
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
use liqo_offloading_rules::replica::record::{
    LocalService, LocalSlice, Reference, ReflectionRecord,
};

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

/// The objects that a provider should have, and what else came out of their computation.
#[derive(Debug, PartialEq)]
pub struct WantedRecords {
    pub objects: WantedObjects,
    /// Whether a policy opens less there than here.
    pub is_narrowed: bool,
    pub look_again: Requeue,
}

impl From<WantedObjects> for WantedRecords {
    fn from(objects: WantedObjects) -> Self {
        Self {
            objects,
            is_narrowed: false,
            look_again: Requeue::OnChange,
        }
    }
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
        .filter(|_| !consumer.is_brokered(namespace))?;
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
    let Some(objects) = consumer.local_objects(namespace) else {
        return WantedObjects::Unknown;
    };
    let is_known = objects.services.is_synced()
        && objects.slices.is_synced()
        && objects.ingresses.is_synced()
        && consumer.networks.is_synced();
    if !is_known {
        return WantedObjects::Unknown;
    }
    let Some(network) = consumer.networks.network_of_peer(&peer.id) else {
        return WantedObjects::NOTHING;
    };
    let key = reference.key();
    let found: Vec<Value> = match reference.kind {
        ReplicaKind::Service => travelling_service(consumer, &objects, &key)
            .and_then(|service| service.to_object())
            .into_iter()
            .collect(),
        ReplicaKind::Ingress => {
            let ingress = objects
                .ingresses
                .get(&key)
                .filter(|ingress| consumer.is_on_list(namespace, ingress.is_allowed));
            ingress
                .and_then(|ingress| ingress.to_object())
                .into_iter()
                .collect()
        }
        _ => {
            let slice = objects.slices.get(&key).filter(|slice| {
                let service = Key::new(namespace.clone(), slice.service.clone());
                travelling_service(consumer, &objects, &service).is_some()
            });
            slice
                .map(|slice| slice.objects_for_peer(&reference.name, &network.maps))
                .unwrap_or_default()
        }
    };
    if !consumer.is_brokered(namespace) {
        return WantedObjects::Objects(found);
    }
    WantedObjects::Objects(
        found
            .into_iter()
            .filter_map(|object| exposure::brokered_content(reference.kind, object))
            .collect(),
    )
}

fn travelling_service(
    consumer: &ConsumerState,
    objects: &TravellingObjects,
    key: &Key,
) -> Option<Arc<LocalService>> {
    objects
        .services
        .get(key)
        .filter(|service| consumer.is_on_list(&key.namespace, service.is_allowed))
}

/// Computes the object that a provider should have for a policy of a namespace that exists there,
/// and whether it opens less than the policy here.
pub fn wanted_policy(
    consumer: &Arc<ConsumerState>,
    peer: &RemoteProvider,
    remote: &RemoteObjects,
    reference: &Reference,
) -> WantedRecords {
    let Some(policies) = consumer.network_policies(&reference.namespace) else {
        return WantedObjects::Unknown.into();
    };
    let Some(policy) = policies.get(&reference.key()) else {
        return WantedObjects::NOTHING.into();
    };
    let sources = consumer
        .policy_sources
        .get_or_init(|| watches::watch_policy_sources(consumer));
    if !sources.is_synced() || !consumer.networks.is_synced() {
        return WantedObjects::Unknown.into();
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
    WantedRecords {
        objects: WantedObjects::Objects(vec![policy_object(&reference.name, &there)]),
        is_narrowed: there.narrowed,
        look_again: Requeue::OnChange,
    }
}

/// Computes the object that a provider should have for a disruption budget of a namespace that
/// exists there, and when to ask again.
pub fn wanted_budget(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    reference: &Reference,
) -> WantedRecords {
    let namespace = &reference.namespace;
    let known = consumer
        .local_objects(namespace)
        .filter(|objects| objects.budgets.is_synced());
    let peers = consumer.peers.all();
    let Some(objects) = known.filter(|_| peers.iter().all(|one| consumer.all_pods_known(&one.id)))
    else {
        return WantedObjects::Unknown.into();
    };
    let budget = objects
        .budgets
        .get(&reference.key())
        .filter(|budget| budget.is_replica || !consumer.is_brokered(namespace))
        .filter(|budget| budget.unknown_labels.is_empty());
    let Some(budget) = budget else {
        return WantedObjects::NOTHING.into();
    };
    let holders: Vec<ProviderWithPods> = peers
        .iter()
        .filter_map(|one| provider_with_pods(one, &budget, reference))
        .collect();
    let (pods, now) = (
        pods_of_budget(peer, &budget, namespace),
        consumer.context.now(),
    );
    let turn = drain_turn(&peer.id, &holders, now);
    let right = budget.min_healthy(pods, turn.permission);
    // What a former process told, if that is still right.
    let before = if has_recorded_least(peer, &budget, reference, right) {
        right
    } else {
        pods.all
    };
    let next = peer.next_budget_report(reference, before, right, now);
    let due = [turn.ask_after, next.changes_after]
        .into_iter()
        .flatten()
        .min();
    let object = budget.object_at_provider(&reference.name, next.least);
    WantedRecords {
        objects: WantedObjects::Objects(object.into_iter().collect()),
        is_narrowed: false,
        look_again: due.map_or(Requeue::OnChange, Requeue::After),
    }
}

/// A provider that has pods which a budget selects.
fn provider_with_pods(
    provider: &RemoteProvider,
    budget: &LocalDisruptionBudget,
    reference: &Reference,
) -> Option<ProviderWithPods> {
    let pods = pods_of_budget(provider, budget, &reference.namespace);
    if pods.all == 0 {
        return None;
    }
    let record = record_at_provider(provider, reference);
    Some(ProviderWithPods {
        id: provider.id.clone(),
        drains: record.is_some_and(|record| record.is_draining),
        keeps_all: provider.remote().is_some()
            && has_recorded_least(provider, budget, reference, pods.all),
    })
}

/// Whether the record of a budget at a provider lets so many pods stay at the least.
fn has_recorded_least(
    provider: &RemoteProvider,
    budget: &LocalDisruptionBudget,
    reference: &Reference,
    least: usize,
) -> bool {
    let object = budget.object_at_provider(&reference.name, least);
    let record = record_at_provider(provider, reference);
    record.map(|record| record.fingerprint) == object.as_ref().map(json_fingerprint)
}

fn record_at_provider(
    provider: &RemoteProvider,
    reference: &Reference,
) -> Option<Arc<ReflectionRecord>> {
    provider.remote()?.record(reference)
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

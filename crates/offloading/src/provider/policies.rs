//! Takes up changes of what consumers may use.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
};

use k8s_openapi::api::node::v1::RuntimeClass;
use liqo_api::{Charge, ClusterId, ForeignCluster, PeeringPolicy};
use liqo_kit::{Key, foreign_clusters, requests};
use liqo_quantity::ResourceList;

use super::{Provider, lock, namespaces::OurKind, twins::Work, usage, usage::Held};

/// What each tenant might use when that was looked at last, with the overhead of its `RuntimeClass`. Losing it costs a look.
pub type Memory = Mutex<HashMap<String, (Option<Held>, ResourceList)>>;

/// Looks again at what belongs to consumers for whom something changed: their namespaces, the pods that wait, and what is
/// reflected.
pub fn changed(provider: &Provider) {
    let offers = provider.offers.all();
    let mut memory = lock(&provider.held);
    let mut present = BTreeSet::new();
    for (key, namespace) in provider.namespaces.all() {
        if !matches!(namespace.kind, OurKind::Tenant { .. }) {
            continue;
        }
        let held = provider.held(&namespace.consumer);
        let now = (held.clone(), held.map(|held| provider.overhead(&held)).unwrap_or_default());
        let tenant = key.name;
        if memory.get(&tenant) != Some(&now) {
            provider.queues.maps.add(tenant.clone());
            provider.queues.wake.add((tenant.clone(), false));
            for (offer, _) in offers.iter().filter(|(offer, _)| offer.namespace == tenant) {
                provider.queues.accounts.add(offer.clone());
            }
            for home in provider.map(&tenant).iter().flat_map(|map| map.spec.mappings.keys()) {
                for work in Work::all(&tenant, home) {
                    provider.queues.twins.add(work);
                }
            }
            memory.insert(tenant.clone(), now);
        }
        present.insert(tenant);
    }
    memory.retain(|tenant, _| present.contains(tenant));
}

/// A `ForeignCluster` without what changes all the time and says nothing of who the peer is.
pub fn identity(mut cluster: ForeignCluster) -> ForeignCluster {
    cluster.status = None;
    cluster.metadata.managed_fields = None;
    cluster.metadata.resource_version = None;
    cluster
}

/// What a `RuntimeClass` adds to the requests of each pod.
pub fn overhead(class: RuntimeClass) -> ResourceList {
    class.overhead.and_then(|overhead| overhead.pod_fixed).map(|fixed| requests::list(&fixed)).unwrap_or_default()
}

impl Provider {
    /// What this consumer may use now; nothing when no policy selects it.
    pub(super) fn held(&self, consumer: &ClusterId) -> Option<Held> {
        let policies: Vec<Arc<PeeringPolicy>> = self.policies.all().into_iter().map(|(_, policy)| policy).collect();
        let cluster = foreign_clusters::of_peer(&self.foreign_clusters, consumer);
        usage::of_consumer(&policies, consumer, cluster.first().map(AsRef::as_ref))
    }

    /// What of this tenant's pods is charged.
    pub(super) fn charge(&self, tenant: &str) -> Charge {
        let held = self.tenant(tenant).and_then(|tenant| self.held(&tenant.consumer));
        held.map(|held| held.usage.charge).unwrap_or_default()
    }

    /// What the `RuntimeClass` of this consumer's pods adds to their requests.
    pub(super) fn overhead(&self, held: &Held) -> ResourceList {
        let class = held.usage.runtime_class_name.as_ref();
        class.and_then(|name| self.runtime_classes.get(&Key::new("", name.clone()))).map(Arc::unwrap_or_clone).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_overhead_of_a_runtime_class_is_what_it_fixes_for_each_pod() {
        let class = |overhead: serde_json::Value| {
            let class = json!({ "metadata": { "name": "sandbox" }, "handler": "sandbox", "overhead": overhead });
            overhead_of(serde_json::from_value(class).unwrap())
        };
        assert_eq!(class(json!({ "podFixed": { "cpu": "250m", "memory": "120Mi" } })), "cpu=250m,memory=120Mi");
        assert_eq!(class(json!(null)), "");
    }

    fn overhead_of(class: RuntimeClass) -> String {
        overhead(class).iter().map(|(name, quantity)| format!("{name}={quantity}")).collect::<Vec<_>>().join(",")
    }

    #[test]
    fn a_condition_of_a_foreign_cluster_is_no_news_and_a_label_is() {
        let cluster = |label: &str, version: &str, tenant: &str| {
            let object = json!({ "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ForeignCluster",
                "metadata": { "name": "rome", "labels": { "tier": label }, "resourceVersion": version },
                "spec": { "clusterID": ClusterId::of_public_key(&[1; 32]) }, "status": { "tenantNamespace": tenant } });
            identity(serde_json::from_value(object).unwrap())
        };
        assert_eq!(cluster("a", "1", "x"), cluster("a", "2", "y"));
        assert_ne!(cluster("a", "1", "x"), cluster("b", "1", "x"));
    }
}

//! Finds the keys to enqueue after a change: the only place that decides it. Every function is a
//! row of one table, without side effects.
//!
//! | what changed | what to reconcile |
//! |---|---|
//! | a tenant namespace | the tenant's namespaces, pods and Secrets |
//! | a mapped namespace | the tenant's namespaces and the pods that wait, and the pods and replicas of this one |
//! | a `NamespaceMap` | the tenant's namespaces, and the pods and replicas of those of which it says something else than before |
//! | a `ResourceOffer` | its account, and the pods that wait for room, also to be resized; if it has other nodes, all pods, and the tenant's namespaces if it is borrowed |
//! | the `NamespaceOffloading` of a mapped namespace | the tenant's namespaces |
//! | a shadow pod's spec, deletion or finalizers | the shadow pod |
//! | a remote pod | its shadow pod and account; once it is gone, the tenant's namespaces and the endpoints that named it |
//! | a record or Secret in a tenant namespace | its group of replicas; all Services, if it no longer (or now) asks for a load balancer |
//! | policies, `ForeignCluster`s, `RuntimeClass`es | what consumers may use; for whom that changed, everything |
//! | whether a node is cordoned; what is taken back of an offer | the disruption budgets |
//! | nodes, networks, our configuration, the Service of the resolver | the isolation of every mapped namespace |
//! | the network to a peer | its replicas that hold addresses |
//!
//! If a row is missing, a key is never reconciled after that change.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use liqo_api::{
    ClusterId, Key, MappedNamespace, NamespaceMap, WantedNamespace, pods, tenant_namespace,
};
use liqo_offloading_rules::namespace::mapped::{ConsumerNamespace, NamespaceKind};
use liqo_offloading_rules::pod::admission::PoolOffer;
use liqo_offloading_rules::pod::remote_pod::RemotePod;
use liqo_offloading_rules::pod::shadow_pod::ProviderShadowPod;
use liqo_offloading_rules::replica::isolation;
use liqo_offloading_rules::replica::kind::ReplicaKind;
use liqo_offloading_rules::replica::replica_source::ReplicaSource;
use serde_json::Value;

use crate::networks::NetworkToPeer;

/// Time for the consumer to take back an endpoint whose pod is gone here, before it is removed
/// here.
const ADDRESS_DELAY: Duration = Duration::from_secs(2);
/// Delay before pods that wait for room are tried after a pod ended, so that one try serves many
/// ended pods.
pub const ROOM_DELAY: Duration = Duration::from_millis(200);
/// Delay before isolation is computed again: nodes and peers often change by the dozen.
const ISOLATION_DELAY: Duration = Duration::from_millis(300);

/// The sources of a namespace that are reconciled together. Endpoints change much more often than
/// what pods reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceGroup {
    /// The objects that pods reference: `ConfigMap`s and Secrets. Objects of unknown kinds, which
    /// are refused, are among them.
    Named,
    /// Services and their endpoints.
    Services,
    Ingresses,
    /// `NetworkPolicy`s, and what is open by default.
    Policies,
    /// `PodDisruptionBudget`s.
    Budgets,
}

/// One group of replicas from one namespace of one consumer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaGroup {
    /// The tenant namespace.
    pub tenant: String,
    /// The namespace in the consumer's cluster.
    pub home: String,
    pub group: SourceGroup,
}

impl ReplicaGroup {
    fn new(tenant: &str, home: &str, group: SourceGroup) -> Self {
        Self {
            tenant: tenant.to_owned(),
            home: home.to_owned(),
            group,
        }
    }

    /// The group that this source belongs to.
    pub fn of_source(source: &ReplicaSource) -> Self {
        let group = match source.kind {
            None | Some(ReplicaKind::ConfigMap | ReplicaKind::Secret) => SourceGroup::Named,
            Some(ReplicaKind::Service | ReplicaKind::EndpointSlice) => SourceGroup::Services,
            Some(ReplicaKind::Ingress) => SourceGroup::Ingresses,
            Some(ReplicaKind::NetworkPolicy) => SourceGroup::Policies,
            Some(ReplicaKind::PodDisruptionBudget) => SourceGroup::Budgets,
        };
        Self::new(&source.key.namespace, &source.home, group)
    }
}

/// Shadow pods of a consumer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantPods {
    /// The tenant namespace.
    pub tenant: String,
    /// The namespace in the consumer's cluster; `None`: all of them.
    pub home: Option<String>,
    /// Also those that wait neither for their pod nor for a change of it.
    pub all: bool,
}

impl TenantPods {
    fn includes_pod(&self, key: &Key, shadow: &ProviderShadowPod) -> bool {
        let Self { tenant, home, all } = self;
        let is_refused = shadow.reported.reason.as_deref() == Some(pods::CHANGE_REFUSED);
        key.namespace == *tenant
            && home.as_ref().is_none_or(|home| shadow.namespace == *home)
            && (*all || shadow.reported.remote_uid.is_none() || is_refused)
    }
}

/// A key, and its queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProviderTarget {
    /// The mapped namespaces of a tenant namespace.
    Namespaces(String),
    /// The watch of a tenant namespace's Secrets.
    TenantSecrets(String),
    TenantPods(TenantPods),
    ShadowPod(Key),
    Replicas(ReplicaGroup),
    /// The account of an offer: tenant namespace and pool.
    Account(Key),
    /// The allowed usage of consumers.
    Usage,
    /// The isolation of all mapped namespaces.
    Isolation,
}

/// A target, and how long to wait before it is reconciled.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProviderTrigger {
    pub target: ProviderTarget,
    pub delay: Duration,
}

impl ProviderTarget {
    fn due_now(self) -> ProviderTrigger {
        self.due_after(Duration::ZERO)
    }

    fn due_after(self, delay: Duration) -> ProviderTrigger {
        ProviderTrigger {
            target: self,
            delay,
        }
    }
}

fn namespaces_due(tenant: &str) -> ProviderTrigger {
    ProviderTarget::Namespaces(tenant.to_owned()).due_now()
}

/// All shadow pods of a tenant are due.
fn all_pods_due(tenant: &str) -> ProviderTrigger {
    ProviderTarget::TenantPods(TenantPods {
        tenant: tenant.to_owned(),
        home: None,
        all: true,
    })
    .due_now()
}

/// The shadow pods of a tenant are due that wait for their pod, or for a change of it.
fn waiting_pods_due(tenant: &str) -> ProviderTrigger {
    ProviderTarget::TenantPods(TenantPods {
        tenant: tenant.to_owned(),
        home: None,
        all: false,
    })
    .due_now()
}

fn namespace_pods_due(tenant: &str, home: &str) -> ProviderTrigger {
    ProviderTarget::TenantPods(TenantPods {
        tenant: tenant.to_owned(),
        home: Some(home.to_owned()),
        all: true,
    })
    .due_now()
}

fn replicas_due(tenant: &str, home: &str, group: SourceGroup) -> ProviderTrigger {
    ProviderTarget::Replicas(ReplicaGroup::new(tenant, home, group)).due_now()
}

fn all_replicas_due(tenant: &str, home: &str) -> [ProviderTrigger; 5] {
    [
        SourceGroup::Named,
        SourceGroup::Services,
        SourceGroup::Ingresses,
        SourceGroup::Policies,
        SourceGroup::Budgets,
    ]
    .map(|group| replicas_due(tenant, home, group))
}

/// A tenant or mapped namespace changed.
pub fn namespace_changed(
    old: Option<&ConsumerNamespace>,
    new: Option<&ConsumerNamespace>,
) -> Vec<ProviderTrigger> {
    [old, new]
        .into_iter()
        .flatten()
        .flat_map(triggers_of_namespace)
        .collect()
}

fn triggers_of_namespace(namespace: &ConsumerNamespace) -> Vec<ProviderTrigger> {
    let tenant = tenant_namespace(&namespace.consumer);
    let mut triggers = vec![namespaces_due(&tenant)];
    match &namespace.kind {
        NamespaceKind::Tenant { .. } => {
            triggers.extend([
                all_pods_due(&tenant),
                ProviderTarget::TenantSecrets(tenant).due_now(),
            ]);
        }
        NamespaceKind::Mapped { home } => {
            // What runs in a namespace that is no longer the consumer's takes no room.
            triggers.extend([namespace_pods_due(&tenant, home), waiting_pods_due(&tenant)]);
            triggers.extend(all_replicas_due(&tenant, home));
        }
    }

    triggers
}

/// The `NamespaceMap` of a tenant namespace changed. It names all namespaces of the consumer, and
/// changes several times for each of them: what it says of the others has not changed.
pub fn map_changed(
    tenant: &str,
    old: Option<&NamespaceMap>,
    new: Option<&NamespaceMap>,
) -> Vec<ProviderTrigger> {
    let homes: BTreeSet<String> = [old, new]
        .into_iter()
        .flatten()
        .flat_map(homes_in_map)
        .collect();
    let changed = homes
        .iter()
        .filter(|home| map_entries(home, old) != map_entries(home, new));
    let content = changed.flat_map(|home| {
        [namespace_pods_due(tenant, home)]
            .into_iter()
            .chain(all_replicas_due(tenant, home))
    });
    [namespaces_due(tenant)]
        .into_iter()
        .chain(content)
        .collect()
}

/// The namespaces of the consumer that a map names.
fn homes_in_map(map: &NamespaceMap) -> impl Iterator<Item = String> {
    let reported = map
        .status
        .iter()
        .flat_map(|status| status.namespaces.keys());
    map.spec.mappings.keys().chain(reported).cloned()
}

/// Returns the entries of a map for a namespace: the wish of the consumer, and the report of this
/// cluster.
fn map_entries<'a>(
    home: &str,
    map: Option<&'a NamespaceMap>,
) -> (Option<&'a WantedNamespace>, Option<&'a MappedNamespace>) {
    (
        map.and_then(|map| map.spec.mappings.get(home)),
        map.and_then(|map| map.status.as_ref()?.namespaces.get(home)),
    )
}

/// A `ResourceOffer` changed. The mapped namespaces of borrowed pools are offloaded to their nodes.
pub fn offer_changed(
    offer: &Key,
    old: Option<&PoolOffer>,
    new: Option<&PoolOffer>,
) -> Vec<ProviderTrigger> {
    let namespaces =
        (borrowed_nodes(old) != borrowed_nodes(new)).then(|| namespaces_due(&offer.namespace));
    // Pods that wait for the nodes that it had are created again.
    let has_other_nodes = old
        .zip(new)
        .is_some_and(|(old, new)| old.nodes != new.nodes);
    let pods = if has_other_nodes {
        all_pods_due(&offer.namespace)
    } else {
        waiting_pods_due(&offer.namespace)
    };
    [pods, ProviderTarget::Account(offer.clone()).due_now()]
        .into_iter()
        .chain(namespaces)
        .collect()
}

/// The nodes of a pool that is borrowed from other clusters.
fn borrowed_nodes(offer: Option<&PoolOffer>) -> Option<&Vec<Value>> {
    offer
        .filter(|offer| offer.borrowed)
        .map(|offer| &offer.nodes)
}

/// The `NamespaceOffloading` of a brokered namespace changed. While it exists, the namespace has
/// policies that travel, and pods that do.
pub fn brokered_offloading_changed(namespace: &ConsumerNamespace) -> Vec<ProviderTrigger> {
    let tenant = tenant_namespace(&namespace.consumer);
    [namespaces_due(&tenant), waiting_pods_due(&tenant)]
        .into_iter()
        .chain(isolation_changed([namespace]))
        .collect()
}

/// A shadow pod changed. The provider itself writes the status, so a change of that alone is none.
pub fn shadow_pod_changed(
    key: &Key,
    old: Option<&ProviderShadowPod>,
    new: Option<&ProviderShadowPod>,
) -> Vec<ProviderTrigger> {
    let is_change = old
        .zip(new)
        .is_none_or(|(old, new)| new.differs_beyond_status(old));
    if is_change {
        shadow_pods_due([key.clone()])
    } else {
        Vec::new()
    }
}

/// A remote pod changed. `home_of` finds the consumer's namespace that a mapped namespace belongs
/// to.
pub fn remote_pod_changed(
    old: Option<&RemotePod>,
    new: Option<&RemotePod>,
    home_of: impl FnOnce(&str) -> Option<String>,
) -> Vec<ProviderTrigger> {
    let mut triggers = Vec::new();
    for pod in [old, new].into_iter().flatten() {
        triggers.push(ProviderTarget::ShadowPod(pod.shadow_key()).due_now());
        triggers.push(ProviderTarget::Account(pod.account().offer_key()).due_after(ROOM_DELAY));
    }
    let Some(old) = old else { return triggers };
    let tenant = tenant_namespace(&old.consumer);
    if new.is_none() {
        triggers.push(ProviderTarget::Namespaces(tenant.clone()).due_after(ROOM_DELAY));
    }
    // The consumer usually takes the endpoint back by itself.
    let lost_address =
        !old.addresses.is_empty() && new.is_none_or(|new| new.addresses != old.addresses);
    if let Some(home) = lost_address.then(|| home_of(&old.key.namespace)).flatten() {
        triggers.push(
            ProviderTarget::Replicas(ReplicaGroup {
                tenant,
                home,
                group: SourceGroup::Services,
            })
            .due_after(ADDRESS_DELAY),
        );
    }
    triggers
}

/// These shadow pods may find room, or the name that they wait for, or end for another reason than
/// before.
pub fn shadow_pods_due(keys: impl IntoIterator<Item = Key>) -> Vec<ProviderTrigger> {
    keys.into_iter()
        .map(|key| ProviderTarget::ShadowPod(key).due_now())
        .collect()
}

/// A pod ended, so these shadow pods may find room.
pub fn room_freed(keys: impl IntoIterator<Item = Key>) -> Vec<ProviderTrigger> {
    keys.into_iter()
        .map(|key| ProviderTarget::ShadowPod(key).due_after(ROOM_DELAY))
        .collect()
}

/// A record in a tenant namespace changed. `map` is the tenant's map.
pub fn record_changed(
    tenant: &str,
    old: Option<&ReplicaSource>,
    new: Option<&ReplicaSource>,
    map: impl FnOnce() -> Option<Arc<NamespaceMap>>,
) -> Vec<ProviderTrigger> {
    let mut triggers = secret_changed(old, new);
    // All Services that ask for a load balancer compete for the number that the policy gives.
    let asked_before = old.is_some_and(ReplicaSource::asks_for_balancer);
    let asks_now = new.is_some_and(ReplicaSource::asks_for_balancer);
    if asked_before != asks_now {
        triggers.extend(
            map()
                .iter()
                .flat_map(|map| map.spec.mappings.keys())
                .map(|home| replicas_due(tenant, home, SourceGroup::Services)),
        );
    }
    triggers
}

/// A Secret in a tenant namespace changed.
pub fn secret_changed(
    old: Option<&ReplicaSource>,
    new: Option<&ReplicaSource>,
) -> Vec<ProviderTrigger> {
    [old, new]
        .into_iter()
        .flatten()
        .map(|source| ProviderTarget::Replicas(ReplicaGroup::of_source(source)).due_now())
        .collect()
}

/// All Secrets of a tenant namespace are known, so replicas without a source can be recognised.
pub fn secrets_listed(tenant: &str, map: Option<&NamespaceMap>) -> Vec<ProviderTrigger> {
    map.into_iter()
        .flat_map(|map| map.spec.mappings.keys())
        .map(|home| replicas_due(tenant, home, SourceGroup::Named))
        .collect()
}

/// The Services of a namespace were created or deleted. `records` are those of all tenants.
pub fn services_changed<'a>(
    group: &ReplicaGroup,
    records: impl IntoIterator<Item = &'a ReplicaSource>,
) -> Vec<ProviderTrigger> {
    let ingresses = ReplicaGroup {
        group: SourceGroup::Ingresses,
        ..group.clone()
    };
    let has_some = records
        .into_iter()
        .any(|source| ReplicaGroup::of_source(source) == ingresses);
    if has_some {
        vec![ProviderTarget::Replicas(ingresses).due_now()]
    } else {
        Vec::new()
    }
}

/// A `PeeringPolicy`, `ForeignCluster` or `RuntimeClass` changed.
pub fn policy_changed() -> Vec<ProviderTrigger> {
    vec![ProviderTarget::Usage.due_now()]
}

/// The allowed usage of one tenant changed. `offers` are those of all tenants.
pub fn usage_changed<'a>(
    tenant: &str,
    offers: impl IntoIterator<Item = &'a Key>,
    map: Option<&NamespaceMap>,
) -> Vec<ProviderTrigger> {
    let offers = offers
        .into_iter()
        .filter(|offer| offer.namespace == tenant)
        .map(|offer| ProviderTarget::Account(offer.clone()).due_now());
    let homes = map.into_iter().flat_map(|map| map.spec.mappings.keys());
    let replicas = homes.flat_map(|home| all_replicas_due(tenant, home));
    [namespaces_due(tenant), waiting_pods_due(tenant)]
        .into_iter()
        .chain(offers)
        .chain(replicas)
        .collect()
}

/// These shadow pods are to be reconciled.
pub fn tenant_pods_changed<'a>(
    pods: &TenantPods,
    shadows: impl IntoIterator<Item = (&'a Key, &'a ProviderShadowPod)>,
) -> Vec<ProviderTrigger> {
    shadow_pods_due(
        shadows
            .into_iter()
            .filter(|(key, shadow)| pods.includes_pod(key, shadow))
            .map(|(key, _)| key.clone()),
    )
}

/// A node was cordoned or uncordoned. `records` are those of all tenants.
pub fn cordoned_changed<'a>(
    records: impl IntoIterator<Item = &'a ReplicaSource>,
) -> Vec<ProviderTrigger> {
    let groups: BTreeSet<ReplicaGroup> = records
        .into_iter()
        .map(ReplicaGroup::of_source)
        .filter(|one| one.group == SourceGroup::Budgets)
        .collect();
    groups
        .into_iter()
        .map(|group| ProviderTarget::Replicas(group).due_now())
        .collect()
}

/// Pods of this consumer's namespaces end because their room is taken back, or do not any more: no
/// budget of the consumer keeps them.
pub fn room_taken_back(tenant: &str, homes: &BTreeSet<String>) -> Vec<ProviderTrigger> {
    homes
        .iter()
        .map(|home| replicas_due(tenant, home, SourceGroup::Budgets))
        .collect()
}

/// The addresses of a node changed.
pub fn node_changed() -> Vec<ProviderTrigger> {
    vec![ProviderTarget::Isolation.due_after(ISOLATION_DELAY)]
}

/// Pods of consumers ask Liqo's resolver at another address, or there is none.
pub fn resolver_changed() -> Vec<ProviderTrigger> {
    vec![ProviderTarget::Isolation.due_now()]
}

/// Namespaces of this cluster are offloaded to other providers or namespaces.
pub fn remote_namespaces_changed() -> Vec<ProviderTrigger> {
    vec![ProviderTarget::Isolation.due_now()]
}

/// The configuration of this cluster changed.
pub fn config_changed() -> Vec<ProviderTrigger> {
    vec![ProviderTarget::Isolation.due_now()]
}

/// Something that limits mapped namespaces changed.
pub fn isolation_changed<'a>(
    all: impl IntoIterator<Item = &'a ConsumerNamespace>,
) -> Vec<ProviderTrigger> {
    all.into_iter()
        .filter_map(|namespace| match &namespace.kind {
            NamespaceKind::Mapped { home } => Some(replicas_due(
                &tenant_namespace(&namespace.consumer),
                home,
                SourceGroup::Policies,
            )),
            NamespaceKind::Tenant { .. } => None,
        })
        .collect()
}

/// The network to a peer changed. `all` are the namespaces of all consumers.
pub fn network_changed(
    peer: &ClusterId,
    old: Option<&NetworkToPeer>,
    new: Option<&NetworkToPeer>,
    all: &BTreeMap<String, Arc<ConsumerNamespace>>,
) -> Vec<ProviderTrigger> {
    let tenant = tenant_namespace(peer);
    let mut triggers = Vec::new();
    for namespace in all.values().filter(|namespace| namespace.consumer == *peer) {
        if let NamespaceKind::Mapped { home } = &namespace.kind {
            triggers.extend(
                [SourceGroup::Services, SourceGroup::Policies]
                    .map(|group| replicas_due(&tenant, home, group)),
            );
        }
    }
    // The prefixes of one peer are not the internet for any consumer.
    if public_prefixes(old) != public_prefixes(new) {
        triggers.push(ProviderTarget::Isolation.due_after(ISOLATION_DELAY));
    }
    triggers
}

fn public_prefixes(network: Option<&NetworkToPeer>) -> BTreeSet<IpNet> {
    isolation::public_networks(network.into_iter().flat_map(NetworkToPeer::prefixes))
}

#[cfg(test)]
mod tests;

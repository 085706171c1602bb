//! Computes the offer to each cluster. Pure: it calls the ledger of `liqo-sharing` with the
//! policies that name this plugin, as if each said that it lends what this cluster borrows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use liqo_api::{
    ClusterId, DEFAULT_POOL, OffersSource, PeerSelector, PeeringPolicy, PeeringPolicySpec, Provide,
    Source,
    policies::PolicyPeer,
    requests::{MAX_RESOURCE_NAME_LEN, MAX_RESOURCES, is_bounded},
};
use liqo_quantity::{Quantity, ResourceList};
use liqo_resource_plugin::{Change, Generation, Pool, arguments::NEEDED};
use liqo_sharing::decide::{
    provider::decide_offers,
    snapshot::{ProviderPlan, ProviderSnapshot},
};
use tokio::time::Instant;

/// Borrowed resources come through this cluster and at least one more.
const LEAST_HOPS: u8 = 2;

/// One pool of what this cluster borrows.
#[derive(Clone, Debug, PartialEq)]
pub struct LentPool {
    pub name: String,
    /// Number of clusters that the resources come through, including this one.
    pub hops: u8,
    pub resources: ResourceList,
}

/// The offer to each cluster.
pub struct CustomerOffers {
    ledger: LendingLedger,
    /// The clusters with an offer under a policy that names this plugin.
    customers: BTreeMap<ClusterId, Vec<LentPool>>,
    /// The offer to a cluster that nobody knows yet.
    newcomer: Vec<LentPool>,
}

impl CustomerOffers {
    /// Splits what this cluster borrows between all its customers. Policies name this plugin by its
    /// Service `service`.
    pub fn from_snapshot(snapshot: ProviderSnapshot, service: &str, now: Instant) -> Self {
        let ledger = LendingLedger::from_snapshot(snapshot, service);
        let customers = ledger.customer_offers(now);
        // No cluster has this key.
        let newcomer = ledger.offer_to(&ClusterId::of_public_key(&[0; 32]), now);
        Self {
            ledger,
            customers,
            newcomer,
        }
    }

    /// The offer to this cluster. One without a request is offered what it would get if it asked
    /// for everything.
    pub fn offer_of_cluster(&self, cluster: &str, now: Instant) -> Vec<LentPool> {
        match cluster.parse::<ClusterId>() {
            Ok(id) => self
                .customers
                .get(&id)
                .cloned()
                .unwrap_or_else(|| self.ledger.offer_to(&id, now)),
            // Earlier versions of Liqo have IDs of another form. No offer comes through such a
            // cluster.
            Err(_) => self.newcomer.clone(),
        }
    }

    /// The clusters whose offers differ in `new`.
    pub fn changes_to(&self, new: &Self) -> Vec<Change> {
        if self.newcomer != new.newcomer {
            return vec![Change::All];
        }
        let known: BTreeSet<&ClusterId> =
            self.customers.keys().chain(new.customers.keys()).collect();
        known
            .into_iter()
            .filter(|cluster| self.customers.get(*cluster) != new.customers.get(*cluster))
            .map(|cluster| Change::Cluster(cluster.to_string()))
            .collect()
    }
}

/// The ledger of this cluster, in which policies that name this plugin lend what is borrowed.
struct LendingLedger {
    snapshot: ProviderSnapshot,
    /// Names of these policies.
    policies: BTreeSet<String>,
}

impl LendingLedger {
    fn from_snapshot(mut snapshot: ProviderSnapshot, service: &str) -> Self {
        let mut policies = BTreeSet::new();
        for policy in snapshot
            .policies
            .iter_mut()
            .filter(|policy| names_plugin(policy, service))
        {
            policies.insert(policy.metadata.name.clone().unwrap_or_default());
            let provide = lends_on(&policy.spec.provide);
            Arc::make_mut(policy).spec.provide = provide;
        }
        // Thresholds and notices are the manager's, so the offers that it wrote do not count here.
        // The others are those that it received.
        let ProviderSnapshot {
            offers, namespaces, ..
        } = &mut snapshot;
        offers.retain(|(key, _)| !namespaces.contains_key(&key.namespace));
        Self { snapshot, policies }
    }

    fn is_customer(&self, snapshot: &ProviderSnapshot, cluster: &ClusterId) -> bool {
        let name = snapshot
            .policy(cluster)
            .and_then(|policy| policy.metadata.name.as_ref());
        name.is_some_and(|name| self.policies.contains(name))
    }

    /// The offers of all clusters that requested something under a policy that names this plugin.
    fn customer_offers(&self, now: Instant) -> BTreeMap<ClusterId, Vec<LentPool>> {
        let mut customers = pools_by_consumer(decide_offers(&self.snapshot, now));
        customers.retain(|cluster, _| self.is_customer(&self.snapshot, cluster));
        customers
    }

    /// The offer of one cluster. If its policy names another source, it is offered what it would
    /// get if the policy named this plugin.
    fn offer_to(&self, cluster: &ClusterId, now: Instant) -> Vec<LentPool> {
        let peer = self
            .snapshot
            .peers
            .get(cluster)
            .cloned()
            .unwrap_or_else(|| PolicyPeer::new(cluster, None));
        let mut asked = self.snapshot.clone().if_it_requested(peer);
        if !self.is_customer(&asked, cluster) {
            asked.policies.push(Arc::new(policy_of(cluster)));
        }
        pools_by_consumer(decide_offers(&asked, now))
            .remove(cluster)
            .unwrap_or_else(|| vec![empty_offer()])
    }
}

/// Whether a policy names the plugin with this Service: `service:port` or `service.namespace:port`.
fn names_plugin(policy: &PeeringPolicy, service: &str) -> bool {
    let plugin = policy.spec.provide.source.plugin.as_ref();
    plugin.and_then(|plugin| plugin.address.split(['.', ':']).next()) == Some(service)
}

/// The `Provide` of a policy that names this plugin: everything that is borrowed, within its own
/// caps. Use beyond that is not part of it: the manager gives notice.
fn lends_on(provide: &Provide) -> Provide {
    Provide {
        percentage: 100,
        source: Source {
            offers: Some(OffersSource::default()),
            ..Source::default()
        },
        caps: provide.caps.clone(),
        weight: provide.weight,
        absence_seconds: provide.absence_seconds,
        usage: provide.usage.clone(),
        notice_seconds: 0,
        ..Provide::default()
    }
}

/// A policy for one cluster, whatever other policies say.
fn policy_of(cluster: &ClusterId) -> PeeringPolicy {
    let peers = PeerSelector {
        cluster_ids: vec![cluster.clone()],
        ..PeerSelector::default()
    };
    let provide = lends_on(&Provide::default());
    PeeringPolicy::new(
        "",
        PeeringPolicySpec {
            priority: i32::MAX,
            peers,
            provide,
            ..PeeringPolicySpec::default()
        },
    )
}

/// The pools of each consumer, in the order of their names.
fn pools_by_consumer(plan: ProviderPlan) -> BTreeMap<ClusterId, Vec<LentPool>> {
    let mut all: BTreeMap<ClusterId, Vec<LentPool>> = BTreeMap::new();
    for write in plan.writes {
        let (name, hops) = (write.spec.pool, write.spec.hops.max(LEAST_HOPS));
        all.entry(write.consumer).or_default().push(LentPool {
            name,
            hops,
            resources: bounded_resources(write.spec.resource_quota.hard),
        });
    }
    for pools in all.values_mut() {
        pools.sort_by(|one, other| one.name.cmp(&other.name));
    }
    all
}

/// Providers choose the names of resources. With too many of them, those that every pod needs come
/// first.
fn bounded_resources(mut resources: ResourceList) -> ResourceList {
    if !is_bounded(&resources) {
        let others: BTreeSet<String> = resources
            .names()
            .filter(|name| !NEEDED.contains(name) && name.len() <= MAX_RESOURCE_NAME_LEN)
            .map(str::to_owned)
            .collect();
        let kept: BTreeSet<String> = others
            .into_iter()
            .take(MAX_RESOURCES - NEEDED.len())
            .collect();
        resources.retain(|name, _| NEEDED.contains(&name) || kept.contains(name));
    }
    resources
}

/// An offer of nothing says so: Liqo takes an empty answer for a failure.
fn empty_offer() -> LentPool {
    let resources = NEEDED.iter().map(|name| (*name, Quantity::ZERO)).collect();
    LentPool {
        name: DEFAULT_POOL.to_owned(),
        hops: LEAST_HOPS,
        resources,
    }
}

/// The answer to `ReadResources`. Before the third generation there is only one pool, so it is the
/// sum.
pub fn answer_in_generation(generation: Generation, lent: &[LentPool]) -> Vec<Pool> {
    if generation != Generation::P3 {
        return vec![Pool::unnamed(bounded_resources(
            lent.iter().map(|pool| &pool.resources).sum(),
        ))];
    }
    lent.iter()
        .map(|lent| Pool {
            name: Some(lent.name.clone()).filter(|name| name != DEFAULT_POOL),
            hops: lent.hops,
            ..Pool::unnamed(lent.resources.clone())
        })
        .collect()
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;

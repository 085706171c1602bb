//! Composes offers, withdraws those of pools that no longer exist, and deletes those without a
//! request.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::core::v1::NodeSelector;
use liqo_api::Key;
use liqo_api::{
    ClusterId, ContractClasses, FreeNodes, LargestPods, PoolBy, PriceList, Provide, ResourceList,
    ResourceOffer, ResourceOfferSpec, ResourceQuota, Time, Usage,
};
use liqo_quantity::unit_of;
use tokio::time::Instant;

use super::{
    allocations::{PoolAllocation, PoolSource},
    earlier_of, notice_end,
    pool_usage::PoolUsage,
};
use crate::decide::{
    free_capacity,
    pools::{self, NodePartition},
    publish::{MIN_REWRITE_INTERVAL, OfferState},
    reduce::LocalNode,
    snapshot::{OfferWrite, PolicyVersion, ProviderPlan, ProviderSnapshot, RecentWrite, Requester},
    upstream,
};

pub struct Composer<'a> {
    snapshot: &'a ProviderSnapshot,
    requesters: &'a [Requester<'a>],
    /// All consumers of a pool get the same description, except those that do not get all of its
    /// nodes.
    descriptions: BTreeMap<NodesDescriptionKey<'a>, NodesDescription>,
    /// The clusters behind any of the nodes.
    behind: BTreeSet<ClusterId>,
}

/// Identifies a description.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct NodesDescriptionKey<'a> {
    source: PoolSource,
    policy_pool: &'a str,
    /// The node, if it is a pool of its own.
    node: Option<&'a str>,
    /// The consumer, if there are nodes that it does not get.
    consumer: Option<&'a ClusterId>,
}

/// The description of a pool's nodes.
struct NodesDescription {
    labels: BTreeMap<String, String>,
    node_selector: Option<NodeSelector>,
    path: Vec<ClusterId>,
    hops: u8,
    /// Free resources of the nodes. `None` if it is unknown on which nodes the pods of the pool
    /// run, or what one of them has free.
    free_nodes: Option<FreeNodes>,
    /// Whether a cluster behind takes back a part of what a node has.
    is_taken_back: bool,
}

fn description_key<'a>(
    allocation: &'a PoolAllocation,
    behind: &BTreeSet<ClusterId>,
) -> NodesDescriptionKey<'a> {
    // What a plugin offers to one consumer says nothing about what it offers to another one.
    let is_own = allocation.borrowed_hops.is_some() || behind.contains(allocation.consumer);
    let consumer = Some(allocation.consumer).filter(|_| is_own);
    NodesDescriptionKey {
        source: allocation.source,
        policy_pool: &allocation.policy_pool,
        node: allocation.single_node(),
        consumer,
    }
}

impl NodesDescription {
    fn of_pool(
        snapshot: &ProviderSnapshot,
        allocation: &PoolAllocation,
        partitions: &[NodePartition],
    ) -> Self {
        let of_pool = nodes_of(allocation, partitions);
        let nodes = of_pool.iter().map(|(_, node)| *node);
        let mut labels = snapshot.cluster_labels.clone();
        labels.extend(free_capacity::uniform_labels(nodes.clone()));
        let node_selector = match (allocation.source, allocation.borrowed_hops) {
            (PoolSource::Policy(_), _) => {
                let by = allocation
                    .single_node()
                    .map_or(allocation.policy.granularity.by, |_| PoolBy::Node);
                pools::node_selector(&of_pool, allocation.policy, by)
            }
            (PoolSource::Plugin, Some(_)) => Some(pools::borrowed_selector(&of_pool)),
            (PoolSource::Plugin, None) => None,
        };
        let is_taken_back = nodes.clone().any(upstream::is_taken_back);
        let (path, hops) = upstream::offer_path(&snapshot.own, nodes);
        // A borrowed pool stays one while it has no nodes.
        let hops = hops.max(allocation.borrowed_hops.unwrap_or(hops));
        // A plugin may count on nodes that do not exist yet.
        let free_nodes = if allocation.is_of_plugin() {
            None
        } else {
            free_capacity::free_nodes(&of_pool, &snapshot.pods)
        };
        Self {
            labels,
            node_selector,
            path,
            hops,
            free_nodes,
            is_taken_back,
        }
    }
}

fn nodes_of<'a>(
    allocation: &PoolAllocation,
    partitions: &'a [NodePartition<'a>],
) -> Vec<(&'a str, &'a LocalNode)> {
    let all = partitions
        .iter()
        .flat_map(|partition| partition.nodes.iter().map(move |node| (partition, *node)));
    let in_pool = all
        .filter(|(partition, (_, node))| allocation.has_node(partition, node))
        .map(|(_, node)| node);
    in_pool
        .filter(|(name, _)| allocation.single_node().is_none_or(|node| node == *name))
        .collect()
}

impl<'a> Composer<'a> {
    pub fn new(
        snapshot: &'a ProviderSnapshot,
        requesters: &'a [Requester<'a>],
        allocations: &'a [PoolAllocation],
        partitions: &[NodePartition],
    ) -> Self {
        let behind: BTreeSet<ClusterId> = partitions
            .iter()
            .flat_map(|partition| partition.behind.iter().cloned())
            .collect();
        let mut descriptions = BTreeMap::new();
        for allocation in allocations {
            let key = description_key(allocation, &behind);
            descriptions
                .entry(key)
                .or_insert_with(|| NodesDescription::of_pool(snapshot, allocation, partitions));
        }
        Self {
            snapshot,
            requesters,
            descriptions,
            behind,
        }
    }

    pub fn offer_state(&self, allocation: &PoolAllocation) -> OfferState {
        let requester = &self.requesters[allocation.requester];
        let recent_write = self.snapshot.recent_write(requester, &allocation.pool);
        let offer = requester.offers.get(allocation.pool.as_str());
        let published = offer.map(|offer| &offer.spec.resource_quota.hard);
        let outdated = offer.is_some_and(|offer| {
            let hard = offer.spec.resource_quota.hard.clone();
            offer.spec != self.offer_spec(allocation, hard, self.allowed_prices(allocation))
        });
        let policy_changed = self.policy_changed(requester);
        // The end of an old notice must be removed at once: the next notice would be over from the
        // beginning.
        let notice_ends = offer.is_some_and(|ResourceOffer { spec, .. }| {
            (allocation.reclaim_at.is_none() && spec.reclaim_timestamp.is_some())
                || (allocation.drain_at.is_none() && spec.drain_timestamp.is_some())
        });
        // A plugin says when something changes. What it promises beyond the nodes changes with
        // every pod.
        let follows_plugin = allocation.is_of_plugin() && !allocation.is_cut;
        // A provider behind us decides how often this is, so only one of them comes early.
        let may_be_early = recent_write.is_none_or(|write| !write.is_early);
        let loses_room =
            may_be_early && offer.is_some_and(|offer| self.loses_room(allocation, offer));
        let urgent = policy_changed || notice_ends || follows_plugin || loses_room;
        OfferState {
            published: published
                .map(|published| recent_write.map_or(published, |write| &write.hard).clone()),
            written: recent_write.map(|write| write.at).filter(|_| !urgent),
            outdated,
            // A new offer names its contract, so that one is proposed first.
            target: if requester.standing.waits_for_proposal && offer.is_none() {
                ResourceList::new()
            } else {
                allocation.target.clone()
            },
            in_use: allocation.floor.clone(),
            requested: requester.requested(),
            // Below the threshold the offer would stay, and no pod would end.
            threshold: if policy_changed
                || allocation.is_cut
                || allocation.is_reclaimed()
                || !allocation.reserved.is_empty()
            {
                0
            } else {
                allocation.policy.threshold()
            },
        }
    }

    /// Whether single nodes have less room than the offer says, because a cluster behind takes it
    /// back: pods that end there would be moved to where there is none. More room has time.
    fn loses_room(&self, allocation: &PoolAllocation, offer: &ResourceOffer) -> bool {
        if !self.description(allocation).is_taken_back {
            return false;
        }
        let said = &offer.spec.largest_pods;
        let now = self.largest_pods(allocation, &offer.spec.resource_quota.hard);
        *said != now && now.iter().all(|free| said.has_room(free).is_ok())
    }

    fn description<'b>(&'b self, allocation: &'b PoolAllocation<'b>) -> &'b NodesDescription {
        &self.descriptions[&description_key(allocation, &self.behind)]
    }

    /// Whether the policy of a consumer has changed since the last decision.
    fn policy_changed(&self, requester: &Requester) -> bool {
        let applied = self
            .snapshot
            .applied_policies
            .get(&requester.tenant.consumer);
        applied.is_some_and(|applied| {
            requester
                .policy
                .is_none_or(|policy| *applied != PolicyVersion::of_policy(policy))
        })
    }

    /// The prices that the offer may have now. An offer that was just written keeps them, unless
    /// the policy has changed: prices change no more often than an offer is usually rewritten, also
    /// where its amounts follow a plugin or make room at once.
    fn allowed_prices(&self, allocation: &PoolAllocation) -> Option<PriceList> {
        self.recent_prices(allocation)
            .map_or(&allocation.prices, |write| &write.prices)
            .clone()
    }

    /// The last write, if the prices that it wrote must stay for now.
    fn recent_prices(&self, allocation: &PoolAllocation) -> Option<&RecentWrite> {
        let requester = &self.requesters[allocation.requester];
        let write = self.snapshot.recent_write(requester, &allocation.pool)?;
        let exists = requester.offers.contains_key(allocation.pool.as_str());
        (exists && !self.policy_changed(requester)).then_some(write)
    }

    /// The time until the offer gets its new prices, if they wait.
    pub fn prices_wait(&self, allocation: &PoolAllocation, now: Instant) -> Option<Duration> {
        let write = self
            .recent_prices(allocation)
            .filter(|write| write.prices != allocation.prices)?;
        Some(MIN_REWRITE_INTERVAL.saturating_sub(now.saturating_duration_since(write.at)))
    }

    fn offer_spec(
        &self,
        allocation: &PoolAllocation,
        hard: ResourceList,
        prices: Option<PriceList>,
    ) -> ResourceOfferSpec {
        let own = &self.snapshot.own;
        let standing = &self.requesters[allocation.requester].standing;
        let bound = standing
            .bound
            .filter(|terms| terms.amounts_of_pool(&allocation.pool).is_some());
        let classes = bound.map_or_else(
            || contract_classes(&allocation.policy.usage),
            |terms| terms.classes.clone(),
        );
        let description = self.description(allocation);
        ResourceOfferSpec {
            cluster_id: own.clone(),
            pool: allocation.pool.clone(),
            largest_pods: self.largest_pods(allocation, &hard),
            resource_quota: ResourceQuota { hard },
            labels: description.labels.clone(),
            path: description.path.clone(),
            hops: description.hops,
            storage_classes: classes.storage,
            ingress_classes: classes.ingress,
            load_balancer_classes: classes.load_balancer,
            node_selector: description.node_selector.clone(),
            notice_seconds: Some(allocation.notice_seconds),
            withdrawal_timestamp: None,
            reclaim_timestamp: allocation.reclaim_at.map(Time),
            reclaim_to: self.reclaim_to(allocation),
            drain_timestamp: allocation.drain_at.map(Time),
            // An amendment that is not signed changes nothing.
            prices: bound.map_or(prices, |terms| terms.prices.get(&allocation.pool).cloned()),
            contract: standing.offer_contract(&allocation.pool),
        }
    }

    /// Amounts of the offer after its notice. The published amounts stay unless they differ by more
    /// than the threshold.
    fn reclaim_to(&self, allocation: &PoolAllocation) -> Option<ResourceList> {
        let requester = &self.requesters[allocation.requester];
        let due = allocation.reclaim_to.as_ref()?;
        let now: ResourceList = due
            .iter()
            .map(|(name, amount)| (name, amount.round_down(unit_of(name))))
            .collect();
        let said = requester
            .offers
            .get(allocation.pool.as_str())
            .and_then(|offer| offer.spec.reclaim_to.as_ref());
        let threshold = if self.policy_changed(requester) {
            0
        } else {
            allocation.policy.threshold()
        };
        Some(
            said.filter(|said| !said.differs_by_more_than(&now, u32::from(threshold)))
                .cloned()
                .unwrap_or(now),
        )
    }

    /// The largest pods that nodes can take. What the offer says stays while it holds.
    fn largest_pods(&self, allocation: &PoolAllocation, hard: &ResourceList) -> LargestPods {
        let requester = &self.requesters[allocation.requester];
        let description = self.description(allocation);
        let now = description
            .free_nodes
            .as_ref()
            .map(|free| free.select_largest(hard))
            .unwrap_or_default();
        let said = requester
            .offers
            .get(allocation.pool.as_str())
            .map(|offer| &offer.spec.largest_pods);
        let threshold = if self.policy_changed(requester) {
            0
        } else {
            allocation.policy.threshold()
        };
        said.filter(|said| said.still_holds(&now, u32::from(threshold)))
            .cloned()
            .unwrap_or(now)
    }

    pub fn offer_write(
        &self,
        allocation: &PoolAllocation,
        hard: ResourceList,
        grows: bool,
    ) -> OfferWrite {
        let requester = &self.requesters[allocation.requester];
        OfferWrite {
            namespace: requester.namespace.to_owned(),
            namespace_uid: requester.tenant.uid.clone(),
            consumer: requester.tenant.consumer.clone(),
            spec: self.offer_spec(allocation, hard, self.allowed_prices(allocation)),
            exists: requester.offers.contains_key(allocation.pool.as_str()),
            grows,
        }
    }
}

fn contract_classes(usage: &Usage) -> ContractClasses {
    ContractClasses {
        storage: usage.storage_classes.clone(),
        ingress: usage.ingress_classes.clone(),
        load_balancer: usage.load_balancer_classes.clone(),
    }
}

/// Withdraws the offers of pools that must not exist: first with a notice, then by deletion.
/// Returns the time until the next notice ends.
pub fn withdraw_offers(
    snapshot: &ProviderSnapshot,
    requesters: &[Requester],
    allocations: &[PoolAllocation],
    usage: &PoolUsage,
    plan: &mut ProviderPlan,
) -> Option<Duration> {
    let wanted: BTreeSet<(usize, &str)> = allocations
        .iter()
        .map(|allocation| (allocation.requester, allocation.pool.as_str()))
        .collect();
    let mut requeue_after = None;
    for (index, requester) in requesters.iter().enumerate() {
        for (&pool, offer) in requester
            .offers
            .iter()
            .filter(|(pool, _)| !wanted.contains(&(index, **pool)))
        {
            let in_use = usage.withdrawn_in_use.contains(&(index, pool));
            // A consumer that fell silent during a notice has no claim to the rest of it.
            let promised_end = offer.spec.withdrawal_timestamp.as_ref();
            let Some(end) =
                promised_end.filter(|end| !requester.is_absent() || end.0 <= snapshot.wall_time)
            else {
                // The notice of a deleted policy still applies.
                let promised = offer
                    .spec
                    .notice_seconds
                    .unwrap_or(Provide::default().notice_seconds);
                let notice = requester
                    .policy
                    .map_or(promised, |policy| policy.spec.provide.notice_seconds);
                let notice = requester
                    .standing
                    .bound
                    .map_or(notice, |terms| terms.notice_seconds);
                // Its silence was the notice.
                let seconds = if requester.is_absent() { 0 } else { notice };
                let announced = requester
                    .standing
                    .ends_at
                    .filter(|_| !requester.is_absent());
                let by_notice = notice_end(snapshot.wall_time, seconds);
                // A broker promises no more time than it has. What it signed stays as it is.
                let upstream = upstream::ends_at(snapshot, &offer.spec)
                    .filter(|_| requester.standing.bound.is_none());
                let end = Some(Time(announced.unwrap_or_else(|| {
                    upstream.map_or(by_notice, |end| end.min(by_notice))
                })));
                let spec = ResourceOfferSpec {
                    withdrawal_timestamp: end,
                    ..offer.spec.clone()
                };
                plan.writes.insert(
                    0,
                    OfferWrite {
                        namespace: requester.namespace.to_owned(),
                        namespace_uid: requester.tenant.uid.clone(),
                        consumer: requester.tenant.consumer.clone(),
                        spec,
                        exists: true,
                        grows: false,
                    },
                );
                continue;
            };
            let left =
                Duration::try_from(end.0.duration_since(snapshot.wall_time)).unwrap_or_default();
            // The offer of an absent consumer says why its pods end, so it stays until they are
            // gone. Under a contract, the consumer sees that the notice was kept.
            let is_idle = !in_use && offer.spec.contract.is_none();
            if is_idle || (left.is_zero() && (!requester.is_absent() || !in_use)) {
                plan.deletions.push(Key::new(requester.namespace, pool));
            } else if !left.is_zero() {
                requeue_after = earlier_of(requeue_after, Some(left));
            }
        }
    }
    requeue_after
}

/// Offers in tenant namespaces without a request, and offers with a wrong name.
pub fn offers_to_delete(snapshot: &ProviderSnapshot, requesters: &[Requester]) -> Vec<Key> {
    let answered: BTreeSet<&str> = requesters
        .iter()
        .map(|requester| requester.namespace)
        .collect();
    let tenants: BTreeSet<&str> = snapshot.tenants().map(|(namespace, _)| namespace).collect();
    let ours = snapshot
        .offers
        .iter()
        .filter(|(key, _)| tenants.contains(key.namespace.as_str()));
    let existing = ours.filter(|(_, offer)| offer.metadata.deletion_timestamp.is_none());
    let mut deletions: Vec<Key> = existing
        .filter(|(key, offer)| {
            !answered.contains(key.namespace.as_str()) || offer.spec.pool != key.name
        })
        .map(|(key, _)| key.clone())
        .collect();
    deletions.sort();
    deletions
}

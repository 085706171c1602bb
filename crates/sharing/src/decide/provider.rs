//! The provider side's decision: from a snapshot of the cluster to offers and conditions.
//!
//! ```text
//!   partitions    nodes that every policy puts into the same pools
//!   allocations   the pools that must exist, one for each consumer and pool
//!   usage         charges pods to allocations; the rest of each partition is free
//!   shares        splits each partition's budget between the claimants
//!   reclaim       gives notice where more is used than allowed
//!   pricing       what each pool costs now
//!   overcommit    compares what plugins promise with the nodes
//!   node_shares   divides the pools of consumers that asked for one pool for each node
//!   publish       selects the offers that are worth a write
//!   contracts     proposes, amends and ends contracts
//! ```

mod allocations;
#[cfg(test)]
mod chains;
mod compose;
mod conditions;
mod contracts;
#[cfg(test)]
mod histories;
mod node_pools;
mod node_shares;
mod overcommit;
mod policy_status;
mod pool_usage;
mod pricing;
mod reserve;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use liqo_api::{ClusterId, PeeringPolicy, Provide, Quantity, ResourceList};
use tokio::time::Instant;

use self::{
    allocations::{PoolAllocation, PoolSource, pool_allocations},
    compose::{Composer, offers_to_delete, withdraw_offers},
    conditions::add_conditions,
    node_pools::NodeIndex,
    pool_usage::PoolUsage,
    pricing::PartitionUse,
};
use super::{
    granularity::Division,
    pools::{self, Lender, NodePartition, PolicyIndex},
    publish::{self, OfferState},
    shares::{self, Claimant, PartitionBudget, Shares},
    snapshot::{ProviderPlan, ProviderSnapshot, Requester},
    upstream,
};

/// Computes all offers and conditions of the provider side.
pub fn decide_offers(snapshot: &ProviderSnapshot, now: Instant) -> ProviderPlan {
    let requesters = snapshot.requesters();
    let local = local_policies(&requesters);
    let policies: Vec<&Provide> = local.iter().map(|policy| &policy.spec.provide).collect();
    let nodes = upstream::lendable_nodes(snapshot);
    let lenders = policy_lenders(snapshot, &local);
    let partitions = pools::partition_nodes(
        nodes.iter().map(|(name, node)| (*name, node.as_ref())),
        &lenders,
    );
    let node_index = NodeIndex::new(&requesters, &partitions);
    let divisions = node_index.divide_offers(snapshot, &requesters, &local);
    let mut allocations = pool_allocations(
        snapshot,
        &requesters,
        &local,
        &divisions,
        &node_index,
        &policies,
        &partitions,
    );
    let mut usage = PoolUsage::count_pods(snapshot, &requesters, &mut allocations, &partitions);
    let claimants = claimants_with_limits(
        &requesters,
        &local,
        &usage.partition_budgets(&allocations, &partitions),
    );
    let entitlements =
        charge_waiting_pods(&mut usage, &allocations, &partitions, &claimants, &policies);
    let budgets = reserve::budgets_with_reservations(
        &usage,
        &allocations,
        &partitions,
        &claimants,
        &policies,
    );
    let overused: Vec<BTreeSet<PolicyIndex>> = budgets
        .iter()
        .map(|budget| overusing_policies(budget, &claimants, &policies))
        .collect();
    let mut requeue_after = reclaim_overuse(
        snapshot,
        &mut allocations,
        &overused,
        &entitlements,
        &requesters,
        &partitions,
    );
    let budgets = reserve::budgets_with_reservations(
        &usage,
        &allocations,
        &partitions,
        &claimants,
        &policies,
    );
    let shares = shares::compute_shares(&budgets, &entitlements, &claimants, &policies);
    set_targets(&mut allocations, &partitions, &shares);
    let excess = overcommit::limit_plugin_promises(&mut allocations, &usage, &partitions);
    let limits = PartitionLimits {
        partitions: &partitions,
        budgets: &budgets,
        claimants: &claimants,
        policies: &policies,
    };
    let in_use = limits.priced_use(&usage);
    requeue_after = earlier_of(
        requeue_after,
        pricing::set_prices(
            snapshot,
            &requesters,
            &mut allocations,
            &partitions,
            &in_use,
        ),
    );
    let allocations = node_shares::divide_by_node(allocations, &usage, &shares, &entitlements);
    requeue_after = earlier_of(
        requeue_after,
        divisions
            .iter()
            .filter_map(|division| division.changes_in)
            .min(),
    );

    let decided = DecidedPools {
        requesters: &requesters,
        divisions: &divisions,
        allocations: &allocations,
        usage: &usage,
        excess: &excess,
        limits,
    };
    let mut plan = decided.compose_plan(snapshot, now);
    plan.requeue_after = earlier_of(plan.requeue_after, requeue_after);
    plan
}

/// Charges pods without a node to their consumers' entitlements, and returns these.
fn charge_waiting_pods(
    usage: &mut PoolUsage,
    allocations: &[PoolAllocation],
    partitions: &[NodePartition],
    claimants: &[Claimant],
    policies: &[&Provide],
) -> Shares {
    let budgets =
        reserve::budgets_with_reservations(usage, allocations, partitions, claimants, policies);
    let entitlements = shares::entitlements(&budgets, claimants, policies);
    let capacities = budgets
        .iter()
        .map(|budget| budget.capacity(claimants, policies))
        .collect();
    usage.charge_waiting(allocations, partitions, &entitlements, capacities);
    entitlements
}

/// Each pool is offered the consumer's shares of the partitions that it includes.
fn set_targets(allocations: &mut [PoolAllocation], partitions: &[NodePartition], shares: &Shares) {
    for allocation in allocations
        .iter_mut()
        .filter(|allocation| !allocation.is_of_plugin())
    {
        let of_pool = partitions
            .iter()
            .zip(shares)
            .filter(|(partition, _)| allocation.includes(partition));
        let sum: ResourceList = of_pool
            .filter_map(|(_, shares)| shares.get(&allocation.requester))
            .sum();
        // Pods of a pool whose last node is gone are charged to no partition.
        allocation.target = sum.max(&allocation.floor);
    }
}

/// What limits the pools of each partition.
struct PartitionLimits<'a> {
    partitions: &'a [NodePartition<'a>],
    budgets: &'a [PartitionBudget],
    claimants: &'a [Claimant],
    policies: &'a [&'a Provide],
}

impl PartitionLimits<'_> {
    /// The utilization of each partition, if any policy has prices. Most clusters have none.
    fn priced_use(&self, usage: &PoolUsage) -> Vec<PartitionUse<'_>> {
        let has_prices = self
            .policies
            .iter()
            .any(|policy| policy.prices.is_some() || pricing::offers_margin(policy).is_some());
        if !has_prices {
            return Vec::new();
        }
        let promised = self
            .budgets
            .iter()
            .map(|budget| budget.max_promised(self.claimants, self.policies));
        usage.of_partitions(self.partitions, promised)
    }

    /// The most that these allocations of a component may be promised together.
    fn total_promised(&self, members: &[&PoolAllocation]) -> ResourceList {
        // A plugin's amounts have no limit.
        let of_plugins = members
            .iter()
            .filter(|member| member.is_of_plugin())
            .map(|member| &member.target)
            .sum();
        let shared = self
            .partitions
            .iter()
            .zip(self.budgets)
            .filter(|(partition, _)| members.iter().any(|member| member.includes(partition)));
        shared.fold(of_plugins, |sum: ResourceList, (_, budget)| {
            sum + &budget.max_promised(self.claimants, self.policies)
        })
    }
}

/// What every pool should get, before it is compared with the present offers.
struct DecidedPools<'a> {
    requesters: &'a [Requester<'a>],
    divisions: &'a [Division],
    allocations: &'a [PoolAllocation<'a>],
    usage: &'a PoolUsage<'a>,
    excess: &'a BTreeMap<usize, overcommit::OvercommitNote>,
    limits: PartitionLimits<'a>,
}

impl DecidedPools<'_> {
    fn compose_plan(&self, snapshot: &ProviderSnapshot, now: Instant) -> ProviderPlan {
        let (requesters, allocations) = (self.requesters, self.allocations);
        let composer = Composer::new(snapshot, requesters, allocations, self.limits.partitions);
        let mut plan = ProviderPlan {
            deletions: offers_to_delete(snapshot, requesters),
            ..ProviderPlan::default()
        };
        let states: Vec<OfferState> = allocations
            .iter()
            .map(|allocation| composer.offer_state(allocation))
            .collect();
        let next_prices = allocations
            .iter()
            .filter_map(|allocation| composer.prices_wait(allocation, now))
            .min();
        add_conditions(
            snapshot,
            requesters,
            self.divisions,
            allocations,
            &states,
            self.excess,
            &mut plan,
        );
        let next_write = self.add_writes(&composer, states, now, &mut plan);
        let next_absence = requesters
            .iter()
            .filter_map(|requester| requester.absent_in)
            .filter(|left| !left.is_zero())
            .min();
        let next_withdrawal =
            withdraw_offers(snapshot, requesters, allocations, self.usage, &mut plan);
        let next_contract = contracts::add_contracts(snapshot, requesters, allocations, &mut plan);
        plan.requeue_after = [
            next_prices,
            next_write,
            next_absence,
            next_withdrawal,
            next_contract,
        ]
        .into_iter()
        .flatten()
        .min();
        plan.policy_statuses = policy_status::policy_statuses(snapshot, requesters, allocations);
        plan
    }

    /// Adds the offers that are worth a write. Returns the time until the next one.
    fn add_writes(
        &self,
        composer: &Composer,
        mut states: Vec<OfferState>,
        now: Instant,
        plan: &mut ProviderPlan,
    ) -> Option<Duration> {
        let mut next = None;
        for members in connected_allocations(self.allocations, self.limits.partitions) {
            let of_component: Vec<&PoolAllocation> = members
                .iter()
                .map(|&member| &self.allocations[member])
                .collect();
            let total = self.limits.total_promised(&of_component);
            let states: Vec<OfferState> = members
                .iter()
                .map(|&member| std::mem::take(&mut states[member]))
                .collect();
            let publication = publish::decide_writes(&total, &states, now);
            next = earlier_of(next, publication.requeue_after);
            for write in publication.writes {
                let allocation = of_component[write.index];
                plan.writes
                    .push(composer.offer_write(allocation, write.hard, write.grows));
            }
        }
        // Across all components, offers shrink before others grow.
        plan.writes.sort_by_key(|write| write.grows);
        next
    }
}

fn earlier_of(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

/// The policies of the requesters that lend this cluster's own nodes, in the order of their names.
fn local_policies<'a>(requesters: &[Requester<'a>]) -> Vec<&'a Arc<PeeringPolicy>> {
    let applied = requesters.iter().filter_map(|requester| requester.policy);
    let local = applied.filter(|policy| policy.spec.provide.source.plugin.is_none());
    let by_name: BTreeMap<_, _> = local
        .map(|policy| (policy.metadata.name.as_deref().unwrap_or_default(), policy))
        .collect();
    by_name.into_values().collect()
}

/// The same policies, each with the consumer for which it is, if it is one for a cluster that is
/// tethered to this one.
fn policy_lenders<'a>(
    snapshot: &'a ProviderSnapshot,
    local: &[&'a Arc<PeeringPolicy>],
) -> Vec<Lender<'a>> {
    let of_tethered = snapshot
        .replacements
        .iter()
        .filter(|_| snapshot.mode.peer.is_none());
    let replacements: Vec<(&ClusterId, &Arc<PeeringPolicy>)> = of_tethered
        .filter_map(|(consumer, policy)| Some((consumer, policy.as_ref()?)))
        .collect();
    local
        .iter()
        .map(|policy| Lender {
            provide: &policy.spec.provide,
            tethered: replacements
                .iter()
                .find(|(_, replacement)| Arc::ptr_eq(replacement, policy))
                .map(|(consumer, _)| *consumer),
        })
        .collect()
}

/// The requesters with their limits: what each requested, the caps of its policy, and the policy's
/// fixed amounts.
fn claimants_with_limits(
    requesters: &[Requester],
    local: &[&Arc<PeeringPolicy>],
    budgets: &[PartitionBudget],
) -> Vec<Claimant> {
    let names: BTreeSet<&str> = budgets
        .iter()
        .flat_map(|budget| budget.free.names())
        .collect();
    requesters
        .iter()
        .map(|requester| claimant_with_limit(requester, local, &names))
        .collect()
}

fn claimant_with_limit(
    requester: &Requester,
    local: &[&Arc<PeeringPolicy>],
    names: &BTreeSet<&str>,
) -> Claimant {
    let policy = requester
        .policy
        .and_then(|applied| PolicyIndex::of_policy(local, applied));
    let provide = policy.map(|index| &local[index.0].spec.provide);
    let fixed = provide.and_then(|provide| provide.source.fixed.as_ref());
    // With fixed amounts, every other resource is limited to zero.
    let mut limit: ResourceList = match fixed {
        Some(fixed) => names
            .iter()
            .map(|&name| (name, fixed.resources.get(name)))
            .collect(),
        None => ResourceList::new(),
    };
    let caps = provide
        .map(|provide| provide.caps.clone())
        .unwrap_or_default();
    for (name, cap) in caps.iter().chain(requester.requested().iter()) {
        lower_limit(&mut limit, name, cap);
    }
    // Guaranteed amounts are offered as they are. Only fixed amounts may grow: by an amendment.
    if let Some(reserved) = requester
        .standing
        .reserved_total()
        .filter(|_| fixed.is_none())
    {
        for &name in names {
            lower_limit(&mut limit, name, reserved.get(name));
        }
    }
    Claimant {
        consumer: requester.tenant.consumer.clone(),
        policy: policy.unwrap_or_default(),
        limit,
    }
}

/// A resource that is not in the list has no limit yet.
fn lower_limit(limit: &mut ResourceList, name: &str, most: Quantity) {
    let smaller = if limit.contains(name) {
        limit.get(name).min(most)
    } else {
        most
    };
    limit.insert(name, smaller);
}

/// Gives notice to each pool that uses more than its policy or the nodes allow. When the notice is
/// over, the pool's floor is removed. Returns the time until the next notice ends.
///
/// `overused` holds the overusing policies of each partition.
fn reclaim_overuse(
    snapshot: &ProviderSnapshot,
    allocations: &mut [PoolAllocation],
    overused: &[BTreeSet<PolicyIndex>],
    entitlements: &Shares,
    requesters: &[Requester],
    partitions: &[NodePartition],
) -> Option<Duration> {
    let mut used: BTreeMap<usize, ResourceList> = BTreeMap::new();
    for allocation in allocations.iter() {
        *used.entry(allocation.requester).or_default() += &allocation.in_use;
    }
    let mut requeue_after = None;
    for allocation in allocations.iter_mut() {
        let offers = &requesters[allocation.requester].offers;
        let notices = allocation
            .offer_names()
            .filter_map(|pool| offers.get(pool)?.spec.reclaim_timestamp.as_ref());
        let existing = notices.map(|time| time.0).min();
        let drains = allocation
            .offer_names()
            .filter_map(|pool| offers.get(pool)?.spec.drain_timestamp.as_ref());
        let drain = drains.map(|time| time.0).min();
        allocation.set_drain(drain, snapshot.wall_time);
        let is_held = is_held(snapshot, allocation, partitions);
        let PoolSource::Policy(policy) = allocation.source else {
            let is_over =
                !is_held && exceeds_tolerance(&allocation.in_use, &allocation.target, None, 0);
            allocation.set_reclaim(
                is_over,
                &allocation.target.clone(),
                existing,
                snapshot.wall_time,
            );
            continue;
        };
        let mine: Vec<usize> = (0..partitions.len())
            .filter(|&partition| allocation.includes(&partitions[partition]))
            .collect();
        let due: ResourceList = mine
            .iter()
            .filter_map(|&index| entitlements[index].get(&allocation.requester))
            .sum();
        // Caps limit all pools of a consumer together.
        let capped = exceeds_tolerance(
            &used[&allocation.requester],
            &policy_limit(allocation.policy),
            Some(&allocation.policy.caps),
            0,
        );
        let crowded =
            mine.is_empty() || mine.iter().any(|&index| overused[index].contains(&policy));
        let is_over = !is_held
            && (capped || crowded)
            && exceeds_tolerance(
                &allocation.in_use,
                &due,
                None,
                if capped {
                    0
                } else {
                    allocation.policy.threshold()
                },
            );
        allocation.set_reclaim(is_over, &due, existing, snapshot.wall_time);
    }
    for allocation in allocations {
        let Some(at) = allocation.reclaim_at else {
            continue;
        };
        let left = Duration::try_from(at.duration_since(snapshot.wall_time)).unwrap_or_default();
        if left.is_zero() {
            allocation.floor = ResourceList::new();
        } else {
            requeue_after = earlier_of(requeue_after, Some(left));
            // A plugin's amounts never cut an offer below use without notice either.
            if allocation.is_of_plugin() {
                allocation.target = allocation.target.max(&allocation.in_use);
            }
        }
    }
    requeue_after
}

/// Whether nothing is taken back of a pool now, because neither its consumer nor a cluster behind
/// it answers: then this cluster itself may be cut off. Nobody reads its notices, and nobody else
/// can use what does not answer.
fn is_held(
    snapshot: &ProviderSnapshot,
    allocation: &PoolAllocation,
    partitions: &[NodePartition],
) -> bool {
    let is_silent = snapshot
        .silences
        .get(allocation.consumer)
        .is_some_and(|silence| silence.lasts.is_some());
    is_silent
        && partitions.iter().any(|partition| {
            partition.nodes.iter().any(|(_, node)| {
                let is_out = node.upstream.is_some() && !node.eligible;
                is_out && allocation.has_node(partition, node)
            })
        })
}

/// The end of a notice that begins now.
fn notice_end(wall_time: Timestamp, seconds: u32) -> Timestamp {
    wall_time
        .saturating_add(SignedDuration::from_secs(i64::from(seconds)))
        .unwrap_or(wall_time)
}

/// The most that a policy gives to one consumer, whatever is free.
fn policy_limit(policy: &Provide) -> ResourceList {
    let fixed = policy
        .source
        .fixed
        .as_ref()
        .map(|fixed| fixed.resources.clone())
        .unwrap_or_default();
    let mut limit = policy.caps.clone();
    for (name, amount) in &fixed {
        lower_limit(&mut limit, name, amount);
    }
    limit
}

/// Whether any resource in use is more than `tolerance` percent above `most`. With `named`, a
/// resource in neither list has no limit.
fn exceeds_tolerance(
    in_use: &ResourceList,
    most: &ResourceList,
    named: Option<&ResourceList>,
    tolerance: u8,
) -> bool {
    in_use.iter().any(|(name, used)| {
        let is_limited = named.is_none_or(|named| named.contains(name) || most.contains(name));
        is_limited
            && used > most.get(name)
            && most
                .get(name)
                .differs_by_more_than(used, u32::from(tolerance))
    })
}

/// The policies whose consumers together use more of a partition than the policy allows, or than
/// exists.
fn overusing_policies(
    budget: &PartitionBudget,
    claimants: &[Claimant],
    policies: &[&Provide],
) -> BTreeSet<PolicyIndex> {
    let mut used: BTreeMap<PolicyIndex, ResourceList> = BTreeMap::new();
    for (&claimant, floor) in &budget.floors {
        *used.entry(claimants[claimant].policy).or_default() += floor;
    }
    let all: ResourceList = used.values().sum();
    let crowded = exceeds_tolerance(&all, &budget.max_promised(claimants, policies), None, 0);
    used.into_iter()
        .filter(|(policy, used)| {
            crowded
                || exceeds_tolerance(
                    used,
                    &shares::max_for_policy(&budget.free, policies[policy.0]),
                    None,
                    0,
                )
        })
        .map(|(policy, _)| policy)
        .collect()
}

/// Groups of allocations that share partitions, directly or through others. Each group is published
/// together.
fn connected_allocations(
    allocations: &[PoolAllocation],
    partitions: &[NodePartition],
) -> Vec<Vec<usize>> {
    let mut component: Vec<usize> = (0..allocations.len()).collect();
    for partition in partitions {
        let members: BTreeSet<usize> = allocations
            .iter()
            .zip(&component)
            .filter(|(allocation, _)| allocation.includes(partition))
            .map(|(_, &component)| component)
            .collect();
        if let Some(&lowest) = members.first() {
            for one in component.iter_mut().filter(|one| members.contains(one)) {
                *one = lowest;
            }
        }
    }
    let mut found: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (allocation, &component) in component.iter().enumerate() {
        found.entry(component).or_default().push(allocation);
    }
    found.into_values().collect()
}

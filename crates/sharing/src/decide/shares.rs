//! Computes each consumer's share of each partition.
//!
//! ```text
//!   free resources of a partition
//!     ├─▶ fixed amounts of policies
//!     └─▶ the rest, split between the other policies, each limited by its percentage of what is free
//!           └─▶ each policy's part, split between its consumers by weight
//! ```
//!
//! Nobody gets less than its floor, which is what it uses unless that is being reclaimed, and what
//! a contract guarantees.
//!
//! The nodes on which a consumer's pods run must not decide how much it gets. Therefore, if a
//! consumer uses more than its entitlement of one partition, it gets that much less of the others.

use std::collections::{BTreeMap, BTreeSet};

use liqo_api::{ClusterId, Provide, ResourceList};

use super::{
    ledger::{self, Claim},
    pools::PolicyIndex,
};

/// One consumer, in all partitions.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimant {
    pub consumer: ClusterId,
    pub policy: PolicyIndex,
    /// The maximum of each named resource, in all partitions together.
    pub limit: ResourceList,
}

/// The resources of one partition, and the claimants of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartitionBudget {
    /// Allocatable resources of the nodes, less everything that is not charged to a claimant.
    pub free: ResourceList,
    /// The least that each claimant gets, by index. Who is absent gets nothing here.
    pub floors: BTreeMap<usize, ResourceList>,
    /// The claimants that refuse more than their floor.
    pub refused: BTreeSet<usize>,
    /// Amounts that contracts guarantee to claimants here, as far as they exist. They are part of
    /// the floors.
    pub guaranteed: BTreeMap<usize, ResourceList>,
    /// The most of each resource for claimants that get some of the nodes here only. Their floors
    /// may be more.
    pub limits: BTreeMap<usize, ResourceList>,
}

impl PartitionBudget {
    #[must_use]
    pub fn without_floors(&self) -> Self {
        let floors = self
            .floors
            .keys()
            .map(|claimant| {
                let guaranteed = self.guaranteed.get(claimant).cloned();
                (*claimant, guaranteed.unwrap_or_default())
            })
            .collect();
        Self {
            floors,
            ..self.clone()
        }
    }

    /// The limit of a claimant that refuses its offer: just its floor.
    fn refused_limit(&self, floor: &ResourceList) -> ResourceList {
        self.free
            .names()
            .map(|name| (name, floor.get(name)))
            .collect()
    }

    /// The most that all claimants together can be promised.
    pub fn max_promised(&self, claimants: &[Claimant], policies: &[&Provide]) -> ResourceList {
        let capacity = self.capacity(claimants, policies);
        let members: BTreeSet<PolicyIndex> = self
            .floors
            .keys()
            .map(|&claimant| claimants[claimant].policy)
            .collect();
        if members
            .iter()
            .any(|policy| policies[policy.0].source.fixed.is_some())
        {
            return capacity;
        }
        let limits: Vec<ResourceList> = members
            .iter()
            .map(|policy| max_for_policy(&self.free, policies[policy.0]))
            .collect();
        capacity
            .min(&limits.iter().sum())
            .max(&self.guaranteed.values().sum())
    }

    /// The free resources with the largest overcommitment of the claimants' policies.
    pub fn capacity(&self, claimants: &[Claimant], policies: &[&Provide]) -> ResourceList {
        let overcommit = self
            .floors
            .keys()
            .map(|&claimant| policies[claimants[claimant].policy.0].overcommit_percentage)
            .max();
        self.free.percentage(u32::from(overcommit.unwrap_or(100)))
    }
}

/// The most that the consumers of one policy get together.
pub fn max_for_policy(free: &ResourceList, provide: &Provide) -> ResourceList {
    let overcommit = u32::from(provide.overcommit_percentage);
    if provide.source.fixed.is_some() {
        return free.percentage(overcommit);
    }
    free.percentage(u32::from(provide.percentage))
        .percentage(overcommit)
}

/// The share of each claimant, for each budget.
pub type Shares = Vec<BTreeMap<usize, ResourceList>>;

/// The shares if nobody used anything.
pub fn entitlements(
    budgets: &[PartitionBudget],
    claimants: &[Claimant],
    policies: &[&Provide],
) -> Shares {
    let unused: Vec<PartitionBudget> = budgets
        .iter()
        .map(PartitionBudget::without_floors)
        .collect();
    // Without use nobody has an excess, so these entitlements have no effect.
    let none: Shares = unused.iter().map(|budget| budget.floors.clone()).collect();
    compute_shares(&unused, &none, claimants, policies)
}

/// The shares with the present use.
pub fn compute_shares(
    budgets: &[PartitionBudget],
    entitlements: &Shares,
    claimants: &[Claimant],
    policies: &[&Provide],
) -> Shares {
    // What each claimant may still get. All floors are subtracted at once, so that a floor of a
    // later budget is not given twice.
    let mut left: Vec<ResourceList> = claimants
        .iter()
        .map(|claimant| claimant.limit.clone())
        .collect();
    // What each claimant has of one budget beyond its entitlement, and gives up in the others.
    let mut excess = vec![ResourceList::new(); claimants.len()];
    for (budget, entitled) in budgets.iter().zip(entitlements) {
        for (&claimant, floor) in &budget.floors {
            left[claimant] = left[claimant].saturating_sub(floor);
            if !budget.refused.contains(&claimant) {
                excess[claimant] += &floor.saturating_sub(&entitled[&claimant]);
            }
        }
    }
    let mut all = Vec::new();
    for (budget, entitled) in budgets.iter().zip(entitlements) {
        let mut claims = Vec::new();
        for (&claimant, floor) in &budget.floors {
            let requested = if budget.refused.contains(&claimant) {
                budget.refused_limit(floor)
            } else {
                let limit = without_excess(
                    raised_by(&left[claimant], floor),
                    &entitled[&claimant],
                    &excess[claimant],
                );
                match budget.limits.get(&claimant) {
                    Some(most) => lower_of(&limit, most),
                    None => limit,
                }
            };
            let claim = Claim {
                consumer: claimants[claimant].consumer.clone(),
                weight: policies[claimants[claimant].policy.0].weight,
                in_use: floor.clone(),
                requested,
            };
            claims.push((claimant, claim));
        }
        let shares = shares_of_budget(budget, claims.into_iter(), claimants, policies);
        for (&claimant, share) in &shares {
            left[claimant] =
                left[claimant].saturating_sub(&share.saturating_sub(&budget.floors[&claimant]));
            excess[claimant] =
                excess[claimant].saturating_sub(&entitled[&claimant].saturating_sub(share));
        }
        all.push(shares);
    }
    all
}

/// Lowers the limit of each resource with an excess to the entitlement less that excess.
fn without_excess(
    mut limit: ResourceList,
    entitled: &ResourceList,
    excess: &ResourceList,
) -> ResourceList {
    for (name, excess) in excess.iter().filter(|(_, excess)| !excess.is_zero()) {
        let most = entitled.get(name).saturating_sub(excess);
        limit.insert(
            name,
            if limit.contains(name) {
                limit.get(name).min(most)
            } else {
                most
            },
        );
    }
    limit
}

/// Both limits together.
fn lower_of(one: &ResourceList, other: &ResourceList) -> ResourceList {
    one.capped_by(other).max(&other.capped_by(one))
}

fn raised_by(limit: &ResourceList, floor: &ResourceList) -> ResourceList {
    limit
        .iter()
        .map(|(name, amount)| (name, amount + floor.get(name)))
        .collect()
}

/// Claims on one budget, with the claimant of each: those of one policy, or all those with fixed
/// amounts.
#[derive(Default)]
struct ClaimGroup {
    members: Vec<usize>,
    claims: Vec<Claim>,
}

impl ClaimGroup {
    /// Splits `total` between the members.
    fn split_total(&self, total: &ResourceList, shares: &mut BTreeMap<usize, ResourceList>) {
        shares.extend(
            self.members
                .iter()
                .copied()
                .zip(ledger::split_by_claims(total, &self.claims)),
        );
    }
}

fn shares_of_budget(
    budget: &PartitionBudget,
    claims: impl Iterator<Item = (usize, Claim)>,
    claimants: &[Claimant],
    policies: &[&Provide],
) -> BTreeMap<usize, ResourceList> {
    let mut fixed = ClaimGroup::default();
    let mut groups: BTreeMap<PolicyIndex, ClaimGroup> = BTreeMap::new();
    for (claimant, claim) in claims {
        let policy = claimants[claimant].policy;
        let is_fixed = policies[policy.0].source.fixed.is_some();
        let group = if is_fixed {
            &mut fixed
        } else {
            groups.entry(policy).or_default()
        };
        group.members.push(claimant);
        group.claims.push(claim);
    }
    let capacity = budget.capacity(claimants, policies);
    let due: ResourceList = groups
        .values()
        .flat_map(|group| &group.claims)
        .map(|claim| &claim.in_use)
        .sum();
    let mut shares = BTreeMap::new();
    fixed.split_total(&capacity.saturating_sub(&due), &mut shares);

    let given: ResourceList = shares.values().sum();
    let claims: Vec<Claim> = groups
        .iter()
        .map(|(policy, group)| combined_claim(budget, policies[policy.0], &group.claims))
        .collect();
    let parts = ledger::split_by_claims(&capacity.saturating_sub(&given), &claims);
    for (group, part) in groups.values().zip(parts) {
        group.split_total(&part, &mut shares);
    }
    shares
}

/// One claim for all consumers of a policy.
fn combined_claim(budget: &PartitionBudget, provide: &Provide, claims: &[Claim]) -> Claim {
    let mut requested = max_for_policy(&budget.free, provide);
    // If every consumer has a limit of a resource, the sum of the limits is a limit, too.
    let names: Vec<String> = requested
        .names()
        .filter(|name| claims.iter().all(|claim| claim.requested.contains(name)))
        .map(str::to_owned)
        .collect();
    for name in names {
        let sum = claims
            .iter()
            .map(|claim| claim.requested.get(&name).max(claim.in_use.get(&name)))
            .sum();
        let smaller = requested.get(&name).min(sum);
        requested.insert(name, smaller);
    }
    Claim {
        // No group is empty.
        consumer: claims[0].consumer.clone(),
        weight: claims
            .iter()
            .fold(0, |sum: u16, claim| sum.saturating_add(claim.weight)),
        in_use: claims.iter().map(|claim| &claim.in_use).sum(),
        requested,
    }
}

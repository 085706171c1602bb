//! Connects contracts with offers: what each consumer's contract should say now, and what to do
//! about it.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use liqo_api::{Key, ResourceList};

use super::{allocations::PoolAllocation, earlier_of};
use crate::decide::snapshot::{ContractChange, ProviderPlan, ProviderSnapshot, Requester};
use liqo_market::contract::{
    provider::{self, ContractInput},
    wanted::{PoolOnOffer, WantedTerms},
};

/// Adds the writes of contracts to the plan. Returns the time until the next one may be due.
pub fn add_contracts(
    snapshot: &ProviderSnapshot,
    requesters: &[Requester],
    allocations: &[PoolAllocation],
    plan: &mut ProviderPlan,
) -> Option<Duration> {
    let identity = snapshot.contracts.identity.as_deref()?;
    let by_namespace: HashMap<&str, usize> = requesters
        .iter()
        .enumerate()
        .map(|(index, requester)| (requester.namespace, index))
        .collect();
    let asking = snapshot.requests();
    let mut next = None;
    for (namespace, tenant) in snapshot.tenants() {
        let (records, consumer) = (snapshot.contracts.of_tenant(namespace), &tenant.consumer);
        let provide = snapshot.policy(consumer).map(|policy| &policy.spec.provide);
        if records.is_empty() && provide.is_none_or(|provide| provide.contract.is_none()) {
            continue;
        }
        let mut unconfirmed = snapshot
            .contracts
            .unconfirmed
            .get(consumer)
            .cloned()
            .unwrap_or_default();
        if snapshot.contracts.unseen.contains(namespace) {
            plan.unconfirmed_breaches
                .insert(consumer.clone(), unconfirmed);
            continue;
        }
        let index = by_namespace.get(namespace).copied();
        let requester = index.map(|index| &requesters[index]);
        let pools: Vec<&PoolAllocation> = allocations
            .iter()
            .filter(|allocation| Some(allocation.requester) == index)
            .collect();
        let (empty, answered) = (BTreeMap::new(), BTreeMap::new());
        let case = ContractInput {
            identity,
            consumer,
            provide,
            asks: asking.contains_key(namespace),
            peering: asking
                .get(namespace)
                .and_then(|request| request.peering.as_deref()),
            is_heard: !snapshot.silences.contains_key(consumer),
            wanted: requester.and_then(|requester| wanted_terms(requester, &pools)),
            offered: requester
                .filter(|requester| requester.standing.may_have_offers() && !requester.is_absent())
                .map(|_| {
                    pools
                        .iter()
                        .map(|allocation| (allocation.pool.clone(), allocation.target.clone()))
                        .collect()
                }),
            records,
            decisions: snapshot.contracts.decisions.get(consumer).unwrap_or(&empty),
            unanswered: snapshot
                .contracts
                .unanswered
                .get(namespace)
                .unwrap_or(&answered),
            nonce: &snapshot.contracts.nonce,
            now: snapshot.wall_time,
        };
        let decided = provider::decide_contracts(&case, &mut unconfirmed);
        plan.unconfirmed_breaches
            .insert(consumer.clone(), unconfirmed);
        plan.contract_deletions.extend(
            decided
                .deletions
                .into_iter()
                .map(|name| Key::new(namespace, name)),
        );
        for write in decided.writes {
            plan.contract_writes.push(ContractChange {
                namespace: namespace.to_owned(),
                consumer: consumer.clone(),
                write,
            });
        }
        if let Some(problem) = decided.problem {
            if let Some(condition) = plan.peer_conditions.get_mut(consumer) {
                condition.message = format!("{}; its contract: {problem}", condition.message);
            }
            plan.contract_problems.insert(consumer.clone(), problem);
        }
        let due = decided
            .next
            .into_iter()
            .chain(requester.and_then(|requester| requester.standing.next))
            .min();
        let left = due.map(|due| {
            Duration::try_from(due.duration_since(snapshot.wall_time)).unwrap_or_default()
        });
        next = earlier_of(next, left);
    }
    next
}

/// Terms that the contract of a consumer should have now.
fn wanted_terms(requester: &Requester, pools: &[&PoolAllocation]) -> Option<WantedTerms> {
    let provide = &requester.policy?.spec.provide;
    let on_offer = pools
        .iter()
        .map(|allocation| PoolOnOffer {
            name: allocation.pool.clone(),
            // What is guaranteed stays so while nodes are away.
            resources: allocation.target.max(&allocation.reserved),
            prices: allocation.prices.clone(),
        })
        .collect();
    let most = requester.requested();
    let fixed = provide.source.fixed.as_ref().map(|fixed| &fixed.resources);
    let limits: Vec<&ResourceList> = [&provide.caps, &most].into_iter().chain(fixed).collect();
    WantedTerms::of_policy(provide, on_offer, &limits)
}

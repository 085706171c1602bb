//! The conditions of requests, which consumers read, and of their `ForeignCluster`s in this
//! cluster.

use std::{collections::BTreeMap, sync::Arc};

use liqo_api::conditions::DesiredCondition;
use liqo_api::isolation::Lending;
use liqo_api::{
    ANSWERED, NETWORK_POLICIES_ENFORCED, PeeringPolicy, ResourcesOfferedReason, TETHERING, links,
};

use super::{allocations::PoolAllocation, overcommit::OvercommitNote};
use crate::decide::{
    granularity::Division,
    publish::OfferState,
    snapshot::{
        PluginAnswer, PolicyVersion, ProviderPlan, ProviderSnapshot, RequestCondition, Requester,
    },
    tethering,
};

/// Adds all conditions to the plan.
pub fn add_conditions(
    snapshot: &ProviderSnapshot,
    requesters: &[Requester],
    divisions: &[Division],
    allocations: &[PoolAllocation],
    states: &[OfferState],
    notes: &BTreeMap<usize, OvercommitNote>,
    plan: &mut ProviderPlan,
) {
    let mut offered: Vec<Vec<&str>> = vec![Vec::new(); requesters.len()];
    for (allocation, state) in allocations.iter().zip(states) {
        // An offer that does not exist yet is written in this round or in one of the next.
        if state.published.is_some() || !state.target.is_zero() {
            offered[allocation.requester].push(&allocation.pool);
        }
    }
    for (at, ((requester, division), pools)) in
        requesters.iter().zip(divisions).zip(offered).enumerate()
    {
        let consumer = &requester.tenant.consumer;
        if let Some(policy) = requester.policy {
            plan.applied_policies
                .insert(consumer.clone(), PolicyVersion::of_policy(policy));
        }
        let answer = snapshot.plugin_answers.get(consumer);
        let is_withheld = requester.policy.is_some() && !requester.is_included(snapshot.lending);
        let [for_consumer, for_owner] = [ANSWERED, links::RESOURCES_OFFERED].map(|kind| {
            // First the absence: another leader learns of it here.
            absence_condition(kind, requester).unwrap_or_else(|| {
                if is_withheld {
                    not_isolated(kind, snapshot.lending)
                } else {
                    offered_condition(kind, requester.policy, answer, &pools, notes.get(&at))
                }
            })
        });
        let (request, namespace) = (requester.request, requester.namespace.to_owned());
        let has_answer = request
            .conditions
            .iter()
            .any(|condition| condition.type_ == TETHERING);
        let tethering =
            tethering::answer_condition(snapshot, consumer, request.tethering, has_answer);
        let wanted = [for_consumer]
            .into_iter()
            .chain(tethering)
            .chain(division.condition.clone())
            .collect();
        let (current, generation) = (request.conditions.clone(), request.generation);
        plan.request_conditions.push(RequestCondition {
            namespace,
            current,
            wanted,
            generation,
        });
        plan.peer_conditions.insert(consumer.clone(), for_owner);
    }
    add_unreadable(snapshot, plan);
}

/// The condition of an absent consumer.
fn absence_condition(kind: &'static str, requester: &Requester) -> Option<DesiredCondition> {
    let policy = requester.policy.filter(|_| requester.is_absent())?;
    let seconds = policy.spec.provide.absence_seconds.unwrap_or_default();
    let message = if kind == links::RESOURCES_OFFERED {
        let name = policy.metadata.name.as_deref().unwrap_or_default();
        format!(
            "policy {name}: the consumer was silent for {seconds} s, so its pods end; it gets a new offer when it is back"
        )
    } else {
        format!(
            "this cluster was silent for {seconds} s, so the provider ended its pods; it makes a new offer when it hears this cluster"
        )
    };
    Some(DesiredCondition::no(
        kind,
        ResourcesOfferedReason::ConsumerAbsent,
        message,
    ))
}

fn offered_condition(
    kind: &'static str,
    policy: Option<&Arc<PeeringPolicy>>,
    answer: Option<&PluginAnswer>,
    pools: &[&str],
    note: Option<&OvercommitNote>,
) -> DesiredCondition {
    let is_local = kind == links::RESOURCES_OFFERED;
    let Some(policy) = policy else {
        let message = "the provider shares nothing with this cluster: no PeeringPolicy selects it";
        return DesiredCondition::no(kind, ResourcesOfferedReason::NoPolicy, message);
    };
    let name = policy.metadata.name.as_deref().unwrap_or_default();
    let provide = &policy.spec.provide;
    let problem = answer
        .and_then(|answer| answer.problem.as_deref())
        .filter(|_| provide.source.plugin.is_some());
    // Consumers see neither the errors of plugins nor the names of policies.
    if let Some(problem) = problem.filter(|_| is_local) {
        let effect = if pools.is_empty() {
            "nothing is offered until it answers"
        } else {
            "the last offer stays"
        };
        return DesiredCondition::no(
            kind,
            ResourcesOfferedReason::PluginFailed,
            format!("policy {name}: {problem}; {effect}"),
        );
    }
    match pools {
        [] if provide.source.plugin.is_some() => DesiredCondition::no(
            kind,
            ResourcesOfferedReason::NothingOffered,
            "the provider's resource plugin offers nothing",
        ),
        [] if provide.source.fixed.is_none() && provide.percentage == 0 => DesiredCondition::no(
            kind,
            ResourcesOfferedReason::NothingShared,
            "the provider's PeeringPolicy shares 0 percent of its resources",
        ),
        [] => {
            let message = "the provider has nothing free that was requested; it offers something as soon as it can";
            DesiredCondition::no(kind, ResourcesOfferedReason::NothingFree, message)
        }
        // How much others are promised is nothing that a consumer should know.
        pools if is_local => {
            let (reason, note) = match note {
                Some(OvercommitNote::Overcommitted(text)) => {
                    (ResourcesOfferedReason::Overcommitted, format!("; {text}"))
                }
                Some(OvercommitNote::Cut(text)) => {
                    (ResourcesOfferedReason::Offered, format!("; {text}"))
                }
                None => (ResourcesOfferedReason::Offered, String::new()),
            };
            DesiredCondition::yes(
                kind,
                reason,
                format!("{}, under policy {name}{note}", offered_message(pools)),
            )
        }
        pools => DesiredCondition::yes(
            kind,
            ResourcesOfferedReason::Offered,
            offered_message(pools),
        ),
    }
}

/// Nothing is offered because pods of consumers would not be isolated. Consumers do not see how to
/// allow it.
fn not_isolated(kind: &'static str, lending: Lending) -> DesiredCondition {
    let why = if lending == Lending::Untested {
        "the provider does not know yet whether its pod network enforces NetworkPolicies, and lends only if it does"
    } else {
        "the provider lends nothing, because its pod network does not enforce NetworkPolicies"
    };
    let is_local = kind == links::RESOURCES_OFFERED;
    let message = if is_local {
        format!("{why}; condition {NETWORK_POLICIES_ENFORCED} of ClusterConfig liqo says more")
    } else {
        why.to_owned()
    };
    DesiredCondition::no(kind, ResourcesOfferedReason::NotIsolated, message)
}

fn offered_message(pools: &[&str]) -> String {
    match pools {
        [pool] => format!("pool {pool} is offered"),
        pools => format!("pools {} are offered", pools.join(", ")),
    }
}

/// Adds a condition for each unreadable request. A tenant without a request gets none: it may only
/// use the network.
fn add_unreadable(snapshot: &ProviderSnapshot, plan: &mut ProviderPlan) {
    let requests = snapshot.requests();
    for (namespace, tenant) in snapshot.tenants() {
        let Some(Err(error)) = requests.get(namespace).map(|request| &request.resources) else {
            continue;
        };
        let error: String = error.chars().take(200).collect();
        let wanted = DesiredCondition::no(
            links::RESOURCES_OFFERED,
            ResourcesOfferedReason::Unreadable,
            format!("the request cannot be read: {error}"),
        );
        plan.peer_conditions.insert(tenant.consumer.clone(), wanted);
    }
}

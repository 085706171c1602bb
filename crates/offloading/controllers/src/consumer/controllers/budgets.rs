//! Budgets of namespaces and of `PeeringPolicy`s: which providers get no new pods.
//!
//! ```text
//!   every 10 s: stored usage, running pods, prices (caches) --> rules: budget --> Standing
//!                 Standing ──▶ namespaces: condition and status, which the webhook reads
//!                          ──▶ virtual_nodes: no new pods at providers of a policy whose budget is spent
//!                          ──▶ pods: a pod that comes all the same is not sent
//!                          ──▶ savings: pods go home, where the budget says MoveHome
//! ```
//! Nothing is remembered but what was found last, and that only saves pods from coming and going.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use liqo_api::policies::PolicyPeer;
use liqo_api::{ClusterId, NAMESPACE_OFFLOADING, PriceList};
use liqo_controller_runtime::policies;
use liqo_offloading_rules::budget::unmetered::unmetered_pools;
use liqo_offloading_rules::budget::{
    BudgetEvaluation, BudgetHolder, HeldBudget, ProviderCosts, ROUND,
};

use crate::consumer::state::{ConsumerState, NamespaceKey, NodeKey};

/// Interval between two checks whether everything is listed.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Runs until the context stops.
pub async fn run_controller(consumer: Arc<ConsumerState>) {
    let stop = consumer.context.stop.clone();
    let synced = async {
        consumer.recorder.synced().await
            && consumer.policies.wait_until_synced().await
            && consumer.foreign_clusters.wait_until_synced().await
    };
    if stop.run_until_cancelled(synced).await != Some(true) {
        return;
    }
    loop {
        let next = if judge_budgets(&consumer) {
            ROUND
        } else {
            POLL_INTERVAL
        };
        if stop
            .run_until_cancelled(tokio::time::sleep(next))
            .await
            .is_none()
        {
            return;
        }
    }
}

/// Judges all budgets. Returns `false` if not everything is known that counts.
fn judge_budgets(consumer: &ConsumerState) -> bool {
    let budgets = held_budgets(consumer);
    let providers = if budgets.is_empty() {
        Some(Vec::new())
    } else {
        providers_with_costs(consumer)
    };
    let Some(providers) = providers.filter(|_| consumer.placement_known()) else {
        return false;
    };
    let former = consumer.budgets.read().clone();
    let before = former.as_deref().cloned().unwrap_or_default();
    let standing = BudgetEvaluation::evaluate_all(
        &budgets,
        &providers,
        &before,
        ROUND,
        consumer.context.now(),
    );
    let is_new = former.as_deref() != Some(&standing);
    *consumer.budgets.write() = Some(Arc::new(standing.clone()));
    if is_new {
        let changed = if former.is_some() {
            standing.changed_since(&before)
        } else {
            None
        };
        enqueue_dependents(consumer, changed.as_ref());
    }
    true
}

/// Enqueues everything that depends on the budgets of these namespaces; `None`: on any budget.
fn enqueue_dependents(consumer: &ConsumerState, namespaces: Option<&BTreeSet<&str>>) {
    let queue = &consumer.queues.namespaces;
    for (key, _) in consumer.offloadings.all() {
        if namespaces.is_some_and(|all| !all.contains(key.namespace.as_str())) {
            continue;
        }
        queue.add(NamespaceKey::Namespace(key.namespace.clone()));
        queue.add(NamespaceKey::Pods(key.namespace));
    }
    if namespaces.is_none() {
        for (key, _) in consumer.virtual_nodes.all() {
            consumer.queues.nodes.add(NodeKey::VirtualNode(key));
        }
    }
}

fn held_budgets(consumer: &ConsumerState) -> Vec<HeldBudget> {
    let offloadings = consumer
        .offloadings
        .all()
        .into_iter()
        .filter(|(key, _)| key.name == NAMESPACE_OFFLOADING);
    let of_namespaces = offloadings.filter_map(|(key, offloading)| {
        Some(HeldBudget {
            holder: BudgetHolder::Namespace(key.namespace),
            budget: offloading.spec.budget.clone()?,
        })
    });
    let of_policies = consumer
        .policies
        .all()
        .into_iter()
        .filter_map(|(key, policy)| {
            Some(HeldBudget {
                holder: BudgetHolder::Policy(key.name),
                budget: policy.spec.consume.budget.clone()?,
            })
        });
    of_namespaces.chain(of_policies).collect()
}

/// The costs at all providers that have a virtual node or a contract. `None` while not all pods are
/// known.
fn providers_with_costs(consumer: &ConsumerState) -> Option<Vec<ProviderCosts>> {
    let mut names: BTreeMap<ClusterId, String> = consumer
        .recorder
        .peers()
        .into_iter()
        .map(|id| (id.clone(), id.to_string()))
        .collect();
    names.extend(consumer.providers());
    names
        .into_iter()
        .map(|(id, name)| {
            consumer
                .all_pods_known(&id)
                .then(|| provider_with_costs(consumer, id, name))
        })
        .collect()
}

fn provider_with_costs(consumer: &ConsumerState, id: ClusterId, name: String) -> ProviderCosts {
    let clusters = consumer.foreign_clusters.all();
    let cluster = clusters
        .iter()
        .map(|(_, cluster)| cluster)
        .find(|cluster| cluster.spec.cluster_id == id);
    let policy = policies::effective_policy(
        &consumer.policies,
        &PolicyPeer::new(&id, cluster.map(AsRef::as_ref)),
    );
    let asks = consumer
        .nodes_of_provider(&id)
        .into_iter()
        .filter_map(|(_, node)| {
            let prices = node
                .spec
                .prices
                .as_ref()
                .filter(|prices| prices.rates.iter().any(|(_, rate)| !rate.is_zero()))?;
            Some((node.spec.pool.clone(), prices.clone()))
        });
    let (asks, accounts, now): (BTreeMap<String, PriceList>, _, _) = (
        asks.collect(),
        consumer.accounts_with_provider(&id),
        consumer.context.now(),
    );
    let running =
        consumer.running_entries(&id, &unmetered_pools(&asks, &accounts, now.as_second()));
    let policy = policy.and_then(|policy| policy.metadata.name.clone());
    ProviderCosts::from_accounts(id, name, policy, &asks, &accounts, &running, now)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::consumer::controllers::pods::tests::{api_server, here, started, until};

    #[tokio::test]
    async fn a_provider_whose_costs_do_not_count_gets_no_new_pods_of_a_namespace_with_a_budget() {
        let budget = json!({ "budget": { "currency": "EUR", "amount": "5" } });
        let mut objects = here(&budget);
        objects["virtualnodes"][0]["spec"]["prices"] =
            json!({ "currency": "EUR", "rates": { "cpu": "0.04" } });
        // Without a recorded Node no pods are listed.
        let consumer = started(api_server(objects, |_, _| std::future::ready(true)));
        tokio::spawn(run_controller(consumer.clone()));
        let standing = until(|| consumer.budgets.read().clone()).await;
        let milan = ClusterId::of_public_key(&[2; 32]);
        let closed = standing.closed_for("demo", &milan).unwrap();
        assert!(
            closed
                .message
                .contains("milan asks for EUR without a contract"),
            "{closed:?}"
        );
        assert_eq!(
            (
                standing.closed_for("shop", &milan),
                standing.closed_for_all(&milan)
            ),
            (None, None)
        );
        consumer.context.stop.cancel();
    }
}

//! The money spent so far under contracts, and without them by what still runs, and the rest of
//! each budget, as the manager computes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use liqo_api::policies::{PolicyPeer, policies_of_peer};
use liqo_api::{
    BudgetPeriod, ClusterId, Contract, ForeignCluster, Money, NAMESPACE_OFFLOADING,
    NamespaceOffloading, PeeringPolicy, PriceList, UsageRecord, WITHIN_BUDGET, WithinBudgetReason,
    labels,
};
use liqo_metering::UsageEntry;
use liqo_metering::entry::normalized_amounts;
use liqo_metering::receipt::{self, period_of};
use liqo_metering::spending::{ContractAccount, SettledCosts};
use liqo_offloading_rules::budget::unmetered::{unmetered_costs, unmetered_pools};
use liqo_offloading_rules::budget::{
    BudgetHolder, HeldBudget, ProviderCosts, ROUND, evaluate_budget,
};
use liqo_offloading_rules::node::priced::PricedNode;

use super::running::{BudgetLine, NamespaceSpending, VirtualNodePods, charged_resources};
use crate::parties::{ContractRole, peer_and_role};
use crate::usage::local_entry;
use crate::{cluster::Cluster, lists};

/// A contract with a provider, and what it cost.
pub struct ContractCosts {
    pub provider: ClusterId,
    name: String,
    account: ContractAccount,
}

/// All contracts with providers that were in force, and what usage records have; nothing if this
/// user may not list contracts.
pub async fn visible_contracts(cluster: &Cluster) -> anyhow::Result<Option<Vec<ContractCosts>>> {
    let Some(all) = lists::if_allowed(lists::list_contracts(cluster).await)? else {
        return Ok(None);
    };
    let records = lists::list_usage_records(cluster).await?;
    let contracts = all
        .iter()
        .filter(|contract| {
            !all.iter()
                .any(|other| has_taken_over_costs(other, contract))
        })
        .filter_map(|contract| costs_of_contract(contract, &records))
        .collect();
    Ok(Some(contracts))
}

/// Whether the costs of a contract that is about to go are among those of another one.
fn has_taken_over_costs(successor: &Contract, contract: &Contract) -> bool {
    let settled = SettledCosts::from_annotations(successor.metadata.annotations.as_ref());
    successor.namespace() == contract.namespace()
        && contract
            .uid()
            .is_some_and(|uid| settled.has_taken_over(&uid))
}

fn costs_of_contract(contract: &Contract, records: &[UsageRecord]) -> Option<ContractCosts> {
    let namespace = contract.namespace()?;
    let provider = peer_and_role(&namespace)
        .filter(|party| party.role == ContractRole::Consumer)?
        .id;
    let settled = SettledCosts::from_annotations(contract.metadata.annotations.as_ref());
    let terms = receipt::ReceiptContract::of_spec(&contract.spec)?;
    let mut account =
        ContractAccount::new(terms, contract.spec.terms.metering_period_seconds, settled);
    for record in records.iter().filter(|record| {
        record.namespace().as_deref() == Some(&namespace)
            && record.spec.contract == contract.spec.terms.contract
    }) {
        if let Some(period) = period_of(&record.spec.period) {
            account.add_record(period, record.spec.chunks.is_some(), &record.spec.entries);
        }
    }
    Some(ContractCosts {
        provider,
        name: contract.name_any(),
        account,
    })
}

/// Adds what still runs: from when the local pods show that they run at the provider.
pub fn add_running(contracts: &mut [ContractCosts], running: &[VirtualNodePods], now: Timestamp) {
    for VirtualNodePods { node, pods } in running {
        let (provider, pool) = (
            node_label(node, labels::REMOTE_CLUSTER_ID),
            node_label(node, labels::POOL),
        );
        for contract in contracts
            .iter_mut()
            .filter(|contract| contract.provider.as_str() == provider)
        {
            for pod in pods {
                add_pod(&mut contract.account, pod, pool, now);
            }
        }
    }
}

fn node_label<'a>(node: &'a Node, name: &str) -> &'a str {
    node.labels().get(name).map_or("", String::as_str)
}

fn add_pod(account: &mut ContractAccount, pod: &Pod, pool: &str, now: Timestamp) {
    if let Some(entry) = local_entry(pod, pool, now) {
        account.add_running(&[entry]);
        account.add_rate(
            &pod.namespace().unwrap_or_default(),
            pool,
            &charged_resources(pod),
            now.as_second(),
        );
    }
}

/// Money spent under contracts, by one namespace or by all.
pub fn spending_under_contracts(
    contracts: &[ContractCosts],
    namespace: Option<&str>,
    now: Timestamp,
) -> Vec<NamespaceSpending> {
    let mut all = Vec::new();
    for ContractCosts {
        provider,
        name,
        account,
    } in contracts
    {
        let in_force = account.contract.version_at(now.as_second()).is_some();
        let mut sums: BTreeMap<(String, String), [Money; 2]> = BTreeMap::new();
        // A contract in force is named even if it cost nothing.
        if in_force {
            sums.insert((String::new(), String::new()), [Money::ZERO; 2]);
        }
        for (at, kind) in [BudgetPeriod::Day, BudgetPeriod::Month]
            .into_iter()
            .enumerate()
        {
            for (currency, of, cost) in account.spent(kind, now.as_second()).iter() {
                sums.entry((currency.to_owned(), of.to_owned()))
                    .or_default()[at] += cost;
            }
        }
        for ((currency, of), [today, this_month]) in
            sums.into_iter().filter(|((currency, of), _)| {
                currency.is_empty() || namespace.is_none_or(|namespace| namespace == of)
            })
        {
            let (provider, contract) = (provider.to_string(), Some(name.clone()));
            all.push(NamespaceSpending {
                provider,
                contract,
                in_force,
                namespace: of,
                currency,
                today,
                this_month,
            });
        }
    }
    all
}

/// The costs so far of the pods that run now, in pools without a contract, as the manager estimates
/// them.
pub fn spending_without_contract(
    contracts: &[ContractCosts],
    running: &[VirtualNodePods],
    now: Timestamp,
) -> Vec<NamespaceSpending> {
    let mut all = Vec::new();
    for (id, asks) in asked_prices(contracts, running) {
        let pools = unmetered_pools(
            &asks,
            &accounts_of_provider(contracts, &id),
            now.as_second(),
        );
        let costs = unmetered_costs(&pools, &running_usage(running, &id, now), now.as_second());
        for (currency, namespace, this_month) in costs.month.iter() {
            let (today, provider) = (costs.day.of_namespace(currency, namespace), id.to_string());
            let (namespace, currency) = (namespace.to_owned(), currency.to_owned());
            all.push(NamespaceSpending {
                provider,
                contract: None,
                in_force: false,
                namespace,
                currency,
                today,
                this_month,
            });
        }
    }
    all
}

/// The prices of the pools that ask for something, of each provider with a virtual node or a
/// contract.
fn asked_prices(
    contracts: &[ContractCosts],
    running: &[VirtualNodePods],
) -> BTreeMap<ClusterId, BTreeMap<String, PriceList>> {
    let mut asks: BTreeMap<ClusterId, BTreeMap<String, PriceList>> = contracts
        .iter()
        .map(|contract| (contract.provider.clone(), BTreeMap::new()))
        .collect();
    for VirtualNodePods { node, .. } in running {
        let node =
            PricedNode::from_metadata(&node.name_any(), node.labels().clone(), node.annotations());
        let Ok(id) = node.cluster_id().parse() else {
            continue;
        };
        let prices = node
            .prices
            .filter(|prices| prices.rates.iter().any(|(_, rate)| !rate.is_zero()));
        let pool = node.labels.get(labels::POOL).cloned().unwrap_or_default();
        asks.entry(id)
            .or_default()
            .extend(prices.map(|prices| (pool, prices)));
    }
    asks
}

fn accounts_of_provider(contracts: &[ContractCosts], id: &ClusterId) -> Vec<ContractAccount> {
    contracts
        .iter()
        .filter(|contract| contract.provider == *id)
        .map(|contract| contract.account.clone())
        .collect()
}

/// The usage of the pods at a provider, from their start on.
fn running_usage(running: &[VirtualNodePods], id: &ClusterId, now: Timestamp) -> Vec<UsageEntry> {
    let here = running
        .iter()
        .filter(|one| node_label(&one.node, labels::REMOTE_CLUSTER_ID) == id.as_str());
    here.flat_map(|one| {
        let pool = node_label(&one.node, labels::POOL);
        one.pods.iter().filter_map(move |pod| {
            Some(UsageEntry {
                amounts: normalized_amounts(&charged_resources(pod)),
                ..local_entry(pod, pool, now)?
            })
        })
    })
    .collect()
}

/// The budgets of one namespace, or all budgets.
pub async fn budget_lines(
    cluster: &Cluster,
    contracts: &[ContractCosts],
    running: &[VirtualNodePods],
    namespace: Option<&str>,
    now: Timestamp,
) -> anyhow::Result<Vec<BudgetLine>> {
    let offloadings = lists::list_offloadings(cluster, namespace).await?;
    let policies: Vec<Arc<PeeringPolicy>> = lists::list_peering_policies(cluster)
        .await?
        .into_iter()
        .map(Arc::new)
        .collect();
    let peers = lists::list_peers(cluster).await?;

    let providers = budget_providers(contracts, running, &policies, &peers, now);
    let mut lines = Vec::new();
    for offloading in offloadings
        .iter()
        .filter(|one| one.name_any() == NAMESPACE_OFFLOADING)
    {
        let of = offloading.namespace().unwrap_or_default();
        if namespace.is_some_and(|namespace| namespace != of) {
            continue;
        }
        if let Some(budget) = offloading.spec.budget.clone() {
            let mut line = budget_line(
                &HeldBudget {
                    holder: BudgetHolder::Namespace(of),
                    budget,
                },
                &providers,
                now,
            );
            line.keep_spent_state(offloading);
            lines.push(line);
        }
    }
    for policy in policies.iter().filter(|_| namespace.is_none()) {
        if let Some(budget) = policy.spec.consume.budget.clone() {
            lines.push(budget_line(
                &HeldBudget {
                    holder: BudgetHolder::Policy(policy.name_any()),
                    budget,
                },
                &providers,
                now,
            ));
        }
    }
    Ok(lines)
}

fn budget_providers(
    contracts: &[ContractCosts],
    running: &[VirtualNodePods],
    policies: &[Arc<PeeringPolicy>],
    peers: &[ForeignCluster],
    now: Timestamp,
) -> Vec<ProviderCosts> {
    asked_prices(contracts, running)
        .into_iter()
        .map(|(id, asks)| {
            let peer = peers.iter().find(|peer| peer.spec.cluster_id == id);
            let policy = policies_of_peer(policies, &PolicyPeer::new(&id, peer))
                .first()
                .map(|policy| policy.name_any());
            let name = peer.map_or_else(|| id.to_string(), ResourceExt::name_any);
            let (accounts, running) = (
                accounts_of_provider(contracts, &id),
                running_usage(running, &id, now),
            );
            ProviderCosts::from_accounts(id, name, policy, &asks, &accounts, &running, now)
        })
        .collect()
}

fn budget_line(held: &HeldBudget, providers: &[ProviderCosts], now: Timestamp) -> BudgetLine {
    let verdict = evaluate_budget(held, providers, None, ROUND, now);
    let condition = verdict.condition();
    let budget = &held.budget;
    BudgetLine {
        of: held.holder.in_words(),
        period: budget.period,
        amount: budget.amount,
        currency: budget.currency.clone(),
        spent: verdict.spent,
        left: (budget.amount - verdict.spent).max(Money::ZERO),
        open: condition.status == Some(true),
        message: (condition.status != Some(true)).then_some(condition.message),
    }
}

impl BudgetLine {
    /// A budget that was spent stays so, although what runs now would be paid.
    fn keep_spent_state(&mut self, offloading: &NamespaceOffloading) {
        let conditions = offloading
            .status
            .iter()
            .flat_map(|status| &status.conditions);
        let reason = WithinBudgetReason::BudgetSpent.as_str();
        let spent = conditions.into_iter().find(|one| {
            one.type_ == WITHIN_BUDGET && one.status == "False" && one.reason == reason
        });
        if let Some(spent) = spent.filter(|_| self.open) {
            (self.open, self.message) = (false, Some(spent.message.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn milan() -> ClusterId {
        ClusterId::of_public_key(&[2; 32])
    }

    fn contract() -> Contract {
        let limits = json!({ "podSecurity": "baseline", "maxNamespaces": 1, "maxServices": 1, "maxEndpoints": 1, "charge": "Requests",
            "defaultLimitPercentage": 800 });
        let prices = json!({ "default": { "currency": "EUR", "rates": { "cpu": "1" } } });
        let terms = json!({ "contract": "c", "version": 1, "provider": milan(), "consumer": milan(), "commitment": "BestEffort",
            "pools": [], "classes": {}, "prices": prices, "noticeSeconds": 0, "limits": limits, "start": "2026-01-01T00:00:00Z",
            "renewal": "None", "meteringPeriodSeconds": 3600 });
        let object = json!({ "metadata": { "namespace": liqo_api::provider_namespace(&milan()), "name": "contract-c" },
            "spec": { "document": "", "terms": terms, "inForceSince": "2026-01-01T00:00:00Z" } });
        serde_json::from_value(object).unwrap()
    }

    fn record() -> UsageRecord {
        let start: Timestamp = "2026-01-02T10:00:00Z".parse().unwrap();
        let from = start.as_second();
        let entries = format!("a default {from} {} cpu=2 demo\n", from + 1800);
        let object = json!({ "metadata": { "namespace": liqo_api::provider_namespace(&milan()), "name": "usage" },
            "spec": { "contract": "c", "period": { "start": start, "seconds": 3600 }, "chunk": 0, "entries": entries } });
        serde_json::from_value(object).unwrap()
    }

    fn on_milan() -> VirtualNodePods {
        let prices = r#"{"currency":"EUR","rates":{"cpu":"1"}}"#;
        let labels = json!({ labels::REMOTE_CLUSTER_ID: milan(), labels::POOL: "default" });
        let node = json!({ "metadata": { "name": "milan", "labels": labels, "annotations": { "liqo.io/prices": prices } } });
        let container =
            json!({ "name": "c", "resources": { "requests": { "cpu": "4", "memory": "1Gi" } } });
        let pod: Value = json!({ "metadata": { "namespace": "shop", "name": "p", "uid": "p" },
            "spec": { "containers": [container] }, "status": { "startTime": "2026-01-02T10:00:00Z" } });
        VirtualNodePods {
            node: serde_json::from_value(node).unwrap(),
            pods: vec![serde_json::from_value(pod).unwrap()],
        }
    }

    #[test]
    fn records_and_pods_that_run_are_what_was_spent_so_far() {
        let now: Timestamp = "2026-01-02T10:45:00Z".parse().unwrap();
        let mut contracts = vec![costs_of_contract(&contract(), &[record()]).unwrap()];
        add_running(&mut contracts, &[on_milan()], now);
        let of = |namespace| {
            let all = spending_under_contracts(&contracts, namespace, now)
                .into_iter()
                .filter(|one| !one.today.is_zero());
            all.map(|one| format!("{} {} {}", one.namespace, one.today, one.this_month))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(None), ["demo 1 1", "shop 3 3"]);
        assert_eq!(of(Some("shop")), ["shop 3 3"]);
        let providers = budget_providers(&contracts, &[on_milan()], &[], &[], now);
        let (currency, when_spent) = ("EUR".to_owned(), liqo_api::WhenSpent::Keep);
        let budget = liqo_api::Budget {
            currency,
            amount: "3.5".parse().unwrap(),
            period: BudgetPeriod::Day,
            when_spent,
        };
        let shop = budget_line(
            &HeldBudget {
                holder: BudgetHolder::Namespace("shop".to_owned()),
                budget,
            },
            &providers,
            now,
        );
        assert_eq!(
            (
                shop.spent.to_string().as_str(),
                shop.left.to_string().as_str(),
                shop.open
            ),
            ("3", "0.5", true)
        );
    }

    #[test]
    fn what_runs_without_a_contract_counts_at_the_prices_of_its_node() {
        let now: Timestamp = "2026-01-02T10:45:00Z".parse().unwrap();
        let costs: Vec<_> = spending_without_contract(&[], &[on_milan()], now)
            .into_iter()
            .map(|one| {
                format!(
                    "{} {:?} {} {}",
                    one.namespace, one.contract, one.today, one.this_month
                )
            })
            .collect();
        assert_eq!(costs, ["shop None 3 3"]);
        let providers = budget_providers(&[], &[on_milan()], &[], &[], now);
        assert_eq!(
            providers[0].day.of_namespace("EUR", "shop").to_string(),
            "3"
        );
        let under_contract = [costs_of_contract(&contract(), &[]).unwrap()];
        assert!(
            spending_without_contract(&under_contract, &[on_milan()], now).is_empty(),
            "the contract counts it"
        );
    }

    #[test]
    fn a_contract_with_a_consumer_is_no_cost() {
        let mut contract = contract();
        contract.metadata.namespace = Some(liqo_api::tenant_namespace(&milan()));
        assert!(costs_of_contract(&contract, &[]).is_none());
    }
}

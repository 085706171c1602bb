//! The amounts of this cluster that each consumer uses now, and what they cost for one hour, with a
//! contract or without.
//!
//! A provider charges a pod from when it was created until it ended. So the unfinished pods in
//! mapped namespaces are what its ledger has, and no contract is needed to see them. The prices are
//! those of the contract in force, or else those of the offer, which follow the policy that
//! applies.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::ListParams};
use liqo_api::policies::{PolicyPeer, policies_of_peer};
use liqo_api::{
    Charge, ClusterId, Contract, ForeignCluster, Money, PeeringPolicy, PriceList, ResourceList,
    ResourceOffer, labels,
};
use liqo_quantity::{AmountSeconds, per_hour};
use liqo_sharing::decide::scheduled_pod::ScheduledPod;

use super::{ResourceUsage, UsageNow};
use crate::broker::{CustomerPod, customer_pods};
use crate::output::{self, strip_control_characters};
use crate::parties::{ContractRole, peer_and_role, peer_name};
use crate::{cluster::Cluster, lists};

/// The resource that counts pods.
const PODS: &str = "pods";

const WITHOUT_CONTRACT: &str = "

Without a contract, PER HOUR is what the policy asks for: nothing is counted, and no receipt says
what is owed. To have a contract, set `provide.contract` of the PeeringPolicy that applies
(`liqoctl policy explain PEER`).";

/// The objects that determine what consumers use now.
#[derive(Clone, Debug, Default)]
pub struct LendingObjects {
    pub policies: Vec<Arc<PeeringPolicy>>,
    pub offers: Vec<ResourceOffer>,
    pub namespaces: Vec<Namespace>,
    pub pods: Vec<ScheduledPod>,
}

/// Lists these objects; nothing if this user may not.
pub async fn list_lending_objects(cluster: &Cluster) -> anyhow::Result<Option<LendingObjects>> {
    lists::if_allowed(read_lending_objects(cluster).await)
}

async fn read_lending_objects(cluster: &Cluster) -> anyhow::Result<LendingObjects> {
    let of_consumers = ListParams::default().labels(labels::CONSUMER_ID);
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let namespaces =
        lists::list_selected(&namespaces, &of_consumers, "the namespaces of consumers").await?;
    if namespaces.is_empty() {
        return Ok(LendingObjects::default());
    }
    let pods: Api<ScheduledPod> = Api::all(cluster.client.clone());
    let unfinished = of_consumers.fields(lists::UNFINISHED_PODS);
    let policies = lists::list_peering_policies(cluster).await?;
    Ok(LendingObjects {
        pods: lists::list_selected(&pods, &unfinished, "the pods of consumers").await?,
        policies: policies.into_iter().map(Arc::new).collect(),
        offers: lists::list_resource_offers(cluster).await?,
        namespaces,
    })
}

/// The amounts that the pods of a consumer use in one pool.
#[derive(Clone, Debug, PartialEq)]
pub struct LentPool {
    pub consumer: ClusterId,
    pub pool: String,
    pub in_use: ResourceList,
    /// Present prices; nothing if it costs nothing.
    pub prices: Option<PriceList>,
    /// Whether a contract in force has prices for it.
    pub is_in_contract: bool,
}

/// The pools that pods of consumers use now.
pub fn lent_pools(
    known: &[ForeignCluster],
    contracts: &[Contract],
    objects: &LendingObjects,
    now: Timestamp,
) -> Vec<LentPool> {
    let mut pods: BTreeMap<(ClusterId, String), Vec<CustomerPod>> = BTreeMap::new();
    for pod in customer_pods(&objects.namespaces, &objects.pods) {
        if let Some(consumer) = pod.customer.clone() {
            pods.entry((consumer, pod.pool.clone()))
                .or_default()
                .push(pod);
        }
    }
    pods.into_iter()
        .map(|((consumer, pool), pods)| {
            let contract = contract_in_force(contracts, &consumer, now);
            let charge = contract.map_or_else(
                || charge_of_policy(known, &objects.policies, &consumer),
                |contract| contract.spec.terms.limits.charge,
            );
            let mut in_use = ResourceList::new();
            for pod in &pods {
                in_use += pod.amounts.charged_amounts(charge);
            }
            let agreed = contract.and_then(|contract| contract.spec.terms.prices.get(&pool));
            let asked = offer_to(&objects.offers, &consumer, &pool)
                .and_then(|offer| offer.spec.prices.as_ref());
            LentPool {
                is_in_contract: agreed.is_some(),
                prices: agreed.or(asked).cloned(),
                consumer,
                pool,
                in_use,
            }
        })
        .collect()
}

fn contract_in_force<'a>(
    contracts: &'a [Contract],
    consumer: &ClusterId,
    now: Timestamp,
) -> Option<&'a Contract> {
    contracts.iter().find(|contract| {
        let spec = &contract.spec;
        spec.in_force_since
            .as_ref()
            .is_some_and(|since| since.0 <= now)
            && spec.ended.as_ref().is_none_or(|end| end.at.0 > now)
            && is_for_consumer(*contract, consumer)
    })
}

fn offer_to<'a>(
    offers: &'a [ResourceOffer],
    consumer: &ClusterId,
    pool: &str,
) -> Option<&'a ResourceOffer> {
    offers
        .iter()
        .find(|offer| offer.spec.pool == pool && is_for_consumer(*offer, consumer))
}

/// Whether an object is in the tenant namespace of this consumer.
fn is_for_consumer<K: kube::Resource>(object: &K, consumer: &ClusterId) -> bool {
    let namespace = object.meta().namespace.as_deref().unwrap_or_default();
    peer_and_role(namespace)
        .is_some_and(|party| party.role == ContractRole::Provider && party.id == *consumer)
}

fn charge_of_policy(
    known: &[ForeignCluster],
    policies: &[Arc<PeeringPolicy>],
    consumer: &ClusterId,
) -> Charge {
    let peer = known
        .iter()
        .find(|foreign| foreign.spec.cluster_id == *consumer);
    policies_of_peer(policies, &PolicyPeer::new(consumer, peer))
        .first()
        .map(|policy| policy.spec.provide.usage.charge)
        .unwrap_or_default()
}

/// Adds what is used now to the rows of these consumers, or new rows for it.
pub fn add_lent_pools(rows: &mut Vec<ResourceUsage>, pools: &[LentPool], known: &[ForeignCluster]) {
    for lent in pools {
        let peer = peer_name(known, &lent.consumer);
        let rates = lent.prices.as_ref().map(|prices| &prices.rates);
        for (resource, amount) in &lent.in_use {
            let alone: ResourceList = [(resource, amount)].into_iter().collect();
            let cost = rates.map(|rates| per_hour(rates, &alone));
            let row = ResourceUsage {
                peer: peer.clone(),
                role: ContractRole::Provider,
                pool: lent.pool.clone(),
                resource: resource.to_owned(),
                amount_seconds: AmountSeconds::default(),
                cost: None,
                currency: None,
                pods: 0,
                now: None,
            };
            row_like(rows, row).now = Some(UsageNow {
                amount,
                per_hour: cost.filter(|cost| !cost.is_zero()),
                currency: lent.prices.as_ref().map(|prices| prices.currency.clone()),
                in_contract: lent.is_in_contract,
            });
        }
    }
}

/// The row of the same resource, or this one.
fn row_like(rows: &mut Vec<ResourceUsage>, row: ResourceUsage) -> &mut ResourceUsage {
    let existing = rows.iter().position(|one| one.key() == row.key());
    let place = existing.unwrap_or(rows.len());
    if place == rows.len() {
        rows.push(row);
    }
    &mut rows[place]
}

/// One pool of a consumer, in the table.
#[derive(Default)]
struct LentSum {
    in_use: ResourceList,
    per_hour: Money,
    currency: Option<String>,
    is_in_contract: bool,
}

/// What consumers use now, as text for people; nothing if no pod of theirs is here.
pub fn render_lent(rows: &[ResourceUsage]) -> Option<String> {
    let mut sums: BTreeMap<(&str, &str), LentSum> = BTreeMap::new();
    for row in rows {
        let Some(now) = &row.now else { continue };
        let sum = sums.entry((&row.peer, &row.pool)).or_default();
        sum.in_use.insert(&row.resource, now.amount);
        sum.per_hour += now.per_hour.unwrap_or_default();
        sum.currency.clone_from(&now.currency);
        sum.is_in_contract = now.in_contract;
    }
    if sums.is_empty() {
        return None;
    }
    let is_without_contract = sums.values().any(|sum| !sum.is_in_contract);
    let lines = sums
        .into_iter()
        .map(|((peer, pool), sum)| lent_line(peer, pool, sum));
    let header = ["CONSUMER", "POOL", "PODS", "IN USE", "PER HOUR", "CONTRACT"];
    let mut text = format!(
        "Used now by each consumer:\n{}",
        output::format_table(&header, lines)
    );
    if is_without_contract {
        text += WITHOUT_CONTRACT;
    }
    Some(text)
}

fn lent_line(peer: &str, pool: &str, mut sum: LentSum) -> Vec<String> {
    let pods = sum.in_use.remove(PODS).unwrap_or_default();
    let per_hour = sum.currency.map_or_else(
        || "-".to_owned(),
        |currency| {
            let currency = strip_control_characters(&currency);
            format!("{} {currency}", sum.per_hour.rounded())
        },
    );
    vec![
        strip_control_characters(peer),
        strip_control_characters(pool),
        pods.to_string(),
        sum.in_use.rounded(),
        per_hour,
        if sum.is_in_contract { "yes" } else { "no" }.to_owned(),
    ]
}

#[cfg(test)]
mod tests;

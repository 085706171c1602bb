//! `liqoctl usage`: what pods used under contracts since the last receipt, and what consumers use of
//! this cluster now, with a contract or without.
//!
//! Usage records contain what has ended. For what still runs, a provider reads the status of shadow
//! pods. A consumer counts from the time when its local pods show that they run there.

mod lent;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use liqo_api::requests::EffectiveAmounts;
use liqo_api::{Contract, ForeignCluster, Money, PriceList, ShadowPod, is_final_phase, pods};
use liqo_metering::{Charges, UsageEntries, UsageEntry};
use liqo_quantity::{AmountSeconds, Quantity, cost_of_use, priced_unit};
use serde::Serialize;

use crate::output::{self, strip_control_characters};
use crate::parties::{ContractParty, ContractRole, peer_and_role, peer_name};
use crate::{cluster::Cluster, lists};

/// Usage of one resource of one pool by pods: since the last receipt, and now.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceUsage {
    /// Name of the peer's `ForeignCluster`; its ID where there is none.
    pub peer: String,
    pub role: ContractRole,
    pub pool: String,
    pub resource: String,
    pub amount_seconds: AmountSeconds,
    /// At the present prices of the contract.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// Number of pods that used it.
    pub pods: usize,
    /// The usage at this moment, with a contract or without; only at the provider, while a pod of
    /// the consumer has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub now: Option<UsageNow>,
}

/// What a consumer uses of one resource at this moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageNow {
    /// The amount that is charged for its unfinished pods.
    pub amount: Quantity,
    /// The cost of this amount for one hour, at the prices of the contract, or else of the offer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_hour: Option<Money>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// Whether a contract in force has prices for the pool.
    pub in_contract: bool,
}

impl ResourceUsage {
    /// The order of rows; two of them differ in it.
    fn key(&self) -> (&str, ContractRole, &str, &str) {
        (&self.peer, self.role, &self.pool, &self.resource)
    }
}

/// Usage with all peers, or with one.
pub async fn collect(
    cluster: &Cluster,
    of: Option<&ForeignCluster>,
) -> anyhow::Result<Vec<ResourceUsage>> {
    let now = Timestamp::now();
    let known = lists::list_peers(cluster).await?;
    let contracts = lists::list_contracts(cluster).await?;
    let records = lists::list_usage_records(cluster).await?;
    let shadows: Vec<ShadowPod> = lists::list_everywhere(cluster, "the shadow pods").await?;
    let nodes = lists::list_virtual_nodes(cluster, None).await?;

    let mut parties: BTreeMap<ContractParty, UsageEntries> = BTreeMap::new();
    for record in &records {
        let Some(party) = peer_and_role(&record.namespace().unwrap_or_default()) else {
            continue;
        };
        // A record that cannot be read counts nothing.
        parties.entry(party).or_default().extend(
            UsageEntries::parse(&record.spec.entries)
                .unwrap_or_default()
                .entries()
                .cloned(),
        );
    }
    let prices = prices_in_force(&contracts);
    for party in prices
        .keys()
        .filter(|party| party.role == ContractRole::Provider)
    {
        let usage = parties.entry(party.clone()).or_default();
        for shadow in shadows.iter().filter(|shadow| {
            peer_and_role(&shadow.namespace().unwrap_or_default()).as_ref() == Some(party)
        }) {
            usage.extend(usage_of_running(shadow, now));
        }
    }
    for node in &nodes {
        let party = ContractParty {
            id: node.spec.cluster_id.clone(),
            role: ContractRole::Consumer,
        };
        if let (true, Some(name)) = (
            prices.contains_key(&party),
            node.status
                .as_ref()
                .and_then(|status| status.node_name.as_ref()),
        ) {
            let local = lists::list_pods_on_node(cluster, name).await?;
            parties.entry(party).or_default().extend(
                local
                    .iter()
                    .filter_map(|pod| local_entry(pod, &node.spec.pool, now)),
            );
        }
    }
    let mut used: Vec<ResourceUsage> = parties
        .iter()
        .flat_map(|(party, usage)| usage_rows(&known, party, usage, prices.get(party)))
        .collect();
    if let Some(objects) = lent::list_lending_objects(cluster).await? {
        let pools = lent::lent_pools(&known, &contracts, &objects, now);
        lent::add_lent_pools(&mut used, &pools, &known);
    }
    used.retain(|one| of.is_none_or(|of| of.name_any() == one.peer));
    used.sort_by(|one, other| one.key().cmp(&other.key()));
    Ok(used)
}

/// The present prices of each contract in force, by pool.
fn prices_in_force(contracts: &[Contract]) -> BTreeMap<ContractParty, BTreeMap<String, PriceList>> {
    let in_force = contracts
        .iter()
        .filter(|contract| contract.spec.in_force_since.is_some());
    in_force
        .filter_map(|one| {
            Some((
                peer_and_role(&one.namespace()?)?,
                one.spec.terms.prices.clone(),
            ))
        })
        .collect()
}

/// The entries of a pod that runs here for a consumer.
fn usage_of_running(shadow: &ShadowPod, now: Timestamp) -> Vec<UsageEntry> {
    let charges = shadow
        .status
        .as_ref()
        .and_then(|status| status.charges.as_deref())
        .unwrap_or_default();
    charges.parse::<Charges>().unwrap_or_default().entries(
        &shadow.name_any(),
        &shadow.spec.pool,
        now.as_second(),
    )
}

/// The entry of a local pod, from when it showed that it runs at the provider until its last
/// container ended.
pub(crate) fn local_entry(pod: &Pod, pool: &str, now: Timestamp) -> Option<UsageEntry> {
    let status = pod.status.as_ref()?;
    let is_refused = status
        .conditions
        .iter()
        .flatten()
        .any(|one| one.type_ == pods::OFFLOADED && one.status == "False");
    // Only Liqo writes the start time of a pod on a virtual node, from its remote pod.
    let since = status
        .start_time
        .as_ref()
        .filter(|_| !is_refused)?
        .0
        .as_second();
    let is_over = status.phase.as_deref().is_some_and(is_final_phase);
    let ends = status
        .container_statuses
        .iter()
        .flatten()
        .filter_map(|one| {
            one.state
                .as_ref()?
                .terminated
                .as_ref()?
                .finished_at
                .as_ref()
        });
    let until = ends
        .map(|end| end.0.as_second())
        .max()
        .filter(|_| is_over)
        .unwrap_or(now.as_second());
    let amounts = EffectiveAmounts::of_pod(pod.spec.as_ref()?).requests;
    let mut entry = UsageEntry::exact(pod.uid()?.as_str(), pool, since, until, &amounts)?;
    entry.namespace = pod.namespace().unwrap_or_default();
    Some(entry)
}

/// The use of one resource of a pool.
#[derive(Default)]
struct UsageSum<'a> {
    amount_seconds: AmountSeconds,
    /// The UIDs of the pods that used it.
    pods: BTreeSet<&'a str>,
}

fn usage_rows(
    known: &[ForeignCluster],
    party: &ContractParty,
    usage: &UsageEntries,
    prices: Option<&BTreeMap<String, PriceList>>,
) -> Vec<ResourceUsage> {
    let mut sums: BTreeMap<(&str, &str), UsageSum> = BTreeMap::new();
    for entry in usage.entries().filter(|entry| !entry.from.is_estimate) {
        let seconds = u64::try_from(entry.seconds()).unwrap_or_default();
        for (name, amount) in &entry.amounts {
            let sum = sums.entry((&entry.pool, name)).or_default();
            sum.amount_seconds += AmountSeconds::from_amount(amount, seconds);
            sum.pods.insert(&entry.uid);
        }
    }
    sums.into_iter()
        .map(|((pool, resource), sum)| {
            let prices = prices.and_then(|prices| prices.get(pool));
            let rate = prices.and_then(|prices| prices.rates.get(resource));
            ResourceUsage {
                peer: peer_name(known, &party.id),
                role: party.role,
                pool: pool.to_owned(),
                resource: resource.to_owned(),
                amount_seconds: sum.amount_seconds,
                cost: rate.map(|rate| cost_of_use(rate, priced_unit(resource), sum.amount_seconds)),
                currency: prices.map(|prices| prices.currency.clone()),
                pods: sum.pods.len(),
                now: None,
            }
        })
        .collect()
}

/// The usage as text for people.
pub fn render_usage(used: &[ResourceUsage]) -> String {
    let metered: Vec<&ResourceUsage> = used.iter().filter(|one| one.pods > 0).collect();
    let text = if metered.is_empty() {
        "Nothing was used under a contract since the last receipt (`liqoctl receipt list`)."
            .to_owned()
    } else {
        render_metered(&metered)
    };
    match lent::render_lent(used) {
        Some(lent) => format!("{text}\n\n{lent}"),
        None => text,
    }
}

fn render_metered(used: &[&ResourceUsage]) -> String {
    let rows = used.iter().map(|one| {
        let cost = one.cost.zip(one.currency.as_ref()).map(|(cost, currency)| {
            let currency = strip_control_characters(currency);
            format!("{} {currency}", cost.rounded())
        });
        vec![
            strip_control_characters(&one.peer),
            one.role.to_string(),
            strip_control_characters(&one.pool),
            strip_control_characters(&one.resource),
            crate::receipt::amount_in_hours(&one.resource, one.amount_seconds),
            cost.unwrap_or_else(|| "-".to_owned()),
            one.pods.to_string(),
        ]
    });
    output::format_table(
        &["PEER", "ROLE", "POOL", "RESOURCE", "USED", "COST", "PODS"],
        rows,
    )
}

#[cfg(test)]
mod tests {
    use liqo_api::ClusterId;
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_are_summed_by_pool_and_resource_and_estimates_do_not_count() {
        let usage = UsageEntries::parse(
            "a gold 0 1800 cpu=2\nb gold 0 3600 cpu=1\nc gold ~0 ~3600 cpu=9\n",
        )
        .unwrap();
        let rates = [("cpu", "0.040004".parse().unwrap())].into_iter().collect();
        let prices = BTreeMap::from([(
            "gold".to_owned(),
            PriceList {
                currency: "EUR".into(),
                rates,
            },
        )]);
        let party = ContractParty {
            id: ClusterId::of_public_key(&[1; 32]),
            role: ContractRole::Provider,
        };
        let used = usage_rows(&[], &party, &usage, Some(&prices));
        assert_eq!(used.len(), 1);
        assert_eq!(
            (used[0].amount_seconds.to_string().as_str(), used[0].pods),
            ("7200", 2)
        );
        let text = render_usage(&used);
        assert!(
            text.contains("2 core-hours") && text.contains(" 0.08001 EUR"),
            "{text}"
        );
        assert!(render_usage(&[]).contains("receipt list"));
    }

    #[test]
    fn a_local_pod_counts_while_it_runs_at_the_provider() {
        let counted = |status: serde_json::Value| {
            let pod = json!({ "metadata": { "name": "web", "uid": "u" }, "status": status,
                "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] } });
            let now = Timestamp::from_second(160).unwrap();
            local_entry(&serde_json::from_value(pod).unwrap(), "gold", now)
                .map(|entry| entry.to_string())
        };
        let (start, end) = ("1970-01-01T00:01:40Z", "1970-01-01T00:02:00Z");
        assert_eq!(
            counted(json!({ "phase": "Running", "startTime": start })).as_deref(),
            Some("u gold 100 160 cpu=1,pods=1")
        );
        let ended = json!([{ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": 0, "finishedAt": end } } }]);
        let ended = json!({ "phase": "Succeeded", "startTime": start, "containerStatuses": ended });
        assert_eq!(
            counted(ended).as_deref(),
            Some("u gold 100 120 cpu=1,pods=1")
        );
        assert_eq!(counted(json!({ "phase": "Pending" })), None);
        let refused = json!([{ "type": "liqo.io/Offloaded", "status": "False" }]);
        assert_eq!(
            counted(json!({ "phase": "Pending", "startTime": start, "conditions": refused })),
            None
        );
    }
}

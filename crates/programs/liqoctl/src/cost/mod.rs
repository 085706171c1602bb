//! `liqoctl cost`: what the pods in other clusters cost now and so far, what is left of budgets,
//! and what workloads would cost where.
//!
//! Costs of now are amounts times the prices on the virtual nodes, as the webhook computes them for
//! the placement of pods. Costs so far are what this cluster metered under contracts. Pods that run
//! without a contract count at the prices of now, since they started.

pub mod plan;
pub mod running;
mod spent;
mod workload;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read as _,
    path::Path,
};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};
use liqo_api::{Money, labels};

use crate::{
    cluster::{Cluster, ExplainFailure as _},
    lists::{self, NodeSelection, UNFINISHED_PODS},
    offload, unpeer,
};
use plan::WorkloadCosts;
use running::{CostReport, VirtualNodePods};

/// Nodes whose pods are listed at the same time.
const CONCURRENCY: usize = 16;
/// Pods in one page of a list.
const PAGE: u32 = 500;
/// A month has 30 days here, whatever its name.
const HOURS_OF_A_MONTH: i128 = 30 * 24;

/// The price of 30 days, from the price per hour. Exact.
fn in_thirty_days(per_hour: Money) -> Money {
    Money::from_nanos(per_hour.nanos().saturating_mul(HOURS_OF_A_MONTH))
}

/// A rounded amount for people; without a currency it is nothing.
fn amount_in_words(amount: Money, currency: Option<&str>) -> String {
    currency.map_or_else(
        || amount.rounded(),
        |currency| format!("{} {currency}", amount.rounded()),
    )
}

/// The present price of the unfinished pods on virtual nodes and the money spent so far, of one
/// namespace or of all, at one peer or at all; and the budgets that concern all of that.
pub async fn running_costs(
    cluster: &Cluster,
    namespace: Option<&str>,
    peer: Option<&str>,
) -> anyhow::Result<CostReport> {
    let peer = match peer {
        Some(peer) => Some(
            unpeer::peer_by_name(cluster, peer)
                .await?
                .spec
                .cluster_id
                .to_string(),
        ),
        None => None,
    };
    let mut nodes = lists::list_nodes(cluster, NodeSelection::Virtual).await?;
    if let Some(peer) = &peer {
        nodes.retain(|node| node.labels().get(labels::REMOTE_CLUSTER_ID) == Some(peer));
    }
    let pods = nodes.into_iter().map(|node| async move {
        let fields = format!("spec.nodeName={},{UNFINISHED_PODS}", node.name_any());
        let pods = list_pods(cluster, namespace, &fields).await?;
        anyhow::Ok(VirtualNodePods { node, pods })
    });
    let running: Vec<VirtualNodePods> = futures::stream::iter(pods)
        .buffered(CONCURRENCY)
        .try_collect()
        .await?;
    let now = Timestamp::now();
    let names = peer_names(cluster).await?;
    let Some(mut contracts) = spent::visible_contracts(cluster).await? else {
        let hidden = running::compute_costs(&running, &names, &[]);
        return Ok(hidden.without_spending());
    };
    contracts.retain(|contract| {
        peer.as_ref()
            .is_none_or(|peer| contract.provider.as_str() == peer)
    });
    spent::add_running(&mut contracts, &running, now);
    let mut spent = spent::spending_under_contracts(&contracts, namespace, now);
    spent.extend(spent::spending_without_contract(&contracts, &running, now));
    let mut costs = running::compute_costs(&running, &names, &spent);
    if peer.is_none() {
        costs.budgets = spent::budget_lines(cluster, &contracts, &running, namespace, now).await?;
    }
    Ok(costs)
}

/// The names of peers, by their ID.
async fn peer_names(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, String>> {
    Ok(lists::list_peers(cluster)
        .await?
        .into_iter()
        .map(|peer| (peer.spec.cluster_id.to_string(), peer.name_any()))
        .collect())
}

/// The pods of a namespace, or of all, that these fields select. Reads them page by page.
async fn list_pods(
    cluster: &Cluster,
    namespace: Option<&str>,
    fields: &str,
) -> anyhow::Result<Vec<Pod>> {
    let client = cluster.client.clone();
    let api: Api<Pod> = namespace.map_or_else(
        || Api::all(client.clone()),
        |name| Api::namespaced(client.clone(), name),
    );
    list_pages(&api, fields).await.doing("list pods")
}

async fn list_pages(api: &Api<Pod>, fields: &str) -> kube::Result<Vec<Pod>> {
    let mut parameters = ListParams::default().fields(fields).limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = api.list(&parameters).await?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// The pods that take room on nodes: all, or those of these namespaces for people who see no more.
async fn pods_that_take_room(
    cluster: &Cluster,
    namespaces: BTreeSet<&str>,
) -> anyhow::Result<Vec<Pod>> {
    let fields = format!("spec.nodeName!=,{UNFINISHED_PODS}");
    let api: Api<Pod> = Api::all(cluster.client.clone());
    if let Some(all) = lists::if_allowed(list_pages(&api, &fields).await.doing("list pods"))? {
        return Ok(all);
    }
    eprintln!("you may not list pods of other namespaces, so nodes may have less room than shown");
    let mut pods = Vec::new();
    for namespace in namespaces {
        pods.extend(list_pods(cluster, Some(namespace), &fields).await?);
    }
    Ok(pods)
}

/// Computes the costs of the workloads in a file at each place. Creates nothing.
pub async fn plan_costs(
    cluster: &Cluster,
    file: &Path,
    namespace: &str,
) -> anyhow::Result<Vec<WorkloadCosts>> {
    let own = cluster.visible_installation().await?;
    let own_name = own.map_or_else(String::new, |own| own.config.spec.cluster_name);
    let workloads = workload::parse_workloads(&read_workload_file(file)?, namespace)
        .with_context(|| format!("cannot read {}", file.display()))?;
    let nodes = lists::list_nodes(cluster, NodeSelection::All).await?;
    let namespaces = workloads.iter().map(|one| one.namespace.as_str());
    let pods = pods_that_take_room(cluster, namespaces.collect()).await?;
    let peers = peer_names(cluster).await?;
    let mut planned = Vec::new();
    for workload in &workloads {
        let offloading = offload::present_offloading(cluster, &workload.namespace).await?;
        let offloading = offloading
            .filter(|one| one.metadata.deletion_timestamp.is_none())
            .map(|one| one.spec);
        let facts = plan::CostPlanFacts {
            nodes: &nodes,
            pods: &pods,
            peers: &peers,
            own_name: &own_name,
            offloaded: offloading.as_ref(),
        };
        planned.push(plan::plan_workload_costs(workload, &facts)?);
    }
    Ok(planned)
}

fn read_workload_file(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("cannot read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_is_exactly_720_hours() {
        assert_eq!(
            in_thirty_days("0.000000001".parse().unwrap()),
            "0.00000072".parse().unwrap()
        );
        assert_eq!(
            amount_in_words("0.04".parse().unwrap(), Some("EUR")),
            "0.04 EUR"
        );
        assert_eq!(
            amount_in_words("0.000022578".parse().unwrap(), Some("EUR")),
            "0.00002258 EUR"
        );
        assert_eq!(amount_in_words(Money::ZERO, None), "0");
    }
}

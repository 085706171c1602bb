//! `liqoctl offer`: shows what peers offer and what this cluster offers, and records the user's
//! decisions.
//!
//! A decision goes into `spec.offers` of the `ForeignCluster`, by pool. The controllers judge the
//! offer again, and this module shows the result.

mod decide;
mod list;
#[cfg(test)]
mod tests;

use std::{
    cell::Cell,
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use liqo_api::{ForeignCluster, OfferDecision, ResourceOffer, VirtualNode, provider_namespace};
use serde::Serialize;
use serde_json::json;

use crate::{
    cluster::{Cluster, ExplainFailure as _, full_name},
    lists,
    progress::StepProgress,
    wait::{PollResult, final_error, until},
};

pub use decide::{OfferChoiceError, OfferOrTerms, choose_what_to_accept};
pub use list::{ListedOffer, OfferDirection, list_offers, render_offers};

/// A contrary answer counts once it stays for this time: it may be older than the decision.
const ANSWER_DELAY: Duration = Duration::from_secs(5);

/// Maximum number of pods to name; the others are counted.
const MAX_PODS_NAMED: usize = 10;

/// A decision that the controllers carried out.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DecidedOffer {
    /// Name of the peer.
    pub peer: String,
    pub pool: String,
    pub decision: OfferDecision,
    /// Name of the pool's Node, if it was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Pods that ended because of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost_pods: Vec<String>,
}

/// The offers that were received from a peer.
pub async fn received_offers(
    cluster: &Cluster,
    foreign: &ForeignCluster,
) -> anyhow::Result<Vec<ResourceOffer>> {
    let api: Api<ResourceOffer> = Api::namespaced(
        cluster.client.clone(),
        &provider_namespace(&foreign.spec.cluster_id),
    );
    let what = format!("the offers of {}", foreign.name_any());
    lists::list_selected(&api, &ListParams::default(), &what).await
}

/// The unfinished pods that run on the Node of a pool: they end when it is refused.
pub async fn pods_on(
    cluster: &Cluster,
    foreign: &ForeignCluster,
    pool: &str,
) -> anyhow::Result<Vec<String>> {
    let Some(node) = virtual_node(cluster, foreign, pool)
        .await?
        .and_then(|node| node.status?.node_name)
    else {
        return Ok(Vec::new());
    };
    let pods = lists::list_pod_metadata_on_node(cluster, None, &node).await?;
    Ok(pods.iter().map(full_name).collect())
}

/// The question to ask before refusing an offer that is in use.
pub fn question_before_refusal(peer: &str, pool: &str, lost: &[String]) -> String {
    let more = lost.len().saturating_sub(MAX_PODS_NAMED);
    let named = lost
        .iter()
        .take(MAX_PODS_NAMED)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    let lost = if more == 0 {
        named
    } else {
        format!("{named} and {more} more")
    };
    format!("This ends the pods that run on pool {pool} of {peer}: {lost}. Continue?")
}

async fn virtual_node(
    cluster: &Cluster,
    foreign: &ForeignCluster,
    pool: &str,
) -> anyhow::Result<Option<VirtualNode>> {
    let api: Api<VirtualNode> = Api::namespaced(
        cluster.client.clone(),
        &provider_namespace(&foreign.spec.cluster_id),
    );
    api.get_opt(pool)
        .await
        .doing(format!("read the virtual node of pool {pool}"))
}

/// Records a decision and waits until the controllers carried it out.
pub async fn decide_and_wait(
    cluster: &Cluster,
    foreign: &ForeignCluster,
    pool: &str,
    decision: OfferDecision,
    timeout: Duration,
    progress: &StepProgress,
) -> anyhow::Result<Option<String>> {
    let name = foreign.name_any();
    write_decision(cluster, &name, &BTreeMap::from([(pool, Some(decision))])).await?;
    let step = match decision {
        OfferDecision::Accept => format!("Accepting pool {pool} of {name}"),
        OfferDecision::Refuse => format!("Refusing pool {pool} of {name}"),
    };
    let what = match decision {
        OfferDecision::Accept => format!("pool {pool} of {name} is accepted"),
        OfferDecision::Refuse => format!("pool {pool} of {name} is refused"),
    };
    let clusters: Api<ForeignCluster> = Api::all(cluster.client.clone());
    let against: Cell<Option<Instant>> = Cell::new(None);
    let processed = until(
        &what,
        timeout,
        |text| progress.message(&step, text),
        || async {
            let foreign = clusters
                .get(&name)
                .await
                .doing(format!("read ForeignCluster {name}"))?;
            let offers = received_offers(cluster, &foreign).await?;
            let offer = offers.iter().find(|offer| offer.name_any() == pool);
            let node = virtual_node(cluster, &foreign, pool).await?;
            match decide::decision_progress(decision, &foreign, offer, node.as_ref()) {
                decide::DecisionProgress::Done(node) => Ok(PollResult::Done(node)),
                decide::DecisionProgress::Waiting(text) => {
                    against.set(None);
                    Ok(PollResult::NotYet(text))
                }
                decide::DecisionProgress::Against(text) => {
                    let since = against.get().unwrap_or_else(Instant::now);
                    against.set(Some(since));
                    // The text is not shown earlier, because it may be older than the decision.
                    if since.elapsed() >= ANSWER_DELAY {
                        Err(final_error(text))
                    } else {
                        Ok(PollResult::NotYet(decide::NOT_PROCESSED.to_owned()))
                    }
                }
            }
        },
    );
    progress.run_step(&step, processed).await.map_err(|error| {
        anyhow!("{error:#}. The decision stays in ForeignCluster {name}: `liqoctl offer forget {name} {pool}` undoes it")
    })
}

/// Removes a decision, so that the policy decides again.
pub async fn forget_decision(
    cluster: &Cluster,
    foreign: &ForeignCluster,
    pool: &str,
) -> anyhow::Result<()> {
    decide::ensure_decision_exists(foreign, pool)?;
    write_decision(
        cluster,
        &foreign.name_any(),
        &BTreeMap::from([(pool, None)]),
    )
    .await
}

async fn write_decision(
    cluster: &Cluster,
    name: &str,
    offers: &BTreeMap<&str, Option<OfferDecision>>,
) -> anyhow::Result<()> {
    let api: Api<ForeignCluster> = Api::all(cluster.client.clone());
    let change = json!({ "spec": { "offers": offers } });
    let written = api
        .patch(name, &PatchParams::default(), &Patch::Merge(&change))
        .await;
    written
        .doing(format!("write the decision into ForeignCluster {name}"))
        .map(drop)
}

/// The result as text for people.
pub fn render_decided_offer(decided: &DecidedOffer) -> String {
    let DecidedOffer {
        peer,
        pool,
        decision,
        node,
        lost_pods,
    } = decided;
    match (decision, node) {
        (OfferDecision::Accept, Some(node)) => {
            format!("Pool {pool} of {peer} is accepted: it is Node {node} here.")
        }
        (OfferDecision::Accept, None) => format!("Pool {pool} of {peer} is accepted."),
        (OfferDecision::Refuse, _) => {
            let lost = match lost_pods.len() {
                0 => String::new(),
                1 => " One pod ended.".to_owned(),
                more => format!(" {more} pods ended."),
            };
            format!(
                "Pool {pool} of {peer} is refused.{lost} `liqoctl offer forget {peer} {pool}` lets the policy decide again."
            )
        }
    }
}

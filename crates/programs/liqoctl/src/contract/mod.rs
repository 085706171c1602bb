//! `liqoctl contract`: what this cluster agreed on with peers, and whether both sides keep it.
//!
//! A provider has its contracts in tenant namespaces, a consumer has copies in its provider
//! namespaces. A person's decision goes into `spec.contracts` of the peer's `ForeignCluster`, by
//! contract. `verify` needs no cluster.

mod state;
mod text;
mod verify;

use std::{collections::BTreeMap, time::Duration};

use anyhow::bail;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use liqo_api::{Contract, ContractAnswer, ContractDecision, ContractEnd, ForeignCluster};
use serde::Serialize;
use serde_json::json;

use crate::{
    cluster::{Cluster, ExplainFailure as _},
    parties::{self, ContractRole},
    progress::StepProgress,
    wait::{PollResult, until},
};

pub use state::{ContractState, ListedContract};
pub use text::{question_of_end, render_contract, render_contracts, render_terms};
pub use verify::{render_contract_verdict, verify_contract_files};

/// All contracts, or those of one peer, the newest first.
pub async fn list_contracts(
    cluster: &Cluster,
    of: Option<&ForeignCluster>,
) -> anyhow::Result<Vec<ListedContract>> {
    let now = jiff::Timestamp::now();
    let all = parties::list_objects_of_peers(cluster, of, "contracts").await?;
    let mut found: Vec<ListedContract> = all
        .into_iter()
        .map(|one| ListedContract::new(one, now))
        .collect();
    found.sort_by(|one, other| order(one).cmp(&order(other)));
    Ok(found)
}

fn order(one: &ListedContract) -> (&str, ContractRole, bool, std::cmp::Reverse<i64>) {
    let start = one.contract.spec.terms.start.0.as_second();
    (
        &one.peer,
        one.role,
        one.state == ContractState::Ended,
        std::cmp::Reverse(start),
    )
}

/// Selects the contracts of a peer to show: those that are not over, else the one that was over
/// last.
pub fn contracts_to_show(
    mut found: Vec<ListedContract>,
    peer: &str,
) -> anyhow::Result<Vec<ListedContract>> {
    let (open, ended): (Vec<ListedContract>, Vec<ListedContract>) = found
        .drain(..)
        .partition(|one| one.state != ContractState::Ended);
    let shown: Vec<ListedContract> = if open.is_empty() {
        ended.into_iter().take(1).collect()
    } else {
        open
    };
    if shown.is_empty() {
        bail!(
            "there is no contract with {peer}: `liqoctl contract list` shows all, and `provide.contract` of the provider's policy has them"
        );
    }
    Ok(shown)
}

/// The contract that the user wants to end: the named one, or the only one that is not over.
pub fn contract_to_end(
    found: Vec<ListedContract>,
    peer: &str,
    name: Option<&str>,
) -> anyhow::Result<ListedContract> {
    let mut open: Vec<ListedContract> = found
        .into_iter()
        .filter(|one| one.state != ContractState::Ended)
        .collect();
    open.retain(|one| name.is_none_or(|name| name == one.name));
    let names: Vec<&str> = open.iter().map(|one| one.name.as_str()).collect();
    match open.len() {
        0 => bail!(
            "there is no contract with {peer} to end: `liqoctl contract list {peer}` shows all"
        ),
        1 => {}
        _ => bail!(
            "there are several contracts with {peer}: name one with --contract: {}",
            names.join(", ")
        ),
    }
    let one = open.remove(0);
    match &one.contract.spec.ended {
        Some(end) => bail!("{} ends already, at {}", one.name, end.at.0),
        None => Ok(one),
    }
}

/// A contract whose end was recorded.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndedContract {
    pub peer: String,
    pub contract: String,
    pub end: ContractEnd,
}

/// Records that a contract ends, and waits until the provider has announced when.
pub async fn end_contract(
    cluster: &Cluster,
    foreign: &ForeignCluster,
    one: &ListedContract,
    reason: Option<&str>,
    timeout: Duration,
    progress: &StepProgress,
) -> anyhow::Result<EndedContract> {
    let decision = ContractDecision {
        decision: ContractAnswer::End,
        terms: None,
        reason: reason.map(str::to_owned),
    };
    write_decisions(
        cluster,
        foreign,
        &BTreeMap::from([(one.name.as_str(), Some(decision))]),
    )
    .await?;
    let namespace = one.contract.namespace().unwrap_or_default();
    let contracts: Api<Contract> = Api::namespaced(cluster.client.clone(), &namespace);
    let (step, what) = (
        format!("Ending {} with {}", one.name, one.peer),
        format!("the end of {} is announced", one.name),
    );
    let announced = until(
        &what,
        timeout,
        |text| progress.message(&step, text),
        || async {
            let contract = contracts
                .get(&one.name)
                .await
                .doing(format!("read contract {}", one.name))?;
            Ok(contract.spec.ended.map_or_else(
                || PollResult::NotYet("the provider has not announced it yet".to_owned()),
                PollResult::Done,
            ))
        },
    );
    let end = progress.run_step(&step, announced).await.map_err(|error| {
        anyhow::anyhow!("{error:#}. The decision stays in ForeignCluster {}: `liqoctl contract forget {0}` undoes it", one.peer)
    })?;
    Ok(EndedContract {
        peer: one.peer.clone(),
        contract: one.name.clone(),
        end,
    })
}

/// Removes all decisions on contracts with a peer. Returns the names of these contracts.
pub async fn forget_decisions(
    cluster: &Cluster,
    foreign: &ForeignCluster,
) -> anyhow::Result<Vec<String>> {
    let names: Vec<String> = foreign.spec.contracts.keys().cloned().collect();
    if names.is_empty() {
        bail!(
            "there is no decision on a contract with {}",
            foreign.name_any()
        );
    }
    write_decisions(
        cluster,
        foreign,
        &names.iter().map(|name| (name.as_str(), None)).collect(),
    )
    .await?;
    Ok(names)
}

/// The contract that an offer waits for: terms, or an amendment of them, that this cluster has not
/// signed.
pub async fn contracts_to_sign(
    cluster: &Cluster,
    foreign: &ForeignCluster,
) -> anyhow::Result<Vec<ListedContract>> {
    let found = list_contracts(cluster, Some(foreign)).await?;
    Ok(found
        .into_iter()
        .filter(|one| {
            one.role == ContractRole::Consumer && !one.is_kept && one.unsigned_terms().is_some()
        })
        .collect())
}

/// Records that a person accepts exactly the terms that it saw. Earlier ends of contracts with the
/// peer no longer count.
pub async fn record_acceptance(
    cluster: &Cluster,
    foreign: &ForeignCluster,
    seen: &[ListedContract],
) -> anyhow::Result<()> {
    let mut decisions: BTreeMap<&str, Option<ContractDecision>> = BTreeMap::new();
    let ended = foreign
        .spec
        .contracts
        .iter()
        .filter(|(_, decision)| decision.decision == ContractAnswer::End);
    decisions.extend(ended.map(|(name, _)| (name.as_str(), None)));
    for one in seen {
        let decision = ContractDecision {
            decision: ContractAnswer::Accept,
            terms: one.unsigned_terms().map(|terms| terms.digest),
            reason: None,
        };
        decisions.insert(&one.name, Some(decision));
    }
    write_decisions(cluster, foreign, &decisions).await
}

async fn write_decisions(
    cluster: &Cluster,
    foreign: &ForeignCluster,
    decisions: &BTreeMap<&str, Option<ContractDecision>>,
) -> anyhow::Result<()> {
    let (api, name): (Api<ForeignCluster>, String) =
        (Api::all(cluster.client.clone()), foreign.name_any());
    // A merge patch removes what is null, and keeps the fields of an object that it does not name.
    let contracts: BTreeMap<&str, _> = decisions
        .iter()
        .map(|(name, decision)| {
            let whole = decision.as_ref().map(
                |one| json!({ "decision": one.decision, "terms": one.terms, "reason": one.reason }),
            );
            (*name, whole)
        })
        .collect();
    let change = json!({ "spec": { "contracts": contracts } });
    let written = api
        .patch(&name, &PatchParams::default(), &Patch::Merge(&change))
        .await;
    written
        .doing(format!("write the decision into ForeignCluster {name}"))
        .map(drop)
}

#[cfg(test)]
mod tests;

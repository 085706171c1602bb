//! The state of a contract, as a person reads it.

use jiff::Timestamp;
use liqo_api::{Breach, Contract, ContractPhase};
use liqo_market::contract::{document::ContractDocument, record::ContractRecord};
use serde::Serialize;

use crate::parties::{ContractRole, PeerObject};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ContractState {
    /// The consumer has not answered.
    Proposed,
    /// A person at the consumer has to decide.
    AwaitingDecision,
    /// The consumer does not sign.
    Refused,
    /// Both signed.
    InForce,
    /// Both signed, and an amendment is not signed yet.
    Amending,
    /// Its end is announced.
    Ending,
    Ended,
}

/// One contract.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedContract {
    /// Name of the peer's `ForeignCluster`; where there is none, the name that it had, or its ID.
    pub peer: String,
    /// The role of this cluster in the contract.
    pub role: ContractRole,
    /// Whether the peering has ended.
    pub is_kept: bool,
    pub name: String,
    pub state: ContractState,
    /// Whether no breach lasts.
    pub honoured: bool,
    pub contract: Contract,
}

impl ListedContract {
    pub fn new(
        PeerObject {
            peer,
            role,
            is_kept,
            name,
            object: contract,
            ..
        }: PeerObject<Contract>,
        now: Timestamp,
    ) -> Self {
        // A contract is over with its peering, even if nobody could write that down.
        let state = if is_kept {
            ContractState::Ended
        } else {
            contract_state(&contract, now)
        };
        let honoured = lasting_breaches(&contract).next().is_none();
        Self {
            peer,
            role,
            is_kept,
            name,
            state,
            honoured,
            contract,
        }
    }

    /// The terms that the consumer has not signed: the proposal, or the amendment. What cannot be
    /// verified is no proposal.
    pub fn unsigned_terms(&self) -> Option<ContractDocument> {
        let record = ContractRecord::from_issued(self.contract.clone());
        if record.spec.ended.is_some() && record.pending.is_none() {
            return None;
        }
        match (record.signed_document(), record.amendment()) {
            (None, _) => record.current.ok().map(|terms| terms.document),
            (Some(_), Some(amendment)) if amendment.countersignature.is_none() => {
                Some(amendment.document.clone())
            }
            _ => None,
        }
    }
}

fn contract_state(contract: &Contract, now: Timestamp) -> ContractState {
    let status = contract.status.clone().unwrap_or_default();
    match &contract.spec.ended {
        Some(end) if end.at.0 <= now => return ContractState::Ended,
        Some(_) => return ContractState::Ending,
        None => {}
    }
    if contract.spec.in_force_since.is_some() && status.phase != ContractPhase::Ended {
        return if contract.spec.pending.is_some() {
            ContractState::Amending
        } else {
            ContractState::InForce
        };
    }
    match status.phase {
        ContractPhase::Ended => ContractState::Ended,
        ContractPhase::Refused => ContractState::Refused,
        ContractPhase::AwaitingDecision => ContractState::AwaitingDecision,
        ContractPhase::Proposed | ContractPhase::InForce => ContractState::Proposed,
    }
}

/// The breaches that last, whoever found them.
pub fn lasting_breaches(contract: &Contract) -> impl Iterator<Item = &Breach> {
    let of_consumer = contract.status.iter().flat_map(|status| &status.breaches);
    contract
        .spec
        .breaches
        .iter()
        .chain(of_consumer)
        .filter(|breach| breach.until.is_none())
}

//! The state of a contract, as a person reads it.

use jiff::Timestamp;
use liqo_api::{Breach, Contract, ContractPhase};
use liqo_market::contract::{document::Document, record::ContractRecord};
use serde::Serialize;

use crate::parties::{OfPeer, Role};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum State {
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
pub struct Found {
    /// Name of the peer's `ForeignCluster`; where there is none, the name that it had, or its ID.
    pub peer: String,
    /// The role of this cluster in the contract.
    pub role: Role,
    /// Whether the peering has ended.
    pub is_kept: bool,
    pub name: String,
    pub state: State,
    /// Whether no breach lasts.
    pub honoured: bool,
    pub contract: Contract,
}

impl Found {
    pub fn new(
        OfPeer {
            peer,
            role,
            is_kept,
            name,
            object: contract,
            ..
        }: OfPeer<Contract>,
        now: Timestamp,
    ) -> Self {
        // A contract is over with its peering, even if nobody could write that down.
        let state = if is_kept {
            State::Ended
        } else {
            state(&contract, now)
        };
        let honoured = lasting(&contract).next().is_none();
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
    pub fn unsigned(&self) -> Option<Document> {
        let record = ContractRecord::issued(self.contract.clone());
        if record.spec.ended.is_some() && record.pending.is_none() {
            return None;
        }
        match (record.signed(), record.amendment()) {
            (None, _) => record.current.ok().map(|terms| terms.document),
            (Some(_), Some(amendment)) if amendment.countersignature.is_none() => {
                Some(amendment.document.clone())
            }
            _ => None,
        }
    }
}

fn state(contract: &Contract, now: Timestamp) -> State {
    let status = contract.status.clone().unwrap_or_default();
    match &contract.spec.ended {
        Some(end) if end.at.0 <= now => return State::Ended,
        Some(_) => return State::Ending,
        None => {}
    }
    if contract.spec.in_force_since.is_some() && status.phase != ContractPhase::Ended {
        return if contract.spec.pending.is_some() {
            State::Amending
        } else {
            State::InForce
        };
    }
    match status.phase {
        ContractPhase::Ended => State::Ended,
        ContractPhase::Refused => State::Refused,
        ContractPhase::AwaitingDecision => State::AwaitingDecision,
        ContractPhase::Proposed | ContractPhase::InForce => State::Proposed,
    }
}

/// The breaches that last, whoever found them.
pub fn lasting(contract: &Contract) -> impl Iterator<Item = &Breach> {
    let of_consumer = contract.status.iter().flat_map(|status| &status.breaches);
    contract
        .spec
        .breaches
        .iter()
        .chain(of_consumer)
        .filter(|breach| breach.until.is_none())
}

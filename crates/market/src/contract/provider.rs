//! The provider's side: proposes, amends, marks in force, renews and ends contracts.
//!
//! Each step is decided from the objects alone, so that a restart between two of them changes
//! nothing. What needs no change is not written.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use liqo_api::{
    BreachKind, ClusterId, Commitment, Contract, ContractAnswer, ContractDecision, ContractEnd,
    ContractPhase, ContractSpec, ContractTerms, EarlierTerms, EndCause, OnBreach, Party,
    ProposedTerms, Provide, ProvideContract, Renewal, ResourceList, Time,
};
use liqo_signing::{ClusterIdentity, payload_digest};

use super::{
    after, before,
    breaches::{
        BreachFinding, UnconfirmedBreaches, bounded_text, lasting_breaches, update_breaches,
    },
    dearer::{cost_increase, counts_from},
    document::{ContractDocument, DocumentError},
    duties::{ended_early, missing_amounts},
    earlier::full_until,
    record::{IssuedContract, SignedTerms, surplus_contracts},
    standing::{is_reopened, live_contract, may_propose, signing_deadline},
    wanted::{VersionNames, WantedTerms},
    whole_seconds,
};

/// One consumer with a tenancy.
pub struct ContractInput<'a> {
    pub identity: &'a ClusterIdentity,
    pub consumer: &'a ClusterId,
    /// The `provide` section of the policy that applies to it.
    pub provide: Option<&'a Provide>,
    /// Whether it asks for resources.
    pub asks: bool,
    /// The peering that its request names.
    pub peering: Option<&'a str>,
    /// Whether this cluster hears it now.
    pub is_heard: bool,
    /// Terms that a contract should have now; `None` while nothing is offered.
    pub wanted: Option<WantedTerms>,
    /// Resources that are offered now, by pool; `None` while the offers are withdrawn.
    pub offered: Option<BTreeMap<String, ResourceList>>,
    pub records: &'a [Arc<IssuedContract>],
    /// Decisions of persons here, by contract.
    pub decisions: &'a BTreeMap<String, ContractDecision>,
    /// Reasons why receipts count as not answered, by the ID of the contract.
    pub unanswered: &'a BTreeMap<String, String>,
    /// Random bytes, from which the ID of a new contract is made.
    pub nonce: &'a [u8],
    pub now: Timestamp,
}

/// One contract to write.
#[derive(Clone, Debug, PartialEq)]
pub struct ContractWrite {
    pub name: String,
    pub spec: ContractSpec,
    pub exists: bool,
}

/// Changes of the contracts of one consumer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContractPlan {
    pub writes: Vec<ContractWrite>,
    /// Names of contracts to delete.
    pub deletions: Vec<String>,
    /// Time of the next decision.
    pub next: Option<Timestamp>,
    /// Reason why no contract, or no change of it, can be proposed.
    pub problem: Option<String>,
}

/// Decides on the contracts of one consumer. `unconfirmed` is what this process saw before.
pub fn decide_contracts(
    case: &ContractInput,
    unconfirmed: &mut UnconfirmedBreaches,
) -> ContractPlan {
    let mut plan = ContractPlan::default();
    let policy = case.contract_policy();
    let (mut found, next) = unconfirmed.confirm_lasting(&case.possible_breaches(), case.now);
    plan.note_time(next);
    match live_contract(case.records, case.now) {
        Some(record) if policy.is_none() && record.signed_document().is_none() => {
            plan.deletions.push(record.name.clone());
        }
        Some(record) => {
            let spec = case.next_spec(record, &mut found, &mut plan);
            plan.write_spec(record, spec);
        }
        None => case.propose_first(&mut plan),
    }
    for record in case
        .records
        .iter()
        .filter(|record| record.is_over(case.now) && !record.deleting)
    {
        let not_accepted: Vec<BreachFinding> = found
            .iter()
            .filter(|finding| finding.object == record.name)
            .cloned()
            .collect();
        let mut spec = record.spec.clone();
        let unknown = if case.is_heard {
            vec![BreachKind::CapacityMissing]
        } else {
            vec![BreachKind::EndNotAccepted]
        };
        spec.breaches = update_breaches(&spec.breaches, &not_accepted, &unknown, case.now);
        plan.write_spec(record, spec);
    }
    let names = surplus_contracts(
        case.records
            .iter()
            .filter_map(|record| Some((record.name.as_str(), record.spec.ended.as_ref()?.at.0))),
        case.now,
    );
    plan.writes.retain(|write| !names.contains(&write.name));
    plan.deletions.extend(names);
    plan
}

impl ContractPlan {
    fn note_time(&mut self, time: Option<Timestamp>) {
        self.next = self.next.into_iter().chain(time).min();
    }

    fn write_spec(&mut self, record: &IssuedContract, spec: ContractSpec) {
        if spec != record.spec {
            self.writes.push(ContractWrite {
                name: record.name.clone(),
                spec,
                exists: true,
            });
        }
    }

    /// Signs terms; notes why that is impossible.
    fn sign_terms(&mut self, identity: &ClusterIdentity, terms: &ContractTerms) -> Option<String> {
        let composed: Result<String, DocumentError> = ContractDocument::compose(identity, terms);
        self.problem = composed.as_ref().err().map(ToString::to_string);
        composed.ok()
    }
}

impl ContractInput<'_> {
    fn contract_policy(&self) -> Option<&ProvideContract> {
        self.provide?.contract.as_ref()
    }

    fn propose_first(&self, plan: &mut ContractPlan) {
        let (Some(policy), Some(wanted)) = (self.contract_policy(), &self.wanted) else {
            return;
        };
        if !self.asks
            || !may_propose(
                policy,
                self.records,
                is_reopened(self.records, self.decisions),
            )
        {
            return;
        }
        let id = payload_digest(&[self.nonce, self.consumer.as_str().as_bytes()].concat())
            .chars()
            .take(32)
            .collect();
        let terms = self.first_terms(wanted, policy, id, 1);
        let Some(document) = plan.sign_terms(self.identity, &terms) else {
            return;
        };
        let name = Contract::name_of(&terms.contract);
        let spec = ContractSpec {
            document,
            terms,
            countersignature: None,
            in_force_since: None,
            earlier: Vec::new(),
            pending: None,
            breaches: Vec::new(),
            ended: None,
        };
        plan.writes.push(ContractWrite {
            name,
            spec,
            exists: false,
        });
    }

    fn first_terms(
        &self,
        wanted: &WantedTerms,
        policy: &ProvideContract,
        contract: String,
        version: u32,
    ) -> ContractTerms {
        let start = whole_seconds(self.now);
        let end = policy
            .period_seconds
            .map(|period| Time(after(start, period)));
        wanted.with_names(
            self.version_names(contract, version, None),
            Time(start),
            end,
        )
    }

    fn version_names(
        &self,
        contract: String,
        version: u32,
        previous: Option<String>,
    ) -> VersionNames {
        let (provider, consumer) = (self.identity.id().clone(), self.consumer.clone());
        VersionNames {
            contract,
            version,
            previous,
            provider,
            consumer,
            peering: self.peering.map(str::to_owned),
        }
    }

    fn next_spec(
        &self,
        record: &IssuedContract,
        found: &mut Vec<BreachFinding>,
        plan: &mut ContractPlan,
    ) -> ContractSpec {
        let mut spec = record.spec.clone();
        self.mark_in_force(record, &mut spec, plan);
        match record.signed_document() {
            None => self.replace_proposal(record, &mut spec, plan),
            Some(signed) => {
                // A promoted amendment is looked at again with the next event.
                if spec.document == record.spec.document {
                    self.amend_contract(record, &signed.terms, &signed.digest, &mut spec, plan);
                }
            }
        }
        if spec.ended.is_none() && spec.document == record.spec.document {
            spec.ended = self.due_end(record, plan);
            if let Some(end) = &spec.ended {
                found.extend(
                    record
                        .signed_document()
                        .and_then(|signed| ended_early(&signed.terms, end)),
                );
                spec.pending = spec.pending.filter(|_| end.cause == EndCause::PeriodOver);
            }
        }
        // Without offers that are meant to stay, nothing can be said about their amounts.
        let unknown = if self.offered.is_some() && spec.ended.is_none() {
            Vec::new()
        } else {
            vec![BreachKind::CapacityMissing]
        };
        let mine: Vec<BreachFinding> = found
            .iter()
            .filter(|finding| finding.kind != BreachKind::EndNotAccepted)
            .cloned()
            .collect();
        spec.breaches = update_breaches(&spec.breaches, &mine, &unknown, self.now);
        plan.note_time(
            self.contract_policy()
                .and_then(|policy| signing_deadline(policy, record))
                .filter(|deadline| *deadline > self.now),
        );
        plan.note_time(
            spec.ended
                .as_ref()
                .map(|end| end.at.0)
                .filter(|at| *at > self.now),
        );
        spec
    }

    /// Takes over the consumer's signatures.
    fn mark_in_force(
        &self,
        record: &IssuedContract,
        spec: &mut ContractSpec,
        plan: &mut ContractPlan,
    ) {
        if let Some(counts) = self.counts_later(record) {
            plan.note_time(Some(counts));
            let signature = record
                .amendment()
                .and_then(|terms| terms.countersignature.clone());
            if let Some(pending) = spec
                .pending
                .as_mut()
                .filter(|pending| pending.signed.is_none())
            {
                pending.countersignature = signature;
                pending.signed = Some(Time(whole_seconds(self.now)));
            }
            spec.ended = spec
                .ended
                .take()
                .filter(|end| end.cause != EndCause::PeriodOver);
            return;
        }
        let amendment = record
            .amendment()
            .filter(|terms| terms.countersignature.is_some());
        if let (Some(amendment), Some(pending)) = (amendment, &record.spec.pending) {
            if let (Ok(replaced), Some(since)) = (&record.current, &record.spec.in_force_since) {
                let SignedTerms {
                    document: ContractDocument { terms, digest, .. },
                    ..
                } = replaced;
                let (digest, since, prices) = (digest.clone(), since.clone(), terms.prices.clone());
                spec.remember_terms(EarlierTerms {
                    version: terms.version,
                    digest,
                    since,
                    prices,
                });
            }
            spec.document.clone_from(&pending.document);
            spec.terms = amendment.document.terms.clone();
            spec.countersignature
                .clone_from(&amendment.countersignature);
            spec.in_force_since = Some(Time(whole_seconds(self.now)));
            spec.pending = None;
            // The next period was signed in time.
            spec.ended = spec
                .ended
                .take()
                .filter(|end| end.cause != EndCause::PeriodOver);
            return;
        }
        let signature = record
            .current
            .as_ref()
            .ok()
            .and_then(|terms| terms.countersignature.as_ref());
        if let Some(signature) = signature.filter(|_| spec.in_force_since.is_none()) {
            spec.countersignature = Some(signature.clone());
            spec.in_force_since = Some(Time(whole_seconds(self.now)));
        }
    }

    /// Time from which an amendment counts that the consumer has signed, if that is later. The
    /// delay begins when this cluster sees the signature.
    fn counts_later(&self, record: &IssuedContract) -> Option<Timestamp> {
        let amendment = record
            .amendment()
            .filter(|terms| terms.countersignature.is_some())?;
        let replaced = &record.current.as_ref().ok()?.document.terms;
        let signed = record
            .spec
            .pending
            .as_ref()?
            .signed
            .as_ref()
            .map_or(whole_seconds(self.now), |time| time.0);
        Some(counts_from(signed, replaced, &amendment.document.terms))
            .filter(|counts| *counts > self.now)
    }

    /// Replaces a proposal that nobody has signed, if the policy says something else now.
    fn replace_proposal(
        &self,
        record: &IssuedContract,
        spec: &mut ContractSpec,
        plan: &mut ContractPlan,
    ) {
        let (Some(policy), Some(wanted), Ok(current)) =
            (self.contract_policy(), &self.wanted, &record.current)
        else {
            return;
        };
        let terms = &current.document.terms;
        let is_current = terms.peering.as_deref() == self.peering && !wanted.differ_from(terms);
        if spec.ended.is_some() || is_current {
            return;
        }
        let next = self.first_terms(
            wanted,
            policy,
            terms.contract.clone(),
            terms.version.saturating_add(1),
        );
        if let Some(document) = plan.sign_terms(self.identity, &next) {
            spec.document = document;
            spec.terms = next;
        }
    }

    /// Proposes an amendment, changes the one that is proposed, or takes it back.
    fn amend_contract(
        &self,
        record: &IssuedContract,
        signed: &ContractTerms,
        digest: &str,
        spec: &mut ContractSpec,
        plan: &mut ContractPlan,
    ) {
        let renewing = self.renewal_time(signed);
        plan.note_time(renewing.filter(|time| *time > self.now));
        let is_ending = spec
            .ended
            .as_ref()
            .is_some_and(|end| end.cause != EndCause::PeriodOver);
        let (Some(policy), Some(wanted)) = (self.contract_policy(), &self.wanted) else {
            spec.pending = spec
                .pending
                .take()
                .filter(|_| self.contract_policy().is_some());
            return;
        };
        let renews = renewing.is_some_and(|time| time <= self.now);
        if is_ending || !(renews || wanted.differ_from(signed)) {
            spec.pending = None;
            return;
        }
        let end = match (policy.period_seconds, &signed.end) {
            (None, _) => None,
            (Some(period), Some(end)) if renews => Some(Time(after(end.0, period))),
            (Some(_), Some(end)) => Some(end.clone()),
            (Some(period), None) => Some(Time(after(whole_seconds(self.now), period))),
        };
        let pending = record
            .pending
            .as_ref()
            .and_then(|pending| pending.as_ref().ok())
            .map(|terms| &terms.document.terms);
        let is_proposed = pending.is_some_and(|terms| {
            let has_same_end = match (&terms.end, &end, &signed.end) {
                (Some(_), Some(_), None) => true,
                (proposed, wanted, _) => proposed == wanted,
            };
            terms.previous.as_deref() == Some(digest) && has_same_end && !wanted.differ_from(terms)
        });
        if is_proposed {
            return;
        }
        let last = pending.map_or(signed.version, |terms| terms.version.max(signed.version));
        let names = self.version_names(
            signed.contract.clone(),
            last.saturating_add(1),
            Some(digest.to_owned()),
        );
        let terms = wanted.with_names(names, signed.start.clone(), end);
        // Periods of different lengths would overlap.
        let terms = ContractTerms {
            metering_period_seconds: signed.metering_period_seconds,
            ..terms
        };
        // Otherwise prices that go on to rise would never count.
        let waits = pending.filter(|_| self.counts_later(record).is_some());
        if waits.is_some_and(|waiting| cost_increase(waiting, &terms).is_some()) {
            return;
        }
        if let Some(until) = full_until(spec, renews, self.now) {
            let changes = spec.earlier.len();
            plan.problem = Some(format!(
                "its terms changed {changes} times lately, and receipts need them all: no change before {until}"
            ));
            plan.note_time(Some(until));
            spec.pending = None;
            return;
        }
        // An older version of Liqo, which names no peering, does not know the delay either.
        let delays = self.peering.is_some()
            && signed.notice_seconds > 0
            && cost_increase(signed, &terms).is_some();
        let terms = ContractTerms {
            counts_after_seconds: delays.then_some(signed.notice_seconds),
            ..terms
        };
        if let Some(document) = plan.sign_terms(self.identity, &terms) {
            let proposed = Time(whole_seconds(self.now));
            spec.pending = Some(ProposedTerms {
                document,
                terms,
                proposed,
                countersignature: None,
                signed: None,
            });
        }
    }

    /// Time at which the next period is proposed: early enough for the notice and for the
    /// consumer's signature.
    fn renewal_time(&self, signed: &ContractTerms) -> Option<Timestamp> {
        let policy = self
            .contract_policy()
            .filter(|policy| policy.renewal == Renewal::Automatic)?;
        let period = policy.period_seconds?;
        let lead = signed
            .notice_seconds
            .saturating_add(policy.sign_within_seconds)
            .min(period / 2);
        Some(before(signed.end.as_ref()?.0, lead))
    }

    /// The end of a contract, if something ends it now.
    fn due_end(&self, record: &IssuedContract, plan: &mut ContractPlan) -> Option<ContractEnd> {
        let Ok(current) = &record.current else {
            let reason = "the provider's own document cannot be verified any more";
            return Some(self.end_after(0, Party::Provider, EndCause::Damaged, reason));
        };
        let terms = &current.document.terms;
        // Nothing runs under a proposal.
        let notice = if record.signed_document().is_some() {
            terms.notice_seconds
        } else {
            0
        };
        self.requested_end(record, notice)
            .or_else(|| self.end_of_requests(record, terms, notice))
            .or_else(|| self.end_for_breach(notice))
            .or_else(|| self.end_without_policy(terms, notice))
            .or_else(|| self.end_of_period(record, terms, notice, plan))
    }

    /// An end that is announced now and comes after these seconds.
    fn end_after(&self, seconds: u32, by: Party, cause: EndCause, reason: &str) -> ContractEnd {
        let announced = whole_seconds(self.now);
        ContractEnd {
            by,
            cause,
            announced: Time(announced),
            at: Time(after(announced, seconds)),
            reason: bounded_text(reason),
        }
    }

    /// The end that a person here or the consumer asks for.
    fn requested_end(&self, record: &IssuedContract, notice: u32) -> Option<ContractEnd> {
        if let Some(decision) = self
            .decisions
            .get(&record.name)
            .filter(|decision| decision.decision == ContractAnswer::End)
        {
            let reason = decision
                .reason
                .as_deref()
                .unwrap_or("a person at the provider ends it");
            return Some(self.end_after(notice, Party::Provider, EndCause::Requested, reason));
        }
        let request = record.status.unverified().end_requested.as_ref()?;
        Some(self.end_after(
            notice,
            Party::Consumer,
            cause_of_consumer(request.cause),
            &request.reason,
        ))
    }

    /// The end of a contract whose consumer, or whose peering, does not ask for it any more.
    fn end_of_requests(
        &self,
        record: &IssuedContract,
        terms: &ContractTerms,
        notice: u32,
    ) -> Option<ContractEnd> {
        if !self.asks {
            let reason = "the consumer asks for nothing any more";
            return Some(self.end_after(0, Party::Consumer, EndCause::NothingRequested, reason));
        }
        let signed_for = terms
            .peering
            .as_deref()
            .filter(|_| record.signed_document().is_some());
        let is_of_another = signed_for
            .zip(self.peering)
            .is_some_and(|(signed, present)| signed != present);
        is_of_another.then(|| {
            let reason =
                "the consumer began another peering, and knows nothing of this contract any more";
            self.end_after(notice, Party::Consumer, EndCause::Requested, reason)
        })
    }

    /// The end because of a lasting breach by the consumer, if the policy ends contracts for that.
    fn end_for_breach(&self, notice: u32) -> Option<ContractEnd> {
        self.contract_policy()
            .filter(|policy| policy.on_breach == OnBreach::EndWithNotice)?;
        let breach = self
            .records
            .iter()
            .flat_map(|record| lasting_breaches(&record.spec.breaches, Party::Consumer))
            .next()?;
        let reason = format!("{}: {}", breach.kind.as_str(), breach.message);
        Some(self.end_after(notice, Party::Provider, EndCause::Breach, &reason))
    }

    /// The end of a contract that the policy does not provide for any more.
    fn end_without_policy(&self, terms: &ContractTerms, notice: u32) -> Option<ContractEnd> {
        if self.contract_policy().is_some() {
            return None;
        }
        let reason = "the provider's policy has no contracts for this consumer any more";
        let mut end = self.end_after(notice, Party::Provider, EndCause::PolicyChanged, reason);
        let promised = terms
            .end
            .as_ref()
            .filter(|_| terms.commitment == Commitment::Guaranteed);
        end.at = Time(promised.map_or(end.at.0, |promised| promised.0.max(end.at.0)));
        Some(end)
    }

    /// The end of the signed period, unless a signed amendment renews it. Notes when to announce
    /// it.
    fn end_of_period(
        &self,
        record: &IssuedContract,
        terms: &ContractTerms,
        notice: u32,
        plan: &mut ContractPlan,
    ) -> Option<ContractEnd> {
        let over = &terms
            .end
            .as_ref()
            .filter(|_| record.signed_document().is_some())?
            .0;
        let is_renewed = record.amendment().is_some_and(|next| {
            next.countersignature.is_some() && next.document.terms.end != terms.end
        });
        if is_renewed && *over > self.now {
            return None;
        }
        let length =
            u32::try_from(over.duration_since(terms.start.0).as_secs()).unwrap_or(u32::MAX);
        let announce = before(*over, notice.min(length / 4));
        if announce > self.now {
            plan.note_time(Some(announce));
            return None;
        }
        let reason = "its period is over";
        let mut end = self.end_after(0, Party::Provider, EndCause::PeriodOver, reason);
        end.at = Time((*over).max(end.announced.0));
        Some(end)
    }

    /// Problems that exist now. They count as breaches only if they last.
    fn possible_breaches(&self) -> Vec<BreachFinding> {
        let mut found = Vec::new();
        let live =
            live_contract(self.records, self.now).filter(|record| record.spec.ended.is_none());
        if let (Some(terms), Some(offered), true) = (
            live.and_then(IssuedContract::signed_document),
            &self.offered,
            self.asks,
        ) {
            for pool in terms
                .terms
                .pools
                .iter()
                .filter(|_| terms.terms.commitment == Commitment::Guaranteed)
            {
                let missing = missing_amounts(&pool.resources, offered.get(&pool.name));
                found.extend(missing.map(|text| {
                    BreachFinding::new(
                        Party::Provider,
                        BreachKind::CapacityMissing,
                        &pool.name,
                        text,
                    )
                }));
            }
        }
        if let Some((terms, text)) = live.and_then(|record| {
            let terms = record.signed_document()?;
            Some((terms, self.unanswered.get(&terms.terms.contract)?))
        }) {
            let id = Contract::name_of(&terms.terms.contract);
            found.push(BreachFinding::new(
                Party::Consumer,
                BreachKind::ReceiptsNotAnswered,
                &id,
                text,
            ));
        }
        let over = self
            .records
            .iter()
            .filter(|record| record.is_over(self.now) && record.spec.in_force_since.is_some());
        // Who asks for nothing any more has no reason to answer.
        let over = over.filter(|_| self.asks);
        let answers = over
            .filter(|_| self.is_heard)
            .map(|record| (record, record.status.unverified().phase));
        for (record, phase) in answers.filter(|(_, phase)| *phase != ContractPhase::Ended) {
            let message = format!("the consumer answers {phase:?} after the end");
            found.push(BreachFinding::new(
                Party::Consumer,
                BreachKind::EndNotAccepted,
                &record.name,
                message,
            ));
        }
        found
    }
}

/// The cause that a consumer gives. The others are the provider's own.
fn cause_of_consumer(said: EndCause) -> EndCause {
    match said {
        EndCause::NothingRequested | EndCause::Breach => said,
        EndCause::Requested
        | EndCause::PeriodOver
        | EndCause::PolicyChanged
        | EndCause::Damaged
        | EndCause::Removed => EndCause::Requested,
    }
}

#[cfg(test)]
mod tests;

//! The consumer's side: reads what a provider proposes, signs it where policy and persons agree,
//! and keeps a copy.
//!
//! What this cluster signed once stays signed: a policy that changes later ends a contract only
//! where a person says so.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use liqo_api::conditions::{self, DesiredCondition};
use liqo_api::{
    Accept, AcceptContract, Claimed, ClusterId, Commitment, Consume, Contract, ContractAnswer,
    ContractDecision, ContractEnd, ContractPhase, ContractSpec, ContractStatus, ContractTerms,
    EndCause, EndRequest, OnBreach, Party, PriceList, ResourceOffer, Time,
};
use liqo_signing::ClusterIdentity;

use super::{
    TOLERANCE,
    breaches::{
        UnconfirmedBreaches, bounded_text, honoured_condition, lasting_breaches, update_breaches,
    },
    copied::{OwnKnowledge, next_copy},
    dearer::{PositiveRate, changes_charged_amounts, cost_increase, positive_rates},
    document::ContractDocument,
    duties::{ObservedContract, removal_finding},
    record::{ContractAtProvider, ContractCopy, surplus_contracts},
    whole_seconds,
};

/// Maximum number of contracts of one provider that are read.
const MAX_CONTRACTS: usize = 16;

/// Input for the judgement of a provider's contracts.
pub struct ContractView<'a> {
    pub identity: &'a ClusterIdentity,
    pub provider: &'a ClusterId,
    /// The name of the provider's `ForeignCluster`.
    pub peer: &'a str,
    /// The present peering, as this cluster's request names it.
    pub peering: &'a str,
    /// The `consume` section of our policy for the provider; `None` if no policy selects it.
    pub consume: Option<&'a Consume>,
    /// Decisions of persons here, by contract.
    pub decisions: &'a BTreeMap<String, ContractDecision>,
    /// The contracts at the provider, and their copies here, by name.
    pub contracts: &'a BTreeMap<String, Arc<ContractAtProvider>>,
    pub copies: &'a BTreeMap<String, Arc<ContractCopy>>,
    /// The offers at the provider, and their copies here, by pool.
    pub offers: &'a BTreeMap<String, Arc<Claimed<ResourceOffer>>>,
    pub offer_copies: &'a BTreeMap<String, Arc<ResourceOffer>>,
    /// Whether the connection has worked for longer than the tolerance.
    pub steady: bool,
    pub now: Timestamp,
}

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum ContractAction {
    /// Creates or changes the copy of a contract.
    ApplyCopy(String, Box<ContractSpec>),
    /// Writes our answer into the copy.
    AnswerCopy(String, ContractStatus),
    /// Deletes the copy of a contract, after another copy took over what it cost.
    DeleteCopy {
        name: String,
        successor: Option<String>,
    },
    /// Writes our answer into the contract, at the provider.
    Answer(String, ContractStatus),
}

impl ContractAction {
    /// The name of the copy that it writes.
    pub fn copy_name(&self) -> Option<&str> {
        match self {
            Self::ApplyCopy(name, _)
            | Self::AnswerCopy(name, _)
            | Self::DeleteCopy { name, .. } => Some(name),
            Self::Answer(..) => None,
        }
    }
}

/// Effect of a contract on the offers under it.
#[derive(Clone, Debug, PartialEq)]
pub enum ContractStance {
    /// This cluster signed these terms. The text says why no new pods go there all the same.
    Signed {
        pools: Vec<String>,
        no_new_pods: Option<String>,
    },
    /// A person has to decide.
    Asks(String),
    /// It can be signed later.
    Waits(String),
    /// This cluster does not sign; whether a person said so.
    Refused {
        why: String,
        by_person: bool,
    },
    Over,
}

/// Actions and stances for the contracts of one provider.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContractJudgement {
    pub actions: Vec<ContractAction>,
    /// By name.
    pub contract_stances: BTreeMap<String, ContractStance>,
    /// The contract in force: its name, and its end if that is announced.
    in_force: Option<(String, Option<Timestamp>)>,
    /// Time of the next judgement.
    pub next: Option<Timestamp>,
}

/// Decision on terms that this cluster has not signed.
enum TermsDecision {
    Sign,
    Ask(String),
    Wait(String),
    Refuse { why: String, by_person: bool },
}

/// Judges all contracts of a provider. `unconfirmed` is what this process saw before, by contract.
pub fn judge_contracts(
    view: &ContractView,
    unconfirmed: &mut BTreeMap<String, UnconfirmedBreaches>,
) -> ContractJudgement {
    let mut judgement = ContractJudgement::default();
    unconfirmed.retain(|name, _| view.contracts.contains_key(name));
    view.judge_removed(&mut judgement);
    let mut read: Vec<&Arc<ContractAtProvider>> = view
        .contracts
        .values()
        .filter(|record| !record.deleting)
        .collect();
    // What is in force comes first: nothing else is signed beside it. New ones never push out what
    // this cluster knows.
    read.sort_by_key(|record| {
        view.copies
            .get(&record.name)
            .map_or(2, |copy| u8::from(!view.is_in_force(copy)))
    });
    for record in read.into_iter().take(MAX_CONTRACTS) {
        view.judge_one(
            record,
            unconfirmed.entry(record.name.clone()).or_default(),
            &mut judgement,
        );
    }
    let ended = view
        .copies
        .iter()
        .filter_map(|(name, copy)| Some((name.as_str(), copy.spec.ended.as_ref()?.at.0)));
    let mut old = surplus_contracts(ended, view.now);
    // What was spent stays with the newest copy, so that one never goes.
    let in_force = view
        .copies
        .values()
        .filter(|copy| copy.spec.in_force_since.is_some() && !copy.deleting);
    let successor = in_force
        .max_by_key(|copy| (!old.contains(&copy.name), copy.created, &copy.name))
        .map(|copy| copy.name.clone());
    old.retain(|name| !view.contracts.contains_key(name) && Some(name) != successor.as_ref());
    judgement
        .actions
        .extend(old.into_iter().map(|name| ContractAction::DeleteCopy {
            name,
            successor: successor.clone(),
        }));
    judgement
}

impl ContractView<'_> {
    /// Whether this cluster signed what a copy says, and it is not over.
    fn is_in_force(&self, copy: &ContractCopy) -> bool {
        copy.signed_document().is_some() && !copy.is_over(self.now)
    }

    /// Ends the contracts that are gone at the provider. They count as in force until their ends are
    /// stored, so no other contract is signed before that.
    fn judge_removed(&self, judgement: &mut ContractJudgement) {
        for (name, copy) in self.copies.iter().filter(|(_, copy)| !copy.deleting) {
            let shown = self.contracts.get(name);
            if shown.is_some_and(|record| !record.deleting) {
                continue;
            }
            judgement
                .actions
                .extend(self.removed_at_provider(name, copy));
            if copy.spec.in_force_since.is_some() && self.is_in_force(copy) {
                judgement.in_force = Some((name.clone(), Some(whole_seconds(self.now))));
            }
        }
    }

    /// The latest end of other contracts that are in force, or that the provider may still put in
    /// force after the fact.
    fn end_before(&self, name: &str) -> Option<Timestamp> {
        let others = self.copies.values().filter(|copy| copy.name != name);
        let signed = others
            .filter(|copy| copy.spec.in_force_since.is_some() || copy.signed_document().is_some());
        signed
            .filter_map(|copy| Some(copy.spec.ended.as_ref()?.at.0))
            .max()
    }

    fn judge_one(
        &self,
        record: &ContractAtProvider,
        unconfirmed: &mut UnconfirmedBreaches,
        judgement: &mut ContractJudgement,
    ) {
        let name = &record.name;
        let copy = self.copies.get(name).map(Arc::as_ref);
        // What this cluster answered is in its own copy. A signature that only the provider shows
        // may be of an earlier peering.
        let nothing = ContractStatus::default();
        let known = copy.map_or(&nothing, |copy| &copy.status);
        let mut status = ContractStatus {
            breaches: known.breaches.clone(),
            ..ContractStatus::default()
        };
        let current = record
            .current
            .as_ref()
            .ok()
            .map(|terms| &terms.document)
            .filter(|document| self.is_ours(&document.terms));
        let own = current.and_then(|document| self.own_signature(known, document));
        let signed = current.filter(|_| own.is_some());
        let has_follower = judgement.in_force.is_some();
        let known_here = OwnKnowledge {
            copy,
            signed: own,
            not_before: self.end_before(name),
            has_follower,
            now: self.now,
        };
        // An end that the copy has stays, whatever the provider says.
        let spec = next_copy(&known_here, record);
        let sight = ObservedContract {
            record,
            signed,
            copy,
            offers: self.offers,
            offer_copies: self.offer_copies,
            steady: self.steady,
            now: self.now,
        };
        let findings = sight.findings();
        let (mut found, next) = unconfirmed.confirm_lasting(&findings.unconfirmed, self.now);
        found.extend(findings.certain);
        status.breaches = update_breaches(&status.breaches, &found, &findings.unknown, self.now);
        judgement.next = judgement
            .next
            .into_iter()
            .chain(next)
            .chain(spec.ended.as_ref().map(|end| end.at.0))
            .filter(|time| *time > self.now)
            .min();
        let bound = copy
            .filter(|copy| copy.spec.in_force_since.is_some() && copy.signed_document().is_some());
        // If the copy keeps other terms, it keeps the signature under those.
        let taken_over = signed.filter(|document| bound.is_none() || spec.terms == document.terms);
        let own = OwnView {
            known,
            signed: taken_over,
            bound,
            counts: spec.in_force_since.is_some(),
            ended: spec.ended.as_ref(),
            in_force: judgement.in_force.as_ref(),
        };
        let stance = self.answer_contract(record, &own, &mut status);
        let is_in_force = matches!(stance, ContractStance::Signed { .. })
            || bound.is_some_and(|_| !own.is_over(self.now));
        if is_in_force && judgement.in_force.is_none() {
            judgement.in_force = Some((name.clone(), spec.ended.as_ref().map(|end| end.at.0)));
        }
        judgement.contract_stances.insert(name.clone(), stance);
        let honoured = honoured_condition(&record.spec.unverified().breaches, &status.breaches);
        status.conditions = with_condition(&known.conditions, &honoured, self.now);
        // What the provider changed without our signature is not in it, so the evidence stays.
        if copy.is_none_or(|copy| copy.spec != spec) && !copy.is_some_and(|copy| copy.deleting) {
            judgement
                .actions
                .push(ContractAction::ApplyCopy(name.clone(), Box::new(spec)));
        }
        if copy.is_none_or(|copy| copy.status != status) {
            judgement
                .actions
                .push(ContractAction::AnswerCopy(name.clone(), status.clone()));
        }
        let answer = ContractStatus {
            signed: None,
            pending_signed: None,
            ..status
        };
        if !record.status.says(&answer) {
            judgement
                .actions
                .push(ContractAction::Answer(name.clone(), answer));
        }
    }

    /// Time of this cluster's signature under a document, as its own copy says.
    fn own_signature(
        &self,
        known: &ContractStatus,
        document: &ContractDocument,
    ) -> Option<Timestamp> {
        let all = [
            (&known.signature, &known.signed),
            (&known.pending_signature, &known.pending_signed),
        ];
        let (_, time) = all.into_iter().find(|(signature, _)| {
            let signature = signature.as_ref();
            signature.is_some_and(|signature| document.check_countersignature(signature).is_ok())
        })?;
        Some(time.as_ref().map_or(self.now, |time| time.0))
    }

    /// Fills in phase, message, signatures and the wish to end.
    fn answer_contract(
        &self,
        record: &ContractAtProvider,
        own: &OwnView<'_>,
        status: &mut ContractStatus,
    ) -> ContractStance {
        let OwnView {
            known,
            signed,
            bound,
            ended,
            in_force,
            ..
        } = *own;
        if let Some(document) = signed {
            self.sign_document(document, known, status);
        } else if bound.is_some() {
            // What the provider shows instead changes nothing.
            keep_signatures(known, status);
        }
        if own.is_over(self.now) {
            status.phase = ContractPhase::Ended;
            status.message =
                ended.map(|end| bounded_text(&format!("ended by the {}: {}", end.by, end.reason)));
            return ContractStance::Over;
        }
        let current = match &record.current {
            Ok(current) => &current.document,
            Err(error) => return refuse_contract(status, error.clone(), false),
        };
        if !self.is_ours(&current.terms) {
            return refuse_contract(
                status,
                "the contract is between other clusters".to_owned(),
                false,
            );
        }
        status.end_requested = self.end_request(record, own, status);
        if signed.is_none() {
            if ended.is_some() {
                return refuse_contract(
                    status,
                    "the provider ends it before it was signed".to_owned(),
                    false,
                );
            }
            if bound.is_some() {
                let why = "its terms replace those in force without an amendment".to_owned();
                return refuse_contract(status, why, false);
            }
            let verdict = conflict_with_in_force(in_force)
                .or_else(|| self.terms_defect(&record.name, &current.terms));
            let verdict = verdict.unwrap_or_else(|| {
                self.decide_on_terms(&record.name, current, None, current.terms.start.0)
            });
            match verdict {
                TermsDecision::Ask(why) => {
                    status.phase = ContractPhase::AwaitingDecision;
                    status.message = Some(bounded_text(&why));
                    return ContractStance::Asks(why);
                }
                TermsDecision::Wait(why) => {
                    status.message = Some(bounded_text(&why));
                    return ContractStance::Waits(why);
                }
                TermsDecision::Refuse { why, by_person } => {
                    return refuse_contract(status, why, by_person);
                }
                TermsDecision::Sign => self.sign_document(current, known, status),
            }
        }
        status.phase = ContractPhase::InForce;
        status.message = self.judge_amendment(record, current, own, status);
        let pools = current
            .terms
            .pools
            .iter()
            .map(|pool| pool.name.clone())
            .collect();
        let mut no_new_pods = self.no_new_pods(record, status);
        if no_new_pods.is_none() && !own.counts {
            // Nothing is recorded before that, and its terms may still be replaced without notice.
            let why = "the provider has not said yet since when the contract is in force";
            no_new_pods = Some(why.to_owned());
        }
        ContractStance::Signed { pools, no_new_pods }
    }

    /// Signs a document as the consumer. One that is signed already keeps the time of that.
    fn sign_document(
        &self,
        document: &ContractDocument,
        known: &ContractStatus,
        status: &mut ContractStatus,
    ) {
        let time = self.own_signature(known, document).unwrap_or(self.now);
        status.signature = Some(document.countersign(self.identity));
        status.signed = Some(Time(whole_seconds(time)));
    }

    /// Signs the amendment if it is acceptable. Returns what a person should know about it.
    fn judge_amendment(
        &self,
        record: &ContractAtProvider,
        current: &ContractDocument,
        own: &OwnView<'_>,
        status: &mut ContractStatus,
    ) -> Option<String> {
        let ending = own.ended.filter(|end| end.cause != EndCause::PeriodOver);
        if let Some(end) = ending {
            return Some(bounded_text(&format!(
                "it ends at {}: {}",
                end.at.0, end.reason
            )));
        }
        let pending = match record.pending.as_ref()? {
            Ok(pending) => &pending.document,
            Err(error) => {
                return Some(bounded_text(&format!(
                    "the amendment is not signed: {error}"
                )));
            }
        };
        let version = pending.terms.version;
        let follows = self.is_ours(&pending.terms)
            && pending.terms.contract == current.terms.contract
            && pending.terms.previous.as_deref() == Some(current.digest.as_str())
            && (pending.terms.peering == current.terms.peering
                || pending.terms.peering.as_deref() == Some(self.peering))
            && version > current.terms.version;
        if !follows {
            return Some(format!(
                "version {version} is not signed: it does not follow the version in force"
            ));
        }
        let base = current.terms.end.as_ref().map_or(self.now, |end| end.0);
        // What was signed stays signed until it counts.
        let verdict = match self.own_signature(own.known, pending) {
            Some(_) => TermsDecision::Sign,
            None => too_soon(&current.terms, &pending.terms).unwrap_or_else(|| {
                self.decide_on_terms(&record.name, pending, Some(&current.terms), base)
            }),
        };
        match verdict {
            TermsDecision::Sign => {
                let time = self.own_signature(own.known, pending).unwrap_or(self.now);
                status.pending_signature = Some(pending.countersign(self.identity));
                status.pending_signed = Some(Time(whole_seconds(time)));
                None
            }
            TermsDecision::Ask(why) | TermsDecision::Wait(why) => {
                Some(bounded_text(&format!("version {version}: {why}")))
            }
            TermsDecision::Refuse { why, .. } => Some(bounded_text(&format!(
                "version {version} is not signed: {why}"
            ))),
        }
    }

    fn is_ours(&self, terms: &ContractTerms) -> bool {
        terms.consumer == *self.identity.id() && terms.provider == *self.provider
    }

    /// Refuses terms that are not a new contract of this peering, whatever policy and persons say.
    fn terms_defect(&self, name: &str, terms: &ContractTerms) -> Option<TermsDecision> {
        match terms.peering.as_deref() {
            Some(peering) if peering == self.peering => {}
            Some(_) => return Some(refused_terms("it is of another peering")),
            None => {
                return Some(refused_terms(
                    "it names no peering: the provider has an older version of Liqo",
                ));
            }
        }
        if Contract::name_of(&terms.contract) != name {
            return Some(refused_terms(format!(
                "it has the name of another contract: its ID is {}",
                terms.contract
            )));
        }
        if terms
            .start
            .0
            .saturating_sub(TOLERANCE)
            .is_ok_and(|start| start > self.now)
        {
            return Some(refused_terms(format!(
                "it begins at {}, in the future",
                terms.start.0
            )));
        }
        // The newest copy never goes, so a contract whose copy is gone does not come back.
        let others = self
            .copies
            .values()
            .filter(|copy| copy.name != name && copy.spec.in_force_since.is_some());
        let starts = others.filter_map(|copy| {
            Some((
                copy.current.as_ref().ok()?.document.terms.start.0,
                &copy.name,
            ))
        });
        let (_, newer) = starts.max().filter(|(start, _)| *start > terms.start.0)?;
        Some(refused_terms(format!(
            "it is older than {newer}, which is known here"
        )))
    }

    /// `replaced`: the terms in force, if these are an amendment. `base`: when the period of these
    /// terms begins.
    fn decide_on_terms(
        &self,
        name: &str,
        document: &ContractDocument,
        replaced: Option<&ContractTerms>,
        base: Timestamp,
    ) -> TermsDecision {
        let decision = self
            .decisions
            .get(name)
            .filter(|decision| decision.is_about(&document.digest));
        let decision = decision.map(|decision| decision.decision);
        if matches!(decision, Some(ContractAnswer::Refuse | ContractAnswer::End)) {
            return TermsDecision::Refuse {
                why: "the user refused it".to_owned(),
                by_person: true,
            };
        }
        let Some(consume) = self.consume else {
            return refused_terms("no PeeringPolicy of the consumer selects this provider");
        };
        if consume.accept == Accept::Never {
            return refused_terms("the consumer's PeeringPolicy accepts nothing from here");
        }
        if let Some(why) = beyond_limits(&document.terms, consume, base) {
            return refused_terms(why);
        }
        if decision.is_some() {
            return TermsDecision::Sign;
        }
        // Whoever ended a contract with this provider wants to be asked about the next one.
        let ended_another = self
            .decisions
            .iter()
            .any(|(other, one)| one.decision == ContractAnswer::End && other != name);
        let why = if ended_another || consume.contract.accept == AcceptContract::Manual {
            Some("the contract requires a decision by the user".to_owned())
        } else {
            unlimited_costs(&document.terms, replaced, consume.max_prices.as_ref())
        };
        match why {
            Some(why) => TermsDecision::Ask(format!("{why}: `liqoctl offer accept {}`", self.peer)),
            None => TermsDecision::Sign,
        }
    }

    fn end_request(
        &self,
        record: &ContractAtProvider,
        own: &OwnView<'_>,
        status: &ContractStatus,
    ) -> Option<EndRequest> {
        if own.ended.is_some() || own.signed.is_none() {
            return None;
        }
        if let Some(decision) = self
            .decisions
            .get(&record.name)
            .filter(|decision| decision.decision == ContractAnswer::End)
        {
            let reason = decision
                .reason
                .clone()
                .unwrap_or_else(|| "a person at the consumer ends it".to_owned());
            return Some(EndRequest {
                cause: EndCause::Requested,
                reason,
            });
        }
        let ends = self
            .consume
            .is_some_and(|consume| consume.contract.on_breach == OnBreach::EndWithNotice);
        let breach = lasting_breaches(&status.breaches, Party::Provider)
            .next()
            .filter(|_| ends)?;
        Some(EndRequest {
            cause: EndCause::Breach,
            reason: bounded_text(&format!("{}: {}", breach.kind.as_str(), breach.message)),
        })
    }

    fn no_new_pods(&self, record: &ContractAtProvider, status: &ContractStatus) -> Option<String> {
        let refuses = self
            .consume
            .is_some_and(|consume| consume.contract.on_breach != OnBreach::Warn);
        let own = lasting_breaches(&status.breaches, Party::Provider)
            .chain(lasting_breaches(
                &record.spec.unverified().breaches,
                Party::Provider,
            ))
            .next();
        own.filter(|_| refuses).map(|breach| {
            format!(
                "the provider broke the contract ({}): {}",
                breach.kind.as_str(),
                breach.message
            )
        })
    }

    /// Actions on the copy of a contract that is gone at the provider. It is over, also if it was
    /// announced to end later: nothing is recorded under it any more, and another one may begin.
    fn removed_at_provider(&self, name: &str, copy: &ContractCopy) -> Vec<ContractAction> {
        let status = copy.status.clone();
        if copy.spec.in_force_since.is_none() {
            return vec![ContractAction::DeleteCopy {
                name: name.to_owned(),
                successor: None,
            }];
        }
        let mut actions = Vec::new();
        let reason = "the provider removed it";
        // As clocks go, the provider may see an announced end a little earlier.
        let announced = copy.spec.ended.as_ref();
        let in_time = announced.filter(|end| {
            end.at
                .0
                .saturating_sub(TOLERANCE)
                .is_ok_and(|end| end <= self.now)
        });
        if !copy.is_over(self.now) {
            let at = Time(whole_seconds(self.now));
            let ended = match in_time {
                Some(end) => ContractEnd { at, ..end.clone() },
                None => ContractEnd {
                    by: Party::Provider,
                    cause: EndCause::Removed,
                    announced: at.clone(),
                    at,
                    reason: reason.to_owned(),
                },
            };
            let ended = Some(ended);
            actions.push(ContractAction::ApplyCopy(
                name.to_owned(),
                Box::new(ContractSpec {
                    ended,
                    ..copy.spec.clone()
                }),
            ));
        }
        if status.phase == ContractPhase::Ended {
            return actions;
        }
        let found = Vec::from_iter((self.steady && in_time.is_none()).then(removal_finding));
        let breaches = update_breaches(&status.breaches, &found, &[], self.now);
        let honoured = honoured_condition(&copy.spec.breaches, &breaches);
        let conditions = with_condition(&status.conditions, &honoured, self.now);
        let message = Some(reason.to_owned());
        let status = ContractStatus {
            phase: ContractPhase::Ended,
            message,
            breaches,
            conditions,
            end_requested: None,
            ..status
        };
        actions.push(ContractAction::AnswerCopy(name.to_owned(), status));
        actions
    }
}

/// This cluster's own records when it answers.
#[derive(Clone, Copy)]
struct OwnView<'a> {
    known: &'a ContractStatus,
    /// The terms at the provider, if this cluster signed them and its copy takes them over.
    signed: Option<&'a ContractDocument>,
    /// The copy, if it was in force under this cluster's signature.
    bound: Option<&'a ContractCopy>,
    /// Whether the copy says since when the terms are in force.
    counts: bool,
    /// The end, as the copy has it.
    ended: Option<&'a ContractEnd>,
    /// Another contract that is in force: its name, and its end if that is announced.
    in_force: Option<&'a (String, Option<Timestamp>)>,
}

impl OwnView<'_> {
    fn is_over(&self, now: Timestamp) -> bool {
        self.ended.is_some_and(|end| end.at.0 <= now)
    }
}

/// Keeps this cluster from signing a contract next to the one in force: each pod would be charged
/// under both.
fn conflict_with_in_force(in_force: Option<&(String, Option<Timestamp>)>) -> Option<TermsDecision> {
    let (name, end) = in_force?;
    if let Some(end) = end {
        return Some(TermsDecision::Wait(format!(
            "{name} is in force until {end}, and the next contract begins then"
        )));
    }
    let why =
        format!("{name} with the same provider is in force, and there is one contract at a time");
    Some(TermsDecision::Refuse {
        why,
        by_person: false,
    })
}

fn refuse_contract(status: &mut ContractStatus, why: String, by_person: bool) -> ContractStance {
    status.phase = ContractPhase::Refused;
    status.message = Some(bounded_text(&why));
    ContractStance::Refused { why, by_person }
}

fn with_condition(
    current: &[liqo_api::Condition],
    wanted: &DesiredCondition,
    now: Timestamp,
) -> Vec<liqo_api::Condition> {
    let now = whole_seconds(now);
    conditions::updated_conditions(current, std::slice::from_ref(wanted), now)
        .unwrap_or_else(|| current.to_vec())
}

/// The limit of our policy that terms exceed, in words.
fn beyond_limits(terms: &ContractTerms, consume: &Consume, base: Timestamp) -> Option<String> {
    let limits = &consume.contract;
    if let Some(most) = limits.max_period_seconds {
        let Some(end) = &terms.end else {
            return Some(format!(
                "it has no end, and the consumer's PeeringPolicy accepts at most {most} s"
            ));
        };
        let seconds = end.0.duration_since(base).as_secs();
        if seconds > i64::from(most) {
            return Some(format!(
                "it lasts {seconds} s, and the consumer's PeeringPolicy accepts at most {most} s"
            ));
        }
    }
    let guaranteed = terms.total_resources();
    let excess = guaranteed.iter().find(|(name, amount)| {
        limits.max_resources.contains(name) && *amount > limits.max_resources.get(name)
    });
    if let Some((name, amount)) = excess.filter(|_| terms.commitment == Commitment::Guaranteed) {
        let most = limits.max_resources.get(name);
        return Some(format!(
            "it guarantees {amount} of {name}, and the consumer's PeeringPolicy accepts at most {most}"
        ));
    }
    let most = consume.max_prices.as_ref()?;
    terms
        .prices
        .iter()
        .find_map(|(pool, prices)| Some(format!("pool {pool}: {}", too_expensive(prices, most)?)))
}

/// Reason why a person has to decide on the costs of terms: the policy has no limit for them, and
/// they are higher than before.
fn unlimited_costs(
    terms: &ContractTerms,
    replaced: Option<&ContractTerms>,
    most: Option<&PriceList>,
) -> Option<String> {
    let unlimited = positive_rates(terms)
        .find(|charge| !has_limit(charge, most) && !cost_as_much_before(charge, replaced));
    if let Some(PositiveRate {
        pool,
        resource,
        rate,
        currency,
    }) = unlimited
    {
        return Some(format!(
            "{resource} of pool {pool} costs {rate} {currency}, and the consumer's PeeringPolicy has no limit for it (maxPrices), \
             so the user has to decide"
        ));
    }
    let changes = replaced.is_some_and(|replaced| changes_charged_amounts(replaced, terms));
    changes.then(|| {
        "it changes which amounts of a pod are charged, so the user has to decide".to_owned()
    })
}

fn has_limit(charge: &PositiveRate, most: Option<&PriceList>) -> bool {
    let most = most.filter(|most| most.currency == charge.currency);
    most.is_some_and(|most| most.rates.get(charge.resource).is_some())
}

fn cost_as_much_before(charge: &PositiveRate, replaced: Option<&ContractTerms>) -> bool {
    let before = replaced
        .and_then(|terms| terms.prices.get(charge.pool))
        .filter(|list| list.currency == charge.currency);
    before
        .and_then(|list| list.rates.get(charge.resource))
        .is_some_and(|before| charge.rate <= before)
}

fn refused_terms(why: impl Into<String>) -> TermsDecision {
    TermsDecision::Refuse {
        why: why.into(),
        by_person: false,
    }
}

/// Takes over the signatures that this cluster gave before.
fn keep_signatures(known: &ContractStatus, status: &mut ContractStatus) {
    status.signature.clone_from(&known.signature);
    status.signed.clone_from(&known.signed);
    status
        .pending_signature
        .clone_from(&known.pending_signature);
    status.pending_signed.clone_from(&known.pending_signed);
}

/// Whether a dearer amendment counts before the notice is over.
fn too_soon(current: &ContractTerms, next: &ContractTerms) -> Option<TermsDecision> {
    let (delay, notice) = (
        next.counts_after_seconds.unwrap_or_default(),
        current.notice_seconds,
    );
    let what = cost_increase(current, next).filter(|_| delay < notice)?;
    let why = format!(
        "it counts after {delay} s, and the notice is {notice} s, although it costs more: {what}"
    );
    Some(TermsDecision::Refuse {
        why,
        by_person: false,
    })
}

/// The price that is above the limit, in words.
fn too_expensive(prices: &PriceList, most: &PriceList) -> Option<String> {
    if let Some(defect) = prices.defect() {
        return Some(defect);
    }
    let is_free = prices.rates.iter().all(|(_, rate)| rate.is_zero());
    if prices.currency != most.currency && !is_free {
        return Some(format!(
            "its prices are in {}, and the consumer's PeeringPolicy accepts only {}",
            prices.currency, most.currency
        ));
    }
    let mut rates = prices.rates.iter();
    let (name, rate, limit) = rates.find_map(|(name, rate)| {
        Some((name, rate, most.rates.get(name)?)).filter(|(_, rate, limit)| rate > limit)
    })?;
    Some(format!(
        "{name} costs {rate} {}, and the consumer's PeeringPolicy accepts at most {limit}",
        prices.currency
    ))
}

#[cfg(test)]
mod tests;

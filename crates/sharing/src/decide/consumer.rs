//! The consumer side's answer to a provider's offers. It does not trust the provider: it checks the
//! contents, removes what could do harm, and lets an offer affect only the virtual nodes of that
//! provider.
//!
//! The amounts in an offer are never a reason to refuse it: a provider gives refused resources to
//! other consumers, so a refusal because of small amounts would keep itself true, or flap. An offer
//! with nothing useful in it waits instead.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use liqo_api::conditions::DesiredCondition;
use liqo_api::{
    Accept, Claimed, ClusterId, Consume, LargestPods, MAX_PATH_LEN, NO_NEW_PODS,
    OfferAcceptedReason, OfferDecision, OfferPhase, PriceList, RequestedResources, ResourceList,
    ResourceOffer, ResourceOfferSpec, ResourceOfferStatus, VirtualNodeSpec, links,
};
use liqo_quantity::{ResourceArgument, priced_unit, unit_of};

use liqo_market::contract::consumer::ContractStance;

use super::{reduce::ADVERTISED, tethering::OwnNodesReturn};

/// Maximum number of pools from one provider, because each becomes a node. Further ones are
/// refused.
pub const MAX_POOLS: usize = 16;
/// An offer with more labels is refused.
const MAX_LABELS: usize = 64;
/// Maximum number of labels that a message names, and maximum length of each in characters.
const MAX_NAMED: usize = 5;
const MAX_KEY_LEN: usize = 80;
/// Maximum length of our answer's message, from the schema.
const MAX_MESSAGE_LEN: usize = 1024;
/// Further resources of an offer are ignored.
const MAX_RESOURCES: usize = 64;

/// The request of this cluster to a provider.
#[derive(Clone, Debug, PartialEq)]
pub struct BorrowingIntent {
    /// This cluster.
    pub own: ClusterId,
    pub provider: ClusterId,
    /// The provider's display name.
    pub cluster_name: String,
    /// The name of the provider's `ForeignCluster`.
    pub peer: String,
    pub request: RequestedResources,
    /// The `consume` section of our policy for the provider; `None` if no policy selects it.
    pub consume: Option<Consume>,
    /// The user's decisions on single offers, by pool.
    pub decisions: BTreeMap<String, OfferDecision>,
    /// Effect of this cluster's answers to the provider's contracts on offers, by contract.
    pub contracts: BTreeMap<String, ContractStance>,
    /// Whether what the provider offers may be this cluster's own.
    pub returns: OwnNodesReturn,
    /// The peer that this cluster is tethered to, if that is another one.
    pub tethered_elsewhere: Option<ClusterId>,
}

/// The objects in this cluster that belong to a provider, by pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObjectsOfProvider {
    /// Copies of its offers.
    pub mirrors: BTreeMap<String, Arc<ResourceOffer>>,
    pub nodes: BTreeMap<String, Arc<VirtualNodeState>>,
}

impl ObjectsOfProvider {
    fn has_node(&self, pool: &str) -> bool {
        self.nodes.get(pool).is_some_and(|node| !node.deleting)
    }
}

/// The parts of a `VirtualNode` that matter here.
#[derive(Clone, Debug, PartialEq)]
pub struct VirtualNodeState {
    pub spec: VirtualNodeSpec,
    pub deleting: bool,
}

/// One write. Writes in this cluster come before those at the provider, which may not answer.
#[derive(Clone, Debug, PartialEq)]
pub enum ConsumerAction {
    DeleteNode(String),
    ApplyNode(VirtualNodeSpec),
    /// Deletes the copy of this offer.
    DeleteMirror(String),
    /// Creates or changes the copy of an offer.
    ApplyMirror(ResourceOfferSpec),
    /// Writes our answer into the copy of this offer.
    AnswerMirror(String, ResourceOfferStatus),
    /// Writes our answer into this offer, at the provider.
    Answer(String, ResourceOfferStatus),
}

#[derive(Clone, Debug, PartialEq)]
pub struct OfferJudgement {
    pub actions: Vec<ConsumerAction>,
    /// The condition `OfferAccepted` of the provider's `ForeignCluster`.
    pub condition: DesiredCondition,
}

/// Judges all offers of a provider. `no_offer_message` is the provider's own explanation of why it
/// offers nothing.
pub fn judge_offers(
    intent: &BorrowingIntent,
    offers: &BTreeMap<String, Arc<Claimed<ResourceOffer>>>,
    local: &ObjectsOfProvider,
    no_offer_message: Option<&str>,
) -> OfferJudgement {
    let (mut here, mut there) = (Vec::new(), Vec::new());
    let mut outcomes = OfferOutcomes::default();
    let mut mirrored = BTreeSet::new();
    let mut limits = RemainingLimits::of_intent(intent);
    // Reads one offer more than allowed, to report that there are too many. Offers with a node come
    // first, so the limits of the policy never take an existing node away in favour of a new one.
    let read = offers
        .iter()
        .take(MAX_POOLS + 1)
        .map(|(name, offer)| (name, offer.unverified()));
    let mut read: Vec<(usize, (&String, &ResourceOffer))> = read.enumerate().collect();
    read.sort_by_key(|(number, (name, _))| (!local.has_node(name), *number));
    for (number, (name, offer)) in read {
        let verdict = if number < MAX_POOLS {
            offer_verdict(intent, name, offer, local, &mut limits)
        } else {
            OfferVerdict::Refuse(format!("a provider may offer at most {MAX_POOLS} pools"))
        };
        let status = verdict.offer_status();
        match verdict {
            OfferVerdict::Accept {
                resources, closed, ..
            } => {
                outcomes.accepted.push(name);
                outcomes.closed.extend(
                    closed
                        .as_ref()
                        .map(|why| format!("pool {name} takes no new pods: {why}")),
                );
                here.extend(apply_node(intent, offer, resources, closed, local));
            }
            OfferVerdict::TooDear(why) => outcomes.too_dear.push(format!("pool {name}: {why}")),
            OfferVerdict::Ask(_) => outcomes.waiting.push(name),
            OfferVerdict::Wait(why) => outcomes.empty.push(format!("pool {name}: {why}")),
            OfferVerdict::Refuse(why) if is_pool_name(name) => {
                outcomes.refused.push(format!("pool {name}: {why}"));
            }
            OfferVerdict::Refuse(why) => outcomes.refused.push(why),
        }
        if number < MAX_POOLS
            && is_pool_name(name)
            && offer.spec.pool == *name
            && path_defect(&offer.spec).is_none()
        {
            mirrored.insert(name.clone());
            here.extend(mirror_offer(name, offer, &status, local));
        }
        if offer.status.as_ref() != Some(&status) {
            there.push(ConsumerAction::Answer(name.clone(), status));
        }
    }
    let accepted: BTreeSet<&str> = outcomes.accepted.iter().copied().collect();
    let gone = local
        .nodes
        .iter()
        .filter(|(name, node)| !node.deleting && !accepted.contains(name.as_str()));
    let mut actions: Vec<ConsumerAction> = gone
        .map(|(name, _)| ConsumerAction::DeleteNode(name.clone()))
        .collect();
    actions.extend(here);
    let stale = local.mirrors.iter().filter(|(name, mirror)| {
        mirror.metadata.deletion_timestamp.is_none() && !mirrored.contains(*name)
    });
    actions.extend(stale.map(|(name, _)| ConsumerAction::DeleteMirror(name.clone())));
    actions.extend(there);
    OfferJudgement {
        actions,
        condition: outcomes.offers_condition(intent, no_offer_message),
    }
}

/// Deletes all local objects of a provider: virtual nodes first, so that their pods go first.
pub fn remove_all(local: &ObjectsOfProvider) -> Vec<ConsumerAction> {
    let nodes = local
        .nodes
        .iter()
        .filter(|(_, node)| !node.deleting)
        .map(|(name, _)| ConsumerAction::DeleteNode(name.clone()));
    let mirrors = local
        .mirrors
        .iter()
        .filter(|(_, mirror)| mirror.metadata.deletion_timestamp.is_none());
    nodes
        .chain(mirrors.map(|(name, _)| ConsumerAction::DeleteMirror(name.clone())))
        .collect()
}

enum OfferVerdict {
    /// Accepts a part of the offer.
    Accept {
        resources: ResourceList,
        /// Names the labels that are left out.
        left_out: Option<String>,
        /// Reason why the node gets no new pods: its prices rose above what our policy accepts, or
        /// its contract is not in force.
        closed: Option<String>,
    },
    /// Waits until the prices are within what our policy accepts.
    TooDear(String),
    /// The user has to decide.
    Ask(String),
    /// The offer contains nothing useful yet.
    Wait(String),
    Refuse(String),
}

impl OfferVerdict {
    fn offer_status(&self) -> ResourceOfferStatus {
        let (phase, message) = match self {
            Self::Accept {
                left_out, closed, ..
            } => {
                let closed = closed.as_ref().map(|why| format!("{NO_NEW_PODS}{why}"));
                let said: Vec<String> = closed.into_iter().chain(left_out.clone()).collect();
                (
                    OfferPhase::Accepted,
                    Some(said.join("; ")).filter(|text| !text.is_empty()),
                )
            }
            Self::TooDear(why) => (
                OfferPhase::Pending,
                Some(format!(
                    "{why}; the consumer accepts it as soon as the price falls"
                )),
            ),
            Self::Ask(why) => (OfferPhase::ManualActionRequired, Some(why.clone())),
            Self::Wait(why) => (OfferPhase::Pending, Some(why.clone())),
            Self::Refuse(why) => (OfferPhase::Refused, Some(why.clone())),
        };
        ResourceOfferStatus {
            phase,
            message: message.map(|text| text.chars().take(MAX_MESSAGE_LEN).collect()),
        }
    }
}

/// The part of our policy's limits that earlier offers have left.
struct RemainingLimits {
    offers: usize,
    resources: ResourceList,
}

impl RemainingLimits {
    fn of_intent(intent: &BorrowingIntent) -> Self {
        let consume = intent.consume.clone().unwrap_or_default();
        Self {
            offers: consume.max_offers.map_or(MAX_POOLS, usize::from),
            resources: consume.max_resources,
        }
    }

    /// Takes as much of these resources as the limits allow.
    fn take_up_to(&mut self, resources: &ResourceList) -> ResourceList {
        self.offers -= 1;
        let taken = resources.capped_by(&self.resources);
        self.resources = self
            .resources
            .iter()
            .map(|(name, amount)| (name.to_owned(), amount.saturating_sub(taken.get(name))))
            .collect();
        taken
    }
}

fn offer_verdict(
    intent: &BorrowingIntent,
    name: &str,
    offer: &ResourceOffer,
    local: &ObjectsOfProvider,
    limits: &mut RemainingLimits,
) -> OfferVerdict {
    // An existing node stays while its offer is empty: users and their tools know it by name, and
    // the provider never cuts an offer below what pods use.
    let exists = local.nodes.get(name).is_some_and(|node| !node.deleting);
    if let Some(why) = offer_defect(intent, name, offer, exists) {
        return OfferVerdict::Refuse(why);
    }
    if let Some(peer) = intent.tethered_elsewhere.as_ref().filter(|_| !exists) {
        return OfferVerdict::Refuse(format!(
            "the consumer is tethered to {peer}, and borrows from nobody else"
        ));
    }
    let Some(consume) = &intent.consume else {
        return OfferVerdict::Refuse(
            "no PeeringPolicy of the consumer selects this provider".to_owned(),
        );
    };
    // While the provider changes what is behind the pool, what runs there has its notice.
    let has_notice = exists && offer.spec.drain_timestamp.is_some();
    let too_far = too_far(&offer.spec, consume);
    if let Some(why) = too_far.clone().filter(|_| !has_notice) {
        return OfferVerdict::Refuse(why);
    }
    let decision = intent.decisions.get(name);
    if decision == Some(&OfferDecision::Refuse) {
        return OfferVerdict::Refuse("the user refused it".to_owned());
    }
    if consume.accept == Accept::Never {
        return OfferVerdict::Refuse(
            "the consumer's PeeringPolicy accepts nothing from here".to_owned(),
        );
    }
    if limits.offers == 0 {
        let most = consume.max_offers.unwrap_or_default();
        return OfferVerdict::Refuse(format!(
            "the consumer's PeeringPolicy accepts at most {most} offers of one provider"
        ));
    }
    if let Some(verdict) = without_contract(intent, consume, offer, exists) {
        return verdict;
    }
    let resources = usable_resources(&offer.spec.lasting_resources());
    if !exists && resources.is_zero() {
        return OfferVerdict::Wait(
            "it is empty; the consumer accepts it as soon as it contains resources".to_owned(),
        );
    }
    let too_dear = too_expensive(&offer.spec, &resources, consume);
    if let Some(why) = too_dear.clone().filter(|_| !exists) {
        return OfferVerdict::TooDear(why);
    }
    // An offer that was accepted before the policy became manual stays accepted.
    if !exists && decision.is_none() && consume.accept == Accept::Manual {
        return OfferVerdict::Ask(
            "the consumer's PeeringPolicy requires a decision by the user: `liqoctl offer accept`"
                .to_owned(),
        );
    }
    if !exists && resources.capped_by(&limits.resources).is_zero() {
        return OfferVerdict::Wait(
            "the consumer's PeeringPolicy accepts no more resources of this provider now"
                .to_owned(),
        );
    }
    let comes_back =
        offer.spec.path.contains(&intent.own) && intent.returns == OwnNodesReturn::BeingTakenBack;
    let comes_back = comes_back
        .then(|| "the provider has not taken back yet what belongs to this cluster".to_owned());
    let closed = comes_back
        .or(too_far)
        .or(too_dear)
        .or_else(|| closed_by_contract(intent, offer));
    OfferVerdict::Accept {
        resources: limits.take_up_to(&resources),
        left_out: left_out(&offer.spec.labels, consume),
        closed,
    }
}

/// The verdict on an offer whose contract this cluster has not signed. An existing node stays, and
/// the provider admits no new pods there, unless a person refused the contract.
fn without_contract(
    intent: &BorrowingIntent,
    consume: &Consume,
    offer: &ResourceOffer,
    exists: bool,
) -> Option<OfferVerdict> {
    let Some(contract) = &offer.spec.contract else {
        let why = "the consumer's PeeringPolicy accepts only offers under a contract";
        return (consume.contract.require && !exists).then(|| OfferVerdict::Refuse(why.to_owned()));
    };
    match intent.contracts.get(&contract.name) {
        Some(ContractStance::Refused { why, by_person }) if !exists || *by_person => {
            Some(OfferVerdict::Refuse(format!("its contract: {why}")))
        }
        _ if exists => None,
        Some(ContractStance::Signed { pools, .. }) if pools.contains(&offer.spec.pool) => None,
        Some(ContractStance::Asks(why)) => Some(OfferVerdict::Ask(why.clone())),
        Some(ContractStance::Waits(why)) => {
            Some(OfferVerdict::Wait(format!("its contract waits: {why}")))
        }
        Some(ContractStance::Signed { .. }) => Some(OfferVerdict::Wait(
            "its contract does not contain the pool yet".to_owned(),
        )),
        Some(ContractStance::Over) => Some(OfferVerdict::Wait("its contract is over".to_owned())),
        _ => Some(OfferVerdict::Wait(
            "its contract has not arrived yet".to_owned(),
        )),
    }
}

/// Returns a message if the node of an accepted offer gets no new pods because of its contract.
fn closed_by_contract(intent: &BorrowingIntent, offer: &ResourceOffer) -> Option<String> {
    let contract = offer.spec.contract.as_ref()?;
    if let Some(ContractStance::Signed {
        no_new_pods: Some(why),
        ..
    }) = intent.contracts.get(&contract.name)
    {
        return Some(why.clone());
    }
    let waits = offer.spec.withdrawal_timestamp.is_none() && !contract.in_force;
    waits.then(|| {
        format!(
            "{} is not in force for this pool, and the provider admits no pods without it",
            contract.name
        )
    })
}

/// Returns a message if an offer comes through more clusters than our policy accepts.
fn too_far(offer: &ResourceOfferSpec, consume: &Consume) -> Option<String> {
    let (hops, most) = (offer.hops, consume.max_hops);
    (hops > most).then(|| {
        format!(
            "its resources come through {hops} clusters, and the consumer's PeeringPolicy accepts at most {most} (consume.maxHops)"
        )
    })
}

/// Returns a message if the prices of an offer are above what our policy accepts. Only the
/// `resources` that it contains count. Resources that cost nothing have no currency.
fn too_expensive(
    offer: &ResourceOfferSpec,
    resources: &ResourceList,
    consume: &Consume,
) -> Option<String> {
    let (prices, limit) = (offer.prices.as_ref()?, consume.max_prices.as_ref()?);
    let mut charged = prices
        .rates
        .iter()
        .filter(|(name, rate)| !rate.is_zero() && resources.contains(name));
    if prices.currency != limit.currency {
        let (ours, theirs) = (&limit.currency, &prices.currency);
        return charged.next().map(|_| {
            format!("its prices are in {theirs}, and the consumer's PeeringPolicy accepts {ours}")
        });
    }
    let above = charged.find_map(|(name, rate)| {
        Some((
            name,
            rate,
            limit.rates.get(name).filter(|most| rate > *most)?,
        ))
    });
    above.map(|(name, rate, most)| {
        let (unit, currency) = (priced_unit(name), &limit.currency);
        format!("{name} costs {rate} {currency} per {unit} and hour, and the consumer's PeeringPolicy accepts at most {most}")
    })
}

/// Whether a virtual node takes over a label of an offer. Other software gives meaning to labels
/// with its domain: they could draw pods that are to run on certain nodes of this cluster.
fn keeps_label(consume: &Consume, key: &str) -> bool {
    let allowed = consume
        .node_labels
        .iter()
        .any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => key.starts_with(start),
            None => pattern == key,
        });
    allowed || !key.contains('/') || ADVERTISED.contains(&key)
}

/// Names the labels that the virtual node does not take over.
fn left_out(labels: &BTreeMap<String, String>, consume: &Consume) -> Option<String> {
    let dropped: Vec<String> = labels
        .keys()
        .filter(|key| !keeps_label(consume, key))
        .map(String::as_str)
        .map(shortened_key)
        .collect();
    let (first, more) = (
        dropped
            .iter()
            .take(MAX_NAMED)
            .cloned()
            .collect::<Vec<_>>()
            .join(", "),
        dropped.len().saturating_sub(MAX_NAMED),
    );
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    (!dropped.is_empty())
        .then(|| format!("the node has no label {first}{more}: the consumer's PeeringPolicy does not name it in nodeLabels"))
}

fn shortened_key(key: &str) -> String {
    key.chars().take(MAX_KEY_LEN).collect()
}

/// Returns a message if an offer is invalid, whatever our policy says.
fn offer_defect(
    intent: &BorrowingIntent,
    name: &str,
    offer: &ResourceOffer,
    exists: bool,
) -> Option<String> {
    let spec = &offer.spec;
    if !is_pool_name(name) || spec.pool != name {
        return Some("the pool must be a DNS label and the name of the offer".to_owned());
    }
    if spec.cluster_id != intent.provider {
        return Some(format!(
            "the offer names {} as its provider, but the provider is {}",
            spec.cluster_id, intent.provider
        ));
    }
    // What was asked for and is not wanted any more makes no new node.
    let returns = intent.returns == OwnNodesReturn::Allowed
        || (intent.returns == OwnNodesReturn::BeingTakenBack && exists);
    if spec.path.contains(&intent.own) && !returns {
        return Some("the resources belong to this cluster, or come through it".to_owned());
    }
    if let Some(defect) = path_defect(spec) {
        return Some(defect);
    }
    if spec.hops > 1 && spec.path.len() < 2 {
        return Some(
            "the provider says that it borrows the resources, and not from which clusters"
                .to_owned(),
        );
    }
    if spec.labels.len() > MAX_LABELS {
        return Some(format!("it has more than {MAX_LABELS} labels"));
    }
    if let Some(defect) = spec.prices.as_ref().and_then(PriceList::defect) {
        return Some(defect);
    }
    // An existing node stays until the withdrawal, so that its pods can move away.
    if offer.metadata.deletion_timestamp.is_some()
        || (spec.withdrawal_timestamp.is_some() && !exists)
    {
        return Some("the provider withdraws it".to_owned());
    }
    None
}

/// Returns a message if the clusters that an offer comes through are invalid. The schema of our own
/// copies does not accept them either.
fn path_defect(spec: &ResourceOfferSpec) -> Option<String> {
    if spec.path.len() > MAX_PATH_LEN {
        return Some(format!("its path names more than {MAX_PATH_LEN} clusters"));
    }
    let is_possible = (1..=MAX_PATH_LEN).contains(&usize::from(spec.hops));
    (!is_possible).then(|| {
        format!(
            "its hops are {}, and must be 1 to {MAX_PATH_LEN}",
            spec.hops
        )
    })
}

/// The resources that a node can have, each rounded down to its unit. Leaves out what Kubernetes
/// would refuse.
fn usable_resources(offered: &ResourceList) -> ResourceList {
    let fits = offered
        .iter()
        .filter(|(name, amount)| ResourceArgument::new(name, "0").is_ok() && !amount.is_negative());
    fits.take(MAX_RESOURCES)
        .map(|(name, amount)| (name, amount.round_down(unit_of(name))))
        .collect()
}

/// The part of an offer about single nodes. Empty if the offer says more than this version reads.
fn bounded_largest_pods(largest_pods: &LargestPods) -> LargestPods {
    let is_too_long =
        largest_pods.is_too_long() || largest_pods.iter().any(|one| one.len() > MAX_RESOURCES);
    if is_too_long {
        LargestPods::default()
    } else {
        largest_pods.map(usable_resources)
    }
}

fn is_pool_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
}

fn apply_node(
    intent: &BorrowingIntent,
    offer: &ResourceOffer,
    resources: ResourceList,
    no_new_pods: Option<String>,
    local: &ObjectsOfProvider,
) -> Option<ConsumerAction> {
    let pool = offer.spec.pool.clone();
    let node = local.nodes.get(&pool);
    let kept_labels = offer.spec.labels.iter().filter(|(key, _)| {
        let consume = intent.consume.as_ref();
        consume.is_some_and(|consume| keeps_label(consume, key))
    });
    let spec = VirtualNodeSpec {
        cluster_id: intent.provider.clone(),
        cluster_name: intent.cluster_name.clone(),
        pool,
        resources,
        largest_pods: bounded_largest_pods(&offer.spec.largest_pods),
        withdrawal_timestamp: offer.spec.withdrawal_timestamp.clone(),
        labels: kept_labels
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        prices: offer.spec.prices.clone(),
        no_new_pods,
    };
    // A node that is being deleted is created again when it is gone.
    let unchanged = node.is_some_and(|node| node.deleting || node.spec == spec);
    (!unchanged).then_some(ConsumerAction::ApplyNode(spec))
}

fn mirror_offer(
    name: &str,
    offer: &ResourceOffer,
    status: &ResourceOfferStatus,
    local: &ObjectsOfProvider,
) -> Vec<ConsumerAction> {
    let mirror = local.mirrors.get(name);
    let mut actions = Vec::new();
    if mirror.is_none_or(|mirror| mirror.spec != offer.spec) {
        actions.push(ConsumerAction::ApplyMirror(offer.spec.clone()));
    }
    if mirror.and_then(|mirror| mirror.status.as_ref()) != Some(status) {
        actions.push(ConsumerAction::AnswerMirror(
            name.to_owned(),
            status.clone(),
        ));
    }
    actions
}

/// The verdicts on all offers.
#[derive(Default)]
struct OfferOutcomes<'a> {
    accepted: Vec<&'a str>,
    /// Accepted ones that take no new pods.
    closed: Vec<String>,
    too_dear: Vec<String>,
    waiting: Vec<&'a str>,
    empty: Vec<String>,
    refused: Vec<String>,
}

impl OfferOutcomes<'_> {
    fn offers_condition(
        mut self,
        intent: &BorrowingIntent,
        no_offer_message: Option<&str>,
    ) -> DesiredCondition {
        let kind = links::OFFER_ACCEPTED;
        self.accepted.sort_unstable();
        if !self.accepted.is_empty() {
            let accepted = format!("{} accepted", pools_text(&self.accepted));
            let message = [accepted]
                .into_iter()
                .chain(self.closed)
                .collect::<Vec<_>>()
                .join("; ");
            return DesiredCondition::yes(kind, OfferAcceptedReason::Accepted, message);
        }
        if !self.waiting.is_empty() {
            let command = format!("`liqoctl offer accept {} {}`", intent.peer, self.waiting[0]);
            let message = format!(
                "{} offered; the policy requires your decision: {command}",
                pools_text(&self.waiting)
            );
            return DesiredCondition::no(kind, OfferAcceptedReason::ManualActionRequired, message);
        }
        if !self.refused.is_empty() {
            self.refused
                .extend(self.too_dear.into_iter().chain(self.empty));
            return DesiredCondition::no(
                kind,
                OfferAcceptedReason::Refused,
                self.refused.join("; "),
            );
        }
        if !self.too_dear.is_empty() {
            self.too_dear.extend(self.empty);
            return DesiredCondition::no(
                kind,
                OfferAcceptedReason::PriceTooHigh,
                self.too_dear.join("; "),
            );
        }
        if !self.empty.is_empty() {
            return DesiredCondition::no(
                kind,
                OfferAcceptedReason::NothingInIt,
                self.empty.join("; "),
            );
        }
        DesiredCondition::no(
            kind,
            OfferAcceptedReason::NoOffer,
            no_offer_message.unwrap_or("the provider has not answered our request yet"),
        )
    }
}

fn pools_text(names: &[&str]) -> String {
    let word = if names.len() == 1 { "pool" } else { "pools" };
    format!("{word} {}", names.join(", "))
}

#[cfg(test)]
mod tests;

//! What the consumer side makes of a provider's offers. The provider is not trusted: what it says is checked, cut to what
//! is harmless, and never decides over anything but its own virtual nodes.
//!
//! Whether an offer is refused never depends on how much it holds: a provider gives what was refused to others, so a refusal
//! for its amounts would be its own reason, or come and go. An offer in which there is nothing for us waits instead.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use liqo_api::{
    Accept, ClusterId, Consume, OfferDecision, OfferPhase, RequestedResources, ResourceList, ResourceOffer, ResourceOfferSpec,
    ResourceOfferStatus, VirtualNodeSpec, links,
};
use liqo_kit::conditions::Wanted;
use liqo_quantity::{ResourceArgument, unit_of};

/// More pools than this are refused: each becomes a node here.
pub const MOST_POOLS: usize = 16;
/// More labels than this are refused.
const MOST_LABELS: usize = 64;
/// More resources than this are cut off.
const MOST_RESOURCES: usize = 64;

/// What we want of a provider.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// This cluster.
    pub own: ClusterId,
    /// The provider.
    pub provider: ClusterId,
    /// Its friendly name.
    pub cluster_name: String,
    /// What its `ForeignCluster` is called.
    pub peer: String,
    /// How much.
    pub request: RequestedResources,
    /// What our policy accepts from it; nothing if no policy selects it.
    pub consume: Option<Consume>,
    /// What a person decided on its offers.
    pub decisions: BTreeMap<String, OfferDecision>,
}

/// What exists here for a provider.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Local {
    /// Copies of its offers.
    pub mirrors: BTreeMap<String, Arc<ResourceOffer>>,
    /// Its virtual nodes.
    pub nodes: BTreeMap<String, Arc<Node>>,
}

/// A virtual node, as far as it is ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What was wanted.
    pub spec: VirtualNodeSpec,
    /// Whether it is being deleted.
    pub deleting: bool,
}

/// One thing to do. Those that concern this cluster come before those at the provider, which may not answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Delete this virtual node.
    DeleteNode(String),
    /// Make or change a virtual node.
    ApplyNode(VirtualNodeSpec),
    /// Delete the copy of this offer.
    DeleteMirror(String),
    /// Make or change the copy of an offer.
    ApplyMirror(ResourceOfferSpec),
    /// Write our answer into the copy of this offer.
    AnswerMirror(String, ResourceOfferStatus),
    /// Write our answer into this offer, at the provider.
    Answer(String, ResourceOfferStatus),
}

/// The state that each offer leads to.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// What to do.
    pub actions: Vec<Action>,
    /// What to say about the offers.
    pub link: Wanted,
}

/// Judges all offers of a provider. `excuse` is what the provider says about our request.
pub fn judge(wish: &Wish, offers: &BTreeMap<String, Arc<ResourceOffer>>, local: &Local, excuse: Option<&str>) -> Judgement {
    let (mut here, mut there) = (Vec::new(), Vec::new());
    let mut told = Told::default();
    let mut mirrored = BTreeSet::new();
    let mut room = Room::of(wish);
    let has_node = |name: &str| local.nodes.get(name).is_some_and(|node| !node.deleting);
    // One more than there may be, so that it is said; how many there are beyond that is nothing to us. Those that are used
    // come first: the limits of the policy are for them before they are for others.
    let mut read: Vec<(usize, (&String, &Arc<ResourceOffer>))> = offers.iter().take(MOST_POOLS + 1).enumerate().collect();
    read.sort_by_key(|(number, (name, _))| (!has_node(name), *number));
    for (number, (name, offer)) in read {
        let verdict =
            if number < MOST_POOLS { verdict(wish, name, offer, local, &mut room) } else { Verdict::Refuse(TOO_MANY.to_owned()) };
        let status = verdict.status();
        match verdict {
            Verdict::Accept(resources) => {
                told.accepted.push(name);
                here.extend(apply_node(wish, offer, resources, local));
            }
            Verdict::Ask(_) => told.waiting.push(name),
            Verdict::Wait(why) => told.empty.push(format!("pool {name}: {why}")),
            Verdict::Refuse(why) if is_pool_name(name) => told.refused.push(format!("pool {name}: {why}")),
            Verdict::Refuse(why) => told.refused.push(why),
        }
        if number < MOST_POOLS && is_pool_name(name) && offer.spec.pool == *name {
            mirrored.insert(name.clone());
            here.extend(mirror(name, offer, &status, local));
        }
        if offer.status.as_ref() != Some(&status) {
            there.push(Action::Answer(name.clone(), status));
        }
    }
    let accepted: BTreeSet<&str> = told.accepted.iter().copied().collect();
    let gone = local.nodes.iter().filter(|(name, node)| !node.deleting && !accepted.contains(name.as_str()));
    let mut actions: Vec<Action> = gone.map(|(name, _)| Action::DeleteNode(name.clone())).collect();
    actions.extend(here);
    let stale =
        local.mirrors.iter().filter(|(name, mirror)| mirror.metadata.deletion_timestamp.is_none() && !mirrored.contains(*name));
    actions.extend(stale.map(|(name, _)| Action::DeleteMirror(name.clone())));
    actions.extend(there);
    Judgement { actions, link: told.link(wish, excuse) }
}

/// What is to be deleted here when the provider is no longer wanted: virtual nodes first, so that their pods go first.
pub fn give_up(local: &Local) -> Vec<Action> {
    let nodes = local.nodes.iter().filter(|(_, node)| !node.deleting).map(|(name, _)| Action::DeleteNode(name.clone()));
    let mirrors = local.mirrors.iter().filter(|(_, mirror)| mirror.metadata.deletion_timestamp.is_none());
    nodes.chain(mirrors.map(|(name, _)| Action::DeleteMirror(name.clone()))).collect()
}

const TOO_MANY: &str = "a provider may offer at most 16 pools";

/// What becomes of an offer.
enum Verdict {
    /// This much of it is accepted.
    Accept(ResourceList),
    /// A person is to decide.
    Ask(String),
    /// There is nothing in it for us yet.
    Wait(String),
    /// Nothing of it, for this reason.
    Refuse(String),
}

impl Verdict {
    fn status(&self) -> ResourceOfferStatus {
        match self {
            Self::Accept(_) => ResourceOfferStatus { phase: OfferPhase::Accepted, message: None },
            Self::Ask(why) => ResourceOfferStatus { phase: OfferPhase::ManualActionRequired, message: Some(why.clone()) },
            Self::Wait(why) => ResourceOfferStatus { phase: OfferPhase::Pending, message: Some(why.clone()) },
            Self::Refuse(why) => ResourceOfferStatus { phase: OfferPhase::Refused, message: Some(why.clone()) },
        }
    }
}

/// What our policy still lets us accept.
struct Room {
    offers: usize,
    resources: ResourceList,
}

impl Room {
    fn of(wish: &Wish) -> Self {
        let consume = wish.consume.clone().unwrap_or_default();
        Self { offers: consume.max_offers.map_or(MOST_POOLS, usize::from), resources: consume.max_resources }
    }

    /// Takes what there is room for of these resources.
    fn take(&mut self, resources: &ResourceList) -> ResourceList {
        self.offers -= 1;
        let taken = resources.capped_by(&self.resources);
        self.resources =
            self.resources.iter().map(|(name, amount)| (name.to_owned(), amount.saturating_sub(taken.get(name)))).collect();
        taken
    }
}

fn verdict(wish: &Wish, name: &str, offer: &ResourceOffer, local: &Local, room: &mut Room) -> Verdict {
    // A node that exists stays when there is nothing for the moment: taking it away would take its place in people's minds
    // and tools, too, and the provider never cuts below what is used.
    let exists = local.nodes.get(name).is_some_and(|node| !node.deleting);
    if let Some(why) = unsound(wish, name, offer, exists) {
        return Verdict::Refuse(why);
    }
    let Some(consume) = &wish.consume else {
        return Verdict::Refuse("no PeeringPolicy of the consumer selects this provider".to_owned());
    };
    let decision = wish.decisions.get(name);
    if decision == Some(&OfferDecision::Refuse) {
        return Verdict::Refuse("it was refused by hand".to_owned());
    }
    if consume.accept == Accept::Never {
        return Verdict::Refuse("the consumer's PeeringPolicy accepts nothing from here".to_owned());
    }
    if room.offers == 0 {
        let most = consume.max_offers.unwrap_or_default();
        return Verdict::Refuse(format!("the consumer's PeeringPolicy accepts at most {most} offers of one provider"));
    }
    let resources = usable(&offer.spec.resource_quota.hard);
    if !exists && resources.is_zero() {
        return Verdict::Wait("it is empty; it will be accepted when there is something in it".to_owned());
    }
    // What was accepted before somebody was to be asked stays.
    if !exists && decision.is_none() && consume.accept == Accept::Manual {
        return Verdict::Ask("the consumer's PeeringPolicy wants a person to decide: `liqoctl offer accept`".to_owned());
    }
    if !exists && resources.capped_by(&room.resources).is_zero() {
        return Verdict::Wait("the consumer's PeeringPolicy accepts no more resources of this provider now".to_owned());
    }
    Verdict::Accept(room.take(&resources))
}

/// What is wrong with an offer, whatever our policy says.
fn unsound(wish: &Wish, name: &str, offer: &ResourceOffer, exists: bool) -> Option<String> {
    let spec = &offer.spec;
    if !is_pool_name(name) || spec.pool != name {
        return Some("the pool must be a DNS label and the name of the offer".to_owned());
    }
    if spec.cluster_id != wish.provider {
        return Some(format!("the offer says that it is from {}, but it was found at {}", spec.cluster_id, wish.provider));
    }
    if spec.path.contains(&wish.own) {
        return Some("the resources came from this cluster in the first place".to_owned());
    }
    if spec.labels.len() > MOST_LABELS {
        return Some(format!("it has more than {MOST_LABELS} labels"));
    }
    // A node that exists is emptied in the time that is left.
    if offer.metadata.deletion_timestamp.is_some() || (spec.withdrawal_timestamp.is_some() && !exists) {
        return Some("the provider takes it back".to_owned());
    }
    None
}

/// The resources that a node can have, each in whole steps; what Kubernetes would refuse is left out.
fn usable(offered: &ResourceList) -> ResourceList {
    let fits = offered.iter().filter(|(name, amount)| ResourceArgument::new(name, "0").is_ok() && !amount.is_negative());
    fits.take(MOST_RESOURCES).map(|(name, amount)| (name, amount.round_down(unit_of(name)))).collect()
}

fn is_pool_name(name: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 63
        && name.bytes().all(|byte| inside(byte) || byte == b'-')
        && name.bytes().next().is_some_and(inside)
        && name.bytes().last().is_some_and(inside)
}

fn apply_node(wish: &Wish, offer: &ResourceOffer, resources: ResourceList, local: &Local) -> Option<Action> {
    let pool = offer.spec.pool.clone();
    let node = local.nodes.get(&pool);
    let spec = VirtualNodeSpec {
        cluster_id: wish.provider.clone(),
        cluster_name: wish.cluster_name.clone(),
        pool,
        resources,
        withdrawal_timestamp: offer.spec.withdrawal_timestamp.clone(),
        labels: offer.spec.labels.clone(),
    };
    // One that is being deleted is made anew when it is gone.
    let stands = node.is_some_and(|node| node.deleting || node.spec == spec);
    (!stands).then_some(Action::ApplyNode(spec))
}

fn mirror(name: &str, offer: &ResourceOffer, status: &ResourceOfferStatus, local: &Local) -> Vec<Action> {
    let mirror = local.mirrors.get(name);
    let mut actions = Vec::new();
    if mirror.is_none_or(|mirror| mirror.spec != offer.spec) {
        actions.push(Action::ApplyMirror(offer.spec.clone()));
    }
    if mirror.and_then(|mirror| mirror.status.as_ref()) != Some(status) {
        actions.push(Action::AnswerMirror(name.to_owned(), status.clone()));
    }
    actions
}

/// What became of all offers.
#[derive(Default)]
struct Told<'a> {
    accepted: Vec<&'a str>,
    waiting: Vec<&'a str>,
    empty: Vec<String>,
    refused: Vec<String>,
}

impl Told<'_> {
    fn link(mut self, wish: &Wish, excuse: Option<&str>) -> Wanted {
        let kind = links::OFFER_ACCEPTED;
        let pools = |names: &[&str]| format!("{} {}", if names.len() == 1 { "pool" } else { "pools" }, names.join(", "));
        self.accepted.sort_unstable();
        if !self.accepted.is_empty() {
            return Wanted::yes(kind, "Accepted", format!("{} accepted", pools(&self.accepted)));
        }
        if !self.waiting.is_empty() {
            let command = format!("`liqoctl offer accept {} {}`", wish.peer, self.waiting[0]);
            let message = format!("{} offered; the policy wants you to decide: {command}", pools(&self.waiting));
            return Wanted::no(kind, "ManualActionRequired", message);
        }
        if !self.refused.is_empty() {
            self.refused.extend(self.empty);
            return Wanted::no(kind, "Refused", self.refused.join("; "));
        }
        if !self.empty.is_empty() {
            return Wanted::no(kind, "NothingInIt", self.empty.join("; "));
        }
        Wanted::no(kind, "NoOffer", excuse.unwrap_or("the provider has not answered our request yet"))
    }
}

#[cfg(test)]
mod tests;

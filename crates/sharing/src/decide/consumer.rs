//! What the consumer side makes of a provider's offers. The provider is not trusted: what it says is checked, cut to what
//! is harmless, and never decides over anything but its own virtual nodes.

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
    /// Nothing of it, for this reason.
    Refuse(String),
}

impl Verdict {
    fn status(&self) -> ResourceOfferStatus {
        match self {
            Self::Accept(_) => ResourceOfferStatus { phase: OfferPhase::Accepted, message: None },
            Self::Ask(why) => ResourceOfferStatus { phase: OfferPhase::ManualActionRequired, message: Some(why.clone()) },
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
    let resources = usable(&offer.spec.resource_quota.hard);
    if resources.is_zero() && !exists {
        return Verdict::Refuse("it is empty; it will be accepted when there is something in it".to_owned());
    }
    let Some(consume) = &wish.consume else {
        return Verdict::Refuse("no PeeringPolicy of the consumer selects this provider".to_owned());
    };
    match (wish.decisions.get(name), consume.accept) {
        (Some(OfferDecision::Refuse), _) => return Verdict::Refuse("it was refused by hand".to_owned()),
        (_, Accept::Never) => return Verdict::Refuse("the consumer's PeeringPolicy accepts nothing from here".to_owned()),
        // What was accepted before somebody was to be asked stays.
        (None, Accept::Manual) if !exists => {
            return Verdict::Ask("the consumer's PeeringPolicy wants a person to decide: `liqoctl offer accept`".to_owned());
        }
        _ => {}
    }
    if room.offers == 0 {
        let most = consume.max_offers.unwrap_or_default();
        return Verdict::Refuse(format!("the consumer's PeeringPolicy accepts at most {most} offers of one provider"));
    }
    if !exists && !resources.is_zero() && resources.capped_by(&room.resources).is_zero() {
        return Verdict::Refuse("the consumer's PeeringPolicy accepts no more resources of this provider".to_owned());
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
            return Wanted::no(kind, "Refused", self.refused.join("; "));
        }
        Wanted::no(kind, "NoOffer", excuse.unwrap_or("the provider has not answered our request yet"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{cluster, list};
    use liqo_api::{ResourceQuota, Time};

    const ROME: u8 = 1;
    const MILAN: u8 = 3;

    fn wish() -> Wish {
        Wish {
            own: cluster(ROME),
            provider: cluster(MILAN),
            cluster_name: "milan".to_owned(),
            peer: "milan".to_owned(),
            request: RequestedResources::default(),
            consume: Some(Consume::default()),
            decisions: BTreeMap::new(),
        }
    }

    fn offer(hard: &str) -> ResourceOffer {
        ResourceOffer::new(
            "default",
            ResourceOfferSpec {
                cluster_id: cluster(MILAN),
                pool: "default".to_owned(),
                resource_quota: ResourceQuota { hard: list(hard) },
                labels: BTreeMap::new(),
                path: vec![cluster(MILAN)],
                storage_classes: Vec::new(),
                ingress_classes: Vec::new(),
                load_balancer_classes: Vec::new(),
                node_selector: None,
                withdrawal_timestamp: None,
                reclaim_timestamp: None,
            },
        )
    }

    fn judged(offer: ResourceOffer, local: &Local) -> Judgement {
        let name = offer.metadata.name.clone().unwrap();
        judge(&wish(), &[(name, Arc::new(offer))].into(), local, None)
    }

    /// Why an offer that is changed like this is refused.
    fn refusal(change: impl FnOnce(&mut ResourceOffer)) -> String {
        let mut offer = offer("cpu=4, memory=4Gi");
        change(&mut offer);
        let judgement = judged(offer, &Local::default());
        assert!(!judgement.actions.iter().any(|action| matches!(action, Action::ApplyNode(_))), "{judgement:?}");
        let answer = judgement.actions.into_iter().find_map(|action| match action {
            Action::Answer(_, status) => Some(status),
            _ => None,
        });
        let answer = answer.unwrap();
        assert_eq!(answer.phase, OfferPhase::Refused);
        answer.message.unwrap()
    }

    /// Does what was decided.
    fn carry_out(actions: &[Action], offer: &mut ResourceOffer, local: &mut Local) {
        for action in actions.iter().cloned() {
            match action {
                Action::DeleteNode(name) => drop(local.nodes.remove(&name)),
                Action::ApplyNode(spec) => {
                    drop(local.nodes.insert(spec.pool.clone(), Node { spec, deleting: false }.into()));
                }
                Action::DeleteMirror(name) => drop(local.mirrors.remove(&name)),
                Action::ApplyMirror(spec) => {
                    let status = local.mirrors.get(&spec.pool).and_then(|mirror| mirror.status.clone());
                    let mut mirror = ResourceOffer::new(&spec.pool.clone(), spec);
                    mirror.status = status;
                    drop(local.mirrors.insert(mirror.spec.pool.clone(), mirror.into()));
                }
                Action::AnswerMirror(name, status) => {
                    let mut mirror = (*local.mirrors[&name]).clone();
                    mirror.status = Some(status);
                    drop(local.mirrors.insert(name, mirror.into()));
                }
                Action::Answer(_, status) => offer.status = Some(status),
            }
        }
    }

    /// An accepted offer with all that follows from it.
    fn settled(hard: &str) -> (ResourceOffer, Local) {
        let (mut offer, mut local) = (offer(hard), Local::default());
        let actions = judged(offer.clone(), &local).actions;
        carry_out(&actions, &mut offer, &mut local);
        (offer, local)
    }

    #[test]
    fn a_good_offer_is_accepted_and_becomes_a_virtual_node() {
        let judgement = judged(offer("cpu=4, memory=4Gi"), &Local::default());
        let accepted = ResourceOfferStatus { phase: OfferPhase::Accepted, message: None };
        let node = VirtualNodeSpec {
            withdrawal_timestamp: None,
            cluster_id: cluster(MILAN),
            cluster_name: "milan".to_owned(),
            pool: "default".to_owned(),
            resources: list("cpu=4, memory=4Gi"),
            labels: BTreeMap::new(),
        };
        assert_eq!(
            judgement.actions,
            [
                Action::ApplyNode(node),
                Action::ApplyMirror(offer("cpu=4, memory=4Gi").spec),
                Action::AnswerMirror("default".to_owned(), accepted.clone()),
                Action::Answer("default".to_owned(), accepted),
            ]
        );
        assert_eq!((judgement.link.status, judgement.link.reason.as_str()), (Some(true), "Accepted"));
    }

    #[test]
    fn nothing_is_done_about_an_offer_that_was_dealt_with() {
        let (offer, local) = settled("cpu=4");
        assert_eq!(judged(offer, &local).actions, []);
    }

    #[test]
    fn the_node_follows_the_offer() {
        let (mut changed, local) = settled("cpu=4");
        changed.spec.resource_quota.hard = list("cpu=2");
        let actions = judged(changed.clone(), &local).actions;
        assert!(matches!(&actions[0], Action::ApplyNode(node) if node.resources == list("cpu=2")), "{actions:?}");
        assert_eq!(actions[1..], [Action::ApplyMirror(changed.spec)]);
    }

    #[test]
    fn an_offer_that_is_gone_takes_its_node_and_its_copy_along() {
        let (_, local) = settled("cpu=4");
        let judgement = judge(&wish(), &BTreeMap::new(), &local, None);
        let expected = [Action::DeleteNode("default".to_owned()), Action::DeleteMirror("default".to_owned())];
        assert_eq!(judgement.actions, expected);
        assert_eq!(give_up(&local), expected);
        assert_eq!(judgement.link.reason, "NoOffer");
    }

    #[test]
    fn an_offer_that_is_gone_takes_its_node_along() {
        let (mut offer, local) = settled("cpu=4");
        offer.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(judged(offer, &local).actions[0], Action::DeleteNode("default".to_owned()));
    }

    #[test]
    fn a_node_that_exists_stays_while_its_offer_is_empty() {
        let (mut offer, mut local) = settled("cpu=4");
        offer.spec.resource_quota.hard = list("cpu=0");
        let actions = judged(offer.clone(), &local).actions;
        assert!(matches!(&actions[0], Action::ApplyNode(node) if node.resources.is_zero()), "{actions:?}");
        carry_out(&actions, &mut offer, &mut local);
        assert_eq!(judged(offer, &local).actions, []);
    }

    #[test]
    fn a_node_that_is_being_deleted_is_left_alone_until_it_is_gone() {
        let (offer, mut local) = settled("cpu=4");
        let mut node = (*local.nodes["default"]).clone();
        node.deleting = true;
        node.spec.resources = list("cpu=1");
        local.nodes.insert("default".to_owned(), node.into());
        assert_eq!(judged(offer, &local).actions, []);
        let node_actions = give_up(&local).into_iter().filter(|action| matches!(action, Action::DeleteNode(_)));
        assert_eq!(node_actions.count(), 0);
        local.nodes.clear();
        assert!(matches!(judged(settled("cpu=4").0, &local).actions[0], Action::ApplyNode(_)));
    }

    #[test]
    fn offers_that_cannot_be_right_are_refused_with_the_reason() {
        assert!(refusal(|offer| offer.spec.cluster_id = cluster(9)).contains("says that it is from"));
        assert!(refusal(|offer| offer.spec.path.push(cluster(ROME))).contains("this cluster in the first place"));
        assert!(refusal(|offer| offer.spec.pool = "another".to_owned()).contains("name of the offer"));
        assert!(refusal(|offer| offer.spec.resource_quota.hard = list("cpu=0")).contains("empty"));
        assert!(refusal(|offer| offer.spec.resource_quota.hard = list("nonsense=3, cpu=-1")).contains("empty"));
        let many = (0..65).map(|number| (format!("label-{number}"), String::new()));
        assert!(refusal(|offer| offer.spec.labels = many.collect()).contains("labels"));
    }

    #[test]
    fn pools_with_names_that_are_no_dns_labels_are_refused_and_not_copied() {
        for name in ["a.b", "A", "", "-a", "a/b", &"a".repeat(64)] {
            let mut bad = offer("cpu=4");
            bad.metadata.name = Some(name.to_owned());
            bad.spec.pool = name.to_owned();
            let actions = judged(bad, &Local::default()).actions;
            assert!(matches!(actions.as_slice(), [Action::Answer(_, _)]), "{name:?}: {actions:?}");
        }
    }

    #[test]
    fn a_refused_offer_is_shown_with_the_reason_here_too() {
        let mut own = offer("cpu=4");
        own.spec.path.push(cluster(ROME));
        let judgement = judged(own, &Local::default());
        let answer = judgement.actions.iter().find(|action| matches!(action, Action::AnswerMirror(_, _)));
        assert!(answer.is_some(), "{judgement:?}");
        assert_eq!(judgement.link.reason, "Refused");
        assert!(judgement.link.message.contains("first place"), "{}", judgement.link.message);
    }

    #[test]
    fn resources_that_no_node_can_have_are_left_out() {
        let usable = usable(&list("cpu=1500100u, memory=1Gi, rubbish=1, a b/c=1, nvidia.com/gpu=1500m, hugepages-2Mi=-2Mi"));
        assert_eq!(usable.to_string(), "cpu=1500m, memory=1Gi, nvidia.com/gpu=1");
    }

    #[test]
    fn a_provider_cannot_flood_us_with_nodes() {
        let offers: BTreeMap<String, Arc<ResourceOffer>> = (0..100)
            .map(|number| {
                let mut pool = offer("cpu=1");
                pool.spec.pool = format!("pool-{number:03}");
                pool.metadata.name = Some(pool.spec.pool.clone());
                (pool.spec.pool.clone(), Arc::new(pool))
            })
            .collect();
        let actions = judge(&wish(), &offers, &Local::default(), None).actions;
        let count = |wanted: fn(&Action) -> bool| actions.iter().filter(|action| wanted(action)).count();
        assert_eq!(count(|action| matches!(action, Action::ApplyNode(_))), MOST_POOLS);
        assert_eq!(count(|action| matches!(action, Action::ApplyMirror(_))), MOST_POOLS);
        assert_eq!(count(|action| matches!(action, Action::Answer(..))), MOST_POOLS + 1);
    }

    #[test]
    fn without_an_offer_the_providers_excuse_is_shown() {
        let judgement = judge(&wish(), &BTreeMap::new(), &Local::default(), Some("nothing is free"));
        assert_eq!(judgement.link.message, "nothing is free");
    }

    /// Phase of each offer, and the resources of its node, under this wish.
    fn verdicts(wish: &Wish, offers: &[(&str, &str)], local: &Local) -> Vec<(String, OfferPhase, String)> {
        let named = |(name, hard): &(&str, &str)| {
            let mut offer = offer(hard);
            offer.spec.pool = (*name).to_owned();
            ((*name).to_owned(), Arc::new(offer))
        };
        let judgement = judge(wish, &offers.iter().map(named).collect(), local, None);
        let node = |wanted: &str| {
            judgement.actions.iter().find_map(|action| match action {
                Action::ApplyNode(spec) if spec.pool == wanted => Some(spec.resources.to_string()),
                _ => None,
            })
        };
        let answers = judgement.actions.iter().filter_map(|action| match action {
            Action::Answer(name, status) => Some((name.clone(), status.phase, node(name).unwrap_or_default())),
            _ => None,
        });
        let mut answers: Vec<_> = answers.collect();
        answers.sort_by(|one, other| one.0.cmp(&other.0));
        answers
    }

    fn under(consume: Consume) -> Wish {
        Wish { consume: Some(consume), ..wish() }
    }

    fn judged_as(name: &str, phase: OfferPhase, node: &str) -> (String, OfferPhase, String) {
        (name.to_owned(), phase, node.to_owned())
    }

    #[test]
    fn a_person_is_asked_where_the_policy_says_so_and_what_was_accepted_before_stays() {
        let mut manual = under(Consume { accept: Accept::Manual, ..Consume::default() });
        let offers = [("a", "cpu=1"), ("b", "cpu=1"), ("default", "cpu=1")];
        let (_, used) = settled("cpu=1");
        manual.decisions = [("a".to_owned(), OfferDecision::Accept), ("default".to_owned(), OfferDecision::Refuse)].into();
        assert_eq!(
            verdicts(&manual, &offers, &used),
            [
                judged_as("a", OfferPhase::Accepted, "cpu=1"),
                judged_as("b", OfferPhase::ManualActionRequired, ""),
                judged_as("default", OfferPhase::Refused, ""),
            ]
        );
        manual.decisions.clear();
        assert_eq!(verdicts(&manual, &offers[2..], &used), [judged_as("default", OfferPhase::Accepted, "")]);
        let judgement = judge(&manual, &[("b".to_owned(), Arc::new(offer("cpu=1")))].into(), &Local::default(), None);
        assert_eq!(judgement.link.reason, "Refused");
        let judgement = judge(&manual, &[("default".to_owned(), Arc::new(offer("cpu=1")))].into(), &Local::default(), None);
        assert_eq!(judgement.link.reason, "ManualActionRequired");
        assert!(judgement.link.message.contains("liqoctl offer accept milan default"), "{}", judgement.link.message);
    }

    #[test]
    fn no_more_offers_and_no_more_resources_are_accepted_than_the_policy_allows() {
        let two = under(Consume { max_offers: Some(2), ..Consume::default() });
        let (_, used) = settled("cpu=1");
        let offers = [("a", "cpu=1"), ("b", "cpu=1"), ("default", "cpu=1")];
        let phases: Vec<_> = verdicts(&two, &offers, &used).into_iter().map(|(_, phase, _)| phase).collect();
        assert_eq!(phases, [OfferPhase::Accepted, OfferPhase::Refused, OfferPhase::Accepted]);
        let little = under(Consume { max_resources: list("cpu=3"), ..Consume::default() });
        assert_eq!(
            verdicts(&little, &[("a", "cpu=2, pods=5"), ("b", "cpu=2, pods=5")], &Local::default()),
            [judged_as("a", OfferPhase::Accepted, "cpu=2, pods=5"), judged_as("b", OfferPhase::Accepted, "cpu=1, pods=5")]
        );
    }

    #[test]
    fn nothing_is_accepted_from_a_peer_that_no_policy_or_a_forbidding_one_selects() {
        let never = under(Consume { accept: Accept::Never, ..Consume::default() });
        for wish in [never, Wish { consume: None, ..wish() }] {
            let refused = [judged_as("default", OfferPhase::Refused, "")];
            assert_eq!(verdicts(&wish, &[("default", "cpu=1")], &Local::default()), refused);
        }
    }

    #[test]
    fn the_node_of_a_pool_that_is_taken_back_stays_until_then_and_knows_when() {
        let (mut offer, mut local) = settled("cpu=1");
        let end = Time(jiff::Timestamp::UNIX_EPOCH);
        offer.spec.withdrawal_timestamp = Some(end.clone());
        let actions = judged(offer.clone(), &local).actions;
        carry_out(&actions, &mut offer, &mut local);
        assert_eq!(local.nodes["default"].spec.withdrawal_timestamp, Some(end));
        assert_eq!(offer.status.as_ref().map(|status| status.phase), Some(OfferPhase::Accepted));
        assert_eq!(judged(offer, &local).actions, []);
    }
}

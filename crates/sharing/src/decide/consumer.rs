//! What the consumer side makes of a provider's offers. The provider is not trusted: what it says is checked, cut to what
//! is harmless, and never decides over anything but its own virtual nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use liqo_api::{
    ClusterId, OfferPhase, RequestedResources, ResourceList, ResourceOffer, ResourceOfferSpec, ResourceOfferStatus,
    VirtualNodeSpec, links,
};
use liqo_kit::conditions::Wanted;
use liqo_quantity::{ResourceArgument, unit_of};

/// More pools than this are refused: each becomes a node here.
const MOST_POOLS: usize = 16;
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
    /// How much.
    pub request: RequestedResources,
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
    let (mut accepted, mut refused): (Vec<&str>, Vec<String>) = (Vec::new(), Vec::new());
    let mut mirrored = BTreeSet::new();
    // One more than there may be, so that it is said; how many there are beyond that is nothing to us.
    for (number, (name, offer)) in offers.iter().take(MOST_POOLS + 1).enumerate() {
        let verdict = if number < MOST_POOLS { verdict(wish, name, offer, local) } else { Err(TOO_MANY.to_owned()) };
        let status = match &verdict {
            Ok(_) => ResourceOfferStatus { phase: OfferPhase::Accepted, message: None },
            Err(why) => ResourceOfferStatus { phase: OfferPhase::Refused, message: Some(why.clone()) },
        };
        match verdict {
            Ok(resources) => {
                accepted.push(name);
                here.extend(apply_node(wish, offer, resources, local));
            }
            Err(why) if is_pool_name(name) => refused.push(format!("pool {name}: {why}")),
            Err(why) => refused.push(why),
        }
        if number < MOST_POOLS && is_pool_name(name) && offer.spec.pool == *name {
            mirrored.insert(name.clone());
            here.extend(mirror(name, offer, &status, local));
        }
        if offer.status.as_ref() != Some(&status) {
            there.push(Action::Answer(name.clone(), status));
        }
    }
    let accepted_pools: BTreeSet<&str> = accepted.iter().copied().collect();
    let gone = local.nodes.iter().filter(|(name, node)| !node.deleting && !accepted_pools.contains(name.as_str()));
    let mut actions: Vec<Action> = gone.map(|(name, _)| Action::DeleteNode(name.clone())).collect();
    actions.extend(here);
    let stale =
        local.mirrors.iter().filter(|(name, mirror)| mirror.metadata.deletion_timestamp.is_none() && !mirrored.contains(*name));
    actions.extend(stale.map(|(name, _)| Action::DeleteMirror(name.clone())));
    actions.extend(there);
    Judgement { actions, link: link(&accepted, &refused, excuse) }
}

/// What is to be deleted here when the provider is no longer wanted: virtual nodes first, so that their pods go first.
pub fn give_up(local: &Local) -> Vec<Action> {
    let nodes = local.nodes.iter().filter(|(_, node)| !node.deleting).map(|(name, _)| Action::DeleteNode(name.clone()));
    let mirrors = local.mirrors.iter().filter(|(_, mirror)| mirror.metadata.deletion_timestamp.is_none());
    nodes.chain(mirrors.map(|(name, _)| Action::DeleteMirror(name.clone()))).collect()
}

const TOO_MANY: &str = "a provider may offer at most 16 pools";

/// What is accepted of the offer, or why nothing is.
fn verdict(wish: &Wish, name: &str, offer: &ResourceOffer, local: &Local) -> Result<ResourceList, String> {
    let spec = &offer.spec;
    if !is_pool_name(name) || spec.pool != name {
        return Err("the pool must be a DNS label and the name of the offer".to_owned());
    }
    if spec.cluster_id != wish.provider {
        return Err(format!("the offer says that it is from {}, but it was found at {}", spec.cluster_id, wish.provider));
    }
    if spec.path.contains(&wish.own) {
        return Err("the resources came from this cluster in the first place".to_owned());
    }
    if spec.labels.len() > MOST_LABELS {
        return Err(format!("it has more than {MOST_LABELS} labels"));
    }
    if spec.withdrawal_timestamp.is_some() || offer.metadata.deletion_timestamp.is_some() {
        return Err("the provider takes it back".to_owned());
    }
    let resources = usable(&spec.resource_quota.hard);
    // A node that exists stays when there is nothing for the moment: taking it away would take its place in people's minds
    // and tools, too, and the provider never cuts below what is used.
    let exists = local.nodes.get(name).is_some_and(|node| !node.deleting);
    if resources.is_zero() && !exists {
        return Err("it is empty; it will be accepted when there is something in it".to_owned());
    }
    Ok(resources)
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

fn link(accepted: &[&str], refused: &[String], excuse: Option<&str>) -> Wanted {
    let kind = links::OFFER_ACCEPTED;
    if !accepted.is_empty() {
        let pools = if accepted.len() == 1 { "pool" } else { "pools" };
        return Wanted::yes(kind, "Accepted", format!("{pools} {} accepted", accepted.join(", ")));
    }
    if !refused.is_empty() {
        return Wanted::no(kind, "Refused", refused.join("; "));
    }
    Wanted::no(kind, "NoOffer", excuse.unwrap_or("the provider has not answered our request yet"))
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
            request: RequestedResources::default(),
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
    fn an_offer_that_is_taken_back_takes_its_node_along() {
        let (mut offer, local) = settled("cpu=4");
        offer.spec.withdrawal_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
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
}

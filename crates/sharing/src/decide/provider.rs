//! All that the provider side does at one time: from a picture of the cluster to offers, answers and links.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::NodeSelector;
use liqo_api::{
    ANSWERED, OfferPhase, PeeringPolicy, Provide, ResourceList, ResourceOffer, ResourceOfferSpec, ResourceQuota, Time, links,
};
use liqo_kit::{Key, conditions::Wanted};

use super::{
    consumer::MOST_POOLS,
    ledger,
    picture::{Answer, Asking, OfferWrite, Picture, Plan, PolicyVersion, Reading},
    pools::{self, Ground},
    publish::{self, Standing},
    reduce::{LocalNode, PodUse},
    shares::{self, Lot, Party, Shares},
    source,
};

/// A pool of a consumer that is to exist.
struct Unit<'a> {
    /// Index of the consumer among those that ask.
    asking: usize,
    pool: String,
    policy: &'a Provide,
    /// Index of that policy, where the pool is made of local nodes.
    local: Option<usize>,
    /// Whether the consumer does not want it.
    refused: bool,
    /// What its pods use.
    in_use: ResourceList,
    /// What it should hold.
    target: ResourceList,
    /// From when on pods beyond the offer are ended.
    reclaim: Option<Timestamp>,
    /// The least that it holds: what is used, unless that is being reclaimed.
    floor: ResourceList,
}

impl Unit<'_> {
    /// Whether the pool has the nodes of this ground.
    fn is_on(&self, ground: &Ground) -> bool {
        self.local.is_some_and(|policy| ground.pools[policy].as_ref() == Some(&self.pool))
    }

    /// Whether what is used beyond the offer is being taken back.
    fn is_reclaimed(&self) -> bool {
        self.floor.is_empty() && !self.in_use.is_empty()
    }
}

/// Decides everything anew.
pub fn decide(picture: &Picture, now: Instant) -> Plan {
    let asking = picture.asking();
    let local = local_policies(&asking);
    let policies: Vec<&Provide> = local.iter().map(|policy| &policy.spec.provide).collect();
    let nodes = picture.nodes.iter().map(|(key, node)| (key.name.as_str(), node.as_ref()));
    let grounds = pools::grounds(nodes, &policies);
    let mut units = units(picture, &asking, &local, &policies, &grounds);
    let mut uses = Uses::count(picture, &asking, &mut units, &grounds);
    let lots = uses.lots(&units, &grounds);
    let parties = parties(&asking, &local, &lots);
    let entitled = shares::plain(&lots, &parties, &policies);
    let whole = lots.iter().map(|lot| lot.whole(&parties, &policies)).collect();
    uses.place(&units, &grounds, &entitled, whole);
    let lots = uses.lots(&units, &grounds);
    // The grounds where the consumers of a policy use more than all of them may have.
    let over: Vec<BTreeSet<usize>> = lots.iter().map(|lot| overdrawn(lot, &parties, &policies)).collect();
    let mut wake = reclaim(picture, &mut units, &over, &entitled, &asking, &grounds);
    let lots = uses.lots(&units, &grounds);
    let shares = shares::share(&lots, &entitled, &parties, &policies);
    for unit in &mut units {
        if unit.local.is_none() {
            continue;
        }
        let of_pool = grounds.iter().zip(&shares).filter(|(ground, _)| unit.is_on(ground));
        let sum: ResourceList = of_pool.filter_map(|(_, shares)| shares.get(&unit.asking)).sum();
        // Pods whose last node is gone stand on no ground.
        unit.target = sum.max(&unit.floor);
    }

    let composer = Composer::new(picture, &asking, &units, &grounds);
    let mut plan = Plan { deletions: deletions(picture, &asking), ..Plan::default() };
    let standings: Vec<Standing> = units.iter().map(|unit| composer.standing(unit)).collect();
    for members in components(&units, &grounds) {
        let total = total(&units, &members, &lots, &parties, &policies, &grounds);
        let of_these: Vec<Standing> = members.iter().map(|&unit| standings[unit].clone()).collect();
        let publication = publish::decide(&total, &of_these, now);
        wake = sooner(wake, publication.wake);
        for write in publication.writes {
            let unit = &units[members[write.index]];
            plan.writes.push(composer.write(unit, write.hard, write.grows));
        }
    }
    // What is given up comes first, whatever it belongs to.
    plan.writes.sort_by_key(|write| write.grows);
    wake = sooner(wake, withdraw(picture, &asking, &units, &uses, &mut plan));
    plan.wake = wake;
    tell(picture, &asking, &units, &standings, &mut plan);
    plan
}

fn sooner(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

/// Whether the consumer does not want this offer. What it says of one that is taken back says nothing of the one after it.
pub fn is_refused(offer: &ResourceOffer) -> bool {
    let refused = offer.status.as_ref().is_some_and(|status| status.phase == OfferPhase::Refused);
    refused && offer.spec.withdrawal_timestamp.is_none()
}

/// The policies of those that ask whose source is here.
fn local_policies<'a>(asking: &[Asking<'a>]) -> Vec<&'a Arc<PeeringPolicy>> {
    let held = asking.iter().filter_map(|asking| asking.policy);
    let local = held.filter(|policy| policy.spec.provide.source.plugin.is_none());
    let by_name: BTreeMap<_, _> = local.map(|policy| (policy.metadata.name.as_deref().unwrap_or_default(), policy)).collect();
    by_name.into_values().collect()
}

/// The pools that are to exist.
fn units<'a>(
    picture: &Picture,
    asking: &[Asking<'a>],
    local: &[&Arc<PeeringPolicy>],
    policies: &[&'a Provide],
    grounds: &[Ground],
) -> Vec<Unit<'a>> {
    let mut units = Vec::new();
    for (index, one) in asking.iter().enumerate() {
        let Some(policy) = one.policy else { continue };
        let unit = |pool: &str, local, target| Unit {
            asking: index,
            pool: pool.to_owned(),
            policy: &policy.spec.provide,
            local,
            refused: one.offers.get(pool).is_some_and(|offer| is_refused(offer)),
            in_use: ResourceList::new(),
            target,
            reclaim: None,
            floor: ResourceList::new(),
        };
        if let Some(at) = local.iter().position(|one| one.metadata.name == policy.metadata.name) {
            // A consumer refuses more, and what it refuses would be lost to the others.
            let names = pools::names(at, policies[at], grounds);
            units.extend(names.iter().take(MOST_POOLS).map(|pool| unit(pool, Some(at), ResourceList::new())));
            continue;
        }
        match picture.readings.get(&one.tenant.consumer).and_then(|reading| reading.pools.as_ref()) {
            Some(pools) => {
                // Caps and what is asked for hold for all pools together.
                let (mut caps, mut asked) = (policy.spec.provide.caps.clone(), one.asked());
                for (pool, amounts) in pools {
                    let within = amounts.capped_by(&caps).capped_by(&asked);
                    let within: ResourceList = within.iter().filter(|(_, amount)| !amount.is_negative()).collect();
                    (caps, asked) = (caps.saturating_sub(&within), asked.saturating_sub(&within));
                    units.push(unit(pool, None, within));
                }
            }
            // As long as the plugin has not said anything, what was offered last stays.
            None => units.extend(
                one.offers
                    .iter()
                    .filter(|(_, offer)| offer.spec.withdrawal_timestamp.is_none())
                    .map(|(pool, offer)| unit(pool, None, offer.spec.resource_quota.hard.clone())),
            ),
        }
    }
    units
}

/// What the pods use, and where.
struct Uses<'a> {
    /// For each unit, by ground.
    by_ground: Vec<BTreeMap<usize, ResourceList>>,
    /// For each unit, what its pods use that have no node, as far as it is not placed yet.
    waiting: BTreeMap<usize, ResourceList>,
    /// For each consumer, what pods use of pools that are not to exist.
    elsewhere: HashMap<(usize, &'a str), ResourceList>,
    /// What is free of everything that is not charged to a unit, by ground.
    free: Vec<ResourceList>,
}

impl<'a> Uses<'a> {
    /// Charges each pod to the pool that it uses; the others occupy what could be offered.
    fn count(picture: &'a Picture, asking: &[Asking<'_>], units: &mut [Unit<'_>], grounds: &[Ground]) -> Self {
        let consumers: HashMap<&str, usize> =
            asking.iter().enumerate().map(|(index, asking)| (asking.tenant.consumer.as_str(), index)).collect();
        let known: HashMap<(usize, String), usize> =
            units.iter().enumerate().map(|(index, unit)| ((unit.asking, unit.pool.clone()), index)).collect();
        let at: HashMap<&str, usize> =
            grounds.iter().enumerate().flat_map(|(index, ground)| ground.nodes.keys().map(move |&name| (name, index))).collect();
        let mut by_ground = vec![BTreeMap::<usize, ResourceList>::new(); units.len()];
        let mut elsewhere: HashMap<(usize, &str), ResourceList> = HashMap::new();
        let mut waiting: BTreeMap<usize, ResourceList> = BTreeMap::new();
        let mut occupants: Vec<&PodUse> = Vec::new();
        for (key, pod) in &picture.pods {
            let owner = picture.owner(key, pod).and_then(|(consumer, pool)| Some((*consumers.get(consumer)?, pool)));
            let unit = owner.and_then(|(asking, pool)| known.get(&(asking, pool.to_owned())).copied());
            let Some(unit) = unit else {
                if let Some((asking, pool)) = owner {
                    *elsewhere.entry((asking, pool)).or_default() += &pod.requests;
                }
                occupants.push(pod);
                continue;
            };
            units[unit].in_use += &pod.requests;
            if units[unit].local.is_none() {
                // A plugin says what it gives; where that is taken from, it is not there for others.
                occupants.push(pod);
                continue;
            }
            match pod.node.as_deref().and_then(|node| at.get(node).copied()) {
                // One that waits for a node will get one of its pool, and one whose node is gone ends.
                None if grounds.iter().any(|ground| units[unit].is_on(ground)) => {
                    *waiting.entry(unit).or_default() += &pod.requests;
                }
                Some(here) if units[unit].is_on(&grounds[here]) => {
                    *by_ground[unit].entry(here).or_default() += &pod.requests;
                }
                // It is outside of its pool: its node was taken out of it.
                _ => occupants.push(pod),
            }
        }
        for unit in units.iter_mut() {
            unit.floor = unit.in_use.clone();
        }
        let nodes: Vec<&BTreeMap<&str, &LocalNode>> = grounds.iter().map(|ground| &ground.nodes).collect();
        Self { by_ground, waiting, elsewhere, free: source::free(&nodes, &occupants) }
    }

    /// Charges what waits for a node to the grounds of its pool: where the consumer has some of its plain share left, so that
    /// pods which are about to start move nobody's offer; and what is more than that, where anything is left.
    fn place(&mut self, units: &[Unit], grounds: &[Ground], entitled: &Shares, mut left: Vec<ResourceList>) {
        let nothing = ResourceList::new();
        for (&ground, used) in self.by_ground.iter().flatten() {
            left[ground] = left[ground].saturating_sub(used);
        }
        for (unit, amount) in std::mem::take(&mut self.waiting) {
            let used = &mut self.by_ground[unit];
            let of_pool: Vec<usize> = (0..grounds.len()).filter(|&ground| units[unit].is_on(&grounds[ground])).collect();
            let own = |&ground: &usize| {
                let own = entitled[ground][&units[unit].asking].saturating_sub(used.get(&ground).unwrap_or(&nothing));
                own.min(&left[ground])
            };
            let own: Vec<ResourceList> = of_pool.iter().map(own).collect();
            let beyond = amount.saturating_sub(&own.iter().sum());
            let within = ledger::spread(&amount.saturating_sub(&beyond), &own);
            let rest: Vec<ResourceList> =
                of_pool.iter().zip(&within).map(|(&ground, part)| left[ground].saturating_sub(part)).collect();
            for ((ground, part), more) in of_pool.into_iter().zip(within).zip(ledger::spread(&beyond, &rest)) {
                let part = part + &more;
                left[ground] = left[ground].saturating_sub(&part);
                *used.entry(ground).or_default() += &part;
            }
        }
    }

    /// What is to be split on each ground, and who has a part in it.
    fn lots(&self, units: &[Unit], grounds: &[Ground]) -> Vec<Lot> {
        let lot = |(index, ground): (usize, &Ground)| {
            let mut lot = Lot { free: self.free[index].clone(), ..Lot::default() };
            for (unit, used) in units.iter().zip(&self.by_ground).filter(|(unit, _)| unit.is_on(ground)) {
                let floor = used.get(&index).filter(|_| !unit.is_reclaimed());
                lot.floors.insert(unit.asking, floor.cloned().unwrap_or_default());
                lot.refused.extend(unit.refused.then_some(unit.asking));
            }
            lot
        };
        grounds.iter().enumerate().map(lot).collect()
    }
}

/// The consumers, and what bounds them: what they asked for, the caps of the policy, and its fixed amounts.
fn parties(asking: &[Asking], local: &[&Arc<PeeringPolicy>], lots: &[Lot]) -> Vec<Party> {
    let names: BTreeSet<&str> = lots.iter().flat_map(|lot| lot.free.names()).collect();
    let party = |asking: &Asking| {
        let policy = asking.policy.and_then(|held| local.iter().position(|one| one.metadata.name == held.metadata.name));
        let provide = policy.map(|index| &local[index].spec.provide);
        let fixed = provide.and_then(|provide| provide.source.fixed.as_ref());
        // Beside fixed amounts there is nothing.
        let mut limit: ResourceList = match fixed {
            Some(fixed) => names.iter().map(|&name| (name, fixed.resources.get(name))).collect(),
            None => ResourceList::new(),
        };
        let caps = provide.map(|provide| provide.caps.clone()).unwrap_or_default();
        for (name, cap) in caps.iter().chain(asking.asked().iter()) {
            let bound = if limit.contains(name) { limit.get(name).min(cap) } else { cap };
            limit.insert(name, bound);
        }
        Party { consumer: asking.tenant.consumer.clone(), policy: policy.unwrap_or_default(), limit }
    };
    asking.iter().map(party).collect()
}

/// Finds out which pools are used beyond what their policy or the nodes allow. Such a pool is given notice; when that is
/// over, its floor is taken away. Returns when the next notice is over.
fn reclaim(
    picture: &Picture,
    units: &mut [Unit],
    over: &[BTreeSet<usize>],
    entitled: &Shares,
    asking: &[Asking],
    grounds: &[Ground],
) -> Option<Duration> {
    let mut used: BTreeMap<usize, ResourceList> = BTreeMap::new();
    for unit in units.iter() {
        *used.entry(unit.asking).or_default() += &unit.in_use;
    }
    let mut wake = None;
    for unit in units.iter_mut() {
        let offer = asking[unit.asking].offers.get(unit.pool.as_str());
        let standing = offer.and_then(|offer| offer.spec.reclaim_timestamp.as_ref()).map(|time| time.0);
        let Some(policy) = unit.local else {
            let beyond = exceeds(&unit.in_use, &unit.target, None, 0);
            unit.reclaim = beyond.then(|| standing.unwrap_or_else(|| notice(picture.today, unit.policy.notice_seconds)));
            continue;
        };
        let mine: Vec<usize> = (0..grounds.len()).filter(|&ground| unit.is_on(&grounds[ground])).collect();
        let due: ResourceList = mine.iter().filter_map(|&index| entitled[index].get(&unit.asking)).sum();
        // Caps hold for all pools of a consumer together.
        let capped = exceeds(&used[&unit.asking], &limit_of(unit.policy), Some(&unit.policy.caps), 0);
        let crowded = mine.is_empty() || mine.iter().any(|&index| over[index].contains(&policy));
        let beyond = (capped || crowded) && exceeds(&unit.in_use, &due, None, if capped { 0 } else { unit.policy.threshold() });
        unit.reclaim = beyond.then(|| standing.unwrap_or_else(|| notice(picture.today, unit.policy.notice_seconds)));
    }
    for unit in units {
        let Some(at) = unit.reclaim else { continue };
        let left = Duration::try_from(at.duration_since(picture.today)).unwrap_or_default();
        if left.is_zero() {
            unit.floor = ResourceList::new();
        } else {
            wake = sooner(wake, Some(left));
            // What a plugin gives is not cut below use without notice either.
            if unit.local.is_none() {
                unit.target = unit.target.max(&unit.in_use);
            }
        }
    }
    wake
}

/// When a notice that is given now is over.
fn notice(today: Timestamp, seconds: u32) -> Timestamp {
    today.saturating_add(SignedDuration::from_secs(i64::from(seconds))).unwrap_or(today)
}

/// What the policy says that a consumer gets at most, whatever is free.
fn limit_of(policy: &Provide) -> ResourceList {
    let fixed = policy.source.fixed.as_ref().map(|fixed| fixed.resources.clone()).unwrap_or_default();
    let mut limit = policy.caps.clone();
    for (name, amount) in &fixed {
        let bound = if limit.contains(name) { limit.get(name).min(amount) } else { amount };
        limit.insert(name, bound);
    }
    limit
}

/// Whether more is used than this, by more than `tolerance` percent. With `named`, what neither names is not bounded.
fn exceeds(in_use: &ResourceList, most: &ResourceList, named: Option<&ResourceList>, tolerance: u8) -> bool {
    in_use.iter().any(|(name, used)| {
        let bounded = named.is_none_or(|named| named.contains(name) || most.contains(name));
        bounded && used > most.get(name) && most.get(name).differs_by_more_than(used, u32::from(tolerance))
    })
}

/// The policies whose consumers use more of a ground than they may have together, or than there is.
fn overdrawn(lot: &Lot, parties: &[Party], policies: &[&Provide]) -> BTreeSet<usize> {
    let mut used: BTreeMap<usize, ResourceList> = BTreeMap::new();
    for (&party, floor) in &lot.floors {
        *used.entry(parties[party].policy).or_default() += floor;
    }
    let all: ResourceList = used.values().sum();
    let crowded = exceeds(&all, &lot.bound(parties, policies), None, 0);
    used.into_iter()
        .filter(|(policy, used)| crowded || exceeds(used, &shares::bound_of(&lot.free, policies[*policy]), None, 0))
        .map(|(policy, _)| policy)
        .collect()
}

/// Units that share grounds, directly or through others: what they are promised is weighed together.
fn components(units: &[Unit], grounds: &[Ground]) -> Vec<Vec<usize>> {
    let mut component: Vec<usize> = (0..units.len()).collect();
    for ground in grounds {
        let members: BTreeSet<usize> =
            units.iter().zip(&component).filter(|(unit, _)| unit.is_on(ground)).map(|(_, &component)| component).collect();
        if let Some(&lowest) = members.first() {
            for one in component.iter_mut().filter(|one| members.contains(one)) {
                *one = lowest;
            }
        }
    }
    let mut found: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (unit, &component) in component.iter().enumerate() {
        found.entry(component).or_default().push(unit);
    }
    found.into_values().collect()
}

/// All that the units of a component may be promised together.
fn total(
    units: &[Unit],
    members: &[usize],
    lots: &[Lot],
    parties: &[Party],
    policies: &[&Provide],
    grounds: &[Ground],
) -> ResourceList {
    // What a plugin says is not weighed.
    let plugins = members.iter().filter(|&&unit| units[unit].local.is_none()).map(|&unit| &units[unit].target).sum();
    let of_these = |ground: &Ground| members.iter().any(|&unit| units[unit].is_on(ground));
    let bounds: Vec<ResourceList> =
        grounds.iter().zip(lots).filter(|(ground, _)| of_these(ground)).map(|(_, lot)| lot.bound(parties, policies)).collect();
    bounds.iter().fold(plugins, |sum: ResourceList, bound| sum + bound)
}

/// Writes offers.
struct Composer<'a> {
    picture: &'a Picture,
    asking: &'a [Asking<'a>],
    /// What is the same for all consumers of a policy's pool.
    descriptions: BTreeMap<(Option<usize>, &'a str), Description>,
}

/// What is said of the nodes of a pool.
struct Description {
    labels: BTreeMap<String, String>,
    node_selector: Option<NodeSelector>,
}

impl Description {
    fn of(picture: &Picture, unit: &Unit, grounds: &[Ground]) -> Self {
        let in_pool = |ground: &&Ground| unit.local.is_none() || unit.is_on(ground);
        let nodes = grounds.iter().filter(in_pool).flat_map(|ground| ground.nodes.values().copied());
        let mut labels = picture.cluster_labels.clone();
        labels.extend(source::uniform_labels(nodes));
        let node_selector = unit.local.and_then(|policy| pools::node_selector(policy, unit.policy, &unit.pool, grounds));
        Self { labels, node_selector }
    }
}

impl<'a> Composer<'a> {
    fn new(picture: &'a Picture, asking: &'a [Asking<'a>], units: &'a [Unit], grounds: &[Ground]) -> Self {
        let mut descriptions = BTreeMap::new();
        for unit in units {
            let key = (unit.local, unit.pool.as_str());
            descriptions.entry(key).or_insert_with(|| Description::of(picture, unit, grounds));
        }
        Self { picture, asking, descriptions }
    }

    fn standing(&self, unit: &Unit) -> Standing {
        let asking = &self.asking[unit.asking];
        let id = (asking.tenant.uid.clone(), unit.pool.clone());
        let written = self.picture.written.get(&id);
        let offer = asking.offers.get(unit.pool.as_str());
        let published = offer.map(|offer| &offer.spec.resource_quota.hard);
        let outdated = offer.is_some_and(|offer| offer.spec != self.spec(unit, offer.spec.resource_quota.hard.clone()));
        let followed = self.picture.followed.get(&asking.tenant.consumer);
        let new_rules =
            followed.is_some_and(|followed| asking.policy.is_none_or(|policy| *followed != PolicyVersion::of(policy)));
        let urgent = new_rules || unit.local.is_none();
        Standing {
            published: published.map(|published| written.map_or(published, |written| &written.hard).clone()),
            written: written.map(|written| written.at).filter(|_| !urgent),
            outdated,
            target: unit.target.clone(),
            in_use: unit.floor.clone(),
            asked: asking.asked(),
            // What is reclaimed is taken back to the letter, or pods would never end for it.
            threshold: if new_rules || unit.is_reclaimed() { 0 } else { unit.policy.threshold() },
        }
    }

    fn spec(&self, unit: &Unit, hard: ResourceList) -> ResourceOfferSpec {
        let own = &self.picture.own;
        let usage = &unit.policy.usage;
        let description = &self.descriptions[&(unit.local, unit.pool.as_str())];
        ResourceOfferSpec {
            cluster_id: own.clone(),
            pool: unit.pool.clone(),
            resource_quota: ResourceQuota { hard },
            labels: description.labels.clone(),
            path: vec![own.clone()],
            storage_classes: usage.storage_classes.clone(),
            ingress_classes: usage.ingress_classes.clone(),
            load_balancer_classes: usage.load_balancer_classes.clone(),
            node_selector: description.node_selector.clone(),
            notice_seconds: Some(unit.policy.notice_seconds),
            withdrawal_timestamp: None,
            reclaim_timestamp: unit.reclaim.map(Time),
        }
    }

    fn write(&self, unit: &Unit, hard: ResourceList, grows: bool) -> OfferWrite {
        let asking = &self.asking[unit.asking];
        OfferWrite {
            namespace: asking.namespace.to_owned(),
            namespace_uid: asking.tenant.uid.clone(),
            consumer: asking.tenant.consumer.clone(),
            spec: self.spec(unit, hard),
            exists: asking.offers.contains_key(unit.pool.as_str()),
            grows,
        }
    }
}

/// Offers of pools that are not to exist any more are taken back: with notice, and then for good. Returns when a notice ends.
fn withdraw(picture: &Picture, asking: &[Asking], units: &[Unit], uses: &Uses, plan: &mut Plan) -> Option<Duration> {
    let wanted: BTreeSet<(usize, &str)> = units.iter().map(|unit| (unit.asking, unit.pool.as_str())).collect();
    let mut wake = None;
    for (index, one) in asking.iter().enumerate() {
        for (&pool, offer) in one.offers.iter().filter(|(pool, _)| !wanted.contains(&(index, **pool))) {
            let in_use = uses.elsewhere.contains_key(&(index, pool));
            let Some(end) = &offer.spec.withdrawal_timestamp else {
                // A policy that is gone is still kept to.
                let promised = offer.spec.notice_seconds.unwrap_or(Provide::default().notice_seconds);
                let seconds = one.policy.map_or(promised, |policy| policy.spec.provide.notice_seconds);
                let end = Some(Time(notice(picture.today, seconds)));
                let spec = ResourceOfferSpec { withdrawal_timestamp: end, ..offer.spec.clone() };
                plan.writes.insert(
                    0,
                    OfferWrite {
                        namespace: one.namespace.to_owned(),
                        namespace_uid: one.tenant.uid.clone(),
                        consumer: one.tenant.consumer.clone(),
                        spec,
                        exists: true,
                        grows: false,
                    },
                );
                continue;
            };
            let left = Duration::try_from(end.0.duration_since(picture.today)).unwrap_or_default();
            if left.is_zero() || !in_use {
                plan.deletions.push(Key::new(one.namespace, pool));
            } else {
                wake = sooner(wake, Some(left));
            }
        }
    }
    wake
}

/// Offers in tenant namespaces that answer no request.
fn deletions(picture: &Picture, asking: &[Asking]) -> Vec<Key> {
    let answered: BTreeSet<&str> = asking.iter().map(|asking| asking.namespace).collect();
    let tenants: BTreeSet<&str> = picture.tenants().map(|(namespace, _)| namespace).collect();
    let ours = picture.offers.iter().filter(|(key, _)| tenants.contains(key.namespace.as_str()));
    let standing = ours.filter(|(_, offer)| offer.metadata.deletion_timestamp.is_none());
    let stray = |key: &Key, offer: &ResourceOffer| !answered.contains(key.namespace.as_str()) || offer.spec.pool != key.name;
    let mut deletions: Vec<Key> = standing.filter(|(key, offer)| stray(key, offer)).map(|(key, _)| key.clone()).collect();
    deletions.sort();
    deletions
}

/// What is told to the consumers, and here.
fn tell(picture: &Picture, asking: &[Asking], units: &[Unit], standings: &[Standing], plan: &mut Plan) {
    for (index, one) in asking.iter().enumerate() {
        if let Some(policy) = one.policy {
            plan.followed.insert(one.tenant.consumer.clone(), PolicyVersion::of(policy));
        }
        let of_this = units.iter().zip(standings).filter(|(unit, _)| unit.asking == index);
        // What does not stand yet is written now or in a moment.
        let offered = of_this.filter(|(_, standing)| standing.published.is_some() || !standing.target.is_zero());
        let pools: Vec<&str> = offered.map(|(unit, _)| unit.pool.as_str()).collect();
        let reading = picture.readings.get(&one.tenant.consumer);
        let say = |kind| outcome(kind, one.policy, reading, &pools);
        let (current, wanted) = (one.request.conditions.clone(), say(ANSWERED));
        plan.answers.push(Answer { namespace: one.namespace.to_owned(), current, wanted });
        plan.links.insert(one.tenant.consumer.clone(), say(links::RESOURCES_OFFERED));
    }
    not_asking(picture, plan);
}

fn outcome(kind: &'static str, policy: Option<&Arc<PeeringPolicy>>, reading: Option<&Reading>, pools: &[&str]) -> Wanted {
    let ours = kind == links::RESOURCES_OFFERED;
    let Some(policy) = policy else {
        let message = "the provider shares nothing with this cluster: no PeeringPolicy selects it";
        return Wanted::no(kind, "NoPolicy", message);
    };
    let name = policy.metadata.name.as_deref().unwrap_or_default();
    let provide = &policy.spec.provide;
    let problem = reading.and_then(|reading| reading.problem.as_deref()).filter(|_| provide.source.plugin.is_some());
    // The words of a plugin, and how policies are called, are nothing to a consumer.
    if let Some(problem) = problem.filter(|_| ours) {
        let stays = if pools.is_empty() { "nothing is offered until it answers" } else { "what was offered last stays" };
        return Wanted::no(kind, "PluginFailed", format!("policy {name}: {problem}; {stays}"));
    }
    match pools {
        [] if provide.source.plugin.is_some() => {
            Wanted::no(kind, "NothingOffered", "the provider's resource plugin offers nothing")
        }
        [] if provide.source.fixed.is_none() && provide.percentage == 0 => {
            Wanted::no(kind, "NothingShared", "the provider's PeeringPolicy shares 0 percent of its resources")
        }
        [] => {
            let message = "the provider has nothing free that was asked for; an offer follows as soon as there is something";
            Wanted::no(kind, "NothingFree", message)
        }
        pools if ours => Wanted::yes(kind, "Offered", format!("{}, under policy {name}", offered(pools))),
        pools => Wanted::yes(kind, "Offered", offered(pools)),
    }
}

fn offered(pools: &[&str]) -> String {
    match pools {
        [pool] => format!("pool {pool} is offered"),
        pools => format!("pools {} are offered", pools.join(", ")),
    }
}

/// Tenants without a request, or with one that cannot be read.
fn not_asking(picture: &Picture, plan: &mut Plan) {
    let requests = picture.requests();
    for (namespace, tenant) in picture.tenants() {
        let wanted = |kind| match requests.get(namespace).map(|request| &request.resources) {
            None => Some(Wanted::no(kind, "NotRequested", "the consumer has not asked for resources")),
            Some(Err(error)) => {
                let error: String = error.chars().take(200).collect();
                Some(Wanted::no(kind, "Unreadable", format!("the request cannot be read: {error}")))
            }
            Some(Ok(_)) => None,
        };
        if let Some(wanted) = wanted(links::RESOURCES_OFFERED) {
            plan.links.insert(tenant.consumer.clone(), wanted);
        }
    }
}

#[cfg(test)]
mod histories;
#[cfg(test)]
mod tests;

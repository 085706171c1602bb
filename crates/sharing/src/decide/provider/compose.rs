//! Offers as they are to be written, and those that are taken back.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::core::v1::NodeSelector;
use liqo_api::{Provide, ResourceList, ResourceOffer, ResourceOfferSpec, ResourceQuota, Time};
use liqo_kit::Key;

use super::{notice, sooner, units::Unit, uses::Uses};
use crate::decide::{
    picture::{Asking, OfferWrite, Picture, Plan, PolicyVersion},
    pools::{self, Ground},
    publish::Standing,
    source,
};

/// Writes offers.
pub struct Composer<'a> {
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
        let nodes = grounds.iter().filter(in_pool).flat_map(|ground| ground.nodes.iter().map(|(_, node)| *node));
        let mut labels = picture.cluster_labels.clone();
        labels.extend(source::uniform_labels(nodes));
        let node_selector = unit.local.and_then(|policy| pools::node_selector(policy, unit.policy, &unit.pool, grounds));
        Self { labels, node_selector }
    }
}

impl<'a> Composer<'a> {
    pub fn new(picture: &'a Picture, asking: &'a [Asking<'a>], units: &'a [Unit], grounds: &[Ground]) -> Self {
        let mut descriptions = BTreeMap::new();
        for unit in units {
            let key = (unit.local, unit.pool.as_str());
            descriptions.entry(key).or_insert_with(|| Description::of(picture, unit, grounds));
        }
        Self { picture, asking, descriptions }
    }

    pub fn standing(&self, unit: &Unit) -> Standing {
        let asking = &self.asking[unit.asking];
        let id = (asking.tenant.uid.clone(), unit.pool.clone());
        let written = self.picture.written.get(&id);
        let offer = asking.offers.get(unit.pool.as_str());
        let published = offer.map(|offer| &offer.spec.resource_quota.hard);
        let outdated = offer.is_some_and(|offer| offer.spec != self.spec(unit, offer.spec.resource_quota.hard.clone()));
        let followed = self.picture.followed.get(&asking.tenant.consumer);
        let new_rules =
            followed.is_some_and(|followed| asking.policy.is_none_or(|policy| *followed != PolicyVersion::of(policy)));
        // A notice that is not needed any more must not stand for the next time, when it would be over already.
        let notice_ends = unit.reclaim.is_none() && offer.is_some_and(|offer| offer.spec.reclaim_timestamp.is_some());
        let urgent = new_rules || notice_ends || unit.local.is_none();
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

    pub fn write(&self, unit: &Unit, hard: ResourceList, grows: bool) -> OfferWrite {
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
pub fn withdraw(picture: &Picture, asking: &[Asking], units: &[Unit], uses: &Uses, plan: &mut Plan) -> Option<Duration> {
    let wanted: BTreeSet<(usize, &str)> = units.iter().map(|unit| (unit.asking, unit.pool.as_str())).collect();
    let mut wake = None;
    for (index, one) in asking.iter().enumerate() {
        for (&pool, offer) in one.offers.iter().filter(|(pool, _)| !wanted.contains(&(index, **pool))) {
            let in_use = uses.elsewhere.contains(&(index, pool));
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
pub fn deletions(picture: &Picture, asking: &[Asking]) -> Vec<Key> {
    let answered: BTreeSet<&str> = asking.iter().map(|asking| asking.namespace).collect();
    let tenants: BTreeSet<&str> = picture.tenants().map(|(namespace, _)| namespace).collect();
    let ours = picture.offers.iter().filter(|(key, _)| tenants.contains(key.namespace.as_str()));
    let standing = ours.filter(|(_, offer)| offer.metadata.deletion_timestamp.is_none());
    let stray = |key: &Key, offer: &ResourceOffer| !answered.contains(key.namespace.as_str()) || offer.spec.pool != key.name;
    let mut deletions: Vec<Key> = standing.filter(|(key, offer)| stray(key, offer)).map(|(key, _)| key.clone()).collect();
    deletions.sort();
    deletions
}

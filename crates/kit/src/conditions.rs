//! Conditions: one place that decides whether anything is to be written.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use liqo_api::{Condition, ForeignCluster, Time, links};
use serde::de::DeserializeOwned;
use serde_json::json;

/// A condition that a controller wants to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its type.
    pub kind: &'static str,
    /// `Some(true)` for True, `Some(false)` for False, nothing for Unknown.
    pub status: Option<bool>,
    /// One word in camel case.
    pub reason: String,
    /// For people: what is the case and what to do about it.
    pub message: String,
}

impl Wanted {
    /// The condition is True.
    pub fn yes(kind: &'static str, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, status: Some(true), reason: reason.into(), message: message.into() }
    }

    /// The condition is False.
    pub fn no(kind: &'static str, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, status: Some(false), reason: reason.into(), message: message.into() }
    }

    /// Nothing is known (yet).
    pub fn unknown(kind: &'static str, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, status: None, reason: reason.into(), message: message.into() }
    }

    fn status_text(&self) -> &'static str {
        match self.status {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        }
    }
}

/// The conditions to apply so that all of `wanted` hold, or nothing when they hold already. The time of transition of a
/// condition changes with its status only.
pub fn decide(current: &[Condition], wanted: &[Wanted], now: Timestamp) -> Option<Vec<Condition>> {
    decide_for(None, current, wanted, now)
}

/// The same, and each condition says which generation of the object's spec it is about.
pub fn decide_for(generation: Option<i64>, current: &[Condition], wanted: &[Wanted], now: Timestamp) -> Option<Vec<Condition>> {
    let mut changed = false;
    let conditions = wanted
        .iter()
        .map(|want| {
            let have = current.iter().find(|condition| condition.type_ == want.kind);
            // Some words come from peers, and conditions are shown on terminals.
            let message: String = want.message.chars().filter(|character| !character.is_control()).take(2000).collect();
            let same_status = have.is_some_and(|have| have.status == want.status_text());
            changed |= !same_status || have.is_some_and(|have| have.observed_generation != generation);
            changed |= have.is_some_and(|have| have.reason != want.reason || have.message != message);
            Condition {
                type_: want.kind.to_owned(),
                status: want.status_text().to_owned(),
                reason: want.reason.clone(),
                message,
                last_transition_time: have.filter(|_| same_status).map_or(Time(now), |have| have.last_transition_time.clone()),
                observed_generation: generation,
            }
        })
        .collect();
    changed.then_some(conditions)
}

/// Makes `wanted` hold in the status of a [`ForeignCluster`], by server-side apply under `manager`, so that each slice owns
/// its own conditions. A slice always gives all of its conditions: one that is left out disappears. Writes nothing when
/// nothing changes.
pub async fn apply_links(
    client: &Client,
    foreign_cluster: &ForeignCluster,
    manager: &str,
    wanted: &[Wanted],
) -> kube::Result<()> {
    let name = foreign_cluster.metadata.name.as_deref().unwrap_or_default();
    let current = foreign_cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let Some(conditions) = decide_links(current, wanted, links_of(manager), Timestamp::now()) else { return Ok(()) };
    let body = json!({
        "apiVersion": "discovery.liqo.io/v1alpha1",
        "kind": "ForeignCluster",
        "metadata": { "name": name, "uid": foreign_cluster.metadata.uid },
        "status": { "conditions": conditions },
    });
    let api: Api<ForeignCluster> = Api::all(client.clone());
    ignore_gone(api.patch_status(name, &PatchParams::apply(manager).force(), &Patch::Apply(&body)).await)
}

/// The links that each slice writes, so that one which no longer applies is noticed and removed.
fn links_of(manager: &str) -> &'static [&'static str] {
    match manager {
        "liqo-peering" => &[
            links::IDENTITY_VERIFIED,
            links::AUTHENTICATED,
            links::PEER_REACHABLE,
            links::CONSUMER_AUTHORIZED,
            links::CONSUMER_REACHABLE,
        ],
        "liqo-sharing" => &[links::RESOURCES_REQUESTED, links::OFFER_ACCEPTED, links::RESOURCES_OFFERED],
        "liqo-offloading" => &[links::VIRTUAL_NODES_READY],
        "liqo-interconnect" => &[links::NETWORK_AGREED, links::TUNNEL_CONNECTED],
        _ => &[],
    }
}

/// As [`decide`], for a writer that owns the types in `own`: one that stands but is not wanted is a change, too.
fn decide_links(current: &[Condition], wanted: &[Wanted], own: &[&str], now: Timestamp) -> Option<Vec<Condition>> {
    let left_out = |have: &Condition| own.contains(&have.type_.as_str()) && wanted.iter().all(|want| want.kind != have.type_);
    if !current.iter().any(left_out) {
        return decide(current, wanted, now);
    }
    let kept = |want: &Wanted| current.iter().find(|have| have.type_ == want.kind).cloned();
    let one = |want: &Wanted| decide(current, std::slice::from_ref(want), now).map_or_else(|| kept(want), |mut new| new.pop());
    Some(wanted.iter().filter_map(one).collect())
}

/// Makes `wanted` hold among the conditions in the status of an object that one controller owns, by merge patch. Writes
/// nothing when nothing changes.
pub async fn merge<K>(api: &Api<K>, name: &str, current: &[Condition], wanted: &[Wanted]) -> kube::Result<()>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let Some(changed) = decide(current, wanted, Timestamp::now()) else { return Ok(()) };
    let mut conditions: Vec<Condition> =
        current.iter().filter(|have| !changed.iter().any(|new| new.type_ == have.type_)).cloned().collect();
    conditions.extend(changed);
    let body = json!({ "status": { "conditions": conditions } });
    ignore_gone(api.patch_status(name, &PatchParams::default(), &Patch::Merge(&body)).await)
}

/// An object that is gone needs no status.
fn ignore_gone<K>(result: kube::Result<K>) -> kube::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// An API for objects of one namespace.
pub fn namespaced<K>(client: &Client, namespace: &str) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    Api::namespaced(client.clone(), namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLY: Timestamp = Timestamp::UNIX_EPOCH;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn nothing_is_written_when_nothing_changed() {
        let wanted = [Wanted::yes("Ready", "Fine", "all is well")];
        let first = decide(&[], &wanted, EARLY).unwrap();
        assert_eq!(decide(&first, &wanted, at(100)), None);
    }

    #[test]
    fn the_transition_time_follows_the_status_not_the_message() {
        let first = decide(&[], &[Wanted::no("Ready", "Waiting", "for a")], EARLY).unwrap();
        let second = decide(&first, &[Wanted::no("Ready", "Waiting", "for b")], at(100)).unwrap();
        assert_eq!(second[0].last_transition_time, Time(EARLY));
        let third = decide(&second, &[Wanted::yes("Ready", "Done", "")], at(200)).unwrap();
        assert_eq!(third[0].last_transition_time, Time(at(200)));
    }

    #[test]
    fn a_link_that_no_longer_applies_is_removed_and_the_others_keep_their_time() {
        let own = links_of("liqo-sharing");
        let both = [Wanted::yes("ResourcesRequested", "Asked", ""), Wanted::no("OfferAccepted", "NoOffer", "")];
        let first = decide_links(&[], &both, own, EARLY).unwrap();
        let second = decide_links(&first, &both[..1], own, at(100)).unwrap();
        assert_eq!(second, first[..1]);
        assert_eq!(decide_links(&second, &both[..1], own, at(200)), None);
        assert_eq!(decide_links(&second, &[], own, at(200)), Some(Vec::new()));
    }

    #[test]
    fn the_links_of_other_writers_are_left_alone() {
        let other = decide(&[], &[Wanted::yes("PeerReachable", "Fine", "")], EARLY).unwrap();
        assert_eq!(decide_links(&other, &[], links_of("liqo-sharing"), at(100)), None);
    }

    #[test]
    fn every_link_has_exactly_one_writer() {
        let writers = ["liqo-peering", "liqo-sharing", "liqo-offloading", "liqo-interconnect"];
        for link in [&links::BORROWING[..], &links::LENDING, &links::NETWORK].concat() {
            assert_eq!(writers.iter().filter(|writer| links_of(writer).contains(&link)).count(), 1, "{link}");
        }
    }
}

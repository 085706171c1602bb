//! Which names a question is about: whose pod asks, and what its namespaces are called at home. Pure.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    time::{Duration, Instant},
};

use liqo_api::{ClusterId, Key};

use crate::message::{Name, PTR};

/// The parts of a cluster's domain that contain namespaces.
const PARTS: [&[u8]; 2] = [b"svc", b"pod"];

/// How long questions of an address do not wait again after one waited and the address stayed unknown.
const NO_WAIT: Duration = Duration::from_secs(30);
/// Maximum number of addresses that are remembered for that.
const MAX_UNKNOWN: usize = 1000;

/// What happens to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Question and answer pass unchanged.
    Unchanged,
    /// The address belongs to no known pod, or to pods of more than one consumer, and the name may be one of an offloaded
    /// namespace: the pod may be too new.
    UnknownPod,
    /// The question is about a namespace that has another name here, and the name with it is too long: it cannot exist.
    TooLong,
    /// Ask for this name, and write the names in the answer back for this consumer.
    Translate { name: Name, consumer: ClusterId },
}

/// The mapped namespaces and the addresses of remote pods.
#[derive(Default)]
pub struct Directory {
    /// Consumer and home name of each mapped namespace.
    namespaces: HashMap<String, (ClusterId, String)>,
    /// The mapped namespaces of each consumer's home namespaces. More than one only while a former one is being deleted.
    by_home: HashMap<ClusterId, HashMap<String, BTreeSet<Candidate>>>,
    /// The pods with each address. More than one only until a former one is seen to end.
    pods: HashMap<IpAddr, Vec<Key>>,
    /// Addresses that stayed unknown while a question waited, and when the wait ended.
    unknown: HashMap<IpAddr, Instant>,
}

/// A mapped namespace; those that stay come first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    terminating: bool,
    name: String,
}

/// A mapped namespace as it was or is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    pub consumer: ClusterId,
    pub home: String,
    pub terminating: bool,
}

impl Directory {
    /// A mapped namespace changed.
    pub fn namespace_changed(&mut self, name: &str, old: Option<&Mapped>, new: Option<&Mapped>) {
        if let Some(old) = old {
            self.namespaces.remove(name);
            let candidate = Candidate { terminating: old.terminating, name: name.to_owned() };
            if let Some(homes) = self.by_home.get_mut(&old.consumer) {
                if let Some(candidates) = homes.get_mut(&old.home) {
                    candidates.remove(&candidate);
                }
                homes.retain(|_, candidates| !candidates.is_empty());
                if homes.is_empty() {
                    self.by_home.remove(&old.consumer);
                }
            }
        }
        if let Some(new) = new {
            self.namespaces.insert(name.to_owned(), (new.consumer.clone(), new.home.clone()));
            let homes = self.by_home.entry(new.consumer.clone()).or_default();
            let candidate = Candidate { terminating: new.terminating, name: name.to_owned() };
            homes.entry(new.home.clone()).or_default().insert(candidate);
            // It may be the namespace of a pod that is known already.
            self.unknown.clear();
        }
    }

    /// The addresses of a pod changed.
    pub fn pod_changed(&mut self, pod: &Key, old: &[IpAddr], new: &[IpAddr]) {
        for address in old {
            if let Some(owners) = self.pods.get_mut(address) {
                owners.retain(|owner| owner != pod);
                if owners.is_empty() {
                    self.pods.remove(address);
                }
            }
        }
        for address in new {
            let owners = self.pods.entry(*address).or_default();
            if !owners.contains(pod) {
                owners.push(pod.clone());
            }
        }
        for address in old.iter().chain(new) {
            self.unknown.remove(address);
        }
    }

    /// The consumer of the pod with this address. `None` if that is not certain.
    pub fn consumer_of(&self, source: IpAddr) -> Option<&ClusterId> {
        let mut owners = self.pods.get(&source)?.iter().map(|pod| Some(&self.namespaces.get(&pod.namespace)?.0));
        let first = owners.next()??;
        owners.all(|owner| owner == Some(first)).then_some(first)
    }

    /// Whether a question of this address waits until the address is known.
    pub fn may_wait(&self, source: IpAddr, now: Instant) -> bool {
        self.unknown.get(&source).is_none_or(|since| now.saturating_duration_since(*since) >= NO_WAIT)
    }

    /// A question of this address waited until now. Remembers the address if it is still unknown.
    pub fn waited(&mut self, source: IpAddr, now: Instant) {
        if self.unknown.len() >= MAX_UNKNOWN {
            self.unknown.retain(|_, since| now.saturating_duration_since(*since) < NO_WAIT);
        }
        if self.unknown.len() < MAX_UNKNOWN && self.consumer_of(source).is_none() {
            self.unknown.insert(source, now);
        }
    }

    /// What happens to a question of the pod with this address, in a cluster with this domain.
    pub fn decide(&self, source: IpAddr, name: &Name, kind: u16, domain: &Name) -> Decision {
        let place = namespace_of(name, domain);
        let Some(consumer) = self.consumer_of(source) else {
            let is_offloaded = place.is_some_and(|(_, home)| self.by_home.values().any(|homes| homes.contains_key(&home)));
            return if is_offloaded { Decision::UnknownPod } else { Decision::Unchanged };
        };
        let unchanged = || {
            if kind == PTR && name.is_reverse() {
                Decision::Translate { name: name.clone(), consumer: consumer.clone() }
            } else {
                Decision::Unchanged
            }
        };
        let Some((index, home)) = place else { return unchanged() };
        match self.mapped(consumer, &home) {
            Some(mapped) if mapped != home => match name.with_label(index, mapped) {
                Some(name) => Decision::Translate { name, consumer: consumer.clone() },
                None => Decision::TooLong,
            },
            _ => unchanged(),
        }
    }

    /// A name of a namespace of this consumer as it is at home. `None` if it is another name, or the same.
    pub fn at_home(&self, consumer: &ClusterId, name: &Name, domain: &Name) -> Option<Name> {
        let (index, here) = namespace_of(name, domain)?;
        let (owner, home) = self.namespaces.get(&here)?;
        (owner == consumer && *home != here).then(|| name.with_label(index, home)).flatten()
    }

    fn mapped(&self, consumer: &ClusterId, home: &str) -> Option<&str> {
        Some(self.by_home.get(consumer)?.get(home)?.first()?.name.as_str())
    }
}

/// The index of the label that names a namespace, and that label in lower case: `demo` in `web.demo.svc.cluster.local`.
fn namespace_of(name: &Name, domain: &Name) -> Option<(usize, String)> {
    let index = name.labels().len().checked_sub(domain.labels().len() + 2)?;
    let is_part = PARTS.iter().any(|part| name.labels()[index + 1].eq_ignore_ascii_case(part));
    let label = std::str::from_utf8(&name.labels()[index]).ok()?;
    (is_part && name.ends_with(domain)).then(|| (index, label.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests;

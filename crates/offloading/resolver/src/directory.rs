//! Which names a question is about: whose pod asks, and what its namespaces are called at home. Pure.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use liqo_api::{ClusterId, Key};

use crate::message::{Name, PTR};

/// The parts of a cluster's domain that contain namespaces.
const PARTS: [&[u8]; 2] = [b"svc", b"pod"];

/// What happens to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Question and answer pass unchanged.
    Unchanged,
    /// The address belongs to no known pod, and the name may be one of an offloaded namespace: the pod may be too new.
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
    consumers: HashMap<ClusterId, Consumer>,
    /// The pod with each address, and its namespace.
    pods: HashMap<IpAddr, Key>,
}

#[derive(Default)]
struct Consumer {
    /// The mapped namespaces of each home namespace. More than one only while a former one is being deleted.
    by_home: HashMap<String, BTreeSet<Candidate>>,
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
            if let Some(consumer) = self.consumers.get_mut(&old.consumer) {
                if let Some(candidates) = consumer.by_home.get_mut(&old.home) {
                    candidates.remove(&candidate);
                }
                consumer.by_home.retain(|_, candidates| !candidates.is_empty());
                if consumer.by_home.is_empty() {
                    self.consumers.remove(&old.consumer);
                }
            }
        }
        if let Some(new) = new {
            self.namespaces.insert(name.to_owned(), (new.consumer.clone(), new.home.clone()));
            let homes = &mut self.consumers.entry(new.consumer.clone()).or_default().by_home;
            let candidate = Candidate { terminating: new.terminating, name: name.to_owned() };
            homes.entry(new.home.clone()).or_default().insert(candidate);
        }
    }

    /// The addresses of a pod changed. An address that another pod has meanwhile stays that pod's.
    pub fn pod_changed(&mut self, pod: &Key, old: &[IpAddr], new: &[IpAddr]) {
        for address in old {
            if self.pods.get(address) == Some(pod) {
                self.pods.remove(address);
            }
        }
        self.pods.extend(new.iter().map(|address| (*address, pod.clone())));
    }

    /// What happens to a question of the pod with this address, in a cluster with this domain.
    pub fn decide(&self, source: IpAddr, name: &Name, kind: u16, domain: &Name) -> Decision {
        let place = namespace_of(name, domain);
        let Some((consumer, _)) = self.pods.get(&source).and_then(|pod| self.namespaces.get(&pod.namespace)) else {
            let is_offloaded = place.is_some_and(|(_, home)| self.consumers.values().any(|one| one.by_home.contains_key(&home)));
            return if is_offloaded { Decision::UnknownPod } else { Decision::Unchanged };
        };
        let unchanged = || {
            if kind == PTR { Decision::Translate { name: name.clone(), consumer: consumer.clone() } } else { Decision::Unchanged }
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
        Some(self.consumers.get(consumer)?.by_home.get(home)?.first()?.name.as_str())
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

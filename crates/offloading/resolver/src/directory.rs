//! Decides what a question means: finds the consumer whose pod asks, and translates the names of
//! its namespaces and its domain. Pure.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    time::{Duration, Instant},
};

use liqo_api::{ClusterId, Key};

use crate::message::{ANY, DomainName, PTR};

/// The part of a cluster's domain that contains Services.
const SERVICES: &[u8] = b"svc";
/// The parts of a cluster's domain that contain namespaces.
const PARTS: [&[u8]; 2] = [SERVICES, b"pod"];

/// Time in which questions of an address do not wait again after one waited and the address stayed
/// unknown.
const NO_WAIT: Duration = Duration::from_secs(30);
/// Maximum number of addresses that are remembered for that.
const MAX_UNKNOWN: usize = 1000;

/// The decision about a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameDecision {
    /// Question and answer pass unchanged.
    Unchanged,
    /// The address belongs to no known pod, or to pods of more than one consumer, and the name
    /// means something else for the pods of some consumer: the pod may be too new.
    UnknownPod,
    /// There is no such name: it would be too long here, is in a namespace of home that is not
    /// here, or in one of somebody else.
    NoSuchName,
    /// Ask for this name, and write the names in the answer back for this consumer.
    Translate {
        name: DomainName,
        consumer: ClusterId,
    },
    /// The name is a Service of type `ExternalName`, an alias of this name as it is at home.
    Alias { target: DomainName },
}

/// The mapped namespaces, the domains of their consumers, the external names in them, and the
/// addresses of remote pods.
#[derive(Default)]
pub struct Directory {
    /// Consumer and home name of each mapped namespace.
    namespaces: HashMap<String, (ClusterId, String)>,
    /// The mapped namespaces of each consumer's home namespaces. More than one only while a former
    /// one is being deleted.
    by_home: HashMap<ClusterId, HashMap<String, BTreeSet<CandidateNamespace>>>,
    /// The domain of the cluster of each consumer that announces one. The others have the domain of
    /// this cluster.
    domains: HashMap<ClusterId, DomainName>,
    /// The names that Services stand for.
    external_names: HashMap<Key, DomainName>,
    /// The pods with each address. More than one only until a former one is seen to end.
    pods: HashMap<IpAddr, Vec<Key>>,
    /// Addresses that stayed unknown while a question waited, and when the wait ended.
    unknown: HashMap<IpAddr, Instant>,
}

/// A mapped namespace; those that stay come first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CandidateNamespace {
    terminating: bool,
    name: String,
}

/// A mapped namespace as it was or is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedNamespaceState {
    pub consumer: ClusterId,
    pub home: String,
    pub terminating: bool,
}

impl Directory {
    pub fn namespace_changed(
        &mut self,
        name: &str,
        old: Option<&MappedNamespaceState>,
        new: Option<&MappedNamespaceState>,
    ) {
        if let Some(old) = old {
            self.namespaces.remove(name);
            let candidate = CandidateNamespace {
                terminating: old.terminating,
                name: name.to_owned(),
            };
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
            self.namespaces
                .insert(name.to_owned(), (new.consumer.clone(), new.home.clone()));
            let homes = self.by_home.entry(new.consumer.clone()).or_default();
            let candidate = CandidateNamespace {
                terminating: new.terminating,
                name: name.to_owned(),
            };
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

    /// The domain that a consumer announces changed.
    pub fn domain_changed(&mut self, consumer: &ClusterId, domain: Option<&DomainName>) {
        match domain {
            Some(domain) => _ = self.domains.insert(consumer.clone(), domain.clone()),
            None => _ = self.domains.remove(consumer),
        }
    }

    /// The name that a Service stands for changed.
    pub fn external_name_changed(&mut self, service: &Key, name: Option<&DomainName>) {
        match name {
            Some(name) => _ = self.external_names.insert(service.clone(), name.clone()),
            None => _ = self.external_names.remove(service),
        }
    }

    /// The consumer of the pod with this address. `None` if that is not certain.
    pub fn consumer_of(&self, source: IpAddr) -> Option<&ClusterId> {
        let mut owners = self
            .pods
            .get(&source)?
            .iter()
            .map(|pod| Some(&self.namespaces.get(&pod.namespace)?.0));
        let first = owners.next()??;
        owners.all(|owner| owner == Some(first)).then_some(first)
    }

    /// Whether a question of this address waits until the address is known.
    pub fn may_wait(&self, source: IpAddr, now: Instant) -> bool {
        self.unknown
            .get(&source)
            .is_none_or(|since| now.saturating_duration_since(*since) >= NO_WAIT)
    }

    /// A question of this address waited until now. Remembers the address if it is still unknown.
    pub fn note_wait(&mut self, source: IpAddr, now: Instant) {
        if self.unknown.len() >= MAX_UNKNOWN {
            self.unknown
                .retain(|_, since| now.saturating_duration_since(*since) < NO_WAIT);
        }
        if self.unknown.len() < MAX_UNKNOWN && self.consumer_of(source).is_none() {
            self.unknown.insert(source, now);
        }
    }

    /// Decides on a question of the pod with this address, in a cluster with this domain.
    pub fn decide(
        &self,
        source: IpAddr,
        name: &DomainName,
        kind: u16,
        domain: &DomainName,
    ) -> NameDecision {
        let Some(consumer) = self.consumer_of(source) else {
            return if self.is_same_for_all(name, domain) {
                NameDecision::Unchanged
            } else {
                NameDecision::UnknownPod
            };
        };
        let decision = self
            .in_namespace(consumer, name, domain)
            .or_else(|| self.in_domain(consumer, name, domain));
        match decision.unwrap_or(NameDecision::Unchanged) {
            NameDecision::Unchanged if !self.is_visible(Some(consumer), name, domain) => {
                NameDecision::NoSuchName
            }
            NameDecision::Unchanged if matches!(kind, PTR | ANY) && name.is_reverse() => {
                NameDecision::Translate {
                    name: name.clone(),
                    consumer: consumer.clone(),
                }
            }
            decision => decision,
        }
    }

    /// Whether a name is decided in the same way, whoever asks. Other names in the domains of
    /// consumers do not count: one that announces `com` would make them fail for the pods of
    /// others.
    fn is_same_for_all(&self, name: &DomainName, domain: &DomainName) -> bool {
        // Without mapped namespaces, no pod of a consumer asks.
        let is_visible = self.by_home.is_empty() || self.is_visible(None, name, domain);
        is_visible
            && self.by_home.keys().all(|consumer| {
                matches!(
                    self.in_namespace(consumer, name, domain),
                    None | Some(NameDecision::Unchanged)
                )
            })
    }

    /// Whether pods of this consumer may know a name as it is called here. They know no names in
    /// namespaces of the provider and of other consumers, but that of the API server. If the
    /// consumer is not known, only namespaces with the same name at home count.
    pub fn is_visible(
        &self,
        consumer: Option<&ClusterId>,
        name: &DomainName,
        domain: &DomainName,
    ) -> bool {
        let Some((index, here)) = namespace_of(name, domain) else {
            return true;
        };
        let is_theirs = self.namespaces.get(&here).is_some_and(|(owner, home)| {
            consumer.map_or_else(|| *home == here, |consumer| owner == consumer)
        });
        is_theirs || is_api_server(name, index, &here)
    }

    /// The domain of a consumer's cluster, if it is not this one.
    pub fn own_domain(&self, consumer: &ClusterId, domain: &DomainName) -> Option<&DomainName> {
        self.domains.get(consumer).filter(|own| *own != domain)
    }

    /// Decides on a name in a namespace for the pods of this consumer. `None` if it is another
    /// name.
    fn in_namespace(
        &self,
        consumer: &ClusterId,
        name: &DomainName,
        domain: &DomainName,
    ) -> Option<NameDecision> {
        let own = self
            .own_domain(consumer, domain)
            .and_then(|own| namespace_of(name, own));
        let is_own = own.is_some();
        // Pods that were created before their cluster announced its domain ask for names in the one
        // of this cluster.
        let (index, home) = own.or_else(|| namespace_of(name, domain))?;
        let mapped = self.mapped_namespace(consumer, &home);
        if let Some(target) = mapped.and_then(|mapped| self.external_name(mapped, name, index)) {
            return Some(NameDecision::Alias {
                target: target.clone(),
            });
        }
        let namespace = match mapped {
            Some(mapped) => mapped,
            // The namespace of this cluster with that name has nothing to do with the one of home.
            None if is_own => return Some(NameDecision::NoSuchName),
            None => &home,
        };
        Some(decision_for_name(
            name,
            name.with_end(index + 2, domain)
                .with_label(index, namespace),
            consumer,
        ))
    }

    /// Decides on any other name in the domain of this consumer's cluster for its pods. `None` if
    /// it is not in that domain.
    ///
    /// At home, the cluster's DNS answers for the whole domain. Here, that name goes to the
    /// cluster's DNS in its own domain, and not to a name server of the internet: most such names
    /// only have the search domain at their end.
    fn in_domain(
        &self,
        consumer: &ClusterId,
        name: &DomainName,
        domain: &DomainName,
    ) -> Option<NameDecision> {
        let own = self
            .own_domain(consumer, domain)
            .filter(|own| name.ends_with(own))?;
        // The cluster's DNS knows names in its domain, even if that is in the announced one.
        if domain.ends_with(own) && name.ends_with(domain) {
            return None;
        }
        let here = name.with_end(name.labels().len() - own.labels().len(), domain);
        Some(decision_for_name(name, here.within_limit(), consumer))
    }

    /// A name of a namespace of this consumer as it is at home. `None` if it is another name, or
    /// the same.
    pub fn home_name(
        &self,
        consumer: &ClusterId,
        name: &DomainName,
        domain: &DomainName,
    ) -> Option<DomainName> {
        let (index, here) = namespace_of(name, domain)?;
        let (_, home) = self
            .namespaces
            .get(&here)
            .filter(|(owner, _)| owner == consumer)?;
        let at_home = name
            .with_end(index + 2, self.domains.get(consumer).unwrap_or(domain))
            .with_label(index, home)?;
        (at_home != *name).then_some(at_home)
    }

    fn mapped_namespace(&self, consumer: &ClusterId, home: &str) -> Option<&str> {
        Some(
            self.by_home
                .get(consumer)?
                .get(home)?
                .first()?
                .name
                .as_str(),
        )
    }

    /// Returns the external name of a Service in this mapped namespace. `index` is that of the
    /// label of the namespace.
    fn external_name(&self, mapped: &str, name: &DomainName, index: usize) -> Option<&DomainName> {
        let [service, _, part, ..] = name.labels() else {
            return None;
        };
        let is_service = index == 1 && part.eq_ignore_ascii_case(SERVICES);
        let service = std::str::from_utf8(service).ok().filter(|_| is_service)?;
        self.external_names
            .get(&Key::new(mapped, service.to_ascii_lowercase()))
    }
}

/// The decision to ask for this other name instead; `None` if that is too long.
fn decision_for_name(
    name: &DomainName,
    here: Option<DomainName>,
    consumer: &ClusterId,
) -> NameDecision {
    match here {
        Some(here) if here == *name => NameDecision::Unchanged,
        Some(here) => NameDecision::Translate {
            name: here,
            consumer: consumer.clone(),
        },
        None => NameDecision::NoSuchName,
    }
}

/// Whether this is the Service of the API server, which every cluster has. `index` is that of the
/// label of the namespace.
fn is_api_server(name: &DomainName, index: usize, namespace: &str) -> bool {
    let [service, _, part, ..] = name.labels() else {
        return false;
    };
    index == 1
        && namespace == "default"
        && service.eq_ignore_ascii_case(b"kubernetes")
        && part.eq_ignore_ascii_case(SERVICES)
}

/// The index of the label that names a namespace, and that label in lower case: `demo` in
/// `web.demo.svc.cluster.local`.
fn namespace_of(name: &DomainName, domain: &DomainName) -> Option<(usize, String)> {
    let index = name.labels().len().checked_sub(domain.labels().len() + 2)?;
    let [label, part, ..] = name.labels().get(index..)? else {
        return None;
    };
    let is_part = PARTS.iter().any(|known| part.eq_ignore_ascii_case(known));
    let label = std::str::from_utf8(label).ok()?;
    (is_part && name.ends_with(domain)).then(|| (index, label.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests;

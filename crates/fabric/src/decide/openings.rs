//! Which addresses a peer may open connections to, where it may not reach all pods: its own pods here, and what stands behind the
//! Services that it is shown, here or at another peer.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use liqo_api::ClusterId;

/// Addresses by the peer that may reach them.
pub type Openings = BTreeMap<ClusterId, BTreeSet<IpAddr>>;

/// What openings follow from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reachable {
    /// Remote pods that run, with the consumer that they belong to.
    pub remote_pods: Vec<(ClusterId, BTreeSet<IpAddr>)>,
    /// Offloaded namespaces, and the clusters where they have a twin.
    pub offloaded: BTreeMap<String, BTreeSet<ClusterId>>,
    /// Services that other clusters may know of, by namespace and name.
    pub services: BTreeSet<(String, String)>,
    /// What stands behind Services.
    pub backends: Vec<Backends>,
    /// Our nodes, without virtual ones.
    pub nodes: BTreeSet<String>,
    /// Where our peers appear: pods on virtual nodes have addresses there, and no others.
    pub remote: Vec<IpNet>,
}

/// The pods behind a Service, or some of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Backends {
    /// Namespace and name of the Service.
    pub service: (String, String),
    /// Each pod that is ready: the node it is on, and its addresses.
    pub pods: Vec<(String, BTreeSet<IpAddr>)>,
}

/// What each peer may reach.
pub fn openings(reachable: &Reachable) -> Openings {
    let mut openings = Openings::new();
    for (consumer, addresses) in &reachable.remote_pods {
        openings.entry(consumer.clone()).or_default().extend(addresses);
    }
    for backends in reachable.backends.iter().filter(|backends| reachable.services.contains(&backends.service)) {
        let is_remote = |address: &IpAddr| reachable.remote.iter().any(|prefix| prefix.contains(address));
        let reached = backends.pods.iter().flat_map(|(node, addresses)| {
            let is_here = reachable.nodes.contains(node);
            addresses.iter().copied().filter(move |address| is_here != is_remote(address))
        });
        let addresses: BTreeSet<IpAddr> = reached.collect();
        for peer in reachable.offloaded.get(&backends.service.0).into_iter().flatten() {
            openings.entry(peer.clone()).or_default().extend(&addresses);
        }
    }
    openings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(letter: &str) -> ClusterId {
        letter.repeat(32).parse().unwrap()
    }

    fn addresses(last: &[u8]) -> BTreeSet<IpAddr> {
        last.iter().map(|last| IpAddr::from([10, 244, 0, *last])).collect()
    }

    #[test]
    fn a_consumer_reaches_its_own_pods_alone() {
        let reachable = Reachable {
            remote_pods: vec![(id("a"), addresses(&[1])), (id("b"), addresses(&[2])), (id("a"), addresses(&[3]))],
            ..Reachable::default()
        };
        assert_eq!(openings(&reachable), [(id("a"), addresses(&[1, 3])), (id("b"), addresses(&[2]))].into());
    }

    #[test]
    fn a_provider_reaches_what_stands_behind_the_services_of_namespaces_that_it_has() {
        let backends = |namespace: &str, service: &str, node: &str, last: u8| Backends {
            service: (namespace.into(), service.into()),
            pods: vec![(node.into(), addresses(&[last]))],
        };
        let service = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        let reachable = Reachable {
            offloaded: [("shop".to_owned(), [id("a")].into())].into(),
            services: [service("shop", "web"), service("other", "web")].into(),
            backends: vec![
                backends("shop", "web", "n1", 1),
                // Denied.
                backends("shop", "database", "n1", 2),
                // Not offloaded.
                backends("other", "web", "n1", 3),
                // No node of ours, so none of our addresses.
                backends("shop", "web", "virtual", 4),
            ],
            nodes: ["n1".to_owned()].into(),
            ..Reachable::default()
        };
        assert_eq!(openings(&reachable), [(id("a"), addresses(&[1]))].into());
    }

    #[test]
    fn what_stands_behind_such_a_service_at_another_provider_is_open_too() {
        let far: BTreeSet<IpAddr> = ["10.65.0.9".parse().unwrap()].into();
        let backends = |node: &str, pods: &BTreeSet<IpAddr>| Backends {
            service: ("shop".into(), "web".into()),
            pods: vec![(node.into(), pods.clone())],
        };
        let reachable = Reachable {
            offloaded: [("shop".to_owned(), [id("a"), id("b")].into())].into(),
            services: [("shop".to_owned(), "web".to_owned())].into(),
            // A pod here that says to be elsewhere is none.
            backends: vec![backends("b", &far), backends("n1", &far), backends("b", &addresses(&[1]))],
            nodes: ["n1".to_owned()].into(),
            remote: vec!["10.65.0.0/16".parse().unwrap()],
            ..Reachable::default()
        };
        assert_eq!(openings(&reachable), [(id("a"), far.clone()), (id("b"), far.clone())].into());
        let here_only = Reachable { backends: vec![backends("n1", &far), backends("b", &addresses(&[1]))], ..reachable };
        assert!(openings(&here_only).values().all(BTreeSet::is_empty));
    }
}

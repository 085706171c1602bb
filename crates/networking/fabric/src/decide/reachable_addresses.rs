//! Which addresses a peer may open connections to if it may not reach all pods: its own pods here, and the pods behind the Services that
//! are reflected to it, here or at another peer.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use liqo_api::ClusterId;

use crate::view::Backends;

/// Addresses by the peer that may reach them.
pub type ReachableAddresses = BTreeMap<ClusterId, BTreeSet<IpAddr>>;

/// The single addresses that are open between peers and us.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpenAddresses {
    pub reachable: ReachableAddresses,
    /// Addresses of the pods of each consumer, here and at our peers.
    pub offloaded: ReachableAddresses,
    /// Addresses of the pods of each consumer, here and at our peers, by the consumer and the namespace that they come from.
    pub of_home_namespaces: BTreeMap<(ClusterId, String), BTreeSet<IpAddr>>,
    /// Addresses of our pods at peers that use the API server here.
    pub api_clients: BTreeSet<IpAddr>,
}

/// The input of [`reachable_addresses`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposure {
    pub remote_pods: Vec<RemotePod>,
    /// Offloaded namespaces, and the clusters that have a remote namespace of each.
    pub offloaded: BTreeMap<String, BTreeSet<ClusterId>>,
    /// Services that are reflected to other clusters, by namespace and name.
    pub services: BTreeSet<(String, String)>,
    pub backends: Vec<Backends>,
    /// Without virtual nodes.
    pub nodes: BTreeSet<String>,
    /// The prefixes of our peers, in our address space: pods on virtual nodes have addresses there, and only they.
    pub remote: Vec<IpNet>,
}

/// A remote pod that runs.
#[derive(Clone, Debug, PartialEq)]
pub struct RemotePod {
    pub consumer: ClusterId,
    /// The namespace of the consumer that it comes from.
    pub home_namespace: String,
    pub addresses: BTreeSet<IpAddr>,
}

/// The addresses of the pods of each consumer.
pub fn offloaded_addresses(exposure: &Exposure) -> ReachableAddresses {
    addresses_by(exposure, |pod| pod.consumer.clone())
}

/// The addresses of the pods of each consumer, by the namespace that they come from.
pub fn addresses_of_home_namespaces(exposure: &Exposure) -> BTreeMap<(ClusterId, String), BTreeSet<IpAddr>> {
    addresses_by(exposure, |pod| (pod.consumer.clone(), pod.home_namespace.clone()))
}

fn addresses_by<K: Ord>(exposure: &Exposure, key: impl Fn(&RemotePod) -> K) -> BTreeMap<K, BTreeSet<IpAddr>> {
    let mut found: BTreeMap<K, BTreeSet<IpAddr>> = BTreeMap::new();
    for pod in &exposure.remote_pods {
        found.entry(key(pod)).or_default().extend(&pod.addresses);
    }
    found
}

pub fn reachable_addresses(exposure: &Exposure) -> ReachableAddresses {
    let mut found = offloaded_addresses(exposure);
    for backends in exposure.backends.iter().filter(|backends| exposure.services.contains(&backends.service)) {
        let is_remote = |address: &IpAddr| exposure.remote.iter().any(|prefix| prefix.contains(address));
        let reached = backends.pods.iter().flat_map(|(node, addresses)| {
            let is_here = exposure.nodes.contains(node);
            addresses.iter().copied().filter(move |address| is_here != is_remote(address))
        });
        let addresses: BTreeSet<IpAddr> = reached.collect();
        for peer in exposure.offloaded.get(&backends.service.0).into_iter().flatten() {
            found.entry(peer.clone()).or_default().extend(&addresses);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{super::fixtures::id, *};

    fn addresses(last: &[u8]) -> BTreeSet<IpAddr> {
        last.iter().map(|last| IpAddr::from([10, 244, 0, *last])).collect()
    }

    #[test]
    fn a_consumer_reaches_its_own_pods_alone() {
        let pod = |consumer: char, home_namespace: &str, last: u8| RemotePod {
            consumer: id(consumer),
            home_namespace: home_namespace.into(),
            addresses: addresses(&[last]),
        };
        let remote_pods = vec![pod('a', "shop", 1), pod('b', "shop", 2), pod('a', "shop", 3), pod('a', "bank", 4)];
        let exposure = Exposure { remote_pods, ..Exposure::default() };
        assert_eq!(reachable_addresses(&exposure), [(id('a'), addresses(&[1, 3, 4])), (id('b'), addresses(&[2]))].into());
        let of_shop = addresses_of_home_namespaces(&exposure).remove(&(id('a'), "shop".to_owned()));
        assert_eq!(of_shop, Some(addresses(&[1, 3])));
    }

    #[test]
    fn a_provider_reaches_the_pods_behind_services_of_namespaces_that_it_has() {
        let backends = |namespace: &str, service: &str, node: &str, last: u8| Backends {
            service: (namespace.into(), service.into()),
            pods: vec![(node.into(), addresses(&[last]))],
        };
        let service = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        let exposure = Exposure {
            offloaded: [("shop".to_owned(), [id('a')].into())].into(),
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
            ..Exposure::default()
        };
        assert_eq!(reachable_addresses(&exposure), [(id('a'), addresses(&[1]))].into());
    }

    #[test]
    fn a_provider_reaches_the_pods_of_a_reflected_service_at_another_provider_too() {
        let far: BTreeSet<IpAddr> = ["10.65.0.9".parse().unwrap()].into();
        let backends = |node: &str, pods: &BTreeSet<IpAddr>| Backends {
            service: ("shop".into(), "web".into()),
            pods: vec![(node.into(), pods.clone())],
        };
        let exposure = Exposure {
            offloaded: [("shop".to_owned(), [id('a'), id('b')].into())].into(),
            services: [("shop".to_owned(), "web".to_owned())].into(),
            // A pod here with an address of a peer does not count.
            backends: vec![backends("b", &far), backends("n1", &far), backends("b", &addresses(&[1]))],
            nodes: ["n1".to_owned()].into(),
            remote: vec!["10.65.0.0/16".parse().unwrap()],
            ..Exposure::default()
        };
        assert_eq!(reachable_addresses(&exposure), [(id('a'), far.clone()), (id('b'), far.clone())].into());
        let here_only = Exposure { backends: vec![backends("n1", &far), backends("b", &addresses(&[1]))], ..exposure };
        assert!(reachable_addresses(&here_only).values().all(BTreeSet::is_empty));
    }
}

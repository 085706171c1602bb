//! Computes the addresses that a peer may open connections to if it may not reach all pods: its own
//! pods here, and the pods behind the Services that are reflected to it, here or at another peer. A
//! pod is behind a Service while an `EndpointSlice` of it has its address, whether it is ready or
//! not: readiness chooses among pods, and closes none.
//!
//! Connections that exist end when a pod ends them, or is gone. So a pod that leaves its Service
//! keeps them, unless it is behind another one that is not reflected. Nothing remembers which pods
//! were behind a Service: all pods of the namespace count that may have been, so a process that
//! starts cuts no connection.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use liqo_api::ClusterId;

use crate::view::{LocalPodView, ServiceBackends};

/// Addresses by the peer that may reach them.
pub type ReachableAddresses = BTreeMap<ClusterId, BTreeSet<IpAddr>>;

/// The single addresses that are open between peers and us.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpenAddresses {
    pub reachable: ReachableAddresses,
    /// Addresses that are open to connections that exist, and to no new ones.
    pub established: ReachableAddresses,
    /// Addresses of the pods of each consumer, here and at our peers.
    pub offloaded: ReachableAddresses,
    /// Addresses of the pods of each consumer, here and at our peers, by the consumer and the
    /// namespace that they come from.
    pub of_home_namespaces: BTreeMap<(ClusterId, String), BTreeSet<IpAddr>>,
    /// Addresses of our pods at peers that use the API server here.
    pub api_clients: BTreeSet<IpAddr>,
}

/// The input of [`open_addresses`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExposureInput {
    pub remote_pods: Vec<RunningRemotePod>,
    /// Offloaded namespaces, and the clusters that have a remote namespace of each.
    pub offloaded: BTreeMap<String, BTreeSet<ClusterId>>,
    /// Services with pods, by namespace and name, and whether each is reflected to other clusters.
    pub services: BTreeMap<(String, String), bool>,
    pub backends: Vec<Arc<ServiceBackends>>,
    /// The pods of offloaded namespaces that have a reflected Service, or use the API server here.
    pub local_pods: BTreeMap<String, Vec<Arc<LocalPodView>>>,
    /// Without virtual nodes.
    pub nodes: BTreeSet<String>,
    /// The prefixes of each peer, in our address space: pods on virtual nodes have addresses there,
    /// and only they.
    pub remote: BTreeMap<ClusterId, Vec<IpNet>>,
}

/// A remote pod that runs.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningRemotePod {
    pub consumer: ClusterId,
    /// The namespace of the consumer that it comes from.
    pub home_namespace: String,
    pub addresses: BTreeSet<IpAddr>,
}

/// Computes the addresses that are open between each peer and us.
pub fn open_addresses(exposure: &ExposureInput) -> OpenAddresses {
    let offloaded = addresses_by(exposure, |pod| pod.consumer.clone());
    let of_home_namespaces = addresses_by(exposure, |pod| {
        (pod.consumer.clone(), pod.home_namespace.clone())
    });
    let api_clients = exposure
        .local_pods
        .values()
        .flatten()
        .filter(|pod| pod.is_api_client);
    let mut open = OpenAddresses {
        reachable: offloaded.clone(),
        established: BTreeMap::new(),
        offloaded,
        of_home_namespaces,
        api_clients: api_clients
            .flat_map(|pod| pod.addresses.iter().copied())
            .collect(),
    };
    for (namespace, behind) in behind_services(exposure) {
        let pods = addresses_of_pods(exposure, namespace);
        for peer in exposure.offloaded.get(namespace).into_iter().flatten() {
            // What is at the peer itself, it reaches without us.
            let own = exposure
                .remote
                .get(peer)
                .map(Vec::as_slice)
                .unwrap_or_default();
            let elsewhere = pods
                .iter()
                .filter(|address| !own.iter().any(|prefix| prefix.contains(*address)));
            let reachable = open.reachable.entry(peer.clone()).or_default();
            let established = open.established.entry(peer.clone()).or_default();
            for address in elsewhere {
                if behind.reflected.contains(address) {
                    reachable.insert(*address);
                } else if !behind.kept_here.contains(address) {
                    established.insert(*address);
                }
            }
        }
    }
    open
}

/// The addresses that the slices of a namespace's Services list.
#[derive(Default)]
struct BehindServices {
    reflected: BTreeSet<IpAddr>,
    /// Those of Services or slices that are not reflected.
    kept_here: BTreeSet<IpAddr>,
}

/// The addresses behind Services, by namespace, for each namespace with a Service that is
/// reflected.
fn behind_services(exposure: &ExposureInput) -> BTreeMap<&str, BehindServices> {
    let reflected = exposure
        .services
        .iter()
        .filter(|(_, is_reflected)| **is_reflected);
    let mut found: BTreeMap<&str, BehindServices> = reflected
        .map(|((namespace, _), _)| (namespace.as_str(), BehindServices::default()))
        .collect();
    for backends in &exposure.backends {
        let Some(behind) = found.get_mut(backends.service.0.as_str()) else {
            continue;
        };
        // The slices of a Service that is gone go a moment later: its pods left it.
        let Some(is_reflected) = exposure.services.get(&backends.service) else {
            continue;
        };
        let set = if *is_reflected && !backends.is_denied {
            &mut behind.reflected
        } else {
            &mut behind.kept_here
        };
        set.extend(&backends.addresses);
    }
    found
}

/// The addresses of a namespace's pods, as far as a pod on its node can have them.
fn addresses_of_pods(exposure: &ExposureInput, namespace: &str) -> BTreeSet<IpAddr> {
    let mut found = BTreeSet::new();
    for pod in exposure.local_pods.get(namespace).into_iter().flatten() {
        let is_here = exposure.nodes.contains(&pod.node);
        let possible = pod
            .addresses
            .iter()
            .filter(|address| is_here != is_remote(exposure, address));
        found.extend(possible);
    }
    found
}

/// Whether an address is within a prefix of a peer.
fn is_remote(exposure: &ExposureInput, address: &IpAddr) -> bool {
    exposure
        .remote
        .values()
        .flatten()
        .any(|prefix| prefix.contains(address))
}

fn addresses_by<K: Ord>(
    exposure: &ExposureInput,
    key: impl Fn(&RunningRemotePod) -> K,
) -> BTreeMap<K, BTreeSet<IpAddr>> {
    let mut found: BTreeMap<K, BTreeSet<IpAddr>> = BTreeMap::new();
    for pod in &exposure.remote_pods {
        found.entry(key(pod)).or_default().extend(&pod.addresses);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{super::fixtures::id, *};

    fn addresses(last: &[u8]) -> BTreeSet<IpAddr> {
        last.iter()
            .map(|last| IpAddr::from([10, 244, 0, *last]))
            .collect()
    }

    fn reachable_addresses(exposure: &ExposureInput) -> ReachableAddresses {
        open_addresses(exposure).reachable
    }

    #[test]
    fn a_consumer_reaches_its_own_pods_alone() {
        let pod = |consumer: char, home_namespace: &str, last: u8| RunningRemotePod {
            consumer: id(consumer),
            home_namespace: home_namespace.into(),
            addresses: addresses(&[last]),
        };
        let remote_pods = vec![
            pod('a', "shop", 1),
            pod('b', "shop", 2),
            pod('a', "shop", 3),
            pod('a', "bank", 4),
        ];
        let open = open_addresses(&ExposureInput {
            remote_pods,
            ..ExposureInput::default()
        });
        assert_eq!(
            open.reachable,
            [(id('a'), addresses(&[1, 3, 4])), (id('b'), addresses(&[2]))].into()
        );
        assert_eq!(
            open.of_home_namespaces[&(id('a'), "shop".to_owned())],
            addresses(&[1, 3])
        );
    }

    fn backends(
        namespace: &str,
        service: &str,
        addresses: &BTreeSet<IpAddr>,
    ) -> Arc<ServiceBackends> {
        Arc::new(ServiceBackends {
            service: (namespace.into(), service.into()),
            addresses: addresses.clone(),
            is_denied: false,
        })
    }

    fn pod(node: &str, addresses: &BTreeSet<IpAddr>) -> Arc<LocalPodView> {
        Arc::new(LocalPodView {
            node: node.into(),
            addresses: addresses.clone(),
            is_api_client: false,
        })
    }

    /// Namespace `shop` is offloaded to `a`, and has five pods here. Its Service `web` is
    /// reflected, its Service `database` is not.
    fn shop() -> ExposureInput {
        let service = |name: &str| ("shop".to_owned(), name.to_owned());
        ExposureInput {
            offloaded: [("shop".to_owned(), [id('a')].into())].into(),
            services: [(service("web"), true), (service("database"), false)].into(),
            local_pods: [(
                "shop".to_owned(),
                (1..=5).map(|last| pod("n1", &addresses(&[last]))).collect(),
            )]
            .into(),
            nodes: ["n1".to_owned()].into(),
            remote: [
                (id('a'), vec!["10.65.0.0/16".parse().unwrap()]),
                (id('b'), vec!["10.66.0.0/16".parse().unwrap()]),
            ]
            .into(),
            ..ExposureInput::default()
        }
    }

    #[test]
    fn a_provider_reaches_the_pods_behind_services_of_namespaces_that_it_has() {
        let mut exposure = shop();
        exposure
            .services
            .insert(("other".to_owned(), "web".to_owned()), true);
        exposure
            .local_pods
            .insert("other".to_owned(), vec![pod("n1", &addresses(&[6]))]);
        exposure.backends = vec![
            backends("shop", "web", &addresses(&[1])),
            backends("shop", "database", &addresses(&[2])),
            // Not offloaded.
            backends("other", "web", &addresses(&[6])),
        ];
        assert_eq!(
            reachable_addresses(&exposure),
            [(id('a'), addresses(&[1]))].into()
        );
    }

    #[test]
    fn an_address_that_no_pod_of_the_namespace_has_is_closed_whoever_wrote_it_into_a_slice() {
        let mut exposure = shop();
        // A pod of another namespace that is offloaded, too, and an address that no pod has.
        exposure
            .offloaded
            .insert("bank".to_owned(), [id('a')].into());
        exposure
            .local_pods
            .insert("bank".to_owned(), vec![pod("n1", &addresses(&[6]))]);
        exposure.backends = vec![backends("shop", "web", &addresses(&[1, 6, 7]))];
        assert_eq!(
            reachable_addresses(&exposure),
            [(id('a'), addresses(&[1]))].into()
        );
    }

    #[test]
    fn a_pod_that_leaves_its_service_keeps_its_connections_until_it_is_gone() {
        let established = |exposure: &ExposureInput| {
            open_addresses(exposure)
                .established
                .remove(&id('a'))
                .unwrap_or_default()
        };
        let mut exposure = shop();
        exposure.backends = vec![
            backends("shop", "web", &addresses(&[1, 2])),
            backends("shop", "database", &addresses(&[3])),
        ];
        assert_eq!(
            established(&exposure),
            addresses(&[4, 5]),
            "those behind the Service get new ones, too"
        );
        exposure.backends[0] = backends("shop", "web", &addresses(&[2]));
        assert_eq!(established(&exposure), addresses(&[1, 4, 5]));
        // Its former Service is gone, and its slice is not yet.
        exposure
            .backends
            .push(backends("shop", "former", &addresses(&[1])));
        assert_eq!(established(&exposure), addresses(&[1, 4, 5]));
        exposure.local_pods.get_mut("shop").unwrap().remove(0);
        assert_eq!(established(&exposure), addresses(&[4, 5]));
        exposure.offloaded.clear();
        assert_eq!(established(&exposure), BTreeSet::new());
    }

    #[test]
    fn endpoints_that_are_no_longer_reflected_are_closed_to_connections_that_exist() {
        let mut exposure = shop();
        exposure.backends = vec![backends("shop", "web", &addresses(&[1, 2]))];
        let is_open = |exposure: &ExposureInput| {
            let open = open_addresses(exposure);
            let has = |all: &ReachableAddresses| {
                all.get(&id('a'))
                    .is_some_and(|all| all.contains(&IpAddr::from([10, 244, 0, 1])))
            };
            has(&open.reachable) || has(&open.established)
        };
        assert!(is_open(&exposure));
        let mut denied = exposure.clone();
        denied
            .services
            .insert(("shop".to_owned(), "web".to_owned()), false);
        assert!(!is_open(&denied), "no other Service is reflected");
        denied
            .services
            .insert(("shop".to_owned(), "shown".to_owned()), true);
        assert!(!is_open(&denied), "another Service is");
        denied
            .backends
            .push(backends("shop", "shown", &addresses(&[1])));
        assert!(is_open(&denied), "it is behind both");
        Arc::make_mut(&mut exposure.backends[0]).is_denied = true;
        assert!(!is_open(&exposure), "its slice is kept here");
    }

    #[test]
    fn a_provider_reaches_the_pods_of_a_reflected_service_at_another_provider_too() {
        let far: BTreeSet<IpAddr> = ["10.66.0.9".parse().unwrap()].into();
        let open = |pods: &[Arc<LocalPodView>]| {
            let mut exposure = shop();
            exposure
                .offloaded
                .insert("shop".to_owned(), [id('a'), id('b')].into());
            exposure.local_pods.insert("shop".to_owned(), pods.to_vec());
            exposure.backends = vec![backends(
                "shop",
                "web",
                &far.union(&addresses(&[1])).copied().collect(),
            )];
            open_addresses(&exposure)
        };
        // A pod here with an address of a peer does not count, and neither does one at a peer with
        // an address of ours.
        let of_both = open(&[pod("b", &far), pod("n1", &far), pod("b", &addresses(&[1]))]);
        assert_eq!(
            of_both.reachable,
            [(id('a'), far.clone()), (id('b'), BTreeSet::new())].into(),
            "b reaches it without us"
        );
        let none = open(&[pod("n1", &far), pod("b", &addresses(&[1]))]);
        assert!(
            none.reachable
                .values()
                .chain(none.established.values())
                .all(BTreeSet::is_empty)
        );
    }

    #[test]
    fn pods_that_use_the_api_server_need_no_service() {
        let mut exposure = shop();
        exposure.services.clear();
        let client = LocalPodView {
            is_api_client: true,
            ..(*pod("b", &addresses(&[6]))).clone()
        };
        exposure
            .local_pods
            .get_mut("shop")
            .unwrap()
            .push(Arc::new(client));
        assert_eq!(
            open_addresses(&exposure),
            OpenAddresses {
                api_clients: addresses(&[6]),
                ..OpenAddresses::default()
            }
        );
    }
}

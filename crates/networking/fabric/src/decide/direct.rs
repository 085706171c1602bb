//! The gateways on direct paths: those of clusters behind peers, to which packets go without the
//! peer while they answer.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use ipnet::IpNet;
use liqo_api::{ClusterId, DirectPath, TunnelEndpointSpec};
use liqo_datapath::{
    node::PrefixPair,
    tunnel::{DirectPathConfig, LocalAddresses, PublicKey, RemoteConfig},
};
use liqo_network_model::{PrefixMap, fabric::Fabric, space::Here};
use sha2::{Digest as _, Sha256};

use super::{DirectPathEnds, KEEPALIVE, NodeSnapshot, TunnelEnd, addresses_of, is_in, own_key};

/// Whether the addresses of remote pods decide who may use a direct path.
pub fn needs_pods(peer: &TunnelEndpointSpec) -> bool {
    peer.direct.values().any(|path| path.namespaces.is_some())
}

/// Adds the gateways on direct paths to our end of the tunnel, after those of all peers: a key that
/// belongs to a peer is not used. If two brokers name the same gateways, both ends use the path of
/// the broker whose ID comes first.
pub fn add_direct_gateways(
    end: &mut TunnelEnd,
    snapshot: &NodeSnapshot,
    fabric: &Fabric,
    ours: &[PublicKey],
    usable: impl Fn(&SocketAddr) -> bool,
) {
    for broker in fabric.peers.keys() {
        let Some(spec) = snapshot.peers.get(broker) else {
            continue;
        };
        for (cluster, path) in &spec.direct {
            let Some(direct) = direct_path_config(broker, cluster, path, spec, fabric, snapshot)
            else {
                continue;
            };
            let keys: Vec<PublicKey> = path
                .gateways
                .iter()
                .filter_map(|gateway| own_key(gateway, broker, snapshot, ours))
                .collect();
            let any_is_taken = keys.iter().any(|key| {
                end.owners.contains_key(key)
                    || end.direct.contains_key(key)
                    || snapshot.tunnel_clients.contains_key(key)
            });
            // Both ends choose among all gateways, so a path has either all of them or none.
            let differ = keys.iter().collect::<BTreeSet<_>>().len() == path.gateways.len();
            if !differ || any_is_taken {
                continue;
            }
            let prefixes: Vec<IpNet> = direct.prefixes.pairs().map(|(here, _)| here.0).collect();
            for (gateway, public_key) in path.gateways.iter().zip(keys) {
                end.direct.insert(
                    public_key,
                    DirectPathEnds {
                        through: broker.clone(),
                        cluster: cluster.clone(),
                    },
                );
                end.remotes.push(RemoteConfig {
                    first_key: gateway.first_key.as_ref().and_then(|key| key.parse().ok()),
                    endpoint: addresses_of(&gateway.endpoints, &snapshot.resolved)
                        .into_iter()
                        .find(&usable),
                    keepalive: Some(KEEPALIVE),
                    prefixes: prefixes.clone(),
                    direct: Some(direct.clone()),
                    ..RemoteConfig::new(public_key)
                });
            }
        }
    }
}

/// The direct path to a cluster behind a peer; `None` if no prefix of the cluster is known.
fn direct_path_config(
    broker: &ClusterId,
    cluster: &ClusterId,
    path: &DirectPath,
    spec: &TunnelEndpointSpec,
    fabric: &Fabric,
    snapshot: &NodeSnapshot,
) -> Option<DirectPathConfig> {
    let maps = &fabric.peers.get(broker)?.maps;
    let own_prefixes = maps.imported.pairs().filter(|(_, there)| {
        spec.behind
            .get(&there.0)
            .is_some_and(|way| way.as_slice() == std::slice::from_ref(cluster))
    });
    let prefixes = PrefixMap::new(own_prefixes).ok()?;
    // A remote pod may run at a provider of ours: then its address is that provider's, and its way
    // leads through two brokers.
    let own: Vec<IpNet> = fabric
        .pods
        .iter()
        .chain(&fabric.external)
        .map(IpNet::trunc)
        .collect();
    let local = match &path.namespaces {
        None => LocalAddresses::Prefixes(
            maps.exported
                .pairs()
                .filter(|(here, _)| own.contains(&here.0))
                .map(|(_, there)| there.0)
                .collect(),
        ),
        Some(namespaces) => {
            let open = snapshot
                .open
                .iter()
                .flat_map(|open| &open.of_home_namespaces);
            let of_broker = open.filter(|((consumer, namespace), _)| {
                consumer == broker && namespaces.contains(namespace)
            });
            let addresses = of_broker
                .flat_map(|(_, addresses)| addresses)
                .filter(|address| is_in(&own, address));
            LocalAddresses::Pods(Arc::new(
                addresses
                    .filter_map(|address| Some(maps.exported.to_there(Here(*address))?.0))
                    .collect(),
            ))
        }
    };
    (!prefixes.is_empty()).then(|| DirectPathConfig {
        number: broker_number(broker),
        prefixes,
        local,
    })
}

/// The prefixes of customers of ours and of the providers that run their pods, where both accept
/// direct paths: we are the broker.
pub fn passed_by(snapshot: &NodeSnapshot, fabric: &Fabric) -> Vec<PrefixPair> {
    let mut pairs = Vec::new();
    for (id, provider) in &fabric.peers {
        if !accepts_direct_paths(id, snapshot) {
            continue;
        }
        for customer in &provider.customers {
            if accepts_direct_paths(customer, snapshot) {
                pairs.push([customer, id].map(|id| own_prefixes(id, snapshot, fabric)));
            }
        }
    }
    pairs
}

fn accepts_direct_paths(id: &ClusterId, snapshot: &NodeSnapshot) -> bool {
    snapshot
        .peers
        .get(id)
        .is_some_and(|spec| spec.accepts_direct)
}

/// A peer's prefixes without those behind it: no direct path leads there.
fn own_prefixes(id: &ClusterId, snapshot: &NodeSnapshot, fabric: &Fabric) -> Vec<IpNet> {
    let (Some(spec), Some(peer)) = (snapshot.peers.get(id), fabric.peers.get(id)) else {
        return Vec::new();
    };
    let all = peer.maps.imported.pairs();
    all.filter(|(_, there)| !spec.behind.contains_key(&there.0))
        .map(|(here, _)| here.0)
        .collect()
}

/// Names a broker, the same at both ends of a path.
fn broker_number(broker: &ClusterId) -> u32 {
    let digest = Sha256::digest(broker.as_str().as_bytes());
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}

#[cfg(test)]
mod tests {
    use liqo_api::GatewayAddress;
    use liqo_network_model::space::There;

    use super::{
        super::{
            fixtures::{id, key},
            reachable_addresses::OpenAddresses,
            *,
        },
        *,
    };

    /// A broker `b` with a cluster `c` behind it, whose pods it has at 10.67.0.0/16, and which we
    /// see at 10.68.0.0/16.
    fn snapshot(namespaces: Option<&str>) -> NodeSnapshot {
        let mut snapshot = super::super::fixtures::snapshot();
        let broker = snapshot.peers.remove(&id('a')).unwrap();
        let at_broker: IpNet = "10.67.0.0/16".parse().unwrap();
        let mut broker = TunnelEndpointSpec {
            cluster_id: id('b'),
            ..broker
        };
        broker
            .imported
            .insert(at_broker, "10.68.0.0/16".parse().unwrap());
        broker.behind.insert(at_broker, vec![id('c')]);
        let gateway = |byte: u8| GatewayAddress {
            public_key: key(byte).to_string(),
            endpoints: vec![format!("192.0.2.{byte}:51840")],
            ..GatewayAddress::default()
        };
        let namespaces = namespaces.map(|name| [name.to_owned()].into());
        broker.direct.insert(
            id('c'),
            DirectPath {
                gateways: vec![gateway(11), gateway(12)],
                namespaces,
            },
        );
        snapshot.peers.insert(id('b'), broker);
        let address = |last: u8| [IpAddr::from([10, 244, 1, last])].into();
        let of_home_namespaces = [
            ((id('b'), "shop".into()), address(5)),
            ((id('b'), "other".into()), address(6)),
            ((id('c'), "shop".into()), address(7)),
        ];
        snapshot.open = Some(OpenAddresses {
            of_home_namespaces: of_home_namespaces.into(),
            ..OpenAddresses::default()
        });
        snapshot
    }

    fn end(snapshot: &NodeSnapshot) -> TunnelEnd {
        let NodeAction::Apply(state) = decide_action(snapshot, "n1", &[key(100)]) else {
            panic!()
        };
        state.tunnel.unwrap()
    }

    fn paths(end: &TunnelEnd) -> Vec<(PublicKey, &DirectPathConfig)> {
        end.remotes
            .iter()
            .filter_map(|remote| Some((remote.public_key, remote.direct.as_ref()?)))
            .collect()
    }

    #[test]
    fn the_gateways_of_a_cluster_behind_a_peer_have_its_prefixes_and_are_always_tried() {
        let mut snapshot = snapshot(None);
        let end = end(&snapshot);
        let found = paths(&end);
        assert_eq!(
            found.iter().map(|(key, _)| *key).collect::<Vec<_>>(),
            [key(11), key(12)]
        );
        let remote = end
            .remotes
            .iter()
            .find(|remote| remote.public_key == key(11))
            .unwrap();
        assert_eq!(remote.prefixes, ["10.68.0.0/16".parse::<IpNet>().unwrap()]);
        assert_eq!(
            (remote.enabled, remote.keepalive, remote.endpoint),
            (true, Some(KEEPALIVE), "192.0.2.11:51840".parse().ok())
        );
        let (direct, own) = (
            found[0].1,
            ["10.65.0.0/24", "10.64.0.0/16"]
                .map(|text| text.parse().unwrap())
                .to_vec(),
        );
        assert_eq!(
            direct.prefixes.to_there(Here([10, 68, 0, 9].into())),
            Some(There([10, 67, 0, 9].into()))
        );
        assert_eq!(
            (direct.prefixes.pairs().count(), &direct.local),
            (1, &LocalAddresses::Prefixes(own))
        );
        // Which gateways of the peer respond does not matter.
        snapshot.responsive = [key(1)].into();
        let other = self::end(&snapshot);
        assert_eq!(paths(&other), paths(&end));
        assert!(
            other
                .remotes
                .iter()
                .filter(|remote| remote.direct.is_some())
                .all(|remote| remote.enabled)
        );
    }

    #[test]
    fn only_pods_of_the_customer_use_a_path_as_the_broker_sees_them() {
        let end = end(&snapshot(Some("shop")));
        let LocalAddresses::Pods(seen) = &paths(&end)[0].1.local else {
            panic!()
        };
        assert_eq!(**seen, [IpAddr::from([10, 64, 1, 5])].into());
    }

    #[test]
    fn what_is_passed_on_from_or_to_a_third_cluster_uses_no_path() {
        let behind: IpNet = "10.68.128.0/24".parse().unwrap();
        // As a provider: the pod went on to a provider of ours, which we export to the broker, too.
        let mut provider = snapshot(Some("shop"));
        provider
            .peers
            .get_mut(&id('b'))
            .unwrap()
            .exported
            .insert(behind, "10.80.0.0/24".parse().unwrap());
        let open = &mut provider.open.as_mut().unwrap().of_home_namespaces;
        open.get_mut(&(id('b'), "shop".into()))
            .unwrap()
            .insert([10, 68, 128, 9].into());
        let at_provider = end(&provider);
        let LocalAddresses::Pods(seen) = &paths(&at_provider)[0].1.local else {
            panic!()
        };
        assert_eq!(**seen, [IpAddr::from([10, 64, 1, 5])].into());
        // As a customer: a customer of ours.
        let mut customer = snapshot(None);
        customer
            .peers
            .get_mut(&id('b'))
            .unwrap()
            .exported
            .insert(behind, "10.80.0.0/24".parse().unwrap());
        let at_customer = end(&customer);
        let LocalAddresses::Prefixes(own) = &paths(&at_customer)[0].1.local else {
            panic!()
        };
        assert!(!own.contains(&"10.80.0.0/24".parse().unwrap()), "{own:?}");
    }

    #[test]
    fn a_path_with_a_key_of_ours_or_of_a_peer_or_twice_the_same_is_not_used() {
        for taken in [1, 11, 100] {
            let mut snapshot = snapshot(None);
            let path = snapshot
                .peers
                .get_mut(&id('b'))
                .unwrap()
                .direct
                .get_mut(&id('c'))
                .unwrap();
            path.gateways[1].public_key = key(taken).to_string();
            assert!(paths(&end(&snapshot)).is_empty(), "{taken}");
        }
    }

    #[test]
    fn one_of_two_brokers_is_used_for_the_same_cluster() {
        let mut snapshot = snapshot(None);
        let mut second = super::super::fixtures::peer(&id('d'), "10.80.0.0/16", [3, 4]);
        let at_broker: IpNet = "10.90.0.0/16".parse().unwrap();
        second
            .imported
            .insert(at_broker, "10.91.0.0/16".parse().unwrap());
        second.behind.insert(at_broker, vec![id('c')]);
        second.direct.clone_from(&snapshot.peers[&id('b')].direct);
        snapshot.peers.insert(id('d'), second);
        let end = end(&snapshot);
        assert!(end.owners.contains_key(&key(3)));
        assert_eq!(
            end.direct
                .values()
                .map(|path| &path.through)
                .collect::<BTreeSet<_>>(),
            [&id('b')].into()
        );
        assert_eq!(paths(&end).len(), 2);
    }

    #[test]
    fn a_broker_knows_between_which_peers_packets_may_pass_elsewhere() {
        let mut snapshot = super::super::fixtures::snapshot();
        let provider = super::super::fixtures::peer(&id('b'), "10.67.0.0/16", [3, 4]);
        snapshot.peers.insert(
            id('b'),
            TunnelEndpointSpec {
                customers: [id('a')].into(),
                accepts_direct: true,
                ..provider
            },
        );
        snapshot.open = Some(OpenAddresses::default());
        let passed_by = |snapshot: &NodeSnapshot| {
            let NodeAction::Apply(state) = decide_action(snapshot, "n1", &[key(100)]) else {
                panic!()
            };
            state.passed_by
        };
        assert!(
            passed_by(&snapshot).is_empty(),
            "the customer does not accept it"
        );
        snapshot.peers.get_mut(&id('a')).unwrap().accepts_direct = true;
        let prefixes =
            ["10.66.0.0/16", "10.67.0.0/16"].map(|text| vec![text.parse::<IpNet>().unwrap()]);
        assert_eq!(passed_by(&snapshot), [prefixes]);
    }

    #[test]
    fn the_addresses_of_pods_are_needed_where_they_decide() {
        let mut snapshot = snapshot(Some("shop"));
        assert!(needs_open_addresses(&snapshot, "n1"));
        snapshot.peers.get_mut(&id('b')).unwrap().direct.clear();
        assert!(!needs_open_addresses(&snapshot, "n1"));
    }
}

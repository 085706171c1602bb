//! The one place that says what is due when an object of this cluster changes.
//!
//! ```text
//!   "X changed"  --a pure function for each X-->  triggers  -->  queues
//! ```
//!
//! If a trigger is missing, nobody looks after that change. Some changes make nobody look: tokens
//! for the first contact are read when a consumer requests access, as is what policies say about
//! consumers. A session and the heartbeats of a consumer add their own peer to the queue.

use liqo_api::{ClusterId, ForeignCluster, GatewayAddress, peer_namespace::PeerNamespaceKind};
use liqo_controller_runtime::Key;

use crate::decide::namespace::LiqoNamespace;

/// Work that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeeringTrigger {
    /// The next step for this peer.
    Peer(ClusterId),
    /// The list of tunnel clients.
    TunnelClients,
    /// The comparison of the `ForeignCluster`s with what discovery finds.
    Discovery,
    /// The lookups of the domains of `SearchDomain`s.
    Lookups,
}

/// A `ForeignCluster` changed.
pub fn foreign_cluster_changed(
    old: Option<&ForeignCluster>,
    new: Option<&ForeignCluster>,
) -> Vec<PeeringTrigger> {
    [old, new]
        .into_iter()
        .flatten()
        .map(|record| PeeringTrigger::Peer(record.spec.cluster_id.clone()))
        .chain([PeeringTrigger::TunnelClients, PeeringTrigger::Discovery])
        .collect()
}

/// A `PeeringPolicy` changed: it may start or end automatic peerings.
pub fn policy_changed() -> [PeeringTrigger; 1] {
    [PeeringTrigger::Discovery]
}

/// A namespace that Liqo created changed. No peering depends on a single mapped namespace: a
/// tenancy that ends asks again and again whether some are left.
pub fn namespace_changed(
    old: Option<&LiqoNamespace>,
    new: Option<&LiqoNamespace>,
) -> Vec<PeeringTrigger> {
    [old, new]
        .into_iter()
        .flatten()
        .filter(|namespace| !matches!(namespace.kind, PeerNamespaceKind::Mapped { .. }))
        .flat_map(|namespace| {
            [
                PeeringTrigger::Peer(namespace.cluster.clone()),
                PeeringTrigger::TunnelClients,
            ]
        })
        .collect()
}

/// A `TunnelEndpoint`, which is named after its peer, lists other gateways.
pub fn tunnel_endpoint_changed(
    key: &Key,
    old: Option<&Vec<GatewayAddress>>,
    new: Option<&Vec<GatewayAddress>>,
) -> Option<PeeringTrigger> {
    let peer = key.name.parse().ok().filter(|_| old != new)?;
    Some(PeeringTrigger::Peer(peer))
}

/// The Secret with a token for the first contact changed. Who holds it may use our tunnel.
pub fn invitation_changed() -> [PeeringTrigger; 1] {
    [PeeringTrigger::TunnelClients]
}

/// The list of tunnel clients changed, maybe by somebody else.
pub fn tunnel_client_list_changed() -> [PeeringTrigger; 1] {
    [PeeringTrigger::TunnelClients]
}

/// The list of clusters on the local network changed.
pub fn lan_list_changed() -> [PeeringTrigger; 1] {
    [PeeringTrigger::Discovery]
}

/// A `SearchDomain` changed.
pub fn search_domain_changed() -> [PeeringTrigger; 2] {
    [PeeringTrigger::Discovery, PeeringTrigger::Lookups]
}

/// The Secret with the credential of a provider changed. Whoever deletes it asks for a new one.
pub fn needs_new_credential<R>(new: Option<&R>) -> bool {
    new.is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn id(seed: u8) -> ClusterId {
        ClusterId::of_public_key(&[seed; 32])
    }

    fn record(seed: u8) -> ForeignCluster {
        serde_json::from_value(
            json!({ "metadata": { "name": "milan" }, "spec": { "clusterID": id(seed) } }),
        )
        .unwrap()
    }

    fn namespace(kind: PeerNamespaceKind) -> LiqoNamespace {
        LiqoNamespace {
            kind,
            cluster: id(1),
            cluster_name: None,
            public_key: None,
            terminating: false,
            ending: false,
        }
    }

    #[test]
    fn a_record_concerns_its_peer_and_all_lists_of_peers() {
        let lists = [PeeringTrigger::TunnelClients, PeeringTrigger::Discovery];
        let expected = |peers: &[u8]| {
            let peers = peers.iter().map(|seed| PeeringTrigger::Peer(id(*seed)));
            peers.chain(lists.clone()).collect::<Vec<_>>()
        };
        assert_eq!(
            foreign_cluster_changed(None, Some(&record(1))),
            expected(&[1])
        );
        assert_eq!(
            foreign_cluster_changed(Some(&record(1)), None),
            expected(&[1])
        );
        assert_eq!(
            foreign_cluster_changed(Some(&record(1)), Some(&record(2))),
            expected(&[1, 2]),
            "a record that names another peer concerns both"
        );
    }

    #[test]
    fn the_namespaces_of_a_peering_concern_its_peer_and_mapped_ones_nobody() {
        let due = [PeeringTrigger::Peer(id(1)), PeeringTrigger::TunnelClients];
        let [tenant, provider] =
            [PeerNamespaceKind::Tenant, PeerNamespaceKind::Provider].map(namespace);
        for changed in [&tenant, &provider] {
            assert_eq!(namespace_changed(None, Some(changed)), due);
            assert_eq!(namespace_changed(Some(changed), None), due);
        }
        let home = "shop".to_owned();
        let mapped = namespace(PeerNamespaceKind::Mapped { home });
        assert_eq!(namespace_changed(Some(&mapped), Some(&mapped)), []);
        assert_eq!(namespace_changed(Some(&mapped), Some(&tenant)), due);
    }

    #[test]
    fn a_peer_is_due_only_if_it_announced_other_gateways() {
        let gateway = GatewayAddress {
            public_key: "a".to_owned(),
            first_key: None,
            endpoints: Vec::new(),
            tls: Vec::new(),
        };
        let (some, key) = (vec![gateway], Key::new("liqo", id(1).as_str()));
        let peer = Some(PeeringTrigger::Peer(id(1)));
        assert_eq!(tunnel_endpoint_changed(&key, None, Some(&some)), peer);
        assert_eq!(
            tunnel_endpoint_changed(&key, Some(&some), Some(&Vec::new())),
            peer
        );
        assert_eq!(
            tunnel_endpoint_changed(&key, Some(&some), Some(&some)),
            None
        );
        let strange = Key::new("liqo", "somebody");
        assert_eq!(tunnel_endpoint_changed(&strange, None, Some(&some)), None);
    }

    #[test]
    fn a_domain_is_looked_up_and_its_clusters_are_compared() {
        assert_eq!(
            search_domain_changed(),
            [PeeringTrigger::Discovery, PeeringTrigger::Lookups]
        );
    }

    #[test]
    fn what_discovery_and_the_tunnel_read_makes_them_look() {
        for due in [policy_changed(), lan_list_changed()] {
            assert_eq!(due, [PeeringTrigger::Discovery]);
        }
        for due in [invitation_changed(), tunnel_client_list_changed()] {
            assert_eq!(due, [PeeringTrigger::TunnelClients]);
        }
    }

    #[test]
    fn only_a_deleted_credential_asks_for_a_new_one() {
        assert!(needs_new_credential::<()>(None) && !needs_new_credential(Some(&())));
    }
}

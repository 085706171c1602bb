//! The network to each peer: how addresses are translated, and whether it works. From the
//! `TunnelEndpoint`s in Liqo's namespace.

use std::sync::Arc;

use ipnet::IpNet;
use jiff::Timestamp;
use kube::{Api, runtime::watcher};
use liqo_api::conditions::StatusCondition;
use liqo_api::{ClusterId, Reach, TunnelEndpoint};
use liqo_controller_runtime::{Cache, Context, Key};
use liqo_network_model::PeerMaps;

/// The network to a peer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkToPeer {
    /// The address translation between both clusters.
    pub maps: PeerMaps,
    /// Whether the gateways reach each other. Otherwise no address at the other end is reachable.
    pub works: bool,
    /// Begin of the time in which the gateways do not reach each other, if it is known that they do
    /// not.
    pub broken_since: Option<Timestamp>,
    /// Whether our pods there may reach our API server.
    pub api_server: bool,
    /// Whether all of our pods are open to the peer.
    pub reaches_all_pods: bool,
}

impl NetworkToPeer {
    /// The peer's prefixes, as this cluster sees them.
    pub fn prefixes(&self) -> impl Iterator<Item = IpNet> + use<'_> {
        self.maps.imported.pairs().map(|(here, _)| here.0)
    }
}

/// The network to each peer.
pub struct NetworksToPeers {
    all: Cache<NetworkToPeer>,
    namespace: String,
}

impl NetworksToPeers {
    /// Watches the `TunnelEndpoint`s until the context's `stop`. Calls `changed` with each peer
    /// whose network changed, and with the former and the current network.
    pub fn follow(
        context: &Context,
        mut changed: impl FnMut(ClusterId, Option<&NetworkToPeer>, Option<&NetworkToPeer>)
        + Send
        + 'static,
    ) -> Self {
        let namespace = context.namespace.clone();
        let endpoints: Api<TunnelEndpoint> = Api::namespaced(context.client.clone(), &namespace);
        let all = Cache::watch(
            endpoints,
            watcher::Config::default(),
            context.stop.clone(),
            reduce_endpoint,
            move |key, old, new| {
                if let Ok(peer) = key.name.parse() {
                    changed(peer, old.map(AsRef::as_ref), new.map(AsRef::as_ref));
                }
            },
        );
        Self { all, namespace }
    }

    /// The network to this peer, if there is one.
    pub fn network_of_peer(&self, peer: &ClusterId) -> Option<Arc<NetworkToPeer>> {
        self.all
            .get(&Key::new(self.namespace.clone(), peer.to_string()))
    }

    pub fn all(&self) -> Vec<Arc<NetworkToPeer>> {
        self.all
            .all()
            .into_iter()
            .map(|(_, network)| network)
            .collect()
    }

    /// Whether the initial list is complete.
    pub fn is_synced(&self) -> bool {
        self.all.is_synced()
    }

    /// Waits for the initial list. `false` if the context ended before.
    pub async fn synced(&self) -> bool {
        self.all.wait_until_synced().await
    }
}

/// The network to a peer; without maps if the prefixes contradict each other.
#[allow(
    clippy::needless_pass_by_value,
    reason = "what a watch's reduction takes"
)]
fn reduce_endpoint(endpoint: TunnelEndpoint) -> Option<NetworkToPeer> {
    let id = &endpoint.spec.cluster_id;
    if endpoint.metadata.name.as_deref() != Some(id.as_str()) {
        return None;
    }
    let maps = PeerMaps::try_from(&endpoint.spec).unwrap_or_else(|error| {
        tracing::warn!(peer = %id, %error, "the prefixes of a TunnelEndpoint make no map; nothing is translated");
        PeerMaps::default()
    });
    Some(NetworkToPeer {
        maps,
        api_server: endpoint.spec.api_server,
        reaches_all_pods: endpoint.spec.reach == Reach::Pods,
        works: endpoint
            .connected_condition()
            .is_some_and(StatusCondition::is_true),
        broken_since: endpoint
            .connected_condition()
            .filter(|condition| condition.status == "False")
            .map(|condition| condition.last_transition_time.0),
    })
}

#[cfg(test)]
mod tests {
    use liqo_network_model::{Here, There};
    use serde_json::json;

    use super::*;

    fn endpoint(
        name: &str,
        imported: &serde_json::Value,
        connected: &str,
    ) -> Option<NetworkToPeer> {
        let id = ClusterId::of_public_key(&[1; 32]);
        let name = if name.is_empty() { id.as_str() } else { name };
        let endpoint = json!({ "apiVersion": "net.liqo.io/v1alpha1", "kind": "TunnelEndpoint", "metadata": { "name": name },
            "spec": { "clusterID": id, "imported": imported, "mtu": 1420 },
            "status": { "conditions": [{ "type": "Connected", "status": connected, "reason": "R", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }] } });
        reduce_endpoint(serde_json::from_value(endpoint).unwrap())
    }

    #[test]
    fn a_peer_is_seen_as_the_object_of_its_name_says() {
        let network = endpoint("", &json!({ "10.244.0.0/16": "10.71.0.0/16" }), "True").unwrap();
        assert!(network.works);
        assert_eq!(
            network
                .maps
                .imported
                .to_here(There("10.244.0.9".parse().unwrap())),
            Some(Here("10.71.0.9".parse().unwrap()))
        );
        assert_eq!(endpoint("another", &json!({}), "True"), None);
        let contradiction = json!({ "10.244.0.0/16": "10.71.0.0/16", "10.0.0.0/8": "11.0.0.0/8" });
        let broken_since = Some("2026-01-01T00:00:00Z".parse().unwrap());
        assert_eq!(
            endpoint("", &contradiction, "False"),
            Some(NetworkToPeer {
                broken_since,
                ..NetworkToPeer::default()
            })
        );
        assert_eq!(
            endpoint("", &json!({}), "Unknown"),
            Some(NetworkToPeer::default()),
            "nothing says that it is broken"
        );
    }
}

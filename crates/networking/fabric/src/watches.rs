//! The watches that every node has.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Node},
};
use kube::{Api, Client, runtime::watcher};
use liqo_api::{CLUSTER_CONFIG, ClusterConfig, TUNNEL_CLIENTS, TunnelEndpoint, labels};
use liqo_controller_runtime::Cache;
use liqo_network_model::gateways::GatewayLease;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::view::{self, ConfigView, NodeView, PeerView};

#[derive(Clone)]
pub struct NodeWatches {
    pub nodes: Cache<NodeView>,
    pub peers: Cache<PeerView>,
    pub config: Cache<ConfigView>,
    pub leases: Cache<GatewayLease>,
    /// The list of clusters that may use the tunnel as clients.
    pub tunnel_clients: Cache<BTreeMap<String, String>>,
}

impl NodeWatches {
    /// Starts to watch. `changed` is notified of all changes except those of Leases, which
    /// `on_lease` gets with their names.
    pub fn start(
        client: &Client,
        namespace: &str,
        changed: &Arc<Notify>,
        on_lease: impl Fn(&str, Option<&GatewayLease>) + Send + 'static,
        stop: &CancellationToken,
    ) -> Self {
        let [on_node, on_peer, on_config, on_client] = std::array::from_fn(|_| changed.clone());
        let all = watcher::Config::default;
        Self {
            nodes: Cache::watch(
                Api::<Node>::all(client.clone()),
                all(),
                stop.clone(),
                view::node_view,
                move |_, _, _| on_node.notify_one(),
            ),
            peers: Cache::watch(
                Api::<TunnelEndpoint>::namespaced(client.clone(), namespace),
                all(),
                stop.clone(),
                view::peer_view,
                // The gateways write the status themselves.
                move |_, before, now| {
                    if before.map(|peer| &peer.spec) != now.map(|peer| &peer.spec) {
                        on_peer.notify_one();
                    }
                },
            ),
            config: Cache::watch(
                Api::<ClusterConfig>::all(client.clone()),
                all().fields(&format!("metadata.name={CLUSTER_CONFIG}")),
                stop.clone(),
                view::config_view,
                move |_, _, _| on_config.notify_one(),
            ),
            tunnel_clients: Cache::watch(
                Api::<ConfigMap>::namespaced(client.clone(), namespace),
                all().fields(&format!("metadata.name={TUNNEL_CLIENTS}")),
                stop.clone(),
                view::config_map_data,
                move |_, _, _| on_client.notify_one(),
            ),
            leases: Cache::watch(
                Api::<Lease>::namespaced(client.clone(), namespace),
                all().labels(&format!("{}=true", labels::GATEWAY)),
                stop.clone(),
                |lease| GatewayLease::parse(&lease),
                move |key, _, now| on_lease(&key.name, now.map(AsRef::as_ref)),
            ),
        }
    }
}

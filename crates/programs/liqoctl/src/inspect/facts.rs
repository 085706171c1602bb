//! The facts that were read from one cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        admissionregistration::v1::MutatingWebhookConfiguration,
        apps::v1::{DaemonSet, Deployment},
        coordination::v1::Lease,
        core::v1::{Event, Namespace, Node, Pod},
        discovery::v1::EndpointSlice,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{ResourceExt as _, api::DynamicObject};
use liqo_api::{
    ClusterConfig, ClusterId, ForeignCluster, NamespaceOffloading, NetworkSettings, ResourceList,
    ResourceOffer, ShadowPod, TunnelEndpoint, VirtualNode, labels,
};
use liqo_network_model::gateways::{self, GatewayLease, LossRule};

/// The value, or the reason why it could not be read.
pub type ReadResult<T> = Result<T, String>;

/// Liqo's own objects that `status` shows and `doctor` judges.
#[derive(Clone, Debug)]
pub struct LiqoObjects {
    pub config: ReadResult<Option<ClusterConfig>>,
    /// The Deployment of the controller manager.
    pub manager: ReadResult<Option<Deployment>>,
    pub peers: ReadResult<Vec<ForeignCluster>>,
    pub tunnels: ReadResult<Vec<TunnelEndpoint>>,
    /// Offers made and received.
    pub offers: ReadResult<Vec<ResourceOffer>>,
    pub virtual_nodes: ReadResult<Vec<VirtualNode>>,
    pub offloadings: ReadResult<Vec<NamespaceOffloading>>,
}

/// The usage of borrowed and lent resources.
#[derive(Clone, Debug, Default)]
pub struct BorrowedAndLentUsage {
    /// The Nodes of virtual nodes, by name. A name without a Node is absent.
    pub nodes: BTreeMap<String, VirtualNodeUsage>,
    /// Number of nodes that can run a replica of the manager; unknown to users who may not list
    /// nodes.
    pub nodes_for_manager: Option<usize>,
    pub shadow_pods: Vec<ShadowPod>,
}

#[derive(Clone, Debug, Default)]
pub struct VirtualNodeUsage {
    pub ready: bool,
    /// Pods that have not finished.
    pub pods: usize,
    /// Their requests, including those that a provider gives to containers without any.
    pub requests: ResourceList,
}

/// Everything that `doctor` judges.
#[derive(Clone, Debug)]
pub struct ClusterFacts {
    /// Name of the cluster; the context of the kubeconfig where Liqo is not installed.
    pub name: String,
    pub api_server: ApiServerFacts,
    /// Requests that this user has no right to make.
    pub refused: Vec<String>,
    pub liqo: LiqoObjects,
    pub definitions: ReadResult<Vec<CustomResourceDefinition>>,
    /// Pods in Liqo's namespaces.
    pub pods: ReadResult<Vec<Pod>>,
    pub diagnostics: PodDiagnostics,
    /// Leases in Liqo's namespace: the leader's and those of gateways.
    pub leases: ReadResult<Vec<Lease>>,
    pub node_leases: ReadResult<Vec<Lease>>,
    /// Leases in the tenant namespaces.
    pub tenant_leases: ReadResult<Vec<Lease>>,
    /// Endpoints of Services in Liqo's namespace.
    pub slices: ReadResult<Vec<EndpointSlice>>,
    pub webhook: ReadResult<Option<MutatingWebhookConfiguration>>,
    pub webhook_certificate: ReadResult<Option<WebhookCertificate>>,
    /// The roles, admission policies and bindings in the cluster, of those that `liqoctl install`
    /// creates.
    pub rights: ReadResult<Vec<DynamicObject>>,
    pub nodes: ReadResult<Vec<Node>>,
    pub components: ClusterComponents,
    /// Namespaces that Liqo created.
    pub namespaces: ReadResult<Vec<Namespace>>,
    /// The domain that each consumer announces in its map of namespaces here, if it announces one.
    /// Consumers without a map are absent.
    pub announced_domains: ReadResult<BTreeMap<ClusterId, Option<String>>>,
    /// The credential for each provider.
    pub credentials: BTreeMap<ClusterId, ReadResult<Option<CredentialLifetime>>>,
    /// Pods in offloaded namespaces.
    pub local_pods: ReadResult<Vec<Pod>>,
    /// Events about pods that controllers could not create because Liqo refused them.
    pub failed_creations: ReadResult<Vec<Event>>,
    /// UIDs of the objects of these events whose controllers created a pod since.
    pub created_since: BTreeSet<String>,
}

/// Diagnostics of unhealthy pods of Liqo, by `namespace/name`.
#[derive(Clone, Debug, Default)]
pub struct PodDiagnostics {
    /// The last line of a container's log before it was restarted.
    pub last_log_lines: BTreeMap<String, String>,
    /// The answers of readiness endpoints of running pods that are not Ready.
    pub not_ready: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
pub struct ApiServerFacts {
    pub url: String,
    /// For example `v1.34.4`.
    pub version: String,
    /// The minor version, if it is a number.
    pub minor: Option<u32>,
    /// The API server's own time.
    pub date: Option<Timestamp>,
    /// The time here, in the middle of the request.
    pub asked_at: Timestamp,
    /// The time until the answer.
    pub took: SignedDuration,
}

/// The certificate of the admission webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookCertificate {
    /// The certificate of its issuer (PEM).
    pub ca: String,
    /// The certificate itself (PEM).
    pub leaf: String,
}

/// The lifetime of what a provider granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CredentialLifetime {
    pub issued_at: Timestamp,
    pub expires_at: Timestamp,
}

/// The parts of Kubernetes that pods and Services depend on.
#[derive(Clone, Debug)]
pub struct ClusterComponents {
    pub daemon_sets: ReadResult<Vec<DaemonSet>>,
    /// `config.conf` of kube-proxy, where it is in a `ConfigMap`.
    pub kube_proxy: ReadResult<Option<String>>,
    /// Cilium's setting for kube-proxy, if there is Cilium.
    pub cilium_replaces_kube_proxy: ReadResult<Option<String>>,
    /// The Corefile, if it is where kubeadm puts it.
    pub corefile: ReadResult<Option<String>>,
    /// Endpoints of Service `kube-dns`.
    pub dns: ReadResult<Vec<EndpointSlice>>,
}

impl LiqoObjects {
    /// The configuration, if it could be read and exists.
    pub fn configuration(&self) -> Option<&ClusterConfig> {
        self.config.as_ref().ok()?.as_ref()
    }

    pub fn network(&self) -> Option<&NetworkSettings> {
        Some(&self.configuration()?.spec.network)
    }

    pub fn id(&self) -> Option<&ClusterId> {
        self.configuration()?.status.as_ref()?.cluster_id.as_ref()
    }

    /// Whether another cluster borrows from this one, or wants to; else why that could not be read.
    pub fn is_provider(&self) -> Result<bool, &String> {
        Ok(self.peers.as_ref()?.iter().any(|peer| {
            peer.status
                .as_ref()
                .is_some_and(|status| status.tenant_namespace.is_some())
        }))
    }

    /// The peer with this ID, if it is known; else why that could not be read.
    pub fn peer(&self, id: &ClusterId) -> Result<Option<&ForeignCluster>, &String> {
        Ok(self
            .peers
            .as_ref()?
            .iter()
            .find(|peer| peer.spec.cluster_id == *id))
    }

    /// The network towards this peer, if there is one; else why that could not be read.
    pub fn tunnel(&self, id: &ClusterId) -> Result<Option<&TunnelEndpoint>, &String> {
        Ok(self
            .tunnels
            .as_ref()?
            .iter()
            .find(|tunnel| tunnel.spec.cluster_id == *id))
    }
}

impl ClusterFacts {
    /// The time, by the API server's clock if it is known.
    pub fn now(&self) -> Timestamp {
        self.api_server.date.unwrap_or(self.api_server.asked_at)
    }

    /// The nodes that are machines.
    pub fn real_nodes(&self) -> Result<Vec<&Node>, String> {
        let nodes = self.nodes.as_ref().map_err(Clone::clone)?;
        Ok(nodes.iter().filter(|node| !is_virtual(node)).collect())
    }

    /// The gateways that hold a Lease, in the order of its number.
    pub fn gateways(&self) -> Vec<LeasedGateway> {
        let leases = self
            .leases
            .iter()
            .flatten()
            .filter(|lease| lease.labels().contains_key(labels::GATEWAY));
        let mut found: Vec<LeasedGateway> = leases
            .filter_map(|lease| LeasedGateway::from_gateway_lease(lease, self.now()))
            .collect();
        found.sort_by_key(|gateway| gateway.number);
        found
    }
}

/// Whether a node represents another cluster.
pub fn is_virtual(node: &Node) -> bool {
    node.labels()
        .get(labels::TYPE)
        .is_some_and(|kind| kind == labels::TYPE_VIRTUAL_NODE)
}

/// A gateway that holds a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedGateway {
    /// The number of its Lease.
    pub number: u8,
    pub node: String,
    pub key: Option<String>,
    /// See `liqo_network_model::gateways`.
    pub is_alive: bool,
}

impl LeasedGateway {
    fn from_gateway_lease(lease: &Lease, now: Timestamp) -> Option<Self> {
        let silent_for =
            gateways::time_between(LeaseHeartbeat::from_lease(lease)?.last_renewal(), now);
        let lease = GatewayLease::parse(lease)?;
        let is_alive =
            !LossRule::by_server_clock(lease.holding_time()).is_lost(silent_for, Duration::ZERO);
        Some(Self {
            number: lease.number,
            node: lease.node?,
            key: lease.public_key,
            is_alive,
        })
    }
}

/// The last renewal of a Lease, by two clocks. The holder writes its own time into the Lease, and
/// the API server records when it wrote. So the two clocks can be compared without asking the
/// holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseHeartbeat {
    /// By the API server's clock, to the second.
    pub written: Option<Timestamp>,
    /// By the holder's clock.
    pub own: Timestamp,
    duration: SignedDuration,
}

impl LeaseHeartbeat {
    /// Nothing if the Lease was never renewed.
    pub fn from_lease(lease: &Lease) -> Option<Self> {
        let spec = lease.spec.as_ref()?;
        let written = lease
            .managed_fields()
            .iter()
            .filter_map(|entry| entry.time.as_ref())
            .map(|time| time.0)
            .max();
        let seconds = spec.lease_duration_seconds.unwrap_or(40);
        Some(Self {
            written,
            own: spec.renew_time.as_ref()?.0,
            duration: SignedDuration::from_secs(seconds.into()),
        })
    }

    /// Whether the holder renewed the Lease in time. Two seconds are added: the API server
    /// truncates times to the second, and requests take a while.
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        now.duration_since(self.last_renewal()) <= self.duration + SignedDuration::from_secs(2)
    }

    /// By the API server's clock if it is known, else by the holder's.
    fn last_renewal(&self) -> Timestamp {
        self.written.unwrap_or(self.own)
    }

    /// Time by which the holder's clock is ahead of the API server's, to a second.
    pub fn clock_ahead(&self) -> Option<SignedDuration> {
        Some(self.own.duration_since(self.written?))
    }
}

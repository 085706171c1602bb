//! What was read of one cluster.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        admissionregistration::v1::MutatingWebhookConfiguration,
        apps::v1::{DaemonSet, Deployment},
        coordination::v1::Lease,
        core::v1::{Namespace, Node, Pod},
        discovery::v1::EndpointSlice,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{ResourceExt as _, api::DynamicObject};
use liqo_api::{
    ClusterConfig, ClusterId, ForeignCluster, NamespaceOffloading, NetworkSettings, ResourceOffer, TunnelEndpoint, VirtualNode,
    labels,
};

/// What was read, or why it could not be.
pub type Read<T> = Result<T, String>;

/// Everything that is judged.
#[derive(Clone, Debug)]
pub struct Facts {
    /// What the cluster is called.
    pub name: String,
    /// Its API server.
    pub api_server: ApiServer,
    /// What this user may not read.
    pub refused: Vec<String>,
    /// Definitions of kinds.
    pub definitions: Read<Vec<CustomResourceDefinition>>,
    /// Liqo's configuration.
    pub config: Read<Option<ClusterConfig>>,
    /// The Deployment of the controller manager.
    pub manager: Read<Option<Deployment>>,
    /// Pods in Liqo's namespaces.
    pub pods: Read<Vec<Pod>>,
    /// The last line that a restarting pod wrote, by `namespace/name`.
    pub last_words: BTreeMap<String, String>,
    /// What a pod that is not Ready says of itself, by `namespace/name`.
    pub complaints: BTreeMap<String, String>,
    /// Leases in Liqo's namespace: the leader's and those of gateways.
    pub leases: Read<Vec<Lease>>,
    /// Leases of nodes.
    pub node_leases: Read<Vec<Lease>>,
    /// Leases in the namespaces of consumers.
    pub tenant_leases: Read<Vec<Lease>>,
    /// Endpoints of Services in Liqo's namespace.
    pub slices: Read<Vec<EndpointSlice>>,
    /// The configuration of the admission webhook.
    pub webhook: Read<Option<MutatingWebhookConfiguration>>,
    /// Its CA and its certificate (PEM).
    pub webhook_certificate: Read<Option<WebhookCertificate>>,
    /// Roles and their bindings as they stand, of those that installing makes.
    pub roles: Read<Vec<DynamicObject>>,
    /// Nodes.
    pub nodes: Read<Vec<Node>>,
    /// What Kubernetes itself runs on.
    pub surroundings: Surroundings,
    /// Peers.
    pub peers: Read<Vec<ForeignCluster>>,
    /// The network towards each.
    pub tunnels: Read<Vec<TunnelEndpoint>>,
    /// Offers, made and received.
    pub offers: Read<Vec<ResourceOffer>>,
    /// Virtual nodes.
    pub virtual_nodes: Read<Vec<VirtualNode>>,
    /// Namespaces that Liqo made.
    pub namespaces: Read<Vec<Namespace>>,
    /// The credential for each provider.
    pub credentials: BTreeMap<ClusterId, Read<Option<Credential>>>,
    /// Offloaded namespaces.
    pub offloadings: Read<Vec<NamespaceOffloading>>,
    /// Pods in them.
    pub home_pods: Read<Vec<Pod>>,
}

/// What an API server says of itself.
#[derive(Clone, Debug)]
pub struct ApiServer {
    /// Its URL.
    pub url: String,
    /// Its version, such as `v1.34.4`.
    pub version: String,
    /// The minor version, if it is a number.
    pub minor: Option<u32>,
    /// What time it says that it is.
    pub date: Option<Timestamp>,
    /// What time it was here, in the middle of the request.
    pub asked_at: Timestamp,
    /// How long the answer took.
    pub took: SignedDuration,
}

/// The certificate of the admission webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookCertificate {
    /// Who signed it (PEM).
    pub ca: String,
    /// The certificate (PEM).
    pub leaf: String,
}

/// The times of what a provider granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credential {
    /// When it came.
    pub issued_at: Timestamp,
    /// When it ends.
    pub expires_at: Timestamp,
}

/// What Kubernetes itself runs on.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// All `DaemonSet`s.
    pub daemon_sets: Read<Vec<DaemonSet>>,
    /// `config.conf` of kube-proxy, where it is in a `ConfigMap`.
    pub kube_proxy: Read<Option<String>>,
    /// What Cilium was told about kube-proxy, if there is Cilium.
    pub cilium_replaces_kube_proxy: Read<Option<String>>,
    /// The Corefile, if it is where kubeadm puts it.
    pub corefile: Read<Option<String>>,
    /// Endpoints of Service `kube-dns`.
    pub dns: Read<Vec<EndpointSlice>>,
}

impl Facts {
    /// What time it is, by the API server's clock where it says so.
    pub fn now(&self) -> Timestamp {
        self.api_server.date.unwrap_or(self.api_server.asked_at)
    }

    /// The configuration, if it could be read and is there.
    pub fn configuration(&self) -> Option<&ClusterConfig> {
        self.config.as_ref().ok()?.as_ref()
    }

    /// What is set for the network.
    pub fn network(&self) -> Option<&NetworkSettings> {
        Some(&self.configuration()?.spec.network)
    }

    /// The cluster's identity.
    pub fn id(&self) -> Option<&ClusterId> {
        self.configuration()?.status.as_ref()?.cluster_id.as_ref()
    }

    /// The nodes that are machines.
    pub fn real_nodes(&self) -> Result<Vec<&Node>, String> {
        let nodes = self.nodes.as_ref().map_err(Clone::clone)?;
        Ok(nodes.iter().filter(|node| !is_virtual(node)).collect())
    }

    /// The peer with this ID, if it is known; else why that could not be read.
    pub fn peer(&self, id: &ClusterId) -> Result<Option<&ForeignCluster>, &String> {
        Ok(self.peers.as_ref()?.iter().find(|peer| peer.spec.cluster_id == *id))
    }

    /// The network towards this peer, if there is one; else why that could not be read.
    pub fn tunnel(&self, id: &ClusterId) -> Result<Option<&TunnelEndpoint>, &String> {
        Ok(self.tunnels.as_ref()?.iter().find(|tunnel| tunnel.spec.cluster_id == *id))
    }

    /// The Leases of gateways that somebody holds, in their order.
    pub fn gateways(&self) -> Vec<Gateway<'_>> {
        let leases = self.leases.iter().flatten().filter(|lease| lease.labels().contains_key(labels::GATEWAY));
        let mut found: Vec<Gateway<'_>> = leases.filter_map(|lease| Gateway::of(lease, self.now())).collect();
        found.sort_by(|one, other| one.lease.cmp(other.lease));
        found
    }
}

/// Whether a node stands for another cluster.
pub fn is_virtual(node: &Node) -> bool {
    node.labels().get(labels::TYPE).is_some_and(|kind| kind == labels::TYPE_VIRTUAL_NODE)
}

/// A gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway<'a> {
    /// Name of its Lease.
    pub lease: &'a str,
    /// Its node.
    pub node: &'a str,
    /// Its key.
    pub key: Option<&'a str>,
    /// Whether the Lease is renewed.
    pub is_alive: bool,
}

impl<'a> Gateway<'a> {
    fn of(lease: &'a Lease, now: Timestamp) -> Option<Self> {
        Some(Self {
            lease: lease.metadata.name.as_deref()?,
            node: lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())?,
            key: lease.annotations().get(liqo_api::annotations::GATEWAY_KEY).map(String::as_str),
            is_alive: Beat::of(lease)?.is_fresh(now),
        })
    }
}

/// The last renewal of a Lease, by two clocks. The holder writes its own time into the Lease, and the API server notes when that was
/// written: so the two can be compared without asking the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// By the clock of the API server, to the second.
    pub written: Option<Timestamp>,
    /// By the holder's.
    pub own: Timestamp,
    duration: SignedDuration,
}

impl Beat {
    /// None if it was never renewed.
    pub fn of(lease: &Lease) -> Option<Self> {
        let spec = lease.spec.as_ref()?;
        let written = lease.managed_fields().iter().filter_map(|entry| entry.time.as_ref()).map(|time| time.0).max();
        let seconds = spec.lease_duration_seconds.unwrap_or(40);
        Some(Self { written, own: spec.renew_time.as_ref()?.0, duration: SignedDuration::from_secs(seconds.into()) })
    }

    /// Whether the holder was heard lately. Times of the API server are cut to the second, and requests take a while.
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        now.duration_since(self.written.unwrap_or(self.own)) <= self.duration + SignedDuration::from_secs(2)
    }

    /// How far the holder's clock is ahead of the API server's, to a second.
    pub fn ahead(&self) -> Option<SignedDuration> {
        Some(self.own.duration_since(self.written?))
    }
}

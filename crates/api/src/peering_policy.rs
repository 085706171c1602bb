use k8s_openapi::{api::core::v1::Toleration, apimachinery::pkg::apis::meta::v1::LabelSelector};
use kube::{CustomResource, KubeSchema};
use liqo_quantity::{Rates, ResourceList};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Budget, ClusterId, Condition, ConsumeContract, PriceList, PricePolicy, ProvideContract, is_own,
    schema,
};

/// With which peers this cluster shares, what and how much, and what it accepts from them. If
/// several policies select a peer, the one with the highest priority applies; among equal
/// priorities, the first by name. Without a policy a peer gets nothing.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "sharing.liqo.io",
    version = "v1alpha1",
    kind = "PeeringPolicy",
    plural = "peeringpolicies",
    shortname = "pp",
    category = "liqo",
    status = "PeeringPolicyStatus",
    doc = "With which peers this cluster shares, and how much",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.priority"),
    printcolumn(
        name = "Percentage",
        type_ = "integer",
        json_path = ".spec.provide.percentage"
    ),
    printcolumn(
        name = "Plugin",
        type_ = "string",
        json_path = ".spec.provide.source.plugin.address"
    ),
    printcolumn(name = "Accept", type_ = "string", json_path = ".spec.consume.accept"),
    printcolumn(name = "Peers", type_ = "integer", json_path = ".status.peers"),
    printcolumn(
        name = "Honoured",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Honoured\")].status"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[x_kube(validation = kube::core::Rule::new("!has(self.provide) || !has(self.provide.tokenRequired) || self.provide.tokenRequired || (has(self.peers) && ((has(self.peers.clusterIDs) && self.peers.clusterIDs.size() > 0) || (has(self.peers.names) && self.peers.names.size() > 0) || (has(self.peers.selector) && ((has(self.peers.selector.matchLabels) && self.peers.selector.matchLabels.size() > 0) || (has(self.peers.selector.matchExpressions) && self.peers.selector.matchExpressions.size() > 0))) || (has(self.peers.discoveredBy) && self.peers.discoveredBy.size() > 0 && !('Manual' in self.peers.discoveredBy))))").message("tokenRequired: false needs peers by clusterIDs, names, selector, or discoveredBy without Manual: else every cluster that reaches the auth endpoint may borrow"))]
#[x_kube(validation = kube::core::Rule::new("!has(self.provide) || !has(self.provide.source) || !has(self.provide.source.offers) || !has(self.provide.granularity) || !has(self.provide.granularity.by) || self.provide.granularity.by != 'NodeLabel'").message("with source.offers, granularity is by Cluster or by Node"))]
#[x_kube(validation = kube::core::Rule::new("!has(self.provide) || !has(self.provide.source) || !has(self.provide.source.plugin) || !has(self.provide.granularity) || !has(self.provide.granularity.peersMayChoose) || !self.provide.granularity.peersMayChoose").message("with source.plugin, the plugin names the pools: leave out granularity.peersMayChoose"))]
#[serde(rename_all = "camelCase")]
pub struct PeeringPolicySpec {
    /// Priority of this policy. If several policies select a peer, the one with the highest
    /// priority applies.
    #[serde(default)]
    pub priority: i32,
    /// The peers to which the policy applies. If absent, all.
    #[serde(default, skip_serializing_if = "PeerSelector::is_everybody")]
    pub peers: PeerSelector,
    /// What this cluster offers to each of these peers.
    #[serde(default)]
    pub provide: Provide,
    /// What this cluster accepts from each of these peers.
    #[serde(default)]
    pub consume: Consume,
    /// Which packets may flow between each of these peers and this cluster.
    #[serde(default, skip_serializing_if = "NetworkPolicy::is_default")]
    pub network: NetworkPolicy,
}

/// Which packets may flow between a peer and this cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
#[allow(clippy::struct_excessive_bools)] // Each is a setting of its own.
pub struct NetworkPolicy {
    /// Whether there is a network between the clusters.
    pub enabled: bool,
    /// Addresses of this cluster to which the peer may open connections.
    pub reach: Reach,
    /// Whether the peer and other peers with `transit` reach each other through this cluster.
    pub transit: bool,
    /// Whether pods of this cluster that run at the peer may use this cluster's API server, with
    /// tokens of their `ServiceAccounts`. With such a token the peer can do whatever the pod can
    /// do.
    pub api_server: bool,
    /// Whether a customer and a provider on both sides of a broker may exchange packets directly,
    /// so that each learns the addresses of the other one's gateways. It counts if all three
    /// clusters say so: at the broker, of both others.
    pub direct: bool,
    /// The peer's ranges within these keep their addresses in this cluster, where they are private
    /// and free. Others appear in `network.peerCIDRs`. A change waits until no pod of either
    /// cluster runs at the other.
    #[serde(rename = "keptCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::kept_prefixes")]
    pub kept_cidrs: Vec<String>,
}

impl Default for NetworkPolicy {
    fn default() -> Self {
        Self {
            enabled: true,
            reach: Reach::default(),
            transit: false,
            api_server: true,
            direct: false,
            kept_cidrs: Vec::new(),
        }
    }
}

impl NetworkPolicy {
    /// Whether all fields have their defaults.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Addresses of this cluster to which a peer may open connections.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Pods that the peer offloaded to this cluster, and pods behind the Services that are
    /// reflected to the peer.
    #[default]
    Offloaded,
    /// All pods.
    Pods,
}

/// The effect of a policy. It changes when the offers change, not with each pod.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PeeringPolicyStatus {
    /// Number of known peers to which the policy applies.
    #[serde(default)]
    pub peers: u32,
    /// Sum of the offers to these peers.
    #[serde(default)]
    pub offered: ResourceList,
    /// `Active`: the policy applies to a peer. `Honoured`: no peer uses more than the policy
    /// allows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Condition of a [`PeeringPolicy`]: it applies to at least one peer.
pub const ACTIVE: &str = "Active";
/// Condition of a [`PeeringPolicy`]: its peers use no more than it allows, and nothing is being
/// taken back from them.
pub const HONOURED: &str = "Honoured";

/// Selects peers. A peer must match every field that is set.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PeerSelector {
    /// IDs of clusters.
    #[serde(rename = "clusterIDs", default, skip_serializing_if = "Vec::is_empty")]
    pub cluster_ids: Vec<ClusterId>,
    /// Names of `ForeignCluster`s. A `ForeignCluster` with the label `liqo.io/managed` does not
    /// count: Liqo created it when a consumer came or when it found the cluster, and that cluster
    /// chose its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Labels of `ForeignCluster`s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// How the peers were found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    pub discovered_by: Vec<Discovery>,
}

impl PeerSelector {
    /// Whether it selects all peers.
    pub fn is_everybody(&self) -> bool {
        *self == Self::default()
    }
}

/// How a peer was found.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discovery {
    /// By hand: with `liqoctl peer`, or the peer came with a token.
    #[default]
    Manual,
    /// On the local network.
    LAN,
    /// In a DNS domain.
    DNS,
}

impl Discovery {
    /// The value of the label `liqo.io/discovered-by`.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Manual => "Manual",
            Self::LAN => "LAN",
            Self::DNS => "DNS",
        }
    }

    /// The way that a value of the label means.
    pub fn of_label(value: &str) -> Option<Self> {
        [Self::Manual, Self::LAN, Self::DNS]
            .into_iter()
            .find(|way| way.as_label() == value)
    }
}

/// What this cluster offers to peers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Provide {
    /// Percentage of the free resources that all peers of this policy together are offered. It does
    /// not apply to plugins and fixed amounts.
    #[schemars(range(max = 100))]
    pub percentage: u8,
    /// Where the amounts come from. If absent, from the free resources of all local nodes.
    #[serde(skip_serializing_if = "Source::is_local")]
    pub source: Source,
    /// Maximum amount of each resource for each peer. With `nvidia.com/gpu: "0"` no GPUs are
    /// offered.
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub caps: ResourceList,
    /// Weight of each peer of this policy when free resources are split between peers.
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u16,
    /// Percentage of the free resources that offers may promise in sum: with 100, exactly what is
    /// free.
    #[schemars(range(min = 100, max = 1000))]
    pub overcommit_percentage: u16,
    /// How an offer is divided into pools. Each pool becomes one virtual node.
    #[serde(skip_serializing_if = "Granularity::is_default")]
    pub granularity: Granularity,
    /// An offer is rewritten only if a resource changes by more than this percentage. If absent, 5;
    /// with a plugin, 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 100))]
    pub offer_update_threshold_percentage: Option<u8>,
    /// Seconds between the notice that this cluster takes something back and the end of the pods
    /// that use it.
    #[schemars(range(max = 604_800))]
    pub notice_seconds: u32,
    /// Seconds for which the pods of a silent peer keep running. Then they end, and their room is
    /// free for others; when the peer is back, it gets a new offer. If absent, they run until the
    /// tenancy of the peer ends (`spec.peering.consumerExpirySeconds` of the `ClusterConfig`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 30, max = 31_536_000))]
    pub absence_seconds: Option<u32>,
    /// Who decides whether a peer may borrow.
    pub approval: Approval,
    /// Whether a peer needs a token to borrow for the first time. Without tokens, every cluster
    /// that the policy selects may borrow: with `discoveredBy: [LAN]`, whoever is on the local
    /// network.
    pub token_required: bool,
    /// Whether a peer that borrows from this cluster may tether itself to it: this cluster then
    /// controls all resources of the peer, and its scheduler places the peer's own pods, here or
    /// back at the peer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tethering: bool,
    /// What the resources cost. If absent, nothing, unless a plugin gives prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prices: Option<PricePolicy>,
    /// What pods of the peers may be and use here.
    #[serde(skip_serializing_if = "Usage::is_default")]
    pub usage: Usage,
    /// The contract that each peer has to sign before its pods are admitted. If absent, there are
    /// no contracts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract: Option<ProvideContract>,
}

impl Default for Provide {
    fn default() -> Self {
        Self {
            percentage: 90,
            source: Source::default(),
            caps: ResourceList::default(),
            weight: 1,
            overcommit_percentage: 100,
            granularity: Granularity::default(),
            offer_update_threshold_percentage: None,
            notice_seconds: 300,
            absence_seconds: None,
            approval: Approval::default(),
            token_required: true,
            tethering: false,
            prices: None,
            usage: Usage::default(),
            contract: None,
        }
    }
}

impl Provide {
    /// Percentage by which a resource must change so that the offer is rewritten.
    pub fn threshold(&self) -> u8 {
        self.offer_update_threshold_percentage
            .unwrap_or(if self.source.plugin.is_some() { 0 } else { 5 })
    }
}

/// Where the amounts of an offer come from: at most one of these. If none is set, from the free
/// resources of all local nodes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(validation = kube::core::Rule::new("[has(self.fixed), has(self.nodes), has(self.plugin), has(self.offers)].filter(given, given).size() <= 1").message("a source is either fixed, nodes, plugin or offers"))]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// Fixed amounts for each peer, as far as they are free. They take precedence over percentages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<FixedSource>,
    /// The free resources of the local nodes that match a selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodesSource>,
    /// The amounts that a resource plugin reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<PluginSource>,
    /// What other clusters offer to this one: the free resources of its virtual nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offers: Option<OffersSource>,
}

impl Source {
    /// Whether the amounts come from all local nodes.
    pub fn is_local(&self) -> bool {
        *self == Self::default()
    }
}

/// Fixed amounts.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FixedSource {
    /// The amounts that each peer is offered.
    pub resources: ResourceList,
}

/// Some of the local nodes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodesSource {
    /// Selectors by labels. A node that matches one of them counts.
    #[schemars(length(min = 1))]
    pub selectors: Vec<LabelSelector>,
}

/// The virtual nodes of this cluster, which then lends what it borrows.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct OffersSource {
    /// Whether this cluster's own nodes are lent, too, as a pool of their own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub own_nodes: bool,
    /// What is added to the prices of the providers. If absent, `prices` of the policy are the only
    /// prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub margin: Option<Margin>,
}

/// What a broker adds to the prices of its providers. The highest price in a pool counts for the
/// whole pool.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Margin {
    /// The only currency. A virtual node with prices in another one is not lent.
    #[schemars(regex(pattern = r"^[A-Za-z][A-Za-z0-9-]{0,11}$"))]
    pub currency: String,
    /// Percentage of each price that is added.
    #[serde(default)]
    #[schemars(range(max = 10_000))]
    pub percent: u16,
    /// What is added to the price of each resource after that.
    #[serde(default, skip_serializing_if = "Rates::is_empty")]
    #[schemars(schema_with = "schema::some_rates")]
    pub fixed: Rates,
}

/// A resource plugin.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PluginSource {
    /// Its address, `host:port`.
    #[schemars(regex(pattern = r"^[^\s/:]+:[0-9]{1,5}$"))]
    pub address: String,
    /// The generation of the protocol that it speaks. Liqo cannot detect it.
    #[serde(default)]
    pub generation: PluginGeneration,
    /// Settings of TLS. If absent, Liqo calls the plugin without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<PluginTls>,
    /// What to do when plugins promise more to all consumers together than the nodes have.
    #[serde(default, skip_serializing_if = "PluginOvercommit::is_default")]
    pub overcommit: PluginOvercommit,
}

/// What to do when plugins promise more than the nodes have.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PluginOvercommit {
    /// Promise it, and say so in the condition `ResourcesOffered` of the consumers.
    #[default]
    Warn,
    /// Divide what the nodes have between the consumers, by weight.
    Cut,
    /// Promise it, for example because nodes are added when pods come.
    Allow,
}

impl PluginOvercommit {
    #[allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde calls it with a reference"
    )]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Generation of the protocol of plugins.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PluginGeneration {
    /// Plugins for Liqo 0.5.
    P1,
    /// Plugins for Liqo 0.6 to 0.8.
    P2,
    /// Plugins for Liqo 0.9 and later.
    #[default]
    P3,
}

/// Settings of TLS for calls to a plugin.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PluginTls {
    /// Name of a Secret in Liqo's namespace with the key `ca.crt`, and for a plugin that checks its
    /// caller also `tls.crt` and `tls.key`.
    pub secret_name: String,
    /// Name in the plugin's certificate. If absent, the host of the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
}

/// How an offer is divided into pools.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(validation = kube::core::Rule::new("(self.by == 'NodeLabel') == has(self.label)").message("granularity by NodeLabel needs a label, and no other does"))]
#[x_kube(validation = kube::core::Rule::new("self.by != 'Node' || !has(self.peersMayChoose) || !self.peersMayChoose").message("granularity by Node leaves nothing to choose: leave out peersMayChoose"))]
#[serde(rename_all = "camelCase")]
pub struct Granularity {
    /// Which nodes form a pool.
    #[serde(default)]
    pub by: PoolBy,
    /// With `NodeLabel`: key of the label whose value is the name of a node's pool. Nodes without
    /// this label are not offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Whether a peer may ask for one pool for each node instead, with `request.granularity` of its
    /// `ForeignCluster`. The peer gets the same amounts, divided between at most 15 nodes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub peers_may_choose: bool,
}

impl Granularity {
    /// Whether all fields have their defaults: all nodes form one pool, and peers may not choose.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Which nodes form a pool.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolBy {
    /// All nodes.
    #[default]
    Cluster,
    /// Nodes with the same value of a label.
    NodeLabel,
    /// Each node.
    Node,
}

/// Who decides whether a peer may borrow.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Approval {
    /// A valid token is enough.
    #[default]
    Automatic,
    /// A person, with `liqoctl approve` or `incomingPeering: Yes` in the `ForeignCluster`.
    Manual,
}

/// What the pods, Services and Ingresses of a peer may be and use here. Offers contain the lists of
/// classes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// Names of storage classes that their pods may use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub storage_classes: Vec<String>,
    /// `IngressClass`es that their Ingresses may have here. The empty name is the cluster's default
    /// class. An Ingress that requests none of these gets the first. If the list is empty, no
    /// Ingress is reflected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::class_names")]
    pub ingress_classes: Vec<String>,
    /// Hosts that their Ingresses may claim: `shop.example.com`; `*.example.com` for all hosts
    /// below it; `*` for all hosts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::host_patterns")]
    pub ingress_hosts: Vec<String>,
    /// Full names of the annotations that their Ingresses keep. Annotations that set a class are
    /// never kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ingress_annotations: Vec<String>,
    /// Classes that their Services of type `LoadBalancer` may have here. The empty name is the
    /// cluster's default load balancer. A Service that requests none of these gets the first. If
    /// the list is empty, such Services have type `ClusterIP` here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::class_names")]
    pub load_balancer_classes: Vec<String>,
    /// Maximum number of Services of one peer that get a load balancer.
    #[schemars(range(max = 1000))]
    pub max_load_balancers: u16,
    /// Maximum number of namespaces of one peer here. Those that exist stay.
    #[schemars(range(max = 1000))]
    pub max_namespaces: u16,
    /// Maximum number of Services of one peer here, in all its namespaces.
    #[schemars(range(max = 10_000))]
    pub max_services: u16,
    /// Maximum number of endpoints of these Services, each counted for every port.
    #[schemars(range(max = 1_000_000))]
    pub max_endpoints: u32,
    /// Allowed ingress sources: who else may reach their pods, unless one of their
    /// `NetworkPolicies` forbids it. Each is a namespace here, such as that of an ingress
    /// controller, or an address range, such as that of load balancers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::ingress_sources")]
    pub allowed_ingress_sources: Vec<String>,
    /// The Pod Security standard that their namespaces here enforce.
    pub pod_security: PodSecurity,
    /// Name of the `RuntimeClass` that their pods get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// Name of the `PriorityClass` that their pods get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Types of volumes that their pods may have. If absent, all types that can travel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_types: Option<Vec<String>>,
    /// Tolerations that their pods keep; the provider drops all others. Each must name a taint that
    /// is not Liqo's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::tolerations")]
    pub tolerations: Vec<Toleration>,
    /// Names that their namespaces may have here in addition to the default names. A `*` at the end
    /// matches everything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespace_names: Vec<String>,
    /// Kinds of their objects that are reflected here.
    pub reflected_kinds: Vec<ReflectedKind>,
    /// Whether their pods may use the API server here, if they request it. They act as the
    /// `ServiceAccount` `default` of their namespace.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub api_server: bool,
    /// Which amounts of their pods are charged to their offers.
    pub charge: Charge,
    /// Limits of memory and of ephemeral storage for containers that have none, in percent of what
    /// they request. With 0 they get none.
    #[schemars(range(max = 100_000))]
    pub default_limit_percentage: u32,
    /// Labels with a domain that their pods keep here, in addition to those of Kubernetes'
    /// controllers. A `*` at the end matches everything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub pod_labels: Vec<String>,
    /// Annotations that their pods keep here. A `*` at the end matches everything. Annotations may
    /// ask the node, the network and the controllers here for something.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub pod_annotations: Vec<String>,
    /// How the names of the images begin that their pods may use: a registry, or a path in it, as
    /// in `docker.io/library`. If absent, all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub images: Option<Vec<String>>,
    /// Whether a node asks the registry for every image that one of their pods starts with. If
    /// false, a pod may start with an image that is on the node already, although its owner has no
    /// right to pull it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub always_pull_images: bool,
    /// What containers get that do not choose it themselves.
    #[serde(skip_serializing_if = "Hardening::is_runtime_default")]
    pub hardening: Hardening,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            storage_classes: Vec::new(),
            ingress_classes: Vec::new(),
            ingress_hosts: Vec::new(),
            ingress_annotations: Vec::new(),
            load_balancer_classes: Vec::new(),
            max_load_balancers: 10,
            max_namespaces: 50,
            max_services: 1000,
            max_endpoints: 50_000,
            allowed_ingress_sources: Vec::new(),
            pod_security: PodSecurity::default(),
            runtime_class_name: None,
            priority_class_name: None,
            volume_types: None,
            tolerations: Vec::new(),
            namespace_names: Vec::new(),
            reflected_kinds: vec![
                ReflectedKind::ConfigMap,
                ReflectedKind::Secret,
                ReflectedKind::Service,
                ReflectedKind::PodDisruptionBudget,
            ],
            api_server: false,
            charge: Charge::default(),
            default_limit_percentage: 800,
            pod_labels: Vec::new(),
            pod_annotations: Vec::new(),
            images: None,
            always_pull_images: false,
            hardening: Hardening::default(),
        }
    }
}

impl Usage {
    /// Whether all fields have their defaults.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The tolerations that name a taint of others. The API server accepts only these, but older
    /// policies may contain others: with a toleration that names no taint, a pod could run on a
    /// virtual node.
    pub fn named_tolerations(&self) -> impl Iterator<Item = &Toleration> {
        self.tolerations.iter().filter(|one| {
            let key = one.key.as_deref();
            key.is_some_and(|key| !key.is_empty() && !is_own(key))
        })
    }
}

/// A Pod Security standard.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum PodSecurity {
    /// No known privilege escalations.
    #[default]
    Baseline,
    /// Current best practices for hardening.
    Restricted,
}

/// Which amounts of a pod are charged to an offer.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Charge {
    /// Its requests.
    #[default]
    Requests,
    /// For each resource its limit, or its request if that is larger. The provider refuses a pod
    /// with a container that has no limit of cpu or memory.
    Limits,
}

/// What containers get that do not choose it themselves.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hardening {
    /// The runtime's seccomp profile, and no raw sockets (the capability `NET_RAW`).
    #[default]
    RuntimeDefault,
    /// What the nodes give to every container.
    None,
}

impl Hardening {
    #[allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde calls it with a reference"
    )]
    fn is_runtime_default(&self) -> bool {
        *self == Self::RuntimeDefault
    }
}

/// A kind that can be reflected.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReflectedKind {
    /// `ConfigMap`s to which pods refer.
    ConfigMap,
    /// Secrets to which pods refer.
    Secret,
    /// Services of offloaded namespaces, with their endpoints, if there is a network between the
    /// clusters.
    Service,
    /// `PodDisruptionBudget`s of offloaded namespaces: drains of nodes here wait for what they
    /// allow, at most for the notice.
    PodDisruptionBudget,
}

/// What this cluster accepts from peers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Consume {
    /// Whether this cluster borrows from every peer of the policy whose `ForeignCluster` has
    /// `outgoingPeering: Auto` and a URL.
    pub automatic: bool,
    /// Who decides on an offer of a peer.
    pub accept: Accept,
    /// Maximum number of offers of one peer that this cluster accepts. Each becomes a virtual node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 16))]
    pub max_offers: Option<u8>,
    /// Maximum amount of each resource that this cluster accepts from one peer, in all its offers
    /// together. A larger offer is accepted in part.
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub max_resources: ResourceList,
    /// The highest price of each resource that this cluster accepts, and the only currency. An
    /// offer with a higher price waits. A virtual node whose price rises above keeps its pods and
    /// gets no new ones. In an offer without a contract, a resource without a limit may have any
    /// price. A contract with such a price waits for a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_prices: Option<PriceList>,
    /// How much the pods at all peers together may cost to which this policy applies. If it is
    /// spent, their virtual nodes keep their pods and get no new ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Labels with a domain that the virtual nodes of one peer take over from its offers, in
    /// addition to architecture, operating system, region and zone. A `*` at the end matches
    /// everything. They may draw pods that select nodes by them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub node_labels: Vec<String>,
    /// Which contracts of one peer this cluster signs.
    #[serde(skip_serializing_if = "ConsumeContract::is_default")]
    pub contract: ConsumeContract,
    /// How many clusters an offer may come through, with the provider itself: with 1, only what the
    /// provider owns.
    #[schemars(range(min = 1, max = 8))]
    pub max_hops: u8,
}

impl Default for Consume {
    fn default() -> Self {
        Self {
            automatic: false,
            accept: Accept::default(),
            max_offers: None,
            max_resources: ResourceList::default(),
            max_prices: None,
            node_labels: Vec::new(),
            contract: ConsumeContract::default(),
            budget: None,
            max_hops: 3,
        }
    }
}

/// Who decides on an offer.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accept {
    /// Nobody: it is accepted, within the limits.
    #[default]
    Automatic,
    /// A person, with `liqoctl offer accept` or `offers` in the `ForeignCluster`.
    Manual,
    /// Nobody: it is refused.
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tolerations_of_named_taints_of_others_count() {
        let keys = [
            "gpu",
            "",
            "example.com/liqo.io",
            "virtual-node.liqo.io/not-allowed",
            "liqo.io/x",
            "notliqo.io/x",
        ];
        let toleration = |key: &str| Toleration {
            key: Some(key.to_owned()),
            ..Toleration::default()
        };
        let mut usage = Usage {
            tolerations: keys.map(toleration).to_vec(),
            ..Usage::default()
        };
        usage.tolerations.push(Toleration {
            operator: Some("Exists".to_owned()),
            ..Toleration::default()
        });
        let counts: Vec<_> = usage
            .named_tolerations()
            .filter_map(|one| one.key.as_deref())
            .collect();
        assert_eq!(counts, ["gpu", "example.com/liqo.io", "notliqo.io/x"]);
    }
}

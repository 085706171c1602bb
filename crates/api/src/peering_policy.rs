use k8s_openapi::{api::core::v1::Toleration, apimachinery::pkg::apis::meta::v1::LabelSelector};
use kube::{CustomResource, KubeSchema};
use liqo_quantity::ResourceList;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClusterId, Condition, is_own, schema};

/// With whom this cluster shares, what and how much, and what it accepts from them. Of the policies that select a peer, the
/// one with the highest priority holds, and of equals the first by name. No policy, no sharing.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "sharing.liqo.io",
    version = "v1alpha1",
    kind = "PeeringPolicy",
    plural = "peeringpolicies",
    shortname = "pp",
    category = "liqo",
    status = "PeeringPolicyStatus",
    doc = "With whom this cluster shares, and how much",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.priority"),
    printcolumn(name = "Percentage", type_ = "integer", json_path = ".spec.provide.percentage"),
    printcolumn(name = "Plugin", type_ = "string", json_path = ".spec.provide.source.plugin.address"),
    printcolumn(name = "Accept", type_ = "string", json_path = ".spec.consume.accept"),
    printcolumn(name = "Peers", type_ = "integer", json_path = ".status.peers"),
    printcolumn(name = "Honoured", type_ = "string", json_path = ".status.conditions[?(@.type==\"Honoured\")].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct PeeringPolicySpec {
    /// The highest one counts where several policies select a peer.
    #[serde(default)]
    pub priority: i32,
    /// Which peers; everybody when absent.
    #[serde(default, skip_serializing_if = "PeerSelector::is_everybody")]
    pub peers: PeerSelector,
    /// What is provided to each of them.
    #[serde(default)]
    pub provide: Provide,
    /// What is accepted from each of them.
    #[serde(default)]
    pub consume: Consume,
    /// What packets flow between each of them and us.
    #[serde(default, skip_serializing_if = "NetworkPolicy::is_default")]
    pub network: NetworkPolicy,
}

/// What packets flow between a peer and us.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkPolicy {
    /// Whether any do.
    pub enabled: bool,
    /// Which of our addresses the peer may open connections to.
    pub reach: Reach,
    /// Whether the peer reaches our other peers of such policies through us, and they the peer.
    pub transit: bool,
    /// Whether pods of ours that run at the peer may reach our API server, with tokens of their `ServiceAccounts`. With such a token
    /// the peer can do what the pod can.
    pub api_server: bool,
}

impl Default for NetworkPolicy {
    fn default() -> Self {
        Self { enabled: true, reach: Reach::default(), transit: false, api_server: true }
    }
}

impl NetworkPolicy {
    /// Whether nothing was set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Which of our addresses a peer may open connections to.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Pods that it offloaded to us, and pods behind the Services that are reflected to it.
    #[default]
    Offloaded,
    /// All pods.
    Pods,
}

/// What comes of a policy. It changes with the offers and with what is promised, not with each pod.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PeeringPolicyStatus {
    /// For so many known peers it holds.
    #[serde(default)]
    pub peers: u32,
    /// The sum of what they are offered.
    #[serde(default)]
    pub offered: ResourceList,
    /// `Active`: it holds for a peer. `Honoured`: nobody uses more than it may be promised.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Condition of a [`PeeringPolicy`]: it holds for at least one peer.
pub const ACTIVE: &str = "Active";
/// Condition of a [`PeeringPolicy`]: what its peers use can be promised, and nothing is being taken back from them.
pub const HONOURED: &str = "Honoured";

/// Which peers. A peer must fit every field that is given.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PeerSelector {
    /// One of these clusters.
    #[serde(rename = "clusterIDs", default, skip_serializing_if = "Vec::is_empty")]
    pub cluster_ids: Vec<ClusterId>,
    /// One whose `ForeignCluster` has one of these names, if somebody here made that object. One that Liqo made when a consumer
    /// came is called what the consumer calls itself, and does not count as long as it bears the label `liqo.io/managed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// One whose `ForeignCluster` has these labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// One that was found in one of these ways.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub discovered_by: Vec<Discovery>,
}

impl PeerSelector {
    /// Whether every peer fits.
    pub fn is_everybody(&self) -> bool {
        *self == Self::default()
    }
}

/// How a peer was found.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discovery {
    /// By hand: `liqoctl peer`, or the peer came by itself with a token.
    #[default]
    Manual,
    /// On the local network.
    LAN,
    /// In a DNS domain.
    DNS,
}

/// What is provided.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Provide {
    /// Share of what is free that is offered to all peers of this policy together, in percent. Not for plugins and fixed amounts.
    #[schemars(range(max = 100))]
    pub percentage: u8,
    /// Where the amounts come from; the free resources of all local nodes when absent.
    #[serde(skip_serializing_if = "Source::is_local")]
    pub source: Source,
    /// At most this much of each resource named for each peer. `nvidia.com/gpu: "0"` offers none.
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub caps: ResourceList,
    /// Share of each peer of this policy relative to those of other peers.
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u16,
    /// So much more than what is free may be promised, in percent: 100 is exactly what is free.
    #[schemars(range(min = 100, max = 1000))]
    pub overcommit_percentage: u16,
    /// Into how many pools, and so virtual nodes, an offer is divided.
    #[serde(skip_serializing_if = "Granularity::is_cluster")]
    pub granularity: Granularity,
    /// An offer is rewritten only when a resource differs by more than this, in percent; 5 when absent, 0 with a plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 100))]
    pub offer_update_threshold_percentage: Option<u8>,
    /// Seconds between the notice that something is taken back and the end of the pods that use it.
    #[schemars(range(max = 604_800))]
    pub notice_seconds: u32,
    /// Who decides whether a peer may borrow.
    pub approval: Approval,
    /// What the peers' pods may use.
    #[serde(skip_serializing_if = "Usage::is_default")]
    pub usage: Usage,
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
            approval: Approval::default(),
            usage: Usage::default(),
        }
    }
}

impl Provide {
    /// By how much, in percent, an offer must be off to be rewritten.
    pub fn threshold(&self) -> u8 {
        self.offer_update_threshold_percentage.unwrap_or(if self.source.plugin.is_some() { 0 } else { 5 })
    }
}

/// Where the amounts come from: one of these, or the free resources of all local nodes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(validation = kube::core::Rule::new("[has(self.fixed), has(self.nodes), has(self.plugin)].filter(given, given).size() <= 1").message("a source is either fixed, nodes or plugin"))]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// These amounts for each peer, as far as the cluster has them free; they come before shares in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<FixedSource>,
    /// The free resources of some of the local nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodesSource>,
    /// What a resource plugin says, to the letter: it is not compared with what is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<PluginSource>,
}

impl Source {
    /// Whether all local nodes are the source.
    pub fn is_local(&self) -> bool {
        *self == Self::default()
    }
}

/// Fixed amounts.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FixedSource {
    /// How much each peer is offered.
    pub resources: ResourceList,
}

/// Some of the local nodes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodesSource {
    /// A node belongs to them if it fits one of these.
    #[schemars(length(min = 1))]
    pub selectors: Vec<LabelSelector>,
}

/// A resource plugin.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PluginSource {
    /// Its address, `host:port`.
    #[schemars(regex(pattern = r"^[^\s/:]+:[0-9]{1,5}$"))]
    pub address: String,
    /// The generation of the protocol that it speaks; the wire does not tell.
    #[serde(default)]
    pub generation: PluginGeneration,
    /// How it is called by TLS; in plain text when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<PluginTls>,
}

/// Generations of the plugins' protocol.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PluginGeneration {
    /// Plugins made for Liqo 0.5.
    P1,
    /// Plugins made for Liqo 0.6 to 0.8.
    P2,
    /// Plugins made for Liqo 0.9 and later.
    #[default]
    P3,
}

/// TLS towards a plugin.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PluginTls {
    /// Secret in Liqo's namespace: `ca.crt`, and for a plugin that wants to know its caller `tls.crt` and `tls.key`.
    pub secret_name: String,
    /// The name that the plugin's certificate is for; the host of the address when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
}

/// How an offer is divided into pools.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(validation = kube::core::Rule::new("(self.by == 'NodeLabel') == has(self.label)").message("granularity by NodeLabel needs a label, and no other does"))]
#[serde(rename_all = "camelCase")]
pub struct Granularity {
    /// What makes a pool.
    #[serde(default)]
    pub by: PoolBy,
    /// The label whose value names the pool of a node, where `by` is `NodeLabel`; nodes without it are not offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

impl Granularity {
    /// Whether everything is one pool.
    pub fn is_cluster(&self) -> bool {
        *self == Self::default()
    }
}

/// What makes a pool.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolBy {
    /// Everything is one pool.
    #[default]
    Cluster,
    /// The nodes that have the same value of a label.
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
    /// A person, by `incomingPeering: Yes` in the `ForeignCluster`.
    Manual,
}

/// What the pods of a peer may use. Class lists travel with the offer.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// Names of storage classes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub storage_classes: Vec<String>,
    /// `IngressClass`es that their Ingresses may have here; the empty name stands for the cluster's default class. One that asks for
    /// none of these gets the first. No Ingress is reflected while none is named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::class_names")]
    pub ingress_classes: Vec<String>,
    /// Hosts that their Ingresses may claim: `shop.example.com`, `*.example.com` with all that is below it, `*` for anything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::host_patterns")]
    pub ingress_hosts: Vec<String>,
    /// Annotations that their Ingresses keep, by their whole names. Never those that name a class.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ingress_annotations: Vec<String>,
    /// Classes that their Services of type `LoadBalancer` may have here; the empty name stands for the cluster's usual load balancer.
    /// One that asks for none of these gets the first. While none is named, such a Service is of type `ClusterIP` here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::class_names")]
    pub load_balancer_classes: Vec<String>,
    /// So many of the Services of one peer get a load balancer.
    #[schemars(range(max = 1000))]
    pub max_load_balancers: u16,
    /// Who reaches their pods beside these themselves, where no policy of theirs says otherwise: the pods of a namespace here, such as that
    /// of an ingress controller, or a range of addresses, such as that of load balancers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::entrances")]
    pub entrances: Vec<String>,
    /// The Pod Security standard that is enforced on their pods.
    pub pod_security: PodSecurity,
    /// `RuntimeClass` that their pods get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// `PriorityClass` that their pods get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Kinds of volumes that their pods may have, of those that can travel; all of these when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_types: Option<Vec<String>>,
    /// Tolerations that their pods keep; others are dropped. Each names a taint, and none of Liqo's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::tolerations")]
    pub tolerations: Vec<Toleration>,
    /// Names that their namespaces may have here beside the default ones; `*` at the end stands for anything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespace_names: Vec<String>,
    /// Kinds of objects that may be reflected here.
    pub reflected_kinds: Vec<ReflectedKind>,
    /// Whether their pods may use the API server here, as the `ServiceAccount` `default` of their namespace, if they ask for it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub api_server: bool,
    /// What of their pods is charged to what they were offered.
    pub charge: Charge,
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
            entrances: Vec::new(),
            pod_security: PodSecurity::default(),
            runtime_class_name: None,
            priority_class_name: None,
            volume_types: None,
            tolerations: Vec::new(),
            namespace_names: Vec::new(),
            reflected_kinds: vec![ReflectedKind::ConfigMap, ReflectedKind::Secret, ReflectedKind::Service],
            api_server: false,
            charge: Charge::default(),
        }
    }
}

impl Usage {
    /// Whether it says nothing beyond the default.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The tolerations that count: the API server accepts no others, but an older policy may have them. With one that names no
    /// taint a pod could land on a virtual node.
    pub fn named_tolerations(&self) -> impl Iterator<Item = &Toleration> {
        let counts = |key: &str| !key.is_empty() && !is_own(key);
        self.tolerations.iter().filter(move |one| one.key.as_deref().is_some_and(counts))
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

/// What of a pod is charged to an offer.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Charge {
    /// What it requests.
    #[default]
    Requests,
    /// What it may use at most: of each resource its limits, or its requests where these are larger. A pod of which a
    /// container has no limit of cpu or memory is refused.
    Limits,
}

/// A kind that can be reflected.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReflectedKind {
    /// `ConfigMap`s that pods name.
    ConfigMap,
    /// Secrets that pods name.
    Secret,
    /// Services of offloaded namespaces, with their endpoints, while there is a network between the clusters.
    Service,
}

/// What is accepted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Consume {
    /// Who decides on an offer of a peer.
    pub accept: Accept,
    /// At most so many offers of one peer are accepted; each becomes a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 16))]
    pub max_offers: Option<u8>,
    /// At most this much of each resource named is accepted from one peer, all its offers together. A larger offer is
    /// accepted in part.
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub max_resources: ResourceList,
}

/// Who decides on an offer.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accept {
    /// It is accepted, within the limits.
    #[default]
    Automatic,
    /// A person, by `liqoctl offer accept` or `offers` in the `ForeignCluster`.
    Manual,
    /// It is refused.
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tolerations_of_named_taints_of_others_count() {
        let keys = ["gpu", "", "example.com/liqo.io", "virtual-node.liqo.io/not-allowed", "liqo.io/x", "notliqo.io/x"];
        let toleration = |key: &str| Toleration { key: Some(key.to_owned()), ..Toleration::default() };
        let mut usage = Usage { tolerations: keys.map(toleration).to_vec(), ..Usage::default() };
        usage.tolerations.push(Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() });
        let counts: Vec<_> = usage.named_tolerations().filter_map(|one| one.key.as_deref()).collect();
        assert_eq!(counts, ["gpu", "example.com/liqo.io", "notliqo.io/x"]);
    }
}

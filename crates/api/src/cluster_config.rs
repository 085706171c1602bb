use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use ipnet::{IpNet, Ipv4Net};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClusterId, Condition, Time, schema};

/// What this cluster is called, how others reach it, and how Liqo behaves in it. There is one, named `liqo`; it is read live.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "config.liqo.io",
    version = "v1alpha1",
    kind = "ClusterConfig",
    plural = "clusterconfigs",
    shortname = "lcc",
    category = "liqo",
    status = "ClusterConfigStatus",
    doc = "Configuration of Liqo in this cluster; the only one is named liqo",
    derive = "Default",
    derive = "PartialEq",
    validation = kube::core::Rule::new("self.metadata.name == 'liqo'").message("the only ClusterConfig is named liqo"),
    printcolumn(name = "Name", type_ = "string", json_path = ".spec.clusterName"),
    printcolumn(name = "Cluster ID", type_ = "string", json_path = ".status.clusterID"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConfigSpec {
    /// Friendly name of this cluster, shown to its peers: a DNS label.
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"))]
    pub cluster_name: String,
    /// Labels of this cluster, put on the virtual nodes that its peers make of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cluster_labels: BTreeMap<String, String>,
    /// How peers reach the API server.
    #[serde(default)]
    pub api_server: ApiServerAddress,
    /// How peers reach the auth endpoint.
    #[serde(default)]
    pub authentication: AuthenticationAddress,
    /// Life of peerings.
    #[serde(default)]
    pub peering: PeeringTimes,
    /// Behaviour of offloading.
    #[serde(default)]
    pub offloading: OffloadingBehaviour,
    /// The network to other clusters.
    #[serde(default)]
    pub network: NetworkSettings,
}

/// The network to other clusters.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkSettings {
    /// Whether there is one.
    pub enabled: bool,
    /// Prefixes of this cluster's pods; found out when absent.
    #[serde(rename = "podCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::prefixes")]
    pub pod_cidrs: Vec<IpNet>,
    /// Prefixes of this cluster's Services; found out when absent.
    #[serde(rename = "serviceCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::prefixes")]
    pub service_cidrs: Vec<IpNet>,
    /// Prefixes, one of a family at most, that stand for nodes and other single addresses at peers.
    #[serde(rename = "externalCIDRs")]
    #[schemars(schema_with = "schema::prefixes")]
    pub external_cidrs: Vec<IpNet>,
    /// What else is in use around this cluster: no peer appears there.
    #[serde(rename = "reservedCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::prefixes")]
    pub reserved_cidrs: Vec<IpNet>,
    /// Where peers appear.
    #[serde(rename = "peerCIDRs")]
    #[schemars(schema_with = "schema::prefixes")]
    pub peer_cidrs: Vec<IpNet>,
    /// What a packet may measure inside tunnels. To be lowered where the way between clusters takes less than 1500 bytes.
    #[schemars(range(min = 1280, max = 8900))]
    pub mtu: u16,
    /// Whether peers may come to the auth endpoint and the API server through the tunnel, so that its port is all that they need to
    /// reach.
    pub api_through_tunnel: bool,
    /// Where tunnels end.
    pub gateways: Gateways,
}

impl Default for NetworkSettings {
    fn default() -> Self {
        let prefix = |a, b, length| Ipv4Net::new(Ipv4Addr::new(a, b, 0, 0), length).map(IpNet::from);
        Self {
            enabled: true,
            pod_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            external_cidrs: prefix(10, 70, 24).into_iter().collect(),
            reserved_cidrs: Vec::new(),
            // 10.64.0.0/10 and the addresses of carriers: less usual than the ends of 10.0.0.0/8.
            peer_cidrs: [prefix(10, 64, 10), prefix(100, 64, 10)].into_iter().flatten().collect(),
            mtu: 1420,
            api_through_tunnel: false,
            gateways: Gateways::default(),
        }
    }
}

/// Where tunnels end.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Gateways {
    /// So many nodes are gateways at the same time. All are in use, unless `addresses` are set: then one is, and the others stand by.
    #[schemars(range(min = 1, max = 7))]
    pub replicas: u8,
    /// UDP port of the tunnel on gateways.
    #[schemars(range(min = 1))]
    pub port: u16,
    /// Only nodes with these labels become gateways.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// TCP port on which gateways take connections over TLS from peers that UDP does not get through to; 0 for none.
    pub tls_port: u16,
    /// How peers reach the gateway, `address:port`: a load balancer, or a translated address. When absent, the addresses of the
    /// gateways' nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 300)))]
    pub addresses: Vec<String>,
    /// The same for TLS.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 300)))]
    pub tls_addresses: Vec<String>,
    /// Gateways whose keys were made before this moment make new ones, and no connection notices. `liqoctl renew gateway-keys` sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys_not_before: Option<Time>,
}

impl Default for Gateways {
    fn default() -> Self {
        Self {
            replicas: 2,
            port: 51840,
            node_selector: BTreeMap::new(),
            tls_port: 443,
            addresses: Vec::new(),
            tls_addresses: Vec::new(),
            keys_not_before: None,
        }
    }
}

/// How peers reach the API server. What is absent is found in `ConfigMap` `kube-public/cluster-info`, else taken from a control-plane node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ApiServerAddress {
    /// URL, such as `https://203.0.113.5:6443`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Certificates (PEM) that the API server's certificate is checked with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
}

/// How peers reach the auth endpoint. When absent, the address of Service `liqo-auth` is taken (load balancer, else node port).
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AuthenticationAddress {
    /// URL, such as `https://203.0.113.5:30443`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// Life of peerings.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct PeeringTimes {
    /// Seconds after which what is held for a silent consumer is given up.
    #[schemars(range(min = 60))]
    pub consumer_expiry_seconds: u32,
    /// Seconds after which a consumer that nobody approved is forgotten, where a policy wants approval by a person.
    #[schemars(range(min = 60))]
    pub approval_expiry_seconds: u32,
}

impl Default for PeeringTimes {
    fn default() -> Self {
        Self { consumer_expiry_seconds: 24 * 60 * 60, approval_expiry_seconds: 24 * 60 * 60 }
    }
}

/// Behaviour of offloading.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct OffloadingBehaviour {
    /// Seconds after which a refused pod that has a controller is deleted, so that its replacement may be scheduled elsewhere.
    #[schemars(range(min = 1))]
    pub refusal_timeout_seconds: u32,
}

impl Default for OffloadingBehaviour {
    fn default() -> Self {
        Self { refusal_timeout_seconds: 300 }
    }
}

/// What the manager found out about this cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConfigStatus {
    /// Identity of this cluster.
    #[serde(rename = "clusterID", default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<ClusterId>,
    /// Public key (base64) that the ID follows from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// Version of the manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// URL of the auth endpoint as peers should call it.
    #[serde(rename = "authURL", default, skip_serializing_if = "Option::is_none")]
    pub auth_url: Option<String>,
    /// URL of the API server that consumers are given.
    #[serde(rename = "apiServerURL", default, skip_serializing_if = "Option::is_none")]
    pub api_server_url: Option<String>,
    /// The ranges of this cluster, as they were set or found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkRanges>,
    /// `AddressesKnown`: whether peers can be told how to reach this cluster, and what to set if not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// The ranges of this cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkRanges {
    /// Of its pods.
    #[serde(rename = "podCIDRs", default)]
    #[schemars(schema_with = "schema::prefixes")]
    pub pods: Vec<IpNet>,
    /// Of its Services.
    #[serde(rename = "serviceCIDRs", default)]
    #[schemars(schema_with = "schema::prefixes")]
    pub services: Vec<IpNet>,
    /// For single addresses.
    #[serde(rename = "externalCIDRs", default)]
    #[schemars(schema_with = "schema::prefixes")]
    pub external: Vec<IpNet>,
    /// Its API servers, as far as they can be shown to peers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub api_servers: Vec<ApiServerEndpoint>,
}

/// An API server of this cluster, and what stands for it at peers. They reach it at port 443, as pods here reach the Service
/// `kubernetes`, and nothing else of that machine.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ApiServerEndpoint {
    /// Its own address.
    #[schemars(with = "String")]
    pub address: IpAddr,
    /// Its own port.
    pub port: u16,
    /// The address of the external prefix that stands for it.
    #[schemars(with = "String")]
    pub stand_in: IpAddr,
}

/// Condition of a [`ClusterConfig`]: peers can be told how to reach this cluster.
pub const ADDRESSES_KNOWN: &str = "AddressesKnown";

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use ipnet::{IpNet, Ipv4Net};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    ClusterId, Condition, TetheringSettings, TetheringState, TetheringStatus, Time, schema,
};

/// The configuration of Liqo in this cluster. There is only one, named `liqo`. Changes apply
/// without a restart.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "config.liqo.io",
    version = "v1alpha1",
    kind = "ClusterConfig",
    plural = "clusterconfigs",
    shortname = "lcc",
    category = "liqo",
    status = "ClusterConfigStatus",
    doc = "Configuration of Liqo in this cluster; the only object is named liqo",
    derive = "Default",
    derive = "PartialEq",
    validation = kube::core::Rule::new("self.metadata.name == 'liqo'").message("the only ClusterConfig is named liqo"),
    printcolumn(name = "Name", type_ = "string", json_path = ".spec.clusterName"),
    printcolumn(name = "Cluster ID", type_ = "string", json_path = ".status.clusterID"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".status.tethering.state"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConfigSpec {
    /// Friendly name of this cluster, which its peers show: a DNS label.
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"))]
    pub cluster_name: String,
    /// Labels of this cluster. Peers put the harmless ones on the virtual nodes that represent it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cluster_labels: BTreeMap<String, String>,
    /// How peers reach the API server.
    #[serde(default)]
    pub api_server: ApiServerAddress,
    /// How peers reach the auth endpoint.
    #[serde(default)]
    pub authentication: AuthenticationAddress,
    /// When peerings, credentials and requests for approval expire.
    #[serde(default)]
    pub peering: PeeringTimes,
    /// Settings of offloading.
    #[serde(default)]
    pub offloading: OffloadingBehaviour,
    /// Settings of the network to other clusters.
    #[serde(default)]
    pub network: NetworkSettings,
    /// How this cluster finds others, and is found by them. A `SearchDomain` finds clusters in a
    /// DNS domain.
    #[serde(default, skip_serializing_if = "DiscoverySettings::is_default")]
    pub discovery: DiscoverySettings,
    /// Settings of metering under contracts.
    #[serde(default, skip_serializing_if = "MeteringSettings::is_default")]
    pub metering: MeteringSettings,
    /// Whether a peer controls this cluster.
    #[serde(default, skip_serializing_if = "TetheringSettings::is_default")]
    pub tethering: TetheringSettings,
    /// Whether to lend although the pod network does not enforce `NetworkPolicies`: then nothing
    /// keeps pods of consumers away from other pods of this cluster, nor from each other. Condition
    /// `NetworkPoliciesEnforced` tells whether it does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lend_without_network_policies: bool,
}

/// Settings of metering under contracts.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct MeteringSettings {
    /// How many seconds the clocks of this cluster and of its providers may differ. A period is
    /// compared with the provider's receipt so much later.
    #[schemars(range(min = 1, max = 3600))]
    pub clock_tolerance_seconds: u32,
    /// Maximum number of receipts that are kept of each contract. The oldest are deleted first.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_receipts: u32,
    /// Days after which a receipt is deleted.
    #[schemars(range(min = 1, max = 4000))]
    pub receipt_days: u32,
}

impl Default for MeteringSettings {
    fn default() -> Self {
        Self {
            clock_tolerance_seconds: 300,
            max_receipts: 400,
            receipt_days: 400,
        }
    }
}

impl MeteringSettings {
    /// Whether all fields have their defaults.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How this cluster finds others, and is found by them.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct DiscoverySettings {
    /// Discovery on the local network, by multicast DNS.
    pub lan: LanDiscovery,
}

impl DiscoverySettings {
    /// Whether all fields have their defaults.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Discovery on the local network, by multicast DNS.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct LanDiscovery {
    /// Whether this cluster announces itself on the local network, and looks for others there.
    /// Discovery alone peers with nobody: a `PeeringPolicy` says with whom peerings start
    /// automatically.
    pub enabled: bool,
    /// Network interfaces of the nodes to use, such as `eth0`. If absent, all except those of pods,
    /// containers and tunnels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 15)))]
    pub interfaces: Vec<String>,
}

/// Settings of the network to other clusters.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkSettings {
    /// Whether this cluster connects to the networks of its peers.
    pub enabled: bool,
    /// Prefixes of this cluster's pods. If absent, Liqo detects them.
    #[serde(rename = "podCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::prefixes")]
    pub pod_cidrs: Vec<IpNet>,
    /// Prefixes of this cluster's Services. If absent, Liqo detects them.
    #[serde(rename = "serviceCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::prefixes")]
    pub service_cidrs: Vec<IpNet>,
    /// Prefixes from which nodes and other single addresses get the addresses under which peers see
    /// them: at most one of each family.
    #[serde(rename = "externalCIDRs")]
    #[schemars(schema_with = "schema::prefixes")]
    pub external_cidrs: Vec<IpNet>,
    /// Prefixes that are in use around this cluster. Liqo maps no peer there.
    #[serde(rename = "reservedCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::prefixes")]
    pub reserved_cidrs: Vec<IpNet>,
    /// Prefixes from which Liqo allocates the addresses under which this cluster sees its peers.
    #[serde(rename = "peerCIDRs")]
    #[schemars(schema_with = "schema::prefixes")]
    pub peer_cidrs: Vec<IpNet>,
    /// Maximum size of a packet inside tunnels, in bytes. Lower it if the path between the clusters
    /// carries less than 1500 bytes.
    #[schemars(range(min = 1280, max = 8900))]
    pub mtu: u16,
    /// Whether peers may call the auth endpoint and the API server through the tunnel. Then they
    /// need to reach only the tunnel's port.
    pub api_through_tunnel: bool,
    /// Settings of the gateways, where tunnels end.
    pub gateways: Gateways,
}

fn ipv4_prefix(first: u8, second: u8, length: u8) -> Option<IpNet> {
    let prefix = Ipv4Net::new(Ipv4Addr::new(first, second, 0, 0), length).ok()?;
    Some(prefix.into())
}

impl Default for NetworkSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            pod_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            external_cidrs: ipv4_prefix(10, 70, 24).into_iter().collect(),
            reserved_cidrs: Vec::new(),
            // 10.64.0.0/10 and the range for carrier-grade NAT: fewer networks use them than either
            // end of 10.0.0.0/8.
            peer_cidrs: [ipv4_prefix(10, 64, 10), ipv4_prefix(100, 64, 10)]
                .into_iter()
                .flatten()
                .collect(),
            mtu: 1420,
            api_through_tunnel: false,
            gateways: Gateways::default(),
        }
    }
}

/// Settings of the gateways, where tunnels end.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Gateways {
    /// Number of nodes that are gateways. All carry packets, unless `addresses` is set: then one
    /// does, and the others are on standby.
    #[schemars(range(min = 1, max = 7))]
    pub replicas: u8,
    /// UDP port on which gateways receive packets of tunnels.
    #[schemars(range(min = 1))]
    pub port: u16,
    /// Labels that a node must have to become a gateway.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// TCP port on which gateways accept tunnels over TLS from peers that UDP does not reach; 0 for
    /// none.
    pub tls_port: u16,
    /// Where peers send packets of tunnels, `address:port`: a load balancer, or a translated
    /// address. If absent, peers use the addresses of the gateways' nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 300)))]
    pub addresses: Vec<String>,
    /// Where peers open tunnels over TLS, `address:port`. If absent, peers use the addresses of the
    /// gateways' nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 300)))]
    pub tls_addresses: Vec<String>,
    /// A gateway whose key is older than this creates a new one. Connections continue.
    /// `liqoctl renew gateway-keys` sets this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys_not_before: Option<Time>,
}

impl Gateways {
    /// Whether a node with these labels may be a gateway.
    pub fn selects_node(&self, labels: &BTreeMap<String, String>) -> bool {
        self.node_selector
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
    }
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

/// How peers reach the API server. Liqo reads absent fields from the `ConfigMap`
/// `kube-public/cluster-info`, else from a control-plane node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ApiServerAddress {
    /// URL, such as `https://203.0.113.5:6443`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Certificates (PEM) of the authorities that issue the API server's certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
}

/// How peers reach the auth endpoint. If absent, Liqo uses the address of the Service `liqo-auth`
/// (load balancer, else node port).
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AuthenticationAddress {
    /// URL, such as `https://203.0.113.5:30443`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// When peerings, credentials and requests for approval expire.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct PeeringTimes {
    /// Seconds of silence after which this cluster ends the peering with a consumer and removes
    /// what it stores for it.
    #[schemars(range(min = 60))]
    pub consumer_expiry_seconds: u32,
    /// Seconds after which this cluster forgets a consumer that nobody approved, if a policy
    /// requires approval by a person.
    #[schemars(range(min = 60))]
    pub approval_expiry_seconds: u32,
    /// Lifetime in seconds of the credentials that this cluster issues to consumers. A consumer
    /// renews its credential after 60% of that. The API server may shorten it
    /// (`--service-account-max-token-expiration`).
    #[schemars(range(min = 600, max = 86_400))]
    pub credential_lifetime_seconds: u32,
}

impl PeeringTimes {
    /// Shortest lifetime of a credential in seconds: the API server issues no token for less.
    pub const MIN_CREDENTIAL_LIFETIME_SECONDS: u32 = 600;
    /// Longest lifetime of a credential in seconds.
    pub const MAX_CREDENTIAL_LIFETIME_SECONDS: u32 = 24 * 60 * 60;
}

impl Default for PeeringTimes {
    fn default() -> Self {
        Self {
            consumer_expiry_seconds: 24 * 60 * 60,
            approval_expiry_seconds: 24 * 60 * 60,
            credential_lifetime_seconds: 60 * 60,
        }
    }
}

/// Settings of offloading.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct OffloadingBehaviour {
    /// Seconds after which Liqo deletes a refused pod that has a controller, so that its
    /// replacement can run elsewhere.
    #[schemars(range(min = 1))]
    pub refusal_timeout_seconds: u32,
}

impl Default for OffloadingBehaviour {
    fn default() -> Self {
        Self {
            refusal_timeout_seconds: 300,
        }
    }
}

/// Facts about this cluster that the manager reports.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConfigStatus {
    /// ID of this cluster: a hash of its public key.
    #[serde(rename = "clusterID", default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<ClusterId>,
    /// Public key (base64) from which the ID is computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// Version of the manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// URL under which peers call the auth endpoint.
    #[serde(rename = "authURL", default, skip_serializing_if = "Option::is_none")]
    pub auth_url: Option<String>,
    /// URL of the API server that consumers get.
    #[serde(
        rename = "apiServerURL",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub api_server_url: Option<String>,
    /// Audiences of the tokens that this cluster's API server takes, as it said when it last issued
    /// one for a consumer. Consumers get tokens for no others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 1024)))]
    pub token_audiences: Vec<String>,
    /// The address ranges of this cluster, as configured or detected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkRanges>,
    /// The working mode. If absent, the cluster is autonomous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tethering: Option<TetheringStatus>,
    /// `AddressesKnown`: whether Liqo knows the addresses under which peers reach this cluster. The
    /// message says what to set if not. `NetworkPoliciesEnforced`: whether the pod network enforces
    /// `NetworkPolicies`. The message says whether this cluster lends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

impl ClusterConfig {
    /// The state of the working mode, and the peer that it is about. Without a peer a cluster is
    /// autonomous.
    pub fn tethering(&self) -> (TetheringState, Option<&ClusterId>) {
        let status = self
            .status
            .as_ref()
            .and_then(|status| status.tethering.as_ref());
        match status.map(|status| (status.state, status.cluster_id.as_ref())) {
            Some((state, Some(peer))) => (state, Some(peer)),
            _ => (TetheringState::Autonomous, None),
        }
    }

    /// Whether this cluster asks this peer to control it, or is controlled by it.
    pub fn tethers_to(&self, peer: &ClusterId) -> bool {
        let (state, to) = self.tethering();
        matches!(state, TetheringState::Tethering | TetheringState::Tethered) && to == Some(peer)
    }

    /// The peer that this cluster does not share its resources and its pods with anybody else for:
    /// in every state but Autonomous.
    pub fn exclusive_peer(&self) -> Option<&ClusterId> {
        let (state, peer) = self.tethering();
        peer.filter(|_| state != TetheringState::Autonomous)
    }
}

/// The address ranges of this cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkRanges {
    /// Prefixes of its pods.
    #[serde(rename = "podCIDRs", default)]
    #[schemars(schema_with = "schema::prefixes")]
    pub pods: Vec<IpNet>,
    /// Prefixes of its Services.
    #[serde(rename = "serviceCIDRs", default)]
    #[schemars(schema_with = "schema::prefixes")]
    pub services: Vec<IpNet>,
    /// Prefixes for nodes and other single addresses.
    #[serde(rename = "externalCIDRs", default)]
    #[schemars(schema_with = "schema::prefixes")]
    pub external: Vec<IpNet>,
    /// Its API servers to which the pods that run at peers can connect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub api_servers: Vec<ApiServerEndpoint>,
}

/// An API server of this cluster, and the address under which peers see it. They reach it at port
/// 443, as pods here reach the Service `kubernetes`. They reach no other port of that machine.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ApiServerEndpoint {
    /// Its address in this cluster.
    #[schemars(with = "String")]
    pub address: IpAddr,
    /// Its port at that address.
    pub port: u16,
    /// Its address in the external prefix, which peers translate.
    #[schemars(with = "String")]
    pub stand_in: IpAddr,
}

/// Condition of a [`ClusterConfig`]: Liqo knows the addresses under which peers reach this cluster.
pub const ADDRESSES_KNOWN: &str = "AddressesKnown";

/// Condition of a [`ClusterConfig`]: the pod network enforces `NetworkPolicies`, as the manager
/// found when it last tried.
pub const NETWORK_POLICIES_ENFORCED: &str = "NetworkPoliciesEnforced";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_state_without_a_peer_is_autonomous() {
        let config = |status: serde_json::Value| -> ClusterConfig {
            let status = json!({ "tethering": status });
            serde_json::from_value(json!({ "metadata": { "name": "liqo" }, "spec": { "clusterName": "rome" }, "status": status }))
                .unwrap()
        };
        let peer = ClusterId::of_public_key(&[1; 32]);
        let since = "2026-01-01T00:00:00Z";
        assert_eq!(
            config(json!({ "state": "Tethered", "since": since })).tethering(),
            (TetheringState::Autonomous, None)
        );
        let tethered = config(json!({ "state": "Tethered", "since": since, "clusterID": peer }));
        assert!(tethered.tethers_to(&peer) && tethered.exclusive_peer() == Some(&peer));
        let releasing = config(json!({ "state": "Releasing", "since": since, "clusterID": peer }));
        assert!(!releasing.tethers_to(&peer) && releasing.exclusive_peer() == Some(&peer));
        assert_eq!(
            config(json!({ "state": "Autonomous", "since": since, "clusterID": peer }))
                .exclusive_peer(),
            None
        );
    }
}

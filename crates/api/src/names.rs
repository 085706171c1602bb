//! Labels, annotations, finalizers, object names and condition types: every word that two parts of Liqo must spell alike.

use crate::ClusterId;

/// The namespace that Liqo runs in, unless it was installed elsewhere.
pub const SYSTEM_NAMESPACE: &str = "liqo";

/// The namespace of the program on each node, which is privileged.
pub const FABRIC_NAMESPACE: &str = "liqo-fabric";

/// Name of the one [`crate::ClusterConfig`].
pub const CLUSTER_CONFIG: &str = "liqo";

/// Name of the one [`crate::NamespaceOffloading`] of a namespace.
pub const NAMESPACE_OFFLOADING: &str = "offloading";

/// Name of the one [`crate::NamespaceMap`] of a tenant namespace.
pub const NAMESPACE_MAP: &str = "namespaces";

/// Name of the one [`crate::ResourceRequest`] of a tenant namespace.
pub const RESOURCE_REQUEST: &str = "request";

/// Name of the one [`crate::NetworkConfig`] of a tenant namespace.
pub const NETWORK_CONFIG: &str = "network";

/// Name of the `ConfigMap` (in Liqo's namespace) with the keys of those who may come through the tunnel to the auth endpoint and the
/// API server: public key in hexadecimal, and one of [`guests`].
pub const TUNNEL_GUESTS: &str = "liqo-tunnel-guests";

/// What who comes through the tunnel may reach.
pub mod guests {
    /// The auth endpoint.
    pub const AUTH: &str = "Auth";
    /// The API server as well.
    pub const ALL: &str = "All";
}

/// Name of the Lease (in Liqo's namespace) that the gateway with this number holds; number 0 is in use before number 1.
pub fn gateway_lease(number: u8) -> String {
    format!("liqo-gateway-{number}")
}

/// Name of the pool when a provider offers everything as one.
pub const DEFAULT_POOL: &str = "default";

/// The namespace on the provider that belongs to one consumer.
pub fn tenant_namespace(consumer: &ClusterId) -> String {
    format!("liqo-tenant-{consumer}")
}

/// The namespace on the consumer that holds what concerns one provider.
pub fn provider_namespace(provider: &ClusterId) -> String {
    format!("liqo-provider-{provider}")
}

/// Whether pods of this namespace may run in other clusters at all: not those of Kubernetes itself, nor Liqo's own, which
/// runs in `system` and in [`FABRIC_NAMESPACE`].
pub fn may_be_offloaded(namespace: &str, system: &str) -> bool {
    ![system, FABRIC_NAMESPACE].contains(&namespace)
        && !["kube-", "liqo-tenant-", "liqo-provider-"].iter().any(|prefix| namespace.starts_with(prefix))
}

/// The `ServiceAccount` (in the system namespace of the provider) that a consumer acts as.
pub fn consumer_service_account(consumer: &ClusterId) -> String {
    format!("liqo-consumer-{consumer}")
}

/// The two leases in every tenant namespace.
pub mod leases {
    /// Renewed by the provider: it is alive and serves this tenant.
    pub const PROVIDER: &str = "provider";
    /// Renewed by the consumer: it still wants what it was given.
    pub const CONSUMER: &str = "consumer";
}

/// Fixed `ClusterRole`s that `liqoctl install` creates; the manager only binds them.
pub mod roles {
    /// What a consumer may do in its tenant namespace.
    pub const TENANT: &str = "liqo-tenant";
    /// What a consumer may do in its mapped namespaces.
    pub const TENANT_POD_ACCESS: &str = "liqo-tenant-pod-access";
    /// What the manager may do with `ConfigMaps` and Secrets of a namespace that its users offload.
    pub const OFFLOADED_NAMESPACE: &str = "liqo-offloaded-namespace";
    /// What the manager may do in namespaces that it made itself (tenant, provider and mapped ones).
    pub const OWN_NAMESPACE: &str = "liqo-own-namespace";
}

/// Whether the key of a label, an annotation or a taint is of Liqo's own domain.
pub fn is_own(key: &str) -> bool {
    key.split_once('/')
        .and_then(|(domain, _)| domain.strip_suffix(labels::DOMAIN))
        .is_some_and(|above| above.is_empty() || above.ends_with('.'))
}

/// Labels.
pub mod labels {
    /// On every object that Liqo made: `true`. The sweep and `liqoctl uninstall` go by it.
    pub const MANAGED: &str = "liqo.io/managed";
    /// On namespaces that Liqo made: `tenant`, `provider` or `mapped`.
    pub const NAMESPACE_KIND: &str = "liqo.io/namespace-kind";
    /// ID of the consumer that an object on the provider belongs to.
    pub const CONSUMER_ID: &str = "liqo.io/consumer-id";
    /// ID of the provider that an object on the consumer belongs to.
    pub const PROVIDER_ID: &str = "liqo.io/provider-id";
    /// On remote pods: name of their shadow pod, which is the UID of the home pod.
    pub const SHADOW_POD: &str = "liqo.io/shadow-pod";
    /// On remote pods and shadow pods: the pool that they use.
    pub const POOL: &str = "liqo.io/pool";
    /// On nodes: `virtual-node`.
    pub const TYPE: &str = "liqo.io/type";
    /// Value of [`TYPE`].
    pub const TYPE_VIRTUAL_NODE: &str = "virtual-node";
    /// On virtual nodes: ID of the cluster behind them.
    pub const REMOTE_CLUSTER_ID: &str = "liqo.io/remote-cluster-id";
    /// On objects in a tenant or mapped namespace that stand for a consumer's object: the namespace at home.
    pub const HOME_NAMESPACE: &str = "liqo.io/home-namespace";
    /// On Secrets in a tenant namespace and on reflected twins: `true`.
    pub const REFLECTED: &str = "liqo.io/reflected";
    /// On Secrets that hold a peering token: `reusable` or `one-time`.
    pub const PEERING_TOKEN: &str = "liqo.io/peering-token";
    /// On a `ForeignCluster`: how the peer was found, `Manual`, `LAN` or `DNS`.
    pub const DISCOVERED_BY: &str = "liqo.io/discovered-by";
    /// On the leader's pod: `true`. The Services of what only the leader serves select by it.
    pub const LEADER: &str = "liqo.io/leader";
    /// On Leases of gateways: `true`.
    pub const GATEWAY: &str = "liqo.io/gateway";
    /// Everything with this prefix or below it is Liqo's own and never travels.
    pub const DOMAIN: &str = "liqo.io";
}

/// Annotations.
pub mod annotations {
    /// On a home pod: the address that its remote pod has at the provider, for people.
    pub const REMOTE_POD_IP: &str = "liqo.io/remote-pod-ip";
    /// On a home pod that may run only once, or that gets tokens, from before it is sent: UID of the `NamespaceMap` of the
    /// tenancy that it is sent to.
    pub const SENT_TO: &str = "liqo.io/sent-to";
    /// On a remote pod: which labels and annotations came with it, so that removed ones can be removed.
    pub const TRAVELLED: &str = "liqo.io/travelled";
    /// On a tenant namespace, and on the `ForeignCluster` of a consumer that waited for approval: the consumer's public key (base64).
    pub const PUBLIC_KEY: &str = "liqo.io/public-key";
    /// On a tenant namespace and others: the friendly name of the cluster.
    pub const CLUSTER_NAME: &str = "liqo.io/cluster-name";
    /// On the Lease of a gateway: its WireGuard key (base64).
    pub const GATEWAY_KEY: &str = "liqo.io/gateway-key";
    /// On the Lease of a gateway whose key was renewed: the first one that it had (base64), which its part of the flows follows from.
    pub const GATEWAY_FIRST_KEY: &str = "liqo.io/gateway-first-key";
    /// On the same, for a few minutes: the key before (base64).
    pub const GATEWAY_FORMER_KEY: &str = "liqo.io/gateway-former-key";
    /// On the Lease of a gateway: the TCP port on which it takes connections over TLS, while it does.
    pub const GATEWAY_TLS: &str = "liqo.io/gateway-tls";
    /// On the Lease of a gateway: which buckets of flows it carries, one bit for each (hexadecimal).
    pub const GATEWAY_BUCKETS: &str = "liqo.io/gateway-buckets";
    /// On a gateway's Lease: other gateways whose nodes do not answer it any more, such as `0@1234 2@1240`: the numbers of their Leases,
    /// and the versions that these had. A gateway that renews its Lease is there after all.
    pub const GATEWAY_UNHEARD: &str = "liqo.io/gateway-unheard";
    /// On a pod of an offloaded namespace: `home`, `remote` or `none`, whose API server it uses where it runs elsewhere.
    pub const API_SERVER: &str = "liqo.io/api-server";
    /// On the record of a token in a tenant namespace: when it is to be renewed (RFC 3339).
    pub const RENEW_AT: &str = "liqo.io/renew-at";
    /// On a Service, `EndpointSlice`, Ingress or `NetworkPolicy` of an offloaded namespace: `deny` keeps it, and the endpoints of a
    /// Service, from other clusters. On a Service or Ingress: `allow` lets it go where the namespace has an `AllowList`.
    pub const REFLECTION: &str = "liqo.io/reflection";
    /// On a Service of type `LoadBalancer` or an Ingress of an offloaded namespace: the class that it is to have in other clusters, or
    /// `none` where it is not to be shown to the world there. On its twin: the class that it was given.
    pub const REMOTE_CLASS: &str = "liqo.io/remote-class";
    /// On a token Secret: when it ends (RFC 3339).
    pub const EXPIRES_AT: &str = "liqo.io/expires-at";
    /// On a `ForeignCluster`: since when a consumer waits for somebody to approve it (RFC 3339).
    pub const PENDING_APPROVAL: &str = "liqo.io/pending-approval";
    /// On a reflected object or Secret: its name at home.
    pub const HOME_NAME: &str = "liqo.io/home-name";
    /// On a Secret in a tenant namespace, which has no status: why the provider has no twin of it, as reason and message.
    pub const NOT_REFLECTED: &str = "liqo.io/not-reflected";
}

/// Finalizers.
pub mod finalizers {
    /// On a `ForeignCluster`: the peering is to be ended first.
    pub const PEERING: &str = "liqo.io/peering";
    /// On a `VirtualNode`: its pods and Node are to go first.
    pub const VIRTUAL_NODE: &str = "liqo.io/virtual-node";
    /// On a `NamespaceOffloading`: pods and mapped namespaces are to go first.
    pub const NAMESPACE_OFFLOADING: &str = "liqo.io/namespace-offloading";
    /// On a remote pod that must not run twice: its final status is to be recorded first.
    pub const FINAL_STATUS: &str = "liqo.io/final-status";
    /// On a `ShadowPod`: its remote pod is to go first.
    pub const SHADOW_POD: &str = "liqo.io/shadow-pod";
    /// On a `ReflectedObject`: its twin is to go first.
    pub const REFLECTED_OBJECT: &str = "liqo.io/reflected-object";
}

/// The taint of virtual nodes and the conditions on pods and nodes.
pub mod pods {
    /// Key of the `NoExecute` taint of every virtual node; its value is `true`.
    pub const VIRTUAL_NODE_TAINT: &str = "virtual-node.liqo.io/not-allowed";
    /// Key of the `NoSchedule` taint of a virtual node whose peer does not answer.
    pub const UNREACHABLE_TAINT: &str = "virtual-node.liqo.io/peer-unreachable";
    /// Condition on a home pod: the provider took it (`True`) or did not, and why.
    pub const OFFLOADED: &str = "liqo.io/Offloaded";
    /// Reason of [`OFFLOADED`] where the provider took the pod, but not every object that it names.
    pub const NOT_REFLECTED: &str = "NotReflected";
    /// Reason of [`OFFLOADED`] and of an event: there is no way from the provider to this cluster's API server.
    pub const NO_API_SERVER: &str = "NoApiServer";
    /// Reason of [`OFFLOADED`] where the provider took the pod, and says that it has an address which it cannot have.
    pub const ADDRESS_REFUSED: &str = "AddressRefused";
    /// Condition on a home pod: the provider's scheduler found no place for it, in its own words.
    pub const REMOTE_SCHEDULED: &str = "liqo.io/RemoteScheduled";
    /// Condition on a virtual node: the provider answers.
    pub const PEER_REACHABLE: &str = "PeerReachable";
    /// Reason of a home pod that failed because its remote pod is gone and must not run again.
    pub const REMOTE_POD_LOST: &str = "RemotePodLost";
}

/// Condition types of a [`crate::ForeignCluster`]: the links of the chain, in order. Each has one writer.
pub mod links {
    /// peering: the auth endpoint answered and proved the cluster ID.
    pub const IDENTITY_VERIFIED: &str = "IdentityVerified";
    /// peering: the provider granted a credential, or why not.
    pub const AUTHENTICATED: &str = "Authenticated";
    /// peering: the provider's API server and manager answer.
    pub const PEER_REACHABLE: &str = "PeerReachable";
    /// sharing: our request stands at the provider.
    pub const RESOURCES_REQUESTED: &str = "ResourcesRequested";
    /// sharing: at least one offer was accepted.
    pub const OFFER_ACCEPTED: &str = "OfferAccepted";
    /// offloading: every virtual node of this provider is Ready.
    pub const VIRTUAL_NODES_READY: &str = "VirtualNodesReady";
    /// interconnect: both clusters know where they see each other.
    pub const NETWORK_AGREED: &str = "NetworkAgreed";
    /// interconnect: the gateways reach each other.
    pub const TUNNEL_CONNECTED: &str = "TunnelConnected";
    /// peering, provider side: this cluster may borrow from us.
    pub const CONSUMER_AUTHORIZED: &str = "ConsumerAuthorized";
    /// peering, provider side: the consumer renews its lease.
    pub const CONSUMER_REACHABLE: &str = "ConsumerReachable";
    /// sharing, provider side: something is offered to this cluster.
    pub const RESOURCES_OFFERED: &str = "ResourcesOffered";
    /// The links of borrowing, in order.
    pub const BORROWING: [&str; 6] =
        [IDENTITY_VERIFIED, AUTHENTICATED, PEER_REACHABLE, RESOURCES_REQUESTED, OFFER_ACCEPTED, VIRTUAL_NODES_READY];
    /// The links of lending, in order.
    pub const LENDING: [&str; 3] = [CONSUMER_AUTHORIZED, CONSUMER_REACHABLE, RESOURCES_OFFERED];
    /// The links of the network, in order.
    pub const NETWORK: [&str; 2] = [NETWORK_AGREED, TUNNEL_CONNECTED];
}

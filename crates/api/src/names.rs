//! Labels, annotations, finalizers, object names and condition types: all names that several parts
//! of Liqo use.

use crate::ClusterId;

/// The default namespace of Liqo.
pub const SYSTEM_NAMESPACE: &str = "liqo";

/// The namespace of `liqo-fabric`, the privileged process on each node.
pub const FABRIC_NAMESPACE: &str = "liqo-fabric";

/// Name of the manager's Deployment, `ServiceAccount` and leader election Lease, and the source of
/// its events.
pub const CONTROLLER_MANAGER: &str = "liqo-controller-manager";

/// Name of the resolver's Deployment, Service and `ServiceAccount`: DNS for remote pods.
pub const RESOLVER: &str = "liqo-dns";

/// The port at which pods of the resolver answer, over UDP and TCP. Its Service has the usual port
/// 53.
pub const RESOLVER_PORT: u16 = 1053;

/// The TCP port of the resolver's pods that a `NetworkPolicy` closes for everybody. They accept
/// connections there, so a connection shows that the pod network does not enforce
/// `NetworkPolicies`.
pub const CLOSED_PORT: u16 = 1054;

/// Name of the Service of the auth endpoint.
pub const AUTH_SERVICE: &str = "liqo-auth";

/// Name of the only [`crate::ClusterConfig`] of a cluster.
pub const CLUSTER_CONFIG: &str = "liqo";

/// Name of the only [`crate::NamespaceOffloading`] of a namespace.
pub const NAMESPACE_OFFLOADING: &str = "offloading";

/// Name of the only [`crate::NamespaceMap`] of a tenant namespace.
pub const NAMESPACE_MAP: &str = "namespaces";

/// Name of the only [`crate::ResourceRequest`] of a tenant namespace.
pub const RESOURCE_REQUEST: &str = "request";

/// Name of the only [`crate::NetworkConfig`] of a tenant namespace.
pub const NETWORK_CONFIG: &str = "network";

/// Name of the `ConfigMap` (in Liqo's namespace) that lists the tunnel clients: who may call this
/// cluster through the tunnel. Its data maps a public key in hexadecimal to one of the
/// [`tunnel_client_scopes`].
pub const TUNNEL_CLIENTS: &str = "liqo-tunnel-clients";

/// What a tunnel client may call.
pub mod tunnel_client_scopes {
    /// Only the auth endpoint.
    pub const AUTH: &str = "Auth";
    /// The auth endpoint and the API server.
    pub const ALL: &str = "All";
}

/// Name of the Lease (in Liqo's namespace) that the gateway with this number holds. The lowest
/// numbers are used first.
pub fn gateway_lease(number: u8) -> String {
    format!("liqo-gateway-{number}")
}

/// Name of the pool of a provider that offers everything as one pool.
pub const DEFAULT_POOL: &str = "default";

/// The namespace on the provider that belongs to one consumer.
pub fn tenant_namespace(consumer: &ClusterId) -> String {
    format!("liqo-tenant-{consumer}")
}

/// The consumer whose tenant namespace has this name.
pub fn consumer_of_tenant_namespace(namespace: &str) -> Option<ClusterId> {
    let consumer = namespace.rsplit('-').next()?.parse().ok()?;
    (tenant_namespace(&consumer) == namespace).then_some(consumer)
}

/// The namespace on the consumer that belongs to one provider.
pub fn provider_namespace(provider: &ClusterId) -> String {
    format!("liqo-provider-{provider}")
}

/// Whether pods of this namespace may run in other clusters: all namespaces except the one that
/// Liqo runs in (`system`) and those that every provider refuses.
pub fn may_be_offloaded(namespace: &str, system: &str) -> bool {
    namespace != system && !is_reserved(namespace)
}

/// Whether a cluster keeps namespaces of this name for itself: `default`, `kube-*`, `openshift-*`
/// and `liqo*`.
pub fn is_reserved(namespace: &str) -> bool {
    namespace == "default"
        || ["kube-", "openshift-", "liqo"]
            .iter()
            .any(|prefix| namespace.starts_with(prefix))
}

/// The `ServiceAccount` of a consumer, in Liqo's namespace on the provider.
pub fn consumer_service_account(consumer: &ClusterId) -> String {
    format!("{CONSUMER_SERVICE_ACCOUNTS}{consumer}")
}

/// What the names of all these `ServiceAccounts` begin with.
pub const CONSUMER_SERVICE_ACCOUNTS: &str = "liqo-consumer-";

/// The two leases in every tenant namespace.
pub mod leases {
    /// The provider renews it as long as it serves this tenant.
    pub const PROVIDER: &str = "provider";
    /// The consumer renews it as long as it uses what it got.
    pub const CONSUMER: &str = "consumer";
}

/// Fixed `ClusterRole`s that `liqoctl install` creates; the manager only binds them.
pub mod roles {
    /// What a consumer may do in its tenant namespace.
    pub const TENANT: &str = "liqo-tenant";
    /// What a consumer may do in its mapped namespaces.
    pub const TENANT_POD_ACCESS: &str = "liqo-tenant-pod-access";
    /// What the manager may do with `ConfigMaps` and Secrets of an offloaded namespace.
    pub const OFFLOADED_NAMESPACE: &str = "liqo-offloaded-namespace";
    /// What the manager may do in namespaces that it created (tenant, provider and mapped ones).
    pub const OWN_NAMESPACE: &str = "liqo-own-namespace";
}

/// Name of the `ConfigMap` in Liqo's namespace with the clusters that are announced on the local
/// network. Under the key [`CLUSTERS_KEY`] it has a list (JSON), which the node that listens
/// writes.
pub const LAN_CLUSTERS: &str = "liqo-lan-clusters";
/// Name of the `ConfigMap` in Liqo's namespace with the clusters that discovery finds now, in all
/// ways. The manager writes it.
pub const DISCOVERED_CLUSTERS: &str = "liqo-discovered-clusters";
/// Key of the list in [`LAN_CLUSTERS`] and [`DISCOVERED_CLUSTERS`].
pub const CLUSTERS_KEY: &str = "clusters";

/// Whether the key of a label, an annotation or a taint belongs to Liqo's domain.
pub fn is_own(key: &str) -> bool {
    key.split_once('/')
        .and_then(|(domain, _)| domain.strip_suffix(labels::DOMAIN))
        .is_some_and(|above| above.is_empty() || above.ends_with('.'))
}

/// Labels.
pub mod labels {
    /// On every object that Liqo created: `true`. The sweep and `liqoctl uninstall` select objects
    /// by it.
    pub const MANAGED: &str = "liqo.io/managed";
    /// On a `NamespaceOffloading` that the working mode created: `true`. It also has [`MANAGED`],
    /// as the `NamespaceOffloading` of a mapped namespace has.
    pub const TETHERED: &str = "liqo.io/tethered";
    /// On a namespace, set by its owner: `true` if its pods are to be offloaded from the first one
    /// on. A new one of these pods waits for the `NamespaceOffloading`.
    pub const SCHEDULING_ENABLED: &str = "liqo.io/scheduling-enabled";
    /// On namespaces that Liqo created: `tenant`, `provider` or `mapped`.
    pub const NAMESPACE_KIND: &str = "liqo.io/namespace-kind";
    /// Value of [`NAMESPACE_KIND`] on the namespace of a provider where it talks with a consumer.
    pub const KIND_TENANT: &str = "tenant";
    /// Value of [`NAMESPACE_KIND`] on the namespace of a consumer for a provider.
    pub const KIND_PROVIDER: &str = "provider";
    /// Value of [`NAMESPACE_KIND`] on the namespace of a provider for one of a consumer.
    pub const KIND_MAPPED: &str = "mapped";
    /// ID of the consumer that an object on the provider belongs to.
    pub const CONSUMER_ID: &str = "liqo.io/consumer-id";
    /// ID of the provider that an object on the consumer belongs to.
    pub const PROVIDER_ID: &str = "liqo.io/provider-id";
    /// On remote pods: name of the shadow pod, which is the UID of the local pod.
    pub const SHADOW_POD: &str = "liqo.io/shadow-pod";
    /// On remote pods and shadow pods: the pool that they use.
    pub const POOL: &str = "liqo.io/pool";
    /// On nodes: `virtual-node`.
    pub const TYPE: &str = "liqo.io/type";
    /// Value of [`TYPE`].
    pub const TYPE_VIRTUAL_NODE: &str = "virtual-node";
    /// On virtual nodes: ID of the cluster behind them.
    pub const REMOTE_CLUSTER_ID: &str = "liqo.io/remote-cluster-id";
    /// On objects in a tenant or mapped namespace that stand for a consumer's object: namespace of
    /// that object in the consumer cluster.
    pub const HOME_NAMESPACE: &str = "liqo.io/home-namespace";
    /// On Secrets in a tenant namespace and on replicas: `true`.
    pub const REFLECTED: &str = "liqo.io/reflected";
    /// On Secrets that contain a peering token: `reusable` or `one-time`.
    pub const PEERING_TOKEN: &str = "liqo.io/peering-token";
    /// On a `ForeignCluster`: how the peer was found, `Manual`, `LAN` or `DNS`.
    pub const DISCOVERED_BY: &str = "liqo.io/discovered-by";
    /// On the leader's pod: `true`. Services of which only the leader is an endpoint select by it.
    pub const LEADER: &str = "liqo.io/leader";
    /// On Leases of gateways: `true`.
    pub const GATEWAY: &str = "liqo.io/gateway";
    /// On virtual nodes: the price of a resource for one unit and hour, under the resource's name
    /// in this domain, as in `price.liqo.io/cpu`.
    pub const PRICE_DOMAIN: &str = "price.liqo.io";
    /// On virtual nodes: the currency of their prices.
    pub const PRICE_CURRENCY: &str = "price.liqo.io/currency";
    /// On usage records: the first eight digits of the contract's ID, a dash, and the start of the
    /// period as `yyyymmddhhmm`.
    pub const USAGE_PERIOD: &str = "liqo.io/usage-period";
    /// On what is kept of a peering that ended: ID of the peer.
    pub const FORMER_PEER_ID: &str = "liqo.io/former-peer-id";
    /// On what is kept of a peering that ended: what this cluster was in it, `provider` or
    /// `consumer`.
    pub const FORMER_ROLE: &str = "liqo.io/former-role";
    /// On no node: what the webhook adds to the node affinity of a pod is recognized by the
    /// requirement that nodes do not have it.
    pub const PLACEMENT: &str = "liqo.io/placement";
    /// Keys of this domain and its subdomains belong to Liqo and never travel.
    pub const DOMAIN: &str = "liqo.io";
}

/// Annotations.
pub mod annotations {
    /// On a local pod: address of its remote pod, as the provider sees it. It also tells whether a
    /// provider that does not answer ran the pod in this cluster.
    pub const REMOTE_POD_IP: &str = "liqo.io/remote-pod-ip";
    /// On a local pod that may run only once, or that gets tokens: UID of the `NamespaceMap` of the
    /// tenancy to which it is sent. The consumer sets it before it sends the pod.
    pub const SENT_TO: &str = "liqo.io/sent-to";
    /// On a remote pod: which labels, annotations, images, requests and limits it got from the
    /// local pod, so that the provider sees changes.
    pub const TRAVELLED: &str = "liqo.io/travelled";
    /// On a remote pod: a hash of the terms that select the nodes of its pool, as they were when it
    /// was created.
    pub const POOL_NODES: &str = "liqo.io/pool-nodes";
    /// What the containers of former remote pods did, on the one that replaces them.
    pub const EARLIER_RUNS: &str = "liqo.io/earlier-runs";
    /// On a remote pod that reads its labels from a volume: those that it got from the local pod,
    /// one in each line.
    pub const HOME_LABELS: &str = "liqo.io/home-labels";
    /// On a remote pod that reads its annotations from a volume: those of the local pod, one in
    /// each line.
    pub const HOME_ANNOTATIONS: &str = "liqo.io/home-annotations";
    /// On a tenant namespace, and on the `ForeignCluster` of a consumer that waited for approval:
    /// the consumer's public key (base64).
    pub const PUBLIC_KEY: &str = "liqo.io/public-key";
    /// On what is kept of a peering that ended: how many bytes it takes.
    pub const KEPT_LENGTH: &str = "liqo.io/kept-length";
    /// On a tenant namespace and others: the friendly name of the cluster.
    pub const CLUSTER_NAME: &str = "liqo.io/cluster-name";
    /// On a Node: the commands that keep new pods off it, separated by commas. The last one of them
    /// uncordons the node.
    pub const CORDONED_BY: &str = "liqo.io/cordoned-by";
    /// On a virtual node: its prices, as the JSON of a [`PriceList`](crate::PriceList).
    pub const PRICES: &str = "liqo.io/prices";
    /// On a virtual node: what the provider's nodes with the most room have free, as the JSON of
    /// [`LargestPods`](crate::LargestPods).
    pub const LARGEST_PODS: &str = "liqo.io/largest-pods";
    /// On the Lease of a gateway: its WireGuard key (base64).
    pub const GATEWAY_KEY: &str = "liqo.io/gateway-key";
    /// On the Lease of a gateway whose key was renewed: its first key (base64). The flows that it
    /// carries follow from this key.
    pub const GATEWAY_FIRST_KEY: &str = "liqo.io/gateway-first-key";
    /// On the Lease of a gateway, for a few minutes after its key was renewed: its previous key
    /// (base64).
    pub const GATEWAY_FORMER_KEY: &str = "liqo.io/gateway-former-key";
    /// On the Lease of a gateway that accepts tunnels over TLS: the TCP port.
    pub const GATEWAY_TLS: &str = "liqo.io/gateway-tls";
    /// On the Lease of a gateway: which buckets of flows it carries, one bit for each
    /// (hexadecimal).
    pub const GATEWAY_BUCKETS: &str = "liqo.io/gateway-buckets";
    /// On the Lease of a gateway: other gateways that stopped answering it, as
    /// [`SuspectedGateways`](crate::SuspectedGateways), for example `0@1234 2@1240`.
    pub const SUSPECTED_GATEWAYS: &str = "liqo.io/gateway-unheard";
    /// On a pod of an offloaded namespace: the API server that it uses when it runs in another
    /// cluster, `home`, `remote` or `none`.
    pub const API_SERVER: &str = "liqo.io/api-server";
    /// On the record of a token in a tenant namespace: time at which the consumer renews it (RFC
    /// 3339).
    pub const RENEW_AT: &str = "liqo.io/renew-at";
    /// On a Service, `EndpointSlice`, Ingress, `NetworkPolicy` or `PodDisruptionBudget` of an
    /// offloaded namespace: with `deny` it is not reflected, and neither are the endpoints of a
    /// Service. On a Service or Ingress: with `allow` it is reflected from a namespace with an
    /// `AllowList`.
    pub const REFLECTION: &str = "liqo.io/reflection";
    /// The same as `deny`, as Liqo's earlier versions spell it, with any value but `false`.
    pub const SKIP_REFLECTION: &str = "liqo.io/skip-reflection";
    /// The same as `allow`, as Liqo's earlier versions spell it, with any value but `false`.
    pub const ALLOW_REFLECTION: &str = "liqo.io/allow-reflection";
    /// On a Service of type `LoadBalancer` or an Ingress of an offloaded namespace: its class in
    /// other clusters, or `none` to make it unreachable from outside there. On its replica: the
    /// class that it got.
    pub const REMOTE_CLASS: &str = "liqo.io/remote-class";
    /// On the replica of a Service of type `ExternalName`: the name that it stands for. Only the
    /// resolver for remote pods reads it.
    pub const EXTERNAL_NAME: &str = "liqo.io/external-name";
    /// On a `NamespaceMap`: the DNS domain of the consumer's cluster, such as `cluster.local`.
    pub const CLUSTER_DOMAIN: &str = "liqo.io/cluster-domain";
    /// On a `NamespaceOffloading`: with `all`, all events about the remote pods of the namespace
    /// come back, and not only those of trouble.
    pub const REMOTE_EVENTS: &str = "liqo.io/remote-events";
    /// On a `NamespaceOffloading`: which providers refused a pod of which owner (JSON). Pods of
    /// these owners are not sent there again for a while.
    pub const REFUSED_PODS: &str = "liqo.io/refused-pods";
    /// On a `NamespaceOffloading` of a person, while this cluster is tethered: its strategy and
    /// selector before (JSON). They are restored when this cluster decides for itself again.
    pub const BEFORE_TETHERING: &str = "liqo.io/before-tethering";
    /// On a consumer's copy of a contract: what its complete periods cost in the present day and
    /// month, by namespace (JSON).
    pub const SPENT: &str = "liqo.io/spent";
    /// On the Secret of a peering token: time at which the token expires (RFC 3339).
    pub const EXPIRES_AT: &str = "liqo.io/expires-at";
    /// On the Secret of a reusable token: how many clusters may use it.
    pub const MAX_USES: &str = "liqo.io/max-uses";
    /// On the Secret of a token: the IDs of the clusters that use it, separated by commas. No other
    /// cluster can use a one-time token.
    pub const USED_BY: &str = "liqo.io/used-by";
    /// On a `ForeignCluster`: time since which a consumer waits for approval (RFC 3339).
    pub const PENDING_APPROVAL: &str = "liqo.io/pending-approval";
    /// On a shadow pod, a reflected object or a Secret in a tenant namespace: the name of the
    /// object in the consumer cluster.
    pub const HOME_NAME: &str = "liqo.io/home-name";
    /// On each record of a Secret that travels in chunks: its number, the number of chunks, the
    /// hash of the whole Secret, and its type.
    pub const CHUNK: &str = "liqo.io/chunk";
    /// On a shadow pod: what its consumer needs to know of the pod when it is gone there, with a
    /// code that nobody else can compute.
    pub const VOUCHER: &str = "liqo.io/voucher";
    /// On a Secret in a tenant namespace: reason and message why the provider has no replica of it.
    /// Secrets have no status.
    pub const NOT_REFLECTED: &str = "liqo.io/not-reflected";
}

/// Finalizers.
pub mod finalizers {
    /// On a `ForeignCluster`: the peering must end before the object goes.
    pub const PEERING: &str = "liqo.io/peering";
    /// On a `VirtualNode`: its pods and its Node must go before the object goes.
    pub const VIRTUAL_NODE: &str = "liqo.io/virtual-node";
    /// On a `NamespaceOffloading`: remote pods and mapped namespaces must go before the object
    /// goes.
    pub const NAMESPACE_OFFLOADING: &str = "liqo.io/namespace-offloading";
    /// On a remote pod that must not run twice: the provider must record its final status before
    /// the pod goes.
    pub const FINAL_STATUS: &str = "liqo.io/final-status";
    /// On a `ShadowPod`: its remote pod must go before the object goes.
    pub const SHADOW_POD: &str = "liqo.io/shadow-pod";
    /// On a `ReflectedObject`: its replica must go before the object goes.
    pub const REFLECTED_OBJECT: &str = "liqo.io/reflected-object";
}

/// The taint of virtual nodes and the conditions on pods and nodes.
pub mod pods {
    /// Key of the `NoExecute` taint of every virtual node; its value is `true`.
    pub const VIRTUAL_NODE_TAINT: &str = "virtual-node.liqo.io/not-allowed";
    /// Scheduling gate of a pod that waits for the `NamespaceOffloading` of its namespace.
    pub const OFFLOADING_GATE: &str = "liqo.io/offloading";
    /// Key of the `NoSchedule` taint of a virtual node whose peer does not answer.
    pub const UNREACHABLE_TAINT: &str = "virtual-node.liqo.io/peer-unreachable";
    /// Key of the `NoSchedule` taint of a virtual node that gets no new pods for another reason,
    /// which is in its condition [`NO_NEW_PODS`]; its value is `true`.
    pub const NO_NEW_PODS_TAINT: &str = "virtual-node.liqo.io/no-new-pods";
    /// Condition on a virtual node: it gets no new pods now, and its message says why.
    pub const NO_NEW_PODS: &str = "NoNewPods";
    /// Condition on a local pod: whether the provider accepted it, and why not.
    pub const OFFLOADED: &str = "liqo.io/Offloaded";
    /// Reason of [`OFFLOADED`]: the provider accepted the pod, but not all objects to which the pod
    /// refers.
    pub const NOT_REFLECTED: &str = crate::OffloadedReason::NotReflected.as_str();
    /// Reason of [`OFFLOADED`] and of an event: pods at the provider cannot reach this cluster's
    /// API server.
    pub const NO_API_SERVER: &str = crate::OffloadedReason::NoApiServer.as_str();
    /// Reason of [`OFFLOADED`]: the provider accepted the pod and reports an address for it that is
    /// outside of the provider's prefixes.
    pub const ADDRESS_REFUSED: &str = crate::OffloadedReason::AddressRefused.as_str();
    /// Reason of [`OFFLOADED`] and of an event: the provider accepted the pod, and not everything
    /// that changed since travels.
    pub const CHANGE_REFUSED: &str = crate::OffloadedReason::ChangeRefused.as_str();
    /// Reason of [`OFFLOADED`] and of an event: the pod runs until the end of a notice of the
    /// provider, which takes its node or its room back.
    pub const ENDS_SOON: &str = crate::OffloadedReason::EndsSoon.as_str();
    /// Reasons of [`OFFLOADED`] with which a pod runs, and not as it would at home.
    pub const INCOMPLETE: [&str; 4] = [NOT_REFLECTED, ADDRESS_REFUSED, CHANGE_REFUSED, ENDS_SOON];
    /// Condition on a local pod: the provider's scheduler found no node for it. The message is the
    /// scheduler's.
    pub const REMOTE_SCHEDULED: &str = "liqo.io/RemoteScheduled";
    /// Condition on a virtual node: the provider answers.
    pub const PEER_REACHABLE: &str = "PeerReachable";
    /// Reason of a failed local pod: its remote pod is gone and must not run again.
    pub const REMOTE_POD_LOST: &str = "RemotePodLost";
}

/// Condition types of a [`crate::ForeignCluster`]: the links in the chain of a peering, in order.
/// Each has one writer.
pub mod links {
    /// peering: the auth endpoint answered and proved its cluster ID.
    pub const IDENTITY_VERIFIED: &str = "IdentityVerified";
    /// peering: the provider granted a credential.
    pub const AUTHENTICATED: &str = "Authenticated";
    /// peering: the provider's API server and manager answer.
    pub const PEER_REACHABLE: &str = "PeerReachable";
    /// sharing: the request of this cluster exists at the provider.
    pub const RESOURCES_REQUESTED: &str = "ResourcesRequested";
    /// sharing: this cluster accepted at least one offer.
    pub const OFFER_ACCEPTED: &str = "OfferAccepted";
    /// offloading: every virtual node of this provider is Ready.
    pub const VIRTUAL_NODES_READY: &str = "VirtualNodesReady";
    /// network negotiation: both clusters know under which prefixes they see each other.
    pub const NETWORK_AGREED: &str = "NetworkAgreed";
    /// network negotiation: the gateways of both clusters reach each other.
    pub const TUNNEL_CONNECTED: &str = "TunnelConnected";
    /// peering, provider side: the peer may borrow from this cluster.
    pub const CONSUMER_AUTHORIZED: &str = "ConsumerAuthorized";
    /// peering, provider side: the consumer renews its lease.
    pub const CONSUMER_REACHABLE: &str = "ConsumerReachable";
    /// sharing, provider side: this cluster made an offer to the peer.
    pub const RESOURCES_OFFERED: &str = "ResourcesOffered";
    /// sharing: the provider controls this cluster, or is ready to. Only while this cluster asks
    /// for that.
    pub const TETHERING_GRANTED: &str = "TetheringGranted";
    /// sharing: each node of the provider is a pool of its own. Only while this cluster asks for
    /// that.
    pub const POOL_FOR_EACH_NODE: &str = crate::POOL_FOR_EACH_NODE;
    /// The links of borrowing, in order.
    pub const BORROWING: [&str; 6] = [
        IDENTITY_VERIFIED,
        AUTHENTICATED,
        PEER_REACHABLE,
        RESOURCES_REQUESTED,
        OFFER_ACCEPTED,
        VIRTUAL_NODES_READY,
    ];
    /// The links of lending, in order.
    pub const LENDING: [&str; 3] = [CONSUMER_AUTHORIZED, CONSUMER_REACHABLE, RESOURCES_OFFERED];
    /// The links of the network, in order.
    pub const NETWORK: [&str; 2] = [NETWORK_AGREED, TUNNEL_CONNECTED];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_namespace_names_its_consumer() {
        let consumer = ClusterId::of_public_key(&[1; 32]);
        assert_eq!(
            consumer_of_tenant_namespace(&tenant_namespace(&consumer)),
            Some(consumer.clone())
        );
        for other in [
            provider_namespace(&consumer),
            consumer.to_string(),
            "liqo-tenant-".to_owned(),
            String::new(),
        ] {
            assert_eq!(consumer_of_tenant_namespace(&other), None, "{other}");
        }
    }

    #[test]
    fn namespaces_of_kubernetes_and_of_liqo_are_not_offloaded() {
        for namespace in [
            "default",
            "kube-system",
            "kube-public",
            "openshift-monitoring",
            "liqo-fabric",
            "liqo-tenant-x",
            "elsewhere",
        ] {
            assert!(!may_be_offloaded(namespace, "elsewhere"), "{namespace}");
        }
        assert!(
            may_be_offloaded("demo", "elsewhere") && may_be_offloaded("default-shop", "elsewhere")
        );
    }
}

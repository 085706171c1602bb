//! Keys of the Go implementation of Liqo, 0.6 to 1.2, so that a values file for it is understood.

use super::super::{AUTHENTICATION_ADDRESS, CLUSTER_NAME, PERCENTAGE, discovery, network};
use super::{RefusalCondition, SettingClass, SettingRow, ValueConversion, ValueKind, row};

const fn same(key: &'static str, kind: ValueKind, target: &'static str) -> SettingRow {
    row(
        key,
        kind,
        "",
        SettingClass::Mapped(target, ValueConversion::Same),
        "",
    )
}

const fn list_of(key: &'static str, target: &'static str) -> SettingRow {
    row(
        key,
        ValueKind::Text(""),
        "",
        SettingClass::Mapped(target, ValueConversion::ToList),
        "",
    )
}

const fn noted(key: &'static str, text: &'static str) -> SettingRow {
    row(key, ValueKind::Anything, "", SettingClass::Noted, text)
}

const fn refused(key: &'static str, when: RefusalCondition, text: &'static str) -> SettingRow {
    row(
        key,
        ValueKind::Anything,
        "",
        SettingClass::Refused(when),
        text,
    )
}

const IMAGES: &str =
    "it names an image of another program. Set controllerManager.image and fabric.image";
const ONE_PROCESS: &str = "the controller manager does its work";
const NO_ARGUMENTS: &str = "these are arguments of another program";
const METRICS: &str = "the programs always serve metrics; create a PodMonitor for ports 8080 and 9479 if you use Prometheus' operator";
const AWS: &str =
    "consumers get certificates or tokens of this cluster, never identities of AWS. Remove it";
const NAMES: &str = "admission policies and roles refer to Liqo's objects by name. Remove it";
const FABRIC: &str = "the fabric decides it by itself";

pub(super) static KEYS: &[SettingRow] = &[
    // The name of the cluster, and how clusters find each other.
    same(
        "discovery.config.clusterID",
        ValueKind::Text(""),
        CLUSTER_NAME,
    ),
    noted(
        "discovery.config.clusterIDOverride",
        "the ID of a cluster follows from its key",
    ),
    noted(
        "discovery.config.autojoin",
        "no peering starts automatically unless discovery.autoPeering says with whom",
    ),
    row(
        "discovery.config.enableAdvertisement",
        ValueKind::Bool,
        "",
        SettingClass::Mapped(discovery::LAN, ValueConversion::IfTrue),
        "the cluster announces itself and looks for others",
    ),
    row(
        "discovery.config.enableDiscovery",
        ValueKind::Bool,
        "",
        SettingClass::Mapped(discovery::LAN, ValueConversion::IfTrue),
        "the cluster announces itself and looks for others",
    ),
    row(
        "discovery.config.incomingPeeringEnabled",
        ValueKind::Bool,
        "",
        SettingClass::Mapped(PERCENTAGE, ValueConversion::IfFalse("0")),
        "if it is false, nothing is lent",
    ),
    noted(
        "discovery.config.ttl",
        "clusters on the local network are forgotten after a fixed time",
    ),
    noted("discovery.imageName", IMAGES),
    noted("discovery.pod", ONE_PROCESS),
    // The controller manager.
    noted(
        "controllerManager.config.enableResourceEnforcement",
        "limits of offers are always enforced",
    ),
    noted(
        "controllerManager.config.defaultLimitsEnforcement",
        "limits of offers are always enforced",
    ),
    noted(
        "controllerManager.config.enableNodeFailureController",
        "pods on dead nodes of a provider are always replaced",
    ),
    same(
        "controllerManager.config.externalMonitorAddress",
        ValueKind::Text(""),
        super::PLUGIN_ADDRESS,
    ),
    noted("controllerManager.imageName", IMAGES),
    noted("controllerManager.image.name", IMAGES),
    noted("controllerManager.image.version", IMAGES),
    noted("controllerManager.metrics", METRICS),
    same(
        "controllerManager.pod.annotations",
        ValueKind::Labels,
        "controllerManager.podAnnotations",
    ),
    same(
        "controllerManager.pod.labels",
        ValueKind::Labels,
        "controllerManager.podLabels",
    ),
    noted("controllerManager.pod.extraArgs", NO_ARGUMENTS),
    same(
        "controllerManager.pod.priorityClassName",
        ValueKind::Text(""),
        "controllerManager.priorityClassName",
    ),
    same(
        "controllerManager.pod.resources",
        ValueKind::Map,
        "controllerManager.resources",
    ),
    // Addresses, and who may call them.
    noted(
        "apiServer.trustedCA",
        "set apiServer.ca to the certificates of the CA that signed the API server's certificate",
    ),
    same(
        "auth.config.addressOverride",
        ValueKind::Text(""),
        AUTHENTICATION_ADDRESS,
    ),
    refused(
        "auth.config.portOverride",
        RefusalCondition::Set,
        "write address and port into authentication.address",
    ),
    refused(
        "auth.config.enableAuthentication",
        RefusalCondition::False,
        "a peer always needs a token, an approval or a policy. Remove it",
    ),
    noted("auth.imageName", IMAGES),
    noted(
        "auth.ingress",
        "the chart creates no Ingress: expose Service liqo-auth, and set authentication.address",
    ),
    noted(
        "auth.initContainer",
        "the manager issues its own certificates",
    ),
    noted("auth.pod", ONE_PROCESS),
    same(
        "auth.service.type",
        ValueKind::OneOf(&["NodePort", "LoadBalancer", "ClusterIP"]),
        "authentication.service.type",
    ),
    same(
        "auth.service.annotations",
        ValueKind::Labels,
        "authentication.service.annotations",
    ),
    noted("auth.service.labels", "use extraLabels"),
    noted(
        "auth.service.loadBalancer",
        "use authentication.service.annotations",
    ),
    same(
        "auth.service.nodePort.port",
        ValueKind::OptionalInteger(1, 65_535),
        "authentication.service.nodePort",
    ),
    noted("auth.service.port", "Service liqo-auth has port 443"),
    noted("auth.tls", "the auth endpoint always has TLS"),
    refused(
        "authentication.enabled",
        RefusalCondition::False,
        "a peer always needs a token, an approval or a policy. Remove it",
    ),
    refused("authentication.awsConfig", RefusalCondition::Set, AWS),
    noted(
        "authentication.defaultResourceSliceClassEnabled",
        "there are no classes of ResourceSlices",
    ),
    noted(
        "authentication.tlsCompatibilityMode",
        "the type of keys is fixed",
    ),
    refused("awsConfig", RefusalCondition::Set, AWS),
    // All pods.
    noted("common.extraArgs", NO_ARGUMENTS),
    same(
        "common.globalAnnotations",
        ValueKind::Labels,
        "extraAnnotations",
    ),
    noted(
        "common.globalLabels",
        "use extraLabels, without labels of liqo.io, which say that the manager created an object",
    ),
    same("pullPolicy", ValueKind::Text(""), "imagePullPolicy"),
    noted(
        "tag",
        "it is a version of other images. Set controllerManager.image.tag and fabric.image.tag",
    ),
    refused("nameOverride", RefusalCondition::Set, NAMES),
    refused("fullnameOverride", RefusalCondition::Set, NAMES),
    // The network.
    same(
        "networkConfig.mtu",
        ValueKind::Integer(1280, 8900),
        network::MTU,
    ),
    same(
        "networking.mtu",
        ValueKind::Integer(1280, 8900),
        network::MTU,
    ),
    same("networking.enabled", ValueKind::Bool, network::ENABLED),
    same("networking.internal", ValueKind::Bool, network::ENABLED),
    noted("networking.iptables", "the fabric uses nftables of its own"),
    noted(
        "networking.reflectIPs",
        "addresses of remote pods are always reflected",
    ),
    noted(
        "networking.securityMode",
        "peers reach only what is offloaded, unless a PeeringPolicy says otherwise",
    ),
    noted("networking.clientResources", FABRIC),
    noted("networking.serverResources", FABRIC),
    noted("networking.apiServerAccessThroughEndpointSlices", FABRIC),
    noted(
        "networking.denyDirectConnections",
        "direct connections need a PeeringPolicy that allows them",
    ),
    noted(
        "networking.fabric",
        "set fabric.nodeSelector, fabric.tolerations and fabric.resources",
    ),
    noted("networking.gateway", FABRIC),
    same(
        "networking.gatewayTemplates.replicas",
        ValueKind::Integer(1, 7),
        network::REPLICAS,
    ),
    noted(
        "networking.gatewayTemplates.container",
        "gateways run in the pods of the fabric",
    ),
    noted("networking.gatewayTemplates.nftablesMonitor", FABRIC),
    noted("networking.gatewayTemplates.routeMonitor", FABRIC),
    noted(
        "networking.gatewayTemplates.ping",
        "the times between probes of gateways are fixed",
    ),
    noted(
        "networking.gatewayTemplates.pod",
        "set network.gateways.nodeSelector",
    ),
    noted(
        "networking.gatewayTemplates.server",
        "peers reach gateways at their nodes; behind a load balancer, set network.gateways.addresses",
    ),
    noted(
        "networking.gatewayTemplates.wireguard",
        "the fabric contains its own tunnel",
    ),
    noted("networking.genevePort", "there is no Geneve"),
    noted("networking.notrack", FABRIC),
    list_of("networkManager.config.podCIDR", network::POD_CIDRS),
    list_of("networkManager.config.serviceCIDR", network::SERVICE_CIDRS),
    same(
        "networkManager.config.reservedSubnets",
        ValueKind::Texts(""),
        network::RESERVED_CIDRS,
    ),
    same(
        "networkManager.config.additionalPools",
        ValueKind::Texts(""),
        network::PEER_CIDRS,
    ),
    noted("networkManager.externalIPAM", ONE_PROCESS),
    noted("networkManager.imageName", IMAGES),
    noted("networkManager.pod", ONE_PROCESS),
    noted("ipam.external", ONE_PROCESS),
    noted("ipam.internal", ONE_PROCESS),
    noted(
        "ipam.internalCIDR",
        "gateways need no addresses of their own",
    ),
    list_of("ipam.externalCIDR", network::EXTERNAL_CIDRS),
    list_of("ipam.podCIDR", network::POD_CIDRS),
    list_of("ipam.serviceCIDR", network::SERVICE_CIDRS),
    same("ipam.podCIDRs", ValueKind::Texts(""), network::POD_CIDRS),
    same("ipam.pools", ValueKind::Texts(""), network::PEER_CIDRS),
    same(
        "ipam.reservedSubnets",
        ValueKind::Texts(""),
        network::RESERVED_CIDRS,
    ),
    refused(
        "gateway.config.addressOverride",
        RefusalCondition::Set,
        "write address and port into network.gateways.addresses",
    ),
    refused(
        "gateway.config.portOverride",
        RefusalCondition::Set,
        "write address and port into network.gateways.addresses",
    ),
    same(
        "gateway.config.listeningPort",
        ValueKind::Integer(1, 65_535),
        network::PORT,
    ),
    noted(
        "gateway.config.wireguardImplementation",
        "the fabric contains its own tunnel",
    ),
    noted("gateway.imageName", IMAGES),
    noted("gateway.metrics", METRICS),
    noted("gateway.pod", "gateways run in the pods of the fabric"),
    same(
        "gateway.replicas",
        ValueKind::Integer(1, 7),
        network::REPLICAS,
    ),
    noted(
        "gateway.service",
        "peers reach gateways at their nodes; behind a load balancer, set network.gateways.addresses",
    ),
    noted("route", "the fabric does its work"),
    // Pods at peers.
    noted(
        "offloading",
        "each NamespaceOffloading and each PeeringPolicy says what is offloaded, and there is no RuntimeClass",
    ),
    noted(
        "reflection",
        "all objects that offloaded pods need are reflected",
    ),
    noted("storage", "there is no storage class that spans clusters"),
    noted(
        "virtualKubelet.imageName",
        "the controller manager serves the virtual nodes, which have no image of their own",
    ),
    noted(
        "virtualKubelet.image",
        "the controller manager serves the virtual nodes, which have no image of their own",
    ),
    noted(
        "virtualKubelet.extra",
        "the controller manager serves the virtual nodes, and the network between clusters needs no remote IPAM",
    ),
    noted("virtualKubelet.metrics", METRICS),
    noted(
        "virtualKubelet.replicas",
        "the controller manager serves the virtual nodes: set controllerManager.replicas",
    ),
    noted(
        "virtualKubelet.virtualNode",
        "virtual nodes have the labels in discovery.config.clusterLabels of the provider",
    ),
    // Other programs, and how the chart is installed.
    noted("crdReplicator", ONE_PROCESS),
    noted(
        "liqo-crds",
        "`helm upgrade` does not change definitions: apply the folder crds of the new chart first",
    ),
    noted("metricAgent", ONE_PROCESS),
    noted("metrics", METRICS),
    refused(
        "openshiftConfig.enable",
        RefusalCondition::Set,
        "this chart creates no SecurityContextConstraints. Allow liqo-fabric the host's network and paths by one of yours, and remove it",
    ),
    refused(
        "openshiftConfig.enabled",
        RefusalCondition::Set,
        "this chart creates no SecurityContextConstraints. Allow liqo-fabric the host's network and paths by one of yours, and remove it",
    ),
    noted(
        "openshiftConfig.virtualKubeletSCCs",
        "virtual nodes have no pods",
    ),
    noted("proxy", "no proxy is needed between clusters"),
    noted(
        "requirements",
        "liqo-fabric says on each node what it misses there",
    ),
    noted("telemetry", "nothing is sent to anybody"),
    noted(
        "uninstaller",
        "end peerings with `liqoctl unpeer` before you uninstall",
    ),
    noted(
        "webhook",
        "the controller manager serves the webhook, and decides whether its absence blocks pods",
    ),
];

//! Fields of Services, `EndpointSlice`s and Ingresses.

use serde_json::Value;

use crate::views::{MetadataView, Views};

json_views! {
    /// A Service.
    ServiceView {
        metadata: MetadataView<'a> = "metadata",
        spec: ServiceSpecView<'a> = "spec",
        status: BalancedStatusView<'a> = "status",
    }

    /// The spec of a Service.
    ServiceSpecView {
        kind: Option<&'a str> = "type",
        external_name: Option<&'a str> = "externalName",
        cluster_ip: Option<&'a str> = "clusterIP",
        ports: &'a [Value] = "ports",
        session_affinity: Option<&'a str> = "sessionAffinity",
        session_affinity_config: SessionAffinityView<'a> = "sessionAffinityConfig",
        publish_not_ready_addresses: Option<bool> = "publishNotReadyAddresses",
        ip_family_policy: Option<&'a str> = "ipFamilyPolicy",
        ip_families: &'a [Value] = "ipFamilies",
        load_balancer_ip: Option<&'a Value> = "loadBalancerIP",
        load_balancer_source_ranges: &'a [Value] = "loadBalancerSourceRanges",
        allocate_load_balancer_node_ports: Option<bool> = "allocateLoadBalancerNodePorts",
    }

    /// The `sessionAffinityConfig` of a Service.
    SessionAffinityView {
        client_ip: ClientAffinityView<'a> = "clientIP",
    }

    /// The affinity of a Service to addresses of clients.
    ClientAffinityView {
        timeout_seconds: Option<&'a Value> = "timeoutSeconds",
    }

    /// A port of a Service.
    ServicePortView {
        name: Option<&'a str> = "name",
        port: Option<&'a Value> = "port",
    }

    /// The status of a Service or an Ingress.
    BalancedStatusView {
        load_balancer: LoadBalancerView<'a> = "loadBalancer",
    }

    /// The load balancer of a Service or an Ingress.
    LoadBalancerView {
        ingress: Views<'a, LoadBalancerPointView<'a>> = "ingress",
    }

    /// A point at which a load balancer is reached.
    LoadBalancerPointView {
        ip: Option<&'a str> = "ip",
        hostname: Option<&'a str> = "hostname",
    }

    /// An `EndpointSlice`.
    EndpointSliceView {
        metadata: MetadataView<'a> = "metadata",
        address_type: &'a str = "addressType",
        endpoints: Views<'a, EndpointView<'a>> = "endpoints",
        ports: Option<&'a [Value]> = "ports",
    }

    /// An endpoint in an `EndpointSlice`.
    EndpointView {
        addresses: &'a [Value] = "addresses",
        conditions: Option<&'a Value> = "conditions",
    }

    /// An Ingress.
    IngressView {
        metadata: MetadataView<'a> = "metadata",
        spec: IngressSpecView<'a> = "spec",
    }

    /// The spec of an Ingress.
    IngressSpecView {
        default_backend: IngressBackendView<'a> = "defaultBackend",
        rules: Views<'a, IngressRuleView<'a>> = "rules",
        tls: Views<'a, IngressTlsView<'a>> = "tls",
    }

    /// A rule of an Ingress.
    IngressRuleView {
        host: &'a str = "host",
        http: IngressPathsView<'a> = "http",
    }

    /// The paths in a rule of an Ingress.
    IngressPathsView {
        paths: Views<'a, IngressPathView<'a>> = "paths",
    }

    /// A path in a rule of an Ingress.
    IngressPathView {
        path: &'a str = "path",
        backend: IngressBackendView<'a> = "backend",
    }

    /// A backend of an Ingress.
    IngressBackendView {
        service: BackendServiceView<'a> = "service",
    }

    /// A Service as a backend.
    BackendServiceView {
        name: &'a str = "name",
        port: BackendPortView<'a> = "port",
    }

    /// The port of a Service as a backend.
    BackendPortView {}

    /// An entry of an Ingress about certificates.
    IngressTlsView {
        hosts: &'a [Value] = "hosts",
        secret_name: Option<&'a str> = "secretName",
    }
}

impl<'a> EndpointView<'a> {
    /// Its addresses, as they are written.
    pub fn address_texts(self) -> impl Iterator<Item = &'a str> {
        self.addresses().iter().filter_map(Value::as_str)
    }
}

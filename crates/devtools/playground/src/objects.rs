//! Objects that every cluster needs: RBAC rules, its public kubeconfig, its nodes, its name server.

use std::{net::Ipv6Addr, time::Duration};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Node, Pod, Service, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    configuration::cluster_info,
    error::{Error, Result},
    fake_nodes,
    image::{COREDNS, METRICS_SERVER},
    layout::{ClusterLayout, DNS_SERVICE_ADDRESS, NodeLayout},
    node_kind::{FAKE_NODE, NODE_KIND_LABEL, REAL_NODE},
    spec::{ClusterSpec, MAX_NODES},
    wait::poll,
};

/// The user name of kwok.
pub(crate) const KWOK_USER: &str = "kwok";
/// The user name of kube-router.
pub(crate) const KUBE_ROUTER_USER: &str = "kube-router";
/// Annotation of the nodes with a kubelet that the playground created.
const REAL_NODE_ANNOTATION: &str = "liqo-playground/real-node";

/// Applies all objects. Objects that are already as wanted do not change.
pub(crate) async fn apply(cluster: &ClusterLayout, client: &Client, ca: &str) -> Result<()> {
    let writer = Writer {
        cluster: &cluster.name,
        client,
    };
    writer
        .cluster_wide::<ClusterRoleBinding>(
            "playground-kubelet-api",
            json!({
                "roleRef": role_ref("ClusterRole", "system:kubelet-api-admin"),
                "subjects": [user("kube-apiserver-kubelet-client")],
            }),
        )
        .await?;
    let kubeconfig = format!("{:#}\n", cluster_info(cluster, ca));
    writer
        .namespaced::<ConfigMap>(
            "kube-public",
            "cluster-info",
            json!({ "data": { "kubeconfig": kubeconfig } }),
        )
        .await?;
    writer.namespaced::<Role>("kube-public", "cluster-info", json!({
        "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["cluster-info"], "verbs": ["get"] }],
    })).await?;
    writer
        .namespaced::<RoleBinding>(
            "kube-public",
            "cluster-info",
            json!({
                "roleRef": role_ref("Role", "cluster-info"),
                "subjects": [user("system:anonymous")],
            }),
        )
        .await?;
    if cluster.spec.network_policies {
        kube_router(&writer).await?;
    }
    if cluster.spec.metrics {
        metrics_server(&writer).await?;
    }
    name_server(&writer, cluster).await
}

/// Serves `metrics.k8s.io`, for `kubectl top` and autoscalers. It asks all kubelets every ten
/// seconds, the shortest interval that it allows.
async fn metrics_server(writer: &Writer<'_>) -> Result<()> {
    const NAME: &str = "metrics-server";
    let (labels, account) = (
        json!({ "k8s-app": NAME }),
        json!({ "kind": "ServiceAccount", "name": NAME, "namespace": "kube-system" }),
    );
    writer
        .namespaced::<ServiceAccount>("kube-system", NAME, json!({}))
        .await?;
    writer
        .cluster_wide::<ClusterRole>(
            "system:metrics-server",
            json!({
                "rules": [
                    { "apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"] },
                    { "apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"] },
                ],
            }),
        )
        .await?;
    for (binding, role) in [
        ("system:metrics-server", "system:metrics-server"),
        (
            "metrics-server:system:auth-delegator",
            "system:auth-delegator",
        ),
    ] {
        let body = json!({ "roleRef": role_ref("ClusterRole", role), "subjects": [account] });
        writer
            .cluster_wide::<ClusterRoleBinding>(binding, body)
            .await?;
    }
    let reader = json!({ "roleRef": role_ref("Role", "extension-apiserver-authentication-reader"), "subjects": [account] });
    writer
        .namespaced::<RoleBinding>("kube-system", "metrics-server-auth-reader", reader)
        .await?;
    let service = json!({ "spec": { "selector": labels, "ports": [{ "name": "https", "port": 443, "targetPort": "https" }] } });
    writer
        .namespaced::<Service>("kube-system", NAME, service)
        .await?;
    writer.namespaced::<Deployment>("kube-system", NAME, json!({
        "metadata": { "labels": labels },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "serviceAccountName": NAME,
                    "priorityClassName": "system-cluster-critical",
                    "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{ "matchExpressions": [{ "key": NODE_KIND_LABEL, "operator": "NotIn", "values": [FAKE_NODE] }] }],
                    } } },
                    "containers": [{
                        "name": NAME,
                        "image": METRICS_SERVER,
                        "args": ["--secure-port=10250", "--cert-dir=/tmp", "--kubelet-insecure-tls", "--kubelet-preferred-address-types=InternalIP",
                            "--kubelet-use-node-status-port", "--metric-resolution=10s", "--kubelet-request-timeout=5s"],
                        "ports": [{ "containerPort": 10250, "name": "https" }],
                        "readinessProbe": { "httpGet": { "path": "/livez", "port": "https", "scheme": "HTTPS" }, "periodSeconds": 2 },
                        "resources": { "requests": { "cpu": "10m", "memory": "40Mi" } },
                        "volumeMounts": [{ "name": "tmp", "mountPath": "/tmp" }],
                    }],
                    "volumes": [{ "name": "tmp", "emptyDir": {} }],
                },
            },
        },
    })).await?;
    writer
        .cluster_wide::<APIService>(
            "v1beta1.metrics.k8s.io",
            json!({
                "spec": {
                    "group": "metrics.k8s.io",
                    "version": "v1beta1",
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                    "insecureSkipTLSVerify": true,
                    "service": { "name": NAME, "namespace": "kube-system" },
                },
            }),
        )
        .await
}

/// Rights to read, and none to write.
async fn kube_router(writer: &Writer<'_>) -> Result<()> {
    let read = ["get", "list", "watch"];
    writer
        .cluster_wide::<ClusterRole>(
            "playground-kube-router",
            json!({
                "rules": [
                    { "apiGroups": [""], "resources": ["namespaces", "pods", "services", "nodes", "endpoints"], "verbs": read },
                    { "apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": read },
                    { "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read },
                ],
            }),
        )
        .await?;
    let binding = json!({ "roleRef": role_ref("ClusterRole", "playground-kube-router"), "subjects": [user(KUBE_ROUTER_USER)] });
    writer
        .cluster_wide::<ClusterRoleBinding>("playground-kube-router", binding)
        .await
}

/// The rights that kwok needs for nodes and their pods.
pub(crate) async fn apply_kwok(cluster: &ClusterLayout, client: &Client) -> Result<()> {
    let writer = Writer {
        cluster: &cluster.name,
        client,
    };
    writer.cluster_wide::<ClusterRole>("playground-kwok", json!({
        "rules": [
            { "apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"] },
            { "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete"] },
            { "apiGroups": [""], "resources": ["nodes/status", "pods/status"], "verbs": ["patch", "update"] },
            { "apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch", "update"] },
            { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "list", "watch", "create", "patch", "update"] },
        ],
    })).await?;
    let binding = json!({ "roleRef": role_ref("ClusterRole", "playground-kwok"), "subjects": [user(KWOK_USER)] });
    writer
        .cluster_wide::<ClusterRoleBinding>("playground-kwok", binding)
        .await
}

/// Creates the real nodes before their kubelets start, so their pod ranges are set by then, and
/// removes nodes that are gone. It sets the labels that a kubelet may not set itself. Returns the
/// pod ranges of each node, in the order of the nodes.
pub(crate) async fn ensure_nodes(
    cluster: &ClusterLayout,
    client: &Client,
) -> Result<Vec<Vec<String>>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let present = nodes
        .list(&ListParams::default())
        .await
        .map_err(Error::kubernetes("list the nodes", &cluster.name))?
        .items;
    let is_gone = |node: &&Node| {
        node.annotations().contains_key(REAL_NODE_ANNOTATION)
            && cluster
                .nodes
                .iter()
                .all(|wanted| wanted.name != node.name_any())
    };
    let gone: Vec<String> = present
        .iter()
        .filter(is_gone)
        .map(ResourceExt::name_any)
        .collect();
    fake_nodes::remove(&cluster.name, client, &gone).await?;

    let ranges_of = |node: &Node| {
        node.spec
            .as_ref()
            .and_then(|spec| spec.pod_cidrs.clone())
            .unwrap_or_default()
    };
    let mut taken: Vec<String> = present
        .iter()
        .filter(|node| !is_gone(node))
        .flat_map(ranges_of)
        .collect();
    let writer = Writer {
        cluster: &cluster.name,
        client,
    };
    let mut ranges = Vec::new();
    for node in &cluster.nodes {
        let own = present
            .iter()
            .find(|present| present.name_any() == node.name)
            .map(ranges_of);
        // The controller manager takes seconds to assign ranges, and has too few for many nodes; it
        // keeps ranges that are set.
        let free =
            || free_pod_range(&cluster.spec, &taken).map(|third| pod_ranges(&cluster.spec, third));
        let of_node = own
            .filter(|own| !own.is_empty())
            .or_else(free)
            .ok_or_else(|| Error::ClusterSpec {
                cluster: cluster.name.clone(),
                reason: format!(
                    "no part of {} is left for node {}: ask for fewer nodes",
                    cluster.spec.pod_range(),
                    node.name
                ),
            })?;
        let mut labels = json!({ NODE_KIND_LABEL: REAL_NODE });
        if node.first {
            labels["node-role.kubernetes.io/control-plane"] = json!("");
        }
        let object = json!({
            "metadata": { "labels": labels, "annotations": { REAL_NODE_ANNOTATION: "" } },
            "spec": { "podCIDR": of_node[0], "podCIDRs": of_node },
        });
        writer.cluster_wide::<Node>(&node.name, object).await?;
        taken.extend(of_node.iter().cloned());
        ranges.push(of_node);
    }
    Ok(ranges)
}

/// The IPv4 range of a cluster's node with this number.
fn pod_range(spec: &ClusterSpec, number: u8) -> String {
    format!("10.{}.{number}.0/24", spec.pod_octet)
}

/// The first node's number whose range no node has. Only the lower half of the cluster's range is
/// for real nodes.
fn free_pod_range(spec: &ClusterSpec, taken: &[String]) -> Option<u8> {
    (0..MAX_NODES).find(|number| !taken.contains(&pod_range(spec, *number)))
}

/// The ranges of a node: 10.244.12.0/24, and with both families the /64 with the same number,
/// `fd00:10:244:c::/64`. The controller manager numbers ranges in the same way.
fn pod_ranges(spec: &ClusterSpec, number: u8) -> Vec<String> {
    let begin = spec
        .pod_range_v6()
        .split_once('/')
        .and_then(|(begin, _)| begin.parse::<Ipv6Addr>().ok());
    let ipv6 = begin.filter(|_| spec.dual_stack).map(|begin| {
        let [first, second, range, ..] = begin.segments();
        format!(
            "{}/64",
            Ipv6Addr::new(first, second, range, number.into(), 0, 0, 0, 0)
        )
    });
    std::iter::once(pod_range(spec, number))
        .chain(ipv6)
        .collect()
}

/// Cordons a node, deletes its pods, and waits some seconds for them to end.
pub(crate) async fn drain(
    cluster: &ClusterLayout,
    client: &Client,
    node: &NodeLayout,
) -> Result<()> {
    const SECONDS: u32 = 5;
    let nodes: Api<Node> = Api::all(client.clone());
    // An earlier version may have created the node without the annotation by which `up` finds nodes
    // to remove.
    let cordon = json!({ "metadata": { "annotations": { REAL_NODE_ANNOTATION: "" } }, "spec": { "unschedulable": true } });
    let cordon = Patch::Merge(cordon);
    match nodes
        .patch(&node.name, &PatchParams::default(), &cordon)
        .await
    {
        Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
        cordoned => cordoned.map_err(Error::kubernetes(
            format!("cordon node {}", node.name),
            &cluster.name,
        ))?,
    };
    fake_nodes::delete_pods(&cluster.name, client, &node.name, SECONDS, is_drained).await?;
    let pods: Api<Pod> = Api::all(client.clone());
    let on_node = ListParams::default().fields(&format!("spec.nodeName={}", node.name));
    let empty = || async {
        pods.list(&on_node)
            .await
            .is_ok_and(|pods| !pods.items.iter().any(is_drained))
            .then_some(())
    };
    // Pods that do not end in time end with the node.
    let _ = poll(Duration::from_secs(u64::from(SECONDS) * 2), empty).await;
    Ok(())
}

/// A `DaemonSet` would create its pod again at once.
fn is_drained(pod: &Pod) -> bool {
    pod.owner_references()
        .iter()
        .all(|owner| owner.kind != "DaemonSet")
}
/// The configuration of a name server for this domain.
fn corefile(domain: &str) -> String {
    format!(
        ".:53 {{
    errors
    health
    ready
    kubernetes {domain} in-addr.arpa ip6.arpa {{
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }}
    cache 30
    reload
}}
"
    )
}

/// One replica on every real node, so the loss of a node affects no other node.
async fn name_server(writer: &Writer<'_>, cluster: &ClusterLayout) -> Result<()> {
    let nodes = cluster.nodes.len();
    let labels = json!({ "k8s-app": "kube-dns" });
    writer
        .namespaced::<ServiceAccount>("kube-system", "coredns", json!({}))
        .await?;
    writer.cluster_wide::<ClusterRole>("system:coredns", json!({
        "rules": [
            { "apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"] },
            { "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"] },
        ],
    })).await?;
    writer
        .cluster_wide::<ClusterRoleBinding>(
            "system:coredns",
            json!({
                "roleRef": role_ref("ClusterRole", "system:coredns"),
                "subjects": [{ "kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system" }],
            }),
        )
        .await?;
    let configuration = json!({ "data": { "Corefile": corefile(&cluster.spec.cluster_domain) } });
    writer
        .namespaced::<ConfigMap>("kube-system", "coredns", configuration)
        .await?;
    writer
        .namespaced::<Service>(
            "kube-system",
            "kube-dns",
            json!({
                "metadata": { "labels": labels },
                "spec": {
                    "clusterIP": DNS_SERVICE_ADDRESS,
                    "selector": labels,
                    "ports": [
                        { "name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53 },
                        { "name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53 },
                    ],
                },
            }),
        )
        .await?;
    let probe = |path: &str, port: u16| json!({ "httpGet": { "path": path, "port": port }, "periodSeconds": 2, "timeoutSeconds": 2 });
    writer.namespaced::<Deployment>("kube-system", "coredns", json!({
        "metadata": { "labels": labels },
        "spec": {
            "replicas": nodes,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "serviceAccountName": "coredns",
                    "priorityClassName": "system-cluster-critical",
                    "dnsPolicy": "Default",
                    "tolerations": [{ "key": "CriticalAddonsOnly", "operator": "Exists" }],
                    "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{ "matchExpressions": [{ "key": NODE_KIND_LABEL, "operator": "NotIn", "values": [FAKE_NODE] }] }],
                    } } },
                    "topologySpreadConstraints": [{
                        "topologyKey": "kubernetes.io/hostname",
                        "maxSkew": 1,
                        // The replica of a node that does not exist yet stays Pending.
                        "minDomains": nodes,
                        "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": { "matchLabels": labels },
                        "matchLabelKeys": ["pod-template-hash"],
                    }],
                    "containers": [{
                        "name": "coredns",
                        "image": COREDNS,
                        "args": ["-conf", "/etc/coredns/Corefile"],
                        "ports": [{ "containerPort": 53, "protocol": "UDP", "name": "dns" }, { "containerPort": 53, "protocol": "TCP", "name": "dns-tcp" }],
                        "readinessProbe": probe("/ready", 8181),
                        "resources": { "requests": { "cpu": "10m", "memory": "30Mi" } },
                        "volumeMounts": [{ "name": "config", "mountPath": "/etc/coredns", "readOnly": true }],
                    }],
                    "volumes": [{ "name": "config", "configMap": { "name": "coredns" } }],
                },
            },
        },
    })).await
}

fn role_ref(kind: &str, name: &str) -> Value {
    json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name })
}

fn user(name: &str) -> Value {
    json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name })
}

struct Writer<'a> {
    cluster: &'a str,
    client: &'a Client,
}

impl Writer<'_> {
    async fn cluster_wide<K>(&self, name: &str, object: Value) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
            + DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        self.apply::<K>(&Api::all(self.client.clone()), name, object)
            .await
    }

    async fn namespaced<K>(&self, namespace: &str, name: &str, object: Value) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        self.apply::<K>(
            &Api::namespaced(self.client.clone(), namespace),
            name,
            object,
        )
        .await
    }

    async fn apply<K>(&self, api: &Api<K>, name: &str, mut object: Value) -> Result<()>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        object["metadata"]["name"] = json!(name);
        let parameters = PatchParams::apply("liqo-playground").force();
        let written = api.patch(name, &parameters, &Patch::Apply(object)).await;
        written.map(drop).map_err(Error::kubernetes(
            format!("write {} {name}", K::kind(&())),
            self.cluster,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_server_answers_for_the_domain_of_the_cluster() {
        assert!(
            corefile("rome.example")
                .contains("\n    kubernetes rome.example in-addr.arpa ip6.arpa {\n")
        );
    }

    #[test]
    fn a_node_gets_the_first_range_that_no_other_has() {
        let taken = |ranges: &[&str]| {
            ranges
                .iter()
                .map(|range| (*range).to_owned())
                .collect::<Vec<_>>()
        };
        let rome = ClusterSpec::new("rome");
        assert_eq!(free_pod_range(&rome, &[]), Some(0));
        assert_eq!(
            free_pod_range(&rome, &taken(&["10.244.0.0/24", "10.244.2.0/24"])),
            Some(1)
        );
        let all: Vec<_> = (0..=255)
            .map(|third| format!("10.244.{third}.0/24"))
            .collect();
        assert_eq!(free_pod_range(&rome, &all[..127]), Some(127));
        assert_eq!(free_pod_range(&rome, &all), None);
    }

    #[test]
    fn a_node_with_both_families_has_a_second_range_of_the_same_number() {
        let both = ClusterSpec {
            dual_stack: true,
            ..ClusterSpec::new("rome")
        };
        assert_eq!(
            pod_ranges(&both, 12),
            ["10.244.12.0/24", "fd00:10:244:c::/64"]
        );
        assert_eq!(pod_ranges(&both, 0), ["10.244.0.0/24", "fd00:10:244::/64"]);
        assert_eq!(
            pod_ranges(
                &ClusterSpec {
                    pod_octet: 245,
                    ..both
                },
                1
            ),
            ["10.245.1.0/24", "fd00:10:245:1::/64"]
        );
        assert_eq!(
            pod_ranges(&ClusterSpec::new("rome"), 12),
            ["10.244.12.0/24"]
        );
    }
}

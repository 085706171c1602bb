//! What a cluster needs besides its programs: rights for its API server, its public description, its name server.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Node, Service, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    configuration::cluster_info,
    error::{Error, Result},
    image::COREDNS,
    layout::{ClusterLayout, DNS_SERVICE_ADDRESS, NodeLayout},
};

/// Of [`crate::POD_RANGE`].
const FIRST_POD_RANGE: &str = "10.244.0.0/24";
const COREFILE: &str = ".:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }
    cache 30
    reload
}
";

/// Writes all objects; those that are as wanted stay untouched.
pub(crate) async fn apply(cluster: &ClusterLayout, client: &Client, ca: &str) -> Result<()> {
    let writer = Writer { cluster: &cluster.name, client };
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
    writer.namespaced::<ConfigMap>("kube-public", "cluster-info", json!({ "data": { "kubeconfig": kubeconfig } })).await?;
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
    name_server(&writer).await
}

/// Makes the node before its kubelet starts, so that it has its pod range by then, and says on which one the control plane runs: a kubelet may
/// not say that of itself.
pub(crate) async fn ensure_node(cluster: &ClusterLayout, client: &Client, node: &NodeLayout) -> Result<()> {
    let writer = Writer { cluster: &cluster.name, client };
    let first = json!({
        "metadata": { "labels": { "node-role.kubernetes.io/control-plane": "" } },
        // The controller manager takes seconds to hand out the first range; it leaves alone what is set, and no other node can have it yet.
        "spec": { "podCIDR": FIRST_POD_RANGE, "podCIDRs": [FIRST_POD_RANGE] },
    });
    writer.cluster_wide::<Node>(&node.name, if node.first { first } else { json!({}) }).await
}

async fn name_server(writer: &Writer<'_>) -> Result<()> {
    let labels = json!({ "k8s-app": "kube-dns" });
    writer.namespaced::<ServiceAccount>("kube-system", "coredns", json!({})).await?;
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
    writer.namespaced::<ConfigMap>("kube-system", "coredns", json!({ "data": { "Corefile": COREFILE } })).await?;
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
    let probe =
        |path: &str, port: u16| json!({ "httpGet": { "path": path, "port": port }, "periodSeconds": 2, "timeoutSeconds": 2 });
    writer.namespaced::<Deployment>("kube-system", "coredns", json!({
        "metadata": { "labels": labels },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "serviceAccountName": "coredns",
                    "priorityClassName": "system-cluster-critical",
                    "dnsPolicy": "Default",
                    "tolerations": [{ "key": "CriticalAddonsOnly", "operator": "Exists" }],
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
        K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        self.apply::<K>(&Api::all(self.client.clone()), name, object).await
    }

    async fn namespaced<K>(&self, namespace: &str, name: &str, object: Value) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        self.apply::<K>(&Api::namespaced(self.client.clone(), namespace), name, object).await
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
        written.map(drop).map_err(Error::kubernetes(format!("write {} {name}", K::kind(&())), self.cluster))
    }
}

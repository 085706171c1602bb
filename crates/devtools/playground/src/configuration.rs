//! The configuration files of a node's and a cluster's programs. Pure: layout in, text out.

use std::path::Path;

use serde_json::{Value, json};

use crate::{
    image::PAUSE,
    layout::{ClusterLayout, DNS_SERVICE_ADDRESS, NodeLayout},
    spec::ClusterSpec,
};

/// Where the CNI plugins are and what the node's file system can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostFacts {
    pub cni_plugins: String,
    /// `overlayfs`, or `native` where the state directory is itself an overlay.
    pub snapshotter: &'static str,
    /// Whether `iptables` is installed: the portmap plugin needs it.
    pub iptables: bool,
}

/// containerd's configuration, version 2. All its paths are in the node's directory.
pub(crate) fn containerd(node: &NodeLayout, facts: &HostFacts) -> String {
    let dir = node.dir.display();
    let (plugins, cni, snapshotter) = (&facts.cni_plugins, node.cni_directory(), facts.snapshotter);
    format!(
        r#"version = 2
root = "{dir}/containerd"
state = "{dir}/run"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]

[grpc]
  address = "{socket}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        Root = "{dir}/run/runc"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{cni}"
"#,
        socket = node.containerd_socket().display(),
        cni = cni.display(),
    )
}

/// The pod network of one node: its own bridge. Nothing is masqueraded here, so pod addresses stay
/// visible between the nodes.
pub(crate) fn cni(node: &NodeLayout, pod_ranges: &[String], facts: &HostFacts) -> Value {
    let ranges: Vec<_> = pod_ranges
        .iter()
        .map(|range| json!([{ "subnet": range }]))
        .collect();
    let everywhere = |range: &String| {
        if range.contains(':') {
            "::/0"
        } else {
            "0.0.0.0/0"
        }
    };
    let routes: Vec<_> = pod_ranges
        .iter()
        .map(|range| json!({ "dst": everywhere(range) }))
        .collect();
    let mut plugins = vec![json!({
        "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
        "ipam": {
            "type": "host-local",
            "dataDir": node.dir.join("ipam"),
            "ranges": ranges,
            "routes": routes,
        },
    })];
    if facts.iptables {
        plugins.push(json!({ "type": "portmap", "capabilities": { "portMappings": true } }));
    }
    json!({ "cniVersion": "0.4.0", "name": node.namespace, "plugins": plugins })
}

/// Packets that leave the pod range get the node's address as their source.
pub(crate) fn masquerade(spec: &ClusterSpec, node: &NodeLayout) -> String {
    let of_family = |family: &str, pods: &str, multicast: &str| {
        format!(
            "table {family} liqo-playground\ndelete table {family} liqo-playground\ntable {family} liqo-playground {{\n  chain postrouting {{\n    type nat hook postrouting priority srcnat\n    {family} saddr {pods} {family} daddr != {{ {pods}, {multicast} }} masquerade\n  }}\n}}\n"
        )
    };
    let v4 = of_family("ip", &spec.pod_range(), "224.0.0.0/4");
    if node.address_v6.is_some() {
        v4 + &of_family("ip6", &spec.pod_range_v6(), "ff00::/8")
    } else {
        v4
    }
}

/// The kubelet's configuration.
pub(crate) fn kubelet(cluster: &ClusterLayout, node: &NodeLayout) -> Value {
    let mut configuration = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": cluster.pki("ca.crt") },
        },
        "authorization": { "mode": "Webhook" },
        "address": node.address,
        "tlsCertFile": cluster.pki(&format!("{}-server.crt", node.name)),
        "tlsPrivateKeyFile": cluster.pki(&format!("{}-server.key", node.name)),
        "containerRuntimeEndpoint": format!("unix://{}", node.containerd_socket().display()),
        "clusterDNS": [DNS_SERVICE_ADDRESS],
        "clusterDomain": cluster.spec.cluster_domain,
        "resolvConf": node.dir.join("resolv.conf"),
        "podLogsDir": node.dir.join("pod-logs"),
        "volumePluginDir": node.dir.join("volume-plugins"),
        "cgroupDriver": "cgroupfs",
        // Kubelets that share a root delete each other's pods.
        "cgroupRoot": format!("/{}", node.cgroup),
        "failCgroupV1": false,
        "failSwapOn": false,
        "makeIPTablesUtilChains": false,
        "oomScoreAdj": 0,
        // Turns errors about sysctls and OOM scores, which root in a container may not set, into
        // warnings.
        "featureGates": { "KubeletInUserNamespace": true },
        // Imported images cannot be pulled again, and a developer's disk is often nearly full.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": { "imagefs.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "memory.available": "50Mi" },
        "logging": { "verbosity": 1 },
    });
    if let Some(seconds) = cluster.spec.node_grace_seconds {
        // It renews its lease after a quarter of this.
        configuration["nodeLeaseDurationSeconds"] = json!(seconds);
    }
    if let Some(seconds) = cluster.spec.pod_sync_seconds {
        configuration["syncFrequency"] = json!(format!("{seconds}s"));
    }
    configuration
}

/// The API server logs all requests that change something, with the user but without the content.
pub(crate) fn audit_policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            { "level": "None", "verbs": ["get", "list", "watch"] },
            { "level": "Metadata" },
        ],
    })
}

/// A kubeconfig for one of the cluster's certificates. It embeds them, so the file can be copied.
pub(crate) fn kubeconfig(
    cluster: &ClusterLayout,
    user: &str,
    ca: &str,
    certificate: &str,
    key: &str,
) -> Value {
    let encode = |text: &str| data_encoding::BASE64.encode(text.as_bytes());
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": cluster.name, "cluster": { "server": cluster.api_url(), "certificate-authority-data": encode(ca) } }],
        "users": [{ "name": user, "user": { "client-certificate-data": encode(certificate), "client-key-data": encode(key) } }],
        "contexts": [{ "name": cluster.name, "context": { "cluster": cluster.name, "user": user } }],
        "current-context": cluster.name,
    })
}

/// The kubeconfig that a cluster publishes in kube-public. It contains no user.
pub(crate) fn cluster_info(cluster: &ClusterLayout, ca: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "", "cluster": {
            "server": cluster.api_url(),
            "certificate-authority-data": data_encoding::BASE64.encode(ca.as_bytes()),
        } }],
        "contexts": null, "current-context": "", "preferences": {}, "users": null,
    })
}

/// Whether the file system of the state directory supports overlay mounts.
pub(crate) fn snapshotter(directory: &Path) -> &'static str {
    const OVERLAYFS_MAGIC: i64 = 0x794c_7630;
    match rustix::fs::statfs(directory) {
        #[allow(clippy::useless_conversion)] // The field's width differs between architectures.
        Ok(facts) if i64::from(facts.f_type) == OVERLAYFS_MAGIC => "native",
        _ => "overlayfs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{ClusterState, Instance};

    fn cluster() -> ClusterLayout {
        let state = ClusterState {
            spec: ClusterSpec::new("rome"),
            nodes: vec![10, 11],
        };
        Instance::new("test").unwrap().layout(7, &state)
    }

    fn facts() -> HostFacts {
        HostFacts {
            cni_plugins: "/usr/lib/cni".to_owned(),
            snapshotter: "overlayfs",
            iptables: false,
        }
    }

    #[test]
    fn two_kubelets_share_no_cgroup_root() {
        let cluster = cluster();
        let roots: Vec<_> = cluster
            .nodes
            .iter()
            .map(|node| kubelet(&cluster, node)["cgroupRoot"].clone())
            .collect();
        assert_eq!(roots, ["/lp-test-rome-1", "/lp-test-rome-2"]);
    }

    #[test]
    fn containerd_keeps_everything_in_the_directory_of_its_node() {
        let text = containerd(&cluster().nodes[0], &facts());
        let paths = text
            .split('"')
            .filter(|part| part.starts_with('/'))
            .filter(|path| *path != "/usr/lib/cni");
        let outside: Vec<_> = paths
            .filter(|path| !path.starts_with("/var/lib/liqo-playground/test/rome/rome-1/"))
            .collect();
        assert_eq!(outside, Vec::<&str>::new());
    }

    #[test]
    fn the_port_map_plugin_is_omitted_without_iptables() {
        let node = &cluster().nodes[0];
        let ranges = ["10.244.0.0/24".to_owned()];
        let with = cni(
            node,
            &ranges,
            &HostFacts {
                iptables: true,
                ..facts()
            },
        );
        assert_eq!(with["plugins"].as_array().unwrap().len(), 2);
        assert_eq!(
            cni(node, &ranges, &facts())["plugins"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
    }

    #[test]
    fn a_pod_has_an_address_and_a_route_of_each_family() {
        let ranges = ["10.244.3.0/24", "fd00:10:244:3::/64"].map(str::to_owned);
        let written = cni(&cluster().nodes[0], &ranges, &facts());
        let ipam = &written["plugins"][0]["ipam"];
        assert_eq!(
            ipam["ranges"],
            json!([[{ "subnet": "10.244.3.0/24" }], [{ "subnet": "fd00:10:244:3::/64" }]])
        );
        assert_eq!(
            ipam["routes"],
            json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }])
        );
    }

    #[test]
    fn cluster_info_contains_no_user() {
        let info = cluster_info(&cluster(), "CA");
        assert_eq!(
            info["clusters"][0]["cluster"]["server"],
            "https://172.30.7.10:6443"
        );
        assert!(info["users"].is_null());
    }
}

//! Writes everything that the programs of a cluster read before they start.

use std::{fs, path::Path};

use crate::{
    binaries::Programs,
    components::{self, Definition},
    configuration::{self, HostFacts},
    error::Result,
    files::{make_directory, read, write, write_json},
    kwok,
    layout::{ClusterLayout, NodeLayout},
    network, pki,
};

/// Writes all files that a cluster's programs read.
pub(crate) fn prepare(
    cluster: &ClusterLayout,
    programs: &Programs,
    facts: &HostFacts,
) -> Result<()> {
    for directory in ["etcd", "logs", "pki"] {
        make_directory(&cluster.dir.join(directory))?;
    }
    pki::issue(cluster)?;
    if !cluster.pki("root-ca.crt").exists() {
        pki::publish(cluster, false)?;
    }
    let ca = pki::trusted(cluster)?;
    let kubeconfig = |path: &Path, file: &str| {
        let pem = |suffix: &str| read(&cluster.pki(&format!("{file}.{suffix}")));
        write_json(
            path,
            &configuration::kubeconfig(cluster, file, &ca, &pem("crt")?, &pem("key")?),
        )
    };
    kubeconfig(&cluster.kubeconfig(), "admin")?;
    for user in ["controller-manager", "scheduler", "kube-proxy"] {
        kubeconfig(&cluster.dir.join(format!("{user}.kubeconfig")), user)?;
    }
    if cluster.has_fake_nodes() {
        kubeconfig(&cluster.dir.join("kwok.kubeconfig"), "kwok")?;
        write(&cluster.dir.join("kwok.yaml"), &kwok::configuration())?;
    }
    if cluster.spec.network_policies {
        kubeconfig(&cluster.dir.join("kube-router.kubeconfig"), "kube-router")?;
    }
    write_json(
        &cluster.dir.join("audit-policy.json"),
        &configuration::audit_policy(),
    )?;
    for node in &cluster.nodes {
        for directory in ["kubelet", "pod-logs", "volume-plugins", "cni"] {
            make_directory(&node.dir.join(directory))?;
        }
        kubeconfig(
            &node.dir.join("kubelet.kubeconfig"),
            &format!("{}-client", node.name),
        )?;
        write(
            &node.dir.join("containerd.toml"),
            &configuration::containerd(node, facts),
        )?;
        write(
            &node.dir.join("resolv.conf"),
            "# Nothing is upstream of a playground.\n",
        )?;
        write_json(
            &node.dir.join("kubelet.json"),
            &configuration::kubelet(cluster, node),
        )?;
    }
    let mut definitions = components::definitions(cluster, programs);
    for definition in &mut definitions {
        definition.namespace_inode = network::namespace_inode(&definition.namespace)?;
    }
    write_definitions(cluster, definitions)
}

/// The programs that the supervisor runs for a cluster.
pub(crate) fn read_definitions(cluster: &ClusterLayout) -> Vec<Definition> {
    let text = fs::read(cluster.components_file()).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Removes the programs of these nodes from the definitions that the supervisor reads.
pub(crate) fn retire(cluster: &ClusterLayout, nodes: &[NodeLayout]) -> Result<()> {
    let mut definitions = read_definitions(cluster);
    definitions.retain(|definition| !nodes.iter().any(|node| node.runs(&definition.component)));
    write_definitions(cluster, definitions)
}

fn write_definitions(cluster: &ClusterLayout, definitions: Vec<Definition>) -> Result<()> {
    write_json(
        &cluster.components_file(),
        &serde_json::to_value(definitions).unwrap_or_default(),
    )
}

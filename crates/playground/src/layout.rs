//! Names, addresses and paths: where everything of a playground is, so that it is found again after a crash.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Every pod of every cluster has an address from here: overlap is the normal case.
pub const POD_RANGE: &str = "10.244.0.0/16";
/// Every Service of every cluster has an address from here.
pub const SERVICE_RANGE: &str = "10.96.0.0/12";
/// The Service `kubernetes` in the namespace `default`.
pub const API_SERVICE_ADDRESS: &str = "10.96.0.1";
/// The cluster's name server.
pub const DNS_SERVICE_ADDRESS: &str = "10.96.0.10";

/// The environment variable that every process of a playground bears: `INSTANCE/CLUSTER/COMPONENT`.
pub(crate) const MARK: &str = "LIQO_PLAYGROUND";

/// What a cluster shall be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterSpec {
    /// Its name: 1 to 16 lower-case letters, digits and dashes.
    pub name: String,
    /// How many nodes it has, at least one. The first one also runs the control plane.
    pub nodes: u8,
    /// Raise the client limits of controller manager and scheduler, whose defaults of 20 requests a second hide everything else in benchmarks.
    #[serde(default)]
    pub raised_client_limits: bool,
}

impl ClusterSpec {
    /// A cluster of one node.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), nodes: 1, raised_client_limits: false }
    }
}

/// The state of an instance that must outlive the process: `instance.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InstanceState {
    /// Third octet of the subnet 172.30.x.0/24.
    pub subnet: u8,
    pub clusters: Vec<ClusterState>,
}

/// One cluster and where its nodes are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClusterState {
    pub spec: ClusterSpec,
    /// The last octet of each node's address.
    pub nodes: Vec<u8>,
}

impl InstanceState {
    /// Adds the clusters that are not there yet, and nodes to those that have too few.
    pub fn want(&mut self, instance: &str, specs: &[ClusterSpec]) -> Result<()> {
        for spec in specs {
            check_cluster_name(&spec.name)?;
            let position = self.clusters.iter().position(|cluster| cluster.spec.name == spec.name).unwrap_or_else(|| {
                self.clusters.push(ClusterState { spec: spec.clone(), nodes: Vec::new() });
                self.clusters.len() - 1
            });
            while self.clusters[position].nodes.len() < usize::from(spec.nodes.max(1)) {
                let taken = |octet: &u8| self.clusters.iter().any(|cluster| cluster.nodes.contains(octet));
                let octet =
                    (10..=250).find(|octet| !taken(octet)).ok_or_else(|| Error::NoAddress { instance: instance.to_owned() })?;
                self.clusters[position].nodes.push(octet);
            }
            self.clusters[position].spec = spec.clone();
        }
        Ok(())
    }
}

/// A playground's name and what follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    pub name: String,
    pub root: PathBuf,
}

impl Instance {
    pub fn new(name: &str) -> Result<Self> {
        let valid = (1..=8).contains(&name.len())
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        if !valid {
            return Err(Error::InstanceName { name: name.to_owned() });
        }
        Ok(Self { name: name.to_owned(), root: Path::new("/var/lib/liqo-playground").join(name) })
    }

    /// How the names of all objects on the host begin: at most 12 characters, since interface names have 15.
    pub fn prefix(&self) -> String {
        format!("lp-{}-", self.name)
    }

    pub fn bridge(&self) -> String {
        format!("lp-{}", self.name)
    }

    pub fn state_file(&self) -> PathBuf {
        self.root.join("instance.json")
    }

    /// Outside of the instance's directory, so that it can be held while that is removed.
    pub fn lock_file(&self) -> PathBuf {
        self.root.with_extension("lock")
    }

    pub fn supervisor_socket(&self) -> PathBuf {
        self.root.join("supervisor.sock")
    }

    pub fn supervisor_log(&self) -> PathBuf {
        self.root.join("supervisor.log")
    }

    /// The cluster with the places of its nodes.
    pub fn layout(&self, subnet: u8, state: &ClusterState) -> ClusterLayout {
        let name = state.spec.name.clone();
        let dir = self.root.join(&name);
        let nodes = state.nodes.iter().enumerate().map(|(index, octet)| {
            let node = format!("{name}-{}", index + 1);
            NodeLayout {
                address: Ipv4Addr::new(172, 30, subnet, *octet),
                namespace: format!("{}{node}", self.prefix()),
                cgroup: format!("{}{node}", self.prefix()),
                link: format!("{}{octet}", self.prefix()),
                dir: dir.join(&node),
                first: index == 0,
                name: node,
            }
        });
        ClusterLayout {
            instance: self.name.clone(),
            bridge: self.bridge(),
            gateway: gateway(subnet),
            nodes: nodes.collect(),
            spec: state.spec.clone(),
            dir,
            name,
        }
    }
}

/// The address of the host on an instance's bridge.
pub(crate) fn gateway(subnet: u8) -> Ipv4Addr {
    Ipv4Addr::new(172, 30, subnet, 1)
}

/// One cluster's names and paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClusterLayout {
    pub instance: String,
    pub name: String,
    pub spec: ClusterSpec,
    pub dir: PathBuf,
    pub bridge: String,
    pub gateway: Ipv4Addr,
    /// Never empty.
    pub nodes: Vec<NodeLayout>,
}

/// One node's names and paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeLayout {
    pub name: String,
    pub address: Ipv4Addr,
    /// Network namespace, as in `ip netns`.
    pub namespace: String,
    /// Directory in every cgroup hierarchy.
    pub cgroup: String,
    /// The host's end of the node's link.
    pub link: String,
    pub dir: PathBuf,
    /// Whether the control plane runs here.
    pub first: bool,
}

impl ClusterLayout {
    pub fn address(&self) -> Ipv4Addr {
        self.nodes[0].address
    }

    pub fn api_url(&self) -> String {
        format!("https://{}:6443", self.address())
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    pub fn pki(&self, file: &str) -> PathBuf {
        self.dir.join("pki").join(file)
    }

    pub fn log(&self, component: &str) -> PathBuf {
        self.dir.join("logs").join(format!("{component}.log"))
    }

    pub fn audit_log(&self) -> PathBuf {
        self.dir.join("logs/audit.log")
    }

    pub fn components_file(&self) -> PathBuf {
        self.dir.join("components.json")
    }

    /// The mark of all processes of this cluster begins so.
    pub fn mark(&self) -> String {
        format!("{}/{}/", self.instance, self.name)
    }
}

impl NodeLayout {
    pub fn containerd_socket(&self) -> PathBuf {
        self.dir.join("containerd.sock")
    }

    pub fn cni_directory(&self) -> PathBuf {
        self.dir.join("cni")
    }

    pub fn cni_file(&self) -> PathBuf {
        self.cni_directory().join("10-bridge.conflist")
    }
}

fn check_cluster_name(name: &str) -> Result<()> {
    let valid = (1..=16).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        // These names stand in the instance's directory already.
        && !name.starts_with("supervisor") && !name.starts_with("instance");
    if valid { Ok(()) } else { Err(Error::ClusterName { name: name.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_interfaces_fit_into_fifteen_characters() {
        let instance = Instance::new("abcdefgh").unwrap();
        let state = ClusterState { spec: ClusterSpec::new("rome"), nodes: vec![250] };
        let layout = instance.layout(255, &state);
        assert!(layout.nodes[0].link.len() <= 15, "{}", layout.nodes[0].link);
        assert!(layout.bridge.len() <= 15);
    }

    #[test]
    fn the_longest_names_still_give_short_socket_paths() {
        let instance = Instance::new("abcdefgh").unwrap();
        let state = ClusterState { spec: ClusterSpec::new("abcdefghijklmnop"), nodes: vec![10] };
        let socket = instance.layout(0, &state).nodes[0].dir.join("kubelet/device-plugins/kubelet.sock");
        assert!(socket.as_os_str().len() < 108, "{}", socket.display());
    }

    #[test]
    fn an_instance_never_has_the_prefix_of_another() {
        let (short, long) = (Instance::new("liqo").unwrap(), Instance::new("liqo2").unwrap());
        assert!(!long.prefix().starts_with(&short.prefix()));
    }

    #[test]
    fn odd_names_are_refused() {
        for name in ["", "toolongname", "Liqo", "a/b", "1a", "a-b", ".."] {
            assert!(Instance::new(name).is_err(), "{name}");
        }
        for name in ["", "-a", "a-", "../x", "supervisor.sock", "a.b", "Rome", "abcdefghijklmnopq"] {
            assert!(check_cluster_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn wanting_again_moves_no_node() {
        let mut state = InstanceState { subnet: 0, clusters: Vec::new() };
        state.want("t", &[ClusterSpec::new("rome"), ClusterSpec::new("milan")]).unwrap();
        let before = state.clone();
        state.want("t", &[ClusterSpec::new("milan")]).unwrap();
        assert_eq!(before, state);
        state.want("t", &[ClusterSpec { nodes: 2, ..ClusterSpec::new("rome") }]).unwrap();
        assert_eq!(state.clusters[0].nodes, [10, 12]);
        assert_eq!(state.clusters[1].nodes, [11]);
    }
}

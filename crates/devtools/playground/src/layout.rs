//! Names, addresses and paths of a playground. They follow from its name, so everything can be
//! found again after a crash.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    files,
    spec::ClusterSpec,
};

/// Every pod of a cluster without a range of its own has an address from here: overlap is the
/// normal case.
pub const POD_RANGE: &str = "10.244.0.0/16";
/// Every Service of every cluster has an address from here.
pub const SERVICE_RANGE: &str = "10.96.0.0/12";
/// The same for the second address of pods in clusters with both families: each node has a /64.
pub const POD_RANGE_V6: &str = "fd00:10:244::/48";
/// The Services of every cluster with both families that ask for it have an address from here.
pub const SERVICE_RANGE_V6: &str = "fd00:10:96::/112";
/// Settings for `liqoctl install --set` in a cluster with both families: peers, nodes and API
/// servers also need IPv6 ranges.
pub const DUAL_STACK_SETTINGS: [&str; 2] = [
    "network.peerCIDRs=10.64.0.0/10,100.64.0.0/10,fd64::/16",
    "network.externalCIDRs=10.70.0.0/24,fd70::/120",
];
/// The Service `kubernetes` in the namespace `default`.
pub const API_SERVICE_ADDRESS: &str = "10.96.0.1";
/// The cluster's name server.
pub const DNS_SERVICE_ADDRESS: &str = "10.96.0.10";

/// An environment variable of every process of a playground: `INSTANCE/CLUSTER/COMPONENT`.
pub(crate) const MARK: &str = "LIQO_PLAYGROUND";

/// The state of an instance that must outlive the process: `instance.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InstanceState {
    /// Third octet of the subnet 172.30.x.0/24.
    pub subnet: u8,
    pub clusters: Vec<ClusterState>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClusterState {
    pub spec: ClusterSpec,
    /// The last octet of each node's address.
    pub nodes: Vec<u8>,
}

impl InstanceState {
    /// Adds missing clusters, and adds or removes nodes until each cluster has the wanted number.
    /// The last nodes go first.
    pub fn want(&mut self, instance: &str, specs: &[ClusterSpec]) -> Result<()> {
        for spec in specs {
            spec.check()?;
            let known = self
                .clusters
                .iter()
                .find(|cluster| cluster.spec.name == spec.name);
            if known.is_some_and(|known| known.spec.dual_stack != spec.dual_stack) {
                let families = if spec.dual_stack {
                    "IPv4 alone"
                } else {
                    "both IPv4 and IPv6"
                };
                let reason = format!(
                    "it was brought up with {families}, and stays so until the playground is taken down"
                );
                return Err(Error::ClusterSpec {
                    cluster: spec.name.clone(),
                    reason,
                });
            }
            if let Some(known) =
                known.filter(|known| known.spec.cluster_domain != spec.cluster_domain)
            {
                let domain = &known.spec.cluster_domain;
                let reason = format!(
                    "its domain is {domain}, and stays so until the playground is taken down"
                );
                return Err(Error::ClusterSpec {
                    cluster: spec.name.clone(),
                    reason,
                });
            }
            if let Some(known) = known.filter(|known| known.spec.pod_octet != spec.pod_octet) {
                let range = known.spec.pod_range();
                let reason = format!(
                    "its pods have the range {range}, and keep it until the playground is taken down"
                );
                return Err(Error::ClusterSpec {
                    cluster: spec.name.clone(),
                    reason,
                });
            }
            let position = self
                .clusters
                .iter()
                .position(|cluster| cluster.spec.name == spec.name)
                .unwrap_or_else(|| {
                    self.clusters.push(ClusterState {
                        spec: spec.clone(),
                        nodes: Vec::new(),
                    });
                    self.clusters.len() - 1
                });
            self.clusters[position]
                .nodes
                .truncate(usize::from(spec.nodes));
            while self.clusters[position].nodes.len() < usize::from(spec.nodes) {
                let taken = |octet: &u8| {
                    self.clusters
                        .iter()
                        .any(|cluster| cluster.nodes.contains(octet))
                };
                let octet =
                    (10..=250)
                        .find(|octet| !taken(octet))
                        .ok_or_else(|| Error::NoAddress {
                            instance: instance.to_owned(),
                        })?;
                self.clusters[position].nodes.push(octet);
            }
            // Its rules in the nodes' kernels remain, so the program that keeps them current must
            // remain, too.
            let network_policies =
                spec.network_policies || self.clusters[position].spec.network_policies;
            self.clusters[position].spec = ClusterSpec {
                network_policies,
                ..spec.clone()
            };
        }
        Ok(())
    }

    /// Existing nodes that are no longer wanted, with their clusters.
    pub fn surplus(
        &self,
        instance: &Instance,
        specs: &[ClusterSpec],
    ) -> Vec<(ClusterLayout, Vec<NodeLayout>)> {
        let of_cluster = |cluster: &ClusterState| {
            let spec = specs.iter().rfind(|spec| spec.name == cluster.spec.name)?;
            let layout = instance.layout(self.subnet, cluster);
            let surplus = layout
                .nodes
                .get(usize::from(spec.nodes)..)
                .filter(|nodes| !nodes.is_empty())?
                .to_vec();
            Some((layout, surplus))
        };
        self.clusters.iter().filter_map(of_cluster).collect()
    }
}

/// A playground's name and its root directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    pub name: String,
    pub root: PathBuf,
}

impl Instance {
    pub fn new(name: &str) -> Result<Self> {
        let valid = (1..=8).contains(&name.len())
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        if !valid {
            return Err(Error::InstanceName {
                name: name.to_owned(),
            });
        }
        Ok(Self {
            name: name.to_owned(),
            root: Path::new("/var/lib/liqo-playground").join(name),
        })
    }

    /// The state that the last `up` wrote; nothing if there was none.
    pub fn read_state(&self) -> Result<Option<InstanceState>> {
        let path = self.state_file();
        if !path.exists() {
            return Ok(None);
        }
        let text = std::fs::read(&path).map_err(Error::file("read", &path))?;
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| Error::Damaged {
                path,
                reason: error.to_string(),
            })
    }

    pub fn write_state(&self, state: &InstanceState) -> Result<()> {
        files::write_json(
            &self.state_file(),
            &serde_json::to_value(state).unwrap_or_default(),
        )
    }

    /// Prefix of the names of all objects on the host: at most 12 characters, because interface
    /// names have 15.
    pub fn prefix(&self) -> String {
        format!("lp-{}-", self.name)
    }

    pub fn bridge(&self) -> String {
        format!("lp-{}", self.name)
    }

    pub fn state_file(&self) -> PathBuf {
        self.root.join("instance.json")
    }

    /// Outside of the instance's directory, so the lock can be held while the directory is removed.
    pub fn lock_file(&self) -> PathBuf {
        self.root.with_extension("lock")
    }

    pub fn supervisor_socket(&self) -> PathBuf {
        self.root.join("supervisor.sock")
    }

    pub fn supervisor_log(&self) -> PathBuf {
        self.root.join("supervisor.log")
    }

    /// The layout of a cluster and its nodes.
    pub fn layout(&self, subnet: u8, state: &ClusterState) -> ClusterLayout {
        let name = state.spec.name.clone();
        let dir = self.root.join(&name);
        let nodes = state.nodes.iter().enumerate().map(|(index, octet)| {
            let node = format!("{name}-{}", index + 1);
            NodeLayout {
                address: Ipv4Addr::new(172, 30, subnet, *octet),
                address_v6: state.spec.dual_stack.then(|| address_v6(subnet, *octet)),
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
            gateway_v6: gateway_v6(subnet),
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

pub(crate) fn gateway_v6(subnet: u8) -> Ipv6Addr {
    address_v6(subnet, 1)
}

/// Looks like the IPv4 address: 172.30.7.11 is `fd00:172:30:7::11`.
fn address_v6(subnet: u8, octet: u8) -> Ipv6Addr {
    Ipv6Addr::new(
        0xfd00,
        0x172,
        0x30,
        as_written(subnet),
        0,
        0,
        0,
        as_written(octet),
    )
}

/// The number whose hexadecimal digits are the decimal digits of `number`.
fn as_written(number: u8) -> u16 {
    let number = u16::from(number);
    number / 100 * 0x100 + number / 10 % 10 * 0x10 + number % 10
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
    /// Used only in clusters with both families.
    pub gateway_v6: Ipv6Addr,
    /// Never empty.
    pub nodes: Vec<NodeLayout>,
}

/// One node's names and paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeLayout {
    pub name: String,
    pub address: Ipv4Addr,
    /// Only in clusters with both families.
    pub address_v6: Option<Ipv6Addr>,
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

    /// Whether kwok must run.
    pub fn has_fake_nodes(&self) -> bool {
        self.spec.fake_nodes.count > 0
    }

    /// The ranges of its pods, one of each family that it has.
    pub fn pod_ranges(&self) -> String {
        self.of_families(&self.spec.pod_range(), &self.spec.pod_range_v6())
    }

    pub fn service_ranges(&self) -> String {
        self.of_families(SERVICE_RANGE, SERVICE_RANGE_V6)
    }

    fn of_families(&self, v4: &str, v6: &str) -> String {
        if self.spec.dual_stack {
            format!("{v4},{v6}")
        } else {
            v4.to_owned()
        }
    }

    pub fn node(&self, name: &str) -> Result<&NodeLayout> {
        let missing = || Error::NoSuchNode {
            cluster: self.name.clone(),
            kind: "node",
            name: name.to_owned(),
        };
        self.nodes
            .iter()
            .find(|node| node.name == name)
            .ok_or_else(missing)
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

    /// Where the gateways of this cluster store their keys.
    pub fn keys(&self) -> PathBuf {
        self.dir.join("keys")
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

    /// Prefix of the marks of all processes of this cluster.
    pub fn mark(&self) -> String {
        format!("{}/{}/", self.instance, self.name)
    }
}

impl NodeLayout {
    /// Its addresses, IPv4 first.
    pub fn addresses(&self) -> Vec<IpAddr> {
        std::iter::once(self.address.into())
            .chain(self.address_v6.map(IpAddr::from))
            .collect()
    }

    /// The component name of a program on this node.
    pub fn component(&self, program: &str) -> String {
        if self.first {
            program.to_owned()
        } else {
            format!("{program}@{}", self.name)
        }
    }

    /// Whether this component of the node's cluster runs on this node. The control plane runs on
    /// the first node.
    pub fn runs(&self, component: &str) -> bool {
        component
            .split_once('@')
            .map_or(self.first, |(_, node)| node == self.name)
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_interfaces_fit_into_fifteen_characters() {
        let instance = Instance::new("abcdefgh").unwrap();
        let state = ClusterState {
            spec: ClusterSpec::new("rome"),
            nodes: vec![250],
        };
        let layout = instance.layout(255, &state);
        assert!(layout.nodes[0].link.len() <= 15, "{}", layout.nodes[0].link);
        assert!(layout.bridge.len() <= 15);
    }

    #[test]
    fn the_longest_names_still_give_short_socket_paths() {
        let instance = Instance::new("abcdefgh").unwrap();
        let state = ClusterState {
            spec: ClusterSpec::new("abcdefghijklmnop"),
            nodes: vec![10],
        };
        let socket = instance.layout(0, &state).nodes[0]
            .dir
            .join("kubelet/device-plugins/kubelet.sock");
        assert!(socket.as_os_str().len() < 108, "{}", socket.display());
    }

    #[test]
    fn a_component_runs_on_exactly_one_node() {
        let nodes = (10..=20).collect();
        let layout = Instance::new("t").unwrap().layout(
            0,
            &ClusterState {
                spec: ClusterSpec::new("rome"),
                nodes,
            },
        );
        for node in &layout.nodes {
            let running = layout
                .nodes
                .iter()
                .filter(|other| other.runs(&node.component("kubelet")));
            assert!(running.map(|other| &other.name).eq([&node.name]));
        }
        assert!(layout.nodes[0].runs("etcd"));
    }

    #[test]
    fn an_instance_never_has_the_prefix_of_another() {
        let (short, long) = (
            Instance::new("liqo").unwrap(),
            Instance::new("liqo2").unwrap(),
        );
        assert!(!long.prefix().starts_with(&short.prefix()));
    }

    #[test]
    fn invalid_names_are_refused() {
        for name in ["", "toolongname", "Liqo", "a/b", "1a", "a-b", ".."] {
            assert!(Instance::new(name).is_err(), "{name}");
        }
    }

    #[test]
    fn nodes_keep_their_addresses() {
        let mut state = InstanceState {
            subnet: 0,
            clusters: Vec::new(),
        };
        state
            .want("t", &[ClusterSpec::new("rome"), ClusterSpec::new("milan")])
            .unwrap();
        let before = state.clone();
        state.want("t", &[ClusterSpec::new("milan")]).unwrap();
        assert_eq!(before, state);
        state
            .want(
                "t",
                &[ClusterSpec {
                    nodes: 2,
                    ..ClusterSpec::new("rome")
                }],
            )
            .unwrap();
        assert_eq!(state.clusters[0].nodes, [10, 12]);
        assert_eq!(state.clusters[1].nodes, [11]);
    }

    #[test]
    fn a_node_with_both_families_has_addresses_that_look_alike() {
        let spec = ClusterSpec {
            dual_stack: true,
            ..ClusterSpec::new("rome")
        };
        let layout = Instance::new("t").unwrap().layout(
            207,
            &ClusterState {
                spec,
                nodes: vec![10, 128],
            },
        );
        let addresses: Vec<_> = layout.nodes[1]
            .addresses()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(addresses, ["172.30.207.128", "fd00:172:30:207::128"]);
        assert_eq!(layout.gateway_v6.to_string(), "fd00:172:30:207::1");
    }

    #[test]
    fn a_cluster_keeps_its_domain() {
        let mut state = InstanceState {
            subnet: 0,
            clusters: Vec::new(),
        };
        let spec = ClusterSpec {
            cluster_domain: "rome.example".to_owned(),
            ..ClusterSpec::new("rome")
        };
        state.want("t", std::slice::from_ref(&spec)).unwrap();
        assert!(state.want("t", &[spec]).is_ok());
        let error = state
            .want("t", &[ClusterSpec::new("rome")])
            .unwrap_err()
            .to_string();
        assert!(error.contains("rome.example"), "{error}");
    }

    #[test]
    fn a_cluster_keeps_the_range_of_its_pods() {
        assert_eq!(ClusterSpec::new("rome").pod_range(), POD_RANGE);
        assert_eq!(ClusterSpec::new("rome").pod_range_v6(), POD_RANGE_V6);
        let mut state = InstanceState {
            subnet: 0,
            clusters: Vec::new(),
        };
        let own = ClusterSpec {
            pod_octet: 245,
            ..ClusterSpec::new("rome")
        };
        state.want("t", std::slice::from_ref(&own)).unwrap();
        assert!(state.want("t", &[own]).is_ok());
        let error = state
            .want("t", &[ClusterSpec::new("rome")])
            .unwrap_err()
            .to_string();
        assert!(error.contains("10.245.0.0/16"), "{error}");
    }

    #[test]
    fn a_cluster_keeps_its_families() {
        let mut state = InstanceState {
            subnet: 0,
            clusters: Vec::new(),
        };
        let both = ClusterSpec {
            dual_stack: true,
            ..ClusterSpec::new("rome")
        };
        state
            .want("t", &[both.clone(), ClusterSpec::new("milan")])
            .unwrap();
        assert!(state.want("t", std::slice::from_ref(&both)).is_ok());
        let error = state
            .want(
                "t",
                &[ClusterSpec {
                    dual_stack: false,
                    ..both
                }],
            )
            .unwrap_err()
            .to_string();
        assert!(error.contains("both IPv4 and IPv6"), "{error}");
        let error = state
            .want(
                "t",
                &[ClusterSpec {
                    dual_stack: true,
                    ..ClusterSpec::new("milan")
                }],
            )
            .unwrap_err()
            .to_string();
        assert!(error.contains("IPv4 alone"), "{error}");
    }

    #[test]
    fn surplus_nodes_are_removed_from_the_end() {
        let instance = Instance::new("t").unwrap();
        let mut state = InstanceState {
            subnet: 0,
            clusters: Vec::new(),
        };
        state
            .want(
                "t",
                &[
                    ClusterSpec {
                        nodes: 3,
                        ..ClusterSpec::new("rome")
                    },
                    ClusterSpec::new("milan"),
                ],
            )
            .unwrap();
        let fewer = [ClusterSpec::new("rome"), ClusterSpec::new("turin")];
        let surplus = state.surplus(&instance, &fewer);
        assert_eq!(
            surplus.len(),
            1,
            "only clusters that are named and have more"
        );
        assert!(
            surplus[0]
                .1
                .iter()
                .map(|node| node.name.as_str())
                .eq(["rome-2", "rome-3"])
        );
        state.want("t", &fewer).unwrap();
        assert_eq!(state.clusters[0].nodes, [10]);
        assert_eq!(
            state.clusters[2].nodes,
            [11],
            "an address that is free again"
        );
        assert!(state.surplus(&instance, &fewer).is_empty());
    }
}

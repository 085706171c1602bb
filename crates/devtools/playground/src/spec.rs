//! The specification of a cluster.

use liqo_quantity::{Quantity, ResourceArgument, ResourceList};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Maximum number of real nodes. Each has a /24 of the lower half of the range of pods; pods of
/// fake nodes use the upper half.
pub const MAX_NODES: u8 = 128;
/// The second octet of the range of pods in clusters that have no range of their own.
const POD_OCTET: u8 = 244;
/// Default resources of a fake node.
const FAKE_NODE_RESOURCES: [(&str, &str); 3] =
    [("cpu", "32"), ("memory", "256Gi"), ("pods", "110")];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools)] // Options that do not depend on each other.
pub struct ClusterSpec {
    /// 1 to 16 lower-case letters, digits and dashes.
    pub name: String,
    /// Number of real nodes, 1 to 128. The first one also runs the control plane.
    pub nodes: u8,
    #[serde(default)]
    pub fake_nodes: FakeNodes,
    /// Give pods, Services and real nodes an IPv6 address in addition to their IPv4 address. This
    /// cannot change later: Kubernetes does not change the pod ranges of a node.
    #[serde(default)]
    pub dual_stack: bool,
    /// Enforce `NetworkPolicies` by [kube-router](https://www.kube-router.io), only for IPv4. It
    /// cannot be turned off: rules in the nodes' kernels remain when the program ends.
    #[serde(default)]
    pub network_policies: bool,
    /// Run [metrics-server](https://github.com/kubernetes-sigs/metrics-server), for `kubectl top`
    /// and autoscalers.
    #[serde(default)]
    pub metrics: bool,
    /// Raise the client limits of controller manager and scheduler, whose defaults of 20 requests a
    /// second hide everything else in benchmarks. They are always raised where there are fake
    /// nodes.
    #[serde(default)]
    pub raised_client_limits: bool,
    /// Seconds of silence after which a node is `NotReady`, at least 8; Kubernetes' default is 50.
    #[serde(default)]
    pub node_grace_seconds: Option<u16>,
    /// Interval in seconds at which kubelets synchronise each pod; Kubernetes' default is 60. A
    /// changed Secret or `ConfigMap` takes this long to get into a volume.
    #[serde(default)]
    pub pod_sync_seconds: Option<u16>,
    /// Number of processors that each program of Kubernetes uses at a time (`GOMAXPROCS`); by
    /// default all. With many clusters on a small machine, one is best: the scheduler of Go looks
    /// for work on each processor.
    #[serde(default)]
    pub processors: Option<u8>,
    /// The domain of Services. This cannot change later: certificates and running pods contain it.
    #[serde(default = "default_cluster_domain")]
    pub cluster_domain: String,
    /// The second octet of the range of its pods. With 245 this is 10.245.0.0/16, and
    /// `fd00:10:245::/48`. This cannot change later.
    #[serde(default = "default_pod_octet")]
    pub pod_octet: u8,
}

fn default_pod_octet() -> u8 {
    POD_OCTET
}

fn default_cluster_domain() -> String {
    "cluster.local".to_owned()
}

/// Nodes that are only objects: [kwok](https://kwok.sigs.k8s.io) simulates their kubelets, and
/// their pods become ready without running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FakeNodes {
    pub count: u16,
    /// Capacity and allocatable of each.
    pub resources: ResourceList,
    /// Give them the taint `kwok.x-k8s.io/node=fake:NoSchedule`, so only pods that tolerate it run
    /// there.
    pub taint: bool,
}

impl Default for FakeNodes {
    /// No fake nodes. With a count, each has 32 CPUs, 256 GiB of memory, 110 pods, and no taint.
    fn default() -> Self {
        Self {
            count: 0,
            resources: fake_node_resources([]),
            taint: false,
        }
    }
}

/// The default resources of a fake node; `amounts` replaces or adds some.
pub fn fake_node_resources(amounts: impl IntoIterator<Item = ResourceArgument>) -> ResourceList {
    let default = FAKE_NODE_RESOURCES
        .iter()
        .filter_map(|(name, amount)| Some((*name, amount.parse::<Quantity>().ok()?)));
    let mut resources: ResourceList = default.collect();
    for (name, amount) in amounts.into_iter().map(ResourceArgument::into_parts) {
        resources.insert(name, amount);
    }
    resources
}

impl ClusterSpec {
    /// A cluster of one node.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            name,
            nodes: 1,
            fake_nodes: FakeNodes::default(),
            dual_stack: false,
            network_policies: false,
            metrics: false,
            raised_client_limits: false,
            node_grace_seconds: None,
            pod_sync_seconds: None,
            processors: None,
            cluster_domain: default_cluster_domain(),
            pod_octet: POD_OCTET,
        }
    }

    pub fn pod_range(&self) -> String {
        format!("10.{}.0.0/16", self.pod_octet)
    }

    /// The range of their second addresses, if it has both families.
    pub fn pod_range_v6(&self) -> String {
        format!("fd00:10:{}::/48", self.pod_octet)
    }

    /// The addresses of the pods on its fake nodes: the upper half. Nothing answers there.
    pub(crate) fn fake_pod_range(&self) -> String {
        format!("10.{}.128.0/17", self.pod_octet)
    }

    /// The same cluster with `count` fake nodes.
    #[must_use]
    pub fn with_fake_nodes(self, count: u16) -> Self {
        Self {
            fake_nodes: FakeNodes {
                count,
                ..self.fake_nodes
            },
            ..self
        }
    }

    /// Refuses what [`Playground::up`](crate::Playground::up) would refuse, such as an invalid
    /// name.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn check(&self) -> Result<()> {
        check_cluster_name(&self.name)?;
        let failed = |reason: String| {
            Err(Error::ClusterSpec {
                cluster: self.name.clone(),
                reason,
            })
        };
        if self.nodes == 0 || self.nodes > MAX_NODES {
            return failed(format!(
                "it cannot have {} nodes: ask for 1 to {MAX_NODES}",
                self.nodes
            ));
        }
        if self.dual_stack && self.network_policies {
            return failed("it cannot enforce NetworkPolicies and have IPv6: kube-router fails on ranges of IPv6".to_owned());
        }
        let is_label = |label: &str| {
            let inner =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            (1..=63).contains(&label.len())
                && label.bytes().all(inner)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        if !self.cluster_domain.split('.').all(is_label) {
            return failed(format!(
                "{:?} is no domain: ask for one like cluster.local",
                self.cluster_domain
            ));
        }
        if let Some(seconds) = self.node_grace_seconds.filter(|seconds| *seconds < 8) {
            return failed(format!(
                "a node cannot be dead after {seconds} s: ask for 8 s or more"
            ));
        }
        Ok(())
    }
}

fn check_cluster_name(name: &str) -> Result<()> {
    let valid = (1..=16).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        // The instance's directory contains files with these names.
        && !name.starts_with("supervisor") && !name.starts_with("instance");
    if valid {
        Ok(())
    } else {
        Err(Error::ClusterName {
            name: name.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_refused() {
        for name in [
            "",
            "-a",
            "a-",
            "../x",
            "supervisor.sock",
            "a.b",
            "Rome",
            "abcdefghijklmnopq",
        ] {
            assert!(ClusterSpec::new(name).check().is_err(), "{name}");
        }
        assert!(ClusterSpec::new("rome-2").check().is_ok());
    }

    #[test]
    fn an_invalid_specification_is_refused() {
        assert!(
            ClusterSpec {
                nodes: 0,
                ..ClusterSpec::new("rome")
            }
            .check()
            .is_err()
        );
        assert!(
            ClusterSpec {
                nodes: 129,
                ..ClusterSpec::new("rome")
            }
            .check()
            .is_err()
        );
        assert!(
            ClusterSpec {
                node_grace_seconds: Some(3),
                ..ClusterSpec::new("rome")
            }
            .check()
            .is_err()
        );
        for domain in ["", "rome.", "Rome", "a b {"] {
            assert!(
                ClusterSpec {
                    cluster_domain: domain.to_owned(),
                    ..ClusterSpec::new("rome")
                }
                .check()
                .is_err(),
                "{domain}"
            );
        }
        assert!(
            ClusterSpec {
                dual_stack: true,
                network_policies: true,
                ..ClusterSpec::new("rome")
            }
            .check()
            .is_err()
        );
        assert!(
            ClusterSpec {
                nodes: 128,
                node_grace_seconds: Some(8),
                ..ClusterSpec::new("rome")
            }
            .check()
            .is_ok()
        );
    }

    #[test]
    fn an_amount_replaces_only_the_default_of_its_name() {
        let amounts =
            ["cpu=8", "nvidia.com/gpu=4"].map(|amount| amount.parse::<ResourceArgument>().unwrap());
        let resources = fake_node_resources(amounts);
        let shown: Vec<_> = resources
            .iter()
            .map(|(name, amount)| format!("{name}={amount}"))
            .collect();
        assert_eq!(
            shown,
            ["cpu=8", "memory=256Gi", "nvidia.com/gpu=4", "pods=110"]
        );
    }

    #[test]
    fn a_specification_of_an_earlier_version_has_no_fake_nodes_and_only_ipv4() {
        let old = r#"{"name":"rome","nodes":2,"raised_client_limits":true}"#;
        let spec: ClusterSpec = serde_json::from_str(old).unwrap();
        assert_eq!(
            spec,
            ClusterSpec {
                nodes: 2,
                raised_client_limits: true,
                ..ClusterSpec::new("rome")
            }
        );
    }
}

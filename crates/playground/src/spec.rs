//! What a cluster shall be, as whoever brings it up asks for it.

use liqo_quantity::{Quantity, ResourceArgument, ResourceList};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Each real node has a /24 of the lower half of [`crate::POD_RANGE`]; the pods of fake nodes have the upper half.
pub const MOST_NODES: u8 = 128;
/// What a fake node has, unless something else is asked for.
const FAKE_NODE_RESOURCES: [(&str, &str); 3] = [("cpu", "32"), ("memory", "256Gi"), ("pods", "110")];

/// What a cluster shall be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterSpec {
    /// Its name: 1 to 16 lower-case letters, digits and dashes.
    pub name: String,
    /// How many real nodes it has, 1 to 128. The first one also runs the control plane.
    pub nodes: u8,
    /// Its fake nodes.
    #[serde(default)]
    pub fake_nodes: FakeNodes,
    /// Give pods, Services and real nodes an IPv6 address each beside their IPv4 address. A cluster stays as it was brought up first: Kubernetes
    /// does not change the pod ranges of a node.
    #[serde(default)]
    pub dual_stack: bool,
    /// Enforce `NetworkPolicies`, without IPv6, as [kube-router](https://www.kube-router.io) does. Once it is so it stays: what is in the kernels of nodes does not
    /// go when the program does.
    #[serde(default)]
    pub network_policies: bool,
    /// Raise the client limits of controller manager and scheduler, whose defaults of 20 requests a second hide everything else in benchmarks.
    /// They are always raised where there are fake nodes.
    #[serde(default)]
    pub raised_client_limits: bool,
    /// After how many seconds of silence a node is `NotReady`, 8 at least; by default, as Kubernetes has it (50).
    #[serde(default)]
    pub node_grace_seconds: Option<u16>,
}

/// Nodes that are nothing but objects: [kwok](https://kwok.sigs.k8s.io) plays their kubelets, and their pods become ready without running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FakeNodes {
    /// How many.
    pub count: u16,
    /// What each of them has.
    pub resources: ResourceList,
    /// Give them the taint `kwok.x-k8s.io/node=fake:NoSchedule`, so that only pods that tolerate it land there.
    pub taint: bool,
}

impl Default for FakeNodes {
    /// None of them; each would have 32 CPUs, 256 GiB and room for 110 pods, and no taint.
    fn default() -> Self {
        Self { count: 0, resources: fake_node_resources([]), taint: false }
    }
}

/// What a fake node has by default, with these amounts instead of or besides them.
pub fn fake_node_resources(amounts: impl IntoIterator<Item = ResourceArgument>) -> ResourceList {
    let default = FAKE_NODE_RESOURCES.iter().filter_map(|(name, amount)| Some((*name, amount.parse::<Quantity>().ok()?)));
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
            raised_client_limits: false,
            node_grace_seconds: None,
        }
    }

    /// The same cluster with so many fake nodes.
    #[must_use]
    pub fn with_fake_nodes(self, count: u16) -> Self {
        Self { fake_nodes: FakeNodes { count, ..self.fake_nodes }, ..self }
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_cluster_name(&self.name)?;
        let failed = |reason: String| Err(Error::ClusterSpec { cluster: self.name.clone(), reason });
        if self.nodes == 0 || self.nodes > MOST_NODES {
            return failed(format!("it cannot have {} nodes: ask for 1 to {MOST_NODES}", self.nodes));
        }
        if self.dual_stack && self.network_policies {
            return failed("it cannot enforce NetworkPolicies and have IPv6: kube-router fails on ranges of IPv6".to_owned());
        }
        if let Some(seconds) = self.node_grace_seconds.filter(|seconds| *seconds < 8) {
            return failed(format!("a node cannot be dead after {seconds} s: ask for 8 s or more"));
        }
        Ok(())
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
    fn odd_names_are_refused() {
        for name in ["", "-a", "a-", "../x", "supervisor.sock", "a.b", "Rome", "abcdefghijklmnopq"] {
            assert!(ClusterSpec::new(name).check().is_err(), "{name}");
        }
        assert!(ClusterSpec::new("rome-2").check().is_ok());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(ClusterSpec { nodes: 0, ..ClusterSpec::new("rome") }.check().is_err());
        assert!(ClusterSpec { nodes: 129, ..ClusterSpec::new("rome") }.check().is_err());
        assert!(ClusterSpec { node_grace_seconds: Some(3), ..ClusterSpec::new("rome") }.check().is_err());
        assert!(ClusterSpec { dual_stack: true, network_policies: true, ..ClusterSpec::new("rome") }.check().is_err());
        assert!(ClusterSpec { nodes: 128, node_grace_seconds: Some(8), ..ClusterSpec::new("rome") }.check().is_ok());
    }

    #[test]
    fn an_amount_replaces_the_default_of_its_name_and_leaves_the_others() {
        let amounts = ["cpu=8", "nvidia.com/gpu=4"].map(|amount| amount.parse::<ResourceArgument>().unwrap());
        let resources = fake_node_resources(amounts);
        let shown: Vec<_> = resources.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
        assert_eq!(shown, ["cpu=8", "memory=256Gi", "nvidia.com/gpu=4", "pods=110"]);
    }

    #[test]
    fn a_cluster_that_an_earlier_version_wrote_down_has_no_fake_nodes_and_ipv4_alone() {
        let old = r#"{"name":"rome","nodes":2,"raised_client_limits":true}"#;
        let spec: ClusterSpec = serde_json::from_str(old).unwrap();
        assert_eq!(spec, ClusterSpec { nodes: 2, raised_client_limits: true, ..ClusterSpec::new("rome") });
    }
}

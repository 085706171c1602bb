//! All checks, and the report of their results.

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use crate::finding::{CheckVerdict, Finding};

/// The part of the system that a check belongs to. The order is that of dependence: later areas
/// need the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// The API server, and the installation of Liqo.
    Cluster,
    /// The permissions of Liqo's programs.
    Rights,
    Clocks,
    /// The nodes, and what runs on each.
    Nodes,
    Ranges,
    Gateways,
    Peers,
    /// Namespaces and pods that are offloaded.
    Offloading,
    Between,
    /// The rules that hold in all clusters together.
    Invariants,
}

impl Area {
    pub fn title(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Rights => "rights",
            Self::Clocks => "clocks",
            Self::Nodes => "nodes",
            Self::Ranges => "ranges",
            Self::Gateways => "gateways",
            Self::Peers => "peers",
            Self::Offloading => "offloading",
            Self::Between => "between clusters",
            Self::Invariants => "invariants",
        }
    }
}

macro_rules! checks {
    ($($area:ident { $($check:ident = $name:literal,)+ })+) => {
        /// Everything that `doctor` checks. docs/reference/doctor.md has a row for each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Check { $($($check),+),+ }

        impl Check {
            pub const ALL: &'static [Self] = &[$($(Self::$check),+),+];

            pub fn area(self) -> Area {
                match self { $($(Self::$check => Area::$area),+),+ }
            }

            /// The name on the terminal, in JSON and in the documentation.
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$check => $name),+),+ }
            }
        }
    };
}

checks! {
    Cluster {
        ApiServer = "api-server",
        KubernetesVersion = "kubernetes-version",
        OwnRights = "own-rights",
        Installed = "installed",
        Definitions = "definitions",
        Version = "version",
        Manager = "manager",
        Leader = "leader",
        Pods = "pods",
        Addresses = "addresses",
        Services = "services",
        Webhook = "webhook",
    }
    Rights {
        ManagerRights = "manager-rights",
        FabricRights = "fabric-rights",
        BoundRoles = "bound-roles",
        AdmissionPolicies = "admission-policies",
    }
    Clocks {
        OwnClock = "own-clock",
        NodeClocks = "node-clocks",
        PeerClocks = "peer-clocks",
    }
    Nodes {
        NodesReady = "nodes-ready",
        Fabric = "fabric",
        KubeProxy = "kube-proxy",
        Cni = "cni",
        NetworkPolicies = "network-policies",
        Dns = "dns",
    }
    Ranges {
        OwnRanges = "own-ranges",
        NodeAddresses = "node-addresses",
        PodAddresses = "pod-addresses",
        PeerPrefixes = "peer-prefixes",
        PeerCapacity = "peer-capacity",
        Mtu = "mtu",
    }
    Gateways {
        GatewaysAlive = "gateways-alive",
        GatewayKeys = "gateway-keys",
        GatewayAddresses = "gateway-addresses",
    }
    Peers {
        IdentityVerified = "identity-verified",
        Authenticated = "authenticated",
        PeerReachable = "peer-reachable",
        Credential = "credential",
        ResourcesRequested = "resources-requested",
        OfferAccepted = "offer-accepted",
        Offers = "offers",
        VirtualNodesReady = "virtual-nodes-ready",
        KubeletServing = "kubelet-serving",
        ConsumerAuthorized = "consumer-authorized",
        ConsumerReachable = "consumer-reachable",
        TenantNamespace = "tenant-namespace",
        ResourcesOffered = "resources-offered",
        NetworkAgreed = "network-agreed",
        TunnelConnected = "tunnel-connected",
    }
    Offloading {
        Namespaces = "namespaces",
        NamespaceWebhook = "namespace-webhook",
        PodsRefused = "pods-refused",
        PodsWaiting = "pods-waiting",
        PodsEnding = "pods-ending",
        PodsNotCreated = "pods-not-created",
        DaemonSets = "daemon-sets",
    }
    Between {
        DifferentClusters = "different-clusters",
        Agreement = "agreement",
        Clocks = "clocks",
        Versions = "versions",
        ClusterDomains = "cluster-domains",
        PeerAddresses = "peer-addresses",
        TunnelKeys = "tunnel-keys",
        TunnelPrefixes = "tunnel-prefixes",
        TunnelMtu = "tunnel-mtu",
        TunnelDirections = "tunnel-directions",
    }
    Invariants {
        LocalPods = "local-pods",
        RemotePods = "remote-pods",
        EndedPeerings = "ended-peerings",
        Leases = "leases",
        Promises = "promises",
    }
}

/// The area and the name, as fields of a finding.
impl Serialize for Check {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Check", 2)?;
        fields.serialize_field("area", &self.area())?;
        fields.serialize_field("check", self.name())?;
        fields.end()
    }
}

/// The verdict of one check of `doctor`.
pub type CheckFinding = Finding<Check>;

/// The findings about one cluster, or about two compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExaminedClusters {
    pub clusters: Vec<String>,
    pub findings: Vec<CheckFinding>,
}

/// The number of findings of each verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VerdictCounts {
    pub ok: usize,
    pub warn: usize,
    pub fail: usize,
    pub unknown: usize,
    pub skipped: usize,
}

/// All results; `-o json` prints this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DoctorReport {
    /// Each cluster, then each pair of peers.
    pub examined: Vec<ExaminedClusters>,
    pub summary: VerdictCounts,
}

impl DoctorReport {
    pub fn new(examined: Vec<ExaminedClusters>) -> Self {
        let mut summary = VerdictCounts::default();
        for finding in examined.iter().flat_map(|one| &one.findings) {
            *match finding.verdict {
                CheckVerdict::Ok => &mut summary.ok,
                CheckVerdict::Warn => &mut summary.warn,
                CheckVerdict::Fail => &mut summary.fail,
                CheckVerdict::Unknown => &mut summary.unknown,
                CheckVerdict::Skipped => &mut summary.skipped,
            } += 1;
        }
        Self { examined, summary }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_has_a_row_in_the_documentation() {
        let page = include_str!("../../../../../docs/reference/doctor.md");
        for check in Check::ALL {
            assert!(
                page.contains(&format!("| `{}` |", check.name())),
                "docs/reference/doctor.md says nothing of {}",
                check.name()
            );
        }
    }

    #[test]
    fn programs_get_words_and_a_sum() {
        let examined = ExaminedClusters {
            clusters: vec!["rome".to_owned()],
            findings: vec![
                CheckFinding::ok(Check::ApiServer, "it answers"),
                CheckFinding::fail(Check::Leader, "none", "wait").about_peer("milan"),
            ],
        };
        let json = serde_json::to_value(DoctorReport::new(vec![examined])).unwrap();
        assert_eq!(
            json["summary"],
            serde_json::json!({ "ok": 1, "warn": 0, "fail": 1, "unknown": 0, "skipped": 0 })
        );
        let finding = CheckFinding::fail(Check::Leader, "none", "wait").about_peer("milan");
        assert_eq!(
            serde_json::to_string(&finding).unwrap(),
            r#"{"area":"cluster","check":"leader","peer":"milan","verdict":"Fail","what":"none","advice":"wait"}"#
        );
    }
}

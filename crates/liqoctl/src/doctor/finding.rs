//! What was found.

use serde::{Serialize, Serializer};

/// What is thought of one thing that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// It is well.
    Ok,
    /// It works, or waits for a person, and should be looked at.
    Warn,
    /// It does not work.
    Fail,
    /// It could not be judged: what it takes could not be read, or cannot be seen from here.
    Unknown,
    /// It was not judged: it follows from something else, or nobody wants it here.
    Skipped,
}

/// Where a check belongs. The areas stand in the order in which one leads to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// The API server, and Liqo in the cluster.
    Cluster,
    /// What Liqo's programs may do.
    Rights,
    /// Whether clocks agree.
    Clocks,
    /// The nodes, and what runs on each.
    Nodes,
    /// Address ranges.
    Ranges,
    /// Where tunnels end.
    Gateways,
    /// Each peer.
    Peers,
    /// Namespaces and pods that are offloaded.
    Offloading,
    /// Two clusters compared.
    Between,
}

impl Area {
    /// For people.
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
        }
    }
}

macro_rules! checks {
    ($($area:ident: $($check:ident),+ $(,)?;)+) => {
        /// Everything that is looked at. docs/doctor.md has a row for each.
        #[allow(missing_docs)] // The names say it, and the page says more.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Check { $($($check),+),+ }

        impl Check {
            /// All of them.
            pub const ALL: &'static [Self] = &[$($(Self::$check),+),+];

            /// Where it belongs.
            pub fn area(self) -> Area {
                match self { $($(Self::$check => Area::$area),+),+ }
            }
        }
    };
}

checks! {
    Cluster: ApiServer, KubernetesVersion, OwnRights, Installed, Definitions, Version, Manager, Leader, Pods, Addresses, Services, Webhook;
    Rights: ManagerRights, FabricRights, BoundRoles;
    Clocks: OwnClock, NodeClocks, PeerClocks;
    Nodes: NodesReady, Fabric, KubeProxy, Cni, NetworkPolicies, Dns;
    Ranges: OwnRanges, NodeAddresses, PodAddresses, PeerPrefixes, Room, Mtu;
    Gateways: GatewaysAlive, GatewayKeys, GatewayAddresses;
    Peers: IdentityVerified, Authenticated, PeerReachable, Credential, ResourcesRequested, OfferAccepted, Offers, VirtualNodesReady,
        KubeletServing, ConsumerAuthorized, ConsumerReachable, TenantNamespace, ResourcesOffered, NetworkAgreed, TunnelConnected;
    Offloading: Namespaces, NamespaceWebhook, PodsRefused, PodsWaiting, PodsEnding;
    Between: DifferentClusters, Agreement, Clocks, Versions, ClusterDomains, PeerAddresses, TunnelKeys, TunnelPrefixes, TunnelMtu, TunnelDirections;
}

impl Check {
    /// `ApiServer` is `api-server`.
    pub fn name(self) -> String {
        let mut name = String::new();
        for character in format!("{self:?}").chars() {
            if character.is_ascii_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(character.to_ascii_lowercase());
        }
        name
    }
}

impl Serialize for Check {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Where it belongs.
    pub area: Area,
    /// The check.
    pub check: Check,
    /// The peer that it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// What is thought of it.
    pub verdict: Verdict,
    /// What was found.
    pub what: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Finding {
    fn new(check: Check, verdict: Verdict, what: impl Into<String>, advice: Option<String>) -> Self {
        Self { area: check.area(), check, peer: None, verdict, what: what.into(), advice }
    }

    /// It is well.
    pub fn ok(check: Check, what: impl Into<String>) -> Self {
        Self::new(check, Verdict::Ok, what, None)
    }

    /// It should be looked at.
    pub fn warn(check: Check, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(check, Verdict::Warn, what, Some(advice.into()))
    }

    /// It does not work.
    pub fn fail(check: Check, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(check, Verdict::Fail, what, Some(advice.into()))
    }

    /// It could not be judged.
    pub fn unknown(check: Check, what: impl Into<String>) -> Self {
        Self::new(check, Verdict::Unknown, what, None)
    }

    /// It was not judged.
    pub fn skipped(check: Check, what: impl Into<String>) -> Self {
        Self::new(check, Verdict::Skipped, what, None)
    }

    /// With what to do.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// About this peer.
    #[must_use]
    pub fn of(mut self, peer: &str) -> Self {
        self.peer = Some(peer.to_owned());
        self
    }
}

/// What was found of one cluster, or of two compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Examined {
    /// Their names.
    pub clusters: Vec<String>,
    /// What was found.
    pub findings: Vec<Finding>,
}

/// How many findings of each verdict there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)] // Named as the verdicts.
pub struct Summary {
    pub ok: usize,
    pub warn: usize,
    pub fail: usize,
    pub unknown: usize,
    pub skipped: usize,
}

/// Everything, as programs get it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Each cluster, then each two that are peers.
    pub examined: Vec<Examined>,
    /// The sum.
    pub summary: Summary,
}

impl Report {
    /// Counts.
    pub fn new(examined: Vec<Examined>) -> Self {
        let mut summary = Summary::default();
        for finding in examined.iter().flat_map(|one| &one.findings) {
            *match finding.verdict {
                Verdict::Ok => &mut summary.ok,
                Verdict::Warn => &mut summary.warn,
                Verdict::Fail => &mut summary.fail,
                Verdict::Unknown => &mut summary.unknown,
                Verdict::Skipped => &mut summary.skipped,
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
        let page = include_str!("../../../../docs/doctor.md");
        for check in Check::ALL {
            assert!(page.contains(&format!("| `{}` |", check.name())), "docs/doctor.md says nothing of {}", check.name());
        }
    }

    #[test]
    fn programs_get_words_and_a_sum() {
        let examined = Examined {
            clusters: vec!["rome".to_owned()],
            findings: vec![Finding::ok(Check::ApiServer, "it answers"), Finding::fail(Check::Leader, "none", "wait").of("milan")],
        };
        let json = serde_json::to_value(Report::new(vec![examined])).unwrap();
        assert_eq!(json["summary"], serde_json::json!({ "ok": 1, "warn": 0, "fail": 1, "unknown": 0, "skipped": 0 }));
        let finding = &json["examined"][0]["findings"][1];
        assert_eq!((&finding["check"], &finding["area"]), (&"leader".into(), &"cluster".into()));
        assert_eq!((&finding["verdict"], &finding["peer"]), (&"Fail".into(), &"milan".into()));
    }
}

//! The working modes of a cluster: Autonomous, or Tethered to one peer that controls it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

use crate::{
    ClusterId, NAMESPACE_OFFLOADING, NamespaceOffloading, NamespaceOffloadingSpec,
    PodOffloadingStrategy, Time, labels, may_be_offloaded, schema,
};

/// To which peer this cluster is tethered, and what stays its own meanwhile. `docs/explanation/tethering.md`
/// describes the mode.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct TetheringSettings {
    /// ID of the peer that is to control this cluster. Without it this cluster is autonomous.
    /// `liqoctl tether` sets it, and `liqoctl untether` removes it.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<ClusterId>,
    /// Seconds of silence of the peer after which this cluster takes back control.
    #[schemars(range(min = 30, max = 604_800))]
    pub release_after_seconds: u32,
    /// Group whose members may change everything while this cluster is tethered.
    #[schemars(length(min = 1, max = 253))]
    pub break_glass_group: String,
    /// Namespaces whose pods are part of the system, as those in `kube-*`, `openshift-*` and
    /// `liqo*` are: their pods run on the nodes of this cluster while it is tethered. A name, or
    /// the beginning of names and `*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::system_namespaces")]
    pub system_namespaces: Vec<String>,
    /// Names of users that are part of the system, as those that begin with `system:` are:
    /// controllers of a Kubernetes distribution that change nodes. They may do so while this
    /// cluster is tethered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::system_users")]
    pub system_users: Vec<String>,
}

impl Default for TetheringSettings {
    fn default() -> Self {
        Self {
            cluster_id: None,
            release_after_seconds: 300,
            break_glass_group: "liqo:break-glass".to_owned(),
            system_namespaces: Vec::new(),
            system_users: Vec::new(),
        }
    }
}

impl TetheringSettings {
    /// Whether all fields have their defaults.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the pods of this namespace run at the peer while this cluster is tethered. `liqo` is
    /// the namespace that Liqo runs in.
    pub fn sends_pods_of(&self, namespace: &str, liqo: &str) -> bool {
        let is_listed =
            self.system_namespaces
                .iter()
                .any(|pattern| match pattern.strip_suffix('*') {
                    Some(start) => namespace.starts_with(start),
                    None => pattern == namespace,
                });
        may_be_offloaded(namespace, liqo) && !is_listed
    }
}

/// The working mode of a cluster, or the way from one to the other.
#[derive(
    Serialize,
    Deserialize,
    JsonSchema,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
)]
pub enum TetheringState {
    /// The cluster decides for itself.
    #[default]
    Autonomous,
    /// The cluster has asked its peer, and waits for the answer and for what Tethered needs.
    Tethering,
    /// The peer decides.
    Tethered,
    /// The cluster decides for itself again, while pods come home and the peer's pods have their
    /// notice.
    Releasing,
}

/// The working mode of this cluster now. Only the tethering controller of the manager writes it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TetheringStatus {
    /// The working mode.
    #[serde(default)]
    pub state: TetheringState,
    /// The peer that it is about.
    #[serde(rename = "clusterID", default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<ClusterId>,
    /// Since when the cluster is in this state.
    pub since: Time,
    /// When the state ends by itself. Autonomous: when the peer is asked again. Tethering: when the
    /// attempt ends. Tethered: when control comes back, if the peer stays silent. Releasing: when
    /// it is over, whatever is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// Why the cluster is in this state, in one word.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub reason: String,
    /// The reason in a sentence, with what to do, for people.
    #[serde(default)]
    #[schemars(length(max = 2048))]
    pub message: String,
}

/// What a namespace of a user gets while this cluster is tethered to this peer: its pods run on the
/// virtual nodes of the peer.
pub fn tethered_offloading(namespace: &str, peer: &ClusterId) -> NamespaceOffloading {
    let spec = NamespaceOffloadingSpec {
        pod_offloading_strategy: PodOffloadingStrategy::Remote,
        cluster_selector: Some(nodes_of_peer(peer)),
        ..NamespaceOffloadingSpec::default()
    };
    let mut offloading = NamespaceOffloading::new(NAMESPACE_OFFLOADING, spec);
    offloading.metadata.namespace = Some(namespace.to_owned());
    let marks =
        [labels::MANAGED, labels::TETHERED].map(|label| (label.to_owned(), "true".to_owned()));
    offloading.metadata.labels = Some(marks.into());
    offloading
}

/// Selects the virtual nodes of a peer.
pub fn nodes_of_peer(peer: &ClusterId) -> NodeSelector {
    let of_peer = NodeSelectorRequirement {
        key: labels::REMOTE_CLUSTER_ID.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![peer.to_string()]),
    };
    let term = NodeSelectorTerm {
        match_expressions: Some(vec![of_peer]),
        match_fields: None,
    };
    NodeSelector {
        node_selector_terms: vec![term],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_namespaces_keep_their_pods() {
        let settings = TetheringSettings {
            system_namespaces: vec!["calico-*".into(), "monitoring".into()],
            ..Default::default()
        };
        for kept in [
            "kube-system",
            "liqo",
            "default",
            "calico-system",
            "monitoring",
        ] {
            assert!(!settings.sends_pods_of(kept, "liqo"), "{kept}");
        }
        for sent in ["demo", "calico", "monitoring-2"] {
            assert!(settings.sends_pods_of(sent, "liqo"), "{sent}");
        }
    }
}

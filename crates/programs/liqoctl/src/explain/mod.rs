//! `liqoctl explain pod`: follows one pod from this cluster to its provider, and says at which step
//! it waits and what to do. It changes nothing.
//!
//! ```text
//!   facts (reads here and at the provider) ──▶ PodFacts ──▶ decide (pure) ──▶ Explanation ──▶ render: a tree
//! ```

mod containers;
mod decide;
mod facts;
mod render;

use anyhow::bail;
use serde::{Serialize, Serializer, ser::SerializeStruct as _};

pub use render::render_pod_explanation;

use crate::{cluster::Cluster, finding::Finding};

/// The way of a pod, step by step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodExplanation {
    pub namespace: String,
    pub pod: String,
    /// Phase of the local pod.
    pub phase: String,
    /// Name of the step that the pod waits for; nothing if no step has a problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<&'static str>,
    /// The steps, in order.
    pub steps: Vec<PodStep>,
}

/// A link of the chain between a local pod and its remote pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodStepName {
    LocalPod,
    /// The reason why the admission webhook keeps the pod in this cluster, or away from a provider.
    Placement,
    /// The toleration that the admission webhook gives a pod.
    Toleration,
    VirtualNode,
    Peering,
    Network,
    Namespace,
    ShadowPod,
    /// The conditions that this cluster wrote on the local pod.
    Conditions,
    RemotePod,
    /// The limits that the provider adds to the containers.
    Limits,
}

impl PodStepName {
    /// The name on the terminal, the same as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LocalPod => "local-pod",
            Self::Placement => "placement",
            Self::Toleration => "toleration",
            Self::VirtualNode => "virtual-node",
            Self::Peering => "peering",
            Self::Network => "network",
            Self::Namespace => "namespace",
            Self::ShadowPod => "shadow-pod",
            Self::Conditions => "conditions",
            Self::RemotePod => "remote-pod",
            Self::Limits => "limits",
        }
    }
}

/// The name, as a field of a finding.
impl Serialize for PodStepName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("PodStepName", 1)?;
        fields.serialize_field("step", self.as_str())?;
        fields.end()
    }
}

/// The result of one step.
pub type PodStep = Finding<PodStepName>;

/// Explains where a pod is on its way.
pub async fn pod(cluster: &Cluster, namespace: &str, name: &str) -> anyhow::Result<PodExplanation> {
    let own = cluster.visible_installation().await?.map(|own| own.id);
    match Box::pin(facts::collect(cluster, own.as_ref(), namespace, name)).await {
        Ok(Some(facts)) => Ok(decide::explain_facts(&facts)),
        Ok(None) => bail!("there is no pod {name} in namespace {namespace}"),
        Err(why) => bail!(why),
    }
}

/// Namespace and name of a pod that is given as `NAME` or `NAMESPACE/NAME`.
pub fn split_pod_name<'a>(
    pod: &'a str,
    namespace: Option<&'a str>,
    default: &'a str,
) -> anyhow::Result<(&'a str, &'a str)> {
    match (pod.split_once('/'), namespace) {
        (Some(_), Some(_)) => bail!("the namespace is given twice: in {pod}, and with --namespace"),
        (Some(("", _) | (_, "")), None) => bail!("{pod} is not of the form NAMESPACE/NAME"),
        (Some(both), None) => Ok(both),
        (None, namespace) => Ok((namespace.unwrap_or(default), pod)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_named_as_kubectl_users_expect() {
        assert_eq!(
            split_pod_name("demo/web", None, "default").unwrap(),
            ("demo", "web")
        );
        assert_eq!(
            split_pod_name("web", Some("demo"), "default").unwrap(),
            ("demo", "web")
        );
        assert_eq!(
            split_pod_name("web", None, "default").unwrap(),
            ("default", "web")
        );
        assert!(
            split_pod_name("demo/web", Some("demo"), "default").is_err()
                && split_pod_name("/web", None, "default").is_err()
        );
    }
}

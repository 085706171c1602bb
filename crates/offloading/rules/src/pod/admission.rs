//! Offers, the accounts that pods are charged to, and why a pod is refused.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorTerm, PodSpec};
use kube::core::Status;
use liqo_api::requests::{EffectiveAmounts, MAX_RESOURCES};
use liqo_api::{Key, LargestPods, OfferPhase, OffloadedReason, ResourceOffer, labels, requests};
use liqo_quantity::ResourceList;
use serde::Deserialize as _;
use serde_json::Value;

use crate::namespace::node_selector;

/// Maximum length of the API server's message that the consumer gets.
const MAX_MESSAGE_LEN: usize = 1000;

/// The account that a pod is charged to: a tenant namespace and a pool in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolAccount {
    pub tenant: String,
    pub pool: String,
}

impl PoolAccount {
    pub fn offer_key(&self) -> Key {
        Key::new(self.tenant.clone(), self.pool.clone())
    }
}

/// The position of a pod in the order of admission: the earlier pod is admitted first, and the
/// later one is taken back first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AdmissionPosition {
    pub created: Timestamp,
    pub uid: String,
}

/// The reduced form of an offer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolOffer {
    pub hard: ResourceList,
    pub accepted: bool,
    /// The time at which it ends, if it is being taken back.
    pub withdrawal: Option<Timestamp>,
    /// From then on, pods end that use more than is offered.
    pub reclaim: Option<Timestamp>,
    /// The amounts that are offered then, as far as they are known before.
    pub reclaim_to: Option<ResourceList>,
    /// From then on, pods end whose nodes the pool does not have any more.
    pub drain: Option<Timestamp>,
    /// Name of the contract that keeps new pods away, because it is not in force for the pool.
    pub missing_contract: Option<String>,
    /// Keys of the labels that it advertises.
    pub advertised: Vec<String>,
    /// The nodes of the pool, as terms of a node selector; empty for all nodes.
    pub nodes: Vec<Value>,
    /// The free resources of the nodes with the most room, as far as they are known.
    pub largest_pods: LargestPods,
    /// Whether this cluster borrows the resources itself: the nodes of the pool are virtual.
    pub borrowed: bool,
}

impl PoolOffer {
    /// Reduces an offer; `None` if its name is not that of its pool.
    pub fn from_resource_offer(offer: ResourceOffer) -> Option<Self> {
        if offer.metadata.name.as_deref() != Some(offer.spec.pool.as_str())
            || offer.metadata.deletion_timestamp.is_some()
        {
            return None;
        }
        Some(Self {
            borrowed: offer.spec.is_borrowed(),
            reclaim_to: offer
                .spec
                .reclaim_to
                .is_some()
                .then(|| offer.spec.lasting_resources()),
            hard: offer.spec.resource_quota.hard,
            largest_pods: offer.spec.largest_pods,
            accepted: offer
                .status
                .is_some_and(|status| status.phase == OfferPhase::Accepted),
            withdrawal: offer.spec.withdrawal_timestamp.map(|time| time.0),
            reclaim: offer.spec.reclaim_timestamp.map(|time| time.0),
            drain: offer.spec.drain_timestamp.map(|time| time.0),
            missing_contract: offer
                .spec
                .contract
                .filter(|contract| !contract.in_force)
                .map(|contract| contract.name),
            advertised: offer.spec.labels.into_keys().collect(),
            nodes: offer
                .spec
                .node_selector
                .map(|selector| selector.node_selector_terms)
                .unwrap_or_default()
                .iter()
                .map(|term| serde_json::to_value(term).unwrap_or_default())
                .collect(),
        })
    }

    /// The amounts that all pods may use, if a new one is admitted. It gets nothing of what is
    /// being taken back: it would have to go at once.
    pub fn room_for_new_pod(&self) -> &ResourceList {
        self.reclaim_to.as_ref().unwrap_or(&self.hard)
    }

    /// The amounts that all pods may use, if one is admitted that had a remote pod. It has the
    /// notice, as if that had not ended.
    pub const fn room_for_former_pod(&self) -> &ResourceList {
        &self.hard
    }

    /// Whether a node of this cluster is one of the pool.
    pub fn has_node(&self, name: &str, node_labels: &BTreeMap<String, String>) -> bool {
        if self.nodes.is_empty() {
            return self.borrowed
                || node_labels
                    .get(labels::TYPE)
                    .is_none_or(|kind| kind != labels::TYPE_VIRTUAL_NODE);
        }
        let terms = self
            .nodes
            .iter()
            .filter_map(|term| NodeSelectorTerm::deserialize(term).ok())
            .collect();
        node_selector::selects_node(
            Some(&NodeSelector {
                node_selector_terms: terms,
            }),
            name,
            node_labels,
        )
    }
}

/// The reason why a pod does not run now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionRefusal {
    pub reason: &'static str,
    /// The obstacle, and what to do about it.
    pub message: String,
}

/// Reason: there is no offer, or it was not accepted.
pub(crate) const NO_OFFER: &str = OffloadedReason::NoOffer.as_str();
/// Reason: the pool has no room.
pub(crate) const OFFER_EXCEEDED: &str = OffloadedReason::OfferExceeded.as_str();
/// Reason: not both clusters signed the contract, or a breach keeps new pods away.
pub(crate) const CONTRACT_NOT_IN_FORCE: &str = OffloadedReason::ContractNotInForce.as_str();
/// Reason: the provider is taking back the pool.
pub(crate) const POOL_WITHDRAWN: &str = OffloadedReason::PoolWithdrawn.as_str();

impl AdmissionRefusal {
    /// Whether it ends only with a change of the offer or of what is charged to it.
    pub fn is_about_offer(&self) -> bool {
        [
            NO_OFFER,
            OFFER_EXCEEDED,
            POOL_WITHDRAWN,
            CONTRACT_NOT_IN_FORCE,
        ]
        .contains(&self.reason)
    }

    /// Whether the API server refuses the pod, and not because of another problem.
    pub fn matches_status(status: &Status) -> bool {
        // The namespace's ServiceAccount appears a moment after the namespace.
        let too_early =
            status.code == 403 && status.message.contains("error looking up service account");
        (400..500).contains(&status.code)
            && !matches!(status.code, 401 | 404 | 408 | 409 | 429)
            && !too_early
    }

    /// The refusal for the consumer, in the API server's words.
    pub fn from_status(status: &Status) -> Self {
        let reason = if status.code == 403 {
            OffloadedReason::NotAllowed.as_str()
        } else {
            OffloadedReason::Invalid.as_str()
        };
        Self {
            reason,
            message: status.message.chars().take(MAX_MESSAGE_LEN).collect(),
        }
    }
}

/// The refusal of a pod that names so many resources that its charge is not kept.
pub fn too_many_resources(charge: &EffectiveAmounts) -> Option<AdmissionRefusal> {
    let message = format!(
        "the pod names more than {MAX_RESOURCES} resources, or one by an overlong name; request fewer"
    );
    (!charge.is_bounded()).then(|| AdmissionRefusal {
        reason: OffloadedReason::Invalid.as_str(),
        message,
    })
}

/// The refusal of a pod with negative requests, which would make room for others that does not
/// exist.
pub fn negative_quantity(spec: &PodSpec) -> Option<AdmissionRefusal> {
    let containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    let resources = containers
        .filter_map(|container| container.resources.as_ref())
        .chain(&spec.resources);
    let lists = resources
        .flat_map(|resources| [&resources.requests, &resources.limits])
        .chain([&spec.overhead])
        .flatten();
    for list in lists {
        if let Some((name, quantity)) = requests::parse_amounts(list)
            .iter()
            .find(|(_, quantity)| quantity.is_negative())
        {
            return Some(AdmissionRefusal {
                reason: OffloadedReason::Invalid.as_str(),
                message: format!("the pod asks for {quantity} of {name}, less than nothing"),
            });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_asks_for_less_than_nothing_is_refused() {
        let spec = |resources: serde_json::Value, at: &str| {
            let mut spec = serde_json::json!({ "containers": [{ "name": "c" }], "initContainers": [{ "name": "i" }] });
            match at {
                "" => spec["resources"] = resources,
                list => spec[list][0]["resources"] = resources,
            }
            serde_json::from_value::<PodSpec>(spec).unwrap()
        };
        for at in ["containers", "initContainers", ""] {
            for kind in ["requests", "limits"] {
                let refusal = negative_quantity(&spec(
                    serde_json::json!({ kind: { "cpu": "1", "memory": "-1Gi" } }),
                    at,
                ));
                assert_eq!(
                    refusal.map(|refusal| refusal.reason),
                    Some("Invalid"),
                    "{at} {kind}"
                );
                assert_eq!(
                    negative_quantity(&spec(
                        serde_json::json!({ kind: { "cpu": "0", "memory": "1Gi" } }),
                        at
                    )),
                    None
                );
            }
        }
    }

    fn status(code: u16, message: &str) -> Status {
        Status {
            code,
            message: message.to_owned(),
            ..Status::default()
        }
    }

    #[test]
    fn what_the_api_server_forbids_is_refused_in_its_words() {
        let words =
            r#"pods "web" is forbidden: violates PodSecurity "baseline:latest": privileged"#;
        assert!(AdmissionRefusal::matches_status(&status(403, words)));
        assert_eq!(
            AdmissionRefusal::from_status(&status(403, words)),
            AdmissionRefusal {
                reason: "NotAllowed",
                message: words.to_owned()
            }
        );
        assert_eq!(
            AdmissionRefusal::from_status(&status(422, "invalid image")).reason,
            "Invalid"
        );
        assert_eq!(
            AdmissionRefusal::from_status(&status(422, &"x".repeat(5000)))
                .message
                .len(),
            MAX_MESSAGE_LEN
        );
    }

    #[test]
    fn what_passes_by_itself_is_no_refusal() {
        let early = r#"pods "web" is forbidden: error looking up service account x/default: serviceaccount "default" not found"#;
        assert!(!AdmissionRefusal::matches_status(&status(403, early)));
        for code in [401, 404, 408, 409, 429, 500, 503] {
            assert!(
                !AdmissionRefusal::matches_status(&status(code, "")),
                "{code}"
            );
        }
    }
}

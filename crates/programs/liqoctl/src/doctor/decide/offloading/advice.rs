//! Advice about an offloaded namespace or pod, by the reason of its condition. A new reason without
//! advice does not compile.

use liqo_api::{NamespaceReadyReason, OffloadedReason, pods};

/// Advice for a pod that the provider cannot schedule.
pub const UNPLACED: &str =
    "the offered resources are not on one node, or labels, taints and volumes there do not fit";

/// Advice for a namespace that is not Ready.
pub fn namespace_advice(reason: &str) -> &'static str {
    match NamespaceReadyReason::parse(reason) {
        Some(NamespaceReadyReason::NoClusterSelected) => {
            "no node of a peer fits: `liqoctl status` shows the peers, `kubectl -n NAMESPACE get namespaceoffloading -o yaml` the selector; `liqoctl offload namespace NAMESPACE --all-clusters` takes it away"
        }
        Some(NamespaceReadyReason::NamespaceNotAllowed) => {
            "`liqoctl unoffload namespace NAME`, and use another namespace"
        }
        Some(NamespaceReadyReason::WebhookPending) => {
            "check again in a minute; then see leader, and the manager's rights"
        }
        Some(
            NamespaceReadyReason::NamespacesNotReady
            | NamespaceReadyReason::NamespacesReady
            | NamespaceReadyReason::NotNeeded,
        )
        | None => {
            "the message names the cluster and why; the provider's PeeringPolicy decides what it refuses (`liqoctl policy explain` there)"
        }
    }
}

/// Advice for a pod that the provider accepted, and that lacks something there.
pub fn incomplete_pod_advice(reason: &str) -> &'static str {
    if reason == pods::ADDRESS_REFUSED {
        return "the pod runs, and nobody here reaches it: compare `kubectl -n liqo get tunnelendpoints -o yaml` in both clusters";
    }
    if reason == pods::CHANGE_REFUSED {
        return "undo the change that the message names, or make it shorter; other changes of the pod still reach the provider";
    }
    if reason == pods::ENDS_SOON {
        return "one with a controller that replaces it moves before, one after the other and as disruption budgets allow; move any other yourself";
    }
    "the message names what the provider does not have: its policy may forbid it, or the name may be taken there"
}

/// Advice for a pod that the provider refuses, or that is not sent.
pub fn refused_pod_advice(reason: &str) -> &'static str {
    use OffloadedReason as Reason;
    match OffloadedReason::parse(reason) {
        Some(Reason::OfferExceeded) => {
            "request less, free something, or borrow more: `liqoctl status` shows what is offered; pods with a controller are replaced elsewhere after a while"
        }
        Some(Reason::NoOffer) => {
            "nothing is offered or accepted now: `liqoctl status` and `liqoctl offer list` say why"
        }
        Some(Reason::ContractNotInForce) => {
            "not both clusters signed the contract of this pool, or a breach keeps new pods away: `liqoctl contract list` shows it"
        }
        Some(Reason::BudgetSpent) => {
            "a budget of this cluster is spent: `liqoctl cost` shows what is left; raise it, or wait for the next day or month"
        }
        Some(Reason::CostsNotCounted) => {
            "the costs at that cluster cannot be counted for a budget: sign its contract if it offers one (`liqoctl contract list`), ask it for one (`provide.contract` of its PeeringPolicy), or take the budget away"
        }
        Some(Reason::PoolWithdrawn | Reason::NodeLeaving) => {
            "the provider takes its resources back: pods with a controller are replaced elsewhere"
        }
        Some(
            Reason::NamespaceNotOffloaded
            | Reason::NamespaceRefused
            | Reason::NamespaceNotReady
            | Reason::OffloadingIsLocal
            | Reason::ClusterNotSelected,
        ) => "the namespace's NamespaceOffloading does not select that cluster: see namespaces",
        Some(Reason::NameTaken) => {
            "what the message names exists at the provider and is not this cluster's: remove it there, or give the one here another name"
        }
        Some(
            Reason::HostNamespace
            | Reason::HostPath
            | Reason::HostPort
            | Reason::PersistentVolumeClaim
            | Reason::TokenProjection
            | Reason::ResourceClaims
            | Reason::ProbeHost
            | Reason::UnknownField
            | Reason::TooLarge
            | Reason::DaemonSet
            | Reason::Node,
        ) => {
            "a pod like this runs in no other cluster, whatever the policies say: remove what the message names, or keep the pod off nodes with the label liqo.io/type=virtual-node"
        }
        Some(Reason::NoApiServer) => {
            "pods at the provider need a network to this cluster's API server (network-agreed, tunnel-connected), and a namespace that gives them tokens (`liqoctl offload namespace NAMESPACE --api-server true`); or annotate the pod with liqo.io/api-server=none"
        }
        Some(Reason::Unschedulable) => UNPLACED,
        Some(Reason::NotStarted) => {
            "the provider cannot start the pod: the message says why; its image, its node and its network there decide"
        }
        Some(Reason::LimitMissing) => {
            "the provider charges limits: set limits of cpu and memory for every container, or for the pod"
        }
        Some(Reason::Sending) => {
            "the pod is on its way, or its provider does not answer: see the links of the peer"
        }
        Some(
            Reason::Offloaded
            | Reason::NotReflected
            | Reason::AddressRefused
            | Reason::ChangeRefused
            | Reason::EndsSoon
            | Reason::ApiServerNotAllowed
            | Reason::NotAllowed
            | Reason::NotAccepted
            | Reason::Refused
            | Reason::Invalid
            | Reason::Malformed
            | Reason::VolumeType
            | Reason::KindNotAllowed
            | Reason::ImageNotAllowed,
        )
        | None => {
            "the message names the field or the rule; the provider's PeeringPolicy decides (`liqoctl policy explain` there)"
        }
    }
}

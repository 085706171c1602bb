//! Advice about a broken link, by its reason. A new reason without advice does not compile.

use kube::ResourceExt as _;
use liqo_api::{
    AuthenticatedReason, CallReason, ConsumerAuthorizedReason, ConsumerReachableReason,
    ForeignCluster, IdentityVerifiedReason, NetworkAgreedReason, OfferAcceptedReason,
    PeerReachableReason, ResourcesOfferedReason, ResourcesRequestedReason, TunnelReason,
    VirtualNodesReadyReason, links,
};

use crate::manifests::LEADER_LOG;

/// The action that a reason asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkAdvice {
    /// Something is broken: how to repair it. `PEER` means the name of the peer, `LEADER_LOG` the
    /// command.
    Repair(&'static str),
    /// Nothing is broken: somebody has to decide, or decided so.
    Decide(&'static str),
    /// Nothing to do: the link works, or its controller is still working.
    Nothing,
}

use LinkAdvice::{Decide, Nothing, Repair};

/// For reasons that say no more than the message.
const OTHER: LinkAdvice = Repair("the message says what is wrong; `LEADER_LOG` says more");

const APPROVE_THERE: &str = "the peer's owner has to decide: `liqoctl approve` there";
const NO_UDP: &str = "let UDP pass from this gateway to that address, or the other way round: check firewalls of nodes and clouds, the forwarded port, and network.gateways.addresses at the peer. `--remote-kubeconfig` compares both sides";
const NO_GATEWAY: &str = "one side has no gateway that is alive: see gateways-alive here, and `liqoctl doctor` at the peer";
const NOTHING_OFFERED: &str = "`liqoctl policy explain PEER` says what is offered, and why no more";
const OVERCOMMITTED: &str = "let the plugin promise less, or set provide.source.plugin.overcommit of the policy to Cut, or to Allow if nodes are added when pods come";
const CONSUMER_ABSENT: &str = "is the consumer up? Its pods here ended, because provide.absenceSeconds of its policy is over; it gets a new offer when it is back";
const UNREACHABLE_THROUGH_TUNNEL: &str = "UDP from this cluster must reach a gateway of the peer (`spec.tunnel` of its ForeignCluster); is `network.apiThroughTunnel` true there, and is the token still valid? If all its gateways or their keys changed: `liqoctl peer` with a new `liqoctl generate peer-command --through-tunnel`";

/// Advice for a link of this peer, by the reason of its condition. Reasons that this version does
/// not know get general advice.
pub fn link_advice(kind: &str, reason: &str, peer: &ForeignCluster) -> LinkAdvice {
    if reason == CallReason::Unreachable.as_str() && !peer.spec.tunnel.is_empty() {
        return Repair(UNREACHABLE_THROUGH_TUNNEL);
    }
    let known = match kind {
        links::IDENTITY_VERIFIED => IdentityVerifiedReason::parse(reason).map(identity_verified),
        links::AUTHENTICATED => AuthenticatedReason::parse(reason).map(authenticated_advice),
        links::PEER_REACHABLE => PeerReachableReason::parse(reason).map(peer_reachable),
        links::RESOURCES_REQUESTED => {
            ResourcesRequestedReason::parse(reason).map(resources_requested)
        }
        links::OFFER_ACCEPTED => OfferAcceptedReason::parse(reason).map(offer_accepted),
        links::VIRTUAL_NODES_READY => {
            VirtualNodesReadyReason::parse(reason).map(virtual_nodes_ready)
        }
        links::CONSUMER_AUTHORIZED => {
            ConsumerAuthorizedReason::parse(reason).map(consumer_authorized)
        }
        links::CONSUMER_REACHABLE => ConsumerReachableReason::parse(reason).map(consumer_reachable),
        links::RESOURCES_OFFERED => ResourcesOfferedReason::parse(reason).map(resources_offered),
        links::NETWORK_AGREED => NetworkAgreedReason::parse(reason).map(network_agreed),
        links::TUNNEL_CONNECTED => TunnelReason::parse(reason).map(tunnel_connected),
        _ => None,
    };
    known.unwrap_or(OTHER)
}

impl LinkAdvice {
    /// The text, with the name of the peer; nothing where there is nothing to do.
    pub fn text_for_peer(&self, peer: &ForeignCluster) -> Option<String> {
        match self {
            Repair(text) | Decide(text) => Some(
                text.replace("LEADER_LOG", LEADER_LOG)
                    .replace("PEER", &peer.name_any()),
            ),
            Nothing => None,
        }
    }
}

fn call_advice(reason: CallReason) -> LinkAdvice {
    match reason {
        CallReason::InvalidUrl | CallReason::LoopbackAddress => Repair(
            "use an address that this cluster reaches: `liqoctl install --set authentication.address=https://...` there, then `liqoctl peer` again",
        ),
        CallReason::IdentityMismatch => Repair(
            "the cluster at that address has another key than the peer: does the address still belong to the peer, was its identity purged, does something in between terminate TLS? If the peer was installed again: `liqoctl unpeer PEER`, then `liqoctl peer`",
        ),
        CallReason::Unreachable => Repair(
            "nodes of this cluster must reach that address (TCP): check firewalls, and the NodePort or load balancer of Service liqo-auth there; then `liqoctl doctor` there (services, leader)",
        ),
        CallReason::InvalidAnswer => Repair(
            "something other than Liqo answers at that address, or a version that is too different: compare `liqoctl version` on both sides",
        ),
        CallReason::Unavailable => Repair(
            "the peer's manager is overloaded or starting: check again in a minute, then run `liqoctl doctor` there",
        ),
        CallReason::LocalError => OTHER,
    }
}

fn identity_verified(reason: IdentityVerifiedReason) -> LinkAdvice {
    match reason {
        IdentityVerifiedReason::Waiting | IdentityVerifiedReason::Verified => Nothing,
        IdentityVerifiedReason::AuthUrlMissing => call_advice(CallReason::InvalidUrl),
        IdentityVerifiedReason::OwnCluster => Repair(
            "this is the cluster itself: delete the ForeignCluster, and peer with another kubeconfig",
        ),
        IdentityVerifiedReason::Duplicate => {
            Repair("delete this ForeignCluster: another one has the same cluster ID")
        }
        IdentityVerifiedReason::CallReason(reason) => call_advice(reason),
    }
}

fn authenticated_advice(reason: AuthenticatedReason) -> LinkAdvice {
    use AuthenticatedReason as Reason;
    match reason {
        Reason::Waiting | Reason::Granted => Nothing,
        Reason::TokenRequired | Reason::TokenInvalid | Reason::TokenExpired => Repair(
            "get a new command there with `liqoctl generate peer-command`, and run it here; or ask its owner to run `liqoctl approve`",
        ),
        Reason::PendingApproval => Decide(APPROVE_THERE),
        Reason::Blocked => Decide(
            "the peer's owner does not let this cluster borrow: `liqoctl approve` there undoes that",
        ),
        Reason::Ending => Decide("the peering is ending; there is nothing to do"),
        Reason::InvalidGrant => Repair(
            "the peer's API server cannot be used as the peer describes it: `liqoctl install --set apiServer.address=https://... --set apiServer.ca=FILE` there",
        ),
        Reason::AddressUnknown => Repair(
            "the peer does not know the address of its own API server: `liqoctl doctor` there (addresses)",
        ),
        Reason::NameTaken => Repair(
            "the peer knows another cluster by this cluster's name: rename this one with `liqoctl install --set discovery.config.clusterName=...`, then `liqoctl peer` with PEER again",
        ),
        Reason::NamespaceTaken => Repair(
            "the peer has a namespace with the name of this cluster's tenant namespace, and Liqo did not create it: its owner has to remove it",
        ),
        Reason::TooManyPending => Repair(
            "too many clusters wait for approval there: its owner has to `liqoctl approve` or `liqoctl refuse` some",
        ),
        Reason::IncompatibleVersion => Repair(
            "the versions of Liqo are too different: compare `liqoctl version` on both sides, and update the older one",
        ),
        Reason::WrongAudience
        | Reason::SameCluster
        | Reason::CallReason(CallReason::IdentityMismatch) => Repair(
            "the address leads to another cluster than PEER: `liqoctl unpeer PEER`, then `liqoctl peer` with the right one",
        ),
        Reason::InvalidRequest
        | Reason::ChallengeInvalid
        | Reason::Replayed
        | Reason::Busy
        | Reason::Denied => OTHER,
        Reason::CallReason(reason) => call_advice(reason),
    }
}

fn peer_reachable(reason: PeerReachableReason) -> LinkAdvice {
    match reason {
        PeerReachableReason::Waiting | PeerReachableReason::Reachable => Nothing,
        PeerReachableReason::AccessDenied => Repair(
            "somebody removed this cluster's rights there, or the credential expired: the manager renews it by itself; if that does not help, `liqoctl doctor` there (rights, tenant-namespace)",
        ),
        PeerReachableReason::InvalidCertificate => Repair(
            "the CA that the peer names does not verify the certificate of its API server: correct `apiServer.ca`, or the CA in ConfigMap kube-public/cluster-info, there. After a change of the CA, this cluster learns the new one within a minute",
        ),
        PeerReachableReason::ManagerSilent => Repair(
            "`liqoctl doctor` there (manager, leader): pods that run there continue, no new ones start",
        ),
        PeerReachableReason::LimitExceeded => Repair(
            "PEER sends more than an honest cluster has: ask its administrator, or end the peering with `liqoctl unpeer PEER`; pods that run there continue",
        ),
        PeerReachableReason::InvalidGrant | PeerReachableReason::CallReason(_) => Repair(
            "nodes of this cluster must reach the peer's API server (TCP): is it up, do firewalls let it through, is its address right (`liqoctl doctor` there, addresses)? Pods that run there continue",
        ),
    }
}

fn resources_requested(reason: ResourcesRequestedReason) -> LinkAdvice {
    match reason {
        ResourcesRequestedReason::Requested => Nothing,
        ResourcesRequestedReason::RequestFailed => Repair(
            "the provider's API server refused the request: `liqoctl doctor` there (rights), and `LEADER_LOG` here",
        ),
    }
}

fn offer_accepted(reason: OfferAcceptedReason) -> LinkAdvice {
    const NOTHING_FOR_US: &str = "the provider offers nothing that this cluster requests: `liqoctl policy explain` for this cluster there; `liqoctl offer list PEER` here";
    match reason {
        OfferAcceptedReason::Accepted => Nothing,
        OfferAcceptedReason::ManualActionRequired => Decide(
            "`liqoctl offer list PEER`, then `liqoctl offer accept PEER` or `liqoctl offer refuse PEER`",
        ),
        OfferAcceptedReason::Refused => Repair(
            "`liqoctl policy explain PEER` says which rule of this cluster refuses it; see also `liqoctl offer list PEER`",
        ),
        OfferAcceptedReason::PriceTooHigh => Decide(
            "an offer costs more than `consume.maxPrices` of this cluster's policy allows: `liqoctl offer list PEER`; it is accepted as soon as the price falls or the limit rises",
        ),
        OfferAcceptedReason::NothingInIt => Decide(NOTHING_FOR_US),
        OfferAcceptedReason::NoOffer => Repair(NOTHING_FOR_US),
    }
}

fn virtual_nodes_ready(reason: VirtualNodesReadyReason) -> LinkAdvice {
    match reason {
        VirtualNodesReadyReason::VirtualNodesReady => Nothing,
        VirtualNodesReadyReason::VirtualNodesNotReady => {
            Repair("the message says which node and why; `kubectl describe node NODE`")
        }
        VirtualNodesReadyReason::NoVirtualNode => {
            Repair("no offer of PEER is accepted: see offer-accepted")
        }
    }
}

fn consumer_authorized(reason: ConsumerAuthorizedReason) -> LinkAdvice {
    match reason {
        ConsumerAuthorizedReason::Granted => Nothing,
        ConsumerAuthorizedReason::PendingApproval => {
            Decide("you have to decide: `liqoctl approve PEER` or `liqoctl refuse PEER`")
        }
        ConsumerAuthorizedReason::Blocked => {
            Decide("somebody decided so; `liqoctl approve PEER` undoes it")
        }
        ConsumerAuthorizedReason::Ending => {
            Decide("this cluster takes back what it lent; there is nothing to do")
        }
    }
}

fn consumer_reachable(reason: ConsumerReachableReason) -> LinkAdvice {
    match reason {
        ConsumerReachableReason::Waiting | ConsumerReachableReason::Reachable => Nothing,
        ConsumerReachableReason::Silent => Repair(
            "the consumer's manager renews a Lease here every few seconds: is it up, and does it reach the API server of this cluster? `liqoctl doctor` there (leader, peer-reachable)",
        ),
        ConsumerReachableReason::Expired => Decide(
            "this cluster has released what it kept for the peer; if the peer does not come back, `liqoctl unpeer PEER --incoming` removes the rest",
        ),
    }
}

fn resources_offered(reason: ResourcesOfferedReason) -> LinkAdvice {
    match reason {
        ResourcesOfferedReason::Offered => Nothing,
        ResourcesOfferedReason::NoPolicy => {
            Repair("no PeeringPolicy selects it: `liqoctl policy explain PEER`")
        }
        ResourcesOfferedReason::PluginFailed => {
            Repair("check the plugin's pod, and the address in the policy")
        }
        ResourcesOfferedReason::NothingOffered => Repair(NOTHING_OFFERED),
        ResourcesOfferedReason::NothingFree | ResourcesOfferedReason::NothingShared => {
            Decide(NOTHING_OFFERED)
        }
        ResourcesOfferedReason::NotIsolated => Repair("see network-policies of this cluster"),
        ResourcesOfferedReason::Overcommitted => Decide(OVERCOMMITTED),
        ResourcesOfferedReason::ConsumerAbsent => Repair(CONSUMER_ABSENT),
        ResourcesOfferedReason::Unreadable => OTHER,
    }
}

fn network_agreed(reason: NetworkAgreedReason) -> LinkAdvice {
    match reason {
        NetworkAgreedReason::Agreed => Nothing,
        NetworkAgreedReason::RangesUnknown => Repair(
            "the message says which setting is missing: `liqoctl install --set network.podCIDRs=...`",
        ),
        NetworkAgreedReason::Refused => Repair(
            "the peer's ranges are wrong or too large: `liqoctl doctor` there (ranges), and its network.podCIDRs",
        ),
        NetworkAgreedReason::NoRoom => {
            Repair("add prefixes that nobody uses: `liqoctl install --set network.peerCIDRs=...`")
        }
        NetworkAgreedReason::NotSeen => Repair(
            "the peer has no free prefix for this cluster's ranges, or has not mapped them yet: `liqoctl doctor` there (peer-capacity, network-agreed)",
        ),
        NetworkAgreedReason::NotAnnounced => Repair(
            "the peer wants no network with this cluster (its policy, or spec.network of its ForeignCluster), or runs none: `liqoctl doctor` there",
        ),
    }
}

fn tunnel_connected(reason: TunnelReason) -> LinkAdvice {
    match reason {
        TunnelReason::Connected => Nothing,
        TunnelReason::NoAnswer => Repair(NO_UDP),
        TunnelReason::ConnectedOverTls => Repair(
            "TLS carries the packets, more slowly: let UDP pass from this gateway to the address in the message, or the other way round",
        ),
        TunnelReason::NoEndpoint => Repair(
            "the peer does not announce an address of its gateway, so the peer has to connect: it must reach this side's gateway (network.gateways.addresses)",
        ),
        TunnelReason::NoGateway | TunnelReason::NoGatewayAtPeer => Repair(NO_GATEWAY),
        TunnelReason::NotPossible => Repair(
            "the message names the prefix that is in use twice: set network.reservedCIDRs or network.peerCIDRs",
        ),
        TunnelReason::Connecting => {
            Repair("no gateway has reported on this peer: see gateways-alive and fabric")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::fixtures::facts;

    #[test]
    fn every_link_has_advice_of_its_own_for_its_usual_reasons() {
        let usual = [
            (links::IDENTITY_VERIFIED, "Unreachable"),
            (links::AUTHENTICATED, "TokenInvalid"),
            (links::PEER_REACHABLE, "ManagerSilent"),
            (links::RESOURCES_REQUESTED, "RequestFailed"),
            (links::OFFER_ACCEPTED, "NoOffer"),
            (links::VIRTUAL_NODES_READY, "VirtualNodesNotReady"),
            (links::CONSUMER_AUTHORIZED, "PendingApproval"),
            (links::CONSUMER_REACHABLE, "Silent"),
            (links::RESOURCES_OFFERED, "NoPolicy"),
            (links::NETWORK_AGREED, "NoRoom"),
            (links::TUNNEL_CONNECTED, "NoAnswer"),
        ];
        let peer = &facts().liqo.peers.unwrap()[0];
        let all: std::collections::BTreeSet<String> = usual
            .iter()
            .filter_map(|(kind, reason)| link_advice(kind, reason, peer).text_for_peer(peer))
            .collect();
        assert_eq!(all.len(), usual.len());
        assert!(
            !all.contains(&OTHER.text_for_peer(peer).unwrap())
                && all.iter().all(|advice| !advice.contains("PEER"))
        );
        assert!(
            OTHER.text_for_peer(peer).unwrap().contains(LEADER_LOG)
                && all.iter().all(|advice| !advice.contains("LEADER_LOG"))
        );
        assert_eq!(
            link_advice(links::TUNNEL_CONNECTED, "SomethingNew", peer),
            OTHER
        );
    }
}

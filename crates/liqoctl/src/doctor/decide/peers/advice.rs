//! What to do about a link of a chain that is broken, by its reason.

use liqo_api::links;

/// Whether what a link says is no fault, but waits for a person, or was wanted so.
pub fn waits_for_somebody(reason: &str) -> bool {
    ["ManualActionRequired", "PendingApproval", "Blocked", "Ending", "NothingInIt", "NothingFree", "NothingShared", "Expired"]
        .contains(&reason)
}

/// Why a link is broken whose other end does not answer.
pub const UNREACHABLE: &str = "Unreachable";

/// What to do then where the peer is called through its tunnel.
pub const THROUGH_TUNNEL: &str = "UDP from this cluster to a gateway of the peer must pass (`spec.tunnel` of its ForeignCluster); is `network.apiThroughTunnel` true there, and is the token still good? If all its gateways or their keys changed: `liqoctl peer` with a new `liqoctl generate peer-command --through-tunnel`";

/// What to do.
pub fn of(kind: &str, reason: &str, peer: &str) -> String {
    let fixed = match kind {
        links::IDENTITY_VERIFIED => identity(reason),
        links::AUTHENTICATED => return access(reason, peer),
        links::PEER_REACHABLE => reachable(reason),
        links::RESOURCES_REQUESTED => {
            "the provider's API server refused our request: `liqoctl doctor` there (rights), and `kubectl -n liqo logs deployment/liqo-controller-manager` here"
        }
        links::OFFER_ACCEPTED | links::VIRTUAL_NODES_READY => return borrowed(reason, peer),
        links::CONSUMER_AUTHORIZED | links::CONSUMER_REACHABLE | links::RESOURCES_OFFERED => return lent(reason, peer),
        links::NETWORK_AGREED => agreed(reason),
        links::TUNNEL_CONNECTED => tunnel(reason),
        _ => OTHER,
    };
    fixed.replace("PEER", peer)
}

/// Where no reason says more.
const OTHER: &str = "the message says what is wrong; `kubectl -n liqo logs deployment/liqo-controller-manager` has more";

fn identity(reason: &str) -> &'static str {
    match reason {
        "AuthURLMissing" | "InvalidURL" | "LoopbackAddress" => {
            "name an address that this cluster reaches: `liqoctl install --set authentication.address=https://...` there, then `liqoctl peer` again"
        }
        "IdentityMismatch" => {
            "who answers there has another key than the peer: is the address still the peer's, was its identity purged, does something in between end TLS? If the peer was installed anew: `liqoctl unpeer PEER`, then `liqoctl peer`"
        }
        UNREACHABLE => {
            "nodes of this cluster must reach that address (TCP): firewalls, NodePort or load balancer of Service liqo-auth there; and `liqoctl doctor` there (services, leader)"
        }
        "InvalidAnswer" => {
            "something else than Liqo answers at that address, or a version that is too different: compare `liqoctl version` on both sides"
        }
        "Unavailable" => "the peer's manager is overloaded or starts: look again in a minute, then `liqoctl doctor` there",
        "OwnCluster" => "this is the cluster itself: delete the ForeignCluster, and peer with another kubeconfig",
        "Duplicate" => "delete this ForeignCluster: another one stands for the same cluster",
        _ => OTHER,
    }
}

fn access(reason: &str, peer: &str) -> String {
    match reason {
        "TokenRequired" | "TokenInvalid" | "TokenExpired" => {
            "get a new command there with `liqoctl generate peer-command`, and run it here; or let its owner run `liqoctl approve`".to_owned()
        }
        "PendingApproval" => "the peer's owner is to decide: `liqoctl approve` there".to_owned(),
        "Blocked" => "the peer's owner does not let this cluster borrow: `liqoctl approve` there takes that back".to_owned(),
        "InvalidGrant" => "what the peer says of its API server is of no use: `liqoctl install --set apiServer.address=https://... --set apiServer.ca=FILE` there".to_owned(),
        "AddressUnknown" => "the peer does not know how its API server is reached: `liqoctl doctor` there (addresses)".to_owned(),
        "NameTaken" => format!("the peer knows another cluster by our name: give this one another with `liqoctl install --set discovery.config.clusterName=...`, then `liqoctl peer` with {peer} again"),
        "NamespaceTaken" => "the peer has a namespace of the name that ours would have, and it is not Liqo's: its owner is to remove it".to_owned(),
        "TooManyPending" => "too many clusters wait for approval there: its owner is to `liqoctl approve` or `liqoctl refuse` some".to_owned(),
        "IncompatibleVersion" => "the versions of Liqo are too different: compare `liqoctl version` on both sides, and bring the older one up to date".to_owned(),
        "WrongAudience" | "SameCluster" | "IdentityMismatch" => format!("the address leads to another cluster than {peer}: `liqoctl unpeer {peer}`, then `liqoctl peer` with the right one"),
        "Ending" => "the peering is being ended; nothing is to be done".to_owned(),
        _ => OTHER.to_owned(),
    }
}

fn reachable(reason: &str) -> &'static str {
    match reason {
        "AccessDenied" => {
            "somebody took our rights there, or the credential ended: it is renewed by itself; if that does not help, `liqoctl doctor` there (rights, tenant-namespace)"
        }
        "ManagerSilent" => "`liqoctl doctor` there (manager, leader): pods that run there go on, nothing new starts",
        _ => {
            "nodes of this cluster must reach the peer's API server (TCP): is it up, is the way open, is its address right (`liqoctl doctor` there, addresses)? Pods that run there go on"
        }
    }
}

fn borrowed(reason: &str, peer: &str) -> String {
    match reason {
        "ManualActionRequired" => format!("`liqoctl offer list {peer}`, then `liqoctl offer accept {peer}` or `refuse`"),
        "Refused" => format!("`liqoctl policy explain {peer}` says by which rule of ours; `liqoctl offer list {peer}`"),
        "NothingInIt" | "NoOffer" => format!(
            "the provider gives nothing: `liqoctl policy explain` for this cluster there; `liqoctl offer list {peer}` here"
        ),
        "VirtualNodesNotReady" => "the message says which node and why; `kubectl describe node NODE`".to_owned(),
        _ => OTHER.to_owned(),
    }
}

fn lent(reason: &str, peer: &str) -> String {
    match reason {
        "PendingApproval" => format!("you are to decide: `liqoctl approve {peer}` or `liqoctl refuse {peer}`"),
        "Blocked" => format!("so it was wanted; `liqoctl approve {peer}` takes it back"),
        "Silent" => "its manager renews a Lease here every few seconds: is it up, and does it reach the API server of this cluster? `liqoctl doctor` there (leader, peer-reachable)".to_owned(),
        "Expired" => format!("what it held here is given up; if it does not come back, `liqoctl unpeer {peer} --incoming` removes the rest"),
        "NoPolicy" => format!("no PeeringPolicy selects it: `liqoctl policy explain {peer}`"),
        "PluginFailed" => "see the plugin's pod, and the address in the policy".to_owned(),
        "NothingFree" | "NothingShared" | "NothingOffered" => format!("`liqoctl policy explain {peer}` says what is given, and why not more"),
        "Ending" => "what was lent is being taken back; nothing is to be done".to_owned(),
        _ => OTHER.to_owned(),
    }
}

fn agreed(reason: &str) -> &'static str {
    match reason {
        "RangesUnknown" => "the message says which setting is missing: `liqoctl install --set network.podCIDRs=...`",
        "Refused" => "the peer's ranges are wrong or too large: `liqoctl doctor` there (ranges), and its network.podCIDRs",
        "NoRoom" => "add prefixes that nobody uses: `liqoctl install --set network.peerCIDRs=...`",
        "NotSeen" => "the peer has no room for ours, or has not looked yet: `liqoctl doctor` there (room, network-agreed)",
        "NotAnnounced" => {
            "the peer wants no network with this cluster (its policy, or spec.network of its ForeignCluster), or runs none: `liqoctl doctor` there"
        }
        _ => OTHER,
    }
}

fn tunnel(reason: &str) -> &'static str {
    match reason {
        "NoAnswer" => {
            "let UDP from this gateway to that address pass, or the other way round: firewalls of nodes and clouds, the forwarded port, network.gateways.addresses at the peer. Give `--remote-kubeconfig` to have both sides compared"
        }
        "ConnectedOverTLS" => {
            "packets are carried, more slowly: let UDP from this gateway to the address in the message pass, or the other way round"
        }
        "NoEndpoint" => {
            "the peer does not say where its gateway is, so it has to begin: this side's gateway must be reachable (network.gateways.addresses)"
        }
        "NoGateway" | "NoGatewayAtPeer" => {
            "one side has no gateway that is alive: see gateways-alive here, and `liqoctl doctor` at the peer"
        }
        "NotPossible" => "the message names the prefix that is in use twice: set network.reservedCIDRs or network.peerCIDRs",
        "Connecting" => "no gateway has taken it up: see gateways-alive and fabric",
        _ => OTHER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let all: std::collections::BTreeSet<String> = usual.iter().map(|(kind, reason)| of(kind, reason, "milan")).collect();
        assert_eq!(all.len(), usual.len());
        assert!(!all.contains(OTHER) && all.iter().all(|advice| !advice.contains("PEER")));
        assert_eq!(of(links::TUNNEL_CONNECTED, "SomethingNew", "milan"), OTHER);
    }
}

//! Each peer: the links of its chains, in order. The first broken link is the cause; the links
//! after it are shown as its consequence.

pub mod advice;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use liqo_api::conditions::StatusCondition;
use liqo_api::{
    Condition, ForeignCluster, NO_NEW_PODS, OfferPhase, ResourceOffer, ResourcesOfferedReason,
    TunnelEndpoint, TunnelReason, VirtualNode, links, provider_namespace, tenant_namespace,
};

use self::advice::LinkAdvice;
use super::{gateways, is_manager_alive};
use crate::{
    doctor::{Check, CheckFinding},
    finding::CheckVerdict,
    inspect::ClusterFacts,
    manifests::LEADER_LOG,
};

/// A condition that is Unknown for longer is a failure.
const UNKNOWN_TIMEOUT: SignedDuration = SignedDuration::from_secs(60);
/// An unpeering that takes longer is stuck.
const ENDING_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);

/// Advice where a controller has not done its work in time.
fn overdue_controller_advice() -> String {
    format!("the manager should have reported this by now: see leader, and `{LEADER_LOG}`")
}

const BORROWING: [(&str, Check); 6] = [
    (links::IDENTITY_VERIFIED, Check::IdentityVerified),
    (links::AUTHENTICATED, Check::Authenticated),
    (links::PEER_REACHABLE, Check::PeerReachable),
    (links::RESOURCES_REQUESTED, Check::ResourcesRequested),
    (links::OFFER_ACCEPTED, Check::OfferAccepted),
    (links::VIRTUAL_NODES_READY, Check::VirtualNodesReady),
];
const LENDING: [(&str, Check); 3] = [
    (links::CONSUMER_AUTHORIZED, Check::ConsumerAuthorized),
    (links::CONSUMER_REACHABLE, Check::ConsumerReachable),
    (links::RESOURCES_OFFERED, Check::ResourcesOffered),
];
const NETWORK: [(&str, Check); 2] = [
    (links::NETWORK_AGREED, Check::NetworkAgreed),
    (links::TUNNEL_CONNECTED, Check::TunnelConnected),
];

pub fn check_peers(facts: &ClusterFacts) -> Vec<CheckFinding> {
    match &facts.liqo.peers {
        Err(why) => vec![super::unread_finding(Check::IdentityVerified, why)],
        Ok(peers) if peers.is_empty() => {
            vec![CheckFinding::skipped(
                Check::IdentityVerified,
                "there are no peers: `liqoctl peer --remote-kubeconfig FILE` borrows from another cluster",
            )]
        }
        Ok(peers) => peers
            .iter()
            .flat_map(|peer| check_peer(peer, facts))
            .collect(),
    }
}

fn check_peer(peer: &ForeignCluster, facts: &ClusterFacts) -> Vec<CheckFinding> {
    let name = peer.name_any();
    let chains = LinkChecks {
        peer,
        facts,
        is_current: is_manager_alive(facts),
    };
    let mut found = Vec::new();
    let borrows = peer.wants_outgoing() || peer.condition(links::IDENTITY_VERIFIED).is_some();
    // A peering for the network alone requests no resources.
    let borrowing = if peer.spec.request.network_only {
        &BORROWING[..3]
    } else {
        &BORROWING[..]
    };
    let broken = if borrows {
        chains.check_chain(borrowing, None, &mut found)
    } else {
        None
    };
    if borrows {
        found.extend(check_credential(peer, facts, broken.is_some()));
        found.extend(check_offers(peer, facts));
        found.extend(kubelet_serving(peer, facts));
    }
    let tenant = peer
        .status
        .as_ref()
        .and_then(|status| status.tenant_namespace.as_ref());
    let mut silent = None;
    if tenant.is_some() || peer.condition(links::CONSUMER_AUTHORIZED).is_some() {
        silent = chains.check_chain(&LENDING[..2], None, &mut found);
        chains.check_chain(&LENDING[2..], silent, &mut found);
        found.extend(tenant.map(|tenant| check_tenant_namespace(peer, tenant, facts)));
    }
    if peer.condition(links::NETWORK_AGREED).is_some() {
        // A peer that does not answer at all does not answer in the tunnel either.
        let gone = [broken, silent]
            .into_iter()
            .flatten()
            .find(|check| is_about_reach(*check));
        chains.check_chain(&NETWORK, gone, &mut found);
    } else if peer.wants_outgoing() && peer.spec.request.network_only && broken.is_none() {
        found.push(missing_network_condition(peer, facts));
    }
    if found.is_empty() {
        found.push(CheckFinding::skipped(
            Check::IdentityVerified,
            "there is no peering with it",
        ));
    }
    found.extend(check_ending_peering(peer, facts));
    found
        .into_iter()
        .map(|finding| finding.about_peer(&name))
        .collect()
}

/// The finding for a peer for the network alone that has no network condition.
fn missing_network_condition(peer: &ForeignCluster, facts: &ClusterFacts) -> CheckFinding {
    let check = Check::NetworkAgreed;
    if !is_manager_alive(facts) {
        return CheckFinding::unknown(
            check,
            "the manager had not reported anything when it was last alive, see leader",
        );
    }
    let since = peer
        .metadata
        .creation_timestamp
        .as_ref()
        .map_or(facts.now(), |time| time.0);
    if facts.now().duration_since(since) < UNKNOWN_TIMEOUT {
        return CheckFinding::unknown(check, "there is no condition yet; check again in a minute");
    }
    let name = peer.name_any();
    CheckFinding::fail(
        check,
        "the peering requests only the network (spec.request.networkOnly), and the network is switched off",
        format!(
            "here, network.enabled of ClusterConfig liqo (`liqoctl install --set network.enabled=true`) and of the PeeringPolicy that applies to {name}, and \
             spec.network of ForeignCluster {name}, which may not be No"
        ),
    )
}

fn is_about_reach(check: Check) -> bool {
    [
        Check::IdentityVerified,
        Check::Authenticated,
        Check::PeerReachable,
        Check::ConsumerAuthorized,
        Check::ConsumerReachable,
    ]
    .contains(&check)
}

/// Reasons of a condition that is True, and may be not what somebody wants.
const WORKS_BUT: [&str; 2] = [
    TunnelReason::ConnectedOverTls.as_str(),
    ResourcesOfferedReason::Overcommitted.as_str(),
];

struct LinkChecks<'a> {
    peer: &'a ForeignCluster,
    facts: &'a ClusterFacts,
    is_current: bool,
}

impl LinkChecks<'_> {
    /// Judges the links of one chain; `cause` is a link that is already broken. Returns the broken
    /// link, if any.
    fn check_chain(
        &self,
        chain: &[(&str, Check)],
        mut cause: Option<Check>,
        found: &mut Vec<CheckFinding>,
    ) -> Option<Check> {
        for (kind, check) in chain {
            let condition = self.link_condition(kind);
            if let (Some(cause), false) = (cause, condition.is_some_and(StatusCondition::is_true)) {
                found.push(CheckFinding::skipped(
                    *check,
                    format!("follows from {}", cause.name()),
                ));
                continue;
            }
            let finding = self.check_link(kind, *check, condition);
            if cause.is_none() && finding.verdict != CheckVerdict::Ok && !self.is_stale(kind) {
                cause = Some(*check);
            }
            found.push(finding);
        }
        cause
    }

    /// The condition of a link. While the manager is silent, that of the tunnel comes from the
    /// gateway itself.
    fn link_condition(&self, kind: &str) -> Option<&Condition> {
        let tunnel = self
            .facts
            .liqo
            .tunnel(&self.peer.spec.cluster_id)
            .ok()
            .flatten();
        let tunnel = tunnel.filter(|_| !self.is_current && kind == links::TUNNEL_CONNECTED);
        tunnel
            .and_then(TunnelEndpoint::connected_condition)
            .or_else(|| self.peer.condition(kind))
    }

    fn is_stale(&self, kind: &str) -> bool {
        !self.is_current && (kind != links::TUNNEL_CONNECTED || self.facts.liqo.tunnels.is_err())
    }

    fn check_link(&self, kind: &str, check: Check, condition: Option<&Condition>) -> CheckFinding {
        let now = self.facts.now();
        let Some(condition) = condition else {
            if *kind == *links::RESOURCES_OFFERED {
                return CheckFinding::skipped(check, "it has requested nothing");
            }
            let since = self
                .peer
                .metadata
                .creation_timestamp
                .as_ref()
                .map_or(now, |time| time.0);
            return unknown_link(check, "there is no condition yet", since, now, None);
        };
        let advice = advice::link_advice(kind, &condition.reason, self.peer);
        let said = if condition.message.is_empty() {
            condition.reason.clone()
        } else {
            format!("{}: {}", condition.reason, condition.message)
        };
        match condition.status.as_str() {
            "True" if self.is_stale(kind) => {
                CheckFinding::unknown(check, "worked when the manager was last alive, see leader")
            }
            _ if self.is_stale(kind) => CheckFinding::unknown(
                check,
                format!("{said}; this was the state when the manager was last alive, see leader"),
            ),
            "True" if kind == links::TUNNEL_CONNECTED && !gateways::any_alive(self.facts) => {
                CheckFinding::unknown(
                    check,
                    "worked when a gateway was last alive, see gateways-alive",
                )
            }
            "True" if WORKS_BUT.contains(&condition.reason.as_str()) => CheckFinding::warn(
                check,
                said,
                advice.text_for_peer(self.peer).unwrap_or_default(),
            ),
            "True" => CheckFinding::ok(check, said),
            "False" => match advice.text_for_peer(self.peer) {
                Some(text) if matches!(advice, LinkAdvice::Repair(_)) => {
                    CheckFinding::fail(check, said, text)
                }
                Some(text) => CheckFinding::warn(check, said, text),
                None => CheckFinding::fail(check, said, overdue_controller_advice()),
            },
            _ => unknown_link(
                check,
                &said,
                condition.last_transition_time.0,
                now,
                advice.text_for_peer(self.peer),
            ),
        }
    }
}

/// A condition may be Unknown for a minute.
fn unknown_link(
    check: Check,
    said: &str,
    since: Timestamp,
    now: Timestamp,
    advice: Option<String>,
) -> CheckFinding {
    if now.duration_since(since) < UNKNOWN_TIMEOUT {
        return CheckFinding::unknown(check, format!("{said}; check again in a minute"));
    }
    CheckFinding::fail(
        check,
        format!("{said}, since {since}"),
        advice.unwrap_or_else(overdue_controller_advice),
    )
}

fn check_credential(
    peer: &ForeignCluster,
    facts: &ClusterFacts,
    is_broken: bool,
) -> Option<CheckFinding> {
    let check = Check::Credential;
    let now = facts.now();
    let credential = match facts.credentials.get(&peer.spec.cluster_id)? {
        Ok(credential) => credential,
        Err(why) => return Some(super::unread_finding(check, why)),
    };
    let Some(credential) = credential else {
        let what = format!(
            "there is no Secret credential in {}",
            provider_namespace(&peer.spec.cluster_id)
        );
        return Some(if is_broken {
            CheckFinding::skipped(check, what)
        } else {
            CheckFinding::fail(
                check,
                what,
                "the manager requests one by itself: see leader and rights",
            )
        });
    };
    let life = credential.expires_at.duration_since(credential.issued_at);
    let left = credential.expires_at.duration_since(now);
    // The manager renews it after 60% of its lifetime.
    let what = format!("expires at {}", credential.expires_at);
    let advice = "the manager renews it by itself at the provider's auth endpoint: see the links above, leader, and clocks";
    Some(if left.is_negative() {
        CheckFinding::fail(
            check,
            format!("expired at {}", credential.expires_at),
            advice,
        )
    } else if left < life / 5 {
        CheckFinding::warn(
            check,
            format!("{what}, and should have been renewed"),
            advice,
        )
    } else {
        CheckFinding::ok(check, what)
    })
}

/// Advice about prices above the limit.
const TOO_DEAR: &str = "if it costs too much, wait until the price falls, or raise `consume.maxPrices` of this cluster's policy";

/// The state of each offer of the peer.
fn check_offers(peer: &ForeignCluster, facts: &ClusterFacts) -> Vec<CheckFinding> {
    let check = Check::Offers;
    let namespace = provider_namespace(&peer.spec.cluster_id);
    let offers = match &facts.liqo.offers {
        Ok(offers) => offers
            .iter()
            .filter(|offer| offer.namespace().as_deref() == Some(&namespace)),
        Err(why) => return vec![super::unread_finding(check, why)],
    };
    offers.map(|offer| check_offer(offer, peer)).collect()
}

fn check_offer(offer: &ResourceOffer, peer: &ForeignCluster) -> CheckFinding {
    let check = Check::Offers;
    let (pool, name) = (&offer.spec.pool, peer.name_any());
    let status = offer.status.clone().unwrap_or_default();
    let says = status.message.unwrap_or_default();
    if let Some(at) = &offer.spec.withdrawal_timestamp {
        let advice = "its pods move away until then; borrow from another cluster, or ask the provider's owner";
        return CheckFinding::warn(
            check,
            format!("pool {pool} is withdrawn, and ends at {}", at.0),
            advice,
        );
    }
    if let Some(at) = &offer.spec.reclaim_timestamp {
        let advice = "nothing, where controllers create pods again elsewhere: those that will end say EndsSoon, and move before";
        return CheckFinding::warn(
            check,
            format!(
                "you use more of pool {pool} than is offered now; pods beyond the offer end from {} on",
                at.0
            ),
            advice,
        );
    }
    if let Some(at) = &offer.spec.drain_timestamp {
        let advice = "nothing, where controllers create pods again: those on former nodes say EndsSoon, and move before";
        return CheckFinding::warn(
            check,
            format!(
                "pool {pool} has other nodes now; pods on the former ones end from {} on",
                at.0
            ),
            advice,
        );
    }
    match status.phase {
        OfferPhase::Accepted if offer.spec.resource_quota.hard.is_zero() => CheckFinding::warn(
            check,
            format!("pool {pool} is empty now"),
            format!(
                "the provider has nothing free, or its policy gives nothing: `liqoctl policy explain` there; `liqoctl offer list {name}`"
            ),
        ),
        OfferPhase::Accepted if says.starts_with(NO_NEW_PODS) => {
            CheckFinding::warn(check, format!("pool {pool}: {says}"), TOO_DEAR)
        }
        OfferPhase::Accepted => CheckFinding::ok(
            check,
            format!("pool {pool}: {}", offer.spec.resource_quota.hard),
        ),
        OfferPhase::ManualActionRequired => CheckFinding::warn(
            check,
            format!("pool {pool} waits for a decision"),
            format!("`liqoctl offer accept {name} {pool}`, or `refuse`"),
        ),
        OfferPhase::Refused => CheckFinding::warn(
            check,
            format!("pool {pool} is refused: {says}"),
            format!(
                "`liqoctl policy explain {name}` says which rule refuses it; `liqoctl offer forget {name} {pool}` undoes a manual decision"
            ),
        ),
        OfferPhase::Pending if !says.is_empty() => CheckFinding::warn(
            check,
            format!("pool {pool} waits: {says}"),
            format!("`liqoctl offer list {name}`; {TOO_DEAR}"),
        ),
        OfferPhase::Pending => CheckFinding::unknown(
            check,
            format!("the controllers have not answered the offer of pool {pool} yet"),
        ),
    }
}

fn kubelet_serving(peer: &ForeignCluster, facts: &ClusterFacts) -> Vec<CheckFinding> {
    let check = Check::KubeletServing;
    let namespace = provider_namespace(&peer.spec.cluster_id);
    let nodes = match &facts.liqo.virtual_nodes {
        Ok(nodes) => nodes
            .iter()
            .filter(|node| node.namespace().as_deref() == Some(&namespace)),
        Err(why) => return vec![super::unread_finding(check, why)],
    };
    nodes.filter_map(check_kubelet_serving).collect()
}

/// Nothing if the manager has not found out yet.
fn check_kubelet_serving(node: &VirtualNode) -> Option<CheckFinding> {
    let check = Check::KubeletServing;
    let status = node.status.as_ref()?;
    let condition = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "KubeletServing")?;
    let name = status.node_name.as_deref().unwrap_or(&node.spec.pool);
    Some(if condition.is_true() {
        CheckFinding::ok(
            check,
            format!("logs and exec on node {name}: the API server trusts the certificate"),
        )
    } else {
        CheckFinding::warn(
            check,
            format!("node {name}: {}", condition.message),
            "set up a signer for kubernetes.io/kubelet-serving: the controller manager of Kubernetes does, with --cluster-signing-cert-file and its key",
        )
    })
}

fn check_tenant_namespace(
    peer: &ForeignCluster,
    tenant: &str,
    facts: &ClusterFacts,
) -> CheckFinding {
    let check = Check::TenantNamespace;
    let namespaces = match &facts.namespaces {
        Ok(namespaces) => namespaces,
        Err(why) => return super::unread_finding(check, why),
    };
    if tenant != tenant_namespace(&peer.spec.cluster_id) {
        let advice = "the name is derived from the peer's ID: unpeer with --incoming, then let it peer again";
        return CheckFinding::fail(
            check,
            format!("{tenant} is not the namespace of this peer"),
            advice,
        );
    }
    let advice = format!(
        "`kubectl get namespace {tenant} -o yaml` says what keeps it; the manager creates it again when the peer connects again"
    );
    match namespaces
        .iter()
        .find(|namespace| namespace.name_any() == tenant)
    {
        None => CheckFinding::fail(check, format!("{tenant} is gone"), advice),
        Some(namespace) if namespace.metadata.deletion_timestamp.is_some() => {
            CheckFinding::fail(check, format!("{tenant} is being deleted"), advice)
        }
        Some(_) => CheckFinding::ok(check, tenant),
    }
}

fn check_ending_peering(peer: &ForeignCluster, facts: &ClusterFacts) -> Option<CheckFinding> {
    let since = peer.metadata.deletion_timestamp.as_ref()?.0;
    let check = Check::IdentityVerified;
    let takes = facts.now().duration_since(since);
    Some(if takes < ENDING_TIMEOUT {
        CheckFinding::skipped(check, "the peering is ending")
    } else {
        CheckFinding::warn(
            check,
            format!("the peering has been ending since {since}"),
            format!(
                "pods there end first, then their nodes: see leader, pods-ending, and `{LEADER_LOG}`"
            ),
        )
    })
}

#[cfg(test)]
mod tests;

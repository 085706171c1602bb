//! `liqoctl policy explain`: which policy applies to a peer and why, and the results.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt as _;
use liqo_api::policies::{PolicyPeer, selects_peer};
use liqo_api::selectors::label_selector;
use liqo_api::{
    Approval, ClusterId, ForeignCluster, OfferPhase, PeerSelector, PeeringIntent, PeeringPolicy,
    PriceList, ResourceList, ResourceOffer, ResourceOfferSpec, labels, links, provider_namespace,
};
use liqo_sharing::decide::{
    lists::ObjectLists,
    provider::decide_offers,
    snapshot::{ProviderPlan, ProviderSnapshot},
};
use serde::Serialize;
use tokio::time::Instant;

use super::{in_order_of_priority, words};
use crate::output;

/// The peer to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedPeer {
    /// As policies see it.
    pub peer: PolicyPeer,
    /// Whether its ID is real, and not a placeholder for an unknown peer.
    pub has_id: bool,
    /// Whether the cluster knows it.
    pub known: bool,
}

/// The peer is not known, and no labels were given.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "there is no peer {name}: {there}. To see how a peer of this name would be treated, give its labels: --labels a=b, or --labels '' for none"
)]
pub struct UnknownPeerError {
    /// The name that the user gave.
    pub name: String,
    /// The existing ones.
    pub there: String,
}

/// The peer with this name or ID; `labels` replace its labels of the same key.
pub fn peer_to_explain(
    known: &[ForeignCluster],
    wanted: &str,
    tried: Option<&BTreeMap<String, String>>,
) -> Result<ExplainedPeer, UnknownPeerError> {
    // An ID never counts as a name: a peer chooses its own name, and could choose another cluster's
    // ID.
    let found = wanted.parse::<ClusterId>().ok().or_else(|| {
        known
            .iter()
            .find(|foreign| foreign.name_any() == wanted)
            .map(|foreign| foreign.spec.cluster_id.clone())
    });
    // If there are several objects for one peer, the oldest counts.
    let foreign = found.and_then(|id| {
        known
            .iter()
            .filter(|foreign| foreign.spec.cluster_id == id)
            .min_by_key(|foreign| {
                (
                    foreign.metadata.creation_timestamp.clone(),
                    foreign.name_any(),
                )
            })
    });
    let mut whom = match (foreign, wanted.parse::<ClusterId>()) {
        (Some(foreign), _) => ExplainedPeer {
            peer: PolicyPeer::new(&foreign.spec.cluster_id, Some(foreign)),
            has_id: true,
            known: true,
        },
        (None, Ok(id)) => ExplainedPeer {
            peer: PolicyPeer::new(&id, None),
            has_id: true,
            known: false,
        },
        (None, Err(_)) if tried.is_some() => {
            let id = ClusterId::of_public_key(&[0; 32]);
            let peer = PolicyPeer {
                id,
                name: Some(wanted.to_owned()),
                labels: BTreeMap::new(),
            };
            ExplainedPeer {
                peer,
                has_id: false,
                known: false,
            }
        }
        (None, Err(_)) => {
            let names: Vec<_> = known.iter().map(kube::ResourceExt::name_any).collect();
            let there = if names.is_empty() {
                "this cluster has no peers".to_owned()
            } else {
                output::existing_names(&names)
            };
            return Err(UnknownPeerError {
                name: wanted.to_owned(),
                there,
            });
        }
    };
    whom.peer.labels.extend(tried.cloned().unwrap_or_default());
    Ok(whom)
}

/// The policy that applies to a peer, and the results.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyExplanation {
    /// Its name, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Its identity, if it is known.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<ClusterId>,
    /// Whether this cluster knows it.
    pub known: bool,
    /// The kind of discovery: `Manual`, `LAN` or `DNS`.
    pub discovered_by: String,
    /// Whether nobody registered it here: it came to borrow.
    pub came_by_itself: bool,
    /// The labels that policies see.
    pub labels: BTreeMap<String, String>,
    /// All policies, in order.
    pub policies: Vec<ConsideredPolicy>,
    /// The rules of the policy that applies.
    pub says: Vec<words::PolicySentence>,
    pub notes: Vec<String>,
    /// The offer that this cluster would make.
    pub offer: OfferOutcome,
    /// The offers of the peer to this cluster; nothing if this cluster requests nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<ReceivedOffers>,
}

/// The offers of the peer to this cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReceivedOffers {
    pub pools: Vec<ReceivedPool>,
    /// The condition's text, if none was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// One pool that the peer offers.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReceivedPool {
    pub name: String,
    pub resources: ResourceList,
    /// The present prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prices: Option<PriceList>,
    pub phase: OfferPhase,
}

/// One policy, and whether it applies to the peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsideredPolicy {
    pub name: String,
    pub priority: i32,
    /// Whether it selects the peer.
    pub selects: bool,
    /// Whether it is the one that applies.
    pub holds: bool,
    /// Each field that does not match, so that it does not select the peer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub misfits: Vec<words::PolicySentence>,
}

/// The offer that the peer would get now.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OfferOutcome {
    /// Whether it was computed. `liqoctl` cannot ask plugins; then this is the last offer.
    pub computed: bool,
    /// Whether the peer requests something; otherwise it is treated as if it requested everything.
    pub asks: bool,
    /// Its request, if that can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<ResourceList>,
    /// Whether it requests one pool for each node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub asks_for_nodes: bool,
    pub pools: Vec<OfferedPool>,
    /// The condition's text.
    pub message: String,
    /// Reason why it does not get one pool for each node, if it asks for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_pools: Option<String>,
}

/// One pool of the outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OfferedPool {
    pub name: String,
    /// The offered amounts.
    pub resources: ResourceList,
    /// The amounts in the current offer; nothing if there is no offer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standing: Option<ResourceList>,
    /// The present prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prices: Option<PriceList>,
    /// End of the offer, if it is withdrawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withdrawal_timestamp: Option<String>,
    /// From then on, the provider ends pods beyond the offer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim_timestamp: Option<String>,
    /// From then on, the provider ends pods on nodes that the pool does not have any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_timestamp: Option<String>,
}

/// Explains the decision.
pub fn explain_policy(
    own: ClusterId,
    cluster_labels: BTreeMap<String, String>,
    lists: ObjectLists,
    whom: &ExplainedPeer,
    today: Timestamp,
    now: Instant,
) -> PolicyExplanation {
    let foreign = lists
        .foreign_clusters
        .iter()
        .find(|foreign| whom.known && foreign.metadata.name == whom.peer.name)
        .cloned();
    let policies = in_order_of_priority(lists.policies.clone());
    let mut considered: Vec<ConsideredPolicy> = policies
        .iter()
        .map(|policy| consider_policy(policy, whom))
        .collect();
    let holding = considered.iter().position(|policy| policy.selects);
    if let Some(at) = holding {
        considered[at].holds = true;
    }
    let policy = holding.map(|at| &policies[at]);
    let received = foreign
        .as_ref()
        .and_then(|foreign| received_offers(&lists.offers, foreign));
    let snapshot = ProviderSnapshot::from_lists(own, cluster_labels, lists, today);
    PolicyExplanation {
        peer: whom.peer.name.clone(),
        cluster_id: whom.has_id.then(|| whom.peer.id.clone()),
        known: whom.known,
        discovered_by: discovered_by(&whom.peer),
        came_by_itself: whom.peer.was_made_by_liqo(),
        labels: whom.peer.labels.clone(),
        policies: considered,
        says: policy
            .map(|policy| words::policy_sentences(&policy.spec))
            .unwrap_or_default(),
        notes: decision_notes(
            foreign.as_ref(),
            policy.map(|policy| policy.spec.provide.approval),
        ),
        offer: offer_outcome(
            snapshot,
            whom,
            policy.map(AsRef::as_ref),
            foreign.as_ref(),
            now,
        ),
        received,
    }
}

fn received_offers(offers: &[ResourceOffer], foreign: &ForeignCluster) -> Option<ReceivedOffers> {
    let ours = provider_namespace(&foreign.spec.cluster_id);
    let pools: Vec<_> = offers
        .iter()
        .filter(|offer| offer.namespace().as_ref() == Some(&ours))
        .map(received_pool)
        .collect();
    let accepted = foreign.condition(links::OFFER_ACCEPTED);
    let not_accepted = accepted.filter(|condition| condition.status != "True");
    let message =
        not_accepted.map(|condition| format!("{}: {}", condition.reason, condition.message));
    (accepted.is_some() || !pools.is_empty()).then_some(ReceivedOffers { pools, message })
}

fn received_pool(offer: &ResourceOffer) -> ReceivedPool {
    ReceivedPool {
        name: offer.name_any(),
        resources: offer.spec.resource_quota.hard.clone(),
        prices: offer.spec.prices.clone(),
        phase: offer
            .status
            .as_ref()
            .map(|status| status.phase)
            .unwrap_or_default(),
    }
}

fn discovered_by(peer: &PolicyPeer) -> String {
    let found = peer.labels.get(labels::DISCOVERED_BY).map(String::as_str);
    found
        .filter(|way| matches!(*way, "LAN" | "DNS"))
        .unwrap_or("Manual")
        .to_owned()
}

fn consider_policy(policy: &PeeringPolicy, whom: &ExplainedPeer) -> ConsideredPolicy {
    let misfits = unmatched_fields(policy, whom);
    ConsideredPolicy {
        name: policy.name_any(),
        priority: policy.spec.priority,
        selects: misfits.is_empty(),
        holds: false,
        misfits,
    }
}

/// The fields that the peer does not match. Each is tested alone; together they are equivalent to
/// the whole selector.
fn unmatched_fields(policy: &PeeringPolicy, whom: &ExplainedPeer) -> Vec<words::PolicySentence> {
    let peer = &whom.peer;
    let PeerSelector {
        cluster_ids,
        names,
        selector,
        discovered_by: ways,
    } = policy.spec.peers.clone();
    let described = selector
        .as_ref()
        .map(|selector| match label_selector(selector) {
            None => "is not valid, so it selects nobody".to_owned(),
            Some(_) if peer.labels.is_empty() => format!(
                "wants {}; the peer has no labels",
                words::selector_in_words(selector)
            ),
            Some(_) => format!(
                "wants {}; the peer has {}",
                words::selector_in_words(selector),
                format_labels(&peer.labels)
            ),
        });
    let ids: Vec<&str> = cluster_ids.iter().map(ClusterId::as_str).collect();
    let ids = format!(
        "lists {}; the peer's ID is {}",
        ids.join(", "),
        if whom.has_id {
            peer.id.as_str()
        } else {
            "not known"
        }
    );
    let named = match &peer.name {
        Some(name) if peer.was_made_by_liqo() => format!(
            "lists {}; the peer chose the name {name} itself: give its clusterID, or take over the record with `kubectl label foreigncluster {name} {}-`",
            names.join(", "),
            labels::MANAGED
        ),
        Some(name) => format!("lists {}; the peer is called {name}", names.join(", ")),
        None => format!(
            "lists {}; the peer has no ForeignCluster, so it has no name",
            names.join(", ")
        ),
    };
    let found: Vec<String> = ways.iter().map(|way| format!("{way:?}")).collect();
    let found = format!(
        "lists {}; the peer was found {}",
        found.join(", "),
        discovered_by(peer)
    );
    let everybody = PeerSelector::default;
    let leaving = policy.metadata.deletion_timestamp.is_some();
    let leaving = leaving.then(|| words::PolicySentence {
        field: "metadata".to_owned(),
        text: "the policy is being deleted".to_owned(),
    });
    let misfits = [
        leaving,
        misfit_sentence(
            peer,
            "peers.clusterIDs",
            &PeerSelector {
                cluster_ids,
                ..everybody()
            },
            ids,
        ),
        misfit_sentence(
            peer,
            "peers.names",
            &PeerSelector {
                names,
                ..everybody()
            },
            named,
        ),
        misfit_sentence(
            peer,
            "peers.selector",
            &PeerSelector {
                selector,
                ..everybody()
            },
            described.unwrap_or_default(),
        ),
        misfit_sentence(
            peer,
            "peers.discoveredBy",
            &PeerSelector {
                discovered_by: ways,
                ..everybody()
            },
            found,
        ),
    ];
    misfits.into_iter().flatten().collect()
}

/// A sentence if this part of a selector does not match the peer.
fn misfit_sentence(
    peer: &PolicyPeer,
    field: &str,
    alone: &PeerSelector,
    why: String,
) -> Option<words::PolicySentence> {
    (!selects_peer(alone, peer)).then(|| words::PolicySentence {
        field: field.to_owned(),
        text: why,
    })
}

/// `a=b, c=d`.
pub fn format_labels(labels: &BTreeMap<String, String>) -> String {
    labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The inputs of the decision besides the policy.
fn decision_notes(foreign: Option<&ForeignCluster>, approval: Option<Approval>) -> Vec<String> {
    let mut notes = Vec::new();
    let incoming = foreign
        .map(|foreign| foreign.spec.incoming_peering)
        .unwrap_or_default();
    match (incoming, approval) {
        (PeeringIntent::No, _) => {
            notes.push("incomingPeering of its ForeignCluster is No: it may not borrow, whatever the policy says".to_owned());
        }
        (PeeringIntent::Auto, Some(Approval::Manual)) => {
            notes.push(
                "it may not borrow until somebody approves it: `liqoctl approve PEER`".to_owned(),
            );
        }
        _ => {}
    }
    if let Some(foreign) = foreign.filter(|foreign| !foreign.spec.offers.is_empty()) {
        let decided: Vec<String> = foreign
            .spec
            .offers
            .iter()
            .map(|(pool, decision)| format!("{decision:?} {pool}"))
            .collect();
        notes.push(format!(
            "manual decisions on its offers: {} (`liqoctl offer list {}`)",
            decided.join(", "),
            foreign.name_any()
        ));
    }
    notes
}

fn offer_outcome(
    snapshot: ProviderSnapshot,
    whom: &ExplainedPeer,
    policy: Option<&PeeringPolicy>,
    foreign: Option<&ForeignCluster>,
    now: Instant,
) -> OfferOutcome {
    let consumer = &whom.peer.id;
    let request = snapshot.request_of(consumer);
    let (asks, asked) = (
        request.is_some(),
        request.and_then(|request| request.as_ref().ok().cloned()),
    );
    let (asks_for_nodes, standing) = (
        snapshot.asks_for_nodes(consumer),
        snapshot.offers_of(consumer),
    );
    if policy.is_some_and(|policy| policy.spec.provide.source.plugin.is_some()) {
        let message = match foreign.and_then(|foreign| foreign.condition(links::RESOURCES_OFFERED))
        {
            Some(condition) => format!("{}: {}", condition.reason, condition.message),
            None => {
                "Liqo has not asked the plugin about this peer, because the peer requests nothing"
                    .to_owned()
            }
        };
        let pools = offered_pools(&standing, &standing);
        return OfferOutcome {
            computed: false,
            asks,
            asked,
            asks_for_nodes,
            pools,
            message,
            other_pools: None,
        };
    }
    let snapshot = snapshot.if_it_requested(whom.peer.clone());
    let plan: ProviderPlan = decide_offers(&snapshot, now);
    let after = snapshot.offers_after(&plan, consumer);
    let message = plan
        .peer_conditions
        .get(consumer)
        .map(|link| format!("{}: {}", link.reason, link.message))
        .unwrap_or_default();
    let answer = plan
        .pool_for_each_node(consumer)
        .filter(|answer| asks_for_nodes && answer.status != Some(true));
    let other_pools = answer.map(|answer| format!("{}: {}", answer.reason, answer.message));
    OfferOutcome {
        computed: true,
        asks,
        asked,
        asks_for_nodes,
        pools: offered_pools(&after, &standing),
        message,
        other_pools,
    }
}

fn offered_pools(
    offers: &BTreeMap<String, ResourceOfferSpec>,
    standing: &BTreeMap<String, ResourceOfferSpec>,
) -> Vec<OfferedPool> {
    offers
        .iter()
        .map(|(name, offer)| OfferedPool {
            name: name.clone(),
            resources: offer.resource_quota.hard.clone(),
            standing: standing
                .get(name)
                .map(|offer| offer.resource_quota.hard.clone()),
            prices: offer.prices.clone(),
            withdrawal_timestamp: offer
                .withdrawal_timestamp
                .as_ref()
                .map(|time| time.0.to_string()),
            reclaim_timestamp: offer
                .reclaim_timestamp
                .as_ref()
                .map(|time| time.0.to_string()),
            drain_timestamp: offer
                .drain_timestamp
                .as_ref()
                .map(|time| time.0.to_string()),
        })
        .collect()
}

//! The one place that says what is due when something changes.
//!
//! ```text
//!   "X changed"  --a pure function for each X-->  triggers  -->  queues
//! ```
//!
//! If a trigger is missing, nobody looks after that change. The answers of resource plugins, and
//! the conditions that both sides report, are added to their queues where they arrive.

use std::time::Duration;

use liqo_api::policies::without_status;
use liqo_api::{
    ClusterId, ForeignCluster, PeeringPolicy, ResourceOffer, labels, provider_namespace,
};
use liqo_controller_runtime::Key;

use crate::decide::{absence::Silence, reduce::provider_of, snapshot::is_refused};

/// Changes of nodes and pods are collected for this time, so that a burst of pods causes a few
/// decisions, not a thousand.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// The same for changes that somebody waits for.
const PROMPT_DELAY: Duration = Duration::from_millis(20);
/// Our own writes come back as several events; this delay collects them into one reconciliation.
const SETTLE_DELAY: Duration = Duration::from_millis(20);

/// Work that is due, and after which delay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharingTrigger {
    pub target: SharingTarget,
    pub delay: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharingTarget {
    /// All offers of this cluster.
    Offers,
    /// What this cluster requests from this provider, and what it takes.
    Provider(ClusterId),
    /// The conditions of this peer.
    Conditions(ClusterId),
    /// The receipts in this namespace.
    Receipts(ReceiptSide, String),
}

/// The side of a contract that this cluster is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiptSide {
    /// It is the provider, and writes receipts for its consumers.
    Issued,
    /// It is the consumer, and answers the receipts of its providers.
    Received,
}

impl ReceiptSide {
    /// The label with the peer, on objects of this side.
    pub fn peer_label(self) -> &'static str {
        match self {
            Self::Issued => labels::CONSUMER_ID,
            Self::Received => labels::PROVIDER_ID,
        }
    }
}

impl SharingTarget {
    fn due_after(self, delay: Duration) -> SharingTrigger {
        SharingTrigger {
            target: self,
            delay,
        }
    }
}

fn provider_due(provider: ClusterId) -> SharingTrigger {
    SharingTarget::Provider(provider).due_after(SETTLE_DELAY)
}

// What is due when something changes.

/// A `ForeignCluster` changed.
pub fn foreign_cluster_changed(
    old: Option<&ForeignCluster>,
    new: Option<&ForeignCluster>,
) -> Vec<SharingTrigger> {
    let is_input_of_offers = match (old, new) {
        (Some(old), Some(new)) => changes_offers(old, new),
        (old, new) => old.is_some() != new.is_some(),
    };
    let offers = is_input_of_offers.then(|| SharingTarget::Offers.due_after(SETTLE_DELAY));
    let peers = [old, new].into_iter().flatten().flat_map(|peer| {
        let id = &peer.spec.cluster_id;
        [
            provider_due(id.clone()),
            SharingTarget::Conditions(id.clone()).due_after(SETTLE_DELAY),
        ]
    });
    offers.into_iter().chain(peers).collect()
}

/// Whether offers depend on this change: policies select peers by label, persons decide on
/// contracts, and a consumer that is silent for long gets no offer.
fn changes_offers(old: &ForeignCluster, new: &ForeignCluster) -> bool {
    old.metadata.labels != new.metadata.labels
        || old.spec.contracts != new.spec.contracts
        || Silence::of_consumer(old, Duration::default)
            != Silence::of_consumer(new, Duration::default)
}

/// A `PeeringPolicy` changed. This crate writes its status, so a change of the status is not an
/// input. `peers` are all peers.
pub fn policy_changed(
    old: Option<&PeeringPolicy>,
    new: Option<&PeeringPolicy>,
    peers: impl FnOnce() -> Vec<ClusterId>,
) -> Vec<SharingTrigger> {
    let [old, new] = [old, new].map(|policy| policy.cloned().and_then(without_status));
    if old == new {
        return Vec::new();
    }
    [SharingTarget::Offers.due_after(PROMPT_DELAY)]
        .into_iter()
        .chain(peers().into_iter().map(provider_due))
        .collect()
}

/// An offer in this cluster changed: one that it made, or the copy of one that it received.
pub fn offer_changed(
    key: &Key,
    old: Option<&ResourceOffer>,
    new: Option<&ResourceOffer>,
) -> Option<SharingTrigger> {
    if let Some(provider) = provider_of(&key.namespace) {
        return Some(provider_due(provider));
    }
    // The ledger gives refused resources to others, and ignores everything else in a consumer's
    // answer.
    let [old, new] = [old, new].map(|offer| offer.map(|offer| (&offer.spec, is_refused(offer))));
    (old != new).then(|| SharingTarget::Offers.due_after(DEBOUNCE))
}

/// A contract in this cluster changed: one that it made, or the copy of one that it received.
pub fn contract_changed(key: &Key) -> [SharingTrigger; 1] {
    [match provider_of(&key.namespace) {
        Some(provider) => provider_due(provider),
        None => SharingTarget::Offers.due_after(PROMPT_DELAY),
    }]
}

/// The namespace of a peering with a provider came or went.
pub fn provider_namespace_changed(key: &Key) -> Option<SharingTrigger> {
    provider_of(&key.name).map(provider_due)
}

/// A `VirtualNode` changed.
pub fn virtual_node_changed(key: &Key) -> Option<SharingTrigger> {
    provider_of(&key.namespace).map(provider_due)
}

/// A node of this cluster changed.
pub fn node_changed() -> [SharingTrigger; 1] {
    [SharingTarget::Offers.due_after(DEBOUNCE)]
}

/// A pod of this cluster came, ended, or uses something else.
pub fn pod_changed() -> [SharingTrigger; 1] {
    [SharingTarget::Offers.due_after(DEBOUNCE)]
}

/// A tenant namespace or a mapped namespace changed.
pub fn consumer_namespace_changed() -> [SharingTrigger; 1] {
    [SharingTarget::Offers.due_after(PROMPT_DELAY)]
}

/// The request of a consumer changed.
pub fn request_changed() -> [SharingTrigger; 1] {
    [SharingTarget::Offers.due_after(PROMPT_DELAY)]
}

/// The configuration of this cluster changed.
pub fn config_changed() -> [SharingTrigger; 1] {
    [SharingTarget::Offers.due_after(PROMPT_DELAY)]
}

/// The working mode of this cluster changed: it decides what is requested and what is accepted.
pub fn working_mode_changed(peers: Vec<ClusterId>) -> Vec<SharingTrigger> {
    peers
        .into_iter()
        .map(|peer| SharingTarget::Provider(peer).due_after(Duration::ZERO))
        .collect()
}

/// An offer, a contract or our request at this provider changed.
pub fn object_at_provider_changed(provider: &ClusterId) -> [SharingTrigger; 1] {
    [provider_due(provider.clone())]
}

/// The objects at this provider are known, or it answers or falls silent.
pub fn connection_changed(provider: &ClusterId) -> [SharingTrigger; 1] {
    [provider_due(provider.clone())]
}

/// A receipt for a consumer changed: one that was not answered in time is a breach.
pub fn receipt_of_consumer_changed() -> [SharingTrigger; 1] {
    [SharingTarget::Offers.due_after(DEBOUNCE)]
}

/// A usage record, a receipt, or a contract that was in force changed in this cluster.
pub fn metering_changed(side: ReceiptSide, key: &Key) -> [SharingTrigger; 1] {
    [SharingTarget::Receipts(side, key.namespace.clone()).due_after(SETTLE_DELAY)]
}

/// A receipt at this provider changed.
pub fn receipt_at_provider_changed(provider: &ClusterId) -> [SharingTrigger; 1] {
    [
        SharingTarget::Receipts(ReceiptSide::Received, provider_namespace(provider))
            .due_after(SETTLE_DELAY),
    ]
}

/// There is a connection to this provider, so its receipts can be read.
pub fn provider_connected(provider: &ClusterId) -> [SharingTrigger; 1] {
    [
        SharingTarget::Receipts(ReceiptSide::Received, provider_namespace(provider))
            .due_after(Duration::ZERO),
    ]
}

#[cfg(test)]
mod tests {
    use liqo_api::{OfferPhase, ResourceOfferStatus, tenant_namespace};
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::{cluster, offer_of};

    fn targets(triggers: impl IntoIterator<Item = SharingTrigger>) -> Vec<SharingTarget> {
        triggers.into_iter().map(|one| one.target).collect()
    }

    fn peer(change: impl FnOnce(&mut Value)) -> ForeignCluster {
        let mut object =
            json!({ "metadata": { "name": "milan" }, "spec": { "clusterID": cluster(1) } });
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    fn policy(change: impl FnOnce(&mut Value)) -> PeeringPolicy {
        let mut object = json!({ "metadata": { "name": "p" }, "spec": {} });
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    const OFFERS: SharingTarget = SharingTarget::Offers;

    fn of_provider() -> SharingTarget {
        SharingTarget::Provider(cluster(1))
    }

    #[test]
    fn offers_follow_only_what_they_depend_on_in_a_record() {
        let plain = peer(|_| {});
        let both = [of_provider(), SharingTarget::Conditions(cluster(1))];
        let with_offers = [std::slice::from_ref(&OFFERS), &both].concat();
        assert_eq!(
            targets(foreign_cluster_changed(None, Some(&plain))),
            with_offers
        );
        assert_eq!(
            targets(foreign_cluster_changed(Some(&plain), None)),
            with_offers
        );
        let change =
            |new: &ForeignCluster| targets(foreign_cluster_changed(Some(&plain), Some(new)));
        let twice = [both.clone(), both].concat();
        assert_eq!(
            change(&peer(
                |object| object["spec"]["clusterName"] = json!("milan")
            )),
            twice
        );
        for change_of_input in [
            |object: &mut Value| object["metadata"]["labels"] = json!({ "tier": "gold" }),
            |object: &mut Value| {
                object["spec"]["contracts"] = json!({ "c": { "decision": "Accept" } });
            },
            |object: &mut Value| {
                object["status"] = json!({ "conditions": [{ "type": "ConsumerReachable",
                    "status": "False", "reason": "Silent", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
            },
        ] {
            let new = peer(change_of_input);
            assert_eq!(change(&new)[0], OFFERS, "{new:?}");
        }
    }

    #[test]
    fn our_own_status_of_a_policy_wakes_nobody() {
        let peers = || vec![cluster(1)];
        let plain = policy(|_| {});
        let counted = policy(|object| object["status"] = json!({ "consumers": 3 }));
        assert_eq!(policy_changed(Some(&plain), Some(&counted), peers), []);
        let other = policy(|object| object["spec"]["consume"] = json!({ "accept": "Manual" }));
        for (old, new) in [
            (Some(&plain), Some(&other)),
            (None, Some(&plain)),
            (Some(&plain), None),
        ] {
            assert_eq!(
                policy_changed(old, new, peers),
                [
                    OFFERS.due_after(PROMPT_DELAY),
                    of_provider().due_after(SETTLE_DELAY)
                ]
            );
        }
    }

    #[test]
    fn of_a_consumers_answer_only_a_refusal_counts() {
        let offer = |phase: Option<OfferPhase>| {
            let mut offer = ResourceOffer::new("default", offer_of(2, "cpu=1"));
            offer.status = phase.map(|phase| ResourceOfferStatus {
                phase,
                ..ResourceOfferStatus::default()
            });
            offer
        };
        let ours = Key::new(tenant_namespace(&cluster(1)), "default");
        let change = |old: Option<OfferPhase>, new: Option<OfferPhase>| {
            offer_changed(&ours, Some(&offer(old)), Some(&offer(new))).map(|one| one.target)
        };
        assert_eq!(change(None, Some(OfferPhase::Accepted)), None);
        assert_eq!(change(None, Some(OfferPhase::Refused)), Some(OFFERS));
        assert_eq!(change(Some(OfferPhase::Refused), None), Some(OFFERS));
        assert_eq!(
            offer_changed(&ours, Some(&offer(None)), None),
            Some(OFFERS.due_after(DEBOUNCE))
        );
        let copy = Key::new(provider_namespace(&cluster(1)), "default");
        let accepted = offer(Some(OfferPhase::Accepted));
        assert_eq!(
            offer_changed(&copy, Some(&accepted), Some(&accepted)).map(|one| one.target),
            Some(of_provider()),
            "somebody may have changed a copy"
        );
    }

    #[test]
    fn the_namespace_of_an_object_says_which_side_is_due() {
        let key = |namespace: String| Key::new(namespace, "x");
        let tenant = key(tenant_namespace(&cluster(1)));
        let provider = key(provider_namespace(&cluster(1)));
        assert_eq!(targets(contract_changed(&tenant)), [OFFERS]);
        assert_eq!(targets(contract_changed(&provider)), [of_provider()]);
        assert_eq!(targets(virtual_node_changed(&provider)), [of_provider()]);
        assert_eq!(targets(virtual_node_changed(&tenant)), []);
        let namespace = Key::new("", provider.namespace);
        assert_eq!(
            targets(provider_namespace_changed(&namespace)),
            [of_provider()]
        );
        assert_eq!(
            targets(provider_namespace_changed(&Key::new("", "liqo"))),
            []
        );
    }

    #[test]
    fn what_somebody_waits_for_is_decided_sooner_than_what_comes_in_bursts() {
        let prompt = [OFFERS.due_after(PROMPT_DELAY)];
        let collected = [OFFERS.due_after(DEBOUNCE)];
        assert_eq!(
            [
                consumer_namespace_changed(),
                request_changed(),
                config_changed()
            ],
            [prompt.clone(), prompt.clone(), prompt]
        );
        assert_eq!(
            [node_changed(), pod_changed(), receipt_of_consumer_changed()],
            [collected.clone(), collected.clone(), collected]
        );
    }

    #[test]
    fn what_happens_at_a_provider_concerns_it_alone() {
        let due = [of_provider().due_after(SETTLE_DELAY)];
        assert_eq!(object_at_provider_changed(&cluster(1)), due);
        assert_eq!(connection_changed(&cluster(1)), due);
        assert_eq!(
            working_mode_changed(vec![cluster(1), cluster(2)]),
            [cluster(1), cluster(2)]
                .map(|peer| SharingTarget::Provider(peer).due_after(Duration::ZERO))
        );
    }

    #[test]
    fn receipts_are_due_in_the_namespace_of_their_peering() {
        let key = Key::new("liqo-tenant-x", "record");
        assert_eq!(
            targets(metering_changed(ReceiptSide::Issued, &key)),
            [SharingTarget::Receipts(
                ReceiptSide::Issued,
                key.namespace.clone()
            )]
        );
        let received =
            SharingTarget::Receipts(ReceiptSide::Received, provider_namespace(&cluster(1)));
        assert_eq!(
            receipt_at_provider_changed(&cluster(1)),
            [received.clone().due_after(SETTLE_DELAY)]
        );
        assert_eq!(
            provider_connected(&cluster(1)),
            [received.due_after(Duration::ZERO)]
        );
    }
}

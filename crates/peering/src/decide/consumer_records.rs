//! The `ForeignCluster`s that Liqo creates for consumers, and what policies require of a consumer.

use std::collections::BTreeMap;

use data_encoding::BASE64;
use jiff::Timestamp;
use kube::ResourceExt as _;
use liqo_api::policies::PolicyPeer;
use liqo_api::{
    Approval, ClusterId, ForeignCluster, ForeignClusterSpec, PeeringIntent, PeeringPolicy,
    RequestedResources, annotations, finalizers, labels,
};
use liqo_signing::PublicKey;

use super::access::ApprovalQueue;

/// The facts that are recorded about a consumer that waits for approval.
#[derive(Clone, Copy, Debug)]
pub struct WaitingConsumer {
    pub since: Timestamp,
    /// The key that its ID is derived from, which identifies it in the tunnel.
    pub key: PublicKey,
}

/// The requirements of a policy for consumers.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdmissionRequirements {
    /// Approval by a person.
    pub by_hand: bool,
    /// No token for the first request.
    pub needs_no_token: bool,
}

impl AdmissionRequirements {
    /// Without a record only the ID of a consumer is known: a selector that excludes labels would
    /// let in everybody.
    pub fn from_policy(policy: &PeeringPolicy, has_record: bool) -> Self {
        let (provide, peers) = (&policy.spec.provide, &policy.spec.peers);
        let is_meant = has_record || !peers.cluster_ids.is_empty();
        Self {
            by_hand: provide.approval == Approval::Manual,
            needs_no_token: !provide.token_required && is_meant,
        }
    }
}

/// The possible names of a consumer's record. A consumer must not take another cluster's ID as its
/// name, so the last one is always free.
pub fn object_names(consumer: &ClusterId, name: &str) -> Vec<String> {
    let is_taken = name.parse::<ClusterId>().is_ok_and(|id| id != *consumer);
    let with_id = format!(
        "{}-{}",
        name.chars().take(56).collect::<String>(),
        consumer.short_id()
    );
    let whole_id = consumer.to_string();
    if is_taken {
        vec![with_id, whole_id]
    } else {
        vec![name.to_owned(), with_id, whole_id]
    }
}

/// The name that a consumer gave itself, if Liqo created its record.
pub fn noted_name(record: &ForeignCluster) -> Option<String> {
    let made_by_liqo = PolicyPeer::new(&record.spec.cluster_id, Some(record)).was_made_by_liqo();
    record.spec.cluster_name.clone().filter(|_| made_by_liqo)
}

/// The queue for approval, from the view of a consumer that calls itself by this name. `waits` says
/// of a record whether its consumer waits.
pub fn approval_queue_in(
    records: &[ForeignCluster],
    consumer: &ClusterId,
    name: &str,
    waits: impl Fn(&ForeignCluster) -> bool,
) -> ApprovalQueue {
    let known = records
        .iter()
        .any(|record| record.spec.cluster_id == *consumer);
    let names = object_names(consumer, name);
    let mut free = names
        .iter()
        .filter(|name| records.iter().all(|record| record.name_any() != **name));
    ApprovalQueue {
        waits: records
            .iter()
            .any(|record| record.spec.cluster_id == *consumer && waits(record)),
        waiting: records.iter().filter(|record| waits(record)).count(),
        has_name: known || free.next().is_some(),
    }
}

/// A new `ForeignCluster` for a consumer.
pub fn record_of(
    consumer: &ClusterId,
    cluster_name: &str,
    object_name: &str,
    noted: Option<WaitingConsumer>,
) -> ForeignCluster {
    let spec = ForeignClusterSpec {
        cluster_id: consumer.clone(),
        cluster_name: Some(cluster_name.to_owned()),
        auth_url: None,
        tunnel: Vec::new(),
        outgoing_peering: PeeringIntent::Auto,
        incoming_peering: PeeringIntent::Auto,
        offers: BTreeMap::new(),
        contracts: BTreeMap::new(),
        network: PeeringIntent::Auto,
        request: RequestedResources::default(),
        token_secret_name: None,
    };
    let mut object = ForeignCluster::new(object_name, spec);
    object.metadata.labels = Some(BTreeMap::from([(
        labels::MANAGED.to_owned(),
        "true".to_owned(),
    )]));
    object.metadata.annotations = noted.map(|noted| {
        let (since, key) = (noted.since.to_string(), BASE64.encode(&noted.key));
        BTreeMap::from([
            (annotations::PENDING_APPROVAL.to_owned(), since),
            (annotations::PUBLIC_KEY.to_owned(), key),
        ])
    });
    object.metadata.finalizers = Some(vec![finalizers::PEERING.to_owned()]);
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_came_with_a_consumer_asks_for_nothing() {
        let record = record_of(&ClusterId::of_public_key(&[1; 32]), "rome", "rome", None);
        assert!(!record.wants_outgoing());
        assert_eq!(record.labels()[labels::MANAGED], "true");
    }

    #[test]
    fn no_record_is_called_as_the_id_of_another_cluster() {
        let (rome, turin) = (
            ClusterId::of_public_key(&[1; 32]),
            ClusterId::of_public_key(&[2; 32]),
        );
        let with_id = |name: &str| format!("{name}-{}", rome.short_id());
        assert_eq!(
            object_names(&rome, "rome"),
            ["rome".to_owned(), with_id("rome"), rome.to_string()]
        );
        assert_eq!(
            object_names(&rome, turin.as_str()),
            [with_id(turin.as_str()), rome.to_string()]
        );
        assert_eq!(object_names(&rome, rome.as_str())[0], rome.as_str());
    }

    #[test]
    fn a_consumer_can_be_noted_while_a_name_is_left_for_its_record() {
        let (rome, turin) = (
            ClusterId::of_public_key(&[1; 32]),
            ClusterId::of_public_key(&[2; 32]),
        );
        let names = object_names(&rome, "rome");
        let mut records = vec![record_of(
            &turin,
            "rome",
            &names[0],
            Some(WaitingConsumer {
                since: Timestamp::UNIX_EPOCH,
                key: [2; 32],
            }),
        )];
        let room = |records: &[ForeignCluster]| {
            approval_queue_in(records, &rome, "rome", |record| {
                !record.annotations().is_empty()
            })
        };
        assert_eq!(
            room(&records),
            ApprovalQueue {
                waits: false,
                waiting: 1,
                has_name: true
            }
        );
        records.extend(
            names[1..]
                .iter()
                .map(|name| record_of(&turin, "rome", name, None)),
        );
        assert_eq!(
            room(&records),
            ApprovalQueue {
                waits: false,
                waiting: 1,
                has_name: false
            }
        );
        records.push(record_of(
            &rome,
            "rome",
            "other",
            Some(WaitingConsumer {
                since: Timestamp::UNIX_EPOCH,
                key: [1; 32],
            }),
        ));
        assert_eq!(
            room(&records),
            ApprovalQueue {
                waits: true,
                waiting: 2,
                has_name: true
            }
        );
    }

    #[test]
    fn only_a_record_that_liqo_made_says_under_which_name_a_consumer_came() {
        let mut record = record_of(&ClusterId::of_public_key(&[1; 32]), "rome", "rome", None);
        assert_eq!(noted_name(&record).as_deref(), Some("rome"));
        record.metadata.labels = None;
        assert_eq!(noted_name(&record), None);
    }
}

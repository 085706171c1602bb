//! The `ForeignCluster`s that Liqo creates for consumers, and which consumers wait for approval.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use data_encoding::BASE64;
use jiff::Timestamp;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions},
};
use liqo_api::policies::PolicyPeer;
use liqo_api::{
    Approval, ClusterId, ForeignCluster, ForeignClusterSpec, PeeringIntent, PeeringPolicy,
    RequestedResources, annotations, finalizers, labels,
};
use liqo_controller_runtime::{
    Key, foreign_clusters, policies,
    writes::{StepContext as _, StepError, delete_if_present, unless_changed},
};
use liqo_signing::PublicKey;
use serde_json::json;

use super::Tenants;
use crate::{
    auth::decide::ApprovalQueue,
    decide::{ApprovalWait, approval_wait},
    objects,
};

/// The facts that are recorded about a consumer that waits for approval.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingConsumer {
    pub since: Timestamp,
    /// The key that its ID is derived from, which identifies it in the tunnel.
    pub key: PublicKey,
}

/// The requirements of a policy for consumers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AdmissionRequirements {
    /// Approval by a person.
    pub by_hand: bool,
    /// No token for the first request.
    pub needs_no_token: bool,
}

impl AdmissionRequirements {
    /// Without a record only the ID of a consumer is known: a selector that excludes labels would
    /// let in everybody.
    fn from_policy(policy: &PeeringPolicy, has_record: bool) -> Self {
        let (provide, peers) = (&policy.spec.provide, &policy.spec.peers);
        let is_meant = has_record || !peers.cluster_ids.is_empty();
        Self {
            by_hand: provide.approval == Approval::Manual,
            needs_no_token: !provide.token_required && is_meant,
        }
    }
}

impl Tenants {
    /// Creates the `ForeignCluster` of a consumer that has none.
    pub async fn create_record(&self, consumer: &ClusterId, name: &str) -> Result<(), StepError> {
        if !self.create_or_annotate(consumer, name, None).await? {
            tracing::warn!(%consumer, name, "cannot create a ForeignCluster: all names for it are taken");
        }
        Ok(())
    }

    /// The same, and records since when the consumer waits for approval, or that it does not wait.
    /// Returns `false` if all names are taken.
    pub(super) async fn create_or_annotate(
        &self,
        consumer: &ClusterId,
        name: &str,
        noted: Option<WaitingConsumer>,
    ) -> Result<bool, StepError> {
        if let Some(record) = self.find_record(consumer) {
            return self.annotate_record(&record, noted).await.map(|()| true);
        }
        let api: Api<ForeignCluster> = Api::all(self.client.clone());
        for object_name in object_names(consumer, name) {
            let found =
                objects::ensure(&api, &record_of(consumer, name, &object_name, noted)).await?;
            if found.spec.cluster_id == *consumer {
                // The object may be one that the cache does not show yet.
                return self.annotate_record(&found, noted).await.map(|()| true);
            }
        }
        Ok(false)
    }

    async fn annotate_record(
        &self,
        record: &ForeignCluster,
        noted: Option<WaitingConsumer>,
    ) -> Result<(), StepError> {
        let (api, name) = (
            Api::<ForeignCluster>::all(self.client.clone()),
            record.name_any(),
        );
        let since = noted.map(|noted| noted.since.to_string());
        if record.annotations().get(annotations::PENDING_APPROVAL) == since.as_ref() {
            return Ok(());
        }
        let mut wanted = json!({ annotations::PENDING_APPROVAL: since });
        if let Some(noted) = noted {
            wanted[annotations::PUBLIC_KEY] = BASE64.encode(&noted.key).into();
        }
        let patch = json!({ "metadata": { "annotations": wanted } });
        let written = api
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        written
            .map(drop)
            .step("annotate", "ForeignCluster", Key::new("", name))
    }

    /// Removes the mark that a consumer waits for approval, unless the record changed: somebody may
    /// have approved it just now.
    pub async fn clear_waiting_mark(&self, record: &ForeignCluster) -> Result<(), StepError> {
        let (api, name) = (
            Api::<ForeignCluster>::all(self.client.clone()),
            record.name_any(),
        );
        let patch = json!({ "metadata": {
            "annotations": { annotations::PENDING_APPROVAL: null }, "resourceVersion": record.resource_version(),
        } });
        let patched = unless_changed(
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await,
        );
        if patched
            .step("annotate", "ForeignCluster", Key::new("", name))?
            .is_some()
        {
            tracing::info!(consumer = %record.spec.cluster_id, "nobody approved the consumer in time");
        }
        Ok(())
    }

    /// Deletes the record of a consumer that is gone, unless the consumer has just come back, which
    /// the cache may not show yet.
    pub async fn delete_record(&self, record: &ForeignCluster) -> Result<(), StepError> {
        let consumer = &record.spec.cluster_id;
        let _alone = self.lock(consumer).await;
        if self.live_namespace(consumer).await?.is_some() {
            return Ok(());
        }
        let api: Api<ForeignCluster> = Api::all(self.client.clone());
        let preconditions = Preconditions {
            resource_version: record.resource_version(),
            uid: record.uid(),
        };
        let params = DeleteParams::default().preconditions(preconditions);
        let deleted = delete_if_present(&api, &record.name_any(), &params).await;
        deleted
            .map(drop)
            .step("delete", "ForeignCluster", Key::of_object(record))
    }

    /// Whether the record that the cache shows is being deleted, or gone. A tenancy that begins
    /// before the cache shows its end would end with it.
    pub(super) async fn is_record_leaving(&self, consumer: &ClusterId) -> Result<bool, StepError> {
        let Some(cached) = self.find_record(consumer) else {
            return Ok(false);
        };
        let (api, name) = (
            Api::<ForeignCluster>::all(self.client.clone()),
            cached.name_any(),
        );
        let live =
            api.get_metadata_opt(&name)
                .await
                .step("read", "ForeignCluster", Key::new("", name))?;
        Ok(live.is_none_or(|live| {
            live.metadata.uid != cached.metadata.uid || live.metadata.deletion_timestamp.is_some()
        }))
    }

    pub fn approval_wait(&self, record: &ForeignCluster) -> ApprovalWait {
        let expiry = Duration::from_secs(
            self.context
                .config()
                .spec
                .peering
                .approval_expiry_seconds
                .into(),
        );
        approval_wait(record, expiry, self.context.now())
    }

    /// Asks the API server for the record of a consumer that calls itself by this name. The cache
    /// may not show a new record yet, and without the record the consumer would need another token.
    pub(super) async fn live_record(
        &self,
        consumer: &ClusterId,
        name: &str,
        cached: Option<Arc<ForeignCluster>>,
    ) -> Result<Option<Arc<ForeignCluster>>, StepError> {
        let api: Api<ForeignCluster> = Api::all(self.client.clone());
        let names = cached.map_or_else(
            || object_names(consumer, name),
            |record| vec![record.name_any()],
        );
        for name in names {
            let found =
                api.get_opt(&name)
                    .await
                    .step("read", "ForeignCluster", Key::new("", name))?;
            if let Some(record) = found.filter(|record| record.spec.cluster_id == *consumer) {
                return Ok(Some(Arc::new(record)));
            }
        }
        Ok(None)
    }

    pub(super) async fn find_approval_queue(
        &self,
        consumer: &ClusterId,
        name: &str,
    ) -> Result<ApprovalQueue, StepError> {
        let all = Api::<ForeignCluster>::all(self.client.clone())
            .list(&ListParams::default())
            .await;
        let all = all.step("list", "ForeignClusters", Key::default())?.items;
        Ok(approval_queue_in(&all, consumer, name, |record| {
            matches!(self.approval_wait(record), ApprovalWait::For(_))
        }))
    }

    /// The requirements of the policy that applies to a consumer. Before a consumer has access,
    /// this asks the API server: the cache may not show yet that the policy became stricter.
    pub(super) async fn admission_requirements(
        &self,
        consumer: &ClusterId,
        has_access: bool,
    ) -> Result<AdmissionRequirements, StepError> {
        let record = self.find_record(consumer);
        let (peer, has_record) = (
            PolicyPeer::new(consumer, record.as_deref()),
            record.is_some(),
        );
        if has_access {
            return Ok(policies::effective_policy(&self.policies, &peer)
                .as_ref()
                .map(|policy| AdmissionRequirements::from_policy(policy, has_record))
                .unwrap_or_default());
        }
        let all = Api::<PeeringPolicy>::all(self.client.clone())
            .list(&ListParams::default())
            .await;
        let all: Vec<_> = all
            .step("list", "PeeringPolicies", Key::default())?
            .items
            .into_iter()
            .map(Arc::new)
            .collect();
        Ok(liqo_api::policies::policies_of_peer(&all, &peer)
            .first()
            .copied()
            .map(|policy| AdmissionRequirements::from_policy(policy, has_record))
            .unwrap_or_default())
    }

    /// The same by the cache, for a consumer without record.
    pub(super) fn admission_without_record(&self, consumer: &ClusterId) -> AdmissionRequirements {
        let policy = policies::effective_policy(&self.policies, &PolicyPeer::new(consumer, None));
        policy
            .map(|policy| AdmissionRequirements::from_policy(&policy, false))
            .unwrap_or_default()
    }

    pub(super) fn find_record(&self, consumer: &ClusterId) -> Option<Arc<ForeignCluster>> {
        foreign_clusters::of_peer(&self.foreign_clusters, consumer)
            .into_iter()
            .next()
    }
}

/// The possible names of a consumer's record. A consumer must not take another cluster's ID as its
/// name, so the last one is always free.
pub(crate) fn object_names(consumer: &ClusterId, name: &str) -> Vec<String> {
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
pub(super) fn noted_name(record: &ForeignCluster) -> Option<String> {
    let made_by_liqo = PolicyPeer::new(&record.spec.cluster_id, Some(record)).was_made_by_liqo();
    record.spec.cluster_name.clone().filter(|_| made_by_liqo)
}

fn approval_queue_in(
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

fn record_of(
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

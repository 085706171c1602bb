//! The `ForeignCluster`s that Liqo creates for consumers, and which consumers wait for approval.

use std::{sync::Arc, time::Duration};

use data_encoding::BASE64;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions},
};
use liqo_api::policies::PolicyPeer;
use liqo_api::{ClusterId, ForeignCluster, PeeringPolicy, annotations};
use liqo_controller_runtime::{
    Key, foreign_clusters, policies,
    writes::{StepContext as _, StepError, delete_if_present, unless_changed},
};
use serde_json::json;

use super::Tenants;
use crate::{
    decide::{
        access::ApprovalQueue,
        consumer_records::{
            AdmissionRequirements, WaitingConsumer, approval_queue_in, object_names, record_of,
        },
        peer::{ApprovalWait, approval_wait},
    },
    objects,
};

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

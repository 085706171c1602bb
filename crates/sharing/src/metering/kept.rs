//! Objects that stay after a peering ended.
//!
//! Receipts and contracts are what both owners settle by, so they must not go with the namespace of
//! the peering, whoever ended it:
//!
//! ```text
//!   liqo-tenant-<id> or liqo-provider-<id>, before it is deleted       namespace liqo, for metering.receiptDays
//!     provider: writes the receipts of unfinished periods
//!     Receipt, UsageRecord                       ──── copy ────▶       <name>-<role>-<id>-<uid>
//!     Contract, if one of these is under it      ──── copy ────▶         labels: role and ID of the peer
//! ```
//!
//! Copies have other labels than what belongs to a peering, so no controller takes them for that.

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams};
use kube::{Api, ResourceExt as _, core::Status};
use liqo_api::{Receipt, UsageRecord, annotations, labels};
use liqo_controller_runtime::put::{create_or_replace, replace_status};
use liqo_controller_runtime::writes::{
    ApiError as _, StepContext as _, StepError, delete_if_present,
};
use liqo_controller_runtime::{Context, Key};
use liqo_market::receipt::contract::metered_contract;
use liqo_metering::Period;
use liqo_metering::receipt::{ReceiptContract, period_of};
use liqo_signing::ClusterIdentity;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{PAGE, issued_receipts};
use crate::decide::archive::{
    ArchivedCopy, ContractPart, EndingPeering, named_contract, surplus_copies,
};
use crate::{FIELD_MANAGER, SharingError};

/// Maximum time for which the API server may refuse copies. After that, the peering ends without
/// them.
const MAX_REFUSED: Duration = Duration::from_mins(10);
/// Number of objects that are copied at the same time.
const CONCURRENCY: usize = 8;
/// Interval between two searches for old copies.
const CLEAN_UP_INTERVAL: Duration = Duration::from_hours(6);

/// Keeps what both owners need when a peering has ended.
pub struct PeeringArchiver {
    context: Context,
    identity: Arc<ClusterIdentity>,
    /// Time since which the API server refuses something of a namespace.
    refused: Mutex<HashMap<String, Instant>>,
}

impl PeeringArchiver {
    pub fn new(context: &Context, identity: &Arc<ClusterIdentity>) -> Self {
        Self {
            context: context.clone(),
            identity: identity.clone(),
            refused: Mutex::default(),
        }
    }

    /// Keeps what is in the namespace of a peering that has ended, and whose pods are gone. `name`:
    /// what people call the peer.
    pub async fn archive_namespace(
        &self,
        namespace: &str,
        name: Option<&str>,
    ) -> Result<(), SharingError> {
        let Some(ending) = EndingPeering::of_namespace(namespace, name) else {
            return Ok(());
        };
        if ending.provides {
            self.write_last_receipts(&ending).await?;
        }
        let mut used = BTreeSet::new();
        for (kind, part) in [
            (api_resource::<Receipt>(), ContractPart::Statement),
            (api_resource::<UsageRecord>(), ContractPart::Spec),
        ] {
            let objects = self
                .stream_objects(namespace, &kind)
                .inspect_ok(|object| used.extend(named_contract(object, part)));
            self.copy_all(&ending, &kind, objects).await?;
        }
        let kind = api_resource::<liqo_api::Contract>();
        let contracts = self.stream_objects(namespace, &kind).try_filter(|object| {
            let id = named_contract(object, ContractPart::Terms);
            std::future::ready(id.is_some_and(|id| used.contains(&id)))
        });
        self.copy_all(&ending, &kind, contracts).await?;
        self.lock_refused().remove(namespace);
        if !used.is_empty()
            && let Err(error) = self.clean_up().await
        {
            tracing::warn!(%error, "cannot clean up what is kept of ended peerings");
        }
        Ok(())
    }

    async fn copy_all(
        &self,
        ending: &EndingPeering<'_>,
        kind: &ApiResource,
        objects: impl Stream<Item = Result<DynamicObject, SharingError>> + Send,
    ) -> Result<(), SharingError> {
        objects
            .try_for_each_concurrent(CONCURRENCY, |object| async move {
                self.store_copy(ending, &ending.archived_copy(&object, kind), kind)
                    .await
            })
            .await
    }

    /// The contracts in a namespace that were in force.
    async fn read_contracts(&self, namespace: &str) -> Result<Vec<ReceiptContract>, SharingError> {
        let mut all = Vec::new();
        let mut objects = self.stream_objects(namespace, &api_resource::<liqo_api::Contract>());
        while let Some(mut object) = objects.try_next().await? {
            // The peer wrote the status. Its signature is in the spec, too.
            let read = object
                .clone()
                .try_parse::<liqo_api::Contract>()
                .or_else(|_| {
                    object
                        .data
                        .as_object_mut()
                        .map(|data| data.remove("status"));
                    object.try_parse()
                });
            all.extend(
                read.ok()
                    .and_then(|contract| metered_contract(&contract).ok()?),
            );
        }
        Ok(all)
    }

    /// Writes the receipt of each period that has none yet. No pod can use anything any more.
    async fn write_last_receipts(&self, ending: &EndingPeering<'_>) -> Result<(), SharingError> {
        let namespace = ending.namespace;
        let mut periods: BTreeSet<(String, Period)> = BTreeSet::new();
        let mut objects = self.stream_objects(namespace, &api_resource::<UsageRecord>());
        while let Some(object) = objects.try_next().await? {
            let record = object.try_parse::<UsageRecord>().ok();
            periods.extend(
                record.and_then(|record| {
                    Some((record.spec.contract, period_of(&record.spec.period)?))
                }),
            );
        }
        if periods.is_empty() {
            return Ok(());
        }
        for contract in self.read_contracts(namespace).await? {
            for (_, period) in periods.iter().filter(|(id, _)| *id == contract.id) {
                match issued_receipts::write_receipt(
                    &self.context,
                    &self.identity,
                    namespace,
                    &contract,
                    *period,
                )
                .await
                {
                    Err(SharingError::Local(error)) => {
                        self.unless_refused_for_long(ending, Err(error))?;
                    }
                    issued => issued?,
                }
            }
        }
        Ok(())
    }

    /// Deletes what is too old or too much, at once and again from time to time, until `stop`.
    pub async fn run(&self, stop: CancellationToken) {
        let mut rounds = tokio::time::interval(CLEAN_UP_INTERVAL);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = rounds.tick() => {}
            }
            if let Err(error) = self.clean_up().await {
                tracing::warn!(%error, "cannot clean up what is kept of ended peerings");
            }
        }
    }

    async fn clean_up(&self) -> Result<(), SharingError> {
        let kinds = [
            api_resource::<Receipt>(),
            api_resource::<UsageRecord>(),
            api_resource::<liqo_api::Contract>(),
        ];
        let mut all = Vec::new();
        for (number, kind) in kinds.iter().enumerate() {
            let copies = ListParams::default().labels(labels::FORMER_PEER_ID);
            let found = self
                .kind_api(&self.context.namespace, kind)
                .list_metadata(&copies)
                .await;
            let found = found.step(
                "list what is kept of",
                kind.kind.clone(),
                Key::new(&self.context.namespace, ""),
            )?;
            all.extend(found.items.iter().map(|one| {
                ArchivedCopy {
                    since: one
                        .metadata
                        .creation_timestamp
                        .as_ref()
                        .map(|time| time.0)
                        .unwrap_or_default(),
                    kind: number,
                    peer: one
                        .labels()
                        .get(labels::FORMER_PEER_ID)
                        .cloned()
                        .unwrap_or_default(),
                    name: one.name_any(),
                    length: one
                        .annotations()
                        .get(annotations::KEPT_LENGTH)
                        .and_then(|text| text.parse().ok())
                        .unwrap_or_default(),
                }
            }));
        }
        for one in surplus_copies(
            all,
            self.context.config().spec.metering.receipt_days,
            self.context.now(),
        ) {
            let kind = &kinds[one.kind];
            let deleted = delete_if_present(
                &self.kind_api(&self.context.namespace, kind),
                &one.name,
                &DeleteParams::default(),
            )
            .await;
            deleted.step(
                "delete",
                kind.kind.clone(),
                Key::new(&self.context.namespace, one.name),
            )?;
        }
        Ok(())
    }

    /// Reads the objects of a kind one page after the other: a peer may have written a part of
    /// each.
    fn stream_objects(
        &self,
        namespace: &str,
        kind: &ApiResource,
    ) -> Pin<Box<dyn Stream<Item = Result<DynamicObject, SharingError>> + Send>> {
        let (api, key) = (self.kind_api(namespace, kind), Key::new(namespace, ""));
        let (kind, first) = (kind.kind.clone(), Some(ListParams::default().limit(PAGE)));
        let pages = stream::try_unfold(first, move |page| {
            let (api, key, kind) = (api.clone(), key.clone(), kind.clone());
            async move {
                let Some(page) = page else { return Ok(None) };
                let found = api.list(&page).await.step("list every", kind, key)?;
                let next = found
                    .metadata
                    .continue_
                    .filter(|token| !token.is_empty())
                    .map(|token| page.continue_token(&token));
                Ok::<_, SharingError>(Some((stream::iter(found.items.into_iter().map(Ok)), next)))
            }
        });
        pages.try_flatten().boxed()
    }

    /// Writes a copy.
    async fn store_copy(
        &self,
        ending: &EndingPeering<'_>,
        copy: &DynamicObject,
        kind: &ApiResource,
    ) -> Result<(), SharingError> {
        let (api, name) = (
            self.kind_api(&self.context.namespace, kind),
            copy.name_any(),
        );
        let stored = async {
            create_or_replace(&api, FIELD_MANAGER, copy, false).await?;
            match copy.data.get("status") {
                Some(status) => replace_status(&api, FIELD_MANAGER, &name, status).await,
                None => Ok(()),
            }
        };
        let stored = stored.await.step(
            "keep",
            kind.kind.clone(),
            Key::new(&self.context.namespace, &name),
        );
        Ok(self.unless_refused_for_long(ending, stored)?)
    }

    /// Gives up a copy that the API server refuses for long, so that the peering can end. A quota
    /// that is full, for example, may get room.
    fn unless_refused_for_long(
        &self,
        ending: &EndingPeering,
        written: Result<(), StepError>,
    ) -> Result<(), StepError> {
        let Err(error) = written else { return Ok(()) };
        let status = error.source.status();
        let for_ever = status.is_some_and(Status::is_invalid);
        if !for_ever && !status.is_some_and(Status::is_forbidden) {
            return Err(error);
        }
        let since = *self
            .lock_refused()
            .entry(ending.namespace.to_owned())
            .or_insert_with(Instant::now);
        if !for_ever && since.elapsed() < MAX_REFUSED {
            return Err(error);
        }
        tracing::warn!(%error, "this goes with its peering: it cannot be kept");
        Ok(())
    }

    fn lock_refused(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kind_api(&self, namespace: &str, kind: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.context.client.clone(), namespace, kind)
    }
}

fn api_resource<K: kube::Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}

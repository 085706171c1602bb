//! Receipts: the provider writes one for each period, the consumer signs or disputes it.
//!
//! The rules are in [`liqo_market::receipt`]. Offloading writes the usage records of both sides.
//! This module reads them, and deletes them when both sides have signed. `kept` copies receipts and
//! contracts before the namespace of a peering goes.

mod answered_receipts;
mod issued_receipts;
pub mod kept;

use std::sync::Arc;

use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::ObjectList;
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use liqo_api::{Claimed, ClusterId, PeeringPolicy, Receipt, UsageRecord, labels};
use liqo_controller_runtime::conditions::namespaced_api;
use liqo_controller_runtime::peers::{PeerError, call};
use liqo_controller_runtime::writes::{
    StepContext as _, StepError, delete_if_present, unless_changed,
};
use liqo_controller_runtime::{Cache, Context, Key, PeerConnection};
use liqo_metering::UsageEntries;
use liqo_metering::receipt::{period_label, receipt_name};
use liqo_signing::ClusterIdentity;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::SharingError;
use crate::peer_conditions::PeerConditions;
use crate::queues::SharingQueues;
use crate::triggers::{self, ReceiptSide};
use liqo_market::receipt::document::ReceiptParties;
use liqo_market::receipt::issue::{ContractPeriod, ReceiptHead, RecordHead, kept_signature};

/// Usage records in one page: each may take 256 KiB.
const PAGE: u32 = 16;
/// Maximum length in bytes of all entries of a period that are read.
const MAX_USAGE_LEN: usize = 32 << 20;
/// Maximum number of pages that are read of a period: a provider may send empty ones without end.
const MAX_PAGES: usize = 1000;
/// Maximum number of entries of a period that are read. Each takes some hundred bytes of memory.
const MAX_USAGE_ENTRIES: usize = 100_000;

/// Runs both sides until `stop`.
pub async fn run_controllers(
    context: &Context,
    identity: Arc<ClusterIdentity>,
    policies: Cache<PeeringPolicy>,
    conditions: Arc<PeerConditions>,
    queues: &SharingQueues,
    stop: CancellationToken,
) {
    let provider =
        issued_receipts::ReceiptIssueController::start(context, identity.clone(), queues, &stop);
    let consumer = answered_receipts::ReceiptAnswerController::start(
        context, identity, policies, conditions, queues, &stop,
    );
    tokio::join!(provider.run(stop.clone()), consumer.run(stop));
}

/// The records and receipts of this cluster on one side.
struct MeteringCaches {
    records: Cache<RecordHead>,
    receipts: Cache<ReceiptHead>,
}

impl MeteringCaches {
    /// Watches them.
    fn follow(
        context: &Context,
        side: ReceiptSide,
        stop: &CancellationToken,
        queues: &SharingQueues,
    ) -> Self {
        let config = Config::default().labels(side.peer_label());
        let (changed, client) = (queues.clone(), context.client.clone());
        let small_pages = config.clone().page_size(PAGE);
        let records = Cache::watch(
            Api::<UsageRecord>::all(client),
            small_pages,
            stop.clone(),
            RecordHead::reduce,
            move |key, _, _| changed.add(triggers::metering_changed(side, key)),
        );
        let changed = queues.clone();
        let receipts = watch_receipts(context, side, stop, move |key| {
            changed.add(triggers::metering_changed(side, key));
        });
        Self { records, receipts }
    }

    async fn synced(&self) -> bool {
        self.records.wait_until_synced().await && self.receipts.wait_until_synced().await
    }

    fn records(&self, namespace: &str) -> Vec<Arc<RecordHead>> {
        self.records
            .in_namespace(namespace)
            .into_iter()
            .map(|(_, record)| record)
            .collect()
    }

    fn receipts(&self, namespace: &str) -> Vec<Arc<ReceiptHead>> {
        self.receipts
            .in_namespace(namespace)
            .into_iter()
            .map(|(_, receipt)| receipt)
            .collect()
    }

    async fn delete_records(
        &self,
        client: &Client,
        namespace: &str,
        of: &ContractPeriod,
    ) -> Result<(), SharingError> {
        let api: Api<UsageRecord> = namespaced_api(client, namespace);
        for (key, _) in self
            .records
            .in_namespace(namespace)
            .into_iter()
            .filter(|(_, record)| record.of == *of)
        {
            delete_if_present(&api, &key.name, &DeleteParams::default())
                .await
                .step("delete", "UsageRecord", &key)?;
        }
        Ok(())
    }
}

/// Watches the receipts of this cluster on one side.
pub(crate) fn watch_receipts(
    context: &Context,
    side: ReceiptSide,
    stop: &CancellationToken,
    changed: impl Fn(&Key) + Send + 'static,
) -> Cache<ReceiptHead> {
    let own = context.cluster_id.clone();
    let (all, config) = (
        Api::<Receipt>::all(context.client.clone()),
        Config::default().labels(side.peer_label()),
    );
    Cache::watch(
        all,
        config,
        stop.clone(),
        move |receipt: Receipt| {
            let namespace = receipt.metadata.namespace.as_deref()?;
            let parties = ReceiptParties::of_namespace(&own, namespace)?;
            ReceiptHead::reduce(&parties, Claimed::new(&receipt))
        },
        move |key, _, _| {
            changed(key);
        },
    )
}

async fn delete_receipt(
    client: &Client,
    namespace: &str,
    of: &ContractPeriod,
) -> Result<(), SharingError> {
    let api: Api<Receipt> = namespaced_api(client, namespace);
    let key = Key::new(namespace, receipt_name(&of.0, of.1));
    delete_if_present(&api, &key.name, &DeleteParams::default())
        .await
        .step("delete", "Receipt", &key)?;
    Ok(())
}

/// Copies the consumer's signature from the status to where only this cluster writes.
async fn keep_signature(
    context: &Context,
    namespace: &str,
    of: &ContractPeriod,
) -> Result<(), SharingError> {
    let api: Api<Receipt> = namespaced_api(&context.client, namespace);
    let key = Key::new(namespace, receipt_name(&of.0, of.1));
    // The cache may be behind: what the status has now is what can be kept.
    let Some(live) = api.get_opt(&key.name).await.step("read", "Receipt", &key)? else {
        return Ok(());
    };
    let parties = ReceiptParties::of_namespace(&context.cluster_id, namespace);
    let Some(signature) = parties.and_then(|parties| kept_signature(&parties, Claimed::new(&live)))
    else {
        return Ok(());
    };
    let patch = json!({
        "metadata": { "resourceVersion": live.metadata.resource_version }, "spec": { "countersignature": signature },
    });
    let written = unless_changed(
        api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch))
            .await,
    );
    written
        .map(drop)
        .step("keep the signature of", "Receipt", &key)?;
    Ok(())
}

/// The usage records in a namespace of this cluster, or of a provider: see
/// [`UsageRecordsAtProvider`].
struct UsageRecords<'a> {
    api: Api<UsageRecord>,
    namespace: &'a str,
    /// `None` in this cluster.
    provider: Option<&'a ClusterId>,
}

/// The usage records in our namespace of a provider.
struct UsageRecordsAtProvider<'a>(UsageRecords<'a>);

impl<'a> UsageRecordsAtProvider<'a> {
    fn over_connection(connection: &'a PeerConnection) -> Self {
        let (api, namespace) = (
            namespaced_api(&connection.client, &connection.tenant_namespace),
            &connection.tenant_namespace,
        );
        Self(UsageRecords {
            api,
            namespace,
            provider: Some(&connection.cluster_id),
        })
    }

    /// The provider's entries of a period.
    async fn read_usage(
        &self,
        of: &ContractPeriod,
    ) -> Result<Claimed<Result<UsageEntries, String>>, SharingError> {
        self.0.read_usage(of).await.map(Claimed::new)
    }

    /// Whether the provider has records of a period.
    async fn exist(&self, of: &ContractPeriod) -> Result<Claimed<bool>, SharingError> {
        Ok(Claimed::new(
            !self
                .0
                .list_page(&of_period(of).limit(1))
                .await?
                .items
                .is_empty(),
        ))
    }
}

impl<'a> UsageRecords<'a> {
    /// Those of this cluster.
    fn in_this_cluster(client: &Client, namespace: &'a str) -> Self {
        Self {
            api: namespaced_api(client, namespace),
            namespace,
            provider: None,
        }
    }

    /// The entries of a period, or why they cannot be read. The outer error is one of the request.
    async fn read_usage(
        &self,
        of: &ContractPeriod,
    ) -> Result<Result<UsageEntries, String>, SharingError> {
        let (mut usage, mut length) = (UsageEntries::default(), 0);
        let mut params = of_period(of).limit(PAGE);
        for _ in 0..MAX_PAGES {
            let page = self.list_page(&params).await?;
            for record in page
                .items
                .iter()
                .filter(|record| record.spec.contract == of.0)
            {
                length += record.spec.entries.len();
                if length > MAX_USAGE_LEN {
                    return Ok(Err(format!("they take more than {MAX_USAGE_LEN} bytes")));
                }
                match UsageEntries::parse(&record.spec.entries) {
                    Ok(entries) => usage.extend(entries.entries().cloned()),
                    Err(error) => return Ok(Err(error.to_string())),
                }
                if usage.len() > MAX_USAGE_ENTRIES {
                    return Ok(Err(format!("there are more than {MAX_USAGE_ENTRIES}")));
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(Ok(usage)),
            }
        }
        Ok(Err(format!("they take more than {MAX_PAGES} pages")))
    }

    async fn list_page(
        &self,
        params: &ListParams,
    ) -> Result<ObjectList<UsageRecord>, SharingError> {
        let key = Key::new(self.namespace, "");
        Ok(match self.provider {
            None => self
                .api
                .list(params)
                .await
                .step("list", "UsageRecord", key)?,
            Some(provider) => of_provider(
                provider,
                call(self.api.list(params))
                    .await
                    .step("list", "UsageRecord", key),
            )?,
        })
    }
}

fn of_period(of: &ContractPeriod) -> ListParams {
    ListParams::default().labels(&format!(
        "{}={}",
        labels::USAGE_PERIOD,
        period_label(&of.0, of.1)
    ))
}

fn of_provider<T>(
    provider: &ClusterId,
    outcome: Result<T, StepError<PeerError>>,
) -> Result<T, SharingError> {
    outcome.map_err(|source| SharingError::Provider {
        provider: provider.clone(),
        source: Box::new(source),
    })
}

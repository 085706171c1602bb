//! Writes the receipts of this cluster's consumers.

use std::sync::Arc;

use kube::{Api, ResourceExt as _, api::PostParams};
use liqo_api::{Receipt, ReceiptSpec, labels, tenant_namespace};
use liqo_controller_runtime::conditions::namespaced_api;
use liqo_controller_runtime::put::with_peer_labels;
use liqo_controller_runtime::writes::StepContext as _;
use liqo_controller_runtime::{Cache, Context, Key, Requeue};
use liqo_metering::Period;
use liqo_metering::receipt::{ReceiptContract, receipt_name};
use liqo_signing::ClusterIdentity;
use tokio_util::sync::CancellationToken;

use super::{MeteringCaches, UsageRecords};
use crate::SharingError;
use crate::queues::SharingQueues;
use crate::triggers::{self, ReceiptSide};
use liqo_market::receipt::contract::metered_contract;
use liqo_market::receipt::document::SignedReceipt;
use liqo_market::receipt::issue::{ContractPeriod, ReceiptAction, decide_actions};

/// Number of tenancies that are handled at the same time.
const CONCURRENCY: usize = 4;

pub(super) struct ReceiptIssueController {
    context: Context,
    identity: Arc<ClusterIdentity>,
    contracts: Cache<ReceiptContract>,
    caches: MeteringCaches,
    queues: SharingQueues,
}

impl ReceiptIssueController {
    pub fn start(
        context: &Context,
        identity: Arc<ClusterIdentity>,
        queues: &SharingQueues,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        let contracts = watch_metered_contracts(context, ReceiptSide::Issued, stop, queues);
        let caches = MeteringCaches::follow(context, ReceiptSide::Issued, stop, queues);
        Arc::new(Self {
            context: context.clone(),
            identity,
            contracts,
            caches,
            queues: queues.clone(),
        })
    }

    /// Writes receipts until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        if !(self.contracts.wait_until_synced().await && self.caches.synced().await) {
            return;
        }
        let (queue, controller) = (self.queues.issued_receipts.clone(), self);
        queue
            .run("receipts", CONCURRENCY, stop, move |namespace| {
                let controller = controller.clone();
                async move { controller.reconcile(&namespace).await }
            })
            .await;
    }

    async fn reconcile(&self, namespace: &str) -> Result<Requeue, SharingError> {
        let (records, receipts) = (
            self.caches.records(namespace),
            self.caches.receipts(namespace),
        );
        let (records, receipts) = (
            records.iter().map(AsRef::as_ref),
            receipts.iter().map(AsRef::as_ref),
        );
        let client = &self.context.client;
        let mut failures = Vec::new();
        for action in decide_actions(
            records,
            receipts,
            &self.context.config().spec.metering,
            self.context.now(),
        ) {
            let done = match action {
                ReceiptAction::Issue(of) => self.issue_receipt(namespace, &of).await,
                ReceiptAction::KeepSignature(of) => {
                    super::keep_signature(&self.context, namespace, &of).await
                }
                ReceiptAction::DeleteRecords(of) => {
                    self.caches.delete_records(client, namespace, &of).await
                }
                ReceiptAction::DeleteReceipt(of) => {
                    super::delete_receipt(client, namespace, &of).await
                }
            };
            failures.extend(done.err());
        }
        crate::first_failure(failures)?;
        Ok(Requeue::OnChange)
    }

    /// Writes the receipt of a period.
    async fn issue_receipt(
        &self,
        namespace: &str,
        of: &ContractPeriod,
    ) -> Result<(), SharingError> {
        let here = self
            .contracts
            .in_namespace(namespace)
            .into_iter()
            .find(|(_, contract)| contract.id == of.0);
        let Some((_, contract)) =
            here.filter(|(_, contract)| tenant_namespace(&contract.consumer) == namespace)
        else {
            tracing::debug!(
                namespace,
                contract = of.0,
                "no receipt without the contract"
            );
            return Ok(());
        };
        write_receipt(&self.context, &self.identity, namespace, &contract, of.1).await
    }
}

/// Writes the receipt of a period of a contract, from the usage records in the namespace of the
/// tenancy.
pub(super) async fn write_receipt(
    context: &Context,
    identity: &ClusterIdentity,
    namespace: &str,
    contract: &ReceiptContract,
    period: Period,
) -> Result<(), SharingError> {
    let records = UsageRecords::in_this_cluster(&context.client, namespace);
    let usage = records.read_usage(&(contract.id.clone(), period)).await?;
    let key = Key::new(namespace, receipt_name(&contract.id, period));
    let document = usage.and_then(|usage| {
        let statement = contract
            .receipt(period, &usage)
            .map_err(|error| error.to_string())?;
        let document =
            SignedReceipt::compose(identity, &statement).map_err(|error| error.to_string())?;
        Ok((document, statement))
    });
    let (document, statement) = match document {
        Ok(signed) => signed,
        Err(why) => {
            tracing::warn!(receipt = %key, why, "a period gets no receipt; its usage records stay");
            return Ok(());
        }
    };
    tracing::info!(receipt = %key, pods = statement.pods, "receipt written");
    let receipt = with_peer_labels(
        Receipt::new(
            &key.name,
            ReceiptSpec {
                document,
                statement,
                countersignature: None,
            },
        ),
        labels::CONSUMER_ID,
        &contract.consumer,
    );
    let api: Api<Receipt> = namespaced_api(&context.client, namespace);
    match api.create(&PostParams::default(), &receipt).await {
        // A receipt never changes. The cache does not show it yet, or it is of a contract whose ID
        // begins with the same 8 characters: then this period gets none, and its records stay.
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        created => Ok(created.map(drop).step("create", "Receipt", &key)?),
    }
}

/// The contracts of this cluster that were in force, as far as they can be read.
pub(super) fn watch_metered_contracts(
    context: &Context,
    side: ReceiptSide,
    stop: &CancellationToken,
    queues: &SharingQueues,
) -> Cache<ReceiptContract> {
    let (contracts, queues) = (
        context.informers.of_kind::<liqo_api::Contract>(),
        queues.clone(),
    );
    contracts.reduced_cache(
        stop.clone(),
        move |contract| {
            let is_of_peer = contract.labels().contains_key(side.peer_label());
            is_of_peer
                .then(|| metered_contract(&contract).ok().flatten())
                .flatten()
        },
        move |key, _, _| queues.add(triggers::metering_changed(side, key)),
    )
}

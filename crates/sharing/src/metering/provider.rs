//! Writes the receipts of this cluster's consumers.

use std::sync::Arc;

use kube::{Api, api::PostParams, runtime::watcher::Config};
use liqo_api::{Receipt, ReceiptSpec, labels, tenant_namespace};
use liqo_controller_runtime::conditions::namespaced;
use liqo_controller_runtime::put::marked;
use liqo_controller_runtime::writes::Step as _;
use liqo_controller_runtime::{Cache, Context, Key, Next, Queue};
use liqo_metering::Period;
use liqo_metering::receipt::{Contract, receipt_name};
use liqo_signing::ClusterIdentity;
use tokio_util::sync::CancellationToken;

use super::{Papers, Records};
use crate::Error;
use liqo_market::receipt::contract::metered;
use liqo_market::receipt::document::SignedReceipt;
use liqo_market::receipt::issue::{Action, ContractPeriod, decide};

/// Number of tenancies that are handled at the same time.
const CONCURRENCY: usize = 4;

pub(super) struct Controller {
    context: Context,
    identity: Arc<ClusterIdentity>,
    contracts: Cache<Contract>,
    papers: Papers,
    queue: Queue<String>,
}

impl Controller {
    pub fn start(
        context: &Context,
        identity: Arc<ClusterIdentity>,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        let queue = Queue::new();
        let contracts = contracts(context, labels::CONSUMER_ID, stop, &queue);
        let papers = Papers::follow(context, labels::CONSUMER_ID, stop, &queue);
        Arc::new(Self {
            context: context.clone(),
            identity,
            contracts,
            papers,
            queue,
        })
    }

    /// Writes receipts until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        if !(self.contracts.synced().await && self.papers.synced().await) {
            return;
        }
        let (queue, controller) = (self.queue.clone(), self);
        let reconcile = move |namespace: String| {
            let controller = controller.clone();
            async move { controller.reconcile(&namespace).await }
        };
        queue.run("receipts", CONCURRENCY, stop, reconcile).await;
    }

    async fn reconcile(&self, namespace: &str) -> Result<Next, Error> {
        let (records, receipts) = (
            self.papers.records(namespace),
            self.papers.receipts(namespace),
        );
        let (records, receipts) = (
            records.iter().map(AsRef::as_ref),
            receipts.iter().map(AsRef::as_ref),
        );
        let client = &self.context.client;
        let mut failures = Vec::new();
        for action in decide(
            records,
            receipts,
            &self.context.config().spec.metering,
            self.context.now(),
        ) {
            let done = match action {
                Action::Issue(of) => self.issue(namespace, &of).await,
                Action::KeepSignature(of) => {
                    super::keep_signature(&self.context, namespace, &of).await
                }
                Action::DeleteRecords(of) => {
                    self.papers.delete_records(client, namespace, &of).await
                }
                Action::DeleteReceipt(of) => super::delete_receipt(client, namespace, &of).await,
            };
            failures.extend(done.err());
        }
        crate::first(failures)?;
        Ok(Next::OnChange)
    }

    /// Writes the receipt of a period.
    async fn issue(&self, namespace: &str, of: &ContractPeriod) -> Result<(), Error> {
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
        issue(&self.context, &self.identity, namespace, &contract, of.1).await
    }
}

/// Writes the receipt of a period of a contract, from the usage records in the namespace of the
/// tenancy.
pub(super) async fn issue(
    context: &Context,
    identity: &ClusterIdentity,
    namespace: &str,
    contract: &Contract,
    period: Period,
) -> Result<(), Error> {
    let records = Records::here(&context.client, namespace);
    let usage = records.usage(&(contract.id.clone(), period)).await?;
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
    let receipt = marked(
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
    let api: Api<Receipt> = namespaced(&context.client, namespace);
    match api.create(&PostParams::default(), &receipt).await {
        // A receipt never changes. The cache does not show it yet, or it is of a contract whose ID
        // begins with the same 8 characters: then this period gets none, and its records stay.
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        created => Ok(created.map(drop).step("create", "Receipt", &key)?),
    }
}

/// The contracts of this cluster that were in force, as far as they can be read.
pub(super) fn contracts(
    context: &Context,
    peer_label: &str,
    stop: &CancellationToken,
    queue: &Queue<String>,
) -> Cache<Contract> {
    let (api, queue) = (
        Api::<liqo_api::Contract>::all(context.client.clone()),
        queue.clone(),
    );
    let reduce = |contract: liqo_api::Contract| metered(&contract).ok().flatten();
    Cache::watch(
        api,
        Config::default().labels(peer_label),
        stop.clone(),
        reduce,
        move |key, _, _| {
            queue.add_after(key.namespace.clone(), crate::SETTLE_DELAY);
        },
    )
}

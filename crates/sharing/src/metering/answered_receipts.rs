//! Answers the receipts of this cluster's providers, and keeps copies of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, runtime::watcher::Config};
use liqo_api::policies::PolicyPeer;
use liqo_api::{
    Claimed, ClusterId, PeeringPolicy, Receipt, ReceiptPhase, ReceiptStatus, annotations, labels,
    provider_namespace,
};
use liqo_controller_runtime::conditions::namespaced_api;
use liqo_controller_runtime::peers::call;
use liqo_controller_runtime::put::{create_or_replace, replace_status, with_peer_labels};
use liqo_controller_runtime::writes::{StepContext as _, delete_if_present};
use liqo_controller_runtime::{Cache, Context, Key, PeerConnection, Requeue, policies};
use liqo_metering::receipt::{ReceiptContract, receipt_name};
use liqo_metering::spending::SettledCosts;
use liqo_metering::{Seconds, Tolerance, UsageEntries};
use liqo_signing::ClusterIdentity;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    MeteringCaches, UsageRecords, UsageRecordsAtProvider, issued_receipts::watch_metered_contracts,
    of_provider,
};
use crate::decide::reduce::provider_of;
use crate::peer_conditions::PeerConditions;
use crate::queues::SharingQueues;
use crate::triggers::{self, ReceiptSide};
use crate::{FIELD_MANAGER, SharingError};
use liqo_market::receipt::answer::{ConsumerEvidence, answer_receipt};
use liqo_market::receipt::counted::{is_compared_again, is_counted, superseded_periods};
use liqo_market::receipt::document::ReceiptParties;
use liqo_market::receipt::given::{
    CopyStep, OwnEvidence, copy_spec, copy_step, earlier_answer, is_asked_for,
};
use liqo_market::receipt::issue::{
    ContractPeriod, ReceiptAction, ReceiptHead, RecordHead, decide_actions, surplus_receipts,
};
use liqo_market::receipt::settle::{SettledUntil, is_action_allowed, periods_to_settle};
use liqo_market::receipt::unclaimed::{ContractEnds, unclaimed_periods};

/// Number of providers that are handled at the same time.
const CONCURRENCY: usize = 4;
/// Delay before a receipt is looked at again whose own entries are not complete yet.
const INCOMPLETE_RETRY: Duration = Duration::from_secs(15);

/// Delay before disputed receipts are looked at again.
const DISPUTED_RETRY: Duration = Duration::from_hours(1);
/// Maximum number of periods without a receipt about which a provider is asked at once, and of
/// disputes that are compared again at once.
const MAX_ASKED: usize = 8;

pub(super) struct ReceiptAnswerController {
    context: Context,
    identity: Arc<ClusterIdentity>,
    policies: Cache<PeeringPolicy>,
    conditions: Arc<PeerConditions>,
    contracts: Cache<ReceiptContract>,
    caches: MeteringCaches,
    providers: Mutex<HashMap<ClusterId, Arc<ProviderReceipts>>>,
    /// Time until which the costs of each contract (its object) are settled, as far as that was
    /// read or written.
    settled: Mutex<HashMap<Key, Seconds>>,
    /// Time at which this process last compared each receipt that it disputed, by namespace.
    disputed: Mutex<HashMap<String, BTreeMap<ContractPeriod, Timestamp>>>,
    queues: SharingQueues,
}

/// The receipts in our tenant namespace at a provider.
struct ProviderReceipts {
    connection: Arc<PeerConnection>,
    parties: ReceiptParties,
    /// Started with the first contract: older providers do not know the kind.
    receipts: OnceLock<Cache<Claimed<ReceiptHead>>>,
    stop: CancellationToken,
}

/// A receipt to look at. What the provider says of it decides only whether this cluster reads it
/// again.
struct ReceiptAtProvider {
    of: ContractPeriod,
    phase: ReceiptPhase,
    copy: Option<Arc<ReceiptHead>>,
}

impl ProviderReceipts {
    fn receipt_cache(&self, queues: &SharingQueues) -> &Cache<Claimed<ReceiptHead>> {
        self.receipts.get_or_init(|| {
            let (queues, provider) = (queues.clone(), self.connection.cluster_id.clone());
            Cache::watch_provider(
                &self.connection,
                Config::default(),
                self.stop.clone(),
                |receipt| size_of::<ReceiptHead>() + receipt.unverified().of.0.len(),
                {
                    let parties = self.parties.clone();
                    move |receipt: Claimed<Receipt>| {
                        ReceiptHead::reduce(&parties, receipt.by_ref()).map(Claimed::new)
                    }
                },
                move |_, _, _| queues.add(triggers::receipt_at_provider_changed(&provider)),
            )
        })
    }
}

impl ReceiptAnswerController {
    pub fn start(
        context: &Context,
        identity: Arc<ClusterIdentity>,
        policies: Cache<PeeringPolicy>,
        conditions: Arc<PeerConditions>,
        queues: &SharingQueues,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        let contracts = watch_metered_contracts(context, ReceiptSide::Received, stop, queues);
        let caches = MeteringCaches::follow(context, ReceiptSide::Received, stop, queues);
        let (context, providers, settled, disputed) = (
            context.clone(),
            Mutex::default(),
            Mutex::default(),
            Mutex::default(),
        );
        Arc::new(Self {
            context,
            identity,
            policies,
            conditions,
            contracts,
            caches,
            providers,
            settled,
            disputed,
            queues: queues.clone(),
        })
    }

    /// Answers receipts until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        if !(self.contracts.wait_until_synced().await
            && self.caches.synced().await
            && self.policies.wait_until_synced().await)
        {
            return;
        }
        let controller = self.clone();
        let work = self.queues.received_receipts.run(
            "receipts-of-providers",
            CONCURRENCY,
            stop.clone(),
            move |namespace: String| {
                let controller = controller.clone();
                async move { controller.reconcile(&namespace).await }
            },
        );
        let connections = self
            .context
            .peers
            .for_each(stop, |connection| self.clone().follow_provider(connection));
        tokio::join!(work, connections);
    }

    /// Makes a provider known until the connection ends.
    async fn follow_provider(self: Arc<Self>, connection: Arc<PeerConnection>) {
        let (id, stop) = (
            connection.cluster_id.clone(),
            connection.ended.child_token(),
        );
        let _guard = stop.clone().drop_guard();
        let parties = ReceiptParties {
            provider: id.clone(),
            consumer: self.context.cluster_id.clone(),
        };
        let at_provider = Arc::new(ProviderReceipts {
            connection: connection.clone(),
            parties,
            receipts: OnceLock::new(),
            stop,
        });
        self.lock_providers()
            .insert(id.clone(), at_provider.clone());
        self.queues.add(triggers::provider_connected(&id));
        connection.ended.cancelled().await;
        let mut providers = self.lock_providers();
        if providers
            .get(&id)
            .is_some_and(|current| Arc::ptr_eq(current, &at_provider))
        {
            providers.remove(&id);
        }
    }

    async fn reconcile(&self, namespace: &str) -> Result<Requeue, SharingError> {
        let Some(provider) = provider_of(namespace) else {
            return Ok(Requeue::OnChange);
        };
        let mut failures = Vec::new();
        let mut next = Requeue::OnChange;
        let has_contract = !self.contracts.in_namespace(namespace).is_empty();
        let at_provider = self
            .lock_providers()
            .get(&provider)
            .cloned()
            .filter(|_| has_contract);
        let at_provider = at_provider.filter(|at| at.receipt_cache(&self.queues).is_synced());
        if let Some(at_provider) = &at_provider {
            let receipts = self.to_handle(namespace, at_provider);
            if let Some(compared) = self.lock_disputed().get_mut(namespace) {
                compared.retain(|of, _| receipts.iter().any(|receipt| receipt.of == *of));
            }
            let mut again = 0;
            for receipt in receipts {
                let copy = receipt.copy.as_ref();
                if receipt.phase == ReceiptPhase::Disputed
                    && copy.is_some_and(|copy| copy.phase == ReceiptPhase::Disputed)
                {
                    if !self.has_records(namespace, &receipt.of) {
                        continue;
                    }
                    next = retry_within(next, DISPUTED_RETRY);
                    if !self.is_compared_again(namespace, &receipt.of) {
                        continue;
                    }
                    again += 1;
                    if again > MAX_ASKED {
                        next = retry_within(next, INCOMPLETE_RETRY);
                        continue;
                    }
                }
                match self
                    .handle_receipt(&provider, namespace, at_provider, &receipt)
                    .await
                {
                    Ok(true) => {}
                    Ok(false) => next = retry_within(next, INCOMPLETE_RETRY),
                    Err(error) => failures.push(error),
                }
            }
        }
        let settled = self.settle_contracts(namespace, &mut failures).await;
        self.clean_up(namespace, &settled, &mut failures).await;
        if let Some(at_provider) = &at_provider {
            failures.extend(self.let_go(namespace, at_provider, &settled).await.err());
        }
        crate::first_failure(failures)?;
        Ok(next)
    }

    /// The receipts at a provider with their copies here, as far as this cluster keeps copies: the
    /// provider may keep more of them.
    fn to_handle(&self, namespace: &str, at_provider: &ProviderReceipts) -> Vec<ReceiptAtProvider> {
        let copies = self.caches.receipts(namespace);
        let copies: BTreeMap<&ContractPeriod, &Arc<ReceiptHead>> =
            copies.iter().map(|copy| (&copy.of, copy)).collect();
        let all = at_provider.receipt_cache(&self.queues).all();
        let receipts: Vec<&ReceiptHead> = all
            .iter()
            .map(|(_, receipt)| receipt.unverified())
            .collect();
        let all: BTreeSet<&ContractPeriod> = copies
            .keys()
            .copied()
            .chain(receipts.iter().map(|receipt| &receipt.of))
            .collect();
        let config = self.context.config();
        let surplus: BTreeSet<&ContractPeriod> =
            surplus_receipts(all.into_iter(), &config.spec.metering, self.context.now())
                .into_iter()
                .collect();
        let kept = receipts
            .iter()
            .filter(|receipt| !surplus.contains(&receipt.of));
        kept.map(|receipt| ReceiptAtProvider {
            of: receipt.of.clone(),
            phase: receipt.phase,
            copy: copies.get(&receipt.of).copied().cloned(),
        })
        .collect()
    }

    /// Adds what complete periods cost to the settled costs of their contracts.
    async fn settle_contracts(
        &self,
        namespace: &str,
        failures: &mut Vec<SharingError>,
    ) -> SettledUntil {
        let records = self.record_heads(namespace);
        let mut all = SettledUntil::new();
        for (key, contract) in self.contracts.in_namespace(namespace) {
            let known = self.lock_settled().get(&key).copied();
            let mut until = known.unwrap_or_default();
            if !periods_to_settle(&contract.id, &records, until).is_empty() {
                match self.settle_contract(&key, &contract, &records).await {
                    Ok(settled) => until = settled,
                    Err(error) => failures.push(error),
                }
                self.lock_settled().insert(key, until);
            }
            all.insert(contract.id.clone(), until);
        }
        all
    }

    /// Settles the complete periods of one contract. Returns until when its costs are settled.
    async fn settle_contract(
        &self,
        key: &Key,
        contract: &ReceiptContract,
        records: &[RecordHead],
    ) -> Result<Seconds, SharingError> {
        let api: Api<liqo_api::Contract> = namespaced_api(&self.context.client, &key.namespace);
        // The cache may not show what this process wrote last, and the records may be gone by now.
        let Some(live) = api.get_opt(&key.name).await.step("read", "Contract", key)? else {
            return Ok(Seconds::MAX);
        };
        let mut settled = SettledCosts::from_annotations(live.metadata.annotations.as_ref());
        let due = periods_to_settle(&contract.id, records, settled.until);
        let own = UsageRecords::in_this_cluster(&self.context.client, &key.namespace);
        for period in &due {
            let usage = own.read_usage(&(contract.id.clone(), *period)).await?.unwrap_or_else(|error| {
                tracing::warn!(contract = %key, error, "own usage records cannot be read, and count for no budget");
                UsageEntries::default()
            });
            settled = settled.with_period(contract, *period, &usage);
        }
        if !due.is_empty() {
            let version = live.metadata.resource_version;
            let patch = json!({ "metadata": { "resourceVersion": version, "annotations": { annotations::SPENT: settled.annotation_text() } } });
            let written = api
                .patch_metadata(&key.name, &PatchParams::default(), &Patch::Merge(&patch))
                .await;
            written.step("write the costs of", "Contract", key)?;
        }
        Ok(settled.until)
    }

    fn record_heads(&self, namespace: &str) -> Vec<RecordHead> {
        self.caches
            .records(namespace)
            .iter()
            .map(|record| RecordHead::clone(record))
            .collect()
    }

    /// Deletes what is signed or too old.
    async fn clean_up(
        &self,
        namespace: &str,
        settled: &SettledUntil,
        failures: &mut Vec<SharingError>,
    ) {
        let (records, receipts) = (
            self.record_heads(namespace),
            self.caches.receipts(namespace),
        );
        let client = &self.context.client;
        let (metering, now) = (&self.context.config().spec.metering, self.context.now());
        let actions = decide_actions(&records, receipts.iter().map(AsRef::as_ref), metering, now);
        let copies: Vec<&ReceiptHead> = receipts.iter().map(AsRef::as_ref).collect();
        let superseded = superseded_periods(&records, &copies)
            .into_iter()
            .map(ReceiptAction::DeleteRecords);
        let actions: BTreeSet<ReceiptAction> = actions.into_iter().chain(superseded).collect();
        for action in actions
            .into_iter()
            .filter(|action| is_action_allowed(action, &records, settled))
        {
            let done = match action {
                // Only the provider writes receipts.
                ReceiptAction::Issue(_) => Ok(()),
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
    }

    /// Deletes the records of periods for which no receipt comes any more.
    async fn let_go(
        &self,
        namespace: &str,
        at_provider: &ProviderReceipts,
        settled: &SettledUntil,
    ) -> Result<(), SharingError> {
        let records = self.record_heads(namespace);
        let (copies, theirs) = (
            self.caches.receipts(namespace),
            at_provider.receipt_cache(&self.queues).all(),
        );
        let copies: Vec<&ReceiptHead> = copies.iter().map(AsRef::as_ref).collect();
        let theirs: Vec<&Claimed<ReceiptHead>> =
            theirs.iter().map(|(_, receipt)| receipt.as_ref()).collect();
        let mut found = unclaimed_periods(
            &records,
            &copies,
            &theirs,
            &self.contract_ends(namespace),
            self.context.now().as_second(),
        );
        found.retain(|of| {
            is_action_allowed(&ReceiptAction::DeleteRecords(of.clone()), &records, settled)
        });
        let theirs = UsageRecordsAtProvider::over_connection(&at_provider.connection);
        for of in found.iter().take(MAX_ASKED) {
            if !theirs.exist(of).await?.unverified() {
                tracing::debug!(
                    namespace,
                    contract = of.0,
                    period = of.1.name(),
                    "no receipt comes for these usage records"
                );
                self.caches
                    .delete_records(&self.context.client, namespace, of)
                    .await?;
            }
        }
        Ok(())
    }

    /// Answers a receipt, and stores a copy. Returns `false` if it cannot be answered yet.
    async fn handle_receipt(
        &self,
        provider: &ClusterId,
        namespace: &str,
        at_provider: &ProviderReceipts,
        receipt: &ReceiptAtProvider,
    ) -> Result<bool, SharingError> {
        let (of, copy) = (&receipt.of, receipt.copy.as_deref());
        let has_signed = copy.is_some_and(|copy| copy.phase == ReceiptPhase::Signed);
        if has_signed && receipt.phase == ReceiptPhase::Signed {
            return Ok(true);
        }
        if !has_signed && !self.is_counted(namespace, of) {
            return Ok(false);
        }
        let connection = &at_provider.connection;
        let theirs: Api<Receipt> = namespaced_api(&connection.client, &connection.tenant_namespace);
        let key = Key::new(&connection.tenant_namespace, receipt_name(&of.0, of.1));
        let Some(found) = of_provider(
            provider,
            call(theirs.get_opt(&key.name))
                .await
                .step("read", "Receipt", &key),
        )?
        else {
            return Ok(true);
        };
        let found = Claimed::new(found);
        if !is_asked_for(found.by_ref(), of) {
            tracing::warn!(%provider, receipt = key.name, "the provider answered with another receipt than the one asked for");
            return Ok(true);
        }
        let own: Api<Receipt> = namespaced_api(&self.context.client, namespace);
        let own =
            own.get_opt(&key.name)
                .await
                .step("read", "Receipt", Key::new(namespace, &key.name))?;
        let evidence = OwnEvidence {
            copy: own.as_ref(),
            has_records: self.has_records(namespace, of),
        };
        let status = match earlier_answer(found.by_ref(), &at_provider.parties, evidence) {
            Some(given) => given,
            None => {
                self.answer_receipt(provider, namespace, connection, of, found.by_ref())
                    .await?
            }
        };
        if status.phase == ReceiptPhase::Disputed {
            let now = self.context.now();
            self.lock_disputed()
                .entry(namespace.to_owned())
                .or_default()
                .insert(of.clone(), now);
        }
        if !found
            .by_ref()
            .map(|found| found.status.as_ref())
            .says(&Some(&status))
        {
            let written = call(replace_status(&theirs, FIELD_MANAGER, &key.name, &status)).await;
            of_provider(
                provider,
                written.step("write the status of", "Receipt", &key),
            )?;
            tracing::info!(%provider, receipt = key.name, answer = ?status.phase, message = status.message, "receipt answered");
        }
        self.store_copy(
            &at_provider.parties,
            &key.name,
            own.as_ref(),
            found.by_ref(),
            &status,
        )
        .await?;
        Ok(true)
    }

    async fn store_copy(
        &self,
        parties: &ReceiptParties,
        name: &str,
        own: Option<&Receipt>,
        found: Claimed<&Receipt>,
        status: &ReceiptStatus,
    ) -> Result<(), SharingError> {
        let key = Key::new(provider_namespace(&parties.provider), name);
        let api: Api<Receipt> = namespaced_api(&self.context.client, &key.namespace);
        match copy_step(own, found, parties) {
            CopyStep::Write => {}
            CopyStep::Replace => {
                delete_if_present(&api, name, &DeleteParams::default())
                    .await
                    .step("delete", "Receipt", &key)?;
            }
            CopyStep::Keep => {
                tracing::warn!(receipt = %key, "the provider shows another receipt than the one that this cluster signed");
                return Ok(());
            }
        }
        let copy = with_peer_labels(
            Receipt::new(name, copy_spec(found, status)),
            labels::PROVIDER_ID,
            &parties.provider,
        );
        create_or_replace(&api, FIELD_MANAGER, &copy, false)
            .await
            .step("write", "Receipt", &key)?;
        replace_status(&api, FIELD_MANAGER, name, status)
            .await
            .step("write the status of", "Receipt", &key)?;
        Ok(())
    }

    /// Whether this cluster's own entries of a period are complete.
    fn is_counted(&self, namespace: &str, of: &ContractPeriod) -> bool {
        let (records, copies) = (
            self.record_heads(namespace),
            self.caches.receipts(namespace),
        );
        let copies: Vec<&ReceiptHead> = copies.iter().map(AsRef::as_ref).collect();
        let is_known = self
            .contracts
            .in_namespace(namespace)
            .iter()
            .any(|(_, contract)| contract.id == of.0);
        is_counted(
            of,
            &records,
            &copies,
            &self.contract_ends(namespace),
            is_known,
            self.context.now().as_second(),
        )
    }

    fn has_records(&self, namespace: &str, of: &ContractPeriod) -> bool {
        self.caches
            .records(namespace)
            .iter()
            .any(|record| record.of == *of && !record.is_empty)
    }

    fn is_compared_again(&self, namespace: &str, of: &ContractPeriod) -> bool {
        let compared = self
            .lock_disputed()
            .get(namespace)
            .and_then(|compared| compared.get(of).copied());
        is_compared_again(compared, self.context.now())
    }

    fn contract_ends(&self, namespace: &str) -> ContractEnds {
        let contracts = self.contracts.in_namespace(namespace).into_iter();
        contracts
            .filter_map(|(_, contract)| Some((contract.id.clone(), contract.end?)))
            .collect()
    }

    async fn answer_receipt(
        &self,
        provider: &ClusterId,
        namespace: &str,
        connection: &PeerConnection,
        of: &ContractPeriod,
        receipt: Claimed<&Receipt>,
    ) -> Result<ReceiptStatus, SharingError> {
        let theirs = UsageRecordsAtProvider::over_connection(connection)
            .read_usage(of)
            .await?;
        let own = UsageRecords::in_this_cluster(&self.context.client, namespace);
        let ours = own.read_usage(of).await?;
        let ours = ours.unwrap_or_else(|error| {
            tracing::warn!(
                namespace,
                error,
                "this cluster's own usage records cannot be read, and count as none"
            );
            UsageEntries::default()
        });
        let contract = self
            .contracts
            .in_namespace(namespace)
            .into_iter()
            .find(|(_, contract)| contract.id == of.0);
        let peer = self.conditions.foreign_cluster(provider);
        let policy =
            policies::effective_policy(&self.policies, &PolicyPeer::new(provider, peer.as_deref()));
        let exact = policy
            .map(|policy| policy.spec.consume.contract.metering_tolerance_seconds)
            .unwrap_or_default();
        let clocks = self
            .context
            .config()
            .spec
            .metering
            .clock_tolerance_seconds
            .into();
        let tolerance = Tolerance {
            exact: exact.into(),
            clocks,
        };
        let contract = contract.as_ref().map(|(_, contract)| contract.as_ref());
        let evidence = ConsumerEvidence {
            provider,
            contract,
            theirs: &theirs,
            ours: &ours,
            tolerance,
        };
        Ok(answer_receipt(receipt, &evidence, &self.identity))
    }

    fn lock_settled(&self) -> MutexGuard<'_, HashMap<Key, Seconds>> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_disputed(
        &self,
    ) -> MutexGuard<'_, HashMap<String, BTreeMap<ContractPeriod, Timestamp>>> {
        self.disputed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_providers(&self) -> MutexGuard<'_, HashMap<ClusterId, Arc<ProviderReceipts>>> {
        self.providers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn retry_within(next: Requeue, delay: Duration) -> Requeue {
    match next {
        Requeue::After(other) => Requeue::After(other.min(delay)),
        Requeue::OnChange => Requeue::After(delay),
    }
}

//! Contracts with providers: reads them, writes answers and copies, and tells breaches.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use jiff::Timestamp;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
    runtime::watcher::Config,
};
use liqo_api::{
    Claimed, ClusterId, Consume, Contract, ContractPhase, ContractStatus, ForeignCluster,
    ResourceOffer, annotations, labels, provider_namespace,
};
use liqo_controller_runtime::{
    Cache, Context, Key, PeerConnection,
    cache::parsed_len,
    conditions::namespaced_api,
    peers,
    put::{create_or_replace, replace_status, with_peer_labels},
    writes::{StepContext as _, delete_if_present, unless_gone},
};
use liqo_metering::spending::SettledCosts;
use liqo_signing::ClusterIdentity;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::at_provider;
use crate::{
    FIELD_MANAGER, SharingError,
    breach_reports::BreachReports,
    decide::reduce::{ContractOfPeering, provider_of},
    queues::SharingQueues,
    triggers,
};
use liqo_market::contract::{
    TOLERANCE,
    breaches::UnconfirmedBreaches,
    consumer::{ContractAction, ContractJudgement, ContractView, judge_contracts},
    record::{ContractAtProvider, ContractCopy, ContractRecord},
};

/// The contracts of one provider, as this cluster sees them there.
pub struct WatchedContracts {
    /// Started with the first offer under a contract: older providers do not know the kind.
    cache: OnceLock<Cache<ContractAtProvider>>,
    stop: CancellationToken,
    /// The provider has answered without a break since then.
    reachable_since: Mutex<Option<Instant>>,
}

impl WatchedContracts {
    pub fn new(stop: CancellationToken) -> Self {
        Self {
            cache: OnceLock::new(),
            stop,
            reachable_since: Mutex::default(),
        }
    }

    /// Notes whether the provider answers.
    pub fn note_health(&self, reachable: bool) {
        let mut since = self
            .reachable_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *since = if reachable {
            since.or_else(|| Some(Instant::now()))
        } else {
            None
        };
    }

    fn is_steady(&self) -> bool {
        let since = *self
            .reachable_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| since.elapsed() >= TOLERANCE.unsigned_abs())
    }

    fn contracts_at_provider(
        &self,
        connection: &PeerConnection,
        queues: &SharingQueues,
    ) -> &Cache<ContractAtProvider> {
        self.cache.get_or_init(|| {
            let (queues, id) = (queues.clone(), connection.cluster_id.clone());
            Cache::watch_provider(
                connection,
                Config::default(),
                self.stop.clone(),
                stored_len,
                |contract| Some(ContractRecord::from_provider(contract)),
                move |_, _, _| queues.add(triggers::object_at_provider_changed(&id)),
            )
        })
    }
}

/// Estimated memory in bytes: a contract is there as it was read, and its documents are there as
/// they were parsed.
fn stored_len(record: &ContractAtProvider) -> usize {
    3 * (parsed_len(record.spec.unverified()) + parsed_len(record.status.unverified()))
}

/// Input for the judgement of one provider's contracts.
pub struct ObservedProvider<'a> {
    pub id: &'a ClusterId,
    pub peer: &'a ForeignCluster,
    pub consume: Option<&'a Consume>,
    /// The present peering, as our request names it.
    pub peering: &'a str,
    pub connection: &'a PeerConnection,
    pub watched: &'a WatchedContracts,
    pub offers: &'a BTreeMap<String, Arc<Claimed<ResourceOffer>>>,
    pub offer_copies: &'a BTreeMap<String, Arc<ResourceOffer>>,
}

/// The contracts that this cluster received.
pub struct ConsumerContracts {
    context: Context,
    identity: Arc<ClusterIdentity>,
    /// All contracts in this cluster: copies, and our own ones.
    contracts: Cache<ContractOfPeering>,
    queues: SharingQueues,
    /// Possible breaches that this process has seen, by provider and contract.
    unconfirmed: Mutex<HashMap<ClusterId, BTreeMap<String, UnconfirmedBreaches>>>,
    reports: BreachReports,
}

impl ConsumerContracts {
    pub fn new(
        context: Context,
        identity: Arc<ClusterIdentity>,
        contracts: Cache<ContractOfPeering>,
        queues: SharingQueues,
    ) -> Self {
        let (unconfirmed, reports) = (Mutex::default(), BreachReports::default());
        Self {
            context,
            identity,
            contracts,
            queues,
            unconfirmed,
            reports,
        }
    }

    pub async fn synced(&self) -> bool {
        self.contracts.wait_until_synced().await
    }

    fn copies_of_provider(&self, id: &ClusterId) -> BTreeMap<String, Arc<ContractCopy>> {
        let all = self.contracts.all().into_iter();
        let of_provider = all.filter(|(key, _)| provider_of(&key.namespace).as_ref() == Some(id));
        of_provider
            .filter_map(|(key, contract)| match contract.as_ref() {
                ContractOfPeering::Copy(copy) => Some((key.name, copy.clone())),
                ContractOfPeering::Issued(_) => None,
            })
            .collect()
    }

    /// Judges the contracts of a provider; nothing while they are not known.
    pub async fn judge_provider(&self, seen: &ObservedProvider<'_>) -> ContractJudgement {
        let copies = self.copies_of_provider(seen.id);
        let concerned = seen
            .offers
            .values()
            .any(|offer| offer.unverified().spec.contract.is_some())
            || copies
                .values()
                .any(|copy| is_open(copy, self.context.now()));
        if !concerned {
            return ContractJudgement::default();
        }
        let cache = seen
            .watched
            .contracts_at_provider(seen.connection, &self.queues);
        if !cache.is_synced() {
            return ContractJudgement::default();
        }
        let contracts: BTreeMap<String, Arc<ContractAtProvider>> = cache
            .all()
            .into_iter()
            .map(|(key, record)| (key.name, record))
            .collect();
        let view = ContractView {
            identity: &self.identity,
            provider: seen.id,
            peer: seen.peer.metadata.name.as_deref().unwrap_or_default(),
            peering: seen.peering,
            consume: seen.consume,
            decisions: &seen.peer.spec.contracts,
            contracts: &contracts,
            copies: &copies,
            offers: seen.offers,
            offer_copies: seen.offer_copies,
            steady: seen.watched.is_steady(),
            now: self.context.now(),
        };
        let judgement = {
            let mut unconfirmed = self
                .unconfirmed
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            judge_contracts(&view, unconfirmed.entry(seen.id.clone()).or_default())
        };
        let namespace = provider_namespace(seen.id);
        for copy in copies.values() {
            self.reports
                .report_breaches(
                    &self.context,
                    seen.id,
                    &namespace,
                    copy,
                    &copy.status.breaches,
                )
                .await;
        }
        judgement
    }

    /// This cluster asks for nothing more, so what it signed is over.
    pub async fn close_contracts(&self, id: &ClusterId) -> Result<(), SharingError> {
        let namespace = provider_namespace(id);
        let copies: Api<Contract> = namespaced_api(&self.context.client, &namespace);
        for (name, copy) in self
            .copies_of_provider(id)
            .into_iter()
            .filter(|(_, copy)| copy.status.phase != ContractPhase::Ended)
        {
            let message = Some("this cluster asks for nothing any more".to_owned());
            let status = ContractStatus {
                phase: ContractPhase::Ended,
                message,
                end_requested: None,
                ..copy.status.clone()
            };
            let written = replace_status(&copies, FIELD_MANAGER, &name, &status).await;
            written.step(
                "write the status of",
                "Contract",
                Key::new(&namespace, name),
            )?;
        }
        Ok(())
    }

    /// Carries out as much as possible; the queue tries failed actions again.
    pub async fn carry_out(
        &self,
        id: &ClusterId,
        actions: Vec<ContractAction>,
        connection: &PeerConnection,
    ) -> Vec<SharingError> {
        let mut failures = Vec::new();
        let mut not_stored = BTreeSet::new();
        for action in actions {
            let copy = action.copy_name().map(str::to_owned);
            // A signature leaves this cluster only after its own copy has it.
            if matches!(&action, ContractAction::Answer(name, _) if not_stored.contains(name)) {
                continue;
            }
            if let Err(error) = self.carry_out_action(id, action, connection).await {
                failures.push(error);
                not_stored.extend(copy);
            }
        }
        failures
    }

    async fn carry_out_action(
        &self,
        id: &ClusterId,
        action: ContractAction,
        connection: &PeerConnection,
    ) -> Result<(), SharingError> {
        let namespace = provider_namespace(id);
        let copies: Api<Contract> = namespaced_api(&self.context.client, &namespace);
        match action {
            ContractAction::ApplyCopy(name, spec) => {
                let key = Key::new(&namespace, &name);
                let exists = self.contracts.get(&key).is_some();
                let copy = with_peer_labels(Contract::new(&name, *spec), labels::PROVIDER_ID, id);
                create_or_replace(&copies, FIELD_MANAGER, &copy, exists)
                    .await
                    .step("write", "Contract", key)?;
            }
            ContractAction::AnswerCopy(name, status) => {
                replace_status(&copies, FIELD_MANAGER, &name, &status)
                    .await
                    .step(
                        "write the status of",
                        "Contract",
                        Key::new(&namespace, &name),
                    )?;
            }
            ContractAction::DeleteCopy { name, successor } => {
                let key = Key::new(&namespace, &name);
                if let Some(successor) = successor {
                    take_over_costs(&copies, &key, &Key::new(&namespace, &successor)).await?;
                }
                delete_if_present(&copies, &name, &DeleteParams::default())
                    .await
                    .step("delete", "Contract", key)?;
            }
            ContractAction::Answer(name, status) => {
                let contracts: Api<Contract> =
                    namespaced_api(&connection.client, &connection.tenant_namespace);
                let (phase, signed) = (
                    status.phase,
                    status.signature.as_ref().map(|signature| signature.version),
                );
                let written = peers::call(write_answer(&contracts, &name, &status)).await;
                let key = Key::new(&connection.tenant_namespace, &name);
                at_provider(id, written.step("write the status of", "Contract", key))?;
                tracing::info!(provider = %id, contract = name, ?phase, signed, "answered a contract");
            }
        }
        Ok(())
    }
}

/// Lets one copy take over what another one cost, unless it has already.
async fn take_over_costs(copies: &Api<Contract>, from: &Key, to: &Key) -> Result<(), SharingError> {
    let Some(old) = copies
        .get_opt(&from.name)
        .await
        .step("read", "Contract", from)?
    else {
        return Ok(());
    };
    let successor = copies
        .get(&to.name)
        .await
        .step("read", "Contract", to)?
        .metadata;
    let (before, costs) = (
        SettledCosts::from_annotations(successor.annotations.as_ref()),
        SettledCosts::from_annotations(old.metadata.annotations.as_ref()),
    );
    let after = before.taking_over(&old.metadata.uid.unwrap_or_default(), &costs);
    if after != before {
        // Metering writes it, too.
        let version = successor.resource_version;
        let patch = json!({ "metadata": { "resourceVersion": version, "annotations": { annotations::SPENT: after.annotation_text() } } });
        let written = copies
            .patch_metadata(&to.name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        written.step("write the costs of", "Contract", to)?;
    }
    Ok(())
}

/// Whether something is still to be said about a contract: one that is in force may be gone at the
/// provider before its end.
fn is_open(copy: &ContractCopy, now: Timestamp) -> bool {
    let is_in_force = copy.spec.in_force_since.is_some() && !copy.is_over(now);
    copy.status.phase != ContractPhase::Ended || is_in_force
}

/// Replaces our answer at the provider.
async fn write_answer(
    contracts: &Api<Contract>,
    name: &str,
    status: &ContractStatus,
) -> kube::Result<()> {
    unless_gone(replace_status(contracts, FIELD_MANAGER, name, status).await).map(drop)
}

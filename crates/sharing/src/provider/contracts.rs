//! Contracts with consumers: reads them, writes what the rules decide, and tells breaches.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::{Api, api::DeleteParams};
use liqo_api::{ClusterId, Contract, ContractDecision, consumer_of_tenant_namespace, labels};
use liqo_controller_runtime::{
    Cache, Context, Key,
    conditions::namespaced_api,
    put::{create_or_replace, with_peer_labels},
    writes::{StepContext as _, delete_if_present},
};
use liqo_signing::ClusterIdentity;
use tokio::time::Instant;

use super::lock;
use crate::{
    FIELD_MANAGER, SharingError,
    breach_reports::BreachReports,
    decide::{
        reduce::ContractOfPeering,
        snapshot::{ContractChange, ContractFacts},
    },
};
use liqo_market::contract::{breaches::UnconfirmedBreaches, record::IssuedContract};
use liqo_market::receipt::{issue::ReceiptHead, unanswered::unanswered_contracts};

/// Maximum delay until the watch shows a new contract.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// The contracts that this cluster made.
pub struct ProviderContracts {
    context: Context,
    identity: Arc<ClusterIdentity>,
    /// All contracts in this cluster, including copies of those that it received.
    contracts: Cache<ContractOfPeering>,
    /// The receipts that this cluster wrote.
    receipts: Cache<ReceiptHead>,
    /// The contract that was created last in each tenant namespace, until the watch shows it.
    created: Mutex<HashMap<String, (String, Instant)>>,
    /// Possible breaches that this process has seen.
    unconfirmed: Mutex<HashMap<ClusterId, UnconfirmedBreaches>>,
    /// Last reported reasons why consumers can get no contract, or no change of it.
    problems: Mutex<BTreeMap<ClusterId, String>>,
    reports: BreachReports,
}

impl ProviderContracts {
    pub fn new(
        context: Context,
        identity: Arc<ClusterIdentity>,
        contracts: Cache<ContractOfPeering>,
        receipts: Cache<ReceiptHead>,
    ) -> Self {
        let (created, unconfirmed, problems) =
            (Mutex::default(), Mutex::default(), Mutex::default());
        Self {
            context,
            identity,
            contracts,
            receipts,
            created,
            unconfirmed,
            problems,
            reports: BreachReports::default(),
        }
    }

    pub async fn synced(&self) -> bool {
        self.contracts.wait_until_synced().await && self.receipts.wait_until_synced().await
    }

    pub fn contract_facts(
        &self,
        decisions: HashMap<ClusterId, BTreeMap<String, ContractDecision>>,
    ) -> ContractFacts {
        let mut records: HashMap<String, Vec<Arc<IssuedContract>>> = HashMap::new();
        for (key, record) in self.of_consumers() {
            records.entry(key.namespace).or_default().push(record);
        }
        let mut created = lock(&self.created);
        created.retain(|namespace, (name, at)| {
            let is_seen = records
                .get(namespace)
                .is_some_and(|records| records.iter().any(|record| record.name == *name));
            !is_seen && at.elapsed() < SEEN_WITHIN
        });
        let unseen = created.keys().cloned().collect();
        drop(created);
        let mut receipts: HashMap<String, Vec<Arc<ReceiptHead>>> = HashMap::new();
        for (key, receipt) in self.receipts.all() {
            receipts.entry(key.namespace).or_default().push(receipt);
        }
        let now = self.context.now();
        let unanswered = receipts
            .into_iter()
            .map(|(namespace, receipts)| (namespace, unanswered_contracts(&receipts, now)));
        ContractFacts {
            identity: Some(self.identity.clone()),
            records,
            unseen,
            decisions,
            unconfirmed: lock(&self.unconfirmed).clone(),
            unanswered: unanswered.collect(),
            nonce: rand::random(),
        }
    }

    fn of_consumers(&self) -> impl Iterator<Item = (Key, Arc<IssuedContract>)> {
        let all = self.contracts.all().into_iter();
        all.filter_map(|(key, contract)| match contract.as_ref() {
            ContractOfPeering::Issued(record) => Some((key, record.clone())),
            ContractOfPeering::Copy(_) => None,
        })
    }

    /// Writes the contracts of a plan.
    pub async fn carry_out(
        &self,
        writes: Vec<ContractChange>,
        deletions: Vec<Key>,
    ) -> Vec<SharingError> {
        let mut failures = Vec::new();
        for change in writes {
            failures.extend(self.write_contract(change).await.err());
        }
        for key in deletions {
            let api: Api<Contract> = namespaced_api(&self.context.client, &key.namespace);
            let deleted = delete_if_present(&api, &key.name, &DeleteParams::default()).await;
            failures.extend(
                deleted
                    .step("delete", "Contract", &key)
                    .err()
                    .map(SharingError::from),
            );
        }
        failures
    }

    /// Keeps what may become a breach, and tells people what is new.
    pub async fn note_findings(
        &self,
        unconfirmed: HashMap<ClusterId, UnconfirmedBreaches>,
        problems: BTreeMap<ClusterId, String>,
    ) {
        *lock(&self.unconfirmed) = unconfirmed;
        let known = std::mem::replace(&mut *lock(&self.problems), problems.clone());
        for (consumer, problem) in problems
            .iter()
            .filter(|(consumer, problem)| known.get(*consumer) != Some(*problem))
        {
            tracing::warn!(%consumer, problem, "no contract, or no change of it, can be proposed");
        }
        let all: Vec<(Key, Arc<IssuedContract>)> = self.of_consumers().collect();
        self.reports
            .retain(|uid| all.iter().any(|(_, record)| record.uid == uid));
        for (key, record) in &all {
            if let Some(consumer) = consumer_of_tenant_namespace(&key.namespace) {
                let of_consumer = &record.status.unverified().breaches;
                self.reports
                    .report_breaches(
                        &self.context,
                        &consumer,
                        &key.namespace,
                        record,
                        of_consumer,
                    )
                    .await;
            }
        }
    }

    async fn write_contract(&self, change: ContractChange) -> Result<(), SharingError> {
        let ContractChange {
            namespace,
            consumer,
            write,
        } = change;
        let api: Api<Contract> = namespaced_api(&self.context.client, &namespace);
        let (version, ended) = (write.spec.terms.version, write.spec.ended.is_some());
        let (in_force, pending) = (
            write.spec.in_force_since.is_some(),
            write.spec.pending.is_some(),
        );
        let contract = with_peer_labels(
            Contract::new(&write.name, write.spec),
            labels::CONSUMER_ID,
            &consumer,
        );
        let key = Key::new(namespace, write.name);
        create_or_replace(&api, FIELD_MANAGER, &contract, write.exists)
            .await
            .step("write", "Contract", &key)?;
        if !write.exists {
            lock(&self.created).insert(key.namespace.clone(), (key.name.clone(), Instant::now()));
        }
        tracing::info!(%consumer, contract = key.name, version, in_force, pending, ended, "contract written");
        Ok(())
    }
}

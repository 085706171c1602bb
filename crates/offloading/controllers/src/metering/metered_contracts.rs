//! The contracts under which pods are charged, by namespace.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt as _;
use liqo_api::{Charge, Contract};
use liqo_controller_runtime::{Cache, Context};
use liqo_metering::receipt::ReceiptContract as Priced;
use liqo_metering::spending::{ContractAccount, SettledCosts};
use liqo_metering::{Period, Seconds, UsageEntry};
use parking_lot::RwLock;

/// Seconds for which a contract is still metered after the end of its last period.
const AFTER_END: Seconds = 24 * 3600;

/// The parts of a contract that metering needs.
#[derive(Clone, Debug, PartialEq)]
pub struct MeteredContract {
    pub id: String,
    /// UID of the object.
    uid: String,
    pub period_seconds: u32,
    pub start: Seconds,
    end: Option<Seconds>,
    pub charge: Charge,
    /// Limits of pods that have none, in percent of their requests, see
    /// [`liqo_api::ContractLimits`].
    pub limit_percentage: u32,
    /// For budgets: its prices, and the costs of its periods so far.
    priced: Priced,
    settled: SettledCosts,
}

impl MeteredContract {
    /// Reduces a contract; `None` if it was never in force.
    fn reduce(contract: Contract) -> Option<Self> {
        let (settled, spec) = (
            SettledCosts::from_annotations(contract.metadata.annotations.as_ref()),
            contract.spec,
        );
        let uid = contract.metadata.uid.unwrap_or_default();
        let priced = Priced::of_spec(&spec)?;
        let start = spec.first_in_force()?.0.as_second();
        let end = spec.ended.as_ref().map(|end| end.at.0.as_second());
        let terms = spec.terms;
        let (charge, limit_percentage) =
            (terms.limits.charge, terms.limits.default_limit_percentage);
        let (id, period_seconds) = (terms.contract, terms.metering_period_seconds);
        Some(Self {
            id,
            uid,
            period_seconds,
            start,
            end,
            charge,
            limit_percentage,
            priced,
            settled,
        })
    }

    fn is_metered(&self, now: Seconds) -> bool {
        self.end.is_none_or(|end| {
            Period::at(end, self.period_seconds)
                .end()
                .saturating_add(AFTER_END)
                > now
        })
    }

    /// Whether the contract is not over before a period begins.
    pub fn reaches_into(&self, period: Period) -> bool {
        self.end.is_none_or(|end| period.start < end)
    }

    /// An account without records.
    pub fn account(&self) -> ContractAccount {
        ContractAccount::new(
            self.priced.clone(),
            self.period_seconds,
            self.settled.clone(),
        )
    }

    /// The part of an entry that the contract is about.
    pub fn part_of(&self, entry: &UsageEntry) -> Option<UsageEntry> {
        let mut part = entry.clone();
        part.from.at = part.from.at.max(self.start);
        part.until.at = part.until.at.min(self.end.unwrap_or(Seconds::MAX));
        part.if_valid()
    }
}

type ContractsByNamespace = BTreeMap<String, BTreeMap<String, Arc<MeteredContract>>>;

/// The contracts of all namespaces.
pub struct MeteredContracts {
    cache: Cache<MeteredContract>,
    by_namespace: Arc<RwLock<ContractsByNamespace>>,
}

impl MeteredContracts {
    /// Watches the contracts that name a peer by this label; `changed` gets the namespace of each that changed.
    pub fn follow(
        context: &Context,
        peer_label: &'static str,
        changed: impl Fn(&str) + Send + 'static,
    ) -> Self {
        let by_namespace: Arc<RwLock<ContractsByNamespace>> = Arc::default();
        let known = by_namespace.clone();
        let cache = context.informers.of_kind::<Contract>().reduced_cache(
            context.stop.clone(),
            move |contract| {
                let is_of_peer = contract.labels().contains_key(peer_label);
                is_of_peer
                    .then(|| MeteredContract::reduce(contract))
                    .flatten()
            },
            move |key, _, new| {
                let mut known = known.write();
                let here = known.entry(key.namespace.clone()).or_default();
                match new {
                    Some(contract) => drop(here.insert(key.name.clone(), contract.clone())),
                    None => drop(here.remove(&key.name)),
                }
                if here.is_empty() {
                    known.remove(&key.namespace);
                }
                drop(known);
                changed(&key.namespace);
            },
        );
        Self {
            cache,
            by_namespace,
        }
    }

    /// Waits for the initial list.
    pub async fn synced(&self) -> bool {
        self.cache.wait_until_synced().await
    }

    /// All contracts of a namespace, also those that ended long ago. One whose costs another one
    /// has taken over is about to go.
    pub fn all_in_namespace(&self, namespace: &str) -> Vec<Arc<MeteredContract>> {
        let known = self.by_namespace.read();
        let Some(contracts) = known.get(namespace) else {
            return Vec::new();
        };
        let mut all: Vec<_> = contracts.values().cloned().collect();
        all.retain(|one| {
            !contracts
                .values()
                .any(|other| other.settled.has_taken_over(&one.uid))
        });
        all
    }

    /// The namespaces with a contract.
    pub fn namespaces(&self) -> Vec<String> {
        self.by_namespace.read().keys().cloned().collect()
    }

    /// The contracts of a namespace under which pods are charged now, or were until lately, in
    /// their order of time.
    pub fn charging_contracts(&self, namespace: &str, now: Timestamp) -> Vec<Arc<MeteredContract>> {
        let known = self.by_namespace.read();
        let all = known.get(namespace).into_iter().flat_map(BTreeMap::values);
        let mut metered: Vec<_> = all
            .filter(|contract| contract.is_metered(now.as_second()))
            .cloned()
            .collect();
        metered.sort_by_key(|contract| contract.start);
        metered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contract_is_about_the_time_in_which_it_is_in_force() {
        let id = |byte: u8| liqo_api::ClusterId::of_public_key(&[byte; 32]);
        let contract = MeteredContract {
            id: "c".into(),
            uid: "u".into(),
            priced: Priced {
                id: "c".into(),
                provider: id(1),
                consumer: id(2),
                versions: Vec::new(),
                end: Some(200),
            },
            settled: SettledCosts::default(),
            period_seconds: 60,
            start: 100,
            end: Some(200),
            charge: Charge::Requests,
            limit_percentage: 800,
        };
        let part = |line: &str| {
            contract
                .part_of(&line.parse().unwrap())
                .map(|part| part.to_string())
        };
        assert_eq!(
            part("u p 50 250 cpu=1").as_deref(),
            Some("u p 100 200 cpu=1")
        );
        assert_eq!(
            (part("u p 50 100 cpu=1"), part("u p 200 ~230 cpu=1")),
            (None, Some("u p 200 ~200 cpu=1".to_owned()))
        );
        assert!(contract.is_metered(240 + AFTER_END - 1) && !contract.is_metered(240 + AFTER_END));
    }
}

//! Contracts for tests, also of other crates. It is no feature of this crate: cargo would compile
//! all that uses it twice, for programs and for tests.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "tests")]

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use liqo_api::{
    Charge, Claimed, Commitment, Contract, ContractClasses, ContractLimits, ContractPool,
    ContractSpec, ContractStatus, ContractTerms, DEFAULT_POOL, PodSecurity, Renewal, Time,
};
use liqo_signing::ClusterIdentity;

use super::{
    document::ContractDocument,
    record::{ContractAtProvider, ContractCopy, ContractRecord, IssuedContract},
};

/// The peering of these contracts.
pub const PEERING: &str = "3f0c2f5e-8a0c-4b51-9a53-0d2f4a6f1c77";

/// A provider and a consumer.
pub struct Parties {
    pub provider: ClusterIdentity,
    pub consumer: ClusterIdentity,
}

impl Parties {
    /// Two new identities.
    #[allow(clippy::new_without_default, reason = "each call makes others")]
    pub fn new() -> Self {
        Self {
            provider: ClusterIdentity::generate().unwrap(),
            consumer: ClusterIdentity::generate().unwrap(),
        }
    }

    /// The same in each call.
    pub fn known() -> Self {
        static KNOWN: std::sync::OnceLock<[Vec<u8>; 2]> = std::sync::OnceLock::new();
        let new = || {
            [
                Self::new().provider.pkcs8().to_vec(),
                Self::new().consumer.pkcs8().to_vec(),
            ]
        };
        let [provider, consumer] = KNOWN
            .get_or_init(new)
            .each_ref()
            .map(|key| ClusterIdentity::from_pkcs8(key).unwrap());
        Self { provider, consumer }
    }

    /// The document of these terms, which the provider signed.
    pub fn document(&self, terms: &ContractTerms) -> ContractDocument {
        ContractDocument::read(&ContractDocument::compose(&self.provider, terms).unwrap()).unwrap()
    }

    /// A contract that nobody but the provider signed.
    pub fn proposal(&self, terms: &ContractTerms) -> Contract {
        let spec = ContractSpec {
            document: ContractDocument::compose(&self.provider, terms).unwrap(),
            terms: terms.clone(),
            countersignature: None,
            in_force_since: None,
            pending: None,
            earlier: Vec::new(),
            breaches: Vec::new(),
            ended: None,
        };
        let mut contract = Contract::new(&Contract::name_of(&terms.contract), spec);
        contract.metadata.uid = Some("uid".to_owned());
        contract.metadata.creation_timestamp = Some(Time(terms.start.0));
        contract.status = Some(ContractStatus::default());
        contract
    }

    /// A contract that both signed.
    pub fn in_force(&self, terms: &ContractTerms) -> Contract {
        let mut contract = self.proposal(terms);
        let signature = self.document(terms).countersign(&self.consumer);
        contract.spec.countersignature = Some(signature.clone());
        contract.spec.in_force_since = Some(terms.start.clone());
        contract.status = Some(ContractStatus {
            signature: Some(signature),
            ..ContractStatus::default()
        });
        contract
    }
}

/// A contract as its provider reads it.
pub fn issued(contract: &Contract) -> Arc<IssuedContract> {
    Arc::new(ContractRecord::from_issued(contract.clone()))
}

/// A contract at the provider, as the consumer reads it.
pub fn at_provider(contract: &Contract) -> Arc<ContractAtProvider> {
    Arc::new(ContractRecord::from_provider(Claimed::new(
        contract.clone(),
    )))
}

/// The consumer's own copy of a contract.
pub fn copy(contract: &Contract) -> Arc<ContractCopy> {
    Arc::new(ContractRecord::from_own_copy(contract.clone()))
}

/// A time in seconds since 1970.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

/// Terms about the default pool, without an end.
pub fn terms(parties: &Parties) -> ContractTerms {
    ContractTerms {
        contract: "0123456789abcdef0123456789abcdef".to_owned(),
        version: 1,
        previous: None,
        provider: parties.provider.id().clone(),
        consumer: parties.consumer.id().clone(),
        commitment: Commitment::BestEffort,
        pools: vec![ContractPool {
            name: DEFAULT_POOL.to_owned(),
            resources: [("cpu", "4"), ("memory", "8Gi"), ("pods", "10")]
                .map(|(name, amount)| (name, amount.parse().unwrap()))
                .into(),
        }],
        classes: ContractClasses::default(),
        prices: BTreeMap::new(),
        notice_seconds: 300,
        limits: ContractLimits {
            pod_security: PodSecurity::Baseline,
            max_namespaces: 50,
            max_services: 1000,
            max_endpoints: 50_000,
            charge: Charge::Requests,
            default_limit_percentage: 800,
        },
        start: Time(at(1000)),
        end: None,
        renewal: Renewal::Automatic,
        metering_period_seconds: 3600,
        peering: Some(PEERING.to_owned()),
        counts_after_seconds: None,
    }
}

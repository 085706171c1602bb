//! Reports breaches of contracts: an event on the contract, and a metric. Each process reports each
//! breach once.

use std::{
    collections::HashSet,
    sync::{Mutex, OnceLock, PoisonError},
};

use k8s_openapi::api::core::v1::ObjectReference;
use liqo_api::{Breach, BreachKind, ClusterId, ContractSpec, Party};
use liqo_controller_runtime::{Context, Key, events::object_ref, metrics::register};
use prometheus_client::metrics::{counter::Counter, family::Family};

use liqo_market::contract::record::ContractRecord;

/// A breach as it is told: the contract's UID, who, which duty, the object, and when.
type ReportedBreach = (String, Party, BreachKind, String, String);

/// Remembers what was told.
#[derive(Default)]
pub struct BreachReports(Mutex<HashSet<ReportedBreach>>);

impl BreachReports {
    /// Tells the breaches that last and are not told yet. `of_consumer`: those that the consumer
    /// found.
    pub async fn report_breaches<Status>(
        &self,
        context: &Context,
        peer: &ClusterId,
        namespace: &str,
        record: &ContractRecord<ContractSpec, Status>,
        of_consumer: &[Breach],
    ) {
        let all = record.spec.breaches.iter().chain(of_consumer);
        for breach in all.filter(|breach| breach.until.is_none()) {
            if self.is_new(&record.uid, breach) {
                count_breach(peer, breach);
                let object = contract_reference(namespace, &record.name, &record.uid);
                let note = format!(
                    "by the {}, {}: {}",
                    breach.by, breach.object, breach.message
                );
                tracing::warn!(%peer, contract = record.name, by = %breach.by, kind = breach.kind.as_str(), breach.message, "a contract is broken");
                context
                    .events
                    .record_warning(&object, breach.kind.as_str(), note)
                    .await;
            }
        }
    }

    /// Forgets contracts that are gone.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|(uid, ..)| exists(uid));
    }

    fn is_new(&self, uid: &str, breach: &Breach) -> bool {
        let told = (
            uid.to_owned(),
            breach.by,
            breach.kind,
            breach.object.clone(),
            breach.time.0.to_string(),
        );
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(told)
    }
}

fn contract_reference(namespace: &str, name: &str, uid: &str) -> ObjectReference {
    object_ref(
        "sharing.liqo.io/v1alpha1",
        "Contract",
        &Key::new(namespace, name),
        Some(uid.to_owned()),
    )
}

fn count_breach(peer: &ClusterId, breach: &Breach) {
    static COUNTS: OnceLock<Family<[(&'static str, String); 2], Counter>> = OnceLock::new();
    let counts = COUNTS.get_or_init(|| {
        register(
            "contract_breaches",
            "Breaches of contracts that were found",
            Family::default(),
        )
    });
    counts
        .get_or_create(&[
            ("peer", peer.to_string()),
            ("kind", breach.kind.as_str().to_owned()),
        ])
        .inc();
}

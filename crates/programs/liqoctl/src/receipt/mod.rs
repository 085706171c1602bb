//! `liqoctl receipt`: what was used in each period of a contract, and what it costs.
//!
//! A provider has its receipts in tenant namespaces, a consumer has copies in its provider namespaces. `verify` needs no cluster.

mod export;
mod text;
mod verify;

use anyhow::bail;
use kube::ResourceExt as _;
use liqo_api::{ForeignCluster, Receipt, ReceiptPhase};
use serde::Serialize;

use crate::cluster::Cluster;
use crate::parties::{self, OfPeer, Role};

pub use export::{csv, lines};
pub use text::{hours, show, table};
pub use verify::{Verdict, verdict_text, verify};

/// One receipt.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    /// Name of the peer's `ForeignCluster`; its ID where there is none.
    pub peer: String,
    pub role: Role,
    pub name: String,
    pub phase: ReceiptPhase,
    pub receipt: Receipt,
}

/// All receipts, or those of one peer, the oldest first.
pub async fn list(cluster: &Cluster, of: Option<&ForeignCluster>) -> anyhow::Result<Vec<Found>> {
    let mut found: Vec<Found> = parties::list(cluster, of, "receipts").await?.into_iter().map(found).collect();
    found.sort_by(|one, other| order(one).cmp(&order(other)));
    Ok(found)
}

fn order(one: &Found) -> (&str, Role, i64, &str) {
    (&one.peer, one.role, one.receipt.spec.statement.period.start.0.as_second(), &one.name)
}

fn found(OfPeer { peer, role, object: receipt }: OfPeer<Receipt>) -> Found {
    let phase = receipt.status.as_ref().map(|status| status.phase).unwrap_or_default();
    Found { peer, role, name: receipt.name_any(), phase, receipt }
}

/// The receipt with this name. If this cluster is both sides of a contract, the provider's.
pub fn choose(found: Vec<Found>, name: &str) -> anyhow::Result<Found> {
    match found.into_iter().find(|one| one.name == name) {
        Some(one) => Ok(one),
        None => bail!("there is no receipt {name}: `liqoctl receipt list` shows all"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use liqo_api::{PriceList, ReceiptSpec, ReceiptStatus};
    use liqo_market::receipt::document::SignedReceipt;
    use liqo_metering::receipt::{Contract, Version};
    use liqo_metering::{Period, Usage};
    use liqo_signing::ClusterIdentity;

    use super::*;

    /// A receipt that both sides signed.
    pub fn signed() -> (ClusterIdentity, ClusterIdentity, Receipt) {
        let (provider, consumer) = (ClusterIdentity::generate().unwrap(), ClusterIdentity::generate().unwrap());
        let prices = PriceList { currency: "EUR".into(), rates: [("cpu", "0.04".parse().unwrap())].into_iter().collect() };
        let version = Version { version: 1, digest: "d".repeat(64), from: 0, prices: [("gold".to_owned(), prices)].into() };
        let id = "0123456789abcdef0123456789abcdef".to_owned();
        let contract =
            Contract { id, provider: provider.id().clone(), consumer: consumer.id().clone(), versions: vec![version], end: None };
        let usage = Usage::read("u gold 1767225600 1767229200 cpu=2,pods=1\n").unwrap();
        let statement = contract.receipt(Period::at(1_767_225_600, 3600), &usage).unwrap();
        let document = SignedReceipt::compose(&provider, &statement).unwrap();
        let signature = SignedReceipt::read(&document).unwrap().countersign(&consumer);
        let mut receipt = Receipt::new("receipt-01234567-202601010000", ReceiptSpec { document, statement });
        receipt.status =
            Some(ReceiptStatus { phase: ReceiptPhase::Signed, signature: Some(signature), ..ReceiptStatus::default() });
        (provider, consumer, receipt)
    }

    #[test]
    fn a_receipt_is_found_by_its_name() {
        let (_, _, receipt) = signed();
        let one = found(OfPeer { peer: "rome".to_owned(), role: Role::Provider, object: receipt });
        assert_eq!((one.peer.as_str(), one.role, one.phase), ("rome", Role::Provider, ReceiptPhase::Signed));
        assert!(choose(vec![one.clone()], "receipt-01234567-202601010000").is_ok());
        assert!(choose(vec![one], "other").unwrap_err().to_string().contains("receipt list"));
    }
}

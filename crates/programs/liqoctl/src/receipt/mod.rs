//! `liqoctl receipt`: what was used in each period of a contract, and what it costs.
//!
//! A provider has its receipts in tenant namespaces, a consumer has copies in its provider
//! namespaces; those of ended peerings are in Liqo's namespace. `verify` needs no cluster.

mod export;
mod text;
mod verify;

use anyhow::bail;
use liqo_api::{Claimed, ClusterConfig, ClusterId, ForeignCluster, Receipt, ReceiptPhase};
use liqo_market::receipt::document::{ReceiptParties, SignedReceipt, answered_phase};
use liqo_metering::{Seconds, period::GRACE};
use serde::Serialize;

use crate::cluster::Cluster;
use crate::parties::{self, ContractRole, PeerObject};

pub use export::{invoice_lines, to_csv};
pub use text::{amount_in_hours, render_receipt, render_receipts};
pub use verify::{ReceiptVerdict, verdict_text, verify_receipt_files};

/// One receipt.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedReceipt {
    /// Name of the peer's `ForeignCluster`; where there is none, the name that it had, or its ID.
    pub peer: String,
    pub role: ContractRole,
    /// Whether the peering has ended.
    pub is_kept: bool,
    /// The name that the receipt had in the peering.
    pub name: String,
    /// Signed only with the valid signatures of this cluster and the peer.
    pub phase: ReceiptPhase,
    /// Reason why the receipt is not one between this cluster and the peer, if it is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    pub receipt: Receipt,
}

/// All receipts of this cluster (its ID), or those with one peer, the oldest first.
pub async fn list_receipts(
    cluster: &Cluster,
    own: &ClusterId,
    of: Option<&ForeignCluster>,
) -> anyhow::Result<Vec<ListedReceipt>> {
    let all = parties::list_objects_of_peers(cluster, of, "receipts").await?;
    let mut found: Vec<ListedReceipt> = all
        .into_iter()
        .map(|receipt| listed_receipt(own, receipt))
        .collect();
    found.sort_by(|one, other| order(one).cmp(&order(other)));
    Ok(found)
}

/// Delay after a period until this cluster answers its providers' receipts, and has copies of them.
pub fn answer_delay(config: &ClusterConfig) -> Seconds {
    GRACE + Seconds::from(config.spec.metering.clock_tolerance_seconds)
}

fn order(one: &ListedReceipt) -> (&str, ContractRole, i64, &str) {
    (
        &one.peer,
        one.role,
        one.receipt.spec.statement.period.start.0.as_second(),
        &one.name,
    )
}

fn listed_receipt(
    own: &ClusterId,
    PeerObject {
        id,
        peer,
        role,
        is_kept,
        name,
        object: receipt,
    }: PeerObject<Receipt>,
) -> ListedReceipt {
    let own = own.clone();
    let parties = match role {
        ContractRole::Provider => ReceiptParties {
            provider: own,
            consumer: id,
        },
        ContractRole::Consumer => ReceiptParties {
            provider: id,
            consumer: own,
        },
    };
    let fault = SignedReceipt::between_parties(&parties, Claimed::new(&receipt))
        .err()
        .map(|error| error.to_string());
    ListedReceipt {
        peer,
        role,
        is_kept,
        name,
        phase: answered_phase(&parties, Claimed::new(&receipt)),
        fault,
        receipt,
    }
}

/// The receipt with this name. If this cluster is both sides of a contract, the provider's.
pub fn choose_receipt(found: Vec<ListedReceipt>, name: &str) -> anyhow::Result<ListedReceipt> {
    match found.into_iter().find(|one| one.name == name) {
        Some(one) => Ok(one),
        None => bail!("there is no receipt {name}: `liqoctl receipt list` shows all"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use liqo_api::{PriceList, ReceiptSpec, ReceiptStatus};
    use liqo_metering::receipt::{ContractVersion, ReceiptContract};
    use liqo_metering::{Period, UsageEntries};
    use liqo_signing::ClusterIdentity;

    use super::*;

    /// A receipt that both sides signed.
    pub fn signed() -> (ClusterIdentity, ClusterIdentity, Receipt) {
        let (provider, consumer) = (
            ClusterIdentity::generate().unwrap(),
            ClusterIdentity::generate().unwrap(),
        );
        let prices = PriceList {
            currency: "EUR".into(),
            rates: [("cpu", "0.04".parse().unwrap())].into_iter().collect(),
        };
        let version = ContractVersion {
            version: 1,
            digest: "d".repeat(64),
            from: 0,
            prices: [("gold".to_owned(), prices)].into(),
        };
        let id = "0123456789abcdef0123456789abcdef".to_owned();
        let contract = ReceiptContract {
            id,
            provider: provider.id().clone(),
            consumer: consumer.id().clone(),
            versions: vec![version],
            end: None,
        };
        let usage = UsageEntries::parse("u gold 1767225600 1767229200 cpu=2,pods=1\n").unwrap();
        let statement = contract
            .receipt(Period::at(1_767_225_600, 3600), &usage)
            .unwrap();
        let document = SignedReceipt::compose(&provider, &statement).unwrap();
        let signature = SignedReceipt::read(&document)
            .unwrap()
            .countersign(&consumer);
        let mut receipt = Receipt::new(
            "receipt-01234567-202601010000",
            ReceiptSpec {
                document,
                statement,
                countersignature: None,
            },
        );
        receipt.status = Some(ReceiptStatus {
            phase: ReceiptPhase::Signed,
            signature: Some(signature),
            ..ReceiptStatus::default()
        });
        (provider, consumer, receipt)
    }

    fn found_at(namespace: &str, own: &ClusterId, receipt: Receipt) -> ListedReceipt {
        let parties::ContractParty { id, role } = parties::peer_and_role(namespace).unwrap();
        let name = receipt.metadata.name.clone().unwrap();
        listed_receipt(
            own,
            PeerObject {
                id,
                peer: "rome".to_owned(),
                role,
                is_kept: false,
                name,
                object: receipt,
            },
        )
    }

    #[test]
    fn a_receipt_between_other_clusters_is_neither_signed_nor_exported() {
        let (provider, consumer, receipt) = signed();
        let real = found_at(
            &liqo_api::tenant_namespace(consumer.id()),
            provider.id(),
            receipt.clone(),
        );
        let copy = found_at(
            &liqo_api::provider_namespace(provider.id()),
            consumer.id(),
            receipt.clone(),
        );
        assert!(
            [&real, &copy]
                .iter()
                .all(|one| one.phase == ReceiptPhase::Signed && one.fault.is_none())
        );

        let other = ClusterIdentity::generate().unwrap();
        let foreign = found_at(
            &liqo_api::provider_namespace(provider.id()),
            other.id(),
            receipt.clone(),
        );
        let mut changed = receipt;
        changed
            .spec
            .statement
            .totals
            .insert("EUR".to_owned(), "1000000".parse().unwrap());
        let changed = found_at(
            &liqo_api::provider_namespace(provider.id()),
            consumer.id(),
            changed,
        );
        for one in [foreign, changed] {
            assert!(
                one.phase == ReceiptPhase::Pending
                    && render_receipts(std::slice::from_ref(&one), GRACE).contains("Invalid"),
                "{one:?}"
            );
            assert!(
                render_receipt(&one).contains("is not valid") && invoice_lines(&[one]).is_empty()
            );
        }
    }

    #[test]
    fn a_receipt_is_found_by_its_name() {
        let (provider, consumer, receipt) = signed();
        let one = found_at(
            &liqo_api::tenant_namespace(consumer.id()),
            provider.id(),
            receipt,
        );
        assert_eq!(
            (one.peer.as_str(), one.role, one.phase),
            ("rome", ContractRole::Provider, ReceiptPhase::Signed)
        );
        assert!(choose_receipt(vec![one.clone()], "receipt-01234567-202601010000").is_ok());
        assert!(
            choose_receipt(vec![one], "other")
                .unwrap_err()
                .to_string()
                .contains("receipt list")
        );
    }
}

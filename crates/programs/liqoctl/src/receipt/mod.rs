//! `liqoctl receipt`: what was used in each period of a contract, and what it costs.
//!
//! A provider has its receipts in tenant namespaces, a consumer has copies in its provider namespaces. `verify` needs no cluster.

mod export;
mod text;
mod verify;

use anyhow::bail;
use kube::{Api, ResourceExt as _, api::ListParams};
use liqo_api::{ClusterId, ForeignCluster, Receipt, ReceiptPhase, provider_namespace, tenant_namespace};
use serde::Serialize;

use crate::cluster::{Cluster, Explained as _, list_or_none};

pub use export::{csv, lines};
pub use text::{hours, show, table};
pub use verify::{Verdict, verdict_text, verify};

/// What this cluster is in a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Role {
    Provider,
    Consumer,
}

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

/// The peer that a namespace is for, and the role of this cluster towards it.
pub fn role_of(namespace: &str) -> Option<(ClusterId, Role)> {
    let id: ClusterId = namespace.rsplit('-').next()?.parse().ok()?;
    let role = if namespace == tenant_namespace(&id) {
        Role::Provider
    } else if namespace == provider_namespace(&id) {
        Role::Consumer
    } else {
        return None;
    };
    Some((id, role))
}

/// The name of a peer's `ForeignCluster`, or its ID.
pub fn name_of(known: &[ForeignCluster], id: &ClusterId) -> String {
    let found = known.iter().find(|foreign| foreign.spec.cluster_id == *id);
    found.map_or_else(|| id.to_string(), kube::ResourceExt::name_any)
}

/// All receipts, or those of one peer, the oldest first.
pub async fn list(cluster: &Cluster, of: Option<&ForeignCluster>) -> anyhow::Result<Vec<Found>> {
    let everything = ListParams::default();
    let clusters: Api<ForeignCluster> = Api::all(cluster.client.clone());
    let known = list_or_none(&clusters, &everything).await.doing("list the peers")?;
    let receipts: Api<Receipt> = Api::all(cluster.client.clone());
    let all = list_or_none(&receipts, &everything).await.doing("list the receipts")?;
    let mut found: Vec<Found> = all.into_iter().filter_map(|receipt| found(&known, receipt)).collect();
    found.retain(|one| of.is_none_or(|of| of.name_any() == one.peer));
    found.sort_by(|one, other| order(one).cmp(&order(other)));
    Ok(found)
}

fn order(one: &Found) -> (&str, Role, i64, &str) {
    (&one.peer, one.role, one.receipt.spec.statement.period.start.0.as_second(), &one.name)
}

fn found(known: &[ForeignCluster], mut receipt: Receipt) -> Option<Found> {
    let (id, role) = role_of(&receipt.namespace()?)?;
    receipt.metadata.managed_fields = None;
    let phase = receipt.status.as_ref().map(|status| status.phase).unwrap_or_default();
    Some(Found { peer: name_of(known, &id), role, name: receipt.name_any(), phase, receipt })
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
    use liqo_metering::receipt::{Contract, Version};
    use liqo_metering::{Period, Usage};
    use liqo_sharing::decide::metering::document::SignedReceipt;
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
    fn the_role_follows_from_the_namespace() {
        let id = ClusterId::of_public_key(&[1; 32]);
        assert_eq!(role_of(&tenant_namespace(&id)), Some((id.clone(), Role::Provider)));
        assert_eq!(role_of(&provider_namespace(&id)), Some((id.clone(), Role::Consumer)));
        assert_eq!(role_of(&format!("liqo-{id}")), None);
    }

    #[test]
    fn a_receipt_is_found_by_its_name() {
        let (_, consumer, mut receipt) = signed();
        receipt.metadata.namespace = Some(tenant_namespace(consumer.id()));
        let one = found(&[], receipt).unwrap();
        assert_eq!((one.peer.as_str(), one.role, one.phase), (consumer.id().as_str(), Role::Provider, ReceiptPhase::Signed));
        assert!(choose(vec![one.clone()], "receipt-01234567-202601010000").is_ok());
        assert!(choose(vec![one], "other").unwrap_err().to_string().contains("receipt list"));
    }
}

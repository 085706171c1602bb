//! What stays of a peering that ended.
//!
//! Receipts and contracts are what both owners settle by, so they must not go with the namespace of the peering, whoever ended it:
//!
//! ```text
//!   liqo-tenant-<id> or liqo-provider-<id>, before it is deleted       namespace liqo, for metering.receiptDays
//!     provider: writes the receipts of unfinished periods
//!     Receipt, UsageRecord                       ──── copy ────▶       <name>-<role>-<id>
//!     Contract, if one of these is under it      ──── copy ────▶         labels: role and ID of the peer
//! ```
//!
//! Copies have other labels than what belongs to a peering, so no controller takes them for that.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams};
use kube::{Api, Resource as _, ResourceExt as _};
use liqo_api::{ClusterId, Receipt, UsageRecord, annotations, labels, provider_namespace, tenant_namespace};
use liqo_controller_runtime::put::{marked, put, put_status};
use liqo_controller_runtime::writes::{ApiError as _, Step as _, delete_if_present};
use liqo_controller_runtime::{Context, Key};
use liqo_market::receipt::contract::metered;
use liqo_metering::Period;
use liqo_metering::receipt::{Contract, period_of};
use liqo_signing::ClusterIdentity;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{PAGE, provider};
use crate::{Error, FIELD_MANAGER};

/// Maximum number of objects that are kept of all ended peerings.
const MAX_OBJECTS: usize = 4000;
/// Maximum number of bytes that they take: 64 MiB.
const MAX_LENGTH: usize = 64 << 20;
/// How often old copies are looked for.
const CLEAN_UP_INTERVAL: Duration = Duration::from_secs(6 * 3600);

/// Keeps what both owners need when a peering has ended.
pub struct Keeper {
    context: Context,
    identity: Arc<ClusterIdentity>,
}

/// A peering that ends.
struct Ending<'a> {
    peer: ClusterId,
    /// Whether this cluster is the provider.
    provides: bool,
    /// What people call the peer.
    name: Option<&'a str>,
}

impl<'a> Ending<'a> {
    fn of(namespace: &'a str, name: Option<&'a str>) -> Option<Self> {
        let peer: ClusterId = namespace.rsplit('-').next()?.parse().ok()?;
        let provides = namespace == tenant_namespace(&peer);
        (provides || namespace == provider_namespace(&peer)).then_some(Self { peer, provides, name })
    }

    /// What is kept of an object. A provider chooses the IDs of contracts, and names have only a part of that: so each peer and role has
    /// names of its own.
    fn copy(&self, object: &DynamicObject, kind: &ApiResource) -> DynamicObject {
        let role = if self.provides { "provider" } else { "consumer" };
        let name = format!("{}-{role}-{}", object.name_any(), self.peer);
        let length = serde_json::to_vec(&object.data).map(|bytes| bytes.len()).unwrap_or_default();
        let mut notes = BTreeMap::from([(annotations::KEPT_LENGTH.to_owned(), length.to_string())]);
        notes.extend(self.name.map(|name| (annotations::CLUSTER_NAME.to_owned(), name.to_owned())));
        let mut copy = DynamicObject { data: object.data.clone(), ..DynamicObject::new(&name, kind) };
        copy.meta_mut().annotations = Some(notes);
        copy.meta_mut().labels = Some(BTreeMap::from([(labels::FORMER_ROLE.to_owned(), role.to_owned())]));
        marked(copy, labels::FORMER_PEER_ID, &self.peer)
    }
}

impl Keeper {
    pub fn new(context: &Context, identity: &Arc<ClusterIdentity>) -> Self {
        Self { context: context.clone(), identity: identity.clone() }
    }

    /// Keeps what is in the namespace of a peering that has ended, and whose pods are gone. `name`: what people call the peer.
    pub async fn keep(&self, namespace: &str, name: Option<&str>) -> Result<(), Error> {
        let Some(ending) = Ending::of(namespace, name) else { return Ok(()) };
        let contracts = self.contracts(namespace).await?;
        if ending.provides && !contracts.is_empty() {
            self.write_last_receipts(namespace, &contracts).await?;
        }
        let mut used = BTreeSet::new();
        for (kind, contract) in [(kind::<Receipt>(), "/spec/statement/contract"), (kind::<UsageRecord>(), "/spec/contract")] {
            let mut objects = self.all(namespace, &kind);
            while let Some(object) = objects.try_next().await? {
                used.extend(object.data.pointer(contract).and_then(Value::as_str).map(str::to_owned));
                self.store(&ending.copy(&object, &kind), &kind).await?;
            }
        }
        let named: BTreeSet<String> =
            contracts.iter().filter(|(_, contract)| used.contains(&contract.id)).map(|(name, _)| name.clone()).collect();
        let kind = kind::<liqo_api::Contract>();
        let mut objects = self.all(namespace, &kind);
        while let Some(object) = objects.try_next().await? {
            if named.contains(&object.name_any()) {
                self.store(&ending.copy(&object, &kind), &kind).await?;
            }
        }
        if used.is_empty() { Ok(()) } else { self.clean_up().await }
    }

    /// The contracts in a namespace that were in force, with their names.
    async fn contracts(&self, namespace: &str) -> Result<Vec<(String, Contract)>, Error> {
        let mut all = Vec::new();
        let mut objects = self.all(namespace, &kind::<liqo_api::Contract>());
        while let Some(object) = objects.try_next().await? {
            let name = object.name_any();
            let contract = object.try_parse::<liqo_api::Contract>().ok();
            all.extend(contract.and_then(|contract| Some((name, metered(&contract).ok()??))));
        }
        Ok(all)
    }

    /// Writes the receipt of each period that has none yet. No pod can use anything any more.
    async fn write_last_receipts(&self, namespace: &str, contracts: &[(String, Contract)]) -> Result<(), Error> {
        let mut periods: BTreeSet<(String, Period)> = BTreeSet::new();
        let mut objects = self.all(namespace, &kind::<UsageRecord>());
        while let Some(object) = objects.try_next().await? {
            let record = object.try_parse::<UsageRecord>().ok();
            periods.extend(record.and_then(|record| Some((record.spec.contract, period_of(&record.spec.period)?))));
        }
        for (_, contract) in contracts {
            for (_, period) in periods.iter().filter(|(id, _)| *id == contract.id) {
                provider::issue(&self.context, &self.identity, namespace, contract, *period).await?;
            }
        }
        Ok(())
    }

    /// Deletes what is too old or too much, at once and again from time to time, until `stop`.
    pub async fn run(&self, stop: CancellationToken) {
        let mut rounds = tokio::time::interval(CLEAN_UP_INTERVAL);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = rounds.tick() => {}
            }
            if let Err(error) = self.clean_up().await {
                tracing::warn!(%error, "cannot clean up what is kept of ended peerings");
            }
        }
    }

    async fn clean_up(&self) -> Result<(), Error> {
        let kinds = [kind::<Receipt>(), kind::<UsageRecord>(), kind::<liqo_api::Contract>()];
        let mut all = Vec::new();
        for (number, kind) in kinds.iter().enumerate() {
            let copies = ListParams::default().labels(labels::FORMER_PEER_ID);
            let found = self.api(&self.context.namespace, kind).list_metadata(&copies).await;
            let found = found.step("list what is kept of", kind.kind.clone(), Key::new(&self.context.namespace, ""))?;
            all.extend(found.items.iter().map(|one| Kept {
                since: one.metadata.creation_timestamp.as_ref().map(|time| time.0).unwrap_or_default(),
                kind: number,
                name: one.name_any(),
                length: one.annotations().get(annotations::KEPT_LENGTH).and_then(|text| text.parse().ok()).unwrap_or_default(),
            }));
        }
        for one in surplus(all, self.context.config().spec.metering.receipt_days, self.context.now()) {
            let kind = &kinds[one.kind];
            let deleted = delete_if_present(&self.api(&self.context.namespace, kind), &one.name, &DeleteParams::default()).await;
            deleted.step("delete", kind.kind.clone(), Key::new(&self.context.namespace, one.name))?;
        }
        Ok(())
    }

    /// Reads the objects of a kind one page after the other: a peer may have written a part of each.
    fn all(&self, namespace: &str, kind: &ApiResource) -> Pin<Box<dyn Stream<Item = Result<DynamicObject, Error>> + Send>> {
        let (api, key) = (self.api(namespace, kind), Key::new(namespace, ""));
        let (kind, first) = (kind.kind.clone(), Some(ListParams::default().limit(PAGE)));
        let pages = stream::try_unfold(first, move |page| {
            let (api, key, kind) = (api.clone(), key.clone(), kind.clone());
            async move {
                let Some(page) = page else { return Ok(None) };
                let found = api.list(&page).await.step("list every", kind, key)?;
                let next = found.metadata.continue_.filter(|token| !token.is_empty()).map(|token| page.continue_token(&token));
                Ok::<_, Error>(Some((stream::iter(found.items.into_iter().map(Ok)), next)))
            }
        });
        pages.try_flatten().boxed()
    }

    /// Writes a copy. One that the API server refuses for ever must not keep the peering from ending.
    async fn store(&self, copy: &DynamicObject, kind: &ApiResource) -> Result<(), Error> {
        let (api, name) = (self.api(&self.context.namespace, kind), copy.name_any());
        let stored = async {
            put(&api, FIELD_MANAGER, copy, false).await?;
            match copy.data.get("status") {
                Some(status) => put_status(&api, FIELD_MANAGER, &name, status).await,
                None => Ok(()),
            }
        };
        match stored.await {
            Err(error) if error.status().is_some_and(|status| status.is_forbidden() || status.is_invalid()) => {
                tracing::warn!(kind = kind.kind, name, %error, "this goes with its peering: it cannot be kept");
                Ok(())
            }
            stored => Ok(stored.step("keep", kind.kind.clone(), Key::new(&self.context.namespace, name))?),
        }
    }

    fn api(&self, namespace: &str, kind: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.context.client.clone(), namespace, kind)
    }
}

fn kind<K: kube::Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}

/// A copy, in the order in which copies go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kept {
    since: Timestamp,
    kind: usize,
    name: String,
    length: usize,
}

/// The copies that go: those that are older than so many days, and the oldest ones where all are too many.
fn surplus(mut all: Vec<Kept>, days: u32, now: Timestamp) -> Vec<Kept> {
    let age = SignedDuration::from_hours(i64::from(days) * 24);
    all.sort();
    let (mut count, mut length) = (0_usize, 0_usize);
    all.into_iter()
        .rev()
        .filter(|one| {
            count += 1;
            length = length.saturating_add(one.length);
            count > MAX_OBJECTS || length > MAX_LENGTH || now.duration_since(one.since) > age
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_copies_go_first() {
        let at = |hour: i64| Timestamp::from_second(hour * 3600).unwrap();
        let kept = |hour: i64, length: usize| Kept { since: at(hour), kind: 0, name: hour.to_string(), length };
        let gone = |all: Vec<Kept>, days| {
            let mut hours: Vec<i64> = surplus(all, days, at(5000)).iter().map(|one| one.name.parse().unwrap()).collect();
            hours.sort_unstable();
            hours
        };
        let many: Vec<Kept> = (0..4003).map(|hour| kept(hour, 10)).collect();
        assert_eq!(gone(many.clone(), 400), [0, 1, 2], "too many");
        assert_eq!(gone(many[..50].to_vec(), 207), (0..32).collect::<Vec<_>>(), "too old");
        assert_eq!(gone(vec![kept(1, 1), kept(2, MAX_LENGTH - 1), kept(3, 1)], 400), [1], "too large");
    }

    #[test]
    fn a_copy_belongs_to_no_peering_and_has_a_name_of_its_own_for_each_peer_and_role() {
        let (peer, receipts) = (ClusterId::of_public_key(&[1; 32]), kind::<Receipt>());
        let mut receipt = DynamicObject::new("receipt-01234567-202601010000", &receipts).data(serde_json::json!({ "spec": {} }));
        receipt.meta_mut().labels = Some(BTreeMap::from([(labels::CONSUMER_ID.to_owned(), peer.to_string())]));
        receipt.meta_mut().finalizers = Some(vec!["a/b".to_owned()]);
        let copy = |namespace: &str| Ending::of(namespace, Some("rome")).unwrap().copy(&receipt, &receipts);
        let (lent, borrowed) = (copy(&tenant_namespace(&peer)), copy(&provider_namespace(&peer)));
        assert_eq!(lent.name_any(), format!("receipt-01234567-202601010000-provider-{peer}"));
        assert_eq!(borrowed.name_any(), format!("receipt-01234567-202601010000-consumer-{peer}"));
        assert!(!lent.labels().contains_key(labels::CONSUMER_ID) && lent.finalizers().is_empty());
        assert_eq!(lent.labels()[labels::FORMER_PEER_ID], peer.to_string());
        assert_eq!(lent.types.as_ref().unwrap().kind, "Receipt");
        assert!(Ending::of("liqo", None).is_none());
    }
}

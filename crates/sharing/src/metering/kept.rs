//! Objects that stay after a peering ended.
//!
//! Receipts and contracts are what both owners settle by, so they must not go with the namespace of
//! the peering, whoever ended it:
//!
//! ```text
//!   liqo-tenant-<id> or liqo-provider-<id>, before it is deleted       namespace liqo, for metering.receiptDays
//!     provider: writes the receipts of unfinished periods
//!     Receipt, UsageRecord                       ──── copy ────▶       <name>-<role>-<id>-<uid>
//!     Contract, if one of these is under it      ──── copy ────▶         labels: role and ID of the peer
//! ```
//!
//! Copies have other labels than what belongs to a peering, so no controller takes them for that.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams};
use kube::{Api, Resource as _, ResourceExt as _, core::Status};
use liqo_api::{
    ClusterId, Receipt, UsageRecord, annotations, labels, provider_namespace, tenant_namespace,
};
use liqo_controller_runtime::put::{create_or_replace, replace_status, with_peer_labels};
use liqo_controller_runtime::writes::{
    ApiError as _, StepContext as _, StepError, delete_if_present,
};
use liqo_controller_runtime::{Context, Key};
use liqo_market::receipt::contract::metered_contract;
use liqo_metering::Period;
use liqo_metering::receipt::{ReceiptContract, period_of};
use liqo_signing::ClusterIdentity;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{PAGE, provider};
use crate::{FIELD_MANAGER, SharingError};

/// The place of usage records among the kinds.
const RECORDS: usize = 1;
/// Limits of what is kept of a peer: for receipts and contracts, and for usage records. Nobody
/// signs usage records, and a peer can cause as many as it likes, so they count for themselves.
const OF_PEER: [ArchiveLimit; 2] = [
    ArchiveLimit {
        objects: 1000,
        bytes: 16 << 20,
    },
    ArchiveLimit {
        objects: 250,
        bytes: 8 << 20,
    },
];
/// The same for all peers together.
const OF_ALL: [ArchiveLimit; 2] = [
    ArchiveLimit {
        objects: 4000,
        bytes: 64 << 20,
    },
    ArchiveLimit {
        objects: 1000,
        bytes: 32 << 20,
    },
];
/// Maximum time for which the API server may refuse copies. After that, the peering ends without
/// them.
const MAX_REFUSED: Duration = Duration::from_mins(10);
/// Number of objects that are copied at the same time.
const CONCURRENCY: usize = 8;
/// Interval between two searches for old copies.
const CLEAN_UP_INTERVAL: Duration = Duration::from_hours(6);

/// Keeps what both owners need when a peering has ended.
pub struct PeeringArchiver {
    context: Context,
    identity: Arc<ClusterIdentity>,
    /// Time since which the API server refuses something of a namespace.
    refused: Mutex<HashMap<String, Instant>>,
}

/// Maximum number of objects that are kept, and of their bytes.
#[derive(Clone, Copy)]
struct ArchiveLimit {
    objects: usize,
    bytes: usize,
}

/// A peering that ends.
struct EndingPeering<'a> {
    namespace: &'a str,
    peer: ClusterId,
    /// Whether this cluster is the provider.
    provides: bool,
    /// Name of the peer that people use.
    name: Option<&'a str>,
}

impl<'a> EndingPeering<'a> {
    fn of_namespace(namespace: &'a str, name: Option<&'a str>) -> Option<Self> {
        let peer: ClusterId = namespace.rsplit('-').next()?.parse().ok()?;
        let provides = namespace == tenant_namespace(&peer);
        (provides || namespace == provider_namespace(&peer)).then_some(Self {
            namespace,
            peer,
            provides,
            name,
        })
    }

    /// Returns the kept copy of an object. A provider chooses the IDs of contracts, and names have
    /// only a part of that. So the name of a copy has the peer, the role, and a part of the UID,
    /// which this cluster's API server chose.
    fn archived_copy(&self, object: &DynamicObject, kind: &ApiResource) -> DynamicObject {
        let role = if self.provides {
            "provider"
        } else {
            "consumer"
        };
        let uid = object.uid().unwrap_or_default();
        let name = format!(
            "{}-{role}-{}-{}",
            object.name_any(),
            self.peer,
            uid.get(..8).unwrap_or(&uid)
        );
        let length = serde_json::to_vec(&object.data)
            .map(|bytes| bytes.len())
            .unwrap_or_default();
        let mut notes = BTreeMap::from([(annotations::KEPT_LENGTH.to_owned(), length.to_string())]);
        notes.extend(
            self.name
                .map(|name| (annotations::CLUSTER_NAME.to_owned(), name.to_owned())),
        );
        let mut copy = DynamicObject {
            data: object.data.clone(),
            ..DynamicObject::new(&name, kind)
        };
        copy.meta_mut().annotations = Some(notes);
        copy.meta_mut().labels = Some(BTreeMap::from([(
            labels::FORMER_ROLE.to_owned(),
            role.to_owned(),
        )]));
        with_peer_labels(copy, labels::FORMER_PEER_ID, &self.peer)
    }
}

impl PeeringArchiver {
    pub fn new(context: &Context, identity: &Arc<ClusterIdentity>) -> Self {
        Self {
            context: context.clone(),
            identity: identity.clone(),
            refused: Mutex::default(),
        }
    }

    /// Keeps what is in the namespace of a peering that has ended, and whose pods are gone. `name`:
    /// what people call the peer.
    pub async fn archive_namespace(
        &self,
        namespace: &str,
        name: Option<&str>,
    ) -> Result<(), SharingError> {
        let Some(ending) = EndingPeering::of_namespace(namespace, name) else {
            return Ok(());
        };
        if ending.provides {
            self.write_last_receipts(&ending).await?;
        }
        let mut used = BTreeSet::new();
        for (kind, part) in [
            (api_resource::<Receipt>(), ContractPart::Statement),
            (api_resource::<UsageRecord>(), ContractPart::Spec),
        ] {
            let objects = self
                .stream_objects(namespace, &kind)
                .inspect_ok(|object| used.extend(named_contract(object, part)));
            self.copy_all(&ending, &kind, objects).await?;
        }
        let kind = api_resource::<liqo_api::Contract>();
        let contracts = self.stream_objects(namespace, &kind).try_filter(|object| {
            let id = named_contract(object, ContractPart::Terms);
            std::future::ready(id.is_some_and(|id| used.contains(&id)))
        });
        self.copy_all(&ending, &kind, contracts).await?;
        self.lock_refused().remove(namespace);
        if !used.is_empty()
            && let Err(error) = self.clean_up().await
        {
            tracing::warn!(%error, "cannot clean up what is kept of ended peerings");
        }
        Ok(())
    }

    async fn copy_all(
        &self,
        ending: &EndingPeering<'_>,
        kind: &ApiResource,
        objects: impl Stream<Item = Result<DynamicObject, SharingError>> + Send,
    ) -> Result<(), SharingError> {
        objects
            .try_for_each_concurrent(CONCURRENCY, |object| async move {
                self.store_copy(ending, &ending.archived_copy(&object, kind), kind)
                    .await
            })
            .await
    }

    /// The contracts in a namespace that were in force.
    async fn read_contracts(&self, namespace: &str) -> Result<Vec<ReceiptContract>, SharingError> {
        let mut all = Vec::new();
        let mut objects = self.stream_objects(namespace, &api_resource::<liqo_api::Contract>());
        while let Some(mut object) = objects.try_next().await? {
            // The peer wrote the status. Its signature is in the spec, too.
            let read = object
                .clone()
                .try_parse::<liqo_api::Contract>()
                .or_else(|_| {
                    object
                        .data
                        .as_object_mut()
                        .map(|data| data.remove("status"));
                    object.try_parse()
                });
            all.extend(
                read.ok()
                    .and_then(|contract| metered_contract(&contract).ok()?),
            );
        }
        Ok(all)
    }

    /// Writes the receipt of each period that has none yet. No pod can use anything any more.
    async fn write_last_receipts(&self, ending: &EndingPeering<'_>) -> Result<(), SharingError> {
        let namespace = ending.namespace;
        let mut periods: BTreeSet<(String, Period)> = BTreeSet::new();
        let mut objects = self.stream_objects(namespace, &api_resource::<UsageRecord>());
        while let Some(object) = objects.try_next().await? {
            let record = object.try_parse::<UsageRecord>().ok();
            periods.extend(
                record.and_then(|record| {
                    Some((record.spec.contract, period_of(&record.spec.period)?))
                }),
            );
        }
        if periods.is_empty() {
            return Ok(());
        }
        for contract in self.read_contracts(namespace).await? {
            for (_, period) in periods.iter().filter(|(id, _)| *id == contract.id) {
                match provider::write_receipt(
                    &self.context,
                    &self.identity,
                    namespace,
                    &contract,
                    *period,
                )
                .await
                {
                    Err(SharingError::Local(error)) => {
                        self.unless_refused_for_long(ending, Err(error))?;
                    }
                    issued => issued?,
                }
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

    async fn clean_up(&self) -> Result<(), SharingError> {
        let kinds = [
            api_resource::<Receipt>(),
            api_resource::<UsageRecord>(),
            api_resource::<liqo_api::Contract>(),
        ];
        let mut all = Vec::new();
        for (number, kind) in kinds.iter().enumerate() {
            let copies = ListParams::default().labels(labels::FORMER_PEER_ID);
            let found = self
                .kind_api(&self.context.namespace, kind)
                .list_metadata(&copies)
                .await;
            let found = found.step(
                "list what is kept of",
                kind.kind.clone(),
                Key::new(&self.context.namespace, ""),
            )?;
            all.extend(found.items.iter().map(|one| {
                ArchivedCopy {
                    since: one
                        .metadata
                        .creation_timestamp
                        .as_ref()
                        .map(|time| time.0)
                        .unwrap_or_default(),
                    kind: number,
                    peer: one
                        .labels()
                        .get(labels::FORMER_PEER_ID)
                        .cloned()
                        .unwrap_or_default(),
                    name: one.name_any(),
                    length: one
                        .annotations()
                        .get(annotations::KEPT_LENGTH)
                        .and_then(|text| text.parse().ok())
                        .unwrap_or_default(),
                }
            }));
        }
        for one in surplus_copies(
            all,
            self.context.config().spec.metering.receipt_days,
            self.context.now(),
        ) {
            let kind = &kinds[one.kind];
            let deleted = delete_if_present(
                &self.kind_api(&self.context.namespace, kind),
                &one.name,
                &DeleteParams::default(),
            )
            .await;
            deleted.step(
                "delete",
                kind.kind.clone(),
                Key::new(&self.context.namespace, one.name),
            )?;
        }
        Ok(())
    }

    /// Reads the objects of a kind one page after the other: a peer may have written a part of
    /// each.
    fn stream_objects(
        &self,
        namespace: &str,
        kind: &ApiResource,
    ) -> Pin<Box<dyn Stream<Item = Result<DynamicObject, SharingError>> + Send>> {
        let (api, key) = (self.kind_api(namespace, kind), Key::new(namespace, ""));
        let (kind, first) = (kind.kind.clone(), Some(ListParams::default().limit(PAGE)));
        let pages = stream::try_unfold(first, move |page| {
            let (api, key, kind) = (api.clone(), key.clone(), kind.clone());
            async move {
                let Some(page) = page else { return Ok(None) };
                let found = api.list(&page).await.step("list every", kind, key)?;
                let next = found
                    .metadata
                    .continue_
                    .filter(|token| !token.is_empty())
                    .map(|token| page.continue_token(&token));
                Ok::<_, SharingError>(Some((stream::iter(found.items.into_iter().map(Ok)), next)))
            }
        });
        pages.try_flatten().boxed()
    }

    /// Writes a copy.
    async fn store_copy(
        &self,
        ending: &EndingPeering<'_>,
        copy: &DynamicObject,
        kind: &ApiResource,
    ) -> Result<(), SharingError> {
        let (api, name) = (
            self.kind_api(&self.context.namespace, kind),
            copy.name_any(),
        );
        let stored = async {
            create_or_replace(&api, FIELD_MANAGER, copy, false).await?;
            match copy.data.get("status") {
                Some(status) => replace_status(&api, FIELD_MANAGER, &name, status).await,
                None => Ok(()),
            }
        };
        let stored = stored.await.step(
            "keep",
            kind.kind.clone(),
            Key::new(&self.context.namespace, &name),
        );
        Ok(self.unless_refused_for_long(ending, stored)?)
    }

    /// Gives up a copy that the API server refuses for long, so that the peering can end. A quota
    /// that is full, for example, may get room.
    fn unless_refused_for_long(
        &self,
        ending: &EndingPeering,
        written: Result<(), StepError>,
    ) -> Result<(), StepError> {
        let Err(error) = written else { return Ok(()) };
        let status = error.source.status();
        let for_ever = status.is_some_and(Status::is_invalid);
        if !for_ever && !status.is_some_and(Status::is_forbidden) {
            return Err(error);
        }
        let since = *self
            .lock_refused()
            .entry(ending.namespace.to_owned())
            .or_insert_with(Instant::now);
        if !for_ever && since.elapsed() < MAX_REFUSED {
            return Err(error);
        }
        tracing::warn!(%error, "this goes with its peering: it cannot be kept");
        Ok(())
    }

    fn lock_refused(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kind_api(&self, namespace: &str, kind: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.context.client.clone(), namespace, kind)
    }
}

fn api_resource<K: kube::Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}

/// The part of an object that names its contract.
#[derive(Debug, Clone, Copy)]
enum ContractPart {
    Spec,
    /// What a receipt states.
    Statement,
    /// The terms of a contract.
    Terms,
}

/// The ID of the contract that an object belongs to. The object is kept as JSON, because copies of
/// it have all its fields.
fn named_contract(object: &DynamicObject, part: ContractPart) -> Option<String> {
    let spec = object.data.get("spec")?;
    let part = match part {
        ContractPart::Spec => spec,
        ContractPart::Statement => spec.get("statement")?,
        ContractPart::Terms => spec.get("terms")?,
    };
    part.get("contract")?.as_str().map(str::to_owned)
}

/// A copy. The oldest ones go first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ArchivedCopy {
    since: Timestamp,
    kind: usize,
    /// ID of the peer.
    peer: String,
    name: String,
    length: usize,
}

/// The copies that go: those that are older than so many days, and the oldest ones where there are
/// too many of a peer, or of all.
fn surplus_copies(mut all: Vec<ArchivedCopy>, days: u32, now: Timestamp) -> Vec<ArchivedCopy> {
    let age = SignedDuration::from_hours(i64::from(days) * 24);
    all.sort_by(|one, other| other.cmp(one));
    let mut of_all = ArchiveSums::default();
    let mut of_peers: BTreeMap<String, ArchiveSums> = BTreeMap::new();
    all.retain(|one| {
        let of_peer = of_peers.entry(one.peer.clone()).or_default();
        // What goes because of its own peer takes no room from others.
        of_peer.exceed_with(one, OF_PEER)
            || of_all.exceed_with(one, OF_ALL)
            || now.duration_since(one.since) > age
    });
    all
}

/// Number and bytes of copies: first of everything but records, then of records.
#[derive(Default)]
struct ArchiveSums {
    objects: [usize; 2],
    bytes: [usize; 2],
}

impl ArchiveSums {
    /// Adds a copy. Returns whether there is more than the limits allow.
    fn exceed_with(&mut self, copy: &ArchivedCopy, limits: [ArchiveLimit; 2]) -> bool {
        let class = usize::from(copy.kind == RECORDS);
        let (objects, bytes) = (&mut self.objects[class], &mut self.bytes[class]);
        *objects += 1;
        *bytes = bytes.saturating_add(copy.length);
        *objects > limits[class].objects || *bytes > limits[class].bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_copies_go_first() {
        let at = |hour: i64| Timestamp::from_second(hour * 3600).unwrap();
        let of = |peer: usize, hour: i64, length: usize| {
            let (peer, name) = (peer.to_string(), hour.to_string());
            ArchivedCopy {
                since: at(hour),
                kind: 0,
                peer,
                name,
                length,
            }
        };
        let kept = |hour: i64, length: usize| of(usize::try_from(hour).unwrap() % 5, hour, length);
        let gone = |all: Vec<ArchivedCopy>, days| {
            let mut hours: Vec<i64> = surplus_copies(all, days, at(5000))
                .iter()
                .map(|one| one.name.parse().unwrap())
                .collect();
            hours.sort_unstable();
            hours
        };
        let many: Vec<ArchivedCopy> = (0..4003).map(|hour| kept(hour, 10)).collect();
        assert_eq!(gone(many.clone(), 400), [0, 1, 2], "too many");
        assert_eq!(
            gone(many[..50].to_vec(), 207),
            (0..32).collect::<Vec<_>>(),
            "too old"
        );
        let large = |hour: i64| of(usize::try_from(hour).unwrap(), hour, 16 << 20);
        assert_eq!(gone((1..=5).map(large).collect(), 400), [1], "too large");
    }

    #[test]
    fn a_peer_pushes_out_neither_receipts_of_others_nor_its_own_by_usage_records() {
        let kept = |peer: &str, is_record: bool, hour: i64, length: usize| ArchivedCopy {
            since: Timestamp::from_second(hour * 3600).unwrap(),
            kind: if is_record { RECORDS } else { 0 },
            peer: peer.to_owned(),
            name: format!("{peer}-{is_record}-{hour}"),
            length,
        };
        let mut all: Vec<ArchivedCopy> = (0..300)
            .map(|hour| kept("honest", false, hour, 9000))
            .collect();
        all.extend((300..400).map(|hour| kept("hostile", false, hour, 9000)));
        all.extend((400..4000).map(|hour| kept("hostile", true, hour, 256 << 10)));
        let gone = surplus_copies(all, 400, Timestamp::from_second(4000 * 3600).unwrap());
        assert!(
            gone.iter()
                .all(|one| one.kind == RECORDS && one.peer == "hostile"),
            "{:?}",
            gone.last()
        );
        assert_eq!(gone.len(), 3600 - 32, "it keeps 8 MiB of them");
        let many: Vec<ArchivedCopy> = (0..3000)
            .map(|hour| kept("hostile", false, 1000 + hour, 100))
            .collect();
        let others: Vec<ArchivedCopy> = (0..900)
            .map(|hour| kept("honest", false, hour, 100))
            .collect();
        let gone = surplus_copies(
            [many, others].concat(),
            400,
            Timestamp::from_second(4000 * 3600).unwrap(),
        );
        assert!(gone.len() == 2000 && gone.iter().all(|one| one.peer == "hostile"));
    }

    #[test]
    fn a_copy_belongs_to_no_peering_and_has_a_name_of_its_own_for_each_peer_and_role() {
        let (peer, receipts) = (
            ClusterId::of_public_key(&[1; 32]),
            api_resource::<Receipt>(),
        );
        let mut receipt = DynamicObject::new("receipt-01234567-202601010000", &receipts)
            .data(serde_json::json!({ "spec": {} }));
        receipt.meta_mut().labels = Some(BTreeMap::from([(
            labels::CONSUMER_ID.to_owned(),
            peer.to_string(),
        )]));
        receipt.meta_mut().finalizers = Some(vec!["a/b".to_owned()]);
        receipt.meta_mut().uid = Some("01234567-89ab".to_owned());
        let copy = |namespace: &str| {
            EndingPeering::of_namespace(namespace, Some("rome"))
                .unwrap()
                .archived_copy(&receipt, &receipts)
        };
        let (lent, borrowed) = (
            copy(&tenant_namespace(&peer)),
            copy(&provider_namespace(&peer)),
        );
        assert_eq!(
            lent.name_any(),
            format!("receipt-01234567-202601010000-provider-{peer}-01234567")
        );
        assert_eq!(
            borrowed.name_any(),
            format!("receipt-01234567-202601010000-consumer-{peer}-01234567")
        );
        assert!(!lent.labels().contains_key(labels::CONSUMER_ID) && lent.finalizers().is_empty());
        assert_eq!(lent.labels()[labels::FORMER_PEER_ID], peer.to_string());
        assert_eq!(lent.types.as_ref().unwrap().kind, "Receipt");
        assert!(EndingPeering::of_namespace("liqo", None).is_none());
    }
}

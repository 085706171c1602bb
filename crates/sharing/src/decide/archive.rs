//! What stays of contracts, receipts and usage records when a peering ends, and for how long.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use kube::api::{ApiResource, DynamicObject};
use kube::{Resource as _, ResourceExt as _};
use liqo_api::{ClusterId, annotations, labels, provider_namespace, tenant_namespace};
use liqo_controller_runtime::put::with_peer_labels;

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

/// Maximum number of objects that are kept, and of their bytes.
#[derive(Clone, Copy)]
struct ArchiveLimit {
    objects: usize,
    bytes: usize,
}

/// A peering that ends.
pub struct EndingPeering<'a> {
    pub namespace: &'a str,
    pub peer: ClusterId,
    /// Whether this cluster is the provider.
    pub provides: bool,
    /// Name of the peer that people use.
    pub name: Option<&'a str>,
}

impl<'a> EndingPeering<'a> {
    /// Returns none for a namespace of no peering. `name`: what people call the peer.
    pub fn of_namespace(namespace: &'a str, name: Option<&'a str>) -> Option<Self> {
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
    pub fn archived_copy(&self, object: &DynamicObject, kind: &ApiResource) -> DynamicObject {
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

/// The part of an object that names its contract.
#[derive(Debug, Clone, Copy)]
pub enum ContractPart {
    Spec,
    /// What a receipt states.
    Statement,
    /// The terms of a contract.
    Terms,
}

/// The ID of the contract that an object belongs to. The object is kept as JSON, because copies of
/// it have all its fields.
pub fn named_contract(object: &DynamicObject, part: ContractPart) -> Option<String> {
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
pub struct ArchivedCopy {
    pub since: Timestamp,
    /// Its place among the kinds, of which [`RECORDS`] is that of usage records.
    pub kind: usize,
    /// ID of the peer.
    pub peer: String,
    pub name: String,
    /// In bytes.
    pub length: usize,
}

/// The copies that go: those that are older than so many days, and the oldest ones where there are
/// too many of a peer, or of all.
pub fn surplus_copies(mut all: Vec<ArchivedCopy>, days: u32, now: Timestamp) -> Vec<ArchivedCopy> {
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
    use liqo_api::Receipt;

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
            ApiResource::erase::<Receipt>(&()),
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

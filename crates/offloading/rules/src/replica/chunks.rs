//! A large `ConfigMap` or Secret travels in chunks: several records, from which the provider makes
//! one object again.
//!
//! ```text
//!   home: settings, 900 KiB ──▶ 0/15  1/15  ...  14/15   each a record with some keys, or a part of a value, and the hash of the whole
//!                                  └──────┴─────────┘
//!   provider: all of one hash are there ──▶ read, joined, hashed again ──▶ settings-liqo-<hash>
//! ```
//!
//! So the bounds of records stay what they are: a tenant stores so many of them, each of so many
//! bytes. Chunk 0 uses the record name of an undivided object, and stands for the whole. Until all
//! chunks of its hash are there, the replica stays as it is.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use liqo_api::Key;
use liqo_api::annotations;
use liqo_api::record_text::{
    self, MAX_OBJECT_LEN, MAX_SECRET_LEN, MAX_VALUES, RecordTextError, stored_len,
};
use serde_json::{Map, Value, json};

use crate::json::{entry_at, select_fields};
use crate::replica::chunk::{CHUNK, Chunk, MAX_CHUNKS, chunk_name};
use crate::replica::kind::ReplicaKind;
use crate::replica::record::{Reference, config_map_object, record_of_secret, travelling_type};
use crate::replica::replica_source::{ReplicaProblem, ReplicaSource, travelling_fingerprint};
use crate::views::ObjectView;

/// Bytes of a record of a `ConfigMap` that are not its data: its kind, its name and what it says of
/// the chunk.
const HEAD_LEN: usize = 1024;
/// Length of the quotes, the colon and the comma of an entry in JSON.
const ENTRY_LEN: usize = 6;
/// No chunk gets a smaller part of a value than this, in bytes: then it begins with the next chunk.
const MIN_PART_LEN: usize = 16;
/// A part of a Secret's value has a multiple of this many bytes, unless it is the last: then the
/// parts in base64 make up the whole.
const BASE64_GROUP: usize = 3;
/// Maximum length in bytes of the keys and values of the whole, those of a Secret in base64: what
/// Kubernetes takes, and a little more.
const MAX_WHOLE_LEN: usize = 3 << 19;
/// The fields of a `ConfigMap` with data.
const DATA_FIELDS: [&str; 2] = ["data", "binaryData"];

/// The objects inside the records of a `ConfigMap`: one, or its chunks.
pub fn chunks_of_config_map(map: &ConfigMap) -> Result<Vec<Value>, RecordTextError> {
    let object = config_map_object(map);
    let too_long = match record_text::print_object(&object, MAX_OBJECT_LEN) {
        Ok(_) => return Ok(vec![object]),
        Err(error @ RecordTextError::TooLong(..)) => error,
        Err(error) => return Err(error),
    };
    let mut chunks = ChunkBuilder::new(MAX_OBJECT_LEN - HEAD_LEN);
    for field in DATA_FIELDS {
        for (key, value) in object
            .get(field)
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let key_len: usize = ENTRY_LEN + key.chars().map(stored_len).sum::<usize>();
            let mut rest = value.as_str().unwrap_or_default();
            while let Some(room) = chunks.room_for(key_len) {
                let (part, len) = leading_part(rest, room);
                chunks.add_value(key_len + len, |chunk: &mut Map<String, Value>| {
                    let entries = chunk.entry(field).or_insert_with(|| json!({}));
                    entries[key] = part.into();
                });
                rest = rest.get(part.len()..).unwrap_or_default();
                if rest.is_empty() {
                    break;
                }
                chunks.close_chunk();
            }
        }
    }
    let entries: usize = DATA_FIELDS
        .iter()
        .filter_map(|field| Some(object.get(*field)?.as_object()?.len()))
        .sum();
    if entries > MAX_VALUES {
        return Err(RecordTextError::TooManyValues);
    }
    let whole = travelling_fingerprint(ReplicaKind::ConfigMap, &object);
    let chunks = chunks.into_chunks().ok_or(too_long)?;
    let count = chunks.len();
    let mut records = Vec::with_capacity(count);
    for (index, mut chunk) in chunks.into_iter().enumerate() {
        let said = Chunk {
            index,
            count,
            whole: whole.clone(),
            secret_type: None,
        };
        chunk.extend(select_fields(&object, &["apiVersion", "kind", "metadata"]));
        chunk.insert(CHUNK.to_owned(), said.to_text().into());
        records.push(chunk.into());
    }
    Ok(records)
}

/// The records of a Secret, each with what names it: one, or its chunks; none if it does not
/// travel.
pub fn chunks_of_secret(
    reference: &Reference,
    secret: &Secret,
) -> Result<Vec<(Reference, Secret)>, RecordTextError> {
    let Some(record) = record_of_secret(reference, secret) else {
        return Ok(Vec::new());
    };
    let len: usize = record
        .data
        .iter()
        .flatten()
        .map(|(key, value)| key.len() + value.0.len())
        .sum();
    if len <= MAX_SECRET_LEN {
        return Ok(vec![(reference.clone(), record)]);
    }
    if record
        .data
        .as_ref()
        .is_some_and(|data| data.len() > MAX_VALUES)
    {
        return Err(RecordTextError::TooManyValues);
    }
    let mut chunks = ChunkBuilder::new(MAX_SECRET_LEN);
    for (key, ByteString(value)) in record.data.iter().flatten() {
        let mut rest = value.as_slice();
        while let Some(room) = chunks.room_for(key.len()) {
            let (part, after) = rest.split_at(if rest.len() <= room {
                rest.len()
            } else {
                room - room % BASE64_GROUP
            });
            chunks.add_value(
                key.len() + part.len(),
                |chunk: &mut BTreeMap<String, ByteString>| {
                    chunk.insert(key.clone(), ByteString(part.to_vec()));
                },
            );
            rest = after;
            if rest.is_empty() {
                break;
            }
            chunks.close_chunk();
        }
    }
    let whole = travelling_fingerprint(
        ReplicaKind::Secret,
        &serde_json::to_value(&record).unwrap_or_default(),
    );
    let chunks = chunks
        .into_chunks()
        .ok_or(RecordTextError::TooLong(len, MAX_CHUNKS * MAX_SECRET_LEN))?;
    let count = chunks.len();
    let mut records = Vec::with_capacity(count);
    for (index, data) in chunks.into_iter().enumerate() {
        let named = Reference {
            name: chunk_name(&reference.name, index),
            ..reference.clone()
        };
        let said = Chunk {
            index,
            count,
            whole: whole.clone(),
            secret_type: record.type_.clone(),
        };
        let mut chunk = Secret {
            data: Some(data),
            type_: Some(travelling_type(None).to_owned()),
            ..record.clone()
        };
        chunk.metadata.name = Some(named.record_name());
        chunk
            .metadata
            .annotations
            .get_or_insert_default()
            .insert(annotations::CHUNK.to_owned(), said.to_text());
        records.push((named, chunk));
    }
    Ok(records)
}

/// The chunks of an object while it is divided.
struct ChunkBuilder<T> {
    max_len: usize,
    closed: Vec<T>,
    /// The one that is being filled, and what is left of its length.
    open: T,
    left: usize,
}

impl<T: Default> ChunkBuilder<T> {
    fn new(max_len: usize) -> Self {
        Self {
            max_len,
            closed: Vec::new(),
            open: T::default(),
            left: max_len,
        }
    }

    /// The room for a value, or a part of it, beside its key. `None` if there are too many chunks.
    fn room_for(&mut self, key_len: usize) -> Option<usize> {
        if self.left < key_len + MIN_PART_LEN {
            self.close_chunk();
        }
        (self.closed.len() < MAX_CHUNKS).then(|| self.left.saturating_sub(key_len))
    }

    fn add_value(&mut self, len: usize, insert: impl FnOnce(&mut T)) {
        insert(&mut self.open);
        self.left = self.left.saturating_sub(len);
    }

    fn close_chunk(&mut self) {
        self.closed.push(std::mem::take(&mut self.open));
        self.left = self.max_len;
    }

    /// All of them; `None` if there are too many.
    fn into_chunks(mut self) -> Option<Vec<T>> {
        self.close_chunk();
        (self.closed.len() <= MAX_CHUNKS).then_some(self.closed)
    }
}

/// The beginning of a text that takes at most so many bytes in a record, and how many it takes.
fn leading_part(text: &str, max_len: usize) -> (&str, usize) {
    let mut len = 0;
    for (at, character) in text.char_indices() {
        let next = len + stored_len(character);
        if next > max_len {
            return (text.get(..at).unwrap_or_default(), len);
        }
        len = next;
    }
    (text, len)
}

/// Kind, name and fingerprint of an object that comes in chunks.
type WholeObject = (ReplicaKind, String, String);

/// The sources of `ConfigMap`s and Secrets, of which chunk 0 stands for the whole: it names the
/// others, or waits for them. Of these only those stay that are being deleted, because they have a
/// finalizer.
#[must_use]
pub fn join_sources(sources: Vec<ReplicaSource>) -> Vec<ReplicaSource> {
    let mut others: BTreeMap<WholeObject, BTreeMap<usize, (Key, String)>> = BTreeMap::new();
    for source in sources
        .iter()
        .filter(|source| !source.deleted && source.problem.is_none() && source.refused.is_none())
    {
        if let (Some(kind), Some(chunk)) = (
            source.kind,
            source.chunk.as_ref().filter(|chunk| chunk.index > 0),
        ) {
            let whole = others
                .entry((kind, source.name.clone(), chunk.whole.clone()))
                .or_default();
            whole.insert(chunk.index, (source.key.clone(), source.uid.clone()));
        }
    }
    let mut joined = Vec::with_capacity(sources.len());
    for mut source in sources {
        let (Some(kind), Some(chunk)) = (source.kind, source.chunk.clone()) else {
            joined.push(source);
            continue;
        };
        if chunk.index > 0 {
            source.kind = None;
            joined.extend(source.deleted.then_some(source));
            continue;
        }
        let found = others.get(&(kind, source.name.clone(), chunk.whole.clone()));
        let all = (1..chunk.count)
            .map(|index| found?.get(&index).cloned())
            .collect::<Option<Vec<_>>>();
        source.is_incomplete = all.is_none();
        source.other_chunks = all.unwrap_or_default();
        source.fingerprint = chunk.whole;
        joined.push(source);
    }
    joined
}

/// The reason why the chunks that were read are not the object.
#[derive(Debug, PartialEq, Eq)]
pub enum ChunkJoinError {
    /// A chunk is of another content, because the object is being written.
    Other,
    /// They do not make up what they say, or nothing that Kubernetes takes.
    Wrong(ReplicaProblem),
}

impl ChunkJoinError {
    fn wrong(why: &str) -> Self {
        Self::Wrong(ReplicaProblem::new("Invalid", why))
    }
}

/// Puts an object together, chunk after chunk, so that only one of them is in memory beside it.
pub struct ChunkJoiner<'a> {
    kind: ReplicaKind,
    whole: &'a Chunk,
    content: Value,
    /// The index of the next chunk.
    next: usize,
    keys: usize,
    len: usize,
}

impl<'a> ChunkJoiner<'a> {
    pub fn new(kind: ReplicaKind, whole: &'a Chunk) -> Self {
        Self {
            kind,
            whole,
            content: json!({ "type": whole.secret_type }),
            next: 0,
            keys: 0,
            len: 0,
        }
    }

    /// Adds the content of the next chunk.
    pub fn add_chunk(&mut self, chunk: &Value) -> Result<(), ChunkJoinError> {
        let said = Chunk::from_object(chunk).or_else(|| Chunk::parse(chunk_annotation(chunk)?));
        if said
            != Some(Chunk {
                index: self.next,
                ..self.whole.clone()
            })
        {
            return Err(ChunkJoinError::Other);
        }
        self.next += 1;
        for field in DATA_FIELDS {
            for (key, part) in chunk
                .get(field)
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                let part = part.as_str().unwrap_or_default();
                self.len += part.len();
                match entry_at(&mut self.content, &[field, key]) {
                    Value::String(value) => value.push_str(part),
                    value => {
                        *value = part.into();
                        self.keys += 1;
                        self.len += key.len();
                    }
                }
                if self.keys > MAX_VALUES || self.len > MAX_WHOLE_LEN {
                    return Err(ChunkJoinError::wrong(
                        "its chunks make up more than Kubernetes takes",
                    ));
                }
            }
        }
        Ok(())
    }

    /// The content of the object.
    pub fn finish(self) -> Result<Value, ChunkJoinError> {
        let is_right = self.next == self.whole.count
            && travelling_fingerprint(self.kind, &self.content) == self.whole.whole;
        if is_right {
            Ok(self.content)
        } else {
            Err(ChunkJoinError::wrong(
                "its chunks do not make up the object",
            ))
        }
    }
}

fn chunk_annotation(chunk: &Value) -> Option<&str> {
    ObjectView::of(chunk)
        .metadata()
        .annotation(annotations::CHUNK)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn config_map(data: &[(&str, String)]) -> ConfigMap {
        let data: BTreeMap<&str, &String> = data.iter().map(|(key, value)| (*key, value)).collect();
        serde_json::from_value(
            json!({ "metadata": { "namespace": "demo", "name": "settings" }, "data": data }),
        )
        .unwrap()
    }

    fn reference(kind: ReplicaKind) -> Reference {
        Reference {
            kind,
            namespace: "demo".into(),
            name: "settings".into(),
        }
    }

    /// The records as a provider has them, and what it makes of them.
    fn sources(objects: &[Value]) -> (Vec<ReplicaSource>, Vec<Value>) {
        let record = |object: &Value| {
            crate::replica::record::record_of(&reference(ReplicaKind::ConfigMap), object).unwrap()
        };
        let records: Vec<_> = objects.iter().map(record).collect();
        let contents = records
            .iter()
            .map(|one| record_text::parse_object(&one.spec.object, MAX_OBJECT_LEN).unwrap())
            .collect();
        (
            records
                .into_iter()
                .map(ReplicaSource::from_object)
                .collect(),
            contents,
        )
    }

    fn content(
        kind: ReplicaKind,
        whole: &Chunk,
        chunks: &[Value],
    ) -> Result<Value, ChunkJoinError> {
        let mut joiner = ChunkJoiner::new(kind, whole);
        chunks
            .iter()
            .try_for_each(|chunk| joiner.add_chunk(chunk))?;
        joiner.finish()
    }

    fn whole_of(sources: &[ReplicaSource]) -> &ReplicaSource {
        sources.iter().find(|source| source.kind.is_some()).unwrap()
    }

    /// A `ConfigMap` of 900 KiB of XML.
    fn xml() -> ConfigMap {
        config_map(&[
            ("a.xml", "<item name=\"ä\">&amp;</item>\n".repeat(32 * 1024)),
            ("small", "x".into()),
            ("empty", String::new()),
        ])
    }

    #[test]
    fn a_config_map_of_900_kib_of_xml_arrives_as_it_was() {
        let map = xml();
        let len: usize = map
            .data
            .iter()
            .flatten()
            .map(|(_, value)| value.len())
            .sum();
        assert!(len > 900 << 10 && len <= 1 << 20, "{len}");
        let objects = chunks_of_config_map(&map).unwrap();
        println!("{len} bytes travel in {} records", objects.len());
        let (sources, contents) = sources(&objects);
        let names: std::collections::BTreeSet<&str> = sources
            .iter()
            .map(|source| source.key.name.as_str())
            .collect();
        assert_eq!(
            names.len(),
            objects.len(),
            "each record has a name of its own"
        );
        let joined = join_sources(sources);
        let whole = whole_of(&joined);
        assert_eq!(
            (whole.is_incomplete, whole.other_chunks.len() + 1),
            (false, objects.len())
        );
        let content = content(
            ReplicaKind::ConfigMap,
            whole.chunk.as_ref().unwrap(),
            &contents,
        )
        .unwrap();
        assert_eq!(content["data"], json!(map.data));
        assert_eq!(
            whole.fingerprint,
            travelling_fingerprint(ReplicaKind::ConfigMap, &config_map_object(&map)),
            "as of a replica with this content"
        );
    }

    #[test]
    fn a_secret_of_900_kib_arrives_as_it_was_with_its_type() {
        let bytes: Vec<u8> = (0..900_u32 << 10)
            .map(|number| u8::try_from(number % 251).unwrap())
            .collect();
        let data: BTreeMap<String, ByteString> = [
            ("tls.crt".to_owned(), ByteString(bytes)),
            ("tls.key".to_owned(), ByteString(vec![7; 40_001])),
        ]
        .into();
        let secret = Secret {
            data: Some(data),
            type_: Some("kubernetes.io/tls".into()),
            ..Secret::default()
        };
        let records = chunks_of_secret(&reference(ReplicaKind::Secret), &secret).unwrap();
        println!("it travels in {} records", records.len());
        let mut sources = Vec::new();
        let mut contents = Vec::new();
        for (named, record) in records {
            assert_eq!(
                record.metadata.name.as_deref(),
                Some(named.record_name().as_str())
            );
            assert_eq!(
                record.type_.as_deref(),
                Some("Opaque"),
                "a part of one would not be valid"
            );
            assert_eq!(crate::replica::record::obstacle_of_secret(&record), None);
            let read =
                crate::replica::record::ReflectionRecord::from_secret(record.clone()).unwrap();
            assert_eq!(
                (read.own_reference(), read.reference),
                (named, reference(ReplicaKind::Secret))
            );
            contents.push(serde_json::to_value(&record).unwrap());
            sources.push(ReplicaSource::from_secret(record).unwrap());
        }
        let joined = join_sources(sources);
        let content = content(
            ReplicaKind::Secret,
            whole_of(&joined).chunk.as_ref().unwrap(),
            &contents,
        )
        .unwrap();
        let replica = crate::replica::replica_plan::replica_object(
            ReplicaKind::Secret,
            &content,
            "there",
            "demo-rome",
            "demo",
        );
        let made: Secret = serde_json::from_value(replica).unwrap();
        assert_eq!((made.data, made.type_), (secret.data, secret.type_));
    }

    #[test]
    fn until_all_chunks_of_one_content_are_there_nothing_is_made_of_them() {
        let (before, _) = sources(&chunks_of_config_map(&xml()).unwrap());
        let changed = config_map(&[("a.xml", "<item>&amp;</item>\n".repeat(40 * 1024))]);
        let (mut after, contents) = sources(&chunks_of_config_map(&changed).unwrap());
        let some: Vec<ReplicaSource> = before
            .iter()
            .take(3)
            .chain(after.iter().skip(3))
            .cloned()
            .collect();
        for incomplete in [before[..3].to_vec(), some] {
            assert!(whole_of(&join_sources(incomplete)).is_incomplete);
        }
        let (_, former) = sources(&chunks_of_config_map(&xml()).unwrap());
        let whole = after[0].chunk.clone().unwrap();
        let mixed: Vec<Value> = contents
            .iter()
            .take(1)
            .chain(former.iter().skip(1))
            .cloned()
            .collect();
        assert_eq!(
            content(ReplicaKind::ConfigMap, &whole, &mixed),
            Err(ChunkJoinError::Other),
            "they are being written"
        );
        after[1].deleted = true;
        assert!(whole_of(&join_sources(after)).is_incomplete);
    }

    #[test]
    fn chunks_that_do_not_make_up_what_they_say_are_refused() {
        let (sources, contents) = sources(&chunks_of_config_map(&xml()).unwrap());
        let whole = sources[0].chunk.clone().unwrap();
        let refused = |contents: &[Value]| {
            matches!(
                content(ReplicaKind::ConfigMap, &whole, contents),
                Err(ChunkJoinError::Wrong(_))
            )
        };
        assert!(!refused(&contents));
        let mut other = contents.clone();
        other[1]["data"]["a.xml"] = "something else".into();
        assert!(refused(&other));
        assert!(refused(&contents[..2]));
        let many: Map<String, Value> = (0..=MAX_VALUES)
            .map(|number| (number.to_string(), "".into()))
            .collect();
        other[1]["data"] = many.into();
        assert!(refused(&other));
        let long = format!("0/2 {}", "x".repeat(65));
        for text in [
            "0/1 x",
            "2/2 x",
            "0/129 x",
            "0/2",
            "x/2 x",
            "-1/2 x",
            "0/2 x Opaque more",
            "0/2 x some/other",
            &long,
        ] {
            assert_eq!(Chunk::parse(text), None, "{text}");
        }
        assert_eq!(Chunk::parse(&whole.to_text()), Some(whole));
    }

    /// Each record is valid, and all together would take a hundred times their length in memory.
    #[test]
    fn of_chunks_with_very_many_keys_no_more_is_kept_than_of_one_record() {
        let chunk = |index: usize| {
            let data: Map<String, Value> = (0..7000)
                .map(|number| (format!("{index}-{number}"), "".into()))
                .collect();
            json!({ "kind": "ConfigMap", "chunk": format!("{index}/128 x"), "data": data })
        };
        let whole = Chunk {
            index: 0,
            count: 128,
            whole: "x".into(),
            secret_type: None,
        };
        let mut joiner = ChunkJoiner::new(ReplicaKind::ConfigMap, &whole);
        assert_eq!(joiner.add_chunk(&chunk(0)), Ok(()));
        assert!(matches!(
            joiner.add_chunk(&chunk(1)),
            Err(ChunkJoinError::Wrong(_))
        ));
        let long = |index: usize| json!({ "chunk": format!("{index}/128 x"), "data": { "a": "x".repeat(60 << 10) } });
        let mut joiner = ChunkJoiner::new(ReplicaKind::ConfigMap, &whole);
        let taken = (0..128)
            .take_while(|index| joiner.add_chunk(&long(*index)).is_ok())
            .count();
        assert_eq!(taken, 25, "1.5 MiB");
    }

    #[test]
    fn what_nobody_could_put_together_does_not_travel() {
        let many: Vec<(String, String)> = (0..=MAX_VALUES)
            .map(|number| (number.to_string(), "x".repeat(40)))
            .collect();
        let many: Vec<(&str, String)> = many
            .iter()
            .map(|(key, value)| (key.as_str(), value.clone()))
            .collect();
        assert_eq!(
            chunks_of_config_map(&config_map(&many)),
            Err(RecordTextError::TooManyValues)
        );
        // The API server takes no such map.
        let huge = config_map(&[("a", "\u{1}".repeat(2 << 20))]);
        assert!(matches!(
            chunks_of_config_map(&huge),
            Err(RecordTextError::TooLong(..))
        ));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn whatever_a_config_map_has_its_records_are_short_enough_and_make_it_up(
            entries in prop::collection::btree_map("[a-z.]{1,20}", ("[\\PC\u{1}\n\"]{0,40}", 1_usize..4000), 1..12),
        ) {
            let data: BTreeMap<String, String> = entries.into_iter().map(|(key, (value, times))| (key, value.repeat(times))).collect();
            // Kubernetes takes no larger one.
            let len: usize = data.iter().map(|(key, value)| key.len() + value.len()).sum();
            prop_assume!(len < 1 << 20);
            let binary = [("binary".to_owned(), ByteString(vec![3; 50_000]))].into();
            let map = ConfigMap { data: Some(data), binary_data: Some(binary), ..xml() };
            let Ok(objects) = chunks_of_config_map(&map) else { return Ok(()) };
            let (sources, contents) = sources(&objects);
            prop_assert!(sources.iter().all(|source| source.problem.is_none()));
            if let Some(whole) = whole_of(&join_sources(sources)).chunk.as_ref() {
                let content = content(ReplicaKind::ConfigMap, whole, &contents).unwrap();
                prop_assert_eq!(&content["data"], &json!(map.data));
                prop_assert_eq!(&content["binaryData"], &json!(map.binary_data));
            }
        }
    }
}

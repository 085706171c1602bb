//! Identifies the part of a large object that a record holds.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use liqo_api::annotations;
use serde_json::Value;

use crate::replica::kind::SECRET_TYPES;

/// Maximum number of chunks of one object. One MiB, of which each byte is escaped as six, takes
/// about 100.
pub(super) const MAX_CHUNKS: usize = 128;
/// Maximum length of the hash of the whole.
const MAX_HASH_LEN: usize = 64;
/// The field of the object in a record that says which chunk it is.
pub(super) const CHUNK: &str = "chunk";

/// The part of an object that a record holds: `3/15 1f2e3d` as text, for Secrets with their type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub index: usize,
    /// Number of all parts.
    pub count: usize,
    /// The fingerprint of the whole.
    pub whole: String,
    /// The type of the whole, if it is a Secret: one of some keys only would not be valid.
    pub secret_type: Option<String>,
}

impl Chunk {
    /// Reads the chunk from the object in a record.
    pub(super) fn from_object(object: &Value) -> Option<Self> {
        Self::parse(object.get(CHUNK)?.as_str()?)
    }

    /// Reads the chunk from a record that is a Secret.
    pub(super) fn from_secret(secret: &Secret) -> Option<Self> {
        Self::parse(secret.annotations().get(annotations::CHUNK)?)
    }

    /// The text that identifies its record, if that is not the name of the object.
    pub(super) fn own_name(&self, object: &str) -> Option<String> {
        (self.index > 0).then(|| chunk_name(object, self.index))
    }

    /// Reads the text. `None` if it is none of a chunk.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (index, count) = words.next()?.split_once('/')?;
        let (index, count) = (index.parse().ok()?, count.parse().ok()?);
        let whole = words.next()?.to_owned();
        let secret_type = words.next().map(str::to_owned);
        let is_type = secret_type
            .as_deref()
            .is_none_or(|type_| SECRET_TYPES.contains(&type_));
        let is_valid = index < count
            && (2..=MAX_CHUNKS).contains(&count)
            && whole.len() <= MAX_HASH_LEN
            && is_type;
        let is_valid = is_valid && words.next().is_none();
        is_valid.then_some(Self {
            index,
            count,
            whole,
            secret_type,
        })
    }

    pub(super) fn to_text(&self) -> String {
        let Self {
            index,
            count,
            whole,
            secret_type,
        } = self;
        let type_ = secret_type
            .as_ref()
            .map(|type_| format!(" {type_}"))
            .unwrap_or_default();
        format!("{index}/{count} {whole}{type_}")
    }
}

/// The text that identifies the record of a chunk. No object has a name with a space.
pub(super) fn chunk_name(object: &str, index: usize) -> String {
    if index == 0 {
        object.to_owned()
    } else {
        format!("{object} {index}")
    }
}

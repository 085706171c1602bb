//! Annotations stay here when a pod is too long with them. Few providers keep any, so most matter
//! only if the pod reads them.

use std::collections::BTreeSet;

use liqo_api::record_text::{self, RecordTextError};
use serde_json::{Map, Value};

use crate::json::annotations_mut;
use crate::pod::carry::downward::reads_annotation;
use crate::pod::carry::metadata::{is_always_kept, kept_texts};
use crate::views::PodView;

/// Annotations that may be left out of a pod that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Omittable {
    /// Those that the pod does not read.
    Unread,
    All,
}

/// Leaves out annotations, the longest first, until the pod takes at most this many bytes. Those
/// that every provider keeps stay. Returns the names of those that were left out.
pub(super) fn shorten_pod(
    carried: &mut Value,
    max_len: usize,
    omittable: Omittable,
) -> BTreeSet<String> {
    let Err(RecordTextError::TooLong(len, max_len)) = record_text::print_object(carried, max_len)
    else {
        return BTreeSet::new();
    };
    let mut surplus = len - max_len;
    let pod = PodView::of(carried);
    let annotations = kept_texts(pod.metadata().annotations(), |key| {
        !is_always_kept(key) && (omittable == Omittable::All || !reads_annotation(pod.spec(), key))
    });
    let mut by_len: Vec<(usize, &String)> = annotations
        .iter()
        .map(|(key, value)| (len_of_entry(key, value), key))
        .collect();
    by_len.sort_by(|one, other| other.cmp(one));
    let mut left_out = BTreeSet::new();
    for (len, key) in by_len {
        if surplus == 0 {
            break;
        }
        surplus = surplus.saturating_sub(len);
        left_out.insert(key.clone());
    }
    if let Some(all) = annotations_mut(carried) {
        all.retain(|key, _| !left_out.contains(key));
    }
    left_out
}

/// The length in bytes of an annotation in the record, without the comma after it.
fn len_of_entry(key: &str, value: &Value) -> usize {
    let entry = Map::from_iter([(key.to_owned(), value.clone())]).into();
    record_text::print_object(&entry, usize::MAX).map_or(0, |text| text.len() - "{}".len())
}

//! The decisions of offloading: pure functions over snapshots, with the time as an argument.
//!
//! Pods are handled as JSON and edited by path, so that fields inside containers and metadata that this version does not
//! know survive. Everything that comes from a peer is taken as hostile.

pub mod exposure;
pub mod home_status;
pub mod ingresses;
pub mod kind;
pub mod network_policies;
pub mod node;
pub mod policy_peers;
pub mod refs;
pub mod scheduling;
pub mod selectors;
pub mod services;
pub mod travel;

use serde_json::Value;

/// Reason of a pod that ended, at the provider and at home, because the provider took back what it used.
pub const OFFER_RECLAIMED: &str = "OfferReclaimed";

/// The elements of the list at a JSON pointer; none when there is no list.
pub(crate) fn items<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The text at a JSON pointer.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}

/// A value's `name`, or nothing to match with.
pub(crate) fn name(value: &Value) -> &str {
    text(value, "/name").unwrap_or_default()
}

/// The domain in front of the slash of a label or annotation key.
pub(crate) fn domain(key: &str) -> &str {
    key.split_once('/').map_or("", |(domain, _)| domain)
}

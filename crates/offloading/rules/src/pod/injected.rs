//! The volumes with which an API server gives its pods access to itself.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::json::{items_at, name};

/// The names of these volumes begin with this.
pub(crate) const PREFIX: &str = "kube-api-access-";

/// The names of the volumes with which the home API server gives the pod access to itself: they
/// contain the home cluster's token.
pub(crate) fn injected_volumes(pod: &Value) -> BTreeSet<String> {
    let volumes = items_at(pod, "/spec/volumes")
        .iter()
        .filter(|volume| name(volume).starts_with(PREFIX) && has_token(volume));
    volumes.map(|volume| name(volume).to_owned()).collect()
}

fn has_token(volume: &Value) -> bool {
    items_at(volume, "/projected/sources")
        .iter()
        .any(|source| source.get("serviceAccountToken").is_some())
}

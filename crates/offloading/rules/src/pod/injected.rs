//! The volumes with which an API server gives its pods access to itself.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::views::{PodView, VolumeView};

/// The names of these volumes begin with this.
pub(crate) const PREFIX: &str = "kube-api-access-";

/// The names of the volumes with which the home API server gives the pod access to itself: they
/// contain the home cluster's token.
pub(crate) fn injected_volumes(pod: &Value) -> BTreeSet<String> {
    let volumes = PodView::of(pod)
        .spec()
        .volumes()
        .filter(|volume| volume.name().starts_with(PREFIX) && has_token(*volume));
    volumes.map(|volume| volume.name().to_owned()).collect()
}

fn has_token(volume: VolumeView<'_>) -> bool {
    let mut sources = volume.projected().sources();
    sources.any(|source| source.service_account_token().is_some())
}

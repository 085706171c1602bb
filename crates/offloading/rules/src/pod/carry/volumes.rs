//! Volumes that travel: Kubernetes produces their contents from the pod and from reflected objects.

use std::collections::BTreeSet;

use liqo_api::OffloadedReason;
use serde_json::Value;

use crate::json::name;
use crate::pod::carry::api_server::is_without_token;
use crate::pod::carry::{ALLOWED_VOLUMES, PodRefusal};
use crate::views::VolumeView;

const ALLOWED_SOURCES: &[&str] = &["configMap", "downwardAPI", "secret"];

/// The volumes without the injected one; a refusal for the first that cannot travel.
pub fn reduce_volumes(
    volumes: &Value,
    injected: &BTreeSet<String>,
) -> Result<Option<Value>, PodRefusal> {
    let Some(volumes) = volumes.as_array() else {
        return Err(PodRefusal::new(
            OffloadedReason::Malformed.as_str(),
            "the pod's spec.volumes is not a list",
        ));
    };
    let mut kept = Vec::new();
    for volume in volumes
        .iter()
        .filter(|volume| !injected.contains(name(volume)))
    {
        check_volume(volume)?;
        kept.push(volume.clone());
    }
    Ok((!kept.is_empty()).then_some(kept.into()))
}

/// A refusal for the first volume of a type that travels, but that the provider's policy does not
/// allow. The volume with the namespace and the CA of home is not the choice of the pod.
pub fn check_volume_types(
    volumes: Option<&Value>,
    types: &BTreeSet<String>,
    policy: &str,
) -> Result<(), PodRefusal> {
    for volume in volumes
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter(|volume| !is_without_token(volume))
    {
        if let Some(kind) = volume_types(volume).find(|kind| !types.contains(*kind)) {
            let instead = if types.is_empty() {
                "it allows none".to_owned()
            } else {
                format!(
                    "it allows {}",
                    types
                        .iter()
                        .map(String::as_str)
                        .collect::<Vec<_>>()
                        .join(", ")
                )
            };
            return Err(PodRefusal::new(
                OffloadedReason::VolumeType.as_str(),
                format!(
                    "volume {} is of type {kind}, which the provider's PeeringPolicy {policy} does not allow: {instead}; use another, or keep the pod in its own cluster",
                    name(volume)
                ),
            ));
        }
    }
    Ok(())
}

fn volume_types(volume: &Value) -> impl Iterator<Item = &str> {
    let entries = volume.as_object().into_iter().flatten();
    entries
        .filter(|(key, value)| key.as_str() != "name" && !value.is_null())
        .map(|(kind, _)| kind.as_str())
}

fn check_volume(volume: &Value) -> Result<(), PodRefusal> {
    let title = name(volume);
    for kind in volume_types(volume) {
        let reason = match kind {
            kind if ALLOWED_VOLUMES.contains(&kind) => continue,
            "hostPath" => OffloadedReason::HostPath.as_str(),
            "persistentVolumeClaim" | "ephemeral" => {
                OffloadedReason::PersistentVolumeClaim.as_str()
            }
            _ => OffloadedReason::VolumeType.as_str(),
        };
        return Err(PodRefusal::new(
            reason,
            format!(
                "volume {title} is of type {kind}, which does not travel to another cluster; use one of {}, or keep the pod in its own cluster",
                ALLOWED_VOLUMES.join(", ")
            ),
        ));
    }
    for source in VolumeView::of(volume).projected().sources() {
        for (kind, _) in source
            .json()
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, value)| !value.is_null())
        {
            let reason = match kind.as_str() {
                kind if ALLOWED_SOURCES.contains(&kind) => continue,
                "serviceAccountToken" => OffloadedReason::TokenProjection.as_str(),
                _ => OffloadedReason::VolumeType.as_str(),
            };
            return Err(PodRefusal::new(
                reason,
                format!(
                    "volume {title} projects {kind}, which is valid only in the pod's own cluster; remove it, or keep the pod in its own cluster"
                ),
            ));
        }
    }
    Ok(())
}

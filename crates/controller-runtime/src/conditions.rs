//! Writes conditions, and only if they changed.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use liqo_api::{
    CLUSTER_CONFIG, ClusterConfig, Condition, ForeignCluster,
    conditions::{
        ConditionOwner, DesiredCondition, updated_conditions, updated_conditions_for, updated_links,
    },
};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::{context::Context, writes::unless_gone};

/// Applies all conditions of an owner to the status of a [`ForeignCluster`], by server-side apply.
/// Removes conditions of the owner that are not in `wanted`. Writes nothing if nothing changed, or
/// if the object is gone.
pub async fn apply_links(
    context: &Context,
    foreign_cluster: &ForeignCluster,
    owner: ConditionOwner,
    wanted: &[DesiredCondition],
) -> kube::Result<()> {
    let name = foreign_cluster.metadata.name.as_deref().unwrap_or_default();
    let current = foreign_cluster
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let Some(conditions) = updated_links(current, wanted, owner, context.now()) else {
        return Ok(());
    };
    let body = json!({
        "apiVersion": "discovery.liqo.io/v1alpha1",
        "kind": "ForeignCluster",
        "metadata": { "name": name, "uid": foreign_cluster.metadata.uid },
        "status": { "conditions": conditions },
    });
    let api: Api<ForeignCluster> = Api::all(context.client.clone());
    let params = PatchParams::apply(owner.field_manager).force();
    unless_gone(api.patch_status(name, &params, &Patch::Apply(&body)).await).map(drop)
}

/// Applies conditions of one writer to the status of the [`ClusterConfig`], by server-side apply,
/// so that other writers keep theirs. Returns whether anything changed. Writes nothing if nothing
/// changed, or if the object is gone.
pub async fn apply_to_config(
    context: &Context,
    config: &ClusterConfig,
    field_manager: &str,
    wanted: &[DesiredCondition],
) -> kube::Result<bool> {
    let current = config
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let Some(conditions) = updated_conditions(current, wanted, context.now()) else {
        return Ok(false);
    };
    let body = json!({
        "apiVersion": "config.liqo.io/v1alpha1",
        "kind": "ClusterConfig",
        "metadata": { "name": CLUSTER_CONFIG },
        "status": { "conditions": conditions },
    });
    let api: Api<ClusterConfig> = Api::all(context.client.clone());
    let params = PatchParams::apply(field_manager).force();
    Ok(unless_gone(
        api.patch_status(CLUSTER_CONFIG, &params, &Patch::Apply(&body))
            .await,
    )?
    .is_some())
}

/// Writes conditions of an object whose conditions all belong to one controller, by merge patch.
/// Writes nothing if nothing changed, or if the object is gone.
pub async fn merge<K>(
    api: &Api<K>,
    name: &str,
    current: &[Condition],
    wanted: &[DesiredCondition],
    now: Timestamp,
) -> kube::Result<()>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    merge_for(None, api, name, current, wanted, now).await
}

/// Like [`merge`]; each condition names the generation of the object's spec that it is about.
pub async fn merge_for<K>(
    generation: Option<i64>,
    api: &Api<K>,
    name: &str,
    current: &[Condition],
    wanted: &[DesiredCondition],
    now: Timestamp,
) -> kube::Result<()>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let Some(changed) = updated_conditions_for(generation, current, wanted, now) else {
        return Ok(());
    };
    let mut conditions: Vec<Condition> = current
        .iter()
        .filter(|have| !changed.iter().any(|new| new.type_ == have.type_))
        .cloned()
        .collect();
    conditions.extend(changed);
    let body = json!({ "status": { "conditions": conditions } });
    unless_gone(
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&body))
            .await,
    )
    .map(drop)
}

pub fn namespaced_api<K>(client: &Client, namespace: &str) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    Api::namespaced(client.clone(), namespace)
}

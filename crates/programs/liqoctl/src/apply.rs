//! Creates and deletes objects, by server-side apply.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, anyhow};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use liqo_api::conditions::has_true_condition;

use crate::{
    cluster::{ExplainFailure as _, full_name, is_absent},
    manifests::kind,
    wait::{PollResult, until},
};

/// Field manager of everything that this program applies.
pub const FIELD_MANAGER: &str = "liqoctl";

/// The API for objects like this one.
pub fn api_of(client: &Client, object: &DynamicObject) -> anyhow::Result<Api<DynamicObject>> {
    let types = object
        .types
        .as_ref()
        .ok_or_else(|| anyhow!("object {} has no kind", object.name_any()))?;
    let kind = GroupVersionKind::try_from(types)
        .map_err(|error| anyhow!("object {}: {error}", object.name_any()))?;
    let resource = ApiResource::from_gvk(&kind);
    Ok(match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}

/// Creates or updates an object. Fields that only others wrote stay.
pub async fn apply_object(
    client: &Client,
    object: &DynamicObject,
) -> anyhow::Result<DynamicObject> {
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    api_of(client, object)?
        .patch(&object.name_any(), &parameters, &Patch::Apply(object))
        .await
        .doing(format!("apply {} {}", kind(object), full_name(object)))
}

/// Waits until the API server serves these definitions.
pub async fn wait_until_established(
    client: &Client,
    definitions: &[&DynamicObject],
    timeout: Duration,
) -> anyhow::Result<()> {
    let mut open: BTreeSet<String> = definitions
        .iter()
        .map(|definition| definition.name_any())
        .collect();
    let Some(first) = definitions.first() else {
        return Ok(());
    };
    let api = api_of(client, first)?;
    while let Some(name) = open.pop_first() {
        until(
            &format!("the definition {name} is served"),
            timeout,
            |_| {},
            || async {
                let definition = api
                    .get(&name)
                    .await
                    .doing(format!("read the definition {name}"))?;
                Ok(
                    if is_true(&definition, "Established") && is_true(&definition, "NamesAccepted")
                    {
                        PollResult::Done(())
                    } else {
                        PollResult::NotYet("the API server does not serve it yet".to_owned())
                    },
                )
            },
        )
        .await?;
    }
    Ok(())
}

fn is_true(definition: &DynamicObject, condition: &str) -> bool {
    let conditions = definition.data["status"]["conditions"].as_array();
    has_true_condition(conditions.into_iter().flatten(), condition)
}

/// Deletes an object. Succeeds if the object is gone or its kind is unknown.
pub async fn delete_if_present(api: &Api<DynamicObject>, name: &str) -> anyhow::Result<()> {
    match api.delete(name, &DeleteParams::background()).await {
        Ok(_) => Ok(()),
        Err(error) if is_absent(&error) => Ok(()),
        Err(error) => Err(crate::cluster::explain_request_error(error))
            .with_context(|| format!("cannot delete {name}")),
    }
}

/// Waits until an object is gone.
pub async fn wait_until_gone(
    api: &Api<DynamicObject>,
    name: &str,
    timeout: Duration,
) -> anyhow::Result<()> {
    until(
        &format!("{name} is gone"),
        timeout,
        |_| {},
        || async {
            match api
                .get_metadata_opt(name)
                .await
                .doing(format!("read {name}"))?
            {
                None => Ok(PollResult::Done(())),
                Some(left) => Ok(PollResult::NotYet(
                    match left.metadata.finalizers.unwrap_or_default() {
                        finalizers if finalizers.is_empty() => "it still exists".to_owned(),
                        finalizers => format!("its finalizers keep it: {}", finalizers.join(", ")),
                    },
                )),
            }
        },
    )
    .await
}

//! Writes what one controller owns completely: the spec of an object, or its status.

use std::fmt::Debug;

use json_patch::{
    AddOperation, Patch as Operations, PatchOperation, ReplaceOperation, jsonptr::PointerBuf,
};
use kube::{
    Api, Resource,
    api::{Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::writes::unless_gone;

/// Creates the object or replaces its spec, as field manager `manager`. `exists` comes from the
/// cache, and may be wrong.
///
/// This does not use server-side apply, which turns a map without its last key into null; the
/// schema refuses that (Kubernetes 1.34).
pub async fn create_or_replace<K>(
    api: &Api<K>,
    manager: &str,
    object: &K,
    exists: bool,
) -> kube::Result<()>
where
    K: Resource + Clone + Debug + DeserializeOwned + Serialize,
{
    let first = if exists {
        replace_spec(api, manager, object).await
    } else {
        create(api, manager, object).await
    };
    match first {
        Err(kube::Error::Api(status)) if exists && status.is_not_found() => {
            create(api, manager, object).await
        }
        Err(kube::Error::Api(status)) if !exists && status.is_already_exists() => {
            replace_spec(api, manager, object).await
        }
        other => other,
    }
}

/// Replaces the status of an object. Does nothing if the object is gone.
pub async fn replace_status<K>(
    api: &Api<K>,
    manager: &str,
    name: &str,
    status: &impl Serialize,
) -> kube::Result<()>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let value = serde_json::to_value(status).map_err(kube::Error::SerdeError)?;
    let operation = PatchOperation::Add(AddOperation {
        path: PointerBuf::from_tokens(["status"]),
        value,
    });
    let params = PatchParams {
        field_manager: Some(manager.to_owned()),
        ..PatchParams::default()
    };
    unless_gone(
        api.patch_status(
            name,
            &params,
            &Patch::Json::<()>(Operations(vec![operation])),
        )
        .await,
    )
    .map(drop)
}

async fn create<K>(api: &Api<K>, manager: &str, object: &K) -> kube::Result<()>
where
    K: Resource + Clone + Debug + DeserializeOwned + Serialize,
{
    let params = PostParams {
        field_manager: Some(manager.to_owned()),
        ..PostParams::default()
    };
    api.create(&params, object).await.map(drop)
}

async fn replace_spec<K>(api: &Api<K>, manager: &str, object: &K) -> kube::Result<()>
where
    K: Resource + Clone + Debug + DeserializeOwned + Serialize,
{
    let mut json = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
    let value = json.get_mut("spec").map(Value::take).unwrap_or_default();
    let operation = PatchOperation::Replace(ReplaceOperation {
        path: PointerBuf::from_tokens(["spec"]),
        value,
    });
    let params = PatchParams {
        field_manager: Some(manager.to_owned()),
        ..PatchParams::default()
    };
    let name = object.meta().name.as_deref().unwrap_or_default();
    api.patch(
        name,
        &params,
        &Patch::Json::<()>(Operations(vec![operation])),
    )
    .await
    .map(drop)
}

/// Adds the labels of an object that Liqo created for a peer: `owner_label` gets the peer's ID.
pub fn with_peer_labels<K: Resource>(
    mut object: K,
    owner_label: &str,
    id: &liqo_api::ClusterId,
) -> K {
    let labels = object.meta_mut().labels.get_or_insert_default();
    labels.insert(liqo_api::labels::MANAGED.to_owned(), "true".to_owned());
    labels.insert(owner_label.to_owned(), id.to_string());
    object
}

//! Creates and deletes the Kubernetes objects of a peering, which [`manifests`](crate::decide::manifests)
//! describes.

use std::{fmt::Debug, time::Duration};

use kube::{Api, Resource, ResourceExt as _, api::DeleteParams};
use liqo_api::Key;
use liqo_controller_runtime::writes::{
    StepContext as _, StepError, create_missing, delete_if_present,
};
use serde::{Serialize, de::DeserializeOwned};

/// Maximum delay until a new `RoleBinding` has an effect.
const RIGHTS_TIMEOUT: Duration = Duration::from_secs(3);

/// Creates an object unless it exists; returns the existing object.
pub async fn ensure<K>(api: &Api<K>, object: &K) -> Result<K, StepError>
where
    K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + Debug,
{
    let (live, _) = create_missing(api, object).await.step(
        "create",
        K::kind(&()),
        key(api, &object.name_any()),
    )?;
    Ok(live)
}

/// Like [`ensure`], in a namespace where our `RoleBinding` may not have an effect yet.
pub async fn ensure_in_new<K>(api: &Api<K>, object: &K) -> Result<K, StepError>
where
    K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + Debug,
{
    let deadline = tokio::time::Instant::now() + RIGHTS_TIMEOUT;
    loop {
        match ensure(api, object).await {
            Err(StepError {
                source: kube::Error::Api(status),
                ..
            }) if status.is_forbidden() && tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            done => return done,
        }
    }
}

/// Whether an object exists. One that is being deleted still does.
pub async fn exists<K>(api: &Api<K>, name: &str) -> Result<bool, StepError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    Ok(api
        .get_metadata_opt(name)
        .await
        .step("read", K::kind(&()), key(api, name))?
        .is_some())
}

/// Deletes an object unless it is gone or being deleted. Reads first, so that a repeated call
/// writes nothing.
pub async fn delete<K>(api: &Api<K>, name: &str) -> Result<(), StepError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let found = api
        .get_metadata_opt(name)
        .await
        .step("read", K::kind(&()), key(api, name))?;
    if found.is_some_and(|found| found.metadata.deletion_timestamp.is_none()) {
        delete_if_present(api, name, &DeleteParams::default())
            .await
            .step("delete", K::kind(&()), key(api, name))?;
    }
    Ok(())
}

fn key<K: Resource>(api: &Api<K>, name: &str) -> Key {
    Key::new(api.namespace().unwrap_or_default(), name)
}

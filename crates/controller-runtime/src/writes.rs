//! Common write requests, and what their answers mean.
//!
//! The functions here return the client's errors, so a write to a peer can pass through
//! [`call`](crate::peers::call). The caller adds with [`StepContext::step`] what it wanted to do:
//!
//! ```ignore
//! delete_if_present(&api, name, &only(&uid)).await.step("delete", "ResourceOffer", key)?;
//! ```

use std::{borrow::Cow, fmt::Debug};

use json_patch::{
    Patch as Operations, PatchOperation, RemoveOperation, TestOperation, jsonptr::PointerBuf,
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::{ObjectMeta, Status},
};
use liqo_api::Key;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::peers::PeerError;

#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {object}: {source}")]
pub struct StepError<E: std::error::Error + 'static = kube::Error> {
    /// For example "create" or "renew".
    pub verb: &'static str,
    /// Kind and key of the object; kind and namespace if the request was for all objects there.
    pub object: String,
    pub source: E,
}

/// A request of a controller that writes to our own API server and to a peer's.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Local(#[from] StepError),
    #[error("at the peer: {0}")]
    Peer(#[from] StepError<PeerError>),
}

pub trait StepContext<T, E: std::error::Error + 'static> {
    /// Adds to the error what the request was for. A key without a name means all objects of its
    /// namespace.
    fn step(
        self,
        verb: &'static str,
        kind: impl Into<Cow<'static, str>>,
        key: impl Into<Key>,
    ) -> Result<T, StepError<E>>;
}

impl<T, E: std::error::Error + 'static> StepContext<T, E> for Result<T, E> {
    fn step(
        self,
        verb: &'static str,
        kind: impl Into<Cow<'static, str>>,
        key: impl Into<Key>,
    ) -> Result<T, StepError<E>> {
        self.map_err(|source| StepError {
            verb,
            object: object_text(&kind.into(), &key.into()),
            source,
        })
    }
}

fn object_text(kind: &str, key: &Key) -> String {
    match (key.namespace.as_str(), key.name.as_str()) {
        ("", "") => kind.to_owned(),
        (namespace, "") => format!("{kind} in namespace {namespace}"),
        _ => format!("{kind} {key}"),
    }
}

/// An error that may contain the answer of our own or a peer's API server.
pub trait ApiError {
    fn status(&self) -> Option<&Status>;
}

impl ApiError for kube::Error {
    fn status(&self) -> Option<&Status> {
        if let Self::Api(status) = self {
            Some(status)
        } else {
            None
        }
    }
}

impl ApiError for PeerError {
    fn status(&self) -> Option<&Status> {
        if let Self::Api(error) = self {
            error.status()
        } else {
            None
        }
    }
}

/// Returns `None` if the object does not exist.
pub fn unless_gone<T, E: ApiError>(answer: Result<T, E>) -> Result<Option<T>, E> {
    none_if(answer, Status::is_not_found)
}

/// Returns `None` if the object does not exist, or has another UID or version than the request
/// named. A watch reports that change.
pub fn unless_changed<T, E: ApiError>(answer: Result<T, E>) -> Result<Option<T>, E> {
    none_if(answer, |status| {
        status.is_not_found() || status.is_conflict()
    })
}

fn none_if<T, E: ApiError>(
    answer: Result<T, E>,
    is_nothing: impl Fn(&Status) -> bool,
) -> Result<Option<T>, E> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.status().is_some_and(is_nothing) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Creates an object unless one with its name exists. Returns the one that exists then, and whether
/// this call created it.
pub async fn create_missing<K>(api: &Api<K>, object: &K) -> kube::Result<(K, bool)>
where
    K: Resource + Clone + Serialize + DeserializeOwned + Debug,
{
    let name = object.name_any();
    if let Some(found) = api.get_opt(&name).await? {
        return Ok((found, false));
    }
    match api.create(&PostParams::default(), object).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            Ok((api.get(&name).await?, false))
        }
        created => Ok((created?, true)),
    }
}

/// Parameters that delete only the object with this UID.
pub fn only_with_uid(uid: impl Into<String>) -> DeleteParams {
    DeleteParams::default().preconditions(Preconditions {
        uid: Some(uid.into()),
        resource_version: None,
    })
}

/// Deletes an object. Returns `false` if it does not exist, or does not meet the preconditions.
pub async fn delete_if_present<K>(
    api: &Api<K>,
    name: &str,
    params: &DeleteParams,
) -> kube::Result<bool>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let answer = api.delete(name, params).await;
    let answer = if params.preconditions.is_some() {
        unless_changed(answer)
    } else {
        unless_gone(answer)
    };
    answer.map(|deleted| deleted.is_some())
}

/// Adds `finalizer` to an object. Returns `false` if the object is gone or has changed since it was
/// read: then the caller must not continue. Writes nothing if the object already has the finalizer.
pub async fn add_finalizer<K>(api: &Api<K>, object: &K, finalizer: &str) -> kube::Result<bool>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    if finalizer_position(object.meta(), finalizer).is_some() {
        return Ok(true);
    }
    let all: Vec<&str> = object
        .finalizers()
        .iter()
        .map(String::as_str)
        .chain([finalizer])
        .collect();
    let metadata = json!({ "uid": object.uid(), "resourceVersion": object.resource_version(), "finalizers": all });
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    let answer = api
        .patch(&object.name_any(), &PatchParams::default(), &patch)
        .await;
    unless_changed(answer).map(|added| added.is_some())
}

/// Removes `finalizer` from an object; see [`remove_finalizer_at`].
pub async fn remove_finalizer<K>(api: &Api<K>, object: &K, finalizer: &str) -> kube::Result<bool>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    match finalizer_position(object.meta(), finalizer) {
        Some(position) => {
            remove_finalizer_at(
                api,
                &object.name_any(),
                &object.uid().unwrap_or_default(),
                position,
                finalizer,
            )
            .await
        }
        None => Ok(true),
    }
}

/// Removes `finalizer`, which is at `position` in the list, from the object with this UID. Returns
/// `true` if the object does not have it any more, or is gone; `false` if the list or the object
/// has changed, which a watch reports.
///
/// Others may add finalizers to the end of the list, and change the rest of the object.
pub async fn remove_finalizer_at<K>(
    api: &Api<K>,
    name: &str,
    uid: &str,
    position: usize,
    finalizer: &str,
) -> kube::Result<bool>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let patch: Patch<()> = Patch::Json(finalizer_removal(uid, position, finalizer));
    let answer = api.patch(name, &PatchParams::default(), &patch).await;
    let refused = matches!(&answer, Err(kube::Error::Api(status)) if status.is_invalid());
    if refused && let Some(live) = api.get_opt(name).await? {
        let is_as_read = live.meta().uid.as_deref() == Some(uid)
            && finalizer_position(live.meta(), finalizer) == Some(position);
        if is_as_read {
            // No test failed: the API server refuses the object itself, so no watch will report a
            // change.
            return answer.map(|_| false);
        }
    }
    is_without(answer, finalizer)
}

pub fn finalizer_position(metadata: &ObjectMeta, finalizer: &str) -> Option<usize> {
    metadata
        .finalizers
        .iter()
        .flatten()
        .position(|name| name == finalizer)
}

fn finalizer_removal(uid: &str, position: usize, finalizer: &str) -> Operations {
    let (uid_path, index) = (
        PointerBuf::from_tokens(["metadata", "uid"]),
        position.to_string(),
    );
    let path = PointerBuf::from_tokens(["metadata", "finalizers", index.as_str()]);
    Operations(vec![
        PatchOperation::Test(TestOperation {
            path: uid_path,
            value: json!(uid),
        }),
        PatchOperation::Test(TestOperation {
            path: path.clone(),
            value: json!(finalizer),
        }),
        PatchOperation::Remove(RemoveOperation { path }),
    ])
}

fn is_without<K: Resource>(answer: kube::Result<K>, finalizer: &str) -> kube::Result<bool> {
    match answer {
        // The list may have contained it twice.
        Ok(object) => Ok(finalizer_position(object.meta(), finalizer).is_none()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(true),
        // A test that fails makes the patch invalid.
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_invalid() => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::Value;

    use super::*;

    fn refusal(code: u16, reason: &str) -> kube::Error {
        kube::Error::Api(Box::new(Status {
            code,
            reason: reason.to_owned(),
            ..Status::default()
        }))
    }

    fn metadata(finalizers: &Value) -> ObjectMeta {
        serde_json::from_value(json!({ "finalizers": finalizers })).unwrap()
    }

    fn after(object: &Value, uid: &str) -> Option<Value> {
        let position = finalizer_position(&metadata(&json!(["other", "ours"])), "ours").unwrap();
        let mut object = object.clone();
        json_patch::patch(&mut object, &finalizer_removal(uid, position, "ours"))
            .ok()
            .map(|()| object)
    }

    #[test]
    fn our_finalizer_goes_and_those_of_others_stay_whatever_they_do_meanwhile() {
        let object = |list: Value| json!({ "metadata": { "uid": "u", "finalizers": list } });
        assert_eq!(
            after(&object(json!(["other", "ours"])), "u"),
            Some(object(json!(["other"])))
        );
        assert_eq!(
            after(&object(json!(["other", "ours", "new"])), "u"),
            Some(object(json!(["other", "new"])))
        );
        // Tried again when the new position is known.
        assert_eq!(after(&object(json!(["ours"])), "u"), None);
        assert_eq!(after(&object(json!(["new", "other", "ours"])), "u"), None);
        assert_eq!(after(&object(json!(["other", "ours"])), "another"), None);
        assert_eq!(after(&json!({ "metadata": { "uid": "u" } }), "u"), None);
    }

    #[test]
    fn our_finalizer_is_off_when_the_answer_shows_none_or_the_object_is_gone() {
        let patched = |list: Value| {
            let object = ConfigMap {
                metadata: metadata(&list),
                ..ConfigMap::default()
            };
            is_without(Ok(object), "ours").unwrap()
        };
        assert!(patched(json!(null)) && patched(json!(["other"])));
        assert!(!patched(json!(["ours"])), "the list held it twice");
        let refused = |code: u16, reason: &str| {
            is_without::<ConfigMap>(Err(refusal(code, reason)), "ours").ok()
        };
        assert_eq!(refused(404, "NotFound"), Some(true));
        assert_eq!(
            refused(409, "Conflict"),
            Some(false),
            "the object is another one by now"
        );
        assert_eq!(
            refused(422, "Invalid"),
            Some(false),
            "the list is another one by now"
        );
        assert_eq!(
            (refused(403, "Forbidden"), refused(500, "InternalError")),
            (None, None)
        );
    }

    /// An API server that answers one request after another with these codes.
    fn api(codes: &'static [u16]) -> Api<ConfigMap> {
        let codes = std::sync::Arc::new(parking_lot::Mutex::new(codes.iter()));
        let answer = move |_: http::Request<kube::client::Body>| {
            let code = *codes.lock().next().unwrap();
            let reason = if code == 409 {
                "AlreadyExists"
            } else {
                "NotFound"
            };
            let object = json!({ "metadata": { "name": "a" }, "code": code, "reason": reason });
            let body = kube::client::Body::from(object.to_string().into_bytes());
            std::future::ready(Ok::<_, std::convert::Infallible>(
                http::Response::builder().status(code).body(body).unwrap(),
            ))
        };
        Api::namespaced(kube::Client::new(tower::service_fn(answer), "liqo"), "liqo")
    }

    #[tokio::test]
    async fn the_caller_learns_whether_it_created_the_object() {
        let object: ConfigMap =
            serde_json::from_value(json!({ "metadata": { "name": "a" } })).unwrap();
        assert!(
            !create_missing(&api(&[200]), &object).await.unwrap().1,
            "it exists"
        );
        assert!(create_missing(&api(&[404, 201]), &object).await.unwrap().1);
        assert!(
            !create_missing(&api(&[404, 409, 200]), &object)
                .await
                .unwrap()
                .1,
            "somebody else was faster"
        );
    }

    #[test]
    fn an_object_without_our_finalizer_has_no_position_for_it() {
        assert_eq!(finalizer_position(&metadata(&json!(null)), "ours"), None);
        assert_eq!(
            finalizer_position(&metadata(&json!(["other"])), "ours"),
            None
        );
    }

    #[test]
    fn only_a_request_that_names_its_object_takes_a_conflict_for_another_object() {
        let gone = |code: u16, reason: &str| unless_gone(Err::<(), _>(refusal(code, reason))).ok();
        let changed = |code: u16, reason: &str| {
            unless_changed(Err::<(), _>(PeerError::Api(refusal(code, reason)))).ok()
        };
        assert_eq!(
            (gone(404, "NotFound"), changed(404, "NotFound")),
            (Some(None), Some(None))
        );
        assert_eq!(
            (gone(409, "Conflict"), changed(409, "Conflict")),
            (None, Some(None))
        );
        assert_eq!(
            (gone(403, "Forbidden"), changed(403, "Forbidden")),
            (None, None)
        );
        assert_eq!(unless_changed(Err::<(), _>(PeerError::Timeout)).ok(), None);
    }

    #[test]
    fn an_error_names_the_object_or_the_namespace_that_it_is_about() {
        let text = |key: Key| {
            Err::<(), _>(refusal(403, "Forbidden"))
                .step("read", "Secret", key)
                .unwrap_err()
                .to_string()
        };
        assert!(text(Key::new("liqo", "a")).starts_with("cannot read Secret liqo/a: "));
        assert!(text(Key::new("", "a")).starts_with("cannot read Secret a: "));
        assert!(text(Key::new("liqo", "")).starts_with("cannot read Secret in namespace liqo: "));
    }
}

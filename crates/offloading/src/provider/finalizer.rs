//! One finalizer among those of others.

use json_patch::{Patch, PatchOperation, RemoveOperation, TestOperation, jsonptr::PointerBuf};
use kube::Resource;
use serde_json::json;

/// Where this finalizer stands in an object's list.
pub fn position(finalizers: Option<&Vec<String>>, ours: &str) -> Option<usize> {
    finalizers?.iter().position(|name| name == ours)
}

/// Takes our finalizer, which stands at `position`, off the object with this UID. The API server does nothing and says so
/// where the object is another one by now, or its list: others write there too.
pub fn removal(uid: &str, position: usize, ours: &str) -> kube::api::Patch<()> {
    let (of_uid, index) = (PointerBuf::from_tokens(["metadata", "uid"]), position.to_string());
    let of_ours = PointerBuf::from_tokens(["metadata", "finalizers", index.as_str()]);
    kube::api::Patch::Json(Patch(vec![
        PatchOperation::Test(TestOperation { path: of_uid, value: json!(uid) }),
        PatchOperation::Test(TestOperation { path: of_ours.clone(), value: json!(ours) }),
        PatchOperation::Remove(RemoveOperation { path: of_ours }),
    ]))
}

/// Whether the object is without our finalizer, by the answer to its [`removal`]. It is not where the API server did nothing,
/// and where the finalizer stood there more than once.
pub fn is_off<K: Resource>(answer: kube::Result<K>, ours: &str) -> kube::Result<bool> {
    match answer {
        Ok(object) => Ok(position(object.meta().finalizers.as_ref(), ours).is_none()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(true),
        // A test that fails makes the patch invalid; there is no conflict then.
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_invalid() => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::Status;
    use serde_json::Value;

    use super::*;

    fn after(object: &Value, uid: &str) -> Option<Value> {
        let known = vec!["other".to_owned(), "ours".to_owned()];
        let kube::api::Patch::Json(patch) = removal(uid, position(Some(&known), "ours").unwrap(), "ours") else { unreachable!() };
        let mut object = object.clone();
        json_patch::patch(&mut object, &patch).ok().map(|()| object)
    }

    #[test]
    fn our_finalizer_goes_and_those_of_others_stay_whatever_they_do_meanwhile() {
        let object = |list: Value| json!({ "metadata": { "uid": "u", "finalizers": list } });
        assert_eq!(after(&object(json!(["other", "ours"])), "u"), Some(object(json!(["other"]))));
        assert_eq!(after(&object(json!(["other", "ours", "new"])), "u"), Some(object(json!(["other", "new"]))));
        // Tried again when it is known where ours stands now.
        assert_eq!(after(&object(json!(["ours"])), "u"), None);
        assert_eq!(after(&object(json!(["new", "other", "ours"])), "u"), None);
        assert_eq!(after(&object(json!(["other", "ours"])), "another"), None);
        assert_eq!(after(&json!({ "metadata": { "uid": "u" } }), "u"), None);
    }

    #[test]
    fn our_finalizer_is_off_when_the_answer_shows_none_or_the_object_is_gone() {
        let patched = |list: Value| {
            let object: ConfigMap = serde_json::from_value(json!({ "metadata": { "finalizers": list } })).unwrap();
            is_off(Ok(object), "ours").unwrap()
        };
        assert!(patched(json!(null)) && patched(json!(["other"])));
        assert!(!patched(json!(["ours"])), "it stood there twice");
        let refused = |code: u16, reason: &str| {
            let status = Status { code, reason: reason.to_owned(), ..Status::default() };
            is_off::<ConfigMap>(Err(kube::Error::Api(Box::new(status))), "ours").ok()
        };
        assert_eq!(refused(404, "NotFound"), Some(true));
        assert_eq!(refused(409, "Conflict"), Some(false), "the object is another one by now");
        assert_eq!(refused(422, "Invalid"), Some(false), "the list is another one by now");
        assert_eq!((refused(403, "Forbidden"), refused(500, "InternalError")), (None, None));
    }

    #[test]
    fn who_does_not_hold_an_object_has_no_place_in_its_list() {
        assert_eq!(position(None, "ours"), None);
        assert_eq!(position(Some(&vec!["other".to_owned()]), "ours"), None);
    }
}

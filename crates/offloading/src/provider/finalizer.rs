//! One finalizer among those of others.

use json_patch::{Patch, PatchOperation, RemoveOperation, TestOperation, jsonptr::PointerBuf};
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

#[cfg(test)]
mod tests {
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
    fn who_does_not_hold_an_object_has_no_place_in_its_list() {
        assert_eq!(position(None, "ours"), None);
        assert_eq!(position(Some(&vec!["other".to_owned()]), "ours"), None);
    }
}

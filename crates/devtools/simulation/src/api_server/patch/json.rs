//! JSON patches (RFC 6902). As in Kubernetes' library, `replace` adds a missing key.

use json_patch::{AddOperation, PatchOperation, ReplaceOperation};
use serde_json::Value;

use super::{Failure, json_type};

pub fn apply(mut object: Value, patch: &Value) -> Result<Value, Failure> {
    let undecodable = |value: &Value, wanted: &str| {
        let found = json_type(value);
        Failure::bad_request(format!(
            "error decoding patch: json: cannot unmarshal {found} into Go value of type {wanted}"
        ))
    };
    let operations = match patch {
        Value::Array(operations) => operations.as_slice(),
        Value::Null => &[],
        other => return Err(undecodable(other, "[]handlers.jsonPatchOp")),
    };
    if let Some(wrong) = operations.iter().find(|operation| !operation.is_object()) {
        return Err(undecodable(wrong, "handlers.jsonPatchOp"));
    }
    for operation in operations {
        apply_operation(&mut object, operation).ok_or_else(Failure::unfit_patch)?;
    }
    Ok(object)
}

/// Returns `None` if the operation is none, or does not apply.
fn apply_operation(object: &mut Value, operation: &Value) -> Option<()> {
    let operation = match serde_json::from_value(operation.clone()).ok()? {
        // The library ignores a scalar in the place of the whole object.
        PatchOperation::Replace(ReplaceOperation { path, value })
            if path.is_root() && !value.is_object() && !value.is_array() =>
        {
            return Some(());
        }
        PatchOperation::Replace(replace) if object.pointer(replace.path.as_str()).is_none() => {
            let parent = replace.path.parent()?;
            object
                .pointer(parent.as_str())
                .filter(|parent| parent.is_object())?;
            PatchOperation::Add(AddOperation {
                path: replace.path,
                value: replace.value,
            })
        }
        other => other,
    };
    json_patch::patch_unsafe(object, &[operation]).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_json_patch_does_as_the_library_of_kubernetes() {
        let original = json!({ "a": { "b/c": [1, 2, 3] } });
        let list = |patch: Value| apply(original.clone(), &patch).unwrap()["a"]["b/c"].clone();
        assert_eq!(
            list(json!([{ "op": "add", "path": "/a/b~1c/-", "value": 4 }])),
            json!([1, 2, 3, 4])
        );
        assert_eq!(
            list(json!([{ "op": "add", "path": "/a/b~1c/1", "value": 4 }])),
            json!([1, 4, 2, 3])
        );
        assert_eq!(
            list(json!([{ "op": "move", "from": "/a/b~1c/0", "path": "/a/b~1c/-" }])),
            json!([2, 3, 1])
        );
        let replaced = apply(
            original,
            &json!([{ "op": "replace", "path": "/x", "value": 1 }]),
        )
        .unwrap();
        assert_eq!(replaced["x"], 1);
    }

    #[test]
    fn a_json_patch_that_does_not_apply_is_refused() {
        let refused = |patch: Value| apply(json!({ "a": [1] }), &patch).unwrap_err();
        for (op, path) in [
            ("test", "/a/0"),
            ("remove", "/b"),
            ("add", "/b/c"),
            ("replace", "/a/4"),
            ("add", "/a/4"),
            ("turn", "/a"),
            ("add", "a"),
        ] {
            assert_eq!(
                refused(json!([{ "op": op, "path": path, "value": 2 }])),
                Failure::unfit_patch(),
                "{op} {path}"
            );
        }
        let undecodable = "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp";
        assert_eq!(refused(json!({})), Failure::bad_request(undecodable));
    }
}

//! Settings that the provider adds to containers that do not choose them themselves: the runtime's
//! seccomp profile, and no raw sockets, with which a container could forge packets on its node's
//! network.

use serde_json::{Map, Value, json};

use crate::pod::carry::amounts::edit_object;
use crate::views::{CapabilitiesView, ContainerList, NamedView};

/// The capability for raw sockets.
const NET_RAW: &str = "NET_RAW";

/// Completes the security context of a pod, and those of its containers.
pub(super) fn harden_pod(spec: &mut Map<String, Value>) {
    if spec.get("os").and_then(|os| NamedView::of(os).name()) == Some("windows") {
        return;
    }
    edit_object(spec, "securityContext", |context| {
        if context.get("seccompProfile").is_none_or(Value::is_null) {
            context.insert(
                "seccompProfile".to_owned(),
                json!({ "type": "RuntimeDefault" }),
            );
        }
    });
    harden_containers(spec);
}

/// The same for containers of a pod that exists.
pub(super) fn harden_containers(spec: &mut Map<String, Value>) {
    for list in ContainerList::ALL {
        let containers = spec
            .get_mut(list.spec_field())
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            edit_object(container, "securityContext", drop_raw_sockets);
        }
    }
}

/// Drops the capability, unless the container asks for it: then Pod Security in the namespace
/// decides.
fn drop_raw_sockets(context: &mut Map<String, Value>) {
    let names_raw_sockets = context.get("capabilities").is_some_and(|capabilities| {
        let capabilities = CapabilitiesView::of(capabilities);
        [capabilities.add(), capabilities.drop()]
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .any(|one| [NET_RAW, "CAP_NET_RAW", "ALL"].contains(&one))
    });
    if context.get("privileged") == Some(&Value::Bool(true)) || names_raw_sockets {
        return;
    }
    edit_object(context, "capabilities", |capabilities| {
        if let Some(dropped) = capabilities.get_mut("drop").and_then(Value::as_array_mut) {
            dropped.push(NET_RAW.into());
        } else {
            capabilities.insert("drop".to_owned(), json!([NET_RAW]));
        }
    });
}

#[cfg(test)]
#[allow(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
mod tests {
    use super::*;

    /// The capabilities of a container with this security context.
    fn capabilities(context: Value) -> Value {
        let mut spec = json!({ "containers": [{ "name": "c", "securityContext": context }] });
        harden_pod(spec.as_object_mut().unwrap());
        spec["containers"][0]["securityContext"]
            .get("capabilities")
            .cloned()
            .unwrap_or_default()
    }

    #[test]
    fn a_container_that_says_nothing_has_no_raw_sockets_and_the_runtimes_seccomp_profile() {
        let mut spec = json!({ "containers": [{}], "initContainers": [{}], "securityContext": { "runAsUser": 1 } });
        harden_pod(spec.as_object_mut().unwrap());
        for list in ["containers", "initContainers"] {
            assert_eq!(
                spec[list][0],
                json!({ "securityContext": { "capabilities": { "drop": ["NET_RAW"] } } })
            );
        }
        assert_eq!(
            spec["securityContext"],
            json!({ "runAsUser": 1, "seccompProfile": { "type": "RuntimeDefault" } })
        );
        let others =
            capabilities(json!({ "capabilities": { "add": ["CHOWN"], "drop": ["MKNOD"] } }));
        assert_eq!(
            others,
            json!({ "add": ["CHOWN"], "drop": ["MKNOD", "NET_RAW"] })
        );
    }

    #[test]
    fn what_a_pod_chooses_itself_stays() {
        for chosen in [
            json!({ "drop": ["ALL"] }),
            json!({ "add": ["NET_RAW"] }),
            json!({ "drop": ["CAP_NET_RAW"] }),
        ] {
            assert_eq!(capabilities(json!({ "capabilities": chosen })), chosen);
        }
        assert_eq!(capabilities(json!({ "privileged": true })), json!(null));
        let local = json!({ "type": "Localhost", "localhostProfile": "p" });
        let mut spec = json!({ "containers": [], "securityContext": { "seccompProfile": local } });
        harden_pod(spec.as_object_mut().unwrap());
        assert_eq!(spec["securityContext"]["seccompProfile"], local);
        let windows = json!({ "os": { "name": "windows" }, "containers": [{}] });
        let mut spec = windows.clone();
        harden_pod(spec.as_object_mut().unwrap());
        assert_eq!(spec, windows);
    }
}

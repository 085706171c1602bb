//! Which Services and Ingresses of an offloaded namespace are reflected.

use crate::{Reflection, annotations, labels};
use k8s_openapi::api::core::v1::Service;
use kube::{Resource, ResourceExt as _};

/// Whether this Service may be reflected, if its namespace is offloaded and [`passes_list`]. Not
/// reflected are the Service `kubernetes`, which every cluster has, and Services that a user
/// denies.
pub fn is_reflected(service: &Service) -> bool {
    let is_api_server =
        service.namespace().as_deref() == Some("default") && service.name_any() == "kubernetes";
    !(is_api_server || is_denied(service))
}

/// Whether this Service only names another host: no pods are behind it.
pub fn is_external_name(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("ExternalName")
}

/// Whether the user excludes this object from reflection, by annotation.
pub fn is_denied(object: &impl Resource) -> bool {
    says(object, "deny") || is_marked(object, annotations::SKIP_REFLECTION)
}

/// Whether Liqo created this object for itself: in a mapped namespace, what isolates the pods of
/// its consumer. It does not travel.
pub fn is_own(object: &impl Resource) -> bool {
    has_true_label(object, labels::MANAGED) && !has_true_label(object, labels::REFLECTED)
}

fn has_true_label(object: &impl Resource, label: &str) -> bool {
    object
        .labels()
        .get(label)
        .is_some_and(|value| value == "true")
}

/// Whether this object is a replica of one in another cluster.
pub fn is_replica(object: &impl Resource) -> bool {
    object
        .labels()
        .get(labels::REFLECTED)
        .is_some_and(|value| value == "true")
}

/// Whether the user allows this object to be reflected, by annotation.
pub fn is_allowed(object: &impl Resource) -> bool {
    says(object, "allow") || is_marked(object, annotations::ALLOW_REFLECTION)
}

fn says(object: &impl Resource, word: &str) -> bool {
    let said = object.annotations().get(annotations::REFLECTION);
    said.is_some_and(|said| said == word)
}

/// Whether an object has an annotation with any value but `false`, as Liqo's earlier versions read
/// them.
fn is_marked(object: &impl Resource, annotation: &str) -> bool {
    let value = object.annotations().get(annotation);
    value.is_some_and(|value| !value.eq_ignore_ascii_case("false"))
}

/// Whether an object that is not denied is reflected from a namespace with this kind of list.
pub fn passes_list(list: Reflection, is_allowed: bool) -> bool {
    match list {
        Reflection::DenyList => true,
        Reflection::AllowList => is_allowed,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(namespace: &str, name: &str, kind: &str, reflection: &str) -> Service {
        serde_json::from_value(json!({
            "metadata": { "namespace": namespace, "name": name, "annotations": { annotations::REFLECTION: reflection } },
            "spec": { "type": kind },
        }))
        .unwrap()
    }

    #[test]
    fn services_are_reflected_unless_they_are_useless_there_or_denied() {
        assert!(is_reflected(&service("shop", "web", "ClusterIP", "allow")));
        assert!(is_reflected(&service("shop", "kubernetes", "NodePort", "")));
        assert!(!is_reflected(&service(
            "default",
            "kubernetes",
            "ClusterIP",
            ""
        )));
        assert!(is_reflected(&service("shop", "web", "ExternalName", "")));
        assert!(!is_reflected(&service("shop", "web", "ClusterIP", "deny")));
    }

    #[test]
    fn the_annotations_of_earlier_versions_mean_what_they_meant() {
        let service = |annotation: &str, value: &str| -> Service {
            let annotations = json!({ annotation: value });
            serde_json::from_value(json!({ "metadata": { "annotations": annotations } })).unwrap()
        };
        for (value, counts) in [
            ("true", true),
            ("", true),
            ("false", false),
            ("False", false),
        ] {
            let skipped = service(annotations::SKIP_REFLECTION, value);
            assert_eq!(is_reflected(&skipped), !counts, "{value:?}");
            let allowed = service(annotations::ALLOW_REFLECTION, value);
            assert_eq!(is_allowed(&allowed), counts, "{value:?}");
        }
    }

    #[test]
    fn a_service_of_type_external_name_has_no_pods() {
        let is_external_name = |kind: &str| is_external_name(&service("shop", "web", kind, ""));
        assert!(
            is_external_name("ExternalName")
                && !is_external_name("ClusterIP")
                && !is_external_name("")
        );
    }

    #[test]
    fn with_an_allow_list_only_allowed_objects_are_reflected() {
        let passes = |list, said: &str| {
            passes_list(list, is_allowed(&service("shop", "web", "ClusterIP", said)))
        };
        assert!(passes(Reflection::DenyList, "") && passes(Reflection::DenyList, "allow"));
        assert!(!passes(Reflection::AllowList, "") && passes(Reflection::AllowList, "allow"));
    }
}

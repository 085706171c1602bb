//! What of an offloaded namespace other clusters get to know.

use k8s_openapi::api::core::v1::Service;
use kube::{Resource, ResourceExt as _};
use liqo_api::{Reflection, annotations};

/// Whether this Service is reflected, where its namespace is and [`passes`] does not say otherwise. The API server's own is everybody's
/// already, one that is but another name for something outside needs nobody's help, and users keep single ones at home.
pub fn is_reflected(service: &Service) -> bool {
    let is_api_server = service.namespace().as_deref() == Some("default") && service.name_any() == "kubernetes";
    let is_other_name = service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("ExternalName");
    !(is_api_server || is_other_name || is_denied(service))
}

/// Whether its users keep this object at home.
pub fn is_denied(object: &impl Resource) -> bool {
    object.annotations().get(annotations::REFLECTION).is_some_and(|value| value == "deny")
}

/// Whether its users let this object go wherever its namespace is.
pub fn is_allowed(object: &impl Resource) -> bool {
    object.annotations().get(annotations::REFLECTION).is_some_and(|value| value == "allow")
}

/// Whether an object that nobody denies is reflected from a namespace with such a list.
pub fn passes(list: Reflection, is_allowed: bool) -> bool {
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
    fn every_service_is_reflected_but_those_that_cannot_or_shall_not_be() {
        assert!(is_reflected(&service("shop", "web", "ClusterIP", "allow")));
        assert!(is_reflected(&service("shop", "kubernetes", "NodePort", "")));
        assert!(!is_reflected(&service("default", "kubernetes", "ClusterIP", "")));
        assert!(!is_reflected(&service("shop", "web", "ExternalName", "")));
        assert!(!is_reflected(&service("shop", "web", "ClusterIP", "deny")));
    }

    #[test]
    fn where_there_is_an_allow_list_only_what_is_on_it_is_reflected() {
        let passes = |list, said: &str| passes(list, is_allowed(&service("shop", "web", "ClusterIP", said)));
        assert!(passes(Reflection::DenyList, "") && passes(Reflection::DenyList, "allow"));
        assert!(!passes(Reflection::AllowList, "") && passes(Reflection::AllowList, "allow"));
    }
}

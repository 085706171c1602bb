//! Which Services of an offloaded namespace other clusters get to see.

use k8s_openapi::api::core::v1::Service;
use liqo_api::annotations;

/// Whether a Service of an offloaded namespace, and its endpoints, are shown to other clusters. Not the API server's own, nor a
/// mere name for something elsewhere, nor one that its owner keeps at home.
pub fn is_reflected(service: &Service) -> bool {
    let meta = &service.metadata;
    let is_the_api_servers = (meta.namespace.as_deref(), meta.name.as_deref()) == (Some("default"), Some("kubernetes"));
    let is_a_mere_name = service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("ExternalName");
    let said = meta.annotations.as_ref().and_then(|all| all.get(annotations::REFLECTION));
    !is_the_api_servers && !is_a_mere_name && said.is_none_or(|said| said != "deny")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "JSON literals are written in place")]
    fn reflected(namespace: &str, annotations: Value, spec: Value) -> bool {
        let service =
            json!({ "metadata": { "namespace": namespace, "name": "kubernetes", "annotations": annotations }, "spec": spec });
        is_reflected(&serde_json::from_value(service).unwrap())
    }

    #[test]
    fn every_service_is_shown_but_the_api_servers_mere_names_and_those_that_are_denied() {
        assert!(reflected("demo", json!({}), json!({ "type": "LoadBalancer" })));
        assert!(reflected("demo", json!({ "liqo.io/reflection": "allow" }), json!(null)));
        assert!(!reflected("default", json!({}), json!({})));
        assert!(!reflected("demo", json!({}), json!({ "type": "ExternalName" })));
        assert!(!reflected("demo", json!({ "liqo.io/reflection": "deny" }), json!({})));
    }
}

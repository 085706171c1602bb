//! The objects that the provider puts into mapped namespaces.

use liqo_api::{
    ClusterId, consumer_service_account,
    peer_namespace::{PeerNamespace, PeerNamespaceKind},
    roles,
};
use serde_json::{Value, json};

use crate::json::{managed_object, set_at};
use crate::pod::consumer_policy::ENFORCE;
use crate::replica::isolation;

/// Name of the manager's `ServiceAccount`.
const MANAGER: &str = liqo_api::CONTROLLER_MANAGER;

/// The namespace itself. It has its labels from the start, because nobody may add them to an
/// existing namespace.
pub fn namespace_object(name: &str, consumer: &ClusterId, home: &str, level: &str) -> Value {
    let mapped = PeerNamespace {
        peer: consumer.clone(),
        kind: PeerNamespaceKind::Mapped {
            home: home.to_owned(),
        },
    };
    let mut labels = mapped.labels();
    labels.insert(ENFORCE.to_owned(), level.to_owned());
    labels.insert(
        "pod-security.kubernetes.io/warn".to_owned(),
        "restricted".to_owned(),
    );
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": { "name": name, "labels": labels },
    })
}

/// The contents of a mapped namespace, in the order of creation: the manager's own rights first.
/// `replica::isolation` adds the `NetworkPolicy`s.
pub fn namespace_contents(
    name: &str,
    consumer: &ClusterId,
    system_namespace: &str,
    default_requests: &[(String, String)],
) -> Vec<Value> {
    vec![
        role_binding(
            name,
            "liqo-manager",
            roles::OWN_NAMESPACE,
            system_namespace,
            MANAGER,
        ),
        limit_range(name, default_requests),
        isolation::closed_policy_object(name),
        role_binding(
            name,
            roles::TENANT_POD_ACCESS,
            roles::TENANT_POD_ACCESS,
            system_namespace,
            &consumer_service_account(consumer),
        ),
    ]
}

fn role_binding(
    namespace: &str,
    name: &str,
    role: &str,
    account_namespace: &str,
    account: &str,
) -> Value {
    let mut binding = managed_object(
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        namespace,
        name,
    );
    let role =
        json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role });
    set_at(&mut binding, &["roleRef"], role);
    let account =
        json!({ "kind": "ServiceAccount", "name": account, "namespace": account_namespace });
    set_at(&mut binding, &["subjects"], json!([account]));
    binding
}

/// Requests of containers that have none, so that no pod is free.
fn limit_range(namespace: &str, default_requests: &[(String, String)]) -> Value {
    let defaults: serde_json::Map<String, Value> = default_requests
        .iter()
        .map(|(resource, amount)| (resource.clone(), amount.as_str().into()))
        .collect();
    let mut range = managed_object("v1", "LimitRange", namespace, "liqo");
    set_at(
        &mut range,
        &["spec"],
        json!({ "limits": [{ "type": "Container", "defaultRequest": defaults }] }),
    );
    range
}

/// Whether an object contains everything that is wanted. Additions by others do not matter.
pub fn contains_wanted(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted.iter().all(|(key, value)| {
            live.get(key)
                .is_some_and(|live| contains_wanted(live, value))
        }),
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len()
                && live
                    .iter()
                    .zip(wanted)
                    .all(|(live, wanted)| contains_wanted(live, wanted))
        }
        (live, wanted) => live == wanted,
    }
}

#[cfg(test)]
mod tests {
    use liqo_api::labels;

    use super::*;
    use crate::fixtures::consumer;

    #[test]
    fn a_namespace_has_its_labels_and_its_isolation_from_the_start() {
        let labels = &namespace_object("demo-rome-aaaaaa", &consumer(), "demo", "restricted")["metadata"]
            ["labels"];
        assert_eq!(labels[labels::CONSUMER_ID], consumer().as_str());
        assert_eq!(labels["pod-security.kubernetes.io/enforce"], "restricted");
        assert_eq!(
            (&labels[labels::MANAGED], &labels[labels::NAMESPACE_KIND]),
            (&json!("true"), &json!("mapped"))
        );
    }

    #[test]
    fn the_consumer_gets_only_access_to_pods_and_the_managers_rights_come_first() {
        let contents = namespace_contents(
            "demo-rome-aaaaaa",
            &consumer(),
            "liqo",
            &[("cpu".into(), "10m".into())],
        );
        let subjects: Vec<(&Value, &Value)> = contents
            .iter()
            .filter(|object| object["kind"] == "RoleBinding")
            .map(|b| (&b["roleRef"]["name"], &b["subjects"][0]["name"]))
            .collect();
        let account = json!(consumer_service_account(&consumer()));
        assert_eq!(
            subjects,
            [
                (&json!("liqo-own-namespace"), &json!(MANAGER)),
                (&json!("liqo-tenant-pod-access"), &account)
            ]
        );
        assert_eq!(contents[0]["roleRef"]["name"], "liqo-own-namespace");
        assert!(
            contents
                .iter()
                .all(|object| object["metadata"]["namespace"] == "demo-rome-aaaaaa")
        );
    }

    #[test]
    fn what_others_added_to_an_object_does_not_matter_and_what_they_changed_does() {
        let wanted = json!({ "spec": { "a": [1, { "b": 2 }] } });
        assert!(contains_wanted(
            &json!({ "spec": { "a": [1, { "b": 2, "c": 3 }] }, "status": {} }),
            &wanted
        ));
        assert!(!contains_wanted(
            &json!({ "spec": { "a": [1, { "b": 3 }] } }),
            &wanted
        ));
        assert!(!contains_wanted(
            &json!({ "spec": { "a": [1, { "b": 2 }, 3] } }),
            &wanted
        ));
        assert!(!contains_wanted(&json!({}), &wanted));
    }
}

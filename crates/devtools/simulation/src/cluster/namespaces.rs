//! Namespaces: what each one has from the beginning, and how they end.

use serde_json::{Value, json};

use super::{
    Write,
    fields::{is_ending, items, name},
    plan::Plan,
    snapshot::Snapshot,
};

pub fn run(snapshot: &Snapshot, plan: &mut Plan) {
    let mut resources = None;
    for namespace in snapshot.list("namespaces") {
        if is_ending(&namespace) {
            let resources = resources.get_or_insert_with(|| snapshot.resources());
            empty(snapshot, &namespace, resources, plan);
        } else {
            furnish(snapshot, name(&namespace), plan);
        }
    }
}

fn furnish(snapshot: &Snapshot, namespace: &str, plan: &mut Plan) {
    let metadata = |name: &str| json!({ "name": name, "namespace": namespace });
    if snapshot
        .get("configmaps", namespace, "kube-root-ca.crt")
        .is_none()
    {
        let data = json!({ "ca.crt": "-----BEGIN CERTIFICATE-----\nc2ltdWxhdGlvbg==\n-----END CERTIFICATE-----\n" });
        let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("kube-root-ca.crt"), "data": data });
        plan.create("configmaps", object);
    }
    if snapshot
        .get("serviceaccounts", namespace, "default")
        .is_none()
    {
        let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata("default") });
        plan.create("serviceaccounts", account);
    }
}

/// Deletes all content, and lets the namespace go when nothing is left.
fn empty(snapshot: &Snapshot, namespace: &Value, resources: &[String], plan: &mut Plan) {
    let mut is_empty = true;
    for resource in resources {
        for object in snapshot.list_in(resource, name(namespace)) {
            is_empty = false;
            if !is_ending(&object) {
                plan.delete_with(resource, &object, None, Some("Background"));
            }
        }
    }
    let finalizers = items(&namespace["spec"]["finalizers"]);
    if is_empty && finalizers.iter().any(|finalizer| finalizer == "kubernetes") {
        let mut object = namespace.clone();
        object["spec"]["finalizers"] = finalizers
            .iter()
            .filter(|finalizer| *finalizer != "kubernetes")
            .cloned()
            .collect();
        plan.push(Write::Finalize { object });
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Objects as _,
            testing::{Cluster, pod},
        },
        *,
    };

    #[test]
    fn a_namespace_has_its_account_from_the_beginning() {
        let cluster = Cluster::with_nodes(&[]);
        assert!(
            cluster
                .get("serviceaccounts", "default", "default")
                .is_some()
        );
        assert!(
            cluster
                .get("configmaps", "default", "kube-root-ca.crt")
                .is_some()
        );
    }

    #[test]
    fn a_namespace_ends_when_its_content_has() {
        let mut cluster = Cluster::with_nodes(&["n1"]);
        cluster.add(
            "pods",
            pod(
                "slow",
                &json!({ "simulation.test/stop-seconds": "20" }),
                &json!({}),
            ),
        );
        cluster.add(
            "configmaps",
            json!({ "metadata": { "name": "held", "finalizers": ["example.com/hold"] } }),
        );
        cluster.pass(5);
        cluster.delete("namespaces", "default", None);
        cluster.pass(10);
        assert_eq!(
            (
                cluster.pods().len(),
                cluster.list("configmaps", "default").len()
            ),
            (1, 1)
        );
        cluster.pass(20);
        assert!(cluster.pods().is_empty() && !cluster.object("namespaces", "default").is_null());
        cluster.change("configmaps", "held", |held| {
            held["metadata"]["finalizers"] = json!([]);
        });
        cluster.settle();
        assert!(cluster.object("namespaces", "default").is_null());
    }
}

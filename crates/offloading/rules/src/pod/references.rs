//! Which `ConfigMap`s and `Secret`s a pod names: only these are reflected for it.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::json::{items, text};
use crate::pod::local_status::EPHEMERAL_CONTAINERS;

/// The `ConfigMap` that every cluster's own controller manager writes into every namespace, and restores: it would overwrite a
/// replica again and again.
pub const ROOT_CA: &str = "kube-root-ca.crt";

const PULL_SECRETS: &str = "/spec/imagePullSecrets";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct References {
    pub config_maps: BTreeSet<String>,
    pub secrets: BTreeSet<String>,
}

/// The objects that a pod names in `env`, `envFrom`, volumes, projected volumes and `imagePullSecrets`.
///
/// Optional references count like the others: an object that is not there yet is reflected when it appears.
pub fn refs(pod: &Value) -> References {
    let mut found = named(pod, &["/spec/containers", "/spec/initContainers", EPHEMERAL_CONTAINERS], &|_| true);
    found.secrets.extend(pull_secrets(pod).into_iter().filter(|name| !name.is_empty()));
    found
}

/// The Secrets in a pod's `imagePullSecrets`.
pub fn pull_secrets(pod: &Value) -> BTreeSet<String> {
    items(pod, PULL_SECRETS).iter().filter_map(|secret| text(secret, "/name")).map(str::to_owned).collect()
}

/// Leaves these Secrets out of a pod's `imagePullSecrets`.
pub fn leave_out_pull_secrets(pod: &mut Value, left_out: &BTreeSet<String>) {
    if let Some(secrets) = pod.pointer_mut(PULL_SECRETS).and_then(Value::as_array_mut) {
        secrets.retain(|secret| text(secret, "/name").is_none_or(|name| !left_out.contains(name)));
    }
}

/// The objects without which its containers do not start: neither optional ones nor those of `imagePullSecrets`. Ephemeral
/// containers do not count, because the others start without them.
pub fn required(pod: &Value) -> References {
    named(pod, &["/spec/containers", "/spec/initContainers"], &|reference| reference.get("optional") != Some(&Value::Bool(true)))
}

/// The objects in volumes and projected volumes, and in `env` and `envFrom` of these lists of containers, from references that count.
fn named(pod: &Value, lists: &[&str], counts: &dyn Fn(&Value) -> bool) -> References {
    let mut found = References::default();
    let name = |holder: &Value, reference: &str, field: &str| {
        let reference = holder.pointer(reference).filter(|reference| counts(reference))?;
        reference.get(field).and_then(Value::as_str).map(str::to_owned)
    };
    for list in lists {
        for container in items(pod, list) {
            for variable in items(container, "/env") {
                found.config_map(name(variable, "/valueFrom/configMapKeyRef", "name").as_deref());
                found.secret(name(variable, "/valueFrom/secretKeyRef", "name").as_deref());
            }
            for source in items(container, "/envFrom") {
                found.config_map(name(source, "/configMapRef", "name").as_deref());
                found.secret(name(source, "/secretRef", "name").as_deref());
            }
        }
    }
    for volume in items(pod, "/spec/volumes") {
        found.config_map(name(volume, "/configMap", "name").as_deref());
        found.secret(name(volume, "/secret", "secretName").as_deref());
        for source in items(volume, "/projected/sources") {
            found.config_map(name(source, "/configMap", "name").as_deref());
            found.secret(name(source, "/secret", "name").as_deref());
        }
    }
    found
}

/// The first of these objects that exists in the mapped namespace and is no replica: somebody of the provider made it for its own
/// purposes. `own` has the names of all such objects.
pub fn first_of_provider<'a>(named: &'a References, own: &References) -> Option<(&'static str, &'a str)> {
    let first = |named: &'a BTreeSet<String>, own: &BTreeSet<String>| named.iter().find(|name| own.contains(*name));
    let config_map = first(&named.config_maps, &own.config_maps).map(|name| ("ConfigMap", name.as_str()));
    config_map.or_else(|| first(&named.secrets, &own.secrets).map(|name| ("Secret", name.as_str())))
}

impl References {
    fn config_map(&mut self, name: Option<&str>) {
        self.config_maps.extend(name.filter(|name| !name.is_empty() && *name != ROOT_CA).map(str::to_owned));
    }

    fn secret(&mut self, name: Option<&str>) {
        self.secrets.extend(name.filter(|name| !name.is_empty()).map(str::to_owned));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(set: &BTreeSet<String>) -> Vec<&str> {
        set.iter().map(String::as_str).collect()
    }

    #[test]
    fn every_place_where_a_pod_names_an_object_is_found() {
        let found = refs(&json!({"spec": {
            "containers": [{"name": "c",
                "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm-env", "key": "k"}}},
                        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s-env", "key": "k", "optional": true}}},
                        {"name": "C", "value": "plain"}],
                "envFrom": [{"configMapRef": {"name": "cm-from"}}, {"secretRef": {"name": "s-from"}}]}],
            "initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "cm-init"}}]}],
            "volumes": [{"name": "v", "configMap": {"name": "cm-vol"}}, {"name": "w", "secret": {"secretName": "s-vol"}},
                {"name": "p", "projected": {"sources": [{"configMap": {"name": "cm-proj"}}, {"secret": {"name": "s-proj"}}]}}],
            "imagePullSecrets": [{"name": "s-pull"}]}}));
        assert_eq!(names(&found.config_maps), ["cm-env", "cm-from", "cm-init", "cm-proj", "cm-vol"]);
        assert_eq!(names(&found.secrets), ["s-env", "s-from", "s-proj", "s-pull", "s-vol"]);
    }

    #[test]
    fn image_pull_secrets_of_this_cluster_are_left_out_and_nothing_else() {
        let mut pod = json!({ "spec": { "imagePullSecrets": [{ "name": "own" }, { "name": "sent" }],
            "volumes": [{ "name": "v", "secret": { "secretName": "own" } }] } });
        assert_eq!(names(&pull_secrets(&pod)), ["own", "sent"]);
        leave_out_pull_secrets(&mut pod, &["own".to_owned()].into());
        assert_eq!(pod["spec"]["imagePullSecrets"], json!([{ "name": "sent" }]));
        assert_eq!(names(&refs(&pod).secrets), ["own", "sent"]);
        let mut strange = json!({ "spec": { "imagePullSecrets": "own" } });
        leave_out_pull_secrets(&mut strange, &["own".to_owned()].into());
        assert!(pull_secrets(&strange).is_empty());
    }

    #[test]
    fn an_object_of_the_provider_is_found_wherever_the_pod_names_it() {
        let of = |config_maps: &[&str], secrets: &[&str]| References {
            config_maps: config_maps.iter().map(|&name| name.to_owned()).collect(),
            secrets: secrets.iter().map(|&name| name.to_owned()).collect(),
        };
        let own = of(&["kube-root-ca.crt", "settings"], &["registry"]);
        let found = |spec: serde_json::Value| {
            let named = refs(&json!({ "spec": spec }));
            first_of_provider(&named, &own).map(|(kind, name)| format!("{kind} {name}"))
        };
        assert_eq!(found(json!({ "imagePullSecrets": [{ "name": "registry" }] })).as_deref(), Some("Secret registry"));
        let optional = json!({ "volumes": [{ "name": "v", "secret": { "secretName": "registry", "optional": true } }] });
        assert_eq!(found(optional).as_deref(), Some("Secret registry"));
        let debug = json!({ "ephemeralContainers": [{ "name": "e", "envFrom": [{ "configMapRef": { "name": "settings" } }] }] });
        assert_eq!(found(debug).as_deref(), Some("ConfigMap settings"));
        let other_kind = json!({ "containers": [{ "name": "c", "envFrom": [{ "configMapRef": { "name": "registry" } }] }] });
        assert_eq!(found(other_kind), None);
    }

    #[test]
    fn an_ephemeral_container_names_objects_that_the_pod_can_start_without() {
        let env = json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
        let pod =
            json!({"spec": {"ephemeralContainers": [{"name": "e", "env": env, "envFrom": [{"configMapRef": {"name": "cm"}}]}]}});
        let found = refs(&pod);
        assert_eq!((names(&found.config_maps), names(&found.secrets)), (vec!["cm"], vec!["s"]));
        assert_eq!(required(&pod), References::default());
    }

    #[test]
    fn the_root_ca_of_the_injected_volume_is_never_reflected() {
        let found = refs(&json!({"spec": {"volumes": [{"name": "kube-api-access-x", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "kube-root-ca.crt"}}]}}]}}));
        assert_eq!(found, References::default());
    }

    #[test]
    fn a_pod_of_a_strange_shape_names_nothing() {
        assert_eq!(refs(&json!({"spec": {"volumes": "none", "containers": [3, {"env": {"a": 1}}]}})), References::default());
        assert_eq!(refs(&json!(null)), References::default());
    }
}

//! What the admission plugins that every API server runs add to objects.

use super::json::{each, in_field, keep, or};
use super::pods::alias_service_account;
use serde_json::{Value, json};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Pods that a kubelet reports, which nobody asked for.
const MIRROR: &str = "/metadata/annotations/kubernetes.io~1config.mirror";
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const TOKEN_VOLUME: &str = "kube-api-access-";

/// Adds what does not depend on other objects. A pod that names a priority class gets the class's
/// value and policy before.
pub fn admit_create(kind: &str, object: &mut Value) {
    let mirror = object.pointer(MIRROR).is_some();
    match kind {
        "Pod" => in_field(object, "spec", |spec| {
            if !mirror {
                or(spec, "serviceAccountName", "default");
            }
            alias_service_account(spec);
            if spec.get("priorityClassName").is_none() {
                or(spec, "priority", 0);
                or(spec, "preemptionPolicy", "PreemptLowerPriority");
            }
            tolerate(spec);
        }),
        "Node" => {
            or(&mut object["spec"], "taints", json!([]));
            if let Some(taints) = object["spec"]["taints"].as_array_mut()
                && !taints
                    .iter()
                    .any(|taint| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule")
            {
                taints.push(json!({ "key": NOT_READY, "effect": "NoSchedule" }));
            }
        }
        "PersistentVolumeClaim" | "PersistentVolume" => protect(kind, object),
        _ => {}
    }
}

/// Adds what an update of a pod may leave out.
pub fn admit_update(kind: &str, old: &Value, new: &mut Value) {
    if kind == "Pod" {
        for field in ["priority", "preemptionPolicy"] {
            if new["spec"].get(field).is_none() {
                keep(&old["spec"], &mut new["spec"], field);
            }
        }
        in_field(new, "spec", tolerate);
    }
}

/// A volume that is in use is not deleted.
fn protect(kind: &str, object: &mut Value) {
    let finalizer = if kind == "PersistentVolume" {
        "kubernetes.io/pv-protection"
    } else {
        "kubernetes.io/pvc-protection"
    };
    or(&mut object["metadata"], "finalizers", json!([]));
    if let Some(finalizers) = object["metadata"]["finalizers"].as_array_mut()
        && !finalizers.iter().any(|name| name == finalizer)
    {
        finalizers.push(finalizer.into());
    }
}

/// Lets a pod stay for five minutes on a node that is lost.
fn tolerate(spec: &mut Value) {
    for key in [NOT_READY, UNREACHABLE] {
        let tolerates = |toleration: &Value| {
            let matches = |field: &str, wanted: &str| {
                toleration[field]
                    .as_str()
                    .is_none_or(|value| value.is_empty() || value == wanted)
            };
            matches("key", key) && matches("effect", "NoExecute")
        };
        if !spec["tolerations"]
            .as_array()
            .is_some_and(|given| given.iter().any(tolerates))
        {
            or(spec, "tolerations", json!([]));
            let toleration = json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 });
            spec["tolerations"]
                .as_array_mut()
                .into_iter()
                .for_each(|all| all.push(toleration.clone()));
        }
    }
}

/// Gives a pod what its service account has: the secrets to pull images with, and a volume with its
/// token. The volume's name ends with five drawn characters.
pub fn mount_service_account(pod: &mut Value, account: &Value, suffix: &str) {
    if pod.pointer(MIRROR).is_some() {
        return;
    }
    let spec = &mut pod["spec"];
    let wanted = spec
        .get("automountServiceAccountToken")
        .or_else(|| account.get("automountServiceAccountToken"));
    if wanted.is_none_or(|wanted| wanted != false) {
        mount_token(spec, suffix);
    }
    if spec.get("imagePullSecrets").is_none() {
        keep(account, spec, "imagePullSecrets");
    }
}

fn mount_token(spec: &mut Value, suffix: &str) {
    let volumes = spec["volumes"].as_array().into_iter().flatten();
    let given = volumes
        .filter_map(|volume| volume["name"].as_str())
        .find(|name| name.starts_with(TOKEN_VOLUME));
    let (volume, exists) = given.map_or_else(
        || (format!("{TOKEN_VOLUME}{suffix}"), false),
        |name| (name.to_owned(), true),
    );
    let mut mounted = false;
    for containers in ["initContainers", "containers"] {
        each(spec, containers, |container| {
            let mounts = container["volumeMounts"].as_array();
            if !mounts
                .is_some_and(|mounts| mounts.iter().any(|mount| mount["mountPath"] == TOKEN_PATH))
            {
                or(container, "volumeMounts", json!([]));
                let mount = json!({ "name": volume, "readOnly": true, "mountPath": TOKEN_PATH });
                container["volumeMounts"]
                    .as_array_mut()
                    .into_iter()
                    .for_each(|all| all.push(mount.clone()));
                mounted = true;
            }
        });
    }
    if mounted && !exists {
        or(spec, "volumes", json!([]));
        spec["volumes"]
            .as_array_mut()
            .into_iter()
            .for_each(|all| all.push(token_volume(&volume)));
    }
}

fn token_volume(name: &str) -> Value {
    json!({ "name": name, "projected": { "defaultMode": 0o644, "sources": [
        { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
        { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
        { "downwardAPI": { "items": [
            { "path": "namespace", "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.namespace" } },
        ] } },
    ] } })
}

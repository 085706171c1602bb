//! Defaults of pods and of their templates.

use super::json::{copy_missing, each, first_of_many, in_field, or, remove, round_up};
use regex::Regex;
use serde_json::{Value, json};
use std::sync::LazyLock;

pub fn pod(pod: &mut Value) {
    or(pod, "spec", json!({}));
    in_field(pod, "spec", |spec| {
        for containers in ["containers", "initContainers"] {
            each(spec, containers, |container| {
                in_field(container, "resources", |resources| {
                    copy_missing(resources, "limits", "requests");
                });
            });
        }
        or(spec, "enableServiceLinks", true);
        if spec["terminationGracePeriodSeconds"]
            .as_i64()
            .is_some_and(|seconds| seconds < 0)
        {
            spec["terminationGracePeriodSeconds"] = json!(1);
        }
        pod_spec(spec);
        if spec["hostNetwork"] == true {
            host_ports(spec);
        }
        in_field(spec, "resources", |resources| {
            copy_missing(resources, "limits", "requests");
        });
    });
    in_field(pod, "status", |status| {
        first_of_many(
            status,
            "podIP",
            "podIPs",
            |ip| json!({ "ip": ip }),
            |item| item.get("ip").cloned(),
        );
    });
}

/// Drops fields of a pod or of a workload's template that belong to features which are off.
pub fn drop_disabled(kind: &str, object: &mut Value) {
    let path = match kind {
        "Pod" => "/spec",
        "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" | "Job" => "/spec/template/spec",
        "CronJob" => "/spec/jobTemplate/spec/template/spec",
        _ => return,
    };
    let Some(spec) = object.pointer_mut(path) else {
        return;
    };
    remove(spec, "hostnameOverride");
    for kind in ["initContainers", "containers", "ephemeralContainers"] {
        each(spec, kind, |container| {
            // Only a container that runs beside the others has a policy of its own.
            if kind != "initContainers" || container["restartPolicy"] != "Always" {
                remove(container, "restartPolicy");
            }
            remove(container, "restartPolicyRules");
            in_field(container, "lifecycle", |lifecycle| {
                remove(lifecycle, "stopSignal");
            });
            each(container, "env", |variable| {
                in_field(variable, "valueFrom", |source| remove(source, "fileKeyRef"));
            });
        });
    }
    each(spec, "volumes", |volume| {
        in_field(volume, "projected", |projected| {
            each(projected, "sources", |source| {
                remove(source, "clusterTrustBundle");
                remove(source, "podCertificate");
            });
        });
    });
}

/// A template of pods, as it stands in a workload.
pub fn template(template: &mut Value) {
    in_field(template, "spec", pod_spec);
}

fn pod_spec(spec: &mut Value) {
    or(spec, "dnsPolicy", "ClusterFirst");
    or(spec, "restartPolicy", "Always");
    or(spec, "securityContext", json!({}));
    or(spec, "terminationGracePeriodSeconds", 30);
    or(spec, "schedulerName", "default-scheduler");
    alias_service_account(spec);
    for containers in ["containers", "initContainers", "ephemeralContainers"] {
        each(spec, containers, container);
    }
    each(spec, "volumes", volume);
    in_field(spec, "overhead", round_up);
    in_field(spec, "resources", round_up_resources);
}

/// `serviceAccount` is an old name of `serviceAccountName`.
pub fn alias_service_account(spec: &mut Value) {
    if let Some(name) = spec.get("serviceAccount").cloned() {
        or(spec, "serviceAccountName", name);
    }
    if let Some(name) = spec.get("serviceAccountName").cloned() {
        spec["serviceAccount"] = name;
    }
}

fn host_ports(spec: &mut Value) {
    for containers in ["containers", "initContainers"] {
        each(spec, containers, |container| {
            each(container, "ports", |port| {
                let number = port["containerPort"].clone();
                or(port, "hostPort", number);
            });
        });
    }
}

fn container(container: &mut Value) {
    let image = container["image"].as_str().unwrap_or_default();
    let policy = pull_policy(image);
    or(container, "imagePullPolicy", policy);
    or(container, "terminationMessagePath", "/dev/termination-log");
    or(container, "terminationMessagePolicy", "File");
    each(container, "ports", |port| or(port, "protocol", "TCP"));
    each(container, "env", |variable| {
        in_field(variable, "valueFrom", |source| {
            in_field(source, "fieldRef", |field| or(field, "apiVersion", "v1"));
            in_field(source, "fileKeyRef", |file| or(file, "optional", false));
            in_field(source, "resourceFieldRef", |resource| {
                or(resource, "divisor", "0");
            });
        });
    });
    in_field(container, "resources", round_up_resources);
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        in_field(container, name, probe);
    }
    in_field(container, "lifecycle", |lifecycle| {
        for hook in ["postStart", "preStop"] {
            in_field(lifecycle, hook, |hook| in_field(hook, "httpGet", http_get));
        }
    });
}

/// How an image is written: with a domain or without, and its tag and digest.
static IMAGE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let word = "[a-z0-9]+(?:(?:[.]|_|__|-+)[a-z0-9]+)*";
    let label = "(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])";
    let domain = format!(r"(?:{label}(?:[.]{label})*|\[(?:[a-fA-F0-9:]+)\])(?::[0-9]+)?");
    let digest = "[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}";
    Regex::new(&format!(r"^(?:{domain}/)?{word}(?:/{word})*(?::([A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}))?(?:@({digest}))?$")).ok()
});

/// Always for the tag `latest`, which an image without tag and digest has.
fn pull_policy(image: &str) -> &'static str {
    let is_id = image.len() == 64
        && image
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let parts = IMAGE
        .as_ref()
        .and_then(|pattern| pattern.captures(image))
        .filter(|_| !is_id);
    let Some(parts) = parts else {
        return "IfNotPresent";
    };
    match (parts.get(1).map(|tag| tag.as_str()), parts.get(2)) {
        (Some("latest"), _) | (None, None) => "Always",
        _ => "IfNotPresent",
    }
}

pub fn round_up_resources(resources: &mut Value) {
    for amounts in ["limits", "requests"] {
        in_field(resources, amounts, round_up);
    }
}

fn probe(probe: &mut Value) {
    or(probe, "timeoutSeconds", 1);
    or(probe, "periodSeconds", 10);
    or(probe, "successThreshold", 1);
    or(probe, "failureThreshold", 3);
    in_field(probe, "httpGet", http_get);
    in_field(probe, "grpc", |grpc| or(grpc, "service", ""));
}

fn http_get(action: &mut Value) {
    or(action, "path", "/");
    or(action, "scheme", "HTTP");
}

fn volume(volume: &mut Value) {
    let only_named = volume.as_object().is_some_and(|fields| {
        fields
            .iter()
            .all(|(name, value)| name == "name" || value.is_null())
    });
    if only_named {
        or(volume, "emptyDir", json!({}));
    }
    in_field(volume, "hostPath", |path| or(path, "type", ""));
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        in_field(volume, source, |source| or(source, "defaultMode", 0o644));
    }
    in_field(volume, "downwardAPI", field_items);
    in_field(volume, "projected", |projected| {
        each(projected, "sources", |source| {
            in_field(source, "downwardAPI", field_items);
            in_field(source, "serviceAccountToken", |token| {
                or(token, "expirationSeconds", 3600);
            });
        });
    });
    in_field(volume, "iscsi", |iscsi| {
        or(iscsi, "iscsiInterface", "default");
    });
    in_field(volume, "ephemeral", |ephemeral| {
        in_field(ephemeral, "volumeClaimTemplate", |template| {
            in_field(template, "spec", super::claim_spec);
        });
    });
    in_field(volume, "image", |image| {
        let policy = pull_policy(image["reference"].as_str().unwrap_or_default());
        or(image, "pullPolicy", policy);
    });
    remove_null(volume);
}

fn remove_null(volume: &mut Value) {
    if let Some(fields) = volume.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
}

fn field_items(source: &mut Value) {
    each(source, "items", |item| {
        in_field(item, "fieldRef", |field| or(field, "apiVersion", "v1"));
        in_field(item, "resourceFieldRef", |resource| {
            or(resource, "divisor", "0");
        });
    });
}

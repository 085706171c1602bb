//! Requests for certificates, and webhooks of admission.

use super::json::{has, invalid_each, list, one_of, required_one_of, text};
use super::metadata::label_selector;
use super::{Cause, names};
use data_encoding::BASE64;
use serde_json::Value;

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// A request for a certificate. What is inside of it is not looked at: only that it is one.
pub fn request(causes: &mut Vec<Cause>, object: &Value) {
    let spec = &object["spec"];
    let body = BASE64.decode(text(spec, "request").as_bytes()).unwrap_or_default();
    let is_request = String::from_utf8_lossy(&body).contains("-----BEGIN CERTIFICATE REQUEST-----");
    if !is_request {
        let detail = "PEM block type must be CERTIFICATE REQUEST";
        let shown = Some(text(spec, "request")).filter(|request| !request.is_empty());
        causes.push(Cause::invalid("spec.request", shown.map_or(Value::Null, Value::from), detail));
    }
    let usages: Vec<_> = list(spec, "usages").filter_map(|(_, usage)| usage.as_str()).collect();
    if usages.is_empty() {
        causes.push(Cause::required("spec.usages", ""));
    }
    for (index, usage) in usages.iter().enumerate() {
        one_of(causes, &format!("spec.usages[{index}]"), usage, &USAGES);
    }
    for (index, usage) in usages.iter().enumerate().filter(|(index, usage)| usages[..*index].contains(usage)) {
        causes.push(Cause::duplicate(format!("spec.usages[{index}]"), *usage));
    }
    signer(causes, "spec.signerName", text(spec, "signerName"));
    if let Some(seconds) = spec["expirationSeconds"].as_i64().filter(|seconds| *seconds < 600) {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        causes.push(Cause::invalid("spec.expirationSeconds", seconds, detail));
    }
    conditions(causes, &object["status"]);
}

fn signer(causes: &mut Vec<Cause>, path: &str, name: &str) {
    if name.is_empty() {
        causes.push(Cause::required(path, ""));
        return;
    }
    if name == "kubernetes.io/legacy-unknown" {
        causes.push(Cause::invalid(path, name, "the legacy signerName is not allowed via this API version"));
        return;
    }
    let parts: Vec<_> = name.split('/').collect();
    let &[domain, rest] = parts.as_slice() else {
        let detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        causes.push(Cause::invalid(path, name, detail));
        return;
    };
    if let Some(label) = domain.split('.').find(|label| !names::label(label).is_empty()) {
        for problem in names::label(label) {
            causes.push(Cause::invalid(path, domain, format!("validating label {label:?}: {problem}")));
        }
    }
    if !domain.contains('.') {
        causes.push(Cause::invalid(path, domain, "should be a domain with at least two segments separated by dots"));
    }
    if let Some(label) = rest.split('.').find(|label| !names::subdomain(label).is_empty()) {
        for problem in names::subdomain(label) {
            causes.push(Cause::invalid(path, rest, format!("validating label {label:?}: {problem}")));
        }
    }
}

fn conditions(causes: &mut Vec<Cause>, status: &Value) {
    let mut seen = Vec::new();
    for (index, condition) in list(status, "conditions") {
        let path = format!("status.conditions[{index}]");
        let kind = text(condition, "type");
        if kind.is_empty() {
            causes.push(Cause::required(format!("{path}.type"), ""));
        }
        let statuses: &[&str] =
            if matches!(kind, "Approved" | "Denied" | "Failed") { &["True"] } else { &["False", "True", "Unknown"] };
        required_one_of(causes, &format!("{path}.status"), text(condition, "status"), statuses);
        let other = if kind == "Approved" { "Denied" } else { "Approved" };
        if matches!(kind, "Approved" | "Denied") && seen.contains(&other) {
            let detail = "Approved and Denied conditions are mutually exclusive";
            causes.push(Cause::invalid("status.conditions", kind, detail));
        }
        if seen.contains(&kind) {
            causes.push(Cause::duplicate(format!("{path}.type"), kind));
        }
        seen.push(kind);
    }
}

/// Whether this is empty, or seems to be a certificate. What is inside of it is not looked at.
fn is_certificate(base64: &str) -> bool {
    let bytes = data_encoding::BASE64.decode(base64.as_bytes()).unwrap_or_default();
    bytes.is_empty() || String::from_utf8_lossy(&bytes).contains("-----BEGIN CERTIFICATE-----")
}

/// What an update of a request must leave as it is; `subresource` is `status`, `approval` or empty.
pub fn request_update(causes: &mut Vec<Cause>, old: &Value, new: &Value, subresource: &str) {
    let (old, new) = (&old["status"], &new["status"]);
    let of = |status: &Value, kind: &str| -> Vec<Value> {
        list(status, "conditions").filter(|(_, item)| text(item, "type") == kind).map(|(_, item)| item.clone()).collect()
    };
    let mut forbid = |detail: String| causes.push(Cause::forbidden("status.conditions", detail));
    for kind in ["Approved", "Denied", "Failed"].into_iter().filter(|kind| of(new, kind).len() < of(old, kind).len()) {
        forbid(format!("updates may not remove a condition of type \"{kind}\""));
    }
    for kind in ["Approved", "Denied"].into_iter().filter(|_| subresource != "approval") {
        let (before, after) = (of(old, kind), of(new, kind));
        if after.len() > before.len() {
            forbid(format!("updates may not add a condition of type \"{kind}\""));
        } else if after.len() == before.len() && after != before {
            forbid(format!("updates may not modify a condition of type \"{kind}\"\n"));
        }
    }
    let certificate = |status: &Value| text(status, "certificate").to_owned();
    if certificate(old) != certificate(new) {
        let path = "status.certificate";
        if !is_certificate(&certificate(new)) {
            causes.push(Cause::invalid(path, "<certificate data>", "must contain at least one CERTIFICATE PEM block"));
        }
        if subresource != "status" {
            causes.push(Cause::forbidden(path, "updates may not set certificate content"));
        } else if !certificate(old).is_empty() {
            causes.push(Cause::forbidden(path, "updates may not modify existing certificate content"));
        }
    }
}

pub fn webhooks(causes: &mut Vec<Cause>, object: &Value, mutating: bool) {
    let mut known = Vec::new();
    for (index, hook) in list(object, "webhooks") {
        let path = format!("webhooks[{index}]");
        webhook(causes, &path, hook, mutating);
        versions(causes, &format!("{path}.admissionReviewVersions"), hook);
        let name = text(hook, "name");
        if !name.is_empty() && known.contains(&name) {
            causes.push(Cause::duplicate(format!("{path}.name"), name));
        }
        known.push(name);
    }
}

fn versions(causes: &mut Vec<Cause>, path: &str, hook: &Value) {
    let versions: Vec<_> = list(hook, "admissionReviewVersions").filter_map(|(_, version)| version.as_str()).collect();
    if versions.is_empty() {
        causes.push(Cause::required(path, "must specify one of v1, v1beta1"));
        return;
    }
    for (index, version) in versions.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if versions[..index].contains(version) {
            causes.push(Cause::invalid(path, *version, "duplicate version"));
        } else {
            invalid_each(causes, &path, version, names::label_1035(version));
        }
    }
    if !versions.iter().any(|version| ["v1", "v1beta1"].contains(version)) {
        causes.push(Cause::invalid(path, versions, "must include at least one of v1, v1beta1"));
    }
}

fn webhook(causes: &mut Vec<Cause>, path: &str, hook: &Value, mutating: bool) {
    let name = text(hook, "name");
    let problems = names::subdomain(name);
    let name_path = format!("{path}.name");
    match name {
        "" => causes.push(Cause::required(name_path, "")),
        _ if !problems.is_empty() => causes.push(Cause::invalid(name_path, name, problems.join(","))),
        _ if name.split('.').count() < 3 => {
            let detail = "should be a domain with at least three segments separated by dots";
            causes.push(Cause::invalid(name_path, name, detail));
        }
        _ => {}
    }
    for (index, rule) in list(hook, "rules") {
        webhook_rule(causes, &format!("{path}.rules[{index}]"), rule);
    }
    let mut check = |field: &str, supported: &[&str]| {
        if let Some(value) = hook[field].as_str() {
            one_of(causes, &format!("{path}.{field}"), value, supported);
        }
    };
    check("failurePolicy", &["Fail", "Ignore"]);
    check("matchPolicy", &["Equivalent", "Exact"]);
    check("sideEffects", &["None", "NoneOnDryRun"]);
    if mutating {
        check("reinvocationPolicy", &["IfNeeded", "Never"]);
    }
    if !has(hook, "sideEffects") {
        causes.push(Cause::required(format!("{path}.sideEffects"), "must specify one of None, NoneOnDryRun"));
    }
    if let Some(seconds) = hook["timeoutSeconds"].as_i64().filter(|seconds| !(1..=30).contains(seconds)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        causes.push(Cause::invalid(format!("{path}.timeoutSeconds"), seconds, detail));
    }
    for field in ["namespaceSelector", "objectSelector"] {
        label_selector(causes, &format!("{path}.{field}"), &hook[field]);
    }
    client(causes, &format!("{path}.clientConfig"), &hook["clientConfig"]);
}

fn client(causes: &mut Vec<Cause>, path: &str, config: &Value) {
    if has(config, "url") == has(config, "service") {
        causes.push(Cause::required(path, "exactly one of url or service is required"));
    } else if let Some(url) = config["url"].as_str() {
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        if scheme != "https" {
            let detail = "'https' is the only allowed URL scheme; desired format: https://host[/path]";
            causes.push(Cause::invalid(format!("{path}.url"), scheme, detail));
        }
    } else {
        // Go confuses the two here, so that each is reported as the other.
        for (field, named) in [("namespace", "name"), ("name", "namespace")] {
            if text(&config["service"], named).is_empty() {
                causes.push(Cause::required(format!("{path}.service.{field}"), ""));
            }
        }
        let port = config["service"]["port"].as_i64().unwrap_or(0);
        if !(1..=65535).contains(&port) {
            let detail = "port is not valid: must be between 1 and 65535, inclusive";
            causes.push(Cause::invalid(format!("{path}.service.port"), port, detail));
        }
        url_path(causes, &format!("{path}.service.path"), text(&config["service"], "path"));
    }
}

/// The path of a webhook: segments that are names.
fn url_path(causes: &mut Vec<Cause>, path: &str, url: &str) {
    if matches!(url, "" | "/") {
        return;
    }
    if url == "//" {
        causes.push(Cause::invalid(path, url, "segment[0] may not be empty"));
        return;
    }
    if !url.starts_with('/') {
        causes.push(Cause::invalid(path, url, "must start with a '/'"));
    }
    // Go skips the first character, whatever it is.
    let segments = url.get(1..).unwrap_or_default();
    for (index, segment) in segments.strip_suffix('/').unwrap_or(segments).split('/').enumerate() {
        if segment.is_empty() {
            causes.push(Cause::invalid(path, url, format!("segment[{index}] may not be empty")));
            continue;
        }
        let problems = names::subdomain(segment).into_iter().map(|problem| format!("segment[{index}]: {problem}"));
        invalid_each(causes, path, url, problems);
    }
}

fn webhook_rule(causes: &mut Vec<Cause>, path: &str, rule: &Value) {
    let operations: Vec<_> = list(rule, "operations").filter_map(|(_, item)| item.as_str()).collect();
    wildcard_alone(causes, path, rule, "operations", "operations");
    for (index, operation) in operations.iter().enumerate() {
        let supported = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
        one_of(causes, &format!("{path}.operations[{index}]"), operation, &supported);
    }
    wildcard_alone(causes, path, rule, "apiGroups", "API groups");
    wildcard_alone(causes, path, rule, "apiVersions", "API versions");
    for field in ["apiVersions", "resources"] {
        if field == "resources" && list(rule, field).len() == 0 {
            causes.push(Cause::required(format!("{path}.{field}"), ""));
        }
        for (index, _) in list(rule, field).filter(|(_, item)| *item == "") {
            causes.push(Cause::required(format!("{path}.{field}[{index}]"), ""));
        }
    }
    if let Some(scope) = rule["scope"].as_str() {
        one_of(causes, &format!("{path}.scope"), scope, &["*", "Cluster", "Namespaced"]);
    }
}

fn wildcard_alone(causes: &mut Vec<Cause>, path: &str, rule: &Value, field: &str, what: &str) {
    let path = format!("{path}.{field}");
    let items = list(rule, field);
    if items.len() == 0 {
        causes.push(Cause::required(path, ""));
    } else if items.len() > 1 && list(rule, field).any(|(_, item)| item == "*") {
        let detail = format!("if '*' is present, must not specify other {what}");
        causes.push(Cause::invalid(path, rule[field].clone(), detail));
    }
}

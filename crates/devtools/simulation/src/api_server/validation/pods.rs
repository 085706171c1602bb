//! Pods and templates of pods.

use super::containers::{self, Pod, system_id, trimmed_image};
use super::json::{entries, has, immutable, invalid_each, list, one_of, required_one_of, text};
use super::metadata::{annotations, labels};
use super::{Cause, addresses, names, resources, scheduling, volumes};
use serde_json::{Map, Value, json};

const MIRROR: &str = "kubernetes.io/config.mirror";

/// What is checked of a pod, new or changed.
pub fn pod(causes: &mut Vec<Cause>, object: &Value, old: Option<&Value>) {
    specific_annotations(causes, "metadata.annotations", &object["metadata"]["annotations"], &object["spec"]);
    spec(causes, "spec", &object["spec"], text(&object["metadata"], "name"), true);
    for kind in ["containers", "initContainers"] {
        for (index, container) in list(&object["spec"], kind) {
            trimmed_image(causes, &format!("spec.{kind}[{index}]"), container);
        }
    }
    if text(&object["spec"], "serviceAccountName").is_empty() {
        tokens_without_account(causes, &object["spec"]);
    }
    if old.is_some() {
        return;
    }
    if has(&object["spec"], "ephemeralContainers") {
        causes.push(Cause::forbidden("spec.ephemeralContainers", "cannot be set on create"));
    }
    if !text(&object["spec"], "nodeName").is_empty() && has(&object["spec"], "schedulingGates") {
        let detail = "cannot be set until all schedulingGates have been cleared";
        causes.push(Cause::forbidden("spec.nodeName", detail));
    }
}

fn tokens_without_account(causes: &mut Vec<Cause>, spec: &Value) {
    for (index, volume) in list(spec, "volumes") {
        for (at, _) in list(&volume["projected"], "sources").filter(|(_, source)| has(source, "serviceAccountToken")) {
            let path = format!("spec.volumes[{index}].projected.sources[{at}].serviceAccountToken");
            causes.push(Cause::forbidden(path, "must not be specified when serviceAccountName is not set"));
        }
    }
}

fn specific_annotations(causes: &mut Vec<Cause>, path: &str, given: &Value, spec: &Value) {
    if let Some(value) = given[MIRROR].as_str().filter(|_| text(spec, "nodeName").is_empty()) {
        let detail = "must set spec.nodeName if mirror pod annotation is set";
        causes.push(Cause::invalid(format!("{path}[{MIRROR}]"), value, detail));
    }
    let cost = "controller.kubernetes.io/pod-deletion-cost";
    if let Some(value) = given[cost].as_str().filter(|value| value.parse::<i32>().is_err()) {
        causes.push(Cause::invalid(format!("{path}[{cost}]"), value, "must be a 32bit integer"));
    }
}

/// The template in a workload.
pub fn template(causes: &mut Vec<Cause>, path: &str, template: &Value) {
    let meta = &template["metadata"];
    labels(causes, &format!("{path}.labels"), &meta["labels"]);
    annotations(causes, &format!("{path}.annotations"), &meta["annotations"]);
    specific_annotations(causes, &format!("{path}.annotations"), &meta["annotations"], &template["spec"]);
    spec(causes, &format!("{path}.spec"), &template["spec"], "", false);
    if has(&template["spec"], "ephemeralContainers") {
        let detail = "ephemeral containers not allowed in pod template";
        causes.push(Cause::forbidden(format!("{path}.spec.ephemeralContainers"), detail));
    }
}

/// The spec of a pod or of its template. `pod` is the name of the pod.
fn spec(causes: &mut Vec<Cause>, path: &str, spec: &Value, pod: &str, is_pod: bool) {
    let valid = volumes::volumes(causes, path, spec, pod);
    containers::containers(causes, path, &Pod { spec, volumes: &valid });
    if has(spec, "resources") {
        resources::requirements(causes, &format!("{path}.resources"), &spec["resources"], resources::pod_resource);
    }
    if spec["hostNetwork"] == true {
        host_network_ports(causes, path, spec, is_pod);
    }
    let policies = ["Always", "OnFailure", "Never"];
    required_one_of(causes, &format!("{path}.restartPolicy"), text(spec, "restartPolicy"), &policies);
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    required_one_of(causes, &format!("{path}.dnsPolicy"), text(spec, "dnsPolicy"), &policies);
    labels(causes, &format!("{path}.nodeSelector"), &spec["nodeSelector"]);
    security(causes, &format!("{path}.securityContext"), spec);
    scheduling::affinity(causes, &format!("{path}.affinity"), &spec["affinity"]);
    dns(causes, &format!("{path}.dnsConfig"), spec);
    gates(causes, path, spec);
    scheduling::spread(causes, &format!("{path}.topologySpreadConstraints"), spec);
    named(causes, path, spec);
    scheduling::tolerations(causes, &format!("{path}.tolerations"), spec);
    for (index, alias) in list(spec, "hostAliases") {
        let path = format!("{path}.hostAliases[{index}]");
        addresses::address(causes, &format!("{path}.ip"), text(alias, "ip"));
        for (index, name) in list(alias, "hostnames") {
            let name = name.as_str().unwrap_or_default();
            invalid_each(causes, &format!("{path}.hostnames[{index}]"), name, names::subdomain(name));
        }
    }
    let class = text(spec, "priorityClassName");
    if !class.is_empty() {
        invalid_each(causes, &format!("{path}.priorityClassName"), class, names::subdomain(class));
    }
    if let Some(class) = spec["runtimeClassName"].as_str() {
        invalid_each(causes, &format!("{path}.runtimeClassName"), class, names::subdomain(class));
    }
    if let Some(policy) = spec["preemptionPolicy"].as_str() {
        let policies = ["PreemptLowerPriority", "Never"];
        required_one_of(causes, &format!("{path}.preemptionPolicy"), policy, &policies);
    }
    for (name, value) in entries(spec, "overhead") {
        let path = format!("{path}.overhead.limits[{name}]");
        resources::container_resource(causes, &path, name);
        resources::amount(causes, &path, name, value);
    }
}

fn host_network_ports(causes: &mut Vec<Cause>, path: &str, spec: &Value, is_pod: bool) {
    for (index, container) in list(spec, "containers") {
        for (at, port) in list(container, "ports") {
            let host = port["hostPort"].as_i64().unwrap_or(0);
            if (is_pod || host != 0) && port["containerPort"] != host {
                let path = format!("{path}.containers[{index}].ports[{at}].hostPort");
                causes.push(Cause::invalid(path, host, "must match `containerPort` when `hostNetwork` is true"));
            }
        }
    }
}

fn security(causes: &mut Vec<Cause>, path: &str, spec: &Value) {
    let context = &spec["securityContext"];
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        system_id(causes, &format!("{path}.{field}"), &context[field]);
    }
    for (index, group) in list(context, "supplementalGroups") {
        system_id(causes, &format!("{path}.supplementalGroups[{index}]"), group);
    }
    if spec["shareProcessNamespace"] == true && spec["hostPID"] == true {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        causes.push(Cause::invalid(format!("{path}.shareProcessNamespace"), true, detail));
    }
    if let Some(policy) = context["fsGroupChangePolicy"].as_str() {
        one_of(causes, &format!("{path}.fsGroupChangePolicy"), policy, &["Always", "OnRootMismatch"]);
    }
}

fn dns(causes: &mut Vec<Cause>, path: &str, spec: &Value) {
    let config = &spec["dnsConfig"];
    if spec["dnsPolicy"] == "None" {
        if config.is_null() {
            causes.push(Cause::required(path, "must provide `dnsConfig` when `dnsPolicy` is None"));
            return;
        }
        if list(config, "nameservers").len() == 0 {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            causes.push(Cause::required(format!("{path}.nameservers"), detail));
            return;
        }
    }
    let limits = [("nameservers", 3, "nameservers"), ("searches", 32, "search paths")];
    for (field, most, what) in limits {
        if list(config, field).len() > most {
            let detail = format!("must not have more than {most} {what}");
            causes.push(Cause::invalid(format!("{path}.{field}"), config[field].clone(), detail));
        }
        for (index, item) in list(config, field) {
            let (path, item) = (format!("{path}.{field}[{index}]"), item.as_str().unwrap_or_default());
            if field == "nameservers" {
                addresses::address(causes, &path, item);
            } else if item != "." {
                let item = item.strip_suffix('.').unwrap_or(item);
                invalid_each(causes, &path, item, names::relaxed_subdomain(item));
            }
        }
    }
    for (index, _) in list(config, "options").filter(|(_, option)| text(option, "name").is_empty()) {
        causes.push(Cause::required(format!("{path}.options[{index}]"), "must not be empty"));
    }
}

fn gates(causes: &mut Vec<Cause>, path: &str, spec: &Value) {
    for (index, gate) in list(spec, "readinessGates") {
        let condition = text(gate, "conditionType");
        let path = format!("{path}.readinessGates[{index}].conditionType");
        invalid_each(causes, &path, condition, names::qualified_name(condition));
    }
    let mut known = Vec::new();
    for (index, gate) in list(spec, "schedulingGates") {
        let (path, name) = (format!("{path}.schedulingGates[{index}]"), text(gate, "name"));
        invalid_each(causes, &path, name, names::qualified_name(name));
        if known.contains(&name) {
            causes.push(Cause::duplicate(path, name));
        }
        known.push(name);
    }
}

/// What a spec names: its account, its node and itself.
fn named(causes: &mut Vec<Cause>, path: &str, spec: &Value) {
    let mut check = |field: &str, rule: super::metadata::NameRule| {
        let name = text(spec, field);
        if !name.is_empty() {
            invalid_each(causes, &format!("{path}.{field}"), name, rule(name));
        }
    };
    check("serviceAccountName", names::subdomain);
    check("nodeName", names::subdomain);
    let seconds = spec["activeDeadlineSeconds"].as_i64();
    if let Some(seconds) = seconds.filter(|seconds| !(1..=i64::from(i32::MAX)).contains(seconds)) {
        let detail = "must be between 1 and 2147483647, inclusive";
        causes.push(Cause::invalid(format!("{path}.activeDeadlineSeconds"), seconds, detail));
    }
    let mut check = |field: &str| {
        let name = text(spec, field);
        if !name.is_empty() {
            invalid_each(causes, &format!("{path}.{field}"), name, names::label(name));
        }
    };
    check("hostname");
    check("subdomain");
}

/// What must not change of a pod.
pub fn update(causes: &mut Vec<Cause>, old: &Value, new: &Value) {
    changed_annotations(causes, old, new);
    let (old, new) = (&old["spec"], &new["spec"]);
    for kind in ["containers", "initContainers"] {
        if list(old, kind).len() != list(new, kind).len() {
            causes.push(Cause::forbidden(format!("spec.{kind}"), "pod updates may not add or remove containers"));
            return;
        }
        for (index, container) in list(new, kind) {
            let path = format!("spec.{kind}[{index}]");
            if text(container, "image").is_empty() {
                causes.push(Cause::required(format!("{path}.image"), ""));
            }
            trimmed_image(causes, &path, container);
        }
    }
    if !deadline(causes, old, new) {
        return;
    }
    added_tolerations(causes, old, new);
    removed_gates(causes, old, new);
    rest_of_spec(causes, old, new);
}

fn changed_annotations(causes: &mut Vec<Cause>, old: &Value, new: &Value) {
    let (before, after) = (&old["metadata"]["annotations"][MIRROR], &new["metadata"]["annotations"][MIRROR]);
    if before != after {
        let what = if before.is_null() { "add" } else { "remove or update" };
        let path = format!("metadata.annotations[{MIRROR}]");
        causes.push(Cause::forbidden(path, format!("may not {what} mirror pod annotation")));
    }
    specific_annotations(causes, "metadata.annotations", &new["metadata"]["annotations"], &new["spec"]);
}

/// The deadline only comes nearer. Tells whether the other fields are to be checked.
fn deadline(causes: &mut Vec<Cause>, old: &Value, new: &Value) -> bool {
    let path = "spec.activeDeadlineSeconds";
    let (before, after) = (old["activeDeadlineSeconds"].as_i64(), new["activeDeadlineSeconds"].as_i64());
    match (before, after) {
        (_, Some(after)) if !(0..=i64::from(i32::MAX)).contains(&after) => {
            causes.push(Cause::invalid(path, after, "must be between 0 and 2147483647, inclusive"));
            false
        }
        (Some(before), Some(after)) if before < after => {
            causes.push(Cause::invalid(path, after, "must be less than or equal to previous value"));
            false
        }
        (Some(_), None) => {
            causes.push(Cause::invalid(path, Value::Null, "must not update from a positive integer to nil value"));
            true
        }
        _ => true,
    }
}

fn added_tolerations(causes: &mut Vec<Cause>, old: &Value, new: &Value) {
    let timeless = |toleration: &Value| {
        let mut fields = toleration.as_object().cloned().unwrap_or_default();
        fields.shift_remove("tolerationSeconds");
        Value::Object(fields)
    };
    let after: Vec<_> = list(new, "tolerations").map(|(_, toleration)| timeless(toleration)).collect();
    if list(old, "tolerations").any(|(_, toleration)| !after.contains(&timeless(toleration))) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        causes.push(Cause::forbidden("spec.tolerations", detail));
        return;
    }
    scheduling::tolerations(causes, "spec.tolerations", new);
}

fn removed_gates(causes: &mut Vec<Cause>, old: &Value, new: &Value) {
    let known: Vec<_> = list(old, "schedulingGates").map(|(_, gate)| text(gate, "name")).collect();
    for (index, gate) in list(new, "schedulingGates").filter(|(_, gate)| !known.contains(&text(gate, "name"))) {
        let detail = format!("only deletion is allowed, but found new scheduling gate '{}'", text(gate, "name"));
        causes.push(Cause::forbidden(format!("spec.schedulingGates[{index}].name"), detail));
    }
}

/// Everything else must stay; of what changed, Go shows a difference that is not reproduced here.
fn rest_of_spec(causes: &mut Vec<Cause>, old: &Value, new: &Value) {
    let mut masked = new.clone();
    for kind in ["containers", "initContainers"] {
        for (index, container) in list(old, kind) {
            masked[kind][index]["image"] = container["image"].clone();
        }
    }
    let gated = has(old, "schedulingGates");
    let mut changing = vec!["activeDeadlineSeconds", "schedulingGates", "tolerations"];
    if gated {
        let grows = entries(old, "nodeSelector").all(|(key, value)| new["nodeSelector"].get(key) == Some(value));
        if !grows {
            let selector = new.get("nodeSelector").cloned().unwrap_or_default();
            causes.push(Cause::invalid(
                "spec.nodeSelector",
                selector,
                "only additions to spec.nodeSelector are allowed (no mutations or deletions)",
            ));
        }
        changing.push("nodeSelector");
    }
    let empty = Map::new();
    let without = |spec: &Value| {
        let mut fields = spec.as_object().unwrap_or(&empty).clone();
        fields.retain(|field, _| !changing.contains(&field.as_str()));
        Value::Object(fields)
    };
    if without(&masked) != without(old) {
        let detail = "pod updates may not change fields other than `spec.containers[*].image`,\
                      `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
                      existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
                      previously negative)\n";
        causes.push(Cause::forbidden("spec", detail));
    }
}

pub fn status(causes: &mut Vec<Cause>, old: &Value, new: &Value) {
    changed_annotations(causes, old, new);
    let (spec, old, new) = (&old["spec"], &old["status"], &new["status"]);
    for (index, condition) in list(new, "conditions") {
        let kind = text(condition, "type");
        if !["PodScheduled", "Ready", "Initialized"].contains(&kind) {
            let path = format!("status.conditions[{index}].Type");
            invalid_each(causes, &path, kind, names::qualified_name(kind));
        }
    }
    let nominated = text(new, "nominatedNodeName");
    if !nominated.is_empty() && nominated != text(old, "nominatedNodeName") {
        invalid_each(causes, "status.nominatedNodeName", nominated, names::subdomain(nominated));
    }
    immutable(causes, "status.qosClass", old.get("qosClass"), new.get("qosClass"));
    for kind in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        ended(causes, kind, spec, old, new);
    }
    pod_addresses(causes, "podIPs", old, new);
    let host = text(&new["hostIPs"][0], "ip");
    if has(new, "hostIPs") && text(new, "hostIP") != host {
        causes.push(Cause::invalid("status.hostIPs[0].ip", host, "must be equal to `hostIP`"));
    }
    pod_addresses(causes, "hostIPs", old, new);
}

/// A container that ended stays so, unless it may be restarted.
fn ended(causes: &mut Vec<Cause>, kind: &str, spec: &Value, old: &Value, new: &Value) {
    let policy = if kind.starts_with("ephemeral") { "Never" } else { text(spec, "restartPolicy") };
    if policy == "Always" {
        return;
    }
    let running =
        |name: &str| list(new, kind).any(|(_, status)| text(status, "name") == name && !has(&status["state"], "terminated"));
    for (index, status) in list(old, kind).filter(|(_, status)| has(&status["state"], "terminated")) {
        let failed = status["state"]["terminated"]["exitCode"] != 0;
        if !(failed && policy == "OnFailure") && running(text(status, "name")) {
            let detail = "may not be transitioned to non-terminated state";
            causes.push(Cause::forbidden(format!("status.{kind}[{index}].state"), detail));
        }
    }
}

fn pod_addresses(causes: &mut Vec<Cause>, field: &str, old: &Value, new: &Value) {
    let known: Vec<_> = list(old, field).map(|(_, item)| text(item, "ip")).collect();
    for (index, item) in list(new, field).filter(|(_, item)| !known.contains(&text(item, "ip"))) {
        addresses::address(causes, &format!("status.{field}[{index}]"), text(item, "ip"));
    }
    let families: Vec<_> =
        list(new, field).filter_map(|(_, item)| addresses::parse(text(item, "ip"))).map(|ip| ip.is_ipv4()).collect();
    let count = list(new, field).len();
    if count > 2 || (count == 2 && families.len() == 2 && families[0] == families[1]) {
        let shown: Vec<_> = list(new, field).map(|(_, item)| json!({ "IP": text(item, "ip") })).collect();
        let detail = "may specify no more than one IP for each IP family";
        causes.push(Cause::invalid(format!("status.{field}"), Value::Array(shown), detail));
    }
}

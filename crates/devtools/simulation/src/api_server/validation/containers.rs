//! The containers of a pod.

use super::json::{has, invalid_each, list, not_negative, one_of, port_number, port_number_or_name, required_one_of, text};
use super::{Cause, names, resources, volumes};
use serde_json::Value;

/// What the containers of a pod share.
pub struct Pod<'a> {
    pub spec: &'a Value,
    /// The names of its valid volumes.
    pub volumes: &'a [&'a str],
}

impl Pod<'_> {
    fn grace(&self) -> Option<i64> {
        self.spec["terminationGracePeriodSeconds"].as_i64()
    }
}

pub fn containers(causes: &mut Vec<Cause>, path: &str, pod: &Pod<'_>) {
    let regular = format!("{path}.containers");
    if list(pod.spec, "containers").len() == 0 {
        causes.push(Cause::required(&regular, ""));
    }
    let mut known = Vec::new();
    for (index, container) in list(pod.spec, "containers") {
        let path = format!("{regular}[{index}]");
        common(causes, &path, container, pod);
        unique(causes, &path, container, &mut known, true);
        hooks_and_probes(causes, &path, container, pod);
    }
    let all: Vec<_> = list(pod.spec, "containers").collect();
    host_ports(causes, &regular, &all);
    let initial = format!("{path}.initContainers");
    for (index, container) in list(pod.spec, "initContainers") {
        init_container(causes, &initial, index, container, pod, &mut known);
    }
    let ephemeral = format!("{path}.ephemeralContainers");
    for (index, container) in list(pod.spec, "ephemeralContainers") {
        ephemeral_container(causes, &format!("{ephemeral}[{index}]"), container, pod, &mut known);
    }
}

fn unique<'a>(causes: &mut Vec<Cause>, path: &str, container: &'a Value, known: &mut Vec<&'a str>, empty_counts: bool) {
    let name = text(container, "name");
    if known.contains(&name) {
        causes.push(Cause::duplicate(format!("{path}.name"), name));
    } else if empty_counts || !name.is_empty() {
        known.push(name);
    }
}

fn init_container<'a>(
    causes: &mut Vec<Cause>,
    list_path: &str,
    index: usize,
    container: &'a Value,
    pod: &Pod<'_>,
    known: &mut Vec<&'a str>,
) {
    let path = format!("{list_path}[{index}]");
    common(causes, &path, container, pod);
    unique(causes, &path, container, known, false);
    host_ports(causes, list_path, &[(0, container)]);
    if container["restartPolicy"] == "Always" {
        hooks_and_probes(causes, &path, container, pod);
    } else {
        let detail = "may not be set for init containers without restartPolicy=Always";
        let fields = ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"];
        let given = fields.iter().filter(|field| has(container, field));
        causes.extend(given.map(|field| Cause::forbidden(format!("{path}.{field}"), detail)));
    }
}

fn ephemeral_container<'a>(causes: &mut Vec<Cause>, path: &str, container: &'a Value, pod: &Pod<'_>, known: &mut Vec<&'a str>) {
    common(causes, path, container, pod);
    trimmed_image(causes, path, container);
    unique(causes, path, container, known, true);
    let target = text(container, "targetContainerName");
    let names_target = |kind: &str| list(pod.spec, kind).any(|(_, container)| text(container, "name") == target);
    if !target.is_empty() && !names_target("containers") && !names_target("initContainers") {
        causes.push(Cause::not_found(format!("{path}.targetContainerName"), target));
    }
    let detail = "cannot be set for an Ephemeral Container";
    let fields = ["ports", "resources", "resizePolicy", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle"];
    let is_set = |field: &&&str| has(container, field) && container[**field] != serde_json::json!({});
    causes.extend(fields.iter().filter(is_set).map(|field| Cause::forbidden(format!("{path}.{field}"), detail)));
    for (index, mount) in list(container, "volumeMounts") {
        let given = ["subPath", "subPathExpr"].into_iter().filter(|field| !text(mount, field).is_empty());
        causes.extend(given.map(|field| Cause::forbidden(format!("{path}.volumeMounts[{index}].{field}"), detail)));
    }
}

/// An image that a pod starts has no spaces around it.
pub fn trimmed_image(causes: &mut Vec<Cause>, path: &str, container: &Value) {
    let image = text(container, "image");
    if image.trim().len() != image.len() {
        let detail = "must not have leading or trailing whitespace";
        causes.push(Cause::invalid(format!("{path}.image"), image, detail));
    }
}

fn common(causes: &mut Vec<Cause>, path: &str, container: &Value, pod: &Pod<'_>) {
    match text(container, "name") {
        "" => causes.push(Cause::required(format!("{path}.name"), "")),
        name => invalid_each(causes, &format!("{path}.name"), name, names::label(name)),
    }
    if text(container, "image").is_empty() {
        causes.push(Cause::required(format!("{path}.image"), ""));
    }
    let (policy, policies) = (text(container, "terminationMessagePolicy"), ["File", "FallbackToLogsOnError"]);
    required_one_of(causes, &format!("{path}.terminationMessagePolicy"), policy, &policies);
    ports(causes, &format!("{path}.ports"), container);
    environment(causes, &format!("{path}.env"), container);
    environment_from(causes, &format!("{path}.envFrom"), container);
    mounts(causes, &format!("{path}.volumeMounts"), container, pod);
    devices(causes, &format!("{path}.volumeDevices"), container, pod);
    let policies = ["Always", "IfNotPresent", "Never"];
    required_one_of(causes, &format!("{path}.imagePullPolicy"), text(container, "imagePullPolicy"), &policies);
    let given = &container["resources"];
    resources::requirements(causes, &format!("{path}.resources"), given, resources::container_resource);
    security(causes, &format!("{path}.securityContext"), &container["securityContext"]);
}

fn ports(causes: &mut Vec<Cause>, path: &str, container: &Value) {
    let mut known = Vec::new();
    for (index, port) in list(container, "ports") {
        let path = format!("{path}[{index}]");
        let name = text(port, "name");
        if !name.is_empty() {
            let problems = names::port_name(name);
            if known.contains(&name) {
                causes.push(Cause::duplicate(format!("{path}.name"), name));
            } else if problems.is_empty() {
                known.push(name);
            }
            invalid_each(causes, &format!("{path}.name"), name, problems);
        }
        if port["containerPort"] == 0 {
            causes.push(Cause::required(format!("{path}.containerPort"), ""));
        } else {
            port_number(causes, &format!("{path}.containerPort"), &port["containerPort"]);
        }
        if has(port, "hostPort") {
            port_number(causes, &format!("{path}.hostPort"), &port["hostPort"]);
        }
        required_one_of(causes, &format!("{path}.protocol"), text(port, "protocol"), &["SCTP", "TCP", "UDP"]);
    }
}

fn host_ports(causes: &mut Vec<Cause>, path: &str, containers: &[(usize, &Value)]) {
    let mut known = Vec::new();
    for (index, container) in containers {
        for (at, port) in list(container, "ports") {
            let Some(number) = port["hostPort"].as_i64().filter(|number| *number != 0) else { continue };
            let key = format!("{}/{}/{number}", text(port, "protocol"), text(port, "hostIP"));
            if known.contains(&key) {
                causes.push(Cause::duplicate(format!("{path}[{index}].ports[{at}].hostPort"), key));
            } else {
                known.push(key);
            }
        }
    }
}

fn environment(causes: &mut Vec<Cause>, path: &str, container: &Value) {
    for (index, variable) in list(container, "env") {
        let path = format!("{path}[{index}]");
        match text(variable, "name") {
            "" => causes.push(Cause::required(format!("{path}.name"), "")),
            name => invalid_each(causes, &format!("{path}.name"), name, names::variable(name)),
        }
        if has(variable, "valueFrom") {
            variable_source(causes, &format!("{path}.valueFrom"), variable);
        }
    }
}

fn variable_source(causes: &mut Vec<Cause>, path: &str, variable: &Value) {
    const FIELDS: [&str; 9] = [
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    ];
    let source = &variable["valueFrom"];
    if has(source, "fieldRef") {
        volumes::field_ref(causes, &format!("{path}.fieldRef"), &source["fieldRef"], &FIELDS);
    }
    if has(source, "resourceFieldRef") {
        volumes::amount_ref(causes, &format!("{path}.resourceFieldRef"), &source["resourceFieldRef"], false);
    }
    for field in ["configMapKeyRef", "secretKeyRef"].into_iter().filter(|field| has(source, field)) {
        let path = format!("{path}.{field}");
        let (name, key) = (text(&source[field], "name"), text(&source[field], "key"));
        invalid_each(causes, &format!("{path}.name"), name, names::subdomain(name));
        match key {
            "" => causes.push(Cause::required(format!("{path}.key"), "")),
            key => invalid_each(causes, &format!("{path}.key"), key, names::config_key(key)),
        }
    }
    let sources = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef"];
    let detail = match sources.iter().filter(|field| has(source, field)).count() {
        0 => "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`",
        _ if !text(variable, "value").is_empty() => "may not be specified when `value` is not empty",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    causes.push(Cause::invalid(path, "", detail));
}

fn environment_from(causes: &mut Vec<Cause>, path: &str, container: &Value) {
    for (index, source) in list(container, "envFrom") {
        let item = format!("{path}[{index}]");
        let prefix = text(source, "prefix");
        if !prefix.is_empty() {
            invalid_each(causes, &format!("{item}.prefix"), prefix, names::variable(prefix));
        }
        let given: Vec<_> = ["configMapRef", "secretRef"].into_iter().filter(|field| has(source, field)).collect();
        for field in &given {
            let path = format!("{item}.{field}.name");
            match text(&source[*field], "name") {
                "" => causes.push(Cause::required(path, "")),
                name => invalid_each(causes, &path, name, names::subdomain(&names::mask_trailing_dash(name))),
            }
        }
        match given.len() {
            0 => causes.push(Cause::invalid(path, "", "must specify one of: `configMapRef` or `secretRef`")),
            1 => {}
            _ => causes.push(Cause::invalid(path, "", "may not have more than one field specified at a time")),
        }
    }
}

fn mounts(causes: &mut Vec<Cause>, path: &str, container: &Value, pod: &Pod<'_>) {
    let device = |field: &str, value: &str| list(container, "volumeDevices").any(|(_, device)| text(device, field) == value);
    let mut targets = Vec::new();
    for (index, mount) in list(container, "volumeMounts") {
        let item = format!("{path}[{index}]");
        let (name, target) = (text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            causes.push(Cause::required(format!("{item}.name"), ""));
        }
        if !pod.volumes.contains(&name) {
            causes.push(Cause::not_found(format!("{item}.name"), name));
        }
        if target.is_empty() {
            causes.push(Cause::required(format!("{item}.mountPath"), ""));
        }
        if targets.contains(&target) {
            causes.push(Cause::invalid(format!("{item}.mountPath"), target, "must be unique"));
        }
        targets.push(target);
        if device("name", name) {
            causes.push(Cause::invalid(format!("{item}.name"), name, "must not already exist in volumeDevices"));
        }
        if device("devicePath", target) {
            let detail = "must not already exist as a path in volumeDevices";
            causes.push(Cause::invalid(format!("{item}.mountPath"), target, detail));
        }
        parts_of_volume(causes, path, &item, mount);
        propagation(causes, &format!("{path}.mountPropagation"), mount, container);
    }
}

fn parts_of_volume(causes: &mut Vec<Cause>, path: &str, item: &str, mount: &Value) {
    let (part, expression) = (text(mount, "subPath"), text(mount, "subPathExpr"));
    if !part.is_empty() {
        volumes::descending_path(causes, &format!("{path}.subPath"), part);
    }
    if !expression.is_empty() {
        if !part.is_empty() {
            let detail = "subPathExpr and subPath are mutually exclusive";
            causes.push(Cause::invalid(format!("{item}.subPathExpr"), expression, detail));
        }
        volumes::descending_path(causes, &format!("{path}.subPathExpr"), expression);
    }
}

fn propagation(causes: &mut Vec<Cause>, path: &str, mount: &Value, container: &Value) {
    let Some(propagation) = mount["mountPropagation"].as_str() else { return };
    one_of(causes, path, propagation, &["Bidirectional", "HostToContainer", "None"]);
    if propagation == "Bidirectional" && container["securityContext"]["privileged"] != true {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        causes.push(Cause::forbidden(path, detail));
    }
}

fn devices(causes: &mut Vec<Cause>, path: &str, container: &Value, pod: &Pod<'_>) {
    let (mut known, mut targets) = (Vec::new(), Vec::new());
    for (index, device) in list(container, "volumeDevices") {
        let item = format!("{path}[{index}]");
        let (name, target) = (text(device, "name"), text(device, "devicePath"));
        let volume = list(pod.spec, "volumes").find(|(_, volume)| text(volume, "name") == name && pod.volumes.contains(&name));
        if name.is_empty() {
            causes.push(Cause::required(format!("{item}.name"), ""));
        }
        if known.contains(&name) {
            causes.push(Cause::invalid(format!("{item}.name"), name, "must be unique"));
        }
        match volume {
            None => causes.push(Cause::not_found(format!("{item}.name"), name)),
            Some((_, volume)) if !has(volume, "persistentVolumeClaim") && !has(volume, "ephemeral") => {
                let detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                causes.push(Cause::invalid(format!("{item}.name"), name, detail));
            }
            Some(_) => {}
        }
        if target.is_empty() {
            causes.push(Cause::required(format!("{item}.devicePath"), ""));
        }
        if targets.contains(&target) {
            causes.push(Cause::invalid(format!("{item}.devicePath"), target, "must be unique"));
        }
        known.push(name);
        targets.push(target);
    }
}

fn hooks_and_probes(causes: &mut Vec<Cause>, path: &str, container: &Value, pod: &Pod<'_>) {
    for hook in ["postStart", "preStop"] {
        if let Some(handler_of) = container["lifecycle"].get(hook).filter(|hook| !hook.is_null()) {
            handler(causes, &format!("{path}.lifecycle.{hook}"), handler_of, pod);
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if has(container, name) {
            probe(causes, &format!("{path}.{name}"), name, &container[name], pod);
        }
    }
}

fn probe(causes: &mut Vec<Cause>, path: &str, name: &str, probe: &Value, pod: &Pod<'_>) {
    handler(causes, path, probe, pod);
    for field in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        not_negative(causes, &format!("{path}.{field}"), &probe[field]);
    }
    let grace = probe["terminationGracePeriodSeconds"].as_i64();
    let grace_path = format!("{path}.terminationGracePeriodSeconds");
    if let Some(grace) = grace.filter(|grace| *grace <= 0) {
        causes.push(Cause::invalid(&grace_path, grace, "must be greater than 0"));
    }
    match (name, grace) {
        ("readinessProbe", Some(grace)) => {
            causes.push(Cause::invalid(grace_path, grace, "must not be set for readinessProbes"));
        }
        ("livenessProbe" | "startupProbe", _) if probe["successThreshold"] != 1 => {
            let threshold = probe["successThreshold"].clone();
            causes.push(Cause::invalid(format!("{path}.successThreshold"), threshold, "must be 1"));
        }
        _ => {}
    }
}

fn handler(causes: &mut Vec<Cause>, path: &str, handler: &Value, pod: &Pod<'_>) {
    let kinds = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];
    let mut given = kinds.into_iter().filter(|kind| has(handler, kind));
    let Some(kind) = given.next() else {
        causes.push(Cause::required(path, "must specify a handler type"));
        return;
    };
    let (of, at) = (&handler[kind], format!("{path}.{kind}"));
    match kind {
        "exec" if list(of, "command").len() == 0 => causes.push(Cause::required(format!("{at}.command"), "")),
        "exec" => {}
        "httpGet" => http_get(causes, &at, of),
        "sleep" => {
            let seconds = of["seconds"].as_i64().unwrap_or(0);
            if let Some(grace) = pod.grace().filter(|grace| seconds < 0 || seconds > *grace) {
                let detail = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                causes.push(Cause::invalid(at, seconds, detail));
            }
        }
        _ => port_number_or_name(causes, &format!("{at}.port"), &of["port"]),
    }
    let detail = "may not specify more than 1 handler type";
    causes.extend(given.map(|kind| Cause::forbidden(format!("{path}.{kind}"), detail)));
}

fn http_get(causes: &mut Vec<Cause>, path: &str, action: &Value) {
    if text(action, "path").is_empty() {
        causes.push(Cause::required(format!("{path}.path"), ""));
    }
    port_number_or_name(causes, &format!("{path}.port"), &action["port"]);
    one_of(causes, &format!("{path}.scheme"), text(action, "scheme"), &["HTTP", "HTTPS"]);
    for (_, header) in list(action, "httpHeaders") {
        let name = text(header, "name");
        invalid_each(causes, &format!("{path}.httpHeaders"), name, names::header(name));
    }
}

fn security(causes: &mut Vec<Cause>, path: &str, context: &Value) {
    for field in ["runAsUser", "runAsGroup"] {
        system_id(causes, &format!("{path}.{field}"), &context[field]);
    }
    if context["allowPrivilegeEscalation"] == false {
        if context["privileged"] == true {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            causes.push(Cause::invalid(path, internal_security(context), detail));
        }
        for _ in list(&context["capabilities"], "add").filter(|(_, capability)| *capability == "CAP_SYS_ADMIN") {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            causes.push(Cause::invalid(path, internal_security(context), detail));
        }
    }
}

/// Go prints the field names of its own type.
fn internal_security(context: &Value) -> Value {
    let fields = [
        "capabilities",
        "privileged",
        "seLinuxOptions",
        "windowsOptions",
        "runAsUser",
        "runAsGroup",
        "runAsNonRoot",
        "readOnlyRootFilesystem",
        "allowPrivilegeEscalation",
        "procMount",
        "seccompProfile",
        "appArmorProfile",
    ];
    let upper = |field: &str| match field {
        "seLinuxOptions" => "SELinuxOptions".to_owned(),
        _ => field[..1].to_uppercase() + &field[1..],
    };
    let shown = |field: &str| match field {
        "capabilities" if has(context, field) => {
            let capabilities = &context[field];
            serde_json::json!({ "Add": capabilities["add"], "Drop": capabilities["drop"] })
        }
        _ => context[field].clone(),
    };
    Value::Object(fields.iter().map(|field| (upper(field), shown(field))).collect())
}

/// The number of a user or group.
pub fn system_id(causes: &mut Vec<Cause>, path: &str, id: &Value) {
    if let Some(id) = id.as_i64().filter(|id| !(0..=i64::from(i32::MAX)).contains(id)) {
        causes.push(Cause::invalid(path, id, "must be between 0 and 2147483647, inclusive"));
    }
}

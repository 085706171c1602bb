//! The volumes of a pod.

use super::json::{has, invalid_each, list, one_of, text};
use super::{Cause, claims, names};
use liqo_quantity::Quantity;
use serde_json::Value;

/// Where the values of a pod's fields come from, and which of them a volume may show.
const FIELDS: [&str; 5] = ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
const AMOUNTS: [&str; 6] =
    ["limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu", "requests.ephemeral-storage", "requests.memory"];

/// Checks the volumes of a spec, and returns the names of those that are valid. `pod` is the name of the pod, if it is one.
pub fn volumes<'a>(causes: &mut Vec<Cause>, path: &str, spec: &'a Value, pod: &str) -> Vec<&'a str> {
    let mut valid = Vec::new();
    for (index, volume) in list(spec, "volumes") {
        let path = format!("{path}.volumes[{index}]");
        let before = causes.len();
        sources(causes, &path, volume);
        let (name, name_path) = (text(volume, "name"), format!("{path}.name"));
        match name {
            "" => causes.push(Cause::required(&name_path, "")),
            name => invalid_each(causes, &name_path, name, names::label(name)),
        }
        if valid.contains(&name) {
            causes.push(Cause::duplicate(&name_path, name));
        }
        if causes.len() == before {
            valid.push(name);
        }
        let claim = text(&volume["persistentVolumeClaim"], "claimName");
        let is_created = |other: &Value| has(other, "ephemeral") && format!("{pod}-{}", text(other, "name")) == claim;
        if !pod.is_empty() && list(spec, "volumes").any(|(_, other)| is_created(other)) {
            let detail = "must not reference a PVC that gets created for an ephemeral volume";
            causes.push(Cause::invalid(format!("{path}.persistentVolumeClaim.claimName"), claim, detail));
        }
    }
    valid
}

fn sources(causes: &mut Vec<Cause>, path: &str, volume: &Value) {
    let known = [
        "emptyDir",
        "hostPath",
        "secret",
        "nfs",
        "persistentVolumeClaim",
        "downwardAPI",
        "configMap",
        "projected",
        "csi",
        "ephemeral",
    ];
    let mut given = known.iter().filter(|source| has(volume, source));
    if let Some(source) = given.next() {
        volume_source(causes, &format!("{path}.{source}"), source, &volume[*source]);
    }
    // Go has this name wrong.
    let spell = |source: &&str| if *source == "downwardAPI" { "downwarAPI" } else { source.to_owned() }.to_owned();
    causes.extend(
        given.map(|source| Cause::forbidden(format!("{path}.{}", spell(source)), "may not specify more than 1 volume type")),
    );
}

fn volume_source(causes: &mut Vec<Cause>, path: &str, kind: &str, source: &Value) {
    match kind {
        "emptyDir" => {
            let limit = source["sizeLimit"].as_str().and_then(|limit| limit.parse::<Quantity>().ok());
            if limit.is_some_and(Quantity::is_negative) {
                let detail = "SizeLimit field must be a valid resource quantity";
                causes.push(Cause::forbidden(format!("{path}.sizeLimit"), detail));
            }
        }
        "hostPath" => host_path(causes, path, source),
        "secret" => {
            required(causes, path, source, "secretName");
            keyed(causes, path, source);
        }
        "configMap" => {
            required(causes, path, source, "name");
            keyed(causes, path, source);
        }
        "persistentVolumeClaim" => required(causes, path, source, "claimName"),
        "nfs" => {
            required(causes, path, source, "server");
            required(causes, path, source, "path");
            if !text(source, "path").starts_with('/') {
                let detail = "must be an absolute path";
                causes.push(Cause::invalid(format!("{path}.path"), text(source, "path"), detail));
            }
        }
        "downwardAPI" => {
            mode(causes, path, source, "defaultMode");
            list(source, "items").for_each(|(_, file)| downward_file(causes, path, file));
        }
        "projected" => projected(causes, path, source),
        "csi" => csi(causes, path, source),
        "ephemeral" => match source.get("volumeClaimTemplate").filter(|template| !template.is_null()) {
            Some(template) => claims::template(causes, &format!("{path}.volumeClaimTemplate"), template),
            None => causes.push(Cause::required(format!("{path}.volumeClaimTemplate"), "")),
        },
        _ => {}
    }
}

fn required(causes: &mut Vec<Cause>, path: &str, object: &Value, field: &str) {
    if text(object, field).is_empty() {
        causes.push(Cause::required(format!("{path}.{field}"), ""));
    }
}

fn host_path(causes: &mut Vec<Cause>, path: &str, source: &Value) {
    let types = ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    match text(source, "path") {
        "" => causes.push(Cause::required(format!("{path}.path"), "")),
        target => {
            no_steps_back(causes, &format!("{path}.path"), target);
            one_of(causes, &format!("{path}.type"), text(source, "type"), &types);
        }
    }
}

fn mode(causes: &mut Vec<Cause>, path: &str, object: &Value, field: &str) {
    if let Some(mode) = object[field].as_i64().filter(|mode| !(0..=0o777).contains(mode)) {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        causes.push(Cause::invalid(format!("{path}.{field}"), mode, detail));
    }
}

fn keyed(causes: &mut Vec<Cause>, path: &str, source: &Value) {
    mode(causes, path, source, "defaultMode");
    for (index, item) in list(source, "items") {
        key_to_path(causes, &format!("{path}.items[{index}]"), item);
    }
}

fn key_to_path(causes: &mut Vec<Cause>, path: &str, item: &Value) {
    required(causes, path, item, "key");
    required(causes, path, item, "path");
    inner_path(causes, &format!("{path}.path"), text(item, "path"));
    mode(causes, path, item, "mode");
}

/// A path must not leave its directory by `..`.
pub fn no_steps_back(causes: &mut Vec<Cause>, path: &str, target: &str) {
    if target.split('/').any(|part| part == "..") {
        causes.push(Cause::invalid(path, target, "must not contain '..'"));
    }
}

/// A path that stays below a directory.
pub fn descending_path(causes: &mut Vec<Cause>, path: &str, target: &str) {
    if target.starts_with('/') {
        causes.push(Cause::invalid(path, target, "must be a relative path"));
    }
    no_steps_back(causes, path, target);
}

fn inner_path(causes: &mut Vec<Cause>, path: &str, target: &str) {
    descending_path(causes, path, target);
    if target.starts_with("..") && !target.starts_with("../") {
        causes.push(Cause::invalid(path, target, "must not start with '..'"));
    }
}

fn downward_file(causes: &mut Vec<Cause>, path: &str, file: &Value) {
    required(causes, path, file, "path");
    inner_path(causes, &format!("{path}.path"), text(file, "path"));
    if has(file, "fieldRef") {
        field_ref(causes, &format!("{path}.fieldRef"), &file["fieldRef"], &FIELDS);
        if has(file, "resourceFieldRef") {
            let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
            causes.push(Cause::invalid(path, "resource", detail));
        }
    } else if has(file, "resourceFieldRef") {
        amount_ref(causes, &format!("{path}.resourceFieldRef"), &file["resourceFieldRef"], true);
    } else {
        causes.push(Cause::required(path, "one of fieldRef and resourceFieldRef is required"));
    }
    mode(causes, path, file, "mode");
}

/// A field of a pod whose value an environment variable or a file shows.
pub fn field_ref(causes: &mut Vec<Cause>, path: &str, field: &Value, supported: &[&str]) {
    const CONVERTED: [&str; 9] = [
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.serviceAccountName",
        "spec.schedulerName",
        "status.phase",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    ];
    let of = text(field, "fieldPath");
    let path_of_field = format!("{path}.fieldPath");
    if of.is_empty() {
        causes.push(Cause::required(path_of_field, ""));
        return;
    }
    let subscripted = of.strip_suffix("']").and_then(|rest| rest.split_once("['"));
    match (text(field, "apiVersion"), subscripted) {
        ("v1", Some(("metadata.annotations", key))) => {
            invalid_each(causes, path, key, names::qualified_name(&key.to_lowercase()));
        }
        ("v1", Some(("metadata.labels", key))) => invalid_each(causes, path, key, names::qualified_name(key)),
        ("v1", None) if FIELDS.contains(&of) || CONVERTED.contains(&of) => one_of(causes, &path_of_field, of, supported),
        (version, subscripted) => {
            let reason = match subscripted {
                _ if version != "v1" => format!("unsupported pod version: {version}"),
                Some(_) => format!("field label does not support subscript: {of}"),
                None => format!("field label not supported: {of}"),
            };
            causes.push(Cause::invalid(path_of_field, of, format!("error converting fieldPath: {reason}")));
        }
    }
}

/// An amount of a container that an environment variable or a file shows.
pub fn amount_ref(causes: &mut Vec<Cause>, path: &str, reference: &Value, of_volume: bool) {
    let resource = text(reference, "resource");
    let huge = ["requests.hugepages-", "limits.hugepages-"].iter().any(|prefix| resource.starts_with(prefix));
    if of_volume && text(reference, "containerName").is_empty() {
        causes.push(Cause::required(format!("{path}.containerName"), ""));
    } else if resource.is_empty() {
        causes.push(Cause::required(format!("{path}.resource"), ""));
    } else if !huge {
        one_of(causes, &format!("{path}.resource"), resource, &AMOUNTS);
    }
    divisor(causes, path, resource, text(reference, "divisor"));
}

fn divisor(causes: &mut Vec<Cause>, path: &str, resource: &str, divisor: &str) {
    const UNITS: [&str; 13] = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
    let (allowed, what): (&[&str], _) = match resource.split_once('.').map_or("", |(_, name)| name) {
        "cpu" => (&["1m", "1"], "cpu"),
        "memory" => (&UNITS, "memory"),
        "ephemeral-storage" => (&UNITS, "local ephemeral storage"),
        name if name.starts_with("hugepages-") => (&UNITS, "hugepages"),
        _ => return,
    };
    if !matches!(divisor, "" | "0") && !allowed.contains(&divisor) {
        let values = if what == "cpu" { "1m and 1".to_owned() } else { UNITS.join(", ") };
        let detail = format!("only divisor's values {values} are supported with the {what} resource");
        causes.push(Cause::invalid(format!("{path}.divisor"), resource, detail));
    }
}

fn projected(causes: &mut Vec<Cause>, path: &str, source: &Value) {
    mode(causes, path, source, "defaultMode");
    let mut known = Vec::new();
    for (index, projection) in list(source, "sources") {
        let at = format!("{path}.sources[{index}]");
        let kinds = ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate"];
        for kind in kinds.iter().filter(|kind| has(projection, kind)) {
            let (at, part) = (format!("{at}.{kind}"), &projection[*kind]);
            match *kind {
                "secret" | "configMap" => required(causes, &at, part, "name"),
                "serviceAccountToken" => token(causes, path, &at, part),
                _ => {}
            }
            for (index, item) in list(part, "items") {
                if *kind == "downwardAPI" {
                    downward_file(causes, &at, item);
                } else {
                    key_to_path(causes, &format!("{at}.items[{index}]"), item);
                }
                let target = text(item, "path");
                if !target.is_empty() && known.contains(&target) {
                    let shown = if *kind == "downwardAPI" { target } else { text(part, "name") };
                    causes.push(Cause::invalid(path, shown, "conflicting duplicate paths"));
                }
                known.push(target);
            }
        }
        if kinds.iter().filter(|kind| has(projection, kind)).count() > 1 {
            causes.push(Cause::forbidden(at, "may not specify more than 1 volume type per source"));
        }
    }
}

fn token(causes: &mut Vec<Cause>, volume: &str, path: &str, token: &Value) {
    let seconds = token["expirationSeconds"].as_i64().unwrap_or(0);
    if seconds < 600 {
        let detail = "may not specify a duration less than 10 minutes";
        causes.push(Cause::invalid(format!("{path}.expirationSeconds"), seconds, detail));
    }
    if seconds > 1 << 32 {
        let detail = "may not specify a duration larger than 2^32 seconds";
        causes.push(Cause::invalid(format!("{path}.expirationSeconds"), seconds, detail));
    }
    match text(token, "path") {
        "" => causes.push(Cause::required(format!("{volume}.path"), "")),
        target => inner_path(causes, &format!("{volume}.path"), target),
    }
}

fn csi(causes: &mut Vec<Cause>, path: &str, source: &Value) {
    let driver = text(source, "driver");
    required(causes, path, source, "driver");
    let path_of_driver = format!("{path}.driver");
    if driver.len() > 63 {
        causes.push(Cause::too_long(&path_of_driver, 63));
    }
    invalid_each(causes, &path_of_driver, driver, names::subdomain(&driver.to_lowercase()));
    if has(source, "nodePublishSecretRef") {
        match text(&source["nodePublishSecretRef"], "name") {
            "" => causes.push(Cause::required(format!("{path}.nodePublishSecretRef.name"), "")),
            name => invalid_each(causes, &format!("{path}.name"), name, names::subdomain(name)),
        }
    }
}

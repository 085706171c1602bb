//! Config maps, secrets and service accounts: bags of bytes.

use super::json::{entries, has, immutable, invalid_each, text};
use super::{Cause, names};
use data_encoding::BASE64;
use serde_json::{Map, Value};

const MOST_BYTES: usize = 1024 * 1024;

fn decoded_len(value: &Value) -> usize {
    decode(value).len()
}

fn decode(value: &Value) -> Vec<u8> {
    BASE64.decode(value.as_str().unwrap_or_default().as_bytes()).unwrap_or_default()
}

fn keys(causes: &mut Vec<Cause>, object: &Value, bag: &str) {
    for (key, _) in entries(object, bag) {
        invalid_each(causes, &format!("{bag}[{key}]"), key, names::config_key(key));
    }
}

pub fn config_map(causes: &mut Vec<Cause>, object: &Value) {
    keys(causes, object, "data");
    for (key, _) in entries(object, "data").filter(|(key, _)| has(&object["binaryData"], key)) {
        causes.push(Cause::invalid(format!("data[{key}]"), key.as_str(), "duplicate of key present in binaryData"));
    }
    keys(causes, object, "binaryData");
    let texts: usize = entries(object, "data").map(|(_, value)| value.as_str().map_or(0, str::len)).sum();
    let bytes: usize = entries(object, "binaryData").map(|(_, value)| decoded_len(value)).sum();
    if texts + bytes > MOST_BYTES {
        // So Go prints an empty path.
        causes.push(Cause::too_long("[]", MOST_BYTES));
    }
}

pub fn secret(causes: &mut Vec<Cause>, object: &Value) {
    keys(causes, object, "data");
    if entries(object, "data").map(|(_, value)| decoded_len(value)).sum::<usize>() > MOST_BYTES {
        causes.push(Cause::too_long("data", MOST_BYTES));
    }
    let data = |key: &str| object["data"].get(key);
    let mut require = |keys: &[&str]| {
        let missing = keys.iter().filter(|key| data(key).is_none());
        causes.extend(missing.map(|key| Cause::required(format!("data[{key}]"), "")));
    };
    match text(object, "type") {
        "kubernetes.io/service-account-token" => {
            let name = "kubernetes.io/service-account.name";
            if text(&object["metadata"]["annotations"], name).is_empty() {
                causes.push(Cause::required(format!("metadata.annotations[{name}]"), ""));
            }
        }
        "kubernetes.io/dockercfg" => docker_config(causes, ".dockercfg", data(".dockercfg")),
        "kubernetes.io/dockerconfigjson" => docker_config(causes, ".dockerconfigjson", data(".dockerconfigjson")),
        "kubernetes.io/basic-auth" if data("username").or(data("password")).is_none() => require(&["username", "password"]),
        "kubernetes.io/ssh-auth" if data("ssh-privatekey").is_none_or(|key| key == "") => {
            causes.push(Cause::required("data[ssh-privatekey]", ""));
        }
        "kubernetes.io/tls" => require(&["tls.crt", "tls.key"]),
        _ => {}
    }
}

fn docker_config(causes: &mut Vec<Cause>, key: &str, value: Option<&Value>) {
    let path = format!("data[{key}]");
    match value.map(|value| serde_json::from_slice::<Option<Map<String, Value>>>(&decode(value))) {
        None => causes.push(Cause::required(path, "")),
        Some(Ok(_)) => {}
        Some(Err(error)) => causes.push(Cause::invalid(path, "<secret contents redacted>", go_json_error(&error))),
    }
}

fn go_json_error(error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".to_owned();
    }
    "invalid character looking for beginning of value".to_owned()
}

/// What an update of a config map or secret must leave as it is.
pub fn update(causes: &mut Vec<Cause>, kind: &str, old: &Value, new: &Value) {
    let bags: &[&str] = if kind == "Secret" { &["data"] } else { &["data", "binaryData"] };
    if kind == "Secret" {
        immutable(causes, "type", old.get("type"), new.get("type"));
    }
    if old["immutable"] == true {
        let detail = "field is immutable when `immutable` is set";
        if new["immutable"] != true {
            causes.push(Cause::forbidden("immutable", detail));
        }
        causes.extend(bags.iter().filter(|bag| old.get(bag) != new.get(bag)).map(|bag| Cause::forbidden(*bag, detail)));
    }
}

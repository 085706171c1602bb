//! Parts of schemas that the derive macros cannot express.

use k8s_openapi::api::core::v1::Toleration;
use liqo_quantity::{MAX_RATES, MAX_RESOURCE_NAME_LEN, Rates};
use schemars::{JsonSchema as _, Schema, SchemaGenerator, json_schema};

use crate::ClusterId;
use crate::largest_pods::MAX_LARGEST_PODS;
use crate::record_text::{MAX_ENTRIES_LEN, MAX_OBJECT_LEN, MAX_POD_LEN};

/// Maximum number of resources that a pod may name, or a request.
pub const MAX_RESOURCES: usize = 64;

/// Maximum number of prefixes behind a cluster in its announcement.
pub const MAX_BEHIND: usize = 64;
/// Maximum number of clusters on the way to a prefix behind a cluster.
pub const MAX_WAY_LEN: usize = 8;
/// Maximum number of consumers whose pods run at one peer.
pub const MAX_CUSTOMERS: usize = 1024;

/// An object of any shape. The API server keeps all its fields.
pub fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// The text of a pod in a record.
pub fn pod_text(_: &mut SchemaGenerator) -> Schema {
    record_text(MAX_POD_LEN)
}

/// The text of another object in a record.
pub fn object_text(_: &mut SchemaGenerator) -> Schema {
    record_text(MAX_OBJECT_LEN)
}

/// Plain ASCII, so that the number of characters, which the schema limits, is about the number of bytes in etcd. A pattern would do,
/// but the API server repeats the whole text when it refuses it by a pattern.
fn record_text(max_len: usize) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": max_len,
        "x-kubernetes-validations": [{
            "rule": r#"self.matches("^[ -%'-;=?-~]*$")"#,
            "message": "JSON text of a record is printable ASCII; other characters and <, > and & are escaped as \\uXXXX",
        }],
    })
}

/// The lines of a usage record, see `docs/metering.md`. A pattern would do, but the API server repeats the whole text when it refuses it
/// by a pattern.
pub fn usage_entries(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": MAX_ENTRIES_LEN,
        "x-kubernetes-validations": [{
            "rule": r#"self.matches("^[ -~\n]*$")"#,
            "message": "the entries of a usage record are lines of printable ASCII",
        }],
    })
}

/// Maximum amounts of at most [`MAX_RESOURCES`] resources.
pub fn requested_resources(generator: &mut SchemaGenerator) -> Schema {
    let mut list = liqo_quantity::ResourceList::json_schema(generator);
    list.insert("maxProperties".to_owned(), MAX_RESOURCES.into());
    let rule = serde_json::json!([{
        "rule": format!("self.all(name, name.size() <= {MAX_RESOURCE_NAME_LEN})"),
        "message": "the name of a resource has at most 317 characters",
    }]);
    list.insert("x-kubernetes-validations".to_owned(), rule);
    list
}

/// Free amounts of a few nodes.
pub fn largest_pods(generator: &mut SchemaGenerator) -> Schema {
    let mut one = liqo_quantity::ResourceList::json_schema(generator);
    one.insert("maxProperties".to_owned(), MAX_RESOURCES.into());
    json_schema!({ "type": "array", "maxItems": MAX_LARGEST_PODS, "items": one })
}

/// Half as many rates as an offer may have, because those of the policy and those of a pool come together in it.
pub fn some_rates(generator: &mut SchemaGenerator) -> Schema {
    let mut rates = Rates::json_schema(generator);
    rates.insert("maxProperties".to_owned(), (MAX_RATES / 2).into());
    rates
}

/// An amount of money that is not negative.
pub fn amount_of_money(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "pattern": r"^[0-9]{1,18}(\.[0-9]{1,9})?$" })
}

/// Rates by the name of a pool, at most as many as a provider offers.
pub fn rates_of_pools(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "maxProperties": 16, "additionalProperties": some_rates(generator) })
}

/// Tolerations of named taints that are not Liqo's own. Without the maximum lengths the API server rejects the rule as too costly.
pub fn tolerations(generator: &mut SchemaGenerator) -> Schema {
    let mut one = Toleration::json_schema(generator);
    one.insert("required".to_owned(), ["key"].as_slice().into());
    if let Some(key) = one.pointer_mut("/properties/key").and_then(|key| key.as_object_mut()) {
        key.insert("minLength".to_owned(), 1.into());
        key.insert("maxLength".to_owned(), 316.into());
        let rule = serde_json::json!([{
            "rule": "!self.matches('^([^/]*[.])?liqo[.]io/')",
            "message": "a peer's pods do not tolerate Liqo's own taints: they would land on virtual nodes",
        }]);
        key.insert("x-kubernetes-validations".to_owned(), rule);
    }
    json_schema!({ "type": "array", "maxItems": 64, "items": one })
}

/// Names of classes. The empty name is the default class of the cluster.
pub fn class_names(_: &mut SchemaGenerator) -> Schema {
    let pattern = "^$|^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$";
    json_schema!({ "type": "array", "maxItems": 64, "items": { "type": "string", "maxLength": 253, "pattern": pattern } })
}

/// Patterns of host names.
pub fn host_patterns(_: &mut SchemaGenerator) -> Schema {
    let pattern = r"^\*$|^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
    json_schema!({ "type": "array", "maxItems": 256, "items": { "type": "string", "maxLength": 253, "pattern": pattern } })
}

/// Names of namespaces, and address ranges.
pub fn ingress_sources(_: &mut SchemaGenerator) -> Schema {
    let namespace = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$";
    let pattern = format!("{namespace}|{}", prefix_pattern());
    json_schema!({ "type": "array", "maxItems": 64, "items": { "type": "string", "maxLength": 63, "pattern": pattern } })
}

/// Address ranges that peers keep.
pub fn kept_prefixes(_: &mut SchemaGenerator) -> Schema {
    let pattern = prefix_pattern();
    json_schema!({ "type": "array", "maxItems": 64, "items": { "type": "string", "maxLength": MAX_PREFIX_LEN, "pattern": pattern } })
}

/// An address range in CIDR notation.
fn prefix_pattern() -> String {
    let octet = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    let ipv4 = format!(r"^({octet}\.){{3}}{octet}/([12]?[0-9]|3[0-2])$");
    let ipv6 = "^[0-9a-fA-F]{0,4}:[0-9a-fA-F:.]*/(12[0-8]|1[01][0-9]|[1-9]?[0-9])$";
    format!("{ipv4}|{ipv6}")
}

/// Maximum length of the text of a prefix.
const MAX_PREFIX_LEN: u32 = 50;

/// A list of address prefixes.
pub fn prefixes(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "maxItems": 1024, "items": { "type": "string", "maxLength": MAX_PREFIX_LEN } })
}

/// A map whose keys are address prefixes.
pub fn prefix_map(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 1024,
        "additionalProperties": { "type": "string", "maxLength": MAX_PREFIX_LEN },
        "x-kubernetes-validations": [{
            "rule": format!("self.all(prefix, prefix.size() <= {MAX_PREFIX_LEN})"),
            "message": "the text of a prefix is too long",
        }],
    })
}

/// A map from address prefixes to MTUs.
pub fn path_mtus(generator: &mut SchemaGenerator) -> Schema {
    let mut mtus = prefix_map(generator);
    mtus.insert("additionalProperties".to_owned(), u16::json_schema(generator).to_value());
    mtus
}

/// A map from address prefixes behind a cluster to the clusters on the way there.
pub fn prefixes_behind(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": MAX_BEHIND,
        "additionalProperties": {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_WAY_LEN,
            "items": ClusterId::json_schema(generator),
        },
        "x-kubernetes-validations": [{
            "rule": format!("self.all(prefix, prefix.size() <= {MAX_PREFIX_LEN})"),
            "message": "the text of a prefix is too long",
        }],
    })
}

/// A list of IDs of clusters.
pub fn cluster_ids(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "maxItems": MAX_CUSTOMERS, "items": ClusterId::json_schema(generator) })
}

/// A list of names of virtual nodes and clusters.
pub fn order_of_clusters(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "maxItems": 64, "items": { "type": "string", "minLength": 1, "maxLength": 253 } })
}

/// Names of namespaces, or the beginning of names and `*`. Without the maximum lengths the API server rejects the admission policy that
/// reads them as too costly.
pub fn system_namespaces(_: &mut SchemaGenerator) -> Schema {
    let pattern = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$|^[a-z0-9][-a-z0-9]{0,61}\*$";
    json_schema!({ "type": "array", "maxItems": 64, "items": { "type": "string", "maxLength": 63, "pattern": pattern } })
}

/// Names of users, bounded for the same reason.
pub fn system_users(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "maxItems": 64, "items": { "type": "string", "maxLength": 253 } })
}

/// The conditions of an object: a list keyed by type, so that each writer applies only its own.
pub fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": { "type": "string", "maxLength": 316 },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
                "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0 },
                "lastTransitionTime": { "type": "string", "format": "date-time" },
                "reason": { "type": "string", "minLength": 1, "maxLength": 1024 },
                "message": { "type": "string", "maxLength": 32768 }
            }
        }
    })
}

/// The conditions of a contract: few and short, because the consumer writes them.
pub fn contract_conditions(generator: &mut SchemaGenerator) -> Schema {
    let mut list = conditions(generator);
    list.insert("maxItems".to_owned(), 4.into());
    if let Some(message) = list.pointer_mut("/items/properties/message").and_then(|message| message.as_object_mut()) {
        message.insert("maxLength".to_owned(), 1024.into());
    }
    list
}

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

/// Plain ASCII, so that the number of characters, which the schema limits, is about the number of
/// bytes in etcd. A pattern would do, but the API server repeats the whole text when it refuses it
/// by a pattern.
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

/// The lines of a usage record, see `docs/reference/usage-and-receipts.md`. A pattern would do, but the API server
/// repeats the whole text when it refuses it by a pattern.
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

/// Half as many rates as an offer may have, because those of the policy and those of a pool come
/// together in it.
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

/// Tolerations of named taints that are not Liqo's own. Without the maximum lengths the API server
/// rejects the rule as too costly.
pub fn tolerations(generator: &mut SchemaGenerator) -> Schema {
    let mut one = Toleration::json_schema(generator);
    one.insert("required".to_owned(), ["key"].as_slice().into());
    if let Some(key) = one
        .pointer_mut("/properties/key")
        .and_then(|key| key.as_object_mut())
    {
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

/// Address ranges that peers keep. A pattern would do, but the API server shows the whole pattern
/// when it refuses a text.
pub fn kept_prefixes(_: &mut SchemaGenerator) -> Schema {
    let one = json_schema!({
        "type": "string",
        "maxLength": MAX_PREFIX_LEN,
        "x-kubernetes-validations": [{
            "rule": format!("self.matches('{}')", prefix_pattern()),
            "message": "not an address range such as 10.245.0.0/16 or fd00:10:245::/48",
        }],
    });
    json_schema!({ "type": "array", "maxItems": 64, "items": one })
}

/// An address range in CIDR notation. Every text that matches can be parsed as an [`ipnet::IpNet`].
/// CEL's `isCIDR` would say the same, but Kubernetes 1.29 and 1.30 do not have it. Without
/// backslashes, which are escapes in texts of CEL.
fn prefix_pattern() -> String {
    let octet = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    let ipv4 = format!("({octet}[.]){{3}}{octet}/([12]?[0-9]|3[0-2])");
    let group = "[0-9a-fA-F]{1,4}";
    let without_gap = format!("({group}:){{7}}{group}");
    let gap_at_start = format!(":(:{group}){{1,7}}");
    let gap_at_end = format!("({group}:){{1,7}}:");
    let gap_between =
        (1..=6).map(|before| format!("({group}:){{1,{before}}}(:{group}){{1,{}}}", 7 - before));
    let addresses: Vec<String> = [without_gap, gap_at_start, gap_at_end, "::".to_owned()]
        .into_iter()
        .chain(gap_between)
        .collect();
    let ipv6 = format!("({})/(12[0-8]|1[01][0-9]|[1-9]?[0-9])", addresses.join("|"));
    format!("^{ipv4}$|^{ipv6}$")
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
    mtus.insert(
        "additionalProperties".to_owned(),
        u16::json_schema(generator).to_value(),
    );
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

/// Names of namespaces, or the beginning of names and `*`. Without the maximum lengths the API
/// server rejects the admission policy that reads them as too costly.
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
    if let Some(message) = list
        .pointer_mut("/items/properties/message")
        .and_then(|message| message.as_object_mut())
    {
        message.insert("maxLength".to_owned(), 1024.into());
    }
    list
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;
    use proptest::prelude::*;
    use regex::Regex;

    use super::prefix_pattern;

    #[test]
    fn a_text_that_is_no_address_range_is_refused() {
        let pattern = Regex::new(&prefix_pattern()).unwrap();
        let ranges = [
            "10.245.0.0/16",
            "10.245.3.4/16",
            "0.0.0.0/0",
            "255.255.255.255/32",
            "fd00:10:245::/48",
            "FD00::1/7",
            "::/0",
            "::1/128",
            "1::8/64",
            "1:2:3:4:5:6:7::/64",
            "::2:3:4:5:6:7:8/64",
            "1:2:3:4:5:6:7:8/128",
        ];
        for range in ranges {
            assert!(
                pattern.is_match(range) && range.parse::<IpNet>().is_ok(),
                "{range}"
            );
        }
        let others = [
            "",
            "10.245.0.0",
            "10.245.0.0/33",
            "10.256.0.0/16",
            "10.245.0/16",
            "10.245.00.0/16",
            "fd00:zz::/48",
            "fd00::/129",
            "fd00::",
            "fd00::1::/48",
            "fd00:12345::/48",
            "fd00:10:245/48",
            ":::/48",
            "fd00:/48",
            "1:2:3:4:5:6:7:8:9/64",
            "1:2:3:4:5:6:7:8::/64",
            "1:2:3:4::5:6:7:8/64",
            "fd00::1.2.3/104",
            "fd00::/48\n",
        ];
        for other in others {
            assert!(!pattern.is_match(other), "{other}");
        }
    }

    proptest! {
        /// Texts of the characters of IPv6 ranges: the pattern and the parser agree, except about
        /// leading zeros of the length.
        #[test]
        fn the_pattern_and_the_parser_agree(text in "([0-9a-f]{1,5}|:|::){1,12}/[1-9][0-9]{0,2}") {
            let matches = Regex::new(&prefix_pattern()).unwrap().is_match(&text);
            prop_assert_eq!(matches, text.parse::<IpNet>().is_ok());
        }
    }
}

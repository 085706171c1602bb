//! Large `EndpointSlice`s travel in parts, each a slice of its own at the provider. Together they
//! have the endpoints of the slice at home; Kubernetes reads all slices of a Service as one.
//!
//! The hash of an endpoint's addresses decides in which part it is:
//!
//! ```text
//!            all             what is too long is divided by the next bit of the hash
//!           /   \
//!         0       1          1 is short enough: the part "1"
//!        / \
//!      00   01               the part "", which has the name of the slice at home, and the part "01"
//! ```
//!
//! So an endpoint that comes, goes or changes rewrites one part, and now and then divides one or
//! joins two.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use liqo_api::short_hash;
use serde_json::{Map, Value};

use crate::dns_names::MAX_SUBDOMAIN_LEN;
use crate::replica::kind::MAX_LEN;
use crate::views::EndpointView;

/// Number of bits of a hash.
const MAX_DEPTH: u32 = u64::BITS;

/// The parts of a slice that travel, each with its name; one with the name of the slice, unless
/// that is too long.
pub(super) fn divide_slice(
    name: &str,
    slice: &Map<String, Value>,
) -> Vec<(String, Map<String, Value>)> {
    let room = endpoint_room(slice);
    let endpoints = slice_endpoints(slice)
        .iter()
        .map(|endpoint| (endpoint_hash(endpoint), endpoint))
        .collect();
    let mut parts = Vec::new();
    divide_endpoints(endpoints, room, String::new(), &mut parts);
    parts
        .into_iter()
        .map(|(bits, endpoints)| {
            let mut part = slice.clone();
            part.insert(
                "endpoints".to_owned(),
                endpoints.into_iter().cloned().collect(),
            );
            (part_name(name, &bits), part)
        })
        .collect()
}

/// The number of its first endpoints with which a slice is short enough.
pub(super) fn endpoints_that_fit(slice: &Map<String, Value>) -> usize {
    let mut room = endpoint_room(slice);
    slice_endpoints(slice)
        .iter()
        .take_while(|endpoint| {
            let len = stored_len(endpoint);
            let fits = len <= room;
            room = room.saturating_sub(len);
            fits
        })
        .count()
}

/// The bytes that the endpoints of a slice may take, with a comma for each.
fn endpoint_room(slice: &Map<String, Value>) -> usize {
    let mut empty = slice.clone();
    empty.insert("endpoints".to_owned(), Value::Array(Vec::new()));
    MAX_LEN.saturating_sub(Value::from(empty).to_string().len())
}

fn stored_len(endpoint: &Value) -> usize {
    endpoint.to_string().len() + 1
}

fn slice_endpoints(slice: &Map<String, Value>) -> &[Value] {
    slice
        .get("endpoints")
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn endpoint_hash(endpoint: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    EndpointView::of(endpoint)
        .address_texts()
        .for_each(|address| address.hash(&mut hasher));
    hasher.finish()
}

/// Adds the parts that hold these endpoints, which share these bits of their hashes. An endpoint
/// alone is always a part.
fn divide_endpoints<'a>(
    endpoints: Vec<(u64, &'a Value)>,
    room: usize,
    bits: String,
    parts: &mut Vec<(String, Vec<&'a Value>)>,
) {
    let len: usize = endpoints
        .iter()
        .map(|(_, endpoint)| stored_len(endpoint))
        .sum();
    let depth = u32::try_from(bits.len()).unwrap_or(MAX_DEPTH);
    if len <= room || endpoints.len() <= 1 || depth >= MAX_DEPTH {
        if !endpoints.is_empty() {
            parts.push((
                bits,
                endpoints
                    .into_iter()
                    .map(|(_, endpoint)| endpoint)
                    .collect(),
            ));
        }
        return;
    }
    let (ones, zeros): (Vec<_>, Vec<_>) = endpoints
        .into_iter()
        .partition(|(hash, _)| hash >> depth & 1 == 1);
    divide_endpoints(zeros, room, format!("{bits}0"), parts);
    divide_endpoints(ones, room, format!("{bits}1"), parts);
}

/// The name of a part. When a part is divided, the half with the bit 0 keeps its name.
fn part_name(slice: &str, bits: &str) -> String {
    let bits = bits.trim_end_matches('0');
    if bits.is_empty() {
        return slice.to_owned();
    }
    let hash = short_hash(&format!("{slice}/{bits}"));
    let beginning: String = slice
        .chars()
        .take(MAX_SUBDOMAIN_LEN - hash.len() - 1)
        .collect();
    format!("{}-{hash}", beginning.trim_end_matches(['.', '-']))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::json;

    use super::*;
    use crate::dns_names::is_subdomain;

    /// A slice with these endpoints, whose hostnames are as long as they can be.
    fn slice(numbers: impl IntoIterator<Item = u32>) -> Map<String, Value> {
        let endpoints: Vec<Value> = numbers.into_iter().map(endpoint).collect();
        let slice = json!({ "metadata": { "labels": { "kubernetes.io/service-name": "web" } }, "addressType": "IPv4",
            "endpoints": endpoints, "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }] });
        slice.as_object().unwrap().clone()
    }

    fn endpoint(number: u32) -> Value {
        json!({ "addresses": [format!("10.245.{}.{}", number / 250, number % 250)], "hostname": format!("{number:063}"),
            "conditions": { "ready": true, "serving": true, "terminating": false } })
    }

    fn parts(numbers: impl IntoIterator<Item = u32>) -> BTreeMap<String, Map<String, Value>> {
        let divided = divide_slice("web-x", &slice(numbers));
        let (count, parts) = (divided.len(), BTreeMap::from_iter(divided));
        assert_eq!(parts.len(), count, "each part has a name of its own");
        parts
    }

    #[test]
    fn a_usual_slice_travels_whole_and_by_its_name() {
        assert_eq!(
            parts(0..50),
            BTreeMap::from([("web-x".to_owned(), slice(0..50))])
        );
        assert_eq!(parts([]), BTreeMap::new());
    }

    #[test]
    fn a_thousand_endpoints_with_long_hostnames_travel_each_once_and_each_part_fits() {
        let all = parts(0..1000);
        let addresses = |part: &Map<String, Value>| -> Vec<String> {
            slice_endpoints(part)
                .iter()
                .map(|endpoint| endpoint["addresses"][0].as_str().unwrap().to_owned())
                .collect()
        };
        let travelling: Vec<String> = all.values().flat_map(addresses).collect();
        assert_eq!(
            (
                travelling.len(),
                travelling.iter().collect::<BTreeSet<_>>().len()
            ),
            (1000, 1000)
        );
        assert!(all.contains_key("web-x") && all.len() < 40, "{}", all.len());
        for (name, part) in &all {
            assert!(
                Value::from(part.clone()).to_string().len() <= MAX_LEN && is_subdomain(name),
                "{name}"
            );
            assert_eq!(endpoints_that_fit(part), slice_endpoints(part).len());
            assert!(
                part["ports"] == slice([])["ports"] && part["metadata"] == slice([])["metadata"]
            );
        }
    }

    #[test]
    fn an_endpoint_that_comes_rewrites_one_part_or_divides_one() {
        let mut before = parts(0..1);
        for number in 1..1000 {
            let after = parts(0..=number);
            let changed = after
                .iter()
                .filter(|(name, part)| before.get(*name) != Some(part))
                .count();
            let gone = before
                .keys()
                .filter(|name| !after.contains_key(*name))
                .count();
            assert!(
                (1..=2).contains(&changed) && gone == 0,
                "{number}: {changed} changed, {gone} gone"
            );
            before = after;
        }
    }

    #[test]
    fn one_endpoint_always_fits_however_many_addresses_it_has() {
        let addresses: Vec<String> = (0..100)
            .map(|last| format!("2001:db8:1111:2222:3333:4444:5555:{last:x}"))
            .collect();
        let mut large = slice([]);
        let endpoint =
            |number: u32| json!({ "addresses": addresses, "hostname": format!("{number:063}") });
        large.insert("endpoints".into(), (0..10).map(endpoint).collect());
        large.insert(
            "ports".into(),
            (0..100).map(|port| json!({ "name": format!("port-{port}"), "port": port, "protocol": "TCP" })).collect(),
        );
        let parts = divide_slice("web-x", &large);
        // They have the same addresses, so they cannot be divided; the provider takes as many as
        // fit.
        assert_eq!(parts.len(), 1);
        assert!(endpoints_that_fit(&parts[0].1) >= 1);
    }

    #[test]
    fn the_name_of_a_part_is_valid_however_long_that_of_the_slice_is() {
        for name in [
            "x".repeat(MAX_SUBDOMAIN_LEN),
            format!("{}.{}", "x".repeat(235), "y".repeat(17)),
            "web".to_owned(),
        ] {
            assert!(
                is_subdomain(&name) && is_subdomain(&part_name(&name, "01")),
                "{name}"
            );
            assert_ne!(part_name(&name, "01"), part_name(&name, "11"));
        }
        assert_eq!(
            (part_name("web", ""), part_name("web", "00")),
            ("web".to_owned(), "web".to_owned())
        );
    }
}

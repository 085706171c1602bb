//! Tests that the examples of policies in the users' pages are valid.

use std::{
    fs,
    path::{Path, PathBuf},
};

use kube::CustomResourceExt as _;
use liqo_api::{PeeringPolicy, PoolBy};
use serde_json::{Map, Value};

/// The pages that describe every field.
const REFERENCE: [&str; 3] = ["policy-fields.md", "prices.md", "broker.md"];

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs")
}

/// All pages below a folder.
fn pages(folder: &Path) -> Vec<String> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages.extend(self::pages(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(fs::read_to_string(&path).unwrap());
        }
    }
    pages
}

/// The documents in all YAML blocks of a page.
fn documents(page: &str) -> Vec<Value> {
    let blocks = page
        .split("```yaml\n")
        .skip(1)
        .map(|rest| rest.split("\n```").next().unwrap());
    blocks
        .flat_map(|block| block.split("\n---\n"))
        .map(|document| serde_saphyr::from_str(document).unwrap())
        .collect()
}

/// The API server's errors for a value: unknown fields, wrong types, values that the schema does
/// not allow.
fn faults(value: &Value, schema: &Value, path: &str) -> Vec<String> {
    if schema["x-kubernetes-int-or-string"] == true {
        return if value.is_string() || value.is_i64() {
            Vec::new()
        } else {
            vec![format!("{path}: neither number nor text")]
        };
    }
    let is_of_type = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64(),
        Some("boolean") => value.is_boolean(),
        other => panic!("{path}: type {other:?}"),
    };
    if !is_of_type {
        return vec![format!("{path}: {value} is no {}", schema["type"])];
    }
    let mut found = Vec::new();
    if schema["enum"]
        .as_array()
        .is_some_and(|allowed| !allowed.contains(value))
    {
        found.push(format!("{path}: {value} is none of {}", schema["enum"]));
    }
    let number = value.as_f64().unwrap_or_default();
    if schema["minimum"]
        .as_f64()
        .is_some_and(|least| number < least)
        || schema["maximum"].as_f64().is_some_and(|most| number > most)
    {
        found.push(format!("{path}: {value} is out of bounds"));
    }
    for (key, inner) in value.as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        match schema["properties"]
            .get(key)
            .or_else(|| schema.get("additionalProperties"))
        {
            Some(schema) => found.extend(faults(inner, schema, &path)),
            None => found.push(format!("{path}: there is no such field")),
        }
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        found.extend(faults(item, &schema["items"], &format!("{path}[{index}]")));
    }
    found
}

fn schema() -> Value {
    let definition = serde_json::to_value(PeeringPolicy::crd()).unwrap();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

#[test]
fn every_policy_on_the_page_can_be_applied() {
    let documents: Vec<Value> = pages(&docs())
        .iter()
        .flat_map(|page| documents(page))
        .filter(|document| document["kind"] == "PeeringPolicy")
        .collect();
    assert!(documents.len() >= 11, "{}", documents.len());
    for document in documents {
        let name = document["metadata"]["name"].as_str().unwrap().to_owned();
        assert_eq!(document["apiVersion"], "sharing.liqo.io/v1alpha1");
        assert_eq!(
            faults(&document["spec"], &schema(), "spec"),
            Vec::<String>::new(),
            "{name}"
        );
        let policy: PeeringPolicy = serde_json::from_value(document).unwrap();
        // The rules of the definition that span several fields.
        let provide = policy.spec.provide;
        let source = provide.source;
        let given = [
            source.fixed.is_some(),
            source.nodes.is_some(),
            source.plugin.is_some(),
            source.offers.is_some(),
        ];
        assert!(
            given.into_iter().filter(|given| *given).count() <= 1,
            "{name}"
        );
        assert_eq!(
            provide.granularity.by == PoolBy::NodeLabel,
            provide.granularity.label.is_some(),
            "{name}"
        );
        assert!(
            !(provide.granularity.by == PoolBy::Node && provide.granularity.peers_may_choose),
            "{name}"
        );
    }
}

#[test]
fn the_pages_name_every_field_of_a_policy() {
    fn names(schema: &Value, found: &mut Vec<String>) {
        let no_fields = Map::new();
        for (name, inner) in schema["properties"].as_object().unwrap_or(&no_fields) {
            found.push(name.clone());
            // Label selectors and tolerations are Kubernetes' own.
            if !matches!(name.as_str(), "selector" | "selectors" | "tolerations") {
                names(inner, found);
            }
        }
    }
    let mut found = Vec::new();
    names(&schema(), &mut found);
    assert!(found.len() > 30, "{found:?}");
    let pages =
        REFERENCE.map(|page| fs::read_to_string(docs().join("reference").join(page)).unwrap());
    let words: Vec<&str> = pages
        .iter()
        .flat_map(|page| page.split(|c: char| !c.is_alphanumeric()))
        .collect();
    let missing: Vec<&String> = found
        .iter()
        .filter(|name| !words.contains(&name.as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_mistake_on_the_page_would_be_found() {
    let of = |spec: &str| {
        faults(
            &serde_saphyr::from_str::<Value>(spec).unwrap(),
            &schema(),
            "spec",
        )
    };
    assert_eq!(of("provide: {percentage: 40}"), Vec::<String>::new());
    assert_eq!(
        of("provide: {percent: 40}"),
        ["spec.provide.percent: there is no such field"]
    );
    assert_eq!(
        of("provide: {percentage: 101}"),
        ["spec.provide.percentage: 101 is out of bounds"]
    );
    assert_eq!(of("peers: {names: rome}").len(), 1);
    assert_eq!(of("peers: {discoveredBy: [Radio]}").len(), 1);
    assert_eq!(of("provide: {caps: {cpu: [1]}}").len(), 1);
}

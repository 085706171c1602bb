//! Label and field selectors.

use std::cmp::Ordering;

use serde_json::{Value, json};

use super::{failure::Failure, kinds::Kind};

/// What a list or a watch selects.
#[derive(Debug, Clone, Default)]
pub struct Selector {
    /// Expressions as objects write them.
    labels: Vec<Value>,
    /// Field, whether it must be equal, value.
    fields: Vec<(String, bool, String)>,
}

/// Whether the selector in an object selects these labels. A missing selector selects nothing, an
/// empty one everything.
pub fn selects(selector: &Value, labels: &Value) -> bool {
    let expressions = selector["matchExpressions"]
        .as_array()
        .into_iter()
        .flatten();
    selector.is_object()
        && has_labels(labels, &selector["matchLabels"])
        && expressions
            .into_iter()
            .all(|expression| fits(expression, labels))
}

/// Whether a selector is empty.
pub fn selects_all(selector: &Value) -> bool {
    let is_empty = |field: &str| match &selector[field] {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => true,
    };
    selector.is_object() && is_empty("matchLabels") && is_empty("matchExpressions")
}

/// Whether all of these labels are there. `wanted` may be missing.
pub fn has_labels(labels: &Value, wanted: &Value) -> bool {
    wanted
        .as_object()
        .into_iter()
        .flatten()
        .all(|(key, value)| labels[key] == *value)
}

fn fits(expression: &Value, labels: &Value) -> bool {
    matches(
        expression,
        labels[expression["key"].as_str().unwrap_or_default()].as_str(),
    )
}

/// Whether the value of the label that an expression names fits.
pub fn matches(expression: &Value, value: Option<&str>) -> bool {
    let values = expression["values"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let is_listed = || value.is_some_and(|value| values.iter().any(|one| one == value));
    let compared = || {
        let bound = values
            .first()
            .and_then(Value::as_str)?
            .parse::<i64>()
            .ok()?;
        Some(value?.parse::<i64>().ok()?.cmp(&bound))
    };
    match expression["operator"].as_str().unwrap_or_default() {
        "In" => is_listed(),
        "NotIn" => !is_listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared().is_some_and(Ordering::is_gt),
        "Lt" => compared().is_some_and(Ordering::is_lt),
        _ => false,
    }
}

impl Selector {
    pub fn parse(labels: Option<&str>, fields: Option<&str>) -> Result<Self, Failure> {
        let labels = labels.map(parse_labels).transpose()?.unwrap_or_default();
        let fields = fields.map(parse_fields).transpose()?.unwrap_or_default();
        Ok(Self { labels, fields })
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub fn with_name(mut self, name: &str) -> Self {
        self.fields
            .push(("metadata.name".to_owned(), true, name.to_owned()));
        self
    }

    /// An error names a field that this kind cannot be selected by.
    pub fn check(&self, kind: &Kind) -> Result<(), Failure> {
        let unknown = self
            .fields
            .iter()
            .find(|(field, _, _)| !fields_of(kind).contains(&field.as_str()));
        match unknown {
            Some((field, _, _)) => Err(Failure::bad_request(format!(
                "field label not supported: {field}"
            ))),
            None => Ok(()),
        }
    }

    pub fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.labels
            .iter()
            .all(|expression| fits(expression, labels))
            && self
                .fields
                .iter()
                .all(|(field, equal, value)| (field_of(object, field) == *value) == *equal)
    }
}

fn fields_of(kind: &Kind) -> &'static [&'static str] {
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Pod") => &[
            "metadata.name",
            "metadata.namespace",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        ("", "Node") => &["metadata.name", "spec.unschedulable"],
        ("", "Namespace") => &["metadata.name", "status.phase"],
        ("", "Secret") => &["metadata.name", "metadata.namespace", "type"],
        ("", "Service") => &[
            "metadata.name",
            "metadata.namespace",
            "spec.clusterIP",
            "spec.type",
        ],
        ("apps", "ReplicaSet") => &["metadata.name", "metadata.namespace", "status.replicas"],
        ("batch", "Job") => &["metadata.name", "metadata.namespace", "status.successful"],
        ("certificates.k8s.io", "CertificateSigningRequest") => {
            &["metadata.name", "spec.signerName"]
        }
        ("", "Event") => &[
            "metadata.name",
            "metadata.namespace",
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        _ if kind.is_custom() && !kind.namespaced => &["metadata.name"],
        _ => &["metadata.name", "metadata.namespace"],
    }
}

fn field_of(object: &Value, field: &str) -> String {
    let mut value = object;
    for part in field.split('.') {
        value = &value[part];
    }
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Null if field == "spec.unschedulable" || field == "spec.hostNetwork" => {
            "false".to_owned()
        }
        _ => String::new(),
    }
}

/// Splits at commas outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (index, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[begin..index].trim());
                begin = index + 1;
            }
            _ => {}
        }
    }
    parts.push(text[begin..].trim());
    parts
}

fn parse_labels(text: &str) -> Result<Vec<Value>, Failure> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    split(text).into_iter().map(parse_label).collect()
}

fn parse_label(text: &str) -> Result<Value, Failure> {
    let values = |list: &str| -> Vec<String> {
        list.trim()
            .trim_start_matches('(')
            .trim_end_matches(')')
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect()
    };
    let expression = |key: &str, operator: &str, values: Vec<String>| json!({ "key": key.trim(), "operator": operator, "values": values });
    if let Some((key, list)) = text.split_once(" notin ") {
        return Ok(expression(key, "NotIn", values(list)));
    }
    if let Some((key, list)) = text.split_once(" in ") {
        return Ok(expression(key, "In", values(list)));
    }
    for (sign, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some((key, value)) = text.split_once(sign) {
            if let Some(word) = key.split_whitespace().nth(1) {
                return Err(Failure::bad_request(format!(
                    "unable to parse requirement: unexpected {word}"
                )));
            }
            if value.contains('=') {
                return Err(Failure::bad_request(format!(
                    "unable to parse requirement: {text}"
                )));
            }
            let values = vec![value.trim().to_owned()];
            return Ok(expression(key, if equal { "In" } else { "NotIn" }, values));
        }
    }
    if let Some(key) = text.strip_prefix('!') {
        return Ok(expression(key, "DoesNotExist", Vec::new()));
    }
    if text.contains(char::is_whitespace) || text.is_empty() {
        return Err(Failure::bad_request(format!(
            "unable to parse requirement: {text}"
        )));
    }
    Ok(expression(text, "Exists", Vec::new()))
}

fn parse_fields(text: &str) -> Result<Vec<(String, bool, String)>, Failure> {
    let parse = |term: &str| {
        for (sign, equal) in [("!=", false), ("==", true), ("=", true)] {
            if let Some((field, value)) = term.split_once(sign) {
                return Ok((field.trim().to_owned(), equal, value.trim().to_owned()));
            }
        }
        Err(Failure::bad_request(format!(
            "invalid selector: '{term}'; can't understand '{term}'"
        )))
    };
    text.split(',')
        .filter(|term| !term.trim().is_empty())
        .map(parse)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_selected(labels: &str, fields: &str) -> bool {
        let object = json!({ "metadata": { "name": "a", "labels": { "app": "web", "tier": "front" } }, "spec": { "nodeName": "n" } });
        Selector::parse(Some(labels), Some(fields))
            .unwrap()
            .matches(&object)
    }

    #[test]
    fn labels_are_compared() {
        for (selector, expected) in [
            ("app=web", true),
            ("app==web,tier!=back", true),
            ("app!=web", false),
            ("other!=x", true),
            ("app in (web, db),tier", true),
            ("app notin (web)", false),
            ("!app", false),
            ("!other", true),
        ] {
            assert_eq!(is_selected(selector, ""), expected, "{selector}");
        }
    }

    #[test]
    fn selectors_of_objects() {
        let labels = json!({ "app": "web", "tier": "front" });
        let expression = |operator: &str, values: Value| json!({ "matchLabels": { "app": "web" }, "matchExpressions": [{ "key": "tier", "operator": operator, "values": values }] });
        assert!(selects(&json!({}), &labels) && selects_all(&json!({})));
        assert!(!selects(&Value::Null, &labels) && !selects_all(&Value::Null));
        assert!(
            selects(&expression("In", json!(["front"])), &labels)
                && selects(&expression("NotIn", json!(["back"])), &labels)
        );
        assert!(
            !selects(&expression("In", json!(["back"])), &labels)
                && !selects(&expression("DoesNotExist", json!([])), &labels)
        );
        assert!(
            selects(&expression("Exists", Value::Null), &labels)
                && !selects_all(&expression("Exists", Value::Null))
        );
    }

    #[test]
    fn fields_are_compared() {
        assert!(is_selected("", "metadata.name=a,spec.nodeName!=m"));
        assert!(!is_selected("", "status.phase=Running"));
    }
}

//! Label and field selectors.

use serde_json::Value;

use super::{failure::Failure, kinds::Kind};

/// What a list or a watch selects.
#[derive(Debug, Clone, Default)]
pub struct Selector {
    labels: Vec<Requirement>,
    /// Field, whether it must be equal, value.
    fields: Vec<(String, bool, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
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
        self.fields.push(("metadata.name".to_owned(), true, name.to_owned()));
        self
    }

    /// An error names a field that this kind cannot be selected by.
    pub fn check(&self, kind: &Kind) -> Result<(), Failure> {
        let unknown = self.fields.iter().find(|(field, _, _)| !fields_of(kind).contains(&field.as_str()));
        match unknown {
            Some((field, _, _)) => Err(Failure::bad_request(refusal(kind, field))),
            None => Ok(()),
        }
    }

    pub fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.labels.iter().all(|requirement| requirement.matches(labels))
            && self.fields.iter().all(|(field, equal, value)| (field_of(object, field) == *value) == *equal)
    }
}

fn refusal(kind: &Kind, field: &str) -> String {
    if kind.is_custom() {
        return format!("field label not supported: {field}");
    }
    match kind.kind.as_str() {
        "Pod" | "Node" | "Event" | "Namespace" | "Secret" | "Service" | "ReplicationController" => {
            format!("field label not supported: {field}")
        }
        _ => format!("\"{field}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""),
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
        ("", "Service") => &["metadata.name", "metadata.namespace", "spec.clusterIP", "spec.type"],
        ("apps", "ReplicaSet") => &["metadata.name", "metadata.namespace", "status.replicas"],
        ("batch", "Job") => &["metadata.name", "metadata.namespace", "status.successful"],
        ("certificates.k8s.io", "CertificateSigningRequest") => &["metadata.name", "spec.signerName"],
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
        Value::Null if field == "spec.unschedulable" || field == "spec.hostNetwork" => "false".to_owned(),
        _ => String::new(),
    }
}

impl Requirement {
    fn matches(&self, labels: &Value) -> bool {
        let value = labels.get(&self.key).and_then(Value::as_str);
        match &self.test {
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
            Test::In(values) => value.is_some_and(|value| values.iter().any(|other| other == value)),
            Test::NotIn(values) => !value.is_some_and(|value| values.iter().any(|other| other == value)),
        }
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

fn parse_labels(text: &str) -> Result<Vec<Requirement>, Failure> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    split(text).into_iter().map(parse_label).collect()
}

fn parse_label(text: &str) -> Result<Requirement, Failure> {
    let values = |list: &str| -> Vec<String> {
        list.trim().trim_start_matches('(').trim_end_matches(')').split(',').map(|value| value.trim().to_owned()).collect()
    };
    let requirement = |key: &str, test: Test| Requirement { key: key.trim().to_owned(), test };
    if let Some((key, list)) = text.split_once(" notin ") {
        return Ok(requirement(key, Test::NotIn(values(list))));
    }
    if let Some((key, list)) = text.split_once(" in ") {
        return Ok(requirement(key, Test::In(values(list))));
    }
    for (sign, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some((key, value)) = text.split_once(sign) {
            if let Some(word) = key.split_whitespace().nth(1) {
                let expected = "in, notin, =, ==, !=, gt, lt";
                let why = format!("unable to parse requirement: found '{word}', expected: {expected}");
                return Err(Failure::bad_request(why));
            }
            if value.contains('=') {
                return Err(Failure::bad_request("found '=', expected: ',' or 'end of string'"));
            }
            let values = vec![value.trim().to_owned()];
            return Ok(requirement(key, if equal { Test::In(values) } else { Test::NotIn(values) }));
        }
    }
    if let Some(key) = text.strip_prefix('!') {
        return Ok(requirement(key, Test::Absent));
    }
    if text.contains(char::is_whitespace) || text.is_empty() {
        return Err(Failure::bad_request(format!("unable to parse requirement: {text}")));
    }
    Ok(requirement(text, Test::Exists))
}

fn parse_fields(text: &str) -> Result<Vec<(String, bool, String)>, Failure> {
    let parse = |term: &str| {
        for (sign, equal) in [("!=", false), ("==", true), ("=", true)] {
            if let Some((field, value)) = term.split_once(sign) {
                return Ok((field.trim().to_owned(), equal, value.trim().to_owned()));
            }
        }
        Err(Failure::bad_request(format!("invalid selector: '{term}'; can't understand '{term}'")))
    };
    text.split(',').filter(|term| !term.trim().is_empty()).map(parse).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selects(labels: &str, fields: &str) -> bool {
        let object =
            json!({ "metadata": { "name": "a", "labels": { "app": "web", "tier": "front" } }, "spec": { "nodeName": "n" } });
        Selector::parse(Some(labels), Some(fields)).unwrap().matches(&object)
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
            assert_eq!(selects(selector, ""), expected, "{selector}");
        }
    }

    #[test]
    fn fields_are_compared() {
        assert!(selects("", "metadata.name=a,spec.nodeName!=m"));
        assert!(!selects("", "status.phase=Running"));
    }
}

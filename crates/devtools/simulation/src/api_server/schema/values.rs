//! Values that do not fit a schema. The order and the texts are those of kube-openapi's validators.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Number, Value, json};

use super::{Cause, CauseKind, Node, child, pair::Pair};

/// Collects what does not fit.
pub struct Checker {
    /// The path of what is checked. Fields have it, texts do not.
    prefix: &'static str,
    pub causes: Vec<Cause>,
}

impl Checker {
    pub fn new(prefix: &'static str) -> Self {
        Self {
            prefix,
            causes: vec![],
        }
    }

    fn add(&mut self, path: &str, kind: CauseKind, value: Option<&Value>, detail: &str) {
        let field = match (self.prefix, path) {
            (prefix, "") => prefix.to_owned(),
            (prefix, path) => child(prefix, path),
        };
        self.causes.push(Cause::new(&field, kind, value, detail));
    }

    fn invalid(&mut self, path: &str, value: &Value, text: &str) {
        self.add(
            path,
            CauseKind::Invalid,
            Some(value),
            &format!("{path} in body {text}"),
        );
    }

    fn wrong_type(&mut self, path: &str, wanted: &str, got: &str) {
        let text = format!("{path} in body must be of type {wanted}: {got:?}");
        self.add(path, CauseKind::TypeInvalid, Some(&json!(got)), &text);
    }

    fn too_many(&mut self, path: &str, size: usize, limit: usize) {
        let items = if limit == 1 { "item" } else { "items" };
        self.add(
            path,
            CauseKind::TooMany,
            Some(&json!(size)),
            &format!("must have at most {limit} {items}"),
        );
    }

    /// Adds what does not fit, unless it was so before.
    pub fn check(&mut self, node: &Node, value: &Value, path: &str, pair: Option<Pair>) {
        let before = self.causes.len();
        if !value.is_null() || !node.nullable {
            self.check_type(node, value, path);
        }
        match value {
            Value::String(value) => self.check_text(node, value, path),
            Value::Number(value) => self.check_number(node, value, path),
            Value::Array(items) => self.check_list(node, items, path, pair),
            _ => {}
        }
        self.check_enumeration(node, value, path);
        if let Value::Object(map) = value {
            self.check_object(node, map, path, pair);
        }
        if self.causes.len() > before && pair.is_some_and(Pair::is_unchanged) {
            self.causes.truncate(before);
        }
    }

    fn check_type(&mut self, node: &Node, value: &Value, path: &str) {
        let (kind, format) = match value {
            Value::Null => ("null", None),
            Value::Bool(_) => ("boolean", Some("")),
            Value::Number(number) if number.is_i64() => ("integer", Some("int64")),
            Value::Number(_) => ("number", Some("float64")),
            Value::String(_) => ("string", None),
            // What has a format is checked by the format, which is for texts only.
            Value::Array(_) if node.is_time => return,
            Value::Array(_) => ("array", None),
            Value::Object(_) => ("object", Some("")),
        };
        let wants = |kind: &str| node.types.contains(&kind);
        let is_whole =
            matches!(value, Value::Number(number) if number.as_f64().is_some_and(is_whole));
        if node.types.is_empty() || wants(kind) || is_whole && wants("integer") {
            return;
        }
        match format.filter(|_| node.is_time) {
            Some(format) => self.wrong_type(path, "date-time", format),
            None => self.wrong_type(path, &node.types.join(","), kind),
        }
    }

    fn check_enumeration(&mut self, node: &Node, value: &Value, path: &str) {
        if node.enumeration.is_empty()
            || node
                .enumeration
                .iter()
                .any(|allowed| !allowed.is_null() && value == allowed)
        {
            return;
        }
        let supported: Vec<_> = node.enumeration.iter().map(Value::to_string).collect();
        self.add(
            path,
            CauseKind::NotSupported,
            Some(value),
            &format!("supported values: {}", supported.join(", ")),
        );
    }

    fn check_text(&mut self, node: &Node, value: &str, path: &str) {
        let length = value.chars().count();
        if let Some(limit) = node.max_length.filter(|limit| length > *limit) {
            let bytes = if limit == 1 { "byte" } else { "bytes" };
            self.add(
                path,
                CauseKind::TooLong,
                None,
                &format!("may not be more than {limit} {bytes}"),
            );
        } else if let Some(limit) = node.min_length.filter(|limit| length < *limit) {
            self.invalid(
                path,
                &json!(value),
                &format!("should be at least {limit} chars long"),
            );
        } else if let Some(pattern) = &node.pattern
            && !pattern
                .regex
                .as_ref()
                .is_some_and(|regex| regex.is_match(value))
        {
            self.invalid(
                path,
                &json!(value),
                &format!("should match '{}'", pattern.text),
            );
        }
        if node.is_time && !is_time(value) {
            self.wrong_type(path, "date-time", value);
        }
    }

    fn check_number(&mut self, node: &Node, number: &Number, path: &str) {
        let Some(value) = number.as_f64() else { return };
        if let Some(factor) = node.multiple_of.filter(|factor| !is_whole(value / factor)) {
            self.invalid(
                path,
                &json!(number),
                &format!("should be a multiple of {factor}"),
            );
        }
        if let Some(limit) = node.minimum.filter(|limit| value < *limit) {
            self.invalid(
                path,
                &json!(number),
                &format!("should be greater than or equal to {limit}"),
            );
        }
        if let Some(limit) = node.maximum.filter(|limit| value > *limit) {
            self.invalid(
                path,
                &json!(number),
                &format!("should be less than or equal to {limit}"),
            );
        }
    }

    fn check_list(&mut self, node: &Node, items: &[Value], path: &str, pair: Option<Pair>) {
        if let Some(node) = &node.items {
            for (index, item) in items.iter().enumerate() {
                self.check(
                    node,
                    item,
                    &format!("{path}[{index}]"),
                    pair.and_then(|pair| pair.item(index)),
                );
            }
        }
        let size = items.len();
        if let Some(limit) = node.min_items.filter(|limit| size < *limit) {
            self.invalid(
                path,
                &json!(size),
                &format!("should have at least {limit} items"),
            );
        }
        if let Some(limit) = node.max_items.filter(|limit| size > *limit) {
            self.too_many(path, size, limit);
        }
    }

    fn check_object(
        &mut self,
        node: &Node,
        map: &Map<String, Value>,
        path: &str,
        pair: Option<Pair>,
    ) {
        if let Some(limit) = node.max_properties.filter(|limit| map.len() > *limit) {
            self.too_many(path, map.len(), limit);
        }
        let pair_of = |key: &str| pair.and_then(|pair| pair.field(key));
        if let Some(additional) = &node.additional {
            for (key, value) in map
                .iter()
                .filter(|(key, _)| !node.properties.contains_key(*key))
            {
                self.check(additional, value, &child(path, key), pair_of(key));
            }
        }
        for (name, field) in &node.properties {
            if let Some(value) = map.get(name) {
                self.check(field, value, &child(path, name), pair_of(name));
            }
        }
        for name in node.required.iter().filter(|name| !map.contains_key(*name)) {
            self.add(&child(path, name), CauseKind::Required, None, "");
        }
    }
}

/// Whether a number counts as an integer in JSON.
fn is_whole(value: f64) -> bool {
    value.abs() < 9_007_199_254_740_992.0 && value.fract() == 0.0
}

static TIME: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new("^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})$").ok()
});

/// Whether a text is a time of RFC 3339, as kube-apiserver reads it.
fn is_time(value: &str) -> bool {
    let value = value.to_lowercase();
    let mut parts = value.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else {
        return false;
    };
    let is_date = date.len() == 10 && jiff::civil::Date::strptime("%Y-%m-%d", date).is_ok();
    let fits = |time: regex::Captures| &time[1] <= "23" && &time[2] <= "59" && &time[3] <= "59";
    is_date
        && TIME
            .as_ref()
            .and_then(|regex| regex.captures(time))
            .is_some_and(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_rfc_3339() {
        for time in [
            "2026-01-02T03:04:05Z",
            "2026-01-02t03:04:05.123456z",
            "2026-01-02T03:04:05+01:00",
        ] {
            assert!(is_time(time), "{time}");
        }
        for time in [
            "",
            "2026-01-02",
            "2026-02-30T03:04:05Z",
            "2026-01-02T24:00:00Z",
            "2026-01-02T03:04Z",
            "2026-01-02 03:04:05Z",
        ] {
            assert!(!is_time(time), "{time}");
        }
    }
}

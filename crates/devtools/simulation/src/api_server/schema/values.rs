//! Values that do not fit a schema. The order and the texts are those of kube-openapi's validators.

use serde_json::{Map, Number, Value, json};

use super::{Additional, CauseKind, Limit, Node, body, formats, pair::Pair, text};

/// What does not fit. Without a name it concerns the whole object.
pub struct Fault {
    pub name: Option<String>,
    pub kind: CauseKind,
    pub message: String,
    /// Faults with the same text are one.
    text: String,
}

/// What is wrong with a value, and how many checks it passed: alternatives are chosen by the latter.
#[derive(Default)]
pub struct Outcome {
    pub faults: Vec<Fault>,
    passed: usize,
}

impl Outcome {
    fn merge(&mut self, other: Outcome) {
        self.passed += other.passed;
        for fault in other.faults {
            self.push(fault);
        }
    }

    fn push(&mut self, fault: Fault) {
        if self.faults.iter().all(|reported| reported.text != fault.text) {
            self.faults.push(fault);
        }
    }

    fn add(&mut self, path: &str, kind: CauseKind, value: &Value, text: String) {
        let message = body(kind, Some(value), &text);
        self.push(Fault { name: Some(path.to_owned()), kind, message, text });
    }

    fn invalid(&mut self, path: &str, value: &Value, text: &str) {
        self.add(path, CauseKind::Invalid, value, format!("{path} in body {text}"));
    }

    fn wrong_type(&mut self, path: &str, wanted: &str, got: &str) {
        let text = format!("{path} in body must be of type {wanted}: {}", text::quote(got));
        self.add(path, CauseKind::TypeInvalid, &json!(got), text);
    }

    fn too_many(&mut self, path: &str, size: usize, limit: i64, what: &str) {
        let items = if limit == 1 { "item" } else { "items" };
        let message = body(CauseKind::TooMany, Some(&json!(size)), &format!("must have at most {limit} {items}"));
        let text = format!("{path} in body should have at most {limit} {what}");
        self.push(Fault { name: Some(path.to_owned()), kind: CauseKind::TooMany, message, text });
    }

    /// A fault of alternatives names no field.
    fn add_unnamed(&mut self, path: &str, text: &str) {
        let text = format!("{} {text}", text::quote(path));
        let message = body(CauseKind::Invalid, Some(&json!("")), &text);
        self.push(Fault { name: None, kind: CauseKind::Invalid, message, text });
    }

    fn is_valid(&self) -> bool {
        self.faults.is_empty()
    }
}

/// What does not fit, apart from what did not change.
pub fn check(node: &Node, value: &Value, path: &str, pair: Option<Pair>) -> Outcome {
    let mut outcome = check_one(node, value, path, pair);
    if !outcome.is_valid() && pair.is_some_and(Pair::is_unchanged) {
        outcome.faults.clear();
    }
    outcome
}

fn check_one(node: &Node, value: &Value, path: &str, pair: Option<Pair>) -> Outcome {
    let mut outcome = Outcome::default();
    if value.is_null() {
        check_type(node, value, path, &mut outcome);
        check_enumeration(node, value, path, &mut outcome);
        return outcome;
    }
    if !node.types.is_empty() || node.format.is_some() {
        check_type(node, value, path, &mut outcome);
        outcome.passed += 1;
    }
    check_combinations(node, value, path, &mut outcome);
    match value {
        Value::String(value) => check_text(node, value, path, &mut outcome),
        Value::Number(value) => check_number(node, value, path, &mut outcome),
        Value::Array(items) => check_list(node, items, path, pair, &mut outcome),
        _ => {}
    }
    check_enumeration(node, value, path, &mut outcome);
    if let Value::Object(map) = value {
        check_object(node, map, path, pair, &mut outcome);
        outcome.passed += 1;
    }
    // The checks of combinations (two), of the enumeration, and the whole.
    outcome.passed += 4;
    outcome
}

fn check_type(node: &Node, value: &Value, path: &str, outcome: &mut Outcome) {
    let wants = |kind: &str| node.types.contains(&kind);
    let (kind, format) = match value {
        Value::Null if node.types.is_empty() || node.nullable => return outcome.passed += 1,
        Value::Null => ("null", ""),
        Value::Bool(_) => ("boolean", ""),
        Value::String(_) => ("string", ""),
        Value::Number(number) if number.is_i64() => ("integer", "int64"),
        Value::Number(_) => ("number", "float64"),
        Value::Array(_) => ("array", ""),
        Value::Object(_) => ("object", ""),
    };
    let is_number = match value {
        Value::Number(number) if kind == "number" => wants("integer") && number.as_f64().is_some_and(is_whole),
        _ => kind == "integer" && wants("number"),
    };
    let fits = wants(kind) || is_number;
    let may_have_format = matches!(value, Value::String(_) | Value::Array(_));
    match &node.format {
        Some(wanted) if !may_have_format && !value.is_null() && !fits => outcome.wrong_type(path, wanted, format),
        // What has a format is checked by the format.
        Some(_) if may_have_format && !wants("number") && !wants("integer") => outcome.passed += 1,
        _ if fits => outcome.passed += 1,
        _ => outcome.wrong_type(path, &node.types.join(","), kind),
    }
}

/// Whether a number counts as an integer in JSON.
fn is_whole(value: f64) -> bool {
    let rounded = value.trunc();
    let nearly = rounded > 0.0 && (value - rounded) / (value + rounded) < 1e-9;
    value.abs() < 9_007_199_254_740_992.0 && (value.fract() == 0.0 || nearly)
}

fn check_enumeration(node: &Node, value: &Value, path: &str, outcome: &mut Outcome) {
    if node.enumeration.is_empty() || node.enumeration.iter().any(|allowed| !allowed.is_null() && is_same(value, allowed)) {
        return;
    }
    let quoted = |allowed: &Value| text::quote(&allowed.as_str().map_or_else(|| text::json(allowed), str::to_owned));
    let supported: Vec<_> = node.enumeration.iter().map(quoted).collect();
    let detail = format!("supported values: {}", supported.join(", "));
    let message = body(CauseKind::NotSupported, Some(value), &detail);
    let text = format!("{path} in body should be one of {detail}");
    outcome.push(Fault { name: Some(path.to_owned()), kind: CauseKind::NotSupported, message, text });
}

fn is_same(value: &Value, allowed: &Value) -> bool {
    match (value, allowed) {
        (Value::Number(value), Value::Number(allowed)) => value == allowed || value.as_f64() == allowed.as_f64(),
        _ => value == allowed,
    }
}

fn check_text(node: &Node, value: &str, path: &str, outcome: &mut Outcome) {
    let length = value.chars().count();
    let exceeds = |limit: i64| usize::try_from(limit).map_or(true, |limit| length > limit);
    let falls_short = |limit: i64| usize::try_from(limit).is_ok_and(|limit| length < limit);
    if let Some(limit) = node.max_length.filter(|limit| exceeds(*limit)) {
        let bytes = if limit == 1 { "byte" } else { "bytes" };
        let message = body(CauseKind::TooLong, None, &format!("may not be more than {limit} {bytes}"));
        let text = format!("{path} in body should be at most {limit} chars long");
        outcome.push(Fault { name: Some(path.to_owned()), kind: CauseKind::TooLong, message, text });
    } else if let Some(limit) = node.min_length.filter(|limit| falls_short(*limit)) {
        outcome.invalid(path, &json!(value), &format!("should be at least {limit} chars long"));
    } else if let Some(pattern) = &node.pattern {
        match &pattern.regex {
            Ok(regex) if regex.is_match(value) => {}
            Ok(_) => outcome.invalid(path, &json!(value), &format!("should match '{}'", pattern.text)),
            Err(error) => {
                let text = format!("should match '{}, but pattern is invalid: {error}'", pattern.text);
                outcome.invalid(path, &json!(value), &text);
            }
        }
    }
    outcome.passed += 1;
    if let Some(format) = &node.format {
        if !formats::fits(format, value) {
            outcome.wrong_type(path, format, value);
        }
        outcome.passed += 1;
    }
}

fn check_number(node: &Node, number: &Number, path: &str, outcome: &mut Outcome) {
    let value = json!(number);
    if let Some(factor) = node.multiple_of.filter(|factor| !factor.divides(number)) {
        outcome.invalid(path, &value, &format!("should be a multiple of {}", factor.written_for(number)));
    }
    if let Some(limit) = node.minimum.filter(|limit| limit.is_above(number, node.excludes_minimum)) {
        let than = if node.excludes_minimum { "greater than" } else { "greater than or equal to" };
        outcome.invalid(path, &value, &format!("should be {than} {}", limit.written_for(number)));
    }
    if let Some(limit) = node.maximum.filter(|limit| limit.is_below(number, node.excludes_maximum)) {
        let than = if node.excludes_maximum { "less than" } else { "less than or equal to" };
        outcome.invalid(path, &value, &format!("should be {than} {}", limit.written_for(number)));
    }
    outcome.passed += 2;
}

impl Limit {
    fn is_above(self, number: &Number, excludes: bool) -> bool {
        match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => number < self.int || excludes && number == self.int,
            (None, Some(number)) => number < self.float || excludes && number <= self.float,
            (None, None) => false,
        }
    }

    fn is_below(self, number: &Number, excludes: bool) -> bool {
        match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => number > self.int || excludes && number == self.int,
            (None, Some(number)) => number > self.float || excludes && number >= self.float,
            (None, None) => false,
        }
    }

    fn divides(self, number: &Number) -> bool {
        match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => number.checked_rem(self.int) == Some(0),
            (None, Some(number)) => is_whole(if self.float < 1.0 { 1.0 / self.float * number } else { number / self.float }),
            (None, None) => false,
        }
    }

    /// Integers are compared with the limit as an integer.
    fn written_for(self, number: &Number) -> String {
        if number.is_i64() { self.int.to_string() } else { text::float(self.float) }
    }
}

fn check_list(node: &Node, items: &[Value], path: &str, pair: Option<Pair>, outcome: &mut Outcome) {
    if let Some(node) = &node.items {
        for (index, item) in items.iter().enumerate() {
            outcome.merge(check(node, item, &format!("{path}[{index}]"), pair.and_then(|pair| pair.item(index))));
        }
    }
    let size = items.len();
    if let Some(limit) = node.min_items.filter(|limit| is_less(size, *limit)) {
        outcome.invalid(path, &json!(size), &format!("should have at least {limit} items"));
    }
    if let Some(limit) = node.max_items.filter(|limit| is_more(size, *limit)) {
        outcome.too_many(path, size, limit, "items");
    }
    if node.unique_items && (1..size).any(|index| items[..index].contains(&items[index])) {
        outcome.invalid(path, &json!(""), "shouldn't contain duplicates");
    }
    outcome.passed += 2;
}

fn is_less(size: usize, limit: i64) -> bool {
    usize::try_from(limit).is_ok_and(|limit| size < limit)
}

fn is_more(size: usize, limit: i64) -> bool {
    usize::try_from(limit).map_or(true, |limit| size > limit)
}

fn check_object(node: &Node, map: &Map<String, Value>, path: &str, pair: Option<Pair>, outcome: &mut Outcome) {
    let size = map.len();
    if let Some(limit) = node.min_properties.filter(|limit| is_less(size, *limit)) {
        outcome.invalid(path, &json!(size), &format!("should have at least {limit} properties"));
    }
    if let Some(limit) = node.max_properties.filter(|limit| is_more(size, *limit)) {
        outcome.too_many(path, size, limit, "properties");
    }
    // Both kinds of an update are the same, so the fields that name the kind never count as unchanged.
    let names_kind = |key: &str| path.is_empty() && (key == "kind" || key == "apiVersion");
    let pair_of = |key: &str| pair.filter(|_| !names_kind(key)).and_then(|pair| pair.field(key));
    if let Some(Additional::Of(additional)) = &node.additional {
        for (key, value) in map.iter().filter(|(key, _)| !node.properties.contains_key(*key)) {
            outcome.merge(check(additional, value, &format!("{path}.{key}"), pair_of(key)));
        }
    }
    for (name, field) in &node.properties {
        if let Some(value) = map.get(name) {
            outcome.merge(check(field, value, &super::child(path, name), pair_of(name)));
        }
    }
    for name in node.required.iter().filter(|name| !map.contains_key(*name)) {
        let (name, kind) = (format!("{path}.{name}"), CauseKind::Required);
        let text = format!("{name} in body is required");
        outcome.push(Fault { name: Some(name), kind, message: body(kind, None, ""), text });
    }
}

fn check_combinations(node: &Node, value: &Value, path: &str, outcome: &mut Outcome) {
    let outcomes = |nodes: &[Node]| nodes.iter().map(|node| check(node, value, path, None)).collect::<Vec<_>>();
    if !node.any_of.is_empty() {
        let (valid, failed): (Vec<_>, _) = outcomes(&node.any_of).into_iter().partition(Outcome::is_valid);
        if let Some(valid) = valid.into_iter().next() {
            outcome.merge(valid);
        } else {
            outcome.add_unnamed(path, "must validate at least one schema (anyOf)");
            outcome.merge(best(failed));
        }
    }
    if !node.one_of.is_empty() {
        let (valid, failed): (Vec<_>, _) = outcomes(&node.one_of).into_iter().partition(Outcome::is_valid);
        match valid.len() {
            1 => valid.into_iter().for_each(|valid| outcome.merge(valid)),
            0 => {
                outcome.add_unnamed(path, "must validate one and only one schema (oneOf). Found none valid");
                outcome.merge(best(failed));
            }
            count => {
                let text = format!("must validate one and only one schema (oneOf). Found {count} valid alternatives");
                outcome.add_unnamed(path, &text);
            }
        }
    }
    let all = outcomes(&node.all_of);
    let valid = all.iter().filter(|outcome| outcome.is_valid()).count();
    let all_valid = valid == all.len();
    for each in all {
        outcome.merge(each);
    }
    if !all_valid {
        let addition = if valid == 0 { ". None validated" } else { "" };
        outcome.add_unnamed(path, &format!("must validate all the schemas (allOf){addition}"));
    }
    if node.not.as_deref().is_some_and(|node| check(node, value, path, None).is_valid()) {
        outcome.add_unnamed(path, "must not validate the schema (not)");
    }
}

/// The alternative that passed the most checks, the first one of equals.
fn best(failed: Vec<Outcome>) -> Outcome {
    failed.into_iter().reduce(|best, other| if other.passed > best.passed { other } else { best }).unwrap_or_default()
}

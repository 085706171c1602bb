//! Reads of fields of an object that [`super::super::known_fields::prune`] left behind.

use super::Cause;
use serde_json::Value;

/// A text, which is empty if it is missing.
pub fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_default()
}

/// The items of a list, with their places in it.
pub fn list<'a>(object: &'a Value, field: &str) -> impl ExactSizeIterator<Item = (usize, &'a Value)> {
    object[field].as_array().map_or(&[][..], Vec::as_slice).iter().enumerate()
}

/// The entries of a map.
pub fn entries<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    object[field].as_object().into_iter().flatten()
}

pub fn has(object: &Value, field: &str) -> bool {
    object.get(field).is_some_and(|value| !value.is_null())
}

/// Every problem of a value, as a cause of its own.
pub fn invalid_each(causes: &mut Vec<Cause>, path: &str, value: &str, problems: impl IntoIterator<Item = String>) {
    causes.extend(problems.into_iter().map(|problem| Cause::invalid(path, value, problem)));
}

/// One of a few texts, or nothing if that is allowed.
pub fn one_of(causes: &mut Vec<Cause>, path: &str, value: &str, supported: &[&str]) {
    if !supported.contains(&value) {
        causes.push(Cause::not_supported(path, value, supported));
    }
}

/// One of a few texts, which must be there.
pub fn required_one_of(causes: &mut Vec<Cause>, path: &str, value: &str, supported: &[&str]) {
    if value.is_empty() {
        causes.push(Cause::required(path, ""));
    } else {
        one_of(causes, path, value, supported);
    }
}

pub fn not_negative(causes: &mut Vec<Cause>, path: &str, value: &Value) {
    if value.as_i64().is_some_and(|number| number < 0) {
        causes.push(Cause::invalid(path, value.clone(), "must be greater than or equal to 0"));
    }
}

/// A field that an update must leave as it is.
pub fn immutable(causes: &mut Vec<Cause>, path: &str, old: Option<&Value>, new: Option<&Value>) {
    let missing = |value: Option<&Value>| value.is_none_or(|value| value.is_null() || value == "" || value == 0);
    if old != new && !(missing(old) && missing(new)) {
        causes.push(Cause::invalid(path, new.cloned().unwrap_or_default(), "field is immutable"));
    }
}

pub fn port_number(causes: &mut Vec<Cause>, path: &str, port: &Value) {
    if !port.as_i64().is_some_and(|port| (1..=65535).contains(&port)) {
        causes.push(Cause::invalid(path, port.clone(), "must be between 1 and 65535, inclusive"));
    }
}

/// A number, or the name of a port.
pub fn port_number_or_name(causes: &mut Vec<Cause>, path: &str, port: &Value) {
    match port.as_str() {
        Some(name) => invalid_each(causes, path, name, super::names::port_name(name)),
        None => port_number(causes, path, port),
    }
}

/// A number that is not negative, or a share such as `25%`.
pub fn share(causes: &mut Vec<Cause>, path: &str, value: &Value) {
    match value.as_str() {
        Some(text) => causes.extend(super::names::percent(text).into_iter().map(|problem| Cause::invalid(path, text, problem))),
        None => not_negative(causes, path, value),
    }
}

fn percent_value(value: &Value) -> Option<i64> {
    value.as_str()?.strip_suffix('%')?.parse().ok()
}

/// A number or a share, as a number.
pub fn share_value(value: &Value) -> i64 {
    percent_value(value).or_else(|| value.as_i64()).unwrap_or(0)
}

/// A share of no more than all.
pub fn at_most_all(causes: &mut Vec<Cause>, path: &str, value: &Value) {
    if percent_value(value).is_some_and(|percent| percent > 100) {
        causes.push(Cause::invalid(path, value.clone(), "must not be greater than 100%"));
    }
}

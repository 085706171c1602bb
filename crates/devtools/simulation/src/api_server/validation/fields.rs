//! Reads fields of objects, and collects what is wrong with them.

use serde_json::Value;

use super::names::NameRule;
use crate::api_server::cause::{Cause, CauseKind};

/// A text, which is empty if it is missing.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// The field at a path such as `spec.selector`; null if there is none.
pub fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(object, |value, field| &value[field])
}

/// What is wrong with an object.
#[derive(Default)]
pub struct Causes(Vec<Cause>);

impl Causes {
    pub fn into_vec(self) -> Vec<Cause> {
        self.0
    }

    pub fn add(&mut self, kind: CauseKind, field: impl Into<String>, detail: &str) {
        self.0.push(Cause::plain(kind, field, detail));
    }

    pub fn invalid(&mut self, field: impl Into<String>, detail: &str) {
        self.add(CauseKind::Invalid, field, detail);
    }

    pub fn forbidden(&mut self, field: impl Into<String>, detail: &str) {
        self.add(CauseKind::Forbidden, field, detail);
    }

    pub fn required(&mut self, field: impl Into<String>) {
        self.add(CauseKind::Required, field, "");
    }

    pub fn duplicate(&mut self, field: impl Into<String>) {
        self.add(CauseKind::Duplicate, field, "");
    }

    /// Refuses a name that does not have this form.
    pub fn check_name(&mut self, field: impl Into<String>, name: &str, rule: NameRule) {
        if !rule.fits(name) {
            self.invalid(field, rule.text);
        }
    }

    /// Refuses a name that is missing or does not have this form.
    pub fn require_name(&mut self, field: &str, name: &str, rule: NameRule) {
        if name.is_empty() {
            self.required(field);
        } else {
            self.check_name(field, name, rule);
        }
    }

    pub fn refuse_negative(&mut self, field: &str, number: &Value) {
        if number.as_i64().is_some_and(|number| number < 0) {
            self.invalid(field, "must not be negative");
        }
    }

    /// Refuses the change of a field. Null, an empty text and 0 are the same.
    pub fn refuse_change(&mut self, field: &str, old: &Value, new: &Value) {
        let is_missing = |value: &Value| value.is_null() || *value == "" || *value == 0;
        if old != new && !(is_missing(old) && is_missing(new)) {
            self.invalid(field, "field is immutable");
        }
    }
}

//! What kube-apiserver says about values that it refuses.

use std::fmt;

use serde_json::Value;

/// One entry of `status.details.causes` and of the message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cause {
    pub field: String,
    pub kind: CauseKind,
    pub message: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CauseKind {
    Invalid,
    TypeInvalid,
    Required,
    NotSupported,
    TooLong,
    TooMany,
    Duplicate,
}

impl CauseKind {
    /// The `reason` of a cause.
    pub fn reason(self) -> &'static str {
        match self {
            CauseKind::Invalid => "FieldValueInvalid",
            CauseKind::TypeInvalid => "FieldValueTypeInvalid",
            CauseKind::Required => "FieldValueRequired",
            CauseKind::NotSupported => "FieldValueNotSupported",
            CauseKind::TooLong => "FieldValueTooLong",
            CauseKind::TooMany => "FieldValueTooMany",
            CauseKind::Duplicate => "FieldValueDuplicate",
        }
    }

    fn title(self) -> &'static str {
        match self {
            CauseKind::Invalid | CauseKind::TypeInvalid => "Invalid value",
            CauseKind::Required => "Required value",
            CauseKind::NotSupported => "Unsupported value",
            CauseKind::TooLong => "Too long",
            CauseKind::TooMany => "Too many",
            CauseKind::Duplicate => "Duplicate value",
        }
    }

    /// Rules are not checked on an object with such a cause.
    pub fn hinders_rules(self) -> bool {
        !matches!(self, CauseKind::Invalid | CauseKind::Duplicate)
    }
}

impl Cause {
    /// Without a path it concerns the whole object.
    pub fn new(path: &str, kind: CauseKind, value: Option<&Value>, detail: &str) -> Self {
        let field = if path.is_empty() { "<nil>" } else { path };
        let mut message = kind.title().to_owned();
        for part in value.map(go_value).into_iter().chain((!detail.is_empty()).then(|| detail.to_owned())) {
            message.push_str(": ");
            message.push_str(&part);
        }
        Cause { field: field.to_owned(), kind, message }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.field, self.message)
    }
}

/// The value as Go writes it into messages: as JSON with sorted keys, apart from numbers with a fraction.
pub fn go_value(value: &Value) -> String {
    match value {
        Value::Number(number) if !number.is_i64() => go_float(number.as_f64().unwrap_or(f64::NAN)),
        value => {
            let mut sorted = value.clone();
            sorted.sort_all_objects();
            sorted.to_string()
        }
    }
}

/// The number as Go writes it with `%v`.
pub fn go_float(value: f64) -> String {
    let text = format!("{value:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if value == 0.0 || (-4..6).contains(&exponent) {
        return value.to_string();
    }
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_go_does() {
        let numbers = [1_000_000.0, 65535.0, 0.00001, 0.0001, 123_456_789.5, 1e21, 0.0, -2.5];
        let texts = ["1e+06", "65535", "1e-05", "0.0001", "1.234567895e+08", "1e+21", "0", "-2.5"];
        assert_eq!(numbers.map(go_float), texts);
    }
}

//! One reason to refuse an object.

use serde_json::Value;

/// A cause in the details of a refusal, as field.Error prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Such as `spec.containers[0].image`.
    pub field: String,
    /// The reason, such as `FieldValueInvalid`.
    pub kind: &'static str,
    /// Such as `Invalid value: "x": must be ...`.
    pub message: String,
}

impl Cause {
    fn new(kind: &'static str, field: impl Into<String>, text: &str, detail: &str) -> Self {
        let message = if detail.is_empty() { text.to_owned() } else { format!("{text}: {detail}") };
        Self { field: field.into(), kind, message }
    }

    pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl AsRef<str>) -> Self {
        Self::new("FieldValueInvalid", field, &format!("Invalid value: {}", print(&value.into())), detail.as_ref())
    }

    /// An invalid value that is not shown.
    pub fn invalid_omitted(field: impl Into<String>, detail: &str) -> Self {
        Self::new("FieldValueInvalid", field, "Invalid value", detail)
    }

    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::new("FieldValueRequired", field, "Required value", detail)
    }

    pub fn forbidden(field: impl Into<String>, detail: impl AsRef<str>) -> Self {
        Self::new("FieldValueForbidden", field, "Forbidden", detail.as_ref())
    }

    pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new("FieldValueDuplicate", field, &format!("Duplicate value: {}", print(&value.into())), "")
    }

    pub fn not_found(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new("FieldValueNotFound", field, &format!("Not found: {}", print(&value.into())), "")
    }

    pub fn not_supported(field: impl Into<String>, value: impl Into<Value>, supported: &[&str]) -> Self {
        let supported: Vec<_> = supported.iter().map(|value| quote(value)).collect();
        let detail = format!("supported values: {}", supported.join(", "));
        // These are texts of types of their own, which Go writes as JSON.
        let text = format!("Unsupported value: {}", json(&value.into()));
        Self::new("FieldValueNotSupported", field, &text, &detail)
    }

    pub fn too_long(field: impl Into<String>, most: usize) -> Self {
        let unit = if most == 1 { "byte" } else { "bytes" };
        Self::new("FieldValueTooLong", field, "Too long", &format!("may not be more than {most} {unit}"))
    }

    pub fn too_many(field: impl Into<String>, found: usize, most: usize) -> Self {
        let unit = if most == 1 { "item" } else { "items" };
        Self::new("FieldValueTooMany", field, &format!("Too many: {found}"), &format!("must have at most {most} {unit}"))
    }
}

fn print(value: &Value) -> String {
    match value {
        Value::String(text) => quote(text),
        other => json(other),
    }
}

/// Go's JSON, which is safe to stand in HTML.
fn json(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// A text in quotes, as Go's `%q` writes it.
pub fn quote(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            character if character.is_ascii_control() => quoted.extend(format!("\\x{:02x}", u32::from(character)).chars()),
            // What cannot be seen is written as its number.
            character if character.is_control() || (character.is_whitespace() && character != ' ') => {
                quoted.extend(format!("\\u{:04x}", u32::from(character)).chars());
            }
            character => quoted.push(character),
        }
    }
    quoted + "\""
}

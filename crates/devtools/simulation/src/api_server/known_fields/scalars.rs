//! Values of one piece: how Go reads and writes them.

use data_encoding::BASE64;
use jiff::{Timestamp, civil::DateTime};
use liqo_quantity::Quantity;
use serde_json::Value;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    String,
    Bool,
    /// With the name of its Go type.
    Int(&'static str),
    Bytes,
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    /// Kept as it is.
    Raw,
}

impl Scalar {
    /// The type that Go names where a value does not fit.
    pub fn go_name(self) -> &'static str {
        match self {
            Scalar::Bool => "bool",
            Scalar::Int(name) => name,
            Scalar::Bytes => "[]uint8",
            Scalar::IntOrString => "int32",
            Scalar::String | Scalar::Time | Scalar::MicroTime | Scalar::Quantity | Scalar::Raw => {
                "string"
            }
        }
    }
}

/// Why a value cannot be read.
pub enum Problem {
    /// JSON of another type: what it is, and what it should be.
    Type(String, String),
    /// The same, found by a type's own parser.
    TypeInside(String, String),
    /// Bytes that are not encoded well.
    Bytes(String),
    /// The text of a type's own parser.
    Text(String),
}

impl Problem {
    pub fn mismatch(value: &Value, wanted: String) -> Self {
        let found = match value {
            Value::Null => "null".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::Number(number) if wanted.starts_with("int") => format!("number {number}"),
            Value::Number(_) => "number".to_owned(),
            Value::String(_) => "string".to_owned(),
            Value::Array(_) => "array".to_owned(),
            Value::Object(_) => "object".to_owned(),
        };
        Problem::Type(found, wanted)
    }

    fn ending(self) -> Self {
        match self {
            Problem::Type(found, wanted) => Problem::TypeInside(found, wanted),
            other => other,
        }
    }

    /// Whether nothing is read after it.
    pub fn ends(&self) -> bool {
        matches!(self, Problem::TypeInside(..) | Problem::Text(_))
    }

    pub fn to_text(&self, place: &str) -> String {
        match self {
            Problem::Type(found, wanted) | Problem::TypeInside(found, wanted) => {
                format!(
                    "json: cannot unmarshal {found} into Go struct field {place} of type {wanted}"
                )
            }
            Problem::Bytes(text) | Problem::Text(text) => text.clone(),
        }
    }
}

pub fn decode(scalar: Scalar, value: Value) -> Result<Value, Problem> {
    match (scalar, value) {
        (Scalar::String | Scalar::Bytes, Value::Null) => Ok(Value::from("")),
        (Scalar::Bool, Value::Null) => Ok(Value::from(false)),
        (Scalar::Int(_) | Scalar::IntOrString, Value::Null) => Ok(Value::from(0)),
        (Scalar::Quantity, Value::Null) => Ok(Value::from("0")),
        (Scalar::Time | Scalar::MicroTime, Value::Null) => Ok(Value::Null),
        (Scalar::Raw, value)
        | (Scalar::String | Scalar::IntOrString, value @ Value::String(_))
        | (Scalar::Bool, value @ Value::Bool(_)) => Ok(value),
        (Scalar::Int(_) | Scalar::IntOrString, Value::Number(number))
            if fits(scalar, number.as_i64()) =>
        {
            Ok(Value::Number(number))
        }
        (Scalar::Bytes, Value::String(text)) => bytes(&text),
        (Scalar::Time, Value::String(text)) => {
            time(&text, "2006-01-02T15:04:05Z07:00", "%Y-%m-%dT%H:%M:%SZ")
        }
        (Scalar::MicroTime, Value::String(text)) => micro_time(&text),
        (
            Scalar::Quantity,
            value @ (Value::String(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_)
            | Value::Bool(_)),
        ) => quantity(&value),
        (scalar @ (Scalar::Time | Scalar::MicroTime | Scalar::IntOrString), value) => {
            Err(Problem::mismatch(&value, scalar.go_name().to_owned()).ending())
        }
        (scalar, value) => Err(Problem::mismatch(&value, scalar.go_name().to_owned())),
    }
}

fn fits(scalar: Scalar, number: Option<i64>) -> bool {
    number.is_some_and(|number| match scalar {
        Scalar::Int("int64" | "int") => true,
        Scalar::Int("uint16") => u16::try_from(number).is_ok(),
        _ => i32::try_from(number).is_ok(),
    })
}

fn bytes(text: &str) -> Result<Value, Problem> {
    let text: String = text
        .chars()
        .filter(|character| !matches!(character, '\r' | '\n'))
        .collect();
    let decoded = BASE64.decode(text.as_bytes());
    decoded
        .map(|bytes| Value::from(BASE64.encode(&bytes)))
        .map_err(|error| {
            // Go sees a foreign character before it sees that the length is wrong.
            let foreign = text
                .bytes()
                .position(|byte| !byte.is_ascii_alphanumeric() && !b"+/=".contains(&byte));
            Problem::Bytes(format!(
                "illegal base64 data at input byte {}",
                foreign.unwrap_or(error.position)
            ))
        })
}

fn time(text: &str, layout: &str, format: &str) -> Result<Value, Problem> {
    // Go wants the separators of RFC 3339 exactly, jiff does not.
    let separators = [(4, '-'), (7, '-'), (10, 'T'), (13, ':'), (16, ':')];
    let strict = separators
        .iter()
        .all(|&(at, separator)| text.as_bytes().get(at) == Some(&(separator as u8)));
    let parsed = text.parse::<Timestamp>().ok().filter(|_| strict);
    let parsed = parsed.ok_or_else(|| {
        Problem::Text(format!(
            "parsing time {text:?} as {layout:?}: cannot parse {text:?} as \"2006\""
        ))
    })?;
    Ok(Value::from(parsed.strftime(format).to_string()))
}

fn micro_time(text: &str) -> Result<Value, Problem> {
    let layout = "2006-01-02T15:04:05.000000Z07:00";
    let fraction = text
        .get(19..26)
        .filter(|fraction| fraction.starts_with('.'));
    let fraction =
        fraction.filter(|fraction| fraction[1..].bytes().all(|digit| digit.is_ascii_digit()));
    let exact = fraction.is_some() && !text.as_bytes().get(26).is_some_and(u8::is_ascii_digit);
    if !exact
        && text
            .get(..19)
            .is_some_and(|start| start.parse::<DateTime>().is_ok())
    {
        let rest = &text[19..];
        return Err(Problem::Text(format!(
            "parsing time {text:?} as {layout:?}: cannot parse {rest:?} as \".000000\""
        )));
    }
    time(text, layout, "%Y-%m-%dT%H:%M:%S.%6fZ")
}

fn quantity(value: &Value) -> Result<Value, Problem> {
    let text = value
        .as_str()
        .map_or_else(|| value.to_string(), |text| text.trim().to_owned());
    let parsed = text.parse::<Quantity>();
    parsed
        .map(|quantity| Value::from(quantity.to_string()))
        .map_err(|_| {
            let number = text
                .trim_start_matches(['+', '-'])
                .trim_start_matches(|character: char| character.is_ascii_digit());
            let rest = number
                .strip_prefix('.')
                .unwrap_or(number)
                .trim_start_matches(|character: char| character.is_ascii_digit());
            let suffix = rest.trim_start_matches(|character| "eEinumkKMGTP".contains(character));
            let digits = suffix.strip_prefix(['+', '-']).unwrap_or(suffix);
            // With a number in front, and a suffix of known letters, only the suffix is to blame.
            if rest.len() < text.len() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Problem::Text("unable to parse quantity's suffix".to_owned());
            }
            let pattern = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$";
            Problem::Text(format!(
                "quantities must match the regular expression '{pattern}'"
            ))
        })
}

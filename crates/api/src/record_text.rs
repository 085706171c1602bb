//! The objects inside records: JSON as text, in a single field.
//!
//! To decode a free-form object, the API server needs a hundred times its size in memory, before
//! any rule can refuse it. A text costs little more than its length, and the schema limits the
//! length.

use std::{fmt, io};

use serde::{
    Deserializer, Serialize as _,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Value, ser::Formatter};

/// Maximum length in bytes of the text of a pod: 64 KiB for its spec, and the rest for names,
/// labels and annotations.
pub const MAX_POD_LEN: usize = 72 * 1024;
/// Maximum length in bytes of the text of another object.
pub const MAX_OBJECT_LEN: usize = 64 * 1024;
/// Maximum length in bytes of the keys and values of a Secret.
pub const MAX_SECRET_LEN: usize = 32 * 1024;
/// Maximum length in bytes of the entries of a usage record.
pub const MAX_ENTRIES_LEN: usize = 256 * 1024;
/// Maximum number of values in a text. A parsed value takes up to a hundred bytes, and much more as
/// a field of a typed pod.
pub const MAX_VALUES: usize = 10_000;

/// Why a text does not travel, or is not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordTextError {
    /// Length in bytes, and the maximum.
    #[error("it takes {0} bytes, and at most {1} bytes travel")]
    TooLong(usize, usize),
    /// More than [`MAX_VALUES`].
    #[error("it contains more than {MAX_VALUES} values")]
    TooManyValues,
    /// Not JSON, or nested too deeply.
    #[error("it is not valid JSON text: {0}")]
    Invalid(String),
}

/// Writes the text of an object, if it is short enough to be read at the other side.
pub fn print_object(object: &Value, max_len: usize) -> Result<String, RecordTextError> {
    let mut text = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, PlainAscii);
    object
        .serialize(&mut serializer)
        .map_err(|error| RecordTextError::Invalid(error.to_string()))?;
    let text =
        String::from_utf8(text).map_err(|error| RecordTextError::Invalid(error.to_string()))?;
    check_limits(&text, max_len).map(|()| text)
}

/// Reads the text of an object. Judges its length and the number of values before it parses;
/// `serde_json` limits the depth.
pub fn parse_object(text: &str, max_len: usize) -> Result<Value, RecordTextError> {
    check_limits(text, max_len)?;
    serde_json::from_str(text).map_err(|error| RecordTextError::Invalid(error.to_string()))
}

fn check_limits(text: &str, max_len: usize) -> Result<(), RecordTextError> {
    if text.len() > max_len {
        Err(RecordTextError::TooLong(text.len(), max_len))
    } else if max_values(text) > MAX_VALUES {
        Err(RecordTextError::TooManyValues)
    } else {
        Ok(())
    }
}

/// The length in bytes that a character of a string takes in a text.
pub fn stored_len(character: char) -> usize {
    match character {
        '"' | '\\' | '\u{8}' | '\t' | '\n' | '\u{c}' | '\r' => 2,
        ' '..='~' if !is_escaped(character) => 1,
        _ => 6 * character.len_utf16(),
    }
}

/// Whether a character is written as a number, although JSON does not ask for that.
fn is_escaped(character: char) -> bool {
    !character.is_ascii() || matches!(character, '<' | '>' | '&' | '\u{7f}')
}

/// The number of values in a JSON text, or more: each but the first follows a comma or the begin of
/// a list or object.
pub fn max_values(text: &str) -> usize {
    let (mut values, mut in_string, mut escaped) = (1, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => values += 1,
            _ => {}
        }
    }
    values
}

/// Writes only characters that the API server stores as they are, so that the length of a text
/// limits what it takes in etcd: it escapes `<`, `>` and `&`, each as six bytes, and counts
/// characters, not bytes.
struct PlainAscii;

impl Formatter for PlainAscii {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        for character in fragment.chars() {
            if is_escaped(character) {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write!(writer, "\\u{unit:04x}")?;
                }
            } else {
                writer.write_all(character.encode_utf8(&mut [0; 4]).as_bytes())?;
            }
        }
        Ok(())
    }
}

/// Deserializes a text. Anything else counts as an empty text, which [`parse_object`] refuses: then
/// the object can still be handled, and its writer learns why it is refused.
pub(crate) fn text_or_nothing<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<String, D::Error> {
    deserializer.deserialize_any(TextVisitor)
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON as text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<String, E> {
        Ok(text)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<String, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(String::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<String, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(String::new())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<String, E> {
        Ok(String::new())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<String, E> {
        Ok(String::new())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<String, E> {
        Ok(String::new())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<String, E> {
        Ok(String::new())
    }

    fn visit_unit<E: Error>(self) -> Result<String, E> {
        Ok(String::new())
    }
}

#[cfg(test)]
mod tests {
    use liqo_byte_mutations::mutated_text;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::ShadowPod;

    /// Objects of all shapes, without fractions, which are not always read exactly as they were
    /// written.
    fn objects() -> impl Strategy<Value = Value> {
        let value = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "\\PC{0,20}".prop_map(Value::from),
        ];
        value.prop_recursive(5, 64, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map("[a-z./<&-]{1,12}", inner, 0..6)
                    .prop_map(|fields| fields.into_iter().collect()),
            ]
        })
    }

    fn count(value: &Value) -> usize {
        1 + match value {
            Value::Array(list) => list.iter().map(count).sum(),
            Value::Object(fields) => fields.values().map(count).sum(),
            _ => 0,
        }
    }

    #[test]
    fn an_object_is_read_as_it_was_written() {
        let object = json!({ "a": "<&>\u{7f} \"quoted\" \\ back\n", "ä": ["日本", "🦀"], "n": [1, 2.5, null, true] });
        let text = print_object(&object, MAX_POD_LEN).unwrap();
        let is_plain = |byte: u8| (b' '..=b'~').contains(&byte) && !b"<>&".contains(&byte);
        assert!(text.bytes().all(is_plain), "{text}");
        assert_eq!(parse_object(&text, MAX_POD_LEN), Ok(object));
    }

    #[test]
    fn each_character_takes_as_many_bytes_as_is_said() {
        for character in (0..0x3000)
            .chain(0x1f000..0x1f100)
            .filter_map(char::from_u32)
        {
            let text = print_object(&json!(character.to_string()), MAX_POD_LEN).unwrap();
            assert_eq!(
                text.len() - 2,
                stored_len(character),
                "{character:?} {text}"
            );
        }
    }

    #[test]
    fn a_pod_with_a_spec_of_64_kib_travels_and_a_larger_one_does_not() {
        let pod = |bytes: usize| {
            let container =
                json!({ "name": "main", "image": "busybox", "args": ["x".repeat(bytes)] });
            json!({ "metadata": { "name": "web", "labels": { "app": "web" } }, "spec": { "containers": [container] } })
        };
        assert!(print_object(&pod(64 * 1024), MAX_POD_LEN).is_ok());
        let error = print_object(&pod(MAX_POD_LEN), MAX_POD_LEN).unwrap_err();
        assert!(
            error.to_string().ends_with("at most 73728 bytes travel"),
            "{error}"
        );
        // 2,200 variables of 29 bytes each.
        let variables: Vec<Value> = (1000..3200)
            .map(|n| json!({ "name": format!("A{n}"), "value": "b" }))
            .collect();
        assert!(
            print_object(
                &json!({ "spec": { "containers": [{ "name": "main", "env": variables }] } }),
                MAX_POD_LEN
            )
            .is_ok()
        );
    }

    #[test]
    fn a_text_is_judged_before_it_is_parsed() {
        // Broken at the end: a parser would find that first.
        let long = format!("[\"{}\"", "x".repeat(100));
        assert_eq!(
            parse_object(&long, 100),
            Err(RecordTextError::TooLong(103, 100))
        );
        for element in ["1,", "{\"a\":1},", "[],", "\"\\\"\","] {
            let many = format!("[{}", element.repeat(MAX_VALUES));
            assert_eq!(
                parse_object(&many, MAX_POD_LEN * 2),
                Err(RecordTextError::TooManyValues),
                "{element}"
            );
        }
        let in_strings = format!("[\"{}\"]", ",[{\\\"".repeat(MAX_VALUES / 2));
        assert!(parse_object(&in_strings, MAX_POD_LEN).is_ok());
    }

    #[test]
    fn deep_empty_and_broken_texts_are_refused() {
        for text in [
            "",
            "{",
            "nothing",
            &"[".repeat(500),
            &format!("{}1{}", "{\"a\":".repeat(200), "}".repeat(200)),
        ] {
            assert!(
                matches!(
                    parse_object(text, MAX_POD_LEN),
                    Err(RecordTextError::Invalid(_))
                ),
                "{text}"
            );
        }
    }

    #[test]
    fn a_record_of_another_shape_is_one_without_a_text() {
        let text = |pod: Value| {
            let object = json!({ "metadata": { "name": "u" }, "spec": { "namespace": "demo", "pool": "default", "pod": pod } });
            serde_json::from_value::<ShadowPod>(object)
                .unwrap()
                .spec
                .pod
        };
        assert_eq!(text(json!("{}")), "{}");
        for other in [
            json!({ "metadata": { "name": "web" }, "spec": {} }),
            json!([1]),
            json!(1),
            json!(-1),
            json!(0.5),
            json!(true),
            json!(null),
        ] {
            assert_eq!(text(other), "");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_it_was(object in objects()) {
            let text = print_object(&object, MAX_OBJECT_LEN).unwrap();
            prop_assert_eq!(parse_object(&text, MAX_OBJECT_LEN), Ok(object));
        }

        #[test]
        fn a_mutated_text_is_refused_or_has_few_values(text in mutated_text(objects().prop_map(|object| object.to_string()))) {
            match parse_object(&text, MAX_OBJECT_LEN) {
                Ok(object) => {
                    prop_assert!(text.len() <= MAX_OBJECT_LEN && count(&object) <= max_values(&text));
                    if let Ok(written) = print_object(&object, MAX_OBJECT_LEN) {
                        prop_assert!(parse_object(&written, MAX_OBJECT_LEN).is_ok());
                    }
                }
                Err(error) => prop_assert!(error.to_string().len() < 500),
            }
        }
    }
}

//! How Go writes values: the texts of kube-apiserver contain them.

use std::fmt::Write as _;

use regex::Regex;
use serde_json::Value;

/// As `%q`.
pub fn quote(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            character if is_printed(character) => quoted.push(character),
            '\x07' => quoted.push_str("\\a"),
            '\x08' => quoted.push_str("\\b"),
            '\x0c' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\x0b' => quoted.push_str("\\v"),
            character => quoted.push_str(&number_of(character)),
        }
    }
    quoted.push('"');
    quoted
}

fn number_of(character: char) -> String {
    match u32::from(character) {
        number if character < ' ' || character == '\x7f' => format!("\\x{number:02x}"),
        number if number < 0x10000 => format!("\\u{number:04x}"),
        number => format!("\\U{number:08x}"),
    }
}

/// Rust escapes what Go does not print, apostrophes, and a combining mark if nothing is in front of it.
fn is_printed(character: char) -> bool {
    character == '\'' || format!("a{character}").escape_debug().eq(['a', character])
}

/// As `json.Marshal`: sorted keys, and no characters that mean something in HTML.
pub fn json(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => number.as_f64().map_or_else(|| number.to_string(), json_float),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => json_text(text),
        Value::Array(items) => format!("[{}]", items.iter().map(json).collect::<Vec<_>>().join(",")),
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            let written = |(key, value): (&String, _)| format!("{}:{}", json_text(key), json(value));
            format!("{{{}}}", entries.into_iter().map(written).collect::<Vec<_>>().join(","))
        }
    }
}

fn json_text(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\x08' => quoted.push_str("\\b"),
            '\x0c' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..' ' => {
                // Writing to a string does not fail.
                let _ = write!(quoted, "\\u{:04x}", u32::from(character));
            }
            character => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

fn json_float(value: f64) -> String {
    let (mantissa, exponent) = scientific(value);
    if value == 0.0 || (-6..21).contains(&exponent) {
        return value.to_string();
    }
    format!("{mantissa}e{}{}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// As `%v`.
pub fn float(value: f64) -> String {
    let (mantissa, exponent) = scientific(value);
    if value == 0.0 || (-4..6).contains(&exponent) {
        return value.to_string();
    }
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn scientific(value: f64) -> (String, i32) {
    let text = format!("{value:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    (mantissa.to_owned(), exponent.parse().unwrap_or_default())
}

/// Go's syntax: `\d`, `\s`, `\w` and `\b` are ASCII, and inside of brackets `[`, `&` and `~` mean themselves.
pub fn regex(pattern: &str) -> Result<Regex, String> {
    let mut translated = String::new();
    let mut in_brackets = false;
    let mut rest = pattern.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '\\' => translated.push_str(&escaped(rest.next(), in_brackets)),
            '[' if !in_brackets => {
                in_brackets = true;
                translated.push('[');
                translated.extend(rest.next_if_eq(&'^'));
                // A bracket that closes right away means itself.
                if rest.next_if_eq(&']').is_some() {
                    translated.push_str("\\]");
                }
            }
            '[' if rest.peek() == Some(&':') => {
                translated.push('[');
                for inside in rest.by_ref() {
                    translated.push(inside);
                    if inside == ']' {
                        break;
                    }
                }
            }
            '[' | '&' | '~' if in_brackets => translated.extend(['\\', character]),
            ']' => {
                in_brackets = false;
                translated.push(']');
            }
            character => translated.push(character),
        }
    }
    Regex::new(&translated).map_err(|error| error.to_string())
}

fn escaped(character: Option<char>, in_brackets: bool) -> String {
    let class = match character {
        Some('d') => "[0-9]",
        Some('D') => "[^0-9]",
        Some('s') => "[\\t\\n\\f\\r ]",
        Some('S') => "[^\\t\\n\\f\\r ]",
        Some('w') => "[0-9A-Za-z_]",
        Some('W') => "[^0-9A-Za-z_]",
        Some('b') if !in_brackets => "(?-u:\\b)",
        Some(character) => return format!("\\{character}"),
        None => "\\",
    };
    class.to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_quoted_as_go_does() {
        let text = "a\u{a0}\u{200b}\x7f\x01\n<é\u{301}😀\u{e0001}\"\\'";
        assert_eq!(quote(text), "\"a\\u00a0\\u200b\\x7f\\x01\\n<é\u{301}😀\\U000e0001\\\"\\\\'\"");
        let value = json!({"b": [1_000_000.0, 1e21, 1e-7, 1e-6, 1.5], "a": "<a>&\u{2028}\x01é\x7f"});
        let expected = "{\"a\":\"\\u003ca\\u003e\\u0026\\u2028\\u0001é\x7f\",\"b\":[1000000,1e+21,1e-7,0.000001,1.5]}";
        assert_eq!(json(&value), expected);
    }

    #[test]
    fn numbers_are_written_as_go_does() {
        let numbers = [1_000_000.0, 65535.0, 604_800.0, 0.00001, 0.0001, 123_456_789.5, 1e21, 0.0, -2.5];
        let texts = ["1e+06", "65535", "604800", "1e-05", "0.0001", "1.234567895e+08", "1e+21", "0", "-2.5"];
        assert_eq!(numbers.map(float), texts);
    }

    #[test]
    fn patterns_mean_what_they_mean_in_go() {
        assert!(regex("^[^\\s/:]+:[0-9]{1,5}$").unwrap().is_match("a:80"));
        assert!(!regex("^\\d$").unwrap().is_match("٣"));
        assert!(regex("^[[&&~]$").unwrap().is_match("["));
        assert!(regex("^[]a]$").unwrap().is_match("]"));
        assert!(regex("^[[:alpha:]-]$").unwrap().is_match("-"));
        assert!(regex("(").is_err());
    }
}

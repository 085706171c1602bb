//! Descriptions of fields: the doc comments of this crate, with one line for each paragraph.
//!
//! A doc comment is wrapped where the editor wraps it. `kubectl explain` wraps again, so line ends
//! within a paragraph would show.

use serde_json::Value;

/// Joins the lines of each paragraph in all descriptions of a schema.
pub(crate) fn join_lines(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "description" => *text = joined(text),
                    value => join_lines(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(join_lines),
        _ => {}
    }
}

/// The text with one line for each paragraph and each item of a list.
fn joined(text: &str) -> String {
    let mut joined = String::new();
    for line in text.lines().map(str::trim) {
        let begins = line.is_empty() || line.starts_with("- ");
        let is_first = joined.is_empty() || joined.ends_with('\n');
        if begins {
            joined.push('\n');
        } else if !is_first {
            joined.push(' ');
        }
        joined.push_str(line);
        if line.is_empty() {
            joined.push('\n');
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paragraph_is_one_line_and_items_stay_apart() {
        let text = "Some words\nthat go on.\n\nA list:\n- one\n- two\nof them";
        assert_eq!(
            joined(text),
            "Some words that go on.\n\nA list:\n- one\n- two of them"
        );
    }
}

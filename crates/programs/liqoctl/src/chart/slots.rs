//! Places in an object that Helm fills. The object gets a token for each, which survives the
//! conversion to YAML.

use serde_json::{Map, Value};

/// Keys with it come last in a map, so that the first line of a list's item is never one.
const TOKEN: &str = "zzslot";
const TOKEN_LENGTH: usize = TOKEN.len() + 4;

/// The texts that take the places of the tokens.
#[derive(Debug, Default)]
pub struct TemplateSlots {
    texts: Vec<String>,
}

impl TemplateSlots {
    fn add_token(&mut self, text: String) -> String {
        self.texts.push(text);
        format!("{TOKEN}{:04}", self.texts.len() - 1)
    }

    /// A value: what the expression returns, with the quotes that its type needs.
    pub fn slot_for_json(&mut self, expression: &str) -> Value {
        Value::String(self.add_token(format!("{{{{ toJson ({expression}) }}}}")))
    }

    /// Adds lines to a map. `$I` in them is the indentation of the map's keys, `$N` that of what is
    /// inside of one.
    pub fn add_map_lines(&mut self, map: &mut Value, lines: &str) {
        if !map.is_object() {
            *map = Value::Object(Map::new());
        }
        let token = self.add_token(lines.to_owned());
        map[token] = Value::Null;
    }

    /// Adds lines to a list, as to a map.
    pub fn add_list_lines(&mut self, list: &mut Value, lines: &str) {
        let token = self.add_token(lines.to_owned());
        if let Some(items) = list.as_array_mut() {
            items.push(Value::String(token));
        }
    }

    /// The YAML or JSON with the texts in the places of the tokens.
    pub fn fill_tokens(&self, text: &str) -> String {
        let escaped = text.replace("{{", "{{ \"{{\" }}");
        escaped
            .lines()
            .map(|line| self.fill_line(line) + "\n")
            .collect()
    }

    fn fill_line(&self, line: &str) -> String {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if is_whole_token(content) || content.strip_prefix("- ").is_some_and(is_whole_token) {
            let lines = self
                .text_at(content.trim_start_matches("- "))
                .replace("$I", &indent.to_string());
            let lines = lines.replace("$N", &(indent + 2).to_string());
            return lines
                .lines()
                .map(|line| format!("{:indent$}{line}", ""))
                .collect::<Vec<_>>()
                .join("\n");
        }
        let mut line = line.to_owned();
        while let Some(at) = line.find(TOKEN) {
            let expression = self.text_at(&line[at..]).to_owned();
            let (mut start, mut end) = (at, at + TOKEN_LENGTH);
            // JSON has quotes around it, which the expression brings itself.
            if line[..start].ends_with('"') && line[end..].starts_with('"') {
                (start, end) = (start - 1, end + 1);
            }
            line.replace_range(start..end, &expression);
        }
        line
    }

    fn text_at(&self, token: &str) -> &str {
        let index = token
            .get(TOKEN.len()..TOKEN_LENGTH)
            .and_then(|number| number.parse::<usize>().ok());
        index
            .and_then(|index| self.texts.get(index))
            .map_or("", String::as_str)
    }
}

/// Whether the line, or the item of a list, is nothing but a token.
fn is_whole_token(content: &str) -> bool {
    content.starts_with(TOKEN) && (content.len() == TOKEN_LENGTH || content.contains("null"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::output;

    use super::*;

    #[test]
    fn lines_have_the_indentation_of_their_place_and_values_bring_their_quotes() {
        let mut slots = TemplateSlots::default();
        let mut object = json!({ "list": [{ "name": "x" }], "text": "{{ not ours }}" });
        object["value"] = slots.slot_for_json(".Values.a");
        slots.add_map_lines(
            &mut object["list"][0],
            "{{- with .Values.b }}\nmore:\n{{- toYaml . | nindent $N }}\n{{- end }}",
        );
        slots.add_list_lines(&mut object["list"], "{{- toYaml .Values.c | nindent $I }}");
        let text = slots.fill_tokens(&output::to_yaml(&object).unwrap());
        let expected = "list:\n- name: x\n  {{- with .Values.b }}\n  more:\n  {{- toYaml . | nindent 4 }}\n  {{- end }}\n\
                        {{- toYaml .Values.c | nindent 0 }}\ntext: \"{{ \"{{\" }} not ours }}\"\nvalue: {{ toJson (.Values.a) }}\n";
        assert_eq!(text, expected);
    }
}

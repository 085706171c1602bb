//! values.schema.json: which keys there are, and which values they take. A key that is not in it is
//! refused.

use serde_json::{Map, Value, json};

use crate::settings::table::{self, SettingClass, SettingRow, ValueKind};

use super::values::{ValueNode, value_tree};

/// The file.
pub fn schema_text() -> anyhow::Result<String> {
    let nodes = value_tree(table::rows().filter(|row| row.class != SettingClass::CommandLine));
    let mut schema = schema_of_map("", &nodes);
    schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    schema["title"] = json!("Values of the chart liqo");
    Ok(serde_json::to_string_pretty(&schema)? + "\n")
}

fn schema_of_map(path: &str, nodes: &[(&'static str, ValueNode)]) -> Value {
    let mut properties = Map::new();
    for (name, node) in nodes {
        let path = if path.is_empty() {
            (*name).to_owned()
        } else {
            format!("{path}.{name}")
        };
        let schema = match node {
            ValueNode::Value(row) => schema_of_value(row),
            ValueNode::Map(inner) => schema_of_map(&path, inner),
        };
        properties.insert((*name).to_owned(), schema);
    }
    let required: Vec<&str> = nodes
        .iter()
        .filter(|(_, node)| has_default(node))
        .map(|(name, _)| *name)
        .collect();
    if path.is_empty() {
        // Helm adds it to the values of a chart that another one depends on.
        properties
            .entry("global")
            .or_insert_with(|| json!({ "type": "object" }));
    }
    let mut schema = json!({ "type": "object", "additionalProperties": path == "global", "properties": properties });
    if !required.is_empty() {
        // Helm removes a key whose value is null. Without its default the templates would have no
        // value.
        schema["required"] = json!(required);
    } else if path != "global" {
        schema["type"] = json!(["object", "null"]);
    }
    schema
}

fn has_default(node: &ValueNode) -> bool {
    match node {
        ValueNode::Value(row) => row.is_in_chart(),
        ValueNode::Map(inner) => inner.iter().any(|(_, node)| has_default(node)),
    }
}

fn schema_of_value(row: &SettingRow) -> Value {
    let own = match row.class {
        // What the target takes: the schema judges values before the chart maps them.
        SettingClass::Mapped(target, table::ValueConversion::Same) => {
            table::find(target).map_or(row.kind, |target| target.kind)
        }
        _ => row.kind,
    };
    let mut schema = schema_of_kind(own);
    if !row.is_in_chart() {
        accept_absent_value(&mut schema);
    }
    if row.key == "extraLabels" || row.key.ends_with(".podLabels") {
        schema["propertyNames"] = json!({ "not": { "pattern": "liqo\\.io/" } });
    }
    schema["description"] = json!(if row.is_in_chart() {
        row.text.to_owned()
    } else {
        row.note_for_user()
    });
    schema
}

/// Also accepts null and an empty text, which values files of other versions have.
fn accept_absent_value(schema: &mut Value) {
    let Some(accepted) = schema.get("type") else {
        return;
    };
    let mut types: Vec<Value> = accepted
        .as_array()
        .cloned()
        .unwrap_or_else(|| vec![accepted.clone()]);
    types.push(json!("null"));
    schema["type"] = json!(types);
    if let Some(values) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        values.extend([json!(""), Value::Null]);
    }
    if let Some(pattern) = schema
        .get("pattern")
        .and_then(Value::as_str)
        .map(str::to_owned)
    {
        schema["pattern"] = json!(format!("^$|{pattern}"));
    }
}

fn schema_of_kind(kind: ValueKind) -> Value {
    match kind {
        ValueKind::Text(pattern) => schema_of_text(pattern),
        ValueKind::Bool => json!({ "type": "boolean" }),
        ValueKind::Integer(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        ValueKind::OptionalInteger(least, most) => {
            json!({ "type": ["integer", "string"], "minimum": least, "maximum": most, "pattern": "^[0-9]*$" })
        }
        ValueKind::OneOf(values) => json!({ "type": "string", "enum": values }),
        ValueKind::Texts(pattern) => json!({ "type": "array", "items": schema_of_text(pattern) }),
        ValueKind::Labels => {
            json!({ "type": "object", "additionalProperties": { "type": "string" } })
        }
        ValueKind::List => json!({ "type": "array" }),
        ValueKind::Map => json!({ "type": "object" }),
        ValueKind::Anything => json!({}),
    }
}

fn schema_of_text(pattern: &str) -> Value {
    if pattern.is_empty() {
        json!({ "type": "string" })
    } else {
        json!({ "type": "string", "pattern": pattern })
    }
}

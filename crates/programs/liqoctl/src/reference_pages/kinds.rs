//! One page for each kind, from its definition: what it is for, its columns, and every field.

use std::fmt::Write as _;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion,
};
use serde_json::Value;

use super::{GENERATED, table_cell};

/// Pages below `docs/reference`: the list of kinds, and one page for each.
pub fn kind_pages() -> Vec<(String, String)> {
    let definitions = liqo_api::custom_resource_definitions();
    let mut pages = vec![("kinds/README.md".to_owned(), list_of_kinds(&definitions))];
    for definition in &definitions {
        pages.push((
            format!("kinds/{}", page_name(definition)),
            kind_page(definition),
        ));
    }
    pages
}

fn page_name(definition: &CustomResourceDefinition) -> String {
    format!("{}.md", definition.spec.names.kind.to_lowercase())
}

fn list_of_kinds(definitions: &[CustomResourceDefinition]) -> String {
    let mut page = format!(
        "# Kinds\n{GENERATED}\n\nThe objects of Liqo, with every field. `kubectl explain KIND` shows the same.\n\n\
         | kind | group | scope | short | for |\n|---|---|---|---|---|\n"
    );
    for definition in definitions {
        let names = &definition.spec.names;
        let short = names.short_names.clone().unwrap_or_default().join(", ");
        let _ = writeln!(
            page,
            "| [{}]({}) | {} | {} | {short} | {} |",
            names.kind,
            page_name(definition),
            definition.spec.group,
            definition.spec.scope,
            table_cell(first_sentence(&description_of_kind(definition))),
        );
    }
    page
}

fn kind_page(definition: &CustomResourceDefinition) -> String {
    let names = &definition.spec.names;
    let mut page = format!("# {}\n{GENERATED}\n\n", names.kind);
    let _ = writeln!(page, "{}\n", description_of_kind(definition));
    for version in &definition.spec.versions {
        let _ = writeln!(
            page,
            "`apiVersion: {}/{}`, {}, `kubectl get {}`.\n",
            definition.spec.group,
            version.name,
            definition.spec.scope.to_lowercase(),
            names.plural,
        );
        page.push_str(&table_of_columns(version));
        let schema = schema_of_version(version);
        for part in ["spec", "status"] {
            page.push_str(&table_of_fields(part, &schema["properties"][part]));
        }
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

fn schema_of_version(version: &CustomResourceDefinitionVersion) -> Value {
    let schema = version.schema.as_ref();
    let schema = schema.and_then(|schema| schema.open_api_v3_schema.as_ref());
    serde_json::to_value(schema).unwrap_or_default()
}

/// The doc comment of the spec's type describes the kind.
fn description_of_kind(definition: &CustomResourceDefinition) -> String {
    let version = definition.spec.versions.first();
    let schema = version.map(schema_of_version).unwrap_or_default();
    let of_spec = schema["properties"]["spec"]["description"].as_str();
    let of_kind = schema["description"].as_str();
    of_spec.or(of_kind).unwrap_or_default().to_owned()
}

fn first_sentence(text: &str) -> &str {
    text.split(". ").next().unwrap_or(text)
}

fn table_of_columns(version: &CustomResourceDefinitionVersion) -> String {
    let Some(columns) = &version.additional_printer_columns else {
        return String::new();
    };
    let mut table = String::from("## Columns\n| column | shows |\n|---|---|\n");
    for column in columns {
        let wide = match column.priority {
            Some(priority) if priority > 0 => " (with `-o wide`)",
            _ => "",
        };
        let path = table_cell(&column.json_path);
        let _ = writeln!(table, "| {} | `{path}`{wide} |", column.name.to_uppercase());
    }
    table.push('\n');
    table
}

fn table_of_fields(part: &str, schema: &Value) -> String {
    let mut rows = Vec::new();
    add_fields(schema, "", &mut rows);
    let rules = rules_of_schema(schema);
    if rows.is_empty() && rules.is_empty() {
        return String::new();
    }
    let mut table = format!("## {part}\n");
    if !rows.is_empty() {
        table.push_str("| field | type | what it is |\n|---|---|---|\n");
        for row in rows {
            table.push_str(&row);
        }
    }
    for rule in rules {
        let _ = write!(table, "\nRule: {rule}.");
    }
    if !table.ends_with('\n') {
        table.push('\n');
    }
    table.push('\n');
    table
}

/// Adds a row for each field below a schema, its own fields after each.
fn add_fields(schema: &Value, path: &str, rows: &mut Vec<String>) {
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = match path {
            "" => name.clone(),
            path => format!("{path}.{name}"),
        };
        let needed = if required.contains(&name.as_str()) {
            ", required"
        } else {
            ""
        };
        rows.push(format!(
            "| `{path}` | {}{needed} | {} |\n",
            type_of_field(field),
            description_of_field(field),
        ));
        add_inner_fields(field, &path, rows);
    }
}

/// The fields of a struct, of the items of a list, or of the values of a map.
fn add_inner_fields(field: &Value, path: &str, rows: &mut Vec<String>) {
    if is_of_kubernetes(field) {
        return;
    }
    if field["items"].is_object() {
        add_inner_fields(&field["items"], &format!("{path}[]"), rows);
    } else if field["additionalProperties"].is_object() {
        add_inner_fields(&field["additionalProperties"], &format!("{path}.KEY"), rows);
    } else {
        add_fields(field, path, rows);
    }
}

/// Label selectors, tolerations and conditions: Kubernetes describes them.
fn is_of_kubernetes(field: &Value) -> bool {
    let fields = &field["properties"];
    let items = &field["items"]["properties"];
    fields["matchExpressions"].is_object()
        || fields["nodeSelectorTerms"].is_object()
        || items["lastTransitionTime"].is_object()
        || items["tolerationSeconds"].is_object()
}

fn type_of_field(field: &Value) -> String {
    if field["x-kubernetes-int-or-string"] == true {
        return "number or text".to_owned();
    }
    if let Some(values) = field["enum"].as_array() {
        let values: Vec<String> = values.iter().filter_map(quoted_value).collect();
        return values.join(", ");
    }
    match field["type"].as_str() {
        Some("array") => format!("list of {}", type_of_field(&field["items"])),
        Some("object") if field["additionalProperties"].is_object() => {
            format!("map of {}", type_of_field(&field["additionalProperties"]))
        }
        Some("integer") => format!("number{}", bounds_of_number(field)),
        Some("string") if field["format"] == "date-time" => "time".to_owned(),
        Some("string") => format!("text{}", bounds_of_text(field)),
        Some("boolean") => "true or false".to_owned(),
        _ => "object".to_owned(),
    }
}

fn quoted_value(value: &Value) -> Option<String> {
    value.as_str().map(|text| format!("`{text}`"))
}

fn bounds_of_number(field: &Value) -> String {
    let bound = |name: &str| field[name].as_f64().filter(|bound| bound.abs() < 1e12);
    match (bound("minimum"), bound("maximum")) {
        (Some(least), Some(most)) => format!(" from {least} to {most}"),
        (Some(least), None) => format!(" from {least}"),
        (None, Some(most)) => format!(" to {most}"),
        (None, None) => String::new(),
    }
}

fn bounds_of_text(field: &Value) -> String {
    match field["maxLength"].as_u64() {
        Some(most) => format!(" of at most {most} characters"),
        None => String::new(),
    }
}

fn description_of_field(field: &Value) -> String {
    let mut text = table_cell(field["description"].as_str().unwrap_or_default());
    let default = &field["default"];
    if !default.is_null() && *default != serde_json::json!({}) {
        let separator = if text.is_empty() { "" } else { ". " };
        let default = default.to_string().replace('|', "\\|");
        let _ = write!(text, "{separator}Default: `{default}`");
    }
    for rule in rules_of_schema(field) {
        let _ = write!(text, ". Rule: {}", table_cell(&rule));
    }
    text
}

/// The messages of the rules that the API server checks.
fn rules_of_schema(schema: &Value) -> Vec<String> {
    schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|rule| rule["message"].as_str())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_have_their_type_default_and_rule() {
        let schema = json!({ "type": "object", "required": ["strategy"], "properties": {
            "strategy": { "type": "string", "enum": ["Local", "Remote"], "description": "Where\npods run." },
            "caps": { "type": "object", "additionalProperties": { "type": "object", "properties": {
                "most": { "type": "integer", "minimum": 1, "default": 3, "description": "A number." } } } },
            "names": { "type": "array", "items": { "type": "string", "maxLength": 63 },
                "x-kubernetes-validations": [{ "rule": "true", "message": "names are unique" }] },
        } });
        let mut rows = Vec::new();
        add_fields(&schema, "", &mut rows);
        assert_eq!(
            rows.concat(),
            "| `caps` | map of object |  |\n\
             | `caps.KEY.most` | number from 1 | A number. Default: `3` |\n\
             | `names` | list of text of at most 63 characters | . Rule: names are unique |\n\
             | `strategy` | `Local`, `Remote`, required | Where pods run |\n"
        );
    }

    #[test]
    fn every_kind_has_a_page_that_says_what_it_is_for() {
        let definitions = liqo_api::custom_resource_definitions();
        assert_eq!(kind_pages().len(), definitions.len() + 1);
        for definition in definitions {
            let description = description_of_kind(&definition);
            assert!(!description.is_empty(), "{}", definition.spec.names.kind);
        }
    }
}

//! The published form of the spec format: its JSON schema, and Markdown tables of its keys.

use std::fmt::Write;
use std::iter::once;

use serde_json::{Value, json};

use super::check::{describe_schema, schema_of};
use super::spec_types::WorkflowSpec;

/// The JSON schema of a spec as users write it, with placeholders.
pub fn workflow_schema() -> Value {
    let mut schema = schema_of::<WorkflowSpec>();
    allow_placeholders(&mut schema);
    for (_, group) in schema["$defs"].as_object_mut().into_iter().flatten() {
        allow_placeholders(group);
    }
    schema["title"] = "A Workflow spec of Pixir".into();
    schema["$defs"]["place"] = json!({
        "description": "A placeholder alone: the argument replaces it, with its own type.",
        "type": "string",
        "pattern": r"^\{\{\s*[A-Za-z0-9_-]+\s*\}\}$",
    });
    schema["$defs"]["text"] = json!({
        "description": "Text with at least one placeholder for an argument.",
        "type": "string",
        "pattern": r"\{\{\s*[A-Za-z0-9_-]+\s*\}\}",
    });
    schema
}

/// Lets every value of an object's properties be a placeholder as well.
fn allow_placeholders(group: &mut Value) {
    for (_, property) in group["properties"].as_object_mut().into_iter().flatten() {
        allow_placeholder(property);
    }
}

fn allow_placeholder(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    let description = fields.shift_remove("description");
    let mut ways = match fields.shift_remove("anyOf") {
        Some(Value::Array(ways)) => ways,
        // A schema for any value allows a placeholder already.
        _ if fields.is_empty() => Vec::new(),
        _ => vec![Value::Object(std::mem::take(fields))],
    };
    for way in &mut ways {
        for key in ["items", "additionalProperties"] {
            if let Some(inner) = way.get_mut(key) {
                allow_placeholder(inner);
            }
        }
    }
    if !ways.is_empty() {
        let place = if ways.iter().any(is_text) { "#/$defs/text" } else { "#/$defs/place" };
        ways.push(json!({ "$ref": place }));
        fields.insert("anyOf".to_owned(), ways.into());
    }
    fields.extend(description.map(|text| ("description".to_owned(), text)));
}

/// Whether a schema allows text.
fn is_text(schema: &Value) -> bool {
    let mut ways = schema["anyOf"].as_array().into_iter().flatten();
    schema["type"] == "string" || ways.any(is_text)
}

/// The reference of the spec format, as Markdown tables.
pub fn workflow_reference() -> String {
    reference_tables("workflow", &schema_of::<WorkflowSpec>())
}

/// Markdown tables of the keys of an object and of the objects that it refers to.
pub fn reference_tables(name: &str, schema: &Value) -> String {
    let cell = |text: &str| text.replace('|', "\\|");
    let mut page = String::new();
    let inner = schema["$defs"].as_object().into_iter().flatten();
    let groups = once((name, schema)).chain(inner.map(|(name, group)| (name.as_str(), group)));
    for (name, group) in groups {
        // Writing to a String cannot fail.
        writeln!(page, "\n### {}{}\n", name[..1].to_uppercase(), &name[1..]).ok();
        page.push_str("| key | value | default | |\n|---|---|---|---|\n");
        let required = group["required"].as_array().cloned().unwrap_or_default();
        for (key, property) in group["properties"].as_object().into_iter().flatten() {
            let description = property["description"].as_str().unwrap_or_default();
            let (doc, default) = description.rsplit_once(" Default: ").unwrap_or((description, ""));
            let is_required = required.iter().any(|own| own == key);
            let default = if is_required { "required" } else { default.trim_end_matches('.') };
            let [words, default, doc] = [&describe_schema(property), default, doc].map(cell);
            writeln!(page, "| `{key}` | {words} | {default} | {doc} |").ok();
        }
    }
    page
}

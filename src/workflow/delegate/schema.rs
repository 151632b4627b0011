//! The published schema: what a delegation is, what its answer is, and what is told meanwhile.

use serde_json::{Map, Value, json};

use super::keys::OWN;
use crate::workflow::spec::keys::{object, reference_of};
use crate::workflow::spec::schema as of_workflows;

/// The answer and the lines of progress, written by hand.
const ANSWERS: &str = include_str!("answers.json");

/// The schema of everything.
pub fn schema() -> Value {
    let mut definitions = Map::new();
    let mut of_workflows = of_workflows();
    if let Some(Value::Object(inner)) = of_workflows.get("$defs") {
        definitions.extend(inner.clone());
    }
    if let Some(fields) = of_workflows.as_object_mut() {
        for key in ["$defs", "$schema"] {
            fields.shift_remove(key);
        }
    }
    definitions.insert("workflow".to_owned(), of_workflows);
    for group in OWN {
        definitions.insert(group.name.to_owned(), without_places(object(group)));
    }
    if let Ok(Value::Object(answers)) = serde_json::from_str(ANSWERS) {
        definitions.extend(answers);
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "pixir delegate: what it is given, what it answers, and what it tells meanwhile",
        "anyOf": [
            { "$ref": "#/$defs/delegation" },
            { "$ref": "#/$defs/envelope" },
            { "$ref": "#/$defs/progress" },
        ],
        "$defs": definitions,
    })
}

/// The tables of keys, as Markdown.
pub fn reference() -> String {
    reference_of(&OWN)
}

/// Arguments are for workflows: nothing of a delegation itself has a place for one.
fn without_places(schema: Value) -> Value {
    match schema {
        Value::Object(mut fields) => {
            if let Some(Value::Array(ways)) = fields.get_mut("anyOf") {
                ways.retain(|way| {
                    let name = way.get("$ref").and_then(Value::as_str).unwrap_or_default();
                    !matches!(name, "#/$defs/place" | "#/$defs/text")
                });
            }
            Value::Object(
                fields.into_iter().map(|(key, value)| (key, without_places(value))).collect(),
            )
        }
        Value::Array(values) => values.into_iter().map(without_places).collect(),
        other => other,
    }
}

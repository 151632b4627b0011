//! The published JSON schema of a delegation, its answer, and its lines of progress.

use serde_json::{Map, Value, json};

use super::spec_types::DelegationSpec;
use crate::agent::workflow::spec::check::schema_of;
use crate::agent::workflow::spec::publish::reference_tables;
use crate::agent::workflow::spec::workflow_schema as of_workflows;

/// The answer and the lines of progress, written by hand.
const ANSWERS: &str = include_str!("answers.json");

/// The whole published schema.
pub fn delegate_schema() -> Value {
    let mut definitions = Map::new();
    for (name, whole) in [("workflow", of_workflows()), ("delegation", delegation_schema())] {
        let Value::Object(mut whole) = whole else { continue };
        whole.shift_remove("$schema");
        if let Some(Value::Object(inner)) = whole.shift_remove("$defs") {
            definitions.extend(inner);
        }
        definitions.insert(name.to_owned(), whole.into());
    }
    if let Ok(Value::Object(answers)) = serde_json::from_str(ANSWERS) {
        definitions.extend(answers);
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "pixir delegate: its input, its answer, and its lines of progress",
        "anyOf": [
            { "$ref": "#/$defs/delegation" },
            { "$ref": "#/$defs/envelope" },
            { "$ref": "#/$defs/progress" },
        ],
        "$defs": definitions,
    })
}

/// The reference of a delegation's keys, as Markdown tables.
pub fn delegate_reference() -> String {
    reference_tables("delegation", &delegation_schema())
}

/// The schema of a delegation, without the definitions that it shares with a workflow.
fn delegation_schema() -> Value {
    let mut schema = schema_of::<DelegationSpec>();
    if let Some(inner) = schema["$defs"].as_object_mut() {
        inner.shift_remove("workflow");
        inner.shift_remove("check");
    }
    schema
}

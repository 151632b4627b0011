//! The published schema: what a delegation is, what its answer is, and what is told meanwhile.

use serde_json::{Map, Value, json};

use super::written::DelegationSpec;
use crate::workflow::spec::check::schema_of;
use crate::workflow::spec::publish::reference_of;
use crate::workflow::spec::schema as of_workflows;

/// The answer and the lines of progress, written by hand.
const ANSWERS: &str = include_str!("answers.json");

/// The schema of everything.
pub fn schema() -> Value {
    let mut definitions = Map::new();
    for (name, whole) in [("workflow", of_workflows()), ("delegation", of_delegations())] {
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
    reference_of("delegation", &of_delegations())
}

/// A delegation. The workflow in it, and the checks of its tasks, are what they are in a workflow.
fn of_delegations() -> Value {
    let mut schema = schema_of::<DelegationSpec>();
    if let Some(inner) = schema["$defs"].as_object_mut() {
        inner.shift_remove("workflow");
        inner.shift_remove("check");
    }
    schema
}

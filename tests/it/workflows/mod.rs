//! Workflows: specs, runs and resumed runs.

mod checks;
mod examples;
mod hostile;
mod merging;
mod random_faults;
mod resume;
mod rollback;
mod runs;
pub mod scripted_steps;
mod shown;
mod spec;
mod stated;

use pixir::workbench;
use serde_json::{Map, Value, json};

/// Errors of a spec: pointer and message of each.
fn flaws(text: impl AsRef<[u8]>, arguments: &Value) -> Vec<(String, String)> {
    let arguments = arguments.as_object().cloned().unwrap_or_default();
    let Err(report) = workbench::expand_workflow(text.as_ref(), arguments) else {
        return Vec::new();
    };
    assert_eq!(report.kind, "invalid_args");
    assert!(!report.next_actions().is_empty());
    let text = |flaw: &Value, key: &str| flaw[key].as_str().unwrap().to_owned();
    let flaws = report.details["flaws"].as_array().unwrap();
    flaws.iter().map(|flaw| (text(flaw, "json_pointer"), text(flaw, "message"))).collect()
}

/// The normalised form of a valid spec.
fn whole(value: &Value, arguments: Map<String, Value>) -> Value {
    workbench::expand_workflow(value.to_string().as_bytes(), arguments)
        .unwrap_or_else(|report| panic!("{value}\n{}", report.details))
}

/// A spec of these steps.
fn of_steps(steps: &Value) -> Value {
    json!({ "id": "x", "steps": steps })
}

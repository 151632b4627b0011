//! `pixir delegate`: many tasks of another program, one answer, and no process left behind.

mod answers;
mod ends;
mod forms;
mod hostile;
mod published;

use std::path::Path;

use pixir::scripted::Reply;
use serde_json::{Value, json};

use crate::subagents::scripted_family::read_events;
use crate::support::TestEnv;
use crate::support::test_env::log_files;
use crate::workflows::scripted_steps::{StepRequest, scripted_steps};

async fn new_test_env(answer: impl Fn(&StepRequest) -> Reply + Send + Sync + 'static) -> TestEnv {
    TestEnv::with_script(scripted_steps(answer)).await
}

/// Checks a value against the published schema of this name.
#[track_caller]
fn fits(name: &str, value: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/delegate.schema.json");
    let schema: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let whole = json!({"$ref": format!("#/$defs/{name}"), "$defs": schema["$defs"]});
    let validator = jsonschema::validator_for(&whole).unwrap();
    let flaws: Vec<String> = validator
        .iter_errors(value)
        .map(|flaw| format!("{}: {flaw}", flaw.instance_path()))
        .collect();
    assert!(flaws.is_empty(), "{name}: {flaws:#?}\n{value:#}");
}

/// Runs `pixir delegate` with a spec; gives the envelope, checked against the published schema.
#[track_caller]
fn hand_over(env: &TestEnv, spec: &Value, flags: &[&str], code: i32) -> Value {
    fits("delegation", spec);
    env.write("spec.json", spec.to_string());
    let args = [&["delegate", "--spec", "spec.json", "--json"], flags].concat();
    let envelope = env.run_pixir(&args).assert_exit_code(code).envelope();
    fits("envelope", &envelope);
    assert_eq!(envelope["kind"], "delegate");
    if !envelope["output"].is_null() {
        assert_eq!(envelope["output"]["exit_code"], code);
        adds_up(&envelope["output"]);
    }
    if envelope.get("session_id").is_some() {
        let spent = &envelope["usage"]["total_tokens"];
        assert_eq!(*spent, envelope["output"]["usage"]["total_tokens"], "{envelope:#}");
    }
    if envelope["ok"] == false && !envelope["output"].is_null() {
        let actions = &envelope["error"]["details"]["next_actions"];
        assert!(actions.as_array().is_some_and(|own| !own.is_empty()), "{envelope:#}");
    }
    envelope
}

/// Checks that lists, counts and sums of an answer agree with its children.
#[track_caller]
fn adds_up(output: &Value) {
    let children = output["children"].as_array().unwrap();
    assert_eq!(output["counts"]["total"], children.len());
    for (index, child) in children.iter().enumerate() {
        assert_eq!(child["index"], index);
    }
    for word in ["completed", "partial", "failed", "timed_out", "cancelled", "held"] {
        let of: Vec<&Value> =
            children.iter().filter(|own| own["status"] == word).map(|own| &own["index"]).collect();
        assert_eq!(output[word], json!(of), "{word}");
    }
    let keys = [
        "calls",
        "input_tokens",
        "cached_tokens",
        "output_tokens",
        "reasoning_tokens",
        "total_tokens",
    ];
    for key in keys {
        let sum: u64 = children.iter().filter_map(|own| own["usage"][key].as_u64()).sum();
        assert_eq!(output["usage"][key], sum, "{key}");
    }
}

/// The sum of all tokens in the Logs of a Workspace.
fn billed(workspace: &Path) -> u64 {
    let usage_records = log_files(workspace).into_iter().flat_map(|path| read_events(&path));
    let usage_records = usage_records.filter(|event| event["type"] == "provider_usage");
    usage_records
        .filter_map(|usage_record| usage_record["data"]["usage"]["total_tokens"].as_u64())
        .sum()
}

fn statuses(output: &Value) -> Vec<&str> {
    let children = output["children"].as_array().unwrap();
    children.iter().map(|own| own["status"].as_str().unwrap()).collect()
}

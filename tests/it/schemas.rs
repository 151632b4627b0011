//! The published schemas of the envelope and of Events: generated from the types, and used to validate the
//! output and the Logs of the binary.

use std::path::Path;

use jsonschema::Validator;
use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::sign_in_env::RunOutput;
use crate::support::test_env::log_files;

/// Compares a generated file with its schema; a stale file is rewritten, and the test fails once.
fn assert_generated(name: &str, schema: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let text = format!("{schema:#}\n");
    if std::fs::read_to_string(&path).unwrap_or_default() != text {
        std::fs::write(&path, text).unwrap();
        panic!("{name} was stale and has been rewritten: commit it");
    }
}

fn published(name: &str) -> Validator {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let schema: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    jsonschema::draft202012::new(&schema).unwrap()
}

#[track_caller]
fn fits(validator: &Validator, value: &Value) {
    let flaws: Vec<String> = validator.iter_errors(value).map(|flaw| flaw.to_string()).collect();
    assert!(flaws.is_empty(), "{flaws:?} in {value}");
}

#[test]
fn the_published_schema_of_the_envelope_is_true() {
    let schema = pixir::envelope_schema();
    assert!(jsonschema::draft202012::meta::is_valid(&schema));
    assert_generated("docs/envelope.schema.json", &schema);
}

#[test]
fn the_published_schema_of_events_is_true() {
    let schema = pixir::events_schema();
    assert!(jsonschema::draft202012::meta::is_valid(&schema));
    assert_generated("docs/events.schema.json", &schema);
}

/// A model that uses tools, asks a child, fails, and answers.
fn model(request: &ReceivedRequest) -> Reply {
    let prompt = request.user_texts().last().copied().unwrap_or_default().to_owned();
    match (prompt.as_str(), request.outputs().len()) {
        ("please work", 0) => Reply::new()
            .reasoning("I look first")
            .commentary("Let me look.")
            .call("read", json!({"path": "poem.txt"}))
            .call("bash", json!({"command": "echo hello; exit 3"})),
        ("please work", 2) => Reply::calls("write", json!({"path": "new.txt", "content": "new\n"})),
        ("please work", 3) => Reply::calls(
            "update_plan",
            json!({"plan": [{"step": "look", "status": "in_progress"}]}),
        ),
        ("please delegate", 0) => {
            Reply::calls("spawn_agent", json!({"task": "say pong", "role": "explorer"}))
        }
        ("please delegate", 1) => Reply::calls("wait_agent", json!({})),
        ("please fail", _) => Reply::status(400, r#"{"error":{"message":"no","code":"odd"}}"#),
        ("please stumble", _) => Reply::status(503, "busy"),
        ("please long", 0) => {
            Reply::calls("write", json!({"path": "l.txt", "content": "x".repeat(300_000)}))
        }
        _ => Reply::says("pong"),
    }
}

async fn new_test_env() -> TestEnv {
    let env = TestEnv::with_script(ModelScript::answering(model)).await;
    env.write("poem.txt", "roses are red\n");
    let home = env.home().join(".pixir");
    std::fs::create_dir_all(&home).unwrap();
    let retry = json!({"retry": {"max_attempts": 2, "base_ms": 1, "cap_ms": 2}});
    std::fs::write(home.join("config.json"), retry.to_string()).unwrap();
    env
}

#[tokio::test(flavor = "multi_thread")]
async fn every_envelope_fits_the_published_schema() {
    let env = new_test_env().await;
    let validator = published("docs/envelope.schema.json");
    let check = |args: &[&str], code: i32| -> Value {
        let ran: RunOutput = env.run_pixir(args).assert_exit_code(code);
        let envelope = ran.envelope();
        fits(&validator, &envelope);
        envelope
    };
    let first = check(&["--json", "please work"], 0);
    let id = first["session_id"].as_str().unwrap();
    check(&["resume", id, "--json", "please delegate"], 0);
    check(&["--json", "please fail"], 1);
    check(&["--json", "--read-only", "please work"], 0);
    for args in [
        &["sessions"][..],
        &["verify", "--all"],
        &["verify", id],
        &["usage", id],
        &["models"],
        &["diagnose", id],
        &["export", id, "--format", "json"],
        &["inspect-replay", id],
        &["tree", id],
        &["skills"],
        &["agents"],
        &["config", "list"],
        &["permissions"],
        &["gc"],
        &["fork", id],
        &["repair", id],
    ] {
        check(&[args, &["--json"]].concat(), 0);
    }
    for args in [&["verify", "20260101T000000-abcdef"][..], &["resume", "no such id", "hi"]] {
        check(&[args, &["--json"]].concat(), 2);
    }
    // The control: wrong envelopes do not fit the schema.
    let mut odd = first;
    for (key, value) in [("status", json!("great")), ("usage", json!(7)), ("ok", json!("yes"))] {
        let good = std::mem::replace(&mut odd[key], value);
        assert!(!validator.is_valid(&odd), "{odd}");
        odd[key] = good;
    }
    fits(&validator, &odd);
    odd.as_object_mut().unwrap().remove("output");
    assert!(!validator.is_valid(&odd));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_that_is_printed_or_written_fits_the_published_schema() {
    let env = new_test_env().await;
    let validator = published("docs/events.schema.json");
    let mut seen = std::collections::BTreeSet::new();
    let mut check = |text: &str| {
        for line in text.lines() {
            let event: Value = serde_json::from_str(line).unwrap();
            fits(&validator, &event);
            seen.insert(event["type"].as_str().unwrap().to_owned());
        }
    };
    for (args, code) in [
        (&["--events", "please work"][..], 0),
        (&["--events", "please delegate"], 0),
        (&["--events", "please fail"], 1),
        (&["--events", "please stumble"], 1),
        (&["--events", "please long"], 0),
        (&["--events", "--read-only", "please work"], 0),
    ] {
        check(&env.run_pixir(args).assert_exit_code(code).out);
    }
    let written = log_files(&env.workspace());
    let id = written[0].file_stem().unwrap().to_str().unwrap();
    env.run_pixir(&["fork", id]).assert_exit_code(0);
    let written = log_files(&env.workspace());
    assert!(written.len() >= 7, "{written:?}");
    for log in written {
        check(&std::fs::read_to_string(log).unwrap());
    }
    for name in [
        "assistant_message",
        "permission_decision",
        "plan",
        "provider_retry",
        "provider_usage",
        "reasoning",
        "session_fork",
        "session_started",
        "status",
        "subagent_event",
        "text_delta",
        "tool_call",
        "tool_output_delta",
        "tool_result",
        "turn_failed",
        "user_message",
    ] {
        assert!(seen.contains(name), "no {name} in {seen:?}");
    }
}

//! Published documents of `pixir delegate`: the schema, the tables of keys, and the envelope.

use std::fs;
use std::path::{Path, PathBuf};

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::{fits, hand_over, new_test_env};
use crate::support::test_env::PIXIR;

fn page(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Compares a generated file with its text; a stale file is rewritten, and the test fails once.
fn assert_generated(name: &str, text: &str) {
    if fs::read_to_string(page(name)).unwrap_or_default() != text {
        fs::write(page(name), text).unwrap();
        panic!("{name} was stale and has been rewritten: commit it");
    }
}

#[test]
fn the_published_schema_is_true() {
    let schema = pixir::delegate_schema();
    assert_generated("docs/delegate.schema.json", &format!("{schema:#}\n"));
    assert!(jsonschema::draft202012::meta::is_valid(&schema));
}

#[test]
fn the_reference_of_keys_is_true_and_what_the_page_shows_can_be_copied() {
    let written = fs::read_to_string(page("docs/delegate.md")).unwrap();
    let (before, rest) = written.split_once("<!-- keys -->\n").expect("there is a place for them");
    let (_, behind) = rest.split_once("<!-- /keys -->").expect("which ends");
    let keys = pixir::delegate_reference();
    assert_generated(
        "docs/delegate.md",
        &format!("{before}<!-- keys -->\n{keys}<!-- /keys -->{behind}"),
    );
    let shown: Vec<&str> =
        written.split("```json\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(shown.len() >= 3);
    for text in shown {
        fits("delegation", &serde_json::from_str(text).unwrap());
    }
}

#[test]
fn the_page_has_every_exit_code() {
    let written = fs::read_to_string(page("docs/delegate.md")).unwrap();
    for code in [0, 1, 2, 3, 4, 6, 7, 124, 130] {
        assert!(written.contains(&format!("\n| {code} | ")), "{code}");
    }
}

/// Replaces values that differ from run to run.
fn stable(value: &mut Value, workspace: &str) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match key.as_str() {
                    "duration_ms" | "elapsed_ms" => *value = json!(0),
                    _ => stable(value, workspace),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| stable(value, workspace)),
        Value::String(text) => {
            let words = text.replace(workspace, "WORK").replace(PIXIR, "pixir");
            let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            for word in &mut words {
                let id =
                    word.trim_start_matches("WORK/.pixir/sessions/").trim_end_matches(".ndjson");
                if pixir::SessionId::parse(id).is_ok() && id.contains('T') && id.len() == 22 {
                    *word = word.replace(id, "SESSION");
                } else if word.starts_with("wf_") {
                    "RUN".clone_into(word);
                }
            }
            *text = words.join(" ");
        }
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_envelope_is_as_it_is_published() {
    let env = new_test_env(|request| match request.step() {
        "count" => Reply::says(r#"{"files": 3}"#).usage(20, 0, 5),
        "doubt" => Reply::says("Not all of it.\ncheckpoint_status: partial").usage(20, 0, 5),
        "build" if request.turn == 0 => {
            Reply::calls("write", json!({"path": "new.txt", "content": "new\n"})).usage(20, 0, 5)
        }
        _ => Reply::says("It is done.").usage(20, 0, 5),
    })
    .await;
    let spec = json!({
        "contract_version": 1,
        "name": "three things",
        "tasks": [
            {"id": "count", "task": "count the files", "output":
                {"type": "object", "required": ["files"], "properties": {"files": {"type": "integer"}}}},
            {"id": "doubt", "task": "look into it"},
            {"id": "build", "task": "make new.txt", "posture": "write", "verify": "test -f new.txt"},
        ],
        "limits": {"max_concurrency": 2, "timeout_ms": 600_000, "child_timeout_ms": 300_000},
        "budget": {"tokens": 1_000_000},
    });
    let mut envelope = hand_over(&env, &spec, &[], 6);
    let workspace = env.workspace().canonicalize().unwrap();
    // Two tasks run at once, in no fixed order of ends.
    envelope["output"]["waves"] = json!("WAVES");
    stable(&mut envelope, &workspace.to_string_lossy());
    insta::assert_snapshot!(format!("{envelope:#}"));
}

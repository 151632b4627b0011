//! Usage: what an envelope says of a family is what `pixir usage` sums up.

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::{envelope, priced, usage};
use crate::subagents::cast::{self, GO, agree, cast, says, spawns, waits};
use crate::support::Stage;
use crate::support::house::logs;
use crate::workflows::troupe::{troupe, workflow};

const KEYS: [&str; 6] =
    ["calls", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "total_tokens"];

fn thoughtful(reply: Reply) -> Reply {
    reply.usage(1_000, 400, 50).reasoning_tokens(30)
}

#[track_caller]
fn agrees(stage: &Stage, told: &Value) {
    let summed = usage(stage);
    for key in KEYS {
        assert!(summed[key].as_u64() > Some(0), "{key}: {summed}");
        assert_eq!(told[key], summed[key], "{key}: {told} {summed}");
    }
    let cost = |usage: &Value| usage["estimated_cost_usd"].as_f64().unwrap();
    assert!((cost(told) - cost(&summed)).abs() < 1e-9, "{told} {summed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_counts_its_children_and_grandchildren_also_after_its_answer() {
    let line = |line: cast::Line| -> cast::Line { Box::new(move |seen| thoughtful(line(seen))) };
    for lines in [
        vec![spawns(&["a", "b"], "worker"), waits(), says("ok")],
        vec![spawns(&["a", "b"], "worker"), says("ok")],
    ] {
        let script = cast(lines.into_iter().map(line), |task, step| {
            thoughtful(match (task, step) {
                ("a", 0) => Reply::calls("spawn_agent", json!({"task": "deep"})),
                ("a", 1) => Reply::calls("wait_agent", json!({})),
                ("b", 0) => Reply::calls("list", json!({})),
                _ => Reply::says("done"),
            })
        });
        let stage = priced(script, &json!({})).await;
        let ended = stage.run(&["--json", GO]);
        ended.expect_code(0);
        let envelope_of_run = envelope(&ended.stdout);
        agrees(&stage, &envelope_of_run["usage"]);
        assert_eq!(agree(&stage.workspace()), 3);
        // The Session alone is the same: it has no sibling, and its children count.
        let id = envelope_of_run["session_id"].as_str().unwrap();
        let told = stage.run(&["usage", id, "--json"]);
        let told = envelope(&told.expect_code(0).stdout);
        assert_eq!(told["output"]["sessions"].as_array().unwrap().len(), 4, "{told}");
        agrees(&stage, &told["output"]["total"]);
        let found = envelope(&stage.run(&["diagnose", id, "--json"]).expect_code(0).stdout);
        assert_eq!(found["output"]["usage"], told["output"]["total"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_whose_log_cannot_be_read_is_named_beside_the_sums() {
    let lines = [spawns(&["a", "b"], "worker"), waits(), says("ok")];
    let script = cast(lines, |task, step| {
        thoughtful(match (task, step) {
            ("a", 0) => Reply::calls("spawn_agent", json!({"task": "deep"})),
            ("a", 1) => Reply::calls("wait_agent", json!({})),
            _ => Reply::says("done"),
        })
    });
    let stage = priced(script, &json!({})).await;
    let ended = stage.run(&["--json", GO]);
    let id = envelope(&ended.expect_code(0).stdout)["session_id"].as_str().unwrap().to_owned();
    let all = envelope(&stage.run(&["usage", &id, "--json"]).expect_code(0).stdout);
    assert_eq!(all["output"]["unreadable_sessions"], json!([]));
    // Larger than any Log that is read: the one of "a", which has a child of its own.
    let is_parent = |log: &std::path::PathBuf| {
        log.file_stem().unwrap().to_str() != Some(&id) && !cast::lives(log).is_empty()
    };
    let log = logs(&stage.workspace()).into_iter().find(is_parent).unwrap();
    let child = log.file_stem().unwrap().to_str().unwrap();
    std::fs::File::options().append(true).open(&log).unwrap().set_len(17 << 30).unwrap();
    let told = stage.run(&["usage", &id, "--json"]);
    let told = envelope(&told.expect_code(0).stdout);
    assert_eq!(told["output"]["unreadable_sessions"], json!([child]), "{told}");
    assert_eq!(told["output"]["sessions"].as_array().unwrap().len(), 3, "{told}");
    let words = stage.run(&["usage", &id]);
    assert!(words.expect_code(0).stderr.contains(child), "{}", words.stderr);
    assert!(words.stderr.contains("the Log cannot be read"), "{}", words.stderr);
    let every = envelope(&stage.run(&["usage", "--json"]).expect_code(0).stdout);
    assert_eq!(every["output"]["unreadable_sessions"], json!([child]), "{every}");
    let found = envelope(&stage.run(&["diagnose", &id, "--json"]).expect_code(0).stdout);
    assert_eq!(found["output"]["usage"], told["output"]["total"]);
    let checks = found["output"]["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["id"] == "usage").unwrap();
    assert_eq!(check["status"], "warning", "{check}");
    assert_eq!(check["details"]["unreadable_sessions"], json!([child]));
    // The search for leaks reads every file that is left.
    std::fs::remove_file(&log).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delegation_counts_cached_and_reasoning_tokens_of_every_child() {
    let stage = priced(troupe(|_| thoughtful(Reply::says("done"))), &json!({})).await;
    let spec = json!({"tasks": ["a", "b", "c"]});
    std::fs::write(stage.workspace().join("spec.json"), spec.to_string()).unwrap();
    let ended = stage.run(&["delegate", "--spec", "spec.json", "--json"]);
    let said = envelope(&ended.expect_code(0).stdout);
    agrees(&stage, &said["usage"]);
    agrees(&stage, &said["output"]["usage"]);
    assert_eq!(said["output"]["children"][0]["usage"]["cached_tokens"], 400);
    assert_eq!(said["output"]["children"][0]["usage"]["reasoning_tokens"], 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_counts_attempts_that_failed() {
    let stage = priced(
        troupe(|told| {
            thoughtful(match told.session {
                0 => Reply::says("checkpoint_status: failed"),
                _ => Reply::says("checkpoint_status: checkpoint_ready"),
            })
        }),
        &json!({}),
    )
    .await;
    let graph = workflow(json!([{"id": "one", "task": "one", "role": "explorer", "retries": 1}]));
    std::fs::write(stage.workspace().join("flow.json"), graph.to_string()).unwrap();
    let ended = stage.run(&["workflow", "run", "flow.json", "--json"]);
    let said = envelope(&ended.expect_code(0).stdout);
    agrees(&stage, &said["usage"]);
    agrees(&stage, &said["output"]["usage"]);
}

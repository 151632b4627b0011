//! Usage of a Session with its children: the envelope agrees with `pixir usage`.

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::{envelope, priced, usage};
use crate::subagents::scripted_family::{
    self, GO, check_family_logs, scripted_family, spawn_reply, text_reply, wait_reply,
};
use crate::support::BinaryEnv;
use crate::support::test_env::log_files;
use crate::workflows::scripted_steps::{scripted_steps, workflow_spec};

const KEYS: [&str; 6] =
    ["calls", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "total_tokens"];

fn with_reasoning_tokens(reply: Reply) -> Reply {
    reply.usage(1_000, 400, 50).reasoning_tokens(30)
}

#[track_caller]
fn assert_usage(env: &BinaryEnv, total: &Value) {
    let summed = usage(env);
    for key in KEYS {
        assert!(summed[key].as_u64() > Some(0), "{key}: {summed}");
        assert_eq!(total[key], summed[key], "{key}: {total} {summed}");
    }
    let cost = |usage: &Value| usage["estimated_cost_usd"].as_f64().unwrap();
    assert!((cost(total) - cost(&summed)).abs() < 1e-9, "{total} {summed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_counts_its_children_and_grandchildren_also_after_its_answer() {
    let line = |line: scripted_family::ParentReply| -> scripted_family::ParentReply {
        Box::new(move |seen| with_reasoning_tokens(line(seen)))
    };
    for lines in [
        vec![spawn_reply(&["a", "b"], "worker"), wait_reply(), text_reply("ok")],
        vec![spawn_reply(&["a", "b"], "worker"), text_reply("ok")],
    ] {
        let script = scripted_family(lines.into_iter().map(line), |task, step| {
            with_reasoning_tokens(match (task, step) {
                ("a", 0) => Reply::calls("spawn_agent", json!({"task": "deep"})),
                ("a", 1) => Reply::calls("wait_agent", json!({})),
                ("b", 0) => Reply::calls("list", json!({})),
                _ => Reply::says("done"),
            })
        });
        let env = priced(script, &json!({})).await;
        let ended = env.run(&["--json", GO]);
        ended.expect_code(0);
        let envelope_of_run = envelope(&ended.stdout);
        assert_usage(&env, &envelope_of_run["usage"]);
        assert_eq!(check_family_logs(&env.workspace()), 3);
        // `pixir usage` of the Session is the same, because it includes children and there is no other Session.
        let id = envelope_of_run["session_id"].as_str().unwrap();
        let listed = env.run(&["usage", id, "--json"]);
        let listed = envelope(&listed.expect_code(0).stdout);
        assert_eq!(listed["output"]["sessions"].as_array().unwrap().len(), 4, "{listed}");
        assert_usage(&env, &listed["output"]["total"]);
        let found = envelope(&env.run(&["diagnose", id, "--json"]).expect_code(0).stdout);
        assert_eq!(found["output"]["usage"], listed["output"]["total"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_whose_log_cannot_be_read_is_named_beside_the_sums() {
    let lines = [spawn_reply(&["a", "b"], "worker"), wait_reply(), text_reply("ok")];
    let script = scripted_family(lines, |task, step| {
        with_reasoning_tokens(match (task, step) {
            ("a", 0) => Reply::calls("spawn_agent", json!({"task": "deep"})),
            ("a", 1) => Reply::calls("wait_agent", json!({})),
            _ => Reply::says("done"),
        })
    });
    let env = priced(script, &json!({})).await;
    let ended = env.run(&["--json", GO]);
    let id = envelope(&ended.expect_code(0).stdout)["session_id"].as_str().unwrap().to_owned();
    let all = envelope(&env.run(&["usage", &id, "--json"]).expect_code(0).stdout);
    assert_eq!(all["output"]["unreadable_sessions"], json!([]));
    // The Log of "a", which has a child, is made too large to be read.
    let is_parent = |log: &std::path::PathBuf| {
        log.file_stem().unwrap().to_str() != Some(&id)
            && !scripted_family::subagent_events(log).is_empty()
    };
    let log = log_files(&env.workspace()).into_iter().find(is_parent).unwrap();
    let child = log.file_stem().unwrap().to_str().unwrap();
    std::fs::File::options().append(true).open(&log).unwrap().set_len(17 << 30).unwrap();
    let listed = env.run(&["usage", &id, "--json"]);
    let listed = envelope(&listed.expect_code(0).stdout);
    assert_eq!(listed["output"]["unreadable_sessions"], json!([child]), "{listed}");
    assert_eq!(listed["output"]["sessions"].as_array().unwrap().len(), 3, "{listed}");
    let words = env.run(&["usage", &id]);
    assert!(words.expect_code(0).stderr.contains(child), "{}", words.stderr);
    assert!(words.stderr.contains("the Log cannot be read"), "{}", words.stderr);
    let every = envelope(&env.run(&["usage", "--json"]).expect_code(0).stdout);
    assert_eq!(every["output"]["unreadable_sessions"], json!([child]), "{every}");
    let found = envelope(&env.run(&["diagnose", &id, "--json"]).expect_code(0).stdout);
    assert_eq!(found["output"]["usage"], listed["output"]["total"]);
    let checks = found["output"]["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["id"] == "usage").unwrap();
    assert_eq!(check["status"], "warning", "{check}");
    assert_eq!(check["details"]["unreadable_sessions"], json!([child]));
    // The leak check reads every remaining file.
    std::fs::remove_file(&log).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delegation_counts_cached_and_reasoning_tokens_of_every_child() {
    let env =
        priced(scripted_steps(|_| with_reasoning_tokens(Reply::says("done"))), &json!({})).await;
    let spec = json!({"tasks": ["a", "b", "c"]});
    std::fs::write(env.workspace().join("spec.json"), spec.to_string()).unwrap();
    let ended = env.run(&["delegate", "--spec", "spec.json", "--json"]);
    let printed = envelope(&ended.expect_code(0).stdout);
    assert_usage(&env, &printed["usage"]);
    assert_usage(&env, &printed["output"]["usage"]);
    assert_eq!(printed["output"]["children"][0]["usage"]["cached_tokens"], 400);
    assert_eq!(printed["output"]["children"][0]["usage"]["reasoning_tokens"], 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_counts_attempts_that_failed() {
    let env = priced(
        scripted_steps(|request| {
            with_reasoning_tokens(match request.session {
                0 => Reply::says("checkpoint_status: failed"),
                _ => Reply::says("checkpoint_status: checkpoint_ready"),
            })
        }),
        &json!({}),
    )
    .await;
    let graph =
        workflow_spec(json!([{"id": "one", "task": "one", "role": "explorer", "retries": 1}]));
    std::fs::write(env.workspace().join("flow.json"), graph.to_string()).unwrap();
    let ended = env.run(&["workflow", "run", "flow.json", "--json"]);
    let printed = envelope(&ended.expect_code(0).stdout);
    assert_usage(&env, &printed["usage"]);
    assert_usage(&env, &printed["output"]["usage"]);
}

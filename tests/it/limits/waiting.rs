//! Requests that wait for the budget or are sent again, and steps without any budget left.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::{envelope, priced};
use crate::subagents::scripted_family::{self, GO, check_family_logs, scripted_family};
use crate::support::test_env::log_files;
use crate::workflows::scripted_steps::{
    last_checkpoint, root_log, scripted_steps, workflow_fact_kinds, workflow_spec,
};

/// A token limit with room for one request at a time, because each reserves 2,000 tokens of output.
const ROOM_FOR_ONE: &str = "9000";

fn until(file: &str) -> Value {
    json!({"command": format!("until [ -e {file} ]; do sleep 0.05; done")})
}

fn line(reply: Reply) -> scripted_family::ParentReply {
    scripted_family::always(reply.usage(10, 0, 1))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_that_waits_for_the_budget_says_so() {
    let place = Arc::new(OnceLock::<PathBuf>::new());
    let workspace = Arc::clone(&place);
    let long = Reply::says(&"and there is more to say ".repeat(500)).usage(5_000, 0, 2_600);
    let spawn = Reply::calls("spawn_agent", json!({"task": "a", "role": "explorer"}));
    let notes = json!({"summary": "A tower was begun.", "decisions": [], "open_tasks": [],
        "open_questions": []});
    let mut lines = vec![long; 5];
    // The window is nearly full, and a Subagent sends a request.
    lines.push(spawn.call("bash", until("asked")).usage(23_000, 0, 40));
    lines.push(Reply::says(&notes.to_string()).usage(100, 0, 10));
    lines.push(Reply::says("ok").usage(10, 0, 1));
    let script = scripted_family(lines.into_iter().map(scripted_family::always), move |_, _| {
        std::fs::write(workspace.get().unwrap().join("asked"), "").unwrap();
        Reply::new().pause(Duration::from_secs(3)).text("done").usage(10, 0, 1)
    });
    let more = json!({"context_window": 24_000, "compaction": {"model_assisted": true}});
    let env = priced(script, &more).await;
    place.set(env.workspace()).unwrap();
    env.run(&["build a tower"]).expect_code(0);
    for _ in 0..4 {
        env.run(&["resume", "--last", "go on"]).expect_code(0);
    }
    // 61,040 tokens are spent before the compaction: there is room for one request.
    let ended = env.run(&["resume", "--last", "--events", "--max-tokens-total", "72000", GO]);
    ended.expect_code(0);
    let statuses: Vec<Value> = ended
        .stdout
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|event| event["type"] == "status")
        .map(|event| event["data"]["status"].clone())
        .collect();
    let expected = json!(["compacting", "waiting_for_budget", "compacting"]);
    let expected = expected.as_array().unwrap();
    assert!(statuses.windows(3).any(|three| three == expected.as_slice()), "{statuses:?}");
    assert!(ended.stdout.contains("model_assisted"), "{}", ended.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn to_wait_for_the_budget_before_another_attempt_is_no_time_of_the_model() {
    let place = Arc::new(OnceLock::<PathBuf>::new());
    let workspace = Arc::clone(&place);
    let spawn = |task: &str| Reply::calls("spawn_agent", json!({"task": task, "role": "explorer"}));
    let first = spawn("a").call("bash", until("failed"));
    let second = spawn("b").call("bash", until("asked"));
    let lines = [first, second, Reply::calls("wait_agent", json!({})), Reply::says("ok")];
    let script = scripted_family(lines.map(line), move |task, _| {
        let workspace = workspace.get().unwrap();
        if task == "a" && !workspace.join("failed").exists() {
            std::fs::write(workspace.join("failed"), "").unwrap();
            return Reply::status(503, r#"{"error": {"code": "server_is_overloaded"}}"#)
                .header("retry-after", "3");
        }
        if task == "b" {
            // This request is running when the other one may be sent again.
            std::fs::write(workspace.join("asked"), "").unwrap();
            return Reply::new().pause(Duration::from_secs(8)).text("done").usage(10, 0, 1);
        }
        Reply::says("done").usage(10, 0, 1)
    });
    let env = priced(script, &json!({})).await;
    place.set(env.workspace()).unwrap();
    env.run(&["--max-tokens-total", ROOM_FOR_ONE, GO]).expect_code(0);
    let requests = env.server.requests();
    let arrived = |place: usize, wished: &str| {
        let own = requests
            .iter()
            .filter(|own| scripted_family::last_task(own).as_deref() == Some(wished));
        own.map(|own| own.arrived).nth(place).unwrap()
    };
    assert!(arrived(1, "a") - arrived(0, "b") >= Duration::from_secs(7), "a waited for b");
    let usage_record = log_files(&env.workspace())
        .iter()
        .flat_map(|log| scripted_family::read_events(log))
        .find(|event| event["type"] == "provider_usage" && event["data"]["retries"] == 1);
    let lasted = usage_record.unwrap()["data"]["duration_ms"].as_u64().unwrap();
    assert!((3_000..6_500).contains(&lasted), "{lasted} ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_failed_attempt_was_billed_for_is_not_spent_by_others() {
    let place = Arc::new(OnceLock::<PathBuf>::new());
    let workspace = Arc::clone(&place);
    let spawn = Reply::calls("spawn_agent", json!({"task": "a", "role": "explorer"}));
    let lines = [spawn.call("bash", until("failed")), Reply::says("ok")];
    let script = scripted_family(lines.map(line), move |_, _| {
        std::fs::write(workspace.get().unwrap().join("failed"), "").unwrap();
        Reply::new().usage(9_000, 0, 100).fails_billed("server_error", "try again in 5s")
    });
    let env = priced(script, &json!({})).await;
    place.set(env.workspace()).unwrap();
    let ended = env.run(&["--json", "--max-tokens-total", ROOM_FOR_ONE, GO]);
    ended.expect_code(6);
    assert_eq!(envelope(&ended.stdout)["error"]["kind"], "budget_exceeded");
    assert_eq!(env.server.requests().len(), 2, "no request is sent after the limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_for_which_no_subagent_is_left_is_not_tried_again() {
    let script = scripted_steps(|request| match (request.step(), request.session) {
        ("one", 0) => Reply::says("checkpoint_status: failed"),
        _ => Reply::says("checkpoint_status: checkpoint_ready"),
    });
    let env = priced(script, &json!({"subagents": {"max_per_run": 2}})).await;
    let graph = workflow_spec(json!([
        {"id": "one", "task": "one", "role": "explorer", "retries": 2},
        {"id": "two", "task": "two", "role": "explorer", "depends_on": "one", "optional": true, "retries": 3},
    ]));
    std::fs::write(env.workspace().join("flow.json"), graph.to_string()).unwrap();
    let ended = env.run(&["workflow", "run", "flow.json", "--json"]);
    ended.expect_code(6);
    let printed = envelope(&ended.stdout);
    assert_eq!(printed["output"]["status"], "partial", "an optional step is missing: {printed}");
    let log = root_log(&env.workspace());
    let two = last_checkpoint(&log, "two");
    assert_eq!((&two["reason"], &two["attempts"]), (&json!("subagent_limit_reached"), &json!(1)));
    assert!(two["summary"].as_str().unwrap().contains("subagents.max_per_run"), "{two}");
    let retried: Vec<String> = workflow_fact_kinds(&log)
        .into_iter()
        .filter(|kind| kind.starts_with("step_retrying"))
        .collect();
    assert_eq!(retried, ["step_retrying one"]);
    check_family_logs(&env.workspace());
}

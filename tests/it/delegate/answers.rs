//! Answers of `pixir delegate`: every task at its index, with its Log and next actions.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use pixir::scripted::Reply;
use serde_json::json;

use super::{billed, hand_over, new_test_env, statuses};
use crate::subagents::scripted_family::check_family_logs;
use crate::support::sign_in_env::run_command;
use crate::support::test_env::log_files;
use crate::support::torture::seed;
use crate::workflows::scripted_steps::{
    last_checkpoint, root_log, workflow_fact_kinds, workflow_facts,
};

/// A possible order of ends of `count` tasks that are started in order, at most `width` at once.
fn some_order(count: usize, width: usize, seed: u64) -> Vec<usize> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut waiting = 0..count;
    let mut running = Vec::new();
    let mut order = Vec::new();
    while order.len() < count {
        running.extend(waiting.by_ref().take(width - running.len()));
        order.push(running.swap_remove(random.usize(..running.len())));
    }
    order
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_joined_by_their_index_whatever_order_they_end_in() {
    let order = some_order(20, 6, seed());
    let expected: Vec<String> =
        order.iter().map(|index| format!("checkpoint_decided task_{}", index + 1)).collect();
    // Each task waits until the one before it in that order has ended.
    let root: OnceLock<PathBuf> = OnceLock::new();
    let env = new_test_env(move |request| {
        let number: usize = request.step()["task_".len()..].parse().unwrap();
        let place = order.iter().position(|index| index + 1 == number).unwrap();
        let log = root.get_or_init(|| root_log(&request.workspace));
        let is_over = |before: usize| {
            workflow_facts(log).iter().any(|fact| {
                fact["kind"] == "checkpoint_decided"
                    && fact["step_id"] == format!("task_{}", order[before] + 1)
            })
        };
        if place == 0 || is_over(place - 1) {
            return Reply::says(&format!("answer {number}")).usage(10, 0, number as u64);
        }
        Reply::new()
            .pause(Duration::from_millis(50))
            .call("glob", json!({"pattern": format!("no-{}", request.turn)}))
    })
    .await;
    let tasks: Vec<String> = (0..20).map(|index| format!("question {index}")).collect();
    let spec = json!({"tasks": tasks, "name": "twenty", "limits": {"max_concurrency": 6}});
    let envelope = hand_over(&env, &spec, &[], 0);
    let output = &envelope["output"];
    assert_eq!((&output["status"], &envelope["ok"]), (&json!("completed"), &json!(true)));
    for index in 0..20 {
        let child = &output["children"][index];
        assert_eq!(child["task"], format!("question {index}"));
        assert_eq!(child["summary"], format!("answer {}", index + 1));
        assert_eq!(child["checkpoint_status"], "not_stated");
        assert_eq!(child["posture"], "read_only");
        // The named Log belongs to this child.
        let log = std::fs::read_to_string(child["log_path"].as_str().unwrap()).unwrap();
        assert!(log.contains(&format!("question {index}")), "{index}");
    }
    let log = root_log(&env.workspace());
    let ends: Vec<String> = workflow_fact_kinds(&log)
        .into_iter()
        .filter(|kind| kind.starts_with("checkpoint_decided"))
        .collect();
    assert_eq!(ends, expected, "seed {}", seed());
    assert_eq!(check_family_logs(&env.workspace()), 20);
    assert_eq!(output["usage"]["total_tokens"], billed(&env.workspace()));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_task_ends_as_it_deserves() {
    let env = new_test_env(|request| match (request.step(), request.turn, request.session) {
        ("silent", ..) => Reply::says("I looked at everything."),
        ("partly", ..) => Reply::says("Half.\ncheckpoint_status: partial"),
        ("unsure", ..) => Reply::says("Which?\ncheckpoint_status: needs_orchestrator"),
        ("shapeless", ..) => Reply::says("forty-two"),
        ("failed", ..) | ("again", _, 0) => Reply::says("No.\ncheckpoint_status: failed"),
        ("slow", ..) => Reply::calls("bash", json!({"command": "sleep 600"})),
        _ => Reply::says("Done.\ncheckpoint_status: checkpoint_ready"),
    })
    .await;
    let spec = json!({"tasks": [
        {"id": "silent", "task": "a"},
        {"id": "partly", "task": "b"},
        {"id": "unsure", "task": "c"},
        {"id": "failed", "task": "d"},
        {"id": "shapeless", "task": "e", "output": {"type": "object", "properties": {"n": {"type": "integer"}}}},
        {"id": "unproved", "task": "f", "verify": ["true", "exit 3"]},
        {"id": "proved", "task": "g", "verify": "true"},
        {"id": "again", "task": "h", "retries": 2},
        {"id": "slow", "task": "i", "timeout_ms": 1500},
        {"id": "model", "task": "j", "model": "gpt-5.5-mini", "effort": "low"},
    ]});
    let envelope = hand_over(&env, &spec, &[], 6);
    let output = &envelope["output"];
    assert_eq!((&envelope["ok"], &envelope["status"]), (&json!(false), &json!("incomplete")));
    assert_eq!(envelope["error"]["kind"], "incomplete");
    assert_eq!(
        statuses(output),
        [
            "completed",
            "partial",
            "partial",
            "failed",
            "failed",
            "failed",
            "completed",
            "completed",
            "timed_out",
            "completed"
        ]
    );
    let reason = |index: usize| output["children"][index]["reason"].as_str();
    assert_eq!(reason(1), Some("stated_by_subagent"));
    assert_eq!(reason(4), Some("incomplete"));
    assert_eq!(reason(5), Some("verification_failed"));
    assert_eq!(output["children"][5]["verification"][1]["exit_code"], 3);
    assert_eq!(output["children"][2]["checkpoint_status"], "needs_orchestrator");
    assert_eq!(output["children"][7]["attempts"], 2);
    let asked = env.requests();
    let of_model = asked.iter().filter(|request| request.body["model"] == "gpt-5.5-mini");
    assert!(of_model.count() >= 1, "a child's model reaches the Provider");
    // A task that was tried twice has two children.
    assert_eq!(check_family_logs(&env.workspace()), 11);
    assert_eq!(
        last_checkpoint(&root_log(&env.workspace()), "silent")["known_limitations"],
        json!(["checkpoint_not_stated"])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_tasks_are_one_process_and_one_answer() {
    let env = new_test_env(|request| Reply::says(&format!("this is {}", request.step()))).await;
    let tasks: Vec<String> = (0..64).map(|index| format!("question {index}")).collect();
    let output = &hand_over(&env, &json!({"tasks": tasks}), &[], 0)["output"];
    assert_eq!(output["counts"]["completed"], 64);
    for index in 0..64 {
        assert_eq!(output["children"][index]["summary"], format!("this is task_{}", index + 1));
    }
    assert_eq!(check_family_logs(&env.workspace()), 64);
    assert_eq!(log_files(&env.workspace()).len(), 65);
    assert_eq!(output["usage"]["total_tokens"], billed(&env.workspace()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_envelope_says_to_type_works() {
    let env = new_test_env(|request| match (request.step(), request.turn) {
        ("build", 0) => Reply::calls("write", json!({"path": "made.txt", "content": "made\n"})),
        ("build", _) if !request.task.contains("now") => {
            Reply::says("Half of it.\ncheckpoint_status: partial")
        }
        _ => Reply::says("I went on."),
    })
    .await;
    let spec = json!({"tasks": [
        "look at it",
        {"id": "build", "task": "make it", "posture": "write", "workspace": "isolated"},
    ]});
    let output = hand_over(&env, &spec, &[], 6)["output"].clone();
    for index in [0, 1] {
        let child = &output["children"][index];
        let shell = |command: &str| {
            let mut shell = Command::new("/bin/sh");
            env.configure_command(shell.args(["-c", command]));
            run_command(shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
        };
        let command = |key: &str| child[key].as_str().unwrap().to_owned();
        let log = command("log_path");
        let before = std::fs::read(&log).unwrap();
        let resumed =
            shell(&format!("{} 'go on now' --json", command("resume_command"))).assert_exit_code(0);
        assert_eq!(resumed.envelope()["session_id"], child["child_session_id"]);
        let after = std::fs::read(&log).unwrap();
        assert!(after.starts_with(&before) && after.len() > before.len(), "its Log was continued");
        shell(&command("diagnose_command")).assert_exit_code(0);
        if index == 1 {
            let changes = shell(&command("changes_command")).assert_exit_code(0);
            assert!(changes.out.contains("made.txt"), "{}", changes.out);
        } else {
            assert!(child["changes_command"].is_null());
        }
    }
    let again = output["next_actions"][0].as_str().unwrap().split_once(": ").unwrap().1;
    let mut shell = Command::new("/bin/sh");
    env.configure_command(shell.args(["-c", again]));
    let run = run_command(shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    assert!(matches!(run.code, Some(0 | 6)), "{}{}", run.out, run.err);
}

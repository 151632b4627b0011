//! Resumed runs: missing results, changed specs, and reports.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use pixir::scripted::Reply;
use serde_json::json;

use super::rollback::{env_with_applied_change, landing_after_a_failure, resume};
use super::runs::{READY, new_test_env, run_workflow, status_of};
use super::scripted_steps::{last_checkpoint, root_log, workflow_spec};
use crate::support::sign_in_env::RunOutput;

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_that_has_to_be_done_again_has_something_to_merge() {
    let places: Arc<Mutex<HashMap<String, PathBuf>>> = Arc::default();
    let seen = Arc::clone(&places);
    let env = new_test_env(move |request| {
        seen.lock().unwrap().insert(request.step().to_owned(), request.workspace.clone());
        match (request.step(), request.turn, request.session) {
            ("s1", 0, _) => Reply::calls("bash", json!({"command": "echo line >> a.txt"})),
            ("s2", 0, _) => Reply::calls("bash", json!({"command": "echo line >> b.txt"})),
            ("rev", _, 0) => Reply::says(r#"{"verdict": "request_changes", "findings": []}"#),
            ("rev", _, _) => Reply::says(r#"{"verdict": "approve", "findings": []}"#),
            _ => Reply::says(READY),
        }
    })
    .await;
    env.write("a.txt", "base\n");
    env.write("b.txt", "base\n");
    let graph = workflow_spec(json!([
        {"id": "s1", "task": "s1: add a line"},
        {"id": "s2", "task": "s2: add a line"},
        {"id": "l1", "apply": "s1", "depends_on": "s2"},
        {"id": "rev", "task": "rev: look at it", "role": "reviewer", "depends_on": "s2"},
        {"id": "l2", "apply": "s2", "gate": "rev"},
    ]));
    let output = run_workflow(&env, &graph, 6);
    assert_eq!((status_of(&output, "l1"), status_of(&output, "l2")), ("checkpoint_ready", "held"));
    assert_eq!(env.read("a.txt"), "base\nline\n");
    for step in ["s1", "s2"] {
        std::fs::remove_dir_all(&places.lock().unwrap()[step]).unwrap();
    }
    let resumed = resume(&env, &output, 0);
    assert_eq!(resumed["reused_steps"], json!([]));
    assert_eq!(env.read("a.txt"), "base\nline\n");
    assert_eq!(env.read("b.txt"), "base\nline\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_that_leave_too_much_to_record_are_rolled_back_by_comparison() {
    let env = new_test_env(|request| match (request.step(), request.turn) {
        ("one", 0) => Reply::calls("bash", json!({"command": "echo line >> d/a.txt"})),
        _ => Reply::says(READY),
    })
    .await;
    std::fs::create_dir(env.workspace().join("d")).unwrap();
    std::fs::create_dir_all(env.home().join(".pixir")).unwrap();
    let settings = json!({"undo": {"max_total_bytes": 200_000}}).to_string();
    std::fs::write(env.home().join(".pixir/config.json"), settings).unwrap();
    let check = "head -c 300000 /dev/zero > d/big; false";
    let graph = workflow_spec(json!([
        {"id": "one", "task": "one", "workspace": "shared", "write_set": ["d/"], "retries": 1, "verify": [check]},
    ]));
    run_workflow(&env, &graph, 6);
    let bundle = last_checkpoint(&root_log(&env.workspace()), "one");
    assert_eq!(bundle["attempts"], 2, "{bundle}");
    let written = bundle["written"].as_array().unwrap();
    assert!(
        written.contains(&json!("d/big")),
        "a comparison finds what was not recorded: {bundle}"
    );
    assert_eq!(env.read("d/a.txt"), "line\n", "the first attempt was rolled back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_goes_on_says_what_it_takes_back() {
    let env = env_with_applied_change().await;
    let output = run_workflow(&env, &landing_after_a_failure(), 6);
    let id = output["workflow_id"].as_str().unwrap();
    let shown = env.run_pixir(&["workflow", "resume", id]).assert_exit_code(0).err;
    let at = |line: &str| shown.find(line).unwrap_or_else(|| panic!("{line}: {shown}"));
    let begun = at(&format!("workflow a test ({id}): resumed, 0 of 3 steps ready\n"));
    let back = at("\nland: its changes were undone (1 file)\n");
    let ready = at("[x] land ready");
    let over = at("workflow a test completed: 3 of 3 steps ready\n");
    assert!(begun < back && back < ready && ready < over, "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_run_came_to_is_an_error_when_there_is_no_room_for_it() {
    let env = new_test_env(|_| Reply::says(READY)).await;
    let graph = workflow_spec(json!([{"id": "one", "task": "one", "role": "explorer"}]));
    env.write("flow.json", graph.to_string());
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = env.command(&["workflow", "run", "flow.json"]);
    let ran = tokio::task::block_in_place(|| command.stdout(Stdio::from(full)).output().unwrap());
    let ran = RunOutput::from_output(ran).assert_exit_code(1);
    assert!(ran.err.contains("pixir workflow status wf_"), "{}", ran.err);
}

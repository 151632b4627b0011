//! Checks and reviews: files that they may change, files that they leave, and their use in resumed runs.

use pixir::scripted::Reply;
use serde_json::json;

use super::runs::{READY, merging_workflow, new_test_env, run_workflow};
use super::scripted_steps::{last_checkpoint, root_log, workflow_spec};
use crate::subagents::scripted_family::check_family_logs;

#[tokio::test(flavor = "multi_thread")]
async fn checks_may_build_in_a_workspace_of_its_own_and_only_the_work_of_the_step_lands() {
    let env = new_test_env(|request| match (request.step(), request.turn) {
        ("build", 0) => Reply::calls("write", json!({"path": "src/a.rs", "content": "new\n"})),
        _ => Reply::says(READY),
    })
    .await;
    std::fs::create_dir(env.workspace().join("src")).unwrap();
    env.write("src/a.rs", "old\n");
    env.write("keep.txt", "kept\n");
    // As a build tool: a folder and a file beside the sources, and a regenerated file.
    let checks = [
        "mkdir -p target/deep && echo built > target/deep/x && echo 1 > lock",
        "test -f target/deep/x && echo other > keep.txt && echo made > src/made.rs",
    ];
    let output = run_workflow(
        &env,
        &workflow_spec(json!([
            {"id": "build", "task": "build: change it", "write_set": ["src/"], "verify": checks},
            {"id": "land", "apply": "build"},
        ])),
        0,
    );
    assert_eq!(output["status"], "completed");
    let log = root_log(&env.workspace());
    assert_eq!(last_checkpoint(&log, "build")["written"], json!(["src/a.rs", "src/made.rs"]));
    assert_eq!(last_checkpoint(&log, "land")["written"], json!(["src/a.rs", "src/made.rs"]));
    let read = |path: &str| env.read(path);
    assert_eq!((read("src/a.rs"), read("keep.txt")), ("new\n".into(), "kept\n".into()));
    assert!(!env.workspace().join("lock").exists() && !env.workspace().join("target").exists());
    assert_eq!(check_family_logs(&env.workspace()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_review_that_did_not_approve_is_asked_again_when_the_run_goes_on() {
    let env = new_test_env(|request| match (request.step(), request.turn) {
        ("build", 0) => Reply::calls("write", json!({"path": "a.txt", "content": "new\n"})),
        ("review", _) if request.session == 0 => {
            Reply::says(r#"{"verdict": "request_changes", "findings": []}"#)
        }
        ("review", _) => Reply::says(r#"{"verdict": "approve", "findings": []}"#),
        _ => Reply::says(READY),
    })
    .await;
    env.write("a.txt", "old\n");
    let output = run_workflow(&env, &merging_workflow(), 6);
    let id = output["workflow_id"].as_str().unwrap();
    let resumed =
        env.run_pixir(&["workflow", "resume", id, "--json"]).assert_exit_code(0).envelope();
    assert_eq!(resumed["output"]["reused_steps"], json!(["build"]));
    assert_eq!(env.read("a.txt"), "new\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_command_is_the_end_of_its_run() {
    // As the time limit of a spec: with its exit code, whichever step reaches it first.
    let env = new_test_env(|_| Reply::new().stalls()).await;
    env.write(
        "flow.json",
        workflow_spec(json!([{"id": "one", "task": "one", "role": "explorer"}])).to_string(),
    );
    env.write("tasks.json", json!({"tasks": ["one"]}).to_string());
    for command in [["workflow", "run", "flow.json"], ["delegate", "--spec", "tasks.json"]] {
        let args: Vec<&str> = command.into_iter().chain(["--json", "--timeout", "1s"]).collect();
        let ended = env.run_pixir(&args).assert_exit_code(124).envelope();
        assert_eq!(ended["output"]["reason"], "deadline", "{ended}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_begun_when_the_step_before_used_the_budget_up() {
    let env = new_test_env(|_| Reply::says(READY)).await;
    let mut graph = workflow_spec(json!([
        {"id": "one", "task": "one", "role": "explorer"},
        {"id": "two", "task": "two", "role": "explorer", "depends_on": "one"},
    ]));
    graph["budget"] = json!({"tokens": 1});
    let output = run_workflow(&env, &graph, 6);
    assert_eq!(
        (&output["status"], &output["reason"]),
        (&json!("partial"), &json!("budget_exhausted"))
    );
    assert_eq!(output["held_steps"], json!(["two"]));
    assert_eq!(output["usage"]["calls"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_undone_is_not_resumed() {
    let env = new_test_env(|request| match (request.step(), request.turn) {
        ("build", 0) => Reply::calls("write", json!({"path": "a.txt", "content": "new\n"})),
        ("tell", _) => Reply::says("checkpoint_status: failed"),
        _ => Reply::says(READY),
    })
    .await;
    let graph = workflow_spec(json!([
        {"id": "build", "task": "build: change it"},
        {"id": "land", "apply": "build"},
        {"id": "tell", "task": "tell", "role": "explorer", "depends_on": "land"},
    ]));
    let output = run_workflow(&env, &graph, 6);
    let id = output["workflow_id"].as_str().unwrap();
    let session = output["session_id"].as_str().unwrap();
    env.run_pixir(&["undo", "--yes", session]).assert_exit_code(0);
    // The applied change is gone, so its checkpoint is no longer valid.
    let refused = env.run_pixir(&["workflow", "resume", id]).assert_exit_code(2).err;
    assert!(refused.contains("pixir redo"), "{refused}");
    env.run_pixir(&["redo", "--yes", session]).assert_exit_code(0);
    let resumed =
        env.run_pixir(&["workflow", "resume", id, "--json"]).assert_exit_code(6).envelope();
    assert_eq!(resumed["output"]["reused_steps"], json!(["build", "land"]));
    assert_eq!(env.read("a.txt"), "new\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_stays_with_its_session_when_that_is_forked() {
    let env = new_test_env(|request| match request.step() {
        "tell" => Reply::says("checkpoint_status: failed"),
        _ => Reply::says(READY),
    })
    .await;
    let graph = workflow_spec(json!([
        {"id": "look", "task": "look", "role": "explorer"},
        {"id": "tell", "task": "tell", "role": "explorer", "depends_on": "look"},
    ]));
    let output = run_workflow(&env, &graph, 6);
    let id = output["workflow_id"].as_str().unwrap();
    let session = output["session_id"].as_str().unwrap();
    let forked = env.run_pixir(&["fork", session, "--json"]).assert_exit_code(0).envelope();
    assert!(forked["output"]["session_id"].is_string(), "{forked}");
    let listed = env.run_pixir(&["workflow", "status", "--json"]).assert_exit_code(0).envelope();
    assert_eq!(listed["output"]["runs"].as_array().unwrap().len(), 1, "{listed}");
    let resumed =
        env.run_pixir(&["workflow", "resume", id, "--json"]).assert_exit_code(6).envelope();
    assert_eq!(resumed["session_id"], session);
    assert_eq!(resumed["output"]["reused_steps"], json!(["look"]));
}

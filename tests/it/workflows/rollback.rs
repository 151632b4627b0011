//! Rollback in resumed runs: files that are rolled back, and files that must not be touched.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use pixir::scripted::{ModelScript, Reply};
use pixir::{PermissionMode, SessionStatus, SettingsChange};
use serde_json::{Value, json};

use super::runs::{READY, new_test_env, reason_of, run_workflow, status_of};
use super::scripted_steps::{
    StepRequest, last_checkpoint, root_log, workflow_fact_kinds, workflow_facts, workflow_spec,
};
use crate::subagents::scripted_family::check_family_logs;
use crate::support::TestEnv;
use crate::support::test_env::{DEADLINE, wait_for_turn_end};

pub fn resume(env: &TestEnv, of: &Value, code: i32) -> Value {
    let id = of["workflow_id"].as_str().unwrap();
    env.run_pixir(&["workflow", "resume", id, "--json"]).assert_exit_code(code).envelope()["output"]
        .clone()
}

/// A step that appends a line in a copy, after another one that fails the first time, and its merge.
pub fn landing_after_a_failure() -> Value {
    workflow_spec(json!([
        {"id": "look", "task": "look", "role": "explorer", "on_failure": "continue"},
        {"id": "build", "task": "build: add a line", "depends_on": "look"},
        {"id": "land", "apply": "build"},
    ]))
}

pub async fn env_with_applied_change() -> TestEnv {
    let env = new_test_env(|request| match (request.step(), request.turn, request.session) {
        ("look", _, 0) => Reply::says("checkpoint_status: failed"),
        ("build", 0, _) => Reply::calls("bash", json!({"command": "echo line >> a.txt"})),
        _ => Reply::says(READY),
    })
    .await;
    env.write("a.txt", "base\n");
    env
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_is_rolled_back_before_its_source_runs_again() {
    let env = env_with_applied_change().await;
    let output = run_workflow(&env, &landing_after_a_failure(), 6);
    assert_eq!(status_of(&output, "land"), "checkpoint_ready");
    assert_eq!(env.read("a.txt"), "base\nline\n");
    let resumed = resume(&env, &output, 0);
    assert_eq!(resumed["reused_steps"], json!([]));
    assert_eq!(env.read("a.txt"), "base\nline\n", "as if the first look had not failed");
    let kinds = workflow_fact_kinds(&root_log(&env.workspace()));
    assert!(kinds.contains(&"step_taken_back land".to_owned()), "{kinds:?}");
    // The whole run can be undone.
    let session = resumed["session_id"].as_str().unwrap();
    env.run_pixir(&["undo", "--yes", session, "--turns", "2"]).assert_exit_code(0);
    assert_eq!(env.read("a.txt"), "base\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_that_later_changes_build_on_stays_and_its_source_is_not_run_again() {
    let env = env_with_applied_change().await;
    let output = run_workflow(&env, &landing_after_a_failure(), 6);
    env.write("a.txt", "base\nline\nmine\n");
    let resumed = resume(&env, &output, 6);
    for step in ["build", "land"] {
        assert_eq!(status_of(&resumed, step), "needs_orchestrator", "{step}");
        assert_eq!(reason_of(&resumed, step), "not_taken_back", "{step}");
    }
    assert!(resumed.to_string().contains("a.txt"), "{resumed}");
    assert_eq!(env.read("a.txt"), "base\nline\nmine\n");
    // After the user restores the files, the run can be resumed.
    env.write("a.txt", "base\n");
    resume(&env, &resumed, 0);
    assert_eq!(env.read("a.txt"), "base\nline\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_checks_change_is_the_work_of_their_step_and_goes_with_it() {
    let env = new_test_env(|request| match (request.step(), request.turn) {
        ("one", 0) => Reply::calls("write", json!({"path": "d/a.txt", "content": "made\n"})),
        _ => Reply::says(READY),
    })
    .await;
    std::fs::create_dir(env.workspace().join("d")).unwrap();
    env.write("d/log.txt", "");
    // Checks that change files, as a formatter does; the last one passes the second time.
    let outside = env.workspace().join(".pixir/second");
    let twice = format!("test -e {0}", outside.display());
    let checks =
        json!(["echo formatted >> d/a.txt", "echo once >> d/log.txt; echo new > d/new.txt", twice]);
    let mut graph = workflow_spec(json!([
        {"id": "one", "task": "one", "workspace": "shared", "write_set": ["d/"], "retries": 1, "verify": checks},
    ]));
    let output = run_workflow(&env, &graph, 6);
    let log = root_log(&env.workspace());
    let bundle = last_checkpoint(&log, "one");
    assert_eq!(bundle["attempts"], 2, "it was tried again: {bundle}");
    assert_eq!(bundle["written"], json!(["d/a.txt", "d/log.txt", "d/new.txt"]));
    env.write(".pixir/second", "");
    let resumed = resume(&env, &output, 0);
    assert_eq!(status_of(&resumed, "one"), "checkpoint_ready");
    assert_eq!(env.read("d/a.txt"), "made\nformatted\n");
    assert_eq!(env.read("d/log.txt"), "once\n");
    // The same after a kill while a check runs.
    graph["steps"][0]["verify"] = json!([
        "echo again >> d/log.txt; echo x > d/now; test -e .pixir/second && sleep 600; true"
    ]);
    env.write("flow.json", graph.to_string());
    tokio::task::block_in_place(|| {
        let is_now = || env.workspace().join("d/now").exists();
        env.run_pixir_until_killed(&["workflow", "run", "flow.json"], is_now);
        std::fs::remove_file(env.workspace().join(".pixir/second")).unwrap();
        let listed =
            env.run_pixir(&["workflow", "status", "--json"]).assert_exit_code(0).envelope();
        let mut runs = listed["output"]["runs"].as_array().unwrap().iter();
        let cut_off = runs.find(|run| run["status"] == "interrupted").unwrap();
        let resumed = resume(&env, cut_off, 0);
        assert_eq!(status_of(&resumed, "one"), "checkpoint_ready");
        assert_eq!(env.read("d/log.txt"), "once\nagain\n");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_of_a_merge_that_change_other_files_make_it_partial() {
    let env = new_test_env(|request| match (request.step(), request.turn) {
        ("build", 0) => Reply::calls("write", json!({"path": "src/a.rs", "content": "new\n"})),
        _ => Reply::says(READY),
    })
    .await;
    env.write(".gitignore", "target/\n");
    env.write("keep.txt", "kept\n");
    let graph = |check: &str| {
        workflow_spec(json!([
            {"id": "build", "task": "build: change it", "write_set": ["src/"]},
            {"id": "land", "apply": "build", "verify": [check]},
            {"id": "after", "task": "after", "role": "explorer", "depends_on": "land"},
        ]))
    };
    let output = run_workflow(&env, &graph("mkdir -p target && echo built > target/x"), 0);
    assert_eq!(status_of(&output, "land"), "checkpoint_ready", "what is ignored is nobody's work");
    let output = run_workflow(&env, &graph("echo other > keep.txt; echo n > new.txt"), 6);
    assert_eq!(
        (status_of(&output, "land"), reason_of(&output, "land")),
        ("partial", json!("wrote_outside_write_set"))
    );
    assert_eq!(status_of(&output, "after"), "held");
    assert!(output.to_string().contains("keep.txt, new.txt"), "{output}");
    let session = output["session_id"].as_str().unwrap();
    env.run_pixir(&["undo", "--yes", session, "--force"]).assert_exit_code(0);
    assert_eq!(env.read("keep.txt"), "kept\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn half_of_a_merge_that_was_cut_off_is_never_visible() {
    const FILES: usize = 400;
    let env = new_test_env(|request| match (request.step(), request.turn, request.session) {
        ("look", _, 0) => Reply::new().stalls(),
        ("slot", _, 0) => Reply::says("checkpoint_status: failed"),
        // This step occupies the other slot until `copy` has begun.
        ("slot", 0, _) => Reply::calls("bash", json!({"command": "sleep 1"})),
        ("build", 0, _) => {
            let command = format!("for i in $(seq {FILES}); do echo new > m/$i; done");
            Reply::calls("bash", json!({"command": command}))
        }
        ("copy", 0, _) => Reply::calls("bash", json!({"command": "ls m | wc -l > count.txt"})),
        _ => Reply::says(READY),
    })
    .await;
    std::fs::create_dir(env.workspace().join("m")).unwrap();
    let mut graph = workflow_spec(json!([
        {"id": "look", "task": "look", "role": "explorer", "read_set": ["nothing/"]},
        {"id": "slot", "task": "slot", "role": "explorer", "read_set": ["nothing/"]},
        {"id": "copy", "task": "copy: count them", "depends_on": "look"},
        {"id": "build", "task": "build: make them", "write_set": ["m/"]},
        {"id": "land", "apply": "build"},
        {"id": "keep", "apply": "copy"},
    ]));
    graph["limits"] = json!({"max_concurrency": 2});
    env.write("flow.json", graph.to_string());
    let made = || std::fs::read_dir(env.workspace().join("m")).unwrap().count();
    tokio::task::block_in_place(|| {
        env.run_pixir_until_killed(&["workflow", "run", "flow.json"], || made() > 0);
        let listed =
            env.run_pixir(&["workflow", "status", "--json"]).assert_exit_code(0).envelope();
        let half = made();
        resume(&env, &listed["output"]["runs"][0], 0);
        let counted = env.read("count.txt");
        let all = FILES.to_string();
        assert!(["0", &all].contains(&counted.trim()), "{counted} of {half} were seen");
        assert_eq!(made(), FILES);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_merged_nor_taken_back_in_read_only_mode() {
    let env = env_with_applied_change().await;
    let output = run_workflow(&env, &landing_after_a_failure(), 6);
    let id = output["workflow_id"].as_str().unwrap();
    let args = ["--read-only", "workflow", "resume", id, "--json"];
    let resumed = env.run_pixir(&args).assert_exit_code(6).envelope()["output"].clone();
    assert_eq!(status_of(&resumed, "land"), "needs_orchestrator");
    assert_eq!(env.read("a.txt"), "base\nline\n", "what was there is there");
    // A first merge does not happen either.
    env.write("a.txt", "base\n");
    let graph = workflow_spec(json!([
        {"id": "build", "task": "build: add a line"},
        {"id": "wait", "task": "wait", "role": "explorer", "depends_on": "build", "verify": ["test -e .pixir/go"]},
        {"id": "land", "apply": "build", "depends_on": "wait"},
    ]));
    let output = run_workflow(&env, &graph, 6);
    env.write(".pixir/go", "");
    let id = output["workflow_id"].as_str().unwrap();
    let args = ["--read-only", "workflow", "resume", id, "--json"];
    let resumed = env.run_pixir(&args).assert_exit_code(6).envelope()["output"].clone();
    assert_eq!(
        (status_of(&resumed, "land"), reason_of(&resumed, "land")),
        ("failed", json!("permission_denied"))
    );
    assert_eq!(env.read("a.txt"), "base\n");
    env.run_pixir(&["--auto", "workflow", "resume", id, "--json"]).assert_exit_code(0);
    assert_eq!(env.read("a.txt"), "base\nline\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_heed_a_session_that_becomes_stricter() {
    let graph = workflow_spec(json!([
        {"id": "make", "task": "make", "posture": "write", "workspace": "shared", "write_set": ["out/**"],
         "verify": ["while [ ! -e .pixir/go ]; do sleep 0.02; done", "touch out/late"]},
    ]));
    let script = ModelScript::answering(move |request| {
        match (StepRequest::from_request(request), request.outputs()) {
            (Some(_), _) => Reply::says(READY),
            (None, outputs) if outputs.is_empty() => {
                Reply::calls("run_workflow", json!({"workflow": graph}))
            }
            _ => Reply::says("I see."),
        }
    });
    let env = TestEnv::with_script(script).await;
    std::fs::create_dir(env.workspace().join("out")).unwrap();
    let harness = env.harness();
    let conversation = env.start_with(&harness).await;
    conversation.send(pixir::UserInput { text: "make it".to_owned() }).await.unwrap();
    let is_begun =
        || env.requests().iter().any(|request| StepRequest::from_request(request).is_some());
    let begun = async {
        while !is_begun() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, begun).await.expect("the step begins");
    let stricter =
        SettingsChange { mode: Some(PermissionMode::ReadOnly), ..SettingsChange::default() };
    harness.change_settings(&conversation, stricter).await.unwrap();
    env.write(".pixir/go", "");
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Done);
    assert!(!env.workspace().join("out/late").exists(), "the Session is read-only");
    let make = last_checkpoint(conversation.log_path(), "make");
    let passed: Vec<_> =
        make["verification"].as_array().unwrap().iter().map(|it| &it["ok"]).collect();
    assert_eq!(passed, [&json!(true), &json!(false)], "{make}");
    conversation.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_after_a_crash_stay_also_where_a_step_had_written() {
    let env = new_test_env(|request| match (request.step(), request.turn, request.session) {
        ("slow", 0, _) => Reply::calls("bash", json!({"command": "true"})),
        ("slow", 1, _) => Reply::calls("write", json!({"path": "d/a.txt", "content": "model\n"})),
        ("slow", 2, 0) => Reply::calls("bash", json!({"command": "echo > d/b.txt; sleep 600"})),
        _ => Reply::says(READY),
    })
    .await;
    std::fs::create_dir(env.workspace().join("d")).unwrap();
    let graph = workflow_spec(
        json!([{"id": "slow", "task": "slow", "workspace": "shared", "write_set": ["d/"]}]),
    );
    env.write("flow.json", graph.to_string());
    tokio::task::block_in_place(|| {
        let is_there = || env.workspace().join("d/b.txt").exists();
        env.run_pixir_until_killed(&["workflow", "run", "flow.json"], is_there);
        std::thread::sleep(Duration::from_millis(600));
        env.write("d/a.txt", "model\nand a day's work\n");
        env.write("d/mine.txt", "mine\n");
        let listed =
            env.run_pixir(&["workflow", "status", "--json"]).assert_exit_code(0).envelope();
        let id = listed["output"]["runs"][0]["workflow_id"].as_str().unwrap();
        // Each attempt is refused: a resume does not change the author of the files.
        for (mode, expected) in
            [("--read-only", "read-only"), ("--auto", "d/a.txt, d/mine.txt")].repeat(2)
        {
            let args = [mode, "workflow", "resume", id, "--json"];
            let resumed = env.run_pixir(&args).assert_exit_code(6).envelope()["output"].clone();
            assert_eq!(status_of(&resumed, "slow"), "needs_orchestrator");
            assert!(resumed.to_string().contains(expected), "{resumed}");
            assert_eq!(env.read("d/a.txt"), "model\nand a day's work\n");
            assert_eq!(env.read("d/mine.txt"), "mine\n");
        }
        // After the user restores the files, the run can be resumed.
        for name in ["d/a.txt", "d/mine.txt"] {
            std::fs::remove_file(env.workspace().join(name)).unwrap();
        }
        resume(&env, &listed["output"]["runs"][0], 0);
        assert_eq!(env.read("d/a.txt"), "model\n");
        assert!(!env.workspace().join("d/b.txt").exists());
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_looked_at_is_not_taken_for_nothing() {
    let env = new_test_env(|request| match (request.step(), request.turn) {
        ("one", 0) => Reply::calls("bash", json!({"command": "echo line >> d/a.txt"})),
        _ => Reply::says(READY),
    })
    .await;
    std::fs::create_dir(env.workspace().join("d")).unwrap();
    let graph = workflow_spec(json!([
        {"id": "one", "task": "one", "workspace": "shared", "write_set": ["d/"], "retries": 1, "verify": ["false"]},
    ]));
    std::fs::create_dir_all(env.home().join(".pixir")).unwrap();
    let settings = json!({"undo": {"enabled": false}}).to_string();
    std::fs::write(env.home().join(".pixir/config.json"), settings).unwrap();
    run_workflow(&env, &graph, 6);
    let bundle = last_checkpoint(&root_log(&env.workspace()), "one");
    assert_eq!(bundle["attempts"], 1, "{bundle}");
    let limits = bundle["known_limitations"].as_array().unwrap();
    assert!(limits.contains(&json!("not_taken_back")), "{bundle}");
    assert!(limits.contains(&json!("changes_unknown")), "{bundle}");
    assert_eq!(env.read("d/a.txt"), "line\n", "it is not done twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_must_not_be_missed_ends_the_run_also_when_it_cannot_start() {
    let env = new_test_env(|request| match request.step() {
        "bad" => Reply::says("checkpoint_status: failed"),
        _ => Reply::says(READY),
    })
    .await;
    let graph = workflow_spec(json!([
        {"id": "bad", "task": "bad", "role": "explorer"},
        {"id": "vital", "task": "vital", "role": "explorer", "depends_on": "bad", "on_failure": "abort"},
        {"id": "first", "task": "first", "role": "explorer"},
        {"id": "other", "task": "other", "role": "explorer", "depends_on": "first"},
    ]));
    let mut graph = graph;
    graph["limits"] = json!({"max_concurrency": 1});
    let output = run_workflow(&env, &graph, 6);
    assert_eq!((&output["status"], &output["reason"]), (&json!("failed"), &json!("aborted")));
    assert_eq!(output["held_steps"], json!(["vital", "first", "other"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_must_not_be_missed_ends_those_that_run_also_when_it_cannot_start() {
    let env = new_test_env(|request| match request.step() {
        "bad" => Reply::says("checkpoint_status: failed"),
        _ => Reply::new().stalls(),
    })
    .await;
    let output = run_workflow(
        &env,
        &workflow_spec(json!([
            {"id": "bad", "task": "bad", "role": "explorer"},
            {"id": "vital", "task": "vital", "role": "explorer", "depends_on": "bad", "on_failure": "abort"},
            {"id": "long", "task": "long", "role": "explorer"},
        ])),
        6,
    );
    assert_eq!((&output["status"], &output["reason"]), (&json!("failed"), &json!("aborted")));
    assert_eq!(output["held_steps"], json!(["vital"]));
    assert_eq!(
        (status_of(&output, "long"), reason_of(&output, "long")),
        ("failed", json!("aborted"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_run_keeps_beside_its_log_is_for_its_owner() {
    let env = new_test_env(|_| Reply::says(READY)).await;
    run_workflow(
        &env,
        &workflow_spec(json!([{"id": "one", "task": "one", "role": "explorer"}])),
        0,
    );
    let folder = root_log(&env.workspace()).with_extension("");
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    for entry in std::fs::read_dir(&folder).unwrap().flatten() {
        let path = entry.path();
        assert_eq!(mode(&path), if path.is_dir() { 0o700 } else { 0o600 }, "{path:?}");
    }
    assert_eq!(workflow_facts(&root_log(&env.workspace())).last().unwrap()["status"], "completed");
    assert_eq!(check_family_logs(&env.workspace()), 1);
}

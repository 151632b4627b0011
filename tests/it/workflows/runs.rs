//! Runs: tasks of steps, their results, their dependencies, and the Log.

use pixir::SessionStatus;
use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use super::scripted_steps::{
    StepRequest, last_checkpoint, root_log, scripted_steps, workflow_fact_kinds, workflow_facts,
    workflow_spec,
};
use crate::subagents::scripted_family::{check_family_logs, read_events};
use crate::support::TestEnv;

pub const READY: &str = "Done.\ncheckpoint_status: checkpoint_ready";

pub async fn new_test_env(
    answer: impl Fn(&StepRequest) -> Reply + Send + Sync + 'static,
) -> TestEnv {
    TestEnv::with_script(scripted_steps(answer)).await
}

/// Runs a Workflow by `pixir workflow run`; gives the output of its envelope.
pub fn run_workflow(env: &TestEnv, graph: &Value, code: i32) -> Value {
    env.write("flow.json", graph.to_string());
    env.run_pixir(&["workflow", "run", "flow.json", "--json"]).assert_exit_code(code).envelope()["output"]
        .clone()
}

pub fn status_of<'v>(output: &'v Value, step: &str) -> &'v str {
    let steps = output["steps"].as_array().unwrap();
    let own = steps.iter().find(|own| own["step_id"] == step).unwrap();
    own["checkpoint_status"].as_str().unwrap()
}

pub fn reason_of(output: &Value, step: &str) -> Value {
    let steps = output["steps"].as_array().unwrap();
    steps.iter().find(|own| own["step_id"] == step).unwrap()["reason"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_step_delivers_reaches_those_that_need_it_in_order() {
    let env = new_test_env(|request| match (request.step(), request.turn) {
        ("scan", _) => Reply::says(r#"{"files": ["a.txt", "b.txt"], "count": 2}"#),
        ("make", 0) => {
            assert!(request.task.contains(r#"- list: ["a.txt","b.txt"]"#), "{}", request.task);
            Reply::calls("write", json!({"path": "out/made.txt", "content": "two\n"}))
        }
        _ => Reply::says(READY),
    })
    .await;
    let output = run_workflow(
        &env,
        &workflow_spec(json!([
            {"id": "make", "task": "make: use the list", "posture": "write", "workspace": "shared",
             "write_set": ["out/**"], "needs": {"list": {"step": "scan", "pointer": "/files"}}},
            {"id": "scan", "task": "scan: what is there", "role": "explorer", "output": {
                "type": "object", "required": ["files"],
                "properties": {"files": {"type": "array", "items": {"type": "string"}}, "count": {"type": "integer"}}}},
        ])),
        0,
    );
    assert_eq!((&output["status"], &output["ok"]), (&json!("completed"), &json!(true)));
    assert_eq!(env.read("out/made.txt"), "two\n");
    assert_eq!(output["waves"], json!([["scan"], ["make"]]));
    let log = root_log(&env.workspace());
    assert_eq!(
        workflow_fact_kinds(&log),
        [
            "started",
            "step_scheduled scan",
            "checkpoint_decided scan",
            "step_scheduled make",
            "checkpoint_decided make",
            "finished"
        ]
    );
    let scan = last_checkpoint(&log, "scan");
    let payload = &scan["typed_payloads"][0];
    assert_eq!(
        (&payload["schema_id"], &payload["payload"]["count"]),
        (&json!("step_output"), &json!(2))
    );
    assert_eq!(last_checkpoint(&log, "make")["written"], json!(["out/made.txt"]));
    let started = &workflow_facts(&log)[0];
    assert_eq!(started["spec_sha256"].as_str().unwrap().len(), 64);
    assert_eq!(check_family_logs(&env.workspace()), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_is_partial_and_holds_those_that_build_on_it() {
    let env = new_test_env(|request| match request.step() {
        "quiet" => Reply::says("I had a look."),
        _ => Reply::says(READY),
    })
    .await;
    let output = run_workflow(
        &env,
        &workflow_spec(json!([
            {"id": "quiet", "task": "quiet: look", "role": "explorer"},
            {"id": "after", "task": "after: go on", "role": "explorer", "depends_on": "quiet"},
            {"id": "aside", "task": "aside: look elsewhere", "role": "explorer"},
        ])),
        6,
    );
    assert_eq!(output["status"], "partial");
    assert_eq!(status_of(&output, "quiet"), "partial");
    assert_eq!(reason_of(&output, "quiet"), "checkpoint_not_stated");
    assert_eq!(status_of(&output, "after"), "held");
    assert_eq!(status_of(&output, "aside"), "checkpoint_ready");
    assert_eq!(output["usable_checkpoints"], json!(["aside"]));
    let log = root_log(&env.workspace());
    let held = workflow_facts(&log).into_iter().find(|fact| fact["kind"] == "step_held").unwrap();
    assert_eq!(
        (&held["reason"], &held["details"]["steps"]),
        (&json!("dependency_not_ready"), &json!(["quiet"]))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_decide_and_another_attempt_begins_with_what_the_first_one_found() {
    let env = new_test_env(|request| match (request.step(), request.turn, request.session) {
        ("fix", 0, 0) => Reply::calls("write", json!({"path": "n/n.txt", "content": "wrong\n"})),
        ("fix", 0, _) => Reply::calls(
            "bash",
            json!({"command": "cat n/n.txt >> n/seen.txt; echo right > n/n.txt"}),
        ),
        _ => Reply::says("I think so."),
    })
    .await;
    std::fs::create_dir(env.workspace().join("n")).unwrap();
    env.write("n/n.txt", "before\n");
    let output = run_workflow(
        &env,
        &workflow_spec(json!([
            {"id": "fix", "task": "fix: n.txt", "posture": "write", "workspace": "shared",
             "write_set": ["n/**"], "verify": ["grep -q right n/n.txt"], "retries": 1},
        ])),
        0,
    );
    assert_eq!(env.read("n/n.txt"), "right\n");
    assert_eq!(env.read("n/seen.txt"), "before\n", "the first attempt was taken back");
    let log = root_log(&env.workspace());
    assert_eq!(
        workflow_fact_kinds(&log),
        [
            "started",
            "step_scheduled fix",
            "verification fix",
            "step_taken_back fix",
            "step_retrying fix",
            "verification fix",
            "checkpoint_decided fix",
            "finished"
        ]
    );
    let bundle = last_checkpoint(&log, "fix");
    assert_eq!(
        (&bundle["attempts"], &bundle["verification"][0]["exit_code"]),
        (&json!(2), &json!(0))
    );
    assert_eq!(output["status"], "completed");
    assert_eq!(check_family_logs(&env.workspace()), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_that_does_not_pass_fails_its_step() {
    let env = new_test_env(|_| Reply::says(READY)).await;
    let output = run_workflow(
        &env,
        &workflow_spec(
            json!([{"id": "one", "task": "one", "role": "explorer", "verify": ["true", "echo no; exit 3", "true"]}]),
        ),
        6,
    );
    assert_eq!((&output["status"], status_of(&output, "one")), (&json!("failed"), "failed"));
    assert_eq!(reason_of(&output, "one"), "verification_failed");
    let bundle = last_checkpoint(&root_log(&env.workspace()), "one");
    let codes: Vec<&Value> =
        bundle["verification"].as_array().unwrap().iter().map(|own| &own["exit_code"]).collect();
    assert_eq!(codes, [&json!(0), &json!(3)]);
    assert_eq!(bundle["verification"][1]["output"], "no\n");
}

pub fn merging_workflow() -> Value {
    workflow_spec(json!([
        {"id": "build", "task": "build: change it", "posture": "write", "workspace": "isolated", "verify": ["test -s a.txt"]},
        {"id": "review", "task": "review: look at it", "role": "reviewer", "depends_on": ["build"]},
        {"id": "land", "apply": "build", "gate": "review"},
    ]))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approved_change_lands_and_another_one_does_not() {
    for (verdict, code) in [("approve", 0), ("request_changes", 6), ("unclear", 6)] {
        let env = new_test_env(move |request| match (request.step(), request.turn) {
            ("build", 0) => Reply::calls("write", json!({"path": "a.txt", "content": "new\n"})),
            ("review", _) => {
                // The reviewed change is in the task, because the reviewer's own files do not have it.
                assert!(request.task.contains("-old\n+new"), "{}", request.task);
                Reply::says(&format!(r#"Looked at it. {{"verdict": "{verdict}", "findings": []}}"#))
            }
            _ => Reply::says(READY),
        })
        .await;
        env.write("a.txt", "old\n");
        let output = run_workflow(&env, &merging_workflow(), code);
        let log = root_log(&env.workspace());
        assert_eq!(
            last_checkpoint(&log, "review")["typed_payloads"][0]["payload"]["verdict"],
            verdict
        );
        if verdict == "approve" {
            assert_eq!(
                (env.read("a.txt").as_str(), &output["status"]),
                ("new\n", &json!("completed"))
            );
            assert!(workflow_fact_kinds(&log).contains(&"merged land".to_owned()));
        } else {
            assert_eq!(
                (env.read("a.txt").as_str(), &output["status"]),
                ("old\n", &json!("partial"))
            );
            assert_eq!(reason_of(&output, "land"), "gate_closed");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_by_its_command_is_taken_back_like_a_turn_and_known_to_who_goes_on() {
    let model = scripted_steps(|request| match (request.step(), request.turn) {
        ("share", 0) => Reply::calls("write", json!({"path": "b.txt", "content": "new\n"})),
        ("build", 0) => Reply::calls("write", json!({"path": "a.txt", "content": "new\n"})),
        ("review", _) => Reply::says(r#"{"verdict": "approve", "findings": []}"#),
        _ => Reply::says(READY),
    });
    let env = TestEnv::with_script(model).await;
    env.write("a.txt", "old\n");
    let mut steps = merging_workflow()["steps"].as_array().unwrap().clone();
    steps.push(json!({"id": "share", "task": "share: write it", "workspace": "shared", "write_set": ["b.txt"]}));
    run_workflow(&env, &workflow_spec(json!(steps)), 0);
    let log = root_log(&env.workspace());
    let texts: Vec<String> = read_events(&log)
        .iter()
        .filter(|event| event["type"] == "user_message" || event["type"] == "assistant_message")
        .map(|event| event["data"]["text"].as_str().unwrap().lines().next().unwrap().to_owned())
        .collect();
    assert!(texts[0].starts_with("Run the Workflow `a test` (wf_"), "{texts:?}");
    assert_eq!(texts[1], "Workflow `a test` completed: 4 of 4 steps ready.");

    // The next Turn of the Session contains the result of the run.
    let root = log.file_stem().unwrap().to_str().unwrap();
    let replayed =
        env.run_pixir(&["inspect-replay", root, "--json", "--items"]).assert_exit_code(0).out;
    assert!(replayed.contains("4 of 4 steps ready"), "{replayed}");

    // The child that worked in the shared Workspace is named, and must be undone first.
    let refused = env.run_pixir(&["undo", "--yes", root]).assert_exit_code(1);
    let child = last_checkpoint(&log, "share")["child_session_id"].as_str().unwrap().to_owned();
    assert!(refused.err.contains(&child), "{}", refused.err);
    env.run_pixir(&["undo", "--yes", &child]).assert_exit_code(0);
    env.run_pixir(&["undo", "--yes", root]).assert_exit_code(0);
    assert_eq!(env.read("a.txt"), "old\n");
    assert!(!env.workspace().join("b.txt").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_that_conflicts_writes_nothing_and_says_where() {
    let env = new_test_env(|request| match (request.step(), request.turn) {
        ("one", 0) => Reply::calls("write", json!({"path": "a.txt", "content": "one\n"})),
        ("two", 0) => Reply::calls("write", json!({"path": "a.txt", "content": "two\n"})),
        _ => Reply::says(READY),
    })
    .await;
    env.write("a.txt", "old\n");
    let output = run_workflow(
        &env,
        &workflow_spec(json!([
            {"id": "one", "task": "one: change it", "posture": "write"},
            {"id": "two", "task": "two: change it", "posture": "write"},
            {"id": "land1", "apply": "one"},
            {"id": "land2", "apply": "two", "depends_on": ["land1"]},
        ])),
        6,
    );
    assert_eq!(env.read("a.txt"), "one\n");
    assert_eq!(status_of(&output, "land1"), "checkpoint_ready");
    assert_eq!(
        (status_of(&output, "land2"), reason_of(&output, "land2")),
        ("failed", json!("conflicts"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_applies_has_no_more_time_than_it_was_given() {
    let env = new_test_env(|request| match (request.step(), request.turn) {
        ("build", 0) => Reply::calls("write", json!({"path": "a.txt", "content": "new\n"})),
        _ => Reply::says(READY),
    })
    .await;
    env.write("a.txt", "old\n");
    let output = run_workflow(
        &env,
        &workflow_spec(json!([
            {"id": "build", "task": "build: change it", "posture": "write"},
            {"id": "land", "apply": "build", "timeout_ms": 2000, "verify": ["sleep 600"]},
            {"id": "after", "task": "after", "role": "explorer", "depends_on": ["land"]},
        ])),
        6,
    );
    assert_eq!(
        (status_of(&output, "land"), reason_of(&output, "land")),
        ("failed", json!("timed_out"))
    );
    assert_eq!(status_of(&output, "after"), "held");
    assert_eq!(output["timed_out_steps"], json!(["land"]));
    let bundle = last_checkpoint(&root_log(&env.workspace()), "land");
    assert_eq!(bundle["verification"][0]["reason"], "cancelled");
    assert_eq!(bundle["known_limitations"], json!(["timed_out", "merged_but_not_verified"]));
    assert_eq!(env.read("a.txt"), "new\n", "a merge is never cut in the middle");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_holds_goes_on_or_ends_the_run_as_the_graph_says() {
    let answer = |request: &StepRequest| match request.step() {
        "bad" => Reply::says("no\ncheckpoint_status: failed"),
        _ => Reply::says(READY),
    };
    for (word, outcome, after, code) in [
        ("hold", "partial", "held", 6),
        ("continue", "partial", "checkpoint_ready", 6),
        ("abort", "failed", "held", 6),
    ] {
        let env = new_test_env(answer).await;
        let graph = workflow_spec(json!([
            {"id": "first", "task": "first", "role": "explorer"},
            {"id": "bad", "task": "bad", "role": "explorer", "on_failure": word, "depends_on": ["first"]},
            {"id": "after", "task": "after", "role": "explorer", "depends_on": ["bad"]},
        ]));
        let output = run_workflow(&env, &graph, code);
        assert_eq!(output["status"], outcome, "{word}");
        assert_eq!(status_of(&output, "after"), after, "{word}");
    }
    let env = new_test_env(answer).await;
    let graph = workflow_spec(json!([
        {"id": "first", "task": "first", "role": "explorer"},
        {"id": "bad", "task": "bad", "role": "explorer", "optional": true},
    ]));
    assert_eq!(
        run_workflow(&env, &graph, 0)["status"],
        "completed",
        "optional steps delay no other step"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_writes_within_its_set_or_not_at_all() {
    let env = new_test_env(|request| match (request.step(), request.turn) {
        ("one", 0) => Reply::calls("write", json!({"path": "docs/a.md", "content": "a\n"})),
        ("one", 1) => Reply::calls("write", json!({"path": "src/b.rs", "content": "b\n"})),
        ("one", 2) => Reply::calls("bash", json!({"command": "echo c > src/c.rs"})),
        _ => Reply::says(READY),
    })
    .await;
    std::fs::create_dir(env.workspace().join("src")).unwrap();
    let graph = workflow_spec(json!([
        {"id": "one", "task": "one", "posture": "write", "workspace": "shared", "write_set": ["docs/*.md"],
         "verify": ["test -d src && test -f docs/a.md"]},
    ]));
    for sandbox in ["workspace", "off"] {
        env.write("flow.json", graph.to_string());
        let args = ["workflow", "run", "flow.json", "--json", "--sandbox", sandbox];
        let output = env.run_pixir(&args).assert_exit_code(0).envelope()["output"].clone();
        assert_eq!(output["status"], "completed", "{sandbox}");
        assert_eq!(env.read("docs/a.md"), "a\n");
        let is_there = |path: &str| env.workspace().join(path).exists();
        assert!(!is_there("src/b.rs") && !is_there("src/c.rs"), "{sandbox}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changed_outside_its_set_while_a_step_ran_commands_makes_it_partial() {
    let env = new_test_env(|request| match (request.step(), request.turn) {
        ("one", 0) => {
            // Another program writes a file while the command runs.
            let ready = request.workspace.join("docs/ready");
            let stray = request.workspace.join("stray.txt");
            std::thread::spawn(move || {
                while !ready.exists() {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                std::fs::write(stray, "who?").unwrap();
            });
            let wait = "touch docs/ready; until [ -e stray.txt ]; do sleep 0.02; done";
            Reply::calls("bash", json!({ "command": wait }))
        }
        ("one", _) => {
            // A file written after the command does not belong to the step.
            std::fs::write(request.workspace.join("later.txt"), "who?").unwrap();
            Reply::says(READY)
        }
        _ => Reply::says(READY),
    })
    .await;
    std::fs::create_dir(env.workspace().join("docs")).unwrap();
    let output = run_workflow(
        &env,
        &workflow_spec(json!([
            {"id": "one", "task": "one", "posture": "write", "workspace": "shared", "write_set": ["docs/**"]},
            {"id": "two", "task": "two", "role": "explorer", "depends_on": ["one"]},
        ])),
        6,
    );
    assert_eq!(
        (status_of(&output, "one"), reason_of(&output, "one")),
        ("partial", json!("wrote_outside_write_set"))
    );
    assert_eq!(status_of(&output, "two"), "held");
    let summary = last_checkpoint(&root_log(&env.workspace()), "one")["summary"].to_string();
    assert!(summary.contains("stray.txt") && !summary.contains("later.txt"), "{summary}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_cannot_start_is_an_outcome_and_no_abort() {
    let env = new_test_env(|_| Reply::says(READY)).await;
    env.write(
        "flow.json",
        workflow_spec(json!([
            {"id": "tree", "task": "tree", "posture": "write", "workspace": "worktree"},
            {"id": "look", "task": "look", "role": "explorer"},
        ]))
        .to_string(),
    );
    // Without git, there is no worktree.
    let output =
        env.run_pixir(&["workflow", "run", "flow.json", "--json"]).assert_exit_code(6).envelope();
    let output = &output["output"];
    assert_eq!(
        (status_of(output, "tree"), status_of(output, "look")),
        ("failed", "checkpoint_ready")
    );
    assert_eq!(workflow_fact_kinds(&root_log(&env.workspace())).last().unwrap(), "finished");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_run_is_over_for_all_its_steps() {
    let env = new_test_env(|request| match request.step() {
        "slow" => Reply::calls("bash", json!({"command": "sleep 600"})),
        _ => Reply::says(READY),
    })
    .await;
    let mut graph = workflow_spec(json!([
        {"id": "slow", "task": "slow", "posture": "write", "workspace": "shared"},
        {"id": "after", "task": "after", "role": "explorer", "depends_on": ["slow"]},
        {"id": "quick", "task": "quick", "role": "explorer", "read_set": ["docs/**"]},
    ]));
    graph["limits"] = json!({"timeout_ms": 4000});
    let output = run_workflow(&env, &graph, 124);
    assert_eq!((&output["status"], &output["reason"]), (&json!("failed"), &json!("deadline")));
    assert_eq!(
        (status_of(&output, "slow"), reason_of(&output, "after")),
        ("failed", json!("deadline"))
    );
    assert_eq!(output["timed_out_steps"], json!(["slow"]));
    assert_eq!(check_family_logs(&env.workspace()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_ends_the_run_and_says_so() {
    // Either the second step exceeds the budget while it works, or the answer of the first is
    // the one that exceeds it: the answer was paid for, and counts.
    for first in [300, 900] {
        let env = new_test_env(move |request| match request.step() {
            "one" => Reply::says(READY).usage(first, 0, 100),
            _ => Reply::calls("bash", json!({"command": "sleep 600"})).usage(600, 0, 500),
        })
        .await;
        let mut graph = workflow_spec(json!([
            {"id": "one", "task": "one", "role": "explorer"},
            {"id": "two", "task": "two", "posture": "write", "workspace": "shared", "depends_on": ["one"]},
        ]));
        graph["budget"] = json!({"tokens": 1000});
        let output = run_workflow(&env, &graph, 6);
        assert_eq!(
            (&output["status"], &output["reason"]),
            (&json!("partial"), &json!("budget_exhausted"))
        );
        assert_eq!(status_of(&output, "one"), "checkpoint_ready");
        assert_ne!(status_of(&output, "two"), "checkpoint_ready");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_with_what_was_finished() {
    let env = new_test_env(|request| {
        let is_mended = request.workspace.join("mended").exists();
        match (request.step(), request.turn) {
            ("a", 0) => Reply::calls("bash", json!({"command": "echo a >> log/log.txt"})),
            ("b", 0) => Reply::calls("bash", json!({"command": "echo b >> log/log.txt"})),
            ("b", _) if !is_mended => Reply::says("checkpoint_status: failed"),
            _ => Reply::says(READY),
        }
    })
    .await;
    let graph = workflow_spec(json!([
        {"id": "a", "task": "a", "posture": "write", "workspace": "shared", "write_set": ["log/**"]},
        {"id": "b", "task": "b", "posture": "write", "workspace": "shared", "write_set": ["log/**"], "depends_on": ["a"]},
        {"id": "c", "task": "c", "role": "explorer", "depends_on": ["b"]},
    ]));
    env.write("flow.json", graph.to_string());
    std::fs::create_dir(env.workspace().join("log")).unwrap();
    let first =
        env.run_pixir(&["workflow", "run", "flow.json", "--json"]).assert_exit_code(6).envelope();
    let id = first["output"]["workflow_id"].as_str().unwrap().to_owned();
    assert_eq!(first["resume_command"], format!("pixir workflow resume {id}"));
    env.write("mended", "");
    let status = env.run_pixir(&["workflow", "status", &id]).assert_exit_code(0);
    assert!(status.out.contains("partial") && status.out.contains("resume"), "{}", status.out);
    let second =
        env.run_pixir(&["workflow", "resume", &id, "--json"]).assert_exit_code(0).envelope();
    assert_eq!(second["output"]["reused_steps"], json!(["a"]));
    assert_eq!(env.read("log/log.txt"), "a\nb\n", "what failed was taken back before it ran again");
    let over = env.run_pixir(&["workflow", "resume", &id]).assert_exit_code(2);
    assert!(over.err.contains("complete"), "{}", over.err);
    let list = env.run_pixir(&["workflow", "status"]).assert_exit_code(0);
    assert!(list.out.contains(&id) && list.out.contains("3/3 ready"), "{}", list.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_that_started_a_run_gets_the_result_of_each_step() {
    let graph = workflow_spec(json!([
        {"id": "left", "task": "left", "role": "explorer"},
        {"id": "right", "task": "right", "role": "explorer"},
    ]));
    let script = ModelScript::answering(move |request| {
        let step_request = StepRequest::from_request(request);
        if let Some(step_request) = step_request {
            return Reply::says(&format!(
                "{} is fine at a.rs:7.\ncheckpoint_status: ready",
                step_request.step()
            ));
        }
        match request.outputs().len() {
            0 => Reply::calls("run_workflow", json!({"workflow": graph})),
            _ => Reply::says("All is fine."),
        }
    });
    let env = TestEnv::with_script(script).await;
    let (conversation, status) = env.run_turn("look at both sides").await;
    assert_eq!(status, SessionStatus::Done);
    let requests = env.requests();
    let last =
        requests.iter().rfind(|request| StepRequest::from_request(request).is_none()).unwrap();
    let output = last.outputs().last().copied().unwrap();
    for words in
        ["completed: 2 of 2 steps ready", "left is fine at a.rs:7.", "right is fine at a.rs:7."]
    {
        assert!(output.contains(words), "{words}: {output}");
    }
    let asides: Vec<&str> =
        last.user_texts().into_iter().filter(|text| text.starts_with("[Subagent")).collect();
    assert!(asides.is_empty(), "the result is not sent twice: {asides:?}");
    assert_eq!(workflow_fact_kinds(conversation.log_path()).first().unwrap(), "started");
    assert_eq!(check_family_logs(&env.workspace()), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_made_after_a_crash_is_not_taken_for_the_work_of_the_run() {
    let env = new_test_env(|request| match (request.step(), request.turn) {
        ("slow", 0) => Reply::calls("bash", json!({"command": "echo half > half.txt; sleep 600"})),
        _ => Reply::says(READY),
    })
    .await;
    let graph = workflow_spec(
        json!([{"id": "slow", "task": "slow", "posture": "write", "workspace": "shared"}]),
    );
    env.write("flow.json", graph.to_string());
    let is_half = || env.workspace().join("half.txt").exists();
    tokio::task::block_in_place(|| {
        env.run_pixir_until_killed(&["workflow", "run", "flow.json"], is_half);
        std::thread::sleep(std::time::Duration::from_millis(600));
        env.write("mine.txt", "a day's work");
        let log = root_log(&env.workspace());
        let session = log.file_stem().unwrap().to_str().unwrap().to_owned();
        let output = env
            .run_pixir(&["workflow", "resume", &session, "--json"])
            .assert_exit_code(6)
            .envelope();
        assert_eq!(status_of(&output["output"], "slow"), "needs_orchestrator");
        assert_eq!(reason_of(&output["output"], "slow"), "not_taken_back");
        assert!(output["output"].to_string().contains("mine.txt"), "{output}");
        assert_eq!(env.read("mine.txt"), "a day's work");
        assert_eq!(env.read("half.txt"), "half\n", "nothing was touched");
    });
}

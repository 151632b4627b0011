//! Steps that do not state their outcome: they are asked once, and the notice is a sentence.

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::runs::{READY, new_test_env, run_workflow, status_of};
use super::scripted_steps::{StepRequest, last_checkpoint, root_log, workflow_spec};
use crate::subagents::scripted_family::{check_family_logs, read_events};
use crate::support::test_env::log_files;

fn is_asked(request: &StepRequest) -> bool {
    request.last.starts_with("Your answer does not say how the task ended.")
}

fn one_step(role: &str) -> Value {
    workflow_spec(json!([
        {"id": "quiet", "task": "quiet: look", "role": role},
        {"id": "after", "task": "after: go on", "role": "explorer", "depends_on": "quiet"},
    ]))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_is_asked_for_the_line_that_its_answer_lacks() {
    let env = new_test_env(|request| match request.step() {
        "quiet" if is_asked(request) => {
            assert!(
                request.last.contains("`checkpoint_status: checkpoint_ready`"),
                "{}",
                request.last
            );
            Reply::says("checkpoint_status: checkpoint_ready").usage(30, 0, 3)
        }
        "quiet" => Reply::says("There are two doors.").usage(20, 0, 2),
        "after" => {
            assert!(request.task.contains("There are two doors."), "{}", request.task);
            Reply::says(READY)
        }
        _ => Reply::says(READY),
    })
    .await;
    let output = run_workflow(&env, &one_step("explorer"), 0);
    assert_eq!(status_of(&output, "quiet"), "checkpoint_ready");
    let log = root_log(&env.workspace());
    let bundle = last_checkpoint(&log, "quiet");
    let summary = bundle["summary"].as_str().unwrap();
    assert!(summary.contains("There are two doors."), "{summary}");
    assert_eq!(bundle["usage"]["input_tokens"], 50, "{bundle}");
    assert_eq!(bundle["attempts"], 1);
    let lives = read_events(&log).into_iter().filter(|event| event["type"] == "subagent_event");
    let inputs = lives.filter(|event| event["data"]["event"] == "input").count();
    assert_eq!(inputs, 1, "the question is recorded");
    check_family_logs(&env.workspace());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_the_limits_of_a_run_stopped_says_how_the_run_goes_on() {
    let env = new_test_env(|_| Reply::calls("read", json!({"path": "flow.json"}))).await;
    env.write("flow.json", one_step("explorer").to_string());
    let args = ["workflow", "run", "flow.json", "--json", "--max-requests", "1"];
    let output = env.run_pixir(&args).assert_exit_code(6).envelope()["output"].clone();
    let summary = output["steps"][0]["summary"].as_str().unwrap();
    assert!(summary.contains("the run has made 1 request, its limit"), "{summary}");
    assert!(summary.contains("go on with `pixir workflow resume`, or raise"), "{summary}");
    for id in ["zzzz", "wf_0000000000"] {
        let refused = env.run_pixir(&["workflow", "status", id]).assert_exit_code(2).err;
        assert!(refused.contains(&format!("there is no run {id}")), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_asked_once_and_its_answer_counts_whatever_comes_of_that() {
    for fails in [false, true] {
        let env = new_test_env(move |request| match request.step() {
            "quiet" if is_asked(request) && fails => {
                Reply::status(400, r#"{"error": {"code": "invalid_request_error"}}"#)
            }
            "quiet" => Reply::says("Hm."),
            _ => Reply::says(READY),
        })
        .await;
        let output = run_workflow(&env, &one_step("explorer"), 6);
        assert_eq!(status_of(&output, "quiet"), "partial");
        assert_eq!(status_of(&output, "after"), "held");
        let bundle = last_checkpoint(&root_log(&env.workspace()), "quiet");
        assert_eq!(bundle["reason"], "checkpoint_not_stated");
        assert!(bundle["summary"].as_str().unwrap().starts_with("Hm."), "{bundle}");
        assert_eq!(env.requests().len(), 2, "one question, and no other step was started");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_changes_while_it_is_asked_is_held_against_its_write_set() {
    for fails in [false, true] {
        let env = new_test_env(move |request| match (request.step(), request.turn) {
            ("quiet", 0) if is_asked(request) => {
                // The sandbox prevents the command from writing it.
                let folder = request.workspace.clone();
                std::thread::spawn(move || {
                    while !folder.join("src/ready").exists() {
                        std::thread::sleep(std::time::Duration::from_millis(10));
                    }
                    std::fs::write(folder.join("other.txt"), "who?").unwrap();
                });
                let wait = "touch src/ready; until [ -e other.txt ]; do sleep 0.02; done";
                Reply::calls("bash", json!({ "command": wait }))
            }
            ("quiet", 1) if fails => {
                Reply::status(400, r#"{"error": {"code": "invalid_request_error"}}"#)
            }
            ("quiet", 1) => Reply::says("checkpoint_status: checkpoint_ready"),
            ("quiet", _) => Reply::says("Hm."),
            _ => Reply::says(READY),
        })
        .await;
        std::fs::create_dir(env.workspace().join("src")).unwrap();
        let graph = workflow_spec(json!([{
            "id": "quiet", "task": "quiet: change it", "posture": "write", "workspace": "shared", "write_set": ["src/"],
        }]));
        let output = run_workflow(&env, &graph, 6);
        assert_eq!(status_of(&output, "quiet"), "partial", "{output}");
        assert!(output.to_string().contains("other.txt"), "{output}");
        assert!(output.to_string().contains("wrote_outside_write_set"), "{output}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_outside_a_write_set_are_reported_once_also_when_checked_twice() {
    let env = new_test_env(|request| match (request.step(), request.turn) {
        ("quiet", 0) => Reply::calls("write", json!({"path": "a.txt", "content": "a\n"})),
        ("quiet", 1) if is_asked(request) => {
            Reply::calls("write", json!({"path": "b.txt", "content": "b\n"}))
        }
        ("quiet", 2) => Reply::status(400, r#"{"error": {"code": "invalid_request_error"}}"#),
        ("quiet", _) => Reply::says("Hm."),
        _ => Reply::says(READY),
    })
    .await;
    let graph = workflow_spec(json!([
        {"id": "quiet", "task": "quiet: change it", "posture": "write", "workspace": "isolated"},
    ]));
    let output = run_workflow(&env, &graph, 6);
    assert_eq!(status_of(&output, "quiet"), "partial", "{output}");
    let bundle = last_checkpoint(&root_log(&env.workspace()), "quiet");
    let artifacts = bundle["artifacts"].as_array().unwrap();
    assert_eq!((artifacts.len(), &artifacts[0]["files"]), (1, &json!(2)), "{bundle}");
    assert_eq!(bundle["written"], json!(["a.txt", "b.txt"]), "{bundle}");
    let child = bundle["child_session_id"].as_str().unwrap();
    let child = log_files(&env.workspace())
        .into_iter()
        .find(|path| path.ends_with(format!("{child}.ndjson")));
    let events = read_events(&child.unwrap());
    let question = events.iter().rfind(|event| event["type"] == "user_message").unwrap();
    assert!(bundle["child_seq"].as_u64() > question["seq"].as_u64(), "{bundle}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reviewer_is_asked_for_its_verdict() {
    let env = new_test_env(|request| match request.step() {
        "quiet" if is_asked(request) => {
            assert!(request.last.contains("End with your verdict"), "{}", request.last);
            Reply::says(r#"{"verdict": "approve", "findings": []}"#)
        }
        "quiet" => Reply::says("Looks fine to me."),
        _ => Reply::says(READY),
    })
    .await;
    let output = run_workflow(&env, &one_step("reviewer"), 0);
    assert_eq!(status_of(&output, "quiet"), "checkpoint_ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn people_are_advised_in_sentences_and_programs_by_words() {
    let env = new_test_env(|request| match request.step() {
        "quiet" => Reply::says("Hm."),
        _ => Reply::says("checkpoint_status: needs_orchestrator"),
    })
    .await;
    let graph = workflow_spec(json!([
        {"id": "quiet", "task": "quiet: look", "role": "explorer"},
        {"id": "ask", "task": "ask: look", "role": "explorer"},
        {"id": "after", "task": "after: go on", "role": "explorer", "depends_on": "quiet"},
    ]));
    env.write("flow.json", graph.to_string());
    let shown = env.run_pixir(&["workflow", "run", "flow.json"]).assert_exit_code(6).out;
    for words in [
        "- Run the steps that are not ready: pixir workflow resume wf_",
        "- quiet did not state that its task is done; read its answer",
        "- ask needs a decision, which its answer names (see what it did: pixir diagnose ",
        "- Not started because of other steps or the time limit: after",
        "quiet: partial (checkpoint not stated)",
        "ask: needs a decision (stated by subagent)",
    ] {
        assert!(shown.contains(words), "{words:?} is not in {shown}");
    }
    for token in ["inspect_step", "synthesize_from", "ask_user_or", "rerun_after", "not_stated"] {
        assert!(!shown.contains(token), "{token:?} is in {shown}");
    }
    let output = run_workflow(&env, &graph, 6);
    let actions = output["safe_next_actions"].to_string();
    assert!(actions.contains("\"inspect_step\""), "programs match these words: {actions}");
    let run = output["workflow_id"].as_str().unwrap();
    let status = env.run_pixir(&["workflow", "status", run]).assert_exit_code(0).out;
    assert!(status.contains("quiet: partial (checkpoint not stated)"), "{status}");
}

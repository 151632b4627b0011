//! Runs as shown to people and editors.

use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use super::scripted_steps::{
    StepRequest, root_log, scripted_steps, workflow_fact_kinds, workflow_spec,
};
use crate::support::BinaryEnv;
use crate::support::TestEnv;
use crate::support::acp_client::AcpClient;
use crate::support::terminal::TestTerminal;

const READY: &str = "Done.\ncheckpoint_status: checkpoint_ready";

fn graph() -> Value {
    workflow_spec(json!([
        {"id": "build", "task": "build it", "posture": "write"},
        {"id": "review", "task": "review it", "role": "reviewer", "depends_on": ["build"]},
        {"id": "land", "apply": "build", "gate": "review"},
        {"id": "never", "task": "never", "role": "explorer", "depends_on": ["quiet"]},
        {"id": "quiet", "task": "quiet", "role": "explorer"},
    ]))
}

fn answer(request: &StepRequest) -> Reply {
    match (request.step(), request.turn) {
        ("build", 0) => Reply::calls("write", json!({"path": "a.txt", "content": "new\n"})),
        ("review", _) => Reply::says(r#"{"verdict": "approve", "findings": []}"#),
        ("quiet", _) => Reply::says("Hm."),
        _ => Reply::says(READY),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_sees_steps_as_its_plan_and_as_calls() {
    let script = ModelScript::answering(|request| match StepRequest::from_request(request) {
        Some(step_request) => answer(&step_request),
        None if request.outputs().is_empty() => {
            Reply::calls("run_workflow", json!({"workflow": graph()}))
        }
        None => Reply::says("Landed."),
    });
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    tokio::task::block_in_place(|| {
        let mut client = AcpClient::initialized(&binary_env, json!({}));
        let id = client.new_session(&binary_env.workspace());
        client.call("session/set_mode", json!({"sessionId": id, "modeId": "auto"})).unwrap();
        assert_eq!(client.run_prompt(&id, "land it").unwrap()["stopReason"], "end_turn");
        let updates = client.updates();
        let plans: Vec<&Value> =
            updates.iter().filter(|update| update["sessionUpdate"] == "plan").collect();
        let entries = |plan: &Value| {
            let all = plan["entries"].as_array().unwrap().iter();
            let word = |entry: &Value| {
                format!(
                    "{} {}",
                    entry["content"].as_str().unwrap(),
                    entry["status"].as_str().unwrap()
                )
            };
            all.map(word).collect::<Vec<_>>()
        };
        let first = entries(plans[0]);
        let is_pending = |entry: &String| entry.ends_with(" pending");
        assert!(!first.is_empty() && first.iter().all(is_pending), "{plans:?}");
        assert_eq!(
            entries(plans.last().unwrap()),
            [
                "Build it completed",
                "Review it completed",
                "Apply what build changed completed",
                "Never (held) pending",
                "Quiet (partial) completed"
            ]
        );
        let calls: Vec<&str> = updates
            .iter()
            .filter(|update| update["sessionUpdate"] == "tool_call")
            .filter_map(|update| update["title"].as_str())
            .collect();
        for title in ["worker: build it", "reviewer: review it", "Apply what build changed"] {
            assert!(calls.iter().any(|own| own.starts_with(title)), "{title}: {calls:?}");
        }
        assert_eq!(std::fs::read_to_string(binary_env.workspace().join("a.txt")).unwrap(), "new\n");
        assert!(client.close_and_wait().0.success());
    });
    assert!(
        workflow_fact_kinds(&root_log(&binary_env.workspace())).contains(&"merged land".to_owned())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_envelope_has_the_words_of_every_envelope_and_what_to_do_next() {
    let env = TestEnv::with_script(scripted_steps(|request| answer(request).usage(20, 0, 5))).await;
    env.write("flow.json", graph().to_string());
    let envelope =
        env.run_pixir(&["workflow", "run", "flow.json", "--json"]).assert_exit_code(6).envelope();
    assert_eq!(
        (&envelope["status"], &envelope["error"]["kind"], &envelope["output"]["status"]),
        (&json!("incomplete"), &json!("incomplete"), &json!("partial"))
    );
    let action = envelope["error"]["details"]["next_actions"][0].as_str().unwrap();
    assert!(action.ends_with(envelope["resume_command"].as_str().unwrap()), "{action}");
    assert!(action.contains("workflow resume wf_"), "{action}");
    assert_eq!(envelope["usage"]["total_tokens"], envelope["output"]["usage"]["total_tokens"]);
    assert!(envelope["usage"]["total_tokens"].as_u64().unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_draws_where_the_graph_stands() {
    let env =
        TestEnv::with_script(scripted_steps(|request| match (request.step(), request.turn) {
            ("slow", 0) => {
                Reply::calls("bash", json!({"command": "while ! test -e go; do sleep 0.05; done"}))
            }
            _ => answer(request),
        }))
        .await;
    let steps = json!([
        {"id": "look", "task": "look", "role": "explorer"},
        {"id": "slow", "task": "slow", "posture": "write", "workspace": "shared", "depends_on": ["look"],
         "verify": ["true"]},
        {"id": "after", "task": "after", "role": "explorer", "depends_on": ["slow"]},
    ]);
    env.write("flow.json", workflow_spec(steps).to_string());
    tokio::task::block_in_place(|| {
        let mut terminal = TestTerminal::run(&env, &["workflow", "run", "flow.json"], &[]);
        terminal.wait_for_text("✓ look ready");
        terminal.wait_for_text("▸ slow");
        terminal.wait_for_text("· 1 waiting");
        env.write("go", "");
        terminal.wait_for_text("`true` passed");
        terminal.wait_for_exit();
    });
    let kinds = workflow_fact_kinds(&root_log(&env.workspace()));
    assert!(kinds.contains(&"step_scheduled slow".to_owned()), "{kinds:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_cut_off_is_offered_when_the_session_is_resumed() {
    let env = TestEnv::with_script(scripted_steps(|request| match request.step() {
        "slow" if !request.workspace.join("go").exists() => {
            Reply::calls("bash", json!({"command": "sleep 600"}))
        }
        _ => Reply::says(READY),
    }))
    .await;
    let steps = json!([
        {"id": "look", "task": "look", "role": "explorer"},
        {"id": "slow", "task": "slow", "posture": "write", "workspace": "shared", "write_set": ["out/**"], "depends_on": ["look"]},
    ]);
    env.write("flow.json", workflow_spec(steps).to_string());
    let is_slow = || {
        let logs = crate::support::test_env::log_files(&env.workspace());
        logs.iter().any(|log| std::fs::read_to_string(log).unwrap().contains("sleep 600"))
    };
    tokio::task::block_in_place(|| {
        env.run_pixir_until_killed(&["workflow", "run", "flow.json"], is_slow);
        env.write("go", "");
        let log = root_log(&env.workspace());
        let session = log.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = env.run_pixir(&["diagnose", &session]).out;
        assert!(
            text.contains("was cut off") && text.contains("pixir workflow resume wf_"),
            "{text}"
        );
        let run = text.split("pixir workflow resume ").nth(1).unwrap()[..13].to_owned();
        let listed = env.run_pixir(&["workflow", "status"]).assert_exit_code(0).out;
        assert!(listed.contains(&run) && listed.contains("interrupted"), "{listed}");
        let offered = env.run_pixir(&["workflow", "run", "flow.json"]).assert_exit_code(0).err;
        assert!(offered.contains(&format!("pixir workflow resume {run}")), "{offered}");
        let sessions = env.run_pixir(&["sessions"]).assert_exit_code(0).out;
        assert!(sessions.contains("Run the Workflow `a test`"), "{sessions}");
        env.run_pixir(&["workflow", "resume", &run]).assert_exit_code(0);
        let status = env.run_pixir(&["workflow", "status", &session]).assert_exit_code(0).out;
        assert!(status.contains("completed: 2 of 2"), "{status}");
    });
}

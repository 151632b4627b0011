//! Steps that merge: many at the same time, and in Sessions that became read-only.

use std::time::Duration;

use pixir::scripted::{ModelScript, Reply};
use pixir::{PermissionMode, SessionStatus, SettingsChange};
use serde_json::{Value, json};

use super::runs::{READY, new_test_env, run_workflow, status_of};
use super::scripted_steps::{StepRequest, last_checkpoint, workflow_spec};
use crate::subagents::scripted_family::check_family_logs;
use crate::support::TestEnv;
use crate::support::test_env::{DEADLINE, wait_for_turn_end};

/// The write sets of the steps are disjoint, so only the merges themselves exclude each other; and every
/// Event is forced to the disk while other merges wait.
#[tokio::test(flavor = "multi_thread")]
async fn many_steps_apply_at_once_and_all_of_them_land() {
    const MANY: usize = 24;
    let env = new_test_env(|request| match (request.step(), request.turn) {
        ("gate", _) => Reply::says(READY),
        (step, 0) => Reply::calls("write", json!({"path": format!("{step}/x"), "content": step})),
        _ => Reply::says(READY),
    })
    .await;
    let settings = json!({"durability": "event", "subagents": {"max_running": 32}});
    std::fs::create_dir_all(env.home().join(".pixir")).unwrap();
    std::fs::write(env.home().join(".pixir/config.json"), settings.to_string()).unwrap();
    let names: Vec<String> = (0..MANY).map(|n| format!("s{n}")).collect();
    let mut steps: Vec<Value> = names
        .iter()
        .map(|name| json!({"id": name, "task": name, "write_set": format!("{name}/")}))
        .collect();
    steps.push(json!({"id": "gate", "task": "gate", "role": "explorer", "depends_on": names}));
    steps.extend(
        names
            .iter()
            .map(|name| json!({"id": format!("land_{name}"), "apply": name, "depends_on": "gate"})),
    );
    let output = run_workflow(&env, &workflow_spec(json!(steps)), 0);
    for name in &names {
        assert_eq!(status_of(&output, &format!("land_{name}")), "checkpoint_ready", "{name}");
        assert_eq!(env.read(&format!("{name}/x")), *name);
    }
    check_family_logs(&env.workspace());
}

#[tokio::test(flavor = "multi_thread")]
async fn merges_heed_a_session_that_becomes_stricter() {
    let graph = workflow_spec(json!([
        {"id": "build", "task": "build"},
        {"id": "wait", "task": "wait", "role": "explorer", "depends_on": "build",
         "verify": ["while [ ! -e .pixir/go ]; do sleep 0.02; done"]},
        {"id": "land", "apply": "build", "depends_on": "wait"},
    ]));
    let script = ModelScript::answering(move |request| {
        match (StepRequest::from_request(request), request.outputs()) {
            (Some(step_request), _) if step_request.step() == "build" && step_request.turn == 0 => {
                Reply::calls("write", json!({"path": "a.txt", "content": "x"}))
            }
            (Some(_), _) => Reply::says(READY),
            (None, outputs) if outputs.is_empty() => {
                Reply::calls("run_workflow", json!({"workflow": graph}))
            }
            _ => Reply::says("I see."),
        }
    });
    let env = TestEnv::with_script(script).await;
    let harness = env.harness();
    let conversation = env.start_with(&harness).await;
    conversation.send(pixir::UserInput { text: "build it".to_owned() }).await.unwrap();
    let is_waiting = || {
        let asked = env.requests();
        asked
            .iter()
            .filter_map(StepRequest::from_request)
            .any(|step_request| step_request.step() == "wait")
    };
    let waiting = async {
        while !is_waiting() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.expect("the second step begins");
    let stricter =
        SettingsChange { mode: Some(PermissionMode::ReadOnly), ..SettingsChange::default() };
    harness.change_settings(&conversation, stricter).await.unwrap();
    env.write(".pixir/go", "");
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Done);
    assert!(!env.workspace().join("a.txt").exists(), "the Session is read-only");
    let land = last_checkpoint(conversation.log_path(), "land");
    assert_eq!(land["reason"], "permission_denied", "{land}");
    conversation.close().await;
}

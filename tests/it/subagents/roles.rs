//! Children with roles from files: applied in full, never wider than the parent, also after a restart.

use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use serde_json::{Value, json};

use super::scripted_family::{
    GO, always, check_family_logs, first_id, last_task, read_events, scripted_family, spawn_reply,
    subagent_events, text_reply, wait_reply,
};
use crate::support::TestEnv;
use crate::support::test_env::log_files;

const SCRIBE: &str = r#"
name = "scribe"
description = "Writes documentation"
developer_instructions = "You write documentation."
model = "m-scribe"
model_reasoning_effort = "high"
sandbox_mode = "read-only"
tools = ["read", "grep", "write"]
"#;

/// A role that may delegate, and has few other tools.
const CHIEF: &str = r#"
name = "chief"
description = "Hands out work"
developer_instructions = "You hand out work."
tools = ["read", "write", "spawn_agent", "wait_agent"]
"#;

fn plant(folder: &std::path::Path, name: &str, text: &str) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join(name), text).unwrap();
}

fn tools(request: &ReceivedRequest) -> Vec<String> {
    let tools = request.body["tools"].as_array().unwrap();
    tools.iter().filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect()
}

/// The requests of children.
fn child_requests(env: &TestEnv) -> Vec<ReceivedRequest> {
    env.requests().into_iter().filter(|request| last_task(request).is_some()).collect()
}

fn parent(env: &TestEnv) -> std::path::PathBuf {
    let is_parent = |path: &std::path::PathBuf| {
        read_events(path)[0]["data"].get("parent_session_id").is_none_or(Value::is_null)
    };
    log_files(&env.workspace()).into_iter().find(is_parent).unwrap()
}

/// Two runs of the program: one that spawns a scribe, one that tells it more.
fn twice() -> ModelScript {
    scripted_family(
        [
            spawn_reply(&["document it"], "scribe"),
            wait_reply(),
            text_reply("ok"),
            Box::new(|request| {
                Reply::calls("send_input", json!({"id": first_id(request), "text": "more"}))
            }),
            wait_reply(),
            text_reply("ok"),
        ],
        |_, step| match step {
            0 => Reply::calls("write", json!({"path": "x", "content": "x"})),
            _ => Reply::says("I could not."),
        },
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_of_a_role_from_a_file_is_what_the_file_says_also_after_a_restart() {
    let env = TestEnv::with_script(twice()).await;
    plant(&env.home().join(".pixir/agents"), "scribe.toml", SCRIBE);
    env.run_pixir(&[GO]).assert_exit_code(0);
    env.run_pixir(&["resume", "--last", "go on"]).assert_exit_code(0);
    let asked = child_requests(&env);
    assert_eq!(asked.len(), 4, "two requests in each run");
    for request in &asked {
        assert_eq!(request.body["model"], "m-scribe");
        assert_eq!(request.body["reasoning"]["effort"], "high");
        assert_eq!(tools(request), ["grep", "read"], "`write` is named, and it may only read");
        let input = request.body["input"].to_string();
        assert!(input.contains("You write documentation."), "{input}");
        assert!(input.contains("Role: scribe") && input.contains("read_only"), "{input}");
    }
    assert!(!env.workspace().join("x").exists(), "its sandbox is read-only");
    let first = &subagent_events(&parent(&env))[0];
    assert_eq!(
        (&first["agent"], &first["model"], &first["permission_mode"]),
        (&json!("scribe"), &json!("m-scribe"), &json!("read_only"))
    );
    assert_eq!(check_family_logs(&env.workspace()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_is_gone_is_said_and_its_child_is_left_alone() {
    let env = TestEnv::with_script(twice()).await;
    let folder = env.home().join(".pixir/agents");
    plant(&folder, "scribe.toml", SCRIBE);
    env.run_pixir(&[GO]).assert_exit_code(0);
    std::fs::remove_file(folder.join("scribe.toml")).unwrap();
    env.run_pixir(&["resume", "--last", "go on"]).assert_exit_code(0);
    let log = read_events(&parent(&env));
    let result = log.iter().rev().find(|event| event["data"]["error"]["kind"] == "not_found");
    let result = result.expect("the parent is told").to_string();
    assert!(result.contains("there is no role `scribe`"), "{result}");
    assert_eq!(child_requests(&env).len(), 2, "no question was asked again");
    assert_eq!(check_family_logs(&env.workspace()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_sees_the_trusted_roles_and_no_others() {
    let env =
        TestEnv::with_script(scripted_family([text_reply("ok"), text_reply("ok")], |_, _| {
            Reply::says("never")
        }))
        .await;
    let project = |env: &TestEnv| {
        let request = env.requests().pop().unwrap();
        let developer = request.input().iter().find(|item| item["role"] == "developer").cloned();
        developer.map(|item| item.to_string()).unwrap_or_default()
    };
    plant(&env.workspace().join(".pixir/agents"), "chief.toml", CHIEF);
    env.run_pixir(&["hello"]).assert_exit_code(0);
    assert!(!project(&env).contains("# Roles"), "only built-in roles");
    plant(&env.home().join(".pixir/agents"), "scribe.toml", SCRIBE);
    env.run_pixir(&["hello"]).assert_exit_code(0);
    let instructions = project(&env);
    assert!(instructions.contains("- scribe: Writes documentation"), "{instructions}");
    assert!(
        !instructions.contains("chief") && !instructions.contains("Hands out work"),
        "{instructions}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_call_names_counts_more_than_the_role() {
    let call = json!({"task": "x", "role": "scribe", "model": "other", "effort": "low"});
    let script = scripted_family(
        [always(Reply::calls("spawn_agent", call)), wait_reply(), text_reply("ok")],
        |_, _| Reply::says("done"),
    );
    let env = TestEnv::with_script(script).await;
    plant(&env.home().join(".pixir/agents"), "scribe.toml", SCRIBE);
    env.run_pixir(&[GO]).assert_exit_code(0);
    let request = &child_requests(&env)[0];
    assert_eq!(
        (&request.body["model"], &request.body["reasoning"]["effort"]),
        (&json!("other"), &json!("low"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_untrusted_role_of_a_project_starts_no_children() {
    let script = scripted_family([spawn_reply(&["x"], "scribe"), text_reply("ok")], |_, _| {
        Reply::says("never")
    });
    let env = TestEnv::with_script(script).await;
    plant(&env.workspace().join(".pixir/agents"), "scribe.toml", SCRIBE);
    env.run_pixir(&[GO]).assert_exit_code(0);
    let log = read_events(&parent(&env));
    let refused = log.iter().find(|event| event["type"] == "tool_result").unwrap();
    assert_eq!(refused["data"]["error"]["kind"], "permission_denied");
    assert!(refused.to_string().contains("pixir trust"), "{refused}");
    assert!(subagent_events(&parent(&env)).is_empty() && child_requests(&env).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_child_in_a_tree_has_a_tool_that_the_root_lacks() {
    let script = scripted_family(
        [spawn_reply(&["deep"], "worker"), wait_reply(), text_reply("ok")],
        |task, step| match (task, step) {
            ("deep", 0) => Reply::calls("spawn_agent", json!({"task": "bottom"})),
            ("deep", 1) => Reply::calls("wait_agent", json!({})),
            ("bottom", 0) => Reply::calls("bash", json!({"command": "touch made-by-bash"})),
            ("bottom", 1) => Reply::calls("write", json!({"path": "x", "content": "x"})),
            _ => Reply::says("done"),
        },
    );
    let env = TestEnv::with_script(script).await;
    plant(&env.home().join(".pixir/agents"), "chief.toml", CHIEF);
    env.run_pixir(&["--role", "chief", GO]).assert_exit_code(0);
    for request in &env.requests() {
        let own = tools(request);
        assert!(own.contains(&"read".to_owned()) && !own.contains(&"bash".to_owned()), "{own:?}");
    }
    assert!(!env.workspace().join("made-by-bash").exists());
    assert_eq!(env.read("x"), "x");
    assert_eq!(check_family_logs(&env.workspace()), 2);
}

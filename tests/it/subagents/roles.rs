//! Children of roles from files: honoured in full, never wider than their parent, also after a restart.

use pixir::scripted::{Received, Reply, Script};
use serde_json::{Value, json};

use super::cast::{GO, agree, cast, events, first_id, line, lives, says, spawns, task, waits};
use crate::support::House;
use crate::support::house::logs;

const SCRIBE: &str = r#"
name = "scribe"
description = "Writes documentation"
developer_instructions = "You write documentation."
model = "m-scribe"
model_reasoning_effort = "high"
sandbox_mode = "read-only"
tools = ["read", "grep", "write"]
"#;

/// A role that delegates, and may use little else.
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

fn tools(request: &Received) -> Vec<String> {
    let tools = request.body["tools"].as_array().unwrap();
    tools.iter().filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect()
}

/// The requests of children.
fn asked(house: &House) -> Vec<Received> {
    house.requests().into_iter().filter(|request| task(request).is_some()).collect()
}

fn parent(house: &House) -> std::path::PathBuf {
    let is_parent = |path: &std::path::PathBuf| {
        events(path)[0]["data"].get("parent_session_id").is_none_or(Value::is_null)
    };
    logs(&house.workspace()).into_iter().find(is_parent).unwrap()
}

/// Two runs of the program: one that spawns a scribe, one that tells it more.
fn twice() -> Script {
    cast(
        [
            spawns(&["document it"], "scribe"),
            waits(),
            says("ok"),
            Box::new(|request| {
                Reply::calls("send_input", json!({"id": first_id(request), "text": "more"}))
            }),
            waits(),
            says("ok"),
        ],
        |_, step| match step {
            0 => Reply::calls("write", json!({"path": "x", "content": "x"})),
            _ => Reply::says("I could not."),
        },
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_of_a_role_from_a_file_is_what_the_file_says_also_after_a_restart() {
    let house = House::scripted(twice()).await;
    plant(&house.home().join(".pixir/agents"), "scribe.toml", SCRIBE);
    house.pixir(&[GO]).exits(0);
    house.pixir(&["resume", "--last", "go on"]).exits(0);
    let asked = asked(&house);
    assert_eq!(asked.len(), 4, "two requests in each run");
    for request in &asked {
        assert_eq!(request.body["model"], "m-scribe");
        assert_eq!(request.body["reasoning"]["effort"], "high");
        assert_eq!(tools(request), ["grep", "read"], "`write` is named, and it may only read");
        let input = request.body["input"].to_string();
        assert!(input.contains("You write documentation."), "{input}");
        assert!(input.contains("Role: scribe") && input.contains("read_only"), "{input}");
    }
    assert!(!house.workspace().join("x").exists(), "its sandbox is read-only");
    let first = &lives(&parent(&house))[0];
    assert_eq!(
        (&first["agent"], &first["model"], &first["permission_mode"]),
        (&json!("scribe"), &json!("m-scribe"), &json!("read_only"))
    );
    assert_eq!(agree(&house.workspace()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_is_gone_is_said_and_its_child_is_left_alone() {
    let house = House::scripted(twice()).await;
    let folder = house.home().join(".pixir/agents");
    plant(&folder, "scribe.toml", SCRIBE);
    house.pixir(&[GO]).exits(0);
    std::fs::remove_file(folder.join("scribe.toml")).unwrap();
    house.pixir(&["resume", "--last", "go on"]).exits(0);
    let log = events(&parent(&house));
    let told = log.iter().rev().find(|event| event["data"]["error"]["kind"] == "not_found");
    let told = told.expect("the parent is told").to_string();
    assert!(told.contains("there is no role `scribe`"), "{told}");
    assert_eq!(asked(&house).len(), 2, "nobody was asked again");
    assert_eq!(agree(&house.workspace()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_is_told_which_roles_there_are_and_of_nobody_untrusted() {
    let house = House::scripted(cast([says("ok"), says("ok")], |_, _| Reply::says("never"))).await;
    let project = |house: &House| {
        let request = house.requests().pop().unwrap();
        let developer = request.input().iter().find(|item| item["role"] == "developer").cloned();
        developer.map(|item| item.to_string()).unwrap_or_default()
    };
    plant(&house.workspace().join(".pixir/agents"), "chief.toml", CHIEF);
    house.pixir(&["hello"]).exits(0);
    assert!(!project(&house).contains("# Roles"), "nobody but those of this build");
    plant(&house.home().join(".pixir/agents"), "scribe.toml", SCRIBE);
    house.pixir(&["hello"]).exits(0);
    let told = project(&house);
    assert!(told.contains("- scribe: Writes documentation"), "{told}");
    assert!(!told.contains("chief") && !told.contains("Hands out work"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_call_names_counts_more_than_the_role() {
    let call = json!({"task": "x", "role": "scribe", "model": "other", "effort": "low"});
    let script = cast([line(Reply::calls("spawn_agent", call)), waits(), says("ok")], |_, _| {
        Reply::says("done")
    });
    let house = House::scripted(script).await;
    plant(&house.home().join(".pixir/agents"), "scribe.toml", SCRIBE);
    house.pixir(&[GO]).exits(0);
    let request = &asked(&house)[0];
    assert_eq!(
        (&request.body["model"], &request.body["reasoning"]["effort"]),
        (&json!("other"), &json!("low"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_of_a_project_that_nobody_trusts_has_no_children() {
    let script = cast([spawns(&["x"], "scribe"), says("ok")], |_, _| Reply::says("never"));
    let house = House::scripted(script).await;
    plant(&house.workspace().join(".pixir/agents"), "scribe.toml", SCRIBE);
    house.pixir(&[GO]).exits(0);
    let log = events(&parent(&house));
    let refused = log.iter().find(|event| event["type"] == "tool_result").unwrap();
    assert_eq!(refused["data"]["error"]["kind"], "permission_denied");
    assert!(refused.to_string().contains("pixir trust"), "{refused}");
    assert!(lives(&parent(&house)).is_empty() && asked(&house).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_in_a_tree_has_a_tool_that_the_root_has_not() {
    let script =
        cast([spawns(&["deep"], "worker"), waits(), says("ok")], |task, step| match (task, step) {
            ("deep", 0) => Reply::calls("spawn_agent", json!({"task": "bottom"})),
            ("deep", 1) => Reply::calls("wait_agent", json!({})),
            ("bottom", 0) => Reply::calls("bash", json!({"command": "touch made-by-bash"})),
            ("bottom", 1) => Reply::calls("write", json!({"path": "x", "content": "x"})),
            _ => Reply::says("done"),
        });
    let house = House::scripted(script).await;
    plant(&house.home().join(".pixir/agents"), "chief.toml", CHIEF);
    house.pixir(&["--role", "chief", GO]).exits(0);
    for request in &house.requests() {
        let own = tools(request);
        assert!(own.contains(&"read".to_owned()) && !own.contains(&"bash".to_owned()), "{own:?}");
    }
    assert!(!house.workspace().join("made-by-bash").exists());
    assert_eq!(house.read("x"), "x");
    assert_eq!(agree(&house.workspace()), 2);
}

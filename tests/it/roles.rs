//! Stories of roles from files: chosen by name, honoured in full, never wider.

use pixir::scripted::{Reply, Script};
use serde_json::{Value, json};

use crate::support::House;
use crate::support::house::newest_log;
use crate::support::terminal::Terminal;

const SCRIBE: &str = r#"
name = "scribe"
description = "Writes # documentation"
developer_instructions = """
You write documentation.
"""
model = "m-scribe"
model_reasoning_effort = "high"
sandbox_mode = "read-only"
tools = ["read", "grep", "bash"]
"#;

async fn house() -> House {
    House::scripted(Script::answering(|_| Reply::says("all done"))).await
}

fn plant(folder: &std::path::Path, name: &str, text: &str) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join(name), text).unwrap();
}

fn log(house: &House) -> Vec<Value> {
    let log = std::fs::read_to_string(newest_log(&house.workspace())).unwrap();
    log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_of_the_user_brings_model_effort_tools_mode_and_words() {
    let house = house().await;
    plant(&house.home().join(".pixir/agents"), "scribe.toml", SCRIBE);
    house.pixir(&["--role", "scribe", "document it"]).exits(0);
    let request = &house.requests()[0];
    assert_eq!(request.body["model"], "m-scribe");
    assert_eq!(request.body["reasoning"]["effort"], "high");
    let tools = request.body["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(names, ["bash", "grep", "read"]);
    assert!(request.body["input"].to_string().contains("You write documentation."));
    let started = &log(&house)[0]["data"];
    assert_eq!(
        (&started["role"], &started["permission_mode"]),
        (&json!("scribe"), &json!("read_only"))
    );

    // Flags count more, and a resumed Session knows its role again.
    house.pixir(&["resume", "--last", "go on"]).exits(0);
    assert!(!log(&house).iter().any(|event| event["type"] == "posture_changed"));
    house.pixir(&["--role", "scribe", "--model", "other", "--effort", "low", "x"]).exits(0);
    let request = house.requests().pop().unwrap();
    assert_eq!(request.body["model"], "other");
    assert_eq!(request.body["reasoning"]["effort"], "low");

    // A role that is gone leaves a Session that may change nothing.
    std::fs::remove_file(house.home().join(".pixir/agents/scribe.toml")).unwrap();
    house.pixir(&["resume", "--last", "and now"]).exits(0);
    let input = house.requests().pop().unwrap().body["input"].to_string();
    assert!(input.contains("Role: unknown") && input.contains("read_only"), "{input}");
    assert_eq!(house.pixir(&["--role", "scribe", "x"]).exits(2).out, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_of_the_project_is_trusted_first() {
    let house = house().await;
    plant(&house.workspace().join(".codex/agents"), "scribe.toml", SCRIBE);
    plant(&house.workspace().join(".pixir/agents"), "plan.toml", &SCRIBE.replace("scribe", "plan"));
    let refused = house.pixir(&["--role", "scribe", "x"]).exits(3);
    assert!(refused.err.contains("not trusted") && refused.err.contains("pixir trust"));
    let listed = house.pixir(&["agents", "--json"]).exits(0).envelope();
    let roles = listed["output"]["roles"].as_array().unwrap();
    let scribe = roles.iter().find(|role| role["name"] == "scribe").unwrap();
    assert_eq!((&scribe["trusted"], &scribe["origin"]), (&json!(false), &json!("repo")));
    let plan = roles.iter().find(|role| role["name"] == "plan").unwrap();
    assert_eq!(plan["origin"], "built-in");
    let mut terminal = Terminal::run(&house, &["trust"], &[]);
    terminal.shows("plan.toml");
    terminal.shows("Trust this file");
    terminal.types("n\n");
    terminal.shows("scribe.toml");
    terminal.shows("developer_instructions = You write documentation.");
    terminal.types("y\n");
    assert_eq!(terminal.ends(), Some(0));
    house.pixir(&["--role", "scribe", "x"]).exits(0);
    assert_eq!(log(&house)[0]["data"]["role"], "scribe");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_checked_and_shown() {
    let house = house().await;
    let folder = house.home().join(".pixir/agents");
    plant(&folder, "scribe.toml", SCRIBE);
    let shown = house.pixir(&["agents", "show", "scribe"]).exits(0).out;
    assert!(shown.contains("m-scribe") && shown.contains("You write documentation."), "{shown}");
    assert!(house.pixir(&["agents", "show", "plan"]).exits(0).out.contains("read_only"));
    house.pixir(&["agents", "show", "nobody"]).exits(2);
    house.pixir(&["agents", "validate"]).exits(0);
    plant(&folder, "bad.toml", "name = \"bad\"\ndescription =\n");
    let checked = house.pixir(&["agents", "validate"]).exits(1);
    assert!(checked.out.contains("bad.toml: line 2: "), "{}", checked.out);
    let envelope = house.pixir(&["agents", "validate", "--json"]).exits(1).envelope();
    assert_eq!(envelope["output"]["errors"][0]["line"], 2);
    assert_eq!(envelope["error"]["kind"], "invalid_skill");
    let told = house.pixir(&["--role", "bad", "x"]).exits(1);
    assert!(told.err.contains("line 2"), "{}", told.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_stands_in_for_a_built_in_one_holds_after_a_resume() {
    let house = house().await;
    let folder = house.home().join(".pixir/agents");
    plant(&folder, "worker.toml", &SCRIBE.replace("scribe", "worker"));
    house.pixir(&["--role", "worker", "document it"]).exits(0);
    house.pixir(&["resume", "--last", "go on"]).exits(0);
    for request in house.requests() {
        let tools = request.body["tools"].as_array().unwrap();
        let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
        assert_eq!(names, ["bash", "grep", "read"]);
    }
    plant(&folder, "worker.toml", "name = \"worker\"\ndescription =\n");
    assert!(house.pixir(&["--role", "worker", "x"]).exits(1).err.contains("line 2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_of_a_file_that_only_reads_is_not_offered_what_changes_files() {
    let house = house().await;
    let folder = house.home().join(".pixir/agents");
    let scribe: Vec<&str> = SCRIBE.lines().filter(|line| !line.starts_with("tools")).collect();
    let scribe = scribe.join("\n");
    plant(&folder, "scribe.toml", &scribe);
    plant(
        &folder,
        "author.toml",
        &scribe.replace("scribe", "author").replace("read-only", "workspace-write"),
    );
    for (role, may_change) in [("scribe", false), ("author", true)] {
        house.pixir(&["--role", role, "document it"]).exits(0);
        let request = house.requests().pop().unwrap();
        let tools = request.body["tools"].as_array().unwrap();
        let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
        assert!(names.contains(&"read") && names.contains(&"spawn_agent"), "{names:?}");
        for tool in ["apply_patch", "edit", "merge_child", "write"] {
            assert_eq!(names.contains(&tool), may_change, "{role}: {names:?}");
        }
        let look = house.pixir(&["inspect-replay", "--last", "--items", "--json"]).exits(0).out;
        assert_eq!(
            look.contains("\"merge_child\""),
            may_change,
            "what is previewed is what is sent"
        );
    }
}

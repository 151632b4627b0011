//! Roles from files: chosen by name, applied in full, never wider than the settings.

use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::terminal::TestTerminal;
use crate::support::test_env::newest_log;

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

async fn new_test_env() -> TestEnv {
    TestEnv::with_script(ModelScript::answering(|_| Reply::says("all done"))).await
}

fn plant(folder: &std::path::Path, name: &str, text: &str) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join(name), text).unwrap();
}

fn log(env: &TestEnv) -> Vec<Value> {
    let log = std::fs::read_to_string(newest_log(&env.workspace())).unwrap();
    log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_of_the_user_brings_model_effort_tools_mode_and_words() {
    let env = new_test_env().await;
    plant(&env.home().join(".pixir/agents"), "scribe.toml", SCRIBE);
    env.run_pixir(&["--role", "scribe", "document it"]).assert_exit_code(0);
    let request = &env.requests()[0];
    assert_eq!(request.body["model"], "m-scribe");
    assert_eq!(request.body["reasoning"]["effort"], "high");
    let tools = request.body["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(names, ["bash", "grep", "read"]);
    assert!(request.body["input"].to_string().contains("You write documentation."));
    let started = &log(&env)[0]["data"];
    assert_eq!(
        (&started["role"], &started["permission_mode"]),
        (&json!("scribe"), &json!("read_only"))
    );

    // A resumed Session keeps its role, and flags override it.
    env.run_pixir(&["resume", "--last", "go on"]).assert_exit_code(0);
    assert!(!log(&env).iter().any(|event| event["type"] == "posture_changed"));
    env.run_pixir(&["--role", "scribe", "--model", "other", "--effort", "low", "x"])
        .assert_exit_code(0);
    let request = env.requests().pop().unwrap();
    assert_eq!(request.body["model"], "other");
    assert_eq!(request.body["reasoning"]["effort"], "low");

    // Without the file of its role, the Session becomes read-only.
    std::fs::remove_file(env.home().join(".pixir/agents/scribe.toml")).unwrap();
    env.run_pixir(&["resume", "--last", "and now"]).assert_exit_code(0);
    let input = env.requests().pop().unwrap().body["input"].to_string();
    assert!(input.contains("Role: unknown") && input.contains("read_only"), "{input}");
    assert_eq!(env.run_pixir(&["--role", "scribe", "x"]).assert_exit_code(2).out, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_of_the_project_is_trusted_first() {
    let env = new_test_env().await;
    plant(&env.workspace().join(".codex/agents"), "scribe.toml", SCRIBE);
    plant(&env.workspace().join(".pixir/agents"), "plan.toml", &SCRIBE.replace("scribe", "plan"));
    let refused = env.run_pixir(&["--role", "scribe", "x"]).assert_exit_code(3);
    assert!(refused.err.contains("not trusted") && refused.err.contains("pixir trust"));
    let listed = env.run_pixir(&["agents", "--json"]).assert_exit_code(0).envelope();
    let roles = listed["output"]["roles"].as_array().unwrap();
    let scribe = roles.iter().find(|role| role["name"] == "scribe").unwrap();
    assert_eq!((&scribe["trusted"], &scribe["origin"]), (&json!(false), &json!("repo")));
    let plan = roles.iter().find(|role| role["name"] == "plan").unwrap();
    assert_eq!(plan["origin"], "built-in");
    let mut terminal = TestTerminal::run(&env, &["trust"], &[]);
    terminal.wait_for_text("plan.toml");
    terminal.wait_for_text("Trust this file");
    terminal.type_keys("n\n");
    terminal.wait_for_text("scribe.toml");
    terminal.wait_for_text("developer_instructions = You write documentation.");
    terminal.type_keys("y\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    env.run_pixir(&["--role", "scribe", "x"]).assert_exit_code(0);
    assert_eq!(log(&env)[0]["data"]["role"], "scribe");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_checked_and_shown() {
    let env = new_test_env().await;
    let folder = env.home().join(".pixir/agents");
    plant(&folder, "scribe.toml", SCRIBE);
    let shown = env.run_pixir(&["agents", "show", "scribe"]).assert_exit_code(0).out;
    assert!(shown.contains("m-scribe") && shown.contains("You write documentation."), "{shown}");
    assert!(
        env.run_pixir(&["agents", "show", "plan"]).assert_exit_code(0).out.contains("read_only")
    );
    env.run_pixir(&["agents", "show", "nobody"]).assert_exit_code(2);
    env.run_pixir(&["agents", "validate"]).assert_exit_code(0);
    plant(&folder, "bad.toml", "name = \"bad\"\ndescription =\n");
    let checked = env.run_pixir(&["agents", "validate"]).assert_exit_code(1);
    assert!(checked.out.contains("bad.toml: line 2: "), "{}", checked.out);
    let envelope = env.run_pixir(&["agents", "validate", "--json"]).assert_exit_code(1).envelope();
    assert_eq!(envelope["output"]["errors"][0]["line"], 2);
    assert_eq!(envelope["error"]["kind"], "invalid_skill");
    let run = env.run_pixir(&["--role", "bad", "x"]).assert_exit_code(1);
    assert!(run.err.contains("line 2"), "{}", run.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_stands_in_for_a_built_in_one_holds_after_a_resume() {
    let env = new_test_env().await;
    let folder = env.home().join(".pixir/agents");
    plant(&folder, "worker.toml", &SCRIBE.replace("scribe", "worker"));
    env.run_pixir(&["--role", "worker", "document it"]).assert_exit_code(0);
    env.run_pixir(&["resume", "--last", "go on"]).assert_exit_code(0);
    let requests = env.requests();
    assert!(requests.len() >= 2, "{}", requests.len());
    for request in requests {
        let tools = request.body["tools"].as_array().unwrap();
        let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
        assert_eq!(names, ["bash", "grep", "read"]);
    }
    plant(&folder, "worker.toml", "name = \"worker\"\ndescription =\n");
    assert!(env.run_pixir(&["--role", "worker", "x"]).assert_exit_code(1).err.contains("line 2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_of_a_file_that_only_reads_is_not_offered_what_changes_files() {
    let env = new_test_env().await;
    let folder = env.home().join(".pixir/agents");
    let scribe: Vec<&str> = SCRIBE.lines().filter(|line| !line.starts_with("tools")).collect();
    let scribe = scribe.join("\n");
    plant(&folder, "scribe.toml", &scribe);
    plant(
        &folder,
        "author.toml",
        &scribe.replace("scribe", "author").replace("read-only", "workspace-write"),
    );
    for (role, may_change) in [("scribe", false), ("author", true)] {
        env.run_pixir(&["--role", role, "document it"]).assert_exit_code(0);
        let request = env.requests().pop().unwrap();
        let tools = request.body["tools"].as_array().unwrap();
        let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
        assert!(names.contains(&"read") && names.contains(&"spawn_agent"), "{names:?}");
        for tool in ["apply_patch", "edit", "merge_child", "write"] {
            assert_eq!(names.contains(&tool), may_change, "{role}: {names:?}");
        }
        let look = env
            .run_pixir(&["inspect-replay", "--last", "--items", "--json"])
            .assert_exit_code(0)
            .out;
        assert_eq!(
            look.contains("\"merge_child\""),
            may_change,
            "the previewed request is the one that is sent"
        );
    }
}

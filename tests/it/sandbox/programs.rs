//! Files that programs outside the sandbox run: commands may write them, and the end of the Turn names
//! them to the user.

use std::fs;

use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use crate::support::acp_client::AcpClient;
use crate::support::{BinaryEnv, TestEnv, test_env};

/// Replies with commands and a file tool, then an answer.
fn replies() -> Vec<Reply> {
    let bash = |command: &str| Reply::calls("bash", json!({ "command": command }));
    vec![
        bash("echo 'export A=1' > .envrc; mkdir -p .husky a/.vscode; echo x > .husky/pre-commit"),
        bash(
            "echo '{}' > a/.vscode/tasks.json; mkdir -p node_modules/m/.vscode; touch node_modules/m/.vscode/x",
        ),
        Reply::calls("write", json!({"path": ".nvim.lua", "content": "return {}\n"})),
        bash("cat .nvim.lua; touch plain.txt"),
        bash("echo changed >> .idea/workspace.xml"),
        Reply::says("done"),
    ]
}

async fn new_test_env() -> TestEnv {
    let env = TestEnv::with_replies(replies()).await;
    fs::create_dir_all(env.workspace().join(".idea")).unwrap();
    env.write(".idea/workspace.xml", "<xml/>\n");
    env.write(".idea/other.xml", "<xml/>\n");
    env
}

fn events(env: &TestEnv, kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(test_env::newest_log(&env.workspace())).unwrap();
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|event| event["type"] == kind).map(|event| event["data"].clone()).collect()
}

const NAMED: &str =
    "look at them first: .envrc, .husky/pre-commit, .idea/workspace.xml, a/.vscode/tasks.json";

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_turn_names_what_commands_wrote_and_other_programs_run() {
    let env = new_test_env().await;
    let ran = env.run_pixir(&["serve it"]).assert_exit_code(0);
    assert_eq!(ran.out, "done\n");
    assert!(ran.err.contains(NAMED), "{}", ran.err);
    assert_eq!(ran.err.matches("programs outside the sandbox run").count(), 1, "{}", ran.err);
    let answers = events(&env, "assistant_message");
    let notice = answers.last().unwrap()["metadata"]["notice"].as_str().unwrap().to_owned();
    assert!(notice.ends_with(NAMED), "{notice}");
    // The files are not altered.
    assert_eq!(env.read(".envrc"), "export A=1\n");
    assert_eq!(env.read(".husky/pre-commit"), "x\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_without_such_files_says_nothing() {
    let command = json!({"command": "echo x > src.rs; cat .envrc"});
    let env = TestEnv::with_replies([Reply::calls("bash", command), Reply::says("done")]).await;
    env.write(".envrc", "export A=1\n");
    let ran = env.run_pixir(&["serve it"]).assert_exit_code(0);
    assert_eq!(env.read("src.rs"), "x\n", "the command ran");
    assert!(!ran.err.contains("outside the sandbox"), "{}", ran.err);
    let answers = events(&env, "assistant_message");
    assert_eq!(answers.last().unwrap().get("metadata"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_fails_names_them_too() {
    let command = json!({"command": "echo x > .envrc"});
    let env = TestEnv::with_replies([Reply::calls("bash", command)]).await;
    let ran = env.run_pixir(&["--max-iterations", "1", "serve it"]);
    assert_ne!(ran.code, Some(0));
    assert!(ran.err.contains("look at them first: .envrc"), "{}", ran.err);
    let failed = events(&env, "turn_failed");
    assert!(failed[0]["notice"].as_str().unwrap().contains("first: .envrc"), "{failed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_gets_a_notice_or_a_message() {
    for takes_notices in [true, false] {
        let script = ModelScript::new([
            Reply::calls("bash", json!({"command": "echo x > .envrc"})),
            Reply::says("done"),
        ]);
        let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
        let mut client = AcpClient::start(&binary_env, &["--auto"]);
        client.initialize(if takes_notices {
            json!({"session": {"notices": {}}})
        } else {
            json!({})
        });
        let id = client.new_session(&binary_env.workspace());
        client.run_prompt(&id, "go").unwrap();
        let kind = if takes_notices { "notice" } else { "agent_message_chunk" };
        let updates = client.updates();
        let shown: Vec<String> = updates
            .iter()
            .filter(|update| update["sessionUpdate"] == kind)
            .map(Value::to_string)
            .filter(|update| update.contains("look at them first: .envrc"))
            .collect();
        assert_eq!(shown.len(), 1, "{updates:?}");
        assert!(client.close_and_wait().0.success());
    }
}

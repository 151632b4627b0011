//! Search tools: arguments, results, and records in the Log.

use pixir::PermissionMode;
use pixir::scripted::{ModelScript, Reply};
use serde_json::json;

use crate::support::{BinaryEnv, TestEnv, rendered_log};

#[tokio::test(flavor = "multi_thread")]
async fn a_model_searches_and_the_log_tells() {
    let script = ModelScript::new([
        Reply::new()
            .call("list", json!({}))
            .call("glob", json!({"pattern": "*.rs"}))
            .call("grep", json!({"pattern": "token|fn \\w+", "context": 1})),
        Reply::calls("grep", json!({"pattern": "fn (", "path": "src"})),
        Reply::calls("grep", json!({"pattern": "root", "path": "out"})),
        Reply::calls("grep", json!({"pattern": "sk-test", "all": true})),
        Reply::says("Found it."),
    ]);
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    let write = |path: &str, text: &str| {
        let path = binary_env.workspace().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write(".gitignore", "*.log\n");
    write("build.log", "fn noise\n");
    write("src/main.rs", "use std::fs;\nfn main() {}\n");
    write("src/key.rs", "// token: sk-test-of-binary-env\n");
    std::os::unix::fs::symlink("/etc", binary_env.workspace().join("out")).unwrap();
    let ended = binary_env.run(&["where is main?"]);
    ended.expect_code(0);
    // The planted secret is removed, because the leak check searches all files.
    std::fs::remove_file(binary_env.workspace().join("src/key.rs")).unwrap();
    let (_, log) = binary_env.session().unwrap();
    insta::assert_snapshot!(rendered_log::render_log(&log, &binary_env.workspace()), @r#"
    0 session_started build auto
    1 user_message "where is main?"
    2 provider_usage completed retries=0
    3 tool_call list {}
    4 tool_call glob {"pattern":"*.rs"}
    5 tool_call grep {"pattern":"token|fn \\w+","context":1}
    6 tool_result ok=true "out@\nsrc/\n[2 hidden or ignored left out; all: true includes them]\n"
    7 tool_result ok=true "src/key.rs\nsrc/main.rs\n"
    8 tool_result ok=true "src/key.rs\n1: // token: [redacted:OPENAI_API_KEY]\n\nsrc/main.rs\n1- use std::fs;\n2…"
    9 provider_usage completed retries=0
    10 tool_call grep {"pattern":"fn (","path":"src"}
    11 tool_result error invalid_args
    12 provider_usage completed retries=0
    13 tool_call grep {"pattern":"root","path":"out"}
    14 tool_result error outside_workspace
    15 provider_usage completed retries=0
    16 tool_call grep {"pattern":"sk-test","all":true}
    17 tool_result ok=true "no matches\n"
    18 provider_usage completed retries=0
    19 assistant_message final "Found it."
    "#);
}

#[tokio::test]
async fn who_may_only_look_may_search() {
    let mut env = TestEnv::with_replies([
        Reply::new()
            .call("list", json!({}))
            .call("glob", json!({"pattern": "*.txt"}))
            .call("grep", json!({"pattern": "x"})),
        Reply::calls("write", json!({"path": "b", "content": ""})),
        Reply::says("Looked."),
    ])
    .await;
    env.config.permission_mode = PermissionMode::ReadOnly;
    env.write("a.txt", "x\n");
    let (conversation, _) = env.run_turn("look").await;
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build read_only
    1 user_message "look"
    2 provider_usage completed retries=0
    3 tool_call list {}
    4 permission_decision allow reading by mode
    5 tool_call glob {"pattern":"*.txt"}
    6 permission_decision allow reading by mode
    7 tool_call grep {"pattern":"x"}
    8 permission_decision allow reading by mode
    9 tool_result ok=true "a.txt\n"
    10 tool_result ok=true "a.txt\n"
    11 tool_result ok=true "a.txt\n1: x\n"
    12 provider_usage completed retries=0
    13 tool_call write {"path":"b","content":""}
    14 permission_decision deny read_only by mode
    15 tool_result error permission_denied
    16 provider_usage completed retries=0
    17 assistant_message final "Looked."
    "#);
}

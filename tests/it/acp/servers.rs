//! MCP servers that an editor hands over with a Session.

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::{facts, stage};
use crate::mcp::server::arguments;
use crate::support::Stage;
use crate::support::editor::Editor;

fn handed_over(stage: &Stage, script: &Value) -> Value {
    let env = json!([{"name": "STORY_SERVER", "value": script.to_string()}]);
    json!([{"name": "story", "command": "/bin/sh", "args": arguments(&stage.mark), "env": env}])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_of_the_editors_server_is_called_and_the_server_goes_with_the_session() {
    let call = Reply::calls("mcp__story__echo", json!({"text": "hello"}));
    let stage = stage([call, Reply::says("Done.")]).await;
    stage.configure(&json!({"durability": "none", "mcp": {"wait_ms": 60_000}}));
    let mut editor = Editor::start(&stage, &["--auto"]);
    let hello = editor.initialize(json!({}));
    assert_eq!(hello["agentCapabilities"]["mcpCapabilities"]["http"], true);
    let servers = handed_over(&stage, &json!({}));
    let params = json!({"cwd": stage.workspace(), "mcpServers": servers});
    let made = editor.call("session/new", params).unwrap();
    let id = made["sessionId"].as_str().unwrap().to_owned();
    let answer = editor.turn(&id, "use it").unwrap();
    assert_eq!(answer, json!({"stopReason": "end_turn"}));
    let results = facts(&stage, "tool_result");
    assert_eq!(results[0]["output"], "you said hello", "{results:?}");
    assert!(stage.survivors().iter().any(|line| line.contains("a_server_when_asked")));
    editor.call("session/close", json!({"sessionId": id})).unwrap();
    let is_gone = |left: &Vec<String>| !left.iter().any(|line| line.contains("when_asked"));
    let left = crate::support::stage::wait_for(
        crate::support::house::DEADLINE,
        || stage.survivors(),
        is_gone,
    );
    assert!(is_gone(&left), "{left:?}");
    assert!(editor.end().0.success());
    stage.assert_nothing_survives();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_start_is_told_and_holds_up_nothing() {
    let stage = stage([Reply::says("Fine."), Reply::says("Still fine.")]).await;
    stage.configure(&json!({"durability": "none", "mcp": {"wait_ms": 60_000}}));
    let mut editor = Editor::start(&stage, &[]);
    editor.initialize(json!({"session": {"notices": {}}}));
    let servers = handed_over(&stage, &json!({"mode": "exit"}));
    let params = json!({"cwd": stage.workspace(), "mcpServers": servers});
    let made = editor.call("session/new", params).unwrap();
    let id = made["sessionId"].as_str().unwrap().to_owned();
    assert!(editor.turn(&id, "hi").is_ok());
    let told = editor.drain();
    let told: Vec<String> = told.iter().map(ToString::to_string).collect();
    assert!(told.iter().any(|line| line.contains("ended with exit code 3")), "{told:#?}");
    assert!(editor.end().0.success());
    stage.assert_nothing_survives();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_opened_again_has_the_servers_that_were_named_last() {
    let call = || Reply::calls("mcp__story__echo", json!({"text": "hello"}));
    let stage = stage([
        call(),
        Reply::says("one"),
        call(),
        Reply::says("two"),
        call(),
        Reply::says("three"),
    ])
    .await;
    stage.configure(&json!({"durability": "none", "mcp": {"wait_ms": 60_000}}));
    let mut editor = Editor::start(&stage, &["--auto"]);
    editor.initialize(json!({}));
    let id = editor.session(&stage.workspace());
    editor.turn(&id, "without it").unwrap();
    let servers = handed_over(&stage, &json!({}));
    let params = json!({"sessionId": id, "cwd": stage.workspace(), "mcpServers": servers});
    editor.call("session/load", params).unwrap();
    editor.turn(&id, "with it").unwrap();
    // Who does not speak of servers keeps them.
    let params = json!({"sessionId": id, "cwd": stage.workspace()});
    editor.call("session/resume", params).unwrap();
    editor.turn(&id, "still with it").unwrap();
    let results = facts(&stage, "tool_result");
    let ok: Vec<bool> = results.iter().map(|result| result["ok"] == true).collect();
    assert_eq!(ok, [false, true, true], "{results:#?}");
    // And who wants none has none.
    let params = json!({"sessionId": id, "cwd": stage.workspace(), "mcpServers": []});
    editor.call("session/resume", params).unwrap();
    let is_gone = |left: &Vec<String>| !left.iter().any(|line| line.contains("when_asked"));
    let left = crate::support::stage::wait_for(
        crate::support::house::DEADLINE,
        || stage.survivors(),
        is_gone,
    );
    assert!(is_gone(&left), "{left:?}");
    assert!(editor.end().0.success());
    stage.assert_nothing_survives();
}

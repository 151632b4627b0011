//! MCP servers that an editor hands over with a Session.

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::{facts, stage};
use crate::mcp::server::{PIXEL, arguments};
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
async fn an_image_of_a_server_reaches_the_client_as_an_image() {
    let call = Reply::calls("mcp__story__picture", json!({}));
    let stage = stage([call, Reply::says("Red.")]).await;
    stage.configure(&json!({"durability": "none", "mcp": {"wait_ms": 60_000}}));
    let mut editor = Editor::start(&stage, &["--auto"]);
    editor.initialize(json!({}));
    let servers = handed_over(&stage, &json!({}));
    let params = json!({"cwd": stage.workspace(), "mcpServers": servers});
    let made = editor.call("session/new", params).unwrap();
    editor.turn(made["sessionId"].as_str().unwrap(), "what colour?").unwrap();
    let updates = editor.updates();
    let end = updates.iter().find(|update| update["status"] == "completed").unwrap();
    let parts = end["content"].as_array().unwrap();
    let is_image = |part: &Value| part["content"]["data"] == PIXEL;
    assert!(parts.iter().any(is_image), "{end}");
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

/// What the user was told, by whichever way.
fn told(editor: &mut Editor) -> String {
    let updates = editor.updates();
    let words = updates.iter().filter_map(|update| {
        let notice = update["description"].as_str();
        notice.or_else(|| update["content"]["text"].as_str()).map(str::to_owned)
    });
    words.collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_trusted_and_what_is_broken_is_told_to_the_editors_user() {
    for capabilities in [json!({}), json!({"session": {"notices": {}}})] {
        let stage = stage([Reply::says("Fine.")]).await;
        stage.configure(&json!({"mcp_servers": {"typo": {"comand": "npx"}}}));
        let shared = json!({"mcpServers": {"guest": {"command": "/bin/false"}}});
        std::fs::write(stage.workspace().join(".mcp.json"), shared.to_string()).unwrap();
        std::fs::create_dir_all(stage.workspace().join(".pixir")).unwrap();
        let wish = json!({"permission_mode": "auto"}).to_string();
        std::fs::write(stage.workspace().join(".pixir/config.json"), wish).unwrap();
        let mut editor = Editor::start(&stage, &[]);
        editor.initialize(capabilities);
        let id = editor.session(&stage.workspace());
        assert_eq!(editor.turn(&id, "hi").unwrap()["stopReason"], "end_turn");
        let told = told(&mut editor);
        for words in [
            ".mcp.json: its MCP servers are ignored, because it is not trusted",
            "`permission_mode` ignored, because this Workspace is not trusted",
            "MCP server `typo` cannot be used: `mcp_servers.typo`: `comand` is none of",
        ] {
            assert_eq!(told.matches(words).count(), 1, "{words}: {told}");
        }
        assert!(editor.end().0.success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_silent_server_is_told_while_it_lasts() {
    for takes_notices in [false, true] {
        let stage = stage([]).await;
        stage.configure(&json!({"durability": "none", "mcp": {"wait_ms": 600_000}}));
        let mut editor = Editor::start(&stage, &[]);
        let notices = if takes_notices { json!({"session": {"notices": {}}}) } else { json!({}) };
        editor.initialize(notices);
        let servers = handed_over(&stage, &json!({"mode": "mute"}));
        let params = json!({"cwd": stage.workspace(), "mcpServers": servers});
        let made = editor.call("session/new", params).unwrap();
        let id = made["sessionId"].as_str().unwrap().to_owned();
        let prompt = editor.prompt(&id, "hi");
        let words = "MCP server `story` is still starting";
        let told = editor.wait(words, |line| line.to_string().contains(words));
        let kind = if takes_notices { "notice" } else { "agent_message_chunk" };
        assert_eq!(told["params"]["update"]["sessionUpdate"], kind);
        editor.notify("session/cancel", json!({"sessionId": id}));
        assert_eq!(editor.answer(prompt).unwrap()["stopReason"], "cancelled");
        assert!(editor.end().0.success());
        stage.assert_nothing_survives();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_about_a_server_shows_server_tool_and_arguments() {
    let args = json!({"text": "hello\u{202e}", "long": "x".repeat(30_000)});
    let call = Reply::calls("mcp__story__echo", args.clone());
    let stage = stage([call, Reply::says("Done.")]).await;
    stage.configure(&json!({"durability": "none", "mcp": {"wait_ms": 60_000}}));
    let mut editor = Editor::start(&stage, &[]);
    editor.initialize(json!({}));
    let servers = handed_over(&stage, &json!({}));
    let params = json!({"cwd": stage.workspace(), "mcpServers": servers});
    let made = editor.call("session/new", params).unwrap();
    let words = made["modes"]["availableModes"].to_string();
    assert!(words.contains("MCP servers outside it"), "{words}");
    let id = made["sessionId"].as_str().unwrap().to_owned();
    let prompt = editor.prompt(&id, "use it");
    let shown = editor.update("tool_call");
    let asked = editor.request("session/request_permission");
    let question = &asked["params"]["toolCall"];
    for title in [&shown["title"], &question["title"]] {
        let title = title.as_str().unwrap();
        assert!(title.starts_with("story: echo (text: \"hello<U+202E>\", long: \"xxx"), "{title}");
        assert!(title.chars().count() <= 201, "{title}");
    }
    let content = question["content"][0]["content"]["text"].as_str().unwrap();
    assert!(content.contains("outside the sandbox") && content.contains("the input has all"));
    assert_eq!(question["rawInput"], args);
    editor.choose(&asked, "once");
    assert_eq!(editor.answer(prompt).unwrap()["stopReason"], "end_turn");
    let decision = &facts(&stage, "permission_decision")[0];
    assert_eq!(decision["decision"], "allow", "{decision}");
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

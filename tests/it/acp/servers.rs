//! MCP servers that an editor passes with a Session.

use pixir::scripted::Reply;
use serde_json::{Value, json};

use super::{facts, new_binary_env};
use crate::mcp::server::{PIXEL, arguments};
use crate::support::BinaryEnv;
use crate::support::acp_client::AcpClient;

fn handed_over(binary_env: &BinaryEnv, script: &Value) -> Value {
    let env = json!([{"name": "STORY_SERVER", "value": script.to_string()}]);
    json!([{"name": "story", "command": "/bin/sh", "args": arguments(&binary_env.mark), "env": env}])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_of_the_editors_server_is_called_and_the_server_goes_with_the_session() {
    let call = Reply::calls("mcp__story__echo", json!({"text": "hello"}));
    let binary_env = new_binary_env([call, Reply::says("Done.")]).await;
    binary_env.configure(&json!({"durability": "none", "mcp": {"wait_ms": 60_000}}));
    let mut client = AcpClient::start(&binary_env, &["--auto"]);
    let hello = client.initialize(json!({}));
    assert_eq!(hello["agentCapabilities"]["mcpCapabilities"]["http"], true);
    let servers = handed_over(&binary_env, &json!({}));
    let params = json!({"cwd": binary_env.workspace(), "mcpServers": servers});
    let made = client.call("session/new", params).unwrap();
    let id = made["sessionId"].as_str().unwrap().to_owned();
    let answer = client.run_prompt(&id, "use it").unwrap();
    assert_eq!(answer, json!({"stopReason": "end_turn"}));
    let results = facts(&binary_env, "tool_result");
    assert_eq!(results[0]["output"], "you said hello", "{results:?}");
    assert!(binary_env.survivors().iter().any(|line| line.contains("a_server_when_asked")));
    client.call("session/close", json!({"sessionId": id})).unwrap();
    let is_gone = |left: &Vec<String>| !left.iter().any(|line| line.contains("when_asked"));
    let left = crate::support::binary_env::wait_for(
        crate::support::test_env::DEADLINE,
        || binary_env.survivors(),
        is_gone,
    );
    assert!(is_gone(&left), "{left:?}");
    assert!(client.close_and_wait().0.success());
    binary_env.assert_nothing_survives();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_of_a_server_reaches_the_client_as_an_image() {
    let call = Reply::calls("mcp__story__picture", json!({}));
    let binary_env = new_binary_env([call, Reply::says("Red.")]).await;
    binary_env.configure(&json!({"durability": "none", "mcp": {"wait_ms": 60_000}}));
    let mut client = AcpClient::start(&binary_env, &["--auto"]);
    client.initialize(json!({}));
    let servers = handed_over(&binary_env, &json!({}));
    let params = json!({"cwd": binary_env.workspace(), "mcpServers": servers});
    let made = client.call("session/new", params).unwrap();
    client.run_prompt(made["sessionId"].as_str().unwrap(), "what colour?").unwrap();
    let updates = client.updates();
    let end = updates.iter().find(|update| update["status"] == "completed").unwrap();
    let parts = end["content"].as_array().unwrap();
    let is_image = |part: &Value| part["content"]["data"] == PIXEL;
    assert!(parts.iter().any(is_image), "{end}");
    assert!(client.close_and_wait().0.success());
    binary_env.assert_nothing_survives();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_start_is_reported_and_delays_nothing() {
    let binary_env = new_binary_env([Reply::says("Fine."), Reply::says("Still fine.")]).await;
    binary_env.configure(&json!({"durability": "none", "mcp": {"wait_ms": 60_000}}));
    let mut client = AcpClient::start(&binary_env, &[]);
    client.initialize(json!({"session": {"notices": {}}}));
    let servers = handed_over(&binary_env, &json!({"mode": "exit"}));
    let params = json!({"cwd": binary_env.workspace(), "mcpServers": servers});
    let made = client.call("session/new", params).unwrap();
    let id = made["sessionId"].as_str().unwrap().to_owned();
    assert!(client.run_prompt(&id, "hi").is_ok());
    let lines = client.drain();
    let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
    assert!(lines.iter().any(|line| line.contains("ended with exit code 3")), "{lines:#?}");
    assert!(client.close_and_wait().0.success());
    binary_env.assert_nothing_survives();
}

/// The texts shown to the user, in notices or messages.
fn shown_texts(client: &mut AcpClient) -> String {
    let updates = client.updates();
    let words = updates.iter().filter_map(|update| {
        let notice = update["description"].as_str();
        notice.or_else(|| update["content"]["text"].as_str()).map(str::to_owned)
    });
    words.collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn untrusted_and_broken_servers_are_reported_to_the_editors_user() {
    for capabilities in [json!({}), json!({"session": {"notices": {}}})] {
        let binary_env = new_binary_env([Reply::says("Fine.")]).await;
        binary_env.configure(&json!({"mcp_servers": {"typo": {"comand": "npx"}}}));
        let shared = json!({"mcpServers": {"guest": {"command": "/bin/false"}}});
        std::fs::write(binary_env.workspace().join(".mcp.json"), shared.to_string()).unwrap();
        std::fs::create_dir_all(binary_env.workspace().join(".pixir")).unwrap();
        let settings = json!({"permission_mode": "auto"}).to_string();
        std::fs::write(binary_env.workspace().join(".pixir/config.json"), settings).unwrap();
        let mut client = AcpClient::start(&binary_env, &[]);
        client.initialize(capabilities);
        let id = client.new_session(&binary_env.workspace());
        assert_eq!(client.run_prompt(&id, "hi").unwrap()["stopReason"], "end_turn");
        let texts = shown_texts(&mut client);
        for words in [
            ".mcp.json: its MCP servers are ignored, because it is not trusted",
            "`permission_mode` ignored, because this Workspace is not trusted",
            "MCP server `typo` cannot be used: `mcp_servers.typo`: `comand` is none of",
        ] {
            assert_eq!(texts.matches(words).count(), 1, "{words}: {texts}");
        }
        assert!(client.close_and_wait().0.success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_silent_server_is_reported_while_it_lasts() {
    for takes_notices in [false, true] {
        let binary_env = new_binary_env([]).await;
        binary_env.configure(&json!({"durability": "none", "mcp": {"wait_ms": 600_000}}));
        let mut client = AcpClient::start(&binary_env, &[]);
        let notices = if takes_notices { json!({"session": {"notices": {}}}) } else { json!({}) };
        client.initialize(notices);
        let servers = handed_over(&binary_env, &json!({"mode": "mute"}));
        let params = json!({"cwd": binary_env.workspace(), "mcpServers": servers});
        let made = client.call("session/new", params).unwrap();
        let id = made["sessionId"].as_str().unwrap().to_owned();
        let prompt = client.send_prompt(&id, "hi");
        let words = "MCP server `story` is still starting";
        let message = client.wait_for_message(words, |line| line.to_string().contains(words));
        let kind = if takes_notices { "notice" } else { "agent_message_chunk" };
        assert_eq!(message["params"]["update"]["sessionUpdate"], kind);
        client.notify("session/cancel", json!({"sessionId": id}));
        assert_eq!(client.wait_for_answer(prompt).unwrap()["stopReason"], "cancelled");
        assert!(client.close_and_wait().0.success());
        binary_env.assert_nothing_survives();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_about_a_server_shows_server_tool_and_arguments() {
    let args = json!({"text": "hello\u{202e}", "long": "x".repeat(30_000)});
    let call = Reply::calls("mcp__story__echo", args.clone());
    let binary_env = new_binary_env([call, Reply::says("Done.")]).await;
    binary_env.configure(&json!({"durability": "none", "mcp": {"wait_ms": 60_000}}));
    let mut client = AcpClient::start(&binary_env, &[]);
    client.initialize(json!({}));
    let servers = handed_over(&binary_env, &json!({}));
    let params = json!({"cwd": binary_env.workspace(), "mcpServers": servers});
    let made = client.call("session/new", params).unwrap();
    let words = made["modes"]["availableModes"].to_string();
    assert!(words.contains("MCP servers outside it"), "{words}");
    let id = made["sessionId"].as_str().unwrap().to_owned();
    let prompt = client.send_prompt(&id, "use it");
    let shown = client.wait_for_update("tool_call");
    let asked = client.wait_for_request("session/request_permission");
    let question = &asked["params"]["toolCall"];
    for title in [&shown["title"], &question["title"]] {
        let title = title.as_str().unwrap();
        assert!(title.starts_with("story: echo (text: \"hello<U+202E>\", long: \"xxx"), "{title}");
        assert!(title.chars().count() <= 201, "{title}");
    }
    let content = question["content"][0]["content"]["text"].as_str().unwrap();
    assert!(content.contains("outside the sandbox") && content.contains("the input has all"));
    assert_eq!(question["rawInput"], args);
    client.choose(&asked, "once");
    assert_eq!(client.wait_for_answer(prompt).unwrap()["stopReason"], "end_turn");
    let decision = &facts(&binary_env, "permission_decision")[0];
    assert_eq!(decision["decision"], "allow", "{decision}");
    assert!(client.close_and_wait().0.success());
    binary_env.assert_nothing_survives();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_opened_again_has_the_servers_that_were_named_last() {
    let call = || Reply::calls("mcp__story__echo", json!({"text": "hello"}));
    let binary_env = new_binary_env([
        call(),
        Reply::says("one"),
        call(),
        Reply::says("two"),
        call(),
        Reply::says("three"),
    ])
    .await;
    binary_env.configure(&json!({"durability": "none", "mcp": {"wait_ms": 60_000}}));
    let mut client = AcpClient::start(&binary_env, &["--auto"]);
    client.initialize(json!({}));
    let id = client.new_session(&binary_env.workspace());
    client.run_prompt(&id, "without it").unwrap();
    let servers = handed_over(&binary_env, &json!({}));
    let params = json!({"sessionId": id, "cwd": binary_env.workspace(), "mcpServers": servers});
    client.call("session/load", params).unwrap();
    client.run_prompt(&id, "with it").unwrap();
    // A request that does not mention servers keeps them.
    let params = json!({"sessionId": id, "cwd": binary_env.workspace()});
    client.call("session/resume", params).unwrap();
    client.run_prompt(&id, "still with it").unwrap();
    let results = facts(&binary_env, "tool_result");
    let ok: Vec<bool> = results.iter().map(|result| result["ok"] == true).collect();
    assert_eq!(ok, [false, true, true], "{results:#?}");
    // An empty list removes them.
    let params = json!({"sessionId": id, "cwd": binary_env.workspace(), "mcpServers": []});
    client.call("session/resume", params).unwrap();
    let is_gone = |left: &Vec<String>| !left.iter().any(|line| line.contains("when_asked"));
    let left = crate::support::binary_env::wait_for(
        crate::support::test_env::DEADLINE,
        || binary_env.survivors(),
        is_gone,
    );
    assert!(is_gone(&left), "{left:?}");
    assert!(client.close_and_wait().0.success());
    binary_env.assert_nothing_survives();
}

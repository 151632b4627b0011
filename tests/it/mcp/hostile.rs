//! Hostile or broken MCP servers on stdio: the Turn ends, and memory stays bounded.

use std::time::Duration;

use pixir::SessionStatus;
use pixir::scripted::Reply;
use serde_json::json;

use super::{new_test_env, of_server, story_server};
use crate::support::TestEnv;
use crate::support::test_env::{DEADLINE, send_and_finish};

/// Runs a Turn with an unusable server; gives the notices about it.
async fn notices_of(mode: &str) -> String {
    let mut env = TestEnv::with_replies([Reply::says("Fine without it.")]).await;
    env.config.mcp.wait = DEADLINE;
    env.config.mcp.connect = Duration::from_secs(20);
    env.mcp_servers = vec![story_server(&json!({"mode": mode}))];
    let (conversation, status) = env.run_turn("hi").await;
    assert_eq!(status, SessionStatus::Done);
    assert_eq!(of_server(&env.requests()[0]), Vec::<String>::new());
    conversation.take_notices().join("\n")
}

#[tokio::test]
async fn a_program_that_ends_at_once_is_reported_with_its_last_words() {
    let notices = notices_of("exit").await;
    assert!(notices.contains("ended with exit code 3: no database at"), "{notices}");
    assert!(!notices.contains('\u{1b}'), "{notices:?}");
}

#[tokio::test]
async fn a_program_that_greets_and_ends_is_reported_with_its_exit_code() {
    for mode in ["greet_and_exit", "greet_list_and_exit"] {
        let notices = notices_of(mode).await;
        assert!(
            notices.contains("ended with exit code 3: no database after all"),
            "{mode}: {notices}"
        );
        assert!(!notices.contains("Broken pipe"), "{mode}: {notices}");
    }
}

#[tokio::test]
async fn a_program_that_reads_no_more_is_reported() {
    let notices = notices_of("greet_and_close").await;
    assert!(notices.contains("its program ended or closed its pipes"), "{notices}");
    assert!(!notices.contains("Broken pipe"), "{notices}");
}

#[tokio::test]
async fn output_without_an_end_ends_the_connection() {
    let notices = notices_of("flood").await;
    assert!(notices.contains("a line has more than"), "{notices}");
}

#[tokio::test]
async fn a_program_that_is_no_server_is_found_out() {
    let notices = notices_of("chatter").await;
    assert!(notices.contains("its output is not MCP"), "{notices}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_asks_and_does_not_listen_is_left() {
    let replies = [Reply::calls("mcp__story__pester", json!({})), Reply::says("Fine.")];
    let env = new_test_env(&json!({}), replies).await;
    let (conversation, status) = env.run_turn("ask me").await;
    assert_eq!(status, SessionStatus::Done);
    assert!(env.transcript(&conversation).contains("tool_result error mcp_server_failed"));
    // The notice of the server's end may come after the end of the Turn.
    let mut notices = String::new();
    let deadline = std::time::Instant::now() + DEADLINE;
    while !notices.contains("without reading the answers") {
        assert!(std::time::Instant::now() < deadline, "{notices}");
        notices += &conversation.take_notices().join("\n");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn an_unreadable_result_is_an_answer() {
    let notices = notices_of("abyss").await;
    assert!(notices.contains("its answer cannot be read"), "{notices}");
}

#[tokio::test]
async fn an_answer_that_is_no_result_is_reported_with_server_tool_and_flaw() {
    let replies = [Reply::calls("mcp__story__babble", json!({})), Reply::says("Fine.")];
    let env = new_test_env(&json!({"more": ["babble"]}), replies).await;
    let (conversation, status) = env.run_turn("babble").await;
    assert_eq!(status, SessionStatus::Done);
    let log = env.transcript(&conversation);
    assert!(log.contains("tool_result error mcp_server_failed"), "{log}");
    let output = env.requests().pop().unwrap().outputs().last().unwrap().to_string();
    for words in ["MCP server `story`", "the call of `babble`", "`content` is a text, not a list"] {
        assert!(output.contains(words), "{words}: {output}");
    }
}

#[tokio::test]
async fn a_server_that_never_answers_is_not_waited_for() {
    let mut env = new_test_env(&json!({"mode": "mute"}), [Reply::says("Fine.")]).await;
    env.config.mcp.wait = Duration::from_millis(100);
    let (_, status) = env.run_turn("hi").await;
    assert_eq!(status, SessionStatus::Done);
}

#[tokio::test]
async fn a_call_that_is_never_answered_ends_in_time() {
    let replies = [Reply::calls("mcp__story__wait", json!({})), Reply::says("Fine.")];
    let mut env = new_test_env(&json!({}), replies).await;
    env.config.mcp.call = Duration::from_millis(300);
    let (conversation, status) = env.run_turn("wait").await;
    assert_eq!(status, SessionStatus::Done);
    assert!(env.transcript(&conversation).contains("tool_result error timeout"));
}

#[tokio::test]
async fn bad_lines_are_skipped_and_bad_answers_are_errors() {
    let replies = [
        Reply::calls("mcp__story__echo", json!({"text": "x"})),
        Reply::calls("mcp__story__endless", json!({})),
        Reply::says("Fine."),
    ];
    let env = new_test_env(&json!({"mode": "garbage"}), replies).await;
    let (conversation, status) = env.run_turn("hi").await;
    assert_eq!(status, SessionStatus::Done);
    let log = env.transcript(&conversation);
    assert!(log.contains(r#"tool_result ok=true "you said x""#), "{log}");
    let last = env.requests().pop().unwrap();
    let endless = last.outputs().last().unwrap().to_string();
    assert!(
        endless.len() <= env.config.output_limit && endless.contains("omitted"),
        "{}",
        endless.len()
    );
    assert!(!endless.contains('\u{1b}') && !endless.contains('\u{7}'));
}

#[tokio::test]
async fn ten_thousand_tools_are_too_many() {
    let replies = [Reply::calls("mcp__story__t00001", json!({"text": "x"})), Reply::says("Ok.")];
    let env = new_test_env(&json!({"mode": "many"}), replies).await;
    let (conversation, status) = env.run_turn("hi").await;
    assert_eq!(status, SessionStatus::Done);
    assert_eq!(of_server(&env.requests()[0]).len(), 128);
    let notices = conversation.take_notices().join("\n");
    assert!(notices.contains("left out: 9872 tools beyond 128"), "{notices}");
    assert!(env.transcript(&conversation).contains(r#"ok=true "you said x""#));
}

#[tokio::test]
async fn a_huge_schema_and_hidden_words_do_not_reach_the_model() {
    let env = new_test_env(&json!({"mode": "huge"}), [Reply::says("Ok.")]).await;
    let (_, status) = env.run_turn("hi").await;
    assert_eq!(status, SessionStatus::Done);
    let request = env.requests().remove(0);
    let names = of_server(&request);
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(names.iter().all(|name| {
        name.len() <= 64 && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
    }));
    let tools = request.body["tools"].as_array().unwrap();
    let shown: String = tools[tools.len() - 3..].iter().map(ToString::to_string).collect();
    assert!(shown.len() < 64 * 1024, "{}", shown.len());
    assert!(!shown.contains('\u{202e}') && !shown.contains("\\u001b"));
}

/// Runs a Turn that calls one tool; gives its result and the notices.
async fn call_tool(tool: &str) -> (String, String) {
    let call = Reply::calls(format!("mcp__story__{tool}").as_str(), json!({}));
    let replies = [call, Reply::says("Fine."), Reply::says("Still fine.")];
    let env = new_test_env(&json!({"more": [tool]}), replies).await;
    let (conversation, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
    let output = env.requests().pop().unwrap().outputs().last().unwrap().to_string();
    assert_eq!(send_and_finish(&conversation, "and now").await, SessionStatus::Done);
    (output, conversation.take_notices().join("\n"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_answer_to_one_call_is_ignored() {
    let (output, notices) = call_tool("twice").await;
    assert!(output.contains("the first") && !output.contains("the second"), "{output}");
    assert_eq!(notices, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_may_ask_for_roots_and_gets_no_model_and_no_user() {
    let (output, _) = call_tool("ask").await;
    let output: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert!(output[0]["error"]["code"].is_i64(), "no model: {output}");
    assert!(
        output[1]["error"].is_object() || output[1]["result"]["action"] == "decline",
        "no user: {output}"
    );
    assert!(output[2]["result"]["roots"][0]["uri"].as_str().unwrap().starts_with("file:///"));
    assert_eq!(output[3]["error"]["code"], -32_601, "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_of_fifty_megabytes_ends_the_connection_and_says_why() {
    let (output, notices) = call_tool("vast").await;
    assert!(output.contains("MCP server `story`") && output.contains("`vast`"), "{output}");
    assert!(output.contains("more than 25165824 bytes"), "{output}");
    assert!(notices.contains("more than 25165824 bytes"), "{notices}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_breaks_off_in_the_middle_is_reported_with_its_end() {
    let (output, notices) = call_tool("half").await;
    assert!(output.contains("ended before it answered the call of `half`"), "{output}");
    assert!(output.contains("whether the call did anything is not known"), "{output}");
    assert!(output.contains("exit code 4"), "{output}");
    assert!(notices.contains("exit code 4: broken off"), "{notices}");
}

#[tokio::test(flavor = "multi_thread")]
async fn noise_on_standard_error_and_storms_of_notifications_pass() {
    let (output, notices) = call_tool("noise").await;
    assert!(output.contains("quiet again") && notices.is_empty(), "{output} {notices}");
    let (output, notices) = call_tool("storm").await;
    assert!(output.contains("calm again") && notices.is_empty(), "{output} {notices}");
}

#[tokio::test(flavor = "multi_thread")]
async fn words_that_act_on_a_terminal_do_not_reach_the_model() {
    let (output, _) = call_tool("turned").await;
    assert!(!output.contains(['\u{1b}', '\u{9b}']) && output.contains('c'), "{output:?}");
}

#[tokio::test]
async fn tools_that_cannot_be_read_are_left_out_and_schemas_are_mended() {
    let replies = [Reply::calls("mcp__story__echo", json!({"text": "x"})), Reply::says("Ok.")];
    let env = new_test_env(&json!({"mode": "odd"}), replies).await;
    let (conversation, status) = env.run_turn("hi").await;
    assert_eq!(status, SessionStatus::Done);
    let request = env.requests().remove(0);
    assert_eq!(of_server(&request), ["mcp__story__echo", "mcp__story__one", "mcp__story__two"]);
    let tools = request.body["tools"].as_array().unwrap();
    let open = json!({"type": "object", "properties": {}});
    assert_eq!(tools[tools.len() - 2]["parameters"], open);
    let mended = json!({"text": {"type": "string"}, "odd": {}});
    assert_eq!(tools[tools.len() - 1]["parameters"]["properties"], mended);
    let notices = conversation.take_notices().join("\n");
    assert!(notices.contains("MCP server `story`: 3 tools cannot be read"), "{notices}");
    assert!(env.transcript(&conversation).contains(r#"ok=true "you said x""#));
}

#[tokio::test]
async fn names_that_would_be_one_are_told_apart_across_servers() {
    let mut env = TestEnv::with_replies([Reply::says("Ok.")]).await;
    env.config.mcp.wait = DEADLINE;
    let with = |name: &str, tool: &str| {
        let mut server = story_server(&json!({"more": [tool]}));
        server.name = name.to_owned();
        server
    };
    env.mcp_servers = vec![with("a", "b__c"), with("a__b", "c"), with("a_", "_d")];
    let (_, status) = env.run_turn("hi").await;
    assert_eq!(status, SessionStatus::Done);
    let names = of_server(&env.requests()[0]);
    let apart: std::collections::HashSet<&String> = names.iter().collect();
    assert_eq!(apart.len(), names.len(), "{names:?}");
    assert_eq!(names.len(), 3 * 14);
}

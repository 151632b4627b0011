//! Hostile or broken MCP servers on stdio: the Turn ends, and memory stays bounded.

use std::time::Duration;

use pixir::SessionStatus;
use pixir::scripted::Reply;
use serde_json::json;

use super::{new_test_env, of_server, story};
use crate::support::TestEnv;
use crate::support::test_env::{DEADLINE, send_and_finish};

/// Runs a Turn with an unusable server; gives the notices about it.
async fn told_of(mode: &str) -> String {
    let mut env = TestEnv::with_replies([Reply::says("Fine without it.")]).await;
    env.config.mcp.wait = DEADLINE;
    env.config.mcp.connect = Duration::from_secs(20);
    env.mcp_servers = vec![story(&json!({"mode": mode}))];
    let (conversation, status) = env.run_turn("hi").await;
    assert_eq!(status, SessionStatus::Done);
    assert_eq!(of_server(&env.requests()[0]), Vec::<String>::new());
    conversation.take_notices().join("\n")
}

#[tokio::test]
async fn a_program_that_ends_at_once_is_told_with_its_last_words() {
    let told = told_of("exit").await;
    assert!(told.contains("ended with exit code 3: no database at"), "{told}");
    assert!(!told.contains('\u{1b}'), "{told:?}");
}

#[tokio::test]
async fn a_program_that_greets_and_ends_is_told_with_its_exit_code() {
    for mode in ["greet_and_exit", "greet_list_and_exit"] {
        let told = told_of(mode).await;
        assert!(told.contains("ended with exit code 3: no database after all"), "{mode}: {told}");
        assert!(!told.contains("Broken pipe"), "{mode}: {told}");
    }
}

#[tokio::test]
async fn a_program_that_reads_no_more_is_told_so() {
    let told = told_of("greet_and_close").await;
    assert!(told.contains("its program ended or closed its pipes"), "{told}");
    assert!(!told.contains("Broken pipe"), "{told}");
}

#[tokio::test]
async fn output_without_an_end_ends_the_connection() {
    let told = told_of("flood").await;
    assert!(told.contains("a line has more than"), "{told}");
}

#[tokio::test]
async fn a_program_that_is_no_server_is_found_out() {
    let told = told_of("chatter").await;
    assert!(told.contains("its output is not MCP"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_asks_and_does_not_listen_is_left() {
    let replies = [Reply::calls("mcp__story__pester", json!({})), Reply::says("Fine.")];
    let env = new_test_env(&json!({}), replies).await;
    let (conversation, status) = env.run_turn("ask me").await;
    assert_eq!(status, SessionStatus::Done);
    assert!(env.transcript(&conversation).contains("tool_result error mcp_server_failed"));
    // The notice of the server's end may come after the end of the Turn.
    let mut told = String::new();
    let deadline = std::time::Instant::now() + DEADLINE;
    while !told.contains("without reading the answers") {
        assert!(std::time::Instant::now() < deadline, "{told}");
        told += &conversation.take_notices().join("\n");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn an_answer_that_nobody_can_read_is_an_answer() {
    let told = told_of("abyss").await;
    assert!(told.contains("its answer cannot be read"), "{told}");
}

#[tokio::test]
async fn an_answer_that_is_no_result_is_told_with_server_tool_and_flaw() {
    let replies = [Reply::calls("mcp__story__babble", json!({})), Reply::says("Fine.")];
    let env = new_test_env(&json!({"more": ["babble"]}), replies).await;
    let (conversation, status) = env.run_turn("babble").await;
    assert_eq!(status, SessionStatus::Done);
    let log = env.transcript(&conversation);
    assert!(log.contains("tool_result error mcp_server_failed"), "{log}");
    let told = env.requests().pop().unwrap().outputs().last().unwrap().to_string();
    for words in ["MCP server `story`", "the call of `babble`", "`content` is a text, not a list"] {
        assert!(told.contains(words), "{words}: {told}");
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
    let told = conversation.take_notices().join("\n");
    assert!(told.contains("left out: 9872 tools beyond 128"), "{told}");
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
async fn called(tool: &str) -> (String, String) {
    let call = Reply::calls(format!("mcp__story__{tool}").as_str(), json!({}));
    let replies = [call, Reply::says("Fine."), Reply::says("Still fine.")];
    let env = new_test_env(&json!({"more": [tool]}), replies).await;
    let (conversation, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
    let told = env.requests().pop().unwrap().outputs().last().unwrap().to_string();
    assert_eq!(send_and_finish(&conversation, "and now").await, SessionStatus::Done);
    (told, conversation.take_notices().join("\n"))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_answers_twice_is_heard_once() {
    let (told, notices) = called("twice").await;
    assert!(told.contains("the first") && !told.contains("the second"), "{told}");
    assert_eq!(notices, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_may_ask_for_roots_and_gets_no_model_and_no_user() {
    let (told, _) = called("ask").await;
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert!(told[0]["error"]["code"].is_i64(), "no model: {told}");
    assert!(
        told[1]["error"].is_object() || told[1]["result"]["action"] == "decline",
        "no user: {told}"
    );
    assert!(told[2]["result"]["roots"][0]["uri"].as_str().unwrap().starts_with("file:///"));
    assert_eq!(told[3]["error"]["code"], -32_601, "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_of_fifty_megabytes_ends_the_connection_and_says_why() {
    let (told, notices) = called("vast").await;
    assert!(told.contains("MCP server `story`") && told.contains("`vast`"), "{told}");
    assert!(told.contains("more than 25165824 bytes"), "{told}");
    assert!(notices.contains("more than 25165824 bytes"), "{notices}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_breaks_off_in_the_middle_is_told_with_its_end() {
    let (told, notices) = called("half").await;
    assert!(told.contains("ended before it answered the call of `half`"), "{told}");
    assert!(told.contains("whether the call did anything is not known"), "{told}");
    assert!(told.contains("exit code 4"), "{told}");
    assert!(notices.contains("exit code 4: broken off"), "{notices}");
}

#[tokio::test(flavor = "multi_thread")]
async fn noise_on_standard_error_and_storms_of_notifications_pass() {
    let (told, notices) = called("noise").await;
    assert!(told.contains("quiet again") && notices.is_empty(), "{told} {notices}");
    let (told, notices) = called("storm").await;
    assert!(told.contains("calm again") && notices.is_empty(), "{told} {notices}");
}

#[tokio::test(flavor = "multi_thread")]
async fn words_that_act_on_a_terminal_do_not_reach_the_model() {
    let (told, _) = called("turned").await;
    assert!(!told.contains(['\u{1b}', '\u{9b}']) && told.contains('c'), "{told:?}");
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
    let told = conversation.take_notices().join("\n");
    assert!(told.contains("MCP server `story`: 3 tools cannot be read"), "{told}");
    assert!(env.transcript(&conversation).contains(r#"ok=true "you said x""#));
}

#[tokio::test]
async fn names_that_would_be_one_are_told_apart_across_servers() {
    let mut env = TestEnv::with_replies([Reply::says("Ok.")]).await;
    env.config.mcp.wait = DEADLINE;
    let with = |name: &str, tool: &str| {
        let mut server = story(&json!({"more": [tool]}));
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

//! Permission for calls of server tools: unknown effects count as mutating.

use pixir::scripted::Reply;
use pixir::{
    CallId, Conversation, Ephemeral, EventKind, PermissionAnswer, PermissionMode,
    PermissionRequest, Role, SessionStatus, UserInput, WriteGlobs,
};
use serde_json::json;

use super::server::{of_user, story_server};
use super::{new_test_env, of_server};
use crate::permissions::turn_with;
use crate::support::TestEnv;
use crate::support::test_env::{
    DEADLINE, listen_until, send_and_finish, subscribe_from_now, wait_for_turn_end,
};

async fn run_until_question(conversation: &Conversation, text: &str) -> PermissionRequest {
    let mut listener = subscribe_from_now(conversation);
    conversation.send(UserInput { text: text.to_owned() }).await.unwrap();
    let events = listen_until(&mut listener, |event| {
        matches!(event.kind(), EventKind::Ephemeral(Ephemeral::PermissionRequest(_)))
    })
    .await;
    match events.last().unwrap().kind() {
        EventKind::Ephemeral(Ephemeral::PermissionRequest(request)) => (**request).clone(),
        _ => unreachable!(),
    }
}

#[tokio::test]
async fn a_question_shows_server_tool_and_arguments() {
    let call = || Reply::calls("mcp__story__look", json!({"text": "x"}));
    let replies =
        [call(), Reply::says("One."), call(), Reply::says("Two."), call(), Reply::says("No.")];
    let env = new_test_env(&json!({}), replies).await.in_ask_mode();
    let conversation = env.start().await;
    let question = run_until_question(&conversation, "look").await;
    assert_eq!(question.tool, "mcp__story__look");
    assert_eq!(question.summary, r#"story: look (text: "x")"#);
    assert_eq!(question.args, json!({"text": "x"}));
    let call_id = CallId::new(question.call_id.to_string());
    conversation.answer(&call_id, PermissionAnswer::Session).await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Done);
    // The identical call is not asked about again in this Session.
    assert_eq!(send_and_finish(&conversation, "again").await, SessionStatus::Done);
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build ask
    1 user_message "look"
    2 provider_usage completed retries=0
    3 tool_call mcp__story__look {"text":"x"}
    4 permission_decision allow ask by user
    5 tool_result ok=true "seen"
    6 provider_usage completed retries=0
    7 assistant_message final "One."
    8 user_message "again"
    9 provider_usage completed retries=0
    10 tool_call mcp__story__look {"text":"x"}
    11 permission_decision allow ask by session
    12 tool_result ok=true "seen"
    13 provider_usage completed retries=0
    14 assistant_message final "Two."
    "#);
}

#[tokio::test]
async fn an_answer_is_bound_to_the_server_behind_the_name() {
    let call = || Reply::calls("mcp__story__look", json!({}));
    let replies = [call(), Reply::says("One."), call(), Reply::says("Two.")];
    let mut env = new_test_env(&json!({}), replies).await.in_ask_mode();
    let conversation = env.start().await;
    let question = run_until_question(&conversation, "look").await;
    conversation.answer(&question.call_id, PermissionAnswer::Project).await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Done);
    // The grant does not extend to another program under the same name.
    let mut other = story_server(&json!({}));
    if let pixir::McpTransport::Stdio { args, .. } = &mut other.transport {
        args.push("more".to_owned());
    }
    env.mcp_servers = vec![other];
    let conversation = env.start().await;
    let again = run_until_question(&conversation, "look").await;
    assert_ne!(again.digest, question.digest);
    conversation.answer(&again.call_id, PermissionAnswer::No).await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Done);
}

#[tokio::test]
async fn where_nothing_may_change_only_a_trusted_server_is_believed() {
    for is_trusted in [false, true] {
        let replies = [
            Reply::new()
                .call("mcp__story__look", json!({}))
                .call("mcp__story__echo", json!({"text": "x"})),
            Reply::says("Done."),
        ];
        let mut env = TestEnv::with_replies(replies).await;
        env.config.mcp.wait = DEADLINE;
        env.config.mcp.servers = vec![of_user(&json!({}), is_trusted)];
        env.config.permission_mode = PermissionMode::ReadOnly;
        let (conversation, status) = env.run_turn("look").await;
        assert_eq!(status, SessionStatus::Done);
        let log = env.transcript(&conversation);
        let looked = log.contains(r#"tool_result ok=true "seen""#);
        assert_eq!(looked, is_trusted, "{log}");
        assert_eq!(log.matches("error permission_denied").count(), if is_trusted { 1 } else { 2 });
    }
}

#[tokio::test]
async fn a_role_that_changes_nothing_is_offered_what_reads() {
    let mut env = TestEnv::with_replies([Reply::says("A plan.")]).await;
    env.config.mcp.wait = DEADLINE;
    env.config.mcp.servers = vec![of_user(&json!({}), true)];
    env.config.role = Role::find("plan");
    let (_, status) = env.run_turn("plan").await;
    assert_eq!(status, SessionStatus::Done);
    assert_eq!(of_server(&env.requests()[0]), ["mcp__story__look"]);
}

#[tokio::test]
async fn write_bounds_keep_other_programs_out() {
    let replies = [Reply::calls("mcp__story__echo", json!({"text": "x"})), Reply::says("Ok.")];
    let mut env = new_test_env(&json!({}), replies).await;
    env.config.writes = WriteGlobs { allow: vec!["src/**".into()], deny: Vec::new() };
    let (conversation, status) = env.run_turn("try").await;
    assert_eq!(status, SessionStatus::Done);
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build auto
    1 user_message "try"
    2 provider_usage completed retries=0
    3 tool_call mcp__story__echo {"text":"x"}
    4 permission_decision deny write_bounds by bounds
    5 tool_result error permission_denied
    6 provider_usage completed retries=0
    7 assistant_message final "Ok."
    "#);
}

#[tokio::test]
async fn secrets_of_an_entry_appear_in_no_output() {
    let replies = [Reply::calls("mcp__story__leak", json!({})), Reply::says("Ok.")];
    let mut env = new_test_env(&json!({}), replies).await;
    if let pixir::McpTransport::Stdio { env, .. } = &mut env.mcp_servers[0].transport {
        env.push(("SERVER_TOKEN".to_owned(), "sk-planted-key".to_owned()));
    }
    let (conversation, status) = env.run_turn("leak").await;
    assert_eq!(status, SessionStatus::Done);
    let log = env.transcript(&conversation);
    assert!(log.contains("[redacted:SERVER_TOKEN]"), "{log}");
    let sent = env.requests().pop().unwrap().body_text;
    assert!(!sent.contains("sk-planted-key"));
}

#[tokio::test]
async fn a_tool_of_a_server_is_allowed_for_a_session_whatever_its_arguments() {
    let replies = [
        Reply::calls("mcp__story__echo", json!({"text": "one"})),
        Reply::calls("mcp__story__echo", json!({"text": "two"})),
        Reply::calls("mcp__story__look", json!({})),
        Reply::says("Done."),
    ];
    let env = new_test_env(&json!({}), replies).await.in_ask_mode();
    let conversation = env.start().await;
    let questions = turn_with(&conversation, "go", |request| match request.tool.as_str() {
        "mcp__story__echo" => PermissionAnswer::SessionTool.into(),
        _ => PermissionAnswer::No.into(),
    })
    .await;
    let tools: Vec<&str> = questions.iter().map(|asked| asked.tool.as_str()).collect();
    assert_eq!(tools, ["mcp__story__echo", "mcp__story__look"], "another tool is asked about");
    let log = env.transcript(&conversation);
    assert!(log.contains("permission_decision allow ask by session_tool"), "{log}");
    assert!(log.contains(r#"tool_result ok=true "you said two""#), "{log}");
}

//! MCP servers: their tools, their results in the Log, and their failures.

/// `pixir mcp`, and servers from a Workspace.
mod cli;
/// The reference server of the protocol.
mod everything;
/// Hostile or broken servers on stdio.
mod hostile;
/// Hostile or broken servers over HTTP.
mod hostile_web;
/// Lifecycle of servers.
mod life;
/// Permission for calls.
mod permission;
/// A scripted server on stdio.
pub mod server;
/// A scripted server over HTTP.
pub mod web;

use std::time::{Duration, Instant};

use pixir::scripted::{ReceivedRequest, Reply};
use pixir::{Conversation, Ephemeral, EventKind, SessionStatus, UserInput};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::test_env::{
    DEADLINE, listen_until, send_and_finish, subscribe_from_now, wait_for_turn_end,
};
use server::story_server;

/// A test environment with one MCP server, passed as an editor would pass it.
async fn new_test_env(script: &Value, replies: impl IntoIterator<Item = Reply>) -> TestEnv {
    let mut env = TestEnv::with_replies(replies).await;
    env.config.mcp.wait = DEADLINE;
    env.mcp_servers = vec![story_server(script)];
    env
}

/// The names of the tools that a request offers, in their order.
fn offered(request: &ReceivedRequest) -> Vec<String> {
    let tools = request.body["tools"].as_array().unwrap();
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

fn of_server(request: &ReceivedRequest) -> Vec<String> {
    offered(request).into_iter().filter(|name| name.starts_with("mcp__")).collect()
}

#[tokio::test]
async fn a_tool_of_a_server_is_called_and_its_answer_is_in_the_log() {
    let env = new_test_env(
        &json!({"instructions": "Say \u{202e}please."}),
        [
            Reply::calls("mcp__story__echo", json!({"text": "hello"})),
            Reply::calls("mcp__story__echo", json!({"text": 7})),
            Reply::calls("mcp__story__fail", json!({})),
            Reply::calls("mcp__story__refuse", json!({})),
            Reply::calls("mcp__story__structured", json!({})),
            Reply::says("Done."),
            Reply::says("Again."),
        ],
    )
    .await;
    let (conversation, status) = env.run_turn("use the server").await;
    assert_eq!(status, SessionStatus::Done);
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build auto
    1 user_message "use the server"
    2 provider_usage completed retries=0
    3 tool_call mcp__story__echo {"text":"hello"}
    4 tool_result ok=true "you said hello"
    5 provider_usage completed retries=0
    6 tool_call mcp__story__echo {"text":7}
    7 tool_result error invalid_args
    8 provider_usage completed retries=0
    9 tool_call mcp__story__fail {}
    10 tool_result ok=false "it broke"
    11 provider_usage completed retries=0
    12 tool_call mcp__story__refuse {}
    13 tool_result error mcp_server_failed
    14 provider_usage completed retries=0
    15 tool_call mcp__story__structured {}
    16 tool_result ok=true "{\"answer\":42}"
    17 provider_usage completed retries=0
    18 assistant_message final "Done."
    "#);
    assert_eq!(send_and_finish(&conversation, "and now").await, SessionStatus::Done);
    let requests = env.requests();
    let names = offered(&requests[0]);
    let own = names.iter().take_while(|name| !name.starts_with("mcp__")).count();
    assert!(own >= 13 && names[own..].iter().all(|name| name.starts_with("mcp__")), "{names:?}");
    assert!(names[own..].is_sorted(), "{names:?}");
    let tools: Vec<&Value> = requests.iter().map(|request| &request.body["tools"]).collect();
    assert!(tools.iter().all(|one| *one == tools[0]), "the prefix stays as it is");
    let context = requests[0].input().iter().find(|item| item["role"] == "developer").unwrap();
    assert!(context.to_string().contains("story: Say please."), "{context}");
}

#[tokio::test]
async fn an_image_of_a_server_is_shown_to_the_model() {
    let replies = [Reply::calls("mcp__story__picture", json!({})), Reply::says("Red.")];
    let env = new_test_env(&json!({}), replies).await;
    let (conversation, status) = env.run_turn("what colour?").await;
    assert_eq!(status, SessionStatus::Done);
    let images: Vec<String> =
        env.requests().last().unwrap().images().into_iter().map(str::to_owned).collect();
    assert_eq!(images, [format!("data:image/png;base64,{}", server::PIXEL)]);
    let log = std::fs::read_to_string(conversation.log_path()).unwrap();
    assert!(!log.contains(server::PIXEL) && log.contains("image/png"), "no bytes in the Log");
}

#[tokio::test]
async fn progress_is_reported_while_a_call_runs() {
    let replies = [Reply::calls("mcp__story__slow", json!({})), Reply::says("Done.")];
    let env = new_test_env(&json!({}), replies).await;
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "go".into() }).await.unwrap();
    let events = listen_until(&mut listener, |event| {
        matches!(event.kind(), EventKind::Ephemeral(Ephemeral::Status(SessionStatus::Done)))
    })
    .await;
    let pieces: Vec<String> = events
        .iter()
        .filter_map(|event| match event.kind() {
            EventKind::Ephemeral(Ephemeral::ToolOutputDelta { chunk, .. }) => Some(chunk.clone()),
            _ => None,
        })
        .collect();
    assert!(pieces.contains(&"2/3 step 2\n".to_owned()), "{pieces:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_reaches_the_server_and_the_server_lives_on() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("heard");
    let replies = [
        Reply::calls("mcp__story__wait", json!({})),
        Reply::calls("mcp__story__echo", json!({"text": "still here?"})),
        Reply::says("Yes."),
    ];
    let env = new_test_env(&json!({"log": log}), replies).await;
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "wait".into() }).await.unwrap();
    listen_until(&mut listener, |event| {
        matches!(
            event.kind(),
            EventKind::Ephemeral(Ephemeral::Status(SessionStatus::Working { .. }))
        )
    })
    .await;
    wait_for_request(&log, "tools/call");
    conversation.interrupt().await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Interrupted);
    let cancelled = wait_for_request(&log, "notifications/cancelled");
    let asked = wait_for_request(&log, "tools/call");
    assert_eq!(cancelled["params"]["requestId"], asked["id"]);
    assert_eq!(send_and_finish(&conversation, "go on").await, SessionStatus::Done);
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build auto
    1 user_message "wait"
    2 provider_usage completed retries=0
    3 tool_call mcp__story__wait {}
    4 tool_result error interrupted
    5 turn_failed interrupted interrupted
    6 user_message "go on"
    7 provider_usage completed retries=0
    8 tool_call mcp__story__echo {"text":"still here?"}
    9 tool_result ok=true "you said still here?"
    10 provider_usage completed retries=0
    11 assistant_message final "Yes."
    "#);
}

/// Waits until the server has recorded a message with this method, and gives it.
fn wait_for_request(log: &std::path::Path, method: &str) -> Value {
    let start = Instant::now();
    loop {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        if let Some(found) = lines.into_iter().find(|message| message["method"] == method) {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "{method} never came: {text}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test]
async fn tools_that_are_new_join_at_the_next_turn() {
    let replies = [
        Reply::calls("mcp__story__grow", json!({})),
        Reply::calls("mcp__story__grown", json!({"text": "too early"})),
        Reply::says("Later."),
    ];
    let replies = replies.into_iter().chain((0..500).map(|_| Reply::says("Ok.")));
    let env = new_test_env(&json!({}), replies).await;
    let (conversation, status) = env.run_turn("grow").await;
    assert_eq!(status, SessionStatus::Done);
    let requests = env.requests();
    assert!(requests.iter().all(|one| !offered(one).contains(&"mcp__story__grown".to_owned())));
    assert!(env.transcript(&conversation).contains("tool_result error unknown_tool"));
    until_offered(&env, &conversation, "mcp__story__grown").await;
}

/// Runs Turns until a tool is offered.
async fn until_offered(env: &TestEnv, conversation: &Conversation, name: &str) {
    let start = Instant::now();
    loop {
        assert_eq!(send_and_finish(conversation, "look").await, SessionStatus::Done);
        if offered(env.requests().last().unwrap()).contains(&name.to_owned()) {
            return;
        }
        assert!(start.elapsed() < DEADLINE, "{name} was never offered");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_slow_server_does_not_delay_a_turn_and_joins_later() {
    let mut env =
        new_test_env(&json!({"delay_ms": 300}), (0..500).map(|_| Reply::says("Ok."))).await;
    env.config.mcp.wait = Duration::from_millis(1);
    let conversation = env.start().await;
    assert_eq!(send_and_finish(&conversation, "hi").await, SessionStatus::Done);
    assert_eq!(of_server(&env.requests()[0]), Vec::<String>::new());
    until_offered(&env, &conversation, "mcp__story__echo").await;
}

#[tokio::test]
async fn a_wait_that_is_noticed_is_explained() {
    let env = new_test_env(&json!({"mode": "mute"}), [Reply::says("Fine.")]).await;
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "hi".into() }).await.unwrap();
    let events = listen_until(&mut listener, |event| {
        matches!(
            event.kind(),
            EventKind::Ephemeral(Ephemeral::Status(SessionStatus::Starting { .. }))
        )
    })
    .await;
    let event = serde_json::to_value(&**events.last().unwrap()).unwrap();
    assert_eq!(event["data"], json!({"status": "starting", "servers": ["story"]}));
    conversation.interrupt().await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Interrupted);
    assert!(env.requests().is_empty(), "the model was not asked yet");
}

#[tokio::test]
async fn a_turn_that_goes_on_without_a_server_says_so_once() {
    let mut env =
        new_test_env(&json!({"mode": "mute"}), [Reply::says("Fine."), Reply::says("Again.")]).await;
    env.config.mcp.wait = Duration::from_millis(50);
    let (conversation, status) = env.run_turn("hi").await;
    assert_eq!(status, SessionStatus::Done);
    let words = "MCP server `story` is still starting: the tools are available in a later Turn";
    assert_eq!(conversation.take_notices(), [words]);
    assert_eq!(send_and_finish(&conversation, "again").await, SessionStatus::Done);
    assert!(conversation.take_notices().is_empty());
}

#[tokio::test]
async fn a_server_that_dies_is_started_again_and_reported() {
    let replies = [
        Reply::calls("mcp__story__die", json!({})),
        Reply::calls("mcp__story__echo", json!({"text": "back?"})),
        Reply::says("It is back."),
    ];
    let env = new_test_env(&json!({}), replies).await;
    let (conversation, status) = env.run_turn("kill it").await;
    assert_eq!(status, SessionStatus::Done);
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build auto
    1 user_message "kill it"
    2 provider_usage completed retries=0
    3 tool_call mcp__story__die {}
    4 tool_result error mcp_server_failed
    5 provider_usage completed retries=0
    6 tool_call mcp__story__echo {"text":"back?"}
    7 tool_result ok=true "you said back?"
    8 provider_usage completed retries=0
    9 assistant_message final "It is back."
    "#);
    let notices = conversation.take_notices();
    assert!(notices[0].contains("exit code 9: dying as asked"), "{notices:?}");
    assert!(notices[1].contains("is back"), "{notices:?}");
    assert!(conversation.take_notices().is_empty(), "each notice is shown once");
}

#[tokio::test]
async fn a_call_after_a_crash_is_made_again_and_not_blamed() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("heard");
    let replies = [
        Reply::new()
            .call("mcp__story__leave", json!({}))
            .call("mcp__story__echo", json!({"text": "anybody?"})),
        Reply::says("Fine."),
    ];
    let env = new_test_env(&json!({"log": log, "more": ["leave"]}), replies).await;
    let (conversation, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
    let transcript = env.transcript(&conversation);
    assert!(transcript.contains(r#"tool_result ok=true "leaving""#), "{transcript}");
    assert!(transcript.contains(r#"tool_result ok=true "you said anybody?""#), "{transcript}");
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text.matches("anybody?").count(), 1, "the request came once: {text}");
    assert_eq!(text.matches("\"initialize\"").count(), 2, "{text}");
}

#[tokio::test]
async fn a_tool_of_a_server_that_is_starting_or_gone_says_so() {
    for (mode, words) in [
        (
            "mute",
            "MCP server `story` is still starting, so `mcp__story__echo` cannot be called yet",
        ),
        ("exit", "its program ended with exit code 3"),
    ] {
        let replies = [
            Reply::calls("mcp__story__echo", json!({"text": "x"})),
            Reply::calls("mcp__other__echo", json!({"text": "x"})),
            Reply::says("Later."),
        ];
        let mut env = new_test_env(&json!({ "mode": mode }), replies).await;
        env.config.mcp.wait = match mode {
            "mute" => Duration::from_millis(1),
            _ => DEADLINE,
        };
        let (_, status) = env.run_turn("go").await;
        assert_eq!(status, SessionStatus::Done);
        let requests = env.requests();
        let outputs = requests[2].outputs();
        assert!(
            outputs[0].contains(words) && !outputs[0].contains("there is no tool"),
            "{outputs:?}"
        );
        assert!(outputs[1].contains("there is no tool `mcp__other__echo`"), "{outputs:?}");
    }
}

#[tokio::test]
async fn a_long_answer_is_bounded_and_the_rest_is_read_by_its_path() {
    let answer = |request: &ReceivedRequest| match request.outputs().as_slice() {
        [] => Reply::calls("mcp__story__long", json!({})),
        [long] => {
            let path = long.rsplit_once("bytes: ").unwrap().1.split(']').next().unwrap();
            Reply::calls("read", json!({"path": path, "offset": 2500, "limit": 1}))
        }
        [long, _] => {
            let path = long.rsplit_once("bytes: ").unwrap().1.split(']').next().unwrap();
            Reply::calls("grep", json!({"path": path, "pattern": "^row 4321:"}))
        }
        _ => Reply::says("Done."),
    };
    let mut env = TestEnv::with_script(pixir::scripted::ModelScript::answering(answer)).await;
    env.config.mcp.wait = DEADLINE;
    let mut server = story_server(&json!({"more": ["long"]}));
    if let pixir::McpTransport::Stdio { env, .. } = &mut server.transport {
        env.push(("SERVER_TOKEN".to_owned(), "sk-planted-key".to_owned()));
    }
    env.mcp_servers = vec![server];
    let (conversation, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
    let last = env.requests().pop().unwrap();
    let outputs = last.outputs();
    let shown = outputs[0];
    assert!(shown.len() <= env.config.output_limit, "{}", shown.len());
    assert!(shown.starts_with("row 0: ") && shown.contains("row 4999: "), "head and tail: {shown}");
    assert!(shown.contains("lines omitted") && !shown.contains("row 2500: "), "{shown}");
    assert!(outputs[1].contains("row 2499: [redacted:SERVER_TOKEN]"), "{}", outputs[1]);
    assert!(outputs[2].contains("row 4321: "), "{}", outputs[2]);
    let written = std::fs::read_to_string(conversation.log_path()).unwrap();
    assert!(
        written.contains("\"output_path\":") && written.contains("\"output_bytes\":"),
        "{written}"
    );
}

#[tokio::test]
async fn a_reattached_conversation_shares_the_servers_of_its_session() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("heard");
    let env = new_test_env(&json!({"log": log}), (0..4).map(|_| Reply::says("Ok."))).await;
    let harness = env.harness();
    let start = |session| pixir::StartOptions {
        workspace: env.workspace(),
        session,
        can_ask: false,
        mcp_servers: env.mcp_servers.clone(),
    };
    let one = harness.start(start(pixir::SessionTarget::New)).await.unwrap();
    assert_eq!(send_and_finish(&one, "hi").await, SessionStatus::Done);
    let two = harness.start(start(pixir::SessionTarget::Resume(one.id().clone()))).await.unwrap();
    assert_eq!(send_and_finish(&two, "hi").await, SessionStatus::Done);
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text.matches("\"initialize\"").count(), 1, "{text}");
}

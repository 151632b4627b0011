//! Transports: uploaded bytes, continuation of responses, and usage records.

use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use pixir::{Conversation, SessionStatus, TransportSetting};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::test_env::send_and_finish;
use crate::support::torture;

/// Number of calls in the long Turn.
const CALLS: usize = 50;

async fn new_test_env(script: ModelScript, transport: TransportSetting) -> TestEnv {
    let mut env = TestEnv::with_script(script).await;
    env.config.transport = Some(transport);
    env
}

/// The `provider_usage` Events of a Session.
fn usages(conversation: &Conversation) -> Vec<Value> {
    let text = std::fs::read_to_string(conversation.log_path()).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events
        .filter(|event| event["type"] == "provider_usage")
        .map(|event| event["data"].clone())
        .collect()
}

/// Head, input and tail of a body.
fn parts(request: &ReceivedRequest) -> (&str, &str, &str) {
    let text = &request.body_text;
    let start = text.find("\"input\":[").unwrap() + "\"input\":".len();
    let end = text.find("],\"tools\":").unwrap() + 1;
    (&text[..start], &text[start..end], &text[end..])
}

/// Replies that read a different file in each call, then answer.
fn reader(request: &ReceivedRequest) -> Reply {
    match request.outputs().len() {
        CALLS => Reply::says("I have read them all."),
        read => {
            Reply::new().reasoning("Next.").call("read", json!({"path": format!("{read}.txt")}))
        }
    }
}

async fn long_turn(transport: TransportSetting) -> (TestEnv, Conversation) {
    let env = new_test_env(ModelScript::answering(reader), transport).await;
    for file in 0..CALLS {
        let lines: Vec<String> =
            (0..120).map(|line| format!("line {line} of file {file}, as code is")).collect();
        env.write(&format!("{file}.txt"), lines.join("\n"));
    }
    let (conversation, status) = env.run_turn("read everything").await;
    assert_eq!(status, SessionStatus::Done);
    (env, conversation)
}

#[tokio::test]
async fn a_turn_of_many_calls_uploads_a_fifth_over_a_socket() {
    let uploaded = |env: &TestEnv| -> usize {
        env.requests().iter().map(|request| request.body_text.len()).sum()
    };
    let (sse, _) = long_turn(TransportSetting::Sse).await;
    let (socket, conversation) = long_turn(TransportSetting::Auto).await;
    let requests = socket.requests();
    assert_eq!((sse.requests().len(), requests.len()), (CALLS + 1, CALLS + 1));
    assert!(requests.iter().skip(1).all(ReceivedRequest::is_continued));
    assert_eq!((socket.server.upgrades(), socket.server.connections()), (1, 1));
    let all = uploaded(&sse);
    let new = uploaded(&socket);
    assert!(new * 5 <= all, "{new} of {all} bytes");
    torture::print_summary(&format!(
        "a Turn of {CALLS} calls uploads {new} bytes over a WebSocket, {all} over SSE"
    ));
    let usage_records = usages(&conversation);
    assert_eq!(usage_records[0]["continuation"], json!({"used": false}));
    assert!(usage_records.iter().all(|usage_record| usage_record["transport"] == "websocket"));
    assert!(
        usage_records[1..]
            .iter()
            .all(|usage_record| usage_record["continuation"] == json!({"used": true}))
    );
}

#[tokio::test]
async fn the_replayed_prefix_stays_the_same_for_two_hundred_turns() {
    let script = || {
        ModelScript::answering(|request| match request.outputs().len() {
            0 if request.input().len() % 5 == 0 => Reply::new()
                .reasoning("Hm.")
                .text("Let me see.")
                .call("read", json!({"path": "a.txt"}))
                .call("bash", json!({"command": "true"})),
            _ => Reply::new().reasoning("Hm.").text("Fine."),
        })
    };
    let env = new_test_env(script(), TransportSetting::Sse).await;
    env.write("a.txt", "text");
    let conversation = env.start().await;
    for turn in 0..200 {
        assert_eq!(
            send_and_finish(&conversation, &format!("turn {turn}")).await,
            SessionStatus::Done
        );
    }
    let requests = env.requests();
    assert!(requests.len() > 200);
    for pair in requests.windows(2) {
        let [(head, input, tail), (next_head, next_input, next_tail)] =
            [&pair[0], &pair[1]].map(parts);
        assert_eq!((head, tail), (next_head, next_tail));
        assert!(next_input.starts_with(input.strip_suffix(']').unwrap()), "{input}\n{next_input}");
    }
}

#[tokio::test]
async fn two_hundred_turns_go_on_from_each_other() {
    let script = ModelScript::answering(|request| match request.outputs().len() {
        0 if request.user_texts().len() % 4 == 0 => Reply::new()
            .text("Let me see.")
            .call("bash", json!({"command": "true"}))
            .reasoning("Hm.")
            .call("read", json!({"path": "a.txt"})),
        _ => Reply::new().reasoning("Hm.").text("Fine."),
    });
    let env = new_test_env(script, TransportSetting::Auto).await;
    env.write("a.txt", "text");
    let conversation = env.start().await;
    for turn in 0..200 {
        assert_eq!(
            send_and_finish(&conversation, &format!("turn {turn}")).await,
            SessionStatus::Done
        );
    }
    let whole: Vec<usize> = env
        .requests()
        .iter()
        .enumerate()
        .filter(|(_, request)| !request.is_continued())
        .map(|(place, _)| place)
        .collect();
    assert_eq!(whole, [0]);
    assert_eq!(env.server.connections(), 1);
}

#[tokio::test]
async fn a_fallback_is_on_record_with_its_reason() {
    let script = ModelScript::answering(|_| Reply::says("ok")).refusing_sockets(|_| Some(426));
    let env = new_test_env(script, TransportSetting::Auto).await;
    let (conversation, status) = env.run_turn("hi").await;
    assert_eq!(status, SessionStatus::Done);
    let usage_record = &usages(&conversation)[0];
    assert_eq!(usage_record["transport"], "sse");
    assert_eq!(usage_record["fallback_reason"], "the WebSocket was refused with status 426");
    assert_eq!(usage_record["retries"], 0, "nothing had been asked yet");
}

#[tokio::test]
async fn a_custom_endpoint_is_asked_over_sse_unless_config_says_otherwise() {
    let mut env = TestEnv::with_script(ModelScript::answering(|_| Reply::says("ok"))).await;
    env.run_turn("hi").await;
    assert_eq!((env.requests()[0].transport, env.server.upgrades()), ("sse", 0));
    env.config.transport = Some(TransportSetting::Auto);
    env.run_turn("hi").await;
    assert_eq!(env.requests()[1].transport, "websocket");
}

#[tokio::test]
async fn a_lost_response_costs_one_request_and_nothing_else() {
    let lost = json!({"error": {"code": "previous_response_not_found", "message": "gone"}});
    let script = ModelScript::new([
        Reply::says("one"),
        Reply::status(400, lost.to_string()),
        Reply::says("two"),
    ]);
    let env = new_test_env(script, TransportSetting::Auto).await;
    let (conversation, _) = env.run_turn("first").await;
    assert_eq!(send_and_finish(&conversation, "second").await, SessionStatus::Done);
    let usage_record = &usages(&conversation)[1];
    assert_eq!(
        usage_record["continuation"],
        json!({"used": false, "reset_reason": "previous_response_not_found"})
    );
    assert_eq!(usage_record["retries"], 1);
    assert_eq!(env.requests()[2].user_texts(), ["first", "second"]);
}

#[tokio::test]
async fn unreadable_reasoning_is_left_out_and_on_record() {
    let script = ModelScript::new([
        Reply::new().reasoning("Hm.").text("one"),
        Reply::status(400, json!({"error": {"code": "invalid_encrypted_content", "message": "The encrypted content could not be verified."}}).to_string()),
        Reply::new().reasoning("Hm.").text("two"),
        Reply::says("three"),
    ]);
    let env = new_test_env(script, TransportSetting::Sse).await;
    let (conversation, _) = env.run_turn("first").await;
    assert_eq!(send_and_finish(&conversation, "second").await, SessionStatus::Done);
    assert_eq!(send_and_finish(&conversation, "third").await, SessionStatus::Done);
    let usage_records = usages(&conversation);
    assert_eq!(
        (&usage_records[1]["reasoning_dropped"], &usage_records[1]["retries"]),
        (&json!(true), &json!(1))
    );
    let reasoning = |request: &ReceivedRequest| {
        let items = request.input().iter();
        items.filter(|item| item["type"] == "reasoning").count()
    };
    assert_eq!(env.requests().iter().map(reasoning).collect::<Vec<_>>(), [0, 1, 0, 1]);
}

#[tokio::test]
async fn reasoning_is_replayed_only_where_it_was_made() {
    let script = || ModelScript::answering(|_| Reply::new().reasoning("Hm.").text("ok"));
    let mut one = TestEnv::with_script(script()).await;
    let (conversation, _) = one.run_turn("first").await;
    let id = conversation.id().clone();
    drop(conversation);
    // Another model, then another endpoint: neither can read the reasoning.
    one.config.model = "gpt-6-sol".to_owned();
    one.config.model_named = true;
    let conversation = one.resume(&id).await;
    assert_eq!(send_and_finish(&conversation, "second").await, SessionStatus::Done);
    drop(conversation);
    one.server = pixir::scripted::ScriptedServer::start(script()).await.unwrap();
    let conversation = one.resume(&id).await;
    assert_eq!(send_and_finish(&conversation, "third").await, SessionStatus::Done);
    let sent = one.requests()[0].body_text.clone();
    assert!(!sent.contains("encrypted_content\":"), "{sent}");
    assert!(sent.contains("first") && sent.contains("second"));
}

#[tokio::test]
async fn a_request_that_is_sent_again_counts_against_the_budget() {
    let script =
        ModelScript::new([Reply::new().ends_silently().closes(1011), Reply::says("never")]);
    let mut env = new_test_env(script, TransportSetting::Auto).await;
    env.config.budget.max_requests = Some(1);
    let (conversation, status) = env.run_turn("hi").await;
    let SessionStatus::Error { terminal_status, .. } = status else { panic!("{status:?}") };
    assert_eq!(terminal_status, "budget_exceeded");
    assert_eq!(env.requests().len(), 1, "the second request was never sent");
    assert_eq!(usages(&conversation)[0]["status"], "failed");
}

//! Tests of the WebSocket against the scripted model: continuation, fallback, and how sockets end.

use serde_json::Value;

use super::*;
use crate::base::error::Explain;
use crate::model::provider::wire::websocket::SocketTimeouts;
use crate::record::event::{AssistantMessage, Canonical, Reasoning, ToolCall, ToolResult};
use crate::settings::config::TransportSetting;
use crate::testing::scripted::ReceivedRequest;

/// A Session as a Turn would keep it: answers are recorded in its History.
struct TestSession {
    server: ScriptedServer,
    provider: ResponsesProvider,
    history: History,
    request: ModelRequest,
    /// How each request was sent.
    sent: Vec<SentRequest>,
}

impl TestSession {
    async fn new(script: ModelScript, transport: TransportSetting) -> Self {
        Self::with_timeouts(script, transport, SocketTimeouts::default()).await
    }

    async fn with_timeouts(
        script: ModelScript,
        transport: TransportSetting,
        timeouts: SocketTimeouts,
    ) -> Self {
        let server = ScriptedServer::start(script).await.unwrap();
        let transport_options = TransportOptions {
            transport: Some(transport),
            socket_timeouts: timeouts,
            ..TransportOptions::default()
        };
        let credential = Credential::new(Some("sk-test"), &server.base_url()).unwrap();
        let provider = ResponsesProvider::new(credential, HASTY, transport_options);
        let request = request();
        let history = request.history.clone();
        Self { server, provider, history, request, sent: Vec::new() }
    }

    fn record(&mut self, fact: impl Into<Canonical>) {
        let seq = self.history.last_seq().map_or(0, |seq| seq + 1);
        let event = Event::new_canonical(CanonicalParts {
            id: EventId::mint(),
            session_id: SessionId::parse("s").unwrap(),
            seq: Some(seq),
            ts: Timestamp::from_text("t"),
            fact: fact.into(),
            extra: Extra::new(),
        });
        self.history.push(Arc::new(event));
    }

    fn user(&mut self, text: &str) {
        self.record(UserMessage { text: text.into(), ..UserMessage::default() });
    }

    async fn call(&mut self) -> StreamResults {
        let request = ModelRequest { history: self.history.clone(), ..self.request.clone() };
        let results: StreamResults = self.provider.stream(request).collect().await;
        self.sent.extend(results.iter().filter_map(|event| match event {
            Ok(ModelEvent::Sent(sent)) => Some(sent.clone()),
            _ => None,
        }));
        results
    }

    /// Makes one successful call, and records it with outputs for its tool calls.
    async fn complete_call(&mut self) {
        let results = self.call().await;
        assert!(matches!(results.last(), Some(Ok(ModelEvent::Completed(_)))), "{results:?}");
        for event in results {
            let Ok(ModelEvent::Item(item)) = event else { continue };
            match item {
                OutputItem::Message { text, .. } => {
                    let extra = Extra::new();
                    self.record(AssistantMessage { text, phase: None, metadata: None, extra });
                }
                OutputItem::Reasoning { item } => {
                    let model = self.request.model.clone();
                    self.record(Reasoning { item, model, extra: Extra::new() });
                }
                OutputItem::Call(call) => {
                    let call: ToolCall = call.to_tool_call(&call.parse_arguments());
                    let call_id = call.call_id.clone();
                    self.record(call);
                    let result = json!({"call_id": call_id, "ok": true, "output": "done"});
                    self.record(serde_json::from_value::<ToolResult>(result).unwrap());
                }
                OutputItem::WebSearch(_) | OutputItem::Other { .. } => {}
            }
        }
    }

    fn requests(&self) -> Vec<ReceivedRequest> {
        self.server.requests()
    }

    /// How the last request was sent, in one line.
    fn last(&self) -> String {
        let sent = self.sent.last().unwrap();
        let continuation = sent.continuation.clone().unwrap_or_default();
        let word = if continuation.used { "continued" } else { "whole" };
        let mut line = format!("{} {word}", sent.transport);
        for reason in
            [continuation.reset_reason, sent.fallback_reason.clone()].into_iter().flatten()
        {
            line = format!("{line}, {reason}");
        }
        line
    }
}

fn talkative(request: &ReceivedRequest) -> Reply {
    let count = request.input().len();
    match request.outputs().len() {
        0 => Reply::new()
            .reasoning("Hm.")
            .text("Let me see.")
            .call("a", json!({"n": count}))
            .call("b", json!({"n": count})),
        _ => Reply::says(&format!("answer {count}")),
    }
}

#[tokio::test]
async fn a_call_goes_on_from_the_one_before_it_on_one_socket() {
    let mut talk =
        TestSession::new(ModelScript::answering(talkative), TransportSetting::Auto).await;
    for turn in 0..5 {
        talk.user(&format!("turn {turn}"));
        talk.complete_call().await;
        talk.complete_call().await;
    }
    let requests = talk.requests();
    assert_eq!((requests.len(), talk.server.upgrades(), talk.server.connections()), (10, 1, 1));
    assert!(requests.iter().all(|request| request.transport == "websocket"));
    let continued: Vec<bool> = requests.iter().map(ReceivedRequest::is_continued).collect();
    assert_eq!(continued, [false, true, true, true, true, true, true, true, true, true]);
    assert_eq!(requests[1].sent_input().len(), 2, "two outputs: {}", requests[1].body_text);
    assert_eq!(requests[2].sent_input().len(), 1, "one prompt");
    assert!(requests[0].body.get("stream").is_none());
    assert_eq!(requests[0].header("openai-beta"), Some("responses_websockets=2026-02-06"));
    assert_eq!(requests[0].header("authorization"), Some("Bearer sk-test"));
    assert_eq!(requests[0].header("accept").filter(|accept| accept.contains("event-stream")), None);
}

#[tokio::test]
async fn what_the_server_sees_is_the_same_on_both_transports() {
    let mut seen: Vec<Vec<Vec<Value>>> = Vec::new();
    for transport in [TransportSetting::Sse, TransportSetting::WebSocket] {
        let mut talk = TestSession::new(ModelScript::answering(talkative), transport).await;
        for turn in 0..3 {
            talk.user(&format!("turn {turn}"));
            talk.complete_call().await;
            talk.complete_call().await;
        }
        let plain = |request: &ReceivedRequest| {
            let items = request.input().iter();
            items
                .filter(|item| item["type"] != "reasoning")
                .map(|item| item["type"].clone())
                .collect()
        };
        seen.push(talk.requests().iter().map(plain).collect());
    }
    let sorted = |mut items: Vec<Vec<Value>>| {
        for items in &mut items {
            items.sort_by_key(ToString::to_string);
        }
        items
    };
    assert_eq!(sorted(seen[0].clone()), sorted(seen[1].clone()));
}

#[tokio::test]
async fn what_does_not_extend_is_sent_whole_with_the_reason() {
    let mut talk =
        TestSession::new(ModelScript::answering(|_| Reply::says("ok")), TransportSetting::Auto)
            .await;
    talk.complete_call().await;
    assert_eq!(talk.last(), "websocket whole");
    talk.user("next");
    talk.complete_call().await;
    assert_eq!(talk.last(), "websocket continued");
    talk.request.model = "other".into();
    talk.user("other model");
    talk.complete_call().await;
    assert_eq!(talk.last(), "websocket whole, model_changed");
    talk.request.effort = Some("high".into());
    talk.user("harder");
    talk.complete_call().await;
    assert_eq!(talk.last(), "websocket whole, fields_changed");
    talk.history = request().history;
    talk.user("as if it had never been");
    talk.complete_call().await;
    assert_eq!(talk.last(), "websocket whole, history_changed");
    assert_eq!(talk.server.upgrades(), 1, "the socket outlives all of that");
}

#[tokio::test]
async fn a_socket_that_dies_unseen_is_replaced_by_another() {
    let timeouts = SocketTimeouts { idle: Duration::from_millis(20), ..SocketTimeouts::default() };
    let script = ModelScript::answering(|_| Reply::says("ok"));
    let mut talk = TestSession::with_timeouts(script, TransportSetting::Auto, timeouts).await;
    talk.complete_call().await;
    tokio::time::sleep(timeouts.idle * 10).await;
    talk.user("next");
    talk.complete_call().await;
    assert_eq!(talk.last(), "websocket whole, socket_idle");
    assert_eq!((talk.requests().len(), talk.server.upgrades()), (2, 2));

    let dead = || Reply::new().cut_at(0);
    let script =
        ModelScript::new([Reply::says("ok"), dead(), Reply::says("again"), dead(), dead()]);
    let mut talk = TestSession::new(script, TransportSetting::WebSocket).await;
    talk.complete_call().await;
    talk.user("next");
    talk.complete_call().await;
    assert_eq!(talk.last(), "websocket whole, socket_closed");
    talk.user("and on");
    let results = talk.call().await;
    assert_eq!(error_of(&results).kind, Kind::Network, "a fresh one that dies is a failure");
    assert_eq!(talk.requests().len(), 5);
}

#[tokio::test]
async fn an_old_socket_is_retired() {
    let timeouts = SocketTimeouts { max_age: Duration::ZERO, ..SocketTimeouts::default() };
    let mut talk = TestSession::with_timeouts(
        ModelScript::answering(|_| Reply::says("ok")),
        TransportSetting::Auto,
        timeouts,
    )
    .await;
    talk.complete_call().await;
    talk.user("next");
    talk.complete_call().await;
    assert_eq!(talk.last(), "websocket whole, socket_retired");
}

#[tokio::test]
async fn a_lost_response_is_replayed_once() {
    for code in ["previous_response_not_found", "websocket_connection_limit_reached"] {
        let refusal =
            json!({"error": {"type": "invalid_request_error", "code": code, "message": "no"}});
        let script = ModelScript::new([
            Reply::says("ok"),
            Reply::status(400, refusal.to_string()),
            Reply::says("here"),
            Reply::status(400, refusal.to_string()),
            Reply::status(400, refusal.to_string()),
        ]);
        let mut talk = TestSession::new(script, TransportSetting::Auto).await;
        talk.complete_call().await;
        talk.user("next");
        talk.complete_call().await;
        assert_eq!(talk.last(), format!("websocket whole, {code}"));
        assert_eq!(
            talk.sent.last().unwrap().previous_error.as_ref().unwrap().details()["code"],
            code
        );
        talk.user("and on");
        let results = talk.call().await;
        assert!(error_of(&results).retryable, "once is enough: {results:?}");
        assert_eq!(talk.requests().len(), 5);
    }
}

#[tokio::test]
async fn a_refused_upgrade_is_sse_at_once_and_a_socket_later() {
    let timeouts = SocketTimeouts {
        fallback: Duration::from_millis(150),
        fallback_cap: Duration::from_millis(150),
        ..SocketTimeouts::default()
    };
    for status in [426, 404, 502] {
        let script = ModelScript::answering(|_| Reply::says("ok"))
            .refusing_sockets(move |number| (number == 0).then_some(status));
        let mut talk = TestSession::with_timeouts(script, TransportSetting::Auto, timeouts).await;
        talk.complete_call().await;
        let reason = format!("sse whole, the WebSocket was refused with status {status}");
        assert_eq!(talk.last(), reason);
        talk.user("soon");
        talk.complete_call().await;
        assert_eq!(talk.last(), reason);
        assert_eq!((talk.server.upgrades(), talk.requests().len()), (1, 2));
        tokio::time::sleep(timeouts.fallback).await;
        talk.user("later");
        talk.complete_call().await;
        assert_eq!(talk.last(), "websocket whole");
    }
}

#[tokio::test]
async fn what_the_server_says_is_no_reason_to_fall_back() {
    for status in [401, 429] {
        let script =
            ModelScript::answering(|_| Reply::says("ok")).refusing_sockets(move |_| Some(status));
        let mut talk = TestSession::new(script, TransportSetting::Auto).await;
        let results = talk.call().await;
        assert_eq!(error_of(&results).details()["status"], status);
        assert!(talk.requests().is_empty() && talk.sent.is_empty());
    }
    let replies = [
        Reply::status(429, r#"{"error":{"message":"slow"}}"#).header("Retry-After", "7"),
        Reply::new().errors("rate_limit_exceeded", "try again in 20ms"),
        Reply::new().fails("context_length_exceeded", "long"),
    ];
    let kinds = [Kind::RateLimited, Kind::RateLimited, Kind::ContextOverflow];
    for (reply, kind) in replies.into_iter().zip(kinds) {
        let mut talk =
            TestSession::new(ModelScript::new([reply.left_open()]), TransportSetting::Auto).await;
        let results = talk.call().await;
        assert_eq!(error_of(&results).kind, kind, "{results:?}");
        assert_eq!(talk.requests().len(), 1);
        if talk.requests()[0].transport == "websocket"
            && error_of(&results).details()["status"] == 429
        {
            assert_eq!(error_of(&results).retry_after, Some(Duration::from_secs(7)));
        }
    }
}

#[tokio::test]
async fn silence_before_the_first_word_falls_back_and_after_it_does_not() {
    type Fault = fn(Reply) -> Reply;
    let faults: [(&str, Fault); 6] = [
        ("silent", Reply::ends_silently),
        ("closed", |reply| reply.closes(1011).ends_silently()),
        ("binary", |reply| reply.binary().ends_silently()),
        ("garbage", |reply| reply.garbage("no json")),
        ("reset", |reply| reply.pause(Duration::from_millis(1)).reset_at(400)),
        ("stalls", Reply::stalls),
    ];
    for (name, fault) in faults {
        let script =
            ModelScript::new([fault(Reply::new()).left_open(), Reply::says("by another way")]);
        let mut talk = TestSession::new(script, TransportSetting::Auto).await;
        talk.complete_call().await;
        assert_eq!(talk.sent.len(), 2, "{name}");
        assert_eq!(talk.sent[1].transport, "sse", "{name}");
        assert!(
            talk.sent[1].fallback_reason.is_some() && talk.sent[1].previous_error.is_some(),
            "{name}"
        );
        if name == "reset" {
            continue;
        }
        let script =
            ModelScript::new([fault(Reply::says("half a word")).left_open(), Reply::says("never")]);
        let mut talk = TestSession::new(script, TransportSetting::Auto).await;
        let results = talk.call().await;
        assert!(error_of(&results).retryable, "{name}: {results:?}");
        assert_eq!((talk.sent.len(), talk.requests().len()), (1, 1), "{name}");
        talk.call().await;
        assert_eq!(talk.sent.last().unwrap().transport, "websocket", "{name}");
        assert_eq!(talk.server.upgrades(), 2, "{name}: a failed socket is not used again");
    }
}

#[tokio::test]
async fn what_is_too_large_for_a_socket_goes_by_sse_alone() {
    let script =
        ModelScript::new([Reply::new().closes(1009), Reply::says("fits"), Reply::says("ok")]);
    let mut talk = TestSession::new(script, TransportSetting::Auto).await;
    talk.complete_call().await;
    assert_eq!(talk.last(), "sse whole, the request is too large for a WebSocket");
    talk.user("short");
    talk.complete_call().await;
    assert_eq!(talk.last(), "websocket whole");
}

#[tokio::test]
async fn the_policy_is_obeyed() {
    let mut talk =
        TestSession::new(ModelScript::answering(|_| Reply::says("ok")), TransportSetting::Sse)
            .await;
    talk.complete_call().await;
    assert_eq!((talk.last().as_str(), talk.server.upgrades()), ("sse whole", 0));
    let script = ModelScript::answering(|_| Reply::says("ok")).refusing_sockets(|_| Some(426));
    let mut talk = TestSession::new(script, TransportSetting::WebSocket).await;
    let results = talk.call().await;
    assert_eq!(error_of(&results).details()["status"], 426);
    assert!(talk.requests().is_empty());
}

#[tokio::test]
async fn a_dropped_call_drops_its_socket() {
    let script = ModelScript::answering(|request| match request.user_texts().len() {
        1 => Reply::says("and so on").stalls(),
        _ => Reply::says("fresh"),
    });
    let mut talk = TestSession::new(script, TransportSetting::Auto).await;
    let mut call = talk.provider.stream(talk.request.clone());
    while !matches!(call.next().await, Some(Ok(ModelEvent::TextDelta(_)))) {}
    drop(call);
    talk.user("next");
    talk.complete_call().await;
    assert_eq!((talk.last().as_str(), talk.server.upgrades()), ("websocket whole", 2));
}

#[tokio::test]
async fn pings_keep_a_socket_and_a_servers_ping_is_life() {
    let timeouts = SocketTimeouts { ping: Duration::from_millis(20), ..SocketTimeouts::default() };
    let mut alive = Reply::new();
    for _ in 0..8 {
        alive = alive.pause(HASTY.idle / 4).comment("still here");
    }
    let script = ModelScript::new([Reply::says("ok"), alive.text("at last")]);
    let mut talk = TestSession::with_timeouts(script, TransportSetting::WebSocket, timeouts).await;
    talk.complete_call().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    talk.user("next");
    talk.complete_call().await;
    assert_eq!(talk.last(), "websocket continued");
}

#[tokio::test]
async fn unreadable_reasoning_is_left_out_and_stays_out() {
    for transport in [TransportSetting::Sse, TransportSetting::WebSocket] {
        let script = ModelScript::answering(|request| {
            let bad = request
                .sent_input()
                .iter()
                .any(|item| item["encrypted_content"] == "sealed:rs_1_0");
            if bad {
                let error = json!({"code": "invalid_encrypted_content", "message": "The encrypted content could not be verified."});
                return Reply::status(400, json!({"error": error}).to_string());
            }
            Reply::new().reasoning("Hm.").text("ok")
        });
        let mut talk = TestSession::new(script, transport).await;
        talk.complete_call().await;
        // A new Provider, as if another process had resumed the Session.
        let credential = Credential::new(Some("sk-test"), &talk.server.base_url()).unwrap();
        let transport_options =
            TransportOptions { transport: Some(transport), ..TransportOptions::default() };
        talk.provider = ResponsesProvider::new(credential, HASTY, transport_options);
        talk.user("next");
        talk.complete_call().await;
        assert_eq!(talk.requests().len(), 3);
        assert!(talk.sent.last().unwrap().is_without_reasoning);
        assert_eq!(
            talk.sent.last().unwrap().previous_error.as_ref().unwrap().details()["code"],
            "invalid_encrypted_content"
        );
        talk.user("and on");
        talk.complete_call().await;
        assert_eq!(talk.requests().len(), 4, "it is not tried again");
        let last = &talk.requests()[3];
        if transport == TransportSetting::Sse {
            let kept = last.input().iter().filter(|item| item["type"] == "reasoning").count();
            assert_eq!(kept, 1, "what the new server made is replayed");
        }
    }
}

#[tokio::test]
async fn a_handshake_that_is_never_answered_does_not_hold_up_a_call() {
    let silent = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let base_url = format!("http://{}/v1", silent.local_addr().unwrap());
    let timeouts =
        SocketTimeouts { connect: Duration::from_millis(100), ..SocketTimeouts::default() };
    for (transport, kind, wires) in [
        (TransportSetting::WebSocket, Kind::Network, 0),
        (TransportSetting::Auto, Kind::StreamIdle, 1),
    ] {
        let transport_options = TransportOptions {
            transport: Some(transport),
            socket_timeouts: timeouts,
            ..TransportOptions::default()
        };
        let provider = ResponsesProvider::new(
            Credential::new(None, &base_url).unwrap(),
            HASTY,
            transport_options,
        );
        let results: StreamResults = provider.stream(request()).collect().await;
        assert_eq!(
            (error_of(&results).kind, error_of(&results).retryable),
            (kind, true),
            "{results:?}"
        );
        assert_eq!(results.len(), wires + 1, "{results:?}");
    }
}

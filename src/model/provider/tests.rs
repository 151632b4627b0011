//! Tests of the Provider against the scripted model: streams, and the error for each fault.

mod socket;

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::json;

use super::*;
use crate::base::id::{EventId, SessionId};
use crate::model::credential::Credential;
use crate::record::event::{CanonicalParts, Event, Extra, Timestamp, UserMessage};
use crate::settings::config::StreamTimeouts;
use crate::testing::scripted::{ModelScript, Reply, ScriptedServer};

/// Timeouts that are short enough for a test and long enough for a busy machine.
const PATIENT: StreamTimeouts = StreamTimeouts {
    idle: Duration::from_secs(20),
    total: Duration::from_secs(40),
    connect: Duration::from_secs(10),
};
const HASTY: StreamTimeouts = StreamTimeouts { idle: Duration::from_millis(800), ..PATIENT };

type StreamResults = Vec<Result<ModelEvent, ProviderError>>;

fn request() -> ModelRequest {
    let event = Event::new_canonical(CanonicalParts {
        id: EventId::mint(),
        session_id: SessionId::parse("s").unwrap(),
        seq: Some(0),
        ts: Timestamp::from_text("t"),
        fact: UserMessage { text: "hi".into(), ..UserMessage::default() }.into(),
        extra: Extra::new(),
    });
    ModelRequest {
        model: "gpt-5.5".into(),
        effort: None,
        instructions: "Be good.".into(),
        project: None,
        tools: Arc::from([]),
        history: History::from_events(vec![Arc::new(event)]),
        contents: ResourceContents::default(),
        cache_key: "k".into(),
        response_options: ResponseOptions::default(),
        session: SessionId::parse("s").unwrap(),
        resends: 1,
    }
}

fn client(server: &ScriptedServer, limits: StreamTimeouts) -> ResponsesProvider {
    let credential = Credential::new(Some("sk-test"), &server.base_url()).unwrap();
    ResponsesProvider::new(credential, limits, TransportOptions::default())
}

async fn stream_reply(reply: Reply, limits: StreamTimeouts) -> StreamResults {
    let server = ScriptedServer::start(ModelScript::new([reply])).await.unwrap();
    client(&server, limits).stream(request()).collect().await
}

fn error_of(results: &StreamResults) -> &ProviderError {
    results.last().unwrap().as_ref().unwrap_err()
}

fn text_of(results: &StreamResults) -> String {
    let deltas = results.iter().filter_map(|event| match event {
        Ok(ModelEvent::TextDelta(text)) => Some(text.as_str()),
        _ => None,
    });
    deltas.collect()
}

/// The results with neighbouring deltas joined: how many arrive together depends on the network.
fn joined(results: StreamResults) -> StreamResults {
    let mut joined: StreamResults = Vec::new();
    for event in results {
        match (joined.last_mut(), &event) {
            (Some(Ok(ModelEvent::TextDelta(shown))), Ok(ModelEvent::TextDelta(more)))
            | (Some(Ok(ModelEvent::ReasoningDelta(shown))), Ok(ModelEvent::ReasoningDelta(more))) =>
            {
                shown.push_str(more);
            }
            _ => joined.push(event),
        }
    }
    joined
}

#[track_caller]
fn check_whole(results: &StreamResults) {
    assert!(matches!(results[0], Ok(ModelEvent::Sent(_))), "{results:?}");
    assert_eq!(results[1], Ok(ModelEvent::FirstByte));
    assert!(matches!(results.last(), Some(Ok(ModelEvent::Completed(_)))), "{results:?}");
}

#[tokio::test]
async fn a_reply_streams_with_everything_in_it() {
    let reply = Reply::new()
        .reasoning("Let me think")
        .text("hello wide world")
        .call("bash", json!({"command": "ls"}));
    let results = stream_reply(reply.usage(10, 4, 3), PATIENT).await;
    check_whole(&results);
    assert_eq!(text_of(&results), "hello wide world");
    let items: Vec<&OutputItem> = results
        .iter()
        .filter_map(|event| if let Ok(ModelEvent::Item(item)) = event { Some(item) } else { None })
        .collect();
    assert!(
        matches!(
            items[..],
            [OutputItem::Reasoning { .. }, OutputItem::Message { .. }, OutputItem::Call(_)]
        ),
        "{items:?}"
    );
    let Some(Ok(ModelEvent::Completed(completed))) = results.last() else { panic!() };
    let usage = completed.usage.as_ref().unwrap();
    assert_eq!((usage.input_tokens, usage.cached_tokens, usage.output_tokens), (10, 4, 3));
}

#[tokio::test]
async fn the_request_carries_the_credential_and_the_contract() {
    let server = ScriptedServer::start(ModelScript::new([Reply::says("ok")])).await.unwrap();
    let mut credential = Credential::new(Some("sk-test"), &server.base_url()).unwrap();
    credential.project = Some("p1".into());
    let results: StreamResults =
        ResponsesProvider::new(credential, PATIENT, TransportOptions::default())
            .stream(request())
            .collect()
            .await;
    check_whole(&results);
    let received = &server.requests()[0];
    assert_eq!(received.path, "/v1/responses");
    assert_eq!(received.header("authorization"), Some("Bearer sk-test"));
    assert_eq!(received.header("openai-project"), Some("p1"));
    assert_eq!(received.header("accept"), Some("text/event-stream"));
    assert_eq!(received.header("user-agent"), Some(&*crate::model::credential::user_agent()));
    assert_eq!(received.body["store"], false);
    assert_eq!(received.user_texts(), ["hi"]);
}

#[tokio::test]
async fn without_a_key_no_bearer_is_sent() {
    let server = ScriptedServer::start(ModelScript::new([Reply::says("ok")])).await.unwrap();
    let credential = Credential::new(None, &server.base_url()).unwrap();
    let results: StreamResults =
        ResponsesProvider::new(credential, PATIENT, TransportOptions::default())
            .stream(request())
            .collect()
            .await;
    check_whole(&results);
    assert_eq!(server.requests()[0].header("authorization"), None);
}

#[tokio::test]
async fn faults_have_their_kind() {
    let cases: [(&str, Reply, Kind, bool); 11] = [
        ("cut", Reply::says("hello there").cut_at(600), Kind::Network, true),
        ("end", Reply::says("hello").ends_silently(), Kind::InvalidResponse, true),
        ("failed", Reply::says("x").fails("server_error", "oops"), Kind::ProviderError, true),
        (
            "failed",
            Reply::new().fails("context_length_exceeded", "long"),
            Kind::ContextOverflow,
            false,
        ),
        (
            "error",
            Reply::says("x").errors("rate_limit_exceeded", "try again in 20ms"),
            Kind::RateLimited,
            true,
        ),
        ("401", Reply::status(401, r#"{"error":{"message":"bad key"}}"#), Kind::AuthRefused, false),
        ("404", Reply::status(404, "not here"), Kind::NotFound, false),
        (
            "503",
            Reply::status(503, "<html><title>Busy</title></html>"),
            Kind::ProviderOverloaded,
            true,
        ),
        ("500", Reply::status(500, "x".repeat(100_000)), Kind::ProviderError, true),
        (
            "302",
            Reply::status(302, "").header("location", "http://example.org/"),
            Kind::NotFound,
            false,
        ),
        ("json", Reply::status(200, r#"{"object":"response"}"#), Kind::InvalidResponse, false),
    ];
    for (name, reply, kind, retryable) in cases {
        let results = stream_reply(reply, PATIENT).await;
        let error = error_of(&results);
        assert_eq!((error.kind, error.retryable), (kind, retryable), "{name}: {error:?}");
        assert!(!error.message.is_empty() && error.message.len() < 3000, "{name}");
        assert!(!crate::base::error::Explain::next_actions(error).is_empty(), "{name}");
    }
}

#[tokio::test]
async fn a_named_wait_arrives_with_the_error() {
    let limited = Reply::status(429, r#"{"error":{"message":"slow"}}"#);
    let results = stream_reply(limited.clone().header("retry-after", "7"), PATIENT).await;
    assert_eq!(error_of(&results).retry_after, Some(Duration::from_secs(7)));
    let results = stream_reply(limited.clone().header("Retry-After-Ms", "1500"), PATIENT).await;
    assert_eq!(error_of(&results).retry_after, Some(Duration::from_millis(1500)));
    let results = stream_reply(limited.header("x-should-retry", "false"), PATIENT).await;
    assert!(!error_of(&results).retryable);
}

#[tokio::test]
async fn an_unreachable_server_is_a_network_error() {
    let server = ScriptedServer::start(ModelScript::new([])).await.unwrap();
    let client = client(&server, PATIENT);
    drop(server);
    let results: StreamResults = client.stream(request()).collect().await;
    assert_eq!((error_of(&results).kind, error_of(&results).retryable), (Kind::Network, true));
    assert!(!error_of(&results).message.contains("sk-test"));
}

#[tokio::test]
async fn tls_to_an_unreachable_server_is_a_network_error_and_no_panic() {
    let credential = Credential::new(Some("sk-test"), "https://127.0.0.1:1/v1").unwrap();
    let results: StreamResults =
        ResponsesProvider::new(credential, PATIENT, TransportOptions::default())
            .stream(request())
            .collect()
            .await;
    assert_eq!(error_of(&results).kind, Kind::Network);
}

#[tokio::test]
async fn a_reader_that_dawdles_is_not_the_servers_silence() {
    let server = ScriptedServer::start(ModelScript::new([Reply::says("hello")])).await.unwrap();
    let mut call = client(&server, HASTY).stream(request());
    let mut results: StreamResults = vec![call.next().await.unwrap()];
    tokio::time::sleep(HASTY.idle * 2).await;
    results.extend(call.collect::<StreamResults>().await);
    check_whole(&results);
}

#[tokio::test]
async fn the_last_word_ends_the_call_while_the_socket_stays_open() {
    let started = Instant::now();
    check_whole(&stream_reply(Reply::says("done").left_open(), PATIENT).await);
    let results =
        stream_reply(Reply::says("x").fails("slow_down", "busy").left_open(), PATIENT).await;
    assert_eq!(error_of(&results).kind, Kind::ProviderOverloaded);
    assert!(started.elapsed() < PATIENT.idle / 2, "{:?}", started.elapsed());
}

#[tokio::test]
async fn silence_is_noticed_and_comments_are_no_silence() {
    let results = stream_reply(Reply::says("hello").stalls(), HASTY).await;
    assert_eq!((error_of(&results).kind, error_of(&results).retryable), (Kind::StreamIdle, true));
    assert_eq!(text_of(&results), "hello");
    let mut alive = Reply::new();
    for _ in 0..8 {
        alive = alive.pause(HASTY.idle / 4).comment("still here");
    }
    check_whole(&stream_reply(alive.text("at last"), HASTY).await);
}

#[tokio::test]
async fn a_server_that_never_answers_is_silent_too() {
    let silent = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let base_url = format!("http://{}/v1", silent.local_addr().unwrap());
    let provider = ResponsesProvider::new(
        Credential::new(None, &base_url).unwrap(),
        HASTY,
        TransportOptions::default(),
    );
    let results: StreamResults = provider.stream(request()).collect().await;
    assert_eq!(error_of(&results).kind, Kind::StreamIdle);
}

#[tokio::test]
async fn a_call_that_takes_too_long_ends_although_it_lives() {
    let limits = StreamTimeouts { total: Duration::from_millis(500), ..PATIENT };
    let mut chatty = Reply::new();
    for _ in 0..40 {
        chatty = chatty.pause(Duration::from_millis(50)).comment("and so on");
    }
    let results = stream_reply(chatty, limits).await;
    assert_eq!((error_of(&results).kind, error_of(&results).retryable), (Kind::Timeout, false));
}

#[tokio::test]
async fn one_byte_at_a_time_says_the_same() {
    let reply = || {
        Reply::new()
            .reasoning_sealed_late("why not")
            .text("grüße aus köln 🦀")
            .event("response.brand_new", &json!({"type": "response.brand_new"}))
            .garbage("data: {broken\n\nno field at all\n\n")
            .call("read", json!({"path": "x"}))
    };
    let whole = stream_reply(reply(), PATIENT).await;
    check_whole(&whole);
    assert_eq!(joined(stream_reply(reply().byte_by_byte(), PATIENT).await), joined(whole));
}

#[tokio::test]
async fn a_cut_answer_is_a_marked_success() {
    let results =
        stream_reply(Reply::says("half of it").incomplete("max_output_tokens"), PATIENT).await;
    let Some(Ok(ModelEvent::Completed(completed))) = results.last() else { panic!("{results:?}") };
    assert_eq!(completed.incomplete.as_deref(), Some("max_output_tokens"));
}

#[tokio::test]
async fn a_cut_at_any_byte_ends_in_an_error_or_in_completion() {
    let reply = Reply::new().reasoning("hm").text("hi").call("read", json!({"path": "x"}));
    let server = ScriptedServer::start(ModelScript::answering(move |request| {
        // The cache key says where to cut.
        let cut = request.body["prompt_cache_key"].as_str().and_then(|text| text.parse().ok());
        reply.clone().cut_at(cut.unwrap_or(usize::MAX))
    }))
    .await
    .unwrap();
    let provider = client(&server, PATIENT);
    let mut completed_at = None;
    for cut in 1..20_000 {
        let call = provider.stream(ModelRequest { cache_key: cut.to_string(), ..request() });
        let results: StreamResults = call.collect().await;
        let errors = results.iter().filter(|event| event.is_err()).count();
        match results.last() {
            Some(Ok(ModelEvent::Completed(_))) if errors == 0 => {
                completed_at = Some(cut);
                break;
            }
            Some(Err(error)) if errors == 1 => assert!(error.retryable, "{cut}: {error:?}"),
            other => panic!("{cut}: {other:?}"),
        }
    }
    assert!(completed_at.is_some_and(|cut| cut > 1000), "{completed_at:?}");
}

#[tokio::test]
async fn connections_are_used_again_and_calls_can_be_dropped() {
    let server =
        ScriptedServer::start(ModelScript::answering(|_| Reply::says("ok"))).await.unwrap();
    let provider = client(&server, PATIENT);
    for _ in 0..50 {
        check_whole(&provider.stream(request()).collect().await);
    }
    assert!(server.connections() < 40, "{} connections for 50 calls", server.connections());
    let mut abandoned = provider.stream(request());
    abandoned.next().await.unwrap().unwrap();
    drop(abandoned);
    check_whole(&provider.stream(request()).collect().await);
}

#[tokio::test]
async fn a_bad_replay_is_refused_like_at_the_real_service() {
    let server = ScriptedServer::start(ModelScript::new([Reply::says("never")])).await.unwrap();
    let empty = ModelRequest { history: History::default(), ..request() };
    let results: StreamResults = client(&server, PATIENT).stream(empty).collect().await;
    assert_eq!(
        (error_of(&results).kind, error_of(&results).retryable),
        (Kind::ProviderError, false)
    );
    assert_eq!(error_of(&results).facts.status, Some(400));
}

//! Tests of the scripted model against a client that works on raw bytes.

use futures_util::StreamExt;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::base::id::{CallId, EventId, SessionId};
use crate::model::credential::Credential;
use crate::model::provider::{
    ModelEvent, ModelRequest, OutputItem, Provider, ResponseOptions, ResponsesProvider,
    TransportOptions,
};
use crate::record::event::{
    AssistantMessage, Canonical, CanonicalParts, Event, Extra, Reasoning, Timestamp, ToolCall,
    ToolResult, UserMessage,
};
use crate::record::history::History;
use crate::record::resource::ResourceContents;
use crate::settings::config::StreamTimeouts;

fn post(body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn good_body() -> Value {
    json!({"model": "m", "stream": true, "store": false, "input": [{"role": "user"}]})
}

async fn connect(server: &ScriptedServer) -> TcpStream {
    TcpStream::connect(server.address).await.unwrap()
}

/// Reads until `mark` has arrived `times` times.
async fn read_until(socket: &mut TcpStream, mark: &str, times: usize) -> String {
    let mut bytes = Vec::new();
    while String::from_utf8_lossy(&bytes).matches(mark).count() < times {
        assert_ne!(
            socket.read_buf(&mut bytes).await.unwrap(),
            0,
            "{}",
            String::from_utf8_lossy(&bytes)
        );
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn one_connection_serves_several_requests_in_order() {
    let server = ScriptedServer::start(ModelScript::new([Reply::says("one"), Reply::says("two")]))
        .await
        .unwrap();
    let mut socket = connect(&server).await;
    socket.write_all((post(&good_body()) + &post(&good_body())).as_bytes()).await.unwrap();
    let text = read_until(&mut socket, "\r\n0\r\n\r\n", 2).await;
    let (one, two) = (text.find("\"one\"").unwrap(), text.find("\"two\"").unwrap());
    assert!(one < two);
    assert_eq!(server.requests().len(), 2);
    assert_eq!(server.requests()[0].header("host"), Some("x"));
}

#[tokio::test]
async fn the_events_come_in_the_order_of_the_real_service() {
    let reply =
        Reply::new().reasoning("why").text("hi there").call("bash", json!({"command": "ls"}));
    let server = ScriptedServer::start(ModelScript::new([reply])).await.unwrap();
    let mut socket = connect(&server).await;
    socket.write_all(post(&good_body()).as_bytes()).await.unwrap();
    let text = read_until(&mut socket, "\r\n0\r\n\r\n", 1).await;
    let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    insta::assert_snapshot!(names.join("\n"), @r#"
    response.created
    response.in_progress
    response.output_item.added
    response.reasoning_summary_part.added
    response.reasoning_summary_text.delta
    response.reasoning_summary_text.done
    response.reasoning_summary_part.done
    response.output_item.done
    response.output_item.added
    response.content_part.added
    response.output_text.delta
    response.output_text.delta
    response.output_text.done
    response.content_part.done
    response.output_item.done
    response.output_item.added
    response.function_call_arguments.delta
    response.function_call_arguments.done
    response.output_item.done
    response.completed
    "#);
}

#[tokio::test]
async fn a_script_that_is_over_says_so() {
    let server = ScriptedServer::start(ModelScript::new([])).await.unwrap();
    let mut socket = connect(&server).await;
    socket.write_all(post(&good_body()).as_bytes()).await.unwrap();
    let text = read_until(&mut socket, "script_is_over", 1).await;
    assert!(text.starts_with("HTTP/1.1 500 "));
}

#[tokio::test]
async fn a_bad_request_is_kept_and_refused() {
    let server = ScriptedServer::start(ModelScript::new([Reply::says("never")])).await.unwrap();
    let mut socket = connect(&server).await;
    let mut body = good_body();
    body["store"] = true.into();
    socket.write_all(post(&body).as_bytes()).await.unwrap();
    assert!(read_until(&mut socket, "Store must be", 1).await.starts_with("HTTP/1.1 400 "));
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn other_paths_are_not_found_and_closed_servers_are_gone() {
    let server = ScriptedServer::start(ModelScript::new([])).await.unwrap();
    let mut socket = connect(&server).await;
    socket.write_all(b"GET /v1/nothing HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(read_until(&mut socket, "nothing)\"}}", 1).await.starts_with("HTTP/1.1 404 "));
    drop(server);
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).await.ok();
    assert!(rest.is_empty());
}

/// Appends a fact to a History, as a Session would.
fn record(history: &mut History, fact: impl Into<Canonical>) {
    history.push(Arc::new(Event::new_canonical(CanonicalParts {
        id: EventId::mint(),
        session_id: SessionId::parse("s").unwrap(),
        seq: Some(history.len() as u64),
        ts: Timestamp::from_text("t"),
        fact: fact.into(),
        extra: Extra::new(),
    })));
}

/// The result of a tool call.
fn result_of(call_id: &str, tool: &str) -> ToolResult {
    let output = if tool == "bash" { "all 4 checks passed\n(exit code 0)" } else { "fine" };
    ToolResult {
        call_id: CallId::new(call_id),
        ok: true,
        output: Some(output.to_owned()),
        error: None,
        details: Value::Null,
        extra: Extra::new(),
    }
}

#[tokio::test]
async fn the_demo_plays_to_its_end_over_the_real_wire() {
    let server = ScriptedServer::start(demo_model()).await.unwrap();
    let credential = Credential::new(None, &server.base_url()).unwrap();
    let provider =
        ResponsesProvider::new(credential, StreamTimeouts::default(), TransportOptions::default());
    let mut history = History::default();
    record(&mut history, UserMessage { text: DEMO_PROMPT.to_owned(), ..UserMessage::default() });
    let mut steps = Vec::new();
    for _ in 0..10 {
        let mut call = provider.stream(ModelRequest {
            model: DEMO_MODEL.to_owned(),
            effort: None,
            instructions: "Be good.".into(),
            project: None,
            tools: Arc::from([]),
            history: history.clone(),
            contents: ResourceContents::default(),
            cache_key: "k".to_owned(),
            session: SessionId::parse("s").unwrap(),
            resends: 0,
            response_options: ResponseOptions::default(),
        });
        let mut wants_more = false;
        while let Some(event) = call.next().await {
            let ModelEvent::Item(item) = event.unwrap() else { continue };
            match item {
                OutputItem::Reasoning { item } => {
                    let model = DEMO_MODEL.to_owned();
                    record(&mut history, Reasoning { item, model, extra: Extra::new() });
                }
                OutputItem::Message { text, .. } => {
                    steps.push(text.clone());
                    record(&mut history, AssistantMessage { text, ..AssistantMessage::default() });
                }
                OutputItem::Call(call) => {
                    wants_more = true;
                    steps.push(call.name.clone());
                    let args = serde_json::from_str(&call.arguments).unwrap();
                    let call_id = CallId::new(call.call_id.clone());
                    let name = call.name.clone();
                    record(
                        &mut history,
                        ToolCall { call_id, name, args, raw_args: None, extra: Extra::new() },
                    );
                    record(&mut history, result_of(&call.call_id, &call.name));
                }
                item @ (OutputItem::WebSearch(_) | OutputItem::Other { .. }) => panic!("{item:?}"),
            }
        }
        if !wants_more {
            break;
        }
    }
    let tools: Vec<&String> = steps.iter().filter(|word| !word.contains(' ')).collect();
    assert_eq!(tools, ["bash", "read", "edit", "bash"]);
    assert!(steps.last().unwrap().starts_with("Fixed."), "{steps:?}");
    assert!(server.requests().last().unwrap().body_text.contains("encrypted_content"));
}

/// The lists of sent and of refused fields are separate on purpose, so that one mistake does not
/// affect both. This checks that they agree.
#[test]
fn each_route_refuses_exactly_what_its_field_policy_leaves_out() {
    use crate::model::credential::FieldPolicy::{ChatGpt, Portable};
    for field in [
        "background",
        "conversation",
        "include",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "max_tool_calls",
        "metadata",
        "moderation",
        "multi_agent",
        "parallel_tool_calls",
        "previous_response_id",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "temperature",
        "text",
        "tool_choice",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
    ] {
        let mut body = good_body();
        body["instructions"] = json!("x");
        assert_eq!(
            (request_check::chatgpt_refusal(&body), request_check::portable_refusal(&body)),
            (None, None)
        );
        body[field] = json!("x");
        assert_eq!(
            request_check::chatgpt_refusal(&body).is_none(),
            ChatGpt.accepts(field),
            "{field}"
        );
        assert_eq!(
            request_check::portable_refusal(&body).is_none(),
            Portable.accepts(field),
            "{field}"
        );
    }
}

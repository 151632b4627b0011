//! A scripted MCP server over streamable HTTP on loopback.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pixir::scripted::Reply;
use pixir::{Ephemeral, EventKind, McpServer, SessionStatus, UserInput};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::test_env::{DEADLINE, listen_until, subscribe_from_now};

/// The bearer key that requests must carry.
pub const KEY: &str = "key-of-the-web-story";

/// A server that answers requests until the end of the test.
pub struct HttpMcpServer {
    pub url: String,
    received: Arc<Mutex<Vec<String>>>,
}

impl HttpMcpServer {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let received = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&received);
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let list = Arc::clone(&list);
                std::thread::spawn(move || serve_connection(connection, &list));
            }
        });
        Self { url, received }
    }

    pub fn server(&self, key: &str) -> McpServer {
        let headers = vec![("Authorization".to_owned(), format!("Bearer {key}"))];
        McpServer::http("web", self.url.clone(), headers)
    }

    fn received_calls(&self) -> Vec<String> {
        self.received.lock().unwrap().clone()
    }
}

/// Answers the requests of one connection.
fn serve_connection(connection: TcpStream, calls: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(connection.try_clone().unwrap());
    let mut wire = connection;
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(1..) if line.trim().is_empty() => break,
                Ok(1..) => head.push(line.trim().to_owned()),
                _ => return,
            }
        }
        let header = |name: &str| {
            let found = head.iter().find_map(|line| {
                let (own, value) = line.split_once(':')?;
                own.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            });
            found.unwrap_or_default()
        };
        let mut body = vec![0; header("content-length").parse().unwrap_or(0)];
        reader.read_exact(&mut body).unwrap();
        let message: Value = serde_json::from_slice(&body).unwrap_or_default();
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        let verb = head[0].split(' ').next().unwrap().to_owned();
        let session = header("mcp-session-id");
        calls.lock().unwrap().push(format!("{verb} {method} {session}").trim().to_owned());
        let answer = if header("authorization") == format!("Bearer {KEY}") {
            answer(&verb, &message)
        } else {
            plain(401, "text/plain", "who are you?")
        };
        // Notifications come before the answer.
        let cut = answer.rfind("event: message").unwrap_or(answer.len());
        let (early, late) = answer.split_at(cut);
        if wire.write_all(early.as_bytes()).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(if late.is_empty() { 0 } else { 100 }));
        wire.write_all(late.as_bytes()).ok();
    }
}

fn plain(status: u16, kind: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nMcp-Session-Id: s-1\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

fn answer(verb: &str, message: &Value) -> String {
    let answered = |result: Value| {
        json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string()
    };
    match (verb, message["method"].as_str().unwrap_or_default()) {
        ("GET", _) => plain(405, "text/plain", ""),
        ("DELETE", _) => plain(200, "text/plain", ""),
        (_, "initialize") => {
            let result = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                "serverInfo": {"name": "web-server", "version": "0.1"}});
            plain(200, "application/json", &answered(result))
        }
        (_, "tools/list") => {
            let tools = json!([{"name": "add", "inputSchema": {"type": "object"}}]);
            events(&[answered(json!({"tools": tools}))])
        }
        (_, "tools/call") => {
            let token = &message["params"]["_meta"]["progressToken"];
            let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress",
                "params": {"progressToken": token, "progress": 1, "message": "adding"}});
            let sum: i64 = ["a", "b"]
                .map(|name| message["params"]["arguments"][name].as_i64().unwrap_or(0))
                .iter()
                .sum();
            let result = json!({"content": [{"type": "text", "text": format!("sum {sum}")}]});
            events(&[progress.to_string(), answered(result)])
        }
        _ => plain(202, "text/plain", ""),
    }
}

fn events(messages: &[String]) -> String {
    let event = |message: &String| ["event: message\r\ndata: ", message, "\r\n\r\n"].concat();
    let body: String = messages.iter().map(event).collect();
    plain(200, "text/event-stream", &body)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_behind_an_address_is_used_like_any_other() {
    let web = HttpMcpServer::start();
    let replies = [Reply::calls("mcp__web__add", json!({"a": 2, "b": 40})), Reply::says("42.")];
    let mut env = TestEnv::with_replies(replies).await;
    env.config.mcp.wait = DEADLINE;
    env.mcp_servers = vec![web.server(KEY)];
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "add".into() }).await.unwrap();
    let received = listen_until(&mut listener, |event| {
        matches!(event.kind(), EventKind::Ephemeral(Ephemeral::Status(SessionStatus::Done)))
    })
    .await;
    let progress = received.iter().any(|event| {
        matches!(event.kind(), EventKind::Ephemeral(Ephemeral::ToolOutputDelta { chunk, .. })
            if chunk == "1 adding\n")
    });
    assert!(progress, "progress is shown");
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build auto
    1 user_message "add"
    2 provider_usage completed retries=0
    3 tool_call mcp__web__add {"a":2,"b":40}
    4 tool_result ok=true "sum 42"
    5 provider_usage completed retries=0
    6 assistant_message final "42."
    "#);
    let calls = web.received_calls();
    assert!(calls.contains(&"POST initialize".to_owned()), "{calls:?}");
    assert!(calls.contains(&"POST tools/call s-1".to_owned()), "{calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_wants_another_key_is_reported_and_not_tried_again() {
    let web = HttpMcpServer::start();
    let mut env = TestEnv::with_replies([Reply::says("Fine.")]).await;
    env.config.mcp.wait = DEADLINE;
    env.mcp_servers = vec![web.server("wrong-key-of-the-story")];
    let (conversation, status) = env.run_turn("hi").await;
    assert_eq!(status, SessionStatus::Done);
    let notices = conversation.take_notices().join("\n");
    assert!(notices.contains("HTTP 401; it is not tried again"), "{notices}");
}

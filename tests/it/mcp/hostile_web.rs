//! Hostile or broken MCP servers over HTTP: the Turn ends, and no request is repeated without end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pixir::scripted::Reply;
use pixir::{McpServer, SessionStatus};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::test_env::DEADLINE;

/// The parts of an HTTP request that tests need.
struct McpHttpRequest {
    verb: String,
    method: String,
    session: String,
    message: Value,
}

/// Writes the response; `true` when the connection can be used again.
type ServerBehaviour = dyn Fn(&McpHttpRequest, &mut TcpStream) -> bool + Send + Sync;

/// A server with a given behaviour, which records its requests.
struct HostileMcpServer {
    url: String,
    received: Arc<Mutex<Vec<String>>>,
}

impl HostileMcpServer {
    fn start(
        behaviour: impl Fn(&McpHttpRequest, &mut TcpStream) -> bool + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let received = Arc::new(Mutex::new(Vec::new()));
        let behaviour: Arc<ServerBehaviour> = Arc::new(behaviour);
        let list = Arc::clone(&received);
        std::thread::spawn(move || {
            for mut wire in listener.incoming().flatten() {
                let list = Arc::clone(&list);
                let behaviour = Arc::clone(&behaviour);
                std::thread::spawn(move || {
                    while let Some(asked) = read_request(&wire) {
                        let McpHttpRequest { verb, method, session, .. } = &asked;
                        let line = format!("{verb} {method} {session}");
                        list.lock().unwrap().push(line.trim().to_owned());
                        if !behaviour(&asked, &mut wire) {
                            return;
                        }
                    }
                });
            }
        });
        Self { url, received }
    }

    fn count_received(&self, what: &str) -> usize {
        self.received.lock().unwrap().iter().filter(|line| line.starts_with(what)).count()
    }

    fn server(&self) -> McpServer {
        let headers = vec![("Authorization".to_owned(), "Bearer key-of-this-story".to_owned())];
        McpServer::http("web", self.url.clone(), headers)
    }
}

fn read_request(wire: &TcpStream) -> Option<McpHttpRequest> {
    // The client waits for each answer, so the dropped reader has no buffered bytes.
    let mut reader = BufReader::new(wire.try_clone().ok()?);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        match reader.read_line(&mut line) {
            Ok(1..) if line.trim().is_empty() => break,
            Ok(1..) => head.push(line.trim().to_owned()),
            _ => return None,
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
    reader.read_exact(&mut body).ok()?;
    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
    Some(McpHttpRequest {
        verb: head.first()?.split(' ').next()?.to_owned(),
        method: message["method"].as_str().unwrap_or_default().to_owned(),
        session: header("mcp-session-id"),
        message,
    })
}

fn plain(wire: &mut TcpStream, status: u16, more: &str, body: &str) -> bool {
    let length = body.len();
    let text = format!("HTTP/1.1 {status} X\r\n{more}Content-Length: {length}\r\n\r\n{body}");
    wire.write_all(text.as_bytes()).is_ok()
}

fn json_of(wire: &mut TcpStream, session: &str, asked: &McpHttpRequest, result: &Value) -> bool {
    let body = json!({"jsonrpc": "2.0", "id": asked.message["id"], "result": result}).to_string();
    let more = format!("Content-Type: application/json\r\nMcp-Session-Id: {session}\r\n");
    plain(wire, 200, &more, &body)
}

/// The beginning of a stream that ends with its connection.
fn stream(wire: &mut TcpStream) {
    let head = "HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    wire.write_all(head.as_bytes()).ok();
}

/// Behaves as a correct server with one tool, `add`.
fn answer_correctly(asked: &McpHttpRequest, wire: &mut TcpStream, session: &str) -> bool {
    match (asked.verb.as_str(), asked.method.as_str()) {
        ("GET", _) => plain(wire, 405, "", ""),
        ("DELETE", _) => plain(wire, 200, "", ""),
        (_, "initialize") => json_of(
            wire,
            session,
            asked,
            &json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                "serverInfo": {"name": "web-server", "version": "0.1"}}),
        ),
        (_, "tools/list") => {
            let tools = json!([{"name": "add", "inputSchema": {"type": "object"}}]);
            json_of(wire, session, asked, &json!({"tools": tools}))
        }
        (_, "tools/call") => {
            let result = json!({"content": [{"type": "text", "text": "added"}]});
            json_of(wire, session, asked, &result)
        }
        _ => plain(wire, 202, "", ""),
    }
}

async fn new_test_env(web: &HostileMcpServer, replies: impl IntoIterator<Item = Reply>) -> TestEnv {
    let mut env = TestEnv::with_replies(replies).await;
    env.config.mcp.wait = DEADLINE;
    env.mcp_servers = vec![web.server()];
    env
}

/// Runs a Turn that calls `add`; gives its result.
async fn call_add(env: &TestEnv) -> String {
    let (_, status) = env.run_turn("add").await;
    assert_eq!(status, SessionStatus::Done);
    env.requests().pop().unwrap().outputs().last().unwrap().to_string()
}

fn adding() -> [Reply; 2] {
    [Reply::calls("mcp__web__add", json!({})), Reply::says("Fine.")]
}

/// Runs a Turn with an unusable server; gives the notices about it.
async fn notices_of(web: &HostileMcpServer) -> String {
    let mut env = new_test_env(web, [Reply::says("Fine.")]).await;
    env.config.mcp.connect = Duration::from_secs(2);
    let (conversation, status) = env.run_turn("hi").await;
    assert_eq!(status, SessionStatus::Done);
    conversation.take_notices().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed_and_takes_no_key_along() {
    let thief = HostileMcpServer::start(|asked, wire| answer_correctly(asked, wire, "s-1"));
    let place = thief.url.clone();
    let web = HostileMcpServer::start(move |_, wire| {
        plain(wire, 307, &format!("Location: {place}\r\n"), "")
    });
    let notices = notices_of(&web).await;
    assert!(notices.contains("HTTP 307") && notices.contains("redirect"), "{notices}");
    assert_eq!(thief.count_received(""), 0, "the redirect was not followed");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_has_its_status() {
    for (status, outlook) in [(403, "not tried"), (404, "tried again"), (500, "tried again")] {
        let web =
            HostileMcpServer::start(move |_, wire| plain(wire, status, "", "<html>no</html>"));
        let notices = notices_of(&web).await;
        assert!(
            notices.contains(&format!("HTTP {status}")) && notices.contains(outlook),
            "{notices}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_greeting_that_never_ends_is_given_up() {
    for (piece, words) in [
        (": wait\n\n", "did not answer within 2 s"),
        ("data: x", "did not answer within 2 s"),
        ("event: message\ndata: {\"x\":1}\n\n", "violates the MCP protocol"),
    ] {
        let web = HostileMcpServer::start(move |_, wire| {
            stream(wire);
            while wire.write_all(piece.as_bytes()).is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
            false
        });
        let notices = notices_of(&web).await;
        assert!(notices.contains(words), "{piece}: {notices}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_an_end_is_not_kept() {
    let web = HostileMcpServer::start(|_, wire| {
        let head = "HTTP/1.1 200 X\r\nContent-Type: application/json\r\n\r\n";
        wire.write_all(head.as_bytes()).ok();
        while wire.write_all(&[b' '; 8192]).is_ok() {}
        false
    });
    let mut env = new_test_env(&web, [Reply::says("Fine.")]).await;
    env.config.mcp.connect = DEADLINE;
    let (conversation, status) = env.run_turn("hi").await;
    assert_eq!(status, SessionStatus::Done);
    let notices = conversation.take_notices().join("\n");
    assert!(notices.contains("is too large"), "{notices}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_the_server_forgot_is_begun_again() {
    let count = AtomicUsize::new(1);
    let web = HostileMcpServer::start(move |asked, wire| {
        let is_old = asked.session == "s-1" && asked.method == "tools/call";
        if is_old {
            return plain(wire, 404, "", "who?");
        }
        // The first `initialize` gets a session that expires.
        let session = match asked.session.as_str() {
            "" => format!("s-{}", count.fetch_add(1, Ordering::Relaxed)),
            known => known.to_owned(),
        };
        answer_correctly(asked, wire, &session)
    });
    let env = new_test_env(&web, adding()).await;
    let output = call_add(&env).await;
    assert!(output.contains("added"), "{output}");
    assert_eq!(web.count_received("POST initialize"), 2);
    assert_eq!(web.count_received("POST tools/call s-1"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_result_on_a_stream_is_an_answer() {
    let web = HostileMcpServer::start(|asked, wire| {
        if asked.method != "tools/call" {
            return answer_correctly(asked, wire, "s-1");
        }
        stream(wire);
        let answer = json!({"jsonrpc": "2.0", "id": asked.message["id"], "error": "nonsense"});
        write!(wire, "data: {answer}\n\n").ok();
        // The stream stays open after the answer.
        std::thread::sleep(DEADLINE * 2);
        false
    });
    let output = call_add(&new_test_env(&web, adding()).await).await;
    assert!(output.contains("its answer cannot be read"), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_ends_without_an_answer_ends_the_call() {
    let web = HostileMcpServer::start(|asked, wire| {
        if asked.method != "tools/call" {
            return answer_correctly(asked, wire, "s-1");
        }
        stream(wire);
        wire.write_all(b": nothing to say\n\n").ok();
        false
    });
    let output = call_add(&new_test_env(&web, adding()).await).await;
    assert!(output.contains("MCP server `web`") && output.contains("`add`"), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_up_on_listeners_is_not_stormed() {
    for farewell in ["retry: 0\ndata: x\n\n", ""] {
        let web = HostileMcpServer::start(move |asked, wire| {
            if asked.verb != "GET" {
                return answer_correctly(asked, wire, "s-1");
            }
            if farewell.is_empty() {
                // The stream breaks off in the middle of a chunk.
                let head = "HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\n\
                            Transfer-Encoding: chunked\r\n\r\nff\r\n: ";
                wire.write_all(head.as_bytes()).ok();
                return false;
            }
            stream(wire);
            wire.write_all(farewell.as_bytes()).ok();
            false
        });
        let env = new_test_env(&web, adding()).await;
        let conversation = env.start().await;
        let status = crate::support::test_env::send_and_finish(&conversation, "add").await;
        assert_eq!(status, SessionStatus::Done);
        // A fixed time in which repeated requests would show.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let listened = web.count_received("GET");
        assert!((1..10).contains(&listened), "{farewell:?}: {listened} times");
    }
}

//! The reference MCP server of the protocol, from npm.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use pixir::scripted::Reply;
use pixir::{McpServer, SessionStatus};
use serde_json::json;

use super::of_server;
use crate::support::binary_env::wait_for;
use crate::support::test_env::DEADLINE;
use crate::support::{TestEnv, torture};

/// Path at which `.ci/run` installs the server.
const PLACE: &str = "target/npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js";

/// The server's program, if it is installed; in CI it must be.
fn program() -> Option<PathBuf> {
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(PLACE);
    if program.exists() {
        return Some(program);
    }
    assert!(std::env::var_os("CI").is_none(), "{} is not installed", program.display());
    torture::print_summary("the server of somebody else: SKIPPED, npm has not installed it here");
    None
}

#[tokio::test(flavor = "multi_thread")]
async fn a_third_party_server_is_driven() {
    let Some(program) = program() else { return };
    let replies = [
        Reply::calls("mcp__everything__echo", json!({"message": "hello"})),
        Reply::calls("mcp__everything__get-sum", json!({"a": 2, "b": 40})),
        Reply::calls("mcp__everything__get-tiny-image", json!({})),
        Reply::says("It works."),
    ];
    let mut env = TestEnv::with_replies(replies).await;
    env.config.mcp.wait = DEADLINE;
    let args = vec![program.to_string_lossy().into_owned(), "stdio".to_owned()];
    env.mcp_servers = vec![McpServer::stdio("everything", "node", args, Vec::new())];
    let (conversation, status) = env.run_turn("use everything").await;
    assert_eq!(status, SessionStatus::Done, "{:?}", conversation.take_notices());
    assert!(of_server(&env.requests()[0]).len() >= 5, "{:?}", conversation.take_notices());
    assert_eq!(env.requests().last().unwrap().images().len(), 1);
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build auto
    1 user_message "use everything"
    2 provider_usage completed retries=0
    3 tool_call mcp__everything__echo {"message":"hello"}
    4 tool_result ok=true "Echo: hello"
    5 provider_usage completed retries=0
    6 tool_call mcp__everything__get-sum {"a":2,"b":40}
    7 tool_result ok=true "The sum of 2 and 40 is 42."
    8 provider_usage completed retries=0
    9 tool_call mcp__everything__get-tiny-image {}
    10 tool_result ok=true "Here's the image you requested:\nimage image (image/png, 20x20, 4033 bytes), reso…"
    11 provider_usage completed retries=0
    12 assistant_message final "It works."
    "#);
}

/// A process that is killed on drop.
struct KilledOnDrop(std::process::Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_server_is_driven_over_http() {
    let Some(program) = program() else { return };
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let child = Command::new("node")
        .arg(program)
        .arg("streamableHttp")
        .env("PORT", free.port().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _child = KilledOnDrop(child);
    let is_up = wait_for(DEADLINE, || TcpStream::connect(free).is_ok(), |is_up| *is_up);
    assert!(is_up, "it listens");
    let replies = [
        Reply::calls("mcp__everything__get-sum", json!({"a": 2, "b": 40})),
        Reply::calls(
            "mcp__everything__trigger-long-running-operation",
            json!({"duration": 1, "steps": 2}),
        ),
        Reply::says("It works."),
    ];
    let mut env = TestEnv::with_replies(replies).await;
    env.config.mcp.wait = DEADLINE;
    let url = format!("http://{free}/mcp");
    env.mcp_servers = vec![McpServer::http("everything", url, Vec::new())];
    let (conversation, status) = env.run_turn("use everything").await;
    assert_eq!(status, SessionStatus::Done);
    let log = env.transcript(&conversation);
    assert!(log.contains("The sum of 2 and 40 is 42."), "{log} {:?}", conversation.take_notices());
    assert!(log.contains("Long running operation completed"), "{log}");
}

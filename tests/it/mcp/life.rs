//! The lifecycle of MCP servers: none survives the end of Pixir.

use std::time::Duration;

use pixir::McpServer;
use pixir::SessionStatus;
use pixir::scripted::{ModelScript, Reply};
use pixir::workbench::{Workbench, WorkbenchSetup};
use rustix::process::Signal;
use serde_json::json;

use super::server::{arguments, entry};
use crate::support::TestEnv;
use crate::support::binary_env::{BinaryEnv, wait_for};
use crate::support::marked_processes::{find_marked_processes, new_mark, wait_until_gone};
use crate::support::test_env::{DEADLINE, PIXIR, send_and_finish};

async fn new_binary_env(script: ModelScript) -> BinaryEnv {
    let mark = BinaryEnv::new_mark();
    let binary_env = BinaryEnv::new(mark.clone(), script).await;
    let servers = json!({"story": entry(&json!({"daemon": mark}), &mark)});
    binary_env.configure(
        &json!({"durability": "none", "mcp_servers": servers, "mcp": {"wait_ms": 60_000}}),
    );
    binary_env
}

fn is_served(binary_env: &BinaryEnv) -> bool {
    binary_env.survivors().iter().any(|line| line.contains("a_server_when_asked"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_ends_with_the_run() {
    let binary_env = new_binary_env(ModelScript::answering(|_| Reply::says("Done."))).await;
    binary_env.run(&["hi"]).expect_code(0);
    let offered = super::offered(&binary_env.server.requests()[0]);
    assert!(offered.iter().any(|name| name.starts_with("mcp__story__")), "{offered:?}");
    binary_env.assert_nothing_survives();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_pixir_leaves_no_server() {
    for signal in [Signal::KILL, Signal::TERM] {
        let call = Reply::calls("mcp__story__wait", json!({}));
        let binary_env = new_binary_env(ModelScript::new([call])).await;
        let running = binary_env.start(&["wait for it"]);
        let called = || binary_env.session().is_some() && binary_env.events().len() >= 4;
        assert!(wait_for(Duration::from_mins(1), called, |called| *called), "the call is made");
        assert!(is_served(&binary_env));
        assert!(
            binary_env.survivors().iter().any(|line| line.contains("sleep 1000")),
            "with a daemon"
        );
        running.signal(signal);
        running.end();
        binary_env.assert_nothing_survives();
    }
}

#[tokio::test]
async fn a_session_that_ends_takes_its_servers_along_while_pixir_lives() {
    let mark = new_mark();
    let mut test_env = TestEnv::with_replies([Reply::says("Hello."), Reply::says("Hello.")]).await;
    test_env.config.mcp.wait = DEADLINE;
    let env = vec![("STORY_SERVER".to_owned(), "{}".to_owned())];
    test_env.mcp_servers = vec![McpServer::stdio("story", "/bin/sh", arguments(&mark), env)];
    let conversation = test_env.start().await;
    assert_eq!(send_and_finish(&conversation, "hi").await, SessionStatus::Done);
    assert!(!find_marked_processes(&mark).is_empty(), "it runs");
    drop(conversation);
    wait_until_gone(&mark, "the Session is over").await;
}

#[tokio::test]
async fn a_service_answers_and_is_contained_with_and_without_namespaces() {
    for subreaper in [false, true] {
        let mark = new_mark();
        let folder = tempfile::tempdir().unwrap();
        let bench = Workbench::new(WorkbenchSetup {
            own_binary: PIXIR.into(),
            folder: folder.path(),
            environment: vec![("PATH".into(), std::env::var_os("PATH").unwrap())],
            subreaper,
            drain: Duration::from_millis(100),
            grace: Duration::from_millis(300),
        })
        .unwrap();
        let script = format!(
            "read -r word; echo heard $word; echo aside >&2; \
             setsid sh -c 'sleep 1000; : {mark}' & sh -c 'sleep 1000; : {mark}'"
        );
        let (output, aside) = bench.exchange_with_service(&script, "hello\n").await.unwrap();
        assert_eq!((output.as_str(), aside.as_str()), ("heard hello\n", "aside\n"));
        wait_until_gone(&mark, "nothing of a service stays").await;
        let over =
            bench.exchange_with_service("read -r word; exit 7", "hello\n").await.unwrap_err();
        assert!(over.message.contains("Code(7)"), "{over:?}");
    }
}

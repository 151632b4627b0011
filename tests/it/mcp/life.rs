//! The lifecycle of MCP servers: however Pixir ends, none of them stays.

use std::time::Duration;

use pixir::McpServer;
use pixir::Status;
use pixir::scripted::{Reply, Script};
use pixir::workbench::{Setup, Workbench};
use rustix::process::Signal;
use serde_json::json;

use super::server::{arguments, entry};
use crate::support::House;
use crate::support::house::{DEADLINE, PIXIR, say};
use crate::support::marked::{gone, marked, new_mark};
use crate::support::stage::{Stage, wait_for};

async fn stage(script: Script) -> Stage {
    let mark = Stage::mark();
    let stage = Stage::new(mark.clone(), script).await;
    let servers = json!({"story": entry(&json!({"daemon": mark}), &mark)});
    stage.configure(
        &json!({"durability": "none", "mcp_servers": servers, "mcp": {"wait_ms": 60_000}}),
    );
    stage
}

fn is_served(stage: &Stage) -> bool {
    stage.survivors().iter().any(|line| line.contains("a_server_when_asked"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_ends_with_the_run() {
    let stage = stage(Script::answering(|_| Reply::says("Done."))).await;
    stage.run(&["hi"]).expect_code(0);
    stage.assert_nothing_survives();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_pixir_leaves_no_server() {
    for signal in [Signal::KILL, Signal::TERM] {
        let call = Reply::calls("mcp__story__wait", json!({}));
        let stage = stage(Script::new([call])).await;
        let running = stage.start(&["wait for it"]);
        let called = || stage.session().is_some() && stage.events().len() >= 4;
        assert!(wait_for(Duration::from_mins(1), called, |called| *called), "the call is made");
        assert!(is_served(&stage));
        assert!(stage.survivors().iter().any(|line| line.contains("sleep 1000")), "with a daemon");
        running.signal(signal);
        running.end();
        stage.assert_nothing_survives();
    }
}

#[tokio::test]
async fn a_session_that_ends_takes_its_servers_along_while_pixir_lives() {
    let mark = new_mark();
    let mut house = House::with([Reply::says("Hello."), Reply::says("Hello.")]).await;
    house.config.mcp.wait = DEADLINE;
    let env = vec![("STORY_SERVER".to_owned(), "{}".to_owned())];
    house.mcp_servers = vec![McpServer::stdio("story", "/bin/sh", arguments(&mark), env)];
    let conversation = house.start().await;
    assert_eq!(say(&conversation, "hi").await, Status::Done);
    assert!(!marked(&mark).is_empty(), "it runs");
    drop(conversation);
    gone(&mark, "the Session is over").await;
}

#[tokio::test]
async fn a_service_is_heard_and_held_with_and_without_namespaces() {
    for subreaper in [false, true] {
        let mark = new_mark();
        let folder = tempfile::tempdir().unwrap();
        let bench = Workbench::new(Setup {
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
        let (said, aside) = bench.converse(&script, "hello\n").await.unwrap();
        assert_eq!((said.as_str(), aside.as_str()), ("heard hello\n", "aside\n"));
        gone(&mark, "nothing of a service stays").await;
        let over = bench.converse("read -r word; exit 7", "hello\n").await.unwrap_err();
        assert!(over.message.contains("Code(7)"), "{over:?}");
    }
}

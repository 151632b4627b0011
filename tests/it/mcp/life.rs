//! The life of servers: whatever becomes of Pixir, nothing of them stays.

use std::time::Duration;

use pixir::scripted::{Reply, Script};
use rustix::process::Signal;
use serde_json::json;

use super::server::entry;
use crate::support::stage::{Stage, wait_for};

async fn stage(script: Script) -> Stage {
    let mark = Stage::mark();
    let stage = Stage::new(mark.clone(), script).await;
    let servers = json!({"story": entry(&json!({}), &mark)});
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
        running.signal(signal);
        running.end();
        stage.assert_nothing_survives();
    }
}

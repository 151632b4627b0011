//! Input that cannot fit the model's window.

use std::fs::File;

use pixir::scripted::{Reply, Script};
use serde_json::json;

use super::envelope;
use crate::support::Stage;
use crate::support::stage::Running;

#[tokio::test(flavor = "multi_thread")]
async fn input_that_cannot_fit_is_refused_before_it_is_sent() {
    let stage = Stage::new(Stage::mark(), Script::new([Reply::says("Hello.")])).await;
    stage.configure(&json!({"durability": "none", "context_window": 16_000}));
    let huge = "word ".repeat(25_000);
    let ended = stage.run(&["--json", &huge]);
    ended.expect_code(1);
    assert!(stage.server.requests().is_empty(), "nothing left");
    let said = envelope(&ended.stdout);
    assert_eq!(said["error"]["kind"], "context_overflow");
    let details = &said["error"]["details"];
    assert_eq!(details["window_tokens"], 16_000);
    assert!(details["input_tokens"].as_u64() > Some(16_000), "{details}");
    for words in ["larger window", "file", "context_window"] {
        assert!(details["next_actions"].to_string().contains(words), "{words}: {details}");
    }
    let events = stage.events();
    let last = events.last().unwrap();
    assert_eq!(last["data"]["terminal_status"], "configuration_error", "{last}");
    assert!(events.iter().all(|event| event["type"] != "provider_usage"));
    // The Session goes on: what was too long is told in short from now on.
    let ended = stage.run(&["resume", "--last", "then just say hello"]);
    ended.expect_code(0);
    assert_eq!(stage.server.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_nobody_knows_is_no_reason_to_refuse() {
    let stage = Stage::new(Stage::mark(), Script::new([Reply::says("Hello.")])).await;
    let path = stage.workspace().join("long.txt");
    std::fs::write(&path, "word ".repeat(200_000)).unwrap();
    let mut command = stage.command(&["--model", "unheard-of", "-"]);
    let ended = Running::start(command.stdin(File::open(path).unwrap())).end();
    ended.expect_code(0);
    assert_eq!(stage.server.requests().len(), 1);
}

//! Input that cannot fit the model's window.

use std::fs::File;

use pixir::scripted::{ModelScript, Reply};
use serde_json::json;

use super::envelope;
use crate::support::BinaryEnv;
use crate::support::binary_env::RunningProcess;

#[tokio::test(flavor = "multi_thread")]
async fn input_that_cannot_fit_is_refused_before_it_is_sent() {
    let env =
        BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new([Reply::says("Hello.")])).await;
    env.configure(&json!({"durability": "none", "context_window": 16_000}));
    let huge = "word ".repeat(25_000);
    let ended = env.run(&["--json", &huge]);
    ended.expect_code(1);
    assert!(env.server.requests().is_empty(), "nothing left");
    let printed = envelope(&ended.stdout);
    assert_eq!(printed["error"]["kind"], "context_overflow");
    let details = &printed["error"]["details"];
    assert_eq!(details["window_tokens"], 16_000);
    assert!(details["input_tokens"].as_u64() > Some(16_000), "{details}");
    for words in ["larger window", "file", "context_window"] {
        assert!(details["next_actions"].to_string().contains(words), "{words}: {details}");
    }
    let events = env.events();
    let last = events.last().unwrap();
    assert_eq!(last["data"]["terminal_status"], "configuration_error", "{last}");
    assert!(events.iter().all(|event| event["type"] != "provider_usage"));
    // The Session continues: the input that was too long is summarised from now on.
    let ended = env.run(&["resume", "--last", "then just say hello"]);
    ended.expect_code(0);
    assert_eq!(env.server.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_window_is_no_reason_to_refuse() {
    let env =
        BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new([Reply::says("Hello.")])).await;
    let path = env.workspace().join("long.txt");
    std::fs::write(&path, "word ".repeat(200_000)).unwrap();
    let mut command = env.command(&["--model", "unheard-of", "-"]);
    let ended = RunningProcess::start(command.stdin(File::open(path).unwrap())).end();
    ended.expect_code(0);
    assert_eq!(env.server.requests().len(), 1);
}

//! Hard budgets: the limits of a run, and the report when one is exceeded.

use std::time::{Duration, Instant};

use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use crate::support::BinaryEnv;

async fn new_binary_env(replies: impl IntoIterator<Item = Reply>) -> BinaryEnv {
    BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new(replies)).await
}

fn read() -> Reply {
    Reply::calls("read", json!({"path": "a"}))
}

fn envelope(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn last_failure(env: &BinaryEnv) -> Value {
    let events = env.events();
    let last = events.iter().rfind(|event| event["type"] == "turn_failed").unwrap();
    last["data"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_over_the_run_and_retries_count() {
    let env = new_binary_env([Reply::status(500, "oops"), Reply::status(500, "oops")]).await;
    let ended = env.run(&["--json", "--max-requests", "2", "hi"]);
    ended.expect_code(6);
    let printed = envelope(&ended.stdout);
    assert_eq!((&printed["ok"], &printed["status"]), (&json!(false), &json!("incomplete")));
    assert_eq!(printed["error"]["kind"], "budget_exceeded");
    assert_eq!(printed["error"]["details"]["budget"], "max_requests");
    assert!(ended.stderr.contains("--max-requests"), "{}", ended.stderr);
    assert_eq!(env.server.requests().len(), 2);
    let failed = last_failure(&env);
    assert_eq!(failed["terminal_status"], "budget_exceeded");
    let usage_records =
        env.events().iter().filter(|event| event["type"] == "provider_usage").count();
    assert_eq!(usage_records, 1, "the failed call is recorded");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_counted_over_the_session_and_nothing_leaves_beyond_them() {
    let replies = [read().usage(900, 0, 200), Reply::says("done"), Reply::says("more")];
    let env = new_binary_env(replies).await;
    let ended = env.run(&["--max-tokens-total", "1000", "hi"]);
    ended.expect_code(6);
    assert!(ended.stderr.contains("1100 tokens of 1000 (--max-tokens-total)"), "{}", ended.stderr);
    assert!(ended.stderr.contains("try: raise --max-tokens-total"), "{}", ended.stderr);
    assert_eq!(env.server.requests().len(), 1);
    // The next run of the same Session counts the usage of the last one.
    let again = env.run(&["resume", "--last", "--max-tokens-total", "1000", "go on"]);
    again.expect_code(6);
    assert_eq!(env.server.requests().len(), 1);
    env.run(&["resume", "--last", "--max-tokens-total", "5000", "go on"]).expect_code(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn cost_needs_a_price_and_then_ends_the_turn() {
    let env = new_binary_env([read().usage(1_000_000, 500_000, 0), Reply::says("done")]).await;
    let blind = env.run(&["--max-cost", "1", "hi"]);
    blind.expect_code(2);
    assert!(blind.stderr.contains("the price of gpt-5.5 is not in `prices`"), "{}", blind.stderr);
    assert_eq!((env.server.requests().len(), env.session()), (0, None));
    let prices = json!({"gpt-5.5": {"input": 2, "cached_input": 0.5, "output": 10}});
    env.configure(&json!({"durability": "none", "prices": prices}));
    let ended = env.run(&["--json", "--max-cost", "1.25", "hi"]);
    ended.expect_code(6);
    let printed = envelope(&ended.stdout);
    assert_eq!(printed["error"]["details"]["budget"], "max_cost");
    assert_eq!(printed["usage"]["estimated_cost_usd"], 1.25);
    assert_eq!(env.server.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_answer_that_was_billed_counts() {
    let replies = [
        Reply::new().text("Half").usage(700, 0, 10).fails_billed("server_error", "oops"),
        Reply::says("done").usage(100, 0, 10),
    ];
    let env = new_binary_env(replies).await;
    let ended = env.run(&["--json", "hi"]);
    ended.expect_code(0);
    assert_eq!(envelope(&ended.stdout)["usage"]["total_tokens"], 820);
    let events = env.events();
    let usage_record = events.iter().find(|event| event["type"] == "provider_usage").unwrap();
    assert_eq!(usage_record["data"]["usage"]["total_tokens"], 110);
    assert_eq!(usage_record["data"]["failed_usage"]["total_tokens"], 710);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_ends_a_stalled_model_and_a_sleeping_command() {
    let mark = BinaryEnv::new_mark();
    let sleep = json!({"command": format!("sleep 60 # {mark}")});
    for reply in [Reply::new().text("Half").stalls(), Reply::calls("bash", sleep)] {
        let env =
            BinaryEnv::new(mark.clone(), ModelScript::new([reply, Reply::says("later")])).await;
        let started = Instant::now();
        let ended = env.run(&["--json", "--timeout", "700ms", "hi"]);
        ended.expect_code(124);
        assert!(started.elapsed() < Duration::from_secs(20));
        let printed = envelope(&ended.stdout);
        assert_eq!(
            (&printed["status"], &printed["error"]["kind"]),
            (&json!("timed_out"), &json!("timeout"))
        );
        assert!(printed["error"]["message"].as_str().unwrap().contains("--timeout"));
        assert_eq!(last_failure(&env)["terminal_status"], "timed_out");
        env.assert_nothing_survives();
        let (id, _) = env.session().unwrap();
        assert!(pixir::verify_log(&env.workspace(), &id).unwrap().ok);
        env.run(&["resume", "--last", "go on"]).expect_code(0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_sets_no_budget_and_a_bad_one_is_refused() {
    let env = new_binary_env([Reply::says("hello"), Reply::says("hello")]).await;
    std::fs::create_dir_all(env.workspace().join(".pixir")).unwrap();
    let sly = json!({"max_requests": 1, "timeout": "1ms", "web_search": true, "provider": "x",
        "providers": {"x": {"base_url": "http://127.0.0.1:1"}}});
    std::fs::write(env.workspace().join(".pixir/config.json"), sly.to_string()).unwrap();
    let ended = env.run(&["hi"]);
    ended.expect_code(0);
    for key in ["max_requests", "timeout", "web_search", "provider", "providers"] {
        assert!(ended.stderr.contains(&format!("`{key}`")), "{}", ended.stderr);
    }
    assert_eq!(ended.stderr.matches("is not trusted").count(), 1, "{}", ended.stderr);
    for flags in [["--timeout", "soon"], ["--max-cost", "lots"], ["--max-cost", "0"]] {
        env.run(&[flags[0], flags[1], "hi"]).expect_code(2);
    }
    assert_eq!(env.server.requests().len(), 1);
}

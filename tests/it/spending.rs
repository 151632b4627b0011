//! `pixir usage` and `pixir models`.

use std::fs::OpenOptions;
use std::io::Write;

use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use crate::support::BinaryEnv;
use crate::support::binary_env::RunningProcess;

fn output(text: &str) -> Value {
    serde_json::from_str::<Value>(text).unwrap()["output"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_summed_per_session_model_and_day() {
    let replies = [
        Reply::says("one").usage(1_000_000, 750_000, 100_000),
        Reply::says("two").usage(100, 0, 10),
        Reply::status(401, r#"{"error":{"message":"no"}}"#),
    ];
    let env = BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new(replies)).await;
    let prices = json!({"gpt-5.5": {"input": 2, "cached_input": 0.5, "output": 10}});
    env.configure(&json!({"durability": "none", "prices": prices}));
    assert!(env.run(&["usage"]).expect_code(0).stdout.contains("no Provider was called"));
    env.run(&["hi"]).expect_code(0);
    env.run(&["resume", "--last", "--model", "other", "hi"]).expect_code(0);
    env.run(&["hi"]).expect_code(4);

    let spent = output(&env.run(&["usage", "--json"]).expect_code(0).stdout);
    let total = &spent["total"];
    assert_eq!((&total["calls"], &total["failed"]), (&json!(3), &json!(1)));
    assert_eq!(total["input_tokens"], 1_000_100);
    assert!((total["cache_hit_rate"].as_f64().unwrap() - 0.75).abs() < 0.001);
    assert_eq!(
        (&total["estimated_cost_usd"], &total["calls_without_cost"]),
        (&json!(1.875), &json!(1))
    );
    assert_eq!(spent["models"][0]["name"], "gpt-5.5");
    assert_eq!(spent["models"][1]["estimated_cost_usd"], Value::Null);
    assert_eq!(spent["days"].as_array().unwrap().len(), 1);
    let sessions = spent["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), 2);

    let id = sessions[0]["session_id"].as_str().unwrap();
    let one = output(&env.run(&["usage", id, "--json"]).expect_code(0).stdout);
    assert_eq!(one["total"]["calls"], 2);
    let text = env.run(&["usage", "--since", "7d"]).expect_code(0).stdout.clone();
    for words in ["3 calls (1 failed)", "75 % cached", "$1.8750", "by model", "by Session"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    env.run(&["usage", "--since", "yesterday"]).expect_code(2);
    env.run(&["usage", "20260101T000000-aaaaaa"]).expect_code(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_and_copies_do_not_change_the_sums() {
    let env = BinaryEnv::new(
        BinaryEnv::new_mark(),
        ModelScript::new([Reply::says("one").usage(500, 0, 5)]),
    )
    .await;
    env.run(&["hi"]).expect_code(0);
    let (id, path) = env.session().unwrap();
    let mut log = OpenOptions::new().append(true).open(path).unwrap();
    log.write_all(b"\0\xff garbage\n{\"id\":1,\"type\":\"provider_usage\",\"data\":{\"torn")
        .unwrap();
    drop(log);
    env.run(&["repair", id.as_str()]).expect_code(0);
    let spent = output(&env.run(&["usage", "--all", "--json"]).expect_code(0).stdout);
    assert_eq!(
        (&spent["total"]["calls"], &spent["total"]["total_tokens"]),
        (&json!(1), &json!(505))
    );
    assert_eq!(spent["unreadable_lines"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_listed_asked_for_and_remembered() {
    let catalogue = json!({"models": [
        {"slug": "gpt-9", "context_window": 900_000, "default_reasoning_level": "low",
         "supported_reasoning_levels": [{"effort": "low"}, {"effort": "high"}]},
        {"slug": "hidden", "visibility": "hide"},
        {"slug": "bare"},
        {"id": "listed", "max_input_tokens": 200_000, "max_tokens": 64_000},
    ]});
    let env = BinaryEnv::new(
        BinaryEnv::new_mark(),
        ModelScript::new([Reply::says("x")]).listing(catalogue),
    )
    .await;
    let built_in = env.run(&["models"]);
    built_in.expect_code(0);
    assert!(built_in.stdout.contains("* gpt-5.5"), "{}", built_in.stdout);
    assert!(built_in.stdout.contains("272000  low [medium] high xhigh"), "{}", built_in.stdout);
    assert!(env.server.listings().is_empty());

    let fresh = output(&env.run(&["models", "refresh", "--json"]).expect_code(0).stdout);
    let asked = env.server.listings();
    assert_eq!(asked[0].header("authorization"), Some("Bearer sk-test-of-binary-env"));
    assert_eq!(fresh["source"], "endpoint");
    let names: Vec<&str> =
        fresh["models"].as_array().unwrap().iter().filter_map(|m| m["name"].as_str()).collect();
    assert_eq!(names, ["bare", "gpt-5.5", "gpt-9", "listed"]);
    assert_eq!(fresh["models"][3]["context_window"], 200_000);
    assert_eq!(
        (&fresh["models"][0]["context_window"], &fresh["models"][0]["context_window_known"]),
        (&json!(128_000), &json!(false))
    );
    assert_eq!(fresh["models"][2]["efforts"], json!(["low", "high"]));

    let later = output(&env.run(&["models", "--json"]).expect_code(0).stdout);
    assert_eq!((&later["models"], &later["source"]), (&fresh["models"], &json!("endpoint")));
    assert_eq!(env.server.listings().len(), 1);
    // An unknown model and effort are passed on.
    env.run(&["--model", "unheard-of", "--effort", "gentle", "hi"]).expect_code(0);
    let body = &env.server.requests()[0].body;
    assert_eq!(
        (&body["model"], &body["reasoning"]["effort"]),
        (&json!("unheard-of"), &json!("gentle"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_lists_nothing_is_an_error_that_says_so() {
    let env =
        BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new([]).listing(json!({"hello": 1})))
            .await;
    let ended = env.run(&["models", "refresh", "--json"]);
    ended.expect_code(1);
    let printed: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(printed["error"]["kind"], "invalid_response");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_provider_says_is_left_is_on_record_and_shown_with_its_reset() {
    let event = json!({"type": "codex.rate_limits", "plan_type": "plus", "rate_limits": {
        "primary": {"used_percent": 64, "window_minutes": 300, "reset_at": 4_000_000_000_u64},
        "secondary": {"used_percent": 8, "window_minutes": 10_080, "reset_at": 4_000_009_000_u64}}});
    let replies = [
        Reply::says("one")
            .header("x-codex-primary-used-percent", "12")
            .header("x-codex-primary-reset-at", "3999999999")
            .header("x-ratelimit-remaining-requests", "59")
            .header("x-unheard-of", "secret-of-test-env"),
        Reply::new().event("codex.rate_limits", &event).text("two"),
    ];
    let env = BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new(replies)).await;
    env.run(&["hi"]).expect_code(0);
    let usage_record = |env: &BinaryEnv| {
        let events = env.events();
        let usage_record = events.iter().rfind(|event| event["type"] == "provider_usage").unwrap();
        usage_record["data"]["rate_limits"].clone()
    };
    assert_eq!(
        usage_record(&env),
        json!({"primary": {"used_percent": 12.0, "resets_at": 3_999_999_999_u64},
            "requests": {"remaining": 59}})
    );
    let mut socket = env.command(&["resume", "--last", "hi"]);
    let ended = RunningProcess::start(socket.env("PIXIR_TRANSPORT", "websocket")).end();
    ended.expect_code(0);
    assert_eq!(usage_record(&env)["secondary"]["window_minutes"], 10_080);
    let text = env.run(&["usage"]).expect_code(0).stdout.clone();
    assert!(text.contains("64 % of 5 h used, resets 2096-10-02 07:06 UTC"), "{text}");
    assert!(text.contains("8 % of 7 d used"), "{text}");
    let spent = output(&env.run(&["usage", "--json"]).expect_code(0).stdout);
    assert_eq!(spent["limits"]["plan"], "plus");
    assert!(spent["limits"]["seen_at"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_used_up_plan_states_the_reset_time_of_its_headers() {
    let error = json!({"error": {"type": "usage_limit_reached", "message": "It is used up"}});
    let spent = Reply::status(429, error.to_string())
        .header("x-codex-primary-used-percent", "100")
        .header("x-codex-primary-reset-at", "4000000000");
    for transport in ["sse", "websocket"] {
        let env = BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new([spent.clone()])).await;
        let mut command = env.command(&["hi"]);
        let ended = RunningProcess::start(command.env("PIXIR_TRANSPORT", transport)).end();
        ended.expect_code(1);
        assert!(ended.stderr.contains("(until 2096-10-02 07:06 UTC)"), "{}", ended.stderr);
        let events = env.events();
        let usage_record = events.iter().find(|event| event["type"] == "provider_usage").unwrap();
        assert_eq!(
            usage_record["data"]["rate_limits"]["primary"]["used_percent"], 100.0,
            "{usage_record}"
        );
    }
}

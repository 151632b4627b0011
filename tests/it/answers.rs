//! Answers that match a JSON schema, and answers with web search.

use std::fs;

use pixir::scripted::{ModelScript, Reply};
use serde_json::{Value, json};

use crate::support::BinaryEnv;

async fn new_binary_env(replies: impl IntoIterator<Item = Reply>) -> BinaryEnv {
    BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new(replies)).await
}

fn with_schema(env: &BinaryEnv, schema: &str) {
    fs::write(env.workspace().join("schema.json"), schema).unwrap();
}

const COUNT: &str = r#"{"type":"object","additionalProperties":false,"required":["count"],
    "properties":{"count":{"type":"integer"}}}"#;

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_fits_its_schema_is_an_answer() {
    let env = new_binary_env([Reply::says(r#"{"count": 3}"#)]).await;
    with_schema(&env, COUNT);
    let ended = env.run(&["--output-schema", "schema.json", "count"]);
    ended.expect_code(0);
    assert_eq!(ended.stdout, "{\"count\": 3}\n");
    let format = &env.server.requests()[0].body["text"]["format"];
    assert_eq!((&format["type"], &format["strict"]), (&json!("json_schema"), &json!(true)));
    assert_eq!(format["schema"], serde_json::from_str::<Value>(COUNT).unwrap());
    assert!(format["name"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_misses_its_schema_is_none() {
    let env = new_binary_env([Reply::says(r#"{"count": "three"}"#), Reply::says("three")]).await;
    with_schema(&env, COUNT);
    let ended = env.run(&["--json", "--output-schema", "schema.json", "count"]);
    ended.expect_code(6);
    let printed: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(printed["error"]["kind"], "schema_mismatch");
    assert_eq!(printed["error"]["details"]["errors"][0]["path"], "/count");
    let plain = env.run(&["resume", "--last", "--output-schema", "schema.json", "count"]);
    plain.expect_code(6);
    assert_eq!(plain.stdout, "", "stdout is the answer alone");
    assert!(plain.stderr.contains("does not fit the schema: it is not JSON"), "{}", plain.stderr);
    let (id, _) = env.session().unwrap();
    assert!(pixir::verify_log(&env.workspace(), &id).unwrap().ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_schema_stops_the_run_before_anything_is_sent() {
    let env = new_binary_env([Reply::says("hello")]).await;
    for schema in ["{", "[]", r#"{"type": "objekt"}"#] {
        with_schema(&env, schema);
        let ended = env.run(&["--output-schema", "schema.json", "count"]);
        ended.expect_code(2);
        assert!(ended.stderr.contains("--output-schema schema.json"), "{}", ended.stderr);
    }
    env.run(&["--output-schema", "missing.json", "count"]).expect_code(2);
    env.run(&["--output-schema", ".", "count"]).expect_code(2);
    assert_eq!((env.server.requests().len(), env.session()), (0, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_leaves_bounded_evidence_and_no_query() {
    let many: Vec<String> = (0..30).map(|n| format!("https://pages.example/{n}")).collect();
    let sources: Vec<&str> = many.iter().map(String::as_str).collect();
    let reply = Reply::new()
        .web_search("my very private question", &sources)
        .citing("Rust is at 1.95.", &[("https://blog.example/rust", "Rust \u{1b}[31m1.95")]);
    let env = new_binary_env([reply, Reply::says("no search")]).await;
    let ended = env.run(&["--web-search", "which version?"]);
    ended.expect_code(0);
    assert_eq!(ended.stdout, "Rust is at 1.95.\n");
    assert!(ended.stderr.contains("[1] Rust"), "{}", ended.stderr);
    assert!(ended.stderr.contains("https://blog.example/rust"), "{}", ended.stderr);
    assert!(!ended.stderr.contains('\u{1b}'));
    let body = &env.server.requests()[0].body;
    let tools = body["tools"].as_array().unwrap();
    assert_eq!(tools.last().unwrap(), &json!({"type": "web_search"}));
    assert_eq!(body["include"][1], "web_search_call.action.sources");

    let events = env.events();
    let usage_record = events.iter().find(|event| event["type"] == "provider_usage").unwrap();
    let search = &usage_record["data"]["web_search"];
    assert_eq!((&search["calls"], &search["queries"]), (&json!(1), &json!(1)));
    assert_eq!(search["query_lengths"], json!([24]));
    assert_eq!(
        (search["sources"].as_array().unwrap().len(), &search["sources_total"]),
        (20, &json!(31))
    );
    let message = events.iter().find(|event| event["type"] == "assistant_message").unwrap();
    assert_eq!(message["data"]["metadata"]["citations"][0]["url"], "https://blog.example/rust");
    let (_, log) = env.session().unwrap();
    assert!(!fs::read_to_string(log).unwrap().contains("private question"));

    // Without the flag, web search is not offered, and the earlier search is not replayed.
    env.run(&["resume", "--last", "thanks"]).expect_code(0);
    let body = &env.server.requests()[1].body;
    assert!(!body["tools"].to_string().contains("web_search"));
    assert!(!body["input"].to_string().contains("web_search_call"));
}

//! Answers with a shape, and answers from the web.

use std::fs;

use pixir::scripted::{Reply, Script};
use serde_json::{Value, json};

use crate::support::Stage;

async fn stage(replies: impl IntoIterator<Item = Reply>) -> Stage {
    Stage::new(Stage::mark(), Script::new(replies)).await
}

fn with_schema(stage: &Stage, schema: &str) {
    fs::write(stage.workspace().join("schema.json"), schema).unwrap();
}

const COUNT: &str = r#"{"type":"object","additionalProperties":false,"required":["count"],
    "properties":{"count":{"type":"integer"}}}"#;

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_fits_its_schema_is_an_answer() {
    let stage = stage([Reply::says(r#"{"count": 3}"#)]).await;
    with_schema(&stage, COUNT);
    let ended = stage.run(&["--output-schema", "schema.json", "count"]);
    ended.expect_code(0);
    assert_eq!(ended.stdout, "{\"count\": 3}\n");
    let format = &stage.server.requests()[0].body["text"]["format"];
    assert_eq!((&format["type"], &format["strict"]), (&json!("json_schema"), &json!(true)));
    assert_eq!(format["schema"], serde_json::from_str::<Value>(COUNT).unwrap());
    assert!(format["name"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_misses_its_schema_is_none() {
    let stage = stage([Reply::says(r#"{"count": "three"}"#), Reply::says("three")]).await;
    with_schema(&stage, COUNT);
    let ended = stage.run(&["--json", "--output-schema", "schema.json", "count"]);
    ended.expect_code(6);
    let said: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(said["error"]["kind"], "schema_mismatch");
    assert_eq!(said["error"]["details"]["errors"][0]["path"], "/count");
    let plain = stage.run(&["resume", "--last", "--output-schema", "schema.json", "count"]);
    plain.expect_code(6);
    assert_eq!(plain.stdout, "", "stdout is the answer alone");
    assert!(plain.stderr.contains("does not fit the schema: it is not JSON"), "{}", plain.stderr);
    let (id, _) = stage.session().unwrap();
    assert!(pixir::verify(&stage.workspace(), &id).unwrap().ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_schema_stops_the_run_before_anything_is_sent() {
    let stage = stage([Reply::says("hello")]).await;
    for schema in ["{", "[]", r#"{"type": "objekt"}"#] {
        with_schema(&stage, schema);
        let ended = stage.run(&["--output-schema", "schema.json", "count"]);
        ended.expect_code(2);
        assert!(ended.stderr.contains("--output-schema schema.json"), "{}", ended.stderr);
    }
    stage.run(&["--output-schema", "missing.json", "count"]).expect_code(2);
    stage.run(&["--output-schema", ".", "count"]).expect_code(2);
    assert_eq!((stage.server.requests().len(), stage.session()), (0, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_leaves_bounded_evidence_and_no_query() {
    let many: Vec<String> = (0..30).map(|n| format!("https://pages.example/{n}")).collect();
    let sources: Vec<&str> = many.iter().map(String::as_str).collect();
    let reply = Reply::new()
        .web_search("my very private question", &sources)
        .citing("Rust is at 1.95.", &[("https://blog.example/rust", "Rust \u{1b}[31m1.95")]);
    let stage = stage([reply, Reply::says("no search")]).await;
    let ended = stage.run(&["--web-search", "which version?"]);
    ended.expect_code(0);
    assert_eq!(ended.stdout, "Rust is at 1.95.\n");
    assert!(ended.stderr.contains("[1] Rust"), "{}", ended.stderr);
    assert!(ended.stderr.contains("https://blog.example/rust"), "{}", ended.stderr);
    assert!(!ended.stderr.contains('\u{1b}'));
    let body = &stage.server.requests()[0].body;
    let tools = body["tools"].as_array().unwrap();
    assert_eq!(tools.last().unwrap(), &json!({"type": "web_search"}));
    assert_eq!(body["include"][1], "web_search_call.action.sources");

    let events = stage.events();
    let bill = events.iter().find(|event| event["type"] == "provider_usage").unwrap();
    let search = &bill["data"]["web_search"];
    assert_eq!((&search["calls"], &search["queries"]), (&json!(1), &json!(1)));
    assert_eq!(search["query_lengths"], json!([24]));
    assert_eq!(
        (search["sources"].as_array().unwrap().len(), &search["sources_total"]),
        (20, &json!(31))
    );
    let message = events.iter().find(|event| event["type"] == "assistant_message").unwrap();
    assert_eq!(message["data"]["metadata"]["citations"][0]["url"], "https://blog.example/rust");
    let (_, log) = stage.session().unwrap();
    assert!(!fs::read_to_string(log).unwrap().contains("private question"));

    // Without the flag nothing is offered, and the search is not replayed.
    stage.run(&["resume", "--last", "thanks"]).expect_code(0);
    let body = &stage.server.requests()[1].body;
    assert!(!body["tools"].to_string().contains("web_search"));
    assert!(!body["input"].to_string().contains("web_search_call"));
}

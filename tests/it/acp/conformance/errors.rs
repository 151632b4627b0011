//! Errors: failed Turns, the code of an unknown Session, and a connection that survives all of them.

use serde_json::{Value, json};

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, case, run_prompt};
use super::scripted_model::script_prompt;

pub const TOPIC: ConformanceTopic =
    ConformanceTopic::new("errors and endings", CASES).with_args(&["--auto"]);

/// Runs a Turn that fails; gives its error code and checks that error and updates contain the words.
#[track_caller]
fn failed(env: &mut CaseEnv, replies: &[&str], words: &str) -> i64 {
    let session = env.session();
    let turn = env.run_prompt(&session, &script_prompt("go", replies));
    let error = turn.outcome.clone().unwrap_err();
    assert!(turn.text().contains(words), "shown: {turn:?}");
    assert!(error.to_string().contains(words), "told: {error}");
    assert_eq!(env.run_prompt(&session, "next » say fine").text(), "fine", "the Session lives on");
    turn.code()
}

const CASES: &[ConformanceCase] = &[
    case("a request that the Provider refuses is an error, and shown", |env| {
        assert_eq!(
            failed(env, &["status 400 that makes no sense"], "that makes no sense"),
            -32_603
        );
    }),
    case("a Provider that stays down is an error, and shown", |env| {
        assert_eq!(failed(env, &["status 500 down for repairs"], "down for repairs"), -32_603);
    }),
    case("a stream that breaks is an error, and shown", |env| {
        let turn = env.run_in_new_session("go » say half of it ;; break");
        assert_eq!(turn.code(), -32_603);
        assert!(
            turn.text().starts_with("half of it") && turn.text().contains('\u{26a0}'),
            "{turn:?}"
        );
    }),
    case("a model that fails is an error, and shown", |env| {
        let turn = env.run_in_new_session("go » fail the model fell over");
        assert!(turn.outcome.is_err() && !turn.text().is_empty(), "{turn:?}");
    }),
    case("a failure after a call is an error, and the call has ended", |env| {
        let turn =
            env.run_in_new_session(&script_prompt("go", &["bash echo x", "status 400 no more"]));
        assert_eq!((turn.code(), turn.call()["status"].as_str()), (-32_603, Some("completed")));
    }),
    case("an editor can show the details alone", |env| {
        let turn = env.run_in_new_session("go » status 400 that makes no sense");
        let error = turn.outcome.unwrap_err();
        let data = error["data"].as_object().unwrap();
        assert_eq!(data.keys().collect::<Vec<_>>(), ["details"]);
        assert!(data["details"].is_string(), "{error}");
    }),
    case("an answer that was cut says so", |env| {
        assert_eq!(env.run_in_new_session("go » say half ;; cut").stop(), "max_tokens");
        assert_eq!(env.run_in_new_session("go » cut").stop(), "max_tokens");
    }),
    case("a model that refuses says so", |env| {
        let turn = env.run_in_new_session("go » refuse I will not");
        assert_eq!(turn.stop(), "refusal");
    }),
    case("the limit of requests says so", |env| {
        let mut other = env.start_other(&["--auto", "--max-iterations", "1"], json!({}));
        let session = other.new_session(&env.workspace());
        let turn = run_prompt(
            &mut other,
            &session,
            &script_prompt("go", &["bash echo 1", "bash echo 2", "say done"]),
        );
        assert_eq!(turn.stop(), "max_turn_requests");
    }),
    case("no end is without words", |env| {
        for script in ["say", "cut", "filter", "refuse no", "status 400 x", "break"] {
            let turn = env.run_in_new_session(&format!("go » {script}"));
            let is_told = !turn.text().trim().is_empty();
            let says_why =
                turn.outcome.as_ref().is_ok_and(|answer| answer["stopReason"] != "end_turn");
            assert!(is_told || says_why || turn.outcome.is_err(), "{script}: {turn:?}");
        }
    }),
    case("a Session that nobody knows has its own code, whatever is asked", |env| {
        for id in ["20260101T000000-abcdef", "nonsense", "../x", ""] {
            for (method, key, value) in [
                ("session/prompt", "prompt", json!([{"type": "text", "text": "x"}])),
                ("session/set_mode", "modeId", json!("ask")),
                ("session/close", "_meta", json!({})),
                ("session/set_model", "modelId", json!("gpt-5.5")),
            ] {
                let error =
                    env.client.call(method, json!({"sessionId": id, key: value})).unwrap_err();
                assert_eq!(
                    (&error["code"], &error["data"]["sessionId"]),
                    (&json!(-32_002), &json!(id)),
                    "{method}: {error}"
                );
            }
            let option = json!({"sessionId": id, "configId": "mode", "value": "ask"});
            assert_eq!(
                env.client.call("session/set_config_option", option).unwrap_err()["code"],
                -32_002
            );
        }
    }),
    case("a Session that is no text is a bad parameter", |env| {
        for id in [json!(7), Value::Null, json!({}), json!([])] {
            for method in [
                "session/prompt",
                "session/close",
                "session/delete",
                "session/load",
                "session/set_mode",
            ] {
                let error = env
                    .client
                    .send_invalid(method, &json!({"sessionId": id, "prompt": []}))
                    .unwrap_err();
                assert_eq!(error["code"], -32_602, "{method} {id}: {error}");
            }
        }
    }),
    case("an error does not carry the user's line back", |env| {
        let secret = "x".repeat(100_000);
        let error = env.client.send_invalid(&secret, &json!({})).unwrap_err();
        assert!(error.to_string().len() < 2000, "{} bytes", error.to_string().len());
        let answer = env
            .client
            .send_line(format!("{{{secret}").as_bytes(), |message| message.get("error").is_some());
        assert!(answer.to_string().len() < 2000);
    }),
    case("codes of our own are outside of what is reserved", |env| {
        let known = [-32_700, -32_600, -32_601, -32_602, -32_603, -32_000, -32_002, -32_800];
        let seen =
            env.client.received.iter().filter_map(|message| message["error"]["code"].as_i64());
        let odd: Vec<i64> = seen.filter(|code| !known.contains(code)).collect();
        assert!(odd.iter().all(|code| !(-32_899..=-32_000).contains(code)), "{odd:?}");
    }),
    case("a hundred errors in a row end nothing", |env| {
        for number in 0..100 {
            env.client.send_invalid("nope", &json!({ "n": number })).unwrap_err();
        }
        assert_eq!(env.run_in_new_session("hello").stop(), "end_turn");
    }),
    case("the Log cannot be written and that is said", |env| {
        let place = env.workspace().join("sealed");
        std::fs::create_dir_all(&place).unwrap();
        // A file where the folder of Sessions would be.
        std::fs::write(place.join(".pixir"), "not a folder").unwrap();
        // Another one at the fallback folder in the Home.
        let instead = env.workspace().parent().unwrap().join("home/.pixir/workspaces");
        std::fs::create_dir_all(instead.parent().unwrap()).unwrap();
        std::fs::write(&instead, "not a folder").unwrap();
        let error =
            env.client.call("session/new", json!({"cwd": place, "mcpServers": []})).unwrap_err();
        std::fs::remove_file(instead).unwrap();
        assert!(!error["message"].as_str().unwrap().is_empty());
        env.client.still_answers();
    }),
    case("what is odd is not repeated at length", |env| {
        let long = "x".repeat(100_000);
        for (method, params) in [
            ("session/load", json!({"sessionId": long, "cwd": "/"})),
            ("session/new", json!({"cwd": format!("/{long}"), "mcpServers": []})),
            ("session/set_mode", json!({"sessionId": "20260101T000000-abcdef", "modeId": long})),
            (long.as_str(), json!({})),
            ("session/list", json!({"cursor": long})),
        ] {
            let error = env.client.send_invalid(method, &params).unwrap_err();
            assert!(error.to_string().len() < 5000, "{method}");
        }
        let line = format!(r#"{{"jsonrpc":"2.0","id":"{long}"}}"#);
        env.client.code_of(line.as_bytes());
    }),
];

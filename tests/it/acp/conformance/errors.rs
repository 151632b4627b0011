//! Errors: failed Turns, the code of an unknown Session, and a connection that survives all of them.

use serde_json::{Value, json};

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, case, turn};
use super::scripted_model::script_prompt;

pub const TOPIC: ConformanceTopic =
    ConformanceTopic::new("errors and endings", CASES).with_args(&["--auto"]);

/// Runs a Turn that fails; gives its error code and checks that error and updates contain the words.
#[track_caller]
fn failed(scene: &mut CaseEnv, replies: &[&str], words: &str) -> i64 {
    let session = scene.session();
    let told = scene.turn(&session, &script_prompt("go", replies));
    let error = told.outcome.clone().unwrap_err();
    assert!(told.text().contains(words), "shown: {told:?}");
    assert!(error.to_string().contains(words), "told: {error}");
    assert_eq!(scene.turn(&session, "next » say fine").text(), "fine", "the Session lives on");
    told.code()
}

const CASES: &[ConformanceCase] = &[
    case("a request that the Provider refuses is an error, and shown", |scene| {
        assert_eq!(
            failed(scene, &["status 400 that makes no sense"], "that makes no sense"),
            -32_603
        );
    }),
    case("a Provider that stays down is an error, and shown", |scene| {
        assert_eq!(failed(scene, &["status 500 down for repairs"], "down for repairs"), -32_603);
    }),
    case("a stream that breaks is an error, and shown", |scene| {
        let told = scene.once("go » say half of it ;; break");
        assert_eq!(told.code(), -32_603);
        assert!(
            told.text().starts_with("half of it") && told.text().contains('\u{26a0}'),
            "{told:?}"
        );
    }),
    case("a model that fails is an error, and shown", |scene| {
        let told = scene.once("go » fail the model fell over");
        assert!(told.outcome.is_err() && !told.text().is_empty(), "{told:?}");
    }),
    case("a failure after a call is an error, and the call has ended", |scene| {
        let told = scene.once(&script_prompt("go", &["bash echo x", "status 400 no more"]));
        assert_eq!((told.code(), told.call()["status"].as_str()), (-32_603, Some("completed")));
    }),
    case("an editor can show the details alone", |scene| {
        let told = scene.once("go » status 400 that makes no sense");
        let error = told.outcome.unwrap_err();
        let data = error["data"].as_object().unwrap();
        assert_eq!(data.keys().collect::<Vec<_>>(), ["details"]);
        assert!(data["details"].is_string(), "{error}");
    }),
    case("an answer that was cut says so", |scene| {
        assert_eq!(scene.once("go » say half ;; cut").stop(), "max_tokens");
        assert_eq!(scene.once("go » cut").stop(), "max_tokens");
    }),
    case("a model that refuses says so", |scene| {
        let told = scene.once("go » refuse I will not");
        assert_eq!(told.stop(), "refusal");
    }),
    case("the limit of requests says so", |scene| {
        let mut other = scene.other(&["--auto", "--max-iterations", "1"], json!({}));
        let session = other.new_session(&scene.workspace());
        let told = turn(
            &mut other,
            &session,
            &script_prompt("go", &["bash echo 1", "bash echo 2", "say done"]),
        );
        assert_eq!(told.stop(), "max_turn_requests");
    }),
    case("no end is without words", |scene| {
        for script in ["say", "cut", "filter", "refuse no", "status 400 x", "break"] {
            let told = scene.once(&format!("go » {script}"));
            let is_told = !told.text().trim().is_empty();
            let says_why =
                told.outcome.as_ref().is_ok_and(|answer| answer["stopReason"] != "end_turn");
            assert!(is_told || says_why || told.outcome.is_err(), "{script}: {told:?}");
        }
    }),
    case("a Session that nobody knows has its own code, whatever is asked", |scene| {
        for id in ["20260101T000000-abcdef", "nonsense", "../x", ""] {
            for (method, key, value) in [
                ("session/prompt", "prompt", json!([{"type": "text", "text": "x"}])),
                ("session/set_mode", "modeId", json!("ask")),
                ("session/close", "_meta", json!({})),
                ("session/set_model", "modelId", json!("gpt-5.5")),
            ] {
                let error =
                    scene.probe.call(method, json!({"sessionId": id, key: value})).unwrap_err();
                assert_eq!(
                    (&error["code"], &error["data"]["sessionId"]),
                    (&json!(-32_002), &json!(id)),
                    "{method}: {error}"
                );
            }
            let option = json!({"sessionId": id, "configId": "mode", "value": "ask"});
            assert_eq!(
                scene.probe.call("session/set_config_option", option).unwrap_err()["code"],
                -32_002
            );
        }
    }),
    case("a Session that is no text is a bad parameter", |scene| {
        for id in [json!(7), Value::Null, json!({}), json!([])] {
            for method in [
                "session/prompt",
                "session/close",
                "session/delete",
                "session/load",
                "session/set_mode",
            ] {
                let error = scene
                    .probe
                    .send_invalid(method, &json!({"sessionId": id, "prompt": []}))
                    .unwrap_err();
                assert_eq!(error["code"], -32_602, "{method} {id}: {error}");
            }
        }
    }),
    case("an error does not carry the user's line back", |scene| {
        let secret = "x".repeat(100_000);
        let error = scene.probe.send_invalid(&secret, &json!({})).unwrap_err();
        assert!(error.to_string().len() < 2000, "{} bytes", error.to_string().len());
        let told = scene
            .probe
            .send_line(format!("{{{secret}").as_bytes(), |message| message.get("error").is_some());
        assert!(told.to_string().len() < 2000);
    }),
    case("codes of our own are outside of what is reserved", |scene| {
        let known = [-32_700, -32_600, -32_601, -32_602, -32_603, -32_000, -32_002, -32_800];
        let seen =
            scene.probe.received.iter().filter_map(|message| message["error"]["code"].as_i64());
        let odd: Vec<i64> = seen.filter(|code| !known.contains(code)).collect();
        assert!(odd.iter().all(|code| !(-32_899..=-32_000).contains(code)), "{odd:?}");
    }),
    case("a hundred errors in a row end nothing", |scene| {
        for number in 0..100 {
            scene.probe.send_invalid("nope", &json!({ "n": number })).unwrap_err();
        }
        assert_eq!(scene.once("hello").stop(), "end_turn");
    }),
    case("the Log cannot be written and that is said", |scene| {
        let place = scene.workspace().join("sealed");
        std::fs::create_dir_all(&place).unwrap();
        // A file where the folder of Sessions would be.
        std::fs::write(place.join(".pixir"), "not a folder").unwrap();
        // Another one at the fallback folder in the Home.
        let instead = scene.workspace().parent().unwrap().join("home/.pixir/workspaces");
        std::fs::create_dir_all(instead.parent().unwrap()).unwrap();
        std::fs::write(&instead, "not a folder").unwrap();
        let error =
            scene.probe.call("session/new", json!({"cwd": place, "mcpServers": []})).unwrap_err();
        std::fs::remove_file(instead).unwrap();
        assert!(!error["message"].as_str().unwrap().is_empty());
        scene.probe.still_answers();
    }),
    case("what is odd is not repeated at length", |scene| {
        let long = "x".repeat(100_000);
        for (method, params) in [
            ("session/load", json!({"sessionId": long, "cwd": "/"})),
            ("session/new", json!({"cwd": format!("/{long}"), "mcpServers": []})),
            ("session/set_mode", json!({"sessionId": "20260101T000000-abcdef", "modeId": long})),
            (long.as_str(), json!({})),
            ("session/list", json!({"cursor": long})),
        ] {
            let error = scene.probe.send_invalid(method, &params).unwrap_err();
            assert!(error.to_string().len() < 5000, "{method}");
        }
        let line = format!(r#"{{"jsonrpc":"2.0","id":"{long}"}}"#);
        scene.probe.code_of(line.as_bytes());
    }),
];

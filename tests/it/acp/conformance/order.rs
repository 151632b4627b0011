//! Order: requests sent without waiting are handled in order within each Session.

use serde_json::json;

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, case};
use super::scripted_model::script_prompt;

pub const TOPIC: ConformanceTopic = ConformanceTopic::new("order", CASES).with_args(&["--auto"]);

/// Requests that a Session be opened; gives the id of the request.
fn open(env: &mut CaseEnv, method: &str, session: &str) -> u64 {
    let params = json!({"sessionId": session, "cwd": env.workspace(), "mcpServers": []});
    env.client.send_request(method, params)
}

/// A Session with a long-running command.
#[track_caller]
fn busy(env: &mut CaseEnv) -> (String, u64) {
    let session = env.session();
    let command = format!("bash echo begun; sleep 600; echo {}", env.binary_env.mark);
    let prompt = env.client.send_prompt(&session, &script_prompt("go", &[&command]));
    env.client.wait_for_message("its output", |message| message.to_string().contains("begun\\n"));
    (session, prompt)
}

const CASES: &[ConformanceCase] = &[
    case("what is opened right behind a close is opened after it", |env| {
        for method in ["session/load", "session/resume"] {
            let (session, running) = busy(env);
            let close = env.client.send_request("session/close", json!({"sessionId": session}));
            let load = open(env, method, &session);
            let prompt = env.client.send_prompt(&session, "again » say Here I am.");
            assert_eq!(env.client.wait_for_answer(running).unwrap()["stopReason"], "cancelled");
            assert_eq!(env.client.wait_for_answer(close).unwrap(), json!({}));
            assert!(env.client.wait_for_answer(load).unwrap()["modes"].is_object());
            assert_eq!(
                env.client.wait_for_answer(prompt).unwrap()["stopReason"],
                "end_turn",
                "{method}"
            );
            let place = |id: u64| {
                let received = &env.client.received;
                received
                    .iter()
                    .position(|message| message.get("method").is_none() && message["id"] == id)
            };
            assert!(place(running) < place(close) && place(close) < place(load));
            assert!(place(load) < place(prompt));
        }
    }),
    case("what is asked between a close and the next opening is refused", |env| {
        let (session, _) = busy(env);
        env.client.send_request("session/close", json!({"sessionId": session}));
        let early = env.client.send_prompt(&session, "too early");
        let again = env.client.send_request("session/close", json!({"sessionId": session}));
        let load = open(env, "session/load", &session);
        assert_eq!(env.client.wait_for_answer(early).unwrap_err()["code"], -32_002);
        assert_eq!(env.client.wait_for_answer(again).unwrap_err()["code"], -32_002);
        env.client.wait_for_answer(load).unwrap();
        assert_eq!(env.run_prompt(&session, "now").stop(), "end_turn");
    }),
    case("what is opened right behind a delete is not there", |env| {
        let (session, running) = busy(env);
        let delete = env.client.send_request("session/delete", json!({"sessionId": session}));
        let load = open(env, "session/load", &session);
        let prompt = env.client.send_prompt(&session, "anybody?");
        assert_eq!(env.client.wait_for_answer(running).unwrap()["stopReason"], "cancelled");
        assert_eq!(env.client.wait_for_answer(delete).unwrap(), json!({}));
        for id in [load, prompt] {
            assert_eq!(env.client.wait_for_answer(id).unwrap_err()["code"], -32_002);
        }
        assert!(!env.workspace().join(format!(".pixir/sessions/{session}.ndjson")).exists());
    }),
    case("closed, opened and closed many times at once, it is free in the end", |env| {
        let session = env.session();
        env.run_prompt(&session, "first");
        let mut asked = Vec::new();
        for _ in 0..10 {
            asked.push(env.client.send_request("session/close", json!({"sessionId": session})));
            asked.push(open(env, "session/resume", &session));
        }
        asked.push(env.client.send_request("session/close", json!({"sessionId": session})));
        for id in asked {
            env.client.wait_for_answer(id).unwrap();
        }
        let resumed = env.binary_env.run(&["resume", &session, "second"]);
        resumed.expect_code(0);
    }),
    case("a Session that is being closed does not hold up another", |env| {
        let (session, running) = busy(env);
        let other = env.session();
        let close = env.client.send_request("session/close", json!({"sessionId": session}));
        let load = open(env, "session/load", &session);
        assert_eq!(env.client.run_prompt(&other, "meanwhile").unwrap()["stopReason"], "end_turn");
        for id in [running, close, load] {
            env.client.wait_for_answer(id).unwrap();
        }
    }),
    case("an opening that fails does not take the next one with it", |env| {
        let session = env.session();
        env.client.call("session/close", json!({"sessionId": session})).unwrap();
        let nowhere = json!({"sessionId": session, "cwd": "/no/such/place", "mcpServers": []});
        let failed = env.client.send_request("session/load", nowhere);
        let close = env.client.send_request("session/close", json!({"sessionId": session}));
        let load = open(env, "session/load", &session);
        let prompt = env.client.send_prompt(&session, "hello");
        assert_eq!(env.client.wait_for_answer(failed).unwrap_err()["code"], -32_602);
        assert_eq!(env.client.wait_for_answer(close).unwrap_err()["code"], -32_002);
        env.client.wait_for_answer(load).unwrap();
        assert_eq!(env.client.wait_for_answer(prompt).unwrap()["stopReason"], "end_turn");
    }),
];

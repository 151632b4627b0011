//! Order: requests sent without waiting are handled in order within each Session.

use serde_json::json;

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, case};
use super::scripted_model::script_prompt;

pub const TOPIC: ConformanceTopic = ConformanceTopic::new("order", CASES).with_args(&["--auto"]);

/// Requests that a Session be opened; gives the id of the request.
fn open(scene: &mut CaseEnv, method: &str, session: &str) -> u64 {
    let params = json!({"sessionId": session, "cwd": scene.workspace(), "mcpServers": []});
    scene.probe.send_request(method, params)
}

/// A Session with a long-running command.
#[track_caller]
fn busy(scene: &mut CaseEnv) -> (String, u64) {
    let session = scene.session();
    let command = format!("bash echo begun; sleep 600; echo {}", scene.env.mark);
    let prompt = scene.probe.send_prompt(&session, &script_prompt("go", &[&command]));
    scene.probe.wait_for_message("its output", |message| message.to_string().contains("begun\\n"));
    (session, prompt)
}

const CASES: &[ConformanceCase] = &[
    case("what is opened right behind a close is opened after it", |scene| {
        for method in ["session/load", "session/resume"] {
            let (session, running) = busy(scene);
            let close = scene.probe.send_request("session/close", json!({"sessionId": session}));
            let load = open(scene, method, &session);
            let prompt = scene.probe.send_prompt(&session, "again » say Here I am.");
            assert_eq!(scene.probe.wait_for_answer(running).unwrap()["stopReason"], "cancelled");
            assert_eq!(scene.probe.wait_for_answer(close).unwrap(), json!({}));
            assert!(scene.probe.wait_for_answer(load).unwrap()["modes"].is_object());
            assert_eq!(
                scene.probe.wait_for_answer(prompt).unwrap()["stopReason"],
                "end_turn",
                "{method}"
            );
            let place = |id: u64| {
                let received = &scene.probe.received;
                received
                    .iter()
                    .position(|message| message.get("method").is_none() && message["id"] == id)
            };
            assert!(place(running) < place(close) && place(close) < place(load));
            assert!(place(load) < place(prompt));
        }
    }),
    case("what is asked between a close and the next opening is refused", |scene| {
        let (session, _) = busy(scene);
        scene.probe.send_request("session/close", json!({"sessionId": session}));
        let early = scene.probe.send_prompt(&session, "too early");
        let again = scene.probe.send_request("session/close", json!({"sessionId": session}));
        let load = open(scene, "session/load", &session);
        assert_eq!(scene.probe.wait_for_answer(early).unwrap_err()["code"], -32_002);
        assert_eq!(scene.probe.wait_for_answer(again).unwrap_err()["code"], -32_002);
        scene.probe.wait_for_answer(load).unwrap();
        assert_eq!(scene.turn(&session, "now").stop(), "end_turn");
    }),
    case("what is opened right behind a delete is not there", |scene| {
        let (session, running) = busy(scene);
        let delete = scene.probe.send_request("session/delete", json!({"sessionId": session}));
        let load = open(scene, "session/load", &session);
        let prompt = scene.probe.send_prompt(&session, "anybody?");
        assert_eq!(scene.probe.wait_for_answer(running).unwrap()["stopReason"], "cancelled");
        assert_eq!(scene.probe.wait_for_answer(delete).unwrap(), json!({}));
        for id in [load, prompt] {
            assert_eq!(scene.probe.wait_for_answer(id).unwrap_err()["code"], -32_002);
        }
        assert!(!scene.workspace().join(format!(".pixir/sessions/{session}.ndjson")).exists());
    }),
    case("closed, opened and closed many times at once, it is free in the end", |scene| {
        let session = scene.session();
        scene.turn(&session, "first");
        let mut asked = Vec::new();
        for _ in 0..10 {
            asked.push(scene.probe.send_request("session/close", json!({"sessionId": session})));
            asked.push(open(scene, "session/resume", &session));
        }
        asked.push(scene.probe.send_request("session/close", json!({"sessionId": session})));
        for id in asked {
            scene.probe.wait_for_answer(id).unwrap();
        }
        let resumed = scene.env.run(&["resume", &session, "second"]);
        resumed.expect_code(0);
    }),
    case("a Session that is being closed does not hold up another", |scene| {
        let (session, running) = busy(scene);
        let other = scene.session();
        let close = scene.probe.send_request("session/close", json!({"sessionId": session}));
        let load = open(scene, "session/load", &session);
        assert_eq!(scene.probe.run_prompt(&other, "meanwhile").unwrap()["stopReason"], "end_turn");
        for id in [running, close, load] {
            scene.probe.wait_for_answer(id).unwrap();
        }
    }),
    case("an opening that fails does not take the next one with it", |scene| {
        let session = scene.session();
        scene.probe.call("session/close", json!({"sessionId": session})).unwrap();
        let nowhere = json!({"sessionId": session, "cwd": "/no/such/place", "mcpServers": []});
        let failed = scene.probe.send_request("session/load", nowhere);
        let close = scene.probe.send_request("session/close", json!({"sessionId": session}));
        let load = open(scene, "session/load", &session);
        let prompt = scene.probe.send_prompt(&session, "hello");
        assert_eq!(scene.probe.wait_for_answer(failed).unwrap_err()["code"], -32_602);
        assert_eq!(scene.probe.wait_for_answer(close).unwrap_err()["code"], -32_002);
        scene.probe.wait_for_answer(load).unwrap();
        assert_eq!(scene.probe.wait_for_answer(prompt).unwrap()["stopReason"], "end_turn");
    }),
];

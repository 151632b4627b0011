//! Loading and resuming: the full replay, or none, and the continuation of the Session.

use serde_json::{Value, json};

use super::case::{
    CaseEnv, ConformanceCase, ConformanceTopic, JudgedClient, RecordedTurn, case, merged, turn,
};
use super::scripted_model::script_prompt;
use crate::support::acp_client::joined_text;

const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";

pub const TOPIC: ConformanceTopic =
    ConformanceTopic::new("load and resume", CASES).with_args(&["--auto"]);

fn params(scene: &CaseEnv, session: &str) -> Value {
    json!({"sessionId": session, "cwd": scene.workspace(), "mcpServers": []})
}

/// Loads a Session; gives the updates before the answer, and the answer.
#[track_caller]
fn loaded(probe: &mut JudgedClient, params: Value, session: &str) -> (Vec<Value>, Value) {
    probe.drain();
    let heard = probe.received.len();
    let answer = probe.call("session/load", params).unwrap();
    let place = probe.received.iter().rposition(|message| message.get("method").is_none()).unwrap();
    let told = &probe.received[heard..place];
    let own = told.iter().filter(|message| message["params"]["sessionId"] == session);
    (own.map(|message| message["params"]["update"].clone()).collect(), answer)
}

/// Runs one prompt, closes the Session, and loads it in another process.
#[track_caller]
fn load_after_turn(scene: &mut CaseEnv, replies: &[&str]) -> (RecordedTurn, Vec<Value>, String) {
    let session = scene.session();
    let live = scene.turn(&session, &script_prompt("first words", replies));
    scene.probe.call("session/close", json!({"sessionId": session})).unwrap();
    let mut other = scene.other(&["--auto"], json!({}));
    let (told, answer) = loaded(&mut other, params(scene, &session), &session);
    assert!(answer.is_object(), "{answer}");
    (live, told, session)
}

fn text(updates: &[Value], kind: &str) -> String {
    crate::support::acp_client::joined_text(updates, kind)
}

/// Tool calls as a client shows them after all updates.
fn tool_call_updates(updates: &[Value]) -> Vec<Value> {
    let first = updates.iter().filter(|update| update["sessionUpdate"] == "tool_call");
    let card = |call: Value| {
        json!({
            "title": call["title"], "kind": call["kind"], "status": call["status"],
            "content": call["content"], "locations": call["locations"], "rawInput": call["rawInput"],
        })
    };
    first.map(|call| card(merged(updates, call["toolCallId"].as_str().unwrap()))).collect()
}

const CASES: &[ConformanceCase] = &[
    case("words of both sides are told again, before the answer", |scene| {
        let (_, told, _) = load_after_turn(scene, &["say the answer"]);
        assert!(text(&told, "user_message_chunk").contains("first words"), "{told:?}");
        assert_eq!(text(&told, "agent_message_chunk"), "the answer");
    }),
    case("messages keep ids of their own", |scene| {
        let (_, told, _) = load_after_turn(scene, &["note one ;; bash true", "say two"]);
        let chunks: Vec<&Value> =
            told.iter().filter(|update| update["sessionUpdate"] == "agent_message_chunk").collect();
        assert_eq!(chunks.len(), 2);
        assert_ne!(chunks[0]["messageId"], chunks[1]["messageId"]);
    }),
    case("thoughts are told again", |scene| {
        let (_, told, _) = load_after_turn(scene, &["think deep thoughts ;; say x"]);
        assert_eq!(text(&told, "agent_thought_chunk").trim(), "deep thoughts");
    }),
    case("calls look as they did when they ran", |scene| {
        scene.write("replayed.txt", "one\ntwo\n");
        let edit =
            r#"call edit {"path":"replayed.txt","edits":[{"old_string":"two","new_string":"2"}]}"#;
        let replies = [
            r#"call read {"path":"replayed.txt"}"#,
            edit,
            "bash echo words; exit 2",
            r#"call read {"path":"gone"}"#,
            "say done",
        ];
        let (live, told, _) = load_after_turn(scene, &replies);
        assert_eq!(tool_call_updates(&told), tool_call_updates(&live.updates));
        assert_eq!(tool_call_updates(&told).len(), 4);
    }),
    case("a finished call is told in one piece", |scene| {
        let (_, told, _) = load_after_turn(scene, &["bash echo words", "say done"]);
        let of_calls = told.iter().filter(|update| update.get("toolCallId").is_some()).count();
        assert_eq!(of_calls, 1, "{told:?}");
    }),
    case("the plan is told as it stands", |scene| {
        let plan = |status: &str| {
            format!(r#"call update_plan {{"plan":[{{"step":"look","status":"{status}"}}]}}"#)
        };
        let (_, told, _) =
            load_after_turn(scene, &[&plan("in_progress"), &plan("completed"), "say done"]);
        let plans: Vec<&Value> =
            told.iter().filter(|update| update["sessionUpdate"] == "plan").collect();
        assert_eq!(plans.len(), 1);
        assert_eq!(plans[0]["entries"][0]["status"], "completed");
    }),
    case("title, usage and commands are told", |scene| {
        let (_, told, _) = load_after_turn(scene, &["say x"]);
        let has = |kind: &str| told.iter().any(|update| update["sessionUpdate"] == kind);
        for kind in ["session_info_update", "usage_update", "available_commands_update"] {
            assert!(has(kind), "{kind} in {told:?}");
        }
    }),
    case("a Turn that failed says so again", |scene| {
        let (live, told, _) = load_after_turn(scene, &["status 400 that makes no sense"]);
        assert!(live.outcome.is_err());
        assert!(text(&told, "agent_message_chunk").contains("that makes no sense"), "{told:?}");
    }),
    case("a cancelled call is told as one that ended", |scene| {
        let session = scene.session();
        let id = scene
            .probe
            .send_prompt(&session, &script_prompt("go", &["bash echo begun; sleep 600"]));
        scene
            .probe
            .wait_for_message("its output", |message| message.to_string().contains("begun\\n"));
        scene.probe.notify("session/cancel", json!({"sessionId": session}));
        scene.probe.wait_for_answer(id).unwrap();
        scene.probe.call("session/close", json!({"sessionId": session})).unwrap();
        let params = params(scene, &session);
        let (told, _) = loaded(&mut scene.probe, params, &session);
        assert_eq!(tool_call_updates(&told)[0]["status"], "failed", "{told:?}");
    }),
    case("the answer is an object with modes and options", |scene| {
        let session = scene.session();
        scene.probe.call("session/close", json!({"sessionId": session})).unwrap();
        for method in ["session/load", "session/resume"] {
            let params = params(scene, &session);
            let answer = scene.probe.call(method, params).unwrap();
            assert!(answer["modes"].is_object() && answer["configOptions"].is_array(), "{answer}");
        }
    }),
    case("resuming tells nothing of the past", |scene| {
        let session = scene.session();
        scene.turn(&session, "past words » say past answer");
        scene.probe.call("session/close", json!({"sessionId": session})).unwrap();
        let mut other = scene.other(&["--auto"], json!({}));
        other.call("session/resume", params(scene, &session)).unwrap();
        let told = turn(&mut other, &session, "next » say next answer");
        assert_eq!(told.text(), "next answer");
        assert!(told.updates_of_kind("user_message_chunk").is_empty());
    }),
    case("resuming needs no servers", |scene| {
        let session = scene.session();
        scene.probe.call("session/close", json!({"sessionId": session})).unwrap();
        let params = json!({"sessionId": session, "cwd": scene.workspace()});
        scene.probe.call("session/resume", params).unwrap();
    }),
    case("a Session that was never prompted is resumed by another process", |scene| {
        let session = scene.session();
        scene.probe.call("session/close", json!({"sessionId": session})).unwrap();
        let mut other = scene.other(&[], json!({}));
        other.call("session/resume", params(scene, &session)).unwrap();
        assert_eq!(turn(&mut other, &session, "hello").stop(), "end_turn");
    }),
    case("the model remembers what was before", |scene| {
        let session = scene.session();
        scene.turn(&session, "the word is rhubarb");
        scene.probe.call("session/close", json!({"sessionId": session})).unwrap();
        let mut other = scene.other(&["--auto"], json!({}));
        loaded(&mut other, params(scene, &session), &session);
        let told = turn(&mut other, &session, "which word » repeat");
        assert!(told.text().contains("rhubarb"), "{told:?}");
    }),
    case("a Session that is open here is told again and stays open", |scene| {
        let session = scene.session();
        scene.turn(&session, "words » say answer");
        let params = params(scene, &session);
        let (told, _) = loaded(&mut scene.probe, params, &session);
        assert_eq!(text(&told, "agent_message_chunk"), "answer");
        assert_eq!(scene.turn(&session, "next").stop(), "end_turn");
    }),
    case("a Session of the terminal is loaded", |scene| {
        let folder = scene.workspace().join("terminal-made");
        std::fs::create_dir_all(&folder).unwrap();
        let ran = scene.env.run(&[
            "--json",
            "--cwd",
            folder.to_str().unwrap(),
            "said in a terminal » say and answered",
        ]);
        let envelope: Value = serde_json::from_str(&ran.expect_code(0).stdout).unwrap();
        let session = envelope["session_id"].as_str().unwrap();
        let params = json!({"sessionId": session, "cwd": folder, "mcpServers": []});
        let (told, _) = loaded(&mut scene.probe, params, session);
        assert!(text(&told, "user_message_chunk").contains("said in a terminal"));
        assert_eq!(text(&told, "agent_message_chunk"), "and answered");
    }),
    case("what is not there is not found, by name", |scene| {
        for id in ["20260101T000000-abcdef", "nonsense", "../../etc/passwd", ""] {
            for method in ["session/load", "session/resume"] {
                let params = params(scene, id);
                let error = scene.probe.call(method, params).unwrap_err();
                assert_eq!(
                    (&error["code"], &error["data"]["sessionId"]),
                    (&json!(-32_002), &json!(id)),
                    "{method}: {error}"
                );
            }
        }
    }),
    case("a load without a directory is refused", |scene| {
        let session = scene.session();
        for params in [
            json!({"sessionId": session}),
            json!({"sessionId": session, "cwd": "x", "mcpServers": []}),
            json!({}),
        ] {
            let error = scene.probe.send_invalid("session/load", &params).unwrap_err();
            assert_eq!(error["code"], -32_602, "{error}");
        }
    }),
    case("a prompt behind a load waits for it", |scene| {
        let session = scene.session();
        scene.turn(&session, "words » say answer");
        scene.probe.call("session/close", json!({"sessionId": session})).unwrap();
        let params = params(scene, &session);
        let load = scene.probe.send_request("session/load", params);
        let prompt = scene.probe.send_prompt(&session, "next");
        scene.probe.wait_for_answer(load).unwrap();
        assert_eq!(scene.probe.wait_for_answer(prompt).unwrap()["stopReason"], "end_turn");
    }),
    case("a Session that is open is not to be had in another directory", |scene| {
        let session = scene.session();
        let elsewhere = scene.workspace().parent().unwrap().join("another");
        std::fs::create_dir_all(&elsewhere).unwrap();
        for method in ["session/load", "session/resume"] {
            let params = json!({"sessionId": session, "cwd": elsewhere, "mcpServers": []});
            let error = scene.probe.call(method, params).unwrap_err();
            assert_eq!(
                (&error["code"], &error["data"]["sessionId"]),
                (&json!(-32_002), &json!(session))
            );
            assert!(
                error["message"].as_str().unwrap().contains(scene.workspace().to_str().unwrap())
            );
            let params = json!({"sessionId": session, "cwd": "/no/such/place", "mcpServers": []});
            assert_eq!(scene.probe.call(method, params).unwrap_err()["code"], -32_602);
        }
        assert_eq!(scene.turn(&session, "still here").stop(), "end_turn");
    }),
    case("what is loaded in the middle of an answer is told once", |scene| {
        let session = scene.session();
        let prompt = scene.probe.send_prompt(
            &session,
            "go » think Hm, well. ;; say begun, ;; pause 1500 ;; say  and done.",
        );
        scene.told(&session, "agent_message_chunk");
        let params = json!({"sessionId": session, "cwd": scene.workspace(), "mcpServers": []});
        let load = scene.probe.send_request("session/load", params);
        let before = scene.probe.received.len();
        scene.probe.wait_for_answer(prompt).unwrap();
        scene.probe.wait_for_answer(load).unwrap();
        let updates: Vec<Value> = scene.probe.received[before..]
            .iter()
            .map(|message| message["params"]["update"].clone())
            .filter(|update| !update.is_null())
            .collect();
        assert_eq!(
            joined_text(&updates, "user_message_chunk").matches("go »").count(),
            1,
            "{updates:#?}"
        );
        assert_eq!(
            joined_text(&updates, "agent_thought_chunk").trim(),
            "Hm, well.",
            "{updates:#?}"
        );
        assert_eq!(joined_text(&updates, "agent_message_chunk"), "begun, and done.");
    }),
    case("what is loaded right behind a prompt has the prompt", |scene| {
        let session = scene.session();
        let prompt = scene.probe.send_prompt(&session, "go » say One answer.");
        let params = json!({"sessionId": session, "cwd": scene.workspace(), "mcpServers": []});
        let load = scene.probe.send_request("session/load", params);
        scene.probe.wait_for_answer(prompt).unwrap();
        scene.probe.wait_for_answer(load).unwrap();
        let updates: Vec<Value> = scene
            .probe
            .drain()
            .into_iter()
            .map(|message| message["params"]["update"].clone())
            .collect();
        assert_eq!(
            joined_text(&updates, "user_message_chunk").matches("go »").count(),
            1,
            "{updates:#?}"
        );
        assert_eq!(joined_text(&updates, "agent_message_chunk"), "One answer.");
    }),
    case("a command that runs while it is loaded shows what it printed", |scene| {
        for capabilities in [json!({}), json!({"_meta": {"terminal_output": true}})] {
            let mut probe = scene.other(&["--auto"], capabilities);
            let session = probe.new_session(&scene.workspace());
            let prompt = probe.send_prompt(
                &session,
                &script_prompt(
                    "go",
                    &[
                        "bash echo early; while [ ! -e go-on ]; do sleep 0.05; done; echo late",
                        "say ok",
                    ],
                ),
            );
            probe.wait_for_message("its output", |message| {
                message["method"] == "session/update" && message.to_string().contains("early\\")
            });
            let params = json!({"sessionId": session, "cwd": scene.workspace(), "mcpServers": []});
            let load = probe.send_request("session/load", params);
            probe.wait_for_answer(load).unwrap();
            let seen: Vec<Value> = probe.drain();
            let replay = json!(seen).to_string();
            assert!(replay.contains("early\\"), "{seen:#?}");
            assert!(replay.contains("in_progress"), "{seen:#?}");
            std::fs::write(scene.workspace().join("go-on"), "").unwrap();
            assert_eq!(probe.wait_for_answer(prompt).unwrap()["stopReason"], "end_turn");
            std::fs::remove_file(scene.workspace().join("go-on")).unwrap();
        }
    }),
    case("what was attached is shown again as what it was", |scene| {
        let session = scene.session();
        let prompt = json!([
            {"type": "text", "text": "look » see"},
            {"type": "image", "mimeType": "image/png", "data": PNG},
            {"type": "resource", "resource": {"uri": "file:///w/notes.md", "text": "the embedded words"}},
            {"type": "resource", "resource": {"uri": "file:///w/a.bin", "blob": "AAECAwD/"}},
        ]);
        scene
            .probe
            .call("session/prompt", json!({"sessionId": session, "prompt": prompt}))
            .unwrap();
        scene.probe.drain();
        let params = json!({"sessionId": session, "cwd": scene.workspace(), "mcpServers": []});
        scene.probe.call("session/load", params).unwrap();
        let said: Vec<Value> = scene
            .probe
            .updates()
            .into_iter()
            .filter(|update| update["sessionUpdate"] == "user_message_chunk")
            .map(|update| update["content"].clone())
            .collect();
        let types: Vec<&str> = said.iter().map(|block| block["type"].as_str().unwrap()).collect();
        assert_eq!(types, ["text", "image", "resource", "resource_link"]);
        assert_eq!((&said[1]["data"], &said[1]["mimeType"]), (&json!(PNG), &json!("image/png")));
        assert_eq!(said[2]["resource"]["text"], "the embedded words");
        let path = said[3]["uri"].as_str().unwrap().strip_prefix("file://").unwrap();
        assert_eq!(
            std::fs::read(path).unwrap(),
            b"\x00\x01\x02\x03\x00\xff",
            "a link that can be opened"
        );
    }),
];

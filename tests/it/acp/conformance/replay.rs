//! Loading and resuming: the full replay, or none, and the continuation of the Session.

use serde_json::{Value, json};

use super::case::{
    CaseEnv, ConformanceCase, ConformanceTopic, RecordedTurn, ValidatingClient, case, merged,
    run_prompt,
};
use super::scripted_model::script_prompt;
use crate::support::acp_client::joined_text;

const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";

pub const TOPIC: ConformanceTopic =
    ConformanceTopic::new("load and resume", CASES).with_args(&["--auto"]);

fn params(env: &CaseEnv, session: &str) -> Value {
    json!({"sessionId": session, "cwd": env.workspace(), "mcpServers": []})
}

/// Loads a Session; gives the updates before the answer, and the answer.
#[track_caller]
fn load_session(
    client: &mut ValidatingClient,
    params: Value,
    session: &str,
) -> (Vec<Value>, Value) {
    client.drain();
    let received_before = client.received.len();
    let answer = client.call("session/load", params).unwrap();
    let place =
        client.received.iter().rposition(|message| message.get("method").is_none()).unwrap();
    let messages = &client.received[received_before..place];
    let own = messages.iter().filter(|message| message["params"]["sessionId"] == session);
    (own.map(|message| message["params"]["update"].clone()).collect(), answer)
}

/// Runs one prompt, closes the Session, and loads it in another process.
#[track_caller]
fn load_after_turn(env: &mut CaseEnv, replies: &[&str]) -> (RecordedTurn, Vec<Value>, String) {
    let session = env.session();
    let live = env.run_prompt(&session, &script_prompt("first words", replies));
    env.client.call("session/close", json!({"sessionId": session})).unwrap();
    let mut other = env.start_other(&["--auto"], json!({}));
    let (updates, answer) = load_session(&mut other, params(env, &session), &session);
    assert!(answer.is_object(), "{answer}");
    (live, updates, session)
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
    case("words of both sides are told again, before the answer", |env| {
        let (_, updates, _) = load_after_turn(env, &["say the answer"]);
        assert!(text(&updates, "user_message_chunk").contains("first words"), "{updates:?}");
        assert_eq!(text(&updates, "agent_message_chunk"), "the answer");
    }),
    case("messages keep ids of their own", |env| {
        let (_, updates, _) = load_after_turn(env, &["note one ;; bash true", "say two"]);
        let chunks: Vec<&Value> = updates
            .iter()
            .filter(|update| update["sessionUpdate"] == "agent_message_chunk")
            .collect();
        assert_eq!(chunks.len(), 2);
        assert_ne!(chunks[0]["messageId"], chunks[1]["messageId"]);
    }),
    case("thoughts are told again", |env| {
        let (_, updates, _) = load_after_turn(env, &["think deep thoughts ;; say x"]);
        assert_eq!(text(&updates, "agent_thought_chunk").trim(), "deep thoughts");
    }),
    case("calls look as they did when they ran", |env| {
        env.write("replayed.txt", "one\ntwo\n");
        let edit =
            r#"call edit {"path":"replayed.txt","edits":[{"old_string":"two","new_string":"2"}]}"#;
        let replies = [
            r#"call read {"path":"replayed.txt"}"#,
            edit,
            "bash echo words; exit 2",
            r#"call read {"path":"gone"}"#,
            "say done",
        ];
        let (live, updates, _) = load_after_turn(env, &replies);
        assert_eq!(tool_call_updates(&updates), tool_call_updates(&live.updates));
        assert_eq!(tool_call_updates(&updates).len(), 4);
    }),
    case("a finished call is told in one piece", |env| {
        let (_, updates, _) = load_after_turn(env, &["bash echo words", "say done"]);
        let of_calls = updates.iter().filter(|update| update.get("toolCallId").is_some()).count();
        assert_eq!(of_calls, 1, "{updates:?}");
    }),
    case("the plan is told as it stands", |env| {
        let plan = |status: &str| {
            format!(r#"call update_plan {{"plan":[{{"step":"look","status":"{status}"}}]}}"#)
        };
        let (_, updates, _) =
            load_after_turn(env, &[&plan("in_progress"), &plan("completed"), "say done"]);
        let plans: Vec<&Value> =
            updates.iter().filter(|update| update["sessionUpdate"] == "plan").collect();
        assert_eq!(plans.len(), 1);
        assert_eq!(plans[0]["entries"][0]["status"], "completed");
    }),
    case("title, usage and commands are told", |env| {
        let (_, updates, _) = load_after_turn(env, &["say x"]);
        let has = |kind: &str| updates.iter().any(|update| update["sessionUpdate"] == kind);
        for kind in ["session_info_update", "usage_update", "available_commands_update"] {
            assert!(has(kind), "{kind} in {updates:?}");
        }
    }),
    case("a Turn that failed says so again", |env| {
        let (live, updates, _) = load_after_turn(env, &["status 400 that makes no sense"]);
        assert!(live.outcome.is_err());
        assert!(
            text(&updates, "agent_message_chunk").contains("that makes no sense"),
            "{updates:?}"
        );
    }),
    case("a cancelled call is told as one that ended", |env| {
        let session = env.session();
        let id =
            env.client.send_prompt(&session, &script_prompt("go", &["bash echo begun; sleep 600"]));
        env.client
            .wait_for_message("its output", |message| message.to_string().contains("begun\\n"));
        env.client.notify("session/cancel", json!({"sessionId": session}));
        env.client.wait_for_answer(id).unwrap();
        env.client.call("session/close", json!({"sessionId": session})).unwrap();
        let params = params(env, &session);
        let (updates, _) = load_session(&mut env.client, params, &session);
        assert_eq!(tool_call_updates(&updates)[0]["status"], "failed", "{updates:?}");
    }),
    case("the answer is an object with modes and options", |env| {
        let session = env.session();
        env.client.call("session/close", json!({"sessionId": session})).unwrap();
        for method in ["session/load", "session/resume"] {
            let params = params(env, &session);
            let answer = env.client.call(method, params).unwrap();
            assert!(answer["modes"].is_object() && answer["configOptions"].is_array(), "{answer}");
        }
    }),
    case("resuming tells nothing of the past", |env| {
        let session = env.session();
        env.run_prompt(&session, "past words » say past answer");
        env.client.call("session/close", json!({"sessionId": session})).unwrap();
        let mut other = env.start_other(&["--auto"], json!({}));
        other.call("session/resume", params(env, &session)).unwrap();
        let turn = run_prompt(&mut other, &session, "next » say next answer");
        assert_eq!(turn.text(), "next answer");
        assert!(turn.updates_of_kind("user_message_chunk").is_empty());
    }),
    case("resuming needs no servers", |env| {
        let session = env.session();
        env.client.call("session/close", json!({"sessionId": session})).unwrap();
        let params = json!({"sessionId": session, "cwd": env.workspace()});
        env.client.call("session/resume", params).unwrap();
    }),
    case("a Session that was never prompted is resumed by another process", |env| {
        let session = env.session();
        env.client.call("session/close", json!({"sessionId": session})).unwrap();
        let mut other = env.start_other(&[], json!({}));
        other.call("session/resume", params(env, &session)).unwrap();
        assert_eq!(run_prompt(&mut other, &session, "hello").stop(), "end_turn");
    }),
    case("the model remembers what was before", |env| {
        let session = env.session();
        env.run_prompt(&session, "the word is rhubarb");
        env.client.call("session/close", json!({"sessionId": session})).unwrap();
        let mut other = env.start_other(&["--auto"], json!({}));
        load_session(&mut other, params(env, &session), &session);
        let turn = run_prompt(&mut other, &session, "which word » repeat");
        assert!(turn.text().contains("rhubarb"), "{turn:?}");
    }),
    case("a Session that is open here is told again and stays open", |env| {
        let session = env.session();
        env.run_prompt(&session, "words » say answer");
        let params = params(env, &session);
        let (updates, _) = load_session(&mut env.client, params, &session);
        assert_eq!(text(&updates, "agent_message_chunk"), "answer");
        assert_eq!(env.run_prompt(&session, "next").stop(), "end_turn");
    }),
    case("a Session of the terminal is loaded", |env| {
        let folder = env.workspace().join("terminal-made");
        std::fs::create_dir_all(&folder).unwrap();
        let ran = env.binary_env.run(&[
            "--json",
            "--cwd",
            folder.to_str().unwrap(),
            "said in a terminal » say and answered",
        ]);
        let envelope: Value = serde_json::from_str(&ran.expect_code(0).stdout).unwrap();
        let session = envelope["session_id"].as_str().unwrap();
        let params = json!({"sessionId": session, "cwd": folder, "mcpServers": []});
        let (updates, _) = load_session(&mut env.client, params, session);
        assert!(text(&updates, "user_message_chunk").contains("said in a terminal"));
        assert_eq!(text(&updates, "agent_message_chunk"), "and answered");
    }),
    case("what is not there is not found, by name", |env| {
        for id in ["20260101T000000-abcdef", "nonsense", "../../etc/passwd", ""] {
            for method in ["session/load", "session/resume"] {
                let params = params(env, id);
                let error = env.client.call(method, params).unwrap_err();
                assert_eq!(
                    (&error["code"], &error["data"]["sessionId"]),
                    (&json!(-32_002), &json!(id)),
                    "{method}: {error}"
                );
            }
        }
    }),
    case("a load without a directory is refused", |env| {
        let session = env.session();
        for params in [
            json!({"sessionId": session}),
            json!({"sessionId": session, "cwd": "x", "mcpServers": []}),
            json!({}),
        ] {
            let error = env.client.send_invalid("session/load", &params).unwrap_err();
            assert_eq!(error["code"], -32_602, "{error}");
        }
    }),
    case("a prompt behind a load waits for it", |env| {
        let session = env.session();
        env.run_prompt(&session, "words » say answer");
        env.client.call("session/close", json!({"sessionId": session})).unwrap();
        let params = params(env, &session);
        let load = env.client.send_request("session/load", params);
        let prompt = env.client.send_prompt(&session, "next");
        env.client.wait_for_answer(load).unwrap();
        assert_eq!(env.client.wait_for_answer(prompt).unwrap()["stopReason"], "end_turn");
    }),
    case("a Session that is open is not to be had in another directory", |env| {
        let session = env.session();
        let elsewhere = env.workspace().parent().unwrap().join("another");
        std::fs::create_dir_all(&elsewhere).unwrap();
        for method in ["session/load", "session/resume"] {
            let params = json!({"sessionId": session, "cwd": elsewhere, "mcpServers": []});
            let error = env.client.call(method, params).unwrap_err();
            assert_eq!(
                (&error["code"], &error["data"]["sessionId"]),
                (&json!(-32_002), &json!(session))
            );
            assert!(error["message"].as_str().unwrap().contains(env.workspace().to_str().unwrap()));
            let params = json!({"sessionId": session, "cwd": "/no/such/place", "mcpServers": []});
            assert_eq!(env.client.call(method, params).unwrap_err()["code"], -32_602);
        }
        assert_eq!(env.run_prompt(&session, "still here").stop(), "end_turn");
    }),
    case("what is loaded in the middle of an answer is told once", |env| {
        let session = env.session();
        let prompt = env.client.send_prompt(
            &session,
            "go » think Hm, well. ;; say begun, ;; pause 1500 ;; say  and done.",
        );
        env.wait_for_update(&session, "agent_message_chunk");
        let params = json!({"sessionId": session, "cwd": env.workspace(), "mcpServers": []});
        let load = env.client.send_request("session/load", params);
        let before = env.client.received.len();
        env.client.wait_for_answer(prompt).unwrap();
        env.client.wait_for_answer(load).unwrap();
        let updates: Vec<Value> = env.client.received[before..]
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
    case("what is loaded right behind a prompt has the prompt", |env| {
        let session = env.session();
        let prompt = env.client.send_prompt(&session, "go » say One answer.");
        let params = json!({"sessionId": session, "cwd": env.workspace(), "mcpServers": []});
        let load = env.client.send_request("session/load", params);
        env.client.wait_for_answer(prompt).unwrap();
        env.client.wait_for_answer(load).unwrap();
        let updates: Vec<Value> = env
            .client
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
    case("a command that runs while it is loaded shows what it printed", |env| {
        for capabilities in [json!({}), json!({"_meta": {"terminal_output": true}})] {
            let mut client = env.start_other(&["--auto"], capabilities);
            let session = client.new_session(&env.workspace());
            let prompt = client.send_prompt(
                &session,
                &script_prompt(
                    "go",
                    &[
                        "bash echo early; while [ ! -e go-on ]; do sleep 0.05; done; echo late",
                        "say ok",
                    ],
                ),
            );
            client.wait_for_message("its output", |message| {
                message["method"] == "session/update" && message.to_string().contains("early\\")
            });
            let params = json!({"sessionId": session, "cwd": env.workspace(), "mcpServers": []});
            let load = client.send_request("session/load", params);
            client.wait_for_answer(load).unwrap();
            let seen: Vec<Value> = client.drain();
            let replay = json!(seen).to_string();
            assert!(replay.contains("early\\"), "{seen:#?}");
            assert!(replay.contains("in_progress"), "{seen:#?}");
            std::fs::write(env.workspace().join("go-on"), "").unwrap();
            assert_eq!(client.wait_for_answer(prompt).unwrap()["stopReason"], "end_turn");
            std::fs::remove_file(env.workspace().join("go-on")).unwrap();
        }
    }),
    case("what was attached is shown again as what it was", |env| {
        let session = env.session();
        let prompt = json!([
            {"type": "text", "text": "look » see"},
            {"type": "image", "mimeType": "image/png", "data": PNG},
            {"type": "resource", "resource": {"uri": "file:///w/notes.md", "text": "the embedded words"}},
            {"type": "resource", "resource": {"uri": "file:///w/a.bin", "blob": "AAECAwD/"}},
        ]);
        env.client.call("session/prompt", json!({"sessionId": session, "prompt": prompt})).unwrap();
        env.client.drain();
        let params = json!({"sessionId": session, "cwd": env.workspace(), "mcpServers": []});
        env.client.call("session/load", params).unwrap();
        let user_chunks: Vec<Value> = env
            .client
            .updates()
            .into_iter()
            .filter(|update| update["sessionUpdate"] == "user_message_chunk")
            .map(|update| update["content"].clone())
            .collect();
        let types: Vec<&str> =
            user_chunks.iter().map(|block| block["type"].as_str().unwrap()).collect();
        assert_eq!(types, ["text", "image", "resource", "resource_link"]);
        assert_eq!(
            (&user_chunks[1]["data"], &user_chunks[1]["mimeType"]),
            (&json!(PNG), &json!("image/png"))
        );
        assert_eq!(user_chunks[2]["resource"]["text"], "the embedded words");
        let path = user_chunks[3]["uri"].as_str().unwrap().strip_prefix("file://").unwrap();
        assert_eq!(
            std::fs::read(path).unwrap(),
            b"\x00\x01\x02\x03\x00\xff",
            "a link that can be opened"
        );
    }),
];

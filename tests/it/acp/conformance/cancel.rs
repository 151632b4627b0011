//! Cancelling: every prompt is answered, nothing runs on, and the next prompt works at once.

use serde_json::json;

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, case, finished};
use super::scripted_model::script_prompt;

pub const TOPIC: ConformanceTopic = ConformanceTopic::new("cancel", CASES).with_args(&["--auto"]);

/// A prompt whose answer has begun and does not end by itself.
#[track_caller]
fn streaming(scene: &mut CaseEnv) -> (String, u64) {
    let session = scene.session();
    let id = scene.probe.send_prompt(&session, "go » say begun ;; pause 600000");
    scene.told(&session, "agent_message_chunk");
    (session, id)
}

/// A prompt whose command runs and does not end by itself.
#[track_caller]
fn running(scene: &mut CaseEnv) -> (String, u64) {
    let session = scene.session();
    let command = format!("bash echo begun; sleep 600; echo {}", scene.env.mark);
    let id = scene.probe.send_prompt(&session, &script_prompt("go", &[&command]));
    scene.probe.wait_for_message("its output", |message| {
        message["params"]["sessionId"] == session.as_str()
            && message.to_string().contains("begun\\n")
    });
    (session, id)
}

fn cancel(scene: &mut CaseEnv, session: &str) {
    scene.probe.notify("session/cancel", json!({"sessionId": session}));
}

#[track_caller]
fn ended(scene: &mut CaseEnv, session: &str, id: u64) -> super::case::RecordedTurn {
    finished(&mut scene.probe, session, id, |asked| panic!("{asked}"))
}

/// Running commands of this environment; the agent itself is not counted.
fn commands(scene: &CaseEnv) -> usize {
    scene.env.survivors().iter().filter(|line| line.contains("sleep 600")).count()
}

const CASES: &[ConformanceCase] = &[
    case("a cancelled answer is answered with cancelled", |scene| {
        let (session, id) = streaming(scene);
        cancel(scene, &session);
        assert_eq!(ended(scene, &session, id).outcome.unwrap(), json!({"stopReason": "cancelled"}));
    }),
    case("a cancelled command is dead, and its call has ended", |scene| {
        let (session, id) = running(scene);
        cancel(scene, &session);
        let told = ended(scene, &session, id);
        assert_eq!(told.stop(), "cancelled");
        let last = told.updates_of_kind("tool_call_update").last().unwrap()["status"].clone();
        assert_eq!(last, "failed");
        assert_eq!(commands(scene), 0);
    }),
    case("nothing is told of a Turn after its answer", |scene| {
        let (session, id) = running(scene);
        cancel(scene, &session);
        ended(scene, &session, id);
        std::thread::sleep(std::time::Duration::from_millis(300));
        let late = scene.probe.drain();
        assert!(
            late.iter().all(|message| message["params"]["sessionId"] != session.as_str()),
            "{late:?}"
        );
    }),
    case("the next prompt works at once", |scene| {
        let (session, id) = running(scene);
        cancel(scene, &session);
        let next = scene.probe.send_prompt(&session, "again » say here again");
        assert_eq!(scene.probe.wait_for_answer(id).unwrap()["stopReason"], "cancelled");
        let told = ended(scene, &session, next);
        assert_eq!(told.stop(), "end_turn");
    }),
    case("a prompt that waits is cancelled too", |scene| {
        let (session, id) = streaming(scene);
        let waiting = scene.probe.send_prompt(&session, "never");
        cancel(scene, &session);
        for id in [id, waiting] {
            assert_eq!(scene.probe.wait_for_answer(id).unwrap()["stopReason"], "cancelled");
        }
        let said =
            scene.log(&session).iter().filter(|event| event["type"] == "user_message").count();
        assert_eq!(said, 1, "the waiting prompt was not recorded");
    }),
    case("prompts that wait are served in order", |scene| {
        let session = scene.session();
        let ids: Vec<u64> = ["a » pause 200 ;; say a", "b » say b", "c » say c"]
            .iter()
            .map(|text| scene.probe.send_prompt(&session, text))
            .collect();
        for id in ids {
            assert_eq!(scene.probe.wait_for_answer(id).unwrap()["stopReason"], "end_turn");
        }
        let all = scene.probe.drain();
        let words: String = all
            .iter()
            .filter(|message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk")
            .filter_map(|message| message["params"]["update"]["content"]["text"].as_str())
            .collect();
        assert_eq!(words, "abc");
    }),
    case("cancelling twice is cancelling", |scene| {
        let (session, id) = streaming(scene);
        cancel(scene, &session);
        cancel(scene, &session);
        assert_eq!(ended(scene, &session, id).stop(), "cancelled");
        cancel(scene, &session);
        assert_eq!(scene.turn(&session, "next").stop(), "end_turn");
    }),
    case("cancelling nothing is nothing", |scene| {
        let session = scene.session();
        cancel(scene, &session);
        cancel(scene, "20260101T000000-abcdef");
        cancel(scene, "no session at all");
        assert_eq!(scene.turn(&session, "hello").stop(), "end_turn");
    }),
    case("cancelling one Session leaves the others alone", |scene| {
        let (first, first_id) = streaming(scene);
        let session = scene.session();
        let id = scene.probe.send_prompt(&session, "go » say begun ;; pause 300 ;; say ended");
        cancel(scene, &first);
        assert_eq!(scene.probe.wait_for_answer(first_id).unwrap()["stopReason"], "cancelled");
        assert_eq!(ended(scene, &session, id).stop(), "end_turn");
    }),
    case("a prompt is taken back by its request", |scene| {
        let (session, id) = streaming(scene);
        scene.probe.notify("$/cancel_request", json!({"requestId": id}));
        assert_eq!(ended(scene, &session, id).stop(), "cancelled");
    }),
    case("a prompt that waits is taken back by its request, and only it", |scene| {
        let session = scene.session();
        let first = scene.probe.send_prompt(&session, "go » say begun ;; pause 300 ;; say ended");
        scene.told(&session, "agent_message_chunk");
        let second = scene.probe.send_prompt(&session, "never");
        scene.probe.notify("$/cancel_request", json!({"requestId": second}));
        assert_eq!(scene.probe.wait_for_answer(second).unwrap()["stopReason"], "cancelled");
        assert_eq!(scene.probe.wait_for_answer(first).unwrap()["stopReason"], "end_turn");
    }),
    case("a request that nobody made is taken back without a word", |scene| {
        scene.probe.drain();
        for id in [json!(4_711_000), json!("x"), json!(null)] {
            scene.probe.notify("$/cancel_request", json!({"requestId": id}));
        }
        scene.probe.still_answers();
        let heard = scene.probe.drain();
        assert!(heard.iter().all(|message| message.get("error").is_none()), "{heard:?}");
    }),
    case("a list that is taken back has one answer all the same", |scene| {
        for _ in 0..10 {
            let id = scene.probe.send_request("session/list", json!({}));
            scene.probe.notify("$/cancel_request", json!({"requestId": id}));
            if let Err(error) = scene.probe.wait_for_answer(id) {
                assert_eq!(error["code"], -32_800, "{error}");
            }
        }
    }),
    case("a Session that is being made and taken back has one answer", |scene| {
        for _ in 0..5 {
            let params = json!({"cwd": scene.workspace(), "mcpServers": []});
            let id = scene.probe.send_request("session/new", params);
            scene.probe.notify("$/cancel_request", json!({"requestId": id}));
            if let Err(error) = scene.probe.wait_for_answer(id) {
                assert_eq!(error["code"], -32_800, "{error}");
            }
        }
    }),
    case("a cancelled Turn is on record as interrupted", |scene| {
        let (session, id) = streaming(scene);
        cancel(scene, &session);
        ended(scene, &session, id);
        let last = scene.log(&session).pop().unwrap();
        assert_eq!(
            (&last["type"], &last["data"]["terminal_status"]),
            (&json!("turn_failed"), &json!("interrupted"))
        );
    }),
    case("cancelling before the model has said anything works", |scene| {
        let session = scene.session();
        let id = scene.probe.send_prompt(&session, "go » stall");
        cancel(scene, &session);
        assert_eq!(ended(scene, &session, id).stop(), "cancelled");
    }),
    case("cancelling between retries works", |scene| {
        scene.env.configure(
            &json!({"durability": "none", "retry": {"base_ms": 60000, "cap_ms": 60000}}),
        );
        let mut other = scene.other(&["--auto"], json!({}));
        let session = other.new_session(&scene.workspace());
        let before = scene.env.server.requests().len();
        let id = other.send_prompt(&session, "go » status 503 busy");
        let wait = || scene.env.server.requests().len() > before;
        assert!(crate::support::binary_env::wait_for(
            crate::support::test_env::DEADLINE,
            wait,
            |seen| { *seen }
        ));
        other.notify("session/cancel", json!({"sessionId": session}));
        assert_eq!(other.wait_for_answer(id).unwrap()["stopReason"], "cancelled");
        scene.env.configure(&json!({"durability": "none"}));
    }),
    case("two prompts of one id are taken back together", |scene| {
        let session = scene.session();
        let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "go » say begun ;; pause 600000"}]});
        let line =
            json!({"jsonrpc": "2.0", "id": "twice", "method": "session/prompt", "params": prompt});
        for _ in 0..2 {
            scene.probe.write_raw(format!("{line}\n").as_bytes());
        }
        scene.told(&session, "agent_message_chunk");
        scene.probe.notify("$/cancel_request", json!({"requestId": "twice"}));
        for _ in 0..2 {
            let answer =
                scene.probe.wait_for_message("an answer", |message| message["id"] == "twice");
            assert_eq!(answer["result"]["stopReason"], "cancelled", "{answer}");
        }
    }),
    case("the first of two prompts of one id does not hide the second", |scene| {
        let session = scene.session();
        let line = |text: &str| {
            let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]});
            let line = json!({"jsonrpc": "2.0", "id": "again", "method": "session/prompt", "params": prompt});
            format!("{line}\n")
        };
        scene.probe.write_raw(line("one » say quick").as_bytes());
        scene.probe.write_raw(line("two » say begun ;; pause 600000").as_bytes());
        scene.probe.wait_for_message("the first", |message| message["id"] == "again");
        scene.probe.wait_for_message("the second", |message| message.to_string().contains("begun"));
        scene.probe.notify("$/cancel_request", json!({"requestId": "again"}));
        let answer = scene.probe.wait_for_message("the second", |message| message["id"] == "again");
        assert_eq!(answer["result"]["stopReason"], "cancelled", "{answer}");
    }),
];

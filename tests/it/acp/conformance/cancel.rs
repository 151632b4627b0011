//! Cancelling: every prompt is answered, nothing runs on, and the next prompt works at once.

use serde_json::json;

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, case, wait_for_turn_end};
use super::scripted_model::script_prompt;

pub const TOPIC: ConformanceTopic = ConformanceTopic::new("cancel", CASES).with_args(&["--auto"]);

/// A prompt whose answer has begun and does not end by itself.
#[track_caller]
fn streaming(env: &mut CaseEnv) -> (String, u64) {
    let session = env.session();
    let id = env.client.send_prompt(&session, "go » say begun ;; pause 600000");
    env.wait_for_update(&session, "agent_message_chunk");
    (session, id)
}

/// A prompt whose command runs and does not end by itself.
#[track_caller]
fn running(env: &mut CaseEnv) -> (String, u64) {
    let session = env.session();
    let command = format!("bash echo begun; sleep 600; echo {}", env.binary_env.mark);
    let id = env.client.send_prompt(&session, &script_prompt("go", &[&command]));
    env.client.wait_for_message("its output", |message| {
        message["params"]["sessionId"] == session.as_str()
            && message.to_string().contains("begun\\n")
    });
    (session, id)
}

fn cancel(env: &mut CaseEnv, session: &str) {
    env.client.notify("session/cancel", json!({"sessionId": session}));
}

#[track_caller]
fn wait_for_end(env: &mut CaseEnv, session: &str, id: u64) -> super::case::RecordedTurn {
    wait_for_turn_end(&mut env.client, session, id, |asked| panic!("{asked}"))
}

/// Running commands of this environment; the agent itself is not counted.
fn commands(env: &CaseEnv) -> usize {
    env.binary_env.survivors().iter().filter(|line| line.contains("sleep 600")).count()
}

const CASES: &[ConformanceCase] = &[
    case("a cancelled answer is answered with cancelled", |env| {
        let (session, id) = streaming(env);
        cancel(env, &session);
        assert_eq!(
            wait_for_end(env, &session, id).outcome.unwrap(),
            json!({"stopReason": "cancelled"})
        );
    }),
    case("a cancelled command is dead, and its call has ended", |env| {
        let (session, id) = running(env);
        cancel(env, &session);
        let turn = wait_for_end(env, &session, id);
        assert_eq!(turn.stop(), "cancelled");
        let last = turn.updates_of_kind("tool_call_update").last().unwrap()["status"].clone();
        assert_eq!(last, "failed");
        assert_eq!(commands(env), 0);
    }),
    case("nothing is told of a Turn after its answer", |env| {
        let (session, id) = running(env);
        cancel(env, &session);
        wait_for_end(env, &session, id);
        std::thread::sleep(std::time::Duration::from_millis(300));
        let late = env.client.drain();
        assert!(
            late.iter().all(|message| message["params"]["sessionId"] != session.as_str()),
            "{late:?}"
        );
    }),
    case("the next prompt works at once", |env| {
        let (session, id) = running(env);
        cancel(env, &session);
        let next = env.client.send_prompt(&session, "again » say here again");
        assert_eq!(env.client.wait_for_answer(id).unwrap()["stopReason"], "cancelled");
        let turn = wait_for_end(env, &session, next);
        assert_eq!(turn.stop(), "end_turn");
    }),
    case("a prompt that waits is cancelled too", |env| {
        let (session, id) = streaming(env);
        let waiting = env.client.send_prompt(&session, "never");
        cancel(env, &session);
        for id in [id, waiting] {
            assert_eq!(env.client.wait_for_answer(id).unwrap()["stopReason"], "cancelled");
        }
        let messages =
            env.log(&session).iter().filter(|event| event["type"] == "user_message").count();
        assert_eq!(messages, 1, "the waiting prompt was not recorded");
    }),
    case("prompts that wait are served in order", |env| {
        let session = env.session();
        let ids: Vec<u64> = ["a » pause 200 ;; say a", "b » say b", "c » say c"]
            .iter()
            .map(|text| env.client.send_prompt(&session, text))
            .collect();
        for id in ids {
            assert_eq!(env.client.wait_for_answer(id).unwrap()["stopReason"], "end_turn");
        }
        let all = env.client.drain();
        let words: String = all
            .iter()
            .filter(|message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk")
            .filter_map(|message| message["params"]["update"]["content"]["text"].as_str())
            .collect();
        assert_eq!(words, "abc");
    }),
    case("cancelling twice is cancelling", |env| {
        let (session, id) = streaming(env);
        cancel(env, &session);
        cancel(env, &session);
        assert_eq!(wait_for_end(env, &session, id).stop(), "cancelled");
        cancel(env, &session);
        assert_eq!(env.run_prompt(&session, "next").stop(), "end_turn");
    }),
    case("cancelling nothing is nothing", |env| {
        let session = env.session();
        cancel(env, &session);
        cancel(env, "20260101T000000-abcdef");
        cancel(env, "no session at all");
        assert_eq!(env.run_prompt(&session, "hello").stop(), "end_turn");
    }),
    case("cancelling one Session leaves the others alone", |env| {
        let (first, first_id) = streaming(env);
        let session = env.session();
        let id = env.client.send_prompt(&session, "go » say begun ;; pause 300 ;; say ended");
        cancel(env, &first);
        assert_eq!(env.client.wait_for_answer(first_id).unwrap()["stopReason"], "cancelled");
        assert_eq!(wait_for_end(env, &session, id).stop(), "end_turn");
    }),
    case("a prompt is taken back by its request", |env| {
        let (session, id) = streaming(env);
        env.client.notify("$/cancel_request", json!({"requestId": id}));
        assert_eq!(wait_for_end(env, &session, id).stop(), "cancelled");
    }),
    case("a prompt that waits is taken back by its request, and only it", |env| {
        let session = env.session();
        let first = env.client.send_prompt(&session, "go » say begun ;; pause 300 ;; say ended");
        env.wait_for_update(&session, "agent_message_chunk");
        let second = env.client.send_prompt(&session, "never");
        env.client.notify("$/cancel_request", json!({"requestId": second}));
        assert_eq!(env.client.wait_for_answer(second).unwrap()["stopReason"], "cancelled");
        assert_eq!(env.client.wait_for_answer(first).unwrap()["stopReason"], "end_turn");
    }),
    case("a request that nobody made is taken back without a word", |env| {
        env.client.drain();
        for id in [json!(4_711_000), json!("x"), json!(null)] {
            env.client.notify("$/cancel_request", json!({"requestId": id}));
        }
        env.client.still_answers();
        let messages = env.client.drain();
        assert!(messages.iter().all(|message| message.get("error").is_none()), "{messages:?}");
    }),
    case("a list that is taken back has one answer all the same", |env| {
        for _ in 0..10 {
            let id = env.client.send_request("session/list", json!({}));
            env.client.notify("$/cancel_request", json!({"requestId": id}));
            if let Err(error) = env.client.wait_for_answer(id) {
                assert_eq!(error["code"], -32_800, "{error}");
            }
        }
    }),
    case("a Session that is being made and taken back has one answer", |env| {
        for _ in 0..5 {
            let params = json!({"cwd": env.workspace(), "mcpServers": []});
            let id = env.client.send_request("session/new", params);
            env.client.notify("$/cancel_request", json!({"requestId": id}));
            if let Err(error) = env.client.wait_for_answer(id) {
                assert_eq!(error["code"], -32_800, "{error}");
            }
        }
    }),
    case("a cancelled Turn is on record as interrupted", |env| {
        let (session, id) = streaming(env);
        cancel(env, &session);
        wait_for_end(env, &session, id);
        let last = env.log(&session).pop().unwrap();
        assert_eq!(
            (&last["type"], &last["data"]["terminal_status"]),
            (&json!("turn_failed"), &json!("interrupted"))
        );
    }),
    case("cancelling before the model has said anything works", |env| {
        let session = env.session();
        let id = env.client.send_prompt(&session, "go » stall");
        cancel(env, &session);
        assert_eq!(wait_for_end(env, &session, id).stop(), "cancelled");
    }),
    case("cancelling between retries works", |env| {
        env.binary_env.configure(
            &json!({"durability": "none", "retry": {"base_ms": 60000, "cap_ms": 60000}}),
        );
        let mut other = env.start_other(&["--auto"], json!({}));
        let session = other.new_session(&env.workspace());
        let before = env.binary_env.server.requests().len();
        let id = other.send_prompt(&session, "go » status 503 busy");
        let wait = || env.binary_env.server.requests().len() > before;
        assert!(crate::support::binary_env::wait_for(
            crate::support::test_env::DEADLINE,
            wait,
            |seen| { *seen }
        ));
        other.notify("session/cancel", json!({"sessionId": session}));
        assert_eq!(other.wait_for_answer(id).unwrap()["stopReason"], "cancelled");
        env.binary_env.configure(&json!({"durability": "none"}));
    }),
    case("two prompts of one id are taken back together", |env| {
        let session = env.session();
        let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "go » say begun ;; pause 600000"}]});
        let line =
            json!({"jsonrpc": "2.0", "id": "twice", "method": "session/prompt", "params": prompt});
        for _ in 0..2 {
            env.client.write_raw(format!("{line}\n").as_bytes());
        }
        env.wait_for_update(&session, "agent_message_chunk");
        env.client.notify("$/cancel_request", json!({"requestId": "twice"}));
        for _ in 0..2 {
            let answer =
                env.client.wait_for_message("an answer", |message| message["id"] == "twice");
            assert_eq!(answer["result"]["stopReason"], "cancelled", "{answer}");
        }
    }),
    case("the first of two prompts of one id does not hide the second", |env| {
        let session = env.session();
        let line = |text: &str| {
            let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]});
            let line = json!({"jsonrpc": "2.0", "id": "again", "method": "session/prompt", "params": prompt});
            format!("{line}\n")
        };
        env.client.write_raw(line("one » say quick").as_bytes());
        env.client.write_raw(line("two » say begun ;; pause 600000").as_bytes());
        env.client.wait_for_message("the first", |message| message["id"] == "again");
        env.client.wait_for_message("the second", |message| message.to_string().contains("begun"));
        env.client.notify("$/cancel_request", json!({"requestId": "again"}));
        let answer = env.client.wait_for_message("the second", |message| message["id"] == "again");
        assert_eq!(answer["result"]["stopReason"], "cancelled", "{answer}");
    }),
];

//! Listing, closing and deleting Sessions.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, ValidatingClient, case, run_prompt};
use super::scripted_model::script_prompt;

pub const TOPIC: ConformanceTopic =
    ConformanceTopic::new("list, close and delete", CASES).with_args(&["--auto"]);

/// A folder that no other case uses.
fn folder(env: &CaseEnv, name: &str) -> PathBuf {
    let folder = env.workspace().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[track_caller]
fn list_sessions(client: &mut ValidatingClient, params: Value) -> Vec<Value> {
    let answer = client.call("session/list", params).unwrap();
    answer["sessions"].as_array().unwrap().clone()
}

#[track_caller]
fn ids(client: &mut ValidatingClient, folder: &Path) -> Vec<String> {
    let sessions = list_sessions(client, json!({ "cwd": folder }));
    sessions.iter().map(|one| one["sessionId"].as_str().unwrap().to_owned()).collect()
}

fn named(session: &str) -> Value {
    json!({ "sessionId": session })
}

const CASES: &[ConformanceCase] = &[
    case("without wishes there is a list", |env| {
        let session = env.session();
        let all = list_sessions(&mut env.client, json!({}));
        assert!(all.iter().any(|one| one["sessionId"] == session.as_str()));
    }),
    case("a directory has its own Sessions", |env| {
        let a = folder(env, "list-a");
        let b = folder(env, "list-b");
        let in_a = env.client.new_session(&a);
        let in_b = env.client.new_session(&b);
        assert_eq!((ids(&mut env.client, &a), ids(&mut env.client, &b)), (vec![in_a], vec![in_b]));
    }),
    case("a directory without Sessions has an empty list", |env| {
        let empty = folder(env, "list-empty");
        assert!(ids(&mut env.client, &empty).is_empty());
        assert!(ids(&mut env.client, Path::new("/no/such/place")).is_empty());
    }),
    case("a directory is absolute", |env| {
        for cwd in ["list-a", "."] {
            let error = env.client.call("session/list", json!({ "cwd": cwd })).unwrap_err();
            assert_eq!(error["code"], -32_602, "{error}");
        }
    }),
    case("a Session has its directory, title and time", |env| {
        let place = folder(env, "list-titled");
        let session = env.client.new_session(&place);
        run_prompt(&mut env.client, &session, "mend the date parser");
        let one = list_sessions(&mut env.client, json!({ "cwd": place })).remove(0);
        assert_eq!((&one["cwd"], &one["title"]), (&json!(place), &json!("mend the date parser")));
        let time = one["updatedAt"].as_str().unwrap();
        assert!(time.parse::<jiff::Timestamp>().is_ok(), "{time}");
    }),
    case("a Session without words has no title, and is listed", |env| {
        let place = folder(env, "list-untitled");
        env.client.new_session(&place);
        let one = list_sessions(&mut env.client, json!({ "cwd": place })).remove(0);
        assert!(one.get("title").is_none_or(Value::is_null), "{one}");
    }),
    case("the newest is first", |env| {
        let place = folder(env, "list-order");
        let mut made = Vec::new();
        for number in 0..3 {
            let session = env.client.new_session(&place);
            run_prompt(&mut env.client, &session, &format!("number {number}"));
            made.push(session);
        }
        let first = made[0].clone();
        // Modification times have a granularity of some milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(30));
        run_prompt(&mut env.client, &first, "once more");
        assert_eq!(ids(&mut env.client, &place)[0], first);
    }),
    case("a cursor that was not given out is refused", |env| {
        for cursor in ["", "???", "MTIz", "x".repeat(5000).as_str()] {
            let error = env.client.call("session/list", json!({ "cursor": cursor })).unwrap_err();
            assert_eq!(error["code"], -32_602, "{cursor}: {error}");
        }
    }),
    case("many Sessions come in pages, each of them once", |env| {
        let place = folder(env, "list-pages");
        let asked: Vec<u64> = (0..120)
            .map(|_| {
                env.client.send_request("session/new", json!({"cwd": place, "mcpServers": []}))
            })
            .collect();
        let made: HashSet<String> = asked
            .iter()
            .map(|id| {
                env.client.wait_for_answer(*id).unwrap()["sessionId"].as_str().unwrap().to_owned()
            })
            .collect();
        let mut found = Vec::new();
        let mut pages = 0;
        let mut params = json!({ "cwd": place });
        loop {
            let page = env.client.call("session/list", params.clone()).unwrap();
            let page_ids = page["sessions"].as_array().unwrap().iter();
            found.extend(page_ids.map(|one| one["sessionId"].as_str().unwrap().to_owned()));
            pages += 1;
            match page["nextCursor"].as_str() {
                Some(cursor) => params["cursor"] = json!(cursor),
                None => break,
            }
        }
        assert!(pages > 1 && found.len() == 120, "{pages} pages, {} Sessions", found.len());
        assert_eq!(found.into_iter().collect::<HashSet<_>>(), made);
        for session in made {
            env.client.call("session/close", named(&session)).unwrap();
        }
    }),
    case("a Session of the terminal is listed", |env| {
        let place = folder(env, "list-terminal");
        let ran =
            env.binary_env.run(&["--json", "--cwd", place.to_str().unwrap(), "said in a terminal"]);
        let envelope: Value = serde_json::from_str(&ran.expect_code(0).stdout).unwrap();
        let one = list_sessions(&mut env.client, json!({ "cwd": place })).remove(0);
        assert_eq!(
            (&one["sessionId"], &one["title"]),
            (&envelope["session_id"], &json!("said in a terminal"))
        );
        let all = list_sessions(&mut env.client, json!({}));
        assert!(
            all.iter().any(|one| one["sessionId"] == envelope["session_id"]),
            "the user's cache names it"
        );
    }),
    case("closing is answered with an object, and the Session is closed", |env| {
        let session = env.session();
        assert_eq!(env.client.call("session/close", named(&session)).unwrap(), json!({}));
        let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "x"}]});
        let error = env.client.call("session/prompt", prompt).unwrap_err();
        assert_eq!(
            (&error["code"], &error["data"]["sessionId"]),
            (&json!(-32_002), &json!(session))
        );
        env.log(&session);
    }),
    case("closing twice finds nothing the second time", |env| {
        let session = env.session();
        env.client.call("session/close", named(&session)).unwrap();
        assert_eq!(env.client.call("session/close", named(&session)).unwrap_err()["code"], -32_002);
    }),
    case("closing a busy Session cancels it first", |env| {
        let session = env.session();
        let command = format!("bash echo begun; sleep 600; echo {}", env.binary_env.mark);
        let prompt = env.client.send_prompt(&session, &script_prompt("go", &[&command]));
        env.client
            .wait_for_message("its output", |message| message.to_string().contains("begun\\n"));
        let waiting = env.client.send_prompt(&session, "never");
        env.client.call("session/close", named(&session)).unwrap();
        for id in [prompt, waiting] {
            assert_eq!(env.client.wait_for_answer(id).unwrap()["stopReason"], "cancelled");
        }
        let left = env.binary_env.survivors();
        assert!(left.iter().all(|line| !line.contains("sleep 600")), "{left:?}");
    }),
    case("what is closed is free for others at once", |env| {
        let session = env.session();
        env.client.call("session/close", named(&session)).unwrap();
        let mut other = env.start_other(&[], json!({}));
        let params = json!({"sessionId": session, "cwd": env.workspace()});
        other.call("session/resume", params).unwrap();
    }),
    case("deleting is answered with an object, and nothing is left", |env| {
        let place = folder(env, "list-deleted");
        let session = env.client.new_session(&place);
        run_prompt(&mut env.client, &session, "words");
        assert_eq!(env.client.call("session/delete", named(&session)).unwrap(), json!({}));
        assert!(ids(&mut env.client, &place).is_empty());
        assert!(!place.join(format!(".pixir/sessions/{session}.ndjson")).exists());
    }),
    case("deleting what is not there is fine", |env| {
        let session = env.session();
        for _ in 0..2 {
            env.client.call("session/delete", named(&session)).unwrap();
        }
        for odd in ["20260101T000000-abcdef", "nonsense", "", "../../work"] {
            assert_eq!(env.client.call("session/delete", named(odd)).unwrap(), json!({}));
        }
    }),
    case("deleting a busy Session cancels it first", |env| {
        let session = env.session();
        let prompt = env.client.send_prompt(&session, "go » say begun ;; pause 600000");
        env.wait_for_update(&session, "agent_message_chunk");
        env.client.call("session/delete", named(&session)).unwrap();
        assert_eq!(env.client.wait_for_answer(prompt).unwrap()["stopReason"], "cancelled");
    }),
    case("what somebody else has open is not deleted", |env| {
        let session = env.session();
        let mut other = env.start_other(&[], json!({}));
        // The search covers folders in which the process has worked.
        other.new_session(&env.workspace());
        let error = other.call("session/delete", named(&session)).unwrap_err();
        let holder = env.client.child.id().to_string();
        assert!(error["message"].as_str().unwrap().contains(&holder), "{error}");
        assert_eq!(env.run_prompt(&session, "still here").stop(), "end_turn");
    }),
    case("what is deleted cannot be opened", |env| {
        let session = env.session();
        env.client.call("session/delete", named(&session)).unwrap();
        let params = json!({"sessionId": session, "cwd": env.workspace(), "mcpServers": []});
        assert_eq!(env.client.call("session/load", params).unwrap_err()["code"], -32_002);
    }),
];

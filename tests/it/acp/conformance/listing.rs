//! Listing, closing and deleting Sessions.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::case::{CaseEnv, ConformanceCase, ConformanceTopic, JudgedClient, case, turn};
use super::scripted_model::script_prompt;

pub const TOPIC: ConformanceTopic =
    ConformanceTopic::new("list, close and delete", CASES).with_args(&["--auto"]);

/// A folder that no other case uses.
fn folder(scene: &CaseEnv, name: &str) -> PathBuf {
    let folder = scene.workspace().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[track_caller]
fn listed(probe: &mut JudgedClient, params: Value) -> Vec<Value> {
    let answer = probe.call("session/list", params).unwrap();
    answer["sessions"].as_array().unwrap().clone()
}

#[track_caller]
fn ids(probe: &mut JudgedClient, folder: &Path) -> Vec<String> {
    let sessions = listed(probe, json!({ "cwd": folder }));
    sessions.iter().map(|one| one["sessionId"].as_str().unwrap().to_owned()).collect()
}

fn named(session: &str) -> Value {
    json!({ "sessionId": session })
}

const CASES: &[ConformanceCase] = &[
    case("without wishes there is a list", |scene| {
        let session = scene.session();
        let all = listed(&mut scene.probe, json!({}));
        assert!(all.iter().any(|one| one["sessionId"] == session.as_str()));
    }),
    case("a directory has its own Sessions", |scene| {
        let a = folder(scene, "list-a");
        let b = folder(scene, "list-b");
        let in_a = scene.probe.new_session(&a);
        let in_b = scene.probe.new_session(&b);
        assert_eq!(
            (ids(&mut scene.probe, &a), ids(&mut scene.probe, &b)),
            (vec![in_a], vec![in_b])
        );
    }),
    case("a directory without Sessions has an empty list", |scene| {
        let empty = folder(scene, "list-empty");
        assert!(ids(&mut scene.probe, &empty).is_empty());
        assert!(ids(&mut scene.probe, Path::new("/no/such/place")).is_empty());
    }),
    case("a directory is absolute", |scene| {
        for cwd in ["list-a", "."] {
            let error = scene.probe.call("session/list", json!({ "cwd": cwd })).unwrap_err();
            assert_eq!(error["code"], -32_602, "{error}");
        }
    }),
    case("a Session has its directory, title and time", |scene| {
        let place = folder(scene, "list-titled");
        let session = scene.probe.new_session(&place);
        turn(&mut scene.probe, &session, "mend the date parser");
        let one = listed(&mut scene.probe, json!({ "cwd": place })).remove(0);
        assert_eq!((&one["cwd"], &one["title"]), (&json!(place), &json!("mend the date parser")));
        let time = one["updatedAt"].as_str().unwrap();
        assert!(time.parse::<jiff::Timestamp>().is_ok(), "{time}");
    }),
    case("a Session without words has no title, and is listed", |scene| {
        let place = folder(scene, "list-untitled");
        scene.probe.new_session(&place);
        let one = listed(&mut scene.probe, json!({ "cwd": place })).remove(0);
        assert!(one.get("title").is_none_or(Value::is_null), "{one}");
    }),
    case("the newest is first", |scene| {
        let place = folder(scene, "list-order");
        let mut made = Vec::new();
        for number in 0..3 {
            let session = scene.probe.new_session(&place);
            turn(&mut scene.probe, &session, &format!("number {number}"));
            made.push(session);
        }
        let first = made[0].clone();
        // Modification times have a granularity of some milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(30));
        turn(&mut scene.probe, &first, "once more");
        assert_eq!(ids(&mut scene.probe, &place)[0], first);
    }),
    case("a cursor that was not given out is refused", |scene| {
        for cursor in ["", "???", "MTIz", "x".repeat(5000).as_str()] {
            let error = scene.probe.call("session/list", json!({ "cursor": cursor })).unwrap_err();
            assert_eq!(error["code"], -32_602, "{cursor}: {error}");
        }
    }),
    case("many Sessions come in pages, each of them once", |scene| {
        let place = folder(scene, "list-pages");
        let asked: Vec<u64> = (0..120)
            .map(|_| {
                scene.probe.send_request("session/new", json!({"cwd": place, "mcpServers": []}))
            })
            .collect();
        let made: HashSet<String> = asked
            .iter()
            .map(|id| {
                scene.probe.wait_for_answer(*id).unwrap()["sessionId"].as_str().unwrap().to_owned()
            })
            .collect();
        let mut found = Vec::new();
        let mut pages = 0;
        let mut params = json!({ "cwd": place });
        loop {
            let page = scene.probe.call("session/list", params.clone()).unwrap();
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
            scene.probe.call("session/close", named(&session)).unwrap();
        }
    }),
    case("a Session of the terminal is listed", |scene| {
        let place = folder(scene, "list-terminal");
        let ran =
            scene.env.run(&["--json", "--cwd", place.to_str().unwrap(), "said in a terminal"]);
        let envelope: Value = serde_json::from_str(&ran.expect_code(0).stdout).unwrap();
        let one = listed(&mut scene.probe, json!({ "cwd": place })).remove(0);
        assert_eq!(
            (&one["sessionId"], &one["title"]),
            (&envelope["session_id"], &json!("said in a terminal"))
        );
        let all = listed(&mut scene.probe, json!({}));
        assert!(
            all.iter().any(|one| one["sessionId"] == envelope["session_id"]),
            "the user's cache names it"
        );
    }),
    case("closing is answered with an object, and the Session is closed", |scene| {
        let session = scene.session();
        assert_eq!(scene.probe.call("session/close", named(&session)).unwrap(), json!({}));
        let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "x"}]});
        let error = scene.probe.call("session/prompt", prompt).unwrap_err();
        assert_eq!(
            (&error["code"], &error["data"]["sessionId"]),
            (&json!(-32_002), &json!(session))
        );
        scene.log(&session);
    }),
    case("closing twice finds nothing the second time", |scene| {
        let session = scene.session();
        scene.probe.call("session/close", named(&session)).unwrap();
        assert_eq!(
            scene.probe.call("session/close", named(&session)).unwrap_err()["code"],
            -32_002
        );
    }),
    case("closing a busy Session cancels it first", |scene| {
        let session = scene.session();
        let command = format!("bash echo begun; sleep 600; echo {}", scene.env.mark);
        let prompt = scene.probe.send_prompt(&session, &script_prompt("go", &[&command]));
        scene
            .probe
            .wait_for_message("its output", |message| message.to_string().contains("begun\\n"));
        let waiting = scene.probe.send_prompt(&session, "never");
        scene.probe.call("session/close", named(&session)).unwrap();
        for id in [prompt, waiting] {
            assert_eq!(scene.probe.wait_for_answer(id).unwrap()["stopReason"], "cancelled");
        }
        let left = scene.env.survivors();
        assert!(left.iter().all(|line| !line.contains("sleep 600")), "{left:?}");
    }),
    case("what is closed is free for others at once", |scene| {
        let session = scene.session();
        scene.probe.call("session/close", named(&session)).unwrap();
        let mut other = scene.other(&[], json!({}));
        let params = json!({"sessionId": session, "cwd": scene.workspace()});
        other.call("session/resume", params).unwrap();
    }),
    case("deleting is answered with an object, and nothing is left", |scene| {
        let place = folder(scene, "list-deleted");
        let session = scene.probe.new_session(&place);
        turn(&mut scene.probe, &session, "words");
        assert_eq!(scene.probe.call("session/delete", named(&session)).unwrap(), json!({}));
        assert!(ids(&mut scene.probe, &place).is_empty());
        assert!(!place.join(format!(".pixir/sessions/{session}.ndjson")).exists());
    }),
    case("deleting what is not there is fine", |scene| {
        let session = scene.session();
        for _ in 0..2 {
            scene.probe.call("session/delete", named(&session)).unwrap();
        }
        for odd in ["20260101T000000-abcdef", "nonsense", "", "../../work"] {
            assert_eq!(scene.probe.call("session/delete", named(odd)).unwrap(), json!({}));
        }
    }),
    case("deleting a busy Session cancels it first", |scene| {
        let session = scene.session();
        let prompt = scene.probe.send_prompt(&session, "go » say begun ;; pause 600000");
        scene.told(&session, "agent_message_chunk");
        scene.probe.call("session/delete", named(&session)).unwrap();
        assert_eq!(scene.probe.wait_for_answer(prompt).unwrap()["stopReason"], "cancelled");
    }),
    case("what somebody else has open is not deleted", |scene| {
        let session = scene.session();
        let mut other = scene.other(&[], json!({}));
        // The search covers folders in which the process has worked.
        other.new_session(&scene.workspace());
        let error = other.call("session/delete", named(&session)).unwrap_err();
        let holder = scene.probe.child.id().to_string();
        assert!(error["message"].as_str().unwrap().contains(&holder), "{error}");
        assert_eq!(scene.turn(&session, "still here").stop(), "end_turn");
    }),
    case("what is deleted cannot be opened", |scene| {
        let session = scene.session();
        scene.probe.call("session/delete", named(&session)).unwrap();
        let params = json!({"sessionId": session, "cwd": scene.workspace(), "mcpServers": []});
        assert_eq!(scene.probe.call("session/load", params).unwrap_err()["code"], -32_002);
    }),
];

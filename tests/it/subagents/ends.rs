//! Children that are ended by others: no process of them is left.

use std::time::Duration;

use pixir::scripted::Reply;
use pixir::{Canonical, EventKind, SessionStatus, UserInput};
use serde_json::json;

use super::scripted_family::{
    self, GO, check_family_logs, count_subagent_events, first_id, scripted_family, spawn_reply,
    subagent_events, text_reply, wait_reply,
};
use crate::support::TestEnv;
use crate::support::test_env::{
    DEADLINE, listen_until, send_and_finish, subscribe_from_now, wait_for_turn_end,
};

/// Whether a process with this mark in its arguments is alive.
fn is_alive(mark: &str) -> bool {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut processes = entries.filter_map(|entry| {
        let name = entry.file_name().to_string_lossy().parse::<u32>().ok()?;
        std::fs::read(format!("/proc/{name}/cmdline")).ok()
    });
    processes.any(|words| String::from_utf8_lossy(&words).contains(mark))
}

/// Waits until a file is there.
pub async fn wait_for_file(env: &TestEnv, name: &str) {
    let path = env.workspace().join(name);
    let waiting = async {
        while !path.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.expect("the file appears");
}

/// Replies for children that run an endless command, and whose own children do the same.
fn sleeping_children(mark: String) -> impl Fn(&str, usize) -> Reply + Send + Sync + 'static {
    move |task, step| {
        let sleep = |name: &str| {
            let command = format!("touch {name}.here; sleep 6{mark} & sleep 6{mark}; wait");
            Reply::calls("bash", json!({"command": command}))
        };
        match (task, step) {
            ("deep", 0) => Reply::calls("spawn_agent", json!({"task": "grandchild"})),
            (name, _) => sleep(name),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_ends_the_whole_tree_in_mid_tool() {
    let mark = format!("{:08}", std::process::id());
    let script = scripted_family(
        [spawn_reply(&["deep", "flat"], "worker"), wait_reply()],
        sleeping_children(mark.clone()),
    );
    let env = TestEnv::with_script(script).await;
    let conversation = env.start().await;
    conversation.send(UserInput { text: GO.to_owned() }).await.unwrap();
    for name in ["deep.here", "flat.here", "grandchild.here"] {
        wait_for_file(&env, name).await;
    }
    assert!(is_alive(&format!("6{mark}")), "the children are running");
    conversation.interrupt().await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Interrupted);
    let gone = async {
        while is_alive(&format!("6{mark}"))
            || count_subagent_events(conversation.log_path(), "cancelled") < 2
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, gone).await.expect("nothing survives");
    let path = conversation.log_path().to_owned();
    conversation.close().await;
    let reasons: Vec<_> =
        subagent_events(&path).iter().map(|life| life["reason"].clone()).collect();
    assert!(reasons.contains(&json!("parent_interrupted")), "{reasons:?}");
    assert_eq!(check_family_logs(&env.workspace()), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn children_go_on_after_the_turn_and_end_with_the_session() {
    let mark = format!("1{:08}", std::process::id());
    let script = scripted_family(
        [spawn_reply(&["flat"], "worker"), text_reply("Started.")],
        sleeping_children(mark.clone()),
    );
    let env = TestEnv::with_script(script).await;
    let conversation = env.start().await;
    assert_eq!(send_and_finish(&conversation, GO).await, SessionStatus::Done);
    wait_for_file(&env, "flat.here").await;
    let path = conversation.log_path().to_owned();
    conversation.close().await;
    assert!(!is_alive(&format!("6{mark}")), "it is gone with its parent");
    let life = subagent_events(&path).pop().unwrap();
    assert_eq!((&life["event"], &life["reason"]), (&json!("cancelled"), &json!("parent_closed")));
    assert_eq!(check_family_logs(&env.workspace()), 1);
}

#[tokio::test]
async fn a_child_that_is_closed_ends_and_takes_no_input() {
    let close = |request: &pixir::scripted::ReceivedRequest| {
        Reply::calls("close_agent", json!({"id": first_id(request)}))
    };
    let script = scripted_family(
        [
            spawn_reply(&["works"], "worker"),
            spawn_reply(&["waits"], "worker"),
            Box::new(close),
            wait_reply(),
            Box::new(|request| {
                Reply::calls("send_input", json!({"id": first_id(request), "text": "more"}))
            }),
            text_reply("ok"),
        ],
        |task, _| match task {
            "works" => Reply::new().stalls(),
            _ => Reply::says("my turn came"),
        },
    );
    let mut env = TestEnv::with_script(script).await;
    env.config.subagents.max_running = 1;
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let path = conversation.log_path();
    assert_eq!(
        (count_subagent_events(path, "cancelled"), count_subagent_events(path, "finished")),
        (1, 1)
    );
    let cut = subagent_events(path).into_iter().find(|life| life["event"] == "cancelled").unwrap();
    assert_eq!(cut["reason"], "closed_by_parent");
    let results = scripted_family::read_events(path);
    let refused = results.iter().rfind(|event| event["type"] == "tool_result").unwrap();
    assert_eq!(refused["data"]["error"]["kind"], "not_found", "who is closed takes no input");
    check_family_logs(&env.workspace());
}

/// A call with the id of a Subagent, by its place in the order of spawns.
fn with_child(
    tool: &'static str,
    place: usize,
    text: Option<&'static str>,
) -> scripted_family::ParentReply {
    Box::new(move |request| {
        let known = request.outputs().join(" ");
        let mut ids: Vec<&str> =
            known.match_indices("sub_").map(|(place, _)| &known[place..place + 14]).collect();
        ids.dedup();
        let mut args = json!({"id": ids[place]});
        if let Some(text) = text {
            args["text"] = json!(text);
        }
        Reply::calls(tool, args)
    })
}

#[tokio::test]
async fn a_child_that_works_or_waits_takes_no_input_and_one_that_is_closed_in_the_queue_never_starts()
 {
    let script = scripted_family(
        [
            spawn_reply(&["works", "waits"], "worker"),
            with_child("send_input", 0, Some("more")),
            with_child("send_input", 1, Some("more")),
            with_child("close_agent", 1, None),
            with_child("send_input", 1, Some("more")),
            with_child("close_agent", 0, None),
            with_child("close_agent", 0, None),
            text_reply("ok"),
        ],
        |_, _| Reply::new().stalls(),
    );
    let mut env = TestEnv::with_script(script).await;
    env.config.subagents.max_running = 1;
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let path = conversation.log_path().to_owned();
    let results = scripted_family::read_events(&path);
    let kinds: Vec<_> = results
        .iter()
        .filter(|event| event["type"] == "tool_result")
        .map(|event| event["data"]["error"]["kind"].as_str().unwrap_or("ok"))
        .collect();
    assert_eq!(kinds, ["ok", "ok", "busy", "busy", "ok", "not_found", "ok", "ok"]);
    let known = subagent_events(&path);
    let second =
        &known.iter().filter(|life| life["event"] == "queued").nth(1).unwrap()["subagent_id"];
    let recorded_kinds: Vec<_> = known
        .iter()
        .filter(|life| life["subagent_id"] == *second)
        .map(|life| life["event"].as_str().unwrap())
        .collect();
    assert_eq!(recorded_kinds, ["queued", "cancelled", "closed"], "it never had a Session");
    assert_eq!(count_subagent_events(&path, "closed"), 2, "closing twice has one effect");
    conversation.close().await;
    assert_eq!(check_family_logs(&env.workspace()), 2);
}

#[tokio::test]
async fn a_child_that_was_closed_at_work_stays_closed_after_a_restart() {
    let send = |request: &pixir::scripted::ReceivedRequest| {
        Reply::calls("send_input", json!({"id": first_id(request), "text": "more"}))
    };
    let close = |request: &pixir::scripted::ReceivedRequest| {
        Reply::calls("close_agent", json!({"id": first_id(request)}))
    };
    let script = scripted_family(
        [
            spawn_reply(&["works"], "worker"),
            Box::new(close),
            text_reply("ok"),
            Box::new(send),
            text_reply("ok"),
        ],
        |_, _| Reply::new().stalls(),
    );
    let env = TestEnv::with_script(script).await;
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let id = conversation.id().clone();
    let path = conversation.log_path().to_owned();
    conversation.close().await;
    let again = env.resume(&id).await;
    assert_eq!(send_and_finish(&again, "go on").await, SessionStatus::Done);
    let kinds: Vec<_> = subagent_events(&path).iter().map(|life| life["event"].clone()).collect();
    assert_eq!(kinds[kinds.len() - 2..], [json!("cancelled"), json!("closed")]);
    let results = scripted_family::read_events(&path);
    let refused = results.iter().rfind(|event| event["type"] == "tool_result").unwrap();
    assert_eq!(refused["data"]["error"]["kind"], "not_found", "{refused}");
    check_family_logs(&env.workspace());
}

#[tokio::test]
async fn a_child_that_is_named_twice_in_a_wait_is_one_child() {
    let wait = |request: &pixir::scripted::ReceivedRequest| {
        let text = serde_json::to_string(request.input()).unwrap();
        let ids: Vec<&str> =
            text.match_indices("sub_").map(|(place, _)| &text[place..place + 14]).collect();
        let ids = [ids[0], ids[1], ids[0]];
        Reply::calls("wait_agent", json!({"ids": ids, "until": "any", "timeout_ms": 1}))
    };
    let script = scripted_family(
        [spawn_reply(&["one", "two"], "explorer"), Box::new(wait), text_reply("ok")],
        |_, _| Reply::new().stalls(),
    );
    let env = TestEnv::with_script(script).await;
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let results = scripted_family::read_events(conversation.log_path());
    let result = results.iter().rfind(|event| event["type"] == "tool_result").unwrap();
    assert!(result["data"]["output"].as_str().unwrap().contains("0 of 2 ended"), "{result}");
    conversation.close().await;
    check_family_logs(&env.workspace());
}

#[tokio::test]
async fn a_child_that_cannot_be_reached_or_dies_is_seen_at_once() {
    let script = scripted_family(
        [spawn_reply(&["bad"], "worker"), wait_reply(), text_reply("ok")],
        |_, _| Reply::status(401, r#"{"error": {"code": "invalid_api_key", "message": "no"}}"#),
    );
    let env = TestEnv::with_script(script).await;
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: GO.to_owned() }).await.unwrap();
    listen_until(&mut listener, |event| {
        matches!(event.kind(), EventKind::Canonical(Canonical::SubagentEvent(life))
            if life.event.as_str() == "failed")
    })
    .await;
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Done);
    let life = subagent_events(conversation.log_path()).pop().unwrap();
    assert!(life["summary"].as_str().unwrap().contains("auth"), "{life}");
    check_family_logs(&env.workspace());
}

//! Permissions of children, and their questions to the user.

use pixir::scripted::Reply;
use pixir::{
    Ephemeral, EventKind, PermissionAnswer, PermissionMode, PermissionRequest, SessionStatus,
    UserInput,
};
use serde_json::json;

use super::scripted_family::{
    self, GO, check_family_logs, read_events, scripted_family, spawn_reply, subagent_events,
    text_reply, wait_reply,
};
use crate::support::TestEnv;
use crate::support::test_env::{listen_until, subscribe_from_now, wait_for_turn_end};

fn question(event: &pixir::Event) -> Option<PermissionRequest> {
    match event.kind() {
        EventKind::Ephemeral(Ephemeral::PermissionRequest(request)) => Some((**request).clone()),
        _ => None,
    }
}

#[tokio::test]
async fn a_parent_that_may_only_read_has_children_that_may_only_read() {
    let script = scripted_family(
        [spawn_reply(&["try"], "worker"), wait_reply(), text_reply("ok")],
        |_, step| match step {
            0 => Reply::calls("write", json!({"path": "x", "content": "x"})),
            _ => Reply::says("I could not."),
        },
    );
    let mut env = TestEnv::with_script(script).await;
    env.config.permission_mode = PermissionMode::ReadOnly;
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    assert!(!env.workspace().join("x").exists());
    let first = &subagent_events(conversation.log_path())[0];
    assert_eq!(first["permission_mode"], "read_only");
    let child = subagent_events(conversation.log_path()).pop().unwrap();
    let child = child["child_session_id"].as_str().unwrap().to_owned();
    let path = env.workspace().join(format!(".pixir/sessions/{child}.ndjson"));
    let denied = read_events(&path);
    assert!(denied.iter().any(|event| event["data"]["error"]["kind"] == "permission_denied"));
    check_family_logs(&env.workspace());
}

#[tokio::test]
async fn a_childs_question_reaches_the_human_and_the_answer_comes_back() {
    let script = scripted_family(
        [spawn_reply(&["deep"], "worker"), wait_reply(), text_reply("ok")],
        |task, step| match (task, step) {
            ("deep", 0) => Reply::calls("spawn_agent", json!({"task": "write"})),
            ("deep", 1) => Reply::calls("wait_agent", json!({})),
            ("write", 0) => Reply::calls("write", json!({"path": "x", "content": "x"})),
            _ => Reply::says("done"),
        },
    );
    let mut env = TestEnv::with_script(script).await.in_ask_mode();
    // Waiting for the user does not count towards the child's time limit.
    env.config.subagents.timeout = std::time::Duration::from_secs(20);
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: GO.to_owned() }).await.unwrap();
    let mut asked = Vec::new();
    for _ in 0..3 {
        let events = listen_until(&mut listener, |event| question(event).is_some()).await;
        let request = question(events.last().unwrap()).unwrap();
        conversation.answer(&request.call_id, PermissionAnswer::Once).await.unwrap();
        asked.push((request.tool, request.agent.map(|agent| agent.matches("(worker)").count())));
    }
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Done);
    let expected = [("spawn_agent", None), ("spawn_agent", Some(1)), ("write", Some(2))];
    assert_eq!(asked, expected.map(|(tool, depth)| (tool.to_owned(), depth)));
    assert_eq!(env.read("x"), "x");
    assert_eq!(check_family_logs(&env.workspace()), 2);
}

#[tokio::test]
async fn a_question_whose_asker_is_gone_is_withdrawn() {
    let script = scripted_family(
        [spawn_reply(&["write"], "worker"), wait_reply(), text_reply("ok")],
        |_, _| Reply::calls("write", json!({"path": "x", "content": "x"})),
    );
    let env = TestEnv::with_script(script).await.in_ask_mode();
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: GO.to_owned() }).await.unwrap();
    let events = listen_until(&mut listener, |event| question(event).is_some()).await;
    let spawn = question(events.last().unwrap()).unwrap();
    conversation.answer(&spawn.call_id, PermissionAnswer::Once).await.unwrap();
    let events = listen_until(&mut listener, |event| question(event).is_some()).await;
    let write = question(events.last().unwrap()).unwrap();
    conversation.interrupt().await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Interrupted);
    let resolved = |event: &pixir::Event| {
        matches!(event.kind(), EventKind::Ephemeral(Ephemeral::PermissionResolved { call_id, .. })
            if *call_id == write.call_id)
    };
    listen_until(&mut listener, resolved).await;
    let path = conversation.log_path().to_owned();
    conversation.close().await;
    assert!(!env.workspace().join("x").exists());
    assert_eq!(scripted_family::count_subagent_events(&path, "cancelled"), 1);
    check_family_logs(&env.workspace());
}

#[tokio::test]
async fn a_task_is_no_persons_word_for_skills() {
    let task = "use $tidy and $quiet";
    let script = scripted_family(
        [spawn_reply(&[task], "worker"), wait_reply(), text_reply("ok")],
        |_, _| Reply::says("Used."),
    );
    let env = TestEnv::with_script(script).await;
    for (name, head) in [
        ("tidy", "context:\n  - {id: notes, command: 'cat notes'}"),
        ("quiet", "disable-model-invocation: true"),
    ] {
        let folder = env.home().join(".agents/skills").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let text = format!("---\nname: {name}\ndescription: x\n{head}\n---\nBe {name}.\n");
        std::fs::write(folder.join("SKILL.md"), text).unwrap();
    }
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let child = subagent_events(conversation.log_path()).pop().unwrap()["child_session_id"].clone();
    let log = env.workspace().join(format!(".pixir/sessions/{}.ndjson", child.as_str().unwrap()));
    let facts: Vec<_> = read_events(&log)
        .into_iter()
        .filter(|event| event["type"].as_str().unwrap().starts_with("skill_"))
        .map(|event| (event["data"]["name"].clone(), event["data"]["activated_by"].clone()))
        .collect();
    assert_eq!(facts, [(json!("tidy"), json!("parent"))], "only an activation");
    let requests = env.requests();
    let asked =
        requests.iter().find(|request| scripted_family::last_task(request).is_some()).unwrap();
    let texts = asked.user_texts().concat();
    assert!(texts.contains("Be tidy.") && !texts.contains("Be quiet."), "{texts}");
    check_family_logs(&env.workspace());
}

//! What children may, and whom they ask.

use pixir::scripted::Reply;
use pixir::{Answer, Ephemeral, EventKind, Input, PermissionMode, PermissionRequest, Status};
use serde_json::json;

use super::cast::{self, GO, agree, cast, events, lives, says, spawns, waits};
use crate::support::House;
use crate::support::house::{finish, listen, listen_until};

fn question(event: &pixir::Event) -> Option<PermissionRequest> {
    match event.kind() {
        EventKind::Ephemeral(Ephemeral::PermissionRequest(request)) => Some((**request).clone()),
        _ => None,
    }
}

#[tokio::test]
async fn a_parent_that_may_only_read_has_children_that_may_only_read() {
    let script = cast([spawns(&["try"], "worker"), waits(), says("ok")], |_, step| match step {
        0 => Reply::calls("write", json!({"path": "x", "content": "x"})),
        _ => Reply::says("I could not."),
    });
    let mut house = House::scripted(script).await;
    house.config.permission_mode = PermissionMode::ReadOnly;
    let (conversation, status) = house.turn(GO).await;
    assert_eq!(status, Status::Done);
    assert!(!house.workspace().join("x").exists());
    let first = &lives(conversation.log_path())[0];
    assert_eq!(first["permission_mode"], "read_only");
    let child = lives(conversation.log_path()).pop().unwrap();
    let child = child["child_session_id"].as_str().unwrap().to_owned();
    let path = house.workspace().join(format!(".pixir/sessions/{child}.ndjson"));
    let denied = events(&path);
    assert!(denied.iter().any(|event| event["data"]["error"]["kind"] == "permission_denied"));
    agree(&house.workspace());
}

#[tokio::test]
async fn a_childs_question_reaches_the_human_and_the_answer_comes_back() {
    let script =
        cast([spawns(&["deep"], "worker"), waits(), says("ok")], |task, step| match (task, step) {
            ("deep", 0) => Reply::calls("spawn_agent", json!({"task": "write"})),
            ("deep", 1) => Reply::calls("wait_agent", json!({})),
            ("write", 0) => Reply::calls("write", json!({"path": "x", "content": "x"})),
            _ => Reply::says("done"),
        });
    let mut house = House::scripted(script).await.ask_mode();
    // The time of a person is not the time of a child.
    house.config.subagents.timeout = std::time::Duration::from_secs(20);
    let conversation = house.start().await;
    let mut listener = listen(&conversation);
    conversation.send(Input { text: GO.to_owned() }).await.unwrap();
    let mut asked = Vec::new();
    for _ in 0..3 {
        let heard = listen_until(&mut listener, |event| question(event).is_some()).await;
        let request = question(heard.last().unwrap()).unwrap();
        conversation.answer(&request.call_id, Answer::Once).await.unwrap();
        asked.push((request.tool, request.agent.map(|agent| agent.matches("(worker)").count())));
    }
    assert_eq!(finish(&conversation).await, Status::Done);
    let expected = [("spawn_agent", None), ("spawn_agent", Some(1)), ("write", Some(2))];
    assert_eq!(asked, expected.map(|(tool, depth)| (tool.to_owned(), depth)));
    assert_eq!(house.read("x"), "x");
    assert_eq!(agree(&house.workspace()), 2);
}

#[tokio::test]
async fn a_question_whose_asker_is_gone_is_withdrawn() {
    let script = cast([spawns(&["write"], "worker"), waits(), says("ok")], |_, _| {
        Reply::calls("write", json!({"path": "x", "content": "x"}))
    });
    let house = House::scripted(script).await.ask_mode();
    let conversation = house.start().await;
    let mut listener = listen(&conversation);
    conversation.send(Input { text: GO.to_owned() }).await.unwrap();
    let heard = listen_until(&mut listener, |event| question(event).is_some()).await;
    let spawn = question(heard.last().unwrap()).unwrap();
    conversation.answer(&spawn.call_id, Answer::Once).await.unwrap();
    let heard = listen_until(&mut listener, |event| question(event).is_some()).await;
    let write = question(heard.last().unwrap()).unwrap();
    conversation.interrupt().await.unwrap();
    assert_eq!(finish(&conversation).await, Status::Interrupted);
    let resolved = |event: &pixir::Event| {
        matches!(event.kind(), EventKind::Ephemeral(Ephemeral::PermissionResolved { call_id, .. })
            if *call_id == write.call_id)
    };
    listen_until(&mut listener, resolved).await;
    let path = conversation.log_path().to_owned();
    conversation.close().await;
    assert!(!house.workspace().join("x").exists());
    assert_eq!(cast::count(&path, "cancelled"), 1);
    agree(&house.workspace());
}

#[tokio::test]
async fn a_task_is_no_persons_word_for_skills() {
    let task = "use $tidy and $quiet";
    let script =
        cast([spawns(&[task], "worker"), waits(), says("ok")], |_, _| Reply::says("Used."));
    let house = House::scripted(script).await;
    for (name, head) in [
        ("tidy", "context:\n  - {id: notes, command: 'cat notes'}"),
        ("quiet", "disable-model-invocation: true"),
    ] {
        let folder = house.home().join(".agents/skills").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let text = format!("---\nname: {name}\ndescription: x\n{head}\n---\nBe {name}.\n");
        std::fs::write(folder.join("SKILL.md"), text).unwrap();
    }
    let (conversation, status) = house.turn(GO).await;
    assert_eq!(status, Status::Done);
    let child = lives(conversation.log_path()).pop().unwrap()["child_session_id"].clone();
    let log = house.workspace().join(format!(".pixir/sessions/{}.ndjson", child.as_str().unwrap()));
    let facts: Vec<_> = events(&log)
        .into_iter()
        .filter(|event| event["type"].as_str().unwrap().starts_with("skill_"))
        .map(|event| (event["data"]["name"].clone(), event["data"]["activated_by"].clone()))
        .collect();
    assert_eq!(facts, [(json!("tidy"), json!("parent"))], "nobody asked for context, or for quiet");
    let requests = house.requests();
    let asked = requests.iter().find(|request| cast::task(request).is_some()).unwrap();
    let told = asked.user_texts().concat();
    assert!(told.contains("Be tidy.") && !told.contains("Be quiet."), "{told}");
    agree(&house.workspace());
}

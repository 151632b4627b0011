//! Children: what they are asked, what they answer, how they end, and what the Logs say of it.

mod afterwards;
pub mod cast;
mod ends;
mod given;
mod killed;
mod limits;
mod permission;
mod random;
mod roles;
mod shown;
mod workspaces;

use pixir::Status;
use pixir::scripted::Reply;
use serde_json::json;

use crate::support::House;
use crate::support::house::{logs, say};
use cast::{GO, agree, cast, count, events, first_id, line, lives, says, spawns, waits};

#[tokio::test]
async fn a_child_does_its_task_and_the_wait_tells_what_it_came_to() {
    let script = cast(
        [spawns(&["write hello"], "worker"), waits(), says("All done.")],
        |_, step| match step {
            0 => Reply::calls("write", json!({"path": "hello.txt", "content": "hello\n"})),
            _ => Reply::says("I wrote hello.txt:1."),
        },
    );
    let house = House::scripted(script).await;
    let (conversation, status) = house.turn(GO).await;
    assert_eq!(status, Status::Done);
    assert_eq!(house.read("hello.txt"), "hello\n");
    let told = house.transcript(&conversation);
    let told: Vec<&str> =
        told.lines().filter_map(|line| line.split_once(' ')).map(|(_, fact)| fact).collect();
    let place = |fact: &str| {
        let found = told.iter().position(|own| own.starts_with(fact));
        found.unwrap_or_else(|| panic!("{fact}: {told:#?}"))
    };
    let order = [
        "tool_call spawn_agent",
        "subagent_event queued worker queued",
        "subagent_event started worker running",
        "subagent_event finished worker completed",
        "assistant_message final",
    ];
    assert!(order.map(place).is_sorted(), "{told:#?}");
    assert!(
        place(order[1]) < place("tool_result ok=true \"sub_"),
        "it returns when that is recorded"
    );
    assert!(place(order[3]) < place("tool_result ok=true \"All 1 completed"), "{told:#?}");
    let requests = house.requests();
    let last = requests.iter().rfind(|request| cast::task(request).is_none()).unwrap();
    let told = last.outputs().last().copied().unwrap();
    assert!(told.contains("All 1 completed.") && told.contains("I wrote hello.txt:1."), "{told}");
    let life = lives(conversation.log_path()).pop().unwrap();
    let child = life["child_session_id"].as_str().unwrap();
    assert!(told.contains(&format!("[Log {child} seq {}]", life["child_seq"])), "{told}");
    let asides: Vec<&str> =
        last.user_texts().into_iter().filter(|text| text.starts_with("[Subagent")).collect();
    assert!(asides.is_empty(), "what the wait told is not told twice: {asides:?}");
    assert_eq!(agree(&house.workspace()), 1);
}

#[tokio::test]
async fn a_child_knows_its_task_its_role_and_itself_and_nothing_else() {
    let script = cast([spawns(&["look around"], "explorer"), waits(), says("ok")], |_, _| {
        Reply::says("Nothing to see.")
    });
    let house = House::scripted(script).await;
    house.write("AGENTS.md", "Use tabs.");
    let (conversation, _) = house.turn(GO).await;
    let requests = house.requests();
    let child = requests.iter().find(|request| cast::task(request).is_some()).unwrap();
    assert_eq!(child.user_texts(), ["look around"]);
    let text = serde_json::to_string(child.input()).unwrap();
    for words in ["Use tabs.", "Role: explorer", "evidence as path:line", "read_only"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let parent = conversation.id().to_string();
    assert!(text.contains(&format!(r#"\"parent_session_id\": \"{parent}\""#)), "{text}");
    let names = |request: &pixir::scripted::Received| {
        let tools = request.body["tools"].as_array().unwrap().clone();
        tools.iter().filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let own = names(child);
    for withheld in ["write", "edit", "apply_patch", "merge_child"] {
        assert!(!own.iter().any(|name| name == withheld), "{own:?}");
    }
    assert!(own.contains(&"spawn_agent".to_owned()), "{own:?}");
    assert_eq!(requests[0].body["instructions"], child.body["instructions"]);
    agree(&house.workspace());
}

#[tokio::test]
async fn the_end_of_a_child_wakes_nobody_and_is_told_with_the_next_prompt() {
    let script = cast([spawns(&["look"], "explorer"), says("Started."), says("I see.")], |_, _| {
        Reply::says("Found it in a.rs:7.")
    });
    let house = House::scripted(script).await;
    let harness = house.harness();
    let conversation = house.start_with(&harness).await;
    assert_eq!(say(&conversation, GO).await, Status::Done);
    harness.children_settled(&conversation).await;
    let before = house.requests().len();
    let life = lives(conversation.log_path()).pop().unwrap();
    assert_eq!(
        (&life["event"], &life["summary"]),
        (&json!("finished"), &json!("Found it in a.rs:7."))
    );
    tokio::task::yield_now().await;
    assert_eq!(house.requests().len(), before, "nobody was woken");
    say(&conversation, "and?").await;
    let last = house.requests().pop().unwrap();
    let texts = last.user_texts();
    assert!(texts.iter().any(|text| text.contains("Found it in a.rs:7.")), "{texts:?}");
    agree(&house.workspace());
}

#[tokio::test]
async fn a_child_that_ended_is_told_more_and_remembers() {
    let script = cast(
        [
            spawns(&["first"], "worker"),
            waits(),
            Box::new(|request| {
                Reply::calls("send_input", json!({"id": first_id(request), "text": "second"}))
            }),
            waits(),
            says("ok"),
        ],
        |task, _| Reply::says(&format!("did {task}")),
    );
    let house = House::scripted(script).await;
    let (conversation, status) = house.turn(GO).await;
    assert_eq!(status, Status::Done);
    let requests = house.requests();
    let again = requests.iter().rfind(|request| cast::task(request).is_some()).unwrap();
    assert_eq!(again.user_texts(), ["first", "second"]);
    assert!(serde_json::to_string(again.input()).unwrap().contains("did first"));
    let told: Vec<_> = lives(conversation.log_path())
        .iter()
        .map(|life| life["event"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(told, ["queued", "starting", "started", "finished", "input", "started", "finished"]);
    assert_eq!(logs(&house.workspace()).len(), 2, "it is the same Session");
    agree(&house.workspace());
}

#[tokio::test]
async fn after_a_restart_a_child_goes_on_and_what_was_lost_is_said() {
    let script = cast(
        [
            spawns(&["first"], "worker"),
            waits(),
            says("ok"),
            Box::new(|request| {
                Reply::calls("send_input", json!({"id": first_id(request), "text": "second"}))
            }),
            waits(),
            line(Reply::calls("list_agents", json!({}))),
            says("done"),
        ],
        |task, _| Reply::says(&format!("did {task}")),
    );
    let house = House::scripted(script).await;
    let (conversation, _) = house.turn(GO).await;
    let (id, path) = (conversation.id().clone(), conversation.log_path().to_owned());
    conversation.close().await;
    // As if the process had died with a child at work.
    let lost = json!({"event": "queued", "subagent_id": "sub_00000000ff", "agent": "worker",
        "status": "queued", "permission_mode": "auto", "depth": 1});
    cast::append(&path, "subagent_event", &lost);
    let again = house.resume(&id).await;
    let detached = lives(&path).pop().unwrap();
    assert_eq!(
        (&detached["event"], &detached["subagent_id"]),
        (&json!("detached"), &json!("sub_00000000ff"))
    );
    assert!(detached["next_actions"].to_string().contains("spawn it again"), "{detached}");
    assert_eq!(say(&again, "go on").await, Status::Done);
    let listed = house.requests().pop().unwrap();
    let listed = listed.outputs().join("\n");
    assert!(listed.contains("sub_00000000ff (worker) detached"), "{listed}");
    assert!(
        listed.contains("\n  did second\n"),
        "what it came to is known after a restart: {listed}"
    );
    assert_eq!(count(&path, "finished"), 2);
    assert_eq!(agree(&house.workspace()), 2);
}

#[tokio::test]
async fn a_wish_can_be_checked_and_a_bad_one_starts_nothing() {
    let script = cast(
        [
            line(Reply::calls("spawn_agent", json!({"task": "x", "validate_only": true}))),
            line(Reply::calls("spawn_agent", json!({"task": "x", "role": "wizard"}))),
            line(Reply::calls("spawn_agent", json!({"task": "x", "workspace": "elsewhere"}))),
            line(Reply::calls("wait_agent", json!({"ids": ["sub_nobody"]}))),
            waits(),
            says("ok"),
        ],
        |_, _| Reply::says("never"),
    );
    let house = House::scripted(script).await;
    let (conversation, _) = house.turn(GO).await;
    let results: Vec<String> = events(conversation.log_path())
        .iter()
        .filter(|event| event["type"] == "tool_result")
        .map(|event| match event["data"]["error"]["kind"].as_str() {
            Some(kind) => kind.to_owned(),
            None => event["data"]["details"]["plan"]["permission_mode"].to_string(),
        })
        .collect();
    assert_eq!(results, [r#""auto""#, "not_found", "invalid_args", "not_found", "null"]);
    let told = house.requests()[1].outputs().join("\n");
    assert!(told.contains(r#""permission_mode":"auto""#), "the model reads the plan: {told}");
    assert!(lives(conversation.log_path()).is_empty());
    assert_eq!(logs(&house.workspace()).len(), 1);
}

#[tokio::test]
async fn a_review_ends_with_a_verdict_on_record() {
    let verdict = r#"One thing. {"verdict": "request_changes", "findings": [], "limitations": []}"#;
    let script = cast([spawns(&["review"], "reviewer"), waits(), says("ok")], move |_, _| {
        Reply::says(verdict)
    });
    let house = House::scripted(script).await;
    let (conversation, _) = house.turn(GO).await;
    let life = lives(conversation.log_path()).pop().unwrap();
    assert_eq!(life["verdict"], "request_changes");
}

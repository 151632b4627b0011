//! What changes around children: a stricter parent, a fork, many ends at once, and what a death leaves.

use std::path::{Path, PathBuf};

use pixir::scripted::{Received, Reply};
use pixir::{Change, PermissionMode, SessionId, Start, Status, Which};
use serde_json::{Value, json};

use super::cast::{self, GO, agree, append, cast, count, events, lives, says, spawns, waits};
use super::ends::appears;
use crate::support::House;
use crate::support::house::{finish, logs, say};

/// A command that lasts until a file is there.
fn until(begun: &str, go: &str) -> Reply {
    let command = format!("touch {begun}; while [ ! -e {go} ]; do sleep 0.02; done");
    Reply::calls("bash", json!({"command": command}))
}

/// The texts about children that a model read outside of its calls.
fn asides(request: &Received) -> Vec<String> {
    let texts = request.user_texts().into_iter();
    texts.filter(|text| text.starts_with("[Subagent")).map(str::to_owned).collect()
}

fn log_of(house: &House, id: &str) -> PathBuf {
    house.workspace().join(format!(".pixir/sessions/{id}.ndjson"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_at_work_heeds_a_parent_that_becomes_stricter() {
    let script =
        cast([spawns(&["deep"], "worker"), waits(), says("ok")], |task, step| match (task, step) {
            ("deep", 0) => Reply::calls("spawn_agent", json!({"task": "write"})),
            ("deep", 1) => Reply::calls("wait_agent", json!({})),
            ("write", 0) => until("begun", "go"),
            ("write", 1) => Reply::calls("write", json!({"path": "late.txt", "content": "x"})),
            ("write", 2) => Reply::calls("bash", json!({"command": "touch later.txt"})),
            _ => Reply::says("done"),
        });
    let house = House::scripted(script).await;
    let harness = house.harness();
    let conversation = house.start_with(&harness).await;
    conversation.send(pixir::Input { text: GO.to_owned() }).await.unwrap();
    appears(&house, "begun").await;
    let stricter = Change { mode: Some(PermissionMode::ReadOnly), ..Change::default() };
    harness.change(&conversation, stricter).await.unwrap();
    house.write("go", "");
    assert_eq!(finish(&conversation).await, Status::Done);
    assert!(!house.workspace().join("late.txt").exists(), "its parent may only read by now");
    assert!(!house.workspace().join("later.txt").exists(), "and its commands change nothing");
    conversation.close().await;
    assert_eq!(agree(&house.workspace()), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn children_stay_with_their_parent_when_that_is_forked() {
    let script = cast(
        [
            spawns(&["quick", "slow"], "worker"),
            says("Started."),
            Box::new(|request: &Received| {
                let known = asides(request).concat();
                let place = known.find("sub_").unwrap();
                let id = &known[place..place + 14];
                Reply::calls("send_input", json!({"id": id, "text": "more"}))
            }),
            cast::line(Reply::calls("list_agents", json!({}))),
            says("I am the fork."),
            says("Still here."),
        ],
        |task, step| match (task, step) {
            ("slow", 0) => until("begun", "go"),
            (task, _) => Reply::says(&format!("did {task}")).usage(900, 0, 100),
        },
    );
    let mut house = House::scripted(script).await;
    let harness = house.harness();
    let conversation = house.start_with(&harness).await;
    assert_eq!(say(&conversation, GO).await, Status::Done);
    appears(&house, "begun").await;
    let over = async {
        while count(conversation.log_path(), "finished") < 1 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::support::house::DEADLINE, over).await.unwrap();
    let forked = house.pixir(&["fork", conversation.id().as_str(), "--json"]).exits(0).envelope();
    let id = SessionId::parse(forked["output"]["session_id"].as_str().unwrap()).unwrap();
    let start = Start {
        workspace: house.workspace(),
        session: Which::Resume(id.clone()),
        can_ask: false,
        mcp_servers: Vec::new(),
    };
    // In the same process, as an editor has both of them.
    let other = harness.start(start).await.unwrap();
    assert!(harness.children(&other).await.is_empty(), "it began nobody");
    assert_eq!(harness.children(&conversation).await.len(), 2, "its children are still its own");
    assert_eq!(say(&other, "and?").await, Status::Done);
    let asked = house.requests().pop().unwrap();
    let told = asides(&asked);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("did quick"), "what is known stays known: {told:?}");
    let results = asked.outputs().join("\n");
    assert!(results.contains("not_found") && results.contains("No Subagents"), "{results}");
    let path = other.log_path().to_owned();
    assert_eq!(count(&path, "detached"), 0, "nobody died");
    other.close().await;
    house.write("go", "");
    harness.children_settled(&conversation).await;
    assert_eq!(count(conversation.log_path(), "finished"), 2);
    conversation.close().await;
    house.config.budget.max_tokens_total = Some(1000);
    let other = house.resume(&id).await;
    assert_eq!(
        say(&other, "go on").await,
        Status::Done,
        "what children cost their parent has paid"
    );
    other.close().await;
    let seen = house.pixir(&["agents", "status", id.as_str(), "--json"]).exits(0).envelope();
    assert_eq!(seen["output"]["subagents"], json!([]));
    let seen = house.pixir(&["diagnose", id.as_str(), "--json"]).envelope();
    assert!(!seen.to_string().contains("sub_"), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_ends_that_nobody_waited_for_have_a_bound_and_name_the_evidence() {
    let names: Vec<String> = (0..100).map(|n| format!("task {n}.")).collect();
    let tasks: Vec<&str> = names.iter().map(String::as_str).collect();
    let script = cast([spawns(&tasks, "explorer"), says("Started."), says("I see.")], |task, _| {
        Reply::says(&format!("found {task} {}", "word ".repeat(1000)))
    });
    let house = House::scripted(script).await;
    let harness = house.harness();
    let conversation = house.start_with(&harness).await;
    assert_eq!(say(&conversation, GO).await, Status::Done);
    harness.children_settled(&conversation).await;
    assert_eq!(say(&conversation, "and?").await, Status::Done);
    let told = asides(&house.requests().pop().unwrap());
    assert!(told.concat().len() < 48 * 1024, "{} bytes", told.concat().len());
    for life in lives(conversation.log_path()).iter().filter(|life| life["event"] == "finished") {
        let id = life["subagent_id"].as_str().unwrap();
        let own = told.iter().find(|text| text.contains(id)).unwrap_or_else(|| panic!("{id}"));
        let log = life["child_session_id"].as_str().unwrap();
        assert!(own.contains(&format!("Log {log} seq {}", life["child_seq"])), "{own}");
    }
    assert!(told[0].contains("found task"), "{}", told[0]);
    agree(&house.workspace());
}

/// A child's lifecycle as its parent would have recorded it.
fn life(event: &str, id: &str, child: Option<&str>) -> Value {
    json!({"event": event, "subagent_id": id, "agent": "explorer", "status": "running",
        "permission_mode": "read_only", "depth": 1, "child_session_id": child})
}

/// The first Event of a kind.
fn first(path: &Path, kind: &str) -> Value {
    events(path).into_iter().find(|event| event["type"] == kind).unwrap()["data"].clone()
}

#[tokio::test]
async fn all_that_a_child_used_up_is_paid_after_a_death_whatever_log_it_is_in() {
    let tries = std::sync::atomic::AtomicUsize::new(0);
    let script =
        cast([spawns(&["look"], "explorer"), waits(), says("ok")], move |_, step| {
            match (step, tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst)) {
                (0, 0) => Reply::calls("list", json!({})).usage(900, 0, 100),
                (_, 1) => Reply::status(503, "try later"),
                _ => Reply::says("found").usage(900, 0, 100),
            }
        });
    let mut house = House::scripted(script).await;
    house.config.retry.max_attempts = 1;
    let (conversation, status) = house.turn(GO).await;
    assert_eq!(status, Status::Done);
    let (id, path) = (conversation.id().clone(), conversation.log_path().to_owned());
    conversation.close().await;
    let known = lives(&path);
    let of = |event: &str| {
        let found = known.iter().rfind(|life| life["event"] == event).unwrap();
        (found["subagent_id"].as_str().unwrap(), found["child_session_id"].as_str().unwrap())
    };
    let ((sub, failed), (_, good)) = (of("retrying"), of("finished"));
    assert_ne!(failed, good);
    let bill = first(&log_of(&house, good), "provider_usage");
    // It was told more and spent as much again; it had a child of its own by then, which spent too.
    append(&path, "subagent_event", &life("input", sub, Some(good)));
    append(&path, "subagent_event", &life("started", sub, Some(good)));
    append(&log_of(&house, good), "provider_usage", &bill);
    let grandchild = "sub_0000000001";
    append(&log_of(&house, good), "subagent_event", &life("queued", grandchild, None));
    append(&log_of(&house, good), "subagent_event", &life("started", grandchild, Some(failed)));
    // Another one died in its second attempt.
    let second = "sub_0000000002";
    for (event, child) in [
        ("queued", None),
        ("started", Some(failed)),
        ("retrying", Some(failed)),
        ("started", Some(good)),
    ] {
        append(&path, "subagent_event", &life(event, second, child));
    }
    let again = house.resume(&id).await;
    let ends: Vec<(Value, Value)> = lives(&path)
        .iter()
        .filter(|life| life["event"] == "detached")
        .map(|life| (life["subagent_id"].clone(), life["usage"]["total_tokens"].clone()))
        .collect();
    let expected = [(json!(sub), json!(2000)), (json!(second), json!(4000))];
    assert_eq!(ends, expected, "its own, its child's, and both attempts with all that is in them");
    assert!(lives(&path).last().unwrap()["summary"].is_null(), "it came to nothing");
    again.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_that_name_themselves_and_each_other_are_read_once() {
    let script = cast([spawns(&["look"], "explorer"), waits(), says("ok")], |_, _| {
        Reply::says("found").usage(900, 0, 100)
    });
    let house = House::scripted(script).await;
    let (conversation, _) = house.turn(GO).await;
    let (id, path) = (conversation.id().to_string(), conversation.log_path().to_owned());
    conversation.close().await;
    let end = lives(&path).pop().unwrap();
    let (sub, child) = (end["subagent_id"].as_str().unwrap(), end["child_session_id"].as_str());
    append(&path, "subagent_event", &life("started", sub, child));
    // Were each of them followed, this would be more reads than anybody waits for.
    let own = log_of(&house, child.unwrap());
    let plant = |number: usize, child: Option<&str>| {
        let planted = format!("sub_{number:010}");
        append(&own, "subagent_event", &life("queued", &planted, None));
        append(&own, "subagent_event", &life("started", &planted, child));
    };
    for number in 0..12 {
        plant(number, child);
    }
    let seen = house.pixir(&["agents", "status", &id, "--json"]).exits(0).envelope();
    let used = &seen["output"]["subagents"][0]["usage"]["total_tokens"];
    assert_eq!(used, 1000, "what it used is not counted again: {seen}");
    plant(12, Some(&id));
    let looked = house.pixir(&["undo", &id, "--dry-run"]).exits(0);
    assert!(looked.out.contains("takes back 1 Turn"), "{}", looked.out);
}

#[tokio::test]
async fn a_name_that_belongs_to_somebody_else_is_no_child() {
    let house = House::scripted(cast([says("hello"), says("again")], |_, _| Reply::new())).await;
    let (conversation, _) = house.turn(GO).await;
    let (id, path) = (conversation.id().clone(), conversation.log_path().to_owned());
    let (other, _) = house.turn(GO).await;
    let stranger = other.id().to_string();
    conversation.close().await;
    other.close().await;
    // The name was taken, and the process died before the next one was tried.
    append(&path, "subagent_event", &life("queued", "sub_0000000001", None));
    append(&path, "subagent_event", &life("starting", "sub_0000000001", Some(&stranger)));
    let seen = house.pixir(&["agents", "status", id.as_str(), "--json"]).exits(0).envelope();
    assert!(seen["output"]["subagents"][0]["child_session_id"].is_null(), "{seen}");
    let again = house.resume(&id).await;
    let end = lives(&path).pop().unwrap();
    assert_eq!((&end["event"], &end["child_session_id"]), (&json!("detached"), &Value::Null));
    assert!(end["next_actions"].to_string().contains("never started"), "{end}");
    again.close().await;
    assert_eq!(logs(&house.workspace()).len(), 2);
}

#[tokio::test]
async fn an_old_answer_is_not_the_summary_of_a_run_that_was_lost() {
    let script = cast(
        [
            spawns(&["first"], "explorer"),
            waits(),
            says("ok"),
            cast::line(Reply::calls("wait_agent", json!({}))),
            says("I see."),
        ],
        |task, _| Reply::says(&format!("did {task}")),
    );
    let house = House::scripted(script).await;
    let (conversation, _) = house.turn(GO).await;
    let (id, path) = (conversation.id().clone(), conversation.log_path().to_owned());
    conversation.close().await;
    let known = lives(&path).pop().unwrap();
    let (sub, child) = (known["subagent_id"].as_str(), known["child_session_id"].as_str());
    append(&path, "subagent_event", &life("input", sub.unwrap(), child));
    append(&path, "subagent_event", &life("started", sub.unwrap(), child));
    let again = house.resume(&id).await;
    let end = lives(&path).pop().unwrap();
    assert_eq!(end["event"], "detached");
    assert!(end["summary"].is_null() && end["child_seq"].is_null(), "{end}");
    assert_eq!(say(&again, "and?").await, Status::Done);
    let requests = house.requests();
    let told = asides(&requests[requests.len() - 2]);
    assert!(told[0].contains("the process that ran it ended"), "{told:?}");
    assert!(told[0].contains("send_input"), "what can be done is said: {told:?}");
    again.close().await;
    agree(&house.workspace());
}

#[tokio::test]
async fn whoever_had_no_room_in_an_answer_is_told_after_a_restart() {
    let tasks: Vec<String> = (0..12).map(|place| format!("job {place}.")).collect();
    let names: Vec<&str> = tasks.iter().map(String::as_str).collect();
    let mut lines = vec![spawns(&names, "explorer"), waits(), says("ok")];
    lines.extend((0..6).map(|_| waits()));
    lines.extend([says("ok"), waits(), says("ok")]);
    let script = cast(lines, |task, _| Reply::says(&format!("found {task} {}", "x".repeat(3000))));
    let mut house = House::scripted(script).await;
    house.config.output_limit = 2048;
    let (conversation, status) = house.turn(GO).await;
    assert_eq!(status, Status::Done);
    let (id, path) = (conversation.id().clone(), conversation.log_path().to_owned());
    conversation.close().await;
    for _ in 0..2 {
        let again = house.resume(&id).await;
        assert_eq!(say(&again, "go on").await, Status::Done);
        again.close().await;
    }
    let told: Vec<String> = events(&path)
        .iter()
        .filter_map(|event| event["data"]["output"].as_str().map(str::to_owned))
        .collect();
    for task in tasks {
        let found = told.concat().matches(&format!("found {task}")).count();
        assert_eq!(found, 1, "{task}: {told:?}");
    }
    assert!(told.last().unwrap().contains("no Subagent to wait for"), "{told:?}");
    agree(&house.workspace());
}

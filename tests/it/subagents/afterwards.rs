//! Children after a change around them: a stricter parent, a fork, many ends at once, or a killed process.

use std::path::{Path, PathBuf};

use pixir::scripted::{ReceivedRequest, Reply};
use pixir::{
    PermissionMode, SessionId, SessionStatus, SessionTarget, SettingsChange, StartOptions,
};
use serde_json::{Value, json};

use super::ends::wait_for_file;
use super::scripted_family::{
    self, GO, append, check_family_logs, count_subagent_events, read_events, scripted_family,
    spawn_reply, subagent_events, text_reply, wait_reply,
};
use crate::support::TestEnv;
use crate::support::test_env::{log_files, send_and_finish, wait_for_turn_end};

/// A call of a command that makes the file `begun` and runs until the file `go` exists.
fn until(begun: &str, go: &str) -> Reply {
    let command = format!("touch {begun}; while [ ! -e {go} ]; do sleep 0.02; done");
    Reply::calls("bash", json!({"command": command}))
}

/// The texts about children that a model read outside of its calls.
fn asides(request: &ReceivedRequest) -> Vec<String> {
    let texts = request.user_texts().into_iter();
    texts.filter(|text| text.starts_with("[Subagent")).map(str::to_owned).collect()
}

fn log_of(env: &TestEnv, id: &str) -> PathBuf {
    env.workspace().join(format!(".pixir/sessions/{id}.ndjson"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_at_work_heeds_a_parent_that_becomes_stricter() {
    let script = scripted_family(
        [spawn_reply(&["deep"], "worker"), wait_reply(), text_reply("ok")],
        |task, step| match (task, step) {
            ("deep", 0) => Reply::calls("spawn_agent", json!({"task": "write"})),
            ("deep", 1) => Reply::calls("wait_agent", json!({})),
            ("write", 0) => until("begun", "go"),
            ("write", 1) => Reply::calls("write", json!({"path": "late.txt", "content": "x"})),
            ("write", 2) => Reply::calls("bash", json!({"command": "touch later.txt"})),
            _ => Reply::says("done"),
        },
    );
    let env = TestEnv::with_script(script).await;
    let harness = env.harness();
    let conversation = env.start_with(&harness).await;
    conversation.send(pixir::UserInput { text: GO.to_owned() }).await.unwrap();
    wait_for_file(&env, "begun").await;
    let stricter =
        SettingsChange { mode: Some(PermissionMode::ReadOnly), ..SettingsChange::default() };
    harness.change_settings(&conversation, stricter).await.unwrap();
    env.write("go", "");
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Done);
    assert!(!env.workspace().join("late.txt").exists(), "its parent is read-only");
    assert!(!env.workspace().join("later.txt").exists(), "and its commands change nothing");
    conversation.close().await;
    assert_eq!(check_family_logs(&env.workspace()), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn children_stay_with_their_parent_when_that_is_forked() {
    let script = scripted_family(
        [
            spawn_reply(&["quick", "slow"], "worker"),
            text_reply("Started."),
            Box::new(|request: &ReceivedRequest| {
                let known = asides(request).concat();
                let place = known.find("sub_").unwrap();
                let id = &known[place..place + 14];
                Reply::calls("send_input", json!({"id": id, "text": "more"}))
            }),
            scripted_family::always(Reply::calls("list_agents", json!({}))),
            text_reply("I am the fork."),
            text_reply("Still here."),
        ],
        |task, step| match (task, step) {
            ("slow", 0) => until("begun", "go"),
            (task, _) => Reply::says(&format!("did {task}")).usage(900, 0, 100),
        },
    );
    let mut env = TestEnv::with_script(script).await;
    let harness = env.harness();
    let conversation = env.start_with(&harness).await;
    assert_eq!(send_and_finish(&conversation, GO).await, SessionStatus::Done);
    wait_for_file(&env, "begun").await;
    let over = async {
        while count_subagent_events(conversation.log_path(), "finished") < 1 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::support::test_env::DEADLINE, over).await.unwrap();
    let forked = env
        .run_pixir(&["fork", conversation.id().as_str(), "--json"])
        .assert_exit_code(0)
        .envelope();
    let id = SessionId::parse(forked["output"]["session_id"].as_str().unwrap()).unwrap();
    let start = StartOptions {
        workspace: env.workspace(),
        session: SessionTarget::Resume(id.clone()),
        can_ask: false,
        mcp_servers: Vec::new(),
    };
    // Both Sessions are in one process, as in an editor.
    let other = harness.start(start).await.unwrap();
    assert!(harness.children(&other).await.is_empty(), "it started no child");
    assert_eq!(harness.children(&conversation).await.len(), 2, "its children are still its own");
    assert_eq!(send_and_finish(&other, "and?").await, SessionStatus::Done);
    let asked = env.requests().pop().unwrap();
    let texts = asides(&asked);
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(texts[0].contains("did quick"), "what is known stays known: {texts:?}");
    let results = asked.outputs().join("\n");
    assert!(results.contains("not_found") && results.contains("No Subagents"), "{results}");
    let path = other.log_path().to_owned();
    assert_eq!(count_subagent_events(&path, "detached"), 0, "no process was killed");
    other.close().await;
    env.write("go", "");
    harness.wait_for_children(&conversation).await;
    assert_eq!(count_subagent_events(conversation.log_path(), "finished"), 2);
    conversation.close().await;
    env.config.budget.max_tokens_total = Some(1000);
    let other = env.resume(&id).await;
    assert_eq!(
        send_and_finish(&other, "go on").await,
        SessionStatus::Done,
        "the parent's usage includes its children"
    );
    other.close().await;
    let seen =
        env.run_pixir(&["agents", "status", id.as_str(), "--json"]).assert_exit_code(0).envelope();
    assert_eq!(seen["output"]["subagents"], json!([]));
    let seen = env.run_pixir(&["diagnose", id.as_str(), "--json"]).envelope();
    assert!(!seen.to_string().contains("sub_"), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_ends_without_a_wait_have_a_bound_and_name_the_evidence() {
    let names: Vec<String> = (0..100).map(|n| format!("task {n}.")).collect();
    let tasks: Vec<&str> = names.iter().map(String::as_str).collect();
    let script = scripted_family(
        [spawn_reply(&tasks, "explorer"), text_reply("Started."), text_reply("I see.")],
        |task, _| Reply::says(&format!("found {task} {}", "word ".repeat(1000))),
    );
    let env = TestEnv::with_script(script).await;
    let harness = env.harness();
    let conversation = env.start_with(&harness).await;
    assert_eq!(send_and_finish(&conversation, GO).await, SessionStatus::Done);
    harness.wait_for_children(&conversation).await;
    assert_eq!(send_and_finish(&conversation, "and?").await, SessionStatus::Done);
    let texts = asides(&env.requests().pop().unwrap());
    assert!(texts.concat().len() < 48 * 1024, "{} bytes", texts.concat().len());
    let lives = subagent_events(conversation.log_path());
    let finished: Vec<&Value> = lives.iter().filter(|life| life["event"] == "finished").collect();
    assert!(finished.len() > 10, "{} children finished", finished.len());
    for life in finished {
        let id = life["subagent_id"].as_str().unwrap();
        let own = texts.iter().find(|text| text.contains(id)).unwrap_or_else(|| panic!("{id}"));
        let log = life["child_session_id"].as_str().unwrap();
        assert!(own.contains(&format!("Log {log} seq {}", life["child_seq"])), "{own}");
    }
    assert!(texts[0].contains("found task"), "{}", texts[0]);
    check_family_logs(&env.workspace());
}

/// A lifecycle Event of a child, as its parent would have recorded it.
fn life(event: &str, id: &str, child: Option<&str>) -> Value {
    json!({"event": event, "subagent_id": id, "agent": "explorer", "status": "running",
        "permission_mode": "read_only", "depth": 1, "child_session_id": child})
}

/// The first Event of a kind.
fn first(path: &Path, kind: &str) -> Value {
    read_events(path).into_iter().find(|event| event["type"] == kind).unwrap()["data"].clone()
}

#[tokio::test]
async fn all_that_a_child_used_up_is_paid_after_a_death_whatever_log_it_is_in() {
    let tries = std::sync::atomic::AtomicUsize::new(0);
    let script = scripted_family(
        [spawn_reply(&["look"], "explorer"), wait_reply(), text_reply("ok")],
        move |_, step| match (step, tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst)) {
            (0, 0) => Reply::calls("list", json!({})).usage(900, 0, 100),
            (_, 1) => Reply::status(503, "try later"),
            _ => Reply::says("found").usage(900, 0, 100),
        },
    );
    let mut env = TestEnv::with_script(script).await;
    env.config.retry.max_attempts = 1;
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let id = conversation.id().clone();
    let path = conversation.log_path().to_owned();
    conversation.close().await;
    let known = subagent_events(&path);
    let of = |event: &str| {
        let found = known.iter().rfind(|life| life["event"] == event).unwrap();
        (found["subagent_id"].as_str().unwrap(), found["child_session_id"].as_str().unwrap())
    };
    let ((sub, failed), (_, good)) = (of("retrying"), of("finished"));
    assert_ne!(failed, good);
    let usage_record = first(&log_of(&env, good), "provider_usage");
    // The child got more input and used as many tokens again; so did its own child.
    append(&path, "subagent_event", &life("input", sub, Some(good)));
    append(&path, "subagent_event", &life("started", sub, Some(good)));
    append(&log_of(&env, good), "provider_usage", &usage_record);
    let grandchild = "sub_0000000001";
    append(&log_of(&env, good), "subagent_event", &life("queued", grandchild, None));
    append(&log_of(&env, good), "subagent_event", &life("started", grandchild, Some(failed)));
    // Another child was killed in its second attempt.
    let second = "sub_0000000002";
    for (event, child) in [
        ("queued", None),
        ("started", Some(failed)),
        ("retrying", Some(failed)),
        ("started", Some(good)),
    ] {
        append(&path, "subagent_event", &life(event, second, child));
    }
    let again = env.resume(&id).await;
    let ends: Vec<(Value, Value)> = subagent_events(&path)
        .iter()
        .filter(|life| life["event"] == "detached")
        .map(|life| (life["subagent_id"].clone(), life["usage"]["total_tokens"].clone()))
        .collect();
    let expected = [(json!(sub), json!(2000)), (json!(second), json!(4000))];
    assert_eq!(ends, expected, "its own, its child's, and both attempts with all that is in them");
    assert!(subagent_events(&path).last().unwrap()["summary"].is_null(), "it has no result");
    again.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_that_name_themselves_and_each_other_are_read_once() {
    let script = scripted_family(
        [spawn_reply(&["look"], "explorer"), wait_reply(), text_reply("ok")],
        |_, _| Reply::says("found").usage(900, 0, 100),
    );
    let env = TestEnv::with_script(script).await;
    let (conversation, _) = env.run_turn(GO).await;
    let id = conversation.id().to_string();
    let path = conversation.log_path().to_owned();
    conversation.close().await;
    let end = subagent_events(&path).pop().unwrap();
    let sub = end["subagent_id"].as_str().unwrap();
    let child = end["child_session_id"].as_str();
    append(&path, "subagent_event", &life("started", sub, child));
    // Following each reference would take too many reads.
    let own = log_of(&env, child.unwrap());
    let plant = |number: usize, child: Option<&str>| {
        let planted = format!("sub_{number:010}");
        append(&own, "subagent_event", &life("queued", &planted, None));
        append(&own, "subagent_event", &life("started", &planted, child));
    };
    for number in 0..12 {
        plant(number, child);
    }
    let seen = env.run_pixir(&["agents", "status", &id, "--json"]).assert_exit_code(0).envelope();
    let used = &seen["output"]["subagents"][0]["usage"]["total_tokens"];
    assert_eq!(used, 1000, "its usage is not counted again: {seen}");
    plant(12, Some(&id));
    let looked = env.run_pixir(&["undo", &id, "--dry-run"]).assert_exit_code(0);
    assert!(looked.out.contains("takes back 1 Turn"), "{}", looked.out);
}

#[tokio::test]
async fn a_name_of_another_sessions_child_is_unknown() {
    let env = TestEnv::with_script(scripted_family(
        [text_reply("hello"), text_reply("again")],
        |_, _| Reply::new(),
    ))
    .await;
    let (conversation, _) = env.run_turn(GO).await;
    let id = conversation.id().clone();
    let path = conversation.log_path().to_owned();
    let (other, _) = env.run_turn(GO).await;
    let stranger = other.id().to_string();
    conversation.close().await;
    other.close().await;
    // The id was taken, and the process was killed before it tried the next one.
    append(&path, "subagent_event", &life("queued", "sub_0000000001", None));
    append(&path, "subagent_event", &life("starting", "sub_0000000001", Some(&stranger)));
    let seen =
        env.run_pixir(&["agents", "status", id.as_str(), "--json"]).assert_exit_code(0).envelope();
    assert!(seen["output"]["subagents"][0]["child_session_id"].is_null(), "{seen}");
    let again = env.resume(&id).await;
    let end = subagent_events(&path).pop().unwrap();
    assert_eq!((&end["event"], &end["child_session_id"]), (&json!("detached"), &Value::Null));
    assert!(end["next_actions"].to_string().contains("never started"), "{end}");
    again.close().await;
    assert_eq!(log_files(&env.workspace()).len(), 2);
}

#[tokio::test]
async fn an_old_answer_is_not_the_summary_of_a_run_that_was_lost() {
    let script = scripted_family(
        [
            spawn_reply(&["first"], "explorer"),
            wait_reply(),
            text_reply("ok"),
            scripted_family::always(Reply::calls("wait_agent", json!({}))),
            text_reply("I see."),
        ],
        |task, _| Reply::says(&format!("did {task}")),
    );
    let env = TestEnv::with_script(script).await;
    let (conversation, _) = env.run_turn(GO).await;
    let id = conversation.id().clone();
    let path = conversation.log_path().to_owned();
    conversation.close().await;
    let known = subagent_events(&path).pop().unwrap();
    let sub = known["subagent_id"].as_str();
    let child = known["child_session_id"].as_str();
    append(&path, "subagent_event", &life("input", sub.unwrap(), child));
    append(&path, "subagent_event", &life("started", sub.unwrap(), child));
    let again = env.resume(&id).await;
    let end = subagent_events(&path).pop().unwrap();
    assert_eq!(end["event"], "detached");
    assert!(end["summary"].is_null() && end["child_seq"].is_null(), "{end}");
    assert_eq!(send_and_finish(&again, "and?").await, SessionStatus::Done);
    let requests = env.requests();
    let texts = asides(&requests[requests.len() - 2]);
    assert!(texts[0].contains("the process that ran it ended"), "{texts:?}");
    assert!(texts[0].contains("send_input"), "a next action is named: {texts:?}");
    again.close().await;
    check_family_logs(&env.workspace());
}

#[tokio::test]
async fn ends_that_did_not_fit_into_an_answer_are_reported_after_a_restart() {
    let tasks: Vec<String> = (0..12).map(|place| format!("job {place}.")).collect();
    let names: Vec<&str> = tasks.iter().map(String::as_str).collect();
    let mut lines = vec![spawn_reply(&names, "explorer"), wait_reply(), text_reply("ok")];
    lines.extend((0..6).map(|_| wait_reply()));
    lines.extend([text_reply("ok"), wait_reply(), text_reply("ok")]);
    let script = scripted_family(lines, |task, _| {
        Reply::says(&format!("found {task} {}", "x".repeat(3000)))
    });
    let mut env = TestEnv::with_script(script).await;
    env.config.output_limit = 2048;
    let (conversation, status) = env.run_turn(GO).await;
    assert_eq!(status, SessionStatus::Done);
    let id = conversation.id().clone();
    let path = conversation.log_path().to_owned();
    conversation.close().await;
    for _ in 0..2 {
        let again = env.resume(&id).await;
        assert_eq!(send_and_finish(&again, "go on").await, SessionStatus::Done);
        again.close().await;
    }
    let texts: Vec<String> = read_events(&path)
        .iter()
        .filter_map(|event| event["data"]["output"].as_str().map(str::to_owned))
        .collect();
    for task in tasks {
        let found = texts.concat().matches(&format!("found {task}")).count();
        assert_eq!(found, 1, "{task}: {texts:?}");
    }
    assert!(texts.last().unwrap().contains("no Subagent to wait for"), "{texts:?}");
    check_family_logs(&env.workspace());
}

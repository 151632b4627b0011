//! Slots: a limit on concurrent commands; the others wait in order, say why, and none is lost.

use std::time::Duration;

use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use pixir::{
    Conversation, Ephemeral, Event, EventKind, Harness, PermissionMode, ProcessLimits,
    SessionStatus, SessionTarget, StartOptions, UserInput,
};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::test_env::{DEADLINE, listen_until, subscribe_from_now, wait_for_turn_end};

/// A test environment whose model runs the user's text as a command.
async fn env_running_user_text() -> TestEnv {
    let answer = |request: &ReceivedRequest| match request.outputs().len() {
        0 => Reply::calls("bash", json!({"command": request.user_texts().last().unwrap()})),
        _ => Reply::says("Done."),
    };
    TestEnv::with_script(ModelScript::answering(answer)).await
}

async fn begin(env: &TestEnv, harness: &Harness) -> Conversation {
    let start = StartOptions {
        workspace: env.workspace(),
        session: SessionTarget::New,
        can_ask: false,
        mcp_servers: Vec::new(),
    };
    harness.start(start).await.unwrap()
}

async fn send(conversation: &Conversation, command: &str) {
    conversation.send(UserInput { text: command.to_owned() }).await.unwrap();
}

fn waiting(event: &Event) -> Option<&str> {
    match event.kind() {
        EventKind::Ephemeral(Ephemeral::Status(SessionStatus::Working { waiting, .. })) => {
            waiting.as_deref()
        }
        _ => None,
    }
}

async fn wait_until(what: impl Fn() -> bool) {
    let look = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, look).await.expect("in time");
}

fn results(conversation: &Conversation) -> Vec<Value> {
    let log = std::fs::read_to_string(conversation.log_path()).unwrap();
    let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events
        .filter(|event| event["type"] == "tool_result")
        .map(|event| event["data"].clone())
        .collect()
}

#[tokio::test]
async fn commands_of_all_sessions_share_the_slots_in_order_and_say_that_they_wait() {
    let mut env = env_running_user_text().await;
    env.config.bash.max_commands = 2;
    // Time in the queue does not count towards the time limit, which each command nearly reaches.
    env.config.bash.timeout = Duration::from_secs(30);
    let harness = env.harness();
    let mut first = Vec::new();
    for name in ["a", "b"] {
        let conversation = begin(&env, &harness).await;
        send(&conversation, &format!("touch {name}; until [ -e go-{name} ]; do sleep 0.02; done"))
            .await;
        first.push(conversation);
    }
    let exists = |name: &str| env.workspace().join(name).exists();
    wait_until(|| exists("a") && exists("b")).await;
    let mut queued = Vec::new();
    for name in ["c", "d", "e"] {
        let conversation = begin(&env, &harness).await;
        let mut listener = subscribe_from_now(&conversation);
        send(&conversation, &format!("echo {name} >> order")).await;
        let events = listen_until(&mut listener, |event| waiting(event).is_some()).await;
        let reason = events.iter().find_map(|event| waiting(event)).unwrap();
        assert_eq!(reason, "for a free slot: 2 commands run");
        queued.push(conversation);
    }
    assert!(!exists("order"), "the commands wait");
    // One waiting call is dropped without an effect on the others.
    let leaver = queued.remove(1);
    leaver.interrupt().await.unwrap();
    assert_eq!(wait_for_turn_end(&leaver).await, SessionStatus::Interrupted);
    assert_eq!(results(&leaver)[0]["error"]["kind"], "interrupted");
    env.write("go-a", "");
    for conversation in queued.iter().chain(&first[..1]) {
        assert_eq!(wait_for_turn_end(conversation).await, SessionStatus::Done);
        assert_eq!(results(conversation)[0]["ok"], true);
    }
    assert_eq!(env.read("order"), "c\ne\n");
    env.write("go-b", "");
    assert_eq!(wait_for_turn_end(&first[1]).await, SessionStatus::Done);
}

#[tokio::test]
async fn two_harnesses_of_a_process_share_its_slots() {
    let mut env = env_running_user_text().await;
    env.config.bash.max_commands = 1;
    let limits = ProcessLimits::default();
    let one = env.harness_sharing(limits.clone());
    let other = env.harness_sharing(limits);
    let first = begin(&env, &one).await;
    send(&first, "touch a; until [ -e go ]; do sleep 0.02; done").await;
    wait_until(|| env.workspace().join("a").exists()).await;
    let second = begin(&env, &other).await;
    let mut listener = subscribe_from_now(&second);
    send(&second, "touch b").await;
    let is_over_or_waiting = |event: &Event| {
        let is_over = matches!(event.kind(), EventKind::Ephemeral(Ephemeral::Status(status)) if status.is_terminal());
        is_over || waiting(event).is_some()
    };
    let events = listen_until(&mut listener, is_over_or_waiting).await;
    assert_eq!(waiting(events.last().unwrap()), Some("for a free slot: 1 command runs"));
    env.write("go", "");
    assert_eq!(wait_for_turn_end(&second).await, SessionStatus::Done);
    assert_eq!(wait_for_turn_end(&first).await, SessionStatus::Done);
    assert!(env.workspace().join("b").exists());
}

#[tokio::test]
async fn a_command_in_the_queue_has_all_its_time_and_one_in_the_background_no_slot() {
    let answer = |request: &ReceivedRequest| match request.outputs().len() {
        0 => Reply::calls("bash", json!({"command": "sleep 300", "background": true})),
        1 => Reply::calls(
            "bash",
            json!({"command": request.user_texts().last().unwrap(), "timeout_ms": 6000}),
        ),
        _ => Reply::says("Done."),
    };
    let mut env = TestEnv::with_script(ModelScript::answering(answer)).await;
    env.config.bash.max_commands = 1;
    let harness = env.harness();
    let first = begin(&env, &harness).await;
    send(&first, "touch a; until [ -e go ]; do sleep 0.02; done; sleep 5").await;
    wait_until(|| env.workspace().join("a").exists()).await;
    let second = begin(&env, &harness).await;
    let mut listener = subscribe_from_now(&second);
    send(&second, "sleep 2; echo in time").await;
    listen_until(&mut listener, |event| waiting(event).is_some()).await;
    env.write("go", "");
    assert_eq!(wait_for_turn_end(&second).await, SessionStatus::Done);
    let results = results(&second);
    assert_eq!(results[1]["output"], "in time\n[exit code 0]");
}

#[tokio::test]
async fn what_cannot_change_anything_runs_side_by_side_and_answers_the_right_call() {
    // Each command waits for the other; one after the other they would never end.
    let meet = |own: &str, other: &str| {
        json!({"command": format!(
            "touch $TMPDIR/{own}; until [ -e $TMPDIR/{other} ]; do sleep 0.02; done; echo {own}"
        )})
    };
    let mut env = TestEnv::with_replies([
        Reply::new()
            .call_as(Some("call-1"), "bash", &meet("one", "two").to_string())
            .call_as(Some("call-2"), "bash", &meet("two", "one").to_string())
            .call_as(Some("call-3"), "read", &json!({"path": "a"}).to_string()),
        Reply::says("Met."),
    ])
    .await;
    env.config.permission_mode = PermissionMode::ReadOnly;
    env.write("a", "text\n");
    let (conversation, status) = env.run_turn("meet").await;
    assert_eq!(status, SessionStatus::Done);
    let answers: Vec<(String, String)> = results(&conversation)
        .iter()
        .map(|result| {
            let text = |key: &str| result[key].as_str().unwrap().to_owned();
            (text("call_id"), text("output"))
        })
        .collect();
    let expected = [
        ("call-1", "one\n[exit code 0]"),
        ("call-2", "two\n[exit code 0]"),
        ("call-3", "     1\ttext\n"),
    ];
    assert_eq!(answers, expected.map(|(id, text)| (id.to_owned(), text.to_owned())));
}

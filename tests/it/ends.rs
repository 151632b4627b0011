//! Ends of Turns: every Turn ends exactly once, with every call answered.

use std::time::Duration;

use pixir::scripted::{ModelScript, Reply};
use pixir::{
    Conversation, Ephemeral, EventKind, LogDurability, PermissionAnswer, SessionStatus, UserInput,
};
use serde_json::json;

use crate::support::TestEnv;
use crate::support::test_env::{
    listen_until, log_files, send_and_finish, subscribe_from_now, wait_for_turn_end,
};

/// Checks that the Turn has one end and that the Log verifies.
#[track_caller]
fn is_sound(env: &TestEnv, conversation: &Conversation) {
    let transcript = env.transcript(conversation);
    let ends = transcript.matches(" turn_failed ").count()
        + transcript.matches("assistant_message final").count();
    assert_eq!(ends, transcript.matches(" user_message ").count(), "{transcript}");
    let verification = pixir::verify_log(&env.workspace(), conversation.id()).unwrap();
    assert!(verification.ok, "{transcript}{:?}", verification.breaks);
}

async fn run_until_question(env: &TestEnv) -> (Conversation, pixir::CallId) {
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "go".into() }).await.unwrap();
    let events =
        listen_until(&mut listener, |event| event.type_name() == "permission_request").await;
    let Some(EventKind::Ephemeral(Ephemeral::PermissionRequest(request))) =
        events.last().map(|event| event.kind())
    else {
        panic!("nothing was asked")
    };
    (conversation, request.call_id.clone())
}

#[tokio::test]
async fn reasoning_behind_the_answer_does_not_undo_it() {
    let env = TestEnv::with_replies([
        Reply::new().text("Hello.").reasoning("Afterthought."),
        Reply::says("Two."),
    ])
    .await;
    let (conversation, status) = env.run_turn("hi").await;
    assert_eq!(status, SessionStatus::Done);
    assert!(env.transcript(&conversation).ends_with("assistant_message final \"Hello.\"\n"));
    assert_eq!(send_and_finish(&conversation, "more").await, SessionStatus::Done);
    is_sound(&env, &conversation);
}

#[tokio::test]
async fn two_interrupts_during_a_question_are_one_end() {
    let env = TestEnv::with_replies([
        Reply::calls("bash", json!({"command": "rm x"})),
        Reply::says("ok"),
    ])
    .await
    .in_ask_mode();
    let (conversation, call_id) = run_until_question(&env).await;
    let mut listener = subscribe_from_now(&conversation);
    let (one, two) = tokio::join!(conversation.interrupt(), conversation.interrupt());
    assert!(one.is_ok() && two.is_ok());
    listen_until(&mut listener, |event| event.type_name() == "permission_resolved").await;
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Interrupted);
    assert!(conversation.answer(&call_id, PermissionAnswer::Once).await.is_err());
    is_sound(&env, &conversation);
}

#[tokio::test]
async fn a_yes_that_races_an_interrupt_starts_nothing() {
    for _ in 0..20 {
        let env = TestEnv::with_replies([
            Reply::calls("bash", json!({"command": "touch x"})),
            Reply::says("ok"),
        ])
        .await
        .in_ask_mode();
        let (conversation, call_id) = run_until_question(&env).await;
        let answer = conversation.answer(&call_id, PermissionAnswer::Once);
        drop(tokio::join!(conversation.interrupt(), answer));
        wait_for_turn_end(&conversation).await;
        assert!(!env.workspace().join("x").exists(), "the command ran after the interrupt");
        is_sound(&env, &conversation);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_anywhere_ends_once_and_the_session_goes_on() {
    for moment in 0..30 {
        let mut env = TestEnv::with_replies([
            Reply::new()
                .reasoning("Hm.")
                .text("Look.")
                .call("read", json!({"path": "a"}))
                .call("read", json!({"path": "b"}))
                .call("write", json!({"path": "c", "content": "1"})),
            Reply::new()
                .call("bash", json!({"command": "sleep 0.01; echo x"}))
                .call("write", json!({"path": "d", "content": "1"})),
            Reply::says("ok"),
            Reply::says("again"),
            Reply::says("again"),
        ])
        .await;
        env.config.durability = LogDurability::Turn;
        env.write("a", "1\n");
        env.write("b", "2\n");
        let conversation = env.start().await;
        conversation.send(UserInput { text: "go".into() }).await.unwrap();
        tokio::time::sleep(Duration::from_micros(moment * 2500)).await;
        drop(tokio::join!(conversation.interrupt(), conversation.interrupt()));
        wait_for_turn_end(&conversation).await;
        is_sound(&env, &conversation);
        assert_eq!(send_and_finish(&conversation, "again").await, SessionStatus::Done);
        is_sound(&env, &conversation);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_that_races_the_turns_own_end_does_not_write_a_second_one() {
    for round in 0..20 {
        let mut env = TestEnv::with_replies([Reply::new().text("Half").stalls()]).await;
        env.config.durability = LogDurability::Turn;
        env.config.grace.turn = Duration::from_micros(200 + round * 300);
        let conversation = env.start().await;
        let mut listener = subscribe_from_now(&conversation);
        conversation.send(UserInput { text: "go".into() }).await.unwrap();
        listen_until(&mut listener, |event| event.type_name() == "text_delta").await;
        conversation.interrupt().await.unwrap();
        assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Interrupted);
        is_sound(&env, &conversation);
        let transcript = env.transcript(&conversation);
        assert!(transcript.contains("assistant_message partial \"Half\""), "{transcript}");
    }
}

#[tokio::test]
async fn one_call_id_for_two_calls_is_answered_twice() {
    let env = TestEnv::with_replies([
        Reply::new().call_as(Some("c"), "read", r#"{"path":"a"}"#).call_as(
            Some("c"),
            "read",
            r#"{"path":"b"}"#,
        ),
        Reply::says("ok"),
    ])
    .await;
    env.write("a", "1\n");
    env.write("b", "2\n");
    let (conversation, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
    is_sound(&env, &conversation);
}

#[tokio::test]
async fn reasoning_is_shown_once_over_all_attempts() {
    let env = TestEnv::with_replies([
        Reply::status(500, "{}"),
        Reply::new().reasoning("Think hard.").ends_silently(),
        Reply::new().reasoning("Think hard.").text("Done."),
    ])
    .await;
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "go".into() }).await.unwrap();
    let events =
        listen_until(&mut listener, |event| event.type_name() == "assistant_message").await;
    let shown: String = events
        .iter()
        .filter_map(|event| match event.kind() {
            EventKind::Ephemeral(Ephemeral::ReasoningDelta(chunk)) => Some(chunk.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(shown, "Think hard.");
}

#[tokio::test]
async fn consecutive_reasoning_items_are_all_replayed() {
    let env = TestEnv::with_replies([
        Reply::new()
            .reasoning("First.")
            .reasoning("Second.")
            .call("bash", json!({"command": "true"})),
        Reply::says("ok"),
    ])
    .await;
    let (_, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
    let last = env.requests().pop().unwrap();
    assert_eq!(last.input().iter().filter(|item| item["type"] == "reasoning").count(), 2);
}

#[tokio::test]
async fn the_guard_counts_identical_calls_of_one_response_too() {
    let reply = (0..8).fold(Reply::new(), |reply, _| reply.call("read", json!({"path": "a"})));
    let env = TestEnv::with_replies([reply, Reply::says("ok")]).await;
    env.write("a", "1\n");
    let (conversation, status) = env.run_turn("go").await;
    let transcript = env.transcript(&conversation);
    assert_eq!(transcript.matches("error doom_loop").count(), 5, "{transcript}");
    assert_eq!(status, SessionStatus::Done, "the model can do something else in its next response");
    is_sound(&env, &conversation);
}

#[tokio::test]
async fn another_call_between_identical_ones_starts_the_count_again() {
    let same = || json!({"path": "a"});
    let mut replies: Vec<Reply> = (0..5).map(|_| Reply::calls("read", same())).collect();
    replies.push(Reply::new().call("read", json!({"path": "b"})).call("read", same()));
    replies.push(Reply::says("ok"));
    let env = TestEnv::with_replies(replies).await;
    env.write("a", "1\n");
    env.write("b", "2\n");
    let (conversation, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
    is_sound(&env, &conversation);
}

#[tokio::test]
async fn a_model_that_only_announces_to_go_on_is_stopped() {
    let empty = json!({"type": "response.completed", "response": {"id": "r", "end_turn": false}});
    let silent = |_| Reply::new().event("response.completed", &empty).left_open();
    let env = TestEnv::with_replies((0..9).map(silent)).await;
    let (conversation, status) = env.run_turn("go").await;
    assert!(matches!(status, SessionStatus::Error { .. }), "{status:?}");
    assert_eq!(env.requests().len(), 1);
    is_sound(&env, &conversation);
}

/// Runs a Turn whose model deletes the Log while it answers, so that later Events cannot be written.
async fn without_log(durability: LogDurability, reply: fn() -> Reply) -> (TestEnv, SessionStatus) {
    let place = std::sync::Arc::new(std::sync::OnceLock::<std::path::PathBuf>::new());
    let workspace = std::sync::Arc::clone(&place);
    let script = ModelScript::answering(move |_| {
        for log in log_files(workspace.get().unwrap()) {
            std::fs::remove_file(log).unwrap();
        }
        reply()
    });
    let mut env = TestEnv::with_script(script).await;
    env.config.durability = durability;
    place.set(env.workspace()).unwrap();
    let (_, status) = env.run_turn("go").await;
    (env, status)
}

#[tokio::test]
async fn no_mutating_tool_starts_before_its_intent_is_durable() {
    let touch = || Reply::calls("bash", json!({"command": "touch x"}));
    let (env, status) = without_log(LogDurability::Turn, touch).await;
    let SessionStatus::Error { error, .. } = status else { panic!("{status:?}") };
    assert_eq!(error.kind, "log_write_failed");
    assert!(!env.workspace().join("x").exists());
    assert_eq!(env.requests().len(), 1, "no further request is sent");
}

#[tokio::test]
async fn the_end_of_a_turn_is_made_durable() {
    for durability in [LogDurability::Turn, LogDurability::None] {
        let (_, status) = without_log(durability, || Reply::says("Done.")).await;
        let SessionStatus::Error { error, .. } = status else { panic!("{status:?}") };
        assert_eq!(error.kind, "log_write_failed");
    }
}

#[tokio::test]
async fn every_event_is_made_durable_when_the_user_says_so() {
    let look = || Reply::calls("read", json!({"path": "nothing"}));
    let (env, status) = without_log(LogDurability::Event, look).await;
    assert!(matches!(status, SessionStatus::Error { .. }));
    assert_eq!(env.requests().len(), 1);
}

#[tokio::test]
async fn a_session_without_handles_still_ends_its_turn() {
    let env = TestEnv::with_replies([
        Reply::calls("bash", json!({"command": "true"})),
        Reply::says("done"),
    ])
    .await;
    let conversation = env.start().await;
    let id = conversation.id().clone();
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "go".into() }).await.unwrap();
    drop(conversation);
    listen_until(&mut listener, |event| event.type_name() == "assistant_message").await;
    let resumed = env.resume(&id).await;
    is_sound(&env, &resumed);
}

#[tokio::test]
async fn a_huge_prompt_and_a_huge_answer_survive_a_resume() {
    let env = TestEnv::with_replies([Reply::says(&"y".repeat(2 << 20)), Reply::says("2")]).await;
    let (conversation, status) = env.run_turn(&"x".repeat(300 << 10)).await;
    assert_eq!(status, SessionStatus::Done);
    let id = conversation.id().clone();
    drop(conversation);
    let resumed = env.resume(&id).await;
    assert_eq!(send_and_finish(&resumed, "more").await, SessionStatus::Done);
    is_sound(&env, &resumed);
}

//! Turns: the real Harness against the scripted model, checked by the Log.

use std::time::Duration;

use pixir::scripted::Reply;
use pixir::{CallId, Ephemeral, EventKind, PermissionAnswer, SessionStatus, UserInput};
use serde_json::json;

use crate::support::TestEnv;
use crate::support::test_env::{
    listen_until, log_files, send_and_finish, subscribe_from_now, wait_for_turn_end,
};

fn is_status(event: &pixir::Event, wanted: fn(&SessionStatus) -> bool) -> bool {
    matches!(event.kind(), EventKind::Ephemeral(Ephemeral::Status(status)) if wanted(status))
}

#[tokio::test]
async fn a_question_is_answered() {
    let env = TestEnv::with_replies([Reply::says("Hello.")]).await;
    let (conversation, status) = env.run_turn("hi").await;
    assert_eq!(status, SessionStatus::Done);
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build auto
    1 user_message "hi"
    2 provider_usage completed retries=0
    3 assistant_message final "Hello."
    "#);
}

#[tokio::test]
async fn a_file_is_read_edited_and_tested() {
    let env = TestEnv::with_replies([
        Reply::new()
            .reasoning("Look first.")
            .text("I will look.")
            .call("read", json!({"path": "a.sh"})),
        Reply::calls(
            "edit",
            json!({"path": "a.sh", "edits": [{"old_string": "1", "new_string": "2"}]}),
        ),
        Reply::calls("bash", json!({"command": "sh a.sh"})),
        Reply::says("Fixed."),
    ])
    .await;
    env.write("a.sh", "echo 1\n");
    let (conversation, status) = env.run_turn("make it say 2").await;
    assert_eq!(status, SessionStatus::Done);
    assert_eq!(env.read("a.sh"), "echo 2\n");
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build auto
    1 user_message "make it say 2"
    2 provider_usage completed retries=0
    3 reasoning gpt-5.5
    4 assistant_message commentary "I will look."
    5 tool_call read {"path":"a.sh"}
    6 tool_result ok=true "     1\techo 1\n"
    7 provider_usage completed retries=0
    8 tool_call edit {"path":"a.sh","edits":[{"old_string":"1","new_string":"2"}]}
    9 tool_result ok=true "edited a.sh: 1 replaced (+1 -1)"
    10 provider_usage completed retries=0
    11 tool_call bash {"command":"sh a.sh"}
    12 tool_result ok=true "2\n[exit code 0]"
    13 provider_usage completed retries=0
    14 assistant_message final "Fixed."
    "#);
}

#[tokio::test]
async fn the_model_gets_the_error_and_goes_on() {
    let env = TestEnv::with_replies([
        Reply::calls("no_such_tool", json!({})),
        Reply::calls("read", json!({"path": 7})),
        Reply::new().call_as(Some("call_x"), "read", "{not json"),
        Reply::calls("read", json!({"path": "../outside"})),
        Reply::calls("write", json!({"path": ".pixir/config.json", "content": "{}"})),
        Reply::calls("bash", json!({"command": "exit 3"})),
        Reply::says("I give up."),
    ])
    .await;
    let (conversation, status) = env.run_turn("try things").await;
    assert_eq!(status, SessionStatus::Done);
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build auto
    1 user_message "try things"
    2 provider_usage completed retries=0
    3 tool_call no_such_tool {}
    4 tool_result error unknown_tool
    5 provider_usage completed retries=0
    6 tool_call read {"path":7}
    7 tool_result error invalid_args
    8 provider_usage completed retries=0
    9 tool_call read "{not json"
    10 tool_result error invalid_args
    11 provider_usage completed retries=0
    12 tool_call read {"path":"../outside"}
    13 tool_result error outside_workspace
    14 provider_usage completed retries=0
    15 tool_call write {"path":".pixir/config.json","content":"{}"}
    16 tool_result error protected_path
    17 provider_usage completed retries=0
    18 tool_call bash {"command":"exit 3"}
    19 tool_result ok=false "(no output)\n[exit code 3]"
    20 provider_usage completed retries=0
    21 assistant_message final "I give up."
    "#);
    let last = env.requests().pop().unwrap();
    assert!(
        last.outputs().iter().any(|output| output.contains("exit code 3")),
        "{:?}",
        last.outputs()
    );
}

#[tokio::test]
async fn calls_that_only_look_are_answered_in_order() {
    let env = TestEnv::with_replies([
        Reply::new()
            .call("read", json!({"path": "a"}))
            .call("read", json!({"path": "b"}))
            .call("write", json!({"path": "a", "content": "new"}))
            .call("read", json!({"path": "a"})),
        Reply::says("ok"),
    ])
    .await;
    env.write("a", "old a\n");
    env.write("b", "old b\n");
    let (conversation, _) = env.run_turn("look").await;
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build auto
    1 user_message "look"
    2 provider_usage completed retries=0
    3 tool_call read {"path":"a"}
    4 tool_call read {"path":"b"}
    5 tool_result ok=true "     1\told a\n"
    6 tool_result ok=true "     1\told b\n"
    7 tool_call write {"path":"a","content":"new"}
    8 tool_result ok=true "wrote a, 3 bytes (+1 -1); the file no longer ends with a newline"
    9 tool_call read {"path":"a"}
    10 tool_result ok=true "     1\tnew\n[no newline at the end]\n"
    11 provider_usage completed retries=0
    12 assistant_message final "ok"
    "#);
}

#[tokio::test]
async fn null_means_not_given() {
    let env = TestEnv::with_replies([
        Reply::calls("bash", json!({"command": "echo fine", "timeout_ms": null})),
        Reply::says("ok"),
    ])
    .await;
    let (conversation, _) = env.run_turn("go").await;
    assert!(env.transcript(&conversation).contains(r#"tool_result ok=true "fine"#));
}

#[tokio::test]
async fn text_beside_calls_is_commentary_and_is_replayed() {
    let env = TestEnv::with_replies([
        Reply::new().text("Let me see.").call("read", json!({"path": "a"})),
        Reply::says("It is empty."),
        Reply::says("Yes."),
    ])
    .await;
    env.write("a", "");
    let (conversation, _) = env.run_turn("what is in a?").await;
    assert_eq!(send_and_finish(&conversation, "sure?").await, SessionStatus::Done);
    let last = env.requests().pop().unwrap();
    for text in ["Let me see.", "It is empty."] {
        assert!(last.body_text.contains(text), "{text} is replayed");
    }
    assert!(
        env.transcript(&conversation).contains(r#"assistant_message commentary "Let me see.""#)
    );
}

#[tokio::test]
async fn an_interrupt_during_the_stream_keeps_the_partial_text() {
    let env =
        TestEnv::with_replies([Reply::new().text("Half an ans").stalls(), Reply::says("Whole.")])
            .await;
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "go".into() }).await.unwrap();
    let mut seen = String::new();
    while !seen.contains("ans") {
        for event in listen_until(&mut listener, |event| event.type_name() == "text_delta").await {
            if let EventKind::Ephemeral(Ephemeral::TextDelta(chunk)) = event.kind() {
                seen.push_str(chunk);
            }
        }
    }
    conversation.interrupt().await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Interrupted);
    assert_eq!(send_and_finish(&conversation, "again").await, SessionStatus::Done);
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build auto
    1 user_message "go"
    2 provider_usage failed interrupted retries=0
    3 assistant_message partial "Half an ans"
    4 turn_failed interrupted interrupted
    5 user_message "again"
    6 provider_usage completed retries=0
    7 assistant_message final "Whole."
    "#);
    let last = env.requests().pop().unwrap();
    assert!(!last.body_text.contains("Half an ans"), "partial text is not replayed");
}

#[tokio::test]
async fn an_interrupt_during_a_tool_kills_it_and_answers_its_call() {
    let env = TestEnv::with_replies([
        Reply::calls("bash", json!({"command": "echo begun; sleep 600 & sleep 600"})),
        Reply::says("ok"),
    ])
    .await;
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "go".into() }).await.unwrap();
    listen_until(&mut listener, |event| event.type_name() == "tool_output_delta").await;
    conversation.interrupt().await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Interrupted);
    assert_eq!(send_and_finish(&conversation, "again").await, SessionStatus::Done);
    let transcript = env.transcript(&conversation);
    assert!(transcript.contains("turn_failed interrupted interrupted"), "{transcript}");
    assert_eq!(transcript.matches("tool_result").count(), 1, "{transcript}");
}

#[tokio::test]
async fn an_interrupt_between_calls_stops_before_the_next_one() {
    let env = TestEnv::with_replies([
        Reply::new()
            .call("bash", json!({"command": "touch first; sleep 600"}))
            .call("bash", json!({"command": "touch second"})),
        Reply::says("ok"),
    ])
    .await;
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "go".into() }).await.unwrap();
    listen_until(&mut listener, |event| {
        is_status(event, |status| matches!(status, SessionStatus::Working { .. }))
    })
    .await;
    conversation.interrupt().await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Interrupted);
    assert!(!env.workspace().join("second").exists());
}

#[tokio::test]
async fn an_interrupt_while_waiting_to_retry_ends_the_wait() {
    let mut env = TestEnv::with_replies([Reply::status(503, "{}"), Reply::says("never")]).await;
    env.config.retry.base = Duration::from_secs(50);
    env.config.retry.cap = Duration::from_secs(50);
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "go".into() }).await.unwrap();
    listen_until(&mut listener, |event| event.type_name() == "provider_retry").await;
    conversation.interrupt().await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Interrupted);
    assert_eq!(env.requests().len(), 1);
}

#[tokio::test]
async fn a_failed_attempt_is_tried_again_and_nothing_is_shown_twice() {
    let env = TestEnv::with_replies([
        Reply::status(500, r#"{"error":{"message":"oops"}}"#),
        Reply::new().text_in(["One ", "two "]).ends_silently(),
        Reply::new().text_in(["One ", "two ", "three."]),
    ])
    .await;
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "count".into() }).await.unwrap();
    let events =
        listen_until(&mut listener, |event| is_status(event, SessionStatus::is_terminal)).await;
    let shown: String = events
        .iter()
        .filter_map(|event| match event.kind() {
            EventKind::Ephemeral(Ephemeral::TextDelta(chunk)) => Some(chunk.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(shown, "One two three.");
    let retries = events.iter().filter(|event| event.type_name() == "provider_retry").count();
    assert_eq!(retries, 2);
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build auto
    1 user_message "count"
    2 provider_usage completed retries=2
    3 assistant_message final "One two three."
    "#);
}

#[tokio::test]
async fn a_provider_that_keeps_failing_ends_the_turn_after_five_attempts() {
    let env =
        TestEnv::with_replies((0..9).map(|_| Reply::new().text("Half").ends_silently())).await;
    let (conversation, status) = env.run_turn("go").await;
    assert!(matches!(status, SessionStatus::Error { .. }));
    assert_eq!(env.requests().len(), 5);
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build auto
    1 user_message "go"
    2 provider_usage failed invalid_response retries=4
    3 assistant_message partial "Half"
    4 turn_failed provider_error invalid_response
    "#);
}

#[tokio::test]
async fn a_definite_failure_is_not_repeated() {
    let body = r#"{"error":{"message":"Incorrect API key","code":"invalid_api_key"}}"#;
    let env = TestEnv::with_replies([Reply::status(401, body)]).await;
    let (conversation, status) = env.run_turn("go").await;
    let SessionStatus::Error { terminal_status, error } = status else { panic!("{status:?}") };
    assert_eq!(
        (terminal_status.as_str(), error.kind.as_str()),
        ("configuration_error", "auth_refused")
    );
    assert_eq!(env.requests().len(), 1);
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build auto
    1 user_message "go"
    2 provider_usage failed auth_refused retries=0
    3 turn_failed configuration_error auth_refused
    "#);
}

#[tokio::test]
async fn an_answer_without_words_is_not_an_answer() {
    let env = TestEnv::with_replies([Reply::says("   ")]).await;
    let (_, status) = env.run_turn("go").await;
    let SessionStatus::Error { terminal_status, .. } = status else { panic!("{status:?}") };
    assert_eq!(terminal_status, "incomplete");
}

#[tokio::test]
async fn a_cut_answer_is_kept_and_says_so() {
    let env =
        TestEnv::with_replies([Reply::says("As much as fits").incomplete("max_output_tokens")])
            .await;
    let (conversation, status) = env.run_turn("go").await;
    let SessionStatus::Error { terminal_status, .. } = status else { panic!("{status:?}") };
    assert_eq!(terminal_status, "incomplete");
    let log = std::fs::read_to_string(conversation.log_path()).unwrap();
    assert!(log.contains(r#""truncated":"max_output_tokens""#));
}

#[tokio::test]
async fn the_iteration_cap_ends_the_turn() {
    let mut env = TestEnv::with_replies(
        (0..5).map(|n| Reply::calls("bash", json!({"command": format!("echo {n}")}))),
    )
    .await;
    env.config.max_iterations = Some(2);
    let (conversation, status) = env.run_turn("go").await;
    let SessionStatus::Error { terminal_status, .. } = status else { panic!("{status:?}") };
    assert_eq!(terminal_status, "iteration_cap");
    assert_eq!(env.requests().len(), 2);
    assert!(env.transcript(&conversation).ends_with("turn_failed iteration_cap iteration_cap\n"));
}

#[tokio::test]
async fn a_doom_loop_is_refused_and_then_ended() {
    let env = TestEnv::with_replies(
        (0..9).map(|_| Reply::calls("bash", json!({"command": "echo same"}))),
    )
    .await;
    let (conversation, status) = env.run_turn("go").await;
    let SessionStatus::Error { terminal_status, .. } = status else { panic!("{status:?}") };
    assert_eq!(terminal_status, "doom_loop");
    assert_eq!(env.requests().len(), 6);
    let transcript = env.transcript(&conversation);
    assert_eq!(transcript.matches("error doom_loop").count(), 3, "{transcript}");
}

#[tokio::test]
async fn the_denial_of_a_command_reaches_the_model() {
    let env = TestEnv::with_replies([
        Reply::calls("bash", json!({"command": "rm x"})),
        Reply::says("ok"),
    ])
    .await
    .in_ask_mode();
    env.write("x", "precious");
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "clean up".into() }).await.unwrap();
    let events =
        listen_until(&mut listener, |event| event.type_name() == "permission_request").await;
    let Some(EventKind::Ephemeral(Ephemeral::PermissionRequest(request))) =
        events.last().map(|event| event.kind())
    else {
        panic!()
    };
    assert!(request.summary.contains("rm x"));
    conversation.answer(&request.call_id, PermissionAnswer::No).await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Done);
    assert_eq!(env.read("x"), "precious");
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build ask
    1 user_message "clean up"
    2 provider_usage completed retries=0
    3 tool_call bash {"command":"rm x"}
    4 permission_decision deny ask by user
    5 tool_result error permission_denied
    6 provider_usage completed retries=0
    7 assistant_message final "ok"
    "#);
}

#[tokio::test]
async fn a_question_without_a_front_end_is_denied_at_once() {
    let mut env = TestEnv::with_replies([
        Reply::calls("bash", json!({"command": "touch x"})),
        Reply::says("ok"),
    ])
    .await
    .in_ask_mode();
    env.can_ask = false;
    let (conversation, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
    assert!(!env.workspace().join("x").exists());
    assert!(env.transcript(&conversation).contains("permission_decision deny ask by nobody"));
    assert!(conversation.answer(&CallId::new("call_1"), PermissionAnswer::Once).await.is_err());
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let mut env = TestEnv::with_replies([
        Reply::calls("write", json!({"path": "x", "content": "1"})),
        Reply::calls("bash", json!({"command": "touch y"})),
        Reply::says("That is what I would do."),
    ])
    .await;
    env.config.dry_run = true;
    let (conversation, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
    assert!(!env.workspace().join("x").exists() && !env.workspace().join("y").exists());
    assert_eq!(env.transcript(&conversation).matches("dry run").count(), 2);
}

/// A model that repeats a Secret in pieces.
#[tokio::test]
async fn what_the_model_says_is_cleaned_live_and_in_the_log_and_runs_as_it_was_said() {
    let pieces = ["Use secret-of", "-test-e", "nv, not secret-of-test-", "shed; secret-of"];
    let mut env = TestEnv::with_replies([
        Reply::new()
            .reasoning("They said secret-of-test-env.")
            .text_in(pieces)
            .call("write", json!({"path": "key", "content": "secret-of-test-env"})),
        Reply::new().call_as(Some("call_x"), "read", "{secret-of-test-env"),
        Reply::new().text_in(pieces),
    ])
    .await;
    env.files_with_secrets.push("key");
    let conversation = env.start().await;
    let mut listener = subscribe_from_now(&conversation);
    assert_eq!(send_and_finish(&conversation, "what is it?").await, SessionStatus::Done);
    let events =
        listen_until(&mut listener, |event| is_status(event, |s| *s == SessionStatus::Done)).await;
    let live = |wanted: fn(&Ephemeral) -> Option<&String>| -> String {
        let texts = events.iter().filter_map(|event| match event.kind() {
            EventKind::Ephemeral(notice) => wanted(notice),
            EventKind::Canonical(_) => None,
        });
        texts.map(String::as_str).collect()
    };
    let log = std::fs::read_to_string(log_files(&env.workspace()).pop().unwrap()).unwrap();
    assert!(!log.contains("secret-of-test-env"), "{log}");
    let shown = "Use [redacted:STORY_TOKEN], not secret-of-test-shed; secret-of";
    assert_eq!(log.matches(shown).count(), 2, "{log}");
    assert_eq!(env.read("key"), "secret-of-test-env");
    let text = live(|notice| match notice {
        Ephemeral::TextDelta(chunk) => Some(chunk),
        _ => None,
    });
    assert_eq!(text, format!("{shown}{shown}"));
    let reasoning = live(|notice| match notice {
        Ephemeral::ReasoningDelta(chunk) => Some(chunk),
        _ => None,
    });
    assert_eq!(reasoning, "They said [redacted:STORY_TOKEN].");
}

#[tokio::test]
async fn secrets_never_reach_the_log_or_the_model() {
    let mut env = TestEnv::with_replies([
        Reply::calls("bash", json!({"command": "cat leak; echo $STORY_TOKEN; env"})),
        Reply::calls("read", json!({"path": "leak"})),
        Reply::says("ok"),
    ])
    .await;
    env.files_with_secrets.push("leak");
    env.write("leak", "token=secret-of-test-env and sk-test-of-test-env\n");
    let (conversation, _) = env.run_turn("my token is secret-of-test-env").await;
    let log = std::fs::read_to_string(conversation.log_path()).unwrap();
    let requests = env.requests();
    let sent = requests.iter().map(|request| request.body_text.as_str()).collect::<String>();
    for text in [log.as_str(), sent.as_str()] {
        assert!(!text.contains("secret-of-test-env"), "{text}");
        assert!(!text.contains("sk-test-of-test-env"), "{text}");
        assert!(text.contains("[redacted:"));
    }
    assert_eq!(env.read("leak"), "token=secret-of-test-env and sk-test-of-test-env\n");
}

#[tokio::test]
async fn a_session_resumes_with_its_whole_history_and_its_posture() {
    let env = TestEnv::with_replies([
        Reply::new().reasoning("Hm.").call("bash", json!({"command": "echo 4711"})),
        Reply::says("It is 4711."),
        Reply::says("Still 4711."),
    ])
    .await;
    let (conversation, _) = env.run_turn("find the number").await;
    let id = conversation.id().clone();
    drop(conversation);
    let resumed = env.resume(&id).await;
    assert!(resumed.notices().is_empty(), "{:?}", resumed.notices());
    assert_eq!(send_and_finish(&resumed, "and now?").await, SessionStatus::Done);
    let requests = env.requests();
    let before = &requests[1];
    let after = &requests[2];
    let prefix = before.input();
    assert_eq!(&after.input()[..prefix.len()], prefix, "the replayed prefix is the same");
    assert!(after.body_text.contains("encrypted_content"));
    insta::assert_snapshot!(env.transcript(&resumed), @r#"
    0 session_started build auto
    1 user_message "find the number"
    2 provider_usage completed retries=0
    3 reasoning gpt-5.5
    4 tool_call bash {"command":"echo 4711"}
    5 tool_result ok=true "4711\n[exit code 0]"
    6 provider_usage completed retries=0
    7 assistant_message final "It is 4711."
    8 user_message "and now?"
    9 provider_usage completed retries=0
    10 assistant_message final "Still 4711."
    "#);
}

#[tokio::test]
async fn another_model_gets_no_reasoning_of_the_first() {
    let mut env = TestEnv::with_replies([
        Reply::new().reasoning("Hm.").call("bash", json!({"command": "true"})),
        Reply::says("ok"),
        Reply::says("ok"),
    ])
    .await;
    let (conversation, _) = env.run_turn("go").await;
    let id = conversation.id().clone();
    drop(conversation);
    env.config.model = "gpt-6-sol".into();
    env.config.model_named = true;
    let resumed = env.resume(&id).await;
    send_and_finish(&resumed, "and you?").await;
    let last = env.requests().pop().unwrap();
    assert_eq!(last.body["model"], "gpt-6-sol");
    assert!(!last.input().iter().any(|item| item["type"] == "reasoning"));
    assert!(env.transcript(&resumed).contains(r#"posture_changed {"model":"gpt-6-sol"}"#));
}

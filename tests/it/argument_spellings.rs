//! Tool arguments in the spelling of other agents: accepted, executed, and recorded as they were written.

use pixir::SessionStatus;
use pixir::scripted::Reply;
use serde_json::json;

use crate::support::TestEnv;

#[tokio::test]
async fn spellings_of_other_agents_are_understood_and_kept_as_they_were() {
    let env = TestEnv::with_replies([
        Reply::calls("write", json!({"file_path": "a.txt", "content": "one two one\n"})),
        Reply::calls("edit", json!({"path": "a.txt", "old_string": "two", "new_string": "2"})),
        Reply::calls(
            "edit",
            json!({"path": "a.txt", "edits": [{"old_string": "2", "new_string": "3", "replace_all": null}]}),
        ),
        Reply::calls(
            "edit",
            json!({"file_path": "a.txt", "old_string": "one", "new_string": "1", "replace_all": true}),
        ),
        Reply::calls(
            "update_plan",
            json!({"entries": [
                {"content": "look", "priority": "high", "status": "completed"},
                {"content": "leap", "priority": "low", "status": "pending"}]}),
        ),
        Reply::says("done"),
    ])
    .await;
    let (conversation, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
    insta::assert_snapshot!(env.transcript(&conversation), @r#"
    0 session_started build auto
    1 user_message "go"
    2 provider_usage completed retries=0
    3 tool_call write {"file_path":"a.txt","content":"one two one\n"}
    4 tool_result ok=true "created a.txt, 12 bytes (+1 -0)"
    5 provider_usage completed retries=0
    6 tool_call edit {"path":"a.txt","old_string":"two","new_string":"2"}
    7 tool_result ok=true "edited a.txt: 1 replaced (+1 -1)"
    8 provider_usage completed retries=0
    9 tool_call edit {"path":"a.txt","edits":[{"old_string":"2","new_string":"3","replace_all":null}]}
    10 tool_result ok=true "edited a.txt: 1 replaced (+1 -1)"
    11 provider_usage completed retries=0
    12 tool_call edit {"file_path":"a.txt","old_string":"one","new_string":"1","replace_all":true}
    13 tool_result ok=true "edited a.txt: 2 replaced (+1 -1)"
    14 provider_usage completed retries=0
    15 tool_call update_plan {"entries":[{"content":"look","priority":"high","status":"completed"},{"content":"leap","priority":"low","status":"pending"}]}
    16 plan
    17 tool_result ok=true "plan: 1 of 2 done"
    18 provider_usage completed retries=0
    19 assistant_message final "done"
    "#);
    assert_eq!(env.read("a.txt"), "1 3 1\n");
    let log = std::fs::read_to_string(conversation.log_path()).unwrap();
    assert!(log.contains(r#"{"file_path":"a.txt","content":"one two one\n"}"#), "{log}");
    let requests = env.requests();
    let offered = requests[0].body["tools"].to_string();
    assert!(!offered.contains("file_path") && !offered.contains("entries"), "not advertised");
}

#[tokio::test]
async fn commands_patches_and_words_for_booleans_are_understood_too() {
    let patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n-1 1\n+2 2\n*** End Patch";
    let edit =
        json!({"path": "a.txt", "old_string": "one", "new_string": "1", "replace_all": "true"});
    let env = TestEnv::with_replies([
        Reply::calls("bash", json!({"cmd": "echo one one > a.txt"})),
        Reply::calls("read", json!({"path": "a.txt"})),
        Reply::calls("edit", edit),
        Reply::calls("apply_patch", json!({"input": patch})),
        Reply::calls("bash", json!({"cmd": "true", "command": "false"})),
        Reply::says("done"),
    ])
    .await;
    let (conversation, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
    let transcript = env.transcript(&conversation);
    assert_eq!(transcript.matches("tool_result ok=true").count(), 4, "{transcript}");
    assert_eq!(transcript.matches("tool_result error invalid_args").count(), 1, "{transcript}");
    assert_eq!(env.read("a.txt"), "2 2\n");
}

#[tokio::test]
async fn what_could_mean_two_things_is_refused_as_before() {
    let env = TestEnv::with_replies([
        Reply::calls("write", json!({"path": "a.txt", "file_path": "b.txt", "content": "x"})),
        Reply::calls("edit", json!({"path": "a.txt", "old_string": "x"})),
        Reply::calls("update_plan", json!({"entries": [{"content": "look"}]})),
        Reply::says("done"),
    ])
    .await;
    let (conversation, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
    let transcript = env.transcript(&conversation);
    assert_eq!(transcript.matches("tool_result error invalid_args").count(), 3, "{transcript}");
}

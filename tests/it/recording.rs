//! The recording of files for undo before a command: its status line, and its interruption.
//!
//! A lock on the snapshot store delays a recording, as `pixir gc` does.

use std::fs::{self, File};
use std::path::Path;

use pixir::scripted::{ModelScript, Reply};
use pixir::{
    Conversation, Ephemeral, Event, EventKind, SessionStatus, SessionTarget, StartOptions,
    UserInput,
};
use serde_json::{Value, json};

use crate::support::acp_client::AcpClient;
use crate::support::binary_env::{BinaryEnv, wait_for};
use crate::support::terminal::TestTerminal;
use crate::support::test_env::{
    DEADLINE, TestEnv, listen_until, newest_log, subscribe_from_now, wait_for_turn_end,
};

/// Locks the snapshot store of this Workspace until the file is dropped.
fn hold_up(workspace: &Path) -> File {
    let store = workspace.join(".pixir/snapshots");
    fs::create_dir_all(&store).unwrap();
    let store = File::open(store).unwrap();
    store.lock().unwrap();
    store
}

/// Replies that run `touch ran` and end the Turn.
fn touching() -> [Reply; 2] {
    [Reply::calls("bash", json!({"command": "touch ran"})), Reply::says("all done")]
}

fn is_recording(event: &Event) -> bool {
    matches!(event.kind(), EventKind::Ephemeral(Ephemeral::Status(SessionStatus::Recording { .. })))
}

async fn begin(env: &TestEnv) -> Conversation {
    let start = StartOptions {
        workspace: env.workspace(),
        session: SessionTarget::New,
        can_ask: false,
        mcp_servers: Vec::new(),
    };
    env.harness().start(start).await.unwrap()
}

fn facts(log: &Path, kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(log).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["type"] == kind).map(|event| event["data"].clone()).collect()
}

/// Names of unfinished temporary files below a folder.
fn drafts(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() {
            found.extend(drafts(&entry.path()));
        } else if name.ends_with(".pixir-new") {
            found.push(name);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_ends_a_recording_and_the_turn_and_the_command_does_not_run() {
    let env = TestEnv::with_replies(touching()).await;
    let held = hold_up(&env.workspace());
    let conversation = begin(&env).await;
    let mut listener = subscribe_from_now(&conversation);
    conversation.send(UserInput { text: "go".to_owned() }).await.unwrap();
    listen_until(&mut listener, is_recording).await;
    conversation.interrupt().await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Interrupted);
    drop(held);
    let log = conversation.log_path();
    assert_eq!(facts(log, "turn_failed")[0]["terminal_status"], "interrupted");
    let results = facts(log, "tool_result");
    assert_eq!(results.len(), 1, "{results:?}");
    assert_eq!(results[0]["error"]["kind"], "orphan_tool_call");
    assert!(!env.workspace().join("ran").exists());
    assert_eq!(drafts(&env.workspace().join(".pixir")), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn enter_skips_a_recording_and_leaves_no_old_status_line_on_the_screen() {
    let env = TestEnv::with_replies(touching()).await;
    let _held = hold_up(&env.workspace());
    let mut terminal = TestTerminal::run(&env, &["touch a file"], &[]);
    terminal.wait_for_text("recording files for undo");
    terminal.type_keys("\n");
    terminal.wait_for_text("all done");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert!(env.workspace().join("ran").exists());
    let screen = terminal.screen();
    assert!(screen.contains("recording was skipped"), "{screen:?}");
    // The echo of Enter moved the cursor to the next row: both rows are cleared.
    let echo = screen.find("recording files for undo").unwrap();
    assert!(screen[echo..].contains("\r\u{1b}[2K\u{1b}[1A\r\u{1b}[2K"), "{screen:?}");
    let results = facts(&newest_log(&env.workspace()), "tool_result");
    assert_eq!(results.len(), 1);
    assert_eq!(results[0]["ok"], true);
}

/// Input during a single prompt is left for the shell.
#[tokio::test(flavor = "multi_thread")]
async fn words_that_are_typed_during_a_recording_reach_the_shell() {
    let env = TestEnv::with_replies(touching()).await;
    let held = hold_up(&env.workspace());
    let script = r#""$PIXIR" 'touch a file'; read line; echo "the shell read: $line""#;
    let mut terminal = TestTerminal::run_script(&env, script);
    terminal.wait_for_text("recording files for undo");
    terminal.type_keys("words for the shell\n\n");
    drop(held);
    terminal.wait_for_text("the shell read: words for the shell");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    assert!(env.workspace().join("ran").exists());
    assert!(!terminal.screen().contains("recording was skipped"), "{}", terminal.screen());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_sees_that_a_command_waits_for_the_recording() {
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new(touching())).await;
    let held = hold_up(&binary_env.workspace());
    let mut client = AcpClient::start(&binary_env, &["--auto"]);
    client.initialize(json!({}));
    let id = client.new_session(&binary_env.workspace());
    let prompt = client.send_prompt(&id, "go");
    let message = client.wait_for_message("a recording", |message| {
        let title = message["params"]["update"]["title"].as_str();
        title.is_some_and(|title| title.contains("recording files for undo"))
    });
    assert_eq!(message["params"]["update"]["status"], "pending");
    assert!(!binary_env.workspace().join("ran").exists());
    drop(held);
    let message = client.wait_for_message("a running call", |message| {
        message["params"]["update"]["status"] == "in_progress"
    });
    assert_eq!(message["params"]["update"]["title"], "touch ran");
    assert_eq!(client.wait_for_answer(prompt).unwrap()["stopReason"], "end_turn");
    assert!(binary_env.workspace().join("ran").exists());
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_sees_that_a_command_waits_for_a_slot() {
    let wait = "touch first; until [ -e go ]; do sleep 0.05; done";
    let call = |command: &str| Reply::calls("bash", json!({ "command": command }));
    let replies = [call(wait), call("touch second"), Reply::says("a"), Reply::says("b")];
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new(replies)).await;
    binary_env.configure(&json!({"bash": {"max_commands": 1}}));
    let mut client = AcpClient::start(&binary_env, &["--auto"]);
    client.initialize(json!({}));
    let one = client.new_session(&binary_env.workspace());
    let other = client.new_session(&binary_env.workspace());
    let first = client.send_prompt(&one, "go");
    let exists = |name: &str| binary_env.workspace().join(name).exists();
    assert!(wait_for(DEADLINE, || exists("first"), |is_there| *is_there));
    let second = client.send_prompt(&other, "go");
    let message = client.wait_for_message("a command that waits", |message| {
        let title = message["params"]["update"]["title"].as_str();
        title.is_some_and(|title| title.contains("waiting for a free slot"))
    });
    assert_eq!(message["params"]["sessionId"], other);
    assert_eq!(message["params"]["update"]["status"], "pending");
    assert!(!exists("second"));
    fs::write(binary_env.workspace().join("go"), "").unwrap();
    client.wait_for_answer(first).unwrap();
    client.wait_for_answer(second).unwrap();
    assert!(exists("second"));
    let of_other = client.received.iter().filter(|message| message["params"]["sessionId"] == other);
    let mut statuses: Vec<&str> =
        of_other.filter_map(|message| message["params"]["update"]["status"].as_str()).collect();
    statuses.dedup();
    assert_eq!(statuses, ["pending", "in_progress", "completed"]);
    assert!(client.close_and_wait().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_user_writes_while_a_command_waits_for_a_slot_is_not_taken_back() {
    let wait = "touch first; until [ -e go ]; do sleep 0.05; done";
    let call = |command: &str| Reply::calls("bash", json!({ "command": command }));
    let replies = [call(wait), call("touch second"), Reply::says("a"), Reply::says("b")];
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new(replies)).await;
    binary_env.configure(&json!({"bash": {"max_commands": 1}}));
    let mut client = AcpClient::start(&binary_env, &["--auto"]);
    client.initialize(json!({}));
    let one = client.new_session(&binary_env.workspace());
    let other = client.new_session(&binary_env.workspace());
    let first = client.send_prompt(&one, "go");
    let path = |name: &str| binary_env.workspace().join(name);
    assert!(wait_for(DEADLINE, || path("first").exists(), |is_there| *is_there));
    let second = client.send_prompt(&other, "go");
    client.wait_for_message("a command that waits", |message| {
        let title = message["params"]["update"]["title"].as_str();
        title.is_some_and(|title| title.contains("waiting for a free slot"))
    });
    fs::write(path("by_the_user"), "mine").unwrap();
    fs::write(path("go"), "").unwrap();
    client.wait_for_answer(first).unwrap();
    client.wait_for_answer(second).unwrap();
    assert!(client.close_and_wait().0.success());
    let planned = binary_env.run(&["undo", &other, "--dry-run"]);
    planned.expect_code(0);
    assert!(planned.stdout.contains("second"), "{planned:?}");
    assert!(!planned.stdout.contains("by_the_user"), "{planned:?}");
    binary_env.run(&["undo", &other, "--yes", "--force"]).expect_code(0);
    assert!(path("by_the_user").exists() && !path("second").exists());
}

/// Runs a command that is over when the store is locked; the recording after it waits.
async fn record_after_a_command(env: &TestEnv) -> (Conversation, File) {
    let conversation = begin(env).await;
    conversation.send(UserInput { text: "go".to_owned() }).await.unwrap();
    let has_begun = || env.workspace().join("ran").exists();
    assert!(wait_for(DEADLINE, has_begun, |is_there| *is_there));
    let held = hold_up(&env.workspace());
    let mut listener = subscribe_from_now(&conversation);
    env.write("go", "");
    listen_until(&mut listener, is_recording).await;
    (conversation, held)
}

/// Replies that run `touch ran`, wait for a file, and end the Turn.
fn touching_and_waiting() -> [Reply; 2] {
    let command = "touch ran; until [ -e go ]; do sleep 0.02; done; echo finished";
    [Reply::calls("bash", json!({ "command": command })), Reply::says("all done")]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_ends_the_recording_after_a_command_and_its_result_is_kept() {
    let env = TestEnv::with_replies(touching_and_waiting()).await;
    let (conversation, held) = record_after_a_command(&env).await;
    conversation.interrupt().await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Interrupted);
    drop(held);
    let log = conversation.log_path();
    let results = facts(log, "tool_result");
    assert_eq!(results.len(), 1, "{results:?}");
    assert_eq!(results[0]["ok"], true, "{results:?}");
    assert!(results[0]["output"].as_str().unwrap().contains("finished"), "{results:?}");
    let failed = &facts(log, "turn_failed")[0];
    assert!(!failed.to_string().contains("did not stop"), "{failed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recording_after_a_command_can_be_skipped() {
    let env = TestEnv::with_replies(touching_and_waiting()).await;
    let (conversation, _held) = record_after_a_command(&env).await;
    conversation.skip_recording();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Done);
    let notices = conversation.take_notices();
    assert!(notices.iter().any(|notice| notice.contains("was skipped")), "{notices:?}");
}

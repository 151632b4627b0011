//! The recording of files for undo before a command: what is shown meanwhile, and how it ends early.
//!
//! A lock on the store holds a recording up for as long as a story needs, as `pixir gc` does while it clears away.

use std::fs::{self, File};
use std::path::Path;

use pixir::scripted::{Reply, Script};
use pixir::{Conversation, Ephemeral, Event, EventKind, Input, Start, Status, Which};
use serde_json::{Value, json};

use crate::support::editor::Editor;
use crate::support::house::{DEADLINE, House, finish, listen, listen_until, newest_log};
use crate::support::stage::{Stage, wait_for};
use crate::support::terminal::Terminal;

/// Holds up everything that would keep contents for undo in this Workspace, until it is dropped.
fn hold_up(workspace: &Path) -> File {
    let store = workspace.join(".pixir/snapshots");
    fs::create_dir_all(&store).unwrap();
    let store = File::open(store).unwrap();
    store.lock().unwrap();
    store
}

/// A model that runs `touch ran` and says that it is done.
fn touching() -> [Reply; 2] {
    [Reply::calls("bash", json!({"command": "touch ran"})), Reply::says("all done")]
}

fn is_recording(event: &Event) -> bool {
    matches!(event.kind(), EventKind::Ephemeral(Ephemeral::Status(Status::Recording { .. })))
}

async fn begin(house: &House) -> Conversation {
    let start = Start {
        workspace: house.workspace(),
        session: Which::New,
        can_ask: false,
        mcp_servers: Vec::new(),
    };
    house.harness().start(start).await.unwrap()
}

fn facts(log: &Path, kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(log).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["type"] == kind).map(|event| event["data"].clone()).collect()
}

/// The names of files below a folder that were not finished.
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
    let house = House::with(touching()).await;
    let held = hold_up(&house.workspace());
    let conversation = begin(&house).await;
    let mut listener = listen(&conversation);
    conversation.send(Input { text: "go".to_owned() }).await.unwrap();
    listen_until(&mut listener, is_recording).await;
    conversation.interrupt().await.unwrap();
    assert_eq!(finish(&conversation).await, Status::Interrupted);
    drop(held);
    let log = conversation.log_path();
    assert_eq!(facts(log, "turn_failed")[0]["terminal_status"], "interrupted");
    let results = facts(log, "tool_result");
    assert_eq!(results.len(), 1, "{results:?}");
    assert_eq!(results[0]["error"]["kind"], "orphan_tool_call");
    assert!(!house.workspace().join("ran").exists());
    assert_eq!(drafts(&house.workspace().join(".pixir")), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn enter_skips_a_recording_and_leaves_no_old_status_line_on_the_screen() {
    let house = House::with(touching()).await;
    let _held = hold_up(&house.workspace());
    let mut terminal = Terminal::run(&house, &["touch a file"], &[]);
    terminal.shows("recording files for undo");
    terminal.types("\n");
    terminal.shows("all done");
    assert_eq!(terminal.ends(), Some(0));
    assert!(house.workspace().join("ran").exists());
    let screen = terminal.screen();
    assert!(screen.contains("recording was skipped"), "{screen:?}");
    // The terminal went to the next row when it echoed Enter: both rows are wiped.
    let echo = screen.find("recording files for undo").unwrap();
    assert!(screen[echo..].contains("\r\u{1b}[2K\u{1b}[1A\r\u{1b}[2K"), "{screen:?}");
    let results = facts(&newest_log(&house.workspace()), "tool_result");
    assert_eq!(results.len(), 1);
    assert_eq!(results[0]["ok"], true);
}

/// What is typed while one prompt runs is for the shell that comes after it.
#[tokio::test(flavor = "multi_thread")]
async fn words_that_are_typed_during_a_recording_reach_the_shell() {
    let house = House::with(touching()).await;
    let held = hold_up(&house.workspace());
    let script = r#""$PIXIR" 'touch a file'; read line; echo "the shell read: $line""#;
    let mut terminal = Terminal::script(&house, script);
    terminal.shows("recording files for undo");
    terminal.types("words for the shell\n\n");
    drop(held);
    terminal.shows("the shell read: words for the shell");
    assert_eq!(terminal.ends(), Some(0));
    assert!(house.workspace().join("ran").exists());
    assert!(!terminal.screen().contains("recording was skipped"), "{}", terminal.screen());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_sees_that_a_command_waits_for_the_recording() {
    let stage = Stage::new(Stage::mark(), Script::new(touching())).await;
    let held = hold_up(&stage.workspace());
    let mut editor = Editor::start(&stage, &["--auto"]);
    editor.initialize(json!({}));
    let id = editor.session(&stage.workspace());
    let prompt = editor.prompt(&id, "go");
    let told = editor.wait("a recording", |message| {
        let title = message["params"]["update"]["title"].as_str();
        title.is_some_and(|title| title.contains("recording files for undo"))
    });
    assert_eq!(told["params"]["update"]["status"], "pending");
    assert!(!stage.workspace().join("ran").exists());
    drop(held);
    let told = editor
        .wait("a running call", |message| message["params"]["update"]["status"] == "in_progress");
    assert_eq!(told["params"]["update"]["title"], "touch ran");
    assert_eq!(editor.answer(prompt).unwrap()["stopReason"], "end_turn");
    assert!(stage.workspace().join("ran").exists());
    assert!(editor.end().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_sees_that_a_command_waits_for_a_slot() {
    let wait = "touch first; until [ -e go ]; do sleep 0.05; done";
    let call = |command: &str| Reply::calls("bash", json!({ "command": command }));
    let replies = [call(wait), call("touch second"), Reply::says("a"), Reply::says("b")];
    let stage = Stage::new(Stage::mark(), Script::new(replies)).await;
    stage.configure(&json!({"bash": {"max_commands": 1}}));
    let mut editor = Editor::start(&stage, &["--auto"]);
    editor.initialize(json!({}));
    let one = editor.session(&stage.workspace());
    let other = editor.session(&stage.workspace());
    let first = editor.prompt(&one, "go");
    let exists = |name: &str| stage.workspace().join(name).exists();
    assert!(wait_for(DEADLINE, || exists("first"), |is_there| *is_there));
    let second = editor.prompt(&other, "go");
    let told = editor.wait("a command that waits", |message| {
        let title = message["params"]["update"]["title"].as_str();
        title.is_some_and(|title| title.contains("waiting for a free slot"))
    });
    assert_eq!(told["params"]["sessionId"], other);
    assert_eq!(told["params"]["update"]["status"], "pending");
    assert!(!exists("second"));
    fs::write(stage.workspace().join("go"), "").unwrap();
    editor.answer(first).unwrap();
    editor.answer(second).unwrap();
    assert!(exists("second"));
    assert!(editor.end().0.success());
}

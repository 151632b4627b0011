//! Logs that another program truncates, removes or replaces while a Turn runs: the Turn ends before it acts.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use pixir::scripted::{Reply, Script};
use serde_json::json;

use crate::subagents::cast::{GO, cast, says, spawns};
use crate::support::editor::Editor;
use crate::support::house::{DEADLINE, logs, newest_log};
use crate::support::stage::wait_for;
use crate::support::{House, Stage};

/// Changes something while the model is asked; it is given the Log.
type Alter = fn(&Path);

/// A test environment whose model alters the Log before it asks for a command.
async fn stage(alter: Alter) -> Stage {
    let workspace: Arc<OnceLock<PathBuf>> = Arc::default();
    let place = Arc::clone(&workspace);
    let script = Script::answering(move |request| {
        if !request.outputs().is_empty() {
            return Reply::says("It was made.");
        }
        let log = logs(place.get().unwrap()).pop().unwrap();
        alter(&log);
        Reply::calls("bash", json!({"command": "touch made"}))
    });
    let stage = Stage::new(Stage::mark(), script).await;
    workspace.set(stage.workspace()).unwrap();
    stage
}

fn beside(log: &Path) -> PathBuf {
    log.with_extension("elsewhere")
}

fn replace_by_copy(log: &Path) {
    fs::copy(log, beside(log)).unwrap();
    fs::rename(beside(log), log).unwrap();
}

fn append_line(log: &Path) {
    fs::File::options().append(true).open(log).unwrap().write_all(b"{\"type\":\"x\"}\n").unwrap();
}

fn truncate(log: &Path) {
    let length = fs::metadata(log).unwrap().len();
    fs::File::options().write(true).open(log).unwrap().set_len(length / 2).unwrap();
}

fn rename_folder(log: &Path) {
    let folder = log.parent().unwrap();
    fs::rename(folder, folder.with_extension("elsewhere")).unwrap();
}

fn remove_blobs(log: &Path) {
    fs::remove_dir_all(log.with_extension("").join("blobs")).unwrap();
}

const ALTERATIONS: &[(Alter, &str, &str)] = &[
    (truncate, "it was truncated to", "pixir repair"),
    (|log| fs::write(log, "").unwrap(), "it was truncated to 0 of", "restore it from a backup"),
    (|log| fs::remove_file(log).unwrap(), "it was removed", "restore it from a backup"),
    (replace_by_copy, "another file was put in its place", "put it back"),
    (|log| fs::rename(log, beside(log)).unwrap(), "was moved", "put it back"),
    (rename_folder, "was moved", "put it back"),
    (append_line, "another program appended", "pixir verify"),
    (remove_blobs, "blobs was removed or moved", "pixir diagnose"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_is_altered_under_a_turn_stops_it_before_it_acts() {
    for (alter, words, action) in ALTERATIONS {
        for durability in ["none", "turn"] {
            let stage = stage(*alter).await;
            stage.configure(&json!({ "durability": durability }));
            // Large enough for a blob.
            fs::write(stage.workspace().join("prompt"), "make it ".repeat(40_000)).unwrap();
            tokio::task::block_in_place(|| {
                let prompt = fs::File::open(stage.workspace().join("prompt")).unwrap();
                let mut command = stage.command(&["-"]);
                let running = crate::support::stage::Running::start(command.stdin(prompt));
                let ended = running.end();
                assert_eq!(ended.status.code(), Some(7), "{words}: {ended:?}");
                assert!(ended.stderr.contains("cannot be written"), "{words}: {}", ended.stderr);
                assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
                assert!(ended.stderr.contains(action), "{action}: {}", ended.stderr);
                assert!(!stage.workspace().join("made").exists(), "{words}: the command ran");
                assert_eq!(stage.server.requests().len(), 1, "{words}: another request left");
                stage.assert_nothing_survives();
            });
        }
    }
}

/// A model whose parent answers while its children wait for the file `go`.
async fn stage_with_children(tasks: &[&str]) -> Stage {
    let script = cast([spawns(tasks, "worker"), says("Started.")], |_, step| match step {
        0 => {
            let command = "while [ ! -e go ]; do sleep 0.02; done";
            Reply::calls("bash", json!({ "command": command }))
        }
        _ => Reply::says("The child is done."),
    });
    Stage::new(Stage::mark(), script).await
}

/// Alters the Log of the parent once it has its answer, and lets the children go on.
fn alter_after_answer(stage: &Stage, alter: Alter) {
    let workspace = stage.workspace();
    let is_answered = |log: &PathBuf| {
        fs::read_to_string(log).is_ok_and(|text| text.contains(r#""text":"Started.""#))
    };
    let parent = || logs(&workspace).into_iter().find(is_answered);
    let parent = wait_for(DEADLINE, parent, Option::is_some).expect("the parent answers");
    alter(&parent);
    fs::write(workspace.join("go"), "").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_is_altered_while_children_work_is_an_error_of_the_run() {
    let alterations: [(Alter, &str); 2] = [
        (|log| fs::remove_file(log).unwrap(), "it was removed"),
        (truncate, "it was truncated to"),
    ];
    for (alter, words) in alterations {
        for args in [&[GO][..], &["--json", GO]] {
            let stage = stage_with_children(&["one", "two"]).await;
            tokio::task::block_in_place(|| {
                let running = stage.start(args);
                alter_after_answer(&stage, alter);
                let ended = running.end();
                assert_eq!(ended.status.code(), Some(7), "{words}: {ended:?}");
                let told =
                    if args.len() == 1 { ended.stderr.clone() } else { ended.stdout.clone() };
                assert_eq!(told.matches(words).count(), 1, "{words}: {told}");
                assert!(ended.stdout.contains("Started."), "{}", ended.stdout);
                if args.len() == 2 {
                    let envelope: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
                    assert_eq!(envelope["ok"], false);
                    assert_eq!(envelope["error"]["kind"], "log_write_failed");
                }
                stage.assert_nothing_survives();
            });
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_editor_is_told_of_a_log_that_is_removed_while_children_work() {
    let stage = stage_with_children(&["one"]).await;
    tokio::task::block_in_place(|| {
        let mut editor = Editor::start(&stage, &["--auto"]);
        editor.initialize(json!({}));
        let id = editor.session(&stage.workspace());
        editor.turn(&id, GO).unwrap();
        alter_after_answer(&stage, |log| fs::remove_file(log).unwrap());
        editor.wait("the failure", |message| {
            let update = &message["params"]["update"];
            let text = update["content"]["text"].as_str().unwrap_or_default();
            update["sessionUpdate"] == "agent_message_chunk" && text.contains("it was removed")
        });
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_many_gigabytes_is_refused_instead_of_read_and_can_be_deleted() {
    let house = House::with([Reply::says("ok")]).await;
    house.pixir(&["hi"]).exits(0);
    let log = newest_log(&house.workspace());
    let id = log.file_stem().unwrap().to_str().unwrap().to_owned();
    std::fs::File::options().write(true).open(&log).unwrap().set_len(1 << 36).unwrap();
    let listed = house.pixir(&["sessions"]).exits(0);
    assert!(listed.out.contains("unreadable"), "{}", listed.out);
    assert!(listed.err.contains("it has 64 GiB"), "{}", listed.err);
    for args in [&["resume", &id, "go on"][..], &["verify", &id], &["export", &id], &["undo", &id]]
    {
        let told = house.pixir(args);
        assert_ne!(told.code, Some(0), "{args:?}");
        assert!(told.err.contains("no Log has more than 16 GiB"), "{args:?}: {}", told.err);
        assert!(told.err.contains("pixir sessions delete"), "{args:?}: {}", told.err);
    }
    house.pixir(&["gc"]).exits(0);
    house.pixir(&["sessions", "delete", &id]).exits(0);
    assert!(!log.exists());
}

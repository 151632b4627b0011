//! Logs that another program truncates, removes or replaces while a Turn runs: the Turn ends before it acts.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use pixir::scripted::{Reply, Script};
use serde_json::json;

use crate::support::Stage;
use crate::support::house::logs;

/// Changes something while the model is asked; it is given the Log.
type Alter = fn(&Path);

/// A stage whose model alters the Log before it asks for a command.
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

//! Logs that another program truncates, removes or replaces while a Turn runs: the Turn ends before it acts.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use pixir::scripted::{ModelScript, Reply};
use serde_json::json;

use crate::subagents::scripted_family::{GO, scripted_family, spawn_reply, text_reply};
use crate::support::acp_client::AcpClient;
use crate::support::binary_env::wait_for;
use crate::support::test_env::{DEADLINE, log_files, newest_log};
use crate::support::{BinaryEnv, TestEnv};

/// A change to the Log at this path, made while the model answers.
type AlterLog = fn(&Path);

/// A test environment whose model alters the Log before it asks for a command.
async fn new_binary_env(alter: AlterLog) -> BinaryEnv {
    let workspace: Arc<OnceLock<PathBuf>> = Arc::default();
    let place = Arc::clone(&workspace);
    let script = ModelScript::answering(move |request| {
        if !request.outputs().is_empty() {
            return Reply::says("It was made.");
        }
        let log = log_files(place.get().unwrap()).pop().unwrap();
        alter(&log);
        Reply::calls("bash", json!({"command": "touch made"}))
    });
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    workspace.set(binary_env.workspace()).unwrap();
    binary_env
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

const ALTERATIONS: &[(AlterLog, &str, &str)] = &[
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
            let binary_env = new_binary_env(*alter).await;
            binary_env.configure(&json!({ "durability": durability }));
            // Large enough for a blob.
            fs::write(binary_env.workspace().join("prompt"), "make it ".repeat(40_000)).unwrap();
            tokio::task::block_in_place(|| {
                let prompt = fs::File::open(binary_env.workspace().join("prompt")).unwrap();
                let mut command = binary_env.command(&["-"]);
                let running =
                    crate::support::binary_env::RunningProcess::start(command.stdin(prompt));
                let ended = running.end();
                assert_eq!(ended.status.code(), Some(7), "{words}: {ended:?}");
                assert!(ended.stderr.contains("cannot be written"), "{words}: {}", ended.stderr);
                assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
                assert!(ended.stderr.contains(action), "{action}: {}", ended.stderr);
                assert!(!binary_env.workspace().join("made").exists(), "{words}: the command ran");
                assert_eq!(binary_env.server.requests().len(), 1, "{words}: a request was sent");
                binary_env.assert_nothing_survives();
            });
        }
    }
}

/// A test environment whose parent answers while its children wait for the file `go`.
async fn env_with_children(tasks: &[&str]) -> BinaryEnv {
    let script = scripted_family(
        [spawn_reply(tasks, "worker"), text_reply("Started.")],
        |_, step| match step {
            0 => {
                let command = "while [ ! -e go ]; do sleep 0.02; done";
                Reply::calls("bash", json!({ "command": command }))
            }
            _ => Reply::says("The child is done."),
        },
    );
    BinaryEnv::new(BinaryEnv::new_mark(), script).await
}

/// Alters the Log of the parent once it has its answer, and lets the children go on.
fn alter_after_answer(binary_env: &BinaryEnv, alter: AlterLog) {
    let workspace = binary_env.workspace();
    let is_answered = |log: &PathBuf| {
        fs::read_to_string(log).is_ok_and(|text| text.contains(r#""text":"Started.""#))
    };
    let parent = || log_files(&workspace).into_iter().find(is_answered);
    let parent = wait_for(DEADLINE, parent, Option::is_some).expect("the parent answers");
    alter(&parent);
    fs::write(workspace.join("go"), "").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_is_altered_while_children_work_is_an_error_of_the_run() {
    let alterations: [(AlterLog, &str); 2] = [
        (|log| fs::remove_file(log).unwrap(), "it was removed"),
        (truncate, "it was truncated to"),
    ];
    for (alter, words) in alterations {
        for args in [&[GO][..], &["--json", GO]] {
            let binary_env = env_with_children(&["one", "two"]).await;
            tokio::task::block_in_place(|| {
                let running = binary_env.start(args);
                alter_after_answer(&binary_env, alter);
                let ended = running.end();
                assert_eq!(ended.status.code(), Some(7), "{words}: {ended:?}");
                let text =
                    if args.len() == 1 { ended.stderr.clone() } else { ended.stdout.clone() };
                assert_eq!(text.matches(words).count(), 1, "{words}: {text}");
                assert!(ended.stdout.contains("Started."), "{}", ended.stdout);
                if args.len() == 2 {
                    let envelope: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
                    assert_eq!(envelope["ok"], false);
                    assert_eq!(envelope["error"]["kind"], "log_write_failed");
                }
                binary_env.assert_nothing_survives();
            });
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_editor_gets_an_error_when_a_log_is_removed_while_children_work() {
    let binary_env = env_with_children(&["one"]).await;
    tokio::task::block_in_place(|| {
        let mut client = AcpClient::start(&binary_env, &["--auto"]);
        client.initialize(json!({}));
        let id = client.new_session(&binary_env.workspace());
        client.run_prompt(&id, GO).unwrap();
        alter_after_answer(&binary_env, |log| fs::remove_file(log).unwrap());
        client.wait_for_message("the failure", |message| {
            let update = &message["params"]["update"];
            let text = update["content"]["text"].as_str().unwrap_or_default();
            update["sessionUpdate"] == "agent_message_chunk" && text.contains("it was removed")
        });
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_many_gigabytes_is_refused_instead_of_read_and_can_be_deleted() {
    let env = TestEnv::with_replies([Reply::says("ok")]).await;
    env.run_pixir(&["hi"]).assert_exit_code(0);
    let log = newest_log(&env.workspace());
    let id = log.file_stem().unwrap().to_str().unwrap().to_owned();
    std::fs::File::options().write(true).open(&log).unwrap().set_len(1 << 36).unwrap();
    let listed = env.run_pixir(&["sessions"]).assert_exit_code(0);
    assert!(listed.out.contains("unreadable"), "{}", listed.out);
    assert!(listed.err.contains("it has 64 GiB"), "{}", listed.err);
    for args in [&["resume", &id, "go on"][..], &["verify", &id], &["export", &id], &["undo", &id]]
    {
        let run = env.run_pixir(args);
        assert_ne!(run.code, Some(0), "{args:?}");
        assert!(run.err.contains("no Log has more than 16 GiB"), "{args:?}: {}", run.err);
        assert!(run.err.contains("pixir sessions delete"), "{args:?}: {}", run.err);
    }
    env.run_pixir(&["gc"]).assert_exit_code(0);
    env.run_pixir(&["sessions", "delete", &id]).assert_exit_code(0);
    assert!(!log.exists());
}

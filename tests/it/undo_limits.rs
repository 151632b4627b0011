//! Undo at the limits of its settings: what is recorded, what counts, and what the user is told.

use std::fs;
use std::path::Path;

use pixir::scripted::Reply;
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::undo_git::{file_name, git, repository};

fn configure(env: &TestEnv, settings: &Value) {
    let folder = env.home().join(".pixir");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.json"), settings.to_string()).unwrap();
}

fn bash(command: &str) -> Reply {
    Reply::calls("bash", json!({ "command": command }))
}

/// The size of all files below a folder.
fn folder_bytes(folder: &Path) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let stat = entry.metadata().unwrap();
        bytes += if stat.is_dir() { folder_bytes(&entry.path()) } else { stat.len() };
    }
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_stays_within_its_limit_when_each_command_changes_few_files() {
    let rewrite = "for i in $(seq 40); do head -c 10000 /dev/urandom > file$i; done";
    let replies = (0..6).map(|number| bash(&format!("{rewrite}; echo {number}")));
    let replies = replies.chain([Reply::says("done")]);
    let env = TestEnv::with_replies(replies).await;
    configure(&env, &json!({"undo": {"max_bytes": 1_000_000}}));
    let ran = env.run_pixir(&["rewrite them"]).assert_exit_code(0);
    let stored = folder_bytes(&env.workspace().join(".pixir/snapshots"));
    // The list of the files is not a content, and is stored in any case.
    assert!((400_000..1_050_000).contains(&stored), "{stored} bytes");
    assert!(ran.err.contains("undo.max_bytes"), "{}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn contents_that_a_segment_has_do_not_count_again_when_few_files_are_touched() {
    let env =
        TestEnv::with_replies([bash("true"), bash("touch a/*; rm c/file2"), Reply::says("done")])
            .await;
    repository(&env.workspace(), 90);
    git(&env.workspace(), &["gc", "-q"]);
    let large = "a line of a large file\n".repeat(4000);
    env.write("a/large", &large);
    git(&env.workspace(), &["add", "-A"]);
    git(&env.workspace(), &["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "3"]);
    configure(&env, &json!({"undo": {"max_bytes": 50_000}}));
    env.run_pixir(&["touch them"]).assert_exit_code(0);
    env.run_pixir(&["undo", "--yes", "--force"]).assert_exit_code(0);
    assert!(env.workspace().join("c/file2").exists());
    assert_eq!(env.read("a/large"), large);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ignored_file_that_a_tool_writes_does_not_make_the_files_in_git_count() {
    let env = TestEnv::with_replies([
        bash("true"),
        Reply::calls("write", json!({"path": "ignored", "content": "new\n"})),
        bash(&format!("rm {}", file_name(0))),
        Reply::says("done"),
    ])
    .await;
    repository(&env.workspace(), 200);
    git(&env.workspace(), &["gc", "-q"]);
    configure(&env, &json!({"undo": {"max_files": 100}}));
    let before = env.read(&file_name(0));
    let ran = env.run_pixir(&["remove it"]).assert_exit_code(0);
    assert!(!ran.err.contains("undo covers only"), "{}", ran.err);
    env.run_pixir(&["undo", "--yes", "--force"]).assert_exit_code(0);
    assert_eq!(env.read(&file_name(0)), before);
    assert!(!env.workspace().join("ignored").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn undo_of_a_turn_says_that_recording_was_off() {
    let env = TestEnv::with_replies([
        Reply::says("no call"),
        bash("rm one"),
        Reply::calls("write", json!({"path": "two", "content": "new\n"})),
        Reply::says("done"),
    ])
    .await;
    env.write("one", "one\n");
    configure(&env, &json!({"undo": {"enabled": false}}));
    env.run_pixir(&["hello"]).assert_exit_code(0);
    env.run_pixir(&["resume", "--last", "change them"]).assert_exit_code(0);
    // The setting of the Turn counts, not that of the undo.
    configure(&env, &json!({}));
    let undone = env.run_pixir(&["undo", "--yes"]).assert_exit_code(0);
    assert!(undone.out.contains("undo.enabled"), "{}", undone.out);
    assert_eq!(env.read("two"), "new\n");
    let undone = env.run_pixir(&["undo", "--yes"]).assert_exit_code(0);
    assert!(!undone.out.contains("undo.enabled"), "{}", undone.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reason_is_said_once_in_a_session_also_after_it_was_resumed() {
    let env = TestEnv::with_replies([
        bash("true"),
        Reply::says("done"),
        bash("true"),
        Reply::says("done again"),
    ])
    .await;
    for number in 0..20 {
        env.write(&format!("file{number}"), "content\n");
    }
    configure(&env, &json!({"undo": {"max_files": 10}}));
    let first = env.run_pixir(&["run a command"]).assert_exit_code(0);
    assert!(first.err.contains("undo.max_files"), "{}", first.err);
    let second = env.run_pixir(&["resume", "--last", "go on"]).assert_exit_code(0);
    assert!(!second.err.contains("undo.max_files"), "{}", second.err);
}

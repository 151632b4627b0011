//! Evidence: commands that read a Session in any state of its Log, and change nothing.

/// Damaged Logs under every command.
mod damaged;
/// `pixir diagnose`.
mod diagnose;
/// `pixir export`.
mod export;
/// `pixir gc`.
mod gc;
/// `pixir inspect-replay`.
mod replay;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use serde_json::json;

use crate::support::TestEnv;
use crate::support::test_env::newest_log;

/// An environment with a Session of three Turns: one with tools, one that failed, one that was answered.
async fn new_test_env() -> (TestEnv, String) {
    let env = TestEnv::with_script(ModelScript::answering(reply)).await;
    env.write("poem.txt", "roses are red\nviolets are blue\n");
    env.run_pixir(&["work on it"]).assert_exit_code(0);
    env.run_pixir(&["resume", "--last", "fail"]).assert_exit_code(1);
    env.run_pixir(&["resume", "--last", "answer"]).assert_exit_code(0);
    let id = newest_log(&env.workspace()).file_stem().unwrap().to_str().unwrap().to_owned();
    (env, id)
}

fn reply(request: &ReceivedRequest) -> Reply {
    let asked = request.user_texts().last().copied().unwrap_or_default().to_owned();
    let outputs = request.outputs().len();
    match (asked.as_str(), outputs) {
        ("work on it", 0) => Reply::new()
            .reasoning("I look first")
            .commentary("Let me look.")
            .call("read", json!({"path": "poem.txt"}))
            .call("bash", json!({"command": "printf 'one\\n```\\ntwo\\n'; exit 3"})),
        ("work on it", 2) => Reply::calls(
            "edit",
            json!({"path": "poem.txt", "edits": [{"old_string": "red", "new_string": "green"}]}),
        ),
        ("fail", _) => Reply::status(400, r#"{"error":{"message":"no such thing","code":"odd"}}"#),
        _ => Reply::says("It is **done**.\n\n```rust\nfn main() {}\n```"),
    }
}

/// Content, mode and modification time of every file below a folder.
fn state(folder: &Path) -> BTreeMap<PathBuf, (u32, i64, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(path) = waiting.pop() {
        let facts = fs::symlink_metadata(&path).unwrap();
        let content = if facts.is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else {
            fs::read(&path).unwrap_or_default()
        };
        found.insert(path, (facts.mode(), facts.mtime(), facts.mtime_nsec(), content));
    }
    found
}

fn log_of(env: &TestEnv, id: &str) -> PathBuf {
    env.workspace().join(format!(".pixir/sessions/{id}.ndjson"))
}

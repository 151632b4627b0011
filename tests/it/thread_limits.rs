//! Limits on processes and threads: a run ends with an answer or a clear error, never with a panic.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use pixir::scripted::{ModelScript, Reply};
use serde_json::json;

use crate::support::BinaryEnv;
use crate::support::binary_env::{ProcessOutput, RunningProcess};
use crate::support::test_env::{PIXIR, log_files};
use crate::support::torture;

/// A user id of no other test, because the limit counts all processes of a user.
fn lonely_user() -> u32 {
    61_000 + std::process::id() % 4000
}

fn give_away(path: &Path, user: u32) {
    std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
    for entry in fs::read_dir(path).into_iter().flatten() {
        give_away(&entry.unwrap().path(), user);
    }
}

/// Runs the binary as a user with a limit on processes and threads.
fn run_limited(env: &BinaryEnv, user: u32, args: &[&str], limit: u64) -> ProcessOutput {
    let mut command = Command::new("bash");
    command.args(["-c", &format!(r#"ulimit -u {limit} && exec "$@""#), "bash", PIXIR]).args(args);
    env.configure_command(&mut command);
    RunningProcess::start(command.uid(user).gid(user)).end()
}

fn search_and_run() -> ModelScript {
    ModelScript::answering(|request| match request.outputs().len() {
        0 => Reply::new()
            .call("grep", json!({"pattern": "needle"}))
            .call("glob", json!({"pattern": "**/*.txt"}))
            .call("list", json!({"path": "."})),
        1..4 => Reply::calls("bash", json!({"command": "echo ran"})),
        _ => Reply::says("All done."),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_gets_hardly_a_thread_ends_without_a_panic() {
    let user = lonely_user();
    let can_run = Command::new("test").args(["-x", PIXIR]).uid(user).output();
    if !can_run.is_ok_and(|output| output.status.success()) {
        torture::print_summary("skipped: another user cannot run the program where it was built");
        return;
    }
    let env = BinaryEnv::new(BinaryEnv::new_mark(), search_and_run()).await;
    for folder in 0..20 {
        let folder = env.workspace().join(format!("folder{folder}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("a.txt"), "a needle\n").unwrap();
    }
    give_away(env.workspace().parent().unwrap(), user);
    tokio::task::block_in_place(|| {
        let mut answered = 0;
        for limit in [1, 2, 3, 4, 5, 6, 8, 12, 500] {
            let ended = run_limited(&env, user, &["begin now"], limit);
            assert!(!ended.stderr.contains("panicked"), "{limit}: {ended:?}");
            match ended.status.code() {
                Some(0) => {
                    answered += 1;
                    assert_eq!(ended.stdout, "All done.\n", "{limit}: {ended:?}");
                }
                Some(1) => assert!(ended.stderr.contains("thread"), "{limit}: {ended:?}"),
                _ => panic!("{limit}: {ended:?}"),
            }
            assert!(limit < 8 || ended.status.success(), "{limit}: {ended:?}");
        }
        assert_eq!(log_files(&env.workspace()).len(), answered, "no Session without its Turn");
        run_limited(&env, user, &["verify", "--all"], 500).expect_code(0);
        let ended = run_limited(&env, user, &["--json", "begin now"], 1);
        let envelope: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(envelope["ok"], false);
        assert!(envelope["error"]["message"].as_str().unwrap().contains("thread"), "{envelope}");
    });
}

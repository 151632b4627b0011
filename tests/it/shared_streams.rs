//! Streams shared by several processes: status flags set by one process do not disturb another.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use pixir::SessionStatus;
use pixir::scripted::{ModelScript, Reply};
use serde_json::json;

use crate::support::acp_client::AcpClient;
use crate::support::binary_env::{RunningProcess, wait_for};
use crate::support::test_env::DEADLINE;
use crate::support::{BinaryEnv, TestEnv};

/// Python script that makes shared standard streams non-blocking, as `node` does, and executes the program.
const NON_BLOCKING: &str =
    r#"python3 -c 'import os; os.set_blocking(0, False); os.set_blocking(1, False)' && exec "$@""#;

/// Whether the line of `/proc/self/fdinfo` has `O_NONBLOCK` or `O_APPEND`.
fn is_changed(output: &str) -> bool {
    let flags = output.lines().find_map(|line| line.strip_prefix("flags:")).expect(output);
    let flags = u32::from_str_radix(flags.trim(), 8).unwrap();
    let changed = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::APPEND;
    flags & changed.bits() != 0
}

#[tokio::test(flavor = "multi_thread")]
async fn flags_that_a_command_sets_reach_neither_the_next_nor_its_own_errors() {
    let set = "python3 -c 'import fcntl, os; \
               fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND)'";
    let env = TestEnv::with_replies([
        Reply::calls(
            "bash",
            json!({"command": format!("{set} && grep flags /proc/self/fdinfo/2")}),
        ),
        Reply::calls("bash", json!({"command": "grep flags /proc/self/fdinfo/1"})),
        Reply::calls("bash", json!({"command": "grep flags /proc/self/fdinfo/2"})),
        Reply::calls("bash", json!({"command": "echo 1; echo 2 >&2; echo 3; echo 4 >/dev/stderr"})),
        Reply::says("done"),
    ])
    .await;
    let (_, status) = env.run_turn("go").await;
    assert_eq!(status, SessionStatus::Done);
    let requests = env.requests();
    let outputs = requests.last().unwrap().outputs();
    for output in &outputs[..3] {
        assert!(!is_changed(output), "{outputs:?}");
    }
    assert!(outputs[3].contains("1\n2\n3\n4"), "the order is kept: {}", outputs[3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standard_input_that_is_non_blocking_is_read_to_its_end() {
    let script =
        ModelScript::answering(|request| Reply::says(request.user_texts().last().unwrap()));
    let binary_env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    tokio::task::block_in_place(|| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", NON_BLOCKING, "sh"]).arg(binary_env.program()).arg("-");
        binary_env.configure_command(&mut command);
        let mut running = RunningProcess::start(command.stdin(Stdio::piped()));
        let mut prompt = running.child.stdin.take().unwrap();
        prompt.write_all(b"the first half").unwrap();
        let is_drained = || rustix::io::ioctl_fionread(&prompt).unwrap() == 0;
        assert!(wait_for(DEADLINE, is_drained, |is| *is), "it is read");
        let patience = Duration::from_millis(500);
        let ended = wait_for(patience, || running.child.try_wait().unwrap(), Option::is_some);
        assert_eq!(ended, None, "an empty pipe is not the end");
        prompt.write_all(b" and the second").unwrap();
        drop(prompt);
        let ended = running.end();
        ended.expect_code(0);
        assert_eq!(ended.stdout, "the first half and the second\n");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_behind_a_wrapper_that_made_its_streams_non_blocking_works() {
    // More than a pipe holds.
    let long = "x".repeat(300_000);
    let prompt = long.clone();
    let binary_env = BinaryEnv::new(
        BinaryEnv::new_mark(),
        ModelScript::answering(move |_| Reply::says(&prompt)),
    )
    .await;
    tokio::task::block_in_place(|| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", NON_BLOCKING, "sh"]).arg(binary_env.program()).arg("acp");
        binary_env.configure_command(&mut command);
        let mut client = AcpClient::spawn(&mut command);
        client.initialize(json!({}));
        let session = client.new_session(&binary_env.workspace());
        assert_eq!(client.run_prompt(&session, "go").unwrap()["stopReason"], "end_turn");
        let updates = client.updates();
        let text = crate::support::acp_client::joined_text(&updates, "agent_message_chunk");
        assert_eq!(text.len(), long.len());
        assert!(client.close_and_wait().0.success());
    });
}

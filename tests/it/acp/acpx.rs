//! npm `acpx` as a client: a third-party program, run as a user would run it.
//!
//! `.ci/run` puts it, and the Node it needs, into a folder of the build. Without that folder the
//! tests are skipped with a message, except in CI.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::conformance::scripted_model::{self, script_prompt};
use crate::mcp::server::arguments;
use crate::support::binary_env::{BinaryEnv, wait_for};
use crate::support::sign_in_env::{RunOutput, run_command};
use crate::support::test_env::{DEADLINE, newest_log};
use crate::support::torture;

/// Path at which `.ci/run` installs npm packages.
fn modules() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("npm/node_modules")
}

/// The `acpx` client, if it is installed on this machine.
struct Acpx {
    env: BinaryEnv,
}

impl Acpx {
    async fn new(test_name: &str) -> Option<Self> {
        if !modules().join("acpx").is_dir() || !modules().join("node/bin/node").is_file() {
            let is_ci = std::env::var_os("CI").is_some_and(|value| !value.is_empty());
            assert!(!is_ci, "acpx is not installed; .ci/run installs it");
            torture::print_summary(&format!(
                "acpx, {test_name}: skipped, it is not installed (.ci/run does that)"
            ));
            return None;
        }
        Some(Self { env: BinaryEnv::new(BinaryEnv::new_mark(), scripted_model::script()).await })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(modules().join("node/bin/node"));
        command.arg(modules().join("acpx/dist/cli.js"));
        command.arg("--agent").arg(format!("{} acp", self.env.program().display()));
        command.arg("--cwd").arg(self.env.workspace()).args(["--ttl", "1"]).args(args);
        self.env.configure_command(&mut command);
        command
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> RunOutput {
        // The waiting process of `acpx` may be about to exit; `acpx` then asks for another call.
        for _ in 0..20 {
            let run = run_command(&mut self.command(args));
            if !run.out.contains("is shutting down") {
                return run.assert_exit_code(0);
            }
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
        run_command(&mut self.command(args)).assert_exit_code(0)
    }

    /// Starts `acpx` without waiting for its end.
    fn start(&self, args: &[&str]) -> std::process::Child {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn work(&self) -> PathBuf {
        self.env.workspace()
    }
}

/// The stop reasons in the dumped protocol lines, each of which is JSON.
fn reasons(out: &str) -> Vec<String> {
    let lines = out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| Some(line["result"]["stopReason"].as_str()?.to_owned())).collect()
}

fn write(name: &str) -> String {
    format!(r#"call write {{"path":"{name}","content":"made\n"}}"#)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_with_tools_is_allowed_or_denied() {
    let Some(acpx) = Acpx::new("one prompt").await else { return };
    let prompt = script_prompt("go", &[&write("made.txt"), "bash cat made.txt", "echo"]);
    let run = acpx.run(&["--approve-all", "--format", "json", "--json-strict", "exec", &prompt]);
    assert_eq!(reasons(&run.out), ["end_turn"], "{}", run.out);
    assert!(acpx.work().join("made.txt").exists());
    let run = acpx.run(&["--approve-all", "exec", "hello » say words for acpx"]);
    assert!(run.out.contains("words for acpx"), "{}", run.out);
    // A denial is not a failure of Pixir; the file does not exist.
    let prompt = script_prompt("go", &[&write("denied.txt"), "say denied then"]);
    let denied = run_command(&mut acpx.command(&["--deny-all", "exec", &prompt]));
    assert!(!acpx.work().join("denied.txt").exists(), "{}", denied.out);
    acpx.env.assert_nothing_survives();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_made_resumed_listed_and_closed_by_many_processes() {
    let Some(acpx) = Acpx::new("a Session").await else { return };
    acpx.run(&["sessions", "new"]);
    // The prompt comes from another process, which resumes the Session.
    let run = acpx.run(&["--approve-all", "prompt", "the word is rhubarb » say noted"]);
    assert!(run.out.contains("noted"), "{}", run.out);
    let log = newest_log(&acpx.work());
    let id = log.file_stem().unwrap().to_str().unwrap().to_owned();
    let listed = acpx.run(&["sessions", "list"]);
    assert!(listed.out.contains(&id), "{}", listed.out);
    let run = acpx.run(&["--approve-all", "prompt", "which word » repeat"]);
    assert!(run.out.contains("rhubarb"), "{}", run.out);
    acpx.run(&["sessions", "close"]);
    acpx.env.assert_nothing_survives();
    // The Session is resumed by its id under another name.
    acpx.run(&["sessions", "new", "--name", "again", "--resume-session", &id]);
    let run = acpx.run(&["--approve-all", "prompt", "--session", "again", "which word » repeat"]);
    assert!(run.out.contains("rhubarb"), "{}", run.out);
    acpx.run(&["sessions", "close", "again"]);
    acpx.env.assert_nothing_survives();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_cancelled_while_it_runs() {
    let Some(acpx) = Acpx::new("cancel").await else { return };
    acpx.run(&["sessions", "new"]);
    let command = format!("bash touch begun; sleep 600; echo {}", acpx.env.mark);
    let mut prompting = acpx.start(&["--approve-all", "prompt", &script_prompt("go", &[&command])]);
    assert!(wait_for(DEADLINE, || acpx.work().join("begun").exists(), |there| *there));
    acpx.run(&["cancel"]);
    let ended = wait_for(DEADLINE, || prompting.try_wait().unwrap(), Option::is_some);
    assert!(ended.is_some(), "the prompt ends when it is cancelled");
    let last = || {
        let text = std::fs::read_to_string(newest_log(&acpx.work())).unwrap();
        let line = text.lines().last().unwrap().to_owned();
        serde_json::from_str::<Value>(&line).unwrap()["data"]["terminal_status"].clone()
    };
    assert_eq!(wait_for(Duration::from_secs(10), last, |end| end == "interrupted"), "interrupted");
    acpx.run(&["sessions", "close"]);
    acpx.env.assert_nothing_survives();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_of_a_server_that_it_hands_over_is_called() {
    let Some(acpx) = Acpx::new("MCP").await else { return };
    acpx.env.configure(&json!({"durability": "none", "mcp": {"wait_ms": 60_000}}));
    let env = json!([{"name": "STORY_SERVER", "value": "{}"}]);
    let server = json!({"name": "story", "command": "/bin/sh", "args": arguments(&acpx.env.mark), "env": env});
    let settings = acpx.work().join("mcp.json");
    std::fs::write(&settings, json!({ "mcpServers": [server] }).to_string()).unwrap();
    let prompt = script_prompt("go", &[r#"call mcp__story__echo {"text":"hello"}"#, "echo"]);
    let settings = settings.to_str().unwrap();
    let run = acpx.run(&["--approve-all", "--mcp-config", settings, "exec", &prompt]);
    assert!(run.out.contains("you said hello"), "{}", run.out);
    acpx.env.assert_nothing_survives();
}

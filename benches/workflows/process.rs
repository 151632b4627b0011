//! The measured program: its folders, its output and its memory.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use crate::model::Model;

/// A home folder, a Workspace and a model.
pub struct BenchEnv {
    place: tempfile::TempDir,
    model: Model,
}

/// The output of a run.
pub struct RunOutput {
    pub envelope: Value,
    /// Peak memory in bytes.
    pub peak: u64,
    pub stderr: String,
}

impl BenchEnv {
    /// An environment in which `width` children may run at once.
    pub fn new(width: usize) -> Self {
        let env = Self { place: tempfile::tempdir().unwrap(), model: Model::start() };
        std::fs::create_dir_all(env.home().join(".pixir")).unwrap();
        std::fs::create_dir_all(env.work()).unwrap();
        let limits = json!({ "max_running": width, "max_in_process": width });
        let config = json!({ "durability": "none", "subagents": limits });
        std::fs::write(env.home().join(".pixir/config.json"), config.to_string()).unwrap();
        env
    }

    fn home(&self) -> PathBuf {
        self.place.path().join("home")
    }

    pub fn work(&self) -> PathBuf {
        self.place.path().join("work")
    }

    pub fn write(&self, name: &str, value: &Value) {
        std::fs::write(self.work().join(name), value.to_string()).unwrap();
    }

    /// Runs Pixir to its end.
    pub fn pixir(&self, args: &[&str]) -> RunOutput {
        let mut child = self.command(args).stdin(Stdio::null()).spawn().unwrap();
        // Both streams are read while it runs: an envelope of a thousand steps is larger than a pipe.
        let out = read_in_thread(child.stdout.take().unwrap());
        let err = read_in_thread(child.stderr.take().unwrap());
        let mut peak = 0;
        while child.try_wait().unwrap().is_none() {
            peak = peak.max(memory(child.id(), "VmHWM:"));
            std::thread::sleep(Duration::from_millis(5));
        }
        let envelope = serde_json::from_str(&out.join().unwrap()).unwrap_or_default();
        RunOutput { envelope, peak, stderr: err.join().unwrap() }
    }

    fn command(&self, args: &[&str]) -> Command {
        // Each child opens a Log and a connection; some shells allow too few open files.
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", r#"ulimit -n 65536 2>/dev/null || ulimit -n 4096; exec "$@""#, "sh"])
            .arg(env!("CARGO_BIN_EXE_pixir"))
            .args(args)
            .current_dir(self.work())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.home())
            .env("OPENAI_API_KEY", "sk-bench")
            .env("OPENAI_BASE_URL", &self.model.url)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// Reads a stream to its end in a thread.
fn read_in_thread(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        from.read_to_string(&mut text).unwrap();
        text
    })
}

/// The memory in bytes of a process with one idle Session, as an editor opens it.
pub fn idle_session(env: &BenchEnv) -> u64 {
    let mut child =
        env.command(&["acp"]).stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let questions = [
        ("initialize", json!({ "protocolVersion": 1 })),
        ("session/new", json!({ "cwd": env.work(), "mcpServers": [] })),
    ];
    for (id, (method, params)) in questions.into_iter().enumerate() {
        let question = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        stdin.write_all(format!("{question}\n").as_bytes()).unwrap();
        loop {
            let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            if line["id"] == id {
                assert!(line.get("result").is_some(), "{line}");
                break;
            }
        }
    }
    // A Session is announced a moment after it is created.
    std::thread::sleep(Duration::from_millis(500));
    let held = memory(child.id(), "VmRSS:");
    drop(stdin);
    lines.for_each(drop);
    child.wait().unwrap();
    held
}

/// A memory field of `/proc/PID/status`, in bytes; 0 when the process has ended.
fn memory(pid: u32, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let word = line.and_then(|line| line.split_whitespace().next());
    word.and_then(|word| word.parse::<u64>().ok()).unwrap_or_default() * 1024
}

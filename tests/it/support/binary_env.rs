//! Test environment for the real binary: a home folder, a Workspace, a scripted model, and a mark by which all its
//! processes are found.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pixir::SessionId;
use pixir::scripted::{ModelScript, ScriptedServer};
use rustix::process::{Resource, Rlimit, prlimit};
use serde_json::{Value, json};

use super::leaks;
use super::test_env::{DEADLINE, PIXIR, log_files};

/// The words of a command line that kill the program when it truncates a partly written line.
const KILL_AT_TRUNCATION: &[&str] = &[
    "strace",
    "-f",
    "-qq",
    "-o",
    "/dev/null",
    "-e",
    "trace=ftruncate",
    "-e",
    "inject=ftruncate:signal=KILL",
    "--",
];

/// Time limit for processes to end.
const GONE_WITHIN: Duration = Duration::from_mins(1);

/// The folders, binary and model of one run; removed on drop.
pub struct BinaryEnv {
    folder: tempfile::TempDir,
    /// Folder of the binary, with the mark in its name, so that helpers carry the mark too.
    binary: tempfile::TempDir,
    pub server: ScriptedServer,
    pub mark: String,
}

impl Drop for BinaryEnv {
    fn drop(&mut self) {
        leaks::check_folder(self.folder.path(), &leaks::planted_secrets(), &[]);
    }
}

/// The effect of a write that reaches the limit on file size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtSizeLimit {
    Kill,
    Refuse,
}

/// Exit status and output of a run.
#[derive(Debug)]
pub struct ProcessOutput {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl ProcessOutput {
    #[track_caller]
    pub fn expect_code(&self, code: i32) -> &Self {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        self
    }
}

impl BinaryEnv {
    /// A mark for the next environment; its script may need it.
    pub fn new_mark() -> String {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        format!("env-{}-{}-", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
    }

    /// An environment whose model follows a script.
    pub async fn new(mark: String, script: ModelScript) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["work", "home/.pixir"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        // In the build's own folder, where a hard link to the binary is possible.
        let binary =
            tempfile::Builder::new().prefix(&mark).tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let program = binary.path().join("pixir");
        if fs::hard_link(PIXIR, &program).is_err() {
            fs::copy(PIXIR, &program).unwrap();
        }
        let server = ScriptedServer::start(script).await.unwrap();
        leaks::start_process_scan();
        let env = Self { folder, binary, server, mark };
        env.configure(&json!({"durability": "none"}));
        env
    }

    /// Writes the user's settings: the given ones, and those that make tests fast.
    pub fn configure(&self, settings: &Value) {
        let mut config = json!({"retry": {"base_ms": 1, "cap_ms": 4}, "bash": {"drain_ms": 20}});
        for (name, value) in settings.as_object().unwrap() {
            config[name] = value.clone();
        }
        let path = self.folder.path().join("home/.pixir/config.json");
        fs::write(path, config.to_string()).unwrap();
    }

    pub fn workspace(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// The user's home folder.
    pub fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    pub fn program(&self) -> PathBuf {
        self.binary.path().join("pixir")
    }

    /// The binary with these arguments, in the Workspace, with an environment of its own.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        // The trace is written so that it is searched for secrets too.
        command.arg("--log-file").arg(self.folder.path().join("trace.log")).args(args);
        self.configure_command(&mut command);
        command.env("PIXIR_LOG", "trace");
        command
    }

    /// Sets the folders, environment and pipes of a command.
    pub fn configure_command(&self, command: &mut Command) {
        command
            .current_dir(self.workspace())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.folder.path().join("home"))
            .env("OPENAI_API_KEY", "sk-test-of-binary-env")
            .env("OPENAI_BASE_URL", self.server.base_url())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
    }

    /// Starts the binary under a limit on the size of files that it may write: the kernel writes
    /// a part of a line and then refuses. With `AtSizeLimit::Kill`, `strace` kills the program
    /// before it truncates the part.
    pub fn start_limited(
        &self,
        args: &[&str],
        limit: u64,
        limit_action: AtSizeLimit,
    ) -> RunningProcess {
        let limits = Rlimit { current: Some(limit), maximum: Some(limit) };
        let killer: &[&str] = match limit_action {
            AtSizeLimit::Kill => KILL_AT_TRUNCATION,
            AtSizeLimit::Refuse => &[],
        };
        self.start_prepared(args, killer, |running| {
            prlimit(Some(running.pid()), Resource::Fsize, limits).unwrap();
        })
    }

    /// Starts the binary, after the words of a `wrapper` program if there are any, once `prepare`
    /// was called with its process.
    pub fn start_prepared(
        &self,
        args: &[&str],
        wrapper: &[&str],
        prepare: impl FnOnce(&RunningProcess),
    ) -> RunningProcess {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", r#"read go && exec "$@" </dev/null"#, "sh"]).args(wrapper);
        command.arg(self.program()).args(args);
        self.configure_command(&mut command);
        let mut running = RunningProcess::start(command.stdin(Stdio::piped()));
        prepare(&running);
        running.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        running
    }

    /// Starts the binary.
    pub fn start(&self, args: &[&str]) -> RunningProcess {
        RunningProcess::start(&mut self.command(args))
    }

    /// Runs the binary to its end.
    pub fn run(&self, args: &[&str]) -> ProcessOutput {
        self.start(args).end()
    }

    /// Runs the binary to its end, and passes each line of its stdout to `show`.
    pub fn run_watched(&self, args: &[&str], mut show: impl FnMut(&str)) -> ProcessOutput {
        let mut child = self.command(args).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let stderr = child.stderr.take().map(collect);
        let mut running = RunningProcess { child, stdout: None, stderr };
        let mut text = String::new();
        for line in lines.map_while(Result::ok) {
            show(&line);
            text.extend([line.as_str(), "\n"]);
        }
        running.stdout = Some(std::thread::spawn(|| text));
        running.end()
    }

    /// The one Session of the Workspace, if there is one.
    pub fn session(&self) -> Option<(SessionId, PathBuf)> {
        let path = log_files(&self.workspace()).pop()?;
        let id = path.file_stem().unwrap().to_str().unwrap();
        Some((SessionId::parse(id).unwrap(), path))
    }

    /// The Events of the one Session that can be read.
    pub fn events(&self) -> Vec<Value> {
        let (_, path) = self.session().unwrap();
        let bytes = fs::read(path).unwrap();
        bytes.split(|byte| *byte == b'\n').filter_map(|l| serde_json::from_slice(l).ok()).collect()
    }

    /// The running processes of this environment: commands by their mark, Pixir's own by their program.
    pub fn survivors(&self) -> Vec<String> {
        let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        processes
            .filter(|process| {
                process.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok())
            })
            .filter_map(|process| {
                let line = fs::read(process.path().join("cmdline")).ok()?;
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                let program = fs::read_link(process.path().join("exe")).unwrap_or_default();
                let is_ours =
                    line.contains(&self.mark) || program.to_string_lossy().contains(&self.mark);
                is_ours.then(|| format!("{} {line}", process.file_name().display()))
            })
            .collect()
    }

    #[track_caller]
    pub fn assert_nothing_survives(&self) {
        let left = wait_for(GONE_WITHIN, || self.survivors(), Vec::is_empty);
        assert_eq!(left, Vec::<String>::new());
    }
}

/// A running binary, and its output so far.
pub struct RunningProcess {
    pub child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
}

impl RunningProcess {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().map(collect);
        let stderr = child.stderr.take().map(collect);
        Self { child, stdout, stderr }
    }

    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for the end of the process.
    pub fn end(mut self) -> ProcessOutput {
        let status = wait_for(DEADLINE, || self.child.try_wait().unwrap(), Option::is_some);
        let status = status.expect("the run ends in time");
        let text = |pipe: Option<JoinHandle<String>>| pipe.unwrap().join().unwrap();
        let stdout = text(self.stdout.take());
        let stderr = text(self.stderr.take());
        leaks::check_stream(&stdout);
        leaks::check_stream(&stderr);
        ProcessOutput { status, stdout, stderr }
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        // The process is still running only if the test failed.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn collect(mut pipe: impl std::io::Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).ok();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Calls `look` until its value is accepted or the time is over; gives the last value.
pub fn wait_for<T>(
    patience: Duration,
    mut look: impl FnMut() -> T,
    wished: impl Fn(&T) -> bool,
) -> T {
    let end = Instant::now() + patience;
    loop {
        let seen = look();
        if wished(&seen) || Instant::now() > end {
            return seen;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Copies a folder with everything in it.
pub fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

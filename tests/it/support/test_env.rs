//! Test environment: an empty home folder, a Workspace, a scripted model on loopback, and the real Harness.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use pixir::scripted::{ModelScript, ReceivedRequest, Reply, ScriptedServer};
use pixir::{
    Config, Conversation, Credential, Event, Harness, HarnessOptions, Home, ListenFrom,
    ListenerItem, LogDurability, PermissionMode, ProcessLimits, SessionId, SessionStatus,
    SessionTarget, StartOptions, UserInput,
};

use super::sign_in_env::{RunOutput, run_command};
use super::{leaks, rendered_log};

/// The binary under test.
pub const PIXIR: &str = env!("CARGO_BIN_EXE_pixir");

/// Time limit of waits, which no test reaches.
pub const DEADLINE: Duration = Duration::from_mins(1);

/// The folders, model and settings of one test; removed on drop.
pub struct TestEnv {
    folder: tempfile::TempDir,
    pub server: ScriptedServer,
    pub config: Config,
    pub can_ask: bool,
    /// MCP servers that an editor would pass.
    pub mcp_servers: Vec<pixir::McpServer>,
    /// Files of the Workspace that hold a planted secret on purpose.
    pub files_with_secrets: Vec<&'static str>,
}

impl Drop for TestEnv {
    fn drop(&mut self) {
        let may_hold: Vec<PathBuf> =
            self.files_with_secrets.iter().map(|name| self.workspace().join(name)).collect();
        leaks::check_folder(self.folder.path(), &leaks::planted_secrets(), &may_hold);
    }
}

impl TestEnv {
    /// An environment whose model gives these replies, one per request.
    pub async fn with_replies(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self::with_script(ModelScript::new(replies)).await
    }

    /// An environment whose model follows a script.
    pub async fn with_script(script: ModelScript) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("work")).unwrap();
        let mut config = Config::new(Home::new(folder.path().join("home")));
        config.durability = LogDurability::None;
        config.retry.base = Duration::from_millis(1);
        config.retry.cap = Duration::from_millis(4);
        config.stream.idle = Duration::from_secs(20);
        let server = ScriptedServer::start(script).await.unwrap();
        leaks::start_process_scan();
        Self {
            folder,
            server,
            config,
            can_ask: false,
            mcp_servers: Vec::new(),
            files_with_secrets: Vec::new(),
        }
    }

    pub fn in_ask_mode(mut self) -> Self {
        self.config.permission_mode = PermissionMode::Ask;
        self.can_ask = true;
        self
    }

    pub fn workspace(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    pub fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.workspace().join(path), content).unwrap();
    }

    /// Runs the binary in the Workspace, without a terminal.
    pub fn run_pixir(&self, args: &[&str]) -> RunOutput {
        let run = run_command(&mut self.command(args));
        leaks::check_stream(&format!("{}{}", run.out, run.err));
        run
    }

    /// Runs the binary and kills it once `is_here` is true.
    pub fn run_pixir_until_killed(&self, args: &[&str], is_here: impl Fn() -> bool) {
        let mut child = self.command(args).spawn().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_mins(1);
        while !is_here() {
            assert!(std::time::Instant::now() < deadline, "the state was never reached");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        leaks::check_stream(&String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
    }

    /// A command that runs the binary in the Workspace. The caller must check its output for leaks.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PIXIR);
        self.configure_command(command.args(args));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Sets the environment and the folder of a command.
    pub fn configure_command(&self, command: &mut Command) {
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.home())
            .env("OPENAI_BASE_URL", self.server.base_url())
            .env("OPENAI_API_KEY", "sk-test-of-test-env")
            .current_dir(self.workspace());
    }

    pub fn read(&self, path: &str) -> String {
        String::from_utf8(std::fs::read(self.workspace().join(path)).unwrap()).unwrap()
    }

    /// Writes a program into the folder that is first on the PATH of commands.
    pub fn install_program(&self, name: &str, script: &str) {
        let folder = self.programs_folder();
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.join(name), mode).unwrap();
    }

    fn programs_folder(&self) -> PathBuf {
        self.folder.path().join("planted")
    }

    pub fn harness(&self) -> Harness {
        self.harness_sharing(ProcessLimits::default())
    }

    /// A Harness that shares its limits with others of one process.
    pub fn harness_sharing(&self, limits: ProcessLimits) -> Harness {
        let mut path = std::env::var_os("PATH").unwrap();
        if self.programs_folder().exists() {
            path = [self.programs_folder().as_os_str(), &path].join(std::ffi::OsStr::new(":"));
        }
        let options = HarnessOptions {
            config: self.config.clone(),
            credential: Credential::new(Some("sk-test-of-test-env"), &self.server.base_url())
                .unwrap(),
            environment: vec![
                (OsString::from("PATH"), path),
                (OsString::from("HOME"), self.home().into()),
                (OsString::from("STORY_TOKEN"), "secret-of-test-env".into()),
            ],
            own_binary: PIXIR.into(),
        };
        Harness::open_with_limits(options, limits)
    }

    /// Starts a new Session of a Harness that the test keeps.
    pub async fn start_with(&self, harness: &Harness) -> Conversation {
        let workspace = self.workspace();
        let can_ask = self.can_ask;
        let mcp_servers = self.mcp_servers.clone();
        let start = StartOptions { workspace, session: SessionTarget::New, can_ask, mcp_servers };
        harness.start(start).await.unwrap()
    }

    pub async fn start(&self) -> Conversation {
        self.start_session(SessionTarget::New).await.unwrap()
    }

    pub async fn resume(&self, id: &SessionId) -> Conversation {
        self.start_session(SessionTarget::Resume(id.clone())).await.unwrap()
    }

    pub async fn start_session(
        &self,
        session: SessionTarget,
    ) -> Result<Conversation, pixir::HarnessError> {
        let workspace = self.workspace();
        self.harness()
            .start(StartOptions {
                workspace,
                session,
                can_ask: self.can_ask,
                mcp_servers: self.mcp_servers.clone(),
            })
            .await
    }

    /// Runs one Turn in a new Session.
    pub async fn run_turn(&self, text: &str) -> (Conversation, SessionStatus) {
        let conversation = self.start().await;
        let status = send_and_finish(&conversation, text).await;
        (conversation, status)
    }

    /// The Log of a Session as stable text.
    pub fn transcript(&self, conversation: &Conversation) -> String {
        rendered_log::render_log(conversation.log_path(), &self.workspace())
    }

    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.server.requests()
    }
}

/// Sends one input and waits for the Turn's end.
pub async fn send_and_finish(conversation: &Conversation, text: &str) -> SessionStatus {
    conversation.send(UserInput { text: text.to_owned() }).await.unwrap();
    wait_for_turn_end(conversation).await
}

pub async fn wait_for_turn_end(conversation: &Conversation) -> SessionStatus {
    tokio::time::timeout(DEADLINE, conversation.wait_until_idle())
        .await
        .expect("the Turn ends in time")
        .unwrap()
}

/// Listens until an Event satisfies `wanted`; gives all Events so far.
pub async fn listen_until(
    listener: &mut pixir::Listener,
    wanted: impl Fn(&Event) -> bool,
) -> Vec<std::sync::Arc<Event>> {
    let mut events = Vec::new();
    let listening = async {
        while let Some(news) = listener.next().await {
            if let ListenerItem::Event(event) = news {
                let found = wanted(&event);
                events.push(event);
                if found {
                    return;
                }
            }
        }
        panic!("the Session closed first");
    };
    tokio::time::timeout(DEADLINE, listening).await.expect("heard in time");
    events
}

/// A listener for all Events from now on.
pub fn subscribe_from_now(conversation: &Conversation) -> pixir::Listener {
    conversation.subscribe(ListenFrom::Now)
}

/// The Logs of a Workspace, sorted by name.
pub fn log_files(workspace: &Path) -> Vec<PathBuf> {
    let mut logs: Vec<PathBuf> = std::fs::read_dir(workspace.join(".pixir/sessions"))
        .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
        .unwrap_or_default();
    logs.retain(|path| path.extension().is_some_and(|extension| extension == "ndjson"));
    logs.sort();
    logs
}

/// The Log that was written last, by modification time, because ids of one second are in no order.
pub fn newest_log(workspace: &Path) -> PathBuf {
    let written = |path: &PathBuf| std::fs::metadata(path).unwrap().modified().unwrap();
    log_files(workspace).into_iter().max_by_key(written).unwrap()
}

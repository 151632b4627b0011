//! Test environment with sign-in: a home folder, a Workspace, an issuer, and a model that requires its tokens.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use pixir::scripted::{ModelScript, Reply, ScriptedIssuer, ScriptedServer};
use serde_json::Value;

use super::leaks;
use super::test_env::PIXIR;

/// A home folder, a Workspace, an issuer and a model that requires its tokens.
pub struct SignInEnv {
    folder: tempfile::TempDir,
    pub issuer: ScriptedIssuer,
    pub server: ScriptedServer,
}

/// Exit code and output of a run.
pub struct RunOutput {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl RunOutput {
    pub fn from_output(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self::new(output.status.code(), text(output.stdout), text(output.stderr))
    }

    pub fn new(code: Option<i32>, out: String, err: String) -> Self {
        leaks::check_and_keep_stream(&out);
        leaks::check_and_keep_stream(&err);
        Self { code, out, err }
    }

    #[track_caller]
    pub fn assert_exit_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.out, self.err);
        self
    }

    #[track_caller]
    pub fn envelope(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "one line: {}", self.out);
        serde_json::from_str(&self.out).unwrap()
    }
}

/// Checks that no token of the issuer is in any stream, or in any file but the token store.
impl Drop for SignInEnv {
    fn drop(&mut self) {
        let secrets = [self.issuer.issued_secrets(), leaks::planted_secrets()].concat();
        leaks::check_folder(self.folder.path(), &secrets, &[]);
    }
}

impl SignInEnv {
    pub async fn new() -> Self {
        leaks::start_process_scan();
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("work")).unwrap();
        let issuer = ScriptedIssuer::start().await.unwrap();
        let script = ModelScript::answering(|_| Reply::says("hello from the plan"));
        let server = ScriptedServer::start_with_issuer(script, &issuer).await.unwrap();
        Self { folder, issuer, server }
    }

    pub fn auth_file(&self) -> PathBuf {
        self.folder.path().join(".pixir/auth.json")
    }

    pub fn sign_in(&self, seconds: i64) {
        std::fs::create_dir_all(self.auth_file().parent().unwrap()).unwrap();
        std::fs::write(self.auth_file(), self.issuer.sign_in(seconds).to_string()).unwrap();
    }

    pub fn stored_tokens(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.auth_file()).unwrap()).unwrap()
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PIXIR);
        // The trace is written so that it is searched for secrets too.
        command.arg("--log-file").arg(self.folder.path().join("trace.log")).args(args);
        self.configure_command(&mut command);
        command
    }

    /// Sets the folders, environment and pipes of a command.
    pub fn configure_command(&self, command: &mut Command) {
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.folder.path())
            .env("PIXIR_AUTH_ISSUER", self.issuer.base_url())
            .env("PIXIR_CHATGPT_BASE_URL", self.server.chatgpt_url())
            .env("PIXIR_LOGIN_PORTS", "0")
            .env("PIXIR_LOGIN_PACE_MS", "5")
            .env("PIXIR_NO_BROWSER", "1")
            .env("PIXIR_DURABILITY", "none")
            .env("PIXIR_LOG", "trace")
            .env("PIXIR_RETRY_BASE_MS", "1")
            .current_dir(self.folder.path().join("work"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
    }

    pub fn run(&self, args: &[&str]) -> RunOutput {
        run_command(&mut self.command(args))
    }
}

#[must_use = "a run is looked at, or its exit code is"]
pub fn run_command(command: &mut Command) -> RunOutput {
    RunOutput::from_output(command.output().unwrap())
}

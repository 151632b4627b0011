//! Services: long-running programs that communicate over pipes, such as MCP servers.
//!
//! A service runs in a supervisor like a command, and all its processes are killed when the lifeline
//! closes. It has no slot, deadline or sandbox, because it is a program that the user configured, not
//! one that a model wrote.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::command::{CommandError, CommandExit, CommandRunner};
use super::environment::{find_on_path, is_program};
use super::lifeline::CommandPipes;
use super::running::{StatusReport, SupervisorProcess};
use crate::host::process::protocol::SupervisorRequest;

/// Time limit for children of a service after it has ended.
const DRAIN: Duration = Duration::from_millis(100);
/// Time limit for the last output of a service after it has ended.
const LAST_READ_TIMEOUT: Duration = Duration::from_millis(100);

/// The program of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceProgram {
    /// A name to look up on PATH, or a path.
    pub command: String,
    pub args: Vec<String>,
    pub directory: PathBuf,
    /// Variables added to the environment of commands; these take precedence.
    pub environment: Vec<(String, String)>,
}

/// A started service, with its standard input and standard error.
pub struct StartedService {
    pub service: Service,
    pub stdin: pipe::Sender,
    pub stderr: pipe::Receiver,
}

/// A running service. Dropping it kills all its processes.
pub struct Service {
    supervisor: SupervisorProcess,
    pipes: CommandPipes,
    report: StatusReport,
    /// Whether standard output is open.
    is_output_open: bool,
    has_ended: bool,
}

/// An event of a service.
#[derive(Debug)]
pub enum ServiceEvent {
    /// This many bytes of output were read.
    Output(usize),
    /// The service has ended, or could not be started.
    Ended(Result<CommandExit, CommandError>),
}

impl CommandRunner {
    /// Starts a service.
    pub async fn start_service(
        &self,
        program: &ServiceProgram,
    ) -> Result<StartedService, CommandError> {
        let mut environment = self.environment().to_vec();
        for (name, value) in &program.environment {
            environment.retain(|(own, _)| own != name.as_str());
            environment.push((name.into(), value.into()));
        }
        let found = find_program(&program.command, &environment, &program.directory)
            .ok_or_else(|| CommandError::ProgramNotFound(program.command.clone()))?;
        let request = SupervisorRequest {
            directory: program.directory.clone().into(),
            shell: "/bin/sh".into(),
            command: exec_command(&found, &program.args),
            drain: DRAIN,
            environment,
        };
        let frame = request.encode().map_err(|_| CommandError::InvalidCommand)?;
        let (stdin, errors, pipes) =
            CommandPipes::with_stdin_and_stderr().map_err(CommandError::StartSupervisor)?;
        let mut supervisor = self.start_supervisor(None)?;
        let sent = supervisor.lifeline.send_request(&frame, Some(&pipes)).await;
        sent.map_err(CommandError::StartSupervisor)?;
        let news = StatusReport::default();
        let service =
            Service { supervisor, pipes, report: news, is_output_open: true, has_ended: false };
        Ok(StartedService { service, stdin, stderr: errors })
    }
}

impl Service {
    /// Waits for output or for the end. Cancel-safe: no output is lost when the future is dropped.
    pub async fn next_event(&mut self, buffer: &mut BytesMut) -> ServiceEvent {
        loop {
            if self.has_ended {
                return self.read_rest(buffer).await;
            }
            let SupervisorProcess { output, status, .. } = &mut self.supervisor;
            tokio::select! {
                biased;
                read = output.read_buf(buffer), if self.is_output_open => match read {
                    Ok(count) if count > 0 => return ServiceEvent::Output(count),
                    // The exit status is reported on a status line.
                    _ => self.is_output_open = false,
                },
                line = status.next_line() => match line {
                    Ok(Some(line)) => self.apply_status_line(&line),
                    _ => self.has_ended = true,
                },
            }
        }
    }

    fn apply_status_line(&mut self, line: &str) {
        self.report.apply_line(line);
        if self.report.has_started() {
            self.pipes.close();
        }
        self.has_ended = self.report.is_decided();
    }

    /// Reads the rest of the output; after that, returns the exit status.
    async fn read_rest(&mut self, buffer: &mut BytesMut) -> ServiceEvent {
        let rest = self.supervisor.output.read_buf(buffer);
        match timeout(LAST_READ_TIMEOUT, rest).await {
            Ok(Ok(count)) if count > 0 => ServiceEvent::Output(count),
            _ => ServiceEvent::Ended(self.report.take_exit()),
        }
    }
}

/// Finds a program: by its path, relative to the directory, or by name in the folders of PATH.
fn find_program(
    command: &str,
    environment: &[(OsString, OsString)],
    directory: &Path,
) -> Option<PathBuf> {
    if command.contains('/') {
        return Some(directory.join(command)).filter(|place| is_program(place));
    }
    find_on_path(command, environment)
}

/// The shell command that replaces the shell by the program, with every word quoted.
fn exec_command(program: &Path, args: &[String]) -> OsString {
    let mut sentence = OsString::from("exec ");
    sentence.push(shell_quote(program.as_os_str()));
    for arg in args {
        sentence.push(" ");
        sentence.push(shell_quote(OsStr::new(arg)));
    }
    sentence
}

/// Quotes a word for a shell.
pub fn shell_quote(word: &OsStr) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let mut bytes = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => bytes.extend_from_slice(br"'\''"),
            byte => bytes.push(*byte),
        }
    }
    bytes.push(b'\'');
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_reaches_the_program_as_it_is() {
        let args = ["a b".to_owned(), "it's $HOME `x`".to_owned(), String::new()];
        let sentence = exec_command(Path::new("/bin/echo"), &args);
        assert_eq!(sentence, r"exec '/bin/echo' 'a b' 'it'\''s $HOME `x`' ''");
    }

    #[test]
    fn a_program_is_found_in_absolute_folders_only() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir(root.join("bin")).unwrap();
        let tool = root.join("bin/tool");
        std::fs::write(&tool, "#!/bin/sh\n").unwrap();
        let path_of = |folders: OsString| [("PATH".into(), folders)];
        let path = path_of(root.join("bin").into_os_string());
        assert_eq!(find_program("tool", &path, root), None, "it cannot be executed yet");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&tool, mode).unwrap();
        assert_eq!(find_program("tool", &path, root), Some(tool.clone()));
        assert_eq!(find_program("tool", &path_of("bin:.".into()), root), None);
        assert_eq!(find_program("bin/tool", &[], root), Some(tool.clone()));
        assert_eq!(find_program(tool.to_str().unwrap(), &[], Path::new("/")), Some(tool));
        assert_eq!(find_program("tool", &[], root), None);
    }
}

//! Captured commands: run a command of the user, a Workflow or Pixir itself, and capture its output.
//!
//! They are sandboxed like commands of a model and have no live output. Programs such as git run code
//! that a repository configures, so they get no more rights than any other command, and their output
//! is data, not instructions.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::command::{CommandError, CommandExit, CommandRequest, CommandRunner, StopCause};
use super::output::{OutputCollector, SpillFile};
use super::sandboxed::{SandboxNeeds, SandboxedCommands};
use crate::base::secret::Secrets;
use crate::host::sandbox::Profile;
use crate::settings::bounds::WriteBounds;

/// A command to run and capture.
pub struct CaptureRequest<'a> {
    /// The shell text.
    pub command: &'a str,
    pub directory: &'a Path,
    /// Extra roots, which may be written as well.
    pub extra_roots: &'a [PathBuf],
    /// The write bounds within the directory.
    pub bounds: &'a WriteBounds,
    pub profile: Profile,
    pub timeout: Duration,
    pub cancel: &'a CancellationToken,
    pub secrets: &'a Secrets,
    /// The maximum size of the captured text, in bytes.
    pub limit: usize,
    /// The file for the whole output if it is larger.
    pub spill: SpillFile,
}

/// The exit status and the output of a captured command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedCommand {
    pub exit_code: Option<i32>,
    pub stopped: Option<StopCause>,
    /// The text of both streams, without escape sequences and Secrets, bounded.
    pub text: String,
    pub duration: Duration,
}

impl CapturedCommand {
    /// Whether the command ended on its own with exit code 0.
    pub fn is_success(&self) -> bool {
        self.exit_code == Some(0) && self.stopped.is_none()
    }
}

impl CommandRunner {
    /// Waits for a free slot, then runs a command to its end.
    pub async fn capture_with_slot(
        &self,
        request: CaptureRequest<'_>,
    ) -> Result<CapturedCommand, CommandError> {
        let Some(_slot) =
            request.cancel.run_until_cancelled(self.slots().acquire()).await.flatten()
        else {
            let (stopped, text) = (Some(StopCause::Interrupted), String::new());
            return Ok(CapturedCommand {
                exit_code: None,
                stopped,
                text,
                duration: Duration::ZERO,
            });
        };
        self.capture(request).await
    }

    /// Runs a command to its end without a slot.
    pub async fn capture(
        &self,
        request: CaptureRequest<'_>,
    ) -> Result<CapturedCommand, CommandError> {
        let mut output =
            OutputCollector::without_live(request.spill, request.secrets, request.limit);
        let command_request = CommandRequest {
            command: request.command,
            directory: request.directory,
            extra_roots: request.extra_roots,
            timeout: Some(request.timeout),
            cancel: request.cancel,
            stdin: None,
            bounds: request.bounds,
            spec: None,
            exit_watch: None,
        };
        let needs = SandboxNeeds { profile: request.profile, network: false, local_sockets: false };
        let ran =
            SandboxedCommands::new(self.clone()).run(command_request, needs, &mut output).await?;
        let text = output.finish().await.bounded.text;
        let exit_code = match ran.outcome.exit {
            CommandExit::Code(code) => Some(code),
            CommandExit::Signal(_) | CommandExit::Unknown => None,
        };
        Ok(CapturedCommand {
            exit_code,
            stopped: ran.outcome.stopped,
            text,
            duration: ran.outcome.duration,
        })
    }
}

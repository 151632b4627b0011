//! Captured commands: run a command of the user, a Workflow or Pixir itself, and capture its output.
//!
//! They are sandboxed like commands of a model and have no live output. Programs such as git run code
//! that a repository configures, so they get no more rights than any other command, and their output
//! is data, not instructions.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::command::{CommandError, Commands, End, Job, Stop};
use super::confined::{Confined, Needs};
use super::output::{Output, SpillFile};
use crate::base::secret::Secrets;
use crate::host::sandbox::Profile;
use crate::settings::bounds::Bounds;

/// A command to run and capture.
pub struct Trial<'a> {
    /// The shell text.
    pub command: &'a str,
    pub directory: &'a Path,
    /// Extra roots, which may be written as well.
    pub further: &'a [PathBuf],
    /// The write bounds within the directory.
    pub bounds: &'a Bounds,
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
pub struct Tried {
    pub exit_code: Option<i32>,
    pub stopped: Option<Stop>,
    /// Both streams, plain, bounded and without Secrets.
    pub text: String,
    pub duration: Duration,
}

impl Tried {
    /// Whether the command ended on its own with exit code 0.
    pub fn is_ok(&self) -> bool {
        self.exit_code == Some(0) && self.stopped.is_none()
    }
}

impl Commands {
    /// Waits for a free slot, then runs a command to its end.
    pub async fn put_to_the_test(&self, trial: Trial<'_>) -> Result<Tried, CommandError> {
        let Some(_slot) = trial.cancel.run_until_cancelled(self.slots().wait()).await.flatten()
        else {
            let (stopped, text) = (Some(Stop::Interrupted), String::new());
            return Ok(Tried { exit_code: None, stopped, text, duration: Duration::ZERO });
        };
        self.run_trial(trial).await
    }

    /// Runs a command to its end without a slot.
    pub async fn run_trial(&self, trial: Trial<'_>) -> Result<Tried, CommandError> {
        let mut output = Output::silent(trial.spill, trial.secrets, trial.limit);
        let job = Job {
            command: trial.command,
            directory: trial.directory,
            further: trial.further,
            timeout: Some(trial.timeout),
            cancel: trial.cancel,
            stdin: None,
            bounds: trial.bounds,
            spec: None,
            witness: None,
        };
        let needs = Needs { profile: trial.profile, network: false, local_sockets: false };
        let ran = Confined::new(self.clone()).run(job, needs, &mut output).await?;
        let text = output.finish().await.bounded.text;
        let exit_code = match ran.outcome.end {
            End::Code(code) => Some(code),
            End::Signal(_) | End::Unknown => None,
        };
        Ok(Tried { exit_code, stopped: ran.outcome.stopped, text, duration: ran.outcome.duration })
    }
}

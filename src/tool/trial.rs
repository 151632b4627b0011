//! Trials: commands that a person, a Workflow or Pixir itself states, run to see whether they pass.
//!
//! They are confined like those of a model, and nobody hears them while they run. The programs that
//! they are about, git above all, run what a repository names: so they get no more rights than any
//! other command, and their words are evidence, not instructions.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::command::{CommandError, Commands, End, Job, Stop};
use super::confined::{Confined, Needs};
use super::output::{Output, SpillFile};
use crate::bounds::Bounds;
use crate::sandbox::Profile;
use crate::secret::Secrets;

/// What to run.
pub struct Trial<'a> {
    /// A sentence for the shell.
    pub command: &'a str,
    pub directory: &'a Path,
    /// Directories beside it that may be written as well.
    pub further: &'a [PathBuf],
    /// Where in the directory it may write.
    pub bounds: &'a Bounds,
    pub profile: Profile,
    pub timeout: Duration,
    pub cancel: &'a CancellationToken,
    pub secrets: &'a Secrets,
    /// How much of what it prints is kept, in bytes.
    pub limit: usize,
    /// Where all of it goes when that is more.
    pub spill: SpillFile,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    pub exit_code: Option<i32>,
    pub stopped: Option<Stop>,
    /// Both streams, plain, bounded and without secrets.
    pub text: String,
    pub duration: Duration,
}

impl Tried {
    /// Whether it passed.
    pub fn is_ok(&self) -> bool {
        self.exit_code == Some(0) && self.stopped.is_none()
    }
}

impl Commands {
    /// Runs a command to its end, once there is a free slot.
    pub async fn put_to_the_test(&self, trial: Trial<'_>) -> Result<Tried, CommandError> {
        let Some(_slot) = trial.cancel.run_until_cancelled(self.slots().wait()).await.flatten()
        else {
            let (stopped, text) = (Some(Stop::Interrupted), String::new());
            return Ok(Tried { exit_code: None, stopped, text, duration: Duration::ZERO });
        };
        self.run_trial(trial).await
    }

    /// Runs a command to its end, however many others run.
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

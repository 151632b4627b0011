//! Inquiries: commands of Pixir's own choosing, confined like those of a model.
//!
//! The programs that they are about, git above all, run what a repository names. So they get no
//! more rights than any other command, and their words are evidence, not instructions.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::command::{CommandError, Commands, End, Job};
use super::confined::{Confined, Needs};
use super::output::{Output, SpillFile};
use crate::bounds::Bounds;
use crate::sandbox::Profile;
use crate::secret::Secrets;

/// How much of an answer is kept.
const LONGEST: usize = 256 * 1024;

/// What to run.
pub struct Inquiry<'a> {
    /// A sentence for the shell.
    pub command: &'a str,
    pub directory: &'a Path,
    /// Directories beside it that may be written as well.
    pub further: &'a [PathBuf],
    pub profile: Profile,
    pub timeout: Duration,
    /// Where an answer that is far too long goes.
    pub spill: SpillFile,
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub is_ok: bool,
    /// Both streams, plain and bounded.
    pub text: String,
}

impl Commands {
    /// Runs a command to its end and gives what it said.
    pub async fn inquire(&self, inquiry: Inquiry<'_>) -> Result<Reply, CommandError> {
        let secrets = Secrets::default();
        let mut output = Output::silent(inquiry.spill, &secrets, LONGEST);
        let job = Job {
            command: inquiry.command,
            directory: inquiry.directory,
            further: inquiry.further,
            timeout: Some(inquiry.timeout),
            cancel: &CancellationToken::new(),
            stdin: None,
            bounds: &Bounds::default(),
            spec: None,
            witness: None,
        };
        let needs = Needs { profile: inquiry.profile, network: false, local_sockets: false };
        let ran = Confined::new(self.clone()).run(job, needs, &mut output).await?;
        let text = output.finish().await.bounded.text;
        Ok(Reply { is_ok: ran.outcome.end == End::Code(0), text })
    }
}

//! The out-of-memory score of supervisors and commands: when memory is used up, the kernel kills
//! commands first, then supervisors, and Pixir last.
//!
//! A child inherits the score that its parent has when it is started, so a supervisor takes the score
//! of commands while it starts one. Raising a score needs no right. A confined command cannot lower
//! its score again, because it cannot write below `/proc`.
#![expect(clippy::disallowed_methods, reason = "files of the kernel")]

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The score of a command: it is killed before every process with a lower one.
const COMMAND_SCORE: &str = "1000";
/// The score of a supervisor: it is killed before a process that uses less than half of all memory.
const SUPERVISOR_SCORE: i32 = 500;

/// The out-of-memory score of this process.
pub struct OomScore {
    /// Opened before the process is confined; `None` where there is no `/proc`.
    file: Option<File>,
    /// The score of this process while it starts no command.
    own: String,
}

impl OomScore {
    /// Sets the score of a supervisor, unless this process has a higher one.
    pub fn for_supervisor() -> Self {
        let path = "/proc/self/oom_score_adj";
        let found = std::fs::read_to_string(path).unwrap_or_default();
        let own = found.trim().parse::<i32>().unwrap_or_default().max(SUPERVISOR_SCORE).to_string();
        let file = File::options().write(true).open(path).ok();
        let score = Self { file, own };
        score.write_score(&score.own);
        score
    }

    /// Calls `start` with the score of a command, which the started process inherits.
    pub fn with_command_score<T>(&self, start: impl FnOnce() -> T) -> T {
        self.write_score(COMMAND_SCORE);
        let started = start();
        self.write_score(&self.own);
        started
    }

    fn write_score(&self, score: &str) {
        if let Some(file) = &self.file {
            file.write_at(score.as_bytes(), 0).ok();
        }
    }
}

//! The lines of a Record.

use serde::{Deserialize, Serialize};

use super::delta::ManifestDelta;
use super::{FolderChange, Hash, RawPath, State};

/// Which end of a Turn's commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    Before,
    After,
}

/// What a survey saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    /// Everything, as a Manifest in the store.
    All(Hash),
    /// What is different from the survey before.
    Changed(ManifestDelta),
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The first line: the Workspace, and the Session and Turn that wrote the Record. A fork copies
    /// Records as they are.
    Began { workspace: RawPath, session: String, turn: u64 },
    /// What a Tool found before it wrote; `made` are folders that were not there.
    Found {
        path: RawPath,
        state: Option<State>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        made: Vec<RawPath>,
        /// Nanoseconds since the epoch; 0 in old Records.
        #[serde(default)]
        at: u64,
    },
    /// What it left.
    Left {
        path: RawPath,
        state: Option<State>,
        #[serde(default)]
        at: u64,
    },
    /// A folder that Pixir itself made, removed or gave another mode; `None` means that it does not exist.
    Folder(FolderChange),
    /// A survey before or after a command.
    CommandSurvey {
        seen: Seen,
        /// Whether a command may run between this survey and the next.
        is_running: bool,
        /// When the survey began and ended, in nanoseconds since the epoch.
        started: u64,
        ended: u64,
    },
    /// What a survey saw, in old Records: one before the first command of a Turn, one at its end.
    Surveyed { when: When, manifest: Hash },
    /// Why there was none.
    NotSurveyed { when: When, reason: String },
    /// The Turn came to its end; without this line it was cut off.
    Ended,
}

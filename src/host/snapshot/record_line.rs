//! Lines of a Turn's Record.

use serde::{Deserialize, Serialize};

use super::delta::ManifestDelta;
use super::git_state::GitState;
use super::{ContentHash, FileState, FolderChange, RawPath};

/// The side of a Turn's commands on which a survey was taken, in old Records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SurveyPosition {
    Before,
    After,
}

/// The result of a survey.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SurveyResult {
    /// The hash of a full Manifest in the store.
    All(ContentHash),
    /// The changes since the previous survey.
    Changed(ManifestDelta),
}

/// One line of a Record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordLine {
    /// The first line: the Workspace, Session and Turn that wrote the Record. A fork copies Records
    /// unchanged.
    Began {
        workspace: RawPath,
        session: String,
        turn: u64,
        /// The state of the Workspace's git repository; not in old Records.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        git: Option<GitState>,
    },
    /// The state of a file before a file tool wrote it; `made` are new folders.
    Found {
        path: RawPath,
        state: Option<FileState>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        made: Vec<RawPath>,
        /// Nanoseconds since the epoch; 0 in old Records.
        #[serde(default)]
        at: u64,
    },
    /// The state of a file after a file tool wrote it.
    Left {
        path: RawPath,
        state: Option<FileState>,
        #[serde(default)]
        at: u64,
    },
    /// A folder that Pixir created or removed, or whose mode it changed.
    Folder(FolderChange),
    /// A survey before or after a command.
    CommandSurvey {
        seen: SurveyResult,
        /// Whether a command may run between this survey and the next.
        is_running: bool,
        /// The start and end of the survey, in nanoseconds since the epoch.
        started: u64,
        ended: u64,
    },
    /// A survey in old Records: before the first command of a Turn, or at its end.
    Surveyed { when: SurveyPosition, manifest: ContentHash },
    /// The reason why a survey failed.
    NotSurveyed { when: SurveyPosition, reason: String },
    /// The reason why no change of the Turn is recorded, not even by file tools.
    NotRecorded { reason: String },
    /// The end of the Turn; a Record without it was cut off.
    Ended,
}

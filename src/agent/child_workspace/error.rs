//! Errors of child Workspaces and merges.

use std::io;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::changes::escape_path;
use super::merge_plan::MergeConflict;
use super::merge_transaction::MergeFailure;
use crate::base::error::{Explain, Explanation, Kind};
use crate::base::id::SessionId;
use crate::base::paths;
use crate::base::text::on_one_line;
use crate::host::process::CommandError;
use crate::host::snapshot::SurveyError;

/// How many conflicts the message names; the details have all of them.
const MAX_NAMED_CONFLICTS: usize = 5;

/// The most characters of git's output in a message.
const MAX_GIT_OUTPUT: usize = 500;

/// An error of a child Workspace or a merge.
#[derive(Debug, thiserror::Error)]
pub enum ChildWorkspaceError {
    #[error("the Workspace cannot be copied")]
    Survey(#[source] SurveyError),
    #[error("{} has {bytes} bytes, more than the {limit} that a copy may have", path.display())]
    TooLarge { path: PathBuf, bytes: u64, limit: u64 },
    #[error("the Workspace could not be copied")]
    Copy(#[source] io::Error),
    #[error("the Workspace of the child could not be saved")]
    Storage(#[source] io::Error),
    #[error("the files that the child started from are not stored any more")]
    BaseMissing(#[source] io::Error),
    #[error("the Workspace of the child was not completed")]
    Unfinished { is_being_made: bool },
    #[error("{} is gone", folder.display())]
    FolderMissing { folder: PathBuf },
    #[error("{} is not in a git repository", workspace.display())]
    NoRepository { workspace: PathBuf },
    #[error("the repository has no commit yet")]
    NoCommit,
    #[error("{} is not in the last commit", workspace.display())]
    NotInRepository { workspace: PathBuf },
    #[error("a path that is not UTF-8 cannot have a worktree")]
    NonUtf8Path,
    #[error("{} has changes that are not committed", folder.display())]
    UncommittedChanges { folder: PathBuf },
    #[error("{} has commits that are on no branch, up to {commit}", folder.display())]
    UnreferencedCommit { folder: PathBuf, commit: String },
    #[error("git {command} failed: {output}")]
    Git { command: String, output: String },
    #[error(transparent)]
    Command(CommandError),
    #[error("the child {child} is still running")]
    Busy { child: SessionId, pid: u32 },
    #[error("nothing was merged: {}", describe_conflicts(.0))]
    Conflicts(Vec<MergeConflict>),
    #[error("{} could not be written: {}; {}", escape_path(&.0.path), .0.reason, describe_rollback(.0))]
    MergeFailed(MergeFailure),
    #[error("changed since the merge: {}", .0.iter().map(|path| escape_path(path)).collect::<Vec<_>>().join(", "))]
    ForeignChanges(Vec<PathBuf>),
    #[error("the child {0} has no Workspace of its own")]
    NoChildWorkspace(String),
    #[error("the child {child} has no Workspace of its own any more")]
    AlreadyClosed { child: SessionId },
    #[error("internal error: a task panicked")]
    TaskPanicked,
}

impl ChildWorkspaceError {
    /// Whether the child already has a registration.
    pub fn is_already_registered(&self) -> bool {
        matches!(self, Self::Storage(error) if error.kind() == io::ErrorKind::AlreadyExists)
    }

    /// The error for a git command that failed with this output.
    pub fn from_git_output(arguments: &str, output: &str) -> Self {
        let words = arguments.split_whitespace().filter(|word| !word.starts_with(['-', '\'', '/']));
        let command = words.take(2).collect::<Vec<_>>().join(" ");
        let output = on_one_line(output);
        Self::Git { command, output: output.chars().take(MAX_GIT_OUTPUT).collect() }
    }
}

fn describe_conflicts(conflicts: &[MergeConflict]) -> String {
    let one =
        |conflict: &MergeConflict| format!("{} ({})", escape_path(&conflict.path), conflict.reason);
    let named: Vec<String> = conflicts.iter().take(MAX_NAMED_CONFLICTS).map(one).collect();
    let more = conflicts.len().saturating_sub(MAX_NAMED_CONFLICTS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", named.join(", "))
}

fn describe_rollback(failure: &MergeFailure) -> String {
    if failure.left.is_empty() {
        return "what was written before was rolled back".to_owned();
    }
    let left: Vec<String> =
        failure.left.iter().map(|(path, why)| format!("{} ({why})", escape_path(path))).collect();
    format!("not rolled back: {}", left.join(", "))
}

impl Explain for ChildWorkspaceError {
    fn explain(&self) -> Explanation {
        let raise_limits = "ignore what is not needed in .gitignore, raise the `workspaces` limits of the \
             config, or let the child work in the shared Workspace";
        match self {
            Self::Survey(error) => {
                let details = match error {
                    SurveyError::TooMuch { bytes, limit } => {
                        json!({ "bytes": bytes, "limit": limit, "setting": "workspaces.max_bytes" })
                    }
                    SurveyError::TooMany { count, limit } => {
                        json!({ "files": count, "limit": limit, "setting": "workspaces.max_files" })
                    }
                    _ => Value::Null,
                };
                Kind::InvalidArgs.with_details(details).with_next_action(raise_limits)
            }
            Self::TooLarge { path, bytes, limit } => {
                let setting = "workspaces.max_file_bytes";
                let details = json!({ "path": path.to_string_lossy(), "bytes": bytes, "limit": limit, "setting": setting });
                Kind::InvalidArgs.with_details(details).with_next_action(raise_limits)
            }
            Self::Unfinished { is_being_made: true } => {
                Kind::NotFound.with_next_action("wait a moment, then run this again")
            }
            Self::Unfinished { .. } | Self::FolderMissing { .. } => {
                Kind::NotFound.with_next_action("start another child")
            }
            Self::BaseMissing(_) => Kind::ReadFailed.with_next_action("start another child"),
            Self::AlreadyClosed { .. } => Kind::NotFound.with_next_action(
                "its changes are in its parent's Workspace: continue with its parent, or start another \
                 child there",
            ),
            Self::NoChildWorkspace(_) => Kind::NotFound
                .with_next_action("a child of workspace `shared` has already changed the files here"),
            Self::NoRepository { .. } | Self::NotInRepository { .. } | Self::NonUtf8Path => {
                Kind::InvalidArgs.with_next_action("use workspace `isolated` or `shared`")
            }
            Self::NoCommit => Kind::InvalidArgs
                .with_next_action("commit something first, or use workspace `isolated`"),
            Self::Git { .. } => Kind::CommandFailed.with_next_action(
                "fix what git reports, or use workspace `isolated`, which needs no git",
            ),
            Self::Copy(_) | Self::Storage(_) => Kind::WriteFailed.with_next_action(
                "check the free disk space and your write access to `~/.pixir/workspaces` and \
                 `.pixir`, then try again",
            ),
            Self::UncommittedChanges { .. } => Kind::FileChanged
                .with_next_action("commit or merge them first, or remove the worktree by hand"),
            Self::UnreferencedCommit { commit, .. } => Kind::FileChanged.with_next_action(format!(
                "keep them with `git branch NAME {commit}`, then try again"
            )),
            Self::Busy { child, pid } => Kind::Busy
                .with_details(json!({ "session_id": child, "pid": pid }))
                .with_next_action("wait until it has ended"),
            Self::Conflicts(conflicts) => {
                let conflicts: Vec<Value> = conflicts.iter().map(MergeConflict::to_json).collect();
                Kind::FileChanged.with_details(json!({ "conflicts": conflicts })).with_next_action(
                    "run `pixir changes <child> --diff`; copy conflicting changes by hand or undo one \
                     side, then merge again",
                )
            }
            Self::ForeignChanges(files) => Kind::FileChanged
                .with_details(json!({ "files": paths::as_texts(files) }))
                .with_next_action("restore those files by hand, then run this again"),
            Self::MergeFailed(failure) => {
                let left: Vec<_> =
                    failure.left.iter().map(|(path, _)| path.to_string_lossy()).collect();
                Kind::WriteFailed
                    .with_details(json!({ "path": failure.path.to_string_lossy(), "left": left }))
                    .with_next_action("fix that, then merge again")
            }
            Self::Command(error) => error.explain(),
            Self::TaskPanicked => Kind::Internal.into(),
        }
    }
}

//! Git worktrees for children: a branch per child, in a worktree of the parent's repository.
//!
//! git starts programs that a repository names (hooks, monitors). So it runs without hooks and in the sandbox
//! of the child's commands. Only its exit code and output are used.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::ChildWorkspaceError;
use super::cleanup::remove_tree;
use super::registration::WorktreeBranch;
use crate::base::files::read_regular;
use crate::base::id::SessionId;
use crate::base::secret::Secrets;
use crate::host::process::{CaptureRequest, CommandRunner, SpillFile, shell_quote};
use crate::host::sandbox::Profile;
use crate::host::snapshot::RawPath;
use crate::host::workspace::project_folders;
use crate::settings::bounds::WriteBounds;

/// The timeout of a git command; a checkout of a large repository takes longest.
const GIT_TIMEOUT: Duration = Duration::from_mins(5);

/// How much of git's output is kept, in bytes.
const MAX_GIT_OUTPUT_BYTES: usize = 256 * 1024;

/// git without the programs that a repository names, as far as options can prevent them, and with
/// untranslated messages.
const SAFE_GIT: &str = "LC_ALL=C git --no-pager -c core.hooksPath=/dev/null -c core.fsmonitor=false \
    -c gc.auto=0 -c maintenance.auto=false";

/// The arguments that locate a Workspace in its repository.
const LOCATE_ARGS: &str =
    "rev-parse --path-format=absolute --show-toplevel --git-common-dir HEAD^{commit} --show-prefix";

/// The folder of the worktree in the folder of a child Workspace; git has to create it itself.
const WORKTREE_FOLDER: &str = "tree";

/// The largest `gitdir` file that is read, in bytes.
const MAX_GITDIR_BYTES: u64 = 64 << 10;

/// The git commands for the worktree of one child.
pub struct GitWorktree<'a> {
    pub commands: &'a CommandRunner,
    pub profile: Profile,
    /// The folder of the child Workspace.
    pub directory: &'a Path,
}

/// The position of a Workspace in its repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepositoryLocation {
    pub top: PathBuf,
    /// The folder that all worktrees of the repository share.
    pub common: PathBuf,
    /// The Workspace relative to the top.
    pub prefix: PathBuf,
    /// The commit that is checked out.
    pub head: String,
}

impl GitWorktree<'_> {
    /// Asks git where a Workspace is in its repository.
    pub async fn locate_workspace(
        &self,
        workspace: &Path,
    ) -> Result<RepositoryLocation, ChildWorkspaceError> {
        // A Workspace may be a part of its repository, and git looks for the top itself.
        let folders = project_folders(workspace);
        let top = folders.first().copied().unwrap_or(workspace);
        let asked = format!("{} {LOCATE_ARGS}", directory_option(workspace));
        let text = self.run_git(top, &[], &asked, &[]).await.map_err(|error| match error {
            ChildWorkspaceError::Git { output, .. } if output.contains("not a git repository") => {
                ChildWorkspaceError::NoRepository { workspace: workspace.to_owned() }
            }
            ChildWorkspaceError::Git { output, .. } if output.contains("HEAD") => {
                ChildWorkspaceError::NoCommit
            }
            other => other,
        })?;
        let mut lines = text.lines();
        let mut line = || lines.next().unwrap_or_default();
        let (top, common, head, prefix) = (line(), line(), line(), line());
        if [top, common].iter().any(|path| !Path::new(path).is_absolute()) || head.is_empty() {
            return Err(ChildWorkspaceError::from_git_output("rev-parse", &text));
        }
        Ok(RepositoryLocation {
            top: top.into(),
            common: common.into(),
            prefix: prefix.into(),
            head: head.to_owned(),
        })
    }

    /// The folder and the branch of the worktree to be created.
    pub fn plan_branch(
        &self,
        place: &RepositoryLocation,
        child: &SessionId,
    ) -> (PathBuf, WorktreeBranch) {
        let name = format!("pixir/{child}");
        let branch = WorktreeBranch {
            name,
            start: place.head.clone(),
            top: RawPath(place.top.clone()),
            common: RawPath(place.common.clone()),
        };
        (self.directory.join(WORKTREE_FOLDER).join(&place.prefix), branch)
    }

    /// Creates the worktree, locked against `git worktree prune`.
    pub async fn add_worktree(
        &self,
        branch: &WorktreeBranch,
        child: &SessionId,
    ) -> Result<(), ChildWorkspaceError> {
        let tree = self.directory.join(WORKTREE_FOLDER);
        let top = [branch.top.0.clone()];
        let words = [
            OsStr::new("-b"),
            OsStr::new(&branch.name),
            tree.as_os_str(),
            OsStr::new(&branch.start),
        ];
        let at = directory_option(&branch.top.0);
        self.run_git(self.directory, &top, &format!("{at} worktree add --quiet"), &words).await?;
        let reason = OsString::from(format!("in use by the Pixir child Session {child}"));
        let words = [OsStr::new("--reason"), &reason, tree.as_os_str()];
        self.run_git(self.directory, &top, &format!("{at} worktree lock"), &words).await.map(drop)
    }

    /// Removes the worktree, unless it has uncommitted changes and `is_saved` is false. A branch without
    /// new commits is removed too; otherwise its name is returned.
    ///
    /// The sandbox mounts git's metadata folder of the worktree, so git could not remove it: Pixir removes
    /// both folders, which refer to each other.
    pub async fn remove_worktree(
        &self,
        branch: &WorktreeBranch,
        is_saved: bool,
    ) -> Result<Option<String>, ChildWorkspaceError> {
        let tree = self.directory.join(WORKTREE_FOLDER);
        let top = [branch.top.0.clone()];
        if tree.is_dir() && !is_saved {
            let at = directory_option(&tree);
            let status = "status --porcelain --untracked-files=all --ignore-submodules=none";
            if !self.run_git(&tree, &top, &format!("{at} {status}"), &[]).await?.trim().is_empty() {
                return Err(ChildWorkspaceError::UncommittedChanges { folder: tree });
            }
        }
        if tree.exists() {
            remove_tree(&tree).map_err(ChildWorkspaceError::Storage)?;
        }
        for folder in metadata_folders(&branch.common.0, &tree) {
            remove_tree(&folder).map_err(ChildWorkspaceError::Storage)?;
        }
        let at = directory_option(&branch.top.0);
        let name = OsString::from(format!("refs/heads/{}", branch.name));
        let sentence = format!("{at} rev-parse --verify --quiet");
        let Ok(tip) = self.run_git(&branch.top.0, &[], &sentence, &[&name]).await else {
            return Ok(None);
        };
        if tip.trim() != branch.start {
            return Ok(Some(branch.name.clone()));
        }
        let words = [&*name, OsStr::new(&branch.start)];
        self.run_git(self.directory, &top, &format!("{at} update-ref -d"), &words).await?;
        Ok(None)
    }

    /// Refuses a worktree whose last commit is on no branch.
    pub async fn refuse_unreferenced_commit(
        &self,
        branch: &WorktreeBranch,
    ) -> Result<(), ChildWorkspaceError> {
        let (tree, top) = (self.directory.join(WORKTREE_FOLDER), [branch.top.0.clone()]);
        if !tree.is_dir() {
            return Ok(());
        }
        let asked = format!(
            "{} rev-list --max-count=1 HEAD --not '--glob=refs/*'",
            directory_option(&tree)
        );
        let commit = match self.run_git(&tree, &top, &asked, &[]).await {
            // There is no commit on this branch yet.
            Err(ChildWorkspaceError::Git { output, .. }) if output.contains("'HEAD'") => {
                String::new()
            }
            other => other?,
        };
        match commit.trim() {
            "" => Ok(()),
            commit => Err(ChildWorkspaceError::UnreferencedCommit {
                folder: tree,
                commit: commit.to_owned(),
            }),
        }
    }

    async fn run_git(
        &self,
        directory: &Path,
        further: &[PathBuf],
        sentence: &str,
        words: &[&OsStr],
    ) -> Result<String, ChildWorkspaceError> {
        let mut command = format!("{SAFE_GIT} {sentence}");
        for word in words {
            // A Workspace whose path is not UTF-8 has no worktrees.
            let word =
                shell_quote(word).into_string().map_err(|_| ChildWorkspaceError::NonUtf8Path)?;
            command.push(' ');
            command.push_str(&word);
        }
        // Write access only for commands that need it.
        let profile = if further.is_empty() && self.profile != Profile::Off {
            Profile::ReadOnly
        } else {
            self.profile
        };
        let trial = CaptureRequest {
            command: &command,
            directory,
            extra_roots: further,
            bounds: &WriteBounds::default(),
            profile,
            timeout: GIT_TIMEOUT,
            cancel: &CancellationToken::new(),
            secrets: &Secrets::default(),
            limit: MAX_GIT_OUTPUT_BYTES,
            spill: SpillFile::beside_folder(self.directory, "git.txt"),
        };
        let tried = self.commands.capture(trial).await.map_err(ChildWorkspaceError::Command)?;
        match tried.exit_code {
            Some(0) => Ok(tried.text),
            _ => Err(ChildWorkspaceError::from_git_output(sentence, &tried.text)),
        }
    }
}

/// The folders in which the repository keeps the metadata of a worktree.
fn metadata_folders(common: &Path, tree: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(common.join("worktrees")).into_iter().flatten().flatten();
    let points_here = |folder: &PathBuf| {
        let pointer = read_regular(&folder.join("gitdir"), MAX_GITDIR_BYTES);
        let is_this =
            |pointer: Vec<u8>| pointer.trim_ascii() == tree.join(".git").as_os_str().as_bytes();
        pointer.is_ok_and(is_this)
    };
    let is_folder = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries.filter(is_folder).map(|entry| entry.path()).filter(points_here).collect()
}

fn directory_option(top: &Path) -> String {
    format!("-C {}", shell_quote(top.as_os_str()).to_string_lossy())
}

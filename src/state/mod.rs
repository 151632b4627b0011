//! Where the state of a Workspace lives: its Logs, what lies beside them, and contents of files.
//!
//! Usually that is `.pixir` in the Workspace. When that folder came with a checkout, belongs to
//! another user, is not what it should be, or cannot be written, it is a folder of the Home instead.

mod resolve;
#[cfg(test)]
mod tests;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub use resolve::{Resolved, StateProblem, home_roots, readable, resolve, unreadable};

use crate::files::{Durability, StateDir, StateError, StateFolder};
use crate::id::{SessionId, sha256};
use crate::paths::{self, Home, STATE_FOLDER};

/// The file of a state folder in the Home that names its Workspace.
const WORKSPACE_NAME: &str = "workspace";

/// The folder that holds the state of one Workspace; it need not exist.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StateRoot {
    workspace: PathBuf,
    folder: StateFolder,
    /// Why it is only read.
    problem: Option<StateProblem>,
}

impl StateRoot {
    /// `.pixir` in the Workspace.
    pub fn in_workspace(workspace: impl Into<PathBuf>) -> Self {
        let workspace = workspace.into();
        let folder = StateFolder::root(&workspace).join(STATE_FOLDER);
        Self::at(workspace, folder)
    }

    /// A folder that is neither, for tools that run without a Session.
    pub fn at(workspace: impl Into<PathBuf>, folder: StateFolder) -> Self {
        Self { workspace: workspace.into(), folder, problem: None }
    }

    /// The folder of the Home for the state of this Workspace.
    pub fn in_home(home: &Home, workspace: impl Into<PathBuf>) -> Self {
        let workspace = workspace.into();
        let name = sha256(workspace.as_os_str().as_bytes());
        let folder = StateFolder::root(home.folder()).join(Home::ANNEXES).join(name);
        Self::at(workspace, folder)
    }

    /// The folder of a Home that was named by its path.
    pub fn in_folder(workspace: impl Into<PathBuf>, folder: &Path) -> Self {
        // Below the Home, and its folder of Workspaces.
        let home = folder.ancestors().nth(2).unwrap_or(folder);
        let below = folder.strip_prefix(home).unwrap_or(Path::new(""));
        Self::at(workspace, StateFolder::root(home).join(below))
    }

    /// The same state, which is only read, because of this.
    #[must_use]
    fn read_only(self, problem: StateProblem) -> Self {
        Self { folder: self.folder.read_only(), problem: Some(problem), ..self }
    }

    /// Why nothing is changed here, if that is so: Sessions can be read and forked, not continued.
    pub fn problem(&self) -> Option<&StateProblem> {
        self.problem.as_ref()
    }

    /// Where a fork of a Session that is here goes.
    #[must_use]
    pub fn for_fork(&self, home: &Home) -> Self {
        if self.problem.is_none() { self.clone() } else { resolve(home, &self.workspace).root }
    }

    /// The Workspace whose state this is.
    pub fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// Whether the state lies in the Workspace itself.
    pub fn is_in_workspace(&self) -> bool {
        self.folder.path() == paths::state(&self.workspace)
    }

    /// The folder itself.
    pub fn folder(&self) -> &StateFolder {
        &self.folder
    }

    /// The folder of Logs.
    pub fn sessions(&self) -> StateFolder {
        self.folder.join("sessions")
    }

    /// The contents of files as they were, for all Sessions of the Workspace.
    pub fn snapshots(&self) -> StateFolder {
        self.folder.join("snapshots")
    }

    /// The Log of a Session.
    pub fn log(&self, id: &SessionId) -> PathBuf {
        self.sessions().path().join(log_name(id))
    }

    /// The folder beside the Log: blobs, spilled output, resources.
    pub fn session_folder(&self, id: &SessionId) -> SessionFolder {
        SessionFolder { root: self.clone(), id: id.clone() }
    }

    /// Whether there is a Log of this Session.
    pub fn has_log(&self, id: &SessionId) -> bool {
        let folder = self.sessions().open().ok().flatten();
        let entry = folder.and_then(|folder| folder.stat(log_name(id)).ok().flatten());
        entry.is_some_and(|entry| entry.kind == rustix::fs::FileType::RegularFile)
    }

    /// Opens the folder of Logs, and makes what is missing.
    pub fn create_sessions(&self) -> Result<StateDir, StateError> {
        if let Some(folder) = self.sessions().open()? {
            return Ok(folder);
        }
        if self.is_in_workspace() {
            let state = self.folder.create()?;
            // Keeps state out of the user's commits. Best effort: a Session without it works.
            state.create_file(".gitignore", paths::GITIGNORE.as_bytes(), 0o644).ok();
            state.create_dir("sessions")
        } else {
            let state = self.folder.create_with_root()?;
            let name = self.workspace.as_os_str().as_bytes();
            state.replace(WORKSPACE_NAME, name, Durability::Lazy)?;
            state.create_dir("sessions")
        }
    }
}

/// A Workspace stands for `.pixir` in it.
impl From<&Path> for StateRoot {
    fn from(workspace: &Path) -> Self {
        Self::in_workspace(workspace)
    }
}

/// A Workspace stands for `.pixir` in it.
impl From<&PathBuf> for StateRoot {
    fn from(workspace: &PathBuf) -> Self {
        Self::in_workspace(workspace)
    }
}

impl From<&StateRoot> for StateRoot {
    fn from(root: &StateRoot) -> Self {
        root.clone()
    }
}

/// The folder beside the Log of a Session; it need not exist.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionFolder {
    root: StateRoot,
    id: SessionId,
}

impl SessionFolder {
    /// The state that it is a part of.
    pub fn root(&self) -> &StateRoot {
        &self.root
    }

    /// The Session whose folder it is.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// The folder itself.
    pub fn folder(&self) -> StateFolder {
        self.root.sessions().join(self.id.as_str())
    }

    /// A folder inside.
    pub fn join(&self, name: &str) -> StateFolder {
        self.folder().join(name)
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.folder().path()
    }
}

/// The file name of a Log.
pub fn log_name(id: &SessionId) -> String {
    format!("{id}.ndjson")
}

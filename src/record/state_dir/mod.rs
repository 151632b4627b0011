//! The state folder of a Workspace: its Logs, the folders of their Sessions, and contents of files.
//!
//! Usually it is `.pixir` in the Workspace. When that folder came with a checkout, belongs to another user,
//! has unexpected entries or cannot be written, it is a folder of the Home instead.

mod resolve;
#[cfg(test)]
mod tests;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub use resolve::{
    StateLocation, StateProblem, home_roots, readable_roots, resolve_state, unreadable_roots,
};

use crate::base::files::{StateDir, StateError, StatePath, WriteDurability};
use crate::base::id::{SessionId, sha256};
use crate::base::paths;
use crate::base::paths::{Home, STATE_FOLDER};

/// The file of a state folder in the Home that names its Workspace.
const WORKSPACE_NAME: &str = "workspace";

/// The folder that holds the state of one Workspace; it need not exist.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StateRoot {
    workspace: PathBuf,
    folder: StatePath,
    /// Why the folder is read-only, if so.
    problem: Option<StateProblem>,
}

impl StateRoot {
    /// The state root `.pixir` in the Workspace.
    pub fn in_workspace(workspace: impl Into<PathBuf>) -> Self {
        let workspace = workspace.into();
        let folder = StatePath::root(&workspace).join(STATE_FOLDER);
        Self::in_state_folder(workspace, folder)
    }

    /// A state root in another folder, for tools that run without a Session.
    pub fn in_state_folder(workspace: impl Into<PathBuf>, folder: StatePath) -> Self {
        Self { workspace: workspace.into(), folder, problem: None }
    }

    /// The folder in the Home for the state of this Workspace.
    pub fn in_home(home: &Home, workspace: impl Into<PathBuf>) -> Self {
        let workspace = workspace.into();
        let name = sha256(workspace.as_os_str().as_bytes());
        let folder = StatePath::root(home.path()).join(Home::WORKSPACE_FOLDERS).join(name);
        Self::in_state_folder(workspace, folder)
    }

    /// A state folder in the Home, given by its path.
    pub fn in_folder(workspace: impl Into<PathBuf>, folder: &Path) -> Self {
        // The state folder is two levels below the Home.
        let home = folder.ancestors().nth(2).unwrap_or(folder);
        let below = folder.strip_prefix(home).unwrap_or(Path::new(""));
        Self::in_state_folder(workspace, StatePath::root(home).join(below))
    }

    /// The same state folder, read-only for this reason.
    #[must_use]
    fn read_only(self, problem: StateProblem) -> Self {
        Self { folder: self.folder.read_only(), problem: Some(problem), ..self }
    }

    /// Why the folder is read-only, if so: its Sessions can be read and forked, not continued.
    pub fn problem(&self) -> Option<&StateProblem> {
        self.problem.as_ref()
    }

    /// The state folder for a fork of a Session in this one.
    #[must_use]
    pub fn for_fork(&self, home: &Home) -> Self {
        if self.problem.is_none() {
            self.clone()
        } else {
            resolve_state(home, &self.workspace).root
        }
    }

    /// The Workspace of this state.
    pub fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// Whether the state is in the Workspace itself.
    pub fn is_in_workspace(&self) -> bool {
        self.folder.path() == paths::state_folder(&self.workspace)
    }

    /// The folder, to be opened or joined.
    pub fn folder(&self) -> &StatePath {
        &self.folder
    }

    /// The folder of Logs.
    pub fn sessions(&self) -> StatePath {
        self.folder.join("sessions")
    }

    /// The content store of file snapshots, for all Sessions of the Workspace.
    pub fn snapshots(&self) -> StatePath {
        self.folder.join("snapshots")
    }

    /// The Log of a Session.
    pub fn log(&self, id: &SessionId) -> PathBuf {
        self.sessions().path().join(log_name(id))
    }

    /// The folder of a Session, next to its Log: blobs, spilled output, resources.
    pub fn session_folder(&self, id: &SessionId) -> SessionFolder {
        SessionFolder { root: self.clone(), id: id.clone() }
    }

    /// Whether there is a Log of this Session.
    pub fn has_log(&self, id: &SessionId) -> bool {
        let folder = self.sessions().open().ok().flatten();
        let entry = folder.and_then(|folder| folder.stat(log_name(id)).ok().flatten());
        entry.is_some_and(|entry| entry.kind == rustix::fs::FileType::RegularFile)
    }

    /// Opens the folder of Logs; creates missing folders.
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
            state.replace(WORKSPACE_NAME, name, WriteDurability::Lazy)?;
            state.create_dir("sessions")
        }
    }
}

/// Converts a Workspace path to the state root `.pixir` in it.
impl From<&Path> for StateRoot {
    fn from(workspace: &Path) -> Self {
        Self::in_workspace(workspace)
    }
}

/// Converts a Workspace path to the state root `.pixir` in it.
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

/// The folder of a Session, next to its Log; it need not exist.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionFolder {
    root: StateRoot,
    id: SessionId,
}

impl SessionFolder {
    /// The state folder that has the Log.
    pub fn root(&self) -> &StateRoot {
        &self.root
    }

    /// The Session of the folder.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// The folder, to be opened or joined.
    pub fn folder(&self) -> StatePath {
        self.root.sessions().join(self.id.as_str())
    }

    /// A folder in this one.
    pub fn join(&self, name: &str) -> StatePath {
        self.folder().join(name)
    }

    /// The path of the folder.
    pub fn path(&self) -> PathBuf {
        self.folder().path()
    }
}

/// The file name of a Log.
pub fn log_name(id: &SessionId) -> String {
    format!("{id}.ndjson")
}

//! The registration of a child Workspace: its child and parent, its folder, and its base.
//!
//! A registration is a file in the Home folder, so no repository can plant one. It is written before the
//! child Workspace is created, and completed afterwards; until then its creator holds a kernel lock on it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::ChildWorkspaceMode;
use super::cleanup::remove_tree_at;
use crate::base::files::{StateDir, StateError, StatePath, WriteDurability};
use crate::base::id::SessionId;
use crate::base::paths::Home;
use crate::host::snapshot::{ContentHash, FileChange, FileState, RawPath};
use crate::record::state_dir::StateRoot;

/// The largest registration that is read, in bytes; it names the files that were merged line by line.
const MAX_REGISTRATION_BYTES: u64 = 64 * 1024 * 1024;

/// The file in the child's snapshot folder that names the base, so that garbage collection keeps it.
const BASE_REFERENCE_FILE: &str = "annex.json";

/// The registration of one child Workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    pub child: SessionId,
    pub parent: SessionId,
    /// The Subagent id that the parent uses for the child.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subagent: Option<String>,
    pub mode: ChildWorkspaceMode,
    /// The Workspace whose state folder has the Logs of parent and child.
    pub logs: RawPath,
    /// That state folder, when it is not in the Workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RawPath>,
    /// The parent's Workspace: the source of the copy and the target of merges.
    pub workspace: RawPath,
    /// The child's Workspace.
    pub folder: RawPath,
    /// The Manifest of the base; `None` until the child Workspace is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<ContentHash>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<WorktreeBranch>,
    /// Files that merges combined line by line. Comparing such a file again could merge the same change
    /// twice.
    #[serde(rename = "woven", default, skip_serializing_if = "Vec::is_empty")]
    pub merged_by_line: Vec<LineMergedFile>,
}

/// A file whose lines were merged from parent and child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineMergedFile {
    pub path: RawPath,
    /// The child's version.
    pub left: FileState,
    /// The merged version in the parent's Workspace.
    pub result: FileState,
}

impl LineMergedFile {
    /// Whether this entry belongs to a change, and neither side has changed since.
    pub fn matches_change(&self, change: &FileChange, now: Option<&FileState>) -> bool {
        self.path.0 == change.path
            && Some(&self.left) == change.to.as_ref()
            && Some(&self.result) == now
    }
}

/// The branch of a worktree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorktreeBranch {
    pub name: String,
    /// The commit that the branch started at.
    pub start: String,
    /// The top of the parent's repository.
    pub top: RawPath,
    /// The folder that all worktrees of that repository share.
    pub common: RawPath,
}

/// The lock on the registration of a child Workspace that is being created.
#[derive(Debug)]
pub struct CreationLock(#[expect(dead_code, reason = "held, not read")] File);

impl Registration {
    /// The folder of the child Workspace; a worktree is a folder in it.
    pub fn directory(&self, home: &Home) -> PathBuf {
        home.child_workspaces().join(self.child.as_str())
    }

    /// Removes the folder of the child Workspace.
    pub fn remove_directory(&self, home: &Home) -> io::Result<()> {
        let Some(folder) = open_registrations_folder(home)? else {
            return Err(io::ErrorKind::NotFound.into());
        };
        remove_tree_at(&folder, self.child.as_str().as_ref())
    }

    /// Writes an incomplete registration. While the returned lock is held, it is not collected.
    pub fn create(&self, home: &Home) -> io::Result<CreationLock> {
        let folder = create_registrations_folder(home)?;
        // The file is locked before it is named, so other processes never see it incomplete and unlocked.
        let draft = OsString::from(format!(".{}.{:08x}.draft", self.child, fastrand::u32(..)));
        let mut file = folder.create_new(&draft)?;
        let written = file.lock().and_then(|()| file.write_all(&self.to_json_line()?));
        // An existing registration is not replaced.
        let linked = written.and_then(|()| {
            folder.link(&draft, registration_file_name(&self.child)).map_err(io::Error::from)
        });
        folder.remove_file(draft)?;
        linked.map(|()| CreationLock(file))
    }

    /// Replaces the registration.
    pub fn write(&self, home: &Home) -> io::Result<()> {
        let folder = create_registrations_folder(home)?;
        Ok(folder.replace(
            registration_file_name(&self.child),
            &self.to_json_line()?,
            WriteDurability::Lazy,
        )?)
    }

    /// Reads the registration of a child; `None` when it has none.
    pub fn read(home: &Home, child: &SessionId) -> io::Result<Option<Self>> {
        let Some(folder) = open_registrations_folder(home)? else { return Ok(None) };
        Self::read_in(&folder, child)
    }

    fn read_in(folder: &StateDir, child: &SessionId) -> io::Result<Option<Self>> {
        let read = folder.read(registration_file_name(child), MAX_REGISTRATION_BYTES)?;
        read.map(|text| serde_json::from_slice(&text).map_err(io::Error::from)).transpose()
    }

    /// Reads all registrations; unreadable ones are skipped.
    pub fn read_all(home: &Home) -> Vec<Self> {
        let Ok(Some(folder)) = open_registrations_folder(home) else { return Vec::new() };
        let read_registration = |name: OsString| {
            let child = SessionId::parse(name.to_str()?.strip_suffix(".json")?).ok()?;
            Self::read_in(&folder, &child).ok().flatten()
        };
        let names = folder.names().unwrap_or_default().into_iter();
        let mut all: Vec<Self> = names.filter_map(read_registration).collect();
        all.sort_by(|one, other| one.child.cmp(&other.child));
        all
    }

    /// Removes the registration.
    pub fn remove(&self, home: &Home) -> io::Result<()> {
        if let Ok(Some(folder)) = self.base_reference_folder().open() {
            folder.remove_file(BASE_REFERENCE_FILE).ok();
        }
        let folder = open_registrations_folder(home)?;
        let is_removed = folder
            .map(|folder| folder.remove_file(registration_file_name(&self.child)))
            .transpose()?;
        is_removed.filter(|removed| *removed).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    /// Writes the base's hash into the child's snapshot folder: garbage collection keeps contents that are
    /// named there.
    pub fn write_base_reference(&self) -> io::Result<()> {
        let folder = self.base_reference_folder().create()?;
        Ok(folder.replace(BASE_REFERENCE_FILE, &self.to_json_line()?, WriteDurability::Lazy)?)
    }

    fn base_reference_folder(&self) -> StatePath {
        self.state_root().session_folder(&self.child).join("snapshots")
    }

    /// The state folder with the Logs of parent and child.
    pub fn state_root(&self) -> StateRoot {
        let workspace: &Path = self.logs.as_ref();
        match &self.state {
            None => StateRoot::in_workspace(workspace),
            Some(folder) => StateRoot::in_folder(workspace, &folder.0),
        }
    }

    /// Whether a live process is creating the child Workspace.
    pub fn is_being_created(&self, home: &Home) -> bool {
        let file = self.open_file(home);
        self.base.is_none() && file.is_some_and(|file| file.try_lock().is_err())
    }

    /// The registration updated for the Workspace that has the child's Log, which may have been moved.
    /// `None` when the Log of the child is not there.
    pub fn relocated_to(mut self, logs: &StateRoot, home: &Home) -> io::Result<Option<Self>> {
        if self.state_root().folder().path() == logs.folder().path() {
            return Ok(Some(self));
        }
        if self.has_log() == Some(true) || !logs.has_log(&self.child) {
            return Ok(None);
        }
        if self.workspace == self.logs {
            self.workspace = RawPath(logs.workspace().to_owned());
        }
        self.logs = RawPath(logs.workspace().to_owned());
        self.state = external_state_folder(logs);
        self.write(home)?;
        Ok(Some(self))
    }

    /// The time since the registration was written.
    pub fn age(&self, home: &Home) -> Duration {
        let written = self.open_file(home).and_then(|file| file.metadata().ok()?.modified().ok());
        written.and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or_default()
    }

    fn open_file(&self, home: &Home) -> Option<File> {
        open_registrations_folder(home)
            .ok()??
            .open_file(registration_file_name(&self.child))
            .ok()?
    }

    /// Whether the child's Log exists; `None` when the Workspace with the Logs is not there.
    pub fn has_log(&self) -> Option<bool> {
        let logs: &Path = self.logs.as_ref();
        logs.is_dir().then(|| self.state_root().has_log(&self.child))
    }

    fn to_json_line(&self) -> io::Result<Vec<u8>> {
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        Ok(text)
    }
}

/// The path of a state folder that is outside its Workspace.
pub fn external_state_folder(logs: &StateRoot) -> Option<RawPath> {
    (!logs.is_in_workspace()).then(|| RawPath(logs.folder().path()))
}

fn registration_file_name(child: &SessionId) -> OsString {
    OsString::from(format!("{child}.json"))
}

/// The folder of all registrations; `None` when it does not exist.
fn open_registrations_folder(home: &Home) -> Result<Option<StateDir>, StateError> {
    StatePath::root(home.path()).join(Home::WORKSPACE_FOLDERS).open()
}

/// Creates and opens the folder of all registrations.
pub fn create_registrations_folder(home: &Home) -> Result<StateDir, StateError> {
    StateDir::create_root(home.path())?.create_dir(Home::WORKSPACE_FOLDERS)
}

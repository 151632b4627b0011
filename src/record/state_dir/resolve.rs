//! Choice of the state folder of a Workspace, with the reason when it is not the one in the Workspace.

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{StateRoot, WORKSPACE_NAME};
use crate::base::error::Kind;
use crate::base::files::{StateDir, StateError, StatePath, UnsafeEntry};
use crate::base::git_index;
use crate::base::git_index::{HASH_LENGTHS, IndexEntry};
use crate::base::id::SessionId;
use crate::base::paths;
use crate::base::paths::{Home, STATE_FOLDER};
use rustix::fs::FileType;

/// The folders of `.pixir` with state. Settings, skills, roles and prompts are not state.
const STATE_FOLDERS: [&str; 4] = ["sessions", "snapshots", "blobs", "subagents"];

/// The longest path of a Workspace that is read, in bytes.
const LONGEST_PATH: u64 = 64 * 1024;

/// The state folders of a Workspace.
#[derive(Debug, Clone)]
pub struct StateLocation {
    home: Home,
    /// The state folder for new Sessions.
    pub root: StateRoot,
    /// Another state folder with earlier Sessions; read-only if it is the one in the Workspace.
    pub earlier: Option<StateRoot>,
    /// Why `.pixir` in the Workspace is not used.
    pub problem: Option<StateProblem>,
}

/// Why the folder in a Workspace is not used for state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StateProblem {
    /// An entry in the folder has an unexpected type, belongs to another user, or is tracked by git.
    Unsafe {
        /// The path of the problem.
        path: PathBuf,
        /// The entry that was found there.
        found: UnsafeEntry,
    },
    /// The folder cannot be written.
    Unwritable {
        /// The path of the problem.
        path: PathBuf,
    },
}

impl StateProblem {
    /// The path of the problem.
    pub fn path(&self) -> &Path {
        match self {
            Self::Unsafe { path, .. } | Self::Unwritable { path } => path,
        }
    }

    /// The error kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Unsafe { .. } => Kind::UnsafeStatePath,
            Self::Unwritable { .. } => Kind::WriteFailed,
        }
    }

    /// The next action that makes the folder in the Workspace usable again.
    pub fn next_action(&self) -> String {
        match self {
            Self::Unsafe { found: UnsafeEntry::Tracked, path } => {
                let path = paths::quote_shell_word(&tracked_folder(path).to_string_lossy());
                format!("take it out of the repository with `git rm -r --cached {path}`")
            }
            Self::Unsafe { found: UnsafeEntry::OtherOwner, .. } => {
                "make it your own with `chown`, or remove it".to_owned()
            }
            Self::Unsafe { .. } => "inspect it and remove it".to_owned(),
            Self::Unwritable { .. } => "make it writable for you".to_owned(),
        }
    }
}

/// The state folder that contains a tracked path.
fn tracked_folder(path: &Path) -> &Path {
    let is_state = |folder: &&Path| {
        let parent = folder.parent().and_then(Path::file_name);
        parent.is_some_and(|name| name.eq_ignore_ascii_case(STATE_FOLDER))
    };
    path.ancestors().find(is_state).unwrap_or(path)
}

impl std::fmt::Display for StateProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unsafe { path, found } => {
                write!(f, "{} is {}", path.display(), found.description())
            }
            Self::Unwritable { path } => write!(f, "{} cannot be written", path.display()),
        }
    }
}

impl StateLocation {
    /// The state folder with the Log of a Session; the first one when none has it. State in the Home is
    /// found by the path of the Workspace: after a move of the Workspace, by a symbolic link at the old
    /// path.
    pub fn root_for_session(&self, id: &SessionId) -> StateRoot {
        let mut own = [Some(&self.root), self.earlier.as_ref()].into_iter().flatten();
        if let Some(root) = own.find(|root| root.has_log(id)) {
            return root.clone();
        }
        let here = self.root.workspace();
        let leads_here =
            |root: &StateRoot| root.workspace().canonicalize().is_ok_and(|it| it == here);
        let mut moved = home_roots(&self.home).into_iter().filter(|root| root.has_log(id));
        moved.find(leads_here).unwrap_or_else(|| self.root.clone())
    }

    /// The notice when another folder than `.pixir` is used.
    pub fn notice(&self) -> Option<String> {
        let problem = self.problem.as_ref()?;
        let place = self.root.folder().path();
        Some(format!("{problem}: sessions and undo data are kept in {} instead", place.display()))
    }
}

/// Chooses the state folders of a Workspace; creates nothing.
pub fn resolve_state(home: &Home, workspace: &Path) -> StateLocation {
    let own = StateRoot::in_workspace(workspace);
    let other = StateRoot::in_home(home, workspace);
    match check_state_folder(workspace) {
        Ok(()) => {
            let earlier = has_sessions(&other).then_some(other);
            StateLocation { home: home.clone(), root: own, earlier, problem: None }
        }
        Err(problem) => {
            let own = own.read_only(problem.clone());
            let earlier = has_sessions(&own).then_some(own);
            StateLocation { home: home.clone(), root: other, earlier, problem: Some(problem) }
        }
    }
}

/// The state folders with Sessions of a Workspace; the one for new Sessions comes first.
pub fn readable_roots(home: &Home, workspace: &Path) -> Vec<StateRoot> {
    let StateLocation { root, earlier, .. } = resolve_state(home, workspace);
    Some(root).filter(has_sessions).into_iter().chain(earlier).collect()
}

/// State folders of a Workspace that may hold Sessions but cannot be read.
pub fn unreadable_roots(home: &Home, workspace: &Path) -> Vec<PathBuf> {
    let roots = [StateRoot::in_workspace(workspace), StateRoot::in_home(home, workspace)];
    let refused = |root: &StateRoot| match root.folder.clone().read_only().join("sessions").open() {
        Ok(Some(folder)) => folder.names().err(),
        Ok(None) => None,
        Err(error) => Some(error),
    };
    let refused = roots.iter().filter_map(refused);
    // Another owner is a problem for reading only when access was refused.
    let is_denied = |error: &StateError| match error {
        StateError::Unsafe { found, .. } => *found == UnsafeEntry::OtherOwner,
        other => other.io_kind() == io::ErrorKind::PermissionDenied,
    };
    let denied = refused.filter(is_denied);
    denied.map(|error| error.path().to_owned()).collect()
}

/// All state folders in the Home. Those of Workspaces that were moved or removed are in no other list.
pub fn home_roots(home: &Home) -> Vec<StateRoot> {
    let all = StatePath::root(home.path()).join(Home::WORKSPACE_FOLDERS).open().ok().flatten();
    let names = all.as_ref().and_then(|all| all.names().ok()).unwrap_or_default();
    let root = |name: &OsString| {
        let folder = all.as_ref()?.open_dir(name).ok()??;
        let workspace = folder.read(WORKSPACE_NAME, LONGEST_PATH).ok()??;
        let root = StateRoot::in_home(home, PathBuf::from(OsString::from_vec(workspace)));
        // The name is a digest of the path, so the file cannot name another Workspace.
        (root.folder().path() == folder.path() && root.workspace().is_absolute()).then_some(root)
    };
    names.iter().filter_map(root).filter(has_sessions).collect()
}

fn has_sessions(root: &StateRoot) -> bool {
    matches!(root.sessions().open(), Ok(Some(_)))
}

/// Checks whether `.pixir` of a Workspace can be used for state.
fn check_state_folder(workspace: &Path) -> Result<(), StateProblem> {
    let unwritable = |path: &Path| StateProblem::Unwritable { path: path.to_owned() };
    let root = StateDir::open_root(workspace).map_err(|_| unwritable(workspace))?;
    let Some(state) = root.open_dir(STATE_FOLDER).map_err(problem_from_error)? else {
        return if root.is_writable() { Ok(()) } else { Err(unwritable(workspace)) };
    };
    let mut has_state = false;
    let mut is_writable = state.is_writable();
    for name in STATE_FOLDERS {
        let Some(folder) = state.open_dir(name).map_err(problem_from_error)? else { continue };
        has_state = true;
        is_writable &= folder.is_writable();
        if name == "snapshots" {
            check_contents(&folder)?;
        }
    }
    if has_state {
        check_untracked(workspace)?;
    }
    if is_writable { Ok(()) } else { Err(unwritable(state.path())) }
}

fn problem_from_error(error: StateError) -> StateProblem {
    match error {
        StateError::Unsafe { path, found } => StateProblem::Unsafe { path, found },
        other => StateProblem::Unwritable { path: other.path().to_owned() },
    }
}

/// Checks the entries of the content store, because every Session writes there and replaces files.
fn check_contents(snapshots: &StateDir) -> Result<(), StateProblem> {
    for entry in snapshots.entries().map_err(problem_from_error)? {
        let found = match entry.kind {
            FileType::Directory | FileType::RegularFile if entry.is_own => continue,
            FileType::Directory | FileType::RegularFile => UnsafeEntry::OtherOwner,
            kind => UnsafeEntry::from_file_type(kind),
        };
        let path = snapshots.path().join(&entry.name);
        return Err(StateProblem::Unsafe { path, found });
    }
    Ok(())
}

/// Refuses state that an enclosing git repository tracks: it came with a checkout.
fn check_untracked(workspace: &Path) -> Result<(), StateProblem> {
    let state = workspace.join(STATE_FOLDER);
    for top in state.ancestors() {
        let Ok(below) = state.strip_prefix(top) else { continue };
        for index in git_index::index_files(&top.join(".git")) {
            if let Some(path) = tracked_state(&index, top, below.as_os_str().as_bytes()) {
                let path = top.join(path);
                return Err(StateProblem::Unsafe { path, found: UnsafeEntry::Tracked });
            }
        }
    }
    Ok(())
}

/// The first tracked path that is state; `prefix` is the path of `.pixir` in the work tree.
fn tracked_state(index: &Path, top: &Path, prefix: &[u8]) -> Option<PathBuf> {
    HASH_LENGTHS.into_iter().find_map(|hash_length| {
        let reader = git_index::open_index(index)?;
        // Paths are in order, and upper-case letters come before lower-case ones.
        let last = [prefix, b"/~"].concat().to_ascii_lowercase();
        let look = |IndexEntry { path, .. }: IndexEntry<'_>| {
            if is_state(path, prefix, |one, other| is_same_entry(top, one, other)) {
                return ControlFlow::Break(Some(PathBuf::from(OsStr::from_bytes(path))));
            }
            if !prefix.is_empty() && path > last.as_slice() {
                return ControlFlow::Break(None);
            }
            ControlFlow::Continue(())
        };
        let found: io::Result<Option<Option<PathBuf>>> =
            git_index::visit_entries(reader, hash_length, look);
        found.ok().flatten().flatten()
    })
}

/// Whether a tracked path is `.pixir` itself, a state folder, or in one. A name in another case is the same
/// only if `is_same` says so: on a file system that ignores case.
pub(super) fn is_state(path: &[u8], prefix: &[u8], is_same: impl Fn(&[u8], &[u8]) -> bool) -> bool {
    let Some((start, rest)) = path.split_at_checked(prefix.len()) else { return false };
    if !start.eq_ignore_ascii_case(prefix) {
        return false;
    }
    let is_meant = |found: &[u8], own: &[u8]| found == own || is_same(found, own);
    let rest = match rest {
        // A link or a submodule in the place of the folder.
        [] => return !prefix.is_empty() && is_meant(start, prefix),
        [b'/', rest @ ..] => rest,
        rest if prefix.is_empty() => rest,
        _ => return false,
    };
    let first = rest.split(|byte| *byte == b'/').next().unwrap_or_default();
    let found = path.get(..path.len() - rest.len() + first.len()).unwrap_or_default();
    let own = |name: &&&str| first.eq_ignore_ascii_case(name.as_bytes());
    STATE_FOLDERS.iter().find(own).is_some_and(|name| {
        let slash: &[u8] = if prefix.is_empty() { b"" } else { b"/" };
        is_meant(found, &[prefix, slash, name.as_bytes()].concat())
    })
}

/// Whether two paths below a folder are the same file system entry.
fn is_same_entry(top: &Path, one: &[u8], other: &[u8]) -> bool {
    let identity = |path: &[u8]| {
        let facts = top.join(OsStr::from_bytes(path)).symlink_metadata().ok()?;
        Some((facts.dev(), facts.ino()))
    };
    identity(one).is_some_and(|found| identity(other) == Some(found))
}

//! Which folder is used for the state of a Workspace, and why it is not the one in the Workspace.

use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::StateRoot;
use crate::error::Kind;
use crate::files::{StateDir, StateError, UnsafeEntry};
use crate::git_index::{self, HASH_LENGTHS, IndexEntry};
use crate::id::SessionId;
use crate::paths::{Home, STATE_FOLDER};
use rustix::fs::FileType;

/// The folders of `.pixir` that hold state. Settings, skills, roles and prompts are no state.
const STATE_FOLDERS: [&str; 4] = ["sessions", "snapshots", "blobs", "subagents"];

/// Where the state of a Workspace lives.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// Where new Sessions go.
    pub root: StateRoot,
    /// Where earlier Sessions may be.
    pub earlier: Option<StateRoot>,
    /// Why `.pixir` in the Workspace is not used.
    pub problem: Option<StateProblem>,
}

/// Why the folder in a Workspace is not used for state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateProblem {
    /// Something there is not what Pixir keeps there, is not the user's own, or is tracked by git.
    Unsafe {
        /// Where it is.
        path: PathBuf,
        /// What it is.
        found: UnsafeEntry,
    },
    /// The folder cannot be written.
    Unwritable {
        /// Where it is.
        path: PathBuf,
    },
}

impl StateProblem {
    /// What is in the way.
    pub fn path(&self) -> &Path {
        match self {
            Self::Unsafe { path, .. } | Self::Unwritable { path } => path,
        }
    }

    /// The stable name of what happened.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Unsafe { .. } => Kind::UnsafeStatePath,
            Self::Unwritable { .. } => Kind::WriteFailed,
        }
    }

    /// What to do to have state in the Workspace again.
    pub fn next_action(&self) -> &'static str {
        match self {
            Self::Unsafe { found: UnsafeEntry::Tracked, .. } => {
                "take it out of the repository with `git rm -r --cached`"
            }
            Self::Unsafe { found: UnsafeEntry::OtherOwner, .. } => "make it your own, or remove it",
            Self::Unsafe { .. } => "look at it and remove it",
            Self::Unwritable { .. } => "make it writable for you",
        }
    }
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

impl Resolved {
    /// The root that holds the Log of a Session; the first one when none does.
    pub fn root_of(&self, id: &SessionId) -> &StateRoot {
        let earlier = self.earlier.as_ref().filter(|_| !self.root.has_log(id));
        earlier.filter(|root| root.has_log(id)).unwrap_or(&self.root)
    }

    /// What the user should know about the place.
    pub fn notice(&self) -> Option<String> {
        let problem = self.problem.as_ref()?;
        let place = self.root.folder().path();
        Some(format!("{problem}: sessions and undo data are kept in {} instead", place.display()))
    }
}

/// Decides where the state of a Workspace lives; makes nothing.
pub fn resolve(home: &Home, workspace: &Path) -> Resolved {
    let own = StateRoot::in_workspace(workspace);
    let other = StateRoot::in_home(home, workspace);
    match problem(workspace, Depth::WithContents).err() {
        None => {
            let earlier = exists(&other).then_some(other);
            Resolved { root: own, earlier, problem: None }
        }
        Some(problem) => {
            let is_readable = exists(&own) && !matches!(problem, StateProblem::Unsafe { .. });
            Resolved { root: other, earlier: is_readable.then_some(own), problem: Some(problem) }
        }
    }
}

/// The roots that hold Sessions of a Workspace, for a look; where new ones go comes first.
pub fn readable(home: &Home, workspace: &Path) -> Vec<StateRoot> {
    let own = StateRoot::in_workspace(workspace);
    let other = StateRoot::in_home(home, workspace);
    let mut roots = match problem(workspace, Depth::Folders) {
        Ok(()) => vec![own, other],
        Err(StateProblem::Unwritable { .. }) => vec![other, own],
        Err(StateProblem::Unsafe { .. }) => vec![other],
    };
    roots.retain(exists);
    roots
}

fn exists(root: &StateRoot) -> bool {
    matches!(root.sessions().open(), Ok(Some(_)))
}

/// How much is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// The folders of state.
    Folders,
    /// Also what stands in the folder of contents, where every Session writes.
    WithContents,
}

fn problem(workspace: &Path, depth: Depth) -> Result<(), StateProblem> {
    let unwritable = |path: &Path| StateProblem::Unwritable { path: path.to_owned() };
    let root = StateDir::open_root(workspace).map_err(|_| unwritable(workspace))?;
    let Some(state) = root.open_dir(STATE_FOLDER).map_err(judged)? else {
        return if root.is_writable() { Ok(()) } else { Err(unwritable(workspace)) };
    };
    let mut has_state = false;
    let mut is_writable = state.is_writable();
    for name in STATE_FOLDERS {
        let Some(folder) = state.open_dir(name).map_err(judged)? else { continue };
        has_state = true;
        is_writable &= folder.is_writable();
        if name == "snapshots" && depth == Depth::WithContents {
            check_contents(&folder)?;
        }
    }
    if has_state {
        check_untracked(workspace)?;
    }
    if is_writable { Ok(()) } else { Err(unwritable(state.path())) }
}

fn judged(error: StateError) -> StateProblem {
    match error {
        StateError::Unsafe { path, found } => StateProblem::Unsafe { path, found },
        other => StateProblem::Unwritable { path: other.path().to_owned() },
    }
}

/// Every Session writes into the folders here and replaces the files here.
fn check_contents(snapshots: &StateDir) -> Result<(), StateProblem> {
    for entry in snapshots.entries().map_err(judged)? {
        match entry.kind {
            FileType::Directory => drop(snapshots.open_dir(&entry.name).map_err(judged)?),
            _ => drop(snapshots.open_file(&entry.name).map_err(judged)?),
        }
    }
    Ok(())
}

/// Refuses state that an enclosing repository tracks: it came with a checkout.
fn check_untracked(workspace: &Path) -> Result<(), StateProblem> {
    let state = workspace.join(STATE_FOLDER);
    for top in state.ancestors() {
        let Ok(below) = state.strip_prefix(top) else { continue };
        for index in git_index::index_files(&top.join(".git")) {
            if let Some(path) = tracked_state(&index, below.as_os_str().as_bytes()) {
                let path = top.join(path);
                return Err(StateProblem::Unsafe { path, found: UnsafeEntry::Tracked });
            }
        }
    }
    Ok(())
}

/// The first path of an index that is state below `prefix`, the path of `.pixir` in the work tree.
fn tracked_state(index: &Path, prefix: &[u8]) -> Option<PathBuf> {
    HASH_LENGTHS.into_iter().find_map(|hash_length| {
        let reader = git_index::open_index(index)?;
        // Paths are in order, and upper-case letters come before lower-case ones.
        let last = [prefix, b"/~"].concat().to_ascii_lowercase();
        let look = |IndexEntry { path, .. }: IndexEntry<'_>| {
            if is_state(path, prefix) {
                let found = std::ffi::OsStr::from_bytes(path);
                return ControlFlow::Break(Some(PathBuf::from(found)));
            }
            if !prefix.is_empty() && path > last.as_slice() {
                return ControlFlow::Break(None);
            }
            ControlFlow::Continue(())
        };
        let found: io::Result<Option<Option<PathBuf>>> =
            git_index::visit(reader, hash_length, look);
        found.ok().flatten().flatten()
    })
}

/// Whether a tracked path is `.pixir` itself, a folder of state, or in one. Names are compared as a
/// file system that ignores case does.
fn is_state(path: &[u8], prefix: &[u8]) -> bool {
    let Some((start, rest)) = path.split_at_checked(prefix.len()) else { return false };
    if !start.eq_ignore_ascii_case(prefix) {
        return false;
    }
    let rest = match rest {
        // A link, or another repository, in the place of the folder.
        [] => return !prefix.is_empty(),
        [b'/', rest @ ..] => rest,
        rest if prefix.is_empty() => rest,
        _ => return false,
    };
    let first = rest.split(|byte| *byte == b'/').next().unwrap_or_default();
    STATE_FOLDERS.iter().any(|own| first.eq_ignore_ascii_case(own.as_bytes()))
}

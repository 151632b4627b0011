//! Cache of used Workspaces in the Home folder; it may be deleted at any time.
//!
//! Only convenience depends on it: a missing, broken or stale file means fewer hits for
//! `sessions --all` and for `resume` from elsewhere, never an error.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::base::files::{StateDir, StateError, WriteDurability};
use crate::base::paths::Home;
use crate::record::state_dir;
use crate::record::state_dir::{StateProblem, StateRoot};

/// The most Workspaces in the cache; the oldest are dropped.
const MAX_WORKSPACES: usize = 1000;

/// The largest cache file that is read, in bytes.
const MAX_CACHE_BYTES: u64 = 4 * 1024 * 1024;

/// The Workspaces that still have Sessions, the most recently used first. Those whose state is in the Home
/// are always known, also when the cache has lost them or their folder is gone.
pub fn known_workspaces(home: &Home) -> Vec<PathBuf> {
    let has_sessions = |workspace: &PathBuf| !state_dir::readable_roots(home, workspace).is_empty();
    let mut known: Vec<PathBuf> =
        cached_workspaces(home).into_iter().filter(has_sessions).collect();
    for root in state_dir::home_roots(home) {
        if !known.iter().any(|workspace| workspace == root.workspace()) {
            known.push(root.workspace().to_owned());
        }
    }
    known
}

/// The state roots of these Workspaces that have Sessions.
pub fn state_roots(home: &Home, workspaces: &[PathBuf]) -> Vec<StateRoot> {
    workspaces.iter().flat_map(|workspace| state_dir::readable_roots(home, workspace)).collect()
}

/// The state roots whose Sessions may change files of a Workspace: `own`, and those of the same folder, of the
/// folders above it, and of known Workspaces inside it. State that may come from a third party is left out.
pub fn roots_around(home: &Home, workspace: &Path, own: &StateRoot) -> Vec<StateRoot> {
    let mut places: Vec<PathBuf> = workspace.ancestors().map(Path::to_owned).collect();
    let of_home = state_dir::home_roots(home);
    let used = cached_workspaces(home).into_iter();
    let known = used.chain(of_home.iter().map(|root| root.workspace().to_owned()));
    places.extend(known.filter(|other| other.starts_with(workspace)));
    let mut roots = vec![own.clone()];
    for root in state_roots(home, &places) {
        let is_own = !matches!(root.problem(), Some(StateProblem::Unsafe { .. }));
        if is_own && !roots.contains(&root) {
            roots.push(root);
        }
    }
    roots
}

/// Moves a Workspace to the head of the cache; a failure to write it is ignored.
pub fn remember_workspace(home: &Home, workspace: &Path) {
    let Ok(folder) = StateDir::create_root(home.path()) else { return };
    // One process at a time, or one of their changes would be lost; the kernel releases the lock of a dead process.
    let handle = folder.lock_handle().map_err(std::io::Error::from);
    let _held = handle.and_then(|handle| handle.lock().map(|()| handle));
    let mut list = read_cache(&folder);
    if list.first().is_some_and(|first| first == workspace) {
        return;
    }
    list.retain(|other| other != workspace);
    list.insert(0, workspace.to_owned());
    list.truncate(MAX_WORKSPACES);
    write_cache(&folder, &list).ok();
}

/// The Workspaces of the cache whose folder does not exist any more.
pub fn gone_workspaces(home: &Home) -> Vec<PathBuf> {
    cached_workspaces(home).into_iter().filter(|path| is_gone(path)).collect()
}

/// Whether nothing exists at the path of a Workspace.
pub(super) fn is_gone(workspace: &Path) -> bool {
    workspace.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Removes Workspaces without a folder from the cache; returns how many.
pub fn forget_gone_workspaces(home: &Home) -> std::io::Result<usize> {
    let folder = StateDir::open_root(home.path())?;
    let handle = folder.lock_handle()?;
    handle.lock()?;
    let gone = gone_workspaces(home);
    if !gone.is_empty() {
        let mut list = read_cache(&folder);
        list.retain(|path| !gone.contains(path));
        write_cache(&folder, &list)?;
    }
    Ok(gone.len())
}

/// Everything in the cache.
fn cached_workspaces(home: &Home) -> Vec<PathBuf> {
    StateDir::open_root(home.path()).map_or_else(|_| Vec::new(), |folder| read_cache(&folder))
}

fn read_cache(folder: &StateDir) -> Vec<PathBuf> {
    let read = folder.read(Home::WORKSPACES, MAX_CACHE_BYTES).ok().flatten();
    read.map_or_else(Vec::new, |bytes| parse_cache(&bytes))
}

fn parse_cache(bytes: &[u8]) -> Vec<PathBuf> {
    let cache: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let list = cache["workspaces"].as_array().into_iter().flatten();
    let paths = list.filter_map(Value::as_str).map(PathBuf::from);
    paths.filter(|path| path.is_absolute()).collect()
}

/// Replaces the cache as a whole.
fn write_cache(folder: &StateDir, list: &[PathBuf]) -> Result<(), StateError> {
    // A path that is not UTF-8 cannot be written in JSON; its Sessions are found from inside it.
    let list: Vec<&str> = list.iter().filter_map(|path| path.to_str()).collect();
    let text = json!({ "version": 1, "workspaces": list }).to_string();
    folder.replace(Home::WORKSPACES, text.as_bytes(), WriteDurability::Lazy)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_last_used_workspace_comes_first_and_only_living_ones_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path().join("home"));
        let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
        fs::create_dir_all(state_dir::StateRoot::in_workspace(&one).sessions().path()).unwrap();
        fs::create_dir_all(state_dir::StateRoot::in_workspace(&two).sessions().path()).unwrap();
        for workspace in [&one, &two, &one] {
            remember_workspace(&home, workspace);
        }
        remember_workspace(&home, &folder.path().join("gone"));
        assert_eq!(known_workspaces(&home), [one, two]);
    }

    #[test]
    fn a_broken_cache_is_an_empty_cache() {
        for bytes in ["", "[]", "{\"workspaces\":3}", "{\"workspaces\":[1,\"relative\"]}", "\0"] {
            assert_eq!(parse_cache(bytes.as_bytes()), Vec::<PathBuf>::new(), "{bytes}");
        }
        let home = Home::new("/proc/nowhere/pixir");
        remember_workspace(&home, Path::new("/tmp"));
        assert_eq!(known_workspaces(&home), Vec::<PathBuf>::new());
    }
}

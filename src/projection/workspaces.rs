//! The Workspaces that were used: a cache in the user's folder that may vanish at any time.
//!
//! Nothing depends on it but convenience: a missing, broken or stale file means fewer hits for
//! `sessions --all` and for `resume` from elsewhere, never an error.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::paths::{self, Home};

/// More Workspaces than anybody lists; the oldest fall out.
const MOST: usize = 1000;

/// No sane cache is larger.
const LARGEST: u64 = 4 * 1024 * 1024;

/// The Workspaces that still have Sessions, the one used last first.
pub fn known(home: &Home) -> Vec<PathBuf> {
    listed(home).into_iter().filter(|workspace| paths::sessions(workspace).is_dir()).collect()
}

/// Puts a Workspace at the head of the cache; what cannot be written is not missed.
pub fn remember(home: &Home, workspace: &Path) {
    // One at a time, or the list of one of them would be lost; the kernel's lock goes with its holder.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(home.folder()).ok();
    let folder = fs::File::open(home.folder());
    let _held = folder.and_then(|folder| folder.lock().map(|()| folder));
    let mut list = listed(home);
    if list.first().is_some_and(|first| first == workspace) {
        return;
    }
    list.retain(|other| other != workspace);
    list.insert(0, workspace.to_owned());
    list.truncate(MOST);
    store(home, &list).ok();
}

/// Workspaces of the cache whose folder is no more.
pub fn gone(home: &Home) -> Vec<PathBuf> {
    let is_gone = |path: &PathBuf| {
        path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    };
    listed(home).into_iter().filter(is_gone).collect()
}

/// Takes them out of it; says how many there were.
pub fn forget_gone(home: &Home) -> std::io::Result<usize> {
    let folder = fs::File::open(home.folder())?;
    folder.lock()?;
    let gone = gone(home);
    if !gone.is_empty() {
        let mut list = listed(home);
        list.retain(|path| !gone.contains(path));
        store(home, &list)?;
    }
    Ok(gone.len())
}

fn listed(home: &Home) -> Vec<PathBuf> {
    let path = home.workspaces();
    let is_sane = fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() <= LARGEST);
    if !is_sane {
        return Vec::new();
    }
    fs::read(path).map_or_else(|_| Vec::new(), |bytes| parse(&bytes))
}

fn parse(bytes: &[u8]) -> Vec<PathBuf> {
    let Ok(cache) = serde_json::from_slice::<Value>(bytes) else { return Vec::new() };
    let Some(list) = cache.get("workspaces").and_then(Value::as_array) else { return Vec::new() };
    let paths = list.iter().filter_map(Value::as_str).map(PathBuf::from);
    paths.filter(|path| path.is_absolute()).collect()
}

/// Replaces the cache as a whole.
fn store(home: &Home, list: &[PathBuf]) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(home.folder())?;
    // A path that is not UTF-8 cannot stand in JSON; its Sessions are found from inside it.
    let list: Vec<&str> = list.iter().filter_map(|path| path.to_str()).collect();
    let text = json!({ "version": 1, "workspaces": list }).to_string();
    let temporary = home.folder().join(format!(".workspaces.{:08x}", fastrand::u32(..)));
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let stored =
        file.write_all(text.as_bytes()).and_then(|()| fs::rename(&temporary, home.workspaces()));
    if stored.is_err() {
        fs::remove_file(&temporary).ok();
    }
    stored
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_used_workspace_comes_first_and_only_living_ones_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path().join("home"));
        let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
        fs::create_dir_all(paths::sessions(&one)).unwrap();
        fs::create_dir_all(paths::sessions(&two)).unwrap();
        for workspace in [&one, &two, &one] {
            remember(&home, workspace);
        }
        remember(&home, &folder.path().join("gone"));
        assert_eq!(known(&home), [one, two]);
    }

    #[test]
    fn a_broken_cache_is_an_empty_cache() {
        for bytes in ["", "[]", "{\"workspaces\":3}", "{\"workspaces\":[1,\"relative\"]}", "\0"] {
            assert_eq!(parse(bytes.as_bytes()), Vec::<PathBuf>::new(), "{bytes}");
        }
        let home = Home::new("/proc/nowhere/pixir");
        remember(&home, Path::new("/tmp"));
        assert_eq!(known(&home), Vec::<PathBuf>::new());
    }
}

//! Private `CARGO_HOME` with links to the real one, for commands without mount namespaces.
//!
//! Downloaded crates, their sources and git checkouts are linked one by one into folders that a command may
//! write, so that builds find them, also offline, and can add to them. Failures are ignored or logged: a
//! command may have created other files in the private folder.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use rustix::fs::FileType;

use crate::base::files::{StateDir, StateError};

/// Files and folders that cargo reads besides its caches, without credentials.
const LINKED_ENTRIES: &[&str] = &["bin", "env", "config", "config.toml"];
/// Cargo's caches. In each of them the entries two levels below are linked: crates and checkouts.
const CACHE_FOLDERS: &[&str] = &["registry", "git"];
/// The number of levels of folders that are created instead of linked.
const MADE_LEVELS: usize = 2;

/// Fills the private folder with links to the entries of the real one.
pub fn link_cargo_home(real: &Path, own: &StateDir) {
    for name in LINKED_ENTRIES.iter().filter(|name| real.join(name).exists()) {
        // An existing entry is a link already, or the command's own.
        rustix::fs::symlinkat(real.join(name), own, *name).ok();
    }
    for name in CACHE_FOLDERS {
        let linked =
            own.create_dir(name).and_then(|own| link_entries(&real.join(name), &own, MADE_LEVELS));
        if let Err(error) = linked {
            tracing::debug!(%error, name, "a cache of cargo is not linked");
        }
    }
}

fn link_entries(real: &Path, own: &StateDir, levels: usize) -> Result<(), StateError> {
    let known: HashSet<OsString> = own.names()?.into_iter().collect();
    for entry in fs::read_dir(real).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if levels > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            link_entries(&entry.path(), &own.create_dir(&name)?, levels - 1)?;
        } else if !known.contains(&name) {
            rustix::fs::symlinkat(entry.path(), own, &name).ok();
        }
    }
    for name in known.iter().filter(|name| real.join(name).symlink_metadata().is_err()) {
        // A dangling link is removed, so that cargo downloads the file again.
        if own.stat(name)?.is_some_and(|entry| entry.kind == FileType::Symlink) {
            own.remove_file(name)?;
        }
    }
    Ok(())
}

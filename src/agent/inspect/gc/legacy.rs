//! Child workspaces of the first version of Pixir: copies of a Workspace under `.pixir/subagents`.
//!
//! The copies are unused, but may have files that exist nowhere else. So they are removed only by age, when
//! every Log that stays says that the child is done, and Logs in them stay.

use std::collections::HashSet;
use std::io;

use rustix::fs::FileType;

use super::gc_folder::{FolderEntry, GcFolder};
use super::references::{collect_references, is_searchable};
use super::{GarbageItem, GarbageKind, GcOptions, SessionLog, garbage_item, is_older};
use crate::base::paths;
use crate::record::event::{Canonical, SubagentEventKind};
use crate::record::history::History;
use crate::record::log::Log;
use crate::record::state_dir::StateRoot;

/// The folder of these copies in the state folder.
const FOLDER: &str = "subagents";

/// The folders of children that are old enough and done.
pub fn unneeded_child_folders(
    root: &StateRoot,
    sessions: &GcFolder,
    living: &[&SessionLog],
    options: GcOptions,
) -> Vec<GarbageItem> {
    let Some(age) = options.older_than else { return Vec::new() };
    let Some(gc_folder) = GcFolder::open(&root.folder().join(FOLDER)) else { return Vec::new() };
    let is_old = |found: &FolderEntry| {
        let newest =
            gc_folder.open_folder(&found.name).map_or(found.written, |inner| newest_write(&inner));
        is_older(&FolderEntry { written: newest.max(found.written), ..found.clone() }, age)
    };
    let names = gc_folder.entries().into_iter();
    let old: Vec<FolderEntry> = names
        .filter(|found| found.file_type == FileType::Directory && is_searchable(&found.name))
        .filter(is_old)
        .collect();
    let wanted: HashSet<String> = old.iter().map(|found| found.name.clone()).collect();
    let mut needed = HashSet::new();
    for session in living.iter().filter(|_| !wanted.is_empty()) {
        needed.extend(active_children(root, sessions, session, &wanted));
    }
    let unneeded = old.iter().filter(|found| !needed.contains(&found.name));
    let garbage = unneeded.filter_map(|found| {
        let bytes = bytes_but_logs(&gc_folder.open_folder(&found.name)?, false);
        Some(GarbageItem {
            bytes,
            ..garbage_item(GarbageKind::SubagentFolder, &gc_folder, found, None)
        })
    });
    // A folder with nothing but Logs cannot get smaller.
    garbage.filter(|garbage| garbage.bytes > 0).collect()
}

/// The children that a Log names as not done. A Log that cannot be read may name any of them.
fn active_children(
    root: &StateRoot,
    sessions: &GcFolder,
    session: &SessionLog,
    wanted: &HashSet<String>,
) -> HashSet<String> {
    let mut named = HashSet::new();
    let file = sessions.open_file(&session.found.name);
    if file.is_none_or(|file| collect_references(file, wanted, &mut named).is_err()) {
        return wanted.clone();
    }
    if named.is_empty() {
        return named;
    }
    let Ok(reading) = Log::read(root, &session.id) else { return named };
    let history = History::from_events(reading.events);
    for fact in history.facts() {
        let Canonical::SubagentEvent(life) = fact else { continue };
        let Some(id) = life.subagent_id.as_ref().filter(|id| wanted.contains(*id)) else {
            continue;
        };
        if life.ends_run() && life.event != SubagentEventKind::Detached {
            named.remove(id);
        } else {
            named.insert(id.clone());
        }
    }
    named
}

/// Removes everything in a folder but Logs, and the folder with its last file.
pub fn remove_all_but_logs(gc_folder: &GcFolder, name: &str) -> io::Result<()> {
    clear(gc_folder, name, false).map(drop)
}

/// Clears a folder; returns whether it is gone.
fn clear(gc_folder: &GcFolder, name: &str, in_state: bool) -> io::Result<bool> {
    let Some(inner) = gc_folder.open_folder(name) else {
        gc_folder.remove_file(name)?;
        return Ok(true);
    };
    if !has_logs(&inner, in_state) {
        gc_folder.remove_folder(name)?;
        return Ok(true);
    }
    for found in inner.entries() {
        if found.file_type == FileType::Directory {
            clear(&inner, &found.name, leads_to_logs(&inner, &found.name))?;
        } else if !is_log(&found, in_state) {
            inner.remove_file(&found.name)?;
        }
    }
    Ok(false)
}

fn has_logs(gc_folder: &GcFolder, in_state: bool) -> bool {
    gc_folder.entries().iter().any(|found| match found.file_type {
        FileType::Directory => gc_folder
            .open_folder(&found.name)
            .is_some_and(|inner| has_logs(&inner, leads_to_logs(gc_folder, &found.name))),
        _ => is_log(found, in_state),
    })
}

fn bytes_but_logs(gc_folder: &GcFolder, in_state: bool) -> u64 {
    let sizes = gc_folder.entries().into_iter().map(|found| match found.file_type {
        FileType::Directory => gc_folder
            .open_folder(&found.name)
            .map_or(0, |inner| bytes_but_logs(&inner, leads_to_logs(gc_folder, &found.name))),
        _ if is_log(&found, in_state) => 0,
        // A link or an empty file counts, too.
        _ => found.bytes.max(1),
    });
    sizes.sum()
}

fn newest_write(gc_folder: &GcFolder) -> (i64, i64) {
    let times = gc_folder.entries().into_iter().map(|found| {
        let inside =
            gc_folder.open_folder(&found.name).filter(|_| found.file_type == FileType::Directory);
        inside.map_or(found.written, |inner| newest_write(&inner).max(found.written))
    });
    times.max().unwrap_or_default()
}

/// Whether a folder is the `sessions` folder of a state root.
fn leads_to_logs(gc_folder: &GcFolder, name: &str) -> bool {
    name == "sessions" && gc_folder.path().ends_with(paths::STATE_FOLDER)
}

fn is_log(found: &FolderEntry, in_state: bool) -> bool {
    in_state && found.file_type == FileType::RegularFile && found.name.ends_with(".ndjson")
}

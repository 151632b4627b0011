//! Child workspaces of the first Pixir: copies of a Workspace under `.pixir/subagents`.
//!
//! They are unused, but may have files that exist nowhere else. So they are removed only by age, when
//! every Log that stays says that the child is done, and Logs in them stay.

use std::collections::HashSet;
use std::io;

use rustix::fs::FileType;

use super::mention::{is_plain, mentioned};
use super::nook::{Found, Nook};
use super::{Session, Waste, Wish, is_older, thing};
use crate::base::paths;
use crate::record::event::{Canonical, SubagentEventKind};
use crate::record::history::History;
use crate::record::log::Log;
use crate::record::state_dir::StateRoot;

/// The folder, below Pixir's state.
const FOLDER: &str = "subagents";

/// The folders of children that are old enough and done.
pub fn folders(root: &StateRoot, sessions: &Nook, living: &[&Session], wish: Wish) -> Vec<Waste> {
    let Some(age) = wish.older_than else { return Vec::new() };
    let Some(nook) = Nook::open(&root.folder().join(FOLDER)) else { return Vec::new() };
    let is_old = |found: &Found| {
        let newest = nook.inner(&found.name).map_or(found.written, |inner| newest(&inner));
        is_older(&Found { written: newest.max(found.written), ..found.clone() }, age)
    };
    let names = nook.names().into_iter();
    let old: Vec<Found> = names
        .filter(|found| found.sort == FileType::Directory && is_plain(&found.name))
        .filter(is_old)
        .collect();
    let wanted: HashSet<String> = old.iter().map(|found| found.name.clone()).collect();
    let mut needed = HashSet::new();
    for session in living.iter().filter(|_| !wanted.is_empty()) {
        needed.extend(at_work(root, sessions, session, &wanted));
    }
    let unneeded = old.iter().filter(|found| !needed.contains(&found.name));
    let waste = unneeded.filter_map(|found| {
        let bytes = bytes_but_logs(&nook.inner(&found.name)?, false);
        Some(Waste { bytes, ..thing("subagent_folder", &nook, found, None) })
    });
    // A folder with nothing but Logs cannot get smaller.
    waste.filter(|waste| waste.bytes > 0).collect()
}

/// The children that a Log names as not done. A Log that cannot be read may name any of them.
fn at_work(
    root: &StateRoot,
    sessions: &Nook,
    session: &Session,
    wanted: &HashSet<String>,
) -> HashSet<String> {
    let mut named = HashSet::new();
    let file = sessions.file(&session.found.name);
    if file.is_none_or(|file| mentioned(file, wanted, &mut named).is_err()) {
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
pub fn remove(nook: &Nook, name: &str) -> io::Result<()> {
    clear(nook, name, false).map(drop)
}

/// Clears a folder; returns whether it is gone.
fn clear(nook: &Nook, name: &str, in_state: bool) -> io::Result<bool> {
    let Some(inner) = nook.inner(name) else {
        nook.remove_file(name)?;
        return Ok(true);
    };
    if !has_logs(&inner, in_state) {
        nook.remove_all(name)?;
        return Ok(true);
    }
    for found in inner.names() {
        if found.sort == FileType::Directory {
            clear(&inner, &found.name, leads_to_logs(&inner, &found.name))?;
        } else if !is_log(&found, in_state) {
            inner.remove_file(&found.name)?;
        }
    }
    Ok(false)
}

fn has_logs(nook: &Nook, in_state: bool) -> bool {
    nook.names().iter().any(|found| match found.sort {
        FileType::Directory => nook
            .inner(&found.name)
            .is_some_and(|inner| has_logs(&inner, leads_to_logs(nook, &found.name))),
        _ => is_log(found, in_state),
    })
}

fn bytes_but_logs(nook: &Nook, in_state: bool) -> u64 {
    let sizes = nook.names().into_iter().map(|found| match found.sort {
        FileType::Directory => nook
            .inner(&found.name)
            .map_or(0, |inner| bytes_but_logs(&inner, leads_to_logs(nook, &found.name))),
        _ if is_log(&found, in_state) => 0,
        // A link or an empty file counts, too.
        _ => found.bytes.max(1),
    });
    sizes.sum()
}

fn newest(nook: &Nook) -> (i64, i64) {
    let times = nook.names().into_iter().map(|found| {
        let inside = nook.inner(&found.name).filter(|_| found.sort == FileType::Directory);
        inside.map_or(found.written, |inner| newest(&inner).max(found.written))
    });
    times.max().unwrap_or_default()
}

/// Whether a folder is the `sessions` folder of a state root.
fn leads_to_logs(nook: &Nook, name: &str) -> bool {
    name == "sessions" && nook.path().ends_with(paths::STATE_FOLDER)
}

fn is_log(found: &Found, in_state: bool) -> bool {
    in_state && found.sort == FileType::RegularFile && found.name.ends_with(".ndjson")
}

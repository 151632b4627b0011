//! Garbage collection: unreferenced files in Pixir's state, and old Sessions on request.
//!
//! A plan is made first, and changes nothing. Clearing checks each item again before it is removed: one that was
//! used meanwhile stays. Nothing of an open Session is touched, nothing that a Log references, and nothing
//! younger than an hour, because a process may be about to reference it.

mod clear;
mod contents;
mod drafts;
mod gc_folder;
mod legacy;
mod references;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::FileType;
use serde::Serialize;

pub use clear::{GcResult, clear_garbage};
use contents::unreferenced_contents;
pub use drafts::abandoned_drafts;

use crate::agent::inspect::workspaces::is_gone;
use crate::base::files::StatePath;
use crate::base::id::{SessionId, is_hex};
use crate::base::names::names;
use crate::base::paths::Home;
use crate::host::sandbox;
use crate::record::log::{DamageKind, FileLocks, Log, LogError};
use crate::record::state_dir;
use crate::record::state_dir::StateRoot;
use gc_folder::{FolderEntry, GcFolder, parent_folder};
use references::{collect_references, is_searchable};

/// The minimum age of garbage: a writer references a new file sooner than this, or never.
const MIN_AGE: Duration = Duration::from_hours(1);

/// Options of a garbage collection: which old Sessions to remove, too.
#[derive(Debug, Clone, Copy, Default)]
pub struct GcOptions {
    /// The minimum time since the last write of such a Session; `None` removes no Sessions.
    pub older_than: Option<Duration>,
    /// How many of the newest Sessions stay, however old they are.
    pub keep: usize,
}

/// What a piece of garbage is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GarbageKind {
    Session,
    SessionFolder,
    Blob,
    Resource,
    Output,
    Snapshot,
    Leftover,
    /// The Workspace of a child.
    #[serde(rename = "annex")]
    ChildWorkspace,
    SubagentFolder,
    PackageCache,
}

names!(GarbageKind {
    Session = "session", SessionFolder = "session_folder", Blob = "blob", Resource = "resource",
    Output = "output", Snapshot = "snapshot", Leftover = "leftover", ChildWorkspace = "annex",
    SubagentFolder = "subagent_folder", PackageCache = "package_cache",
});

/// One file, folder or Session that may be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GarbageItem {
    pub kind: GarbageKind,
    #[serde(serialize_with = "crate::base::paths::as_text")]
    pub path: PathBuf,
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The time of the last write, to check again before it is removed.
    #[serde(skip)]
    pub(super) written: (i64, i64),
    /// The folder that contains it, to be opened again.
    #[serde(skip)]
    pub(super) folder: Option<StatePath>,
}

/// An old Session that stays, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeptSession {
    pub session_id: SessionId,
    pub reason: String,
}

/// The item for the Workspace of a child that no longer exists; `agent::child_workspace` removes it.
pub fn child_workspace_garbage(child: SessionId, path: PathBuf) -> GarbageItem {
    let folder = parent_folder(&path);
    let gc_folder = folder.as_ref().and_then(GcFolder::open);
    let bytes = gc_folder.map_or(0, |gc_folder| gc_folder.folder_bytes(child.as_str()));
    GarbageItem {
        kind: GarbageKind::ChildWorkspace,
        path,
        bytes,
        session_id: Some(child),
        written: (0, 0),
        folder,
    }
}

/// The garbage of one Workspace.
#[derive(Debug, Default, Serialize)]
pub struct GcPlan {
    #[serde(serialize_with = "crate::base::paths::as_text")]
    pub workspace: PathBuf,
    /// The state root that was searched; `None` where it is not the state of a Workspace.
    #[serde(skip)]
    pub root: Option<StateRoot>,
    #[serde(rename = "waste")]
    pub garbage: Vec<GarbageItem>,
    /// Sessions that are old enough and stay anyway.
    pub kept: Vec<KeptSession>,
}

impl GcPlan {
    /// The sum of the sizes.
    pub fn bytes(&self) -> u64 {
        self.garbage.iter().map(|garbage| garbage.bytes).sum()
    }
}

/// The Log file of a Session.
struct SessionLog {
    id: SessionId,
    found: FolderEntry,
    /// Whether a process has it open, or may have: a Log that cannot be read counts as open.
    is_open: bool,
    is_readable: bool,
}

/// Plans what can be removed in a Workspace; changes nothing.
pub fn plan_gc(root: &StateRoot, options: GcOptions) -> Result<GcPlan, LogError> {
    let workspace = root.workspace().to_owned();
    let mut plan = GcPlan { workspace, root: Some(root.clone()), ..GcPlan::default() };
    // Refuses state behind a link, before anything in it is trusted.
    if root.sessions().open().map_err(LogError::reading)?.is_none() {
        return Ok(plan);
    }
    let Some(sessions) = GcFolder::open(&root.sessions()) else { return Ok(plan) };
    let names = sessions.entries();
    let mut all = session_logs(&sessions, &names);
    all.sort_by_key(|session| std::cmp::Reverse(session.found.written));
    let old = old_sessions(&sessions, &all, options, &mut plan.kept);
    for session in all.iter().filter(|session| old.contains(&session.id)) {
        plan.garbage.push(GarbageItem {
            kind: GarbageKind::Session,
            path: root.log(&session.id),
            bytes: session.found.bytes + sessions.folder_bytes(session.id.as_str()),
            session_id: Some(session.id.clone()),
            written: session.found.written,
            folder: Some(root.sessions()),
        });
    }
    let living: Vec<&SessionLog> =
        all.iter().filter(|session| !old.contains(&session.id)).collect();
    for session in living.iter().filter(|session| !session.is_open) {
        plan.garbage.extend(unreferenced_files(root, &sessions, session));
    }
    plan.garbage.extend(ownerless_entries(&sessions, &names, &all));
    // An open Session stores contents before it references them.
    if !all.iter().any(|session| session.is_open) {
        plan.garbage.extend(unreferenced_contents(root, &sessions, &living));
        plan.garbage.extend(legacy::unneeded_child_folders(root, &sessions, &living, options));
    }
    Ok(plan)
}

/// Whether no Session of a Workspace is open now.
fn is_quiet(root: &StateRoot) -> bool {
    GcFolder::open(&root.sessions()).is_none_or(|sessions| {
        session_logs(&sessions, &sessions.entries()).iter().all(|own| !own.is_open)
    })
}

/// Paths that killed processes left in a Workspace's state; nothing else is searched for.
pub fn leftover_paths(root: &StateRoot) -> Vec<PathBuf> {
    let Some(sessions) = GcFolder::open(&root.sessions()) else { return Vec::new() };
    let left = |found: &FolderEntry| is_leftover(&found.name) && is_settled(found);
    sessions
        .entries()
        .iter()
        .filter(|found| left(found))
        .map(|found| sessions.path().join(&found.name))
        .collect()
}

/// Garbage in the Home: drafts, package caches, and state without Sessions of Workspaces that are gone.
pub fn home_garbage(home: &Home) -> Vec<GarbageItem> {
    let Some(folder) = GcFolder::open(&StatePath::root(home.path())) else { return Vec::new() };
    let is_draft = |found: &FolderEntry| {
        if is_replacement(&found.name) {
            return found.file_type == FileType::RegularFile;
        }
        let parts: Vec<&str> = found.name.split('.').collect();
        let [first, kind, random] = parts.as_slice() else { return false };
        first.is_empty()
            && matches!(*kind, "workspaces" | "ledger" | "config" | "models")
            && [8, 16].iter().any(|length| is_hex(random, *length))
            && found.file_type == FileType::RegularFile
    };
    let names = folder.entries().into_iter().filter(is_draft).filter(is_settled);
    let drafts = names.map(|found| garbage_item(GarbageKind::Leftover, &folder, &found, None));
    drafts.chain(empty_states(home)).chain(unused_cache_slots(home)).collect()
}

/// Unused private layers over package caches.
fn unused_cache_slots(home: &Home) -> Vec<GarbageItem> {
    let folder = StatePath::root(home.path()).join(Home::CACHES);
    let settled =
        sandbox::free_slots(&folder).into_iter().filter(|slot| is_before(slot.used, MIN_AGE));
    let garbage = settled.map(|slot| GarbageItem {
        kind: GarbageKind::PackageCache,
        path: folder.path().join(slot.name),
        bytes: slot.bytes,
        session_id: None,
        written: slot.used,
        folder: Some(folder.clone()),
    });
    garbage.collect()
}

fn empty_states(home: &Home) -> Vec<GarbageItem> {
    let place = StatePath::root(home.path()).join(Home::WORKSPACE_FOLDERS);
    let Some(all) = GcFolder::open(&place) else { return Vec::new() };
    let is_empty = |root: &StateRoot| {
        let sessions = root.sessions().open().ok().flatten();
        let names = sessions.and_then(|sessions| sessions.names().ok());
        is_gone(root.workspace()) && names.is_some_and(|names| names.is_empty())
    };
    let empty = state_dir::home_roots(home).into_iter().filter(is_empty);
    let found = empty.filter_map(|root| all.stat(root.folder().path().file_name()?.to_str()?));
    found.map(|found| garbage_item(GarbageKind::Leftover, &all, &found, None)).collect()
}

fn session_logs(sessions: &GcFolder, names: &[FolderEntry]) -> Vec<SessionLog> {
    let locks = FileLocks::read_current();
    let log = |found: &FolderEntry| {
        let id = SessionId::parse(found.name.strip_suffix(".ndjson")?).ok()?;
        if found.file_type != FileType::RegularFile {
            return None;
        }
        let file = sessions.open_file(&found.name);
        let is_open = file.as_ref().is_none_or(|file| locks.holder(file).is_some());
        Some(SessionLog { id, found: found.clone(), is_open, is_readable: file.is_some() })
    };
    names.iter().filter_map(log).collect()
}

/// The Sessions to remove: old enough, not among the newest, not open, and named by no Log that stays.
fn old_sessions(
    sessions: &GcFolder,
    all: &[SessionLog],
    options: GcOptions,
    kept: &mut Vec<KeptSession>,
) -> HashSet<SessionId> {
    let Some(age) = options.older_than else { return HashSet::new() };
    let mut going: BTreeMap<String, SessionId> = BTreeMap::new();
    for (place, session) in all.iter().enumerate() {
        if !is_older(&session.found, age) {
            continue;
        }
        let stays = |reason: &str| KeptSession {
            session_id: session.id.clone(),
            reason: reason.to_owned(),
        };
        if !session.is_readable {
            kept.push(stays("its Log cannot be read"));
        } else if session.is_open {
            kept.push(stays("a process has it open"));
        } else if place < options.keep {
            kept.push(stays("it is among the newest"));
        } else {
            going.insert(session.id.to_string(), session.id.clone());
        }
    }
    // A Session that stays keeps those that it names: its parent, its children.
    let mut looked_at: HashSet<SessionId> = HashSet::new();
    loop {
        let stays = |session: &&SessionLog| !going.contains_key(session.id.as_str());
        let next = all.iter().filter(stays).find(|session| !looked_at.contains(&session.id));
        let Some(session) = next.filter(|_| !going.is_empty()) else { break };
        looked_at.insert(session.id.clone());
        let wanted: HashSet<String> = going.keys().cloned().collect();
        let mut named = HashSet::new();
        let read = sessions
            .open_file(&session.found.name)
            .is_some_and(|file| collect_references(file, &wanted, &mut named).is_ok());
        // A Log that cannot be read may name any Session.
        let named = if read { named } else { wanted };
        for name in named {
            if let Some(id) = going.remove(&name) {
                kept.push(KeptSession {
                    session_id: id,
                    reason: format!("Session {} names it", session.id),
                });
            }
        }
    }
    going.into_values().collect()
}

/// Files in the folder of a Session that its Log does not reference. A damaged Log keeps everything, because its
/// lost lines may reference anything.
fn unreferenced_files(
    root: &StateRoot,
    sessions: &GcFolder,
    session: &SessionLog,
) -> Vec<GarbageItem> {
    let Some(folder) = sessions.open_folder(session.id.as_str()) else { return Vec::new() };
    let gc_folders: Vec<(GarbageKind, GcFolder)> = [
        (GarbageKind::Blob, "blobs"),
        (GarbageKind::Resource, "resources"),
        (GarbageKind::Output, "output"),
    ]
    .into_iter()
    .filter_map(|(kind, name)| Some((kind, folder.open_folder(name)?)))
    .collect();
    let candidates: Vec<(GarbageKind, &GcFolder, FolderEntry)> = gc_folders
        .iter()
        .flat_map(|(kind, gc_folder)| {
            gc_folder.entries().into_iter().map(move |found| (*kind, gc_folder, found))
        })
        .filter(|(_, _, found)| {
            let is_named = is_searchable(&found.name) || is_replacement(&found.name);
            found.file_type == FileType::RegularFile && is_named && is_settled(found)
        })
        .collect();
    if candidates.is_empty() || is_damaged(root, &session.id) {
        return Vec::new();
    }
    let wanted: HashSet<String> =
        candidates.iter().map(|(_, _, found)| found.name.clone()).collect();
    let Some(named) = referenced_names(sessions, session, &gc_folders, &wanted) else {
        return Vec::new();
    };
    candidates
        .iter()
        .filter(|(_, _, found)| !named.contains(&found.name))
        .map(|(kind, gc_folder, found)| {
            let kind = if is_draft(&found.name) { GarbageKind::Leftover } else { *kind };
            garbage_item(kind, gc_folder, found, Some(&session.id))
        })
        .collect()
}

/// The names that a Log and its blobs reference; `None` when one of them cannot be read.
fn referenced_names(
    sessions: &GcFolder,
    session: &SessionLog,
    gc_folders: &[(GarbageKind, GcFolder)],
    wanted: &HashSet<String>,
) -> Option<HashSet<String>> {
    let mut named = HashSet::new();
    collect_references(sessions.open_file(&session.found.name)?, wanted, &mut named).ok()?;
    let blobs = gc_folders
        .iter()
        .find(|(kind, _)| *kind == GarbageKind::Blob)
        .map(|(_, gc_folder)| gc_folder);
    let all = blobs.map(GcFolder::entries).unwrap_or_default();
    for blob in all.iter().filter(|blob| !is_draft(&blob.name)) {
        // A blob that is no candidate itself may also be a part of the Log.
        if let Some(file) = blobs.and_then(|gc_folder| gc_folder.open_file(&blob.name)) {
            let is_own = !wanted.contains(&blob.name) || named.contains(&blob.name);
            if is_own {
                collect_references(file, wanted, &mut named).ok()?;
            }
        }
    }
    Some(named)
}

fn is_damaged(root: &StateRoot, id: &SessionId) -> bool {
    Log::read(root, id).is_ok_and(|reading| {
        let loses = |flaw: &DamageKind| {
            matches!(flaw, DamageKind::Unreadable { .. } | DamageKind::Blob { .. })
        };
        reading.damage.iter().any(|damage| loses(&damage.kind))
    })
}

/// Session folders without a Log, and leftovers of forks and drafts.
fn ownerless_entries(
    sessions: &GcFolder,
    names: &[FolderEntry],
    all: &[SessionLog],
) -> Vec<GarbageItem> {
    let owned: HashSet<&str> = all.iter().map(|session| session.id.as_str()).collect();
    let mut garbage = Vec::new();
    for found in names.iter().filter(|found| is_settled(found)) {
        let is_folder = found.file_type == FileType::Directory;
        let id = SessionId::parse(&found.name).ok();
        // A Log with that name that is a link or a pipe was put there by the user, and is not touched.
        let has_log = sessions.stat(&format!("{}.ndjson", found.name)).is_some();
        let kind = match &id {
            _ if is_leftover(&found.name) => GarbageKind::Leftover,
            Some(id) if is_folder && !owned.contains(id.as_str()) && !has_log => {
                GarbageKind::SessionFolder
            }
            _ => continue,
        };
        let mut thing = garbage_item(kind, sessions, found, id.as_ref());
        if is_folder {
            thing.bytes = sessions.folder_bytes(&found.name);
        }
        garbage.push(thing);
    }
    garbage
}

/// Contents that are unreferenced now.
fn unneeded_contents(root: &StateRoot) -> HashSet<PathBuf> {
    let plan = plan_gc(root, GcOptions::default()).unwrap_or_default();
    let contents = plan.garbage.into_iter().filter(|garbage| garbage.kind == GarbageKind::Snapshot);
    contents.map(|garbage| garbage.path).collect()
}

fn garbage_item(
    kind: GarbageKind,
    gc_folder: &GcFolder,
    found: &FolderEntry,
    session: Option<&SessionId>,
) -> GarbageItem {
    let (path, bytes) = (gc_folder.path().join(&found.name), found.bytes);
    let folder = Some(gc_folder.state_folder().clone());
    GarbageItem { kind, path, bytes, session_id: session.cloned(), written: found.written, folder }
}

/// Whether a name is that of an unfinished fork, `.fork-…`.
fn is_leftover(name: &str) -> bool {
    name.strip_prefix(".fork-").is_some_and(|id| SessionId::parse(id).is_ok())
}

/// The draft of a file; earlier versions wrote `<sha256>.<random>`.
fn is_draft(name: &str) -> bool {
    let parts = name.split_once('.');
    is_replacement(name)
        || parts.is_some_and(|(hash, random)| is_hex(hash, 64) && is_hex(random, 8))
}

/// The draft of a content; earlier versions wrote `draft-<random>`.
fn is_content_draft(name: &str) -> bool {
    is_replacement(name) || name.starts_with("draft-")
}

/// `.<16 hex>.pixir-new`: a file that was about to replace another.
fn is_replacement(name: &str) -> bool {
    let random = name.strip_prefix('.').and_then(|rest| rest.strip_suffix(".pixir-new"));
    random.is_some_and(|random| is_hex(random, 16))
}

fn is_settled(found: &FolderEntry) -> bool {
    is_older(found, MIN_AGE)
}

fn is_older(found: &FolderEntry, age: Duration) -> bool {
    is_before(found.written, age)
}

fn is_before(written: (i64, i64), age: Duration) -> bool {
    let now = jiff::Timestamp::now().as_second();
    let age = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
    written.0 < now.saturating_sub(age)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn contents_stay_when_a_session_that_was_to_go_is_opened_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let root = StateRoot::in_workspace(folder.path());
        let (id, hash) = ("20200101T000000-000001", "ab".repeat(32));
        let log = folder.path().join(format!(".pixir/sessions/{id}.ndjson"));
        let record = folder.path().join(format!(".pixir/sessions/{id}/snapshots/1.ndjson"));
        let content = folder.path().join(".pixir/snapshots/ab").join(&hash);
        let long_ago = SystemTime::now() - Duration::from_hours(1000);
        for (path, text) in [(&log, "{}\n"), (&record, hash.as_str()), (&content, "x")] {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            fs::File::open(path).unwrap().set_modified(long_ago).unwrap();
        }
        let options = GcOptions { older_than: Some(Duration::from_hours(24)), keep: 0 };
        let planned = plan_gc(&root, options).unwrap();
        let kinds: Vec<GarbageKind> = planned.garbage.iter().map(|thing| thing.kind).collect();
        assert_eq!(kinds, [GarbageKind::Session, GarbageKind::Snapshot]);
        let held = fs::File::options().append(true).open(&log).unwrap();
        held.lock().unwrap();
        let cleared = clear_garbage(&planned);
        assert_eq!((cleared.count, cleared.spared.len()), (0, 2));
        assert!(log.exists() && content.exists());
        drop(held);
        // The Log was written to, so it no longer matches the plan.
        fs::write(&log, "{}\n{}\n").unwrap();
        assert_eq!(clear_garbage(&planned).count, 0);
        fs::File::open(&log).unwrap().set_modified(long_ago).unwrap();
        let again = plan_gc(&root, options).unwrap();
        assert_eq!(clear_garbage(&again).count, 2);
        assert!(!log.exists() && !content.exists());
    }
}

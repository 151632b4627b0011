//! Garbage collection: unreferenced files in Pixir's state, and old Sessions on request.
//!
//! A plan is made first, and changes nothing. Clearing checks each item again before it is removed: one that was
//! used meanwhile stays. Nothing of an open Session is touched, nothing that a Log references, and nothing
//! younger than an hour, because a process may be about to reference it.

mod clear;
mod contents;
mod drafts;
mod legacy;
mod mention;
mod nook;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::FileType;
use serde::Serialize;

pub use clear::{Cleared, clear};
use contents::contents;
pub use drafts::drafts;

use crate::agent::inspect::workspaces::is_gone;
use crate::base::files::StateFolder;
use crate::base::id::SessionId;
use crate::base::paths::Home;
use crate::host::sandbox;
use crate::record::log::{Flaw, Locks, Log, LogError};
use crate::record::state_dir;
use crate::record::state_dir::StateRoot;
use mention::{is_plain, mentioned};
use nook::{Found, Nook, around};

/// The least age of garbage: a writer references a new file sooner than this, or never.
const SETTLED: Duration = Duration::from_hours(1);

/// Which Sessions to remove beside leftovers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wish {
    /// Sessions that were not written for so long.
    pub older_than: Option<Duration>,
    /// How many of the newest Sessions stay, however old they are.
    pub keep: usize,
}

/// One file, folder or Session that may be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Waste {
    /// `session`, `session_folder`, `blob`, `resource`, `output`, `snapshot`, `leftover`, `annex`,
    /// `subagent_folder`, `package_cache` or `workspace_entry`.
    pub kind: &'static str,
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
    pub(super) folder: Option<StateFolder>,
}

/// An old Session that stays, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kept {
    pub session_id: SessionId,
    pub reason: String,
}

/// The Workspace of a child that no longer exists; `agent::child_workspace` removes it.
pub fn annex(child: SessionId, path: PathBuf) -> Waste {
    let folder = around(&path);
    let nook = folder.as_ref().and_then(Nook::open);
    let bytes = nook.map_or(0, |nook| nook.bytes_of(child.as_str()));
    Waste { kind: "annex", path, bytes, session_id: Some(child), written: (0, 0), folder }
}

/// The garbage of one Workspace.
#[derive(Debug, Default, Serialize)]
pub struct Plan {
    #[serde(serialize_with = "crate::base::paths::as_text")]
    pub workspace: PathBuf,
    /// The state root that was searched; `None` where it is not the state of a Workspace.
    #[serde(skip)]
    pub root: Option<StateRoot>,
    pub waste: Vec<Waste>,
    /// Sessions that are old enough and stay anyway.
    pub kept: Vec<Kept>,
}

impl Plan {
    /// The sum of the sizes.
    pub fn bytes(&self) -> u64 {
        self.waste.iter().map(|waste| waste.bytes).sum()
    }
}

/// The Log file of a Session.
struct Session {
    id: SessionId,
    found: Found,
    /// Whether a process has it open, or may have: a Log that cannot be read counts as open.
    is_open: bool,
    is_readable: bool,
}

/// Plans what can be removed in a Workspace; changes nothing.
pub fn plan(root: &StateRoot, wish: Wish) -> Result<Plan, LogError> {
    let workspace = root.workspace().to_owned();
    let mut plan = Plan { workspace, root: Some(root.clone()), ..Plan::default() };
    // Refuses state behind a link, before anything in it is trusted.
    if root.sessions().open().map_err(LogError::reading)?.is_none() {
        return Ok(plan);
    }
    let Some(sessions) = Nook::open(&root.sessions()) else { return Ok(plan) };
    let names = sessions.names();
    let mut all = logs(&sessions, &names);
    all.sort_by_key(|session| std::cmp::Reverse(session.found.written));
    let old = old_sessions(&sessions, &all, wish, &mut plan.kept);
    for session in all.iter().filter(|session| old.contains(&session.id)) {
        plan.waste.push(Waste {
            kind: "session",
            path: root.log(&session.id),
            bytes: session.found.bytes + sessions.bytes_of(session.id.as_str()),
            session_id: Some(session.id.clone()),
            written: session.found.written,
            folder: Some(root.sessions()),
        });
    }
    let living: Vec<&Session> = all.iter().filter(|session| !old.contains(&session.id)).collect();
    for session in living.iter().filter(|session| !session.is_open) {
        plan.waste.extend(belongings(root, &sessions, session));
    }
    plan.waste.extend(ownerless(&sessions, &names, &all));
    // An open Session stores contents before it references them.
    if !all.iter().any(|session| session.is_open) {
        plan.waste.extend(contents(root, &sessions, &living));
        plan.waste.extend(legacy::folders(root, &sessions, &living, wish));
    }
    Ok(plan)
}

/// Whether no Session of a Workspace is open now.
fn is_quiet(root: &StateRoot) -> bool {
    Nook::open(&root.sessions())
        .is_none_or(|sessions| logs(&sessions, &sessions.names()).iter().all(|own| !own.is_open))
}

/// Paths that killed processes left in a Workspace's state; nothing else is searched for.
pub fn leftovers(root: &StateRoot) -> Vec<PathBuf> {
    let Some(sessions) = Nook::open(&root.sessions()) else { return Vec::new() };
    let left = |found: &Found| is_leftover(&found.name) && is_settled(found);
    sessions
        .names()
        .iter()
        .filter(|found| left(found))
        .map(|found| sessions.path().join(&found.name))
        .collect()
}

/// Garbage in the Home: drafts, package caches, and state without Sessions of Workspaces that are gone.
pub fn home_waste(home: &Home) -> Vec<Waste> {
    let Some(folder) = Nook::open(&StateFolder::root(home.folder())) else { return Vec::new() };
    let is_draft = |found: &Found| {
        if is_replacement(&found.name) {
            return found.sort == FileType::RegularFile;
        }
        let parts: Vec<&str> = found.name.split('.').collect();
        let [first, kind, random] = parts.as_slice() else { return false };
        first.is_empty()
            && matches!(*kind, "workspaces" | "ledger" | "config" | "models")
            && is_hex(random, &[8, 16])
            && found.sort == FileType::RegularFile
    };
    let names = folder.names().into_iter().filter(is_draft).filter(is_settled);
    let drafts = names.map(|found| thing("leftover", &folder, &found, None));
    drafts.chain(empty_states(home)).chain(cache_slots(home)).collect()
}

/// Unused private layers over package caches.
fn cache_slots(home: &Home) -> Vec<Waste> {
    let folder = StateFolder::root(home.folder()).join(Home::CACHES);
    let settled =
        sandbox::free_slots(&folder).into_iter().filter(|slot| is_before(slot.used, SETTLED));
    let waste = settled.map(|slot| Waste {
        kind: "package_cache",
        path: folder.path().join(slot.name),
        bytes: slot.bytes,
        session_id: None,
        written: slot.used,
        folder: Some(folder.clone()),
    });
    waste.collect()
}

fn empty_states(home: &Home) -> Vec<Waste> {
    let place = StateFolder::root(home.folder()).join(Home::ANNEXES);
    let Some(all) = Nook::open(&place) else { return Vec::new() };
    let is_empty = |root: &StateRoot| {
        let sessions = root.sessions().open().ok().flatten();
        let names = sessions.and_then(|sessions| sessions.names().ok());
        is_gone(root.workspace()) && names.is_some_and(|names| names.is_empty())
    };
    let empty = state_dir::home_roots(home).into_iter().filter(is_empty);
    let found = empty.filter_map(|root| all.look(root.folder().path().file_name()?.to_str()?));
    found.map(|found| thing("leftover", &all, &found, None)).collect()
}

fn logs(sessions: &Nook, names: &[Found]) -> Vec<Session> {
    let locks = Locks::now();
    let log = |found: &Found| {
        let id = SessionId::parse(found.name.strip_suffix(".ndjson")?).ok()?;
        if found.sort != FileType::RegularFile {
            return None;
        }
        let file = sessions.file(&found.name);
        let is_open = file.as_ref().is_none_or(|file| locks.holder(file).is_some());
        Some(Session { id, found: found.clone(), is_open, is_readable: file.is_some() })
    };
    names.iter().filter_map(log).collect()
}

/// The Sessions to remove: old enough, not among the newest, not open, and named by no Log that stays.
fn old_sessions(
    sessions: &Nook,
    all: &[Session],
    wish: Wish,
    kept: &mut Vec<Kept>,
) -> HashSet<SessionId> {
    let Some(age) = wish.older_than else { return HashSet::new() };
    let mut going: BTreeMap<String, SessionId> = BTreeMap::new();
    for (place, session) in all.iter().enumerate() {
        if !is_older(&session.found, age) {
            continue;
        }
        let stays =
            |reason: &str| Kept { session_id: session.id.clone(), reason: reason.to_owned() };
        if !session.is_readable {
            kept.push(stays("its Log cannot be read"));
        } else if session.is_open {
            kept.push(stays("a process has it open"));
        } else if place < wish.keep {
            kept.push(stays("it is among the newest"));
        } else {
            going.insert(session.id.to_string(), session.id.clone());
        }
    }
    // A Session that stays keeps those that it names: its parent, its children.
    let mut looked_at: HashSet<SessionId> = HashSet::new();
    loop {
        let stays = |session: &&Session| !going.contains_key(session.id.as_str());
        let next = all.iter().filter(stays).find(|session| !looked_at.contains(&session.id));
        let Some(session) = next.filter(|_| !going.is_empty()) else { break };
        looked_at.insert(session.id.clone());
        let wanted: HashSet<String> = going.keys().cloned().collect();
        let mut named = HashSet::new();
        let read = sessions
            .file(&session.found.name)
            .is_some_and(|file| mentioned(file, &wanted, &mut named).is_ok());
        // A Log that cannot be read may name any Session.
        let named = if read { named } else { wanted };
        for name in named {
            if let Some(id) = going.remove(&name) {
                kept.push(Kept {
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
fn belongings(root: &StateRoot, sessions: &Nook, session: &Session) -> Vec<Waste> {
    let Some(folder) = sessions.inner(session.id.as_str()) else { return Vec::new() };
    let nooks: Vec<(&'static str, Nook)> =
        [("blob", "blobs"), ("resource", "resources"), ("output", "output")]
            .into_iter()
            .filter_map(|(kind, name)| Some((kind, folder.inner(name)?)))
            .collect();
    let candidates: Vec<(&'static str, &Nook, Found)> = nooks
        .iter()
        .flat_map(|(kind, nook)| nook.names().into_iter().map(move |found| (*kind, nook, found)))
        .filter(|(_, _, found)| {
            let is_named = is_plain(&found.name) || is_replacement(&found.name);
            found.sort == FileType::RegularFile && is_named && is_settled(found)
        })
        .collect();
    if candidates.is_empty() || is_damaged(root, &session.id) {
        return Vec::new();
    }
    let wanted: HashSet<String> =
        candidates.iter().map(|(_, _, found)| found.name.clone()).collect();
    let Some(named) = named_by(sessions, session, &nooks, &wanted) else { return Vec::new() };
    candidates
        .iter()
        .filter(|(_, _, found)| !named.contains(&found.name))
        .map(|(kind, nook, found)| {
            let kind = if is_draft(&found.name) { "leftover" } else { kind };
            thing(kind, nook, found, Some(&session.id))
        })
        .collect()
}

/// The names that a Log and its blobs reference; `None` when one of them cannot be read.
fn named_by(
    sessions: &Nook,
    session: &Session,
    nooks: &[(&'static str, Nook)],
    wanted: &HashSet<String>,
) -> Option<HashSet<String>> {
    let mut named = HashSet::new();
    mentioned(sessions.file(&session.found.name)?, wanted, &mut named).ok()?;
    let blobs = nooks.iter().find(|(kind, _)| *kind == "blob").map(|(_, nook)| nook);
    let all = blobs.map(Nook::names).unwrap_or_default();
    for blob in all.iter().filter(|blob| !is_draft(&blob.name)) {
        // A blob that is no candidate itself may also be a part of the Log.
        if let Some(file) = blobs.and_then(|nook| nook.file(&blob.name)) {
            let is_own = !wanted.contains(&blob.name) || named.contains(&blob.name);
            if is_own {
                mentioned(file, wanted, &mut named).ok()?;
            }
        }
    }
    Some(named)
}

fn is_damaged(root: &StateRoot, id: &SessionId) -> bool {
    Log::read(root, id).is_ok_and(|reading| {
        let loses = |flaw: &Flaw| matches!(flaw, Flaw::Unreadable { .. } | Flaw::Blob { .. });
        reading.damage.iter().any(|damage| loses(&damage.flaw))
    })
}

/// Session folders without a Log, and leftovers of forks and drafts.
fn ownerless(sessions: &Nook, names: &[Found], all: &[Session]) -> Vec<Waste> {
    let owned: HashSet<&str> = all.iter().map(|session| session.id.as_str()).collect();
    let mut waste = Vec::new();
    for found in names.iter().filter(|found| is_settled(found)) {
        let is_folder = found.sort == FileType::Directory;
        let id = SessionId::parse(&found.name).ok();
        // A Log with that name that is a link or a pipe was put there by the user, and is not touched.
        let has_log = sessions.look(&format!("{}.ndjson", found.name)).is_some();
        let kind = match &id {
            _ if is_leftover(&found.name) => "leftover",
            Some(id) if is_folder && !owned.contains(id.as_str()) && !has_log => "session_folder",
            _ => continue,
        };
        let mut thing = thing(kind, sessions, found, id.as_ref());
        if is_folder {
            thing.bytes = sessions.bytes_of(&found.name);
        }
        waste.push(thing);
    }
    waste
}

/// Contents that are unreferenced now.
fn unneeded(root: &StateRoot) -> HashSet<PathBuf> {
    let plan = plan(root, Wish::default()).unwrap_or_default();
    let contents = plan.waste.into_iter().filter(|waste| waste.kind == "snapshot");
    contents.map(|waste| waste.path).collect()
}

fn thing(kind: &'static str, nook: &Nook, found: &Found, session: Option<&SessionId>) -> Waste {
    let (path, bytes) = (nook.path().join(&found.name), found.bytes);
    let folder = Some(nook.place().clone());
    Waste { kind, path, bytes, session_id: session.cloned(), written: found.written, folder }
}

/// `.fork-…`, and drafts of Logs.
fn is_leftover(name: &str) -> bool {
    name.strip_prefix(".fork-").is_some_and(|id| SessionId::parse(id).is_ok())
}

/// The draft of a file; earlier versions wrote `<sha256>.<random>`.
fn is_draft(name: &str) -> bool {
    let parts = name.split_once('.');
    is_replacement(name)
        || parts.is_some_and(|(hash, random)| is_hex(hash, &[64]) && is_hex(random, &[8]))
}

/// The draft of a content; earlier versions wrote `draft-<random>`.
fn is_content_draft(name: &str) -> bool {
    is_replacement(name) || name.starts_with("draft-")
}

/// `.<16 hex>.pixir-new`: a file that was about to replace another.
fn is_replacement(name: &str) -> bool {
    let random = name.strip_prefix('.').and_then(|rest| rest.strip_suffix(".pixir-new"));
    random.is_some_and(|random| is_hex(random, &[16]))
}

fn is_hex(text: &str, lengths: &[usize]) -> bool {
    lengths.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_settled(found: &Found) -> bool {
    is_older(found, SETTLED)
}

fn is_older(found: &Found, age: Duration) -> bool {
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
        let wish = Wish { older_than: Some(Duration::from_hours(24)), keep: 0 };
        let planned = plan(&root, wish).unwrap();
        let kinds: Vec<&str> = planned.waste.iter().map(|thing| thing.kind).collect();
        assert_eq!(kinds, ["session", "snapshot"]);
        let held = fs::File::options().append(true).open(&log).unwrap();
        held.lock().unwrap();
        let cleared = clear(&planned);
        assert_eq!((cleared.count, cleared.spared.len()), (0, 2));
        assert!(log.exists() && content.exists());
        drop(held);
        // It was written to, so it is not what was planned any more.
        fs::write(&log, "{}\n{}\n").unwrap();
        assert_eq!(clear(&planned).count, 0);
        fs::File::open(&log).unwrap().set_modified(long_ago).unwrap();
        let again = plan(&root, wish).unwrap();
        assert_eq!(clear(&again).count, 2);
        assert!(!log.exists() && !content.exists());
    }
}

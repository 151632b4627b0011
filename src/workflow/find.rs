//! Runs by their ids: which Session of a Workspace has one.

use std::path::Path;

use memchr::memmem;

use super::fold::{Past, runs};
use super::spec::Workflow;
use crate::history::History;
use crate::id::SessionId;
use crate::log::{Folder, Log, LogError, holder};
use crate::paths;

/// How many runs a list shows.
const MOST: usize = 1000;

/// How many Sessions are looked at for a run that was cut off.
const LOOKED_AT: usize = 40;

/// A run, and the Session that it belongs to.
#[derive(Debug, Clone)]
pub struct Found {
    pub session: SessionId,
    pub past: Past,
}

/// The run of this id, or the last run of the Session of this id.
pub fn find(workspace: &Path, id: &str) -> Result<Option<Found>, LogError> {
    if let Some(session) = session_named(id) {
        let last = past_runs(workspace, &session)?.pop();
        return Ok(last.map(|past| Found { session, past }));
    }
    let needle = format!("\"workflow_id\":{}", serde_json::Value::from(id));
    for session in sessions_with(workspace, needle.as_bytes()) {
        let own = past_runs(workspace, &session)?.into_iter().rfind(|past| past.id == id);
        if let Some(past) = own {
            return Ok(Some(Found { session, past }));
        }
    }
    Ok(None)
}

/// The Session that an id names, if it is not that of a run.
pub fn session_named(id: &str) -> Option<SessionId> {
    SessionId::parse(id).ok().filter(|_| !id.starts_with("wf_"))
}

/// All runs of a Workspace, the newest Session first.
pub fn all(workspace: &Path) -> Vec<Found> {
    let mut found = Vec::new();
    for session in sessions_with(workspace, b"\"type\":\"workflow_event\"") {
        let own = past_runs(workspace, &session).unwrap_or_default();
        found.extend(own.into_iter().rev().map(|past| Found { session: session.clone(), past }));
        if found.len() >= MOST {
            found.truncate(MOST);
            break;
        }
    }
    found
}

/// A run of the same Workflow that was cut off and that nobody drives, among the last Sessions.
pub fn cut_off_before(workspace: &Path, workflow: &Workflow) -> Option<Past> {
    let hash = workflow.hash();
    let folder = Folder::open(workspace).ok()??;
    let is_free =
        |session: &SessionId| folder.read_log(session).is_ok_and(|log| holder(&log).is_none());
    let needle = format!("\"spec_sha256\":\"{hash}\"");
    let recent = names(workspace).into_iter().take(LOOKED_AT);
    recent
        .filter(|session| has(workspace, session, &memmem::Finder::new(needle.as_bytes())))
        .filter(is_free)
        .find_map(|session| past_runs(workspace, &session).ok()?.pop())
        .filter(|past| past.outcome.is_none() && past.spec_sha256 == hash)
}

/// The runs of a Session, as far as they were not taken back: what was merged is not there any more
/// then, and nobody must build on it.
pub fn live_runs(history: &History) -> Vec<Past> {
    let mut live: Vec<_> = history.live_backwards().map(|(_, fact)| fact).collect();
    live.reverse();
    runs(live.into_iter())
}

fn past_runs(workspace: &Path, session: &SessionId) -> Result<Vec<Past>, LogError> {
    Ok(live_runs(&History::from_events(Log::read(workspace, session)?.events)))
}

/// The Sessions whose Logs contain some bytes, the newest first.
fn sessions_with(workspace: &Path, needle: &[u8]) -> Vec<SessionId> {
    let finder = memmem::Finder::new(needle);
    names(workspace).into_iter().filter(|session| has(workspace, session, &finder)).collect()
}

/// All Sessions, the newest first.
fn names(workspace: &Path) -> Vec<SessionId> {
    let Ok(entries) = std::fs::read_dir(paths::sessions(workspace)) else { return Vec::new() };
    let mut names: Vec<SessionId> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let name = entry.file_name();
            SessionId::parse(name.to_str()?.strip_suffix(".ndjson")?).ok()
        })
        .collect();
    names.sort_unstable_by(|one, other| other.cmp(one));
    names
}

fn has(workspace: &Path, session: &SessionId, finder: &memmem::Finder<'_>) -> bool {
    let log = paths::log(workspace, session);
    std::fs::read(log).is_ok_and(|bytes| finder.find(&bytes).is_some())
}

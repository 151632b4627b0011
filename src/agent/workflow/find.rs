//! Finds recorded workflow runs by id in the Sessions of a Workspace.

use std::io::Read;

use memchr::memmem;

use super::fold::{Past, runs};
use super::spec::Workflow;
use crate::base::id::SessionId;
use crate::record::history::History;
use crate::record::log;
use crate::record::log::{Log, LogError, holder};
use crate::record::state_dir::StateRoot;

/// The most runs that a list shows.
const MOST: usize = 1000;

/// How many of the newest Sessions are searched for an interrupted run.
const LOOKED_AT: usize = 40;

/// A recorded run and the Session that it belongs to.
#[derive(Debug, Clone)]
pub struct Found {
    pub session: SessionId,
    pub past: Past,
}

/// Finds the run with this id, or the last run of the Session with this id.
pub fn find(root: &StateRoot, id: &str) -> Result<Option<Found>, LogError> {
    if let Some(session) = session_named(id) {
        let last = past_runs(root, &session)?.pop();
        return Ok(last.map(|past| Found { session, past }));
    }
    let needle = format!("\"workflow_id\":{}", serde_json::Value::from(id));
    for session in sessions_with(root, needle.as_bytes()) {
        let own = past_runs(root, &session)?.into_iter().rfind(|past| past.id == id);
        if let Some(past) = own {
            return Ok(Some(Found { session, past }));
        }
    }
    Ok(None)
}

/// Parses an id as a Session id; `None` for the id of a run.
pub fn session_named(id: &str) -> Option<SessionId> {
    SessionId::parse(id).ok().filter(|_| !id.starts_with("wf_"))
}

/// All runs of a Workspace, the newest Session first.
pub fn all(root: &StateRoot) -> Vec<Found> {
    let mut found = Vec::new();
    for session in sessions_with(root, b"\"type\":\"workflow_event\"") {
        let own = past_runs(root, &session).unwrap_or_default();
        found.extend(own.into_iter().rev().map(|past| Found { session: session.clone(), past }));
        if found.len() >= MOST {
            found.truncate(MOST);
            break;
        }
    }
    found
}

/// Finds an interrupted run of the same Workflow among the newest Sessions, where no process holds the Session.
pub fn cut_off_before(root: &StateRoot, workflow: &Workflow) -> Option<Past> {
    let hash = workflow.hash();
    let is_free =
        |session: &SessionId| log::open_file(root, session).is_ok_and(|log| holder(&log).is_none());
    let needle = format!("\"spec_sha256\":\"{hash}\"");
    let recent = names(root).into_iter().take(LOOKED_AT);
    recent
        .filter(|session| has(root, session, &memmem::Finder::new(needle.as_bytes())))
        .filter(is_free)
        .find_map(|session| past_runs(root, &session).ok()?.pop())
        .filter(|past| past.outcome.is_none() && past.spec_sha256 == hash)
}

/// The runs of a Session that no rewind has removed. What a rewound run merged is no longer in the Workspace, so
/// it must not be resumed.
pub fn live_runs(history: &History) -> Vec<Past> {
    let mut live: Vec<_> = history.live_backwards().map(|(_, fact)| fact).collect();
    live.reverse();
    runs(live.into_iter())
}

fn past_runs(root: &StateRoot, session: &SessionId) -> Result<Vec<Past>, LogError> {
    Ok(live_runs(&History::from_events(Log::read(root, session)?.events)))
}

/// The Sessions whose Logs contain `needle`, the newest first.
fn sessions_with(root: &StateRoot, needle: &[u8]) -> Vec<SessionId> {
    let finder = memmem::Finder::new(needle);
    names(root).into_iter().filter(|session| has(root, session, &finder)).collect()
}

/// All Sessions, the newest first.
fn names(root: &StateRoot) -> Vec<SessionId> {
    let mut names = log::ids(root);
    names.sort_unstable_by(|one, other| other.cmp(one));
    names
}

fn has(root: &StateRoot, session: &SessionId, finder: &memmem::Finder<'_>) -> bool {
    let mut bytes = Vec::new();
    log::open_file(root, session)
        .is_ok_and(|mut log| log.read_to_end(&mut bytes).is_ok() && finder.find(&bytes).is_some())
}

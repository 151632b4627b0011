//! Finds recorded workflow runs by id in the Sessions of a Workspace.

use std::io::Read;

use memchr::memmem;

use super::replay::{RecordedRun, replay_runs};
use super::spec::Workflow;
use crate::base::id::SessionId;
use crate::record::history::History;
use crate::record::log;
use crate::record::log::{Log, LogError, lock_holder};
use crate::record::state_dir::StateRoot;

/// The most runs that a list shows.
const MAX_RUNS: usize = 1000;

/// How many of the newest Sessions are searched for an interrupted run.
const MAX_SEARCHED_SESSIONS: usize = 40;

/// A recorded run and the Session that it belongs to.
#[derive(Debug, Clone)]
pub struct FoundRun {
    pub session: SessionId,
    pub run: RecordedRun,
}

/// Finds the run with this id, or the last run of the Session with this id.
pub fn find_run(root: &StateRoot, id: &str) -> Result<Option<FoundRun>, LogError> {
    if let Some(session) = parse_session_id(id) {
        let last = read_runs(root, &session)?.pop();
        return Ok(last.map(|past| FoundRun { session, run: past }));
    }
    let needle = format!("\"workflow_id\":{}", serde_json::Value::from(id));
    for session in sessions_containing(root, needle.as_bytes()) {
        let own = read_runs(root, &session)?.into_iter().rfind(|past| past.id == id);
        if let Some(past) = own {
            return Ok(Some(FoundRun { session, run: past }));
        }
    }
    Ok(None)
}

/// Parses an id as a Session id; `None` for the id of a run.
pub fn parse_session_id(id: &str) -> Option<SessionId> {
    SessionId::parse(id).ok().filter(|_| !id.starts_with("wf_"))
}

/// All runs of a Workspace, the newest Session first.
pub fn all_runs(root: &StateRoot) -> Vec<FoundRun> {
    let mut found = Vec::new();
    for session in sessions_containing(root, b"\"type\":\"workflow_event\"") {
        let own = read_runs(root, &session).unwrap_or_default();
        found.extend(
            own.into_iter().rev().map(|past| FoundRun { session: session.clone(), run: past }),
        );
        if found.len() >= MAX_RUNS {
            found.truncate(MAX_RUNS);
            break;
        }
    }
    found
}

/// Finds an interrupted run of the same Workflow among the newest Sessions, where no process holds the Session.
pub fn find_interrupted_run(root: &StateRoot, workflow: &Workflow) -> Option<RecordedRun> {
    let hash = workflow.hash();
    let is_free = |session: &SessionId| {
        log::open_file(root, session).is_ok_and(|log| lock_holder(&log).is_none())
    };
    let needle = format!("\"spec_sha256\":\"{hash}\"");
    let recent = newest_sessions(root).into_iter().take(MAX_SEARCHED_SESSIONS);
    recent
        .filter(|session| log_contains(root, session, &memmem::Finder::new(needle.as_bytes())))
        .filter(is_free)
        .find_map(|session| read_runs(root, &session).ok()?.pop())
        .filter(|past| past.outcome.is_none() && past.spec_sha256 == hash)
}

/// The runs of a Session that no rewind has removed. What a rewound run merged is no longer in the Workspace, so
/// it must not be resumed.
pub fn live_runs(history: &History) -> Vec<RecordedRun> {
    let mut live: Vec<_> = history.live_backwards().map(|(_, fact)| fact).collect();
    live.reverse();
    replay_runs(live.into_iter())
}

fn read_runs(root: &StateRoot, session: &SessionId) -> Result<Vec<RecordedRun>, LogError> {
    Ok(live_runs(&History::from_events(Log::read(root, session)?.events)))
}

/// The Sessions whose Logs contain `needle`, the newest first.
fn sessions_containing(root: &StateRoot, needle: &[u8]) -> Vec<SessionId> {
    let finder = memmem::Finder::new(needle);
    newest_sessions(root)
        .into_iter()
        .filter(|session| log_contains(root, session, &finder))
        .collect()
}

/// All Sessions, the newest first.
fn newest_sessions(root: &StateRoot) -> Vec<SessionId> {
    let mut names = log::session_ids(root);
    names.sort_unstable_by(|one, other| other.cmp(one));
    names
}

fn log_contains(root: &StateRoot, session: &SessionId, finder: &memmem::Finder<'_>) -> bool {
    let mut bytes = Vec::new();
    log::open_file(root, session)
        .is_ok_and(|mut log| log.read_to_end(&mut bytes).is_ok() && finder.find(&bytes).is_some())
}

//! The list of Sessions: title, status, and the process that has each open.
//!
//! Thousands of Logs must be listed at once, so no Log is replayed: the title is in the head of a Log,
//! its status in the tail, and Turns are counted by a byte search. No lock is probed; the kernel's lock
//! table is read once.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use memchr::memmem;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::base::files::{StateDir, StateEntry};
use crate::base::id::SessionId;
use crate::record::event::{AssistantMessage, TerminalStatus};
use crate::record::history::History;
use crate::record::log;
use crate::record::log::{FileLocks, LogError, lock_holder};
use crate::record::state_dir::{SessionFolder, StateRoot, log_name};

use super::workspaces::is_gone;

/// How many bytes of a Log's head and tail are searched first.
const SCAN_BYTES: usize = 64 * 1024;

/// The most bytes that are searched for a title or a status.
const MAX_SCAN_BYTES: usize = 4 * 1024 * 1024;

/// How many ancestors of a Session are followed.
const MAX_ANCESTORS: usize = 100;

/// The bytes that mark a `user_message` in a Log of any version of Pixir. Quotes inside strings are
/// escaped, so text cannot imitate them.
const USER_MESSAGE_MARK: &[u8] = br#","type":"user_message","data":"#;

const SESSION_STARTED_MARK: &[u8] = br#","type":"session_started","data":"#;
const SESSION_FORK_MARK: &[u8] = br#","type":"session_fork","data":"#;
const POSTURE_CHANGED_MARK: &[u8] = br#","type":"posture_changed","data":"#;

/// A Session as a list shows it; its JSON form is a stable interface.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SessionSummary {
    pub session_id: SessionId,
    #[serde(serialize_with = "crate::base::paths::as_text")]
    pub workspace: PathBuf,
    #[serde(serialize_with = "crate::base::paths::as_text")]
    pub path: PathBuf,
    /// The first user message as it was written; presenters sanitise and shorten it.
    pub title: String,
    /// Seconds since the epoch of the last write.
    pub updated: i64,
    pub turns: usize,
    #[serde(flatten)]
    pub status: SummaryStatus,
    pub bytes: u64,
    /// The parent of a fork or child.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<SessionOrigin>,
    /// Why the Session can only be read and forked; absent when it can be continued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<String>,
    /// Whether the folder of the Workspace does not exist any more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub workspace_gone: bool,
}

/// The parent of a Session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SessionOrigin {
    /// `fork` or `child`.
    pub kind: &'static str,
    pub parent_session_id: String,
}

/// The status of a Session in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum SummaryStatus {
    /// The Session has no Turn yet.
    New,
    /// The last Turn was answered.
    Answered,
    /// The last Turn failed.
    Failed { terminal_status: String, message: String },
    /// The last Turn was stopped.
    Interrupted,
    /// The last Turn has no end yet; the next resume gives it one.
    Open,
    /// A process has the Session open.
    Running { pid: u32 },
    /// The Log could not be read.
    Unreadable { message: String },
}

/// The Sessions of some Workspaces, the most recently written first; at most `limit` of them are read.
pub fn list_sessions(roots: &[StateRoot], limit: usize) -> Vec<SessionSummary> {
    let page = list_page(roots, None, limit);
    page.into_iter().map(|(_, summary)| summary).collect()
}

/// The position of a Session in a list, the most recently written first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListPosition {
    /// Seconds and nanoseconds of the last write.
    pub written: (i64, i64),
    pub id: SessionId,
}

/// A page of the Sessions of several Workspaces together, after a position; only Logs on the page
/// are read.
pub fn list_page(
    roots: &[StateRoot],
    after: Option<&ListPosition>,
    limit: usize,
) -> Vec<(ListPosition, SessionSummary)> {
    let mut found: Vec<(ListPosition, &StateRoot, LogFileEntry)> = roots
        .iter()
        .flat_map(|root| {
            log_files(root).into_iter().map(move |entry| {
                let place = ListPosition { written: entry.written, id: entry.id.clone() };
                (place, root, entry)
            })
        })
        .filter(|(place, ..)| after.is_none_or(|after| place < after))
        .collect();
    found.sort_by(|(one, ..), (other, ..)| other.cmp(one));
    found.truncate(limit);
    let locks = FileLocks::read_current();
    found
        .into_iter()
        .filter_map(|(place, root, entry)| {
            let folder = root.sessions().open().ok()??;
            Some((place, summarise(root, &folder, &locks, entry)))
        })
        .collect()
}

/// The process that has a Session open; reading it takes no lock.
pub fn session_holder(root: &StateRoot, id: &SessionId) -> Option<u32> {
    let file = log::open_file(root, id).ok()?;
    FileLocks::read_current().holder(&file)
}

/// Deletes a Session's Log and folder, unless a process has it open; returns the deleted paths.
pub fn delete_session(root: &StateRoot, id: &SessionId) -> Result<Vec<PathBuf>, LogError> {
    let file = lock_log(root, id)?;
    remove_locked(root, id, &file)
}

/// Deletes a Session that was last written at `written`; returns whether it did.
pub(super) fn delete_if_unchanged(
    root: &StateRoot,
    id: &SessionId,
    written: (i64, i64),
) -> Result<bool, LogError> {
    let file = lock_log(root, id)?;
    let is_as_it_was =
        file.metadata().is_ok_and(|facts| (facts.mtime(), facts.mtime_nsec()) == written);
    if is_as_it_was {
        remove_locked(root, id, &file)?;
    }
    Ok(is_as_it_was)
}

/// Runs `work` while no process has a Session open, or can open it.
pub(super) fn while_closed<T>(
    root: &StateRoot,
    id: &SessionId,
    work: impl FnOnce() -> T,
) -> Result<T, LogError> {
    let _held = lock_log(root, id)?;
    Ok(work())
}

/// Opens the Log and takes its writer's lock.
fn lock_log(root: &StateRoot, id: &SessionId) -> Result<File, LogError> {
    let file = log::open_append(root, id)?;
    if file.try_lock().is_err() {
        return Err(LogError::Busy { id: id.clone(), holder: lock_holder(&file) });
    }
    Ok(file)
}

/// Removes a Session, its Log first: a folder without a Log is found later, a Log without its folder is damage.
fn remove_locked(root: &StateRoot, id: &SessionId, _held: &File) -> Result<Vec<PathBuf>, LogError> {
    let sessions = root.sessions().open().map_err(LogError::reading)?;
    let sessions = sessions.ok_or_else(|| LogError::NotFound { id: id.clone() })?;
    sessions.remove_file(log_name(id)).map_err(LogError::writing)?;
    let mut deleted = vec![root.log(id)];
    if sessions.remove_tree(id.as_str()).map_err(LogError::writing)? {
        deleted.push(root.session_folder(id).path());
    }
    Ok(deleted)
}

/// The model of a Session: the last one that its Log names, found without parsing the whole Log.
pub fn posture_model(root: &StateRoot, id: &SessionId) -> Option<String> {
    let mut file = log::open_file(root, id).ok()?;
    for needle in [POSTURE_CHANGED_MARK, SESSION_STARTED_MARK, SESSION_FORK_MARK] {
        let places = occurrences(&mut file, needle).ok()?;
        let model = places.into_iter().rev().find_map(|place| {
            file.seek(SeekFrom::Start(place + needle.len() as u64)).ok()?;
            let mut data = Vec::new();
            file.by_ref().take(SCAN_BYTES as u64).read_to_end(&mut data).ok()?;
            parse_model(&data)
        });
        if model.is_some() {
            return model;
        }
    }
    None
}

/// The folder of a Session, then those of its ancestors (fork sources and parents) in the same state root, the
/// nearest first.
pub fn lineage_folders(own: &SessionFolder, history: &History) -> Vec<SessionFolder> {
    let root = own.root();
    let mut folders = vec![own.clone()];
    let mut parent = history.parent_session_id().map(str::to_owned);
    while let Some(id) = parent.and_then(|id| SessionId::parse(&id).ok()) {
        let folder = root.session_folder(&id);
        // Logs can be edited, and then name each other in a circle.
        if folders.contains(&folder) || folders.len() > MAX_ANCESTORS {
            break;
        }
        folders.push(folder);
        let log = log::open_file(root, &id).ok();
        let head = log.and_then(|mut log| window_at_start(&mut log, SCAN_BYTES).ok());
        parent = head.and_then(|head| parse_origin(&head)).map(|origin| origin.parent_session_id);
    }
    folders
}

struct LogFileEntry {
    id: SessionId,
    /// Seconds and nanoseconds of the last write.
    written: (i64, i64),
    device: u64,
    inode: u64,
    bytes: u64,
}

fn log_files(root: &StateRoot) -> Vec<LogFileEntry> {
    let Ok(Some(sessions)) = root.sessions().open() else { return Vec::new() };
    let entry = |found: StateEntry| {
        let id = SessionId::parse(found.name.to_str()?.strip_suffix(".ndjson")?).ok()?;
        let StateEntry { device, inode, bytes, modified: written, .. } = found;
        let is_file = found.kind == rustix::fs::FileType::RegularFile;
        is_file.then_some(LogFileEntry { id, written, device, inode, bytes })
    };
    sessions.entries().unwrap_or_default().into_iter().filter_map(entry).collect()
}

fn summarise(
    root: &StateRoot,
    folder: &StateDir,
    locks: &FileLocks,
    entry: LogFileEntry,
) -> SessionSummary {
    let path = root.log(&entry.id);
    let opened = folder.open_file(log_name(&entry.id)).map_err(io::Error::from);
    let opened = opened.and_then(|file| file.map(log::refuse_huge).transpose());
    let opened = opened.and_then(|file| file.ok_or_else(|| io::ErrorKind::NotFound.into()));
    let read = opened.and_then(|mut file| {
        let head = window_at_start(&mut file, SCAN_BYTES)?;
        let title = match parse_title(&head) {
            None if entry.bytes > head.len() as u64 => {
                parse_title(&window_at_start(&mut file, MAX_SCAN_BYTES)?)
            }
            found => found,
        };
        Ok((
            parse_origin(&head),
            title.unwrap_or_default(),
            occurrences(&mut file, USER_MESSAGE_MARK)?.len(),
            read_status(&mut file, entry.bytes)?,
        ))
    });
    let (origin, title, turns, status) = read.unwrap_or_else(|error| {
        (None, String::new(), 0, SummaryStatus::Unreadable { message: error.to_string() })
    });
    let status = locks
        .holder_of(entry.device, entry.inode)
        .map_or(status, |pid| SummaryStatus::Running { pid });
    SessionSummary {
        session_id: entry.id,
        workspace: root.workspace().to_owned(),
        path,
        title,
        updated: entry.written.0,
        turns,
        status,
        bytes: entry.bytes,
        origin,
        read_only: root.problem().map(ToString::to_string),
        workspace_gone: is_gone(root.workspace()),
    }
}

/// The parent that the first line names.
fn parse_origin(head: &[u8]) -> Option<SessionOrigin> {
    let line = head.split(|byte| *byte == b'\n').next()?;
    let event: Value = serde_json::from_slice(line).ok()?;
    let kind = if event["type"] == "session_fork" { "fork" } else { "child" };
    let parent = event["data"]["parent_session_id"].as_str().filter(|parent| !parent.is_empty())?;
    Some(SessionOrigin { kind, parent_session_id: parent.to_owned() })
}

fn window_at_start(file: &mut File, size: usize) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    file.by_ref().take(size as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn window_at_end(file: &mut File, length: u64, size: usize) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(length.saturating_sub(size as u64)))?;
    let mut bytes = Vec::new();
    file.by_ref().take(size as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read_status(file: &mut File, length: u64) -> io::Result<SummaryStatus> {
    let mut size = SCAN_BYTES;
    loop {
        let tail = window_at_end(file, length, size)?;
        if let Some(status) = status_from_tail(&tail) {
            return Ok(status);
        }
        if size as u64 >= length || size >= MAX_SCAN_BYTES {
            return Ok(SummaryStatus::New);
        }
        size = size.saturating_mul(8);
    }
}

/// The offsets of a text in a Log; read in pieces, so that a large Log costs time and no memory.
fn occurrences(file: &mut impl ReadSeek, needle: &[u8]) -> io::Result<Vec<u64>> {
    const PIECE: usize = 256 * 1024;
    file.seek(SeekFrom::Start(0))?;
    let finder = memmem::Finder::new(needle);
    let (mut buffer, mut kept, mut offset) = (vec![0; PIECE], 0, 0);
    let mut places = Vec::new();
    loop {
        let free = buffer.get_mut(kept..).unwrap_or_default();
        let count = file.read(free)?;
        if count == 0 {
            return Ok(places);
        }
        let filled = kept + count;
        let bytes = buffer.get(..filled).unwrap_or_default();
        places.extend(finder.find_iter(bytes).map(|place| offset + place as u64));
        // A hit may be cut by the end of the piece. The kept bytes are shorter than a hit, so none is found twice.
        kept = (needle.len() - 1).min(filled);
        offset += (filled - kept) as u64;
        buffer.copy_within(filled - kept..filled, 0);
    }
}

trait ReadSeek: Read + Seek {}
impl<T: Read + Seek> ReadSeek for T {}

/// Type and payload of a line; its other fields are skipped.
#[derive(Deserialize)]
struct LineEnvelope<'a> {
    #[serde(borrow, rename = "type")]
    type_name: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    data: &'a serde_json::value::RawValue,
}

fn lines(bytes: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

fn parse_title(head: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct MessageText {
        text: String,
    }
    let has = |needle: &'static [u8]| move |line: &&[u8]| memmem::find(line, needle).is_some();
    let line = lines(head).find(has(USER_MESSAGE_MARK))?;
    let envelope: LineEnvelope<'_> = serde_json::from_slice(line).ok()?;
    // A payload in a blob has no text here; the list shows a placeholder.
    let words = serde_json::from_str::<MessageText>(envelope.data.get());
    Some(words.map_or_else(|_| "(a very long prompt)".to_owned(), |words| words.text))
}

/// The status of a Session by the last lines of its Log; `None` when they do not decide it.
fn status_from_tail(tail: &[u8]) -> Option<SummaryStatus> {
    lines(tail).rev().find_map(|line| {
        let envelope: LineEnvelope<'_> = serde_json::from_slice(line).ok()?;
        match envelope.type_name.as_ref() {
            "assistant_message" => {
                let message = serde_json::from_str::<AssistantMessage>(envelope.data.get());
                // A payload in a blob is not read here; only an answer grows that long.
                let Ok(message) = message else { return Some(SummaryStatus::Answered) };
                // The status of a run is in its `workflow_event`s, which come before this message.
                if message.is_report() {
                    return None;
                }
                let is_final = message.is_final();
                Some(if is_final { SummaryStatus::Answered } else { SummaryStatus::Open })
            }
            "turn_failed" => Some(failure_status(envelope.data.get())),
            "workflow_event" => Some(workflow_status(envelope.data.get())),
            "user_message"
            | "reasoning"
            | "tool_call"
            | "tool_result"
            | "permission_decision"
            | "provider_usage"
            | "plan" => Some(SummaryStatus::Open),
            _ => None,
        }
    })
}

/// The status of a Session whose last fact is about a Workflow.
fn workflow_status(data: &str) -> SummaryStatus {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct WorkflowFact {
        kind: String,
        status: String,
    }
    let fact = serde_json::from_str::<WorkflowFact>(data).unwrap_or_default();
    match (fact.kind.as_str(), fact.status.as_str()) {
        ("finished", "completed") => SummaryStatus::Answered,
        ("finished", "cancelled") => SummaryStatus::Interrupted,
        ("finished", _) => SummaryStatus::Failed {
            message: format!("the workflow is {}", fact.status),
            terminal_status: fact.status,
        },
        _ => SummaryStatus::Open,
    }
}

fn failure_status(data: &str) -> SummaryStatus {
    #[derive(Deserialize)]
    struct FailureFields {
        terminal_status: String,
        #[serde(default)]
        error_message: String,
    }
    match serde_json::from_str::<FailureFields>(data) {
        Ok(failed) if failed.terminal_status == TerminalStatus::Interrupted.as_str() => {
            SummaryStatus::Interrupted
        }
        Ok(failed) => SummaryStatus::Failed {
            terminal_status: failed.terminal_status,
            message: failed.error_message,
        },
        Err(_) => {
            SummaryStatus::Failed { terminal_status: "unknown".into(), message: String::new() }
        }
    }
}

/// The model that a posture names; bytes after the payload are ignored.
fn parse_model(data: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct PostureModel {
        model: Option<String>,
    }
    serde_json::Deserializer::from_slice(data).into_iter::<PostureModel>().next()?.ok()?.model
}

//! The list of Sessions: what each is about, how it stands, who holds it.
//!
//! Thousands of Logs must be listed in a blink, so nothing is folded: the title is in the head of
//! a Log, its standing in the tail, and Turns are counted as bytes. No lock is probed; the kernel's
//! table is read once.

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memchr::memmem;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::event::{AssistantMessage, TerminalStatus};
use crate::id::SessionId;
use crate::log::{Folder, Locks, LogError, holder};
use crate::paths;

/// How much of a Log's head and tail is looked at first.
const WINDOW: usize = 64 * 1024;

/// A line longer than this is not searched for a title or a standing.
const LARGEST_WINDOW: usize = 4 * 1024 * 1024;

/// How every `user_message` looks in a Log, of this Pixir and of the first. Quotes inside strings
/// are escaped, so text cannot imitate it.
const USER_MESSAGE: &[u8] = br#","type":"user_message","data":"#;

const SESSION_STARTED: &[u8] = br#","type":"session_started","data":"#;
const SESSION_FORK: &[u8] = br#","type":"session_fork","data":"#;
const POSTURE_CHANGED: &[u8] = br#","type":"posture_changed","data":"#;

/// A Session as a list shows it; a promise to machines, so it serializes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    pub session_id: SessionId,
    #[serde(serialize_with = "crate::paths::as_text")]
    pub workspace: PathBuf,
    #[serde(serialize_with = "crate::paths::as_text")]
    pub path: PathBuf,
    /// The first user message as it was written; presenters clean and cut it.
    pub title: String,
    /// Seconds since the epoch of the last write.
    pub updated: i64,
    pub turns: usize,
    #[serde(flatten)]
    pub standing: Standing,
    pub bytes: u64,
    /// Where it comes from, if it is not the first of its family.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

/// Where a Session comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// `fork` or `child`.
    pub kind: &'static str,
    pub parent_session_id: String,
}

/// How a Session stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Standing {
    /// Nothing was asked yet.
    New,
    /// The last Turn has its answer.
    Answered,
    /// The last Turn has none.
    Failed { terminal_status: String, message: String },
    /// The last Turn was stopped.
    Interrupted,
    /// The last Turn has no end yet; the next resume gives it one.
    Open,
    /// A process has it open.
    Running { pid: u32 },
    /// The Log could not be read.
    Unreadable { message: String },
}

/// The Sessions of a Workspace, the one written last first; at most `limit` of them are read.
pub fn list(workspace: &Path, limit: usize) -> Vec<Summary> {
    let mut entries = entries(workspace);
    entries.sort_by(|one, other| (other.written, &other.id).cmp(&(one.written, &one.id)));
    entries.truncate(limit);
    let Ok(Some(folder)) = Folder::open(workspace) else { return Vec::new() };
    let locks = Locks::now();
    entries.into_iter().map(|entry| summary(workspace, &folder, &locks, entry)).collect()
}

/// The place of a Session in a list, the one written last first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Seconds and nanoseconds of the last write.
    pub written: (i64, i64),
    pub id: SessionId,
}

/// A page of the Sessions of several Workspaces together, behind a place; only what is on the page
/// is read.
pub fn page(workspaces: &[PathBuf], after: Option<&Place>, limit: usize) -> Vec<(Place, Summary)> {
    let mut found: Vec<(Place, &PathBuf, Entry)> = workspaces
        .iter()
        .flat_map(|workspace| {
            entries(workspace).into_iter().map(move |entry| {
                let place = Place { written: entry.written, id: entry.id.clone() };
                (place, workspace, entry)
            })
        })
        .filter(|(place, ..)| after.is_none_or(|after| place < after))
        .collect();
    found.sort_by(|(one, ..), (other, ..)| other.cmp(one));
    found.truncate(limit);
    let locks = Locks::now();
    found
        .into_iter()
        .filter_map(|(place, workspace, entry)| {
            let folder = Folder::open(workspace).ok()??;
            Some((place, summary(workspace, &folder, &locks, entry)))
        })
        .collect()
}

/// Whether a Workspace has a Session.
pub fn find(workspace: &Path, id: &SessionId) -> bool {
    paths::log(workspace, id).symlink_metadata().is_ok_and(|found| found.is_file())
}

/// Who has a Session open; looking takes no lock.
pub fn holder_of(workspace: &Path, id: &SessionId) -> Option<u32> {
    let file = Folder::open(workspace).ok()??.read_log(id).ok()?;
    Locks::now().holder(&file)
}

/// Deletes a Session's Log and folder, unless a process has it open; says what was deleted.
pub fn delete(workspace: &Path, id: &SessionId) -> Result<Vec<PathBuf>, LogError> {
    let file = held(workspace, id)?;
    remove(workspace, id, &file)
}

/// The same, if nobody has written to it since; says whether it is gone.
pub(super) fn delete_as_it_was(
    workspace: &Path,
    id: &SessionId,
    written: (i64, i64),
) -> Result<bool, LogError> {
    let file = held(workspace, id)?;
    let is_as_it_was =
        file.metadata().is_ok_and(|facts| (facts.mtime(), facts.mtime_nsec()) == written);
    if is_as_it_was {
        remove(workspace, id, &file)?;
    }
    Ok(is_as_it_was)
}

/// Does something while nobody has a Session open, and nobody can open it.
pub(super) fn while_closed<T>(
    workspace: &Path,
    id: &SessionId,
    work: impl FnOnce() -> T,
) -> Result<T, LogError> {
    let _held = held(workspace, id)?;
    Ok(work())
}

/// The Log under its writer's lock.
fn held(workspace: &Path, id: &SessionId) -> Result<File, LogError> {
    let Some(state) = Folder::open(workspace)? else {
        return Err(LogError::NotFound { id: id.clone() });
    };
    let file = state.append_log(id)?;
    if file.try_lock().is_err() {
        return Err(LogError::Busy { id: id.clone(), holder: holder(&file) });
    }
    Ok(file)
}

/// Removes the Log first: a folder without a Log is found later, a Log without its folder is damage.
fn remove(workspace: &Path, id: &SessionId, _held: &File) -> Result<Vec<PathBuf>, LogError> {
    let (log, folder) = (paths::log(workspace, id), paths::session_folder(workspace, id));
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| LogError::Write { path, source }
    };
    fs::remove_file(&log).map_err(failed(&log))?;
    let mut deleted = vec![log];
    match fs::remove_dir_all(&folder) {
        Ok(()) => deleted.push(folder),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(&folder)(error)),
    }
    Ok(deleted)
}

/// The model a Session is set to: the last one named, found without folding the Log.
pub fn posture_model(workspace: &Path, id: &SessionId) -> Option<String> {
    let mut file = Folder::open(workspace).ok()??.read_log(id).ok()?;
    for needle in [POSTURE_CHANGED, SESSION_STARTED, SESSION_FORK] {
        let places = occurrences(&mut file, needle).ok()?;
        let model = places.into_iter().rev().find_map(|place| {
            file.seek(SeekFrom::Start(place + needle.len() as u64)).ok()?;
            let mut data = Vec::new();
            file.by_ref().take(WINDOW as u64).read_to_end(&mut data).ok()?;
            model_of(&data)
        });
        if model.is_some() {
            return model;
        }
    }
    None
}

struct Entry {
    id: SessionId,
    /// Seconds and nanoseconds of the last write.
    written: (i64, i64),
    device: u64,
    inode: u64,
    bytes: u64,
}

fn entries(workspace: &Path) -> Vec<Entry> {
    let Ok(folder) = fs::read_dir(paths::sessions(workspace)) else { return Vec::new() };
    let entry = |found: fs::DirEntry| {
        let name = found.file_name();
        let id = SessionId::parse(name.to_str()?.strip_suffix(".ndjson")?).ok()?;
        let facts = found.metadata().ok().filter(fs::Metadata::is_file)?;
        let written = (facts.mtime(), facts.mtime_nsec());
        let (device, inode) = (facts.dev(), facts.ino());
        Some(Entry { id, written, device, inode, bytes: facts.len() })
    };
    folder.flatten().filter_map(entry).collect()
}

fn summary(workspace: &Path, folder: &Folder, locks: &Locks, entry: Entry) -> Summary {
    let path = paths::log(workspace, &entry.id);
    let read = folder.read_log(&entry.id).map_err(io::Error::other).and_then(|mut file| {
        let head = window_at_start(&mut file, WINDOW)?;
        let title = match title(&head) {
            None if entry.bytes > head.len() as u64 => {
                title(&window_at_start(&mut file, LARGEST_WINDOW)?)
            }
            found => found,
        };
        Ok((
            origin(&head),
            title.unwrap_or_default(),
            occurrences(&mut file, USER_MESSAGE)?.len(),
            standing(&mut file, entry.bytes)?,
        ))
    });
    let (origin, title, turns, standing) = read.unwrap_or_else(|error| {
        (None, String::new(), 0, Standing::Unreadable { message: error.to_string() })
    });
    let standing = locks
        .holder_of(entry.device, entry.inode)
        .map_or(standing, |pid| Standing::Running { pid });
    Summary {
        session_id: entry.id,
        workspace: workspace.to_owned(),
        path,
        title,
        updated: entry.written.0,
        turns,
        standing,
        bytes: entry.bytes,
        origin,
    }
}

/// What the first line says about the parent.
fn origin(head: &[u8]) -> Option<Origin> {
    let line = head.split(|byte| *byte == b'\n').next()?;
    let event: Value = serde_json::from_slice(line).ok()?;
    let kind = if event["type"] == "session_fork" { "fork" } else { "child" };
    let parent = event["data"]["parent_session_id"].as_str().filter(|parent| !parent.is_empty())?;
    Some(Origin { kind, parent_session_id: parent.to_owned() })
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

fn standing(file: &mut File, length: u64) -> io::Result<Standing> {
    let mut size = WINDOW;
    loop {
        let tail = window_at_end(file, length, size)?;
        if let Some(standing) = standing_of(&tail) {
            return Ok(standing);
        }
        if size as u64 >= length || size >= LARGEST_WINDOW {
            return Ok(Standing::New);
        }
        size = size.saturating_mul(8);
    }
}

/// Where a text stands in a Log; read in pieces, so that a large Log costs time and no memory.
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
        // A hit may be cut by the end of the piece; one that was found is longer than what stays.
        kept = (needle.len() - 1).min(filled);
        offset += (filled - kept) as u64;
        buffer.copy_within(filled - kept..filled, 0);
    }
}

trait ReadSeek: Read + Seek {}
impl<T: Read + Seek> ReadSeek for T {}

/// What is looked at of a line; everything else of it is skipped.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, rename = "type")]
    type_name: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    data: &'a serde_json::value::RawValue,
}

fn lines(bytes: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

fn title(head: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Words {
        text: String,
    }
    let has = |needle: &'static [u8]| move |line: &&[u8]| memmem::find(line, needle).is_some();
    let line = lines(head).find(has(USER_MESSAGE))?;
    let envelope: Envelope<'_> = serde_json::from_slice(line).ok()?;
    // A payload that lies in a blob has no text here; a list can do without.
    let words = serde_json::from_str::<Words>(envelope.data.get());
    Some(words.map_or_else(|_| "(a very long prompt)".to_owned(), |words| words.text))
}

/// How the Session stands by the last lines of its Log; `None` when they do not tell.
fn standing_of(tail: &[u8]) -> Option<Standing> {
    lines(tail).rev().find_map(|line| {
        let envelope: Envelope<'_> = serde_json::from_slice(line).ok()?;
        match envelope.type_name.as_ref() {
            "assistant_message" => {
                let message = serde_json::from_str::<AssistantMessage>(envelope.data.get());
                // A payload in a blob cannot be judged here; only an answer grows that long.
                let Ok(message) = message else { return Some(Standing::Answered) };
                // How a run stands is told by its own facts, which come before this.
                if message.is_report() {
                    return None;
                }
                let is_final = message.is_final();
                Some(if is_final { Standing::Answered } else { Standing::Open })
            }
            "turn_failed" => Some(failure(envelope.data.get())),
            "workflow_event" => Some(run_standing(envelope.data.get())),
            "user_message"
            | "reasoning"
            | "tool_call"
            | "tool_result"
            | "permission_decision"
            | "provider_usage"
            | "plan" => Some(Standing::Open),
            _ => None,
        }
    })
}

/// How a Session stands whose last word is about a Workflow.
fn run_standing(data: &str) -> Standing {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Fact {
        kind: String,
        status: String,
    }
    let fact = serde_json::from_str::<Fact>(data).unwrap_or_default();
    match (fact.kind.as_str(), fact.status.as_str()) {
        ("finished", "completed") => Standing::Answered,
        ("finished", "cancelled") => Standing::Interrupted,
        ("finished", _) => Standing::Failed {
            message: format!("the workflow is {}", fact.status),
            terminal_status: fact.status,
        },
        _ => Standing::Open,
    }
}

fn failure(data: &str) -> Standing {
    #[derive(Deserialize)]
    struct Failed {
        terminal_status: String,
        #[serde(default)]
        error_message: String,
    }
    match serde_json::from_str::<Failed>(data) {
        Ok(failed) if failed.terminal_status == TerminalStatus::Interrupted.as_str() => {
            Standing::Interrupted
        }
        Ok(failed) => Standing::Failed {
            terminal_status: failed.terminal_status,
            message: failed.error_message,
        },
        Err(_) => Standing::Failed { terminal_status: "unknown".into(), message: String::new() },
    }
}

/// The model that a posture names; what follows the payload is not looked at.
fn model_of(data: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Posture {
        model: Option<String>,
    }
    serde_json::Deserializer::from_slice(data).into_iter::<Posture>().next()?.ok()?.model
}

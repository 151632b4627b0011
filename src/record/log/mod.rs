//! The Log: one append-only NDJSON file per Session, the only truth about it.
//!
//! `append` takes a fact and is the one place that makes a sequenced Event, so nothing that is not
//! on disk can be published. Nothing here interprets Events; that is `history`.

mod alteration;
mod blob;
mod line;
mod lock;
mod read;
mod reader;
mod repair;
#[cfg(test)]
mod tests;
mod verify;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

pub use alteration::Alteration;
pub use lock::{FileLocks, lock_holder};
pub use read::{DamageKind, LinePosition, LogContents, LogDamage, LogScan, TornLine};
pub use reader::LogReader;
pub use repair::{RepairReport, repair_log};
pub use verify::{LogBreak, UnfinishedTurn, Verification, verify_log};

use crate::base::error::{Explain, Explanation, Kind};
use crate::base::files::{StateDir, StateError};
use crate::base::id::{EventId, SessionId};
use crate::record::event::{
    Canonical, CanonicalParts, Event, EventFields, Extra, LogRepaired, Seq, SharedEvent, Timestamp,
};
use crate::record::history;
use crate::record::history::History;
use crate::record::state_dir::{SessionFolder, StateProblem, StateRoot, log_name};
use alteration::{FileIdentity, find_alteration};
use line::Proof;

/// The largest Log, in bytes.
pub const LARGEST: u64 = 16 << 30;

/// An open Log: this process is its one writer until the value is dropped.
#[derive(Debug)]
pub struct Log {
    id: SessionId,
    path: PathBuf,
    /// The folder of blobs and spilled output.
    folder: SessionFolder,
    file: Arc<File>,
    /// The folder of blobs, once this handle has stored one.
    blobs: Option<FileIdentity>,
    history: History,
    next_seq: Seq,
    proof: Proof,
    end: u64,
    state: WriteState,
    /// The folder that must be synced before the file's name is durable.
    unsynced_folder: Option<StateDir>,
    line: Vec<u8>,
}

/// Whether the file can take another line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteState {
    Sound,
    /// A failed append left bytes that could not be removed: the next line begins with a newline.
    Torn,
    /// A sync failed: what is on disk is unknown, so this handle writes no more.
    Poisoned,
}

/// Damage that was found when a Log was opened.
#[derive(Debug, Default)]
pub struct LogOpenReport {
    pub damage: Vec<LogDamage>,
    /// The torn tail that was closed, if there was one.
    pub torn: Option<TornLine>,
}

impl Log {
    /// Creates the Log of a new Session.
    pub fn create(root: impl Into<StateRoot>, id: &SessionId) -> Result<Self, LogError> {
        let root = &root.into();
        if let Some(problem) = root.problem() {
            return Err(LogError::ReadOnly { id: id.clone(), problem: problem.clone() });
        }
        let sessions = root.create_sessions().map_err(LogError::writing)?;
        let file = sessions.create_new(log_name(id)).map_err(|error| match error.io_kind() {
            std::io::ErrorKind::AlreadyExists => LogError::AlreadyExists { id: id.clone() },
            _ => LogError::writing(error),
        })?;
        let mut log = Self::lock_new(root, id, file)?;
        log.unsynced_folder = Some(sessions);
        Ok(log)
    }

    /// Opens an existing Log for writing: takes the lock, reads everything, closes a torn tail.
    pub fn open(
        root: impl Into<StateRoot>,
        id: &SessionId,
    ) -> Result<(Self, LogOpenReport), LogError> {
        let root = &root.into();
        let refused = |source| LogError::Io { path: root.log(id), source };
        let file = refuse_huge(open_append(root, id)?).map_err(refused)?;
        let mut log = Self::lock_new(root, id, file)?;
        let reading = read::read_log(&*log.file, id, &log.folder)
            .map_err(|source| LogError::Io { path: log.path.clone(), source })?;
        log.history = History::from_events(reading.events);
        log.next_seq = reading.next_seq;
        log.proof = reading.proof;
        log.end = reading.end;
        if reading.torn.is_some() {
            log.close_torn_tail()?;
        }
        let kept = reading.torn.iter().filter(|torn| torn.whole);
        for torn in reading.unrecorded.iter().chain(kept) {
            log.record_torn_line(torn)?;
        }
        Ok((log, LogOpenReport { damage: reading.damage, torn: reading.torn }))
    }

    /// Reads a Log without locking it; a writer may be at work.
    pub fn read(root: impl Into<StateRoot>, id: &SessionId) -> Result<LogContents, LogError> {
        let root = &root.into();
        let file = open_file(root, id)?;
        read::read_log(&file, id, &root.session_folder(id))
            .map_err(|source| LogError::Io { path: root.log(id), source })
    }

    /// Opens a Log to read it one Event at a time, without locking it.
    pub fn open_reader(root: &StateRoot, id: &SessionId) -> Result<LogReader, LogError> {
        let file = Arc::new(open_file(root, id)?);
        let folder = root.session_folder(id);
        Ok(LogReader { file, path: root.log(id), id: id.clone(), folder })
    }

    fn lock_new(root: &StateRoot, id: &SessionId, file: File) -> Result<Self, LogError> {
        let path = root.log(id);
        lock::lock_file(&file, id, &path)?;
        Ok(Self {
            id: id.clone(),
            path,
            folder: root.session_folder(id),
            file: Arc::new(file),
            blobs: FileIdentity::of_path(&blob::blobs_folder(&root.session_folder(id)))
                .ok()
                .flatten(),
            history: History::default(),
            next_seq: 0,
            proof: Proof::default(),
            end: 0,
            state: WriteState::Sound,
            unsynced_folder: None,
            line: Vec::new(),
        })
    }

    /// Writes a fact as the next Event: stamped, encoded, one write with the newline last.
    ///
    /// On an error nothing was recorded and no seq was used.
    pub fn append(&mut self, fact: Canonical) -> Result<SharedEvent, LogError> {
        self.append_as(EventId::mint(), Timestamp::now(), fact, Extra::new())
    }

    /// Writes a fact of another Session as the next Event, with its original time.
    pub fn append_copy(&mut self, of: &Event, fact: Canonical) -> Result<SharedEvent, LogError> {
        self.append_as(EventId::mint(), of.ts().clone(), fact, of.extra().clone())
    }

    fn append_as(
        &mut self,
        id: EventId,
        ts: Timestamp,
        fact: Canonical,
        extra: Extra,
    ) -> Result<SharedEvent, LogError> {
        if self.state == WriteState::Poisoned {
            return Err(self.write_error(std::io::Error::other("an earlier sync failed")));
        }
        self.check_unaltered()?;
        let mut data = to_raw_value(&fact).map_err(|error| self.encode_error(error))?;
        if data.get().len() > blob::LARGEST_INLINE {
            data = self.store_blob(&data).map_err(|source| self.write_error(source))?;
        }
        self.line.clear();
        if self.state == WriteState::Torn {
            self.line.push(b'\n');
        }
        let fields = EventFields {
            id: &id,
            session_id: &self.id,
            seq: Some(self.next_seq),
            ts: &ts,
            type_name: fact.type_name(),
            data: &*data,
            extra: &extra,
        };
        let proof = line::encode_line(&mut self.line, &fields, self.proof)
            .map_err(|error| self.encode_error(error))?;
        self.write_line()?;
        let event = Arc::new(Event::new_canonical(CanonicalParts {
            id,
            session_id: self.id.clone(),
            seq: Some(self.next_seq),
            ts,
            fact,
            extra,
        }));
        self.next_seq += 1;
        self.proof = proof;
        self.history.push(Arc::clone(&event));
        Ok(event)
    }

    /// Appends a result for every call without one, and an end for an open Turn.
    pub fn close_open_turn(&mut self, of_calls: &str, of_turn: &str) -> Result<(), LogError> {
        for call in self.history.orphan_calls() {
            self.append(history::orphan_result(&call, of_calls).into())?;
        }
        if self.history.turns().open.is_some() {
            self.append(history::interrupted_turn(of_turn).into())?;
        }
        Ok(())
    }

    /// Refuses to write when another program changed the file or its folder of blobs.
    fn check_unaltered(&self) -> Result<(), LogError> {
        let failed = |source| self.write_error(source);
        let mut found = find_alteration(&self.file, &self.path, self.end).map_err(failed)?;
        if found.is_none() && self.blobs.is_some() {
            let folder = blob::blobs_folder(&self.folder);
            if FileIdentity::of_path(&folder).map_err(failed)? != self.blobs {
                found = Some(Alteration::BlobsRemoved { folder });
            }
        }
        match found {
            Some(alteration) => Err(LogError::Altered { path: self.path.clone(), alteration }),
            None => Ok(()),
        }
    }

    /// Moves a large payload out of the line.
    fn store_blob(&mut self, data: &RawValue) -> std::io::Result<Box<RawValue>> {
        let inline = blob::store_blob(&self.folder, data.get().as_bytes())?;
        self.blobs = FileIdentity::of_path(&blob::blobs_folder(&self.folder))?;
        Ok(inline)
    }

    /// Refuses bytes that would make the file larger than the largest Log that is opened.
    fn check_room(&self, bytes: usize) -> Result<(), LogError> {
        if self.end.saturating_add(bytes as u64) <= LARGEST {
            return Ok(());
        }
        let text = format!("it is full: no Log has more than {} GiB", LARGEST >> 30);
        Err(self.write_error(std::io::Error::new(std::io::ErrorKind::FileTooLarge, text)))
    }

    fn write_line(&mut self) -> Result<(), LogError> {
        self.check_room(self.line.len())?;
        if let Err(source) = (&*self.file).write_all(&self.line) {
            // Remove half a line, so that the file ends where it did; this process is its only writer.
            let taken_back = self.state == WriteState::Sound && self.file.set_len(self.end).is_ok();
            if !taken_back {
                self.state = WriteState::Torn;
                let length = self.file.metadata().map(|metadata| metadata.len());
                self.end = length.unwrap_or(self.end);
            }
            return Err(self.write_error(source));
        }
        self.state = WriteState::Sound;
        self.end += self.line.len() as u64;
        Ok(())
    }

    fn close_torn_tail(&mut self) -> Result<(), LogError> {
        self.check_room(1)?;
        (&*self.file).write_all(b"\n").map_err(|source| self.write_error(source))?;
        self.end += 1;
        Ok(())
    }

    fn record_torn_line(&mut self, torn: &TornLine) -> Result<(), LogError> {
        let repaired = LogRepaired {
            offset: torn.place.offset,
            length: torn.place.length,
            sha256: torn.sha256.clone(),
            kept: torn.whole,
            extra: Extra::new(),
        };
        self.append(repaired.into()).map(|_| ())
    }

    /// The folder of a new Log, for a caller that makes the file's name durable before a `LogSyncer` has to.
    pub fn take_unsynced_folder(&mut self) -> Option<StateDir> {
        self.unsynced_folder.take()
    }

    /// A handle that forces the Log to the disk; it may run on another thread.
    pub fn syncer(&mut self) -> LogSyncer {
        let unsynced_folder = self.unsynced_folder.take();
        LogSyncer { file: Arc::clone(&self.file), path: self.path.clone(), unsynced_folder }
    }

    /// Refuses all further writes through this handle, because a sync failed.
    pub fn poison(&mut self) {
        self.state = WriteState::Poisoned;
    }

    /// The id of the Session.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of blobs and spilled output.
    pub fn folder(&self) -> &SessionFolder {
        &self.folder
    }

    /// The recorded Events that are held in memory; cheap.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Drops the Events that the last checkpoint replaces from memory; the file keeps them.
    pub fn drop_hidden_events(&mut self) {
        if let Some(shorter) = self.history.without_hidden() {
            self.history = shorter;
        }
    }

    /// A handle that reads the whole Log again; it may run on another thread.
    pub fn reader(&self) -> LogReader {
        LogReader {
            id: self.id.clone(),
            path: self.path.clone(),
            folder: self.folder.clone(),
            file: Arc::clone(&self.file),
        }
    }

    /// Holds all Events again, as a `LogReader` read them.
    pub fn replace_history(&mut self, whole: History) {
        self.history = whole;
    }

    /// The seq that the next Event will get.
    pub fn next_seq(&self) -> Seq {
        self.next_seq
    }

    fn write_error(&self, source: std::io::Error) -> LogError {
        LogError::Write { path: self.path.clone(), source }
    }

    fn encode_error(&self, error: serde_json::Error) -> LogError {
        self.write_error(error.into())
    }
}

impl Drop for Log {
    /// Releases the lock at once. Closing alone would not: a child process between fork and exec holds a copy of
    /// every descriptor.
    fn drop(&mut self) {
        self.file.unlock().ok();
    }
}

/// A handle that forces a Log to the disk.
pub struct LogSyncer {
    file: Arc<File>,
    path: PathBuf,
    unsynced_folder: Option<StateDir>,
}

impl LogSyncer {
    /// Returns when all that was appended and the file's name are on the disk.
    pub fn sync(&self) -> Result<(), LogError> {
        let failed = |source| LogError::Write { path: self.path.clone(), source };
        self.file.sync_data().map_err(failed)?;
        if let Some(folder) = &self.unsynced_folder {
            folder.sync().map_err(LogError::writing)?;
        }
        if self.file.metadata().map_err(failed)?.nlink() == 0 {
            return Err(failed(std::io::Error::other("the file was deleted while it was open")));
        }
        Ok(())
    }
}

/// Opens a Log for reading.
pub fn open_file(root: &StateRoot, id: &SessionId) -> Result<File, LogError> {
    let missing = || LogError::NotFound { id: id.clone() };
    let sessions = root.sessions().open().map_err(LogError::reading)?.ok_or_else(missing)?;
    let file = sessions.open_file(log_name(id)).map_err(LogError::reading)?.ok_or_else(missing)?;
    refuse_huge(file).map_err(|source| LogError::Io { path: root.log(id), source })
}

/// Refuses a Log that is larger than Pixir writes: reading it would take minutes, and more memory than there is.
pub fn refuse_huge(file: File) -> std::io::Result<File> {
    let length = file.metadata()?.len();
    if length <= LARGEST {
        return Ok(file);
    }
    let gigabytes = length >> 30;
    let text = format!("it has {gigabytes} GiB, and no Log has more than {} GiB", LARGEST >> 30);
    Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, text))
}

/// The Sessions that have a Log, in no order.
pub fn session_ids(root: &StateRoot) -> Vec<SessionId> {
    let Ok(Some(sessions)) = root.sessions().open() else { return Vec::new() };
    let names = sessions.names().unwrap_or_default();
    let id =
        |name: &std::ffi::OsString| SessionId::parse(name.to_str()?.strip_suffix(".ndjson")?).ok();
    names.iter().filter_map(id).collect()
}

/// Opens a Log for appending.
pub fn open_append(root: &StateRoot, id: &SessionId) -> Result<File, LogError> {
    let missing = || LogError::NotFound { id: id.clone() };
    let sessions = root.sessions().open().map_err(LogError::reading)?.ok_or_else(missing)?;
    if let Some(problem) = root.problem().filter(|_| root.has_log(id)) {
        return Err(LogError::ReadOnly { id: id.clone(), problem: problem.clone() });
    }
    sessions.open_append(log_name(id)).map_err(LogError::writing)?.ok_or_else(missing)
}

/// Errors of reading and writing a Log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The Log does not exist in this Workspace.
    #[error("there is no Session {id} in this Workspace")]
    NotFound {
        /// The requested Session.
        id: SessionId,
    },
    /// A new Log would replace one.
    #[error("a Session {id} already exists")]
    AlreadyExists {
        /// The existing Session.
        id: SessionId,
    },
    /// Another process is the writer of the Log.
    #[error("Session {id} is open in {}", holder_text(*.holder))]
    Busy {
        /// The requested Session.
        id: SessionId,
        /// The process that holds the lock, where it is known.
        holder: Option<u32>,
    },
    /// The state root of the Log cannot be written any more.
    #[error("Session {id} can be read, not continued: {problem}")]
    ReadOnly {
        /// The requested Session.
        id: SessionId,
        /// Why the state folder is read-only.
        problem: StateProblem,
    },
    /// A link or special file is in the place of Pixir's state.
    #[error(transparent)]
    UnsafePath(StateError),
    /// An Event could not be recorded.
    #[error("the Log {} cannot be written", path.display())]
    Write {
        /// The Log.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Another program changed the Log while it was open here.
    #[error("the Log {} cannot be written: {alteration} while this Session was open", path.display())]
    Altered {
        /// The Log.
        path: PathBuf,
        /// The change.
        alteration: Alteration,
    },
    /// A file could not be read.
    #[error("{} cannot be read", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl LogError {
    /// The error of reading state.
    pub fn reading(error: StateError) -> Self {
        match error {
            StateError::Io { path, source } => Self::Io { path, source },
            StateError::Unsafe { .. } | StateError::TooLarge { .. } => Self::UnsafePath(error),
        }
    }

    /// The error of writing state.
    pub fn writing(error: StateError) -> Self {
        match error {
            StateError::Io { path, source } => Self::Write { path, source },
            StateError::Unsafe { .. } | StateError::TooLarge { .. } => Self::UnsafePath(error),
        }
    }
}

fn holder_text(holder: Option<u32>) -> String {
    holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

impl Explain for LogError {
    fn explain(&self) -> Explanation {
        let file = |path: &Path| json!({ "path": path.to_string_lossy() });
        let is_full = |source: &std::io::Error| source.kind() == std::io::ErrorKind::FileTooLarge;
        match self {
            LogError::NotFound { id } => Kind::NotFound
                .with_details(json!({ "session_id": id }))
                .with_next_action("list the Sessions with `pixir sessions --all`"),
            LogError::AlreadyExists { id } => Kind::AlreadyExists
                .with_details(json!({ "session_id": id }))
                .with_next_action("try again: a new id is minted each time"),
            LogError::Busy { id, holder } => Kind::SessionBusy
                .with_details(json!({ "session_id": id, "pid": holder }))
                .with_next_action("wait for that process to end, or stop it"),
            LogError::ReadOnly { id, problem } => problem
                .kind()
                .with_details(json!({ "session_id": id, "path": problem.path().to_string_lossy() }))
                .with_next_action(format!("go on with a copy: `pixir fork {id}`"))
                .with_next_action(format!("or, to go on with this one, {}", problem.next_action())),
            LogError::UnsafePath(error) => error.explain(),
            LogError::Altered { path, alteration } => Explanation {
                next_actions: alteration.next_actions(),
                ..Kind::LogWriteFailed.with_details(file(path))
            },
            LogError::Write { path, source } => {
                // Only the system's own limit on files has an OS error number.
                let is_own_limit = is_full(source) && source.raw_os_error().is_none();
                Kind::LogWriteFailed.with_details(file(path)).with_next_action(if is_own_limit {
                    "begin a new Session; this one can still be read and exported"
                } else {
                    "free some space or permit writing there, then go on with `pixir resume`"
                })
            }
            LogError::Io { path, source } => {
                Kind::LogReadFailed.with_details(file(path)).with_next_action(if is_full(source) {
                    "move the file away, or delete the Session with `pixir sessions delete`"
                } else {
                    "check that the file exists and may be read"
                })
            }
        }
    }
}

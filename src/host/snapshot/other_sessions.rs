//! Changes of other Sessions to the same files, read from their Turn Records.
//!
//! A Record may be forged: in a Workspace inside this one by a command of this Session, in a folder above
//! this one by any program. So a Record counts only for the Session and the Workspace in whose state folder
//! it is, a Record that a command of this Workspace could have written proves nothing, and the amount that
//! is read is bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FileType;

use super::delta::ManifestDelta;
use super::record::{RECORDS_FOLDER, TurnRecord, record_file_name};
use super::record_line::{RecordLine, SurveyResult};
use super::{ContentHash, ContentStore, Manifest, RawPath};
use crate::base::files::StateEntry;
use crate::base::id::SessionId;
use crate::record::state_dir::{SessionFolder, StateRoot};

/// The maximum lag of a file's timestamp behind the clock.
const CLOCK_TICK: Duration = Duration::from_secs(1);
/// The maximum size of a Record of another Session, in bytes.
const MAX_RECORD_BYTES: u64 = 16 << 20;
/// The maximum length of a line of a Record in bytes; longer lines are skipped.
const MAX_LINE_BYTES: u64 = 4 << 20;
/// The maximum total size of the Records that are read, in bytes.
const MAX_TOTAL_BYTES: u64 = 32 << 20;
/// The maximum number of Records of other Sessions that are read.
const MAX_RECORDS: usize = 1_000;

/// The changes of other Sessions, which a rewind of this Session must not revert.
#[derive(Debug, Default)]
pub struct OtherSessions {
    /// Writes by file tools of other Sessions, the only changes that are certainly theirs.
    claims: BTreeMap<PathBuf, Vec<WriteClaim>>,
    /// Changes during a command of this Session that may also come from a command of another Session, from
    /// a Session without proof, or from another program.
    shared: BTreeMap<PathBuf, BTreeSet<SessionId>>,
    unread: UnreadRecords,
}

/// The Records that were not read, or only in part.
#[derive(Debug, Default, Clone)]
pub struct UnreadRecords {
    pub count: usize,
    /// The path of the first unread Record.
    pub path: PathBuf,
}

/// A span of time, in nanoseconds since the epoch.
type TimeSpan = (u64, u64);

/// A change by a Session at some time within a span.
#[derive(Debug)]
struct WriteClaim {
    session: SessionId,
    span: TimeSpan,
}

/// The rewound Session: its Workspace, the times of its commands, and the paths that changed meanwhile.
struct RewoundSession<'r> {
    root: &'r StateRoot,
    workspace: &'r Path,
    commands: Vec<TimeSpan>,
    paths: BTreeSet<PathBuf>,
}

/// A Record of another Session.
struct OtherRecord {
    folder: SessionFolder,
    turn: u64,
    bytes: u64,
    written: Duration,
    is_proof: bool,
}

impl OtherSessions {
    /// Reads the changes that other Sessions in these state folders made since the first survey of these
    /// Records, in the same Workspace, one inside it or one that contains it. Unreadable Records are ignored.
    pub fn read(
        session_folder: &SessionFolder,
        roots: &[StateRoot],
        records: &[TurnRecord],
    ) -> Self {
        let mut others = Self::default();
        let began: Vec<&RecordLine> = records.iter().filter_map(TurnRecord::header).collect();
        let Some(RecordLine::Began { workspace, .. }) = began.first() else { return others };
        let surveys = records.iter().flat_map(|record| &record.lines);
        let since = surveys.filter_map(|line| match line {
            RecordLine::CommandSurvey { started, .. } => Some(*started),
            _ => None,
        });
        let Some(since) = since.min() else { return others };
        let own = RewoundSession {
            root: session_folder.root(),
            workspace: workspace.as_ref(),
            commands: records.iter().flat_map(command_spans).collect(),
            paths: changed_paths(records, &ContentStore::for_session(session_folder)),
        };
        if own.paths.is_empty() {
            return others;
        }
        let mut found = Vec::new();
        for folder in roots.iter().flat_map(session_folders) {
            if folder != *session_folder {
                found.extend(records_since(&folder, since, own.is_proof(folder.root())));
            }
        }
        // Records that are proof come first, then the newest.
        found.sort_by_key(|record| std::cmp::Reverse((record.is_proof, record.written)));
        others.read_all(found, &own, &began);
        others
    }

    /// The Session whose file tools changed a path within a span of time.
    pub fn claimant(&self, path: &Path, span: TimeSpan) -> Option<&str> {
        let claims = self.claims.get(path)?;
        claims
            .iter()
            .find(|claim| spans_overlap(claim.span, span))
            .map(|claim| claim.session.as_str())
    }

    /// The Sessions that may have changed a path while this Session ran a command.
    pub fn sessions_sharing(&self, path: &Path) -> impl Iterator<Item = &str> {
        self.shared.get(path).into_iter().flatten().map(SessionId::as_str)
    }

    /// The Records that were skipped, because they are too large or too many.
    pub fn unread(&self) -> Option<&UnreadRecords> {
        Some(&self.unread).filter(|unread| unread.count > 0)
    }

    fn read_all(
        &mut self,
        records: Vec<OtherRecord>,
        own: &RewoundSession<'_>,
        began: &[&RecordLine],
    ) {
        let mut left = MAX_TOTAL_BYTES;
        for (number, record) in records.into_iter().enumerate() {
            if number >= MAX_RECORDS || record.bytes > MAX_RECORD_BYTES.min(left) {
                self.count_unread(&record);
                continue;
            }
            left -= record.bytes;
            if !self.read_record(&record, own, began) {
                self.count_unread(&record);
            }
        }
    }

    fn count_unread(&mut self, record: &OtherRecord) {
        self.unread.count += 1;
        if self.unread.count == 1 {
            self.unread.path = TurnRecord::path(&record.folder, record.turn);
        }
    }

    /// Reads one Record; false when it was not read completely.
    fn read_record(
        &mut self,
        record: &OtherRecord,
        own: &RewoundSession<'_>,
        began: &[&RecordLine],
    ) -> bool {
        let Some(mut lines) = RecordLines::open(record) else { return true };
        let Some(first) = lines.next() else { return lines.is_whole };
        let RecordLine::Began { workspace, session, .. } = &first else { return true };
        let id = record.folder.id();
        let is_of_workspace = own.accepts_workspace(workspace.as_ref(), record.folder.root());
        // A fork has the same Records as its parent.
        if session != id.as_str() || !is_of_workspace || began.contains(&&first) {
            return true;
        }
        let mut reader = RecordReader {
            others: self,
            own,
            session: id,
            workspace: workspace.as_ref(),
            is_proof: record.is_proof,
            open: BTreeMap::new(),
            running: None,
        };
        for line in lines.by_ref() {
            reader.read_line(line);
        }
        reader.finish();
        lines.is_whole
    }
}

impl RewoundSession<'_> {
    /// Whether Records in a state folder are proof, because no command of this Workspace can have written them.
    /// Commands cannot write to the Workspace's own `.pixir`, but they can write to that of a folder inside.
    fn is_proof(&self, root: &StateRoot) -> bool {
        root == self.root
            || root.workspace() == self.workspace
            || !root.folder().path().starts_with(self.workspace)
    }

    /// Whether a Record in a state folder may name this Workspace: it must be the Workspace of the state
    /// folder, or, for child Workspaces and Workspaces that were moved, that of this Session's Records.
    fn accepts_workspace(&self, workspace: &Path, root: &StateRoot) -> bool {
        workspace == root.workspace() || (root == self.root && workspace == self.workspace)
    }
}

/// The lines of a Record, read one at a time up to the first invalid one.
struct RecordLines {
    file: BufReader<std::io::Take<File>>,
    /// Whether no line was too long.
    is_whole: bool,
}

impl RecordLines {
    fn open(record: &OtherRecord) -> Option<Self> {
        let folder = record.folder.join(RECORDS_FOLDER).open().ok()??;
        let file = folder.open_file(record_file_name(record.turn)).ok()??;
        // The file may have grown since its size was read.
        Some(Self { file: BufReader::new(file.take(MAX_RECORD_BYTES)), is_whole: true })
    }
}

impl Iterator for RecordLines {
    type Item = RecordLine;

    fn next(&mut self) -> Option<RecordLine> {
        loop {
            let mut text = Vec::new();
            let read = (&mut self.file).take(MAX_LINE_BYTES).read_until(b'\n', &mut text).ok()?;
            if read as u64 == MAX_LINE_BYTES && !text.ends_with(b"\n") {
                self.is_whole = false;
                self.file.skip_until(b'\n').ok()?;
                continue;
            }
            return serde_json::from_slice(&text).ok();
        }
    }
}

/// Reads the Record of another Session line by line.
struct RecordReader<'a> {
    others: &'a mut OtherSessions,
    own: &'a RewoundSession<'a>,
    session: &'a SessionId,
    workspace: &'a Path,
    is_proof: bool,
    /// Writes without an end: their start time, and the folders they created.
    open: BTreeMap<PathBuf, (u64, Vec<RawPath>)>,
    /// The start of the running command.
    running: Option<u64>,
}

impl RecordReader<'_> {
    fn read_line(&mut self, line: RecordLine) {
        match line {
            RecordLine::Found { path, made, at, .. }
                if made
                    .iter()
                    .chain([&path])
                    .any(|path| self.own_path(path.as_ref()).is_some()) =>
            {
                self.open.insert(path.0, (at, made));
            }
            RecordLine::Left { path, at, .. } => {
                let (started, made) = self.open.remove(&path.0).unwrap_or((at, Vec::new()));
                self.add_write(&path, &made, (started, at));
            }
            RecordLine::CommandSurvey { seen, is_running, started, ended } => {
                let span = self.running.map(|since| (since, ended));
                // A survey with a full Manifest names no changes.
                if let (Some(span), SurveyResult::Changed(delta)) = (span, &seen)
                    && self.own.commands.iter().any(|own| spans_overlap(span, *own))
                {
                    self.add_delta(delta);
                }
                self.running = is_running.then_some(started);
            }
            _ => {}
        }
    }

    /// Ends the Record: a Turn that was cut off or still runs may have finished its open writes at any later
    /// time.
    fn finish(mut self) {
        for (path, (started, made)) in std::mem::take(&mut self.open) {
            self.add_write(&RawPath(path), &made, (started, u64::MAX));
        }
    }

    /// A path relative to this Session's Workspace, if it changed during one of its commands.
    fn own_path(&self, path: &Path) -> Option<PathBuf> {
        let path = translate_path(path, self.workspace, self.own.workspace)?;
        self.own.paths.contains(&path).then_some(path)
    }

    fn add_write(&mut self, path: &RawPath, made: &[RawPath], span: TimeSpan) {
        let is_shared = self.own.commands.iter().any(|own| spans_overlap(span, *own));
        for path in made.iter().chain([path]) {
            let Some(path) = self.own_path(path.as_ref()) else { continue };
            if self.is_proof {
                let claim = WriteClaim { session: self.session.clone(), span };
                self.others.claims.entry(path).or_default().push(claim);
            } else if is_shared {
                self.others.shared.entry(path).or_default().insert(self.session.clone());
            }
        }
    }

    fn add_delta(&mut self, delta: &ManifestDelta) {
        let files = delta.files.iter().filter(|file| file.from != file.to);
        let files = files.map(|file| &file.path);
        let folders = delta.folders.iter().map(|folder| &folder.path);
        for path in files.chain(folders) {
            let Some(path) = self.own_path(path) else { continue };
            self.others.shared.entry(path).or_default().insert(self.session.clone());
        }
    }
}

fn spans_overlap(one: TimeSpan, other: TimeSpan) -> bool {
    one.0 <= other.1 && other.0 <= one.1
}

/// The spans in which commands of a Turn ran.
fn command_spans(record: &TurnRecord) -> Vec<TimeSpan> {
    let mut spans = Vec::new();
    let mut running: Option<u64> = None;
    for line in &record.lines {
        let RecordLine::CommandSurvey { is_running, started, ended, .. } = line else { continue };
        spans.extend(running.map(|since| (since, *ended)));
        running = is_running.then_some(*started);
    }
    // The last command has no end if the Turn was cut off.
    spans.extend(running.map(|since| (since, u64::MAX)));
    spans
}

/// Translates a path of one Workspace to another; `None` when it is outside of the other one.
fn translate_path(path: &Path, from: &Path, to: &Path) -> Option<PathBuf> {
    if from == to {
        return Some(path.to_owned());
    }
    from.join(path).strip_prefix(to).ok().map(Path::to_owned)
}

/// The paths that changed during commands of these Turns or were written by their file tools: only changes of
/// these paths may have been made by another Session instead.
fn changed_paths(records: &[TurnRecord], store: &ContentStore) -> BTreeSet<PathBuf> {
    let mut paths = BTreeSet::new();
    for record in records {
        paths.extend(record.written_paths());
        for (number, line) in record.lines.iter().enumerate() {
            let RecordLine::CommandSurvey { seen, .. } = line else { continue };
            let delta = match seen {
                SurveyResult::Changed(delta) => Some(delta.clone()),
                SurveyResult::All(_) => full_delta(record, number, seen, store),
            };
            let delta = delta.unwrap_or_default();
            paths.extend(delta.files.into_iter().map(|file| file.path));
            paths.extend(delta.folders.into_iter().map(|folder| folder.path));
        }
    }
    paths
}

/// The changes between a survey with a full Manifest and the previous survey.
fn full_delta(
    record: &TurnRecord,
    place: usize,
    seen: &SurveyResult,
    store: &ContentStore,
) -> Option<ManifestDelta> {
    let SurveyResult::All(hash) = seen else { return None };
    let read = |hash: &ContentHash| Manifest::load(hash, store);
    let before = record.manifest_before(place, read).ok()??;
    let after = Manifest::load(hash, store).ok()?;
    Some(ManifestDelta::between(&before, &after, &BTreeSet::new()))
}

/// The Session folders in a state folder.
fn session_folders(root: &StateRoot) -> Vec<SessionFolder> {
    let all = root.sessions().open().ok().flatten();
    let entries = all.and_then(|all| all.entries().ok()).unwrap_or_default();
    let id_of = |entry: StateEntry| SessionId::parse(entry.name.to_str()?).ok();
    let ids = entries.into_iter().filter(|entry| entry.kind == FileType::Directory);
    ids.filter_map(id_of).map(|id| root.session_folder(&id)).collect()
}

/// The Records of a Session that were modified since a time.
fn records_since(folder: &SessionFolder, since: u64, is_proof: bool) -> Vec<OtherRecord> {
    let since = Duration::from_nanos(since).saturating_sub(CLOCK_TICK);
    let records = folder.join(RECORDS_FOLDER).open().ok().flatten();
    let entries = records.and_then(|records| records.entries().ok()).unwrap_or_default();
    let record_of = |entry: StateEntry| {
        let turn = entry.name.to_str()?.strip_suffix(".ndjson")?.parse().ok()?;
        let (seconds, nanoseconds) = entry.modified;
        let written = Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanoseconds).ok()?);
        let folder = folder.clone();
        (entry.kind == FileType::RegularFile && written >= since).then_some(OtherRecord {
            folder,
            turn,
            bytes: entry.bytes,
            written,
            is_proof,
        })
    };
    entries.into_iter().filter_map(record_of).collect()
}

//! Changes of one Turn with their sources, read from its Record.
//!
//! The lines between two surveys are one interval. If a command ran in it, every difference that no file
//! tool wrote counts as changed while a command ran; in any other interval it counts as changed by a
//! program outside of the Turn.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::delta::{AppearedFile, ManifestDelta};
use super::other_sessions::OtherSessions;
use super::record::TurnRecord;
use super::record_line::{RecordLine, SurveyPosition, SurveyResult};
use super::tracker::is_created_before;
use super::{ContentHash, CurrentFiles, FileChange, FileState, FolderChange, Manifest, RawPath};

/// The source of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeSource {
    /// The Turn: a file tool, a merge, or any change in an old Record.
    Turn,
    /// A command, or another program while a command ran.
    Command,
    /// The Turn or another program, because the end of the Turn was not recorded.
    CutOff,
}

/// One change of a file or link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileTouch {
    pub path: PathBuf,
    pub found: Option<FileState>,
    pub left: Option<FileState>,
    pub source: ChangeSource,
}

/// The state of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderState {
    Absent,
    Mode(u32),
    /// The folder exists with an unknown mode.
    Existing,
}

impl FolderState {
    fn from_mode(mode: Option<u32>) -> Self {
        mode.map_or(Self::Absent, Self::Mode)
    }
}

/// One change of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderTouch {
    pub path: PathBuf,
    pub found: FolderState,
    pub left: FolderState,
    pub source: ChangeSource,
}

/// All changes of a Turn; the changes of each path are in order.
#[derive(Debug, Default)]
pub struct TurnChanges {
    pub touches: Vec<FileTouch>,
    pub folders: Vec<FolderTouch>,
    /// Paths that changed between two commands, and not by a file tool of the Turn.
    pub foreign: BTreeSet<PathBuf>,
    /// Paths that another Session changed while a command ran, with its id.
    pub claimed: BTreeMap<PathBuf, String>,
    pub notes: Vec<String>,
    /// Whether the end of the Turn, or of its commands, was not recorded.
    pub is_cut_off: bool,
}

/// The interval since the last survey, by what may have changed files in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interval {
    /// An interval without a command.
    Idle,
    /// A command that started at this time.
    Running { started: u64 },
    /// The whole Turn, in an old Record.
    Old(ContentHash),
}

/// A write of a file tool since the last survey; the result of an unfinished write is unknown.
#[derive(Debug, Default)]
struct ToolWrite {
    found: Option<FileState>,
    #[expect(
        clippy::option_option,
        reason = "`None` while unfinished; the resulting state may be a missing file"
    )]
    left: Option<Option<FileState>>,
}

/// Reads the changes of a Turn from the lines of its Record.
struct TurnChangesReader<'a> {
    record: &'a TurnRecord,
    current: &'a CurrentFiles<'a>,
    others: &'a OtherSessions,
    changes: TurnChanges,
    interval: Interval,
    /// The reason why the survey at the end of the current interval failed.
    failed_survey: Option<&'a str>,
    writes: BTreeMap<PathBuf, Vec<ToolWrite>>,
}

impl TurnChanges {
    /// Reads the changes from a Record.
    pub fn from_record(
        record: &TurnRecord,
        current: &CurrentFiles<'_>,
        others: &OtherSessions,
    ) -> Self {
        let mut reader = TurnChangesReader {
            record,
            current,
            others,
            changes: Self::default(),
            interval: Interval::Idle,
            failed_survey: None,
            writes: BTreeMap::new(),
        };
        for (place, line) in record.lines.iter().enumerate() {
            reader.read_line(place, line);
        }
        reader.finish()
    }

    fn add(
        &mut self,
        path: &Path,
        found: Option<FileState>,
        left: Option<FileState>,
        source: ChangeSource,
    ) {
        if found != left {
            self.touches.push(FileTouch { path: path.to_owned(), found, left, source });
        }
    }

    fn add_note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

impl<'a> TurnChangesReader<'a> {
    fn read_line(&mut self, place: usize, line: &'a RecordLine) {
        match line {
            RecordLine::Found { path, state, made, .. } => {
                for RawPath(folder) in made {
                    self.changes.folders.push(FolderTouch {
                        path: folder.clone(),
                        found: FolderState::Absent,
                        left: FolderState::Existing,
                        source: ChangeSource::Turn,
                    });
                }
                let writes = self.writes.entry(path.0.clone()).or_default();
                // An unfinished write did not change the file.
                writes.retain(|write| write.left.is_some());
                writes.push(ToolWrite { found: state.clone(), left: None });
            }
            RecordLine::Left { path, state, .. } => self.end_write(path.as_ref(), state.as_ref()),
            RecordLine::Folder(FolderChange { path, from, to }) => {
                self.changes.folders.push(FolderTouch {
                    path: path.clone(),
                    found: FolderState::from_mode(*from),
                    left: FolderState::from_mode(*to),
                    source: ChangeSource::Turn,
                });
            }
            RecordLine::CommandSurvey { seen, is_running, started, ended } => {
                self.end_interval(place, seen, *ended);
                self.failed_survey = None;
                self.interval = if *is_running {
                    Interval::Running { started: *started }
                } else {
                    Interval::Idle
                };
            }
            RecordLine::Surveyed { when: SurveyPosition::Before, manifest } => {
                self.interval = Interval::Old(*manifest);
            }
            RecordLine::Surveyed { when: SurveyPosition::After, manifest } => {
                match self.current.load_manifest(manifest) {
                    Ok(end) => self.end_old_interval(&end, ChangeSource::Turn),
                    Err(error) => self.note_unknown_changes(&error),
                }
                self.interval = Interval::Idle;
            }
            // The survey before the command is known, so a comparison with the current files finds its changes.
            RecordLine::NotSurveyed { reason, .. }
                if matches!(self.interval, Interval::Running { .. }) =>
            {
                self.failed_survey = Some(reason);
            }
            RecordLine::NotSurveyed { reason, .. } => {
                self.changes.add_note(format!(
                    "changes by commands are not covered, only those by file tools: {reason}"
                ));
                self.interval = Interval::Idle;
            }
            RecordLine::NotRecorded { reason } => {
                self.changes.add_note(format!("file changes were not recorded: {reason}"));
            }
            RecordLine::Began { .. } | RecordLine::Ended => {}
        }
    }

    fn end_write(&mut self, path: &Path, state: Option<&FileState>) {
        let left = Some(state.cloned());
        let writes = self.writes.entry(path.to_owned()).or_default();
        if let Some(write) = writes.last_mut() {
            write.left = left;
            return;
        }
        let of_path = |touch: &&FileTouch| touch.path == path;
        let last = self.changes.touches.iter().rev().find(of_path);
        let found = last.map_or_else(|| state.cloned(), |touch| touch.left.clone());
        writes.push(ToolWrite { found, left });
    }

    /// Ends an interval with a survey.
    fn end_interval(&mut self, place: usize, seen: &SurveyResult, ended: u64) {
        let delta = match (seen, self.interval) {
            (SurveyResult::Changed(delta), _) => delta.clone(),
            (SurveyResult::All(hash), Interval::Running { .. }) => {
                let read = |hash: &ContentHash| self.current.load_manifest(hash);
                let manifests =
                    (self.record.manifest_before(place, read), self.current.load_manifest(hash));
                match manifests {
                    (Ok(Some(before)), Ok(after)) => self.compare_manifests(&before, &after),
                    (Err(error), _) | (_, Err(error)) => return self.note_unknown_changes(&error),
                    (Ok(None), Ok(_)) => ManifestDelta::default(),
                }
            }
            (SurveyResult::All(_), Interval::Idle | Interval::Old(_)) => ManifestDelta::default(),
        };
        match self.interval {
            Interval::Running { started } => {
                self.attribute_changes(&delta, ChangeSource::Command, Some((started, ended)));
            }
            Interval::Idle | Interval::Old(_) => {
                let is_own = |path: &PathBuf| self.writes.contains_key(path);
                let foreign = delta.files.iter().filter(|file| !is_own(&file.path));
                let foreign = foreign.map(|file| file.path.clone()).collect::<Vec<_>>();
                self.changes.foreign.extend(foreign);
                self.flush_writes();
            }
        }
    }

    fn end_old_interval(&mut self, end: &Manifest, source: ChangeSource) {
        let Interval::Old(hash) = self.interval else { return };
        match self.current.load_manifest(&hash) {
            Ok(base) => {
                let delta = self.compare_manifests(&base, end);
                self.attribute_changes(&delta, source, None);
            }
            Err(error) => self.note_unknown_changes(&error),
        }
    }

    fn compare_manifests(&self, before: &Manifest, after: &Manifest) -> ManifestDelta {
        ManifestDelta::between(before, after, &self.writes.keys().cloned().collect())
    }

    /// Adds the changes of an interval in which commands ran; changes that no file tool wrote get this source.
    fn attribute_changes(
        &mut self,
        delta: &ManifestDelta,
        source: ChangeSource,
        window: Option<(u64, u64)>,
    ) {
        for FileChange { path, from, to } in &delta.files {
            let writes = self.writes.remove(path).unwrap_or_default();
            let claim = window.and_then(|window| self.others.claimant(path, window));
            if let Some(session) = claim {
                self.changes.claimed.insert(path.clone(), session.to_owned());
            }
            let is_ours = claim.is_none();
            // The previous survey lacks an ignored file that no file tool had written yet.
            let first = writes.first().map(|write| write.found.clone());
            let mut state = if from.is_some() { from.clone() } else { first.unwrap_or_default() };
            let mut open = Vec::new();
            for write in writes {
                let Some(left) = write.left else {
                    open.push(write);
                    continue;
                };
                if is_ours {
                    self.changes.add(path, state, write.found.clone(), source);
                }
                self.changes.add(path, write.found, left.clone(), ChangeSource::Turn);
                state = left;
            }
            if is_ours {
                self.changes.add(path, state, to.clone(), source);
            }
            if !open.is_empty() {
                self.writes.insert(path.clone(), open);
            }
        }
        self.flush_writes();
        for FolderChange { path, from, to } in &delta.folders {
            if window.is_some_and(|window| self.others.claimant(path, window).is_some()) {
                continue;
            }
            let (found, left) = (FolderState::from_mode(*from), FolderState::from_mode(*to));
            self.changes.folders.push(FolderTouch { path: path.clone(), found, left, source });
        }
        for AppearedFile { path: RawPath(path), .. } in &delta.appeared {
            let path = path.display();
            self.changes.add_note(format!(
                "{path} existed before but was not covered (ignored, unreadable or in another folder), so it is kept"
            ));
        }
        for RawPath(path) in &delta.not_kept {
            let path = path.display();
            self.changes.add_note(format!("{path} changed, but is too large to be undone"));
        }
    }

    /// Adds the finished writes of file tools as changes of the Turn; keeps unfinished ones.
    fn flush_writes(&mut self) {
        for (path, writes) in std::mem::take(&mut self.writes) {
            let mut open = Vec::new();
            for write in writes {
                match write.left {
                    Some(left) => self.changes.add(&path, write.found, left, ChangeSource::Turn),
                    None => open.push(write),
                }
            }
            if !open.is_empty() {
                self.writes.insert(path, open);
            }
        }
    }

    fn finish(mut self) -> TurnChanges {
        let lines = &self.record.lines;
        self.changes.is_cut_off = !lines.is_empty() && !lines.contains(&RecordLine::Ended);
        if self.changes.is_cut_off {
            self.changes.add_note(
                "the Turn was cut off: changes by its commands cannot be distinguished from later \
                 changes outside this session"
                    .to_owned(),
            );
            self.end_cut_off_interval();
        } else if let Some(reason) = self.failed_survey {
            self.changes.is_cut_off = true;
            self.changes.add_note(format!(
                "what a command changed was not recorded ({reason}): it cannot be distinguished from later changes \
                 outside this session"
            ));
            self.end_cut_off_interval();
        }
        self.flush_writes();
        if self.changes.is_cut_off {
            // Whether this file was written is unknown.
            for (path, writes) in std::mem::take(&mut self.writes) {
                for draft in self.current.find_drafts(&path) {
                    let left = self.current.read_state(&draft).unwrap_or_default();
                    self.changes.add(&draft, None, left, ChangeSource::CutOff);
                }
                let Ok(now) = self.current.read_state(&path) else { continue };
                for write in writes {
                    self.changes.add(&path, write.found, now.clone(), ChangeSource::CutOff);
                }
            }
        }
        self.changes
    }

    /// Ends the interval in which the Turn was cut off, with the current files.
    fn end_cut_off_interval(&mut self) {
        match self.interval {
            Interval::Idle => {}
            Interval::Old(_) => match self.take_survey(None) {
                Ok(now) => self.end_old_interval(&now, ChangeSource::CutOff),
                Err(error) => self.note_unknown_changes(&error),
            },
            Interval::Running { started } => {
                if let Err(error) = self.compare_with_current_files(started) {
                    self.note_unknown_changes(&error);
                }
            }
        }
    }

    /// Adds the differences between the last survey, which began at `started`, and the current files.
    fn compare_with_current_files(&mut self, started: u64) -> std::io::Result<()> {
        let read = |hash: &ContentHash| self.current.load_manifest(hash);
        let Some(before) = self.record.manifest_before(self.record.lines.len(), read)? else {
            return Ok(());
        };
        let now = self.take_survey(Some(&before))?;
        let is_older = |path: &Path| {
            let created_at = self.current.created_at(path);
            created_at.is_some_and(|created_at| is_created_before(created_at, started))
        };
        let delta = self.compare_manifests(&before, &now).with_appeared(&before, &now, is_older);
        self.attribute_changes(&delta, ChangeSource::CutOff, None);
        Ok(())
    }

    fn take_survey(&self, known: Option<&Manifest>) -> std::io::Result<Manifest> {
        let taken = self.current.take_survey(known, &self.record.written_paths());
        taken.map_err(std::io::Error::other)
    }

    fn note_unknown_changes(&mut self, error: &std::io::Error) {
        self.changes.add_note(format!(
            "changes by commands are no longer known ({error}): only those by file tools \
             are covered"
        ));
    }
}

//! The changes of one Turn with their sources, read from its Record.
//!
//! The lines between two surveys are one interval. If a command ran in it, every difference that no file
//! tool wrote counts as changed while a command ran; in any other interval something outside of the Turn
//! changed it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::claims::OtherSessions;
use super::delta::{AppearedFile, ManifestDelta};
use super::line::{Line, Seen, When};
use super::record::Record;
use super::tracker::is_before;
use super::{Change, FolderChange, Hash, Here, Manifest, RawPath, State};

/// The source of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The Turn: a file tool, a merge, or anything in an old Record.
    Turn,
    /// A command, or another program while one ran.
    Command,
    /// The Turn or another program, because the Turn was cut off.
    CutOff,
}

/// One change of a file or link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touch {
    pub path: PathBuf,
    pub found: Option<State>,
    pub left: Option<State>,
    pub source: Source,
}

/// The state of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Folder {
    Absent,
    Mode(u32),
    /// It exists with an unknown mode.
    There,
}

impl Folder {
    fn of(mode: Option<u32>) -> Self {
        mode.map_or(Self::Absent, Self::Mode)
    }
}

/// One change of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderTouch {
    pub path: PathBuf,
    pub found: Folder,
    pub left: Folder,
    pub source: Source,
}

/// All changes of a Turn; those of one path are in order.
#[derive(Debug, Default)]
pub struct TurnChanges {
    pub touches: Vec<Touch>,
    pub folders: Vec<FolderTouch>,
    /// Paths that changed between two commands, and not by a file tool of the Turn.
    pub foreign: BTreeSet<PathBuf>,
    /// Paths that another Session changed while a command ran, with its id.
    pub claimed: BTreeMap<PathBuf, String>,
    pub notes: Vec<String>,
    pub is_cut_off: bool,
}

/// What may have changed files since the last survey.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interval {
    /// No command.
    Idle,
    /// A command, since this moment.
    Running { started: u64 },
    /// The whole Turn, in an old Record.
    Old(Hash),
}

/// A write of a file tool since the last survey; the result of an unfinished one is unknown.
#[derive(Debug, Default)]
struct ToolWrite {
    found: Option<State>,
    #[expect(
        clippy::option_option,
        reason = "`None` while it is open; what it left may be nothing"
    )]
    left: Option<Option<State>>,
}

/// Reads the changes of a Turn from the lines of its Record.
struct Reader<'a> {
    record: &'a Record,
    world: &'a Here<'a>,
    others: &'a OtherSessions,
    changes: TurnChanges,
    interval: Interval,
    writes: BTreeMap<PathBuf, Vec<ToolWrite>>,
}

impl TurnChanges {
    /// Reads the changes from a Record.
    pub fn of(record: &Record, world: &Here<'_>, others: &OtherSessions) -> Self {
        let mut reader = Reader {
            record,
            world,
            others,
            changes: Self::default(),
            interval: Interval::Idle,
            writes: BTreeMap::new(),
        };
        for (place, line) in record.lines.iter().enumerate() {
            reader.read(place, line);
        }
        reader.finish()
    }

    fn add(&mut self, path: &Path, found: Option<State>, left: Option<State>, source: Source) {
        if found != left {
            self.touches.push(Touch { path: path.to_owned(), found, left, source });
        }
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

impl Reader<'_> {
    fn read(&mut self, place: usize, line: &Line) {
        match line {
            Line::Found { path, state, made, .. } => {
                for RawPath(folder) in made {
                    self.changes.folders.push(FolderTouch {
                        path: folder.clone(),
                        found: Folder::Absent,
                        left: Folder::There,
                        source: Source::Turn,
                    });
                }
                let writes = self.writes.entry(path.0.clone()).or_default();
                // An unfinished write changed nothing.
                writes.retain(|write| write.left.is_some());
                writes.push(ToolWrite { found: state.clone(), left: None });
            }
            Line::Left { path, state, .. } => self.left(path.as_ref(), state.as_ref()),
            Line::Folder(FolderChange { path, from, to }) => {
                self.changes.folders.push(FolderTouch {
                    path: path.clone(),
                    found: Folder::of(*from),
                    left: Folder::of(*to),
                    source: Source::Turn,
                });
            }
            Line::CommandSurvey { seen, is_running, started, ended } => {
                self.surveyed(place, seen, *ended);
                self.interval = if *is_running {
                    Interval::Running { started: *started }
                } else {
                    Interval::Idle
                };
            }
            Line::Surveyed { when: When::Before, manifest } => {
                self.interval = Interval::Old(*manifest);
            }
            Line::Surveyed { when: When::After, manifest } => {
                match self.world.manifest(manifest) {
                    Ok(end) => self.end_old(&end, Source::Turn),
                    Err(error) => self.lost(&error),
                }
                self.interval = Interval::Idle;
            }
            Line::NotSurveyed { reason, .. } => {
                self.changes.note(format!(
                    "what commands changed is not covered, only the changes of file tools: {reason}"
                ));
                self.interval = Interval::Idle;
            }
            Line::Began { .. } | Line::Ended => {}
        }
    }

    fn left(&mut self, path: &Path, state: Option<&State>) {
        let left = Some(state.cloned());
        let writes = self.writes.entry(path.to_owned()).or_default();
        if let Some(write) = writes.last_mut() {
            write.left = left;
            return;
        }
        let of_path = |touch: &&Touch| touch.path == path;
        let last = self.changes.touches.iter().rev().find(of_path);
        let found = last.map_or_else(|| state.cloned(), |touch| touch.left.clone());
        writes.push(ToolWrite { found, left });
    }

    /// Ends an interval with a survey.
    fn surveyed(&mut self, place: usize, seen: &Seen, ended: u64) {
        let delta = match (seen, self.interval) {
            (Seen::Changed(delta), _) => delta.clone(),
            (Seen::All(hash), Interval::Running { .. }) => {
                let read = |hash: &Hash| self.world.manifest(hash);
                let manifests =
                    (self.record.manifest_before(place, read), self.world.manifest(hash));
                match manifests {
                    (Ok(Some(before)), Ok(after)) => self.delta(&before, &after),
                    (Err(error), _) | (_, Err(error)) => return self.lost(&error),
                    (Ok(None), Ok(_)) => ManifestDelta::default(),
                }
            }
            (Seen::All(_), Interval::Idle | Interval::Old(_)) => ManifestDelta::default(),
        };
        match self.interval {
            Interval::Running { started } => {
                self.while_running(&delta, Source::Command, Some((started, ended)));
            }
            Interval::Idle | Interval::Old(_) => {
                let is_own = |path: &PathBuf| self.writes.contains_key(path);
                let foreign = delta.files.iter().filter(|file| !is_own(&file.path));
                let foreign = foreign.map(|file| file.path.clone()).collect::<Vec<_>>();
                self.changes.foreign.extend(foreign);
                self.take_writes();
            }
        }
    }

    fn end_old(&mut self, end: &Manifest, source: Source) {
        let Interval::Old(hash) = self.interval else { return };
        match self.world.manifest(&hash) {
            Ok(base) => {
                let delta = self.delta(&base, end);
                self.while_running(&delta, source, None);
            }
            Err(error) => self.lost(&error),
        }
    }

    fn delta(&self, before: &Manifest, after: &Manifest) -> ManifestDelta {
        ManifestDelta::between(before, after, &self.writes.keys().cloned().collect())
    }

    /// Adds the changes of an interval in which commands ran: what no file tool wrote has this source.
    fn while_running(&mut self, delta: &ManifestDelta, source: Source, window: Option<(u64, u64)>) {
        for Change { path, from, to } in &delta.files {
            let writes = self.writes.remove(path).unwrap_or_default();
            let claim = window.and_then(|window| self.others.claim(path, window));
            if let Some(session) = claim {
                self.changes.claimed.insert(path.clone(), session.to_owned());
            }
            let is_ours = claim.is_none();
            // The survey before does not have an ignored file that no file tool had written yet.
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
                self.changes.add(path, write.found, left.clone(), Source::Turn);
                state = left;
            }
            if is_ours {
                self.changes.add(path, state, to.clone(), source);
            }
            if !open.is_empty() {
                self.writes.insert(path.clone(), open);
            }
        }
        self.take_writes();
        for FolderChange { path, from, to } in &delta.folders {
            if window.is_some_and(|window| self.others.claim(path, window).is_some()) {
                continue;
            }
            let (found, left) = (Folder::of(*from), Folder::of(*to));
            self.changes.folders.push(FolderTouch { path: path.clone(), found, left, source });
        }
        for AppearedFile { path: RawPath(path), .. } in &delta.appeared {
            let path = path.display();
            self.changes.note(format!(
                "{path} existed before where it was not covered (ignored, unreadable or elsewhere), so it stays"
            ));
        }
        for RawPath(path) in &delta.not_kept {
            let path = path.display();
            self.changes.note(format!("{path} changed, and is too large to be taken back"));
        }
    }

    /// Adds the finished writes of file tools as changes of the Turn; unfinished ones stay.
    fn take_writes(&mut self) {
        for (path, writes) in std::mem::take(&mut self.writes) {
            let mut open = Vec::new();
            for write in writes {
                match write.left {
                    Some(left) => self.changes.add(&path, write.found, left, Source::Turn),
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
        self.changes.is_cut_off = !lines.is_empty() && !lines.contains(&Line::Ended);
        if self.changes.is_cut_off {
            self.changes.note(
                "the Turn was cut off: what its commands changed and what was changed later \
                 outside this session cannot be told apart"
                    .to_owned(),
            );
            self.cut_off();
        }
        self.take_writes();
        if self.changes.is_cut_off {
            // Whether this file was written is unknown.
            for (path, writes) in std::mem::take(&mut self.writes) {
                for draft in self.world.drafts(&path) {
                    let left = self.world.state(&draft).unwrap_or_default();
                    self.changes.add(&draft, None, left, Source::CutOff);
                }
                let Ok(now) = self.world.state(&path) else { continue };
                for write in writes {
                    self.changes.add(&path, write.found, now.clone(), Source::CutOff);
                }
            }
        }
        self.changes
    }

    /// Ends the interval in which the Turn was cut off, with the present files.
    fn cut_off(&mut self) {
        match self.interval {
            Interval::Idle => {}
            Interval::Old(_) => {
                if let Some(now) = self.world.survey(&self.record.touched()) {
                    self.end_old(&now, Source::CutOff);
                }
            }
            Interval::Running { started } => {
                let read = |hash: &Hash| self.world.manifest(hash);
                match self.record.manifest_before(self.record.lines.len(), read) {
                    Ok(Some(before)) => {
                        if let Some(now) = self.world.survey(&self.record.touched()) {
                            let is_older = |path: &Path| {
                                self.world.born(path).is_some_and(|born| is_before(born, started))
                            };
                            let delta = self.delta(&before, &now);
                            let delta = delta.with_appeared(&before, &now, is_older);
                            self.while_running(&delta, Source::CutOff, None);
                        }
                    }
                    Ok(None) => {}
                    Err(error) => self.lost(&error),
                }
            }
        }
    }

    fn lost(&mut self, error: &std::io::Error) {
        self.changes.note(format!(
            "what commands changed is not known any more ({error}): only the changes of file tools \
             are covered"
        ));
    }
}

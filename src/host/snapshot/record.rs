//! The Record of a Turn: states of files before and after its changes, as lines in a file beside the Log.

use std::collections::BTreeSet;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::content;
use super::line::{Line, Seen, When};
use super::survey::{Refused, Survey};
use super::{Hash, Manifest, RawPath, Store};
use crate::base::files::Durability;
use crate::host::workspace::Workspace;
use crate::record::state_dir::SessionFolder;

/// The folder of Records beside a Log.
pub(super) const FOLDER: &str = "snapshots";
/// The largest Record that is read.
const LARGEST: u64 = 256 << 20;

/// The Record of one Turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The seq of the `user_message` with which the Turn began.
    pub turn: u64,
    pub lines: Vec<Line>,
}

impl Record {
    /// Reads the Record of a Turn; a Turn without changes has none. A line truncated by a crash ends it.
    pub fn read(session_folder: &SessionFolder, turn: u64) -> io::Result<Self> {
        let folder = session_folder.join(FOLDER).open()?;
        let text = folder.map(|folder| folder.read(name(turn), LARGEST)).transpose()?;
        let text = text.flatten().unwrap_or_default();
        let lines =
            text.split(|byte| *byte == b'\n').map_while(|line| serde_json::from_slice(line).ok());
        Ok(Self { turn, lines: lines.collect() })
    }

    /// The path of a Turn's Record.
    pub fn path(session_folder: &SessionFolder, turn: u64) -> PathBuf {
        session_folder.join(FOLDER).path().join(name(turn))
    }

    /// Why changes of commands are not covered, if so.
    pub fn gap(&self) -> Option<&str> {
        self.lines.iter().find_map(|line| match line {
            Line::NotSurveyed { reason, .. } => Some(reason.as_str()),
            _ => None,
        })
    }

    /// The first line, with Workspace, Session and Turn; old Records have none.
    pub fn began(&self) -> Option<&Line> {
        self.lines.first().filter(|line| matches!(line, Line::Began { .. }))
    }

    /// The files that file tools were about to write.
    pub fn touched(&self) -> Vec<PathBuf> {
        let touched = self.lines.iter().filter_map(|line| match line {
            Line::Found { path, .. } => Some(path.0.clone()),
            _ => None,
        });
        touched.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// A path that leads out of the Workspace: only a forged Record has one.
    pub fn outside(&self) -> Option<&Path> {
        let is_outside =
            |path: &&Path| !path.components().all(|part| matches!(part, Component::Normal(_)));
        self.lines.iter().find_map(|line| match line {
            Line::Found { path, made, .. } => {
                made.iter().chain([path]).map(RawPath::as_ref).find(is_outside)
            }
            Line::Left { path, .. } => Some(path.as_ref()).filter(is_outside),
            Line::Folder(folder) => Some(folder.path.as_path()).filter(is_outside),
            Line::CommandSurvey { seen: Seen::Changed(delta), .. } => {
                let folders = delta.folders.iter().map(|folder| folder.path.as_path());
                let files = delta.files.iter().map(|file| file.path.as_path());
                files.chain(folders).find(is_outside)
            }
            _ => None,
        })
    }

    /// The Manifest of the last survey before a line; `read` loads stored Manifests.
    pub fn manifest_before(
        &self,
        place: usize,
        read: impl Fn(&Hash) -> io::Result<Manifest>,
    ) -> io::Result<Option<Manifest>> {
        let mut deltas = Vec::new();
        for line in self.lines.get(..place).unwrap_or_default().iter().rev() {
            let Line::CommandSurvey { seen, .. } = line else { continue };
            match seen {
                Seen::Changed(delta) => deltas.push(delta),
                Seen::All(hash) => {
                    let mut manifest = read(hash)?;
                    deltas.iter().rev().for_each(|delta| delta.apply(&mut manifest));
                    return Ok(Some(manifest));
                }
            }
        }
        Ok(None)
    }

    /// Whether a command may have run since the last survey.
    fn is_running(&self) -> bool {
        let last = self.lines.iter().rev().find_map(|line| match line {
            Line::CommandSurvey { is_running, .. } => Some(*is_running),
            Line::NotSurveyed { .. } => Some(false),
            _ => None,
        });
        last.unwrap_or(false)
    }

    /// Reopens a Turn for commands that belong to it but run after its end. Until it is closed again, it
    /// counts as cut off.
    pub fn reopen(
        session_folder: &SessionFolder,
        turn: u64,
        survey: &Survey<'_>,
    ) -> io::Result<Self> {
        let mut record = Self::read(session_folder, turn)?;
        record.lines.retain(|line| *line != Line::Ended);
        if record.lines.is_empty() {
            record.lines.push(began(survey.workspace, session_folder, turn));
        }
        record.lines.push(surveyed(survey, &record.touched(), true)?);
        record.write(session_folder)?;
        Ok(record)
    }

    /// Adds the missing end of a Turn that was cut off, with a last survey, so that an undo of it can be
    /// redone.
    pub fn close(&mut self, session_folder: &SessionFolder, survey: &Survey<'_>) -> io::Result<()> {
        if self.lines.contains(&Line::Ended) {
            return Ok(());
        }
        let mut open = BTreeSet::new();
        let mut is_old_survey_open = false;
        for line in &self.lines {
            match line {
                Line::Found { path, .. } => drop(open.insert(path.0.clone())),
                Line::Left { path, .. } => drop(open.remove(&path.0)),
                Line::Surveyed { when, .. } => is_old_survey_open = *when == When::Before,
                _ => {}
            }
        }
        for path in open {
            let state = content::state_of(survey.workspace, &path, Some(survey.store))?;
            self.lines.push(Line::Left { path: RawPath(path), state, at: now() });
        }
        if is_old_survey_open {
            self.lines.push(looked(When::After, survey, &[])?);
        }
        if self.is_running() {
            self.lines.push(surveyed(survey, &self.touched(), false)?);
        }
        self.lines.push(Line::Ended);
        self.write(session_folder)
    }

    /// Rewrites the file: a crash may have left half a line, and lines after one are not read.
    fn write(&self, session_folder: &SessionFolder) -> io::Result<()> {
        let mut text = Vec::new();
        for line in &self.lines {
            serde_json::to_writer(&mut text, line)?;
            text.push(b'\n');
        }
        let folder = session_folder.join(FOLDER).create()?;
        Ok(folder.replace(name(self.turn), &text, Durability::Lazy)?)
    }
}

/// The file name of a Turn's Record.
pub(super) fn name(turn: u64) -> String {
    format!("{turn}.ndjson")
}

pub(super) fn began(workspace: &Workspace, session_folder: &SessionFolder, turn: u64) -> Line {
    let session = session_folder.id().to_string();
    Line::Began { workspace: RawPath(workspace.root().to_owned()), session, turn }
}

/// Nanoseconds since the epoch.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Takes a survey outside of a running Turn and returns its line.
fn surveyed(survey: &Survey<'_>, touched: &[PathBuf], is_running: bool) -> io::Result<Line> {
    let started = now();
    let when = if is_running { When::Before } else { When::After };
    Ok(match looked(when, survey, touched)? {
        Line::Surveyed { manifest, .. } => {
            Line::CommandSurvey { seen: Seen::All(manifest), is_running, started, ended: now() }
        }
        other => other,
    })
}

/// Surveys the Workspace and returns the line; a failed survey must not be taken for no changes.
fn looked(when: When, survey: &Survey<'_>, touched: &[PathBuf]) -> io::Result<Line> {
    match survey.take_with(last_manifest(survey.store).as_ref(), touched) {
        Ok(manifest) => {
            let (manifest, _) = keep_as_last(&manifest, survey.store)?;
            Ok(Line::Surveyed { when, manifest })
        }
        Err(Refused::Keep { source, .. }) => Err(source),
        Err(refused) => Ok(Line::NotSurveyed { when, reason: refused.to_string() }),
    }
}

/// Stores a Manifest, also as the starting point of the next survey.
pub(super) fn keep_as_last(manifest: &Manifest, store: &Store) -> io::Result<(Hash, u64)> {
    let (hash, length) = manifest.keep(store)?;
    store.set_last(&hash)?;
    Ok((hash, length))
}

/// The Manifest of the last survey of this Workspace by any Session; a cache.
pub fn last_manifest(store: &Store) -> Option<Manifest> {
    Manifest::kept(&store.last()?, store).ok()
}

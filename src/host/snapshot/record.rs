//! Record of a Turn: states of files before and after its changes, as lines in a file of the Session folder.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::content;
use super::delta::ManifestDelta;
use super::git_state::GitState;
use super::known_manifest::KnownManifest;
use super::record_line::{RecordLine, SurveyPosition, SurveyResult};
use super::survey::{Survey, SurveyError};
use super::tracker::is_created_before;
use super::{ContentHash, ContentStore, Manifest, RawPath};
use crate::base::files::WriteDurability;
use crate::host::workspace::Workspace;
use crate::record::state_dir::SessionFolder;

/// The folder of Records in a Session folder.
pub(super) const RECORDS_FOLDER: &str = "snapshots";
/// The end of the file name of a Record.
const RECORD_SUFFIX: &str = ".ndjson";
/// The number of earlier Turns whose Records are searched for a reason that the user was told.
const MAX_EARLIER_TURNS: usize = 32;
/// The maximum size of a Record, in bytes.
const LARGEST: u64 = 256 << 20;

/// The Record of one Turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnRecord {
    /// The seq of the `user_message` with which the Turn began.
    pub turn: u64,
    pub lines: Vec<RecordLine>,
}

impl TurnRecord {
    /// Reads the Record of a Turn, which is empty for a Turn without changes. A line truncated by a crash ends it.
    pub fn read(session_folder: &SessionFolder, turn: u64) -> io::Result<Self> {
        let folder = session_folder.join(RECORDS_FOLDER).open()?;
        let text = folder.map(|folder| folder.read(record_file_name(turn), LARGEST)).transpose()?;
        let text = text.flatten().unwrap_or_default();
        let lines =
            text.split(|byte| *byte == b'\n').map_while(|line| serde_json::from_slice(line).ok());
        Ok(Self { turn, lines: lines.collect() })
    }

    /// The path of a Turn's Record.
    pub fn path(session_folder: &SessionFolder, turn: u64) -> PathBuf {
        session_folder.join(RECORDS_FOLDER).path().join(record_file_name(turn))
    }

    /// The reason why changes of commands are not covered, if they are not.
    pub fn survey_failure(&self) -> Option<&str> {
        self.survey_failures().next()
    }

    fn survey_failures(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().filter_map(|line| match line {
            RecordLine::NotSurveyed { reason, .. } | RecordLine::NotRecorded { reason } => {
                Some(reason.as_str())
            }
            _ => None,
        })
    }

    /// Saves the Record of a Turn whose changes are not recorded, unless it has a Record.
    pub fn save_reason(
        workspace: &Workspace,
        session_folder: &SessionFolder,
        turn: u64,
        reason: &str,
    ) -> io::Result<()> {
        if !Self::read(session_folder, turn)?.lines.is_empty() {
            return Ok(());
        }
        let header = header_line(workspace, session_folder, turn);
        let reason = RecordLine::NotRecorded { reason: reason.to_owned() };
        Self { turn, lines: vec![header, reason, RecordLine::Ended] }.write(session_folder)
    }

    /// Whether a survey in an earlier Turn of the Session failed for this reason.
    pub(super) fn was_refused_before(
        session_folder: &SessionFolder,
        turn: u64,
        reason: &str,
    ) -> bool {
        let folder = session_folder.join(RECORDS_FOLDER).open().ok().flatten();
        let names = folder.and_then(|folder| folder.names().ok()).unwrap_or_default();
        let number = |name: &OsString| -> Option<u64> {
            name.to_str()?.strip_suffix(RECORD_SUFFIX)?.parse().ok()
        };
        let mut turns: Vec<u64> = names.iter().filter_map(number).collect();
        turns.retain(|earlier| *earlier < turn);
        turns.sort_unstable_by_key(|earlier| Reverse(*earlier));
        let has_reason = |earlier: u64| {
            let record = Self::read(session_folder, earlier).ok();
            record.is_some_and(|record| record.survey_failures().any(|other| other == reason))
        };
        turns.into_iter().take(MAX_EARLIER_TURNS).any(has_reason)
    }

    /// The first line, with Workspace, Session and Turn; old Records have none.
    pub fn header(&self) -> Option<&RecordLine> {
        self.lines.first().filter(|line| matches!(line, RecordLine::Began { .. }))
    }

    /// The state of the Workspace's git repository when the Turn began, if it is known.
    pub(super) fn git_state(&self) -> Option<&GitState> {
        match self.header() {
            Some(RecordLine::Began { git, .. }) => git.as_ref(),
            _ => None,
        }
    }

    /// The files that file tools were about to write.
    pub fn written_paths(&self) -> Vec<PathBuf> {
        let touched = self.lines.iter().filter_map(|line| match line {
            RecordLine::Found { path, .. } => Some(path.0.clone()),
            _ => None,
        });
        touched.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// A path in the Record that is outside of the Workspace; only a forged Record has one.
    pub fn path_outside_workspace(&self) -> Option<&Path> {
        let is_outside =
            |path: &&Path| !path.components().all(|part| matches!(part, Component::Normal(_)));
        self.lines.iter().find_map(|line| match line {
            RecordLine::Found { path, made, .. } => {
                made.iter().chain([path]).map(RawPath::as_ref).find(is_outside)
            }
            RecordLine::Left { path, .. } => Some(path.as_ref()).filter(is_outside),
            RecordLine::Folder(folder) => Some(folder.path.as_path()).filter(is_outside),
            RecordLine::CommandSurvey { seen: SurveyResult::Changed(delta), .. } => {
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
        read: impl Fn(&ContentHash) -> io::Result<Manifest>,
    ) -> io::Result<Option<Manifest>> {
        let mut deltas = Vec::new();
        for line in self.lines.get(..place).unwrap_or_default().iter().rev() {
            let RecordLine::CommandSurvey { seen, .. } = line else { continue };
            match seen {
                SurveyResult::Changed(delta) => deltas.push(delta),
                SurveyResult::All(hash) => {
                    let mut manifest = read(hash)?;
                    deltas.iter().rev().for_each(|delta| delta.apply(&mut manifest));
                    return Ok(Some(manifest));
                }
            }
        }
        Ok(None)
    }

    /// The start of the last successful survey, if a command may have run since.
    fn running_since(&self) -> Option<u64> {
        let last = self.lines.iter().rev().find_map(|line| match line {
            RecordLine::CommandSurvey { is_running, started, .. } => Some((*is_running, *started)),
            _ => None,
        });
        last.filter(|(is_running, _)| *is_running).map(|(_, started)| started)
    }

    /// Reopens the Record of a Turn for commands that belong to the Turn but run after its end. Until the
    /// Record is closed again, the Turn counts as cut off.
    pub fn reopen(
        session_folder: &SessionFolder,
        turn: u64,
        survey: &Survey<'_>,
    ) -> io::Result<Self> {
        let mut record = Self::read(session_folder, turn)?;
        record.lines.retain(|line| *line != RecordLine::Ended);
        if record.lines.is_empty() {
            record.lines.push(header_line(survey.workspace, session_folder, turn));
        }
        record.lines.push(command_survey_line(survey, &record.written_paths(), true)?);
        record.write(session_folder)?;
        Ok(record)
    }

    /// Adds the missing end of a Turn that was cut off, with a last survey, so that its undo can be redone. The
    /// survey may also be missing because it was refused.
    pub fn close(&mut self, session_folder: &SessionFolder, survey: &Survey<'_>) -> io::Result<()> {
        let has_ended = self.lines.contains(&RecordLine::Ended);
        let running_since = self.running_since();
        if has_ended && running_since.is_none() {
            return Ok(());
        }
        let mut open = BTreeSet::new();
        let mut is_old_survey_open = false;
        for line in &self.lines {
            match line {
                RecordLine::Found { path, .. } => drop(open.insert(path.0.clone())),
                RecordLine::Left { path, .. } => drop(open.remove(&path.0)),
                RecordLine::Surveyed { when, .. } => {
                    is_old_survey_open = *when == SurveyPosition::Before;
                }
                _ => {}
            }
        }
        for path in open {
            let state = content::read_state(survey.workspace, &path, Some(survey.store))?;
            self.lines.push(RecordLine::Left { path: RawPath(path), state, at: unix_nanos() });
        }
        if is_old_survey_open {
            self.lines.push(survey_line(SurveyPosition::After, survey, &[])?);
        }
        if let Some(started) = running_since {
            let line = match command_survey_line(survey, &self.written_paths(), false)? {
                // Without a comparison the end stays unknown, but other changes are undone.
                RecordLine::NotSurveyed { when, reason } => self
                    .comparison_line(survey, started)
                    .unwrap_or(RecordLine::NotSurveyed { when, reason }),
                line => line,
            };
            self.lines.push(line);
        }
        if !has_ended {
            self.lines.push(RecordLine::Ended);
        }
        self.write(session_folder)
    }

    /// Compares the current files with the last survey, which began at `started`. Nothing is stored, so that the
    /// limits of a survey do not apply.
    fn comparison_line(&self, survey: &Survey<'_>, started: u64) -> io::Result<RecordLine> {
        let began = unix_nanos();
        let read = |hash: &ContentHash| Manifest::load(hash, survey.store);
        let before = self.manifest_before(self.lines.len(), read)?.unwrap_or_default();
        let named = self.written_paths();
        let Survey { workspace, store, limits } = *survey;
        let survey = Survey { workspace, store, limits: limits.without_storing() };
        let now = survey.run_including(Some(&before), &named).map_err(io::Error::other)?;
        let is_older = |path: &Path| {
            let created_at = workspace.creation_time(path);
            created_at.is_some_and(|created_at| is_created_before(created_at, started))
        };
        let delta = ManifestDelta::between(&before, &now, &named.into_iter().collect());
        let seen = SurveyResult::Changed(delta.with_appeared(&before, &now, is_older));
        let ended = unix_nanos();
        Ok(RecordLine::CommandSurvey { seen, is_running: false, started: began, ended })
    }

    /// Rewrites the file: a crash may have left a truncated line, and lines after such a line are not read.
    fn write(&self, session_folder: &SessionFolder) -> io::Result<()> {
        let mut text = Vec::new();
        for line in &self.lines {
            serde_json::to_writer(&mut text, line)?;
            text.push(b'\n');
        }
        let folder = session_folder.join(RECORDS_FOLDER).create()?;
        Ok(folder.replace(record_file_name(self.turn), &text, WriteDurability::Lazy)?)
    }
}

/// The file name of a Turn's Record.
pub(super) fn record_file_name(turn: u64) -> String {
    format!("{turn}{RECORD_SUFFIX}")
}

pub(super) fn header_line(
    workspace: &Workspace,
    session_folder: &SessionFolder,
    turn: u64,
) -> RecordLine {
    let session = session_folder.id().to_string();
    let git = GitState::read(workspace);
    RecordLine::Began { workspace: RawPath(workspace.root().to_owned()), session, turn, git }
}

/// Nanoseconds since the epoch.
pub(super) fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Takes a survey outside of a running Turn and returns its line.
fn command_survey_line(
    survey: &Survey<'_>,
    touched: &[PathBuf],
    is_running: bool,
) -> io::Result<RecordLine> {
    let started = unix_nanos();
    let when = if is_running { SurveyPosition::Before } else { SurveyPosition::After };
    Ok(match survey_line(when, survey, touched)? {
        RecordLine::Surveyed { manifest, .. } => RecordLine::CommandSurvey {
            seen: SurveyResult::All(manifest),
            is_running,
            started,
            ended: unix_nanos(),
        },
        other => other,
    })
}

/// Surveys the Workspace and returns the line; a failed survey gets its own line, so that it is not read as a
/// survey without changes.
fn survey_line(
    when: SurveyPosition,
    survey: &Survey<'_>,
    touched: &[PathBuf],
) -> io::Result<RecordLine> {
    match survey.run_including(load_last_manifest(survey.store).as_ref(), touched) {
        Ok(manifest) => {
            let (manifest, _) = save_as_last(&manifest, survey.store)?;
            Ok(RecordLine::Surveyed { when, manifest })
        }
        Err(SurveyError::Storage { source, .. }) => Err(source),
        Err(refused) => Ok(RecordLine::NotSurveyed { when, reason: refused.to_string() }),
    }
}

/// Stores a Manifest, also as the starting point of the next survey.
pub(super) fn save_as_last(
    manifest: &Manifest,
    store: &ContentStore,
) -> io::Result<(ContentHash, u64)> {
    let (hash, length) = manifest.save(store)?;
    store.set_last_manifest_hash(&hash)?;
    Ok((hash, length))
}

/// The cached Manifest of the last survey of this Workspace by any Session.
pub fn load_last_manifest(store: &ContentStore) -> Option<Manifest> {
    KnownManifest::load_last(store).map(|known| Arc::unwrap_or_clone(known.manifest))
}

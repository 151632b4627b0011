//! Turn tracker of one Session: records what file tools write, and surveys the Workspace around each
//! command.

#[cfg(test)]
mod tests;
mod tool_writes;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::delta::ManifestDelta;
use super::folder_watch::FolderWatch;
use super::known_manifest::KnownManifest;
use super::record::{RECORDS_FOLDER, TurnRecord, header_line, record_file_name, unix_nanos};
use super::record_line::{RecordLine, SurveyPosition, SurveyResult};
use super::survey::{RefusedSurvey, Survey, SurveyError, SurveyLimits};
use super::survey_progress::SurveyProgress;
use super::{ContentStore, Manifest};
use crate::base::git_index;
use crate::host::workspace::Workspace;
use crate::record::state_dir::SessionFolder;

/// The number of surveys of a small Workspace before it is watched: those around the first command.
/// Closing a watch takes the kernel about 15 ms, longer than a survey of a few hundred files.
const SURVEYS_WITHOUT_WATCH: usize = 2;
/// The minimum number of files of a Workspace that is watched from its first survey on, because another
/// survey would take longer than closing the watch.
const LARGE_WORKSPACE: usize = 5_000;

/// Records the file changes of a Session's Turns; cheap to clone.
#[derive(Debug, Clone)]
pub struct TurnTracker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    workspace: Workspace,
    store: ContentStore,
    limits: SurveyLimits,
    session_folder: SessionFolder,
    /// Held during a survey, because each survey is a difference to the previous one.
    surveying: Mutex<()>,
    turn_state: Mutex<TurnState>,
    /// What is known about failed surveys of this Session.
    refusals: Mutex<SurveyRefusals>,
    /// Whether the notice about large pins was sent.
    has_reported_pins: AtomicBool,
}

#[derive(Debug, Default)]
struct SurveyRefusals {
    /// The reasons that the user was told.
    told: BTreeSet<String>,
    /// The last survey, if it had too many files outside git.
    last: Option<RefusedSurvey>,
}

#[derive(Debug, Default)]
struct TurnState {
    turn: Option<u64>,
    /// Files that file tools have written in this Turn.
    touched: BTreeSet<PathBuf>,
    /// Files that file tools have written since the last survey.
    touched_since: BTreeSet<PathBuf>,
    is_surveyed: bool,
    /// The reason why no further surveys are taken in this Turn.
    refused: Option<String>,
    /// Whether a command may have run since the last survey.
    is_running: bool,
    /// The number of running commands, including background commands.
    commands: usize,
    /// The last Manifest, so that unchanged files are not read again.
    last: Option<KnownManifest>,
    /// The watch that reports whether the last Manifest is still current.
    watch: Option<FolderWatch>,
    /// The number of full surveys in this Session.
    surveys: usize,
    /// Whether a survey since the last full one used the watch instead of reading files.
    has_relied_on_watch: bool,
    /// The start of the last survey, in nanoseconds since the epoch.
    surveyed_at: u64,
    /// The file of this Turn's Record.
    record: Option<File>,
    /// The progress of the running survey.
    progress: Option<Arc<SurveyProgress>>,
    /// Notices for the user.
    notices: Vec<String>,
}

/// The part of the Workspace that a survey reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SurveyDepth {
    /// Only what the watch reported as changed.
    Incremental,
    Full,
}

/// A running command; counts as ended when dropped.
#[derive(Debug)]
pub struct RunningCommand(TurnTracker);

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let mut turn_state = self.0.0.turn_state.lock();
        turn_state.commands = turn_state.commands.saturating_sub(1);
    }
}

impl TurnTracker {
    /// A tracker for the Session with this folder.
    pub fn new(workspace: Workspace, session_folder: SessionFolder, limits: SurveyLimits) -> Self {
        let store = ContentStore::for_session(&session_folder);
        let (surveying, state) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Shared {
            workspace,
            store,
            limits,
            session_folder,
            surveying,
            turn_state: state,
            refusals: Mutex::default(),
            has_reported_pins: AtomicBool::new(false),
        }))
    }

    /// Begins a Turn.
    pub fn begin_turn(&self, turn: u64) {
        let mut turn_state = self.0.turn_state.lock();
        let before = std::mem::take(&mut *turn_state);
        let TurnState { last, watch, surveys, commands, .. } = before;
        let turn = Some(turn);
        *turn_state = TurnState { turn, commands, last, watch, surveys, ..TurnState::default() };
    }

    /// Counts a command as running until the result is dropped.
    pub fn command_started(&self) -> RunningCommand {
        self.0.turn_state.lock().commands += 1;
        RunningCommand(self.clone())
    }

    /// Surveys the Workspace before a command. Changes since the last survey were made by other programs,
    /// unless another command still ran.
    pub fn before_command(&self) -> io::Result<()> {
        let _alone = self.0.surveying.lock();
        let Some(turn) = self.turn_to_survey() else { return Ok(()) };
        let is_news = {
            let turn_state = self.0.turn_state.lock();
            let is_quiet = || turn_state.watch.as_ref().is_some_and(FolderWatch::is_quiet);
            turn_state.has_relied_on_watch && !turn_state.is_running && !is_quiet()
        };
        self.with_progress(|progress| {
            if is_news {
                self.record_unreported_changes(turn, progress)?;
            }
            self.survey(turn, true, SurveyDepth::Incremental, progress)
        })
    }

    /// Records the survey before a command if the last one is still current, without blocking; false when
    /// `before_command` has to be called.
    pub fn try_before_command(&self) -> bool {
        let Some(_alone) = self.0.surveying.try_lock() else { return false };
        let Some(turn) = self.turn_to_survey() else { return true };
        self.is_last_survey_current() && self.survey_current(turn, true).is_ok()
    }

    /// Records the survey after a command if the last one is still current, without blocking; false when
    /// `after_command` has to be called.
    pub fn try_after_command(&self) -> bool {
        let Some(_alone) = self.0.surveying.try_lock() else { return false };
        let Some(turn) = self.turn_to_survey() else { return true };
        let (is_needed, still_runs) = {
            let turn_state = self.0.turn_state.lock();
            (turn_state.is_running, turn_state.commands > 0)
        };
        !is_needed || self.is_last_survey_current() && self.survey_current(turn, still_runs).is_ok()
    }

    /// Whether the last survey of this Turn is still current.
    fn is_last_survey_current(&self) -> bool {
        let turn_state = self.0.turn_state.lock();
        turn_state.is_surveyed
            && turn_state.touched_since.is_empty()
            && turn_state.watch.as_ref().is_some_and(FolderWatch::is_quiet)
    }

    /// Takes the notices about undo; each is returned once.
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.0.turn_state.lock().notices)
    }

    /// The progress of the running survey, if any.
    pub fn progress(&self) -> Option<Arc<SurveyProgress>> {
        self.0.turn_state.lock().progress.clone()
    }

    /// Surveys the Workspace after a command, unless none has run since the last survey.
    pub fn after_command(&self) -> io::Result<()> {
        let _alone = self.0.surveying.lock();
        let Some(turn) = self.turn_to_survey() else { return Ok(()) };
        let (is_needed, still_runs) = {
            let turn_state = self.0.turn_state.lock();
            (turn_state.is_running, turn_state.commands > 0)
        };
        if is_needed { self.survey_current(turn, still_runs) } else { Ok(()) }
    }

    /// Ends the Turn, with a survey if commands still run. Returns the reason why changes of commands are not
    /// covered, if they are not.
    pub fn end_turn(&self) -> io::Result<Option<String>> {
        let _alone = self.0.surveying.lock();
        let (turn, is_running, has_record) = {
            let turn_state = self.0.turn_state.lock();
            let Some(turn) = turn_state.turn else { return Ok(None) };
            (turn, turn_state.is_running, turn_state.record.is_some())
        };
        let surveyed = self.with_progress(|progress| {
            if is_running {
                self.survey(turn, false, SurveyDepth::Full, progress)
            } else {
                self.record_unreported_changes(turn, progress)
            }
        });
        let refused = {
            let mut turn_state = self.0.turn_state.lock();
            turn_state.turn = None;
            turn_state.refused.take()
        };
        surveyed?;
        if has_record {
            self.append_line(turn, &RecordLine::Ended)?;
        }
        self.0.turn_state.lock().record = None;
        Ok(refused)
    }

    /// The running Turn, unless surveys have failed in it.
    fn turn_to_survey(&self) -> Option<u64> {
        let turn_state = self.0.turn_state.lock();
        turn_state.turn.filter(|_| turn_state.refused.is_none())
    }

    /// Takes a full survey if earlier ones used the watch. Unreported differences are attributed to the
    /// earlier commands; reported ones were made by other programs.
    fn record_unreported_changes(&self, turn: u64, progress: &SurveyProgress) -> io::Result<()> {
        let surveyed_at = {
            let turn_state = self.0.turn_state.lock();
            if !turn_state.has_relied_on_watch || turn_state.refused.is_some() {
                return Ok(());
            }
            turn_state.surveyed_at
        };
        let started = unix_nanos();
        let hold = self.0.store.lock_shared_unless(|| progress.stop().is_due())?;
        let Some(_hold) = hold else { return Ok(()) };
        let (known, touched, named) = self.take_comparison_inputs();
        let Some(known) = known else { return Ok(()) };
        let looked = self.survey_everything(Some(&known.manifest), &touched, progress);
        let Ok(manifest) = looked else {
            self.0.turn_state.lock().touched_since.extend(named);
            return Ok(());
        };
        let mut since = self.changes_between(&known.manifest, &manifest, &named, surveyed_at);
        let unreported = {
            let mut turn_state = self.0.turn_state.lock();
            turn_state.has_relied_on_watch = false;
            turn_state.last = Some(known.replaced_by(manifest));
            let was_reported = |path: &Path| {
                turn_state.watch.as_ref().is_none_or(|watch| watch.was_reported(path))
            };
            since.split_off(|file| file.from.is_some() && !was_reported(&file.path))
        };
        let is_running = self.0.turn_state.lock().is_running;
        let record = |delta: ManifestDelta, is_running, ended| {
            let seen = SurveyResult::Changed(delta);
            self.append_line(turn, &RecordLine::CommandSurvey { seen, is_running, started, ended })
        };
        if unreported != ManifestDelta::default() {
            record(ManifestDelta::default(), true, started)?;
            record(unreported, is_running, unix_nanos())?;
        }
        if since != ManifestDelta::default() {
            record(since, is_running, unix_nanos())?;
        }
        Ok(())
    }

    /// The changes between two Manifests, the first of a survey that began at `began`.
    fn changes_between(
        &self,
        before: &Arc<Manifest>,
        after: &Arc<Manifest>,
        named: &BTreeSet<PathBuf>,
        began: u64,
    ) -> ManifestDelta {
        if Arc::ptr_eq(before, after) {
            return ManifestDelta::unchanged(before, named);
        }
        let is_older = |path: &Path| {
            let born = self.0.workspace.creation_time(path);
            born.is_some_and(|born| is_created_before(born, began)) && !named.contains(path)
        };
        ManifestDelta::between(before, after, named).with_appeared(before, after, is_older)
    }

    /// Does a piece of work whose progress other threads can see, and which they can stop.
    fn with_progress<T>(&self, work: impl FnOnce(&SurveyProgress) -> T) -> T {
        let progress = Arc::new(SurveyProgress::new(self.0.limits.time));
        self.0.turn_state.lock().progress = Some(Arc::clone(&progress));
        let done = work(&progress);
        self.0.turn_state.lock().progress = None;
        done
    }

    fn survey_current(&self, turn: u64, is_running: bool) -> io::Result<()> {
        self.with_progress(|progress| {
            self.survey(turn, is_running, SurveyDepth::Incremental, progress)
        })
    }

    fn survey(
        &self,
        turn: u64,
        is_running: bool,
        depth: SurveyDepth,
        progress: &SurveyProgress,
    ) -> io::Result<()> {
        let surveyed = self.try_survey(turn, is_running, depth, progress);
        let reason = match &surveyed {
            Ok(None) => return Ok(()),
            Ok(Some(refused)) => refused.clone(),
            Err(error) => error.to_string(),
        };
        let is_told = !self.0.refusals.lock().told.insert(reason.clone())
            || TurnRecord::was_refused_before(&self.0.session_folder, turn, &reason);
        let when = {
            let mut turn_state = self.0.turn_state.lock();
            turn_state.is_running = false;
            turn_state.refused = Some(reason.clone());
            if !is_told {
                turn_state
                    .notices
                    .push(format!("undo covers only what file tools change: {reason}"));
            }
            if turn_state.is_surveyed { SurveyPosition::After } else { SurveyPosition::Before }
        };
        let noted = self.append_line(turn, &RecordLine::NotSurveyed { when, reason });
        surveyed.and(noted)
    }

    /// Returns the last Manifest, the files that tools wrote in this Turn, and those written since the last survey.
    fn take_comparison_inputs(&self) -> (Option<KnownManifest>, Vec<PathBuf>, BTreeSet<PathBuf>) {
        let mut turn_state = self.0.turn_state.lock();
        let named = std::mem::take(&mut turn_state.touched_since);
        (turn_state.last.clone(), turn_state.touched.iter().cloned().collect(), named)
    }

    /// Takes a survey and records it; returns the reason if it failed.
    fn try_survey(
        &self,
        turn: u64,
        is_running: bool,
        depth: SurveyDepth,
        progress: &SurveyProgress,
    ) -> io::Result<Option<String>> {
        let store = &self.0.store;
        let started = unix_nanos();
        let (known, touched, named) = self.take_comparison_inputs();
        let (is_first, is_same, surveyed_at) = {
            let turn_state = self.0.turn_state.lock();
            let is_quiet = || turn_state.watch.as_ref().is_some_and(FolderWatch::is_quiet);
            let is_seen =
                |manifest: &Manifest| named.iter().all(|path| manifest.entries.contains_key(path));
            let is_known = known.as_ref().is_some_and(|known| is_seen(&known.manifest));
            let is_same = depth == SurveyDepth::Incremental && is_known && is_quiet();
            (!turn_state.is_surveyed, is_same, turn_state.surveyed_at)
        };
        let _hold = if is_same && !is_first {
            None
        } else {
            let Some(hold) = store.lock_shared_unless(|| progress.stop().is_due())? else {
                let refused = self.full_survey().check_time(progress.stop()).err();
                return Ok(refused.map(|refused| refused.to_string()));
            };
            Some(hold)
        };
        let (seen, known) = match known {
            Some(known) if is_same && is_first => known.ensure_stored(store)?,
            Some(known) if is_same => {
                let delta = ManifestDelta::unchanged(&known.manifest, &named);
                (SurveyResult::Changed(delta), known)
            }
            known => {
                // If this Session has no earlier Manifest, another Session may have stored one.
                let read = if known.is_none() { KnownManifest::load_last(store) } else { None };
                let before = known.as_ref().or(read.as_ref()).map(|known| &known.manifest);
                let manifest = match self.survey_everything(before, &touched, progress) {
                    Ok(manifest) => manifest,
                    Err(SurveyError::Storage { source, .. }) => return Err(source),
                    Err(refused) => return Ok(Some(refused.to_string())),
                };
                match known {
                    Some(known) if is_first => known.replaced_by(manifest).ensure_stored(store)?,
                    Some(known) => {
                        let delta =
                            self.changes_between(&known.manifest, &manifest, &named, surveyed_at);
                        (SurveyResult::Changed(delta), known.replaced_by(manifest))
                    }
                    None => match read {
                        Some(read) => read.replaced_by(manifest).ensure_stored(store)?,
                        None => KnownManifest { manifest, stored: None }.ensure_stored(store)?,
                    },
                }
            }
        };
        {
            let mut turn_state = self.0.turn_state.lock();
            turn_state.last = Some(known);
            turn_state.is_surveyed = true;
            turn_state.is_running = is_running;
            turn_state.has_relied_on_watch = is_same;
            turn_state.surveyed_at = started;
        }
        let ended = unix_nanos();
        self.append_line(turn, &RecordLine::CommandSurvey { seen, is_running, started, ended })?;
        Ok(None)
    }

    /// The survey of the whole Workspace.
    fn full_survey(&self) -> Survey<'_> {
        let Shared { workspace, store, limits, .. } = &*self.0;
        Survey { workspace, store, limits: *limits }
    }

    /// Surveys the whole Workspace and, where possible, watches it: from the second command on, or from the
    /// first one if the Workspace is large.
    fn survey_everything(
        &self,
        before: Option<&Arc<Manifest>>,
        touched: &[PathBuf],
        progress: &SurveyProgress,
    ) -> Result<Arc<Manifest>, SurveyError> {
        let Shared { workspace, store, .. } = &*self.0;
        let (watch, surveys) = {
            let mut turn_state = self.0.turn_state.lock();
            turn_state.surveys += 1;
            (turn_state.watch.take(), turn_state.surveys)
        };
        let is_large = || {
            let in_git = || git_index::entry_count(&workspace.root().join(".git"));
            before.map_or_else(in_git, |before| before.entries.len()) >= LARGE_WORKSPACE
        };
        let is_worth_it = surveys > SURVEYS_WITHOUT_WATCH || watch.is_none() && is_large();
        let watch = watch.or_else(|| is_worth_it.then(|| FolderWatch::new(workspace)).flatten());
        let known = before.map(Arc::as_ref);
        let index = git_index::index_stamp(&workspace.root().join(".git"));
        let mut survey = self.full_survey();
        survey.limits.refused = self.0.refusals.lock().last;
        let taken = survey.run_watched(known, touched, watch.as_ref(), progress);
        let is_vain = matches!(taken, Err(SurveyError::TooManyOutsideGit { .. }));
        self.0.refusals.lock().last =
            is_vain.then(|| RefusedSurvey { files: progress.found(), index });
        let mut turn_state = self.0.turn_state.lock();
        if let Some(summary) = progress.first_batch() {
            turn_state.notices.push(summary.notice(store));
        }
        if let Some(notice) = progress.large_pins_notice(store)
            && !self.0.has_reported_pins.swap(true, Ordering::Relaxed)
        {
            turn_state.notices.push(notice);
        }
        let taken = taken?;
        turn_state.watch = watch;
        let same = before.filter(|_| taken.is_none()).map(Arc::clone);
        Ok(same.unwrap_or_else(|| Arc::new(taken.unwrap_or_default())))
    }

    /// Appends a line to this Turn's Record; a new Record gets its header line first.
    fn append_line(&self, turn: u64, line: &RecordLine) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let mut turn_state = self.0.turn_state.lock();
        if turn_state.record.is_none() {
            let folder = self.0.session_folder.join(RECORDS_FOLDER).create()?;
            let file = if let Some(file) = folder.open_append(record_file_name(turn))? {
                file
            } else {
                let Shared { workspace, session_folder, .. } = &*self.0;
                let mut first = serde_json::to_vec(&header_line(workspace, session_folder, turn))?;
                first.push(b'\n');
                text.splice(..0, first);
                folder.create_new(record_file_name(turn))?
            };
            turn_state.record = Some(file);
        }
        turn_state.record.as_mut().map_or(Ok(()), |file| file.write_all(&text))
    }
}

/// Whether a file was created before a survey began; timestamps of files lag by up to a kernel tick.
pub(super) fn is_created_before(born: u64, began: u64) -> bool {
    born.saturating_add(20_000_000) < began
}

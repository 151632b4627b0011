//! Records the Turns of one Session: notes what file tools write, and surveys the Workspace around each
//! command.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::content;
use super::delta::ManifestDelta;
use super::line::{Line, Seen, When};
use super::progress::SurveyProgress;
use super::record::{FOLDER, began, keep_as_last, name, now};
use super::survey::{self, Limits, Refused, Survey};
use super::watch::FolderWatch;
use super::{FolderChange, Manifest, RawPath, State, Store};
use crate::base::git_index;
use crate::host::workspace::Workspace;
use crate::record::state_dir::SessionFolder;

/// How many surveys of a small Workspace are taken before it is watched: those around the first command.
/// Closing a watch takes the kernel about 15 ms, longer than a survey of a few hundred files.
const SURVEYS_WITHOUT_WATCH: usize = 2;
/// A Workspace with this many files is watched from its first survey on, because another survey would take
/// longer than closing the watch.
const LARGE_WORKSPACE: usize = 5_000;

/// Records the file changes of a Session's Turns; cheap to clone.
#[derive(Debug, Clone)]
pub struct Tracker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    workspace: Workspace,
    store: Store,
    limits: Limits,
    session_folder: SessionFolder,
    /// Held during a survey: each survey is a difference to the one before.
    surveying: Mutex<()>,
    state: Mutex<Following>,
    /// Whether the notice that commands are not covered was given.
    has_told_refusal: AtomicBool,
}

#[derive(Debug, Default)]
struct Following {
    turn: Option<u64>,
    /// Files that file tools have written in this Turn.
    touched: BTreeSet<PathBuf>,
    /// Files that file tools have written since the last survey.
    touched_since: BTreeSet<PathBuf>,
    is_surveyed: bool,
    /// Why no further surveys are taken in this Turn.
    refused: Option<String>,
    /// Whether a command may have run since the last survey.
    is_running: bool,
    /// How many commands run now, including background commands.
    commands: usize,
    /// The last Manifest, so that unchanged files are not read again.
    last: Option<Known>,
    /// Reports whether the last Manifest still holds.
    watch: Option<FolderWatch>,
    /// How many full surveys this Session has taken.
    surveys: usize,
    /// Whether a survey since the last full one relied on the watch.
    has_relied: bool,
    /// When the last survey began, in nanoseconds since the epoch.
    surveyed_at: u64,
    /// The file of this Turn's Record.
    record: Option<File>,
    /// The progress of the running survey.
    progress: Option<Arc<SurveyProgress>>,
    /// Notices for the user.
    notices: Vec<String>,
}

/// How much of the Workspace a survey reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Only what the watch reported as changed.
    Changes,
    Everything,
}

/// A Manifest, and the hash and length of its file if it is stored.
#[derive(Debug, Clone)]
struct Known {
    manifest: Arc<Manifest>,
    kept: Option<(super::Hash, u64)>,
}

/// A running command; it counts as ended when this is dropped.
#[derive(Debug)]
pub struct RunningCommand(Tracker);

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let mut following = self.0.following();
        following.commands = following.commands.saturating_sub(1);
    }
}

impl Tracker {
    /// A tracker for the Session with this folder.
    pub fn new(workspace: Workspace, session_folder: SessionFolder, limits: Limits) -> Self {
        let store = Store::beside(&session_folder);
        let (surveying, state) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Shared {
            workspace,
            store,
            limits,
            session_folder,
            surveying,
            state,
            has_told_refusal: AtomicBool::new(false),
        }))
    }

    /// Begins a Turn.
    pub fn begin(&self, turn: u64) {
        let mut following = self.following();
        let before = std::mem::take(&mut *following);
        let Following { last, watch, surveys, commands, .. } = before;
        let turn = Some(turn);
        *following = Following { turn, commands, last, watch, surveys, ..Following::default() };
    }

    /// Records the state of a file before a tool writes it: `content` is what the tool found, with the
    /// mode.
    pub fn before_write(&self, path: &Path, content: Option<(&[u8], u32)>) -> io::Result<()> {
        let Some(turn) = self.following().turn else { return Ok(()) };
        if self.is_unreported(path, content) {
            let _alone = self.surveying();
            self.look_for_unreported(turn)?;
        }
        let _hold = self.0.store.hold()?;
        let state = match content {
            _ if self.is_of_running_command(path) => None,
            Some(_) => self.kept(content)?,
            // A path without content for the tool may be a link or a special file.
            None => content::state_of(&self.0.workspace, path, Some(&self.0.store))?,
        };
        let made = match &state {
            Some(_) => Vec::new(),
            None => self.missing_above(path),
        };
        {
            let mut following = self.following();
            following.touched.insert(path.to_owned());
            following.touched_since.insert(path.to_owned());
        }
        let path = RawPath(path.to_owned());
        self.append(turn, &Line::Found { path, state, made, at: now() })
    }

    /// Whether a file differs from the last survey although the watch did not report it.
    fn is_unreported(&self, path: &Path, content: Option<(&[u8], u32)>) -> bool {
        let following = self.following();
        let Some(known) = following.last.as_ref().filter(|_| following.has_relied) else {
            return false;
        };
        let found = content.map(|(bytes, mode)| State::File {
            sha256: super::Hash::of(bytes),
            mode: mode & 0o7777,
        });
        let is_other = known.manifest.state(path) != found.as_ref();
        is_other && following.watch.as_ref().is_some_and(|watch| !watch.was_reported(path))
    }

    /// Whether a file was made by a command that still runs: the survey before would have found it
    /// otherwise.
    fn is_of_running_command(&self, path: &Path) -> bool {
        let following = self.following();
        let is_known = |Known { manifest, .. }: &Known| {
            manifest.state(path).is_some() || manifest.left_out.contains_key(path)
        };
        let is_new = following.is_running
            && !following.touched.contains(path)
            && !following.last.as_ref().is_some_and(is_known);
        drop(following);
        is_new && survey::sees(&self.0.workspace, path)
    }

    /// Records the state of a file after a tool has written or removed it.
    pub fn after_write(&self, path: &Path, content: Option<(&[u8], u32)>) -> io::Result<()> {
        let Some(turn) = self.following().turn else { return Ok(()) };
        let _hold = self.0.store.hold()?;
        let state = self.kept(content)?;
        self.append(turn, &Line::Left { path: RawPath(path.to_owned()), state, at: now() })
    }

    /// Records the present state of a file that may have changed.
    pub fn after_change(&self, path: &Path) -> io::Result<()> {
        let Some(turn) = self.following().turn else { return Ok(()) };
        let _hold = self.0.store.hold()?;
        let state = content::state_of(&self.0.workspace, path, Some(&self.0.store))?;
        self.append(turn, &Line::Left { path: RawPath(path.to_owned()), state, at: now() })
    }

    /// Records that Pixir made, removed or changed the mode of a folder.
    pub fn folder_changed(&self, folder: FolderChange) -> io::Result<()> {
        let Some(turn) = self.following().turn else { return Ok(()) };
        self.append(turn, &Line::Folder(folder))
    }

    /// Counts a command as running until the result is dropped.
    pub fn command_started(&self) -> RunningCommand {
        self.following().commands += 1;
        RunningCommand(self.clone())
    }

    /// Surveys the Workspace before a command. Changes since the last survey were made by something else,
    /// unless another command still ran.
    pub fn before_command(&self) -> io::Result<()> {
        let _alone = self.surveying();
        let Some(turn) = self.turn_to_survey() else { return Ok(()) };
        let is_news = {
            let following = self.following();
            let is_quiet = || following.watch.as_ref().is_some_and(FolderWatch::is_quiet);
            following.has_relied && !following.is_running && !is_quiet()
        };
        if is_news {
            self.look_for_unreported(turn)?;
        }
        self.survey(turn, true, Look::Changes)
    }

    /// Records the survey before a command if the last one still holds, without blocking; false when
    /// `before_command` has to be called.
    pub fn before_command_at_once(&self) -> bool {
        let Ok(_alone) = self.0.surveying.try_lock() else { return false };
        let Some(turn) = self.turn_to_survey() else { return true };
        self.still_holds() && self.survey(turn, true, Look::Changes).is_ok()
    }

    /// Records the survey after a command if the last one still holds, without blocking; false when
    /// `after_command` has to be called.
    pub fn after_command_at_once(&self) -> bool {
        let Ok(_alone) = self.0.surveying.try_lock() else { return false };
        let Some(turn) = self.turn_to_survey() else { return true };
        let (is_needed, still_runs) = {
            let following = self.following();
            (following.is_running, following.commands > 0)
        };
        !is_needed || self.still_holds() && self.survey(turn, still_runs, Look::Changes).is_ok()
    }

    /// Whether the last survey of this Turn still holds.
    fn still_holds(&self) -> bool {
        let following = self.following();
        following.is_surveyed
            && following.touched_since.is_empty()
            && following.watch.as_ref().is_some_and(FolderWatch::is_quiet)
    }

    /// Takes the notices about undo, each once.
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.following().notices)
    }

    /// The progress of the running survey, if any.
    pub fn progress(&self) -> Option<Arc<SurveyProgress>> {
        self.following().progress.clone()
    }

    /// Surveys the Workspace after a command, unless none has run since the last survey.
    pub fn after_command(&self) -> io::Result<()> {
        let _alone = self.surveying();
        let Some(turn) = self.turn_to_survey() else { return Ok(()) };
        let (is_needed, still_runs) = {
            let following = self.following();
            (following.is_running, following.commands > 0)
        };
        if is_needed { self.survey(turn, still_runs, Look::Changes) } else { Ok(()) }
    }

    /// Ends the Turn, with a survey if commands still run. The result is the reason why changes of commands
    /// are not covered, if so.
    pub fn end(&self) -> io::Result<Option<String>> {
        let _alone = self.surveying();
        let (turn, is_running, has_record) = {
            let following = self.following();
            let Some(turn) = following.turn else { return Ok(None) };
            (turn, following.is_running, following.record.is_some())
        };
        let surveyed = if is_running {
            self.survey(turn, false, Look::Everything)
        } else {
            self.look_for_unreported(turn)
        };
        let refused = {
            let mut following = self.following();
            following.turn = None;
            following.refused.take()
        };
        surveyed?;
        if has_record {
            self.append(turn, &Line::Ended)?;
        }
        self.following().record = None;
        Ok(refused)
    }

    /// The running Turn, unless surveys have failed in it.
    fn turn_to_survey(&self) -> Option<u64> {
        let following = self.following();
        following.turn.filter(|_| following.refused.is_none())
    }

    /// Takes a full survey if earlier ones relied on the watch. Unreported differences are attributed to
    /// the earlier commands; the others were made by something else.
    fn look_for_unreported(&self, turn: u64) -> io::Result<()> {
        let surveyed_at = {
            let following = self.following();
            if !following.has_relied || following.refused.is_some() {
                return Ok(());
            }
            following.surveyed_at
        };
        let started = now();
        let _hold = self.0.store.hold()?;
        let (known, touched, named) = self.to_compare();
        let Some(known) = known else { return Ok(()) };
        let progress = SurveyProgress::new(self.0.limits.time);
        let looked = self.look_at_everything(Some(&known.manifest), &touched, &progress);
        let Ok(manifest) = looked else { return Ok(()) };
        let mut since = self.delta(&known.manifest, &manifest, &named, surveyed_at);
        let unreported = {
            let mut following = self.following();
            following.has_relied = false;
            following.last = Some(known.followed_by(manifest));
            let was_reported =
                |path: &Path| following.watch.as_ref().is_none_or(|watch| watch.was_reported(path));
            since.split_off(|file| file.from.is_some() && !was_reported(&file.path))
        };
        let is_running = self.following().is_running;
        if unreported != ManifestDelta::default() {
            let seen = Seen::Changed(ManifestDelta::default());
            let ended = started;
            self.append(turn, &Line::CommandSurvey { seen, is_running: true, started, ended })?;
            let (seen, ended) = (Seen::Changed(unreported), now());
            self.append(turn, &Line::CommandSurvey { seen, is_running, started, ended })?;
        }
        if since != ManifestDelta::default() {
            let (seen, ended) = (Seen::Changed(since), now());
            self.append(turn, &Line::CommandSurvey { seen, is_running, started, ended })?;
        }
        Ok(())
    }

    /// The changes since a survey that began at that time.
    fn delta(
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
            let born = self.0.workspace.birth_exact(path);
            born.is_some_and(|born| is_before(born, began)) && !named.contains(path)
        };
        ManifestDelta::between(before, after, named).with_appeared(before, after, is_older)
    }

    fn survey(&self, turn: u64, is_running: bool, look: Look) -> io::Result<()> {
        let progress = Arc::new(SurveyProgress::new(self.0.limits.time));
        self.following().progress = Some(Arc::clone(&progress));
        let surveyed = self.try_survey(turn, is_running, look, &progress);
        self.following().progress = None;
        let reason = match &surveyed {
            Ok(None) => return Ok(()),
            Ok(Some(refused)) => refused.clone(),
            Err(error) => error.to_string(),
        };
        let when = {
            let mut following = self.following();
            following.is_running = false;
            following.refused = Some(reason.clone());
            if !self.0.has_told_refusal.swap(true, Ordering::Relaxed) {
                following
                    .notices
                    .push(format!("undo covers only what file tools change: {reason}"));
            }
            if following.is_surveyed { When::After } else { When::Before }
        };
        let noted = self.append(turn, &Line::NotSurveyed { when, reason });
        surveyed.and(noted)
    }

    /// The last Manifest, the files that tools wrote in this Turn, and those of them since the last survey.
    fn to_compare(&self) -> (Option<Known>, Vec<PathBuf>, BTreeSet<PathBuf>) {
        let mut following = self.following();
        let named = std::mem::take(&mut following.touched_since);
        (following.last.clone(), following.touched.iter().cloned().collect(), named)
    }

    /// Takes a survey and records it; the result is the reason why it failed.
    fn try_survey(
        &self,
        turn: u64,
        is_running: bool,
        look: Look,
        progress: &SurveyProgress,
    ) -> io::Result<Option<String>> {
        let store = &self.0.store;
        let started = now();
        let (known, touched, named) = self.to_compare();
        let (is_first, is_same, surveyed_at) = {
            let following = self.following();
            let is_quiet = || following.watch.as_ref().is_some_and(FolderWatch::is_quiet);
            let is_seen =
                |manifest: &Manifest| named.iter().all(|path| manifest.entries.contains_key(path));
            let is_known = known.as_ref().is_some_and(|known| is_seen(&known.manifest));
            let is_same = look == Look::Changes && is_known && is_quiet();
            (!following.is_surveyed, is_same, following.surveyed_at)
        };
        let _hold = if is_same && !is_first {
            None
        } else {
            let Some(hold) = store.hold_unless(|| progress.stop().is_due())? else {
                let refused = self.everything().check_time(progress.stop()).err();
                return Ok(refused.map(|refused| refused.to_string()));
            };
            Some(hold)
        };
        let (seen, known) = match known {
            Some(known) if is_same && is_first => known.kept(store)?,
            Some(known) if is_same => {
                let delta = ManifestDelta::unchanged(&known.manifest, &named);
                (Seen::Changed(delta), known)
            }
            known => {
                // Without an earlier Manifest of this Session there may be one of another Session.
                let read = if known.is_none() { Known::last(store) } else { None };
                let before = known.as_ref().or(read.as_ref()).map(|known| &known.manifest);
                let manifest = match self.look_at_everything(before, &touched, progress) {
                    Ok(manifest) => manifest,
                    Err(Refused::Keep { source, .. }) => return Err(source),
                    Err(refused) => return Ok(Some(refused.to_string())),
                };
                match known {
                    Some(known) if is_first => known.followed_by(manifest).kept(store)?,
                    Some(known) => {
                        let delta = self.delta(&known.manifest, &manifest, &named, surveyed_at);
                        (Seen::Changed(delta), known.followed_by(manifest))
                    }
                    None => match read {
                        Some(read) => read.followed_by(manifest).kept(store)?,
                        None => Known { manifest, kept: None }.kept(store)?,
                    },
                }
            }
        };
        {
            let mut following = self.following();
            following.last = Some(known);
            following.is_surveyed = true;
            following.is_running = is_running;
            following.has_relied = is_same;
            following.surveyed_at = started;
        }
        let ended = now();
        self.append(turn, &Line::CommandSurvey { seen, is_running, started, ended })?;
        Ok(None)
    }

    /// The survey of the whole Workspace.
    fn everything(&self) -> Survey<'_> {
        let Shared { workspace, store, limits, .. } = &*self.0;
        Survey { workspace, store, limits: *limits }
    }

    /// Surveys the whole Workspace and watches it where possible: from the second command on, or from the
    /// first one if the Workspace is large.
    fn look_at_everything(
        &self,
        before: Option<&Arc<Manifest>>,
        touched: &[PathBuf],
        progress: &SurveyProgress,
    ) -> Result<Arc<Manifest>, Refused> {
        let Shared { workspace, store, .. } = &*self.0;
        let (watch, surveys) = {
            let mut following = self.following();
            following.surveys += 1;
            (following.watch.take(), following.surveys)
        };
        let is_large = || {
            let in_git = || git_index::entry_count(&workspace.root().join(".git"));
            before.map_or_else(in_git, |before| before.entries.len()) >= LARGE_WORKSPACE
        };
        let is_worth_it = surveys > SURVEYS_WITHOUT_WATCH || watch.is_none() && is_large();
        let watch = watch.or_else(|| is_worth_it.then(|| FolderWatch::new(workspace)).flatten());
        let known = before.map(Arc::as_ref);
        let taken = self.everything().take_watched(known, touched, watch.as_ref(), progress);
        let mut following = self.following();
        if let Some(summary) = progress.first_batch() {
            following.notices.push(summary.notice(store));
        }
        let taken = taken?;
        following.watch = watch;
        let same = before.filter(|_| taken.is_none()).map(Arc::clone);
        Ok(same.unwrap_or_else(|| Arc::new(taken.unwrap_or_default())))
    }

    fn kept(&self, content: Option<(&[u8], u32)>) -> io::Result<Option<State>> {
        let keep = |(bytes, mode): (&[u8], u32)| {
            Ok(State::File { sha256: self.0.store.put(bytes)?, mode: mode & 0o7777 })
        };
        content.map(keep).transpose()
    }

    /// The missing folders above a path, outermost first.
    fn missing_above(&self, path: &Path) -> Vec<RawPath> {
        let above = path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
        let missing = above.take_while(|folder| self.0.workspace.look_exact(folder).is_err());
        let mut missing: Vec<RawPath> = missing.map(|folder| RawPath(folder.to_owned())).collect();
        missing.reverse();
        missing
    }

    /// Appends a line to this Turn's Record; a new Record gets its first line before.
    fn append(&self, turn: u64, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let mut following = self.following();
        if following.record.is_none() {
            let folder = self.0.session_folder.join(FOLDER).create()?;
            let file = if let Some(file) = folder.open_append(name(turn))? {
                file
            } else {
                let Shared { workspace, session_folder, .. } = &*self.0;
                let mut first = serde_json::to_vec(&began(workspace, session_folder, turn))?;
                first.push(b'\n');
                text.splice(..0, first);
                folder.create_new(name(turn))?
            };
            following.record = Some(file);
        }
        following.record.as_mut().map_or(Ok(()), |file| file.write_all(&text))
    }

    fn surveying(&self) -> MutexGuard<'_, ()> {
        self.0.surveying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn following(&self) -> MutexGuard<'_, Following> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a file was created before a survey began; timestamps of files lag by up to a kernel tick.
pub(super) fn is_before(born: u64, began: u64) -> bool {
    born.saturating_add(20_000_000) < began
}

impl Known {
    /// Stores the Manifest, unless the store still has it.
    fn kept(self, store: &Store) -> io::Result<(Seen, Self)> {
        let kept = match self.kept.filter(|(hash, length)| store.renew(hash, *length)) {
            Some(kept) => kept,
            None => keep_as_last(&self.manifest, store)?,
        };
        Ok((Seen::All(kept.0), Self { kept: Some(kept), ..self }))
    }

    /// The entry for a later Manifest, which is not stored unless it is equal.
    fn followed_by(self, manifest: Arc<Manifest>) -> Self {
        if Arc::ptr_eq(&self.manifest, &manifest) || self.manifest == manifest {
            self
        } else {
            Self { manifest, kept: None }
        }
    }

    /// Loads the Manifest of the last survey of this Workspace, possibly by another Session.
    fn last(store: &Store) -> Option<Self> {
        let hash = store.last()?;
        let manifest = Arc::new(Manifest::kept(&hash, store).ok()?);
        let length = store.open(&hash).ok()??.metadata().ok()?.len();
        Some(Self { manifest, kept: Some((hash, length)) })
    }
}

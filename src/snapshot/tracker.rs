//! Follows the Turns of one Session: notes what file tools write, and surveys the Workspace around
//! each command.

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
use crate::git_index;
use crate::state::SessionFolder;
use crate::workspace::Workspace;

/// How many surveys of a small Workspace are taken before it is watched: those around the first
/// command. The kernel takes about 15 ms to close a watch, more than a survey of some hundred files.
const SURVEYS_WITHOUT_WATCH: usize = 2;
/// A Workspace of this many files is watched from its first survey on, because another survey would take longer
/// than closing the watch.
const LARGE_WORKSPACE: usize = 5_000;

/// Follows the Turns of one Session; cheap to clone.
#[derive(Debug, Clone)]
pub struct Tracker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    workspace: Workspace,
    store: Store,
    limits: Limits,
    session_folder: SessionFolder,
    /// Held during a survey: one after another, each differs from the one before.
    surveying: Mutex<()>,
    state: Mutex<Following>,
    /// Whether the user was told that commands are not covered.
    has_told_refusal: AtomicBool,
}

#[derive(Debug, Default)]
struct Following {
    turn: Option<u64>,
    /// What Tools have written in this Turn.
    touched: BTreeSet<PathBuf>,
    /// The same, since the last survey.
    touched_since: BTreeSet<PathBuf>,
    is_surveyed: bool,
    /// Why there are no further surveys in this Turn.
    refused: Option<String>,
    /// Whether a command may have run since the last survey.
    is_running: bool,
    /// How many commands run now, those in the background included.
    commands: usize,
    /// The last Manifest, so that unchanged files are not read again.
    last: Option<Known>,
    /// Tells whether the last Manifest still holds.
    watch: Option<FolderWatch>,
    /// How many surveys of everything this Session has taken.
    surveys: usize,
    /// Whether a survey since the last one of everything relied on the watch.
    has_relied: bool,
    /// When the last survey began, in nanoseconds since the epoch.
    surveyed_at: u64,
    /// The Record of this Turn.
    record: Option<File>,
    /// The survey that is being taken.
    progress: Option<Arc<SurveyProgress>>,
    /// What the user is to be told.
    notices: Vec<String>,
}

/// Whether a survey may rely on the watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Where nothing was reported, nothing is looked at.
    Changes,
    Everything,
}

/// A Manifest, and under which hash and length it is in the store, if it is.
#[derive(Debug, Clone)]
struct Known {
    manifest: Arc<Manifest>,
    kept: Option<(super::Hash, u64)>,
}

/// A command that runs, until this is dropped.
#[derive(Debug)]
pub struct RunningCommand(Tracker);

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let mut following = self.0.following();
        following.commands = following.commands.saturating_sub(1);
    }
}

impl Tracker {
    /// Follows a Session that has this folder.
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

    /// A Turn begins.
    pub fn begin(&self, turn: u64) {
        let mut following = self.following();
        let before = std::mem::take(&mut *following);
        let Following { last, watch, surveys, commands, .. } = before;
        let turn = Some(turn);
        *following = Following { turn, commands, last, watch, surveys, ..Following::default() };
    }

    /// A Tool is about to write here: `content` is what it found, with its mode.
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
            // What a Tool does not take for a file may stand there all the same.
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

    /// Whether a file is not what the last survey took it for, although no change was reported.
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

    /// Whether a file was made by a command that still runs: the survey before it would have seen it.
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

    /// A Tool has written here, or has removed it.
    pub fn after_write(&self, path: &Path, content: Option<(&[u8], u32)>) -> io::Result<()> {
        let Some(turn) = self.following().turn else { return Ok(()) };
        let _hold = self.0.store.hold()?;
        let state = self.kept(content)?;
        self.append(turn, &Line::Left { path: RawPath(path.to_owned()), state, at: now() })
    }

    /// Something may have changed here; what it is now is looked at.
    pub fn after_change(&self, path: &Path) -> io::Result<()> {
        let Some(turn) = self.following().turn else { return Ok(()) };
        let _hold = self.0.store.hold()?;
        let state = content::state_of(&self.0.workspace, path, Some(&self.0.store))?;
        self.append(turn, &Line::Left { path: RawPath(path.to_owned()), state, at: now() })
    }

    /// Pixir itself made or removed a folder, or gave it another mode; `None` means that it does not exist.
    pub fn folder_changed(&self, folder: FolderChange) -> io::Result<()> {
        let Some(turn) = self.following().turn else { return Ok(()) };
        self.append(turn, &Line::Folder(folder))
    }

    /// A command starts; it runs until the answer is dropped.
    pub fn command_started(&self) -> RunningCommand {
        self.following().commands += 1;
        RunningCommand(self.clone())
    }

    /// Surveys the Workspace before a command. What has changed since the survey before was changed by
    /// something else, unless another command still ran.
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

    /// The same where nothing has to be looked at, which takes no thread; false when it has to be.
    pub fn before_command_at_once(&self) -> bool {
        let Ok(_alone) = self.0.surveying.try_lock() else { return false };
        let Some(turn) = self.turn_to_survey() else { return true };
        self.still_holds() && self.survey(turn, true, Look::Changes).is_ok()
    }

    /// The same after a command.
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

    /// What the user is to be told of undo, once.
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.following().notices)
    }

    /// The survey that is being taken, if there is one.
    pub fn progress(&self) -> Option<Arc<SurveyProgress>> {
        self.following().progress.clone()
    }

    /// Surveys the Workspace after a command, unless none has run since the survey before.
    pub fn after_command(&self) -> io::Result<()> {
        let _alone = self.surveying();
        let Some(turn) = self.turn_to_survey() else { return Ok(()) };
        let (is_needed, still_runs) = {
            let following = self.following();
            (following.is_running, following.commands > 0)
        };
        if is_needed { self.survey(turn, still_runs, Look::Changes) } else { Ok(()) }
    }

    /// The Turn ends: what commands that still run have done so far is noted. Says why, when what
    /// commands changed is not known.
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

    /// The Turn that runs, unless surveys are refused in it.
    fn turn_to_survey(&self) -> Option<u64> {
        let following = self.following();
        following.turn.filter(|_| following.refused.is_none())
    }

    /// Surveys everything when surveys have relied on the watch. What differs and was not reported since
    /// the last of them was changed before, while some command ran; the rest was changed by something else.
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

    /// What changed since a survey that began at that moment.
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

    /// The last Manifest, what Tools have written in this Turn, and what of it since the last survey.
    fn to_compare(&self) -> (Option<Known>, Vec<PathBuf>, BTreeSet<PathBuf>) {
        let mut following = self.following();
        let named = std::mem::take(&mut following.touched_since);
        (following.last.clone(), following.touched.iter().cloned().collect(), named)
    }

    /// Takes a survey and notes what it saw; the answer is why it was refused.
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
                // Without one of our own there may be one of another Session.
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

    /// A survey of the whole Workspace.
    fn everything(&self) -> Survey<'_> {
        let Shared { workspace, store, limits, .. } = &*self.0;
        Survey { workspace, store, limits: *limits }
    }

    /// Surveys the whole Workspace. It is watched where that is possible: from the second command on, or from
    /// the first one if the Workspace is large.
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

    /// The folders above a path that are not there, from the top.
    fn missing_above(&self, path: &Path) -> Vec<RawPath> {
        let above = path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
        let missing = above.take_while(|folder| self.0.workspace.look_exact(folder).is_err());
        let mut missing: Vec<RawPath> = missing.map(|folder| RawPath(folder.to_owned())).collect();
        missing.reverse();
        missing
    }

    /// Writes a line into the Record of this Turn, behind the one that every Record begins with.
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

/// Whether a file was made before a survey began. Times of files are those of the last tick.
pub(super) fn is_before(born: u64, began: u64) -> bool {
    born.saturating_add(20_000_000) < began
}

impl Known {
    /// Keeps it in the store, unless it is there already and was not cleared away.
    fn kept(self, store: &Store) -> io::Result<(Seen, Self)> {
        let kept = match self.kept.filter(|(hash, length)| store.renew(hash, *length)) {
            Some(kept) => kept,
            None => keep_as_last(&self.manifest, store)?,
        };
        Ok((Seen::All(kept.0), Self { kept: Some(kept), ..self }))
    }

    /// A later Manifest, which is not kept unless it is equal.
    fn followed_by(self, manifest: Arc<Manifest>) -> Self {
        if Arc::ptr_eq(&self.manifest, &manifest) || self.manifest == manifest {
            self
        } else {
            Self { manifest, kept: None }
        }
    }

    /// The Manifest of the last survey of this Workspace, which may be that of another Session.
    fn last(store: &Store) -> Option<Self> {
        let hash = store.last()?;
        let manifest = Arc::new(Manifest::kept(&hash, store).ok()?);
        let length = store.open(&hash).ok()??.metadata().ok()?.len();
        Some(Self { manifest, kept: Some((hash, length)) })
    }
}

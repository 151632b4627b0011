//! The Record of a Turn: what it found and what it left, in lines beside the Log.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::delta::ManifestDelta;
use super::line::{Line, Seen, When};
use super::survey::{self, Limits, Refused, Survey};
use super::{Hash, Manifest, RawPath, State, Store};
use crate::files::Durability;
use crate::state::SessionFolder;
use crate::workspace::Workspace;

/// The folder of Records beside a Log.
pub(super) const FOLDER: &str = "snapshots";
/// The largest Record that is read.
const LARGEST: u64 = 256 << 20;

/// What is known of one Turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The seq of the `user_message` that began it.
    pub turn: u64,
    pub lines: Vec<Line>,
}

impl Record {
    /// Reads the Record of a Turn; one without changes has none. A line cut by a crash ends it.
    pub fn read(session_folder: &SessionFolder, turn: u64) -> io::Result<Self> {
        let folder = session_folder.join(FOLDER).open()?;
        let text = folder.map(|folder| folder.read(name(turn), LARGEST)).transpose()?;
        let text = text.flatten().unwrap_or_default();
        let lines =
            text.split(|byte| *byte == b'\n').map_while(|line| serde_json::from_slice(line).ok());
        Ok(Self { turn, lines: lines.collect() })
    }

    /// Why it does not tell what commands of the Turn changed, if it does not.
    pub fn gap(&self) -> Option<&str> {
        self.lines.iter().find_map(|line| match line {
            Line::NotSurveyed { reason, .. } => Some(reason.as_str()),
            _ => None,
        })
    }

    /// The Workspace, Session and Turn that it was written in, unless it is old.
    pub fn began(&self) -> Option<&Line> {
        self.lines.first().filter(|line| matches!(line, Line::Began { .. }))
    }

    /// The files that Tools were about to write.
    pub fn touched(&self) -> Vec<PathBuf> {
        let touched = self.lines.iter().filter_map(|line| match line {
            Line::Found { path, .. } => Some(path.0.clone()),
            _ => None,
        });
        touched.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// What the last survey before this line saw; `read` finds Manifests that are kept.
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

    /// A Turn goes on with commands that belong to it and come behind its end: until it is closed again
    /// it counts as cut off.
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

    /// Gives a Turn that was cut off the last survey that it never had, so that what is taken back
    /// now can be brought back.
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
            let state = survey::state_of(survey.workspace, &path, Some(survey.store))?;
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

    /// Writes it anew: the crash may have left half a line, and nothing counts behind one.
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
fn name(turn: u64) -> String {
    format!("{turn}.ndjson")
}

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
}

#[derive(Debug, Default)]
struct Following {
    turn: Option<u64>,
    has_begun: bool,
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
}

/// A Manifest, and under which hash and length it is in the store, if it is.
#[derive(Debug, Clone)]
struct Known {
    manifest: Arc<Manifest>,
    kept: Option<(Hash, u64)>,
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
        Self(Arc::new(Shared { workspace, store, limits, session_folder, surveying, state }))
    }

    /// A Turn begins.
    pub fn begin(&self, turn: u64) {
        let mut following = self.following();
        let (last, commands) = (following.last.take(), following.commands);
        *following = Following { turn: Some(turn), last, commands, ..Following::default() };
    }

    /// A Tool is about to write here: `content` is what it found, with its mode.
    pub fn before_write(&self, path: &Path, content: Option<(&[u8], u32)>) -> io::Result<()> {
        let Some(turn) = self.following().turn else { return Ok(()) };
        let _hold = self.0.store.hold()?;
        let state = match content {
            _ if self.is_of_running_command(path) => None,
            Some(_) => self.kept(content)?,
            // What a Tool does not take for a file may stand there all the same.
            None => survey::state_of(&self.0.workspace, path, Some(&self.0.store))?,
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
        let state = survey::state_of(&self.0.workspace, path, Some(&self.0.store))?;
        self.append(turn, &Line::Left { path: RawPath(path.to_owned()), state, at: now() })
    }

    /// Pixir itself made or removed a folder, or gave it another mode; `None` means that it does not exist.
    pub fn folder_changed(
        &self,
        path: &Path,
        from: Option<u32>,
        to: Option<u32>,
    ) -> io::Result<()> {
        let Some(turn) = self.following().turn else { return Ok(()) };
        self.append(turn, &Line::Folder { path: RawPath(path.to_owned()), from, to })
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
        self.survey(turn, true)
    }

    /// Surveys the Workspace after a command, unless none has run since the survey before.
    pub fn after_command(&self) -> io::Result<()> {
        let _alone = self.surveying();
        let Some(turn) = self.turn_to_survey() else { return Ok(()) };
        let (is_needed, still_runs) = {
            let following = self.following();
            (following.is_running, following.commands > 0)
        };
        if is_needed { self.survey(turn, still_runs) } else { Ok(()) }
    }

    /// The Turn ends: what commands that still run have done so far is noted. Says why, when what
    /// commands changed is not known.
    pub fn end(&self) -> io::Result<Option<String>> {
        let _alone = self.surveying();
        let (turn, is_running, has_begun) = {
            let following = self.following();
            let Some(turn) = following.turn else { return Ok(None) };
            (turn, following.is_running, following.has_begun)
        };
        let surveyed = if is_running { self.survey(turn, false) } else { Ok(()) };
        let refused = {
            let mut following = self.following();
            following.turn = None;
            following.refused.take()
        };
        surveyed?;
        if has_begun {
            self.note(turn, &Line::Ended)?;
        }
        Ok(refused)
    }

    /// The Turn that runs, unless surveys are refused in it.
    fn turn_to_survey(&self) -> Option<u64> {
        let following = self.following();
        following.turn.filter(|_| following.refused.is_none())
    }

    fn survey(&self, turn: u64, is_running: bool) -> io::Result<()> {
        let surveyed = self.try_survey(turn, is_running);
        let reason = match &surveyed {
            Ok(None) => return Ok(()),
            Ok(Some(refused)) => refused.clone(),
            Err(error) => error.to_string(),
        };
        let when = {
            let mut following = self.following();
            following.is_running = false;
            following.refused = Some(reason.clone());
            if following.is_surveyed { When::After } else { When::Before }
        };
        let noted = self.append(turn, &Line::NotSurveyed { when, reason });
        surveyed.and(noted)
    }

    /// Takes a survey and notes what it saw; the answer is why it was refused.
    fn try_survey(&self, turn: u64, is_running: bool) -> io::Result<Option<String>> {
        let Shared { workspace, store, limits, .. } = &*self.0;
        let started = now();
        let _hold = store.hold()?;
        let (known, is_first, touched, named) = {
            let mut following = self.following();
            let named = std::mem::take(&mut following.touched_since);
            let touched: Vec<PathBuf> = following.touched.iter().cloned().collect();
            (following.last.clone(), !following.is_surveyed, touched, named)
        };
        // Without one of our own there may be one of another Session.
        let read = if known.is_none() { last_manifest(store) } else { None };
        let before = known.as_ref().map(|known| &*known.manifest).or(read.as_ref());
        let survey = Survey { workspace, store, limits: *limits };
        let manifest = match survey.take_with(before, &touched) {
            Ok(manifest) => manifest,
            Err(Refused::Keep { source, .. }) => return Err(source),
            Err(refused) => return Ok(Some(refused.to_string())),
        };
        let (seen, known) = if let Some(known) = known.filter(|_| !is_first) {
            let delta = ManifestDelta::between(&known.manifest, &manifest, &named);
            (Seen::Changed(delta), known.followed_by(manifest))
        } else {
            let same = self.following().last.clone();
            let same = same.and_then(|same| same.kept_as(&manifest, store));
            let known = same.map_or_else(|| Known::keep(manifest, store), Ok)?;
            let (hash, _) = known.kept.unwrap_or((Hash([0; 32]), 0));
            (Seen::All(hash), known)
        };
        {
            let mut following = self.following();
            following.last = Some(known);
            following.is_surveyed = true;
            following.is_running = is_running;
        }
        let ended = now();
        self.append(turn, &Line::CommandSurvey { seen, is_running, started, ended })?;
        Ok(None)
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

    fn note(&self, turn: u64, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let folder = self.0.session_folder.join(FOLDER).create()?;
        let mut file = match folder.open_append(name(turn))? {
            Some(file) => file,
            None => folder.create_new(name(turn))?,
        };
        file.write_all(&text)
    }

    /// Notes a line, behind the one that every Record begins with.
    fn append(&self, turn: u64, line: &Line) -> io::Result<()> {
        let has_begun = std::mem::replace(&mut self.following().has_begun, true);
        if !has_begun {
            self.note(turn, &began(&self.0.workspace, &self.0.session_folder, turn))?;
        }
        self.note(turn, line)
    }

    fn surveying(&self) -> MutexGuard<'_, ()> {
        self.0.surveying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn following(&self) -> MutexGuard<'_, Following> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn keep(manifest: Manifest, store: &Store) -> io::Result<Self> {
        let kept = keep_as_last(&manifest, store)?;
        Ok(Self { manifest: Arc::new(manifest), kept: Some(kept) })
    }

    /// This one, when an equal Manifest is in the store already and was not cleared away.
    fn kept_as(self, manifest: &Manifest, store: &Store) -> Option<Self> {
        let (hash, length) = self.kept?;
        (*self.manifest == *manifest && store.renew(&hash, length)).then_some(self)
    }

    /// A later Manifest, which is not kept unless it is equal.
    fn followed_by(self, manifest: Manifest) -> Self {
        if *self.manifest == manifest {
            self
        } else {
            Self { manifest: Arc::new(manifest), kept: None }
        }
    }
}

fn began(workspace: &Workspace, session_folder: &SessionFolder, turn: u64) -> Line {
    let session = session_folder.id().to_string();
    Line::Began { workspace: RawPath(workspace.root().to_owned()), session, turn }
}

/// Nanoseconds since the epoch.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// A survey outside of a running Turn, as a line.
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

/// What a look at the Workspace came to. What nobody could look at must not be taken for nothing.
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

/// Keeps a Manifest, also for whoever surveys next.
fn keep_as_last(manifest: &Manifest, store: &Store) -> io::Result<(Hash, u64)> {
    let (hash, length) = manifest.keep(store)?;
    store.set_last(&hash)?;
    Ok((hash, length))
}

/// The Manifest of whoever surveyed this Workspace last; a cache like any other.
pub fn last_manifest(store: &Store) -> Option<Manifest> {
    Manifest::kept(&store.last()?, store).ok()
}

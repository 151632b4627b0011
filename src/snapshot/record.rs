//! The Record of a Turn: what it found and what it left, in lines beside the Log.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::survey::{self, Limits, Refused, Survey};
use super::{Hash, Manifest, RawPath, State, Store};
use crate::workspace::Workspace;

/// Which end of a Turn's commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    Before,
    After,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// What a Tool found before it wrote; `made` are folders that were not there.
    Found {
        path: RawPath,
        state: Option<State>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        made: Vec<RawPath>,
    },
    /// What it left.
    Left { path: RawPath, state: Option<State> },
    /// What a survey saw.
    Surveyed { when: When, manifest: Hash },
    /// Why there was none.
    NotSurveyed { when: When, reason: String },
    /// The Turn came to its end; without this line it was cut off.
    Ended,
}

/// What is known of one Turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The seq of the `user_message` that began it.
    pub turn: u64,
    pub lines: Vec<Line>,
}

impl Record {
    /// Reads the Record of a Turn; one without changes has none. A line cut by a crash ends it.
    pub fn read(session_folder: &Path, turn: u64) -> io::Result<Self> {
        let text = match std::fs::read(place(session_folder, turn)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
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

    /// A Turn goes on with work that belongs to it and comes behind its end: until it is closed again
    /// it counts as cut off. What there is now is looked at, unless a command of it had that done.
    pub fn reopen(session_folder: &Path, turn: u64, survey: &Survey<'_>) -> io::Result<Self> {
        let mut record = Self::read(session_folder, turn)?;
        let is_last_look = |line: &Line| {
            matches!(
                line,
                Line::Ended
                    | Line::Surveyed { when: When::After, .. }
                    | Line::NotSurveyed { when: When::After, .. }
            )
        };
        record.lines.retain(|line| !is_last_look(line));
        let is_base = |line: &Line| {
            matches!(
                line,
                Line::Surveyed { when: When::Before, .. }
                    | Line::NotSurveyed { when: When::Before, .. }
            )
        };
        if !record.lines.iter().any(is_base) {
            record.lines.push(looked(When::Before, survey)?);
        }
        record.write(session_folder)?;
        Ok(record)
    }

    /// Gives a Turn that was cut off the last look that it never had, so that what is taken back
    /// now can be brought back.
    pub fn close(&mut self, session_folder: &Path, survey: &Survey<'_>) -> io::Result<()> {
        let mut touched = BTreeSet::new();
        for line in &self.lines {
            match line {
                Line::Found { path, .. } => drop(touched.insert(path.0.clone())),
                Line::Ended => return Ok(()),
                _ => {}
            }
        }
        for path in touched {
            let state = survey::state_of(survey.workspace, &path, Some(survey.store))?;
            self.lines.push(Line::Left { path: RawPath(path), state });
        }
        let has_base = |line: &Line| matches!(line, Line::Surveyed { when: When::Before, .. });
        if self.lines.iter().any(has_base) {
            self.lines.push(looked(When::After, survey)?);
        }
        self.lines.push(Line::Ended);
        self.write(session_folder)
    }

    /// Writes it anew: the crash may have left half a line, and nothing counts behind one.
    fn write(&self, session_folder: &Path) -> io::Result<()> {
        let mut text = Vec::new();
        for line in &self.lines {
            serde_json::to_writer(&mut text, line)?;
            text.push(b'\n');
        }
        let place = place(session_folder, self.turn);
        let folder = place.parent().unwrap_or(session_folder);
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let draft = place.with_extension("new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(&draft)?.write_all(&text)?;
        std::fs::rename(draft, place)
    }
}

fn place(session_folder: &Path, turn: u64) -> PathBuf {
    session_folder.join("snapshots").join(format!("{turn}.ndjson"))
}

/// Follows the Turns of one Session; cheap to clone.
#[derive(Debug, Clone)]
pub struct Tracker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    workspace: Workspace,
    store: Store,
    limits: Limits,
    session_folder: PathBuf,
    state: Mutex<Following>,
}

#[derive(Debug, Default)]
struct Following {
    turn: Option<u64>,
    /// What Tools have written in this Turn.
    touched: BTreeSet<PathBuf>,
    is_surveyed: bool,
    /// The last Manifest, so that unchanged files are not read again.
    last: Option<Known>,
}

/// A Manifest that was kept, and how.
#[derive(Debug, Clone)]
struct Known {
    manifest: Arc<Manifest>,
    hash: Hash,
    length: u64,
}

impl Known {
    /// A Manifest that equals this one is already kept, unless somebody cleared it away.
    fn is(&self, manifest: &Manifest, store: &Store) -> bool {
        *self.manifest == *manifest && store.renew(&self.hash, self.length)
    }
}

impl Tracker {
    /// Follows a Session that has this folder.
    pub fn new(workspace: Workspace, session_folder: PathBuf, limits: Limits) -> Self {
        let store = Store::beside(&session_folder);
        let state = Mutex::default();
        Self(Arc::new(Shared { workspace, store, limits, session_folder, state }))
    }

    /// A Turn begins.
    pub fn begin(&self, turn: u64) {
        let mut following = self.following();
        let last = following.last.take();
        *following = Following { turn: Some(turn), last, ..Following::default() };
    }

    /// A Tool is about to write here: `content` is what it found, with its mode.
    pub fn before_write(&self, path: &Path, content: Option<(&[u8], u32)>) -> io::Result<()> {
        let Some(turn) = self.following().turn else { return Ok(()) };
        let _hold = self.0.store.hold()?;
        let state = match content {
            _ if self.is_of_this_turn(path) => None,
            Some(_) => self.kept(content)?,
            // What a Tool does not take for a file may stand there all the same.
            None => survey::state_of(&self.0.workspace, path, Some(&self.0.store))?,
        };
        let made = match &state {
            Some(_) => Vec::new(),
            None => self.missing_above(path),
        };
        self.following().touched.insert(path.to_owned());
        self.note(turn, &Line::Found { path: RawPath(path.to_owned()), state, made })
    }

    /// Whether a file was made by a command of this Turn: the survey would have seen it.
    fn is_of_this_turn(&self, path: &Path) -> bool {
        let following = self.following();
        let is_known = |Known { manifest, .. }: &Known| {
            manifest.state(path).is_some() || manifest.left_out.contains_key(path)
        };
        let is_new = following.is_surveyed && !following.last.as_ref().is_some_and(is_known);
        drop(following);
        is_new && survey::sees(&self.0.workspace, path)
    }

    /// A Tool has written here, or has removed it.
    pub fn after_write(&self, path: &Path, content: Option<(&[u8], u32)>) -> io::Result<()> {
        let Some(turn) = self.following().turn else { return Ok(()) };
        let _hold = self.0.store.hold()?;
        let state = self.kept(content)?;
        self.note(turn, &Line::Left { path: RawPath(path.to_owned()), state })
    }

    /// Something may have changed here; what it is now is looked at.
    pub fn after_change(&self, path: &Path) -> io::Result<()> {
        let Some(turn) = self.following().turn else { return Ok(()) };
        let _hold = self.0.store.hold()?;
        let state = survey::state_of(&self.0.workspace, path, Some(&self.0.store))?;
        self.note(turn, &Line::Left { path: RawPath(path.to_owned()), state })
    }

    /// Whether a command that runs now would be the first one of its Turn.
    pub fn wants_survey(&self) -> bool {
        let following = self.following();
        following.turn.is_some() && !following.is_surveyed
    }

    /// A command is about to run; the first one of a Turn is worth a survey.
    pub fn before_command(&self) -> io::Result<()> {
        let turn = {
            let mut following = self.following();
            let Some(turn) = following.turn.filter(|_| !following.is_surveyed) else {
                return Ok(());
            };
            following.is_surveyed = true;
            turn
        };
        self.survey(turn, When::Before).map(drop)
    }

    /// The Turn ends: what its commands left is noted. Says why, when it cannot be.
    pub fn end(&self) -> io::Result<Option<String>> {
        let (turn, touched, is_surveyed) = {
            let mut following = self.following();
            let Some(turn) = following.turn.take() else { return Ok(None) };
            (turn, std::mem::take(&mut following.touched), following.is_surveyed)
        };
        if touched.is_empty() && !is_surveyed {
            return Ok(None);
        }
        let mut refused = None;
        if is_surveyed {
            refused = self.survey(turn, When::After)?;
            let last = self.following().last.clone();
            let is_there = |path: &&PathBuf| {
                last.as_ref().is_some_and(|last| last.manifest.state(path).is_some())
            };
            for path in touched.iter().filter(|path| !is_there(path)) {
                // It is ignored, or a command has removed it.
                let state = survey::state_of(&self.0.workspace, path, Some(&self.0.store))?;
                self.note(turn, &Line::Left { path: RawPath(path.clone()), state })?;
            }
        }
        self.note(turn, &Line::Ended)?;
        Ok(refused)
    }

    fn survey(&self, turn: u64, when: When) -> io::Result<Option<String>> {
        let Shared { workspace, store, limits, .. } = &*self.0;
        let _hold = store.hold()?;
        let known = self.following().last.clone();
        // Without one of our own there may be one of another Session.
        let read = if known.is_none() { last_manifest(store) } else { None };
        let before = known.as_ref().map(|known| &*known.manifest).or(read.as_ref());
        match (Survey { workspace, store, limits: *limits }).take(before) {
            Ok(manifest) => {
                let same = known.filter(|known| known.is(&manifest, store));
                let known = if let Some(known) = same {
                    known
                } else {
                    let (hash, length) = keep_as_last(&manifest, store)?;
                    Known { manifest: Arc::new(manifest), hash, length }
                };
                let hash = known.hash;
                self.following().last = Some(known);
                self.note(turn, &Line::Surveyed { when, manifest: hash })?;
                Ok(None)
            }
            Err(Refused::Keep { source, .. }) => Err(source),
            Err(refused) => {
                let reason = refused.to_string();
                self.note(turn, &Line::NotSurveyed { when, reason: reason.clone() })?;
                Ok(Some(reason))
            }
        }
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
        let place = place(&self.0.session_folder, turn);
        let folder = place.parent().unwrap_or(&self.0.session_folder);
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        OpenOptions::new().append(true).create(true).mode(0o600).open(place)?.write_all(&text)
    }

    fn following(&self) -> MutexGuard<'_, Following> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a look at the Workspace came to. What nobody could look at must not be taken for nothing.
fn looked(when: When, survey: &Survey<'_>) -> io::Result<Line> {
    match survey.take(last_manifest(survey.store).as_ref()) {
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
    std::fs::write(store.folder().join("last"), hash.to_string())?;
    Ok((hash, length))
}

/// The Manifest of whoever surveyed this Workspace last; a cache like any other.
pub fn last_manifest(store: &Store) -> Option<Manifest> {
    let hash = std::fs::read_to_string(store.folder().join("last")).ok()?;
    let hash: Hash = serde_json::from_value(hash.into()).ok()?;
    Manifest::kept(&hash, store).ok()
}

//! What it takes to go back, or forward again: a pure comparison of Records with what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use super::record::{Line, Record, When};
use super::{Hash, Manifest, RawPath, State, survey};

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Back,
    Forward,
}

/// One path that becomes something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub path: PathBuf,
    pub from: Option<State>,
    pub to: Option<State>,
}

/// A path that is not ours to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub change: Change,
    pub reason: Reason,
}

/// Why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It is not what the Turn left.
    ChangedSince,
    /// Somebody changed it between two of the Turns.
    ChangedBetween,
    /// The Turn was cut off, and nobody can tell whether it was that or somebody else.
    Unsure,
}

/// All that is to be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub changes: Vec<Change>,
    pub conflicts: Vec<Conflict>,
    /// Folders that are made, with their mode where it is known, from the top.
    pub make: Vec<(PathBuf, Option<u32>)>,
    /// Folders that are removed when they are empty, from the bottom.
    pub remove: Vec<PathBuf>,
    /// Folders that get another mode.
    pub modes: Vec<(PathBuf, u32)>,
    /// What cannot be covered, for the user.
    pub notes: Vec<String>,
    /// The Turns that have no last look.
    pub cut_off: Vec<u64>,
}

type States = BTreeMap<PathBuf, Option<State>>;

/// What a folder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Folder {
    Absent,
    Mode(u32),
    /// It is there, as whoever made it made it.
    There,
}

impl Manifest {
    fn folder(&self, path: &Path) -> Folder {
        self.folders.get(path).map_or(Folder::Absent, |mode| Folder::Mode(*mode))
    }
}

type Folders = BTreeMap<PathBuf, Folder>;

/// What a Turn did to files, from its first look to its last.
#[derive(Debug, Default)]
struct Deeds {
    before: States,
    after: States,
    folders_before: Folders,
    folders_after: Folders,
    notes: Vec<String>,
    /// What may have been done by somebody else after the Turn was cut off.
    unsure: BTreeSet<PathBuf>,
    is_cut_off: bool,
}

/// What a plan asks the world.
pub trait World {
    /// A Manifest that was kept.
    fn manifest(&self, hash: &Hash) -> io::Result<Manifest>;
    /// What stands at a place now.
    fn state(&self, path: &Path) -> io::Result<Option<State>>;
    /// What stands at each of these places now.
    fn states(&self, paths: &[&Path]) -> io::Result<Vec<Option<State>>>;
    /// Everything as it is now, for a Turn that was cut before its last look.
    fn survey(&self) -> Option<Manifest>;
}

impl Plan {
    /// Plans for these Turns, the oldest first.
    pub fn of(records: &[Record], direction: Direction, world: &dyn World) -> io::Result<Self> {
        let mut plan = Self::default();
        let (mut before, mut after) = (States::new(), States::new());
        let (mut between, mut unsure) = (BTreeSet::new(), BTreeSet::new());
        let (mut folders_before, mut folders_after) = (Folders::new(), Folders::new());
        for record in records {
            let deeds = Deeds::of(record, world);
            for (path, found) in &deeds.before {
                if after.get(path).is_some_and(|left| left != found) {
                    between.insert(path.clone());
                }
                before.entry(path.clone()).or_insert_with(|| found.clone());
            }
            after.extend(deeds.after);
            plan.notes.extend(deeds.notes);
            plan.cut_off.extend(deeds.is_cut_off.then_some(record.turn));
            unsure.extend(deeds.unsure);
            for (path, found) in deeds.folders_before {
                folders_before.entry(path).or_insert(found);
            }
            folders_after.extend(deeds.folders_after);
        }
        let (from, to) = match direction {
            Direction::Back => (&after, &before),
            Direction::Forward => (&before, &after),
        };
        let paths: Vec<&Path> = to.keys().map(PathBuf::as_path).collect();
        for ((path, wanted), now) in to.iter().zip(world.states(&paths)?) {
            if now == *wanted {
                continue;
            }
            let expected = from.get(path).cloned().unwrap_or_default();
            let change = Change { path: path.clone(), from: now, to: wanted.clone() };
            let reason = if change.from != expected {
                Some(Reason::ChangedSince)
            } else if between.contains(path) {
                Some(Reason::ChangedBetween)
            } else {
                unsure.contains(path).then_some(Reason::Unsure)
            };
            match reason {
                Some(reason) => plan.conflicts.push(Conflict { change, reason }),
                None => plan.changes.push(change),
            }
        }
        match direction {
            Direction::Back => plan.plan_folders(&folders_after, &folders_before),
            Direction::Forward => plan.plan_folders(&folders_before, &folders_after),
        }
        Ok(plan)
    }

    /// Takes what is in conflict into the changes, because the user said so.
    #[must_use]
    pub fn forced(mut self) -> Self {
        self.changes.extend(self.conflicts.drain(..).map(|conflict| conflict.change));
        self
    }

    fn plan_folders(&mut self, from: &Folders, to: &Folders) {
        for (path, wanted) in to {
            let now = from.get(path).copied().unwrap_or(Folder::Absent);
            match (now, *wanted) {
                (Folder::Absent, Folder::Mode(mode)) => self.make.push((path.clone(), Some(mode))),
                (Folder::Absent, Folder::There) => self.make.push((path.clone(), None)),
                (now, Folder::Mode(mode)) if now != *wanted => {
                    self.modes.push((path.clone(), mode));
                }
                (Folder::Mode(_) | Folder::There, Folder::Absent) => {
                    self.remove.push(path.clone());
                }
                _ => {}
            }
        }
        self.remove.reverse();
    }
}

impl Deeds {
    fn of(record: &Record, world: &dyn World) -> Self {
        let mut deeds = Self::default();
        let (mut base, mut end): (Option<Manifest>, Option<Manifest>) = (None, None);
        let mut has_ended = false;
        for line in &record.lines {
            match line {
                Line::Found { path, state, made } => {
                    for RawPath(folder) in made {
                        let found =
                            base.as_ref().map_or(Folder::Absent, |base| base.folder(folder));
                        deeds.folders_before.entry(folder.clone()).or_insert(found);
                        deeds.folders_after.insert(folder.clone(), Folder::There);
                    }
                    let known = base.as_ref().and_then(|base| base.state(path.as_ref()));
                    let state = known.or(state.as_ref()).cloned();
                    deeds.before.entry(path.0.clone()).or_insert(state);
                }
                Line::Left { path, state } => {
                    deeds.after.insert(path.0.clone(), state.clone());
                }
                Line::Surveyed { when, manifest } => match world.manifest(manifest) {
                    Ok(manifest) if *when == When::Before => base = Some(manifest),
                    Ok(manifest) => end = Some(manifest),
                    Err(error) => deeds.notes.push(format!(
                        "what commands changed is not known any more ({error}): only the changes \
                         of file tools are covered"
                    )),
                },
                Line::Ended => has_ended = true,
                Line::NotSurveyed { reason, .. } => deeds.notes.push(format!(
                    "what commands changed is not covered, only the changes of file tools: {reason}"
                )),
            }
        }
        deeds.is_cut_off = !has_ended && !record.lines.is_empty();
        if deeds.is_cut_off {
            deeds.notes.push(
                "the Turn was cut off: what its commands changed and what was changed later by \
                 somebody else cannot be told apart"
                    .to_owned(),
            );
            end = end.or_else(|| base.as_ref().and_then(|_| world.survey()));
        }
        let Deeds { before, after, unsure, .. } = &mut deeds;
        let unknown: Vec<PathBuf> =
            before.keys().filter(|path| !after.contains_key(*path)).cloned().collect();
        for path in unknown {
            match world.state(&path) {
                Ok(state) if !has_ended => {
                    // It was about to be written; whether it was, nobody wrote down.
                    unsure.insert(path.clone());
                    after.insert(path, state);
                }
                // The Tool that looked at it did not change it.
                _ => drop(before.remove(&path)),
            }
        }
        let Some(base) = base else { return deeds };
        let Some(end) = end else { return deeds };
        deeds.compare(&base, &end);
        deeds
    }

    fn compare(&mut self, base: &Manifest, end: &Manifest) {
        let paths: BTreeSet<&PathBuf> = base.entries.keys().chain(end.entries.keys()).collect();
        for path in paths {
            let (found, left) = (base.state(path), end.state(path));
            let is_kept = |manifest: &Manifest| !manifest.left_out.contains_key(path);
            if found == left && !self.before.contains_key(path) || !is_kept(base) || !is_kept(end) {
                continue;
            }
            // What a Tool left and what is there now may be two things.
            let is_as_left = self.after.get(path).is_some_and(|known| known.as_ref() == left);
            if self.is_cut_off && !is_as_left {
                self.unsure.insert(path.clone());
            }
            self.before.entry(path.clone()).or_insert_with(|| found.cloned());
            self.after.insert(path.clone(), left.cloned());
        }
        self.notes.extend(
            survey::unkept(base, end).into_iter().map(|path| {
                format!("{} changed, and is too large to be taken back", path.display())
            }),
        );
        // What a Tool made may be gone again; in an ignored place it comes back with its file.
        let made: Vec<PathBuf> = self.folders_before.keys().cloned().collect();
        let surveyed = base.folders.keys().chain(end.folders.keys());
        let changed = surveyed.filter(|path| base.folder(path) != end.folder(path)).cloned();
        for path in changed.chain(made).collect::<BTreeSet<_>>() {
            self.folders_after.insert(path.clone(), end.folder(&path));
            self.folders_before.entry(path.clone()).or_insert(base.folder(&path));
        }
    }
}

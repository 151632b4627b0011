//! Plans an undo or redo of Turns: compares their Records with the present files.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use super::claims::OtherSessions;
use super::record::Record;
use super::touches::{Folder, Source, TurnChanges};
use super::{Change, Here, State};

/// Undo or redo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Back,
    Forward,
}

/// A path that is changed only with `--force`, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub change: Change,
    pub reason: Reason,
}

/// Why a path is changed only with `--force`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It is not what the Turn left any more.
    ChangedSince,
    /// It was changed between two of the Turns.
    ChangedBetween,
    /// The Turn was cut off, so either the Turn or something else changed it.
    Unsure,
    /// It changed while a command of the Turn ran: by the command, or by another program.
    WhileCommandRan,
}

impl Reason {
    /// The reason's name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::ChangedSince => "since",
            Self::ChangedBetween => "between",
            Self::Unsure => "unsure",
            Self::WhileCommandRan => "while_command_ran",
        }
    }
}

/// The changes that undo or redo Turns, or that apply a merge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub changes: Vec<Change>,
    pub conflicts: Vec<Conflict>,
    /// Folders to make, with their mode where it is known; outermost first.
    pub make: Vec<(PathBuf, Option<u32>)>,
    /// Folders to remove if they are empty; innermost first.
    pub remove: Vec<PathBuf>,
    /// Folders whose mode changes.
    pub modes: Vec<(PathBuf, u32)>,
    /// Folders of this plan that changed while a command of the Turn ran.
    pub command_folders: Vec<PathBuf>,
    /// Paths that changed between commands and are left as they are.
    pub foreign: Vec<PathBuf>,
    /// Paths that another Session changed while a command ran, with its id; left as they are.
    pub claimed: Vec<(PathBuf, String)>,
    /// Notes for the user about changes that are not covered.
    pub notes: Vec<String>,
    /// Turns that were cut off before their last survey.
    pub cut_off: Vec<u64>,
}

type States = BTreeMap<PathBuf, Option<State>>;

type Folders = BTreeMap<PathBuf, Folder>;

/// The combined changes of several Turns.
#[derive(Debug, Default)]
struct Total {
    before: States,
    after: States,
    folders_before: Folders,
    folders_after: Folders,
    /// Paths that something else changed between two changes of the Turns.
    between: BTreeSet<PathBuf>,
    /// Paths that something else may have changed after a Turn was cut off.
    unsure: BTreeSet<PathBuf>,
    while_command_ran: BTreeSet<PathBuf>,
}

impl Total {
    fn add(&mut self, changes: TurnChanges) {
        for touch in changes.touches {
            if self.after.get(&touch.path).is_some_and(|left| *left != touch.found) {
                self.between.insert(touch.path.clone());
            }
            self.note_source(&touch.path, touch.source);
            self.before.entry(touch.path.clone()).or_insert(touch.found);
            self.after.insert(touch.path, touch.left);
        }
        for touch in changes.folders {
            self.note_source(&touch.path, touch.source);
            self.folders_before.entry(touch.path.clone()).or_insert(touch.found);
            self.folders_after.insert(touch.path, touch.left);
        }
    }

    fn note_source(&mut self, path: &Path, source: Source) {
        match source {
            Source::Turn => {}
            Source::Command => drop(self.while_command_ran.insert(path.to_owned())),
            Source::CutOff => drop(self.unsure.insert(path.to_owned())),
        }
    }

    /// Why undoing the change of this file needs `--force`, although it is as the Turns left it. Redo never
    /// needs it: it overwrites only what undo has written.
    fn doubt(&self, path: &Path, direction: Direction) -> Option<Reason> {
        if direction == Direction::Forward {
            None
        } else if self.between.contains(path) {
            Some(Reason::ChangedBetween)
        } else if self.unsure.contains(path) {
            Some(Reason::Unsure)
        } else {
            self.while_command_ran.contains(path).then_some(Reason::WhileCommandRan)
        }
    }
}

impl Plan {
    /// Plans for the Records of these Turns, oldest first. Paths that `others` claim are left as they are.
    pub fn of(
        records: &[Record],
        direction: Direction,
        world: &Here<'_>,
        others: &OtherSessions,
    ) -> io::Result<Self> {
        let mut plan = Self::default();
        let mut total = Total::default();
        let mut foreign = BTreeSet::new();
        let mut claimed = BTreeMap::new();
        for record in records {
            let mut changes = TurnChanges::of(record, world, others);
            plan.notes.append(&mut changes.notes);
            plan.cut_off.extend(changes.is_cut_off.then_some(record.turn));
            foreign.append(&mut changes.foreign);
            claimed.append(&mut changes.claimed);
            total.add(changes);
        }
        let is_untouched = |path: &PathBuf| !total.before.contains_key(path);
        plan.foreign = foreign.into_iter().filter(is_untouched).collect();
        plan.claimed = claimed.into_iter().filter(|(path, _)| is_untouched(path)).collect();
        plan.plan_files(&total, direction, world)?;
        match direction {
            Direction::Back => {
                plan.plan_folders(&total.folders_after, &total.folders_before);
                plan.name_command_folders(&total);
            }
            Direction::Forward => plan.plan_folders(&total.folders_before, &total.folders_after),
        }
        Ok(plan)
    }

    fn plan_files(
        &mut self,
        total: &Total,
        direction: Direction,
        world: &Here<'_>,
    ) -> io::Result<()> {
        let (from, to) = match direction {
            Direction::Back => (&total.after, &total.before),
            Direction::Forward => (&total.before, &total.after),
        };
        // Files that the Turns themselves restored need no change.
        let is_other = |path: &&PathBuf| from.get(*path) != to.get(*path);
        let paths: Vec<&Path> = to.keys().filter(is_other).map(PathBuf::as_path).collect();
        for (path, now) in paths.iter().zip(world.states(&paths)?) {
            let wanted = to.get(*path).cloned().unwrap_or_default();
            if now == wanted {
                continue;
            }
            let expected = from.get(*path).cloned().unwrap_or_default();
            let change = Change { path: (*path).to_owned(), from: now, to: wanted };
            let reason = if change.from == expected {
                total.doubt(path, direction)
            } else {
                Some(Reason::ChangedSince)
            };
            match reason {
                Some(reason) => self.conflicts.push(Conflict { change, reason }),
                None => self.changes.push(change),
            }
        }
        Ok(())
    }

    /// Collects the folders that changed while a command ran, unless a file in them is in conflict already.
    fn name_command_folders(&mut self, total: &Total) {
        let made = self.make.iter().map(|(path, _)| path);
        let changed = self.modes.iter().map(|(path, _)| path);
        let all: BTreeSet<&PathBuf> = made.chain(changed).chain(&self.remove).collect();
        let is_named = |folder: &PathBuf| {
            self.conflicts.iter().any(|conflict| conflict.change.path.starts_with(folder))
        };
        let named = all
            .into_iter()
            .filter(|folder| total.doubt(folder, Direction::Back).is_some() && !is_named(folder));
        self.command_folders = named.cloned().collect();
    }

    /// Turns conflicts into changes, because the user gave `--force`.
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

//! Plan of an undo or redo of Turns, from their Records and the current files.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use super::other_sessions::OtherSessions;
use super::record::TurnRecord;
use super::turn_changes::{ChangeSource, FolderState, TurnChanges};
use super::{CurrentFiles, FileChange, FileState};
use crate::base::names::names;

/// The direction of a restore: undo (`Back`) or redo (`Forward`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Back,
    Forward,
}

/// A path that is changed only with `--force`, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreConflict {
    pub change: FileChange,
    pub reason: RestoreConflictReason,
}

/// The reason why a path is changed only with `--force`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreConflictReason {
    /// The path is no longer in the state after the Turn.
    ChangedSince,
    /// The path was changed between two of the Turns.
    ChangedBetween,
    /// The Turn was cut off, so either the Turn or something else changed it.
    Unsure,
    /// The path changed while a command of the Turn ran: by the command, or by another program.
    WhileCommandRan,
}

names!(RestoreConflictReason {
    ChangedSince = "since", ChangedBetween = "between", Unsure = "unsure",
    WhileCommandRan = "while_command_ran",
});

/// The changes that undo or redo Turns, or that apply a merge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestorePlan {
    pub changes: Vec<FileChange>,
    pub conflicts: Vec<RestoreConflict>,
    /// Folders to create, with their mode if it is known; outermost first.
    pub make_folders: Vec<(PathBuf, Option<u32>)>,
    /// Folders to remove if they are empty; innermost first.
    pub remove_folders: Vec<PathBuf>,
    /// Folders whose mode changes.
    pub folder_modes: Vec<(PathBuf, u32)>,
    /// Folders of this plan that changed while a command of the Turn ran.
    pub command_folders: Vec<PathBuf>,
    /// Paths that changed between commands, by other programs; they are not changed.
    pub foreign: Vec<PathBuf>,
    /// Paths that another Session changed while a command ran, with its id; they are not changed.
    pub claimed: Vec<(PathBuf, String)>,
    /// Notes for the user about changes that are not covered.
    pub notes: Vec<String>,
    /// Turns that were cut off before their last survey.
    pub cut_off: Vec<u64>,
}

type StatesByPath = BTreeMap<PathBuf, Option<FileState>>;

type FoldersByPath = BTreeMap<PathBuf, FolderState>;

/// The combined changes of several Turns.
#[derive(Debug, Default)]
struct CombinedChanges {
    before: StatesByPath,
    after: StatesByPath,
    folders_before: FoldersByPath,
    folders_after: FoldersByPath,
    /// Paths that another program changed between two changes of the Turns.
    between: BTreeSet<PathBuf>,
    /// Paths that another program may have changed after a Turn was cut off.
    unsure: BTreeSet<PathBuf>,
    while_command_ran: BTreeSet<PathBuf>,
}

impl CombinedChanges {
    fn add(&mut self, changes: TurnChanges) {
        for touch in changes.touches {
            if self.after.get(&touch.path).is_some_and(|left| *left != touch.found) {
                self.between.insert(touch.path.clone());
            }
            self.record_source(&touch.path, touch.source);
            self.before.entry(touch.path.clone()).or_insert(touch.found);
            self.after.insert(touch.path, touch.left);
        }
        for touch in changes.folders {
            self.record_source(&touch.path, touch.source);
            self.folders_before.entry(touch.path.clone()).or_insert(touch.found);
            self.folders_after.insert(touch.path, touch.left);
        }
    }

    fn record_source(&mut self, path: &Path, source: ChangeSource) {
        match source {
            ChangeSource::Turn => {}
            ChangeSource::Command => drop(self.while_command_ran.insert(path.to_owned())),
            ChangeSource::CutOff => drop(self.unsure.insert(path.to_owned())),
        }
    }

    /// The reason why undoing the change of this file needs `--force`, although the file is in the state after the
    /// Turns. Redo never needs `--force`, because it overwrites only what undo has written.
    fn conflict_reason(&self, path: &Path, direction: Direction) -> Option<RestoreConflictReason> {
        if direction == Direction::Forward {
            None
        } else if self.between.contains(path) {
            Some(RestoreConflictReason::ChangedBetween)
        } else if self.unsure.contains(path) {
            Some(RestoreConflictReason::Unsure)
        } else {
            self.while_command_ran.contains(path).then_some(RestoreConflictReason::WhileCommandRan)
        }
    }
}

impl RestorePlan {
    /// The plan for the Records of these Turns, oldest first. Paths that `others` claim are not changed.
    pub fn for_records(
        records: &[TurnRecord],
        direction: Direction,
        current: &CurrentFiles<'_>,
        others: &OtherSessions,
    ) -> io::Result<Self> {
        let mut plan = Self::default();
        let mut total = CombinedChanges::default();
        let mut foreign = BTreeSet::new();
        let mut claimed = BTreeMap::new();
        for record in records {
            let mut changes = TurnChanges::from_record(record, current, others);
            plan.notes.append(&mut changes.notes);
            plan.cut_off.extend(changes.is_cut_off.then_some(record.turn));
            foreign.append(&mut changes.foreign);
            claimed.append(&mut changes.claimed);
            total.add(changes);
        }
        let is_untouched = |path: &PathBuf| !total.before.contains_key(path);
        plan.foreign = foreign.into_iter().filter(is_untouched).collect();
        plan.claimed = claimed.into_iter().filter(|(path, _)| is_untouched(path)).collect();
        plan.plan_files(&total, direction, current)?;
        match direction {
            Direction::Back => {
                let git = records.iter().find_map(TurnRecord::git_state);
                plan.notes
                    .extend(git.and_then(|git| git.change_note(current.workspace, current.store)));
                plan.plan_folders(&total.folders_after, &total.folders_before);
                plan.collect_command_folders(&total);
            }
            Direction::Forward => plan.plan_folders(&total.folders_before, &total.folders_after),
        }
        Ok(plan)
    }

    fn plan_files(
        &mut self,
        total: &CombinedChanges,
        direction: Direction,
        current: &CurrentFiles<'_>,
    ) -> io::Result<()> {
        let (from, to) = match direction {
            Direction::Back => (&total.after, &total.before),
            Direction::Forward => (&total.before, &total.after),
        };
        // Files that the Turns themselves changed back need no change.
        let is_other = |path: &&PathBuf| from.get(*path) != to.get(*path);
        let paths: Vec<&Path> = to.keys().filter(is_other).map(PathBuf::as_path).collect();
        for (path, now) in paths.iter().zip(current.read_states(&paths)?) {
            let wanted = to.get(*path).cloned().unwrap_or_default();
            if now == wanted {
                continue;
            }
            let expected = from.get(*path).cloned().unwrap_or_default();
            let change = FileChange { path: (*path).to_owned(), from: now, to: wanted };
            let reason = if change.from == expected {
                total.conflict_reason(path, direction)
            } else {
                Some(RestoreConflictReason::ChangedSince)
            };
            match reason {
                Some(reason) => self.conflicts.push(RestoreConflict { change, reason }),
                None => self.changes.push(change),
            }
        }
        Ok(())
    }

    /// Collects the folders that changed while a command ran, unless a file in them is in conflict already.
    fn collect_command_folders(&mut self, total: &CombinedChanges) {
        let made = self.make_folders.iter().map(|(path, _)| path);
        let changed = self.folder_modes.iter().map(|(path, _)| path);
        let all: BTreeSet<&PathBuf> = made.chain(changed).chain(&self.remove_folders).collect();
        let is_named = |folder: &PathBuf| {
            self.conflicts.iter().any(|conflict| conflict.change.path.starts_with(folder))
        };
        let named = all.into_iter().filter(|folder| {
            total.conflict_reason(folder, Direction::Back).is_some() && !is_named(folder)
        });
        self.command_folders = named.cloned().collect();
    }

    /// Converts conflicts to changes, because the user passed `--force`.
    #[must_use]
    pub fn with_conflicts_forced(mut self) -> Self {
        self.changes.extend(self.conflicts.drain(..).map(|conflict| conflict.change));
        self
    }

    fn plan_folders(&mut self, from: &FoldersByPath, to: &FoldersByPath) {
        for (path, wanted) in to {
            let now = from.get(path).copied().unwrap_or(FolderState::Absent);
            match (now, *wanted) {
                (FolderState::Absent, FolderState::Mode(mode)) => {
                    self.make_folders.push((path.clone(), Some(mode)));
                }
                (FolderState::Absent, FolderState::Existing) => {
                    self.make_folders.push((path.clone(), None));
                }
                (now, FolderState::Mode(mode)) if now != *wanted => {
                    self.folder_modes.push((path.clone(), mode));
                }
                (FolderState::Mode(_) | FolderState::Existing, FolderState::Absent) => {
                    self.remove_folders.push(path.clone());
                }
                _ => {}
            }
        }
        self.remove_folders.reverse();
    }
}

//! Plans the merge of a child's changes into its parent: a three-way decision for every path.
//!
//! Where the parent still has the base, the child's state is taken. Where both changed, texts are merged by
//! line; everything else is a conflict, and then nothing is written.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use serde_json::{Value, json};

use super::changes::ChildChanges;
use super::line_merge::{self, LineOverlap};
use super::registration::LineMergedFile;
use crate::host::snapshot::{
    ContentStore, FileChange, FileState, FolderChange, RestorePlan, find_nonempty_folders,
    find_obstacles, read_state,
};
use crate::host::workspace::Workspace;

/// The largest text that is merged by line, in bytes.
const MAX_TEXT_BYTES: usize = 4 << 20;

/// The changes and conflicts of a merge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MergePlan {
    /// `from` is the parent's present state, `to` the merged one.
    pub files: Vec<FileChange>,
    pub folders: Vec<FolderChange>,
    pub conflicts: Vec<MergeConflict>,
    /// Files that were merged by line.
    pub merged_by_line: Vec<PathBuf>,
}

/// A path that cannot be merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeConflict {
    pub path: PathBuf,
    pub reason: MergeConflictReason,
}

/// Why a path cannot be merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeConflictReason {
    /// Both changed the same lines of the base.
    Overlap(Vec<LineOverlap>),
    BothCreated,
    RemovedByChild,
    RemovedByParent,
    /// Both changed a file that is not text.
    Binary,
    /// Both changed a file that is too large to be merged by line.
    TooLarge,
    /// Both changed the mode.
    Modes,
    /// Both changed the target of a link.
    Links,
    /// A link on one side, something else on another.
    FileTypes,
    /// The content of the base is not in the store any more.
    BaseMissing,
    /// The path is occupied by a file or folder that the child did not know.
    Obstructed,
    /// An editor has unsaved changes of the file.
    Unsaved,
    /// Writing to the path is not allowed.
    NotAllowed(String),
    Unreadable(String),
}

impl MergeConflictReason {
    /// The reason's name in JSON, and its description for users.
    fn name_and_description(&self) -> (&'static str, Cow<'_, str>) {
        let (name, words) = match self {
            MergeConflictReason::Overlap(overlaps) => {
                return ("overlap", describe_overlaps(overlaps).into());
            }
            MergeConflictReason::BothCreated => {
                ("both_made", "both created it, with different contents")
            }
            MergeConflictReason::RemovedByChild => {
                ("removed_by_child", "the child removed it, the parent changed it")
            }
            MergeConflictReason::RemovedByParent => {
                ("removed_by_parent", "the parent removed it, the child changed it")
            }
            MergeConflictReason::Binary => ("binary", "both changed it, and it is not text"),
            MergeConflictReason::TooLarge => {
                ("too_large", "both changed it, and it is too large to be merged")
            }
            MergeConflictReason::Modes => ("modes", "both changed its mode"),
            MergeConflictReason::Links => ("links", "both changed where it points"),
            MergeConflictReason::FileTypes => {
                ("kinds", "it is a link on one side and a file on the other")
            }
            MergeConflictReason::BaseMissing => {
                ("lost", "both changed it, and the base version is not stored any more")
            }
            MergeConflictReason::Obstructed => {
                ("in_the_way", "another file or folder is in the way")
            }
            MergeConflictReason::Unsaved => ("unsaved", "the editor has unsaved changes of it"),
            MergeConflictReason::NotAllowed(reason) => ("not_allowed", reason.as_str()),
            MergeConflictReason::Unreadable(reason) => ("unreadable", reason.as_str()),
        };
        (name, words.into())
    }
}

impl std::fmt::Display for MergeConflictReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name_and_description().1)
    }
}

fn describe_overlaps(overlaps: &[LineOverlap]) -> String {
    let place = |overlap: &LineOverlap| match overlap {
        LineOverlap { first, last } if first == last => format!("line {first}"),
        LineOverlap { first, last } => format!("lines {first}-{last}"),
    };
    let places: Vec<String> = overlaps.iter().take(5).map(place).collect();
    let more = if overlaps.len() > 5 { " and more" } else { "" };
    format!("both changed {}{more} of the base version", places.join(", "))
}

impl MergeConflict {
    /// The conflict as JSON.
    pub fn to_json(&self) -> Value {
        let (name, words) = self.reason.name_and_description();
        json!({ "path": self.path.to_string_lossy(), "kind": name, "reason": words })
    }
}

/// The parent's side of a merge.
pub struct MergeTarget<'a> {
    pub workspace: &'a Workspace,
    pub store: &'a ContentStore,
    /// Files that an earlier merge combined by line.
    pub merged_by_line: &'a [LineMergedFile],
    /// Whether an editor has unsaved changes of a file.
    pub is_unsaved: &'a dyn Fn(&Path) -> bool,
}

impl MergePlan {
    /// Plans the merge of all changes; no file of the Workspace is changed.
    pub fn for_changes(changes: &ChildChanges, target: &MergeTarget<'_>) -> io::Result<Self> {
        let mut merge = Self::default();
        for (path, reason) in &changes.unreadable {
            merge.add_conflict(path, MergeConflictReason::Unreadable(reason.clone()));
        }
        for change in &changes.files {
            let path = &change.path;
            let now = match read_state(target.workspace, path, Some(target.store)) {
                Ok(now) => now,
                Err(error) => {
                    merge.add_conflict(path, MergeConflictReason::Unreadable(error.to_string()));
                    continue;
                }
            };
            if target
                .merged_by_line
                .iter()
                .any(|merged| merged.matches_change(change, now.as_ref()))
            {
                continue;
            }
            match merge_states(change, now.as_ref(), target.store)? {
                Ok(to) if to.state == now => {}
                Ok(to) => merge.add_file(path, now, to, target),
                Err(reason) => merge.add_conflict(path, reason),
            }
        }
        for folder in &changes.folders {
            merge.add_folder(folder, target.workspace);
        }
        let plan = RestorePlan {
            changes: merge.files.clone(),
            remove_folders: merge
                .folders
                .iter()
                .filter(|it| it.to.is_none())
                .map(|it| it.path.clone())
                .collect(),
            ..RestorePlan::default()
        };
        // A folder with files that the child did not know stays; that is not a conflict.
        let staying = find_nonempty_folders(&plan, target.workspace);
        merge.folders.retain(|it| it.to.is_some() || !staying.contains(&it.path));
        for path in find_obstacles(&plan, target.workspace) {
            merge.add_conflict(&path, MergeConflictReason::Obstructed);
        }
        Ok(merge)
    }

    /// Whether the parent already has all changes.
    pub fn is_up_to_date(&self) -> bool {
        self.files.is_empty() && self.folders.is_empty() && self.conflicts.is_empty()
    }

    fn add_conflict(&mut self, path: &Path, reason: MergeConflictReason) {
        self.conflicts.push(MergeConflict { path: path.to_owned(), reason });
    }

    fn add_file(
        &mut self,
        path: &Path,
        from: Option<FileState>,
        to: MergedState,
        target: &MergeTarget<'_>,
    ) {
        if let Err(error) = target.workspace.check_replaceable(path) {
            return self.add_conflict(path, MergeConflictReason::NotAllowed(error.to_string()));
        }
        if (target.is_unsaved)(path) {
            return self.add_conflict(path, MergeConflictReason::Unsaved);
        }
        if to.is_merged_by_line {
            self.merged_by_line.push(path.to_owned());
        }
        self.files.push(FileChange { path: path.to_owned(), from, to: to.state });
    }

    fn add_folder(&mut self, change: &FolderChange, workspace: &Workspace) {
        let FolderChange { path, from, to } = change;
        let there = workspace.stat_no_follow(path).ok().map(|seen| seen.stat.st_mode);
        let is_folder = there.map(|mode| FileType::from_raw_mode(mode) == FileType::Directory);
        let now = there.map(|mode| mode & 0o7777).filter(|_| is_folder == Some(true));
        let wanted = match (to, now) {
            // A file at the path is removed by the merge, or reported as an obstacle.
            (Some(_), None) if from.is_none() => *to,
            // A folder that the parent removed is created again for the child's files in it.
            (_, None) => return,
            (Some(to), Some(now)) if now == *to || from.is_none() => return,
            (Some(_), Some(now)) if Some(now) == *from => *to,
            (Some(_), Some(_)) => return self.add_conflict(path, MergeConflictReason::Modes),
            (None, Some(_)) => None,
        };
        self.folders.push(FolderChange { path: path.clone(), from: now, to: wanted });
    }

    /// The plan as JSON.
    pub fn to_json(&self) -> Value {
        let file = |change: &FileChange| json!({ "path": change.path.to_string_lossy(), "from": change.from, "to": change.to });
        json!({
            "files": self.files.iter().map(file).collect::<Vec<_>>(),
            "folders": self.folders.iter().map(|it| it.path.to_string_lossy()).collect::<Vec<_>>(),
            "merged_texts": self.merged_by_line.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
            "conflicts": self.conflicts.iter().map(MergeConflict::to_json).collect::<Vec<_>>(),
        })
    }
}

/// The merged state of one path.
struct MergedState {
    state: Option<FileState>,
    is_merged_by_line: bool,
}

impl MergedState {
    fn from_state(state: Option<FileState>) -> Self {
        Self { state, is_merged_by_line: false }
    }
}

/// Merges one path: its state in the base, in the child and in the parent.
fn merge_states(
    change: &FileChange,
    now: Option<&FileState>,
    store: &ContentStore,
) -> io::Result<Result<MergedState, MergeConflictReason>> {
    let (found, left) = (change.from.as_ref(), change.to.as_ref());
    if now == left || now == found {
        return Ok(Ok(MergedState::from_state(change.to.clone())));
    }
    Ok(match (found, left, now) {
        (_, None, _) => Err(MergeConflictReason::RemovedByChild),
        (Some(_), _, None) => Err(MergeConflictReason::RemovedByParent),
        (None, Some(_), Some(_)) => Err(MergeConflictReason::BothCreated),
        (
            Some(FileState::Link { .. }),
            Some(FileState::Link { .. }),
            Some(FileState::Link { .. }),
        ) => Err(MergeConflictReason::Links),
        (
            Some(FileState::File { sha256: base, mode: base_mode }),
            Some(FileState::File { sha256: theirs, mode: their_mode }),
            Some(FileState::File { sha256: ours, mode: our_mode }),
        ) => {
            let Some(mode) = merge_values(base_mode, our_mode, their_mode) else {
                return Ok(Err(MergeConflictReason::Modes));
            };
            if let Some(sha256) = merge_values(base, ours, theirs) {
                let state = Some(FileState::File { sha256: *sha256, mode: *mode });
                return Ok(Ok(MergedState::from_state(state)));
            }
            let [Ok(base), Ok(ours), Ok(theirs)] = [base, ours, theirs].map(|it| store.get(it))
            else {
                return Ok(Err(MergeConflictReason::BaseMissing));
            };
            match merge_texts(&base, &ours, &theirs) {
                Ok(text) => {
                    let sha256 = store.put(&text)?;
                    let state = Some(FileState::File { sha256, mode: *mode });
                    Ok(MergedState { state, is_merged_by_line: true })
                }
                Err(reason) => Err(reason),
            }
        }
        _ => Err(MergeConflictReason::FileTypes),
    })
}

/// Three-way choice between values: `None` when the sides changed it differently.
fn merge_values<'v, T: PartialEq>(base: &'v T, ours: &'v T, theirs: &'v T) -> Option<&'v T> {
    if ours == base || ours == theirs { Some(theirs) } else { (theirs == base).then_some(ours) }
}

fn merge_texts(base: &[u8], ours: &[u8], theirs: &[u8]) -> Result<Vec<u8>, MergeConflictReason> {
    let all = [base, ours, theirs];
    if all.iter().any(|text| text.len() > MAX_TEXT_BYTES) {
        return Err(MergeConflictReason::TooLarge);
    }
    if all.iter().any(|text| memchr::memchr(0, text).is_some()) {
        return Err(MergeConflictReason::Binary);
    }
    line_merge::merge_lines(base, ours, theirs).map_err(MergeConflictReason::Overlap)
}

//! Plans the merge of a child's changes into its parent: a three-way decision for every path.
//!
//! Where the parent still has the base, the child's state is taken. Where both changed, texts are merged by
//! line; everything else is a conflict, and then nothing is written.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use serde_json::{Value, json};

use super::changes::Changes;
use super::lease::Woven;
use super::lines::{self, Overlap};
use crate::host::snapshot::{
    Change, FolderChange, Plan, State, Store, in_the_way, state_of, staying,
};
use crate::host::workspace::Workspace;

/// The largest text that is merged by line, in bytes.
const LARGEST_TEXT: usize = 4 << 20;

/// The changes and conflicts of a merge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Merge {
    /// `from` is the parent's present state, `to` the merged one.
    pub files: Vec<Change>,
    pub folders: Vec<FolderChange>,
    pub conflicts: Vec<Conflict>,
    /// Files that were merged by line.
    pub woven: Vec<PathBuf>,
}

/// A path that cannot be merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub path: PathBuf,
    pub reason: Reason,
}

/// Why a path cannot be merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Both changed the same lines of the base.
    Overlap(Vec<Overlap>),
    BothMade,
    RemovedByChild,
    RemovedByParent,
    /// Both changed it, and it is not text.
    Binary,
    /// Both changed it, and it is too large to be merged by line.
    TooLarge,
    /// Both changed its mode.
    Modes,
    /// Both changed the target of a link.
    Links,
    /// It is a link on one side and something else on another.
    Kinds,
    /// The content of the base is not in the store any more.
    Lost,
    /// Another file or folder is at the path, and the child did not know it.
    InTheWay,
    /// An editor has unsaved changes of it.
    Unsaved,
    /// Writing there is not allowed.
    NotAllowed(String),
    Unreadable(String),
}

impl Reason {
    /// Its name in JSON, and a description for people.
    fn told(&self) -> (&'static str, Cow<'_, str>) {
        let (name, words) = match self {
            Reason::Overlap(overlaps) => return ("overlap", overlapping(overlaps).into()),
            Reason::BothMade => ("both_made", "both created it, with different contents"),
            Reason::RemovedByChild => {
                ("removed_by_child", "the child removed it, the parent changed it")
            }
            Reason::RemovedByParent => {
                ("removed_by_parent", "the parent removed it, the child changed it")
            }
            Reason::Binary => ("binary", "both changed it, and it is not text"),
            Reason::TooLarge => ("too_large", "both changed it, and it is too large to be merged"),
            Reason::Modes => ("modes", "both changed its mode"),
            Reason::Links => ("links", "both changed where it points"),
            Reason::Kinds => ("kinds", "it is a link on one side and a file on the other"),
            Reason::Lost => {
                ("lost", "both changed it, and the base version is not stored any more")
            }
            Reason::InTheWay => ("in_the_way", "another file or folder is in the way"),
            Reason::Unsaved => ("unsaved", "the editor has unsaved changes of it"),
            Reason::NotAllowed(reason) => ("not_allowed", reason.as_str()),
            Reason::Unreadable(reason) => ("unreadable", reason.as_str()),
        };
        (name, words.into())
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.told().1)
    }
}

fn overlapping(overlaps: &[Overlap]) -> String {
    let place = |overlap: &Overlap| match overlap {
        Overlap { first, last } if first == last => format!("line {first}"),
        Overlap { first, last } => format!("lines {first}-{last}"),
    };
    let places: Vec<String> = overlaps.iter().take(5).map(place).collect();
    let more = if overlaps.len() > 5 { " and more" } else { "" };
    format!("both changed {}{more} of the base version", places.join(", "))
}

impl Conflict {
    /// As JSON.
    pub fn json(&self) -> Value {
        let (name, words) = self.reason.told();
        json!({ "path": self.path.to_string_lossy(), "kind": name, "reason": words })
    }
}

/// What a merge plan needs of the parent.
pub struct Ground<'a> {
    pub workspace: &'a Workspace,
    pub store: &'a Store,
    /// Files that an earlier merge combined by line.
    pub woven: &'a [Woven],
    /// Whether an editor has unsaved changes of a file.
    pub is_unsaved: &'a dyn Fn(&Path) -> bool,
}

impl Merge {
    /// Plans the merge of all changes; no file of the Workspace is changed.
    pub fn of(changes: &Changes, ground: &Ground<'_>) -> io::Result<Self> {
        let mut merge = Self::default();
        for (path, reason) in &changes.unreadable {
            merge.refuse(path, Reason::Unreadable(reason.clone()));
        }
        for change in &changes.files {
            let path = &change.path;
            let now = match state_of(ground.workspace, path, Some(ground.store)) {
                Ok(now) => now,
                Err(error) => {
                    merge.refuse(path, Reason::Unreadable(error.to_string()));
                    continue;
                }
            };
            if ground.woven.iter().any(|woven| woven.is(change, now.as_ref())) {
                continue;
            }
            match verdict(change, now.as_ref(), ground.store)? {
                Ok(to) if to.state == now => {}
                Ok(to) => merge.admit(path, now, to, ground),
                Err(reason) => merge.refuse(path, reason),
            }
        }
        for folder in &changes.folders {
            merge.folder(folder, ground.workspace);
        }
        let plan = Plan {
            changes: merge.files.clone(),
            remove: merge
                .folders
                .iter()
                .filter(|it| it.to.is_none())
                .map(|it| it.path.clone())
                .collect(),
            ..Plan::default()
        };
        // A folder with files that the child did not know stays; that is not a conflict.
        let staying = staying(&plan, ground.workspace);
        merge.folders.retain(|it| it.to.is_some() || !staying.contains(&it.path));
        for path in in_the_way(&plan, ground.workspace) {
            merge.refuse(&path, Reason::InTheWay);
        }
        Ok(merge)
    }

    /// Whether the parent already has all changes.
    pub fn is_done(&self) -> bool {
        self.files.is_empty() && self.folders.is_empty() && self.conflicts.is_empty()
    }

    fn refuse(&mut self, path: &Path, reason: Reason) {
        self.conflicts.push(Conflict { path: path.to_owned(), reason });
    }

    fn admit(&mut self, path: &Path, from: Option<State>, to: Taken, ground: &Ground<'_>) {
        if let Err(error) = ground.workspace.check_replaceable(path) {
            return self.refuse(path, Reason::NotAllowed(error.to_string()));
        }
        if (ground.is_unsaved)(path) {
            return self.refuse(path, Reason::Unsaved);
        }
        if to.is_woven {
            self.woven.push(path.to_owned());
        }
        self.files.push(Change { path: path.to_owned(), from, to: to.state });
    }

    fn folder(&mut self, change: &FolderChange, workspace: &Workspace) {
        let FolderChange { path, from, to } = change;
        let there = workspace.look_exact(path).ok().map(|seen| seen.stat.st_mode);
        let is_folder = there.map(|mode| FileType::from_raw_mode(mode) == FileType::Directory);
        let now = there.map(|mode| mode & 0o7777).filter(|_| is_folder == Some(true));
        let wanted = match (to, now) {
            // A file at the path is removed by the merge, or reported as an obstacle.
            (Some(_), None) if from.is_none() => *to,
            // A folder that the parent removed is created again for the child's files in it.
            (_, None) => return,
            (Some(to), Some(now)) if now == *to || from.is_none() => return,
            (Some(_), Some(now)) if Some(now) == *from => *to,
            (Some(_), Some(_)) => return self.refuse(path, Reason::Modes),
            (None, Some(_)) => None,
        };
        self.folders.push(FolderChange { path: path.clone(), from: now, to: wanted });
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let file = |change: &Change| json!({ "path": change.path.to_string_lossy(), "from": change.from, "to": change.to });
        json!({
            "files": self.files.iter().map(file).collect::<Vec<_>>(),
            "folders": self.folders.iter().map(|it| it.path.to_string_lossy()).collect::<Vec<_>>(),
            "merged_texts": self.woven.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
            "conflicts": self.conflicts.iter().map(Conflict::json).collect::<Vec<_>>(),
        })
    }
}

/// The merged state of one path.
struct Taken {
    state: Option<State>,
    is_woven: bool,
}

impl Taken {
    fn state(state: Option<State>) -> Self {
        Self { state, is_woven: false }
    }
}

/// Merges one path: its state in the base, in the child and in the parent.
fn verdict(
    change: &Change,
    now: Option<&State>,
    store: &Store,
) -> io::Result<Result<Taken, Reason>> {
    let (found, left) = (change.from.as_ref(), change.to.as_ref());
    if now == left || now == found {
        return Ok(Ok(Taken::state(change.to.clone())));
    }
    Ok(match (found, left, now) {
        (_, None, _) => Err(Reason::RemovedByChild),
        (Some(_), _, None) => Err(Reason::RemovedByParent),
        (None, Some(_), Some(_)) => Err(Reason::BothMade),
        (Some(State::Link { .. }), Some(State::Link { .. }), Some(State::Link { .. })) => {
            Err(Reason::Links)
        }
        (
            Some(State::File { sha256: base, mode: base_mode }),
            Some(State::File { sha256: theirs, mode: their_mode }),
            Some(State::File { sha256: ours, mode: our_mode }),
        ) => {
            let Some(mode) = either(base_mode, our_mode, their_mode) else {
                return Ok(Err(Reason::Modes));
            };
            if let Some(sha256) = either(base, ours, theirs) {
                let state = Some(State::File { sha256: *sha256, mode: *mode });
                return Ok(Ok(Taken::state(state)));
            }
            let [Ok(base), Ok(ours), Ok(theirs)] = [base, ours, theirs].map(|it| store.get(it))
            else {
                return Ok(Err(Reason::Lost));
            };
            match weave(&base, &ours, &theirs) {
                Ok(text) => {
                    let sha256 = store.put(&text)?;
                    let state = Some(State::File { sha256, mode: *mode });
                    Ok(Taken { state, is_woven: true })
                }
                Err(reason) => Err(reason),
            }
        }
        _ => Err(Reason::Kinds),
    })
}

/// Three-way choice between values: `None` when both sides changed it differently.
fn either<'v, T: PartialEq>(base: &'v T, ours: &'v T, theirs: &'v T) -> Option<&'v T> {
    if ours == base || ours == theirs { Some(theirs) } else { (theirs == base).then_some(ours) }
}

fn weave(base: &[u8], ours: &[u8], theirs: &[u8]) -> Result<Vec<u8>, Reason> {
    let all = [base, ours, theirs];
    if all.iter().any(|text| text.len() > LARGEST_TEXT) {
        return Err(Reason::TooLarge);
    }
    if all.iter().any(|text| memchr::memchr(0, text).is_some()) {
        return Err(Reason::Binary);
    }
    lines::merge(base, ours, theirs).map_err(Reason::Overlap)
}

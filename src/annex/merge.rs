//! What it takes to bring a child's changes to its parent: three states of every path, one verdict.
//!
//! Where the parent still has what the child found, the child's state is taken. Where both went
//! their own way, two texts may become one; everything else is a conflict, and then nothing is done.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use serde_json::{Value, json};

use super::changes::Changes;
use super::lease::Woven;
use super::lines::{self, Overlap};
use crate::snapshot::{Change, FolderChange, Plan, State, Store, in_the_way, state_of, staying};
use crate::workspace::Workspace;

/// The largest text that is merged line by line.
const LARGEST_TEXT: usize = 4 << 20;

/// What would happen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Merge {
    /// `from` is what the parent has, `to` what it will have.
    pub files: Vec<Change>,
    pub folders: Vec<FolderChange>,
    pub conflicts: Vec<Conflict>,
    /// Texts that were made from two.
    pub woven: Vec<PathBuf>,
}

/// A path that stays in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub path: PathBuf,
    pub reason: Reason,
}

/// Why two changes do not go together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Both changed the same lines of what the child found.
    Overlap(Vec<Overlap>),
    BothMade,
    RemovedByChild,
    RemovedByParent,
    /// Both changed it, and it is no text.
    Binary,
    /// Both changed it, and it is too large to be compared.
    TooLarge,
    /// Both changed its mode.
    Modes,
    /// Both changed where a link points.
    Links,
    /// It is a link on one side and something else on another.
    Kinds,
    /// What the child found is not kept any more.
    Lost,
    /// Something stands there that is not the child's to remove.
    InTheWay,
    /// An editor has words in it that the disk does not have.
    Unsaved,
    /// Nothing may be written there.
    NotAllowed(String),
    Unreadable(String),
}

impl Reason {
    /// Its name for machines, and what a person is told.
    fn told(&self) -> (&'static str, Cow<'_, str>) {
        let (name, words) = match self {
            Reason::Overlap(overlaps) => return ("overlap", overlapping(overlaps).into()),
            Reason::BothMade => ("both_made", "both made it, and differently"),
            Reason::RemovedByChild => {
                ("removed_by_child", "the child removed it, here it was changed")
            }
            Reason::RemovedByParent => {
                ("removed_by_parent", "here it was removed, the child changed it")
            }
            Reason::Binary => ("binary", "both changed it, and it is no text"),
            Reason::TooLarge => ("too_large", "both changed it, and it is too large to be merged"),
            Reason::Modes => ("modes", "both changed its mode"),
            Reason::Links => ("links", "both changed where it points"),
            Reason::Kinds => ("kinds", "it is a link on one side and a file on the other"),
            Reason::Lost => {
                ("lost", "both changed it, and what the child found is not kept any more")
            }
            Reason::InTheWay => ("in_the_way", "something else stands there"),
            Reason::Unsaved => ("unsaved", "the editor has changes of it that are not saved"),
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
    format!("both changed {}{more} of what the child found", places.join(", "))
}

impl Conflict {
    /// For machines.
    pub fn json(&self) -> Value {
        let (name, words) = self.reason.told();
        json!({ "path": self.path.to_string_lossy(), "kind": name, "reason": words })
    }
}

/// Where changes go.
pub struct Ground<'a> {
    pub workspace: &'a Workspace,
    pub store: &'a Store,
    /// Texts that an earlier merge made from two.
    pub woven: &'a [Woven],
    /// Whether an editor has words in a file that the disk does not have.
    pub is_unsaved: &'a dyn Fn(&Path) -> bool,
}

impl Merge {
    /// Decides about every change. Nothing of the Workspace is changed by it.
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
        // A folder that holds more than the child knew stays, and that is all there is to do.
        let staying = staying(&plan, ground.workspace);
        merge.folders.retain(|it| it.to.is_some() || !staying.contains(&it.path));
        for path in in_the_way(&plan, ground.workspace) {
            merge.refuse(&path, Reason::InTheWay);
        }
        Ok(merge)
    }

    /// Whether everything that the child did is there already.
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
            // A file there goes away, or is in the way of something that is told.
            (Some(_), None) if from.is_none() => *to,
            // One that the parent removed, with what the child has in it, comes with its files.
            (_, None) => return,
            (Some(to), Some(now)) if now == *to || from.is_none() => return,
            (Some(_), Some(now)) if Some(now) == *from => *to,
            (Some(_), Some(_)) => return self.refuse(path, Reason::Modes),
            (None, Some(_)) => None,
        };
        self.folders.push(FolderChange { path: path.clone(), from: now, to: wanted });
    }

    /// For machines.
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

/// What a path becomes.
struct Taken {
    state: Option<State>,
    is_woven: bool,
}

impl Taken {
    fn state(state: Option<State>) -> Self {
        Self { state, is_woven: false }
    }
}

/// The verdict about one path: what the child found, what it left, what the parent has now.
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

/// What two sides made of something, when at most one of them, or both in the same way, did.
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

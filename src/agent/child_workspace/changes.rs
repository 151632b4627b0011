//! The changes of a child: its Workspace compared with the base that it started from.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FileType;
use serde_json::{Value, json};

use super::AnnexError;
use crate::base::secret::Secrets;
use crate::host::snapshot::{
    Change, FolderChange, Limits, Manifest, ManifestDelta, State, Store, Survey, state_of,
};
use crate::host::walk;
use crate::host::workspace::Workspace;
use crate::tools::files::{Difference, Versions};

/// How long the comparison of one file may take before it becomes coarse.
const COMPARE_TIME: Duration = Duration::from_millis(300);

/// All changes of a child.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Files and links: `from` is the state in the base, `to` the present state.
    pub files: Vec<Change>,
    pub folders: Vec<FolderChange>,
    /// Paths that could not be read, with the reason.
    pub unreadable: Vec<(PathBuf, String)>,
}

/// What the comparison of a child Workspace with its base needs.
pub struct Scene<'a> {
    /// The child's Workspace.
    pub annex: &'a Workspace,
    /// The parent's Workspace, whose ignore rules count.
    pub parent: &'a Workspace,
    pub store: &'a Store,
    pub limits: Limits,
}

impl Changes {
    /// Compares a child's Workspace with the Manifest of its base.
    pub fn since(base: &Manifest, scene: &Scene<'_>) -> Result<Self, AnnexError> {
        let Scene { annex, parent, store, limits } = scene;
        let survey = Survey { workspace: annex, store, limits: *limits };
        let now = survey.take(None).map_err(AnnexError::Survey)?;
        let mut changes = Self::default();
        for (path, look) in &now.left_out {
            let reason = format!("it has {} bytes, {} are allowed", look.size, limits.file);
            changes.unreadable.push((path.clone(), reason));
        }
        // An unreadable file may be anything, and there is no other copy of it.
        let unread = now.unread.iter().filter(|(path, _)| !walk::is_ignored(parent, path));
        changes.unreadable.extend(unread.map(|(path, reason)| (path.clone(), reason.clone())));
        let ManifestDelta { files, folders, .. } =
            ManifestDelta::between(base, &now, &BTreeSet::new());
        // A new path that the parent ignores is not merged.
        let is_noise = |is_new: bool, path: &Path| is_new && walk::is_ignored(parent, path);
        for mut change in files {
            if now.unread.contains_key(&change.path) {
                continue;
            }
            if change.to.is_none() {
                // It may still be there, and only be ignored by now, or not be readable.
                match state_of(annex, &change.path, Some(store)) {
                    Ok(state) => change.to = state,
                    Err(error) => {
                        changes.unreadable.push((change.path, error.to_string()));
                        continue;
                    }
                }
            }
            if change.from != change.to && !is_noise(change.from.is_none(), &change.path) {
                changes.files.push(change);
            }
        }
        for change in folders {
            // A link to a folder does not count as a folder.
            let is_still_there = change.to.is_none() && is_folder(annex, &change.path);
            if !is_still_there && !is_noise(change.from.is_none(), &change.path) {
                changes.folders.push(change);
            }
        }
        Ok(changes)
    }

    /// Whether there is no change.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.folders.is_empty() && self.unreadable.is_empty()
    }

    /// A list for people, a line for each path.
    pub fn told(&self) -> String {
        let mut text = String::new();
        for change in &self.files {
            let note = note(change).map(|note| format!(" ({note})")).unwrap_or_default();
            writeln!(text, "{} {}{note}", letter(change), shown(&change.path)).ok();
        }
        for folder in &self.folders {
            let letter = match (folder.from, folder.to) {
                (None, _) => 'A',
                (_, None) => 'D',
                _ => 'M',
            };
            writeln!(text, "{letter} {}/", shown(&folder.path)).ok();
        }
        for (path, reason) in &self.unreadable {
            writeln!(text, "? {} ({reason})", shown(path)).ok();
        }
        text
    }

    /// The list as JSON.
    pub fn json(&self) -> Value {
        let file = |change: &Change| {
            json!({
                "path": change.path.to_string_lossy(),
                "change": match letter(change) { 'A' => "added", 'D' => "removed", _ => "changed" },
                "from": change.from,
                "to": change.to,
            })
        };
        let folder = |folder: &FolderChange| json!({ "path": folder.path.to_string_lossy(), "from": folder.from, "to": folder.to });
        let unreadable = |(path, reason): &(PathBuf, String)| json!({ "path": path.to_string_lossy(), "reason": reason });
        json!({
            "files": self.files.iter().map(file).collect::<Vec<_>>(),
            "folders": self.folders.iter().map(folder).collect::<Vec<_>>(),
            "unreadable": self.unreadable.iter().map(unreadable).collect::<Vec<_>>(),
        })
    }

    /// Unified diffs of as many files as fit in `limit` bytes, and the number of files left out.
    pub fn diff(&self, store: &Store, secrets: &Secrets, limit: usize) -> (String, usize) {
        let mut text = String::new();
        for (place, change) in self.files.iter().enumerate() {
            let one = difference(change, store, secrets);
            if text.len() + one.len() > limit {
                return (text, self.files.len() - place);
            }
            text.push_str(&one);
        }
        (text, 0)
    }
}

fn letter(change: &Change) -> char {
    match (&change.from, &change.to) {
        (None, _) => 'A',
        (_, None) => 'D',
        _ => 'M',
    }
}

/// Facts about a change beside its content: mode, link target.
fn note(change: &Change) -> Option<String> {
    match (&change.from, &change.to) {
        (Some(State::File { mode: old, .. }), Some(State::File { mode: new, .. })) => {
            (old != new).then(|| format!("mode {old:o} is now {new:o}"))
        }
        (_, Some(State::Link { target })) => Some(format!("link to {}", shown(&target.0))),
        (None, Some(State::File { mode, .. })) => {
            (mode & 0o111 != 0).then(|| "executable".to_owned())
        }
        _ => None,
    }
}

/// A path with control characters escaped, so that it stays on one line.
pub fn shown(path: &Path) -> String {
    let one = |letter: char| -> String {
        if letter.is_control() { letter.escape_default().collect() } else { letter.into() }
    };
    path.to_string_lossy().chars().map(one).collect()
}

fn is_folder(workspace: &Workspace, path: &Path) -> bool {
    let seen = workspace.look_exact(path);
    seen.is_ok_and(|seen| FileType::from_raw_mode(seen.stat.st_mode) == FileType::Directory)
}

fn difference(change: &Change, store: &Store, secrets: &Secrets) -> String {
    let name = shown(&change.path);
    let mut text = match note(change) {
        Some(note) => format!("# {name}: {note}\n"),
        None => String::new(),
    };
    let content = |state: &Option<State>| match state {
        Some(State::File { sha256, .. }) => store.get(sha256).map(Some),
        _ => Ok(None),
    };
    match (content(&change.from), content(&change.to)) {
        (Ok(None), Ok(None)) => {}
        (Ok(old), Ok(new)) if old == new => {}
        (Ok(old), Ok(new)) => {
            let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
            let versions =
                Versions { path: Path::new(&name), old_path: None, old: &old, new: &new };
            let difference = Difference::between(versions, secrets, COMPARE_TIME);
            if !difference.text.starts_with("---") {
                write!(text, "# {name}: ").ok();
            }
            text.push_str(&difference.text);
        }
        (Err(error), _) | (_, Err(error)) => {
            writeln!(text, "# {name}: its content is not kept ({error})").ok();
        }
    }
    text
}

//! The changes of a child: its Workspace compared with the base that it started from.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FileType;
use serde_json::{Value, json};

use super::ChildWorkspaceError;
use crate::base::secret::Secrets;
use crate::host::snapshot::{
    ContentStore, FileChange, FileState, FolderChange, Manifest, ManifestDelta, Survey,
    SurveyLimits, read_state,
};
use crate::host::walk;
use crate::host::workspace::Workspace;
use crate::tools::files::{FileDiff, FileVersions};

/// How long the comparison of one file may take before it becomes coarse.
const COMPARE_TIME: Duration = Duration::from_millis(300);

/// All changes of a child.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChildChanges {
    /// Files and links: `from` is the state in the base, `to` the present state.
    pub files: Vec<FileChange>,
    pub folders: Vec<FolderChange>,
    /// Paths that could not be read, with the reason.
    pub unreadable: Vec<(PathBuf, String)>,
}

/// The inputs for comparing a child Workspace with its base.
pub struct CompareContext<'a> {
    /// The child's Workspace.
    pub child: &'a Workspace,
    /// The parent's Workspace, whose ignore rules count.
    pub parent: &'a Workspace,
    pub store: &'a ContentStore,
    pub limits: SurveyLimits,
}

impl ChildChanges {
    /// Compares a child's Workspace with the Manifest of its base.
    pub fn compare_with_base(
        base: &Manifest,
        context: &CompareContext<'_>,
    ) -> Result<Self, ChildWorkspaceError> {
        let CompareContext { child: child_workspace, parent, store, limits } = context;
        let survey = Survey { workspace: child_workspace, store, limits: *limits };
        let now = survey.run(None).map_err(ChildWorkspaceError::Survey)?;
        let mut changes = Self::default();
        for (path, look) in &now.too_large {
            let reason = format!("it has {} bytes, {} are allowed", look.size, limits.file);
            changes.unreadable.push((path.clone(), reason));
        }
        // An unreadable file may be anything, and there is no other copy of it.
        let unread = now.unreadable.iter().filter(|(path, _)| !walk::is_ignored(parent, path));
        changes.unreadable.extend(unread.map(|(path, reason)| (path.clone(), reason.clone())));
        let ManifestDelta { files, folders, .. } =
            ManifestDelta::between(base, &now, &BTreeSet::new());
        // A new path that the parent ignores is not merged.
        let is_noise = |is_new: bool, path: &Path| is_new && walk::is_ignored(parent, path);
        for mut change in files {
            if now.unreadable.contains_key(&change.path) {
                continue;
            }
            if change.to.is_none() {
                // The file may still exist, and be ignored by now or unreadable.
                match read_state(child_workspace, &change.path, Some(store)) {
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
            let is_still_there = change.to.is_none() && is_folder(child_workspace, &change.path);
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

    /// The changes as a readable list, one line per path.
    pub fn format_list(&self) -> String {
        let mut text = String::new();
        for change in &self.files {
            let note = describe_change(change).map(|note| format!(" ({note})")).unwrap_or_default();
            writeln!(text, "{} {}{note}", change_letter(change), escape_path(&change.path)).ok();
        }
        for folder in &self.folders {
            let letter = match (folder.from, folder.to) {
                (None, _) => 'A',
                (_, None) => 'D',
                _ => 'M',
            };
            writeln!(text, "{letter} {}/", escape_path(&folder.path)).ok();
        }
        for (path, reason) in &self.unreadable {
            writeln!(text, "? {} ({reason})", escape_path(path)).ok();
        }
        text
    }

    /// The changes as JSON.
    pub fn to_json(&self) -> Value {
        let file = |change: &FileChange| {
            json!({
                "path": change.path.to_string_lossy(),
                "change": match change_letter(change) { 'A' => "added", 'D' => "removed", _ => "changed" },
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
    pub fn format_diffs(
        &self,
        store: &ContentStore,
        secrets: &Secrets,
        limit: usize,
    ) -> (String, usize) {
        let mut text = String::new();
        for (place, change) in self.files.iter().enumerate() {
            let one = format_difference(change, store, secrets);
            if text.len() + one.len() > limit {
                return (text, self.files.len() - place);
            }
            text.push_str(&one);
        }
        (text, 0)
    }
}

fn change_letter(change: &FileChange) -> char {
    match (&change.from, &change.to) {
        (None, _) => 'A',
        (_, None) => 'D',
        _ => 'M',
    }
}

/// The mode or link target of a change, which a diff of contents does not show.
fn describe_change(change: &FileChange) -> Option<String> {
    match (&change.from, &change.to) {
        (Some(FileState::File { mode: old, .. }), Some(FileState::File { mode: new, .. })) => {
            (old != new).then(|| format!("mode {old:o} is now {new:o}"))
        }
        (_, Some(FileState::Link { target })) => {
            Some(format!("link to {}", escape_path(&target.0)))
        }
        (None, Some(FileState::File { mode, .. })) => {
            (mode & 0o111 != 0).then(|| "executable".to_owned())
        }
        _ => None,
    }
}

/// A path with control characters escaped, so that it stays on one line.
pub fn escape_path(path: &Path) -> String {
    let one = |letter: char| -> String {
        if letter.is_control() { letter.escape_default().collect() } else { letter.into() }
    };
    path.to_string_lossy().chars().map(one).collect()
}

fn is_folder(workspace: &Workspace, path: &Path) -> bool {
    let seen = workspace.stat_no_follow(path);
    seen.is_ok_and(|seen| FileType::from_raw_mode(seen.stat.st_mode) == FileType::Directory)
}

fn format_difference(change: &FileChange, store: &ContentStore, secrets: &Secrets) -> String {
    let name = escape_path(&change.path);
    let mut text = match describe_change(change) {
        Some(note) => format!("# {name}: {note}\n"),
        None => String::new(),
    };
    let content = |state: &Option<FileState>| match state {
        Some(FileState::File { sha256, .. }) => store.get(sha256).map(Some),
        _ => Ok(None),
    };
    match (content(&change.from), content(&change.to)) {
        (Ok(None), Ok(None)) => {}
        (Ok(old), Ok(new)) if old == new => {}
        (Ok(old), Ok(new)) => {
            let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
            let versions =
                FileVersions { path: Path::new(&name), old_path: None, old: &old, new: &new };
            let difference = FileDiff::compare(versions, secrets, COMPARE_TIME);
            if !difference.text.starts_with("---") {
                write!(text, "# {name}: ").ok();
            }
            text.push_str(&difference.text);
        }
        (Err(error), _) | (_, Err(error)) => {
            writeln!(text, "# {name}: its content is not stored ({error})").ok();
        }
    }
    text
}

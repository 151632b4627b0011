//! Manifest delta: the difference between two Manifests, small enough for a line of a Record.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::manifest::{FileFingerprint, ManifestEntry};
use super::{FileState, Manifest, RawPath, deserialize_raw_path, serialize_raw_path};

/// The changes from one Manifest to a later one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestDelta {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileChange>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folders: Vec<FolderChange>,
    /// Files that changed and are too large to be kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_kept: Vec<RawPath>,
    /// Files that existed before but were not in surveys: ignored, unreadable or outside of the Workspace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub appeared: Vec<AppearedFile>,
}

/// A file or link that existed before and became visible to surveys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppearedFile {
    pub path: RawPath,
    pub state: FileState,
}

/// The change of a file or link; a state of `None` means that it does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    #[serde(serialize_with = "serialize_raw_path", deserialize_with = "deserialize_raw_path")]
    pub path: PathBuf,
    pub from: Option<FileState>,
    pub to: Option<FileState>,
}

/// The change of a folder's mode; `None` means that it does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderChange {
    #[serde(serialize_with = "serialize_raw_path", deserialize_with = "deserialize_raw_path")]
    pub path: PathBuf,
    pub from: Option<u32>,
    pub to: Option<u32>,
}

impl ManifestDelta {
    /// Compares two Manifests. The files in `named` are listed even without a change, if one of the
    /// Manifests has them.
    pub fn between(before: &Manifest, after: &Manifest, named: &BTreeSet<PathBuf>) -> Self {
        let files = differing_keys(&before.entries, &after.entries, |path, found, left| {
            let is_other = found.map(|entry| &entry.state) != left.map(|entry| &entry.state);
            is_other || named.contains(path)
        });
        let is_kept = |path: &&PathBuf| {
            !before.too_large.contains_key(*path) && !after.too_large.contains_key(*path)
        };
        let file = |path: &PathBuf| FileChange {
            path: path.clone(),
            from: before.state(path).cloned(),
            to: after.state(path).cloned(),
        };
        let folders =
            differing_keys(&before.folders, &after.folders, |_, found, left| found != left);
        let folder = |path: &PathBuf| FolderChange {
            path: path.clone(),
            from: before.folders.get(path).copied(),
            to: after.folders.get(path).copied(),
        };
        Self {
            files: files.into_iter().filter(is_kept).map(file).collect(),
            folders: folders.into_iter().map(folder).collect(),
            not_kept: changed_too_large_files(before, after).into_iter().map(RawPath).collect(),
            appeared: Vec::new(),
        }
    }

    /// Moves files that are new to the Manifest, but older than the earlier survey, to `appeared`: their
    /// earlier state is unknown. A renamed file is recognised by its inode.
    #[must_use]
    pub fn with_appeared(
        mut self,
        before: &Manifest,
        after: &Manifest,
        is_older: impl Fn(&Path) -> bool,
    ) -> Self {
        let inode = |path: &Path| after.entries.get(path).map(|entry| entry.fingerprint.inode);
        let is_new = |file: &FileChange| file.from.is_none() && file.to.is_some();
        if !self.files.iter().any(is_new) {
            return self;
        }
        let known: HashSet<u64> =
            before.entries.values().map(|entry| entry.fingerprint.inode).collect();
        let (appeared, files) = self.files.into_iter().partition(|file| {
            let path = &file.path;
            is_new(file) && inode(path).is_some_and(|own| !known.contains(&own)) && is_older(path)
        });
        self.files = files;
        let appeared: Vec<FileChange> = appeared;
        let shown =
            |FileChange { path, to, .. }| Some(AppearedFile { path: RawPath(path), state: to? });
        self.appeared = appeared.into_iter().filter_map(shown).collect();
        self
    }

    /// Moves files that match `is_other` to another delta.
    pub fn split_off(&mut self, is_other: impl Fn(&FileChange) -> bool) -> Self {
        let files = std::mem::take(&mut self.files);
        let (other, own) = files.into_iter().partition(is_other);
        self.files = own;
        Self { files: other, ..Self::default() }
    }

    /// The delta of a Manifest to itself.
    pub fn unchanged(manifest: &Manifest, named: &BTreeSet<PathBuf>) -> Self {
        if named.is_empty() { Self::default() } else { Self::between(manifest, manifest, named) }
    }

    /// Applies the changes to a Manifest. Only states and modes are known, no fingerprints.
    pub fn apply(&self, manifest: &mut Manifest) {
        let fingerprint =
            FileFingerprint { size: 0, mode: 0, inode: 0, modified: i128::MIN, changed: i128::MIN };
        for FileChange { path, to, .. } in &self.files {
            manifest.too_large.remove(path);
            match to {
                Some(state) => {
                    let entry = ManifestEntry { state: state.clone(), fingerprint };
                    manifest.entries.insert(path.clone(), entry);
                }
                None => drop(manifest.entries.remove(path)),
            }
        }
        for AppearedFile { path, state } in &self.appeared {
            let entry = ManifestEntry { state: state.clone(), fingerprint };
            manifest.entries.insert(path.0.clone(), entry);
        }
        for FolderChange { path, to, .. } in &self.folders {
            match to {
                Some(mode) => drop(manifest.folders.insert(path.clone(), *mode)),
                None => drop(manifest.folders.remove(path)),
            }
        }
        for RawPath(path) in &self.not_kept {
            // An old entry of the path would be compared with an unknown state.
            manifest.entries.remove(path);
            manifest.too_large.insert(path.clone(), fingerprint);
        }
    }
}

/// The keys of both maps, in order, whose values are different.
fn differing_keys<'m, V>(
    before: &'m BTreeMap<PathBuf, V>,
    after: &'m BTreeMap<PathBuf, V>,
    is_other: impl Fn(&Path, Option<&V>, Option<&V>) -> bool,
) -> Vec<&'m PathBuf> {
    let mut found = before.iter().peekable();
    let mut left = after.iter().peekable();
    let mut paths = Vec::new();
    loop {
        let next = match (found.peek(), left.peek()) {
            (Some((one, _)), Some((other, _))) => (*one).min(*other),
            (Some((path, _)), None) | (None, Some((path, _))) => *path,
            (None, None) => return paths,
        };
        let old = found.next_if(|(path, _)| *path == next).map(|(_, value)| value);
        let new = left.next_if(|(path, _)| *path == next).map(|(_, value)| value);
        if is_other(next, old, new) {
            paths.push(next);
        }
    }
}

/// Files that changed between two surveys but were too large to be kept.
fn changed_too_large_files(before: &Manifest, after: &Manifest) -> Vec<PathBuf> {
    let looks: BTreeMap<&PathBuf, &FileFingerprint> = before.too_large.iter().collect();
    let changed = after.too_large.iter().filter(|(path, look)| looks.get(path) != Some(look));
    let gone = before.too_large.keys().filter(|path| !after.too_large.contains_key(*path));
    changed.map(|(path, _)| path.clone()).chain(gone.cloned()).collect()
}

//! Manifest: the files, links and folders that one survey of a Workspace found.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{ContentHash, ContentStore, FileState, RawPath, manifest_file};

/// The files, links and folders of a Workspace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Manifest {
    pub entries: BTreeMap<PathBuf, ManifestEntry>,
    /// Folders, and the bits of their mode.
    pub folders: BTreeMap<PathBuf, u32>,
    /// Files that are too large to be kept, with their fingerprints.
    pub too_large: BTreeMap<PathBuf, FileFingerprint>,
    /// Paths that could not be read, with the reason. They are not stored, because the next survey may
    /// succeed.
    pub unreadable: BTreeMap<PathBuf, String>,
}

/// A file or link of a Manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestEntry {
    pub state: FileState,
    pub fingerprint: FileFingerprint,
}

/// The fingerprint of a file, which changes with the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFingerprint {
    pub size: u64,
    pub mode: u32,
    pub inode: u64,
    /// Nanoseconds since the epoch.
    pub modified: i128,
    pub changed: i128,
}

/// One line of a Manifest in JSON.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum JsonManifestLine {
    Entry {
        path: RawPath,
        state: FileState,
        #[serde(rename = "look")]
        fingerprint: FileFingerprint,
    },
    Folder {
        path: RawPath,
        mode: u32,
    },
    LeftOut {
        path: RawPath,
        #[serde(rename = "look")]
        fingerprint: FileFingerprint,
    },
}

impl Manifest {
    /// The state of a path; `None` when it did not exist or was not kept.
    pub fn state(&self, path: &std::path::Path) -> Option<&FileState> {
        self.entries.get(path).map(|entry| &entry.state)
    }

    /// The paths that are different in `later`, new or removed ones included.
    pub fn changed_paths(&self, later: &Manifest) -> Vec<PathBuf> {
        let paths: BTreeSet<&PathBuf> = self
            .entries
            .keys()
            .chain(later.entries.keys())
            .chain(later.too_large.keys())
            .chain(self.too_large.keys())
            .collect();
        let is_other = |path: &&&PathBuf| {
            self.state(path) != later.state(path)
                || self.too_large.get(**path) != later.too_large.get(**path)
        };
        paths.iter().filter(is_other).map(|path| (*path).clone()).collect()
    }

    /// Stores the Manifest; returns the hash and the length of its file.
    pub fn save(&self, store: &ContentStore) -> io::Result<(ContentHash, u64)> {
        let bytes = manifest_file::encode(self, store)?;
        Ok((store.put(&bytes)?, bytes.len() as u64))
    }

    /// Loads the Manifest that is stored under a hash.
    pub fn load(hash: &ContentHash, store: &ContentStore) -> io::Result<Self> {
        let bytes = store.get(hash)?;
        if bytes.starts_with(manifest_file::MAGIC) {
            return manifest_file::decode(&bytes, store);
        }
        Self::read_json(bytes.as_slice())
    }

    /// Reads a Manifest of an earlier version, with a line of JSON for each path.
    fn read_json(input: impl BufRead) -> io::Result<Self> {
        let mut manifest = Self::default();
        for line in input.split(b'\n') {
            match serde_json::from_slice(&line?)? {
                JsonManifestLine::Entry { path, state, fingerprint } => {
                    manifest.entries.insert(path.0, ManifestEntry { state, fingerprint });
                }
                JsonManifestLine::Folder { path, mode } => {
                    manifest.folders.insert(path.0, mode);
                }
                JsonManifestLine::LeftOut { path, fingerprint } => {
                    manifest.too_large.insert(path.0, fingerprint);
                }
            }
        }
        Ok(manifest)
    }
}

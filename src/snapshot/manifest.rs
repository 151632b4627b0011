//! A Manifest: everything that a survey of the Workspace saw, at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Hash, RawPath, State, Store, manifest_file};

/// The files, links and folders of a Workspace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Manifest {
    pub entries: BTreeMap<PathBuf, Entry>,
    /// Folders, and the bits of their mode.
    pub folders: BTreeMap<PathBuf, u32>,
    /// Files that are not kept, because there is a limit; known by how they looked.
    pub left_out: BTreeMap<PathBuf, Look>,
    /// What could not be read, and why. It is not written down: the next look may be luckier.
    pub unread: BTreeMap<PathBuf, String>,
}

/// One file or link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub state: State,
    pub look: Look,
}

/// How a file looks from outside: while that is the same, so is its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
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
enum Line {
    Entry { path: RawPath, state: State, look: Look },
    Folder { path: RawPath, mode: u32 },
    LeftOut { path: RawPath, look: Look },
}

impl Manifest {
    /// What a path was; `None` when it was not there, or was not kept.
    pub fn state(&self, path: &std::path::Path) -> Option<&State> {
        self.entries.get(path).map(|entry| &entry.state)
    }

    /// The paths that are something else in `later`, or there only or not any more.
    pub fn changed_in(&self, later: &Manifest) -> Vec<PathBuf> {
        let paths: BTreeSet<&PathBuf> = self
            .entries
            .keys()
            .chain(later.entries.keys())
            .chain(later.left_out.keys())
            .chain(self.left_out.keys())
            .collect();
        let is_other = |path: &&&PathBuf| {
            self.state(path) != later.state(path)
                || self.left_out.get(**path) != later.left_out.get(**path)
        };
        paths.iter().filter(is_other).map(|path| (*path).clone()).collect()
    }

    /// Keeps it in a store, under the hash of its file, which has this length.
    pub fn keep(&self, store: &Store) -> io::Result<(Hash, u64)> {
        let bytes = manifest_file::encode(self, store)?;
        Ok((store.put(&bytes)?, bytes.len() as u64))
    }

    /// The one that was kept under that hash.
    pub fn kept(hash: &Hash, store: &Store) -> io::Result<Self> {
        let bytes = store.get(hash)?;
        if bytes.starts_with(manifest_file::MAGIC) {
            return manifest_file::decode(&bytes, store);
        }
        Self::read_json(bytes.as_slice())
    }

    /// Reads one that an earlier version wrote, a line of JSON for each path.
    fn read_json(input: impl BufRead) -> io::Result<Self> {
        let mut manifest = Self::default();
        for line in input.split(b'\n') {
            match serde_json::from_slice(&line?)? {
                Line::Entry { path, state, look } => {
                    manifest.entries.insert(path.0, Entry { state, look });
                }
                Line::Folder { path, mode } => {
                    manifest.folders.insert(path.0, mode);
                }
                Line::LeftOut { path, look } => {
                    manifest.left_out.insert(path.0, look);
                }
            }
        }
        Ok(manifest)
    }
}

//! A Manifest: everything that a survey of the Workspace saw, at one moment.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Hash, RawPath, State, Store};

/// The files, links and folders of a Workspace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Manifest {
    pub entries: BTreeMap<PathBuf, Entry>,
    /// Folders, and the bits of their mode.
    pub folders: BTreeMap<PathBuf, u32>,
    /// Files that are not kept, because there is a limit; known by how they looked.
    pub left_out: BTreeMap<PathBuf, Look>,
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

/// One line of a written Manifest.
#[derive(Serialize, Deserialize)]
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

    /// Keeps it in a store, under the hash of its text.
    pub fn keep(&self, store: &Store) -> io::Result<Hash> {
        let mut text = Vec::new();
        self.write(&mut text)?;
        store.put(&text)
    }

    /// The one that was kept under that hash.
    pub fn kept(hash: &Hash, store: &Store) -> io::Result<Self> {
        Self::read(store.get(hash)?.as_slice())
    }

    /// Writes it, a line for each path.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        let entries = self.entries.iter().map(|(path, Entry { state, look })| Line::Entry {
            path: RawPath(path.clone()),
            state: state.clone(),
            look: *look,
        });
        let folders = self.folders.iter();
        let folders =
            folders.map(|(path, mode)| Line::Folder { path: RawPath(path.clone()), mode: *mode });
        let left_out = self.left_out.iter();
        let left_out =
            left_out.map(|(path, look)| Line::LeftOut { path: RawPath(path.clone()), look: *look });
        for line in entries.chain(folders).chain(left_out) {
            serde_json::to_writer(&mut out, &line)?;
            out.write_all(b"\n")?;
        }
        out.flush()
    }

    /// Reads one that was written.
    pub fn read(input: impl BufRead) -> io::Result<Self> {
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

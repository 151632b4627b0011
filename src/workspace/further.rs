//! Further roots: directories beside the Workspace that belong to the same work.
//!
//! A path leads into one only when it is absolute and stands beneath it; from there on that root
//! judges as the Workspace does, by descriptor. Whatever is told of such a place is told by its
//! absolute path, so that nothing is taken for a file of the Workspace.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{OpenFile, Place, Target, Workspace};

/// The further roots of a Workspace.
#[derive(Debug, Default)]
pub(super) struct Further {
    roots: Vec<PathBuf>,
    spaces: Vec<Workspace>,
}

impl Workspace {
    /// The same Workspace with these further roots, in place of those it had. One that lies in
    /// another, or in the Workspace, adds nothing.
    #[must_use]
    pub fn beside(self, spaces: Vec<Workspace>) -> Self {
        let mut further = Further::default();
        for space in spaces {
            let root = space.root().to_owned();
            let is_inside = |other: &PathBuf| root.starts_with(other);
            if root.starts_with(self.root()) || further.roots.iter().any(is_inside) {
                continue;
            }
            further.roots.push(root);
            further.spaces.push(space);
        }
        Self(self.0, self.1, self.2, Arc::new(further))
    }

    /// The further roots, by their canonical paths.
    pub fn further(&self) -> &[PathBuf] {
        &self.3.roots
    }

    /// The further root that a path leads into, if it does.
    pub(super) fn elsewhere(&self, path: &Path) -> Option<&Workspace> {
        if self.3.spaces.is_empty() || path.is_relative() || self.relative(path).is_ok() {
            return None;
        }
        self.3.spaces.iter().find(|space| space.relative(path).is_ok())
    }

    /// The same, for a place that was told: a canonical path, and what of it the root is.
    pub(super) fn told(&self, path: &[u8]) -> Option<(&Workspace, usize)> {
        if path.first() != Some(&b'/') {
            return None;
        }
        let path = Path::new(OsStr::from_bytes(path));
        let space = self.3.spaces.iter().find(|space| path.starts_with(space.root()))?;
        Some((space, space.root().as_os_str().len()))
    }

    /// How many bytes of a told place name its root; none in the Workspace itself.
    pub fn root_length(&self, path: &Path) -> usize {
        self.told(path.as_os_str().as_bytes()).map_or(0, |(_, length)| length)
    }

    /// The absolute path of a place in this root.
    pub(super) fn absolute(&self, inside: &Path) -> PathBuf {
        if inside.as_os_str().is_empty() {
            return self.root().to_owned();
        }
        self.root().join(inside)
    }
}

impl OpenFile {
    /// The same file, told by its absolute path.
    pub(super) fn beneath(self, space: &Workspace) -> Self {
        Self { path: space.absolute(&self.path), ..self }
    }
}

impl Place {
    /// The same place, told by its absolute path.
    pub(super) fn beneath(self, space: &Workspace) -> Self {
        Self { path: space.absolute(&self.path), ..self }
    }
}

impl Target {
    /// The same target, told by its absolute path.
    pub(super) fn beneath(mut self, space: &Workspace) -> Self {
        self.name_as(space.absolute(self.path()));
        self
    }
}

//! Extra roots: directories besides the Workspace that a Session may touch.
//!
//! A path belongs to an extra root only when it is absolute and beneath it; that root then confines the
//! path by descriptor, as the Workspace does. Files of an extra root are always named by their absolute
//! paths, so that they are not confused with files of the Workspace.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{OpenFile, ResolvedPath, Workspace, WriteTarget};

/// The extra roots of a Workspace.
#[derive(Debug, Default)]
pub(super) struct ExtraRoots {
    roots: Vec<PathBuf>,
    workspaces: Vec<Workspace>,
}

impl Workspace {
    /// This Workspace with these extra roots instead of earlier ones. A root inside another one, or
    /// inside the Workspace, is left out.
    #[must_use]
    pub fn with_extra_roots(self, spaces: Vec<Workspace>) -> Self {
        let mut extra_roots = ExtraRoots::default();
        for workspace in spaces {
            let root = workspace.root().to_owned();
            let is_inside = |other: &PathBuf| root.starts_with(other);
            if root.starts_with(self.root()) || extra_roots.roots.iter().any(is_inside) {
                continue;
            }
            extra_roots.roots.push(root);
            extra_roots.workspaces.push(workspace);
        }
        Self(self.0, self.1, self.2, Arc::new(extra_roots))
    }

    /// The canonical paths of the extra roots.
    pub fn extra_roots(&self) -> &[PathBuf] {
        &self.3.roots
    }

    /// The extra root of a path, if any.
    pub(super) fn extra_root_for(&self, path: &Path) -> Option<&Workspace> {
        if self.3.workspaces.is_empty() || path.is_relative() || self.relative(path).is_ok() {
            return None;
        }
        self.3.workspaces.iter().find(|workspace| workspace.relative(path).is_ok())
    }

    /// The extra root of a canonical path, and the length of the root's path in bytes.
    pub(super) fn split_extra_root(&self, path: &[u8]) -> Option<(&Workspace, usize)> {
        if path.first() != Some(&b'/') {
            return None;
        }
        let path = Path::new(OsStr::from_bytes(path));
        let workspace =
            self.3.workspaces.iter().find(|workspace| path.starts_with(workspace.root()))?;
        Some((workspace, workspace.root().as_os_str().len()))
    }

    /// The length of the extra root's path in a canonical path, in bytes; 0 in the Workspace itself.
    pub fn root_length(&self, path: &Path) -> usize {
        self.split_extra_root(path.as_os_str().as_bytes()).map_or(0, |(_, length)| length)
    }

    /// The absolute path of a relative path in this root.
    pub(super) fn absolute(&self, inside: &Path) -> PathBuf {
        if inside.as_os_str().is_empty() {
            return self.root().to_owned();
        }
        self.root().join(inside)
    }
}

impl OpenFile {
    /// The open file with its path made absolute.
    pub(super) fn named_in(self, workspace: &Workspace) -> Self {
        Self { path: workspace.absolute(&self.path), ..self }
    }
}

impl ResolvedPath {
    /// The resolved path made absolute.
    pub(super) fn named_in(self, workspace: &Workspace) -> Self {
        Self { path: workspace.absolute(&self.path), ..self }
    }
}

impl WriteTarget {
    /// The target with its path made absolute.
    pub(super) fn named_in(mut self, workspace: &Workspace) -> Self {
        self.set_path(workspace.absolute(self.path()));
        self
    }
}

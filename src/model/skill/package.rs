//! Other files in a Skill's folder, which its instructions refer to; shown one at a time.
//!
//! The files are opened by descriptor below the folder, so no `..`, absolute path or link leads out of it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::find::{decode_text, read_limited};
use super::{FileDiagnostic, MAIN_FILE, Skill};
use crate::base::error::{Explain, Explanation, Kind};
use crate::base::id::sha256;
use crate::host::workspace::{Workspace, WorkspaceError};

/// The largest file that is shown, in bytes.
const LARGEST: u64 = 1024 * 1024;
/// How many files are listed.
const MOST_NAMES: usize = 100;
/// How deep folders are listed.
const DEEPEST: usize = 4;

/// A file of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageFile {
    pub text: String,
    pub digest: String,
    /// Whether the path leads to the main file.
    pub is_main: bool,
}

impl Skill {
    /// Reads a file of the Skill's folder; the main file is returned as it was when the Skill was read.
    pub fn read_package_file(&self, path: &Path) -> Result<PackageFile, PackageError> {
        let space = Workspace::open(&self.folder)?;
        let open = space.open_file(path)?;
        // The main file may be a link to another file of the folder.
        let main = space.open_file(Path::new(MAIN_FILE)).map(|main| main.path);
        if main.is_ok_and(|main| main == open.path) {
            let (text, digest) = (self.text.to_string(), self.digest.clone());
            return Ok(PackageFile { text, digest, is_main: true });
        }
        let refuse = |flaw: FileDiagnostic| PackageError::Unshowable {
            path: path.to_owned(),
            is_binary: flaw.line.is_some(),
            reason: flaw.to_string(),
        };
        let bytes = read_limited(&space, path, LARGEST).map_err(refuse)?;
        let text = decode_text(&bytes).map_err(refuse)?.to_owned();
        Ok(PackageFile { digest: sha256(&bytes), text, is_main: false })
    }

    /// The files other than the main file, sorted, and how many more there are.
    pub fn list_package_files(&self) -> (Vec<PathBuf>, usize) {
        let (mut files, mut waiting) = (Vec::new(), vec![(self.folder.clone(), 0)]);
        while let Some((folder, depth)) = waiting.pop() {
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            for entry in entries.filter_map(Result::ok).take(MOST_NAMES * 10) {
                let Ok(kind) = entry.file_type() else { continue };
                let path = entry.path();
                let is_hidden = entry.file_name().as_encoded_bytes().first() == Some(&b'.');
                if kind.is_dir() && depth < DEEPEST && !is_hidden {
                    waiting.push((path, depth + 1));
                } else if kind.is_file()
                    && let Ok(inside) = path.strip_prefix(&self.folder)
                    && inside != Path::new(MAIN_FILE)
                {
                    files.push(inside.to_owned());
                }
            }
        }
        files.sort();
        let more = files.len().saturating_sub(MOST_NAMES);
        files.truncate(MOST_NAMES);
        (files, more)
    }
}

/// Why a file of a package cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    #[error("{} cannot be shown: {reason}", path.display())]
    Unshowable { path: PathBuf, is_binary: bool, reason: String },
}

impl Explain for PackageError {
    fn explain(&self) -> Explanation {
        let explained = match self {
            Self::Workspace(error) => error.kind().with_details(error.details()),
            Self::Unshowable { path, is_binary, .. } => {
                let kind = if *is_binary { Kind::BinaryFile } else { Kind::ReadFailed };
                kind.with_details(json!({ "path": path.to_string_lossy() }))
            }
        };
        explained.with_next_action("use a path relative to the skill's folder, of a text file")
    }
}

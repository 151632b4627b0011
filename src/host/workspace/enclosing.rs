//! Enclosing project of a Workspace: the folders from the enclosing git root down to the Workspace.
//!
//! These folders are only read; a Workspace is never extended to them.

use std::path::Path;

/// The folders whose files may apply to a Workspace, from the enclosing git root down to the Workspace
/// itself. A git root has a `.git`: a folder, or the file of a worktree.
pub fn project_folders(workspace: &Path) -> Vec<&Path> {
    let root = workspace.ancestors().find(|folder| folder.join(".git").exists());
    let root = root.unwrap_or(workspace);
    let mut folders: Vec<&Path> =
        workspace.ancestors().take_while(|folder| folder.starts_with(root)).collect();
    folders.reverse();
    folders
}

//! The project around a Workspace: the folders from the enclosing git root down to it.
//!
//! They are only looked into; a Workspace is never widened to them.

use std::path::Path;

/// The folders that may say something about a Workspace, the outermost first and the Workspace
/// itself last. A `.git` ends the way up, be it a folder or the file of a worktree.
pub fn project_folders(workspace: &Path) -> Vec<&Path> {
    let root = workspace.ancestors().find(|folder| folder.join(".git").exists());
    let root = root.unwrap_or(workspace);
    let mut folders: Vec<&Path> =
        workspace.ancestors().take_while(|folder| folder.starts_with(root)).collect();
    folders.reverse();
    folders
}

//! Project files that programs outside the sandbox run, or take programs from, without being asked to:
//! when a folder is entered or opened, or when git runs a hook.
//!
//! They are ordinary work, so they are reported, and never altered or refused. Scripts that are run by
//! choice, such as a Makefile, do not belong here.

use std::path::Path;

/// Names of such files, in any folder.
const PROGRAM_FILES: &[&str] = &[
    // Shells that enter the folder.
    ".envrc",
    ".autoenv",
    ".autoenv.zsh",
    "mise.toml",
    ".mise.toml",
    "mise.local.toml",
    ".mise.local.toml",
    ".rtx.toml",
    ".tool-versions",
    // Git hook managers.
    ".pre-commit-config.yaml",
    "lefthook.yml",
    ".lefthook.yml",
    ".overcommit.yml",
    // Editors.
    ".exrc",
    ".vimrc",
    ".nvimrc",
    ".nvim.lua",
    ".lvimrc",
    ".dir-locals.el",
    ".dir-locals-2.el",
    ".devcontainer.json",
    "rust-analyzer.toml",
    ".rust-analyzer.toml",
    // Debuggers and agents.
    ".gdbinit",
    ".lldbinit",
    ".mcp.json",
];

/// Names of folders whose every file counts.
const PROGRAM_FOLDERS: &[&str] = &[
    ".vscode",
    ".idea",
    ".zed",
    ".fleet",
    ".vim",
    ".nvim",
    ".devcontainer",
    ".husky",
    ".githooks",
    ".lefthook",
    ".direnv",
    ".mise",
    ".cargo",
    ".cursor",
    ".claude",
    ".codex",
    ".gemini",
];

/// The end of the name of a VS Code workspace.
const WORKSPACE_ENDING: &[u8] = b".code-workspace";

/// Folders of installed packages, which are not opened as projects; an installation would report hundreds.
const PACKAGE_FOLDERS: &[&str] = &["node_modules", "site-packages"];

/// Whether programs outside the sandbox run files of this name.
pub fn is_program_file(name: &[u8]) -> bool {
    PROGRAM_FILES.iter().any(|own| own.as_bytes() == name) || name.ends_with(WORKSPACE_ENDING)
}

/// Whether every file of the folder at this path counts; relative to the Workspace.
pub fn is_program_folder(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/')
        .any(|part| PROGRAM_FOLDERS.iter().any(|own| own.as_bytes() == part))
}

/// Whether a path lies among installed packages.
pub fn is_in_package(path: &Path) -> bool {
    path.iter().any(|part| PACKAGE_FOLDERS.iter().any(|own| part == *own))
}

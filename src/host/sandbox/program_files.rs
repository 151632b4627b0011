//! Program files of a project: files that programs outside the sandbox run, or from which they start other
//! programs, on their own: when a folder is entered or opened, or when git runs a hook.
//!
//! Commands change such files in ordinary work, so they are reported, and never altered or refused. Scripts
//! that the user runs explicitly, such as a Makefile, are not on the list.

use std::path::Path;

/// Names of program files, in any folder.
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

/// Names of folders in which every file is a program file.
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

/// The extension of a VS Code workspace.
const WORKSPACE_ENDING: &[u8] = b".code-workspace";

/// Folders of installed packages, which users do not open as projects; an installation would report hundreds of files.
const PACKAGE_FOLDERS: &[&str] = &["node_modules", "site-packages"];

/// Whether programs outside the sandbox run files of this name.
pub fn is_program_file(name: &[u8]) -> bool {
    PROGRAM_FILES.iter().any(|own| own.as_bytes() == name) || name.ends_with(WORKSPACE_ENDING)
}

/// Whether every file of the folder at this path, relative to the Workspace, is a program file.
pub fn is_program_folder(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/')
        .any(|part| PROGRAM_FOLDERS.iter().any(|own| own.as_bytes() == part))
}

/// Whether a path is in an installed package.
pub fn is_in_package(path: &Path) -> bool {
    path.iter().any(|part| PACKAGE_FOLDERS.iter().any(|own| part == *own))
}

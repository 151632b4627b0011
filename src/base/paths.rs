//! Paths of Pixir's files: `.pixir/` in a Workspace, `~/.pixir` for the user.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

/// The name of Pixir's folder in a Workspace and in the user's home.
pub const STATE_FOLDER: &str = ".pixir";

/// The `.gitignore` that Pixir writes into `.pixir/`: its own state, and nothing of the user's.
pub const GITIGNORE: &str = "/sessions/\n/blobs/\n/snapshots/\n/subagents/\n/.gitignore\n";

/// Serializes a path as text in machine-readable output, lossy when it is not UTF-8; serde would fail the whole
/// output. Not for values that are read back as paths.
pub fn as_text<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    path.to_string_lossy().serialize(to)
}

/// Serializes an optional path as text, like [`as_text`].
#[expect(clippy::ref_option, reason = "serde hands over the field as it is")]
pub fn as_text_if_any<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    path.as_deref().map(Path::to_string_lossy).serialize(to)
}

/// Several paths as text, lossy when they are not UTF-8.
pub fn as_texts<P: AsRef<Path>>(paths: &[P]) -> Vec<Cow<'_, str>> {
    paths.iter().map(|path| path.as_ref().to_string_lossy()).collect()
}

/// The user's own Pixir folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home(PathBuf);

impl Home {
    /// The name of the token store.
    pub const AUTH: &str = "auth.json";
    /// The name of the token store's lock.
    pub const AUTH_LOCK: &str = "auth.lock";
    /// The name of the cache of models.
    pub const MODELS: &str = "models.json";
    /// The name of the cache of Workspaces.
    pub const WORKSPACES: &str = "workspaces.json";
    /// The name of the folder that holds child Workspaces, and state of Workspaces that is not kept in them.
    pub const WORKSPACE_FOLDERS: &str = "workspaces";

    /// The name of the folder that holds the private layers over package caches.
    pub const CACHES: &str = "caches";

    /// The Home in this folder; the caller resolves `PIXIR_HOME` or `~/.pixir`.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }
    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
    /// The user's settings.
    pub fn config_file(&self) -> PathBuf {
        self.0.join("config.json")
    }
    /// The tokens of a signed-in user.
    pub fn auth(&self) -> PathBuf {
        self.0.join(Self::AUTH)
    }
    /// The lock of a process that renews or replaces the tokens.
    pub fn auth_lock(&self) -> PathBuf {
        self.0.join(Self::AUTH_LOCK)
    }
    /// The user's instructions for every project.
    pub fn agents_md(&self) -> PathBuf {
        self.0.join("AGENTS.md")
    }
    /// A cache of the models that Providers have listed.
    pub fn models_cache(&self) -> PathBuf {
        self.0.join(Self::MODELS)
    }
    /// Permissions that the user granted permanently, by project.
    pub fn permissions_file(&self) -> PathBuf {
        self.0.join("permissions.json")
    }
    /// Permission modes that the user chose for single Sessions.
    pub fn grants_file(&self) -> PathBuf {
        self.0.join("grants.json")
    }
    /// The user's trust decisions about files of Workspaces.
    pub fn trust_file(&self) -> PathBuf {
        self.0.join("trust.json")
    }
    /// The child Workspaces and their registrations.
    pub fn child_workspaces(&self) -> PathBuf {
        self.0.join(Self::WORKSPACE_FOLDERS)
    }
    /// The private layers over package caches, in slots.
    pub fn caches(&self) -> PathBuf {
        self.0.join(Self::CACHES)
    }
    /// A cache of Workspaces that were used.
    pub fn workspaces(&self) -> PathBuf {
        self.0.join(Self::WORKSPACES)
    }
}

/// Pixir's folder in a Workspace.
pub fn state_folder(workspace: &Path) -> PathBuf {
    workspace.join(STATE_FOLDER)
}

/// The MCP servers that a Workspace may bring, in a file that many programs share.
pub fn workspace_mcp_file(workspace: &Path) -> PathBuf {
    workspace.join(".mcp.json")
}

/// The settings that a Workspace may bring.
pub fn workspace_config_file(workspace: &Path) -> PathBuf {
    state_folder(workspace).join("config.json")
}

/// Quotes a word for a POSIX shell, where that is necessary.
pub fn quote_shell_word(word: &str) -> String {
    let is_plain = !word.is_empty()
        && word.bytes().all(|byte| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'_' | b'-' | b'+' | b':')
        });
    if is_plain { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

//! Capabilities of the client, as declared by `initialize`.

use serde_json::Value;

/// Capabilities that the client declared; others count as absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a separate capability")]
pub struct ClientCapabilities {
    /// Shows output of commands that run here, by an extension of the protocol.
    pub shows_terminals: bool,
    /// Can run this program in a terminal to sign in.
    pub runs_logins: bool,
    /// Can run this program in a terminal by the older extension.
    pub runs_old_logins: bool,
    /// Can show notices.
    pub takes_notices: bool,
    /// Can show compactions.
    pub takes_compactions: bool,
    /// Serves file contents, with unsaved changes.
    pub reads_files: bool,
    /// Writes files, so that the user can review the changes.
    pub writes_files: bool,
}

impl ClientCapabilities {
    /// Reads the parameters of `initialize`; an invalid capability counts as absent.
    pub fn read(params: &Value) -> Self {
        let capabilities = &params["clientCapabilities"];
        let is_true = |path: &str| capabilities.pointer(path).is_some_and(|value| *value == true);
        let is_there = |path: &str| {
            capabilities.pointer(path).is_some_and(|value| value.is_object() || *value == true)
        };
        Self {
            shows_terminals: is_true("/_meta/terminal_output"),
            runs_logins: is_true("/auth/terminal"),
            runs_old_logins: is_true("/_meta/terminal-auth"),
            takes_notices: is_there("/session/notices"),
            takes_compactions: is_there("/session/compaction"),
            reads_files: is_true("/fs/readTextFile"),
            writes_files: is_true("/fs/writeTextFile"),
        }
    }
}

//! The client: what it said that it can do. What it did not say, it cannot.

use serde_json::Value;

/// What the client can be sent and asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a capability of its own")]
pub struct Client {
    /// Shows output of commands that ran here, by a convention beside the protocol.
    pub shows_terminals: bool,
    /// Runs this program in a terminal to sign in.
    pub runs_logins: bool,
    /// The same, by the convention of before.
    pub runs_old_logins: bool,
    /// Takes notices.
    pub takes_notices: bool,
    /// Shows compactions.
    pub takes_compactions: bool,
    /// Reads files for us, with what is not saved yet.
    pub reads_files: bool,
    /// Writes files for us, so that the user can review them.
    pub writes_files: bool,
}

impl Client {
    /// Reads the parameters of `initialize`; what makes no sense counts as absent.
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

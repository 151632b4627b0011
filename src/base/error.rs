//! Errors in one vocabulary: `Kind` for machines, `Report` for people and wires.
//!
//! Every module has its own error enum; each implements `Explain`, and only a `Report` ever leaves
//! the process.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// The closed vocabulary of failures; callers and tests match on it, never on prose.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind { $($(#[$doc])* $variant,)* }

        impl Kind {
            /// Every kind, in the order of this file.
            pub const ALL: &'static [Kind] = &[$(Kind::$variant,)*];

            /// The stable name used in Logs, envelopes and tool results.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$variant => $name,)* }
            }

            /// Reads a stable name back.
            pub fn from_name(name: &str) -> Option<Kind> {
                match name { $($name => Some(Kind::$variant),)* _ => None }
            }
        }
    };
}

kinds! {
    /// An argument, flag or tool input is invalid.
    InvalidArgs = "invalid_args",
    /// A config file or variable has a bad key or value.
    InvalidConfig = "invalid_config",
    /// A Skill, prompt or role of a file cannot be used as it is.
    InvalidSkill = "invalid_skill",
    /// The model asked for a tool that does not exist.
    UnknownTool = "unknown_tool",
    /// A path is outside the Workspace.
    OutsideWorkspace = "outside_workspace",
    /// The directory may not be used as a Workspace.
    WorkspaceRefused = "workspace_refused",
    /// The path is inside Pixir's own state.
    ProtectedPath = "protected_path",
    /// A file, Session or Event does not exist.
    NotFound = "not_found",
    /// The text to replace does not occur.
    NoMatch = "no_match",
    /// The text to replace occurs more than once.
    NotUnique = "not_unique",
    /// The file changed since it was read.
    FileChanged = "file_changed",
    /// A redaction marker in a written text has no value to restore.
    RedactionMarker = "redaction_marker",
    /// The file is not text.
    BinaryFile = "binary_file",
    /// The operating system refused a read.
    ReadFailed = "read_failed",
    /// The operating system refused a write.
    WriteFailed = "write_failed",
    /// A command could not be started.
    CommandFailed = "command_failed",
    /// A command cannot be sandboxed as required.
    SandboxUnavailable = "sandbox_unavailable",
    /// An MCP server ended, disconnected, or broke the protocol.
    McpServerFailed = "mcp_server_failed",
    /// A deadline passed.
    Timeout = "timeout",
    /// The user, the mode or the write bounds refused a call.
    PermissionDenied = "permission_denied",
    /// The result of a tool call was never recorded.
    OrphanToolCall = "orphan_tool_call",
    /// The same tool call was repeated with the same results.
    DoomLoop = "doom_loop",
    /// A Turn needs more Provider calls than allowed.
    IterationCap = "iteration_cap",
    /// The user or a signal stopped the Turn.
    Interrupted = "interrupted",
    /// A Turn already runs.
    Busy = "busy",
    /// No Turn runs, or it has ended.
    NoTurn = "no_turn",
    /// The Session has closed.
    SessionClosed = "session_closed",
    /// Another process writes this Session's Log.
    SessionBusy = "session_busy",
    /// The Log cannot be written.
    LogWriteFailed = "log_write_failed",
    /// The Log cannot be read.
    LogReadFailed = "log_read_failed",
    /// A link or special file is in the place of Pixir's state.
    UnsafeStatePath = "unsafe_state_path",
    /// The target of a create already exists.
    AlreadyExists = "already_exists",
    /// The Log or its proof is damaged.
    LogDamaged = "log_damaged",
    /// There is no credential.
    NotAuthenticated = "not_authenticated",
    /// The Provider refused the credential.
    AuthRefused = "auth_refused",
    /// A credential would travel unprotected.
    InsecureTransport = "insecure_transport",
    /// The request does not fit the model's window.
    ContextOverflow = "context_overflow",
    /// Too many requests were sent; a later one may succeed.
    RateLimited = "rate_limited",
    /// The plan's usage is spent until a stated time.
    UsageLimitReached = "usage_limit_reached",
    /// Billing must be fixed first.
    QuotaExceeded = "quota_exceeded",
    /// The model does not exist or is not allowed.
    ModelNotSupported = "model_not_supported",
    /// The Provider declined the content.
    ProviderRefusal = "provider_refusal",
    /// The Provider answered with an error.
    ProviderError = "provider_error",
    /// The Provider is overloaded.
    ProviderOverloaded = "provider_overloaded",
    /// The Provider could not be reached.
    Network = "network",
    /// The TLS handshake failed, or the Provider's certificate is invalid.
    Tls = "tls",
    /// The stream was silent for too long.
    StreamIdle = "stream_idle_timeout",
    /// The stream broke the protocol, or ended without its final event.
    InvalidResponse = "invalid_response",
    /// The answer ended early, or is empty.
    Incomplete = "incomplete",
    /// The answer does not match the caller's schema.
    SchemaMismatch = "schema_mismatch",
    /// A limit that the user set on tokens, cost or requests is reached.
    BudgetExceeded = "budget_exceeded",
    /// No prompt was given.
    NoPrompt = "no_prompt",
    /// A part of the program panicked; the Session continues.
    Crashed = "crashed",
    /// A bug in Pixir.
    Internal = "internal",
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// An error with a kind, facts for machines and next actions.
pub trait Explain: std::error::Error {
    /// Its kind, details and next actions.
    fn explain(&self) -> Explanation;
    /// The kind of failure.
    fn kind(&self) -> Kind {
        self.explain().kind
    }
    /// Facts for machines: paths, line numbers, limits.
    fn details(&self) -> Value {
        self.explain().details
    }
    /// Next actions for the reader, most useful first.
    fn next_actions(&self) -> Vec<String> {
        self.explain().next_actions
    }
    /// Whether the write bounds of the Session refused the call.
    fn is_write_bounds(&self) -> bool {
        false
    }
}

/// Kind, details and next actions of an error; the message is its `Display`.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// The kind of failure.
    pub kind: Kind,
    /// Facts for machines.
    pub details: Value,
    /// What the reader can do about it, most useful first.
    pub next_actions: Vec<String>,
}

impl Explanation {
    /// Sets the details.
    #[must_use]
    pub fn with_details(self, details: Value) -> Self {
        Self { details, ..self }
    }

    /// Adds a next action.
    #[must_use]
    pub fn with_next_action(mut self, action: impl Into<String>) -> Self {
        self.next_actions.push(action.into());
        self
    }
}

impl From<Kind> for Explanation {
    fn from(kind: Kind) -> Self {
        Self { kind, details: Value::Null, next_actions: Vec::new() }
    }
}

impl Kind {
    /// An explanation with these details.
    pub fn with_details(self, details: Value) -> Explanation {
        Explanation::from(self).with_details(details)
    }

    /// An explanation with this next action.
    pub fn with_next_action(self, action: impl Into<String>) -> Explanation {
        Explanation::from(self).with_next_action(action)
    }
}

/// The one serializable error: printed, wrapped for wires, stored in the Log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// A name of [`Kind`]; text, so that a Log of another version still opens.
    pub kind: String,
    /// One sentence without a full stop.
    pub message: String,
    /// Facts, with `next_actions` inside when there are any.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub details: Value,
}

impl Report {
    /// A report of a kind and a message, where no module's error exists.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind: kind.name().to_owned(), message: message.into(), details: Value::Null }
    }

    /// Adds facts; `next_actions` already present are kept.
    #[must_use]
    pub fn with_details(mut self, details: Value) -> Self {
        let actions = self.next_actions();
        self.details = details;
        if actions.is_empty() { self } else { self.with_next_actions(actions) }
    }

    /// Adds next actions.
    #[must_use]
    pub fn with_next_actions(mut self, actions: Vec<String>) -> Self {
        if actions.is_empty() {
            return self;
        }
        if !self.details.is_object() {
            self.details = serde_json::json!({});
        }
        self.details["next_actions"] = actions.into();
        self
    }

    /// The next actions stored in the details.
    pub fn next_actions(&self) -> Vec<String> {
        let Some(actions) = self.details.get("next_actions").and_then(Value::as_array) else {
            return Vec::new();
        };
        actions.iter().filter_map(|action| action.as_str().map(str::to_owned)).collect()
    }
}

/// Lets `?` turn a module's error into the report of the edge.
impl<E: Explain> From<E> for Report {
    fn from(error: E) -> Self {
        Self::describe(&error)
    }
}

impl Report {
    /// The report of a borrowed error, with the messages of its sources joined.
    pub fn describe(error: &impl Explain) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(source) = cause {
            message = format!("{message}: {source}");
            cause = source.source();
        }
        let Explanation { kind, details, next_actions } = error.explain();
        Self::new(kind, message).with_details(details).with_next_actions(next_actions)
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

/// A number and its noun, for messages: `1 line`, `2 lines`.
pub fn counted(count: impl TryInto<u64>, noun: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_noun_agrees_with_its_number() {
        let counts = [0_usize, 1, 2].map(|count| counted(count, "line"));
        assert_eq!(counts, ["0 lines", "1 line", "2 lines"]);
    }

    #[test]
    fn every_kind_reads_back_from_its_name() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_name(kind.name()), Some(*kind));
        }
        assert_eq!(Kind::from_name("no_such_kind"), None);
    }

    #[test]
    fn next_actions_survive_later_details() {
        let report = Report::new(Kind::NotFound, "no such file")
            .with_next_actions(vec!["look again".into()])
            .with_details(serde_json::json!({"path": "x"}));
        assert_eq!(report.next_actions(), ["look again"]);
        assert_eq!(report.details["path"], "x");
    }
}

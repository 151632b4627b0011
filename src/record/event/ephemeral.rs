//! Ephemeral Events: live notices on the bus, which are never recorded.

#![expect(missing_docs, reason = "field names are the wire contract; docs/events.md shows them")]

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ContextPressure;
use crate::base::error::Report;
use crate::base::id::CallId;

/// A live notice: the payload of an ephemeral Event.
#[derive(Debug, Clone, PartialEq)]
pub enum Ephemeral {
    /// A piece of the model's text; an empty one separates two messages of one response.
    TextDelta(String),
    /// A piece of the model's reasoning summary.
    ReasoningDelta(String),
    /// A piece of a running tool's output.
    ToolOutputDelta { call_id: CallId, chunk: String },
    /// The current status of the Session.
    Status(SessionStatus),
    /// How full the model's window is.
    ContextPressure(ContextPressure),
    /// A Provider call failed and will be tried again.
    ProviderRetry(ProviderRetry),
    /// The user is asked for permission.
    PermissionRequest(Box<PermissionRequest>),
    /// The question was answered, or its Turn ended.
    PermissionResolved { call_id: CallId, answer: PermissionAnswer },
}

impl Ephemeral {
    /// Every name, in the order of the contract.
    pub const TYPES: &'static [&'static str] = &[
        "text_delta",
        "reasoning_delta",
        "tool_output_delta",
        "status",
        "context_pressure",
        "provider_retry",
        "permission_request",
        "permission_resolved",
    ];

    /// The name in `type`.
    pub fn type_name(&self) -> &'static str {
        match self {
            Ephemeral::TextDelta(_) => "text_delta",
            Ephemeral::ReasoningDelta(_) => "reasoning_delta",
            Ephemeral::ToolOutputDelta { .. } => "tool_output_delta",
            Ephemeral::Status(_) => "status",
            Ephemeral::ContextPressure(_) => "context_pressure",
            Ephemeral::ProviderRetry(_) => "provider_retry",
            Ephemeral::PermissionRequest(_) => "permission_request",
            Ephemeral::PermissionResolved { .. } => "permission_resolved",
        }
    }

    /// The wire payload.
    pub fn data(&self) -> Value {
        match self {
            Ephemeral::TextDelta(chunk) | Ephemeral::ReasoningDelta(chunk) => {
                json!({ "chunk": chunk })
            }
            Ephemeral::ToolOutputDelta { call_id, chunk } => {
                json!({ "call_id": call_id, "chunk": chunk })
            }
            Ephemeral::Status(status) => json!(status),
            Ephemeral::ContextPressure(pressure) => json!(pressure),
            Ephemeral::ProviderRetry(retry) => json!(retry),
            Ephemeral::PermissionRequest(request) => json!(request),
            Ephemeral::PermissionResolved { call_id, answer } => {
                json!({ "call_id": call_id, "answer": answer })
            }
        }
    }
}

/// The status of a Session; three of the values end a Turn.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum SessionStatus {
    /// Nothing runs and nothing has run yet.
    Idle,
    /// A Turn waits a moment for MCP servers that are still starting.
    Starting { servers: Vec<String> },
    /// The conversation is compacted before the call goes on.
    Compacting { iteration: u32 },
    /// The next Provider call waits for others of the same run to end, because of the budget.
    WaitingForBudget { iteration: u32 },
    /// A Provider call is under way.
    Thinking { iteration: u32 },
    /// Before or after a command, files are recorded so that its changes can be undone.
    Recording {
        call_id: CallId,
        /// Absent until it is known how many files have to be read.
        #[serde(skip_serializing_if = "Option::is_none")]
        files: Option<RecordedFiles>,
    },
    /// A tool runs, or waits for something before it can.
    Working {
        call_id: CallId,
        tool: String,
        summary: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        waiting: Option<String>,
    },
    /// The Turn ended with an answer.
    Done,
    /// The Turn ended without an answer.
    Error { terminal_status: String, error: Report },
    /// The Turn was stopped.
    Interrupted,
}

impl SessionStatus {
    /// Whether the Turn is over.
    pub fn is_terminal(&self) -> bool {
        matches!(
            self,
            SessionStatus::Done | SessionStatus::Error { .. } | SessionStatus::Interrupted
        )
    }
}

/// How many files were recorded so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RecordedFiles {
    pub done: u64,
    pub total: u64,
}

impl RecordedFiles {
    /// The progress text for a person.
    pub fn progress_text(files: Option<Self>) -> String {
        match files {
            None => "recording files for undo …".to_owned(),
            Some(Self { done, total }) => format!("recording files for undo … {done} of {total}"),
        }
    }
}

/// The status text while the budget delays a request.
pub const WAITING_FOR_BUDGET: &str = "waiting until the budget lets another request leave";

/// How many servers a status text names at most.
const NAMED_SERVERS: usize = 5;

/// The status text for MCP servers that are still starting.
pub fn starting_servers_text(servers: &[String]) -> String {
    let named: Vec<String> =
        servers.iter().take(NAMED_SERVERS).map(|name| format!("`{name}`")).collect();
    match servers.len() {
        0 | 1 => format!("MCP server {} is still starting", named.join("")),
        count => {
            let more = match count.saturating_sub(NAMED_SERVERS) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("MCP servers {}{more} are still starting", named.join(", "))
        }
    }
}

/// A failed attempt that will be followed by another.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ProviderRetry {
    /// The attempt that comes next, from 2.
    pub attempt: u32,
    pub max_attempts: u32,
    pub delay_ms: u64,
    pub error: Report,
}

/// A question to the user; the digest binds the answer to the call as it is shown here.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[expect(clippy::struct_excessive_bools, reason = "facts that have nothing to do with each other")]
pub struct PermissionRequest {
    pub call_id: CallId,
    /// The Subagent that asks; absent when the Session itself asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    pub tool: String,
    pub summary: String,
    pub args: Value,
    /// The paths of the call with links resolved, relative to the directory.
    pub paths: Vec<String>,
    /// The directory in which the call runs.
    pub directory: String,
    /// The diff of the change, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
    /// Whether the diff is cut; the arguments are complete.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub diff_is_cut: bool,
    /// The command that the call would run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<ShownCommand>,
    /// Whether the call asks for the network, or for programs that may reach it.
    pub network: bool,
    /// Whether the call asks for Unix sockets where those of other programs cannot be hidden from it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub local_sockets: bool,
    /// Whether the call is a command that would run without a sandbox.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_unsandboxed: bool,
    /// The possible answers.
    pub answers: Vec<PermissionAnswer>,
    /// The words with which every simple command begins that the answer `prefix` would allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    pub digest: String,
}

/// A command as the user sees it before it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ShownCommand {
    pub text: String,
    /// Each command and redirection in the text, substitutions included; empty when it could not be
    /// parsed.
    pub parts: Vec<String>,
}

/// The user's answer to a permission request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PermissionAnswer {
    /// Yes, this time.
    Once,
    /// Yes to this very call, while this Session is open.
    Session,
    /// Yes to every call of this tool of an MCP server, while this Session is open.
    SessionTool,
    /// Yes to every change that a file tool makes, while this Session is open.
    SessionEdits,
    /// Yes to this very call, in this project from now on.
    Project,
    /// Yes to every simple command with the shown beginning, in this project from now on.
    Prefix,
    /// No.
    No,
}

/// The user's answer, and an optional message to the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionResponse {
    pub answer: PermissionAnswer,
    pub message: Option<String>,
}

impl From<PermissionAnswer> for PermissionResponse {
    fn from(answer: PermissionAnswer) -> Self {
        Self { answer, message: None }
    }
}

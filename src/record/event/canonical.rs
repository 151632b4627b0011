//! Canonical Events: the durable facts of a Session and their payloads.
//!
//! Every payload keeps the fields it does not know (`extra`), so that a Log written by a newer or
//! older Pixir passes through unharmed. A known type with an unreadable payload, and a type this
//! build does not know, become `Unknown`: kept, shown by diagnosis, skipped by the fold.

#![expect(missing_docs, reason = "field names are the wire contract; docs/events.md shows them")]

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::open_enum::open_enum;
use super::{
    ContinuationUse, Extra, HistoryCompaction, PermissionDecision, PostureChanged, RateLimits,
    SessionFork, SessionStarted, SubagentEvent, TokenUsage,
};
use crate::base::error::Report;
use crate::base::id::CallId;

/// The enum of facts, their names, and the dispatch to and from JSON.
macro_rules! facts {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A durable fact: the payload of a canonical Event.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Canonical {
            $($(#[$doc])* $variant($variant),)*
            /// A type or payload that this build cannot read.
            Unknown(Unknown),
        }

        impl Canonical {
            /// Every name this build writes, in the order of the contract.
            pub const TYPES: &'static [&'static str] = &[$($name,)*];

            /// The name in `type`.
            pub fn type_name(&self) -> &str {
                match self {
                    $(Canonical::$variant(_) => $name,)*
                    Canonical::Unknown(unknown) => &unknown.type_name,
                }
            }

            /// Reads a payload; what cannot be read is kept as it is.
            pub fn decode(type_name: &str, data: &RawValue) -> Self {
                let known = match type_name {
                    $($name => serde_json::from_str(data.get()).map(Canonical::$variant),)*
                    _ => return Self::unknown(type_name, data, None),
                };
                known.unwrap_or_else(|error| Self::unknown(type_name, data, Some(&error)))
            }
        }

        impl Canonical {
            /// The schema of each payload as this build writes it, by the name of its type.
            pub fn schemas(generator: &mut SchemaGenerator) -> Vec<(&'static str, Schema)> {
                vec![$(($name, generator.subschema_for::<$variant>()),)*]
            }
        }

        /// Serializes the payload alone, without its name.
        impl Serialize for Canonical {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self {
                    $(Canonical::$variant(payload) => payload.serialize(serializer),)*
                    Canonical::Unknown(unknown) => unknown.data.serialize(serializer),
                }
            }
        }

        $(impl From<$variant> for Canonical {
            fn from(payload: $variant) -> Self { Canonical::$variant(payload) }
        })*
    };
}

facts! {
    /// The Session exists; seq 0 of every Log that is not a fork.
    SessionStarted = "session_started",
    /// A message of the user, which begins a Turn.
    UserMessage = "user_message",
    /// A message of the model.
    AssistantMessage = "assistant_message",
    /// An opaque reasoning item, replayed to the model that made it.
    Reasoning = "reasoning",
    /// The model asked for a tool.
    ToolCall = "tool_call",
    /// The result of a tool call.
    ToolResult = "tool_result",
    /// Why a call was or was not allowed.
    PermissionDecision = "permission_decision",
    /// The cost of one Provider call, successful or not.
    ProviderUsage = "provider_usage",
    /// The Turn ended without an answer.
    TurnFailed = "turn_failed",
    /// The model's plan, always whole.
    Plan = "plan",
    /// A Skill became part of the context.
    SkillActivation = "skill_activation",
    /// A source of a Skill's context was read, for one Turn.
    SkillContextHydration = "skill_context_hydration",
    /// Something happened to a child Session, or to an old Session's posture.
    SubagentEvent = "subagent_event",
    /// Something happened in a Workflow.
    WorkflowEvent = "workflow_event",
    /// The Session branched off another; seq 0 of a fork.
    SessionFork = "session_fork",
    /// A summary of the branch that was left.
    BranchSummary = "branch_summary",
    /// Older History is replaced by a checkpoint for the model.
    HistoryCompaction = "history_compaction",
    /// The conversation went back.
    HistoryRewound = "history_rewound",
    /// Mode, model, effort or role changed.
    PostureChanged = "posture_changed",
    /// A torn tail was closed when the Log was opened.
    LogRepaired = "log_repaired",
}

impl Canonical {
    fn unknown(type_name: &str, data: &RawValue, error: Option<&serde_json::Error>) -> Self {
        Canonical::Unknown(Unknown {
            type_name: type_name.to_owned(),
            data: data.to_owned(),
            problem: error.map(ToString::to_string),
        })
    }
}

/// A fact of another version: its bytes are kept verbatim.
#[derive(Debug, Clone)]
pub struct Unknown {
    pub type_name: String,
    pub data: Box<RawValue>,
    /// Why a known type could not be read; `None` when the type itself is unknown.
    pub problem: Option<String>,
}

impl PartialEq for Unknown {
    fn eq(&self, other: &Self) -> bool {
        self.type_name == other.type_name && self.data.get() == other.data.get()
    }
}

open_enum! {
    /// Whether a message of the model goes on or ends the Turn.
    Phase {
        /// Text sent with tool calls.
        Commentary = "commentary",
        /// The answer.
        Final = "final",
    }
}

open_enum! {
    /// The end of a Turn that has no final answer.
    TerminalStatus {
        /// The Provider failed permanently.
        ProviderError = "provider_error",
        /// Settings or credentials do not work.
        ConfigurationError = "configuration_error",
        /// A tool, or the Log under it, failed permanently.
        ToolError = "tool_error",
        /// Stopped by the user, a signal, or the end of the process.
        Interrupted = "interrupted",
        /// A deadline of the run passed.
        TimedOut = "timed_out",
        /// The limit of Provider calls was reached.
        IterationCap = "iteration_cap",
        /// The same tool call was repeated with the same results.
        DoomLoop = "doom_loop",
        /// A hard budget is spent.
        BudgetExceeded = "budget_exceeded",
        /// The model ended without a usable answer.
        Incomplete = "incomplete",
        /// A panic ended the Turn.
        Crashed = "crashed",
    }
}

/// A message of the user, and the developer context that changed with it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct UserMessage {
    pub text: String,
    /// Late developer context, present only when it differs from the last one in the Log; kept
    /// here so that the replayed prefix stays the same bytes on every later request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<Value>,
    #[serde(flatten)]
    pub extra: Extra,
}

/// Metadata key of a message that Pixir wrote about a Workflow run: the id of the run.
pub const REPORT_OF: &str = "workflow_id";

/// Metadata key of a message, and extra key of a failure: a notice for the user about the Turn.
pub const NOTICE: &str = "notice";

/// A message of the model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct AssistantMessage {
    pub text: String,
    /// Absent in Logs of the first Pixir, where every message is final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Extra>,
    #[serde(flatten)]
    pub extra: Extra,
}

impl AssistantMessage {
    /// Whether the message is the text of a broken stream: evidence, never replayed.
    pub fn is_partial(&self) -> bool {
        self.metadata
            .as_ref()
            .and_then(|metadata| metadata.get("partial"))
            .is_some_and(|partial| partial == &Value::Bool(true))
    }

    /// Whether Pixir wrote the message, about a Workflow run that the user started.
    pub fn is_report(&self) -> bool {
        self.metadata.as_ref().is_some_and(|metadata| metadata.contains_key(REPORT_OF))
    }

    /// Why the Provider cut the answer, if it did.
    pub fn truncation(&self) -> Option<&str> {
        self.metadata.as_ref()?.get("truncated")?.as_str()
    }

    /// The notice for the user about the Turn that the message ends.
    pub fn notice(&self) -> Option<&str> {
        self.metadata.as_ref()?.get(NOTICE)?.as_str()
    }

    /// Whether the message ends its Turn.
    pub fn is_final(&self) -> bool {
        !self.is_partial() && self.phase.as_ref().is_none_or(|phase| *phase == Phase::Final)
    }
}

/// A reasoning item as the Provider sent it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Reasoning {
    pub item: Value,
    pub model: String,
    #[serde(flatten)]
    pub extra: Extra,
}

/// A request of the model to run a tool, recorded before anything else happens to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolCall {
    pub call_id: CallId,
    pub name: String,
    #[serde(default)]
    pub args: Value,
    /// The arguments as sent, when they are not a JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_args: Option<String>,
    #[serde(flatten)]
    pub extra: Extra,
}

/// The result of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolResult {
    pub call_id: CallId,
    #[serde(default)]
    pub ok: bool,
    /// The text for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Report>,
    /// Facts for presenters and audits: diff, exit code, spill path.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub details: Value,
    #[serde(flatten)]
    pub extra: Extra,
}

/// One Provider call: cost, time, and how it went.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ProviderUsage {
    pub model: String,
    pub iteration: u32,
    /// `completed`, `incomplete` or `failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<TokenUsage>,
    /// The billed usage of failed attempts of this call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_usage: Option<Box<TokenUsage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Why the preferred transport was not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuation: Option<ContinuationUse>,
    /// Whether reasoning was left out, because the server could not read it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reasoning_dropped: bool,
    pub retries: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_byte_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_contract: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_cache_key: Option<String>,
    /// `None` when the model's price is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_cost_usd: Option<f64>,
    /// Rate limits that the server reported; the last report of the call counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limits: Option<Box<RateLimits>>,
    #[serde(flatten)]
    pub extra: Extra,
}

/// The end of a Turn that has no final answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnFailed {
    pub terminal_status: TerminalStatus,
    #[serde(default)]
    pub error_kind: String,
    #[serde(default)]
    pub error_message: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub details: Value,
    #[serde(flatten)]
    pub extra: Extra,
}

impl TurnFailed {
    /// The notice for the user about the Turn.
    pub fn notice(&self) -> Option<&str> {
        self.extra.get(NOTICE)?.as_str()
    }
}

/// One line of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanEntry {
    pub content: String,
    #[serde(default)]
    pub priority: String,
    #[serde(default)]
    pub status: String,
    #[serde(flatten)]
    pub extra: Extra,
}

/// The model's plan.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Plan {
    pub entries: Vec<PlanEntry>,
    /// Why the plan changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<String>,
    #[serde(flatten)]
    pub extra: Extra,
}

/// A Skill that became part of the context, with the text that was used.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SkillActivation {
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The owner of the Skill: `repo`, `user` or `pixir`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub scope: String,
    /// The path of the Skill, without folders of this machine.
    pub path: String,
    /// The folder of the Skill, for its other files.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub folder: String,
    /// The hash of the whole file.
    pub content_hash: String,
    /// The text as it was, cut where it is too long; empty when the Log has it already.
    pub content: String,
    /// The size of the whole text in bytes, when it is cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_from: Option<u64>,
    /// Whether the Skill was active already and its text has been shown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub repeated: bool,
    /// The only tools allowed in the Turn, as the Skill writes them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_tools: Vec<String>,
    /// `user`, `model`, or `parent` when another agent named it in a task.
    pub activated_by: String,
    #[serde(flatten)]
    pub extra: Extra,
}

/// The result of reading one source of a Skill's context, for one Turn.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SkillContextHydration {
    pub name: String,
    /// The hash of the Skill that declared the source.
    pub content_hash: String,
    /// The name of the source.
    pub source: String,
    /// `files`, `git` or `command`.
    pub kind: String,
    /// The files, the query or the command.
    pub request: String,
    /// The tools that read or ran it, through the Executor.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// `user` or `model`.
    pub requested_by: String,
    /// The permission mode at that time.
    pub mode: String,
    pub ok: bool,
    /// The text that the model is shown in this Turn.
    pub content: String,
    /// The SHA-256 of that text.
    pub sha256: String,
    /// The size of the whole content in bytes, when it is cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_from: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Report>,
    #[serde(flatten)]
    pub extra: Extra,
}

open_enum! {
    /// What happened to a run of a Workflow.
    WorkflowEventKind {
        /// The run began.
        Started = "started",
        /// The run was resumed after its end or a crash.
        Resumed = "resumed",
        /// A step was assigned to a Subagent, or its changes are to be applied.
        StepScheduled = "step_scheduled",
        /// A step does not run, because of another one.
        StepHeld = "step_held",
        /// A failed step is tried again.
        StepRetrying = "step_retrying",
        /// The outcome of a step.
        CheckpointDecided = "checkpoint_decided",
        /// A command checked the outcome of a step.
        Verification = "verification",
        /// The changes of a step were merged.
        Merged = "merged",
        /// The changes of a step were undone.
        StepTakenBack = "step_taken_back",
        /// The run ended.
        Finished = "finished",
    }
}

impl Default for WorkflowEventKind {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

/// A step of a Workflow.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WorkflowEvent {
    pub kind: WorkflowEventKind,
    pub workflow_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_id: Option<String>,
    #[serde(flatten)]
    pub extra: Extra,
}

/// What happened on a branch that was left.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BranchSummary {
    pub parent_session_id: String,
    pub summary: String,
    #[serde(flatten)]
    pub extra: Extra,
}

/// The conversation went back to before `to_seq`; the Log keeps what was left.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HistoryRewound {
    pub to_seq: u64,
    #[serde(flatten)]
    pub extra: Extra,
}

/// Bytes at the end of the Log that were closed with a newline and are skipped by every fold.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LogRepaired {
    pub offset: u64,
    pub length: u64,
    pub sha256: String,
    /// Whether the line was whole and only its newline was missing, so that it counts.
    pub kept: bool,
    #[serde(flatten)]
    pub extra: Extra,
}

//! The lifecycle of a Subagent, as facts of its parent's Log.

#![expect(missing_docs, reason = "field names are the wire contract; docs/events.md shows them")]

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::open_enum::open_enum;
use super::{Extra, ProviderUsage, TerminalStatus};

open_enum! {
    /// Kinds of events of a child.
    SubagentEventKind {
        /// The child waits for a free slot.
        Queued = "queued",
        /// The Session of the child is about to be created.
        Starting = "starting",
        /// A run of the child began.
        Started = "started",
        /// The child got another message.
        Input = "input",
        /// A failed run is tried again.
        Retrying = "retrying",
        /// The run succeeded.
        Finished = "finished",
        /// The run failed.
        Failed = "failed",
        /// The run took too long.
        TimedOut = "timed_out",
        /// The run was stopped.
        Cancelled = "cancelled",
        /// The process that ran it ended.
        Detached = "detached",
        /// The child accepts no more input.
        Closed = "closed",
        /// The changes of the child were merged.
        Merged = "merged",
        /// The merge of the child's changes was undone.
        MergeTakenBack = "merge_taken_back",
        /// The permission mode of a Session of the first Pixir.
        PermissionPosture = "permission_posture",
    }
}

impl Default for SubagentEventKind {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

/// A child's lifecycle in its parent's Log, or (first Pixir) a Session's posture.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SubagentEvent {
    pub event: SubagentEventKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subagent_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_session_id: Option<String>,
    /// The name of the child's role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// The result of the run, shortened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The task, shortened; the full text is in the child's Log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Why the run did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// The number of the attempt, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permission_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The time limit of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The duration of the run, without time in the queue and without waiting for the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elapsed_ms: Option<u64>,
    /// The usage of the run, its own children included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<SubagentUsage>,
    /// The seq of the end of the run in the child's Log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_seq: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next_actions: Vec<String>,
    #[serde(flatten)]
    pub extra: Extra,
}

/// The usage of a run of a Subagent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SubagentUsage {
    pub calls: u64,
    pub input_tokens: u64,
    /// The cached part of the input.
    pub cached_tokens: u64,
    pub output_tokens: u64,
    /// The reasoning part of the output.
    pub reasoning_tokens: u64,
    pub total_tokens: u64,
    /// `None` when no price is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_cost_usd: Option<f64>,
}

impl SubagentUsage {
    /// The usage of one Provider call.
    pub fn from_usage(usage: &ProviderUsage) -> Self {
        let tokens = usage.billed().unwrap_or_default();
        Self {
            calls: 1,
            input_tokens: tokens.input_tokens,
            cached_tokens: tokens.cached_tokens,
            output_tokens: tokens.output_tokens,
            reasoning_tokens: tokens.reasoning_tokens,
            total_tokens: tokens.total_tokens,
            estimated_cost_usd: usage.estimated_cost_usd,
        }
    }

    /// Adds another usage.
    pub fn add(&mut self, other: &Self) {
        let mut cost = self.estimated_cost_usd;
        if let Some(more) = other.estimated_cost_usd {
            *cost.get_or_insert(0.0) += more;
        }
        *self = Self { estimated_cost_usd: cost, ..self.combined(other, u64::saturating_add) };
    }

    /// This usage minus another.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        let less = |cost: f64| (cost - other.estimated_cost_usd.unwrap_or_default()).max(0.0);
        let cost = self.estimated_cost_usd.map(less);
        Self { estimated_cost_usd: cost, ..self.combined(other, u64::saturating_sub) }
    }

    /// Every count combined with that of another usage; the cost stays.
    fn combined(&self, other: &Self, combine: fn(u64, u64) -> u64) -> Self {
        Self {
            calls: combine(self.calls, other.calls),
            input_tokens: combine(self.input_tokens, other.input_tokens),
            cached_tokens: combine(self.cached_tokens, other.cached_tokens),
            output_tokens: combine(self.output_tokens, other.output_tokens),
            reasoning_tokens: combine(self.reasoning_tokens, other.reasoning_tokens),
            total_tokens: combine(self.total_tokens, other.total_tokens),
            estimated_cost_usd: self.estimated_cost_usd,
        }
    }
}

/// Extra key in a fork: the Session that the child belongs to.
const COPY_OF: &str = "copied_from";

/// Extra key for the child of a Workflow step: the id of the run.
const WORKFLOW: &str = "workflow_id";

impl SubagentEvent {
    /// The Event as a fork of its Session records it: the child stays with the original.
    #[must_use]
    pub fn copy_of(mut self, parent: &str) -> Self {
        self.extra.entry(COPY_OF.to_owned()).or_insert_with(|| parent.into());
        self
    }

    /// Whether the child belongs to another Session.
    pub fn is_copy(&self) -> bool {
        self.extra.contains_key(COPY_OF)
    }

    /// Whether the run ended because the budget was spent. A Workflow has its own limits, and reports the
    /// outcome of its steps itself.
    pub fn ran_out_of_budget(&self) -> bool {
        let reason = TerminalStatus::BudgetExceeded;
        self.ends_run()
            && self.reason.as_deref() == Some(reason.as_str())
            && !self.extra.contains_key(WORKFLOW)
    }

    /// Whether the Event is the end of a run.
    pub fn ends_run(&self) -> bool {
        matches!(
            self.event,
            SubagentEventKind::Finished
                | SubagentEventKind::Failed
                | SubagentEventKind::TimedOut
                | SubagentEventKind::Cancelled
                | SubagentEventKind::Detached
        )
    }
}

//! `--json`: exactly one envelope on stdout, whatever happens.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::tally::{Ending, Usage};
use crate::error::Report;
use crate::event::{Status, SubagentUsage, TerminalStatus};
use crate::id::SessionId;

/// What a machine reads at the end.
#[derive(Debug, Serialize)]
pub struct Envelope {
    pub ok: bool,
    pub status: &'static str,
    /// What was done: `turn`, `sessions`, `verify`, …
    pub kind: &'static str,
    /// Absent when the failure came before a Session existed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    pub output: Value,
    pub usage: Option<Usage>,
    pub duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_command: Option<String>,
    pub error: Option<Report>,
}

impl Envelope {
    /// The end of a Turn.
    pub fn turn(ending: &Ending, took: Duration) -> Self {
        Self {
            ok: ending.status == Status::Done,
            status: status_word(ending),
            kind: "turn",
            session_id: None,
            output: ending.output.clone().map_or(Value::Null, Value::from),
            usage: Some(ending.usage.clone()),
            duration_ms: millis(took),
            resume_command: None,
            error: ending.error(),
        }
    }

    /// A command that did what it was asked.
    pub fn success(kind: &'static str, output: Value, took: Duration) -> Self {
        Self {
            ok: true,
            status: "completed",
            kind,
            session_id: None,
            output,
            usage: None,
            duration_ms: millis(took),
            resume_command: None,
            error: None,
        }
    }

    /// A command that could not.
    pub fn failure(kind: &'static str, error: Report, took: Duration) -> Self {
        let status = if error.kind == "interrupted" { "interrupted" } else { "error" };
        let output = Value::Null;
        Self { ok: false, status, error: Some(error), ..Self::success(kind, output, took) }
    }

    /// Work that came to something, good or bad.
    pub fn outcome(
        kind: &'static str,
        status: &'static str,
        output: Value,
        took: Duration,
    ) -> Self {
        let ok = status == "completed";
        Self { ok, status, ..Self::success(kind, output, took) }
    }

    /// Says what children used up.
    #[must_use]
    pub fn having_spent(mut self, spent: &SubagentUsage) -> Self {
        self.usage.get_or_insert_default().add_child(spent);
        self
    }

    /// Names the Session and how to go on with it.
    #[must_use]
    pub fn of_session(mut self, id: &SessionId, resume_command: impl Into<Option<String>>) -> Self {
        self.session_id = Some(id.clone());
        self.resume_command = resume_command.into();
        self
    }

    /// The one line for stdout.
    pub fn line(&self) -> String {
        // Nothing in an envelope can fail to serialise; an empty object would still be one line.
        let mut line = serde_json::to_string(self).unwrap_or_else(|_| "{}".to_owned());
        line.push('\n');
        line
    }
}

fn status_word(ending: &Ending) -> &'static str {
    if ending.status == Status::Done {
        return if ending.truncated { "incomplete" } else { "completed" };
    }
    match ending.terminal_status() {
        Some(TerminalStatus::Interrupted) => "interrupted",
        Some(TerminalStatus::TimedOut) => "timed_out",
        Some(
            TerminalStatus::Incomplete
            | TerminalStatus::IterationCap
            | TerminalStatus::DoomLoop
            | TerminalStatus::BudgetExceeded,
        ) => "incomplete",
        Some(
            TerminalStatus::ProviderError
            | TerminalStatus::ConfigurationError
            | TerminalStatus::ToolError
            | TerminalStatus::Crashed
            | TerminalStatus::Other(_),
        )
        | None => "error",
    }
}

fn millis(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}

//! `--json`: exactly one JSON envelope on stdout, also after an error.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::Value;

use super::turn_summary::{TurnOutcome, Usage};
use crate::base::error::Report;
use crate::base::id::SessionId;
use crate::record::event::{
    SessionStatus, SubagentUsage, TerminalStatus, is_bidi_control, is_invisible,
};

/// Every value of `status`.
const STATUSES: [&str; 5] = ["completed", "incomplete", "timed_out", "interrupted", "error"];

/// The JSON schema of the envelope, as it is published; not a part of the API.
pub fn envelope_schema() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let schema = settings.into_generator().into_root_schema_for::<JsonEnvelope>();
    let mut schema = schema.to_value();
    schema["title"] = "pixir --json: the one line on stdout".into();
    schema["description"] =
        "Every command prints exactly one of these with --json. `output` is what \
        `kind` promises; a reader ignores fields that it does not know."
            .into();
    schema
}

/// The envelope of `--json`: the result of a command.
#[derive(Debug, Serialize, JsonSchema)]
pub struct JsonEnvelope {
    pub ok: bool,
    #[schemars(extend("enum" = STATUSES))]
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

impl JsonEnvelope {
    /// The envelope of a Turn.
    pub fn for_turn(outcome: &TurnOutcome, took: Duration) -> Self {
        Self {
            ok: outcome.is_completed(),
            status: status_word(outcome),
            usage: Some(outcome.usage.clone()),
            error: outcome.error(),
            ..Self::success("turn", outcome.output.clone().into(), took)
        }
    }

    /// The envelope of a command that succeeded.
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

    /// The envelope of a command that failed.
    pub fn failure(kind: &'static str, error: Report, took: Duration) -> Self {
        let status = if error.kind == "interrupted" { "interrupted" } else { "error" };
        let output = Value::Null;
        Self { ok: false, status, error: Some(error), ..Self::success(kind, output, took) }
    }

    /// The envelope of work that has its own status, successful or not.
    pub fn for_outcome(
        kind: &'static str,
        status: &'static str,
        output: Value,
        took: Duration,
    ) -> Self {
        let ok = status == "completed";
        Self { ok, status, ..Self::success(kind, output, took) }
    }

    /// Adds the usage of a child.
    #[must_use]
    pub fn with_child_usage(mut self, spent: &SubagentUsage) -> Self {
        self.usage.get_or_insert_default().add_child(spent);
        self
    }

    /// Marks the envelope as failed when there is an error.
    #[must_use]
    pub fn with_error(mut self, error: Option<Report>) -> Self {
        if error.is_some() {
            self.ok = false;
            self.status = "error";
            self.error = error;
        }
        self
    }

    /// Adds the Session and the command that resumes it.
    #[must_use]
    pub fn with_session(
        mut self,
        id: &SessionId,
        resume_command: impl Into<Option<String>>,
    ) -> Self {
        self.session_id = Some(id.clone());
        self.resume_command = resume_command.into();
        self
    }

    /// The one line for stdout.
    pub fn to_line(&self) -> String {
        // Serialising an envelope cannot fail; an empty object would still be one line.
        let line = serde_json::to_string(self).unwrap_or_else(|_| "{}".to_owned());
        let mut line = escape_hidden(&line).into_owned();
        line.push('\n');
        line
    }
}

/// JSON text in which hidden characters are `\uXXXX` escapes, so that a terminal neither obeys nor hides
/// them; the same JSON to a parser. None of them can stand outside a string.
pub fn escape_hidden(json: &str) -> Cow<'_, str> {
    let is_meant =
        |c: char| c > '\u{7e}' && (c.is_control() || is_bidi_control(c) || is_invisible(c));
    if !json.contains(is_meant) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len() + 64);
    for c in json.chars() {
        if is_meant(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                write!(escaped, "\\u{unit:04x}").unwrap_or_default();
            }
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

fn status_word(outcome: &TurnOutcome) -> &'static str {
    if outcome.status == SessionStatus::Done {
        return if outcome.is_completed() { "completed" } else { "incomplete" };
    }
    match outcome.terminal_status() {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn escaped_json_is_the_same_json_without_hidden_characters(
            text in "[a-z\"\\\\é漢\u{7f}-\u{9f}\u{ad}\u{61c}\u{200b}-\u{200f}\u{202a}-\u{202e}\u{2060}-\u{2069}\u{feff}\u{e0000}-\u{e007f}👩]{0,40}",
        ) {
            let json = serde_json::to_string(&text).unwrap();
            let escaped = escape_hidden(&json);
            prop_assert!(!escaped.contains(|c: char| c.is_control() || is_bidi_control(c) || is_invisible(c)));
            prop_assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
        }
    }
}

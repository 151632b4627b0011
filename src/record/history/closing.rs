//! Closing facts: results for calls without one, and ends for Turns without one.

use serde_json::{Value, json};

use crate::base::error::{Kind, Report};
use crate::record::event::{
    AssistantMessage, Extra, TerminalStatus, ToolCall, ToolResult, TurnFailed,
};

/// The result of a call that will never be answered.
pub fn orphan_result(call: &ToolCall, reason: &str) -> ToolResult {
    let message = format!("the call to `{}` did not finish: {reason}", call.name);
    ToolResult {
        call_id: call.call_id.clone(),
        ok: false,
        output: Some(format!(
            "error (orphan_tool_call): {message}. Its effects are unknown: check before you repeat it."
        )),
        error: Some(
            Report::new(Kind::OrphanToolCall, message)
                .with_details(json!({ "tool": call.name, "reason": reason })),
        ),
        details: Value::Null,
        extra: Extra::new(),
    }
}

/// The text of a broken answer: evidence, never replayed.
pub fn partial_message(text: String, error_kind: &str) -> AssistantMessage {
    let mut metadata = Extra::new();
    metadata.insert("partial".to_owned(), Value::Bool(true));
    metadata.insert("error_kind".to_owned(), error_kind.into());
    AssistantMessage { text, metadata: Some(metadata), ..AssistantMessage::default() }
}

/// The end of a Turn whose process or task ended first.
pub fn interrupted_turn(message: &str) -> TurnFailed {
    TurnFailed {
        terminal_status: TerminalStatus::Interrupted,
        error_kind: Kind::Interrupted.name().to_owned(),
        error_message: message.to_owned(),
        details: Value::Null,
        extra: Extra::new(),
    }
}

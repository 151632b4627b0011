//! The error of a tool call: kind, message, details and next actions. `agent::turn::execute` makes the
//! model's text of it.

use serde_json::Value;

use crate::base::error::{Explain, Explanation, Kind, Report};

/// The failure of a tool call.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ToolError {
    pub kind: Kind,
    /// One sentence without a full stop; boxed, so that results stay small.
    pub message: Box<str>,
    pub details: Value,
    pub next_actions: Vec<String>,
    /// Whether the write bounds of the Session refused the call.
    pub is_write_bounds: bool,
}

impl ToolError {
    /// An error without details and next actions.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into().into(),
            details: Value::Null,
            next_actions: Vec::new(),
            is_write_bounds: false,
        }
    }
    /// An error about invalid arguments.
    pub fn invalid_args(message: impl Into<String>) -> Self {
        Self::new(Kind::InvalidArgs, message)
    }
    /// Sets the details.
    #[must_use]
    pub fn with_details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }
    /// Adds a next action.
    #[must_use]
    pub fn with_next_action(mut self, action: impl Into<String>) -> Self {
        self.next_actions.push(action.into());
        self
    }
}

/// Lets `?` convert a module's error into a tool error.
impl<E: Explain> From<E> for ToolError {
    fn from(error: E) -> Self {
        let Explanation { kind, details, next_actions } = error.explain();
        let message = Report::describe(&error).message.into();
        Self { kind, message, details, next_actions, is_write_bounds: error.is_write_bounds() }
    }
}

impl From<ToolError> for Report {
    fn from(error: ToolError) -> Self {
        Self::new(error.kind, error.message)
            .with_details(error.details)
            .with_next_actions(error.next_actions)
    }
}

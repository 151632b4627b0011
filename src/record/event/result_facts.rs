//! Typed access to the `details` of results, which Presenters and later Turns read.

use serde_json::Value;

use super::{ToolResult, TurnFailed};
use crate::base::error::Report;

/// One file that a result concerns.
#[derive(Debug, Clone, Copy)]
pub struct FileResult<'a> {
    /// The path, as the Tool names it.
    pub path: &'a str,
    /// The hash of the content as the model knows it.
    pub sha256: Option<&'a str>,
    /// Whether the call changed the file.
    pub is_changed: bool,
    /// Whether the call removed the file.
    pub is_deleted: bool,
}

impl ToolResult {
    fn text(&self, name: &str) -> Option<&str> {
        self.details.get(name)?.as_str()
    }

    fn list(&self, name: &str) -> &[Value] {
        self.details.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// The diff of the change that the call made.
    pub fn diff(&self) -> Option<&str> {
        self.text("diff")
    }

    /// A notice for people about the result.
    pub fn notice(&self) -> Option<&str> {
        self.text("notice")
    }

    /// Whether the result is that of a command that ran to its end.
    pub fn is_command(&self) -> bool {
        self.details.get("exit_code").is_some()
    }

    /// The exit code of a command that was not killed.
    pub fn exit_code(&self) -> Option<i64> {
        self.details.get("exit_code")?.as_i64()
    }

    /// The signal that killed a command: a number, or a name.
    pub fn signal(&self) -> Option<String> {
        let signal = self.details.get("signal").filter(|signal| !signal.is_null())?;
        Some(signal.as_str().map_or_else(|| signal.to_string(), str::to_owned))
    }

    /// The handle of a background command, and whether it runs, where that is known.
    pub fn background(&self) -> Option<(&str, Option<bool>)> {
        let is_running = self.details.get("running").and_then(Value::as_bool);
        Some((self.text("background")?, is_running))
    }

    /// The ids of Subagents whose ends the result reports.
    pub fn reported_subagents(&self) -> impl Iterator<Item = &str> {
        self.list("told").iter().filter_map(Value::as_str)
    }

    /// The ids of Subagents whose ends did not fit into the text.
    pub fn unreported_subagents(&self) -> impl Iterator<Item = &str> {
        self.list("left").iter().filter_map(Value::as_str)
    }

    /// The files that the result concerns.
    pub fn files(&self) -> impl Iterator<Item = FileResult<'_>> {
        let several = self.list("files").iter();
        std::iter::once(&self.details).chain(several).filter_map(|facts| {
            let is_deleted = facts.get("deleted");
            Some(FileResult {
                path: facts.get("path")?.as_str()?,
                sha256: facts.get("sha256").and_then(Value::as_str),
                is_changed: facts.get("diff").is_some() || is_deleted.is_some(),
                is_deleted: is_deleted.and_then(Value::as_bool) == Some(true),
            })
        })
    }
}

impl TurnFailed {
    /// Whether the server truncated the answer, with a reason.
    pub fn is_cut(&self) -> bool {
        self.details.get("reason").is_some_and(Value::is_string)
    }

    /// The error with which the Turn ended.
    pub fn report(&self) -> Report {
        Report {
            kind: self.error_kind.clone(),
            message: self.error_message.clone(),
            details: self.details.clone(),
        }
    }
}

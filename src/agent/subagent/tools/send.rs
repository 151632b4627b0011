//! `send_input`: sends another message to a child whose run is over.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::agent::subagent::Children;
use crate::agent::subagent::constraints::Constraints;
use crate::agent::subagent::record::{SubagentRecord, SubagentView};
use crate::agent::subagent::show;
use crate::base::error::Kind;
use crate::base::text::truncate_chars;
use crate::base::tool_error::ToolError;
use crate::record::event::PermissionMode;
use crate::settings::role::stricter_mode;
use crate::tools::tool::{CallEffect, CallPlan, Tool, ToolContext, ToolOutput};

/// The `send_input` tool.
pub struct SendInput(pub Arc<Children>);

/// The arguments of `send_input`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    id: String,
    /// The message.
    text: String,
}

impl Tool for SendInput {
    type Args = Args;
    const NAME: &'static str = "send_input";
    const DESCRIPTION: &'static str =
        "Send another message to a Subagent that has ended; it keeps its context.";

    fn plan(&self, args: &Args, _: &ToolContext) -> Result<CallPlan, ToolError> {
        // The child's mode is not known here, so the call is judged by the parent's.
        let mode = self.0.requester().mode;
        let is_read_only = stricter_mode(&mode, &PermissionMode::ReadOnly) == mode;
        let effect = if is_read_only { CallEffect::Read } else { CallEffect::Write };
        let summary =
            format!("tell {}: {}", truncate_chars(&args.id, 40), truncate_chars(&args.text, 80));
        Ok(CallPlan::new(effect, summary))
    }

    async fn run(&self, args: Args, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let Args { id, text } = args;
        if text.trim().is_empty() {
            return Err(ToolError::invalid_args("the text is empty"));
        }
        let mut views = self.0.views(Some(vec![id.clone()])).await?;
        let record =
            views.pop().map(|view| view.record).ok_or_else(|| show::unknown_subagent_error(&id))?;
        check_can_continue(&record)?;
        self.0.resolve_role(&record)?;
        let record =
            self.0.send_message(record, text, Constraints::default(), context.cancel).await?;
        let text = format!("{} ({}) is queued again.", record.id, record.role);
        let view = SubagentView { record, activity: String::new(), position: 0 };
        Ok(ToolOutput::new(true, text, json!({ "subagent": show::child_json(&view) })))
    }
}

fn check_can_continue(record: &SubagentRecord) -> Result<(), ToolError> {
    if !record.status.is_over() {
        return Err(show::busy_subagent_error(record));
    }
    if record.is_closed {
        let message = format!("{} is closed", record.id);
        return Err(ToolError::new(Kind::NotFound, message).with_next_action("spawn another one"));
    }
    if record.child.is_none() {
        let message = format!("{} never had a Session", record.id);
        return Err(ToolError::new(Kind::NotFound, message).with_next_action("spawn another one"));
    }
    Ok(())
}
